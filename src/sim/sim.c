/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of the simulation: a heap of moments, each an arrival, the end of an engine's pass, something told, or a worker's leaving. */
#include <math.h>
#include <string.h>

#include "sim/engine.h"
#include "sim/internal.h"

struct job {
    struct traffic_request rq;
    struct sim_choice choice;
    uint32_t *answer;
    uint64_t *hashes; /* locals, then sequence hashes */
    size_t answer_n, blocks_n;
    uint64_t number, sent_ns, first_ns;
    bool first_seen;
    struct job *prev, *next; /* of the same worker */
};

/* A copy of an event, applied when its pass ends. */
struct kept_event {
    struct kvr_event ev;
    struct kvr_block *blocks;
    uint64_t *hashes;
};

struct sim_worker {
    struct sim *sim;
    struct mock_engine *engine; /* NULL: away */
    uint64_t life;              /* how often it has left */
    uint32_t number;
    bool in_pass;
    struct job *jobs;
    struct kept_event *kept;
    size_t kept_n, kept_cap;
    struct job **done;
    size_t done_n, done_cap;
    struct mock_engine_stats past; /* of lives that are over */
};

enum what { ARRIVAL, PASS_ENDS, TELL, LEAVES, RETURNS };

struct moment {
    uint64_t at_ns, order, life;
    enum what what;
    struct job *job;
    struct sim_worker *worker;
};

struct series {
    double *v;
    size_t n, cap;
};

struct sim {
    struct sim_config cfg;
    struct kvr_clock clock;
    uint64_t now_ns, order, numbers, tell_ns, last_ns, failed;
    struct moment *heap;
    size_t heap_n, heap_cap;
    struct sim_worker *workers;
    struct traffic *traffic;
    struct sim_routers *routers;
    struct series ttft, e2e;
    int status;
};

static bool grow(struct sim *s, void **ptr, size_t *cap, size_t need, size_t elem)
{
    if (need <= *cap) return true;
    size_t fresh = KVR_MAX(2 * *cap, (size_t)64);
    void *p = realloc(*ptr, fresh * elem);
    if (!p) {
        s->status = -KVR_ENOMEM;
        return false;
    }
    *ptr = p;
    *cap = fresh;
    return true;
}

static void note(struct sim *s, struct series *to, double v)
{
    if (grow(s, (void **)&to->v, &to->cap, to->n + 1, sizeof *to->v)) to->v[to->n++] = v;
}

static double ms_since(const struct sim *s, uint64_t then_ns)
{
    return (double)(s->now_ns - then_ns) / 1e6;
}

/* ---- moments ----------------------------------------------------------------------------------------- */

static bool sooner(const struct moment *a, const struct moment *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static bool heap_push(struct sim *s, struct moment m)
{
    if (!grow(s, (void **)&s->heap, &s->heap_cap, s->heap_n + 1, sizeof *s->heap)) return false;
    m.order = s->order++;
    size_t at = s->heap_n++;
    for (; at > 0 && sooner(&m, &s->heap[(at - 1) / 2]); at = (at - 1) / 2) s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = m;
    return true;
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

/* ---- jobs -------------------------------------------------------------------------------------------- */

static void job_free(struct job *j)
{
    traffic_request_free(&j->rq);
    free(j->answer);
    free(j->hashes);
    free(j);
}

static void add_arrival(struct sim *s, struct traffic_request *rq)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j) {
        s->status = -KVR_ENOMEM;
        traffic_request_free(rq);
        return;
    }
    j->rq = *rq;
    if (!heap_push(s, (struct moment){.at_ns = rq->arrival_ns, .what = ARRIVAL, .job = j})) job_free(j);
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

static void on_event(void *ctx, const struct kvr_event *ev, const uint32_t *tokens, size_t tokens_n, void *user)
{
    struct sim_worker *w = ctx;
    uint32_t block = w->sim->cfg.block_size;
    (void)tokens_n;
    (void)user;
    if (!grow(w->sim, (void **)&w->kept, &w->kept_cap, w->kept_n + 1, sizeof *w->kept)) return;
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

static void drop_events(struct sim_worker *w, bool apply)
{
    for (size_t i = 0; i < w->kept_n; i++) {
        if (apply && w->sim->status == 0) sim_routers_event(w->sim->routers, &w->kept[i].ev);
        free(w->kept[i].blocks);
        free(w->kept[i].hashes);
    }
    w->kept_n = 0;
}

static void on_token(void *ctx, struct mock_request *r, uint32_t token, uint64_t index, bool last)
{
    struct sim_worker *w = ctx;
    struct sim *s = w->sim;
    struct job *j = mock_request_user(r);
    if (!j->first_seen) {
        j->first_seen = true;
        j->first_ns = s->now_ns;
        sim_routers_first_token(s->routers, &j->choice, j->number, ms_since(s, j->sent_ns));
        note(s, &s->ttft, ms_since(s, j->rq.arrival_ns));
    }
    if (j->answer && index < j->rq.output) j->answer[j->answer_n++] = token;
    if (last && grow(s, (void **)&w->done, &w->done_cap, w->done_n + 1, sizeof(struct job *))) w->done[w->done_n++] = j;
}

static void start_pass(struct sim *s, struct sim_worker *w)
{
    uint64_t ns = mock_engine_begin_pass(w->engine);
    w->in_pass = ns > 0;
    if (ns) heap_push(s, (struct moment){.at_ns = s->now_ns + ns, .what = PASS_ENDS, .worker = w, .life = w->life});
}

static void finish_job(struct sim *s, struct sim_worker *w, struct job *j)
{
    struct traffic_request next;
    double generated = (double)j->answer_n;
    sim_routers_ended(s->routers, &j->choice, j->number, generated, ms_since(s, j->first_ns));
    note(s, &s->e2e, ms_since(s, j->rq.arrival_ns));
    unlink_job(w, j);
    s->last_ns = s->now_ns;
    int rc = traffic_follow(s->traffic, &j->rq, j->answer, j->answer_n, s->now_ns, &next);
    if (rc == 1) add_arrival(s, &next);
    if (rc < 0) s->status = rc;
    job_free(j);
}

static void end_pass(struct sim *s, struct sim_worker *w)
{
    mock_engine_end_pass(w->engine);
    drop_events(w, true);
    for (size_t i = 0; i < w->done_n; i++) finish_job(s, w, w->done[i]);
    w->done_n = 0;
    start_pass(s, w);
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
                                    .on_event = on_event,
                                    .on_token = on_token,
                                    .ctx = w};
    w->sim = s;
    w->number = i;
    w->engine = mock_engine_create(&mc);
    return w->engine ? sim_routers_add_worker(s->routers, i) : -KVR_ENOMEM;
}

/* ---- arrivals ---------------------------------------------------------------------------------------- */

static void send(struct sim *s, struct job *j)
{
    struct sim_ask ask = {.number = j->number = ++s->numbers,
                          .tokens = j->rq.tokens,
                          .locals = j->hashes,
                          .seqs = j->hashes + j->blocks_n,
                          .blocks_n = j->blocks_n,
                          .tokens_n = j->rq.tokens_n};
    int rc = sim_routers_choose(s->routers, &ask, &j->choice);
    if (rc) {
        s->status = rc;
        job_free(j);
        return;
    }
    struct sim_worker *w = &s->workers[j->choice.worker];
    struct mock_engine_request work = {.tokens = j->rq.tokens, .n = j->rq.tokens_n, .max_tokens = j->rq.output, .user = j};
    j->sent_ns = s->now_ns;
    link_job(w, j);
    if (!mock_engine_fits(w->engine, j->rq.tokens_n, j->rq.output)) { /* as an engine that answers 400 */
        sim_routers_ended(s->routers, &j->choice, j->number, 0, 0);
        unlink_job(w, j);
        job_free(j);
        s->failed++;
        return;
    }
    if (!mock_engine_submit(w->engine, &work)) s->status = -KVR_ENOMEM;
    if (!w->in_pass) start_pass(s, w);
}

static void arrive(struct sim *s, struct job *j)
{
    j->answer = malloc(j->rq.output * sizeof *j->answer);
    if (!j->answer || !hash_prompt(s, j)) {
        s->status = -KVR_ENOMEM;
        job_free(j);
        return;
    }
    send(s, j);
}

static void pull_arrival(struct sim *s)
{
    struct traffic_request rq;
    int rc = traffic_next(s->traffic, &rq);
    if (rc == 1) add_arrival(s, &rq);
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
    for (struct job *j = list; j; j = j->next) sim_routers_ended(s->routers, &j->choice, j->number, 0, 0);
    sim_routers_remove_worker(s->routers, w->number);
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

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report_series(struct series *from, double *mean, double *p50, double *p99)
{
    if (from->n == 0) return;
    qsort(from->v, from->n, sizeof *from->v, ascending);
    for (size_t i = 0; i < from->n; i++) *mean += from->v[i] / (double)from->n;
    *p50 = from->v[from->n / 2];
    *p99 = from->v[from->n * 99 / 100];
}

static void report(struct sim *s, struct sim_result *out)
{
    double computed = 0, cached = 0, requests = 0, most = 0, most_requests = 0, fewest = HUGE_VAL, *v = out->v;
    *out = (struct sim_result){0};
    for (uint32_t i = 0; i < s->cfg.workers; i++) {
        struct mock_engine_stats *st = &s->workers[i].past;
        add_stats(st, s->workers[i].engine);
        double here = (double)(st->prompt_tokens - st->cached_tokens), n = (double)st->requests;
        computed += here;
        cached += (double)st->cached_tokens;
        requests += n;
        most = KVR_MAX(most, here);
        most_requests = KVR_MAX(most_requests, n);
        fewest = KVR_MIN(fewest, n);
    }
    report_series(&s->ttft, &v[SIM_TTFT_MEAN], &v[SIM_TTFT_P50], &v[SIM_TTFT_P99]);
    report_series(&s->e2e, &v[SIM_E2E_MEAN], &v[SIM_E2E_P50], &v[SIM_E2E_P99]);
    v[SIM_HIT] = computed + cached > 0 ? 100 * cached / (computed + cached) : 0;
    v[SIM_BALANCE] = computed > 0 ? most * s->cfg.workers / computed : 1;
    v[SIM_BALANCE_REQUESTS] = requests > 0 ? most_requests * s->cfg.workers / requests : 1;
    v[SIM_COMPLETED] = (double)s->e2e.n;
    v[SIM_FAILED] = (double)s->failed;
    v[SIM_FEWEST] = fewest;
    v[SIM_SECONDS] = (double)s->last_ns / 1e9;
}

/* ---- life -------------------------------------------------------------------------------------------- */

void sim_config_init(struct sim_config *c)
{
    *c = (struct sim_config){
        .workers = 4, .block_size = 16, .blocks = 8192, .tokens_per_pass = 8192, .sequences = 256, .speed = 1, .routers = 1};
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
    if (c->leaves_s > 0 && c->workers < 2) return "a worker can only leave when there is another";
    return NULL;
}

static int prepare(struct sim *s, char *err, size_t cap)
{
    struct sim_routers_config rc = {.policy = s->cfg.policy,
                                    .clock = &s->clock,
                                    .routers = s->cfg.routers,
                                    .workers = s->cfg.workers,
                                    .block_size = s->cfg.block_size,
                                    .seed = s->cfg.traffic.seed,
                                    .tell_ns = (uint64_t)(s->cfg.tell_ms * 1e6)};
    const char *bad = bad_field(&s->cfg);
    if (bad) return snprintf(err, cap, "%s", bad), -KVR_EINVAL;
    int failed = traffic_create(&s->cfg.traffic, &s->traffic, err, cap);
    if (failed) return failed;
    snprintf(err, cap, "out of memory");
    s->workers = calloc(s->cfg.workers, sizeof *s->workers);
    if (!s->workers || sim_routers_create(&rc, &s->routers)) return -KVR_ENOMEM;
    for (uint32_t i = 0; i < s->cfg.workers; i++)
        if (start_worker(s, i)) return -KVR_ENOMEM;
    if (s->cfg.leaves_s > 0) {
        heap_push(s, (struct moment){.at_ns = (uint64_t)(s->cfg.leaves_s * 1e9), .what = LEAVES, .worker = s->workers});
        if (s->cfg.returns_s > s->cfg.leaves_s)
            heap_push(s, (struct moment){.at_ns = (uint64_t)(s->cfg.returns_s * 1e9), .what = RETURNS, .worker = s->workers});
    }
    pull_arrival(s);
    return s->status;
}

static void step(struct sim *s, struct moment m)
{
    if (m.what == PASS_ENDS && m.life != m.worker->life) return;
    s->now_ns = m.at_ns;
    switch (m.what) {
    case ARRIVAL: {
        bool opens = m.job->rq.turn == 0;
        arrive(s, m.job);
        if (opens) pull_arrival(s);
        break;
    }
    case PASS_ENDS: end_pass(s, m.worker); break;
    case LEAVES: leave(s, m.worker); break;
    case RETURNS:
        if (start_worker(s, m.worker->number)) s->status = -KVR_ENOMEM;
        break;
    case TELL: s->tell_ns = UINT64_MAX; break;
    }
    uint64_t tell = sim_routers_tell(s->routers);
    if (tell < s->tell_ns && heap_push(s, (struct moment){.at_ns = tell, .what = TELL})) s->tell_ns = tell;
    if (s->status == 0) s->status = sim_routers_status(s->routers);
}

static void clean_up(struct sim *s)
{
    for (uint32_t i = 0; s->workers && i < s->cfg.workers; i++) {
        struct sim_worker *w = &s->workers[i];
        mock_engine_destroy(w->engine);
        for (struct job *j = w->jobs, *next; j; j = next) {
            next = j->next;
            job_free(j);
        }
        drop_events(w, false);
        free(w->kept);
        free(w->done);
    }
    for (size_t i = 0; i < s->heap_n; i++)
        if (s->heap[i].what == ARRIVAL) job_free(s->heap[i].job);
    sim_routers_destroy(s->routers);
    traffic_destroy(s->traffic);
    free(s->workers);
    free(s->heap);
    free(s->ttft.v);
    free(s->e2e.v);
}

int sim_run(const struct sim_config *config, struct sim_result *out, char *err, size_t cap)
{
    struct sim s = {.cfg = *config, .tell_ns = UINT64_MAX};
    s.clock = (struct kvr_clock){virtual_now, &s};
    int rc = prepare(&s, err, cap);
    while (rc == 0 && s.heap_n && s.status == 0) step(&s, heap_pop(&s));
    if (rc == 0) rc = s.status;
    if (rc == 0) report(&s, out);
    else if (s.status) snprintf(err, cap, "%s", kvr_strerror(rc));
    clean_up(&s);
    return rc;
}
