/* SPDX-License-Identifier: Apache-2.0 */
/* Each row is what pydantic 2.14 made of it in lax mode. */
#include "test.h"

#include <string.h>

#include "wire/lax.h"

static struct kvr_json value(void **s, const char *text)
{
    struct kvr_json root;
    assert_int_equal(kvr_json_parse(*s, text, strlen(text), &root, NULL), 0);
    return kvr_json_get(root, "v");
}

static void numbers(void **s)
{
    static const struct {
        const char *json;
        int64_t is;
    } rows[] = {
        {"5", 5},
        {"-7", -7},
        {"5.0", 5},
        {"-0.0", 0},
        {"true", 1},
        {"false", 0},
        {"9007199254740993", 9007199254740993},
        {"1e18", 1000000000000000000},
        {"\"5\"", 5},
        {"\" 5 \"", 5},
        {"\"\\n5\\t\"", 5},
        {"\"+5\"", 5},
        {"\"-5.0\"", -5},
        {"\"5.000000000000000000000000000000\"", 5},
        {"\"00000000000000000000000000000005\"", 5},
        {"\"1_000_000\"", 1000000},
        {"\"1_0.0\"", 10},
        {"\"0_0\"", 0},
        {"\"-0\"", 0},
        {"\"9223372036854775807\"", INT64_MAX},
        {"\"-9223372036854775808\"", INT64_MIN},
        /* larger there, the largest here */
        {"\"9223372036854775808\"", INT64_MAX},
        {"\"-99999999999999999999999999\"", INT64_MIN},
        {"18446744073709551615", INT64_MAX},
        {"99999999999999999999999999", INT64_MAX},
        {"\"99999999999999999999999999\"", INT64_MAX},
    };
    static const char *const none[] = {"null",   "2.5",     "{}",       "[3]",     "\"\"",    "\" \"",     "\"many\"", "\"5.\"",
                                       "\".0\"", "\"-.0\"", "\"1e3\"",  "\"0x5\"", "\"--5\"", "\"+-5\"",   "\"+ 5\"",  "\"5_\"",
                                       "\"_5\"", "\"-_5\"", "\"1__0\"", "\"5 5\"", "\"5.5\"", "\"5.0_0\"", "\"-\"",    "\"0.5\""};
    char text[80];
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        int64_t n = 77;
        snprintf(text, sizeof text, "{\"v\":%s}", rows[i].json);
        if (!kvr_lax_i64(value(s, text), &n) || n != rows[i].is) fail_msg("%s: %lld", rows[i].json, (long long)n);
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(none); i++) {
        int64_t n = 77;
        snprintf(text, sizeof text, "{\"v\":%s}", none[i]);
        if (kvr_lax_i64(value(s, text), &n) || n != 77) fail_msg("%s: %lld", none[i], (long long)n);
    }
    uint64_t u = 77;
    assert_false(kvr_lax_u64(value(s, "{\"v\":-1}"), &u) || kvr_lax_u64(value(s, "{}"), &u) || u != 77);
    assert_true(kvr_lax_u64(value(s, "{\"v\":\"4\"}"), &u) && u == 4);
}

static void flags(void **s)
{
    static const char *const yes[] = {"true", "1", "1.0", "\"TRUE\"", "\"1\"", "\"on\"", "\"t\"", "\"y\"", "\"yes\""};
    static const char *const no[] = {"false", "0", "\"0\"", "\"off\"", "\"N\"", "\"no\"", "\"f\""};
    static const char *const none[] = {"null", "2", "-1", "\"\"", "\" true \"", "\"1.0\"", "\"01\"", "{}", "[]"};
    char text[80];
    for (size_t i = 0; i < KVR_ARRAY_LEN(yes); i++) {
        snprintf(text, sizeof text, "{\"v\":%s}", yes[i]);
        if (!kvr_lax_bool(value(s, text), false)) fail_msg("%s", yes[i]);
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(no); i++) {
        snprintf(text, sizeof text, "{\"v\":%s}", no[i]);
        if (kvr_lax_bool(value(s, text), true)) fail_msg("%s", no[i]);
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(none); i++) {
        snprintf(text, sizeof text, "{\"v\":%s}", none[i]);
        if (!kvr_lax_bool(value(s, text), true) || kvr_lax_bool(value(s, text), false)) fail_msg("%s", none[i]);
    }
}

static int open_parser(void **s)
{
    *s = kvr_json_parser_new();
    return *s ? 0 : -1;
}

static int close_parser(void **s)
{
    kvr_json_parser_free(*s);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),
        cmocka_unit_test(flags),
    };
    return cmocka_run_group_tests(tests, open_parser, close_parser);
}
