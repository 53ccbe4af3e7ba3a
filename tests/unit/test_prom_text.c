/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <math.h>
#include "wire/prom_page.h"
#include "wire/prom_text.h"

struct seen {
    size_t n;
    double sum;
    char last[64];
};

static void on_sample(void *ctx, const struct kvr_prom_sample *s)
{
    struct seen *k = ctx;
    k->n++;
    k->sum += s->value;
    snprintf(k->last, sizeof k->last, "%.*s", (int)s->name.len, s->name.ptr);
}

static int parse(const char *line, struct kvr_prom_sample *out)
{
    return kvr_prom_line(line, strlen(line), out);
}

static void lines_that_are_samples(void **)
{
    struct kvr_prom_sample s;
    uint64_t rank;
    assert_int_equal(parse("up 1", &s), 1);
    assert_true(kvr_prom_is(s.name, "up") && s.value == 1 && s.labels_n == 0);
    assert_int_equal(parse("vllm:num_requests_running{engine=\"3\",model_name=\"a b\"} 4.0\r", &s), 1);
    assert_true(kvr_prom_is(s.name, "vllm:num_requests_running") && s.value == 4 && s.labels_n == 2);
    assert_true(kvr_prom_is(kvr_prom_label(&s, "model_name"), "a b"));
    assert_true(kvr_prom_u64(kvr_prom_label(&s, "engine"), &rank) && rank == 3);
    assert_null(kvr_prom_label(&s, "dp_rank").ptr);
    assert_int_equal(parse("  a { b = \"c\" , d=\"\" , }\t-1.5e-3  1700000000000 ", &s), 1);
    assert_true(s.labels_n == 2 && s.value == -1.5e-3 && kvr_prom_is(s.labels[1].value, ""));
    assert_int_equal(parse("a{b=\"}\\\" 7\"} +Inf # {trace=\"x\"} 1", &s), 1);
    assert_true(s.value > 1e308 && kvr_prom_is(s.labels[0].value, "}\\\" 7"));
    assert_true(parse("a NaN", &s) == 1 && s.value != s.value);
    assert_true(parse("a{} 7", &s) == 1 && s.labels_n == 0);
}

static void lines_that_are_none(void **)
{
    static const char *const bad[] = {"a",        "1a 1",          "a b",         "a{ 1",      "a{b} 1", "a{b=\"c} 1", "a{b=\"c\\\"} 1",
                                      "a{b=c} 1", "a{b:c=\"\"} 1", "a 0x10",      "a 1 2 3",   "a inf",  "a 1e",       "a{b=\"\"c=\"\"} 1",
                                      "a{,} 1",   "a \"1\"",       "{a=\"b\"} 1", "a 1 later", "\xff 1", "a{b=\"c\"}"};
    struct kvr_prom_sample s;
    char many[2000] = "a{", line[80];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(parse(bad[i], &s), -KVR_EFORMAT);
    assert_int_equal(parse("", &s), 0);
    assert_int_equal(parse("   ", &s), 0);
    assert_int_equal(parse("# HELP a b", &s), 0);
    for (int i = 0; i <= KVR_PROM_LABELS_MAX; i++) {
        snprintf(line, sizeof line, "l%d=\"\",", i);
        strncat(many, line, sizeof many - strlen(many) - 1);
    }
    strncat(many, "} 1", sizeof many - strlen(many) - 1);
    assert_int_equal(parse(many, &s), -KVR_EFORMAT);
}

static void pieces_of_any_size_are_the_same(void **)
{
    static const char text[] = "# TYPE a gauge\na{b=\"1\"} 1\n\na{b=\"2\"} 2\nbroken\nb 3";
    for (size_t step = 1; step < sizeof text; step++) {
        struct seen k = {0};
        static struct kvr_prom_reader r;
        r = (struct kvr_prom_reader){.fn = on_sample, .ctx = &k};
        for (size_t at = 0; at < sizeof text - 1; at += step) kvr_prom_feed(&r, text + at, KVR_MIN(step, sizeof text - 1 - at));
        assert_int_equal(k.n, 2);
        kvr_prom_end(&r);
        assert_true(k.n == 3 && k.sum == 6 && r.samples == 3 && r.malformed == 1);
        assert_string_equal(k.last, "b");
    }
}

static void an_endless_line_is_passed_over_and_counted(void **)
{
    static char block[1000];
    static struct kvr_prom_reader r;
    struct seen k = {0};
    r = (struct kvr_prom_reader){.fn = on_sample, .ctx = &k};
    memset(block, 'a', sizeof block);
    for (int i = 0; i < 10000; i++) kvr_prom_feed(&r, block, sizeof block);
    assert_true(r.malformed == 1 && k.n == 0 && r.part_len <= KVR_PROM_LINE_MAX);
    kvr_prom_feed(&r, " 1\nup 1\n", 8);
    assert_true(r.malformed == 1 && k.n == 1);
}

static void a_value_written_is_the_value_read(void **)
{
    static const char *const values[] = {"", "plain", "a\"b\\c\nd", "\\n", "\\", "\"", "{},= #"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct kvr_buf b = {0};
        struct kvr_prom_page page = {.out = &b};
        struct kvr_prom_sample s;
        char back[64];
        kvr_prom_family(&page, "", "a", "gauge", "");
        b.len = 0;
        kvr_prom_put_u64(&page, KVR_PROM_PAIRS(KVR_PROM_TEXT("b", values[i])), 1);
        assert_int_equal(kvr_prom_line(b.data, b.len - 1, &s), 1);
        long n = kvr_prom_unescape(s.labels[0].value, back, sizeof back);
        assert_true(n == (long)strlen(values[i]) && memcmp(back, values[i], (size_t)n) == 0);
        assert_true(n == 0 || kvr_prom_unescape(s.labels[0].value, back, (size_t)n - 1) == -KVR_ELIMIT);
        kvr_buf_free(&b);
    }
}

static void a_page_is_families_of_samples(void **)
{
    struct kvr_buf b = {0};
    struct kvr_prom_page page = {.out = &b};
    struct kvr_histogram h = {0};
    kvr_prom_one_u64(&page, "kvroute_", "a_total", "counter", "One\nof \\ \"many\"", UINT64_MAX);
    kvr_prom_family(&page, "kvroute_", "b", "gauge", "B");
    kvr_prom_put_double(&page, KVR_PROM_PAIRS(KVR_PROM_RANK(UINT64_MAX, 0), KVR_PROM_TEXT("of", "x")), 0.1);
    kvr_prom_put_double(&page, KVR_PROM_NONE, 1e15);
    kvr_prom_put_double(&page, KVR_PROM_NONE, 1.0 / 3);
    kvr_prom_put_double(&page, KVR_PROM_NONE, NAN);
    kvr_prom_put_double(&page, KVR_PROM_NONE, -INFINITY);
    kvr_histogram_init(&h, 0.5, 2, 2);
    for (int i = 0; i < 5; i++) kvr_histogram_add(&h, 0.5 * i); /* 0, 0.5 | 1 | 1.5, 2 */
    kvr_histogram_add(&h, -1);
    kvr_prom_family(&page, "", "h", "histogram", "H");
    kvr_prom_put_histogram(&page, KVR_PROM_PAIRS(KVR_PROM_TEXT("l", "m")), &h);
    kvr_buf_add(&b, "", 1);
    assert_string_equal(b.data, "# HELP kvroute_a_total One\\nof \\\\ \"many\"\n# TYPE kvroute_a_total counter\n"
                                "kvroute_a_total 18446744073709551615\n"
                                "# HELP kvroute_b B\n# TYPE kvroute_b gauge\n"
                                "kvroute_b{worker_id=\"18446744073709551615\",dp_rank=\"0\",of=\"x\"} 0.1\n"
                                "kvroute_b 1e+15\nkvroute_b 0.33333333333333331\nkvroute_b NaN\nkvroute_b -Inf\n"
                                "# HELP h H\n# TYPE h histogram\n"
                                "h_bucket{l=\"m\",le=\"0.5\"} 3\nh_bucket{l=\"m\",le=\"1\"} 4\nh_bucket{l=\"m\",le=\"+Inf\"} 6\n"
                                "h_sum{l=\"m\"} 5\nh_count{l=\"m\"} 6\n");
    kvr_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_that_are_samples),
        cmocka_unit_test(lines_that_are_none),
        cmocka_unit_test(pieces_of_any_size_are_the_same),
        cmocka_unit_test(an_endless_line_is_passed_over_and_counted),
        cmocka_unit_test(a_value_written_is_the_value_read),
        cmocka_unit_test(a_page_is_families_of_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
