/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with what it wants included before it, and small helpers for every unit test. */
#ifndef KVR_TEST_H
#define KVR_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/base.h"

/* An allocator that fails its n-th call (counting from 0); -1: never. */
struct failing_alloc {
    long fail_at, calls;
    size_t live;
};

static inline void *failing_resize(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    struct failing_alloc *f = ctx;
    if (new_size == 0) {
        f->live -= old_size;
        free(ptr);
        return NULL;
    }
    if (f->fail_at >= 0 && f->calls++ == f->fail_at) return NULL;
    void *p = realloc(ptr, new_size);
    if (p) f->live += new_size - old_size;
    return p;
}

/* A number from the environment: KVR_SEED, KVR_OPS. */
static inline uint64_t env_u64(const char *name, uint64_t fallback)
{
    const char *v = getenv(name);
    return v ? strtoull(v, NULL, 10) : fallback;
}

/* A clock that stands where it is put. */
static inline uint64_t manual_now(void *ctx)
{
    return *(uint64_t *)ctx;
}

static inline uint64_t seconds_from_now(double s)
{
    return kvr_now_ns(kvr_clock_monotonic()) + (uint64_t)(s * 1e9);
}

static inline bool sleep_before(uint64_t deadline_ns, long pause_ns)
{
    struct timespec pause = {.tv_nsec = pause_ns};
    nanosleep(&pause, NULL);
    return kvr_now_ns(kvr_clock_monotonic()) < deadline_ns;
}

static inline bool time_is_left(uint64_t deadline_ns)
{
    return sleep_before(deadline_ns, 200000);
}

/* Looks until `condition` holds, and fails when it does not within so many seconds. What takes long is looked at less often: a look may be
 * a question to another process. */
#define WAIT_FOR(condition, seconds)                                                                                                       \
    do {                                                                                                                                   \
        uint64_t deadline_ = seconds_from_now(seconds);                                                                                    \
        for (long pause_ = 200000; !(condition) && sleep_before(deadline_, pause_); pause_ = KVR_MIN(pause_ * 5 / 4, 2000000L)) {          \
        }                                                                                                                                  \
        assert_true(condition);                                                                                                            \
    } while (0)

#endif
