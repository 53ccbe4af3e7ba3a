/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The router: tokens in, best (worker, rank) out, and the book of what runs where.
 *
 *     tokens --hash--> local hashes --match--> overlap per rank --+
 *                         |                                      +--> cost --> choice --> booking
 *                         +--> sequence hashes --project--> load -+
 *
 * A call costs microseconds: hashing and matching run in the caller's thread without locks, then one short
 * critical section projects, chooses and books, so that two requests never choose on the same stale state.
 *
 * Life of a request: find_best_match with `book` (or submit), mark_prefill_completed at the first token,
 * add_output_blocks as generation fills blocks, free at the end, whatever the end was. Freeing twice is harmless.
 *
 * Waiting. kvr_router_submit parks a request while every rank that may serve it is busy with prompts, by the policy
 * (kvroute/queue.h), and calls back once when its turn has come. Parked requests are looked at again whenever load goes
 * down, workers change, or kvr_router_poll is called. find_best_match never waits.
 *
 * Overload is another thing: a worker all of whose ranks are above a busy threshold is not chosen at all.
 *
 * Trust. A rank whose view is not trusted (kvr_router_set_trusted) competes on load alone: its overlap counts
 * as nothing. Ranks are trusted when they are registered.
 *
 * Several routers in front of one fleet tell each other what they book: the `hook` sees every change of the local book in
 * order, kvr_router_apply_remote puts another router's change into this book. See also kvr_router_snapshot.
 *
 * Threads: every function may be called from any thread, except that one struct kvr_router_ctx is used by one
 * thread at a time. The router does not own the index. Callbacks run under the router's lock, must be short and
 * must not call the router.
 */
#ifndef KVROUTE_ROUTER_H
#define KVROUTE_ROUTER_H

#include <kvroute/alloc.h>
#include <kvroute/clock.h>
#include <kvroute/hash.h>
#include <kvroute/index.h>
#include <kvroute/load.h>
#include <kvroute/queue.h>
#include <kvroute/select.h>
#include <kvroute/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_router;
struct kvr_router_ctx;

enum { KVR_TAINTS_MAX = 256 };

enum kvr_router_mode {
    KVR_MODE_KV,
    KVR_MODE_ROUND_ROBIN,
    KVR_MODE_RANDOM,
    KVR_MODE_LEAST_LOADED, /* fewest active requests */
    KVR_MODE_DIRECT        /* only pinned requests */
};

/* Custom choice: returns an index below n, or n or more to refuse (-KVR_ENOENDPOINTS). Called under the
 * router's lock; must not call back. Candidates are ordered by (worker_id, dp_rank). */
typedef size_t kvr_select_fn(void *ctx, const struct kvr_candidate *candidates, const struct kvr_cost *costs, size_t n);

/* Expected duration of a prefill of `uncached` tokens behind `cached` ones on a worker. Returns: nanoseconds, or
 * negative when there is no estimate. Called under the router's lock. */
typedef int64_t kvr_prefill_fn(void *ctx, struct kvr_worker worker, uint64_t uncached, uint64_t cached);

enum kvr_load_event_kind { KVR_LOAD_ADD, KVR_LOAD_PREFILL_DONE, KVR_LOAD_OUTPUT, KVR_LOAD_FREE };

/* One change of the book. `request` is whole for ADD; for others only its id counts. */
struct kvr_load_event {
    enum kvr_load_event_kind kind;
    struct kvr_load_request request;
    uint64_t output_blocks; /* OUTPUT: how many more; ADD in a snapshot: how many there are */
    uint64_t output_total;  /* OUTPUT: with these */
    double fraction;        /* OUTPUT */
};
typedef void kvr_load_hook(void *ctx, const struct kvr_load_event *event);

/* A rank is over when one of these is passed (strictly); negative: off. Decode is latched: it clears when both the
 * book's and the engine's own block count are below the line. */
struct kvr_busy_thresholds {
    double decode_blocks_frac;  /* of total_kv_blocks */
    double prefill_tokens;      /* absolute */
    double prefill_tokens_frac; /* of max_num_batched_tokens */
};

struct kvr_router_config {
    const struct kvr_alloc *alloc;
    const struct kvr_clock *clock;
    struct kvr_index *index;     /* NULL: no index; needs cost.overlap_credit 0, a mode other than kv, or remote_index */
    bool remote_index;           /* overlaps come with each request (`scores`), from an index elsewhere; needs index NULL */
    bool serve_index;            /* others are answered from `index`; needs one, cost.overlap_credit > 0 and no remote_index */
    struct kvr_index *predicted; /* NULL, or a second index fed by decisions; overlap is the larger of the two */
    uint32_t block_size;         /* tokens, > 0 */
    struct kvr_cost_config cost;
    enum kvr_router_mode mode;
    bool track_active_blocks; /* false: no sequence hashes, the decode term is 0 */
    bool assume_kv_reuse;     /* false: a request shares its blocks with nobody in the book */
    bool record_decisions;    /* approximate mode: a booked decision is recorded in the index */
    bool learn_from_reports;  /* bookings' reports say when it was; false: kvr_router_observe_ and so on do, if anybody */
    bool fit_ttft;            /* prefill durations from the fitted models, when there is no `prefill` */
    uint64_t seed;            /* of the generator for ties and temperature */
    kvr_select_fn *select;    /* NULL: cost and temperature */
    void *select_ctx;
    kvr_prefill_fn *prefill; /* NULL: durations are not known, prefill tokens count until the first token */
    void *prefill_ctx;
    kvr_load_hook *hook; /* NULL, or sees every change of the local book */
    void *hook_ctx;
    const struct kvr_policy *policy; /* NULL: one class that never waits; copied */
    struct kvr_busy_thresholds busy; /* defaults: off */
};

/* Defaults: kv mode, block size 16, everything tracked, KV reuse assumed, no waiting. */
KVR_API void kvr_router_config_init(struct kvr_router_config *config);

/* Returns: 0; -KVR_EINVAL with *field (may be NULL) naming what is wrong; -KVR_ENOMEM. */
KVR_API int kvr_router_create(const struct kvr_router_config *config, struct kvr_router **out, const char **field);
/* Contexts must be destroyed before. Parked requests get -KVR_ESHUTDOWN. NULL is fine. */
KVR_API void kvr_router_destroy(struct kvr_router *router);

/* Scratch memory and an index reader for one thread. Grows with the longest prompt seen. */
KVR_API int kvr_router_ctx_create(struct kvr_router *router, struct kvr_router_ctx **out);
KVR_API void kvr_router_ctx_destroy(struct kvr_router_ctx *ctx);

KVR_API uint32_t kvr_router_block_size(const struct kvr_router *router);
KVR_API void kvr_router_set_mode(struct kvr_router *router, enum kvr_router_mode mode);
KVR_API enum kvr_router_mode kvr_router_mode(const struct kvr_router *router);
/* Negative fields leave what is set; nothing can be switched off this way. */
KVR_API void kvr_router_set_busy(struct kvr_router *router, const struct kvr_busy_thresholds *busy);
KVR_API void kvr_router_busy(struct kvr_router *router, struct kvr_busy_thresholds *out);

/* Other classes, while requests wait: each goes on waiting in the class that it would get now, and may find that its turn has come. Counts
 * go on as kvr_queue_set_policy has it. Names that kvr_router_class_stats gave are gone, so who reads figures of classes is who changes
 * them, or waits for it. Choices wait for as long as it takes to sort those that wait. Returns: 0; -KVR_EINVAL, -KVR_ENOMEM: nothing has
 * changed. */
KVR_API int kvr_router_set_policy(struct kvr_router *router, const struct kvr_policy *policy);
/* For other workers, when those it had are removed: what was learnt of them is forgotten, and the classes and thresholds are these. Errors
 * as kvr_router_set_policy. */
KVR_API int kvr_router_start_over(struct kvr_router *router, const struct kvr_policy *policy, const struct kvr_busy_thresholds *busy);

/* Registers a worker or changes its rank range. Errors as kvr_load_set_worker. The index is left alone. */
KVR_API int kvr_router_set_worker(struct kvr_router *router, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size);
/* Forgets a worker, its load and its blocks in the index, whose memory is given back by kvr_router_poll. */
KVR_API void kvr_router_remove_worker(struct kvr_router *router, uint64_t worker_id);
/* Unknown workers are ignored by these. */
KVR_API void kvr_router_set_schedulable(struct kvr_router *router, uint64_t worker_id, bool schedulable);
KVR_API void kvr_router_set_trusted(struct kvr_router *router, struct kvr_worker worker, bool trusted);
/* Per rank; 0: not known (a rank is then never prefill-busy by a share below 10,000,000 tokens, nor decode-busy). */
KVR_API void kvr_router_set_limits(struct kvr_router *router, uint64_t worker_id, uint64_t max_num_batched_tokens,
                                   uint64_t total_kv_blocks);
/* Blocks in use as the engine itself says. */
KVR_API void kvr_router_set_kv_used(struct kvr_router *router, struct kvr_worker worker, uint64_t blocks);
/* Taints are names of at most 127 bytes; the workers of a router have KVR_TAINTS_MAX different ones. Returns: 0; -KVR_ELIMIT, -KVR_ENOMEM:
 * nothing has changed. */
KVR_API int kvr_router_set_taints(struct kvr_router *router, uint64_t worker_id, const char *const *taints, size_t n);
/* The first taint of a worker that begins with `prefix`, into out[cap]. Returns: false when it has none, or cap is too small. */
KVR_API bool kvr_router_find_taint(struct kvr_router *router, uint64_t worker_id, const char *prefix, char *out, size_t cap);
/* Lower-tier events have been applied to the index: match all tiers from now on. */
KVR_API void kvr_router_use_lower_tiers(struct kvr_router *router);

struct kvr_preferred_taint {
    const char *name;
    double weight;
};

/* Blocks [start, end) of the prompt that a shared pool holds. */
struct kvr_shared_range {
    uint32_t start, end;
};

struct kvr_router_request {
    const char *id; /* required to book */
    size_t id_len;
    bool book;
    bool guarded;   /* the caller frees for certain: the booking never expires */
    bool overloads; /* overloaded workers may be chosen, too */

    /* The prompt: tokens, or hashes that were made before (then isl says how many tokens; 0: the last block is their end). With neither,
     * or seqs alone (for a booking), only isl counts and overlap is 0. */
    const uint32_t *tokens;
    size_t tokens_n;
    const uint64_t *locals, *seqs; /* seqs may be NULL */
    size_t locals_n, seqs_n;
    uint64_t isl;             /* 0 with tokens: tokens_n; with locals: locals_n * block size */
    uint64_t expected_output; /* tokens it will generate; 0: not known */
    const char *lora;
    size_t lora_len;
    const char *salt;
    size_t salt_len;
    bool eagle;
    const struct kvr_mm_block *mm; /* with tokens: the multimodal objects that block i touches; blocks past mm_n are plain */
    size_t mm_n;                   /* ignored with locals or seqs: those hashes must already include the objects */
    const struct kvr_shared_range *shared;
    size_t shared_n;
    const struct kvr_reach *scores; /* with remote_index: what the index elsewhere said; NULL: nothing is known to be cached */
    size_t scores_n;

    /* Who may serve it. */
    const uint64_t *allowed; /* worker ids; NULL: all */
    size_t allowed_n;
    const uint64_t *excluded;
    size_t excluded_n;
    const char *const *required_taints;
    size_t required_n;
    const struct kvr_preferred_taint *preferred_taints;
    size_t preferred_n;
    bool pinned; /* only `pin`; its rank is free when pin_any_rank */
    bool pin_any_rank;
    bool preferred; /* `pin` is taken if eligible, else scoring */
    struct kvr_worker pin;

    /* Waiting (kvr_router_submit). */
    bool do_not_queue; /* -KVR_EBUSY instead */
    /* Whose it is (kvroute/queue.h); 0: nobody's. A tenant's request that has waited is sent to no rank that is busy for its class, where
     * others are not: it would wait there for those that another tenant has sent. */
    uint64_t tenant;
    double tenant_weight;   /* its share; 0: 1 */
    uint64_t tenant_output; /* tokens that are expected to be generated: they count against its share */
    double priority_jump;
    uint32_t strict_priority;
    const char *policy_class;
    size_t policy_class_len;

    const struct kvr_override *override; /* NULL: the router's settings */
    const enum kvr_router_mode *mode;    /* the same; KVR_MODE_DIRECT is the router's alone */
};

struct kvr_router_times { /* nanoseconds */
    uint64_t block_hashing, find_matches, seq_hashing, scheduling, total;
};

struct kvr_router_result {
    struct kvr_worker worker;
    uint32_t overlap_blocks; /* round(effective overlap) */
    double effective_blocks;
    double best_blocks; /* best effective overlap among eligible candidates; the difference is the regret */
    double cost;
    uint64_t cached_tokens;
    uint32_t pending_blocks;  /* leading blocks that requests booked on the chosen rank use or compute; 0: or the rank stores nothing */
    uint64_t prefill_tokens;  /* what was or would be booked: prompt tokens neither cached nor (delay cost) pending; 0 when not tracked */
    uint64_t required_blocks; /* ceil(isl / block size) */
    uint64_t ahead_tokens;    /* prefill tokens on the chosen rank before this request */
    uint32_t held_blocks;     /* leading blocks that the chosen rank holds on any tier, as far as its view is trusted */
    uint64_t held_tokens;     /* the same in tokens: what the rank need not compute */
    uint32_t most_blocks;     /* the most that a candidate holds so */
    uint32_t longest_blocks;  /* the most that any rank holds so, candidate or not */
    double copy_blocks;       /* of those that the chosen rank lacks: how many have fewer holders than their use asks for (delay cost) */
    uint32_t tier_blocks[KVR_TIER_COUNT]; /* of these: on the device, and then to be read from each lower tier; as far as trusted */
    uint32_t view_blocks;                 /* device blocks of the prompt that the chosen rank's view has, trusted or not */
    uint32_t ahead_decoding;              /* requests there that had their first token */
    uint64_t active_blocks;               /* KV blocks in use there, with this request's */
    uint64_t waited_ns;                   /* in the queue */
    size_t candidates, place;             /* place: of the chosen one among them */
    bool pinned, preferred, trusted;
    bool scored; /* chosen by cost (kv mode, not pinned or preferred) */
    struct kvr_router_times times;
};

/* Chooses, and books with `book`.
 * Returns: 0;
 *   -KVR_ENOID          book without an id
 *   -KVR_EEXISTS        the id is booked already; nothing changes
 *   -KVR_EINVAL         an override is out of range, or the id has more than 256 bytes
 *   -KVR_ENOENDPOINTS   nobody is eligible, or a pinned worker is not schedulable or lacks a required taint
 *   -KVR_EOVERLOADED    somebody would be eligible, but all of those are overloaded
 *   -KVR_ENOTALLOWED    the pinned worker is not among `allowed`
 *   -KVR_ENOTFOUND      the pinned worker is not registered
 *   -KVR_ERANK          the pinned rank is out of range, or the rank is missing on a worker with several
 *   -KVR_ELENGTH        locals and seqs differ in length
 *   -KVR_ELIMIT, -KVR_ENOMEM */
KVR_API int kvr_router_find_best_match(struct kvr_router *router, struct kvr_router_ctx *ctx, const struct kvr_router_request *request,
                                       struct kvr_router_result *out);

/* Whether choosing would find somebody who is not overloaded, or another error than that nobody is there. Nothing is chosen, and no turn is
 * taken. */
KVR_API bool kvr_router_any_calm(struct kvr_router *router, struct kvr_router_ctx *ctx, const struct kvr_router_request *request);

/* Whether a request would be refused now for overload, told without its prompt, of which only `isl` counts: as if nothing of it were
 * cached. Nothing is chosen. Returns: 0; -KVR_EOVERLOADED; -KVR_EQUEUEFULL: it would have to wait, and its class has no room for it; or
 * another error of kvr_router_submit that is no overload. */
KVR_API int kvr_router_overload(struct kvr_router *router, const struct kvr_router_request *request);

/* The candidates of the last decision made with this context, ordered by (worker_id, dp_rank). Borrowed until the next call
 * with it. Returns: how many. */
KVR_API size_t kvr_router_candidates(const struct kvr_router_ctx *ctx, const struct kvr_candidate **candidates,
                                     const struct kvr_cost **costs);
/* One of them, `at` below the result's `candidates`, copied; for who needs no list. */
KVR_API void kvr_router_candidate(const struct kvr_router_ctx *ctx, size_t at, struct kvr_candidate *candidate, struct kvr_cost *cost);
/* The places of the m cheapest into at[m], cheapest first; of equal ones the first is first. Returns: how many. */
KVR_API size_t kvr_router_cheapest(const struct kvr_router_ctx *ctx, size_t *at, size_t m);
/* The terms of that decision's delay costs, of its candidates at[m], as they were then. Returns: false, and nothing is written, when the
 * cost is another. */
KVR_API bool kvr_router_delays(const struct kvr_router_ctx *ctx, const size_t *at, size_t m, struct kvr_delay *out);
/* What `prefill_tokens` of its result would have been, had it chosen candidate `at`. */
KVR_API uint64_t kvr_router_prefill_of(const struct kvr_router_ctx *ctx, size_t at);

/* A request that may wait. The caller's memory, zeroed before; its fields are the router's. */
struct kvr_ticket;
/* rc and result as of find_best_match, or -KVR_ESHUTDOWN. `ctx` is for kvr_router_candidates during the call. */
typedef void kvr_done_fn(struct kvr_ticket *ticket, int rc, const struct kvr_router_result *result, const struct kvr_router_ctx *ctx);
struct kvr_ticket {
    struct kvr_queue_item item;
    const struct kvr_router_request *request;
    kvr_done_fn *done;
    void *user;
    bool parked;
};

enum { KVR_PARKED = 1 };

/* As find_best_match with `book`, but a request that finds every eligible rank busy, or others of its class waiting whose turn is before
 * its own, is parked: `done` is called once, from any thread, when its turn has come; until then `request` and what it points to must
 * stay. Overlap and load are looked up afresh at that moment.
 * Returns: 0 admitted at once (*out is filled, `done` is not called); KVR_PARKED; -KVR_EBUSY with do_not_queue;
 * -KVR_EQUEUEFULL with *rejection filled; or an error of find_best_match. */
KVR_API int kvr_router_submit(struct kvr_router *router, struct kvr_router_ctx *ctx, const struct kvr_router_request *request,
                              struct kvr_ticket *ticket, kvr_done_fn *done, void *user, struct kvr_router_result *out,
                              struct kvr_rejection *rejection);
/* Gives up waiting. Returns: true when it was parked (`done` will not be called); false when `done` has returned: what it was
 * given stands. */
KVR_API bool kvr_router_cancel(struct kvr_router *router, struct kvr_ticket *ticket);
/* While it is parked others may be chosen than were when it was submitted: `request`, the one of that call, gets this list, which must stay
 * as what it points to. It keeps its place by time; where one of them is free `done` is called before this returns, and also with
 * -KVR_ENOMEM where it cannot be kept. Returns: false when it was not parked any more, and nothing has changed. */
KVR_API bool kvr_router_allow(struct kvr_router *router, struct kvr_ticket *ticket, struct kvr_router_request *request,
                              const uint64_t *allowed, size_t allowed_n);
/* Looks at parked requests again, for callers whose prefill loads decay with time, and gives back a slice of what removed workers held
 * (kvr_index_tend), and learns how fast caches turn over. Call it every 100 ms or so. */
KVR_API void kvr_router_poll(struct kvr_router *router);
/* Answers every parked request with -KVR_ESHUTDOWN; kvr_router_submit does so from now on. */
KVR_API void kvr_router_shut_queue(struct kvr_router *router);
KVR_API size_t kvr_router_pending(const struct kvr_router *router);
KVR_API size_t kvr_router_classes(const struct kvr_router *router);
/* Name (static until kvr_router_set_policy) and figures of one class. */
KVR_API const char *kvr_router_class_stats(struct kvr_router *router, size_t class_at, struct kvr_class_stats *out);

/* Books without choosing: `worker` and cached_tokens are the caller's. Returns: as kvr_load_add, -KVR_ENOID. */
KVR_API int kvr_router_add_request(struct kvr_router *router, struct kvr_router_ctx *ctx, const struct kvr_router_request *request,
                                   struct kvr_worker worker, uint64_t cached_tokens);
/* The first token has come. With learn_from_reports the time since the booking teaches what kvr_router_observe_ttft does, once, if the
 * booking had tokens to compute. Returns: 0 or -KVR_ENOTFOUND. */
KVR_API int kvr_router_mark_prefill_completed(struct kvr_router *router, const char *id, size_t id_len);
/* As kvr_load_output_blocks; fraction negative: none. Returns: 0, -KVR_EINVAL, -KVR_ENOTFOUND. */
KVR_API int kvr_router_add_output_blocks(struct kvr_router *router, const char *id, size_t id_len, uint64_t n, double fraction);
/* Renews the lease of a booking. Returns: 0 or -KVR_ENOTFOUND. */
KVR_API int kvr_router_touch(struct kvr_router *router, const char *id, size_t id_len);
/* With learn_from_reports the time between its first and its last report of output blocks teaches what kvr_router_observe_generation does.
 * Returns: 0, or -KVR_ENOTFOUND for an unknown id (harmless). */
KVR_API int kvr_router_free(struct kvr_router *router, const char *id, size_t id_len);
/* Frees bookings that are not guarded and of which nothing was heard for that long. Returns: how many. */
KVR_API size_t kvr_router_expire_requests(struct kvr_router *router, uint64_t older_than_ns);
/* Where a request is booked. Returns: 0 or -KVR_ENOTFOUND. */
KVR_API int kvr_router_where(struct kvr_router *router, const char *id, size_t id_len, struct kvr_worker *out);

/* Another router's change; request.owner (> 0) says whose. Unknown workers are ignored; a known id is replaced. The hook
 * does not see it. Returns: 0, -KVR_ENOTFOUND (unknown worker or id), -KVR_EINVAL, -KVR_ENOMEM. */
KVR_API int kvr_router_apply_remote(struct kvr_router *router, const struct kvr_load_event *event);
/* Forgets what one other router has booked. Returns: how many. */
KVR_API size_t kvr_router_forget_remote(struct kvr_router *router, uint32_t owner);
/* Calls `hook` with an ADD for every local booking, and `mark` (may be NULL) before the first: no change of the book comes
 * between. Returns: 0 or -KVR_ENOMEM. */
KVR_API int kvr_router_snapshot(struct kvr_router *router, void (*mark)(void *ctx), kvr_load_hook *hook, void *ctx);

/* What was observed of a decision: milliseconds from sending to the first token. Teaches the fleet's line and the worker's factor. */
KVR_API void kvr_router_observe_ttft(struct kvr_router *router, const struct kvr_router_result *result, double ms);
/* A request as the model sees it: kvr_ttft_predict. */
struct kvr_ttft_question {
    uint64_t worker_id;
    double own, ahead, requests;
    double ms; /* the answer; negative: the worker is gone */
};
/* The same, and says by what is known then what others would have taken. Returns: false, and nothing is answered, when the line has seen
 * less than KVR_TTFT_WARM. */
KVR_API bool kvr_router_observe_ttft_beside(struct kvr_router *router, const struct kvr_router_result *result, double ms,
                                            struct kvr_ttft_question *others, size_t n);
/* The fleet's line, and a worker's factor unless worker_id or factor is NULL. Returns: 0 or -KVR_ENOTFOUND. */
KVR_API int kvr_router_ttft_model(struct kvr_router *router, const uint64_t *worker_id, struct kvr_ttft_model *out,
                                  struct kvr_ttft_factor *factor);
/* What was observed of its end: `tokens` (> 0) came after the first one, within `ms`. Call it before kvr_router_free. */
KVR_API void kvr_router_observe_generation(struct kvr_router *router, const struct kvr_router_result *result, double tokens, double ms);
KVR_API void kvr_router_generation_model(struct kvr_router *router, struct kvr_generation_model *out);

/* Overlap of every rank with the prompt, trusted or not; as kvr_index_match_tiers (cumulative). With remote_index: the request's `scores`.
 * Returns: number of entries, or -KVR_ENOINDEX, -KVR_ELIMIT (cap too small), -KVR_ENOMEM. */
KVR_API long kvr_router_overlap(struct kvr_router *router, struct kvr_router_ctx *ctx, const struct kvr_router_request *request,
                                struct kvr_reach *out, size_t cap, size_t *blocks_n);

/* Keeps those of reaches[n] whose ranks are registered and trusted, in order. Returns: how many. */
KVR_API size_t kvr_router_keep_trusted(struct kvr_router *router, struct kvr_reach *reaches, size_t n);

/* Loads of all ranks, ordered by (worker_id, rank). Returns: number of ranks; at most cap are written. */
KVR_API size_t kvr_router_loads(struct kvr_router *router, struct kvr_rank_load *out, size_t cap);

struct kvr_potential_load {
    struct kvr_worker worker;
    uint64_t potential_prefill_tokens, potential_decode_blocks;
    uint32_t active_requests;
};

/* Load of every rank as if the request went there; eligibility is ignored.
 * Returns: number of ranks (at most cap written), or an error of find_best_match. */
KVR_API long kvr_router_potential_loads(struct kvr_router *router, struct kvr_router_ctx *ctx, const struct kvr_router_request *request,
                                        struct kvr_potential_load *out, size_t cap);

/* Dump of the index. Returns: as kvr_index_dump, or -KVR_ENOINDEX. */
KVR_API int kvr_router_dump(struct kvr_router *router, const struct kvr_worker *only, kvr_index_emit *emit, void *ctx);

/* Checks the load book. Returns: true, or false and a static text. */
KVR_API bool kvr_router_validate(struct kvr_router *router, const char **reason);

#ifdef __cplusplus
}
#endif
#endif
