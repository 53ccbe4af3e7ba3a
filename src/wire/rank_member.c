/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/rank_member.h"

#include <string.h>

static const char *const names[2] = {"data_parallel_rank", "routed_dp_rank"};

const char *kvr_rank_member_read(struct kvr_json body, struct kvr_rank_member *out)
{
    struct kvr_json members[2];
    memset(out, 0, sizeof *out);
    int again = kvr_json_pick(body, names, 2, members);
    if (again >= 0) return again ? "`routed_dp_rank` is given more than once" : "`data_parallel_rank` is given more than once";
    for (int i = 0; i < 2; i++) {
        struct kvr_json v = members[i];
        uint64_t rank;
        if (kvr_json_type_of(v) <= KVR_JSON_NULL) continue;
        if (!kvr_json_as_u64(v, &rank) || rank > UINT32_MAX)
            return i ? "`routed_dp_rank` must be a whole number from 0 to 4294967295"
                     : "`data_parallel_rank` must be a whole number from 0 to 4294967295";
        if (out->given && rank != out->rank) return "`data_parallel_rank` and `routed_dp_rank` are different ranks; give one, or the same";
        *out = (struct kvr_rank_member){.given = true, .rank = (uint32_t)rank, .has = {out->has[0], out->has[1]}};
        out->has[i] = true;
    }
    return NULL;
}

static size_t trimmed(const char *body, size_t len)
{
    while (len && (body[len - 1] == ' ' || body[len - 1] == '\t' || body[len - 1] == '\r' || body[len - 1] == '\n')) len--;
    return len;
}

void kvr_rank_member_splice(const char *body, size_t len, const struct kvr_rank_member *has, uint32_t rank, struct kvr_buf *out)
{
    size_t end = trimmed(body, len) - 1; /* the closing brace */
    bool comma = body[trimmed(body, end) - 1] != '{';
    kvr_buf_add(out, body, end);
    for (int i = 0; i < 2; i++) {
        if (has->has[i]) continue;
        kvr_buf_printf(out, "%s\"%s\":%u", comma ? "," : "", names[i], rank);
        comma = true;
    }
    kvr_buf_add(out, body + end, len - end);
}
