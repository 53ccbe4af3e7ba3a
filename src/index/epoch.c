/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reclamation: when may memory that a reader could still look at be used again?
 *
 * A reader publishes the epoch it entered in, and 0 when it leaves. A lane collects what it unlinked in `fresh` (limbo.c);
 * from time to time it closes the collection: it raises the epoch from e to e + 1 and stamps the collection e + 1.
 * A collection is freed once every reader is outside or shows an epoch >= its stamp.
 *
 * Why this is enough. A reader does   A: seen = e (seq_cst);  B: load epoch (seq_cst);   the lane does
 * C: raise epoch (seq_cst);  D: load seen (seq_cst). All four are in one total order.
 *   If A is before D, the lane sees e (or something later by that reader) and waits while e is too old.
 *   If D is before A, then C < D < A < B, so B reads the raised epoch and synchronises with C: every unlink that
 *   came before C is visible to this reader, which therefore cannot reach the collection.
 * A reader that shows an epoch >= the stamp read it from C or a later raise, and synchronises with C as well.
 * Leaving is a release store, D an acquire load, so the reader's last look happens before reuse.
 * No fence is used, so ThreadSanitizer sees the same argument.
 *
 * Raises by several lanes form one modification order of read-modify-writes, so an epoch >= stamp read by anybody
 * is in the release sequence of C. A lane keeps three collections; while the oldest cannot go, `fresh` grows.
 * A reader that never leaves stops reclamation, not progress: memory then grows up to the byte cap.
 */
#include "index/internal.h"

enum { RECLAIM_BATCH = 256 };

void kvr__reader_enter(struct kvr_index_reader *r)
{
    uint64_t e = atomic_load_explicit(&r->index->epoch, ACQ);
    atomic_store_explicit(&r->seen, e * 2 + 1, memory_order_seq_cst);
    (void)atomic_load_explicit(&r->index->epoch, memory_order_seq_cst);
    YIELD_POINT();
}

void kvr__reader_leave(struct kvr_index_reader *r)
{
    YIELD_POINT();
    atomic_store_explicit(&r->seen, 0, REL);
}

static void free_collection(struct lane *ln, struct limbo *l)
{
    struct limbo g = *l;
    *l = (struct limbo){0};
    while (g.runs) {
        struct run *r = g.runs;
        g.runs = kvr__limbo_next(r);
        if (r->high) kvr__id_put(ln, r->id);
        kvr__run_release(ln, r);
    }
    while (g.covers) {
        struct cover *c = g.covers;
        g.covers = c->link;
        kvr__cover_free(ln, c);
    }
    while (g.segs) {
        struct kid_seg *s = g.segs;
        g.segs = s->link;
        kvr_mem_put(&ln->mem, s, sizeof *s);
    }
    while (g.kid_dirs) {
        struct kid_dir *d = g.kid_dirs;
        g.kid_dirs = d->link;
        kvr_mem_put(&ln->mem, d, sizeof *d + sizeof d->seg[0] * ((size_t)1 << d->depth));
    }
    while (g.ref_dirs) {
        struct ref_dir *d = g.ref_dirs;
        g.ref_dirs = d->link;
        kvr_mem_put(&ln->mem, d, sizeof *d + sizeof d->chunk[0] * d->cap);
    }
    while (g.dead) {
        struct rank *rk = g.dead;
        g.dead = rk->next_free;
        kvr__slot_free(ln, rk->slot);
        kvr_mem_put(&ln->mem, rk, sizeof *rk);
    }
}

/* The oldest epoch that a reader shows. */
static uint64_t oldest_reader(struct kvr_index *ix)
{
    uint64_t min = UINT64_MAX;
    kvr_lock(&ix->readers_lock);
    for (const struct kvr_index_reader *r = ix->readers; r; r = r->next) {
        uint64_t s = atomic_load_explicit(&r->seen, memory_order_seq_cst);
        if (s && s / 2 < min) min = s / 2;
    }
    kvr_unlock(&ix->readers_lock);
    return min;
}

static void close_fresh(struct lane *ln)
{
    if (!ln->fresh.n) return;
    for (int i = 0; i < 3; i++) {
        if (ln->limbo[i].n) continue;
        ln->limbo[i] = ln->fresh;
        ln->fresh = (struct limbo){0};
        ln->limbo[i].epoch = atomic_fetch_add_explicit(&ln->ix->epoch, 1, memory_order_seq_cst) + 1;
        return;
    }
}

void kvr__reclaim(struct lane *ln, bool now)
{
    if (now ? ln->fresh.n == 0 && !ln->limbo[0].n && !ln->limbo[1].n && !ln->limbo[2].n : ln->fresh.n < ln->reclaim_at) return;
    if (ln->mem.bytes > ln->mem_high) ln->mem_high = ln->mem.bytes;
    close_fresh(ln);
    ln->reclaim_at = ln->fresh.n + RECLAIM_BATCH; /* more when no collection was free */
    uint64_t oldest = oldest_reader(ln->ix);
    for (int i = 0; i < 3; i++)
        if (ln->limbo[i].n && ln->limbo[i].epoch <= oldest) free_collection(ln, &ln->limbo[i]);
}
