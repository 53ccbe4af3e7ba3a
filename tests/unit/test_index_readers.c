/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers beside writers, in a build of the index that gives the processor away at the points where interleavings
 * matter (KVR_INTERLEAVE). A linearizability-style check: the writer publishes the right answer before and after every
 * event; a match must give, for each worker, an answer that was right at some moment of the call. Events of several
 * blocks count block by block (R2), clears at once (R3). KVR_SEED, KVR_OPS as in test_index_random.c.
 */
#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <kvroute/index.h>
#include "index/internal.h"
#include "base/base.h"

enum { WORKERS = 4, DEPTH = 6, LEAVES = 1 << (DEPTH - 1), NODES = 2 * LEAVES, READERS = 3 };

static _Thread_local struct kvr_rng yield_rng;

void kvr_interleave(void); /* called by the index */

void kvr_interleave(void)
{
    if (kvr_rng_below(&yield_rng, 3) == 0) sched_yield();
}

/* The blocks are the nodes 1..NODES-1 of a binary tree; 2n and 2n + 1 come behind n. A query is the path to a leaf. */
static uint64_t local_of(uint32_t node)
{
    return kvr_mix64(node);
}

static uint64_t name_of(uint32_t worker, uint32_t node)
{
    return kvr_mix64(node) ^ (worker & 1 ? (uint64_t)worker << 40 : 0); /* odd workers have names of their own */
}

struct moment {
    uint8_t depth[LEAVES][WORKERS];
    bool by_steps; /* the event that led here shows blocks one by one */
};

struct world {
    struct kvr_index *ix;
    bool held[WORKERS][NODES];
    struct moment *history;
    _Atomic uint64_t begun, done;
    _Atomic bool stop;
    _Atomic uint64_t reads;
};

static uint8_t depth_in(const struct world *w, uint32_t leaf, uint32_t worker)
{
    uint8_t d = 0;
    while (d < DEPTH && w->held[worker][(LEAVES + leaf) >> (DEPTH - 1 - d)]) d++;
    return d;
}

static void drop(struct world *w, uint32_t worker, uint32_t node)
{
    if (node >= NODES || !w->held[worker][node]) return;
    w->held[worker][node] = false;
    drop(w, worker, 2 * node);
    drop(w, worker, 2 * node + 1);
}

static void publish(struct world *w, uint64_t op, bool by_steps)
{
    struct moment *m = &w->history[op];
    for (uint32_t l = 0; l < LEAVES; l++)
        for (uint32_t v = 0; v < WORKERS; v++) m->depth[l][v] = depth_in(w, l, v);
    m->by_steps = by_steps;
    atomic_store(&w->begun, op);
}

static void store_some(struct world *w, struct kvr_rng *rng, uint64_t op)
{
    uint32_t worker = kvr_rng_below(rng, WORKERS), node = kvr_rng_below(rng, 4) ? 1 + kvr_rng_below(rng, LEAVES - 1) : 0;
    if (node && !w->held[worker][node]) node = 0;
    struct kvr_block b[DEPTH];
    struct kvr_event ev = {.worker = {worker, 0}, .has_parent = node != 0, .parent_hash = name_of(worker, node), .blocks = b};
    for (uint32_t n = 1 + kvr_rng_below(rng, 3); n && node < LEAVES; n--) {
        node = node ? 2 * node + kvr_rng_below(rng, 2) : 1;
        w->held[worker][node] = true;
        b[ev.blocks_n++] = (struct kvr_block){name_of(worker, node), local_of(node)};
    }
    publish(w, op, true);
    if (kvr_rng_below(rng, 2)) KVR_ASSERT(kvr_index_apply(w->ix, &ev) == 0);
    else KVR_ASSERT(kvr_index_apply_batch(w->ix, &ev, 1, NULL) == 0);
}

static void remove_some(struct world *w, struct kvr_rng *rng, uint64_t op)
{
    uint32_t worker = kvr_rng_below(rng, WORKERS), node = 1 + kvr_rng_below(rng, NODES - 1);
    bool known = w->held[worker][node];
    uint64_t name = name_of(worker, node);
    struct kvr_event ev = {.worker = {worker, 0}, .kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    drop(w, worker, node);
    publish(w, op, true);
    KVR_ASSERT(kvr_index_apply(w->ix, &ev) == (known ? 0 : -KVR_ENOTFOUND));
}

static void clear_one(struct world *w, struct kvr_rng *rng, uint64_t op)
{
    uint32_t worker = kvr_rng_below(rng, WORKERS);
    struct kvr_event ev = {.worker = {worker, 0}, .kind = KVR_EVENT_CLEARED};
    drop(w, worker, 1);
    publish(w, op, false);
    if (kvr_rng_below(rng, 2)) KVR_ASSERT(kvr_index_apply(w->ix, &ev) == 0);
    else kvr_index_remove_worker(w->ix, worker);
}

static bool was_true(const struct world *w, uint64_t from, uint64_t to, uint32_t leaf, uint32_t worker, uint8_t seen)
{
    for (uint64_t s = from; s <= to; s++) {
        uint8_t now = w->history[s].depth[leaf][worker];
        if (seen == now) return true;
        if (s == to || !w->history[s + 1].by_steps) continue;
        uint8_t then = w->history[s + 1].depth[leaf][worker];
        if ((now < seen && seen < then) || (then < seen && seen < now)) return true;
    }
    return false;
}

struct reader {
    struct world *w;
    uint64_t seed;
};

static void *read_main(void *arg)
{
    struct reader *self = arg;
    struct world *w = self->w;
    struct kvr_rng rng = {self->seed};
    struct kvr_index_reader *rd;
    yield_rng.state = self->seed * 7;
    if (kvr_index_reader_create(w->ix, &rd)) abort();
    while (!atomic_load(&w->stop)) {
        uint64_t q[2][DEPTH];
        struct kvr_overlap out[2][WORKERS * 4];
        uint32_t leaf[2] = {kvr_rng_below(&rng, LEAVES), kvr_rng_below(&rng, LEAVES)};
        struct kvr_query two[2];
        for (int i = 0; i < 2; i++) {
            for (uint32_t d = 0; d < DEPTH; d++) q[i][d] = local_of((LEAVES + leaf[i]) >> (DEPTH - 1 - d));
            two[i] = (struct kvr_query){.locals = q[i], .n = DEPTH, .out = out[i], .cap = WORKERS * 4};
        }
        uint64_t from = atomic_load(&w->done);
        bool both = kvr_rng_below(&rng, 2);
        if (both) kvr_index_match_batch(rd, two, 2);
        else two[0].found = kvr_index_match(rd, q[0], DEPTH, out[0], WORKERS * 4);
        uint64_t to = atomic_load(&w->begun);
        for (int i = 0; i < 1 + both; i++) {
            uint8_t seen[WORKERS] = {0};
            KVR_ASSERT(two[i].found >= 0);
            for (long k = 0; k < two[i].found; k++) { /* a cleared pair may be met under its old and its new slot */
                uint8_t *s = &seen[out[i][k].worker.worker_id];
                *s = (uint8_t)KVR_MAX((uint32_t)*s, out[i][k].depth);
            }
            for (uint32_t v = 0; v < WORKERS; v++) {
                if (was_true(w, from, to, leaf[i], v, seen[v])) continue;
                fprintf(stderr, "worker %u: seen %u, right at moments %llu to %llu:", v, seen[v], (unsigned long long)from,
                        (unsigned long long)to);
                for (uint64_t m = from; m <= to; m++)
                    fprintf(stderr, " %u%s", w->history[m].depth[leaf[i]][v], w->history[m].by_steps ? "" : "!");
                fprintf(stderr, " in");
                for (long k = 0; k < two[i].found; k++) fprintf(stderr, " %u:%u", (unsigned)out[i][k].worker.worker_id, out[i][k].depth);
                fprintf(stderr, "\n");
                abort();
            }
        }
        atomic_fetch_add(&w->reads, 1);
    }
    kvr_index_reader_destroy(rd);
    return NULL;
}

static void run(uint32_t lanes, bool evictable, uint64_t seed, uint64_t ops)
{
    struct world *w = calloc(1, sizeof *w);
    struct kvr_rng rng = {seed};
    struct kvr_index_config c = {.lanes = lanes, .evictable = evictable, .portable = lanes > 1};
    pthread_t th[READERS];
    struct reader rd[READERS];
    yield_rng.state = seed;
    w->history = calloc(ops + 1, sizeof *w->history);
    assert_non_null(w->history);
    assert_int_equal(kvr_index_create(&c, &w->ix), 0);
    for (int i = 0; i < READERS; i++) {
        rd[i] = (struct reader){w, seed * 100 + (uint64_t)i};
        assert_int_equal(pthread_create(&th[i], NULL, read_main, &rd[i]), 0);
    }
    for (uint64_t op = 1; op <= ops; op++) {
        uint32_t what = kvr_rng_below(&rng, 100);
        if (what < 60) store_some(w, &rng, op);
        else if (what < 96) remove_some(w, &rng, op);
        else clear_one(w, &rng, op);
        atomic_store(&w->done, op);
        if (kvr_rng_below(&rng, 4) == 0) sched_yield();
    }
    while (atomic_load(&w->reads) < 200) sched_yield();
    atomic_store(&w->stop, true);
    for (int i = 0; i < READERS; i++) pthread_join(th[i], NULL);
    const char *why = NULL;
    if (!kvr_index_validate(w->ix, &why)) fail_msg("%s", why);
    print_message("seed %llu, %u lanes: %llu matches beside %llu events\n", (unsigned long long)seed, lanes, (unsigned long long)w->reads,
                  (unsigned long long)ops);
    kvr_index_destroy(w->ix);
    free(w->history);
    free(w);
}

static void matches_were_true_at_some_moment(void **)
{
    uint64_t seed = env_u64("KVR_SEED", 1), ops = env_u64("KVR_OPS", 300000) / 10;
    run(1, false, seed, ops);
    run(1, true, seed + 1, ops);
    run(2, false, seed + 2, ops);
}

/* ---- several writers ----------------------------------------------------------------------------------------------- */

struct writer {
    struct kvr_index *ix;
    uint64_t worker, seed, ops;
};

static void *write_main(void *arg)
{
    struct writer *self = arg;
    struct kvr_rng rng = {self->seed};
    yield_rng.state = self->seed;
    for (uint64_t op = 0; op < self->ops; op++) {
        struct kvr_block b[DEPTH];
        uint32_t n = 1 + kvr_rng_below(&rng, DEPTH), leaf = kvr_rng_below(&rng, LEAVES);
        struct kvr_event ev = {.worker = {self->worker, kvr_rng_below(&rng, 2)}, .blocks = b, .blocks_n = n};
        for (uint32_t d = 0; d < n; d++) {
            uint32_t node = (LEAVES + leaf) >> (DEPTH - 1 - d);
            b[d] = (struct kvr_block){name_of((uint32_t)self->worker, node), local_of(node)};
        }
        uint64_t gone = b[n - 1].block_hash, junk = kvr_rng_next(&rng);
        KVR_ASSERT(kvr_index_apply_batch(self->ix, &ev, 1, NULL) == 0);
        if (kvr_rng_below(&rng, 2)) {
            struct kvr_event rm = {.worker = ev.worker, .kind = KVR_EVENT_REMOVED, .removed = &gone, .removed_n = 1};
            KVR_ASSERT(kvr_index_apply(self->ix, &rm) == 0);
        }
        if (op % 64 == 0) KVR_ASSERT(kvr_index_record(self->ix, ev.worker, &junk, 1, &junk, 1) == 0);
        if (op % 512 == 511) kvr_index_remove_worker(self->ix, self->worker);
    }
    return NULL;
}

static int count_events(void *ctx, const struct kvr_event *ev)
{
    *(size_t *)ctx += ev->blocks_n;
    return 0;
}

static void writers_readers_and_dumps_together(void **)
{
    struct kvr_index_config c = {.lanes = 2, .evictable = true, .ttl_ns = 1000};
    struct kvr_index *ix;
    pthread_t th[3];
    struct writer w[3];
    assert_int_equal(kvr_index_create(&c, &ix), 0);
    for (uint64_t i = 0; i < 3; i++) {
        w[i] = (struct writer){ix, i, i + env_u64("KVR_SEED", 1), env_u64("KVR_OPS", 300000) / 30};
        assert_int_equal(pthread_create(&th[i], NULL, write_main, &w[i]), 0);
    }
    for (int i = 0; i < 50; i++) {
        struct kvr_index_stats st;
        const char *why = NULL;
        size_t blocks = 0;
        assert_int_equal(kvr_index_dump(ix, NULL, count_events, &blocks), 0);
        kvr_index_stats(ix, &st);
        (void)kvr_index_expire(ix);
        if (!kvr_index_validate(ix, &why)) fail_msg("%s", why);
        sched_yield();
    }
    for (int i = 0; i < 3; i++) pthread_join(th[i], NULL);
    const char *why = NULL;
    if (!kvr_index_validate(ix, &why)) fail_msg("%s", why);
    kvr_index_destroy(ix);
}

/* ---- limits ---------------------------------------------------------------------------------------------------------- */

static int store_alone(struct kvr_index *ix, uint64_t name)
{
    struct kvr_block b = {name, name};
    struct kvr_event ev = {.kind = KVR_EVENT_STORED, .blocks = &b, .blocks_n = 1};
    return kvr_index_apply(ix, &ev);
}

/* As many runs as there are ids; one more is refused and counted, what there is stays, and ids that are given back are used again. */
static void runs_beyond_the_limit_are_refused_and_counted(void **)
{
    enum { MOST = (1 << ID_BITS) - IDS_RESERVED, BACK = 1000 };
    struct kvr_index *ix;
    struct kvr_index_stats st;
    const char *why = NULL;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    for (uint64_t i = 1; i <= MOST; i++) assert_int_equal(store_alone(ix, i), 0);
    for (uint64_t i = 1; i <= 3; i++) assert_int_equal(store_alone(ix, MOST + i), -KVR_ECAPACITY);
    assert_int_equal(store_alone(ix, 1), 0); /* which is there */
    kvr_index_stats(ix, &st);
    assert_int_equal(st.no_room, 3);
    assert_int_equal(st.blocks, MOST);
    for (uint64_t i = 1; i <= BACK; i++) {
        struct kvr_event rm = {.kind = KVR_EVENT_REMOVED, .removed = &i, .removed_n = 1};
        assert_int_equal(kvr_index_apply(ix, &rm), 0);
    }
    for (int i = 0; i < 4; i++) (void)kvr_index_expire(ix); /* no reader is inside */
    for (uint64_t i = 1; i <= BACK; i++) assert_int_equal(store_alone(ix, MOST + i), 0);
    assert_int_equal(store_alone(ix, 1), -KVR_ECAPACITY);
    for (uint64_t i = BACK + 1; i <= MOST + BACK; i++) assert_true(kvr_index_holds(ix, (struct kvr_worker){0}, KVR_TIER_DEVICE, i));
    if (!kvr_index_validate(ix, &why)) fail_msg("%s", why);
    kvr_index_destroy(ix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_were_true_at_some_moment),
        cmocka_unit_test(writers_readers_and_dumps_together),
        cmocka_unit_test(runs_beyond_the_limit_are_refused_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
