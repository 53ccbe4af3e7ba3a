/* SPDX-License-Identifier: Apache-2.0 */
/* An engine that keeps a block twice: the view gives it up with the last copy, never later. */
#include "test.h"

#include <kvroute/index.h>

#include "wire/engine_memory.h"

enum { BS = 2 };

enum { EVENTS = 64, BLOCKS = 512 };

struct run {
    struct kvr_index *index;
    struct kvr_engine_stream stream;
    int emitted;
    /* the batch that is being written */
    struct kvr_engine_event events[EVENTS];
    uint64_t names[BLOCKS];
    uint32_t tokens[BLOCKS * BS];
    size_t events_n, names_n;
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
    int rc = kvr_index_apply(r->index, ev);
    r->emitted++;
    if (rc) assert_true(r->stream.copies.unsure); /* the view lacks something */
}

/* One event more of the batch, as the decoder gives it. Block n of a chain is called n and has the tokens {n, n}. */
static void write_event(struct run *r, const struct kvr_engine_event *what, uint64_t first, size_t n)
{
    struct kvr_engine_event *ev = &r->events[r->events_n++];
    assert_true(r->events_n <= EVENTS && r->names_n + n <= BLOCKS);
    *ev = *what;
    ev->hashes_at = r->names_n;
    ev->tokens_at = r->names_n * BS;
    ev->hashes_n = n;
    ev->tokens_n = n * BS;
    ev->block_size = BS;
    for (size_t i = 0; i < n; i++, r->names_n++) {
        r->names[r->names_n] = first + i;
        r->tokens[r->names_n * BS] = r->tokens[r->names_n * BS + 1] = (uint32_t)(first + i);
    }
}

static void send_batch(struct run *r)
{
    struct kvr_engine_batch b = {.events = r->events,
                                 .events_n = r->events_n,
                                 .hashes = r->names,
                                 .hashes_n = r->names_n,
                                 .tokens = r->tokens,
                                 .tokens_n = r->names_n * BS};
    assert_true(kvr_engine_convert(&r->stream, &b, 1, apply, r) >= 0);
    r->events_n = r->names_n = 0;
}

static void say(struct run *r, const struct kvr_engine_event *what, uint64_t first, size_t n)
{
    write_event(r, what, first, n);
    send_batch(r);
}

/* Blocks first.. behind first - 1; block 1 begins the chain. */
static void write_stored(struct run *r, uint64_t first, size_t n)
{
    write_event(r, &(struct kvr_engine_event){.kind = KVR_ENGINE_STORED, .is_map = true, .has_parent = first > 1, .parent = first - 1},
                first, n);
}

static void write_removed(struct run *r, uint64_t name)
{
    write_event(r, &(struct kvr_engine_event){.kind = KVR_ENGINE_REMOVED, .is_map = true}, name, 1);
}

static void stored(struct run *r, uint64_t first, size_t n)
{
    write_stored(r, first, n);
    send_batch(r);
}

static void removed(struct run *r, uint64_t name)
{
    write_removed(r, name);
    send_batch(r);
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

/* Computed without reading the cache, or a prompt of one block. */
static void a_copy_of_the_start_of_a_chain(void **state)
{
    struct run *r = *state;
    stored(r, 1, 3);
    stored(r, 1, 3);
    stored(r, 1, 1);
    assert_int_equal(r->stream.copies.unproven, 4);
    for (uint64_t name = 3; name >= 1; name--) removed(r, name);
    assert_int_equal(blocks(r), 3);
    removed(r, 3);
    removed(r, 2);
    removed(r, 1);
    assert_int_equal(blocks(r), 1);
    removed(r, 1);
    assert_int_equal(blocks(r), 0);
    assert_int_equal(r->stream.copies.unproven, 0);
    assert_int_equal(r->stream.copies.more[KVR_TIER_DEVICE].n, 0);
    assert_false(r->stream.copies.reports || r->stream.copies.unsure);
}

/* A prompt is computed anew and is longer than what was there: the rest stands behind its copies, not at the start. */
static void what_is_behind_a_copy_of_the_start(void **state)
{
    struct run *r = *state;
    uint64_t locals[4], names[4];
    uint32_t tokens[4 * BS] = {1, 1, 2, 2, 3, 3, 4, 4};
    assert_int_equal(kvr_hash_locals(tokens, 4 * BS, BS, false, kvr_hash_seed("", 0, "", 0), NULL, 0, locals), 4);
    stored(r, 1, 2);
    stored(r, 1, 4);
    assert_int_equal(kvr_index_names(r->index, (struct kvr_worker){1, 0}, locals, 4, names), 4);
    for (uint64_t i = 0; i < 4; i++) assert_int_equal(names[i], i + 1);
}

/* With kv_cache_report_mode full vLLM tells of the blocks that a request reuses, then of those that it computes: of the first nothing was
 * stored, and one removal takes them. */
static void a_report_shows_itself_and_is_no_copy(void **state)
{
    struct run *r = *state;
    stored(r, 1, 3);
    say(r, &(struct kvr_engine_event){.kind = KVR_ENGINE_STORED, .is_map = true}, 11, 1); /* somebody else's */
    write_stored(r, 1, 3);
    write_removed(r, 11);
    write_stored(r, 4, 2);
    send_batch(r);
    assert_true(r->stream.copies.reports);
    assert_int_equal(r->stream.counters.copy_reported, 3);
    assert_int_equal(r->stream.counters.copy_taken_back, 0); /* nothing else was counted: the view lacks nothing */
    assert_false(r->stream.copies.unsure);
    stored(r, 1, 3);
    assert_true(r->stream.copies.unsure); /* it may have been a copy all the same: who stores below it later has lost nothing */
    for (uint64_t name = 5; name >= 1; name--) {
        assert_int_equal(blocks(r), name);
        removed(r, name);
    }
    assert_int_equal(blocks(r), 0);
    stored(r, 1, 3);
    stored(r, 3, 1); /* what goes on with a chain is a copy, reports or not */
    removed(r, 3);
    assert_int_equal(blocks(r), 3);
}

/* A report that nothing follows is taken for a copy, until another one shows what it was. */
static void reports_that_were_counted_are_taken_back(void **state)
{
    const char *why = NULL;
    struct run *r = *state;
    stored(r, 1, 6);
    stored(r, 6, 1);
    stored(r, 1, 5);
    stored(r, 1, 4);
    for (uint64_t name = 6; name >= 3; name--) removed(r, name);
    assert_int_equal(blocks(r), 6); /* it has 1, 2 and a copy of 6 */
    assert_true(kvr__copies_doubtful(&r->stream.copies, KVR_TIER_DEVICE, 4));
    assert_false(kvr__copies_doubtful(&r->stream.copies, KVR_TIER_DEVICE, 2) ||
                 kvr__copies_doubtful(&r->stream.copies, KVR_TIER_DEVICE, 6));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r->stream.counters.copy_taken_back, 0);
        write_stored(r, 1, 2);
        write_stored(r, 3, 2); /* 3 was not there, whatever is counted */
        send_batch(r);
        if (i == 2) break;
        removed(r, 4);
        removed(r, 3);
    }
    assert_int_equal(r->stream.counters.copy_taken_back, 13);
    assert_true(r->stream.copies.unsure && r->stream.copies.unproven == 0);
    assert_true(index_holds(r->index, KVR_TIER_DEVICE, 4) && !index_holds(r->index, KVR_TIER_DEVICE, 5));
    removed(r, 4); /* 6, behind 5, went with it */
    removed(r, 3);
    assert_int_equal(blocks(r), 2);
    assert_true(kvr_index_validate(r->index, &why));
}

/* One prompt is computed anew, another one goes on with something else of it: neither shows a report. */
static void copies_beside_others_show_no_report(void **state)
{
    struct run *r = *state;
    stored(r, 1, 4);
    write_stored(r, 1, 4);
    write_stored(r, 3, 3); /* behind 2 */
    send_batch(r);
    write_stored(r, 1, 4);
    write_event(r, &(struct kvr_engine_event){.kind = KVR_ENGINE_STORED, .is_map = true}, 20, 1);
    write_stored(r, 5, 1);
    send_batch(r);
    stored(r, 1, 4);
    stored(r, 5, 2); /* a batch of its own */
    write_stored(r, 1, 4);
    write_stored(r, 5, 3); /* the next chunk */
    send_batch(r);
    for (int i = 0; i < 6; i++) {
        if (i % 2 == 0) stored(r, 1, 7);
        write_stored(r, 1, 7);
        write_stored(r, 8, 1); /* a block of the answer */
        send_batch(r);
        removed(r, 8);
    }
    assert_false(r->stream.copies.reports);
    assert_int_equal(r->stream.copies.unproven, 4 * 4 + 9 * 7);
}

static void one_block_more_shows_a_report_in_the_end(void **state)
{
    struct run *r = *state;
    stored(r, 1, 3);
    for (int i = 0; i < 3; i++) {
        assert_false(r->stream.copies.reports);
        write_stored(r, 1, 3);
        write_stored(r, 4, 1);
        send_batch(r);
        removed(r, 4);
    }
    assert_true(r->stream.copies.reports);
    assert_int_equal(r->stream.counters.copy_taken_back, 6);
}

static void another_life_of_the_engine_is_not_asked_for_reports_yet(void **state)
{
    struct run *r = *state;
    stored(r, 1, 1);
    write_stored(r, 1, 1);
    write_stored(r, 2, 2);
    send_batch(r);
    kvr_engine_stream_reset(&r->stream); /* the content is asked for anew */
    assert_true(r->stream.copies.reports);
    kvr_engine_stream_restart(&r->stream);
    assert_false(r->stream.copies.reports);
}

/* Blocks that left the view by something else than a removal have no copies when they come again. */
static void what_is_stored_anew_has_no_copies_of_before(void **state)
{
    struct run *r = *state;
    stored(r, 1, 3);
    stored(r, 2, 2);
    kvr_index_drop_rank(r->index, (struct kvr_worker){1, 0});
    stored(r, 1, 3);
    removed(r, 3);
    assert_int_equal(blocks(r), 2);
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

static struct kvr_engine_stream *the_stream(void *ctx, uint32_t)
{
    return ctx;
}

static void write_and_read(struct run *r)
{
    struct kvr_buf b = {0};
    kvr_engine_memory_write(&r->stream, &b);
    kvr_engine_stream_restart(&r->stream);
    assert_int_equal(kvr_engine_memory_read(b.data, b.len, the_stream, &r->stream), 0);
    kvr_buf_free(&b);
}

static void what_is_not_proven_outlives_a_restart_as_such(void **state)
{
    struct run *r = *state;
    stored(r, 1, 3);
    stored(r, 1, 3);
    stored(r, 2, 1);
    removed(r, 3);
    removed(r, 2);
    write_and_read(r);
    assert_int_equal(r->stream.copies.unproven, 3);
    assert_true(kvr__copies_doubtful(&r->stream.copies, KVR_TIER_DEVICE, 3));
    assert_false(r->stream.copies.reports || kvr__copies_doubtful(&r->stream.copies, KVR_TIER_DEVICE, 2));
    assert_int_equal(kvr_engine_stream_take_back(&r->stream, 1, apply, r), 1);
    assert_int_equal(blocks(r), 2);
    stored(r, 2, 1);
    write_and_read(r);
    assert_true(r->stream.copies.reports && r->stream.copies.unproven == 0);
    removed(r, 2);
    assert_int_equal(blocks(r), 2);
    removed(r, 2);
    removed(r, 1);
    assert_int_equal(blocks(r), 0);
}

static void copies_outlive_a_restart_and_not_a_clear(void **state)
{
    struct run *r = *state;
    stored(r, 1, 3);
    stored(r, 3, 1);
    write_and_read(r);
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
    uint64_t others;
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
        if (c->name[lru] <= CHAIN) c->count[c->name[lru]]--;
        write_removed(r, c->name[lru]);
    }
    c->name[lru] = name;
    c->used[lru] = ++c->clock;
    if (name <= CHAIN) c->count[name]++;
}

/* Other prompts of a block each. */
static void others(struct run *r, struct cells *c, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t name = 1000 + c->others++;
        compute(r, c, name);
        write_event(r, &(struct kvr_engine_event){.kind = KVR_ENGINE_STORED, .is_map = true}, name, 1);
        send_batch(r);
    }
}

static uint64_t depth_of(const struct cells *c)
{
    uint64_t depth = 0;
    while (depth < CHAIN && c->count[depth + 1]) depth++;
    return depth;
}

/* A request that reuses from - 1 blocks. */
static void request(struct run *r, struct cells *c, uint64_t from, uint64_t upto, bool reports)
{
    use(c, 1, from - 1);
    if (reports && from > 1) write_stored(r, 1, from - 1);
    for (uint64_t name = from; name <= upto; name++) compute(r, c, name);
    if (upto >= from) write_stored(r, from, upto - from + 1);
    send_batch(r);
    use(c, 1, KVR_MAX(upto, from - 1));
}

static uint64_t draw(uint64_t *rng)
{
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    return *rng >> 33;
}

static void random_copies_against_an_engine_of_cells(void **state)
{
    struct run *r = *state;
    struct cells c = {.clock = 1};
    uint64_t rng = 7;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t depth = depth_of(&c), any = draw(&rng) % CHAIN + 1, n = draw(&rng) % 3 + 1, from = KVR_MIN(any, depth + 1);
        assert_int_equal(blocks(r), depth);
        request(r, &c, from, KVR_MIN(from + n - 1, (uint64_t)CHAIN), false);
    }
    assert_true(r->stream.counters.copy_removed > 500);
    assert_false(r->stream.copies.reports);
}

/* Some requests ask for reports. Those that nothing follows cannot be told from copies: the view may have too much, until one shows itself.
 */
static void random_reports_against_an_engine_of_cells(void **state)
{
    struct run *r = *state;
    int low = 0, shown = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct cells c = {.clock = 1};
        uint64_t rng = seed;
        kvr_index_drop_rank(r->index, (struct kvr_worker){1, 0});
        kvr_engine_stream_restart(&r->stream);
        for (int round = 0; round < ROUNDS / 20; round++) {
            uint64_t depth = depth_of(&c), any = draw(&rng) % CHAIN + 1, n = draw(&rng) % 3, from = KVR_MIN(any, depth + 1);
            others(r, &c, draw(&rng) % 12);
            depth = depth_of(&c);
            from = KVR_MIN(any, depth + 1);
            bool reports = round > 50 && draw(&rng) % 3 == 0;
            if (reports) from = depth + 1; /* all that is there */
            request(r, &c, from, KVR_MIN(from + n - 1, (uint64_t)CHAIN), reports);
            uint64_t held = 0;
            while (held < CHAIN && index_holds(r->index, KVR_TIER_DEVICE, held + 1)) held++;
            if (round <= 50) assert_int_equal(held, depth_of(&c));
            if (r->stream.copies.reports) assert_true(held <= depth_of(&c));
            low += held < depth_of(&c);
        }
        shown += r->stream.copies.reports;
    }
    if (shown < 20 || low < 100) fail_msg("%d of 40 shown, %d times low", shown, low);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_block_stays_until_its_last_copy_goes),
        T(a_copy_and_what_is_behind_it),
        T(a_copy_of_the_start_of_a_chain),
        T(what_is_behind_a_copy_of_the_start),
        T(a_report_shows_itself_and_is_no_copy),
        T(reports_that_were_counted_are_taken_back),
        T(copies_beside_others_show_no_report),
        T(one_block_more_shows_a_report_in_the_end),
        T(another_life_of_the_engine_is_not_asked_for_reports_yet),
        T(what_is_stored_anew_has_no_copies_of_before),
        T(older_engines_copy_from_the_start_too),
        T(what_a_dump_may_have_had_is_no_copy),
        T(predicted_blocks_make_no_copies),
        T(lower_tiers_count_for_themselves),
        T(what_is_not_proven_outlives_a_restart_as_such),
        T(copies_outlive_a_restart_and_not_a_clear),
        T(random_copies_against_an_engine_of_cells),
        T(random_reports_against_an_engine_of_cells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
