/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How loaded the engine says it is.
 *
 *     its /metrics --every interval--> load of each rank --+--> event plane of NATS: ActiveLoad, topic kv_metrics
 *                                                          +--> GET /load, GET /metrics
 *
 * Only what was just read is published. What is older than --engine-load-max-age is shown as stale, and its figures are left
 * out of /metrics. All on the main loop.
 */
#include "app/publish/state.h"

#include <string.h>

#include "base/log.h"
#include "net/http/metrics_scrape.h"
#include "wire/prom_page.h"

struct engine_metrics {
    struct publish *publish;
    uv_timer_t timer;
    struct kvr_http_client *client;
    struct kvr_scrape *scrape; /* NULL: none on the way */
    struct kvr_stamp stamp;
    struct kvr_buf payload, out; /* scratch */
    char subject[KVR_SCOPE_MAX + 32];
    const char *trouble; /* of the last reading; NULL: it went well */
    uint64_t reads, failures, published, publish_failures;
    struct {
        bool known;
        struct kvr_engine_load load;
        uint64_t at_ms;
    } ranks[RANKS_MAX];
};

/* ---- reading, telling ----------------------------------------------------------------------------------------- */

static void tell(struct engine_metrics *m, struct kvr_worker w, const struct kvr_engine_load *load)
{
    struct kvr_nats *nats = m->publish->nats;
    if (!nats || !kvr_nats_is_up(nats)) return; /* an old load says nothing */
    kvr_buf_reset(&m->payload);
    kvr_buf_reset(&m->out);
    kvr_active_load_write(&m->payload, w, load);
    if (!m->payload.failed) kvr_stamp_envelope(&m->stamp, KVR_PLANE_LOADS, &m->payload, &m->out);
    bool ok = !m->payload.failed && !m->out.failed && kvr_nats_publish(nats, m->subject, NULL, m->out.data, m->out.len) == 0;
    *(ok ? &m->published : &m->publish_failures) += 1;
}

static void keep(struct engine_metrics *m, const struct kvr_engine_loads *loads)
{
    bool any = false;
    for (size_t i = 0; i < m->publish->feeds_n; i++) {
        struct kvr_worker w = m->publish->feeds[i].worker;
        struct kvr_engine_load load;
        if (!kvr_engine_loads_of(loads, m->publish->dp_start, m->publish->dp_size, w.dp_rank, m->publish->feeds[i].block_size,
                                 m->publish->total_kv_blocks, &load))
            continue;
        any = m->ranks[i].known = true;
        m->ranks[i].load = load;
        m->ranks[i].at_ms = kvr_now_ms();
        tell(m, w, &load);
    }
    if (!any) m->trouble = "the answer has no figure of these ranks";
}

static void on_scraped(void *ctx, const struct kvr_engine_loads *loads, const char *error)
{
    struct engine_metrics *m = ctx;
    const char *before = m->trouble;
    m->scrape = NULL;
    m->reads++;
    m->trouble = error;
    if (loads) keep(m, loads);
    m->failures += m->trouble != NULL;
    if (m->trouble && !before) kvr_log_warning("kvroute publish: --engine-metrics %s: %s", m->publish->o->engine_metrics, m->trouble);
    if (!m->trouble && before) kvr_log("kvroute publish: --engine-metrics: read again");
}

static void on_interval(uv_timer_t *t)
{
    struct engine_metrics *m = t->data;
    const struct publish_options *o = m->publish->o;
    struct kvr_scrape_config c = {.loop = &m->publish->loop,
                                  .client = m->client,
                                  .url = o->engine_metrics,
                                  .timeout_s = KVR_MAX(o->engine_metrics_interval, 1.0),
                                  .fn = on_scraped,
                                  .ctx = m};
    if (m->scrape || !m->publish->feeds_n) return; /* one at a time, of ranks that are known */
    if (kvr_scrape_start(&c, &m->scrape)) m->failures++;
}

/* ---- showing -------------------------------------------------------------------------------------------------- */

static bool is_stale(const struct engine_metrics *m, size_t i)
{
    return (double)(kvr_now_ms() - m->ranks[i].at_ms) > m->publish->o->engine_metrics_max_age * 1000;
}

void engine_metrics_write_json(const struct publish *p, struct kvr_buf *b)
{
    const struct engine_metrics *m = p->engine_metrics;
    kvr_json_printf(b, "{'worker_id':%ju", p->o->worker_id);
    if (m && m->trouble) kvr_json_printf(b, "'error':%s", m->trouble);
    if (!m) kvr_json_printf(b, "'error':'--engine-metrics is not given'");
    kvr_json_printf(b, "'ranks':[");
    for (size_t i = 0; m && i < p->feeds_n; i++) {
        if (!m->ranks[i].known) continue;
        kvr_json_printf(b, "{'dp_rank':%u", p->feeds[i].worker.dp_rank);
        kvr_engine_load_json(b, &m->ranks[i].load, kvr_now_ms() - m->ranks[i].at_ms, is_stale(m, i));
        kvr_json_close(b, '}');
    }
    kvr_json_printf(b, "]}");
}

enum row { AGE, RUNNING, WAITING, USAGE, TOTAL_TOKENS, ROWS };

/* Returns: whether there is such a figure. */
static bool figure(const struct engine_metrics *m, size_t i, enum row row, double *out)
{
    const struct kvr_engine_load *l = &m->ranks[i].load;
    switch (row) {
    case AGE: *out = (double)(kvr_now_ms() - m->ranks[i].at_ms) / 1000; return true;
    case RUNNING: *out = (double)l->running; return l->has_running;
    case WAITING: *out = (double)l->waiting; return l->has_waiting;
    case USAGE: *out = l->usage; return l->has_usage;
    default: *out = (double)(l->total_blocks * m->publish->feeds[i].block_size); return *out > 0;
    }
}

/* The names that wire/engine_load.h knows: a router may read them here. */
static void put_ranks(struct kvr_prom_page *b, const struct publish *p, const struct engine_metrics *m)
{
    static const struct {
        const char *name, *help;
    } rows[ROWS] = {{"load_age_seconds", "Since the engine's load was read"},
                    {"requests_running", "Requests that the engine runs"},
                    {"requests_waiting", "Requests that wait in the engine"},
                    {"kv_usage", "Share of the engine's KV cache in use"},
                    {"kv_total_tokens", "Tokens that fit into it"}};
    for (int k = 0; k < ROWS; k++) {
        kvr_prom_family(b, "kvroute_publish_engine_", rows[k].name, "gauge", rows[k].help);
        for (size_t i = 0; i < p->feeds_n; i++) {
            double v;
            if (!m->ranks[i].known || (k != AGE && is_stale(m, i)) || !figure(m, i, (enum row)k, &v)) continue;
            kvr_prom_put_double(b, KVR_PROM_PAIRS(KVR_PROM_RANK(p->o->worker_id, p->feeds[i].worker.dp_rank)), v);
        }
    }
}

void engine_metrics_write(const struct publish *p, struct kvr_prom_page *b)
{
    const struct engine_metrics *m = p->engine_metrics;
    if (!m) return;
    const struct kvr_prom_row rows[] = {{"reads_total", "counter", "Times the engine's metrics were asked for", m->reads},
                                        {"failures_total", "counter", "Readings without an answer of use", m->failures},
                                        {"published_total", "counter", "Loads published on the event plane", m->published},
                                        {"publish_failures_total", "counter", "Loads that it did not take", m->publish_failures}};
    kvr_prom_rows(b, true, "kvroute_publish_engine_metrics_", rows, KVR_ARRAY_LEN(rows));
    put_ranks(b, p, m);
}

/* ---- life ----------------------------------------------------------------------------------------------------- */

int engine_metrics_start(struct publish *p, char *err, size_t cap)
{
    const char *url = p->o->engine_metrics;
    struct kvr_endpoint e;
    if (!url) return 0;
    if (kvr_endpoint_parse(url, strlen(url), &e))
        return kvr_refuse(err, cap, "--engine-metrics: bad value '%.200s'; allowed: http://host[:port][/path]", url);
    struct engine_metrics *m = calloc(1, sizeof *m);
    if (!m || kvr_http_client_create(&p->loop, 3, &m->client)) {
        free(m);
        return kvr_refuse(err, cap, "out of memory");
    }
    m->publish = p;
    kvr_stamp_init(&m->stamp);
    snprintf(m->subject, sizeof m->subject, "%s." KVR_PLANE_LOADS, p->scope);
    uv_timer_init(&p->loop, &m->timer);
    m->timer.data = m;
    uv_timer_start(&m->timer, on_interval, 0, (uint64_t)(p->o->engine_metrics_interval * 1000) + 1);
    p->engine_metrics = m;
    return 0;
}

static void on_closed(uv_handle_t *h)
{
    struct engine_metrics *m = h->data;
    kvr_buf_free(&m->payload);
    kvr_buf_free(&m->out);
    free(m);
}

void engine_metrics_stop(struct publish *p)
{
    struct engine_metrics *m = p->engine_metrics;
    if (!m) return;
    p->engine_metrics = NULL;
    if (m->scrape) kvr_scrape_cancel(m->scrape);
    kvr_http_client_close(m->client);
    uv_close((uv_handle_t *)&m->timer, on_closed);
}
