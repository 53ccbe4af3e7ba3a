/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which data-parallel rank a request asks for, and how the rank that was chosen reaches an engine that has several: as the header
 * X-data-parallel-rank (data/request/attempt.c), and in the body of those engines that read it there. Load is booked on the rank that is
 * sent.
 */
#include "app/serve/workers/table/rank.h"

#include <string.h>

#include "app/serve/workers/table/room.h"

static const char *const engines[] = {"vllm", "sglang"};

bool engine_kind_parse(const char *name, enum engine_kind *out)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(engines); i++)
        if (strcmp(name, engines[i]) == 0) {
            *out = (enum engine_kind)i;
            return true;
        }
    return false;
}

const char *engine_kind_name(enum engine_kind kind)
{
    return engines[kind];
}

bool rank_is_named_locked(const struct worker *w)
{
    return w->dp_size > 1 || w->learnt.names_rank || w->shares_engine;
}

struct kvr_body *rank_body(const struct worker *w, struct kvr_body *body, const struct kvr_rank_member *has, uint32_t rank)
{
    if (w->engine != ENGINE_SGLANG || w->dp_size < 2 || !has || (has->has[0] && has->has[1])) return kvr_body_ref(body);
    struct kvr_buf b = {0};
    kvr_rank_member_splice(body->data, body->len, has, rank, &b);
    struct kvr_body *spliced = kvr_body_derive(body, &b);
    kvr_buf_free(&b);
    return spliced;
}
