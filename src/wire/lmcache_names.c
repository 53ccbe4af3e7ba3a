/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/lmcache_names.h"

#include <stdbool.h>

#define PRIME_1         UINT64_C(11400714785074694791)
#define PRIME_2         UINT64_C(14029467366897019727)
#define PRIME_5         UINT64_C(2870177450012600261)
#define PRIME_1_INVERSE UINT64_C(614540362697595703) /* modulo 2^64, as the next */
#define PRIME_2_INVERSE UINT64_C(839798700976720815)
#define LENGTH_MARK     UINT64_C(3527539)
#define MINUS_ONE       UINT64_C(1546275796) /* in place of the hash -1 */
#define INT_MODULUS     UINT64_C(2305843009213693951)

/* The hash of a tuple (CPython 3.8 and later): a round for the hash of each item, then its length. */
static uint64_t round_on(uint64_t acc, uint64_t item)
{
    acc += item * PRIME_2;
    return (acc << 31 | acc >> 33) * PRIME_1;
}

/* Before the round's rotation: the value it began with, and item * PRIME_2. */
static uint64_t round_back(uint64_t acc)
{
    acc *= PRIME_1_INVERSE;
    return acc >> 31 | acc << 33;
}

static uint64_t length_term(size_t n)
{
    return n ^ (PRIME_5 ^ LENGTH_MARK);
}

/* Of ids, each of which is its own hash. */
static uint64_t hash_of_tokens(const uint32_t *tokens, size_t n)
{
    uint64_t acc = PRIME_5;
    for (size_t i = 0; i < n; i++) acc = round_on(acc, tokens[i]);
    acc += length_term(n);
    return acc == UINT64_MAX ? MINUS_ONE : acc;
}

size_t kvr_lmcache_parents(uint64_t name, const uint32_t *tokens, size_t n, uint64_t out[KVR_LMCACHE_PARENTS])
{
    uint64_t acc = round_back(name - length_term(3)) - hash_of_tokens(NULL, 0) * PRIME_2;
    acc = round_back(acc) - hash_of_tokens(tokens, n) * PRIME_2;
    uint64_t before = (round_back(acc) - PRIME_5) * PRIME_2_INVERSE; /* of a negative number, its remainder with its sign */
    bool negative = before >> 63;
    uint64_t rest = negative ? 0 - before : before;
    size_t k = 0;
    if (rest >= INT_MODULUS) return 0;
    for (; k < KVR_LMCACHE_PARENTS && rest <= INT64_MAX; rest += INT_MODULUS) out[k++] = negative ? 0 - rest : rest;
    return k;
}
