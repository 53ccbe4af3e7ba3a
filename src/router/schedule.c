/* SPDX-License-Identifier: Apache-2.0 */
/* Under the lock: who is eligible, what each would cost, which one, booking. Nothing here allocates in the steady state. */
#include <math.h>
#include <string.h>

#include "router/internal.h"

int kvr__reserve_ranks(struct kvr_router_ctx *c, size_t n)
{
    enum { ARRAYS = 6 };
    if (n <= c->ranks_cap) return 0;
    size_t cap = n + 16;
    struct kvr_candidate *cand = kvr_mem_get(&c->mem, cap * sizeof *cand);
    struct kvr_cost *costs = kvr_mem_get(&c->mem, cap * sizeof *costs);
    uint32_t *words = kvr_mem_zget(&c->mem, ARRAYS * cap * sizeof *words);
    struct kvr_rank_load *loads = kvr_mem_get(&c->mem, cap * sizeof *loads);
    if (!cand || !costs || !words || !loads) {
        kvr_mem_put(&c->mem, cand, cap * sizeof *cand);
        kvr_mem_put(&c->mem, costs, cap * sizeof *costs);
        kvr_mem_put(&c->mem, words, ARRAYS * cap * sizeof *words);
        kvr_mem_put(&c->mem, loads, cap * sizeof *loads);
        return -KVR_ENOMEM;
    }
    kvr_mem_put(&c->mem, c->candidates, c->ranks_cap * sizeof *cand);
    kvr_mem_put(&c->mem, c->costs, c->ranks_cap * sizeof *costs);
    kvr_mem_put(&c->mem, c->depths, ARRAYS * c->ranks_cap * sizeof *words);
    kvr_mem_put(&c->mem, c->loads, c->ranks_cap * sizeof *loads);
    c->loads = loads;
    c->candidates = cand;
    c->costs = costs;
    c->depths = words;
    c->slots = words + cap;
    c->device = words + 2 * cap;
    c->host = words + 3 * cap;
    c->disk = words + 4 * cap;
    c->external = words + 5 * cap;
    c->ranks_cap = cap;
    return 0;
}

/* ---- who may serve it -------------------------------------------------------------------------------- */

static bool has_id(const uint64_t *ids, size_t n, uint64_t id)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static struct worker_info *worker_of(struct kvr_router *r, uint32_t slot)
{
    return &r->workers[r->infos[slot].owner];
}

/* Marks the workers of the allow-list, so that the walk over the ranks asks one word each. */
static void mark_allowed(struct kvr_router *r, const struct kvr_router_request *rq)
{
    r->mark++;
    for (size_t i = 0; i < rq->allowed_n; i++) {
        struct kvr_worker w = {rq->allowed[i], 0};
        size_t lo = 0, hi = r->order_n;
        while (lo < hi) { /* first slot of that worker */
            size_t mid = (lo + hi) / 2;
            if (kvr_worker_cmp(r->infos[r->order[mid]].worker, w) < 0) lo = mid + 1;
            else hi = mid;
        }
        if (lo < r->order_n && r->infos[r->order[lo]].worker.worker_id == w.worker_id) worker_of(r, r->order[lo])->mark = r->mark;
    }
}

long kvr__taint(const struct kvr_router *r, const char *name)
{
    for (size_t i = 0; i < r->taints_n; i++)
        if (!strcmp(r->taint_names[i], name)) return (long)i;
    return -1;
}

/* Returns: false when a required taint is one that no worker has. */
static bool required_set(const struct kvr_router *r, const struct kvr_router_request *rq, struct taints *out)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < rq->required_n; i++) {
        long at = kvr__taint(r, rq->required_taints[i]);
        if (at < 0) return false;
        out->bits[at / 64] |= (uint64_t)1 << (at % 64);
    }
    return true;
}

static bool has_taints(const struct taints *have, const struct taints *need)
{
    for (int i = 0; i < TAINT_WORDS; i++)
        if (need->bits[i] & ~have->bits[i]) return false;
    return true;
}

/* Order of the checks: not allowed, unknown, rank out of range, not schedulable, taints. */
static int pinned_slot(struct kvr_router *r, const struct kvr_router_request *rq, bool taints_exist, const struct taints *required,
                       size_t *out)
{
    if (rq->allowed && !has_id(rq->allowed, rq->allowed_n, rq->pin.worker_id)) return -KVR_ENOTALLOWED;
    size_t ranks = 0, found = SIZE_MAX;
    for (size_t i = 0; i < r->order_n; i++) {
        uint32_t slot = r->order[i];
        if (r->infos[slot].worker.worker_id != rq->pin.worker_id) continue;
        ranks++;
        if (rq->pin_any_rank || r->infos[slot].worker.dp_rank == rq->pin.dp_rank) found = slot;
    }
    if (ranks == 0) return -KVR_ENOTFOUND;
    if (found == SIZE_MAX) return -KVR_ERANK;
    const struct worker_info *w = worker_of(r, (uint32_t)found);
    if (w->blocked || has_id(rq->excluded, rq->excluded_n, rq->pin.worker_id)) return -KVR_ENOENDPOINTS;
    if (!taints_exist || !has_taints(&w->taints, required)) return -KVR_ENOENDPOINTS;
    *out = found;
    return 0;
}

int kvr__eligible(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, size_t *n_out,
                  struct kvr_router_result *res)
{
    size_t n = 0, slot = 0;
    struct taints required;
    bool taints_exist = required_set(r, rq, &required);
    if (rq->pinned) {
        int rc = pinned_slot(r, rq, taints_exist, &required, &slot);
        if (rc) return rc;
        res->pinned = true;
    } else if (rq->preferred && pinned_slot(r, rq, taints_exist, &required, &slot) == 0) {
        res->preferred = true;
    }
    if (res->preferred || (res->pinned && !rq->pin_any_rank)) {
        c->slots[n++] = (uint32_t)slot;
    } else if (taints_exist) {
        if (rq->allowed) mark_allowed(r, rq);
        for (size_t i = 0; i < r->order_n; i++) {
            const struct worker_info *w = worker_of(r, r->order[i]);
            if (w->blocked || (rq->allowed && w->mark != r->mark) || (rq->pinned && w->id != rq->pin.worker_id)) continue;
            if (rq->excluded_n && has_id(rq->excluded, rq->excluded_n, w->id)) continue;
            if (rq->required_n && !has_taints(&w->taints, &required)) continue;
            c->slots[n++] = r->order[i];
        }
    }
    *n_out = n;
    return n ? 0 : -KVR_ENOENDPOINTS;
}

/* ---- overload ---------------------------------------------------------------------------------------- */

/* A preferred taint that somebody has. */
struct lean {
    uint32_t word, bit;
    double weight;
};

static size_t leans_of(const struct kvr_router *r, const struct kvr_router_request *rq, struct lean leans[KVR_TAINTS_MAX])
{
    size_t n = 0;
    for (size_t k = 0; k < rq->preferred_n && n < KVR_TAINTS_MAX; k++) {
        long at = kvr__taint(r, rq->preferred_taints[k].name);
        if (at >= 0) leans[n++] = (struct lean){(uint32_t)at / 64, (uint32_t)at % 64, rq->preferred_taints[k].weight};
    }
    return n;
}

static double lean_of(const struct taints *t, const struct lean *leans, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        if (t->bits[leans[i].word] >> leans[i].bit & 1) sum += leans[i].weight;
    return sum;
}

static bool rank_is_over(const struct kvr_router *r, struct rank_info *i, const struct worker_info *w, const struct kvr_rank_load *l)
{
    const struct kvr_busy_thresholds *b = &r->config.busy;
    double batch = kvr__batch_tokens(w), prefill = (double)(int64_t)l->active_prefill_tokens;
    if (b->decode_blocks_frac >= 0 && w->total_kv_blocks) {
        double line = b->decode_blocks_frac * (double)w->total_kv_blocks, book = (double)(int64_t)l->active_decode_blocks,
               engine = (double)(int64_t)i->kv_used_blocks;
        if (book > line || engine > line) i->decode_latched = true;
        else if (book < line && engine < line) i->decode_latched = false;
        if (i->decode_latched) return true;
    }
    return (b->prefill_tokens >= 0 && prefill > b->prefill_tokens) ||
           (b->prefill_tokens_frac >= 0 && prefill > b->prefill_tokens_frac * batch);
}

static bool watches_overload(const struct kvr_router *r)
{
    const struct kvr_busy_thresholds *b = &r->config.busy;
    return b->decode_blocks_frac >= 0 || b->prefill_tokens >= 0 || b->prefill_tokens_frac >= 0;
}

/* A worker is overloaded when all its ranks are. Removes those from c->slots. */
static size_t drop_overloaded(struct kvr_router *r, struct kvr_router_ctx *c, size_t n)
{
    if (!watches_overload(r)) return n;
    const struct worker_info *last = NULL;
    bool any = false;
    for (size_t i = 0; i < r->order_n; i++) { /* a worker's ranks are neighbours */
        struct rank_info *info = &r->infos[r->order[i]];
        struct worker_info *w = &r->workers[info->owner];
        bool over = rank_is_over(r, info, w, &c->loads[r->order[i]]);
        w->over = w == last ? w->over && over : over;
        any |= over;
        last = w;
    }
    if (!any) return n;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (!worker_of(r, c->slots[i])->over) c->slots[kept++] = c->slots[i];
    return kept;
}

/* ---- candidates -------------------------------------------------------------------------------------- */

/* depth: cumulative, by tier. */
static void note_reach(const struct kvr_router *r, struct kvr_router_ctx *c, struct kvr_worker w, const uint32_t *depth)
{
    long slot = kvr_load_slot_of(r->load, w);
    if (slot < 0 || r->infos[slot].untrusted) return;
    c->device[slot] = KVR_MAX(c->device[slot], depth[KVR_TIER_DEVICE]);
    c->host[slot] = depth[KVR_TIER_HOST_PINNED] - depth[KVR_TIER_DEVICE];
    c->disk[slot] = depth[KVR_TIER_DISK] - depth[KVR_TIER_HOST_PINNED];
    c->external[slot] = depth[KVR_TIER_EXTERNAL] - depth[KVR_TIER_DISK];
    c->longest = KVR_MAX(c->longest, depth[KVR_TIER_EXTERNAL]);
}

/* The device will have so many blocks: what of them is in lower tiers is not to be read. */
static void raise_device(struct kvr_router_ctx *c, size_t slot, uint32_t depth)
{
    uint32_t more = depth - KVR_MIN(depth, c->device[slot]), *lower[] = {&c->host[slot], &c->disk[slot], &c->external[slot]};
    c->device[slot] += more;
    c->longest = KVR_MAX(c->longest, depth);
    for (size_t i = 0; i < KVR_ARRAY_LEN(lower); i++) {
        uint32_t less = KVR_MIN(more, *lower[i]);
        *lower[i] -= less;
        more -= less;
    }
}

/* Spreads overlaps and active blocks over slots; ranks that are not trusted count as holding nothing. */
void kvr__spread(struct kvr_router *r, struct kvr_router_ctx *c, const struct prompt *p, uint64_t now)
{
    size_t slots = kvr_load_slots(r->load);
    c->model = (struct kvr_delay_model){r->fleet, r->generation, p->expected_output};
    c->longest = 0;
    kvr_load_get_all(r->load, now, c->loads);
    memset(c->device, 0, slots * sizeof *c->device);
    memset(c->host, 0, slots * sizeof *c->host);
    memset(c->disk, 0, slots * sizeof *c->disk);
    memset(c->external, 0, slots * sizeof *c->external);
    for (size_t i = 0; i < p->overlaps_n; i++) {
        uint32_t d = p->overlaps[i].depth;
        note_reach(r, c, p->overlaps[i].worker, (const uint32_t[KVR_TIER_COUNT]){d, d, d, d});
    }
    for (size_t i = 0; i < p->reaches_n; i++) note_reach(r, c, p->reaches[i].worker, p->reaches[i].depth);
    for (size_t i = 0; i < p->predicted_n; i++) {
        long slot = kvr_load_slot_of(r->load, p->predicted[i].worker);
        if (slot >= 0) raise_device(c, (size_t)slot, p->predicted[i].depth);
    }
    kvr_load_project(r->load, p->seqs, kvr__booked_seqs(p, &r->config), c->depths);
}

static double shared_past(const struct kvr_router_request *rq, double device)
{
    double n = 0;
    for (size_t i = 0; i < rq->shared_n; i++) n += KVR_MAX((double)rq->shared[i].end - KVR_MAX((double)rq->shared[i].start, device), 0.0);
    return n;
}

/* Not chosen for a hundred rounds of the fleet. */
bool kvr__model_is_old(const struct kvr_router *r, uint32_t worker)
{
    return r->decisions - r->models[worker].seen > 100 * r->order_n;
}

double kvr__factor(const struct kvr_router *r, uint32_t worker)
{
    return kvr__model_is_old(r, worker) ? 1 : r->models[worker].factor.value;
}

static inline void fill_candidate(const struct kvr_router *r, const struct kvr_router_ctx *c, const struct prompt *p, uint64_t booked,
                                  size_t slot, struct kvr_candidate *out)
{
    const struct kvr_rank_load *l = &c->loads[slot];
    const struct rank_info *i = &r->infos[slot];
    out->worker = l->worker;
    out->device_blocks = c->device[slot];
    out->host_blocks = c->host[slot];
    out->disk_blocks = c->disk[slot];
    out->external_blocks = c->external[slot];
    out->shared_blocks = out->taint_weight = out->copy_blocks = 0;
    out->pending_blocks = i->stores_nothing ? 0 : c->depths[slot];
    out->active_prefill_tokens = r->config.cost.track_prefill_tokens ? l->active_prefill_tokens : 0;
    out->decode_blocks = r->config.track_active_blocks ? l->active_decode_blocks + (booked - c->depths[slot]) + p->private_blocks : 0;
    out->active_requests = l->active_requests;
    out->active_prefills = l->active_prefills;
    out->turn = i->turn;
    out->pressure = i->pressure;
    out->model = &c->model;
    out->factor = p->cost.kind == KVR_COST_DELAY ? kvr__factor(r, i->owner) : 1;
}

void kvr__candidate(const struct kvr_router *r, const struct kvr_router_ctx *c, const struct prompt *p, size_t slot,
                    struct kvr_candidate *out)
{
    fill_candidate(r, c, p, kvr__booked_seqs(p, &r->config), slot, out);
}

/* ---- the choice -------------------------------------------------------------------------------------- */

static size_t pick_least_loaded(const struct kvr_candidate *c, size_t n, struct kvr_rng *rng)
{
    size_t at = 0;
    uint32_t ties = 1;
    for (size_t i = 1; i < n; i++) {
        if (c[i].active_requests < c[at].active_requests) at = i, ties = 1;
        else if (c[i].active_requests == c[at].active_requests && kvr_rng_below(rng, ++ties) == 0) at = i;
    }
    return at;
}

static size_t pick_by_cost(struct kvr_router *r, const struct kvr_router_ctx *c, const struct kvr_cost_config *cost, size_t n)
{
    if (r->config.select) return r->config.select(r->config.select_ctx, c->candidates, c->costs, n);
    if (cost->kind != KVR_COST_DELAY || cost->temperature > 0) return kvr_pick(c->costs, n, cost->temperature, &r->rng);
    bool by_load = cost->decode_role && cost->overlap_credit <= 0;
    return (by_load ? kvr_pick_calmest : kvr_pick_in_turn)(c->candidates, c->costs, n, KVR_TURN_TOLERANCE);
}

static size_t pick_by_mode(struct kvr_router *r, struct kvr_router_ctx *c, enum kvr_router_mode mode, const struct kvr_cost_config *cost,
                           size_t n, struct kvr_router_result *res)
{
    struct kvr_rng rng = {r->rng};
    size_t at = n;
    switch (mode) {
    case KVR_MODE_ROUND_ROBIN: return (size_t)(r->turn++ % n);
    case KVR_MODE_RANDOM: at = kvr_rng_below(&rng, (uint32_t)n); break;
    case KVR_MODE_LEAST_LOADED: at = pick_least_loaded(c->candidates, n, &rng); break;
    case KVR_MODE_KV:
    case KVR_MODE_DIRECT: res->scored = true; return pick_by_cost(r, c, cost, n);
    }
    r->rng = rng.state;
    return at;
}

uint64_t kvr__expected(const struct kvr_router *r, const struct kvr_candidate *k, const struct kvr_cost *cost)
{
    if (r->config.cost.kind != KVR_COST_DELAY) return cost->cached_tokens;
    return KVR_MAX(cost->cached_tokens, (uint64_t)k->pending_blocks * r->config.block_size);
}

uint64_t kvr__uncached(const struct kvr_cost_config *cost, uint64_t isl, uint64_t cached)
{
    return cost->track_prefill_tokens && isl > cached ? isl - cached : 0;
}

/* What the rank's view says, whether it counted or not. */
static uint32_t view_of(const struct kvr_router *r, const struct kvr_router_ctx *c, const struct prompt *p, size_t at)
{
    struct kvr_worker w = c->candidates[at].worker;
    if (!r->infos[c->slots[at]].untrusted) return c->device[c->slots[at]];
    for (size_t i = 0; i < p->overlaps_n; i++)
        if (kvr_worker_cmp(p->overlaps[i].worker, w) == 0) return p->overlaps[i].depth;
    for (size_t i = 0; i < p->reaches_n; i++)
        if (kvr_worker_cmp(p->reaches[i].worker, w) == 0) return p->reaches[i].depth[KVR_TIER_DEVICE];
    return 0;
}

static uint32_t held_by(const struct kvr_candidate *k)
{
    return (uint32_t)(k->device_blocks + k->host_blocks + k->disk_blocks + k->external_blocks);
}

static void fill_result(const struct kvr_router *r, const struct kvr_router_ctx *c, const struct prompt *p, size_t at, size_t n,
                        struct kvr_router_result *res)
{
    const struct kvr_cost *cost = &c->costs[at];
    res->worker = c->candidates[at].worker;
    res->effective_blocks = cost->effective_blocks;
    res->overlap_blocks = (uint32_t)lround(cost->effective_blocks);
    res->cost = cost->cost;
    res->cached_tokens = cost->cached_tokens;
    res->pending_blocks = (uint32_t)c->candidates[at].pending_blocks;
    res->prefill_tokens = kvr__uncached(&p->cost, p->isl, kvr__expected(r, &c->candidates[at], cost));
    res->required_blocks = (p->isl + r->config.block_size - 1) / r->config.block_size;
    res->ahead_tokens = c->candidates[at].active_prefill_tokens;
    res->ahead_decoding = c->candidates[at].active_requests - c->candidates[at].active_prefills;
    res->active_blocks = c->candidates[at].decode_blocks;
    res->view_blocks = view_of(r, c, p, at);
    res->trusted = !r->infos[c->slots[at]].untrusted;
    res->candidates = n;
    res->held_blocks = held_by(&c->candidates[at]);
    res->held_tokens = (uint64_t)res->held_blocks * r->config.block_size;
    res->tier_blocks[KVR_TIER_DEVICE] = (uint32_t)c->candidates[at].device_blocks;
    res->tier_blocks[KVR_TIER_HOST_PINNED] = (uint32_t)c->candidates[at].host_blocks;
    res->tier_blocks[KVR_TIER_DISK] = (uint32_t)c->candidates[at].disk_blocks;
    res->tier_blocks[KVR_TIER_EXTERNAL] = (uint32_t)c->candidates[at].external_blocks;
    res->longest_blocks = c->longest;
    res->copy_blocks = c->candidates[at].copy_blocks;
    double best = 0;
    for (size_t i = 0; i < n; i++) best = KVR_MAX(best, c->costs[i].effective_blocks);
    res->best_blocks = best;
}

/* Candidates for the slots in c->slots. */
static void collect(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, const struct prompt *p, size_t n,
                    struct kvr_router_result *res)
{
    struct lean leans[KVR_TAINTS_MAX];
    size_t leans_n = rq->preferred_n ? leans_of(r, rq, leans) : 0, booked = kvr__booked_seqs(p, &r->config);
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        struct kvr_candidate *k = &c->candidates[i];
        fill_candidate(r, c, p, booked, c->slots[i], k);
        most = KVR_MAX(most, held_by(k));
        if (leans_n) k->taint_weight = lean_of(&worker_of(r, c->slots[i])->taints, leans, leans_n);
        if (rq->shared_n) k->shared_blocks = shared_past(rq, k->device_blocks);
    }
    res->most_blocks = most;
}

/* How much those who wait for a stretch say of lasting demand: nothing when they have come at once (a burst), all when they have kept
 * coming for as long as it takes to compute it. What has lasted so long will be there when a copy is. */
static double lasts(const struct kvr_router_ctx *c, const struct kvr_load_stretch *s, uint32_t block_size, uint64_t now)
{
    double computing_ms = kvr_ttft_predict(&c->model.ttft, (double)s->end * block_size, 0, 0);
    return s->waiting && now > s->since_ns ? KVR_MIN((double)(now - s->since_ns) / 1e6 / computing_ms, 1.0) : 0;
}

/* A prefix that is used by more than its holders' fair share of what runs should have more holders, and computing it once more is no
 * waste. For each stretch of the prompt that others share: so much of it as is wanted goes to the copy_blocks of those that lack it. */
static void want_copies(const struct kvr_router *r, struct kvr_router_ctx *c, const struct prompt *p, size_t n, uint64_t now)
{
    enum { STRETCHES = 32 };
    struct kvr_load_stretch s[STRETCHES];
    size_t m = kvr_load_stretches(r->load, p->seqs, kvr__booked_seqs(p, &r->config), s, STRETCHES);
    double generating = 0, waiting = 0, from = 0;
    for (size_t i = 0; i < n && m; i++) {
        generating += c->candidates[i].active_requests - c->candidates[i].active_prefills;
        waiting += c->candidates[i].active_prefills;
    }
    for (size_t e = 0; e < m; from = s[e++].end) {
        double share = lasts(c, &s[e], r->config.block_size, now), users = s[e].generating + share * s[e].waiting;
        double end = s[e].end, holders = 0, fair = (generating + share * waiting) / (double)n + 1;
        if (users <= 0) continue;
        for (size_t i = 0; i < n; i++) holders += KVR_MAX(c->candidates[i].device_blocks, c->candidates[i].pending_blocks) >= end;
        double wanted = KVR_MIN(users / fair / KVR_MAX(holders, 1.0), 1.0);
        for (size_t i = 0; i < n; i++) {
            struct kvr_candidate *k = &c->candidates[i];
            double has = KVR_MAX(k->device_blocks, k->pending_blocks);
            if (has < end) k->copy_blocks += wanted * (end - KVR_MAX(has, from));
        }
    }
}

int kvr__schedule(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, const struct prompt *p,
                  struct kvr_router_result *res)
{
    size_t n;
    uint64_t now = kvr_now_ns(&r->clock), isl = KVR_MAX(p->isl, (uint64_t)1);
    c->candidates_n = 0;
    if (kvr__reserve_ranks(c, kvr_load_slots(r->load))) return -KVR_ENOMEM;
    if (r->config.mode == KVR_MODE_DIRECT && !rq->pinned) return -KVR_ENOENDPOINTS;
    int rc = kvr__eligible(r, c, rq, &n, res);
    if (rc) return rc;
    kvr__spread(r, c, p, now);
    size_t calm = rq->overloads ? n : drop_overloaded(r, c, n);
    if (calm == 0 && res->preferred) { /* soft: somebody else then */
        struct kvr_router_request other = *rq;
        other.preferred = false;
        res->preferred = false;
        return kvr__schedule(r, c, &other, p, res);
    }
    if (calm == 0) return -KVR_EOVERLOADED;
    n = calm;
    size_t idle = p->calm_for ? kvr__drop_busy(r, c, p->calm_for, n, now) : 0;
    if (idle) n = idle;
    collect(r, c, rq, p, n, res);
    if (p->cost.kind == KVR_COST_DELAY) want_copies(r, c, p, n, now);
    kvr_cost_of(&p->cost, r->config.block_size, isl, c->candidates, n, c->costs);
    c->candidates_n = n;
    c->cost = p->cost;
    c->isl = isl;
    enum kvr_router_mode mode = rq->mode ? *rq->mode : r->config.mode;
    size_t at = res->preferred || (res->pinned && n == 1) ? 0 : pick_by_mode(r, c, mode, &p->cost, n, res);
    if (at >= n) return -KVR_ENOENDPOINTS;
    fill_result(r, c, p, at, n, res);
    if (!rq->book) return 0;
    r->infos[c->slots[at]].turn = ++r->decisions;
    r->infos[c->slots[at]].sent += res->prefill_tokens >= r->config.block_size;
    return kvr__book(r, rq, p, res->worker, res->prefill_tokens, now);
}

int kvr__look_for_calm(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, uint64_t now)
{
    struct kvr_router_result ignored = {0};
    size_t n;
    if (kvr__reserve_ranks(c, kvr_load_slots(r->load))) return -KVR_ENOMEM;
    int rc = kvr__eligible(r, c, rq, &n, &ignored);
    if (rc) return rc;
    kvr_load_get_all(r->load, now, c->loads);
    return drop_overloaded(r, c, n) > 0 ? 0 : -KVR_EOVERLOADED;
}

bool kvr_router_any_calm(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq)
{
    kvr_lock(&r->lock);
    int rc = kvr__look_for_calm(r, c, rq, kvr_now_ns(&r->clock));
    kvr_unlock(&r->lock);
    return rc != -KVR_EOVERLOADED && rc != -KVR_ENOENDPOINTS;
}

/* ---- booking ----------------------------------------------------------------------------------------- */

static void estimate_prefill(const struct kvr_router *r, const struct prompt *p, struct kvr_load_request *lr)
{
    int64_t ns = -1;
    if (!lr->prefill_tokens) return;
    if (r->config.prefill) {
        ns = r->config.prefill(r->config.prefill_ctx, lr->worker, lr->prefill_tokens, p->isl - KVR_MIN(p->isl, lr->prefill_tokens));
    } else if (r->config.fit_ttft) {
        long slot = kvr_load_slot_of(r->load, lr->worker);
        double factor = slot < 0 ? 1 : kvr__factor(r, r->infos[slot].owner);
        if (r->fleet.observations >= KVR_TTFT_WARM) ns = (int64_t)((double)lr->prefill_tokens * factor * r->fleet.token_ms * 1e6);
    }
    lr->has_duration = ns >= 0;
    lr->prefill_ns = ns >= 0 ? (uint64_t)ns : 0;
}

int kvr__book(struct kvr_router *r, const struct kvr_router_request *rq, const struct prompt *p, struct kvr_worker worker,
              uint64_t prefill_tokens, uint64_t now)
{
    struct kvr_load_event ev = {.kind = KVR_LOAD_ADD,
                                .request = {.id = rq->id,
                                            .id_len = rq->id_len,
                                            .worker = worker,
                                            .seqs = p->seqs,
                                            .seqs_n = kvr__booked_seqs(p, &r->config),
                                            .private_blocks = p->private_blocks,
                                            .prefill_tokens = prefill_tokens,
                                            .now_ns = now,
                                            .guarded = rq->guarded}};
    estimate_prefill(r, p, &ev.request);
    int rc = kvr_load_add(r->load, &ev.request);
    if (rc == 0 && r->config.hook) r->config.hook(r->config.hook_ctx, &ev);
    return rc;
}

void kvr__record(struct kvr_router *r, const struct prompt *p, struct kvr_worker worker)
{
    /* A prediction that does not fit is no reason to refuse the request; the index counts it. */
    if (!p->locals) return; /* hashes for booking only */
    if (r->config.record_decisions) (void)kvr_index_record(r->config.index, worker, p->locals, p->locals_n, p->seqs, p->seqs_n);
    if (r->config.predicted) (void)kvr_index_record(r->config.predicted, worker, p->locals, p->locals_n, p->seqs, p->seqs_n);
}
