/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `block_mm_infos` of a JSON body: which multimodal objects each block of a prompt touches. They belong to the block's identity
 * (kvroute/hash.h, scheme M1), so two prompts that differ in an image alone share no block from there on.
 *
 *     "block_mm_infos": [null, {"mm_objects": [{"mm_hash": 9533257059414191570, "offsets": [[0, 4]]}]}, ...]
 *
 * The list begins with the prompt's first block; blocks past its end are plain. Offsets are not hashed.
 * One object per thread at a time; nothing is borrowed from the parser afterwards.
 */
#ifndef KVR_WIRE_MM_INFOS_H
#define KVR_WIRE_MM_INFOS_H

#include <kvroute/hash.h>

#include "base/base.h"
#include "wire/json.h"

struct kvr_mm_infos {
    struct kvr_mm_block *blocks; /* NULL: none is given */
    size_t n;
    uint64_t *hashes; /* what the blocks point into */
};

/* Reads the member of `body`; absent and null are none. blocks_max: ceil(tokens / block size), a longer list was made for another
 * block size and is refused; 0: the body has no tokens, and any list is refused.
 * Returns: 0; -KVR_EFORMAT with a sentence for the client in why[cap] that begins with the member's name; -KVR_ENOMEM. `out` is to be
 * freed in every case. */
int kvr_mm_infos_read(struct kvr_json body, size_t blocks_max, struct kvr_mm_infos *out, char *why, size_t cap);
void kvr_mm_infos_free(struct kvr_mm_infos *m);

#endif
