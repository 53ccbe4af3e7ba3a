/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of runs that a rank holds, linked as its part of the tree (I7), so that clearing costs what it held and nothing for what others
 * hold.
 */
#include "index/internal.h"

int kvr__rank_reserve(struct lane *ln, struct rank *rk)
{
    return kvr_mem_grow(&ln->mem, (void **)&rk->held, &rk->held_cap, rk->held_n + 1, sizeof *rk->held);
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
