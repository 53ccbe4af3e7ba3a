/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for runs. Sizes are rounded to classes an eighth of an octave apart; each class takes its objects from
 * pages of its own. Pages grow with the class (a 32nd of it, 4 KiB to 256 KiB), so slack stays in proportion. Empty
 * pages go back to the allocator, but for one of a class that has others in use: a page must not come and go with
 * every object. An object remembers its page, so no alignment is asked for.
 */
#include "index/internal.h"

enum { GRAIN = 16, LINEAR = 16, PAGE_MIN = 4096, PAGE_MAX = 256 << 10, PAGE_SHARE = 32 };

/* Classes 1..16 are multiples of 16 bytes; then 8 classes per octave. */
static uint32_t class_of(size_t bytes)
{
    size_t g = (bytes + GRAIN - 1) / GRAIN;
    if (g <= LINEAR) return (uint32_t)g;
    unsigned e = 63 - (unsigned)__builtin_clzll(g - 1);
    return (uint32_t)((e - 4) * 8 + ((g - 1) >> (e - 3)) - 8 + LINEAR + 1);
}

size_t kvr__slab_round(size_t bytes)
{
    size_t g = (bytes + GRAIN - 1) / GRAIN;
    if (g <= LINEAR) return g * GRAIN;
    unsigned sh = 63 - (unsigned)__builtin_clzll(g - 1) - 3;
    return ((((g - 1) >> sh) + 1) << sh) * GRAIN;
}

static void partial_add(struct slab *s, uint32_t p)
{
    struct slab_page *pg = &s->pages[p];
    pg->prev = 0;
    pg->next = s->partial[pg->cls];
    if (pg->next) s->pages[pg->next].prev = p;
    s->partial[pg->cls] = p;
}

static void partial_del(struct slab *s, uint32_t p)
{
    struct slab_page *pg = &s->pages[p];
    if (pg->prev) s->pages[pg->prev].next = pg->next;
    else s->partial[pg->cls] = pg->next;
    if (pg->next) s->pages[pg->next].prev = pg->prev;
}

static uint32_t page_new(struct lane *ln, uint32_t cls, size_t size)
{
    struct slab *s = &ln->slab;
    uint32_t p = s->pages_free;
    if (!p) {
        if (kvr_mem_grow(&ln->mem, (void **)&s->pages, &s->pages_cap, (size_t)s->pages_top + 2, sizeof *s->pages)) return 0;
        p = s->pages_top + 1;
    }
    size_t want = s->class_bytes[cls] / PAGE_SHARE;
    want = KVR_MIN(KVR_MAX(want, (size_t)PAGE_MIN), (size_t)PAGE_MAX);
    size_t objs = kvr__arena_round(KVR_MAX(want, size)) / size;
    char *mem = kvr__arena_get(ln, objs * size);
    if (!mem) return 0;
    if (p == s->pages_free) s->pages_free = s->pages[p].next;
    else s->pages_top = p;
    s->pages[p] = (struct slab_page){.mem = mem, .bytes = objs * size, .cls = cls, .objs = (uint32_t)objs};
    s->class_bytes[cls] += objs * size;
    partial_add(s, p);
    return p;
}

static void page_free(struct lane *ln, uint32_t p)
{
    struct slab *s = &ln->slab;
    struct slab_page *pg = &s->pages[p];
    s->class_bytes[pg->cls] -= pg->bytes;
    kvr__arena_put(ln, pg->mem, pg->bytes);
    *pg = (struct slab_page){.next = s->pages_free};
    s->pages_free = p;
}

/* The spare page becomes the partial one. */
static uint32_t spare_take(struct slab *s, uint32_t cls)
{
    uint32_t p = s->spare[cls];
    s->spare[cls] = 0;
    if (p) partial_add(s, p);
    return p;
}

void *kvr__slab_get(struct lane *ln, size_t bytes, uint32_t *page)
{
    struct slab *s = &ln->slab;
    uint32_t cls = class_of(bytes), p = s->partial[cls];
    KVR_ASSERT(cls < SLAB_CLASSES);
    if (!p) p = spare_take(s, cls);
    if (!p && !(p = page_new(ln, cls, bytes))) return NULL;
    struct slab_page *pg = &s->pages[p];
    uint32_t i = pg->free;
    if (i) memcpy(&pg->free, pg->mem + (i - 1) * bytes, sizeof pg->free);
    else i = ++pg->bump;
    if (pg->free) __builtin_prefetch(pg->mem + (pg->free - 1) * bytes, 1); /* for the next one */
    if (++pg->live == pg->objs) partial_del(s, p);
    *page = p;
    return pg->mem + (i - 1) * bytes;
}

void kvr__slab_put(struct lane *ln, void *ptr, uint32_t p)
{
    struct slab *s = &ln->slab;
    struct slab_page *pg = &s->pages[p];
    size_t size = pg->bytes / pg->objs;
    if (pg->live-- == pg->objs) partial_add(s, p);
    if (pg->live) {
        memcpy(ptr, &pg->free, sizeof pg->free);
        pg->free = (uint32_t)((size_t)((char *)ptr - pg->mem) / size) + 1;
        return;
    }
    uint32_t cls = pg->cls;
    partial_del(s, p);
    if (s->spare[cls] == 0 && s->class_bytes[cls] > 2 * pg->bytes) {
        pg->bump = pg->free = 0;
        s->spare[cls] = p;
        return;
    }
    page_free(ln, p);
    uint32_t spare = s->spare[cls];
    if (spare && s->class_bytes[cls] <= 2 * s->pages[spare].bytes) {
        s->spare[cls] = 0;
        page_free(ln, spare);
    }
}

void kvr__slab_destroy(struct lane *ln)
{
    struct slab *s = &ln->slab;
    for (uint32_t p = 1; p <= s->pages_top; p++)
        if (s->pages[p].mem) kvr__arena_put(ln, s->pages[p].mem, s->pages[p].bytes);
    kvr_mem_put(&ln->mem, s->pages, s->pages_cap * sizeof *s->pages);
    *s = (struct slab){0};
}
