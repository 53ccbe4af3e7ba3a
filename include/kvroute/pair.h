/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request of two legs: one worker computes its prompt (prefill), another one receives what was computed and answers (decode). The two
 * workers are a pair, chosen in one call and booked under one id.
 *
 *     prompt --> prefill router --> the worker that computes it:     overlap and prefill tokens, no blocks
 *                     |  (its transfer domain)
 *                     v
 *                decode router  --> the worker that goes on from it: all its blocks, whatever is cached there; no prefill tokens
 *
 * Life of a pair: kvr_pair_find_best_match with `book`, kvr_pair_prefill_completed when the first worker has computed the prompt (its
 * booking ends there, the other one goes on), kvr_pair_output_blocks as generation fills blocks, kvr_pair_free at the end, whatever the end
 * was.
 *
 * A pair owns nothing: it names two routers of the caller's, each with its workers, its index and its block size. The decode router may
 * have workers that take whole requests too; the decode leg's cost is the request's (kvr_override_decode_leg), not the router's.
 *
 * A choice takes one router's lock after the other's, never both. A pair is booked on both or on none: what the first has booked is given
 * back when the second has nobody; others may see that first booking meanwhile.
 *
 * Threads: every function may be called from any thread; a struct kvr_pair must not change meanwhile, and one struct kvr_pair_ctx is used
 * by one thread at a time.
 *
 * EXAMPLE (compiled and run by the tests)
 *
 *     struct kvr_router_config config;
 *     struct kvr_pair pair = {0};
 *     struct kvr_pair_ctx ctx;
 *     kvr_router_config_init(&config);
 *     config.mode = KVR_MODE_LEAST_LOADED; // with an index: KVR_MODE_KV
 *     if (kvr_router_create(&config, &pair.decode, NULL)) return 1;
 *     config.track_active_blocks = false;
 *     if (kvr_router_create(&config, &pair.prefill, NULL)) return 1;
 *     kvr_router_set_worker(pair.prefill, 1, 0, 1);
 *     kvr_router_set_worker(pair.decode, 2, 0, 1);
 *     if (kvr_pair_ctx_create(&pair, &ctx)) return 1;
 *
 *     uint32_t tokens[40] = {1, 2, 3};
 *     struct kvr_router_request request = {.id = "r1", .id_len = 2, .book = true, .tokens = tokens, .tokens_n = 40};
 *     struct kvr_pair_result result;
 *     int rc = kvr_pair_find_best_match(&pair, &ctx, &request, NULL, &result);
 *     printf("prefill on %llu, decode on %llu\n", (unsigned long long)result.prefill.worker.worker_id,
 *            (unsigned long long)result.decode.worker.worker_id);
 *     if (rc == 0) rc = kvr_pair_prefill_completed(&pair, "r1", 2);
 *     if (rc == 0) rc = kvr_pair_free(&pair, "r1", 2);
 *
 *     kvr_pair_ctx_destroy(&ctx);
 *     kvr_router_destroy(pair.prefill);
 *     kvr_router_destroy(pair.decode);
 */
#ifndef KVROUTE_PAIR_H
#define KVROUTE_PAIR_H

#include <kvroute/router.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed: no domains, and what is cached at the decode worker counts for nothing. */
struct kvr_pair {
    struct kvr_router *prefill; /* borrowed; its track_active_blocks should be false: prompts leave when they are computed */
    struct kvr_router *decode;  /* borrowed; another one */
    /* A transfer domain (a rack, a zone) is a taint of both workers that begins with this, such as "kv-domain="; the decode worker should
     * have the prefill worker's. NULL: domains count for nothing. */
    const char *domain_prefix;
    bool domain_required; /* no pair of two domains, else: */
    double domain_weight; /* of the preferred taint (kvroute/select.h); finite */
    bool keeps_overlap;   /* the decode leg's cost keeps the router's or the request's overlap credit */
};

struct kvr_pair_ctx {
    struct kvr_router_ctx *prefill, *decode;
};

struct kvr_pair_result {
    struct kvr_router_result prefill, decode;                /* zeroed when there is none */
    enum kvr_leg { KVR_LEG_PREFILL, KVR_LEG_DECODE } failed; /* which leg an error is about */
};

/* Scratch memory for one thread. Returns: 0; -KVR_EINVAL when the routers are one; -KVR_ENOMEM. */
KVR_API int kvr_pair_ctx_create(const struct kvr_pair *pair, struct kvr_pair_ctx *out);
/* Before the routers are destroyed. */
KVR_API void kvr_pair_ctx_destroy(struct kvr_pair_ctx *ctx);

/* Chooses a worker for each leg, and books both under prefill->id with `book`. `prefill` is the request as its first worker gets it: the
 * prompt, and who may compute it. `decode` is the same for the second leg, of which id, id_len and book are taken from `prefill`; its
 * override keeps what a decode leg does not set. NULL: the same prompt, and any worker, unless the block sizes differ and `prefill` has
 * hashes in place of tokens (-KVR_EINVAL). Never waits. Returns: 0, or an error of kvr_router_find_best_match with out->failed; then
 * nothing is booked. */
KVR_API int kvr_pair_find_best_match(const struct kvr_pair *pair, struct kvr_pair_ctx *ctx, const struct kvr_router_request *prefill,
                                     const struct kvr_router_request *decode, struct kvr_pair_result *out);
/* The second leg alone, of a request whose first is with `prefill` already (it may have waited, kvr_router_submit): `request` is that of
 * the decode leg, whole. Returns: as kvr_router_find_best_match. */
KVR_API int kvr_pair_find_decode(const struct kvr_pair *pair, struct kvr_pair_ctx *ctx, const struct kvr_router_request *request,
                                 struct kvr_worker prefill, struct kvr_router_result *out);

/* What ends or moves the bookings of a pair, one of whose legs may be over, or never have been. Return: 0, or -KVR_ENOTFOUND when neither
 * router knows the id. */

/* The prompt is computed: the prefill leg's booking ends, as kvr_router_mark_prefill_completed (with learn_from_reports it teaches) and
 * kvr_router_free. Saying it twice is harmless. */
KVR_API int kvr_pair_prefill_completed(const struct kvr_pair *pair, const char *id, size_t id_len);
/* Of the decode leg; as kvr_router_add_output_blocks. */
KVR_API int kvr_pair_output_blocks(const struct kvr_pair *pair, const char *id, size_t id_len, uint64_t n, double fraction);
/* Renews the leases of both. */
KVR_API int kvr_pair_touch(const struct kvr_pair *pair, const char *id, size_t id_len);
/* Both are over. */
KVR_API int kvr_pair_free(const struct kvr_pair *pair, const char *id, size_t id_len);

#ifdef __cplusplus
}
#endif
#endif
