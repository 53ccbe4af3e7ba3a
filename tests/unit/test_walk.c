/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choices among many are what a plain walk over whole candidates makes of the same state, to the last bit: who is eligible, what each
 * costs, who is chosen, what is drawn by chance, and all that the result says. The walk is written here as simply as it can be.
 *
 * KVR_SEED and KVR_OPS choose the fleets and how many of them.
 */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <kvroute/kvroute.h>

#include "router/internal.h"

enum { BLOCK = 4, PROMPT = 24, PREFIXES = 3, RANKS = 600, LIVE = 64, CHOICES = 40 };

static const char *const names[] = {"a", "b", "c", "d"};

struct world {
    uint64_t now;
    struct kvr_clock clock;
    struct kvr_rng rng;
    struct kvr_index *index, *predicted;
    struct kvr_router *r;
    struct kvr_router_ctx *ctx, *other; /* the walk prepares with the other one */
    uint32_t tokens[PREFIXES][PROMPT * BLOCK];
    char live[LIVE][24];
    uint64_t workers_max, number;
};

/* ---- the plain walk ---------------------------------------------------------------------------------- */

struct walk {
    int rc;
    size_t n, at;
    uint32_t slots[RANKS], longest, most;
    struct kvr_rank_load loads[RANKS];
    uint32_t reach[RANKS][KVR_TIER_COUNT], depths[RANKS]; /* reach: blocks of each tier, past the one above */
    bool latched[RANKS];
    struct kvr_delay_model model;
    struct kvr_candidate candidates[RANKS];
    struct kvr_cost costs[RANKS];
    uint64_t rng, turn;
};

static bool among(const uint64_t *ids, size_t n, uint64_t id)
{
    while (n && ids[n - 1] != id) n--;
    return n > 0;
}

static bool has_taint(const struct kvr_router *r, const struct worker_info *w, const char *name)
{
    long at = kvr__taint(r, name);
    return at >= 0 && w->taints.bits[at / 64] >> (at % 64) & 1;
}

static bool may_serve(const struct kvr_router *r, const struct kvr_router_request *rq, const struct worker_info *w)
{
    if (w->blocked || among(rq->excluded, rq->excluded_n, w->id)) return false;
    for (size_t i = 0; i < rq->required_n; i++)
        if (!has_taint(r, w, rq->required_taints[i])) return false;
    return true;
}

static const struct worker_info *owner(const struct kvr_router *r, uint32_t slot)
{
    return &r->workers[r->owners[slot]];
}

static void walk_eligible(const struct kvr_router *r, const struct kvr_router_request *rq, bool preferred, struct walk *k)
{
    k->n = 0;
    for (size_t i = 0; i < r->order_n; i++) {
        uint32_t slot = r->order[i];
        const struct worker_info *w = owner(r, slot);
        bool pin = kvr_worker_cmp(r->infos[slot].worker, rq->pin) == 0 || (rq->pin_any_rank && w->id == rq->pin.worker_id);
        if (!may_serve(r, rq, w) || (rq->allowed && !among(rq->allowed, rq->allowed_n, w->id))) continue;
        if ((preferred || rq->pinned) && !pin) continue;
        k->slots[k->n++] = slot;
    }
}

static void walk_reach(const struct kvr_router *r, const struct prompt *p, struct walk *k)
{
    memset(k->reach, 0, sizeof k->reach);
    k->longest = 0;
    for (size_t i = 0; i < p->overlaps_n + p->reaches_n; i++) {
        bool tiers = i >= p->overlaps_n;
        struct kvr_worker w = tiers ? p->reaches[i - p->overlaps_n].worker : p->overlaps[i].worker;
        long slot = kvr_load_slot_of(r->load, w);
        if (slot < 0 || r->infos[slot].untrusted) continue;
        uint32_t above = 0;
        for (int t = 0; t < KVR_TIER_COUNT; t++) {
            uint32_t d = tiers ? p->reaches[i - p->overlaps_n].depth[t] : p->overlaps[i].depth;
            k->reach[slot][t] = d - above;
            above = d;
        }
        k->longest = KVR_MAX(k->longest, above);
    }
    for (size_t i = 0; i < p->predicted_n; i++) {
        long slot = kvr_load_slot_of(r->load, p->predicted[i].worker);
        if (slot < 0) continue;
        uint32_t d = p->predicted[i].depth, more = d - KVR_MIN(d, k->reach[slot][0]);
        k->longest = KVR_MAX(k->longest, d);
        k->reach[slot][0] += more;
        for (int t = 1; t < KVR_TIER_COUNT; t++) {
            uint32_t less = KVR_MIN(more, k->reach[slot][t]);
            k->reach[slot][t] -= less;
            more -= less;
        }
    }
}

static bool walk_rank_over(const struct kvr_router *r, uint32_t slot, struct walk *k)
{
    const struct kvr_busy_thresholds *b = &r->config.busy;
    const struct worker_info *w = owner(r, slot);
    double prefill = (double)k->loads[slot].active_prefill_tokens, book = (double)k->loads[slot].active_decode_blocks;
    double engine = (double)r->lines[slot].engine_blocks, line = b->decode_blocks_frac * (double)w->total_kv_blocks;
    if (b->decode_blocks_frac >= 0 && w->total_kv_blocks) {
        if (book > line || engine > line) k->latched[slot] = true;
        else if (book < line && engine < line) k->latched[slot] = false;
        if (k->latched[slot]) return true;
    }
    return (b->prefill_tokens >= 0 && prefill > b->prefill_tokens) ||
           (b->prefill_tokens_frac >= 0 && prefill > b->prefill_tokens_frac * kvr__batch_tokens(w));
}

/* A worker is, when all its ranks are. */
static void walk_drop_overloaded(const struct kvr_router *r, struct walk *k)
{
    const struct kvr_busy_thresholds *b = &r->config.busy;
    bool over[RANKS];
    size_t kept = 0;
    for (size_t i = 0; i < r->order_n; i++) k->latched[r->order[i]] = r->infos[r->order[i]].decode_latched;
    if (b->decode_blocks_frac < 0 && b->prefill_tokens < 0 && b->prefill_tokens_frac < 0) return;
    for (size_t i = 0; i < r->order_n; i++) over[r->order[i]] = walk_rank_over(r, r->order[i], k);
    for (size_t i = 0; i < k->n; i++) {
        bool all = true;
        for (size_t o = 0; o < r->order_n; o++) all &= over[r->order[o]] || r->owners[r->order[o]] != r->owners[k->slots[i]];
        if (!all) k->slots[kept++] = k->slots[i];
    }
    k->n = kept;
}

static double walk_shared(const struct kvr_router_request *rq, double device)
{
    double n = 0;
    for (size_t i = 0; i < rq->shared_n; i++) n += KVR_MAX((double)rq->shared[i].end - KVR_MAX((double)rq->shared[i].start, device), 0.0);
    return n;
}

static struct kvr_candidate walk_candidate(const struct kvr_router *r, const struct kvr_router_request *rq, const struct prompt *p,
                                           const struct walk *k, uint32_t slot)
{
    const struct kvr_router_config *cfg = &r->config;
    const struct kvr_rank_load *l = &k->loads[slot];
    uint64_t fresh = kvr__booked_seqs(p, cfg) - k->depths[slot] + p->private_blocks;
    struct kvr_candidate c = {.worker = r->infos[slot].worker,
                              .device_blocks = k->reach[slot][KVR_TIER_DEVICE],
                              .host_blocks = k->reach[slot][KVR_TIER_HOST_PINNED],
                              .disk_blocks = k->reach[slot][KVR_TIER_DISK],
                              .external_blocks = k->reach[slot][KVR_TIER_EXTERNAL],
                              .shared_blocks = walk_shared(rq, k->reach[slot][KVR_TIER_DEVICE]),
                              .pending_blocks = r->infos[slot].stores_nothing ? 0 : k->depths[slot],
                              .active_prefill_tokens = cfg->cost.track_prefill_tokens ? l->active_prefill_tokens : 0,
                              .decode_blocks = cfg->track_active_blocks ? l->active_decode_blocks + fresh : 0,
                              .active_requests = l->active_requests,
                              .active_prefills = l->active_prefills,
                              .model = &k->model,
                              .pressure = r->pressures[slot],
                              .factor = p->cost.kind == KVR_COST_DELAY ? kvr__factor(r, r->owners[slot]) : 1,
                              .turn = r->turns[slot]};
    for (size_t i = 0; i < rq->preferred_n; i++)
        if (has_taint(r, owner(r, slot), rq->preferred_taints[i].name)) c.taint_weight += rq->preferred_taints[i].weight;
    return c;
}

static void walk_copies(const struct kvr_router *r, const struct prompt *p, uint64_t now, struct walk *k)
{
    struct kvr_load_stretch s[32];
    size_t m = kvr_load_stretches(r->load, p->seqs, kvr__booked_seqs(p, &r->config), s, 32);
    double generating = 0, waiting = 0, from = 0;
    for (size_t i = 0; i < k->n; i++) {
        generating += k->candidates[i].active_requests - k->candidates[i].active_prefills;
        waiting += k->candidates[i].active_prefills;
    }
    for (size_t e = 0; e < m; from = s[e++].end) {
        double computing_ms = kvr_ttft_predict(&k->model.ttft, (double)s[e].end * r->config.block_size, 0, 0);
        double share = s[e].waiting && now > s[e].since_ns ? KVR_MIN((double)(now - s[e].since_ns) / 1e6 / computing_ms, 1.0) : 0;
        double users = s[e].generating + share * s[e].waiting, end = s[e].end, holders = 0;
        double fair = (generating + share * waiting) / (double)k->n + 1;
        if (users <= 0) continue;
        for (size_t i = 0; i < k->n; i++) holders += KVR_MAX(k->candidates[i].device_blocks, k->candidates[i].pending_blocks) >= end;
        double wanted = KVR_MIN(users / fair / KVR_MAX(holders, 1.0), 1.0);
        for (size_t i = 0; i < k->n; i++) {
            double has = KVR_MAX(k->candidates[i].device_blocks, k->candidates[i].pending_blocks);
            if (has < end) k->candidates[i].copy_blocks += wanted * (end - KVR_MAX(has, from));
        }
    }
}

static size_t walk_pick(const struct kvr_router *r, const struct kvr_router_request *rq, const struct prompt *p, struct walk *k)
{
    struct kvr_rng rng = {r->rng};
    size_t at = 0;
    uint32_t ties = 1;
    k->rng = r->rng;
    k->turn = r->turn;
    switch (rq->mode ? *rq->mode : r->config.mode) {
    case KVR_MODE_ROUND_ROBIN: return k->turn++ % k->n;
    case KVR_MODE_RANDOM: at = kvr_rng_below(&rng, (uint32_t)k->n); break;
    case KVR_MODE_LEAST_LOADED:
        for (size_t i = 1; i < k->n; i++) {
            uint32_t here = k->candidates[i].active_requests, least = k->candidates[at].active_requests;
            if (here < least) ties = 1, at = i;
            else if (here == least && kvr_rng_below(&rng, ++ties) == 0) at = i;
        }
        break;
    default:
        if (p->cost.kind != KVR_COST_DELAY || p->cost.temperature > 0) return kvr_pick(k->costs, k->n, p->cost.temperature, &k->rng);
        if (p->cost.decode_role && p->cost.overlap_credit <= 0) return kvr_pick_calmest(k->candidates, k->costs, k->n, KVR_TURN_TOLERANCE);
        return kvr_pick_in_turn(k->candidates, k->costs, k->n, KVR_TURN_TOLERANCE);
    }
    k->rng = rng.state;
    return at;
}

static void walk(const struct world *w, const struct kvr_router_request *rq, const struct prompt *p, struct walk *k)
{
    const struct kvr_router *r = w->r;
    bool soft = rq->preferred && !rq->pinned;
    k->model = (struct kvr_delay_model){r->fleet, r->generation, p->expected_output};
    kvr_load_get_all(r->load, w->now, k->loads);
    kvr_load_project(r->load, p->seqs, kvr__booked_seqs(p, &r->config), k->depths);
    walk_reach(r, p, k);
    walk_eligible(r, rq, soft, k);
    bool preferred = soft && k->n == 1, any;
    if (soft && !preferred) walk_eligible(r, rq, false, k);
    any = k->n > 0;
    if (!rq->overloads) walk_drop_overloaded(r, k);
    if (preferred && k->n == 0) {
        preferred = false;
        walk_eligible(r, rq, false, k);
        walk_drop_overloaded(r, k);
    }
    k->rc = k->n ? 0 : any ? -KVR_EOVERLOADED : -KVR_ENOENDPOINTS;
    if (k->rc) return;
    k->most = 0;
    for (size_t i = 0; i < k->n; i++) {
        const struct kvr_candidate *c = &k->candidates[i];
        k->candidates[i] = walk_candidate(r, rq, p, k, k->slots[i]);
        k->most = KVR_MAX(k->most, (uint32_t)(c->device_blocks + c->host_blocks + c->disk_blocks + c->external_blocks));
    }
    if (p->cost.kind == KVR_COST_DELAY) walk_copies(r, p, w->now, k);
    kvr_cost_of(&p->cost, r->config.block_size, KVR_MAX(p->isl, (uint64_t)1), k->candidates, k->n, k->costs);
    k->rng = r->rng;
    k->turn = r->turn;
    k->at = preferred || (rq->pinned && k->n == 1) ? 0 : walk_pick(r, rq, p, k);
}

/* ---- the comparison ---------------------------------------------------------------------------------- */

static bool same(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void compare_candidate(const struct kvr_candidate *a, const struct kvr_candidate *b)
{
    const double x[] = {a->device_blocks,  a->host_blocks, a->disk_blocks,  a->external_blocks, a->shared_blocks,
                        a->pending_blocks, a->copy_blocks, a->taint_weight, a->pressure,        a->factor};
    const double y[] = {b->device_blocks,  b->host_blocks, b->disk_blocks,  b->external_blocks, b->shared_blocks,
                        b->pending_blocks, b->copy_blocks, b->taint_weight, b->pressure,        b->factor};
    assert_int_equal(kvr_worker_cmp(a->worker, b->worker), 0);
    for (size_t i = 0; i < KVR_ARRAY_LEN(x); i++)
        if (!same(x[i], y[i])) fail_msg("field %zu: %a, %a", i, x[i], y[i]);
    assert_int_equal(a->active_prefill_tokens, b->active_prefill_tokens);
    assert_int_equal(a->decode_blocks, b->decode_blocks);
    assert_int_equal(a->active_requests, b->active_requests);
    assert_int_equal(a->active_prefills, b->active_prefills);
    assert_int_equal(a->turn, b->turn);
}

static void compare_cost(const struct kvr_cost *a, const struct kvr_cost *b)
{
    if (!same(a->cost, b->cost)) fail_msg("cost %a, %a", a->cost, b->cost);
    assert_true(same(a->effective_blocks, b->effective_blocks));
    assert_int_equal(a->cached_tokens, b->cached_tokens);
}

static void compare_result(const struct kvr_router *r, const struct prompt *p, const struct walk *k, const struct kvr_router_result *res)
{
    const struct kvr_candidate *c = &k->candidates[k->at];
    double best = 0;
    for (size_t i = 0; i < k->n; i++) best = KVR_MAX(best, k->costs[i].effective_blocks);
    assert_int_equal(res->candidates, k->n);
    assert_int_equal(res->place, k->at);
    assert_int_equal(kvr_worker_cmp(res->worker, c->worker), 0);
    assert_true(same(res->cost, k->costs[k->at].cost) && same(res->best_blocks, best) && same(res->copy_blocks, c->copy_blocks));
    assert_true(same(res->effective_blocks, k->costs[k->at].effective_blocks));
    assert_int_equal(res->most_blocks, k->most);
    assert_int_equal(res->longest_blocks, k->longest);
    assert_int_equal(res->trusted, !r->infos[k->slots[k->at]].untrusted);
    assert_int_equal(res->ahead_tokens, c->active_prefill_tokens);
    assert_int_equal(res->active_blocks, c->decode_blocks);
    uint64_t has = k->costs[k->at].cached_tokens;
    if (r->config.cost.kind == KVR_COST_DELAY) has = KVR_MAX(has, (uint64_t)c->pending_blocks * BLOCK);
    assert_int_equal(res->prefill_tokens, kvr__uncached(&p->cost, p->isl, has));
}

/* Those that are asked for one by one, and in order of their costs. */
static void compare_questions(const struct world *w, const struct walk *k)
{
    size_t at[5], n = kvr_router_cheapest(w->ctx, at, KVR_ARRAY_LEN(at));
    struct kvr_delay d;
    assert_int_equal(n, KVR_MIN(k->n, KVR_ARRAY_LEN(at)));
    for (size_t i = 0; i < n; i++) {
        struct kvr_candidate c;
        struct kvr_cost cost;
        size_t before = 0;
        for (size_t o = 0; o < k->n; o++)
            before += k->costs[o].cost < k->costs[at[i]].cost || (k->costs[o].cost == k->costs[at[i]].cost && o < at[i]);
        if (!isnan(k->costs[at[i]].cost)) assert_true(before <= i);
        kvr_router_candidate(w->ctx, at[i], &c, &cost);
        compare_candidate(&c, &k->candidates[at[i]]);
        compare_cost(&cost, &k->costs[at[i]]);
        if (!kvr_router_delays(w->ctx, &at[i], 1, &d)) continue;
        struct kvr_delay plain = kvr_delay_of(&w->ctx->cost, BLOCK, w->ctx->isl, k->candidates, k->n, at[i]);
        assert_true(same(d.first, plain.first) && same(d.computing, plain.computing) && same(d.generation, plain.generation) &&
                    same(d.pass, plain.pass));
    }
}

static void choose_and_compare(struct world *w, const struct kvr_router_request *rq)
{
    static struct walk k;
    const struct kvr_candidate *candidates;
    const struct kvr_cost *costs;
    struct kvr_router_result res;
    struct prompt p;
    assert_int_equal(kvr__prepare(w->r, w->other, rq, &p), 0);
    walk(w, rq, &p, &k);
    assert_int_equal(kvr_router_find_best_match(w->r, w->ctx, rq, &res), k.rc);
    for (size_t i = 0; i < w->r->order_n && !rq->overloads && k.rc != -KVR_ENOENDPOINTS; i++)
        assert_int_equal(w->r->infos[w->r->order[i]].decode_latched, k.latched[w->r->order[i]]);
    if (k.rc) return;
    compare_result(w->r, &p, &k, &res);
    assert_int_equal(w->r->rng, k.rng);
    assert_int_equal(w->r->turn, k.turn);
    compare_questions(w, &k);
    assert_int_equal(kvr_router_candidates(w->ctx, &candidates, &costs), k.n);
    for (size_t i = 0; i < k.n; i++) {
        compare_candidate(&candidates[i], &k.candidates[i]);
        compare_cost(&costs[i], &k.costs[i]);
    }
}

/* ---- fleets ------------------------------------------------------------------------------------------ */

static uint32_t below(struct world *w, uint32_t n)
{
    return kvr_rng_below(&w->rng, n);
}

static bool one_in(struct world *w, uint32_t n)
{
    return below(w, n) == 0;
}

static uint64_t some_worker(struct world *w)
{
    return 1 + kvr_mix64(below(w, (uint32_t)w->workers_max)) % 100000; /* the order of numbers is not that of slots */
}

/* Often the same: ties. */
static double some(struct world *w, double most)
{
    return one_in(w, 3) ? 0 : most * (double)below(w, 5) / 4;
}

static void configure(struct world *w, struct kvr_router_config *c)
{
    kvr_router_config_init(c);
    c->cost = (struct kvr_cost_config){.kind = one_in(w, 3) ? KVR_COST_LINEAR : KVR_COST_DELAY,
                                       .overlap_credit = some(w, 2),
                                       .credit_decay = some(w, 1),
                                       .prefill_load_scale = one_in(w, 20) ? 1e306 : some(w, 2),
                                       .host_weight = some(w, 1),
                                       .disk_weight = some(w, 1),
                                       .shared_multiplier = some(w, 1),
                                       .request_weight = some(w, 2),
                                       .temperature = one_in(w, 4) ? some(w, 1) : 0,
                                       .track_prefill_tokens = !one_in(w, 5),
                                       .decode_role = one_in(w, 5)};
    c->mode = one_in(w, 4) ? (enum kvr_router_mode)below(w, KVR_MODE_DIRECT) : KVR_MODE_KV;
    c->block_size = BLOCK;
    c->track_active_blocks = !one_in(w, 5);
    c->assume_kv_reuse = !one_in(w, 5);
    c->fit_ttft = c->cost.track_prefill_tokens && !one_in(w, 3);
    c->seed = kvr_rng_next(&w->rng);
    if (one_in(w, 2)) c->busy = (struct kvr_busy_thresholds){some(w, 0.9), some(w, 200), some(w, 2)};
    c->remote_index = one_in(w, 4);
    if (!c->remote_index) {
        assert_int_equal(kvr_index_create(NULL, &w->index), 0);
        if (one_in(w, 3)) assert_int_equal(kvr_index_create(NULL, &w->predicted), 0);
    }
    c->index = w->index;
    c->predicted = w->predicted;
    c->clock = &w->clock;
}

static void store(struct world *w, struct kvr_worker rank)
{
    uint64_t locals[PROMPT], seqs[PROMPT];
    struct kvr_block blocks[PROMPT];
    const uint32_t *tokens = w->tokens[below(w, PREFIXES)];
    kvr_hash_locals(tokens, PROMPT * BLOCK, BLOCK, false, KVR_HASH_SEED, NULL, 0, locals);
    kvr_hash_sequence(locals, PROMPT, seqs);
    for (size_t i = 0; i < PROMPT; i++) blocks[i] = (struct kvr_block){seqs[i], locals[i]};
    struct kvr_event ev = {.worker = rank, .kind = KVR_EVENT_STORED, .blocks = blocks, .blocks_n = 1 + below(w, PROMPT)};
    if (atomic_load(&w->r->lower_tiers) && one_in(w, 2)) ev.tier = (enum kvr_tier)below(w, KVR_TIER_COUNT);
    (void)kvr_index_apply(w->index, &ev);
}

static void observe(struct world *w)
{
    struct kvr_router_result res = {.worker = {some_worker(w), 0}, .prefill_tokens = below(w, 100), .ahead_tokens = some(w, 100)};
    kvr_router_observe_ttft(w->r, &res, 1 + (double)(res.prefill_tokens + res.ahead_tokens) / 2 + below(w, 9));
}

static void change_worker(struct world *w)
{
    const char *taints[] = {names[below(w, 4)], names[below(w, 4)]};
    uint64_t id = some_worker(w);
    if (one_in(w, 6)) kvr_router_remove_worker(w->r, id);
    else assert_int_equal(kvr_router_set_worker(w->r, id, below(w, 2), 1 + below(w, 3)), 0);
    kvr_router_set_schedulable(w->r, id, !one_in(w, 8));
    if (one_in(w, 2)) kvr_router_set_limits(w->r, id, one_in(w, 3) ? 0 : 64 + below(w, 64), one_in(w, 3) ? 0 : 32 + below(w, 64));
    assert_int_equal(kvr_router_set_taints(w->r, id, taints, below(w, 3)), 0);
}

static void change_rank(struct world *w)
{
    struct kvr_worker rank = {some_worker(w), below(w, 4)};
    long slot = kvr_load_slot_of(w->r->load, rank);
    if (slot < 0) return;
    kvr_router_set_trusted(w->r, rank, !one_in(w, 5));
    kvr_router_set_kv_used(w->r, rank, below(w, 90));
    if (one_in(w, 4)) kvr_router_set_limits(w->r, rank.worker_id, 32 + below(w, 64), 16 + below(w, 64));
    w->r->pressures[slot] = some(w, 1);
    if (one_in(w, 8)) w->r->infos[slot].stores_nothing = w->r->any_silent = true;
    if (w->index) store(w, rank);
}

static void make(struct world *w, uint64_t seed)
{
    struct kvr_router_config c;
    memset(w, 0, sizeof *w);
    w->rng.state = seed;
    w->now = 1000000000;
    w->clock = (struct kvr_clock){manual_now, &w->now};
    for (size_t p = 0; p < PREFIXES; p++) /* they begin alike */
        for (size_t i = 0; i < PROMPT * BLOCK; i++) w->tokens[p][i] = (uint32_t)(i < PROMPT ? i : i + 1000 * p);
    configure(w, &c);
    assert_int_equal(kvr_router_create(&c, &w->r, NULL), 0);
    assert_int_equal(kvr_router_ctx_create(w->r, &w->ctx), 0);
    assert_int_equal(kvr_router_ctx_create(w->r, &w->other), 0);
    if (w->index && one_in(w, 2)) kvr_router_use_lower_tiers(w->r);
    w->workers_max = one_in(w, 10) ? 150 : one_in(w, 3) ? 40 : 6; /* ranks for more than one run of costs, or few */
    for (size_t i = 0; i < w->workers_max; i++) change_worker(w);
    for (size_t i = 0; i < w->workers_max; i++) change_rank(w);
    for (size_t i = below(w, 2 * KVR_TTFT_WARM); i; i--) observe(w); /* warm: what is booked says how long its prompt takes */
}

static void end(struct world *w)
{
    const char *why;
    if (!kvr_router_validate(w->r, &why)) fail_msg("%s", why);
    kvr_router_ctx_destroy(w->ctx);
    kvr_router_ctx_destroy(w->other);
    kvr_router_destroy(w->r);
    kvr_index_destroy(w->index);
    kvr_index_destroy(w->predicted);
}

/* ---- what happens ------------------------------------------------------------------------------------ */

static void report(struct world *w)
{
    const char *id = w->live[below(w, LIVE)];
    struct kvr_router_result res = {.worker = {some_worker(w), 0}, .active_blocks = below(w, 100)};
    w->now += below(w, 20000000);
    switch (below(w, 5)) {
    case 0: kvr_router_mark_prefill_completed(w->r, id, strlen(id)); break;
    case 1: kvr_router_add_output_blocks(w->r, id, strlen(id), below(w, 4), one_in(w, 2) ? -1 : some(w, 1)); break;
    case 2: kvr_router_free(w->r, id, strlen(id)); break;
    case 3: observe(w); break;
    default: kvr_router_observe_generation(w->r, &res, 1 + below(w, 50), 1 + below(w, 500));
    }
    if (one_in(w, 4)) change_rank(w);
    if (one_in(w, 8)) change_worker(w);
    if (one_in(w, 20)) kvr_router_set_busy(w->r, &(struct kvr_busy_thresholds){some(w, 0.5), some(w, 100), some(w, 1)});
}

static void choose(struct world *w)
{
    const uint64_t ids[] = {some_worker(w), some_worker(w), some_worker(w), some_worker(w)};
    const char *const required[] = {names[below(w, 4)]};
    const struct kvr_preferred_taint preferred[] = {{names[below(w, 4)], some(w, 1) - 0.5}, {names[below(w, 4)], some(w, 2)}};
    const struct kvr_shared_range shared[] = {{below(w, 4), 4 + below(w, 8)}, {12, 12 + below(w, 12)}};
    const enum kvr_router_mode mode = (enum kvr_router_mode)below(w, KVR_MODE_DIRECT);
    const struct kvr_override override = {.set = below(w, 128),
                                          .overlap_credit = some(w, 2),
                                          .prefill_load_scale = some(w, 2),
                                          .temperature = some(w, 1),
                                          .shared_multiplier = some(w, 1),
                                          .assume_kv_reuse = one_in(w, 2),
                                          .track_prefill_tokens = one_in(w, 2),
                                          .decode_role = one_in(w, 2)};
    struct kvr_reach scores[8];
    size_t scores_n = 0;
    for (size_t i = 0; i < 8; i++) {
        struct kvr_reach s = {.worker = {some_worker(w), below(w, 2)}};
        bool known = false;
        for (size_t o = 0; o < scores_n; o++) known |= kvr_worker_cmp(scores[o].worker, s.worker) == 0;
        for (int t = 0; t < KVR_TIER_COUNT; t++) s.depth[t] = (t ? s.depth[t - 1] : 0) + (one_in(w, 2) ? below(w, 6) : 0);
        if (!known) scores[scores_n++] = s;
    }
    char *id = w->live[below(w, LIVE)];
    struct kvr_router_request rq = {.tokens = w->tokens[below(w, PREFIXES)],
                                    .tokens_n = below(w, PROMPT * BLOCK + 1),
                                    .expected_output = one_in(w, 3) ? below(w, 100) : 0};
    rq.overloads = one_in(w, 6);
    if (one_in(w, 6)) rq.allowed = ids, rq.allowed_n = below(w, 5);
    if (one_in(w, 6)) rq.excluded = ids + 2, rq.excluded_n = 2;
    if (one_in(w, 6)) rq.required_taints = required, rq.required_n = 1;
    if (one_in(w, 4)) rq.preferred_taints = preferred, rq.preferred_n = 2;
    if (one_in(w, 4)) rq.shared = shared, rq.shared_n = 2;
    if (one_in(w, 4)) rq.override = &override;
    if (one_in(w, 6)) rq.mode = &mode;
    if (w->r->config.remote_index && !one_in(w, 3)) rq.scores = scores, rq.scores_n = scores_n;
    rq.preferred = one_in(w, 8);
    if (rq.preferred || (!rq.allowed && w->r->order_n && one_in(w, 8))) {
        rq.pin = w->r->order_n ? w->r->infos[w->r->order[below(w, (uint32_t)w->r->order_n)]].worker : (struct kvr_worker){1, 0};
        rq.pinned = !rq.preferred;
        rq.pin_any_rank = rq.pinned && one_in(w, 2);
    }
    if (one_in(w, 2)) {
        (void)kvr_router_free(w->r, id, strlen(id));
        rq.id_len = (size_t)snprintf(id, sizeof w->live[0], "r%llu", (unsigned long long)w->number++);
        rq.id = id;
        rq.book = true;
    }
    choose_and_compare(w, &rq);
}

static void choices_are_those_of_a_plain_walk(void **)
{
    uint64_t seed = env_u64("KVR_SEED", 1), rounds = env_u64("KVR_OPS", 1000);
    for (uint64_t i = 0; i < rounds; i++) {
        static struct world w;
        make(&w, kvr_mix64(seed + i));
        for (int k = 0; k < CHOICES; k++) {
            report(&w);
            choose(&w);
        }
        end(&w);
    }
}

/* Enough ranks that arrays of them are mapped one by one. */
static void a_context_gives_back_all_that_it_took(void **)
{
    struct failing_alloc counted = {.fail_at = -1};
    struct kvr_alloc alloc = {failing_resize, &counted};
    struct kvr_router_config c;
    struct kvr_router *r;
    struct kvr_router_ctx *ctx;
    struct kvr_router_result res;
    kvr_router_config_init(&c);
    c.alloc = &alloc;
    c.cost.overlap_credit = 0;
    assert_int_equal(kvr_router_create(&c, &r, NULL), 0);
    assert_int_equal(kvr_router_set_worker(r, 1, 0, 20), 0);
    assert_int_equal(kvr_router_ctx_create(r, &ctx), 0);
    assert_int_equal(kvr_router_find_best_match(r, ctx, &(struct kvr_router_request){.isl = 100}, &res), 0);
    kvr_router_ctx_destroy(ctx);
    kvr_router_destroy(r);
    assert_int_equal(counted.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_those_of_a_plain_walk),
        cmocka_unit_test(a_context_gives_back_all_that_it_took),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
