/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lower tiers: host_pinned, disk, external. What a rank keeps there are edges: behind the block called `parent` (or at
 * the start of a sequence) comes the block with local hash `local`, called `name`. The parent need not be in the
 * tier, nor anywhere; that is how a prefix goes on from the device into the host's memory. The first edge for a
 * (parent, local) stays, and a store ends where a block contradicts what is there. Removing unknown names is no
 * error.
 *
 * Far less happens here than on the device, so this is plain: two hash tables of edge numbers that double, and every
 * look, a query's too, is under the lane's lock.
 */
#include "index/internal.h"

struct edge {
    uint64_t parent, local, name;
    uint32_t owner; /* rank.serial << 2 | tier */
    uint32_t flags;
    uint32_t next, prev; /* the owner's list, 0 ends; next: the free list */
};
enum { EDGE_ROOT = 1, EDGE_USED = 2 };

static uint64_t edge_hash(uint32_t owner, bool root, uint64_t parent, uint64_t local)
{
    uint64_t secret = kvr_secret(), own = kvr_mix64_keyed(root ? 0 : parent, secret);
    return kvr_mix64_keyed(own + kvr_mix64_keyed(local + root, ~secret) + owner, secret);
}

static uint64_t name_hash(uint32_t owner, uint64_t name)
{
    uint64_t secret = kvr_secret();
    return kvr_mix64_keyed(kvr_mix64_keyed(name, secret) + owner, secret);
}

static uint64_t hash_of(const struct edge *e, bool by_name)
{
    return by_name ? name_hash(e->owner, e->name) : edge_hash(e->owner, e->flags & EDGE_ROOT, e->parent, e->local);
}

/* ---- tables ------------------------------------------------------------------------------------------------ */

static void table_put(const struct tiers *t, uint32_t *table, size_t cap, uint32_t id, bool by_name)
{
    size_t i = hash_of(&t->edges[id], by_name) & (cap - 1);
    while (table[i]) i = (i + 1) & (cap - 1);
    table[i] = id;
}

static void table_del(struct tiers *t, uint32_t id, bool by_name)
{
    uint32_t *table = t->table[by_name];
    size_t mask = t->table_cap - 1, i = hash_of(&t->edges[id], by_name) & mask;
    while (table[i] != id) i = (i + 1) & mask;
    for (size_t j = (i + 1) & mask; table[j]; j = (j + 1) & mask) {
        size_t home = hash_of(&t->edges[table[j]], by_name) & mask;
        if (((j - home) & mask) < ((j - i) & mask)) continue;
        table[i] = table[j];
        i = j;
    }
    table[i] = 0;
}

static uint32_t find_edge(const struct tiers *t, uint32_t owner, bool root, uint64_t parent, uint64_t local)
{
    if (!t->n) return 0;
    for (size_t mask = t->table_cap - 1, i = edge_hash(owner, root, parent, local) & mask; t->table[0][i]; i = (i + 1) & mask) {
        const struct edge *e = &t->edges[t->table[0][i]];
        bool same_parent = root == ((e->flags & EDGE_ROOT) != 0) && (root || e->parent == parent);
        if (e->owner == owner && e->local == local && same_parent) return t->table[0][i];
    }
    return 0;
}

static uint32_t find_name(const struct tiers *t, uint32_t owner, uint64_t name)
{
    if (!t->n) return 0;
    for (size_t mask = t->table_cap - 1, i = name_hash(owner, name) & mask; t->table[1][i]; i = (i + 1) & mask) {
        const struct edge *e = &t->edges[t->table[1][i]];
        if (e->owner == owner && e->name == name) return t->table[1][i];
    }
    return 0;
}

static int grow_tables(struct lane *ln)
{
    struct tiers *t = &ln->tiers;
    if ((t->n + 1) * 3 <= t->table_cap * 2) return 0;
    size_t cap = t->table_cap ? t->table_cap * 2 : 64, bytes = cap * sizeof(uint32_t);
    uint32_t *bigger[2] = {kvr_mem_zget(&ln->mem, bytes), kvr_mem_zget(&ln->mem, bytes)};
    if (!bigger[0] || !bigger[1]) {
        for (int k = 0; k < 2; k++) kvr_mem_put(&ln->mem, bigger[k], bigger[k] ? bytes : 0);
        return -KVR_ENOMEM;
    }
    for (uint32_t id = 1; id <= t->top; id++)
        for (int k = 0; k < 2 && (t->edges[id].flags & EDGE_USED); k++) table_put(t, bigger[k], cap, id, k);
    for (int k = 0; k < 2; k++) {
        kvr_mem_put(&ln->mem, t->table[k], t->table_cap * sizeof(uint32_t));
        t->table[k] = bigger[k];
    }
    t->table_cap = cap;
    return 0;
}

/* ---- edges ------------------------------------------------------------------------------------------------- */

static uint32_t owner_of(const struct rank *rk, enum kvr_tier tier)
{
    return rk->serial << 2 | (uint32_t)tier;
}

static int edge_add(struct lane *ln, struct rank *rk, enum kvr_tier tier, bool root, uint64_t parent, struct kvr_block b)
{
    struct tiers *t = &ln->tiers;
    uint32_t id = t->free;
    if (grow_tables(ln)) return -KVR_ENOMEM;
    if (id) t->free = t->edges[id].next;
    else if (kvr_mem_grow(&ln->mem, (void **)&t->edges, &t->edges_cap, (size_t)t->top + 2, sizeof *t->edges)) return -KVR_ENOMEM;
    else id = ++t->top;
    uint32_t *head = &rk->tier_head[tier - 1];
    t->edges[id] = (struct edge){.parent = parent, .local = b.tokens_hash, .name = b.block_hash, .owner = owner_of(rk, tier)};
    t->edges[id].flags = EDGE_USED | (root ? EDGE_ROOT : 0);
    t->edges[id].next = *head;
    if (*head) t->edges[*head].prev = id;
    *head = id;
    for (int k = 0; k < 2; k++) table_put(t, t->table[k], t->table_cap, id, k);
    t->n++;
    return 0;
}

static void edge_del(struct lane *ln, struct rank *rk, enum kvr_tier tier, uint32_t id)
{
    struct tiers *t = &ln->tiers;
    struct edge *e = &t->edges[id];
    if (ln->walks) kvr__walks_edge_goes(ln, id, e->next);
    for (int k = 0; k < 2; k++) table_del(t, id, k);
    if (e->prev) t->edges[e->prev].next = e->next;
    else rk->tier_head[tier - 1] = e->next;
    if (e->next) t->edges[e->next].prev = e->prev;
    *e = (struct edge){.next = t->free};
    t->free = id;
    if (--t->n == 0) kvr__tiers_destroy(ln);
}

void kvr__tiers_destroy(struct lane *ln)
{
    struct tiers *t = &ln->tiers;
    for (int k = 0; k < 2; k++) kvr_mem_put(&ln->mem, t->table[k], t->table_cap * sizeof(uint32_t));
    kvr_mem_put(&ln->mem, t->edges, t->edges_cap * sizeof *t->edges);
    *t = (struct tiers){0};
}

/* ---- events ------------------------------------------------------------------------------------------------ */

static int tier_store(struct lane *ln, struct rank *rk, const struct kvr_event *ev)
{
    struct tiers *t = &ln->tiers;
    uint32_t owner = owner_of(rk, ev->tier);
    bool root = !ev->has_parent;
    uint64_t parent = ev->parent_hash;
    if (root && ev->has_start_position && ev->start_position > 0) return -KVR_EUNSUPPORTED; /* nothing to hang it on */
    for (size_t i = 0; i < ev->blocks_n; i++) {
        uint32_t at = find_edge(t, owner, root, parent, ev->blocks[i].tokens_hash);
        uint32_t named = find_name(t, owner, ev->blocks[i].block_hash);
        if (at != named) { /* another block has the place, or the name another place */
            if (ln->walks) kvr__walks_disturbed(ln, rk);
            return 0;
        }
        if (!at && edge_add(ln, rk, ev->tier, root, parent, ev->blocks[i])) return -KVR_ENOMEM;
        parent = ev->blocks[i].block_hash;
        root = false;
    }
    return 0;
}

void kvr__tiers_clear(struct lane *ln, struct rank *rk, enum kvr_tier tier)
{
    while (rk->tier_head[tier - 1]) edge_del(ln, rk, tier, rk->tier_head[tier - 1]);
}

size_t kvr__tiers_drain(struct lane *ln, struct rank *rk, size_t blocks)
{
    size_t n = 0;
    for (enum kvr_tier t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++)
        for (; n < blocks && rk->tier_head[t - 1]; n++) edge_del(ln, rk, t, rk->tier_head[t - 1]);
    return n;
}

bool kvr__tiers_have(const struct lane *ln, const struct rank *rk, enum kvr_tier tier, uint64_t name)
{
    return find_name(&ln->tiers, owner_of(rk, tier), name) != 0;
}

int kvr__tiers_apply(struct lane *ln, struct rank *rk, const struct kvr_event *ev)
{
    if (ev->kind == KVR_EVENT_STORED) return tier_store(ln, rk, ev);
    if (ev->kind == KVR_EVENT_CLEARED) kvr__tiers_clear(ln, rk, ev->tier);
    for (size_t i = 0; ev->kind == KVR_EVENT_REMOVED && i < ev->removed_n; i++) {
        uint32_t id = find_name(&ln->tiers, owner_of(rk, ev->tier), ev->removed[i]);
        if (id) edge_del(ln, rk, ev->tier, id);
    }
    return 0;
}

/* ---- queries ----------------------------------------------------------------------------------------------- */

/* Goes on from (pos, *name) in one tier; returns the new position and the name of its last block. */
static uint32_t go_on(const struct lane *ln, const struct rank *rk, enum kvr_tier tier, const uint64_t *q, size_t n, uint32_t pos,
                      uint64_t *name)
{
    uint32_t id;
    while (rk->tier_head[tier - 1] && pos < n && (id = find_edge(&ln->tiers, owner_of(rk, tier), pos == 0, *name, q[pos]))) {
        *name = ln->tiers.edges[id].name;
        pos++;
    }
    return pos;
}

/* What the rank calls the last of the first `depth` blocks of the query, which it holds on the device. */
static uint64_t last_name(const struct lane *ln, const struct rank *rk, const uint64_t *q, uint32_t depth)
{
    struct run *r = NULL;
    uint32_t run = ROOT_RUN, off = 0, pos = 0;
    while (pos < depth) {
        run = kvr__kid_find(ln, kvr__kid_hash(ln, run, off, q[pos]), run, off, q[pos], &r);
        off = (uint32_t)ln->simd->common(r->a, q + pos, KVR_MIN(kvr__len(r), depth - pos));
        pos += off;
    }
    return kvr__block_name(ln, rk, r, off - 1);
}

/* The rank's device depth, by its holder words along the query. */
static uint32_t device_depth(const struct lane *ln, const struct rank *rk, const uint64_t *q, size_t n)
{
    uint32_t run = ROOT_RUN, off = 0, pos = 0;
    while (pos < n) {
        struct run *r;
        uint32_t id = kvr__kid_find(ln, kvr__kid_hash(ln, run, off, q[pos]), run, off, q[pos], &r);
        if (!id) return pos;
        uint32_t m = (uint32_t)ln->simd->common(r->a, q + pos, KVR_MIN((size_t)kvr__len(r), n - pos)), cut = kvr__grip(r, rk->slot).cut;
        if (cut < m) return pos + cut;
        pos += m;
        run = id;
        off = m;
    }
    return pos;
}

void kvr__tiers_reach(const struct lane *ln, const struct rank *rk, const uint64_t *q, size_t n, struct kvr_reach *out)
{
    uint32_t pos = device_depth(ln, rk, q, n);
    uint64_t name = pos ? last_name(ln, rk, q, pos) : 0;
    *out = (struct kvr_reach){.worker = rk->worker};
    out->depth[KVR_TIER_DEVICE] = pos;
    for (enum kvr_tier tier = KVR_TIER_HOST_PINNED; tier < KVR_TIER_COUNT; tier++) {
        pos = go_on(ln, rk, tier, q, n, pos, &name);
        out->depth[tier] = pos;
    }
}

/* ---- dump -------------------------------------------------------------------------------------------------- */

uint32_t kvr__tier_edge(const struct lane *ln, uint32_t id, bool *root, uint64_t *parent, struct kvr_block *b)
{
    const struct edge *e = &ln->tiers.edges[id];
    *root = e->flags & EDGE_ROOT;
    *parent = e->parent;
    *b = (struct kvr_block){e->name, e->local};
    return e->next;
}
