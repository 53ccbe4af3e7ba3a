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
 * Life of a request: find_best_match with `book`, mark_prefill_completed at the first token,
 * add_output_block as generation fills blocks, free at the end, whatever the end was. Freeing twice is harmless.
 *
 * Trust. A rank whose view is not trusted (kvr_router_set_trusted) competes on load alone: its overlap counts
 * as nothing. Ranks are trusted when they are registered.
 *
 * Threads: every function may be called from any thread, except that one struct kvr_router_ctx is used by one
 * thread at a time. The router does not own the index.
 */
#ifndef KVROUTE_ROUTER_H
#define KVROUTE_ROUTER_H

#include <kvroute/alloc.h>
#include <kvroute/clock.h>
#include <kvroute/hash.h>
#include <kvroute/index.h>
#include <kvroute/load.h>
#include <kvroute/select.h>
#include <kvroute/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_router;
struct kvr_router_ctx;

enum kvr_router_mode {
    KVR_MODE_KV,
    KVR_MODE_ROUND_ROBIN,
    KVR_MODE_RANDOM,
    KVR_MODE_LEAST_LOADED, /* fewest active requests */
    KVR_MODE_DIRECT        /* only pinned requests */
};

/* Custom choice: returns an index below n, or n or more to refuse (-KVR_ENOENDPOINTS). Called under the
 * router's lock; must not call back. */
typedef size_t kvr_select_fn(void *ctx, const struct kvr_candidate *candidates, const struct kvr_cost *costs, size_t n);

struct kvr_router_config {
    const struct kvr_alloc *alloc;
    const struct kvr_clock *clock;
    struct kvr_index *index; /* NULL: no index; needs cost.overlap_credit 0 or a mode other than kv */
    uint32_t block_size;     /* tokens, > 0 */
    struct kvr_cost_config cost;
    enum kvr_router_mode mode;
    bool track_active_blocks; /* false: no sequence hashes, the decode term is 0 */
    bool assume_kv_reuse;     /* false: a request shares its blocks with nobody in the book */
    bool record_decisions;    /* approximate mode: a booked decision is recorded in the index */
    uint64_t seed;            /* of the generator for ties and temperature */
    kvr_select_fn *select;    /* NULL: cost and temperature */
    void *select_ctx;
};

/* Defaults: kv mode, block size 16, everything tracked, KV reuse assumed. */
KVR_API void kvr_router_config_init(struct kvr_router_config *config);

/* Returns: 0; -KVR_EINVAL with *field (may be NULL) naming what is wrong; -KVR_ENOMEM. */
KVR_API int kvr_router_create(const struct kvr_router_config *config, struct kvr_router **out, const char **field);
/* Contexts must be destroyed before. NULL is fine. */
KVR_API void kvr_router_destroy(struct kvr_router *router);

/* Scratch memory and an index reader for one thread. Grows with the longest prompt seen. */
KVR_API int kvr_router_ctx_create(struct kvr_router *router, struct kvr_router_ctx **out);
KVR_API void kvr_router_ctx_destroy(struct kvr_router_ctx *ctx);

KVR_API uint32_t kvr_router_block_size(const struct kvr_router *router);
KVR_API void kvr_router_set_mode(struct kvr_router *router, enum kvr_router_mode mode);
KVR_API enum kvr_router_mode kvr_router_mode(const struct kvr_router *router);

/* Registers a worker or changes its rank range. Errors as kvr_load_set_worker. The index is left alone. */
KVR_API int kvr_router_set_worker(struct kvr_router *router, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size);
/* Forgets a worker, its load and its blocks in the index. */
KVR_API void kvr_router_remove_worker(struct kvr_router *router, uint64_t worker_id);
/* Unknown workers are ignored by these two. */
KVR_API void kvr_router_set_schedulable(struct kvr_router *router, uint64_t worker_id, bool schedulable);
KVR_API void kvr_router_set_trusted(struct kvr_router *router, struct kvr_worker worker, bool trusted);
/* Threshold above which a rank counts as prefill-busy, in tokens; 0 = never busy. */
KVR_API void kvr_router_set_busy_tokens(struct kvr_router *router, uint64_t worker_id, uint64_t tokens);

struct kvr_router_request {
    const char *id; /* required to book */
    size_t id_len;
    bool book;

    /* The prompt: tokens, or hashes that were made before (then isl says how many tokens). With neither, only
     * isl counts and overlap is 0. */
    const uint32_t *tokens;
    size_t tokens_n;
    const uint64_t *locals, *seqs; /* seqs may be NULL */
    size_t locals_n, seqs_n;
    uint64_t isl; /* 0 with tokens: tokens_n */
    const char *lora;
    size_t lora_len;
    const char *salt;
    size_t salt_len;
    bool eagle;
    const struct kvr_mm_block *mm;
    size_t mm_n;

    /* Who may serve it. */
    const uint64_t *allowed; /* worker ids; NULL: all */
    size_t allowed_n;
    const uint64_t *excluded;
    size_t excluded_n;
    bool pinned; /* only `pin`; its rank is free when pin_any_rank */
    bool pin_any_rank;
    bool preferred; /* `pin` is taken if eligible, else scoring */
    struct kvr_worker pin;
    bool fail_when_busy; /* -KVR_EBUSY when every eligible rank is prefill-busy */

    const struct kvr_cost_config *override; /* NULL: the router's */
    int assume_kv_reuse;                    /* -1 no, 0 the router's setting, 1 yes */
};

struct kvr_router_times { /* nanoseconds */
    uint64_t block_hashing, find_matches, seq_hashing, scheduling, total;
};

struct kvr_router_result {
    struct kvr_worker worker;
    uint32_t overlap_blocks; /* round(effective overlap) */
    double effective_blocks;
    double best_blocks; /* best effective overlap among eligible candidates */
    double cost;
    uint64_t cached_tokens;
    uint64_t prefill_tokens;  /* what was or would be booked: max(isl - cached, 0), 0 when not tracked */
    uint64_t required_blocks; /* ceil(isl / block size) */
    size_t candidates;
    bool pinned, preferred, trusted;
    bool scored; /* chosen by cost (kv mode, not pinned or preferred) */
    struct kvr_router_times times;
};

/* Chooses, and books with `book`.
 * Returns: 0;
 *   -KVR_ENOID          book without an id
 *   -KVR_EEXISTS        the id is booked already; nothing changes
 *   -KVR_ENOENDPOINTS   nobody is eligible, or a pinned worker is not schedulable
 *   -KVR_ENOTALLOWED    the pinned worker is not among `allowed`
 *   -KVR_ENOTFOUND      the pinned worker is not registered
 *   -KVR_ERANK          the pinned rank is out of range, or the rank is missing on a worker with several
 *   -KVR_EBUSY          see fail_when_busy
 *   -KVR_ELENGTH        locals and seqs differ in length
 *   -KVR_ELIMIT, -KVR_ENOMEM */
KVR_API int kvr_router_find_best_match(struct kvr_router *router, struct kvr_router_ctx *ctx, const struct kvr_router_request *request,
                                       struct kvr_router_result *out);

/* Books without choosing: `worker` and cached_tokens are the caller's. Returns: as kvr_load_add, -KVR_ENOID. */
KVR_API int kvr_router_add_request(struct kvr_router *router, struct kvr_router_ctx *ctx, const struct kvr_router_request *request,
                                   struct kvr_worker worker, uint64_t cached_tokens);
KVR_API int kvr_router_mark_prefill_completed(struct kvr_router *router, const char *id, size_t id_len);
KVR_API int kvr_router_add_output_block(struct kvr_router *router, const char *id, size_t id_len);
/* Returns: 0, or -KVR_ENOTFOUND for an unknown id (harmless). */
KVR_API int kvr_router_free(struct kvr_router *router, const char *id, size_t id_len);
KVR_API size_t kvr_router_expire_requests(struct kvr_router *router, uint64_t older_than_ns);

/* Overlap of every rank with the prompt, trusted or not; as kvr_index_match.
 * Returns: number of entries, or -KVR_ENOINDEX, -KVR_ELIMIT (cap too small), -KVR_ENOMEM. */
KVR_API long kvr_router_overlap(struct kvr_router *router, struct kvr_router_ctx *ctx, const struct kvr_router_request *request,
                                struct kvr_overlap *out, size_t cap, size_t *blocks_n);

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
