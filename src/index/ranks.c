/* SPDX-License-Identifier: Apache-2.0 */
/*
 * (worker, rank) pairs. The directory of all pairs is the index's; a pair belongs to the lane that had the fewest
 * when it was first seen, by an event or by a routing decision, and keeps it while it exists. In its lane it has a
 * slot, the number that holder words carry, and the list of runs it holds, so that clearing costs what it held.
 */
#include "index/internal.h"

enum { CLEAR_LAG = 2 }; /* runs between the stages of fetching */

/* ---- slots --------------------------------------------------------------------------------------------- */

static int slot_new(struct lane *ln, uint32_t *out)
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

static void slot_give(struct lane *ln, uint32_t s, struct rank *rk)
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

static void slot_kill(struct lane *ln, uint32_t s)
{
    atomic_store_explicit(&kvr__slot(ln, s)->live, 0, REL);
    YIELD_POINT();
}

/* ---- lists of runs ------------------------------------------------------------------------------------- */

int kvr__rank_reserve(struct lane *ln, struct rank *rk)
{
    return kvr_mem_grow(&ln->mem, (void **)&rk->held, &rk->held_cap, rk->held_n + 1, sizeof *rk->held);
}

uint32_t kvr__rank_kid(const struct rank *rk, const struct run *r)
{
    return rk->held[kvr__cover_pos_of(r, kvr__grip(r, rk->slot))].kid;
}

uint32_t kvr__rank_add(struct lane *ln, struct rank *rk, const struct run *r)
{
    uint32_t pos = (uint32_t)rk->held_n++;
    struct holding *h = &rk->held[pos];
    *h = (struct holding){r->id, NO_PLACE, NO_PLACE, NO_PLACE};
    if (r->parent < IDS_RESERVED) {
        h->next = rk->root;
        if (h->next != NO_PLACE) rk->held[h->next].prev = pos;
        rk->root = pos;
        return pos;
    }
    const struct run *p = kvr__run(ln, r->parent);
    uint32_t up = kvr__cover_pos_of(p, kvr__grip(p, rk->slot));
    h->prev = FIRST_KID | up;
    h->next = rk->held[up].kid;
    if (h->next != NO_PLACE) rk->held[h->next].prev = pos;
    rk->held[up].kid = pos;
    return pos;
}

/* What leads to the holding at one place leads to `to` instead. */
static void relink(struct rank *rk, const struct holding *h, uint32_t to)
{
    if (h->prev == NO_PLACE) rk->root = to;
    else if (h->prev & FIRST_KID) rk->held[h->prev & ~FIRST_KID].kid = to;
    else rk->held[h->prev].next = to;
}

void kvr__rank_drop(struct lane *ln, struct rank *rk, uint32_t pos)
{
    if (ln->walks) kvr__walks_run_goes(ln, rk, pos);
    struct holding *h = &rk->held[pos], *last = &rk->held[--rk->held_n];
    KVR_ASSERT(h->kid == NO_PLACE);
    relink(rk, h, h->next);
    if (h->next != NO_PLACE) rk->held[h->next].prev = h->prev;
    if (h != last) {
        relink(rk, last, pos);
        if (last->next != NO_PLACE) rk->held[last->next].prev = pos;
        if (last->kid != NO_PLACE) rk->held[last->kid].prev = pos | FIRST_KID;
        *h = *last;
        kvr__cover_pos(kvr__run(ln, h->run), rk->slot, pos);
    }
    if (rk->held_n == 0) {
        kvr_mem_put(&ln->mem, rk->held, rk->held_cap * sizeof *rk->held);
        rk->held = NULL;
        rk->held_cap = 0;
    }
}

/* Fetches what giving up the runs before `at` in the rank's list needs, stage by stage: the buckets of the next run's
 * names, the arrays of one further on, its header, its reference. */
static void fetch_runs(const struct lane *ln, const struct rank *rk, size_t at)
{
    if (at >= 4 * CLEAR_LAG) __builtin_prefetch(kvr__ref(ln, rk->held[at - 4 * CLEAR_LAG].run));
    if (at >= 3 * CLEAR_LAG) __builtin_prefetch(kvr__run(ln, rk->held[at - 3 * CLEAR_LAG].run), 1);
    if (at >= 2 * CLEAR_LAG) {
        struct run *r = kvr__run(ln, rk->held[at - 2 * CLEAR_LAG].run);
        const uint64_t *names = kvr__names_of(r);
        __builtin_prefetch(r->a);
        for (uint32_t i = 0; i < kvr__len(r) && i < NAMES_AHEAD; i += 8) __builtin_prefetch(names + i);
    }
    if (at >= CLEAR_LAG) {
        struct run *r = kvr__run(ln, rk->held[at - CLEAR_LAG].run);
        if (kvr__cover(r)) return; /* others hold it: its names stay */
        kvr__kid_prefetch(ln, kvr__run_hash(ln, r));
        for (uint32_t i = 0; i < kvr__len(r) && i < NAMES_AHEAD; i++) kvr__names_prefetch(ln, kvr__names_of(r)[i]);
    }
}

/* ---- leaving ------------------------------------------------------------------------------------------- */

bool kvr__rank_set_aside(struct lane *ln, struct rank *rk)
{
    uint32_t old = rk->slot, fresh;
    struct rank *gone = kvr_mem_zget(&ln->mem, sizeof *gone);
    if (!gone || slot_new(ln, &fresh)) {
        kvr_mem_put(&ln->mem, gone, gone ? sizeof *gone : 0);
        return false;
    }
    slot_kill(ln, old);
    *gone = *rk;
    gone->capacity = 0;
    gone->drain_run = 0;
    gone->drain_at = (uint32_t)gone->held_n;
    gone->next_free = ln->leaving;
    ln->leaving = gone;
    ln->rank_of[old] = gone;
    if (ln->walks) kvr__walks_rank_empties(ln, rk);
    rk->held = NULL;
    rk->held_n = rk->held_cap = rk->blocks = 0;
    rk->root = NO_PLACE;
    rk->last_run = rk->last_off = 0;
    rk->serial = ++ln->serials;
    memset(rk->tier, 0, sizeof rk->tier);
    slot_give(ln, fresh, rk);
    return true;
}

/* Gives up runs from `id` upwards until one has others behind it, the top, or `budget` blocks are gone. Returns: where to go on, or 0. */
static uint32_t drain_up(struct lane *ln, struct rank *rk, uint32_t id, size_t budget)
{
    size_t before = rk->blocks;
    while (id >= IDS_RESERVED && before - rk->blocks < budget) {
        struct run *r = kvr__run(ln, id);
        if (kvr__rank_kid(rk, r) != NO_PLACE) return 0;
        id = r->parent;
        kvr__give_up_run(ln, rk, r);
    }
    return id >= IDS_RESERVED ? id : 0;
}

/* Runs with others behind them are passed over: they go with the last of those. */
static size_t drain_device(struct lane *ln, struct rank *rk, size_t budget)
{
    size_t before = rk->blocks;
    while (rk->held_n && before - rk->blocks < budget) {
        if (!rk->drain_run) {
            if (rk->drain_at == 0) rk->drain_at = (uint32_t)rk->held_n;
            rk->drain_at = KVR_MIN(rk->drain_at, (uint32_t)rk->held_n) - 1;
            fetch_runs(ln, rk, rk->drain_at);
            rk->drain_run = rk->held[rk->drain_at].run;
        }
        rk->drain_run = drain_up(ln, rk, rk->drain_run, budget - (before - rk->blocks));
    }
    return before - rk->blocks;
}

size_t kvr__drain(struct lane *ln, size_t blocks)
{
    size_t n = 0;
    while (ln->leaving && n < blocks) {
        struct rank *rk = ln->leaving;
        n += drain_device(ln, rk, blocks - n);
        if (n < blocks) n += kvr__tiers_drain(ln, rk, blocks - n);
        if (rk->held_n || !kvr__tiers_none(rk)) continue;
        ln->leaving = rk->next_free;
        ln->rank_of[rk->slot] = NULL;
        kvr__retire_slot(ln, rk);
    }
    return n;
}

void kvr__leaving_destroy(struct lane *ln)
{
    while (ln->leaving) {
        struct rank *rk = ln->leaving;
        ln->leaving = rk->next_free;
        kvr_mem_put(&ln->mem, rk->held, rk->held_cap * sizeof *rk->held);
        kvr_mem_put(&ln->mem, rk, sizeof *rk);
    }
}

void kvr__rank_clear(struct lane *ln, struct rank *rk)
{
    if (rk->held_n == 0) return;
    if (kvr__rank_set_aside(ln, rk)) {
        while (ln->leaving) (void)kvr__drain(ln, SIZE_MAX);
        return;
    }
    /* Without memory for a new slot the blocks go one by one, deepest first, in the readers' sight. */
    for (size_t at = rk->held_n; at--; at = KVR_MIN(at, rk->held_n)) {
        fetch_runs(ln, rk, at);
        kvr__drop_run(ln, rk, rk->held[at].run);
    }
    KVR_ASSERT(rk->held_n == 0);
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
    while (ix->ranks[i] && kvr_worker_cmp(ix->ranks[i]->worker, w) != 0) i = (i + 1) & mask;
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
    int rc = rk ? slot_new(ln, &s) : -KVR_ENOMEM;
    if (rc == 0) {
        rk->worker = w;
        rk->lane = ln;
        rk->root = NO_PLACE;
        rk->serial = ++ln->serials;
        rk->capacity = ix->config.rank_capacity;
        rk->pool = kvr__pool_of(ix, w);
        slot_give(ln, s, rk);
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
    kvr_lock(&ln->lock);
    if (ln->walks) kvr__walks_rank_goes(ln, rk);
    slot_kill(ln, rk->slot);
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
