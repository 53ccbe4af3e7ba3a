/* SPDX-License-Identifier: Apache-2.0 */
/* An engine that keeps a block twice: the view gives it up with the last copy, never later. */
#include "test.h"

#include <kvroute/index.h>

#include "wire/engine_memory.h"

enum { BS = 2 };

struct run {
    struct kvr_index *index;
    struct kvr_engine_stream stream;
    int emitted;
};

static bool index_holds(void *ctx, enum kvr_tier tier, uint64_t name)
{
    return kvr_index_holds(ctx, (struct kvr_worker){1, 0}, tier, name);
}

static int setup(void **state)
{
    struct run *r = calloc(1, sizeof *r);
    assert_int_equal(kvr_index_create(NULL, &r->index), 0);
    kvr_engine_stream_init(&r->stream, (struct kvr_worker){1, 0}, BS);
    r->stream.holds = index_holds;
    r->stream.holds_ctx = r->index;
    r->stream.tiers = true;
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct run *r = *state;
    kvr_engine_stream_free(&r->stream);
    kvr_index_destroy(r->index);
    free(r);
    return 0;
}

static void apply(void *ctx, const struct kvr_event *ev)
{
    struct run *r = ctx;
    r->emitted++;
    assert_int_equal(kvr_index_apply(r->index, ev), 0);
}

/* One event as the decoder gives it. Block n of a chain is called n and has the tokens {n, n}. */
static void say(struct run *r, const struct kvr_engine_event *what, uint64_t first, size_t n)
{
    uint64_t names[16];
    uint32_t tokens[16 * BS];
    struct kvr_engine_event ev = *what;
    struct kvr_engine_batch b = {.events = &ev, .events_n = 1, .hashes = names, .hashes_n = n, .tokens = tokens, .tokens_n = n * BS};
    for (size_t i = 0; i < n; i++) {
        names[i] = first + i;
        tokens[i * BS] = tokens[i * BS + 1] = (uint32_t)(first + i);
    }
    ev.hashes_n = n;
    ev.tokens_n = n * BS;
    ev.block_size = BS;
    assert_true(kvr_engine_convert(&r->stream, &b, 1, apply, r) >= 0);
}

/* Blocks first.. behind first - 1; block 1 begins the chain. */
static void stored(struct run *r, uint64_t first, size_t n)
{
    say(r, &(struct kvr_engine_event){.kind = KVR_ENGINE_STORED, .is_map = true, .has_parent = first > 1, .parent = first - 1}, first, n);
}

static void removed(struct run *r, uint64_t name)
{
    say(r, &(struct kvr_engine_event){.kind = KVR_ENGINE_REMOVED, .is_map = true}, name, 1);
}

static size_t blocks(struct run *r)
{
    return kvr_index_rank_blocks(r->index, (struct kvr_worker){1, 0});
}

static void a_block_stays_until_its_last_copy_goes(void **state)
{
    struct run *r = *state;
    stored(r, 1, 3);
    stored(r, 3, 1); /* the last block of a prompt that was all cached is computed again */
    stored(r, 3, 1);
    assert_int_equal(r->emitted, 1);
    removed(r, 3);
    removed(r, 3);
    assert_int_equal(blocks(r), 3);
    removed(r, 3);
    assert_int_equal(blocks(r), 2);
    stored(r, 3, 1);
    removed(r, 3);
    assert_int_equal(blocks(r), 2);
    assert_int_equal(r->stream.counters.copy_stored, 2);
    assert_int_equal(r->stream.counters.copy_removed, 2);
    assert_int_equal(r->stream.copies.more[KVR_TIER_DEVICE].n, 0);
}

/* Two requests compute side by side, and the second gets further. */
static void a_copy_and_what_is_behind_it(void **state)
{
    struct run *r = *state;
    stored(r, 1, 4);
    stored(r, 2, 6); /* 2, 3, 4 are copies */
    assert_int_equal(blocks(r), 7);
    for (uint64_t name = 4; name >= 2; name--) removed(r, name);
    assert_int_equal(blocks(r), 7);
    for (uint64_t name = 7; name >= 2; name--) removed(r, name);
    assert_int_equal(blocks(r), 1);
}

/* With kv_cache_report_mode full vLLM tells of the blocks that a request reuses: nothing was stored, and one removal takes them. */
static void a_store_that_is_told_again_is_no_copy(void **state)
{
    struct run *r = *state;
    stored(r, 1, 3);
    assert_false(r->stream.copies.unsure);
    for (int i = 0; i < 5; i++) stored(r, 1, 3);
    for (int i = 0; i < 5; i++) stored(r, 1, 2);
    assert_true(r->stream.copies.unsure); /* they may have been copies all the same: who stores below them later has lost nothing */
    removed(r, 3);
    assert_int_equal(blocks(r), 2);
    removed(r, 2);
    removed(r, 1);
    assert_int_equal(blocks(r), 0);
    assert_int_equal(r->stream.counters.copy_stored, 0);
}

/* Events as arrays come from releases that tell nothing twice. */
static void older_engines_copy_from_the_start_too(void **state)
{
    struct run *r = *state;
    for (int i = 0; i < 2; i++) say(r, &(struct kvr_engine_event){.kind = KVR_ENGINE_STORED}, 1, 2);
    removed(r, 2);
    assert_int_equal(blocks(r), 2);
    removed(r, 2);
    assert_int_equal(blocks(r), 1);
}

static void what_a_dump_may_have_had_is_no_copy(void **state)
{
    struct run *r = *state;
    stored(r, 1, 3);
    r->stream.again = true;
    stored(r, 2, 2);
    r->stream.again = false;
    removed(r, 3);
    assert_int_equal(blocks(r), 2);
}

static void predicted_blocks_make_no_copies(void **state)
{
    struct run *r = *state;
    struct kvr_worker w = {1, 0};
    uint64_t locals[3], names[3] = {1, 2, 3};
    uint32_t tokens[3 * BS] = {1, 1, 2, 2, 3, 3};
    assert_int_equal(kvr_hash_locals(tokens, 3 * BS, BS, false, kvr_hash_seed("", 0, "", 0), NULL, 0, locals), 3);
    stored(r, 1, 1);
    assert_int_equal(kvr_index_record(r->index, w, locals, 3, names, 3), 0);
    assert_int_equal(blocks(r), 3);
    assert_true(index_holds(r->index, KVR_TIER_DEVICE, 1));
    assert_false(index_holds(r->index, KVR_TIER_DEVICE, 2) || index_holds(r->index, KVR_TIER_DEVICE, 3));
    stored(r, 2, 2); /* what was predicted comes true */
    removed(r, 3);
    assert_int_equal(blocks(r), 2);
}

static void lower_tiers_count_for_themselves(void **state)
{
    struct run *r = *state;
    struct kvr_engine_event host = {.kind = KVR_ENGINE_STORED, .is_map = true, .has_parent = true, .parent = 1, .medium = {"CPU", 3}};
    stored(r, 1, 2);
    say(r, &host, 2, 1);
    say(r, &host, 2, 1);
    assert_true(index_holds(r->index, KVR_TIER_HOST_PINNED, 2) && !index_holds(r->index, KVR_TIER_HOST_PINNED, 1));
    host.kind = KVR_ENGINE_REMOVED;
    say(r, &host, 2, 1);
    assert_true(index_holds(r->index, KVR_TIER_HOST_PINNED, 2));
    removed(r, 2);
    assert_false(index_holds(r->index, KVR_TIER_DEVICE, 2));
    say(r, &host, 2, 1);
    assert_false(index_holds(r->index, KVR_TIER_HOST_PINNED, 2));
}

static struct kvr_engine_stream *the_stream(void *ctx, uint32_t rank)
{
    (void)rank;
    return ctx;
}

static void copies_outlive_a_restart_and_not_a_clear(void **state)
{
    struct run *r = *state;
    struct kvr_buf b = {0};
    stored(r, 1, 3);
    stored(r, 3, 1);
    kvr_engine_memory_write(&r->stream, &b);
    kvr_engine_stream_reset(&r->stream);
    assert_int_equal(kvr_engine_memory_read(b.data, b.len, the_stream, &r->stream), 0);
    kvr_buf_free(&b);
    removed(r, 3);
    assert_int_equal(blocks(r), 3);
    stored(r, 3, 1);
    say(r, &(struct kvr_engine_event){.kind = KVR_ENGINE_CLEARED}, 0, 0);
    stored(r, 1, 3);
    removed(r, 3);
    assert_int_equal(blocks(r), 2);
}

/* An engine: cells, each with one block; a request uses a prefix, computes some blocks behind it, and lets go of the deepest first. */
enum { CELLS = 24, CHAIN = 8, ROUNDS = 4000 };
struct cells {
    uint64_t name[CELLS], used[CELLS], clock;
    int count[CHAIN + 1];
};

static void use(struct cells *c, uint64_t first, uint64_t last)
{
    for (uint64_t name = last; name >= first; name--) {
        int i = 0;
        while (c->name[i] != name) i++; /* one of its copies */
        c->used[i] = ++c->clock;
    }
}

static void compute(struct run *r, struct cells *c, uint64_t name)
{
    int lru = 0;
    for (int i = 1; i < CELLS; i++)
        if (c->used[i] < c->used[lru]) lru = i;
    if (c->name[lru]) {
        c->count[c->name[lru]]--;
        removed(r, c->name[lru]);
    }
    c->name[lru] = name;
    c->used[lru] = ++c->clock;
    c->count[name]++;
}

static void random_copies_against_an_engine_of_cells(void **state)
{
    struct run *r = *state;
    struct cells c = {.clock = 1};
    uint64_t rng = 7;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t depth = 0;
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        while (depth < CHAIN && c.count[depth + 1]) depth++;
        assert_int_equal(blocks(r), depth);
        uint64_t from = KVR_MIN((rng >> 33) % CHAIN + 1, depth + 1), upto = KVR_MIN(from + (rng >> 50) % 3, (uint64_t)CHAIN);
        if (c.count[1] && from == 1) from = 2; /* copies from the start are not counted */
        if (upto < from) continue;
        use(&c, 1, from - 1);
        for (uint64_t name = from; name <= upto; name++) compute(r, &c, name);
        stored(r, from, upto - from + 1);
        use(&c, 1, upto);
    }
    assert_true(r->stream.counters.copy_removed > 500);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_block_stays_until_its_last_copy_goes),   T(a_copy_and_what_is_behind_it),
        T(a_store_that_is_told_again_is_no_copy),    T(older_engines_copy_from_the_start_too),
        T(what_a_dump_may_have_had_is_no_copy),      T(predicted_blocks_make_no_copies),
        T(lower_tiers_count_for_themselves),         T(copies_outlive_a_restart_and_not_a_clear),
        T(random_copies_against_an_engine_of_cells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
