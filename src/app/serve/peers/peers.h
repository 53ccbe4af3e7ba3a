/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The room of other routers and of indexes elsewhere: what is told to them, what they tell (replicas.h), what they ask (index_server.h),
 * what is asked of them (remote.h, shards.h).
 */
#ifndef KVR_SERVE_PEERS_H
#define KVR_SERVE_PEERS_H

#include <stddef.h>
#include <kvroute/types.h>

struct kvr_prom_page;
struct peers;
struct process;
struct workers;

struct peers_hooks {
    void *ctx;
    /* Another router has bound a session to a worker. The sync thread. */
    void (*session_heard)(void *ctx, const char *id, size_t len, struct kvr_worker w);
};

struct peers *peers_create(struct process *p, struct workers *workers, const struct peers_hooks *hooks); /* NULL: out of memory */
/* What is told to others, and answered. Returns: 0, or -1 with the reason in err. */
int peers_start(struct peers *p, char *err, size_t cap);
void peers_tick(struct peers *p); /* main loop, every 0.1 s */
void peers_metrics(struct peers *p, struct kvr_prom_page *out);
void peers_stop(struct peers *p); /* but for replicas_stop */
void peers_destroy(struct peers *p);

#endif
