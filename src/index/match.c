/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries. A walk visits the runs along the prompt: it compares the run's local hashes with the query, notes for
 * every holder the depth it reaches there, and looks up the child at the place where the comparison ended. The
 * last run in which a rank is seen gives its depth (R2), so nothing is carried from run to run.
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

/* Depths by slot, and the slots that have one. */
struct tally {
    uint32_t *depth, *found;
    size_t n;
};

/* A run was used now. Readers store at most once per run and tick. */
void kvr__match_touch(const struct lane *ln, struct run_ref *ref)
{
    uint32_t now = atomic_load_explicit(&ln->tick, RLX);
    if (atomic_load_explicit(&ref->stamp, RLX) != now) atomic_store_explicit(&ref->stamp, now, RLX);
}

static inline void note(struct tally *t, uint32_t entry, uint32_t pos, uint32_t m)
{
    uint32_t cut = entry & CUT_MASK, slot = entry >> CUT_BITS;
    if (!cut) return;
    t->found[t->n] = slot;
    t->n += t->depth[slot] == 0;
    t->depth[slot] = pos + KVR_MIN(cut, m);
}

static void note_holders(struct tally *t, const struct run *r, uint32_t pos, uint32_t m)
{
    uint64_t h = atomic_load_explicit(&r->hold, ACQ);
    if (h & 1) {
        note(t, (uint32_t)(h >> 32), pos, m);
    } else if (h) {
        const struct cover *c = (const struct cover *)(uintptr_t)h;
        for (uint32_t i = 0; i < c->cap; i++) note(t, atomic_load_explicit(&c->e[i], ACQ), pos, m);
    }
}

static void walk_start(struct walk *w, const struct lane *ln, const uint64_t *q, size_t n)
{
    *w = (struct walk){.ln = ln, .q = q, .n = (uint32_t)n, .run = ROOT_RUN, .over = n == 0};
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

/* Turns a lane's tally into overlaps behind those of the lanes before; leaves all depths zero. */
static long settle(const struct lane *ln, struct tally *t, struct kvr_overlap *out, size_t cap, long total)
{
    size_t n = total < 0 ? cap : (size_t)total;
    bool full = total < 0;
    for (size_t i = 0; i < t->n; i++) {
        uint32_t s = t->found[i], depth = t->depth[s];
        t->depth[s] = 0;
        const struct slot *sl = kvr__slot(ln, s);
        if (!atomic_load_explicit(&sl->live, ACQ)) continue;
        if (n == cap) full = true;
        else out[n++] = (struct kvr_overlap){{sl->worker_id, sl->dp_rank}, depth};
    }
    t->n = 0;
    return full ? -KVR_ELIMIT : (long)n;
}

static long match_lane(struct kvr_index_reader *rd, const struct lane *ln, const struct kvr_query *q, long total)
{
    struct tally t = {rd->depth, rd->found, 0};
    struct walk w;
    walk_start(&w, ln, q->locals, q->n);
    while (!w.over) {
        uint32_t pos = w.pos, m;
        fetch(&w);
        const struct run *r = hop(&w, &m);
        if (!r) break;
        note_holders(&t, r, pos, m);
    }
    return settle(ln, &t, q->out, q->cap, total);
}

/* ---- several walks at once ------------------------------------------------------------------------------ */

static void fetch_cover(const struct run *r)
{
    const struct cover *c = kvr__cover(r);
    for (uint32_t i = 0; c && i < COVER_LINES; i++) __builtin_prefetch((const char *)c + i * 64ul);
}

/* Walks side by side and logs what they visit. */
static void walk_all(struct walk *w, struct visit (*log)[MATCH_VISITS], size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!w[i].over) kvr__kid_prefetch(w[i].ln, w[i].hash);
    for (size_t i = 0; i < n; i++)
        if (!w[i].over) fetch(&w[i]);
    for (size_t going = n; going;) {
        going = 0;
        for (size_t i = 0; i < n; i++) {
            uint32_t pos = w[i].pos, m;
            const struct run *r = w[i].over || w[i].visits_n > MATCH_VISITS ? NULL : hop(&w[i], &m);
            if (!r) {
                w[i].over = true;
                continue;
            }
            if (w[i].visits_n < MATCH_VISITS) log[i][w[i].visits_n] = (struct visit){r, pos, m};
            w[i].visits_n++;
            fetch_cover(r);
            if (w[i].over) continue;
            kvr__kid_prefetch(w[i].ln, w[i].hash);
            going++;
        }
        for (size_t i = 0; going && i < n; i++)
            if (!w[i].over) fetch(&w[i]);
    }
}

/* Queries queries[0..n) in every lane, MATCH_GROUP walks at a time. Holders are read in a second pass, from the
 * top down as R2 wants it; a walk with more runs than the log holds is done again alone. */
static void match_group(struct kvr_index_reader *rd, struct kvr_query *queries, size_t n)
{
    const struct kvr_index *ix = rd->index;
    struct tally t = {rd->depth, rd->found, 0};
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
            if (w[i].visits_n > MATCH_VISITS) {
                q->found = match_lane(rd, w[i].ln, q, q->found);
                continue;
            }
            for (uint32_t v = 0; v < w[i].visits_n; v++) note_holders(&t, rd->log[i][v].run, rd->log[i][v].pos, rd->log[i][v].m);
            q->found = settle(w[i].ln, &t, q->out, q->cap, q->found);
        }
    }
}

/* ---- public --------------------------------------------------------------------------------------------- */

long kvr_index_match(struct kvr_index_reader *rd, const uint64_t *locals, size_t n, struct kvr_overlap *out, size_t cap)
{
    struct kvr_query q = {.locals = locals, .n = KVR_MIN(n, (size_t)UINT32_MAX), .out = out, .cap = cap};
    if (n == 0) return 0;
    kvr__reader_enter(rd);
    if (rd->index->lanes_n == 1) q.found = match_lane(rd, &rd->index->lanes[0], &q, 0);
    else match_group(rd, &q, 1);
    kvr__reader_leave(rd);
    return q.found;
}

void kvr_index_match_batch(struct kvr_index_reader *rd, struct kvr_query *queries, size_t n)
{
    for (size_t g; n; queries += g, n -= g) { /* a group per stay, so that reclamation goes on */
        g = KVR_MIN(n, (size_t)MATCH_GROUP);
        kvr__reader_enter(rd);
        match_group(rd, queries, g);
        kvr__reader_leave(rd);
    }
}
