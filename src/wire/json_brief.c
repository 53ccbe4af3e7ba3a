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

static const char *ids_portable(const char *p, const char *end, size_t *n)
{
    return ids_with(p, end, n, masks_portable);
}

const struct kvr__json_ways kvr__json_portable = {ids_portable, plain_portable};

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

static const char *ids_sse2(const char *p, const char *end, size_t *n)
{
    return ids_with(p, end, n, masks_sse2);
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

const struct kvr__json_ways kvr__json_fast = {ids_sse2, plain_sse2};
#else
const struct kvr__json_ways kvr__json_fast = {ids_portable, plain_portable};
#endif

/* Eight bytes, of which the first n are digits. */
static uint32_t number_of(const char *p, unsigned n)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    v = (v & 0x0f0f0f0f0f0f0f0f) << (64 - 8 * n);
    v = v * 10 + (v >> 8); /* pairs, in every other byte; then fours, then all */
    v = ((v & 0x000000ff000000ff) * (100 + (1000000ull << 32)) + (v >> 16 & 0x000000ff000000ff) * (1 + (10000ull << 32))) >> 32;
    return (uint32_t)v;
}

/* Digits before the first other byte of eight; 8: there is none. */
static unsigned digits_in(const char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    v = (v ^ 0x3030303030303030) + 0x7676767676767676; /* of ids the bytes are digits, commas, spaces and a bracket: ASCII */
    v &= 0x8080808080808080;
    return v ? (unsigned)__builtin_ctzll(v) / 8 : 8;
}

void kvr_json_brief_ids(const char *p, size_t n, uint32_t *out)
{
    for (size_t i = 0; i < n; i++, p++) {
        if (*p == ' ') p++;
        if (i + 8 < n) { /* so many bytes are there */
            unsigned digits = digits_in(p);
            out[i] = number_of(p, digits);
            p += digits;
        } else {
            out[i] = 0;
        }
        for (; *p >= '0' && *p <= '9'; p++) out[i] = out[i] * 10 + (uint32_t)(*p - '0');
    }
}

/* ---- the pass ---------------------------------------------------------------------------------------- */

/* Members of a body that hold prompts: of all others every byte is read by somebody. */
static const struct large {
    const char *name;
    bool ids, texts; /* lists in it are ids; strings in it are read by those alone who read the prompt */
} large[] = {{"prompt", true, true},    {"input_ids", true, false}, {"nvext", true, false},
             {"messages", false, true}, {"input", false, true},     {"instructions", false, true},
             {"system", false, true},   {"text", false, true},      {"tools", false, true}};

enum { CUT_MIN = 64 /* bytes of a string or a list */, COPIED_MAX = 4096 /* and a half of what was passed */ };

struct pass {
    struct kvr_json_brief *out;
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
        if (strlen(large[i].name) == len && memcmp(large[i].name, name, len) == 0) return &large[i];
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
        p = kvr__json_fast.plain(p, w->end, ascii);
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
    if (may) e = kvr__json_fast.ids(first, w->end, &n);
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
    struct pass w = {.out = out, .wanted = wanted, .text = text, .p = text, .end = text + len, .from = text};
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
