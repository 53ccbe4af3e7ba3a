/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dump and restore. A dump takes one rank at a time: under the lane's lock it copies what the rank holds into
 * events, then emits them without any lock, so that a slow receiver stops nobody. What it needs is the size of the
 * largest rank; each rank is as it was at one moment.
 *
 * A walk goes over one rank in pieces, for those that can make up for what happens meanwhile: walks.c.
 *
 * Of lower tiers the copy may have less, never more: a block that was stored behind one that has gone meanwhile has no place there, and
 * of several copies one is told, as the events since may tell of the others.
 */
#include "index/internal.h"

#include "base/order.h"

struct record { /* one event of the copy; blocks are copy.blocks[first..first + n) */
    size_t first, n;
    uint64_t parent_hash;
    uint32_t position;
    bool has_parent;
    enum kvr_tier tier;
    struct kvr_lower lower;
};
struct copy {
    struct kvr_mem mem;
    struct record *records;
    size_t records_n, records_cap;
    struct kvr_block *blocks;
    size_t blocks_n, blocks_cap;
    uint32_t *order; /* runs, parents first */
    size_t order_n, order_cap;
};

static void copy_free(struct copy *c)
{
    kvr_mem_put(&c->mem, c->records, c->records_cap * sizeof *c->records);
    kvr_mem_put(&c->mem, c->blocks, c->blocks_cap * sizeof *c->blocks);
    kvr_mem_put(&c->mem, c->order, c->order_cap * sizeof *c->order);
}

/* ---- order ---------------------------------------------------------------------------------------------- */

static uint32_t depth_of(const struct lane *ln, uint32_t run)
{
    uint32_t d = 0;
    for (; run >= IDS_RESERVED; run = kvr__run(ln, run)->parent) d++;
    return d;
}

/* The rank's runs, parents before children. */
static int order_runs(const struct lane *ln, const struct rank *rk, struct copy *c)
{
    size_t cap = c->order_cap / 2;
    if (rk->held_n > cap) {
        cap = rk->held_n;
        uint32_t *more = kvr_mem_resize(&c->mem, c->order, c->order_cap * sizeof *c->order, cap * 2 * sizeof *c->order);
        if (!more) return -KVR_ENOMEM;
        c->order = more;
        c->order_cap = cap * 2;
    }
    uint64_t *key = (uint64_t *)(void *)c->order; /* depth << 32 | run, then runs alone */
    for (size_t i = 0; i < rk->held_n; i++) key[i] = (uint64_t)depth_of(ln, rk->held[i].run) << 32 | rk->held[i].run;
    if (rk->held_n) qsort(key, rk->held_n, sizeof *key, kvr_rising_u64);
    for (size_t i = 0; i < rk->held_n; i++) c->order[i] = (uint32_t)key[i];
    c->order_n = rk->held_n;
    return 0;
}

/* ---- copying -------------------------------------------------------------------------------------------- */

static int add_record(const struct lane *ln, const struct rank *rk, struct copy *c, struct run *r, uint32_t off, size_t n)
{
    if (kvr_mem_grow(&c->mem, (void **)&c->records, &c->records_cap, c->records_n + 1, sizeof *c->records)) return -KVR_ENOMEM;
    if (kvr_mem_grow(&c->mem, (void **)&c->blocks, &c->blocks_cap, c->blocks_n + n, sizeof *c->blocks)) return -KVR_ENOMEM;
    struct record *e = &c->records[c->records_n++];
    *e = (struct record){.first = c->blocks_n, .n = n};
    struct run *up = off == 0 && r->parent >= IDS_RESERVED ? kvr__run(ln, r->parent) : NULL;
    e->has_parent = off > 0 || up;
    if (off) e->parent_hash = kvr__block_name(ln, rk, r, off - 1);
    else if (up) e->parent_hash = kvr__block_name(ln, rk, up, r->poff - 1u);
    else if (r->parent == FLOAT_RUN) e->position = r->position;
    c->blocks_n += n;
    return 0;
}

/* Second names: every name of a block but the first. */
static int copy_more_names(const struct lane *ln, const struct rank *rk, struct copy *c, struct run *r, uint32_t head)
{
    for (uint32_t id = head; id; id = kvr__run(ln, id)->next) {
        const struct run *a = kvr__run(ln, id);
        for (uint32_t i = 0; i < kvr__len(a); i++) {
            uint32_t off = a->poff + i;
            if (kvr__alias_first(ln, head, off) == a->a[i]) continue;
            if (add_record(ln, rk, c, r, off, 1)) return -KVR_ENOMEM;
            c->blocks[c->blocks_n - 1] = (struct kvr_block){a->a[i], r->a[off]};
        }
    }
    return 0;
}

static int copy_run(const struct lane *ln, const struct rank *rk, struct copy *c, struct run *r)
{
    struct grip g = kvr__grip(r, rk->slot);
    uint32_t head = kvr__grip_alias(r, g);
    if (add_record(ln, rk, c, r, 0, g.cut)) return -KVR_ENOMEM;
    struct kvr_block *b = c->blocks + c->records[c->records_n - 1].first;
    for (uint32_t i = 0; i < g.cut; i++) b[i] = (struct kvr_block){head ? kvr__alias_first(ln, head, i) : kvr__names_of(r)[i], r->a[i]};
    return head ? copy_more_names(ln, rk, c, r, head) : 0;
}

/* Lower tiers: one event a block, which may come before its parent. At most `most` blocks; *id is the next one then. */
static int copy_edges(const struct lane *ln, const struct rank *rk, struct copy *c, enum kvr_tier tier, uint32_t *id, size_t most,
                      bool in_pieces)
{
    for (; *id && most; most--) {
        if (kvr_mem_grow(&c->mem, (void **)&c->records, &c->records_cap, c->records_n + 1, sizeof *c->records)) return -KVR_ENOMEM;
        if (kvr_mem_grow(&c->mem, (void **)&c->blocks, &c->blocks_cap, c->blocks_n + 1, sizeof *c->blocks)) return -KVR_ENOMEM;
        struct kvr_event ev;
        size_t first = c->blocks_n++;
        *id = kvr__tier_dump(ln, &rk->tier[tier], *id, &ev, &c->blocks[first]);
        if (in_pieces) ev.lower.copies = 1;
        c->records[c->records_n++] = (struct record){
            .first = first, .n = 1, .tier = tier, .has_parent = ev.has_parent, .parent_hash = ev.parent_hash, .lower = ev.lower};
    }
    return 0;
}

static int copy_rank(const struct rank *rk, struct copy *c)
{
    const struct lane *ln = rk->lane;
    c->records_n = c->blocks_n = 0;
    int rc = order_runs(ln, rk, c);
    for (size_t i = 0; i < c->order_n && rc == 0; i++) rc = copy_run(ln, rk, c, kvr__run(ln, c->order[i]));
    for (enum kvr_tier t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT && rc == 0; t++) {
        uint32_t id = rk->tier[t].list.head;
        rc = copy_edges(ln, rk, c, t, &id, SIZE_MAX, false);
    }
    return rc;
}

/* ---- public --------------------------------------------------------------------------------------------- */

static int emit_copy(const struct copy *c, struct kvr_worker w, uint64_t *next_id, kvr_index_emit *emit, void *ctx)
{
    int rc = 0;
    for (size_t i = 0; i < c->records_n && rc == 0; i++) {
        const struct record *e = &c->records[i];
        struct kvr_event ev = {.event_id = (*next_id)++,
                               .worker = w,
                               .tier = e->tier,
                               .kind = KVR_EVENT_STORED,
                               .has_parent = e->has_parent,
                               .parent_hash = e->parent_hash,
                               .has_start_position = e->position > 0,
                               .start_position = e->position,
                               .blocks = c->blocks + e->first,
                               .blocks_n = e->n,
                               .lower = e->lower};
        rc = emit(ctx, &ev);
    }
    return rc;
}

static int dump_worker(struct kvr_index *ix, struct copy *c, struct kvr_worker w, uint64_t *next_id, kvr_index_emit *emit, void *ctx)
{
    int rc = 0;
    kvr_read_lock(&ix->ranks_lock);
    struct rank *rk = kvr__rank_find(ix, w);
    if (rk) {
        kvr_lock(&rk->lane->lock);
        rc = copy_rank(rk, c);
        kvr_unlock(&rk->lane->lock);
    }
    kvr_rw_unlock(&ix->ranks_lock);
    return rk && rc == 0 ? emit_copy(c, w, next_id, emit, ctx) : rc;
}

static int by_worker(const void *a, const void *b)
{
    return kvr_worker_cmp(*(const struct kvr_worker *)a, *(const struct kvr_worker *)b);
}

/* All pairs, in order. *cap is the size of the array for kvr_mem_put. */
static int list_workers(struct kvr_index *ix, struct kvr_mem *mem, struct kvr_worker **out, size_t *n, size_t *cap)
{
    int rc = 0;
    *out = NULL;
    *n = *cap = 0;
    kvr_read_lock(&ix->ranks_lock);
    if (ix->ranks_n) rc = kvr_mem_grow(mem, (void **)out, cap, ix->ranks_n, sizeof **out);
    for (size_t i = 0; rc == 0 && i < ix->ranks_cap; i++)
        if (ix->ranks[i]) (*out)[(*n)++] = ix->ranks[i]->worker;
    kvr_rw_unlock(&ix->ranks_lock);
    if (*n) qsort(*out, *n, sizeof **out, by_worker);
    return rc;
}

int kvr_index_dump(struct kvr_index *ix, const struct kvr_worker *only, kvr_index_emit *emit, void *ctx)
{
    struct copy c = {0};
    struct kvr_worker *all = NULL;
    size_t n = 0, cap = 0;
    uint64_t next_id = 0;
    kvr_mem_init(&c.mem, &ix->mem.a, 0);
    int rc = only ? 0 : list_workers(ix, &c.mem, &all, &n, &cap);
    if (only) rc = dump_worker(ix, &c, *only, &next_id, emit, ctx);
    for (size_t i = 0; i < n && rc == 0; i++) rc = dump_worker(ix, &c, all[i], &next_id, emit, ctx);
    kvr_mem_put(&c.mem, all, cap * sizeof *all);
    copy_free(&c);
    return rc;
}

int kvr_index_restore(struct kvr_index *ix, struct kvr_worker w, const struct kvr_event *events, size_t n)
{
    kvr_index_remove_rank(ix, w);
    for (size_t i = 0; i < n; i++) {
        struct kvr_event ev = events[i];
        ev.worker = w;
        int rc = kvr_index_apply(ix, &ev);
        if (rc) return rc;
    }
    return 0;
}

/* ---- walks ---------------------------------------------------------------------------------------------- */

struct kvr_index_walk {
    struct standing at;
    struct kvr_worker worker;
    struct lane *lane;
    /* the walker's own */
    struct copy copy;
    uint64_t next_id;
};

int kvr_index_walk_begin(struct kvr_index *ix, struct kvr_worker worker, struct kvr_index_walk **out)
{
    struct kvr_mem mem;
    kvr_mem_init(&mem, &ix->mem.a, 0);
    struct kvr_index_walk *w = kvr_mem_zget(&mem, sizeof *w);
    if (!w) return -KVR_ENOMEM;
    w->worker = worker;
    kvr_mem_init(&w->copy.mem, &ix->mem.a, 0);
    kvr_read_lock(&ix->ranks_lock);
    struct rank *rk = kvr__rank_find(ix, worker);
    if (rk) {
        w->lane = rk->lane;
        kvr_lock(&w->lane->lock);
        w->at.rk = rk;
        w->at.run = rk->held_n ? rk->held[rk->root].run : 0;
        for (int t = 1; t < KVR_TIER_COUNT; t++) w->at.edge[t - 1] = rk->tier[t].list.head;
        w->at.link = w->lane->walks;
        w->lane->walks = &w->at;
        kvr_unlock(&w->lane->lock);
    }
    kvr_rw_unlock(&ix->ranks_lock);
    *out = w;
    return 0;
}

static int copy_piece(struct kvr_index_walk *w, size_t blocks)
{
    const struct lane *ln = w->lane;
    struct standing *s = &w->at;
    struct copy *c = &w->copy;
    int rc = 0;
    while (s->rk && s->run && c->blocks_n < blocks && rc == 0) {
        struct run *r = kvr__run(ln, s->run);
        uint32_t pos = kvr__cover_pos_of(r, kvr__grip(r, s->rk->slot)), kid = s->rk->held[pos].kid;
        rc = copy_run(ln, s->rk, c, r);
        s->run = kid != NO_PLACE ? s->rk->held[kid].run : kvr__walk_past(ln, s->rk, pos);
    }
    for (enum kvr_tier t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT && s->rk && !s->run && rc == 0; t++)
        if (c->blocks_n < blocks) rc = copy_edges(ln, s->rk, c, t, &s->edge[t - 1], blocks - c->blocks_n, true);
    return rc;
}

int kvr_index_walk_next(struct kvr_index_walk *w, size_t blocks, kvr_index_emit *emit, void *ctx, bool *more)
{
    *more = false;
    if (!w->lane) return 0;
    w->copy.records_n = w->copy.blocks_n = 0;
    kvr_lock(&w->lane->lock);
    int rc = w->at.disturbed ? -KVR_ESEQUENCE : copy_piece(w, KVR_MAX(blocks, (size_t)1));
    bool rest = w->at.rk && (w->at.run || w->at.edge[0] || w->at.edge[1] || w->at.edge[2]);
    kvr_unlock(&w->lane->lock);
    if (rc == 0) rc = emit_copy(&w->copy, w->worker, &w->next_id, emit, ctx);
    *more = rc == 0 && rest;
    return rc;
}

void kvr_index_walk_end(struct kvr_index_walk *w)
{
    if (!w) return;
    if (w->lane) {
        kvr_lock(&w->lane->lock);
        struct standing **at = &w->lane->walks;
        while (*at != &w->at) at = &(*at)->link;
        *at = w->at.link;
        kvr_unlock(&w->lane->lock);
    }
    struct kvr_mem mem = w->copy.mem;
    copy_free(&w->copy);
    kvr_mem_put(&mem, w, sizeof *w);
}
