/* SPDX-License-Identifier: Apache-2.0 */
/* The file of API keys: what is read, and what its author is told of the rest. */
#include "test.h"

#include "app/serve/config/api_keys.h"

static int parse(const char *text, struct api_keys *k, char err[512])
{
    return api_keys_read(&(struct kvr_yaml_source){"k.yaml", text, strlen(text), NULL}, k, err, 512);
}

static void a_file_is_read_with_what_each_key_inherits(void **)
{
    static const char text[] = "default: {requests_per_second: 2, max_concurrent: 9}\n"
                               "models:\n  big: {tokens_per_second: 100, burst_tokens: 7}\n"
                               "anonymous: {max_prompt_tokens: 5}\n"
                               "keys:\n"
                               "  - {name: a, key: first-secret, weight: 2.5, priority_max: 3, models: [m, 'x*'],\n"
                               "     required_taints: [bulk, 'zone=a'], policy_class: slow}\n"
                               "  - name: b\n"
                               "    key_sha256: BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD\n"
                               "    requests_per_second: 50\n    max_body_size: 3KiB\n    expires: 2026-01-02T03:04:05.5+01:00\n";
    struct api_keys k;
    char err[512] = "";
    unsigned char abc[KVR_DIGEST];
    if (parse(text, &k, err)) fail_msg("%s", err);
    assert_int_equal(k.n, 2);
    const struct api_key *a = &k.keys[0], *b = &k.keys[1];
    assert_int_equal(a->required_taints->n, 2);
    assert_string_equal(a->required_taints->names[1], "zone=a");
    assert_string_equal(a->policy_class, "slow");
    assert_true(a->weight == 2.5 && a->priority_max == 3 && a->models_n == 2 && a->expires == INT64_MAX);
    assert_true(a->limits.requests_per_second == 2 && a->limits.burst_requests == 2 && a->limits.max_concurrent == 9);
    assert_true(b->limits.requests_per_second == 50 && b->limits.burst_requests == 50 && b->limits.max_concurrent == 9);
    assert_int_equal(b->limits.max_body_size, 3072);
    assert_int_equal(b->expires, 1767319445); /* 2026-01-02T02:04:05Z */
    assert_true(kvr_digest("abc", 3, abc) && kvr_digest_same(abc, b->digest));
    assert_true(api_key_allows(a, "m") && api_key_allows(a, "xyz") && api_key_allows(a, "x") && !api_key_allows(a, "mm"));
    assert_true(!api_key_allows(a, "") && api_key_allows(b, "") && api_key_allows(b, "whatever"));
    assert_true(k.models_n == 1 && k.models[0].limits.burst_tokens == 7);
    assert_true(k.has_anonymous && k.anonymous.limits.max_prompt_tokens == 5 && k.anonymous.limits.max_concurrent == 9);
    api_keys_free(&k);
}

#define ONE "keys:\n  - {name: a, key: first-secret, "

static void what_may_not_be_is_named_with_its_line_and_what_is_allowed(void **)
{
    static const struct {
        const char *text, *said;
    } refused[] = {
        {"", "k.yaml:1: keys: the file is empty"},
        {"[]", "k.yaml:1: api_keys: a mapping is expected"},
        {"keys: []\n", "k.yaml:1: keys: at least one key"},
        {"keys:\n  - {name: a}\n", "k.yaml:2: key: each key needs key or key_sha256"},
        {"keys:\n  - {key: first-secret}\n", "k.yaml:2: name: each key needs one"},
        {"keys:\n  - {name: a, key: first-secret, key_sha256: 00}\n", "k.yaml:2: key_sha256: either key or key_sha256"},
        {"keys:\n  - {name: a, key_sha256: 00}\n", "k.yaml:2: key_sha256: 64 hexadecimal digits"},
        {"keys:\n  - {name: a, key: 'with a space'}\n", "k.yaml:2: key: 8 to 255 visible"},
        {"keys:\n  - {name: anonymous, key: first-secret}\n", "k.yaml:2: name: letters"},
        {"keys:\n  - {name: _other, key: first-secret}\n", "k.yaml:2: name: letters"},
        {"keys:\n  - {name: \"a\\\"b\", key: first-secret}\n", "k.yaml:2: name: letters"},
        {ONE "burst_requests: 4}\n", "k.yaml:2: burst_requests: needs requests_per_second"},
        {ONE "requests_per_second: 1, burst_requests: 0.5}\n", "k.yaml:2: burst_requests: at least 1"},
        {ONE "tokens_per_second: -1}\n", "k.yaml:2: tokens_per_second: a number of at least 0"},
        {ONE "max_concurrent: 0}\n", "k.yaml:2: max_concurrent: a number of at least 1"},
        {ONE "max_concurrent: 1.5}\n", "k.yaml:2: max_concurrent: a whole number"},
        {ONE "max_body_size: 3MB}\n", "k.yaml:2: max_body_size: a size in bytes"},
        {ONE "required_taints: []}\n", "k.yaml:2: required_taints: at least one taint"},
        {ONE "required_taints: [a, b, c, d, e, f, g, h, i]}\n", "k.yaml:2: required_taints: at most 8 taints"},
        {ONE "models: []}\n", "k.yaml:2: models: at least one model"},
        {ONE "models: ['a*b']}\n", "k.yaml:2: models: a * is allowed at the end only"},
        {ONE "weight: 0}\n", "k.yaml:2: weight: a number of at least 0.001"},
        {ONE "weight: 1e9}\n", "k.yaml:2: weight: a number of 0.001 to 1000"},
        {ONE "expires: 2026-02-29}\n", "k.yaml:2: expires: a date"},
        {ONE "expires: 2026-02-28T25:00:00Z}\n", "k.yaml:2: expires: a date"},
        {ONE "expires: 2026-02-28T23:00:00}\n", "k.yaml:2: expires: a date"},
        {"keys:\n  - {name: a, key:first-secret}\n", "k.yaml:2: key: unknown key of a key; allowed: name, key,"},
        {ONE "admin: true}\n", "k.yaml:2: admin: unknown key of a key; allowed: name, key,"},
        {"anonymous: {name: x}\n", "k.yaml:1: name: unknown key of `anonymous`; allowed: models,"},
        {"anonymous: {}\ndefault: {weight: 3}\n", "k.yaml:2: weight: unknown key of `default`; allowed: requests_per_second"},
        {"anonymous: {}\nmodels: {m: {max_body_size: 3}}\n", "k.yaml:2: max_body_size: unknown key of a model"},
        {ONE "}\n  - {name: a, key: other-secret}\n", "k.yaml:3: name: the key of line 2"},
        {ONE "}\n  - {name: b, key: first-secret}\n", "k.yaml:3: key: the key of line 2"},
    };
    struct api_keys k;
    for (size_t i = 0; i < KVR_ARRAY_LEN(refused); i++) {
        char err[512] = "";
        assert_int_equal(parse(refused[i].text, &k, err), -1);
        if (!strstr(err, refused[i].said)) fail_msg("'%s' is not in: %s", refused[i].said, err);
        assert_null(strstr(err, "-secret"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_read_with_what_each_key_inherits),
        cmocka_unit_test(what_may_not_be_is_named_with_its_line_and_what_is_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
