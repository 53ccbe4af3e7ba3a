/* SPDX-License-Identifier: Apache-2.0 */
/* Two counts in one value of a map64: of what is certain (below 0 when more has gone than was certain to come), and of what is not proven.
 */
#ifndef KVR_TALLY_H
#define KVR_TALLY_H

#include <stdint.h>

struct kvr_tally {
    int32_t certain;
    uint32_t unproven;
};

/* A value of certain counts alone is that number. */
static inline struct kvr_tally kvr_tally_of(uint64_t value)
{
    return (struct kvr_tally){(int32_t)(uint32_t)value, (uint32_t)(value >> 32)};
}

static inline uint64_t kvr_tally_value(struct kvr_tally t)
{
    uint64_t unproven = t.unproven;
    return unproven * (UINT64_C(1) << 32) + (uint32_t)t.certain;
}

static inline int64_t kvr_tally_sum(struct kvr_tally t)
{
    return (int64_t)t.certain + t.unproven;
}

#endif
