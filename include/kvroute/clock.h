/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time for the library: the caller's clock, or CLOCK_MONOTONIC.
 *
 * The library never sleeps and never asks the system for the time by itself, so the same code runs under
 * virtual time in a simulation. Times are unsigned nanoseconds from an arbitrary origin and never go back.
 */
#ifndef KVROUTE_CLOCK_H
#define KVROUTE_CLOCK_H

#include <stdint.h>
#include <kvroute/api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* now_ns must be callable from every thread that uses the object it was given to. */
struct kvr_clock {
    uint64_t (*now_ns)(void *ctx);
    void *ctx;
};

/* The CLOCK_MONOTONIC clock that NULL stands for. Threads: any. */
KVR_API const struct kvr_clock *kvr_clock_monotonic(void);

#ifdef __cplusplus
}
#endif
#endif
