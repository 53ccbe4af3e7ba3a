/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of the simulation: a heap of moments, each an arrival, the end of an engine's pass, the end of a transfer, something told, or a
 * worker's leaving.
 */
#include <math.h>
#include <string.h>

#include "base/order.h"
#include "sim/state.h"

static void note(struct sim *s, struct series *to, double v)
{
    if (sim_grow(s, (void **)&to->v, &to->cap, to->n + 1, sizeof *to->v)) to->v[to->n++] = v;
}

static void note_gap(struct sim *s, double ms)
{
    s->gaps[KVR_MIN((size_t)(ms / SIM_GAP_MS), (size_t)SIM_GAPS - 1)]++;
    s->gaps_n++;
}

static double ms_since(const struct sim *s, uint64_t then_ns)
{
    return (double)(s->now_ns - then_ns) / 1e6;
}

/* ---- jobs -------------------------------------------------------------------------------------------- */

/* A prompt that is still held is given back: before the engine goes. */
static void job_free(struct job *j)
{
    if (j->hold) mock_engine_release(j->holder->engine, j->hold);
    traffic_request_free(&j->rq);
    free(j->answer);
    free(j->hashes);
    free(j);
}

static void add_arrival(struct sim *s, struct traffic_request *rq, bool other)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j) {
        s->status = -KVR_ENOMEM;
        traffic_request_free(rq);
        return;
    }
    j->rq = *rq;
    j->other = other;
    if (!sim_push(s, (struct moment){.at_ns = rq->arrival_ns, .what = ARRIVAL, .job = j})) job_free(j);
}

static void link_job(struct sim_worker *w, struct job *j)
{
    j->prev = NULL;
    j->next = w->jobs;
    if (w->jobs) w->jobs->prev = j;
    w->jobs = j;
}

static void unlink_job(struct sim_worker *w, struct job *j)
{
    if (j->prev) j->prev->next = j->next;
    else w->jobs = j->next;
    if (j->next) j->next->prev = j->prev;
}

static bool hash_prompt(struct sim *s, struct job *j)
{
    uint32_t block = s->cfg.block_size;
    j->blocks_n = j->rq.tokens_n / block;
    j->hashes = malloc((2 * j->blocks_n + 1) * sizeof *j->hashes);
    if (!j->hashes) return false;
    kvr_hash_locals(j->rq.tokens, j->rq.tokens_n, block, false, KVR_HASH_SEED, NULL, 0, j->hashes);
    kvr_hash_sequence(j->hashes, j->blocks_n, j->hashes + j->blocks_n);
    return true;
}

/* ---- engines ----------------------------------------------------------------------------------------- */

static void on_event(void *ctx, const struct kvr_event *ev, const uint32_t *tokens, size_t, void *)
{
    struct sim_worker *w = ctx;
    uint32_t block = w->sim->cfg.block_size;
    if (!sim_grow(w->sim, (void **)&w->kept, &w->kept_cap, w->kept_n + 1, sizeof *w->kept)) return;
    struct kept_event *k = &w->kept[w->kept_n];
    *k = (struct kept_event){.ev = *ev};
    k->ev.worker.worker_id = w->number + 1;
    k->blocks = malloc((ev->blocks_n + 1) * sizeof *k->blocks);
    k->hashes = malloc((ev->removed_n + 1) * sizeof *k->hashes);
    w->kept_n++;
    if (!k->blocks || !k->hashes) {
        w->sim->status = -KVR_ENOMEM;
        return;
    }
    if (ev->blocks_n) memcpy(k->blocks, ev->blocks, ev->blocks_n * sizeof *k->blocks);
    if (ev->removed_n) memcpy(k->hashes, ev->removed, ev->removed_n * sizeof *k->hashes);
    for (size_t i = 0; i < ev->blocks_n && tokens; i++) {
        uint64_t local;
        kvr_hash_locals(tokens + i * block, block, block, false, KVR_HASH_SEED, NULL, 0, &local);
        k->blocks[i].tokens_hash = local;
    }
    k->ev.blocks = ev->blocks_n ? k->blocks : NULL;
    k->ev.removed = ev->removed_n ? k->hashes : NULL;
}

/* To a router that is to know of it. */
static void on_host_event(void *ctx, const struct kvr_event *ev, const uint32_t *tokens, size_t tokens_n)
{
    const struct sim_worker *w = ctx;
    if (w->sim->cfg.policy->without != SIM_TIERS) on_event(ctx, ev, tokens, tokens_n, NULL);
}

static void drop_events(struct sim_worker *w, bool apply)
{
    for (size_t i = 0; i < w->kept_n; i++) {
        if (apply && w->sim->status == 0) sim_routers_event(w->routers, &w->kept[i].ev);
        free(w->kept[i].blocks);
        free(w->kept[i].hashes);
    }
    w->kept_n = 0;
}

static void keep_prompt(struct sim_worker *w, struct job *j, struct mock_request *r)
{
    j->holder = w;
    j->hold = mock_engine_hold(w->engine, r);
    if (!j->hold) w->sim->status = -KVR_ENOMEM;
}

static void take_token(struct sim *s, struct job *j, uint32_t token, uint64_t index)
{
    if (j->first_seen) {
        note_gap(s, ms_since(s, j->token_ns));
    } else {
        j->first_seen = true;
        j->first_ns = s->now_ns;
        if (!j->other) note(s, &s->ttft, ms_since(s, j->rq.arrival_ns));
    }
    j->token_ns = s->now_ns;
    if (j->answer && index < j->rq.output) j->answer[j->answer_n++] = token;
}

static void on_token(void *ctx, struct mock_request *r, uint32_t token, uint64_t index, bool last)
{
    struct sim_worker *w = ctx;
    struct sim *s = w->sim;
    struct job *j = mock_request_user(r);
    if (index == 0) sim_routers_first_token(w->routers, &j->choice, j->number, j->leg == SIM_DECODE_LEG ? -1 : ms_since(s, j->sent_ns));
    if (j->leg == SIM_PREFILL_LEG) keep_prompt(w, j, r);
    else take_token(s, j, token, index);
    if (last && sim_grow(s, (void **)&w->done, &w->done_cap, w->done_n + 1, sizeof(struct job *))) w->done[w->done_n++] = j;
}

static void on_load(void *ctx, struct mock_request *r, size_t cached)
{
    struct sim_worker *w = ctx;
    struct job *j = mock_request_user(r);
    j->request = r;
    sim_push(w->sim, (struct moment){
                         .at_ns = sim_transfer_ends(w->sim, j->holder, w, j->rq.tokens_n - cached), .what = LOADED, .job = j, .worker = w});
}

/* Unless it is in one. */
static void start_pass(struct sim *s, struct sim_worker *w)
{
    if (w->in_pass) return;
    uint64_t ns = mock_engine_begin_pass(w->engine);
    w->in_pass = ns > 0;
    if (ns) sim_push(s, (struct moment){.at_ns = s->now_ns + ns, .what = PASS_ENDS, .worker = w, .life = w->life});
}

static bool is_good(const struct sim *s, const struct job *j)
{
    double first = (double)(j->first_ns - j->rq.arrival_ns) / 1e6, gaps = ms_since(s, j->first_ns);
    if (s->cfg.ttft_ms > 0 && first > s->cfg.ttft_ms) return false;
    return !(s->cfg.itl_ms > 0) || gaps <= s->cfg.itl_ms * (double)(j->rq.output - 1);
}

static void finish_job(struct sim *s, struct sim_worker *w, struct job *j)
{
    struct traffic_request next;
    double generated = (double)j->answer_n;
    s->good += !j->other && is_good(s, j);
    s->others += j->other && (double)s->now_ns <= s->cfg.traffic.seconds * 1e9;
    s->whole += j->leg == SIM_WHOLE_REQUEST;
    sim_routers_ended(w->routers, &j->choice, j->number, generated, ms_since(s, j->first_ns));
    if (!j->other) note(s, &s->e2e, ms_since(s, j->rq.arrival_ns));
    unlink_job(w, j);
    s->last_ns = s->now_ns;
    int rc = traffic_follow(j->other ? s->flood : s->traffic, &j->rq, j->answer, j->answer_n, s->now_ns, &next);
    if (rc == 1) add_arrival(s, &next, j->other);
    if (rc < 0) s->status = rc;
    job_free(j);
}

static double factor_of(const double unlike[SIM_UNLIKE], uint32_t i)
{
    uint32_t n = 0;
    while (n < SIM_UNLIKE && unlike[n] > 0) n++;
    return n ? unlike[i % n] : 1;
}

static int start_worker(struct sim *s, uint32_t i)
{
    struct sim_worker *w = &s->workers[i];
    struct mock_engine_config mc = {.block_size = s->cfg.block_size,
                                    .num_blocks = (uint32_t)(s->cfg.blocks * factor_of(s->cfg.caches, i)),
                                    .max_num_seqs = s->cfg.sequences,
                                    .max_batched_tokens = s->cfg.tokens_per_pass,
                                    .speedup = s->cfg.speed * factor_of(s->cfg.speeds, i),
                                    .seed = s->cfg.traffic.seed, /* the same everywhere: an answer does not depend on who gives it */
                                    .prefix_caching = true,
                                    .first_and_last = true, /* the index keeps a set */
                                    .host_blocks = s->cfg.host_blocks,
                                    .host_chunk = 1,
                                    .load_ratio = s->cfg.load_ratio,
                                    .on_event = on_event,
                                    .on_host_event = on_host_event,
                                    .on_token = on_token,
                                    .on_load = on_load,
                                    .ctx = w};
    w->sim = s;
    w->number = i;
    w->routers = s->cfg.policy->roles && i < s->cfg.prefill_workers ? s->prefill : s->routers;
    w->engine = mock_engine_create(&mc);
    return w->engine ? sim_routers_add_worker(w->routers, i) : -KVR_ENOMEM;
}

/* ---- arrivals ---------------------------------------------------------------------------------------- */

/* As an engine that answers 400. A prompt that is held for it makes room for others. */
static void refuse(struct sim *s, struct sim_worker *w, struct job *j)
{
    struct sim_worker *holder = j->hold ? j->holder : NULL;
    sim_routers_ended(w->routers, &j->choice, j->number, 0, 0);
    job_free(j);
    s->failed++;
    if (holder) start_pass(s, holder);
}

/* A worker is chosen for the leg that the job is at. */
static void hand_over(struct sim *s, struct job *j)
{
    struct sim_worker *w;
    uint64_t output = j->leg == SIM_PREFILL_LEG ? 1 : j->rq.output;
    w = &s->workers[j->choice.worker];
    if (!mock_engine_fits(w->engine, j->rq.tokens_n, output)) {
        refuse(s, w, j);
        return;
    }
    struct mock_engine_request work = {
        .tokens = j->rq.tokens, .n = j->rq.tokens_n, .max_tokens = output, .remote = j->leg == SIM_DECODE_LEG, .user = j};
    j->sent_ns = s->now_ns;
    link_job(w, j);
    if (!mock_engine_submit(w->engine, &work)) s->status = -KVR_ENOMEM;
    start_pass(s, w);
}

/* Sends the leg that the job is at, or lets it wait for its turn. */
static void send(struct sim *s, struct job *j)
{
    j->number = ++s->numbers;
    int rc = sim_legs_choose(s, j);
    if (rc == KVR_PARKED) return;
    if (rc) {
        s->status = rc;
        job_free(j);
        return;
    }
    hand_over(s, j);
}

static void send_granted(struct sim *s)
{
    struct job *j;
    while (s->status == 0 && (j = sim_next_granted(s))) hand_over(s, j);
}

/* The prompt is computed, and stays where it is until the decode worker has it. */
static void end_prefill(struct sim *s, struct sim_worker *w, struct job *j)
{
    sim_routers_ended(w->routers, &j->choice, j->number, 1, 0);
    unlink_job(w, j);
    j->leg = SIM_DECODE_LEG;
    send(s, j);
}

static void end_transfer(struct sim *s, struct sim_worker *w, struct job *j)
{
    struct mock_hold *hold = j->hold;
    j->hold = NULL;
    mock_engine_release(j->holder->engine, hold);
    mock_engine_loaded(w->engine, j->request, j->rq.tokens_n, false);
    start_pass(s, j->holder);
    start_pass(s, w);
}

static void end_pass(struct sim *s, struct sim_worker *w)
{
    mock_engine_end_pass(w->engine);
    drop_events(w, true);
    for (size_t i = 0; i < w->done_n && s->status == 0; i++) {
        struct job *j = w->done[i];
        if (j->leg == SIM_PREFILL_LEG) end_prefill(s, w, j);
        else finish_job(s, w, j);
    }
    w->done_n = 0;
    w->in_pass = false;
    start_pass(s, w);
}

static void arrive(struct sim *s, struct job *j)
{
    j->answer = malloc(j->rq.output * sizeof *j->answer);
    if (!j->answer || !hash_prompt(s, j)) {
        s->status = -KVR_ENOMEM;
        job_free(j);
        return;
    }
    j->leg = sim_legs_first(s, j);
    send(s, j);
}

/* The next one of either tenant. */
static void pull_arrival(struct sim *s, bool other)
{
    struct traffic_request rq;
    int rc = traffic_next(other ? s->flood : s->traffic, &rq);
    if (rc == 1) add_arrival(s, &rq, other);
    if (rc < 0) s->status = rc;
}

/* ---- workers that come and go ------------------------------------------------------------------------ */

static void add_stats(struct mock_engine_stats *sum, const struct mock_engine *e)
{
    struct mock_engine_stats st;
    if (!e) return;
    mock_engine_stats(e, &st);
    sum->prompt_tokens += st.prompt_tokens;
    sum->cached_tokens += st.cached_tokens;
    sum->loaded_tokens += st.loaded_tokens;
    sum->received_tokens += st.received_tokens;
    sum->requests += st.requests;
}

static void leave(struct sim *s, struct sim_worker *w)
{
    struct job *list = w->jobs;
    add_stats(&w->past, w->engine);
    mock_engine_destroy(w->engine);
    w->engine = NULL;
    w->life++;
    w->in_pass = false;
    w->jobs = NULL;
    drop_events(w, false);
    for (struct job *j = list; j; j = j->next) sim_routers_ended(w->routers, &j->choice, j->number, 0, 0);
    sim_routers_remove_worker(w->routers, w->number);
    for (struct job *j = list, *next; j; j = next) {
        next = j->next;
        if (j->first_seen) {
            s->failed++;
            job_free(j);
        } else {
            send(s, j);
        }
    }
}

/* ---- results ----------------------------------------------------------------------------------------- */

static void report_series(struct series *from, double *mean, double *p50, double *p99)
{
    if (from->n == 0) return;
    qsort(from->v, from->n, sizeof *from->v, kvr_rising_double);
    for (size_t i = 0; i < from->n; i++) *mean += from->v[i] / (double)from->n;
    *p50 = from->v[from->n / 2];
    *p99 = from->v[from->n * 99 / 100];
}

/* The upper end of the bin, in ms, so never less than it was. */
static double gap_at(const struct sim *s, double share)
{
    uint64_t before = 0;
    size_t at = 0;
    if (s->gaps_n == 0) return 0;
    while (at < SIM_GAPS - 1 && (double)(before += s->gaps[at]) <= share * (double)s->gaps_n) at++;
    return (double)(at + 1) * SIM_GAP_MS;
}

static void report(struct sim *s, struct sim_result *out)
{
    double prompts = 0, computed = 0, cached = 0, requests = 0, most = 0, most_requests = 0, fewest = HUGE_VAL, *v = out->v;
    *out = (struct sim_result){0};
    for (uint32_t i = 0; i < s->cfg.workers; i++) {
        struct mock_engine_stats *st = &s->workers[i].past;
        add_stats(st, s->workers[i].engine);
        double found = (double)(st->cached_tokens + st->loaded_tokens), n = (double)st->requests;
        double here = (double)st->prompt_tokens - found - (double)st->received_tokens;
        prompts += (double)st->prompt_tokens;
        computed += here;
        cached += found;
        requests += n;
        most = KVR_MAX(most, here);
        most_requests = KVR_MAX(most_requests, n);
        fewest = KVR_MIN(fewest, n);
    }
    report_series(&s->ttft, &v[SIM_TTFT_MEAN], &v[SIM_TTFT_P50], &v[SIM_TTFT_P99]);
    report_series(&s->e2e, &v[SIM_E2E_MEAN], &v[SIM_E2E_P50], &v[SIM_E2E_P99]);
    v[SIM_HIT] = prompts > 0 ? 100 * cached / prompts : 0;
    v[SIM_BALANCE] = computed > 0 ? most * s->cfg.workers / computed : 1;
    v[SIM_BALANCE_REQUESTS] = requests > 0 ? most_requests * s->cfg.workers / requests : 1;
    v[SIM_COMPLETED] = (double)s->e2e.n;
    v[SIM_FAILED] = (double)s->failed;
    v[SIM_FEWEST] = fewest;
    v[SIM_SECONDS] = (double)s->last_ns / 1e9;
    v[SIM_ITL_P50] = gap_at(s, 0.5);
    v[SIM_ITL_P99] = gap_at(s, 0.99);
    v[SIM_GOODPUT] = s->opened_ns ? (double)s->good * 1e9 / (double)s->opened_ns : 0;
    v[SIM_OTHERS] = s->cfg.traffic.seconds > 0 ? (double)s->others / s->cfg.traffic.seconds : 0;
    v[SIM_LOCAL] = s->e2e.n ? 100 * (double)s->whole / (double)s->e2e.n : 0;
}

/* ---- life -------------------------------------------------------------------------------------------- */

void sim_config_init(struct sim_config *c)
{
    *c = (struct sim_config){.workers = 4,
                             .block_size = 16,
                             .blocks = 8192,
                             .tokens_per_pass = 8192,
                             .sequences = 256,
                             .speed = 1,
                             .routers = 1,
                             .prefill_workers = 1,
                             .transfer_ms = 2,
                             .transfer_bytes_s = 25e9,
                             .stall_weight = -1};
    traffic_config_init(&c->traffic, TRAFFIC_CONVERSATIONS);
    c->policy = sim_policy_at(0);
}

static uint64_t virtual_now(void *ctx)
{
    return ((const struct sim *)ctx)->now_ns;
}

static const char *bad_field(const struct sim_config *c)
{
    if (c->workers < 1 || c->workers > 65536) return "workers: allowed: 1 to 65536";
    if (c->block_size < 1 || c->block_size > 4096) return "block-size: allowed: 1 to 4096";
    if (c->blocks < 2 || c->blocks > 1u << 28) return "blocks: allowed: 2 to 268435456";
    if (c->tokens_per_pass < 1 || c->sequences < 1) return "max-num-batched-tokens, max-num-seqs: must be above 0";
    if (!(c->speed > 0 && c->speed <= 1e6)) return "speed: must be above 0, at most 1000000";
    if (c->routers < 1 || c->routers > SIM_ROUTERS_MAX) return "routers: allowed: 1 to 16";
    if (!(c->tell_ms >= 0 && c->tell_ms <= 1e6)) return "tell-ms: allowed: 0 to 1000000";
    if (!(c->transfer_ms >= 0 && c->transfer_ms <= 1e6)) return "transfer-ms: allowed: 0 to 1000000";
    if (!(c->transfer_bytes_s >= 1e3 && c->transfer_bytes_s <= 1e18)) return "transfer-bytes: allowed: 1000 to 1e18";
    if (c->policy->roles && !(c->prefill_workers > 0 && c->prefill_workers < c->workers))
        return "prefill-workers: allowed: 1 to one less than workers";
    if (c->policy->roles && c->leaves_s > 0) return "a worker can only leave when all are alike";
    if (c->policy->crowd != SIM_NO_CROWD && (c->routers > 1 || c->leaves_s > 0)) return "tenants: one router, and no worker may leave";
    if (c->policy->crowd > SIM_ALONE && !(c->flood.rate > 0)) return "flood: this policy is one of two tenants";
    if (c->leaves_s > 0 && c->workers < 2) return "a worker can only leave when there is another";
    return NULL;
}

static void set_rule(struct sim *s)
{
    kvr_disagg_rule_init(&s->rule);
    s->rule.policy = s->cfg.policy->legs;
    if (s->cfg.stall_weight >= 0) s->rule.stall_weight = s->cfg.stall_weight;
}

static int prepare(struct sim *s, char *err, size_t cap)
{
    struct sim_routers_config rc = {.policy = s->cfg.policy,
                                    .clock = &s->clock,
                                    .routers = s->cfg.routers,
                                    .workers = s->cfg.workers,
                                    .block_size = s->cfg.block_size,
                                    .seed = s->cfg.traffic.seed,
                                    .tell_ns = (uint64_t)(s->cfg.tell_ms * 1e6),
                                    .prefill_load_scale = s->cfg.prefill_load_scale,
                                    .queue_tokens = sim_queues(&s->cfg) ? s->cfg.queue_frac * s->cfg.tokens_per_pass : -1};
    const char *bad = bad_field(&s->cfg);
    s->cfg.flood.seed = kvr_mix64(s->cfg.traffic.seed + 1);
    if (bad) return snprintf(err, cap, "%s", bad), -KVR_EINVAL;
    int failed = traffic_create(&s->cfg.traffic, &s->traffic, err, cap);
    if (failed) return failed;
    if (s->cfg.policy->crowd > SIM_ALONE) failed = traffic_create(&s->cfg.flood, &s->flood, err, cap);
    if (failed) return failed;
    snprintf(err, cap, "out of memory");
    set_rule(s);
    s->workers = calloc(s->cfg.workers, sizeof *s->workers);
    s->gaps = calloc(SIM_GAPS, sizeof *s->gaps);
    if (!s->gaps || !s->workers || sim_routers_create(&rc, &s->routers)) return -KVR_ENOMEM;
    rc.prefills = true;
    if (s->cfg.policy->roles && sim_routers_create(&rc, &s->prefill)) return -KVR_ENOMEM;
    for (uint32_t i = 0; i < s->cfg.workers; i++)
        if (start_worker(s, i)) return -KVR_ENOMEM;
    if (s->cfg.leaves_s > 0) {
        sim_push(s, (struct moment){.at_ns = (uint64_t)(s->cfg.leaves_s * 1e9), .what = LEAVES, .worker = s->workers});
        if (s->cfg.returns_s > s->cfg.leaves_s)
            sim_push(s, (struct moment){.at_ns = (uint64_t)(s->cfg.returns_s * 1e9), .what = RETURNS, .worker = s->workers});
    }
    pull_arrival(s, false);
    if (s->flood) pull_arrival(s, true);
    return s->status;
}

static void tend_routers(struct sim *s, struct sim_routers *r)
{
    uint64_t tell = sim_routers_tell(r);
    if (tell < s->tell_ns && sim_push(s, (struct moment){.at_ns = tell, .what = TELL})) s->tell_ns = tell;
    if (s->status == 0) s->status = sim_routers_status(r);
}

static void step(struct sim *s, struct moment m)
{
    if (m.what == PASS_ENDS && m.life != m.worker->life) return;
    s->now_ns = m.at_ns;
    switch (m.what) {
    case ARRIVAL: {
        bool opens = m.job->rq.turn == 0;
        bool other = m.job->other;
        if (opens && !other) s->opened_ns = s->now_ns;
        arrive(s, m.job);
        if (opens) pull_arrival(s, other);
        break;
    }
    case PASS_ENDS: end_pass(s, m.worker); break;
    case LOADED: end_transfer(s, m.worker, m.job); break;
    case LEAVES: leave(s, m.worker); break;
    case RETURNS:
        if (start_worker(s, m.worker->number)) s->status = -KVR_ENOMEM;
        break;
    case TELL: s->tell_ns = UINT64_MAX; break;
    }
    send_granted(s);
    tend_routers(s, s->routers);
    if (s->prefill) tend_routers(s, s->prefill);
}

static void clean_up(struct sim *s)
{
    for (uint32_t i = 0; s->workers && i < s->cfg.workers; i++) {
        struct sim_worker *w = &s->workers[i];
        for (struct job *j = w->jobs, *next; j; j = next) {
            next = j->next;
            job_free(j);
        }
        drop_events(w, false);
        free(w->kept);
        free(w->done);
    }
    for (uint32_t i = 0; s->workers && i < s->cfg.workers; i++) mock_engine_destroy(s->workers[i].engine);
    for (size_t i = 0; i < s->heap_n; i++)
        if (s->heap[i].what == ARRIVAL) job_free(s->heap[i].job);
    sim_routers_destroy(s->routers);
    sim_routers_destroy(s->prefill);
    for (struct job *j; (j = sim_next_granted(s));) job_free(j); /* those that waited to the end */
    traffic_destroy(s->traffic);
    traffic_destroy(s->flood);
    free(s->workers);
    free(s->heap);
    free(s->ttft.v);
    free(s->e2e.v);
    free(s->gaps);
}

int sim_run(const struct sim_config *config, struct sim_result *out, char *err, size_t cap)
{
    struct sim s = {.cfg = *config, .tell_ns = UINT64_MAX};
    s.clock = (struct kvr_clock){virtual_now, &s};
    int rc = prepare(&s, err, cap);
    while (rc == 0 && s.heap_n && s.status == 0) step(&s, sim_pop(&s));
    if (rc == 0) rc = s.status;
    if (rc == 0) report(&s, out);
    else if (s.status) snprintf(err, cap, "%s", kvr_strerror(rc));
    clean_up(&s);
    return rc;
}
