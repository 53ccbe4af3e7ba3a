/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who holds how much of a run. One holder fits in the run's `hold` word; more are in a cover, a small table hashed
 * by slot. A rank keeps its entry while it stays, so its share is one word that changes at once (R1); a cover that
 * grows or is left by all but one is replaced as a whole, by one store to `hold`.
 */
#include "index/internal.h"

enum { COVER_MIN = 4 };

static uint64_t hold_w(const struct run *r)
{
    return atomic_load_explicit(&r->hold, RLX);
}

static void hold_set(struct run *r, uint64_t word)
{
    atomic_store_explicit(&r->hold, word, REL);
}

static uint32_t entry_w(const struct cover *c, uint32_t at)
{
    return atomic_load_explicit(&c->e[at], RLX);
}

size_t kvr__cover_bytes(const struct cover *c)
{
    return sizeof *c + c->cap * (sizeof c->e[0] + sizeof(struct holder));
}

void kvr__cover_free(struct lane *ln, struct cover *c)
{
    kvr_mem_put(&ln->mem, c, kvr__cover_bytes(c));
}

/* The slot's entry, or where it would go. */
static uint32_t cover_place(const struct cover *c, uint32_t slot)
{
    uint32_t at = (uint32_t)((uint64_t)(slot * 0x9e3779b1u) * c->cap >> 32), e;
    while ((e = entry_w(c, at)) && e >> CUT_BITS != slot)
        if (++at == c->cap) at = 0;
    return at;
}

struct grip kvr__grip(const struct run *r, uint32_t slot)
{
    uint64_t h = hold_w(r);
    if (h & 1) {
        uint32_t e = (uint32_t)(h >> 32);
        return (struct grip){e >> CUT_BITS == slot ? e & CUT_MASK : 0, UINT32_MAX};
    }
    if (!h) return (struct grip){0, UINT32_MAX};
    const struct cover *c = kvr__cover(r);
    uint32_t at = cover_place(c, slot);
    return (struct grip){entry_w(c, at) & CUT_MASK, at};
}

uint32_t kvr__grip_alias(const struct run *r, struct grip g)
{
    struct cover *c = g.cut ? kvr__cover(r) : NULL;
    return c ? kvr__holder(c, g.at)->alias : 0;
}

uint32_t kvr__cover_pos_of(const struct run *r, struct grip g)
{
    struct cover *c = kvr__cover(r);
    return c ? kvr__holder(c, g.at)->pos : (uint32_t)hold_w(r) >> 1;
}

void kvr__cover_pos(struct run *r, uint32_t slot, uint32_t pos)
{
    struct cover *c = kvr__cover(r);
    if (c) kvr__holder(c, cover_place(c, slot))->pos = pos;
    else hold_set(r, kvr__hold_word(slot, (uint32_t)(hold_w(r) >> 32) & CUT_MASK, pos));
}

uint32_t kvr__cover_live(const struct run *r)
{
    struct cover *c = kvr__cover(r);
    return c ? c->live : hold_w(r) != 0;
}

uint32_t kvr__cover_max(const struct run *r)
{
    struct cover *c = kvr__cover(r);
    if (!c) return (uint32_t)(hold_w(r) >> 32) & CUT_MASK;
    uint32_t max = 0;
    for (uint32_t i = 0; i < c->cap; i++) {
        uint32_t cut = entry_w(c, i) & CUT_MASK;
        if (cut > max) max = cut;
    }
    return max;
}

static struct cover *cover_new(struct lane *ln, uint32_t cap)
{
    struct cover like = {.cap = cap}, *c = kvr_mem_zget(&ln->mem, kvr__cover_bytes(&like));
    if (c) c->cap = cap;
    return c;
}

static void cover_insert(struct cover *c, uint32_t slot, uint32_t cut, struct holder h)
{
    uint32_t at = cover_place(c, slot);
    c->used += entry_w(c, at) == 0;
    c->live++;
    c->aliased += h.alias != 0;
    *kvr__holder(c, at) = h;
    atomic_store_explicit(&c->e[at], slot << CUT_BITS | cut, REL);
}

int kvr__cover_reserve(struct lane *ln, struct run *r, bool must_cover)
{
    uint64_t h = hold_w(r);
    if (!h && !must_cover) return 0;
    struct cover *old = kvr__cover(r), *c;
    if (old && (old->used + 1) * 5 <= old->cap * 4) return 0;
    c = cover_new(ln, old ? KVR_MAX((old->live + 1) * 3 / 2, (uint32_t)COVER_MIN) : COVER_MIN);
    if (!c) return -KVR_ENOMEM;
    if (old) {
        for (uint32_t i = 0; i < old->cap; i++) {
            uint32_t e = entry_w(old, i);
            if (e & CUT_MASK) cover_insert(c, e >> CUT_BITS, e & CUT_MASK, *kvr__holder(old, i));
        }
    } else if (h) {
        uint32_t e = (uint32_t)(h >> 32);
        cover_insert(c, e >> CUT_BITS, e & CUT_MASK, (struct holder){.pos = (uint32_t)h >> 1});
    }
    hold_set(r, (uint64_t)(uintptr_t)c);
    if (old) kvr__retire_cover(ln, old);
    return 0;
}

void kvr__cover_add(struct run *r, uint32_t slot, uint32_t cut, uint32_t pos)
{
    struct cover *c = kvr__cover(r);
    if (c) cover_insert(c, slot, cut, (struct holder){.pos = pos});
    else hold_set(r, kvr__hold_word(slot, cut, pos));
}

void kvr__cover_set(struct run *r, uint32_t slot, struct grip g, uint32_t cut)
{
    struct cover *c = kvr__cover(r);
    if (c) atomic_store_explicit(&c->e[g.at], slot << CUT_BITS | cut, REL);
    else hold_set(r, kvr__hold_word(slot, cut, (uint32_t)hold_w(r) >> 1));
}

/* The last one left moves into the word. */
static void demote(struct lane *ln, struct run *r, struct cover *c)
{
    uint64_t word = 0;
    for (uint32_t i = 0; i < c->cap; i++) {
        uint32_t e = entry_w(c, i);
        if (e & CUT_MASK) word = kvr__hold_word(e >> CUT_BITS, e & CUT_MASK, kvr__holder(c, i)->pos);
    }
    hold_set(r, word);
    kvr__retire_cover(ln, c);
}

void kvr__cover_remove(struct lane *ln, struct run *r, struct grip g)
{
    struct cover *c = kvr__cover(r);
    if (!c) {
        hold_set(r, 0);
        return;
    }
    struct holder *h = kvr__holder(c, g.at);
    KVR_ASSERT(h->alias == 0);
    *h = (struct holder){0};
    atomic_store_explicit(&c->e[g.at], entry_w(c, g.at) & ~(uint32_t)CUT_MASK, REL);
    c->live--;
    if (c->live == 0 || (c->live == 1 && c->aliased == 0)) demote(ln, r, c);
}
