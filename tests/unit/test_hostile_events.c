/* SPDX-License-Identifier: Apache-2.0 */
/* What one worker's events can make everybody else wait for: measured in steps and entries, not in seconds. */
#include "test.h"

#include <kvroute/index.h>
#include "base/map64.h"
#include "index/internal.h"

static const struct kvr_worker W = {1, 0};

static int store_one(struct kvr_index *ix, uint64_t parent, uint64_t name, uint64_t local)
{
    struct kvr_block b = {name, local};
    struct kvr_event ev = {
        .worker = W, .kind = KVR_EVENT_STORED, .has_parent = parent != 0, .parent_hash = parent, .blocks = &b, .blocks_n = 1};
    return kvr_index_apply(ix, &ev);
}

static int remove_one(struct kvr_index *ix, uint64_t name)
{
    struct kvr_event ev = {.worker = W, .kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    return kvr_index_apply(ix, &ev);
}

static void check(struct kvr_index *ix)
{
    const char *why = NULL;
    if (!kvr_index_validate(ix, &why)) fail_msg("%s", why);
}

static struct kvr_index_stats stats_of(struct kvr_index *ix)
{
    struct kvr_index_stats st;
    kvr_index_stats(ix, &st);
    return st;
}

/* ---- one block under many names ------------------------------------------------------------------------------------ */

static void thirty_thousand_names_for_one_block_are_bounded_and_never_a_false_hit(void **)
{
    enum { STORES = 30000 };
    struct kvr_index *ix;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    for (uint64_t i = 1; i <= STORES; i++) assert_int_equal(store_one(ix, 0, i, 77), 0);
    struct kvr_index_stats st = stats_of(ix);
    assert_int_equal(st.blocks, 1);
    assert_int_equal(st.aliases, ALIASES_MAX - 1);
    assert_int_equal(st.aliases_refused, STORES - ALIASES_MAX);
    check(ix);
    /* A name that was left out is not known: its removal takes nothing. */
    assert_int_equal(remove_one(ix, STORES), -KVR_ENOTFOUND);
    assert_int_equal(stats_of(ix).blocks, 1);
    /* With the last known name the block goes: a hit less, never one too many. */
    for (uint64_t i = 1; i <= ALIASES_MAX; i++) assert_int_equal(remove_one(ix, i), 0);
    assert_int_equal(stats_of(ix).blocks, 0);
    check(ix);
    kvr_index_destroy(ix);
}

static void names_of_many_blocks_in_any_order_make_few_objects(void **)
{
    enum { CHAIN = 1000 };
    struct kvr_block b[CHAIN];
    struct kvr_index *ix;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    for (uint64_t i = 0; i < CHAIN; i++) b[i] = (struct kvr_block){1000 + i, 5000 + i};
    struct kvr_event ev = {.worker = W, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = CHAIN};
    assert_int_equal(kvr_index_apply(ix, &ev), 0);
    for (uint64_t i = CHAIN - 1; i > 0; i--) assert_int_equal(store_one(ix, 1000 + i - 1, 9000 + i, 5000 + i), 0);
    struct kvr_index_stats st = stats_of(ix);
    assert_true(st.aliases < ALIAS_OBJECTS_MAX);
    assert_int_equal(st.aliases + st.aliases_refused, CHAIN - 1);
    assert_int_equal(st.blocks, CHAIN);
    check(ix);
    kvr_index_destroy(ix);
}

/* Removals in the middle of second names split what names them, again and again. */
static void splits_of_names_are_bounded(void **)
{
    enum { CHAIN = 1000 };
    struct kvr_block b[CHAIN];
    struct kvr_index *ix;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    for (uint64_t layer = 1; layer <= 2; layer++) {
        for (uint64_t i = 0; i < CHAIN; i++) b[i] = (struct kvr_block){layer * 10000 + i, 5000 + i};
        struct kvr_event ev = {.worker = W, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = CHAIN};
        assert_int_equal(kvr_index_apply(ix, &ev), 0);
    }
    for (uint64_t i = 1; i < CHAIN; i += 2) (void)remove_one(ix, 20000 + i);
    struct kvr_index_stats st = stats_of(ix);
    assert_true(st.runs <= 2 + ALIAS_OBJECTS_MAX);
    assert_true(st.aliases_refused > 0);
    check(ix);
    kvr_index_destroy(ix);
}

/* ---- names below which they are to go again ------------------------------------------------------------------------- */

/* A chain of runs of one block each: a run that was longer once is not extended. */
static void build_ladder(struct kvr_index *ix, uint64_t depth)
{
    for (uint64_t i = 1, parent = 0; i <= depth; parent = i++) {
        assert_int_equal(store_one(ix, parent, i, 1000000 + i), 0);
        assert_int_equal(store_one(ix, i, 500000 + i, 7), 0);
        assert_int_equal(remove_one(ix, 500000 + i), 0);
    }
}

static void looking_for_what_is_above_ends(void **)
{
    enum { DEPTH = 3000, NAMES = 200 };
    struct kvr_block b[NAMES];
    struct kvr_index *ix;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    build_ladder(ix, DEPTH);
    for (uint64_t i = 0; i < NAMES; i++) {
        assert_int_equal(store_one(ix, 0, 800000 + i, 9000000 + i), 0); /* each is known elsewhere */
        b[i] = (struct kvr_block){800000 + i, 60000 + i};
    }
    struct kvr_event ev = {.worker = W, .kind = KVR_EVENT_STORED, .has_parent = true, .parent_hash = DEPTH, .blocks = b, .blocks_n = NAMES};
    assert_int_equal(kvr_index_apply(ix, &ev), -KVR_ESEQUENCE);
    assert_int_equal(stats_of(ix).invalid_sequence, 1);
    check(ix);
    kvr_index_destroy(ix);
}

/* ---- a large view goes ------------------------------------------------------------------------------------------------ */

static uint32_t depth_of(struct kvr_index *ix, struct kvr_worker w, const uint64_t *q, size_t n)
{
    struct kvr_index_reader *rd;
    struct kvr_overlap out[8];
    uint32_t depth = 0;
    assert_int_equal(kvr_index_reader_create(ix, &rd), 0);
    long k = kvr_index_match(rd, q, n, out, 8);
    for (long i = 0; i < k; i++)
        if (kvr_worker_cmp(out[i].worker, w) == 0) depth = out[i].depth;
    kvr_index_reader_destroy(rd);
    return depth;
}

static void store_chains(struct kvr_index *ix, struct kvr_worker w, uint64_t chains, uint64_t length, enum kvr_tier tier)
{
    for (uint64_t c = 0; c < chains; c++)
        for (uint64_t i = 0; i < length; i++) {
            struct kvr_block b = {c * 1000 + i + 1, 70000000 + c * 1000 + i};
            struct kvr_event ev = {.worker = w,
                                   .kind = KVR_EVENT_STORED,
                                   .tier = tier,
                                   .has_parent = i > 0,
                                   .parent_hash = c * 1000 + i,
                                   .blocks = &b,
                                   .blocks_n = 1};
            assert_int_equal(kvr_index_apply(ix, &ev), 0);
        }
}

/* Dropping is one step, whatever the view holds; giving back is many, and between them everything goes on. */
static void a_large_view_is_dropped_at_once_and_given_back_in_slices(void **)
{
    enum { CHAINS = 200, LENGTH = 50 };
    const struct kvr_worker other = {2, 0};
    const uint64_t q[] = {70000000, 70000001, 70000002};
    struct kvr_index *ix;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    store_chains(ix, W, CHAINS, LENGTH, KVR_TIER_DEVICE);
    store_chains(ix, W, CHAINS, LENGTH, KVR_TIER_HOST_PINNED);
    store_chains(ix, other, 1, 3, KVR_TIER_DEVICE);
    build_ladder(ix, 500);
    size_t held = stats_of(ix).blocks;
    kvr_index_drop_worker(ix, W.worker_id);
    assert_int_equal(stats_of(ix).blocks, held); /* nothing was given back yet */
    assert_int_equal(stats_of(ix).ranks, 1);
    assert_int_equal(kvr_index_rank_blocks(ix, W), 0);
    assert_int_equal(depth_of(ix, W, q, 3), 0);
    assert_int_equal(depth_of(ix, other, q, 3), 3);
    check(ix);
    /* The worker comes anew meanwhile, and is dropped again. */
    store_chains(ix, W, 1, 2, KVR_TIER_DEVICE);
    assert_int_equal(depth_of(ix, W, q, 3), 2);
    check(ix);
    size_t slices = 0;
    while (kvr_index_tend(ix, 100)) {
        if (slices++ % 16 == 0) check(ix);
    }
    assert_true(slices > 100);
    assert_int_equal(depth_of(ix, W, q, 3), 2);
    assert_int_equal(stats_of(ix).blocks, 5);
    assert_int_equal(stats_of(ix).lower_tier_blocks, 0);
    kvr_index_remove_worker(ix, W.worker_id);
    assert_int_equal(stats_of(ix).blocks, 3);
    check(ix);
    kvr_index_destroy(ix);
}

static void what_is_dropped_does_not_pile_up_behind_the_stores_that_follow(void **)
{
    enum { BLOCKS = 5000 };
    struct kvr_index *ix;
    struct kvr_block b[BLOCKS];
    struct kvr_event ev = {.worker = W, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = BLOCKS};
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    for (uint64_t i = 0; i < BLOCKS; i++) b[i] = (struct kvr_block){i + 1, 70000000 + i};
    for (int restarts = 0; restarts < 20; restarts++) {
        for (int tier = KVR_TIER_DEVICE; tier <= KVR_TIER_HOST_PINNED; tier++) {
            ev.tier = (enum kvr_tier)tier;
            assert_int_equal(kvr_index_apply(ix, &ev), 0);
        }
        assert_true(stats_of(ix).blocks + stats_of(ix).lower_tier_blocks <= 3 * BLOCKS);
        kvr_index_drop_rank(ix, W);
    }
    check(ix);
    kvr_index_destroy(ix);
}

static int nothing(void *ctx, const struct kvr_event *)
{
    ++*(size_t *)ctx;
    return 0;
}

static void a_walk_over_a_view_that_is_dropped_ends(void **)
{
    struct kvr_index *ix;
    struct kvr_index_walk *walk;
    size_t pieces = 0;
    bool more = true;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    store_chains(ix, W, 20, 20, KVR_TIER_DEVICE);
    store_chains(ix, W, 20, 20, KVR_TIER_HOST_PINNED);
    assert_int_equal(kvr_index_walk_begin(ix, W, &walk), 0);
    assert_int_equal(kvr_index_walk_next(walk, 50, nothing, &pieces, &more), 0);
    assert_true(more);
    kvr_index_drop_rank(ix, W);
    store_chains(ix, W, 1, 3, KVR_TIER_DEVICE);
    while (more) assert_int_equal(kvr_index_walk_next(walk, 50, nothing, &pieces, &more), 0);
    kvr_index_walk_end(walk);
    kvr_index_destroy(ix); /* with content that was dropped and not given back */
}

/* ---- tables --------------------------------------------------------------------------------------------------------- */

/* kvr_mix64 backwards: keys that meet wherever the table does not have a secret. */
static uint64_t unmix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0x9cb4b2f8129337dbULL;
    x ^= x >> 33;
    x *= 0x4f74430c22a54005ULL;
    x ^= x >> 33;
    return x;
}

static void keys_made_to_meet_in_a_map_do_not(void **)
{
    enum { KEYS = 20000 };
    struct kvr_map64 m = {0};
    size_t longest = 0, now = 0;
    for (uint64_t i = 1; i <= KEYS; i++) {
        assert_int_equal(kvr_mix64(unmix(i << 40)), i << 40);
        assert_int_equal(kvr_map64_put(&m, unmix(i << 40), i), 0);
    }
    for (size_t i = 0; i < m.cap; i++) {
        now = m.slots[i].used ? now + 1 : 0;
        longest = KVR_MAX(longest, now);
    }
    assert_true(longest < 1000);
    for (uint64_t i = 1; i <= KEYS; i++) assert_int_equal(*kvr_map64_get(&m, unmix(i << 40)), i);
    kvr_map64_clear(&m);
}

static void the_secret_of_a_process_stays(void **)
{
    uint64_t s = kvr_secret();
    assert_true(s != 0);
    assert_int_equal(kvr_secret(), s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thirty_thousand_names_for_one_block_are_bounded_and_never_a_false_hit),
        cmocka_unit_test(names_of_many_blocks_in_any_order_make_few_objects),
        cmocka_unit_test(splits_of_names_are_bounded),
        cmocka_unit_test(looking_for_what_is_above_ends),
        cmocka_unit_test(a_large_view_is_dropped_at_once_and_given_back_in_slices),
        cmocka_unit_test(what_is_dropped_does_not_pile_up_behind_the_stores_that_follow),
        cmocka_unit_test(a_walk_over_a_view_that_is_dropped_ends),
        cmocka_unit_test(keys_made_to_meet_in_a_map_do_not),
        cmocka_unit_test(the_secret_of_a_process_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
