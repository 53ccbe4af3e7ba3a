/* SPDX-License-Identifier: Apache-2.0 */
/* A failed allocation is remembered in the buffer and makes later calls do nothing; base/buf.h has the rules. */
#include "base/buf.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

int kvr_buf_reserve(struct kvr_buf *b, size_t more)
{
    if (b->failed) return -KVR_ENOMEM;
    if (more <= b->cap - b->len) return 0;
    size_t cap = b->cap ? b->cap : 256;
    while (cap - b->len < more) {
        if (cap > SIZE_MAX / 2) {
            b->failed = true;
            return -KVR_ENOMEM;
        }
        cap *= 2;
    }
    char *p = realloc(b->data, cap);
    if (!p) {
        b->failed = true;
        return -KVR_ENOMEM;
    }
    b->data = p;
    b->cap = cap;
    return 0;
}

void kvr_buf_printf(struct kvr_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    size_t room = b->failed ? 0 : b->cap - b->len;
    int n = vsnprintf(room ? b->data + b->len : NULL, room, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < room) {
        b->len += (size_t)n;
    } else if (n >= 0 && kvr_buf_reserve(b, (size_t)n + 1) == 0) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void kvr_buf_reset(struct kvr_buf *b)
{
    b->len = 0;
    b->failed = b->comma = false;
}

void kvr_buf_free(struct kvr_buf *b)
{
    free(b->data);
    *b = (struct kvr_buf){0};
}

static void json_sep(struct kvr_buf *b)
{
    if (b->comma) kvr_buf_add(b, ",", 1);
    b->comma = true;
}

void kvr_json_open(struct kvr_buf *b, char bracket)
{
    json_sep(b);
    kvr_buf_add(b, &bracket, 1);
    b->comma = false;
}

void kvr_json_close(struct kvr_buf *b, char bracket)
{
    kvr_buf_add(b, &bracket, 1);
    b->comma = true;
}

void kvr_json_key(struct kvr_buf *b, const char *key)
{
    size_t n = strlen(key), c = b->comma;
    if (kvr_buf_reserve(b, n + 4)) return;
    char *p = b->data + b->len;
    if (c) *p++ = ',';
    *p++ = '"';
    memcpy(p, key, n);
    memcpy(p + n, "\":", 2);
    b->len += n + 3 + c;
    b->comma = false;
}

enum { DIGITS = 20 };

/* Writes v to the end of text[DIGITS]; returns where it begins. Answers are mostly numbers, so this is no printf. */
static char *digits(char *text, uint64_t v)
{
    char *p = text + DIGITS;
    do *--p = (char)('0' + v % 10);
    while (v /= 10);
    return p;
}

void kvr_buf_u64(struct kvr_buf *b, uint64_t v)
{
    char text[DIGITS], *p = digits(text, v);
    kvr_buf_add(b, p, (size_t)(text + DIGITS - p));
}

void kvr_json_u64(struct kvr_buf *b, uint64_t v)
{
    char text[DIGITS], *p = digits(text, v);
    size_t n = (size_t)(text + DIGITS - p), c = b->comma;
    if (kvr_buf_reserve(b, n + 1)) return;
    if (c) b->data[b->len++] = ',';
    memcpy(b->data + b->len, p, n);
    b->len += n;
    b->comma = true;
}

void kvr_json_key_u64(struct kvr_buf *b, uint64_t key)
{
    char text[DIGITS + 1], *p = digits(text, key);
    text[DIGITS] = 0;
    kvr_json_key(b, p);
}

void kvr_json_i64(struct kvr_buf *b, int64_t v)
{
    json_sep(b);
    kvr_buf_printf(b, "%" PRId64, v);
}

void kvr_json_double(struct kvr_buf *b, double v)
{
    json_sep(b);
    if (isfinite(v)) kvr_buf_printf(b, "%.10g", v);
    else kvr_buf_str(b, "null");
}

void kvr_json_bool(struct kvr_buf *b, bool v)
{
    json_sep(b);
    kvr_buf_str(b, v ? "true" : "false");
}

void kvr_json_null(struct kvr_buf *b)
{
    json_sep(b);
    kvr_buf_str(b, "null");
}

void kvr_json_u32s(struct kvr_buf *b, const uint32_t *v, size_t n)
{
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) kvr_json_u64(b, v[i]);
    kvr_json_close(b, ']');
}

void kvr_json_u64s(struct kvr_buf *b, const uint64_t *v, size_t n)
{
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) kvr_json_u64(b, v[i]);
    kvr_json_close(b, ']');
}

/* Length of the valid UTF-8 sequence at s, or 0. */
static size_t utf8_len(const unsigned char *s, size_t n)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {{0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    if (s[0] < 0x80) return 1;
    for (size_t k = 0; k < 3; k++) {
        if ((s[0] & forms[k].mask) != forms[k].lead) continue;
        uint32_t cp = s[0] & (unsigned char)~forms[k].mask;
        if (n < k + 2) return 0;
        for (size_t i = 1; i <= k + 1; i++) {
            if ((s[i] & 0xc0) != 0x80) return 0;
            cp = cp << 6 | (s[i] & 0x3f);
        }
        bool surrogate = cp >= 0xd800 && cp < 0xe000;
        return cp >= forms[k].least && cp <= 0x10ffff && !surrogate ? k + 2 : 0;
    }
    return 0;
}

size_t kvr_json_plain(const char *s, size_t len)
{
    size_t n = 0;
    while (n < len && s[n] >= ' ' && s[n] <= '~' && s[n] != '"' && s[n] != '\\') n++;
    return n;
}

/* The character at s, which is not plain. Returns: its bytes. */
static size_t put_special(struct kvr_buf *b, const unsigned char *s, size_t len)
{
    size_t k = utf8_len(s, len);
    if (k == 0) kvr_buf_str(b, "\xef\xbf\xbd");
    else if (*s == '"' || *s == '\\') kvr_buf_printf(b, "\\%c", *s);
    else if (*s == '\n') kvr_buf_str(b, "\\n");
    else if (*s < 0x20) kvr_buf_printf(b, "\\u%04x", *s);
    else kvr_buf_add(b, s, k);
    return k ? k : 1;
}

void kvr_json_str(struct kvr_buf *b, const char *s, size_t len)
{
    json_sep(b);
    kvr_buf_add(b, "\"", 1);
    for (size_t i = 0; i < len;) {
        size_t k = kvr_json_plain(s + i, len - i);
        kvr_buf_add(b, s + i, k);
        i += k;
        if (i < len) i += put_special(b, (const unsigned char *)s + i, len - i);
    }
    kvr_buf_add(b, "\"", 1);
}

void kvr_json_put_double(struct kvr_buf *b, const char *key, double v)
{
    kvr_json_key(b, key);
    kvr_json_double(b, v);
}

void kvr_json_put_u64(struct kvr_buf *b, const char *key, uint64_t v)
{
    kvr_json_key(b, key);
    kvr_json_u64(b, v);
}

void kvr_json_put_str(struct kvr_buf *b, const char *key, const char *v)
{
    kvr_json_key(b, key);
    kvr_json_str(b, v, strlen(v));
}

void kvr_json_put_moment(struct kvr_buf *b, const char *key, int64_t seconds)
{
    char text[32] = "";
    time_t t = (time_t)seconds;
    struct tm tm;
    if (gmtime_r(&t, &tm)) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    kvr_json_put_str(b, key, text);
}

/* f: what is behind the percent sign. Returns: the rest. */
static const char *put_value(struct kvr_buf *b, const char *f, va_list *args)
{
    const char *s;
    int n;
    b->comma = false;
    switch (*f++) {
    case 's':
    case 'p':
        s = va_arg(*args, const char *);
        if (s) kvr_json_str(b, s, strlen(s));
        else kvr_json_null(b);
        return f;
    case '.':
        n = va_arg(*args, int);
        s = va_arg(*args, const char *);
        kvr_json_str(b, s, (size_t)n);
        return f + 2;
    case 'i': kvr_json_bool(b, va_arg(*args, int)); return f;
    case 'g': kvr_json_double(b, va_arg(*args, double)); return f;
    case 'u': kvr_buf_u64(b, va_arg(*args, unsigned)); return f;
    case 'z': kvr_buf_u64(b, va_arg(*args, size_t)); return f + 1;
    case 'j':
        if (*f == 'x') kvr_buf_printf(b, "%jx", va_arg(*args, uintmax_t));
        else kvr_buf_u64(b, va_arg(*args, uintmax_t));
        return f + 1;
    default: KVR_ASSERT(false); return f;
    }
}

void kvr_json_printf(struct kvr_buf *b, const char *format, ...)
{
    va_list args;
    const char *f = format;
    if (b->comma && *f != '}' && *f != ']') kvr_buf_add(b, ",", 1);
    va_start(args, format);
    while (*f) {
        size_t n = strcspn(f, "%'");
        kvr_buf_add(b, f, n);
        f += n;
        if (*f == '\'') kvr_buf_add(b, "\"", 1), f++;
        else if (*f) f = put_value(b, f + 1, &args);
    }
    va_end(args);
    b->comma = *format && !strchr("{[:,", f[-1]);
}
