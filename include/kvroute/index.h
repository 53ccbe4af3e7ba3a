/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: which (worker, rank) holds which KV blocks.
 *
 * IDEA. Prompts are cut into blocks; a block has a local hash (kvroute/hash.h), so a prompt is a list of local hashes
 * and all prompts form a trie. Engines say which blocks they store and remove; the index answers, for a prompt, how
 * many of its leading blocks each (worker, rank) has. It keeps stretches of blocks as runs, with one word per holder:
 *
 *       run 7                              run 9, behind 3 blocks of run 7
 *       L0  L1  L2  L3  L4                 M0  M1  M2
 *       held: A 5, B 3, C 3                held: B 3
 *
 *       match(L0 L1 L2 M0 M1 X):  A 3   B 5   C 3
 *
 * SEMANTICS (after NVIDIA Dynamo's indexer)
 *   stored    All state is per (worker, rank): a parent must be known to the same pair, else -KVR_EPARENT and nothing is
 *             applied. No parent: the blocks start a sequence. Repeating a store changes nothing. A second name for a
 *             block that the pair already holds is kept beside the first; the pair holds the block until both are
 *             removed. A known name that is stored at another place moves there.
 *   removed   The pair gives up the block and everything it holds behind it. Unknown names are skipped and reported
 *             (-KVR_ENOTFOUND) after the rest has been applied.
 *   cleared   The emitting (worker, rank) holds nothing any more, in any tier; with clear_worker_wide, every rank of it.
 *   position  A store without a parent but with a start position is kept, dumped and counted, and is never matched from
 *             block 0.
 *   predicted Blocks recorded from routing decisions (kvr_index_record) expire after a time to live and are the first to
 *             go under pressure. Events make them permanent.
 *   tiers     host_pinned, disk and external blocks go on from where the device ends (kvr_index_match_tiers). They are known by the
 *             sequence hashes of their prefixes; what has no place is counted and left out.
 *   names     Block hashes are opaque and compared within one pair only; pairs may call a block differently. Names with
 *             equal hashes in the tables are told apart by the names themselves.
 *
 * GUARANTEES
 *   Exact      No answer rests on a hash of less than the 64 bits of the local hashes and names (lower tiers: of sequence hashes).
 *   Readers    kvr_index_match and _match_batch take no lock, allocate nothing, never wait for a writer, and write only
 *              memory of their own (with eviction on, also a use stamp per visited run). Use one reader object per
 *              thread.
 *   Moments    A match beside a writer gives each pair a depth that it had at some moment of the call. Events of several
 *              blocks count block by block: a store from the first, a removal from the last; a clear counts as one.
 *   Writers    Everything else takes locks: one per lane, and one for the directory of pairs, shared. A pair belongs to
 *              one lane, assigned at first sight to the lane with the fewest; events of one pair are applied in order.
 *   Memory     bytes_max caps what the index allocates, in equal shares per lane (use counts and dumps in progress are
 *              apart); lower tiers have half of it at most, and their oldest blocks go, of the fullest first. When it is
 *              reached predicted blocks go, then the least recently used ones (counted). A store that
 *              still does not fit returns -KVR_ENOMEM; its leading blocks that did fit stay, because they are true.
 *              A reader (80 KB with the default ranks_max) counts and is not refused: blocks make room for it.
 *              Giving up never needs memory.
 *   Pauses     The tables of the device tier grow and shrink a little with each event; a large one is never copied as a
 *              whole.
 *
 * COSTS (docs/performance.md has figures). A match reads 8 bytes per block and a word per holder of the runs on its
 * path, with two cache misses per run. A stored or removed block touches one or two cache lines of the name table and
 * 16 bytes of its run. Memory is about 26 bytes for a block with one holder, plus 16 / (blocks of the run) bytes for each
 * further holder, plus 14 for each further name.
 *
 * CAVEATS
 *   Lanes share no blocks: with n lanes a block held in each is kept n times, and a match walks n trees (side by side).
 *   One lane is right until one thread cannot apply the events.
 *   Predicted and lower-tier blocks are in tables that double, so they can pause a lane for milliseconds when there are
 *   millions of them. A dump stops the lane while it copies one pair. One name used for thousands of different blocks
 *   makes its look-ups linear in their number.
 *   At most 2^19 pairs (ranks_max) and 2^24 runs a lane; beyond, stores return -KVR_ECAPACITY.
 *
 * EXAMPLE (compiled and run by the tests)
 *
 *     struct kvr_index *index;
 *     struct kvr_index_reader *reader;
 *     if (kvr_index_create(NULL, &index) || kvr_index_reader_create(index, &reader)) return 1;
 *
 *     struct kvr_block blocks[] = {{.block_hash = 901, .tokens_hash = 11}, {.block_hash = 902, .tokens_hash = 12}};
 *     struct kvr_event stored = {.worker = {.worker_id = 7}, .kind = KVR_EVENT_STORED, .blocks = blocks, .blocks_n = 2};
 *     if (kvr_index_apply(index, &stored)) return 1;
 *
 *     uint64_t prompt[] = {11, 12, 13};
 *     struct kvr_overlap overlaps[8];
 *     long n = kvr_index_match(reader, prompt, 3, overlaps, 8);
 *     for (long i = 0; i < n; i++)
 *         printf("worker %llu has %u blocks\n", (unsigned long long)overlaps[i].worker.worker_id, overlaps[i].depth);
 *
 *     kvr_index_reader_destroy(reader);
 *     kvr_index_destroy(index);
 */
#ifndef KVROUTE_INDEX_H
#define KVROUTE_INDEX_H

#include <kvroute/alloc.h>
#include <kvroute/clock.h>
#include <kvroute/event.h>
#include <kvroute/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_index;
struct kvr_index_reader;

struct kvr_index_config {
    const struct kvr_alloc *alloc; /* NULL: libc. Called by writers under their lane's lock; several lanes call it at once */
    const struct kvr_clock *clock; /* NULL: CLOCK_MONOTONIC. Read only by kvr_index_record and _expire */
    size_t bytes_max;              /* most bytes the index may allocate; 0: no cap */
    uint64_t ttl_ns;               /* life of a predicted block; 0: 120 s */
    size_t predicted_max;          /* predicted (block, holder) pairs that trigger pruning; 0: no limit */
    double prune_target_ratio;     /* prune down to this share of predicted_max, some with each decision; 0: 0.8. In (0, 1] */
    bool clear_worker_wide;        /* a cleared event clears every rank of its worker (older publishers) */
    uint32_t lanes;                /* writers that do not wait for each other, 1 to 64; 0: 1 */
    size_t ranks_max;              /* (worker, rank) pairs at once; 0: 16,384 */
    size_t rank_capacity;          /* device blocks a pair may hold before its oldest go; 0: no limit */
    bool evictable;                /* keep use stamps, so that kvr_index_set_capacity works (implied by the caps) */
    uint64_t frequency_window_ns;  /* kvr_index_use counts uses within this time; 0: off */
    size_t tier_blocks_max;        /* blocks of one lower tier of a pair, or of a pool; beyond, the oldest go; 0: 2,097,152 */
    uint64_t tier_ttl_ns;          /* life of a block in a lower tier that tells of no removals; 0: one hour */
    bool portable;                 /* use no vector instructions; answers are the same */
};

/* Makes an empty index. `config` may be NULL (all defaults) and is copied.
 * Owns: the caller gets *out and gives it to kvr_index_destroy. Returns: 0, -KVR_EINVAL, -KVR_ENOMEM. */
KVR_API int kvr_index_create(const struct kvr_index_config *config, struct kvr_index **out);

/* Frees the index and every reader of it. NULL is fine. Threads: no other call may be running. */
KVR_API void kvr_index_destroy(struct kvr_index *index);

/* Applies one event, of any tier. A cleared event of the device tier clears all tiers.
 * Returns: 0, or
 *   -KVR_EPARENT    stored under a parent this pair does not hold (in a lower tier: whose place is not known); nothing applied
 *   -KVR_ESEQUENCE  the parent is among the blocks, or a name recurs under itself
 *   -KVR_ENOTFOUND  removed, or stored by names in a lower tier: at least one name was unknown; the others were applied
 *   -KVR_ENOMEM     see "Memory" above
 *   -KVR_ECAPACITY  no room for another pair or run
 *   -KVR_EINVAL     parent and start position together
 * Threads: any; events of one lane are serialised. */
KVR_API int kvr_index_apply(struct kvr_index *index, const struct kvr_event *event);

/* Applies events in order, prefetching across them. results: NULL, or n return values of kvr_index_apply.
 * Returns: how many events did not return 0. Threads: any; to scale, give each lane's events to one thread. */
KVR_API size_t kvr_index_apply_batch(struct kvr_index *index, const struct kvr_event *events, size_t n, int *results);

/* The lane of a pair, assigned at first sight to the emptiest one. Threads: any. */
KVR_API uint32_t kvr_index_lane(struct kvr_index *index, struct kvr_worker worker);

/* Changes the cap of an index that was made with one. What is over it goes at once, as far as memory comes back by that: pieces that
 * are in part in use stay, so an index that was full may keep more than a lower cap.
 * Returns: 0, -KVR_EUNSUPPORTED without bytes_max. Threads: any. */
KVR_API int kvr_index_set_bytes_max(struct kvr_index *index, size_t bytes);

/* Sets the capacity of one pair, in device blocks (0: no limit); what is over it goes at once.
 * Returns: 0, -KVR_EUNSUPPORTED without `evictable`, -KVR_ENOMEM, -KVR_ECAPACITY. Threads: any. */
KVR_API int kvr_index_set_capacity(struct kvr_index *index, struct kvr_worker worker, size_t blocks);

/* Records a routing decision: `worker` is taken to hold all blocks of the prompt from now on for the time to
 * live; every repetition restarts it. Names are the sequence hashes.
 * Returns: 0, -KVR_ELENGTH when the two lengths differ (nothing applied), -KVR_ENOMEM. Threads: any. */
KVR_API int kvr_index_record(struct kvr_index *index, struct kvr_worker worker, const uint64_t *locals, size_t locals_n,
                             const uint64_t *seqs, size_t seqs_n);

/* Drops predicted blocks whose time has come, and gives memory back that has become free (with a call of kvr_index_tend). Call it now
 * and then.
 * Returns: how many (block, holder) pairs went. Threads: any. */
KVR_API size_t kvr_index_expire(struct kvr_index *index);

/* Removes every rank of a worker / one rank. Unknown ones are no error. Threads: any. */
KVR_API void kvr_index_remove_worker(struct kvr_index *index, uint64_t worker_id);
KVR_API void kvr_index_remove_rank(struct kvr_index *index, struct kvr_worker worker);

/* The same at once, in a time that does not depend on how much they hold: nobody sees it any more, the ranks may come anew, and the
 * memory is given back by kvr_index_tend, and with each event of the lane, more than it stores. kvr_index_stats counts what has not
 * been given back. Threads: any. */
KVR_API void kvr_index_drop_worker(struct kvr_index *index, uint64_t worker_id);
KVR_API void kvr_index_drop_rank(struct kvr_index *index, struct kvr_worker worker);

/* Gives back about `blocks` blocks of what was dropped, in slices between which events are applied. Call it now and then.
 * Returns: whether there is more. Threads: any. */
KVR_API bool kvr_index_tend(struct kvr_index *index, size_t blocks);

/* One leading overlap: `depth` blocks of the query, at least 1. */
struct kvr_overlap {
    struct kvr_worker worker;
    uint32_t depth;
};

/* A reader is used by one thread at a time. Owns: kvr_index_reader_destroy, or the index at its end.
 * Returns: 0 or -KVR_ENOMEM. */
KVR_API int kvr_index_reader_create(struct kvr_index *index, struct kvr_index_reader **out);
KVR_API void kvr_index_reader_destroy(struct kvr_index_reader *reader);

/* How many leading blocks of locals[n] each pair holds. Pairs without any are absent; order is unspecified.
 * Returns: number of entries written, or -KVR_ELIMIT when cap is smaller than the number of holders of the
 * first block (kvr_index_ranks is always enough); nothing useful is in `out` then.
 * Threads: lock-free; one thread per reader. Cost: see the top. */
KVR_API long kvr_index_match(struct kvr_index_reader *reader, const uint64_t *locals, size_t n, struct kvr_overlap *out, size_t cap);

/* How far a pair reaches: depth[device] blocks on the device; from there on what lower tiers have is read, wherever each next chunk is;
 * depth[t] - depth[t - 1] blocks of it come from tier t. */
struct kvr_reach {
    struct kvr_worker worker;
    uint32_t depth[KVR_TIER_COUNT];
};

/* Goes on through the lower tiers from what kvr_index_match (and kvr_index_limit) has found: found[found_n], then every other pair that
 * reaches at least one block. prefixes[n]: the prompt's sequence hashes. Of pairs with window groups only the device counts.
 * Returns: entries written, or -KVR_ELIMIT when cap is too small (kvr_index_ranks is enough). Threads: one per reader; takes each lane's
 * lock once, for a look or two at every pair that has lower tiers: ask for it when there are some. */
KVR_API long kvr_index_match_tiers(struct kvr_index_reader *reader, const struct kvr_overlap *found, size_t found_n,
                                   const uint64_t *prefixes, size_t n, struct kvr_reach *out, size_t cap);

/* From now on what the pair's events say of the external tier goes to the pool of this number, which all its pairs can read; 0: to the
 * pair alone. Blocks of a pool outlive those who stored them, and a pair's place in it outlives the pair's content, until its worker is
 * removed or dropped. Returns: 0,
 * -KVR_ECAPACITY (64 pools, or pairs), -KVR_ENOMEM. Threads: any. */
KVR_API int kvr_index_set_pool(struct kvr_index *index, struct kvr_worker worker, uint64_t pool);

/* An engine had less than its lower tiers were said to have: of a prompt with these sequence hashes, blocks [from, n) were not read from
 * them. What tiers that tell of no removals (and pools) have of these is given up. Returns: how many blocks. Threads: any. */
KVR_API size_t kvr_index_fell_short(struct kvr_index *index, struct kvr_worker worker, const uint64_t *prefixes, size_t from, size_t n);

/* What is known of one tier of a pair. */
struct kvr_tier_status {
    size_t blocks;     /* in the index */
    uint32_t chunk;    /* blocks that are read at once, as far as is known */
    bool removes;      /* removals have been told */
    uint64_t unplaced; /* blocks that were told of and have no place: their names, or their parents, were not known */
    uint64_t given_up; /* blocks that went for tier_blocks_max, tier_ttl_ns or the byte cap */
};
/* Zeroes for an unknown pair. Threads: any. */
KVR_API void kvr_index_tier_status(struct kvr_index *index, struct kvr_worker worker, struct kvr_tier_status out[KVR_TIER_COUNT]);

/* Notes that the prompt locals[n] is used now. frequencies: NULL, or n numbers: how often each block of this prefix was
 * used within the window before, this use not counted.
 * Returns: 0, or -KVR_EUNSUPPORTED without frequency_window_ns. Threads: any; serialised. */
KVR_API int kvr_index_use(struct kvr_index *index, const uint64_t *locals, size_t n, uint32_t *frequencies);

/* One query of a batch; `found` is what kvr_index_match would return. */
struct kvr_query {
    const uint64_t *locals;
    size_t n;
    struct kvr_overlap *out;
    size_t cap;
    long found;
};

/* Matches several queries; the cache misses of up to 16 of them overlap. Threads: as kvr_index_match. */
KVR_API void kvr_index_match_batch(struct kvr_index_reader *reader, struct kvr_query *queries, size_t n);

/* Number of (worker, rank) pairs the index has a place for: a safe `cap` for kvr_index_match as long as no
 * pair is added in between. Threads: any, lock-free. */
KVR_API size_t kvr_index_ranks(const struct kvr_index *index);

/* Blocks held by one pair (names counted once per block); 0 when unknown. Threads: any. */
KVR_API size_t kvr_index_rank_blocks(struct kvr_index *index, struct kvr_worker worker);

/* Device blocks that events have added to one pair and taken from it, since it is known: how fast its cache turns over. What clearing,
 * capacities and decisions do is not counted. */
struct kvr_turnover {
    uint64_t stored, removed;
};
/* Zeroes for an unknown pair. Threads: any. */
KVR_API void kvr_index_rank_turnover(struct kvr_index *index, struct kvr_worker worker, struct kvr_turnover *out);

/* What an event says of a cache group that needs less than a whole prefix (sliding windows; recurrent layers, one state): names of blocks
 * that the group has, or has no more. A store without names tells of the group alone. The events of the full-attention group go to
 * kvr_index_apply; from the first window event of a pair on, matches say of it only what every group can serve: a prefix whose last `need`
 * blocks are in each window group. Such a pair costs a match a lock and a walk along its names.
 */
struct kvr_window_event {
    struct kvr_worker worker;
    enum kvr_event_kind kind; /* stored or removed */
    uint32_t group;           /* the engine's number of it */
    uint32_t need;            /* stored: blocks before the end of a prefix that must be there; UINT32_MAX: all */
    bool counts;              /* stored: what is there already is another copy, with a removal of its own */
    /* stored: it may tell again what the engine reuses, with names of blocks that have left the window. When the group has the last block
     * it is counted as unproven, or, of an engine that `repeats`, not at all; when not, it is a store like others, or tells of the window
     * only. */
    bool may_repeat, repeats;
    bool take_back; /* instead of all this: what is unproven in the pair's groups goes */
    const uint64_t *names;
    size_t n;
};
/* A cleared event of the device tier empties the groups too. Returns: 0, -KVR_ENOMEM, -KVR_ELIMIT for more than 16 groups (then nothing is
 * found on the pair). Threads: any. */
KVR_API int kvr_index_window(struct kvr_index *index, const struct kvr_window_event *event);

/* After a match of locals[]: engines compute at least the last token of a prompt, so of one that ends with a block all but that block can
 * be reused. Pairs without window groups have what they have; of those with them, what is found beyond `most` blocks is cut to what their
 * groups can serve within these, which may be far less. Returns: how many of found[n] are left. Threads: as kvr_index_match. */
KVR_API size_t kvr_index_limit(struct kvr_index *index, const uint64_t *locals, size_t most, struct kvr_overlap *found, size_t n);

/* Has the pair a block of this name in the tier, by what its events said? Predicted blocks do not count. Constant time.
 * Threads: any; the answer is of the moment unless the caller is the only one who applies events of the pair. */
KVR_API bool kvr_index_holds(struct kvr_index *index, struct kvr_worker worker, enum kvr_tier tier, uint64_t block_hash);

/* The names of the leading blocks of the prompt locals[n] that the pair has in the device tier, whatever its cache groups can serve.
 * names: room for n. Returns: how many. Threads: any; takes the lane's lock. */
KVR_API size_t kvr_index_names(struct kvr_index *index, struct kvr_worker worker, const uint64_t *locals, size_t n, uint64_t *names);

/* Receives one stored event of a dump; the event is borrowed. Non-zero stops the dump. */
typedef int kvr_index_emit(void *ctx, const struct kvr_event *event);

/* Emits the content as stored events, parents before children, one event per unbranched stretch, event ids
 * 0, 1, 2, ... `only` NULL: every pair. Applying them to an empty index gives an equal one.
 * Each pair is as it was at one moment; a lane is locked while one of its pairs is copied, and no lock is
 * held while `emit` runs. Needs memory for the largest pair, outside bytes_max.
 * Returns: 0, what `emit` returned, or -KVR_ENOMEM. Threads: any. */
KVR_API int kvr_index_dump(struct kvr_index *index, const struct kvr_worker *only, kvr_index_emit *emit, void *ctx);

/* A walk: the dump of one pair in pieces, in little memory and without stopping the pair's writer for longer than a piece
 * takes. The pieces are of different moments. Together they are what the pair held at the beginning, less what it has given
 * up since, plus some of what it has got since; who applies them and then every event since the beginning, in order, has
 * what the pair holds (stores whose parent went meanwhile are refused on the way); of lower tiers, no more and hardly less.
 * Owns: the caller gives *out to kvr_index_walk_end, before the index is destroyed. An unknown pair is an empty one.
 * Returns: 0, -KVR_ENOMEM. Threads: any; a walk is used by one thread at a time. */
struct kvr_index_walk;
KVR_API int kvr_index_walk_begin(struct kvr_index *index, struct kvr_worker worker, struct kvr_index_walk **out);
/* Emits the next piece: about `blocks` blocks, at most 4,095 more. Parents come before children (but not in lower tiers).
 * Returns: 0 with *more saying whether there is any, what `emit` returned, -KVR_ENOMEM, or -KVR_ESEQUENCE when replaying will
 * not make up for what happened meanwhile: a store was refused, in part or whole, a name was given to another block, or a
 * block got or lost a second name. Sound engines hardly do that. The walk is of no use then; begin again. */
KVR_API int kvr_index_walk_next(struct kvr_index_walk *walk, size_t blocks, kvr_index_emit *emit, void *ctx, bool *more);
KVR_API void kvr_index_walk_end(struct kvr_index_walk *walk);

/* Replaces the content of one pair by stored events (their `worker` is ignored).
 * Returns: 0 or the first error of kvr_index_apply; the events before it stay. Threads: any. */
KVR_API int kvr_index_restore(struct kvr_index *index, struct kvr_worker worker, const struct kvr_event *events, size_t events_n);

struct kvr_index_stats {
    size_t bytes;     /* allocated now */
    size_t ranks;     /* (worker, rank) pairs present */
    size_t nodes;     /* distinct blocks */
    size_t blocks;    /* (block, holder) pairs */
    size_t predicted; /* of these, from routing decisions */
    size_t aliases;   /* second names */
    size_t lower_tier_blocks;
    size_t runs; /* stretches of blocks that are kept as one */
    uint64_t stored_events, removed_events, cleared_events;
    uint64_t stored_blocks, removed_blocks; /* device (block, holder) pairs that stored events have made, and removed events have ended */
    uint64_t duplicate_stores;              /* stores that changed nothing */
    uint64_t parent_not_found, block_not_found, invalid_sequence, no_memory, no_room;
    uint64_t aliases_refused;                 /* further names of a block that were left out: it has 32 */
    uint64_t tier_events;                     /* events of lower tiers */
    uint64_t uses_dropped;                    /* uses that left the window early, for want of room */
    uint64_t evicted_capacity, evicted_bytes; /* (block, holder) pairs given up for a capacity, for the byte cap */
    uint64_t expired, pruned;                 /* predicted pairs dropped by time, by size */
};

/* Threads: any; takes each lane's lock for a moment. */
KVR_API void kvr_index_stats(struct kvr_index *index, struct kvr_index_stats *out);

/* Checks every internal invariant; O(size). Returns: true, or false and a static text in *reason.
 * Threads: any; locks one lane after the other. */
KVR_API bool kvr_index_validate(struct kvr_index *index, const char **reason);

#ifdef __cplusplus
}
#endif
#endif
