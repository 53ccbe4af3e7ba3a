/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where walks stand, and what moves them on.
 *
 * A walk goes over one rank in pieces, for those that can make up for what happens meanwhile (see the header). It visits the
 * rank's tree in preorder: a run, then those behind it. Between pieces it stands before a run; when the rank drops that
 * one, the lane moves the walk on to the next in order, which is still there (what is behind the run has gone before it). A
 * new run comes first among its siblings, so that a walk that has begun on them does not see it, and one that has not,
 * does. The same holds for the lists of lower tiers.
 *
 * Why the pieces and then the events since the beginning give the content. Each block is seen at a moment of its own, parents no
 * later than what is behind them.
 *   1. What was held at the beginning and is not seen was given up before its turn: the copy hears of it, and of its return.
 *   2. What is seen although it came later is stored again by an event, which changes nothing, and removed by a later one if so.
 *   3. A store may find its parent missing in the copy. The parent was then given up after that store, and before its turn (else
 *      it would have been seen); what hung behind it went with it, and what came back comes back in the copy.
 * So for each block the last event that concerns it has the same effect in the copy. This needs events that mean the same when
 * the copy has more or less than the pair had: a store that the pair refused may be accepted by the copy, a name that moved may
 * be found at its later place, a block's first name may be another one. Such events mark the walk (kvr__walks_disturbed).
 */
#include "index/internal.h"

uint32_t kvr__walk_past(const struct lane *ln, const struct rank *rk, uint32_t pos)
{
    while (rk->held[pos].next == NO_PLACE) {
        uint32_t up = kvr__run(ln, rk->held[pos].run)->parent;
        if (up < IDS_RESERVED) return 0;
        const struct run *r = kvr__run(ln, up);
        pos = kvr__cover_pos_of(r, kvr__grip(r, rk->slot));
    }
    return rk->held[rk->held[pos].next].run;
}

void kvr__walks_run_goes(struct lane *ln, const struct rank *rk, uint32_t pos)
{
    for (struct standing *w = ln->walks; w; w = w->link)
        if (w->rk == rk && w->run == rk->held[pos].run) w->run = kvr__walk_past(ln, rk, pos);
}

void kvr__walks_edge_goes(struct lane *ln, uint32_t id, uint32_t next)
{
    for (struct standing *w = ln->walks; w; w = w->link)
        for (int t = 0; t < KVR_TIER_COUNT - 1; t++)
            if (w->edge[t] == id) w->edge[t] = next;
}

void kvr__walks_disturbed(struct lane *ln, const struct rank *rk)
{
    for (struct standing *w = ln->walks; w; w = w->link) w->disturbed |= w->rk == rk;
}

void kvr__walks_rank_goes(struct lane *ln, const struct rank *rk)
{
    for (struct standing *w = ln->walks; w; w = w->link)
        if (w->rk == rk) w->rk = NULL;
}

/* At once: nothing is left to be walked. */
void kvr__walks_rank_empties(struct lane *ln, const struct rank *rk)
{
    for (struct standing *w = ln->walks; w; w = w->link) {
        if (w->rk != rk) continue;
        w->run = 0;
        memset(w->edge, 0, sizeof w->edge);
    }
}
