/* SPDX-License-Identifier: Apache-2.0 */
/*
 * (worker, rank) pairs. The directory of all pairs is the index's; a pair belongs to the lane that had the fewest
 * when it was first seen, by an event or by a routing decision, and keeps it while it exists. In its lane it has a
 * slot, the number that holder words carry, and the list of runs it holds (holdings.c).
 */
#include "index/internal.h"

/* ---- slots --------------------------------------------------------------------------------------------- */

int kvr__slot_new(struct lane *ln, uint32_t *out)
{
    if (ln->slots_free) {
        *out = ln->slots_free;
        ln->slots_free = (uint32_t)kvr__slot(ln, *out)->worker_id;
        return 0;
    }
    uint32_t s = KVR_MAX(atomic_load_explicit(&ln->slots_top, RLX), 1u); /* slot 0 is not used */
    if (s >= ln->ix->slots_max) return -KVR_ECAPACITY;
    if (kvr_mem_grow(&ln->mem, (void **)&ln->rank_of, &ln->rank_of_cap, (size_t)s + 1, sizeof *ln->rank_of)) return -KVR_ENOMEM;
    if (!atomic_load_explicit(&ln->slots[s >> SLOT_BITS], RLX)) {
        struct slot *c = kvr_mem_zget(&ln->mem, sizeof *c * SLOT_CHUNK);
        if (!c) return -KVR_ENOMEM;
        atomic_store_explicit(&ln->slots[s >> SLOT_BITS], c, REL);
    }
    atomic_store_explicit(&ln->slots_top, s + 1, REL);
    *out = s;
    return 0;
}

void kvr__slot_give(struct lane *ln, uint32_t s, struct rank *rk)
{
    struct slot *sl = kvr__slot(ln, s);
    sl->worker_id = rk->worker.worker_id;
    sl->dp_rank = rk->worker.dp_rank;
    atomic_store_explicit(&sl->live, 1, REL);
    rk->slot = s;
    ln->rank_of[s] = rk;
}

void kvr__slot_free(struct lane *ln, uint32_t s)
{
    kvr__slot(ln, s)->worker_id = ln->slots_free;
    ln->slots_free = s;
}

void kvr__slot_kill(struct lane *ln, uint32_t s)
{
    atomic_store_explicit(&kvr__slot(ln, s)->live, 0, REL);
    YIELD_POINT();
}

/* ---- directory ----------------------------------------------------------------------------------------- */

static size_t dir_home(const struct kvr_index *ix, struct kvr_worker w)
{
    uint64_t secret = kvr_secret();
    return kvr_mix64_keyed(kvr_mix64_keyed(w.worker_id, secret) + w.dp_rank, secret) & (ix->ranks_cap - 1);
}

static size_t dir_place(const struct kvr_index *ix, struct kvr_worker w)
{
    size_t mask = ix->ranks_cap - 1, i = dir_home(ix, w);
    for (const struct rank *rk; (rk = ix->ranks[i]); i = (i + 1) & mask)
        if (rk->worker.worker_id == w.worker_id && rk->worker.dp_rank == w.dp_rank) break;
    return i;
}

struct rank *kvr__rank_find(struct kvr_index *ix, struct kvr_worker w)
{
    return ix->ranks_cap ? ix->ranks[dir_place(ix, w)] : NULL;
}

static int dir_grow(struct kvr_index *ix)
{
    if ((ix->ranks_n + 1) * 3 <= ix->ranks_cap * 2) return 0;
    size_t cap = ix->ranks_cap ? ix->ranks_cap * 2 : 16, was = ix->ranks_cap;
    struct rank **bigger = kvr_mem_zget(&ix->mem, cap * sizeof *bigger), **old = ix->ranks;
    if (!bigger) return -KVR_ENOMEM;
    ix->ranks = bigger;
    ix->ranks_cap = cap;
    for (size_t i = 0; i < was; i++)
        if (old[i]) ix->ranks[dir_place(ix, old[i]->worker)] = old[i];
    kvr_mem_put(&ix->mem, old, was * sizeof *old);
    return 0;
}

/* The byte cap less what readers and the directory take: a quarter for pools once there are some, the rest in equal shares. What lanes
 * have already and cannot give back is not the pools'. */
void kvr__share_cap(struct kvr_index *ix)
{
    kvr_lock(&ix->readers_lock);
    size_t max = ix->config.bytes_max, rest = max > ix->mem.bytes ? max - ix->mem.bytes : 1, pools = rest / 4, used = 0;
    kvr_unlock(&ix->readers_lock);
    if (!max) return;
    kvr_lock(&ix->pools_lock);
    size_t lanes = ix->pools ? rest - pools : rest;
    kvr_unlock(&ix->pools_lock);
    for (uint32_t i = 0; i < ix->lanes_n; i++) {
        kvr_lock(&ix->lanes[i].lock);
        ix->lanes[i].mem.bytes_max = KVR_MAX(lanes / ix->lanes_n, (size_t)1);
        ix->lanes[i].tiers.most = ix->lanes[i].mem.bytes_max / 2;
        used += ix->lanes[i].mem.bytes;
        kvr_unlock(&ix->lanes[i].lock);
    }
    kvr_lock(&ix->pools_lock);
    ix->pools_mem.bytes_max = KVR_MAX(KVR_MIN(pools, rest - KVR_MIN(used, rest)), max / 64 + 1); /* who is in which must be known */
    kvr__pools_keep_cap(ix);
    kvr_unlock(&ix->pools_lock);
}

static struct lane *emptiest_lane(struct kvr_index *ix)
{
    struct lane *best = &ix->lanes[0];
    for (uint32_t i = 1; i < ix->lanes_n; i++)
        if (ix->lanes[i].ranks_n < best->ranks_n) best = &ix->lanes[i];
    return best;
}

static int rank_new(struct kvr_index *ix, struct kvr_worker w)
{
    if (ix->ranks_n >= ix->config.ranks_max) return -KVR_ECAPACITY;
    kvr_lock(&ix->readers_lock); /* for ix->mem */
    size_t was = ix->ranks_cap;
    int none = dir_grow(ix);
    kvr_unlock(&ix->readers_lock);
    if (none) return none;
    if (ix->ranks_cap != was) kvr__share_cap(ix);
    struct lane *ln = emptiest_lane(ix);
    kvr_lock(&ln->lock);
    uint32_t s = 0;
    struct rank *rk = kvr_mem_zget(&ln->mem, sizeof *rk);
    int rc = rk ? kvr__slot_new(ln, &s) : -KVR_ENOMEM;
    if (rc == 0) {
        rk->worker = w;
        rk->lane = ln;
        rk->root = NO_PLACE;
        rk->serial = ++ln->serials;
        rk->capacity = ix->config.rank_capacity;
        rk->pool = kvr__pool_of(ix, w);
        kvr__slot_give(ln, s, rk);
        ln->ranks_n++;
        ix->ranks[dir_place(ix, w)] = rk;
        ix->ranks_n++;
    } else {
        kvr_mem_put(&ln->mem, rk, rk ? sizeof *rk : 0);
    }
    kvr_unlock(&ln->lock);
    return rc;
}

int kvr__rank_get(struct kvr_index *ix, struct kvr_worker w, struct rank **out)
{
    while (!(*out = kvr__rank_find(ix, w))) {
        kvr_rw_unlock(&ix->ranks_lock);
        kvr_write_lock(&ix->ranks_lock);
        int rc = kvr__rank_find(ix, w) ? 0 : rank_new(ix, w);
        kvr_rw_unlock(&ix->ranks_lock);
        kvr_read_lock(&ix->ranks_lock);
        if (rc) return rc;
    }
    return 0;
}

void kvr__rank_forget(struct kvr_index *ix, struct rank *rk)
{
    struct lane *ln = rk->lane;
    size_t mask = ix->ranks_cap - 1, i = dir_place(ix, rk->worker);
    for (size_t j = (i + 1) & mask; ix->ranks[j]; j = (j + 1) & mask) {
        size_t home = dir_home(ix, ix->ranks[j]->worker);
        if (((j - home) & mask) < ((j - i) & mask)) continue;
        ix->ranks[i] = ix->ranks[j];
        i = j;
    }
    ix->ranks[i] = NULL;
    ix->ranks_n--;
    if (rk->pool) kvr__pool_lone(ix, rk->worker);
    kvr_lock(&ln->lock);
    if (ln->walks) kvr__walks_rank_goes(ln, rk);
    kvr__slot_kill(ln, rk->slot);
    ln->rank_of[rk->slot] = NULL;
    ln->ranks_n--;
    kvr__retire_slot(ln, rk);
    kvr_unlock(&ln->lock);
}

void kvr__ranks_destroy(struct kvr_index *ix)
{
    for (size_t i = 0; i < ix->ranks_cap; i++) {
        struct rank *rk = ix->ranks[i];
        if (!rk) continue;
        kvr_mem_put(&rk->lane->mem, rk->held, rk->held_cap * sizeof *rk->held);
        kvr_mem_put(&rk->lane->mem, rk, sizeof *rk);
    }
    kvr_mem_put(&ix->mem, ix->ranks, ix->ranks_cap * sizeof *ix->ranks);
}
