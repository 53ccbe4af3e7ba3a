/* SPDX-License-Identifier: Apache-2.0 */
/* A client's body makes bodies that are JSON, with the protocol's members and without what the client said of a transfer; an answer of
 * any bytes is read, or is not, and what is taken from it is JSON too. */
#include <string.h>

#include "wire/handoff.h"
#include "wire/json.h"

static struct kvr_json_parser *parser;

static bool is(struct kvr_json v, enum kvr_json_type type)
{
    return kvr_json_type_of(v) == type;
}

static bool is_object(const char *s, size_t len, struct kvr_json *root)
{
    return kvr_json_parse(parser, s, len, root, NULL) == 0 && is(*root, KVR_JSON_OBJECT);
}

static void check_members(struct kvr_json root, enum kvr_kv_protocol p)
{
    bool nixl = p == KVR_KV_VLLM_NIXL || p == KVR_KV_VLLM_NIXL_PUSH || p == KVR_KV_VLLM_MOONCAKE;
    KVR_ASSERT(is(kvr_json_get(root, "kv_transfer_params"), nixl ? KVR_JSON_OBJECT : KVR_JSON_NONE));
    KVR_ASSERT(is(kvr_json_get(root, "disaggregated_params"), p == KVR_KV_TRTLLM ? KVR_JSON_OBJECT : KVR_JSON_NONE));
    KVR_ASSERT(is(kvr_json_get(root, "bootstrap_room"), p == KVR_KV_SGLANG ? KVR_JSON_INT : KVR_JSON_NONE));
    KVR_ASSERT(is(kvr_json_get(root, "bootstrap_pair_key"), KVR_JSON_NONE));
    KVR_ASSERT(is(kvr_json_get(kvr_json_get(root, "vllm_xargs"), "kv_transfer_params"), KVR_JSON_NONE));
}

static void check_body(const struct kvr_buf *b, enum kvr_kv_protocol p, bool one_token)
{
    struct kvr_json root;
    bool stream = true;
    uint64_t n = 0;
    KVR_ASSERT(!b->failed && is_object(b->data, b->len, &root));
    check_members(root, p);
    if (!one_token) return;
    KVR_ASSERT(kvr_json_as_bool(kvr_json_get(root, "stream"), &stream) && !stream);
    KVR_ASSERT(p == KVR_KV_SGLANG || (kvr_json_as_u64(kvr_json_get(root, "max_tokens"), &n) && n == 1));
}

static void make_bodies(struct kvr_json_span body)
{
    static const uint64_t room = INT64_MAX;
    static const char object[] = "{\"ctx_request_id\":1}", ids[] = "[1]";
    struct kvr_handoff h = {.object = {object, object + sizeof object - 1}, .prompt_token_ids = {ids, ids + 3}};
    for (unsigned p = 0; p < KVR_KV_PROTOCOLS; p++) {
        struct kvr_handoff_leg leg = {.protocol = p, .id = "i", .host = "h", .port = 1, .engine_id = "e", .rooms = &room, .rooms_n = 1};
        struct kvr_buf out = {0};
        KVR_ASSERT(kvr_handoff_prefill_body(&leg, body, &out));
        check_body(&out, p, true);
        out.len = 0;
        KVR_ASSERT(kvr_handoff_decode_body(&leg, body, &h, &out));
        check_body(&out, p, false);
        kvr_buf_free(&out);
    }
}

static void strip(struct kvr_json_span body)
{
    struct kvr_buf out = {0};
    bool changed, again;
    KVR_ASSERT(kvr_handoff_strip(body, &out, &changed));
    KVR_ASSERT(changed ? out.len < (size_t)(body.end - body.at) : out.len == 0);
    if (changed) {
        struct kvr_buf twice = {0};
        KVR_ASSERT(kvr_handoff_strip((struct kvr_json_span){out.data, out.data + out.len}, &twice, &again) && !again);
        check_body(&out, KVR_KV_NONE, false);
        kvr_buf_free(&twice);
    }
    kvr_buf_free(&out);
}

static void check_events(const struct kvr_buf *b)
{
    struct kvr_json root;
    const char *p = b->data, *end = b->data + b->len, *line;
    for (; (line = memchr(p, '\n', (size_t)(end - p))); p = line + 2) {
        KVR_ASSERT(line[1] == '\n' && memcmp(p, "data: ", 6) == 0);
        KVR_ASSERT(is_object(p + 6, (size_t)(line - p) - 6, &root) || memcmp(p + 6, "[DONE]\n", 7) == 0);
    }
    KVR_ASSERT(p == end);
}

static void give_to_client(struct kvr_json_span answer)
{
    struct kvr_json root;
    struct kvr_buf out = {0};
    if (kvr_handoff_ended_answer(answer, &out)) {
        KVR_ASSERT(is_object(out.data, out.len, &root));
        out.len = 0;
        KVR_ASSERT(kvr_handoff_ended_stream(answer, true, true, &out));
        check_events(&out);
    }
    kvr_buf_free(&out);
}

static void read_answer(struct kvr_json_span answer)
{
    for (unsigned p = 0; p < KVR_KV_PROTOCOLS; p++) {
        static const char body[] = "{\"prompt\":\"a\"}";
        struct kvr_handoff_leg leg = {.protocol = p};
        struct kvr_handoff h;
        struct kvr_buf out = {0};
        bool has = p == KVR_KV_VLLM_NIXL || p == KVR_KV_TRTLLM, ok = kvr_handoff_read(p, answer, &h) == KVR_HANDOFF_OK;
        if (ok && h.ended) give_to_client(answer);
        if (ok && has && !h.ended) {
            KVR_ASSERT(h.object.at && kvr_handoff_decode_body(&leg, (struct kvr_json_span){body, body + sizeof body - 1}, &h, &out));
            check_body(&out, p, false);
        }
        kvr_buf_free(&out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvr_json_span text = {(const char *)data, (const char *)data + size};
    struct kvr_handoff_members m;
    struct kvr_json root;
    if (!parser) parser = kvr_json_parser_new();
    if (is_object(text.at, size, &root)) {
        make_bodies(text);
        strip(text);
    }
    kvr_handoff_members_read(text, &m);
    for (unsigned p = 0; p < KVR_KV_PROTOCOLS; p++) (void)kvr_handoff_obstacle(&m, p);
    read_answer(text);
    return 0;
}
