/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child table: (parent run, offset, first local hash) -> run. Readers use it without locks.
 *
 * Extendible hashing: a directory indexed by the top bits of a 32-bit hash leads to segments of 512 slots with
 * linear probing inside. A slot is one word, hash << 32 | id, so it changes at once. A full segment is replaced by
 * two copies (or one, when it was full of deleted slots), two sparse neighbours by one; a reader that still looks
 * at the old segment sees the table as it was then. The id only proposes a run: the run itself says whether it is
 * the one, so an equal hash never gives a wrong answer. The hash is seeded, so that nobody can prepare collisions.
 */
#include "index/internal.h"

enum { SEG_FULL = KID_SLOTS * 3 / 4, SEG_SPARSE = KID_SLOTS / 5, DEPTH_MAX = 26 };

uint32_t kvr__kid_hash(const struct lane *ln, uint32_t parent, uint32_t off, uint64_t local)
{
    uint64_t x = (local ^ ln->seed) * 0x9e3779b97f4a7c15ULL ^ ((uint64_t)parent << 32 | off) * 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    return (uint32_t)(x * 0xff51afd7ed558ccdULL >> 32);
}

static size_t seg_index(uint32_t depth, uint32_t hash)
{
    return depth ? hash >> (32 - depth) : 0;
}

static struct kid_seg *seg_of(const struct kid_dir *d, uint32_t hash)
{
    return atomic_load_explicit(&d->seg[seg_index(d->depth, hash)], ACQ);
}

static size_t dir_bytes(uint32_t depth)
{
    return sizeof(struct kid_dir) + sizeof(_Atomic(struct kid_seg *)) * ((size_t)1 << depth);
}

static struct kid_dir *dir_w(const struct lane *ln)
{
    return atomic_load_explicit(&ln->kids, RLX);
}

int kvr__kids_init(struct lane *ln)
{
    struct kid_dir *d = kvr_mem_zget(&ln->mem, dir_bytes(0));
    struct kid_seg *s = kvr_mem_zget(&ln->mem, sizeof *s);
    if (!d || !s) {
        kvr_mem_put(&ln->mem, d, d ? dir_bytes(0) : 0);
        kvr_mem_put(&ln->mem, s, s ? sizeof *s : 0);
        return -KVR_ENOMEM;
    }
    atomic_init(&d->seg[0], s);
    atomic_store_explicit(&ln->kids, d, REL);
    return 0;
}

void kvr__kids_destroy(struct lane *ln)
{
    struct kid_dir *d = dir_w(ln);
    if (!d) return;
    for (size_t i = 0, step; i < (size_t)1 << d->depth; i += step) {
        struct kid_seg *s = atomic_load_explicit(&d->seg[i], RLX);
        step = (size_t)1 << (d->depth - s->depth);
        kvr_mem_put(&ln->mem, s, sizeof *s);
    }
    kvr_mem_put(&ln->mem, d, dir_bytes(d->depth));
}

uint32_t kvr__kid_find(const struct lane *ln, uint32_t hash, uint32_t parent, uint32_t off, uint64_t local, struct run **out)
{
    const struct kid_seg *s = seg_of(atomic_load_explicit(&ln->kids, ACQ), hash);
    for (uint32_t n = 0, i = hash & (KID_SLOTS - 1); n < KID_SLOTS; n++, i = (i + 1) & (KID_SLOTS - 1)) {
        uint64_t v = atomic_load_explicit(&s->slot[i], ACQ);
        if (!v) break;
        if (v >> 32 != hash || v == KID_TOMB) continue;
        struct run *r = kvr__run(ln, (uint32_t)v);
        if (r->parent != parent || r->a[0] != local) continue;
        if (parent == FLOAT_RUN ? r->position != off : r->poff != off) continue;
        *out = r;
        return (uint32_t)v;
    }
    return 0;
}

uint32_t kvr__kid_peek(const struct lane *ln, uint32_t hash)
{
    const struct kid_seg *s = seg_of(atomic_load_explicit(&ln->kids, ACQ), hash);
    for (uint32_t n = 0, i = hash & (KID_SLOTS - 1); n < KID_SLOTS; n++, i = (i + 1) & (KID_SLOTS - 1)) {
        uint64_t v = atomic_load_explicit(&s->slot[i], ACQ);
        if (!v) break;
        if (v >> 32 == hash && v != KID_TOMB) return (uint32_t)v;
    }
    return 0;
}

void kvr__kid_prefetch(const struct lane *ln, uint32_t hash)
{
    const struct kid_seg *s = seg_of(atomic_load_explicit(&ln->kids, ACQ), hash);
    __builtin_prefetch(&s->slot[hash & (KID_SLOTS - 1)]);
}

/* ---- changing ------------------------------------------------------------------------------------------ */

static void seg_put(struct kid_seg *s, uint64_t v)
{
    uint32_t i = (uint32_t)(v >> 32) & (KID_SLOTS - 1);
    uint64_t old;
    while ((old = atomic_load_explicit(&s->slot[i], RLX)) && old != KID_TOMB) i = (i + 1) & (KID_SLOTS - 1);
    s->used += !old;
    s->live++;
    atomic_store_explicit(&s->slot[i], v, REL);
}

/* Copies the live slots of `from` whose hash bit below its depth is `bit` (all when depth stays) to `to`. */
static void seg_copy(struct kid_seg *to, const struct kid_seg *from)
{
    for (uint32_t i = 0; i < KID_SLOTS; i++) {
        uint64_t v = atomic_load_explicit(&from->slot[i], RLX);
        if (v && v != KID_TOMB) seg_put(to, v);
    }
}

static void dir_set(struct kid_dir *d, uint32_t depth, size_t prefix, struct kid_seg *s)
{
    size_t n = (size_t)1 << (d->depth - depth);
    s->depth = depth;
    for (size_t i = 0; i < n; i++) atomic_store_explicit(&d->seg[prefix * n + i], s, REL);
}

static int dir_double(struct lane *ln)
{
    struct kid_dir *d = dir_w(ln), *n = kvr_mem_get(&ln->mem, dir_bytes(d->depth + 1));
    if (!n) return -KVR_ENOMEM;
    n->depth = d->depth + 1;
    for (size_t i = 0; i < (size_t)2 << d->depth; i++) atomic_init(&n->seg[i], atomic_load_explicit(&d->seg[i / 2], RLX));
    atomic_store_explicit(&ln->kids, n, REL);
    kvr__retire_kid_dir(ln, d);
    return 0;
}

static int seg_rebuild(struct lane *ln, struct kid_seg *s, uint32_t hash)
{
    struct kid_seg *n = kvr_mem_zget(&ln->mem, sizeof *n);
    if (!n) return -KVR_ENOMEM;
    seg_copy(n, s);
    dir_set(dir_w(ln), s->depth, seg_index(s->depth, hash), n);
    kvr__retire_seg(ln, s);
    return 0;
}

static int seg_split(struct lane *ln, struct kid_seg *s, uint32_t hash)
{
    if (s->depth == DEPTH_MAX) return -KVR_ENOMEM;
    if (s->depth == dir_w(ln)->depth && dir_double(ln)) return -KVR_ENOMEM;
    struct kid_seg *half[2] = {kvr_mem_zget(&ln->mem, sizeof *s), NULL};
    if (half[0]) half[1] = kvr_mem_zget(&ln->mem, sizeof *s);
    if (!half[1]) {
        kvr_mem_put(&ln->mem, half[0], half[0] ? sizeof *s : 0);
        return -KVR_ENOMEM;
    }
    for (uint32_t i = 0; i < KID_SLOTS; i++) {
        uint64_t v = atomic_load_explicit(&s->slot[i], RLX);
        if (v && v != KID_TOMB) seg_put(half[v >> (63 - s->depth) & 1], v);
    }
    size_t prefix = seg_index(s->depth, hash);
    for (size_t i = 0; i < 2; i++) dir_set(dir_w(ln), s->depth + 1, prefix * 2 + i, half[i]);
    kvr__retire_seg(ln, s);
    return 0;
}

int kvr__kids_reserve(struct lane *ln, uint32_t hash)
{
    for (;;) {
        struct kid_seg *s = seg_of(dir_w(ln), hash);
        if (s->used < SEG_FULL) return 0;
        int rc = s->live < SEG_FULL / 2 ? seg_rebuild(ln, s, hash) : seg_split(ln, s, hash);
        if (rc) return rc;
    }
}

void kvr__kid_put(struct lane *ln, uint32_t hash, uint32_t id)
{
    seg_put(seg_of(dir_w(ln), hash), (uint64_t)hash << 32 | id);
}

static void seg_merge(struct lane *ln, struct kid_seg *s, uint32_t hash)
{
    struct kid_dir *d = dir_w(ln);
    size_t prefix = seg_index(s->depth, hash), n = (size_t)1 << (d->depth - s->depth);
    struct kid_seg *buddy = atomic_load_explicit(&d->seg[(prefix ^ 1) * n], RLX);
    if (buddy->depth != s->depth || s->live + buddy->live > SEG_SPARSE * 2) return;
    struct kid_seg *one = kvr_mem_zget(&ln->mem, sizeof *one);
    if (!one) return;
    seg_copy(one, s);
    seg_copy(one, buddy);
    dir_set(d, s->depth - 1, prefix / 2, one);
    kvr__retire_seg(ln, s);
    kvr__retire_seg(ln, buddy);
}

void kvr__kid_del(struct lane *ln, uint32_t hash, uint32_t id)
{
    struct kid_seg *s = seg_of(dir_w(ln), hash);
    uint64_t want = (uint64_t)hash << 32 | id;
    uint32_t i = hash & (KID_SLOTS - 1), n = 0;
    while (atomic_load_explicit(&s->slot[i], RLX) != want) {
        KVR_ASSERT(++n < KID_SLOTS);
        i = (i + 1) & (KID_SLOTS - 1);
    }
    bool last = atomic_load_explicit(&s->slot[(i + 1) & (KID_SLOTS - 1)], RLX) == 0;
    atomic_store_explicit(&s->slot[i], last ? 0 : KID_TOMB, REL);
    s->used -= last;
    s->live--;
    if (s->live < SEG_SPARSE && s->depth) seg_merge(ln, s, hash);
}
