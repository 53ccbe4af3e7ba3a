/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How loaded the engines say they are.
 *
 *     metrics=URL of a worker: read every interval, one at a time (main loop) --+
 *                                                                               +--> worker.loads, and the KV blocks in use to
 *     event plane of NATS, topic kv_metrics, from `kvroute publish` (its thread)-+    the router (overload), until they are stale
 *
 * A load that is older than --engine-load-max-age is stale: the router forgets it, /loads and /metrics say so.
 * A worker without total-kv-blocks gets what its engine says.
 *
 * worker.loads and what belongs to it are under the table's lock; the readings are the main loop's.
 */
#include "app/serve/workers/engines/engine_load.h"

#include <math.h>
#include <string.h>

#include "app/serve/workers/table/room.h"
#include "base/log.h"
#include "net/http/metrics_scrape.h"
#include "wire/plane_event.h"
#include "wire/prom_page.h"

enum { READINGS_MAX = 64, PENDING_BYTES = 1 << 20 };

struct reading {
    struct reading *next;
    struct workers *workers;
    uint64_t id;
    char url[METRICS_URL_MAX];
    struct kvr_scrape *scrape;
};

/* ---- what is known -------------------------------------------------------------------------------------------- */

static bool is_stale(const struct workers *ws, const struct rank_load *r, uint64_t now)
{
    return (double)now - (double)r->at_ms > ws->o->engine_load_max_age * 1000;
}

static uint64_t total_blocks(const struct worker *w)
{
    return w->total_kv_blocks ? w->total_kv_blocks : w->learnt_kv_blocks;
}

/* Blocks in use, of the size of the worker's cache as we know it. */
static uint64_t used_blocks(const struct worker *w, const struct kvr_engine_load *l)
{
    if (l->has_usage && total_blocks(w)) return (uint64_t)llround(l->usage * (double)total_blocks(w));
    return l->has_used ? l->used_blocks : 0;
}

static void learn_total(struct worker *w, uint32_t place, const struct kvr_engine_load *l)
{
    if (w->total_kv_blocks || place || !l->total_blocks || l->total_blocks == w->learnt_kv_blocks) return;
    w->learnt_kv_blocks = l->total_blocks;
    kvr_router_set_limits(w->partition->router, w->id, w->max_num_batched_tokens, w->learnt_kv_blocks);
}

static void keep_locked(struct workers *ws, struct worker *w, uint32_t place, const struct kvr_engine_load *l)
{
    struct rank_load *r = &w->ranks[place].load;
    uint64_t now = kvr_now_ms();
    bool was_used = r->known && !r->expired;
    *r = (struct rank_load){.known = true, .load = *l, .at_ms = now - KVR_MIN(l->age_ms, now)};
    learn_total(w, place, l);
    r->expired = is_stale(ws, r, now); /* it may tell of an old reading */
    if (r->expired && was_used) atomic_fetch_add(&ws->counters.engine_loads_expired_total, 1);
    kvr_router_set_kv_used(w->partition->router, (struct kvr_worker){w->id, w->dp_start + place}, r->expired ? 0 : used_blocks(w, l));
}

void engine_load_tell_locked(const struct worker *w)
{
    for (uint32_t i = 0; i < w->dp_size; i++)
        if (w->ranks[i].load.known && !w->ranks[i].load.expired)
            kvr_router_set_kv_used(w->partition->router, (struct kvr_worker){w->id, w->dp_start + i},
                                   used_blocks(w, &w->ranks[i].load.load));
}

static void expire_locked(struct workers *ws, struct worker *w, uint64_t now)
{
    for (uint32_t i = 0; i < w->dp_size; i++) {
        struct rank_load *r = &w->ranks[i].load;
        if (!r->known || r->expired || !is_stale(ws, r, now)) continue;
        r->expired = true;
        atomic_fetch_add(&ws->counters.engine_loads_expired_total, 1);
        kvr_router_set_kv_used(w->partition->router, (struct kvr_worker){w->id, w->dp_start + i}, 0);
    }
}

/* ---- readings ------------------------------------------------------------------------------------------------- */

static void forget_reading(struct reading *k)
{
    struct engine_loads *el = &k->workers->engine_loads;
    KVR_UNLINK(el->readings, k);
    el->readings_n--;
    free(k);
}

static const char *keep_all_locked(struct workers *ws, struct worker *w, const struct kvr_engine_loads *loads)
{
    bool any = false;
    for (uint32_t i = 0; i < w->dp_size; i++) {
        struct kvr_engine_load l;
        if (!kvr_engine_loads_of(loads, w->dp_start, w->dp_size, w->dp_start + i, w->block_size, w->total_kv_blocks, &l)) continue;
        keep_locked(ws, w, i, &l);
        any = true;
    }
    if (loads->too_many) return "the answer has more than 64 ranks";
    return any ? NULL : "the answer has no figure of this worker's ranks";
}

static void on_read(void *ctx, const struct kvr_engine_loads *loads, const char *error)
{
    struct reading *k = ctx;
    struct workers *ws = k->workers;
    kvr_lock(&ws->lock);
    struct worker *w = worker_find_locked(ws, k->id);
    if (w && strcmp(w->metrics, k->url) == 0) { /* else it is another one now */
        if (loads) error = keep_all_locked(ws, w, loads);
        if (error && !w->metrics_error)
            kvr_log_warning("kvroute: metrics of worker %llu cannot be used: %s", (unsigned long long)w->id, error);
        w->metrics_error = error;
        w->metrics_due_ms = kvr_now_ms() + (uint64_t)(ws->o->engine_metrics_interval * 1000);
    }
    kvr_unlock(&ws->lock);
    if (loads) atomic_fetch_add(&ws->counters.engine_metrics_bad_lines_total, loads->bad_lines);
    atomic_fetch_add(error ? &ws->counters.engine_metrics_failures_total : &ws->counters.engine_metrics_reads_total, 1);
    forget_reading(k);
}

static bool is_read(const struct workers *ws, uint64_t id)
{
    for (const struct reading *k = ws->engine_loads.readings; k; k = k->next)
        if (k->id == id) return true;
    return false;
}

/* Returns: whether it is on the way; if not, it is tried again at the next tick. */
static bool read_metrics(struct workers *ws, const struct worker *w)
{
    if (!ws->engine_loads.client && kvr_http_client_create(&ws->process->main_loop, 3, &ws->engine_loads.client)) return false;
    struct reading *k = calloc(1, sizeof *k);
    if (!k) return false;
    k->workers = ws;
    k->id = w->id;
    memcpy(k->url, w->metrics, sizeof k->url);
    struct kvr_scrape_config c = {.loop = &ws->process->main_loop,
                                  .client = ws->engine_loads.client,
                                  .url = k->url,
                                  .tls_peer = w->tls,
                                  .timeout_s = KVR_MAX(ws->o->engine_metrics_interval, 1.0),
                                  .fn = on_read,
                                  .ctx = k};
    if (kvr_scrape_start(&c, &k->scrape)) {
        free(k);
        return false;
    }
    k->next = ws->engine_loads.readings;
    ws->engine_loads.readings = k;
    ws->engine_loads.readings_n++;
    return true;
}

static void look_locked(struct workers *ws, struct worker *w, uint64_t now)
{
    if (!w->metrics[0] || now < w->metrics_due_ms || is_read(ws, w->id)) return;
    if (ws->engine_loads.readings_n == READINGS_MAX) atomic_fetch_add(&ws->counters.engine_metrics_postponed_total, 1);
    else if (!read_metrics(ws, w)) atomic_fetch_add(&ws->counters.engine_metrics_failures_total, 1);
}

void engine_load_tick(struct workers *ws)
{
    uint64_t now = kvr_now_ms();
    for (struct worker *w = ws->workers; w; w = w->next) {
        kvr_lock(&ws->lock);
        expire_locked(ws, w, now);
        look_locked(ws, w, now);
        kvr_unlock(&ws->lock);
    }
}

/* ---- reports -------------------------------------------------------------------------------------------------- */

static int open_report(const struct kvr_nats_message *m, struct kvr_worker *w, struct kvr_engine_load *l)
{
    struct kvr_buf scratch = {0};
    struct kvr_envelope e;
    int rc = kvr_envelope_read(m->data, m->len, &scratch, &e);
    if (rc == 0) rc = kvr_envelope_is(&e, KVR_PLANE_LOADS) ? kvr_active_load_read(e.payload, e.payload_len, w, l) : -KVR_EFORMAT;
    kvr_buf_free(&scratch);
    return rc;
}

/* On the subscription's thread. */
static void on_report(void *ctx, const struct kvr_nats_message *m)
{
    struct workers *ws = ctx;
    struct kvr_worker of;
    struct kvr_engine_load l;
    if (open_report(m, &of, &l)) {
        atomic_fetch_add(&ws->counters.engine_load_malformed_total, 1);
        return;
    }
    if (!l.has_running && !l.has_waiting && !l.has_usage && !l.has_used) return; /* a scheduler's */
    kvr_lock(&ws->lock);
    struct worker *w = worker_find_locked(ws, of.worker_id);
    bool known = w && of.dp_rank >= w->dp_start && of.dp_rank - w->dp_start < w->dp_size;
    if (known) keep_locked(ws, w, of.dp_rank - w->dp_start, &l);
    kvr_unlock(&ws->lock);
    atomic_fetch_add(known ? &ws->counters.engine_load_reports_total : &ws->counters.engine_load_unknown_workers_total, 1);
}

/* ---- showing -------------------------------------------------------------------------------------------------- */

void engine_load_write(const struct workers *ws, struct kvr_buf *b, const struct rank_load *r)
{
    uint64_t now = kvr_now_ms();
    if (!r->known) {
        kvr_json_printf(b, "'engine':null");
        return;
    }
    kvr_json_printf(b, "'engine':{");
    kvr_engine_load_json(b, &r->load, now - KVR_MIN(now, r->at_ms), is_stale(ws, r, now));
    kvr_json_close(b, '}');
}

enum row { AGE, STALE, RUNNING, WAITING, USAGE, ROWS };

/* Returns: whether there is such a figure. Of a stale load only that it is, and how old. */
static bool figure(const struct workers *ws, const struct rank_load *r, uint64_t now, enum row row, double *out)
{
    const struct kvr_engine_load *l = &r->load;
    bool stale = is_stale(ws, r, now);
    switch (row) {
    case AGE: *out = ((double)now - (double)r->at_ms) / 1000; return true;
    case STALE: *out = stale; return true;
    case RUNNING: *out = (double)l->running; return l->has_running && !stale;
    case WAITING: *out = (double)l->waiting; return l->has_waiting && !stale;
    default: *out = l->usage; return l->has_usage && !stale;
    }
}

void engine_load_metrics(struct workers *ws, struct kvr_prom_page *b)
{
    static const struct {
        const char *name, *help;
    } rows[ROWS] = {{"load_age_seconds", "Since an engine's load was read"},
                    {"load_stale", "1 when an engine's load is too old to be used"},
                    {"requests_running", "Requests that an engine says it runs"},
                    {"requests_waiting", "Requests that wait in an engine, as it says"},
                    {"kv_usage", "Share of KV cache in use, as the engine says"}};
    uint64_t now = kvr_now_ms();
    for (int k = 0; k < ROWS; k++) {
        kvr_prom_family(b, "kvroute_engine_", rows[k].name, "gauge", rows[k].help);
        for (const struct worker *w = ws->workers; w; w = w->next)
            for (uint32_t i = 0; i < w->dp_size; i++) {
                double v;
                kvr_lock(&ws->lock);
                struct rank_load load = w->ranks[i].load;
                kvr_unlock(&ws->lock);
                if (!load.known || !figure(ws, &load, now, (enum row)k, &v)) continue;
                kvr_prom_put_double(b, KVR_PROM_PAIRS(KVR_PROM_RANK(w->id, w->dp_start + i)), v);
            }
    }
    bool any = ws->engine_loads.reports != NULL;
    kvr_prom_one_if(b, any, "kvroute_", "engine_load_dropped_total", "counter", "Loads that found the queue full",
                    any ? kvr_nats_sub_dropped(ws->engine_loads.reports) : 0);
}

/* ---- life ----------------------------------------------------------------------------------------------------- */

int engine_load_start(struct workers *ws)
{
    char subject[KVR_SCOPE_MAX + 32];
    if (!ws->process->nats) return 0;
    snprintf(subject, sizeof subject, "%s." KVR_PLANE_LOADS, ws->process->scope);
    return kvr_nats_subscribe(ws->process->nats, subject, NULL, PENDING_BYTES, on_report, ws, &ws->engine_loads.reports);
}

void engine_load_stop(struct workers *ws)
{
    struct engine_loads *el = &ws->engine_loads;
    kvr_nats_unsubscribe(el->reports);
    el->reports = NULL;
    while (el->readings) {
        kvr_scrape_cancel(el->readings->scrape);
        forget_reading(el->readings);
    }
    kvr_http_client_close(el->client);
    el->client = NULL;
}
