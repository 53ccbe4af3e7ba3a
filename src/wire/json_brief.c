/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass over the text, which copies the stretches between cuts.
 *
 * Lists of ids are looked at in blocks of 64 bytes: each kind of character is a mask of 64 bits, and what may not follow what is a shift
 * of one mask and an intersection with another. What a block ended with is carried into the next one's shifts.
 */
#include "wire/json_brief.h"

#include <string.h>

enum { BLOCK = 64 };

/* ---- kinds of characters ----------------------------------------------------------------------------- */

struct masks {
    uint64_t digits, zeros, commas, spaces;
};

static inline __attribute__((always_inline)) struct masks masks_portable(const char *p)
{
    struct masks m = {0};
    for (unsigned i = 0; i < BLOCK; i++) {
        m.digits |= (uint64_t)(p[i] >= '0' && p[i] <= '9') << i;
        m.zeros |= (uint64_t)(p[i] == '0') << i;
        m.commas |= (uint64_t)(p[i] == ',') << i;
        m.spaces |= (uint64_t)(p[i] == ' ') << i;
    }
    return m;
}

static const char *plain_portable(const char *p, const char *end, bool *ascii)
{
    unsigned char high = 0;
    while (p < end && (unsigned char)*p >= 0x20 && *p != '"' && *p != '\\') high |= (unsigned char)*p++;
    *ascii &= !(high & 0x80);
    return p;
}

/* ---- lists of ids ------------------------------------------------------------------------------------ */

/* The kinds before: of each the last bits, at the top. */
struct carry {
    uint64_t digits, commas, spaces, led_by_zero;
    uint64_t runs2, runs4; /* where so many digits have ended in a row */
};

static inline uint64_t behind(uint64_t mask, uint64_t before, unsigned n)
{
    return mask << n | before >> (64 - n);
}

/* Where ten digits have ended in a row. */
static inline uint64_t too_long(uint64_t digits, struct carry *c)
{
    uint64_t runs2 = digits & behind(digits, c->digits, 1), runs4 = runs2 & behind(runs2, c->runs2, 2);
    uint64_t runs8 = runs4 & behind(runs4, c->runs4, 4), runs10 = runs8 & behind(runs2, c->runs2, 8);
    c->runs2 = runs2;
    c->runs4 = runs4;
    return runs10;
}

/* Of the bits in `in`: where something stands that may not stand there. */
static inline uint64_t misplaced(const struct masks *m, uint64_t in, struct carry *c)
{
    uint64_t after_digit = behind(m->digits, c->digits, 1), after_comma = behind(m->commas, c->commas, 1);
    uint64_t after_space = behind(m->spaces, c->spaces, 1), zeros = m->zeros & ~after_digit;
    uint64_t bad = (after_comma & ~(m->digits | m->spaces)) | (after_space & ~m->digits) | (m->spaces & ~after_comma) |
                   (m->commas & ~after_digit) | (m->digits & behind(zeros, c->led_by_zero, 1)) | too_long(m->digits, c);
    c->digits = m->digits;
    c->commas = m->commas;
    c->spaces = m->spaces;
    c->led_by_zero = zeros;
    return bad & in;
}

/* A list is over where a character is of no kind; a list of its inside is no list of ids. */
static inline __attribute__((always_inline)) const char *ids_with(const char *p, const char *end, size_t *n,
                                                                  struct masks (*masks_of)(const char *))
{
    struct carry carry = {.commas = UINT64_MAX << 63}; /* the bracket allows what a comma allows */
    char rest[BLOCK];
    size_t commas = 0;
    for (;; p += BLOCK) {
        bool last = (size_t)(end - p) < BLOCK;
        if (last) {
            memset(rest, 0, sizeof rest);
            memcpy(rest, p, (size_t)(end - p));
        }
        struct masks m = masks_of(last ? rest : p);
        uint64_t others = ~(m.digits | m.commas | m.spaces), in = others ? (others & (0 - others)) - 1 : UINT64_MAX;
        bool after_digit = carry.digits >> 63;
        if (misplaced(&m, in, &carry)) return NULL;
        commas += (size_t)__builtin_popcountll(m.commas & in);
        if (!others) continue;
        unsigned at = (unsigned)__builtin_ctzll(others);
        after_digit = at ? m.digits >> (at - 1) & 1 : after_digit;
        *n = commas + 1;
        return after_digit && p + at < end && p[at] == ']' ? p + at + 1 : NULL;
    }
}

/* ---- ids, read ----------------------------------------------------------------------------------------- */

/* Digits up to `end`, before which there are eight bytes. The last eight are summed in pairs, in fours, and then as one. */
static inline uint32_t number_before(const char *end, size_t digits)
{
    uint64_t v;
    if (digits > 8) return number_before(end, 8) + (uint32_t)(end[-9] - '0') * 100000000;
    memcpy(&v, end - 8, sizeof v);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    v &= 0x0f0f0f0f0f0f0f0f & UINT64_MAX << (64 - 8 * digits); /* the first digit is in the lowest byte */
    v = (v * 10 + (v >> 8)) & 0x00ff00ff00ff00ff;
    v = (v * 100 + (v >> 16)) & 0x0000ffff0000ffff;
    return (uint32_t)(v * 10000 + (v >> 32));
}

static const char *read_one(const char *p, uint32_t *out)
{
    while (*p == ' ' || *p == ',') p++;
    for (*out = 0; *p >= '0' && *p <= '9'; p++) *out = *out * 10 + (uint32_t)(*p - '0');
    return p;
}

static inline unsigned next_bit(uint64_t *mask)
{
    unsigned at = (unsigned)__builtin_ctzll(*mask);
    *mask &= *mask - 1;
    return at;
}

/* Where numbers begin and end is known of a block before the first of them is read: none waits for the one before it. */
static inline __attribute__((always_inline)) void read_with(const char *p, size_t n, uint32_t *out, struct masks (*masks_of)(const char *))
{
    uint64_t before = 0;
    size_t i = 0;
    const char *from = NULL;                    /* of a number that began in the block before */
    for (; n - i > BLOCK / 2 + 1; p += BLOCK) { /* there are as many bytes: an id has two at least, with its comma */
        uint64_t digits = masks_of(p).digits, after = behind(digits, before, 1), begin = digits & ~after, end = ~digits & after;
        before = digits;
        while (end) {
            const char *at = p + next_bit(&end);
            if (!from) from = p + next_bit(&begin);
            out[i++] = number_before(at, (size_t)(at - from));
            from = NULL;
        }
        if (begin) from = p + next_bit(&begin);
    }
    if (from) p = from;
    for (; i < n; i++) p = read_one(p, &out[i]);
}

/* ---- ways -------------------------------------------------------------------------------------------- */

#define WAYS(name, plain, attributes)                                                                                                      \
    attributes static const char *ids_##name(const char *p, const char *end, size_t *n)                                                    \
    {                                                                                                                                      \
        return ids_with(p, end, n, masks_##name);                                                                                          \
    }                                                                                                                                      \
    attributes static void read_##name(const char *p, size_t n, uint32_t *out)                                                             \
    {                                                                                                                                      \
        read_with(p, n, out, masks_##name);                                                                                                \
    }                                                                                                                                      \
    static const struct kvr__json_ways ways_##name = {ids_##name, read_##name, plain};

WAYS(portable, plain_portable, )

#if defined(__SSE2__)
#include <immintrin.h>

static inline __attribute__((always_inline)) uint64_t joined(const __m128i v[4])
{
    uint64_t all = 0;
    for (unsigned i = 0; i < 4; i++) all |= (uint64_t)(unsigned)_mm_movemask_epi8(v[i]) << (16 * i);
    return all;
}

static inline __attribute__((always_inline)) struct masks masks_sse2(const char *p)
{
    __m128i digits[4], zeros[4], commas[4], spaces[4], nine = _mm_set1_epi8(9), zero = _mm_set1_epi8('0');
    for (unsigned i = 0; i < 4; i++) {
        __m128i v = _mm_loadu_si128((const void *)(p + 16 * i)), d = _mm_sub_epi8(v, zero);
        digits[i] = _mm_cmpeq_epi8(_mm_min_epu8(d, nine), d);
        zeros[i] = _mm_cmpeq_epi8(v, zero);
        commas[i] = _mm_cmpeq_epi8(v, _mm_set1_epi8(','));
        spaces[i] = _mm_cmpeq_epi8(v, _mm_set1_epi8(' '));
    }
    return (struct masks){joined(digits), joined(zeros), joined(commas), joined(spaces)};
}

static const char *plain_sse2(const char *p, const char *end, bool *ascii)
{
    __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
    for (; end - p >= 16; p += 16) {
        __m128i v = _mm_loadu_si128((const void *)p), odd = _mm_cmpeq_epi8(_mm_min_epu8(v, control), v);
        odd = _mm_or_si128(odd, _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, slash)));
        unsigned which = (unsigned)_mm_movemask_epi8(odd), before = which ? (which & (0 - which)) - 1 : 0xffff;
        *ascii &= !((unsigned)_mm_movemask_epi8(v) & before);
        if (which) return p + __builtin_ctz(which);
    }
    return plain_portable(p, end, ascii);
}

WAYS(sse2, plain_sse2, )

#define AVX2 __attribute__((target("avx2,bmi,popcnt")))

AVX2 static inline uint64_t both(__m256i a, __m256i b)
{
    return (uint64_t)(unsigned)_mm256_movemask_epi8(a) | (uint64_t)(unsigned)_mm256_movemask_epi8(b) << 32;
}

AVX2 static inline struct masks masks_avx2(const char *p)
{
    __m256i a = _mm256_loadu_si256((const void *)p), b = _mm256_loadu_si256((const void *)(p + 32));
    __m256i zero = _mm256_set1_epi8('0'), nine = _mm256_set1_epi8(9), comma = _mm256_set1_epi8(','), space = _mm256_set1_epi8(' ');
    __m256i d = _mm256_sub_epi8(a, zero), e = _mm256_sub_epi8(b, zero);
    return (struct masks){both(_mm256_cmpeq_epi8(_mm256_min_epu8(d, nine), d), _mm256_cmpeq_epi8(_mm256_min_epu8(e, nine), e)),
                          both(_mm256_cmpeq_epi8(a, zero), _mm256_cmpeq_epi8(b, zero)),
                          both(_mm256_cmpeq_epi8(a, comma), _mm256_cmpeq_epi8(b, comma)),
                          both(_mm256_cmpeq_epi8(a, space), _mm256_cmpeq_epi8(b, space))};
}

WAYS(avx2, plain_sse2, AVX2)

#endif

const struct kvr__json_ways *kvr__json_way(size_t i)
{
#if defined(__SSE2__)
    bool newer = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
    const struct kvr__json_ways *const all[] = {&ways_portable, &ways_sse2, newer ? &ways_avx2 : NULL};
#else
    const struct kvr__json_ways *const all[] = {&ways_portable};
#endif
    return i < KVR_ARRAY_LEN(all) ? all[i] : NULL;
}

static const struct kvr__json_ways *fastest(void)
{
    size_t i = 0;
    while (kvr__json_way(i + 1)) i++;
    return kvr__json_way(i);
}

void kvr_json_brief_ids(const char *p, size_t n, uint32_t *out)
{
    fastest()->read(p, n, out);
}

/* ---- the pass ---------------------------------------------------------------------------------------- */

/* Members of a body that hold prompts: of all others every byte is read by somebody. */
static const struct large {
    const char *name;
    bool ids, texts; /* lists in it are ids; strings in it are read by those alone who read the prompt */
} large[] = {{"prompt", true, true},    {"input_ids", true, false}, {"token_ids", true, false},    {"nvext", true, false},
             {"messages", false, true}, {"input", false, true},     {"instructions", false, true}, {"system", false, true},
             {"text", false, true},     {"tools", false, true}};

enum { CUT_MIN = 64 /* bytes of a string or a list */, COPIED_MAX = 4096 /* and a half of what was passed */ };

struct pass {
    struct kvr_json_brief *out;
    const struct kvr__json_ways *ways;
    enum kvr_json_wanted wanted;
    const char *text, *p, *end;
    const char *from;       /* copied up to here */
    size_t depth, lists;    /* brackets that are open; lists that have begun in the brief text */
    const struct large *in; /* the body's member that p is in; NULL: one whose name is not there */
};

static void copy_to(struct pass *w, const char *to)
{
    kvr_buf_add(&w->out->text, w->from, (size_t)(to - w->from));
    w->from = to;
}

static const struct large *large_named(const char *name, size_t len)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(large); i++)
        if (kvr_span_is(name, len, large[i].name)) return &large[i];
    return NULL;
}

/* Past an escape; NULL: it is none, or half of a pair. */
static const char *past_escape(const char *p, const char *end)
{
    if (end - p < 2) return NULL;
    switch (p[1]) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't': return p + 2;
    case 'u': break;
    default: return NULL;
    }
    if (end - p < 6 || ((p[2] == 'd' || p[2] == 'D') && p[3] > '7')) return NULL;
    for (int i = 2; i < 6; i++)
        if (!((p[i] >= '0' && p[i] <= '9') || ((p[i] | 0x20) >= 'a' && (p[i] | 0x20) <= 'f'))) return NULL;
    return p + 6;
}

/* Past the string that begins at w->p. *whole: it is a string in every way, as far as was looked at; its UTF-8 unless it is ASCII. NULL:
 * it has no end. */
static const char *past_string(const struct pass *w, bool *whole, bool *ascii)
{
    const char *p = w->p + 1;
    *whole = *ascii = true;
    for (;;) {
        p = w->ways->plain(p, w->end, ascii);
        if (p == w->end) return NULL;
        if (*p == '"') return p + 1;
        const char *q = *p == '\\' ? past_escape(p, w->end) : NULL;
        *whole &= q != NULL;
        p = q ? q : *p == '\\' && w->end - p > 1 ? p + 2 : p + 1;
    }
}

static bool is_name(const struct pass *w, const char *p)
{
    while (p < w->end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n')) p++;
    return p < w->end && *p == ':';
}

/* Returns: false: it has no end. */
static bool pass_string(struct pass *w)
{
    bool whole, ascii;
    const char *s = w->p, *e = past_string(w, &whole, &ascii);
    if (!e) return false;
    w->p = e;
    if (is_name(w, e)) {
        if (w->depth == 1) w->in = large_named(s + 1, (size_t)(e - s - 2));
        return true;
    }
    if (w->wanted != KVR_JSON_NO_PROMPT || !w->in || !w->in->texts || e - s < CUT_MIN || !whole) return true;
    if (!ascii && !kvr__json_is_utf8(s, (size_t)(e - s))) return true;
    copy_to(w, s + 1);
    w->from = e - 1;
    return true;
}

/* A list whose bracket is at w->p. */
static void pass_list(struct pass *w)
{
    struct kvr_json_brief *out = w->out;
    const char *first = w->p + 1, *e = NULL;
    size_t n = 0;
    bool may = w->in && (w->in->ids || w->wanted == KVR_JSON_NO_PROMPT) && out->cuts_n < KVR_JSON_CUTS_MAX && w->end - first > CUT_MIN &&
               (*first == ' ' || (*first >= '0' && *first <= '9'));
    if (may) e = w->ways->ids(first, w->end, &n);
    if (e && e - first > CUT_MIN && n <= KVR_JSON_CUT_IDS_MAX) {
        copy_to(w, first);
        kvr_buf_add(&out->text, "0", 1);
        out->cuts[out->cuts_n++] = (struct kvr_json_cut){w->lists, first, n};
        w->p = w->from = e - 1;
    } else {
        w->p = first;
    }
    w->depth++;
    w->lists++;
}

static bool copies_too_much(const struct pass *w)
{
    size_t copied = w->out->text.len + (size_t)(w->p - w->from);
    return copied > COPIED_MAX + (size_t)(w->p - w->text) / 2;
}

bool kvr_json_brief(const char *text, size_t len, enum kvr_json_wanted wanted, struct kvr_json_brief *out)
{
    struct pass w = {.out = out, .ways = fastest(), .wanted = wanted, .text = text, .p = text, .end = text + len, .from = text};
    kvr_buf_reset(&out->text);
    out->cuts_n = 0;
    while (w.p < w.end) {
        switch (*w.p) {
        case '"':
            if (!pass_string(&w) || copies_too_much(&w)) return false;
            break;
        case '[': pass_list(&w); break;
        case '{': w.p++, w.depth++; break;
        case ']':
        case '}': w.p++, w.depth -= w.depth > 0; break;
        default: w.p++;
        }
    }
    copy_to(&w, w.end);
    return !out->text.failed && out->text.len < len - len / 4;
}

void kvr_json_brief_free(struct kvr_json_brief *b)
{
    kvr_buf_free(&b->text);
}
