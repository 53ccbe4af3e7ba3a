/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/json_text.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

const char *kvr_json_text_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n')) p++;
    return p;
}

static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++)
        if (*p == '\\') p++;
    return p < end ? p + 1 : end;
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

const char *kvr_json_text_member(const char *p, const char *end, const char *name)
{
    const char *found = NULL;
    size_t len = strlen(name);
    if (p >= end || *p != '{') return NULL;
    for (p = kvr_json_text_space(p + 1, end); p < end && *p == '"';) {
        const char *key = p + 1;
        p = skip_string(p, end);
        bool match = (size_t)(p - key) == len + 1 && memcmp(key, name, len) == 0;
        p = kvr_json_text_space(p, end);
        if (p < end) p = kvr_json_text_space(p + 1, end); /* the colon */
        if (match && found) return NULL;
        if (match) found = p;
        p = kvr_json_text_space(kvr_json_text_end(p, end), end);
        if (p < end && *p == ',') p = kvr_json_text_space(p + 1, end);
    }
    return found;
}
