/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools: which there are, and who is in which. A pair is known here before it has a rank, and when it has none any more. What a pool holds
 * is the matter of tiers.c.
 */
#include "index/internal.h"

enum { POOLS_MAX = 64 };

size_t kvr__pool_empty(struct kvr_index *ix, struct pool *p, size_t most)
{
    size_t n = 0;
    for (; n < most && p->side.list.tail; n++) kvr__tier_take(&ix->pooled, &p->side.list, p->side.list.tail);
    if (!p->side.list.n) p->side = (struct tier_side){0};
    return n;
}

/* pools_lock is held. */
static struct pool *pool_get(struct kvr_index *ix, uint64_t id)
{
    uint32_t n = 0;
    struct pool *left = NULL; /* nobody is in it any more; the emptiest */
    for (struct pool *p = ix->pools; p; p = p->next, n++) {
        if (p->id == id) return p;
        if (!p->id && (!left || p->side.list.n < left->side.list.n)) left = p;
    }
    if (left && (!left->side.list.n || n == POOLS_MAX)) {
        (void)kvr__pool_empty(ix, left, SIZE_MAX);
        left->id = id;
        return left;
    }
    struct pool *p = n < POOLS_MAX ? kvr_mem_zget(&ix->pools_mem, sizeof *p) : NULL;
    if (!p) return NULL;
    *p = (struct pool){.next = ix->pools, .id = id, .owner = (n + 1) << 2 | KVR_TIER_EXTERNAL};
    return ix->pools = p;
}

/* Where the entry of a pair is, or would be. pools_lock is held. */
static struct pool_member **member_at(struct kvr_index *ix, struct kvr_worker w)
{
    struct pool_member **at = &ix->members;
    while (*at && kvr_worker_cmp((*at)->worker, w)) at = &(*at)->next;
    return at;
}

const struct pool *kvr__pool_find(struct kvr_index *ix, struct kvr_worker w)
{
    const struct pool_member *m = *member_at(ix, w);
    return m ? m->pool : NULL;
}

bool kvr__pool_has(struct kvr_index *ix, struct kvr_worker w)
{
    kvr_lock(&ix->pools_lock);
    bool yes = kvr__pool_find(ix, w) != NULL;
    kvr_unlock(&ix->pools_lock);
    return yes;
}

/* pools_lock is held. */
static void set_lone(struct kvr_index *ix, struct pool_member *m, bool lone)
{
    size_t n = atomic_load_explicit(&ix->lone_n, RLX);
    if (m->lone != lone) atomic_store_explicit(&ix->lone_n, lone ? n + 1 : n - 1, RLX);
    m->lone = lone;
}

/* The pool of a pair whose rank comes or goes. */
static struct pool *rank_changes(struct kvr_index *ix, struct kvr_worker w, bool goes)
{
    kvr_lock(&ix->pools_lock);
    struct pool_member *m = *member_at(ix, w);
    if (m) set_lone(ix, m, goes);
    struct pool *p = m ? m->pool : NULL;
    kvr_unlock(&ix->pools_lock);
    return p;
}

struct pool *kvr__pool_of(struct kvr_index *ix, struct kvr_worker w)
{
    return rank_changes(ix, w, false);
}

void kvr__pool_lone(struct kvr_index *ix, struct kvr_worker w)
{
    (void)rank_changes(ix, w, true);
}

/* pools_lock is held. */
int kvr__pool_enlist(struct kvr_index *ix, struct kvr_worker w, uint64_t pool, struct pool **out)
{
    struct pool_member **at = member_at(ix, w), *m = *at;
    struct pool *p = pool ? pool_get(ix, pool) : NULL;
    if (pool && !p) return -KVR_ECAPACITY;
    if (!pool && m) {
        *at = m->next;
        kvr_mem_put(&ix->pools_mem, m, sizeof *m);
    } else if (pool) {
        if (!m && !(*at = m = kvr_mem_zget(&ix->pools_mem, sizeof *m))) return -KVR_ENOMEM;
        m->worker = w;
        m->pool = p;
    }
    *out = p;
    return 0;
}

void kvr__pools_tidy(struct kvr_index *ix)
{
    kvr_lock(&ix->pools_lock);
    for (struct pool *p = ix->pools; p; p = p->next) {
        const struct pool_member *m = ix->members;
        while (m && m->pool != p) m = m->next;
        if (!m) p->id = 0;
    }
    kvr_unlock(&ix->pools_lock);
}

void kvr__pools_leave(struct kvr_index *ix, uint64_t worker_id)
{
    kvr_lock(&ix->pools_lock);
    for (struct pool_member **at = &ix->members, *m; (m = *at) != NULL;) {
        if (m->worker.worker_id != worker_id) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        set_lone(ix, m, false);
        kvr_mem_put(&ix->pools_mem, m, sizeof *m);
    }
    kvr_unlock(&ix->pools_lock);
}

/* The oldest block of the fullest. pools_lock is held. */
static bool give_up(struct kvr_index *ix)
{
    struct pool *most = ix->pools;
    for (struct pool *p = most; p; p = p->next)
        if (p->side.list.n > most->side.list.n) most = p;
    if (!most || !most->side.list.n) return false;
    most->side.given_up++;
    kvr__tier_take(&ix->pooled, &most->side.list, most->side.list.tail);
    return true;
}

int kvr__pool_put(struct kvr_index *ix, struct pool *p, const struct tier_entry *e)
{
    int rc = kvr__tier_put(&ix->pooled, &p->side.list, e);
    return rc && give_up(ix) ? kvr__tier_put(&ix->pooled, &p->side.list, e) : rc;
}

static void halve(struct kvr_index *ix)
{
    size_t half = ix->pooled.n / 2;
    uint32_t free = 1;
    while (ix->pooled.n > half) (void)give_up(ix);
    for (struct pool *p = ix->pools; p; p = p->next) kvr__tier_pack(&ix->pooled, &p->side.list, &free, NULL, NULL);
    kvr__tier_packed(&ix->pooled);
}

void kvr__pools_keep_cap(struct kvr_index *ix)
{
    const struct kvr_mem *m = &ix->pools_mem;
    while (m->bytes_max && m->bytes > m->bytes_max && ix->pooled.n) halve(ix);
}

void kvr__pools_destroy(struct kvr_index *ix)
{
    kvr__tier_set_free(&ix->pooled);
    while (ix->members) {
        struct pool_member *m = ix->members;
        ix->members = m->next;
        kvr_mem_put(&ix->pools_mem, m, sizeof *m);
    }
    while (ix->pools) {
        struct pool *p = ix->pools;
        ix->pools = p->next;
        kvr_mem_put(&ix->pools_mem, p, sizeof *p);
    }
}
