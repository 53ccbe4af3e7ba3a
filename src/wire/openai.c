/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what routing needs of OpenAI bodies; the bytes that are forwarded are never these (wire/openai.h). */
#include "wire/openai.h"
#include "wire/lax.h"
#include "wire/mm_parts.h"

#include <string.h>

#define TOKEN_DATA "`nvext.token_data` must be an array of token ids, integers from 0 to 4294967295"
#define TWICE(key) "`" key "` is given more than once"

static bool is_number(struct kvr_json v)
{
    return kvr_json_type_of(v) == KVR_JSON_INT || kvr_json_type_of(v) == KVR_JSON_RANGE;
}

/* Prompt forms: string; array of tokens; array of these; anything else is left to the engine. */
void kvr_openai_take_prompt(struct kvr_openai_request *out, struct kvr_json prompt)
{
    if (kvr_json_type_of(prompt) != KVR_JSON_ARRAY) return;
    struct kvr_json first = kvr_json_at(prompt, 0);
    if (is_number(first)) {
        out->tokens = prompt;
    } else if (kvr_json_type_of(first) == KVR_JSON_ARRAY && is_number(kvr_json_at(first, 0))) {
        out->tokens = first;
        for (struct kvr_json_iter i = kvr_json_iter(prompt); kvr_json_next(&i);) out->tokens_sum += kvr_json_count(i.value);
    }
    out->tokens_n = kvr_json_count(out->tokens);
}

/* Hints of the wrong type, or out of range, are left out: they are advice. */
static void read_hints(struct kvr_json hints, struct kvr_openai_request *out)
{
    uint64_t strict = 0;
    if (!kvr_json_as_double(kvr_json_get(hints, "priority"), &out->priority) || !(out->priority >= 0 && out->priority < 1e9))
        out->priority = 0;
    if (kvr_json_as_u64(kvr_json_get(hints, "strict_priority"), &strict))
        out->strict_priority = (uint32_t)KVR_MIN(strict, (uint64_t)UINT32_MAX);
    kvr_json_as_u64(kvr_json_get(hints, "osl"), &out->expected_osl);
}

/* A string, or nothing. A list is left to the engine (some take one per prompt): what it stands for is not known here. */
static bool read_salt(struct kvr_json v, struct kvr_openai_request *out)
{
    enum kvr_json_type type = kvr_json_type_of(v);
    return type <= KVR_JSON_NULL || type == KVR_JSON_ARRAY || kvr_json_as_str(v, &out->salt, &out->salt_len);
}

static const char *read_nvext(struct kvr_json nvext, struct kvr_openai_request *out)
{
    enum { SALT, TOKENS, HINTS, MEMBERS };
    static const char *const keys[MEMBERS] = {"cache_salt", "token_data", "agent_hints"};
    static const char *const twice[MEMBERS] = {TWICE("nvext.cache_salt"), TWICE("nvext.token_data"), TWICE("nvext.agent_hints")};
    struct kvr_json v[MEMBERS];
    if (kvr_json_is_given(nvext) && kvr_json_type_of(nvext) != KVR_JSON_OBJECT) return "`nvext` must be an object";
    int again = kvr_json_pick(nvext, keys, MEMBERS, v);
    if (again >= 0) return twice[again];
    if (!out->salt && !read_salt(v[SALT], out)) return "`nvext.cache_salt` must be a string";
    read_hints(v[HINTS], out);
    if (!kvr_json_is_given(v[TOKENS])) return NULL;
    if (!kvr_json_are_u32(v[TOKENS])) return TOKEN_DATA;
    out->tokens = v[TOKENS];
    out->tokens_are_told = true;
    out->beside_n = out->tokens_sum ? out->tokens_sum : out->tokens_n;
    out->tokens_sum = 0;
    out->tokens_n = kvr_json_count(v[TOKENS]);
    return NULL;
}

/* What routing reads must be there once: the engine would take the last of two, and a reader in between the first. */
static const char *read_members(struct kvr_json root, struct kvr_openai_request *out)
{
    enum { MODEL, PROMPT, MESSAGES, SALT, STREAM, MAX_TOKENS, MAX_COMPLETION, NVEXT, MEMBERS };
    static const char *const keys[MEMBERS] = {"model", "prompt", "messages", "cache_salt", "stream", "max_tokens", "max_completion_tokens",
                                              "nvext"};
    static const char *const twice[MEMBERS] = {TWICE("model"),
                                               TWICE("prompt"),
                                               TWICE("messages"),
                                               TWICE("cache_salt"),
                                               TWICE("stream"),
                                               TWICE("max_tokens"),
                                               TWICE("max_completion_tokens"),
                                               TWICE("nvext")};
    struct kvr_json v[MEMBERS];
    int again = kvr_json_pick(root, keys, MEMBERS, v);
    if (again >= 0) return twice[again];
    if (kvr_json_is_given(v[MODEL]) && !kvr_json_as_str(v[MODEL], &out->model, &out->model_len)) return "`model` must be a string";
    if (!read_salt(v[SALT], out)) return "`cache_salt` must be a string";
    out->stream = kvr_lax_bool(v[STREAM], false);
    out->has_messages = kvr_json_type_of(v[MESSAGES]) == KVR_JSON_ARRAY;
    out->has_prompt = kvr_json_type_of(v[PROMPT]) == KVR_JSON_STRING || kvr_json_type_of(v[PROMPT]) == KVR_JSON_ARRAY;
    kvr_openai_take_prompt(out, v[PROMPT]);
    return read_nvext(v[NVEXT], out);
}

int kvr_openai_parse(struct kvr_json_parser *p, const char *body, size_t len, enum kvr_json_wanted wanted, struct kvr_openai_request *out,
                     const char **why)
{
    const char *ignored, *bad;
    memset(out, 0, sizeof *out);
    if (len == 0) {
        *why = "the request body is empty";
        return -KVR_EFORMAT;
    }
    int rc = kvr_json_parse_brief(p, body, len, wanted, &out->root, &ignored);
    if (rc) {
        *why = rc == -KVR_ENOMEM ? "out of memory" : "the request body is not valid JSON";
        return rc;
    }
    if (kvr_json_type_of(out->root) != KVR_JSON_OBJECT) {
        *why = "the request body must be a JSON object";
        return -KVR_EFORMAT;
    }
    bad = read_members(out->root, out);
    if (!bad) return 0;
    *why = bad;
    return -KVR_EFORMAT;
}

/* The text as far as it has come. Every piece is at most as long as the body, so it ends at most that far beyond `max`. */
struct text {
    struct kvr_buf *out;
    size_t max; /* bytes; more than that is nobody's business */
};

/* What has no text of its own: its digest behind a byte that no text has (JSON strings are UTF-8). */
static void add_object(struct kvr_buf *out, const char *key, size_t key_len, struct kvr_json v)
{
    unsigned char mark[1 + KVR_PART_DIGEST] = {0xff};
    kvr_part_digest(key, key_len, v, mark + 1);
    kvr_buf_add(out, mark, sizeof mark);
}

static bool has_room(const struct text *t)
{
    return !t->out->failed && t->out->len <= t->max;
}

static void add_part_text(const struct text *t, struct kvr_json part)
{
    const char *s;
    size_t len;
    if (kvr_part_text(part, &s, &len)) kvr_buf_add(t->out, s, len);
    else add_object(t->out, NULL, 0, part);
}

static void add_parts(const struct text *t, struct kvr_json list)
{
    for (struct kvr_json_iter i = kvr_json_iter(list); has_room(t) && kvr_json_next(&i);) add_part_text(t, i.value);
}

/* Members of a message that templates write out too: names, calls of tools, reasoning. */
static void add_other_member(const struct text *t, const struct kvr_json_iter *m)
{
    bool known = kvr_span_is(m->key, m->key_len, "role") || kvr_span_is(m->key, m->key_len, "content");
    if (!known && kvr_json_type_of(m->value) != KVR_JSON_NULL) add_object(t->out, m->key, m->key_len, m->value);
}

static void add_members(struct kvr_json body, const char *const *names, size_t n, struct kvr_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        struct kvr_json v = kvr_json_get(body, names[i]);
        if (kvr_json_is_given(v)) add_object(out, names[i], strlen(names[i]), v);
    }
}

/* Members of the body that make another prompt of the same messages. Templates begin with them, most of the time. */
static void add_template_members(struct kvr_json body, struct kvr_buf *out)
{
    static const char *const names[] = {
        "tools",           "functions",       "documents", "chat_template", "chat_template_kwargs", "mm_processor_kwargs",
        "media_io_kwargs", "reasoning_effort"};
    add_members(body, names, KVR_ARRAY_LEN(names), out);
}

static void add_message_text(const struct text *t, struct kvr_json message)
{
    const char *s;
    size_t len;
    struct kvr_json content = kvr_json_get(message, "content");
    kvr_buf_add(t->out, "<|", 2);
    if (kvr_json_as_str(kvr_json_get(message, "role"), &s, &len)) kvr_buf_add(t->out, s, len);
    kvr_buf_add(t->out, "|>\n", 3);
    struct kvr_json_iter i = kvr_json_iter(message);
    while (i.members && has_room(t) && kvr_json_next(&i)) add_other_member(t, &i);
    if (kvr_json_type_of(content) == KVR_JSON_ARRAY) add_parts(t, content);
    else if (kvr_json_is_given(content)) add_part_text(t, content);
    kvr_buf_add(t->out, "<|end|>\n", 8);
}

bool kvr_openai_prompt_text(const struct kvr_openai_request *r, struct kvr_buf *out)
{
    struct text t = {out, r->text_max ? r->text_max : SIZE_MAX};
    if (r->has_messages || r->has_prompt) add_members(r->root, kvr_mm_members, KVR_MM_MEMBERS, out);
    if (r->has_messages) {
        add_template_members(r->root, out);
        struct kvr_json_iter i = kvr_json_iter(kvr_json_get(r->root, "messages"));
        while (has_room(&t) && kvr_json_next(&i)) add_message_text(&t, i.value);
        kvr_buf_str(out, "<|assistant|>\n");
        return true;
    }
    if (!r->has_prompt) return false;
    struct kvr_json prompt = kvr_json_get(r->root, "prompt");
    if (kvr_json_type_of(prompt) == KVR_JSON_STRING) add_part_text(&t, prompt);
    else add_parts(&t, prompt);
    return true;
}

/* Absent or null is 0. Returns: false when there is something that is no count. */
static bool is_count(struct kvr_json v, uint64_t *out)
{
    return kvr_json_as_u64(v, out) || !kvr_json_is_given(v);
}

/* Messages count the prompt in three parts: what was neither read from the cache nor written to it, and those two. */
static bool read_message_usage(struct kvr_json read, struct kvr_json created, struct kvr_usage *out)
{
    uint64_t n = 0;
    out->has_cached = kvr_json_as_u64(read, &out->cached_tokens);
    if (!out->has_cached) return true;
    return is_count(created, &n) && !__builtin_add_overflow(out->prompt_tokens, out->cached_tokens, &out->prompt_tokens) &&
           !__builtin_add_overflow(out->prompt_tokens, n, &out->prompt_tokens);
}

static bool read_usage(struct kvr_json usage, struct kvr_usage *out)
{
    enum { PROMPT, COMPLETION, PROMPT_DETAILS, INPUT, OUTPUT, INPUT_DETAILS, CACHE_READ, CACHE_CREATED, MEMBERS };
    static const char *const keys[MEMBERS] = {
        "prompt_tokens", "completion_tokens",    "prompt_tokens_details",   "input_tokens",
        "output_tokens", "input_tokens_details", "cache_read_input_tokens", "cache_creation_input_tokens"};
    struct kvr_json v[MEMBERS];
    if (kvr_json_type_of(usage) != KVR_JSON_OBJECT) return false;
    (void)kvr_json_pick(usage, keys, MEMBERS, v);
    bool messages = kvr_json_is_given(v[INPUT]); /* or responses */
    out->has_cached = kvr_json_as_u64(kvr_json_get(v[messages ? INPUT_DETAILS : PROMPT_DETAILS], "cached_tokens"), &out->cached_tokens);
    if (!messages) return is_count(v[PROMPT], &out->prompt_tokens) && is_count(v[COMPLETION], &out->completion_tokens);
    if (!is_count(v[INPUT], &out->prompt_tokens) || !is_count(v[OUTPUT], &out->completion_tokens)) return false;
    return out->has_cached || read_message_usage(v[CACHE_READ], v[CACHE_CREATED], out);
}

void kvr_openai_usage(struct kvr_json root, struct kvr_usage *out)
{
    struct kvr_usage found = {0};
    found.present = read_usage(kvr_json_get(root, "usage"), &found);
    *out = found.present ? found : (struct kvr_usage){0};
}

const char *kvr_openai_error_type(int status)
{
    switch (status) {
    case 400:
    case 405:
    case 413: return "invalid_request_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable";
    case 529: return "queue_full";
    case 504: return "timeout_error";
    case 502: return "bad_gateway";
    default: return status >= 500 ? "internal_server_error" : "invalid_request_error";
    }
}

/* code NULL: the status. */
static void write_error(struct kvr_buf *out, int status, const char *type, const char *message, const char *code)
{
    kvr_json_open(out, '{');
    kvr_json_key(out, "error");
    kvr_json_open(out, '{');
    kvr_json_put_str(out, "message", message);
    kvr_json_put_str(out, "type", type);
    kvr_json_key(out, "param");
    kvr_json_null(out);
    kvr_json_key(out, "code");
    if (code) kvr_json_str(out, code, strlen(code));
    else kvr_json_i64(out, status);
    kvr_json_close(out, '}');
    kvr_json_close(out, '}');
}

void kvr_openai_error(struct kvr_buf *out, int status, const char *type, const char *message)
{
    write_error(out, status, type, message, NULL);
}

void kvr_openai_error_coded(struct kvr_buf *out, const char *type, const char *message, const char *code)
{
    write_error(out, 0, type, message, code);
}
