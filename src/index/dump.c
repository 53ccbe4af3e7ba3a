/* SPDX-License-Identifier: Apache-2.0 */
/* Dump, restore and validation of the index. */
#include "index/internal.h"

/* ---- dump -------------------------------------------------------------------------------------------- */

struct dump {
    struct kvr_index *ix;
    const struct rank *rk;
    kvr_index_emit *emit;
    void *ctx;
    struct kvr_block *blocks;
    size_t cap;
    uint64_t next_id;
};

static uint64_t local_of(const struct dump *d, uint32_t r)
{
    return atomic_load_explicit(&kvr__node(d->ix, d->rk->recs[r].node)->local, RLX);
}

/* Where does a block without a parent stand? Fills the start position of stores that were not at block 0. */
static void set_origin(const struct dump *d, uint32_t r, struct kvr_event *ev)
{
    uint32_t parent = d->rk->recs[r].parent;
    if (parent) {
        ev->has_parent = true;
        ev->parent_hash = d->rk->recs[parent].name;
        return;
    }
    uint32_t anchor = atomic_load_explicit(&kvr__node(d->ix, d->rk->recs[r].node)->parent, RLX);
    if (anchor == ROOT_NODE) return;
    ev->has_start_position = true;
    ev->start_position = (uint32_t)atomic_load_explicit(&kvr__node(d->ix, anchor)->local, RLX);
}

static int emit_blocks(struct dump *d, uint32_t first, const struct kvr_block *blocks, size_t n)
{
    struct kvr_event ev = {.event_id = d->next_id++, .worker = d->rk->worker, .kind = KVR_EVENT_STORED, .blocks = blocks, .blocks_n = n};
    set_origin(d, first, &ev);
    return d->emit(d->ctx, &ev);
}

static int emit_aliases(struct dump *d, uint32_t r)
{
    for (uint32_t a = d->rk->recs[r].alias; a; a = d->rk->recs[a].next) {
        struct kvr_block b = {d->rk->recs[a].name, local_of(d, r)};
        int rc = emit_blocks(d, r, &b, 1);
        if (rc) return rc;
    }
    return 0;
}

/* Emits the stretch that starts at r and ends at a fork or a leaf. *last: its last record. */
static int emit_stretch(struct dump *d, uint32_t r, uint32_t *last)
{
    size_t n = 0;
    uint32_t first = r;
    for (;; r = d->rk->recs[r].first_kid) {
        if (kvr_mem_grow(&d->ix->mem, (void **)&d->blocks, &d->cap, n + 1, sizeof *d->blocks)) return -KVR_ENOMEM;
        d->blocks[n++] = (struct kvr_block){d->rk->recs[r].name, local_of(d, r)};
        uint32_t kid = d->rk->recs[r].first_kid;
        if (!kid || d->rk->recs[kid].next) break;
    }
    *last = r;
    int rc = emit_blocks(d, first, d->blocks, n);
    for (uint32_t x = first; rc == 0; x = d->rk->recs[x].first_kid) {
        rc = emit_aliases(d, x);
        if (x == r) break;
    }
    return rc;
}

static int dump_rank(struct dump *d)
{
    const struct rank *rk = d->rk;
    uint32_t r = rk->tops;
    while (r) {
        int rc = emit_stretch(d, r, &r);
        if (rc) return rc;
        if (rk->recs[r].first_kid) {
            r = rk->recs[r].first_kid;
            continue;
        }
        while (r && !rk->recs[r].next) r = rk->recs[r].parent;
        if (r) r = rk->recs[r].next;
    }
    return 0;
}

int kvr_index_dump(struct kvr_index *ix, const struct kvr_worker *only, kvr_index_emit *emit, void *ctx)
{
    struct dump d = {.ix = ix, .emit = emit, .ctx = ctx};
    int rc = 0;
    pthread_mutex_lock(&ix->lock);
    uint32_t slots = atomic_load_explicit(&ix->slots_top, RLX);
    for (uint32_t i = 0; i < slots && rc == 0; i++) {
        d.rk = kvr__rank_at(ix, i);
        if (!d.rk || atomic_load_explicit(&d.rk->hidden, RLX)) continue;
        if (only && kvr_worker_cmp(*only, d.rk->worker) != 0) continue;
        rc = dump_rank(&d);
    }
    kvr_mem_put(&ix->mem, d.blocks, d.cap * sizeof *d.blocks);
    pthread_mutex_unlock(&ix->lock);
    return rc;
}

int kvr_index_restore(struct kvr_index *ix, struct kvr_worker w, const struct kvr_event *events, size_t n)
{
    struct kvr_event ev = {.kind = KVR_EVENT_CLEARED, .worker = w};
    int rc = 0;
    pthread_mutex_lock(&ix->lock);
    struct rank *rk = kvr__rank_find(ix, w);
    if (rk) rc = kvr__rank_clear(ix, rk);
    for (size_t i = 0; i < n && rc == 0; i++) {
        ev = events[i];
        ev.worker = w;
        rc = ev.kind == KVR_EVENT_STORED ? kvr__index_store(ix, &ev) : -KVR_EINVAL;
    }
    kvr__index_reclaim(ix, false);
    pthread_mutex_unlock(&ix->lock);
    return rc;
}

/* ---- validate ---------------------------------------------------------------------------------------- */

#define CHECK(cond)                                                                                                                        \
    do {                                                                                                                                   \
        if (!(cond)) {                                                                                                                     \
            *reason = "index: " #cond;                                                                                                     \
            return false;                                                                                                                  \
        }                                                                                                                                  \
    } while (0)

static bool check_nodes(const struct kvr_index *ix, size_t *holders, size_t *with_set, const char **reason)
{
    const struct chunk_dir *dir = atomic_load_explicit(&ix->dir, RLX);
    const struct kid_table *kids = atomic_load_explicit(&ix->kids, RLX);
    size_t live = 0, kid_sum = 0, linked = 0;
    for (uint32_t c = 0; c < ix->chunks_top; c++) {
        struct chunk *ch = atomic_load_explicit(&dir->chunks[c], RLX);
        for (uint32_t i = 0; ch && i < ch->bump; i++) {
            uint32_t id = c << NODE_CHUNK_BITS | i;
            const struct node *nd = &ch->nodes[i];
            if (id < NODES_RESERVED) kid_sum += nd->kids;
            uint32_t parent = atomic_load_explicit(&nd->parent, RLX);
            if (parent == NODE_NONE) continue;
            const struct hset *s = atomic_load_explicit(&nd->holders, RLX);
            live++;
            linked++;
            kid_sum += nd->kids;
            bool child_is_found = kvr__node_child(dir, kids, parent, atomic_load_explicit(&nd->local, RLX)) == id;
            bool node_is_needed = s || nd->kids;
            CHECK(child_is_found);
            CHECK(node_is_needed);
            if (!s) continue;
            ++*with_set;
            *holders += s->n;
            uint64_t hash = 0;
            for (uint32_t m = 0; m < s->n; m++) {
                bool members_ascend = m == 0 || s->members[m] > s->members[m - 1];
                CHECK(members_ascend);
                hash += kvr__set_mix(s->members[m]);
            }
            bool set_hash_is_right = hash == s->hash;
            CHECK(set_hash_is_right);
        }
    }
    bool node_count_is_right = live == ix->nodes_live;
    bool kid_counts_add_up = kid_sum == linked;
    CHECK(node_count_is_right);
    CHECK(kid_counts_add_up);
    return true;
}

static bool check_rank(const struct kvr_index *ix, const struct rank *rk, size_t *timed, const char **reason)
{
    size_t canonical = 0, aliases = 0;
    for (size_t i = 0; i < rk->names_cap; i++) {
        uint32_t r = rk->names[i];
        if (!r) continue;
        const struct rec *rc = &rk->recs[r];
        bool name_leads_here = kvr__name_find(rk, rc->name) == r;
        CHECK(name_leads_here);
        if (rk->timed && rk->timed[r].expiry) ++*timed;
        if (rc->alias & REC_ALIAS) {
            bool alias_names_same_block = rk->recs[rc->alias & ~REC_ALIAS].node == rc->node;
            CHECK(alias_names_same_block);
            aliases++;
            continue;
        }
        canonical++;
        const struct node *nd = kvr__node(ix, rc->node);
        uint32_t up = atomic_load_explicit(&nd->parent, RLX);
        bool node_lists_holder = kvr__set_has(atomic_load_explicit(&nd->holders, RLX), rk->slot);
        CHECK(node_lists_holder);
        bool parent_is_held = rc->parent ? rk->recs[rc->parent].node == up
                                         : up == ROOT_NODE || atomic_load_explicit(&kvr__node(ix, up)->parent, RLX) == FLOAT_NODE;
        CHECK(parent_is_held);
    }
    bool counts_are_right = canonical == rk->blocks && aliases == rk->aliases && canonical + aliases == rk->names_n;
    CHECK(counts_are_right);
    return true;
}

static bool validate(const struct kvr_index *ix, const char **reason)
{
    size_t holders = 0, with_set = 0, blocks = 0, timed = 0, refs = 0, sets = 0;
    if (!check_nodes(ix, &holders, &with_set, reason)) return false;
    for (uint32_t i = 0; i < atomic_load_explicit(&ix->slots_top, RLX); i++) {
        const struct rank *rk = kvr__rank_at(ix, i);
        if (!rk || kvr__rank_find(ix, rk->worker) != rk) continue;
        if (!check_rank(ix, rk, &timed, reason)) return false;
        blocks += rk->blocks;
    }
    for (size_t i = 0; i < ix->set_buckets_n; i++)
        for (const struct hset *s = ix->set_buckets[i]; s; s = s->chain) {
            sets++;
            refs += s->refs;
        }
    bool every_holder_has_a_record = holders == blocks && blocks == ix->blocks_n;
    bool set_references_add_up = refs == with_set && sets == ix->sets_n;
    bool predicted_list_is_complete = timed == ix->predicted_n;
    CHECK(every_holder_has_a_record);
    CHECK(set_references_add_up);
    CHECK(predicted_list_is_complete);
    return true;
}

bool kvr_index_validate(struct kvr_index *ix, const char **reason)
{
    pthread_mutex_lock(&ix->lock);
    bool ok = validate(ix, reason);
    pthread_mutex_unlock(&ix->lock);
    return ok;
}
