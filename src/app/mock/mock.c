/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP around the simulated engine: one loop, one engine and one event stream per data-parallel rank.
 *
 *     request -> tokens -> engine.submit      timer(pass) -> end_pass -> tokens out -> begin_pass -> events out -> timer
 *
 * Tokens are bytes: a text's token ids are its bytes, so text that was generated and comes back in the next turn has
 * the same tokens. Ids above 255 (from token prompts) detokenize to "?".
 */
#include "app/mock/mock.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <uv.h>
#include <zmq.h>
#include <kvroute/hash.h>

#include "engine/engine.h"
#include "app/mock/events.h"
#include "net/http.h"
#include "wire/openai.h"

enum { DP_MAX = 64, TOKENS_MAX = 1 << 22 };

struct rank {
    struct mock *mock;
    uint32_t id;
    struct mock_engine *engine;
    struct mock_events *events;
    uv_timer_t timer;
    bool in_pass;
};

struct mock {
    const struct mock_options *o;
    uv_loop_t loop;
    uv_signal_t term, intr;
    struct kvr_http_server *server;
    struct kvr_json_parser *json;
    void *zmq;
    struct rank ranks[DP_MAX];
    uint64_t started_ms, next_id;
};

struct exchange {
    struct kvr_http_conn *conn;
    struct rank *rank;
    struct mock_request *request;
    struct kvr_buf text;
    bool chat, stream, include_usage, head_sent;
    uint64_t max_tokens, id, generated;
    char model[128], salt[128];
    bool is_lora;
};

/* ---- answers ----------------------------------------------------------------------------------------- */

static void reply_json(struct kvr_http_conn *c, int status, struct kvr_buf *body)
{
    kvr_http_reply(c, status, "application/json", NULL, body->data ? body->data : "", body->len);
    kvr_buf_free(body);
}

static void reply_error(struct kvr_http_conn *c, int status, const char *message)
{
    struct kvr_buf b = {0};
    kvr_openai_error(&b, status, kvr_openai_error_type(status), message);
    reply_json(c, status, &b);
}

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

static void on_token(void *ctx, struct mock_request *r, uint32_t token, uint64_t index, bool last)
{
    struct rank *rank = ctx;
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
            reply_json(x->conn, 200, &b);
        }
    }
    if (last) exchange_free(x);
}

/* ---- passes ------------------------------------------------------------------------------------------ */

static void on_pass(uv_timer_t *t);

/* Passes shorter than the timer's millisecond are carried on in one turn, so that a speed-up means something. */
static void next_pass(struct rank *r)
{
    uint64_t ns = mock_engine_begin_pass(r->engine);
    if (r->events) mock_events_flush(r->events);
    r->in_pass = ns > 0;
    if (ns) uv_timer_start(&r->timer, on_pass, (ns + 500000) / 1000000, 0);
}

static void on_pass(uv_timer_t *t)
{
    struct rank *r = t->data;
    mock_engine_end_pass(r->engine);
    next_pass(r);
}

static void on_event(void *ctx, const struct kvr_event *ev, const uint32_t *tokens, size_t n, void *user)
{
    struct rank *r = ctx;
    const struct exchange *x = user;
    if (r->events) mock_events_add(r->events, ev, tokens, n, x && x->is_lora ? r->mock->o->lora : NULL, x && x->salt[0] ? x->salt : NULL);
}

/* ---- requests ---------------------------------------------------------------------------------------- */

static uint32_t *text_tokens(const struct kvr_buf *text, size_t *n)
{
    uint32_t *t = malloc((text->len + 1) * sizeof *t);
    for (size_t i = 0; t && i < text->len; i++) t[i] = (unsigned char)text->data[i];
    *n = text->len;
    return t;
}

/* Tokens of a prompt, messages or token array. Returns: malloc'd, or NULL with *why. */
static uint32_t *request_tokens(const struct kvr_openai_request *rq, size_t *n, const char **why)
{
    struct kvr_buf text = {0};
    uint32_t *t;
    *why = "`prompt` or `messages` is required";
    if (rq->tokens.doc) {
        *why = "token ids must be whole numbers below 2^32";
        *n = rq->tokens_n;
        t = malloc((rq->tokens_n + 1) * sizeof *t);
        if (t && kvr_json_u32_array(rq->tokens, t, rq->tokens_n) < 0) {
            free(t);
            return NULL;
        }
        return t;
    }
    if (!kvr_openai_prompt_text(rq, &text)) return NULL;
    t = text_tokens(&text, n);
    kvr_buf_free(&text);
    return t;
}

static bool model_is_known(const struct mock *m, const char *model, size_t len)
{
    const char *names[] = {m->o->model, m->o->lora};
    for (int i = 0; i < 2; i++)
        if (names[i] && strlen(names[i]) == len && memcmp(names[i], model, len) == 0) return true;
    return false;
}

static struct rank *choose_rank(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_text h = kvr_headers_get(kvr_http_conn_request(c)->headers, "x-data-parallel-rank");
    struct rank *best = &m->ranks[0];
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

static void generate(struct mock *m, struct kvr_http_conn *c, bool chat)
{
    const struct kvr_http_request *http = kvr_http_conn_request(c);
    struct kvr_openai_request rq;
    const char *why;
    size_t n = 0;
    if (kvr_openai_parse(m->json, http->body, http->body_len, &rq, &why)) {
        reply_error(c, 400, why);
        return;
    }
    if (rq.model && !model_is_known(m, rq.model, rq.model_len)) {
        reply_error(c, 404, "The model does not exist.");
        return;
    }
    struct rank *rank = choose_rank(m, c);
    uint32_t *tokens = rank ? request_tokens(&rq, &n, &why) : NULL;
    uint64_t max = rq.max_tokens ? rq.max_tokens : m->o->default_max_tokens;
    if (!rank) why = "data-parallel rank out of range";
    else if (tokens && n == 0) why = "the prompt is empty";
    else if (tokens && (n > TOKENS_MAX || !mock_engine_fits(rank->engine, n, max))) why = "the prompt is longer than the cache";
    else if (tokens) why = NULL;
    struct exchange *x = why ? NULL : calloc(1, sizeof *x);
    if (!x) {
        free(tokens);
        reply_error(c, why ? 400 : 500, why ? why : "out of memory");
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
    if (!rank->in_pass) next_pass(rank);
}

static void tokenize(struct mock *m, struct kvr_http_conn *c)
{
    const struct kvr_http_request *http = kvr_http_conn_request(c);
    struct kvr_openai_request rq;
    const char *why;
    size_t n;
    struct kvr_buf b = {0};
    uint32_t *t = kvr_openai_parse(m->json, http->body, http->body_len, &rq, &why) ? NULL : request_tokens(&rq, &n, &why);
    if (!t) {
        reply_error(c, 400, why);
        return;
    }
    kvr_json_open(&b, '{');
    kvr_json_put_u64(&b, "count", n);
    kvr_json_put_u64(&b, "max_model_len", m->o->num_gpu_blocks * m->o->block_size);
    kvr_json_key(&b, "tokens");
    kvr_json_open(&b, '[');
    for (size_t i = 0; i < n; i++) kvr_json_u64(&b, t[i]);
    kvr_json_close(&b, ']');
    kvr_json_close(&b, '}');
    free(t);
    reply_json(c, 200, &b);
}

static void detokenize(struct mock *m, struct kvr_http_conn *c)
{
    const struct kvr_http_request *http = kvr_http_conn_request(c);
    struct kvr_json root, tokens;
    struct kvr_buf b = {0}, text = {0};
    if (kvr_json_parse(m->json, http->body, http->body_len, &root, NULL) ||
        kvr_json_type_of(tokens = kvr_json_get(root, "tokens")) != KVR_JSON_ARRAY) {
        reply_error(c, 400, "`tokens` must be an array of token ids");
        return;
    }
    size_t n = kvr_json_count(tokens);
    uint32_t *t = malloc((n + 1) * sizeof *t);
    if (!t || kvr_json_u32_array(tokens, t, n) < 0) n = 0;
    for (size_t i = 0; i < n; i++) {
        char ch = t[i] < 256 ? (char)t[i] : '?';
        kvr_buf_add(&text, &ch, 1);
    }
    free(t);
    kvr_json_open(&b, '{');
    kvr_json_key(&b, "prompt");
    kvr_json_str(&b, text.data ? text.data : "", text.len);
    kvr_json_close(&b, '}');
    kvr_buf_free(&text);
    reply_json(c, 200, &b);
}

static void models(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    kvr_json_open(&b, '{');
    kvr_json_put_str(&b, "object", "list");
    kvr_json_key(&b, "data");
    kvr_json_open(&b, '[');
    for (int i = 0; i < (m->o->lora ? 2 : 1); i++) {
        kvr_json_open(&b, '{');
        kvr_json_put_str(&b, "id", i ? m->o->lora : m->o->model);
        kvr_json_put_str(&b, "object", "model");
        kvr_json_put_str(&b, "owned_by", "kvroute-mock");
        kvr_json_put_str(&b, "root", m->o->model);
        if (i) kvr_json_put_str(&b, "parent", m->o->model);
        else {
            kvr_json_key(&b, "parent");
            kvr_json_null(&b);
        }
        kvr_json_put_u64(&b, "max_model_len", m->o->num_gpu_blocks * m->o->block_size);
        kvr_json_close(&b, '}');
    }
    kvr_json_close(&b, ']');
    kvr_json_close(&b, '}');
    reply_json(c, 200, &b);
}

static void metrics(struct mock *m, struct kvr_http_conn *c)
{
    static const struct {
        const char *name, *type;
        size_t at;
    } rows[] = {
        {"vllm:num_requests_running", "gauge", offsetof(struct mock_engine_stats, running)},
        {"vllm:num_requests_waiting", "gauge", offsetof(struct mock_engine_stats, waiting)},
        {"vllm:prefix_cache_queries_total", "counter", offsetof(struct mock_engine_stats, prompt_tokens)},
        {"vllm:prefix_cache_hits_total", "counter", offsetof(struct mock_engine_stats, cached_tokens)},
        {"vllm:prompt_tokens_total", "counter", offsetof(struct mock_engine_stats, prompt_tokens)},
        {"vllm:generation_tokens_total", "counter", offsetof(struct mock_engine_stats, generated_tokens)},
        {"vllm:request_success_total", "counter", offsetof(struct mock_engine_stats, requests)},
        {"vllm:num_preemptions_total", "counter", offsetof(struct mock_engine_stats, preemptions)},
        {"kvroute_mock_cached_blocks", "gauge", offsetof(struct mock_engine_stats, cached_blocks)},
    };
    struct kvr_buf b = {0};
    struct mock_engine_stats st;
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        kvr_buf_printf(&b, "# TYPE %s %s\n", rows[i].name, rows[i].type);
        for (uint64_t r = 0; r < m->o->dp_size; r++) {
            mock_engine_stats(m->ranks[r].engine, &st);
            kvr_buf_printf(&b, "%s{model_name=\"%s\",engine=\"%llu\"} %llu\n", rows[i].name, m->o->model, (unsigned long long)r,
                           (unsigned long long)*(uint64_t *)(void *)((char *)&st + rows[i].at));
        }
    }
    kvr_buf_str(&b, "# TYPE vllm:kv_cache_usage_perc gauge\n");
    for (uint64_t r = 0; r < m->o->dp_size; r++) {
        mock_engine_stats(m->ranks[r].engine, &st);
        kvr_buf_printf(&b, "vllm:kv_cache_usage_perc{model_name=\"%s\",engine=\"%llu\"} %.6f\n", m->o->model, (unsigned long long)r,
                       (double)st.used_blocks / (double)st.total_blocks);
    }
    kvr_buf_str(&b, "# TYPE vllm:cache_config_info gauge\n");
    for (uint64_t r = 0; r < m->o->dp_size; r++)
        kvr_buf_printf(&b, "vllm:cache_config_info{block_size=\"%llu\",engine=\"%llu\",num_gpu_blocks=\"%llu\"} 1\n",
                       (unsigned long long)m->o->block_size, (unsigned long long)r, (unsigned long long)m->o->num_gpu_blocks);
    kvr_http_reply(c, 200, "text/plain; version=0.0.4", NULL, b.data ? b.data : "", b.len);
    kvr_buf_free(&b);
}

static void reset_cache(struct mock *m, struct kvr_http_conn *c)
{
    bool ok = true;
    for (uint64_t r = 0; r < m->o->dp_size; r++) {
        ok &= mock_engine_reset_cache(m->ranks[r].engine);
        if (m->ranks[r].events) mock_events_flush(m->ranks[r].events);
    }
    if (ok) kvr_http_reply(c, 200, "application/json", NULL, "{}", 2);
    else reply_error(c, 503, "requests are running");
}

static void health(struct mock *m, struct kvr_http_conn *c)
{
    bool up = (double)(uv_now(&m->loop) - m->started_ms) >= m->o->startup_time * 1000;
    kvr_http_reply(c, up ? 200 : 503, NULL, NULL, "", 0);
}

static void on_request(struct kvr_http_conn *c, void *ctx)
{
    static const struct {
        const char *method, *path;
        int what;
    } routes[] = {{"POST", "/v1/completions", 0}, {"POST", "/v1/chat/completions", 1}, {"GET", "/v1/models", 2},
                  {"POST", "/tokenize", 3},       {"POST", "/detokenize", 4},          {"GET", "/health", 5},
                  {"GET", "/metrics", 6},         {"POST", "/reset_prefix_cache", 7}};
    struct mock *m = ctx;
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    bool path_known = false;
    for (size_t i = 0; i < KVR_ARRAY_LEN(routes); i++) {
        if (!kvr_text_is(rq->path, routes[i].path)) continue;
        path_known = true;
        if (!kvr_text_is(rq->method, routes[i].method)) continue;
        switch (routes[i].what) {
        case 0: generate(m, c, false); return;
        case 1: generate(m, c, true); return;
        case 2: models(m, c); return;
        case 3: tokenize(m, c); return;
        case 4: detokenize(m, c); return;
        case 5: health(m, c); return;
        case 6: metrics(m, c); return;
        default: reset_cache(m, c); return;
        }
    }
    reply_error(c, path_known ? 405 : 404, path_known ? "Method Not Allowed" : "Not Found");
}

static void on_gone(struct kvr_http_conn *c, void *ctx)
{
    struct exchange *x = kvr_http_conn_user(c);
    (void)ctx;
    if (!x) return;
    if (x->request) mock_engine_abort(x->rank->engine, x->request);
    exchange_free(x);
}

static void error_body(struct kvr_buf *out, int status, const char *message)
{
    kvr_openai_error(out, status, kvr_openai_error_type(status), message);
}

/* ---- life -------------------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *s, int signum)
{
    (void)signum;
    uv_stop(s->loop);
}

/* tcp port + rank. */
static bool shifted(const char *endpoint, uint32_t rank, char *out, size_t cap)
{
    const char *colon = strrchr(endpoint, ':');
    if (rank == 0) return snprintf(out, cap, "%s", endpoint) < (int)cap;
    if (!colon) return false;
    return snprintf(out, cap, "%.*s:%lu", (int)(colon - endpoint), endpoint, strtoul(colon + 1, NULL, 10) + rank) < (int)cap;
}

static int start_rank(struct mock *m, uint32_t id)
{
    const struct mock_options *o = m->o;
    struct rank *r = &m->ranks[id];
    struct mock_engine_config ec = {.block_size = (uint32_t)o->block_size,
                                    .num_blocks = (uint32_t)o->num_gpu_blocks,
                                    .max_num_seqs = (uint32_t)o->max_num_seqs,
                                    .max_batched_tokens = (uint32_t)o->max_num_batched_tokens,
                                    .speedup = o->speedup_ratio,
                                    .seed = o->seed,
                                    .prefix_caching = o->prefix_caching,
                                    .on_event = on_event,
                                    .on_token = on_token,
                                    .ctx = r};
    r->mock = m;
    r->id = id;
    uv_timer_init(&m->loop, &r->timer);
    r->timer.data = r;
    if (!(r->engine = mock_engine_create(&ec))) return 1;
    if (!o->kv_events) return 0;
    char events[256], replay[256];
    if (!shifted(o->kv_events, id, events, sizeof events) || (o->kv_replay && !shifted(o->kv_replay, id, replay, sizeof replay))) {
        kvr_log("kvroute mock: --kv-events, --kv-replay: several ranks need tcp endpoints with a port");
        return 1;
    }
    struct mock_events_config vc = {.zmq = m->zmq,
                                    .loop = &m->loop,
                                    .events = events,
                                    .replay = o->kv_replay ? replay : NULL,
                                    .rank = id,
                                    .block_size = (uint32_t)(o->fault_block_size ? o->fault_block_size : o->block_size),
                                    .replay_buffer = o->replay_buffer,
                                    .drop_every = o->drop_events,
                                    .topic_in_replay = o->hybrid_topic,
                                    .omit_salt = o->fault_omit_salt};
    if (!(r->events = mock_events_create(&vc))) {
        kvr_log("kvroute mock: --kv-events, --kv-replay: cannot bind '%s' or its replay: %s", events, zmq_strerror(zmq_errno()));
        return 1;
    }
    return 0;
}

static void close_all(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h) && (h->type == UV_TIMER || h->type == UV_SIGNAL)) uv_close(h, NULL);
}

int mock_main(const struct mock_options *o)
{
    struct mock *m = calloc(1, sizeof *m);
    int rc = 0;
    if (!m) return 1;
    m->o = o;
    signal(SIGPIPE, SIG_IGN);
    uv_loop_init(&m->loop);
    m->zmq = zmq_ctx_new();
    m->json = kvr_json_parser_new();
    uv_signal_init(&m->loop, &m->term);
    uv_signal_init(&m->loop, &m->intr);
    uv_signal_start(&m->term, on_signal, SIGTERM);
    uv_signal_start(&m->intr, on_signal, SIGINT);
    m->started_ms = uv_now(&m->loop);
    for (uint32_t i = 0; i < o->dp_size && rc == 0; i++) rc = start_rank(m, i);
    struct kvr_http_server_config sc = {.host = o->host,
                                        .port = (uint16_t)o->port,
                                        .body_max = 256u << 20,
                                        .connections_max = 65536,
                                        .head_timeout_s = 30,
                                        .body_timeout_s = 60,
                                        .idle_timeout_s = 5,
                                        .write_timeout_s = 300,
                                        .handler = {on_request, on_gone, NULL, error_body, m}};
    if (rc == 0 && (rc = kvr_http_server_start(&m->loop, &sc, &m->server)))
        kvr_log("kvroute mock: --port: cannot listen on %s:%u: %s", o->host, (unsigned)o->port, uv_strerror(rc));
    if (rc == 0) {
        printf("kvroute mock: %s on %s:%u, %llu blocks of %llu tokens, %llu rank(s)\n", o->model, o->host, kvr_http_server_port(m->server),
               (unsigned long long)o->num_gpu_blocks, (unsigned long long)o->block_size, (unsigned long long)o->dp_size);
        fflush(stdout);
        uv_run(&m->loop, UV_RUN_DEFAULT);
    }
    kvr_http_server_close(m->server);
    for (uint64_t i = 0; i < o->dp_size; i++) mock_events_destroy(m->ranks[i].events);
    uv_walk(&m->loop, close_all, NULL);
    while (uv_run(&m->loop, UV_RUN_DEFAULT)) continue;
    for (uint64_t i = 0; i < o->dp_size; i++) mock_engine_destroy(m->ranks[i].engine);
    uv_loop_close(&m->loop);
    zmq_ctx_term(m->zmq);
    kvr_json_parser_free(m->json);
    free(m);
    return rc ? 1 : 0;
}
