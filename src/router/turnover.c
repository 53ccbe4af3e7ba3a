/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How full the caches are, seen from what events say: blocks that a rank evicted for each that it stored, over about its last 2,000
 * stores. A cache with room evicts nothing; one that is full evicts one for one.
 *
 * And whether there is a cache at all: an engine without prefix caching (switched off, or not to be had for its model) tells of no
 * stores, however much it computes. What is pending there counts for nothing, or requests with one prefix would all go to one rank,
 * each to compute it once more.
 *
 * kvr_router_poll looks at a slice of the ranks at a time. The index is asked without the router's lock, so that no choice waits for a
 * batch of events that is being applied.
 */
#include "router/internal.h"

enum { SLICE = 64, SILENT = 8 };               /* SILENT: requests computed without a store */
static const double WINDOW = 2000, HOLD = 200; /* blocks; HOLD: as if so many had been stored without an eviction */

static size_t next_slice(struct kvr_router *r, struct kvr_worker out[SLICE])
{
    size_t n = KVR_MIN(r->order_n, (size_t)SLICE);
    for (size_t i = 0; i < n; i++) out[i] = r->infos[r->order[(r->looked_at + i) % r->order_n]].worker;
    if (n) r->looked_at = (r->looked_at + n) % r->order_n;
    return n;
}

/* `prefills`: those of the requests sent that may be still computing. */
static void learn_silence(struct kvr_router *r, struct rank_info *info, const struct kvr_turnover *now, uint32_t prefills)
{
    if (now->stored > info->seen.stored) {
        info->sent = 0;
        info->stores_nothing = false;
    } else if (!info->stores_nothing && info->sent > prefills + SILENT) {
        info->stores_nothing = r->any_silent = true;
        for (size_t i = 0; i < r->order_n; i++) { /* those that were never heard of are likely to be the same */
            struct rank_info *other = &r->infos[r->order[i]];
            if (other->seen.stored == 0) other->stores_nothing = true;
        }
    }
}

/* Returns: its pressure. */
static double learn(struct rank_info *info, const struct kvr_turnover *now)
{
    /* Less than before: the index has forgotten the rank since, and begins anew. */
    bool anew = now->stored < info->seen.stored || now->removed < info->seen.removed;
    if (!anew) {
        info->stored += (double)(now->stored - info->seen.stored);
        info->removed += (double)(now->removed - info->seen.removed);
    }
    info->seen = *now;
    if (info->stored > WINDOW) {
        info->removed *= WINDOW / info->stored;
        info->stored = WINDOW;
    }
    return KVR_MIN(info->removed / (info->stored + HOLD), 1.0);
}

void kvr__look_at_turnover(struct kvr_router *r)
{
    struct kvr_worker workers[SLICE];
    struct kvr_turnover now[SLICE];
    if (!r->config.index || r->config.record_decisions) return; /* nobody tells what is evicted */
    kvr_lock(&r->lock);
    size_t n = next_slice(r, workers);
    kvr_unlock(&r->lock);
    for (size_t i = 0; i < n; i++) kvr_index_rank_turnover(r->config.index, workers[i], &now[i]);
    kvr_lock(&r->lock);
    for (size_t i = 0; i < n; i++) {
        struct kvr_rank_load l;
        long slot = kvr_load_slot_of(r->load, workers[i]);
        if (slot < 0 || kvr_load_get(r->load, (size_t)slot, kvr_now_ns(&r->clock), &l)) continue;
        learn_silence(r, &r->infos[slot], &now[i], l.active_prefills);
        r->pressures[slot] = learn(&r->infos[slot], &now[i]);
    }
    kvr_unlock(&r->lock);
}
