/* SPDX-License-Identifier: Apache-2.0 */
/* A map from name to the number of copies beyond the first; recover/consumer/copies.h says why and what reports do to it. */
#include "recover/consumer/copies.h"

static size_t names_counted(const struct kvr_copies *c)
{
    size_t n = 0;
    for (int t = 0; t < KVR_TIER_COUNT; t++) n += c->more[t].n;
    return n;
}

static bool is_nothing(struct kvr_tally t)
{
    return t.certain == 0 && t.unproven == 0;
}

static void count_one(struct kvr_copies *c, enum kvr_tier tier, uint64_t name, bool proven)
{
    uint64_t *more = kvr_map64_get(&c->more[tier], name);
    struct kvr_tally t = more ? kvr_tally_of(*more) : (struct kvr_tally){0};
    t.certain += proven;
    t.unproven += !proven;
    if (more && is_nothing(t)) kvr_map64_del(&c->more[tier], name);
    else if (more) *more = kvr_tally_value(t);
    else if (names_counted(c) >= KVR_COPIES_MAX || kvr_map64_put(&c->more[tier], name, kvr_tally_value(t)))
        return; /* the first removal takes it */
    c->unproven += !proven;
}

/* Blocks behind the first that is not held: of some of them the view has given up the block and not heard of its copies (it goes by
 * evidence too, or is full), and they begin anew. */
static void count_rest(struct kvr_copies *c, const struct kvr_event *store, size_t from, bool proven, kvr_copies_holds *holds, void *ctx)
{
    struct kvr_map64 *m = &c->more[store->tier];
    for (size_t i = from; i < store->blocks_n && m->n; i++) {
        uint64_t name = store->blocks[i].block_hash, *more = kvr_map64_get(m, name);
        if (!more) continue;
        if (holds(ctx, store->tier, name)) {
            count_one(c, store->tier, name, proven);
        } else {
            c->unproven -= kvr_tally_of(*more).unproven;
            kvr_map64_del(m, name);
        }
    }
}

size_t kvr__copies_stored(struct kvr_copies *c, const struct kvr_event *store, bool may_repeat, kvr_copies_holds *holds, void *ctx)
{
    size_t n = 0;
    bool proven = store->has_parent || !may_repeat;
    if (!proven && c->reports) {
        c->unsure |= store->blocks_n && holds(ctx, store->tier, store->blocks[0].block_hash);
        return 0;
    }
    for (; n < store->blocks_n && holds(ctx, store->tier, store->blocks[n].block_hash); n++)
        count_one(c, store->tier, store->blocks[n].block_hash, proven);
    count_rest(c, store, n, proven, holds, ctx);
    return n;
}

/* Returns: was it the last copy? */
static bool remove_one(struct kvr_copies *c, struct kvr_map64 *m, uint64_t name)
{
    uint64_t *more = kvr_map64_get(m, name);
    if (!more) return true;
    struct kvr_tally t = kvr_tally_of(*more);
    t.certain--;
    bool last = 1 + kvr_tally_sum(t) <= 0;
    if (last) c->unproven -= t.unproven; /* each has had its removal */
    if (last || is_nothing(t)) kvr_map64_del(m, name);
    else *more = kvr_tally_value(t);
    return last;
}

size_t kvr__copies_removed(struct kvr_copies *c, enum kvr_tier tier, const uint64_t *names, size_t n, uint64_t *last)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (remove_one(c, &c->more[tier], names[i])) last[kept++] = names[i];
    return kept;
}

void kvr__copies_uncount(struct kvr_copies *c, enum kvr_tier tier, const uint64_t *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t *more = kvr_map64_get(&c->more[tier], names[i]);
        struct kvr_tally t = more ? kvr_tally_of(*more) : (struct kvr_tally){0};
        if (!t.unproven) continue;
        t.unproven--;
        c->unproven--;
        if (is_nothing(t)) kvr_map64_del(&c->more[tier], names[i]);
        else *more = kvr_tally_value(t);
    }
}

size_t kvr__copies_take_back(struct kvr_copies *c, enum kvr_tier tier, uint64_t *gone)
{
    struct kvr_map64 certain = {0}, *m = &c->more[tier];
    size_t n = 0;
    for (size_t i = 0; i < m->cap; i++) {
        if (!m->slots[i].used) continue;
        struct kvr_tally t = kvr_tally_of(m->slots[i].value);
        c->unproven -= t.unproven;
        t.unproven = 0;
        if (t.certain < 0) gone[n++] = m->slots[i].key;
        else if (t.certain > 0) (void)kvr_map64_put(&certain, m->slots[i].key, kvr_tally_value(t));
    }
    kvr_map64_clear(m);
    *m = certain;
    return n;
}

bool kvr__copies_doubtful(const struct kvr_copies *c, enum kvr_tier tier, uint64_t name)
{
    const uint64_t *more = kvr_map64_get(&c->more[tier], name);
    return more && kvr_tally_of(*more).certain < 0;
}

bool kvr__copies_unproven(const struct kvr_copies *c, enum kvr_tier tier, uint64_t name)
{
    const uint64_t *more = kvr_map64_get(&c->more[tier], name);
    return more && kvr_tally_of(*more).unproven > 0;
}

void kvr__copies_forget(struct kvr_copies *c)
{
    for (int t = 0; t < KVR_TIER_COUNT; t++) kvr_map64_clear(&c->more[t]);
    c->unproven = 0;
    c->unsure = false;
}
