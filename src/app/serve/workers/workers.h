/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The room of workers: which there are, how they stand, what is known of their caches. Those of other rooms hold it by pointer.
 *
 * Threads: the main loop adds workers and partitions and removes workers, so it goes through both lists without the lock; others take it.
 * worker.h says what of a worker is under the lock.
 */
#ifndef KVR_SERVE_WORKERS_H
#define KVR_SERVE_WORKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <kvroute/load.h>
#include <kvroute/router.h>

#include "app/serve/workers/table/counters.h"

struct kvr_prom_page;
struct partition;
struct process;
struct worker;
struct workers;

/* What this room tells those above it. */
struct workers_hooks {
    void *ctx;                                                     /* of all but `booked` */
    void (*changed)(void *ctx);                                    /* main loop: one was added */
    void (*tokens_doubted)(void *ctx, const char *model);          /* main loop: prompts tokenized here do not turn up in KV events */
    bool (*partition_asked)(void *ctx, const struct partition *p); /* main loop: a selection of it may still be booked, or waits */
    void (*may_route)(void *ctx);                                  /* any thread: a request that waits for a worker may find one */
    kvr_load_hook *booked; /* under a router's lock, any thread; its context is the partition; NULL: nobody listens */
};

struct workers *workers_create(struct process *p, const struct workers_hooks *hooks); /* NULL: out of memory */
void workers_destroy(struct workers *ws);                                             /* NULL is fine; nothing of it runs any more */

/* Health checks, and what engines tell of their load. Returns: 0, or -1 with the reason in err, "" when it was said. */
int workers_start(struct workers *ws, char *err, size_t cap);
void workers_tick(struct workers *ws);   /* main loop, every TICK_MS */
void workers_second(struct workers *ws); /* main loop, every second */
void workers_metrics(struct workers *ws, struct kvr_prom_page *out);
void workers_stop(struct workers *ws); /* but for views_stop; ends what others have asked of the process's client */

/* What each partition that is made from now on keeps for `booked`. */
void workers_set_listener(struct workers *ws, void *listener);

/* The lock of the table: that which functions named _locked want. */
void workers_lock(struct workers *ws);
void workers_unlock(struct workers *ws);
/* The first; the others by worker.next. */
struct worker *workers_first(const struct workers *ws);
size_t workers_count(const struct workers *ws);
struct partition *partitions_first(const struct workers *ws); /* the others by partition.next */
struct worker_counters *workers_counters(struct workers *ws);
/* enum kvr_router_mode, of requests that do not say; POST /router_mode may change it. Any thread. */
int workers_mode(const struct workers *ws);
void workers_set_mode(struct workers *ws, int mode);
bool workers_have_roles(const struct workers *ws);  /* a worker of role prefill or decode has been there. Any thread */
uint64_t workers_version(const struct workers *ws); /* rises with what a look at the table may find. Any thread */

#endif
