/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reclamation: when may memory that a reader could still look at be used again?
 *
 * A reader publishes the global epoch in its own word at entry and READER_IDLE at exit. The writer collects
 * what it unlinked in `young`; from time to time it makes `young` the `old` generation and raises the epoch to
 * old_epoch. The old generation is freed once every reader is idle or shows an epoch >= old_epoch.
 *
 * Why this is enough. Entry is   A: seen = e (seq_cst);  B: load epoch (seq_cst);   the writer's side is
 * C: raise epoch (seq_cst);  D: load seen (seq_cst). All four are in one total order.
 *   If A is before D, the writer sees e (or something later by that reader) and waits for it.
 *   If D is before A, then C < D < A < B, so B reads the raised epoch and synchronises with C: every unlink
 *   that came before C is visible to this reader, which therefore cannot reach the old generation.
 * Exit is a release store; the writer's D is an acquire load, so the reader's last look happens before reuse.
 * No fence is used, so ThreadSanitizer sees the same argument.
 *
 * A reader that never leaves stops reclamation, not progress: memory then grows up to the byte cap.
 */
#include "index/internal.h"

enum { RECLAIM_BATCH = 128 };

uint64_t kvr__index_enter(struct kvr_index_reader *r)
{
    uint64_t e = atomic_load_explicit(&r->index->epoch, ACQ);
    atomic_store_explicit(&r->seen, e, memory_order_seq_cst);
    return atomic_load_explicit(&r->index->epoch, memory_order_seq_cst);
}

void kvr__index_leave(struct kvr_index_reader *r)
{
    atomic_store_explicit(&r->seen, READER_IDLE, REL);
}

void kvr__index_retire(struct kvr_index *ix, struct retired *block, size_t size)
{
    block->size = size;
    block->next = ix->young.blocks;
    ix->young.blocks = block;
    ix->young.count++;
}

void kvr__index_retire_node(struct kvr_index *ix, uint32_t id)
{
    kvr__node(ix, id)->kids = ix->young.nodes;
    ix->young.nodes = id;
    ix->young.count++;
}

void kvr__index_retire_rank(struct kvr_index *ix, struct rank *rk)
{
    rk->garbage_next = ix->young.ranks;
    ix->young.ranks = rk;
    ix->young.count++;
}

static bool old_is_unseen(const struct kvr_index *ix)
{
    for (const struct kvr_index_reader *r = ix->readers; r; r = r->next)
        if (atomic_load_explicit(&r->seen, memory_order_seq_cst) < ix->old_epoch) return false;
    return true;
}

static void free_old(struct kvr_index *ix)
{
    struct garbage g = ix->old;
    ix->old = (struct garbage){.nodes = NODE_NONE};
    while (g.blocks) {
        struct retired *b = g.blocks;
        g.blocks = b->next;
        kvr_mem_put(&ix->mem, b, b->size);
    }
    while (g.nodes != NODE_NONE) {
        uint32_t id = g.nodes;
        g.nodes = kvr__node(ix, id)->kids;
        kvr__node_free(ix, id);
    }
    while (g.ranks) {
        struct rank *rk = g.ranks;
        g.ranks = rk->garbage_next;
        kvr__rank_free(ix, rk);
    }
}

void kvr__index_reclaim(struct kvr_index *ix, bool all)
{
    for (;;) {
        if (ix->old.count) {
            if (!old_is_unseen(ix)) return;
            free_old(ix);
        }
        if (ix->young.count == 0 || (!all && ix->young.count < RECLAIM_BATCH)) return;
        ix->old = ix->young;
        ix->young = (struct garbage){.nodes = NODE_NONE};
        ix->old_epoch = atomic_fetch_add_explicit(&ix->epoch, 1, memory_order_seq_cst) + 1;
    }
}
