/* SPDX-License-Identifier: Apache-2.0 */
#include "app/top/look.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/order.h"
#include "wire/json.h"
#include "wire/prom_text.h"

enum { DECISIONS_MAX = 64 };

static uint64_t number(struct kvr_json o, const char *key)
{
    uint64_t v = 0;
    (void)kvr_json_as_u64(kvr_json_get(o, key), &v);
    return v;
}

/* Cut where it is too long, made printable; "": it is no text. */
static void text(struct kvr_json o, const char *key, char *out, size_t cap)
{
    const char *s;
    size_t len;
    *out = 0;
    if (kvr_json_as_str(kvr_json_get(o, key), &s, &len)) (void)kvr_printable(s, len, out, cap);
}

/* ---- workers ----------------------------------------------------------------------------------------- */

/* The least that is known of a rank, and all blocks. */
static void read_views(struct kvr_json views, struct top_worker *w, uint64_t *blocks)
{
    static const char *const known[] = {"whole", "partial", "unknown"};
    size_t worst = 0;
    for (struct kvr_json_iter i = kvr_json_iter(views); kvr_json_next(&i);) {
        struct kvr_json v = i.value, view = kvr_json_get(v, "view");
        size_t at = kvr_json_is_str(view, "whole") ? 0 : kvr_json_is_str(view, "partial") ? 1 : 2;
        *blocks += number(v, "blocks");
        if (at > worst && !w->why[0]) text(v, "reason", w->why, sizeof w->why);
        worst = at > worst ? at : worst;
    }
    snprintf(w->view, sizeof w->view, "%s", kvr_json_count(views) ? known[worst] : "-");
}

static void read_state(struct kvr_json o, struct top_worker *w)
{
    bool draining = kvr_json_is_str(kvr_json_get(o, "state"), "draining"), broken = kvr_json_is_true(kvr_json_get(o, "breaker_open"));
    text(o, "status", w->state, sizeof w->state);
    if (draining || broken) snprintf(w->state, sizeof w->state, "%s", draining ? "draining" : "breaker");
    text(o, "last_error", w->why, sizeof w->why);
    if (!strcmp(w->state, "up") || !w->why[0]) text(o, "why_not_schedulable", w->why, sizeof w->why);
}

static void read_worker(struct top_look *l, struct kvr_json o)
{
    struct top_worker *w = &l->workers[l->n++];
    char url[256];
    uint64_t blocks = 0, total = number(o, "total_kv_blocks") * number(o, "data_parallel_size");
    text(o, "endpoint", url, sizeof url);
    snprintf(w->endpoint, sizeof w->endpoint, "%s", strncmp(url, "http://", 7) ? url : url + 7);
    w->id = number(o, "worker_id");
    w->running = number(o, "active_requests");
    read_state(o, w);
    read_views(kvr_json_get(o, "views"), w, &blocks);
    bool seen = !strcmp(w->view, "whole") || !strcmp(w->view, "partial");
    w->cache = total && seen ? (double)blocks / (double)total : -1;
    l->running += w->running;
}

/* Of a rank: what is booked, and what its engine says. */
static void read_load(const struct top_look *l, struct kvr_json o)
{
    uint64_t id = number(o, "worker_id"), waiting;
    for (struct top_worker *w = l->workers; w < l->workers + l->n; w++) {
        if (w->id != id) continue;
        w->prefill_tokens += number(o, "active_prefill_tokens");
        if (!kvr_json_as_u64(kvr_json_get(kvr_json_get(o, "engine"), "waiting"), &waiting)) continue;
        w->has_waiting = true;
        w->waiting += waiting;
    }
}

/* ---- requests ---------------------------------------------------------------------------------------- */

struct decisions {
    double ttft_ms[DECISIONS_MAX];
    size_t n, ttft_n;
    uint64_t isl, predicted, told_isl, delivered; /* tokens; told: of those whose engine said what it had */
};

static void read_decision(struct decisions *d, struct kvr_json o)
{
    uint64_t isl = number(o, "isl_tokens"), delivered;
    double ttft = 0;
    d->isl += isl;
    d->predicted += number(o, "predicted_cached_tokens");
    if (kvr_json_as_u64(kvr_json_get(o, "actual_cached_tokens"), &delivered)) d->told_isl += isl, d->delivered += delivered;
    if (kvr_json_as_double(kvr_json_get(o, "ttft_ms"), &ttft) && ttft > 0) d->ttft_ms[d->ttft_n++] = ttft;
}

static void read_decisions(struct kvr_json list, struct top_look *l)
{
    struct decisions d = {0};
    for (struct kvr_json_iter i = kvr_json_iter(list); d.n < DECISIONS_MAX && kvr_json_next(&i); d.n++) read_decision(&d, i.value);
    qsort(d.ttft_ms, d.ttft_n, sizeof *d.ttft_ms, kvr_rising_double);
    l->decisions = d.n;
    l->predicted = d.isl ? (double)d.predicted / (double)d.isl : -1;
    l->delivered = d.told_isl ? (double)d.delivered / (double)d.told_isl : -1;
    l->ttft_p50_ms = d.ttft_n ? d.ttft_ms[d.ttft_n / 2] : -1;
    l->ttft_p90_ms = d.ttft_n ? d.ttft_ms[d.ttft_n * 9 / 10] : -1;
}

/* ---- the whole --------------------------------------------------------------------------------------- */

bool look_read(struct kvr_json_parser *p, const char *status, size_t len, struct top_look *out)
{
    struct kvr_json o;
    if (kvr_json_parse(p, status, len, &o, NULL)) return false;
    struct kvr_json workers = kvr_json_get(o, "workers");
    if (kvr_json_type_of(workers) != KVR_JSON_ARRAY) return false;
    out->workers = calloc(kvr_json_count(workers) + 1, sizeof *out->workers);
    if (!out->workers) return false;
    text(o, "version", out->version, sizeof out->version);
    text(o, "mode", out->mode, sizeof out->mode);
    text(kvr_json_get(o, "last_minute"), "advice", out->advice, sizeof out->advice);
    out->uptime_ms = number(o, "uptime_ms");
    out->requests = number(o, "requests");
    out->errors = number(o, "errors");
    out->retries = number(o, "retries");
    out->waiting = -1;
    for (struct kvr_json_iter i = kvr_json_iter(workers); kvr_json_next(&i);) read_worker(out, i.value);
    for (struct kvr_json_iter i = kvr_json_iter(kvr_json_get(o, "loads")); kvr_json_next(&i);) read_load(out, i.value);
    read_decisions(kvr_json_get(o, "decisions"), out);
    return true;
}

static void on_sample(void *ctx, const struct kvr_prom_sample *s)
{
    struct top_look *l = ctx;
    if (kvr_prom_is(s->name, "kvroute_requests_waiting")) l->waiting = KVR_MAX(l->waiting, 0) + s->value;
}

void look_read_metrics(const char *page, size_t len, struct top_look *out)
{
    struct kvr_prom_reader r = {.fn = on_sample, .ctx = out};
    kvr_prom_feed(&r, page, len);
    kvr_prom_end(&r);
}

void look_free(struct top_look *l)
{
    free(l->workers);
    *l = (struct top_look){0};
}
