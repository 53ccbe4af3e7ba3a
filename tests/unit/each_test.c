/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into every unit test. KVR_TESTS=PATTERN runs those whose names match it (* and ?). KVR_TELL_THREADS=1 says at the end how many
 * threads the test, or a library that it uses, has started: tests/run.py leaves the thread sanitizer out where none is, and fails when one
 * is. */
#include "test.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic unsigned started;

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *found = dlsym(RTLD_NEXT, "pthread_create"); /* libc's, or the sanitizer's in front of it */
    memcpy(&next, &found, sizeof next);
    atomic_fetch_add(&started, 1);
    return next(thread, attr, start, arg);
}

__attribute__((destructor)) static void tell(void)
{
    if (getenv("KVR_TELL_THREADS")) fprintf(stderr, "threads started: %u\n", atomic_load(&started));
}

__attribute__((constructor)) static void choose(void)
{
    if (getenv("KVR_TESTS")) cmocka_set_test_filter(getenv("KVR_TESTS"));
}
