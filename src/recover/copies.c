/* SPDX-License-Identifier: Apache-2.0 */
#include "recover/copies.h"

static size_t names_counted(const struct kvr_copies *c)
{
    size_t n = 0;
    for (int t = 0; t < KVR_TIER_COUNT; t++) n += c->more[t].n;
    return n;
}

static void count_one(struct kvr_copies *c, enum kvr_tier tier, uint64_t name)
{
    uint64_t *more = kvr_map64_get(&c->more[tier], name);
    if (more) ++*more;
    else if (names_counted(c) < KVR_COPIES_MAX) (void)kvr_map64_put(&c->more[tier], name, 1); /* no room: the first removal takes it */
}

size_t kvr__copies_stored(struct kvr_copies *c, const struct kvr_event *store, bool may_repeat, kvr_copies_holds *holds, void *ctx)
{
    size_t n = 0;
    if (may_repeat && !store->has_parent) {
        c->unsure |= store->blocks_n && holds(ctx, store->tier, store->blocks[0].block_hash);
        return 0;
    }
    for (; n < store->blocks_n && holds(ctx, store->tier, store->blocks[n].block_hash); n++)
        count_one(c, store->tier, store->blocks[n].block_hash);
    return n;
}

size_t kvr__copies_removed(struct kvr_copies *c, enum kvr_tier tier, const uint64_t *names, size_t n, uint64_t *last)
{
    struct kvr_map64 *m = &c->more[tier];
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t *more = kvr_map64_get(m, names[i]);
        if (!more) last[kept++] = names[i];
        else if (--*more == 0) kvr_map64_del(m, names[i]);
    }
    return kept;
}

void kvr__copies_forget(struct kvr_copies *c)
{
    for (int t = 0; t < KVR_TIER_COUNT; t++) kvr_map64_clear(&c->more[t]);
    c->unsure = false;
}
