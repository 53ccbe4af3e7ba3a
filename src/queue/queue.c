/* SPDX-License-Identifier: Apache-2.0 */
/*
 * class --> tenants, by id, each with its clock            class --> lanes: the shared one, one for each pin and scope
 *              |                                                       |
 *              '------------- flows: a tenant's requests in a lane ----'
 *
 * A flow is a binary heap of item pointers (an item knows its place, so it can leave from the middle) and, for ageing, a list by arrival. A
 * lane is a heap of its flows by their tenants' clocks. Pinned lanes, tenants and their flows come with their first item; flows go with
 * their last, lanes too, except the shared ones, which keep the flow of requests without a tenant. A tenant that waits for nothing stays as
 * long as its clock is ahead of its class.
 *
 * Costs: push, pop and remove are O(log n) in the flow and O(log tenants) in each lane where the tenant waits, mostly one; pop asks `ready`
 * for the heads of the first LOOKS flows of every lane that is not empty, at most.
 */
#include "base/base.h"

#include <math.h>
#include <string.h>
#include <kvroute/queue.h>

enum { LOOKS = 4, TENANT_BUCKETS = 256, SWEEP_FROM = 64 };

struct kvr_tenant {
    struct kvr_tenant *next; /* of its bucket */
    uint64_t id;
    double weight, clock;
    uint64_t turn; /* who of two with equal clocks has waited longer: the smaller */
    size_t n;
    struct kvr_flow *flows;
};

struct kvr_flow {
    struct kvr_flow *next, *prev; /* of the tenant */
    struct kvr_lane *lane;
    struct kvr_tenant *tenant;
    struct kvr_queue_item **heap;
    size_t n, cap, lane_at;
    struct kvr_queue_item *oldest, *newest;
};

struct kvr_lane {
    struct kvr_lane *next; /* of the class */
    struct kvr_worker pin;
    uint64_t scope;
    bool shared, pinned;
    struct kvr_flow nameless; /* of requests without a tenant */
    struct kvr_flow **flows;  /* a heap of those that are not empty */
    size_t n, cap;
};

struct class_state {
    struct kvr_class_config cfg;
    struct kvr_lane shared, *pinned;
    struct kvr_tenant nameless, **tenants; /* the latter: buckets of the others; NULL: there were none yet */
    size_t tenants_n, sweep_at;
    double clock; /* how far the class is */
    struct kvr_class_stats stats;
    double deficit;
    struct kvr_queue_item *head; /* of this pop: the best dispatchable one */
};

struct kvr_queue {
    struct kvr_mem mem;
    struct kvr_policy policy;
    struct class_state *classes;
    size_t classes_n, len;
    size_t cursor, last; /* deficit round robin: where the walk starts, who was served last */
    bool any_served;
    uint64_t started_ns, sequence;
};

/* ---- life -------------------------------------------------------------------------------------------- */

int kvr_queue_create(const struct kvr_alloc *alloc, const struct kvr_policy *policy, uint64_t now_ns, struct kvr_queue **out)
{
    char ignored[256];
    struct kvr_mem mem;
    if (kvr_policy_check(policy, ignored, sizeof ignored)) return -KVR_EINVAL;
    kvr_mem_init(&mem, alloc, 0);
    struct kvr_queue *q = kvr_mem_zget(&mem, sizeof *q);
    struct class_state *classes = kvr_mem_zget(&mem, policy->classes_n * sizeof *classes);
    if (!q || !classes) {
        kvr_mem_put(&mem, q, sizeof *q);
        kvr_mem_put(&mem, classes, policy->classes_n * sizeof *classes);
        return -KVR_ENOMEM;
    }
    q->policy = *policy;
    q->classes = classes;
    q->classes_n = policy->classes_n;
    q->started_ns = now_ns;
    for (size_t i = 0; i < q->classes_n; i++) {
        classes[i].cfg = policy->classes[i];
        classes[i].shared.shared = true;
        classes[i].nameless.weight = 1;
        classes[i].sweep_at = SWEEP_FROM;
    }
    q->mem = mem;
    *out = q;
    return 0;
}

static void flow_clear(struct kvr_queue *q, struct kvr_flow *f)
{
    kvr_mem_put(&q->mem, f->heap, f->cap * sizeof(struct kvr_queue_item *));
    if (f != &f->lane->nameless) kvr_mem_put(&q->mem, f, sizeof *f);
}

/* nameless.lane is not set in a lane that was never used. */
static void lane_clear(struct kvr_queue *q, struct kvr_lane *l)
{
    l->nameless.lane = l;
    for (size_t i = 0; i < l->n; i++)
        if (l->flows[i] != &l->nameless) flow_clear(q, l->flows[i]);
    flow_clear(q, &l->nameless);
    kvr_mem_put(&q->mem, l->flows, l->cap * sizeof(struct kvr_flow *));
}

/* Those whose clocks are behind that of the class, and that wait for nothing; all: whatever their clocks. */
static void sweep_tenants(struct kvr_queue *q, struct class_state *c, bool all)
{
    for (size_t i = 0; c->tenants && c->tenants_n && i < TENANT_BUCKETS; i++)
        for (struct kvr_tenant **p = &c->tenants[i]; *p;) {
            struct kvr_tenant *t = *p;
            if (t->n || (!all && t->clock > c->clock)) {
                p = &t->next;
                continue;
            }
            *p = t->next;
            c->tenants_n--;
            kvr_mem_put(&q->mem, t, sizeof *t);
        }
    c->sweep_at = KVR_MAX(2 * c->tenants_n, (size_t)SWEEP_FROM);
}

static void class_clear(struct kvr_queue *q, struct class_state *c)
{
    lane_clear(q, &c->shared);
    while (c->pinned) {
        struct kvr_lane *l = c->pinned;
        c->pinned = l->next;
        lane_clear(q, l);
        kvr_mem_put(&q->mem, l, sizeof *l);
    }
    for (size_t i = 0; c->tenants && i < TENANT_BUCKETS; i++)
        for (struct kvr_tenant *t = c->tenants[i], *next; t; t = next) {
            next = t->next;
            kvr_mem_put(&q->mem, t, sizeof *t);
        }
    kvr_mem_put(&q->mem, c->tenants, c->tenants ? TENANT_BUCKETS * sizeof(struct kvr_tenant *) : 0);
}

void kvr_queue_destroy(struct kvr_queue *q)
{
    if (!q) return;
    for (size_t i = 0; i < q->classes_n; i++) class_clear(q, &q->classes[i]);
    kvr_mem_put(&q->mem, q->classes, q->classes_n * sizeof *q->classes);
    struct kvr_mem mem = q->mem;
    kvr_mem_put(&mem, q, sizeof *q);
}

/* ---- classes ----------------------------------------------------------------------------------------- */

static long class_in_family(const struct kvr_queue *q, const char *family, size_t n, uint64_t uncached)
{
    size_t bucket = 0;
    while (bucket + 1 < q->policy.buckets_n && q->policy.buckets[bucket + 1].min_tokens <= uncached) bucket++;
    for (size_t i = 0; i < q->classes_n; i++)
        if (kvr_span_is(family, n, q->classes[i].cfg.family) && !strcmp(q->classes[i].cfg.bucket, q->policy.buckets[bucket].name))
            return (long)i;
    return -1;
}

static long class_named(const struct kvr_queue *q, const char *name, size_t n, uint64_t uncached)
{
    if (n == 0) return -1;
    for (size_t i = 0; i < q->classes_n; i++)
        if (!q->classes[i].cfg.family[0] && kvr_span_is(name, n, q->classes[i].cfg.name)) return (long)i;
    return class_in_family(q, name, n, uncached);
}

size_t kvr_queue_class(const struct kvr_queue *q, const char *name, size_t n, uint64_t uncached)
{
    long at = class_named(q, name, n, uncached);
    if (at < 0) at = class_named(q, q->policy.default_family, strlen(q->policy.default_family), uncached);
    return at < 0 ? 0 : (size_t)at;
}

const struct kvr_class_config *kvr_queue_class_config(const struct kvr_queue *q, size_t class_at)
{
    return &q->classes[class_at].cfg;
}

const char *kvr_queue_limit_name(enum kvr_queue_limit kind)
{
    static const char *const names[] = {"none", "requests", "raw_isl_tokens", "cached_tokens"};
    return (unsigned)kind < KVR_ARRAY_LEN(names) ? names[kind] : "none";
}

static enum kvr_queue_limit limit_hit(const struct class_state *c, size_t workers, uint64_t *current, uint64_t *limit)
{
    const struct {
        double per_worker;
        uint64_t now;
        enum kvr_queue_limit kind;
    } rows[] = {
        {c->cfg.requests_per_worker, c->stats.requests, KVR_LIMIT_REQUESTS},
        {c->cfg.raw_isl_per_worker, c->stats.isl_tokens, KVR_LIMIT_RAW_ISL_TOKENS},
        {c->cfg.cached_tokens_per_worker, c->stats.cached_tokens, KVR_LIMIT_CACHED_TOKENS},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        double most = rows[i].per_worker * (double)workers;
        if (rows[i].per_worker < 0 || (double)rows[i].now < most) continue;
        *current = rows[i].now;
        *limit = (uint64_t)most;
        return rows[i].kind;
    }
    return KVR_LIMIT_NONE;
}

/* ---- a flow's heap of items -------------------------------------------------------------------------- */

static bool before(const struct kvr_queue_item *a, const struct kvr_queue_item *b)
{
    if (a->strict_priority != b->strict_priority) return a->strict_priority > b->strict_priority;
    if (a->score != b->score) return a->score > b->score;
    return a->sequence < b->sequence;
}

static void put_at(struct kvr_flow *f, size_t at, struct kvr_queue_item *it)
{
    f->heap[at] = it;
    it->heap_at = at;
}

static void sift_up(struct kvr_flow *f, size_t at)
{
    struct kvr_queue_item *it = f->heap[at];
    for (; at > 0 && before(it, f->heap[(at - 1) / 2]); at = (at - 1) / 2) put_at(f, at, f->heap[(at - 1) / 2]);
    put_at(f, at, it);
}

static void sift_down(struct kvr_flow *f, size_t at)
{
    struct kvr_queue_item *it = f->heap[at];
    for (;;) {
        size_t kid = 2 * at + 1;
        if (kid >= f->n) break;
        if (kid + 1 < f->n && before(f->heap[kid + 1], f->heap[kid])) kid++;
        if (!before(f->heap[kid], it)) break;
        put_at(f, at, f->heap[kid]);
        at = kid;
    }
    put_at(f, at, it);
}

/* ---- a lane's heap of flows -------------------------------------------------------------------------- */

static bool tenant_first(const struct kvr_tenant *a, const struct kvr_tenant *b)
{
    return a->clock != b->clock ? a->clock < b->clock : a->turn < b->turn;
}

static bool flow_first(const struct kvr_lane *l, size_t a, size_t b)
{
    return tenant_first(l->flows[a]->tenant, l->flows[b]->tenant);
}

static void swap_flows(struct kvr_lane *l, size_t a, size_t b)
{
    struct kvr_flow *f = l->flows[a];
    l->flows[a] = l->flows[b];
    l->flows[b] = f;
    l->flows[a]->lane_at = a;
    l->flows[b]->lane_at = b;
}

/* Its tenant's clock has changed, or it is new at its place. */
static void settle_flow(struct kvr_lane *l, size_t at)
{
    for (; at > 0 && flow_first(l, at, (at - 1) / 2); at = (at - 1) / 2) swap_flows(l, at, (at - 1) / 2);
    for (;;) {
        size_t kid = 2 * at + 1;
        if (kid >= l->n) break;
        if (kid + 1 < l->n && flow_first(l, kid + 1, kid)) kid++;
        if (!flow_first(l, kid, at)) break;
        swap_flows(l, kid, at);
        at = kid;
    }
}

static void lane_take_out(struct kvr_lane *l, struct kvr_flow *f)
{
    size_t at = f->lane_at, last = --l->n;
    if (at == last) return;
    swap_flows(l, at, last);
    settle_flow(l, at);
}

/* ---- lanes, tenants and flows come and go ------------------------------------------------------------ */

static struct kvr_lane *lane_for(struct kvr_queue *q, struct class_state *c, const struct kvr_queue_item *it)
{
    struct kvr_worker pin = it->pinned ? it->pin : (struct kvr_worker){0};
    if (!it->pinned && !it->scope) return &c->shared;
    for (struct kvr_lane *l = c->pinned; l; l = l->next)
        if (l->pinned == it->pinned && l->scope == it->scope && kvr_worker_cmp(l->pin, pin) == 0) return l;
    struct kvr_lane *l = kvr_mem_zget(&q->mem, sizeof *l);
    if (!l) return NULL;
    l->pin = pin;
    l->pinned = it->pinned;
    l->scope = it->scope;
    l->next = c->pinned;
    c->pinned = l;
    return l;
}

static void lane_drop_if_empty(struct kvr_queue *q, struct class_state *c, struct kvr_lane *l)
{
    if (l->n || l->shared) return;
    KVR_UNLINK(c->pinned, l);
    lane_clear(q, l);
    kvr_mem_put(&q->mem, l, sizeof *l);
}

/* Returns: NULL: no memory. */
static struct kvr_tenant *tenant_of(struct kvr_queue *q, struct class_state *c, uint64_t id)
{
    if (!id) return &c->nameless;
    if (!c->tenants && !(c->tenants = kvr_mem_zget(&q->mem, TENANT_BUCKETS * sizeof(struct kvr_tenant *)))) return NULL;
    struct kvr_tenant **bucket = &c->tenants[kvr_mix64_keyed(id, kvr_secret()) % TENANT_BUCKETS];
    for (struct kvr_tenant *t = *bucket; t; t = t->next)
        if (t->id == id) return t;
    if (c->tenants_n >= c->sweep_at || c->tenants_n == KVR_TENANTS_MAX) sweep_tenants(q, c, false);
    if (c->tenants_n == KVR_TENANTS_MAX) {
        c->stats.tenants_merged_total++;
        return &c->nameless;
    }
    struct kvr_tenant *t = kvr_mem_zget(&q->mem, sizeof *t);
    if (!t) return NULL;
    t->id = id;
    t->next = *bucket;
    *bucket = t;
    c->tenants_n++;
    return t;
}

/* Returns: NULL: no memory. */
static struct kvr_flow *flow_of(struct kvr_queue *q, struct kvr_lane *l, struct kvr_tenant *t, const struct class_state *c)
{
    struct kvr_flow *f = &l->nameless;
    if (t != &c->nameless) {
        for (f = t->flows; f; f = f->next)
            if (f->lane == l) return f;
        if (!(f = kvr_mem_zget(&q->mem, sizeof *f))) return NULL;
    }
    f->lane = l;
    f->tenant = t;
    return f;
}

/* An empty flow has its first item: it is in the lane, and its tenant's. */
static void flow_begin(struct kvr_queue *q, struct class_state *c, struct kvr_flow *f)
{
    struct kvr_tenant *t = f->tenant;
    struct kvr_lane *l = f->lane;
    if (!t->n) {
        t->clock = KVR_MAX(t->clock, c->clock);
        t->turn = q->sequence++;
        c->stats.tenants++;
    }
    f->prev = NULL;
    f->next = t->flows;
    if (t->flows) t->flows->prev = f;
    t->flows = f;
    f->lane_at = l->n;
    l->flows[l->n++] = f;
    settle_flow(l, f->lane_at);
}

static void flow_end(struct kvr_queue *q, struct kvr_flow *f)
{
    struct kvr_tenant *t = f->tenant;
    lane_take_out(f->lane, f);
    *(f->prev ? &f->prev->next : &t->flows) = f->next;
    if (f->next) f->next->prev = f->prev;
    if (f != &f->lane->nameless) flow_clear(q, f);
}

/* ---- in and out -------------------------------------------------------------------------------------- */

static uint64_t uncached_of(const struct kvr_queue_item *it)
{
    return KVR_MAX(it->isl > it->cached ? it->isl - it->cached : 0, (uint64_t)1);
}

static double score_of(const struct kvr_queue *q, enum kvr_queue_policy policy, const struct kvr_queue_item *it)
{
    double j = KVR_MAX(it->priority_jump, 0.0), t = (double)(it->arrived_ns - q->started_ns) / 1e9;
    if (policy == KVR_QUEUE_WSPT) return (1 + j) / (double)uncached_of(it);
    return policy == KVR_QUEUE_LCFS ? j + t : j - t;
}

/* The flow for an item, with room for it in it and, if it is empty, for it in the lane. Returns: NULL: no memory. */
static struct kvr_flow *room_for(struct kvr_queue *q, struct class_state *c, struct kvr_lane *l, uint64_t tenant)
{
    struct kvr_tenant *t = tenant_of(q, c, tenant);
    struct kvr_flow *f = t ? flow_of(q, l, t, c) : NULL;
    if (!f) return NULL;
    if (kvr_mem_grow(&q->mem, (void **)&f->heap, &f->cap, f->n + 1, sizeof(struct kvr_queue_item *)) ||
        (!f->n && kvr_mem_grow(&q->mem, (void **)&l->flows, &l->cap, l->n + 1, sizeof(struct kvr_flow *)))) {
        if (!f->n && f != &l->nameless) flow_clear(q, f);
        return NULL;
    }
    return f;
}

/* Returns: 0 or -KVR_ENOMEM. */
static int put_in(struct kvr_queue *q, size_t class_at, struct kvr_queue_item *it)
{
    struct class_state *c = &q->classes[class_at];
    struct kvr_lane *l = lane_for(q, c, it);
    if (!l) return -KVR_ENOMEM;
    struct kvr_flow *f = room_for(q, c, l, it->tenant);
    if (!f) {
        lane_drop_if_empty(q, c, l);
        return -KVR_ENOMEM;
    }
    it->class_at = (uint32_t)class_at;
    it->flow = f;
    it->sequence = q->sequence++;
    it->score = score_of(q, c->cfg.policy, it);
    if (it->tenant && f != &l->nameless) f->tenant->weight = it->tenant_weight > 0 ? it->tenant_weight : 1;
    if (!f->n) flow_begin(q, c, f);
    f->tenant->n++;
    it->newer = NULL;
    it->older = f->newest;
    *(f->newest ? &f->newest->newer : &f->oldest) = it;
    f->newest = it;
    put_at(f, f->n++, it);
    sift_up(f, it->heap_at);
    c->stats.requests++;
    c->stats.isl_tokens += it->isl;
    c->stats.cached_tokens += it->cached;
    q->len++;
    return 0;
}

int kvr_queue_push(struct kvr_queue *q, size_t class_at, size_t workers, struct kvr_queue_item *it, struct kvr_rejection *rejection)
{
    struct class_state *c = &q->classes[class_at];
    uint64_t current = 0, limit = 0;
    enum kvr_queue_limit hit = limit_hit(c, workers, &current, &limit);
    if (hit != KVR_LIMIT_NONE) {
        c->stats.rejected[hit]++;
        *rejection = (struct kvr_rejection){.kind = hit, .current = current, .limit = limit};
        memcpy(rejection->policy_class, c->cfg.name, sizeof rejection->policy_class);
        return -KVR_EQUEUEFULL;
    }
    int rc = put_in(q, class_at, it);
    c->stats.queued_total += rc == 0;
    return rc;
}

int kvr_queue_try(struct kvr_queue *q, size_t class_at, struct kvr_queue_item *it)
{
    return put_in(q, class_at, it);
}

bool kvr_queue_is_full(const struct kvr_queue *q, size_t class_at, size_t workers)
{
    uint64_t current, limit;
    return limit_hit(&q->classes[class_at], workers, &current, &limit) != KVR_LIMIT_NONE;
}

/* Nobody waits: nobody is owed anything. */
static void class_rests(struct kvr_queue *q, struct class_state *c)
{
    c->deficit = 0;
    c->clock = c->nameless.clock = 0;
    sweep_tenants(q, c, true);
}

void kvr_queue_remove(struct kvr_queue *q, struct kvr_queue_item *it)
{
    struct class_state *c = &q->classes[it->class_at];
    struct kvr_flow *f = it->flow;
    struct kvr_tenant *t = f->tenant;
    struct kvr_lane *l = f->lane;
    size_t at = it->heap_at;
    struct kvr_queue_item *moved = f->heap[--f->n];
    if (moved != it) {
        put_at(f, at, moved);
        sift_up(f, at);
        sift_down(f, moved->heap_at);
    }
    *(it->older ? &it->older->newer : &f->oldest) = it->newer;
    *(it->newer ? &it->newer->older : &f->newest) = it->older;
    c->stats.requests--;
    c->stats.isl_tokens -= it->isl;
    c->stats.cached_tokens -= it->cached;
    c->stats.tenants -= --t->n == 0;
    q->len--;
    it->flow = NULL;
    if (!f->n) flow_end(q, f);
    lane_drop_if_empty(q, c, l);
    if (c->stats.requests == 0) class_rests(q, c);
}

/* ---- whose turn it is -------------------------------------------------------------------------------- */

static bool has_aged(const struct class_state *c, const struct kvr_queue_item *it, uint64_t now)
{
    return c->cfg.ageing_ns && now > it->arrived_ns && now - it->arrived_ns >= c->cfg.ageing_ns;
}

static struct kvr_queue_item *flow_head(const struct class_state *c, const struct kvr_flow *f, uint64_t now)
{
    return has_aged(c, f->oldest, now) ? f->oldest : f->heap[0];
}

/* Aged ones go first, oldest first. */
static bool goes_first(const struct class_state *c, const struct kvr_queue_item *a, const struct kvr_queue_item *b, uint64_t now)
{
    bool aged = has_aged(c, a, now);
    if (aged != has_aged(c, b, now)) return aged;
    return aged ? a->sequence < b->sequence : before(a, b);
}

/* Who is asked whether an item may go, at what time. */
struct asked {
    uint64_t now;
    bool (*ready)(void *ctx, const struct kvr_queue_item *item);
    void *ctx;
};

/* The head of the first flow that may go, of the first LOOKS; NULL: none. `edge` has the places of the heap whose parents were looked at.
 */
static struct kvr_queue_item *lane_head(const struct class_state *c, const struct kvr_lane *l, const struct asked *a)
{
    size_t edge[LOOKS + 1] = {0}, n = l->n > 0;
    for (int looks = 0; n && looks < LOOKS; looks++) {
        size_t best = 0;
        for (size_t i = 1; i < n; i++)
            if (flow_first(l, edge[i], edge[best])) best = i;
        size_t at = edge[best];
        struct kvr_queue_item *it = flow_head(c, l->flows[at], a->now);
        if (a->ready(a->ctx, it)) return it;
        edge[best] = edge[--n];
        for (size_t kid = 2 * at + 1; kid <= 2 * at + 2 && kid < l->n; kid++) edge[n++] = kid;
    }
    return NULL;
}

/* Of two lanes: by the clocks of their tenants; of one tenant as within a lane. */
static bool head_first(const struct class_state *c, const struct kvr_queue_item *a, const struct kvr_queue_item *b, uint64_t now)
{
    const struct kvr_tenant *of_a = a->flow->tenant, *of_b = b->flow->tenant;
    return of_a == of_b ? goes_first(c, a, b, now) : tenant_first(of_a, of_b);
}

static struct kvr_queue_item *class_head(const struct class_state *c, const struct asked *a)
{
    struct kvr_queue_item *best = lane_head(c, &c->shared, a);
    for (const struct kvr_lane *l = c->pinned; l; l = l->next) {
        struct kvr_queue_item *it = lane_head(c, l, a);
        if (it && (!best || head_first(c, it, best, a->now))) best = it;
    }
    return best;
}

#define OUTPUT_WEIGHT 8.0 /* kvroute/queue.h says why */

/* The tenant is given a request. One that could not go for a while, and is behind, is not given what it has missed. */
static void charge(struct kvr_queue *q, struct class_state *c, const struct kvr_queue_item *it)
{
    struct kvr_tenant *t = it->flow->tenant;
    c->clock = KVR_MAX(t->clock, c->clock);
    t->clock = c->clock + ((double)uncached_of(it) + OUTPUT_WEIGHT * (double)it->output) / t->weight;
    t->turn = q->sequence++;
    for (struct kvr_flow *f = t->flows; f; f = f->next) settle_flow(f->lane, f->lane_at);
}

static struct kvr_queue_item *serve_class(struct kvr_queue *q, size_t at)
{
    struct class_state *c = &q->classes[at];
    struct kvr_queue_item *it = c->head;
    c->deficit -= (double)uncached_of(it);
    q->last = at;
    q->any_served = true;
    q->cursor = (at + 1) % q->classes_n;
    charge(q, c, it);
    kvr_queue_remove(q, it); /* resets the deficit of a class that is empty now */
    return it;
}

static bool affordable(const struct class_state *c)
{
    return c->head && c->deficit >= (double)uncached_of(c->head);
}

static double lack(const struct class_state *c)
{
    return (double)uncached_of(c->head) - c->deficit;
}

/* The fewest rounds after which somebody can pay, for the walk that found nobody. */
static double rounds_needed(const struct kvr_queue *q)
{
    double least = INFINITY;
    for (size_t i = 0; i < q->classes_n; i++) {
        const struct class_state *c = &q->classes[i];
        if (c->head) least = KVR_MIN(least, ceil(lack(c) / c->cfg.quantum));
    }
    return least;
}

struct kvr_queue_item *kvr_queue_pop(struct kvr_queue *q, uint64_t now, bool (*ready)(void *ctx, const struct kvr_queue_item *item),
                                     void *ctx)
{
    const struct asked asked = {now, ready, ctx};
    bool any = false;
    if (q->len == 0) return NULL;
    for (size_t i = 0; i < q->classes_n; i++) {
        q->classes[i].head = class_head(&q->classes[i], &asked);
        any |= q->classes[i].head != NULL;
    }
    if (!any) return NULL;
    if (q->any_served && affordable(&q->classes[q->last])) return serve_class(q, q->last);
    for (size_t i = 0; i < q->classes_n; i++) {
        size_t at = (q->cursor + i) % q->classes_n;
        struct class_state *c = &q->classes[at];
        if (!c->head) continue;
        if (!affordable(c)) c->deficit += c->cfg.quantum;
        if (affordable(c)) return serve_class(q, at);
    }
    double rounds = rounds_needed(q);
    for (size_t i = 0; i < q->classes_n; i++)
        if (q->classes[i].head) q->classes[i].deficit += rounds * q->classes[i].cfg.quantum;
    size_t best = q->classes_n;
    for (size_t i = 0; i < q->classes_n; i++) {
        size_t at = (q->cursor + i) % q->classes_n;
        if (!q->classes[at].head) continue;
        if (affordable(&q->classes[at])) return serve_class(q, at);
        if (best == q->classes_n || lack(&q->classes[at]) < lack(&q->classes[best])) best = at;
    }
    return serve_class(q, best); /* rounding left it a hair short */
}

struct kvr_queue_item *kvr_queue_take_any(struct kvr_queue *q)
{
    for (size_t i = 0; i < q->classes_n; i++) {
        struct class_state *c = &q->classes[i];
        struct kvr_lane *l = c->shared.n ? &c->shared : c->pinned;
        if (!l) continue;
        struct kvr_queue_item *it = l->flows[0]->oldest;
        kvr_queue_remove(q, it);
        return it;
    }
    return NULL;
}

/* ---- other classes ----------------------------------------------------------------------------------- */

/* An item as the queue of before has it: while the next one is filled, its fields are that one's. */
struct kept {
    struct kvr_queue_item *item, was;
};

static void keep_lane(const struct kvr_lane *l, struct kept *kept, size_t *n)
{
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < l->flows[i]->n; k++) {
            struct kvr_queue_item *it = l->flows[i]->heap[k];
            kept[(*n)++] = (struct kept){it, *it};
        }
}

static int by_arrival(const void *a, const void *b)
{
    uint64_t x = ((const struct kept *)a)->was.sequence, y = ((const struct kept *)b)->was.sequence;
    return x < y ? -1 : x > y;
}

static void keep_all(const struct kvr_queue *q, struct kept *kept)
{
    size_t n = 0;
    for (size_t i = 0; i < q->classes_n; i++) {
        keep_lane(&q->classes[i].shared, kept, &n);
        for (const struct kvr_lane *l = q->classes[i].pinned; l; l = l->next) keep_lane(l, kept, &n);
    }
    KVR_ASSERT(n == q->len);
    if (n) qsort(kept, n, sizeof *kept, by_arrival);
}

/* What was counted, not what waits. */
static void count_on(struct kvr_queue *next, const struct kvr_queue *q)
{
    for (size_t i = 0; i < next->classes_n; i++)
        for (size_t k = 0; k < q->classes_n; k++) {
            struct kvr_class_stats *to = &next->classes[i].stats;
            const struct kvr_class_stats *from = &q->classes[k].stats;
            if (strcmp(next->classes[i].cfg.name, q->classes[k].cfg.name) != 0) continue;
            memcpy(to->rejected, from->rejected, sizeof to->rejected);
            to->queued_total = from->queued_total;
            to->tenants_merged_total += from->tenants_merged_total;
        }
}

/* The queue of before keeps all its own memory until the next one has everything, so that it can stay. */
int kvr_queue_set_policy(struct kvr_queue *q, const struct kvr_policy *policy, kvr_queue_class_fn *class_of, void *ctx)
{
    struct kvr_queue *next, before;
    size_t len = q->len, n = 0;
    int rc = kvr_queue_create(&q->mem.a, policy, q->started_ns, &next);
    if (rc) return rc;
    struct kept *kept = kvr_mem_zget(&q->mem, (len + 1) * sizeof *kept);
    if (!kept) {
        kvr_queue_destroy(next);
        return -KVR_ENOMEM;
    }
    keep_all(q, kept);
    for (; rc == 0 && n < len; n++) rc = put_in(next, class_of(ctx, next, kept[n].item), kept[n].item);
    if (rc) {
        for (size_t i = 0; i < n; i++) *kept[i].item = kept[i].was;
    } else {
        count_on(next, q);
    }
    kvr_mem_put(&q->mem, kept, (len + 1) * sizeof *kept);
    if (rc == 0) {
        before = *q;
        *q = *next;
        *next = before;
    }
    kvr_queue_destroy(next);
    return rc;
}

/* ---- figures ----------------------------------------------------------------------------------------- */

size_t kvr_queue_classes(const struct kvr_queue *q)
{
    return q->classes_n;
}

void kvr_queue_stats(const struct kvr_queue *q, size_t class_at, struct kvr_class_stats *out)
{
    *out = q->classes[class_at].stats;
}

size_t kvr_queue_len(const struct kvr_queue *q)
{
    return q->len;
}

size_t kvr_queue_bytes(const struct kvr_queue *q)
{
    return q->mem.bytes;
}
