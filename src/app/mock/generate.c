/* SPDX-License-Identifier: Apache-2.0 */
#include "app/mock/generate.h"

#include <string.h>
#include <time.h>
#include <kvroute/hash.h>

struct exchange {
    struct kvr_http_conn *conn;
    struct mock_rank *rank;
    struct mock_request *request;
    struct kvr_buf text;
    bool chat, stream, include_usage, head_sent;
    uint64_t max_tokens, id, generated;
    char model[128], salt[128];
    bool is_lora;
};

static void put_usage(struct kvr_buf *b, const struct exchange *x)
{
    uint64_t prompt = mock_request_prompt(x->request);
    kvr_json_key(b, "usage");
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "prompt_tokens", prompt);
    kvr_json_put_u64(b, "total_tokens", prompt + x->generated);
    kvr_json_put_u64(b, "completion_tokens", x->generated);
    kvr_json_key(b, "prompt_tokens_details");
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "cached_tokens", mock_request_cached(x->request));
    kvr_json_close(b, '}');
    kvr_json_close(b, '}');
}

static void put_head(struct kvr_buf *b, const struct exchange *x, bool chunk)
{
    char id[48];
    snprintf(id, sizeof id, "%s-%llu", x->chat ? "chatcmpl" : "cmpl", (unsigned long long)x->id);
    kvr_json_put_str(b, "id", id);
    kvr_json_put_str(b, "object", !x->chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion");
    kvr_json_put_u64(b, "created", (uint64_t)time(NULL));
    kvr_json_put_str(b, "model", x->model);
}

static void put_choice(struct kvr_buf *b, const struct exchange *x, const char *text, size_t len, bool chunk, bool last)
{
    kvr_json_key(b, "choices");
    kvr_json_open(b, '[');
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "index", 0);
    if (x->chat) {
        kvr_json_key(b, chunk ? "delta" : "message");
        kvr_json_open(b, '{');
        if (!chunk || x->generated == 1) kvr_json_put_str(b, "role", "assistant");
        kvr_json_key(b, "content");
        kvr_json_str(b, text, len);
        kvr_json_close(b, '}');
    } else {
        kvr_json_key(b, "text");
        kvr_json_str(b, text, len);
    }
    kvr_json_key(b, "logprobs");
    kvr_json_null(b);
    if (last) kvr_json_put_str(b, "finish_reason", "length");
    else {
        kvr_json_key(b, "finish_reason");
        kvr_json_null(b);
    }
    kvr_json_close(b, '}');
    kvr_json_close(b, ']');
}

static void send_chunk(struct exchange *x, uint32_t token, bool last)
{
    struct kvr_buf b = {0};
    char c = (char)token;
    kvr_buf_str(&b, "data: ");
    kvr_json_open(&b, '{');
    put_head(&b, x, true);
    put_choice(&b, x, &c, 1, true, last);
    kvr_json_close(&b, '}');
    kvr_buf_str(&b, "\n\n");
    if (last && x->include_usage) {
        b.comma = false;
        kvr_buf_str(&b, "data: ");
        kvr_json_open(&b, '{');
        put_head(&b, x, true);
        kvr_json_key(&b, "choices");
        kvr_json_open(&b, '[');
        kvr_json_close(&b, ']');
        put_usage(&b, x);
        kvr_json_close(&b, '}');
        kvr_buf_str(&b, "\n\n");
    }
    if (last) kvr_buf_str(&b, "data: [DONE]\n\n");
    kvr_http_write(x->conn, b.data, b.len);
    kvr_buf_free(&b);
}

static void exchange_free(struct exchange *x)
{
    kvr_buf_free(&x->text);
    free(x);
}

static void start_stream(struct exchange *x)
{
    static const char head[] = "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n";
    x->head_sent = true;
    kvr_http_start(x->conn, 200, head, sizeof head - 1, -1);
}

void mock_on_token(void *ctx, struct mock_request *r, uint32_t token, uint64_t index, bool last)
{
    struct mock_rank *rank = ctx;
    struct exchange *x = mock_request_user(r);
    char c = (char)token;
    x->generated = index + 1;
    uint64_t cut = rank->mock->o->fault_reset_after;
    if (x->stream) {
        if (!x->head_sent) start_stream(x);
        send_chunk(x, token, last);
        if (cut && x->generated >= cut && !last) {
            kvr_http_abort(x->conn);
            x->conn = NULL;
            x->stream = false;
        }
        if (last) kvr_http_end(x->conn);
    } else {
        kvr_buf_add(&x->text, &c, 1);
        if (last && x->conn) {
            struct kvr_buf b = {0};
            kvr_json_open(&b, '{');
            put_head(&b, x, false);
            put_choice(&b, x, x->text.data, x->text.len, false, true);
            put_usage(&b, x);
            kvr_json_close(&b, '}');
            mock_reply_json(x->conn, 200, &b);
        }
    }
    if (last) exchange_free(x);
}

void mock_on_event(void *ctx, const struct kvr_event *ev, const uint32_t *tokens, size_t n, void *user)
{
    struct mock_rank *r = ctx;
    const struct exchange *x = user;
    if (r->events) mock_events_add(r->events, ev, tokens, n, x && x->is_lora ? r->mock->o->lora : NULL, x && x->salt[0] ? x->salt : NULL);
}

static bool model_is_known(const struct mock *m, const char *model, size_t len)
{
    const char *names[] = {m->o->model, m->o->lora};
    for (int i = 0; i < 2; i++)
        if (names[i] && strlen(names[i]) == len && memcmp(names[i], model, len) == 0) return true;
    return false;
}

static struct mock_rank *choose_rank(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_text h = kvr_headers_get(kvr_http_conn_request(c)->headers, "x-data-parallel-rank");
    struct mock_rank *best = &m->ranks[0];
    struct mock_engine_stats a, b;
    if (h.ptr) {
        char s[16] = {0};
        memcpy(s, h.ptr, KVR_MIN(h.len, sizeof s - 1));
        unsigned long id = strtoul(s, NULL, 10);
        return id < m->o->dp_size ? &m->ranks[id] : NULL;
    }
    for (uint64_t i = 1; i < m->o->dp_size; i++) {
        mock_engine_stats(m->ranks[i].engine, &a);
        mock_engine_stats(best->engine, &b);
        if (a.running + a.waiting < b.running + b.waiting) best = &m->ranks[i];
    }
    return best;
}

void mock_generate(struct mock *m, struct kvr_http_conn *c, bool chat)
{
    const struct kvr_http_request *http = kvr_http_conn_request(c);
    struct kvr_openai_request rq;
    const char *why;
    size_t n = 0;
    if (kvr_openai_parse(m->json, http->body, http->body_len, &rq, &why)) {
        mock_reply_error(c, 400, why);
        return;
    }
    if (rq.model && !model_is_known(m, rq.model, rq.model_len)) {
        mock_reply_error(c, 404, "The model does not exist.");
        return;
    }
    struct mock_rank *rank = choose_rank(m, c);
    uint32_t *tokens = rank ? mock_request_tokens(&rq, &n, &why) : NULL;
    uint64_t max = rq.max_tokens ? rq.max_tokens : m->o->default_max_tokens;
    if (!rank) why = "data-parallel rank out of range";
    else if (tokens && n == 0) why = "the prompt is empty";
    else if (tokens && n >= mock_model_len(m)) why = "the prompt is longer than the model's context length";
    else if (tokens && (n > MOCK_TOKENS_MAX || !mock_engine_fits(rank->engine, n, KVR_MIN(max, mock_model_len(m) - n))))
        why = "the prompt is longer than the cache";
    else if (tokens) why = NULL;
    if (!why) max = KVR_MIN(max, mock_model_len(m) - n);
    struct exchange *x = why ? NULL : calloc(1, sizeof *x);
    if (!x) {
        free(tokens);
        mock_reply_error(c, why ? 400 : 500, why ? why : "out of memory");
        return;
    }
    x->conn = c;
    x->rank = rank;
    x->chat = chat;
    x->stream = rq.stream;
    x->id = ++m->next_id;
    snprintf(x->model, sizeof x->model, "%.*s", rq.model ? (int)KVR_MIN(rq.model_len, (size_t)100) : (int)strlen(m->o->model),
             rq.model ? rq.model : m->o->model);
    kvr_json_as_bool(kvr_json_get(kvr_json_get(rq.root, "stream_options"), "include_usage"), &x->include_usage);
    if (rq.salt) snprintf(x->salt, sizeof x->salt, "%.*s", (int)KVR_MIN(rq.salt_len, sizeof x->salt - 1), rq.salt);
    uint64_t salt = x->salt[0] ? kvr_hash_bytes(x->salt, strlen(x->salt), 7) : 0;
    x->is_lora = rq.model && m->o->lora && strlen(m->o->lora) == rq.model_len && !memcmp(m->o->lora, rq.model, rq.model_len);
    if (x->is_lora) salt ^= kvr_hash_bytes(rq.model, rq.model_len, 9);
    kvr_http_conn_set_user(c, x);
    kvr_http_conn_drop_body(c);
    if (m->o->fault_bare_stream && x->stream) start_stream(x);
    if (!m->o->fault_hang && !m->o->fault_bare_stream) x->request = mock_engine_submit(rank->engine, tokens, n, max, salt, x);
    free(tokens);
    if (!rank->in_pass) mock_next_pass(rank);
}

void mock_gone(struct kvr_http_conn *c, void *ctx)
{
    struct exchange *x = kvr_http_conn_user(c);
    (void)ctx;
    if (!x) return;
    if (x->request) mock_engine_abort(x->rank->engine, x->request);
    exchange_free(x);
}
