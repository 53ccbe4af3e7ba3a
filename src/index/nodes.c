/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trie: a store of fixed-size nodes that never move, and a table (parent, local hash) -> child.
 *
 *     node ids   0 root | 1 float | 2 3 4 5 ...        chunk of 4096 nodes
 *                                  ^-^-^ blocks of one event get ids in a row
 *
 * A child whose id is its parent's plus one, in the same chunk, is not put in the table at all: a walk down a
 * prompt tries id + 1 first and so reads memory in sequence. Everything else is one probe in the table, whose
 * slots carry 32 bits of the hash beside the id; the node's own parent and local hash decide, so a shared tag
 * never gives a wrong answer.
 *
 * Order of publication: a new node's fields are written first and its parent word last (release), then the
 * table slot; a node leaves the table first and is reused after a grace period (epoch.c). Deleted slots become
 * tombstones; the table is rebuilt when slots in use and tombstones pass 70 %, and the old one is retired.
 */
#include "index/internal.h"

#include <string.h>

static uint64_t kid_hash(uint32_t parent, uint64_t local)
{
    return kvr_mix64(local ^ ((uint64_t)parent * 0x9e3779b97f4a7c15ULL));
}

static uint64_t kid_slot_value(uint64_t hash, uint32_t id)
{
    return (hash >> 32) << 32 | id;
}

struct node *kvr__node(const struct kvr_index *ix, uint32_t id)
{
    return kvr__node_in(atomic_load_explicit(&ix->dir, RLX), id);
}

static bool is_child(const struct node *nd, uint32_t parent, uint64_t local)
{
    return atomic_load_explicit(&nd->parent, ACQ) == parent && atomic_load_explicit(&nd->local, RLX) == local;
}

static bool has_next_in_chunk(uint32_t id)
{
    return (id & (NODE_CHUNK - 1)) != NODE_CHUNK - 1;
}

uint32_t kvr__node_child(const struct chunk_dir *dir, const struct kid_table *kids, uint32_t parent, uint64_t local)
{
    if (has_next_in_chunk(parent) && is_child(kvr__node_in(dir, parent + 1), parent, local)) return parent + 1;
    uint64_t hash = kid_hash(parent, local);
    for (uint64_t i = hash & kids->mask;; i = (i + 1) & kids->mask) {
        uint64_t v = atomic_load_explicit(&kids->slots[i], ACQ);
        if (v == 0) return NODE_NONE;
        if (v == KID_TOMB || v >> 32 != hash >> 32) continue;
        if (is_child(kvr__node_in(dir, (uint32_t)v), parent, local)) return (uint32_t)v;
    }
}

/* ---- table of children ------------------------------------------------------------------------------- */

static size_t table_size(uint64_t slots)
{
    return sizeof(struct kid_table) + slots * sizeof(uint64_t);
}

static struct kid_table *table_new(struct kvr_index *ix, uint64_t slots)
{
    struct kid_table *t = kvr_mem_zget(&ix->mem, table_size(slots));
    if (t) t->mask = slots - 1;
    return t;
}

static void table_put(struct kid_table *t, uint64_t hash, uint32_t id, size_t *tombs)
{
    uint64_t i = hash & t->mask, v;
    while ((v = atomic_load_explicit(&t->slots[i], RLX)) != 0 && v != KID_TOMB) i = (i + 1) & t->mask;
    if (v == KID_TOMB) --*tombs;
    atomic_store_explicit(&t->slots[i], kid_slot_value(hash, id), REL);
}

/* Makes room for one more entry. */
static int table_reserve(struct kvr_index *ix)
{
    struct kid_table *old = atomic_load_explicit(&ix->kids, RLX);
    uint64_t slots = old->mask + 1;
    if ((ix->kids_used + ix->kids_tombs + 1) * 10 <= slots * 7) return 0;
    uint64_t want = 64;
    while ((ix->kids_used + 1) * 2 > want) want *= 2;
    struct kid_table *t = table_new(ix, want);
    if (!t) return -KVR_ENOMEM;
    size_t tombs = 0;
    for (uint64_t i = 0; i < slots; i++) {
        uint64_t v = atomic_load_explicit(&old->slots[i], RLX);
        if (v == 0 || v == KID_TOMB) continue;
        const struct node *nd = kvr__node(ix, (uint32_t)v);
        table_put(t, kid_hash(atomic_load_explicit(&nd->parent, RLX), atomic_load_explicit(&nd->local, RLX)), (uint32_t)v, &tombs);
    }
    ix->kids_tombs = 0;
    atomic_store_explicit(&ix->kids, t, REL);
    kvr__index_retire(ix, &old->link, table_size(slots));
    return 0;
}

static void table_del(struct kvr_index *ix, uint64_t hash, uint32_t id)
{
    struct kid_table *t = atomic_load_explicit(&ix->kids, RLX);
    uint64_t want = kid_slot_value(hash, id), i = hash & t->mask;
    while (atomic_load_explicit(&t->slots[i], RLX) != want) i = (i + 1) & t->mask;
    bool last = atomic_load_explicit(&t->slots[(i + 1) & t->mask], RLX) == 0;
    atomic_store_explicit(&t->slots[i], last ? 0 : KID_TOMB, REL);
    ix->kids_used--;
    if (!last) ix->kids_tombs++;
}

/* ---- node store -------------------------------------------------------------------------------------- */

static struct chunk *chunk_at(const struct kvr_index *ix, uint32_t id)
{
    return atomic_load_explicit(&atomic_load_explicit(&ix->dir, RLX)->chunks[id], RLX);
}

static size_t dir_size(uint32_t cap)
{
    return sizeof(struct chunk_dir) + cap * sizeof(struct chunk *);
}

static int dir_reserve(struct kvr_index *ix, uint32_t need)
{
    struct chunk_dir *old = atomic_load_explicit(&ix->dir, RLX);
    if (old && need <= old->cap) return 0;
    uint32_t cap = old ? old->cap * 2 : 8;
    if (need > CHUNKS_MAX) return -KVR_ENOMEM;
    struct chunk_dir *d = kvr_mem_zget(&ix->mem, dir_size(cap));
    if (!d) return -KVR_ENOMEM;
    d->cap = cap;
    for (uint32_t i = 0; old && i < old->cap; i++) atomic_store_explicit(&d->chunks[i], atomic_load_explicit(&old->chunks[i], RLX), RLX);
    atomic_store_explicit(&ix->dir, d, REL);
    if (old) kvr__index_retire(ix, &old->link, dir_size(old->cap));
    return 0;
}

static void room_push(struct kvr_index *ix, struct chunk *c)
{
    c->prev = 0;
    c->next = ix->chunks_room;
    if (c->next) chunk_at(ix, c->next - 1)->prev = c->id + 1;
    ix->chunks_room = c->id + 1;
}

static void room_unlink(struct kvr_index *ix, struct chunk *c)
{
    if (c->next) chunk_at(ix, c->next - 1)->prev = c->prev;
    if (c->prev) chunk_at(ix, c->prev - 1)->next = c->next;
    else ix->chunks_room = c->next;
}

static bool chunk_has_room(const struct chunk *c)
{
    return c->free || c->bump < NODE_CHUNK;
}

static int chunk_new(struct kvr_index *ix)
{
    /* Room for the id in the free list is made here, so that giving a chunk back never allocates. */
    if (kvr_mem_grow(&ix->mem, (void **)&ix->chunk_ids_free, &ix->chunk_ids_free_cap, ix->chunks_top + 1, sizeof(uint32_t)))
        return -KVR_ENOMEM;
    uint32_t id = ix->chunk_ids_free_n ? ix->chunk_ids_free[ix->chunk_ids_free_n - 1] : ix->chunks_top;
    if (dir_reserve(ix, id + 1)) return -KVR_ENOMEM;
    struct chunk *c = kvr_mem_get(&ix->mem, sizeof *c);
    if (!c) return -KVR_ENOMEM;
    c->id = id;
    c->live = c->bump = c->free = 0;
    for (uint32_t i = 0; i < NODE_CHUNK; i++) {
        atomic_init(&c->nodes[i].local, 0);
        atomic_init(&c->nodes[i].holders, NULL);
        atomic_init(&c->nodes[i].parent, NODE_NONE);
    }
    if (ix->chunk_ids_free_n) ix->chunk_ids_free_n--;
    else ix->chunks_top++;
    atomic_store_explicit(&atomic_load_explicit(&ix->dir, RLX)->chunks[id], c, REL);
    room_push(ix, c);
    return 0;
}

static int node_take(struct kvr_index *ix, uint32_t *out)
{
    if (!ix->chunks_room && chunk_new(ix)) return -KVR_ENOMEM;
    struct chunk *c = chunk_at(ix, ix->chunks_room - 1);
    uint32_t at;
    if (c->free) {
        at = c->free - 1;
        c->free = c->nodes[at].kids;
    } else {
        at = c->bump++;
    }
    c->live++;
    if (!chunk_has_room(c)) room_unlink(ix, c);
    *out = c->id << NODE_CHUNK_BITS | at;
    return 0;
}

void kvr__node_free(struct kvr_index *ix, uint32_t id)
{
    struct chunk *c = chunk_at(ix, id >> NODE_CHUNK_BITS);
    uint32_t at = id & (NODE_CHUNK - 1);
    bool had_room = chunk_has_room(c);
    c->nodes[at].kids = c->free;
    c->free = at + 1;
    if (!had_room) room_push(ix, c);
    if (--c->live == 0) {
        room_unlink(ix, c);
        atomic_store_explicit(&atomic_load_explicit(&ix->dir, RLX)->chunks[c->id], NULL, REL);
        ix->chunk_ids_free[ix->chunk_ids_free_n++] = c->id;
        kvr_mem_put(&ix->mem, c, sizeof *c);
    }
}

int kvr__node_create(struct kvr_index *ix, uint32_t parent, uint64_t local, uint64_t name, struct hset *holders, uint32_t *out)
{
    uint32_t id;
    if (table_reserve(ix)) return -KVR_ENOMEM;
    if (node_take(ix, &id)) return -KVR_ENOMEM;
    struct node *nd = kvr__node(ix, id);
    nd->name = name;
    nd->kids = 0;
    atomic_store_explicit(&nd->local, local, RLX);
    atomic_store_explicit(&nd->holders, holders, RLX);
    if (holders) holders->refs++;
    atomic_store_explicit(&nd->parent, parent, REL);
    if (!(has_next_in_chunk(parent) && id == parent + 1)) {
        table_put(atomic_load_explicit(&ix->kids, RLX), kid_hash(parent, local), id, &ix->kids_tombs);
        ix->kids_used++;
    }
    kvr__node(ix, parent)->kids++;
    ix->nodes_live++;
    *out = id;
    return 0;
}

void kvr__node_prune(struct kvr_index *ix, uint32_t id)
{
    while (id >= NODES_RESERVED) {
        struct node *nd = kvr__node(ix, id);
        if (nd->kids || atomic_load_explicit(&nd->holders, RLX)) return;
        uint32_t parent = atomic_load_explicit(&nd->parent, RLX);
        if (!(has_next_in_chunk(parent) && id == parent + 1)) table_del(ix, kid_hash(parent, atomic_load_explicit(&nd->local, RLX)), id);
        atomic_store_explicit(&nd->parent, NODE_NONE, REL);
        kvr__index_retire_node(ix, id);
        ix->nodes_live--;
        kvr__node(ix, parent)->kids--;
        id = parent;
    }
}

int kvr__nodes_init(struct kvr_index *ix)
{
    struct kid_table *t = table_new(ix, 64);
    if (!t) return -KVR_ENOMEM;
    atomic_store_explicit(&ix->kids, t, REL);
    for (uint32_t i = 0; i < NODES_RESERVED; i++) {
        uint32_t id;
        if (node_take(ix, &id)) return -KVR_ENOMEM;
        KVR_ASSERT(id == i);
        kvr__node(ix, id)->kids = 0;
    }
    return 0;
}

void kvr__nodes_destroy(struct kvr_index *ix)
{
    struct kid_table *t = atomic_load_explicit(&ix->kids, RLX);
    struct chunk_dir *d = atomic_load_explicit(&ix->dir, RLX);
    if (t) kvr_mem_put(&ix->mem, t, table_size(t->mask + 1));
    for (uint32_t i = 0; d && i < ix->chunks_top; i++) kvr_mem_put(&ix->mem, chunk_at(ix, i), sizeof(struct chunk));
    if (d) kvr_mem_put(&ix->mem, d, dir_size(d->cap));
    kvr_mem_put(&ix->mem, ix->chunk_ids_free, ix->chunk_ids_free_cap * sizeof(uint32_t));
}
