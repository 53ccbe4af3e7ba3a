/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash table whose entries know their age, for what is forgotten least recently used first: sessions, token lists, selections.
 *
 * Intrusive: a struct with a kvr_lru_entry as its first member is its own node, so that an addition cannot fail for want of memory (the
 * table stays as it is when it cannot grow, and gets slower). The caller owns the entries, compares the keys, and sets the limits: it
 * looks at `oldest`. Keys may be chosen by somebody hostile, so `hash` must depend on the process's secret (kvr_secret()).
 * Single-threaded.
 */
#ifndef KVR_LRU_H
#define KVR_LRU_H

#include "base/base.h"

struct kvr_lru_entry {
    struct kvr_lru_entry *behind, *older, *newer; /* behind: the next of its bucket */
    uint64_t hash;
};

struct kvr_lru {
    struct kvr_lru_entry **buckets;
    size_t cap, n; /* cap: a power of two, or 0 */
    struct kvr_lru_entry *oldest, *newest;
};

typedef bool kvr_lru_same(const struct kvr_lru_entry *e, const void *key);

enum { KVR_LRU_FIRST_CAP = 64 };

/* Returns: 0 or -KVR_ENOMEM. */
static inline int kvr_lru_init(struct kvr_lru *l)
{
    *l = (struct kvr_lru){.buckets = calloc(KVR_LRU_FIRST_CAP, sizeof(struct kvr_lru_entry *)), .cap = KVR_LRU_FIRST_CAP};
    return l->buckets ? 0 : -KVR_ENOMEM;
}

/* The table itself; its entries are the caller's, who has removed them. */
static inline void kvr_lru_free(struct kvr_lru *l)
{
    KVR_ASSERT(l->n == 0);
    free(l->buckets);
    *l = (struct kvr_lru){0};
}

static inline struct kvr_lru_entry *kvr_lru_find(const struct kvr_lru *l, uint64_t hash, kvr_lru_same *same, const void *key)
{
    struct kvr_lru_entry *e = l->buckets[hash & (l->cap - 1)];
    while (e && !(e->hash == hash && same(e, key))) e = e->behind;
    return e;
}

static inline void kvr__lru_put_newest(struct kvr_lru *l, struct kvr_lru_entry *e)
{
    e->older = l->newest;
    e->newer = NULL;
    *(l->newest ? &l->newest->newer : &l->oldest) = e;
    l->newest = e;
}

static inline void kvr__lru_leave_age(struct kvr_lru *l, struct kvr_lru_entry *e)
{
    *(e->older ? &e->older->newer : &l->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &l->newest) = e->older;
}

static inline void kvr__lru_grow(struct kvr_lru *l)
{
    size_t cap = l->cap * 2;
    struct kvr_lru_entry **b = calloc(cap, sizeof(struct kvr_lru_entry *));
    if (!b) return;
    for (struct kvr_lru_entry *e = l->oldest; e; e = e->newer) {
        e->behind = b[e->hash & (cap - 1)];
        b[e->hash & (cap - 1)] = e;
    }
    free(l->buckets);
    l->buckets = b;
    l->cap = cap;
}

/* An entry that is in no table, whose key is not there; it is the newest then. */
static inline void kvr_lru_add(struct kvr_lru *l, struct kvr_lru_entry *e, uint64_t hash)
{
    if (l->n >= l->cap) kvr__lru_grow(l);
    e->hash = hash;
    e->behind = l->buckets[hash & (l->cap - 1)];
    l->buckets[hash & (l->cap - 1)] = e;
    kvr__lru_put_newest(l, e);
    l->n++;
}

/* It is the newest then. */
static inline void kvr_lru_touch(struct kvr_lru *l, struct kvr_lru_entry *e)
{
    kvr__lru_leave_age(l, e);
    kvr__lru_put_newest(l, e);
}

static inline void kvr_lru_remove(struct kvr_lru *l, struct kvr_lru_entry *e)
{
    struct kvr_lru_entry **p = &l->buckets[e->hash & (l->cap - 1)];
    while (*p != e) p = &(*p)->behind;
    *p = e->behind;
    kvr__lru_leave_age(l, e);
    l->n--;
}

#endif
