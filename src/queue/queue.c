/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes are binary heaps of item pointers (an item knows its place, so it can leave from the middle) and, for ageing, a
 * list by arrival. A lane is made when its first item comes and goes with its last, except the shared ones.
 *
 * Costs: push, pop and remove are O(log n) in the lane; pop asks `ready` once for the head of every lane that is not empty.
 */
#include "base/base.h"

#include <math.h>
#include <string.h>
#include <kvroute/queue.h>

struct kvr_lane {
    struct kvr_lane *next; /* of the class */
    struct kvr_worker pin;
    bool shared;
    struct kvr_queue_item **heap;
    size_t n, cap;
    struct kvr_queue_item *oldest, *newest;
};

struct class_state {
    struct kvr_class_config cfg;
    struct kvr_lane shared, *pinned;
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
    }
    q->mem = mem;
    *out = q;
    return 0;
}

static void lane_clear(struct kvr_queue *q, struct kvr_lane *l)
{
    kvr_mem_put(&q->mem, l->heap, l->cap * sizeof(struct kvr_queue_item *));
}

void kvr_queue_destroy(struct kvr_queue *q)
{
    if (!q) return;
    for (size_t i = 0; i < q->classes_n; i++) {
        lane_clear(q, &q->classes[i].shared);
        while (q->classes[i].pinned) {
            struct kvr_lane *l = q->classes[i].pinned;
            q->classes[i].pinned = l->next;
            lane_clear(q, l);
            kvr_mem_put(&q->mem, l, sizeof *l);
        }
    }
    kvr_mem_put(&q->mem, q->classes, q->classes_n * sizeof *q->classes);
    struct kvr_mem mem = q->mem;
    kvr_mem_put(&mem, q, sizeof *q);
}

/* ---- classes ----------------------------------------------------------------------------------------- */

static bool is(const char *name, const char *s, size_t n)
{
    return strlen(name) == n && memcmp(name, s, n) == 0;
}

static long class_in_family(const struct kvr_queue *q, const char *family, size_t n, uint64_t uncached)
{
    size_t bucket = 0;
    while (bucket + 1 < q->policy.buckets_n && q->policy.buckets[bucket + 1].min_tokens <= uncached) bucket++;
    for (size_t i = 0; i < q->classes_n; i++)
        if (is(q->classes[i].cfg.family, family, n) && !strcmp(q->classes[i].cfg.bucket, q->policy.buckets[bucket].name)) return (long)i;
    return -1;
}

static long class_named(const struct kvr_queue *q, const char *name, size_t n, uint64_t uncached)
{
    if (n == 0) return -1;
    for (size_t i = 0; i < q->classes_n; i++)
        if (!q->classes[i].cfg.family[0] && is(q->classes[i].cfg.name, name, n)) return (long)i;
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

/* ---- heaps ------------------------------------------------------------------------------------------- */

static bool before(const struct kvr_queue_item *a, const struct kvr_queue_item *b)
{
    if (a->strict_priority != b->strict_priority) return a->strict_priority > b->strict_priority;
    if (a->score != b->score) return a->score > b->score;
    return a->sequence < b->sequence;
}

static void put_at(struct kvr_lane *l, size_t at, struct kvr_queue_item *it)
{
    l->heap[at] = it;
    it->heap_at = at;
}

static void sift_up(struct kvr_lane *l, size_t at)
{
    struct kvr_queue_item *it = l->heap[at];
    for (; at > 0 && before(it, l->heap[(at - 1) / 2]); at = (at - 1) / 2) put_at(l, at, l->heap[(at - 1) / 2]);
    put_at(l, at, it);
}

static void sift_down(struct kvr_lane *l, size_t at)
{
    struct kvr_queue_item *it = l->heap[at];
    for (;;) {
        size_t kid = 2 * at + 1;
        if (kid >= l->n) break;
        if (kid + 1 < l->n && before(l->heap[kid + 1], l->heap[kid])) kid++;
        if (!before(l->heap[kid], it)) break;
        put_at(l, at, l->heap[kid]);
        at = kid;
    }
    put_at(l, at, it);
}

static struct kvr_lane *lane_for(struct kvr_queue *q, struct class_state *c, const struct kvr_queue_item *it)
{
    if (!it->pinned) return &c->shared;
    for (struct kvr_lane *l = c->pinned; l; l = l->next)
        if (kvr_worker_cmp(l->pin, it->pin) == 0) return l;
    struct kvr_lane *l = kvr_mem_zget(&q->mem, sizeof *l);
    if (!l) return NULL;
    l->pin = it->pin;
    l->next = c->pinned;
    c->pinned = l;
    return l;
}

static void lane_drop_if_empty(struct kvr_queue *q, struct class_state *c, struct kvr_lane *l)
{
    if (l->n || l->shared) return;
    struct kvr_lane **p = &c->pinned;
    while (*p != l) p = &(*p)->next;
    *p = l->next;
    lane_clear(q, l);
    kvr_mem_put(&q->mem, l, sizeof *l);
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
    struct kvr_lane *l = lane_for(q, c, it);
    if (!l) return -KVR_ENOMEM;
    if (kvr_mem_grow(&q->mem, (void **)&l->heap, &l->cap, l->n + 1, sizeof(struct kvr_queue_item *))) {
        lane_drop_if_empty(q, c, l);
        return -KVR_ENOMEM;
    }
    it->class_at = (uint32_t)class_at;
    it->lane = l;
    it->sequence = q->sequence++;
    it->score = score_of(q, c->cfg.policy, it);
    it->newer = NULL;
    it->older = l->newest;
    *(l->newest ? &l->newest->newer : &l->oldest) = it;
    l->newest = it;
    put_at(l, l->n++, it);
    sift_up(l, it->heap_at);
    c->stats.requests++;
    c->stats.queued_total++;
    c->stats.isl_tokens += it->isl;
    c->stats.cached_tokens += it->cached;
    q->len++;
    return 0;
}

void kvr_queue_remove(struct kvr_queue *q, struct kvr_queue_item *it)
{
    struct class_state *c = &q->classes[it->class_at];
    struct kvr_lane *l = it->lane;
    size_t at = it->heap_at;
    struct kvr_queue_item *moved = l->heap[--l->n];
    if (moved != it) {
        put_at(l, at, moved);
        sift_up(l, at);
        sift_down(l, moved->heap_at);
    }
    *(it->older ? &it->older->newer : &l->oldest) = it->newer;
    *(it->newer ? &it->newer->older : &l->newest) = it->older;
    c->stats.requests--;
    c->stats.isl_tokens -= it->isl;
    c->stats.cached_tokens -= it->cached;
    q->len--;
    it->lane = NULL;
    lane_drop_if_empty(q, c, l);
    if (c->stats.requests == 0) c->deficit = 0;
}

/* ---- whose turn it is -------------------------------------------------------------------------------- */

static bool has_aged(const struct class_state *c, const struct kvr_queue_item *it, uint64_t now)
{
    return c->cfg.ageing_ns && now > it->arrived_ns && now - it->arrived_ns >= c->cfg.ageing_ns;
}

static struct kvr_queue_item *lane_head(const struct class_state *c, const struct kvr_lane *l, uint64_t now)
{
    if (l->n == 0) return NULL;
    return has_aged(c, l->oldest, now) ? l->oldest : l->heap[0];
}

/* Aged ones go first, oldest first. */
static bool goes_first(const struct class_state *c, const struct kvr_queue_item *a, const struct kvr_queue_item *b, uint64_t now)
{
    bool aged = has_aged(c, a, now);
    if (aged != has_aged(c, b, now)) return aged;
    return aged ? a->sequence < b->sequence : before(a, b);
}

static struct kvr_queue_item *class_head(const struct class_state *c, uint64_t now,
                                         bool (*ready)(void *ctx, const struct kvr_queue_item *item), void *ctx)
{
    struct kvr_queue_item *best = lane_head(c, &c->shared, now);
    if (best && !ready(ctx, best)) best = NULL;
    for (const struct kvr_lane *l = c->pinned; l; l = l->next) {
        struct kvr_queue_item *it = lane_head(c, l, now);
        if (it && ready(ctx, it) && (!best || goes_first(c, it, best, now))) best = it;
    }
    return best;
}

static struct kvr_queue_item *serve_class(struct kvr_queue *q, size_t at)
{
    struct class_state *c = &q->classes[at];
    struct kvr_queue_item *it = c->head;
    c->deficit -= (double)uncached_of(it);
    q->last = at;
    q->any_served = true;
    q->cursor = (at + 1) % q->classes_n;
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
    bool any = false;
    if (q->len == 0) return NULL;
    for (size_t i = 0; i < q->classes_n; i++) {
        q->classes[i].head = class_head(&q->classes[i], now, ready, ctx);
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
        struct kvr_queue_item *it = l->oldest;
        kvr_queue_remove(q, it);
        return it;
    }
    return NULL;
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
