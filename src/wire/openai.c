/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/openai.h"

#include <string.h>

/* Prompt forms: string; array of tokens; array with one of these; anything else is left to the engine. */
static void read_prompt(struct kvr_json prompt, struct kvr_openai_request *out)
{
    if (kvr_json_type_of(prompt) != KVR_JSON_ARRAY) return;
    struct kvr_json first = kvr_json_at(prompt, 0);
    size_t n = kvr_json_count(prompt);
    if (kvr_json_type_of(first) == KVR_JSON_INT) {
        out->tokens = prompt;
        out->tokens_n = n;
    } else if (n == 1 && kvr_json_type_of(first) == KVR_JSON_ARRAY && kvr_json_type_of(kvr_json_at(first, 0)) == KVR_JSON_INT) {
        out->tokens = first;
        out->tokens_n = kvr_json_count(first);
    }
}

/* Hints of the wrong type are left out: they are advice. */
static void read_hints(struct kvr_json hints, struct kvr_openai_request *out)
{
    uint64_t strict = 0;
    if (!kvr_json_as_double(kvr_json_get(hints, "priority"), &out->priority) || !(out->priority >= 0 && out->priority < 1e9))
        out->priority = 0;
    if (kvr_json_as_u64(kvr_json_get(hints, "strict_priority"), &strict))
        out->strict_priority = (uint32_t)KVR_MIN(strict, (uint64_t)UINT32_MAX);
    kvr_json_as_u64(kvr_json_get(hints, "osl"), &out->expected_osl);
}

int kvr_openai_parse(struct kvr_json_parser *p, const char *body, size_t len, struct kvr_openai_request *out, const char **why)
{
    const char *ignored;
    struct kvr_json v;
    memset(out, 0, sizeof *out);
    if (len == 0) {
        *why = "the request body is empty";
        return -KVR_EFORMAT;
    }
    int rc = kvr_json_parse(p, body, len, &out->root, &ignored);
    if (rc) {
        *why = rc == -KVR_ENOMEM ? "out of memory" : "the request body is not valid JSON";
        return rc;
    }
    if (kvr_json_type_of(out->root) != KVR_JSON_OBJECT) {
        *why = "the request body must be a JSON object";
        return -KVR_EFORMAT;
    }
    v = kvr_json_get(out->root, "model");
    if (kvr_json_type_of(v) > KVR_JSON_NULL && !kvr_json_as_str(v, &out->model, &out->model_len)) {
        *why = "`model` must be a string";
        return -KVR_EFORMAT;
    }
    v = kvr_json_get(out->root, "cache_salt");
    if (!kvr_json_as_str(v, &out->salt, &out->salt_len))
        kvr_json_as_str(kvr_json_get(kvr_json_get(out->root, "nvext"), "cache_salt"), &out->salt, &out->salt_len);
    kvr_json_as_bool(kvr_json_get(out->root, "stream"), &out->stream);
    if (!kvr_json_as_u64(kvr_json_get(out->root, "max_completion_tokens"), &out->max_tokens))
        kvr_json_as_u64(kvr_json_get(out->root, "max_tokens"), &out->max_tokens);
    read_hints(kvr_json_get(kvr_json_get(out->root, "nvext"), "agent_hints"), out);
    out->has_messages = kvr_json_type_of(kvr_json_get(out->root, "messages")) == KVR_JSON_ARRAY;
    v = kvr_json_get(out->root, "prompt");
    out->has_prompt = kvr_json_type_of(v) == KVR_JSON_STRING || kvr_json_type_of(v) == KVR_JSON_ARRAY;
    read_prompt(v, out);
    v = kvr_json_get(kvr_json_get(out->root, "nvext"), "token_data");
    if (kvr_json_type_of(v) == KVR_JSON_ARRAY) {
        out->tokens = v;
        out->tokens_n = kvr_json_count(v);
    }
    return 0;
}

/* The text as far as it has come. Every piece is at most as long as the body, so it ends at most that far beyond `max`. */
struct text {
    struct kvr_buf *out;
    size_t max; /* bytes; more than that is nobody's business */
};

static int add_part_text(void *ctx, const char *key, size_t key_len, struct kvr_json part)
{
    const struct text *t = ctx;
    const char *s;
    size_t len;
    (void)key;
    (void)key_len;
    if (kvr_json_as_str(part, &s, &len) || kvr_json_as_str(kvr_json_get(part, "text"), &s, &len)) kvr_buf_add(t->out, s, len);
    return t->out->failed || t->out->len > t->max;
}

static int add_message_text(void *ctx, const char *key, size_t key_len, struct kvr_json message)
{
    const struct text *t = ctx;
    const char *s;
    size_t len;
    (void)key;
    (void)key_len;
    struct kvr_json content = kvr_json_get(message, "content");
    kvr_buf_add(t->out, "<|", 2);
    if (kvr_json_as_str(kvr_json_get(message, "role"), &s, &len)) kvr_buf_add(t->out, s, len);
    kvr_buf_add(t->out, "|>\n", 3);
    if (kvr_json_as_str(content, &s, &len)) kvr_buf_add(t->out, s, len);
    else kvr_json_each(content, add_part_text, ctx);
    kvr_buf_add(t->out, "<|end|>\n", 8);
    return t->out->failed || t->out->len > t->max;
}

bool kvr_openai_prompt_text(const struct kvr_openai_request *r, struct kvr_buf *out)
{
    struct text t = {out, r->text_max ? r->text_max : SIZE_MAX};
    if (r->has_messages) {
        kvr_json_each(kvr_json_get(r->root, "messages"), add_message_text, &t);
        kvr_buf_str(out, "<|assistant|>\n");
        return true;
    }
    if (!r->has_prompt) return false;
    struct kvr_json prompt = kvr_json_get(r->root, "prompt");
    if (kvr_json_type_of(prompt) == KVR_JSON_STRING) add_part_text(&t, NULL, 0, prompt);
    else kvr_json_each(prompt, add_part_text, &t);
    return true;
}

void kvr_openai_usage(struct kvr_json root, struct kvr_usage *out)
{
    struct kvr_json usage = kvr_json_get(root, "usage");
    memset(out, 0, sizeof *out);
    if (kvr_json_type_of(usage) != KVR_JSON_OBJECT) return;
    out->present = true;
    kvr_json_as_u64(kvr_json_get(usage, "prompt_tokens"), &out->prompt_tokens);
    kvr_json_as_u64(kvr_json_get(usage, "completion_tokens"), &out->completion_tokens);
    out->has_cached = kvr_json_as_u64(kvr_json_get(kvr_json_get(usage, "prompt_tokens_details"), "cached_tokens"), &out->cached_tokens);
}

const char *kvr_openai_error_type(int status)
{
    switch (status) {
    case 400:
    case 405:
    case 413: return "invalid_request_error";
    case 404: return "not_found_error";
    case 503: return "service_unavailable";
    case 529: return "queue_full";
    case 504: return "timeout_error";
    case 502: return "bad_gateway";
    default: return status >= 500 ? "internal_server_error" : "invalid_request_error";
    }
}

void kvr_openai_error(struct kvr_buf *out, int status, const char *type, const char *message)
{
    kvr_json_open(out, '{');
    kvr_json_key(out, "error");
    kvr_json_open(out, '{');
    kvr_json_key(out, "message");
    kvr_json_str(out, message, strlen(message));
    kvr_json_key(out, "type");
    kvr_json_str(out, type, strlen(type));
    kvr_json_key(out, "param");
    kvr_json_null(out);
    kvr_json_key(out, "code");
    kvr_json_i64(out, status);
    kvr_json_close(out, '}');
    kvr_json_close(out, '}');
}
