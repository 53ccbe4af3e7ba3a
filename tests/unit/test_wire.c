/* SPDX-License-Identifier: Apache-2.0 */
/* JSON in and out, OpenAI bodies, SSE, trace lines, the stream cursor, small containers. */
#include "test.h"

#include <math.h>
#include <stdio.h>

#include <kvroute/types.h>

#include "base/map64.h"
#include "recover/consumer/cursor.h"
#include "wire/engine_tokens.h"
#include "wire/openai.h"
#include "wire/sse.h"
#include "wire/trace.h"

static int setup(void **s)
{
    *s = kvr_json_parser_new();
    return *s ? 0 : -1;
}

static int teardown(void **s)
{
    kvr_json_parser_free(*s);
    return 0;
}

static int parse(void **s, const char *text, struct kvr_openai_request *r, const char **why)
{
    return kvr_openai_parse(*s, text, strlen(text), KVR_JSON_ALL, r, why);
}

static void json_keeps_64_bits(void **s)
{
    struct kvr_json root;
    uint64_t v;
    const char *t = "{\"a\":18446744073709551615,\"b\":-1,\"c\":1.5,\"d\":[1,-2]}";
    assert_int_equal(kvr_json_parse(*s, t, strlen(t), &root, NULL), 0);
    assert_true(kvr_json_as_u64(kvr_json_get(root, "a"), &v) && v == UINT64_MAX);
    assert_false(kvr_json_as_u64(kvr_json_get(root, "b"), &v));
    assert_true(kvr_json_as_i64_bits(kvr_json_get(root, "b"), &v) && v == UINT64_MAX);
    assert_false(kvr_json_as_u64(kvr_json_get(root, "c"), &v));
    uint64_t list[2];
    assert_int_equal(kvr_json_u64_array(kvr_json_get(root, "d"), list, 2), 2);
    assert_true(list[1] == (uint64_t)-2);
    assert_int_equal(kvr_json_u64_array(kvr_json_get(root, "d"), list, 1), -KVR_ELIMIT);
}

static void json_may_begin_with_one_byte_order_mark(void **s)
{
    struct kvr_json root;
    const char *ok[] = {"\xef\xbb\xbf{}", "\xef\xbb\xbf {\"x\":1e400}", "\xef\xbb\xbf\"\xef\xbb\xbf\""};
    const char *bad[] = {"\xef\xbb\xbf", "\xef\xbb{}", "\xef\xbb\xbf\xef\xbb\xbf{}", " \xef\xbb\xbf{}", "{\xef\xbb\xbf}", "{}\xef\xbb\xbf"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(ok); i++) assert_int_equal(kvr_json_parse(*s, ok[i], strlen(ok[i]), &root, NULL), 0);
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) assert_int_equal(kvr_json_parse(*s, bad[i], strlen(bad[i]), &root, NULL), -KVR_EFORMAT);
}

static void json_tolerates_numbers_it_cannot_hold(void **s)
{
    struct kvr_json root;
    const char *ok[] = {"{\"seed\":123456789012345678901234567890}", "{\"x\":1e400}", "[-99999999999999999999, 1.0E+999]"};
    const char *bad[] = {"{\"x\":01}", "{\"x\":1.}", "{\"x\":--1}", "{\"x\":1e}", "{x:1}", "[1,]", "nul", "\"open", "{\"a\":1}}"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(ok); i++) assert_int_equal(kvr_json_parse(*s, ok[i], strlen(ok[i]), &root, NULL), 0);
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) assert_int_equal(kvr_json_parse(*s, bad[i], strlen(bad[i]), &root, NULL), -KVR_EFORMAT);
}

/* Beyond 64 bits, or a double, is neither 0 nor absent, and its neighbours are what they are. */
static void json_numbers_beyond_range_are_no_zeros(void **s)
{
    static const char *const beyond[] = {"18446744073709551616",
                                         "-9223372036854775809",
                                         "123456789012345678901234567890",
                                         "1e400",
                                         "-1e400",
                                         "1E+309",
                                         "1.8e308",
                                         "1.7976931348623159e308",
                                         "100000e304",
                                         "0.0001e313",
                                         "1e999999999999999999999999",
                                         "1797693134862315807937289714053034150799341327100378269361737789804449682927647509466490179775872"
                                         "0709633028641669288791094655554785194"
                                         "0402630657488671505820681908902000708383676273854845817711531764475730270069855571366959622842914"
                                         "819860834936475292719074168444365510"
                                         "704342711559699508093042880177904174497792.0"};
    static const char *const within[] = {"18446744073709551615",
                                         "-9223372036854775808",
                                         "1e308",
                                         "1.7976931348623157e308",
                                         "1.7976931348623158e308",
                                         "0e99999",
                                         "1e-400",
                                         "-0",
                                         "0.00001e312",
                                         "1e-99999999999999999999",
                                         "0.000e+400",
                                         "1e0000000000000000001"};
    char text[700];
    struct kvr_json root, v;
    uint64_t u;
    double d;
    for (size_t i = 0; i < KVR_ARRAY_LEN(beyond); i++) {
        snprintf(text, sizeof text,
                 "{\"before\":18446744073709551615,\"1e400\":[\"1e400\\\"\",true,%s,-2,1.25e1],\"after\":1234567890123456789}", beyond[i]);
        assert_int_equal(kvr_json_parse(*s, text, strlen(text), &root, NULL), 0);
        v = kvr_json_at(kvr_json_get(root, "1e400"), 2);
        assert_int_equal(kvr_json_type_of(v), KVR_JSON_RANGE);
        assert_false(kvr_json_as_u64(v, &u) || kvr_json_as_i64_bits(v, &u) || kvr_json_as_double(v, &d));
        assert_true(kvr_json_as_u64(kvr_json_get(root, "before"), &u) && u == UINT64_MAX);
        assert_true(kvr_json_as_u64(kvr_json_get(root, "after"), &u) && u == 1234567890123456789u);
        assert_true(kvr_json_as_double(kvr_json_at(kvr_json_get(root, "1e400"), 4), &d) && d == 12.5);
        assert_true(kvr_json_as_i64_bits(kvr_json_at(kvr_json_get(root, "1e400"), 3), &u) && u == (uint64_t)-2);
        uint64_t list[5];
        assert_int_equal(kvr_json_u64_array(kvr_json_get(root, "1e400"), list, 5), -KVR_EFORMAT);
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(within); i++) { /* a neighbour that is out of range does not make them so */
        snprintf(text, sizeof text, "[%s,1e400]", within[i]);
        assert_int_equal(kvr_json_parse(*s, text, strlen(text), &root, NULL), 0);
        assert_true(kvr_json_as_double(kvr_json_at(root, 0), &d));
        assert_true(d == strtod(within[i], NULL));
        assert_int_equal(kvr_json_type_of(kvr_json_at(root, 1)), KVR_JSON_RANGE);
    }
}

/* A text that only becomes JSON when a number in it is written otherwise. */
static void json_that_is_none_stays_refused_beside_numbers_beyond_range(void **s)
{
    static const char *const bad[] = {"--18446744073709551616",
                                      "[-18446744073709551616-]",
                                      "[18446744073709551616 1]",
                                      "[018446744073709551616]",
                                      "[18446744073709551616.]",
                                      "[1e400e]",
                                      "[1e4001.5]",
                                      "[.18446744073709551616]",
                                      "[+18446744073709551616]",
                                      "[18446744073709551616x]",
                                      "[1e400,]",
                                      "[1e400,Infinity]",
                                      "[\"1e400,18446744073709551616]",
                                      "[1e400,NaN]"};
    struct kvr_json root;
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) assert_int_equal(kvr_json_parse(*s, bad[i], strlen(bad[i]), &root, NULL), -KVR_EFORMAT);
}

static void json_members_that_are_there_twice_are_found(void **s)
{
    static const struct {
        const char *text, *name;
    } rows[] = {
        {"{\"a\":1,\"b\":{\"a\":2},\"c\":[{\"a\":3},{\"a\":4}]}", NULL},
        {"{\"a\":1,\"b\":2,\"a\":1}", "a"},
        {"{\"a\":1,\"b\":2,\"\\u0061\":1}", "a"},
        {"{\"a\":{\"x\":1,\"yy\":\"x\",\"yy\":1e400}}", "yy"},
        {"[1,2,[{\"\":{}},{\"\":[],\"\":0}]]", ""},
        {"[\"a\",\"a\",{\"k\":\"k\"}]", NULL},
        {"{}", NULL},
        {"\"a\"", NULL},
    };
    struct kvr_json root;
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        char name[16] = "?";
        assert_int_equal(kvr_json_parse(*s, rows[i].text, strlen(rows[i].text), &root, NULL), 0);
        assert_int_equal(kvr_json_check_members(*s, name, sizeof name), rows[i].name ? -KVR_EEXISTS : 0);
        assert_string_equal(name, rows[i].name ? rows[i].name : "?");
    }
    struct kvr_buf b = {0};
    char name[4] = "";
    kvr_json_open(&b, '{');
    for (unsigned i = 0; i <= KVR_JSON_MEMBERS_MAX; i++) kvr_json_key_u64(&b, i), kvr_json_u64(&b, i);
    kvr_json_close(&b, '}');
    assert_int_equal(kvr_json_parse(*s, b.data, b.len, &root, NULL), 0);
    assert_int_equal(kvr_json_check_members(*s, name, sizeof name), -KVR_ELIMIT);
    kvr_buf_free(&b);
}

static void json_absent_values_are_harmless(void **s)
{
    struct kvr_json root, none;
    const char *str;
    size_t len;
    bool b;
    double d;
    assert_int_equal(kvr_json_parse(*s, "[]", 2, &root, NULL), 0);
    none = kvr_json_get(root, "a");
    assert_int_equal(kvr_json_type_of(none), KVR_JSON_NONE);
    assert_false(kvr_json_as_str(none, &str, &len) || kvr_json_as_bool(none, &b) || kvr_json_as_double(none, &d));
    assert_int_equal(kvr_json_count(none), 0);
    assert_int_equal(kvr_json_type_of(kvr_json_at(root, 3)), KVR_JSON_NONE);
    assert_int_equal(kvr_json_u32_array(none, NULL, 0), -KVR_EFORMAT);
}

static void json_deep_nesting_is_refused(void **s)
{
    char deep[8000];
    struct kvr_json root;
    memset(deep, '[', sizeof deep);
    assert_int_equal(kvr_json_parse(*s, deep, sizeof deep, &root, NULL), -KVR_EFORMAT);
}

static void json_output_is_escaped(void **)
{
    struct kvr_buf b = {0};
    kvr_json_open(&b, '{');
    kvr_json_key(&b, "t");
    kvr_json_str(&b, "a\"\\\n\x01\xc3\xa9\xff\xed\xa0\x80", 11);
    kvr_json_key(&b, "n");
    kvr_json_open(&b, '[');
    kvr_json_u64(&b, UINT64_MAX);
    kvr_json_i64(&b, -1);
    kvr_json_double(&b, 0.5);
    kvr_json_bool(&b, true);
    kvr_json_null(&b);
    kvr_json_close(&b, ']');
    kvr_json_close(&b, '}');
    kvr_buf_add(&b, "", 1);
    assert_string_equal(b.data, "{\"t\":\"a\\\"\\\\\\n\\u0001\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\","
                                "\"n\":[18446744073709551615,-1,0.5,true,null]}");
    kvr_buf_free(&b);
}

static void json_output_by_a_format(void **s)
{
    (void)s;
    struct kvr_buf b = {0};
    const uint32_t ids[] = {1, 2};
    const char *none = NULL;
    kvr_json_printf(&b, "{'t':%s,'part':%.*s,'none':%p,'some':%p,'id':'x-%jx','list':[", "a\"b", 2, "cde", none, "y", UINT64_MAX);
    for (unsigned i = 0; i < 2; i++) kvr_json_printf(&b, "{'n':%u,'yes':%i}", i, i > 0);
    kvr_json_printf(&b, "],'ids':");
    kvr_json_u32s(&b, ids, 2);
    kvr_json_put_u64(&b, "size", 7);
    kvr_json_printf(&b, "'%zu':%ju,'d':%g,'inf':%g}", sizeof(char), UINT64_MAX, 0.5, HUGE_VAL);
    kvr_buf_add(&b, "", 1);
    assert_string_equal(b.data, "{\"t\":\"a\\\"b\",\"part\":\"cd\",\"none\":null,\"some\":\"y\",\"id\":\"x-ffffffffffffffff\",\"list\":["
                                "{\"n\":0,\"yes\":false},{\"n\":1,\"yes\":true}],\"ids\":[1,2],\"size\":7,"
                                "\"1\":18446744073709551615,\"d\":0.5,\"inf\":null}");
    kvr_buf_free(&b);
}

static void openai_fields(void **s)
{
    struct kvr_openai_request r;
    const char *why;
    assert_int_equal(parse(s, "{\"model\":\"m\",\"messages\":[],\"stream\":true,\"max_tokens\":7,\"cache_salt\":\"x\"}", &r, &why), 0);
    assert_true(r.stream && r.has_messages && !r.has_prompt);
    assert_memory_equal(r.model, "m", 1);
    assert_memory_equal(r.salt, "x", 1);
    assert_int_equal(
        parse(s, "{\"messages\":[],\"max_completion_tokens\":9,\"nvext\":{\"cache_salt\":\"y\",\"token_data\":[1,2,3]}}", &r, &why), 0);
    assert_int_equal(r.tokens_n, 3);
    assert_memory_equal(r.salt, "y", 1);
}

static void openai_prompt_forms(void **s)
{
    struct kvr_openai_request r;
    const char *why;
    assert_int_equal(parse(s, "{\"prompt\":[5,6]}", &r, &why), 0);
    assert_int_equal(r.tokens_n, 2);
    assert_int_equal(parse(s, "{\"prompt\":[[5,6,7]]}", &r, &why), 0);
    assert_int_equal(r.tokens_n, 3);
    assert_int_equal(parse(s, "{\"prompt\":\"text\"}", &r, &why), 0);
    assert_true(r.tokens_n == 0 && r.has_prompt);
    assert_int_equal(parse(s, "{\"prompt\":[\"a\",\"b\"]}", &r, &why), 0);
    assert_int_equal(r.tokens_n, 0);
    assert_int_equal(parse(s, "{\"prompt\":[[1],[2]]}", &r, &why), 0);
    assert_int_equal(r.tokens_n, 1); /* a batch: the first, and how many there are of all */
    assert_int_equal(r.tokens_sum, 2);
}

static void openai_refusals(void **s)
{
    struct kvr_openai_request r;
    const char *bad[] = {"", "{", "[1]", "\"x\"", "12", "null", "{\"model\":5}"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) {
        const char *why = NULL;
        assert_int_equal(parse(s, bad[i], &r, &why), -KVR_EFORMAT);
        assert_non_null(why);
    }
}

/* We would read one and the engine the other: another model's name, another tenant's salt. */
static void openai_members_that_routing_reads_are_there_once(void **s)
{
    static const struct {
        const char *body, *name;
    } rows[] = {
        {"{\"model\":\"a\",\"model\":\"b\"}", "model"},
        {"{\"model\":\"a\",\"prompt\":\"x\",\"prompt\":\"y\"}", "prompt"},
        {"{\"messages\":[],\"messages\":[]}", "messages"},
        {"{\"cache_salt\":\"a\",\"prompt\":\"x\",\"cache_salt\":\"b\"}", "cache_salt"},
        {"{\"cache_salt\":\"a\",\"cache\\u005fsalt\":\"b\"}", "cache_salt"},
        {"{\"stream\":true,\"stream\":false}", "stream"},
        {"{\"max_tokens\":1,\"max_tokens\":2}", "max_tokens"},
        {"{\"max_completion_tokens\":1,\"max_completion_tokens\":2}", "max_completion_tokens"},
        {"{\"nvext\":{},\"nvext\":{}}", "nvext"},
        {"{\"nvext\":{\"cache_salt\":\"a\",\"cache_salt\":\"b\"}}", "nvext.cache_salt"},
        {"{\"nvext\":{\"token_data\":[1],\"token_data\":[2]}}", "nvext.token_data"},
        {"{\"nvext\":{\"agent_hints\":{},\"agent_hints\":{}}}", "nvext.agent_hints"},
    };
    struct kvr_openai_request r;
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        const char *why = "";
        char quoted[64];
        snprintf(quoted, sizeof quoted, "`%s`", rows[i].name);
        assert_int_equal(parse(s, rows[i].body, &r, &why), -KVR_EFORMAT);
        assert_non_null(strstr(why, quoted));
    }
    const char *why = "", *unread = "{\"logit_bias\":{\"1\":2,\"1\":3},\"x\":1,\"x\":2,\"model\":\"m\"}";
    assert_int_equal(parse(s, unread, &r, &why), 0); /* the engine's business */
}

static void openai_numbers_beyond_range_do_not_touch_neighbours(void **s)
{
    static const char *const refused[] = {"{\"model\":1e400}",
                                          "{\"cache_salt\":18446744073709551616}",
                                          "{\"cache_salt\":5}",
                                          "{\"nvext\":1e400}",
                                          "{\"nvext\":[]}",
                                          "{\"nvext\":{\"cache_salt\":7}}",
                                          "{\"nvext\":{\"token_data\":\"1,2\"}}"};
    struct kvr_openai_request r;
    const char *why = "";
    const char *body =
        "{\"seed\":123456789012345678901234567890,\"prompt\":[18446744073709551615,4294967295,7],\"max_tokens\":1234567890123456789,"
        "\"x\":-1e400,\"model\":\"m\"}";
    assert_int_equal(parse(s, body, &r, &why), 0);
    uint64_t tokens[3];
    assert_int_equal(kvr_json_u64_array(r.tokens, tokens, 3), 3);
    assert_true(tokens[0] == UINT64_MAX && tokens[1] == UINT32_MAX && tokens[2] == 7);
    assert_int_equal(parse(s, "{\"max_tokens\":18446744073709551616,\"prompt\":\"x\"}", &r, &why), 0); /* the engine's business */
    assert_int_equal(parse(s, "{\"prompt\":[1e400,1]}", &r, &why), 0); /* a token that is none is no text either */
    assert_int_equal(r.tokens_n, 2);
    for (size_t i = 0; i < KVR_ARRAY_LEN(refused); i++) assert_int_equal(parse(s, refused[i], &r, &why), -KVR_EFORMAT);
}

static void prompt_text_of_messages(void **s)
{
    struct kvr_openai_request r;
    struct kvr_buf b = {0};
    const char *why;
    parse(s,
          "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"yo\"}]}]}",
          &r, &why);
    assert_true(kvr_openai_prompt_text(&r, &b));
    kvr_buf_add(&b, "", 1);
    assert_string_equal(b.data, "<|user|>\nhi<|end|>\n<|user|>\nyo<|end|>\n<|assistant|>\n");
    b.len = 0;
    parse(s, "{\"input\":1}", &r, &why);
    assert_false(kvr_openai_prompt_text(&r, &b));
    kvr_buf_free(&b);
}

static void usage_is_read(void **s)
{
    struct kvr_json root;
    struct kvr_usage u;
    const char *t = "{\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":8}}}";
    kvr_json_parse(*s, t, strlen(t), &root, NULL);
    kvr_openai_usage(root, &u);
    assert_true(u.present && u.has_cached && u.prompt_tokens == 10 && u.completion_tokens == 3 && u.cached_tokens == 8);
    kvr_json_parse(*s, "{\"usage\":null}", 14, &root, NULL);
    kvr_openai_usage(root, &u);
    assert_false(u.present);
    t = "{\"usage\":{\"prompt_tokens\":10,\"prompt_tokens_details\":null}}";
    kvr_json_parse(*s, t, strlen(t), &root, NULL);
    kvr_openai_usage(root, &u);
    assert_true(u.present && !u.has_cached);
    t = "{\"usage\":{\"input_tokens\":10,\"input_tokens_details\":{\"cached_tokens\":8},\"output_tokens\":3}}";
    kvr_json_parse(*s, t, strlen(t), &root, NULL);
    kvr_openai_usage(root, &u);
    assert_true(u.present && u.has_cached && u.prompt_tokens == 10 && u.completion_tokens == 3 && u.cached_tokens == 8);
    t = "{\"usage\":{\"input_tokens\":2,\"output_tokens\":3,\"cache_creation_input_tokens\":1,\"cache_read_input_tokens\":8}}";
    kvr_json_parse(*s, t, strlen(t), &root, NULL);
    kvr_openai_usage(root, &u); /* messages count what was cached apart */
    assert_true(u.present && u.has_cached && u.prompt_tokens == 11 && u.completion_tokens == 3 && u.cached_tokens == 8);
    t = "{\"usage\":{\"input_tokens\":16,\"output_tokens\":0}}";
    kvr_json_parse(*s, t, strlen(t), &root, NULL);
    kvr_openai_usage(root, &u);
    assert_true(u.present && !u.has_cached && u.prompt_tokens == 16);
}

static void errors_are_openai_objects(void **s)
{
    struct kvr_buf b = {0};
    struct kvr_json root, e;
    kvr_openai_error(&b, 404, kvr_openai_error_type(404), "no \"model\"");
    assert_int_equal(kvr_json_parse(*s, b.data, b.len, &root, NULL), 0);
    e = kvr_json_get(root, "error");
    assert_int_equal(kvr_json_type_of(kvr_json_get(e, "message")), KVR_JSON_STRING);
    assert_int_equal(kvr_json_type_of(kvr_json_get(e, "type")), KVR_JSON_STRING);
    kvr_buf_free(&b);
}

static const char stream[] =
    ": comment\n\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"\\\"usage\\\"\"}],\"usage\":null}\r\n\r\n"
    "event: x\ndata:{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

static void sse_whole(void **s)
{
    struct kvr_sse e = {0};
    assert_int_equal(kvr_sse_feed(&e, *s, stream, sizeof stream - 1), 3);
    assert_true(e.done && e.usage.present && e.usage.cached_tokens == 4);
    kvr_sse_free(&e);
}

static void sse_at_every_split(void **s)
{
    for (size_t cut = 0; cut < sizeof stream; cut++) {
        struct kvr_sse e = {0};
        kvr_sse_feed(&e, *s, stream, cut);
        kvr_sse_feed(&e, *s, stream + cut, sizeof stream - 1 - KVR_MIN(cut, sizeof stream - 1));
        assert_int_equal(e.events, 3);
        assert_true(e.done && e.usage.cached_tokens == 4);
        kvr_sse_free(&e);
    }
}

static void sse_byte_by_byte(void **s)
{
    struct kvr_sse e = {0};
    for (size_t i = 0; i + 1 < sizeof stream; i++) kvr_sse_feed(&e, *s, stream + i, 1);
    assert_true(e.events == 3 && e.done && e.usage.cached_tokens == 4);
    kvr_sse_free(&e);
}

/* Events are looked through several bytes at a time. */
static void sse_names_wherever_they_stand(void **s)
{
    static const struct {
        const char *member;
        enum kvr_finish finish;
        bool usage, has_error;
        const char *response;
    } rows[] = {
        {"\"usage\":{\"prompt_tokens\":7}", KVR_FINISH_UNTOLD, true, false, ""},
        {"\"usage\" :\tnull,\"error\":null", KVR_FINISH_UNTOLD, false, false, ""},
        {"\"usage\":null,\"usage\":{\"prompt_tokens\":7}", KVR_FINISH_UNTOLD, true, false, ""},
        {"\"error\":{\"code\":1}", KVR_FINISH_UNTOLD, false, true, ""},
        {"\"error\":1", KVR_FINISH_UNTOLD, false, true, ""},
        {"\"finish_reason\":\"length\"", KVR_FINISH_LENGTH, false, false, ""},
        {"\"finish_reason\":null", KVR_FINISH_UNTOLD, false, false, ""},
        {"\"response\":{\"id\":\"resp_1\",\"usage\":null}", KVR_FINISH_UNTOLD, false, false, "resp_1"},
        {"\"usages\":1,\"errors\":1,\"finish\":\"stop\",\"r\":2", KVR_FINISH_UNTOLD, false, false, ""},
    };
    char line[256];
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        for (int before = 0; before < 40; before++)
            for (int behind = 0; behind < 20; behind++) {
                struct kvr_sse e = {0};
                int n = snprintf(line, sizeof line, "data: {\"x\":%*s%s%*s}\n\n", before + 2, "1,", rows[i].member, behind, "");
                assert_int_equal(kvr_sse_feed(&e, *s, line, (size_t)n), 1);
                assert_true(e.finish == rows[i].finish && e.usage.present == rows[i].usage && e.has_error == rows[i].has_error);
                assert_string_equal(e.response, rows[i].response);
                kvr_sse_free(&e);
            }
}

static void sse_last_events(void **s)
{
    static const struct {
        const char *stream;
        bool done, has_error;
        uint64_t cached;
    } rows[] = {
        {"data: [DONE]\n", false, false, 0}, /* its blank line is missing */
        {"data: [DONE]\r\n\r\n", true, false, 0},
        {"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true, false, 0},
        {"event: message_stop\ndata: {\"type\":\"message_stop\"}\n", false, false, 0},
        {"event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":1,\"cache_read_input_tokens\":7}}}\n\n", false, false, 7},
        {"event: response.completed\ndata: "
         "{\"response\":{\"usage\":{\"input_tokens\":9,\"input_tokens_details\":{\"cached_tokens\":5}},\"error\":null}}\n\n",
         true, false, 5},
        {"event: response.failed\ndata: {}\n\n", true, true, 0},
        {"event: response.created\ndata: {}\n\n", false, false, 0},
        {"event: error\ndata: {\"type\":\"error\"}\n\n", false, true, 0},
        {"data: {\"error\":{\"message\":\"no\"}}\n\ndata: [DONE]\n\n", true, true, 0},
        {"data: {\"choices\":[{\"text\":\"\\\"error\\\"\"}],\"error\":null}\n\n", false, false, 0},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        struct kvr_sse e = {0};
        kvr_sse_feed(&e, *s, rows[i].stream, strlen(rows[i].stream));
        assert_int_equal(e.done, rows[i].done);
        assert_int_equal(e.has_error, rows[i].has_error);
        assert_int_equal(e.usage.cached_tokens, rows[i].cached);
        kvr_sse_free(&e);
    }
}

static void sse_endless_line_is_bounded(void **s)
{
    struct kvr_sse e = {0};
    char chunk[4096];
    memset(chunk, 'x', sizeof chunk);
    memcpy(chunk, "data: ", 6);
    for (int i = 0; i < 1000; i++) kvr_sse_feed(&e, *s, chunk, sizeof chunk);
    assert_true(e.part.cap <= 2 * KVR_SSE_LINE_MAX);
    kvr_sse_feed(&e, *s, "\n\ndata: [DONE]\n\n", 16);
    assert_true(e.done);
    kvr_sse_free(&e);
}

static void trace_rows(void **s)
{
    struct kvr_trace_row r;
    const char *why, *ok = "{\"timestamp\": 27, \"input_length\": 1000, \"output_length\": 5, \"hash_ids\": [4, 9]}";
    assert_int_equal(kvr_trace_parse(*s, ok, strlen(ok), &r, &why), 0);
    assert_true(r.timestamp_ms == 27 && r.input_length == 1000 && r.output_length == 5 && r.ids_n == 2 && r.ids[1] == 9);
    uint32_t a[1000], b[1000];
    kvr_trace_expand(&r, 50000, a);
    for (size_t i = 0; i < r.input_length; i++) assert_true(a[i] >= KVR_TRACE_SPECIAL && a[i] < 50000);
    for (uint64_t h = 0; h < 3000; h++) assert_true(kvr_trace_token(h, 1) == 0 && kvr_trace_token(h, 300) < 300);
    r.ids[1] = 10;
    kvr_trace_expand(&r, 50000, b);
    assert_memory_equal(a, b, 512 * 4);
    assert_memory_not_equal(a + 512, b + 512, 488 * 4);
    for (int i = 0; i < 1000; i++) assert_in_range(a[i], 1000, 50999);
    kvr_trace_row_free(&r);
    const char *bad[] = {"{}",
                         "{\"timestamp\":1,\"input_length\":1025,\"output_length\":1,\"hash_ids\":[1,2]}",
                         "{\"timestamp\":-1,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}",
                         "x",
                         "{\"timestamp\":1,\"input_length\":1,\"output_length\":1,\"hash_ids\":[\"a\"]}",
                         "{\"timestamp\":1,\"input_length\":1,\"output_length\":16777217,\"hash_ids\":[1]}",
                         "{\"timestamp\":1,\"output_length\":16777217,\"prompt\":\"a\"}",
                         "{\"timestamp\":1,\"input_length\":0,\"output_length\":1,\"hash_ids\":[]}"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) assert_int_equal(kvr_trace_parse(*s, bad[i], strlen(bad[i]), &r, &why), -KVR_EFORMAT);
}

static void trace_rows_that_are_texts(void **s)
{
    struct kvr_trace_row r;
    const char *why,
        *chat = " {\"timestamp\": 27.5, \"messages\" : [ {\"role\":\"user\",\"content\":\"\\u00e4 ]\"} ], \"x\": {\"prompt\":1}, "
                "\"output_length\":5,\"tools\":[1],\"prompt\":null} ",
        *text = "{\"prompt\":\"a \\\"b\",\"output_length\":5,\"tools\":[1],\"timestamp\":1,\"hash_ids\":null}";
    assert_int_equal(kvr_trace_parse(*s, chat, strlen(chat), &r, &why), 0);
    assert_true(r.timestamp_ms == 27 && r.input_length == 0 && r.output_length == 5 && r.ids_n == 0 && !r.ids && r.is_chat);
    static const char members[] = "\"messages\":[ {\"role\":\"user\",\"content\":\"\\u00e4 ]\"} ],\"tools\":[1]";
    assert_int_equal(r.text_len, sizeof members - 1);
    assert_memory_equal(r.text, members, r.text_len);
    kvr_trace_row_free(&r);
    assert_int_equal(kvr_trace_parse(*s, text, strlen(text), &r, &why), 0);
    assert_true(!r.is_chat && r.text_len == 16 && !memcmp(r.text, "\"prompt\":\"a \\\"b\"", 16));
    kvr_trace_row_free(&r);
    static const struct {
        const char *line, *why;
    } bad[] = {
        {"{\"timestamp\":1,\"prompt\":\"x\"}", "`output_length`"},
        {"{\"timestamp\":1,\"prompt\":\"x\",\"output_length\":-1}", "`output_length`"},
        {"{\"prompt\":\"x\",\"output_length\":1}", "`timestamp`"},
        {"{\"timestamp\":1,\"prompt\":[1,2],\"output_length\":1}", "`prompt` a text"},
        {"{\"timestamp\":1,\"messages\":{},\"output_length\":1}", "`messages` must be a list"},
        {"{\"timestamp\":1,\"messages\":[],\"prompt\":\"x\",\"output_length\":1}", "one of"},
        {"{\"timestamp\":1,\"input_length\":1,\"prompt\":\"x\",\"hash_ids\":[1],\"output_length\":1}", "one of"},
        {"{\"timestamp\":1,\"prompt\":\"x\",\"prompt\":\"y\",\"output_length\":1}", "twice"},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) {
        assert_int_equal(kvr_trace_parse(*s, bad[i].line, strlen(bad[i].line), &r, &why), -KVR_EFORMAT);
        assert_non_null(strstr(why, bad[i].why));
    }
}

/* ---- an engine's token ids ----------------------------------------------------------------------------- */

static void ids_are_read_from_each_form_of_an_answer(void **s)
{
    static const struct {
        enum kvr_engine_tokens_way way;
        const char *text;
        long n; /* -1: none */
    } cases[] = {{KVR_TOKENS_RENDER, "{\"token_ids\":[1,2,3]}", 3},
                 {KVR_TOKENS_RENDER, "[{\"token_ids\":[1,2]},{\"token_ids\":[9]}]", 2},
                 {KVR_TOKENS_RENDER, "{\"tokens\":[1]}", -1},
                 {KVR_TOKENS_RENDER, "[]", -1},
                 {KVR_TOKENS_TOKENIZE, "{\"count\":1,\"tokens\":[7]}", 1},
                 {KVR_TOKENS_TOKENIZE, "{\"token_ids\":[7]}", -1},
                 {KVR_TOKENS_TOKENIZE, "{\"tokens\":\"7\"}", -1},
                 {KVR_TOKENS_TOKENIZE, "{\"tokens\":[7]", -1}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(cases); i++) {
        struct kvr_json ids;
        bool any = kvr_engine_tokens_read(*s, cases[i].text, strlen(cases[i].text), cases[i].way, &ids);
        assert_int_equal(any ? (long)kvr_json_count(ids) : -1, cases[i].n);
    }
}

static void what_an_engine_answers_to_a_question_for_ids_means(void **)
{
    static const struct {
        int status;
        enum kvr_engine_tokens_answer render, tokenize;
    } cases[] = {{200, KVR_TOKENS_ANSWERED, KVR_TOKENS_ANSWERED}, {400, KVR_TOKENS_REFUSED, KVR_TOKENS_REFUSED},
                 {404, KVR_TOKENS_OTHER_WAY, KVR_TOKENS_NO_WAY},  {405, KVR_TOKENS_OTHER_WAY, KVR_TOKENS_NO_WAY},
                 {501, KVR_TOKENS_OTHER_WAY, KVR_TOKENS_NO_WAY},  {403, KVR_TOKENS_OTHER_WAY, KVR_TOKENS_LATER},
                 {401, KVR_TOKENS_LATER, KVR_TOKENS_LATER},       {429, KVR_TOKENS_LATER, KVR_TOKENS_LATER},
                 {500, KVR_TOKENS_LATER, KVR_TOKENS_LATER},       {503, KVR_TOKENS_LATER, KVR_TOKENS_LATER}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(cases); i++) {
        assert_int_equal(kvr_engine_tokens_judge(KVR_TOKENS_RENDER, cases[i].status), cases[i].render);
        assert_int_equal(kvr_engine_tokens_judge(KVR_TOKENS_TOKENIZE, cases[i].status), cases[i].tokenize);
    }
    struct kvr_buf b = {0};
    kvr_engine_tokens_question(KVR_TOKENS_RENDER, "a\"b", "\"prompt\":\"x\"", &b);
    static const char render[] = "{\"model\":\"a\\\"b\",\"max_tokens\":1,\"prompt\":\"x\"}";
    assert_int_equal(b.len, sizeof render - 1);
    assert_memory_equal(b.data, render, b.len);
    b.len = 0;
    kvr_engine_tokens_question(KVR_TOKENS_TOKENIZE, "m", "\"prompt\":\"x\"", &b);
    assert_int_equal(b.len, 26);
    assert_memory_equal(b.data, "{\"model\":\"m\",\"prompt\":\"x\"}", b.len);
    kvr_buf_free(&b);
}

/* ---- cursor ------------------------------------------------------------------------------------------ */

static void cursor_contiguous_and_gap(void **)
{
    struct kvr_cursor c = {0};
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(kvr__cursor_live(&c, i, 1 + (double)i), KVR_CURSOR_APPLY);
        kvr__cursor_advance(&c, i, 1 + (double)i);
    }
    assert_int_equal(kvr__cursor_live(&c, 5, 10), KVR_CURSOR_GAP);
    assert_int_equal(c.next, 3);
}

static void cursor_late_join_is_a_gap(void **)
{
    struct kvr_cursor c = {0};
    assert_int_equal(kvr__cursor_live(&c, 7, 1), KVR_CURSOR_GAP);
}

static void cursor_queued_duplicates_are_stale(void **)
{
    struct kvr_cursor c = {0};
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(kvr__cursor_replay(&c, i), KVR_CURSOR_APPLY);
        kvr__cursor_advance(&c, i, 1 + (double)i);
    }
    assert_int_equal(kvr__cursor_replay(&c, 3), KVR_CURSOR_STALE);
    assert_int_equal(kvr__cursor_live(&c, 3, 4), KVR_CURSOR_STALE); /* sent before the replay ended */
    assert_int_equal(kvr__cursor_live(&c, 4, 5), KVR_CURSOR_STALE);
    assert_int_equal(kvr__cursor_live(&c, 5, 6), KVR_CURSOR_APPLY);
}

static void cursor_backwards_is_a_restart(void **)
{
    struct kvr_cursor c = {0};
    for (uint64_t i = 0; i < 5; i++) {
        kvr__cursor_live(&c, i, 1);
        kvr__cursor_advance(&c, i, 1);
    }
    assert_int_equal(kvr__cursor_live(&c, 0, 1), KVR_CURSOR_RESTART);
    kvr__cursor_reset(&c);
    assert_int_equal(kvr__cursor_live(&c, 0, 9), KVR_CURSOR_APPLY);
}

static void cursor_restart_right_after_a_replay(void **)
{
    struct kvr_cursor c = {0};
    for (uint64_t i = 0; i < 500; i++) kvr__cursor_advance(&c, i, 100);
    assert_int_equal(kvr__cursor_live(&c, 0, 101), KVR_CURSOR_RESTART); /* low, but later than all we know */
}

static void map64_random(void **)
{
    struct kvr_map64 m = {0};
    uint64_t model[256] = {0};
    struct kvr_rng rng = {3};
    for (int i = 0; i < 100000; i++) {
        uint64_t k = kvr_rng_below(&rng, 256);
        if (kvr_rng_below(&rng, 3)) {
            model[k] = 1 + kvr_rng_below(&rng, 1000);
            assert_int_equal(kvr_map64_put(&m, k, model[k]), 0);
        } else {
            model[k] = 0;
            kvr_map64_del(&m, k);
        }
        uint64_t q = kvr_rng_below(&rng, 256), *v = kvr_map64_get(&m, q);
        assert_true(v ? *v == model[q] : model[q] == 0);
    }
    kvr_map64_clear(&m);
}

static void errors_have_names_and_texts(void **)
{
    assert_string_equal(kvr_strerror(-KVR_EPARENT), "parent block not found");
    assert_string_equal(kvr_err_name(-KVR_ENOMEM), "KVR_ENOMEM");
    assert_string_equal(kvr_strerror(-9999), "unknown error");
    assert_string_equal(kvr_strerror(0), "success");
}

static void media_names(void **)
{
    enum kvr_tier t;
    assert_int_equal(kvr_tier_of_medium("", 0, &t), 0);
    assert_int_equal(t, KVR_TIER_DEVICE);
    assert_int_equal(kvr_tier_of_medium("CPU_PINNED", 10, &t), 0);
    assert_int_equal(t, KVR_TIER_HOST_PINNED);
    assert_int_equal(kvr_tier_of_medium("cpu", 3, &t), 0); /* in any case: stores write it small */
    assert_int_equal(t, KVR_TIER_HOST_PINNED);
    assert_int_equal(kvr_tier_of_medium("SHARED_STORAGE", 14, &t), 0);
    assert_int_equal(t, KVR_TIER_EXTERNAL);
    assert_int_equal(kvr_tier_of_medium("tape", 4, &t), -KVR_EINVAL);
    assert_string_equal(kvr_tier_name(KVR_TIER_EXTERNAL), "external");
    assert_null(kvr_tier_name((enum kvr_tier)9));
}

#define J(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        J(json_keeps_64_bits),
        J(json_may_begin_with_one_byte_order_mark),
        J(json_tolerates_numbers_it_cannot_hold),
        J(json_numbers_beyond_range_are_no_zeros),
        J(json_that_is_none_stays_refused_beside_numbers_beyond_range),
        J(json_members_that_are_there_twice_are_found),
        J(json_absent_values_are_harmless),
        J(json_deep_nesting_is_refused),
        J(json_output_is_escaped),
        J(json_output_by_a_format),
        J(openai_fields),
        J(openai_prompt_forms),
        J(openai_refusals),
        J(openai_members_that_routing_reads_are_there_once),
        J(openai_numbers_beyond_range_do_not_touch_neighbours),
        J(prompt_text_of_messages),
        J(usage_is_read),
        J(errors_are_openai_objects),
        J(sse_whole),
        J(sse_at_every_split),
        J(sse_byte_by_byte),
        J(sse_names_wherever_they_stand),
        J(sse_last_events),
        J(sse_endless_line_is_bounded),
        J(trace_rows),
        J(trace_rows_that_are_texts),
        J(ids_are_read_from_each_form_of_an_answer),
        J(what_an_engine_answers_to_a_question_for_ids_means),
        cmocka_unit_test(cursor_contiguous_and_gap),
        cmocka_unit_test(cursor_late_join_is_a_gap),
        cmocka_unit_test(cursor_queued_duplicates_are_stale),
        cmocka_unit_test(cursor_backwards_is_a_restart),
        cmocka_unit_test(cursor_restart_right_after_a_replay),
        cmocka_unit_test(map64_random),
        cmocka_unit_test(errors_have_names_and_texts),
        cmocka_unit_test(media_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
