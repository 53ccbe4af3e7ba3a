/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the byte range of a value in a text that is known to be JSON (wire/json_text.h). */
#include "wire/json_text.h"

#include <string.h>

const char *kvr_json_text_space(const char *p, const char *end)
{
    static const char mark[] = "\xef\xbb\xbf";
    if (end - p >= 3 && memcmp(p, mark, 3) == 0) p += 3;
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n')) p++;
    return p;
}

/* A quote ends the string unless an odd number of backslashes is before it. Prompts are long: what is between quotes is not looked at. */
static const char *skip_string(const char *p, const char *end)
{
    const char *from = ++p, *quote;
    for (; p < end && (quote = memchr(p, '"', (size_t)(end - p))); p = quote + 1) {
        const char *first = quote;
        while (first > from && first[-1] == '\\') first--;
        if ((quote - first) % 2 == 0) return quote + 1;
    }
    return end;
}

enum { STRETCH = 64 };

/* Neither a bracket nor a quote: numbers, as of a prompt's tokens. A loop without branches, which compilers make wide. */
static bool is_plain(const char p[STRETCH])
{
    unsigned char any = 0;
    for (int i = 0; i < STRETCH; i++) any |= (unsigned char)((p[i] & 0x40) | (p[i] == '"')); /* all brackets have that bit */
    return !any;
}

static const char *skip_plain(const char *p, const char *end)
{
    while (end - p >= STRETCH && is_plain(p)) p += STRETCH;
    return p;
}

const char *kvr_json_text_end(const char *p, const char *end)
{
    size_t depth = 0;
    const char *again = p; /* from where on it is worth a try to skip a stretch */
    if (p < end && *p == '"') return skip_string(p, end);
    while (p < end) {
        if (depth && p >= again) again = (p = skip_plain(p, end)) + STRETCH;
        if (p >= end) break;
        if (*p == '"') {
            p = skip_string(p, end);
            continue;
        }
        if (*p == '{' || *p == '[') depth++;
        if (*p == '}' || *p == ']') {
            if (depth == 0) return p;
            if (--depth == 0) return p + 1;
        }
        if (depth == 0 && (*p == ',' || strchr(" \t\r\n", *p))) return p;
        p++;
    }
    return end;
}

/* At what follows an opening bracket or a comma; NULL at the end. */
static const char *next_place(const char *p, const char *end, const char *brackets)
{
    p = kvr_json_text_space(p, end);
    if (p >= end || (*p != brackets[0] && *p != ',')) return NULL;
    p = kvr_json_text_space(p + 1, end);
    return p < end && *p != brackets[1] ? p : NULL;
}

bool kvr_json_text_next(const char **p, const char *end, struct kvr_json_text_pair *out)
{
    const char *at = next_place(*p, end, "{}");
    if (!at || *at != '"') return false;
    out->key = at + 1;
    at = skip_string(at, end);
    if (at == out->key) return false; /* a quote that ends the text */
    out->key_len = (size_t)(at - out->key) - 1;
    at = kvr_json_text_space(at, end);
    if (at < end) at = kvr_json_text_space(at + 1, end); /* the colon */
    out->value = (struct kvr_json_span){at, kvr_json_text_end(at, end)};
    *p = out->value.end;
    return true;
}

bool kvr_json_text_item(const char **p, const char *end, struct kvr_json_span *out)
{
    const char *at = next_place(*p, end, "[]");
    if (!at) return false;
    *out = (struct kvr_json_span){at, kvr_json_text_end(at, end)};
    *p = out->end;
    return true;
}

const char *kvr_json_text_member(const char *p, const char *end, const char *name)
{
    const char *found = NULL;
    size_t len = strlen(name);
    struct kvr_json_text_pair m;
    while (kvr_json_text_next(&p, end, &m)) {
        if (m.key_len != len || memcmp(m.key, name, len) != 0) continue;
        if (found) return NULL;
        found = m.value.at;
    }
    return found;
}

/* The four digits of \\u; -1: they are none. */
static int hex4(const char *p, const char *end)
{
    int code = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = p[i] ? strchr(digits, p[i] | ('A' <= p[i] && p[i] <= 'F' ? 0x20 : 0)) : NULL;
        if (!digit) return -1;
        code = code * 16 + (int)(digit - digits);
    }
    return code;
}

/* What the escape, or the byte, at *p stands for; *p is moved past it. -1: not told here, since no ASCII character is written so. */
static int next_character(const char **p, const char *end)
{
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    int c = (unsigned char)*(*p)++;
    if (c != '\\') return c;
    if (*p >= end) return -1;
    char which = *(*p)++;
    if (which == 'u') {
        c = hex4(*p, end);
        *p = c < 0 ? end : *p + 4;
        return c > 0x7f ? -1 : c;
    }
    const char *at = which ? strchr(escapes, which) : NULL;
    return at ? meant[at - escapes] : -1;
}

bool kvr_json_text_named(const struct kvr_json_text_pair *m, const char *name)
{
    const char *p = m->key, *end = m->key + m->key_len;
    for (; *name; name++)
        if (p >= end || next_character(&p, end) != (unsigned char)*name) return false;
    return p == end;
}

struct kvr_json_span kvr_json_text_last(struct kvr_json_span object, const char *name)
{
    struct kvr_json_span found = {NULL, NULL};
    struct kvr_json_text_pair m;
    for (const char *p = object.at; p && kvr_json_text_next(&p, object.end, &m);)
        if (kvr_json_text_named(&m, name)) found = m.value;
    return found;
}

bool kvr_json_span_is(struct kvr_json_span v, const char *text)
{
    size_t len = strlen(text);
    return v.at && (size_t)(v.end - v.at) == len && memcmp(v.at, text, len) == 0;
}

bool kvr_json_text_pick(struct kvr_json_span object, const char *const *names, size_t n, struct kvr_json_span *out)
{
    struct kvr_json_text_pair m;
    const char *p = object.at;
    memset(out, 0, n * sizeof *out);
    while (p && kvr_json_text_next(&p, object.end, &m)) {
        if (memchr(m.key, '\\', m.key_len)) return false;
        for (size_t i = 0; i < n; i++) {
            if (strlen(names[i]) != m.key_len || memcmp(names[i], m.key, m.key_len) != 0) continue;
            if (out[i].at) return false;
            out[i] = m.value;
        }
    }
    for (size_t i = 0; i < n; i++)
        if (kvr_json_span_is(out[i], "null")) out[i] = (struct kvr_json_span){NULL, NULL};
    return true;
}
