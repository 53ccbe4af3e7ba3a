/* SPDX-License-Identifier: Apache-2.0 */
/* One question at a time, on one client; net/http/engine_ask.h. */
#include "net/http/engine_ask.h"

#include <string.h>

#include "net/http/ask.h"
#include "wire/engine_survey.h"

enum { BODY_MAX = 1 << 20, METRICS_MAX = 4 << 20, ANSWER_S = 5 };

struct kvr_engine_ask {
    struct kvr_engine_ask_config config;
    struct kvr_endpoint endpoint;
    char *headers;
    enum kvr_survey_step step;
    struct kvr_ask *asking;
    uv_timer_t later; /* there was no memory for a question */
    struct kvr_prom_reader reader;
    struct kvr_engine_facts facts;
};

static void ask(struct kvr_engine_ask *a);

static void on_closed(uv_handle_t *h)
{
    struct kvr_engine_ask *a = h->data;
    free(a->headers);
    free(a);
}

void kvr_engine_ask_cancel(struct kvr_engine_ask *a)
{
    kvr_ask_cancel(a->asking);
    uv_close((uv_handle_t *)&a->later, on_closed);
}

static void give_up(struct kvr_engine_ask *a, const char *why)
{
    kvr_engine_ask_cancel(a); /* its memory lives until the loop goes on */
    a->config.fn(a->config.ctx, NULL, why);
}

static void take_metrics(void *ctx, const char *data, size_t len)
{
    struct kvr_engine_ask *a = ctx;
    kvr_prom_feed(&a->reader, data, len);
}

/* One that is too long, or no HTTP, it cannot give. */
static void take_answer(void *ctx, const struct kvr_asked *said)
{
    struct kvr_engine_ask *a = ctx;
    a->asking = NULL;
    if (said->status == 0 && (said->late || said->failure != KVR_HTTP_BAD_ANSWER)) {
        give_up(a, said->late ? "no whole answer in time" : said->why);
        return;
    }
    if (said->status && !said->cut && a->step == KVR_SURVEY_METRICS) kvr_prom_end(&a->reader);
    else if (said->status && !said->cut) kvr_survey_answer(&a->facts, a->step, said->status, a->config.json, said->data, said->len);
    a->step = kvr_survey_next(&a->facts, a->step);
    if (a->step < KVR_SURVEY_OVER) {
        ask(a);
        return;
    }
    kvr_engine_ask_cancel(a);
    a->config.fn(a->config.ctx, &a->facts, NULL);
}

static void on_no_memory(uv_timer_t *t)
{
    give_up(t->data, "no whole answer in time");
}

static void ask(struct kvr_engine_ask *a)
{
    bool ranks = a->step == KVR_SURVEY_RANKS, metrics = a->step == KVR_SURVEY_METRICS;
    struct kvr_buf question = {0}, headers = {0};
    if (ranks) kvr_survey_rank_question(a->facts.model, &question);
    kvr_buf_str(&headers, ranks ? KVR_SURVEY_RANK_HEADER : "");
    kvr_buf_str(&headers, a->headers);
    struct kvr_ask_config c = {.loop = a->config.loop,
                               .client = a->config.client,
                               .endpoint = &a->endpoint,
                               .path = kvr_survey_path(a->step),
                               .json = ranks ? &question : NULL,
                               .headers = &headers,
                               .max = metrics ? METRICS_MAX : BODY_MAX,
                               .whole = true,
                               .take = metrics ? take_metrics : NULL,
                               .connect_timeout_s = a->config.connect_timeout_s,
                               .timeout_s = ANSWER_S,
                               .fn = take_answer,
                               .ctx = a};
    a->asking = kvr_ask_start(&c);
    if (!a->asking) uv_timer_start(&a->later, on_no_memory, 0, 0);
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
    uv_timer_init(config->loop, &a->later);
    a->later.data = a;
    ask(a);
    return a;
}
