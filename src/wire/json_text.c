/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the byte range of a value in a text that is known to be JSON (wire/json_text.h). */
#include "wire/json_text.h"

#include <string.h>

const char *kvr_json_text_space(const char *p, const char *end)
{
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

const char *kvr_json_text_end(const char *p, const char *end)
{
    size_t depth = 0;
    if (p < end && *p == '"') return skip_string(p, end);
    while (p < end) {
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
