/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One (worker, rank): the names its engine uses, and the forest of the blocks it holds.
 *
 * Every name is a record. Records are linked like the trie, but only through blocks this rank holds: parent,
 * first kid, siblings. So a removal finds what lies behind a block without looking at other holders, and
 * clearing a rank costs what it held.
 *
 *     names (open addressing) --> recs[]            forest of this rank:   r1 --- r2 --- r3
 *        0x8f.. -> r2                                                         \-- r7
 *
 * Predicted records are also in one list over all ranks, ordered by expiry: touching moves to the tail, so the
 * head is always what expires first. Leaves are touched before their parents and expire before them.
 */
#include "index/internal.h"

#include <string.h>

/* ---- finding ranks ----------------------------------------------------------------------------------- */

static uint64_t worker_hash(struct kvr_worker w)
{
    return kvr_mix64(w.worker_id * 0x9e3779b97f4a7c15ULL + w.dp_rank);
}

struct rank *kvr__rank_at(const struct kvr_index *ix, uint32_t slot)
{
    return atomic_load_explicit(&atomic_load_explicit(&ix->ranks, RLX)->ranks[slot], RLX);
}

static bool same_worker(struct kvr_worker a, struct kvr_worker b)
{
    return kvr_worker_cmp(a, b) == 0;
}

struct rank *kvr__rank_find(const struct kvr_index *ix, struct kvr_worker w)
{
    if (!ix->rank_table_cap) return NULL;
    size_t mask = ix->rank_table_cap - 1;
    for (size_t i = worker_hash(w) & mask; ix->rank_table[i]; i = (i + 1) & mask) {
        struct rank *rk = kvr__rank_at(ix, ix->rank_table[i] - 1);
        if (same_worker(rk->worker, w)) return rk;
    }
    return NULL;
}

static void rank_table_put(uint32_t *table, size_t cap, const struct rank *rk)
{
    size_t i = worker_hash(rk->worker) & (cap - 1);
    while (table[i]) i = (i + 1) & (cap - 1);
    table[i] = rk->slot + 1;
}

static int rank_table_reserve(struct kvr_index *ix)
{
    if ((ix->ranks_n + 1) * 2 <= ix->rank_table_cap) return 0;
    size_t cap = ix->rank_table_cap ? ix->rank_table_cap * 2 : 16;
    uint32_t *t = kvr_mem_zget(&ix->mem, cap * sizeof *t);
    if (!t) return -KVR_ENOMEM;
    for (size_t i = 0; i < ix->rank_table_cap; i++)
        if (ix->rank_table[i]) rank_table_put(t, cap, kvr__rank_at(ix, ix->rank_table[i] - 1));
    kvr_mem_put(&ix->mem, ix->rank_table, ix->rank_table_cap * sizeof *t);
    ix->rank_table = t;
    ix->rank_table_cap = cap;
    return 0;
}

/* Linear probing with backward shift. */
static void rank_table_del(struct kvr_index *ix, const struct rank *rk)
{
    size_t mask = ix->rank_table_cap - 1, i = worker_hash(rk->worker) & mask;
    while (ix->rank_table[i] != rk->slot + 1) i = (i + 1) & mask;
    for (size_t j = (i + 1) & mask; ix->rank_table[j]; j = (j + 1) & mask) {
        size_t home = worker_hash(kvr__rank_at(ix, ix->rank_table[j] - 1)->worker) & mask;
        if (((j - home) & mask) < ((j - i) & mask)) continue;
        ix->rank_table[i] = ix->rank_table[j];
        i = j;
    }
    ix->rank_table[i] = 0;
}

static size_t rank_dir_size(uint32_t cap)
{
    return sizeof(struct rank_dir) + cap * sizeof(struct rank *);
}

static int slots_reserve(struct kvr_index *ix)
{
    struct rank_dir *old = atomic_load_explicit(&ix->ranks, RLX);
    uint32_t top = atomic_load_explicit(&ix->slots_top, RLX);
    if (kvr_mem_grow(&ix->mem, (void **)&ix->slots_free, &ix->slots_free_cap, top + 1, sizeof(uint32_t))) return -KVR_ENOMEM;
    if (ix->slots_free_n || (old && top < old->cap)) return 0;
    uint32_t cap = old ? old->cap * 2 : 16;
    struct rank_dir *d = kvr_mem_zget(&ix->mem, rank_dir_size(cap));
    if (!d) return -KVR_ENOMEM;
    d->cap = cap;
    for (uint32_t i = 0; old && i < old->cap; i++) atomic_store_explicit(&d->ranks[i], atomic_load_explicit(&old->ranks[i], RLX), RLX);
    atomic_store_explicit(&ix->ranks, d, REL);
    if (old) kvr__index_retire(ix, &old->link, rank_dir_size(old->cap));
    return 0;
}

int kvr__rank_get(struct kvr_index *ix, struct kvr_worker w, struct rank **out)
{
    struct rank *rk = kvr__rank_find(ix, w);
    if (!rk) {
        if (rank_table_reserve(ix) || slots_reserve(ix)) return -KVR_ENOMEM;
        rk = kvr_mem_zget(&ix->mem, sizeof *rk);
        if (!rk) return -KVR_ENOMEM;
        uint32_t top = atomic_load_explicit(&ix->slots_top, RLX);
        rk->worker = w;
        rk->slot = ix->slots_free_n ? ix->slots_free[--ix->slots_free_n] : top;
        atomic_store_explicit(&atomic_load_explicit(&ix->ranks, RLX)->ranks[rk->slot], rk, REL);
        if (rk->slot == top) atomic_store_explicit(&ix->slots_top, top + 1, REL);
        rank_table_put(ix->rank_table, ix->rank_table_cap, rk);
        ix->ranks_n++;
    }
    *out = rk;
    return 0;
}

void kvr__rank_remove(struct kvr_index *ix, struct rank *rk)
{
    rank_table_del(ix, rk);
    ix->ranks_n--;
    kvr__rank_release_memory(ix, rk);
    kvr__index_retire_rank(ix, rk);
}

void kvr__rank_free(struct kvr_index *ix, struct rank *rk)
{
    atomic_store_explicit(&atomic_load_explicit(&ix->ranks, RLX)->ranks[rk->slot], NULL, RLX);
    ix->slots_free[ix->slots_free_n++] = rk->slot;
    kvr_mem_put(&ix->mem, rk, sizeof *rk);
}

void kvr__rank_release_memory(struct kvr_index *ix, struct rank *rk)
{
    kvr_mem_put(&ix->mem, rk->recs, rk->recs_cap * sizeof *rk->recs);
    kvr_mem_put(&ix->mem, rk->timed, rk->recs_cap * sizeof *rk->timed);
    kvr_mem_put(&ix->mem, rk->names, rk->names_cap * sizeof *rk->names);
    rk->recs = NULL;
    rk->timed = NULL;
    rk->names = NULL;
    rk->recs_cap = rk->recs_top = rk->names_cap = rk->names_n = 0;
    rk->recs_free = rk->tops = REC_NONE;
}

/* ---- names ------------------------------------------------------------------------------------------- */

uint32_t kvr__name_find(const struct rank *rk, uint64_t name)
{
    if (!rk->names_cap) return REC_NONE;
    size_t mask = rk->names_cap - 1;
    for (size_t i = kvr_mix64(name) & mask; rk->names[i]; i = (i + 1) & mask)
        if (rk->recs[rk->names[i]].name == name) return rk->names[i];
    return REC_NONE;
}

static void names_put(struct rank *rk, uint32_t r)
{
    size_t mask = rk->names_cap - 1, i = kvr_mix64(rk->recs[r].name) & mask;
    while (rk->names[i]) i = (i + 1) & mask;
    rk->names[i] = r;
    rk->names_n++;
}

static void names_del(struct rank *rk, uint32_t r)
{
    size_t mask = rk->names_cap - 1, i = kvr_mix64(rk->recs[r].name) & mask;
    while (rk->names[i] != r) i = (i + 1) & mask;
    for (size_t j = (i + 1) & mask; rk->names[j]; j = (j + 1) & mask) {
        size_t home = kvr_mix64(rk->recs[rk->names[j]].name) & mask;
        if (((j - home) & mask) < ((j - i) & mask)) continue;
        rk->names[i] = rk->names[j];
        i = j;
    }
    rk->names[i] = 0;
    rk->names_n--;
}

static int names_reserve(struct kvr_index *ix, struct rank *rk, size_t more)
{
    size_t cap = rk->names_cap ? rk->names_cap : 16;
    while ((rk->names_n + more) * 3 > cap * 2) cap *= 2;
    if (cap == rk->names_cap) return 0;
    uint32_t *names = kvr_mem_zget(&ix->mem, cap * sizeof *names), *old = rk->names;
    size_t old_cap = rk->names_cap;
    if (!names) return -KVR_ENOMEM;
    rk->names = names;
    rk->names_cap = cap;
    rk->names_n = 0;
    for (size_t i = 0; i < old_cap; i++)
        if (old[i]) names_put(rk, old[i]);
    kvr_mem_put(&ix->mem, old, old_cap * sizeof *old);
    return 0;
}

/* ---- records ----------------------------------------------------------------------------------------- */

int kvr__rank_reserve(struct kvr_index *ix, struct rank *rk, size_t more)
{
    if (names_reserve(ix, rk, more)) return -KVR_ENOMEM;
    size_t unused = rk->recs_top ? rk->recs_top - 1 - rk->names_n : 0;
    size_t need = rk->recs_top + 1 + (more > unused ? more - unused : 0), cap = rk->recs_cap;
    if (need <= cap) return 0;
    if (need >= REC_ALIAS) return -KVR_ENOMEM;
    for (cap = cap ? cap : 16; cap < need;) cap *= 2;
    /* Both arrays have one capacity, which accounts for both: the new one of the pair is made before the other grows,
     * so that a failure leaves everything as it was. */
    struct timed *timed = NULL;
    if (rk->timed && !(timed = kvr_mem_zget(&ix->mem, cap * sizeof *timed))) return -KVR_ENOMEM;
    struct rec *recs = kvr_mem_resize(&ix->mem, rk->recs, rk->recs_cap * sizeof *recs, cap * sizeof *recs);
    if (!recs) {
        kvr_mem_put(&ix->mem, timed, cap * sizeof *timed);
        return -KVR_ENOMEM;
    }
    if (timed) {
        memcpy(timed, rk->timed, rk->recs_cap * sizeof *timed);
        kvr_mem_put(&ix->mem, rk->timed, rk->recs_cap * sizeof *timed);
        rk->timed = timed;
    }
    rk->recs = recs;
    rk->recs_cap = cap;
    if (rk->recs_top == 0) rk->recs_top = 1;
    return 0;
}

int kvr__rank_reserve_timed(struct kvr_index *ix, struct rank *rk)
{
    if (rk->timed) return 0;
    rk->timed = kvr_mem_zget(&ix->mem, rk->recs_cap * sizeof *rk->timed);
    return rk->timed ? 0 : -KVR_ENOMEM;
}

static uint32_t rec_new(struct rank *rk, uint64_t name, uint32_t node)
{
    uint32_t r = rk->recs_free;
    if (r) rk->recs_free = rk->recs[r].next;
    else r = (uint32_t)rk->recs_top++;
    rk->recs[r] = (struct rec){.name = name, .node = node};
    names_put(rk, r);
    return r;
}

static void rec_free(struct kvr_index *ix, struct rank *rk, uint32_t r)
{
    kvr__timed_unlink(ix, rk, r);
    names_del(rk, r);
    rk->recs[r].next = rk->recs_free;
    rk->recs_free = r;
}

uint32_t kvr__rec_add(struct kvr_index *ix, struct rank *rk, uint64_t name, uint32_t node, uint32_t parent)
{
    uint32_t r = rec_new(rk, name, node), *head = parent ? &rk->recs[parent].first_kid : &rk->tops;
    struct rec *rc = &rk->recs[r];
    rc->parent = parent;
    rc->next = *head;
    if (*head) rk->recs[*head].prev = r;
    *head = r;
    rk->blocks++;
    ix->blocks_n++;
    return r;
}

uint32_t kvr__rec_add_alias(struct kvr_index *ix, struct rank *rk, uint64_t name, uint32_t canonical)
{
    uint32_t r = rec_new(rk, name, rk->recs[canonical].node), first = rk->recs[canonical].alias;
    rk->recs[r].alias = REC_ALIAS | canonical;
    rk->recs[r].next = first;
    if (first) rk->recs[first].prev = r;
    rk->recs[canonical].alias = r;
    rk->aliases++;
    ix->aliases_n++;
    return r;
}

static void alias_remove(struct kvr_index *ix, struct rank *rk, uint32_t r)
{
    struct rec *rc = &rk->recs[r];
    uint32_t canonical = rc->alias & ~REC_ALIAS;
    if (rc->next) rk->recs[rc->next].prev = rc->prev;
    if (rc->prev) rk->recs[rc->prev].next = rc->next;
    else rk->recs[canonical].alias = rc->next;
    rk->aliases--;
    ix->aliases_n--;
    rec_free(ix, rk, r);
}

/* The canonical name goes, another name of the block stays: the block takes that name. */
static void rename_to_alias(struct kvr_index *ix, struct rank *rk, uint32_t r)
{
    uint32_t a = rk->recs[r].alias;
    uint64_t name = rk->recs[a].name;
    alias_remove(ix, rk, a);
    names_del(rk, r);
    rk->recs[r].name = name;
    names_put(rk, r);
}

/* Removes one record without kids, with all its names, and the rank from its node. */
static int leaf_remove(struct kvr_index *ix, struct rank *rk, uint32_t r)
{
    struct rec *rc = &rk->recs[r];
    struct node *nd = kvr__node(ix, rc->node);
    struct hset *to;
    if (kvr__set_without(ix, atomic_load_explicit(&nd->holders, RLX), rk->slot, &to)) {
        atomic_store_explicit(&rk->hidden, true, REL);
        return -KVR_ENOMEM;
    }
    kvr__set_assign(ix, nd, to);
    kvr__node_prune(ix, rc->node);
    while (rc->alias) alias_remove(ix, rk, rc->alias);
    if (rc->next) rk->recs[rc->next].prev = rc->prev;
    if (rc->prev) rk->recs[rc->prev].next = rc->next;
    else *(rc->parent ? &rk->recs[rc->parent].first_kid : &rk->tops) = rc->next;
    rk->blocks--;
    ix->blocks_n--;
    rec_free(ix, rk, r);
    return 0;
}

/* Leaves first, so that a reader never sees a held block behind a block that is not held. */
static int subtree_remove(struct kvr_index *ix, struct rank *rk, uint32_t top)
{
    for (uint32_t r = top;;) {
        while (rk->recs[r].first_kid) r = rk->recs[r].first_kid;
        uint32_t parent = rk->recs[r].parent;
        if (leaf_remove(ix, rk, r)) return -KVR_ENOMEM;
        if (r == top) return 0;
        r = parent;
    }
}

int kvr__rec_remove(struct kvr_index *ix, struct rank *rk, uint32_t r)
{
    if (rk->recs[r].alias & REC_ALIAS) alias_remove(ix, rk, r);
    else if (rk->recs[r].alias) rename_to_alias(ix, rk, r);
    else return subtree_remove(ix, rk, r);
    return 0;
}

int kvr__rank_clear(struct kvr_index *ix, struct rank *rk)
{
    while (rk->tops)
        if (subtree_remove(ix, rk, rk->tops)) return -KVR_ENOMEM;
    kvr__rank_release_memory(ix, rk);
    return 0;
}

/* ---- predicted records ------------------------------------------------------------------------------- */

static struct timed *timed_at(const struct kvr_index *ix, uint32_t slot, uint32_t rec)
{
    return &kvr__rank_at(ix, slot)->timed[rec];
}

void kvr__timed_unlink(struct kvr_index *ix, struct rank *rk, uint32_t r)
{
    if (!rk->timed || rk->timed[r].expiry == 0) return;
    struct timed *t = &rk->timed[r];
    if (t->prev_rec) {
        struct timed *p = timed_at(ix, t->prev_slot, t->prev_rec);
        p->next_slot = t->next_slot;
        p->next_rec = t->next_rec;
    } else {
        ix->timed_head_slot = t->next_slot;
        ix->timed_head_rec = t->next_rec;
    }
    if (t->next_rec) {
        struct timed *n = timed_at(ix, t->next_slot, t->next_rec);
        n->prev_slot = t->prev_slot;
        n->prev_rec = t->prev_rec;
    } else {
        ix->timed_tail_slot = t->prev_slot;
        ix->timed_tail_rec = t->prev_rec;
    }
    *t = (struct timed){0};
    ix->predicted_n--;
}

void kvr__timed_touch(struct kvr_index *ix, struct rank *rk, uint32_t r, uint64_t expiry)
{
    kvr__timed_unlink(ix, rk, r);
    struct timed *t = &rk->timed[r];
    t->expiry = expiry;
    t->prev_slot = ix->timed_tail_slot;
    t->prev_rec = ix->timed_tail_rec;
    t->next_slot = t->next_rec = 0;
    if (t->prev_rec) {
        struct timed *p = timed_at(ix, t->prev_slot, t->prev_rec);
        p->next_slot = rk->slot;
        p->next_rec = r;
    } else {
        ix->timed_head_slot = rk->slot;
        ix->timed_head_rec = r;
    }
    ix->timed_tail_slot = rk->slot;
    ix->timed_tail_rec = r;
    ix->predicted_n++;
}
