/* SPDX-License-Identifier: Apache-2.0 */
/* Models with sliding windows: a match says what every cache group can serve, as vLLM's groups agree on it. */
#include "test.h"

#include <kvroute/index.h>

#include "wire/engine_events.h"

enum { N = 12 };
static const struct kvr_worker W = {1, 0}, PLAIN = {2, 0};

struct run {
    struct kvr_index *index;
    struct kvr_index_reader *reader;
    uint64_t locals[N], names[N];
};

static void store(struct run *r, struct kvr_worker w, uint64_t base)
{
    struct kvr_block b[N];
    for (int i = 0; i < N; i++) b[i] = (struct kvr_block){base + (uint64_t)i, r->locals[i]};
    struct kvr_event ev = {.worker = w, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = N};
    assert_int_equal(kvr_index_apply(r->index, &ev), 0);
}

static void window(struct run *r, enum kvr_event_kind kind, uint32_t group, uint32_t need, int from, int to, bool counts)
{
    struct kvr_window_event ev = {
        .worker = W, .kind = kind, .group = group, .need = need, .counts = counts, .names = r->names + from, .n = (size_t)(to - from)};
    assert_int_equal(kvr_index_window(r->index, &ev), 0);
}

static uint32_t depth(struct run *r, struct kvr_worker w)
{
    struct kvr_overlap o[4], o2[4];
    struct kvr_query q = {.locals = r->locals, .n = N, .out = o2, .cap = 4};
    long n = kvr_index_match(r->reader, r->locals, N, o, 4);
    kvr_index_match_batch(r->reader, &q, 1);
    assert_int_equal(q.found, n);
    for (long i = 0; i < n; i++)
        if (o[i].worker.worker_id == w.worker_id) return o[i].depth;
    return 0;
}

static int setup(void **state)
{
    struct run *r = calloc(1, sizeof *r);
    assert_int_equal(kvr_index_create(NULL, &r->index), 0);
    assert_int_equal(kvr_index_reader_create(r->index, &r->reader), 0);
    for (int i = 0; i < N; i++) {
        r->locals[i] = 1000 + (uint64_t)i;
        r->names[i] = 100 + (uint64_t)i;
    }
    store(r, W, 100);
    store(r, PLAIN, 500);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct run *r = *state;
    kvr_index_reader_destroy(r->reader);
    kvr_index_destroy(r->index);
    free(r);
    return 0;
}

static void a_prefix_needs_the_last_blocks_of_its_window(void **state)
{
    struct run *r = *state;
    assert_int_equal(depth(r, W), N);
    window(r, KVR_EVENT_STORED, 1, 2, 0, N, false);
    assert_int_equal(depth(r, W), N);
    window(r, KVR_EVENT_REMOVED, 1, 0, 0, 8, false); /* out of every window */
    assert_int_equal(depth(r, W), N);
    window(r, KVR_EVENT_REMOVED, 1, 0, 11, 12, false);
    assert_int_equal(depth(r, W), 11);
    window(r, KVR_EVENT_REMOVED, 1, 0, 9, 10, false); /* 8 and 10 are alone */
    assert_int_equal(depth(r, W), 0);
    window(r, KVR_EVENT_STORED, 1, 2, 0, 1, false); /* near the start all there is is enough */
    assert_int_equal(depth(r, W), 1);
    assert_int_equal(depth(r, PLAIN), N);
}

static void all_groups_agree(void **state)
{
    struct run *r = *state;
    window(r, KVR_EVENT_STORED, 1, 2, 4, 10, false);
    window(r, KVR_EVENT_STORED, 2, 3, 0, 7, false);
    assert_int_equal(depth(r, W), 7);
    window(r, KVR_EVENT_REMOVED, 1, 0, 6, 7, false); /* 7 is no longer possible, 6 is for both */
    assert_int_equal(depth(r, W), 6);
    window(r, KVR_EVENT_STORED, 3, UINT32_MAX, 0, 2, false); /* a kind that is not understood needs every block */
    assert_int_equal(depth(r, W), 0);
}

static void told_again(struct run *r, int from, int to, bool repeats)
{
    struct kvr_window_event ev = {.worker = W,
                                  .kind = KVR_EVENT_STORED,
                                  .group = 1,
                                  .need = 2,
                                  .counts = true,
                                  .may_repeat = true,
                                  .repeats = repeats,
                                  .names = r->names + from,
                                  .n = (size_t)(to - from)};
    assert_int_equal(kvr_index_window(r->index, &ev), 0);
}

static void take_back(struct run *r)
{
    assert_int_equal(kvr_index_window(r->index, &(struct kvr_window_event){.worker = W, .take_back = true}), 0);
}

/* kv_cache_report_mode full names every block of the prefix, those that have left the window too. */
static void a_report_adds_nothing_to_an_engine_that_reports(void **state)
{
    struct run *r = *state;
    window(r, KVR_EVENT_STORED, 1, 2, N - 2, N, false);
    told_again(r, 0, N, true);
    assert_int_equal(depth(r, W), N);
    window(r, KVR_EVENT_REMOVED, 1, 0, N - 1, N, false);
    assert_int_equal(depth(r, W), 0);
    told_again(r, 0, 6, true); /* nothing is known of the window, so it is there */
    assert_int_equal(depth(r, W), 6);
    window(r, KVR_EVENT_REMOVED, 1, 0, 5, 6, false);
    assert_int_equal(depth(r, W), 0);
}

/* A prompt is computed anew because its window has lost blocks; the last is still there. */
static void what_is_computed_again_from_the_start_is_there(void **state)
{
    struct run *r = *state;
    window(r, KVR_EVENT_STORED, 1, 2, 0, N, true);
    for (int i = 0; i < N - 1; i++) window(r, KVR_EVENT_REMOVED, 1, 0, i, i + 1, false);
    assert_int_equal(depth(r, W), 0);
    told_again(r, 0, N, false);
    assert_int_equal(depth(r, W), N);
    window(r, KVR_EVENT_REMOVED, 1, 0, N - 1, N, false); /* one of two */
    assert_int_equal(depth(r, W), N);
    window(r, KVR_EVENT_REMOVED, 1, 0, N - 1, N, false);
    assert_int_equal(depth(r, W), N - 1);
}

static void what_is_not_proven_is_taken_back(void **state)
{
    struct run *r = *state;
    window(r, KVR_EVENT_STORED, 1, 2, N - 2, N, true);
    told_again(r, 0, N, false); /* a report: it names blocks that the group has not */
    window(r, KVR_EVENT_REMOVED, 1, 0, N - 1, N, false);
    assert_int_equal(depth(r, W), N);
    take_back(r);
    assert_int_equal(depth(r, W), 0);
    window(r, KVR_EVENT_STORED, 1, 2, N - 1, N, true);
    assert_int_equal(depth(r, W), N); /* what was certain is there */
    take_back(r);
    assert_int_equal(depth(r, W), N);
    assert_int_equal(kvr_index_window(r->index, &(struct kvr_window_event){.worker = PLAIN, .take_back = true}), 0);
    assert_int_equal(depth(r, PLAIN), N);
}

static void copies_clears_and_resets(void **state)
{
    struct run *r = *state;
    window(r, KVR_EVENT_STORED, 1, 1, 0, N, false);
    window(r, KVR_EVENT_STORED, 1, 1, N - 1, N, true);
    window(r, KVR_EVENT_REMOVED, 1, 0, N - 1, N, false);
    assert_int_equal(depth(r, W), N);
    window(r, KVR_EVENT_REMOVED, 1, 0, N - 1, N, false);
    assert_int_equal(depth(r, W), N - 1);
    struct kvr_event clear = {.worker = W, .kind = KVR_EVENT_CLEARED};
    assert_int_equal(kvr_index_apply(r->index, &clear), 0);
    store(r, W, 100);
    assert_int_equal(depth(r, W), 0); /* the groups are known, and empty */
    kvr_index_drop_rank(r->index, W);
    store(r, W, 100);
    assert_int_equal(depth(r, W), N); /* another engine may come under the number */
}

/* ---- what events say of groups ---------------------------------------------------------------------------- */

struct seen {
    int n, emitted;
    struct kvr_window_event last;
};

static void on_window(void *ctx, const struct kvr_window_event *ev)
{
    struct seen *s = ctx;
    s->n++;
    s->last = *ev;
}

static void on_window_of(void *ctx, const struct kvr_window_event *ev)
{
    assert_int_equal(kvr_index_window(ctx, ev), 0);
}

static void on_event(void *ctx, const struct kvr_event *)
{
    struct seen *s = ctx;
    s->emitted++;
}

/* A clear in a batch is one, too; one of any rank is every rank's where clears are the worker's. */
static void clears_take_the_windows_with_them(void **state)
{
    struct run *r = *state;
    for (int wide = 0; wide < 2; wide++) {
        struct kvr_index_config c = {.clear_worker_wide = wide};
        kvr_index_reader_destroy(r->reader);
        kvr_index_destroy(r->index);
        assert_int_equal(kvr_index_create(&c, &r->index), 0);
        assert_int_equal(kvr_index_reader_create(r->index, &r->reader), 0);
        store(r, W, 100);
        window(r, KVR_EVENT_STORED, 1, 2, 0, N, true);
        assert_int_equal(depth(r, W), N);
        struct kvr_event clear = {.worker = {1, wide ? 5 : 0}, .kind = KVR_EVENT_CLEARED};
        assert_int_equal(kvr_index_apply_batch(r->index, &clear, 1, NULL), 0);
        store(r, W, 100);
        assert_int_equal(depth(r, W), 0);
    }
}

static void events_of_other_groups_are_told(void **)
{
    static uint64_t name = 7;
    static uint32_t tokens[32];
    struct seen s = {0};
    struct kvr_engine_stream st;
    kvr_engine_stream_init(&st, W, 32);
    st.window = on_window;
    st.window_ctx = &s;
    struct kvr_engine_event ev = {.kind = KVR_ENGINE_STORED,
                                  .is_map = true,
                                  .hashes_n = 1,
                                  .tokens_n = 32,
                                  .block_size = 32,
                                  .has_group = true,
                                  .group_idx = 2,
                                  .window = 64,
                                  .spec_kind = {"sliding_window", 14}};
    struct kvr_engine_batch b = {.events = &ev, .events_n = 1, .hashes = &name, .hashes_n = 1, .tokens = tokens, .tokens_n = 32};
    assert_int_equal(kvr_engine_convert(&st, &b, 1, on_event, &s), 0);
    assert_true(s.n == 1 && s.last.group == 2 && s.last.need == 2 && s.last.names[0] == 7 && s.last.kind == KVR_EVENT_STORED &&
                s.last.may_repeat && !s.last.repeats);
    ev = (struct kvr_engine_event){.kind = KVR_ENGINE_REMOVED, .is_map = true, .hashes_n = 1, .has_group = true, .group_idx = 2};
    assert_int_equal(kvr_engine_convert(&st, &b, 1, on_event, &s), 0);
    assert_true(s.n == 2 && s.last.kind == KVR_EVENT_REMOVED);
    ev = (struct kvr_engine_event){.kind = KVR_ENGINE_STORED,
                                   .is_map = true,
                                   .hashes_n = 1,
                                   .tokens_n = 32,
                                   .block_size = 32,
                                   .has_group = true,
                                   .group_idx = 3,
                                   .spec_kind = {"chunked_local_attention", 23}};
    assert_int_equal(kvr_engine_stream_groups(&st), KVR_GROUPS_EXACT);
    assert_int_equal(kvr_engine_convert(&st, &b, 1, on_event, &s), 0);
    assert_true(s.n == 3 && s.last.need == UINT32_MAX);
    assert_int_equal(kvr_engine_stream_groups(&st), KVR_GROUPS_BOUND);
    ev.group_idx = 0;
    ev.spec_kind = (struct kvr_bytes){"full_attention", 14};
    assert_int_equal(kvr_engine_convert(&st, &b, 1, on_event, &s), 1);
    assert_true(s.n == 3 && s.emitted == 1);
    kvr_engine_stream_free(&st);
}

/* The engine goes on from the last state that it has; with blocks of another size it may have one between ours. */
static void the_last_checkpoint_of_a_mamba_group_is_not_found(void **)
{
    static uint64_t name = 7;
    static uint32_t tokens[32];
    struct seen s = {0};
    struct kvr_engine_stream st;
    kvr_engine_stream_init(&st, W, 32);
    st.window = on_window;
    st.window_ctx = &s;
    struct kvr_engine_event ev = {.kind = KVR_ENGINE_STORED,
                                  .is_map = true,
                                  .hashes_n = 1,
                                  .tokens_n = 32,
                                  .block_size = 32,
                                  .has_group = true,
                                  .group_idx = 1,
                                  .spec_kind = {"mamba", 5}};
    struct kvr_engine_batch b = {.events = &ev, .events_n = 1, .hashes = &name, .hashes_n = 1, .tokens = tokens, .tokens_n = 32};
    assert_int_equal(kvr_engine_convert(&st, &b, 1, on_event, &s), 0);
    assert_int_equal(s.last.need, 1);
    assert_int_equal(kvr_engine_stream_groups(&st), KVR_GROUPS_EXACT);
    ev.block_size = 16;
    assert_int_equal(kvr_engine_convert(&st, &b, 2, on_event, &s), 0);
    ev.block_size = 32; /* what it has shown once it may do again */
    assert_int_equal(kvr_engine_convert(&st, &b, 3, on_event, &s), 0);
    assert_int_equal(s.last.need, 1);
    assert_int_equal(kvr_engine_stream_groups(&st), KVR_GROUPS_BOUND);
    kvr_engine_stream_reset(&st);
    assert_int_equal(kvr_engine_stream_groups(&st), KVR_GROUPS_EXACT);
    kvr_engine_stream_free(&st);
}

static void a_part_of_a_block_is_taken_for_another_block_size(void **)
{
    static uint64_t names[] = {7, 8};
    static uint32_t tokens[32];
    struct seen s = {0};
    struct kvr_engine_stream st;
    kvr_engine_stream_init(&st, W, 32);
    struct kvr_engine_event ev = {.kind = KVR_ENGINE_STORED,
                                  .is_map = true,
                                  .hashes_n = 1,
                                  .tokens_n = 16,
                                  .block_size = 16,
                                  .has_group = true,
                                  .spec_kind = {"full_attention", 14}};
    struct kvr_engine_batch b = {.events = &ev, .events_n = 1, .hashes = names, .hashes_n = 2, .tokens = tokens, .tokens_n = 32};
    assert_int_equal(kvr_engine_convert(&st, &b, 1, on_event, &s), 0);
    assert_int_equal(st.counters.block_size_mismatch, 0);
    assert_true(st.counters.partial_block == 1 && st.engine_block_size == 0);
    ev.hashes_n = 2; /* it is */
    ev.tokens_n = 32;
    assert_int_equal(kvr_engine_convert(&st, &b, 2, on_event, &s), 0);
    assert_true(st.counters.block_size_mismatch == 1 && st.engine_block_size == 16);
    kvr_engine_stream_free(&st);
}

/* A prompt of which no state has been kept is told of without names: nothing can be reused. */
static void a_group_that_has_stored_nothing_is_overlooked(void **state)
{
    struct run *r = *state;
    static uint32_t tokens[32];
    struct seen s = {0};
    struct kvr_engine_stream st;
    kvr_engine_stream_init(&st, W, 32);
    st.window = on_window_of;
    st.window_ctx = r->index;
    struct kvr_engine_event ev = {.kind = KVR_ENGINE_STORED,
                                  .is_map = true,
                                  .tokens_n = 32,
                                  .block_size = 32,
                                  .has_group = true,
                                  .group_idx = 1,
                                  .spec_kind = {"mamba", 5}};
    struct kvr_engine_batch b = {.events = &ev, .events_n = 1, .tokens = tokens, .tokens_n = 32};
    assert_int_equal(kvr_engine_convert(&st, &b, 1, on_event, &s), 0);
    assert_int_equal(depth(r, W), 0);
    assert_int_equal(depth(r, PLAIN), N);
    kvr_engine_stream_free(&st);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_prefix_needs_the_last_blocks_of_its_window),
        T(all_groups_agree),
        T(a_report_adds_nothing_to_an_engine_that_reports),
        T(what_is_computed_again_from_the_start_is_there),
        T(what_is_not_proven_is_taken_back),
        T(copies_clears_and_resets),
        T(clears_take_the_windows_with_them),
        T(events_of_other_groups_are_told),
        T(the_last_checkpoint_of_a_mamba_group_is_not_found),
        T(a_group_that_has_stored_nothing_is_overlooked),
        T(a_part_of_a_block_is_taken_for_another_block_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
