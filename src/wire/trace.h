/* SPDX-License-Identifier: Apache-2.0 */
/* Mooncake trace lines: {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}, one id per 512
 * tokens, ceil(input_length / 512) of them; equal ids mean equal prefixes. */
#ifndef KVR_WIRE_TRACE_H
#define KVR_WIRE_TRACE_H

#include "base/base.h"
#include "wire/json.h"

enum { KVR_TRACE_BLOCK = 512, KVR_TRACE_IDS_MAX = 1 << 16 };

struct kvr_trace_row {
    uint64_t timestamp_ms, input_length, output_length;
    uint64_t *ids; /* owned by the caller, kvr_trace_row_free */
    size_t ids_n;
};

/* Returns: 0, or -KVR_EFORMAT with a static text, -KVR_ENOMEM. */
int kvr_trace_parse(struct kvr_json_parser *p, const char *line, size_t len, struct kvr_trace_row *out, const char **why);
void kvr_trace_row_free(struct kvr_trace_row *r);

/* Expands a row to input_length tokens: id and place decide each token, so equal ids give equal tokens.
 * tokens[input_length] is written; every token is in [1000, 1000 + vocab). */
void kvr_trace_expand(const struct kvr_trace_row *r, uint32_t vocab, uint32_t *tokens);

#endif
