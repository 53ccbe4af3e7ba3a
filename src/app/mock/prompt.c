/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads requests for the mock: first the members, then the prompt's tokens, made as the mock's own tokenizer makes them
 * (app/mock/prompt.h).
 */
#include "app/mock/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "token/given.h"
#include "wire/lax.h"
#include "wire/tokenize_body.h"

#define BAD "BadRequestError"

/* ---- text -------------------------------------------------------------------------------------------- */

/* Tokens of --tokenizer-dir. The question goes with it. */
static int given_tokens(const struct mock *m, struct kvr_buf *question, struct mock_prompt *out)
{
    struct kvr_ids *ids = NULL;
    char why[200];
    if (!question->failed && kvr_given_tokens_make(m->given, m->o->model, question->data, question->len, &ids, why, sizeof why) == 0) {
        out->tokens = malloc((ids->n + 1) * sizeof *out->tokens);
        out->n = out->tokens ? ids->n : 0;
        if (out->tokens) memcpy(out->tokens, ids->v, ids->n * sizeof *ids->v);
    }
    kvr_ids_unref(ids);
    kvr_buf_free(question);
    return out->tokens ? 0 : -1;
}

static int text_tokens(const struct mock *m, const char *text, size_t len, bool special, struct mock_prompt *out)
{
    if (m->given) {
        struct kvr_buf question = {0};
        kvr_json_printf(&question, "{'prompt':%.*s,'add_special_tokens':%i}", (int)len, text, special);
        return given_tokens(m, &question, out);
    }
    bool bos = special && m->o->bos_token;
    out->tokens = malloc((len + 2) * sizeof *out->tokens);
    if (!out->tokens) return -1;
    out->n = 0;
    if (bos) out->tokens[out->n++] = (uint32_t)m->o->bos_token;
    for (size_t i = 0; i < len; i++) out->tokens[out->n++] = (unsigned char)text[i];
    return 0;
}

/* A part of a message that has text, of any of the APIs; others are left out. */
static void add_part(struct kvr_buf *out, struct kvr_json part)
{
    const char *s;
    size_t len;
    if (kvr_json_as_str(part, &s, &len) || kvr_json_as_str(kvr_json_get(part, "text"), &s, &len)) kvr_buf_add(out, s, len);
}

static void add_said(struct kvr_buf *out, const char *role, size_t role_len, struct kvr_json content)
{
    kvr_buf_add(out, "<|", 2);
    kvr_buf_add(out, role, role_len);
    kvr_buf_add(out, "|>\n", 3);
    if (kvr_json_type_of(content) != KVR_JSON_ARRAY) add_part(out, content);
    else
        for (struct kvr_json_iter i = kvr_json_iter(content); kvr_json_next(&i);) add_part(out, i.value);
    kvr_buf_str(out, "<|end|>\n");
}

static void add_message(struct kvr_buf *out, struct kvr_json message)
{
    const char *role = "user";
    size_t len = 4;
    kvr_json_as_str(kvr_json_get(message, "role"), &role, &len);
    add_said(out, role, len, kvr_json_get(message, "content"));
}

/* What the conversation of /v1/responses or /v1/messages is as a chat: instructions first. */
static void conversation(struct kvr_json root, enum mock_api api, struct kvr_buf *out)
{
    struct kvr_json system = kvr_json_get(root, api == MOCK_RESPONSES ? "instructions" : "system");
    struct kvr_json said = kvr_json_get(root, api == MOCK_RESPONSES ? "input" : "messages");
    if (kvr_json_is_given(system)) add_said(out, "system", 6, system);
    if (kvr_json_type_of(said) != KVR_JSON_ARRAY) add_said(out, "user", 4, said);
    else
        for (struct kvr_json_iter i = kvr_json_iter(said); kvr_json_next(&i);) add_message(out, i.value);
}

/* ---- prompts ----------------------------------------------------------------------------------------- */

static struct mock_prompt *new_prompt(struct mock_ask *a)
{
    if (!a->prompts) a->prompts = calloc(MOCK_PROMPTS_MAX, sizeof *a->prompts);
    return a->prompts && a->prompts_n < MOCK_PROMPTS_MAX ? &a->prompts[a->prompts_n++] : NULL;
}

static int add_tokens(struct mock_ask *a, struct kvr_json list, struct mock_error *e)
{
    struct mock_prompt *p = new_prompt(a);
    size_t n = kvr_json_count(list);
    if (!p) return mock_fail(e, 400, BAD, "prompt", "too many prompts");
    p->n = n;
    p->tokens = malloc((n + 1) * sizeof *p->tokens);
    if (p->tokens && kvr_json_u32_array(list, p->tokens, n) >= 0) return 0;
    return mock_fail(e, 400, "Bad Request", "body.prompt", "token ids must be whole numbers below 2^32");
}

struct reading {
    const struct mock *m;
    struct mock_ask *a;
    struct mock_error *e;
    bool special;
};

static int add_one(const struct reading *r, struct kvr_json v)
{
    const char *s;
    size_t len;
    if (kvr_json_type_of(v) == KVR_JSON_ARRAY) return add_tokens(r->a, v, r->e);
    if (kvr_json_as_str(v, &s, &len)) {
        struct mock_prompt *p = new_prompt(r->a);
        if (p && text_tokens(r->m, s, len, r->special, p) == 0) return 0;
    }
    return mock_fail(r->e, 400, "Bad Request", "body.prompt", "Input should be a valid string");
}

/* A text, token ids, a list of texts or a list of lists of token ids. */
static int read_prompts(const struct reading *r, struct kvr_json root)
{
    struct kvr_json prompt = kvr_json_get(root, "prompt"), data = kvr_json_get(kvr_json_get(root, "nvext"), "token_data");
    const char *s;
    size_t len;
    if (kvr_json_type_of(data) == KVR_JSON_ARRAY) return add_tokens(r->a, data, r->e);
    if (kvr_json_type_of(prompt) == KVR_JSON_NONE || kvr_json_type_of(prompt) == KVR_JSON_NULL ||
        (kvr_json_as_str(prompt, &s, &len) && len == 0))
        return mock_fail(r->e, 400, BAD, "prompt", "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)");
    if (kvr_json_type_of(prompt) != KVR_JSON_ARRAY) return add_one(r, prompt);
    if (kvr_json_count(prompt) == 0) return mock_fail(r->e, 400, BAD, NULL, "You must pass at least one prompt");
    enum kvr_json_type type = kvr_json_type_of(kvr_json_at(prompt, 0));
    if (type != KVR_JSON_ARRAY && type != KVR_JSON_STRING) return add_tokens(r->a, prompt, r->e);
    int rc = 0;
    for (struct kvr_json_iter i = kvr_json_iter(prompt); rc == 0 && kvr_json_next(&i);) rc = add_one(r, i.value);
    return rc;
}

/* The chat's text is the one that the router's byte tokens are made of, so that a router without a tokenizer finds what it predicted. */
static int read_chat(struct mock *m, const char *body, size_t len, struct mock_ask *a, struct mock_error *e)
{
    struct kvr_openai_request rq;
    struct kvr_buf text = {0};
    const char *why;
    struct mock_prompt *p = new_prompt(a);
    if (kvr_openai_parse(m->json, body, len, KVR_JSON_ALL, &rq, &why) || !rq.has_messages)
        return mock_fail(e, 400, "Bad Request", "body.messages", "Field required");
    if (kvr_json_count(kvr_json_get(rq.root, "messages")) == 0)
        return mock_fail(e, 400, BAD, NULL, "Cannot apply chat template to an empty conversation. Provide at least one message.");
    if (kvr_json_type_of(rq.tokens) == KVR_JSON_ARRAY) {
        a->prompts_n--;
        return add_tokens(a, rq.tokens, e);
    }
    if (m->given) {
        enum kvr_prompt_certainty certainty = KVR_PROMPT_EXACT;
        if (!p || !kvr_tokenize_body((struct kvr_json_span){body, body + len}, KVR_FORM_CHAT, &text, &certainty) ||
            given_tokens(m, &text, p))
            mock_fail(e, 400, BAD, NULL, "The chat template does not take this chat");
        return e->status ? -1 : 0;
    }
    bool special = false;
    kvr_json_as_bool(kvr_json_get(rq.root, "add_special_tokens"), &special);
    kvr_openai_prompt_text(&rq, &text);
    int rc = p ? text_tokens(m, text.data ? text.data : "", text.len, special, p) : -1;
    kvr_buf_free(&text);
    return rc;
}

static int read_conversation(struct mock *m, struct kvr_json root, struct mock_ask *a, struct mock_error *e)
{
    const char *id = NULL, *member = a->api == MOCK_RESPONSES ? "input" : "messages";
    size_t id_len = 0;
    struct mock_prompt *p = new_prompt(a);
    if (!kvr_json_has(root, member))
        return mock_fail(e, 400, "Bad Request", a->api == MOCK_RESPONSES ? "body.input" : "body.messages",
                         "1 validation error:\n  {'type': 'missing', 'loc': 'body.%s', 'msg': 'Field required'}", member);
    if (a->api == MOCK_RESPONSES && kvr_json_as_str(kvr_json_get(root, "previous_response_id"), &id, &id_len)) {
        const struct kvr_buf *before = mock_response_text(m, id, id_len);
        if (!before)
            return mock_fail(e, 404, "invalid_request_error", "response_id", "Response with id '%.*s' not found.",
                             (int)KVR_MIN(id_len, (size_t)64), id);
        kvr_buf_add(&a->conversation, before->data, before->len);
    }
    conversation(root, a->api, &a->conversation);
    kvr_buf_str(&a->conversation, "<|assistant|>\n");
    return p && !a->conversation.failed ? text_tokens(m, a->conversation.data, a->conversation.len, false, p) : -1;
}

/* ---- members ----------------------------------------------------------------------------------------- */

static int read_model(const struct mock *m, struct kvr_json root, struct mock_ask *a, struct mock_error *e)
{
    const char *model = m->o->model;
    size_t len = strlen(model);
    kvr_json_as_str(kvr_json_get(root, "model"), &model, &len);
    a->is_lora = mock_adapter(m, model, len) != NULL;
    snprintf(a->model, sizeof a->model, "%.*s", (int)KVR_MIN(len, sizeof a->model - 1), model);
    if (a->is_lora || (m->o->model && kvr_span_is(model, len, m->o->model))) return 0;
    return mock_fail(e, 404, "NotFoundError", "model", "The model `%s` does not exist. Valid aliases: %s.", a->model, m->o->model);
}

static int read_salt(struct kvr_json root, struct mock_ask *a, struct mock_error *e)
{
    const char *s;
    size_t len;
    struct kvr_json v = kvr_json_get(root, "cache_salt");
    if (!kvr_json_is_given(v)) v = kvr_json_get(kvr_json_get(root, "nvext"), "cache_salt");
    if (!kvr_json_is_given(v)) return 0;
    if (!kvr_json_as_str(v, &s, &len) || len == 0)
        return mock_fail(e, 400, BAD, "cache_salt",
                         "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)");
    if (len >= sizeof a->salt) return mock_fail(e, 400, BAD, "cache_salt", "Parameter 'cache_salt' is longer than the mock keeps");
    snprintf(a->salt, sizeof a->salt, "%.*s", (int)len, s);
    return 0;
}

static bool is_on(struct kvr_json root, const char *member)
{
    return kvr_lax_bool(kvr_json_get(root, member), false);
}

static bool number_of(struct kvr_json root, const char *member, int64_t *out)
{
    return kvr_lax_i64(kvr_json_get(root, member), out);
}

/* A text that means one is one, too. */
static bool real_of(struct kvr_json v, double *out)
{
    const char *s;
    size_t len;
    char text[40], *end;
    if (!kvr_json_as_str(v, &s, &len)) return kvr_json_as_double(v, out);
    if (len == 0 || len >= sizeof text) return false;
    memcpy(text, s, len);
    text[len] = 0;
    double d = strtod(text, &end);
    if (end == text || end[strspn(end, " \t\r\n")]) return false;
    *out = d;
    return true;
}

static int refuse_number(struct mock_error *e, const char *member, const char *type, const char *what)
{
    char at[64];
    snprintf(at, sizeof at, "body.%s", member);
    return mock_fail(e, 400, "Bad Request", at, "1 validation error:\n  {'type': '%s', 'loc': '%s', 'msg': 'Input should be a valid %s'}",
                     type, at, what);
}

/* Members of the form that are no numbers are refused; those of other forms are not read. As vLLM 0.32's classes do. */
static int check_numbers(struct kvr_json root, enum mock_api api, struct mock_error *e)
{
    enum { C = 1 << MOCK_COMPLETIONS, H = 1 << MOCK_CHAT, R = 1 << MOCK_RESPONSES, M = 1 << MOCK_MESSAGES };
    static const struct {
        const char *member;
        int forms;
        int not_null, no_text; /* forms in which null, or a text, is none */
    } whole[] = {
        {"max_tokens", C | H | M, 0, 0},
        {"max_completion_tokens", H, 0, 0},
        {"max_output_tokens", R, 0, 0},
        {"n", C | H, C, 0},
        {"logprobs", C, 0, C},
        {"top_logprobs", H | R, 0, H},
        {"prompt_logprobs", C | H, 0, C | H},
        {"truncate_prompt_tokens", C | H, 0, 0},
    };
    int form = 1 << api;
    struct kvr_json v;
    int64_t n;
    double d;
    for (size_t i = 0; i < KVR_ARRAY_LEN(whole); i++) {
        enum kvr_json_type type = kvr_json_type_of(v = kvr_json_get(root, whole[i].member));
        if (!(whole[i].forms & form) || type == KVR_JSON_NONE || (type == KVR_JSON_NULL && !(whole[i].not_null & form))) continue;
        if (!kvr_lax_i64(v, &n) || (type == KVR_JSON_STRING && whole[i].no_text & form))
            return refuse_number(e, whole[i].member, "int_type", "integer");
    }
    v = kvr_json_get(root, "temperature");
    if (!kvr_json_is_given(v) || kvr_lax_i64(v, &n) || real_of(v, &d)) return 0;
    return refuse_number(e, "temperature", "float_type", "number");
}

static int read_max_tokens(const struct mock *m, struct kvr_json root, struct mock_ask *a, struct mock_error *e)
{
    static const char *const names[][2] = {{"max_tokens", "max_tokens"},
                                           {"max_completion_tokens", "max_tokens"},
                                           {"max_output_tokens", "max_output_tokens"},
                                           {"max_tokens", "max_tokens"}};
    int64_t max = (int64_t)m->o->default_max_tokens;
    if (!number_of(root, names[a->api][0], &max) && !number_of(root, names[a->api][1], &max) && a->api == MOCK_MESSAGES)
        return mock_fail(e, 400, "Bad Request", "body.max_tokens",
                         "1 validation error:\n  {'type': 'missing', 'loc': 'body.max_tokens', 'msg': 'Field required'}");
    if (max < 1)
        return mock_fail(e, 400, BAD, "max_tokens", "max_tokens must be at least 1, got %lld. (parameter=max_tokens, value=%lld)",
                         (long long)max, (long long)max);
    a->max_tokens = (uint64_t)max;
    return 0;
}

static bool asks_for_reports(struct kvr_json root)
{
    return kvr_json_is_str(kvr_json_get(kvr_json_get(root, "vllm_xargs"), "kv_cache_report_mode"), "full");
}

static int read_logprobs(struct kvr_json root, struct mock_ask *a, struct mock_error *e)
{
    int64_t top = 0, prompt = 0;
    a->reports = asks_for_reports(root);
    a->prompt_logprobs = number_of(root, "prompt_logprobs", &prompt);
    if (a->prompt_logprobs && a->stream && prompt != 0)
        return mock_fail(e, 400, BAD, "prompt_logprobs",
                         "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)");
    if (a->api == MOCK_CHAT) {
        a->logprobs = is_on(root, "logprobs");
        number_of(root, "top_logprobs", &top);
    } else if (a->api == MOCK_COMPLETIONS) {
        a->logprobs = number_of(root, "logprobs", &top);
    }
    if (a->api == MOCK_COMPLETIONS && a->echo && a->logprobs) a->prompt_logprobs = true;
    if (top > 20)
        mock_fail(&a->late, 400, BAD, "logprobs",
                  "Requested sample logprobs of %lld, which is greater than max allowed: 20 (parameter=logprobs, value=%lld)",
                  (long long)top, (long long)top);
    return 0;
}

static int read_members(struct mock *m, struct kvr_json root, struct mock_ask *a, struct mock_error *e)
{
    struct kvr_json options = kvr_json_get(root, "stream_options");
    double temperature = 1;
    int64_t n = 1;
    if (check_numbers(root, a->api, e)) return -1;
    a->stream = is_on(root, "stream");
    a->include_usage = is_on(options, "include_usage");
    a->continuous_usage = a->include_usage && is_on(options, "continuous_usage_stats");
    a->echo = a->api == MOCK_COMPLETIONS && is_on(root, "echo");
    (void)real_of(kvr_json_get(root, "temperature"), &temperature);
    number_of(root, "n", &n);
    if (temperature < 0)
        return mock_fail(e, 400, BAD, "temperature", "temperature must be non-negative, got %.1f. (parameter=temperature, value=%.1f)",
                         temperature, temperature);
    if (n < 1 || n > MOCK_N_MAX || (n > 1 && temperature == 0))
        return mock_fail(e, 400, BAD, NULL, "n must be %s, got %lld.",
                         n > 1 && temperature == 0 ? "1 when using greedy sampling" : "from 1 to 64", (long long)n);
    a->n = a->api == MOCK_COMPLETIONS || a->api == MOCK_CHAT ? (uint32_t)n : 1;
    if (read_max_tokens(m, root, a, e) || read_salt(root, a, e)) return -1;
    return read_logprobs(root, a, e);
}

/* ---- lengths ----------------------------------------------------------------------------------------- */

/* What truncate_prompt_tokens leaves: the last tokens, unless truncation_side says the first. */
static int cut_prompts(const struct mock *m, struct kvr_json root, const struct mock_ask *a, struct mock_error *e)
{
    const char *side = "left";
    size_t len = 4;
    int64_t keep;
    if (!number_of(root, "truncate_prompt_tokens", &keep)) return 0;
    if (keep < -1)
        return mock_fail(
            e, 400, "Bad Request", "body.truncate_prompt_tokens",
            "1 validation error:\n  {'type': 'greater_than_equal', 'loc': 'body.truncate_prompt_tokens', 'msg': 'Input should be "
            "greater than or equal to -1', 'input': '%lld', 'ctx': {'ge': -1}}",
            (long long)keep);
    if (keep > (int64_t)mock_model_len(m))
        return mock_fail(
            e, 400, BAD, "truncate_prompt_tokens",
            "truncate_prompt_tokens=%lld cannot be greater than max_model_len = %llu. Please request a smaller truncation size. "
            "(parameter=truncate_prompt_tokens, value=%lld)",
            (long long)keep, (unsigned long long)mock_model_len(m), (long long)keep);
    kvr_json_as_str(kvr_json_get(root, "truncation_side"), &side, &len);
    size_t limit = keep < 0 ? mock_model_len(m) - 1 : (size_t)keep;
    for (size_t i = 0; i < a->prompts_n; i++) {
        struct mock_prompt *p = &a->prompts[i];
        if (p->n <= limit) continue;
        if (kvr_span_is(side, len, "left")) memmove(p->tokens, p->tokens + (p->n - limit), limit * sizeof *p->tokens);
        p->n = limit;
    }
    return 0;
}

static int check_lengths(struct mock *m, struct mock_ask *a, struct mock_error *e)
{
    unsigned long long max = mock_model_len(m);
    for (size_t i = 0; i < a->prompts_n; i++) {
        const struct mock_prompt *p = &a->prompts[i];
        bool fine = !a->late.status;
        if (fine && p->n == 0) mock_fail(&a->late, 400, BAD, NULL, "The decoder prompt cannot be empty");
        for (size_t k = 0; k < p->n && m->o->vocab_size && !a->late.status; k++)
            if (p->tokens[k] >= m->o->vocab_size)
                mock_fail(&a->late, 400, BAD, NULL, "Token id %lu is out of vocabulary", (unsigned long)p->tokens[k]);
        if (fine && a->late.status) a->late_at = i;
        if (p->n < max && p->n <= MOCK_TOKENS_MAX) continue;
        return mock_fail(
            e, 400, BAD, "input_tokens",
            "This model's maximum context length is %llu tokens. However, your prompt contains %llu input tokens, which exceeds this "
            "limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=%llu)",
            max, (unsigned long long)p->n, (unsigned long long)p->n);
    }
    return 0;
}

/* ---- bodies ------------------------------------------------------------------------------------------ */

static int parse_object(struct mock *m, const char *body, size_t len, struct kvr_json *root, struct mock_error *e)
{
    const char *why = "Field required";
    if (len && kvr_json_parse(m->json, body, len, root, &why) == 0 && kvr_json_type_of(*root) == KVR_JSON_OBJECT) return 0;
    return mock_fail(e, 400, "Bad Request", "body",
                     "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body', 'msg': 'JSON decode error'}");
}

/* A generation leg of a TensorRT-LLM brings the tokens of the context leg. */
static bool has_prompt_ids(struct kvr_json root, const struct mock_ask *a)
{
    return a->kv.leg == MOCK_KV_FETCHES && a->kv.disagg_id && kvr_json_type_of(kvr_json_get(root, "prompt_token_ids")) == KVR_JSON_ARRAY;
}

int mock_read_ask(struct mock *m, enum mock_api api, const char *body, size_t len, struct mock_ask *out, struct mock_error *e)
{
    struct kvr_json root = {0};
    memset(out, 0, sizeof *out);
    out->api = api;
    if (parse_object(m, body, len, &root, e) || mock_kv_read(m, root, &out->kv) || read_model(m, root, out, e) ||
        read_members(m, root, out, e)) {
        if (!e->status) mock_fail(e, 500, "InternalServerError", NULL, "out of memory");
        return -1;
    }
    bool special = true;
    kvr_json_as_bool(kvr_json_get(root, "add_special_tokens"), &special);
    struct reading r = {m, out, e, special};
    int rc;
    if (has_prompt_ids(root, out)) rc = add_tokens(out, kvr_json_get(root, "prompt_token_ids"), e);
    else if (api == MOCK_COMPLETIONS) rc = read_prompts(&r, root);
    else if (api == MOCK_CHAT) rc = read_chat(m, body, len, out, e); /* parses the same bytes again: root is another value now */
    else rc = read_conversation(m, root, out, e);
    if (rc == 0 && api == MOCK_CHAT) rc = parse_object(m, body, len, &root, e);
    if (rc && !e->status) mock_fail(e, 500, "InternalServerError", NULL, "out of memory");
    if (rc || cut_prompts(m, root, out, e)) return -1;
    return check_lengths(m, out, e);
}

void mock_ask_free(struct mock_ask *a)
{
    for (size_t i = 0; i < a->prompts_n; i++) free(a->prompts[i].tokens);
    free(a->prompts);
    a->prompts = NULL;
    a->prompts_n = 0;
    kvr_buf_free(&a->conversation);
    mock_kv_ask_free(&a->kv);
}

int mock_read_tokenize(struct mock *m, const char *body, size_t len, struct mock_prompt *out, bool *strings, struct mock_error *e)
{
    struct mock_ask a = {.api = MOCK_COMPLETIONS};
    struct kvr_json root = {0};
    int rc = parse_object(m, body, len, &root, e) || read_model(m, root, &a, e) ? -1 : 0;
    if (rc == 0) {
        *strings = is_on(root, "return_token_strs");
        bool special = true;
        kvr_json_as_bool(kvr_json_get(root, "add_special_tokens"), &special);
        struct reading r = {m, &a, e, special};
        if (kvr_json_type_of(kvr_json_get(root, "messages")) == KVR_JSON_ARRAY) rc = read_chat(m, body, len, &a, e);
        else rc = kvr_json_type_of(kvr_json_get(root, "prompt")) == KVR_JSON_STRING ? add_one(&r, kvr_json_get(root, "prompt")) : -1;
        if (rc && !e->status) mock_fail(e, 400, "Bad Request", "body.prompt", "`prompt` or `messages` is required");
    }
    if (rc == 0) {
        *out = a.prompts[0];
        a.prompts[0].tokens = NULL;
    }
    mock_ask_free(&a);
    return rc;
}
