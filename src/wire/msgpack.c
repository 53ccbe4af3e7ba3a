/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/msgpack.h"

#include <msgpuck.h>

enum { DEPTH_MAX = 64 };

/* A value whose size is not in its first byte, where *at stands: past all of it, or of an array or map past its head. */
static bool pass_long(const char **at, const char *end, int hint, uint64_t *elements)
{
    static const unsigned char sizes[] = {1, 2, 4, 2, 4, 2, 4, 1, 2, 4}; /* of the number behind the first byte, from MP_HINT_STR_8 on */
    const char *p = *at + 1;
    size_t size = sizes[MP_HINT_STR_8 - hint], kind = hint <= MP_HINT_EXT_8; /* the byte that says of which kind an extension is */
    if ((size_t)(end - p) < size + kind) return false;
    uint64_t n = size == 1 ? mp_load_u8(&p) : size == 2 ? mp_load_u16(&p) : mp_load_u32(&p);
    if (hint <= MP_HINT_ARRAY_16 && hint >= MP_HINT_MAP_32) {
        *elements = hint <= MP_HINT_MAP_16 ? 2 * n : n;
    } else {
        if (n + kind > (size_t)(end - p)) return false;
        p += n + kind;
    }
    *at = p;
    return true;
}

bool kvr_msgpack_pass(const char **at, const char *end)
{
    uint64_t outer[DEPTH_MAX], n = 1; /* elements that are still to come: further out, and here */
    const char *p = *at;
    size_t depth = 0;
    for (;;) {
        int hint = 0;
        for (; n && p < end && (hint = (int)mp_parser_hint[(unsigned char)*p]) >= 0; n--) {
            if (hint >= end - p) return false;
            p += 1 + hint;
        }
        if (n == 0 && depth == 0) break;
        if (n == 0) {
            n = outer[--depth];
            continue;
        }
        uint64_t elements = 0;
        if (p == end) return false;
        if (hint > MP_HINT) elements = (uint64_t)-hint, p++;
        else if (!pass_long(&p, end, hint, &elements)) return false;
        n--;
        if (elements == 0) continue;
        if (depth + 1 == DEPTH_MAX || elements > (uint64_t)(end - p)) return false;
        outer[depth++] = n;
        n = elements;
    }
    *at = p;
    return true;
}

bool kvr_msgpack_is_whole(const char *data, size_t len)
{
    const char *end = data + len;
    return kvr_msgpack_pass(&data, end) && data == end;
}
