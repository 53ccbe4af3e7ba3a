/* SPDX-License-Identifier: Apache-2.0 */
/* The file of models, and the draw among targets: app/serve/config/models_file.h. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "app/serve/config/models_file.h"
#include "base/buf.h"

enum { SESSIONS = 20000 };

static struct models_file read_or_fail(const char *text)
{
    struct models_file f;
    char err[512] = "";
    if (models_file_read(&(struct kvr_yaml_source){"m.yaml", text, strlen(text), NULL}, &f, err, sizeof err)) fail_msg("%s", err);
    return f;
}

static const char *draw(const struct models_file *f, int session)
{
    char s[16];
    int n = snprintf(s, sizeof s, "s%d", session);
    return models_file_resolve(f, "m", s, (size_t)n);
}

static void shares_are_the_weights(void **)
{
    struct models_file f =
        read_or_fail("models:\n  m: {targets: [{model: m, weight: 95}, {model: n, weight: 5}, {model: o, weight: 0}]}\n");
    size_t n = 0;
    for (int i = 0; i < SESSIONS; i++) {
        assert_string_not_equal(draw(&f, i), "o");
        n += !strcmp(draw(&f, i), "n");
    }
    assert_in_range(n, 846, 1154); /* 1000, and 5 deviations of a binomial share (30.8) */
    models_file_free(&f);
}

static void the_order_of_targets_does_not_matter(void **)
{
    struct models_file a = read_or_fail("models: {m: {targets: [{model: m, weight: 7}, {model: n, weight: 2}, {model: o, weight: 1}]}}");
    struct models_file b = read_or_fail("models: {m: {targets: [{model: o, weight: 10}, {model: m, weight: 70}, {model: n, weight: 20}]}}");
    for (int i = 0; i < SESSIONS; i++) assert_string_equal(draw(&a, i), draw(&b, i));
    models_file_free(&a);
    models_file_free(&b);
}

static void a_higher_weight_takes_sessions_and_moves_no_other(void **)
{
    struct models_file a = read_or_fail("models: {m: {targets: [{model: m, weight: 90}, {model: n, weight: 5}, {model: o, weight: 5}]}}");
    struct models_file b = read_or_fail("models: {m: {targets: [{model: m, weight: 90}, {model: n, weight: 15}, {model: o, weight: 5}]}}");
    size_t moved = 0;
    for (int i = 0; i < SESSIONS; i++) {
        if (!strcmp(draw(&a, i), draw(&b, i))) continue;
        assert_string_equal(draw(&b, i), "n");
        moved++;
    }
    assert_in_range(moved, 1500, 1950); /* 15/110 - 5/100 of 20,000 are 1,727 */
    models_file_free(&a);
    models_file_free(&b);
}

static void a_draw_is_the_same_in_every_process(void **)
{
    struct models_file f = read_or_fail("models: {m: {targets: [{model: m, weight: 1}, {model: n, weight: 1}]}}");
    char drawn[33] = ""; /* the expected ones are computed by another program from what models_file.h says */
    for (int i = 0; i < 32; i++) drawn[i] = *draw(&f, i);
    assert_string_equal(drawn, "nmnmnnmmmnmmnnmnmmmmmmnmnmnmmmnn");
    models_file_free(&f);
}

static void mistakes_are_named_with_line_and_key(void **)
{
    static const struct {
        const char *text, *err;
    } cases[] = {
        {"", "m.yaml:1: models: the file is empty; the key is expected"},
        {"model: {}", "m.yaml:1: model: unknown key; allowed: models"},
        {"models:\n  a: {alias: b}", "m.yaml:2: alias: unknown key of a model; allowed: alias_of, targets, fallback, fallback_on, options"},
        {"models:\n  a: {alias_of: \"b\\r\\nx: y\"}", "m.yaml:2: alias_of: a name of printable ASCII without spaces is expected"},
        {"models:\n  a: {alias_of: null}", "m.yaml:2: alias_of: the name of a model is expected; one that is null has quotes"},
        {"models:\n  \"a\\0b\": {alias_of: c}", "m.yaml:2: models: keys must be texts"},
        {"models:\n  a: {alias_of: ''}", "m.yaml:2: alias_of: a text of 1 to 127 characters is expected"},
        {"models:\n  a: {alias_of: b, targets: [{model: c, weight: 1}]}", "m.yaml:2: targets: alias_of and targets exclude each other"},
        {"models:\n  a:\n    targets: [{model: c}]", "m.yaml:3: targets: each target needs model and weight"},
        {"models:\n  a:\n    targets: []", "m.yaml:3: targets: a target with a weight above 0 is expected"},
        {"models:\n  a:\n    targets: [{model: c, weight: 0}]", "m.yaml:3: targets: a target with a weight above 0 is expected"},
        {"models:\n  a:\n    targets: [{model: c, weight: -1}]", "m.yaml:3: weight: a number of at least 0 is expected"},
        {"models:\n  a:\n    targets: [{model: c, weight: 1e7}]", "m.yaml:3: weight: a number from 0 to 1000000 is expected"},
        {"models:\n  a:\n    targets: [{model: c, weight: 1}, {model: c, weight: 1}]", "m.yaml:3: c: the target occurs twice"},
        {"models:\n  a: {fallback: [b], fallback_on: [slow]}", "m.yaml:2: fallback_on: allowed: unavailable, overloaded"},
        {"models:\n  a: {fallback: [b], fallback_on: []}", "m.yaml:2: fallback_on: one of unavailable, overloaded is expected, or both"},
        {"models:\n  a: {fallback_on: [overloaded]}", "m.yaml:2: a: fallback_on needs fallback"},
        {"models:\n  a: {fallback: [b, b]}", "m.yaml:2: b: the fallback occurs twice"},
        {"models:\n  a:\n    options: {router-tempature: 1}",
         "m.yaml:3: router-tempature: no option that a model can have; allowed: router-mode, router-kv-overlap-score-credit, "
         "router-prefill-load-scale, shared-cache-multiplier, router-temperature, queue-timeout, first-token-timeout, stall-timeout, "
         "total-timeout, max-retries"},
        {"models:\n  a: {options: {router-mode: direct}}", "m.yaml:2: router-mode: kv, round-robin, random or least-loaded is expected"},
        {"models:\n  a: {options: {max-retries: 1.5}}", "m.yaml:2: max-retries: a whole number from 0 to 7 is expected"},
        {"models:\n  a: {options: [1]}", "m.yaml:2: options: a mapping is expected"},
        {"models:\n  a: {alias_of: b}\n  a: {alias_of: c}", "m.yaml:3: a: the key occurs twice"},
        {"models: {a: {alias_of: b}, b: {alias_of: a}}", "m.yaml:1: a: its targets lead in a circle, or over more than 8 steps"},
        {"models: {m: {targets: [{model: m, weight: 1}, {model: n, weight: 1}]}, n: {alias_of: m}}",
         "m.yaml:1: m: its targets lead in a circle, or over more than 8 steps"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct models_file f;
        char err[512] = "";
        assert_int_equal(
            models_file_read(&(struct kvr_yaml_source){"m.yaml", cases[i].text, strlen(cases[i].text), NULL}, &f, err, sizeof err), -1);
        assert_string_equal(err, cases[i].err);
    }
}

static void names_are_found_whatever_their_order(void **)
{
    struct models_file f = read_or_fail("models: {z: {alias_of: m}, a: {fallback: [z2, z1]}, k: {}}");
    assert_int_equal(f.n, 3);
    assert_string_equal(models_file_resolve(&f, "z", "", 0), "m");
    assert_string_equal(models_file_resolve(&f, "a", "", 0), "a");
    assert_string_equal(models_file_find(&f, "a")->fallbacks[1], "z1");
    assert_non_null(models_file_find(&f, "k"));
    assert_null(models_file_find(&f, "m"));
    models_file_free(&f);
}

static void chains_of_eight_steps_are_followed_and_no_longer_ones(void **)
{
    char text[512] = "models: {a8: {alias_of: end}", err[512];
    struct models_file f;
    for (int i = 7; i > 0; i--) snprintf(text + strlen(text), sizeof text - strlen(text), ", a%d: {alias_of: a%d}", i, i + 1);
    size_t len = strlen(text);
    snprintf(text + len, sizeof text - len, "}");
    f = read_or_fail(text);
    assert_string_equal(models_file_resolve(&f, "a1", "", 0), "end");
    models_file_free(&f);
    snprintf(text + len, sizeof text - len, ", a0: {alias_of: a1}}");
    assert_int_equal(models_file_read(&(struct kvr_yaml_source){"m.yaml", text, strlen(text), NULL}, &f, err, sizeof err), -1);
    assert_string_equal(err, "m.yaml:1: a0: its targets lead in a circle, or over more than 8 steps");
}

static void what_is_written_is_read_as_the_same(void **)
{
    static const char text[] = "models:\n  chat: {alias_of: m}\n  \"q\\\"\\\\\": {fallback: [a, b], fallback_on: [overloaded]}\n"
                               "  m: {targets: [{model: m, weight: 0.1}, {model: n, weight: 0.30000000000000004}], fallback: [s], "
                               "fallback_on: [overloaded, unavailable]}\n  z: "
                               "{options: {router-mode: random, router-temperature: 0.1, max-retries: 0}}\n";
    struct models_file a = read_or_fail(text), b;
    struct kvr_buf once = {0}, twice = {0};
    models_file_write(&a, &once);
    kvr_buf_add(&once, "", 1);
    assert_string_equal(
        once.data,
        "{\"models\":{\"chat\":{\"alias_of\":\"m\"},\"m\":{\"targets\":[{\"model\":\"m\",\"weight\":0.10000000000000001},"
        "{\"model\":\"n\",\"weight\":0.30000000000000004}],\"fallback\":[\"s\"],\"fallback_on\":[\"unavailable\",\"overloaded\"]},"
        "\"q\\\"\\\\\":{\"fallback\":[\"a\",\"b\"],\"fallback_on\":[\"overloaded\"]},\"z\":{\"options\":{\"router-mode\":\"random\","
        "\"router-temperature\":"
        "0.10000000000000001,\"max-retries\":0}}}}");
    b = read_or_fail(once.data);
    models_file_write(&b, &twice);
    kvr_buf_add(&twice, "", 1);
    assert_string_equal(once.data, twice.data);
    assert_true(a.rules[1].targets[1].weight == b.rules[1].targets[1].weight);
    models_file_free(&a);
    models_file_free(&b);
    kvr_buf_free(&once);
    kvr_buf_free(&twice);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_the_weights),
        cmocka_unit_test(the_order_of_targets_does_not_matter),
        cmocka_unit_test(a_higher_weight_takes_sessions_and_moves_no_other),
        cmocka_unit_test(a_draw_is_the_same_in_every_process),
        cmocka_unit_test(mistakes_are_named_with_line_and_key),
        cmocka_unit_test(chains_of_eight_steps_are_followed_and_no_longer_ones),
        cmocka_unit_test(what_is_written_is_read_as_the_same),
        cmocka_unit_test(names_are_found_whatever_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
