/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request that generates.
 *
 *     body -> tokens (prompt.c) -> engine.submit      timer(pass) -> end of the pass -> tokens -> answer (answers.c) -> next pass -> timer
 *
 * An exchange ends when all its sequences have, or when its client goes away; within a pass the second is put off to the pass's end.
 */
#include "app/mock/generate.h"

#include <string.h>
#include <kvroute/hash.h>

#include "base/list.h"

/* ---- ends -------------------------------------------------------------------------------------------- */

static void abort_sequences(struct mock_exchange *x)
{
    for (uint32_t i = 0; i < x->sequences_n; i++) {
        if (x->sequences[i].request) mock_engine_abort(x->rank->engine, x->sequences[i].request);
        x->sequences[i].request = NULL;
    }
}

static void exchange_free(struct mock_exchange *x)
{
    for (uint32_t i = 0; i < x->sequences_n; i++) {
        kvr_buf_free(&x->sequences[i].text);
        mock_leg_end(&x->sequences[i]);
    }
    mock_leg_gone(x);
    KVR_LIST_TAKE(x->rank->mock->exchanges, x);
    mock_ask_free(&x->ask);
    free(x);
}

/* Within a pass the engine walks over its requests: those of a broken exchange are taken away behind it. */
static void end_later(struct mock_exchange *x)
{
    if (x->ending) return;
    x->ending = true;
    x->next_ending = x->rank->ending;
    x->rank->ending = x;
}

static void end_broken(struct mock_rank *rank)
{
    while (rank->ending) {
        struct mock_exchange *x = rank->ending;
        rank->ending = x->next_ending;
        abort_sequences(x);
        exchange_free(x);
    }
}

/* ---- passes ------------------------------------------------------------------------------------------ */

static void on_pass(uv_timer_t *t);

/* Passes shorter than the timer's millisecond are carried on in one turn, so that a speed-up means something. */
static void next_pass(struct mock_rank *r)
{
    uint64_t ns = mock_engine_begin_pass(r->engine);
    r->in_pass = ns > 0;
    if (!ns && r->events) mock_events_flush(r->events); /* what gave way to KV that is on its way */
    if (ns) uv_timer_start(&r->timer, on_pass, (ns + 500000) / 1000000, 0);
}

/* The events of a pass are one batch, which goes out when it has been computed, before its tokens. */
static void on_pass(uv_timer_t *t)
{
    struct mock_rank *r = t->data;
    if (r->events) mock_events_flush(r->events);
    r->walking = true;
    mock_engine_end_pass(r->engine);
    r->walking = false;
    end_broken(r);
    next_pass(r);
}

void mock_wake(struct mock_rank *r)
{
    if (!r->in_pass) next_pass(r);
}

void mock_gone(struct kvr_http_conn *c, void *)
{
    struct mock_exchange *x = kvr_http_conn_user(c);
    if (!x) return;
    x->conn = NULL;
    if (x->ending || mock_leg_ignores_abort(x)) return;
    if (x->ask.kv.leg == MOCK_KV_KEEPS) mock_kv_count_aborted(x->rank->mock);
    if (x->rank->walking) {
        end_later(x);
        return;
    }
    struct mock_rank *rank = x->rank;
    abort_sequences(x);
    exchange_free(x);
    mock_wake(rank);
}

/* ---- answers ----------------------------------------------------------------------------------------- */

static void reply_error(struct kvr_http_conn *c, enum mock_api api, const struct mock_error *e)
{
    struct kvr_buf b = {0};
    mock_put_api_error(&b, api, e);
    mock_reply_json(c, e->status, &b);
}

/* ---- streams ----------------------------------------------------------------------------------------- */

static void start_stream(struct mock_exchange *x)
{
    static const char head[] = "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n";
    x->head_sent = true;
    if (x->conn) kvr_http_start(x->conn, 200, head, sizeof head - 1, -1);
}

static void send_piece(struct mock_exchange *x, struct kvr_buf *b)
{
    if (x->conn) kvr_http_write(x->conn, b->data ? b->data : "", b->len);
    kvr_buf_free(b);
}

/* A request that fails: a stream tells it in its course, after 200, anything else in the answer's status. */
static void fail(struct mock_exchange *x, const struct mock_error *e)
{
    struct kvr_buf b = {0};
    struct kvr_http_conn *c = x->conn;
    x->conn = NULL;
    if (!c) return;
    kvr_http_conn_set_user(c, NULL);
    if (!x->ask.stream) {
        reply_error(c, x->ask.api, e);
        return;
    }
    x->conn = c;
    if (!x->head_sent) start_stream(x);
    mock_put_stream_error(&b, x, e);
    send_piece(x, &b);
    kvr_http_end(c);
    x->conn = NULL;
}

/* The fault switches that break an answer. Returns: whether it is broken now. */
static bool breaks(struct mock_exchange *x, uint64_t generated, bool last)
{
    const struct mock_options *o = x->rank->mock->o;
    if (o->fault_error_after && generated >= o->fault_error_after) {
        struct mock_error e = {0};
        mock_fail(&e, 500, "InternalServerError", NULL, "Internal server error");
        fail(x, &e);
        end_later(x);
        return true;
    }
    if (!o->fault_reset_after || !x->conn || generated < o->fault_reset_after || last || !x->ask.stream) return false;
    kvr_http_conn_set_user(x->conn, NULL);
    kvr_http_abort(x->conn);
    x->conn = NULL;
    end_later(x);
    return true;
}

/* ---- tokens ------------------------------------------------------------------------------------------ */

/* Ends what the client is told. */
static void answer(struct mock_exchange *x)
{
    struct kvr_buf b = {0};
    struct kvr_http_conn *c = x->conn;
    if (x->ask.stream) {
        mock_put_stream_end(&b, x);
        send_piece(x, &b);
        kvr_http_conn_set_user(c, NULL);
        kvr_http_end(c);
    } else {
        mock_put_answer(&b, x);
        kvr_http_conn_set_user(c, NULL);
        mock_reply_json(c, 200, &b);
    }
    mock_leg_answered(x->rank->mock, &x->ask);
}

static void finish(struct mock_exchange *x)
{
    if (x->ask.api == MOCK_RESPONSES) mock_store_response(x->rank->mock, x->id, &x->ask.conversation, &x->sequences[0].text);
    if (x->conn) answer(x);
    exchange_free(x);
}

void mock_sequence_over(struct mock_sequence *s)
{
    struct mock_exchange *x = s->exchange;
    if (--x->open) return;
    x->told_cached = x->ask.stream ? x->told_cached : x->sequences[x->sequences_n - 1].cached;
    finish(x);
}

void mock_on_token(void *, struct mock_request *r, uint32_t token, uint64_t index, bool last)
{
    struct mock_sequence *s = mock_request_user(r);
    struct mock_exchange *x = s->exchange;
    char c = mock_char(token);
    if (last) s->request = NULL;
    if (x->ending) return;
    s->generated = index + 1;
    if (!s->fetched) s->cached = mock_request_cached(r);
    kvr_buf_add(&s->text, &c, 1);
    /* A stream tells what was cached of the sequence that answers first, an answer as a whole that of the last one. */
    if (!x->cached_known || !x->ask.stream) x->told_cached = s->cached;
    if (x->ask.stream) {
        struct kvr_buf b = {0};
        if (!x->head_sent) start_stream(x);
        if (!x->cached_known) mock_put_stream_begin(&b, x);
        x->cached_known = true;
        mock_put_stream_token(&b, x, s, token, last);
        send_piece(x, &b);
        if (x->ending) return; /* the client went away */
    }
    x->cached_known = true;
    if (breaks(x, s->generated, last)) return;
    if (last && mock_leg_last_token(s, r)) mock_sequence_over(s);
}

void mock_on_event(void *ctx, const struct kvr_event *ev, const uint32_t *tokens, size_t n, void *user)
{
    struct mock_rank *r = ctx;
    const struct mock_sequence *s = user;
    const struct mock_ask *a = s ? &s->exchange->ask : NULL;
    if (r->events) mock_events_add(r->events, ev, tokens, n, a && a->is_lora ? a->model : NULL, a && a->salt[0] ? a->salt : NULL);
}

void mock_on_host_event(void *ctx, const struct kvr_event *ev, const uint32_t *tokens, size_t n)
{
    const struct mock_rank *r = ctx;
    if (r->events) mock_events_add_host(r->events, ev, tokens, n);
}

/* ---- requests ---------------------------------------------------------------------------------------- */

static struct mock_rank *choose_rank(struct mock *m, struct kvr_http_conn *c, const struct mock_ask *ask)
{
    struct kvr_text h = kvr_headers_get(kvr_http_conn_request(c)->headers, "x-data-parallel-rank");
    struct mock_rank *best = &m->ranks[0];
    struct mock_engine_stats a, b;
    if (ask->kv.routed >= 0) return (uint64_t)ask->kv.routed < m->o->dp_size ? &m->ranks[ask->kv.routed] : NULL;
    char s[16] = {0}, *end = s;
    if (h.ptr) memcpy(s, h.ptr, KVR_MIN(h.len, sizeof s - 1));
    unsigned long id = strtoul(s, &end, 10);
    if (end != s && !*end) return id < m->o->dp_size ? &m->ranks[id] : NULL; /* what is no number asks for none */
    if (ask->kv.rooms_n && ask->kv.leg == MOCK_KV_KEEPS) return &m->ranks[ask->kv.rooms[0] % m->o->dp_size];
    for (uint64_t i = 1; i < m->o->dp_size; i++) {
        mock_engine_stats(m->ranks[i].engine, &a);
        mock_engine_stats(best->engine, &b);
        if (a.running + a.waiting < b.running + b.waiting) best = &m->ranks[i];
    }
    return best;
}

static uint64_t cache_of(const struct mock_ask *a)
{
    uint64_t salt = a->salt[0] ? kvr_hash_bytes(a->salt, strlen(a->salt), 7) : 0;
    return a->is_lora ? salt ^ kvr_hash_bytes(a->model, strlen(a->model), 9) : salt;
}

/* Takes the ask. NULL: out of memory; the ask stays the caller's. */
static struct mock_exchange *exchange_new(struct mock *m, struct mock_rank *rank, struct kvr_http_conn *c, const struct mock_ask *ask)
{
    uint32_t n = (uint32_t)ask->prompts_n * ask->n;
    struct mock_exchange *x = calloc(1, sizeof *x + n * sizeof x->sequences[0]);
    if (!x) return NULL;
    x->conn = c;
    x->rank = rank;
    x->ask = *ask;
    x->id = ++m->next_id;
    x->salt = cache_of(ask);
    if (ask->kv.leg == MOCK_KV_KEEPS && !mock_kv_meets(m)) mock_kv_name(x);
    KVR_LIST_PUSH(m->exchanges, x);
    x->sequences_n = x->open = n;
    for (uint32_t i = 0; i < n; i++)
        x->sequences[i] = (struct mock_sequence){.exchange = x, .index = i, .prompt = &x->ask.prompts[i / ask->n]};
    return x;
}

bool mock_submit_sequence(struct mock_sequence *s)
{
    struct mock_exchange *x = s->exchange;
    uint64_t room = mock_model_len(x->rank->mock) - s->prompt->n;
    struct mock_engine_request rq = {.tokens = s->prompt->tokens,
                                     .n = s->prompt->n,
                                     .max_tokens = mock_leg_holds_back(x) ? 1 : KVR_MIN(x->ask.max_tokens, room),
                                     .salt = x->salt,
                                     .skip_cache = x->ask.prompt_logprobs,
                                     .reports = x->ask.reports,
                                     .remote = x->ask.kv.leg == MOCK_KV_FETCHES,
                                     .user = s};
    s->request = mock_engine_submit(x->rank->engine, &rq);
    return s->request;
}

static bool fits(const struct mock *m, const struct mock_rank *rank, const struct mock_ask *a)
{
    for (size_t i = 0; i < a->prompts_n; i++)
        if (!mock_engine_fits(rank->engine, a->prompts[i].n, KVR_MIN(a->max_tokens, mock_model_len(m) - a->prompts[i].n))) return false;
    return true;
}

void mock_break(struct mock_exchange *x, const struct mock_error *e)
{
    struct mock_rank *rank = x->rank;
    fail(x, e);
    abort_sequences(x);
    exchange_free(x);
    mock_wake(rank);
}

void mock_submit(struct mock_exchange *x)
{
    struct mock_error e = x->ask.late;
    uint32_t n = mock_leg_holds_back(x) ? 0 : e.status ? (uint32_t)x->ask.late_at * x->ask.n : x->sequences_n;
    bool ok = mock_leg_start(x);
    for (uint32_t i = 0; i < n && ok; i++) ok = mock_submit_sequence(&x->sequences[i]);
    if (!ok) mock_fail(&e, 500, "InternalServerError", NULL, "out of memory");
    if (!e.status) {
        mock_wake(x->rank);
        return;
    }
    if (x->ask.late_at) mock_wake(x->rank);
    mock_break(x, &e);
}

static void begin(struct mock *m, struct mock_exchange *x)
{
    const struct mock_options *o = m->o;
    kvr_http_conn_set_user(x->conn, x);
    kvr_http_conn_drop_body(x->conn);
    if (o->fault_bare_stream && x->ask.stream) start_stream(x);
    if (o->fault_hang || o->fault_bare_stream || mock_leg_waits(x)) return;
    mock_submit(x);
}

static void refuse(struct mock *m, struct kvr_http_conn *c, struct mock_ask *a, const struct mock_error *e)
{
    enum mock_api api = a->api;
    mock_leg_refused(m, a);
    mock_ask_free(a);
    reply_error(c, api, e);
}

void mock_generate(struct mock *m, struct kvr_http_conn *c, enum mock_api api)
{
    const struct kvr_http_request *http = kvr_http_conn_request(c);
    struct mock_ask ask;
    struct mock_error e = {0};
    struct mock_exchange *x = NULL;
    int rc = mock_read_ask(m, api, http->body, http->body_len, &ask, &e);
    struct mock_rank *rank = choose_rank(m, c, &ask);
    if (rc == 0 && !rank)
        mock_fail(&e, 400, "BadRequestError", "data_parallel_rank", "data_parallel_rank is out of range [0, %llu).",
                  (unsigned long long)m->o->dp_size);
    else if (rc == 0 && !ask.late.status && !fits(m, rank, &ask))
        mock_fail(&e, 400, "BadRequestError", "input_tokens", "the prompt and its answer are longer than the cache");
    if (!e.status && mock_leg_check(rank, c, &ask, &e)) {
        mock_ask_free(&ask);
        return;
    }
    if (!e.status && !(x = exchange_new(m, rank, c, &ask))) mock_fail(&e, 500, "InternalServerError", NULL, "out of memory");
    if (x) {
        begin(m, x);
        return;
    }
    refuse(m, c, &ask, &e);
}

void mock_count_tokens(struct mock *m, struct kvr_http_conn *c)
{
    const struct kvr_http_request *http = kvr_http_conn_request(c);
    struct mock_ask ask;
    struct mock_error e = {0};
    struct kvr_buf b = {0};
    if (mock_read_ask(m, MOCK_MESSAGES, http->body, http->body_len, &ask, &e)) {
        reply_error(c, MOCK_MESSAGES, &e);
    } else {
        kvr_json_printf(&b, "{'input_tokens':%zu,'context_management':{'original_input_tokens':%zu}}", ask.prompts[0].n, ask.prompts[0].n);
        mock_reply_json(c, 200, &b);
    }
    mock_ask_free(&ask);
}
