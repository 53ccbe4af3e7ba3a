/* SPDX-License-Identifier: Apache-2.0 */
/* Life, configuration, workers, the book's own calls, questions. The map is in internal.h. */
#include <math.h>
#include <string.h>

#include "router/internal.h"

/* ---- life -------------------------------------------------------------------------------------------- */

void kvr_router_config_init(struct kvr_router_config *c)
{
    memset(c, 0, sizeof *c);
    kvr_cost_config_init(&c->cost);
    c->block_size = 16;
    c->track_active_blocks = true;
    c->assume_kv_reuse = true;
    c->busy = (struct kvr_busy_thresholds){-1, -1, -1};
}

static int check_config(const struct kvr_router_config *c, const char **field)
{
    char why[256];
    *field = "block_size";
    if (c->block_size == 0) return -KVR_EINVAL;
    if (kvr_cost_config_check(&c->cost, field)) return -KVR_EINVAL;
    *field = "remote_index"; /* one or the other */
    if (c->remote_index && (c->index || c->predicted || c->record_decisions || c->serve_index)) return -KVR_EINVAL;
    *field = "serve_index"; /* what is served must count for something here */
    if (c->serve_index && (!c->index || c->cost.overlap_credit <= 0)) return -KVR_EINVAL;
    *field = "index";
    if (!c->index && !c->remote_index && ((c->mode == KVR_MODE_KV && c->cost.overlap_credit > 0) || c->record_decisions))
        return -KVR_EINVAL;
    *field = "predicted"; /* a second index beside one that follows events */
    if (c->predicted && (!c->index || c->record_decisions)) return -KVR_EINVAL;
    *field = "fit_ttft"; /* durations of what is not counted mean nothing */
    if ((c->fit_ttft || c->prefill) && !c->cost.track_prefill_tokens) return -KVR_EINVAL;
    *field = "mode";
    if ((unsigned)c->mode > KVR_MODE_DIRECT) return -KVR_EINVAL;
    *field = "busy";
    if (isnan(c->busy.decode_blocks_frac) || c->busy.decode_blocks_frac > 1 || isnan(c->busy.prefill_tokens) ||
        isnan(c->busy.prefill_tokens_frac))
        return -KVR_EINVAL;
    *field = "policy";
    return c->policy && kvr_policy_check(c->policy, why, sizeof why) ? -KVR_EINVAL : 0;
}

static void init_models(struct kvr_router *r)
{
    kvr_ttft_init(&r->fleet);
    kvr_ttft_weigh_tiers(&r->fleet, r->config.cost.host_weight, r->config.cost.disk_weight);
    kvr_generation_init(&r->generation);
}

static int create_parts(struct kvr_router *r)
{
    struct kvr_policy plain;
    const struct kvr_policy *policy = r->config.policy;
    if (!policy) {
        kvr_policy_init(&plain);
        policy = &plain;
    }
    r->may_park = kvr__policy_waits(policy);
    if (kvr_load_create(r->config.alloc, &r->load) || kvr_queue_create(r->config.alloc, policy, kvr_now_ns(&r->clock), &r->queue) ||
        kvr_router_ctx_create(r, &r->dispatch_ctx))
        return -KVR_ENOMEM;
    r->config.policy = NULL; /* the queue has a copy */
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
    init_models(r);
    kvr_lock_init(&r->lock, KVR_LOCK_ROUTER);
    if (create_parts(r)) {
        kvr_router_destroy(r);
        return -KVR_ENOMEM;
    }
    *out = r;
    return 0;
}

void kvr_router_destroy(struct kvr_router *r)
{
    if (!r) return;
    kvr_router_shut_queue(r);
    kvr_router_ctx_destroy(r->dispatch_ctx);
    kvr_queue_destroy(r->queue);
    kvr_load_destroy(r->load);
    kvr_mem_put(&r->mem, r->infos, r->infos_cap * sizeof *r->infos);
    kvr_mem_put(&r->mem, r->owners, r->owners_cap * sizeof *r->owners);
    kvr_mem_put(&r->mem, r->turns, r->turns_cap * sizeof *r->turns);
    kvr_mem_put(&r->mem, r->pressures, r->pressures_cap * sizeof *r->pressures);
    kvr_mem_put(&r->mem, r->lines, r->lines_cap * sizeof *r->lines);
    kvr_mem_put(&r->mem, r->order, r->order_cap * sizeof *r->order);
    kvr_mem_put(&r->mem, r->workers, r->workers_cap * sizeof *r->workers);
    kvr_mem_put(&r->mem, r->models, r->models_cap * sizeof *r->models);
    kvr_mem_put(&r->mem, r->taint_names, r->taints_cap * sizeof *r->taint_names);
    kvr_lock_destroy(&r->lock);
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
    if ((r->config.index && kvr_index_reader_create(r->config.index, &c->reader)) ||
        (r->config.predicted && kvr_index_reader_create(r->config.predicted, &c->predicted_reader))) {
        kvr_router_ctx_destroy(c);
        return -KVR_ENOMEM;
    }
    *out = c;
    return 0;
}

void kvr_router_ctx_destroy(struct kvr_router_ctx *c)
{
    if (!c) return;
    kvr_index_reader_destroy(c->reader);
    kvr_index_reader_destroy(c->predicted_reader);
    kvr_mem_put(&c->mem, c->locals, c->locals_cap * sizeof *c->locals);
    kvr_mem_put(&c->mem, c->seqs, c->seqs_cap * sizeof *c->seqs);
    kvr_mem_put(&c->mem, c->overlaps, c->overlaps_cap * sizeof *c->overlaps);
    kvr_mem_put(&c->mem, c->predicted, c->predicted_cap * sizeof *c->predicted);
    kvr_mem_put(&c->mem, c->reaches, c->reaches_cap * sizeof *c->reaches);
    kvr__free_ranks(c);
    struct kvr_mem mem = c->mem;
    kvr_mem_put(&mem, c, sizeof *c);
}

uint32_t kvr_router_block_size(const struct kvr_router *r)
{
    return r->config.block_size;
}

static struct kvr_router *writable(const struct kvr_router *r)
{
    return (struct kvr_router *)(uintptr_t)r; /* only to lock it */
}

void kvr_router_set_mode(struct kvr_router *r, enum kvr_router_mode mode)
{
    kvr_lock(&r->lock);
    r->config.mode = mode;
    kvr_unlock(&r->lock);
}

enum kvr_router_mode kvr_router_mode(const struct kvr_router *r)
{
    kvr_lock(&writable(r)->lock);
    enum kvr_router_mode mode = r->config.mode;
    kvr_unlock(&writable(r)->lock);
    return mode;
}

void kvr_router_set_busy(struct kvr_router *r, const struct kvr_busy_thresholds *b)
{
    kvr_lock(&r->lock);
    if (b->decode_blocks_frac >= 0) r->config.busy.decode_blocks_frac = b->decode_blocks_frac;
    if (b->prefill_tokens >= 0) r->config.busy.prefill_tokens = b->prefill_tokens;
    if (b->prefill_tokens_frac >= 0) r->config.busy.prefill_tokens_frac = b->prefill_tokens_frac;
    r->lines_are_old = true;
    kvr_unlock(&r->lock);
}

void kvr_router_busy(struct kvr_router *r, struct kvr_busy_thresholds *out)
{
    kvr_lock(&r->lock);
    *out = r->config.busy;
    kvr_unlock(&r->lock);
}

int kvr_router_start_over(struct kvr_router *r, const struct kvr_policy *policy, const struct kvr_busy_thresholds *busy)
{
    int rc = kvr_router_set_policy(r, policy);
    if (rc) return rc;
    kvr_lock(&r->lock);
    r->config.busy = *busy;
    r->lines_are_old = true;
    init_models(r);
    kvr_unlock(&r->lock);
    return 0;
}

/* ---- workers ----------------------------------------------------------------------------------------- */

/* One that may have no ranks, as in the midst of a change: a look at every worker. */
static struct worker_info *worker_seek(struct kvr_router *r, uint64_t id)
{
    for (size_t i = 0; i < r->workers_n; i++)
        if (r->workers[i].used && r->workers[i].id == id) return &r->workers[i];
    return NULL;
}

/* By the order of the ranks: who asks for each worker of a large fleet holds the lock for as long as for one of a small fleet. */
static struct worker_info *worker_find(struct kvr_router *r, uint64_t id)
{
    size_t low = 0, high = r->order_n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (r->infos[r->order[mid]].worker.worker_id < id) low = mid + 1;
        else high = mid;
    }
    bool known = low < r->order_n && r->infos[r->order[low]].worker.worker_id == id;
    return known ? &r->workers[r->owners[r->order[low]]] : NULL;
}

static struct worker_info *worker_make(struct kvr_router *r, uint64_t id)
{
    struct worker_info *w = worker_seek(r, id);
    if (w) return w;
    size_t at = 0;
    while (at < r->workers_n && r->workers[at].used) at++;
    if (kvr_mem_grow(&r->mem, (void **)&r->workers, &r->workers_cap, at + 1, sizeof *r->workers)) return NULL;
    if (kvr_mem_grow(&r->mem, (void **)&r->models, &r->models_cap, at + 1, sizeof *r->models)) return NULL;
    if (at == r->workers_n) r->workers_n++;
    r->workers[at] = (struct worker_info){.id = id, .used = true};
    r->models[at].seen = r->decisions;
    kvr_ttft_factor_init(&r->models[at].factor);
    r->workers_used++;
    return &r->workers[at];
}

static void worker_forget(struct kvr_router *r, uint64_t id)
{
    struct worker_info *w = worker_seek(r, id);
    if (!w) return;
    w->used = false;
    r->workers_used--;
}

/* Takes over what a slot holds now. */
static void sync_info(struct kvr_router *r, size_t slot)
{
    struct rank_info *info = &r->infos[slot];
    struct kvr_rank_load l;
    if (kvr_load_get(r->load, slot, 0, &l)) {
        info->known = false;
        r->lines[slot].engine_blocks = 0;
        return;
    }
    info->fresh = !info->known || kvr_worker_cmp(info->worker, l.worker) != 0;
    if (info->fresh) {
        *info = (struct rank_info){.worker = l.worker, .known = true, .fresh = true};
        r->owners[slot] = 0;
        r->turns[slot] = 0;
        r->pressures[slot] = 0;
        r->lines[slot] = (struct busy_lines){0};
    }
    struct worker_info *w = r->owners[slot] < r->workers_n ? &r->workers[r->owners[slot]] : NULL;
    if (!w || !w->used || w->id != l.worker.worker_id) w = worker_seek(r, l.worker.worker_id);
    KVR_ASSERT(w);
    r->owners[slot] = (uint32_t)(w - r->workers);
}

static void order_slot(struct kvr_router *r, size_t slot)
{
    size_t at = r->order_n++;
    for (; at > 0 && kvr_worker_cmp(r->infos[r->order[at - 1]].worker, r->infos[slot].worker) > 0; at--) r->order[at] = r->order[at - 1];
    r->order[at] = (uint32_t)slot;
}

static int grow_zeroed(struct kvr_router *r, void *list, size_t *cap, size_t n, size_t bytes)
{
    size_t old = *cap;
    void **memory = list;
    if (kvr_mem_grow(&r->mem, memory, cap, n, bytes)) return -KVR_ENOMEM;
    if (*cap > old) memset((char *)*memory + old * bytes, 0, (*cap - old) * bytes);
    return 0;
}

static int grow_by_slot(struct kvr_router *r, size_t n)
{
    return grow_zeroed(r, &r->infos, &r->infos_cap, n, sizeof *r->infos) ||
           grow_zeroed(r, &r->owners, &r->owners_cap, n, sizeof *r->owners) ||
           grow_zeroed(r, &r->turns, &r->turns_cap, n, sizeof *r->turns) ||
           grow_zeroed(r, &r->pressures, &r->pressures_cap, n, sizeof *r->pressures) ||
           grow_zeroed(r, &r->lines, &r->lines_cap, n, sizeof *r->lines) || grow_zeroed(r, &r->order, &r->order_cap, n, sizeof *r->order);
}

/* There is room. Slots that changed hands start afresh. The others keep their order, so that a worker more costs no sorting of all. */
static void sync_infos(struct kvr_router *r)
{
    size_t n = kvr_load_slots(r->load), kept = 0;
    r->ranks_changed++;
    r->slots_n = n;
    r->lines_are_old = true;
    for (size_t i = 0; i < n; i++) sync_info(r, i);
    for (size_t k = 0; k < r->order_n; k++) {
        const struct rank_info *info = &r->infos[r->order[k]];
        if (r->order[k] < n && info->known && !info->fresh) r->order[kept++] = r->order[k];
    }
    r->order_n = kept;
    for (size_t i = 0; i < n; i++)
        if (r->infos[i].known && r->infos[i].fresh) order_slot(r, i);
}

static void tell(const struct kvr_router *r, enum kvr_load_event_kind kind, const char *id, size_t id_len, uint64_t n, double fraction);

/* Of a worker's ranks those that go: all but [dp_start, dp_start + dp_size). */
struct going {
    const struct kvr_router *router;
    uint64_t worker_id;
    uint32_t dp_start, dp_size;
};

static int tell_going(void *ctx, const struct kvr_load_entry *e)
{
    const struct going *g = ctx;
    struct kvr_worker w = e->request.worker;
    bool stays = w.dp_rank >= g->dp_start && w.dp_rank - g->dp_start < g->dp_size;
    if (w.worker_id == g->worker_id && !stays) tell(g->router, KVR_LOAD_FREE, e->request.id, e->request.id_len, 0, -1);
    return 0;
}

/* Bookings go with their rank here; who else has them, as other routers do, may keep the worker. */
static void tell_bookings_gone(struct kvr_router *r, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size)
{
    struct going g = {r, worker_id, dp_start, dp_size};
    if (r->config.hook) (void)kvr_load_each(r->load, 0, tell_going, &g);
}

int kvr_router_set_worker(struct kvr_router *r, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size)
{
    kvr_lock(&r->lock);
    int rc = kvr__load_reserve(r->load, worker_id, dp_start, dp_size);
    if (rc == 0 && (grow_by_slot(r, kvr_load_slots(r->load) + dp_size) || !worker_make(r, worker_id))) rc = -KVR_ENOMEM;
    if (rc == 0) {
        tell_bookings_gone(r, worker_id, dp_start, dp_size);
        (void)kvr_load_set_worker(r->load, worker_id, dp_start, dp_size); /* there is room */
        sync_infos(r);
        kvr__dispatch(r);
    }
    kvr_unlock(&r->lock);
    return rc;
}

void kvr_router_remove_worker(struct kvr_router *r, uint64_t worker_id)
{
    kvr_lock(&r->lock);
    tell_bookings_gone(r, worker_id, 0, 0);
    kvr_load_remove_worker(r->load, worker_id);
    sync_infos(r);
    worker_forget(r, worker_id);
    kvr__dispatch(r);
    kvr_unlock(&r->lock);
    if (r->config.index) kvr_index_drop_worker(r->config.index, worker_id);
    if (r->config.predicted) kvr_index_drop_worker(r->config.predicted, worker_id);
}

void kvr_router_set_schedulable(struct kvr_router *r, uint64_t worker_id, bool schedulable)
{
    kvr_lock(&r->lock);
    struct worker_info *w = worker_find(r, worker_id);
    if (w) w->blocked = !schedulable;
    r->any_blocked = !schedulable;
    for (size_t i = 0; i < r->workers_n && !r->any_blocked; i++) r->any_blocked = r->workers[i].used && r->workers[i].blocked;
    kvr__dispatch(r);
    kvr_unlock(&r->lock);
}

void kvr_router_set_limits(struct kvr_router *r, uint64_t worker_id, uint64_t max_num_batched_tokens, uint64_t total_kv_blocks)
{
    kvr_lock(&r->lock);
    struct worker_info *w = worker_find(r, worker_id);
    if (w) {
        w->max_num_batched_tokens = max_num_batched_tokens;
        w->total_kv_blocks = total_kv_blocks;
        r->lines_are_old = true;
    }
    kvr__dispatch(r);
    kvr_unlock(&r->lock);
}

static struct rank_info *info_of(struct kvr_router *r, struct kvr_worker w)
{
    long slot = kvr_load_slot_of(r->load, w);
    return slot < 0 ? NULL : &r->infos[slot];
}

void kvr_router_set_trusted(struct kvr_router *r, struct kvr_worker w, bool trusted)
{
    kvr_lock(&r->lock);
    struct rank_info *i = info_of(r, w);
    if (i) i->untrusted = !trusted;
    kvr_unlock(&r->lock);
}

void kvr_router_set_kv_used(struct kvr_router *r, struct kvr_worker w, uint64_t blocks)
{
    kvr_lock(&r->lock);
    long slot = kvr_load_slot_of(r->load, w);
    if (slot >= 0) r->lines[slot].engine_blocks = blocks;
    kvr_unlock(&r->lock);
}

/* Taints. Names are looked up and their places used in one hold of the lock, and who waits in the queue keeps names: nobody has a place
 * from before, so that of a name that no worker has any more may become another's. */

static void mark_taint(struct taints *t, size_t at)
{
    t->bits[at / 64] |= (uint64_t)1 << (at % 64);
}

/* Of every worker but that one. */
static struct taints taints_of_others(const struct kvr_router *r, const struct worker_info *but)
{
    struct taints all = {0};
    for (size_t i = 0; i < r->workers_n; i++)
        for (int k = 0; r->workers[i].used && &r->workers[i] != but && k < TAINT_WORDS; k++) all.bits[k] |= r->workers[i].taints.bits[k];
    return all;
}

/* The first place from `at` on that is not taken. */
static size_t free_place(const struct taints *taken, size_t at)
{
    while (at < KVR_TAINTS_MAX && taken->bits[at / 64] >> (at % 64) & 1) at++;
    return at;
}

static bool is_among(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

/* For each name that has no place, one that is not taken: for all of them, or none. */
static int place_taints(struct kvr_router *r, struct taints taken, const char *const *names, size_t n)
{
    size_t end = 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        if (kvr__taint(r, names[i]) >= 0 || is_among(names, i, names[i])) continue;
        at = free_place(&taken, end);
        if (at == KVR_TAINTS_MAX || strlen(names[i]) >= TAINT_NAME_MAX) return -KVR_ELIMIT;
        end = at + 1;
    }
    if (kvr_mem_grow(&r->mem, (void **)&r->taint_names, &r->taints_cap, end, sizeof *r->taint_names)) return -KVR_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (kvr__taint(r, names[i]) >= 0) continue;
        at = free_place(&taken, 0);
        mark_taint(&taken, at);
        memcpy(r->taint_names[at], names[i], strlen(names[i]) + 1);
        r->taints_n = KVR_MAX(r->taints_n, at + 1);
    }
    return 0;
}

/* Those that have a place. Returns: how many have none. */
static size_t known_taints(const struct kvr_router *r, const char *const *names, size_t n, struct taints *out)
{
    size_t unknown = 0;
    *out = (struct taints){0};
    for (size_t i = 0; i < n; i++) {
        long at = kvr__taint(r, names[i]);
        if (at >= 0) mark_taint(out, (size_t)at);
        unknown += at < 0;
    }
    return unknown;
}

static int set_taints(struct kvr_router *r, struct worker_info *w, const char *const *names, size_t n)
{
    struct taints set;
    if (known_taints(r, names, n, &set)) {
        struct taints taken = taints_of_others(r, w);
        for (int k = 0; k < TAINT_WORDS; k++) taken.bits[k] |= set.bits[k];
        int rc = place_taints(r, taken, names, n);
        if (rc) return rc;
        known_taints(r, names, n, &set);
    }
    w->taints = set;
    return 0;
}

int kvr_router_set_taints(struct kvr_router *r, uint64_t worker_id, const char *const *taints, size_t n)
{
    kvr_lock(&r->lock);
    struct worker_info *w = worker_find(r, worker_id);
    int rc = w ? set_taints(r, w, taints, n) : 0;
    kvr_unlock(&r->lock);
    return rc;
}

/* Place of a worker's first taint that begins with `prefix`; taints_n: it has none. */
static size_t taint_of(const struct kvr_router *r, const struct worker_info *w, const char *prefix)
{
    size_t at = 0, len = strlen(prefix);
    while (at < r->taints_n && !(w->taints.bits[at / 64] >> (at % 64) & 1 && !strncmp(r->taint_names[at], prefix, len))) at++;
    return at;
}

bool kvr_router_find_taint(struct kvr_router *r, uint64_t worker_id, const char *prefix, char *out, size_t cap)
{
    kvr_lock(&r->lock);
    const struct worker_info *w = worker_find(r, worker_id);
    size_t at = w ? taint_of(r, w, prefix) : r->taints_n, len = at < r->taints_n ? strlen(r->taint_names[at]) : cap;
    if (len < cap) memcpy(out, r->taint_names[at], len + 1);
    kvr_unlock(&r->lock);
    return len < cap;
}

void kvr_router_use_lower_tiers(struct kvr_router *r)
{
    atomic_store_explicit(&r->lower_tiers, true, memory_order_relaxed);
}

/* ---- deciding ---------------------------------------------------------------------------------------- */

int kvr_router_find_best_match(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq,
                               struct kvr_router_result *out)
{
    struct kvr_router_result res = {0};
    struct prompt p;
    if (rq->book && rq->id_len == 0) return -KVR_ENOID;
    int rc = kvr__prepare(r, c, rq, &p);
    if (rc) return rc;
    kvr_lock(&r->lock);
    rc = kvr__schedule(r, c, rq, &p, &res);
    kvr_unlock(&r->lock);
    if (rc) return rc;
    uint64_t end = kvr_now_ns(&r->clock);
    res.times = p.times;
    res.times.scheduling = end - p.ready_ns;
    res.times.total = end - p.start_ns;
    if (rq->book) kvr__record(r, &p, res.worker);
    *out = res;
    return 0;
}

size_t kvr_router_cheapest(const struct kvr_router_ctx *c, size_t *at, size_t m)
{
    const double *costs = c->by_slot.costs;
    size_t n = 0;
    for (size_t i = 0; i < c->candidates_n && m; i++) {
        double cost = costs[c->slots[i]];
        if (n == m && cost >= costs[c->slots[at[m - 1]]]) continue;
        size_t k = n < m ? n++ : m - 1;
        for (; k > 0 && costs[c->slots[at[k - 1]]] > cost; k--) at[k] = at[k - 1];
        at[k] = i;
    }
    return n;
}

void kvr_router_candidate(const struct kvr_router_ctx *c, size_t at, struct kvr_candidate *candidate, struct kvr_cost *cost)
{
    KVR_ASSERT(at < c->candidates_n);
    kvr__whole(c, at, candidate, cost);
}

bool kvr_router_delays(const struct kvr_router_ctx *c, const size_t *at, size_t m, struct kvr_delay *out)
{
    if (c->candidates_n == 0 || c->cost.kind != KVR_COST_DELAY) return false;
    for (size_t i = 0; i < m; i++) {
        struct kvr_candidate k;
        KVR_ASSERT(at[i] < c->candidates_n);
        kvr__candidate(c, c->slots[at[i]], &k);
        out[i] = kvr__delay(&c->cost, c->router->config.block_size, c->isl, &c->crowd, &k);
    }
    return true;
}

uint64_t kvr_router_prefill_of(const struct kvr_router_ctx *c, size_t at)
{
    struct kvr_candidate k;
    struct kvr_cost cost;
    kvr_router_candidate(c, at, &k, &cost);
    return kvr__uncached(&c->cost, c->isl, kvr__expected(c->router, (uint64_t)k.pending_blocks, cost.cached_tokens));
}

/* ---- models ------------------------------------------------------------------------------------------ */

/* What of its prefill tokens stands for tokens that were read, and how many these were. Returns: false when that is not known: part of it
 * was pending, or prefill tokens are not tracked. */
static bool reads_of(const struct kvr_router *r, const struct kvr_router_result *res, uint64_t *priced, double read[KVR_TIER_COUNT])
{
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) read[t] = (double)res->tier_blocks[t] * r->config.block_size;
    *priced = res->held_tokens > res->cached_tokens ? res->held_tokens - res->cached_tokens : 0;
    return res->held_blocks == res->tier_blocks[KVR_TIER_DEVICE] ||
           (res->pending_blocks <= res->tier_blocks[KVR_TIER_DEVICE] && res->prefill_tokens >= *priced);
}

static void observe_ttft(struct kvr_router *r, const struct kvr_router_result *res, double ms)
{
    double own = (double)res->prefill_tokens, ahead = (double)res->ahead_tokens, requests = res->ahead_decoding, read[KVR_TIER_COUNT] = {0};
    uint64_t priced;
    const struct worker_info *w = worker_find(r, res->worker.worker_id);
    if (w) {
        struct worker_model *m = &r->models[w - r->workers];
        if (kvr__model_is_old(r, (uint32_t)(w - r->workers))) kvr_ttft_factor_age(&m->factor);
        kvr_ttft_factor_observe(&m->factor, kvr_ttft_predict(&r->fleet, own, ahead, requests), ms);
        m->seen = r->decisions;
    }
    if (reads_of(r, res, &priced, read)) kvr_ttft_observe_reads(&r->fleet, own - (double)priced, read, ahead, requests, ms);
}

void kvr_router_observe_ttft(struct kvr_router *r, const struct kvr_router_result *res, double ms)
{
    (void)kvr_router_observe_ttft_beside(r, res, ms, NULL, 0);
}

bool kvr_router_observe_ttft_beside(struct kvr_router *r, const struct kvr_router_result *res, double ms, struct kvr_ttft_question *others,
                                    size_t n)
{
    kvr_lock(&r->lock);
    observe_ttft(r, res, ms);
    bool warm = r->fleet.observations >= KVR_TTFT_WARM;
    for (size_t i = 0; i < n && warm; i++) {
        struct kvr_ttft_question *q = &others[i];
        const struct worker_info *w = worker_find(r, q->worker_id);
        q->ms = w ? kvr__factor(r, (uint32_t)(w - r->workers)) * kvr_ttft_predict(&r->fleet, q->own, q->ahead, q->requests) : -1;
    }
    kvr_unlock(&r->lock);
    return warm;
}

int kvr_router_ttft_model(struct kvr_router *r, const uint64_t *worker_id, struct kvr_ttft_model *out, struct kvr_ttft_factor *factor)
{
    kvr_lock(&r->lock);
    const struct worker_info *w = worker_id ? worker_find(r, *worker_id) : NULL;
    bool ok = !worker_id || w;
    if (ok) *out = r->fleet;
    if (w && factor) *factor = r->models[w - r->workers].factor;
    kvr_unlock(&r->lock);
    return ok ? 0 : -KVR_ENOTFOUND;
}

static void observe_generation(struct kvr_router *r, struct kvr_worker worker, uint64_t blocks_before, double tokens, double ms)
{
    struct kvr_rank_load l;
    long slot = kvr_load_slot_of(r->load, worker);
    if (slot >= 0 && kvr_load_get(r->load, (size_t)slot, kvr_now_ns(&r->clock), &l) == 0)
        kvr_generation_observe(&r->generation, ((double)blocks_before + (double)l.active_decode_blocks) / 2, tokens, ms);
}

void kvr_router_observe_generation(struct kvr_router *r, const struct kvr_router_result *res, double tokens, double ms)
{
    kvr_lock(&r->lock);
    observe_generation(r, res->worker, res->active_blocks, tokens, ms);
    kvr_unlock(&r->lock);
}

void kvr_router_generation_model(struct kvr_router *r, struct kvr_generation_model *out)
{
    kvr_lock(&r->lock);
    *out = r->generation;
    kvr_unlock(&r->lock);
}

/* Before the report is booked: the first one counts. */
static void learn_of_first_token(struct kvr_router *r, const char *id, size_t id_len, uint64_t now)
{
    struct kvr_load_course c;
    if (!r->config.learn_from_reports || kvr_load_course(r->load, id, id_len, &c)) return;
    if (c.first_token_ns || !c.prefill_tokens || now < c.booked_ns) return;
    struct kvr_router_result res = {
        .worker = c.worker, .prefill_tokens = c.prefill_tokens, .ahead_tokens = c.ahead_tokens, .ahead_decoding = c.generating};
    observe_ttft(r, &res, (double)(now - c.booked_ns) / 1e6);
}

/* Before its end is booked. The tokens of its first report came before that. */
static void learn_of_end(struct kvr_router *r, const char *id, size_t id_len)
{
    struct kvr_load_course c;
    if (!r->config.learn_from_reports || kvr_load_course(r->load, id, id_len, &c)) return;
    if (c.blocks == c.first_blocks || c.last_block_ns <= c.first_block_ns) return;
    observe_generation(r, c.worker, c.active_blocks, (double)(c.blocks - c.first_blocks) * r->config.block_size,
                       (double)(c.last_block_ns - c.first_block_ns) / 1e6);
}

/* ---- the book ---------------------------------------------------------------------------------------- */

static void tell(const struct kvr_router *r, enum kvr_load_event_kind kind, const char *id, size_t id_len, uint64_t n, double fraction)
{
    if (!r->config.hook) return;
    struct kvr_load_event ev = {.kind = kind, .request = {.id = id, .id_len = id_len}, .output_blocks = n, .fraction = fraction};
    if (kind == KVR_LOAD_OUTPUT) ev.output_total = kvr_load_outputs(r->load, id, id_len);
    r->config.hook(r->config.hook_ctx, &ev);
}

int kvr_router_add_request(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct kvr_worker worker,
                           uint64_t cached_tokens)
{
    struct prompt p;
    if (rq->id_len == 0) return -KVR_ENOID;
    int rc = kvr__hash_and_chain(r, c, rq, &p);
    if (rc) return rc;
    kvr_lock(&r->lock);
    rc = kvr__book(r, rq, &p, worker, kvr__uncached(&p.cost, p.isl, cached_tokens), p.start_ns);
    kvr_unlock(&r->lock);
    return rc;
}

int kvr_router_mark_prefill_completed(struct kvr_router *r, const char *id, size_t id_len)
{
    kvr_lock(&r->lock);
    uint64_t now = kvr_now_ns(&r->clock);
    learn_of_first_token(r, id, id_len, now);
    int rc = kvr_load_prefill_done(r->load, id, id_len, now);
    if (rc == 0) {
        tell(r, KVR_LOAD_PREFILL_DONE, id, id_len, 0, -1);
        kvr__dispatch(r);
    }
    kvr_unlock(&r->lock);
    return rc;
}

int kvr_router_add_output_blocks(struct kvr_router *r, const char *id, size_t id_len, uint64_t n, double fraction)
{
    kvr_lock(&r->lock);
    int rc = kvr_load_output_blocks(r->load, id, id_len, n, fraction, kvr_now_ns(&r->clock));
    if (rc == 0) tell(r, KVR_LOAD_OUTPUT, id, id_len, n, fraction);
    kvr_unlock(&r->lock);
    return rc;
}

int kvr_router_touch(struct kvr_router *r, const char *id, size_t id_len)
{
    kvr_lock(&r->lock);
    int rc = kvr_load_touch(r->load, id, id_len, kvr_now_ns(&r->clock));
    kvr_unlock(&r->lock);
    return rc;
}

int kvr_router_where(struct kvr_router *r, const char *id, size_t id_len, struct kvr_worker *out)
{
    kvr_lock(&r->lock);
    int rc = kvr_load_where(r->load, id, id_len, out);
    kvr_unlock(&r->lock);
    return rc;
}

int kvr_router_free(struct kvr_router *r, const char *id, size_t id_len)
{
    kvr_lock(&r->lock);
    learn_of_end(r, id, id_len);
    int rc = kvr_load_free(r->load, id, id_len, kvr_now_ns(&r->clock));
    if (rc == 0) {
        tell(r, KVR_LOAD_FREE, id, id_len, 0, -1);
        kvr__dispatch(r);
    }
    kvr_unlock(&r->lock);
    return rc;
}

static void tell_expired(void *ctx, const char *id, size_t id_len)
{
    tell(ctx, KVR_LOAD_FREE, id, id_len, 0, -1);
}

size_t kvr_router_expire_requests(struct kvr_router *r, uint64_t older_than_ns)
{
    uint64_t now = kvr_now_ns(&r->clock);
    kvr_lock(&r->lock);
    size_t n = now > older_than_ns ? kvr_load_expire(r->load, now - older_than_ns, now, tell_expired, r) : 0;
    if (n) kvr__dispatch(r);
    kvr_unlock(&r->lock);
    return n;
}

/* ---- other routers ----------------------------------------------------------------------------------- */

/* Whoever chose it, the rank has had its turn: routers that look at their own choices only would all choose the same one next. */
static void take_turn(struct kvr_router *r, struct kvr_worker w)
{
    long slot = kvr_load_slot_of(r->load, w);
    if (slot >= 0) r->turns[slot] = ++r->decisions;
}

static int apply_remote(struct kvr_router *r, const struct kvr_load_event *ev, uint64_t now)
{
    const struct kvr_load_request *q = &ev->request;
    int rc = -KVR_EINVAL;
    switch (ev->kind) {
    case KVR_LOAD_ADD: {
        struct kvr_load_request mine = *q;
        if (!q->owner) return rc;
        mine.now_ns = now; /* decay starts when we hear of it */
        mine.guarded = true;
        (void)kvr_load_free(r->load, q->id, q->id_len, now);
        rc = kvr_load_add(r->load, &mine);
        if (rc == 0) take_turn(r, q->worker);
        if (rc == 0 && ev->output_blocks) rc = kvr_load_output_blocks(r->load, q->id, q->id_len, ev->output_blocks, -1, now);
        return rc;
    }
    case KVR_LOAD_PREFILL_DONE: rc = kvr_load_prefill_done(r->load, q->id, q->id_len, now); break;
    case KVR_LOAD_OUTPUT: return kvr_load_output_blocks(r->load, q->id, q->id_len, ev->output_blocks, ev->fraction, now);
    case KVR_LOAD_FREE: rc = kvr_load_free(r->load, q->id, q->id_len, now); break;
    }
    if (rc == 0) kvr__dispatch(r);
    return rc;
}

int kvr_router_apply_remote(struct kvr_router *r, const struct kvr_load_event *ev)
{
    kvr_lock(&r->lock);
    int rc = apply_remote(r, ev, kvr_now_ns(&r->clock));
    kvr_unlock(&r->lock);
    return rc;
}

size_t kvr_router_forget_remote(struct kvr_router *r, uint32_t owner)
{
    if (owner == 0) return 0;
    kvr_lock(&r->lock);
    size_t n = kvr_load_free_owner(r->load, owner, kvr_now_ns(&r->clock));
    if (n) kvr__dispatch(r);
    kvr_unlock(&r->lock);
    return n;
}

struct snapshot {
    struct kvr_router *r;
    kvr_load_hook *hook;
    void *ctx;
    uint64_t *seqs;
    size_t cap;
};

static int emit_entry(void *ctx, const struct kvr_load_entry *e)
{
    struct snapshot *s = ctx;
    if (kvr_mem_grow(&s->r->mem, (void **)&s->seqs, &s->cap, e->request.seqs_n, sizeof *s->seqs)) return -KVR_ENOMEM;
    kvr_load_seqs(e, s->seqs);
    struct kvr_load_event ev = {.kind = KVR_LOAD_ADD, .request = e->request, .output_blocks = e->output_blocks, .fraction = -1};
    ev.request.seqs = s->seqs;
    s->hook(s->ctx, &ev);
    return 0;
}

int kvr_router_snapshot(struct kvr_router *r, void (*mark)(void *ctx), kvr_load_hook *hook, void *ctx)
{
    struct snapshot s = {.r = r, .hook = hook, .ctx = ctx};
    kvr_lock(&r->lock);
    if (mark) mark(ctx);
    int rc = kvr_load_each(r->load, 0, emit_entry, &s);
    kvr_mem_put(&r->mem, s.seqs, s.cap * sizeof *s.seqs);
    kvr_unlock(&r->lock);
    return rc;
}

/* ---- questions --------------------------------------------------------------------------------------- */

long kvr_router_overlap(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct kvr_reach *out,
                        size_t cap, size_t *blocks_n)
{
    struct prompt p;
    if (!r->config.index && !(r->config.remote_index && rq->scores)) return -KVR_ENOINDEX;
    int rc = kvr__hash_and_chain(r, c, rq, &p);
    if (rc == 0) rc = kvr__match(c, &p);
    if (rc) return rc;
    size_t n = p.reaches ? p.reaches_n : p.overlaps_n;
    if (n > cap) return -KVR_ELIMIT;
    for (size_t i = 0; i < n; i++) {
        if (p.reaches) {
            out[i] = p.reaches[i];
            continue;
        }
        out[i].worker = p.overlaps[i].worker;
        for (int t = 0; t < KVR_TIER_COUNT; t++) out[i].depth[t] = p.overlaps[i].depth;
    }
    if (blocks_n) *blocks_n = p.locals_n;
    return (long)n;
}

size_t kvr_router_keep_trusted(struct kvr_router *r, struct kvr_reach *reaches, size_t n)
{
    size_t kept = 0;
    kvr_lock(&r->lock);
    for (size_t i = 0; i < n; i++) {
        const struct rank_info *info = info_of(r, reaches[i].worker);
        if (info && !info->untrusted) reaches[kept++] = reaches[i];
    }
    kvr_unlock(&r->lock);
    return kept;
}

size_t kvr_router_loads(struct kvr_router *r, struct kvr_rank_load *out, size_t cap)
{
    uint64_t now = kvr_now_ns(&r->clock);
    kvr_lock(&r->lock);
    size_t n = r->order_n;
    for (size_t i = 0; i < KVR_MIN(n, cap); i++) kvr_load_get(r->load, r->order[i], now, &out[i]);
    kvr_unlock(&r->lock);
    return n;
}

long kvr_router_potential_loads(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq,
                                struct kvr_potential_load *out, size_t cap)
{
    struct prompt p;
    int rc = kvr__prepare(r, c, rq, &p);
    if (rc) return rc;
    uint64_t now = kvr_now_ns(&r->clock), isl = KVR_MAX(p.isl, (uint64_t)1);
    kvr_lock(&r->lock);
    size_t n = r->order_n;
    rc = kvr__reserve_ranks(c, kvr_load_slots(r->load));
    if (rc == 0 && n) {
        kvr__spread(r, c, &p, now);
        kvr__expect(r, c, &p, 0, r->slots_n);
    }
    for (size_t i = 0; i < KVR_MIN(n, cap) && rc == 0; i++) {
        struct kvr_candidate cand;
        struct kvr_cost cost;
        kvr__candidate(c, r->order[i], &cand);
        kvr_cost_of(&p.cost, r->config.block_size, isl, &cand, 1, &cost);
        out[i] = (struct kvr_potential_load){cand.worker, cand.active_prefill_tokens + kvr__uncached(&p.cost, p.isl, cost.cached_tokens),
                                             cand.decode_blocks, cand.active_requests};
    }
    kvr_unlock(&r->lock);
    return rc ? rc : (long)n;
}

int kvr_router_dump(struct kvr_router *r, const struct kvr_worker *only, kvr_index_emit *emit, void *ctx)
{
    return r->config.index ? kvr_index_dump(r->config.index, only, emit, ctx) : -KVR_ENOINDEX;
}

bool kvr_router_validate(struct kvr_router *r, const char **reason)
{
    kvr_lock(&r->lock);
    bool ok = kvr_load_validate(r->load, reason);
    kvr_unlock(&r->lock);
    return ok;
}
