/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other routers of the fleet book, and what we book, told to them: replicas.c.
 * Threads: replicas_on_change under a router's lock, on any thread; replicas_on_session on any thread; the rest is the main
 * loop's.
 */
#ifndef KVR_SERVE_REPLICAS_H
#define KVR_SERVE_REPLICAS_H

#include <kvroute/load.h>
#include <kvroute/router.h>

#include "base/buf.h"

struct serve;
struct kvr_prom_page;

bool replicas_over_nats(const struct serve *s);
bool replicas_wanted(const struct serve *s);
int replicas_start(struct serve *s, char *err, size_t cap);
void replicas_stop(struct serve *s);
/* A session was bound here. */
void replicas_on_session(struct serve *s, const char *id, size_t len, struct kvr_worker w);
void replicas_on_change(void *partition, const struct kvr_load_event *event);
void replicas_workers_changed(struct serve *s);
void replicas_metrics(struct serve *s, struct kvr_prom_page *out);

#endif
