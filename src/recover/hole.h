/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When has an engine given up everything that a partial view lacks?
 *
 * Engines give up the block that was idle longest. So when a block goes that was stored after the last sign of blocks we do not know, the
 * unknown ones that have not been used since are gone too. Signs are: a removal of an unknown name, a store under an unknown parent, and
 * an answer with more cached tokens than the view had.
 *
 *     loss ... sign ... sign ......... stored M ................. removed M: nothing is missing any more
 *                                      (a marker: one of some)
 *
 * Exact when every request passes here and the engine tells how much was cached: an unknown block that is used after M would give a
 * sign. With several routers, other orders of eviction, or answers that tell nothing, a block may still be missing in what is called
 * whole then; it is predicted too little, and the next sign makes the view partial again.
 *
 * Pure. Threads: one for each object.
 */
#ifndef KVR_RECOVER_HOLE_H
#define KVR_RECOVER_HOLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVR_HOLE_MARKERS = 64, KVR_HOLE_EVERY = 16 };

struct kvr_hole {
    uint64_t markers[KVR_HOLE_MARKERS]; /* names, stored since the last sign: the first of every 16 stores */
    size_t n;
    uint64_t stores;
};

/* Unknown blocks are still there. Also at the beginning. */
static inline void kvr_hole_sign(struct kvr_hole *h)
{
    *h = (struct kvr_hole){0};
}

static inline void kvr_hole_stored(struct kvr_hole *h, uint64_t name)
{
    if (h->stores++ % KVR_HOLE_EVERY == 0 && h->n < KVR_HOLE_MARKERS) h->markers[h->n++] = name;
}

/* A known name was removed. Returns: whether nothing is missing any more. */
static inline bool kvr_hole_removed(const struct kvr_hole *h, uint64_t name)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->markers[i] == name) return true;
    return false;
}

#endif
