/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries. A walk visits the runs along the prompt: it compares the run's local hashes with the query and looks up the
 * child at the place where the comparison ended. Then the holders of the visited runs are written, the deepest run
 * first: a rank's depth is the one in the deepest run that has it (R2), so a rank is written once and passed over
 * above.
 *
 * A hop costs two dependent cache misses (the child table's slot, the run), which several walks overlap: one walk
 * per lane and query goes on while the lines of the others are fetched.
 */
#include "index/internal.h"

enum { PREFETCH_LINES = 6, COVER_LINES = 8 };

/* A walk: one query in one lane. */
struct walk {
    const struct lane *ln;
    const uint64_t *q;
    uint32_t n, pos;
    uint32_t run, off, hash; /* the child looked for */
    uint32_t visits_n;
    bool over;
};

/* Where a query's overlaps go. */
struct sink {
    struct kvr_overlap *out;
    size_t cap, n;
    uint32_t *written, mark; /* by slot: already written for this walk */
};

/* A run was used now. Readers store at most once per run and tick. */
void kvr__match_touch(const struct lane *ln, struct run_ref *ref)
{
    uint32_t now = atomic_load_explicit(&ln->tick, RLX);
    if (atomic_load_explicit(&ref->stamp, RLX) != now) atomic_store_explicit(&ref->stamp, now, RLX);
}

/* Writes an entry of a run whose first m blocks are the query's from pos on, unless a deeper run had its rank. first: no deeper run was
 * looked at; last: no run above will be, so the rank needs no mark. Returns the new number of overlaps; what finds no room is counted only.
 */
INLINE size_t give(const struct lane *ln, const struct sink *k, size_t n, uint32_t entry, uint32_t pos, uint32_t m, bool first, bool last)
{
    uint32_t cut = entry & CUT_MASK, slot = entry >> CUT_BITS;
    if (!cut || (!first && k->written[slot] == k->mark)) return n;
    if (!last) k->written[slot] = k->mark;
    const struct slot *sl = kvr__slot(ln, slot);
    if (!atomic_load_explicit(&sl->live, ACQ)) return n;
    if (n < k->cap) k->out[n] = (struct kvr_overlap){{sl->worker_id, sl->dp_rank}, pos + KVR_MIN(cut, m)};
    return n + 1;
}

INLINE size_t give_cover(const struct lane *ln, const struct sink *k, size_t n, const struct cover *c, const struct visit *v, bool first,
                         bool last)
{
    uint32_t pos = v->pos, m = v->m;
    for (uint32_t i = 0, cap = c->cap; i < cap; i++) n = give(ln, k, n, atomic_load_explicit(&c->e[i], ACQ), pos, m, first, last);
    return n;
}

/* Writes the holders of a run. Inlined into the walk, its loops lack registers: 945 holders take 2.9 us instead of 2.2. */
static __attribute__((noinline)) void give_holders(const struct lane *ln, struct sink *sink, const struct visit *v, bool first, bool last)
{
    const struct sink k = *sink; /* a copy, which what is written cannot alias */
    uint64_t h = atomic_load_explicit(&v->run->hold, ACQ);
    const struct cover *c = h & 1 ? NULL : (const struct cover *)(uintptr_t)h;
    if (h & 1) sink->n = give(ln, &k, k.n, (uint32_t)(h >> 32), v->pos, v->m, first, last);
    else if (!c) return;
    else if (first && last) sink->n = give_cover(ln, &k, k.n, c, v, true, true);
    else if (last) sink->n = give_cover(ln, &k, k.n, c, v, false, true);
    else sink->n = give_cover(ln, &k, k.n, c, v, first, false);
}

static void walk_start(struct walk *w, const struct lane *ln, const uint64_t *q, size_t n)
{
    *w = (struct walk){.ln = ln, .q = q, .n = (uint32_t)KVR_MIN(n, (size_t)UINT32_MAX), .run = ROOT_RUN, .over = n == 0};
    if (n) w->hash = kvr__kid_hash(ln, ROOT_RUN, 0, q[0]);
}

/* Fetches the run that the child table proposes. */
static void fetch(const struct walk *w)
{
    uint32_t id = kvr__kid_peek(w->ln, w->hash);
    if (!id) return;
    const char *r = (const char *)kvr__run(w->ln, id);
    for (int i = 0; i < PREFETCH_LINES; i++) __builtin_prefetch(r + i * 64);
}

/* Goes to the child that the walk aims at: its first *m blocks are the query's. NULL: there is none. */
static struct run *hop(struct walk *w, uint32_t *m)
{
    struct run *r;
    uint32_t id = kvr__kid_find(w->ln, w->hash, w->run, w->off, w->q[w->pos], &r);
    YIELD_POINT();
    if (!id) return NULL;
    uint32_t len = kvr__len(r);
    *m = (uint32_t)w->ln->simd->common(r->a, w->q + w->pos, KVR_MIN(len, w->n - w->pos));
    if (*m == 0) return NULL; /* freed meanwhile */
    if (w->ln->stamps) kvr__match_touch(w->ln, kvr__ref(w->ln, id));
    w->pos += *m;
    w->run = id;
    w->off = *m;
    if (w->pos < w->n) w->hash = kvr__kid_hash(w->ln, id, *m, w->q[w->pos]);
    else w->over = true;
    return r;
}

static void fetch_cover(const struct run *r)
{
    const struct cover *c = kvr__cover(r);
    for (uint32_t i = 0; c && i < COVER_LINES; i++) __builtin_prefetch((const char *)c + i * 64ul);
}

/* Goes on to the end, logging the last `room` visits: visit i is log[i % room]. */
static void walk_on(struct walk *w, struct visit *log, uint32_t room)
{
    while (!w->over) {
        uint32_t pos = w->pos, m;
        fetch(w);
        const struct run *r = hop(w, &m);
        if (!r) break;
        log[w->visits_n++ % room] = (struct visit){r, pos, m};
        fetch_cover(r);
    }
    w->over = true;
}

/* Writes the holders along a finished walk, the deepest run first. When the log holds only the end of the walk, the
 * part before is walked again. */
static void give_all(struct walk *w, struct sink *k, struct visit *log, uint32_t room)
{
    for (bool first = true;; first = false) {
        uint32_t n = KVR_MIN(w->visits_n, room);
        bool all = n == w->visits_n;
        for (uint32_t i = 1; i <= n; i++) give_holders(w->ln, k, &log[(w->visits_n - i) % room], first && i == 1, all && i == n);
        if (all) return;
        walk_start(w, w->ln, w->q, log[w->visits_n % room].pos);
        walk_on(w, log, room);
    }
}

/* A new mark; the table of marks is wiped when they run out. */
uint32_t kvr__next_mark(struct kvr_index_reader *rd)
{
    if (++rd->mark == 0) {
        memset(rd->written, 0, rd->slots * sizeof *rd->written);
        rd->mark = 1;
    }
    return rd->mark;
}

/* Overlaps found so far, which may exceed what there is room for. */
static long give_walk(struct kvr_index_reader *rd, struct walk *w, const struct kvr_query *q, long total, struct visit *log, uint32_t room)
{
    struct sink k = {.out = q->out, .cap = q->cap, .n = (size_t)total, .written = rd->written, .mark = kvr__next_mark(rd)};
    give_all(w, &k, log, room);
    return (long)k.n;
}

/* ---- several walks at once ------------------------------------------------------------------------------ */

/* Walks side by side. */
static void walk_all(struct walk *w, struct visit (*log)[MATCH_VISITS], size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!w[i].over) kvr__kid_prefetch(w[i].ln, w[i].hash);
    for (size_t going = n; going;) {
        going = 0;
        for (size_t i = 0; i < n; i++)
            if (!w[i].over) fetch(&w[i]);
        for (size_t i = 0; i < n; i++) {
            uint32_t pos = w[i].pos, m;
            const struct run *r = w[i].over ? NULL : hop(&w[i], &m);
            if (!r) {
                w[i].over = true;
                continue;
            }
            log[i][w[i].visits_n++ % MATCH_VISITS] = (struct visit){r, pos, m};
            fetch_cover(r);
            if (w[i].over) continue;
            kvr__kid_prefetch(w[i].ln, w[i].hash);
            going++;
        }
    }
}

/* Queries queries[0..n) in every lane, MATCH_GROUP walks at a time. */
static void match_group(struct kvr_index_reader *rd, struct kvr_query *queries, size_t n)
{
    const struct kvr_index *ix = rd->index;
    struct walk w[MATCH_GROUP];
    for (size_t i = 0; i < n; i++) queries[i].found = 0;
    for (size_t done = 0, all = n * ix->lanes_n, g; done < all; done += g) {
        g = KVR_MIN(all - done, (size_t)MATCH_GROUP);
        for (size_t i = 0; i < g; i++) {
            const struct kvr_query *q = &queries[(done + i) / ix->lanes_n];
            walk_start(&w[i], &ix->lanes[(done + i) % ix->lanes_n], q->locals, q->n);
        }
        walk_all(w, rd->log, g);
        for (size_t i = 0; i < g; i++) {
            struct kvr_query *q = &queries[(done + i) / ix->lanes_n];
            q->found = give_walk(rd, &w[i], q, q->found, rd->log[i], MATCH_VISITS);
        }
    }
}

static long match_alone(struct kvr_index_reader *rd, const struct kvr_query *q)
{
    struct walk w;
    walk_start(&w, &rd->index->lanes[0], q->locals, q->n);
    walk_on(&w, rd->log[0], MATCH_GROUP * MATCH_VISITS);
    return give_walk(rd, &w, q, 0, rd->log[0], MATCH_GROUP * MATCH_VISITS);
}

/* ---- public --------------------------------------------------------------------------------------------- */

long kvr_index_match(struct kvr_index_reader *rd, const uint64_t *locals, size_t n, struct kvr_overlap *out, size_t cap)
{
    struct kvr_query q = {.locals = locals, .n = n, .out = out, .cap = cap};
    if (n == 0) return 0;
    kvr__reader_enter(rd);
    if (rd->index->lanes_n == 1) q.found = match_alone(rd, &q);
    else match_group(rd, &q, 1);
    kvr__reader_leave(rd);
    if ((size_t)q.found > cap) return -KVR_ELIMIT;
    if (atomic_load_explicit(&rd->index->windowed_n, ACQ)) q.found = (long)kvr__windows_cut(rd->index, locals, out, (size_t)q.found);
    return q.found;
}

void kvr_index_match_batch(struct kvr_index_reader *rd, struct kvr_query *queries, size_t n)
{
    for (size_t g; n; queries += g, n -= g) { /* a group per stay, so that reclamation goes on */
        g = KVR_MIN(n, (size_t)MATCH_GROUP);
        kvr__reader_enter(rd);
        match_group(rd, queries, g);
        kvr__reader_leave(rd);
        bool cut = atomic_load_explicit(&rd->index->windowed_n, ACQ) > 0;
        for (size_t i = 0; i < g; i++) {
            struct kvr_query *q = &queries[i];
            if ((size_t)q->found > q->cap) q->found = -KVR_ELIMIT;
            else if (cut) q->found = (long)kvr__windows_cut(rd->index, q->locals, q->out, (size_t)q->found);
        }
    }
}
