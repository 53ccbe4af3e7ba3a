/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for the library: the caller's allocator, or libc.
 *
 * Every constructor takes a `const struct kvr_alloc *`; NULL means libc. The struct is copied, so it may be
 * on the caller's stack. Sizes are given back on release, so that an allocator needs no header of its own
 * and every object can account its memory in bytes.
 */
#ifndef KVROUTE_ALLOC_H
#define KVROUTE_ALLOC_H

#include <stddef.h>
#include <stdint.h>
#include <kvroute/api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* resize(ctx, ptr, old_size, new_size):
 *   ptr NULL, old 0: allocate;  new 0: release and return NULL;  otherwise like realloc.
 * Returns NULL when memory is short; the old block is then still valid. Must return memory aligned for any
 * type. Called from the thread that calls the library, never concurrently for one object unless the object's
 * header says so. */
struct kvr_alloc {
    void *(*resize)(void *ctx, void *ptr, size_t old_size, size_t new_size);
    void *ctx;
};

/* The libc allocator that NULL stands for. Threads: any. */
KVR_API const struct kvr_alloc *kvr_alloc_libc(void);

#ifdef __cplusplus
}
#endif
#endif
