/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of the four APIs that generate, whole and as streams, with the members that vLLM's have. */
#include "app/mock/generate.h"

#include <string.h>
#include <time.h>

#define FINGERPRINT "vllm-" MOCK_VLLM_VERSION "-mock"

/* ---- parts ------------------------------------------------------------------------------------------- */

static void put_nulls(struct kvr_buf *b, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        kvr_json_key(b, keys[i]);
        kvr_json_null(b);
    }
}

#define NULLS(b, ...) put_nulls(b, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

static void put_bool(struct kvr_buf *b, const char *key, bool v)
{
    kvr_json_key(b, key);
    kvr_json_bool(b, v);
}

static void put_text(struct kvr_buf *b, const char *key, const char *s, size_t n)
{
    kvr_json_key(b, key);
    kvr_json_str(b, s ? s : "", n);
}

static void put_empty(struct kvr_buf *b, const char *key)
{
    kvr_json_key(b, key);
    kvr_json_open(b, '[');
    kvr_json_close(b, ']');
}

static void put_item_id(struct kvr_buf *b, const char *key, const struct mock_exchange *x)
{
    char id[40];
    snprintf(id, sizeof id, "msg_%llx", (unsigned long long)x->id);
    kvr_json_put_str(b, key, id);
}

struct counts {
    uint64_t prompt, generated, cached, created;
    bool details;
};

static struct counts count(const struct mock_exchange *x)
{
    const struct mock_options *o = x->rank->mock->o;
    struct counts c = {.cached = x->told_cached, .details = o->prompt_tokens_details};
    for (size_t i = 0; i < x->ask.prompts_n; i++) c.prompt += x->ask.prompts[i].n;
    for (uint32_t i = 0; i < x->sequences_n; i++) c.generated += x->sequences[i].generated;
    uint64_t full = x->ask.prompts[0].n / o->block_size * o->block_size;
    c.created = full > c.cached && o->prefix_caching ? full - c.cached : 0;
    return c;
}

/* whole: an answer that is no stream has the members that are null, too. */
static void put_usage(struct kvr_buf *b, const struct mock_exchange *x, bool whole)
{
    struct counts c = count(x);
    bool chat = x->ask.api == MOCK_CHAT;
    kvr_json_key(b, "usage");
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "prompt_tokens", c.prompt);
    kvr_json_put_u64(b, "total_tokens", c.prompt + c.generated);
    kvr_json_put_u64(b, "completion_tokens", c.generated);
    if (c.details) {
        kvr_json_key(b, "prompt_tokens_details");
        kvr_json_open(b, '{');
        kvr_json_put_u64(b, "cached_tokens", c.cached);
        if (chat) kvr_json_put_u64(b, "created_cache_tokens", c.created);
        else if (whole) NULLS(b, "created_cache_tokens");
        if (whole) NULLS(b, "multimodal_tokens");
        kvr_json_close(b, '}');
    } else if (whole) {
        NULLS(b, "prompt_tokens_details");
    }
    if (whole) NULLS(b, "completion_tokens_details");
    kvr_json_close(b, '}');
}

static void put_head(struct kvr_buf *b, const struct mock_exchange *x, bool chunk)
{
    bool chat = x->ask.api == MOCK_CHAT;
    char id[48];
    snprintf(id, sizeof id, "%s-%llu", chat ? "chatcmpl" : "cmpl", (unsigned long long)x->id);
    kvr_json_put_str(b, "id", id);
    kvr_json_put_str(b, "object", !chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion");
    kvr_json_put_u64(b, "created", (uint64_t)time(NULL));
    kvr_json_put_str(b, "model", x->ask.model);
}

/* The hand-off to the engine that generates. */
static void put_transfer(struct kvr_buf *b, const struct mock_exchange *x)
{
    kvr_json_key(b, "kv_transfer_params");
    if (x->rank->mock->o->kv_protocol != MOCK_KV_NIXL) kvr_json_null(b);
    else if (x->sequences[0].kept || (x->ask.kv.leg == MOCK_KV_KEEPS && x->rank->mock->o->fault_bad_handoff)) mock_kv_put_params(b, x);
    else kvr_json_null(b);
}

/* A context leg of a TensorRT-LLM tells its hand-off in the choice, and the tokens of its prompt. */
static bool is_context(const struct mock_exchange *x)
{
    return x->ask.kv.leg == MOCK_KV_KEEPS && x->ask.kv.disagg_id;
}

static void put_context(struct kvr_buf *b, const struct mock_exchange *x)
{
    if (!is_context(x)) return;
    kvr_json_key(b, "disaggregated_params");
    if (x->rank->mock->o->fault_no_handoff) kvr_json_null(b);
    else mock_kv_put_trtllm(b, x);
}

static void put_prompt_ids(struct kvr_buf *b, const struct mock_exchange *x)
{
    const struct mock_prompt *p = &x->ask.prompts[0];
    kvr_json_key(b, "prompt_token_ids");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < p->n; i++) kvr_json_u64(b, p->tokens[i]);
    kvr_json_close(b, ']');
}

static char shown(uint32_t token)
{
    return token < 256 ? (char)token : '?';
}

static void put_finish(struct kvr_buf *b, bool last)
{
    kvr_json_key(b, "finish_reason");
    if (last) kvr_json_str(b, "length", 6);
    else kvr_json_null(b);
}

/* Every token is told to be as likely as the next one: only the shape is right. */
static void put_completion_logprobs(struct kvr_buf *b, const char *text, size_t n, bool first_is_null)
{
    kvr_json_key(b, "logprobs");
    kvr_json_open(b, '{');
    kvr_json_key(b, "text_offset");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) kvr_json_u64(b, i);
    kvr_json_close(b, ']');
    kvr_json_key(b, "token_logprobs");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) {
        if (i == 0 && first_is_null) kvr_json_null(b);
        else kvr_json_double(b, -1.5);
    }
    kvr_json_close(b, ']');
    kvr_json_key(b, "tokens");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) kvr_json_str(b, text + i, 1);
    kvr_json_close(b, ']');
    kvr_json_key(b, "top_logprobs");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) kvr_json_null(b);
    kvr_json_close(b, ']');
    kvr_json_close(b, '}');
}

static void put_chat_logprobs(struct kvr_buf *b, const char *text, size_t n)
{
    kvr_json_key(b, "logprobs");
    kvr_json_open(b, '{');
    kvr_json_key(b, "content");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) {
        kvr_json_open(b, '{');
        put_text(b, "token", text + i, 1);
        kvr_json_key(b, "logprob");
        kvr_json_double(b, -1.5);
        kvr_json_key(b, "top_logprobs");
        kvr_json_open(b, '[');
        kvr_json_close(b, ']');
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, ']');
    kvr_json_close(b, '}');
}

/* The prompt as text, then what is behind it. */
static void prompt_text(struct kvr_buf *out, const struct mock_sequence *s)
{
    for (size_t i = 0; i < s->prompt->n; i++) {
        char c = shown(s->prompt->tokens[i]);
        kvr_buf_add(out, &c, 1);
    }
}

static void put_prompt_logprobs(struct kvr_buf *b, const struct mock_sequence *s)
{
    kvr_json_key(b, "prompt_logprobs");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < s->prompt->n; i++) {
        if (i == 0) {
            kvr_json_null(b);
            continue;
        }
        char token[16];
        snprintf(token, sizeof token, "%u", (unsigned)s->prompt->tokens[i]);
        kvr_json_open(b, '{');
        kvr_json_key(b, token);
        kvr_json_open(b, '{');
        kvr_json_key(b, "logprob");
        kvr_json_double(b, -1.5);
        kvr_json_put_u64(b, "rank", 1);
        kvr_json_close(b, '}');
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, ']');
}

/* ---- completions and chat: whole --------------------------------------------------------------------- */

static void put_completion_choice(struct kvr_buf *b, const struct mock_exchange *x, const struct mock_sequence *s)
{
    struct kvr_buf text = {0};
    bool echo = x->ask.echo;
    if (echo) prompt_text(&text, s);
    kvr_buf_add(&text, s->text.data, s->text.len);
    put_text(b, "text", text.data, text.len);
    if (x->ask.logprobs) put_completion_logprobs(b, text.data, text.len, echo);
    else NULLS(b, "logprobs");
    put_finish(b, true);
    NULLS(b, "stop_reason", "token_ids");
    if (x->ask.prompt_logprobs) put_prompt_logprobs(b, s);
    else NULLS(b, "prompt_logprobs");
    NULLS(b, "prompt_token_ids", "routed_experts");
    kvr_buf_free(&text);
}

static void put_chat_choice(struct kvr_buf *b, const struct mock_exchange *x, const struct mock_sequence *s)
{
    kvr_json_key(b, "message");
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "role", "assistant");
    put_text(b, "content", s->text.data, s->text.len);
    NULLS(b, "refusal", "annotations", "audio", "function_call", "reasoning");
    kvr_json_close(b, '}');
    if (x->ask.logprobs) put_chat_logprobs(b, s->text.data, s->text.len);
    else NULLS(b, "logprobs");
    put_finish(b, true);
    NULLS(b, "stop_reason", "token_ids", "routed_experts");
}

static void put_openai_answer(struct kvr_buf *b, struct mock_exchange *x)
{
    bool chat = x->ask.api == MOCK_CHAT;
    put_head(b, x, false);
    kvr_json_key(b, "choices");
    kvr_json_open(b, '[');
    for (uint32_t i = 0; i < x->sequences_n; i++) {
        kvr_json_open(b, '{');
        kvr_json_put_u64(b, "index", i);
        if (chat) put_chat_choice(b, x, &x->sequences[i]);
        else put_completion_choice(b, x, &x->sequences[i]);
        put_context(b, x);
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, ']');
    NULLS(b, "service_tier");
    kvr_json_put_str(b, "system_fingerprint", FINGERPRINT);
    put_usage(b, x, true);
    if (chat && x->ask.prompt_logprobs) put_prompt_logprobs(b, &x->sequences[0]);
    else if (chat) NULLS(b, "prompt_logprobs");
    if (is_context(x)) put_prompt_ids(b, x);
    else if (chat) NULLS(b, "prompt_token_ids");
    if (chat) NULLS(b, "prompt_text");
    put_transfer(b, x);
    NULLS(b, "ec_transfer_params", "metrics");
}

/* ---- completions and chat: streams ------------------------------------------------------------------- */

static void data_begin(struct kvr_buf *b)
{
    b->comma = false;
    kvr_buf_str(b, "data: ");
    kvr_json_open(b, '{');
}

static void data_end(struct kvr_buf *b)
{
    kvr_json_close(b, '}');
    kvr_buf_str(b, "\n\n");
    b->comma = false;
}

static void put_continuous_usage(struct kvr_buf *b, const struct mock_exchange *x, const struct mock_sequence *s)
{
    if (!x->ask.continuous_usage) return;
    kvr_json_key(b, "usage");
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "prompt_tokens", s->prompt->n);
    kvr_json_put_u64(b, "total_tokens", s->prompt->n + s->generated);
    kvr_json_put_u64(b, "completion_tokens", s->generated);
    kvr_json_close(b, '}');
}

/* A chat begins with the role, in a piece of its own. */
static void put_roles(struct kvr_buf *b, const struct mock_exchange *x)
{
    for (uint32_t i = 0; i < x->sequences_n; i++) {
        data_begin(b);
        put_head(b, x, true);
        kvr_json_key(b, "choices");
        kvr_json_open(b, '[');
        kvr_json_open(b, '{');
        kvr_json_put_u64(b, "index", i);
        kvr_json_key(b, "delta");
        kvr_json_open(b, '{');
        kvr_json_put_str(b, "role", "assistant");
        kvr_json_put_str(b, "content", "");
        kvr_json_close(b, '}');
        NULLS(b, "logprobs", "finish_reason");
        kvr_json_close(b, '}');
        kvr_json_close(b, ']');
        if (x->ask.continuous_usage) {
            struct mock_sequence none = {.prompt = x->sequences[i].prompt};
            put_continuous_usage(b, x, &none);
        }
        NULLS(b, "prompt_token_ids", "prompt_text");
        data_end(b);
    }
}

static void put_openai_token(struct kvr_buf *b, const struct mock_exchange *x, const struct mock_sequence *s, uint32_t token, bool last)
{
    bool chat = x->ask.api == MOCK_CHAT;
    struct kvr_buf text = {0};
    char c = shown(token);
    if (x->ask.echo && s->generated == 1) prompt_text(&text, s);
    kvr_buf_add(&text, &c, 1);
    data_begin(b);
    put_head(b, x, true);
    kvr_json_key(b, "choices");
    kvr_json_open(b, '[');
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "index", s->index);
    if (chat) {
        kvr_json_key(b, "delta");
        kvr_json_open(b, '{');
    }
    put_text(b, chat ? "content" : "text", text.data, text.len);
    if (chat) kvr_json_close(b, '}');
    if (x->ask.logprobs && chat) put_chat_logprobs(b, &c, 1);
    else if (x->ask.logprobs) put_completion_logprobs(b, text.data, text.len, text.len > 1);
    else NULLS(b, "logprobs");
    put_finish(b, last);
    if (!chat || last) NULLS(b, "stop_reason");
    if (!chat) NULLS(b, "prompt_token_ids");
    NULLS(b, "token_ids");
    kvr_json_close(b, '}');
    kvr_json_close(b, ']');
    put_continuous_usage(b, x, s);
    if (last && !x->ask.include_usage) kvr_json_put_str(b, "system_fingerprint", FINGERPRINT);
    data_end(b);
    kvr_buf_free(&text);
}

static void put_openai_end(struct kvr_buf *b, const struct mock_exchange *x)
{
    if (x->ask.include_usage) {
        data_begin(b);
        put_head(b, x, true);
        kvr_json_key(b, "choices");
        kvr_json_open(b, '[');
        kvr_json_close(b, ']');
        put_usage(b, x, false);
        kvr_json_put_str(b, "system_fingerprint", FINGERPRINT);
        data_end(b);
    }
    kvr_buf_str(b, "data: [DONE]\n\n");
}

/* ---- /v1/responses ----------------------------------------------------------------------------------- */

static void put_response_usage(struct kvr_buf *b, const struct mock_exchange *x)
{
    struct counts c = count(x);
    kvr_json_key(b, "usage");
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "input_tokens", c.prompt);
    kvr_json_key(b, "input_tokens_details"); /* told with and without --enable-prompt-tokens-details */
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "cached_tokens", c.cached);
    kvr_json_put_u64(b, "cache_write_tokens", c.created);
    put_empty(b, "input_tokens_per_turn");
    put_empty(b, "cached_tokens_per_turn");
    kvr_json_close(b, '}');
    kvr_json_put_u64(b, "output_tokens", c.generated);
    kvr_json_key(b, "output_tokens_details");
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "reasoning_tokens", 0);
    kvr_json_put_u64(b, "tool_output_tokens", 0);
    put_empty(b, "output_tokens_per_turn");
    put_empty(b, "tool_output_tokens_per_turn");
    kvr_json_close(b, '}');
    kvr_json_put_u64(b, "total_tokens", c.prompt + c.generated);
    kvr_json_close(b, '}');
}

/* text NULL: nothing yet. */
static void put_response_part(struct kvr_buf *b, const struct kvr_buf *text)
{
    kvr_json_open(b, '{');
    put_empty(b, "annotations");
    put_text(b, "text", text ? text->data : NULL, text ? text->len : 0);
    kvr_json_put_str(b, "type", "output_text");
    if (text) NULLS(b, "logprobs");
    else put_empty(b, "logprobs");
    kvr_json_close(b, '}');
}

static void put_response_item(struct kvr_buf *b, const struct mock_exchange *x, bool done)
{
    kvr_json_open(b, '{');
    put_item_id(b, "id", x);
    kvr_json_key(b, "content");
    kvr_json_open(b, '[');
    if (done) put_response_part(b, &x->sequences[0].text);
    kvr_json_close(b, ']');
    kvr_json_put_str(b, "role", "assistant");
    kvr_json_put_str(b, "status", done ? "completed" : "in_progress");
    kvr_json_put_str(b, "type", "message");
    NULLS(b, "phase");
    kvr_json_close(b, '}');
}

/* Members of the object; the braces are the caller's. */
static void put_response(struct kvr_buf *b, const struct mock_exchange *x, bool done)
{
    char id[40];
    snprintf(id, sizeof id, "resp_%llx", (unsigned long long)x->id);
    kvr_json_put_str(b, "id", id);
    kvr_json_put_u64(b, "created_at", (uint64_t)time(NULL));
    kvr_json_key(b, "incomplete_details");
    if (done) {
        kvr_json_open(b, '{');
        kvr_json_put_str(b, "reason", "max_output_tokens");
        kvr_json_close(b, '}');
    } else {
        kvr_json_null(b);
    }
    NULLS(b, "instructions", "metadata");
    kvr_json_put_str(b, "model", x->ask.model);
    kvr_json_put_str(b, "object", "response");
    kvr_json_key(b, "output");
    kvr_json_open(b, '[');
    if (done) put_response_item(b, x, true);
    kvr_json_close(b, ']');
    put_bool(b, "parallel_tool_calls", true);
    kvr_json_put_u64(b, "temperature", 1);
    kvr_json_put_str(b, "tool_choice", "none");
    put_empty(b, "tools");
    kvr_json_put_u64(b, "top_p", 1);
    put_bool(b, "background", false);
    kvr_json_put_u64(b, "max_output_tokens", x->ask.max_tokens);
    NULLS(b, "max_tool_calls", "previous_response_id", "prompt", "reasoning");
    kvr_json_put_str(b, "service_tier", "auto");
    kvr_json_put_str(b, "status", done ? "incomplete" : "in_progress");
    NULLS(b, "text", "top_logprobs");
    kvr_json_put_str(b, "truncation", "disabled");
    if (done) put_response_usage(b, x);
    else NULLS(b, "usage");
    NULLS(b, "user");
    kvr_json_put_u64(b, "presence_penalty", 0);
    kvr_json_put_u64(b, "frequency_penalty", 0);
    put_transfer(b, x);
    NULLS(b, "ec_transfer_params", "input_messages", "output_messages");
}

static void event_begin(struct kvr_buf *b, const char *name)
{
    kvr_buf_printf(b, "event: %s\n", name);
    data_begin(b);
}

static void response_event_end(struct kvr_buf *b, struct mock_exchange *x, const char *name)
{
    kvr_json_put_u64(b, "sequence_number", x->number++);
    kvr_json_put_str(b, "type", name);
    data_end(b);
}

static void put_response_object(struct kvr_buf *b, struct mock_exchange *x, const char *name, bool done)
{
    event_begin(b, name);
    kvr_json_key(b, "response");
    kvr_json_open(b, '{');
    put_response(b, x, done);
    kvr_json_close(b, '}');
    response_event_end(b, x, name);
}

/* An event about the item as a whole. */
static void put_item_event(struct kvr_buf *b, struct mock_exchange *x, const char *name, bool done)
{
    event_begin(b, name);
    kvr_json_key(b, "item");
    put_response_item(b, x, done);
    kvr_json_put_u64(b, "output_index", 0);
    response_event_end(b, x, name);
}

/* One about its only part. */
static void put_part_event(struct kvr_buf *b, struct mock_exchange *x, const char *name, bool done)
{
    event_begin(b, name);
    kvr_json_put_u64(b, "content_index", 0);
    put_item_id(b, "item_id", x);
    kvr_json_key(b, "part");
    put_response_part(b, done ? &x->sequences[0].text : NULL);
    kvr_json_put_u64(b, "output_index", 0);
    response_event_end(b, x, name);
}

/* One with a piece of its text, or all of it. */
static void put_text_event(struct kvr_buf *b, struct mock_exchange *x, const char *name, const char *member, const char *text, size_t n)
{
    event_begin(b, name);
    kvr_json_put_u64(b, "content_index", 0);
    put_item_id(b, "item_id", x);
    put_text(b, member, text, n);
    put_empty(b, "logprobs");
    kvr_json_put_u64(b, "output_index", 0);
    response_event_end(b, x, name);
}

static void put_response_end(struct kvr_buf *b, struct mock_exchange *x)
{
    const struct kvr_buf *text = &x->sequences[0].text;
    put_text_event(b, x, "response.output_text.done", "text", text->data, text->len);
    put_part_event(b, x, "response.content_part.done", true);
    put_item_event(b, x, "response.output_item.done", true);
    put_response_object(b, x, "response.completed", true);
}

/* ---- /v1/messages ------------------------------------------------------------------------------------ */

static void put_messages_usage(struct kvr_buf *b, const struct mock_exchange *x)
{
    struct counts c = count(x);
    uint64_t fresh = c.details ? c.prompt - c.cached - c.created : c.prompt;
    kvr_json_key(b, "usage");
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "input_tokens", fresh);
    kvr_json_put_u64(b, "output_tokens", c.generated);
    if (c.details) {
        kvr_json_put_u64(b, "cache_creation_input_tokens", c.created);
        kvr_json_put_u64(b, "cache_read_input_tokens", c.cached);
    }
    kvr_json_close(b, '}');
}

static void put_message_head(struct kvr_buf *b, const struct mock_exchange *x)
{
    char id[48];
    snprintf(id, sizeof id, "chatcmpl-%llu", (unsigned long long)x->id);
    kvr_json_put_str(b, "id", id);
    kvr_json_put_str(b, "type", "message");
    kvr_json_put_str(b, "role", "assistant");
}

static void put_text_block(struct kvr_buf *b, const char *type, const char *text, size_t n)
{
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "type", type);
    put_text(b, "text", text, n);
    kvr_json_close(b, '}');
}

static void put_message(struct kvr_buf *b, const struct mock_exchange *x)
{
    put_message_head(b, x);
    kvr_json_key(b, "content");
    kvr_json_open(b, '[');
    put_text_block(b, "text", x->sequences[0].text.data, x->sequences[0].text.len);
    kvr_json_close(b, ']');
    kvr_json_put_str(b, "model", x->ask.model);
    kvr_json_put_str(b, "stop_reason", "max_tokens");
    put_messages_usage(b, x);
}

static void put_message_begin(struct kvr_buf *b, const struct mock_exchange *x)
{
    event_begin(b, "message_start");
    kvr_json_put_str(b, "type", "message_start");
    kvr_json_key(b, "message");
    kvr_json_open(b, '{');
    put_message_head(b, x);
    kvr_json_key(b, "content");
    kvr_json_open(b, '[');
    kvr_json_close(b, ']');
    kvr_json_put_str(b, "model", x->ask.model);
    NULLS(b, "stop_reason", "stop_sequence");
    kvr_json_key(b, "usage");
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "input_tokens", x->ask.prompts[0].n);
    kvr_json_put_u64(b, "output_tokens", 0);
    kvr_json_close(b, '}');
    kvr_json_close(b, '}');
    data_end(b);
    event_begin(b, "content_block_start");
    kvr_json_put_str(b, "type", "content_block_start");
    kvr_json_key(b, "content_block");
    put_text_block(b, "text", "", 0);
    kvr_json_put_u64(b, "index", 0);
    data_end(b);
}

static void put_message_token(struct kvr_buf *b, char c)
{
    event_begin(b, "content_block_delta");
    kvr_json_put_str(b, "type", "content_block_delta");
    kvr_json_key(b, "delta");
    put_text_block(b, "text_delta", &c, 1);
    kvr_json_put_u64(b, "index", 0);
    data_end(b);
}

static void put_message_end(struct kvr_buf *b, const struct mock_exchange *x)
{
    event_begin(b, "content_block_stop");
    kvr_json_put_str(b, "type", "content_block_stop");
    kvr_json_put_u64(b, "index", 0);
    data_end(b);
    event_begin(b, "message_delta");
    kvr_json_put_str(b, "type", "message_delta");
    kvr_json_key(b, "delta");
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "stop_reason", "max_tokens");
    NULLS(b, "stop_sequence");
    kvr_json_close(b, '}');
    put_messages_usage(b, x);
    data_end(b);
    event_begin(b, "message_stop");
    kvr_json_put_str(b, "type", "message_stop");
    data_end(b);
}

/* ---- interface --------------------------------------------------------------------------------------- */

void mock_put_stream_begin(struct kvr_buf *b, struct mock_exchange *x)
{
    if (x->ask.api == MOCK_CHAT) put_roles(b, x);
    if (x->ask.api == MOCK_MESSAGES) put_message_begin(b, x);
    if (x->ask.api != MOCK_RESPONSES) return;
    put_response_object(b, x, "response.created", false);
    put_response_object(b, x, "response.in_progress", false);
    put_item_event(b, x, "response.output_item.added", false);
    put_part_event(b, x, "response.content_part.added", false);
}

void mock_put_stream_token(struct kvr_buf *b, struct mock_exchange *x, const struct mock_sequence *s, uint32_t token, bool last)
{
    char c = shown(token);
    if (x->ask.api == MOCK_RESPONSES) put_text_event(b, x, "response.output_text.delta", "delta", &c, 1);
    else if (x->ask.api == MOCK_MESSAGES) put_message_token(b, c);
    else put_openai_token(b, x, s, token, last);
}

void mock_put_stream_end(struct kvr_buf *b, struct mock_exchange *x)
{
    if (x->ask.api == MOCK_RESPONSES) put_response_end(b, x);
    else if (x->ask.api == MOCK_MESSAGES) put_message_end(b, x);
    else put_openai_end(b, x);
}

void mock_put_stream_error(struct kvr_buf *b, struct mock_exchange *x, const struct mock_error *e)
{
    if (x->ask.api == MOCK_RESPONSES || x->ask.api == MOCK_MESSAGES) kvr_buf_str(b, "event: error\n");
    kvr_buf_str(b, "data: ");
    b->comma = false;
    mock_put_api_error(b, x->ask.api, e);
    kvr_buf_str(b, "\n\n");
    b->comma = false;
    if (x->ask.api == MOCK_COMPLETIONS || x->ask.api == MOCK_CHAT) kvr_buf_str(b, "data: [DONE]\n\n");
}

void mock_put_answer(struct kvr_buf *b, struct mock_exchange *x)
{
    kvr_json_open(b, '{');
    if (x->ask.api == MOCK_RESPONSES) put_response(b, x, true);
    else if (x->ask.api == MOCK_MESSAGES) put_message(b, x);
    else put_openai_answer(b, x);
    kvr_json_close(b, '}');
}

void mock_put_api_error(struct kvr_buf *b, enum mock_api api, const struct mock_error *e)
{
    if (api != MOCK_MESSAGES || strcmp(e->type, "Bad Request") == 0) {
        mock_put_error(b, e);
        return;
    }
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "type", "error");
    kvr_json_key(b, "error");
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "type", e->type);
    kvr_json_put_str(b, "message", e->message);
    kvr_json_close(b, '}');
    kvr_json_close(b, '}');
}
