/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/known_members.h"

#include <stdio.h>

#include "base/base.h"
#include "base/nearest.h"

static bool is_known(const char *key, size_t len, const char *const *const *lists, size_t lists_n)
{
    for (size_t i = 0; i < lists_n; i++)
        for (const char *const *k = lists[i]; *k; k++)
            if (kvr_span_is(key, len, *k)) return true;
    return false;
}

void kvr_unknown_members(struct kvr_json o, const char *const *const *lists, size_t lists_n, struct kvr_unknown_members *out)
{
    out->n = 0;
    if (kvr_json_type_of(o) != KVR_JSON_OBJECT) return;
    for (struct kvr_json_iter i = kvr_json_iter(o); out->n < KVR_UNKNOWN_MAX && kvr_json_next(&i);)
        if (!is_known(i.key, i.key_len, lists, lists_n))
            snprintf(out->names[out->n++], KVR_UNKNOWN_NAME_MAX, "%.*s", (int)KVR_MIN(i.key_len, (size_t)KVR_UNKNOWN_NAME_MAX - 1), i.key);
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
