/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct kvr_lower as numbers, for every format that carries events: [flags, span, copies, chunk + 2^32 least, position, prefix hash].
 * flags: 1 names_only, 2 names_first, 4 learns, 8 placed, 16 apart. An event whose numbers are all 0 is written without them.
 */
#ifndef KVR_LOWER_H
#define KVR_LOWER_H

#include <kvroute/event.h>

enum { KVR_LOWER_WORDS = 6 };

static inline void kvr_lower_pack(const struct kvr_lower *l, uint64_t w[KVR_LOWER_WORDS])
{
    w[0] = (uint64_t)(l->names_only | l->names_first << 1 | l->learns << 2 | l->placed << 3 | l->apart << 4);
    w[1] = l->span;
    w[2] = l->copies;
    w[3] = (uint64_t)l->least << 32 | l->chunk;
    w[4] = l->position;
    w[5] = l->prefix_hash;
}

static inline bool kvr_lower_is_told(const uint64_t w[KVR_LOWER_WORDS])
{
    return w[0] | w[1] | w[2] | w[3] | w[4] | w[5];
}

/* Returns: false for numbers that cannot be. */
static inline bool kvr_lower_unpack(const uint64_t w[KVR_LOWER_WORDS], struct kvr_lower *out)
{
    if (w[0] > 31 || w[1] > UINT16_MAX || w[2] > UINT32_MAX || w[4] >= UINT32_MAX) return false;
    *out = (struct kvr_lower){.names_only = w[0] & 1,
                              .names_first = w[0] & 2,
                              .learns = w[0] & 4,
                              .placed = w[0] & 8,
                              .apart = w[0] & 16,
                              .span = (uint32_t)w[1],
                              .copies = (uint32_t)w[2],
                              .chunk = (uint32_t)w[3],
                              .least = (uint32_t)(w[3] >> 32),
                              .position = (uint32_t)w[4],
                              .prefix_hash = w[5]};
    return true;
}

#endif
