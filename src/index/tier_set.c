/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of blocks in lower tiers: entries in chunks that stay where they are, two hash tables of entry numbers - by owner and name, by owner
 * and prefix - and for each owner a list, the latest first. An owner is a rank's tier, or a pool. The caller holds the set's lock.
 *
 * Tables double, a little with each put: the next one is cleared before it is needed, and what was in the last one moves over, and is
 * looked for in both meanwhile. Readers wait for the lock, and a fleet's hosts hold millions of blocks.
 */
#include "index/internal.h"

/* With each put: slots of the old table that move, and slots of the coming one that are cleared. Both are done before they must be. */
enum { MOVES = 4, CLEARED = 16, TABLE_LEAST = 64 };
static const uint32_t GONE = UINT32_MAX; /* a slot of the old table whose entry has moved or left: a search goes on behind it */

static uint64_t key_hash(uint32_t owner, uint64_t key)
{
    uint64_t secret = kvr_secret();
    return kvr_mix64_keyed(kvr_mix64_keyed(key, secret) + owner, secret);
}

static uint64_t key_of(const struct tier_entry *e, enum tier_key by)
{
    return by == TIER_BY_NAME ? e->name : e->prefix;
}

static size_t home_of(const struct tier_set *t, const struct tier_table *tab, uint32_t id, enum tier_key by)
{
    const struct tier_entry *e = kvr__tier_entry(t, id);
    return key_hash(e->owner, key_of(e, by)) & (tab->cap - 1);
}

/* ---- bytes ---------------------------------------------------------------------------------------------- */

enum { CHUNK_BYTES = TIER_CHUNK * sizeof(struct tier_entry), SLOT_BYTES = 2 * sizeof(uint32_t) };

static size_t bytes_of(const struct tier_set *t)
{
    return t->chunks_n * CHUNK_BYTES + (t->now.cap + t->old.cap + t->coming.cap) * SLOT_BYTES;
}

static bool has_room(const struct tier_set *t, size_t more)
{
    return !t->most || bytes_of(t) + more <= t->most;
}

bool kvr__tier_set_is_over(const struct tier_set *t)
{
    return t->n && t->most && bytes_of(t) > t->most;
}

/* ---- tables --------------------------------------------------------------------------------------------- */

static uint32_t look(const struct tier_set *t, const struct tier_table *tab, uint32_t owner, enum tier_key by, uint64_t key, uint64_t hash)
{
    uint32_t id;
    if (!tab->cap) return 0;
    for (size_t mask = tab->cap - 1, i = hash & mask; (id = tab->slot[by][i]) != 0; i = (i + 1) & mask) {
        if (id == GONE) continue;
        const struct tier_entry *e = kvr__tier_entry(t, id);
        if (e->owner == owner && key_of(e, by) == key) return id;
    }
    return 0;
}

uint32_t kvr__tier_find(const struct tier_set *t, uint32_t owner, enum tier_key by, uint64_t key)
{
    uint64_t hash = t->n ? key_hash(owner, key) : 0;
    uint32_t id = t->n ? look(t, &t->now, owner, by, key, hash) : 0;
    return id || !t->n ? id : look(t, &t->old, owner, by, key, hash);
}

static void table_put(const struct tier_set *t, uint32_t id, enum tier_key by)
{
    size_t i = home_of(t, &t->now, id, by);
    while (t->now.slot[by][i]) i = (i + 1) & (t->now.cap - 1);
    t->now.slot[by][i] = id;
}

/* The slot of an entry, or of the first free one behind its home. */
static size_t slot_of(const struct tier_set *t, const struct tier_table *tab, uint32_t id, enum tier_key by)
{
    size_t i = home_of(t, tab, id, by);
    while (tab->slot[by][i] && tab->slot[by][i] != id) i = (i + 1) & (tab->cap - 1);
    return i;
}

static void table_del(struct tier_set *t, uint32_t id, enum tier_key by)
{
    uint32_t *slot = t->now.slot[by];
    size_t mask = t->now.cap - 1, i = slot_of(t, &t->now, id, by);
    if (!slot[i]) {
        t->old.slot[by][slot_of(t, &t->old, id, by)] = GONE;
        return;
    }
    for (size_t j = (i + 1) & mask; slot[j]; j = (j + 1) & mask) {
        if (((j - home_of(t, &t->now, slot[j], by)) & mask) < ((j - i) & mask)) continue;
        slot[i] = slot[j];
        i = j;
    }
    slot[i] = 0;
}

static void table_free(struct tier_set *t, struct tier_table *tab)
{
    for (int k = 0; k < 2; k++) kvr_mem_put(t->mem, tab->slot[k], tab->slot[k] ? tab->cap * sizeof(uint32_t) : 0);
    *tab = (struct tier_table){0};
}

static void move_one(struct tier_set *t)
{
    for (int k = 0; k < 2; k++) {
        uint32_t *slot = &t->old.slot[k][t->moved];
        if (*slot && *slot != GONE) table_put(t, *slot, (enum tier_key)k);
        *slot = *slot ? GONE : 0;
    }
    if (++t->moved == t->old.cap) table_free(t, &t->old);
}

/* Slots up to `end` of the table that is coming. */
static void clear_to(struct tier_set *t, size_t end)
{
    end = KVR_MIN(end, t->coming.cap);
    for (int k = 0; k < 2; k++) memset(t->coming.slot[k] + t->cleared, 0, (end - t->cleared) * sizeof(uint32_t));
    t->cleared = end;
}

static int prepare(struct tier_set *t)
{
    size_t cap = t->now.cap ? t->now.cap * 2 : TABLE_LEAST;
    if (!has_room(t, cap * SLOT_BYTES)) return -KVR_ENOMEM;
    t->coming.cap = cap;
    t->cleared = 0;
    for (int k = 0; k < 2; k++) t->coming.slot[k] = kvr_mem_get(t->mem, t->coming.cap * sizeof(uint32_t));
    if (t->coming.slot[0] && t->coming.slot[1]) return 0;
    table_free(t, &t->coming);
    return -KVR_ENOMEM;
}

/* Room for one more: a table is got when half of the one before is full, and taken when two thirds are. */
static int grow(struct tier_set *t)
{
    for (int n = 0; n < MOVES && t->old.cap; n++) move_one(t);
    if ((t->n + 1) * 2 <= t->now.cap) return 0;
    int rc = t->coming.cap ? 0 : prepare(t);
    if (rc == 0) clear_to(t, t->cleared + CLEARED);
    if ((t->n + 1) * 3 <= t->now.cap * 2) return 0;
    if (rc) return rc;
    while (t->old.cap) move_one(t);
    clear_to(t, t->coming.cap);
    t->old = t->now;
    t->now = t->coming;
    t->coming = (struct tier_table){0};
    t->moved = 0;
    return 0;
}

/* ---- lists ---------------------------------------------------------------------------------------------- */

static void link_first(struct tier_set *t, struct tier_list *l, uint32_t id)
{
    struct tier_entry *e = kvr__tier_entry(t, id);
    e->prev = 0;
    e->next = l->head;
    if (l->head) kvr__tier_entry(t, l->head)->prev = id;
    else l->tail = id;
    l->head = id;
    l->n++;
}

static void unlink_entry(struct tier_set *t, struct tier_list *l, uint32_t id)
{
    const struct tier_entry *e = kvr__tier_entry(t, id);
    if (e->prev) kvr__tier_entry(t, e->prev)->next = e->next;
    else l->head = e->next;
    if (e->next) kvr__tier_entry(t, e->next)->prev = e->prev;
    else l->tail = e->prev;
    l->n--;
}

void kvr__tier_first(struct tier_set *t, struct tier_list *l, uint32_t id)
{
    if (l->head == id) return;
    unlink_entry(t, l, id);
    link_first(t, l, id);
}

/* ---- entries -------------------------------------------------------------------------------------------- */

/* 0: no memory. */
static uint32_t entry_new(struct tier_set *t)
{
    uint32_t id = t->free ? t->free : t->top + 1;
    size_t c = id >> TIER_CHUNK_BITS;
    if (c >= t->chunks_n) {
        if (!has_room(t, CHUNK_BYTES)) return 0;
        if (kvr_mem_grow(t->mem, (void **)&t->chunk, &t->chunks_cap, c + 1, sizeof *t->chunk)) return 0;
        if (!(t->chunk[c] = kvr_mem_zget(t->mem, CHUNK_BYTES))) return 0;
        t->chunks_n = c + 1;
    }
    if (t->free) t->free = kvr__tier_entry(t, id)->next;
    else t->top = id;
    return id;
}

int kvr__tier_put(struct tier_set *t, struct tier_list *l, const struct tier_entry *e)
{
    uint32_t id = grow(t) ? 0 : entry_new(t);
    if (!id) return -KVR_ENOMEM;
    *kvr__tier_entry(t, id) = *e;
    link_first(t, l, id);
    for (int k = 0; k < 2; k++) table_put(t, id, (enum tier_key)k);
    t->n++;
    return 0;
}

void kvr__tier_take(struct tier_set *t, struct tier_list *l, uint32_t id)
{
    for (int k = 0; k < 2; k++) table_del(t, id, (enum tier_key)k);
    unlink_entry(t, l, id);
    *kvr__tier_entry(t, id) = (struct tier_entry){.next = t->free};
    t->free = id;
    if (--t->n == 0) kvr__tier_set_free(t);
}

void kvr__tier_set_free(struct tier_set *t)
{
    table_free(t, &t->now);
    table_free(t, &t->old);
    table_free(t, &t->coming);
    for (size_t c = 0; c < t->chunks_n; c++) kvr_mem_put(t->mem, t->chunk[c], CHUNK_BYTES);
    kvr_mem_put(t->mem, t->chunk, t->chunks_cap * sizeof *t->chunk);
    *t = (struct tier_set){.mem = t->mem, .most = t->most};
}

/* ---- giving memory back --------------------------------------------------------------------------------- */

static uint32_t move_entry(struct tier_set *t, struct tier_list *l, uint32_t from, uint32_t to)
{
    struct tier_entry *e = kvr__tier_entry(t, to);
    *e = *kvr__tier_entry(t, from);
    *kvr__tier_entry(t, from) = (struct tier_entry){0};
    if (e->prev) kvr__tier_entry(t, e->prev)->next = to;
    else l->head = to;
    if (e->next) kvr__tier_entry(t, e->next)->prev = to;
    else l->tail = to;
    return to;
}

void kvr__tier_pack(struct tier_set *t, struct tier_list *l, uint32_t *free, void (*moved)(void *ctx, uint32_t from, uint32_t to),
                    void *ctx)
{
    for (uint32_t id = l->head; id; id = kvr__tier_entry(t, id)->next) {
        if (id <= t->n) continue;
        while (kvr__tier_entry(t, *free)->owner) (*free)++;
        uint32_t from = id;
        id = move_entry(t, l, from, *free);
        if (moved) moved(ctx, from, id);
    }
}

/* The table for as many entries as there are, in the place of the one it has: smaller, so this needs no memory. */
static void shrink_table(struct tier_set *t)
{
    size_t cap = TABLE_LEAST;
    while (cap < t->n * 2) cap *= 2;
    cap = KVR_MIN(cap, t->now.cap);
    for (int k = 0; k < 2; k++) {
        uint32_t *less = kvr_mem_resize(t->mem, t->now.slot[k], t->now.cap * sizeof *less, cap * sizeof *less);
        if (less) t->now.slot[k] = less;
        memset(t->now.slot[k], 0, cap * sizeof *less);
    }
    t->now.cap = cap;
    for (uint32_t id = 1; id <= t->top; id++)
        for (int k = 0; k < 2; k++) table_put(t, id, (enum tier_key)k);
}

void kvr__tier_packed(struct tier_set *t)
{
    if (!t->n) return;
    t->top = (uint32_t)t->n;
    t->free = 0;
    while (t->chunks_n > (t->top >> TIER_CHUNK_BITS) + 1u) kvr_mem_put(t->mem, t->chunk[--t->chunks_n], CHUNK_BYTES);
    table_free(t, &t->old);
    table_free(t, &t->coming);
    shrink_table(t);
}
