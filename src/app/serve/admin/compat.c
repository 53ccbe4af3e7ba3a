/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --metrics-compat: families of the router under the names that dashboards of an engine ask for, where they mean the same of the fleet as
 * the engine's mean of itself (docs/reference/metrics.md has the table, and what is left out). They are written from the same figures as
 * the router's own families; only names and labels differ.
 */
#include "app/serve/admin/room.h"

#include "app/serve/workers/counts/model_counts.h"
#include "wire/prom_page.h"

enum kind { KIND_TIME, KIND_GAUGE, KIND_COUNTER, KIND_ENDS };

struct row {
    const char *name;
    enum kind kind;
    const char *help;
    size_t at; /* of the figure in struct model_counts */
};

#define AT(field) offsetof(struct model_counts, field)

static const struct row vllm[] = {
    {"time_to_first_token_seconds", KIND_TIME, "From a request's arrival to its first stream event", AT(first_token)},
    {"inter_token_latency_seconds", KIND_TIME, "Between stream events", AT(itl)},
    {"time_per_output_token_seconds", KIND_TIME, "Between stream events, as engines before inter_token_latency_seconds name it", AT(itl)},
    {"request_time_per_output_token_seconds", KIND_TIME, "Of a stream: the mean time of a token after the first", AT(per_token)},
    {"e2e_request_latency_seconds", KIND_TIME, "From a request's arrival to the end of its answer", AT(duration)},
    {"num_requests_running", KIND_GAUGE, "Requests that a worker computes or answers", AT(running)},
    {"num_requests_waiting", KIND_GAUGE, "Requests that wait in the router", AT(waiting)},
    {"prompt_tokens_total", KIND_COUNTER, "Prompt tokens", AT(input)},
    {"generation_tokens_total", KIND_COUNTER, "Generated tokens", AT(output)},
    {"prefix_cache_queries_total", KIND_COUNTER, "Prompt tokens of answers that told of cached ones", AT(queried)},
    {"prefix_cache_hits_total", KIND_COUNTER, "Prompt tokens cached", AT(cached)},
    {"request_success_total", KIND_ENDS, "Requests that ended, by why", AT(ends)},
};

static const struct row sglang[] = {
    {"time_to_first_token_seconds", KIND_TIME, "From a request's arrival to its first stream event", AT(first_token)},
    {"inter_token_latency_seconds", KIND_TIME, "Between stream events", AT(itl)},
    {"e2e_request_latency_seconds", KIND_TIME, "From a request's arrival to the end of its answer", AT(duration)},
    {"num_running_reqs", KIND_GAUGE, "Requests that a worker computes or answers", AT(running)},
    {"num_queue_reqs", KIND_GAUGE, "Requests that wait in the router", AT(waiting)},
    {"prompt_tokens_total", KIND_COUNTER, "Prompt tokens", AT(input)},
    {"generation_tokens_total", KIND_COUNTER, "Generated tokens", AT(output)},
    {"cached_tokens_total", KIND_COUNTER, "Prompt tokens that engines reported as cached", AT(cached)},
};

struct writing {
    struct kvr_prom_page *page;
    const struct row *row;
};

/* An engine's own words: it knows of tool calls as of any stop, and of a client that left as of an abort. */
static void put_ends(struct kvr_prom_page *b, const struct model_counts *m)
{
    static const struct {
        const char *name;
        int of[2];
    } reasons[] = {{"stop", {KVR_FINISH_STOP, KVR_FINISH_TOOL_CALLS}}, {"length", {KVR_FINISH_LENGTH, -1}}, {"abort", {END_GONE, -1}}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(reasons); i++) {
        uint64_t sum = 0;
        for (int k = 0; k < 2; k++)
            if (reasons[i].of[k] >= 0) sum += atomic_load_explicit(&m->ends[reasons[i].of[k]], memory_order_relaxed);
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("model_name", m->model), KVR_PROM_TEXT("finished_reason", reasons[i].name)), sum);
    }
}

static void put_one(void *ctx, const struct model_counts *m)
{
    const struct writing *w = ctx;
    const void *at = (const char *)m + w->row->at;
    struct kvr_prom_pairs labels = KVR_PROM_PAIRS(KVR_PROM_TEXT("model_name", m->model));
    int64_t v;
    switch (w->row->kind) {
    case KIND_TIME: kvr_prom_put_histogram(w->page, labels, at); break;
    case KIND_COUNTER: kvr_prom_put_u64(w->page, labels, atomic_load_explicit((const _Atomic uint64_t *)at, memory_order_relaxed)); break;
    case KIND_GAUGE:
        v = atomic_load_explicit((const _Atomic int64_t *)at, memory_order_relaxed);
        kvr_prom_put_u64(w->page, labels, v > 0 ? (uint64_t)v : 0);
        break;
    case KIND_ENDS: put_ends(w->page, m); break;
    }
}

void compat_metrics(struct admin *admin, struct kvr_prom_page *b)
{
    static const char *const types[] = {"histogram", "gauge", "counter", "counter"};
    static const struct {
        const char *prefix;
        const struct row *rows;
        size_t n;
    } sets[] = {{NULL, NULL, 0}, {"vllm:", vllm, KVR_ARRAY_LEN(vllm)}, {"sglang:", sglang, KVR_ARRAY_LEN(sglang)}};
    int k = admin->o->metrics_compat;
    for (size_t i = 0; i < sets[k].n; i++) {
        const struct row *row = &sets[k].rows[i];
        kvr_prom_family(b, sets[k].prefix, row->name, types[row->kind], row->help);
        model_counts_each(admin->workers, put_one, &(struct writing){b, row});
    }
}
