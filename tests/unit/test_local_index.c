/* SPDX-License-Identifier: Apache-2.0 */
/* The local index: the table of answers, their JSON, the ring's bounds, and that a dump in progress followed by the events
 * since its beginning gives what the index holds, whatever happens meanwhile. */
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <kvroute/hash.h>
#include <kvroute/index.h>
#include <kvroute/local_index.h>

#include "base/buf.h"
#include "wire/json.h"
#include "wire/router_event.h"

static const struct kvr_worker W = {7, 1};

static int to_buf(void *ctx, const char *data, size_t len)
{
    kvr_buf_add(ctx, data, len);
    return 0;
}

static char *ask(struct kvr_local_index *li, long start, long end, bool old)
{
    static struct kvr_buf b;
    struct kvr_local_query q = {start >= 0, end >= 0, (uint64_t)start, (uint64_t)end, old, true};
    b.len = 0;
    b.comma = false;
    assert_int_equal(kvr_local_index_answer(li, &q, to_buf, &b), 0);
    kvr_buf_add(&b, "", 1);
    return b.data;
}

static struct kvr_local_index *make(size_t events_max, size_t bytes_max)
{
    struct kvr_local_index *li;
    struct kvr_local_index_config c = {.worker = W, .block_size = 4, .epoch = 99, .events_max = events_max, .ring_bytes_max = bytes_max};
    assert_int_equal(kvr_local_index_create(&c, &li), 0);
    return li;
}

/* Block n hangs under block n - 1. */
static int put(struct kvr_local_index *li, uint64_t id, uint64_t n)
{
    struct kvr_block b = {n, n};
    struct kvr_event ev = {
        .event_id = id, .kind = KVR_EVENT_STORED, .blocks = &b, .blocks_n = 1, .has_parent = n > 1, .parent_hash = n - 1};
    return kvr_local_index_apply(li, &ev);
}

static bool has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

static void every_row_of_the_table(void **)
{
    struct kvr_local_index *li = make(4, 0);
    assert_string_equal(ask(li, 5, 4, false), "{\"InvalidRange\":{\"start_id\":5,\"end_id\":4}}"); /* also when empty */
    assert_string_equal(ask(li, -1, -1, false),
                        "{\"TreeDump\":{\"epoch\":99,\"block_size\":4,\"events\":[],\"last_event_id\":0,\"end_event_id\":0}}");
    assert_string_equal(ask(li, 3, -1, false),
                        "{\"TreeDump\":{\"epoch\":99,\"block_size\":4,\"events\":[],\"last_event_id\":0,\"end_event_id\":0}}");
    for (uint64_t i = 1; i <= 6; i++) assert_int_equal(put(li, i, i), 0);
    assert_true(has(ask(li, -1, -1, false), "\"last_event_id\":6,"));
    assert_true(has(ask(li, -1, 3, false), "{\"TreeDump\""));
    assert_string_equal(ask(li, 7, -1, false),
                        "{\"TooNew\":{\"requested_start\":7,\"requested_end\":null,\"newest_available\":6,\"epoch\":99}}");
    assert_string_equal(ask(li, 9, 12, true), "{\"TooNew\":{\"requested_start\":9,\"requested_end\":12,\"newest_available\":6}}");
    assert_true(has(ask(li, 2, -1, false), "{\"TreeDump\"")); /* 1 and 2 have fallen out */
    assert_true(has(ask(li, 3, -1, false), "{\"Events\":{\"epoch\":99,"));
    assert_true(has(ask(li, 3, 4, false), "\"last_event_id\":4}}"));
    assert_true(has(ask(li, 3, 40, false), "\"last_event_id\":6}}"));
    assert_false(has(ask(li, 3, 4, false), "\"event_id\":5"));
    kvr_local_index_destroy(li);
}

static void a_store_whose_tokens_and_hashes_differ_in_length_is_refused_and_leaves_nothing(void **)
{
    struct kvr_local_index *li = make(0, 0);
    struct kvr_local_index_stats st;
    uint32_t tokens[64] = {0};
    uint64_t names[] = {11, 12, 13};
    const struct {
        size_t tokens, hashes;
        bool eagle;
        int rc;
    } cases[] = {{4, 3, false, -KVR_ELENGTH},
                 {12, 1, false, -KVR_ELENGTH},
                 {3, 1, false, -KVR_ELENGTH},
                 {0, 1, false, -KVR_ELENGTH},
                 {12, 0, false, -KVR_ELENGTH},
                 {12, 3, true, -KVR_ELENGTH},
                 {13, 3, true, 0},
                 {15, 3, false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvr_local_store s = {
            .tokens = tokens, .tokens_n = cases[i].tokens, .block_hashes = names, .blocks_n = cases[i].hashes, .eagle = cases[i].eagle};
        kvr_local_index_stats(li, &st);
        uint64_t events = st.events, blocks = st.blocks;
        assert_int_equal(kvr_local_index_store(li, 1 + i, &s), cases[i].rc);
        kvr_local_index_stats(li, &st);
        if (cases[i].rc) assert_true(st.events == events && st.blocks == blocks && st.newest_id == 0);
        else assert_int_equal(st.newest_id, 1 + i);
        assert_int_equal(kvr_local_index_clear(li, st.newest_id), 0);
    }
    kvr_local_index_destroy(li);
}

static void answers_are_dynamos_json(void **)
{
    struct kvr_local_index *li = make(0, 0);
    uint32_t tokens[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    uint64_t names[] = {11, 12}, gone[] = {12};
    struct kvr_local_store s = {.tokens = tokens, .tokens_n = 9, .block_hashes = names, .blocks_n = 2, .tier = KVR_TIER_DEVICE};
    assert_int_equal(kvr_local_index_store(li, 1, &s), 0); /* a ninth token fills no block */
    assert_int_equal(kvr_local_index_remove(li, 2, KVR_TIER_DEVICE, gone, 1), 0);
    assert_int_equal(kvr_local_index_clear(li, 3), 0);
#define HEAD "{\"worker_id\":7,\"storage_tier\":\"device\",\"residency_domain\":\"worker\",\"event\":{\"event_id\":"
#define EVENTS                                                                                                                             \
    "[" HEAD "1,\"data\":{\"stored\":{\"parent_hash\":null,\"start_position\":null,\"blocks\":["                                           \
    "{\"block_hash\":11,\"tokens_hash\":9143094415614847814,\"mm_extra_info\":null},"                                                      \
    "{\"block_hash\":12,\"tokens_hash\":12124091508212882195,\"mm_extra_info\":null}]}},\"dp_rank\":1}}," HEAD                             \
    "2,\"data\":{\"removed\":{\"block_hashes\":[12]}},\"dp_rank\":1}}," HEAD "3,\"data\":\"cleared\",\"dp_rank\":1}}]"
    assert_string_equal(ask(li, 1, -1, false), "{\"Events\":{\"epoch\":99,\"events\":" EVENTS ",\"last_event_id\":3}}");
    assert_string_equal(ask(li, 1, -1, true), "{\"Events\":" EVENTS "}");
    s.lora = "adapter-a";
    s.lora_len = 9;
    assert_int_equal(kvr_local_index_store(li, 4, &s), 0);
    assert_true(has(ask(li, 4, 4, true), "\"tokens_hash\":6665157333201000639"));
    kvr_local_index_destroy(li);
}

static void a_block_with_an_image_is_stored_as_such(void **)
{
    struct kvr_local_index *li = make(0, 0);
    uint32_t tokens[] = {0, 1, 2, 3, 4, 5, 6, 7};
    uint64_t names[] = {11, 12}, cat = 42, many[KVR_MM_OBJECTS_MAX + 1] = {0}, want[2];
    struct kvr_mm_block with_cat[2] = {{NULL, 0}, {&cat, 1}}, too_many = {many, KVR_MM_OBJECTS_MAX + 1};
    struct kvr_local_store s = {.tokens = tokens, .tokens_n = 8, .block_hashes = names, .blocks_n = 2, .mm = with_cat, .mm_n = 2};
    struct kvr_local_index_stats st;
    char text[64];
    assert_int_equal(kvr_local_index_store(li, 1, &s), 0);
    assert_int_equal(kvr_hash_locals(tokens, 8, 4, false, KVR_HASH_SEED, with_cat, 2, want), 2);
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "\"tokens_hash\":%llu", (unsigned long long)want[i]);
        assert_true(has(ask(li, 1, 1, true), text));
    }
    s.mm = &too_many;
    s.mm_n = 1;
    assert_int_equal(kvr_local_index_store(li, 2, &s), -KVR_ELIMIT);
    kvr_local_index_stats(li, &st);
    assert_int_equal(st.newest_id, 1);
    kvr_local_index_destroy(li);
}

static void a_batch_is_told_whole_or_not(void **)
{
    struct kvr_local_index *li = make(8, 0);
    put(li, 1, 1);
    kvr_local_index_hold(li);
    put(li, 2, 2);
    assert_true(has(ask(li, 2, -1, false), "{\"TooNew\""));
    put(li, 2, 3);
    assert_true(has(ask(li, 1, -1, false), "\"last_event_id\":1}}"));
    assert_true(has(ask(li, -1, -1, false), "\"last_event_id\":1,\"end_event_id\":2}}")); /* a dump shows what there is of it */
    kvr_local_index_release(li);
    assert_true(has(ask(li, 2, -1, false), "\"block_hash\":3,"));
    assert_int_equal(put(li, 1, 4), -KVR_EINVAL); /* ids do not fall */
    for (uint64_t i = 4; i < 11; i++) put(li, i, i);
    assert_true(has(ask(li, 2, -1, false), "{\"TreeDump\"")); /* half of batch 2 has fallen out */
    assert_true(has(ask(li, 4, -1, false), "{\"Events\""));
    kvr_local_index_destroy(li);
}

static void the_ring_is_bounded_in_bytes(void **)
{
    struct kvr_local_index *li = make(1024, 4096);
    struct kvr_local_index_stats st;
    struct kvr_block many[300];
    for (uint64_t i = 0; i < 300; i++) many[i] = (struct kvr_block){1000 + i, i};
    struct kvr_event big = {.event_id = 2, .kind = KVR_EVENT_STORED, .blocks = many, .blocks_n = 300};
    put(li, 1, 1);
    assert_int_equal(kvr_local_index_apply(li, &big), 0); /* 4,800 bytes: too large for the ring, not for the index */
    assert_true(has(ask(li, 1, -1, false), "{\"TreeDump\""));
    assert_true(has(ask(li, 2, -1, false), "{\"TreeDump\""));
    assert_true(has(ask(li, 3, -1, false), "{\"TooNew\""));
    for (uint64_t i = 0; i < 5000; i++) {
        struct kvr_event ev = {.event_id = 3 + i, .kind = KVR_EVENT_STORED, .blocks = many, .blocks_n = 1 + i % 100};
        assert_int_equal(kvr_local_index_apply(li, &ev), 0);
        kvr_local_index_stats(li, &st);
        assert_true(st.ring_bytes <= 4096 + 1024 * 160);
        assert_true(st.ring_events >= 1);
        assert_int_equal(st.newest_id, 3 + i);
    }
    assert_int_equal(st.blocks, 301);
    kvr_local_index_destroy(li);
}

static void what_is_not_whole_is_not_dumped(void **)
{
    struct kvr_local_index *li;
    struct kvr_local_index_config c = {.worker = W, .index_bytes_max = 1000000};
    assert_int_equal(kvr_local_index_create(&c, &li), 0);
    uint64_t n = 1;
    while (put(li, n, n) == 0) n++;
    assert_true(n > 1000);
    assert_true(has(ask(li, -1, -1, false), "{\"TreeDumpFailed\":{\"last_event_id\":"));
    assert_true(has(ask(li, -1, -1, false), "out of memory"));
    assert_true(has(ask(li, (long)n, -1, false), "{\"Events\"")); /* the ring does not depend on the index */
    assert_int_equal(kvr_local_index_clear(li, n + 1), 0);
    assert_true(has(ask(li, -1, -1, false), "{\"TreeDump\":"));
    kvr_local_index_set_incomplete(li, "the engine's history is not known");
    struct kvr_local_query q = {0};
    struct kvr_buf b = {0};
    assert_int_equal(kvr_local_index_answer(li, &q, to_buf, &b), 0);
    kvr_buf_add(&b, "", 1);
    assert_string_equal(b.data, "{\"Error\":\"worker tree dump failed: the engine's history is not known\"}");
    kvr_buf_free(&b);
    kvr_local_index_set_incomplete(li, NULL);
    kvr_local_index_shutdown(li);
    kvr_local_index_shutdown(li);
    assert_int_equal(put(li, n + 2, 1), -KVR_ESHUTDOWN);
    assert_true(has(ask(li, -1, -1, false), "{\"TreeDumpFailed\":{\"last_event_id\":0,\"message\":\"Indexer is offline\"}}"));
    kvr_local_index_destroy(li);
}

static void an_event_without_memory_is_not_forgotten(void **)
{
    struct failing_alloc f = {.fail_at = -1};
    struct kvr_alloc a = {failing_resize, &f};
    struct kvr_local_index *li;
    struct kvr_local_index_config c = {.alloc = &a, .worker = W, .block_size = 4, .epoch = 99};
    uint32_t tokens[400] = {0};
    uint64_t names[100];
    struct kvr_local_store s = {.tokens = tokens, .tokens_n = 4, .block_hashes = names, .blocks_n = 1};
    struct kvr_local_index_stats st;
    for (size_t i = 0; i < 100; i++) names[i] = 1 + i;
    assert_int_equal(kvr_local_index_create(&c, &li), 0);
    assert_int_equal(kvr_local_index_store(li, 1, &s), 0);
    s.tokens_n = 400;
    s.blocks_n = 100;
    f.fail_at = f.calls; /* the scratch has to grow */
    assert_int_equal(kvr_local_index_store(li, 2, &s), -KVR_ENOMEM);
    f.fail_at = -1;
    assert_true(has(ask(li, 3, -1, false), "{\"TooNew\""));   /* 2 has been */
    assert_true(has(ask(li, 2, -1, false), "out of memory")); /* and is not to be had */
    assert_int_equal(kvr_local_index_store(li, 1, &s), -KVR_EINVAL);
    assert_int_equal(kvr_local_index_store(li, 3, &s), 0);
    assert_true(has(ask(li, 3, -1, false), "{\"Events\""));
    assert_true(has(ask(li, -1, -1, false), "out of memory"));
    kvr_local_index_stats(li, &st);
    assert_true(!st.complete && st.events == 3 && st.refused == 1 && st.newest_id == 3);
    assert_int_equal(kvr_local_index_clear(li, 4), 0);
    assert_true(has(ask(li, -1, -1, false), "{\"TreeDump\":"));
    kvr_local_index_destroy(li);
    assert_int_equal(f.live, 0);
}

/* ---- dumps in progress ------------------------------------------------------------------------------------ */

enum { NAMES = 2000, LOCALS = 3 };

struct event_copy {
    struct kvr_event ev;
    struct kvr_block blocks[6];
    uint64_t removed[6];
};

static uint64_t name_of(struct kvr_rng *rng)
{
    return 1 + kvr_rng_below(rng, NAMES);
}

/* The names of what is held on the device. */
struct held {
    uint64_t names[NAMES];
    size_t n;
};

static int hold_names(void *ctx, const struct kvr_event *ev)
{
    struct held *h = ctx;
    for (size_t i = 0; i < ev->blocks_n && ev->tier == KVR_TIER_DEVICE; i++) h->names[h->n++] = ev->blocks[i].block_hash;
    return 0;
}

/* Given an index: a sound engine's event, whose parents are held and whose names stand for one content, but for collisions. Else
 * anything. */
static void random_event(struct kvr_rng *rng, struct event_copy *e, struct kvr_index *sound)
{
    static struct held h;
    uint32_t what = kvr_rng_below(rng, 1000);
    memset(e, 0, sizeof *e);
    e->ev.worker = W;
    e->ev.tier = kvr_rng_below(rng, 9) ? KVR_TIER_DEVICE : KVR_TIER_HOST_PINNED;
    if (what < 560) {
        e->ev.kind = KVR_EVENT_STORED;
        h.n = 0;
        if (sound) assert_int_equal(kvr_index_dump(sound, &W, hold_names, &h), 0);
        e->ev.has_parent = kvr_rng_below(rng, 3) > 0 && (h.n || !sound);
        e->ev.parent_hash = h.n ? h.names[kvr_rng_below(rng, (uint32_t)h.n)] : name_of(rng);
        e->ev.blocks_n = 1 + kvr_rng_below(rng, 6);
        uint64_t parent = e->ev.has_parent ? e->ev.parent_hash : 0;
        for (size_t i = 0; i < e->ev.blocks_n; i++) {
            uint64_t local = kvr_rng_below(rng, LOCALS), name = 1 + kvr_mix64(parent * LOCALS + local) % NAMES;
            e->blocks[i] = (struct kvr_block){parent = sound ? name : name_of(rng), local};
        }
    } else if (what < 998) {
        e->ev.kind = KVR_EVENT_REMOVED;
        e->ev.removed_n = 1 + kvr_rng_below(rng, 6);
        for (size_t i = 0; i < e->ev.removed_n; i++) e->removed[i] = h.n ? h.names[kvr_rng_below(rng, (uint32_t)h.n)] : name_of(rng);
    } else {
        e->ev.kind = KVR_EVENT_CLEARED;
        e->ev.tier = KVR_TIER_DEVICE;
    }
}

static int apply_copy(struct kvr_index *ix, const struct event_copy *e)
{
    struct kvr_event ev = e->ev;
    ev.blocks = e->blocks;
    ev.removed = e->removed;
    return kvr_index_apply(ix, &ev);
}

static int apply_emitted(void *ctx, const struct kvr_event *ev)
{
    return kvr_index_apply(ctx, ev);
}

struct listing {
    uint64_t path[NAMES + 1], rows[4 * NAMES], lower[4 * NAMES];
    size_t n, lower_n;
};

/* A block as a number: its tier, its name, and where it is. */
static int list_event(void *ctx, const struct kvr_event *ev)
{
    struct listing *l = ctx;
    uint64_t at = ev->has_parent ? l->path[ev->parent_hash] : 0;
    if (ev->tier != KVR_TIER_DEVICE) {
        uint64_t part[3] = {ev->lower.prefix_hash, ev->blocks[0].block_hash, (uint64_t)ev->tier};
        l->lower[l->lower_n++] = kvr_hash_bytes(part, sizeof part, 2);
        return 0;
    }
    for (size_t i = 0; i < ev->blocks_n; i++) {
        uint64_t part[3] = {at, ev->blocks[i].tokens_hash, 0};
        l->path[ev->blocks[i].block_hash] = at = kvr_hash_bytes(part, sizeof part, 0);
        part[2] = ev->blocks[i].block_hash;
        l->rows[l->n++] = kvr_hash_bytes(part, sizeof part, 1);
    }
    return 0;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The copy's device tier is the index's; in lower tiers it has, of sound engines, no more. Returns: blocks there that it lacks. */
static size_t assert_equal_content(struct kvr_index *a, struct kvr_index *b, bool sound)
{
    static struct listing x, y;
    const char *why = NULL;
    if (!kvr_index_validate(a, &why) || !kvr_index_validate(b, &why)) fail_msg("%s", why);
    x.n = y.n = x.lower_n = y.lower_n = 0;
    assert_int_equal(kvr_index_dump(a, &W, list_event, &x), 0);
    assert_int_equal(kvr_index_dump(b, &W, list_event, &y), 0);
    qsort(x.rows, x.n, sizeof *x.rows, by_value);
    qsort(y.rows, y.n, sizeof *y.rows, by_value);
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.rows, y.rows, x.n * sizeof *x.rows);
    qsort(x.lower, x.lower_n, sizeof *x.lower, by_value);
    for (size_t i = 0; i < y.lower_n && sound; i++) assert_non_null(bsearch(&y.lower[i], x.lower, x.lower_n, sizeof *x.lower, by_value));
    return x.lower_n - KVR_MIN(x.lower_n, y.lower_n);
}

/* Walks `truth` while random events hit it; the copy gets the pieces, then the events. Returns whether the walk was whole. */
static bool walk_once(struct kvr_index *truth, struct kvr_rng *rng, bool sound, size_t *emitted)
{
    enum { MOST = 4000 };
    static struct event_copy log[MOST];
    struct kvr_index_walk *walk;
    struct kvr_index *copy;
    size_t n = 0;
    bool more = true;
    int rc = 0;
    assert_int_equal(kvr_index_create(NULL, &copy), 0);
    assert_int_equal(kvr_index_walk_begin(truth, W, &walk), 0);
    while (more && rc == 0) {
        for (uint32_t k = kvr_rng_below(rng, 4); k && n < MOST; k--) {
            random_event(rng, &log[n], sound ? truth : NULL);
            (void)apply_copy(truth, &log[n++]);
        }
        rc = kvr_index_walk_next(walk, 1 + kvr_rng_below(rng, 3), apply_emitted, copy, &more);
    }
    kvr_index_walk_end(walk);
    *emitted = kvr_index_rank_blocks(copy, W);
    assert_true(rc == 0 || rc == -KVR_ESEQUENCE);
    for (size_t i = 0; i < n && rc == 0; i++) (void)apply_copy(copy, &log[i]);
    if (rc == 0) (void)assert_equal_content(truth, copy, sound);
    kvr_index_destroy(copy);
    return rc == 0;
}

static void a_walk_and_the_events_since_give_the_content(void **)
{
    uint64_t seed = env_u64("KVR_SEED", 1), rounds = env_u64("KVR_OPS", 0) / 100 + 3000;
    size_t whole = 0, emitted, blocks = 0;
    struct kvr_index *truth;
    for (uint64_t s = 0; s < 4; s++) {
        struct kvr_rng rng = {seed + s};
        assert_int_equal(kvr_index_create(NULL, &truth), 0);
        for (uint64_t i = 0; i < rounds / 4; i++) {
            struct event_copy e;
            for (uint32_t k = kvr_rng_below(&rng, 60); k; k--) {
                random_event(&rng, &e, s ? truth : NULL);
                (void)apply_copy(truth, &e);
            }
            whole += walk_once(truth, &rng, s != 0, &emitted);
            blocks += emitted;
        }
        kvr_index_destroy(truth);
    }
    print_message("%zu whole walks of %llu, %zu blocks seen\n", whole, (unsigned long long)rounds, blocks);
    assert_true(whole > rounds / 20 && blocks > rounds * 2);
}

static int stop_at_third(void *ctx, const char *, size_t)
{
    return ++*(int *)ctx == 3;
}

static void a_reader_that_has_enough_ends_its_dump(void **)
{
    struct kvr_local_index *li = make(0, 0);
    struct kvr_local_query q = {0};
    int pieces = 0;
    for (uint64_t i = 1; i <= 20000; i++) assert_int_equal(put(li, i, i), 0);
    assert_int_equal(kvr_local_index_answer(li, &q, stop_at_third, &pieces), 1);
    assert_int_equal(pieces, 3);
    kvr_local_index_destroy(li);
}

static void a_walk_outlives_its_rank(void **)
{
    struct kvr_index *ix;
    struct kvr_index_walk *walk, *none;
    struct listing l = {.n = 0};
    bool more;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    assert_int_equal(kvr_index_walk_begin(ix, W, &none), 0);
    assert_int_equal(kvr_index_walk_next(none, 1, list_event, &l, &more), 0);
    struct kvr_block b[2] = {{1, 1}, {2, 2}};
    struct kvr_event ev = {.worker = W, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = 2};
    assert_int_equal(kvr_index_apply(ix, &ev), 0);
    assert_int_equal(kvr_index_walk_begin(ix, W, &walk), 0);
    kvr_index_remove_worker(ix, W.worker_id);
    assert_int_equal(kvr_index_walk_next(walk, 1, list_event, &l, &more), 0);
    assert_int_equal(l.n, 0);
    kvr_index_walk_end(walk);
    kvr_index_walk_end(none);
    kvr_index_walk_end(NULL);
    kvr_index_destroy(ix);
}

/* ---- threads ---------------------------------------------------------------------------------------------- */

static _Atomic bool stop;

struct reader {
    struct kvr_local_index *li;
    _Atomic size_t answers;
};

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    struct kvr_local_index *li = r->li;
    struct kvr_json_parser *p = kvr_json_parser_new();
    struct kvr_buf b = {0};
    uint64_t start = 0;
    while (!atomic_load(&stop)) {
        struct kvr_local_query q = {.has_start = atomic_load(&r->answers) % 3 != 0, .start = start};
        struct kvr_json o, v;
        b.len = 0;
        assert_int_equal(kvr_local_index_answer(li, &q, to_buf, &b), 0);
        assert_int_equal(kvr_json_parse(p, b.data, b.len, &o, NULL), 0);
        v = kvr_json_get(o, "Events");
        if (kvr_json_type_of(v) == KVR_JSON_NONE) v = kvr_json_get(o, "TreeDump");
        if (kvr_json_as_u64(kvr_json_get(v, "last_event_id"), &start)) start -= start > 100 ? 100 : start;
        atomic_fetch_add(&r->answers, 1);
    }
    kvr_buf_free(&b);
    kvr_json_parser_free(p);
    return NULL;
}

static void readers_beside_the_writer(void **)
{
    struct kvr_local_index *li = make(256, 65536);
    pthread_t threads[2];
    struct reader readers[2] = {{.li = li}, {.li = li}};
    struct kvr_rng rng = {5};
    atomic_store(&stop, false);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, reader_main, &readers[i]);
    for (uint64_t i = 1; i < 60000 || atomic_load(&readers[0].answers) < 4 || atomic_load(&readers[1].answers) < 4; i++) {
        struct event_copy e;
        random_event(&rng, &e, NULL);
        e.ev.event_id = i;
        e.ev.blocks = e.blocks;
        e.ev.removed = e.removed;
        for (size_t k = 0; k < e.ev.blocks_n; k++) e.blocks[k].tokens_hash = e.blocks[k].block_hash; /* no name moves */
        e.ev.has_parent = false;
        e.ev.blocks_n = e.ev.blocks_n > 1;
        (void)kvr_local_index_apply(li, &e.ev);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    kvr_local_index_destroy(li);
}

static void memory_may_run_out_anywhere(void **)
{
    struct failing_alloc f = {.fail_at = 0};
    long made = 0;
    for (f.fail_at = 0;; f.fail_at++) {
        struct kvr_alloc a = {failing_resize, &f};
        struct kvr_local_index_config c = {.alloc = &a, .worker = W, .block_size = 4, .events_max = 16};
        struct kvr_local_index *li;
        f.calls = 0;
        if (kvr_local_index_create(&c, &li)) {
            assert_int_equal(f.live, 0);
            continue;
        }
        uint32_t tokens[64] = {1, 2, 3};
        uint64_t names[16];
        struct kvr_buf b = {0};
        struct kvr_local_query whole = {0}, range = {.has_start = true, .start = 1};
        for (uint64_t i = 0; i < 16; i++) names[i] = i + 1;
        struct kvr_local_store s = {.tokens = tokens, .tokens_n = 64, .block_hashes = names, .blocks_n = 16};
        (void)kvr_local_index_store(li, 1, &s);
        (void)kvr_local_index_remove(li, 2, KVR_TIER_DEVICE, names + 8, 4);
        (void)kvr_local_index_answer(li, &whole, to_buf, &b);
        (void)kvr_local_index_answer(li, &range, to_buf, &b);
        bool out = f.calls > f.fail_at;
        kvr_buf_free(&b);
        kvr_local_index_destroy(li);
        assert_int_equal(f.live, 0);
        made++;
        if (!out) break;
    }
    assert_true(made > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_of_the_table),
        cmocka_unit_test(a_store_whose_tokens_and_hashes_differ_in_length_is_refused_and_leaves_nothing),
        cmocka_unit_test(answers_are_dynamos_json),
        cmocka_unit_test(a_block_with_an_image_is_stored_as_such),
        cmocka_unit_test(a_batch_is_told_whole_or_not),
        cmocka_unit_test(the_ring_is_bounded_in_bytes),
        cmocka_unit_test(what_is_not_whole_is_not_dumped),
        cmocka_unit_test(an_event_without_memory_is_not_forgotten),
        cmocka_unit_test(a_walk_and_the_events_since_give_the_content),
        cmocka_unit_test(a_reader_that_has_enough_ends_its_dump),
        cmocka_unit_test(a_walk_outlives_its_rank),
        cmocka_unit_test(readers_beside_the_writer),
        cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
