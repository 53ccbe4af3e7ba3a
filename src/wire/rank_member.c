/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/rank_member.h"

#include <string.h>

#include "wire/json_text.h"

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
        if (!kvr_json_is_given(v)) continue;
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

/* Appends what is before `at`, and the rank in place of the null there. Returns: where to go on. */
static const char *put_rank(const char *from, const char *at, const char *end, uint32_t rank, struct kvr_buf *out)
{
    kvr_buf_add(out, from, (size_t)(at - from));
    kvr_buf_printf(out, "%u", rank);
    return kvr_json_text_end(at, end);
}

void kvr_rank_member_splice(const char *body, size_t len, const struct kvr_rank_member *has, uint32_t rank, struct kvr_buf *out)
{
    const char *brace = body + trimmed(body, len) - 1, *from = body, *object = kvr_json_text_space(body, brace), *nulls[2];
    bool comma = body[trimmed(body, (size_t)(brace - body)) - 1] != '{';
    for (int i = 0; i < 2; i++) nulls[i] = has->has[i] ? NULL : kvr_json_text_member(object, brace, names[i]);
    int first = nulls[0] && nulls[1] && nulls[1] < nulls[0];
    for (int i = 0; i < 2; i++)
        if (nulls[i ^ first]) from = put_rank(from, nulls[i ^ first], brace, rank, out);
    kvr_buf_add(out, from, (size_t)(brace - from));
    for (int i = 0; i < 2; i++) {
        if (has->has[i] || nulls[i]) continue;
        kvr_buf_printf(out, "%s\"%s\":%u", comma ? "," : "", names[i], rank);
        comma = true;
    }
    kvr_buf_add(out, brace, len - (size_t)(brace - body));
}
