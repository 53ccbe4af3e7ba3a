/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing arrays of hashes. The paths give equal results; the best one is chosen once, when an index is made. */
#include "index/internal.h"

static size_t common_portable(const uint64_t *a, const uint64_t *b, size_t n)
{
    size_t i = 0;
    while (i + 4 <= n && !((a[i] ^ b[i]) | (a[i + 1] ^ b[i + 1]) | (a[i + 2] ^ b[i + 2]) | (a[i + 3] ^ b[i + 3]))) i += 4;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

static size_t find_last_portable(const uint64_t *a, size_t n, uint64_t v)
{
    while (n && a[n - 1] != v) n--;
    return n ? n - 1 : SIZE_MAX;
}

const struct simd kvr__simd_portable = {common_portable, find_last_portable};

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

__attribute__((target("avx2"))) static unsigned differ4(const uint64_t *a, const uint64_t *b)
{
    __m256i x = _mm256_loadu_si256((const void *)a), y = _mm256_loadu_si256((const void *)b);
    return ~(unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(x, y))) & 15;
}

__attribute__((target("avx2"))) static size_t common_avx2(const uint64_t *a, const uint64_t *b, size_t n)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        unsigned d = differ4(a + i, b + i);
        if (d) return i + (size_t)__builtin_ctz(d);
    }
    while (i < n && a[i] == b[i]) i++;
    return i;
}

__attribute__((target("avx2"))) static size_t find_last_avx2(const uint64_t *a, size_t n, uint64_t v)
{
    __m256i x = _mm256_set1_epi64x((long long)v);
    while (n & 3)
        if (a[--n] == v) return n;
    for (; n; n -= 4) {
        __m256i y = _mm256_loadu_si256((const void *)(a + n - 4));
        unsigned m = (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(x, y)));
        if (m) return n - 4 + (size_t)(31 - __builtin_clz(m));
    }
    return SIZE_MAX;
}

__attribute__((target("avx512f"))) static size_t common_avx512(const uint64_t *a, const uint64_t *b, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        unsigned d = _mm512_cmpneq_epi64_mask(_mm512_loadu_si512(a + i), _mm512_loadu_si512(b + i));
        if (d) return i + (size_t)__builtin_ctz(d);
    }
    while (i < n && a[i] == b[i]) i++;
    return i;
}

__attribute__((target("avx512f"))) static size_t find_last_avx512(const uint64_t *a, size_t n, uint64_t v)
{
    __m512i x = _mm512_set1_epi64((long long)v);
    while (n & 7)
        if (a[--n] == v) return n;
    for (; n; n -= 8) {
        unsigned m = _mm512_cmpeq_epi64_mask(x, _mm512_loadu_si512(a + n - 8));
        if (m) return n - 8 + (size_t)(31 - __builtin_clz(m));
    }
    return SIZE_MAX;
}

const struct simd *kvr__simd_best(void)
{
    static const struct simd avx2 = {common_avx2, find_last_avx2}, avx512 = {common_avx512, find_last_avx512};
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return &avx512;
    return __builtin_cpu_supports("avx2") ? &avx2 : &kvr__simd_portable;
}

#else

const struct simd *kvr__simd_best(void)
{
    return &kvr__simd_portable;
}

#endif
