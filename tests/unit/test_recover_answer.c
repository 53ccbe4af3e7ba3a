/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery answers as they arrive: every variant, both shapes, any split, and what is refused. Engine batches as we write them. */
#include "test.h"

#include <stdio.h>

#include "base/buf.h"
#include "wire/engine_encode.h"
#include "wire/recover_answer.h"

#define STORED(id)                                                                                                                         \
    "{\"worker_id\":1,\"event\":{\"event_id\":" #id                                                                                        \
    ",\"dp_rank\":0,\"data\":{\"stored\":{\"parent_hash\":null,\"blocks\":[{\"block_hash\":18446744073709551615,\"tokens_hash\":2}]}}}}"
#define REMOVED(id) "{\"worker_id\":1,\"event\":{\"event_id\":" #id ",\"dp_rank\":0,\"data\":{\"removed\":{\"block_hashes\":[7,8,9]}}}}"
#define CLEARED(id) "{\"worker_id\":1,\"event\":{\"event_id\":" #id ",\"dp_rank\":0,\"data\":\"cleared\"}}"

static int read_text(struct kvr_recover_reader *r, const char *text, size_t cut)
{
    size_t n = strlen(text);
    assert_int_equal(kvr_recover_reader_init(r), 0);
    int rc = kvr_recover_reader_feed(r, text, cut);
    if (rc == 0) rc = kvr_recover_reader_feed(r, text + cut, n - cut);
    return rc ? rc : kvr_recover_reader_end(r);
}

static void expect(const char *text, enum kvr_recover_kind kind, size_t events, uint64_t last)
{
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        struct kvr_recover_reader r;
        if (read_text(&r, text, cut)) fail_msg("refused: %s: %s", r.why ? r.why : "?", text);
        assert_int_equal(r.answer.kind, kind);
        assert_int_equal(r.answer.events.n, events);
        assert_int_equal(r.answer.last_event_id, last);
        kvr_recover_reader_free(&r);
    }
}

static void every_variant_in_both_shapes(void **)
{
    expect("{\"Events\":{\"events\":[" STORED(3) "," REMOVED(4) "," CLEARED(4) "],\"last_event_id\":4}}", KVR_RECOVER_EVENTS, 3, 4);
    expect("{\"Events\":[" STORED(3) ", " REMOVED(9) "]}", KVR_RECOVER_EVENTS, 2, 9);
    expect(" { \"Events\" : [ ] } ", KVR_RECOVER_EVENTS, 0, 0);
    expect("{\"TreeDump\":{\"last_event_id\":6,\"events\":[" STORED(0) "," STORED(1) "],\"reset_scope\":\"all\"}}", KVR_RECOVER_TREE_DUMP,
           2, 6);
    expect("{\"TooNew\":{\"requested_start\":7,\"requested_end\":null,\"newest_available\":6}}", KVR_RECOVER_TOO_NEW, 0, 0);
    expect("{\"InvalidRange\":{\"start_id\":7,\"end_id\":6}}", KVR_RECOVER_INVALID_RANGE, 0, 0);
    expect("{\"TreeDumpFailed\":{\"last_event_id\":7,\"message\":\"no\"}}", KVR_RECOVER_FAILED, 0, 0);
    expect("{\"Error\":\"wrong \\\"rank\\\" [{\"}", KVR_RECOVER_FAILED, 0, 0);
    expect("{\"SomethingLater\":{\"x\":[1,2]}}", KVR_RECOVER_UNKNOWN, 0, 0); /* the set is open */
}

static void what_an_answer_says(void **)
{
    struct kvr_recover_reader r;
    assert_int_equal(read_text(&r, "{\"TreeDump\":{\"epoch\":5,\"events\":[" STORED(0) "],\"last_event_id\":6,\"end_event_id\":8}}", 10),
                     0);
    const struct kvr_event *e = kvr__event_list_events(&r.answer.events);
    assert_true(r.answer.has_epoch && r.answer.epoch == 5 && r.answer.has_end && r.answer.end_event_id == 8);
    assert_true(e[0].blocks[0].block_hash == UINT64_MAX && e[0].blocks[0].tokens_hash == 2 && !e[0].has_parent);
    kvr_recover_reader_free(&r);
    assert_int_equal(read_text(&r, "{\"Events\":[" REMOVED(1) "]}", 1), 0);
    e = kvr__event_list_events(&r.answer.events);
    assert_true(e[0].removed_n == 3 && e[0].removed[2] == 9);
    kvr_recover_reader_free(&r);
    assert_int_equal(read_text(&r, "{\"Error\":\"wrong rank\"}", 1), 0);
    assert_string_equal(r.answer.message, "wrong rank");
    kvr_recover_reader_free(&r);
}

static void what_is_refused(void **)
{
    static const char *const bad[] = {
        "",
        "5",
        "[]",
        "{",
        "{\"Events\":",
        "{\"Events\":5}",
        "{\"Events\":{}}",
        "{\"Events\":{\"events\":[" STORED(4) "],\"last_event_id\":18446744073709551616}}", /* not as if it were not there */
        "{\"Events\":{\"events\":[" STORED(4) "],\"last_event_id\":4,\"end_event_id\":-1}}",
        "{\"Events\":{\"events\":[" STORED(4) "],\"last_event_id\":4,\"block_size\":1e400}}",
        "{\"Events\":{\"events\":[" STORED(4) "],\"last_event_id\":4,\"epoch\":1.5}}",
        "{\"TooNew\":{\"newest_available\":18446744073709551616}}",
        "{\"TreeDump\":{\"events\":[]}}",
        "{\"TreeDump\":{\"last_event_id\":1}}",
        "{\"TreeDump\":{\"events\":[" REMOVED(1) "],\"last_event_id\":1}}",
        "{\"Events\":[" STORED(4) "," STORED(3) "]}",
        "{\"Events\":[5]}",
        "{\"Events\":[\"x\"]}",
        "{\"Events\":[[]]}",
        "{\"Events\":[{}]}",
        "{\"TooNew\":{}}",
        "{\"TooNew\":{\"newest_available\":1,\"events\":[" STORED(4) "]}}",
        "]",
        "{\"Events\":[]}}",
        "{\"Events\":[]} 5",
        "{\"Events\":[{\"worker_id\":1,\"residency_domain\":\"cache_owner\",\"event\":{\"event_id\":1,\"data\":\"cleared\"}}]}",
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) {
        struct kvr_recover_reader r;
        if (read_text(&r, bad[i], strlen(bad[i]) / 2) == 0) fail_msg("taken: %s", bad[i]);
        kvr_recover_reader_free(&r);
    }
    struct kvr_recover_reader r; /* a body that is no answer is given up early */
    assert_int_equal(kvr_recover_reader_init(&r), 0);
    int rc = 0;
    for (int i = 0; i < 100000 && rc == 0; i++) rc = kvr_recover_reader_feed(&r, "{\"a\":1,", 7);
    assert_int_equal(rc, -KVR_EFORMAT);
    kvr_recover_reader_free(&r);
}

/* ---- engine batches ----------------------------------------------------------------------------------------- */

struct seen {
    struct kvr_event ev;
    struct kvr_block blocks[4];
    size_t n;
};

static void keep(void *ctx, const struct kvr_event *ev)
{
    struct seen *s = ctx;
    s->ev = *ev;
    if (ev->kind == KVR_EVENT_STORED) memcpy(s->blocks, ev->blocks, ev->blocks_n * sizeof *ev->blocks);
    s->n++;
}

/* What is written is read as the same blocks with the same hashes. */
static void written_batches_are_read_the_same(void **)
{
    struct kvr_engine_batch b;
    struct kvr_engine_stream s;
    struct seen seen = {.n = 0};
    struct kvr_buf event = {0}, out = {0};
    struct kvr_block blocks[2] = {{UINT64_MAX, 0}, {12, 0}};
    uint32_t tokens[] = {0, 1, 2, 3, 4};
    uint64_t objects[] = {0x0123456789abcdef}, want[2];
    struct kvr_engine_mm mm[2] = {{0, 0}, {0, 1}};
    struct kvr_mm_block mm_blocks[2] = {{NULL, 0}, {objects, 1}};
    struct kvr_engine_words w = {.tokens = tokens,
                                 .tokens_n = 5,
                                 .block_size = 2,
                                 .lora = {"adapter-a", 9},
                                 .salt = {"tenant-a", 8},
                                 .eagle = true,
                                 .mm = mm,
                                 .mm_n = 2,
                                 .mm_hashes = objects};
    struct kvr_event ev = {
        .kind = KVR_EVENT_STORED, .tier = KVR_TIER_DISK, .has_parent = true, .parent_hash = 5, .blocks = blocks, .blocks_n = 2};
    kvr_engine_encode(&event, &ev, &w);
    kvr_engine_encode_batch(&out, 1.5, &event, 1, 3);
    kvr_engine_batch_init(&b);
    kvr_engine_stream_init(&s, (struct kvr_worker){1, 3}, 2);
    s.tiers = true;
    assert_int_equal(kvr_engine_decode(&b, out.data, out.len), 0);
    assert_true(b.has_rank && b.rank == 3 && b.ts == 1.5);
    assert_int_equal(kvr_engine_convert(&s, &b, 1, keep, &seen), 1);
    assert_true(seen.ev.tier == KVR_TIER_DISK && seen.ev.has_parent && seen.ev.parent_hash == 5 && seen.ev.blocks_n == 2);
    assert_int_equal(kvr_hash_locals(tokens, 5, 2, true, kvr_hash_seed("adapter-a", 9, "tenant-a", 8), mm_blocks, 2, want), 2);
    for (int i = 0; i < 2; i++) {
        assert_true(seen.blocks[i].block_hash == blocks[i].block_hash);
        assert_true(seen.blocks[i].tokens_hash == want[i]);
    }
    kvr_engine_batch_free(&b);
    kvr_engine_stream_free(&s);
    kvr_buf_free(&event);
    kvr_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_in_both_shapes),
        cmocka_unit_test(what_an_answer_says),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(written_batches_are_read_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
