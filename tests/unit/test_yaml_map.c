/* SPDX-License-Identifier: Apache-2.0 */
/* Documents that are read with wire/yaml_map.h and wire/entry.h: what is refused, how much of it is told, and in what time. */
#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "wire/entry.h"

static int a_number(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    double *sum = arg, n;
    if (key[0] != 'n') return kvr_yaml_refuse(y, key_node, key, "unknown");
    if (kvr_yaml_get_number(y, v, key, 0, &n)) return -1;
    *sum += n;
    return 0;
}

static int numbers(const struct kvr_yaml *y, yaml_node_t *root, void *arg)
{
    return root ? kvr_yaml_each_key(y, root, "numbers", a_number, arg) : 0;
}

static void collect(void *arg, const char *text)
{
    kvr_buf_printf(arg, "%s|", text);
}

/* All findings, a | behind each. The caller frees it. */
static struct kvr_buf all_of(const char *text, size_t len, double *sum, unsigned *n)
{
    struct kvr_buf told = {0};
    struct kvr_yaml_findings all = {.fn = collect, .arg = &told};
    char err[256];
    *sum = 0;
    kvr_yaml_read(&(struct kvr_yaml_source){"f", text, len, &all}, numbers, sum, err, sizeof err);
    kvr_buf_add(&told, "", 1);
    *n = all.n;
    return told;
}

static void everything_that_is_wrong_is_told_and_the_rest_is_read(void **)
{
    static const char text[] = "n1: 1\nx: 2\nn2: -1\nn1: 5\n[a]: 1\nn3: 4\n";
    double sum;
    unsigned n;
    struct kvr_buf told = all_of(text, sizeof text - 1, &sum, &n);
    assert_string_equal(told.data, "f:2: x: unknown|f:3: n2: a number of at least 0 is expected|f:4: n1: the key occurs twice|"
                                   "f:5: numbers: keys must be texts|");
    assert_int_equal(n, 4);
    assert_true(sum == 5);
    kvr_buf_free(&told);
}

static void only_the_first_is_told_to_who_wants_no_more(void **)
{
    static const char text[] = "x: 2\ny: -1\n";
    double sum = 0;
    char err[256];
    assert_int_equal(kvr_yaml_read(&(struct kvr_yaml_source){"f", text, sizeof text - 1, NULL}, numbers, &sum, err, sizeof err), -1);
    assert_string_equal(err, "f:1: x: unknown");
}

static void no_more_than_a_page_is_told(void **)
{
    struct kvr_buf text = {0};
    double sum;
    unsigned n;
    for (int i = 0; i < 10000; i++) kvr_buf_printf(&text, "x%d: 1\n", i);
    struct kvr_buf told = all_of(text.data, text.len, &sum, &n);
    assert_int_equal(n, KVR_YAML_FINDINGS_MAX);
    assert_non_null(strstr(told.data, "f:64: x63: unknown|"));
    assert_null(strstr(told.data, "f:65:"));
    kvr_buf_free(&told);
    kvr_buf_free(&text);
}

static void refused(const char *text, size_t len, const char *why)
{
    double sum;
    unsigned n;
    struct kvr_buf told = all_of(text, len, &sum, &n);
    assert_string_equal(told.data, why);
    kvr_buf_free(&told);
}

/* A text said again and again. */
static struct kvr_buf times(const char *text, size_t n)
{
    struct kvr_buf b = {0};
    for (size_t i = 0; i < n; i++) kvr_buf_str(&b, text);
    assert_false(b.failed);
    return b;
}

/* Each of these takes the library minutes if it is left to it. The test has no time of its own: it ends, or it does not. */
static void what_takes_quadratic_time_is_refused_before(void **)
{
    static const struct {
        const char *unit;
        size_t n;
        const char *why;
    } cases[] = {
        {"[", 1000000, "f:1: it is nested too deeply; allowed: 32 levels|"},
        {"{a: ", 250000, "f:1: it is nested too deeply; allowed: 32 levels|"},
        {"- ", 400000, "f:1: it is nested too deeply; allowed: 32 levels|"},
        {"- &a x\n", 100000, "f:257: there are too many anchors; allowed: 256|"},
        {"%TAG !a! a\n", 90000, "f:1: there are too many directives (%); allowed: 16|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kvr_buf b = times(cases[i].unit, cases[i].n);
        refused(b.data, b.len, cases[i].why);
        kvr_buf_free(&b);
    }
}

static void one_document_is_read_and_a_second_is_no_secret(void **)
{
    static const char two[] = "---\nn1: 1\n---\nn2: 2\n", tail[] = "n1: 1\n...\n[";
    refused(two, sizeof two - 1, "f:3: a second document begins; one is expected|");
    refused(tail, sizeof tail - 1, "f:3: did not find expected <document start>|");
}

static void a_zero_byte_does_not_end_a_text(void **)
{
    static const char key[] = "\"n1\\0x\": 1\n", value[] = "n1: \"1\\0x\"\n", raw[] = "n1: 1\0\n";
    refused(key, sizeof key - 1, "f:1: numbers: keys must be texts|");
    refused(value, sizeof value - 1, "f:1: n1: a number of at least 0 is expected|");
    refused(raw, sizeof raw - 1, "f:1: control characters are not allowed|");
}

static void a_mapping_takes_over_what_it_does_not_say_itself(void **)
{
    static const struct {
        const char *text, *told;
        double sum;
    } cases[] = {
        {"n1: 1\n<<: {n1: 10, n2: 100}\n", "", 101},
        {"<<: {n1: 10, n2: 100}\nn1: 1\n", "", 101},
        {"<<: [{n1: 1}, {n1: 10, n2: 100}, {n2: 1000, n3: 10000}]\n", "", 10101},
        {"<<: {<<: {n1: 1}}\n", "f:1: <<: a mapping that is taken over cannot take over another one|", 0},
        {"<<: 1\nn1: 1\n", "f:1: <<: a mapping, or a list of mappings, is expected|", 1},
        {"<<: [{n1: 1}, 2]\n", "f:1: <<: a mapping, or a list of mappings, is expected|", 1},
        {"<<: {n1: 1}\n<<: {n2: 1}\n", "f:2: <<: the key occurs twice|", 1},
        {"<<: {n1: 1, n1: 2}\n", "f:1: n1: the key occurs twice|", 1},
        {"<<: {x: 1}\nn1: 1\n", "f:1: x: unknown|", 1},
        {"'<<': {n1: 1}\n", "f:1: <<: unknown|", 0},
        {"n1: &a 2\n<<: &b {<<: *b}\n", "f:2: <<: a mapping that is taken over cannot take over another one|", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double sum;
        unsigned n;
        struct kvr_buf told = all_of(cases[i].text, strlen(cases[i].text), &sum, &n);
        assert_string_equal(told.data, cases[i].told);
        assert_true(sum == cases[i].sum);
        kvr_buf_free(&told);
    }
}

/* ---- files ------------------------------------------------------------------------------------------- */

static void a_pipe_without_a_writer_is_an_empty_file(void **)
{
    char dir[] = "/tmp/yaml_map.XXXXXX", path[64], err[256], *text = NULL;
    size_t len = 1;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/pipe", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(kvr_yaml_load(path, &text, &len, err, sizeof err), 0);
    assert_int_equal(len, 0);
    free(text);
    assert_int_equal(kvr_yaml_load(dir, &text, &len, err, sizeof err), -1);
    assert_non_null(strstr(err, "Is a directory"));
    assert_int_equal(kvr_yaml_load("/dev/zero", &text, &len, err, sizeof err), -1);
    assert_non_null(strstr(err, "larger than 1 MiB"));
    unlink(path);
    rmdir(dir);
}

static void what_is_written_into_a_pipe_is_read_to_its_end(void **)
{
    int ends[2];
    char path[64], err[256], *text = NULL;
    size_t len = 0;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "n1: 1\n", 6), 6);
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    assert_int_equal(kvr_yaml_load(path, &text, &len, err, sizeof err), 0);
    assert_int_equal(len, 6);
    free(text);
    close(ends[0]);
}

/* ---- entries ----------------------------------------------------------------------------------------- */

static struct kvr_buf say(const struct kvr_entry *e)
{
    struct kvr_buf b = {0};
    kvr_buf_printf(&b, "%s", e->head ? e->head : "-");
    for (size_t i = 0; i < e->n; i++)
        kvr_buf_printf(&b, "|%s|%s|%zu", e->parts[i].key, e->parts[i].value ? e->parts[i].value : "(none)", e->parts[i].line);
    kvr_buf_add(&b, "", 1);
    return b;
}

static void a_text_is_split_at_commas_that_have_no_backslash(void **)
{
    static const struct {
        const char *text, *parts;
    } cases[] = {
        {"http://a", "http://a"},
        {"http://a,k=v,taint=a,taint=b", "http://a|k|v|0|taint|a|0|taint|b|0"},
        {"http://a,k=x\\,y,l=1", "http://a|k|x,y|0|l|1|0"},
        {"http://a,k=a\\b=c,", "http://a|k|a\\b=c|0||(none)|0"},
        {",k", "|k|(none)|0"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kvr_entry e;
        assert_int_equal(kvr_entry_parse(cases[i].text, NULL, 0, &e), 0);
        struct kvr_buf b = say(&e);
        assert_string_equal(b.data, cases[i].parts);
        kvr_buf_free(&b);
        kvr_entry_free(&e);
    }
}

static int an_entry(const struct kvr_yaml *y, yaml_node_t *root, void *arg)
{
    return kvr_entry_read(y, root, "worker", "url", arg);
}

static int joined(const struct kvr_yaml *y, yaml_node_t *root, void *arg)
{
    return kvr_entry_join(y, root, "discovery-worker", arg);
}

static void a_mapping_says_the_same_with_lines_and_commas(void **)
{
    static const char text[] = "model: 'a,b'\nurl: http://a\ntaint:\n- x\n- y\n";
    struct kvr_entry e;
    char err[256] = "";
    assert_int_equal(kvr_yaml_read(&(struct kvr_yaml_source){"f", text, sizeof text - 1, NULL}, an_entry, &e, err, sizeof err), 0);
    struct kvr_buf b = say(&e);
    assert_string_equal(b.data, "http://a|model|a,b|1|taint|x|4|taint|y|5");
    assert_string_equal(e.file, "f");
    kvr_buf_free(&b);
    kvr_entry_free(&e);
}

static void a_mapping_without_its_head_or_with_more_than_texts_is_refused(void **)
{
    static const struct {
        const char *text, *err;
    } cases[] = {
        {"model: a\n", "f:1: worker: the key url is missing"},
        {"url: http://a\nmodel: {a: b}\n", "f:2: model: a text or a number is expected"},
        {"url: [http://a]\n", "f:1: url: a text is expected"},
        {"url: http://a\n'a=b': c\n", "f:2: a=b: a key without , and = is expected"},
        {"url: http://a\nurl: http://b\n", "f:2: url: the key occurs twice"},
        {"- a\n", "f:1: worker: a mapping is expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kvr_entry e;
        char err[256] = "";
        assert_int_equal(
            kvr_yaml_read(&(struct kvr_yaml_source){"f", cases[i].text, strlen(cases[i].text), NULL}, an_entry, &e, err, sizeof err), -1);
        assert_string_equal(err, cases[i].err);
    }
}

static void a_mapping_that_is_joined_is_split_again_as_it_was(void **)
{
    static const char text[] = "model: 'a,b'\nevents: tcp://{host}:1\ntp: 2\n", bad[] = "k: 'a\\'\n";
    struct kvr_buf b = {0};
    struct kvr_entry e;
    char err[256] = "";
    assert_int_equal(kvr_yaml_read(&(struct kvr_yaml_source){"f", text, sizeof text - 1, NULL}, joined, &b, err, sizeof err), 0);
    kvr_buf_add(&b, "", 1);
    assert_string_equal(b.data, "model=a\\,b,events=tcp://{host}:1,tp=2");
    struct kvr_buf whole = {0}, parts;
    kvr_buf_printf(&whole, "http://h,%s", b.data);
    assert_int_equal(kvr_entry_parse(whole.data, NULL, 0, &e), 0);
    parts = say(&e);
    assert_string_equal(parts.data, "http://h|model|a,b|0|events|tcp://{host}:1|0|tp|2|0");
    kvr_buf_free(&parts);
    kvr_buf_free(&whole);
    kvr_buf_free(&b);
    kvr_entry_free(&e);
    b = (struct kvr_buf){0};
    assert_int_equal(kvr_yaml_read(&(struct kvr_yaml_source){"f", bad, sizeof bad - 1, NULL}, joined, &b, err, sizeof err), -1);
    assert_string_equal(err, "f:1: k: a value that does not end in \\ is expected");
    kvr_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_that_is_wrong_is_told_and_the_rest_is_read),
        cmocka_unit_test(only_the_first_is_told_to_who_wants_no_more),
        cmocka_unit_test(no_more_than_a_page_is_told),
        cmocka_unit_test(what_takes_quadratic_time_is_refused_before),
        cmocka_unit_test(one_document_is_read_and_a_second_is_no_secret),
        cmocka_unit_test(a_zero_byte_does_not_end_a_text),
        cmocka_unit_test(a_mapping_takes_over_what_it_does_not_say_itself),
        cmocka_unit_test(a_pipe_without_a_writer_is_an_empty_file),
        cmocka_unit_test(what_is_written_into_a_pipe_is_read_to_its_end),
        cmocka_unit_test(a_text_is_split_at_commas_that_have_no_backslash),
        cmocka_unit_test(a_mapping_says_the_same_with_lines_and_commas),
        cmocka_unit_test(a_mapping_without_its_head_or_with_more_than_texts_is_refused),
        cmocka_unit_test(a_mapping_that_is_joined_is_split_again_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
