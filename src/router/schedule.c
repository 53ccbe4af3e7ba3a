/* SPDX-License-Identifier: Apache-2.0 */
/* Under the lock: who is eligible, what each would cost, which one, booking. Nothing here allocates in the steady state. */
#include <math.h>
#include <string.h>

#include "router/internal.h"

/* ---- memory ------------------------------------------------------------------------------------------ */

static void *carve(char **memory, size_t bytes)
{
    void *piece = *memory;
    *memory += bytes;
    return piece;
}

enum { RANK_BYTES = sizeof(struct kvr_worker) + 10 * sizeof(uint64_t) + 8 * sizeof(uint32_t) };

/* Widest first. */
static void columns_in(struct kvr_router_ctx *c, char *memory, size_t cap)
{
    struct rank_columns *k = &c->by_slot;
    uint64_t **counts[] = {&k->prefill_tokens, &k->blocks, &k->turns};
    double **numbers[] = {&k->pressures, &k->factors, &k->copies, &k->shared, &k->leans, &k->worth, &k->costs};
    uint32_t **words[] = {&k->requests, &k->prefills, &k->depths, &k->device, &k->host, &k->disk, &k->external, &c->slots};
    k->workers = carve(&memory, cap * sizeof *k->workers);
    for (size_t i = 0; i < KVR_ARRAY_LEN(counts); i++) *counts[i] = carve(&memory, cap * sizeof(uint64_t));
    for (size_t i = 0; i < KVR_ARRAY_LEN(numbers); i++) *numbers[i] = carve(&memory, cap * sizeof(double));
    for (size_t i = 0; i < KVR_ARRAY_LEN(words); i++) *words[i] = carve(&memory, cap * sizeof(uint32_t));
}

void kvr__free_ranks(struct kvr_router_ctx *c)
{
    kvr_mem_put(&c->mem, c->by_slot.workers, c->ranks_cap * RANK_BYTES);
    kvr_mem_put(&c->mem, c->candidates, c->ranks_cap * sizeof *c->candidates);
    kvr_mem_put(&c->mem, c->costs, c->ranks_cap * sizeof *c->costs);
}

int kvr__reserve_ranks(struct kvr_router_ctx *c, size_t n)
{
    c->candidates_n = 0; /* the arrays are another question's from now on */
    if (n <= c->ranks_cap) return 0;
    size_t cap = n + 16;
    char *memory = kvr_mem_zget(&c->mem, cap * RANK_BYTES);
    struct kvr_candidate *candidates = kvr_mem_get(&c->mem, cap * sizeof *candidates);
    struct kvr_cost *costs = kvr_mem_zget(&c->mem, cap * sizeof *costs);
    if (!memory || !candidates || !costs) {
        kvr_mem_put(&c->mem, memory, cap * RANK_BYTES);
        kvr_mem_put(&c->mem, candidates, cap * sizeof *candidates);
        kvr_mem_put(&c->mem, costs, cap * sizeof *costs);
        return -KVR_ENOMEM;
    }
    kvr__free_ranks(c);
    columns_in(c, memory, cap);
    c->candidates = candidates;
    c->costs = costs;
    c->ranks_cap = cap;
    c->ranks_changed = 0;
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
    return &r->workers[r->owners[slot]];
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

/* Nobody is left out. */
static bool takes_all(const struct kvr_router *r, const struct kvr_router_request *rq)
{
    return !r->any_blocked && !rq->allowed && !rq->pinned && !rq->excluded_n && !rq->required_n;
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
    } else if (taints_exist && takes_all(r, rq)) {
        n = r->order_n;
        if (n) memcpy(c->slots, r->order, n * sizeof *c->slots);
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

static bool rank_is_over(const struct kvr_router *r, struct rank_info *i, const struct worker_info *w, uint64_t prefill_tokens,
                         uint64_t blocks, uint64_t engine_blocks)
{
    const struct kvr_busy_thresholds *b = &r->config.busy;
    double batch = kvr__batch_tokens(w), prefill = (double)(int64_t)prefill_tokens;
    if (b->decode_blocks_frac >= 0 && w->total_kv_blocks) {
        double line = b->decode_blocks_frac * (double)w->total_kv_blocks, book = (double)(int64_t)blocks,
               engine = (double)(int64_t)engine_blocks;
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

/* The largest count that is not above `line`. */
static uint64_t whole_line(double line)
{
    return line < 0x1p63 ? (uint64_t)line : UINT64_MAX;
}

static void draw_lines(struct kvr_router *r)
{
    const struct kvr_busy_thresholds *b = &r->config.busy;
    for (size_t i = 0; i < r->slots_n; i++) {
        const struct worker_info *w = worker_of(r, (uint32_t)i);
        bool decode = b->decode_blocks_frac >= 0 && w->total_kv_blocks;
        double prefill = b->prefill_tokens >= 0 ? b->prefill_tokens : INFINITY;
        if (b->prefill_tokens_frac >= 0) prefill = KVR_MIN(prefill, b->prefill_tokens_frac * kvr__batch_tokens(w));
        r->lines[i].prefill_tokens = whole_line(prefill);
        r->lines[i].blocks = whole_line(decode ? b->decode_blocks_frac * (double)w->total_kv_blocks : INFINITY);
    }
    r->lines_are_old = false;
}

/* Whether a rank may be overloaded: one compare for each threshold, where rank_is_over looks more closely. A count above a line is above
 * the line's whole part, too, however both were rounded. */
static bool may_be_over(struct kvr_router *r, const struct rank_columns *k)
{
    bool any = r->any_latched;
    if (r->lines_are_old) draw_lines(r);
    for (size_t i = 0; i < r->slots_n; i++) {
        const struct busy_lines *l = &r->lines[i];
        any |= (k->prefill_tokens[i] > l->prefill_tokens) | (k->blocks[i] > l->blocks) | (l->engine_blocks > l->blocks);
    }
    return any;
}

/* A worker is overloaded when all its ranks are. Removes those from c->slots. */
static size_t drop_overloaded(struct kvr_router *r, struct kvr_router_ctx *c, size_t n)
{
    if (!watches_overload(r) || !may_be_over(r, &c->by_slot)) return n;
    const struct worker_info *last = NULL;
    bool any = false;
    r->any_latched = false;
    for (size_t i = 0; i < r->order_n; i++) { /* a worker's ranks are neighbours */
        uint32_t slot = r->order[i];
        struct worker_info *w = worker_of(r, slot);
        bool over =
            rank_is_over(r, &r->infos[slot], w, c->by_slot.prefill_tokens[slot], c->by_slot.blocks[slot], r->lines[slot].engine_blocks);
        r->any_latched |= r->infos[slot].decode_latched;
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

static void read_loads(const struct kvr_router *r, struct kvr_router_ctx *c, uint64_t now)
{
    const struct rank_columns *k = &c->by_slot;
    kvr__load_columns(r->load, now, &(struct kvr__load_columns){k->prefill_tokens, k->blocks, k->requests, k->prefills});
}

/* depth: cumulative, by tier. */
static void note_reach(const struct kvr_router *r, struct kvr_router_ctx *c, struct kvr_worker w, const uint32_t *depth)
{
    struct rank_columns *k = &c->by_slot;
    long slot = kvr_load_slot_of(r->load, w);
    if (slot < 0 || r->infos[slot].untrusted) return;
    k->device[slot] = KVR_MAX(k->device[slot], depth[KVR_TIER_DEVICE]);
    c->longest = KVR_MAX(c->longest, depth[KVR_TIER_EXTERNAL]);
    if (!k->has_tiers) return;
    k->host[slot] = depth[KVR_TIER_HOST_PINNED] - depth[KVR_TIER_DEVICE];
    k->disk[slot] = depth[KVR_TIER_DISK] - depth[KVR_TIER_HOST_PINNED];
    k->external[slot] = depth[KVR_TIER_EXTERNAL] - depth[KVR_TIER_DISK];
}

/* The device will have so many blocks: what of them is in lower tiers is not to be read. */
static void raise_device(struct kvr_router_ctx *c, size_t slot, uint32_t depth)
{
    struct rank_columns *k = &c->by_slot;
    uint32_t more = depth - KVR_MIN(depth, k->device[slot]), *lower[] = {&k->host[slot], &k->disk[slot], &k->external[slot]};
    k->device[slot] += more;
    c->longest = KVR_MAX(c->longest, depth);
    for (size_t i = 0; i < KVR_ARRAY_LEN(lower) && k->has_tiers; i++) {
        uint32_t less = KVR_MIN(more, *lower[i]);
        *lower[i] -= less;
        more -= less;
    }
}

/* Spreads overlaps and active blocks over slots; ranks that are not trusted count as holding nothing. */
void kvr__spread(struct kvr_router *r, struct kvr_router_ctx *c, const struct prompt *p, uint64_t now)
{
    struct rank_columns *k = &c->by_slot;
    size_t bytes = kvr_load_slots(r->load) * sizeof *k->device;
    c->model = (struct kvr_delay_model){r->fleet, r->generation, p->expected_output};
    c->longest = 0;
    k->has_tiers = p->reaches_n > 0;
    read_loads(r, c, now);
    memset(k->device, 0, bytes);
    if (k->has_tiers) memset(k->host, 0, bytes), memset(k->disk, 0, bytes), memset(k->external, 0, bytes);
    for (size_t i = 0; i < p->overlaps_n; i++) {
        uint32_t d = p->overlaps[i].depth;
        note_reach(r, c, p->overlaps[i].worker, (const uint32_t[KVR_TIER_COUNT]){d, d, d, d});
    }
    for (size_t i = 0; i < p->reaches_n; i++) note_reach(r, c, p->reaches[i].worker, p->reaches[i].depth);
    for (size_t i = 0; i < p->predicted_n; i++) {
        long slot = kvr_load_slot_of(r->load, p->predicted[i].worker);
        if (slot >= 0) raise_device(c, (size_t)slot, p->predicted[i].depth);
    }
    kvr_load_project(r->load, p->seqs, kvr__booked_seqs(p, &r->config), k->depths);
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

/* Workers change rarely. */
static void copy_workers(const struct kvr_router *r, struct kvr_router_ctx *c)
{
    if (c->ranks_changed == r->ranks_changed) return;
    for (size_t i = 0; i < r->slots_n; i++) c->by_slot.workers[i] = r->infos[i].worker;
    c->ranks_changed = r->ranks_changed;
}

void kvr__expect(const struct kvr_router *r, struct kvr_router_ctx *c, const struct prompt *p, size_t from, size_t to)
{
    struct rank_columns *k = &c->by_slot;
    size_t n = to - from, booked = kvr__booked_seqs(p, &r->config);
    bool delay = p->cost.kind == KVR_COST_DELAY;
    copy_workers(r, c);
    k->has_leans = false;
    memcpy(k->turns + from, r->turns + from, n * sizeof *k->turns);
    memcpy(k->pressures + from, r->pressures + from, n * sizeof *k->pressures);
    if (!r->config.cost.track_prefill_tokens) memset(k->prefill_tokens + from, 0, n * sizeof *k->prefill_tokens);
    if (r->config.track_active_blocks)
        for (size_t i = from; i < to; i++) k->blocks[i] += booked - k->depths[i] + p->private_blocks;
    else memset(k->blocks + from, 0, n * sizeof *k->blocks);
    for (size_t i = from; i < to && r->any_silent; i++)
        if (r->infos[i].stores_nothing) k->depths[i] = 0;
    for (size_t i = from; i < to && delay; i++) k->factors[i] = kvr__factor(r, r->owners[i]);
    c->of = (struct kvr__columns){.device = k->device,
                                  .pending = k->depths,
                                  .requests = k->requests,
                                  .prefills = k->prefills,
                                  .prefill_tokens = k->prefill_tokens,
                                  .decode_blocks = k->blocks,
                                  .turns = k->turns,
                                  .pressure = k->pressures,
                                  .factor = delay ? k->factors : NULL};
}

void kvr__candidate(const struct kvr_router_ctx *c, size_t slot, struct kvr_candidate *out)
{
    const struct rank_columns *k = &c->by_slot;
    const struct kvr__columns *of = &c->of;
    *out = (struct kvr_candidate){.worker = k->workers[slot],
                                  .device_blocks = k->device[slot],
                                  .host_blocks = k->has_tiers ? k->host[slot] : 0,
                                  .disk_blocks = k->has_tiers ? k->disk[slot] : 0,
                                  .external_blocks = k->has_tiers ? k->external[slot] : 0,
                                  .shared_blocks = of->shared ? of->shared[slot] : 0,
                                  .pending_blocks = k->depths[slot],
                                  .copy_blocks = of->copies ? of->copies[slot] : 0,
                                  .taint_weight = k->has_leans ? k->leans[slot] : 0,
                                  .active_prefill_tokens = k->prefill_tokens[slot],
                                  .decode_blocks = k->blocks[slot],
                                  .active_requests = k->requests[slot],
                                  .active_prefills = k->prefills[slot],
                                  .model = &c->model,
                                  .pressure = k->pressures[slot],
                                  .factor = of->factor ? of->factor[slot] : 1,
                                  .turn = k->turns[slot]};
}

static double effective_blocks(const struct kvr__columns *of, size_t slot)
{
    return of->device[slot] + (of->worth ? of->worth[slot] : 0);
}

void kvr__whole(const struct kvr_router_ctx *c, size_t at, struct kvr_candidate *out, struct kvr_cost *cost)
{
    size_t slot = c->slots[at];
    double effective = effective_blocks(&c->of, slot);
    kvr__candidate(c, slot, out);
    *cost = (struct kvr_cost){c->by_slot.costs[slot], effective, c->costs[at].weight,
                              kvr__cached_tokens(effective, c->router->config.block_size)};
}

/* All of them, for who looks at all. */
static void write_down(struct kvr_router_ctx *c)
{
    for (size_t i = 0; i < c->candidates_n && !c->filled; i++) kvr__whole(c, i, &c->candidates[i], &c->costs[i]);
    c->filled = true;
}

size_t kvr_router_candidates(const struct kvr_router_ctx *c, const struct kvr_candidate **candidates, const struct kvr_cost **costs)
{
    write_down((struct kvr_router_ctx *)(uintptr_t)c); /* they are what the decision left, whenever they are asked for */
    *candidates = c->candidates;
    *costs = c->costs;
    return c->candidates_n;
}

/* ---- the choice -------------------------------------------------------------------------------------- */

static size_t pick_least_loaded(const struct kvr_router_ctx *c, size_t n, struct kvr_rng *rng)
{
    const uint32_t *requests = c->by_slot.requests;
    size_t at = 0;
    uint32_t ties = 1, least = requests[c->slots[0]];
    for (size_t i = 1; i < n; i++) {
        uint32_t here = requests[c->slots[i]];
        if (here < least) at = i, ties = 1, least = here;
        else if (here == least && kvr_rng_below(rng, ++ties) == 0) at = i;
    }
    return at;
}

static size_t pick_by_cost(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_cost_config *cost, size_t n)
{
    const double *costs = c->by_slot.costs;
    if (r->config.select) {
        write_down(c);
        return r->config.select(r->config.select_ctx, c->candidates, c->costs, n);
    }
    if (cost->kind != KVR_COST_DELAY || cost->temperature > 0) {
        for (size_t i = 0; i < n; i++) c->costs[i].cost = costs[c->slots[i]];
        return kvr_pick(c->costs, n, cost->temperature, &r->rng);
    }
    bool by_load = cost->decode_role && cost->overlap_credit <= 0;
    return (by_load ? kvr__pick_calmest : kvr__pick_in_turn)(&c->of, costs, c->slots, n, KVR_TURN_TOLERANCE);
}

static size_t pick_by_mode(struct kvr_router *r, struct kvr_router_ctx *c, enum kvr_router_mode mode, const struct kvr_cost_config *cost,
                           size_t n, struct kvr_router_result *res)
{
    struct kvr_rng rng = {r->rng};
    size_t at = n;
    switch (mode) {
    case KVR_MODE_ROUND_ROBIN: return (size_t)(r->turn++ % n);
    case KVR_MODE_RANDOM: at = kvr_rng_below(&rng, (uint32_t)n); break;
    case KVR_MODE_LEAST_LOADED: at = pick_least_loaded(c, n, &rng); break;
    case KVR_MODE_KV:
    case KVR_MODE_DIRECT: res->scored = true; return pick_by_cost(r, c, cost, n);
    }
    r->rng = rng.state;
    return at;
}

uint64_t kvr__expected(const struct kvr_router *r, uint64_t pending_blocks, uint64_t cached_tokens)
{
    if (r->config.cost.kind != KVR_COST_DELAY) return cached_tokens;
    return KVR_MAX(cached_tokens, pending_blocks * r->config.block_size);
}

uint64_t kvr__uncached(const struct kvr_cost_config *cost, uint64_t isl, uint64_t cached)
{
    return cost->track_prefill_tokens && isl > cached ? isl - cached : 0;
}

/* What the rank's view says, whether it counted or not. */
static uint32_t view_of(const struct kvr_router *r, const struct kvr_router_ctx *c, const struct prompt *p, size_t slot)
{
    struct kvr_worker w = c->by_slot.workers[slot];
    if (!r->infos[slot].untrusted) return c->by_slot.device[slot];
    for (size_t i = 0; i < p->overlaps_n; i++)
        if (kvr_worker_cmp(p->overlaps[i].worker, w) == 0) return p->overlaps[i].depth;
    for (size_t i = 0; i < p->reaches_n; i++)
        if (kvr_worker_cmp(p->reaches[i].worker, w) == 0) return p->reaches[i].depth[KVR_TIER_DEVICE];
    return 0;
}

static void fill_result(const struct kvr_router *r, const struct kvr_router_ctx *c, const struct prompt *p, size_t at, size_t n,
                        struct kvr_router_result *res)
{
    struct kvr_candidate k;
    struct kvr_cost cost;
    kvr__whole(c, at, &k, &cost);
    res->worker = k.worker;
    res->place = at;
    res->effective_blocks = cost.effective_blocks;
    res->overlap_blocks = (uint32_t)lround(cost.effective_blocks);
    res->cost = cost.cost;
    res->cached_tokens = cost.cached_tokens;
    res->pending_blocks = (uint32_t)k.pending_blocks;
    res->prefill_tokens = kvr__uncached(&p->cost, p->isl, kvr__expected(r, res->pending_blocks, cost.cached_tokens));
    res->required_blocks = (p->isl + r->config.block_size - 1) / r->config.block_size;
    res->ahead_tokens = k.active_prefill_tokens;
    res->ahead_decoding = k.active_requests - k.active_prefills;
    res->active_blocks = k.decode_blocks;
    res->view_blocks = view_of(r, c, p, c->slots[at]);
    res->trusted = !r->infos[c->slots[at]].untrusted;
    res->candidates = n;
    res->held_blocks = (uint32_t)(k.device_blocks + k.host_blocks + k.disk_blocks + k.external_blocks);
    res->held_tokens = (uint64_t)res->held_blocks * r->config.block_size;
    res->tier_blocks[KVR_TIER_DEVICE] = (uint32_t)k.device_blocks;
    res->tier_blocks[KVR_TIER_HOST_PINNED] = (uint32_t)k.host_blocks;
    res->tier_blocks[KVR_TIER_DISK] = (uint32_t)k.disk_blocks;
    res->tier_blocks[KVR_TIER_EXTERNAL] = (uint32_t)k.external_blocks;
    res->longest_blocks = c->longest;
    res->copy_blocks = k.copy_blocks;
}

/* Of the candidates in c->slots. */
struct sums {
    size_t from, to; /* their slots are among these */
    uint64_t requests, prefills;
    uint32_t most; /* blocks that one of them holds */
};

/* All ranks are those of all slots: one that is not used has nothing. */
static struct sums sums_of(const struct kvr_router *r, const struct kvr_router_ctx *c, size_t n)
{
    const struct rank_columns *k = &c->by_slot;
    struct sums s = {.from = SIZE_MAX};
    bool all = n == r->order_n;
    for (size_t i = 0; i < (all ? r->slots_n : n); i++) {
        size_t slot = all ? i : c->slots[i];
        uint32_t held = k->device[slot];
        if (k->has_tiers) held += k->host[slot] + k->disk[slot] + k->external[slot];
        s.from = KVR_MIN(s.from, slot);
        s.to = KVR_MAX(s.to, slot + 1);
        s.requests += k->requests[slot];
        s.prefills += k->prefills[slot];
        s.most = KVR_MAX(s.most, held);
    }
    return s;
}

/* What few requests ask for. After kvr__expect. */
static void add_wishes(const struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, size_t n)
{
    struct rank_columns *k = &c->by_slot;
    struct lean leans[KVR_TAINTS_MAX];
    size_t leans_n = rq->preferred_n ? leans_of(r, rq, leans) : 0;
    k->has_leans = leans_n > 0;
    for (size_t i = 0; i < n && leans_n; i++) k->leans[c->slots[i]] = lean_of(&r->workers[r->owners[c->slots[i]]].taints, leans, leans_n);
    for (size_t i = 0; i < n && rq->shared_n; i++) k->shared[c->slots[i]] = shared_past(rq, k->device[c->slots[i]]);
    c->of.shared = rq->shared_n ? k->shared : NULL;
}

/* What there is in lower tiers. Returns: the most effective blocks of a candidate. */
static double add_tiers(struct kvr_router_ctx *c, const struct kvr_cost_config *cost, const struct sums *s, size_t n)
{
    struct kvr_candidate k;
    double best = 0;
    if (!c->by_slot.has_tiers) return s->most;
    for (size_t i = 0; i < n; i++) {
        kvr__candidate(c, c->slots[i], &k);
        c->by_slot.worth[c->slots[i]] = kvr__lower_worth(cost, &k);
    }
    c->of.worth = c->by_slot.worth;
    for (size_t i = 0; i < n; i++) best = KVR_MAX(best, effective_blocks(&c->of, c->slots[i]));
    return best;
}

/* How much those who wait for a stretch say of lasting demand: nothing when they have come at once (a burst), all when they have kept
 * coming for as long as it takes to compute it. What has lasted so long will be there when a copy is. */
static double lasts(const struct kvr_router_ctx *c, const struct kvr_load_stretch *s, uint32_t block_size, uint64_t now)
{
    double computing_ms = kvr_ttft_predict(&c->model.ttft, (double)s->end * block_size, 0, 0);
    return s->waiting && now > s->since_ns ? KVR_MIN((double)(now - s->since_ns) / 1e6 / computing_ms, 1.0) : 0;
}

static double has_blocks(const struct rank_columns *k, size_t slot)
{
    return KVR_MAX(k->device[slot], k->depths[slot]);
}

/* A prefix that is used by more than its holders' fair share of what runs should have more holders, and computing it once more is no
 * waste. For each stretch of the prompt that others share: so much of it as is wanted goes to the copies of those that lack it. */
static void want_copies(const struct kvr_router *r, struct kvr_router_ctx *c, const struct prompt *p, const struct sums *sums, size_t n,
                        uint64_t now)
{
    enum { STRETCHES = 32 };
    struct kvr_load_stretch s[STRETCHES];
    const struct rank_columns *k = &c->by_slot;
    size_t m = kvr_load_stretches(r->load, p->seqs, kvr__booked_seqs(p, &r->config), s, STRETCHES);
    double generating = (double)(sums->requests - sums->prefills), waiting = (double)sums->prefills, from = 0;
    if (m == 0) return;
    memset(k->copies + sums->from, 0, (sums->to - sums->from) * sizeof *k->copies);
    c->of.copies = k->copies;
    for (size_t e = 0; e < m; from = s[e++].end) {
        double share = lasts(c, &s[e], r->config.block_size, now), users = s[e].generating + share * s[e].waiting;
        double end = s[e].end, holders = 0, fair = (generating + share * waiting) / (double)n + 1;
        if (users <= 0) continue;
        for (size_t i = 0; i < n; i++) holders += has_blocks(k, c->slots[i]) >= end;
        double wanted = KVR_MIN(users / fair / KVR_MAX(holders, 1.0), 1.0);
        for (size_t i = sums->from; i < sums->to; i++) {
            double has = has_blocks(k, i);
            k->copies[i] += has < end ? wanted * (end - KVR_MAX(has, from)) : 0;
        }
    }
}

/* What the candidates in c->slots would cost. */
static void cost_all(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, const struct prompt *p, size_t n,
                     uint64_t now, struct kvr_router_result *res)
{
    struct sums s = sums_of(r, c, n);
    const struct rank_columns *k = &c->by_slot;
    kvr__expect(r, c, p, s.from, s.to);
    add_wishes(r, c, rq, n);
    res->most_blocks = s.most;
    res->best_blocks = add_tiers(c, &p->cost, &s, n);
    c->cost = p->cost;
    c->isl = KVR_MAX(p->isl, (uint64_t)1);
    c->crowd = (struct kvr__crowd){(double)s.requests / (double)n, 0};
    if (p->cost.kind == KVR_COST_DELAY) {
        want_copies(r, c, p, &s, n, now);
    } else if (kvr__credit_decays(&p->cost)) {
        c->crowd.least_prefill = UINT64_MAX;
        for (size_t i = 0; i < n; i++) c->crowd.least_prefill = KVR_MIN(c->crowd.least_prefill, k->prefill_tokens[c->slots[i]]);
    }
    kvr__costs(&p->cost, &c->model, r->config.block_size, c->isl, &c->crowd, &c->of, s.from, s.to, k->costs);
    if (k->has_leans) kvr__costs_lean(c->slots, n, k->leans, k->costs);
    c->candidates_n = n;
    c->filled = false;
}

int kvr__schedule(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, const struct prompt *p,
                  struct kvr_router_result *res)
{
    size_t n;
    uint64_t now = p->ready_ns;
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
    cost_all(r, c, rq, p, n, now, res);
    enum kvr_router_mode mode = rq->mode ? *rq->mode : r->config.mode;
    size_t at = res->preferred || (res->pinned && n == 1) ? 0 : pick_by_mode(r, c, mode, &p->cost, n, res);
    if (at >= n) return -KVR_ENOENDPOINTS;
    fill_result(r, c, p, at, n, res);
    if (!rq->book) return 0;
    r->turns[c->slots[at]] = ++r->decisions;
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
    read_loads(r, c, now);
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
        double factor = slot < 0 ? 1 : kvr__factor(r, r->owners[slot]);
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
