/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The facade. Stages of one decision:
 *
 *   prepare   caller's thread, no lock: hash tokens, match the index, chain sequence hashes  (struct prompt)
 *   schedule  under the lock: eligible ranks -> candidates -> costs -> pick -> book
 *
 * Per-slot state here (struct rank_info) runs parallel to the slots of kvr_load. The lock guards load, rank
 * infos, generator and mode; the index has its own rules.
 */
#include "base/base.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <kvroute/router.h>

struct rank_info {
    struct kvr_worker worker; /* tells whether the slot was given to somebody else meanwhile */
    bool known, blocked, untrusted;
    uint64_t busy_tokens;
};

struct kvr_router {
    struct kvr_mem mem;
    struct kvr_clock clock;
    struct kvr_router_config config;
    pthread_mutex_t lock;
    struct kvr_load *load;
    struct rank_info *infos;
    size_t infos_cap;
    uint64_t rng;
    uint64_t turn; /* round robin */
};

struct kvr_router_ctx {
    struct kvr_router *router;
    struct kvr_mem mem;
    struct kvr_index_reader *reader;
    uint64_t *locals, *seqs;
    size_t locals_cap, seqs_cap;
    struct kvr_overlap *overlaps;
    size_t overlaps_cap;
    struct kvr_candidate *candidates;
    struct kvr_cost *costs;
    uint32_t *depths, *slots, *device;
    size_t ranks_cap;
};

/* What is known about a prompt before the lock is taken. */
struct prompt {
    const uint64_t *locals, *seqs;
    size_t locals_n, seqs_n;
    uint64_t isl, private_blocks;
    const struct kvr_overlap *overlaps;
    size_t overlaps_n;
    struct kvr_router_times times;
    uint64_t start_ns;
};

/* ---- life -------------------------------------------------------------------------------------------- */

void kvr_router_config_init(struct kvr_router_config *c)
{
    memset(c, 0, sizeof *c);
    kvr_cost_config_init(&c->cost);
    c->block_size = 16;
    c->track_active_blocks = true;
    c->assume_kv_reuse = true;
}

static int check_config(const struct kvr_router_config *c, const char **field)
{
    *field = "block_size";
    if (c->block_size == 0) return -KVR_EINVAL;
    if (kvr_cost_config_check(&c->cost, field)) return -KVR_EINVAL;
    *field = "index";
    if (!c->index && ((c->mode == KVR_MODE_KV && c->cost.overlap_credit > 0) || c->record_decisions)) return -KVR_EINVAL;
    *field = "mode";
    if ((unsigned)c->mode > KVR_MODE_DIRECT) return -KVR_EINVAL;
    return 0;
}

int kvr_router_create(const struct kvr_router_config *config, struct kvr_router **out, const char **field)
{
    const char *ignored;
    if (check_config(config, field ? field : &ignored)) return -KVR_EINVAL;
    struct kvr_mem mem;
    kvr_mem_init(&mem, config->alloc, 0);
    struct kvr_router *r = kvr_mem_zget(&mem, sizeof *r);
    if (!r) return -KVR_ENOMEM;
    r->mem = mem;
    r->clock = config->clock ? *config->clock : *kvr_clock_monotonic();
    r->config = *config;
    r->rng = config->seed;
    pthread_mutex_init(&r->lock, NULL);
    if (kvr_load_create(config->alloc, &r->load)) {
        kvr_router_destroy(r);
        return -KVR_ENOMEM;
    }
    *out = r;
    return 0;
}

void kvr_router_destroy(struct kvr_router *r)
{
    if (!r) return;
    kvr_load_destroy(r->load);
    kvr_mem_put(&r->mem, r->infos, r->infos_cap * sizeof *r->infos);
    pthread_mutex_destroy(&r->lock);
    struct kvr_mem mem = r->mem;
    kvr_mem_put(&mem, r, sizeof *r);
}

int kvr_router_ctx_create(struct kvr_router *r, struct kvr_router_ctx **out)
{
    struct kvr_mem mem;
    kvr_mem_init(&mem, r->config.alloc, 0);
    struct kvr_router_ctx *c = kvr_mem_zget(&mem, sizeof *c);
    if (!c) return -KVR_ENOMEM;
    c->mem = mem;
    c->router = r;
    if (r->config.index && kvr_index_reader_create(r->config.index, &c->reader)) {
        kvr_mem_put(&mem, c, sizeof *c);
        return -KVR_ENOMEM;
    }
    *out = c;
    return 0;
}

void kvr_router_ctx_destroy(struct kvr_router_ctx *c)
{
    if (!c) return;
    kvr_index_reader_destroy(c->reader);
    kvr_mem_put(&c->mem, c->locals, c->locals_cap * sizeof *c->locals);
    kvr_mem_put(&c->mem, c->seqs, c->seqs_cap * sizeof *c->seqs);
    kvr_mem_put(&c->mem, c->overlaps, c->overlaps_cap * sizeof *c->overlaps);
    kvr_mem_put(&c->mem, c->candidates, c->ranks_cap * sizeof *c->candidates);
    kvr_mem_put(&c->mem, c->costs, c->ranks_cap * sizeof *c->costs);
    kvr_mem_put(&c->mem, c->depths, 3 * c->ranks_cap * sizeof *c->depths);
    struct kvr_mem mem = c->mem;
    kvr_mem_put(&mem, c, sizeof *c);
}

uint32_t kvr_router_block_size(const struct kvr_router *r)
{
    return r->config.block_size;
}

void kvr_router_set_mode(struct kvr_router *r, enum kvr_router_mode mode)
{
    pthread_mutex_lock(&r->lock);
    r->config.mode = mode;
    pthread_mutex_unlock(&r->lock);
}

enum kvr_router_mode kvr_router_mode(const struct kvr_router *r)
{
    struct kvr_router *w = (struct kvr_router *)(uintptr_t)r;
    pthread_mutex_lock(&w->lock);
    enum kvr_router_mode mode = r->config.mode;
    pthread_mutex_unlock(&w->lock);
    return mode;
}

/* ---- workers ----------------------------------------------------------------------------------------- */

static struct rank_info *info_of(struct kvr_router *r, struct kvr_worker w)
{
    long slot = kvr_load_slot_of(r->load, w);
    return slot < 0 ? NULL : &r->infos[slot];
}

/* Slots that changed hands start afresh. */
static int sync_infos(struct kvr_router *r)
{
    size_t n = kvr_load_slots(r->load), old_cap = r->infos_cap;
    if (kvr_mem_grow(&r->mem, (void **)&r->infos, &r->infos_cap, n, sizeof *r->infos)) return -KVR_ENOMEM;
    if (r->infos_cap > old_cap) memset(r->infos + old_cap, 0, (r->infos_cap - old_cap) * sizeof *r->infos);
    for (size_t i = 0; i < n; i++) {
        struct kvr_rank_load l;
        bool used = kvr_load_get(r->load, i, &l) == 0;
        if (!used) r->infos[i].known = false;
        else if (!r->infos[i].known || kvr_worker_cmp(r->infos[i].worker, l.worker) != 0)
            r->infos[i] = (struct rank_info){.worker = l.worker, .known = true};
    }
    return 0;
}

int kvr_router_set_worker(struct kvr_router *r, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size)
{
    pthread_mutex_lock(&r->lock);
    int rc = kvr_load_set_worker(r->load, worker_id, dp_start, dp_size);
    int rc2 = sync_infos(r);
    if (rc2) kvr_load_remove_worker(r->load, worker_id); /* a rank without its info must not be chosen */
    pthread_mutex_unlock(&r->lock);
    return rc ? rc : rc2;
}

void kvr_router_remove_worker(struct kvr_router *r, uint64_t worker_id)
{
    pthread_mutex_lock(&r->lock);
    kvr_load_remove_worker(r->load, worker_id);
    sync_infos(r); /* removing never grows the table */
    pthread_mutex_unlock(&r->lock);
    if (r->config.index) kvr_index_remove_worker(r->config.index, worker_id);
}

static void for_worker(struct kvr_router *r, uint64_t worker_id, void (*fn)(struct rank_info *, uint64_t), uint64_t arg)
{
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < kvr_load_slots(r->load); i++)
        if (r->infos[i].known && r->infos[i].worker.worker_id == worker_id) fn(&r->infos[i], arg);
    pthread_mutex_unlock(&r->lock);
}

static void set_blocked(struct rank_info *i, uint64_t blocked)
{
    i->blocked = blocked != 0;
}

static void set_busy(struct rank_info *i, uint64_t tokens)
{
    i->busy_tokens = tokens;
}

void kvr_router_set_schedulable(struct kvr_router *r, uint64_t worker_id, bool schedulable)
{
    for_worker(r, worker_id, set_blocked, !schedulable);
}

void kvr_router_set_busy_tokens(struct kvr_router *r, uint64_t worker_id, uint64_t tokens)
{
    for_worker(r, worker_id, set_busy, tokens);
}

void kvr_router_set_trusted(struct kvr_router *r, struct kvr_worker w, bool trusted)
{
    pthread_mutex_lock(&r->lock);
    struct rank_info *i = info_of(r, w);
    if (i) i->untrusted = !trusted;
    pthread_mutex_unlock(&r->lock);
}

/* ---- prepare ----------------------------------------------------------------------------------------- */

static int hash_prompt(struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct prompt *p)
{
    p->isl = rq->isl ? rq->isl : rq->tokens_n;
    if (rq->locals) {
        if (rq->seqs && rq->seqs_n != rq->locals_n) return -KVR_ELENGTH;
        p->locals = rq->locals;
        p->locals_n = rq->locals_n;
        return 0;
    }
    uint32_t bs = c->router->config.block_size;
    size_t n = kvr_hash_block_count(rq->tokens_n, bs, rq->eagle);
    if (kvr_mem_grow(&c->mem, (void **)&c->locals, &c->locals_cap, n, sizeof *c->locals)) return -KVR_ENOMEM;
    uint64_t seed = kvr_hash_seed(rq->lora, rq->lora_len, rq->salt, rq->salt_len);
    long rc = kvr_hash_locals(rq->tokens, rq->tokens_n, bs, rq->eagle, seed, rq->mm, rq->mm_n, c->locals);
    if (rc < 0) return (int)rc;
    p->locals = c->locals;
    p->locals_n = n;
    return 0;
}

static int match_prompt(struct kvr_router_ctx *c, struct prompt *p)
{
    if (!c->reader || p->locals_n == 0) return 0;
    for (;;) {
        size_t ranks = kvr_index_ranks(c->router->config.index);
        if (kvr_mem_grow(&c->mem, (void **)&c->overlaps, &c->overlaps_cap, ranks + 1, sizeof *c->overlaps)) return -KVR_ENOMEM;
        long n = kvr_index_match(c->reader, p->locals, p->locals_n, c->overlaps, c->overlaps_cap);
        if (n == -KVR_ELIMIT) continue; /* ranks were added in between */
        p->overlaps = c->overlaps;
        p->overlaps_n = (size_t)n;
        return 0;
    }
}

static int chain_prompt(struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct prompt *p)
{
    const struct kvr_router_config *cfg = &c->router->config;
    bool reuse = rq->assume_kv_reuse ? rq->assume_kv_reuse > 0 : cfg->assume_kv_reuse;
    size_t n = rq->locals || rq->tokens ? p->locals_n : 0;
    if (cfg->track_active_blocks && !reuse) p->private_blocks = n;
    bool needed = (cfg->track_active_blocks && reuse) || cfg->record_decisions;
    if (!needed) return 0;
    if (rq->seqs) {
        p->seqs = rq->seqs;
    } else {
        if (kvr_mem_grow(&c->mem, (void **)&c->seqs, &c->seqs_cap, n, sizeof *c->seqs)) return -KVR_ENOMEM;
        kvr_hash_sequence(p->locals, n, c->seqs);
        p->seqs = c->seqs;
    }
    p->seqs_n = n;
    return 0;
}

static int prepare(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct prompt *p)
{
    memset(p, 0, sizeof *p);
    uint64_t t0 = p->start_ns = kvr_now_ns(&r->clock);
    int rc = hash_prompt(c, rq, p);
    if (rc) return rc;
    uint64_t t1 = kvr_now_ns(&r->clock);
    if (r->config.cost.overlap_credit > 0 || r->config.record_decisions) rc = match_prompt(c, p);
    if (rc) return rc;
    uint64_t t2 = kvr_now_ns(&r->clock);
    rc = chain_prompt(c, rq, p);
    uint64_t t3 = kvr_now_ns(&r->clock);
    p->times.block_hashing = t1 - t0;
    p->times.find_matches = t2 - t1;
    p->times.seq_hashing = t3 - t2;
    return rc;
}

/* The chain that the load book knows: none when blocks are private. */
static size_t booked_seqs(const struct prompt *p, const struct kvr_router_config *cfg)
{
    return cfg->track_active_blocks && p->private_blocks == 0 ? p->seqs_n : 0;
}

/* ---- schedule ---------------------------------------------------------------------------------------- */

static int reserve_ranks(struct kvr_router_ctx *c, size_t n)
{
    if (n <= c->ranks_cap) return 0;
    size_t cap = n + 16;
    struct kvr_candidate *cand = kvr_mem_get(&c->mem, cap * sizeof *cand);
    struct kvr_cost *costs = kvr_mem_get(&c->mem, cap * sizeof *costs);
    uint32_t *words = kvr_mem_get(&c->mem, 3 * cap * sizeof *words);
    if (!cand || !costs || !words) {
        kvr_mem_put(&c->mem, cand, cap * sizeof *cand);
        kvr_mem_put(&c->mem, costs, cap * sizeof *costs);
        kvr_mem_put(&c->mem, words, 3 * cap * sizeof *words);
        return -KVR_ENOMEM;
    }
    kvr_mem_put(&c->mem, c->candidates, c->ranks_cap * sizeof *cand);
    kvr_mem_put(&c->mem, c->costs, c->ranks_cap * sizeof *costs);
    kvr_mem_put(&c->mem, c->depths, 3 * c->ranks_cap * sizeof *words);
    c->candidates = cand;
    c->costs = costs;
    c->depths = words;
    c->slots = words + cap;
    c->device = words + 2 * cap;
    c->ranks_cap = cap;
    return 0;
}

static bool has_id(const uint64_t *ids, size_t n, uint64_t id)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static bool is_allowed(const struct kvr_router_request *rq, uint64_t id)
{
    if (rq->allowed && !has_id(rq->allowed, rq->allowed_n, id)) return false;
    return !has_id(rq->excluded, rq->excluded_n, id);
}

static bool is_eligible(const struct kvr_router_request *rq, const struct rank_info *i)
{
    return i->known && !i->blocked && is_allowed(rq, i->worker.worker_id);
}

/* Spreads the overlaps over slots; ranks that are not trusted count as holding nothing. */
static void spread_overlaps(struct kvr_router *r, struct kvr_router_ctx *c, const struct prompt *p, size_t slots)
{
    memset(c->device, 0, slots * sizeof *c->device);
    for (size_t i = 0; i < p->overlaps_n; i++) {
        long slot = kvr_load_slot_of(r->load, p->overlaps[i].worker);
        if (slot >= 0 && !r->infos[slot].untrusted) c->device[slot] = p->overlaps[i].depth;
    }
}

static void fill_candidate(const struct kvr_router *r, const struct kvr_router_ctx *c, const struct prompt *p, size_t slot,
                           struct kvr_candidate *out)
{
    struct kvr_rank_load l = {0};
    kvr_load_get(r->load, slot, &l);
    size_t booked = booked_seqs(p, &r->config);
    *out = (struct kvr_candidate){.worker = l.worker,
                                  .device_blocks = c->device[slot],
                                  .active_prefill_tokens = r->config.cost.track_prefill_tokens ? l.active_prefill_tokens : 0,
                                  .active_requests = l.active_requests};
    if (r->config.track_active_blocks) out->decode_blocks = l.active_decode_blocks + (booked - c->depths[slot]) + p->private_blocks;
}

static int pinned_slot(const struct kvr_router *r, const struct kvr_router_request *rq, size_t *out)
{
    if (rq->allowed && !has_id(rq->allowed, rq->allowed_n, rq->pin.worker_id)) return -KVR_ENOTALLOWED;
    size_t ranks = 0, found = SIZE_MAX;
    for (size_t i = 0; i < kvr_load_slots(r->load); i++) {
        if (!r->infos[i].known || r->infos[i].worker.worker_id != rq->pin.worker_id) continue;
        ranks++;
        if (rq->pin_any_rank || r->infos[i].worker.dp_rank == rq->pin.dp_rank) found = i;
    }
    if (ranks == 0) return -KVR_ENOTFOUND;
    if (found == SIZE_MAX) return -KVR_ERANK;
    if (r->infos[found].blocked || has_id(rq->excluded, rq->excluded_n, rq->pin.worker_id)) return -KVR_ENOENDPOINTS;
    *out = found;
    return 0;
}

/* Collects the slots that may serve the request. */
static int eligible_slots(const struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, size_t *n_out,
                          struct kvr_router_result *res)
{
    size_t n = 0, slot;
    if (rq->pinned && !rq->pin_any_rank) {
        int rc = pinned_slot(r, rq, &slot);
        if (rc) return rc;
        c->slots[n++] = (uint32_t)slot;
        res->pinned = true;
    } else if (rq->preferred && pinned_slot(r, rq, &slot) == 0) {
        c->slots[n++] = (uint32_t)slot;
        res->preferred = true;
    } else {
        if (rq->pinned) {
            int rc = pinned_slot(r, rq, &slot);
            if (rc) return rc;
            res->pinned = true;
        }
        for (size_t i = 0; i < kvr_load_slots(r->load); i++)
            if (is_eligible(rq, &r->infos[i]) && (!rq->pinned || r->infos[i].worker.worker_id == rq->pin.worker_id))
                c->slots[n++] = (uint32_t)i;
    }
    *n_out = n;
    return n ? 0 : -KVR_ENOENDPOINTS;
}

static bool all_busy(const struct kvr_router *r, const struct kvr_router_ctx *c, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct kvr_rank_load l = {0};
        kvr_load_get(r->load, c->slots[i], &l);
        uint64_t limit = r->infos[c->slots[i]].busy_tokens;
        if (limit == 0 || l.active_prefill_tokens <= limit) return false;
    }
    return true;
}

static size_t pick_by_mode(struct kvr_router *r, const struct kvr_router_ctx *c, const struct kvr_cost_config *cost, size_t n,
                           struct kvr_router_result *res)
{
    struct kvr_rng rng = {r->rng};
    size_t at = 0;
    switch (r->config.mode) {
    case KVR_MODE_ROUND_ROBIN: return (size_t)(r->turn++ % n);
    case KVR_MODE_RANDOM:
        at = kvr_rng_below(&rng, (uint32_t)n);
        r->rng = rng.state;
        return at;
    case KVR_MODE_LEAST_LOADED: {
        uint32_t ties = 1;
        for (size_t i = 1; i < n; i++) {
            if (c->candidates[i].active_requests < c->candidates[at].active_requests) at = i, ties = 1;
            else if (c->candidates[i].active_requests == c->candidates[at].active_requests && kvr_rng_below(&rng, ++ties) == 0) at = i;
        }
        r->rng = rng.state;
        return at;
    }
    case KVR_MODE_KV:
    case KVR_MODE_DIRECT: break;
    }
    res->scored = true;
    if (r->config.select) return r->config.select(r->config.select_ctx, c->candidates, c->costs, n);
    return kvr_pick(c->costs, n, cost->temperature, &r->rng);
}

static int book(struct kvr_router *r, const struct kvr_router_request *rq, const struct prompt *p, struct kvr_worker worker,
                uint64_t prefill_tokens)
{
    struct kvr_load_request lr = {.id = rq->id,
                                  .id_len = rq->id_len,
                                  .worker = worker,
                                  .seqs = p->seqs,
                                  .seqs_n = booked_seqs(p, &r->config),
                                  .private_blocks = p->private_blocks,
                                  .prefill_tokens = prefill_tokens,
                                  .now_ns = p->start_ns};
    return kvr_load_add(r->load, &lr);
}

static uint64_t uncached_tokens(const struct kvr_router *r, uint64_t isl, uint64_t cached)
{
    return r->config.cost.track_prefill_tokens && isl > cached ? isl - cached : 0;
}

static int schedule(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, const struct prompt *p,
                    struct kvr_router_result *res)
{
    size_t slots = kvr_load_slots(r->load), n;
    if (reserve_ranks(c, slots)) return -KVR_ENOMEM;
    if (r->config.mode == KVR_MODE_DIRECT && !rq->pinned) return -KVR_ENOENDPOINTS;
    int rc = eligible_slots(r, c, rq, &n, res);
    if (rc) return rc;
    if (rq->fail_when_busy && all_busy(r, c, n)) return -KVR_EBUSY;
    spread_overlaps(r, c, p, slots);
    kvr_load_project(r->load, p->seqs, booked_seqs(p, &r->config), c->depths);
    for (size_t i = 0; i < n; i++) fill_candidate(r, c, p, c->slots[i], &c->candidates[i]);
    const struct kvr_cost_config *cost = rq->override ? rq->override : &r->config.cost;
    kvr_cost_linear(cost, r->config.block_size, KVR_MAX(p->isl, (uint64_t)1), c->candidates, n, c->costs);
    size_t at = res->preferred || (res->pinned && n == 1) ? 0 : pick_by_mode(r, c, cost, n, res);
    if (at >= n) return -KVR_ENOENDPOINTS;
    res->worker = c->candidates[at].worker;
    res->effective_blocks = c->costs[at].effective_blocks;
    res->overlap_blocks = (uint32_t)lround(c->costs[at].effective_blocks);
    res->cost = c->costs[at].cost;
    res->cached_tokens = c->costs[at].cached_tokens;
    res->prefill_tokens = uncached_tokens(r, p->isl, res->cached_tokens);
    res->required_blocks = (p->isl + r->config.block_size - 1) / r->config.block_size;
    res->trusted = !r->infos[c->slots[at]].untrusted;
    res->candidates = n;
    for (size_t i = 0; i < n; i++) res->best_blocks = KVR_MAX(res->best_blocks, c->costs[i].effective_blocks);
    return rq->book ? book(r, rq, p, res->worker, res->prefill_tokens) : 0;
}

int kvr_router_find_best_match(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq,
                               struct kvr_router_result *out)
{
    struct kvr_router_result res = {0};
    struct prompt p;
    if (rq->book && rq->id_len == 0) return -KVR_ENOID;
    int rc = prepare(r, c, rq, &p);
    if (rc) return rc;
    uint64_t t = kvr_now_ns(&r->clock);
    pthread_mutex_lock(&r->lock);
    rc = schedule(r, c, rq, &p, &res);
    pthread_mutex_unlock(&r->lock);
    if (rc) return rc;
    uint64_t end = kvr_now_ns(&r->clock);
    res.times = p.times;
    res.times.scheduling = end - t;
    res.times.total = end - p.start_ns;
    /* A prediction that does not fit is no reason to refuse the request; the index counts it. */
    if (rq->book && r->config.record_decisions) (void)kvr_index_record(r->config.index, res.worker, p.locals, p.locals_n, p.seqs, p.seqs_n);
    *out = res;
    return 0;
}

/* ---- book-keeping and questions ---------------------------------------------------------------------- */

int kvr_router_add_request(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct kvr_worker worker,
                           uint64_t cached_tokens)
{
    struct prompt p;
    if (rq->id_len == 0) return -KVR_ENOID;
    memset(&p, 0, sizeof p);
    p.start_ns = kvr_now_ns(&r->clock);
    int rc = hash_prompt(c, rq, &p);
    if (rc == 0) rc = chain_prompt(c, rq, &p);
    if (rc) return rc;
    pthread_mutex_lock(&r->lock);
    rc = book(r, rq, &p, worker, uncached_tokens(r, p.isl, cached_tokens));
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int kvr_router_mark_prefill_completed(struct kvr_router *r, const char *id, size_t id_len)
{
    pthread_mutex_lock(&r->lock);
    int rc = kvr_load_prefill_done(r->load, id, id_len);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int kvr_router_add_output_block(struct kvr_router *r, const char *id, size_t id_len)
{
    pthread_mutex_lock(&r->lock);
    int rc = kvr_load_output_block(r->load, id, id_len);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int kvr_router_free(struct kvr_router *r, const char *id, size_t id_len)
{
    pthread_mutex_lock(&r->lock);
    int rc = kvr_load_free(r->load, id, id_len);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

size_t kvr_router_expire_requests(struct kvr_router *r, uint64_t older_than_ns)
{
    uint64_t now = kvr_now_ns(&r->clock);
    pthread_mutex_lock(&r->lock);
    size_t n = now > older_than_ns ? kvr_load_expire(r->load, now - older_than_ns) : 0;
    pthread_mutex_unlock(&r->lock);
    return n;
}

long kvr_router_overlap(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct kvr_overlap *out,
                        size_t cap, size_t *blocks_n)
{
    struct prompt p;
    if (!r->config.index) return -KVR_ENOINDEX;
    memset(&p, 0, sizeof p);
    int rc = hash_prompt(c, rq, &p);
    if (rc == 0) rc = match_prompt(c, &p);
    if (rc) return rc;
    if (p.overlaps_n > cap) return -KVR_ELIMIT;
    if (p.overlaps_n) memcpy(out, p.overlaps, p.overlaps_n * sizeof *out);
    if (blocks_n) *blocks_n = p.locals_n;
    return (long)p.overlaps_n;
}

static int by_worker(const void *a, const void *b)
{
    const struct kvr_rank_load *x = a, *y = b;
    return kvr_worker_cmp(x->worker, y->worker);
}

size_t kvr_router_loads(struct kvr_router *r, struct kvr_rank_load *out, size_t cap)
{
    size_t n = 0;
    struct kvr_rank_load l;
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < kvr_load_slots(r->load); i++) {
        if (kvr_load_get(r->load, i, &l)) continue;
        if (n < cap) out[n] = l;
        n++;
    }
    pthread_mutex_unlock(&r->lock);
    if (n && cap) qsort(out, KVR_MIN(n, cap), sizeof *out, by_worker);
    return n;
}

long kvr_router_potential_loads(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq,
                                struct kvr_potential_load *out, size_t cap)
{
    struct prompt p;
    int rc = prepare(r, c, rq, &p);
    if (rc) return rc;
    size_t n = 0;
    pthread_mutex_lock(&r->lock);
    size_t slots = kvr_load_slots(r->load);
    rc = reserve_ranks(c, slots);
    if (rc == 0) {
        spread_overlaps(r, c, &p, slots);
        kvr_load_project(r->load, p.seqs, booked_seqs(&p, &r->config), c->depths);
    }
    for (size_t i = 0; i < slots && rc == 0; i++) {
        struct kvr_candidate cand;
        struct kvr_cost cost;
        if (!r->infos[i].known) continue;
        fill_candidate(r, c, &p, i, &cand);
        kvr_cost_linear(&r->config.cost, r->config.block_size, KVR_MAX(p.isl, (uint64_t)1), &cand, 1, &cost);
        if (n < cap)
            out[n] = (struct kvr_potential_load){cand.worker, cand.active_prefill_tokens + uncached_tokens(r, p.isl, cost.cached_tokens),
                                                 cand.decode_blocks, cand.active_requests};
        n++;
    }
    pthread_mutex_unlock(&r->lock);
    return rc ? rc : (long)n;
}

int kvr_router_dump(struct kvr_router *r, const struct kvr_worker *only, kvr_index_emit *emit, void *ctx)
{
    return r->config.index ? kvr_index_dump(r->config.index, only, emit, ctx) : -KVR_ENOINDEX;
}

bool kvr_router_validate(struct kvr_router *r, const char **reason)
{
    pthread_mutex_lock(&r->lock);
    bool ok = kvr_load_validate(r->load, reason);
    pthread_mutex_unlock(&r->lock);
    return ok;
}
