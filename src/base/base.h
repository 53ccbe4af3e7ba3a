/* SPDX-License-Identifier: Apache-2.0 */
/* Small things every layer uses: assertions that stay, byte-accounting memory, a seeded generator. */
#ifndef KVR_BASE_H
#define KVR_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <kvroute/alloc.h>
#include <kvroute/clock.h>
#include <kvroute/error.h>

/* A programmer's mistake: checked in release builds too. */
#define KVR_ASSERT(cond)                                                                                                                   \
    do {                                                                                                                                   \
        if (!(cond)) {                                                                                                                     \
            fprintf(stderr, "kvroute: assertion failed: %s (%s:%d)\n", #cond, __FILE__, __LINE__);                                         \
            abort();                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

#define KVR_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define KVR_MAX(a, b)    ((a) > (b) ? (a) : (b))
#define KVR_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* Takes x out of the list that begins at `first`, which has it. */
#define KVR_UNLINK(first, x)                                                                                                               \
    do {                                                                                                                                   \
        __typeof__(x) *at_ = &(first);                                                                                                     \
        while (*at_ != (x)) at_ = &(*at_)->next;                                                                                           \
        *at_ = (x)->next;                                                                                                                  \
    } while (0)

/* Memory of one object: an allocator, the bytes it holds and the most it may hold (0 = no cap).
 * Not thread-safe: the owner serialises. */
struct kvr_mem {
    struct kvr_alloc a;
    size_t bytes;
    size_t bytes_max;
};

void kvr_mem_init(struct kvr_mem *m, const struct kvr_alloc *a, size_t bytes_max);
/* Like kvr_alloc.resize, counted. NULL when memory is short or the cap would be passed. */
void *kvr_mem_resize(struct kvr_mem *m, void *ptr, size_t old_size, size_t new_size);
/* Gives memory that the libc allocator keeps for reuse back to the system; slow. */
void kvr_mem_trim(const struct kvr_mem *m);
void *kvr_mem_get(struct kvr_mem *m, size_t size);  /* uninitialised */
void *kvr_mem_zget(struct kvr_mem *m, size_t size); /* zeroed */
void kvr_mem_put(struct kvr_mem *m, void *ptr, size_t size);
/* Grows *ptr (elements of elem bytes, capacity *cap) to hold at least need elements. 0 or -KVR_ENOMEM. */
int kvr_mem_grow(struct kvr_mem *m, void **ptr, size_t *cap, size_t need, size_t elem);

/* Room for `need` elements of `elem` bytes in *list, memory of libc's for *cap of them; more than was asked for, so that one after the
 * other may be added. Returns: false: there is no memory, and nothing has changed. */
bool kvr_grow(void *list, size_t *cap, size_t need, size_t elem);

/* Says in err, of cap bytes, what is wrong. Returns: -1. */
int kvr_refuse(char *err, size_t cap, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* 64-bit finaliser (murmur3's), for table positions. */
static inline uint64_t kvr_mix64(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    x ^= x >> 33;
    return x;
}

/* A number that nobody outside knows, the same for the life of the process and never 0: from the system's generator, or from the
 * environment's KVR_SEED, which makes tests repeatable. Any thread. */
uint64_t kvr_secret(void);

/* Table positions of keys that somebody else may choose: a permutation that depends on `secret`, so that nobody can prepare
 * keys that meet at one place. */
static inline uint64_t kvr_mix64_keyed(uint64_t x, uint64_t secret)
{
    return kvr_mix64((x ^ secret) * ((secret << 29 | secret >> 35) | 1));
}

/* splitmix64: small, seedable, good enough for ties and sampling; not for secrets. */
struct kvr_rng {
    uint64_t state;
};

static inline uint64_t kvr_rng_next(struct kvr_rng *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

/* Uniform in [0, n), n > 0; multiply-shift, bias below 2^-32 for the small n used here. */
static inline uint32_t kvr_rng_below(struct kvr_rng *r, uint32_t n)
{
    return (uint32_t)(((kvr_rng_next(r) >> 32) * n) >> 32);
}

/* Uniform in [0, 1). */
static inline double kvr_rng_unit(struct kvr_rng *r)
{
    return (double)(kvr_rng_next(r) >> 11) * 0x1.0p-53;
}

/* The whole text, decimal digits only, as a number of at most `max`; *out is untouched otherwise. */
static inline bool kvr_parse_u64(const char *s, size_t len, uint64_t max, uint64_t *out)
{
    uint64_t v = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        uint64_t digit = (uint64_t)(s[i] - '0');
        if (v > (UINT64_MAX - digit) / 10) return false;
        v = v * 10 + digit;
    }
    if (len == 0 || v > max) return false;
    *out = v;
    return true;
}

/* Whether the len bytes at s are the text. */
static inline bool kvr_span_is(const void *s, size_t len, const char *text)
{
    return len == strlen(text) && memcmp(s, text, len) == 0;
}

/* v in hexadecimal, with at least so many digits and nothing behind them. Returns: their number, 16 at most. */
static inline size_t kvr_put_hex(char *out, uint64_t v, size_t least)
{
    size_t n = 1;
    while (n < 16 && (n < least || v >> 4 * n)) n++;
    for (size_t i = 0; i < n; i++) out[i] = "0123456789abcdef"[v >> 4 * (n - 1 - i) & 15];
    return n;
}

/* What a hexadecimal digit of either case is worth; -1: it is none. */
static inline int kvr_hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static inline uint64_t kvr_now_ns(const struct kvr_clock *c)
{
    return c->now_ns(c->ctx);
}

static inline uint64_t kvr_monotonic_ns(void)
{
    return kvr_now_ns(kvr_clock_monotonic());
}

/* Of the monotonic clock. */
static inline uint64_t kvr_now_ms(void)
{
    return kvr_monotonic_ns() / 1000000;
}

static inline uint64_t kvr_load_be64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v); /* compilers make no one load of eight */
    return __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? v : __builtin_bswap64(v);
}

static inline void kvr_store_be64(unsigned char *p, uint64_t v)
{
    for (int i = 7; i >= 0; i--, v >>= 8) p[i] = (unsigned char)v;
}

#endif
