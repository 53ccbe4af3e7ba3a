/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lower tiers: host_pinned, disk, external. What a rank keeps in one is a set of blocks, each known by the sequence hash of the prefix that
 * ends with it, whatever its engine calls it and whether the blocks before it are anywhere or not. So a prompt goes on from the device's
 * depth by one look a block, and blocks of chains with other names (an external cache with hashes of its own) are found by what they are.
 *
 *     device    A B C              depth 3
 *     host            D E . G      D and E go on from there: 5
 *     disk                F        then F: 6, and G in the host again: 7
 *
 * A block's place, from the event: its tokens, behind the place of its parent; or, told by name alone, the place that the rank has for this
 * name on the device or in another tier. A copy is often told of when the device has given the block up already, so names that leave are
 * remembered, as a tier of its own that no query sees (side 0): REMEMBERED_MAX of them, for REMEMBERED_S seconds. What has no place is
 * counted (`unplaced`) and not kept: less is said than is there.
 *
 * Chunks. An engine may read a tier back only in chunks of several blocks, which begin at multiples of their length. How long they are is
 * learned: the greatest number that divides every place where a store of such a tier has ended, and the blocks that it told with tokens,
 * believed when ENDS have been seen; or what a store says that a name stands for. A chunk
 * is there when its last block is (a tier that is told of by names alone, or by one name for several blocks), or when all of it is; and
 * what adds less than a chunk to the device's depth adds nothing (vLLM 0.32, OffloadingConnectorScheduler._lookup_complete_chunks), but
 * where a name stands for several blocks (LMCache 0.5.6, get_num_new_matched_tokens). Nor does what is fewer blocks than the engine takes
 * the trouble to read, when that is known of it (`least`).
 *
 * Copies. An engine may hold a block twice, or announce one that two chunks share twice; each has a removal of its own and is counted.
 *
 * Bounds. Each set keeps what was stored last (tier_blocks_max); a tier of which no removal was ever told, for tier_ttl_ns. Under a byte
 * cap tiers take half of their lane's share at most, so that a large host makes nothing of the device go; then the fullest gives way.
 *
 * Pools. Ranks of one pool share the set of their external tier: what one stored, all can read.
 *
 * Threads: a rank's sets are guarded by its lane's lock, pools by `pools_lock`, which is taken after it.
 */
#include <kvroute/hash.h>

#include "index/internal.h"

enum {
    REMEMBERED_MAX = 16384,
    REMEMBERED_FEW = 1024, /* where there is no room */
    REMEMBERED_S = 60,
    ENDS = 4,
    COPIES_MAX = 1 << 20,
    LOOKED_AT = 8,
    POOL_SLICE = 1 << 14
};

struct spot { /* where a block is */
    uint64_t prefix, parent, local;
    uint32_t position;
    bool root;
};

static uint32_t seconds(const struct lane *ln)
{
    return (uint32_t)(kvr_now_ns(&ln->ix->clock) / 1000000000u);
}

static uint32_t owner_of(const struct rank *rk, uint32_t side)
{
    return rk->serial << 2 | side;
}

/* ---- a set: a rank's tier, or a pool ------------------------------------------------------------------------------ */

struct side {
    struct tier_set *set;
    struct tier_side *side;
    uint32_t owner;
    struct kvr_lock *lock; /* of a pool */
};

/* A pool is locked until close_side. */
static struct side open_side(struct lane *ln, struct rank *rk, uint32_t tier)
{
    struct pool *p = tier == KVR_TIER_EXTERNAL ? rk->pool : NULL;
    if (!p) return (struct side){&ln->tiers, &rk->tier[tier], owner_of(rk, tier), NULL};
    kvr_lock(&ln->ix->pools_lock);
    return (struct side){&ln->ix->pooled, &p->side, p->owner, &ln->ix->pools_lock};
}

static void close_side(struct side *s)
{
    if (s->lock) kvr_unlock(s->lock);
}

static void take(struct lane *ln, struct tier_set *set, struct tier_side *side, uint32_t id)
{
    if (ln && ln->walks && set == &ln->tiers) kvr__walks_edge_goes(ln, id, kvr__tier_entry(set, id)->next);
    kvr__tier_take(set, &side->list, id);
}

/* ---- room --------------------------------------------------------------------------------------------------------- */

static struct tier_side *fuller(struct rank *rk, struct tier_side *most)
{
    for (uint32_t t = 0; t < KVR_TIER_COUNT; t++)
        if (rk->tier[t].list.n > most->list.n) most = &rk->tier[t];
    return most;
}

/* Of the rank and some others of the lane, whose turn it is. */
static struct tier_side *fullest(struct lane *ln, struct rank *rk)
{
    uint32_t top = atomic_load_explicit(&ln->slots_top, RLX);
    struct tier_side *most = fuller(rk, &rk->tier[0]);
    for (int i = 0; i < LOOKED_AT; i++) {
        struct rank *other = ln->rank_of[1 + ln->tiers_turn++ % (top - 1)]; /* slot 0 is not used */
        if (other) most = fuller(other, most);
    }
    return most;
}

static void give_up(struct lane *ln, struct tier_side *side)
{
    side->given_up++;
    take(ln, &ln->tiers, side, side->list.tail);
}

/* For another entry of the rank's: what it remembers of long ago goes first. Returns: false: there is nothing to give up. */
static bool make_room(struct lane *ln, struct rank *rk)
{
    struct tier_side *most = rk->tier[0].list.n > REMEMBERED_FEW ? &rk->tier[0] : fullest(ln, rk);
    if (!most->list.n) return false;
    give_up(ln, most);
    return true;
}

/* ---- names that leave --------------------------------------------------------------------------------------------- */

static void remember(struct lane *ln, struct rank *rk, const struct tier_entry *entry)
{
    struct tier_set *t = &ln->tiers;
    struct tier_side *side = &rk->tier[0];
    uint32_t now = seconds(ln), owner = owner_of(rk, 0), known = kvr__tier_find(t, owner, TIER_BY_NAME, entry->name);
    struct tier_entry e = *entry;
    e.owner = owner;
    e.stamp = now;
    if (known) take(ln, t, side, known);
    while (side->list.tail && (side->list.n >= REMEMBERED_MAX || now - kvr__tier_entry(t, side->list.tail)->stamp > REMEMBERED_S))
        take(ln, t, side, side->list.tail);
    if (kvr__tier_put(t, &side->list, &e) && make_room(ln, rk)) (void)kvr__tier_put(t, &side->list, &e);
}

void kvr__tiers_leave(struct lane *ln, struct rank *rk, struct run *r, uint32_t from, uint32_t end)
{
    for (uint32_t off = end; off-- > from;) {
        struct tier_entry e = {.copies = 1, .span = 1, .name = kvr__block_name(ln, rk, r, off), .local = r->a[off]};
        if (kvr__prefix_of(ln, r->id, off, &e.prefix, &e.position)) return;
        e.root = e.position == 0;
        if (off) e.parent = kvr__block_name(ln, rk, r, off - 1);
        else if (r->parent >= IDS_RESERVED) e.parent = kvr__block_name(ln, rk, kvr__run(ln, r->parent), r->poff - 1u);
        remember(ln, rk, &e);
    }
}

/* ---- places ------------------------------------------------------------------------------------------------------- */

static int spot_on_device(struct lane *ln, const struct rank *rk, uint64_t name, struct spot *out)
{
    struct place p;
    if (!kvr__resolve(ln, rk, name, &p)) return -KVR_ENOTFOUND;
    struct run *r = kvr__run(ln, p.run);
    int rc = kvr__prefix_of(ln, p.run, p.off, &out->prefix, &out->position);
    if (rc) return rc;
    out->local = r->a[p.off];
    out->root = out->position == 0;
    if (p.off) out->parent = kvr__block_name(ln, rk, r, p.off - 1);
    else if (!out->root) out->parent = kvr__block_name(ln, rk, kvr__run(ln, r->parent), r->poff - 1u);
    return 0;
}

static bool spot_of_entry(const struct tier_set *t, uint32_t id, struct spot *out)
{
    if (!id) return false; /* before the first entry there is no memory to point into */
    const struct tier_entry *e = kvr__tier_entry(t, id);
    *out = (struct spot){e->prefix, e->parent, e->local, e->position, e->root};
    return true;
}

/* Where the rank has a block of this name, in any tier, on the device, or a moment ago. `s` is looked at first. */
static int spot_of(struct lane *ln, const struct rank *rk, const struct side *s, uint64_t name, struct spot *out)
{
    *out = (struct spot){0};
    if (spot_of_entry(s->set, kvr__tier_find(s->set, s->owner, TIER_BY_NAME, name), out)) return 0;
    int rc = spot_on_device(ln, rk, name, out);
    for (uint32_t side = KVR_TIER_COUNT; rc && side-- > 0;)
        if (spot_of_entry(&ln->tiers, kvr__tier_find(&ln->tiers, owner_of(rk, side), TIER_BY_NAME, name), out)) rc = 0;
    return rc;
}

/* ---- storing ------------------------------------------------------------------------------------------------------ */

/* worth: as many ends. */
static void learn_end(struct tier_side *side, uint32_t end, uint32_t worth)
{
    uint32_t a = side->chunk, b = end;
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    side->chunk = a;
    side->ends = KVR_MIN(side->ends + worth, (uint32_t)ENDS);
}

/* From the block at place i of an event, which is at this position of its prompt. */
static void learn(struct tier_side *side, const struct kvr_event *ev, size_t i, uint32_t position)
{
    const struct kvr_lower *l = &ev->lower;
    if (!l->learns) return;
    if (l->span > 1) {
        learn_end(side, l->span, ENDS);
    } else if (l->apart || i + 1 == ev->blocks_n) {
        learn_end(side, position + 1, 1);
        if (!l->apart) learn_end(side, (uint32_t)KVR_MIN(ev->blocks_n, (size_t)UINT32_MAX), 0);
    }
}

/* Nothing is in the list any more that was there too long or is too much. */
static void keep_bounds(struct lane *ln, struct side *s)
{
    const struct kvr_index_config *c = &ln->ix->config;
    for (; s->side->list.n > c->tier_blocks_max; s->side->given_up++) take(ln, s->set, s->side, s->side->list.tail);
}

static int put(struct lane *ln, struct rank *rk, struct side *s, const struct tier_entry *e)
{
    int rc = s->lock ? kvr__pool_put(ln->ix, rk->pool, e) : kvr__tier_put(s->set, &s->side->list, e);
    if (!rc || s->lock || !make_room(ln, rk)) return rc;
    return kvr__tier_put(s->set, &s->side->list, e);
}

/* One block that has a place. */
static int store_entry(struct lane *ln, struct rank *rk, struct side *s, struct tier_entry *e, const struct kvr_lower *lower)
{
    struct tier_set *t = s->set;
    uint32_t known = kvr__tier_find(t, s->owner, TIER_BY_NAME, e->name);
    e->owner = s->owner;
    e->stamp = seconds(ln);
    e->span = KVR_MAX(lower->span, 1u);
    e->copies = s->lock ? 1 : KVR_MAX(lower->copies, 1u); /* what several tell of a pool is there once */
    s->side->sparse |= lower->names_only || lower->span > 1;
    if (known && kvr__tier_entry(t, known)->prefix == e->prefix) {
        struct tier_entry *old = kvr__tier_entry(t, known);
        if (!s->lock && lower->copies && old->copies < COPIES_MAX) old->copies += lower->copies;
        old->stamp = e->stamp;
        if (!ln->walks) kvr__tier_first(t, &s->side->list, known); /* a walk would miss it */
        return 0;
    }
    if (known) { /* the name is another block's now */
        if (ln->walks) kvr__walks_disturbed(ln, rk);
        take(ln, t, s->side, known);
    }
    int rc = put(ln, rk, s, e);
    keep_bounds(ln, s);
    return rc;
}

static struct tier_entry entry_of(const struct spot *at, uint64_t name)
{
    return (struct tier_entry){
        .name = name, .prefix = at->prefix, .parent = at->parent, .local = at->local, .position = at->position, .root = at->root};
}

static int store_names(struct lane *ln, struct rank *rk, struct side *s, const struct kvr_event *ev)
{
    int rc = 0;
    for (size_t i = 0; i < ev->blocks_n; i++) {
        struct spot at;
        if (spot_of(ln, rk, s, ev->blocks[i].block_hash, &at)) {
            s->side->unplaced++;
            rc = -KVR_ENOTFOUND;
            continue;
        }
        struct tier_entry e = entry_of(&at, ev->blocks[i].block_hash);
        learn(s->side, ev, i, e.position);
        if (store_entry(ln, rk, s, &e, &ev->lower)) return -KVR_ENOMEM;
    }
    return rc;
}

static int store_placed(struct lane *ln, struct rank *rk, struct side *s, const struct kvr_event *ev)
{
    if (ev->blocks_n != 1 || ev->lower.position == UINT32_MAX) return -KVR_EINVAL;
    struct spot at = {ev->lower.prefix_hash, ev->parent_hash, ev->blocks[0].tokens_hash, ev->lower.position, !ev->has_parent};
    struct tier_entry e = entry_of(&at, ev->blocks[0].block_hash);
    s->side->span = KVR_MAX(s->side->span, ev->lower.span);
    learn(s->side, ev, 0, e.position);
    return store_entry(ln, rk, s, &e, &ev->lower);
}

/* LMCache can keep the end of a prompt that fills no chunk, as a shorter one that only this very prompt has: not kept here, neither those
 * that came before the first full one. */
static bool is_tail(struct lane *ln, struct side *s, uint32_t span)
{
    if (span > s->side->span) {
        while (s->side->span && s->side->list.head) take(ln, s->set, s->side, s->side->list.head);
        s->side->chunk = s->side->ends = 0;
        s->side->span = span;
    }
    return span < s->side->span;
}

/* Blocks with tokens, behind their parent. */
static int store_chain(struct lane *ln, struct rank *rk, struct side *s, const struct kvr_event *ev)
{
    struct spot at = {0};
    uint32_t span = KVR_MAX(ev->lower.span, 1u);
    if (is_tail(ln, s, span)) {
        s->side->unplaced += ev->blocks_n / span;
        return 0;
    }
    if (ev->has_parent && spot_of(ln, rk, s, ev->parent_hash, &at)) {
        s->side->unplaced += ev->blocks_n / span;
        return -KVR_EPARENT;
    }
    bool root = !ev->has_parent;
    uint64_t parent = ev->parent_hash;
    for (size_t i = 0; i < ev->blocks_n; i++) {
        at.position = root ? 0 : at.position + 1;
        if (at.position == UINT32_MAX - 1) return -KVR_ELIMIT;
        if (root) at.prefix = ev->blocks[i].tokens_hash;
        else kvr_hash_sequence_on(at.prefix, &ev->blocks[i].tokens_hash, 1, &at.prefix);
        at.root = root && span == 1;
        root = false;
        if ((i + 1) % span) continue;
        struct spot known;
        if (ev->lower.names_first && !spot_of(ln, rk, s, ev->blocks[i].block_hash, &known)) {
            at = known;
        } else {
            at.parent = parent;
            at.local = ev->blocks[i].tokens_hash;
        }
        struct tier_entry e = entry_of(&at, ev->blocks[i].block_hash);
        learn(s->side, ev, i, e.position);
        if (store_entry(ln, rk, s, &e, &ev->lower)) return -KVR_ENOMEM;
        parent = e.name;
    }
    return 0;
}

static int store(struct lane *ln, struct rank *rk, struct side *s, const struct kvr_event *ev)
{
    if (!ev->has_parent && ev->has_start_position && ev->start_position > 0) return -KVR_EUNSUPPORTED; /* nothing to hang it on */
    if (ev->lower.span > 1 && ev->blocks_n % ev->lower.span) return -KVR_EINVAL;
    if (ev->lower.chunk) {
        s->side->chunk = ev->lower.chunk;
        s->side->ends = ENDS;
    }
    if (ev->lower.least) s->side->least = ev->lower.least;
    if (ev->lower.placed) return store_placed(ln, rk, s, ev);
    return ev->lower.names_only ? store_names(ln, rk, s, ev) : store_chain(ln, rk, s, ev);
}

/* ---- removing ----------------------------------------------------------------------------------------------------- */

static void remove_name(struct lane *ln, struct rank *rk, struct side *s, uint64_t name)
{
    uint32_t id = kvr__tier_find(s->set, s->owner, TIER_BY_NAME, name);
    s->side->removes = true;
    if (!id) return;
    struct tier_entry e = *kvr__tier_entry(s->set, id);
    if (e.copies > 1) {
        kvr__tier_entry(s->set, id)->copies--;
        return;
    }
    take(ln, s->set, s->side, id);
    remember(ln, rk, &e);
}

static void clear_side(struct lane *ln, struct side *s)
{
    while (s->side->list.head) take(ln, s->set, s->side, s->side->list.head);
    *s->side = (struct tier_side){.removes = s->side->removes, .unplaced = s->side->unplaced, .given_up = s->side->given_up};
}

void kvr__tiers_clear(struct lane *ln, struct rank *rk, enum kvr_tier tier)
{
    struct side s = {&ln->tiers, &rk->tier[tier], owner_of(rk, tier), NULL}; /* a pool outlives who fills it */
    clear_side(ln, &s);
}

size_t kvr__tiers_drain(struct lane *ln, struct rank *rk, size_t blocks)
{
    size_t n = 0;
    for (uint32_t t = 0; t < KVR_TIER_COUNT; t++)
        for (; n < blocks && rk->tier[t].list.head; n++) take(ln, &ln->tiers, &rk->tier[t], rk->tier[t].list.head);
    return n;
}

static void renumber(void *lane, uint32_t from, uint32_t to)
{
    kvr__walks_edge_goes(lane, from, to);
}

/* The older half of each goes. */
static void halve(struct lane *ln)
{
    uint32_t top = atomic_load_explicit(&ln->slots_top, RLX), free = 1;
    for (uint32_t i = 1; i < top; i++)
        for (uint32_t t = 0; ln->rank_of[i] && t < KVR_TIER_COUNT; t++)
            for (size_t n = ln->rank_of[i]->tier[t].list.n / 2; ln->rank_of[i]->tier[t].list.n > n;) give_up(ln, &ln->rank_of[i]->tier[t]);
    for (uint32_t i = 1; i < top; i++)
        for (uint32_t t = 0; ln->rank_of[i] && t < KVR_TIER_COUNT; t++)
            kvr__tier_pack(&ln->tiers, &ln->rank_of[i]->tier[t].list, &free, renumber, ln);
    kvr__tier_packed(&ln->tiers);
}

void kvr__tiers_keep_share(struct lane *ln)
{
    while (kvr__tier_set_is_over(&ln->tiers)) halve(ln);
}

bool kvr__tiers_none(const struct rank *rk)
{
    for (uint32_t t = 0; t < KVR_TIER_COUNT; t++)
        if (rk->tier[t].list.n) return false;
    return true;
}

bool kvr__tiers_have(struct lane *ln, struct rank *rk, enum kvr_tier tier, uint64_t name)
{
    struct side s = open_side(ln, rk, tier);
    bool found = kvr__tier_find(s.set, s.owner, TIER_BY_NAME, name) != 0;
    close_side(&s);
    return found;
}

int kvr__tiers_apply(struct lane *ln, struct rank *rk, const struct kvr_event *ev)
{
    int rc = 0;
    struct side s = open_side(ln, rk, ev->tier);
    rk->remembers = true;
    if (ev->kind == KVR_EVENT_STORED) rc = store(ln, rk, &s, ev);
    if (ev->kind == KVR_EVENT_CLEARED && !s.lock) clear_side(ln, &s);
    for (size_t i = 0; ev->kind == KVR_EVENT_REMOVED && i < ev->removed_n; i++) remove_name(ln, rk, &s, ev->removed[i]);
    close_side(&s);
    return rc;
}

/* ---- time --------------------------------------------------------------------------------------------------------- */

static size_t expire_side(struct lane *ln, struct tier_set *t, struct tier_side *side, uint32_t now, uint64_t ttl_s)
{
    size_t n = 0;
    for (; side->list.tail && now - kvr__tier_entry(t, side->list.tail)->stamp > ttl_s; n++) take(ln, t, side, side->list.tail);
    side->given_up += n;
    return n;
}

size_t kvr__tiers_expire(struct lane *ln, struct rank *rk)
{
    size_t n = 0;
    uint32_t now = seconds(ln);
    uint64_t ttl_s = ln->ix->config.tier_ttl_ns / 1000000000u;
    (void)expire_side(ln, &ln->tiers, &rk->tier[0], now, REMEMBERED_S);
    for (uint32_t t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++)
        if (!rk->tier[t].removes) n += expire_side(ln, &ln->tiers, &rk->tier[t], now, ttl_s);
    return n;
}

size_t kvr__pools_expire(struct kvr_index *ix)
{
    size_t n = 0;
    uint64_t now = kvr_now_ns(&ix->clock) / 1000000000u, ttl_s = ix->config.tier_ttl_ns / 1000000000u;
    kvr_lock(&ix->pools_lock);
    for (struct pool *p = ix->pools; p; p = p->next)
        n += p->id ? expire_side(NULL, &ix->pooled, &p->side, (uint32_t)now, ttl_s) : kvr__pool_empty(ix, p, POOL_SLICE);
    kvr_unlock(&ix->pools_lock);
    return n;
}

int kvr__tiers_join(struct lane *ln, struct rank *rk, uint64_t pool)
{
    struct pool *p = NULL;
    kvr_lock(&ln->ix->pools_lock);
    int rc = kvr__pool_enlist(ln->ix, rk->worker, pool, &p);
    kvr_unlock(&ln->ix->pools_lock);
    if (rc) return rc;
    if (p != rk->pool) kvr__tiers_clear(ln, rk, KVR_TIER_EXTERNAL);
    rk->pool = p;
    kvr__pools_tidy(ln->ix);
    return 0;
}

/* ---- queries ------------------------------------------------------------------------------------------------------ */

static bool has(const struct side *s, uint64_t prefix)
{
    return kvr__tier_find(s->set, s->owner, TIER_BY_PREFIX, prefix) != 0;
}

/* Blocks behind `at` that are read from one tier as its next chunk: 0 when it is not there. */
static uint32_t next_chunk(const struct side *s, const uint64_t *prefixes, size_t n, uint32_t at)
{
    const struct tier_side *side = s->side;
    uint32_t k = KVR_MAX(side->chunk, 1u);
    uint64_t end = ((uint64_t)at / k + 1) * k;
    if (!side->list.n || (k > 1 && side->ends < ENDS) || end > n || !has(s, prefixes[end - 1])) return 0;
    for (uint64_t i = at; !side->sparse && i + 1 < end; i++)
        if (!has(s, prefixes[i])) return 0;
    return (uint32_t)(end - at);
}

/* Fewer blocks than these are not read. LMCache, whose names stand for several blocks, reads the rest of a chunk, too. */
static uint32_t least_of(const struct tier_side *side)
{
    return KVR_MAX(KVR_MAX(side->span > 1 ? 1 : side->chunk, side->least), 1u);
}

void kvr__tiers_reach(struct lane *ln, struct rank *rk, const uint64_t *prefixes, size_t n, struct kvr_reach *reach)
{
    uint32_t device = reach->depth[KVR_TIER_DEVICE], at = device, read[KVR_TIER_COUNT] = {device}, least = 0;
    struct side s[KVR_TIER_COUNT];
    for (uint32_t t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) s[t] = open_side(ln, rk, t);
    for (uint32_t t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT;) {
        uint32_t more = next_chunk(&s[t], prefixes, n, at);
        if (more && !least) least = least_of(s[t].side);
        read[t] += more;
        at += more;
        t = more ? (uint32_t)KVR_TIER_HOST_PINNED : t + 1;
    }
    for (uint32_t t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) close_side(&s[t]);
    for (uint32_t t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++)
        reach->depth[t] = reach->depth[t - 1] + (at - device >= least ? read[t] : 0);
}

size_t kvr__pool_reach(struct kvr_index *ix, struct pool *p, const uint64_t *prefixes, size_t n)
{
    struct side s = {&ix->pooled, &p->side, p->owner, NULL};
    uint32_t at = 0, more;
    while ((more = next_chunk(&s, prefixes, n, at)) != 0) at += more;
    return at >= least_of(&p->side) ? at : 0;
}

size_t kvr__tiers_fell_short(struct lane *ln, struct rank *rk, const uint64_t *prefixes, size_t from, size_t n)
{
    size_t gone = 0;
    for (uint32_t t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) {
        struct side s = open_side(ln, rk, t);
        for (size_t i = from; (s.lock || !s.side->removes) && i < n; i++) {
            uint32_t id = kvr__tier_find(s.set, s.owner, TIER_BY_PREFIX, prefixes[i]);
            if (!id) continue;
            take(ln, s.set, s.side, id);
            s.side->given_up++;
            gone++;
        }
        close_side(&s);
    }
    return gone;
}

/* ---- dump --------------------------------------------------------------------------------------------------------- */

uint32_t kvr__tier_dump(const struct lane *ln, const struct tier_side *side, uint32_t id, struct kvr_event *ev, struct kvr_block *b)
{
    const struct tier_entry *e = kvr__tier_entry(&ln->tiers, id);
    bool learning =
        side->sparse && side->span <= 1 && side->chunk > 1 && side->ends < ENDS; /* what is not believed here is not there either */
    ev->has_parent = !e->root;
    ev->parent_hash = e->root ? 0 : e->parent;
    ev->lower = (struct kvr_lower){.placed = true,
                                   .names_only = side->sparse,
                                   .chunk = learning ? 0 : side->chunk,
                                   .learns = learning,
                                   .apart = learning,
                                   .least = side->least,
                                   .span = e->span,
                                   .copies = e->copies,
                                   .position = e->position,
                                   .prefix_hash = e->prefix};
    *b = (struct kvr_block){e->name, e->local};
    return e->next;
}
