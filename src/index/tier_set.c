/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of blocks in lower tiers: an array of entries, two hash tables of entry numbers - by owner and name, by owner and prefix - that
 * double, and for each owner a list, the latest first. An owner is a rank's tier, or a pool. The caller holds the set's lock.
 */
#include "index/internal.h"

static uint64_t key_hash(uint32_t owner, uint64_t key)
{
    uint64_t secret = kvr_secret();
    return kvr_mix64_keyed(kvr_mix64_keyed(key, secret) + owner, secret);
}

static uint64_t key_of(const struct tier_entry *e, enum tier_key by)
{
    return by == TIER_BY_NAME ? e->name : e->prefix;
}

static void table_put(const struct tier_set *t, uint32_t *table, size_t cap, uint32_t id, enum tier_key by)
{
    size_t i = key_hash(t->entries[id].owner, key_of(&t->entries[id], by)) & (cap - 1);
    while (table[i]) i = (i + 1) & (cap - 1);
    table[i] = id;
}

static void table_del(struct tier_set *t, uint32_t id, enum tier_key by)
{
    uint32_t *table = t->table[by];
    size_t mask = t->table_cap - 1, i = key_hash(t->entries[id].owner, key_of(&t->entries[id], by)) & mask;
    while (table[i] != id) i = (i + 1) & mask;
    for (size_t j = (i + 1) & mask; table[j]; j = (j + 1) & mask) {
        size_t home = key_hash(t->entries[table[j]].owner, key_of(&t->entries[table[j]], by)) & mask;
        if (((j - home) & mask) < ((j - i) & mask)) continue;
        table[i] = table[j];
        i = j;
    }
    table[i] = 0;
}

uint32_t kvr__tier_find(const struct tier_set *t, uint32_t owner, enum tier_key by, uint64_t key)
{
    if (!t->n) return 0;
    for (size_t mask = t->table_cap - 1, i = key_hash(owner, key) & mask; t->table[by][i]; i = (i + 1) & mask) {
        const struct tier_entry *e = &t->entries[t->table[by][i]];
        if (e->owner == owner && key_of(e, by) == key) return t->table[by][i];
    }
    return 0;
}

static int grow_tables(struct tier_set *t)
{
    if ((t->n + 1) * 3 <= t->table_cap * 2) return 0;
    size_t cap = t->table_cap ? t->table_cap * 2 : 64, bytes = cap * sizeof(uint32_t);
    uint32_t *bigger[2] = {kvr_mem_zget(t->mem, bytes), kvr_mem_zget(t->mem, bytes)};
    if (!bigger[0] || !bigger[1]) {
        for (int k = 0; k < 2; k++) kvr_mem_put(t->mem, bigger[k], bigger[k] ? bytes : 0);
        return -KVR_ENOMEM;
    }
    for (uint32_t id = 1; id <= t->top; id++)
        for (int k = 0; k < 2 && t->entries[id].owner; k++) table_put(t, bigger[k], cap, id, (enum tier_key)k);
    for (int k = 0; k < 2; k++) {
        kvr_mem_put(t->mem, t->table[k], t->table_cap * sizeof(uint32_t));
        t->table[k] = bigger[k];
    }
    t->table_cap = cap;
    return 0;
}

static void link_first(struct tier_set *t, struct tier_list *l, uint32_t id)
{
    struct tier_entry *e = &t->entries[id];
    e->prev = 0;
    e->next = l->head;
    if (l->head) t->entries[l->head].prev = id;
    else l->tail = id;
    l->head = id;
    l->n++;
}

static void unlink_entry(struct tier_set *t, struct tier_list *l, uint32_t id)
{
    const struct tier_entry *e = &t->entries[id];
    if (e->prev) t->entries[e->prev].next = e->next;
    else l->head = e->next;
    if (e->next) t->entries[e->next].prev = e->prev;
    else l->tail = e->prev;
    l->n--;
}

void kvr__tier_first(struct tier_set *t, struct tier_list *l, uint32_t id)
{
    if (l->head == id) return;
    unlink_entry(t, l, id);
    link_first(t, l, id);
}

int kvr__tier_put(struct tier_set *t, struct tier_list *l, const struct tier_entry *e)
{
    uint32_t id = t->free;
    if (grow_tables(t)) return -KVR_ENOMEM;
    if (id) t->free = t->entries[id].next;
    else if (kvr_mem_grow(t->mem, (void **)&t->entries, &t->entries_cap, (size_t)t->top + 2, sizeof *t->entries)) return -KVR_ENOMEM;
    else id = ++t->top;
    t->entries[id] = *e;
    link_first(t, l, id);
    for (int k = 0; k < 2; k++) table_put(t, t->table[k], t->table_cap, id, (enum tier_key)k);
    t->n++;
    return 0;
}

void kvr__tier_take(struct tier_set *t, struct tier_list *l, uint32_t id)
{
    for (int k = 0; k < 2; k++) table_del(t, id, (enum tier_key)k);
    unlink_entry(t, l, id);
    t->entries[id] = (struct tier_entry){.next = t->free};
    t->free = id;
    if (--t->n == 0) kvr__tier_set_free(t);
}

void kvr__tier_set_free(struct tier_set *t)
{
    for (int k = 0; k < 2; k++) kvr_mem_put(t->mem, t->table[k], t->table_cap * sizeof(uint32_t));
    kvr_mem_put(t->mem, t->entries, t->entries_cap * sizeof *t->entries);
    *t = (struct tier_set){.mem = t->mem};
}
