/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The name table: from an engine's block hash to the run (or alias object) that holds the name. One for all ranks
 * of a lane, without keys: the run's own array of names is the key, so an entry costs 40 bits instead of 128.
 *
 *   m      30 bits of the name's mixed hash.       home bucket = m * nb >> 30  (rises with m)
 *   tag    the low 16 bits of m                    12 entries of (tag 16, id 24) bits in a bucket of one cache line
 *
 * The entries of a bucket are its first n: one more is appended, and where one goes the last takes its place. An entry
 * whose home is full goes to the other bucket of the pair (home ^ 1), and when that is full, too (in practice: one name
 * at dozens of places), to the spill lists, from which the pair's next removal takes it back. The home counts both in
 * `over` and marks their tags, so that nearly all searches read one line.
 *
 * Growing. With nb >= BIG, a pair's range of m is so narrow that only one value of m has a given tag: pair and tag
 * together give m back, and with it the home in a table of another size. The table grows by a half while it fills, by
 * an eighth when most of what comes replaces something, and shrinks when it is sparse; then, for every so many names
 * that come or go, the next group of old buckets moves, in order of m: what is below `moved_m` is in the new level. Chunks
 * are taken and given back as the move passes, so growing needs no second table. Below BIG the table is rebuilt from the
 * runs, which takes about half a millisecond.
 *
 * Writers only; readers never come here.
 */
#include "index/internal.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
    M_BITS = 30,
    TAG_BITS = 16,
    MIN_NB = 32,
    SMALL = 2048, /* from here the next size is BIG */
    BIG = 2 << (M_BITS - TAG_BITS),
    MOVE_GROUP = 64,
    MOVE_EVERY = 160, /* names that come or go between two groups, at most */
    SPILL_BITS = 12,
    SPILL_HEADS = 1 << SPILL_BITS,
    OVER_MAX = 127, /* counts no further */
    SPILLED = 128   /* in `over`: some are in the spill lists */
};
#define TAG_MASK     ((1u << TAG_BITS) - 1)
#define ALL_M        (UINT64_C(1) << M_BITS)
#define FULL(nb)     ((nb)*NAME_SLOTS * 78 / 100)
#define EMPTYISH(nb) ((nb)*NAME_SLOTS * 35 / 100)
_Static_assert(sizeof(struct name_bucket) == 64, "one cache line");

static inline uint32_t m_of(uint64_t seed, uint64_t name)
{
    return (uint32_t)((name ^ name >> 32 ^ seed) * 0x9e3779b97f4a7c15ULL >> (64 - M_BITS));
}

static inline uint64_t home(const struct name_level *l, uint32_t m)
{
    return (uint64_t)m * l->nb >> M_BITS;
}

static inline struct name_bucket *bucket(const struct name_level *l, uint64_t b)
{
    return l->chunk[b >> l->chunk_bits] + (b & ((UINT64_C(1) << l->chunk_bits) - 1));
}

/* The other bucket of the pair: a line and the next one, for chunks begin at multiples of two. */
static inline struct name_bucket *buddy(const struct name_bucket *k)
{
    return (struct name_bucket *)((uintptr_t)k ^ sizeof *k);
}

static inline const struct name_level *level_of(const struct name_table *t, uint32_t m)
{
    return __builtin_expect(m < t->moved_m, 1) ? &t->now : &t->old;
}

/* The home of m. */
static inline struct name_bucket *home_of(const struct name_table *t, uint32_t m)
{
    const struct name_level *l = level_of(t, m);
    return bucket(l, home(l, m));
}

/* ---- entries ------------------------------------------------------------------------------------------ */

static inline uint32_t entry_id(const struct name_bucket *k, unsigned i)
{
    return k->id_lo[i] | (uint32_t)k->id_hi[i] << 16;
}

static inline void entry_append(struct name_bucket *k, uint32_t tag, uint32_t id)
{
    unsigned n = k->n;
    k->tag[n] = (uint16_t)tag;
    k->id_lo[n] = (uint16_t)id;
    k->id_hi[n] = (uint8_t)(id >> 16);
    k->n = (uint8_t)(n + 1);
}

/* Entries with this tag, as a mask. */
static inline unsigned scan_tag(const struct name_bucket *k, uint32_t tag)
{
#if defined(__SSE2__)
    __m128i x = _mm_set1_epi16((short)tag);
    __m128i a = _mm_cmpeq_epi16(_mm_load_si128((const void *)k->tag), x);
    __m128i b = _mm_cmpeq_epi16(_mm_loadl_epi64((const void *)(k->tag + 8)), x);
    unsigned hits = (unsigned)_mm_movemask_epi8(_mm_packs_epi16(a, b));
#else
    unsigned hits = 0;
    for (unsigned i = 0; i < NAME_SLOTS; i++) hits |= (unsigned)(k->tag[i] == (uint16_t)tag) << i;
#endif
    return hits & ((1u << k->n) - 1);
}

static inline bool bucket_del(struct name_bucket *k, uint32_t tag, uint32_t id)
{
    for (unsigned hits = scan_tag(k, tag); hits; hits &= hits - 1) {
        unsigned i = (unsigned)__builtin_ctz(hits);
        if (entry_id(k, i) != id) continue;
        unsigned last = k->n - 1u;
        k->tag[i] = k->tag[last];
        k->id_lo[i] = k->id_lo[last];
        k->id_hi[i] = k->id_hi[last];
        k->n = (uint8_t)last;
        return true;
    }
    return false;
}

/* Entries of home k that are elsewhere are counted, and marked by four bits of their tags, so that few searches go on in vain.
 * The marks are wiped when the last one is gone; a home that once had OVER_MAX keeps them until it moves. */
static inline uint16_t mark_of(uint32_t tag)
{
    return (uint16_t)(1u << (tag >> 6 & 15));
}

static inline bool may_be_elsewhere(const struct name_bucket *k, uint32_t tag)
{
    return k->marks & mark_of(tag);
}

static void passed_add(struct name_bucket *k, uint32_t tag)
{
    if ((k->over & OVER_MAX) < OVER_MAX) k->over++;
    k->marks |= mark_of(tag);
}

static void passed_del(struct name_bucket *k)
{
    if ((k->over & OVER_MAX) == OVER_MAX || (--k->over & OVER_MAX)) return;
    k->over = 0;
    k->marks = 0;
}

/* ---- levels ------------------------------------------------------------------------------------------- */

static size_t chunk_bytes(const struct name_level *l)
{
    return sizeof(struct name_bucket) << l->chunk_bits;
}

/* The table of an index that has become empty: a piece of a large extent would keep all of that. */
static bool stays(const struct name_level *l)
{
    return l->nb <= MIN_NB;
}

static struct name_bucket *chunk_new(struct lane *ln, const struct name_level *l)
{
    void *c = stays(l) ? kvr__alone_get(ln, chunk_bytes(l)) : kvr__arena_get(ln, chunk_bytes(l));
    return c ? memset(c, 0, chunk_bytes(l)) : NULL;
}

static void chunk_free(struct lane *ln, struct name_level *l, size_t c)
{
    if (l->chunk[c] && stays(l)) kvr__alone_put(ln, l->chunk[c], chunk_bytes(l));
    else if (l->chunk[c]) kvr__arena_put(ln, l->chunk[c], chunk_bytes(l));
    l->chunk[c] = NULL;
}

static void level_free(struct lane *ln, struct name_level *l)
{
    for (size_t c = 0; c < l->chunks; c++) chunk_free(ln, l, c);
    kvr_mem_put(&ln->mem, l->chunk, l->chunks * sizeof *l->chunk);
    *l = (struct name_level){0};
}

/* Makes the chunks of buckets [b, last]. */
static int level_touch(struct lane *ln, struct name_level *l, uint64_t b, uint64_t last)
{
    for (uint64_t c = b >> l->chunk_bits; c <= last >> l->chunk_bits; c++)
        if (!l->chunk[c] && !(l->chunk[c] = chunk_new(ln, l))) return -KVR_ENOMEM;
    return 0;
}

/* A level without chunks yet. */
static int level_new(struct lane *ln, struct name_level *l, uint64_t nb)
{
    nb += nb & 1;
    *l = (struct name_level){.nb = nb, .chunk_bits = nb < BIG ? 8 : 12};
    l->chunks = ((nb - 1) >> l->chunk_bits) + 1;
    l->chunk = kvr_mem_zget(&ln->mem, l->chunks * sizeof *l->chunk);
    if (l->chunk) return 0;
    *l = (struct name_level){0};
    return -KVR_ENOMEM;
}

/* A level to work with. */
static int level_whole(struct lane *ln, struct name_level *l, uint64_t nb)
{
    if (level_new(ln, l, nb)) return -KVR_ENOMEM;
    if (level_touch(ln, l, 0, l->nb - 1) == 0) return 0;
    level_free(ln, l);
    return -KVR_ENOMEM;
}

/* ---- spill -------------------------------------------------------------------------------------------- */

static uint32_t *spill_at(const struct name_table *t, uint32_t m)
{
    return &t->spill_head[m >> (M_BITS - SPILL_BITS)];
}

/* Room for n more, so that spill_put cannot fail. */
static int spill_reserve(struct lane *ln, size_t n)
{
    struct name_table *t = &ln->names;
    if (!t->spill_head && !(t->spill_head = kvr_mem_zget(&ln->mem, SPILL_HEADS * sizeof *t->spill_head))) return -KVR_ENOMEM;
    return kvr_mem_grow(&ln->mem, (void **)&t->spill, &t->spill_cap, t->spill_top + n + 1, sizeof *t->spill);
}

static bool spill_has_room(const struct name_table *t)
{
    return t->spill_head && (t->spill_free || t->spill_top + 1 < t->spill_cap);
}

static void spill_put(struct name_table *t, uint32_t m, uint32_t id)
{
    uint32_t s = t->spill_free;
    if (s) t->spill_free = t->spill[s].next;
    else s = (uint32_t)++t->spill_top;
    t->spill[s] = (struct name_spill){m, id, *spill_at(t, m)};
    *spill_at(t, m) = s;
    t->spill_n++;
}

static void spill_destroy(struct lane *ln, struct name_table *t)
{
    kvr_mem_put(&ln->mem, t->spill, t->spill_cap * sizeof *t->spill);
    kvr_mem_put(&ln->mem, t->spill_head, t->spill_head ? SPILL_HEADS * sizeof *t->spill_head : 0);
    t->spill = NULL;
    t->spill_head = NULL;
    t->spill_cap = t->spill_n = t->spill_top = t->spill_free = 0;
}

static struct name_spill spill_take(struct name_table *t, uint32_t *at)
{
    uint32_t s = *at;
    struct name_spill e = t->spill[s];
    *at = e.next;
    t->spill[s].next = t->spill_free;
    t->spill_free = s;
    t->spill_n--;
    return e;
}

static bool spill_del(struct name_table *t, uint32_t m, uint32_t id)
{
    for (uint32_t *at = spill_at(t, m); *at; at = &t->spill[*at].next) {
        if (t->spill[*at].m != m || t->spill[*at].id != id) continue;
        (void)spill_take(t, at);
        return true;
    }
    return false;
}

/* Something of home k may be in the spill lists. */
static bool may_be_spilled(const struct name_table *t, const struct name_bucket *k)
{
    return k->over & SPILLED && t->spill_n;
}

/* ---- one entry ---------------------------------------------------------------------------------------- */

/* The home k is full: to its buddy or, with room reserved, to the spill. False: the spill needs room. */
static __attribute__((noinline)) bool put_elsewhere(struct name_table *t, struct name_bucket *k, uint32_t m, uint32_t id)
{
    uint32_t tag = m & TAG_MASK;
    if (buddy(k)->n < NAME_SLOTS) {
        entry_append(buddy(k), tag, id);
    } else {
        if (!spill_has_room(t)) return false;
        spill_put(t, m, id);
        k->over |= SPILLED;
    }
    passed_add(k, tag);
    return true;
}

static inline bool put(struct name_table *t, struct name_bucket *k, uint32_t m, uint32_t id)
{
    if (__builtin_expect(k->n == NAME_SLOTS, 0)) return put_elsewhere(t, k, m, id);
    entry_append(k, m & TAG_MASK, id);
    return true;
}

/* Some entry of home k that is elsewhere has this m. */
static __attribute__((noinline)) bool is_elsewhere(const struct name_table *t, const struct name_bucket *k, uint32_t m)
{
    if (scan_tag(buddy(k), m & TAG_MASK)) return true;
    for (uint32_t s = may_be_spilled(t, k) ? *spill_at(t, m) : 0; s; s = t->spill[s].next)
        if (t->spill[s].m == m) return true;
    return false;
}

/* As put, when it is certain at a glance that no other entry has this m. */
static inline bool claim(struct name_table *t, struct name_bucket *k, uint32_t m, uint32_t id)
{
    uint32_t tag = m & TAG_MASK;
    if (__builtin_expect(scan_tag(k, tag), 0)) return false;
    if (__builtin_expect(may_be_elsewhere(k, tag), 0) && is_elsewhere(t, k, m)) return false;
    return put(t, k, m, id);
}

/* Home k has room: one of its entries comes back from the spill. */
static void spill_return(struct name_table *t, struct name_bucket *k, uint32_t m)
{
    for (uint32_t *at = spill_at(t, m); *at; at = &t->spill[*at].next) {
        if (home_of(t, t->spill[*at].m) != k) continue;
        struct name_spill e = spill_take(t, at);
        entry_append(k, e.m & TAG_MASK, e.id);
        passed_del(k);
        return;
    }
}

/* What is spilled comes first: it alone is told apart by all of m in a small table. */
static __attribute__((noinline)) void del_elsewhere(struct name_table *t, struct name_bucket *k, uint32_t m, uint32_t id)
{
    bool spilled = may_be_spilled(t, k);
    if (!spilled || !spill_del(t, m, id)) {
        if (spilled && bucket_del(k, m & TAG_MASK, id)) {
            spill_return(t, k, m);
            return;
        }
        bool gone = bucket_del(buddy(k), m & TAG_MASK, id);
        KVR_ASSERT(gone);
    }
    passed_del(k);
}

static inline void del(struct name_table *t, struct name_bucket *k, uint32_t m, uint32_t id)
{
    if (__builtin_expect(may_be_spilled(t, k), 0) || __builtin_expect(!bucket_del(k, m & TAG_MASK, id), 0)) del_elsewhere(t, k, m, id);
}

/* ---- moving to another size ---------------------------------------------------------------------------- */

/* The smallest m whose home is bucket b. */
static uint64_t first_m(uint64_t nb, uint64_t b)
{
    return ((b << M_BITS) + nb - 1) / nb;
}

/* The entries of a bucket of a pair, whose smallest m is lo. The spill has room. */
static void move_bucket(struct name_table *t, const struct name_bucket *k, uint64_t lo)
{
    const struct name_level now = t->now;
    for (unsigned i = 0, n = k->n; i < n; i++) {
        uint64_t m = (lo & ~(uint64_t)TAG_MASK) | k->tag[i];
        if (m < lo) m += TAG_MASK + 1;
        (void)put(t, bucket(&now, home(&now, (uint32_t)m)), (uint32_t)m, entry_id(k, i));
    }
}

/* What was spilled of [from, to) finds its place in the new level, or is spilled again. */
static void move_spilled(struct name_table *t, uint64_t from, uint64_t to)
{
    for (uint64_t h = from >> (M_BITS - SPILL_BITS); t->spill_n && h <= (to - 1) >> (M_BITS - SPILL_BITS); h++) {
        uint32_t all = t->spill_head[h];
        t->spill_head[h] = 0;
        while (all) {
            struct name_spill e = spill_take(t, &all);
            if (e.m < from || e.m >= to) spill_put(t, e.m, e.id);
            else (void)put(t, bucket(&t->now, home(&t->now, e.m)), e.m, e.id);
        }
    }
}

static int move_group(struct lane *ln)
{
    struct name_table *t = &ln->names;
    uint64_t b = t->moved, end = KVR_MIN(b + MOVE_GROUP, t->old.nb);
    uint64_t from = t->moved_m, to = end == t->old.nb ? ALL_M : first_m(t->old.nb, end);
    if (level_touch(ln, &t->now, home(&t->now, (uint32_t)from), home(&t->now, (uint32_t)(to - 1)) | 1)) return -KVR_ENOMEM;
    if (spill_reserve(ln, MOVE_GROUP * NAME_SLOTS)) return -KVR_ENOMEM;
    for (; b < end; b += 2) {
        const struct name_bucket *k = bucket(&t->old, b);
        __builtin_prefetch(k + 8);
        __builtin_prefetch(k + 9);
        move_bucket(t, k, first_m(t->old.nb, b));
        move_bucket(t, k + 1, first_m(t->old.nb, b));
    }
    move_spilled(t, from, to);
    for (uint64_t c = t->moved >> t->old.chunk_bits; c < end >> t->old.chunk_bits; c++) chunk_free(ln, &t->old, c);
    t->moved = end;
    t->moved_m = to;
    if (end < t->old.nb) return 0;
    level_free(ln, &t->old);
    if (t->spill_n == 0) spill_destroy(ln, t);
    return 0;
}

static int move_all(struct lane *ln)
{
    int rc = 0;
    while (ln->names.old.nb && rc == 0) rc = move_group(ln);
    return rc;
}

/* n names came or went: moves a group for every move_every of them. */
static int move_some(struct lane *ln, size_t n)
{
    struct name_table *t = &ln->names;
    for (t->owed += n; t->old.nb && t->owed >= t->move_every; t->owed -= t->move_every) {
        int rc = move_group(ln);
        if (rc) return rc;
    }
    return 0;
}

static int put_new(struct lane *ln, uint64_t name, uint32_t id)
{
    struct name_table *t = &ln->names;
    uint32_t m = m_of(ln->seed, name);
    struct name_bucket *k = home_of(t, m);
    if (!put(t, k, m, id) && (spill_reserve(ln, 64) || !put(t, k, m, id))) return -KVR_ENOMEM;
    t->used++;
    t->puts++;
    return 0;
}

/* Puts every name of every run into a table of nb buckets. */
static int rebuild(struct lane *ln, uint64_t nb)
{
    struct name_table *t = &ln->names, was = *t;
    *t = (struct name_table){.moved_m = ALL_M};
    int rc = level_whole(ln, &t->now, nb);
    for (uint32_t id = IDS_RESERVED; id < ln->ids_top && rc == 0; id++) {
        struct run *r = kvr__run(ln, id);
        uint32_t len = r ? kvr__len(r) : 0;
        const uint64_t *names = r ? kvr__names_of(r) : NULL;
        for (uint32_t i = 0; i < len && rc == 0; i++) {
            if (i + NAMES_AHEAD < len) __builtin_prefetch(home_of(t, m_of(ln->seed, names[i + NAMES_AHEAD])), 1);
            rc = put_new(ln, names[i], id);
        }
    }
    struct name_table *drop = rc ? t : &was;
    level_free(ln, &drop->now);
    spill_destroy(ln, drop);
    if (rc) *t = was;
    return rc;
}

/* Begins to move to a table of nb buckets, fast enough to end before that one is full. */
static int resize(struct lane *ln, uint64_t nb)
{
    struct name_table *t = &ln->names;
    struct name_level fresh;
    if (level_new(ln, &fresh, nb)) return -KVR_ENOMEM;
    size_t groups = t->now.nb / MOVE_GROUP + 1, room = FULL(nb) - KVR_MIN(FULL(nb), t->used);
    t->old = t->now;
    t->now = fresh;
    t->moved = t->moved_m = 0;
    t->move_every = KVR_MIN(KVR_MAX(room / groups, (size_t)1), (size_t)MOVE_EVERY);
    t->owed = 0;
    return 0;
}

/* Where BIG is not to be had, its quarter may be. */
static int grow_small(struct lane *ln, size_t need)
{
    uint64_t nb = ln->names.now.nb;
    for (nb = nb < SMALL ? nb * 4 : BIG; FULL(nb) < need;) nb = nb < SMALL ? nb * 4 : KVR_MAX((uint64_t)BIG, nb + nb / 8);
    int rc = rebuild(ln, nb);
    return rc && nb == BIG && ln->names.now.nb <= SMALL && need <= FULL(BIG / 4) ? rebuild(ln, BIG / 4) : rc;
}

static int grow(struct lane *ln, size_t need)
{
    struct name_table *t = &ln->names;
    if (move_all(ln)) return -KVR_ENOMEM;
    bool filling = (t->used - KVR_MIN(t->used, t->used_then)) * 2 > t->puts;
    t->used_then = t->used;
    t->puts = 0;
    if (t->now.nb < BIG) return grow_small(ln, need);
    uint64_t nb = t->now.nb + t->now.nb / (filling ? 2 : 8);
    while (FULL(nb) < need) nb += nb / 8;
    return resize(ln, nb);
}

int kvr__names_reserve(struct lane *ln, size_t more)
{
    struct name_table *t = &ln->names;
    if (t->old.nb && move_some(ln, more)) return -KVR_ENOMEM;
    return t->used + more > FULL(t->now.nb) ? grow(ln, t->used + more) : 0;
}

/* n names went. An empty table starts again small; a sparse one moves to a smaller size. Neither may fail a removal. */
static void shrink(struct lane *ln, size_t n)
{
    struct name_table *t = &ln->names;
    if (t->used == 0 && t->now.nb > MIN_NB) {
        struct name_level fresh;
        if (level_whole(ln, &fresh, MIN_NB)) return;
        level_free(ln, &t->old);
        level_free(ln, &t->now);
        spill_destroy(ln, t);
        t->now = fresh;
        t->moved_m = ALL_M;
    } else if (t->old.nb) {
        (void)move_some(ln, n);
    } else if (t->now.nb > BIG && t->used < EMPTYISH(t->now.nb)) {
        (void)resize(ln, KVR_MAX((uint64_t)BIG, t->now.nb * 6 / 10));
    }
}

/* ---- the table ---------------------------------------------------------------------------------------- */

int kvr__names_init(struct lane *ln)
{
    ln->names.moved_m = ALL_M;
    return level_whole(ln, &ln->names.now, MIN_NB);
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
    return put_new(ln, name, id);
}

/* ---- many names --------------------------------------------------------------------------------------- */

/* What finding a bucket takes, copied out of the lane: what is written to buckets could alias it there, and every turn of a loop would
 * load it again. The loops are compiled twice, for a table that moves and for one that does not. */
struct level_copy {
    struct name_bucket *const *chunk;
    uint64_t nb, mask;
    unsigned bits;
};
struct table_copy {
    uint64_t seed, moved_m;
    struct level_copy level[2]; /* now, old */
};

INLINE struct level_copy copy_level(const struct name_level *l)
{
    return (struct level_copy){l->chunk, l->nb, (UINT64_C(1) << l->chunk_bits) - 1, l->chunk_bits};
}

INLINE struct table_copy copy_table(const struct lane *ln)
{
    return (struct table_copy){ln->seed, ln->names.moved_m, {copy_level(&ln->names.now), copy_level(&ln->names.old)}};
}

INLINE struct name_bucket *bucket_at(const struct table_copy *w, uint32_t m, bool moving)
{
    const struct level_copy *x = &w->level[moving & (m >= w->moved_m)]; /* no branch: nobody could predict it */
    uint64_t b = (uint64_t)m * x->nb >> M_BITS;
    return x->chunk[b >> x->bits] + (b & x->mask);
}

INLINE void fetch(const struct table_copy *w, uint64_t name, bool moving)
{
    __builtin_prefetch(bucket_at(w, m_of(w->seed, name), moving), 1);
}

INLINE size_t claim_each(struct lane *ln, const uint64_t *names, size_t n, uint32_t id, bool moving)
{
    const struct table_copy w = copy_table(ln);
    for (size_t i = 0; i < n; i++) {
        if (i + NAMES_AHEAD < n) fetch(&w, names[i + NAMES_AHEAD], moving);
        uint32_t m = m_of(w.seed, names[i]);
        if (!claim(&ln->names, bucket_at(&w, m, moving), m, id)) return i;
    }
    return n;
}

size_t kvr__names_claim(struct lane *ln, const uint64_t *names, size_t n, uint32_t id)
{
    struct name_table *t = &ln->names;
    size_t in = t->old.nb ? claim_each(ln, names, n, id, true) : claim_each(ln, names, n, id, false);
    t->used += in;
    t->puts += in;
    return in;
}

INLINE void del_each(struct lane *ln, const uint64_t *names, size_t n, uint32_t id, bool moving)
{
    const struct table_copy w = copy_table(ln);
    for (size_t i = 0; i < n; i++) {
        if (i + NAMES_AHEAD < n) fetch(&w, names[i + NAMES_AHEAD], moving);
        uint32_t m = m_of(w.seed, names[i]);
        del(&ln->names, bucket_at(&w, m, moving), m, id);
    }
}

void kvr__names_del(struct lane *ln, const uint64_t *names, size_t n, uint32_t id)
{
    struct name_table *t = &ln->names;
    if (n > NAMES_AHEAD) kvr__names_prefetch(ln, names, 1, NAMES_AHEAD); /* of fewer, whoever calls has */
    if (t->old.nb) del_each(ln, names, n, id, true);
    else del_each(ln, names, n, id, false);
    t->used -= n;
    shrink(ln, n);
}

INLINE void fetch_each(const struct lane *ln, const uint64_t *names, size_t step, size_t n, bool moving)
{
    const struct table_copy w = copy_table(ln);
    for (size_t i = 0; i < n; i++) fetch(&w, names[i * step], moving);
}

void kvr__names_prefetch(const struct lane *ln, const uint64_t *names, size_t step, size_t n)
{
    if (ln->names.old.nb) fetch_each(ln, names, step, n, true);
    else fetch_each(ln, names, step, n, false);
    __asm__("" ::: "memory"); /* a function that only fetches has no effect to the compiler: it drops calls where it sees the body */
}

/* ---- looking ------------------------------------------------------------------------------------------ */

static inline bool each_in(const struct name_bucket *k, uint32_t tag, name_visit *fn, void *ctx)
{
    for (unsigned hits = scan_tag(k, tag); hits; hits &= hits - 1)
        if (fn(ctx, entry_id(k, (unsigned)__builtin_ctz(hits)))) return true;
    return false;
}

bool kvr__names_each(const struct lane *ln, uint64_t name, name_visit *fn, void *ctx)
{
    const struct name_table *t = &ln->names;
    uint32_t m = m_of(ln->seed, name), tag = m & TAG_MASK;
    const struct name_bucket *k = home_of(t, m);
    if (each_in(k, tag, fn, ctx)) return true;
    if (!may_be_elsewhere(k, tag)) return false;
    if (each_in(buddy(k), tag, fn, ctx)) return true;
    for (uint32_t s = may_be_spilled(t, k) ? *spill_at(t, m) : 0; s; s = t->spill[s].next)
        if (t->spill[s].m == m && fn(ctx, t->spill[s].id)) return true;
    return false;
}

uint32_t kvr__names_first(const struct lane *ln, uint64_t name)
{
    const struct name_table *t = &ln->names;
    uint32_t m = m_of(ln->seed, name), tag = m & TAG_MASK;
    const struct name_bucket *k = home_of(t, m);
    unsigned hits = scan_tag(k, tag);
    if (!hits && may_be_elsewhere(k, tag)) hits = scan_tag(k = buddy(k), tag);
    return hits ? entry_id(k, (unsigned)__builtin_ctz(hits)) : 0;
}

static bool is_id(void *ctx, uint32_t id)
{
    return *(uint32_t *)ctx == id;
}

bool kvr__names_has(const struct lane *ln, uint64_t name, uint32_t id)
{
    return kvr__names_each(ln, name, is_id, &id);
}
