/* SPDX-License-Identifier: Apache-2.0 */
/* Members of bodies of the admin port: absent or null changes nothing, anything of another type or size is named. */
#include "app/serve/common/members.h"

#include <string.h>

bool member_u64(struct kvr_json o, const char *key, uint64_t max, uint64_t *out, const char **bad)
{
    struct kvr_json v = kvr_json_get(o, key);
    if (!kvr_json_is_given(v)) return true;
    if (kvr_json_as_u64(v, out) && *out <= max) return true;
    *bad = key;
    return false;
}

bool member_double(struct kvr_json o, const char *key, double min, double max, double *out, const char **bad)
{
    struct kvr_json v = kvr_json_get(o, key);
    double d;
    if (!kvr_json_is_given(v)) return true;
    if (kvr_json_as_double(v, &d) && d >= min && d <= max) {
        *out = d;
        return true;
    }
    *bad = key;
    return false;
}

bool member_bool(struct kvr_json o, const char *key, bool *out, const char **bad)
{
    struct kvr_json v = kvr_json_get(o, key);
    if (!kvr_json_is_given(v) || kvr_json_as_bool(v, out)) return true;
    *bad = key;
    return false;
}

bool member_text(struct kvr_json o, const char *key, char *out, size_t cap, const char **bad)
{
    const char *s;
    size_t len;
    struct kvr_json v = kvr_json_get(o, key);
    if (!kvr_json_is_given(v)) return true;
    if (kvr_json_as_name(v, &s, &len) && len < cap) {
        memcpy(out, s, len);
        out[len] = 0;
        return true;
    }
    *bad = key;
    return false;
}
