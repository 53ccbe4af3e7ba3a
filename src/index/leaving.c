/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that give up everything at once (R3): what they held leaves as a record of its own under the old slot and is given back in
 * slices.
 */
#include "index/internal.h"

enum { CLEAR_LAG = 2 }; /* runs between the stages of fetching */

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
        kvr__names_prefetch(ln, kvr__names_of(r), 1, KVR_MIN(kvr__len(r), (uint32_t)NAMES_AHEAD));
    }
}

bool kvr__rank_set_aside(struct lane *ln, struct rank *rk)
{
    uint32_t old = rk->slot, fresh;
    struct rank *gone = kvr_mem_zget(&ln->mem, sizeof *gone);
    if (!gone || kvr__slot_new(ln, &fresh)) {
        kvr_mem_put(&ln->mem, gone, gone ? sizeof *gone : 0);
        return false;
    }
    kvr__slot_kill(ln, old);
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
    kvr__slot_give(ln, fresh, rk);
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
