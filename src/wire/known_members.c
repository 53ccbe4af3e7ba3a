/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/known_members.h"

#include <stdio.h>

#include "base/base.h"

struct search {
    const char *const *const *lists;
    size_t lists_n;
    struct kvr_unknown_members *out;
};

static int look_at(void *ctx, const char *key, size_t len, struct kvr_json v)
{
    struct search *s = ctx;
    (void)v;
    for (size_t i = 0; i < s->lists_n; i++)
        for (const char *const *k = s->lists[i]; *k; k++)
            if (strlen(*k) == len && memcmp(*k, key, len) == 0) return 0;
    if (s->out->n < KVR_UNKNOWN_MAX)
        snprintf(s->out->names[s->out->n++], KVR_UNKNOWN_NAME_MAX, "%.*s", (int)KVR_MIN(len, (size_t)KVR_UNKNOWN_NAME_MAX - 1), key);
    return 0;
}

void kvr_unknown_members(struct kvr_json o, const char *const *const *lists, size_t lists_n, struct kvr_unknown_members *out)
{
    struct search s = {lists, lists_n, out};
    out->n = 0;
    if (kvr_json_type_of(o) == KVR_JSON_OBJECT) (void)kvr_json_each(o, look_at, &s);
}

/* Characters to insert, remove or replace (Levenshtein), one row of the table at a time. Both are shorter than KVR_UNKNOWN_NAME_MAX. */
static size_t distance(const char *a, const char *b)
{
    size_t row[KVR_UNKNOWN_NAME_MAX], m = strlen(b);
    for (size_t k = 0; k <= m; k++) row[k] = k;
    for (size_t i = 0; a[i]; i++) {
        size_t corner = row[0];
        row[0] = i + 1;
        for (size_t k = 0; k < m; k++) {
            size_t replaced = corner + (a[i] != b[k]);
            corner = row[k + 1];
            row[k + 1] = KVR_MIN(replaced, KVR_MIN(row[k], corner) + 1);
        }
    }
    return row[m];
}

void kvr_unknown_member_say(const char *name, const char *const *const *lists, size_t lists_n, char *out, size_t cap)
{
    const char *nearest = NULL;
    size_t least = strlen(name) / 2 + 1, at = 0;
    for (size_t i = 0; i < lists_n; i++)
        for (const char *const *k = lists[i]; *k; k++) {
            size_t d = strlen(*k) < KVR_UNKNOWN_NAME_MAX ? distance(name, *k) : least;
            if (d < least) least = d, nearest = *k;
        }
    int n = snprintf(out, cap, "unknown member '%s'; ", name);
    at = KVR_MIN((size_t)KVR_MAX(n, 0), cap - 1);
    if (nearest) {
        snprintf(out + at, cap - at, "did you mean '%s'?", nearest);
        return;
    }
    n = snprintf(out + at, cap - at, "allowed:");
    for (size_t i = 0; i < lists_n; i++)
        for (const char *const *k = lists[i]; *k; k++) {
            at = KVR_MIN(at + (size_t)KVR_MAX(n, 0), cap - 1);
            n = snprintf(out + at, cap - at, "%s %s", i || k != lists[0] ? "," : "", *k);
        }
}
