/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index, inside. In layers, the lowest first: a file calls those before it in this list and none behind it.
 *
 *   ground    simd.c      comparing arrays of hashes: portable and vector paths with equal results
 *             limbo.c     what was unlinked and waits until no reader looks at it
 *             arena.c     a lane's memory in large pieces
 *             slab.c      memory for runs, by size classes
 *             names.c     one table from block hash to run, for all ranks of a lane
 *             kids.c      one table from (run, offset, local hash) to child run, read without locks
 *             usage.c     use frequencies
 *   runs      cover.c     who holds how much of a run
 *             prefix.c    sequence hashes of blocks on the device
 *             runs.c      runs: made, extended, trimmed, freed
 *             predict.c   blocks known from routing decisions: how long they live
 *   ranks     walks.c     where walks of ranks stand
 *             holdings.c  the list of runs that a rank holds
 *             aliases.c   names of ranks whose engine calls a block differently
 *             places.c    from a name to the block that a rank calls so, and back
 *             tier_set.c  sets of blocks in lower tiers
 *             pools.c     which ranks share their external tier
 *             ranks.c     (worker, rank) pairs and their slots
 *             tiers.c     what a rank has in host, disk and external tiers
 *   readers   epoch.c     when memory that readers may see can be reused
 *             windows.c   cache groups with a window: what of a match they allow
 *             match.c     queries
 *   changes   apply.c     stored, removed
 *             expire.c    blocks known from routing decisions: given up
 *             leaving.c   cleared: what ranks held that were emptied at once
 *             evict.c     capacities and the byte cap: least recently used first
 *   calls     check.c     every invariant below
 *             index.c     lanes and the public calls
 *             batch.c     many events at once, with prefetching
 *             dump.c      dump and restore
 *
 * Picture of one lane.
 *
 *     run 7  parent 0 (root), offset 0               run 9  parent 7, offset 3
 *     +--------+--------+----+----+----+----+----+   +--------+----+----+----+
 *     | header | holders| L0 | L1 | L2 | L3 | L4 |   | header | M0 | M1 | M2 |
 *     +--------+----|---+----+----+----+----+----+   +--------+----+----+----+
 *                   |   | N0 | N1 | N2 | N3 | N4 |            | O0 | O1 | O2 |
 *                   v   +----+----+----+----+----+            +----+----+----+
 *         (A, 5) (B, 3) (C, 3)                        (B, 3)
 *
 *     match(L0 L1 L2 M0 M1 X):  A 3  B 5  C 3
 *
 * A run is a stretch of blocks of one chain: their local hashes, then their names (the engine's block hashes).
 * A child hangs behind any number of blocks of its parent, so a divergence splits nothing and a block never
 * changes its place (run, offset). A holder is a word (rank, cut): the rank holds the first `cut` blocks.
 *
 * Invariants (cited by number in tests and in check.c)
 *   I1  Prefix: a rank that holds a block holds its parent. So a rank's share of a run is one number, its cut,
 *       and the holders of a child are among the holders of at least `poff` blocks of its parent.
 *   I2  Place: what block a (run, offset) stands for, once published, does not change while the run exists, nor do the
 *       run's parent and poff. So a run that was trimmed is not extended again (`high`): a reader that has compared
 *       the old blocks may still look at the holders.
 *   I3  Tight: the length of a run is the largest cut of its holders; a run without holders does not exist.
 *   I4  Unique: a child at (parent, poff) differs in its first local hash from its siblings and from the parent's
 *       own block at poff.
 *   I5  Named: a rank either uses the run's own names for all it holds of it (plain), or only names in its alias
 *       objects, which then cover every block it holds (aliased). Per rank a name stands for one block.
 *   I6  Findable: each name of a run and of an alias object has exactly one entry in the name table.
 *   I7  Listed: a rank's list has each run it holds once, at the place that the holder's `pos` says, linked to those
 *       of its children, and only those, that the rank holds something of; the runs without a parent are linked too.
 *
 * What readers see (R1 to R4)
 *   R1  A reader needs no lock: every field it looks at is either constant after publication or one atomic word.
 *       The arrays below `len` are constant: blocks behind it are written before `len` is raised (release), and
 *       what once was below a published `len` is not written again (I2).
 *   R2  Stores go down the chain, removals up: a parent's cut is raised before the child's appears, and the
 *       child's is gone before the parent's is lowered. A reader looks at the holders of the deepest run first. If it
 *       sees a rank there, the rank held all blocks above at that moment (I1). If it does not, and sees it later in
 *       the run above, there was a moment during the call when the rank held that run and nothing behind it: one of
 *       the two looks, or the moment when the share above was raised or the one behind it was dropped. This holds too
 *       when the run above has moved to other memory meanwhile and the second look is at an older state.
 *   R3  A cleared or removed rank disappears at once: its slot is marked dead, and a reader leaves dead slots out
 *       at its end. The rank goes on under a new slot. What it held leaves with the old one, as a record of its own that no
 *       event concerns, and is given back at once or in slices. A slot is reused only after every reader has left.
 *   R4  A reader writes its own epoch word and nothing shared, except the use stamp of a run when eviction is on
 *       (a plain store, at most once per run and clock tick). Its work is bounded by the blocks of the query, the
 *       holders of the runs on its path and KID_SLOTS probes per run.
 *
 * Writers. A rank belongs to one lane from first sight on. A lane's state is guarded by its lock; lanes share
 * the allocator, the epoch, the list of readers (locked for a moment when memory is reclaimed) and the directory of
 * ranks (held shared while events are applied), so they hardly wait for each other.
 *
 * Pauses. The device tier's tables are not copied as a whole: the name table moves groups of 64 buckets while it grows, the
 * child table splits one segment of 4 KiB at a time, runs and slabs are small. What doubles
 * is small (directories: 8 bytes per 1,024 runs, per segment, per rank; a rank's list: 16 bytes a run) or belongs to
 * decisions, lower tiers and use counts.
 */
#ifndef KVR_INDEX_INTERNAL_H
#define KVR_INDEX_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <kvroute/index.h>

#include "base/base.h"
#include "base/lock.h"

#define RLX memory_order_relaxed
#define ACQ memory_order_acquire
#define REL memory_order_release

#define INLINE static inline __attribute__((always_inline)) /* of loops that are compiled for several cases */

#ifndef KVR_ID_BITS
#define KVR_ID_BITS 24 /* what an entry of the name table has; the test of the limit takes fewer */
#endif

enum {
    ROOT_RUN = 0,  /* parent of every first block */
    FLOAT_RUN = 1, /* parent of runs with a start position */
    IDS_RESERVED = 2,
    ID_BITS = KVR_ID_BITS, /* run ids */
    CUT_BITS = 12,
    CUT_MASK = (1 << CUT_BITS) - 1,
    RUN_MAX = CUT_MASK,       /* blocks of a run */
    SLOT_MAX = (1 << 20) - 1, /* rank slots of a lane; 0 is not used */
    ALIAS_MARK = 0xFFFF,      /* `high` of an alias object */
    ALIASES_MAX = 32,         /* names of one block of a rank */
    ALIAS_OBJECTS_MAX = 64,   /* alias objects of a rank at a run */
    KID_BITS = 9,
    KID_SLOTS = 1 << KID_BITS,
    REF_BITS = 10,
    REF_CHUNK = 1 << REF_BITS,
    SLOT_BITS = 10,
    SLOT_CHUNK = 1 << SLOT_BITS,
    SLOT_CHUNKS = (SLOT_MAX + 1) / SLOT_CHUNK,
    LANES_MAX = 64,
    NAMES_AHEAD = 48 /* names of an event whose buckets are fetched before it is applied */
};

#ifdef KVR_INTERLEAVE
void kvr_interleave(void);
#define YIELD_POINT() kvr_interleave() /* stress builds give the processor away here */
#else
#define YIELD_POINT() ((void)0)
#endif

/* ---- simd.c ------------------------------------------------------------------------------------------ */

struct simd {
    size_t (*common)(const uint64_t *a, const uint64_t *b, size_t n); /* length of the common prefix */
    size_t (*find_last)(const uint64_t *a, size_t n, uint64_t v);     /* last index of v, or SIZE_MAX */
};
extern const struct simd kvr__simd_portable;
const struct simd *kvr__simd_best(void);

/* ---- runs -------------------------------------------------------------------------------------------- */

/* R marks what readers look at. An alias object has the same head and one array, of names:
 * poff = first block it names, parent = the run, next = the rank's next alias object there, position = the rank's slot. */
struct run {
    _Atomic uint16_t len; /* R */
    uint16_t cap;
    uint16_t poff;   /* R: hangs behind that many blocks of parent */
    uint16_t high;   /* largest len ever published (I2); ALIAS_MARK for an alias object */
    uint32_t parent; /* R */
    uint32_t id;
    uint32_t page;         /* slab page of this memory */
    uint32_t position;     /* R: of a run under FLOAT_RUN */
    uint32_t nkids;        /* children; with `next` a limbo link once retired */
    uint32_t next;         /* of an alias object */
    _Atomic uint64_t hold; /* R: 0 nobody; entry << 32 | pos << 1 | 1: one holder; else a struct cover * */
    uint64_t a[];          /* cap local hashes, cap names */
};

/* Holders of a run by open addressing on the slot. An entry is slot << CUT_BITS | cut; cut 0 = left. */
struct cover {
    struct cover *link; /* limbo */
    uint32_t cap, used, live, aliased;
    _Atomic uint32_t e[]; /* R: cap entries, then cap of struct holder */
};
struct holder {
    uint32_t pos;   /* place in the rank's list */
    uint32_t alias; /* first alias object of the rank at this run, 0 = plain */
};

/* What a run id leads to. */
struct run_ref {
    _Atomic(struct run *) run; /* R */
    _Atomic uint32_t stamp;    /* R: clock tick of the last use, when eviction is on */
    uint32_t next_free;
};
struct ref_dir { /* R: replaced when it grows */
    struct ref_dir *link;
    uint32_t cap;
    _Atomic(struct run_ref *) chunk[];
};

/* ---- child table ------------------------------------------------------------------------------------- */

struct kid_seg {
    struct kid_seg *link; /* limbo */
    uint32_t depth, live, used;
    _Atomic uint64_t slot[KID_SLOTS]; /* R: hash << 32 | run id; 0 empty, KID_TOMB deleted */
};
#define KID_TOMB 1u
struct kid_dir { /* R: replaced when it doubles */
    struct kid_dir *link;
    uint32_t depth;
    _Atomic(struct kid_seg *) seg[]; /* 1 << depth */
};

/* ---- name table -------------------------------------------------------------------------------------- */

enum { NAME_SLOTS = 12 };

struct name_bucket { /* one cache line; see names.c */
    uint16_t tag[NAME_SLOTS];
    uint16_t id_lo[NAME_SLOTS];
    uint8_t id_hi[NAME_SLOTS];
    uint8_t n;      /* entries: the first n */
    uint8_t over;   /* entries of this home that are elsewhere */
    uint16_t marks; /* of their tags */
};
struct name_level { /* one size of the table */
    struct name_bucket **chunk;
    size_t chunks;       /* length of chunk[] */
    unsigned chunk_bits; /* buckets of a chunk: 16 KiB, or 256 KiB in large tables */
    uint64_t nb;         /* buckets, even */
};
struct name_spill {
    uint32_t m, id, next;
};
struct name_table {
    struct name_level now, old; /* old.nb > 0: moving from old to now */
    uint64_t moved_m;           /* what has a smaller m is in now */
    uint64_t moved;             /* buckets of old that have moved */
    size_t move_every, owed;    /* names for a group, and how many came or went since the last one moved */
    size_t used;
    size_t puts, used_then;   /* insertions since the table last grew, and what it had then */
    struct name_spill *spill; /* entries that found no room in their pair; lists by the top bits of m */
    size_t spill_cap, spill_n, spill_top;
    uint32_t *spill_head, spill_free;
};

/* ---- arena ------------------------------------------------------------------------------------------- */

struct extent {
    char *raw, *mem; /* as the allocator gave it, and where the grains begin */
    size_t bytes;
    uint32_t grains, used;
    uint32_t first, longest; /* no grain below is free, and no more in a row than that */
    uint64_t taken[32];      /* a bit for each grain */
};
struct arena {
    struct extent *extents;
    size_t n, cap, bytes;
    bool off; /* the index has a cap */
};

/* ---- slabs ------------------------------------------------------------------------------------------- */

enum { SLAB_CLASSES = 120 };
struct slab_page {
    char *mem;
    size_t bytes;
    uint32_t cls, objs, live, bump, free, next, prev; /* free, next, prev: 1-based, 0 ends */
};
struct slab {
    struct slab_page *pages; /* [0] unused */
    size_t pages_cap;
    uint32_t pages_top, pages_free;
    uint32_t partial[SLAB_CLASSES], spare[SLAB_CLASSES];
    size_t class_bytes[SLAB_CLASSES];
};

/* ---- ranks ------------------------------------------------------------------------------------------- */

/* R: what a reader turns a slot into. Constant while the slot can be seen, except `live`. */
struct slot {
    uint64_t worker_id;
    uint32_t dp_rank;
    _Atomic uint32_t live;
};

/* A run that a rank holds something of. The links make the rank's part of the tree: places in its list, so that what
 * a rank does costs nothing for the children that only others hold. */
struct holding {
    uint32_t run;
    uint32_t kid;        /* first child that the rank holds something of */
    uint32_t next, prev; /* its siblings; prev of a first child: FIRST_KID | its parent */
};
#define NO_PLACE  UINT32_MAX
#define FIRST_KID (UINT32_C(1) << 31)

struct tier_list {
    uint32_t head, tail;
    size_t n;
};
/* What one owner has in a tier, and what is known of the tier. */
struct tier_side {
    struct tier_list list;
    uint32_t chunk, ends; /* blocks that are read at once, and how many ends of stores say so, up to some */
    uint32_t least;       /* fewer are not read, when that is told */
    uint32_t span;        /* the most blocks that one name with tokens stood for; 0: none yet */
    bool sparse;          /* of a chunk only the last block is told */
    bool removes;         /* the tier tells of removals */
    uint64_t unplaced, given_up;
};
struct pool {
    struct pool *next;
    uint64_t id;
    uint32_t owner;
    struct tier_side side;
};

struct pool_member { /* outlives the pair's content, and its rank */
    struct pool_member *next;
    struct kvr_worker worker;
    struct pool *pool;
    bool lone; /* the pair has no rank */
};

struct rank {
    struct kvr_worker worker;
    struct lane *lane;
    uint32_t slot;
    struct holding *held;
    size_t held_n, held_cap;
    size_t blocks; /* device blocks held */
    struct kvr_turnover turnover;
    size_t capacity;                       /* 0: no limit */
    uint32_t last_run, last_off;           /* end of the last store: not evicted first */
    uint32_t root;                         /* place of the first run that starts a sequence, or NO_PLACE; they are siblings */
    uint32_t serial;                       /* of its lower tiers; as the slot, another one after it was emptied at once */
    struct tier_side tier[KVR_TIER_COUNT]; /* [0]: names that have left */
    struct pool *pool;                     /* of the external tier */
    bool remembers;                        /* lower tiers have been told of */
    struct rank *next_free;
    uint32_t drain_run, drain_at; /* of one that leaves: the run to go on with, or 0; places of `held` from here on are done */
};

/* ---- predicted, tiers, usage -------------------------------------------------------------------------- */

/* A step of what decisions say of one (run, rank): blocks below `cut` live until `expiry`. Steps of one pair
 * have falling cuts and rising expiries; all steps of a lane are in one list ordered by expiry. */
struct step {
    uint64_t expiry;
    uint32_t run, slot;
    uint32_t cut;
    uint32_t down;       /* next step of the pair: smaller cut, later expiry */
    uint32_t prev, next; /* the lane's list */
};
struct pair {           /* hash entry: (run, slot) -> steps and what events made permanent */
    uint32_t run, slot; /* run 0 = empty */
    uint32_t steps;     /* longest cut first, 0 = none */
    uint32_t perm;
};
struct predict {
    struct step *steps;
    size_t steps_cap;
    uint32_t steps_top, steps_free, head, tail;
    uint32_t mark; /* last step before the current decision */
    struct pair *pairs;
    size_t pairs_cap, pairs_n;
    size_t blocks; /* predicted (block, holder) pairs */
    bool pruning;  /* there were too many */
};

struct tier_entry { /* one cache line */
    uint64_t name;
    uint64_t prefix;        /* sequence hash of the prefix that ends with it */
    uint64_t parent, local; /* as it was told: name of the block before, hash of its own tokens */
    uint32_t owner;         /* 0: free */
    uint32_t next, prev;    /* the owner's list, 0 ends; next: the free list */
    uint32_t position;
    uint32_t copies, span, stamp; /* stamp: seconds */
    bool root;                    /* no block is before it */
};
_Static_assert(sizeof(struct tier_entry) == 64, "one cache line");
enum tier_key { TIER_BY_NAME, TIER_BY_PREFIX };
struct tier_table {
    uint32_t *slot[2]; /* enum tier_key: numbers of entries, 0 where there is none */
    size_t cap;        /* a power of two */
};
enum { TIER_CHUNK_BITS = 10, TIER_CHUNK = 1 << TIER_CHUNK_BITS };
struct tier_set {
    struct kvr_mem *mem;
    size_t most;               /* bytes; 0: what `mem` allows */
    struct tier_entry **chunk; /* of TIER_CHUNK entries each; number 0 is unused */
    size_t chunks_cap, chunks_n, n;
    uint32_t top, free;
    struct tier_table now, old, coming;
    size_t moved, cleared; /* slots of `old` that are empty, of `coming` that are cleared */
};
static inline struct tier_entry *kvr__tier_entry(const struct tier_set *t, uint32_t id)
{
    return &t->chunk[id >> TIER_CHUNK_BITS][id & (TIER_CHUNK - 1)];
}

/* The way from the start of sequences down to a run (prefix.c). */
struct way_step {
    uint32_t run, base; /* base: position of its first block */
};
struct way {
    struct way_step *steps;
    uint32_t *fresh;
    uint64_t *hashes;
    size_t steps_n, steps_cap, fresh_cap, hashes_n, hashes_cap;
};

/* ---- walks ------------------------------------------------------------------------------------------- */

struct standing { /* where a walk stands (walks.c); under the lane's lock */
    struct standing *link;
    struct rank *rk; /* NULL: gone */
    uint32_t run;    /* the next to visit; 0: the device tier is done */
    uint32_t edge[KVR_TIER_COUNT - 1];
    bool disturbed; /* events do not make up for what happened */
};

/* ---- lanes ------------------------------------------------------------------------------------------- */

struct limbo { /* unlinked while the epoch was `epoch` */
    uint64_t epoch;
    struct run *runs;
    struct cover *covers;
    struct kid_seg *segs;
    struct kid_dir *kid_dirs;
    struct ref_dir *ref_dirs;
    struct rank *dead; /* slots to give back */
    size_t n;
};

struct lane {
    /* readers */
    _Alignas(64) _Atomic(struct kid_dir *) kids;
    _Atomic(struct ref_dir *) refs;
    _Atomic(struct slot *) slots[SLOT_CHUNKS];
    _Atomic uint32_t slots_top; /* slots ever used */
    _Atomic uint32_t tick;      /* clock of use stamps */

    /* writer */
    _Alignas(64) struct kvr_lock lock;
    struct kvr_index *ix;
    const struct simd *simd;
    struct kvr_mem mem;
    size_t mem_high; /* most bytes since memory was last given back to the system */
    struct arena arena;
    struct slab slab;
    struct name_table names;
    uint64_t seed;
    uint32_t ids_top, ids_free, ids_live;
    size_t refs_n; /* chunks */
    struct limbo limbo[3];
    struct limbo fresh;    /* unlinked since the last collection was closed */
    size_t reclaim_at;     /* size of fresh that asks for reclamation */
    struct rank **rank_of; /* by slot */
    size_t rank_of_cap;
    uint32_t slots_free; /* list through slot.worker_id */
    size_t runs_n, nodes_n, blocks_n, ranks_n, aliases_n, aliased_blocks;
    bool dup_names; /* a name has had two places at once: joins look for conflicts */
    bool stamps;    /* eviction is on */
    uint64_t rng;
    struct predict predict;
    struct tier_set tiers;
    uint32_t tiers_turn;
    struct way way;
    bool note_leavers;    /* names that go are remembered, by ranks that remember */
    uint32_t serials;     /* given to ranks */
    struct rank *leaving; /* what ranks held that were emptied at once (leaving.c) */
    uint64_t *dropped;    /* names the current event has dropped, for its remaining names */
    size_t dropped_n, dropped_cap;
    bool note_drops;
    struct standing *walks;          /* to be told of what goes */
    struct kvr_index_stats counters; /* event counters only */
};

enum { MATCH_GROUP = 16, MATCH_VISITS = 48 };
struct visit { /* the first m blocks of a run are the query's, from pos on */
    const struct run *run;
    uint32_t pos, m;
};

struct kvr_index_reader {
    _Alignas(64) _Atomic uint64_t seen; /* epoch * 2 + 1 inside, 0 outside */
    _Alignas(64) struct kvr_index *index;
    char *raw; /* the allocation this is in */
    struct kvr_index_reader *next, *prev;
    uint32_t *written; /* by slot: the mark of the last walk that wrote it */
    size_t slots;
    uint32_t mark;
    struct visit (*log)[MATCH_VISITS]; /* MATCH_GROUP walks */
};

struct usage;
struct kvr_index {
    _Alignas(64) _Atomic uint64_t epoch;
    char *raw; /* the allocation this is in */
    struct kvr_index_config config;
    struct kvr_clock clock;
    struct kvr_mem mem; /* of what is not in a lane; guarded by readers_lock */
    uint32_t lanes_n;
    size_t slots_max; /* of a lane */
    struct kvr_lock readers_lock;
    struct kvr_index_reader *readers;
    struct kvr_rwlock ranks_lock; /* directory: held shared while an event is applied */
    struct rank **ranks;          /* open addressing by worker */
    size_t ranks_cap, ranks_n;
    struct usage *usage; /* NULL: frequencies are off */
    struct kvr_lock windows_lock;
    struct windowed *windowed; /* pairs with window groups, under windows_lock */
    _Atomic size_t windowed_n;
    struct kvr_lock pools_lock;
    struct kvr_mem pools_mem; /* under pools_lock, as the two below */
    struct tier_set pooled;
    struct pool *pools;
    struct pool_member *members;
    _Atomic size_t lone_n; /* members without a rank */
    struct lane lanes[];
};

/* ---- limbo.c */
void kvr__retire_run(struct lane *ln, struct run *r, bool with_id);
void kvr__retire_cover(struct lane *ln, struct cover *c);
void kvr__retire_seg(struct lane *ln, struct kid_seg *s);
void kvr__retire_kid_dir(struct lane *ln, struct kid_dir *d);
void kvr__retire_ref_dir(struct lane *ln, struct ref_dir *d);
void kvr__retire_slot(struct lane *ln, struct rank *carrier);
struct run *kvr__limbo_next(const struct run *r); /* of a collection */

/* ---- arena.c: pieces of up to 256 KiB, at multiples of 128 */
void *kvr__arena_get(struct lane *ln, size_t bytes);
void kvr__arena_put(struct lane *ln, void *p, size_t bytes);
void *kvr__alone_get(struct lane *ln, size_t bytes); /* of no extent */
void kvr__alone_put(struct lane *ln, void *p, size_t bytes);
size_t kvr__arena_round(size_t bytes); /* what a piece takes */

/* ---- slab.c */
size_t kvr__slab_round(size_t bytes);
void *kvr__slab_get(struct lane *ln, size_t bytes, uint32_t *page); /* bytes: a rounded size */
void kvr__slab_put(struct lane *ln, void *p, uint32_t page);
void kvr__slab_destroy(struct lane *ln);

/* ---- names.c */
int kvr__names_init(struct lane *ln);
void kvr__names_destroy(struct lane *ln);
int kvr__names_reserve(struct lane *ln, size_t more);            /* makes room; moves some old buckets */
int kvr__names_put(struct lane *ln, uint64_t name, uint32_t id); /* cannot fail after reserve, except spills */
/* Name by name as put, while it is certain at a glance that the name has no other entry; returns how many went in. */
size_t kvr__names_claim(struct lane *ln, const uint64_t *names, size_t n, uint32_t id);
void kvr__names_del(struct lane *ln, const uint64_t *names, size_t n, uint32_t id);
void kvr__names_prefetch(const struct lane *ln, const uint64_t *names, size_t step, size_t n); /* every step-th word is a name */
/* Calls fn for run ids that may have `name`, until it returns true. */
typedef bool name_visit(void *ctx, uint32_t id);
bool kvr__names_each(const struct lane *ln, uint64_t name, name_visit *fn, void *ctx);
uint32_t kvr__names_first(const struct lane *ln, uint64_t name); /* some candidate or 0: for prefetching */
bool kvr__names_has(const struct lane *ln, uint64_t name, uint32_t id);

/* ---- kids.c */
int kvr__kids_init(struct lane *ln);
void kvr__kids_destroy(struct lane *ln);
uint32_t kvr__kid_hash(const struct lane *ln, uint32_t parent, uint32_t off, uint64_t local);
uint32_t kvr__kid_find(const struct lane *ln, uint32_t hash, uint32_t parent, uint32_t off, uint64_t local, struct run **out);
int kvr__kids_reserve(struct lane *ln, uint32_t hash); /* room for one insertion with this hash */
void kvr__kid_put(struct lane *ln, uint32_t hash, uint32_t id);
void kvr__kid_del(struct lane *ln, uint32_t hash, uint32_t id);
void kvr__kid_prefetch(const struct lane *ln, uint32_t hash);
uint32_t kvr__kid_peek(const struct lane *ln, uint32_t hash); /* unverified */

/* ---- usage.c */
int kvr__usage_create(struct kvr_index *ix);
void kvr__usage_destroy(struct kvr_index *ix);
uint64_t kvr__usage_dropped(struct kvr_index *ix);

/* ---- runs.c */
static inline struct run_ref *kvr__ref_in(const struct ref_dir *d, uint32_t id)
{
    return atomic_load_explicit(&d->chunk[id >> REF_BITS], ACQ) + (id & (REF_CHUNK - 1));
}
static inline struct run_ref *kvr__ref(const struct lane *ln, uint32_t id)
{
    return kvr__ref_in(atomic_load_explicit(&ln->refs, ACQ), id);
}
static inline struct run *kvr__run(const struct lane *ln, uint32_t id)
{
    return atomic_load_explicit(&kvr__ref(ln, id)->run, ACQ);
}
static inline uint32_t kvr__len(const struct run *r)
{
    return atomic_load_explicit(&r->len, ACQ);
}
static inline bool kvr__is_alias(const struct run *r)
{
    return r->high == ALIAS_MARK;
}
static inline uint64_t *kvr__names_of(struct run *r)
{
    return kvr__is_alias(r) ? r->a : r->a + r->cap;
}
int kvr__refs_init(struct lane *ln);
void kvr__refs_destroy(struct lane *ln);
int kvr__id_get(struct lane *ln, uint32_t *id);
void kvr__id_put(struct lane *ln, uint32_t id);
uint32_t kvr__run_hash(const struct lane *ln, const struct run *r);
struct run *kvr__run_alloc(struct lane *ln, uint32_t blocks, bool alias, bool grows);
void kvr__run_release(struct lane *ln, struct run *r); /* memory only */
int kvr__run_resize(struct lane *ln, struct run **r, uint32_t blocks, bool grows);
void kvr__run_link(struct lane *ln, struct run *r); /* publishes: child table, parent's list */
void kvr__run_trim(struct lane *ln, struct run *r); /* restores I3; may free the run */
void kvr__run_touch(struct lane *ln, uint32_t id);

/* ---- cover.c */
struct grip {     /* one rank's share of one run */
    uint32_t cut; /* 0: none */
    uint32_t at;  /* entry of the cover, or UINT32_MAX: the single holder */
};
static inline struct cover *kvr__cover(const struct run *r)
{
    uint64_t h = atomic_load_explicit(&r->hold, ACQ);
    return h & 1 ? NULL : (struct cover *)(uintptr_t)h;
}
static inline struct holder *kvr__holder(struct cover *c, uint32_t at)
{
    char *after = (char *)c + sizeof *c + c->cap * sizeof c->e[0];
    return (struct holder *)(void *)after + at;
}
/* The hold word of a run with one holder, which stands at place `pos` of its list. */
static inline uint64_t kvr__hold_word(uint32_t slot, uint32_t cut, uint32_t pos)
{
    return (uint64_t)(slot << CUT_BITS | cut) << 32 | (uint64_t)pos << 1 | 1;
}
/* The place of a run in the list of a rank that alone holds it, all of its `len` blocks by the run's names; else NO_PLACE. */
static inline uint32_t kvr__own_place(const struct run *r, uint32_t slot, uint32_t len)
{
    uint64_t h = atomic_load_explicit(&r->hold, RLX);
    return h & 1 && h >> 32 == (slot << CUT_BITS | len) ? (uint32_t)h >> 1 : NO_PLACE;
}
struct grip kvr__grip(const struct run *r, uint32_t slot);
uint32_t kvr__grip_alias(const struct run *r, struct grip g);
int kvr__cover_reserve(struct lane *ln, struct run *r, bool must_cover);       /* room for one more holder */
void kvr__cover_add(struct run *r, uint32_t slot, uint32_t cut, uint32_t pos); /* after reserve */
void kvr__cover_set(struct run *r, uint32_t slot, struct grip g, uint32_t cut);
void kvr__cover_remove(struct lane *ln, struct run *r, struct grip g);
void kvr__cover_pos(struct run *r, uint32_t slot, uint32_t pos);
uint32_t kvr__cover_pos_of(const struct run *r, struct grip g);
uint32_t kvr__cover_max(const struct run *r);
uint32_t kvr__cover_live(const struct run *r);
void kvr__cover_free(struct lane *ln, struct cover *c);
size_t kvr__cover_bytes(const struct cover *c);

/* ---- prefix.c */
/* The sequence hash of the prefix that ends with a block of the tree, and the block's position. Returns: 0, -KVR_ENOTFOUND behind a start
 * position, -KVR_ELIMIT, -KVR_ENOMEM. */
int kvr__prefix_of(struct lane *ln, uint32_t run, uint32_t off, uint64_t *hash, uint32_t *position);
void kvr__prefix_forget(struct lane *ln, uint32_t run); /* its id will be another run's */
void kvr__prefix_destroy(struct lane *ln);

/* ---- predict.c */
void kvr__predict_begin(struct lane *ln); /* before the stores of one decision */
int kvr__predict_reserve(struct lane *ln, size_t runs);
void kvr__predict_add(struct lane *ln, struct rank *rk, uint32_t run, uint32_t held, uint32_t cut, uint64_t expiry);
void kvr__predict_perm(struct lane *ln, struct rank *rk, uint32_t run, uint32_t cut);             /* events hold [0, cut) now */
void kvr__predict_cut(struct lane *ln, uint32_t slot, uint32_t run, uint32_t cut);                /* holding shrank to cut */
bool kvr__predict_is_permanent(const struct lane *ln, uint32_t slot, uint32_t run, uint32_t off); /* of a block that is held: by events */
/* Are there blocks whose time has come? */
bool kvr__predict_is_due(const struct lane *ln, uint64_t now);
/* The step that goes first, of which there is one. Returns: the share that is left when at most `most` of its blocks are given up. */
uint32_t kvr__predict_first(const struct lane *ln, size_t most, uint32_t *slot, uint32_t *run);
void kvr__predict_destroy(struct lane *ln);
bool kvr__predict_check(const struct lane *ln, const char **why);

/* ---- walks.c */
void kvr__walks_run_goes(struct lane *ln, const struct rank *rk, uint32_t pos); /* before the run at that place is dropped */
void kvr__walks_edge_goes(struct lane *ln, uint32_t id, uint32_t next);
void kvr__walks_disturbed(struct lane *ln, const struct rank *rk); /* replaying events will not make up for this one */
void kvr__walks_rank_goes(struct lane *ln, const struct rank *rk);
void kvr__walks_rank_empties(struct lane *ln, const struct rank *rk);
/* What comes after the run at a place, in preorder, leaving out what is behind it. */
uint32_t kvr__walk_past(const struct lane *ln, const struct rank *rk, uint32_t pos);

/* ---- holdings.c */
int kvr__rank_reserve(struct lane *ln, struct rank *rk);                       /* room for one more run */
uint32_t kvr__rank_add(struct lane *ln, struct rank *rk, const struct run *r); /* the new place; after reserve */
void kvr__rank_drop(struct lane *ln, struct rank *rk, uint32_t pos);           /* it has no children left */
/* Place of the first child, or NO_PLACE. */
static inline uint32_t kvr__rank_kid(const struct rank *rk, const struct run *r)
{
    return rk->held[kvr__cover_pos_of(r, kvr__grip(r, rk->slot))].kid;
}

/* ---- aliases.c: one block of one rank is named by an alias object */
int kvr__alias_convert(struct lane *ln, struct rank *rk, struct run *r); /* plain -> aliased */
int kvr__alias_add(struct lane *ln, struct rank *rk, struct run *r, uint32_t off, uint64_t name);
bool kvr__alias_has_room(const struct lane *ln, uint32_t head, uint32_t off); /* for a further name of a block that is held */
bool kvr__alias_names(const struct lane *ln, uint32_t head, uint32_t off, uint64_t name);
uint64_t kvr__alias_first(const struct lane *ln, uint32_t head, uint32_t off);
uint32_t kvr__alias_count(const struct lane *ln, uint32_t head, uint32_t off);
bool kvr__alias_remove(struct lane *ln, struct run *r, struct grip g, uint32_t alias, uint64_t name); /* false: the block must go */
void kvr__alias_cut(struct lane *ln, struct run *r, struct grip g, uint32_t len);                     /* drops names at and past len */

/* ---- places.c */
struct place {
    uint32_t run, off, alias;
};
struct lookup {
    const struct lane *ln;
    const struct rank *rk;
    uint64_t name;
    struct place *out;
    bool elsewhere; /* some run has the name, whoever holds it */
};
bool kvr__lookup_visit(void *ctx, uint32_t id);
/* Where the rank has a block of this name. */
static inline bool kvr__resolve(const struct lane *ln, const struct rank *rk, uint64_t name, struct place *out)
{
    struct lookup k = {ln, rk, name, out, false};
    return kvr__names_each(ln, name, kvr__lookup_visit, &k);
}
uint64_t kvr__block_name(const struct lane *ln, const struct rank *rk, struct run *r, uint32_t off); /* what the rank calls it */

/* ---- tier_set.c */
uint32_t kvr__tier_find(const struct tier_set *t, uint32_t owner, enum tier_key by, uint64_t key); /* 0: none */
int kvr__tier_put(struct tier_set *t, struct tier_list *l, const struct tier_entry *e);
void kvr__tier_take(struct tier_set *t, struct tier_list *l, uint32_t id);
void kvr__tier_first(struct tier_set *t, struct tier_list *l, uint32_t id);
void kvr__tier_set_free(struct tier_set *t);
bool kvr__tier_set_is_over(const struct tier_set *t);
/* Memory comes back when all lists of the set are packed, one by one, and then: kvr__tier_packed. *free: 1 before the first. moved: told of
 * each entry that has another number then; NULL: nobody is. */
void kvr__tier_pack(struct tier_set *t, struct tier_list *l, uint32_t *free, void (*moved)(void *ctx, uint32_t from, uint32_t to),
                    void *ctx);
void kvr__tier_packed(struct tier_set *t);

/* ---- pools.c */
bool kvr__pool_has(struct kvr_index *ix, struct kvr_worker w);                /* is the pair in one? */
const struct pool *kvr__pool_find(struct kvr_index *ix, struct kvr_worker w); /* NULL: none. pools_lock is held */
struct pool *kvr__pool_of(struct kvr_index *ix, struct kvr_worker w);         /* of a pair that gets a rank. NULL: none */
void kvr__pool_lone(struct kvr_index *ix, struct kvr_worker w);               /* its rank goes */
/* Of a pair with a rank. pools_lock held; pool 0: leaves it */
int kvr__pool_enlist(struct kvr_index *ix, struct kvr_worker w, uint64_t pool, struct pool **out);
void kvr__pools_leave(struct kvr_index *ix, uint64_t worker_id);
void kvr__pools_tidy(struct kvr_index *ix); /* pools that nobody is in any more are to be emptied (kvr__pools_expire) and used again */
size_t kvr__pool_empty(struct kvr_index *ix, struct pool *p, size_t most); /* pools_lock is held */
/* With pools_lock held. At the cap an old block goes. */
int kvr__pool_put(struct kvr_index *ix, struct pool *p, const struct tier_entry *e);
void kvr__pools_keep_cap(struct kvr_index *ix);
void kvr__pools_destroy(struct kvr_index *ix);

/* ---- ranks.c */
static inline struct slot *kvr__slot(const struct lane *ln, uint32_t s)
{
    return atomic_load_explicit(&ln->slots[s >> SLOT_BITS], ACQ) + (s & (SLOT_CHUNK - 1));
}
int kvr__slot_new(struct lane *ln, uint32_t *out);
void kvr__slot_give(struct lane *ln, uint32_t slot, struct rank *rk);
void kvr__slot_free(struct lane *ln, uint32_t slot);
void kvr__slot_kill(struct lane *ln, uint32_t slot);                             /* readers leave it out from now on */
struct rank *kvr__rank_find(struct kvr_index *ix, struct kvr_worker w);          /* ranks_lock held */
int kvr__rank_get(struct kvr_index *ix, struct kvr_worker w, struct rank **out); /* makes it; ranks_lock held shared at entry and exit */
void kvr__rank_forget(struct kvr_index *ix, struct rank *rk);                    /* ranks_lock held exclusive; holds nothing */
void kvr__ranks_destroy(struct kvr_index *ix);
void kvr__share_cap(struct kvr_index *ix);

/* ---- tiers.c */
/* Returns: 0, -KVR_EPARENT or -KVR_ENOTFOUND for what has no place (the rest is applied), -KVR_EINVAL, -KVR_ENOMEM. */
int kvr__tiers_apply(struct lane *ln, struct rank *rk, const struct kvr_event *ev);
void kvr__tiers_clear(struct lane *ln, struct rank *rk, enum kvr_tier tier);
size_t kvr__tiers_drain(struct lane *ln, struct rank *rk, size_t blocks); /* at most so many of all tiers; returns how many */
void kvr__tiers_keep_share(struct lane *ln);
bool kvr__tiers_none(const struct rank *rk);
bool kvr__tiers_have(struct lane *ln, struct rank *rk, enum kvr_tier tier, uint64_t name);
/* Blocks [from, end) of a run are about to leave the device. */
void kvr__tiers_leave(struct lane *ln, struct rank *rk, struct run *r, uint32_t from, uint32_t end);
size_t kvr__tiers_expire(struct lane *ln, struct rank *rk); /* returns how many blocks went */
size_t kvr__pools_expire(struct kvr_index *ix);
int kvr__tiers_join(struct lane *ln, struct rank *rk, uint64_t pool);
/* reach->depth[KVR_TIER_DEVICE] is given, the others are written. prefixes: the query's sequence hashes. */
/* Blocks that a member of the pool which has nothing else reads. pools_lock is held. */
size_t kvr__pool_reach(struct kvr_index *ix, struct pool *p, const uint64_t *prefixes, size_t n);
void kvr__tiers_reach(struct lane *ln, struct rank *rk, const uint64_t *prefixes, size_t n, struct kvr_reach *reach);
size_t kvr__tiers_fell_short(struct lane *ln, struct rank *rk, const uint64_t *prefixes, size_t from, size_t n);
/* One block of a rank's list for a tier, as a stored event. Returns: the next one, 0 at the end. */
uint32_t kvr__tier_dump(const struct lane *ln, const struct tier_side *side, uint32_t id, struct kvr_event *ev, struct kvr_block *b);

/* ---- epoch.c */
void kvr__reader_enter(struct kvr_index_reader *r);
void kvr__reader_leave(struct kvr_index_reader *r);
void kvr__reclaim(struct lane *ln, bool now); /* lane locked */

/* ---- windows.c */
void kvr__windows_clear_worker(struct kvr_index *ix, uint64_t worker_id);
void kvr__windows_clear(struct kvr_index *ix, struct kvr_worker w, bool groups_too);
void kvr__windows_destroy(struct kvr_index *ix);
bool kvr__windows_has(const struct kvr_index *ix, struct kvr_worker w);                                /* windows_lock is held */
size_t kvr__windows_cut(struct kvr_index *ix, const uint64_t *q, struct kvr_overlap *found, size_t n); /* returns how many are left */

/* ---- match.c */
uint32_t kvr__next_mark(struct kvr_index_reader *rd); /* for `written` */
void kvr__match_touch(const struct lane *ln, struct run_ref *ref);

/* ---- apply.c */
void kvr__fetch_buckets(const struct lane *ln, const struct kvr_event *ev); /* of the names that applying it will ask for */
int kvr__store(struct lane *ln, struct rank *rk, const struct kvr_event *ev);
int kvr__store_predicted(struct lane *ln, struct rank *rk, const uint64_t *locals, const uint64_t *names, size_t n, uint64_t expiry);
int kvr__remove(struct lane *ln, struct rank *rk, const uint64_t *names, size_t n);
void kvr__shrink(struct lane *ln, struct rank *rk, uint32_t run, uint32_t cut); /* gives up blocks from cut on, and all behind */
void kvr__give_up_run(struct lane *ln, struct rank *rk, struct run *r);         /* the rank holds nothing behind it; may free it */
/* When the rank holds nothing behind a run: gives it up, and the runs above with which that becomes true too. */
void kvr__drop_run(struct lane *ln, struct rank *rk, uint32_t run);

/* ---- expire.c */
/* Gives up blocks whose time has come, at most so many, or of so many decisions. Returns: how many. */
size_t kvr__predict_expire(struct lane *ln, uint64_t now, size_t most);
/* From when there are more than `max` until there are no more than `target`, gives up the oldest, `most` at a time: giving up all at once
 * takes as long as there are many, and everybody who records waits. Returns: how many. */
size_t kvr__predict_keep_within(struct lane *ln, size_t max, size_t target, size_t most);
/* not_the_last: what came since kvr__predict_begin stays. */
size_t kvr__predict_prune(struct lane *ln, size_t target, bool not_the_last);

/* ---- leaving.c */
void kvr__rank_clear(struct lane *ln, struct rank *rk); /* gives up every device block at once (R3) */
/* Empties a rank, in all tiers, and leaves what it held to kvr__drain. false: memory is short, and nothing was done. */
bool kvr__rank_set_aside(struct lane *ln, struct rank *rk);
size_t kvr__drain(struct lane *ln, size_t blocks); /* gives back about so many blocks of what leaves; returns how many */
void kvr__leaving_destroy(struct lane *ln);

/* ---- evict.c */
/* `storing`: a rank whose store is short of memory: what that store has done so far stays. false: nothing left to give. */
bool kvr__evict_for_bytes(struct lane *ln, const struct rank *storing);
void kvr__evict_tick(struct lane *ln);
void kvr__evict_for_capacity(struct lane *ln, struct rank *rk);

/* ---- check.c */
bool kvr__lane_check(struct lane *ln, const char **why);

/* ---- index.c */
int kvr__apply_alone(struct kvr_index *ix, const struct kvr_event *ev);           /* ranks_lock held shared */
int kvr__apply_one(struct lane *ln, struct rank *rk, const struct kvr_event *ev); /* lane locked */

#endif
