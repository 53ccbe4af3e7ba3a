/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies: an engine may keep several physical blocks under one name, and each is stored and removed by an event of its own. Of one rank,
 * per tier and name, the copies beyond the first; who holds the first is the index's knowledge. Blocks without copies take no memory.
 *
 *     stored, held already     one copy more       nothing for the index to do
 *     removed, copies          one copy less       nothing for the index to do
 *     removed, none            the block goes      the index is told
 *
 * A store may also be told again (vLLM's kv_cache_report_mode full tells of reused blocks) and look exactly like a copy that was computed
 * from the start of a chain. A count too high keeps a block for ever that the engine has not, one too low gives it up early; so what begins
 * a chain is not counted, of an engine that may do so. What vLLM reports again always begins one; copies seldom do: the last block of a
 * prompt that is all cached, blocks that two requests compute side by side, generated text. Of a prompt that was computed anew without
 * reading the cache (prompt_logprobs), the copies are not counted. Since then a store under a parent that is not there may only mean
 * that another copy of the parent is (`unsure`): the view lacks something, and nothing was lost.
 *
 * Counts never exceed the truth as long as every store and removal is given once, in order: after a loss, or when what is told may be in
 * the view already, kvr__copies_forget, or no call at all, is right. Single-threaded; bounded by KVR_COPIES_MAX.
 */
#ifndef KVR_RECOVER_COPIES_H
#define KVR_RECOVER_COPIES_H

#include <kvroute/event.h>

#include "base/map64.h"

enum { KVR_COPIES_MAX = 1 << 22 }; /* names of a rank, in all tiers */

struct kvr_copies {
    struct kvr_map64 more[KVR_TIER_COUNT]; /* name -> copies beyond the first */
    bool unsure;                           /* there may be copies that are not counted: their blocks are given up early */
};

/* Is a block of this name held in the tier, by what events said? */
typedef bool kvr_copies_holds(void *ctx, enum kvr_tier tier, uint64_t name);

/* How many leading blocks of a store are copies of held ones; they are counted, or given up early when there is no room.
 * may_repeat: this engine may tell a store again. */
size_t kvr__copies_stored(struct kvr_copies *c, const struct kvr_event *store, bool may_repeat, kvr_copies_holds *holds, void *ctx);
/* Writes those of names[0..n) whose last copy goes to last[]; it may be names. Returns: how many. */
size_t kvr__copies_removed(struct kvr_copies *c, enum kvr_tier tier, const uint64_t *names, size_t n, uint64_t *last);
void kvr__copies_forget(struct kvr_copies *c);

#endif
