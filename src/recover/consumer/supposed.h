/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank holds as far as our own requests show, where its events do not say it: for partial views.
 *
 * IDEA. A prompt that the engine has just answered, and computed from cached blocks, is held. Its old blocks were stored before our time,
 * so their names are not known, and the next request on them stores only its new blocks, under a parent of unknown name:
 *
 *     prompt      L0   L1   L2   L3   L4          answered; L0 .. L2 were cached
 *     stream      stored [n3 n4] under X          X is unknown: an orphan
 *     so          s0   s1   X    n3   n4          s: names of our own
 *
 * A block without a name has a made-up one in the index (it is *anonymous*), and goes when its engine may have given it up.
 *
 * WHY NOTHING FALSE IS IN THE VIEW. What is relied upon of engines, and what is not:
 *
 *   E1  a block that is held has all its ancestors held. vLLM frees the blocks of a request from its end, and who uses a block uses its
 *       ancestors and frees them after it, so the last use of an ancestor is never earlier; SGLang's tree gives up leaves only. Copies
 *       change nothing: the last user of any copy used some copy of each ancestor.
 *   E2  each block that is given up is told, once for each copy, in the order in which things happen.
 *   E3  a prompt whose answer is complete was held as a whole at its end, which was after it was sent.
 *
 *   Nothing is assumed of the order in which idle blocks are given up, of time, of sizes, or that all requests pass here: the requests of
 *   other routers touch blocks without any event.
 *
 *   R1  An anonymous block with a child that is named, and not removed, is held (E1).
 *   R2  A block without a name cannot be given up but by a removal whose name is not known. One such removal takes at most one
 *       block of a chain, and that is its last (E1). So each one takes the last block of every chain that R1 does not keep.
 *   R3  A prompt is entered when its answer ends, later than E3 says. Removals of unknown names since it was sent may have been of its
 *       blocks: as many are left out at its end (its new blocks, which have names, stand behind and go first).
 *   R4  X is the name of the block before the prompt's first computed one, when that one's hash is that of the orphan and no other store
 *       that came after the prompt was sent has it: its own store is among these. (Two prompts of the same blocks behind different
 *       beginnings, at the same time: neither is taken.) It needs the engine's word on how much was cached, and
 *   E4  the store of a prompt has been seen KVR_SUPPOSED_WAIT_MS after its answer; engines publish it before the answer ends.
 *
 * A prompt of which the engine had less than the view takes out what was supposed of the rest (`wrong`: events were on their way).
 *
 * The rank's blocks are mirrored here, about 80 bytes each, up to nodes_max; beyond, orphans go, then everything anonymous (`full`).
 * Pure: no sockets, no clock but what is given. Threads: one. `tick` rises with each event; a prompt carries the one of when it was sent.
 */
#ifndef KVR_RECOVER_SUPPOSED_H
#define KVR_RECOVER_SUPPOSED_H

#include <kvroute/event.h>

struct kvr_supposed;

enum { KVR_SUPPOSED_WAIT_MS = 100 };

struct kvr_supposed_config {
    struct kvr_worker worker;
    size_t nodes_max; /* 0: 262,144 */
    /* Into the index: stores and removals of the device tier. Returns: as kvr_index_apply. */
    int (*apply)(void *ctx, const struct kvr_event *ev);
    void *ctx;
};

/* A prompt whose answer was complete, and whose tokens are those that the engine computed. */
struct kvr_served {
    struct kvr_worker worker;
    const uint64_t *locals; /* of its full blocks */
    size_t n;
    bool told;     /* the engine has said how much of it was cached: */
    size_t cached; /* so many blocks */
    size_t view;   /* what the view had of it when it was sent */
    uint64_t tick; /* of the last event before it was sent */
};

struct kvr_supposed_stats {
    size_t anonymous; /* blocks now */
    uint64_t prompts, supposed, named, given_up, ambiguous, wrong, full;
};

int kvr_supposed_create(const struct kvr_supposed_config *config, struct kvr_supposed **out);
void kvr_supposed_destroy(struct kvr_supposed *s);
/* The rank's content is gone (a reset, a clear). */
void kvr_supposed_reset(struct kvr_supposed *s, uint64_t tick);
/* An event of the device tier, after it was applied with this result: a store as a whole, a removal name by name. */
void kvr_supposed_stored(struct kvr_supposed *s, const struct kvr_event *ev, int rc, uint64_t tick);
void kvr_supposed_removed(struct kvr_supposed *s, uint64_t name, int rc, uint64_t tick);
void kvr_supposed_served(struct kvr_supposed *s, const struct kvr_served *p, uint64_t now_ms);
/* Now and then. */
void kvr_supposed_tick(struct kvr_supposed *s, uint64_t now_ms);
void kvr_supposed_stats(const struct kvr_supposed *s, struct kvr_supposed_stats *out);

#endif
