/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data-parallel rank in a request body. SGLang reads it there: as `routed_dp_rank`, in older versions as
 * `data_parallel_rank`; where it reads both, the first wins. vLLM reads the header X-data-parallel-rank instead.
 * Threads: pure functions.
 */
#ifndef KVR_WIRE_RANK_MEMBER_H
#define KVR_WIRE_RANK_MEMBER_H

#include "base/buf.h"
#include "wire/json.h"

struct kvr_rank_member {
    bool given;
    uint32_t rank;
    bool has[2]; /* data_parallel_rank, routed_dp_rank: there, and not null */
};

/* Reads both from a body's object. Returns: NULL, or what is wrong, a sentence for the client (static). */
const char *kvr_rank_member_read(struct kvr_json body, struct kvr_rank_member *out);

/* Appends body[len], which must be one valid JSON object, with those of the two members that it does not have at its end, and those
 * that are null with the rank in their place. All other bytes stay as they are. */
void kvr_rank_member_splice(const char *body, size_t len, const struct kvr_rank_member *has, uint32_t rank, struct kvr_buf *out);

#endif
