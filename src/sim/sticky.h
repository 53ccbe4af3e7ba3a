/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routers that know no events: a tree of the prompts they have sent, and where. The rules are those that sglang-router, smg and
 * vllm-router publish for `cache_aware`; README.md of each and their sources name the numbers.
 *
 *     fleet out of balance? ---yes--> the least loaded
 *        | no
 *     longest prefix in the tree, as a share of the prompt, above the threshold? ---yes--> whoever had it first
 *        | no
 *     the least loaded, or whose tree is smallest
 *
 * Load is requests in flight. Whatever was chosen is put into the tree. Now and then the least recently used leaves of workers whose share
 * of the tree is over its size go.
 *
 * Texts are taken to be the tokens, one character each (as with engines whose token is a byte). This matters: what decides who had the
 * prefix is the deepest node that matches at all, so the first letter that follows a popular prefix already chooses among those who have
 * it.
 */
#ifndef KVR_SIM_STICKY_H
#define KVR_SIM_STICKY_H

#include "base/base.h"

enum sticky_gate {
    STICKY_SPREAD, /* most - least > apart and most > times * least */
    STICKY_MEAN    /* the matched worker's load > mean + min(apart, max(4, 2 * sqrt(mean))) and > times * mean */
};

enum sticky_miss {
    STICKY_LEAST_LOADED, /* the first of those */
    STICKY_LEAST_USED,   /* of those, who has had the fewest requests */
    STICKY_SMALLEST      /* the smallest tree */
};

struct sticky_rules {
    double threshold, apart, times;
    enum sticky_gate gate;
    enum sticky_miss miss;
    bool forgets;       /* drops the tree of a worker that leaves */
    uint64_t tree_size; /* of one worker, in tokens */
    double evict_s;
};

struct sticky;

/* Owns: the caller. Returns: NULL when memory is short. */
struct sticky *sticky_create(const struct sticky_rules *rules, uint32_t workers);
void sticky_destroy(struct sticky *s);
/* Chooses for a prompt and remembers the choice. `present`: who can be chosen.
 * Returns: a worker (from 0), or -KVR_ENOENDPOINTS, -KVR_ENOMEM. */
long sticky_choose(struct sticky *s, const uint32_t *tokens, size_t n, const bool *present, uint64_t now_ns);
/* A request that was sent there has ended. */
void sticky_ended(struct sticky *s, uint32_t worker);
/* A worker has left; what it had in flight is over. */
void sticky_left(struct sticky *s, uint32_t worker);
/* How much of the prompt is in the tree, and who had the deepest node first (-1: nobody). For tests. */
size_t sticky_match(struct sticky *s, const uint32_t *tokens, size_t n, long *first);
/* Tokens of a worker in the tree. */
uint64_t sticky_size(const struct sticky *s, uint32_t worker);

#endif
