/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus text. Counters and histograms are atomics that any thread may touch; gauges are read at the scrape. */
#include "app/serve/admin/admin.h"
#include "app/serve/config/models_config.h"
#include "app/serve/config/doors.h"
#include "app/serve/data/disagg_state.h"
#include "app/serve/data/request.h"
#include "app/serve/discovery/discovery.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "app/serve/workers/evidence.h"
#include "app/serve/workers/tiers.h"
#include "app/serve/state.h"

#include <stdlib.h>
#include <string.h>

#include "net/otlp/otlp.h"
#include "store/line_log.h"
#include "net/http/process_metrics.h"
#include "store/view_store.h"
#include "wire/prom_page.h"

static void put_family(struct kvr_prom_page *b, const char *name, const char *type, const char *help)
{
    kvr_prom_family(b, "kvroute_", name, type, help);
}

static void put_histogram(struct kvr_prom_page *b, const char *name, const char *help, const struct kvr_histogram *h)
{
    put_family(b, name, "histogram", help);
    kvr_prom_put_histogram(b, KVR_PROM_NONE, h);
}

static void put_gauge(struct kvr_prom_page *b, const char *name, const char *help, double v)
{
    kvr_prom_one_double(b, "kvroute_", name, "gauge", help, v);
}

/* Of a worker that has gone meanwhile: that of any other. */
static const char *role_of(struct serve *s, uint64_t id)
{
    kvr_lock(&s->lock);
    const struct worker *w = worker_find_locked(s, id);
    enum worker_role role = w ? w->role : ROLE_BOTH;
    kvr_unlock(&s->lock);
    return role_name(role);
}

static void put_loads(struct serve *s, struct kvr_prom_page *b)
{
    size_t n;
    struct kvr_rank_load *l = admin_all_loads(s, b->out, &n);
    const char **roles = malloc((n + 1) * sizeof *roles);
    if (!roles) b->out->failed = true;
    for (size_t i = 0; roles && i < n; i++) roles[i] = role_of(s, l[i].worker.worker_id);
    if (!roles) n = 0;
#define PUT(name, field, help)                                                                                                             \
    put_family(b, name, "gauge", help);                                                                                                    \
    for (size_t i = 0; i < n; i++)                                                                                                         \
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_RANK(l[i].worker.worker_id, l[i].worker.dp_rank), KVR_PROM_TEXT("role", roles[i])),    \
                         l[i].field);
    PUT("worker_active_prefill_tokens", active_prefill_tokens, "Prompt tokens still to be computed")
    PUT("worker_active_decode_blocks", active_decode_blocks, "KV blocks in use by running requests")
    PUT("worker_active_requests", active_requests, "Running requests")
#undef PUT
    free(roles);
    free(l);
}

/* What is known of all views. NULL, with *n 0: there are none, or memory is short and the page has failed. */
static struct kvr_view_status *all_views(struct serve *s, struct kvr_prom_page *b, size_t *n)
{
    *n = 0;
    if (!s->ingest) return NULL;
    size_t room = kvr_ingest_status(s->ingest, NULL, 0) + 8; /* some may come meanwhile */
    struct kvr_view_status *st = calloc(room, sizeof *st);
    if (st) *n = KVR_MIN(kvr_ingest_status(s->ingest, st, room), room);
    else b->out->failed = true;
    return st;
}

#define RANK_OF(st) KVR_PROM_RANK((st).worker.worker_id, (st).worker.dp_rank)

/* What each of KVR_INGEST_COUNTERS counts of a rank's stream. */
static const char *view_counter_help(const char *name)
{
    static const char *const helps[][2] = {
        {"batches", "Batches of KV events applied"},
        {"events", "KV events in these"},
        {"blocks", "Blocks that these events name"},
        {"bytes", "Bytes of these"},
        {"stale_batches", "Batches that had been applied before"},
        {"gaps", "Gaps in a stream's sequence: batches were lost"},
        {"restarts", "Sequences that went backwards: the engine was started anew"},
        {"replays", "Times that an engine was asked to replay events"},
        {"replay_failures", "Of these, without a whole answer"},
        {"bad_frames", "Messages without the frames of an event batch"},
        {"decode_errors", "Batches that could not be read"},
        {"parent_not_found", "Stored blocks whose parent is not known"},
        {"block_not_found", "Removed blocks that were not known"},
        {"apply_errors", "Events that the index refused"},
        {"disconnects", "Connections to an engine's events that were lost"},
        {"overflows", "Batches dropped because too many waited for a repair"},
        {"floods", "Connections given up because they bring bytes and no messages"},
        {"questions", "Questions to recover endpoints"},
        {"lower_unplaced", "Stores of lower tiers whose blocks have no known place"},
        {"recovered_events", "Events that these have brought back"},
        {"recovered_dumps", "Times that they have brought everything"},
        {"recovery_failures", "Of the questions, without an answer of use"},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(helps); i++)
        if (strcmp(helps[i][0], name) == 0) return helps[i][1];
    return name;
}

static void put_view_counter(struct kvr_prom_page *b, const struct kvr_view_status *st, size_t n, const char *name, size_t at)
{
    char family[96];
    const char *help = view_counter_help(name);
    snprintf(family, sizeof family, "kv_%s_total", name);
    put_family(b, family, "counter", help);
    for (size_t i = 0; i < n; i++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(RANK_OF(st[i])), *(const uint64_t *)(const void *)((const char *)&st[i] + at));
}

static void put_view_ages(struct kvr_prom_page *b, const struct kvr_view_status *st, size_t n)
{
    uint64_t now = kvr_now_ns(kvr_clock_monotonic());
    put_family(b, "view_state_seconds", "gauge", "Since a view's state, or why it is no better, changed last");
    for (size_t i = 0; i < n; i++)
        if (st[i].since_ns) kvr_prom_put_double(b, KVR_PROM_PAIRS(RANK_OF(st[i])), (double)(now - KVR_MIN(now, st[i].since_ns)) / 1e9);
    put_family(b, "kv_last_event_age_seconds", "gauge", "Since KV events of a rank were applied last; no sample before the first");
    for (size_t i = 0; i < n; i++)
        if (st[i].heard_ns) kvr_prom_put_double(b, KVR_PROM_PAIRS(RANK_OF(st[i])), (double)(now - KVR_MIN(now, st[i].heard_ns)) / 1e9);
    put_family(b, "kv_stream_connected", "gauge", "1 while the connection to a rank's KV events stands");
    for (size_t i = 0; i < n; i++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(RANK_OF(st[i])), st[i].connected);
}

struct tier_sample { /* of a rank's tier of which something is known */
    struct kvr_worker worker;
    enum kvr_tier tier;
    enum kvr_view_knowledge known;
    uint64_t blocks;
};

static struct tier_sample *told_tiers(struct serve *s, struct kvr_prom_page *b, const struct kvr_view_status *st, size_t n, size_t *out_n)
{
    struct tier_sample *out = malloc((n * (KVR_TIER_COUNT - 1) + 1) * sizeof *out);
    *out_n = 0;
    if (!out) b->out->failed = true;
    for (size_t i = 0; out && i < n; i++) {
        struct kvr_tier_status tiers[KVR_TIER_COUNT];
        kvr_lock(&s->lock);
        const struct worker *w = worker_find_locked(s, st[i].worker.worker_id);
        struct kvr_index *index = w ? w->partition->index : NULL; /* a partition stays */
        kvr_unlock(&s->lock);
        if (!index) continue;
        kvr_index_tier_status(index, st[i].worker, tiers);
        for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) {
            enum kvr_view_knowledge known = tier_knowledge(&tiers[t], st[i].knowledge);
            if (known == KVR_VIEW_UNKNOWN && !tiers[t].blocks) continue;
            out[(*out_n)++] = (struct tier_sample){st[i].worker, (enum kvr_tier)t, known, tiers[t].blocks};
        }
    }
    return out;
}

static void put_view_tiers(struct serve *s, struct kvr_prom_page *b, const struct kvr_view_status *st, size_t n)
{
    size_t told;
    struct tier_sample *x = told_tiers(s, b, st, n, &told);
#define TIER_OF(x) RANK_OF(x), KVR_PROM_TEXT("tier", kvr_tier_name((x).tier))
    put_family(b, "view_tier_blocks", "gauge", "Blocks that a rank keeps in a lower tier, of tiers that events tell of");
    for (size_t i = 0; i < told; i++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(TIER_OF(x[i])), x[i].blocks);
    put_family(b, "view_tier_knowledge", "gauge", "1 for the state that the view of such a tier is in: whole, partial, unknown");
    for (size_t i = 0; i < told; i++)
        for (int k = KVR_VIEW_UNKNOWN; k <= KVR_VIEW_WHOLE; k++)
            kvr_prom_put_u64(b, KVR_PROM_PAIRS(TIER_OF(x[i]), KVR_PROM_TEXT("state", kvr_view_knowledge_name((enum kvr_view_knowledge)k))),
                             (int)x[i].known == k);
#undef TIER_OF
    free(x);
}

static void put_views(struct serve *s, struct kvr_prom_page *b)
{
    size_t n;
    struct kvr_view_status *st = all_views(s, b, &n);
    put_family(b, "view_trusted", "gauge", "1 when the view of a rank's cache is of use: whole or partial");
    for (size_t i = 0; i < n; i++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(RANK_OF(st[i])), st[i].trusted);
    kvr_view_metrics(b, st, n);
    put_view_ages(b, st, n);
    put_view_tiers(s, b, st, n);
    put_gauge(b, "view_supposed_blocks", "Blocks in partial views for which only answers of their engines speak",
              (double)atomic_load(&s->view_supposed));
    put_family(b, "view_recovering", "gauge", "1 while what a view has lost is being fetched");
    for (size_t i = 0; i < n; i++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(RANK_OF(st[i])), st[i].repairing && !st[i].trusted);
#define PUT(name) put_view_counter(b, st, n, #name, offsetof(struct kvr_view_status, name));
    KVR_INGEST_COUNTERS(PUT)
#undef PUT
    put_family(b, "kv_events_filtered_total", "counter", "KV events left out, by reason");
    for (size_t i = 0; i < n; i++) {
#define PUT(name)                                                                                                                          \
    if (st[i].filtered.name) kvr_prom_put_u64(b, KVR_PROM_PAIRS(RANK_OF(st[i]), KVR_PROM_TEXT("reason", #name)), st[i].filtered.name);
        KVR_ENGINE_COUNTERS(PUT)
#undef PUT
    }
    free(st);
}

/* The pairs that name a partition: those of its scope, and the number that tells partitions of a scope apart. */
#define SCOPE_OF(p) KVR_PROM_TEXT("model", (p)->model), KVR_PROM_TEXT("routing_group", (p)->group)
#define SIZE_OF(p)  KVR_PROM_NUMBER("block_size", (p)->block_size)

static void put_index(struct serve *s, struct kvr_prom_page *b)
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
    put_gauge(b, "index_bytes_max", "Cap on the memory of each index; 0: none", (double)s->o->index_max_bytes);
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        put_family(b, rows[i].name, rows[i].type, rows[i].help);
        for (const struct partition *p = s->partitions; p; p = p->next) {
            if (!p->index) continue;
            kvr_index_stats(p->index, &st);
            kvr_prom_put_u64(b, KVR_PROM_PAIRS(SCOPE_OF(p), SIZE_OF(p)), *(uint64_t *)(void *)((char *)&st + rows[i].at));
        }
    }
}

#define ROLE_OF(w)   KVR_PROM_TEXT("role", role_name((w)->role))
#define WORKER_OF(w) KVR_PROM_NUMBER("worker_id", (w)->id), ROLE_OF(w)

/* Why a worker may be chosen or not; what clients got of it is in requests_total. */
static void put_standing(struct serve *s, struct kvr_prom_page *b)
{
    static const char *const healths[] = {"unknown", "up", "down"};
    uint64_t now = now_ms();
    put_family(b, "worker_health", "gauge", "1 for what the last health check said of a worker: unknown (none yet), up, down");
    for (const struct worker *w = s->workers; w; w = w->next)
        for (int k = HEALTH_UNKNOWN; k <= HEALTH_DOWN; k++)
            kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w), KVR_PROM_TEXT("state", healths[k])), (int)atomic_load(&w->health) == k);
    put_family(b, "worker_breaker_open", "gauge", "1 while a worker is left out for --breaker-cooldown, after failures in a row");
    for (const struct worker *w = s->workers; w; w = w->next)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w)), atomic_load(&w->open_until_ms) > now);
    put_family(b, "worker_errors_total", "counter", "Requests that a worker has failed: refused, reset, cut off, 502 to 504");
    for (const struct worker *w = s->workers; w; w = w->next) {
        kvr_lock(&s->lock);
        uint64_t errors = w->errors;
        kvr_unlock(&s->lock);
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w)), errors);
    }
    put_family(b, "worker_info", "gauge", "1, with the model of a worker; for joins by worker_id");
    for (const struct worker *w = s->workers; w; w = w->next) {
        char model[MODEL_MAX];
        kvr_lock(&s->lock);
        snprintf(model, sizeof model, "%s", worker_model(s, w));
        kvr_unlock(&s->lock);
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w), KVR_PROM_TEXT("model", model)), 1);
    }
}

static void put_workers(struct serve *s, struct kvr_prom_page *b)
{
    put_family(b, "worker_registered", "gauge", "1 for each rank of a registered worker");
    for (const struct worker *w = s->workers; w; w = w->next)
        for (uint32_t r = 0; r < w->dp_size; r++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_RANK(w->id, w->dp_start + r), ROLE_OF(w)), 1);
    put_family(b, "worker_up", "gauge", "1 when a worker may be chosen");
    for (const struct worker *w = s->workers; w; w = w->next)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w)), worker_is_schedulable(w, now_ms()));
    put_family(b, "worker_draining", "gauge", "1 while a worker gets no new requests because somebody said so");
    for (const struct worker *w = s->workers; w; w = w->next) kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w)), w->draining);
    put_standing(s, b);
    put_family(b, "worker_requests_total", "counter", "Requests sent to a worker");
    for (const struct worker *w = s->workers; w; w = w->next) {
        kvr_lock(&s->lock);
        uint64_t requests = w->requests;
        kvr_unlock(&s->lock);
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(WORKER_OF(w)), requests);
    }
    put_family(b, "worker_ttft_factor", "gauge", "Times to first token of a worker, in times of what the fleet's model says");
    for (const struct worker *w = s->workers; w; w = w->next) {
        struct kvr_ttft_model m;
        struct kvr_ttft_factor f;
        if (kvr_router_ttft_model(w->partition->router, &w->id, &m, &f) == 0) kvr_prom_put_double(b, KVR_PROM_PAIRS(WORKER_OF(w)), f.value);
    }
    struct session_counts sessions = sessions_counts(s->sessions), responses = sessions_counts(s->responses);
    put_gauge(b, "roster_models_left_out",
              "Names of models, of each worker that has them, beyond what is kept: each request looks at every worker",
              (double)roster_models_left_out(s));
    put_gauge(b, "sessions", "Sessions bound to a rank", (double)sessions.bound);
    put_gauge(b, "responses", "Responses of /v1/responses whose worker is known", (double)responses.bound);
    put_family(b, "bindings_given_up_total", "counter", "Sessions and responses forgotten before their time, as there were too many");
    kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("table", "sessions")), sessions.given_up);
    kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("table", "responses")), responses.given_up);
}

struct learnt_models {
    struct kvr_ttft_model ttft;
    struct kvr_generation_model generation;
};

static void put_models(struct serve *s, struct kvr_prom_page *b)
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
        put_family(b, rows[i].name, "gauge", rows[i].help);
        for (const struct partition *p = s->partitions; p; p = p->next) {
            struct learnt_models m;
            (void)kvr_router_ttft_model(p->router, NULL, &m.ttft, NULL);
            kvr_router_generation_model(p->router, &m.generation);
            kvr_prom_put_double(b, KVR_PROM_PAIRS(SCOPE_OF(p), SIZE_OF(p)), *(const double *)(const void *)((const char *)&m + rows[i].at));
        }
    }
}

static void put_tiers(struct serve *s, struct kvr_prom_page *b)
{
    put_family(b, "ttft_model_read_share", "gauge", "Learnt: of a prompt token that is read from a lower tier, in times of computing one");
    for (const struct partition *p = s->partitions; p; p = p->next) {
        struct kvr_ttft_model m;
        (void)kvr_router_ttft_model(p->router, NULL, &m, NULL);
        for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++)
            kvr_prom_put_double(b, KVR_PROM_PAIRS(SCOPE_OF(p), KVR_PROM_TEXT("tier", kvr_tier_name((enum kvr_tier)t)), SIZE_OF(p)),
                                m.share[t]);
    }
    put_family(b, "tiers_predicted_tokens_total", "counter",
               "Prompt tokens predicted to be read from lower tiers, of answers with usage; part of predicted_cached_tokens_total");
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("tier", kvr_tier_name((enum kvr_tier)t))),
                         atomic_load(&s->metrics.tiers_predicted[t]));
}

static void put_queue_gauge(struct serve *s, struct kvr_prom_page *b, const char *name, const char *help, size_t at)
{
    put_family(b, name, "gauge", help);
    for (const struct partition *p = s->partitions; p; p = p->next)
        for (size_t c = 0; c < kvr_router_classes(p->router); c++) {
            struct kvr_class_stats st;
            const char *class_name = kvr_router_class_stats(p->router, c, &st);
            kvr_prom_put_u64(b, KVR_PROM_PAIRS(SCOPE_OF(p), KVR_PROM_TEXT("policy_class", class_name), SIZE_OF(p)),
                             *(uint64_t *)(void *)((char *)&st + at));
        }
}

static void put_queues(struct serve *s, struct kvr_prom_page *b)
{
    static const char *const reasons[] = {"", "request_limit", "raw_isl_token_limit", "cached_token_limit"};
    put_queue_gauge(s, b, "router_queue_pending_requests", "Requests in the queue", offsetof(struct kvr_class_stats, requests));
    put_queue_gauge(s, b, "router_queue_pending_isl_tokens", "Their prompt tokens", offsetof(struct kvr_class_stats, isl_tokens));
    put_queue_gauge(s, b, "router_queue_pending_cached_tokens", "Of these, cached somewhere",
                    offsetof(struct kvr_class_stats, cached_tokens));
    put_queue_gauge(s, b, "router_queue_pending_tenants", "API keys that have requests in the queue",
                    offsetof(struct kvr_class_stats, tenants));
    put_family(b, "router_queue_backpressure_total", "counter", "Requests refused by a limit of their class");
    for (const struct partition *p = s->partitions; p; p = p->next)
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

static void put_tokens(struct serve *s, struct kvr_prom_page *b)
{
    static const char *const from[TOKENS_FROM_N] = {"none", "body", "bytes", "cache", "local", "engine"};
    put_family(b, "tokens_total", "counter",
               "Requests by where the tokens of their prompt came from; cache: what was made or asked for before");
    for (size_t i = 0; i < TOKENS_FROM_N; i++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("from", from[i])), atomic_load(&s->metrics.tokens_from[i]));
    tokenizers_metrics(s, b);
}

static void put_staged(struct serve *s, struct kvr_prom_page *b)
{
    put_family(b, "disagg_staged_requests", "gauge", "Prompts that a prefill worker has computed and no decode worker has answered");
    for (const struct worker *w = s->workers; w; w = w->next)
        if (w->role == ROLE_PREFILL) kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_NUMBER("worker_id", w->id)), atomic_load(&w->staged));
}

static void put_access_log(const struct serve *s, struct kvr_prom_page *b)
{
    struct kvr_line_log_stats st = {0};
    if (s->access_log) kvr_line_log_stats(s->access_log, &st);
    const struct {
        const char *name, *help;
        uint64_t v;
    } rows[] = {
        {"access_log_lines_total", "Lines of the access log", st.lines},
        {"access_log_dropped_lines_total", "Lines for which there was no room, as the file is too slow or cannot be written", st.dropped},
        {"access_log_write_errors_total", "Writes to it that have failed, and are tried again", st.write_errors},
        {"access_log_reopened_total", "Times that it was opened anew", st.reopened}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        kvr_prom_one_if(b, s->access_log != NULL, "kvroute_", rows[i].name, "counter", rows[i].help, rows[i].v);
}

void metrics_write(struct serve *s, struct kvr_buf *out)
{
    struct kvr_prom_page page = {.out = out}, *b = &page;
    struct metrics *m = &s->metrics;
    size_t parked = 0, active = 0;
    for (size_t i = 0; i < s->loops_n; i++) {
        parked += atomic_load(&s->loops[i]->parked_n);
        active += atomic_load(&s->loops[i]->active);
    }
#define PUT(name, help) kvr_prom_one_u64(b, "kvroute_", #name, "counter", help, atomic_load_explicit(&m->name, memory_order_relaxed));
    SERVE_COUNTERS(PUT)
#undef PUT
    kvr_process_metrics(s->o->select_only ? "select" : "serve", b);
    put_gauge(b, "draining", "1 while the process ends: it is not ready any more", serve_is_ending(s));
    labels_metrics(s, b);
    if (!s->o->select_only) {
        model_counts_metrics(s, b);
        compat_metrics(s, b);
        leg_counts_metrics(&m->legs, b);
        put_staged(s, b);
        disagg_states_metrics(s, b);
    }
    put_gauge(b, "requests_active", "Requests booked on a worker", (double)active);
    put_gauge(b, "requests_without_worker", "Requests waiting for a worker to exist", (double)parked);
    put_queues(s, b);
    put_histogram(b, "input_sequence_tokens", "Prompt tokens", &m->isl);
    put_histogram(b, "kv_hit_rate", "Predicted share of the prompt that is cached", &m->hit_rate);
    put_histogram(b, "best_overlap_ratio", "Best overlap any eligible rank had, as a share of the prompt", &m->best_overlap);
    put_histogram(b, "overlap_regret_blocks", "Blocks of overlap given up for load: best less chosen", &m->regret);
    put_histogram(b, "choice_regret_ms", "Of choices by cost: time to first token above what the best other candidate would have taken",
                  &m->choice_regret);
    put_histogram(b, "choice_gain_ms", "Of choices by cost: time to first token below what the best other candidate would have taken",
                  &m->choice_gain);
    if (!s->o->select_only) put_tokens(s, b);
    quality_metrics(s, b);
    put_histogram(b, "prediction_error_blocks",
                  "Distance of predicted and delivered cached blocks; what requests ahead were computing may be delivered or not",
                  &m->shortfall);
    put_histogram(b, "router_queue_wait_seconds", "Time in the queue, of requests that waited", &m->queue_wait);
    struct quality_now q = quality_now(s);
    put_gauge(b, "prediction_divergence_ratio",
              "Moving mean of the distance of predicted and delivered cached tokens, as a share of the prompt", q.divergence);
    put_gauge(b, "prediction_diverged", "1 while cache predictions diverge from engine usage", q.diverged);
    put_histogram(b, "router_overhead_block_hashing_ms", "Hashing of blocks", &m->block_hashing);
    put_histogram(b, "router_overhead_indexer_find_matches_ms", "Matching in the index", &m->find_matches);
    put_histogram(b, "router_overhead_seq_hashing_ms", "Hashing of sequences", &m->seq_hashing);
    put_histogram(b, "router_overhead_scheduling_ms", "Projection, choice and booking", &m->scheduling);
    put_histogram(b, "router_overhead_remote_index_ms", "From asking the remote index to its answer", &m->remote_query);
    put_histogram(b, "router_overhead_total_ms", "The whole decision", &m->total);
    put_models(s, b);
    put_tiers(s, b);
    put_workers(s, b);
    put_loads(s, b);
    engine_load_metrics(s, b);
    put_views(s, b);
    put_index(s, b);
    evidence_metrics(s, b);
    kvr_recorder_metrics(s->recorder, b);
    put_access_log(s, b);
    kvr_otlp_metrics(s->otlp, b);
    kvr_view_store_metrics(s->store, b);
    kvr_http_shared_metrics((struct kvr_http_port[]){{"admin", &s->admin_http}, {"data", &s->http}}, s->o->select_only ? 1 : 2, b);
    keyrings_metrics(s, b);
    doors_metrics(s, b);
    reloads_metrics(&s->reloads, b);
    models_config_metrics(s, b);
    fallback_counts_metrics(&s->fallback_counts, b);
    replicas_metrics(s, b);
    served_metrics(s, b);
    discovery_metrics(s, b);
    kvr_access_metrics(s->access, b);
    remote_metrics(s, b);
    shards_metrics(s, b);
    kvr_plane_feed_metrics(s->o->plane.plane != KVR_PLANE_ZMQ, s->feed, s->ingest, s->nats, b);
    kvr_durable_feed_metrics(s->durable, b);
}
