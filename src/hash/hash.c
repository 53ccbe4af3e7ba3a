/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block hashing. The one file that inlines xxHash, so that short fixed-size inputs compile to straight code.
 *
 * Inputs above 240 bytes make XXH3 derive a 192-byte secret from the seed for every call. One prompt hashes
 * thousands of blocks with one seed, so for such blocks the secret is derived once a call of kvr_hash_locals
 * and passed in; the result is the same (XXH3_64bits_withSecretandSeed is defined that way).
 *
 * Nothing here checks for UTF-8 or trims: names are bytes.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>
#include <kvroute/error.h>
#include <kvroute/hash.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token bytes are hashed little-endian in place; a big-endian port must swap them first"
#endif

enum { XXH3_SHORT_MAX = 240 };

uint64_t kvr_hash_bytes(const void *bytes, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, len, seed);
}

uint64_t kvr_hash_seed(const char *lora, size_t lora_len, const char *salt, size_t salt_len)
{
    uint64_t seed = KVR_HASH_SEED;
    if (lora && lora_len) seed += XXH3_64bits_withSeed(lora, lora_len, 0);
    if (salt && salt_len) seed += XXH3_64bits_withSeed(salt, salt_len, 1);
    return seed;
}

size_t kvr_hash_block_count(size_t n_tokens, uint32_t block_size, bool eagle)
{
    if (block_size == 0) return 0;
    if (eagle) return n_tokens ? (n_tokens - 1) / block_size : 0;
    return n_tokens / block_size;
}

/* Scheme M1: tokens, then the object hashes sorted ascending. */
static int hash_mm_block(const uint32_t *tokens, size_t window, uint64_t seed, const struct kvr_mm_block *mm, uint64_t *out)
{
    uint64_t sorted[KVR_MM_OBJECTS_MAX];
    if (mm->count > KVR_MM_OBJECTS_MAX) return -KVR_ELIMIT;
    for (size_t i = 0; i < mm->count; i++) {
        uint64_t v = mm->mm_hashes[i];
        size_t j = i;
        for (; j > 0 && sorted[j - 1] > v; j--) sorted[j] = sorted[j - 1];
        sorted[j] = v;
    }
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset_withSeed(&state, seed);
    XXH3_64bits_update(&state, tokens, window * sizeof *tokens);
    XXH3_64bits_update(&state, sorted, mm->count * sizeof *sorted);
    *out = XXH3_64bits_digest(&state);
    return 0;
}

static void hash_plain_blocks(const uint32_t *tokens, size_t blocks, size_t stride, size_t window, uint64_t seed, uint64_t *locals)
{
    size_t bytes = window * sizeof *tokens;
    if (bytes <= XXH3_SHORT_MAX) {
        for (size_t i = 0; i < blocks; i++) locals[i] = XXH3_64bits_withSeed(tokens + i * stride, bytes, seed);
        return;
    }
    unsigned char secret[XXH3_SECRET_DEFAULT_SIZE];
    XXH3_generateSecret_fromSeed(secret, seed);
    for (size_t i = 0; i < blocks; i++) locals[i] = XXH3_64bits_withSecretandSeed(tokens + i * stride, bytes, secret, sizeof secret, seed);
}

long kvr_hash_locals(const uint32_t *tokens, size_t n_tokens, uint32_t block_size, bool eagle, uint64_t seed, const struct kvr_mm_block *mm,
                     size_t mm_count, uint64_t *locals)
{
    size_t blocks = kvr_hash_block_count(n_tokens, block_size, eagle);
    size_t window = (size_t)block_size + (eagle ? 1 : 0);
    if (!mm || mm_count == 0) {
        hash_plain_blocks(tokens, blocks, block_size, window, seed, locals);
        return (long)blocks;
    }
    for (size_t i = 0; i < blocks; i++) {
        const uint32_t *t = tokens + i * block_size;
        if (i < mm_count && mm[i].count) {
            int rc = hash_mm_block(t, window, seed, &mm[i], &locals[i]);
            if (rc) return rc;
        } else {
            locals[i] = XXH3_64bits_withSeed(t, window * sizeof *t, seed);
        }
    }
    return (long)blocks;
}

void kvr_hash_sequence_on(uint64_t before, const uint64_t *locals, size_t n, uint64_t *seqs)
{
    uint64_t pair[2] = {before};
    for (size_t i = 0; i < n; i++) {
        pair[1] = locals[i];
        seqs[i] = pair[0] = XXH3_64bits_withSeed(pair, sizeof pair, KVR_HASH_SEED);
    }
}

void kvr_hash_sequence(const uint64_t *locals, size_t n, uint64_t *seqs)
{
    if (n == 0) return;
    seqs[0] = locals[0];
    kvr_hash_sequence_on(seqs[0], locals + 1, n - 1, seqs + 1);
}
