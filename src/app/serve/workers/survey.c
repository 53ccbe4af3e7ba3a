/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks each worker what it is configured with, when it has come up: one GET after the other, until enough is known.
 *
 *     due --up--> the questions of wire/engine_survey.h --> learn()
 *
 * An answer that is too long says nothing, and the next one is asked. A worker that breaks off or stays silent
 * ends its survey, which is repeated; all others are repeated when it comes back after it was down, as it may have been started anew with
 * other flags. At most SURVEYS_MAX at a time; what an answer may take is bounded, in bytes and in time.
 */
#include "app/serve/state.h"

#include <string.h>

#include "wire/engine_survey.h"

enum { SURVEYS_MAX = 32, BODY_MAX = 1 << 20, METRICS_MAX = 4 << 20, ANSWER_MS = 5000, PATIENT_MAX = 16 /* in a tick */ };

struct survey {
    struct survey *next;
    struct serve *serve;
    uint64_t id;
    struct kvr_endpoint endpoint;
    char model[MODEL_MAX], key[API_KEY_MAX];
    enum kvr_survey_step step;
    struct kvr_http_call *call;
    uv_timer_t timeout;
    int status;
    size_t bytes;
    struct kvr_prom_reader reader;
    struct kvr_buf body;
    struct kvr_engine_facts facts;
};

static void ask(struct survey *v);

static void on_closed(uv_handle_t *h)
{
    struct survey *v = h->data;
    kvr_buf_free(&v->body);
    free(v);
}

static void end(struct survey *v)
{
    struct serve *s = v->serve;
    struct survey **p = &s->surveys;
    while (*p != v) p = &(*p)->next;
    *p = v->next;
    s->surveys_n--;
    if (v->call) kvr_http_call_cancel(v->call);
    v->call = NULL;
    uv_close((uv_handle_t *)&v->timeout, on_closed);
}

/* ---- the answers -------------------------------------------------------------------------------------------------- */

static void take_answer(struct survey *v)
{
    if (v->step == KVR_SURVEY_METRICS) kvr_prom_end(&v->reader);
    else kvr_survey_answer(&v->facts, v->step, v->status, v->serve->json, v->body.data ? v->body.data : "", v->body.len);
}

static void go_on(struct survey *v)
{
    v->step = kvr_survey_next(&v->facts, v->step);
    if (v->step < KVR_SURVEY_OVER) {
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
    if (v->bytes > (v->step == KVR_SURVEY_METRICS ? METRICS_MAX : BODY_MAX)) {
        kvr_http_call_cancel(call);
        v->call = NULL;
        go_on(v);
    } else if (v->step != KVR_SURVEY_METRICS) {
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

static struct kvr_body *rank_question(const struct survey *v)
{
    struct kvr_buf b = {0};
    kvr_survey_rank_question(v->model, &b);
    struct kvr_body *body = b.failed ? NULL : kvr_body_copy(b.data, b.len);
    kvr_buf_free(&b);
    return body;
}

static void put_head(const struct survey *v, size_t body_len, struct kvr_buf *h)
{
    bool ranks = v->step == KVR_SURVEY_RANKS;
    kvr_buf_printf(h, "%s %s%s HTTP/1.1\r\nHost: %s\r\n", ranks ? "POST" : "GET", v->endpoint.base, kvr_survey_path(v->step),
                   v->endpoint.authority);
    if (ranks) kvr_buf_printf(h, "Content-Type: application/json\r\nContent-Length: %zu\r\n" KVR_SURVEY_RANK_HEADER, body_len);
    worker_key_put(v->key, h);
    kvr_buf_str(h, "\r\n");
}

static void ask(struct survey *v)
{
    struct kvr_buf head = {0};
    struct kvr_body *body = v->step == KVR_SURVEY_RANKS ? rank_question(v) : NULL;
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
    v->call = head.failed || (v->step == KVR_SURVEY_RANKS && !body) ? NULL : kvr_http_call_start(v->serve->health_client, &cc);
    kvr_buf_free(&head);
    kvr_body_unref(body);
    uv_timer_start(&v->timeout, on_timeout, v->call ? ANSWER_MS : 0, 0);
}

static bool is_asked(const struct serve *s, uint64_t id)
{
    for (const struct survey *v = s->surveys; v; v = v->next)
        if (v->id == id) return true;
    return false;
}

static bool begin_locked(struct serve *s, const struct worker *w)
{
    struct survey *v = is_asked(s, w->id) ? NULL : calloc(1, sizeof *v);
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
    v->next = s->surveys;
    s->surveys = v;
    s->surveys_n++;
    ask(v);
    return true;
}

/* Main loop, which alone writes what is read here. Those that have waited in vain. Returns: how many. */
static size_t find_patient(const struct serve *s, uint64_t now, uint64_t ids[PATIENT_MAX])
{
    size_t n = 0;
    for (const struct worker *w = s->workers; w && n < PATIENT_MAX; w = w->next) {
        bool late = (double)(now - w->learnt.since_ms) > s->o->restore_timeout * 1000;
        if (!w->learnt.waits || !(late || w->health == HEALTH_DOWN || w->unreachable)) continue;
        ids[n++] = w->id;
    }
    return n;
}

void survey_tick(struct serve *s)
{
    uint64_t now = now_ms(), ids[PATIENT_MAX];
    for (struct worker *w = s->workers; w && s->surveys_n < SURVEYS_MAX; w = w->next) {
        if (!w->learnt.due_ms || w->learnt.due_ms > now || w->health != HEALTH_UP || !w->models_status) continue;
        kvr_lock(&s->lock);
        if (begin_locked(s, w)) w->learnt.due_ms = 0;
        kvr_unlock(&s->lock);
    }
    size_t n = find_patient(s, now, ids);
    for (size_t i = 0; i < n; i++) learn_nothing(s, ids[i]);
}

void survey_stop(struct serve *s)
{
    while (s->surveys) end(s->surveys);
}
