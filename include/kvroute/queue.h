/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of requests that wait because every rank that may serve them is busy with prompts.
 *
 * A policy has classes. Each class has its own order, its own idea of busy and its own limits; between classes the queue
 * is fair by deficit round robin over uncached tokens. Semantics after NVIDIA Dynamo's policy-class queue.
 *
 *     request -> class (by name and by how much of it is not cached)
 *                  |
 *                  +-- shared lane        a flow for each tenant, ordered by (strict priority, score, arrival)
 *                  +-- lane of pin 7/0    the same: requests of a pin, or of a scope, wait for theirs only and block nobody else
 *
 * Tenants. Inside a class those whose requests wait share by their weights: each has a clock, which goes on by (uncached tokens + 8 x the
 * tokens of output that are expected) / weight with each request of its that is handed out, and the one that is least far goes next
 * (start-time fair queueing). Who begins to wait begins where the class is, so having been silent saves nothing up; who has had much comes
 * back where it was, so that one large request at a time is no way around it. The class is set to the beginning when nobody waits in it any
 * more. Priorities, scores and ageing order the requests of one tenant, never those of two: a tenant cannot raise itself above another.
 * Requests that name no tenant are one. Of a lane the next 4 tenants are looked at, so that one whose request cannot go yet does not hold
 * the others up.A token of output counts more than one of a prompt, because engines compute prompts many tokens at a time: else
 * short prompts with long answers would be nearly free. (Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, count it
 * twice; with 2 a flood of such requests still starves who sends long prompts, in the simulated engine's times.)
 *
 * Score, computed once at arrival; j = priority jump (at least 0), t = seconds since the queue was made:
 *
 *     fcfs  j - t        a jump of n buys n seconds of seniority
 *     lcfs  j + t
 *     wspt  (1 + j) / max(1, uncached tokens)     weighted shortest processing time: starves long prompts, so
 *           `ageing_ns` bounds that: what has waited that long goes before all that have not, oldest first
 *
 * Limits are per worker: usage before a request is added against limit * workers, so the one that crosses is accepted and
 * the next is not. A shrinking fleet drops nobody.
 *
 * This is data only: who is busy, when to look again and what happens to a request is the caller's (kvroute/router.h).
 *
 * Threads: none; the caller serialises. Memory: one pointer per waiting request, some 150 bytes per waiting tenant, plus the items, which
 * are the caller's.
 */
#ifndef KVROUTE_QUEUE_H
#define KVROUTE_QUEUE_H

#include <kvroute/alloc.h>
#include <kvroute/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tenants of a class beyond this many at once count as the one without a name. */
enum { KVR_TENANTS_MAX = 4096 };
enum { KVR_CLASSES_MAX = 64, KVR_BUCKETS_MAX = 16, KVR_CLASS_NAME_MAX = 64 };

enum kvr_queue_policy { KVR_QUEUE_FCFS, KVR_QUEUE_LCFS, KVR_QUEUE_WSPT };

struct kvr_class_config {
    char name[KVR_CLASS_NAME_MAX];                               /* [A-Za-z0-9_.-]+ */
    char family[KVR_CLASS_NAME_MAX], bucket[KVR_CLASS_NAME_MAX]; /* both or neither */
    enum kvr_queue_policy policy;
    double quantum;             /* tokens added per round, > 0 */
    double busy_tokens;         /* a rank with more prefill tokens is busy; negative: not set */
    double busy_frac;           /* the same as a share of max_num_batched_tokens; negative: not set */
    double busy_worker_ratio;   /* (0, 1]: the pool is busy when that share of the eligible ranks is; default 1 */
    double requests_per_worker; /* limits on what waits; negative: none */
    double raw_isl_per_worker, cached_tokens_per_worker;
    uint64_t ageing_ns;   /* 0: off */
    double busy_requests; /* a rank with at least so many requests is busy, whatever they do; 0 or less: not set */
};

struct kvr_policy {
    char default_family[KVR_CLASS_NAME_MAX];
    struct {
        uint64_t min_tokens;
        char name[KVR_CLASS_NAME_MAX];
    } buckets[KVR_BUCKETS_MAX];
    size_t buckets_n;
    struct kvr_class_config classes[KVR_CLASSES_MAX];
    size_t classes_n;
};

/* A class with every field unset. */
KVR_API void kvr_class_config_init(struct kvr_class_config *config);
/* One class "default": fcfs, quantum 1, never busy. */
KVR_API void kvr_policy_init(struct kvr_policy *policy);
/* Checks ranges, names, buckets and that every family has one class for every bucket. Returns: 0, or -KVR_EINVAL and a
 * text in err. */
KVR_API int kvr_policy_check(const struct kvr_policy *policy, char *err, size_t err_cap);

/* One waiting request. The caller's memory; fields below the line are the queue's. */
struct kvr_queue_item {
    struct kvr_worker pin;
    bool pinned;
    uint64_t scope; /* says who may serve it: requests of unlike scopes do not wait for each other's ranks. 0: anybody */
    uint32_t strict_priority;
    double priority_jump;
    uint64_t isl, cached; /* tokens */
    uint64_t arrived_ns;
    uint64_t tenant;      /* 0: none */
    double tenant_weight; /* its share; 0: 1. The last one that was pushed counts */
    uint64_t output;      /* tokens that are expected to be generated; an engine is busy with them, too */
    /* ---- */
    double score;
    uint64_t sequence;
    uint32_t class_at;
    struct kvr_flow *flow;
    size_t heap_at;
    struct kvr_queue_item *older, *newer;
};

struct kvr_queue;

/* `policy` is checked and copied. Returns: 0, -KVR_EINVAL, -KVR_ENOMEM. */
KVR_API int kvr_queue_create(const struct kvr_alloc *alloc, const struct kvr_policy *policy, uint64_t now_ns, struct kvr_queue **out);
/* Items still in it are left alone. NULL is fine. */
KVR_API void kvr_queue_destroy(struct kvr_queue *queue);

/* Which of the classes of `next` an item of before gets. */
typedef size_t kvr_queue_class_fn(void *ctx, const struct kvr_queue *next, const struct kvr_queue_item *item);
/* Other classes, while items wait: each goes on waiting in the class that `class_of` says, in the order of its arrival, whatever that class
 * has for limits. What was counted of a class goes on under its name; what tenants have had, and what classes have saved up, is forgotten.
 * Names of classes that were asked for are gone. Returns: 0; -KVR_EINVAL, -KVR_ENOMEM: nothing has changed. */
KVR_API int kvr_queue_set_policy(struct kvr_queue *queue, const struct kvr_policy *policy, kvr_queue_class_fn *class_of, void *ctx);

/* Class of a request: an explicit class by its name, a family by its name, else the default family; within a family by
 * the bucket of the uncached tokens. */
KVR_API size_t kvr_queue_class(const struct kvr_queue *queue, const char *name, size_t name_len, uint64_t uncached_tokens);
KVR_API const struct kvr_class_config *kvr_queue_class_config(const struct kvr_queue *queue, size_t class_at);

enum kvr_queue_limit { KVR_LIMIT_NONE, KVR_LIMIT_REQUESTS, KVR_LIMIT_RAW_ISL_TOKENS, KVR_LIMIT_CACHED_TOKENS };

struct kvr_rejection {
    char policy_class[KVR_CLASS_NAME_MAX];
    enum kvr_queue_limit kind;
    uint64_t current, limit;
};

/* Name as the wire has it: "requests", "raw_isl_tokens", "cached_tokens". */
KVR_API const char *kvr_queue_limit_name(enum kvr_queue_limit kind);

/* Adds an item. Returns: 0; -KVR_EQUEUEFULL with *rejection filled; -KVR_ENOMEM. */
KVR_API int kvr_queue_push(struct kvr_queue *queue, size_t class_at, size_t workers, struct kvr_queue_item *item,
                           struct kvr_rejection *rejection);
/* Adds an item whatever the limits, for who looks at once whether its turn has come: it is taken out again, or pushed if it has to wait.
 * Until then it does not count as queued. Returns: 0; -KVR_ENOMEM. */
KVR_API int kvr_queue_try(struct kvr_queue *queue, size_t class_at, struct kvr_queue_item *item);
/* Would an item of that class be refused for a limit? */
KVR_API bool kvr_queue_is_full(const struct kvr_queue *queue, size_t class_at, size_t workers);
/* Takes an item out before its turn. */
KVR_API void kvr_queue_remove(struct kvr_queue *queue, struct kvr_queue_item *item);

/* Takes the next item whose turn it is among those at the head of a lane for which `ready` says yes; NULL: none. */
KVR_API struct kvr_queue_item *kvr_queue_pop(struct kvr_queue *queue, uint64_t now_ns,
                                             bool (*ready)(void *ctx, const struct kvr_queue_item *item), void *ctx);
/* Takes any item (shutdown); NULL when empty. */
KVR_API struct kvr_queue_item *kvr_queue_take_any(struct kvr_queue *queue);

struct kvr_class_stats {
    uint64_t requests, isl_tokens, cached_tokens; /* waiting now */
    uint64_t rejected[4];                         /* by enum kvr_queue_limit */
    uint64_t queued_total;
    uint64_t tenants;              /* that wait now */
    uint64_t tenants_merged_total; /* requests of tenants beyond KVR_TENANTS_MAX */
};
KVR_API size_t kvr_queue_classes(const struct kvr_queue *queue);
KVR_API void kvr_queue_stats(const struct kvr_queue *queue, size_t class_at, struct kvr_class_stats *out);
KVR_API size_t kvr_queue_len(const struct kvr_queue *queue);
KVR_API size_t kvr_queue_bytes(const struct kvr_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
