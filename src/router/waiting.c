/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parked requests. A request waits when its class has a threshold and either others of its class wait already (nobody
 * overtakes) or every rank that may serve it is busy. Whenever load goes down the queue hands out what may go now: each is
 * looked up afresh, chosen and booked in one go, so the next one sees its load.
 *
 * The pool of ranks is busy or not; among the ranks of one that is not, the costs choose, and they may choose one that is busy, for what
 * is cached there or to keep others free. Where tenants share, that would undo their turns: what is cheap for all may be the queue of an
 * engine that another tenant has filled. So a tenant's request that has waited goes to ranks that are not busy.
 *
 * Dispatch runs under the lock with a context of the router's own; hashing a parked prompt again costs what hashing it the
 * first time did, and keeps nothing but the request's own memory while it waits.
 */
#include <string.h>
#include <kvroute/hash.h>

#include "router/internal.h"

struct looking {
    struct kvr_router *r;
    uint64_t now;
};

static struct kvr_ticket *ticket_of(const struct kvr_queue_item *item)
{
    return (struct kvr_ticket *)((uintptr_t)item - offsetof(struct kvr_ticket, item));
}

static bool waits_for_prefill(const struct kvr_class_config *c)
{
    return c->busy_tokens >= 0 || c->busy_frac >= 0;
}

static bool class_waits(const struct kvr_class_config *c)
{
    return waits_for_prefill(c) || c->busy_requests > 0;
}

bool kvr__policy_waits(const struct kvr_policy *p)
{
    for (size_t i = 0; i < p->classes_n; i++)
        if (class_waits(&p->classes[i])) return true;
    return false;
}

static bool rank_is_busy(const struct kvr_router *r, const struct kvr_class_config *cls, uint32_t slot, uint64_t now)
{
    double batch = kvr__batch_tokens(&r->workers[r->owners[slot]]);
    struct kvr_rank_load l = {0};
    kvr_load_get(r->load, slot, now, &l);
    double prefill = (double)l.active_prefill_tokens;
    if (cls->busy_requests > 0 && (double)l.active_requests >= cls->busy_requests) return true;
    if (!r->config.cost.track_prefill_tokens) return false;
    return (cls->busy_tokens >= 0 && prefill > cls->busy_tokens) || (cls->busy_frac >= 0 && prefill > cls->busy_frac * batch);
}

size_t kvr__drop_busy(const struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_class_config *cls, size_t n, uint64_t now)
{
    size_t calm = 0;
    for (size_t i = 0; i < n; i++) calm += !rank_is_busy(r, cls, c->slots[i], now);
    if (calm == 0) return 0;
    for (size_t i = 0, at = 0; i < n; i++)
        if (!rank_is_busy(r, cls, c->slots[i], now)) c->slots[at++] = c->slots[i];
    return calm;
}

/* Whether the ranks in c->slots are, as a pool, busy for that class. */
static bool pool_is_busy(const struct kvr_router *r, const struct kvr_router_ctx *c, const struct kvr_class_config *cls, size_t n,
                         uint64_t now)
{
    double need = cls->busy_worker_ratio * (double)n;
    size_t busy = 0;
    for (size_t i = 0; i < n; i++) {
        busy += rank_is_busy(r, cls, c->slots[i], now);
        if ((double)busy >= need) return true;
        if ((double)(busy + n - 1 - i) < need) return false;
    }
    return false;
}

/* Busy for one request; also the ranks it may go to are then in c->slots. No eligible rank: not busy, so that the request
 * fails at once instead of waiting for ever. */
static bool all_busy(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq,
                     const struct kvr_class_config *cls, uint64_t now)
{
    struct kvr_router_result ignored = {0};
    struct kvr_router_request hard = *rq;
    size_t n;
    hard.preferred = false; /* a preference does not make a request wait for one rank */
    if (!class_waits(cls) || (cls->busy_requests <= 0 && !r->config.cost.track_prefill_tokens)) return false;
    if (kvr__reserve_ranks(c, kvr_load_slots(r->load)) || kvr__eligible(r, c, &hard, &n, &ignored)) return false;
    return pool_is_busy(r, c, cls, n, now);
}

/* Largest cached prefix among the eligible ranks; the pinned one's for a pin. */
static uint64_t best_cached(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, const struct prompt *p,
                            uint64_t now)
{
    struct kvr_router_result ignored = {0};
    size_t n;
    double best = 0;
    if (kvr__reserve_ranks(c, kvr_load_slots(r->load)) || kvr__eligible(r, c, rq, &n, &ignored)) return 0;
    kvr__spread(r, c, p, now);
    for (size_t i = 0; i < n; i++) {
        const struct rank_columns *k = &c->by_slot;
        uint32_t s = c->slots[i];
        double held = k->device[s];
        if (k->has_tiers) held = held + p->cost.host_weight * k->host[s] + p->cost.disk_weight * k->disk[s];
        best = KVR_MAX(best, held);
    }
    return KVR_MIN((uint64_t)(best * r->config.block_size + 0.5), p->isl);
}

/* Of an allow-list and required taints. 0: there are none. */
static uint64_t scope_of(const struct kvr_router_request *rq)
{
    uint64_t h = rq->allowed ? kvr_hash_bytes(rq->allowed, rq->allowed_n * sizeof *rq->allowed, 1) | 1 : 0;
    for (size_t i = 0; i < rq->required_n; i++)
        h = kvr_mix64(h ^ kvr_hash_bytes(rq->required_taints[i], strlen(rq->required_taints[i]), 2)) | 1;
    return h;
}

static void fill_in(const struct kvr_router_request *rq, const struct prompt *p, uint64_t cached, struct kvr_ticket *t)
{
    t->item = (struct kvr_queue_item){
        .pin = {rq->pin.worker_id, rq->pin_any_rank ? UINT32_MAX : rq->pin.dp_rank}, /* one lane for all its ranks */
        .pinned = rq->pinned,
        .scope = scope_of(rq),
        .strict_priority = rq->strict_priority,
        .priority_jump = rq->priority_jump,
        .isl = p->isl,
        .cached = cached,
        .arrived_ns = p->start_ns,
        .tenant = rq->tenant,
        .tenant_weight = rq->tenant_weight,
        .output = rq->tenant_output};
}

static int park(struct kvr_router *r, size_t class_at, struct kvr_ticket *t, struct kvr_rejection *rejection)
{
    int rc = kvr_queue_push(r->queue, class_at, r->workers_used, &t->item, rejection);
    if (rc) return rc;
    t->parked = true;
    atomic_fetch_add_explicit(&r->pending, 1, memory_order_relaxed);
    return KVR_PARKED;
}

/* Checks that need no waiting: a request that can never be served fails at once. */
static int fails_at_once(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq)
{
    struct kvr_router_result ignored = {0};
    struct kvr_worker where;
    size_t n;
    if (kvr__reserve_ranks(c, kvr_load_slots(r->load))) return -KVR_ENOMEM;
    if (kvr_load_where(r->load, rq->id, rq->id_len, &where) == 0) return -KVR_EEXISTS;
    return kvr__eligible(r, c, rq, &n, &ignored);
}

/* With the router's own context: nobody else has it while the lock is held. */
static int overload(struct kvr_router *r, const struct kvr_router_request *rq, uint64_t now)
{
    int rc = kvr__look_for_calm(r, r->dispatch_ctx, rq, now);
    if (rc || !r->may_park) return rc;
    size_t at = kvr_queue_class(r->queue, rq->policy_class, rq->policy_class_len, rq->isl);
    const struct kvr_class_config *cls = kvr_queue_class_config(r->queue, at);
    if (!class_waits(cls) || !kvr_queue_is_full(r->queue, at, r->workers_used)) return 0;
    return all_busy(r, r->dispatch_ctx, rq, cls, now) ? -KVR_EQUEUEFULL : 0; /* others may wait for other ranks */
}

int kvr_router_overload(struct kvr_router *r, const struct kvr_router_request *rq)
{
    kvr_lock(&r->lock);
    int rc = overload(r, rq, kvr_now_ns(&r->clock));
    kvr_unlock(&r->lock);
    return rc;
}

static bool may_go(void *ctx, const struct kvr_queue_item *item);
static void hand_out(struct kvr_router *r, struct kvr_ticket *t, uint64_t now);

static void leave_queue(struct kvr_router *r, struct kvr_ticket *t)
{
    t->parked = false;
    atomic_fetch_sub_explicit(&r->pending, 1, memory_order_relaxed);
}

/* A rank is free for one that comes while others wait: they may wait for other ranks. Whose turn it is goes, whatever limits say of those
 * that have to wait. Returns: 1: it is the one; 0: it is not in the queue, and has to wait; or an error. */
static int turn_has_come(struct kvr_router *r, struct kvr_ticket *t, size_t class_at, uint64_t now)
{
    struct looking l = {r, now};
    struct kvr_queue_item *item;
    int rc = kvr_queue_try(r->queue, class_at, &t->item);
    if (rc) return rc;
    while ((item = kvr_queue_pop(r->queue, now, may_go, &l))) {
        if (item == &t->item) return 1;
        hand_out(r, ticket_of(item), now);
    }
    kvr_queue_remove(r->queue, &t->item);
    return 0;
}

static int admit_or_park(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct prompt *p,
                         struct kvr_ticket *t, struct kvr_router_result *res, struct kvr_rejection *rejection)
{
    uint64_t now = p->start_ns;
    if (r->stopping) return -KVR_ESHUTDOWN;
    if (!r->may_park) return kvr__schedule(r, c, rq, p, res);
    int rc = fails_at_once(r, c, rq);
    if (rc) return rc;
    uint64_t cached = best_cached(r, c, rq, p, now);
    size_t at = kvr_queue_class(r->queue, rq->policy_class, rq->policy_class_len, p->isl - cached);
    const struct kvr_class_config *cls = kvr_queue_class_config(r->queue, at);
    struct kvr_class_stats st;
    kvr_queue_stats(r->queue, at, &st);
    bool busy = class_waits(cls) && all_busy(r, c, rq, cls, now), others = class_waits(cls) && st.requests > 0;
    if (!busy && !others) return kvr__schedule(r, c, rq, p, res);
    fill_in(rq, p, cached, t);
    rc = busy ? 0 : turn_has_come(r, t, at, now);
    if (rc == 1 && rq->tenant) p->calm_for = cls;
    if (rc == 1) return kvr__schedule(r, c, rq, p, res);
    if (rc) return rc;
    return rq->do_not_queue ? -KVR_EBUSY : park(r, at, t, rejection);
}

int kvr_router_submit(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct kvr_ticket *t,
                      kvr_done_fn *done, void *user, struct kvr_router_result *out, struct kvr_rejection *rejection)
{
    struct kvr_router_result res = {0};
    struct kvr_rejection refused = {0};
    struct prompt p;
    KVR_ASSERT(rq->book);
    if (rq->id_len == 0) return -KVR_ENOID;
    int rc = kvr__prepare(r, c, rq, &p);
    if (rc) return rc;
    *t = (struct kvr_ticket){.request = rq, .done = done, .user = user};
    kvr_lock(&r->lock);
    rc = admit_or_park(r, c, rq, &p, t, &res, &refused);
    kvr_unlock(&r->lock);
    if (rc == -KVR_EQUEUEFULL && rejection) *rejection = refused;
    if (rc) return rc;
    uint64_t end = kvr_now_ns(&r->clock);
    res.times = p.times;
    res.times.scheduling = end - p.ready_ns;
    res.times.total = end - p.start_ns;
    kvr__record(r, &p, res.worker);
    *out = res;
    return 0;
}

/* ---- handing out ------------------------------------------------------------------------------------- */

static bool may_go(void *ctx, const struct kvr_queue_item *item)
{
    const struct looking *l = ctx;
    return !all_busy(l->r, l->r->dispatch_ctx, ticket_of(item)->request, kvr_queue_class_config(l->r->queue, item->class_at), l->now);
}

static void finish(struct kvr_router *r, struct kvr_ticket *t, int rc, const struct kvr_router_result *res)
{
    leave_queue(r, t);
    t->done(t, rc, res, r->dispatch_ctx);
}

static void hand_out(struct kvr_router *r, struct kvr_ticket *t, uint64_t now)
{
    struct kvr_router_result res = {0};
    struct prompt p;
    int rc = kvr__prepare(r, r->dispatch_ctx, t->request, &p);
    if (t->request->tenant) p.calm_for = kvr_queue_class_config(r->queue, t->item.class_at);
    if (rc == 0) rc = kvr__schedule(r, r->dispatch_ctx, t->request, &p, &res);
    if (rc == 0) kvr__record(r, &p, res.worker);
    res.waited_ns = now - t->item.arrived_ns;
    res.times = p.times;
    res.times.total = kvr_now_ns(&r->clock) - p.start_ns;
    finish(r, t, rc, &res);
}

void kvr__dispatch(struct kvr_router *r)
{
    struct kvr_queue_item *item;
    if (atomic_load_explicit(&r->pending, memory_order_relaxed) == 0) return;
    struct looking l = {r, kvr_now_ns(&r->clock)};
    while ((item = kvr_queue_pop(r->queue, l.now, may_go, &l))) hand_out(r, ticket_of(item), l.now);
}

bool kvr_router_cancel(struct kvr_router *r, struct kvr_ticket *t)
{
    kvr_lock(&r->lock);
    bool parked = t->parked;
    if (parked) {
        kvr_queue_remove(r->queue, &t->item);
        leave_queue(r, t);
        kvr__dispatch(r); /* it may have been the head that blocked the others */
    }
    kvr_unlock(&r->lock);
    return parked;
}

bool kvr_router_allow(struct kvr_router *r, struct kvr_ticket *t, struct kvr_router_request *rq, const uint64_t *allowed, size_t allowed_n)
{
    kvr_lock(&r->lock);
    bool parked = t->parked;
    if (parked) {
        size_t at = t->item.class_at;
        kvr_queue_remove(r->queue, &t->item);
        rq->allowed = allowed;
        rq->allowed_n = allowed_n;
        t->item.scope = scope_of(rq);
        if (kvr_queue_try(r->queue, at, &t->item)) finish(r, t, -KVR_ENOMEM, NULL); /* whatever the limits say: it was there before */
        kvr__dispatch(r);
    }
    kvr_unlock(&r->lock);
    return parked;
}

void kvr_router_poll(struct kvr_router *r)
{
    enum { SLICE = 16384 };
    if (r->config.index) (void)kvr_index_tend(r->config.index, SLICE);
    if (r->config.predicted) (void)kvr_index_tend(r->config.predicted, SLICE);
    kvr__look_at_turnover(r);
    if (kvr_router_pending(r) == 0) return;
    kvr_lock(&r->lock);
    kvr__dispatch(r);
    kvr_unlock(&r->lock);
}

static size_t class_again(void *, const struct kvr_queue *next, const struct kvr_queue_item *item)
{
    const struct kvr_router_request *rq = ticket_of(item)->request;
    return kvr_queue_class(next, rq->policy_class, rq->policy_class_len, item->isl > item->cached ? item->isl - item->cached : 0);
}

int kvr_router_set_policy(struct kvr_router *r, const struct kvr_policy *policy)
{
    kvr_lock(&r->lock);
    int rc = kvr_queue_set_policy(r->queue, policy, class_again, NULL);
    if (rc == 0) {
        r->may_park = kvr__policy_waits(policy);
        kvr__dispatch(r);
    }
    kvr_unlock(&r->lock);
    return rc;
}

void kvr_router_shut_queue(struct kvr_router *r)
{
    struct kvr_queue_item *item;
    kvr_lock(&r->lock);
    r->stopping = true;
    while (r->queue && (item = kvr_queue_take_any(r->queue))) finish(r, ticket_of(item), -KVR_ESHUTDOWN, NULL);
    kvr_unlock(&r->lock);
}

size_t kvr_router_pending(const struct kvr_router *r)
{
    return atomic_load_explicit(&r->pending, memory_order_relaxed);
}

size_t kvr_router_classes(const struct kvr_router *r)
{
    return kvr_queue_classes(r->queue);
}

const char *kvr_router_class_stats(struct kvr_router *r, size_t class_at, struct kvr_class_stats *out)
{
    kvr_lock(&r->lock);
    kvr_queue_stats(r->queue, class_at, out);
    kvr_unlock(&r->lock);
    return kvr_queue_class_config(r->queue, class_at)->name;
}
