/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partitions (partitions.c) and the router contexts that threads have for them.
 *
 * Threads: the main loop adds partitions, under the table's lock; they are never taken away while threads run, so the main loop reads the
 * list without it, and whoever has a partition keeps it. On select one without workers may get another model and group (partitions.c):
 * other threads read these under the table's lock, or in a hook of the router, which is called for bookings, so for workers. A ctx_list is
 * its thread's own.
 */
#ifndef KVR_SERVE_PARTITION_H
#define KVR_SERVE_PARTITION_H

#include <kvroute/router.h>

#include "app/serve/common/limits.h"
#include "base/buf.h"
#include "wire/handoff_protocol.h"

struct policy_profile;
struct workers;
struct worker;

#define PREFILL_GROUP "prefill" /* of a partition of prefill workers: its name on serve, what ends it on select */

/* A partition: workers whose caches and loads are comparable. Made at first use, kept as long as the process lives, though perhaps not for
 * the same workers. */
struct partition {
    struct partition *next;
    char model[MODEL_MAX], group[MODEL_MAX + sizeof PREFILL_GROUP]; /* model "": any */
    uint32_t block_size;
    bool prefills;               /* of workers that compute prompts for others */
    struct kvr_index *index;     /* NULL when the overlap credit is 0 */
    struct kvr_index *predicted; /* --router-predicted-ttl-secs */
    struct kvr_router *router;
    struct workers *workers;
    void *listener;          /* workers_set_listener */
    uint64_t number;         /* of this partition, for other routers */
    struct kvr_buf sync_buf; /* replicas.c; under the router's lock */
};

/* Router contexts of one thread, one per partition. */
struct ctx_list {
    struct {
        struct partition *partition;
        struct kvr_router_ctx *ctx;
    } * items;
    size_t n;
};

/* The partition, made if need be; NULL with the reason in err. */
struct partition *partition_get_locked(struct workers *ws, const struct worker *w, char *err, size_t cap);
/* The partition of a model and a group ("": any on serve, "default" on select), or NULL. */
struct partition *partition_find_locked(struct workers *ws, const char *model, const char *group);
/* What a worker does of a request: all of it, the prompt, what follows. */
enum worker_part { PART_WHOLE, PART_PREFILL, PART_DECODE };

/* Who may do one part of a request of a model and a group (names as above). */
struct part_scope {
    const char *model, *group;
    enum worker_part part;
    bool any_protocol; /* of handing prompts over, else: */
    enum kvr_kv_protocol protocol;
};
/* The partition of those who may: the one that the first of them is in, NULL without any. Into ids[workers_n]: those there, *n of them;
 * *up: one of them may be chosen now. */
struct partition *partition_of_part_locked(struct workers *ws, const struct part_scope *scope, uint64_t *ids, size_t *n, bool *up);
/* Its workers of that model and group into ids[workers_n]; *all: that is all it has. */
size_t partition_scope_locked(struct workers *ws, const struct partition *partition, const char *model, const char *group, uint64_t *ids,
                              bool *all);
void partitions_destroy(struct workers *ws);
/* Queues get their classes from these from now on, which stay the caller's. Main loop. Returns: 0, or -1 without memory: all is as before,
 * or nearly. */
int partitions_set_policies(struct workers *ws, const struct policy_profile *profiles, size_t n);
const struct policy_profile *partitions_policies(const struct workers *ws, size_t *n); /* main loop */
void partitions_tick(struct workers *ws);                                              /* main loop: expiry, decay */
/* The thread's context for a partition, made at first use; NULL when memory is short. */
struct kvr_router_ctx *ctx_get(struct ctx_list *list, struct partition *partition);
void ctx_list_free(struct ctx_list *list);

#endif
