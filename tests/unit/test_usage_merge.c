/* SPDX-License-Identifier: Apache-2.0 */
/* Cached tokens in a usage are put right, in answers and in streams cut anywhere; all other bytes stay. */
#include "test.h"

#include <stdio.h>

#include "wire/usage_merge.h"

static const struct kvr_usage_told told = {true, 32}, silent = {false, 0};

static int make_parser(void **s)
{
    *s = kvr_json_parser_new();
    return *s ? 0 : -1;
}

static int drop_parser(void **s)
{
    kvr_json_parser_free(*s);
    return 0;
}

/* The answer as it is to be sent. */
static const char *merged(void **s, const char *answer, const struct kvr_usage_told *by)
{
    static struct kvr_buf out;
    out.len = 0;
    if (!kvr_usage_merge_answer((struct kvr_json_span){answer, answer + strlen(answer)}, *s, by, &out)) {
        assert_int_equal(out.len, 0);
        return answer;
    }
    kvr_buf_add(&out, "", 1);
    return out.data;
}

static void answers(void **s)
{
    static const char *const rows[][3] = {
        /* D's; with P's number; P silent */
        {"{\"a\":1e2, \"usage\": "
         "{\"prompt_tokens\":48,\"prompt_tokens_details\":{\"audio\":0,\"cached_tokens\":47},\"completion_tokens\":3} }\n",
         "{\"a\":1e2, \"usage\": "
         "{\"prompt_tokens\":48,\"prompt_tokens_details\":{\"audio\":0,\"cached_tokens\":32},\"completion_tokens\":3} }\n",
         "{\"a\":1e2, \"usage\": {\"prompt_tokens\":48,\"prompt_tokens_details\":{\"audio\":0},\"completion_tokens\":3} }\n"},
        {"{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":1}}}", "{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":32}}}",
         "{\"usage\":{\"prompt_tokens_details\":{}}}"},
        {" {\"usage\":{}}", " {\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":32}}}", NULL},
        {"{\"usage\":{\"prompt_tokens_details\":null}}", "{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":32}}}", NULL},
        {"{\"usage\":{\"prompt_tokens_details\":{}}}", "{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":32}}}", NULL},
        /* names with escapes, and twice: what is read of two is the last */
        {"{\"us\\u0061ge\":{\"prompt_tokens_details\":{\"cached\\u005ftokens\":1,\"cached_tokens\":2}},\"x\":\"usage\"}",
         "{\"us\\u0061ge\":{\"prompt_tokens_details\":{\"cached\\u005ftokens\":32}},\"x\":\"usage\"}",
         "{\"us\\u0061ge\":{\"prompt_tokens_details\":{}},\"x\":\"usage\"}"},
        {"{\"usage\":1,\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":1}}}",
         "{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":32}}}", "{\"usage\":{\"prompt_tokens_details\":{}}}"},
        /* nothing to change */
        {"{\"choices\":[{\"text\":\"\\\"usage\\\":{}\"}]}", NULL, NULL},
        {"{\"usage\":null}", NULL, NULL},
        {"{\"usage\":[{}]}", NULL, NULL},
        {"{\"x\":{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":1}}}}", NULL, NULL},
        {"{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":1}},}", NULL, NULL},
        {"{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":1", NULL, NULL},
        {"[{\"usage\":{}}]", NULL, NULL},
        {"{}", NULL, NULL},
        {"", NULL, NULL},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        assert_string_equal(merged(s, rows[i][0], &told), rows[i][1] ? rows[i][1] : rows[i][0]);
        assert_string_equal(merged(s, rows[i][0], &silent), rows[i][2] ? rows[i][2] : rows[i][0]);
    }
}

static void large_numbers_stay_exact(void **s)
{
    const struct kvr_usage_told most = {true, UINT64_MAX};
    assert_string_equal(
        merged(s, "{\"usage\":{\"completion_tokens\":1234567890123456789}}", &most),
        "{\"usage\":{\"completion_tokens\":1234567890123456789,\"prompt_tokens_details\":{\"cached_tokens\":18446744073709551615}}}");
}

/* ---- streams -------------------------------------------------------------------------------------------------------- */

#define HEAD      ": a comment of \"usage\":{}\n\nevent: x\ndata: {\"choices\":[{\"text\":\"\\\"usage\\\"\"}],\"usage\":null}\n\n"
#define MIDDLE(x) "data: {\"choices\":[{\"text\":\"a\"}],\"usage\":{\"prompt_tokens_details\":{" x "},\"completion_tokens\":1}}\r\n\r\n"
#define LAST(x)   "data:  {\"choices\":[], \"usage\" :{\"prompt_tokens\":48,\"prompt_tokens_details\":{" x "}}}\n\n"
#define TAIL                                                                                                                               \
    "data: {\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":1}\n\nid: 7\ndat: {\"usage\":{}}\ndata: [DONE]\n\ndata: "              \
    "{\"usage\":{\"prompt_tokens"

static const char stream[] = HEAD MIDDLE("\"cached_tokens\":47") LAST("\"cached_tokens\":47") TAIL;
static const char wanted[] = HEAD MIDDLE("") LAST("\"cached_tokens\":32") TAIL;

/* Pieces that end at each of cuts[n]. */
static void check_stream(void **s, const size_t *cuts, size_t n, const char *in, size_t len, const char *want, size_t want_len)
{
    struct kvr_usage_merge m = {.told = told};
    struct kvr_buf out = {0};
    size_t at = 0;
    for (size_t i = 0; i <= n; i++) {
        size_t end = i < n ? cuts[i] : len;
        char *piece = malloc(end - at + 1);
        memcpy(piece, in + at, end - at);
        kvr_usage_merge_feed(&m, *s, piece, end - at, &out);
        free(piece);
        at = end;
    }
    kvr_usage_merge_end(&m, &out);
    assert_int_equal(out.len, want_len);
    assert_memory_equal(out.data, want, want_len);
    kvr_usage_merge_free(&m);
    kvr_buf_free(&out);
}

static void streams_cut_at_every_byte(void **s)
{
    size_t len = sizeof stream - 1, all[sizeof stream];
    for (size_t cut = 0; cut <= len; cut++) {
        size_t two[] = {cut, KVR_MIN(cut + 3, len)};
        check_stream(s, two, 1, stream, len, wanted, sizeof wanted - 1);
        check_stream(s, two, 2, stream, len, wanted, sizeof wanted - 1);
        all[cut] = cut;
    }
    check_stream(s, all, len + 1, stream, len, wanted, sizeof wanted - 1);
}

static void p_may_tell_late(void **s)
{
    static const char event[] = LAST("\"cached_tokens\":47"), without[] = LAST(""), with[] = LAST("\"cached_tokens\":32");
    struct kvr_usage_merge m = {0};
    struct kvr_buf out = {0};
    kvr_usage_merge_feed(&m, *s, event, sizeof event - 1, &out);
    m.told = told;
    kvr_usage_merge_feed(&m, *s, event, sizeof event - 1, &out);
    assert_int_equal(out.len, sizeof without - 1 + sizeof with - 1);
    assert_memory_equal(out.data, without, sizeof without - 1);
    assert_memory_equal(out.data + sizeof without - 1, with, sizeof with - 1);
    kvr_usage_merge_free(&m);
    kvr_buf_free(&out);
}

/* Bytes that cannot be of a usage are not waited for; of a line of data the beginning is held, and an end is not awaited for ever. */
static void what_is_no_data_is_not_held(void **s)
{
    static const char *const at_once[] = {":", "event: x", "\n", "x", "dat:", "datA", "data: {}\n", "data: {\"usage\":{}}\n"};
    struct kvr_buf out = {0};
    for (size_t i = 0; i < KVR_ARRAY_LEN(at_once); i++) {
        struct kvr_usage_merge m = {0};
        out.len = 0;
        kvr_usage_merge_feed(&m, *s, at_once[i], strlen(at_once[i]), &out);
        assert_int_equal(out.len, strlen(at_once[i]));
        kvr_usage_merge_free(&m);
    }
    struct kvr_usage_merge m = {0};
    out.len = 0;
    kvr_usage_merge_feed(&m, *s, "data: {", 7, &out);
    assert_int_equal(out.len, 0);
    kvr_usage_merge_end(&m, &out);
    assert_int_equal(out.len, 7);
    kvr_usage_merge_free(&m);
    kvr_buf_free(&out);
}

static void the_middle_of_a_line_is_not_taken_for_its_beginning(void **s)
{
    static const char line[] = ": data: {\"usage\":{}}\n";
    for (size_t cut = 0; cut < sizeof line - 1; cut++) check_stream(s, &cut, 1, line, sizeof line - 1, line, sizeof line - 1);
}

/* A line of `len` bytes with its end, which has a usage. */
static char *line_of(size_t len)
{
    static const char head[] = "data: {\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":47}},\"x\":\"", tail[] = "\"}\n";
    char *line = malloc(len);
    memset(line, 'x', len);
    memcpy(line, head, sizeof head - 1);
    memcpy(line + len - (sizeof tail - 1), tail, sizeof tail - 1);
    return line;
}

static void a_line_past_the_limit_passes_unchanged(void **s)
{
    for (size_t over = 0; over < 2; over++) {
        size_t len = KVR_USAGE_LINE_MAX + over, cuts[][2] = {{0, 0}, {len - 1, len}, {len - 3, len - 1}, {KVR_USAGE_LINE_MAX / 2, len - 1}};
        char *line = line_of(len), *want = line_of(len);
        if (!over) memcpy(strstr(want, "47"), "32", 2);
        for (size_t i = 0; i < KVR_ARRAY_LEN(cuts); i++) check_stream(s, cuts[i], 2, line, len, want, len);
        free(line);
        free(want);
    }
    /* the next line is looked at again */
    struct kvr_usage_merge m = {.told = told};
    struct kvr_buf out = {0};
    size_t len = KVR_USAGE_LINE_MAX + 1;
    char *line = line_of(len);
    kvr_usage_merge_feed(&m, *s, line, len - 1, &out);
    assert_int_equal(out.len, 0);
    kvr_usage_merge_feed(&m, *s, "\ndata: {\"usage\":{}}\n", 20, &out);
    assert_int_equal(out.len, len + 19 + sizeof "\"prompt_tokens_details\":{\"cached_tokens\":32}" - 1);
    assert_memory_equal(out.data, line, len);
    free(line);
    kvr_usage_merge_free(&m);
    kvr_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),
        cmocka_unit_test(large_numbers_stay_exact),
        cmocka_unit_test(streams_cut_at_every_byte),
        cmocka_unit_test(p_may_tell_late),
        cmocka_unit_test(what_is_no_data_is_not_held),
        cmocka_unit_test(the_middle_of_a_line_is_not_taken_for_its_beginning),
        cmocka_unit_test(a_line_past_the_limit_passes_unchanged),
    };
    return cmocka_run_group_tests(tests, make_parser, drop_parser);
}
