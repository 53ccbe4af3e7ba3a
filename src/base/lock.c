/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a thread holds is a list of its own, in the order of taking, which rising ranks make the order of ranks; a lock that is given back
 * leaves it wherever it is.
 */
#include "base/lock.h"

#include <time.h>

#include "base/base.h"
#include "base/log.h"

void kvr_lock_init(struct kvr_lock *l, enum kvr_lock_rank rank)
{
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
#ifdef __GLIBC__
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    pthread_mutex_init(&l->mutex, &a);
    pthread_mutexattr_destroy(&a);
#ifdef KVR_LOCK_CHECKS
    l->rank = rank;
#else
    (void)rank;
#endif
}

void kvr_rwlock_init(struct kvr_rwlock *l, enum kvr_lock_rank rank)
{
    pthread_rwlockattr_t a;
    pthread_rwlockattr_init(&a);
#ifdef __GLIBC__
    pthread_rwlockattr_setkind_np(&a, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&l->rwlock, &a);
    pthread_rwlockattr_destroy(&a);
#ifdef KVR_LOCK_CHECKS
    l->rank = rank;
#else
    (void)rank;
#endif
}

void kvr_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &a);
    pthread_condattr_destroy(&a);
}

void kvr_cond_wait_ms(pthread_cond_t *cond, struct kvr_lock *lock, uint64_t ms)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_sec += (time_t)(ms / 1000);
    ts.tv_nsec += (long)(ms % 1000) * 1000000;
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_sec++;
        ts.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(cond, &lock->mutex, &ts);
}

#ifdef KVR_LOCK_CHECKS

enum { HELD_MAX = 16 };

struct held {
    const void *lock;
    enum kvr_lock_rank rank;
};

static _Thread_local struct {
    struct held locks[HELD_MAX];
    size_t n;
} mine;

static const char *const names[] = {
#define LOCK_NAME(name, text) text,
    KVR_LOCK_RANKS(LOCK_NAME)
#undef LOCK_NAME
};

void kvr__lock_taking(const void *lock, enum kvr_lock_rank rank)
{
    const struct held *last = mine.n ? &mine.locks[mine.n - 1] : NULL;
    if (last && last->rank >= rank) {
        kvr_log_error("kvroute: lock order: the lock of %s is taken under that of %s", names[rank], names[last->rank]);
        abort();
    }
    KVR_ASSERT(mine.n < HELD_MAX);
    mine.locks[mine.n++] = (struct held){lock, rank};
}

void kvr__lock_given(const void *lock)
{
    size_t i = mine.n;
    while (i > 0 && mine.locks[i - 1].lock != lock) i--;
    KVR_ASSERT(i > 0);
    for (mine.n--; i <= mine.n; i++) mine.locks[i - 1] = mine.locks[i];
}

#endif
