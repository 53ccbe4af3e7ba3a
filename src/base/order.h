/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of plain numbers, for qsort and bsearch: the least first. */
#ifndef KVR_ORDER_H
#define KVR_ORDER_H

#include <stdint.h>

static inline int kvr_rising_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static inline int kvr_rising_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

#endif
