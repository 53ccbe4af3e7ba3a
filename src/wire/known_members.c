/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/known_members.h"

#include <stdio.h>

#include "base/base.h"
#include "base/nearest.h"

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

void kvr_unknown_member_say(const char *name, const char *const *const *lists, size_t lists_n, char *out, size_t cap)
{
    struct kvr_nearest near = {.wanted = name};
    size_t at = 0;
    for (size_t i = 0; i < lists_n; i++)
        for (const char *const *k = lists[i]; *k; k++) kvr_nearest_offer(&near, *k);
    int n = snprintf(out, cap, "unknown member '%s'; ", name);
    at = KVR_MIN((size_t)KVR_MAX(n, 0), cap - 1);
    if (near.best) {
        snprintf(out + at, cap - at, "did you mean '%s'?", near.best);
        return;
    }
    n = snprintf(out + at, cap - at, "allowed:");
    for (size_t i = 0; i < lists_n; i++)
        for (const char *const *k = lists[i]; *k; k++) {
            at = KVR_MIN(at + (size_t)KVR_MAX(n, 0), cap - 1);
            n = snprintf(out + at, cap - at, "%s %s", i || k != lists[0] ? "," : "", *k);
        }
}
