/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequence hashes of blocks on the device. The tree does not keep them; they are computed along the way down to a block, and the last way
 * is kept, so that neighbours of the last block - the next one of a chain that is copied, the one before in a chain that is evicted - cost
 * little.
 *
 *     steps    run 7 from 0        run 9 from 3            a run covers the way from its `base` to the next step's
 *     hashes   h0  h1  h2          h3  h4  h5 ...          of the blocks on the way, as far as they were asked for
 *
 * While a run exists, the blocks at its places do not change (I2), nor does what is above it; so the way stays true until the id of one of
 * its runs is given back (kvr__prefix_forget). The lane is locked.
 */
#include <kvroute/hash.h>

#include "index/internal.h"

enum { STEPS_MAX = 1 << 16 };

void kvr__prefix_forget(struct lane *ln, uint32_t run)
{
    struct way *w = &ln->way;
    for (size_t i = 0; i < w->steps_n; i++) {
        if (w->steps[i].run != run) continue;
        w->steps_n = i;
        w->hashes_n = KVR_MIN(w->hashes_n, (size_t)w->steps[i].base);
    }
}

void kvr__prefix_destroy(struct lane *ln)
{
    struct way *w = &ln->way;
    kvr_mem_put(&ln->mem, w->steps, w->steps_cap * sizeof *w->steps);
    kvr_mem_put(&ln->mem, w->fresh, w->fresh_cap * sizeof *w->fresh);
    kvr_mem_put(&ln->mem, w->hashes, w->hashes_cap * sizeof *w->hashes);
    *w = (struct way){0};
}

/* The runs above `run` and itself, to w->fresh, the lowest first. */
static int climb(struct lane *ln, uint32_t run, size_t *n)
{
    struct way *w = &ln->way;
    for (*n = 0; run >= IDS_RESERVED; run = kvr__run(ln, run)->parent) {
        if (*n == STEPS_MAX) return -KVR_ELIMIT;
        if (kvr_mem_grow(&ln->mem, (void **)&w->fresh, &w->fresh_cap, *n + 1, sizeof *w->fresh)) return -KVR_ENOMEM;
        w->fresh[(*n)++] = run;
    }
    return run == ROOT_RUN ? 0 : -KVR_ENOTFOUND; /* a start position says nothing of what is before it */
}

static int hash_up_to(struct lane *ln, size_t step, size_t end)
{
    struct way *w = &ln->way;
    const struct run *r = kvr__run(ln, w->steps[step].run);
    size_t at = w->hashes_n, base = w->steps[step].base;
    if (at >= end) return 0;
    if (kvr_mem_grow(&ln->mem, (void **)&w->hashes, &w->hashes_cap, end, sizeof *w->hashes)) return -KVR_ENOMEM;
    if (at == 0) kvr_hash_sequence(r->a, end, w->hashes);
    else kvr_hash_sequence_on(w->hashes[at - 1], r->a + (at - base), end - at, w->hashes + at);
    w->hashes_n = end;
    return 0;
}

/* Makes the way one that ends in `run`. */
static int turn_to(struct lane *ln, uint32_t run)
{
    struct way *w = &ln->way;
    size_t n, same = 0;
    if (w->steps_n && w->steps[w->steps_n - 1].run == run) return 0;
    int rc = climb(ln, run, &n);
    if (rc) return rc;
    while (same < n && same < w->steps_n && w->steps[same].run == w->fresh[n - 1 - same]) same++;
    if (same < w->steps_n) w->hashes_n = KVR_MIN(w->hashes_n, (size_t)w->steps[same].base);
    w->steps_n = same;
    if (kvr_mem_grow(&ln->mem, (void **)&w->steps, &w->steps_cap, n, sizeof *w->steps)) return -KVR_ENOMEM;
    for (; same < n; same++) {
        const struct run *r = kvr__run(ln, w->fresh[n - 1 - same]);
        uint32_t base = same ? w->steps[same - 1].base + r->poff : 0;
        if (same) w->hashes_n = KVR_MIN(w->hashes_n, (size_t)base); /* the way may have gone further down the parent */
        if (same && hash_up_to(ln, same - 1, base)) return -KVR_ENOMEM;
        w->steps[same] = (struct way_step){w->fresh[n - 1 - same], base};
        w->steps_n = same + 1;
    }
    return 0;
}

int kvr__prefix_of(struct lane *ln, uint32_t run, uint32_t off, uint64_t *hash, uint32_t *position)
{
    struct way *w = &ln->way;
    int rc = turn_to(ln, run);
    if (rc) return rc;
    size_t at = (size_t)w->steps[w->steps_n - 1].base + off;
    if (at >= UINT32_MAX) return -KVR_ELIMIT;
    if (hash_up_to(ln, w->steps_n - 1, at + 1)) return -KVR_ENOMEM;
    *hash = w->hashes[at];
    *position = (uint32_t)at;
    return 0;
}
