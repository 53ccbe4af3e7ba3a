/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A KV cache event of one (worker, rank), as the index applies it and as dumps produce it.
 *
 * `block_hash` is whatever the engine calls the block; it is opaque and only compared within one (worker,
 * rank). `tokens_hash` is the local hash of kvroute/hash.h. All arrays are borrowed for the call.
 *
 * LOWER TIERS. What an engine keeps behind the device it often tells of in other words: by names alone, or in chunks of several blocks
 * that are read back as a whole. The members of struct kvr_lower say so; a zeroed one means: as on the device, a block a name.
 */
#ifndef KVROUTE_EVENT_H
#define KVROUTE_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <kvroute/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kvr_event_kind { KVR_EVENT_STORED, KVR_EVENT_REMOVED, KVR_EVENT_CLEARED };

struct kvr_block {
    uint64_t block_hash;
    uint64_t tokens_hash;
};

/* Of a stored event of a lower tier. */
struct kvr_lower {
    bool names_only;  /* no tokens were told: tokens_hash is not used; each name is one that the rank has, or had a moment ago, in some tier
                       */
    bool names_first; /* tokens may be told without salts and images: a name that the rank knows is where it is known, whatever they say */
    bool apart;       /* names_only: each name ends a chunk of its own; else the last one does, as that of blocks with tokens */
    bool learns;      /* the tier is read in chunks, which end where such events end: their length is learned from that */
    uint32_t span;    /* blocks that a name stands for, 0 or 1: one. Else blocks_n is a multiple of it, and of every `span` of them the
                         last one's name is theirs */
    uint32_t copies;  /* 0: what is there already stays as it is. Else so many copies, each with a removal of its own */
    uint32_t chunk;   /* blocks that the tier is read by at once, when that is known otherwise; 0: not said */
    uint32_t least;   /* fewer blocks than these are not read at all; 0: not said */
    bool placed;      /* one block, known by its place: the two below; its parent need not be known. Dumps are such events */
    uint32_t position;
    uint64_t prefix_hash; /* sequence hash (kvroute/hash.h) of the prefix that ends with the block */
};

struct kvr_event {
    uint64_t event_id;
    struct kvr_worker worker;
    enum kvr_tier tier;
    enum kvr_event_kind kind;
    /* stored */
    bool has_parent;         /* false: the first block starts a sequence (or start_position says where) */
    bool has_start_position; /* only without a parent */
    uint32_t start_position; /* in blocks */
    uint64_t parent_hash;
    const struct kvr_block *blocks;
    size_t blocks_n;
    struct kvr_lower lower;
    /* removed */
    const uint64_t *removed;
    size_t removed_n;
};

#ifdef __cplusplus
}
#endif
#endif
