/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of the index.
 *
 *   epoch.c   when memory that readers may see can be reused
 *   sets.c    interned sets of holders
 *   nodes.c   the trie: node store, table of children
 *   ranks.c   one (worker, rank): its names, and which of its blocks follow which
 *   index.c   the public operations
 *   dump.c    dump, restore, validate
 *
 * Writer state is guarded by kvr_index.lock. Fields that readers touch are _Atomic and marked R.
 */
#ifndef KVR_INDEX_INTERNAL_H
#define KVR_INDEX_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <kvroute/index.h>

#include "base/base.h"

enum {
    NODE_CHUNK_BITS = 12,
    NODE_CHUNK = 1 << NODE_CHUNK_BITS,
    ROOT_NODE = 0,  /* parent of every first block */
    FLOAT_NODE = 1, /* parent of the anchors of stores with a start position */
    NODES_RESERVED = 2,
    CHUNKS_MAX = 1 << 19
};
#define NODE_NONE UINT32_MAX
#define REC_NONE  0u
#define REC_ALIAS 0x80000000u
#define RLX       memory_order_relaxed
#define ACQ       memory_order_acquire
#define REL       memory_order_release

/* ---- epochs ------------------------------------------------------------------------------------------ */

/* Embedded at the start of every block of memory that readers may see. */
struct retired {
    struct retired *next;
    size_t size;
};

struct kvr_index_reader {
    _Alignas(64) _Atomic uint64_t seen; /* R: epoch at entry, or READER_IDLE */
    struct kvr_index *index;
    struct kvr_index_reader *next, *prev;
};
#define READER_IDLE UINT64_MAX

struct garbage {
    struct retired *blocks;
    uint32_t nodes; /* chained through node.kids; NODE_NONE ends */
    struct rank *ranks;
    size_t count;
};

/* ---- sets of holders --------------------------------------------------------------------------------- */

struct hset {
    struct retired link;
    struct hset *chain; /* same bucket of the intern table */
    uint64_t hash;      /* commutative: sum of set_mix(member) */
    uint32_t refs;      /* nodes that point here */
    uint32_t n;
    uint32_t members[]; /* rank slots, ascending */
};

/* ---- trie -------------------------------------------------------------------------------------------- */

struct node {
    _Atomic uint64_t local;         /* R */
    uint64_t name;                  /* block hash of the first holder; only a hint for finding its record */
    _Atomic(struct hset *) holders; /* R: NULL = nobody */
    _Atomic uint32_t parent;        /* R: NODE_NONE = not in the trie */
    uint32_t kids;                  /* children; link of the free list and of the garbage list otherwise */
};

struct chunk {
    uint32_t id, live, bump, free; /* free: first free node offset + 1 */
    uint32_t next, prev;           /* list of chunks with room; id + 1, 0 = none */
    struct node nodes[NODE_CHUNK];
};

/* R: array of chunks; replaced when it grows. */
struct chunk_dir {
    struct retired link;
    uint32_t cap;
    _Atomic(struct chunk *) chunks[];
};

/* R: table of children, open addressing, linear probing: tag << 32 | node id; 0 = empty, KID_TOMB = deleted. */
struct kid_table {
    struct retired link;
    uint64_t mask;
    _Atomic uint64_t slots[];
};
#define KID_TOMB UINT64_MAX

/* ---- ranks ------------------------------------------------------------------------------------------- */

/* One name of one block held by a rank. The canonical record of a block carries its place in the rank's
 * forest; a further name of the same block is an alias record. */
struct rec {
    uint64_t name;
    uint32_t node;
    uint32_t parent;     /* canonical: record of the parent block, REC_NONE at the top */
    uint32_t first_kid;  /* canonical */
    uint32_t next, prev; /* siblings; aliases of one block for an alias record; next is the free list link */
    uint32_t alias;      /* canonical: first alias record or 0; alias: REC_ALIAS | canonical */
};

/* Place of a predicted record in the index-wide list ordered by expiry. */
struct timed {
    uint64_t expiry; /* 0: not predicted */
    uint32_t prev_slot, prev_rec, next_slot, next_rec;
};

struct rank {
    struct kvr_worker worker; /* R: constant while the slot can be seen */
    _Atomic bool hidden;      /* R: true = answers leave this rank out (removal ran out of memory) */
    uint32_t slot;
    struct rec *recs; /* [0] unused */
    size_t recs_cap, recs_top;
    uint32_t recs_free;
    struct timed *timed; /* NULL, or parallel to recs */
    uint32_t *names;     /* open addressing: record or 0 */
    size_t names_cap;    /* power of two or 0 */
    size_t names_n;
    uint32_t tops; /* first record without a parent */
    size_t blocks; /* canonical records */
    size_t aliases;
    struct rank *garbage_next;
};

/* R: slot -> rank; replaced when it grows. */
struct rank_dir {
    struct retired link;
    uint32_t cap;
    _Atomic(struct rank *) ranks[];
};

struct kvr_index {
    /* readers */
    _Alignas(64) _Atomic uint64_t epoch;
    _Atomic(struct chunk_dir *) dir;
    _Atomic(struct kid_table *) kids;
    _Atomic(struct rank_dir *) ranks;
    _Atomic uint32_t slots_top; /* slots ever used at once */

    /* writer */
    _Alignas(64) pthread_mutex_t lock;
    struct kvr_mem mem;
    struct kvr_clock clock;
    uint64_t ttl_ns;
    size_t predicted_max, predicted_target;
    bool clear_worker_wide;

    struct kvr_index_reader *readers;
    struct garbage young, old; /* old: waits until no reader is older than old_epoch */
    uint64_t old_epoch;

    uint32_t chunks_top, chunks_room;
    uint32_t *chunk_ids_free;
    size_t chunk_ids_free_n, chunk_ids_free_cap;
    size_t nodes_live;
    size_t kids_used, kids_tombs;

    struct hset **set_buckets;
    size_t set_buckets_n, sets_n;
    struct {
        const struct hset *from;
        struct hset *to;
        uint32_t slot;
        bool add;
    } last_set;

    uint32_t *rank_table; /* (worker, rank) -> slot + 1, open addressing */
    size_t rank_table_cap, ranks_n;
    uint32_t *slots_free;
    size_t slots_free_n, slots_free_cap;

    uint32_t timed_head_slot, timed_head_rec, timed_tail_slot, timed_tail_rec; /* rec 0 = none */
    size_t blocks_n, predicted_n, aliases_n;
    struct kvr_index_stats counters; /* event counters only */
};

/* epoch.c */
uint64_t kvr__index_enter(struct kvr_index_reader *r);
void kvr__index_leave(struct kvr_index_reader *r);
void kvr__index_retire(struct kvr_index *ix, struct retired *block, size_t size);
void kvr__index_retire_node(struct kvr_index *ix, uint32_t id);
void kvr__index_retire_rank(struct kvr_index *ix, struct rank *rk);
void kvr__index_reclaim(struct kvr_index *ix, bool all);

/* sets.c: results carry no reference; kvr__set_assign moves references. NULL in, NULL out = empty. */
bool kvr__set_has(const struct hset *s, uint32_t slot);
int kvr__set_with(struct kvr_index *ix, struct hset *s, uint32_t slot, struct hset **out);
int kvr__set_without(struct kvr_index *ix, struct hset *s, uint32_t slot, struct hset **out);
void kvr__set_assign(struct kvr_index *ix, struct node *nd, struct hset *to);
void kvr__set_drop_if_unused(struct kvr_index *ix, struct hset *s);
uint64_t kvr__set_mix(uint32_t slot);

/* nodes.c */
int kvr__nodes_init(struct kvr_index *ix);
void kvr__nodes_destroy(struct kvr_index *ix);
struct node *kvr__node(const struct kvr_index *ix, uint32_t id); /* writer side */
uint32_t kvr__node_child(const struct chunk_dir *dir, const struct kid_table *kids, uint32_t parent, uint64_t local);
int kvr__node_create(struct kvr_index *ix, uint32_t parent, uint64_t local, uint64_t name, struct hset *holders, uint32_t *out);
void kvr__node_prune(struct kvr_index *ix, uint32_t id); /* unlink id and its ancestors while nobody needs them */
void kvr__node_free(struct kvr_index *ix, uint32_t id);  /* after the grace period */

static inline struct node *kvr__node_in(const struct chunk_dir *dir, uint32_t id)
{
    struct chunk *c = atomic_load_explicit(&dir->chunks[id >> NODE_CHUNK_BITS], ACQ);
    return &c->nodes[id & (NODE_CHUNK - 1)];
}

/* ranks.c */
struct rank *kvr__rank_find(const struct kvr_index *ix, struct kvr_worker w);
int kvr__rank_get(struct kvr_index *ix, struct kvr_worker w, struct rank **out);
struct rank *kvr__rank_at(const struct kvr_index *ix, uint32_t slot);
void kvr__rank_remove(struct kvr_index *ix, struct rank *rk);
void kvr__rank_free(struct kvr_index *ix, struct rank *rk); /* after the grace period */
void kvr__rank_release_memory(struct kvr_index *ix, struct rank *rk);
uint32_t kvr__name_find(const struct rank *rk, uint64_t name);
int kvr__rank_reserve(struct kvr_index *ix, struct rank *rk, size_t more);
int kvr__rank_reserve_timed(struct kvr_index *ix, struct rank *rk);
/* Both need kvr__rank_reserve before. */
uint32_t kvr__rec_add(struct kvr_index *ix, struct rank *rk, uint64_t name, uint32_t node, uint32_t parent);
uint32_t kvr__rec_add_alias(struct kvr_index *ix, struct rank *rk, uint64_t name, uint32_t canonical);
/* Gives up one name; with the last name of a block everything behind it goes too. 0, or -KVR_ENOMEM with the
 * rank hidden. */
int kvr__rec_remove(struct kvr_index *ix, struct rank *rk, uint32_t r);
int kvr__rank_clear(struct kvr_index *ix, struct rank *rk);
void kvr__timed_touch(struct kvr_index *ix, struct rank *rk, uint32_t r, uint64_t expiry);
void kvr__timed_unlink(struct kvr_index *ix, struct rank *rk, uint32_t r);

static inline uint32_t kvr__rec_canonical(const struct rank *rk, uint32_t r)
{
    uint32_t a = rk->recs[r].alias;
    return a & REC_ALIAS ? a & ~REC_ALIAS : r;
}

/* index.c */
int kvr__index_store(struct kvr_index *ix, const struct kvr_event *ev);

#endif
