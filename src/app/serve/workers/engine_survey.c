/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks each worker what it is configured with, when it has come up (net/http/engine_ask.h), at most SURVEYS_MAX at a time.
 *
 *     due --up--> asking --> learn()
 *
 * A survey that was broken off is repeated; all others are repeated when the worker comes back after it was down, as it may have been
 * started anew with other flags.
 */
#include <string.h>

#include "app/serve/workers/entry/worker_key.h"
#include "app/serve/workers/learn.h"
#include "app/serve/workers/table/room.h"
#include "net/http/engine_ask.h"

enum { SURVEYS_MAX = 32, PATIENT_MAX = 16 /* in a tick */ };

struct survey {
    struct survey *next;
    struct workers *workers;
    uint64_t id, ups; /* of the worker, and of its engine: another one may have taken the id when the answer comes */
    struct kvr_engine_ask *ask;
};

static void forget(struct survey *v)
{
    struct workers *ws = v->workers;
    KVR_UNLINK(ws->surveys, v);
    ws->surveys_n--;
    free(v);
}

static void on_answer(void *ctx, const struct kvr_engine_facts *facts, const char *)
{
    struct survey *v = ctx;
    bool same = worker_is_same(v->workers, v->id, v->ups); /* else who came is asked in its turn */
    if (same && facts) learn(v->workers, v->id, facts);
    if (same && !facts) learn_nothing(v->workers, v->id); /* it is asked again in a while */
    forget(v);
}

static bool is_asked(const struct workers *ws, uint64_t id)
{
    for (const struct survey *v = ws->surveys; v; v = v->next)
        if (v->id == id) return true;
    return false;
}

static bool begin_locked(struct workers *ws, const struct worker *w)
{
    struct survey *v = is_asked(ws, w->id) ? NULL : calloc(1, sizeof *v);
    struct kvr_buf key = {0};
    if (!v) return false;
    worker_key_put(w->api_key, &key);
    kvr_buf_add(&key, "", 1);
    struct kvr_engine_ask_config c = {.loop = &ws->process->main_loop,
                                      .client = ws->process->client,
                                      .json = ws->process->json,
                                      .endpoint = &w->endpoint,
                                      .model = w->models_n ? w->models[0].id : "",
                                      .headers = key.data,
                                      .connect_timeout_s = ws->o->connect_timeout,
                                      .fn = on_answer,
                                      .ctx = v};
    v->ask = key.failed ? NULL : kvr_engine_ask_start(&c);
    kvr_buf_free(&key);
    if (!v->ask) {
        free(v);
        return false;
    }
    v->workers = ws;
    v->id = w->id;
    v->ups = atomic_load(&w->ups);
    v->next = ws->surveys;
    ws->surveys = v;
    ws->surveys_n++;
    return true;
}

/* Main loop, which alone writes what is read here. Those that have waited in vain. Returns: how many. */
static size_t find_patient(const struct workers *ws, uint64_t now, uint64_t ids[PATIENT_MAX])
{
    size_t n = 0;
    for (const struct worker *w = ws->workers; w && n < PATIENT_MAX; w = w->next) {
        bool late = (double)(now - w->learnt.since_ms) > ws->o->restore_timeout * 1000;
        if (!w->learnt.waits || !(late || w->health == HEALTH_DOWN || w->unreachable)) continue;
        ids[n++] = w->id;
    }
    return n;
}

void engine_survey_tick(struct workers *ws)
{
    uint64_t now = kvr_now_ms(), ids[PATIENT_MAX];
    for (struct worker *w = ws->workers; w && ws->surveys_n < SURVEYS_MAX; w = w->next) {
        if (!w->learnt.due_ms || w->learnt.due_ms > now || w->health != HEALTH_UP || !w->models_status) continue;
        kvr_lock(&ws->lock);
        if (begin_locked(ws, w)) w->learnt.due_ms = 0;
        kvr_unlock(&ws->lock);
    }
    size_t n = find_patient(ws, now, ids);
    for (size_t i = 0; i < n; i++) learn_nothing(ws, ids[i]);
}

void engine_survey_stop(struct workers *ws)
{
    while (ws->surveys) {
        kvr_engine_ask_cancel(ws->surveys->ask);
        forget(ws->surveys);
    }
}
