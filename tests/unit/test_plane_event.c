/* SPDX-License-Identifier: Apache-2.0 */
/* Envelopes, router events, heartbeats: what is written is read again; what other writers may send; what is refused. */
#include "test.h"

#include "wire/msgpack.h"
#include "wire/plane_event.h"

static struct kvr_block *blocks;
static size_t cap;

static int count(void *ctx, const struct kvr_plane_place *p)
{
    uint64_t *ids = ctx;
    ids[++ids[0]] = p->event_id;
    return 0;
}

static void an_event_is_read_as_it_was_written(void **)
{
    struct kvr_block two[] = {{UINT64_MAX, 1}, {2, UINT64_MAX - 1}};
    uint64_t gone[] = {3, UINT64_MAX};
    struct kvr_event out, in[] = {
                              {.event_id = 5,
                               .worker = {7, 2},
                               .kind = KVR_EVENT_STORED,
                               .tier = KVR_TIER_DISK,
                               .has_parent = true,
                               .parent_hash = 9,
                               .blocks = two,
                               .blocks_n = 2},
                              {.event_id = 6,
                               .worker = {UINT64_MAX, 0},
                               .kind = KVR_EVENT_STORED,
                               .has_start_position = true,
                               .start_position = 4,
                               .blocks = two,
                               .blocks_n = 1},
                              {.event_id = 7, .worker = {7, 2}, .kind = KVR_EVENT_REMOVED, .removed = gone, .removed_n = 2},
                              {.event_id = UINT64_MAX, .worker = {7, 2}, .kind = KVR_EVENT_CLEARED},
                          };
    for (size_t i = 0; i < 4; i++) {
        struct kvr_buf b = {0}, e = {0}, scratch = {0};
        struct kvr_envelope env = {1, i, 1700000000000, KVR_PLANE_EVENTS, 9, NULL, 0, i > 1, i % 2 == 0}, got;
        kvr_plane_event_write(&b, &in[i]);
        env.payload = b.data;
        env.payload_len = (uint32_t)b.len;
        kvr_envelope_write(&e, &env);
        assert_int_equal(kvr_envelope_read(e.data, e.len, &scratch, &got), 0);
        assert_true(kvr_envelope_is(&got, KVR_PLANE_EVENTS) && got.sequence == i && got.publisher == 1 &&
                    got.published_at_ms == 1700000000000 && got.heartbeats == env.heartbeats && got.partial == env.partial);
        uint64_t ids[3] = {0};
        assert_int_equal(kvr_plane_events_each(got.payload, got.payload_len, count, ids), 0);
        assert_true(ids[0] == 1 && ids[1] == in[i].event_id);
        assert_int_equal(kvr_plane_event_read(got.payload, got.payload_len, &out, &blocks, &cap), 0);
        assert_true(out.kind == in[i].kind && out.tier == in[i].tier && kvr_worker_cmp(out.worker, in[i].worker) == 0);
        assert_true(out.has_parent == in[i].has_parent && out.parent_hash == in[i].parent_hash &&
                    out.start_position == in[i].start_position);
        assert_true(out.blocks_n == in[i].blocks_n && out.removed_n == in[i].removed_n);
        if (out.blocks_n) assert_memory_equal(out.blocks, in[i].blocks, out.blocks_n * sizeof *out.blocks);
        if (out.removed_n) assert_memory_equal(out.removed, in[i].removed, out.removed_n * 8);
        for (size_t cut = 0; cut < e.len; cut++) assert_int_equal(kvr_envelope_read(e.data, cut, &scratch, &got), -KVR_EFORMAT);
        kvr_buf_free(&b);
        kvr_buf_free(&e);
        kvr_buf_free(&scratch);
    }
}

#define READ(text) kvr_envelope_read(text, sizeof(text) - 1, &scratch, &e)

static void what_other_writers_send(void **)
{
    struct kvr_buf scratch = {0};
    struct kvr_envelope e;
    /* no version, the payload as numbers, a key that is not known */
    assert_int_equal(READ("\x86\xacpublisher_id\x05\xa8sequence\x00\xacpublished_at\x01\xaf"
                          "published_at_ns\x02\xa5topic\xa1t\xa7payload\x93\x01\x7f\xcc\xff"),
                     0);
    assert_int_equal(e.payload_len, 3);
    assert_memory_equal(e.payload, "\x01\x7f\xff", 3);
    assert_int_equal(READ("\x85\xa7version\x02\xacpublisher_id\x05\xa8sequence\x00\xa5topic\xa1t\xa7payload\xc4\x00"), -KVR_EUNSUPPORTED);
    assert_int_equal(READ("\x83\xacpublisher_id\x05\xa8sequence\x00\xa5topic\xa1t"), -KVR_EFORMAT);
    assert_int_equal(READ("\x84\xacpublisher_id\xff\xa8sequence\x00\xa5topic\xa1t\xa7payload\xc4\x00"), -KVR_EFORMAT);
    assert_int_equal(READ("\x95\x01\x02\x03\x04\x05"), -KVR_EFORMAT); /* positional */
    kvr_buf_free(&scratch);
}

static void several_events_in_one_payload(void **)
{
    struct kvr_event ev = {.worker = {1, 0}, .kind = KVR_EVENT_CLEARED};
    struct kvr_buf b = {0};
    uint64_t ids[5] = {0};
    kvr_buf_add(&b, "\x93", 1);
    for (ev.event_id = 1; ev.event_id <= 3; ev.event_id++) kvr_plane_event_write(&b, &ev);
    assert_int_equal(kvr_plane_events_each(b.data, b.len, count, ids), 0);
    assert_true(ids[0] == 3 && ids[1] == 1 && ids[3] == 3);
    char *domain = memmem(b.data, b.len, "worker\xa5", 7); /* "residency_domain": "worker", then "event" */
    memcpy(domain, "owner ", 6);
    memset(ids, 0, sizeof ids);
    assert_int_equal(kvr_plane_events_each(b.data, b.len, count, ids), 0);
    assert_true(ids[0] == 2 && ids[1] == 2);
    kvr_buf_free(&b);
}

static void hostile_lengths_are_refused(void **)
{
    assert_false(kvr_msgpack_is_whole("\xdd\xff\xff\xff\xff", 5));
    assert_false(kvr_msgpack_is_whole("\x92\xdd\xff\xff\xff\xff", 6));
    assert_false(kvr_msgpack_is_whole("", 0));
    char deep[100];
    memset(deep, 0x91, sizeof deep);
    deep[99] = 1;
    assert_false(kvr_msgpack_is_whole(deep, sizeof deep));
    assert_true(kvr_msgpack_is_whole(deep + 40, 60));
}

static void frames(void **)
{
    unsigned char head[KVR_PLANE_FRAME_HEAD + 3] = {0};
    const char *inner;
    size_t n;
    kvr_plane_frame_head(head, 3);
    assert_memory_equal(head, "\x01\x00\x00\x00\x03", 5);
    assert_int_equal(kvr_plane_frame_open((char *)head, 8, &inner, &n), 0);
    assert_true(inner == (char *)head + 5 && n == 3);
    assert_int_equal(kvr_plane_frame_open((char *)head, 7, &inner, &n), -KVR_EFORMAT);
    assert_int_equal(kvr_plane_frame_open((char *)head, 4, &inner, &n), -KVR_EFORMAT);
    head[0] = 2;
    assert_int_equal(kvr_plane_frame_open((char *)head, 8, &inner, &n), -KVR_EUNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_is_read_as_it_was_written),
        cmocka_unit_test(what_other_writers_send),
        cmocka_unit_test(several_events_in_one_payload),
        cmocka_unit_test(hostile_lengths_are_refused),
        cmocka_unit_test(frames),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(blocks);
    return rc;
}
