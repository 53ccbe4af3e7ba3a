/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks each worker what it is configured with, when it has come up: one GET after the other, until enough is known.
 *
 *     due --up--> /metrics -> /kv_event_sources -> (/server_info -> /get_server_info) -> (a rank that cannot be) --> learn()
 *
 * An answer that is no 200, too long or not readable says nothing, and the next one is asked. A worker that breaks off or stays silent
 * ends its survey, which is repeated; all others are repeated when it comes back after it was down, as it may have been started anew with
 * other flags. At most SURVEYS_MAX at a time; what an answer may take is bounded, in bytes and in time.
 */
#include "app/serve/state.h"

#include <string.h>

enum { SURVEYS_MAX = 32, BODY_MAX = 1 << 20, METRICS_MAX = 4 << 20, ANSWER_MS = 5000, NO_SUCH_RANK = 1 << 30 };

enum step { METRICS, SOURCES, SERVER_INFO, OLD_SERVER_INFO, RANKS, OVER };

struct survey {
    struct survey *next;
    struct serve *serve;
    uint64_t id;
    struct kvr_endpoint endpoint;
    char model[MODEL_MAX], key[API_KEY_MAX];
    enum step step;
    struct kvr_http_call *call;
    uv_timer_t timeout;
    int status;
    size_t bytes;
    struct kvr_prom_reader reader;
    struct kvr_buf body;
    struct kvr_engine_facts facts;
};

static struct {
    struct survey *list;
    size_t n;
} surveys;

static void ask(struct survey *v);

static void on_closed(uv_handle_t *h)
{
    struct survey *v = h->data;
    kvr_buf_free(&v->body);
    free(v);
}

static void end(struct survey *v)
{
    struct survey **p = &surveys.list;
    while (*p != v) p = &(*p)->next;
    *p = v->next;
    surveys.n--;
    if (v->call) kvr_http_call_cancel(v->call);
    v->call = NULL;
    uv_close((uv_handle_t *)&v->timeout, on_closed);
}

/* ---- the answers -------------------------------------------------------------------------------------------------- */

static void read_json(struct survey *v)
{
    struct kvr_json root;
    if (kvr_json_parse(v->serve->json, v->body.data ? v->body.data : "", v->body.len, &root, NULL)) return;
    if (v->step == SOURCES) (void)kvr_engine_facts_sources(&v->facts, root);
    else (void)kvr_engine_facts_server_info(&v->facts, v->serve->json, root);
}

static void take_answer(struct survey *v)
{
    if (v->step == METRICS) kvr_prom_end(&v->reader);
    else if (v->step == RANKS) (void)kvr_engine_facts_rank_range(&v->facts, v->body.data ? v->body.data : "", v->body.len);
    else if (v->status == 200) read_json(v);
}

/* Is there anything that the next answer may tell? */
static bool is_wanted(const struct survey *v, enum step step)
{
    const struct kvr_engine_facts *f = &v->facts;
    bool enough = f->block_size && f->ranks_n && f->events != KVR_UNTOLD;
    switch (step) {
    case SERVER_INFO: return !enough;
    case OLD_SERVER_INFO: return !f->block_size && f->engine != KVR_FACT_VLLM;
    case RANKS: return f->ranks_n > 1 && f->engine == KVR_FACT_VLLM;
    default: return true;
    }
}

static void go_on(struct survey *v)
{
    do v->step++;
    while (v->step < OVER && !is_wanted(v, v->step));
    if (v->step < OVER) {
        ask(v);
        return;
    }
    learn(v->serve, v->id, &v->facts);
    end(v);
}

/* It is asked again in a while; what it has said so far is not half of something else. */
static void give_up(struct survey *v)
{
    learn_nothing(v->serve, v->id);
    end(v);
}

static void on_head(struct kvr_http_call *call, void *ctx, int status, const struct kvr_headers *h, int64_t length)
{
    (void)call;
    (void)h;
    (void)length;
    ((struct survey *)ctx)->status = status;
}

static void on_body(struct kvr_http_call *call, void *ctx, const char *data, size_t len)
{
    struct survey *v = ctx;
    v->bytes += len;
    if (v->bytes > (v->step == METRICS ? METRICS_MAX : BODY_MAX)) {
        kvr_http_call_cancel(call);
        v->call = NULL;
        go_on(v);
    } else if (v->step != METRICS) {
        kvr_buf_add(&v->body, data, len);
    } else if (v->status == 200) {
        kvr_prom_feed(&v->reader, data, len);
    }
}

static void on_done(struct kvr_http_call *call, void *ctx)
{
    struct survey *v = ctx;
    (void)call;
    v->call = NULL;
    take_answer(v);
    go_on(v);
}

static void on_failed(struct kvr_http_call *call, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct survey *v = ctx;
    (void)call;
    (void)text;
    v->call = NULL;
    if (why == KVR_HTTP_BAD_ANSWER) go_on(v); /* that one it cannot give */
    else give_up(v);
}

static void on_timeout(uv_timer_t *t)
{
    give_up(t->data);
}

static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};

/* ---- the questions ------------------------------------------------------------------------------------------------ */

/* A completion of one token on a rank beyond all: who reads the header refuses it, and says which ranks there are. */
static struct kvr_body *rank_question(const struct survey *v)
{
    struct kvr_buf b = {0};
    kvr_json_open(&b, '{');
    if (v->model[0]) kvr_json_put_str(&b, "model", v->model);
    kvr_json_key(&b, "prompt");
    kvr_buf_str(&b, "[0]");
    b.comma = true;
    kvr_json_put_u64(&b, "max_tokens", 1);
    kvr_json_close(&b, '}');
    struct kvr_body *body = b.failed ? NULL : kvr_body_copy(b.data, b.len);
    kvr_buf_free(&b);
    return body;
}

static void put_head(const struct survey *v, size_t body_len, struct kvr_buf *h)
{
    static const char *const paths[] = {"/metrics", "/kv_event_sources", "/server_info?config_format=json", "/get_server_info",
                                        "/v1/completions"};
    kvr_buf_printf(h, "%s %s%s HTTP/1.1\r\nHost: %s\r\n", v->step == RANKS ? "POST" : "GET", v->endpoint.base, paths[v->step],
                   v->endpoint.authority);
    if (v->step == RANKS)
        kvr_buf_printf(h, "Content-Type: application/json\r\nContent-Length: %zu\r\nX-data-parallel-rank: %d\r\n", body_len, NO_SUCH_RANK);
    worker_key_put(v->key, h);
    kvr_buf_str(h, "\r\n");
}

static void ask(struct survey *v)
{
    struct kvr_buf head = {0};
    struct kvr_body *body = v->step == RANKS ? rank_question(v) : NULL;
    put_head(v, body ? body->len : 0, &head);
    struct kvr_http_call_config cc = {.endpoint = &v->endpoint,
                                      .head = head.data,
                                      .head_len = head.len,
                                      .body = body,
                                      .connect_timeout_s = v->serve->o->connect_timeout,
                                      .handler = &handler,
                                      .ctx = v};
    v->status = 0;
    v->bytes = 0;
    v->body.len = 0;
    v->call = head.failed || (v->step == RANKS && !body) ? NULL : kvr_http_call_start(v->serve->health_client, &cc);
    kvr_buf_free(&head);
    kvr_body_unref(body);
    uv_timer_start(&v->timeout, on_timeout, v->call ? ANSWER_MS : 0, 0);
}

static bool is_asked(uint64_t id)
{
    for (const struct survey *v = surveys.list; v; v = v->next)
        if (v->id == id) return true;
    return false;
}

static bool begin_locked(struct serve *s, const struct worker *w)
{
    struct survey *v = is_asked(w->id) ? NULL : calloc(1, sizeof *v);
    if (!v) return false;
    v->serve = s;
    v->id = w->id;
    v->endpoint = w->endpoint;
    memcpy(v->key, w->api_key, sizeof v->key);
    if (w->models_n) snprintf(v->model, sizeof v->model, "%s", w->models[0].id);
    v->reader.fn = kvr_engine_facts_sample;
    v->reader.ctx = &v->facts;
    uv_timer_init(&s->main_loop, &v->timeout);
    v->timeout.data = v;
    v->next = surveys.list;
    surveys.list = v;
    surveys.n++;
    ask(v);
    return true;
}

/* Returns: the id of one that has waited in vain, or of none (false). */
static bool find_patient_locked(const struct serve *s, uint64_t now, uint64_t *id)
{
    for (const struct worker *w = s->workers; w; w = w->next) {
        bool late = (double)(now - w->learnt.since_ms) > s->o->restore_timeout * 1000;
        if (!w->learnt.waits || !(late || w->health == HEALTH_DOWN || w->unreachable)) continue;
        *id = w->id;
        return true;
    }
    return false;
}

void survey_tick(struct serve *s)
{
    uint64_t now = now_ms(), id;
    bool found;
    pthread_mutex_lock(&s->lock);
    for (struct worker *w = s->workers; w && surveys.n < SURVEYS_MAX; w = w->next)
        if (w->learnt.due_ms && w->learnt.due_ms <= now && w->health == HEALTH_UP && w->models_status && begin_locked(s, w))
            w->learnt.due_ms = 0;
    found = find_patient_locked(s, now, &id);
    pthread_mutex_unlock(&s->lock);
    if (found) learn_nothing(s, id);
}

void survey_stop(void)
{
    while (surveys.list) end(surveys.list);
}
