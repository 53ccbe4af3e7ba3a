/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated engine: its events are exactly its cache, its cached_tokens what it really held. */
#include "test.h"

#include <kvroute/hash.h>
#include <kvroute/index.h>

#include "sim/engine.h"

enum { BS = 4, BLOCKS = 64 };

struct fixture {
    struct mock_engine *e;
    struct kvr_index *ix; /* follows the events */
    struct kvr_index_reader *rd;
    int stored, removed, cleared, finished;
    uint64_t tokens, last_cached;
    bool copies; /* every copy is told */
    bool keeps;  /* blocks of a request that has ended */
    struct mock_hold *hold;
    struct mock_request *loading, *ended[512]; /* gone, these are only compared */
    size_t found;                              /* of its prompt, in the cache */
    uint32_t last_token;
};

static void on_event(void *ctx, const struct kvr_event *in, const uint32_t *tokens, size_t n, void *)
{
    struct fixture *f = ctx;
    struct kvr_event ev = *in;
    struct kvr_block b[512];
    uint64_t l[512];
    ev.worker = (struct kvr_worker){1, 0};
    if (ev.kind == KVR_EVENT_STORED) {
        assert_int_equal(n, ev.blocks_n * BS);
        kvr_hash_locals(tokens, n, BS, false, 1337, NULL, 0, l);
        for (size_t i = 0; i < ev.blocks_n; i++) b[i] = (struct kvr_block){ev.blocks[i].block_hash, l[i]};
        ev.blocks = b;
        f->stored += (int)ev.blocks_n;
    }
    if (ev.kind == KVR_EVENT_REMOVED) f->removed += (int)ev.removed_n;
    f->cleared += ev.kind == KVR_EVENT_CLEARED;
    if (f->copies) return; /* the index keeps a set */
    assert_int_equal(kvr_index_apply(f->ix, &ev), 0);
}

static void on_token(void *ctx, struct mock_request *r, uint32_t token, uint64_t, bool last)
{
    struct fixture *f = ctx;
    f->tokens++;
    f->last_token = token;
    if (last && f->finished < (int)KVR_ARRAY_LEN(f->ended)) f->ended[f->finished] = r;
    if (last) f->finished++;
    f->last_cached = mock_request_cached(r);
    if (last && f->keeps) assert_non_null(f->hold = mock_engine_hold(f->e, r));
}

static void on_load(void *ctx, struct mock_request *r, size_t cached)
{
    struct fixture *f = ctx;
    f->loading = r;
    f->found = cached;
}

static int setup_with(void **s, uint32_t blocks, uint32_t seqs, bool caching, bool copies)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->copies = copies;
    struct mock_engine_config c = {.block_size = BS,
                                   .num_blocks = blocks,
                                   .max_num_seqs = seqs,
                                   .max_batched_tokens = 64,
                                   .speedup = 1,
                                   .prefix_caching = caching,
                                   .first_and_last = !copies,
                                   .on_event = on_event,
                                   .on_token = on_token,
                                   .on_load = on_load,
                                   .ctx = f};
    f->e = mock_engine_create(&c);
    kvr_index_create(NULL, &f->ix);
    kvr_index_reader_create(f->ix, &f->rd);
    *s = f;
    return 0;
}

static int setup(void **s)
{
    return setup_with(s, BLOCKS, 8, true, false);
}
static int setup_uncached(void **s)
{
    return setup_with(s, BLOCKS, 8, false, false);
}
static int setup_narrow(void **s)
{
    return setup_with(s, BLOCKS, 1, true, false);
}
static int setup_copies(void **s)
{
    return setup_with(s, BLOCKS, 8, true, true);
}

static int teardown(void **s)
{
    struct fixture *f = *s;
    mock_engine_destroy(f->e);
    kvr_index_destroy(f->ix);
    free(f);
    return 0;
}

static void drain(struct fixture *f)
{
    while (mock_engine_begin_pass(f->e)) mock_engine_end_pass(f->e);
}

static void submit(struct fixture *f, uint32_t first, size_t n, uint64_t max)
{
    uint32_t t[512];
    for (size_t i = 0; i < n; i++) t[i] = first + (uint32_t)i;
    assert_non_null(mock_engine_submit(f->e, &(struct mock_engine_request){.tokens = t, .n = n, .max_tokens = max}));
}

static struct mock_request *submit_remote(struct fixture *f, uint32_t first, size_t n, uint64_t max)
{
    uint32_t t[512];
    for (size_t i = 0; i < n; i++) t[i] = first + (uint32_t)i;
    return mock_engine_submit(f->e, &(struct mock_engine_request){.tokens = t, .n = n, .max_tokens = max, .remote = true});
}

static uint64_t used(const struct fixture *f)
{
    struct mock_engine_stats st;
    mock_engine_stats(f->e, &st);
    return st.used_blocks;
}

/* The index that followed the events holds just what the engine caches. */
static void check_view(struct fixture *f)
{
    struct mock_engine_stats st;
    const char *why;
    mock_engine_stats(f->e, &st);
    assert_int_equal(kvr_index_rank_blocks(f->ix, (struct kvr_worker){1, 0}), st.cached_blocks);
    assert_int_equal(f->stored - f->removed, st.cached_blocks);
    assert_true(kvr_index_validate(f->ix, &why));
}

static void second_time_is_cached(void **s)
{
    struct fixture *f = *s;
    submit(f, 0, 18, 3);
    drain(f);
    assert_int_equal(f->last_cached, 0);
    assert_int_equal(f->tokens, 3);
    submit(f, 0, 18, 3);
    drain(f);
    assert_int_equal(f->last_cached, 16);
    check_view(f);
}

static void at_least_one_token_is_computed(void **s)
{
    struct fixture *f = *s;
    submit(f, 0, 16, 1);
    drain(f);
    submit(f, 0, 16, 1);
    drain(f);
    assert_int_equal(f->last_cached, 12); /* floor((16 - 1) / 4) * 4 */
}

static void generated_blocks_are_cached_too(void **s)
{
    struct fixture *f = *s;
    submit(f, 0, 6, 12);
    drain(f);
    assert_int_equal(f->stored, 4); /* 6 + 12 tokens, the last of them has no KV yet */
    check_view(f);
}

static void eviction_is_told_and_tails_go_first(void **s)
{
    struct fixture *f = *s;
    for (uint32_t i = 0; i < 20; i++) {
        submit(f, i * 1000, 40, 2);
        drain(f);
        check_view(f);
    }
    assert_true(f->removed > 0);
    uint32_t t[40];
    uint64_t l[10];
    for (uint32_t i = 0; i < 40; i++) t[i] = 19000 + i;
    kvr_hash_locals(t, 40, BS, false, 1337, NULL, 0, l);
    struct kvr_overlap o;
    assert_int_equal(kvr_index_match(f->rd, l, 10, &o, 1), 1);
    assert_int_equal(o.depth, 10);
}

static void predictions_equal_cached_tokens_under_churn(void **s)
{
    struct fixture *f = *s;
    struct kvr_rng rng = {11};
    for (int i = 0; i < 2000; i++) {
        uint32_t t[64];
        uint64_t l[16];
        size_t n = 5 + kvr_rng_below(&rng, 50);
        uint32_t group = kvr_rng_below(&rng, 4), tail = kvr_rng_below(&rng, 6);
        for (size_t k = 0; k < n; k++) t[k] = (uint32_t)(group * 100 + k + (k > 20 ? tail * 1000 : 0));
        kvr_hash_locals(t, n, BS, false, 1337, NULL, 0, l);
        struct kvr_overlap o = {.depth = 0};
        if (kvr_index_match(f->rd, l, n / BS, &o, 1) <= 0) o.depth = 0;
        mock_engine_submit(f->e, &(struct mock_engine_request){.tokens = t, .n = n, .max_tokens = 1 + kvr_rng_below(&rng, 6)});
        drain(f);
        assert_int_equal(f->last_cached / BS, KVR_MIN((size_t)o.depth, (n - 1) / BS));
    }
    check_view(f);
}

static void many_at_once_finish(void **s)
{
    struct fixture *f = *s;
    for (uint32_t i = 0; i < 30; i++) submit(f, (i % 3) * 1000, 30 + i, 8);
    drain(f);
    assert_int_equal(f->finished, 30);
    assert_int_equal(f->tokens, 240);
    assert_true(mock_engine_idle(f->e));
    check_view(f);
}

static void preemption_is_no_hit(void **s)
{
    struct fixture *f = *s;
    struct mock_engine_stats st;
    for (uint32_t i = 0; i < 6; i++) submit(f, i * 1000, 60, 40); /* six times 25 blocks do not fit in 64 */
    drain(f);
    mock_engine_stats(f->e, &st);
    assert_true(st.preemptions > 0);
    assert_int_equal(st.prompt_tokens, 360);
    assert_int_equal(st.cached_tokens, 0);
    assert_int_equal(f->finished, 6);
    check_view(f);
}

static void sequence_slots_are_respected(void **s)
{
    struct fixture *f = *s;
    struct mock_engine_stats st;
    for (uint32_t i = 0; i < 3; i++) submit(f, i * 100, 8, 4);
    mock_engine_begin_pass(f->e);
    mock_engine_stats(f->e, &st);
    assert_int_equal(st.running, 1);
    assert_int_equal(st.waiting, 2);
    mock_engine_end_pass(f->e);
    drain(f);
    assert_int_equal(f->finished, 3);
}

static void aborts_give_blocks_back(void **s)
{
    struct fixture *f = *s;
    struct mock_engine_stats st;
    uint32_t t[40] = {0};
    struct mock_request *r = mock_engine_submit(f->e, &(struct mock_engine_request){.tokens = t, .n = 40, .max_tokens = 50});
    mock_engine_begin_pass(f->e);
    mock_engine_end_pass(f->e);
    mock_engine_abort(f->e, r);
    mock_engine_stats(f->e, &st);
    assert_int_equal(st.used_blocks, 0);
    assert_true(mock_engine_idle(f->e));
}

static void without_caching_nothing_is_told(void **s)
{
    struct fixture *f = *s;
    submit(f, 0, 20, 2);
    drain(f);
    submit(f, 0, 20, 2);
    drain(f);
    assert_int_equal(f->stored, 0);
    assert_int_equal(f->last_cached, 0);
}

static void reset_clears_when_idle(void **s)
{
    struct fixture *f = *s;
    submit(f, 0, 20, 2);
    mock_engine_begin_pass(f->e);
    assert_false(mock_engine_reset_cache(f->e));
    mock_engine_end_pass(f->e);
    drain(f);
    assert_true(mock_engine_reset_cache(f->e));
    assert_int_equal(f->cleared, 1);
    assert_int_equal(kvr_index_rank_blocks(f->ix, (struct kvr_worker){1, 0}), 0);
    submit(f, 0, 20, 2);
    drain(f);
    assert_int_equal(f->last_cached, 0);
}

static void what_is_computed_again_is_a_copy(void **s)
{
    struct fixture *f = *s;
    struct mock_engine_stats st;
    for (int i = 0; i < 3; i++) {
        submit(f, 0, 16, 1);
        drain(f);
    }
    mock_engine_stats(f->e, &st);
    assert_int_equal(f->stored, 4 + 1 + 1); /* the last block, each time */
    assert_int_equal(st.cached_blocks, 4);
    assert_int_equal(st.cached_copies, 6);
    uint32_t t[16];
    for (uint32_t i = 0; i < 16; i++) t[i] = i;
    mock_engine_submit(f->e, &(struct mock_engine_request){.tokens = t, .n = 16, .max_tokens = 1, .skip_cache = true});
    drain(f);
    assert_int_equal(f->last_cached, 0);
    assert_int_equal(f->stored, 10);
}

static void equal_prompts_of_one_pass_share_their_blocks(void **s)
{
    struct fixture *f = *s;
    submit(f, 0, 18, 1);
    submit(f, 0, 18, 1);
    drain(f);
    assert_int_equal(f->stored, 4);
    assert_int_equal(f->last_cached, 16);
}

static void every_copy_is_told_once_when_it_comes_and_goes(void **s)
{
    struct fixture *f = *s;
    struct kvr_rng rng = {3};
    struct mock_engine_stats st;
    for (int i = 0; i < 500; i++) {
        uint32_t t[48];
        size_t n = 8 + 4 * kvr_rng_below(&rng, 10), at_once = 1 + kvr_rng_below(&rng, 8);
        for (size_t k = 0; k < n; k++) t[k] = (uint32_t)(kvr_rng_below(&rng, 2) ? k : 1000 * (size_t)i);
        for (size_t k = 0; k < at_once; k++)
            mock_engine_submit(
                f->e, &(struct mock_engine_request){
                          .tokens = t, .n = n, .max_tokens = 1 + kvr_rng_below(&rng, 100), .skip_cache = kvr_rng_below(&rng, 5) == 0});
        drain(f);
        mock_engine_stats(f->e, &st);
        assert_int_equal(f->stored - f->removed, st.cached_copies);
        assert_int_equal(st.used_blocks, 0);
    }
    assert_true(st.cached_copies > st.cached_blocks);
    assert_true(st.preemptions > 0);
}

static void prefill_takes_the_modelled_time(void **s)
{
    struct fixture *f = *s;
    submit(f, 0, 40, 1);
    double want = 4.209989e-07 * 1600 + 1.518344e-02 * 40 + 16.50142;
    double got = (double)mock_engine_begin_pass(f->e) / 1e6;
    assert_true(got > want - 0.001 && got < want + 0.001);
    mock_engine_end_pass(f->e);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
static void held_blocks_are_not_given_to_others(void **s)
{
    struct fixture *f = *s;
    size_t n;
    f->keeps = true;
    submit(f, 0, 18, 3);
    drain(f);
    f->keeps = false;
    assert_int_equal(used(f), 5);
    mock_hold_blocks(f->hold, &n);
    assert_int_equal(n, 5);
    assert_int_equal(mock_hold_tokens(f->hold, &n)[17], 17);
    assert_int_equal(n, 18);
    for (uint32_t i = 0; i < 10; i++) submit(f, 1000 * (i + 1), 100, 2);
    drain(f);
    assert_int_equal(f->finished, 11);
    assert_false(mock_engine_reset_cache(f->e));
    submit(f, 0, 18, 1);
    drain(f);
    assert_int_equal(f->last_cached, 16); /* still found */
    mock_engine_release(f->e, f->hold);
    assert_int_equal(used(f), 0);
    check_view(f);
    assert_true(mock_engine_reset_cache(f->e));
}

static void a_request_waits_for_held_blocks(void **s)
{
    struct fixture *f = *s;
    f->keeps = true;
    submit(f, 0, 130, 1);
    drain(f);
    f->keeps = false;
    submit(f, 1000, 130, 1);
    assert_int_equal(mock_engine_begin_pass(f->e), 0);
    assert_int_equal(f->finished, 1);
    mock_engine_release(f->e, f->hold);
    drain(f);
    assert_int_equal(f->finished, 2);
    check_view(f);
}

static void what_was_loaded_is_not_computed(void **s)
{
    struct fixture *f = *s;
    submit(f, 0, 8, 1);
    drain(f);
    assert_non_null(submit_remote(f, 0, 16, 2));
    assert_int_equal(mock_engine_begin_pass(f->e), 0);
    assert_int_equal(f->found, 8);
    assert_int_equal(used(f), 4);
    assert_false(mock_engine_idle(f->e));
    int stored = f->stored;
    mock_engine_loaded(f->e, f->loading, 16, false);
    assert_int_equal(f->stored, stored + 1); /* the last block is full when its last token has been computed */
    drain(f);
    assert_int_equal(f->last_cached, 15);
    assert_int_equal(f->stored, stored + 2);
    assert_int_equal(f->tokens, 3);
    check_view(f);
    assert_int_equal(used(f), 0);
}

static void others_run_while_a_request_loads(void **s)
{
    struct fixture *f = *s;
    submit_remote(f, 0, 40, 1);
    submit(f, 1000, 40, 2);
    drain(f);
    assert_int_equal(f->finished, 1);
    assert_int_equal(used(f), 10);
    mock_engine_loaded(f->e, f->loading, 0, false); /* nothing came */
    drain(f);
    assert_int_equal(f->finished, 2);
    assert_int_equal(f->last_cached, 0);
    check_view(f);
}

static void what_was_loaded_first_runs_first(void **s)
{
    struct fixture *f = *s;
    struct mock_request *r[3];
    for (uint32_t i = 0; i < 3; i++) r[i] = submit_remote(f, 100 * i, 8, 2);
    submit(f, 1000, 8, 2);
    assert_int_equal(mock_engine_begin_pass(f->e) > 0, 1); /* the one that has nothing to wait for */
    for (uint32_t i = 0; i < 3; i++) mock_engine_loaded(f->e, r[i], 8, false);
    mock_engine_end_pass(f->e);
    drain(f);
    assert_int_equal(f->finished, 4);
    for (uint32_t i = 0; i < 3; i++) assert_ptr_equal(f->ended[i + 1], r[i]);
}

static void passes(struct fixture *f, int n)
{
    while (n--) {
        assert_true(mock_engine_begin_pass(f->e) > 0);
        mock_engine_end_pass(f->e);
    }
}

/* What runs needs a block, and all others are those of a prompt that has come and waits for its turn: it has the next one. */
static void a_loaded_prompt_in_all_blocks_does_not_stop_the_engine(void **s)
{
    struct fixture *f = *s;
    submit(f, 5000, BS, 12);
    passes(f, 1);
    submit_remote(f, 0, (BLOCKS - 3) * BS, 2);
    passes(f, BS);
    assert_int_equal(used(f), BLOCKS - 1);
    mock_engine_loaded(f->e, f->loading, (BLOCKS - 3) * BS, false);
    passes(f, 2);
    assert_ptr_equal(f->ended[0], f->loading);
    drain(f);
    assert_int_equal(f->finished, 2);
    assert_int_equal(used(f), 0);
    check_view(f);
}

static void a_loaded_prompt_costs_a_pass_what_a_token_does(void **s)
{
    struct fixture *f = *s;
    submit_remote(f, 0, 16, 2);
    mock_engine_begin_pass(f->e);
    mock_engine_loaded(f->e, f->loading, 16, false);
    uint64_t first = mock_engine_begin_pass(f->e);
    mock_engine_end_pass(f->e);
    uint64_t second = mock_engine_begin_pass(f->e);
    mock_engine_end_pass(f->e);
    assert_true(first > 0 && first <= second);
}

static void the_blocks_of_a_broken_load_are_free_again(void **s)
{
    struct fixture *f = *s;
    struct mock_request *r = submit_remote(f, 0, 40, 1);
    mock_engine_begin_pass(f->e);
    assert_ptr_equal(f->loading, r);
    assert_int_equal(used(f), 10);
    mock_engine_abort(f->e, r);
    assert_int_equal(used(f), 0);
    assert_true(mock_engine_idle(f->e));
    submit_remote(f, 0, 40, 1); /* the engine's end ends it, too */
    mock_engine_begin_pass(f->e);
    check_view(f);
}

static void spoilt_cache_shows_in_the_text(void **s)
{
    struct fixture *f = *s;
    submit_remote(f, 0, 40, 1);
    mock_engine_begin_pass(f->e);
    mock_engine_loaded(f->e, f->loading, 40, true);
    drain(f);
    assert_int_equal(f->last_token, '#');
    assert_int_equal(f->last_cached, 39);
    check_view(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(second_time_is_cached),
        T(at_least_one_token_is_computed),
        T(generated_blocks_are_cached_too),
        T(eviction_is_told_and_tails_go_first),
        T(predictions_equal_cached_tokens_under_churn),
        T(many_at_once_finish),
        T(preemption_is_no_hit),
        cmocka_unit_test_setup_teardown(sequence_slots_are_respected, setup_narrow, teardown),
        T(aborts_give_blocks_back),
        cmocka_unit_test_setup_teardown(without_caching_nothing_is_told, setup_uncached, teardown),
        T(reset_clears_when_idle),
        cmocka_unit_test_setup_teardown(what_is_computed_again_is_a_copy, setup_copies, teardown),
        cmocka_unit_test_setup_teardown(equal_prompts_of_one_pass_share_their_blocks, setup_copies, teardown),
        cmocka_unit_test_setup_teardown(every_copy_is_told_once_when_it_comes_and_goes, setup_copies, teardown),
        cmocka_unit_test_setup_teardown(held_blocks_are_not_given_to_others, setup, teardown),
        cmocka_unit_test_setup_teardown(a_request_waits_for_held_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_loaded_is_not_computed, setup, teardown),
        cmocka_unit_test_setup_teardown(others_run_while_a_request_loads, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_loaded_first_runs_first, setup_narrow, teardown),
        T(a_loaded_prompt_in_all_blocks_does_not_stop_the_engine),
        T(a_loaded_prompt_costs_a_pass_what_a_token_does),
        cmocka_unit_test_setup_teardown(the_blocks_of_a_broken_load_are_free_again, setup, teardown),
        cmocka_unit_test_setup_teardown(spoilt_cache_shows_in_the_text, setup, teardown),
        T(prefill_takes_the_modelled_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
