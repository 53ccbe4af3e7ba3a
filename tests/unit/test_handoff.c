/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of both legs of each protocol, to the byte, and what is read in P's answer. */
#include "test.h"

#include <stdio.h>

#include "wire/handoff.h"
#include "wire/json.h"

static struct kvr_json_span span(const char *text)
{
    return (struct kvr_json_span){text, text + strlen(text)};
}

static const struct kvr_handoff_leg base = {
    .id = "req1", .host = "10.0.0.1", .port = 8998, .engine_id = "prefill-engine-1", .tp = 4, .pp = 2, .transfer_id = "xfer-req1"};

static struct kvr_handoff_leg leg_of(enum kvr_kv_protocol p)
{
    struct kvr_handoff_leg leg = base;
    leg.protocol = p;
    return leg;
}

/* The body P gets, D gets, or a D that only takes over; in a place that the next call uses again. */
static const char *body_for(char who, const struct kvr_handoff_leg *leg, const char *body, const struct kvr_handoff *h)
{
    static struct kvr_buf out;
    out.len = 0;
    bool done = who == 'P'   ? kvr_handoff_prefill_body(leg, span(body), &out)
                : who == 'D' ? kvr_handoff_decode_body(leg, span(body), h, &out)
                             : kvr_handoff_release_body(leg, span(body), h, &out);
    assert_true(done && !out.failed);
    kvr_buf_add(&out, "", 1);
    return out.data;
}

#define CLIENT        "{\"model\":\"m\", \"prompt\":\"x\""
#define PREFILL_RULES ",\"stream\":false,\"max_tokens\":1"
#define UNKNOWN       "\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null"

/* ---- protocols ------------------------------------------------------------------------------------------------------ */

static void names_of_protocols(void **s)
{
    struct kvr_buf all = {0};
    enum kvr_kv_protocol back = KVR_KV_PROTOCOLS;
    (void)s;
    for (unsigned p = 0; p < KVR_KV_PROTOCOLS; p++) {
        kvr_buf_printf(&all, "%s%s", p ? ", " : "", kvr_kv_protocol_name(p));
        assert_true(kvr_kv_protocol_parse(kvr_kv_protocol_name(p), &back) && back == p);
        assert_int_equal(kvr_kv_protocol_at_once(p), p == KVR_KV_VLLM_NIXL_PUSH || p == KVR_KV_VLLM_MOONCAKE || p == KVR_KV_SGLANG);
    }
    assert_string_equal(all.data, KVR_KV_PROTOCOL_NAMES);
    assert_false(kvr_kv_protocol_parse("vllm", &back) || kvr_kv_protocol_parse("", &back));
    assert_int_equal(back, KVR_KV_NONE);
    kvr_buf_free(&all);
}

/* ---- bodies --------------------------------------------------------------------------------------------------------- */

static void prefill_computes_one_token_and_does_not_stream(void **)
{
    struct kvr_handoff_leg leg = leg_of(KVR_KV_NONE);
    assert_string_equal(body_for('P', &leg,
                                 "{\"messages\":[ ],\"stream\" : true,\"stream_options\":{\"include_usage\":true},\"max_tokens\":300,"
                                 "\"min_tokens\":5,\"min_completion_tokens\":5,\"seed\":1e2,\"n\":1}",
                                 NULL),
                        "{\"messages\":[ ],\"stream\" : false,\"max_tokens\":1,\"seed\":1e2,\"n\":1}");
    assert_string_equal(body_for('P', &leg, "{\"max_completion_tokens\":7}", NULL),
                        "{\"max_completion_tokens\":1,\"stream\":false,\"max_tokens\":1}");
    assert_string_equal(body_for('P', &leg, "{}", NULL), "{\"stream\":false,\"max_tokens\":1}");
}

static void decode_gets_the_clients_body(void **)
{
    static const char body[] = " {\"messages\":[ ], \"stream\" : true,\"stream_options\":{},\"max_tokens\":3e2,\"min_tokens\":5}\n";
    static const enum kvr_kv_protocol without[] = {KVR_KV_NONE, KVR_KV_VLLM_P2P};
    for (size_t i = 0; i < KVR_ARRAY_LEN(without); i++) {
        struct kvr_handoff_leg leg = leg_of(without[i]);
        assert_string_equal(body_for('D', &leg, body, NULL), body);
        assert_string_equal(body_for('R', &leg, body, NULL), " {\"messages\":[ ], \"stream\" : false,\"max_tokens\":1}\n");
    }
}

static void nixl(void **s)
{
    static const char object[] =
        "{\"do_remote_prefill\":true, \"remote_block_ids\":[[11,12,13]],\"remote_engine_id\":\"9f\",\"remote_host\":\"h\","
        "\"remote_port\":5600,\"later\":[1234567890123456789,1e2]}";
    struct kvr_handoff_leg leg = leg_of(KVR_KV_VLLM_NIXL);
    struct kvr_handoff h = {.object = span(object)};
    char want[512];
    (void)s;
    assert_string_equal(body_for('P', &leg, CLIENT "}", NULL), CLIENT PREFILL_RULES
                        ",\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false," UNKNOWN "}}");
    snprintf(want, sizeof want, CLIENT ",\"kv_transfer_params\":%s}", object);
    assert_string_equal(body_for('D', &leg, CLIENT "}", &h), want);
    /* the client's own goes, where it stood, however it is written */
    snprintf(want, sizeof want, "{\"kv\\u005ftransfer_params\":%s,\"n\":1}", object);
    assert_string_equal(body_for('D', &leg, "{\"kv\\u005ftransfer_params\":{\"x\":1},\"n\":1,\"kv_transfer_params\":null}", &h), want);
    snprintf(want, sizeof want, "{\"stream\":false,\"max_tokens\":1,\"kv_transfer_params\":%s}", object);
    assert_string_equal(body_for('R', &leg, "{\"stream\":true,\"min_tokens\":9}", &h), want);
}

static void nixl_push(void **)
{
    struct kvr_handoff_leg leg = leg_of(KVR_KV_VLLM_NIXL_PUSH);
    leg.port = 5600;
    assert_string_equal(body_for('P', &leg, CLIENT "}", NULL),
                        CLIENT PREFILL_RULES ",\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false," UNKNOWN
                                             ",\"transfer_id\":\"xfer-req1\"}}");
    assert_string_equal(body_for('D', &leg, CLIENT "}", NULL),
                        CLIENT ",\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
                               "\"remote_engine_id\":\"prefill-engine-1\",\"remote_host\":\"10.0.0.1\",\"remote_port\":5600,"
                               "\"remote_request_id\":\"req1\",\"tp_size\":4,\"pp_size\":2,\"transfer_id\":\"xfer-req1\"}}");
    /* a client's id may hold anything */
    leg.transfer_id = NULL;
    leg.id = "a\"\\\n";
    assert_non_null(strstr(body_for('P', &leg, CLIENT "}", NULL), ",\"transfer_id\":\"xfer-a\\\"\\\\\\n\"}}"));
}

static void mooncake(void **)
{
    struct kvr_handoff_leg leg = leg_of(KVR_KV_VLLM_MOONCAKE);
    assert_string_equal(body_for('P', &leg, CLIENT "}", NULL), CLIENT PREFILL_RULES
                        ",\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"transfer_id\":\"xfer-req1\"},"
                        "\"ignore_eos\":true}");
    assert_string_equal(body_for('D', &leg, CLIENT "}", NULL),
                        CLIENT ",\"kv_transfer_params\":{\"do_remote_decode\":false,\"do_remote_prefill\":true,"
                               "\"remote_bootstrap_addr\":\"http://10.0.0.1:8998\",\"remote_engine_id\":\"prefill-engine-1\","
                               "\"transfer_id\":\"xfer-req1\"}}");
    leg.host = "fd00::1";
    assert_non_null(strstr(body_for('D', &leg, CLIENT "}", NULL), "\"http://[fd00::1]:8998\""));
}

/* What a bootstrap server answers to GET /query. */
static void names_of_engines(void **)
{
    static const struct {
        const char *answer;
        uint32_t rank;
        const char *name; /* NULL: it is not told */
    } rows[] = {
        {"{\"0\":{\"engine_id\":\"a\"},\"1\":{\"engine_id\":\"b_dp1\",\"worker_addr\":{}}}", 1, "b_dp1"},
        {"{\"0\":{\"engine_id\":\"a\"}}", 1, NULL},
        {"{\"0\":{\"engine_id\":\"\"}}", 0, NULL},
        {"{\"0\":{\"engine_id\":\"a-name-that-is-too-long\"}}", 0, NULL},
        {"{\"0\":{\"engine_id\":\"a\\u0000b\"}}", 0, NULL},
        {"{\"0\":{\"engine_id\":1}}", 0, NULL},
        {"{\"9f\":{\"0\":{\"0\":\"10.0.0.1:1\"}}}", 0, "9f"}, /* of an older build */
        {"{\"9f\":{},\"a0\":{}}", 0, NULL},
        {"{\"9f\":{}}", 1, NULL},
        {"{}", 0, NULL},
        {"[]", 0, NULL},
    };
    struct kvr_json_parser *p = kvr_json_parser_new();
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        char name[16] = "";
        struct kvr_json root;
        assert_int_equal(kvr_json_parse(p, rows[i].answer, strlen(rows[i].answer), &root, NULL), 0);
        assert_int_equal(kvr_handoff_engine_of(root, rows[i].rank, name, sizeof name), rows[i].name != NULL);
        if (rows[i].name) assert_string_equal(name, rows[i].name);
    }
    kvr_json_parser_free(p);
}

static void sglang(void **)
{
    static const uint64_t rooms[] = {4611686018427387907, 5, 9223372036854775807};
    struct kvr_handoff_leg leg = leg_of(KVR_KV_SGLANG);
    leg.id = NULL;
    leg.rooms = rooms;
    leg.rooms_n = 1;
#define ONE_ROOM ",\"bootstrap_host\":\"10.0.0.1\",\"bootstrap_port\":8998,\"bootstrap_room\":4611686018427387907"
    assert_string_equal(body_for('P', &leg, CLIENT ",\"stream\":true,\"max_tokens\":9}", NULL),
                        CLIENT ",\"stream\":false,\"max_tokens\":9" ONE_ROOM "}");
    assert_string_equal(body_for('D', &leg, CLIENT ",\"stream\":true,\"max_tokens\":9}", NULL),
                        CLIENT ",\"stream\":true,\"max_tokens\":9" ONE_ROOM "}");
    leg.id = "req1.1";
    leg.has_rank = true;
    leg.prefill_rank = 3;
    leg.decode_rank = 1;
    assert_string_equal(
        body_for('P', &leg, "{\"rid\":\"mine\",\"routed_dp_rank\":7,\"data_parallel_rank\":7,\"disagg_prefill_dp_rank\":7}", NULL),
        "{\"rid\":\"req1.1\",\"routed_dp_rank\":3,\"data_parallel_rank\":3,\"stream\":false" ONE_ROOM "}");
    assert_string_equal(body_for('D', &leg, "{}", NULL),
                        "{\"bootstrap_host\":\"10.0.0.1\",\"bootstrap_port\":8998,\"bootstrap_room\":4611686018427387907,"
                        "\"disagg_prefill_dp_rank\":3,\"routed_dp_rank\":1,\"rid\":\"req1.1\"}");
    leg = leg_of(KVR_KV_SGLANG);
    leg.id = NULL;
    leg.rooms = rooms;
    leg.rooms_n = 3;
    assert_string_equal(body_for('D', &leg, "{\"bootstrap_room\":1,\"n\":3}", NULL),
                        "{\"bootstrap_room\":[4611686018427387907,5,9223372036854775807],\"n\":3,"
                        "\"bootstrap_host\":[\"10.0.0.1\",\"10.0.0.1\",\"10.0.0.1\"],\"bootstrap_port\":[8998,8998,8998]}");
    leg.rooms_n = 1;
    leg.room_list = true;
    assert_non_null(strstr(body_for('D', &leg, "{}", NULL), "\"bootstrap_room\":[4611686018427387907]"));
}

static void trtllm(void **)
{
    static const char object[] = "{\"request_type\":\"context_only\",\"first_gen_tokens\":[123],\"ctx_request_id\":77,"
                                 "\"encoded_opaque_state\":\"a\\/b\",\"disagg_request_id\":1729384756102938625}";
    struct kvr_handoff_leg leg = leg_of(KVR_KV_TRTLLM);
    struct kvr_handoff h = {.object = span(object), .prompt_token_ids = span("[5, 6]"), .usage = span("{\"prompt_tokens\":2}")};
#define GENERATION_ONLY                                                                                                                    \
    "\"disaggregated_params\":{\"request_type\":\"generation_only\",\"first_gen_tokens\":[123],\"ctx_request_id\":77,"                     \
    "\"encoded_opaque_state\":\"a\\/b\",\"disagg_request_id\":1729384756102938625,\"schedule_style\":0"
    leg.disagg_request_id = 1729384756102938625;
    assert_string_equal(body_for('P', &leg, CLIENT "}", NULL),
                        CLIENT PREFILL_RULES ",\"disaggregated_params\":{\"request_type\":\"context_only\","
                                             "\"disagg_request_id\":1729384756102938625,\"schedule_style\":0}}");
    assert_string_equal(body_for('D', &leg, CLIENT ",\"stream\":true}", &h),
                        "{\"model\":\"m\", \"prompt\":[5, 6],\"stream\":true," GENERATION_ONLY ",\"ctx_usage\":{\"prompt_tokens\":2}}}");
    leg.chat = true;
    assert_string_equal(body_for('D', &leg, "{\"messages\":[]}", &h),
                        "{\"messages\":[]," GENERATION_ONLY ",\"ctx_usage\":{\"prompt_tokens\":2}},\"prompt_token_ids\":[5, 6]}");
    h.prompt_token_ids = h.usage = (struct kvr_json_span){NULL, NULL};
    assert_string_equal(body_for('D', &leg, "{\"messages\":[]}", &h), "{\"messages\":[]," GENERATION_ONLY "}}");
}

static void what_a_client_may_not_send_is_removed(void **)
{
    static const char *const rows[][2] = {
        {"{\"kv_transfer_params\":{\"remote_block_ids\":[1]},\"a\":1}", "{\"a\":1}"},
        {"{\"a\":1,\"disaggregated_params\":0,\"bootstrap_host\":1,\"bootstrap_port\":2,\"bootstrap_room\":3,\"bootstrap_pair_key\":4,"
         "\"disagg_prefill_dp_rank\":5,\"routed_dp_rank\":6}",
         "{\"a\":1}"},
        {"{\"\\u006bv_transfer_params\":{}, \"kv_transfer_params\":{} }", "{ }"},
        /* vLLM adds its arguments to those of the transfer */
        {"{\"vllm_xargs\":{\"a\":1, \"kv_transfer_params\":\"x\"},\"b\":2}", "{\"vllm_xargs\":{\"a\":1},\"b\":2}"},
        {"{\"vllm_xargs\":{\"kv_transfer_params\":1},\"vllm_xargs\":{\"kv_transfer\\u005fparams\":1}}", "{\"vllm_xargs\":{}}"},
        {"{\"a\":{\"kv_transfer_params\":1},\"b\":\"bootstrap_room\",\"vllm_xargs\":{\"a\":1}}", NULL},
        {"{}", NULL},
    };
    struct kvr_handoff_leg leg = leg_of(KVR_KV_NONE);
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        struct kvr_buf out = {0};
        bool changed = !rows[i][1];
        assert_true(kvr_handoff_strip(span(rows[i][0]), &out, &changed));
        assert_int_equal(changed, rows[i][1] != NULL);
        assert_int_equal(out.len, rows[i][1] ? strlen(rows[i][1]) : 0);
        if (rows[i][1]) assert_memory_equal(out.data, rows[i][1], out.len);
        assert_string_equal(body_for('D', &leg, rows[i][0], NULL), rows[i][1] ? rows[i][1] : rows[i][0]);
        kvr_buf_free(&out);
    }
}

static void bodies_that_are_no_objects_are_refused(void **)
{
    static const char *const bad[] = {"", "  ", "[]", "\"a\"", "null"};
    static const uint64_t room = 1;
    struct kvr_handoff h = {.object = span("{}")};
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++)
        for (unsigned p = 0; p < KVR_KV_PROTOCOLS; p++) {
            struct kvr_handoff_leg leg = leg_of(p);
            struct kvr_buf out = {0};
            bool changed;
            leg.rooms = &room;
            leg.rooms_n = 1;
            assert_false(kvr_handoff_prefill_body(&leg, span(bad[i]), &out) || kvr_handoff_decode_body(&leg, span(bad[i]), &h, &out));
            assert_false(kvr_handoff_strip(span(bad[i]), &out, &changed));
            assert_int_equal(out.len, 0);
            kvr_buf_free(&out);
        }
}

/* ---- answers -------------------------------------------------------------------------------------------------------- */

static void answers_of_nixl(void **s)
{
#define ANSWER(object)                                                                                                                     \
    "{\"choices\":[],\"kv_transfer_params\":" object ",\"usage\":{\"prompt_tokens\":48,\"prompt_tokens_details\":{\"cached_tokens\":32}}}"
#define WHERE "\"do_remote_prefill\":true,\"remote_engine_id\":\"e\",\"remote_host\":\"h\",\"remote_port\":1"
    static const struct {
        const char *answer;
        enum kvr_handoff_read read;
    } rows[] = {
        {ANSWER("{" WHERE ",\"remote_block_ids\":[[11,12]],\"remote_request_id\":\"r\",\"later\":1e2}"), KVR_HANDOFF_OK},
        {ANSWER("{" WHERE ",\"remote_block_ids\":[11,12]}"), KVR_HANDOFF_OK}, /* of an older build */
        {" \n" ANSWER("{" WHERE ",\"remote_block_ids\":[11,12]}") "\n", KVR_HANDOFF_OK},
        {ANSWER("null"), KVR_HANDOFF_NONE},
        {"{\"choices\":[]}", KVR_HANDOFF_NONE},
        {ANSWER("{}"), KVR_HANDOFF_PARTIAL},
        {ANSWER("{" WHERE "}"), KVR_HANDOFF_PARTIAL},
        {ANSWER("{" WHERE ",\"remote_block_ids\":null}"), KVR_HANDOFF_PARTIAL},
        {ANSWER("{" WHERE ",\"remote_block_ids\":[]}"), KVR_HANDOFF_PARTIAL},
        {ANSWER("{" WHERE ",\"remote_block_ids\":[[],[ ]]}"), KVR_HANDOFF_PARTIAL},
        {ANSWER("{" WHERE ",\"remote_block_ids\":{\"0\":1}}"), KVR_HANDOFF_PARTIAL},
        {ANSWER("{" WHERE ",\"remote_block_ids\":[1],\"remote_request_id\":null}"), KVR_HANDOFF_PARTIAL},
        {ANSWER("{" WHERE ",\"remote_block_ids\":[1],\"remote_engine_id\":null}"), KVR_HANDOFF_PARTIAL},
        {ANSWER("{" WHERE ",\"remote_block_ids\":[1],\"remote_host\":null}"), KVR_HANDOFF_PARTIAL},
        {ANSWER("{" WHERE ",\"remote_block_ids\":[1],\"remote_port\":null}"), KVR_HANDOFF_PARTIAL},
        {ANSWER("{" WHERE ",\"remote_block_ids\":[1],\"do_remote_prefill\":false}"), KVR_HANDOFF_PARTIAL},
        {ANSWER("\"x\""), KVR_HANDOFF_UNREADABLE},
        {ANSWER("[1]"), KVR_HANDOFF_UNREADABLE},
        {ANSWER("{" WHERE ",\"remote_block_ids\":[1],}"), KVR_HANDOFF_UNREADABLE},
        {"", KVR_HANDOFF_UNREADABLE},
        {"  ", KVR_HANDOFF_UNREADABLE},
        {"[]", KVR_HANDOFF_UNREADABLE},
        {"{\"kv_transfer_params\":{", KVR_HANDOFF_UNREADABLE},
    };
    struct kvr_handoff h;
    (void)s;
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        if (kvr_handoff_read(KVR_KV_VLLM_NIXL, span(rows[i].answer), &h) != rows[i].read) fail_msg("%s", rows[i].answer);
    assert_int_equal(kvr_handoff_read(KVR_KV_VLLM_NIXL, span(rows[0].answer), &h), KVR_HANDOFF_OK);
    assert_true(kvr_json_span_is(h.object, "{" WHERE ",\"remote_block_ids\":[[11,12]],\"remote_request_id\":\"r\",\"later\":1e2}"));
    assert_true(h.has_cached && h.cached_tokens == 32 && h.prompt_tokens == 48 && !h.ended && !h.prompt_token_ids.at);
    /* of two the last, as D's engine would read it */
    assert_int_equal(kvr_handoff_read(KVR_KV_VLLM_NIXL,
                                      span("{\"kv_transfer_params\":{},\"kv\\u005ftransfer_params\":{" WHERE ",\"remote_block_ids\":[1]}}"),
                                      &h),
                     KVR_HANDOFF_OK);
    assert_true(kvr_json_span_is(h.object, "{" WHERE ",\"remote_block_ids\":[1]}"));
    assert_true(!h.has_cached && !h.usage.at);
}

static void answers_without_an_object(void **)
{
    static const enum kvr_kv_protocol without[] = {KVR_KV_VLLM_NIXL_PUSH, KVR_KV_VLLM_MOONCAKE, KVR_KV_VLLM_P2P, KVR_KV_SGLANG,
                                                   KVR_KV_NONE};
    struct kvr_handoff h;
    for (size_t i = 0; i < KVR_ARRAY_LEN(without); i++) {
        assert_int_equal(kvr_handoff_read(without[i], span("{\"usage\":{\"prompt_tokens\":9}}"), &h), KVR_HANDOFF_OK);
        assert_true(!h.object.at && h.prompt_tokens == 9 && !h.has_cached && kvr_json_span_is(h.usage, "{\"prompt_tokens\":9}"));
        assert_int_equal(kvr_handoff_read(without[i], span("<html>"), &h), KVR_HANDOFF_UNREADABLE);
    }
}

#define PARAMS "{\"ctx_request_id\":77,\"disagg_request_id\":1729384756102938625}"

static void answers_of_trtllm(void **s)
{
#define CHOICE(more) "{\"prompt_token_ids\":[1,2],\"choices\":[{\"text\":\"a\"" more "}]}"
    static const struct {
        const char *answer;
        enum kvr_handoff_read read;
        bool ended;
    } rows[] = {
        {CHOICE(",\"finish_reason\":\"length\",\"disaggregated_params\":" PARAMS), KVR_HANDOFF_OK, false},
        {CHOICE(",\"finish_reason\":\"not_finished\",\"disaggregated_params\":" PARAMS), KVR_HANDOFF_OK, false},
        {CHOICE(",\"finish_reason\":null,\"disaggregated_params\":" PARAMS), KVR_HANDOFF_OK, false},
        {CHOICE(",\"finish_reason\":\"stop\",\"disaggregated_params\":" PARAMS), KVR_HANDOFF_OK, true},
        {CHOICE(",\"finish_reason\":\"stop\""), KVR_HANDOFF_OK, true},
        {CHOICE(",\"finish_reason\":\"length\""), KVR_HANDOFF_NONE, false},
        {CHOICE(",\"finish_reason\":\"length\",\"disaggregated_params\":null"), KVR_HANDOFF_NONE, false},
        {CHOICE(",\"finish_reason\":\"length\",\"disaggregated_params\":{\"ctx_request_id\":7}"), KVR_HANDOFF_PARTIAL, false},
        {CHOICE(",\"finish_reason\":\"length\",\"disaggregated_params\":{\"ctx_request_id\":null,\"disagg_request_id\":7}"),
         KVR_HANDOFF_PARTIAL, false},
        {CHOICE(",\"disaggregated_params\":7"), KVR_HANDOFF_UNREADABLE, false},
        {"{\"choices\":[{},{}]}", KVR_HANDOFF_UNREADABLE, false},
        {"{\"choices\":[]}", KVR_HANDOFF_UNREADABLE, false},
        {"{\"choices\":[7]}", KVR_HANDOFF_UNREADABLE, false},
        {"{}", KVR_HANDOFF_NONE, false},
    };
    struct kvr_handoff h;
    (void)s;
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        if (kvr_handoff_read(KVR_KV_TRTLLM, span(rows[i].answer), &h) != rows[i].read || h.ended != rows[i].ended)
            fail_msg("%s", rows[i].answer);
    assert_int_equal(kvr_handoff_read(KVR_KV_TRTLLM, span(rows[0].answer), &h), KVR_HANDOFF_OK);
    assert_true(kvr_json_span_is(h.object, PARAMS) && kvr_json_span_is(h.prompt_token_ids, "[1,2]"));
}

static void an_answer_that_ended_goes_to_the_client(void **)
{
    static const char completion[] =
        "{\"id\":\"i\",\n \"object\":\"text_completion\",\"choices\":[ {\"index\":0,\"text\":\"a\\n\",\"finish_reason\":\"stop\","
        "\"disaggregated_params\":" PARAMS "} ],\"prompt_token_ids\":[1],\"usage\":{\"prompt_tokens\":1}}";
    static const char chat[] =
        "{\"id\":\"i\",\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a\"},"
        "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1}}";
    struct kvr_buf out = {0};
    assert_true(kvr_handoff_ended_answer(span(completion), &out));
    kvr_buf_add(&out, "", 1);
    assert_string_equal(
        out.data,
        "{\"id\":\"i\",\n \"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\"a\\n\",\"finish_reason\":\"stop\"}],"
        "\"prompt_token_ids\":[1],\"usage\":{\"prompt_tokens\":1}}");
    out.len = 0;
    assert_true(kvr_handoff_ended_stream(span(completion), false, true, &out));
    kvr_buf_add(&out, "", 1);
    assert_string_equal(
        out.data,
        "data: {\"id\":\"i\",  \"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\"a\\n\",\"finish_reason\":\"stop\"}]}\n\n"
        "data: {\"id\":\"i\",  \"object\":\"text_completion\",\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n");
    out.len = 0;
    assert_true(kvr_handoff_ended_stream(span(chat), true, false, &out));
    kvr_buf_add(&out, "", 1);
    assert_string_equal(out.data,
                        "data: {\"id\":\"i\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"finish_reason\":\"stop\","
                        "\"delta\":{\"role\":\"assistant\",\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n");
    out.len = 0;
    assert_false(kvr_handoff_ended_answer(span("{\"choices\":[]}"), &out) || kvr_handoff_ended_stream(span("{}"), true, true, &out));
    assert_int_equal(out.len, 0);
    kvr_buf_free(&out);
}

/* ---- members of requests -------------------------------------------------------------------------------------------- */

static void obstacles(void **s)
{
    static const struct {
        const char *body, *others, *sglang;
    } rows[] = {
        {"{\"prompt\":\"a\"}", NULL, NULL},
        {"{\"prompt\":\"a\",\"n\":2}", "n", "n"},
        {"{\"messages\":[],\"n\":2}", "n", NULL},
        {"{\"messages\":[],\"n\":\"2\"}", "n", NULL},
        {"{\"messages\":[],\"n\":1,\"n\":2e0}", "n", NULL},
        {"{\"messages\":[],\"n\":1025}", "n", "n"},
        {"{\"messages\":[],\"n\":1e30}", "n", "n"},
        {"{\"messages\":[],\"n\":1}", NULL, NULL},
        {"{\"messages\":[],\"n\":null}", NULL, NULL},
        {"{\"messages\":[],\"\\u006e\":2}", "n", NULL},
        {"{\"prompt\":\"a\",\"best_of\":2}", "best_of", NULL},
        {"{\"prompt\":\"a\",\"use_beam_search\":true}", "use_beam_search", "use_beam_search"},
        {"{\"prompt\":\"a\",\"use_beam_search\":false}", NULL, NULL},
        {"{\"prompt\":[\"a\"]}", NULL, NULL},
        {"{\"prompt\":[1,2]}", NULL, NULL},
        {"{\"prompt\":[\"a\",\"b\"]}", "prompt", NULL},
        {"{\"prompt\":[[1],[2,3]]}", "prompt", NULL},
        {"{\"prompt\":\"a\",\"prompt_logprobs\":0}", "prompt_logprobs", "prompt_logprobs"},
        {"{\"prompt\":\"a\",\"echo\":true}", NULL, NULL},
        {"{\"prompt\":\"a\",\"echo\":true,\"logprobs\":0}", "echo", "echo"},
        {"{\"prompt\":\"a\",\"echo\":\"yes\",\"logprobs\":1}", "echo", "echo"},
        {"{\"prompt\":\"a\",\"logprobs\":1}", NULL, NULL},
        {"{\"messages\":[],\"echo\":1}", "echo", "echo"},
        {"{\"prompt\":\"a\",\"echo\":true,\"logprobs\":1,\"prompt_logprobs\":1}", "prompt_logprobs", "prompt_logprobs"},
        {"[]", NULL, NULL},
        {"", NULL, NULL},
    };
    (void)s;
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        struct kvr_handoff_members m;
        kvr_handoff_members_read(span(rows[i].body), &m);
        for (unsigned p = 0; p < KVR_KV_PROTOCOLS; p++) {
            const char *want = p == KVR_KV_SGLANG ? rows[i].sglang : rows[i].others, *got = kvr_handoff_obstacle(&m, p);
            if (!want != !got || (want && strcmp(want, got) != 0)) fail_msg("%s: %s for %s", rows[i].body, got, kvr_kv_protocol_name(p));
        }
    }
}

/* In memory that ends where the body does. */
static struct kvr_handoff_members members_of(const char *body)
{
    struct kvr_handoff_members m;
    size_t len = strlen(body);
    char *copy = memcpy(malloc(len), body, len);
    kvr_handoff_members_read((struct kvr_json_span){copy, copy + len}, &m);
    free(copy);
    return m;
}

static void members_of_requests(void **)
{
    assert_true(members_of("{\"n\":\" 1_0.0 \"}").n == 10 && members_of("{\"n\":\"-3\"}").n == 0);
    static const char *const several[] = {
        "2.0000000000000000000000000000000000", "\"\\u0032\"", "\"2\\u00a0\"", "\"0__2\"", "\"x\"", "\"3"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(several); i++) { /* a real vLLM takes the first four for 2 */
        char body[80];
        snprintf(body, sizeof body, "{\"n\":%s}", several[i]);
        struct kvr_handoff_members m = members_of(body);
        assert_string_equal(kvr_handoff_obstacle(&m, KVR_KV_VLLM_NIXL), "n");
    }
    assert_true(members_of("{\"use_beam_search\":\"\\u0074rue\"}").beam_search && members_of("{\"use_beam_search\":\"On\"}").beam_search);
    assert_false(members_of("{\"use_beam_search\":0.0}").beam_search || members_of("{\"use_beam_search\":\"no\"}").beam_search);
    assert_true(members_of("{\"n\":\"").n > 1 && members_of("{\"n\":\"3").n > 1);
    assert_true(members_of("{\"max_tokens\":1}").one_token && members_of("{\"max_tokens\":0}").one_token);
    assert_true(members_of("{\"max_completion_tokens\":\"1\"}").one_token &&
                members_of("{\"max_tokens\":1,\"max_completion_tokens\":1}").one_token);
    assert_false(members_of("{}").one_token || members_of("{\"max_tokens\":2}").one_token || members_of("{\"max_tokens\":null}").one_token);
    assert_false(members_of("{\"max_tokens\":1,\"max_completion_tokens\":9}").one_token || members_of("{\"max_tokens\":\"x\"}").one_token);
    assert_true(members_of("{\"tool_choice\":\"required\"}").forced_tools &&
                members_of("{\"tool_choice\":{\"type\":\"any\"}}").forced_tools);
    assert_true(members_of("{\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}}").forced_tools);
    assert_false(members_of("{\"tool_choice\":\"auto\"}").forced_tools || members_of("{\"tool_choice\":{\"type\":\"none\"}}").forced_tools);
    assert_false(members_of("{\"tool_choice\":null}").forced_tools || members_of("{}").forced_tools);
    assert_true(members_of("{\"response_format\":{\"type\":\"json_object\"}}").grammar && members_of("{\"guided_regex\":\"a\"}").grammar);
    assert_true(members_of("{\"structured_outputs\":{}}").grammar && members_of("{\"structural_tag\":\"a\"}").grammar);
    assert_false(members_of("{\"response_format\":{\"type\":\"text\"}}").grammar || members_of("{\"regex\":null}").grammar);
    assert_true(members_of("{\"stream\":true,\"stream_options\":{\"include_usage\":true}}").stream_usage);
    assert_false(members_of("{\"stream\":true,\"stream_options\":{}}").stream_usage || members_of("{\"stream\":false}").stream);
    assert_true(members_of("{\"prompt\":[\"a\"]}").room_list && members_of("{\"prompt\":[\"a\"]}").rooms == 1);
    assert_true(members_of("{\"messages\":[],\"n\":3}").room_list && members_of("{\"messages\":[],\"n\":3}").rooms == 3);
    assert_true(!members_of("{\"prompt\":[1,2,3]}").room_list && members_of("{\"prompt\":[1,2,3]}").rooms == 1);
    assert_true(members_of("{\"prompt\":[[1],[2],[3]]}").rooms == 3 && members_of("{\"prompt\":[]}").prompts == 1);
}

/* ---- ids ------------------------------------------------------------------------------------------------------------ */

static void rooms_lead_to_their_rank(void **)
{
    static const uint32_t sizes[] = {0, 1, 2, 3, 8, 64, 4294967295};
    struct kvr_rng rng = {env_u64("KVR_SEED", 1)};
    for (size_t i = 0; i < KVR_ARRAY_LEN(sizes); i++)
        for (int k = 0; k < 1000; k++) {
            uint32_t ranks = sizes[i] ? sizes[i] : 1, rank = (uint32_t)(kvr_rng_next(&rng) % ranks);
            uint64_t room = kvr_handoff_room(k ? kvr_rng_next(&rng) : UINT64_MAX, rank, sizes[i]);
            assert_true(room <= INT64_MAX && room % ranks == rank);
        }
    assert_true(kvr_handoff_room(0, 0, 1) == 0 && kvr_handoff_room(INT64_MAX, 0, 1) == INT64_MAX);
    assert_true(kvr_handoff_room(UINT64_C(1) << 63, 0, 1) == 0);
    assert_true(kvr_handoff_room(UINT64_C(1) << 61, 3, 4) == 3); /* the first of them again: they are 2^61 */
}

static void ids_of_trtllm(void **)
{
    uint64_t now = 1763000000000, turn = UINT64_C(1) << 39;
    assert_true(kvr_disagg_request_id(1 << 20, 1, 2, 3) == ((INT64_C(1) << 44) | 1 << 16 | 2 << 10 | 3));
    assert_true(kvr_disagg_request_id(1 << 20, 0x1ff, 0x7f, 0x7ff) == ((INT64_C(1) << 44) | 0xffffff));
    assert_true(kvr_disagg_request_id(now, 0, 0, 0) >= INT64_C(1) << 40 &&
                kvr_disagg_request_id(now + 1, 0, 0, 0) > kvr_disagg_request_id(now, 255, 63, 1023));
    for (uint64_t ms = turn - 3; ms < turn + 3; ms++) {
        assert_true(kvr_disagg_request_id(ms, 0, 0, 0) >= INT64_C(1) << 40);
        assert_true(kvr_disagg_request_id(ms, 0, 0, 0) != kvr_disagg_request_id(ms + 1, 0, 0, 0));
    }
}

static void ids_of_p2p(void **)
{
    static const uint64_t random[2] = {1, UINT64_MAX};
    struct kvr_buf out = {0};
    kvr_handoff_p2p_id("10.0.0.1:21001", "10.0.0.2:22001", random, &out);
    kvr_buf_add(&out, "", 1);
    assert_string_equal(out.data, "___prefill_addr_10.0.0.1:21001___decode_addr_10.0.0.2:22001_0000000000000001ffffffffffffffff");
    kvr_buf_free(&out);
}

/* 12,500 block ids of a long prompt go over as they are. */
static void a_large_object_passes(void **s)
{
    struct kvr_buf answer = {0}, out = {0};
    struct kvr_handoff_leg leg = leg_of(KVR_KV_VLLM_NIXL);
    struct kvr_handoff h;
    (void)s;
    kvr_buf_str(&answer, "{\"kv_transfer_params\":{" WHERE ",\"remote_block_ids\":[[");
    for (int i = 0; i < 12500; i++) kvr_buf_printf(&answer, "%s%d", i ? "," : "", i * 7);
    kvr_buf_str(&answer, "]]}}");
    assert_int_equal(kvr_handoff_read(KVR_KV_VLLM_NIXL, (struct kvr_json_span){answer.data, answer.data + answer.len}, &h), KVR_HANDOFF_OK);
    assert_true(kvr_handoff_decode_body(&leg, span("{}"), &h, &out));
    assert_int_equal(out.len, answer.len);
    assert_memory_equal(out.data, answer.data, answer.len);
    kvr_buf_free(&answer);
    kvr_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_protocols),
        cmocka_unit_test(prefill_computes_one_token_and_does_not_stream),
        cmocka_unit_test(decode_gets_the_clients_body),
        cmocka_unit_test(nixl),
        cmocka_unit_test(nixl_push),
        cmocka_unit_test(mooncake),
        cmocka_unit_test(names_of_engines),
        cmocka_unit_test(sglang),
        cmocka_unit_test(trtllm),
        cmocka_unit_test(what_a_client_may_not_send_is_removed),
        cmocka_unit_test(bodies_that_are_no_objects_are_refused),
        cmocka_unit_test(answers_of_nixl),
        cmocka_unit_test(answers_without_an_object),
        cmocka_unit_test(answers_of_trtllm),
        cmocka_unit_test(an_answer_that_ended_goes_to_the_client),
        cmocka_unit_test(obstacles),
        cmocka_unit_test(members_of_requests),
        cmocka_unit_test(rooms_lead_to_their_rank),
        cmocka_unit_test(ids_of_trtllm),
        cmocka_unit_test(ids_of_p2p),
        cmocka_unit_test(a_large_object_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
