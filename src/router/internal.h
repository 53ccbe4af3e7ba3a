/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the router share.
 *
 *   router.c    life, configuration, workers, the book's own calls, questions
 *   prompt.c    prepare: tokens -> hashes -> overlaps; the caller's thread, no lock
 *   schedule.c  who is eligible, what each would cost, which one, booking; under the lock
 *   turnover.c  how full caches are, from what they evict; takes the lock itself
 *   waiting.c   the queue: park, look again, hand out; under the lock
 *   pair.c      two routers, one request; has no state
 *
 * Threads. One lock guards everything in struct kvr_router but `config` (constant, except mode and thresholds, which it
 * guards), the clock and the atomics. The index has its own rules and is only called while matching (lock-free) and
 * recording. Hooks and `done` callbacks run under the lock and must not call back.
 */
#ifndef KVR_ROUTER_INTERNAL_H
#define KVR_ROUTER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <kvroute/router.h>

#include "base/base.h"
#include "base/lock.h"
#include "load/columns.h"
#include "select/columns.h"

enum { TAINT_WORDS = KVR_TAINTS_MAX / 64, TAINT_NAME_MAX = 128 };

struct taints {
    uint64_t bits[TAINT_WORDS];
};

/* What is known of a worker's times to first token. */
struct worker_model {
    struct kvr_ttft_factor factor;
    uint64_t seen; /* router.decisions at the last observation */
};

struct worker_info { /* walked by every decision: small */
    uint64_t id;
    bool used, blocked, over;                         /* over: this decision found every rank above a busy threshold */
    uint64_t max_num_batched_tokens, total_kv_blocks; /* 0: not known */
    uint64_t mark;                                    /* == router.mark: in the allow-list at hand */
    struct taints taints;
};

/* What one pass takes, for thresholds that are shares of it; so much when it is not known that none is reached. */
static inline double kvr__batch_tokens(const struct worker_info *w)
{
    return w->max_num_batched_tokens ? (double)w->max_num_batched_tokens : 1e7;
}

struct rank_info { /* parallel to the slots of the load table */
    struct kvr_worker worker;
    bool known, untrusted, decode_latched;
    bool stores_nothing;      /* though it has computed some: what is being computed there will not be cached */
    struct kvr_turnover seen; /* of the index, at the last look */
    double stored, removed;   /* of late */
    uint32_t sent;            /* requests of a block or more to compute, since stores were seen last */
    bool fresh;               /* its slot changed hands when slots were looked at last */
};

/* Of a rank: who is not above one of these is not overloaded, unless it is latched. */
struct busy_lines {
    uint64_t prefill_tokens, blocks;
    uint64_t engine_blocks; /* in use, as the engine says */
};

struct kvr_router {
    struct kvr_mem mem;
    struct kvr_clock clock;
    struct kvr_router_config config;
    struct kvr_lock lock;
    struct kvr_load *load;
    struct rank_info *infos;
    size_t infos_cap;
    /* by slot: what every decision reads of a rank */
    uint32_t *owners; /* place in `workers` */
    uint64_t *turns;
    double *pressures; /* of `stored` and `removed` */
    struct busy_lines *lines;
    size_t owners_cap, turns_cap, pressures_cap, lines_cap;
    size_t slots_n;         /* that have all these */
    uint64_t ranks_changed; /* number of the last change of ranks */
    bool any_silent;        /* some rank stores nothing, or did */
    bool any_blocked;       /* some worker is, or was */
    bool any_latched, lines_are_old;
    uint32_t *order; /* slots in use, by (worker, rank): choices do not depend on who came first */
    size_t order_n, order_cap;
    struct worker_info *workers;
    struct worker_model *models; /* parallel to workers */
    size_t workers_n, workers_cap, models_cap, workers_used;
    char (*taint_names)[TAINT_NAME_MAX];
    size_t taints_n, taints_cap;
    struct kvr_ttft_model fleet; /* of all workers; each has its factor */
    struct kvr_generation_model generation;
    uint64_t rng, turn, mark, decisions;
    size_t looked_at; /* place in `order` from where turnovers are looked at next */
    struct kvr_queue *queue;
    bool may_park; /* some class has a threshold */
    _Atomic size_t pending;
    _Atomic bool lower_tiers;
    struct kvr_router_ctx *dispatch_ctx;
    bool stopping;
};

/* What a decision knows of each rank, field by field: a decision is a few walks over a few arrays, and whole candidates are written for
 * those that somebody looks at. */
struct rank_columns {
    struct kvr_worker *workers;
    uint64_t *prefill_tokens, *blocks; /* of the book; when costs are made, what the request would meet and leave there */
    uint64_t *turns;
    double *pressures, *factors, *copies, *shared, *leans, *worth, *costs;
    uint32_t *requests, *prefills;
    uint32_t *depths; /* leading blocks in use; when costs are made, what is pending */
    uint32_t *device, *host, *disk, *external;
    bool has_tiers, has_leans; /* without, those past the device and `leans` are not written, and count as 0 */
};

struct kvr_router_ctx {
    struct kvr_router *router;
    struct kvr_mem mem;
    struct kvr_index_reader *reader, *predicted_reader;
    uint64_t *locals, *seqs;
    size_t locals_cap, seqs_cap;
    struct kvr_overlap *overlaps, *predicted;
    size_t overlaps_cap, predicted_cap;
    struct kvr_reach *reaches;
    size_t reaches_cap;
    struct rank_columns by_slot;
    struct kvr__columns of; /* by_slot, as the costs take it */
    uint32_t *slots;        /* by candidate, as those below, which are filled for who asks */
    struct kvr_candidate *candidates;
    struct kvr_cost *costs;
    size_t ranks_cap, candidates_n;
    bool filled;
    uint64_t ranks_changed; /* when `workers` of by_slot was written */
    /* of this decision: candidates are read when the lock is given back */
    struct kvr_cost_config cost;
    struct kvr__crowd crowd;
    uint64_t isl;
    uint32_t longest; /* most blocks that a trusted rank holds on any tier */
    struct kvr_delay_model model;
};

/* What is known about a prompt before the lock is taken. */
struct prompt {
    const uint64_t *locals, *seqs;
    const uint64_t *prefixes; /* sequence hashes, where lower tiers were asked for */
    size_t locals_n, seqs_n;
    uint64_t isl, private_blocks;
    const struct kvr_overlap *overlaps, *predicted;
    size_t overlaps_n, predicted_n;
    const struct kvr_reach *reaches; /* instead of overlaps when lower tiers have been seen */
    size_t reaches_n;
    struct kvr_cost_config cost; /* the router's, with the request's override */
    double expected_output;      /* tokens; negative: not known */
    struct kvr_router_times times;
    uint64_t start_ns, ready_ns;             /* the latter: it is hashed and matched, and what is left is the lock's */
    const struct kvr_class_config *calm_for; /* only ranks that are not busy for this class, where there are some; NULL: all */
};

/* prompt.c */
int kvr__prepare(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct prompt *p);
int kvr__hash_and_chain(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct prompt *p);
int kvr__match(struct kvr_router_ctx *c, struct prompt *p);
/* The chain that the load book knows: none when blocks are private. */
size_t kvr__booked_seqs(const struct prompt *p, const struct kvr_router_config *cfg);

/* schedule.c; under the lock */
int kvr__reserve_ranks(struct kvr_router_ctx *c, size_t n);
void kvr__free_ranks(struct kvr_router_ctx *c);
void kvr__spread(struct kvr_router *r, struct kvr_router_ctx *c, const struct prompt *p, uint64_t now);
/* After kvr__spread: with the request there. */
void kvr__expect(const struct kvr_router *r, struct kvr_router_ctx *c, const struct prompt *p, size_t from, size_t to);
/* After kvr__expect, or of the last decision. */
void kvr__candidate(const struct kvr_router_ctx *c, size_t slot, struct kvr_candidate *out);
/* Of the last decision, with what it costs. */
void kvr__whole(const struct kvr_router_ctx *c, size_t at, struct kvr_candidate *out, struct kvr_cost *cost);
/* Slots that may serve the request into c->slots; overload is ignored here. */
int kvr__eligible(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, size_t *n,
                  struct kvr_router_result *res);
int kvr__schedule(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, const struct prompt *p,
                  struct kvr_router_result *res);
int kvr__book(struct kvr_router *r, const struct kvr_router_request *rq, const struct prompt *p, struct kvr_worker worker,
              uint64_t prefill_tokens, uint64_t now);
/* The worker's factor; 1 when nothing was heard of it for long. */
double kvr__factor(const struct kvr_router *r, uint32_t worker);
bool kvr__model_is_old(const struct kvr_router *r, uint32_t worker);
void kvr__record(struct kvr_router *r, const struct prompt *p, struct kvr_worker worker);
uint64_t kvr__uncached(const struct kvr_cost_config *cost, uint64_t isl, uint64_t cached);
/* Prompt tokens that a rank will have when the request has its turn. */
uint64_t kvr__expected(const struct kvr_router *r, uint64_t pending_blocks, uint64_t cached_tokens);
long kvr__taint(const struct kvr_router *r, const char *name);

/* Under the lock. Returns: 0: somebody who is not overloaded is eligible; -KVR_EOVERLOADED, or another error of kvr__eligible. */
int kvr__look_for_calm(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, uint64_t now);

/* turnover.c */
void kvr__look_at_turnover(struct kvr_router *r);

/* waiting.c; under the lock */
bool kvr__policy_waits(const struct kvr_policy *p);
/* Leaves those of the first n of c->slots that are not busy for the class. Returns: how many; 0: all are, and nothing has changed. */
size_t kvr__drop_busy(const struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_class_config *cls, size_t n, uint64_t now);
void kvr__dispatch(struct kvr_router *r);

#endif
