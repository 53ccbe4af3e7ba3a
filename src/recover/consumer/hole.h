/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When has an engine given up everything that a partial view lacks?
 *
 * Engines give up the block that was idle longest. So when a block goes that was stored after the loss, all that has not been used since
 * the loss is gone too; and when for a while nothing has shown a block we do not know (a removal of an unknown name, a store under an
 * unknown parent), neither is there one that has been used since.
 *
 *     loss ... stored M ... sign ... sign ... (quiet: 64 stores) ... removed M: nothing is missing any more
 *              (a marker: one of some)
 *
 * With orders of eviction that are not by use, or where unknown blocks are used without any event, a block may still be missing in what is
 * called whole then; it is predicted too little, and the next sign makes the view partial again.
 *
 * Pure. Threads: one for each object.
 */
#ifndef KVR_RECOVER_HOLE_H
#define KVR_RECOVER_HOLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVR_HOLE_MARKERS = 64, KVR_HOLE_EVERY = 16, KVR_HOLE_QUIET = 64 };

struct kvr_hole {
    uint64_t markers[KVR_HOLE_MARKERS]; /* names: of the first 64 x 16 stores since the loss every 16th */
    size_t n;
    uint64_t stores, quiet; /* since the loss, since the last sign */
};

static inline void kvr_hole_begin(struct kvr_hole *h)
{
    *h = (struct kvr_hole){0};
}

/* Unknown blocks are still there. */
static inline void kvr_hole_sign(struct kvr_hole *h)
{
    h->quiet = 0;
}

static inline void kvr_hole_stored(struct kvr_hole *h, uint64_t name)
{
    h->quiet++;
    if (h->stores++ % KVR_HOLE_EVERY == 0 && h->n < KVR_HOLE_MARKERS) h->markers[h->n++] = name;
}

/* A known name was removed. Returns: whether nothing is missing any more. */
static inline bool kvr_hole_removed(const struct kvr_hole *h, uint64_t name)
{
    for (size_t i = 0; i < h->n && h->quiet >= KVR_HOLE_QUIET; i++)
        if (h->markers[i] == name) return true;
    return false;
}

#endif
