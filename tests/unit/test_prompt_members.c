/* SPDX-License-Identifier: Apache-2.0 */
/* What members of a body do to its prompt. Each row is what vLLM 0.32 was seen to do: the cached tokens of a third request alike. */
#include "test.h"

#include <string.h>

#include "wire/prompt_members.h"

static struct kvr_prompt_members read_of(void **s, enum kvr_prompt_form form, const char *text)
{
    struct kvr_json root;
    struct kvr_prompt_members m;
    assert_int_equal(kvr_json_parse(*s, text, strlen(text), &root, NULL), 0);
    kvr_prompt_members_read(root, form, &m);
    return m;
}

static const struct row {
    enum kvr_prompt_form form;
    const char *body;
    enum kvr_prompt_certainty certainty;
    bool skips_cache, usage_tells, as_evidence;
} rows[] = {
#define COMPLETION(more) "{\"model\":\"m\",\"prompt\":\"a\"" more "}"
#define CHAT(more)       "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]" more "}"
    {KVR_FORM_COMPLETION, COMPLETION(""), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_COMPLETION, COMPLETION(",\"temperature\":0.5,\"stop\":[\"x\"],\"logprobs\":1,\"best_of\":3,\"user\":\"u\""), KVR_PROMPT_EXACT,
     false, true, true},
    {KVR_FORM_COMPLETION, COMPLETION(",\"echo\":true"), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_COMPLETION, COMPLETION(",\"echo\":true,\"logprobs\":null"), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_COMPLETION, COMPLETION(",\"echo\":true,\"logprobs\":0"), KVR_PROMPT_EXACT, true, true, true},
    {KVR_FORM_COMPLETION, COMPLETION(",\"echo\":\"true\",\"logprobs\":1"), KVR_PROMPT_EXACT, true, true, true},
    {KVR_FORM_COMPLETION, COMPLETION(",\"echo\":1,\"logprobs\":1"), KVR_PROMPT_EXACT, true, true, true},
    {KVR_FORM_COMPLETION, COMPLETION(",\"prompt_logprobs\":0"), KVR_PROMPT_EXACT, true, true, true},
    {KVR_FORM_COMPLETION, COMPLETION(",\"prompt_logprobs\":false"), KVR_PROMPT_EXACT, true, true, true},
    {KVR_FORM_COMPLETION, COMPLETION(",\"prompt_logprobs\":null"), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_CHAT, CHAT(""), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_CHAT, CHAT(",\"logprobs\":true,\"top_logprobs\":1"), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_CHAT, CHAT(",\"echo\":true"), KVR_PROMPT_EXACT, true, true, true},
    {KVR_FORM_CHAT, CHAT(",\"echo\":true,\"top_logprobs\":null"), KVR_PROMPT_EXACT, true, true, true},
    {KVR_FORM_CHAT, CHAT(",\"prompt_logprobs\":0"), KVR_PROMPT_EXACT, true, true, true},
    /* the engine tells the tokens that one of several answers found, which another had just computed */
    {KVR_FORM_COMPLETION, COMPLETION(",\"n\":1"), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_COMPLETION, COMPLETION(",\"n\":2"), KVR_PROMPT_EXACT, false, false, false},
    {KVR_FORM_CHAT, CHAT(",\"n\":\"3\""), KVR_PROMPT_EXACT, false, false, false},
    {KVR_FORM_COMPLETION, COMPLETION(",\"use_beam_search\":true"), KVR_PROMPT_EXACT, false, false, false},
    {KVR_FORM_COMPLETION, COMPLETION(",\"use_beam_search\":false"), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_COMPLETION, "{\"prompt\":[\"a\"]}", KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_COMPLETION, "{\"prompt\":[\"a\",\"b\"]}", KVR_PROMPT_UNKNOWN, false, false, false},
    {KVR_FORM_COMPLETION, "{\"prompt\":[1,2]}", KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_COMPLETION, "{\"prompt\":[[1,2]]}", KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_COMPLETION, "{\"prompt\":[[1],[2]]}", KVR_PROMPT_UNKNOWN, false, false, false},
    /* what makes other tokens */
    {KVR_FORM_COMPLETION, COMPLETION(",\"suffix\":\"b\""), KVR_PROMPT_UNKNOWN, false, true, false},
    {KVR_FORM_COMPLETION, COMPLETION(",\"prompt_embeds\":\"AAAA\""), KVR_PROMPT_UNKNOWN, false, true, false},
    {KVR_FORM_CHAT, CHAT(",\"kv_transfer_params\":{\"prompt_token_ids\":[5]}"), KVR_PROMPT_UNKNOWN, false, true, false},
    {KVR_FORM_CHAT, CHAT(",\"kv_transfer_params\":{\"do_remote_decode\":true}"), KVR_PROMPT_EXACT, false, true, false},
    {KVR_FORM_CHAT, CHAT(",\"extra_key\":\"x\""), KVR_PROMPT_UNKNOWN, false, true, false},
    {KVR_FORM_CHAT, CHAT(",\"lora_path\":\"x\""), KVR_PROMPT_UNKNOWN, false, true, false},
    {KVR_FORM_CHAT, CHAT(",\"cache_salt\":\"x\""), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_CHAT, CHAT(",\"cache_salt\":[\"x\"]"), KVR_PROMPT_UNKNOWN, false, true, false},
    {KVR_FORM_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"u\"}}]}]}",
     KVR_PROMPT_LEADING, false, true, false},
    /* what a client only says of it, and what nobody here knows */
    {KVR_FORM_COMPLETION, COMPLETION(",\"nvext\":{\"token_data\":[1]}"), KVR_PROMPT_EXACT, false, true, false},
    {KVR_FORM_COMPLETION, COMPLETION(",\"nvext\":{\"cache_salt\":\"x\"}"), KVR_PROMPT_EXACT, false, true, false},
    {KVR_FORM_COMPLETION, COMPLETION(",\"nvext\":{\"agent_hints\":{}}"), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_CHAT, CHAT(",\"vllm_xargs\":{\"a\":1}"), KVR_PROMPT_EXACT, false, true, false},
    {KVR_FORM_CHAT, CHAT(",\"tools\":[{}],\"tool_choice\":\"none\""), KVR_PROMPT_EXACT, false, true, false},
    {KVR_FORM_CHAT, CHAT(",\"tools\":[{}],\"tool_choice\":\"auto\""), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_CHAT, CHAT(",\"something_new\":1"), KVR_PROMPT_EXACT, false, true, false},
    {KVR_FORM_CHAT, CHAT(",\"something_new\":null"), KVR_PROMPT_EXACT, false, true, true},
    {KVR_FORM_CHAT, CHAT(",\"n\":1,\"n\":1"), KVR_PROMPT_EXACT, false, true, false},
    {KVR_FORM_CHAT, CHAT(",\"mode\":1"), KVR_PROMPT_EXACT, false, true, false}, /* a name that begins another */
    {KVR_FORM_CHAT, CHAT(",\"models\":1"), KVR_PROMPT_EXACT, false, true, false},
};

static void members_are_what_the_engine_makes_of_them(void **s)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kvr_prompt_members m = read_of(s, rows[i].form, rows[i].body);
        if (m.certainty != rows[i].certainty || m.skips_cache != rows[i].skips_cache || m.usage_tells != rows[i].usage_tells ||
            m.as_evidence != rows[i].as_evidence)
            fail_msg("%s: certainty %d, skips_cache %d, usage_tells %d, as_evidence %d", rows[i].body, m.certainty, m.skips_cache,
                     m.usage_tells, m.as_evidence);
    }
}

static void reports_are_asked_for_in_one_way(void **s)
{
    static const char *const no[] = {"{\"a\":\"full\"}", "{\"kv_cache_report_mode\":\"incremental\"}",
                                     "{\"kv_cache_report_mode\":[\"full\"]}", "\"full\"", "null"};
    for (int i = 0; i < 5; i++) {
        char body[128];
        snprintf(body, sizeof body, COMPLETION(",\"vllm_xargs\":%s"), no[i]);
        assert_false(read_of(s, KVR_FORM_COMPLETION, body).reports);
    }
    assert_true(read_of(s, KVR_FORM_CHAT, CHAT(",\"vllm_xargs\":{\"a\":1,\"kv_cache_report_mode\":\"full\"}")).reports);
    assert_true(read_of(s, KVR_FORM_CHAT, CHAT(",\"vllm_xargs\":{},\"vllm_xargs\":{\"kv_cache_report_mode\":\"full\"}")).reports);
    assert_false(read_of(s, KVR_FORM_CHAT, CHAT("")).reports);
}

static void truncation_is_read_as_the_engine_reads_it(void **s)
{
    struct kvr_prompt_members m = read_of(s, KVR_FORM_COMPLETION, COMPLETION(""));
    assert_int_equal(m.truncation, KVR_TRUNCATE_NOT);
    static const char *const alike[] = {"64", "64.0", "\"64\""};
    for (int i = 0; i < 3; i++) {
        char body[128];
        snprintf(body, sizeof body, COMPLETION(",\"truncate_prompt_tokens\":%s"), alike[i]);
        m = read_of(s, KVR_FORM_COMPLETION, body);
        assert_int_equal(m.truncation, KVR_TRUNCATE_DEFAULT);
        assert_int_equal(m.keep, 64);
    }
    m = read_of(s, KVR_FORM_CHAT, CHAT(",\"truncate_prompt_tokens\":-1,\"truncation_side\":\"right\",\"max_completion_tokens\":0"));
    assert_int_equal(m.truncation, KVR_TRUNCATE_RIGHT);
    assert_int_equal(m.keep, -1);
    assert_false(m.wants_output);
    m = read_of(s, KVR_FORM_CHAT, CHAT(",\"truncate_prompt_tokens\":true,\"truncation_side\":\"left\""));
    assert_int_equal(m.truncation, KVR_TRUNCATE_LEFT);
    assert_int_equal(m.keep, 1);
    assert_true(m.wants_output);
}

static void special_tokens_are_added_to_texts_and_not_to_chats_unless_told(void **s)
{
    assert_true(read_of(s, KVR_FORM_COMPLETION, COMPLETION("")).special_tokens);
    assert_false(read_of(s, KVR_FORM_CHAT, CHAT("")).special_tokens);
    assert_false(read_of(s, KVR_FORM_COMPLETION, COMPLETION(",\"add_special_tokens\":\"off\"")).special_tokens);
    assert_true(read_of(s, KVR_FORM_CHAT, CHAT(",\"add_special_tokens\":1")).special_tokens);
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
        cmocka_unit_test(members_are_what_the_engine_makes_of_them),
        cmocka_unit_test(reports_are_asked_for_in_one_way),
        cmocka_unit_test(truncation_is_read_as_the_engine_reads_it),
        cmocka_unit_test(special_tokens_are_added_to_texts_and_not_to_chats_unless_told),
    };
    return cmocka_run_group_tests(tests, open_parser, close_parser);
}
