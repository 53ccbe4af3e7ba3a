/* SPDX-License-Identifier: Apache-2.0 */
/* Members of an object are changed in its text; what is not theirs stays byte for byte. */
#include "test.h"

#include <stdio.h>

#include "wire/json.h"
#include "wire/json_edit.h"

static struct kvr_json_span span(const char *text)
{
    return (struct kvr_json_span){text, text + strlen(text)};
}

static const struct kvr_json_edit one_of_each[] = {{.name = "gone"},
                                                   {.name = "set", .value = "[7]", .value_len = 3},
                                                   {.name = "maybe", .value = "1", .value_len = 1, .only_if_present = true}};

/* The text with these edits; NULL: it was refused, and nothing was appended. */
static const char *edited(const char *text)
{
    static char made[512];
    struct kvr_buf out = {0};
    kvr_buf_str(&out, "before ");
    bool done = kvr_json_edit(span(text), one_of_each, KVR_ARRAY_LEN(one_of_each), &out);
    assert_true(done || out.len == 7);
    snprintf(made, sizeof made, "%.*s", (int)(out.len - 7), out.data + 7);
    kvr_buf_free(&out);
    return done ? made : NULL;
}

static void members_go_change_and_come(void **)
{
    static const char *const rows[][2] = {
        {"{}", "{\"set\":[7]}"},
        {" { } ", " { \"set\":[7]} "},
        {"\xef\xbb\xbf {}", "\xef\xbb\xbf {\"set\":[7]}"},
        {"{\"gone\":1}", "{\"set\":[7]}"},
        {"{ \"gone\" : {\"set\":1} }", "{ \"set\":[7] }"},
        {"{\"set\":1}", "{\"set\":[7]}"},
        {"{\"a\":1,\"gone\":2,\"b\":3}", "{\"a\":1,\"b\":3,\"set\":[7]}"},
        {"{\"gone\":2,\"b\":3}", "{\"b\":3,\"set\":[7]}"},
        {"{ \"gone\":2 , \"b\":3 }", "{ \"b\":3,\"set\":[7] }"},
        {"{\"b\":3,\"gone\":2}", "{\"b\":3,\"set\":[7]}"},
        {"{\n  \"a\": 1e2,\n  \"set\": {\"gone\": 1},\n  \"b\": 1234567890123456789\n}\n",
         "{\n  \"a\": 1e2,\n  \"set\": [7],\n  \"b\": 1234567890123456789\n}\n"},
        {"{\"maybe\":0,\"x\":{\"set\":1,\"gone\":2,\"maybe\":3}}", "{\"maybe\":1,\"x\":{\"set\":1,\"gone\":2,\"maybe\":3},\"set\":[7]}"},
        {"{\"x\":\"\\\",\\\"gone\\\":1\",\"y\":[{\"gone\":1},\"}\"]}",
         "{\"x\":\"\\\",\\\"gone\\\":1\",\"y\":[{\"gone\":1},\"}\"],\"set\":[7]}"},
        {"{\"\":1,\"se\":2,\"sett\":3,\"Set\":4}", "{\"\":1,\"se\":2,\"sett\":3,\"Set\":4,\"set\":[7]}"},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) assert_string_equal(edited(rows[i][0]), rows[i][1]);
}

static void a_member_that_is_there_several_times_is_changed_everywhere(void **)
{
    assert_string_equal(edited("{\"gone\":1,\"gone\":2}"), "{\"set\":[7]}");
    assert_string_equal(edited("{\"gone\":1,\"a\":1,\"gone\":2,\"b\":2,\"gone\":3}"), "{\"a\":1,\"b\":2,\"set\":[7]}");
    assert_string_equal(edited("{\"a\":1,\"set\":1,\"b\":2,\"set\":2,\"c\":3}"), "{\"a\":1,\"set\":[7],\"b\":2,\"c\":3}");
    assert_string_equal(edited("{\"set\":1,\"set\":2}"), "{\"set\":[7]}");
}

static void a_name_with_escapes_is_found(void **)
{
    assert_string_equal(edited("{\"g\\u006fne\":1,\"\\u0073et\":2}"), "{\"\\u0073et\":[7]}");
    assert_string_equal(edited("{\"gon\\u0065\":1,\"set\":0,\"\\u0073\\u0065\\u0074\":2}"), "{\"set\":[7]}");
    assert_string_equal(edited("{\"g\\u006Fne\":1,\"set\":0}"), "{\"set\":[7]}");
    /* names that are others */
    static const char others[] = "{\"g\\u016fne\":1,\"gone\\u0000\":2,\"go\\nne\":3,\"\\\"gone\\\"\":4,\"\\ud83d\\ude00\":5,\"set\":[7]}";
    assert_string_equal(edited(others), others);
}

static void what_is_no_object_is_refused(void **s)
{
    static const char *const bad[] = {"",
                                      " ",
                                      "[]",
                                      "\"a\"",
                                      "1",
                                      "{",
                                      "{\"",
                                      "{\"a",
                                      "{\"a\"",
                                      "{\"a\":",
                                      "{\"a\":1",
                                      "{\"a\":1,}",
                                      "{\"a\":1}}",
                                      "{} {}",
                                      "{,}",
                                      "{1:2}",
                                      "{\"a\" }",
                                      "{\"a\":1 \"b\":2}",
                                      "{\"a\":[1}",
                                      "{\"a\":1],\"gone\":2}",
                                      "{\"gone\":1,}",
                                      "null",
                                      "{\"\\u00"};
    (void)s;
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++)
        if (edited(bad[i])) fail_msg("%s was taken for an object, and became %s", bad[i], edited(bad[i]));
}

/* A body is cut anywhere: it is refused, or what was left of it was an object. Each cut in memory of its own, which ASan watches. */
static void a_body_cut_anywhere_is_not_read_past_its_end(void **)
{
    static const char whole[] = "{\"a\\\"\\u00e9\":[{\"b\":\"}\"},-1.5e3],\"g\\u006fne\" : {} ,\"set\":\"x\\\\\"}";
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        struct kvr_buf out = {0};
        char *cut = malloc(n ? n : 1);
        memcpy(cut, whole, n);
        assert_false(kvr_json_edit((struct kvr_json_span){cut, cut + n}, one_of_each, 3, &out));
        assert_int_equal(out.len, 0);
        free(cut);
        kvr_buf_free(&out);
    }
}

static void a_quote_that_ends_the_text_is_no_name(void **)
{
    static const char text[] = "{\"";
    const char *p = text;
    struct kvr_json_text_pair m;
    assert_false(kvr_json_text_next(&p, text + 2, &m));
}

static void a_list_of_numbers_ends_at_its_bracket_wherever_that_is(void **)
{
    static const char *const between[] = {"", "\"]\"", "[7]", "{\"a]\":2}"};
    for (size_t n = 0; n < 200; n++)
        for (size_t m = 0; m < 200; m += 1 + m % 9)
            for (size_t k = 0; k < KVR_ARRAY_LEN(between); k++) {
                struct kvr_buf text = {0};
                kvr_buf_str(&text, "[");
                for (size_t i = 0; i < n; i++) kvr_buf_str(&text, i % 3 ? "1" : ",");
                kvr_buf_str(&text, between[k]);
                for (size_t i = 0; i < m; i++) kvr_buf_str(&text, i % 4 ? "-2" : ", ");
                kvr_buf_str(&text, "]");
                char *list = malloc(text.len); /* exactly: nothing behind it is read */
                memcpy(list, text.data, text.len);
                assert_ptr_equal(kvr_json_text_end(list, list + text.len), list + text.len);
                free(list);
                kvr_buf_str(&text, ",[]]");
                assert_ptr_equal(kvr_json_text_end(text.data, text.data + text.len), text.data + text.len - 4);
                kvr_buf_free(&text);
            }
}

static void depth_and_many_members_are_no_matter(void **)
{
    struct kvr_buf body = {0}, out = {0};
    kvr_buf_str(&body, "{\"deep\":");
    for (int i = 0; i < 100000; i++) kvr_buf_str(&body, i % 2 ? "[" : "{\"gone\":");
    for (int i = 100000; i-- > 0;) kvr_buf_str(&body, i % 2 ? "]" : "}");
    size_t deep = body.len;
    for (int i = 0; i < 100000; i++) kvr_buf_str(&body, ",\"gone\":1");
    kvr_buf_str(&body, "}");
    assert_true(kvr_json_edit((struct kvr_json_span){body.data, body.data + body.len}, one_of_each, 1, &out));
    assert_int_equal(out.len, deep + 1);
    assert_memory_equal(out.data, body.data, deep);
    kvr_buf_free(&body);
    kvr_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_go_change_and_come),
        cmocka_unit_test(a_member_that_is_there_several_times_is_changed_everywhere),
        cmocka_unit_test(a_name_with_escapes_is_found),
        cmocka_unit_test(what_is_no_object_is_refused),
        cmocka_unit_test(a_body_cut_anywhere_is_not_read_past_its_end),
        cmocka_unit_test(a_quote_that_ends_the_text_is_no_name),
        cmocka_unit_test(a_list_of_numbers_ends_at_its_bracket_wherever_that_is),
        cmocka_unit_test(depth_and_many_members_are_no_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
