/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an LMCache inside an engine's process calls its chunks, and which chunk a name says is before it.
 *
 * Of a chunk that stands first in what one pass stores, and not at its prompt's start, LMCache tells 0 as the parent. But a name is a hash
 * of the name before and the chunk's own tokens, and the hash is the one of CPython's tuples (pre_caching_hash_algorithm `builtin`, the
 * default of LMCache 0.5.6), every step of which can be taken back:
 *
 *     name = hash((name before, (token, token, ...), ()))          --tokens-->          name before, modulo 2^61 - 1
 *
 * Who knows a chunk by one of the names that come out knows its place: that another hash, or another chunk, leads to a known name is as
 * likely as that two names of 61 bits are the same by chance.
 *
 * Threads: pure function.
 */
#ifndef KVR_WIRE_LMCACHE_NAMES_H
#define KVR_WIRE_LMCACHE_NAMES_H

#include <stddef.h>
#include <stdint.h>

enum { KVR_LMCACHE_PARENTS = 5 }; /* numbers of 64 bits that are one modulo 2^61 - 1 */

/* Names that the chunk before may have. Returns: how many; 0 of a name that is no such hash. */
size_t kvr_lmcache_parents(uint64_t name, const uint32_t *tokens, size_t n, uint64_t out[KVR_LMCACHE_PARENTS]);

#endif
