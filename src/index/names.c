/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The name table: from an engine's block hash to the run (or alias object) that holds the name. One for all ranks
 * of a lane, without keys: the run's own array of names is the key, so an entry costs 46 bits instead of 128.
 *
 *   m      30 bits of the name's mixed hash.       home bucket = m * nb >> 30  (rises with m)
 *   tag    the low 20 bits of m                    11 entries of (tag 20, id 25) bits in a 64-byte bucket
 *
 * An entry whose home is full goes to its other bucket, 1 to 32 further, which the tag chooses; `over` of the
 * home counts them, so that most searches read one line and none more than two. When both are full, an entry of the
 * home makes room by going to its own other bucket. What still finds no room (in practice: one name at dozens of
 * places) goes to the spill lists.
 *
 * Growing. With nb >= BIG, a bucket's range of m is so narrow that among NAME_REACH neighbouring buckets only
 * one value of m has a given tag: bucket and tag together give m back, and with it the home in a table of another
 * size. The table grows by a half while it fills, by an eighth when most of what comes replaces something, and
 * shrinks when it is sparse; then, for every MOVE_EVERY names that come or go, the next group of old buckets moves. Names
 * with an old home below `moved` are in the new level, the others in the old one. Chunks are taken and given back as the
 * move passes, so growing needs no second table. Below BIG the table is rebuilt from the runs, which takes about a millisecond.
 *
 * Writers only; readers never come here.
 */
#include "index/internal.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { M_BITS = 30, TAG_BITS = 20, FAR = 31, MIN_NB = 32, MOVE_GROUP = 64, MOVE_EVERY = 72 };
#define BIG          (((uint64_t)1 << (M_BITS - TAG_BITS)) * (NAME_REACH + 1))
#define SMALL        2048 /* from here the next size is BIG: a rebuild takes well under a millisecond */
#define TAG_MASK     ((1u << TAG_BITS) - 1)
#define FULL(nb)     ((nb)*NAME_SLOTS * ((nb) < BIG ? 70 : 82) / 100)
#define EMPTYISH(nb) ((nb)*NAME_SLOTS * 35 / 100)

static uint32_t m_of(const struct lane *ln, uint64_t name)
{
    return (uint32_t)((name ^ name >> 32 ^ ln->seed) * 0x9e3779b97f4a7c15ULL >> (64 - M_BITS));
}

static uint64_t home(const struct name_level *l, uint32_t m)
{
    return (uint64_t)m * l->nb >> M_BITS;
}

static uint64_t chunk_mask(const struct name_level *l)
{
    return (UINT64_C(1) << l->chunk_bits) - 1;
}

static size_t chunk_bytes(const struct name_level *l)
{
    return sizeof(struct name_bucket) << l->chunk_bits;
}

static struct name_bucket *bucket(const struct name_level *l, uint64_t b)
{
    struct name_bucket *c = l->chunk[b >> l->chunk_bits];
    return c ? c + (b & chunk_mask(l)) : NULL;
}

/* The same for a chunk that is there. */
static struct name_bucket *bucket_at(const struct name_level *l, uint64_t b)
{
    return l->chunk[b >> l->chunk_bits] + (b & chunk_mask(l));
}

/* The other bucket of an entry with home b. */
static uint64_t other(uint64_t b, uint32_t tag)
{
    return b + 1 + (tag & FAR);
}

/* ---- entries ------------------------------------------------------------------------------------------ */

static uint32_t entry_extra(const struct name_bucket *k, unsigned i)
{
    return k->extra >> (5 * i) & 31;
}

static uint32_t entry_id(const struct name_bucket *k, unsigned i)
{
    return k->id_lo[i] | (uint32_t)k->id_hi[i] << 16 | (entry_extra(k, i) & 1) << 24;
}

static uint32_t entry_tag(const struct name_bucket *k, unsigned i)
{
    return k->tag[i] | entry_extra(k, i) >> 1 << 16;
}

static void entry_write(struct name_bucket *k, unsigned i, uint32_t tag, uint32_t id)
{
    uint64_t x = (uint64_t)(id >> 24 | tag >> 16 << 1) << (5 * i);
    k->tag[i] = (uint16_t)tag;
    k->id_lo[i] = (uint16_t)id;
    k->id_hi[i] = (uint8_t)(id >> 16);
    k->extra = (k->extra & ~((uint64_t)31 << (5 * i))) | x;
}

/* Entries whose 16-bit field equals v in the bits of mask, as a mask. */
static inline unsigned scan16(const uint16_t *f, uint16_t mask, uint16_t v)
{
#if defined(__SSE2__)
    __m128i x = _mm_set1_epi16((short)v), y = _mm_set1_epi16((short)mask);
    __m128i a = _mm_cmpeq_epi16(_mm_and_si128(_mm_loadu_si128((const void *)f), y), x);
    __m128i b = _mm_cmpeq_epi16(_mm_and_si128(_mm_loadu_si128((const void *)(f + 3)), y), x);
    unsigned both = (unsigned)_mm_movemask_epi8(_mm_packs_epi16(a, b));
    return (both & 0xFF) | both >> 8 << 3;
#else
    unsigned m = 0;
    for (unsigned i = 0; i < NAME_SLOTS; i++) m |= (unsigned)((f[i] & mask) == v) << i;
    return m;
#endif
}
#define ALL_SLOTS ((1u << NAME_SLOTS) - 1)

/* Entries with this tag. */
static inline unsigned scan_tag(const struct name_bucket *k, uint32_t tag)
{
    unsigned hits = scan16(k->tag, UINT16_MAX, (uint16_t)tag), out = 0;
    for (; hits; hits &= hits - 1) {
        unsigned i = (unsigned)__builtin_ctz(hits);
        if (k->id_lo[i] && entry_tag(k, i) == tag) out |= 1u << i;
    }
    return out;
}

/* ---- levels ------------------------------------------------------------------------------------------- */

static int level_init(struct lane *ln, struct name_level *l, uint64_t nb)
{
    *l = (struct name_level){.nb = nb, .chunk_bits = nb < BIG ? 8 : 12};
    l->chunks = ((nb + NAME_TAIL - 1) >> l->chunk_bits) + 1;
    l->chunk = kvr_mem_zget(&ln->mem, l->chunks * sizeof *l->chunk);
    if (l->chunk) return 0;
    *l = (struct name_level){0};
    return -KVR_ENOMEM;
}

static void chunk_free(struct lane *ln, struct name_level *l, size_t c)
{
    kvr_mem_put(&ln->mem, l->chunk[c], chunk_bytes(l));
    l->chunk[c] = NULL;
}

static void level_free(struct lane *ln, struct name_level *l)
{
    for (size_t c = 0; c < l->chunks; c++)
        if (l->chunk[c]) chunk_free(ln, l, c);
    kvr_mem_put(&ln->mem, l->chunk, l->chunks * sizeof *l->chunk);
    *l = (struct name_level){0};
}

/* Makes the chunks that an entry with home b can be in. */
static int level_touch(struct lane *ln, struct name_level *l, uint64_t b)
{
    for (uint64_t c = b >> l->chunk_bits; c <= (b + NAME_REACH - 1) >> l->chunk_bits; c++)
        if (!l->chunk[c] && !(l->chunk[c] = kvr_mem_zget(&ln->mem, chunk_bytes(l)))) return -KVR_ENOMEM;
    return 0;
}

/* Entries of home k in their other buckets are counted, and marked by three bits of their tags in the top byte of
 * `extra`, so that few searches go there in vain. The marks are wiped when the last one is gone. */
static uint64_t passed_mark(uint32_t tag)
{
    return UINT64_C(1) << (56 + (tag >> 5 & 7));
}

static void passed_add(struct name_bucket *k, uint32_t tag)
{
    k->over++;
    k->extra |= passed_mark(tag);
}

static void passed_del(struct name_bucket *k)
{
    if (--k->over == 0) k->extra &= ~(UINT64_C(255) << 56);
}

static bool may_have_passed(const struct name_bucket *k, uint32_t tag)
{
    return k->extra & passed_mark(tag);
}

static unsigned free_slots(const struct name_bucket *k)
{
    return scan16(k->id_lo, UINT16_MAX, 0) & ALL_SLOTS;
}

/* The smallest m whose home is bucket b. */
static uint64_t first_m(uint64_t nb, uint64_t b)
{
    return ((b << M_BITS) + nb - 1) / nb;
}

/* The m of an entry with this tag whose home is bucket b, or false; lo is first_m(). Certain only with nb >= BIG. */
static bool m_with_home(uint64_t nb, uint64_t b, uint64_t lo, uint32_t tag, uint32_t *m)
{
    uint64_t c = (lo & ~(uint64_t)TAG_MASK) | tag;
    if (c < lo) c += TAG_MASK + 1;
    *m = (uint32_t)c;
    return c >> M_BITS == 0 && c * nb >> M_BITS == b;
}

/* Sends one entry of bucket b, its home, to its other bucket; its slot, or NAME_SLOTS when none can go. */
static unsigned make_room(struct name_level *l, uint64_t b)
{
    struct name_bucket *k = bucket_at(l, b);
    uint64_t lo = first_m(l->nb, b);
    uint32_t m;
    for (unsigned i = 0; i < NAME_SLOTS; i++) {
        uint32_t tag = entry_tag(k, i);
        struct name_bucket *to = bucket(l, other(b, tag));
        unsigned room = to ? free_slots(to) : 0;
        if (!room || !m_with_home(l->nb, b, lo, tag, &m)) continue;
        entry_write(to, (unsigned)__builtin_ctz(room), tag, entry_id(k, i));
        passed_add(k, tag);
        return i;
    }
    return NAME_SLOTS;
}

static bool level_put(struct name_level *l, uint32_t m, uint32_t id)
{
    uint64_t b = home(l, m);
    uint32_t tag = m & TAG_MASK;
    struct name_bucket *k = bucket_at(l, b), *k2;
    unsigned room = free_slots(k), slot;
    if (room) {
        entry_write(k, (unsigned)__builtin_ctz(room), tag, id);
        return true;
    }
    if (k->over == UINT8_MAX) return false;
    k2 = bucket_at(l, other(b, tag));
    room = free_slots(k2);
    if (room) {
        entry_write(k2, (unsigned)__builtin_ctz(room), tag, id);
        passed_add(k, tag);
        return true;
    }
    if (l->nb < BIG || (slot = make_room(l, b)) == NAME_SLOTS) return false;
    entry_write(k, slot, tag, id);
    return true;
}

static bool bucket_del(struct name_bucket *k, uint32_t tag, uint32_t id)
{
    for (unsigned hits = scan_tag(k, tag); hits; hits &= hits - 1) {
        unsigned s = (unsigned)__builtin_ctz(hits);
        if (entry_id(k, s) != id) continue;
        k->id_lo[s] = 0;
        return true;
    }
    return false;
}

static bool level_del(struct name_level *l, uint32_t m, uint32_t id)
{
    uint64_t b = home(l, m);
    uint32_t tag = m & TAG_MASK;
    struct name_bucket *k = bucket(l, b);
    if (!k) return false;
    if (bucket_del(k, tag, id)) return true;
    if (!may_have_passed(k, tag) || !bucket_del(bucket_at(l, other(b, tag)), tag, id)) return false;
    passed_del(k);
    return true;
}

/* ---- spill -------------------------------------------------------------------------------------------- */

static int spill_put(struct lane *ln, uint32_t m, uint32_t id)
{
    struct name_table *t = &ln->names;
    uint32_t s = t->spill_free;
    if (!t->spill_head && !(t->spill_head = kvr_mem_zget(&ln->mem, SPILL_HEADS * sizeof *t->spill_head))) return -KVR_ENOMEM;
    if (!s) {
        if (kvr_mem_grow(&ln->mem, (void **)&t->spill, &t->spill_cap, t->spill_top + 2, sizeof *t->spill)) return -KVR_ENOMEM;
        s = (uint32_t)++t->spill_top;
    } else {
        t->spill_free = t->spill[s].next;
    }
    t->spill[s] = (struct name_spill){m, id, t->spill_head[m % SPILL_HEADS]};
    t->spill_head[m % SPILL_HEADS] = s;
    t->spill_n++;
    return 0;
}

static void spill_destroy(struct lane *ln, struct name_table *t)
{
    kvr_mem_put(&ln->mem, t->spill, t->spill_cap * sizeof *t->spill);
    kvr_mem_put(&ln->mem, t->spill_head, t->spill_head ? SPILL_HEADS * sizeof *t->spill_head : 0);
    t->spill = NULL;
    t->spill_head = NULL;
    t->spill_cap = t->spill_n = t->spill_top = t->spill_free = 0;
}

static void spill_take(struct lane *ln, uint32_t *at)
{
    struct name_table *t = &ln->names;
    uint32_t s = *at;
    *at = t->spill[s].next;
    t->spill[s].next = t->spill_free;
    t->spill_free = s;
    if (--t->spill_n == 0) spill_destroy(ln, t);
}

static bool spill_del(struct lane *ln, uint32_t m, uint32_t id)
{
    struct name_table *t = &ln->names;
    if (!t->spill_n) return false;
    for (uint32_t *at = &t->spill_head[m % SPILL_HEADS]; *at; at = &t->spill[*at].next) {
        if (t->spill[*at].m != m || t->spill[*at].id != id) continue;
        spill_take(ln, at);
        return true;
    }
    return false;
}

/* After a move there is room again: what was spilled goes to its bucket if it can. */
static void spill_return(struct lane *ln)
{
    struct name_table *t = &ln->names;
    for (uint32_t h = 0; h < SPILL_HEADS && t->spill_n; h++)
        for (uint32_t *at = &t->spill_head[h]; *at;) {
            struct name_spill s = t->spill[*at];
            bool put = level_touch(ln, &t->now, home(&t->now, s.m)) == 0 && level_put(&t->now, s.m, s.id);
            if (!put) {
                at = &t->spill[*at].next;
                continue;
            }
            spill_take(ln, at);
            if (!t->spill_n) return;
        }
}

/* ---- moving to another size ---------------------------------------------------------------------------- */

static bool is_in_old(const struct name_table *t, uint32_t m)
{
    return t->old.nb && home(&t->old, m) >= t->moved;
}

static const struct name_level *level_of(const struct name_table *t, uint32_t m)
{
    return is_in_old(t, m) ? &t->old : &t->now;
}

/* A group of MOVE_GROUP home buckets moves at once. Its entries are in those buckets and the NAME_REACH - 1 after them,
 * where a tag stands for one m (see the top), so one look at each bucket gathers them. When they are in the new level,
 * the group counts as moved. What the old buckets still have of it is found by no search any more: a search that comes
 * there asks for an m with a later home, and so for another tag. */
struct group {
    struct name_spill got[(MOVE_GROUP + NAME_REACH) * NAME_SLOTS];
    unsigned n;
};

/* The homes [b, end) of the old level. */
static void gather(const struct name_level *old, struct group *g, uint64_t b, uint64_t end)
{
    uint64_t from = first_m(old->nb, b), to = first_m(old->nb, end);
    g->n = 0;
    for (uint64_t at = b; at < end + NAME_REACH - 1; at++) {
        const struct name_bucket *k = bucket(old, at);
        if (!k) continue;
        uint64_t lo = first_m(old->nb, at - KVR_MIN(at, (uint64_t)NAME_REACH - 1));
        for (unsigned full = ~free_slots(k) & ALL_SLOTS; full; full &= full - 1) {
            unsigned s = (unsigned)__builtin_ctz(full);
            uint64_t m = (lo & ~(uint64_t)TAG_MASK) | entry_tag(k, s);
            if (m < lo) m += TAG_MASK + 1;
            if (m >= from && m < to) g->got[g->n++] = (struct name_spill){.m = (uint32_t)m, .id = entry_id(k, s)};
        }
    }
}

/* Takes back the first n of what was put for a group that cannot be finished. */
static void group_undo(struct lane *ln, const struct group *g, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (!level_del(&ln->names.now, g->got[i].m, g->got[i].id)) (void)spill_del(ln, g->got[i].m, g->got[i].id);
}

static int move_group(struct lane *ln)
{
    struct name_table *t = &ln->names;
    struct group g;
    uint64_t b = t->moved, end = KVR_MIN(b + MOVE_GROUP, t->old.nb);
    uint64_t first = home(&t->now, (uint32_t)first_m(t->old.nb, b));
    uint64_t last = home(&t->now, (uint32_t)(first_m(t->old.nb, end) - 1));
    for (uint64_t c = first; c < last + NAME_REACH; c += NAME_REACH)
        if (level_touch(ln, &t->now, KVR_MIN(c, last))) return -KVR_ENOMEM;
    gather(&t->old, &g, b, end);
    for (unsigned i = 0; i < g.n; i++)
        if (!level_put(&t->now, g.got[i].m, g.got[i].id) && spill_put(ln, g.got[i].m, g.got[i].id)) {
            group_undo(ln, &g, i);
            return -KVR_ENOMEM;
        }
    t->moved = end;
    for (uint64_t c = b >> t->old.chunk_bits; c < end >> t->old.chunk_bits; c++)
        if (t->old.chunk[c]) chunk_free(ln, &t->old, c);
    if (end < t->old.nb) return 0;
    level_free(ln, &t->old);
    spill_return(ln);
    return 0;
}

static int move_all(struct lane *ln)
{
    int rc = 0;
    while (ln->names.old.nb && rc == 0) rc = move_group(ln);
    return rc;
}

/* n names came or went: moves a group for every MOVE_EVERY of them. */
static int move_some(struct lane *ln, size_t n)
{
    struct name_table *t = &ln->names;
    for (t->owed += n; t->old.nb && t->owed >= MOVE_EVERY; t->owed -= MOVE_EVERY) {
        int rc = move_group(ln);
        if (rc) return rc;
    }
    return 0;
}

/* Puts every name of every run into a table of nb buckets. */
static int rebuild(struct lane *ln, uint64_t nb)
{
    struct name_table *t = &ln->names, was = *t;
    *t = (struct name_table){0};
    int rc = level_init(ln, &t->now, nb);
    for (uint32_t id = IDS_RESERVED; id < ln->ids_top && rc == 0; id++) {
        struct run *r = kvr__run(ln, id);
        uint32_t len = r ? kvr__len(r) : 0;
        for (uint32_t i = 0; i < len && rc == 0; i++) rc = kvr__names_put(ln, kvr__names_of(r)[i], id);
    }
    struct name_table *drop = rc ? t : &was;
    level_free(ln, &drop->now);
    spill_destroy(ln, drop);
    if (rc) *t = was;
    return rc;
}

static int resize(struct lane *ln, uint64_t nb)
{
    struct name_table *t = &ln->names;
    struct name_level fresh;
    if (level_init(ln, &fresh, nb)) return -KVR_ENOMEM;
    t->old = t->now;
    t->now = fresh;
    t->moved = 0;
    t->owed = 0;
    return 0;
}

static int grow(struct lane *ln, size_t need)
{
    struct name_table *t = &ln->names;
    if (move_all(ln)) return -KVR_ENOMEM;
    bool filling = (t->used - KVR_MIN(t->used, t->used_then)) * 2 > t->puts;
    uint64_t nb = t->now.nb < SMALL ? t->now.nb * 4 : KVR_MAX(BIG, t->now.nb + t->now.nb / (filling ? 2 : 8));
    while (FULL(nb) < need) nb += nb / 8;
    t->used_then = t->used;
    t->puts = 0;
    return t->now.nb < BIG ? rebuild(ln, nb) : resize(ln, nb);
}

int kvr__names_reserve(struct lane *ln, size_t more)
{
    struct name_table *t = &ln->names;
    if (t->old.nb && move_some(ln, more)) return -KVR_ENOMEM;
    return t->used + more > FULL(t->now.nb) ? grow(ln, t->used + more) : 0;
}

/* ---- the table ---------------------------------------------------------------------------------------- */

int kvr__names_init(struct lane *ln)
{
    return level_init(ln, &ln->names.now, MIN_NB);
}

void kvr__names_destroy(struct lane *ln)
{
    struct name_table *t = &ln->names;
    level_free(ln, &t->now);
    level_free(ln, &t->old);
    spill_destroy(ln, t);
    *t = (struct name_table){0};
}

int kvr__names_put(struct lane *ln, uint64_t name, uint32_t id)
{
    struct name_table *t = &ln->names;
    uint32_t m = m_of(ln, name);
    struct name_level *l = is_in_old(t, m) ? &t->old : &t->now;
    if (level_touch(ln, l, home(l, m))) return -KVR_ENOMEM;
    if (!level_put(l, m, id) && spill_put(ln, m, id)) return -KVR_ENOMEM;
    t->used++;
    t->puts++;
    return 0;
}

int kvr__names_claim(struct lane *ln, uint64_t name, uint32_t id)
{
    struct name_table *t = &ln->names;
    uint32_t m = m_of(ln, name), tag = m & TAG_MASK;
    struct name_level *l = is_in_old(t, m) ? &t->old : &t->now;
    uint64_t b = home(l, m);
    struct name_bucket *k = bucket(l, b);
    if (!k || scan_tag(k, tag) || (t->spill_n && t->spill_head[m % SPILL_HEADS])) return 1;
    unsigned room = free_slots(k);
    if (may_have_passed(k, tag) && scan_tag(bucket_at(l, other(b, tag)), tag)) return 1;
    if (room) entry_write(k, (unsigned)__builtin_ctz(room), tag, id);
    else if (!bucket(l, b + NAME_REACH - 1) || !level_put(l, m, id)) return 1;
    t->used++;
    t->puts++;
    return 0;
}

/* An empty table starts again small; a sparse one moves to a smaller size. Neither may fail a removal. */
static void shrink(struct lane *ln)
{
    struct name_table *t = &ln->names;
    if (t->used == 0 && t->now.nb > MIN_NB) {
        struct name_level fresh;
        if (level_init(ln, &fresh, MIN_NB)) return;
        level_free(ln, &t->old);
        level_free(ln, &t->now);
        t->now = fresh;
    } else if (t->old.nb) {
        (void)move_some(ln, 1);
    } else if (t->now.nb > BIG && t->used < EMPTYISH(t->now.nb)) {
        (void)resize(ln, KVR_MAX(BIG, t->now.nb * 6 / 10));
    }
}

void kvr__names_del(struct lane *ln, uint64_t name, uint32_t id)
{
    struct name_table *t = &ln->names;
    uint32_t m = m_of(ln, name);
    bool gone = level_del(is_in_old(t, m) ? &t->old : &t->now, m, id) || spill_del(ln, m, id);
    KVR_ASSERT(gone);
    t->used--;
    shrink(ln);
}

void kvr__names_prefetch(const struct lane *ln, uint64_t name)
{
    uint32_t m = m_of(ln, name);
    const struct name_level *l = level_of(&ln->names, m);
    struct name_bucket *k = bucket(l, home(l, m));
    if (k) __builtin_prefetch(k, 1);
}

void kvr__names_prefetch_other(const struct lane *ln, uint64_t name)
{
    uint32_t m = m_of(ln, name);
    const struct name_level *l = level_of(&ln->names, m);
    uint64_t b = home(l, m);
    const struct name_bucket *k = bucket(l, b);
    if (k && may_have_passed(k, m & TAG_MASK)) __builtin_prefetch(bucket_at(l, other(b, m & TAG_MASK)), 1);
}

static inline bool each_in(const struct name_bucket *k, uint32_t tag, name_visit *fn, void *ctx)
{
    for (unsigned hits = scan_tag(k, tag); hits; hits &= hits - 1)
        if (fn(ctx, entry_id(k, (unsigned)__builtin_ctz(hits)))) return true;
    return false;
}

bool kvr__names_each(const struct lane *ln, uint64_t name, name_visit *fn, void *ctx)
{
    const struct name_table *t = &ln->names;
    uint32_t m = m_of(ln, name), tag = m & TAG_MASK;
    const struct name_level *l = level_of(t, m);
    uint64_t b = home(l, m);
    const struct name_bucket *k = bucket(l, b);
    if (k && each_in(k, tag, fn, ctx)) return true;
    if (k && may_have_passed(k, tag) && each_in(bucket_at(l, other(b, tag)), tag, fn, ctx)) return true;
    for (uint32_t s = t->spill_n ? t->spill_head[m % SPILL_HEADS] : 0; s; s = t->spill[s].next)
        if (t->spill[s].m == m && fn(ctx, t->spill[s].id)) return true;
    return false;
}

static bool take_id(void *ctx, uint32_t id)
{
    *(uint32_t *)ctx = id;
    return true;
}

uint32_t kvr__names_first(const struct lane *ln, uint64_t name)
{
    uint32_t id = 0;
    (void)kvr__names_each(ln, name, take_id, &id);
    return id;
}

static bool is_id(void *ctx, uint32_t id)
{
    return *(uint32_t *)ctx == id;
}

bool kvr__names_has(const struct lane *ln, uint64_t name, uint32_t id)
{
    return kvr__names_each(ln, name, is_id, &id);
}
