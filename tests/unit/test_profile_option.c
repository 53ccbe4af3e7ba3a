/* SPDX-License-Identifier: Apache-2.0 */
/* --tokenizer-profile: what is taken, and what an operator is told of the rest. */
#include "test.h"

#include "token/profile_option.h"
#include "token/profiles.h"

static void what_may_be_is_taken(void **)
{
    static const char *const taken[] = {
        NULL,
        "{}",
        "{ \n}",
        "{\"engine\":\"sglang\"}",
        "{ \"engine\" : \"vllm\" ,\t\"content_format\":\"openai\" }",
        "{\"drop_none\":true,\"alias_reasoning\":false,\"developer_to_system\":true,\"typed\":false,\"raw\":false}",
    };
    char why[512];
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) assert_int_equal(kvr_profile_option_check(taken[i], why, sizeof why), 0);
}

/* What the router names as the profile that agrees is what it takes. */
static void every_profile_that_is_tried_is_taken(void **)
{
    char text[KVR_PROFILE_TEXT_MAX], why[512];
    for (size_t i = 0; i < KVR_PROFILES_MAX; i++) {
        kvr_profile_text(i, text);
        assert_int_equal(kvr_profile_option_check(text, why, sizeof why), 0);
    }
}

static void what_may_not_be_is_named_with_what_is_allowed(void **)
{
    static const struct {
        const char *profile, *named;
    } refused[] = {
        {"", "''"},
        {"x", "'x'"},
        {"[]", "'[]'"},
        {"{", "'{'"},
        {"{}x", "'{}x'"},
        {" {}", "' {}'"},
        {"{\"engine\"", "member \"engine\""},
        {"{\"engine\":", "member \"engine\""},
        {"{\"engine\":\"sglang", "member \"engine\""},
        {"{\"engine\":\"sglang\"", "'{\"engine\":\"sglang\"'"},
        {"{\"engine\":\"sglang\",}", "allowed"},
        {"{\"engine\":\"sglang\"}}", "allowed"},
        {"{\"engine\":sglang}", "member \"engine\""},
        {"{\"engine\":\"tgi\"}", "member \"engine\""},
        {"{\"engines\":\"vllm\"}", "member \"engines\""},
        {"{engine:\"vllm\"}", "member engine"},
        {"{\"typed\":true,\"drop_none\":3}", "member \"drop_none\""},
        {"{\"drop_none\":\"true\"}", "member \"drop_none\""},
        {"{\"content_format\":\"list\"}", "member \"content_format\""},
        {"{\"chat_template\":\"x\"}", "member \"chat_template\""},
        {"{\"drop_none\":true \"typed\":true}", "allowed"},
        {"{\"drop_none\":true\\u002c}", "allowed"},
    };
    char why[512];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(kvr_profile_option_check(refused[i].profile, why, sizeof why), -1);
        assert_non_null(strstr(why, "--tokenizer-profile: '"));
        assert_non_null(strstr(why, refused[i].named));
        assert_non_null(strstr(why, "allowed: a JSON object with engine (\"vllm\", \"sglang\")"));
    }
}

static void one_that_is_too_long_is_refused(void **)
{
    char profile[1200], why[64];
    memset(profile, ' ', sizeof profile);
    profile[0] = '{';
    profile[897] = '}';
    profile[898] = 0;
    assert_int_equal(kvr_profile_option_check(profile, why, sizeof why), 0);
    profile[897] = ' ';
    profile[898] = ' ';
    profile[899] = '}';
    profile[900] = 0;
    assert_int_equal(kvr_profile_option_check(profile, why, sizeof why), -1);
    assert_true(strlen(why) < sizeof why);
}

static void an_object_without_members_says_nothing(void **)
{
    assert_false(kvr_profile_option_says(NULL));
    assert_false(kvr_profile_option_says("{  }"));
    assert_true(kvr_profile_option_says("{\"raw\":true}"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_may_be_is_taken),
        cmocka_unit_test(every_profile_that_is_tried_is_taken),
        cmocka_unit_test(what_may_not_be_is_named_with_what_is_allowed),
        cmocka_unit_test(one_that_is_too_long_is_refused),
        cmocka_unit_test(an_object_without_members_says_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
