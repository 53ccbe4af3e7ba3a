/* SPDX-License-Identifier: Apache-2.0 */
/* Giving up blocks that only routing decisions speak of: when their time has come, or there are too many. */
#include "index/internal.h"

/* Gives up the blocks of the first step, at most `most` of them, the deepest first. */
static size_t give_first(struct lane *ln, size_t most)
{
    uint32_t slot, run, cut = kvr__predict_first(ln, most, &slot, &run);
    size_t before = ln->blocks_n;
    kvr__shrink(ln, ln->rank_of[slot], run, cut);
    return before - ln->blocks_n;
}

size_t kvr__predict_expire(struct lane *ln, uint64_t now, size_t most)
{
    size_t n = 0;
    for (size_t steps = 0; steps < most && n < most && kvr__predict_is_due(ln, now); steps++) n += give_first(ln, most - n);
    return n;
}

size_t kvr__predict_prune(struct lane *ln, size_t target, bool not_the_last)
{
    struct predict *p = &ln->predict;
    size_t n = 0;
    while ((not_the_last ? p->mark : p->head) && p->blocks > target) n += give_first(ln, p->blocks - target);
    return n;
}

size_t kvr__predict_keep_within(struct lane *ln, size_t max, size_t target, size_t most)
{
    struct predict *p = &ln->predict;
    p->pruning = p->pruning ? p->blocks > target : p->blocks > max;
    return p->pruning ? kvr__predict_prune(ln, KVR_MAX(target, p->blocks - KVR_MIN(p->blocks, most)), false) : 0;
}
