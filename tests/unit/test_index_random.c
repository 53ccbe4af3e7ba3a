/* SPDX-License-Identifier: Apache-2.0 */
/* The index against a naive model under random operations, in every mode and several mixes, and readers beside a
 * writer. KVR_SEED sets the seed, KVR_OPS the number of operations. */
#include "test.h"

#include <pthread.h>
#include <stdio.h>
#include <kvroute/hash.h>
#include <kvroute/index.h>

enum { WORKERS = 3, RANKS = 2, N_RANKS = WORKERS * RANKS, NAMES = 48, LOCALS = 4, DEPTH = 10, FLOATS = 2 };

/* A block is its path: which root (0 = block 0, else a start position) and the locals down to it. */
struct path {
    uint8_t root, depth, step[DEPTH];
};

static bool batched; /* events go through kvr_index_apply_batch, queries through kvr_index_match_batch */

static int apply(struct kvr_index *ix, const struct kvr_event *ev)
{
    int rc = 1;
    if (!batched) return kvr_index_apply(ix, ev);
    size_t bad = kvr_index_apply_batch(ix, ev, 1, &rc);
    assert_int_equal(bad, rc != 0);
    return rc;
}

static long match(struct kvr_index_reader *rd, const uint64_t *q, size_t n, struct kvr_overlap *out, size_t cap)
{
    if (!batched) return kvr_index_match(rd, q, n, out, cap);
    struct kvr_overlap other[16];
    struct kvr_query two[2] = {{.locals = q, .n = n, .out = out, .cap = cap}, {.locals = q, .n = n / 2, .out = other, .cap = 16}};
    kvr_index_match_batch(rd, two, 2);
    return two[0].found;
}

struct model {
    struct path at[N_RANKS][NAMES]; /* depth 0 = name not known */
};

static struct kvr_worker worker_of(int r)
{
    return (struct kvr_worker){(uint64_t)(r / RANKS) + 100, (uint32_t)(r % RANKS)};
}

static bool same(const struct path *a, const struct path *b)
{
    return a->root == b->root && a->depth == b->depth && memcmp(a->step, b->step, a->depth) == 0;
}

static bool below_or_same(const struct path *p, const struct path *top)
{
    return p->root == top->root && p->depth >= top->depth && memcmp(p->step, top->step, top->depth) == 0;
}

static int names_of(const struct model *m, int r, const struct path *p)
{
    int n = 0;
    for (int i = 1; i < NAMES; i++) n += m->at[r][i].depth && same(&m->at[r][i], p);
    return n;
}

static void model_remove(struct model *m, int r, int name)
{
    struct path p = m->at[r][name];
    if (names_of(m, r, &p) > 1) {
        m->at[r][name].depth = 0;
        return;
    }
    for (int i = 1; i < NAMES; i++)
        if (m->at[r][i].depth && below_or_same(&m->at[r][i], &p)) m->at[r][i].depth = 0;
}

static int model_store(struct model *m, int r, int parent, int root, const int *names, const int *locals, int n)
{
    struct path cur = {.root = (uint8_t)root};
    if (parent) {
        for (int i = 0; i < n; i++)
            if (names[i] == parent) return -KVR_ESEQUENCE;
        if (!m->at[r][parent].depth) return -KVR_EPARENT;
        cur = m->at[r][parent];
    }
    for (int i = 0; i < n; i++) {
        struct path next = cur;
        next.step[next.depth++] = (uint8_t)locals[i];
        struct path *old = &m->at[r][names[i]];
        if (old->depth && !same(old, &next)) {
            if (names_of(m, r, old) == 1 && cur.depth && below_or_same(&cur, old)) return -KVR_ESEQUENCE;
            model_remove(m, r, names[i]);
        }
        *old = next;
        cur = next;
    }
    return 0;
}

static uint32_t model_depth(const struct model *m, int r, const uint64_t *q, int n)
{
    struct path p = {0};
    for (int i = 0; i < n; i++) {
        p.step[p.depth++] = (uint8_t)q[i];
        if (!names_of(m, r, &p)) return (uint32_t)i;
    }
    return (uint32_t)n;
}

static void check_query(struct kvr_index_reader *rd, const struct model *m, struct kvr_rng *rng)
{
    uint64_t q[DEPTH];
    struct kvr_overlap out[N_RANKS];
    int n = 1 + (int)kvr_rng_below(rng, DEPTH), expected = 0;
    for (int i = 0; i < n; i++) q[i] = 1 + kvr_rng_below(rng, LOCALS);
    long k = match(rd, q, (size_t)n, out, N_RANKS);
    assert_true(k >= 0);
    for (int r = 0; r < N_RANKS; r++) {
        uint32_t want = model_depth(m, r, q, n), got = 0;
        for (long i = 0; i < k; i++)
            if (kvr_worker_cmp(out[i].worker, worker_of(r)) == 0) got = out[i].depth;
        assert_int_equal(got, want);
        expected += want > 0;
    }
    assert_int_equal(k, expected);
}

static void random_store(struct kvr_index *ix, struct model *m, struct kvr_rng *rng)
{
    int r = (int)kvr_rng_below(rng, N_RANKS), n = 1 + (int)kvr_rng_below(rng, 4);
    int parent = kvr_rng_below(rng, 4) ? (int)kvr_rng_below(rng, NAMES) : 0;
    int root = !parent && kvr_rng_below(rng, 8) == 0 ? 1 + (int)kvr_rng_below(rng, FLOATS) : 0;
    int room = DEPTH - (parent ? m->at[r][parent].depth : 0);
    n = KVR_MIN(n, room);
    if (n == 0) return;
    int names[4], locals[4];
    struct kvr_block b[4];
    for (int i = 0; i < n; i++) {
        names[i] = 1 + (int)kvr_rng_below(rng, NAMES - 1);
        locals[i] = 1 + (int)kvr_rng_below(rng, LOCALS);
        b[i] = (struct kvr_block){(uint64_t)names[i], (uint64_t)locals[i]};
    }
    struct kvr_event ev = {.worker = worker_of(r),
                           .kind = KVR_EVENT_STORED,
                           .has_parent = parent != 0,
                           .parent_hash = (uint64_t)parent,
                           .has_start_position = root != 0,
                           .start_position = (uint32_t)root,
                           .blocks = b,
                           .blocks_n = (size_t)n};
    int want = model_store(m, r, parent, root, names, locals, n);
    assert_int_equal(apply(ix, &ev), want);
}

static void random_remove(struct kvr_index *ix, struct model *m, struct kvr_rng *rng)
{
    int r = (int)kvr_rng_below(rng, N_RANKS), n = 1 + (int)kvr_rng_below(rng, 3), want = 0;
    uint64_t names[3];
    for (int i = 0; i < n; i++) {
        names[i] = 1 + kvr_rng_below(rng, NAMES - 1);
        if (!m->at[r][names[i]].depth) want = -KVR_ENOTFOUND;
    }
    for (int i = 0; i < n; i++)
        if (m->at[r][names[i]].depth) model_remove(m, r, (int)names[i]);
    struct kvr_event ev = {.worker = worker_of(r), .kind = KVR_EVENT_REMOVED, .removed = names, .removed_n = (size_t)n};
    assert_int_equal(apply(ix, &ev), want);
}

static void random_rare(struct kvr_index *ix, struct model *m, struct kvr_rng *rng)
{
    int r = (int)kvr_rng_below(rng, N_RANKS);
    if (kvr_rng_below(rng, 2)) {
        struct kvr_event ev = {.worker = worker_of(r), .kind = KVR_EVENT_CLEARED};
        assert_int_equal(apply(ix, &ev), 0);
        memset(m->at[r], 0, sizeof m->at[r]);
    } else if (kvr_rng_below(rng, 2)) {
        if (kvr_rng_below(rng, 2)) kvr_index_remove_rank(ix, worker_of(r));
        else kvr_index_drop_rank(ix, worker_of(r)); /* what follows gives it back */
        memset(m->at[r], 0, sizeof m->at[r]);
    } else {
        kvr_index_remove_worker(ix, worker_of(r).worker_id);
        for (int i = 0; i < N_RANKS; i++)
            if (worker_of(i).worker_id == worker_of(r).worker_id) memset(m->at[i], 0, sizeof m->at[i]);
    }
}

static int replay(void *ctx, const struct kvr_event *ev)
{
    return kvr_index_apply(ctx, ev);
}

/* A dump, applied to an empty index, answers like the model. */
static void check_dump(struct kvr_index *ix, const struct model *m, struct kvr_rng *rng, bool one_lane)
{
    struct kvr_index *copy;
    struct kvr_index_reader *rd;
    struct kvr_index_stats a, b;
    const char *why = NULL;
    if (!kvr_index_validate(ix, &why)) fail_msg("%s", why);
    assert_int_equal(kvr_index_create(NULL, &copy), 0);
    assert_int_equal(kvr_index_reader_create(copy, &rd), 0);
    assert_int_equal(kvr_index_dump(ix, NULL, replay, copy), 0);
    (void)kvr_index_tend(ix, SIZE_MAX);
    kvr_index_stats(ix, &a);
    kvr_index_stats(copy, &b);
    assert_int_equal(a.blocks, b.blocks);
    assert_int_equal(a.aliases, b.aliases);
    if (one_lane) assert_int_equal(a.nodes, b.nodes); /* lanes share no blocks */
    for (int i = 0; i < 50; i++) check_query(rd, m, rng);
    kvr_index_destroy(copy);
}

static void run_seed(uint64_t seed, uint64_t ops, const struct kvr_index_config *config)
{
    struct kvr_rng rng = {seed};
    struct model *m = calloc(1, sizeof *m);
    struct kvr_index *ix;
    struct kvr_index_reader *rd;
    print_message("seed %llu, %llu operations, %u lanes%s%s\n", (unsigned long long)seed, (unsigned long long)ops,
                  config->lanes ? config->lanes : 1, config->portable ? ", portable" : "", batched ? ", batched" : "");
    assert_int_equal(kvr_index_create(config, &ix), 0);
    assert_int_equal(kvr_index_reader_create(ix, &rd), 0);
    for (uint64_t i = 0; i < ops; i++) {
        uint32_t what = kvr_rng_below(&rng, 1000);
        if (what < 400) random_store(ix, m, &rng);
        else if (what < 600) random_remove(ix, m, &rng);
        else if (what < 602) random_rare(ix, m, &rng);
        else check_query(rd, m, &rng);
        if (i % (ops / 8 + 1) == 0) check_dump(ix, m, &rng, config->lanes < 2);
    }
    check_dump(ix, m, &rng, config->lanes < 2);
    kvr_index_destroy(ix);
    free(m);
}

static void random_operations_equal_the_model(void **)
{
    uint64_t seed = env_u64("KVR_SEED", 1), ops = env_u64("KVR_OPS", 600000);
    const struct kvr_index_config modes[] = {{0}, {.portable = true}, {.lanes = 3}, {.evictable = true, .lanes = 2, .portable = true}};
    for (uint64_t i = 0; i < 8; i++) {
        batched = i >= 4;
        run_seed(seed + i, ops / 2, &modes[i % 4]);
    }
    batched = false;
}

/* ---- predicted mode ---------------------------------------------------------------------------------- */

enum { SLOTS = 2048 };

struct prediction {
    struct path p;
    int rank;
    uint64_t expiry;
};

static struct prediction *prediction_of(struct prediction *t, size_t *n, int rank, const struct path *p)
{
    for (size_t i = 0; i < *n; i++)
        if (t[i].rank == rank && same(&t[i].p, p)) return &t[i];
    t[*n] = (struct prediction){*p, rank, 0};
    return &t[(*n)++];
}

static void predictions_equal_the_model(void **s)
{
    (void)s;
    struct prediction *t = calloc(SLOTS, sizeof *t);
    size_t n = 0;
    uint64_t now = 1, q[6], seq[6], ops = env_u64("KVR_OPS", 300000) / 10;
    struct kvr_rng rng = {env_u64("KVR_SEED", 1)};
    struct kvr_clock clock = {manual_now, &now};
    struct kvr_index_config c = {.clock = &clock, .ttl_ns = 40};
    struct kvr_index *ix;
    struct kvr_index_reader *rd;
    assert_int_equal(kvr_index_create(&c, &ix), 0);
    assert_int_equal(kvr_index_reader_create(ix, &rd), 0);
    for (uint64_t op = 0; op < ops; op++) {
        int len = 1 + (int)kvr_rng_below(&rng, 6), r = (int)kvr_rng_below(&rng, 3);
        for (int i = 0; i < len; i++) q[i] = 1 + kvr_rng_below(&rng, 2);
        now += kvr_rng_below(&rng, 4);
        if (kvr_rng_below(&rng, 3) == 0) {
            kvr_hash_sequence(q, (size_t)len, seq);
            assert_int_equal(kvr_index_record(ix, worker_of(r), q, (size_t)len, seq, (size_t)len), 0);
            struct path p = {0};
            for (int i = 0; i < len; i++) {
                p.step[p.depth++] = (uint8_t)q[i];
                prediction_of(t, &n, r, &p)->expiry = now + 40;
            }
        }
        size_t gone = 0;
        for (size_t i = 0; i < n;) {
            if (t[i].expiry <= now) t[i] = t[--n], gone++;
            else i++;
        }
        assert_int_equal(kvr_index_expire(ix), gone);
        struct kvr_overlap out[8];
        long k = kvr_index_match(rd, q, (size_t)len, out, 8);
        for (int w = 0; w < 3; w++) {
            struct path p = {0};
            uint32_t want = 0, got = 0;
            for (int i = 0; i < len; i++) {
                p.step[p.depth++] = (uint8_t)q[i];
                size_t before = n;
                struct prediction *e = prediction_of(t, &n, w, &p);
                bool held = e->expiry > 0;
                n = before;
                if (!held) break;
                want++;
            }
            for (long i = 0; i < k; i++)
                if (kvr_worker_cmp(out[i].worker, worker_of(w)) == 0) got = out[i].depth;
            assert_int_equal(got, want);
        }
    }
    const char *why = NULL;
    if (!kvr_index_validate(ix, &why)) fail_msg("%s", why);
    kvr_index_destroy(ix);
    free(t);
}

/* ---- readers beside a writer ------------------------------------------------------------------------- */

enum { CHAIN = 64, KEPT = 20, READERS = 3 };

struct shared {
    struct kvr_index *ix;
    uint64_t q[CHAIN];
    _Atomic bool stop;
    _Atomic uint32_t grown; /* worker 1 holds at least this much */
    _Atomic uint64_t reads;
};

/* Worker 1 only grows; worker 2 always keeps its first KEPT blocks; worker 3 comes and goes; depths in between
 * must respect that, whatever the moment. */
static void *reader_main(void *arg)
{
    struct shared *sh = arg;
    struct kvr_index_reader *rd;
    struct kvr_overlap out[16];
    uint32_t last = 0;
    if (kvr_index_reader_create(sh->ix, &rd)) abort();
    while (!sh->stop) {
        uint32_t at_least = sh->grown;
        long k = kvr_index_match(rd, sh->q, CHAIN, out, 16);
        uint32_t d1 = 0, d2 = 0;
        for (long i = 0; i < k; i++) {
            if (out[i].worker.worker_id == 1) d1 = out[i].depth;
            if (out[i].worker.worker_id == 2) d2 = out[i].depth;
            KVR_ASSERT(out[i].depth >= 1 && out[i].depth <= CHAIN);
        }
        KVR_ASSERT(d1 >= at_least && d1 >= last && d1 <= CHAIN);
        KVR_ASSERT(d2 >= KEPT && d2 <= CHAIN);
        last = d1;
        sh->reads++;
    }
    kvr_index_reader_destroy(rd);
    return NULL;
}

static void store_range(struct kvr_index *ix, uint64_t w, const uint64_t *q, size_t from, size_t to)
{
    struct kvr_block b[CHAIN];
    for (size_t i = from; i < to; i++) b[i - from] = (struct kvr_block){q[i] ^ w << 32, q[i]};
    struct kvr_event ev = {.worker = {w, 0},
                           .kind = KVR_EVENT_STORED,
                           .has_parent = from > 0,
                           .parent_hash = from ? q[from - 1] ^ w << 32 : 0,
                           .blocks = b,
                           .blocks_n = to - from};
    KVR_ASSERT(kvr_index_apply(ix, &ev) == 0);
}

static void readers_beside_a_writer_see_only_what_was_true(void **s)
{
    (void)s;
    struct shared sh = {0};
    pthread_t th[READERS];
    uint64_t rounds = env_u64("KVR_OPS", 300000) / 100;
    assert_int_equal(kvr_index_create(NULL, &sh.ix), 0);
    for (uint64_t i = 0; i < CHAIN; i++) sh.q[i] = kvr_mix64(i + 1) >> 8;
    store_range(sh.ix, 2, sh.q, 0, KEPT);
    for (int i = 0; i < READERS; i++) assert_int_equal(pthread_create(&th[i], NULL, reader_main, &sh), 0);
    for (uint64_t r = 0; r < rounds || sh.reads < 100; r++) {
        uint32_t want = (uint32_t)KVR_MIN(r * CHAIN / (rounds + 1), (uint64_t)CHAIN);
        if (want > sh.grown) {
            store_range(sh.ix, 1, sh.q, sh.grown, want);
            sh.grown = want;
        }
        size_t to = KEPT + 1 + r % (CHAIN - KEPT);
        store_range(sh.ix, 2, sh.q, KEPT, to);
        uint64_t name = sh.q[KEPT] ^ (uint64_t)2 << 32;
        struct kvr_event ev = {.worker = {2, 0}, .kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
        KVR_ASSERT(kvr_index_apply(sh.ix, &ev) == 0);
        store_range(sh.ix, 3 + r % 4, sh.q, 0, 1 + r % CHAIN);
        kvr_index_remove_worker(sh.ix, 3 + (r + 2) % 4);
        for (uint64_t i = 0; i < 8; i++) { /* churn that makes the tables grow and chunks come and go */
            uint64_t junk[1] = {r * 8 + i + 1000};
            store_range(sh.ix, 9, junk, 0, 1);
        }
        if (r % 500 == 499) kvr_index_remove_worker(sh.ix, 9);
    }
    sh.stop = true;
    for (int i = 0; i < READERS; i++) pthread_join(th[i], NULL);
    const char *why = NULL;
    if (!kvr_index_validate(sh.ix, &why)) fail_msg("%s", why);
    kvr_index_destroy(sh.ix);
}

/* One of `names` for each block, whatever has it already: blocks get many names, names go to other blocks in the midst of a store, and the
 * table of names is made anew meanwhile. */
static void store_names_at_random(struct kvr_index *ix, struct kvr_rng *g, uint32_t names)
{
    struct kvr_block b[16];
    uint64_t gone = 1 + kvr_rng_below(g, names);
    for (uint32_t i = 0; i < 16; i++) b[i] = (struct kvr_block){1 + kvr_rng_below(g, names), i < 8 ? i + 1 : 100 + kvr_rng_below(g, 4096)};
    struct kvr_event ev = {.worker = {1, 0}, .blocks = b, .blocks_n = 16, .removed = &gone, .removed_n = 1};
    uint32_t kind = kvr_rng_below(g, 100);
    ev.kind = kind < 4 ? KVR_EVENT_CLEARED : kind < 20 ? KVR_EVENT_REMOVED : KVR_EVENT_STORED;
    (void)kvr_index_apply(ix, &ev);
}

static void names_that_are_given_to_other_blocks_leave_the_index_whole(void **)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct kvr_rng g = {seed};
        struct kvr_index *ix;
        const char *why = NULL;
        assert_int_equal(kvr_index_create(NULL, &ix), 0);
        for (int i = 0; i < 3000; i++) {
            store_names_at_random(ix, &g, seed % 2 ? 6000 : 500);
            if (i % 50 == 0 && !kvr_index_validate(ix, &why)) fail_msg("seed %d, event %d: %s", (int)seed, i, why);
        }
        kvr_index_destroy(ix);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_are_given_to_other_blocks_leave_the_index_whole),
        cmocka_unit_test(random_operations_equal_the_model),
        cmocka_unit_test(predictions_equal_the_model),
        cmocka_unit_test(readers_beside_a_writer_see_only_what_was_true),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
