/* SPDX-License-Identifier: Apache-2.0 */
/* Counters per route under the names of Dynamo's indexer and ours, and the access log: one JSON object per request. */
#include "app/indexer/state.h"
#include "base/log.h"
#include "net/http/process_metrics.h"
#include "wire/prom_page.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static const char *const paths[ENDPOINTS] = {
#define INDEXER_PATH(name, path) path,
    INDEXER_ENDPOINTS(INDEXER_PATH)
#undef INDEXER_PATH
        "unknown"};
static const char *const methods[METHODS] = {"GET", "POST", "PUT", "DELETE", "other"};

int telemetry_init(struct indexer *x)
{
    enum { LANE_BYTES = 1 << 20 };
    struct kvr_line_log_config log = {x->o->access_log, "kvroute indexer: access log", x->o->threads, LANE_BYTES};
    char err[480];
    for (size_t e = 0; e < ENDPOINTS; e++) kvr_histogram_init(&x->telemetry.durations[e], 0.0001, 2, DURATION_BUCKETS);
    if (!x->o->access_log || kvr_line_log_create(&log, &x->telemetry.log, err, sizeof err) == 0) return 0;
    kvr_log_error("kvroute indexer: --access-log: %s", err);
    return -1;
}

/* An object begins with it. */
static void put_time(struct kvr_buf *b, bool local)
{
    struct timespec now;
    struct tm tm;
    char day[32], zone[8] = "Z";
    clock_gettime(CLOCK_REALTIME, &now);
    if (local) {
        localtime_r(&now.tv_sec, &tm);
        strftime(zone, sizeof zone, "%z", &tm);
    } else {
        gmtime_r(&now.tv_sec, &tm);
    }
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    kvr_buf_printf(b, "{\"ts\":\"%s.%06u%s\"", day, (unsigned)(now.tv_nsec / 1000) % 1000000, zone);
    b->comma = true;
}

static void log_request(struct kvr_line_log *log, const struct request *rq, int status, uint64_t ns)
{
    struct kvr_buf b = {0};
    put_time(&b, rq->loop->indexer->o->local_time);
    kvr_json_printf(&b, "'trace_id':%p,'method':%s,'path':%s,'model':%p,'status':%u,'duration_ms':", rq->trace[0] ? rq->trace : NULL,
                    rq->method, rq->path, rq->model[0] ? rq->model : NULL, (unsigned)status);
    kvr_buf_printf(&b, "%.6f}\n", (double)ns / 1e6);
    if (b.failed) kvr_line_log_missed(log, rq->loop->place);
    else (void)kvr_line_log_put(log, rq->loop->place, b.data, b.len);
    kvr_buf_free(&b);
}

void telemetry_record(struct request *rq, int status)
{
    struct indexer *x = rq->loop->indexer;
    struct telemetry *t = &x->telemetry;
    uint64_t ns = kvr_monotonic_ns() - rq->started_ns;
    size_t m = 0;
    while (m < METHODS - 1 && strcmp(rq->method, methods[m]) != 0) m++;
    if (rq->at != AT_METRICS) {
        atomic_fetch_add_explicit(&t->requests[rq->at][m], 1, memory_order_relaxed);
        kvr_histogram_add(&t->durations[rq->at], (double)ns / 1e9);
        if (status >= 400) atomic_fetch_add_explicit(&t->errors[rq->at][status >= 500], 1, memory_order_relaxed);
    }
    if (t->log) log_request(t->log, rq, status, ns);
}

/* ---- /metrics ------------------------------------------------------------------------------------------------ */

static uint64_t load(const _Atomic uint64_t *v)
{
    return atomic_load_explicit(v, memory_order_relaxed);
}

static void write_requests(const struct telemetry *t, struct kvr_prom_page *b)
{
    kvr_prom_family(b, "dynamo_kvindexer_", "request_duration_seconds", "histogram", "Duration of HTTP requests");
    for (size_t e = 0; e < ENDPOINTS; e++) {
        bool any = false;
        for (size_t m = 0; m < METHODS; m++) any |= load(&t->requests[e][m]) > 0;
        if (any) kvr_prom_put_histogram(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("endpoint", paths[e])), &t->durations[e]);
    }
    kvr_prom_family(b, "", "dynamo_kvindexer_requests_total", "counter", "HTTP requests");
    for (size_t e = 0; e < ENDPOINTS; e++)
        for (size_t m = 0; m < METHODS; m++)
            if (load(&t->requests[e][m]))
                kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("endpoint", paths[e]), KVR_PROM_TEXT("method", methods[m])),
                                 load(&t->requests[e][m]));
    kvr_prom_family(b, "", "dynamo_kvindexer_errors_total", "counter", "HTTP requests that were answered with an error");
    for (size_t e = 0; e < ENDPOINTS; e++)
        for (size_t k = 0; k < 2; k++)
            if (load(&t->errors[e][k]))
                kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("endpoint", paths[e]), KVR_PROM_TEXT("status_class", k ? "5xx" : "4xx")),
                                 load(&t->errors[e][k]));
}

/* Dynamo counts the device tier only; our own name has every tier. */
static void write_events(const struct telemetry *t, struct kvr_prom_page *b)
{
    static const char *const kinds[] = {"stored", "removed", "cleared"};
    static const struct {
        const char *name, *help;
        bool lower;
    } rows[] = {{"dynamo_kvrouter_kv_cache_events_applied", "KV events of the device tier by their outcome", false},
                {"kvroute_events_applied_total", "KV events of all tiers by their outcome", true}};
    for (size_t k = 0; k < KVR_ARRAY_LEN(rows); k++) {
        kvr_prom_family(b, "", rows[k].name, "counter", rows[k].help);
        for (size_t e = 0; e < 3; e++)
            for (size_t f = 0; f < 2; f++) {
                unsigned long long n = load(&t->events[0][e][f]);
                if (rows[k].lower) n += load(&t->events[1][e][f]);
                kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("event_type", kinds[e]), KVR_PROM_TEXT("status", f ? "failed" : "ok")), n);
            }
    }
}

static void write_texts(const struct telemetry *t, struct kvr_prom_page *b)
{
    kvr_prom_family(b, "kvroute_", "indexer_texts_total", "counter", "Prompts that were given as text, by whether their tokens were made");
    kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("result", "made")), load(&t->texts[0]));
    kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("result", "refused")), load(&t->texts[1]));
}

static void write_views(struct indexer *x, struct kvr_prom_page *b)
{
    static const char *const states[] = {"pending", "active", "paused", "failed"};
    size_t n, counts[4] = {0};
    struct kvr_view_status *st = catalogue_statuses(x, &n);
    for (size_t i = 0; i < n; i++)
        for (size_t s = 0; s < 4; s++) counts[s] += strcmp(listener_state(&st[i]), states[s]) == 0;
    kvr_prom_family(b, "", "dynamo_kvindexer_listeners", "gauge", "Listeners by their state");
    for (size_t s = 0; s < 4; s++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("status", states[s])), counts[s]);
    kvr_prom_family(b, "", "kvroute_view_trusted", "gauge", "1: the view is of use: whole or partial");
    for (size_t i = 0; i < n; i++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_RANK(st[i].worker.worker_id, st[i].worker.dp_rank)), st[i].trusted);
    kvr_view_metrics(b, st, n);
    kvr_recorder_metrics(x->recorder, b);
    kvr_plane_feed_metrics(x->o->plane.plane != KVR_PLANE_ZMQ, x->feed, x->ingest, x->nats, b);
    kvr_durable_feed_metrics(x->durable, b);
#define SUM(field, help)                                                                                                                   \
    {                                                                                                                                      \
        uint64_t sum = 0;                                                                                                                  \
        for (size_t i = 0; i < n; i++) sum += st[i].field;                                                                                 \
        kvr_prom_one_u64(b, "", "kvroute_ingest_" #field "_total", "counter", "Of the listeners there are now", sum);                      \
    }
    KVR_INGEST_COUNTERS(SUM)
#undef SUM
    kvr_prom_family(b, "", "kvroute_ingest_filtered_total", "counter", "Events left out, by the reason");
#define FILTERED(field)                                                                                                                    \
    {                                                                                                                                      \
        uint64_t sum = 0;                                                                                                                  \
        for (size_t i = 0; i < n; i++) sum += st[i].filtered.field;                                                                        \
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("reason", #field)), sum);                                                         \
    }
    KVR_ENGINE_COUNTERS(FILTERED)
#undef FILTERED
    free(st);
}

static void write_index(struct indexer *x, struct kvr_prom_page *b)
{
    size_t n;
    struct partition **list = catalogue_list(x, &n);
    struct kvr_index_stats sum = {0};
    for (size_t i = 0; i < n; i++) {
        struct kvr_index_stats s;
        kvr_index_stats(list[i]->index, &s);
        sum.bytes += s.bytes;
        sum.blocks += s.blocks;
        sum.nodes += s.nodes;
        sum.ranks += s.ranks;
        sum.lower_tier_blocks += s.lower_tier_blocks;
        sum.evicted_bytes += s.evicted_bytes;
        sum.duplicate_stores += s.duplicate_stores;
        sum.no_memory += s.no_memory;
        sum.aliases_refused += s.aliases_refused;
        partition_unref(list[i]);
    }
    free(list);
    kvr_prom_one_u64(b, "", "kvroute_index_bytes", "gauge", "Memory of the indexes", sum.bytes);
    kvr_prom_one_u64(b, "", "kvroute_index_bytes_max", "gauge", "Cap on it; 0: none", x->o->max_bytes);
    kvr_prom_one_u64(b, "", "kvroute_index_blocks", "gauge", "(block, holder) pairs", sum.blocks);
    kvr_prom_one_u64(b, "", "kvroute_index_distinct_blocks", "gauge", "Distinct blocks", sum.nodes);
    kvr_prom_one_u64(b, "", "kvroute_index_lower_tier_blocks", "gauge", "(block, holder) pairs of the lower tiers", sum.lower_tier_blocks);
    kvr_prom_one_u64(b, "", "kvroute_index_evicted_blocks_total", "counter", "(block, holder) pairs given up for the cap",
                     sum.evicted_bytes);
    kvr_prom_one_u64(b, "", "kvroute_index_no_memory_total", "counter", "Stores that found no memory", sum.no_memory);
    kvr_prom_one_u64(b, "", "kvroute_index_aliases_refused_total", "counter", "Names of a block beyond 32, left out", sum.aliases_refused);
    kvr_prom_family(b, "", "dynamo_kvrouter_kv_cache_event_warnings", "counter", "Events that were odd but harmless");
    kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("warning_kind", "duplicate_store")), sum.duplicate_stores);
}

void telemetry_write(struct indexer *x, struct kvr_buf *out)
{
    struct kvr_prom_page page = {.out = out}, *b = &page;
    const struct telemetry *t = &x->telemetry;
    kvr_lock(&x->lock);
    size_t models = x->partitions_n, workers = x->instances_n;
    kvr_unlock(&x->lock);
    write_requests(t, b);
    kvr_prom_one_u64(b, "", "dynamo_kvindexer_models", "gauge", "Partitions (model, routing group)", models);
    kvr_prom_one_u64(b, "", "dynamo_kvindexer_workers", "gauge", "Registered instances", workers);
    write_views(x, b);
    write_events(t, b);
    write_texts(t, b);
    write_index(x, b);
    kvr_process_metrics("indexer", b);
    kvr_prom_one_u64(b, "", "kvroute_indexer_prompts_refused_total", "counter",
                     "Questions refused because they had more entries than --max-prompt-tokens", load(&t->refused_prompts));
    kvr_access_log_metrics(t->log, b);
    kvr_prom_one_u64(b, "", "kvroute_refused_keys_total", "counter", "Requests without a valid key", kvr_access_refused_keys(x->access));
    kvr_access_metrics(x->access, b);
    kvr_http_shared_metrics(&(struct kvr_http_port){"data", &x->http}, 1, b);
    kvr_prom_one_u64(b, "", "kvroute_peer_recoveries_total", "counter", "Dumps of peers that were taken over", load(&t->peer_recoveries));
    kvr_prom_one_u64(b, "", "kvroute_peer_failures_total", "counter", "Dumps of peers that failed", load(&t->peer_failures));
    kvr_prom_one_u64(b, "", "kvroute_snapshots_total", "counter", "Snapshots written", load(&t->snapshots));
    kvr_prom_one_u64(b, "", "kvroute_snapshot_failures_total", "counter", "Snapshots that could not be written",
                     load(&t->snapshot_failures));
    kvr_prom_one_u64(b, "", "kvroute_snapshot_bytes", "gauge", "Size of the last snapshot", load(&t->snapshot_bytes));
    kvr_prom_one_u64(b, "", "kvroute_snapshot_milliseconds", "gauge", "Time the last snapshot took", load(&t->snapshot_ms));
    kvr_prom_one_u64(b, "", "kvroute_ready", "gauge", "1: recovery is over", atomic_load(&x->ready));
}
