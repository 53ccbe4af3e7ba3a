/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving up blocks that nobody has used for long: a rank over its capacity, or a lane when the byte cap is reached.
 *
 * Least recently used, approximately: every use of a run (a store, a decision, a match) leaves the clock tick in
 * its stamp. Of SAMPLES runs taken by chance the one with the oldest stamp is given up, from its end, behind
 * whatever the rank still holds below it: a use of a block is a use of everything above it, so the oldest runs are
 * leaves. The tick counts events and decisions, not time, so that it tells apart what a busy second brought.
 */
#include "index/internal.h"

enum { SAMPLES = 8, LOOK_AT_ALL = 16 };

static uint32_t chance(struct lane *ln, uint32_t below)
{
    struct kvr_rng r = {ln->rng};
    uint32_t v = kvr_rng_below(&r, below);
    ln->rng = r.state;
    return v;
}

void kvr__evict_tick(struct lane *ln)
{
    atomic_store_explicit(&ln->tick, atomic_load_explicit(&ln->tick, RLX) + 1, RLX);
}

static uint32_t age(const struct lane *ln, uint32_t run)
{
    return atomic_load_explicit(&ln->tick, RLX) - atomic_load_explicit(&kvr__ref(ln, run)->stamp, RLX);
}

/* The rank's deepest run at or below `run` along its first children: a leaf of what the rank holds. */
static struct run *leaf_of(const struct lane *ln, const struct rank *rk, uint32_t run)
{
    uint32_t at = kvr__rank_kid(rk, kvr__run(ln, run));
    if (at == NO_PLACE) return kvr__run(ln, run);
    while (rk->held[at].kid != NO_PLACE) at = rk->held[at].kid;
    return kvr__run(ln, rk->held[at].run);
}

/* How many blocks of r the rank must keep: what it stored last, and what its children hang on. */
static uint32_t kept(const struct lane *ln, const struct rank *rk, const struct run *r)
{
    uint32_t keep = 0, off = rk->last_off;
    for (uint32_t id = rk->last_run; id >= IDS_RESERVED;) {
        const struct run *p = kvr__run(ln, id);
        if (!p) break; /* gone since */
        if (p == r) keep = off;
        off = p->poff;
        id = p->parent;
    }
    for (uint32_t k = kvr__rank_kid(rk, r); k != NO_PLACE; k = rk->held[k].next)
        keep = KVR_MAX(keep, (uint32_t)kvr__run(ln, rk->held[k].run)->poff);
    return keep;
}

static uint32_t can_give(const struct lane *ln, const struct rank *rk, const struct run *r)
{
    uint32_t cut = kvr__grip(r, rk->slot).cut, keep = kept(ln, rk, r);
    return cut > keep ? cut - keep : 0;
}

/* The oldest run of a sample, or its leaf. */
static struct run *sample(struct lane *ln, const struct rank *rk)
{
    uint32_t best = 0, best_age = 0;
    for (int i = 0; i < SAMPLES; i++) {
        uint32_t run = rk->held[chance(ln, (uint32_t)rk->held_n)].run, a = age(ln, run);
        if (best && a <= best_age) continue;
        best = run;
        best_age = a;
    }
    return leaf_of(ln, rk, best);
}

/* The oldest run that has something to give, by a look at all. */
static struct run *oldest(const struct lane *ln, const struct rank *rk)
{
    struct run *best = NULL;
    uint32_t best_age = 0;
    for (size_t i = 0; i < rk->held_n; i++) {
        struct run *r = kvr__run(ln, rk->held[i].run);
        uint32_t a = age(ln, r->id);
        if ((best && a <= best_age) || !can_give(ln, rk, r)) continue;
        best = r;
        best_age = a;
    }
    return best;
}

/* Gives up at most `most` of the rank's blocks; returns how many. 0: all are needed. */
static size_t give(struct lane *ln, struct rank *rk, size_t most)
{
    if (rk->held_n == 0) return 0;
    struct run *r = rk->held_n > LOOK_AT_ALL ? sample(ln, rk) : NULL;
    if (!r || !can_give(ln, rk, r)) r = oldest(ln, rk);
    if (!r) return 0;
    size_t n = KVR_MIN((size_t)can_give(ln, rk, r), most), before = rk->blocks;
    kvr__shrink(ln, rk, r->id, kvr__grip(r, rk->slot).cut - (uint32_t)n);
    return before - rk->blocks;
}

void kvr__evict_for_capacity(struct lane *ln, struct rank *rk)
{
    while (rk->capacity && rk->blocks > rk->capacity) {
        size_t n = give(ln, rk, rk->blocks - rk->capacity);
        if (!n) rk->last_run = 0; /* what was stored last is over the capacity by itself */
        ln->counters.evicted_capacity += n;
    }
}

/* Some rank with blocks, other than `but`: the one of the oldest run among samples of ranks. */
static struct rank *stalest_rank(struct lane *ln, const struct rank *but)
{
    uint32_t top = atomic_load_explicit(&ln->slots_top, RLX), best_age = 0;
    struct rank *best = NULL;
    if (top < 2) return NULL;
    for (uint32_t i = 0, from = chance(ln, top), seen = 0; i < top && seen < SAMPLES; i++) {
        uint32_t s = (from + i) % top;
        struct rank *rk = s ? ln->rank_of[s] : NULL; /* slot 0 is not used */
        if (!rk || rk == but || rk->held_n == 0) continue;
        uint32_t a = age(ln, rk->held[chance(ln, (uint32_t)rk->held_n)].run);
        if (!best || a > best_age) {
            best = rk;
            best_age = a;
        }
        seen++;
    }
    return best;
}

bool kvr__evict_for_bytes(struct lane *ln, const struct rank *storing)
{
    size_t want = ln->blocks_n / 64 + 1, gone = 0;
    const struct rank *spent = NULL; /* `storing`, when all it has left is what it stores */
    if (ln->predict.blocks) {
        gone = kvr__predict_prune(ln, ln->predict.blocks - ln->predict.blocks / 8 - 1, storing != NULL);
        ln->counters.pruned += gone;
    }
    while (ln->stamps && gone < want) {
        struct rank *rk = stalest_rank(ln, spent);
        if (!rk) break;
        size_t n = give(ln, rk, want - gone);
        if (!n && rk == storing) spent = rk;
        else if (!n) rk->last_run = 0;
        ln->counters.evicted_bytes += n;
        gone += n;
    }
    kvr__reclaim(ln, true);
    kvr__reclaim(ln, true);
    return gone > 0;
}
