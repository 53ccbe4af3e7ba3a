/* SPDX-License-Identifier: Apache-2.0 */
/* traceparent and tracestate as W3C has them, and spans as OTLP's JSON. */
#include "test.h"

#include "wire/json.h"
#include "wire/otlp_json.h"
#include "wire/trace_context.h"

#define TRACE  "0af7651916cd43dd8448eb211c80319c"
#define PARENT "b7ad6b7169203331"

static bool reads(const char *text, struct kvr_trace_context *out)
{
    return kvr_traceparent_read(text, strlen(text), out);
}

static void a_traceparent_is_read_and_written_the_same(void **)
{
    struct kvr_trace_context c;
    char out[KVR_TRACEPARENT_LEN + 1];
    static const char text[] = "00-" TRACE "-" PARENT "-01";
    assert_true(reads(text, &c));
    assert_true(c.parent == 0xb7ad6b7169203331ULL && c.flags == KVR_TRACE_SAMPLED && c.trace[0] == 0x0a && c.trace[15] == 0x9c);
    kvr_traceparent_write(&c, out);
    assert_string_equal(out, text);
}

static void what_is_malformed_anywhere_is_none(void **)
{
    static const char *const bad[] = {"",
                                      "00",
                                      "00-" TRACE "-" PARENT,
                                      "00-" TRACE "-" PARENT "-1",
                                      "00-" TRACE "-" PARENT "-01-",
                                      "00-" TRACE "-" PARENT "-01 ",
                                      " 00-" TRACE "-" PARENT "-01",
                                      "ff-" TRACE "-" PARENT "-01",
                                      "0x-" TRACE "-" PARENT "-01",
                                      "00-0AF7651916CD43DD8448EB211C80319C-" PARENT "-01",
                                      "00-" TRACE "-B7AD6B7169203331-01",
                                      "00-" TRACE "-" PARENT "-0G",
                                      "00-00000000000000000000000000000000-" PARENT "-01",
                                      "00-" TRACE "-0000000000000000-01",
                                      "00_" TRACE "-" PARENT "-01",
                                      "00-" TRACE "_" PARENT "-01",
                                      "00-" TRACE "-" PARENT "_01",
                                      "01-" TRACE "-" PARENT "-01more"};
    struct kvr_trace_context c = {.parent = 7};
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++)
        if (reads(bad[i], &c)) fail_msg("taken: '%s'", bad[i]);
    assert_int_equal(c.parent, 7); /* untouched */
}

static void a_later_version_may_have_more(void **)
{
    struct kvr_trace_context c;
    assert_true(reads("01-" TRACE "-" PARENT "-01", &c));
    assert_true(reads("cc-" TRACE "-" PARENT "-00-what-may-come", &c));
    assert_int_equal(c.flags, 0);
}

static int members(const char *text)
{
    return kvr_tracestate_members(text, strlen(text));
}

static void members_of_a_tracestate_are_counted(void **)
{
    char key[300];
    assert_int_equal(members(""), 0);
    assert_int_equal(members("a=1"), 1);
    assert_int_equal(members("a=1, b@c=2 ,,\tx*/_-9=~ !"), 3);
    assert_int_equal(members("9tenant@sys=1"), 1);
    static const char *const bad[] = {"a",     "=1",   "a=",   "A=1",     "9a=1",   "a=1=2",
                                      "a b=1", "a@=1", "@a=1", "a@b@c=1", "a=\x7f", "a@thisistoolong15=1"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++)
        if (members(bad[i]) != -1) fail_msg("taken: '%s'", bad[i]);
    memset(key, 'k', sizeof key);
    memcpy(key + 256, "=1", 3);
    assert_int_equal(members(key), 1);
    memcpy(key + 256, "k=1", 4);
    assert_int_equal(members(key), -1);
}

static struct kvr_span_set *set_of(unsigned spans)
{
    struct kvr_span_set *s = calloc(1, sizeof *s);
    memset(s->trace, 0xab, sizeof s->trace);
    for (unsigned i = 0; i < spans; i++) {
        struct kvr_span span = {
            .name = "n", .id = i + 1, .parent = i ? 1 : 0, .kind = KVR_SPAN_INTERNAL, .start_ns = 5, .end_ns = 1795641585470520876};
        assert_true(kvr_spans_add(s, &span) == (int)i || i >= KVR_SPANS_MAX);
    }
    return s;
}

static struct kvr_json at(struct kvr_json v, const char *key, size_t i)
{
    return kvr_json_at(kvr_json_get(v, key), i);
}

static void is_text(struct kvr_json v, const char *text)
{
    const char *s;
    size_t n;
    assert_true(kvr_json_as_str(v, &s, &n));
    assert_int_equal(n, strlen(text));
    assert_memory_equal(s, text, n);
}

/* The spans of one set, parsed; the caller frees the parser and the buffer. */
static struct kvr_json written(const struct kvr_span_set *s, struct kvr_json_parser *p, struct kvr_buf *b)
{
    static const struct kvr_otlp_resource r = {"a \"name\"", "1", "i"};
    struct kvr_json root;
    kvr_otlp_begin(b, &r);
    kvr_otlp_put(b, s);
    kvr_otlp_end(b);
    assert_false(b->failed);
    assert_int_equal(kvr_json_parse(p, b->data, b->len, &root, NULL), 0);
    struct kvr_json resource = at(root, "resourceSpans", 0);
    is_text(kvr_json_get(kvr_json_get(at(kvr_json_get(resource, "resource"), "attributes", 0), "value"), "stringValue"), "a \"name\"");
    return kvr_json_get(at(resource, "scopeSpans", 0), "spans");
}

static void spans_are_written_as_otlp_has_them(void **)
{
    struct kvr_json_parser *p = kvr_json_parser_new();
    struct kvr_buf b = {0};
    struct kvr_span_set *s = set_of(2);
    kvr_spans_int(s, 1, "big", UINT64_MAX);
    kvr_spans_text(s, 1, "text", "\"\x1b\xff", 3);
    kvr_spans_text(s, 1, "none", "", 0);
    kvr_spans_int(s, -1, "nowhere", 1);
    s->spans[1].failed = true;
    s->spans[1].why = "why";
    struct kvr_json spans = written(s, p, &b), one = kvr_json_at(spans, 0), two = kvr_json_at(spans, 1);
    assert_int_equal(kvr_json_count(spans), 2);
    is_text(kvr_json_get(one, "traceId"), "abababababababababababababababab");
    is_text(kvr_json_get(one, "spanId"), "0000000000000001");
    assert_int_equal(kvr_json_type_of(kvr_json_get(one, "parentSpanId")), KVR_JSON_NONE);
    is_text(kvr_json_get(two, "parentSpanId"), "0000000000000001");
    is_text(kvr_json_get(two, "endTimeUnixNano"), "1795641585470520876");
    assert_int_equal(kvr_json_count(kvr_json_get(two, "attributes")), 2);
    is_text(kvr_json_get(kvr_json_get(at(two, "attributes", 0), "value"), "intValue"), "9223372036854775807");
    is_text(kvr_json_get(kvr_json_get(at(two, "attributes", 1), "value"), "stringValue"), "\"\\x1b\\xff");
    is_text(kvr_json_get(kvr_json_get(two, "status"), "message"), "why");
    kvr_buf_free(&b);
    kvr_spans_free(s);
    kvr_json_parser_free(p);
}

static void what_does_not_fit_is_left_out_and_said(void **)
{
    struct kvr_json_parser *p = kvr_json_parser_new();
    struct kvr_buf b = {0};
    struct kvr_span_set *s = set_of(KVR_SPANS_MAX + 3);
    for (int i = 0; i < KVR_SPAN_ATTRIBUTES_MAX + 2; i++) kvr_spans_bool(s, 1, "yes", true);
    struct kvr_json spans = written(s, p, &b), first = at(kvr_json_at(spans, 0), "attributes", 0);
    assert_int_equal(kvr_json_count(spans), KVR_SPANS_MAX);
    assert_int_equal(kvr_json_count(kvr_json_get(kvr_json_at(spans, 1), "attributes")), KVR_SPAN_ATTRIBUTES_MAX);
    is_text(kvr_json_get(first, "key"), "kvroute.left_out");
    is_text(kvr_json_get(kvr_json_get(first, "value"), "intValue"), "5");
    kvr_buf_free(&b);
    kvr_spans_free(s);
    kvr_json_parser_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_traceparent_is_read_and_written_the_same),
        cmocka_unit_test(what_is_malformed_anywhere_is_none),
        cmocka_unit_test(a_later_version_may_have_more),
        cmocka_unit_test(members_of_a_tracestate_are_counted),
        cmocka_unit_test(spans_are_written_as_otlp_has_them),
        cmocka_unit_test(what_does_not_fit_is_left_out_and_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
