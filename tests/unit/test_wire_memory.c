/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory fails once, at every allocation in turn, under each codec: the result says so (and not that the other side sent
 * something wrong), nothing is lost, and what is kept between calls works the next time.
 */
#include "test.h"

#include <stdio.h>

#include "failing_memory.h"
#include "wire/dump_stream.h"
#include "wire/engine_encode.h"
#include "wire/engine_events.h"
#include "wire/handoff.h"
#include "wire/index_question.h"
#include "wire/index_service.h"
#include "wire/mm_infos.h"
#include "wire/mm_parts.h"
#include "wire/openai.h"
#include "wire/plane_event.h"
#include "wire/plane_snapshot.h"
#include "wire/rank_member.h"
#include "wire/record.h"
#include "wire/recover_answer.h"
#include "wire/sse.h"
#include "wire/sync_event.h"
#include "wire/trace.h"
#include "wire/usage_merge.h"

/* Reads or writes something. Returns: 0, or the codec's error. */
typedef int scene_fn(void);

/* Each allocation of the scene fails once; then it goes well again, with whatever it keeps. */
static void fail_each(scene_fn *scene)
{
    for (long n = 0;; n++) {
        memory_fails_at(n, 0);
        int rc = scene();
        bool failed = memory_has_failed();
        memory_recovers();
        if (!failed) {
            assert_int_equal(rc, 0);
            return;
        }
        if (rc != 0 && rc != -KVR_ENOMEM) fail_msg("allocation %ld failed, and the result is %s", n, kvr_err_name(rc));
        rc = scene();
        if (rc) fail_msg("after allocation %ld failed nothing goes any more: %s", n, kvr_err_name(rc));
        assert_true(n < 10000);
    }
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static struct kvr_json_parser *parser; /* made anew by each test; used again after each failure */

static int make_parser(void **)
{
    parser = kvr_json_parser_new();
    return parser ? 0 : -1;
}

static int drop_parser(void **)
{
    kvr_json_parser_free(parser);
    return 0;
}

static int parse_growing_documents(void)
{
    struct kvr_json root;
    static char text[64 << 10];
    for (size_t n = 16; n <= sizeof text; n *= 16) {
        memset(text, ' ', n);
        text[0] = '[';
        text[n - 2] = '7';
        text[n - 1] = ']';
        int rc = kvr_json_parse(parser, text, n, &root, NULL);
        if (rc) return rc;
        assert_int_equal(kvr_json_count(root), 1);
    }
    return 0;
}

static int parse_with_a_fresh_parser(void)
{
    struct kvr_json_parser *kept = parser;
    parser = kvr_json_parser_new();
    int rc = parser ? parse_growing_documents() : -KVR_ENOMEM;
    if (parser && rc) rc = parse_growing_documents() ? -KVR_EFORMAT : rc; /* memory has come back */
    kvr_json_parser_free(parser);
    parser = kept;
    return rc;
}

/* simdjson looks at the processor then, and takes memory for that where it cannot say no. */
static void the_first_parser_of_a_process(void **)
{
    fail_each(parse_with_a_fresh_parser);
}

/* Without memory for the brief text the whole one is parsed. */
static int read_in_brief(void)
{
    enum { IDS = 2000 };
    struct kvr_json_parser *p = kvr_json_parser_new();
    char body[16 + 4 * IDS];
    uint32_t ids[IDS];
    struct kvr_json root;
    size_t len = (size_t)snprintf(body, sizeof body, "{\"prompt\":[");
    for (unsigned i = 0; i < IDS; i++) len += (size_t)snprintf(body + len, sizeof body - len, "%s%u", i ? "," : "", i % 1000);
    memcpy(body + len, "]}", 2);
    int rc = p ? kvr_json_parse_brief(p, body, len + 2, KVR_JSON_NO_PROMPT, &root, NULL) : -KVR_ENOMEM;
    if (rc == 0) assert_int_equal(kvr_json_u32_array(kvr_json_get(root, "prompt"), ids, IDS), IDS);
    for (unsigned i = 0; rc == 0 && i < IDS; i++) assert_int_equal(ids[i], i % 1000);
    kvr_json_parser_free(p);
    return rc;
}

static void a_parser_is_used_again_after_memory_was_short(void **)
{
    fail_each(parse_growing_documents);
    fail_each(parse_with_a_fresh_parser);
    fail_each(read_in_brief);
}

static int read_prompt(void)
{
    static const char body[] = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"user\",\"content\":"
                               "[{\"type\":\"text\",\"text\":\"two\"}]}],\"cache_salt\":\"s\"}";
    struct kvr_openai_request r;
    struct kvr_buf text = {0};
    const char *why = "";
    int rc = kvr_openai_parse(parser, body, sizeof body - 1, KVR_JSON_ALL, &r, &why);
    if (rc) return rc;
    assert_true(kvr_openai_prompt_text(&r, &text));
    rc = text.failed ? -KVR_ENOMEM : 0;
    kvr_buf_free(&text);
    return rc;
}

static int read_a_chat_with_images(void)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"one\"},{\"type\":\"image_url\",\"image_url\":"
        "{\"url\":\"data:;base64,QUJD\"}}]}],\"block_mm_infos\":[null,{\"mm_objects\":[{\"mm_hash\":7}]}]}";
    const struct kvr_rank_member none = {0};
    struct kvr_json root;
    struct kvr_mm_infos m = {0};
    struct kvr_buf plain = {0}, spliced = {0};
    char why[160];
    int rc = kvr_json_parse(parser, body, sizeof body - 1, &root, NULL);
    if (rc == 0) rc = kvr_mm_infos_read(root, 2, &m, why, sizeof why);
    if (rc == 0) {
        assert_true(m.n == 2 && m.blocks[1].count == 1 && kvr_mm_parts_any(root));
        assert_true(kvr_mm_parts_remove(body, sizeof body - 1, root, &plain));
        kvr_rank_member_splice(body, sizeof body - 1, &none, 3, &spliced);
        rc = plain.failed || spliced.failed ? -KVR_ENOMEM : 0;
    }
    kvr_mm_infos_free(&m);
    kvr_buf_free(&plain);
    kvr_buf_free(&spliced);
    return rc;
}

/* A request for two engines: both bodies, and what the first of them answers. */
static int hand_over(void)
{
    static const char body[] = "{\"messages\":[],\"vllm_xargs\":{\"kv_transfer_params\":1},\"stream\":true}";
    static const char answer[] = "{\"choices\":[{\"index\":0,\"message\":{},\"finish_reason\":\"length\",\"disaggregated_params\":"
                                 "{\"ctx_request_id\":1,\"disagg_request_id\":2}}],\"usage\":{\"prompt_tokens\":3}}";
    static const uint64_t room = 7;
    const struct kvr_json_span b = {body, body + sizeof body - 1}, a = {answer, answer + sizeof answer - 1};
    struct kvr_handoff h;
    int rc = kvr_handoff_read(KVR_KV_TRTLLM, a, &h) == KVR_HANDOFF_OK ? 0 : -KVR_ENOMEM;
    for (unsigned p = 0; rc == 0 && p < KVR_KV_PROTOCOLS; p++) {
        const struct kvr_handoff_leg leg = {
            .protocol = p, .id = "i", .host = "h", .engine_id = "e", .rooms = &room, .rooms_n = 1, .chat = true};
        struct kvr_buf prefill = {0}, decode = {0}, events = {0}, whole = {0};
        assert_true(kvr_handoff_prefill_body(&leg, b, &prefill) && kvr_handoff_decode_body(&leg, b, &h, &decode));
        assert_true(kvr_handoff_ended_stream(a, true, true, &events) && kvr_handoff_ended_answer(a, &whole));
        if (prefill.failed || decode.failed || events.failed || whole.failed) rc = -KVR_ENOMEM;
        kvr_buf_free(&prefill);
        kvr_buf_free(&decode);
        kvr_buf_free(&events);
        kvr_buf_free(&whole);
    }
    return rc;
}

/* Without memory for the line it passes as it came; nothing of it is lost. */
static int put_a_usage_right(void)
{
    static const char first[] = "data: {\"usage\":{\"prompt_tokens_details\":", rest[] = "{\"cached_tokens\":47}}}\n\ndata: [DONE]\n\n";
    struct kvr_usage_merge m = {.told = {true, 32}};
    struct kvr_buf out = {0};
    kvr_usage_merge_feed(&m, parser, first, sizeof first - 1, &out);
    kvr_usage_merge_feed(&m, parser, rest, sizeof rest - 1, &out);
    kvr_usage_merge_end(&m, &out);
    int rc = out.failed ? -KVR_ENOMEM : 0;
    if (rc == 0) assert_int_equal(out.len, sizeof first - 1 + sizeof rest - 1);
    kvr_usage_merge_free(&m);
    kvr_buf_free(&out);
    return rc;
}

static void a_body_is_not_called_wrong_when_memory_is_short(void **)
{
    kvr_json_parser_free(parser);
    parser = kvr_json_parser_new(); /* that has no room yet */
    fail_each(read_prompt);
    fail_each(read_a_chat_with_images);
    fail_each(hand_over);
    fail_each(put_a_usage_right);
}

static int read_stream(void)
{
    struct kvr_sse s = {0};
    static const char first[] = "data: {\"choices\":[],\"usa", rest[] = "ge\":{\"prompt_tokens\":7}}\n\ndata: [DO", end[] = "NE]\n\n";
    kvr_sse_feed(&s, parser, first, sizeof first - 1);
    kvr_sse_feed(&s, parser, rest, sizeof rest - 1);
    kvr_sse_feed(&s, parser, end, sizeof end - 1);
    int rc = s.done && s.usage.prompt_tokens == 7 ? 0 : -KVR_ENOMEM; /* what is passed on does not depend on it */
    kvr_sse_free(&s);
    return rc;
}

static int read_trace(void)
{
    static const char line[] = "{\"timestamp\":1,\"input_length\":600,\"output_length\":2,\"hash_ids\":[1,2]}";
    struct kvr_trace_row row;
    const char *why;
    int rc = kvr_trace_parse(parser, line, sizeof line - 1, &row, &why);
    if (rc == 0) kvr_trace_row_free(&row);
    return rc;
}

static int read_trace_of_texts(void)
{
    static const char line[] = "{\"timestamp\":1,\"output_length\":2,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[]}";
    struct kvr_trace_row row;
    const char *why;
    int rc = kvr_trace_parse(parser, line, sizeof line - 1, &row, &why);
    if (rc == 0) kvr_trace_row_free(&row);
    return rc;
}

static const struct kvr_block three[] = {{UINT64_MAX, 1}, {2, 3}, {4, 5}};
static const struct kvr_event store = {.event_id = 5, .worker = {7, 2}, .kind = KVR_EVENT_STORED, .blocks = three, .blocks_n = 3};

static int write_and_read_a_record(void)
{
    struct kvr_buf b = {0};
    struct kvr_event out;
    struct kvr_block *blocks = NULL;
    size_t cap = 0;
    uint64_t ms;
    kvr_record_write(&b, 9, &store);
    int rc = b.failed ? -KVR_ENOMEM : kvr_record_read(parser, b.data, b.len, &ms, &out, &blocks, &cap);
    free(blocks);
    kvr_buf_free(&b);
    return rc;
}

static void lines_of_text(void **)
{
    fail_each(read_stream);
    fail_each(read_trace);
    fail_each(read_trace_of_texts);
    fail_each(write_and_read_a_record);
}

/* ---- what arrives in pieces ---------------------------------------------------------------------------------------- */

static int take_partition(void *, const char *model, const char *group, uint32_t block_size)
{
    return strcmp(model, "m") || strcmp(group, "g") || block_size != 4 ? -KVR_EFORMAT : 0;
}

static int take_event(void *ctx, const struct kvr_event *ev)
{
    *(size_t *)ctx += ev->blocks_n;
    return 0;
}

static int take_view(void *, const struct kvr_dump_view *v)
{
    return v->next_sequence == 3 ? 0 : -KVR_EFORMAT;
}

#define ONE_EVENT                                                                                                                          \
    "{\"worker_id\":1,\"event\":{\"event_id\":3,\"dp_rank\":0,\"data\":{\"stored\":{\"parent_hash\":null,\"blocks\":[{\"block_hash\":1,"   \
    "\"tokens_hash\":2}]}}}}"

static int read_dump(void)
{
    static const char text[] =
        "{\"m:g\":{\"block_size\":4,\"events\":[" ONE_EVENT "," ONE_EVENT "],\"views\":[{\"worker_id\":1,\"dp_rank\":0,"
        "\"trusted\":true,\"next_sequence\":3,\"last_hash\":4,\"last_ts\":5.5}]}}";
    size_t blocks = 0;
    struct kvr_dump_handler h = {take_partition, take_event, take_view, &blocks};
    struct kvr_dump_stream s;
    int rc = kvr_dump_stream_init(&s, &h);
    for (size_t i = 0; rc == 0 && i + 1 < sizeof text; i++) rc = kvr_dump_stream_feed(&s, text + i, 1);
    if (rc == 0) assert_true(kvr_dump_stream_over(&s) && blocks == 2);
    kvr_dump_stream_free(&s);
    return rc;
}

static int read_recovery(void)
{
    static const char text[] = "{\"TreeDump\":{\"epoch\":5,\"events\":[" ONE_EVENT "],\"last_event_id\":6,\"end_event_id\":8}}";
    struct kvr_recover_reader r;
    int rc = kvr_recover_reader_init(&r);
    for (size_t i = 0; rc == 0 && i + 1 < sizeof text; i++) rc = kvr_recover_reader_feed(&r, text + i, 1);
    if (rc == 0) rc = kvr_recover_reader_end(&r);
    if (rc == 0) assert_int_equal(r.answer.events.n, 1);
    kvr_recover_reader_free(&r);
    return rc;
}

static void answers_in_pieces(void **)
{
    fail_each(read_dump);
    fail_each(read_recovery);
}

/* ---- a served index -------------------------------------------------------------------------------------------------- */

static struct kvr_service_question question; /* its lists' room is kept */
static const uint64_t hashes[] = {1, UINT64_MAX, 3};

static int ask(bool packed)
{
    struct kvr_buf b = {0};
    struct kvr_json o;
    kvr_service_record_write(&b, packed, "m", (struct kvr_worker){1, 2}, hashes, hashes, 3);
    int rc = b.failed ? -KVR_ENOMEM : 0;
    if (rc == 0 && packed) rc = kvr_service_question_packed(&question, b.data, b.len);
    if (rc == 0 && !packed && (rc = kvr_json_parse(parser, b.data, b.len, &o, NULL)) == 0) rc = kvr_service_question_json(&question, o);
    if (rc == 0) assert_true(question.seqs.n == 3 && question.locals.h[1] == UINT64_MAX);
    kvr_buf_free(&b);
    return rc;
}

static int ask_in_json(void)
{
    return ask(false);
}

static int ask_packed(void)
{
    return ask(true);
}

static int answer_scores(void)
{
    struct kvr_reach in[] = {{{1, 0}, {3, 4, 4, 4}}, {{2, 1}, {1, 1, 1, 2}}}, *out = NULL;
    struct kvr_buf b = {0};
    struct kvr_json o;
    uint64_t instance;
    char why[128];
    kvr_service_scores_write(&b, in, 2, 77);
    long n = b.failed ? -KVR_ENOMEM : kvr_json_parse(parser, b.data, b.len, &o, NULL);
    if (n == 0) n = kvr_service_scores_read(o, 10, &out, &instance, why, sizeof why);
    free(out);
    kvr_buf_free(&b);
    if (n >= 0) assert_int_equal(n, 2);
    return n < 0 ? (int)n : 0;
}

static void questions_and_answers_of_an_index(void **)
{
    fail_each(ask_in_json);
    kvr_service_question_free(&question);
    fail_each(ask_packed);
    kvr_service_question_free(&question);
    fail_each(answer_scores);
}

/* ---- msgpack --------------------------------------------------------------------------------------------------------- */

static int send_a_booking(void)
{
    struct kvr_load_event ev = {.kind = KVR_LOAD_ADD,
                                .request = {.id = "i", .id_len = 1, .worker = {1, 0}, .seqs = hashes, .seqs_n = 3, .prefill_tokens = 4}};
    struct kvr_buf b = {0};
    struct kvr_sync_event out;
    kvr_sync_event_write(&b, 1, "model", "group", 16, &ev);
    kvr_sync_mark_write(&b, 1, 2);
    kvr_sync_session_write(&b, "session", 7, (struct kvr_worker){1, 0});
    int rc = b.failed ? -KVR_ENOMEM : 0;
    if (rc == 0) {
        assert_true(kvr_sync_run_is_whole(b.data, b.len));
        rc = kvr_sync_event_read(b.data, b.len, &out);
    }
    kvr_buf_free(&b);
    return rc;
}

static int count_event(void *, const struct kvr_plane_place *p)
{
    struct kvr_block *blocks = NULL;
    struct kvr_event out;
    size_t cap = 0;
    int rc = kvr_plane_event_read(p->data, p->len, &out, &blocks, &cap);
    free(blocks);
    return rc;
}

static int send_an_envelope(void)
{
    struct kvr_buf ev = {0}, env = {0}, scratch = {0};
    struct kvr_envelope e = {.publisher = 1, .topic = KVR_PLANE_EVENTS, .topic_len = 9}, got;
    kvr_plane_event_write(&ev, &store);
    e.payload = ev.data;
    e.payload_len = (uint32_t)ev.len;
    if (!ev.failed) kvr_envelope_write(&env, &e);
    int rc = ev.failed || env.failed ? -KVR_ENOMEM : kvr_envelope_read(env.data, env.len, &scratch, &got);
    if (rc == 0) rc = kvr_plane_events_each(got.payload, got.payload_len, count_event, NULL);
    kvr_buf_free(&ev);
    kvr_buf_free(&env);
    kvr_buf_free(&scratch);
    return rc;
}

static int read_numbers_as_payload(void)
{
    static const char text[] = "\x85\xacpublisher_id\x05\xa8sequence\x00\xacpublished_at\x01\xa5topic\xa1t\xa7payload\x93\x01\x7f\xcc\xff";
    struct kvr_buf scratch = {0};
    struct kvr_envelope e;
    int rc = kvr_envelope_read(text, sizeof text - 1, &scratch, &e);
    kvr_buf_free(&scratch);
    return rc;
}

static int take_cursor(void *, const struct kvr_snapshot_cursor *c)
{
    return c->next == 6 ? 0 : -KVR_EFORMAT;
}

static int take_a_snapshot(void)
{
    struct kvr_snapshot_cursor c = {.worker = {7, 2}, .next = 6};
    size_t blocks = 0;
    struct kvr_snapshot_reader r = {take_event, take_cursor, &blocks, NULL, 0};
    struct kvr_buf b = {0};
    kvr_snapshot_event_write(&b, &store);
    kvr_snapshot_cursor_write(&b, &c);
    int rc = b.failed ? -KVR_ENOMEM : kvr_snapshot_read(&r, b.data, b.len);
    if (rc == 0) assert_int_equal(blocks, 3);
    free(r.blocks);
    kvr_buf_free(&b);
    return rc;
}

static void add_blocks(void *ctx, const struct kvr_event *ev)
{
    *(size_t *)ctx += ev->blocks_n;
}

static int engine_events(void)
{
    static const uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    struct kvr_engine_words words = {.tokens = tokens, .tokens_n = 12, .block_size = 4, .salt = {"salt", 4}};
    struct kvr_buf ev = {0}, batch = {0};
    struct kvr_engine_batch in;
    struct kvr_engine_stream s;
    size_t blocks = 0;
    kvr_engine_encode(&ev, &store, &words);
    if (!ev.failed) kvr_engine_encode_batch(&batch, 1.5, &ev, 1, 2);
    kvr_engine_batch_init(&in);
    kvr_engine_stream_init(&s, store.worker, 4);
    long n = ev.failed || batch.failed ? -KVR_ENOMEM : kvr_engine_decode(&in, batch.data, batch.len);
    if (n == 0) n = kvr_engine_convert(&s, &in, 1, add_blocks, &blocks);
    if (n > 0) assert_int_equal(blocks, 3);
    kvr_engine_batch_free(&in);
    kvr_engine_stream_free(&s);
    kvr_buf_free(&ev);
    kvr_buf_free(&batch);
    return n < 0 ? (int)n : 0;
}

static void packed_messages(void **)
{
    fail_each(send_a_booking);
    fail_each(send_an_envelope);
    fail_each(read_numbers_as_payload);
    fail_each(take_a_snapshot);
    fail_each(engine_events);
}

#define WITH_PARSER(f) cmocka_unit_test_setup_teardown(f, make_parser, drop_parser)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_parser_of_a_process), /* the first test */
        WITH_PARSER(a_parser_is_used_again_after_memory_was_short),
        WITH_PARSER(a_body_is_not_called_wrong_when_memory_is_short),
        WITH_PARSER(lines_of_text),
        WITH_PARSER(answers_in_pieces),
        WITH_PARSER(questions_and_answers_of_an_index),
        WITH_PARSER(packed_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
