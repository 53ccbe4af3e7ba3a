/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Applying many events. A software pipeline: while one event is applied, the cache lines that the next ones need
 * are fetched, one stage every LAG events: its arrays, the name table's buckets, the proposed run's reference, the run's header, the ends
 * of the run's arrays. Fetching is only a hint; every stage looks things up again.
 */
#include "index/internal.h"

enum { LAG = 6, WINDOW = 512 };

struct pipe {
    struct lane *ln;
    struct rank *rk;
    const struct kvr_event *ev;
    uint32_t id;
};

static bool first_name(const struct kvr_event *ev, uint64_t *name)
{
    if (ev->kind == KVR_EVENT_REMOVED && ev->removed_n) *name = ev->removed[0];
    else if (ev->kind == KVR_EVENT_STORED && ev->has_parent) *name = ev->parent_hash;
    else return false;
    return true;
}

static void fetch_payload(const struct kvr_event *ev)
{
    const char *p = ev->kind == KVR_EVENT_STORED ? (const char *)ev->blocks : (const char *)ev->removed;
    size_t bytes = ev->kind == KVR_EVENT_STORED ? ev->blocks_n * sizeof *ev->blocks : ev->removed_n * 8;
    for (size_t i = 0; i < bytes && i < 512; i += 64) __builtin_prefetch(p + i);
}

static void fetch_ref(struct pipe *p)
{
    uint64_t name;
    p->id = first_name(p->ev, &name) ? kvr__names_first(p->ln, name) : 0;
    if (p->id) __builtin_prefetch(kvr__ref(p->ln, p->id));
}

static void fetch_header(const struct pipe *p)
{
    if (p->id) __builtin_prefetch(kvr__run(p->ln, p->id), 1);
}

static void fetch_ends(const struct pipe *p)
{
    struct run *r = p->id ? kvr__run(p->ln, p->id) : NULL;
    if (!r) return;
    uint32_t len = kvr__len(r);
    const uint64_t *names = kvr__names_of(r) + len;
    __builtin_prefetch(names, 1);
    if (p->ev->kind == KVR_EVENT_STORED) __builtin_prefetch(r->a + len, 1);
    size_t more = p->ev->kind == KVR_EVENT_STORED ? 1 : p->ev->removed_n;
    for (size_t i = 1; i <= more && i <= len && i < 64; i += 8) __builtin_prefetch(names - i);
}

/* Events of one lane, in order. The lane is locked. */
static size_t run_pipe(struct pipe *p, size_t n, int *rc)
{
    size_t bad = 0;
    for (size_t i = 0; i < n + 5 * LAG; i++) {
        if (i < n) fetch_payload(p[i].ev);
        if (i >= LAG && i - LAG < n) kvr__fetch_buckets(p[i - LAG].ln, p[i - LAG].ev);
        if (i >= 2 * LAG && i - 2 * LAG < n) fetch_ref(&p[i - 2 * LAG]);
        if (i >= 3 * LAG && i - 3 * LAG < n) fetch_header(&p[i - 3 * LAG]);
        if (i >= 4 * LAG && i - 4 * LAG < n) fetch_ends(&p[i - 4 * LAG]);
        if (i < 5 * LAG) continue;
        struct pipe *x = &p[i - 5 * LAG];
        rc[i - 5 * LAG] = kvr__apply_one(x->ln, x->rk, x->ev);
        bad += rc[i - 5 * LAG] != 0;
    }
    return bad;
}

/* The pairs of events. To make one lets go of the lock, and what was found before may be gone then. */
static void find_ranks(struct kvr_index *ix, const struct kvr_event *ev, size_t n, struct rank **rk)
{
    bool made = false;
    for (size_t i = 0; i < n; i++) {
        rk[i] = kvr__rank_find(ix, ev[i].worker);
        if (rk[i] || ev[i].kind != KVR_EVENT_STORED) continue;
        (void)kvr__rank_get(ix, ev[i].worker, &rk[i]);
        made = true;
    }
    for (size_t i = 0; made && i < n; i++) rk[i] = kvr__rank_find(ix, ev[i].worker);
}

/* Up to WINDOW events: those that need no special care go through the pipe of their lane. */
static size_t apply_window(struct kvr_index *ix, const struct kvr_event *events, size_t n, int *results)
{
    struct pipe p[WINDOW];
    size_t place[WINDOW], bad = 0;
    int rc[WINDOW];
    uint64_t lanes = 0;
    struct rank *rk[WINDOW];
    find_ranks(ix, events, n, rk);
    for (size_t i = 0; i < n; i++)
        if (rk[i]) lanes |= UINT64_C(1) << (rk[i]->lane - ix->lanes);
    for (; lanes; lanes &= lanes - 1) {
        struct lane *ln = &ix->lanes[__builtin_ctzll(lanes)];
        size_t k = 0;
        for (size_t i = 0; i < n; i++) {
            if (!rk[i] || rk[i]->lane != ln) continue;
            place[k] = i;
            p[k++] = (struct pipe){ln, rk[i], &events[i], 0};
        }
        kvr_lock(&ln->lock);
        bad += run_pipe(p, k, rc);
        kvr_unlock(&ln->lock);
        for (size_t i = 0; results && i < k; i++) results[place[i]] = rc[i];
    }
    for (size_t i = 0; i < n; i++) {
        if (rk[i]) continue;
        int one = kvr__apply_alone(ix, &events[i]);
        bad += one != 0;
        if (results) results[i] = one;
    }
    return bad;
}

static bool is_plain(const struct kvr_index *ix, const struct kvr_event *ev)
{
    bool more = ix->config.clear_worker_wide || atomic_load_explicit(&ix->windowed_n, ACQ); /* than the tree is cleared */
    return ev->tier == KVR_TIER_DEVICE && !(ev->kind == KVR_EVENT_CLEARED && more);
}

size_t kvr_index_apply_batch(struct kvr_index *ix, const struct kvr_event *events, size_t n, int *results)
{
    size_t bad = 0;
    for (size_t i = 0, k; i < n; i += k) {
        k = 0;
        while (i + k < n && k < WINDOW && is_plain(ix, &events[i + k])) k++;
        if (k == 0) {
            int one = kvr_index_apply(ix, &events[i]);
            bad += one != 0;
            if (results) results[i] = one;
            k = 1;
            continue;
        }
        kvr_read_lock(&ix->ranks_lock);
        bad += apply_window(ix, events + i, k, results ? results + i : NULL);
        kvr_rw_unlock(&ix->ranks_lock);
    }
    return bad;
}
