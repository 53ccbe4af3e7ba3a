/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies: an engine may keep several physical blocks under one name, and each is stored and removed by an event of its own. Of one rank,
 * per tier and name, the copies beyond the first; who holds the first is the index's knowledge. Blocks without copies take no memory.
 *
 *     stored, held already     one copy more       nothing for the index to do
 *     removed, copies          one copy less       nothing for the index to do
 *     removed, none            the block goes      the index is told
 *
 * A store may also be told again: vLLM reports the cached blocks that a request reuses when the request asks for it (kv_cache_report_mode
 * full), and such a report looks exactly like a copy that was computed from the start of a chain. A copy that is not counted makes the view
 * give a block up early; a report that is counted keeps a block for ever that the engine has not. Nearly no engine is ever asked for
 * reports, so what might be one is counted, but as *unproven*, and can be taken back:
 *
 *     a store                                        counts
 *     that goes on with a chain                      for certain: reports begin at the start
 *     that begins one, as an array                   for certain: releases that write arrays report nothing
 *     that begins one, as a map                      unproven; once `reports` is set: not at all
 *
 *     a block is held while                          1 + certain + unproven > 0    (certain is below 0 when more went than was certain)
 *     after kvr__copies_take_back                    1 + certain > 0, which is never more than the truth
 *
 * When to take back is for others to know: engine_convert.c sees a report in the stream, or kvr_engine_stream_take_back() is called by who
 * knows it otherwise. From then on, for the life of the engine, nothing that may be a report is counted (`reports`).
 *
 * When copies were not counted, or taken back, a store under a parent that is not there may only mean that another copy of the parent is
 * (`unsure`): the view lacks something, and nothing was lost.
 *
 * Certain counts never exceed the truth as long as every store and removal is given once, in order: after a loss, or when what is told may
 * be in the view already, kvr__copies_forget, or no call at all, is right. Single-threaded; bounded by KVR_COPIES_MAX.
 */
#ifndef KVR_RECOVER_COPIES_H
#define KVR_RECOVER_COPIES_H

#include <kvroute/event.h>

#include "base/map64.h"
#include "base/tally.h"

enum { KVR_COPIES_MAX = 1 << 22 }; /* names of a rank, in all tiers */

struct kvr_copies {
    struct kvr_map64 more[KVR_TIER_COUNT]; /* name -> struct kvr_tally of the copies beyond the first */
    uint64_t unproven;                     /* of all names */
    bool reports;                          /* this engine reports: outlives kvr__copies_forget */
    bool unsure;                           /* there may be copies that are not counted: their blocks are given up early */
};

/* Is a block of this name held in the tier, by what events said? */
typedef bool kvr_copies_holds(void *ctx, enum kvr_tier tier, uint64_t name);

/* How many leading blocks of a store are copies of held ones; they are counted, or given up early when there is no room.
 * may_repeat: this engine may be asked for reports. */
size_t kvr__copies_stored(struct kvr_copies *c, const struct kvr_event *store, bool may_repeat, kvr_copies_holds *holds, void *ctx);
/* Writes those of names[0..n) whose last copy goes to last[]; it may be names. Returns: how many. */
size_t kvr__copies_removed(struct kvr_copies *c, enum kvr_tier tier, const uint64_t *names, size_t n, uint64_t *last);
/* A store that was counted as unproven was a report. */
void kvr__copies_uncount(struct kvr_copies *c, enum kvr_tier tier, const uint64_t *names, size_t n);
/* Takes all unproven counts of a tier back, and writes the names that were held by nothing else to gone[], which has room for more[tier].n.
 * Returns: how many. Without memory all counts of the tier go, which is less than the truth. */
size_t kvr__copies_take_back(struct kvr_copies *c, enum kvr_tier tier, uint64_t *gone);
/* Is the block held by nothing but unproven counts? */
bool kvr__copies_doubtful(const struct kvr_copies *c, enum kvr_tier tier, uint64_t name);
/* Has the block unproven counts? */
bool kvr__copies_unproven(const struct kvr_copies *c, enum kvr_tier tier, uint64_t name);
void kvr__copies_forget(struct kvr_copies *c);

#endif
