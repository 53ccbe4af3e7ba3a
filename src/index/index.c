/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index's public operations. See include/kvroute/index.h for the model, internal.h for the parts.
 *
 * Progress and order of a match beside a writer:
 *   G1  A match takes no lock and loops only over the blocks of its query and the holders of their sets.
 *   G2  Stores add a rank from the root towards the leaf, removals from the leaf towards the root. So whenever
 *       a rank is found at block i and missing at block i+1 there was a moment, no earlier than the look at i's
 *       ancestors and no later than the look at i+1, when its depth was exactly i+1.
 *   G3  A rank that was seen missing once is not reported deeper, even if it comes back meanwhile.
 *   G4  Nodes, sets, tables and rank slots are not reused while a match that could have seen them runs.
 */
#include "index/internal.h"

#include <string.h>

enum { DEFAULT_TTL_S = 120 };

/* ---- life -------------------------------------------------------------------------------------------- */

int kvr_index_create(const struct kvr_index_config *config, struct kvr_index **out)
{
    static const struct kvr_index_config defaults = {0};
    const struct kvr_index_config *c = config ? config : &defaults;
    double ratio = c->prune_target_ratio == 0 ? 0.8 : c->prune_target_ratio;
    if (!(ratio > 0 && ratio <= 1)) return -KVR_EINVAL;
    struct kvr_mem mem;
    kvr_mem_init(&mem, c->alloc, c->bytes_max);
    struct kvr_index *ix = kvr_mem_zget(&mem, sizeof *ix);
    if (!ix) return -KVR_ENOMEM;
    ix->mem = mem;
    ix->clock = c->clock ? *c->clock : *kvr_clock_monotonic();
    ix->ttl_ns = c->ttl_ns ? c->ttl_ns : DEFAULT_TTL_S * 1000000000ull;
    ix->predicted_max = c->predicted_max;
    ix->predicted_target = (size_t)((double)c->predicted_max * ratio);
    ix->clear_worker_wide = c->clear_worker_wide;
    ix->young.nodes = ix->old.nodes = NODE_NONE;
    atomic_init(&ix->epoch, 1);
    pthread_mutex_init(&ix->lock, NULL);
    if (kvr__nodes_init(ix)) {
        kvr_index_destroy(ix);
        return -KVR_ENOMEM;
    }
    *out = ix;
    return 0;
}

void kvr_index_destroy(struct kvr_index *ix)
{
    if (!ix) return;
    while (ix->readers) kvr_index_reader_destroy(ix->readers);
    kvr__index_reclaim(ix, true);
    struct rank_dir *d = atomic_load_explicit(&ix->ranks, RLX);
    for (uint32_t i = 0; i < atomic_load_explicit(&ix->slots_top, RLX); i++) {
        struct rank *rk = kvr__rank_at(ix, i);
        if (!rk) continue;
        kvr__rank_release_memory(ix, rk);
        kvr_mem_put(&ix->mem, rk, sizeof *rk);
    }
    if (d) kvr_mem_put(&ix->mem, d, sizeof *d + d->cap * sizeof(struct rank *));
    for (size_t i = 0; i < ix->set_buckets_n; i++)
        for (struct hset *s = ix->set_buckets[i], *next; s; s = next) {
            next = s->chain;
            kvr_mem_put(&ix->mem, s, sizeof *s + s->n * sizeof(uint32_t));
        }
    kvr_mem_put(&ix->mem, ix->set_buckets, ix->set_buckets_n * sizeof *ix->set_buckets);
    kvr__nodes_destroy(ix);
    kvr_mem_put(&ix->mem, ix->rank_table, ix->rank_table_cap * sizeof(uint32_t));
    kvr_mem_put(&ix->mem, ix->slots_free, ix->slots_free_cap * sizeof(uint32_t));
    pthread_mutex_destroy(&ix->lock);
    struct kvr_mem mem = ix->mem;
    kvr_mem_put(&mem, ix, sizeof *ix);
    KVR_ASSERT(mem.bytes == 0);
}

int kvr_index_reader_create(struct kvr_index *ix, struct kvr_index_reader **out)
{
    /* Readers are cache-line aligned, which the caller's allocator need not offer. */
    struct kvr_index_reader *r = aligned_alloc(64, sizeof *r);
    if (!r) return -KVR_ENOMEM;
    atomic_init(&r->seen, READER_IDLE);
    r->index = ix;
    r->prev = NULL;
    pthread_mutex_lock(&ix->lock);
    r->next = ix->readers;
    if (r->next) r->next->prev = r;
    ix->readers = r;
    pthread_mutex_unlock(&ix->lock);
    *out = r;
    return 0;
}

void kvr_index_reader_destroy(struct kvr_index_reader *r)
{
    if (!r) return;
    struct kvr_index *ix = r->index;
    pthread_mutex_lock(&ix->lock);
    if (r->next) r->next->prev = r->prev;
    if (r->prev) r->prev->next = r->next;
    else ix->readers = r->next;
    pthread_mutex_unlock(&ix->lock);
    free(r);
}

size_t kvr_index_ranks(const struct kvr_index *ix)
{
    return atomic_load_explicit(&ix->slots_top, ACQ);
}

/* ---- match ------------------------------------------------------------------------------------------- */

/* Keeps at the front of out[0..active) the entries whose slot is in `s`; those that drop out get `depth` and end
 * up behind them. Slots are kept in dp_rank while matching, ascending in the active part.
 * Returns: how many stay active. */
static size_t keep_members(struct kvr_overlap *out, size_t active, const struct hset *s, uint32_t depth)
{
    size_t kept = 0;
    uint32_t at = 0, n = s ? s->n : 0;
    for (size_t i = 0; i < active; i++) {
        uint32_t slot = out[i].worker.dp_rank;
        while (at < n && s->members[at] < slot) at++;
        if (at == n || s->members[at] != slot) {
            out[i].depth = depth;
            continue;
        }
        struct kvr_overlap stays = out[i];
        out[i] = out[kept];
        out[kept++] = stays;
    }
    return kept;
}

/* Turns slots into workers and leaves hidden ranks out. */
static long finish_match(struct kvr_index *ix, struct kvr_overlap *out, size_t n)
{
    const struct rank_dir *d = atomic_load_explicit(&ix->ranks, ACQ);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        const struct rank *rk = atomic_load_explicit(&d->ranks[out[i].worker.dp_rank], ACQ);
        if (atomic_load_explicit(&rk->hidden, ACQ)) continue;
        out[kept].depth = out[i].depth;
        out[kept++].worker = rk->worker;
    }
    return (long)kept;
}

static long match_inside(struct kvr_index *ix, const uint64_t *locals, size_t n, struct kvr_overlap *out, size_t cap)
{
    const struct kid_table *kids = atomic_load_explicit(&ix->kids, ACQ);
    const struct chunk_dir *dir = atomic_load_explicit(&ix->dir, ACQ);
    uint32_t id = kvr__node_child(dir, kids, ROOT_NODE, locals[0]);
    if (id == NODE_NONE) return 0;
    const struct hset *holders = atomic_load_explicit(&kvr__node_in(dir, id)->holders, ACQ);
    if (!holders) return 0;
    if (holders->n > cap) return -KVR_ELIMIT;
    size_t active = holders->n, total = active;
    for (size_t i = 0; i < active; i++) out[i].worker.dp_rank = holders->members[i];
    size_t depth = 1;
    for (; depth < n; depth++) {
        id = kvr__node_child(dir, kids, id, locals[depth]);
        if (id == NODE_NONE) break;
        const struct hset *h = atomic_load_explicit(&kvr__node_in(dir, id)->holders, ACQ);
        if (h == holders) continue;
        active = keep_members(out, active, h, (uint32_t)depth);
        holders = h;
        if (active == 0) break;
    }
    for (size_t i = 0; i < active; i++) out[i].depth = (uint32_t)depth;
    return finish_match(ix, out, total);
}

long kvr_index_match(struct kvr_index_reader *r, const uint64_t *locals, size_t n, struct kvr_overlap *out, size_t cap)
{
    if (n == 0) return 0;
    kvr__index_enter(r);
    long found = match_inside(r->index, locals, n, out, cap);
    kvr__index_leave(r);
    return found;
}

/* ---- writing ----------------------------------------------------------------------------------------- */

static void lock(struct kvr_index *ix)
{
    pthread_mutex_lock(&ix->lock);
}

static void unlock(struct kvr_index *ix)
{
    kvr__index_reclaim(ix, false);
    pthread_mutex_unlock(&ix->lock);
}

/* A rank whose removal ran out of memory is emptied before anything else happens to it. */
static int unhide(struct kvr_index *ix, struct rank *rk)
{
    if (!atomic_load_explicit(&rk->hidden, RLX)) return 0;
    kvr__index_reclaim(ix, true);
    if (kvr__rank_clear(ix, rk)) return -KVR_ENOMEM;
    atomic_store_explicit(&rk->hidden, false, REL);
    return 0;
}

static bool is_self_or_ancestor(const struct rank *rk, uint32_t r, uint32_t of)
{
    for (; of; of = rk->recs[of].parent)
        if (of == r) return true;
    return false;
}

/* The rank's record of `node`, which it holds under record `parent`. */
static uint32_t record_of_node(const struct kvr_index *ix, const struct rank *rk, uint32_t node, uint32_t parent)
{
    uint32_t r = kvr__name_find(rk, kvr__node(ix, node)->name);
    if (r && rk->recs[r].node == node) return kvr__rec_canonical(rk, r);
    r = parent ? rk->recs[parent].first_kid : rk->tops;
    while (rk->recs[r].node != node) r = rk->recs[r].next;
    return r;
}

static uint32_t child_of(const struct kvr_index *ix, uint32_t parent, uint64_t local)
{
    return kvr__node_child(atomic_load_explicit(&ix->dir, RLX), atomic_load_explicit(&ix->kids, RLX), parent, local);
}

/* One store on its way: blocks from an event, or a routing decision's two arrays with an expiry. */
struct store {
    struct rank *rk;
    const struct kvr_block *blocks;
    const uint64_t *locals, *names;
    size_t n;
    uint64_t expiry; /* 0: an event, permanent */
    uint32_t parent_rec, parent_node;
    bool changed;
};

static struct kvr_block store_at(const struct store *st, size_t i)
{
    return st->blocks ? st->blocks[i] : (struct kvr_block){st->names[i], st->locals[i]};
}

static void descend(struct store *st, uint32_t rec, uint32_t node)
{
    st->parent_rec = rec;
    st->parent_node = node;
}

/* A name that is known at another place: give that place up, unless the new place lies below it. */
static int move_name(struct kvr_index *ix, struct store *st, uint32_t r)
{
    struct rank *rk = st->rk;
    bool is_only_name = rk->recs[r].alias == 0;
    if (is_only_name && is_self_or_ancestor(rk, r, st->parent_rec)) return -KVR_ESEQUENCE;
    return kvr__rec_remove(ix, rk, r);
}

/* The rank becomes a holder of child `node` of the current parent, made when it is NODE_NONE. */
static int add_holder(struct kvr_index *ix, struct store *st, struct kvr_block b, uint32_t node)
{
    struct rank *rk = st->rk;
    struct node *nd = node == NODE_NONE ? NULL : kvr__node(ix, node);
    struct hset *to;
    if (kvr__set_with(ix, nd ? atomic_load_explicit(&nd->holders, RLX) : NULL, rk->slot, &to)) return -KVR_ENOMEM;
    if (nd) {
        kvr__set_assign(ix, nd, to);
    } else if (kvr__node_create(ix, st->parent_node, b.tokens_hash, b.block_hash, to, &node)) {
        kvr__set_drop_if_unused(ix, to);
        return -KVR_ENOMEM;
    }
    uint32_t r = kvr__rec_add(ix, rk, b.block_hash, node, st->parent_rec);
    if (st->expiry) kvr__timed_touch(ix, rk, r, st->expiry);
    descend(st, r, node);
    return 0;
}

static int store_block(struct kvr_index *ix, struct store *st, struct kvr_block b)
{
    struct rank *rk = st->rk;
    uint32_t r = kvr__name_find(rk, b.block_hash);
    uint32_t node = child_of(ix, st->parent_node, b.tokens_hash);
    if (r && rk->recs[r].node == node) {
        if (!st->expiry) kvr__timed_unlink(ix, rk, r);
        descend(st, kvr__rec_canonical(rk, r), node);
        return 0;
    }
    if (r) {
        int rc = move_name(ix, st, r);
        if (rc) return rc;
        node = child_of(ix, st->parent_node, b.tokens_hash);
    }
    bool held = node != NODE_NONE && kvr__set_has(atomic_load_explicit(&kvr__node(ix, node)->holders, RLX), rk->slot);
    if (!held) {
        st->changed = true;
        return add_holder(ix, st, b, node);
    }
    uint32_t canonical = record_of_node(ix, rk, node, st->parent_rec);
    if (!st->expiry) { /* a prediction gives no second name to a block that events have named */
        kvr__rec_add_alias(ix, rk, b.block_hash, canonical);
        st->changed = true;
    }
    descend(st, canonical, node);
    return 0;
}

/* Finds where an event's store begins; makes the anchor of a start position. */
static int find_start(struct kvr_index *ix, struct store *st, const struct kvr_event *ev)
{
    if (ev->has_parent) {
        if (ev->has_start_position) return -KVR_EINVAL;
        for (size_t i = 0; i < ev->blocks_n; i++)
            if (ev->blocks[i].block_hash == ev->parent_hash) return -KVR_ESEQUENCE;
        uint32_t r = kvr__name_find(st->rk, ev->parent_hash);
        if (!r) return -KVR_EPARENT;
        r = kvr__rec_canonical(st->rk, r);
        descend(st, r, st->rk->recs[r].node);
    } else if (ev->has_start_position && ev->start_position > 0 && ev->blocks_n > 0) {
        uint32_t anchor = child_of(ix, FLOAT_NODE, ev->start_position);
        if (anchor == NODE_NONE && kvr__node_create(ix, FLOAT_NODE, ev->start_position, 0, NULL, &anchor)) return -KVR_ENOMEM;
        descend(st, REC_NONE, anchor);
    }
    return 0;
}

static int store_blocks(struct kvr_index *ix, struct store *st, const struct kvr_event *ev)
{
    if (kvr__rank_reserve(ix, st->rk, st->n)) return -KVR_ENOMEM;
    if (st->expiry && kvr__rank_reserve_timed(ix, st->rk)) return -KVR_ENOMEM;
    descend(st, REC_NONE, ROOT_NODE);
    int rc = ev ? find_start(ix, st, ev) : 0;
    if (rc) return rc;
    /* The start counts as needed meanwhile: a moved name may take the last child of an anchor away. */
    uint32_t start = st->parent_node;
    kvr__node(ix, start)->kids++;
    for (size_t i = 0; i < st->n && rc == 0; i++) rc = store_block(ix, st, store_at(st, i));
    kvr__node(ix, start)->kids--;
    kvr__node_prune(ix, start);
    return rc;
}

static size_t prune_predicted(struct kvr_index *ix, size_t target)
{
    size_t before = ix->blocks_n;
    while (ix->predicted_n > target) {
        struct rank *rk = kvr__rank_at(ix, ix->timed_head_slot);
        if (kvr__rec_remove(ix, rk, ix->timed_head_rec)) break;
    }
    return before - ix->blocks_n;
}

static int try_store(struct kvr_index *ix, struct kvr_worker w, struct store *st, const struct kvr_event *ev)
{
    int rc = kvr__rank_get(ix, w, &st->rk);
    if (rc == 0) rc = unhide(ix, st->rk);
    return rc ? rc : store_blocks(ix, st, ev);
}

/* When memory is short, predicted blocks go, an eighth at a time, until the store fits. */
static int store(struct kvr_index *ix, struct kvr_worker w, struct store *st, const struct kvr_event *ev)
{
    int rc = try_store(ix, w, st, ev);
    while (rc == -KVR_ENOMEM && ix->predicted_n) {
        ix->counters.pruned += prune_predicted(ix, ix->predicted_n - ix->predicted_n / 8 - 1);
        kvr__index_reclaim(ix, true);
        rc = try_store(ix, w, st, ev);
    }
    return rc;
}

int kvr__index_store(struct kvr_index *ix, const struct kvr_event *ev)
{
    struct store st = {.blocks = ev->blocks, .n = ev->blocks_n};
    int rc = store(ix, ev->worker, &st, ev);
    if (rc == 0 && !st.changed && ev->blocks_n) ix->counters.duplicate_stores++;
    return rc;
}

static int apply_removed(struct kvr_index *ix, const struct kvr_event *ev)
{
    struct rank *rk = kvr__rank_find(ix, ev->worker);
    if (!rk) return ev->removed_n ? -KVR_ENOTFOUND : 0;
    int rc = unhide(ix, rk);
    if (rc) return rc;
    for (size_t i = 0; i < ev->removed_n; i++)
        if (!kvr__name_find(rk, ev->removed[i])) rc = -KVR_ENOTFOUND;
    for (size_t i = 0; i < ev->removed_n; i++) {
        uint32_t r = kvr__name_find(rk, ev->removed[i]);
        if (r && kvr__rec_remove(ix, rk, r)) return -KVR_ENOMEM;
    }
    return rc;
}

/* Every rank of a worker, by a look at all slots. */
static void for_ranks_of(struct kvr_index *ix, uint64_t worker_id, int (*fn)(struct kvr_index *, struct rank *), int *rc)
{
    for (uint32_t i = 0; i < atomic_load_explicit(&ix->slots_top, RLX); i++) {
        struct rank *rk = kvr__rank_at(ix, i);
        if (!rk || rk->worker.worker_id != worker_id || kvr__rank_find(ix, rk->worker) != rk) continue;
        int one = fn(ix, rk);
        if (one) *rc = one;
    }
}

static int apply_cleared(struct kvr_index *ix, const struct kvr_event *ev)
{
    int rc = 0;
    if (ix->clear_worker_wide) {
        for_ranks_of(ix, ev->worker.worker_id, kvr__rank_clear, &rc);
        return rc;
    }
    struct rank *rk = kvr__rank_find(ix, ev->worker);
    return rk ? kvr__rank_clear(ix, rk) : 0;
}

static void count_result(struct kvr_index *ix, int rc)
{
    switch (rc) {
    case -KVR_EPARENT: ix->counters.parent_not_found++; break;
    case -KVR_ENOTFOUND: ix->counters.block_not_found++; break;
    case -KVR_ESEQUENCE: ix->counters.invalid_sequence++; break;
    case -KVR_ENOMEM: ix->counters.no_memory++; break;
    default: break;
    }
}

int kvr_index_apply(struct kvr_index *ix, const struct kvr_event *ev)
{
    if (ev->tier != KVR_TIER_DEVICE) return -KVR_EUNSUPPORTED;
    int rc = -KVR_EINVAL;
    lock(ix);
    switch (ev->kind) {
    case KVR_EVENT_STORED:
        ix->counters.stored_events++;
        rc = kvr__index_store(ix, ev);
        break;
    case KVR_EVENT_REMOVED:
        ix->counters.removed_events++;
        rc = apply_removed(ix, ev);
        break;
    case KVR_EVENT_CLEARED:
        ix->counters.cleared_events++;
        rc = apply_cleared(ix, ev);
        break;
    }
    count_result(ix, rc);
    unlock(ix);
    return rc;
}

int kvr_index_record(struct kvr_index *ix, struct kvr_worker w, const uint64_t *locals, size_t locals_n, const uint64_t *seqs,
                     size_t seqs_n)
{
    if (locals_n != seqs_n) return -KVR_ELENGTH;
    if (locals_n == 0) return 0;
    lock(ix);
    struct store st = {.locals = locals, .names = seqs, .n = seqs_n, .expiry = kvr_now_ns(&ix->clock) + ix->ttl_ns};
    int rc = store(ix, w, &st, NULL);
    const struct rank *rk = st.rk;
    /* Leaves first, so that they expire before their parents. Blocks that events stored stay permanent. */
    for (size_t i = seqs_n; i-- > 0 && rk && rk->timed;) {
        uint32_t r = kvr__name_find(rk, seqs[i]);
        if (r && rk->timed[r].expiry) kvr__timed_touch(ix, st.rk, r, st.expiry);
    }
    if (ix->predicted_max && ix->predicted_n > ix->predicted_max) ix->counters.pruned += prune_predicted(ix, ix->predicted_target);
    count_result(ix, rc);
    unlock(ix);
    return rc;
}

size_t kvr_index_expire(struct kvr_index *ix)
{
    lock(ix);
    size_t before = ix->blocks_n;
    uint64_t now = kvr_now_ns(&ix->clock);
    while (ix->timed_head_rec) {
        struct rank *rk = kvr__rank_at(ix, ix->timed_head_slot);
        if (rk->timed[ix->timed_head_rec].expiry > now) break;
        if (kvr__rec_remove(ix, rk, ix->timed_head_rec)) break;
    }
    size_t gone = before - ix->blocks_n;
    ix->counters.expired += gone;
    unlock(ix);
    return gone;
}

static int remove_one(struct kvr_index *ix, struct rank *rk)
{
    if (kvr__rank_clear(ix, rk)) return -KVR_ENOMEM; /* hidden now; emptied when memory returns */
    kvr__rank_remove(ix, rk);
    return 0;
}

void kvr_index_remove_worker(struct kvr_index *ix, uint64_t worker_id)
{
    int rc = 0;
    lock(ix);
    for_ranks_of(ix, worker_id, remove_one, &rc);
    count_result(ix, rc);
    unlock(ix);
}

void kvr_index_remove_rank(struct kvr_index *ix, struct kvr_worker w)
{
    lock(ix);
    struct rank *rk = kvr__rank_find(ix, w);
    if (rk) count_result(ix, remove_one(ix, rk));
    unlock(ix);
}

size_t kvr_index_rank_blocks(struct kvr_index *ix, struct kvr_worker w)
{
    lock(ix);
    const struct rank *rk = kvr__rank_find(ix, w);
    size_t n = rk && !atomic_load_explicit(&rk->hidden, RLX) ? rk->blocks : 0;
    unlock(ix);
    return n;
}

void kvr_index_stats(struct kvr_index *ix, struct kvr_index_stats *out)
{
    lock(ix);
    *out = ix->counters;
    out->bytes = ix->mem.bytes;
    out->ranks = ix->ranks_n;
    out->nodes = ix->nodes_live;
    out->blocks = ix->blocks_n;
    out->predicted = ix->predicted_n;
    out->aliases = ix->aliases_n;
    out->sets = ix->sets_n;
    unlock(ix);
}
