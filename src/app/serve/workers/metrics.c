/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /metrics of the room of workers: its counters, how workers stand, what their partitions hold and have learnt. Files with metrics of their
 * own are called from here (views/views_metrics.c, counts/, engines/engine_load.c). Main loop; takes the table's lock for one worker at a
 * time.
 */
#include <stdlib.h>

#include "app/serve/common/page.h"
#include "app/serve/workers/counts/labels.h"
#include "app/serve/workers/counts/model_counts.h"
#include "app/serve/workers/engines/engine_load.h"
#include "app/serve/workers/table/room.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/views/evidence.h"
#include "app/serve/workers/views/views.h"

/* The pairs that name a partition: those of its scope, and the number that tells partitions of a scope apart. */
#define SCOPE_OF(p) KVR_PROM_TEXT("model", (p)->model), KVR_PROM_TEXT("routing_group", (p)->group)
#define SIZE_OF(p)  KVR_PROM_NUMBER("block_size", (p)->block_size)

static void put_index(struct workers *ws, struct kvr_prom_page *b)
{
    static const struct kvr_prom_member rows[] = {
        {"index_bytes", "gauge", "Memory of the index", offsetof(struct kvr_index_stats, bytes)},
        {"index_blocks", "gauge", "(block, holder) pairs", offsetof(struct kvr_index_stats, blocks)},
        {"index_nodes", "gauge", "Distinct blocks", offsetof(struct kvr_index_stats, nodes)},
        {"index_predicted_blocks", "gauge", "Pairs known from routing decisions", offsetof(struct kvr_index_stats, predicted)},
        {"index_stored_blocks_total", "counter", "Pairs that events have stored", offsetof(struct kvr_index_stats, stored_blocks)},
        {"index_removed_blocks_total", "counter", "Pairs that events have removed: evictions",
         offsetof(struct kvr_index_stats, removed_blocks)},
        {"index_duplicate_stores_total", "counter", "Stores that changed nothing", offsetof(struct kvr_index_stats, duplicate_stores)},
        {"index_out_of_memory_total", "counter", "Operations that ran into the byte cap", offsetof(struct kvr_index_stats, no_memory)},
        {"index_no_room_total", "counter", "Stores refused: no pairs or runs left", offsetof(struct kvr_index_stats, no_room)},
        {"index_aliases_refused_total", "counter", "Names of a block beyond 32, left out",
         offsetof(struct kvr_index_stats, aliases_refused)},
        {"index_evicted_total", "counter", "Pairs given up for the byte cap", offsetof(struct kvr_index_stats, evicted_bytes)},
        {"index_expired_total", "counter", "Predicted pairs dropped by time", offsetof(struct kvr_index_stats, expired)},
        {"index_pruned_total", "counter", "Predicted pairs dropped by size", offsetof(struct kvr_index_stats, pruned)},
    };
    struct kvr_index_stats st;
    put_gauge(b, "index_bytes_max", "Cap on the memory of each index; 0: none", (double)ws->o->index_max_bytes);
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        put_family(b, rows[i].name, rows[i].type, rows[i].help);
        for (const struct partition *p = ws->partitions; p; p = p->next) {
            if (!p->index) continue;
            kvr_index_stats(p->index, &st);
            kvr_prom_put_u64(b, KVR_PROM_PAIRS(SCOPE_OF(p), SIZE_OF(p)), *(uint64_t *)(void *)((char *)&st + rows[i].at));
        }
    }
}

#define ROLE_OF(w)   KVR_PROM_TEXT("role", role_name((w)->role))
#define WORKER_OF(w) KVR_PROM_NUMBER("worker_id", (w)->id), ROLE_OF(w)

/* Why a worker may be chosen or not; what clients got of it is in requests_total. */
static void put_standing(struct workers *ws, struct kvr_prom_page *b)
{
    static const char *const healths[] = {"unknown", "up", "down"};
    uint64_t now = kvr_now_ms();
    put_family(b, "worker_health", "gauge", "1 for what the last health check said: unknown (none yet), up, down");
    for (const struct worker *w = ws->workers; w; w = w->next)
        for (int k = HEALTH_UNKNOWN; k <= HEALTH_DOWN; k++)
            kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w), KVR_PROM_TEXT("state", healths[k])), (int)atomic_load(&w->health) == k);
    put_family(b, "worker_breaker_open", "gauge", "1 while a worker is left out after failures in a row");
    for (const struct worker *w = ws->workers; w; w = w->next)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w)), atomic_load(&w->open_until_ms) > now);
    put_family(b, "worker_errors_total", "counter", "Requests that a worker has failed: refused, reset, cut off, 502 to 504");
    for (const struct worker *w = ws->workers; w; w = w->next) {
        workers_lock(ws);
        uint64_t errors = w->errors;
        workers_unlock(ws);
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w)), errors);
    }
    put_family(b, "worker_info", "gauge", "1, with the model of a worker; for joins by worker_id");
    for (const struct worker *w = ws->workers; w; w = w->next) {
        char model[MODEL_MAX];
        workers_lock(ws);
        snprintf(model, sizeof model, "%s", worker_model(ws, w));
        workers_unlock(ws);
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w), KVR_PROM_TEXT("model", model)), 1);
    }
}

static void put_workers(struct workers *ws, struct kvr_prom_page *b)
{
    put_family(b, "worker_registered", "gauge", "1 for each rank of a registered worker");
    for (const struct worker *w = ws->workers; w; w = w->next)
        for (uint32_t r = 0; r < w->dp_size; r++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_RANK(w->id, w->dp_start + r), ROLE_OF(w)), 1);
    put_family(b, "worker_up", "gauge", "1 when a worker may be chosen");
    for (const struct worker *w = ws->workers; w; w = w->next)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w)), worker_is_schedulable(w, kvr_now_ms()));
    put_family(b, "worker_draining", "gauge", "1 while a worker drains");
    for (const struct worker *w = ws->workers; w; w = w->next) kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w)), w->draining);
    put_standing(ws, b);
    put_family(b, "worker_requests_total", "counter", "Requests sent to a worker");
    for (const struct worker *w = ws->workers; w; w = w->next) {
        workers_lock(ws);
        uint64_t requests = w->requests;
        workers_unlock(ws);
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w)), requests);
    }
    put_family(b, "worker_ttft_factor", "gauge", "Times to first token of a worker, in times of the fleet's model");
    for (const struct worker *w = ws->workers; w; w = w->next) {
        struct kvr_ttft_model m;
        struct kvr_ttft_factor f;
        if (kvr_router_ttft_model(w->partition->router, &w->id, &m, &f) == 0) kvr_prom_put_double(b, KVR_PROM_PAIRS(WORKER_OF(w)), f.value);
    }
    put_gauge(b, "roster_models_left_out", "Names of models at workers beyond what is kept", (double)roster_models_left_out(ws));
}

struct learnt_models {
    struct kvr_ttft_model ttft;
    struct kvr_generation_model generation;
};

static void put_models(struct workers *ws, struct kvr_prom_page *b)
{
    static const struct {
        const char *name, *help;
        size_t at;
    } rows[] = {
        {"ttft_model_base_ms", "Time to first token, learnt: of any request", offsetof(struct learnt_models, ttft.base_ms)},
        {"ttft_model_token_ms", "Time to first token, learnt: of a computed token", offsetof(struct learnt_models, ttft.token_ms)},
        {"ttft_model_ahead_token_ms", "Time to first token, learnt: of a prompt token ahead",
         offsetof(struct learnt_models, ttft.ahead_ms)},
        {"ttft_model_request_ms", "Time to first token, learnt: of a request that generates",
         offsetof(struct learnt_models, ttft.request_ms)},
        {"ttft_model_error_ms", "Moving mean of the distance of what was observed", offsetof(struct learnt_models, ttft.error_ms)},
        {"generation_model_base_ms", "A generated token, learnt: of any", offsetof(struct learnt_models, generation.base_ms)},
        {"generation_model_block_ms", "A generated token, learnt: of a KV block in use",
         offsetof(struct learnt_models, generation.block_ms)},
        {"generation_model_tokens", "Moving mean of the tokens of an answer after its first",
         offsetof(struct learnt_models, generation.tokens)},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        put_family(b, rows[i].name, "gauge", rows[i].help);
        for (const struct partition *p = ws->partitions; p; p = p->next) {
            struct learnt_models m;
            (void)kvr_router_ttft_model(p->router, NULL, &m.ttft, NULL);
            kvr_router_generation_model(p->router, &m.generation);
            kvr_prom_put_double(b, KVR_PROM_PAIRS(SCOPE_OF(p), SIZE_OF(p)), *(const double *)(const void *)((const char *)&m + rows[i].at));
        }
    }
}

static void put_tiers(struct workers *ws, struct kvr_prom_page *b)
{
    put_family(b, "ttft_model_read_share", "gauge", "Learnt: reading a prompt token from a lower tier, in times of computing one");
    for (const struct partition *p = ws->partitions; p; p = p->next) {
        struct kvr_ttft_model m;
        (void)kvr_router_ttft_model(p->router, NULL, &m, NULL);
        for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++)
            kvr_prom_put_double(b, KVR_PROM_PAIRS(SCOPE_OF(p), KVR_PROM_TEXT("tier", kvr_tier_name((enum kvr_tier)t)), SIZE_OF(p)),
                                m.share[t]);
    }
}

static void put_queue_gauge(struct workers *ws, struct kvr_prom_page *b, const char *name, const char *help, size_t at)
{
    put_family(b, name, "gauge", help);
    for (const struct partition *p = ws->partitions; p; p = p->next)
        for (size_t c = 0; c < kvr_router_classes(p->router); c++) {
            struct kvr_class_stats st;
            const char *class_name = kvr_router_class_stats(p->router, c, &st);
            kvr_prom_put_u64(b, KVR_PROM_PAIRS(SCOPE_OF(p), KVR_PROM_TEXT("policy_class", class_name), SIZE_OF(p)),
                             *(uint64_t *)(void *)((char *)&st + at));
        }
}

static void put_queues(struct workers *ws, struct kvr_prom_page *b)
{
    static const char *const reasons[] = {"", "request_limit", "raw_isl_token_limit", "cached_token_limit"};
    put_queue_gauge(ws, b, "router_queue_pending_requests", "Requests in the queue", offsetof(struct kvr_class_stats, requests));
    put_queue_gauge(ws, b, "router_queue_pending_isl_tokens", "Prompt tokens in the queue", offsetof(struct kvr_class_stats, isl_tokens));
    put_queue_gauge(ws, b, "router_queue_pending_cached_tokens", "Prompt tokens in the queue that are cached somewhere",
                    offsetof(struct kvr_class_stats, cached_tokens));
    put_queue_gauge(ws, b, "router_queue_pending_tenants", "API keys that have requests in the queue",
                    offsetof(struct kvr_class_stats, tenants));
    put_family(b, "router_queue_backpressure_total", "counter", "Requests refused by a limit of their class");
    for (const struct partition *p = ws->partitions; p; p = p->next)
        for (size_t c = 0; c < kvr_router_classes(p->router); c++)
            for (size_t k = 1; k < KVR_ARRAY_LEN(reasons); k++) {
                struct kvr_class_stats st;
                const char *class_name = kvr_router_class_stats(p->router, c, &st);
                kvr_prom_put_u64(
                    b,
                    KVR_PROM_PAIRS(SCOPE_OF(p), KVR_PROM_TEXT("policy_class", class_name), KVR_PROM_TEXT("reason", reasons[k]), SIZE_OF(p)),
                    st.rejected[k]);
            }
}

static void put_staged(struct workers *ws, struct kvr_prom_page *b)
{
    put_family(b, "disagg_staged_requests", "gauge", "Prompts computed by a prefill worker and not answered yet");
    for (const struct worker *w = ws->workers; w; w = w->next)
        if (w->role == ROLE_PREFILL) kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_NUMBER("worker_id", w->id)), atomic_load(&w->staged));
}

void workers_metrics(struct workers *ws, struct kvr_prom_page *b)
{
#define PUT(name, help)                                                                                                                    \
    kvr_prom_one_u64(b, "kvroute_", #name, "counter", help, atomic_load_explicit(&ws->counters.name, memory_order_relaxed));
    WORKER_COUNTERS(PUT)
#undef PUT
    labels_metrics(ws, b);
    if (!ws->o->select_only) {
        model_counts_metrics(ws, b);
        put_staged(ws, b);
    }
    put_queues(ws, b);
    put_models(ws, b);
    put_tiers(ws, b);
    put_workers(ws, b);
    engine_load_metrics(ws, b);
    views_metrics(ws, b);
    put_index(ws, b);
    evidence_metrics(ws, b);
}
