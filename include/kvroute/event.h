/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A KV cache event of one (worker, rank), as the index applies it and as dumps produce it.
 *
 * `block_hash` is whatever the engine calls the block; it is opaque and only compared within one (worker,
 * rank). `tokens_hash` is the local hash of kvroute/hash.h. All arrays are borrowed for the call.
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
    /* removed */
    const uint64_t *removed;
    size_t removed_n;
};

#ifdef __cplusplus
}
#endif
#endif
