/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus text. Counters and histograms are atomics that any thread may touch; gauges are read at the scrape. */
#include "app/serve/admin/admin.h"
#include "app/serve/discovery/discovery.h"
#include "app/serve/workers/evidence.h"
#include "app/serve/state.h"

#include <math.h>
#include <string.h>

#include "store/view_store.h"
#include "wire/prom_text.h"

static void put_histogram(struct kvr_buf *b, const char *name, const char *help, struct histogram *h)
{
    uint64_t cumulative = 0;
    kvr_buf_printf(b, "# HELP kvroute_%s %s\n# TYPE kvroute_%s histogram\n", name, help, name);
    for (int i = 0; i < h->buckets; i++) {
        cumulative += atomic_load_explicit(&h->counts[i], memory_order_relaxed);
        kvr_buf_printf(b, "kvroute_%s_bucket{le=\"%.6g\"} %llu\n", name, histogram_end(h, i), (unsigned long long)cumulative);
    }
    cumulative += atomic_load_explicit(&h->counts[h->buckets], memory_order_relaxed);
    kvr_buf_printf(b, "kvroute_%s_bucket{le=\"+Inf\"} %llu\nkvroute_%s_sum %.6f\nkvroute_%s_count %llu\n", name,
                   (unsigned long long)cumulative, name, (double)atomic_load_explicit(&h->sum_micro, memory_order_relaxed) / 1e6, name,
                   (unsigned long long)cumulative);
}

static void put_type(struct kvr_buf *b, const char *name, const char *type, const char *help)
{
    kvr_buf_printf(b, "# HELP kvroute_%s %s\n# TYPE kvroute_%s %s\n", name, help, name, type);
}

static void put_value(struct kvr_buf *b, const char *name, double v)
{
    kvr_buf_printf(b, "kvroute_%s %.17g\n", name, v);
}

static void put_gauge(struct kvr_buf *b, const char *name, const char *help, double v)
{
    put_type(b, name, "gauge", help);
    put_value(b, name, v);
}

static void put_loads(struct serve *s, struct kvr_buf *b)
{
    static const char *const names[] = {"worker_active_prefill_tokens", "worker_active_decode_blocks", "worker_active_requests"};
    static const char *const helps[] = {"Prompt tokens still to be computed", "KV blocks in use by running requests", "Running requests"};
    enum { RANKS = 4096 };
    struct kvr_rank_load *l = calloc(RANKS, sizeof *l);
    for (int k = 0; k < 3 && l; k++) {
        put_type(b, names[k], "gauge", helps[k]);
        for (const struct pool *p = s->pools; p; p = p->next) {
            size_t n = KVR_MIN(kvr_router_loads(p->router, l, RANKS), (size_t)RANKS);
            for (size_t i = 0; i < n; i++)
                kvr_buf_printf(b, "kvroute_%s{worker_id=\"%llu\",dp_rank=\"%u\"} %llu\n", names[k],
                               (unsigned long long)l[i].worker.worker_id, l[i].worker.dp_rank,
                               (unsigned long long)(k == 0   ? l[i].active_prefill_tokens
                                                    : k == 1 ? l[i].active_decode_blocks
                                                             : l[i].active_requests));
        }
    }
    free(l);
}

static void put_view_counter(struct kvr_buf *b, const struct kvr_view_status *st, size_t n, const char *name, size_t at)
{
    kvr_buf_printf(b, "# HELP kvroute_kv_%s_total KV event streams: %s\n# TYPE kvroute_kv_%s_total counter\n", name, name, name);
    for (size_t i = 0; i < n; i++)
        kvr_buf_printf(b, "kvroute_kv_%s_total{worker_id=\"%llu\",dp_rank=\"%u\"} %llu\n", name, (unsigned long long)st[i].worker.worker_id,
                       st[i].worker.dp_rank, (unsigned long long)*(const uint64_t *)(const void *)((const char *)&st[i] + at));
}

static void put_views(struct serve *s, struct kvr_buf *b)
{
    enum { VIEWS = 4096 };
    struct kvr_view_status *st = calloc(VIEWS, sizeof *st);
    size_t n = s->ingest && st ? KVR_MIN(kvr_ingest_status(s->ingest, st, VIEWS), (size_t)VIEWS) : 0;
    put_type(b, "view_trusted", "gauge", "1 when the view of a rank's cache is of use: whole or partial");
    for (size_t i = 0; i < n; i++)
        kvr_buf_printf(b, "kvroute_view_trusted{worker_id=\"%llu\",dp_rank=\"%u\"} %d\n", (unsigned long long)st[i].worker.worker_id,
                       st[i].worker.dp_rank, st[i].trusted);
    kvr_view_metrics(b, st, n);
    put_gauge(b, "view_supposed_blocks", "Blocks in partial views for which only answers of their engines speak",
              (double)atomic_load(&s->view_supposed));
    put_type(b, "view_recovering", "gauge", "1 while what a view has lost is being fetched");
    for (size_t i = 0; i < n; i++)
        kvr_buf_printf(b, "kvroute_view_recovering{worker_id=\"%llu\",dp_rank=\"%u\"} %d\n", (unsigned long long)st[i].worker.worker_id,
                       st[i].worker.dp_rank, st[i].repairing && !st[i].trusted);
#define PUT(name) put_view_counter(b, st, n, #name, offsetof(struct kvr_view_status, name));
    KVR_INGEST_COUNTERS(PUT)
#undef PUT
    put_type(b, "kv_events_filtered_total", "counter", "KV events left out, by reason");
    for (size_t i = 0; i < n; i++) {
#define PUT(name)                                                                                                                          \
    if (st[i].filtered.name)                                                                                                               \
        kvr_buf_printf(b, "kvroute_kv_events_filtered_total{worker_id=\"%llu\",dp_rank=\"%u\",reason=\"" #name "\"} %llu\n",               \
                       (unsigned long long)st[i].worker.worker_id, st[i].worker.dp_rank, (unsigned long long)st[i].filtered.name);
        KVR_ENGINE_COUNTERS(PUT)
#undef PUT
    }
    free(st);
}

static void put_index(struct serve *s, struct kvr_buf *b)
{
    static const struct {
        const char *name, *type, *help;
        size_t at;
    } rows[] = {
        {"index_bytes", "gauge", "Memory of the index", offsetof(struct kvr_index_stats, bytes)},
        {"index_blocks", "gauge", "(block, holder) pairs", offsetof(struct kvr_index_stats, blocks)},
        {"index_nodes", "gauge", "Distinct blocks", offsetof(struct kvr_index_stats, nodes)},
        {"index_predicted_blocks", "gauge", "Pairs known from routing decisions", offsetof(struct kvr_index_stats, predicted)},
        {"index_stored_blocks_total", "counter", "Pairs that events have stored", offsetof(struct kvr_index_stats, stored_blocks)},
        {"index_removed_blocks_total", "counter", "Pairs that events have removed: evictions",
         offsetof(struct kvr_index_stats, removed_blocks)},
        {"index_duplicate_stores_total", "counter", "Stores that changed nothing", offsetof(struct kvr_index_stats, duplicate_stores)},
        {"index_out_of_memory_total", "counter", "Operations that ran into the byte cap", offsetof(struct kvr_index_stats, no_memory)},
        {"index_no_room_total", "counter", "Stores refused because the pairs or runs have run out",
         offsetof(struct kvr_index_stats, no_room)},
        {"index_aliases_refused_total", "counter", "Further names of a block that were left out: it has 32",
         offsetof(struct kvr_index_stats, aliases_refused)},
        {"index_evicted_total", "counter", "Least recently used pairs given up for the byte cap",
         offsetof(struct kvr_index_stats, evicted_bytes)},
        {"index_expired_total", "counter", "Predicted pairs dropped by time", offsetof(struct kvr_index_stats, expired)},
        {"index_pruned_total", "counter", "Predicted pairs dropped by size", offsetof(struct kvr_index_stats, pruned)},
    };
    struct kvr_index_stats st;
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        put_type(b, rows[i].name, rows[i].type, rows[i].help);
        for (const struct pool *p = s->pools; p; p = p->next) {
            if (!p->index) continue;
            kvr_index_stats(p->index, &st);
            kvr_buf_printf(b, "kvroute_%s{block_size=\"%u\"} %llu\n", rows[i].name, p->block_size,
                           (unsigned long long)*(uint64_t *)(void *)((char *)&st + rows[i].at));
        }
    }
}

static void put_workers(struct serve *s, struct kvr_buf *b)
{
    put_type(b, "worker_registered", "gauge", "1 for each rank of a registered worker");
    kvr_lock(&s->lock);
    for (const struct worker *w = s->workers; w; w = w->next)
        for (uint32_t r = 0; r < w->dp_size; r++)
            kvr_buf_printf(b, "kvroute_worker_registered{worker_id=\"%llu\",dp_rank=\"%u\"} 1\n", (unsigned long long)w->id,
                           w->dp_start + r);
    put_type(b, "worker_up", "gauge", "1 when a worker may be chosen");
    for (const struct worker *w = s->workers; w; w = w->next)
        kvr_buf_printf(b, "kvroute_worker_up{worker_id=\"%llu\"} %d\n", (unsigned long long)w->id, worker_is_schedulable(w, now_ms()));
    put_type(b, "worker_requests_total", "counter", "Requests sent to a worker");
    for (const struct worker *w = s->workers; w; w = w->next)
        kvr_buf_printf(b, "kvroute_worker_requests_total{worker_id=\"%llu\"} %llu\n", (unsigned long long)w->id,
                       (unsigned long long)w->requests);
    put_type(b, "worker_ttft_factor", "gauge", "Times to first token of a worker, in times of what the fleet's model says");
    for (const struct worker *w = s->workers; w; w = w->next) {
        struct kvr_ttft_model m;
        struct kvr_ttft_factor f;
        if (kvr_router_ttft_model(w->pool->router, &w->id, &m, &f) == 0)
            kvr_buf_printf(b, "kvroute_worker_ttft_factor{worker_id=\"%llu\"} %.6g\n", (unsigned long long)w->id, f.value);
    }
    size_t sessions = sessions_count(s->sessions), responses = sessions_count(s->responses);
    uint64_t given_up[] = {sessions_given_up(s->sessions), sessions_given_up(s->responses)};
    kvr_unlock(&s->lock);
    put_gauge(b, "sessions", "Sessions bound to a rank", (double)sessions);
    put_gauge(b, "responses", "Responses of /v1/responses whose worker is known", (double)responses);
    put_type(b, "bindings_given_up_total", "counter", "Sessions and responses forgotten before their time, as there were too many");
    kvr_buf_printf(b,
                   "kvroute_bindings_given_up_total{table=\"sessions\"} %llu\nkvroute_bindings_given_up_total{table=\"responses\"} %llu\n",
                   (unsigned long long)given_up[0], (unsigned long long)given_up[1]);
}

/* Names that clients have given, as label values. */
static void put_scope(struct kvr_buf *b, const struct pool *p)
{
    const char *const names[] = {p->model, p->group};
    for (int i = 0; i < 2; i++) {
        kvr_buf_str(b, i ? "\",routing_group=\"" : "model=\"");
        kvr_prom_put_value(b, names[i], strlen(names[i]));
    }
    kvr_buf_str(b, "\"");
}

/* What a partition has learnt. */
struct learnt_models {
    struct kvr_ttft_model ttft;
    struct kvr_generation_model generation;
};

static void put_models(struct serve *s, struct kvr_buf *b)
{
    static const struct {
        const char *name, *help;
        size_t at;
    } rows[] = {
        {"ttft_model_base_ms", "Time to first token, learnt: of any request", offsetof(struct learnt_models, ttft.base_ms)},
        {"ttft_model_token_ms", "Learnt: of a prompt token that is computed", offsetof(struct learnt_models, ttft.token_ms)},
        {"ttft_model_ahead_token_ms", "Learnt: of a prompt token ahead of it", offsetof(struct learnt_models, ttft.ahead_ms)},
        {"ttft_model_request_ms", "Learnt: of a request there that generates", offsetof(struct learnt_models, ttft.request_ms)},
        {"ttft_model_error_ms", "Moving mean of the distance of what was observed", offsetof(struct learnt_models, ttft.error_ms)},
        {"generation_model_base_ms", "A generated token, learnt: of any", offsetof(struct learnt_models, generation.base_ms)},
        {"generation_model_block_ms", "Learnt: of a KV block in use there", offsetof(struct learnt_models, generation.block_ms)},
        {"generation_model_tokens", "Moving mean of the tokens of an answer after its first",
         offsetof(struct learnt_models, generation.tokens)},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        put_type(b, rows[i].name, "gauge", rows[i].help);
        for (const struct pool *p = s->pools; p; p = p->next) {
            struct learnt_models m;
            (void)kvr_router_ttft_model(p->router, NULL, &m.ttft, NULL);
            kvr_router_generation_model(p->router, &m.generation);
            kvr_buf_printf(b, "kvroute_%s{", rows[i].name);
            put_scope(b, p);
            kvr_buf_printf(b, ",block_size=\"%u\"} %.6g\n", p->block_size, *(const double *)(const void *)((const char *)&m + rows[i].at));
        }
    }
}

static void put_queue_gauge(struct serve *s, struct kvr_buf *b, const char *name, const char *help, size_t at)
{
    put_type(b, name, "gauge", help);
    for (const struct pool *p = s->pools; p; p = p->next)
        for (size_t c = 0; c < kvr_router_classes(p->router); c++) {
            struct kvr_class_stats st;
            const char *class_name = kvr_router_class_stats(p->router, c, &st);
            kvr_buf_printf(b, "kvroute_%s{", name);
            put_scope(b, p);
            kvr_buf_printf(b, ",policy_class=\"%s\"} %llu\n", class_name, (unsigned long long)*(uint64_t *)(void *)((char *)&st + at));
        }
}

static void put_queues(struct serve *s, struct kvr_buf *b)
{
    static const char *const reasons[] = {"", "request_limit", "raw_isl_token_limit", "cached_token_limit"};
    put_queue_gauge(s, b, "router_queue_pending_requests", "Requests in the queue", offsetof(struct kvr_class_stats, requests));
    put_queue_gauge(s, b, "router_queue_pending_isl_tokens", "Their prompt tokens", offsetof(struct kvr_class_stats, isl_tokens));
    put_queue_gauge(s, b, "router_queue_pending_cached_tokens", "Of these, cached somewhere",
                    offsetof(struct kvr_class_stats, cached_tokens));
    put_type(b, "router_queue_backpressure_total", "counter", "Requests refused by a limit of their class");
    for (const struct pool *p = s->pools; p; p = p->next)
        for (size_t c = 0; c < kvr_router_classes(p->router); c++)
            for (size_t k = 1; k < KVR_ARRAY_LEN(reasons); k++) {
                struct kvr_class_stats st;
                const char *class_name = kvr_router_class_stats(p->router, c, &st);
                kvr_buf_str(b, "kvroute_router_queue_backpressure_total{");
                put_scope(b, p);
                kvr_buf_printf(b, ",policy_class=\"%s\",reason=\"%s\"} %llu\n", class_name, reasons[k], (unsigned long long)st.rejected[k]);
            }
}

void metrics_write(struct serve *s, struct kvr_buf *b)
{
    struct metrics *m = &s->metrics;
    size_t parked = 0, active = 0;
    for (size_t i = 0; i < s->loops_n; i++) {
        parked += atomic_load(&s->loops[i]->parked_n);
        active += atomic_load(&s->loops[i]->active);
    }
#define PUT(name, help)                                                                                                                    \
    put_type(b, #name, "counter", help);                                                                                                   \
    put_value(b, #name, (double)atomic_load_explicit(&m->name, memory_order_relaxed));
    SERVE_COUNTERS(PUT)
#undef PUT
    labels_metrics(s, b);
    put_gauge(b, "requests_active", "Requests booked on a worker", (double)active);
    put_gauge(b, "requests_without_worker", "Requests waiting for a worker to exist", (double)parked);
    put_queues(s, b);
    put_histogram(b, "time_to_first_token_seconds", "From sending to the first stream event", &m->ttft);
    put_histogram(b, "inter_token_latency_seconds", "Between stream events", &m->itl);
    put_histogram(b, "input_sequence_tokens", "Prompt tokens", &m->isl);
    put_histogram(b, "kv_hit_rate", "Predicted share of the prompt that is cached", &m->hit_rate);
    put_histogram(b, "best_overlap_ratio", "Best overlap any eligible rank had, as a share of the prompt", &m->best_overlap);
    put_histogram(b, "overlap_regret_blocks", "Blocks of overlap given up for load: best less chosen", &m->regret);
    put_histogram(b, "choice_regret_ms", "Of choices by cost: time to first token above what the best other candidate would have taken",
                  &m->choice_regret);
    put_histogram(b, "choice_gain_ms", "Of choices by cost: time to first token below what the best other candidate would have taken",
                  &m->choice_gain);
    quality_metrics(s, b);
    put_histogram(b, "prediction_error_blocks",
                  "Distance of predicted and delivered cached blocks; what requests ahead were computing may be delivered or not",
                  &m->shortfall);
    put_histogram(b, "router_queue_wait_seconds", "Time in the queue, of requests that waited", &m->queue_wait);
    kvr_lock(&s->lock);
    struct quality q = s->quality;
    kvr_unlock(&s->lock);
    put_gauge(b, "prediction_divergence_ratio",
              "Moving mean of the distance of predicted and delivered cached tokens, as a share of the prompt", q.divergence);
    put_gauge(b, "prediction_diverged", "1 while cache predictions diverge from engine usage", q.diverged);
    put_histogram(b, "router_overhead_block_hashing_ms", "Hashing of blocks", &m->block_hashing);
    put_histogram(b, "router_overhead_indexer_find_matches_ms", "Matching in the index", &m->find_matches);
    put_histogram(b, "router_overhead_seq_hashing_ms", "Hashing of sequences", &m->seq_hashing);
    put_histogram(b, "router_overhead_scheduling_ms", "Projection, choice and booking", &m->scheduling);
    if (s->o->use_remote_indexer)
        put_histogram(b, "router_overhead_remote_index_ms", "From asking the remote index to its answer", &m->remote_query);
    put_histogram(b, "router_overhead_total_ms", "The whole decision", &m->total);
    put_models(s, b);
    put_workers(s, b);
    put_loads(s, b);
    engine_load_metrics(s, b);
    put_views(s, b);
    put_index(s, b);
    evidence_metrics(s, b);
    kvr_recorder_metrics(s->recorder, b);
    kvr_view_store_metrics(s->store, b);
    kvr_http_shared_metrics((struct kvr_http_port[]){{"admin", &s->admin_http}, {"data", &s->http}}, s->o->select_only ? 1 : 2, b);
    replicas_metrics(s, b);
    served_metrics(s, b);
    discovery_metrics(s, b);
    kvr_access_metrics(s->access, b);
    remote_metrics(s, b);
    shards_metrics(s, b);
    kvr_plane_feed_metrics(s->o->plane.plane != KVR_PLANE_ZMQ, s->feed, s->ingest, s->nats, b);
    kvr_durable_feed_metrics(s->durable, b);
}
