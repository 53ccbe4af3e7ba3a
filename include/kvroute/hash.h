/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens to hashes.
 *
 * A block is `block_size` consecutive tokens. Its *local hash* is XXH3-64 over the tokens as 4-byte
 * little-endian words, seeded with a value that depends on the LoRA name and the cache salt only:
 *
 *     seed = 1337 + XXH3(lora_name, 0) + XXH3(cache_salt, 1)      (mod 2^64, absent or empty terms left out)
 *
 * The *sequence hash* identifies a whole prefix: seq[0] = local[0], seq[i] = XXH3(le64(seq[i-1]) ||
 * le64(local[i]), 1337). A trailing partial block yields nothing. These are the values that NVIDIA Dynamo's
 * router uses, so that hashes can be exchanged with its services; tests/vectors holds the reference values.
 *
 *     tokens   t0 t1 t2 t3 | t4 t5 t6 t7 | t8          block_size 4: two blocks, t8 is dropped
 *     local        L0      |     L1
 *     sequence     S0=L0   |     S1=H(S0,L1)
 *
 * With `eagle` the window is block_size + 1 tokens and the stride block_size (speculative decoding with
 * bigram tokens): neighbouring blocks share one token and a block count is floor((n - 1) / block_size).
 *
 * Threads: all functions are pure. Nothing allocates, except multimodal hashing of more than 64 objects in
 * one block, which is refused.
 */
#ifndef KVROUTE_HASH_H
#define KVROUTE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <kvroute/api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVR_HASH_SEED      1337u
#define KVR_MM_OBJECTS_MAX 64u

/* Multimodal objects of one block: scheme M1, their hashes are appended to the token bytes, sorted ascending
 * as unsigned, duplicates kept. count 0 hashes like a plain block. Borrowed. */
struct kvr_mm_block {
    const uint64_t *mm_hashes;
    size_t count;
};

/* Seed for a LoRA name and a cache salt (bytes, not C strings). Empty is the same as absent. */
KVR_API uint64_t kvr_hash_seed(const char *lora, size_t lora_len, const char *salt, size_t salt_len);

/* XXH3-64 of a byte string. */
KVR_API uint64_t kvr_hash_bytes(const void *bytes, size_t len, uint64_t seed);

/* Number of blocks that n_tokens make; 0 when block_size is 0. */
KVR_API size_t kvr_hash_block_count(size_t n_tokens, uint32_t block_size, bool eagle);

/* Local hashes of a prompt.
 *   tokens[n_tokens] host-endian u32, locals[kvr_hash_block_count(...)] written.
 *   mm: NULL, or mm_count entries for the first blocks; an entry past the list is a plain block.
 * Returns: number of blocks, or -KVR_ELIMIT when a block carries more than KVR_MM_OBJECTS_MAX objects. */
KVR_API long kvr_hash_locals(const uint32_t *tokens, size_t n_tokens, uint32_t block_size, bool eagle, uint64_t seed,
                             const struct kvr_mm_block *mm, size_t mm_count, uint64_t *locals);

/* Sequence hashes of n local hashes; `seqs` may be the same array as `locals`. */
KVR_API void kvr_hash_sequence(const uint64_t *locals, size_t n, uint64_t *seqs);

/* The same, going on behind a prefix with the sequence hash `before`. Threads: any. */
KVR_API void kvr_hash_sequence_on(uint64_t before, const uint64_t *locals, size_t n, uint64_t *seqs);

#ifdef __cplusplus
}
#endif
#endif
