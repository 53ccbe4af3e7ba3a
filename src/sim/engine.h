/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated engine: paged KV cache with prefix caching, continuous batching, a timing model. It knows neither
 * sockets nor the clock: the caller says when a pass has ended, so the same code runs live and in virtual time.
 *
 * Cache. As vLLM's: a full block is found by content (a chain hash of its own, opaque to others) and stays after use. Blocks are
 * not merged: what is computed again (the last block of a prompt that is wholly cached, a request that does not read the cache)
 * is a copy, with an event of its own when it is stored and when it is removed; a hit takes the oldest copy. Free blocks that
 * cache nothing are reused first, then the others, least recently used first, tails before heads. One block is never used.
 * A block is in the cache from the beginning of the pass that computes it.
 *
 * KV of another engine. A `remote` request gets all the blocks of its prompt when it is admitted; it then waits beside the queues until
 * the caller says what has come into them (mock_engine_loaded). It takes no part in passes meanwhile, and cannot be preempted. Then it is
 * admitted before those that have no blocks yet, in the order in which prompts have come; the token that remains of its prompt costs a
 * pass no more than one that is generated. A request that ends may leave its blocks to a hold: they stay in use, and are found in the
 * cache, until the hold is released.
 *
 * The host's memory (sim/host_tier.h), when it has any. A prompt goes on from what the device has with what the host has; that is read in
 * the pass that admits it, which takes load_ratio times as long for it as computing would, and is on the device then. An answer's cached
 * tokens are both.
 *
 * A pass. Running requests take one token each, or a chunk of their prompt; then waiting ones are admitted while
 * sequence slots, blocks and the token budget last. Its time is prefill(new tokens) + decode(cache in use), from
 * a polynomial fit of a mid-size model on one large GPU, divided by speedup.
 */
#ifndef KVR_MOCK_ENGINE_H
#define KVR_MOCK_ENGINE_H

#include <kvroute/event.h>

#include "base/base.h"

struct mock_engine;
struct mock_request;
struct mock_hold;

struct mock_engine_config {
    uint32_t block_size, num_blocks, max_num_seqs, max_batched_tokens;
    double speedup;
    uint64_t seed;
    bool prefix_caching;
    uint32_t host_blocks, host_chunk; /* host_blocks 0: none */
    bool host_rests;                  /* the host is read for less than a chunk, too */
    double load_ratio;                /* time of reading a token, as a share of that of computing it */
    bool first_and_last;              /* events tell the first copy that is stored and the last that is removed, for those who keep a set */
    /* Called in order, within passes and resets. A stored event carries its tokens and its request's `user`. */
    void (*on_event)(void *ctx, const struct kvr_event *event, const uint32_t *tokens, size_t tokens_n, void *user);
    /* In the place of these for the host's: an event of a whole chunk, with `span` 0 and all its names; NULL: they are not told. */
    void (*on_host_event)(void *ctx, const struct kvr_event *event, const uint32_t *tokens, size_t tokens_n);
    /* A token was generated (index from 0); `last` ends the request, whose memory goes after the call. */
    void (*on_token)(void *ctx, struct mock_request *request, uint32_t token, uint64_t index, bool last);
    /* A remote request has its blocks, of which the leading ones have `cached` tokens already. Called within mock_engine_begin_pass: the
     * answer (loaded, abort) comes after it. NULL: there are no remote requests. */
    void (*on_load)(void *ctx, struct mock_request *request, size_t cached);
    void *ctx;
};

struct mock_engine_stats {
    uint64_t running, waiting, used_blocks, total_blocks, preemptions;
    uint64_t cached_blocks, cached_copies;                                    /* different ones; all of them */
    uint64_t prompt_tokens, cached_tokens, generated_tokens, requests, ended; /* ended: with their last token */
    uint64_t host_blocks, host_queries, loaded_tokens;                        /* queries: prompt tokens that the device had not */
    uint64_t received_tokens;                                                 /* of prompts, computed by other engines */
};

struct mock_engine *mock_engine_create(const struct mock_engine_config *config);
void mock_engine_destroy(struct mock_engine *e);

struct mock_engine_request {
    const uint32_t *tokens; /* copied */
    size_t n;
    uint64_t max_tokens;
    uint64_t salt;   /* separates caches */
    bool skip_cache; /* computes its prompt, whatever is cached; what it computes is cached as usual */
    bool reports;    /* tells what it finds in the cache, each time that it is tried to admit it, as if that were stored (vLLM) */
    bool remote;     /* its prompt's KV comes from another engine */
    void *user;
};

/* Queues a request. Returns: NULL when memory is short. The prompt and the answer must fit the cache: see mock_engine_fits. */
struct mock_request *mock_engine_submit(struct mock_engine *e, const struct mock_engine_request *request);
bool mock_engine_fits(const struct mock_engine *e, size_t prompt, uint64_t max_tokens);
void mock_engine_abort(struct mock_engine *e, struct mock_request *r);
void *mock_request_user(const struct mock_request *r);
uint64_t mock_request_cached(const struct mock_request *r); /* prompt tokens found in the cache */
size_t mock_request_prompt(const struct mock_request *r);

/* Of a remote request whose blocks were told by on_load: its first `tokens` have been filled (0: none, it computes them itself), and it
 * waits for its turn, before those without blocks. spoilt: with another prompt's KV, so that what it generates is worth nothing. */
void mock_engine_loaded(struct mock_engine *e, struct mock_request *r, size_t tokens, bool spoilt);

/* Within on_token, when it is the last one: keeps the blocks of the prompt. Owns: the caller, until it is released, before the engine is
 * destroyed. Returns: NULL when memory is short. */
struct mock_hold *mock_engine_hold(struct mock_engine *e, struct mock_request *r);
void mock_engine_release(struct mock_engine *e, struct mock_hold *h);
/* The prompt; and the numbers of its blocks. Borrowed from the hold. */
const uint32_t *mock_hold_tokens(const struct mock_hold *h, size_t *n);
const uint32_t *mock_hold_blocks(const struct mock_hold *h, size_t *n);

bool mock_engine_idle(const struct mock_engine *e);
/* Begins a pass: admits, computes, emits events. Returns: its duration in nanoseconds; 0 when there is no work. */
uint64_t mock_engine_begin_pass(struct mock_engine *e);
/* Ends it: emits the tokens. */
void mock_engine_end_pass(struct mock_engine *e);
/* Forgets every cached block that no request uses; one cleared event. Returns: false while blocks are in use. */
bool mock_engine_reset_cache(struct mock_engine *e);
void mock_engine_stats(const struct mock_engine *e, struct mock_engine_stats *out);

#endif
