/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interned sets of holders. Blocks of one prefix mostly have the same holders, so a node points at a shared,
 * immutable set; equal sets are one object, and "nobody dropped out here" is one pointer comparison.
 *
 * A set is found by a commutative hash (adding or removing a member is O(1) on the hash) and compared member
 * by member. The last transition is remembered, because the blocks of one event usually make the same one.
 */
#include "index/internal.h"

#include <string.h>

static size_t set_size(uint32_t n)
{
    return sizeof(struct hset) + (size_t)n * sizeof(uint32_t);
}

uint64_t kvr__set_mix(uint32_t slot)
{
    return kvr_mix64((uint64_t)slot + 0x9e3779b97f4a7c15ULL);
}

/* First position whose member is >= slot. */
static uint32_t lower_bound(const struct hset *s, uint32_t slot)
{
    uint32_t lo = 0, hi = s->n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (s->members[mid] < slot) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

bool kvr__set_has(const struct hset *s, uint32_t slot)
{
    if (!s) return false;
    uint32_t at = lower_bound(s, slot);
    return at < s->n && s->members[at] == slot;
}

static int grow_buckets(struct kvr_index *ix)
{
    size_t n = ix->set_buckets_n ? ix->set_buckets_n * 2 : 64;
    struct hset **b = kvr_mem_zget(&ix->mem, n * sizeof *b);
    if (!b) return ix->set_buckets_n ? 0 : -KVR_ENOMEM; /* longer chains are still right */
    for (size_t i = 0; i < ix->set_buckets_n; i++)
        for (struct hset *s = ix->set_buckets[i], *next; s; s = next) {
            next = s->chain;
            struct hset **head = &b[s->hash & (n - 1)];
            s->chain = *head;
            *head = s;
        }
    kvr_mem_put(&ix->mem, ix->set_buckets, ix->set_buckets_n * sizeof *b);
    ix->set_buckets = b;
    ix->set_buckets_n = n;
    return 0;
}

/* Is `s` equal to `base` with `slot` inserted (add) or left out at position `at`? */
static bool set_matches(const struct hset *s, const struct hset *base, uint32_t slot, uint32_t at, bool add)
{
    uint32_t base_n = base ? base->n : 0;
    if (s->n != (add ? base_n + 1 : base_n - 1)) return false;
    if (add && s->members[at] != slot) return false;
    if (at && memcmp(s->members, base->members, at * sizeof(uint32_t)) != 0) return false;
    uint32_t tail = add ? base_n - at : base_n - at - 1;
    return tail == 0 || memcmp(s->members + at + (add ? 1 : 0), base->members + at + (add ? 0 : 1), tail * sizeof(uint32_t)) == 0;
}

static int set_derive(struct kvr_index *ix, struct hset *base, uint32_t slot, bool add, struct hset **out)
{
    if (ix->last_set.from == base && ix->last_set.to && ix->last_set.slot == slot && ix->last_set.add == add) {
        *out = ix->last_set.to;
        return 0;
    }
    uint32_t base_n = base ? base->n : 0;
    uint32_t at = base ? lower_bound(base, slot) : 0;
    uint64_t hash = (base ? base->hash : 0) + (add ? kvr__set_mix(slot) : 0 - kvr__set_mix(slot));
    if (ix->sets_n >= ix->set_buckets_n && grow_buckets(ix)) return -KVR_ENOMEM;
    struct hset **head = &ix->set_buckets[hash & (ix->set_buckets_n - 1)];
    struct hset *s = *head;
    while (s && !(s->hash == hash && set_matches(s, base, slot, at, add))) s = s->chain;
    if (!s) {
        uint32_t n = add ? base_n + 1 : base_n - 1;
        s = kvr_mem_get(&ix->mem, set_size(n));
        if (!s) return -KVR_ENOMEM;
        s->hash = hash;
        s->refs = 0;
        s->n = n;
        if (at) memcpy(s->members, base->members, at * sizeof(uint32_t));
        uint32_t from = at + (add ? 0 : 1), to = at;
        if (add) s->members[to++] = slot;
        if (from < base_n) memcpy(s->members + to, base->members + from, (base_n - from) * sizeof(uint32_t));
        s->chain = *head;
        *head = s;
        ix->sets_n++;
    }
    ix->last_set.from = base;
    ix->last_set.to = s;
    ix->last_set.slot = slot;
    ix->last_set.add = add;
    *out = s;
    return 0;
}

int kvr__set_with(struct kvr_index *ix, struct hset *s, uint32_t slot, struct hset **out)
{
    return set_derive(ix, s, slot, true, out);
}

int kvr__set_without(struct kvr_index *ix, struct hset *s, uint32_t slot, struct hset **out)
{
    if (s->n == 1) {
        *out = NULL;
        return 0;
    }
    return set_derive(ix, s, slot, false, out);
}

void kvr__set_drop_if_unused(struct kvr_index *ix, struct hset *s)
{
    if (!s || s->refs) return;
    struct hset **p = &ix->set_buckets[s->hash & (ix->set_buckets_n - 1)];
    while (*p != s) p = &(*p)->chain;
    *p = s->chain;
    ix->sets_n--;
    if (ix->last_set.from == s || ix->last_set.to == s) ix->last_set.to = NULL;
    kvr__index_retire(ix, &s->link, set_size(s->n));
}

void kvr__set_assign(struct kvr_index *ix, struct node *nd, struct hset *to)
{
    struct hset *from = atomic_load_explicit(&nd->holders, RLX);
    if (from == to) return;
    if (to) to->refs++;
    atomic_store_explicit(&nd->holders, to, REL);
    if (from && --from->refs == 0) kvr__set_drop_if_unused(ix, from);
}
