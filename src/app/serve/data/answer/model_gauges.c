/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many requests of a model wait and run, and how they end, in the entry of workers/counts/model_counts.h that a request looks up once.
 * It waits from the end of READING until it is sent, runs until its end, and goes back to waiting when its worker has failed and another
 * one is looked for.
 *
 *     READING: not counted yet --> waiting --> running --> the end
 *                                     ^           |
 *                                     '-----------'
 */
#include "app/serve/data/answer/model_gauges.h"

#include "app/serve/data/request/legs.h"
#include "app/serve/workers/counts/labels.h"
#include "app/serve/workers/workers.h"

static void add(_Atomic int64_t *gauge, int64_t by)
{
    atomic_fetch_add_explicit(gauge, by, memory_order_relaxed);
}

static void stand(struct request *r, enum request_stand to)
{
    struct model_counts *m = r->gauges.of;
    if (!m || r->gauges.stand == to) return;
    if (r->gauges.stand == GAUGE_WAITING) add(&m->waiting, -1);
    if (r->gauges.stand == GAUGE_RUNNING) add(&m->running, -1);
    if (to == GAUGE_WAITING) add(&m->waiting, 1);
    if (to == GAUGE_RUNNING) add(&m->running, 1);
    r->gauges.stand = to;
}

/* A request that names no model has its worker's, so it is counted from when that is known; `late`: as it stands. */
static void look_up(struct request *r, bool late)
{
    struct data_plane *data = data_of(r);
    const struct attempt *a = r->model[0] ? NULL : legs_computed(r);
    char name[MODEL_MAX] = "";
    if (r->gauges.of || !(r->model[0] || late)) return;
    if (a && a->worker) {
        workers_lock(data->workers);
        snprintf(name, sizeof name, "%s", worker_model(data->workers, a->worker));
        workers_unlock(data->workers);
    }
    r->gauges.of = model_counts_of(data->workers, r->model[0] ? r->model : name);
}

void model_gauges_again(struct request *r)
{
    stand(r, GAUGE_NOWHERE);
    r->gauges.of = NULL;
}

static bool is_sent_in(enum request_phase phase)
{
    return phase >= PHASE_PREFILL;
}

void model_gauges_enter(struct request *r)
{
    struct model_gauges *f = &r->gauges;
    if (r->phase == PHASE_READING) return;
    bool sent = is_sent_in(r->phase);
    look_up(r, sent);
    if (r->phase == PHASE_CHOOSING && !f->queued_ns) f->queued_ns = kvr_monotonic_ns();
    if (sent && !f->chosen && r->routed) {
        f->chosen = true;
        kvr_histogram_add(&f->of->queue_wait, (double)(kvr_monotonic_ns() - f->queued_ns) / 1e9);
    }
    stand(r, sent ? GAUGE_RUNNING : GAUGE_WAITING);
}

void model_gauges_first_token(const struct attempt *a, uint64_t now_ns)
{
    const struct request *r = a->request;
    struct model_counts *m = r->gauges.of;
    if (!m || !a->is_sse || r->status >= 400) return;
    kvr_histogram_add(&m->ttft, (double)(now_ns - legs_computed(r)->sent_ns) / 1e9);
    double ms = (double)(now_ns - r->gauges.arrived_ns) / 1e6;
    kvr_histogram_add(&m->first_token, ms / 1e3);
    if (r->slo_ttft_ms > 0) atomic_fetch_add_explicit(ms <= r->slo_ttft_ms ? &m->slo_kept : &m->slo_missed, 1, memory_order_relaxed);
}

static void count_end(struct request *r)
{
    struct model_gauges *f = &r->gauges;
    look_up(r, true); /* it may have been refused before its body was read */
    f->end_counted = true;
    atomic_fetch_add_explicit(&f->of->ends[f->how], 1, memory_order_relaxed);
}

void model_gauges_end(struct request *r, enum request_end how)
{
    struct model_gauges *f = &r->gauges;
    if (f->ended) return;
    f->ended = true;
    f->how = (unsigned char)how;
    if (!r->working) count_end(r); /* else the job may be writing the model's name: model_gauges_close() */
}

void model_gauges_end_whole(struct request *r)
{
    const struct attempt *a = r->attempt;
    if (r->status >= 400) {
        model_gauges_end(r, END_ERROR);
        return;
    }
    model_gauges_end(r, (enum request_end)(a ? a->sse.finish : KVR_FINISH_UNTOLD));
    if (r->routed) kvr_histogram_add(&r->gauges.of->duration, (double)(kvr_monotonic_ns() - r->gauges.arrived_ns) / 1e9);
}

static uint64_t input_tokens(const struct request *r, const struct attempt *computed)
{
    if (computed->usage.present) return computed->usage.prompt_tokens;
    return r->tokens_n && !r->multimodal ? r->isl : 0;
}

static uint64_t output_tokens(const struct attempt *a)
{
    if (a->usage.present) return a->usage.completion_tokens;
    return a->is_sse ? a->sse.events : 0;
}

/* How fast the tokens after the first came, by the engine's count of them if it told, else an event is one. */
static void observe_generation(struct model_counts *m, const struct attempt *a)
{
    uint64_t told = a->usage.present ? a->usage.completion_tokens : 0;
    uint64_t tokens = told > 1 ? told - 1 : a->generated;
    if (!a->is_sse || !a->generated || a->itl_last_ns <= a->first_ns) return;
    kvr_histogram_add(&m->per_token, (double)(a->itl_last_ns - a->first_ns) / 1e9 / (double)tokens);
}

void model_gauges_close(struct request *r)
{
    const struct attempt *a = r->attempt, *computed = legs_computed(r);
    if (r->gauges.ended && !r->gauges.end_counted) count_end(r);
    struct model_counts *m = r->gauges.of;
    stand(r, GAUGE_NOWHERE);
    if (!m || !a || !computed || !r->routed || !a->first_ns || r->status >= 400) return;
    uint64_t input = input_tokens(r, computed), output = output_tokens(a);
    atomic_fetch_add_explicit(&m->input, input, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->output, output, memory_order_relaxed);
    bool same = a->worker == computed->worker;
    labels_tokens(data_of(r)->workers, computed->worker, computed->label,
                  &(struct label_tokens){.input = input, .output = same ? output : 0});
    if (!same) labels_tokens(data_of(r)->workers, a->worker, a->label, &(struct label_tokens){.output = output});
    observe_generation(m, a);
}
