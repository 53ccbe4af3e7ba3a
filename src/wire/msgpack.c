/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/msgpack.h"

#include <msgpuck.h>

enum { DEPTH_MAX = 64 };

/* mp_check counts with an int, which a hostile length makes negative: it may stop early, so the elements are counted here
 * again. Nesting is bounded, because callers may recurse. */
static bool depth_is_sane(const char *p, const char *end)
{
    uint64_t left[DEPTH_MAX];
    int depth = 0;
    left[0] = 1;
    while (depth >= 0) {
        if (left[depth] == 0) {
            depth--;
            continue;
        }
        left[depth]--;
        if (p >= end) return false;
        uint64_t kids = 0;
        if (mp_typeof(*p) == MP_ARRAY) kids = mp_decode_array(&p);
        else if (mp_typeof(*p) == MP_MAP) kids = 2ull * mp_decode_map(&p);
        else mp_next(&p);
        if (kids == 0) continue;
        if (depth + 1 == DEPTH_MAX) return false;
        left[++depth] = kids;
    }
    return true;
}

bool kvr_msgpack_is_whole(const char *data, size_t len)
{
    const char *p = data, *end = data + len;
    return len && mp_check(&p, end) == 0 && p == end && depth_is_sane(data, end);
}
