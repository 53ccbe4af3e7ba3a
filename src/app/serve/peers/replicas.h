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

struct peers;
struct serve_options;
struct kvr_prom_page;

bool replicas_over_nats(const struct serve_options *o);
bool replicas_wanted(const struct serve_options *o);
int replicas_start(struct peers *peers, char *err, size_t cap);
bool replicas_run(const struct peers *peers); /* others are followed, or may be */
/* Of one that was found, at tcp://host:port. Returns: 0 or -KVR_E... */
int replicas_add_router(struct peers *peers, const char *endpoint);
int replicas_remove_router(struct peers *peers, const char *endpoint);
void replicas_each_router(struct peers *peers, void (*fn)(void *ctx, const char *endpoint, bool live), void *ctx);
void replicas_stop(struct peers *peers);
/* A session was bound here. */
void replicas_on_session(struct peers *peers, const char *id, size_t len, struct kvr_worker w);
void replicas_on_change(void *partition, const struct kvr_load_event *event);
void replicas_workers_changed(struct peers *peers);
void replicas_metrics(struct peers *peers, struct kvr_prom_page *out);

#endif
