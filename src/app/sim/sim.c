/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of the simulation: a heap of moments, each an arrival or the end of an engine's pass. */
#include "app/sim/sim.h"

#include <string.h>

#include "engine/engine.h"
#include "app/sim/workload.h"

enum { BLOCK = 16, BLOCKS = 16384, TOKENS_PER_PASS = 8192, SEQS = 256 };

struct job {
    struct sim_request rq;
    struct kvr_router_result decision;
    uint64_t number;
    bool first_seen;
};

/* A copy of an event, applied when its pass ends. */
struct kept_event {
    struct kvr_event ev;
    struct kvr_block *blocks;
    uint64_t *hashes;
};

struct sim_worker {
    struct sim *sim;
    struct mock_engine *engine;
    uint64_t id;
    bool in_pass;
    struct kept_event *kept;
    size_t kept_n, kept_cap;
    struct job **done;
    size_t done_n, done_cap;
};

struct moment {
    uint64_t at_ns, order;
    struct job *job;           /* an arrival */
    struct sim_worker *worker; /* the end of a pass */
};

struct sim {
    struct sim_config cfg;
    uint64_t now_ns, order, numbers;
    struct moment *heap;
    size_t heap_n, heap_cap;
    struct sim_worker *workers;
    struct sim_workload_state *workload;
    struct kvr_index *index, *predicted;
    struct kvr_router *router;
    struct kvr_router_ctx *ctx;
    double *ttft;
    size_t ttft_n, ttft_cap;
    bool failed;
};

const char *sim_policy_name(enum sim_policy p)
{
    static const char *const names[] = {"round-robin", "least-loaded",    "kv linear",    "kv lmetric",
                                        "kv time",     "kv linear + ttl", "kv time + ttl"};
    return names[p];
}

static bool grow(struct sim *s, void **ptr, size_t *cap, size_t need, size_t elem)
{
    if (need <= *cap) return true;
    size_t fresh = KVR_MAX(2 * *cap, (size_t)64);
    void *p = realloc(*ptr, fresh * elem);
    if (!p) {
        s->failed = true;
        return false;
    }
    *ptr = p;
    *cap = fresh;
    return true;
}

/* ---- moments ----------------------------------------------------------------------------------------- */

static bool sooner(const struct moment *a, const struct moment *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void heap_push(struct sim *s, struct moment m)
{
    if (!grow(s, (void **)&s->heap, &s->heap_cap, s->heap_n + 1, sizeof *s->heap)) return;
    m.order = s->order++;
    size_t at = s->heap_n++;
    for (; at > 0 && sooner(&m, &s->heap[(at - 1) / 2]); at = (at - 1) / 2) s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = m;
}

static struct moment heap_pop(struct sim *s)
{
    struct moment top = s->heap[0], last = s->heap[--s->heap_n];
    size_t at = 0;
    for (;;) {
        size_t kid = 2 * at + 1;
        if (kid >= s->heap_n) break;
        if (kid + 1 < s->heap_n && sooner(&s->heap[kid + 1], &s->heap[kid])) kid++;
        if (!sooner(&s->heap[kid], &last)) break;
        s->heap[at] = s->heap[kid];
        at = kid;
    }
    if (s->heap_n) s->heap[at] = last;
    return top;
}

/* ---- engines ----------------------------------------------------------------------------------------- */

static void on_event(void *ctx, const struct kvr_event *ev, const uint32_t *tokens, size_t tokens_n, void *user)
{
    struct sim_worker *w = ctx;
    (void)tokens_n;
    (void)user;
    if (!grow(w->sim, (void **)&w->kept, &w->kept_cap, w->kept_n + 1, sizeof *w->kept)) return;
    struct kept_event *k = &w->kept[w->kept_n];
    *k = (struct kept_event){.ev = *ev};
    k->ev.worker.worker_id = w->id;
    if (ev->blocks_n) {
        k->blocks = malloc(ev->blocks_n * sizeof *k->blocks);
        if (!k->blocks) return;
        memcpy(k->blocks, ev->blocks, ev->blocks_n * sizeof *k->blocks);
        for (size_t i = 0; i < ev->blocks_n && tokens; i++) {
            uint64_t local;
            kvr_hash_locals(tokens + i * BLOCK, BLOCK, BLOCK, false, KVR_HASH_SEED, NULL, 0, &local);
            k->blocks[i].tokens_hash = local;
        }
        k->ev.blocks = k->blocks;
    }
    if (ev->removed_n) {
        k->hashes = malloc(ev->removed_n * sizeof *k->hashes);
        if (!k->hashes) return;
        memcpy(k->hashes, ev->removed, ev->removed_n * sizeof *k->hashes);
        k->ev.removed = k->hashes;
    }
    w->kept_n++;
}

static void job_id(const struct job *j, char out[24])
{
    snprintf(out, 24, "%llu", (unsigned long long)j->number);
}

static void note_first_token(struct sim *s, struct job *j)
{
    char id[24];
    double ms = (double)(s->now_ns - j->rq.arrival_ns) / 1e6;
    j->first_seen = true;
    job_id(j, id);
    kvr_router_mark_prefill_completed(s->router, id, strlen(id));
    kvr_router_observe_ttft(s->router, &j->decision, ms);
    if (grow(s, (void **)&s->ttft, &s->ttft_cap, s->ttft_n + 1, sizeof *s->ttft)) s->ttft[s->ttft_n++] = ms;
}

static void on_token(void *ctx, struct mock_request *r, uint32_t token, uint64_t index, bool last)
{
    struct sim_worker *w = ctx;
    struct job *j = mock_request_user(r);
    (void)token;
    (void)index;
    if (!j->first_seen) note_first_token(w->sim, j);
    if (last && grow(w->sim, (void **)&w->done, &w->done_cap, w->done_n + 1, sizeof(struct job *))) w->done[w->done_n++] = j;
}

static void start_pass(struct sim *s, struct sim_worker *w)
{
    uint64_t ns = mock_engine_begin_pass(w->engine);
    w->in_pass = ns > 0;
    if (ns) heap_push(s, (struct moment){.at_ns = s->now_ns + ns, .worker = w});
}

static void apply_events(struct sim *s, struct sim_worker *w)
{
    for (size_t i = 0; i < w->kept_n; i++) {
        kvr_index_apply(s->index, &w->kept[i].ev);
        free(w->kept[i].blocks);
        free(w->kept[i].hashes);
    }
    w->kept_n = 0;
}

static void job_free(struct job *j)
{
    free(j->rq.tokens);
    free(j);
}

static void add_arrival(struct sim *s, const struct sim_request *rq)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j) {
        s->failed = true;
        free(rq->tokens);
        return;
    }
    j->rq = *rq;
    heap_push(s, (struct moment){.at_ns = rq->arrival_ns, .job = j});
}

static void finish_job(struct sim *s, struct job *j)
{
    struct sim_request next;
    char id[24];
    job_id(j, id);
    kvr_router_free(s->router, id, strlen(id));
    if (sim_workload_follow(s->workload, &j->rq, s->now_ns, &next)) add_arrival(s, &next);
    job_free(j);
}

static void end_pass(struct sim *s, struct sim_worker *w)
{
    mock_engine_end_pass(w->engine);
    apply_events(s, w);
    for (size_t i = 0; i < w->done_n; i++) finish_job(s, w->done[i]);
    w->done_n = 0;
    start_pass(s, w);
}

/* ---- arrivals ---------------------------------------------------------------------------------------- */

static void arrive(struct sim *s, struct job *j)
{
    char id[24];
    j->number = ++s->numbers;
    job_id(j, id);
    struct kvr_router_request rq = {.id = id, .id_len = strlen(id), .book = true, .tokens = j->rq.tokens, .tokens_n = j->rq.tokens_n};
    if (kvr_router_find_best_match(s->router, s->ctx, &rq, &j->decision)) {
        s->failed = true;
        job_free(j);
        return;
    }
    struct sim_worker *w = &s->workers[j->decision.worker.worker_id - 1];
    struct mock_engine_request work = {.tokens = j->rq.tokens, .n = j->rq.tokens_n, .max_tokens = j->rq.osl, .user = j};
    if (!mock_engine_submit(w->engine, &work)) s->failed = true;
    if (!w->in_pass) start_pass(s, w);
}

static void pull_arrival(struct sim *s)
{
    struct sim_request rq;
    if (s->predicted) kvr_index_expire(s->predicted);
    if (sim_workload_next(s->workload, &rq)) add_arrival(s, &rq);
}

/* ---- life -------------------------------------------------------------------------------------------- */

static uint64_t virtual_now(void *ctx)
{
    return ((const struct sim *)ctx)->now_ns;
}

static int make_router(struct sim *s)
{
    struct kvr_router_config c;
    struct kvr_clock clock = {virtual_now, s};
    static const enum kvr_router_mode modes[] = {KVR_MODE_ROUND_ROBIN, KVR_MODE_LEAST_LOADED, KVR_MODE_KV, KVR_MODE_KV,
                                                 KVR_MODE_KV,          KVR_MODE_KV,           KVR_MODE_KV};
    static const enum kvr_cost_kind kinds[] = {KVR_COST_LINEAR, KVR_COST_LINEAR, KVR_COST_LINEAR, KVR_COST_LMETRIC,
                                               KVR_COST_TIME,   KVR_COST_LINEAR, KVR_COST_TIME};
    struct kvr_index_config pc = {.clock = &clock, .ttl_ns = 5000000000ull};
    if (kvr_index_create(NULL, &s->index)) return -KVR_ENOMEM;
    if (s->cfg.policy >= SIM_LINEAR_PREDICTED && kvr_index_create(&pc, &s->predicted)) return -KVR_ENOMEM;
    kvr_router_config_init(&c);
    c.clock = &clock;
    c.index = s->index;
    c.predicted = s->predicted;
    c.block_size = BLOCK;
    c.seed = s->cfg.seed;
    c.mode = modes[s->cfg.policy];
    c.cost.kind = kinds[s->cfg.policy];
    if (kvr_router_create(&c, &s->router, NULL) || kvr_router_ctx_create(s->router, &s->ctx)) return -KVR_ENOMEM;
    return 0;
}

static int make_workers(struct sim *s)
{
    s->workers = calloc(s->cfg.workers, sizeof *s->workers);
    for (uint32_t i = 0; s->workers && i < s->cfg.workers; i++) {
        struct sim_worker *w = &s->workers[i];
        struct mock_engine_config mc = {.block_size = BLOCK,
                                        .num_blocks = BLOCKS,
                                        .max_num_seqs = SEQS,
                                        .max_batched_tokens = TOKENS_PER_PASS,
                                        .speedup = 1,
                                        .seed = s->cfg.seed + i,
                                        .prefix_caching = true,
                                        .first_and_last = true, /* its index keeps a set */
                                        .on_event = on_event,
                                        .on_token = on_token,
                                        .ctx = w};
        w->sim = s;
        w->id = i + 1;
        w->engine = mock_engine_create(&mc);
        if (!w->engine || kvr_router_set_worker(s->router, w->id, 0, 1)) return -KVR_ENOMEM;
    }
    return s->workers ? 0 : -KVR_ENOMEM;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(struct sim *s, struct sim_result *out)
{
    struct mock_engine_stats st, sum = {0};
    uint64_t fewest = UINT64_MAX;
    double total = 0;
    for (uint32_t i = 0; i < s->cfg.workers; i++) {
        mock_engine_stats(s->workers[i].engine, &st);
        fewest = KVR_MIN(fewest, st.requests);
        sum.prompt_tokens += st.prompt_tokens;
        sum.cached_tokens += st.cached_tokens;
    }
    for (size_t i = 0; i < s->ttft_n; i++) total += s->ttft[i];
    if (s->ttft_n) qsort(s->ttft, s->ttft_n, sizeof *s->ttft, ascending);
    *out = (struct sim_result){.completed = (uint32_t)s->ttft_n, .fewest = (uint32_t)fewest, .seconds = (double)s->now_ns / 1e9};
    if (!s->ttft_n) return;
    out->ttft_mean_ms = total / (double)s->ttft_n;
    out->ttft_p50_ms = s->ttft[s->ttft_n / 2];
    out->ttft_p99_ms = s->ttft[s->ttft_n * 99 / 100];
    out->cached_ratio = (double)sum.cached_tokens / (double)KVR_MAX(sum.prompt_tokens, (uint64_t)1);
}

static void clean_up(struct sim *s)
{
    for (uint32_t i = 0; s->workers && i < s->cfg.workers; i++) {
        struct sim_worker *w = &s->workers[i];
        mock_engine_destroy(w->engine);
        for (size_t k = 0; k < w->kept_n; k++) {
            free(w->kept[k].blocks);
            free(w->kept[k].hashes);
        }
        free(w->kept);
        free(w->done);
    }
    kvr_router_ctx_destroy(s->ctx);
    kvr_router_destroy(s->router);
    kvr_index_destroy(s->index);
    kvr_index_destroy(s->predicted);
    sim_workload_free(s->workload);
    free(s->workers);
    free(s->heap);
    free(s->ttft);
}

int sim_run(const struct sim_config *config, struct sim_result *out)
{
    struct sim s = {.cfg = *config};
    s.workload = sim_workload_new(config);
    int rc = s.workload ? make_router(&s) : -KVR_ENOMEM;
    if (rc == 0) rc = make_workers(&s);
    if (rc == 0) pull_arrival(&s);
    while (rc == 0 && s.heap_n && !s.failed) {
        struct moment m = heap_pop(&s);
        s.now_ns = m.at_ns;
        if (m.worker) {
            end_pass(&s, m.worker);
        } else {
            bool opens = m.job->rq.turn == 0;
            arrive(&s, m.job);
            if (opens) pull_arrival(&s);
        }
    }
    if (rc == 0 && s.failed) rc = -KVR_ENOMEM;
    if (rc == 0) report(&s, out);
    clean_up(&s);
    return rc;
}
