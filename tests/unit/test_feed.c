/* SPDX-License-Identifier: Apache-2.0 */
/* The sidecar's feed without its socket: salts are told in every event of their chain and forgotten with their last block; copies. */
#include "test.h"

#include <stdio.h>
#include <kvroute/hash.h>

#include "../capture_outlet.h"
#include "app/publish/feed.h"
#include "wire/engine_encode.h"

enum { BS = 2 };

struct run {
    struct feed feed;
    struct capture out;
    struct kvr_engine_batch in, sent;
    struct kvr_engine_stream engine;
};

static bool sidecar_holds(void *ctx, enum kvr_tier tier, uint64_t name)
{
    return kvr_local_index_holds(ctx, tier, name);
}

static void setup(struct run *r)
{
    struct kvr_local_index_config c = {.worker = {1, 0}, .block_size = BS};
    memset(r, 0, sizeof *r);
    r->feed = (struct feed){.worker = {1, 0}, .block_size = BS, .next_id = 1, .outlet = capture_open(&r->out)};
    assert_int_equal(kvr_local_index_create(&c, &r->feed.index), 0);
    kvr_engine_batch_init(&r->in);
    kvr_engine_batch_init(&r->sent);
    kvr_engine_stream_init(&r->engine, r->feed.worker, BS);
    r->engine.holds = sidecar_holds;
    r->engine.holds_ctx = r->feed.index;
}

static void teardown(struct run *r)
{
    kvr_engine_stream_free(&r->engine);
    kvr_engine_batch_free(&r->in);
    kvr_engine_batch_free(&r->sent);
    feed_close(&r->feed);
}

/* Stores a block and returns the salt of what was published. */
static struct kvr_bytes store(struct run *r, uint64_t name, uint64_t parent, const char *salt)
{
    static uint32_t tokens[BS] = {1, 2};
    struct kvr_block b = {name, name};
    struct kvr_event ev = {.kind = KVR_EVENT_STORED, .has_parent = parent > 0, .parent_hash = parent, .blocks = &b, .blocks_n = 1};
    struct kvr_engine_batch in = {.tokens = tokens, .tokens_n = BS};
    struct kvr_engine_event words = {.kind = KVR_ENGINE_STORED, .tokens_n = BS, .block_size = BS};
    struct kvr_ingest_origin origin = {&in, &words, &r->engine};
    if (salt) words.salt = (struct kvr_bytes){salt, strlen(salt)};
    assert_int_equal(feed_event(&r->feed, &ev, &origin), 0);
    assert_int_equal(kvr_engine_decode(&r->sent, r->out.batch.data, r->out.batch.len), 0);
    return r->sent.events[0].salt;
}

static uint64_t removed(struct run *r, uint64_t name)
{
    struct kvr_event ev = {.kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    struct kvr_ingest_origin origin = {.stream = &r->engine};
    uint64_t before = r->feed.next_id;
    int rc = feed_event(&r->feed, &ev, &origin);
    assert_true(rc == 0 || rc == -KVR_ENOTFOUND);
    return r->feed.next_id - before;
}

static bool is(struct kvr_bytes b, const char *text)
{
    return text ? b.len == strlen(text) && memcmp(b.ptr, text, b.len) == 0 : b.len == 0;
}

static void salts_live_as_long_as_their_blocks(void **)
{
    struct run r;
    char salt[32];
    setup(&r);
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 1; i <= 500; i++) {
            snprintf(salt, sizeof salt, "tenant %d", (int)(i % 100));
            assert_true(is(store(&r, i * 10, 0, salt), salt));
            assert_true(is(store(&r, i * 10 + 1, i * 10, NULL), salt)); /* inherited */
            assert_true(is(store(&r, i * 10 + 2, i * 10 + 1, NULL), salt));
        }
        assert_true(is(store(&r, 7, 0, NULL), NULL) && is(store(&r, 8, 7, NULL), NULL));
        assert_int_equal(r.feed.salt_at.n, 100);
        assert_int_equal(r.feed.salted.n, 1500);
        for (uint64_t i = 500; i >= 1; i--)
            for (uint64_t k = 3; k-- > 0;) assert_int_equal(removed(&r, i * 10 + k), 1);
        assert_int_equal(r.feed.salt_at.n + r.feed.salted.n, 0);
        assert_true(r.feed.salts_n <= 101); /* places are used again */
        removed(&r, 8);
        removed(&r, 7);
    }
    assert_true(is(store(&r, 10, 0, "a"), "a") && is(store(&r, 10, 0, "b"), "b") &&
                is(store(&r, 11, 10, NULL), "b")); /* the last word counts */
    assert_true(is(store(&r, 10, 0, NULL), NULL) && is(store(&r, 12, 10, NULL), NULL));
    assert_int_equal(r.feed.forgotten_salts, 0);
    teardown(&r);
}

/* An engine's words, as the ingest takes them. */
static void fed(void *ctx, const struct kvr_event *ev)
{
    struct run *r = ctx;
    struct kvr_ingest_origin origin = {&r->in, r->engine.current, &r->engine};
    (void)feed_event(&r->feed, ev, &origin);
}

static void engine_writes(struct run *r, const struct kvr_event *ev, const struct kvr_engine_words *w)
{
    struct kvr_buf event = {0}, batch = {0};
    kvr_engine_encode(&event, ev, w);
    kvr_engine_encode_batch(&batch, 1, &event, 1, 0);
    assert_int_equal(kvr_engine_decode(&r->in, batch.data, batch.len), 0);
    assert_true(kvr_engine_convert(&r->engine, &r->in, 1, fed, r) >= 0);
    kvr_buf_free(&event);
    kvr_buf_free(&batch);
}

static void engine_says(struct run *r, const struct kvr_event *ev, const char *salt)
{
    static uint32_t tokens[BS] = {1, 2};
    struct kvr_engine_words w = {.tokens = tokens, .tokens_n = BS, .block_size = BS};
    if (salt) w.salt = (struct kvr_bytes){salt, strlen(salt)};
    engine_writes(r, ev, &w);
}

static void the_engine_stores(struct run *r, uint64_t name, uint64_t parent, const char *salt)
{
    struct kvr_block b = {.block_hash = name};
    struct kvr_event ev = {.kind = KVR_EVENT_STORED, .has_parent = parent > 0, .parent_hash = parent, .blocks = &b, .blocks_n = 1};
    engine_says(r, &ev, salt);
}

static void the_engine_removes(struct run *r, uint64_t name)
{
    struct kvr_event ev = {.kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    engine_says(r, &ev, NULL);
}

static void a_block_goes_with_its_last_copy(void **)
{
    struct run r;
    setup(&r);
    for (int i = 0; i < 3; i++) the_engine_stores(&r, 5, 0, NULL);
    assert_int_equal(r.feed.next_id, 2); /* its copies are nobody's business */
    the_engine_removes(&r, 5);
    the_engine_removes(&r, 5);
    assert_int_equal(r.feed.next_id, 2);
    the_engine_removes(&r, 5);
    assert_int_equal(r.feed.next_id, 3);
    the_engine_removes(&r, 5); /* never stored: passed on */
    assert_int_equal(r.feed.next_id, 4);
    the_engine_stores(&r, 5, 0, NULL);
    uint64_t before = r.feed.next_id;
    feed_reset(&r.feed);
    feed_reset(&r.feed);
    assert_int_equal(r.feed.next_id, before + 1); /* nothing to forget the second time */
    kvr_engine_stream_reset(&r.engine);
    the_engine_stores(&r, 5, 0, NULL);
    the_engine_removes(&r, 5);
    assert_int_equal(r.feed.next_id, before + 3); /* counts began anew */
    teardown(&r);
}

/* Of a store whose first blocks are there already, the others are published, with their own tokens, salt and parent. */
static void what_is_new_of_a_store_is_published(void **)
{
    static uint32_t tokens[3 * BS] = {1, 2, 3, 4, 5, 6};
    struct kvr_block blocks[3] = {{.block_hash = 6}, {.block_hash = 7}, {.block_hash = 8}};
    struct kvr_event ev = {.kind = KVR_EVENT_STORED, .has_parent = true, .parent_hash = 5, .blocks = blocks, .blocks_n = 1};
    struct kvr_engine_words w = {.tokens = tokens, .tokens_n = BS, .block_size = BS};
    struct run r;
    setup(&r);
    the_engine_stores(&r, 5, 0, "tenant");
    engine_writes(&r, &ev, &w);
    ev.blocks_n = 3;
    w.tokens_n = 3 * BS;
    engine_writes(&r, &ev, &w);
    assert_int_equal(kvr_engine_decode(&r.sent, r.out.batch.data, r.out.batch.len), 0);
    const struct kvr_engine_event *got = &r.sent.events[0];
    assert_int_equal(got->hashes_n, 2);
    assert_true(r.sent.hashes[got->hashes_at] == 7 && got->parent == 6 && is(got->salt, "tenant"));
    assert_int_equal(got->tokens_n, 2 * BS);
    assert_memory_equal(r.sent.tokens + got->tokens_at, tokens + BS, 2 * BS * sizeof *tokens);
    teardown(&r);
}

static int to_buf(void *ctx, const char *data, size_t len)
{
    kvr_buf_add(ctx, data, len);
    return 0;
}

/* Has the sidecar's own index a block with the hash of tokens {1, 2} under the salt? */
static bool holds(struct run *r, uint64_t name, const char *salt)
{
    static const uint32_t tokens[BS] = {1, 2};
    struct kvr_buf b = {0};
    char text[96];
    uint64_t local;
    struct kvr_local_query q = {0};
    (void)kvr_hash_locals(tokens, BS, BS, false, kvr_hash_seed("", 0, salt, strlen(salt)), NULL, 0, &local);
    snprintf(text, sizeof text, "\"block_hash\":%llu,\"tokens_hash\":%llu", (unsigned long long)name, (unsigned long long)local);
    assert_int_equal(kvr_local_index_answer(r->feed.index, &q, to_buf, &b), 0);
    kvr_buf_add(&b, "", 1);
    bool found = strstr(b.data, text) != NULL;
    kvr_buf_free(&b);
    return found;
}

static void a_copy_that_stays_keeps_its_salt(void **)
{
    struct run r;
    setup(&r);
    the_engine_stores(&r, 5, 0, "tenant");
    the_engine_stores(&r, 5, 0, "tenant");
    the_engine_removes(&r, 5);
    the_engine_stores(&r, 6, 5, NULL); /* the salt is told once a chain */
    assert_true(holds(&r, 5, "tenant") && holds(&r, 6, "tenant"));
    the_engine_removes(&r, 6);
    the_engine_removes(&r, 5);
    assert_int_equal(r.engine.salts.n, 0);
    teardown(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(salts_live_as_long_as_their_blocks),
        cmocka_unit_test(a_block_goes_with_its_last_copy),
        cmocka_unit_test(what_is_new_of_a_store_is_published),
        cmocka_unit_test(a_copy_that_stays_keeps_its_salt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
