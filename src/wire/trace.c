/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/trace.h"

#include "base/buf.h"
#include "wire/chat_writer.h"
#include "wire/json_text.h"

/* ---- texts ------------------------------------------------------------------------------------------- */

/* A member as a body has it, behind those before it. */
static void put_member(struct kvr_buf *b, const char *name, struct kvr_json_span v)
{
    if (!v.at) return;
    kvr_buf_printf(b, "%s\"%s\":", b->len ? "," : "", name);
    kvr_span_add(b, v);
}

static int take_text(const char *line, size_t len, struct kvr_trace_row *r, const char **why)
{
    enum { MESSAGES, TOOLS, ARGS, PROMPT, HASHES, ALL };
    static const char *const names[ALL] = {"messages", "tools", "chat_template_kwargs", "prompt", "hash_ids"};
    struct kvr_json_span v[ALL], whole = {kvr_json_text_space(line, line + len), line + len};
    struct kvr_buf b = {0};
    *why = "`messages`, `prompt` or another member is there twice";
    if (!kvr_json_text_pick(whole, names, ALL, v)) return -KVR_EFORMAT;
    *why = "allowed: one of `messages`, `prompt` and `hash_ids`";
    if ((v[MESSAGES].at != NULL) + (v[PROMPT].at != NULL) + (v[HASHES].at != NULL) != 1) return -KVR_EFORMAT;
    *why = "`messages` must be a list, and `prompt` a text";
    r->is_chat = v[MESSAGES].at != NULL;
    if (r->is_chat ? !kvr_span_is_list(v[MESSAGES]) : !kvr_span_is_string(v[PROMPT])) return -KVR_EFORMAT;
    for (int i = MESSAGES; i <= ARGS && r->is_chat; i++) put_member(&b, names[i], v[i]);
    if (!r->is_chat) put_member(&b, names[PROMPT], v[PROMPT]);
    *why = "out of memory";
    if (b.failed) kvr_buf_free(&b);
    r->text = b.data;
    r->text_len = b.len;
    return r->text ? 0 : -KVR_ENOMEM;
}

/* ---- lines ------------------------------------------------------------------------------------------- */

static bool read_output(struct kvr_json root, uint64_t *out)
{
    return kvr_json_as_u64(kvr_json_get(root, "output_length"), out) && *out <= KVR_TRACE_OUTPUT_MAX;
}

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
    if (kvr_json_has(root, "messages") || kvr_json_has(root, "prompt")) {
        *why = "`output_length` must be a whole number up to 16777216";
        if (!read_output(root, &r.output_length)) return -KVR_EFORMAT;
        rc = take_text(line, len, &r, why);
        if (rc == 0) *out = r;
        return rc;
    }
    *why = "`input_length` and `output_length` must be whole numbers, the second up to 16777216";
    if (!kvr_json_as_u64(kvr_json_get(root, "input_length"), &r.input_length) || !read_output(root, &r.output_length)) return -KVR_EFORMAT;
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
    free(r->text);
    r->ids = NULL;
    r->text = NULL;
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
