/* SPDX-License-Identifier: Apache-2.0 */
/* The time as `serve` reckons with it, and the beat of its main loop. */
#ifndef KVR_SERVE_CLOCK_H
#define KVR_SERVE_CLOCK_H

#include "base/base.h"

enum { TICK_MS = 100 }; /* of what the main loop looks after */

/* Of the monotonic clock. */
static inline uint64_t now_ms(void)
{
    return kvr_now_ns(kvr_clock_monotonic()) / 1000000;
}

#endif
