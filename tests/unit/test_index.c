/* SPDX-License-Identifier: Apache-2.0 */
/* The index: the upstream cases (t01 to t22), and regressions of ours. Helper: a store of locals L uses as names
 * the chain of L unless names are given. */
#include "test.h"

#include <kvroute/hash.h>
#include <kvroute/index.h>

struct fixture {
    struct kvr_index *ix;
    struct kvr_index_reader *rd;
    struct failing_alloc fa;
    uint64_t now;
};

static int setup_with(void **state, struct kvr_index_config c)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->fa.fail_at = -1;
    c.alloc = &(struct kvr_alloc){failing_resize, &f->fa};
    c.clock = &(struct kvr_clock){manual_now, &f->now};
    assert_int_equal(kvr_index_create(&c, &f->ix), 0);
    assert_int_equal(kvr_index_reader_create(f->ix, &f->rd), 0);
    *state = f;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, (struct kvr_index_config){0});
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    const char *why = NULL;
    if (!kvr_index_validate(f->ix, &why)) fail_msg("%s", why);
    kvr_index_destroy(f->ix);
    assert_int_equal(f->fa.live, 0);
    free(f);
    return 0;
}

#define W(id)  ((struct kvr_worker){(id), 0})
#define L(...) (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / 8

/* Stores locals[n] behind the chain `before`; names are the chain of all of it. */
static int store_after(struct fixture *f, struct kvr_worker w, const uint64_t *before, size_t bn, const uint64_t *locals, size_t n)
{
    uint64_t all[64], seq[64];
    struct kvr_block b[64];
    if (bn) memcpy(all, before, bn * 8);
    memcpy(all + bn, locals, n * 8);
    kvr_hash_sequence(all, bn + n, seq);
    for (size_t i = 0; i < n; i++) b[i] = (struct kvr_block){seq[bn + i], locals[i]};
    struct kvr_event ev = {
        .worker = w, .kind = KVR_EVENT_STORED, .has_parent = bn > 0, .parent_hash = bn ? seq[bn - 1] : 0, .blocks = b, .blocks_n = n};
    return kvr_index_apply(f->ix, &ev);
}

static int store(struct fixture *f, struct kvr_worker w, const uint64_t *locals, size_t n)
{
    return store_after(f, w, NULL, 0, locals, n);
}

static int store_named(struct fixture *f, struct kvr_worker w, uint64_t parent, uint64_t name, uint64_t local)
{
    struct kvr_block b = {name, local};
    struct kvr_event ev = {
        .worker = w, .kind = KVR_EVENT_STORED, .has_parent = parent != 0, .parent_hash = parent, .blocks = &b, .blocks_n = 1};
    return kvr_index_apply(f->ix, &ev);
}

static int remove_names(struct fixture *f, struct kvr_worker w, const uint64_t *names, size_t n)
{
    struct kvr_event ev = {.worker = w, .kind = KVR_EVENT_REMOVED, .removed = names, .removed_n = n};
    return kvr_index_apply(f->ix, &ev);
}

/* Removes blocks [from, to) of the chain of locals. */
static int remove_part(struct fixture *f, struct kvr_worker w, const uint64_t *locals, size_t n, size_t from, size_t to)
{
    uint64_t seq[64];
    kvr_hash_sequence(locals, n, seq);
    return remove_names(f, w, seq + from, to - from);
}

static int clear(struct fixture *f, struct kvr_worker w)
{
    struct kvr_event ev = {.worker = w, .kind = KVR_EVENT_CLEARED};
    return kvr_index_apply(f->ix, &ev);
}

static uint32_t score(struct fixture *f, struct kvr_worker w, const uint64_t *q, size_t n)
{
    struct kvr_overlap out[64];
    long k = kvr_index_match(f->rd, q, n, out, 64);
    assert_true(k >= 0);
    for (long i = 0; i < k; i++) {
        assert_true(out[i].depth > 0);
        if (kvr_worker_cmp(out[i].worker, w) == 0) return out[i].depth;
    }
    return 0;
}

static long matches(struct fixture *f, const uint64_t *q, size_t n)
{
    struct kvr_overlap out[64];
    return kvr_index_match(f->rd, q, n, out, 64);
}

static size_t size_of(struct fixture *f)
{
    struct kvr_index_stats st;
    kvr_index_stats(f->ix, &st);
    return st.blocks;
}

static uint64_t duplicates(struct fixture *f)
{
    struct kvr_index_stats st;
    kvr_index_stats(f->ix, &st);
    return st.duplicate_stores;
}

struct events {
    struct kvr_event e[64];
    struct kvr_block b[64][64];
    size_t n;
};

static int collect(void *ctx, const struct kvr_event *ev)
{
    struct events *es = ctx;
    es->e[es->n] = *ev;
    memcpy(es->b[es->n], ev->blocks, ev->blocks_n * sizeof *ev->blocks);
    es->e[es->n].blocks = es->b[es->n];
    es->n++;
    return 0;
}

static size_t dump_events(struct fixture *f)
{
    struct events es = {.n = 0};
    assert_int_equal(kvr_index_dump(f->ix, NULL, collect, &es), 0);
    for (size_t i = 0; i < es.n; i++) assert_int_equal(es.e[i].event_id, i);
    return es.n;
}

static void t01_store_and_query(void **s)
{
    struct fixture *f = *s;
    assert_int_equal(store(f, W(7), L(1, 2, 3)), 0);
    assert_int_equal(score(f, W(7), L(1, 2, 3)), 3);
    assert_int_equal(score(f, W(7), L(1, 2, 999)), 2);
    assert_int_equal(matches(f, NULL, 0), 0);
    assert_int_equal(matches(f, L(999, 998)), 0);
}

static void t02_same_store_twice(void **s)
{
    struct fixture *f = *s;
    store(f, W(7), L(1, 2, 3));
    assert_int_equal(store(f, W(7), L(1, 2, 3)), 0);
    assert_int_equal(dump_events(f), 1);
    assert_int_equal(score(f, W(7), L(1, 2, 3)), 3);
    assert_int_equal(duplicates(f), 1);
}

static void t03_continuation(void **s)
{
    struct fixture *f = *s;
    store(f, W(7), L(1, 2, 3));
    assert_int_equal(store_after(f, W(7), L(1, 2, 3), L(4, 5)), 0);
    assert_int_equal(score(f, W(7), L(1, 2, 3, 4, 5)), 5);
    assert_int_equal(score(f, W(7), L(1, 2, 3)), 3);
    assert_int_equal(duplicates(f), 0);
}

static void t04_sizes(void **s)
{
    struct fixture *f = *s;
    store(f, W(7), L(1, 2, 3));
    assert_int_equal(size_of(f), 3);
    store(f, W(7), L(1, 2, 3));
    assert_int_equal(size_of(f), 3);
    store_after(f, W(7), L(1, 2, 3), L(4, 5));
    assert_int_equal(size_of(f), 5);
    store_after(f, W(7), L(1, 2, 3), L(4, 5));
    assert_int_equal(size_of(f), 5);
    assert_int_equal(remove_part(f, W(7), L(1, 2, 3, 4, 5), 3, 5), 0);
    assert_int_equal(size_of(f), 3);
    assert_int_equal(remove_part(f, W(7), L(1, 2, 3, 4, 5), 3, 5), -KVR_ENOTFOUND);
    assert_int_equal(size_of(f), 3);
    assert_int_equal(remove_part(f, W(7), L(1, 2, 3), 0, 3), 0);
    assert_int_equal(size_of(f), 0);
    assert_int_equal(dump_events(f), 0);
    assert_int_equal(remove_part(f, W(7), L(1, 2, 3), 0, 3), -KVR_ENOTFOUND);
    assert_int_equal(size_of(f), 0);
}

static void t05_middle_removal(void **s)
{
    struct fixture *f = *s;
    store(f, W(7), L(1, 2, 3, 4, 5));
    assert_int_equal(remove_part(f, W(7), L(1, 2, 3), 2, 3), 0);
    assert_int_equal(score(f, W(7), L(1, 2, 3, 4, 5)), 2);
    assert_int_equal(size_of(f), 2);
    store_after(f, W(7), L(1, 2), L(3));
    assert_int_equal(score(f, W(7), L(1, 2, 3, 4, 5)), 3);
    assert_int_equal(size_of(f), 3);
    store_after(f, W(7), L(1, 2, 3), L(4, 5));
    assert_int_equal(score(f, W(7), L(1, 2, 3, 4, 5)), 5);
    assert_int_equal(size_of(f), 5);
}

static void t06_workers_grow_apart(void **s)
{
    struct fixture *f = *s;
    store(f, W(1), L(1, 2, 3));
    store(f, W(2), L(1, 2, 3));
    store_after(f, W(1), L(1, 2, 3), L(4, 5, 6));
    assert_int_equal(score(f, W(1), L(1, 2, 3, 4, 5, 6)), 6);
    assert_int_equal(score(f, W(2), L(1, 2, 3, 4, 5, 6)), 3);
    store_after(f, W(2), L(1, 2, 3), L(7, 8));
    assert_int_equal(score(f, W(1), L(1, 2, 3, 7, 8)), 3);
    assert_int_equal(score(f, W(2), L(1, 2, 3, 7, 8)), 5);
    assert_int_equal(store_after(f, W(2), L(1, 2, 3, 4, 5, 6), L(9, 10)), -KVR_EPARENT);
    assert_int_equal(score(f, W(1), L(1, 2, 3, 4, 5, 6, 9, 10)), 6);
    assert_int_equal(score(f, W(2), L(1, 2, 3, 4, 5, 6, 9, 10)), 3);
}

static void t07_second_worker_catches_up(void **s)
{
    struct fixture *f = *s;
    store(f, W(1), L(1, 2, 3, 4, 5, 6));
    store(f, W(2), L(1, 2, 3));
    store_after(f, W(2), L(1, 2, 3), L(4, 5, 6));
    store_after(f, W(2), L(1, 2, 3, 4, 5, 6), L(7, 8, 9));
    assert_int_equal(score(f, W(1), L(1, 2, 3, 4, 5, 6, 7, 8, 9)), 6);
    assert_int_equal(score(f, W(2), L(1, 2, 3, 4, 5, 6, 7, 8, 9)), 9);
}

static void t08_store_then_remove_all(void **s)
{
    struct fixture *f = *s;
    store(f, W(7), L(1, 2, 3));
    remove_part(f, W(7), L(1, 2, 3), 0, 3);
    assert_int_equal(matches(f, L(1, 2, 3)), 0);
}

static void t09_shared_then_diverging(void **s)
{
    struct fixture *f = *s;
    store(f, W(0), L(1, 2));
    store(f, W(1), L(1, 3));
    assert_int_equal(score(f, W(0), L(1)), 1);
    assert_int_equal(score(f, W(1), L(1)), 1);
    assert_int_equal(score(f, W(0), L(1, 2)), 2);
    assert_int_equal(score(f, W(1), L(1, 2)), 1);
}

static void t10_removals_are_harmless(void **s)
{
    struct fixture *f = *s;
    store(f, W(0), L(1, 2, 3));
    store(f, W(1), L(1, 2, 3));
    kvr_index_remove_worker(f->ix, 0);
    assert_int_equal(score(f, W(0), L(1, 2, 3)), 0);
    assert_int_equal(score(f, W(1), L(1, 2, 3)), 3);
    kvr_index_remove_worker(f->ix, 999);
    assert_int_equal(remove_names(f, W(1), L(123456)), -KVR_ENOTFOUND);
    assert_int_equal(remove_names(f, W(55), L(123456)), -KVR_ENOTFOUND);
    assert_int_equal(score(f, W(1), L(1, 2, 3)), 3);
}

static void t11_dump_and_restore(void **s)
{
    struct fixture *f = *s;
    store(f, W(0), L(1, 2, 3));
    store(f, W(1), L(1, 2, 4));
    struct events es = {.n = 0};
    assert_int_equal(kvr_index_dump(f->ix, NULL, collect, &es), 0);
    struct fixture *g;
    setup((void **)&g);
    for (size_t i = 0; i < es.n; i++) assert_int_equal(kvr_index_apply(g->ix, &es.e[i]), 0);
    assert_int_equal(score(g, W(0), L(1, 2, 3)), 3);
    assert_int_equal(score(g, W(1), L(1, 2, 3)), 2);
    assert_int_equal(score(g, W(1), L(1, 2, 4)), 3);
    assert_int_equal(size_of(g), 6);
    assert_int_equal(dump_events(g), dump_events(f));
    /* restore replaces what one rank held */
    store(g, W(1), L(50, 51));
    struct kvr_worker one = W(1);
    es.n = 0;
    assert_int_equal(kvr_index_dump(f->ix, &one, collect, &es), 0);
    assert_int_equal(kvr_index_restore(g->ix, W(1), es.e, es.n), 0);
    assert_int_equal(score(g, W(1), L(50, 51)), 0);
    assert_int_equal(score(g, W(1), L(1, 2, 4)), 3);
    assert_int_equal(score(g, W(0), L(1, 2, 3)), 3);
    teardown((void **)&g);
}

static void t12_clear_is_per_rank(void **s)
{
    struct fixture *f = *s;
    struct kvr_worker r1 = {0, 1};
    store(f, W(0), L(1, 2));
    store(f, r1, L(1, 2));
    store(f, W(1), L(1, 2));
    assert_int_equal(clear(f, W(0)), 0);
    assert_int_equal(score(f, W(0), L(1, 2)), 0);
    assert_int_equal(score(f, r1, L(1, 2)), 2);
    assert_int_equal(score(f, W(1), L(1, 2)), 2);
    store(f, W(0), L(1, 2));
    assert_int_equal(score(f, W(0), L(1, 2)), 2);
    assert_int_equal(clear(f, W(77)), 0);
}

static int setup_worker_wide(void **s)
{
    return setup_with(s, (struct kvr_index_config){.clear_worker_wide = true});
}

static void t12_clear_worker_wide_by_switch(void **s)
{
    struct fixture *f = *s;
    struct kvr_worker r1 = {0, 1};
    store(f, W(0), L(1, 2));
    store(f, r1, L(1, 2));
    store(f, W(1), L(1, 2));
    clear(f, W(0));
    assert_int_equal(score(f, r1, L(1, 2)), 0);
    assert_int_equal(score(f, W(1), L(1, 2)), 2);
}

static void t13_ranks_score_separately(void **s)
{
    struct fixture *f = *s;
    struct kvr_worker r[3] = {{5, 0}, {5, 1}, {5, 2}};
    store(f, r[0], L(1));
    store(f, r[1], L(1, 2));
    store(f, r[2], L(1, 2, 3));
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(score(f, r[i], L(1, 2, 3)), i + 1);
    kvr_index_remove_rank(f->ix, r[1]);
    assert_int_equal(score(f, r[0], L(1, 2, 3)), 1);
    assert_int_equal(score(f, r[1], L(1, 2, 3)), 0);
    assert_int_equal(score(f, r[2], L(1, 2, 3)), 3);
}

static void t14_partial_removals(void **s)
{
    struct fixture *f = *s;
    store(f, W(1), L(1, 2, 3));
    remove_part(f, W(1), L(1, 2, 3), 2, 3);
    assert_int_equal(score(f, W(1), L(1, 2, 3)), 2);
    store(f, W(2), L(11, 12, 13, 14, 15));
    remove_part(f, W(2), L(11, 12, 13), 2, 3);
    assert_int_equal(score(f, W(2), L(11, 12, 13, 14, 15)), 2);
    store_after(f, W(2), L(11, 12), L(13));
    assert_int_equal(score(f, W(2), L(11, 12, 13, 14, 15)), 3);
}

static void t15_disjoint_sequences(void **s)
{
    struct fixture *f = *s;
    store(f, W(1), L(1, 2, 3));
    store(f, W(1), L(100, 101, 102));
    assert_int_equal(score(f, W(1), L(1, 2, 3)), 3);
    assert_int_equal(score(f, W(1), L(100, 101, 102)), 3);
    assert_int_equal(score(f, W(1), L(1, 100)), 1);
}

static void t16_from_tokens(void **s)
{
    struct fixture *f = *s;
    uint32_t t[96];
    uint64_t l[3];
    for (uint32_t i = 0; i < 96; i++) t[i] = i + 1;
    assert_int_equal(kvr_hash_locals(t, 96, 32, false, 1337, NULL, 0, l), 3);
    assert_int_equal(matches(f, l, 3), 0);
    store(f, W(1), l, 3);
    assert_int_equal(score(f, W(1), l, 3), 3);
}

static void t17_lora_isolation(void **s)
{
    struct fixture *f = *s;
    uint32_t t[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint64_t l[3][2], seeds[3] = {1337, kvr_hash_seed("a", 1, NULL, 0), kvr_hash_seed("b", 1, NULL, 0)};
    for (int i = 0; i < 3; i++) {
        kvr_hash_locals(t, 8, 4, false, seeds[i], NULL, 0, l[i]);
        store(f, W(i), l[i], 2);
    }
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) assert_int_equal(score(f, W(i), l[j], 2), i == j ? 2 : 0);
}

static void t18_start_position(void **s)
{
    struct fixture *f = *s;
    struct kvr_block b[2] = {{1000, 5}, {1001, 6}};
    struct kvr_event ev = {
        .worker = W(1), .kind = KVR_EVENT_STORED, .has_start_position = true, .start_position = 10, .blocks = b, .blocks_n = 2};
    assert_int_equal(kvr_index_apply(f->ix, &ev), 0);
    assert_int_equal(matches(f, L(5, 6)), 0);
    assert_int_equal(size_of(f), 2);
    struct events es = {.n = 0};
    kvr_index_dump(f->ix, NULL, collect, &es);
    assert_int_equal(es.n, 1);
    assert_true(es.e[0].has_start_position && !es.e[0].has_parent);
    assert_int_equal(es.e[0].start_position, 10);
    assert_int_equal(es.e[0].blocks_n, 2);
    struct fixture *g;
    setup((void **)&g);
    assert_int_equal(kvr_index_apply(g->ix, &es.e[0]), 0);
    assert_int_equal(size_of(g), 2);
    assert_int_equal(store_named(g, W(1), 1001, 1002, 7), 0); /* goes on from there */
    teardown((void **)&g);
    /* an anchor whose only block moves away under itself */
    struct kvr_block moved = {1000, 9};
    ev.blocks = &moved;
    ev.blocks_n = 1;
    assert_int_equal(kvr_index_apply(f->ix, &ev), 0);
    ev.has_parent = true;
    assert_int_equal(kvr_index_apply(f->ix, &ev), -KVR_EINVAL);
}

static int setup_approx(void **s)
{
    return setup_with(s, (struct kvr_index_config){.ttl_ns = 100});
}

static int record(struct fixture *f, struct kvr_worker w, const uint64_t *l, size_t n)
{
    uint64_t q[64];
    kvr_hash_sequence(l, n, q);
    return kvr_index_record(f->ix, w, l, n, q, n);
}

static void t19_approximate(void **s)
{
    struct fixture *f = *s;
    assert_int_equal(record(f, W(1), L(1, 2, 3)), 0);
    assert_int_equal(score(f, W(1), L(1, 2, 3)), 3);
    f->now = 99;
    assert_int_equal(kvr_index_expire(f->ix), 0);
    f->now = 100;
    assert_int_equal(kvr_index_expire(f->ix), 3);
    assert_int_equal(matches(f, L(1, 2, 3)), 0);
    /* every decision restarts the timers of its blocks */
    record(f, W(1), L(1, 2, 3));
    f->now = 150;
    record(f, W(1), L(1, 2));
    f->now = 200;
    assert_int_equal(kvr_index_expire(f->ix), 1);
    assert_int_equal(score(f, W(1), L(1, 2, 3)), 2);
    /* removing a rank cleans up */
    record(f, (struct kvr_worker){2, 1}, L(7, 8));
    kvr_index_remove_rank(f->ix, (struct kvr_worker){2, 1});
    kvr_index_remove_worker(f->ix, 1);
    f->now = 10000;
    assert_int_equal(kvr_index_expire(f->ix), 0);
    /* events do not expire, and make predictions permanent */
    store(f, W(3), L(1, 2));
    record(f, W(3), L(1, 2, 3));
    store_after(f, W(3), L(1, 2), L(3));
    record(f, W(3), L(1, 2, 3, 4));
    f->now = 20000;
    assert_int_equal(kvr_index_expire(f->ix), 1);
    assert_int_equal(score(f, W(3), L(1, 2, 3, 4)), 3);
    /* lengths must agree, and nothing is applied */
    uint64_t l[3] = {5, 6, 7};
    assert_int_equal(kvr_index_record(f->ix, W(4), l, 3, l, 2), -KVR_ELENGTH);
    assert_int_equal(matches(f, l, 3), 0);
}

static int setup_pruned_large(void **s)
{
    return setup_with(s, (struct kvr_index_config){.ttl_ns = 1000, .predicted_max = 4000, .prune_target_ratio = 0.5});
}

/* No decision waits for others to be given up by the thousand. */
static void t19_size_pruning_is_spread_over_decisions(void **s)
{
    struct fixture *f = *s;
    struct kvr_index_stats st;
    size_t before = 0, most = 0, least = SIZE_MAX;
    bool full = false;
    for (uint64_t i = 1; i <= 2000; i++) {
        uint64_t l[10], q[10];
        for (uint64_t k = 0; k < 10; k++) l[k] = i * 1000 + k;
        kvr_hash_sequence(l, 10, q);
        assert_int_equal(kvr_index_record(f->ix, (struct kvr_worker){1, 0}, l, 10, q, 10), 0);
        kvr_index_stats(f->ix, &st);
        assert_in_range(st.predicted, 0, 4000);
        full |= st.pruned > 0;
        if (before > st.predicted) most = KVR_MAX(most, before - st.predicted);
        if (full) least = KVR_MIN(least, st.predicted);
        before = st.predicted;
    }
    assert_in_range(most, 1, 300);
    assert_int_equal(least, 2000);
}

static int setup_pruned_lanes(void **s)
{
    return setup_with(s, (struct kvr_index_config){.lanes = 4, .ttl_ns = 1000, .predicted_max = 4000, .prune_target_ratio = 0.5});
}

static void t19_lanes_without_ranks_take_no_share_of_what_is_predicted(void **s)
{
    struct fixture *f = *s;
    struct kvr_index_stats st;
    for (uint64_t i = 1; i <= 300; i++) {
        uint64_t l[10], q[10];
        for (uint64_t k = 0; k < 10; k++) l[k] = i * 1000 + k;
        kvr_hash_sequence(l, 10, q);
        assert_int_equal(kvr_index_record(f->ix, (struct kvr_worker){1, 0}, l, 10, q, 10), 0);
    }
    kvr_index_stats(f->ix, &st);
    assert_int_equal(st.predicted, 3000);
    assert_int_equal(st.pruned, 0);
}

static int setup_pruned(void **s)
{
    return setup_with(s, (struct kvr_index_config){.ttl_ns = 1000, .predicted_max = 10, .prune_target_ratio = 0.5});
}

static void t19_size_pruning_takes_leaves_first(void **s)
{
    struct fixture *f = *s;
    record(f, W(1), L(1, 2, 3, 4, 5, 6));
    assert_int_equal(size_of(f), 6);
    record(f, W(2), L(1, 2, 3, 4));
    assert_int_equal(size_of(f), 10);
    record(f, W(3), L(9)); /* 11 > 10: down to 5, earliest expiry and deepest first */
    assert_int_equal(size_of(f), 5);
    assert_int_equal(score(f, W(1), L(1, 2, 3, 4, 5, 6)), 0);
    assert_int_equal(score(f, W(2), L(1, 2, 3, 4)), 4);
    assert_int_equal(score(f, W(3), L(9)), 1);
}

static void t20_errors(void **s)
{
    struct fixture *f = *s;
    assert_int_equal(store_named(f, W(1), 4711, 1, 1), -KVR_EPARENT);
    assert_int_equal(matches(f, L(1)), 0); /* an unknown parent never becomes position 0 */
    assert_int_equal(remove_names(f, W(1), L(5)), -KVR_ENOTFOUND);
    store_named(f, W(1), 0, 1, 1);
    assert_int_equal(store_named(f, W(1), 1, 1, 2), -KVR_ESEQUENCE);
    store_named(f, W(1), 1, 2, 2);
    assert_int_equal(store_named(f, W(1), 2, 1, 3), -KVR_ESEQUENCE); /* a name under itself */
    assert_int_equal(score(f, W(1), L(1, 2)), 2);
    struct kvr_event ev = {.worker = W(1), .tier = KVR_TIER_COUNT, .kind = KVR_EVENT_CLEARED};
    assert_int_equal(kvr_index_apply(f->ix, &ev), -KVR_EINVAL);
}

static void t20_node_reuse(void **s)
{
    struct fixture *f = *s;
    store(f, W(0), L(1, 2, 3));
    store(f, W(1), L(1, 4, 5));
    remove_part(f, W(1), L(1, 4, 5), 2, 3);
    remove_part(f, W(1), L(1, 4), 1, 2);
    store_after(f, W(1), L(1), L(2, 6, 7));
    assert_int_equal(score(f, W(0), L(1, 2, 3)), 3);
    assert_int_equal(score(f, W(1), L(1, 2, 3)), 2);
    assert_int_equal(score(f, W(1), L(1, 2, 6, 7)), 4);
}

static void t21_destroy_null(void **)
{
    kvr_index_destroy(NULL);
    kvr_index_reader_destroy(NULL);
}

static void t22_linear_chain_dumps_as_one_event(void **s)
{
    struct fixture *f = *s;
    store(f, W(1), L(1, 2, 3, 4));
    struct events es = {.n = 0};
    kvr_index_dump(f->ix, NULL, collect, &es);
    assert_int_equal(es.n, 1);
    assert_int_equal(es.e[0].blocks_n, 4);
    assert_false(es.e[0].has_parent);
}

static void removal_concerns_one_worker_and_rank(void **s)
{
    struct fixture *f = *s;
    store(f, W(1), L(1, 2));
    store(f, (struct kvr_worker){1, 1}, L(1, 2));
    remove_part(f, W(1), L(1, 2), 1, 2);
    assert_int_equal(score(f, W(1), L(1, 2)), 1);
    assert_int_equal(score(f, (struct kvr_worker){1, 1}, L(1, 2)), 2);
}

static void blocks_that_events_store_and_remove_are_counted(void **s)
{
    struct fixture *f = *s;
    struct kvr_index_stats st;
    const uint64_t chain[] = {1, 2, 3, 4};
    store(f, W(1), L(1, 2, 3, 4));
    store(f, W(1), L(1, 2, 3, 4)); /* again: nothing new */
    store(f, W(2), L(1, 2));
    assert_int_equal(store_after(f, W(3), L(8, 9), L(10)), -KVR_EPARENT);
    assert_int_equal(remove_part(f, W(1), chain, 4, 2, 4), 0);
    assert_int_equal(remove_part(f, W(1), chain, 4, 3, 4), -KVR_ENOTFOUND); /* gone already */
    assert_int_equal(remove_part(f, W(9), chain, 4, 0, 4), -KVR_ENOTFOUND); /* never there */
    assert_int_equal(clear(f, W(2)), 0);                                    /* no eviction */
    kvr_index_stats(f->ix, &st);
    assert_true(st.stored_blocks == 6 && st.removed_blocks == 2 && st.blocks == 2);
}

static void two_copies_of_a_block_are_removed_one_by_one(void **s)
{
    struct fixture *f = *s;
    store_named(f, W(1), 0, 10, 1);
    store_named(f, W(1), 10, 20, 2);
    store_named(f, W(1), 0, 11, 1); /* the same block under a second name */
    store_named(f, W(1), 11, 21, 3);
    assert_int_equal(size_of(f), 3);
    assert_int_equal(remove_names(f, W(1), L(10)), 0);
    assert_int_equal(score(f, W(1), L(1, 2)), 2);
    assert_int_equal(score(f, W(1), L(1, 3)), 2);
    assert_int_equal(remove_names(f, W(1), L(11)), 0);
    assert_int_equal(matches(f, L(1)), 0);
}

static void removing_the_second_name_keeps_the_first(void **s)
{
    struct fixture *f = *s;
    store_named(f, W(1), 0, 10, 1);
    store_named(f, W(1), 0, 11, 1);
    store_named(f, W(1), 0, 12, 1);
    assert_int_equal(remove_names(f, W(1), L(11)), 0);
    assert_int_equal(remove_names(f, W(1), L(12)), 0);
    assert_int_equal(score(f, W(1), L(1)), 1);
    assert_int_equal(remove_names(f, W(1), L(10, 10)), 0); /* the same name twice in one event */
    assert_int_equal(size_of(f), 0);
}

static void engines_may_name_blocks_differently(void **s)
{
    struct fixture *f = *s;
    store_named(f, W(1), 0, 10, 1);
    store_named(f, W(2), 0, 77, 1);
    store_named(f, W(1), 10, 77, 2); /* another worker's name for something else */
    store_named(f, W(2), 77, 10, 3);
    assert_int_equal(score(f, W(1), L(1, 2)), 2);
    assert_int_equal(score(f, W(2), L(1, 3)), 2);
    remove_names(f, W(2), L(77));
    assert_int_equal(score(f, W(1), L(1, 2)), 2);
    assert_int_equal(score(f, W(2), L(1)), 0);
}

static void a_known_name_at_another_place_moves(void **s)
{
    struct fixture *f = *s;
    store_named(f, W(1), 0, 10, 1);
    store_named(f, W(1), 10, 20, 2);
    assert_int_equal(store_named(f, W(1), 0, 10, 5), 0);
    assert_int_equal(score(f, W(1), L(5)), 1);
    assert_int_equal(score(f, W(1), L(1, 2)), 0);
    assert_int_equal(size_of(f), 1);
}

static void same_content_under_two_prefixes(void **s)
{
    struct fixture *f = *s;
    store(f, W(1), L(1, 9, 3));
    store(f, W(2), L(2, 9, 4));
    assert_int_equal(score(f, W(1), L(2, 9, 4)), 0);
    assert_int_equal(score(f, W(2), L(2, 9, 3)), 2);
    assert_int_equal(score(f, W(2), L(1, 9, 3)), 0);
}

static void worker_ids_are_reusable(void **s)
{
    struct fixture *f = *s;
    for (int i = 0; i < 300; i++) {
        store(f, W(9), L(1, 2, 3));
        kvr_index_remove_worker(f->ix, 9);
        assert_int_equal(matches(f, L(1)), 0);
    }
    store(f, W(9), L(4));
    assert_int_equal(score(f, W(9), L(1, 2, 3)), 0);
    assert_int_equal(score(f, W(9), L(4)), 1);
}

static void thousands_of_holders(void **s)
{
    struct fixture *f = *s;
    enum { N = 3000 };
    for (uint64_t w = 0; w < N; w++) {
        store(f, W(w), L(1, 2));
        if (w % 3 == 0) store_after(f, W(w), L(1, 2), L(3));
    }
    struct kvr_overlap *out = calloc(N, sizeof *out);
    assert_int_equal(kvr_index_match(f->rd, L(1, 2, 3), out, N), N);
    for (int i = 0; i < N; i++) assert_int_equal(out[i].depth, out[i].worker.worker_id % 3 == 0 ? 3 : 2);
    assert_int_equal(kvr_index_match(f->rd, L(1, 2, 3), out, N - 1), -KVR_ELIMIT);
    assert_true(kvr_index_ranks(f->ix) >= N);
    free(out);
}

static void memory_comes_back(void **s)
{
    struct fixture *f = *s;
    struct kvr_index_stats st;
    kvr_index_stats(f->ix, &st);
    size_t before = st.bytes;
    for (uint64_t i = 0; i < 20000; i++) store_named(f, W(i % 7), 0, i, i);
    kvr_index_stats(f->ix, &st);
    assert_true(st.bytes > before + 20000 * 32);
    assert_int_equal(st.bytes, f->fa.live);
    for (uint64_t w = 0; w < 7; w++) kvr_index_remove_worker(f->ix, w);
    for (int i = 0; i < 200; i++) { /* two generations of garbage pass */
        store_named(f, W(1), 0, 1, 1);
        clear(f, W(1));
    }
    kvr_index_stats(f->ix, &st);
    assert_true(st.bytes < before + 400000); /* the table of children stays */
    assert_int_equal(st.blocks, 0);
    assert_int_equal(st.nodes, 0);
}

static int setup_capped(void **s)
{
    return setup_with(s, (struct kvr_index_config){.bytes_max = 600000, .ttl_ns = 1000});
}

static void byte_cap_holds_and_answers_stay_right(void **s)
{
    struct fixture *f = *s;
    struct kvr_index_stats st;
    for (uint64_t i = 1; i < 20000; i++) {
        assert_int_equal(store_named(f, W(1 + i % 3), 0, i, i), 0);
        assert_true(f->fa.live <= 600000);
    }
    kvr_index_stats(f->ix, &st);
    assert_true(st.evicted_bytes > 10000 && st.blocks > 500);
    assert_int_equal(st.blocks + st.evicted_bytes, 19999);
    assert_int_equal(score(f, W(1 + 19999 % 3), L(19999)), 1);
    assert_int_equal(clear(f, W(1)), 0);
    assert_int_equal(store_named(f, W(1), 0, 5, 5), 0);
}

static void predictions_make_room_under_the_cap(void **s)
{
    struct fixture *f = *s;
    for (uint64_t i = 1; i < 20000; i++) assert_int_equal(record(f, W(1), L(i)), 0);
    struct kvr_index_stats st;
    kvr_index_stats(f->ix, &st);
    assert_true(st.pruned > 0 && f->fa.live <= 600000);
    assert_int_equal(score(f, W(1), L(19999)), 1);
    assert_int_equal(score(f, W(1), L(1)), 0);
}

/* Every allocation of a fixed run of operations fails once: no crash, no false hit, invariants hold. */
static void every_allocation_may_fail(void **)
{
    for (long at = 0; at < 400; at++) {
        struct failing_alloc fa = {.fail_at = at};
        struct kvr_alloc a = {failing_resize, &fa};
        struct kvr_index_config c = {.alloc = &a, .ttl_ns = 1000};
        struct fixture f = {0};
        if (kvr_index_create(&c, &f.ix)) {
            assert_int_equal(fa.live, 0);
            continue;
        }
        if (kvr_index_reader_create(f.ix, &f.rd)) {
            kvr_index_destroy(f.ix);
            assert_int_equal(fa.live, 0);
            continue;
        }
        for (uint64_t w = 0; w < 6; w++) {
            store(&f, W(w), L(1, 2, 3, 4));
            store_after(&f, W(w), L(1, 2), L(10 + w, 20));
            record(&f, W(w), L(1, 2, 30 + w));
            store_named(&f, W(w), 0, 99, 1);
        }
        int removed = remove_part(&f, W(0), L(1, 2, 3), 2, 3);
        int cleared = clear(&f, W(1));
        uint32_t s0 = score(&f, W(0), L(1, 2, 3, 4)), s1 = score(&f, W(1), L(1, 2, 3, 4));
        assert_true(s0 <= 2);
        assert_int_equal(cleared, 0); /* giving up never needs memory */
        assert_int_not_equal(removed, -KVR_ENOMEM);
        assert_int_equal(s1, 0);
        fa.fail_at = -1;
        assert_true(store(&f, W(0), L(1, 2, 3, 4)) == 0);
        assert_int_equal(score(&f, W(0), L(1, 2, 3, 4)), 4);
        const char *why;
        assert_true(kvr_index_validate(f.ix, &why));
        kvr_index_destroy(f.ix);
        assert_int_equal(fa.live, 0);
    }
}

static void a_worker_whose_first_store_failed_leaves_nothing_when_it_goes(void **)
{
    for (long at = 0; at < 40; at++)
        for (int way = 0; way < 2; way++) {
            struct failing_alloc fa = {.fail_at = -1};
            struct kvr_index_config c = {.alloc = &(struct kvr_alloc){failing_resize, &fa}};
            struct fixture f = {0};
            assert_int_equal(kvr_index_create(&c, &f.ix), 0);
            fa.fail_at = fa.calls + at;
            (void)store(&f, W(1), L(1, 2, 3, 4));
            fa.fail_at = -1;
            if (way) kvr_index_remove_worker(f.ix, 1);
            else kvr_index_drop_worker(f.ix, 1);
            kvr_index_destroy(f.ix);
            assert_int_equal(fa.live, 0);
        }
}

static void bad_config_is_refused(void **)
{
    struct kvr_index *ix;
    struct kvr_index_config c = {.prune_target_ratio = 1.5};
    assert_int_equal(kvr_index_create(&c, &ix), -KVR_EINVAL);
    c.prune_target_ratio = -1;
    assert_int_equal(kvr_index_create(&c, &ix), -KVR_EINVAL);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(t01_store_and_query),
        T(t02_same_store_twice),
        T(t03_continuation),
        T(t04_sizes),
        T(t05_middle_removal),
        T(t06_workers_grow_apart),
        T(t07_second_worker_catches_up),
        T(t08_store_then_remove_all),
        T(t09_shared_then_diverging),
        T(t10_removals_are_harmless),
        T(t11_dump_and_restore),
        T(t12_clear_is_per_rank),
        cmocka_unit_test_setup_teardown(t12_clear_worker_wide_by_switch, setup_worker_wide, teardown),
        T(t13_ranks_score_separately),
        T(t14_partial_removals),
        T(t15_disjoint_sequences),
        T(t16_from_tokens),
        T(t17_lora_isolation),
        T(t18_start_position),
        cmocka_unit_test_setup_teardown(t19_approximate, setup_approx, teardown),
        cmocka_unit_test_setup_teardown(t19_size_pruning_takes_leaves_first, setup_pruned, teardown),
        cmocka_unit_test_setup_teardown(t19_size_pruning_is_spread_over_decisions, setup_pruned_large, teardown),
        cmocka_unit_test_setup_teardown(t19_lanes_without_ranks_take_no_share_of_what_is_predicted, setup_pruned_lanes, teardown),
        T(t20_errors),
        T(t20_node_reuse),
        cmocka_unit_test(t21_destroy_null),
        T(t22_linear_chain_dumps_as_one_event),
        T(removal_concerns_one_worker_and_rank),
        T(blocks_that_events_store_and_remove_are_counted),
        T(two_copies_of_a_block_are_removed_one_by_one),
        T(removing_the_second_name_keeps_the_first),
        T(engines_may_name_blocks_differently),
        T(a_known_name_at_another_place_moves),
        T(same_content_under_two_prefixes),
        T(worker_ids_are_reusable),
        T(thousands_of_holders),
        T(memory_comes_back),
        cmocka_unit_test_setup_teardown(byte_cap_holds_and_answers_stay_right, setup_capped, teardown),
        cmocka_unit_test_setup_teardown(predictions_make_room_under_the_cap, setup_capped, teardown),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_worker_whose_first_store_failed_leaves_nothing_when_it_goes),
        cmocka_unit_test(bad_config_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
