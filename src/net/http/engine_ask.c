/* SPDX-License-Identifier: Apache-2.0 */
/* One question at a time, on one client; net/http/engine_ask.h. */
#include "net/http/engine_ask.h"

#include <string.h>

#include "wire/engine_survey.h"

enum { BODY_MAX = 1 << 20, METRICS_MAX = 4 << 20, ANSWER_MS = 5000 };

struct kvr_engine_ask {
    struct kvr_engine_ask_config config;
    struct kvr_endpoint endpoint;
    char *headers;
    enum kvr_survey_step step;
    struct kvr_http_call *call;
    uv_timer_t timeout;
    size_t bytes;
    struct kvr_prom_reader reader;
    struct kvr_buf body;
    struct kvr_engine_facts facts;
};

static void ask(struct kvr_engine_ask *a);

static void on_closed(uv_handle_t *h)
{
    struct kvr_engine_ask *a = h->data;
    kvr_buf_free(&a->body);
    free(a->headers);
    free(a);
}

void kvr_engine_ask_cancel(struct kvr_engine_ask *a)
{
    if (a->call) kvr_http_call_cancel(a->call);
    a->call = NULL;
    uv_close((uv_handle_t *)&a->timeout, on_closed);
}

/* ---- the answers -------------------------------------------------------------------------------------------------- */

static void take_answer(struct kvr_engine_ask *a, int status)
{
    if (a->step == KVR_SURVEY_METRICS) kvr_prom_end(&a->reader);
    else kvr_survey_answer(&a->facts, a->step, status, a->config.json, a->body.data ? a->body.data : "", a->body.len);
}

static void go_on(struct kvr_engine_ask *a)
{
    a->step = kvr_survey_next(&a->facts, a->step);
    if (a->step < KVR_SURVEY_OVER) {
        ask(a);
        return;
    }
    kvr_engine_ask_cancel(a); /* its memory lives until the loop goes on */
    a->config.fn(a->config.ctx, &a->facts, NULL);
}

static void give_up(struct kvr_engine_ask *a, const char *why)
{
    kvr_engine_ask_cancel(a);
    a->config.fn(a->config.ctx, NULL, why);
}

static void on_body(struct kvr_http_call *call, void *ctx, const char *data, size_t len)
{
    struct kvr_engine_ask *a = ctx;
    a->bytes += len;
    if (a->bytes > (a->step == KVR_SURVEY_METRICS ? METRICS_MAX : BODY_MAX)) {
        kvr_http_call_cancel(call);
        a->call = NULL;
        go_on(a);
    } else if (a->step != KVR_SURVEY_METRICS) {
        kvr_buf_add(&a->body, data, len);
    } else if (kvr_http_call_status(call) == 200) {
        kvr_prom_feed(&a->reader, data, len);
    }
}

static void on_done(struct kvr_http_call *call, void *ctx)
{
    struct kvr_engine_ask *a = ctx;
    a->call = NULL;
    take_answer(a, kvr_http_call_status(call));
    go_on(a);
}

static void on_failed(struct kvr_http_call *call, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct kvr_engine_ask *a = ctx;
    (void)call;
    a->call = NULL;
    if (why == KVR_HTTP_BAD_ANSWER) go_on(a); /* that one it cannot give */
    else give_up(a, text);
}

static void on_timeout(uv_timer_t *t)
{
    give_up(t->data, "no whole answer in time");
}

static const struct kvr_http_call_handler handler = {NULL, on_body, on_done, on_failed};

/* ---- the questions ------------------------------------------------------------------------------------------------ */

static struct kvr_body *rank_question(const struct kvr_engine_ask *a)
{
    struct kvr_buf b = {0};
    kvr_survey_rank_question(a->facts.model, &b);
    struct kvr_body *body = b.failed ? NULL : kvr_body_copy(b.data, b.len);
    kvr_buf_free(&b);
    return body;
}

static void put_head(const struct kvr_engine_ask *a, size_t body_len, struct kvr_buf *h)
{
    bool ranks = a->step == KVR_SURVEY_RANKS;
    kvr_buf_printf(h, "%s %s%s HTTP/1.1\r\nHost: %s\r\n", ranks ? "POST" : "GET", a->endpoint.base, kvr_survey_path(a->step),
                   a->endpoint.authority);
    if (ranks) kvr_buf_printf(h, "Content-Type: application/json\r\nContent-Length: %zu\r\n" KVR_SURVEY_RANK_HEADER, body_len);
    kvr_buf_str(h, a->headers);
    kvr_buf_str(h, "\r\n");
}

static void ask(struct kvr_engine_ask *a)
{
    struct kvr_buf head = {0};
    struct kvr_body *body = a->step == KVR_SURVEY_RANKS ? rank_question(a) : NULL;
    put_head(a, body ? body->len : 0, &head);
    struct kvr_http_call_config cc = {.endpoint = &a->endpoint,
                                      .head = head.data,
                                      .head_len = head.len,
                                      .body = body,
                                      .connect_timeout_s = a->config.connect_timeout_s,
                                      .handler = &handler,
                                      .ctx = a};
    a->bytes = 0;
    a->body.len = 0;
    a->call = head.failed || (a->step == KVR_SURVEY_RANKS && !body) ? NULL : kvr_http_call_start(a->config.client, &cc);
    kvr_buf_free(&head);
    kvr_body_unref(body);
    uv_timer_start(&a->timeout, on_timeout, a->call ? ANSWER_MS : 0, 0);
}

struct kvr_engine_ask *kvr_engine_ask_start(const struct kvr_engine_ask_config *config)
{
    struct kvr_engine_ask *a = calloc(1, sizeof *a);
    if (!a || !(a->headers = strdup(config->headers))) {
        free(a);
        return NULL;
    }
    a->config = *config;
    a->endpoint = *config->endpoint;
    snprintf(a->facts.model, sizeof a->facts.model, "%s", config->model);
    a->reader.fn = kvr_engine_facts_sample;
    a->reader.ctx = &a->facts;
    uv_timer_init(config->loop, &a->timeout);
    a->timeout.data = a;
    ask(a);
    return a;
}
