/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane's memory in large pieces. What slabs and the name table ask for, 1 KiB to 256 KiB at a time, is cut from extents
 * of 2 MiB, which the system backs with one page each where it has such pages (base.c): the tables are looked at
 * everywhere at once, and so no look waits for the page's address, and what is new costs one fault instead of 512.
 *
 *   extent   | 256 KiB of names   |  16 KiB  | free | a slab's page |  ...
 *
 * The first extents are smaller, so that a small index stays small. A piece comes from the first extent that has room, so
 * that the last ones empty; an empty one goes back at once. Counted are whole extents: that is what the system has given.
 *
 * An index with a cap on its bytes has no extents: what is given up must be given back at once, or the cap would cost
 * far more blocks than are over it. Pieces are asked for one by one, then.
 */
#include "index/internal.h"

enum { GRAIN = 1 << 10, EXTENT = 2 << 20, ALIGNED = 128, NO_ROOM = UINT16_MAX };
_Static_assert(sizeof(((struct extent *)0)->taken) * 8 == EXTENT / GRAIN, "a bit for each grain");

static uint32_t grains(size_t bytes)
{
    return (uint32_t)((bytes + GRAIN - 1) / GRAIN);
}

static char *aligned(char *p)
{
    return p + (ALIGNED - (uintptr_t)p % ALIGNED) % ALIGNED;
}

/* ---- without extents ------------------------------------------------------------------------------------ */

/* The start of the memory is noted in front of the piece. */
void *kvr__alone_get(struct lane *ln, size_t bytes)
{
    char *raw = kvr_mem_get(&ln->mem, bytes + ALIGNED);
    if (!raw) return NULL;
    char *p = aligned(raw + sizeof raw);
    memcpy(p - sizeof raw, &raw, sizeof raw);
    return p;
}

void kvr__alone_put(struct lane *ln, void *p, size_t bytes)
{
    char *raw;
    memcpy(&raw, (char *)p - sizeof raw, sizeof raw);
    kvr_mem_put(&ln->mem, raw, bytes + ALIGNED);
}

/* ---- extents -------------------------------------------------------------------------------------------- */

/* The first grain from g on that is taken, or free; x->grains: none is. */
static uint32_t next_grain(const struct extent *x, uint32_t g, bool taken)
{
    for (; g < x->grains; g = (g | 63) + 1) {
        uint64_t word = (taken ? x->taken[g / 64] : ~x->taken[g / 64]) >> (g % 64);
        if (word) return KVR_MIN(g + (uint32_t)__builtin_ctzll(word), x->grains);
    }
    return x->grains;
}

static void mark(struct extent *x, uint32_t g, uint32_t n, bool taken)
{
    for (uint32_t end = g + n; g < end; g++) {
        if (taken) x->taken[g / 64] |= UINT64_C(1) << (g % 64);
        else x->taken[g / 64] &= ~(UINT64_C(1) << (g % 64));
    }
    x->used = taken ? x->used + n : x->used - n;
}

/* The first n free grains in a row, or NO_ROOM; then it is known how many there are. */
static uint32_t find_room(struct extent *x, uint32_t n)
{
    uint32_t longest = 0;
    for (uint32_t g = next_grain(x, x->first, false), end; g < x->grains; g = next_grain(x, end, false)) {
        end = next_grain(x, g, true);
        if (end - g >= n) return g;
        longest = KVR_MAX(longest, end - g);
    }
    x->longest = longest;
    return NO_ROOM;
}

/* From 64 KiB to EXTENT, a quarter of what there is already, so that little of a small index is not in use. */
static size_t next_size(const struct arena *a, size_t least)
{
    size_t size = 64 << 10;
    while (size < EXTENT && (size * 4 < a->bytes || size < least)) size *= 2;
    return size;
}

/* Where memory is short a smaller one may still be had. */
static struct extent *extent_new(struct lane *ln, size_t least)
{
    struct arena *a = &ln->arena;
    size_t bytes = next_size(a, least + ALIGNED);
    char *raw;
    while (!(raw = kvr_mem_get(&ln->mem, bytes)) && bytes / 2 >= least + ALIGNED) bytes /= 2;
    if (!raw) return NULL;
    if (kvr_mem_grow(&ln->mem, (void **)&a->extents, &a->cap, a->n + 1, sizeof *a->extents)) {
        kvr_mem_put(&ln->mem, raw, bytes);
        return NULL;
    }
    struct extent *x = &a->extents[a->n++];
    *x = (struct extent){.raw = raw, .bytes = bytes, .mem = aligned(raw)};
    x->grains = x->longest = (uint32_t)((size_t)(raw + bytes - x->mem) / GRAIN);
    a->bytes += bytes;
    return x;
}

static void extent_free(struct lane *ln, struct extent *x)
{
    struct arena *a = &ln->arena;
    kvr_mem_put(&ln->mem, x->raw, x->bytes);
    a->bytes -= x->bytes;
    memmove(x, x + 1, (size_t)(a->extents + --a->n - x) * sizeof *x); /* the small ones stay first */
    if (a->n) return;
    kvr_mem_put(&ln->mem, a->extents, a->cap * sizeof *a->extents);
    a->extents = NULL;
    a->cap = 0;
}

/* ---- pieces --------------------------------------------------------------------------------------------- */

size_t kvr__arena_round(size_t bytes)
{
    return (size_t)grains(bytes) * GRAIN;
}

void *kvr__arena_get(struct lane *ln, size_t bytes)
{
    struct arena *a = &ln->arena;
    uint32_t n = grains(bytes), at = NO_ROOM;
    if (a->off) return kvr__alone_get(ln, bytes);
    struct extent *x = a->extents, *end = x ? x + a->n : NULL;
    for (; x < end; x++)
        if (x->longest >= n && (at = find_room(x, n)) != NO_ROOM) break;
    if (at == NO_ROOM) {
        if (!(x = extent_new(ln, bytes))) return NULL;
        at = 0;
    }
    mark(x, at, n, true);
    if (at == x->first) x->first = at + n;
    return x->mem + (size_t)at * GRAIN;
}

void kvr__arena_put(struct lane *ln, void *p, size_t bytes)
{
    struct arena *a = &ln->arena;
    if (a->off) {
        kvr__alone_put(ln, p, bytes);
        return;
    }
    struct extent *x = a->extents, *end = x ? x + a->n : NULL;
    while (x < end && (uintptr_t)p - (uintptr_t)x->mem >= (size_t)x->grains * GRAIN) x++;
    KVR_ASSERT(x < end);
    uint32_t at = (uint32_t)((size_t)((char *)p - x->mem) / GRAIN);
    mark(x, at, grains(bytes), false);
    x->first = KVR_MIN(x->first, at);
    x->longest = x->grains; /* or fewer: the next look tells */
    if (!x->used) extent_free(ln, x);
}
