/* SPDX-License-Identifier: Apache-2.0 */
/* /metrics of this room: requests, what was chosen for them, and what came of it. */
#include "app/serve/common/page.h"
#include "app/serve/data/data_plane.h"
#include "app/serve/data/picker/picker.h"
#include "app/serve/data/request/request.h"
#include "app/serve/data/state/disagg_state.h"
#include "app/serve/data/state/room.h"
#include "app/serve/data/state/sessions.h"
#include "net/otlp/otlp.h"
#include "store/line_log.h"

static void put_tokens(struct data_plane *data, struct kvr_prom_page *b)
{
    static const char *const from[TOKENS_FROM_N] = {"none", "body", "bytes", "cache", "local", "engine"};
    put_family(b, "tokens_total", "counter", "Requests by where the tokens of their prompt came from");
    for (size_t i = 0; i < TOKENS_FROM_N; i++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("from", from[i])), atomic_load(&data->counters.tokens_from[i]));
}

static void put_sessions(struct data_plane *data, struct kvr_prom_page *b)
{
    struct session_counts sessions = sessions_counts(data->sessions), responses = sessions_counts(data->responses);
    put_gauge(b, "sessions", "Sessions bound to a rank", (double)sessions.bound);
    put_gauge(b, "responses", "Responses of /v1/responses whose worker is known", (double)responses.bound);
    put_family(b, "bindings_given_up_total", "counter", "Sessions and responses forgotten early: too many");
    kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("table", "sessions")), sessions.given_up);
    kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("table", "responses")), responses.given_up);
}

static void put_predicted_tiers(struct data_plane *data, struct kvr_prom_page *b)
{
    put_family(b, "tiers_predicted_tokens_total", "counter", "Part of predicted_cached_tokens_total to be read from lower tiers");
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("tier", kvr_tier_name((enum kvr_tier)t))),
                         atomic_load(&data->counters.tiers_predicted[t]));
}

static void put_choices(struct data_plane *data, struct kvr_prom_page *b)
{
    struct data_counters *m = &data->counters;
    put_histogram(b, "input_sequence_tokens", "Prompt tokens", &m->isl);
    put_histogram(b, "kv_hit_rate", "Predicted share of the prompt that is cached", &m->hit_rate);
    put_histogram(b, "best_overlap_ratio", "Best overlap any eligible rank had, as a share of the prompt", &m->best_overlap);
    put_histogram(b, "overlap_regret_blocks", "Blocks of overlap given up for load: best less chosen", &m->regret);
    put_histogram(b, "choice_regret_ms", "Time to first token above that of the best other candidate, by the model", &m->choice_regret);
    put_histogram(b, "choice_gain_ms", "Time to first token below that of the best other candidate, by the model", &m->choice_gain);
    if (!data->o->select_only) put_tokens(data, b);
    quality_metrics(data, b);
    put_histogram(b, "prediction_error_blocks", "Distance of predicted and delivered cached blocks", &m->shortfall);
    put_histogram(b, "router_queue_wait_seconds", "Time in the queue, of requests that waited", &m->queue_wait);
    struct quality_now q = quality_now(data);
    put_gauge(b, "prediction_divergence_ratio", "Mean distance of predicted and delivered cached tokens, as a share of the prompt",
              q.divergence);
    put_gauge(b, "prediction_diverged", "1 while cache predictions diverge from engine usage", q.diverged);
    put_histogram(b, "router_overhead_block_hashing_ms", "Hashing of blocks", &m->block_hashing);
    put_histogram(b, "router_overhead_indexer_find_matches_ms", "Matching in the index", &m->find_matches);
    put_histogram(b, "router_overhead_seq_hashing_ms", "Hashing of sequences", &m->seq_hashing);
    put_histogram(b, "router_overhead_scheduling_ms", "Projection, choice and booking", &m->scheduling);
    put_histogram(b, "router_overhead_total_ms", "The whole decision", &m->total);
}

void data_plane_metrics(struct data_plane *data, struct kvr_prom_page *b)
{
    size_t parked = 0, active = 0;
    for (size_t i = 0; i < data->loops_n; i++) {
        parked += atomic_load(&data->loops[i]->parked_n);
        active += atomic_load(&data->loops[i]->active);
    }
#define PUT(name, help)                                                                                                                    \
    kvr_prom_one_u64(b, "kvroute_", #name, "counter", help, atomic_load_explicit(&data->counters.name, memory_order_relaxed));
    DATA_COUNTERS(PUT)
#undef PUT
    if (!data->o->select_only) {
        leg_counts_metrics(&data->counters.legs, b);
        disagg_states_metrics(data, b);
    }
    put_gauge(b, "requests_active", "Requests booked on a worker", (double)active);
    put_gauge(b, "requests_without_worker", "Requests waiting for a worker to exist", (double)parked);
    picker_metrics(data, b);
    put_choices(data, b);
    put_predicted_tiers(data, b);
    put_sessions(data, b);
    kvr_access_log_metrics(data->access_log, b);
    kvr_otlp_metrics(data->otlp, b);
    fallback_counts_metrics(&data->fallback_counts, b);
}
