/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/trace.h"

int kvr_trace_parse(struct kvr_json_parser *p, const char *line, size_t len, struct kvr_trace_row *out, const char **why)
{
    struct kvr_json root, ids;
    struct kvr_trace_row r = {0};
    double ts;
    *why = "the line is not valid JSON";
    int rc = kvr_json_parse(p, line, len, &root, NULL);
    if (rc == -KVR_ENOMEM) *why = "out of memory";
    if (rc) return rc;
    *why = "`timestamp` must be a number of milliseconds";
    if (!kvr_json_as_double(kvr_json_get(root, "timestamp"), &ts) || ts < 0 || ts > 1e15) return -KVR_EFORMAT;
    r.timestamp_ms = (uint64_t)ts;
    *why = "`input_length` and `output_length` must be whole numbers";
    if (!kvr_json_as_u64(kvr_json_get(root, "input_length"), &r.input_length) ||
        !kvr_json_as_u64(kvr_json_get(root, "output_length"), &r.output_length))
        return -KVR_EFORMAT;
    ids = kvr_json_get(root, "hash_ids");
    r.ids_n = kvr_json_count(ids);
    *why = "`hash_ids` must have one id per 512 tokens of input";
    if (kvr_json_type_of(ids) != KVR_JSON_ARRAY || r.ids_n > KVR_TRACE_IDS_MAX || r.input_length > r.ids_n * KVR_TRACE_BLOCK ||
        r.input_length == 0)
        return -KVR_EFORMAT;
    r.ids = malloc(r.ids_n * sizeof *r.ids);
    if (!r.ids) return -KVR_ENOMEM;
    if (kvr_json_u64_array(ids, r.ids, r.ids_n) < 0) {
        free(r.ids);
        return -KVR_EFORMAT;
    }
    *out = r;
    return 0;
}

void kvr_trace_row_free(struct kvr_trace_row *r)
{
    free(r->ids);
    r->ids = NULL;
}

uint32_t kvr_trace_token(uint64_t hash, uint32_t vocab)
{
    uint32_t first = vocab > 2 * KVR_TRACE_SPECIAL ? KVR_TRACE_SPECIAL : 0;
    return first + (uint32_t)(hash % (vocab - first));
}

void kvr_trace_expand(const struct kvr_trace_row *r, uint32_t vocab, uint32_t *tokens)
{
    for (uint64_t i = 0; i < r->input_length; i++) {
        uint64_t id = r->ids[i / KVR_TRACE_BLOCK], at = i % KVR_TRACE_BLOCK;
        tokens[i] = kvr_trace_token(kvr_mix64(id * KVR_TRACE_BLOCK + at + 1), vocab);
    }
}
