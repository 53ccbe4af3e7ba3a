/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV event batches as engines publish them (vLLM, SGLang, TensorRT-LLM): msgpack, arrays or maps.
 *
 *     payload --decode--> struct kvr_engine_batch --convert--> struct kvr_event ... for the index
 *
 * Decoding goes through the payload once. Nothing in it is trusted: every read ends before the payload does, and
 * counts are bounded by its length. Converting filters (cache groups that are not the main
 * attention, remote blocks, ambiguous salts), hashes tokens, and keeps what must be remembered between batches.
 *
 * Threads: one thread per batch object and per stream object.
 */
#ifndef KVR_WIRE_ENGINE_EVENTS_H
#define KVR_WIRE_ENGINE_EVENTS_H

#include <kvroute/event.h>
#include <kvroute/hash.h>
#include <kvroute/index.h>

#include "base/base.h"
#include "base/map64.h"
#include "recover/consumer/copies.h"

struct kvr_bytes {
    const char *ptr; /* NULL: absent */
    size_t len;
};

enum kvr_engine_kind { KVR_ENGINE_STORED, KVR_ENGINE_REMOVED, KVR_ENGINE_CLEARED, KVR_ENGINE_IGNORED, KVR_ENGINE_UNKNOWN };

struct kvr_engine_event {
    enum kvr_engine_kind kind;
    size_t hashes_at, hashes_n; /* in batch->hashes */
    size_t tokens_at, tokens_n; /* in batch->tokens */
    size_t mm_at, mm_n;         /* in batch->mm: one entry per block, for the first mm_n blocks */
    uint64_t parent;
    uint64_t block_size;
    uint64_t group_idx, window; /* window: of sliding-window attention, in tokens; 0: not said */
    bool has_parent, has_group, eagle;
    bool is_map;                                              /* its form: releases since the middle of 2026 */
    bool untold_keys;                                         /* its form has no place for salts and images (vLLM before 0.17) */
    bool lora_id;                                             /* of an adapter: the event names its number */
    bool salt_or_object;                                      /* `salt` may be the identifier of an image, and is among the objects too */
    struct kvr_bytes medium, lora, salt, spec_kind, locality; /* borrow the payload */
};

struct kvr_engine_mm {
    size_t at, n; /* in batch->mm_hashes */
};

struct kvr_engine_batch {
    double ts;
    bool has_rank;
    uint32_t rank;
    struct kvr_engine_event *events;
    size_t events_n, events_cap;
    uint64_t *hashes;
    size_t hashes_n, hashes_cap;
    uint32_t *tokens;
    size_t tokens_n, tokens_cap;
    struct kvr_engine_mm *mm;
    size_t mm_n, mm_cap;
    uint64_t *mm_hashes;
    size_t mm_hashes_n, mm_hashes_cap;
    struct kvr_mem mem;
};

void kvr_engine_batch_init(struct kvr_engine_batch *b);
void kvr_engine_batch_free(struct kvr_engine_batch *b);

/* Returns: 0, -KVR_EFORMAT, -KVR_ENOMEM. The batch borrows `data`. Events with an unknown tag are kept as
 * KVR_ENGINE_UNKNOWN, so that a newer engine does not blind us; a malformed known event fails the batch. */
int kvr_engine_decode(struct kvr_engine_batch *b, const char *data, size_t len);

/* Identifier of a multimodal object to its hash: 64 hex digits: the first 16 as a number; else XXH3. */
uint64_t kvr_engine_mm_hash(const char *id, size_t len);

/* clang-format off */
#define KVR_ENGINE_COUNTERS(X) \
    X(ignored_event) X(unknown_tag) X(ambiguous_cache_namespace) X(non_main_attention_kind) X(unknown_kind) \
    X(non_main_attention_group) X(unlearned_group_idx) X(remote_locality) X(unknown_medium) X(self_reference) \
    X(block_size_mismatch) X(partial_block) X(lower_tier_size) X(truncated_tokens) X(other_rank) X(lower_tier) X(unnamed_adapter) X(untold_keys) \
    X(salt_or_object) \
    X(copy_stored) X(copy_removed) X(copy_reported) X(copy_taken_back)
/* clang-format on */

struct kvr_engine_counters {
#define KVR_ENGINE_FIELD(name) uint64_t name;
    KVR_ENGINE_COUNTERS(KVR_ENGINE_FIELD)
#undef KVR_ENGINE_FIELD
};

enum {
    KVR_ENGINE_BLOCK_SIZE_MAX = 65536 /* tokens; an engine is not believed to have a larger one */,
    KVR_ENGINE_GROUPS = 64,
    KVR_ENGINE_SALT_TAGS_MAX = 1 << 22
};

/* What must be remembered about one (worker, rank) between batches. */
struct kvr_engine_stream {
    struct kvr_worker worker;
    uint32_t block_size;                    /* 0: that of the next store is taken */
    bool learns_size;                       /* it was 0 at the start, and is again when the engine has restarted */
    uint32_t engine_block_size;             /* of the last store, as the engine said it; 0: none yet */
    bool tiers;                             /* emit lower-tier events; else they are counted and dropped */
    uint32_t tier_chunk;                    /* blocks that the engine reads from lower tiers at once, when it is told; 0: learned */
    bool coloured;                          /* some blocks are of salts, images or adapters: tokens alone do not tell what a block is */
    uint32_t group_need[KVR_ENGINE_GROUPS]; /* of a window group: blocks before the end of a prefix; UINT32_MAX: all */
    uint64_t group_bound;                   /* a bit each: groups of which the engine may reuse more than can be said */
    /* Takes what events say of the other groups (struct kvr_window_event, kvroute/index.h); NULL: they are counted and left out. */
    void (*window)(void *ctx, const struct kvr_window_event *event);
    void *window_ctx;
    uint8_t group_main[KVR_ENGINE_GROUPS]; /* 0 not learned, 1 main attention, 2 other */
    struct kvr_map64 salts;                /* block hash -> salt term of the seed; AMBIGUOUS */
    struct kvr_copies copies;
    kvr_copies_holds *holds; /* what the view holds, when it can say so: then copies are counted and neither stored nor removed again */
    void *holds_ctx;
    bool again;                          /* what is converted may be in the view already: nothing of it counts as a copy */
    bool taking_back;                    /* what is emitted now are blocks that only unproven counts held: their engine may have them */
    const struct kvr_engine_event *told; /* of this batch: a store that may be a report; what comes next decides */
    unsigned hints;                      /* of reports, in a row */
    struct kvr_engine_counters counters;
    const struct kvr_engine_event *current; /* the event that is being converted */
    size_t skipped;                         /* its leading blocks that are not emitted: copies */
    uint64_t *last;                         /* names whose last copy goes */
    size_t last_cap;
    uint32_t *seen; /* which names a store has */
    size_t seen_cap;
    struct kvr_block *blocks;
    uint64_t *locals;
    size_t blocks_cap, locals_cap;
    struct kvr_mm_block *mm;
    size_t mm_cap;
    struct kvr_mem mem;
};

void kvr_engine_stream_init(struct kvr_engine_stream *s, struct kvr_worker worker, uint32_t block_size);
void kvr_engine_stream_free(struct kvr_engine_stream *s);
/* Forgets what was learned of the content (it is dropped); and of the engine, too (another life of it). */
void kvr_engine_stream_reset(struct kvr_engine_stream *s);
void kvr_engine_stream_restart(struct kvr_engine_stream *s);
/* Forgets what copies there are: events may have been missed. */
void kvr_engine_stream_forget_copies(struct kvr_engine_stream *s);

/* What becomes of the cache groups beside the main one, as far as events have told of them. */
enum kvr_engine_groups {
    KVR_GROUPS_EXACT,   /* there are none, or what each needs is known */
    KVR_GROUPS_BOUND,   /* of one not: all its blocks are asked for, which is a lower bound of what the engine reuses */
    KVR_GROUPS_LEFT_OUT /* there is no `window` to take them: the main group alone says more than the engine reuses */
};
enum kvr_engine_groups kvr_engine_stream_groups(const struct kvr_engine_stream *s);

typedef void kvr_engine_emit(void *ctx, const struct kvr_event *event);

/* Converts every event of a batch. Returns: number of events emitted, or -KVR_ENOMEM. */
long kvr_engine_convert(struct kvr_engine_stream *s, const struct kvr_engine_batch *b, uint64_t event_id, kvr_engine_emit *emit, void *ctx);

/* This engine reports (recover/consumer/copies.h): unproven copies are taken back (counted as copy_taken_back), those blocks that nothing
 * else held are emitted as removed, and what may be a report is not counted any more. Returns: number of events emitted, or -KVR_ENOMEM:
 * nothing was done. */
long kvr_engine_stream_take_back(struct kvr_engine_stream *s, uint64_t event_id, kvr_engine_emit *emit, void *ctx);

#endif
