/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was unlinked and that readers may still look at, collected in the lane's `fresh`; epoch.c says when it can be used again.
 * Collections are lists through fields that readers do not look at, so that unlinking never needs memory.
 */
#include "index/internal.h"

static void set_link(struct run *r, struct run *next)
{
    memcpy(&r->nkids, &next, sizeof next); /* nkids and next: 8 bytes that readers leave alone */
}

struct run *kvr__limbo_next(const struct run *r)
{
    struct run *next;
    memcpy(&next, &r->nkids, sizeof next);
    return next;
}
_Static_assert(offsetof(struct run, next) == offsetof(struct run, nkids) + 4 && sizeof(void *) <= 8, "a link fits in nkids and next");

void kvr__retire_run(struct lane *ln, struct run *r, bool with_id)
{
    r->high = with_id; /* no use for it any more */
    set_link(r, ln->fresh.runs);
    ln->fresh.runs = r;
    ln->fresh.n++;
}

void kvr__retire_cover(struct lane *ln, struct cover *c)
{
    c->link = ln->fresh.covers;
    ln->fresh.covers = c;
    ln->fresh.n++;
}

void kvr__retire_seg(struct lane *ln, struct kid_seg *s)
{
    s->link = ln->fresh.segs;
    ln->fresh.segs = s;
    ln->fresh.n++;
}

void kvr__retire_kid_dir(struct lane *ln, struct kid_dir *d)
{
    d->link = ln->fresh.kid_dirs;
    ln->fresh.kid_dirs = d;
    ln->fresh.n++;
}

void kvr__retire_ref_dir(struct lane *ln, struct ref_dir *d)
{
    d->link = ln->fresh.ref_dirs;
    ln->fresh.ref_dirs = d;
    ln->fresh.n++;
}

/* Takes over `carrier`, a record made to carry the slot to its reuse. A list that was made for a run which never came is still there. */
void kvr__retire_slot(struct lane *ln, struct rank *carrier)
{
    KVR_ASSERT(carrier->held_n == 0);
    kvr_mem_put(&ln->mem, carrier->held, carrier->held_cap * sizeof *carrier->held);
    carrier->held = NULL;
    carrier->held_cap = 0;
    carrier->next_free = ln->fresh.dead;
    ln->fresh.dead = carrier;
    ln->fresh.n++;
}
