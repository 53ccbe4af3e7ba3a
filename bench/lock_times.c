/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who holds a lock for how long, and who waits for one: a library for LD_PRELOAD that times the mutexes of a program by the place that
 * takes them. bench_fleet.py builds and uses it.
 *
 * Held is processor time of the thread, so that what the scheduler takes away in between does not count; waited is time that passes.
 * SIGUSR2 forgets what was seen so far. At its end the program writes a line for each place into $LOCK_TIMES: address (for addr2line), how
 * often, then microseconds: waited in all, at most, held in all, at most. Read-write locks are not looked at.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PLACES = 8192, DEPTH = 32 };
static struct place {
    _Atomic uintptr_t at;
    _Atomic uint64_t n, waited, held, most_waited, most_held;
} places[PLACES];
static int (*real_lock)(pthread_mutex_t *), (*real_unlock)(pthread_mutex_t *);
static _Thread_local struct {
    pthread_mutex_t *m;
    struct place *p;
    uint64_t since;
} held[DEPTH];
static _Thread_local int held_n;

static uint64_t now(clockid_t c)
{
    struct timespec t;
    clock_gettime(c, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct place *place_of(uintptr_t at)
{
    for (size_t i = at % PLACES;; i = (i + 1) % PLACES) {
        uintptr_t none = 0;
        if (atomic_load(&places[i].at) == at || atomic_compare_exchange_strong(&places[i].at, &none, at) || none == at) return &places[i];
    }
}

static void most(_Atomic uint64_t *a, uint64_t v)
{
    uint64_t was = atomic_load(a);
    while (v > was && !atomic_compare_exchange_weak(a, &was, v)) {
    }
}

static void forget(int)
{
    for (int i = 0; i < PLACES; i++) {
        atomic_store(&places[i].n, 0);
        atomic_store(&places[i].waited, 0);
        atomic_store(&places[i].held, 0);
        atomic_store(&places[i].most_waited, 0);
        atomic_store(&places[i].most_held, 0);
    }
}

__attribute__((constructor)) static void begin(void)
{
    signal(SIGUSR2, forget);
    *(void **)&real_lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    *(void **)&real_unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
}

int pthread_mutex_lock(pthread_mutex_t *m)
{
    if (!real_lock) begin(); /* another library's constructor */
    uint64_t t = now(CLOCK_MONOTONIC);
    int rc = real_lock(m);
    struct place *p = place_of((uintptr_t)__builtin_return_address(0));
    uint64_t got = now(CLOCK_MONOTONIC);
    atomic_fetch_add(&p->n, 1);
    atomic_fetch_add(&p->waited, got - t);
    most(&p->most_waited, got - t);
    if (held_n < DEPTH) {
        held[held_n].m = m;
        held[held_n].p = p;
        held[held_n++].since = now(CLOCK_THREAD_CPUTIME_ID);
    }
    return rc;
}

int pthread_mutex_unlock(pthread_mutex_t *m)
{
    for (int i = held_n; i-- > 0;)
        if (held[i].m == m) {
            uint64_t d = now(CLOCK_THREAD_CPUTIME_ID) - held[i].since;
            atomic_fetch_add(&held[i].p->held, d);
            most(&held[i].p->most_held, d);
            held[i] = held[--held_n];
            break;
        }
    return real_unlock(m);
}

static int first(struct dl_phdr_info *i, size_t, void *base)
{
    *(uintptr_t *)base = i->dlpi_addr;
    return 1;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("LOCK_TIMES");
    FILE *f = path ? fopen(path, "w") : NULL;
    uintptr_t base = 0;
    if (!f) return;
    dl_iterate_phdr(first, &base);
    for (int i = 0; i < PLACES; i++)
        if (atomic_load(&places[i].n))
            fprintf(f, "%#lx %lu %lu %lu %lu %lu\n", (unsigned long)(places[i].at - base - 1), (unsigned long)places[i].n,
                    (unsigned long)places[i].waited / 1000, (unsigned long)places[i].most_waited / 1000,
                    (unsigned long)places[i].held / 1000, (unsigned long)places[i].most_held / 1000);
    fclose(f);
}
