/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine is asked for the tokens of a request: what makes the prompt, as it is written, and nothing else. The rows were checked
 * against vLLM 0.32: /tokenize of the question gave the tokens that the request was computed with. */
#include "test.h"

#include "wire/json.h"
#include "wire/prompt_ids.h"
#include "wire/prompt_question.h"
#include "wire/prompt_tokens.h"
#include "wire/tokenize_body.h"

static struct kvr_json_span span(const char *text)
{
    return (struct kvr_json_span){text, text + strlen(text)};
}

static void check(void **s, enum kvr_prompt_form form, const char *body, const char *question, enum kvr_prompt_certainty certainty)
{
    struct kvr_buf out = {0};
    struct kvr_json root;
    enum kvr_prompt_certainty found = KVR_PROMPT_EXACT;
    bool made = kvr_tokenize_body(span(body), form, &out, &found);
    kvr_buf_add(&out, "", 1);
    if (made != (question != NULL) || (made && strcmp(out.data, question)) || found != certainty)
        fail_msg("%s\n  made %d, certainty %d: %s\n  wanted %s", body, made, found, out.data, question ? question : "nothing");
    if (made) assert_int_equal(kvr_json_parse(*s, out.data, out.len - 1, &root, NULL), 0);
    kvr_buf_free(&out);
}

#define EXACT(form, body, question)   check(s, KVR_FORM_##form, body, question, KVR_PROMPT_EXACT)
#define UNKNOWN(form, body, question) check(s, KVR_FORM_##form, body, question, KVR_PROMPT_UNKNOWN)
#define USER(text)                    "{\"role\":\"user\",\"content\":" text "}"

static void check_sglang(void **, enum kvr_prompt_form form, const char *body, const char *question)
{
    struct kvr_buf out = {0};
    enum kvr_prompt_certainty certainty = KVR_PROMPT_EXACT;
    assert_int_equal(kvr_tokenize_body_sglang(span(body), form, &out, &certainty), question != NULL);
    kvr_buf_add(&out, "", 1);
    if (question) assert_string_equal(out.data, question);
    kvr_buf_free(&out);
}

static void an_sglang_is_asked_without_what_its_chat_does_not_read(void **s)
{
    check_sglang(s, KVR_FORM_CHAT,
                 "{\"documents\":[],\"reasoning_effort\":\"low\",\"messages\":[{\"reasoning_content\":\"r\"}],\"tool_choice\":\"none\","
                 "\"add_generation_prompt\":false,\"add_special_tokens\":true,\"seed\":1,\"model\":\"m\"}",
                 "{\"model\":\"m\",\"messages\":[{\"reasoning_content\":\"r\"}],\"tool_choice\":\"none\",\"reasoning_effort\":\"low\"}");
    check_sglang(s, KVR_FORM_CHAT, "{\"messages\":\"x\"}", NULL);
    check_sglang(s, KVR_FORM_COMPLETION, "{\"prompt\":\"a\",\"add_special_tokens\":false}", "{\"prompt\":\"a\"}");
    check_sglang(s, KVR_FORM_GENERATE, "{\"text\":\"a\"}", "{\"prompt\":\"a\"}");
}

static void completions_are_asked_for_their_prompt(void **s)
{
    EXACT(COMPLETION, "{\"model\":\"m\",\"prompt\":\"a\\u00e9\\n\",\"max_tokens\":1,\"temperature\":0.1}",
          "{\"model\":\"m\",\"prompt\":\"a\\u00e9\\n\"}");
    EXACT(COMPLETION, " { \"prompt\" : \"a\" , \"add_special_tokens\" : false } ", "{\"prompt\":\"a\",\"add_special_tokens\":false}");
    EXACT(COMPLETION, "{\"prompt\":[ \"one\" ]}", "{\"prompt\":\"one\"}");
    UNKNOWN(COMPLETION, "{\"prompt\":[\"one\",\"two\"]}", "{\"prompt\":\"one\"}");
    EXACT(COMPLETION, "{\"prompt\":[1,2]}", NULL);
    EXACT(COMPLETION, "{\"prompt\":[]}", NULL);
    EXACT(COMPLETION, "{\"prompt\":null}", NULL);
    EXACT(COMPLETION, "{\"pr\\u006fmpt\":\"x\"}", NULL); /* names in escapes are not read */
    EXACT(GENERATE, "{\"text\":\"a\",\"sampling_params\":{}}", "{\"prompt\":\"a\"}");
}

static void chats_are_asked_for_all_that_their_template_sees(void **s)
{
    EXACT(CHAT, "{\"messages\":[" USER("\"a\"") "],\"model\":\"m\",\"seed\":1,\"tools\":[{\"x\":1e0}]}",
          "{\"model\":\"m\",\"messages\":[" USER("\"a\"") "],\"tools\":[{\"x\":1e0}]}");
    EXACT(CHAT, "{\"messages\":[" USER("\"a\"") "],\"reasoning_effort\":\"high\",\"documents\":[{}]}",
          "{\"messages\":[" USER(
              "\"a\"") "],\"chat_template_kwargs\":{\"documents\":[{}],\"reasoning_effort\":\"high\",\"enable_thinking\":true}}");
    EXACT(CHAT, "{\"messages\":[" USER("\"a\"") "],\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"x\":[1, 2]}}",
          "{\"messages\":[" USER(
              "\"a\"") "],\"chat_template_kwargs\":{\"x\":[1, 2],\"reasoning_effort\":\"none\",\"enable_thinking\":false}}");
    EXACT(CHAT, "{\"messages\":[" USER("\"a\"") "],\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"enable_thinking\":null}}",
          "{\"messages\":[" USER("\"a\"") "],\"chat_template_kwargs\":{\"enable_thinking\":null,\"reasoning_effort\":\"low\"}}");
    EXACT(CHAT, "{\"messages\":[{\"role\":\"assistant\",\"reasoning_content\":\"r\",\"content\":\"a\"}]}",
          "{\"messages\":[{\"role\":\"assistant\",\"reasoning\":\"r\",\"content\":\"a\"}]}");
    EXACT(CHAT, "{\"messages\":[{\"reasoning_content\":\"r\",\"reasoning\":\"s\"}]}", "{\"messages\":[{\"reasoning\":\"s\"}]}");
    EXACT(CHAT, "{\"messages\":[{\"reasoning_content\":\"r\",\"reasoning\":null}]}", "{\"messages\":[{\"reasoning\":\"r\"}]}");
    EXACT(CHAT, "{\"messages\":[" USER("\"a\"") "],\"messages\":[]}", NULL);
}

static void responses_are_the_chat_that_the_engine_makes_of_them(void **s)
{
#define RESPONSES(messages, more) "{\"model\":\"m\",\"messages\":[" messages "],\"add_special_tokens\":true" more "}"
    EXACT(RESPONSES, "{\"model\":\"m\",\"input\":\"a\",\"instructions\":\"i\",\"temperature\":1}",
          RESPONSES("{\"role\":\"system\",\"content\":\"i\"}," USER("\"a\""), ""));
    EXACT(RESPONSES, "{\"model\":\"m\",\"input\":\"a\",\"instructions\":\"\",\"reasoning\":{\"effort\":\"low\"}}",
          RESPONSES(USER("\"a\""), ",\"chat_template_kwargs\":{\"reasoning_effort\":\"low\",\"enable_thinking\":true}"));
    EXACT(RESPONSES, "{\"model\":\"m\",\"input\":[" USER("[{\"type\":\"input_text\",\"text\":\"a\"}]") "]}",
          RESPONSES(USER("[{\"type\":\"text\",\"text\":\"a\"}]"), ""));
    UNKNOWN(
        RESPONSES,
        "{\"model\":\"m\",\"input\":[{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"b\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"o\"}]}",
        RESPONSES(
            "{\"role\":\"assistant\",\"content\":\"b\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\","
            "\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"o\"}",
            ""));
    EXACT(RESPONSES, "{\"model\":\"m\",\"input\":[{\"role\":\"assistant\",\"content\":\"b\",\"status\":\"incomplete\"}]}",
          RESPONSES("{\"role\":\"assistant\",\"content\":\"b\"}", ",\"add_generation_prompt\":false,\"continue_final_message\":true"));
    EXACT(RESPONSES,
          "{\"model\":\"m\",\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{},\"strict\":true}]}",
          RESPONSES(USER("\"a\""), ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{},\"strict\":true}}]"));
    UNKNOWN(RESPONSES, "{\"model\":\"m\",\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}]}",
            RESPONSES(USER("\"a\""), ",\"tools\":[]"));
    UNKNOWN(RESPONSES, "{\"model\":\"m\",\"input\":[" USER("\"a\"") ",{\"type\":\"reasoning\"}]}", RESPONSES(USER("\"a\""), ""));
    EXACT(RESPONSES, "{\"model\":\"m\",\"input\":\"a\",\"previous_response_id\":\"r\"}", NULL);
}

static void messages_are_the_chat_that_the_engine_makes_of_them(void **s)
{
#define MESSAGES(messages, more) "{\"model\":\"m\",\"messages\":[" messages "]" more "}"
    EXACT(MESSAGES, MESSAGES(USER("\"a\""), ",\"max_tokens\":1,\"system\":\"s\""),
          MESSAGES("{\"role\":\"system\",\"content\":\"s\"}," USER("\"a\""), ""));
    EXACT(MESSAGES,
          MESSAGES(USER("[{\"type\":\"text\",\"text\":\"a\"}]"), ",\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: "
                                                                 "1\"},{\"type\":\"text\",\"text\":\"s\"},{\"type\":\"text\","
                                                                 "\"text\":\"t\\n\"}]"),
          MESSAGES("{\"role\":\"system\",\"content\":\"st\\n\"}," USER("\"a\""), ""));
    EXACT(MESSAGES, MESSAGES(USER("[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{}},{\"type\":\"text\",\"text\":\"b\"}]"), ""),
          MESSAGES(USER("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]"), ""));
    EXACT(MESSAGES,
          MESSAGES("{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"h\"},{\"type\":\"text\",\"text\":\"b\"},{"
                   "\"type\":\"tool_use\","
                   "\"id\":\"c\",\"name\":\"f\",\"input\":{\"q\": \"x\"}}]},"
                   "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c\",\"content\":[{\"type\":\"text\","
                   "\"text\":\"1\"},"
                   "{\"type\":\"text\",\"text\":\"2\"}]}]}",
                   ""),
          MESSAGES("{\"role\":\"assistant\",\"content\":\"b\",\"reasoning\":\"h\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
                   "\"function\":{\"name\":"
                   "\"f\",\"arguments\":\"{\\\"q\\\": \\\"x\\\"}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"1\\n2\"}",
                   ""));
    EXACT(MESSAGES, MESSAGES(USER("\"a\""), ",\"tools\":[{\"name\":\"f\",\"input_schema\":{\"properties\":{}}}]"),
          MESSAGES(
              USER("\"a\""),
              ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{},\"type\":\"object\"}}}]"));
    UNKNOWN(MESSAGES, MESSAGES(USER("\"a\"") ",{\"role\":\"system\",\"content\":\"s\"}", ""), MESSAGES(USER("\"a\""), ""));
    UNKNOWN(MESSAGES, MESSAGES(USER("[{\"type\":\"image\",\"source\":{}},{\"type\":\"text\",\"text\":\"a\"}]"), ""),
            MESSAGES(USER("\"a\""), ""));
}

static void truncation_keeps_what_the_engine_keeps(void **)
{
    struct kvr_prompt_members m = {.truncation = KVR_TRUNCATE_DEFAULT, .keep = 3, .wants_output = true};
    size_t keep;
    assert_true(kvr_truncated_length(&m, 5, 0, &keep));
    assert_int_equal(keep, 3);
    assert_true(kvr_truncated_length(&m, 2, 0, &keep));
    assert_int_equal(keep, 2);
    m.keep = -1;
    assert_false(kvr_truncated_length(&m, 5, 0, &keep));
    assert_true(kvr_truncated_length(&m, 5, 4, &keep));
    assert_int_equal(keep, 3);
    uint32_t left[] = {1, 2, 3, 4, 5}, right[] = {1, 2, 3, 4, 5}, between[] = {0, 1, 2, 3, 9}, bare[] = {1, 2, 3};
    kvr_truncate(left, 5, 3, KVR_TRUNCATE_DEFAULT);
    assert_memory_equal(left, ((uint32_t[]){3, 4, 5}), 12);
    kvr_truncate(right, 5, 3, KVR_TRUNCATE_RIGHT);
    assert_memory_equal(right, ((uint32_t[]){1, 2, 3}), 12);
    assert_true(kvr_truncate_between(between, 5, bare, 3, 4));
    assert_memory_equal(between, ((uint32_t[]){0, 2, 3, 9}), 16);
    assert_false(kvr_truncate_between(left, 5, bare, 3, 1)); /* too short for what was added */
    assert_false(kvr_truncate_between((uint32_t[]){7, 7, 7}, 3, bare, 2, 2));
}

static void the_bare_question_overrules_the_other(void **)
{
    struct kvr_buf out = {0};
    kvr_tokenize_body_bare(span("{\"prompt\":\"a\",\"add_special_tokens\":true}"), &out);
    kvr_buf_add(&out, "", 1);
    assert_string_equal(out.data, "{\"prompt\":\"a\",\"add_special_tokens\":true,\"add_special_tokens\":false}");
    kvr_buf_free(&out);
}

static void spliced(const char *body, const uint32_t *ids, size_t n, const char *wanted)
{
    struct kvr_buf out = {0};
    bool made = kvr_prompt_ids_splice(span(body), ids, n, &out);
    kvr_buf_add(&out, "", 1);
    assert_int_equal(made, wanted != NULL);
    if (made) assert_string_equal(out.data, wanted);
    kvr_buf_free(&out);
}

static void ids_take_the_place_of_a_text_and_nothing_else_changes(void **)
{
    static const uint32_t ids[] = {0, 7, 4294967295};
    spliced("{\"prompt\":\"a\\\"b\",\"x\":1.50}", ids, 3, "{\"prompt\":[0,7,4294967295],\"x\":1.50}");
    spliced(" { \"x\" : {\"prompt\":\"y\"} , \"prompt\" : [ \"a\" ] } \n", ids, 1, " { \"x\" : {\"prompt\":\"y\"} , \"prompt\" : [0] } \n");
    spliced("{\"prompt\":[\"a\",\"b\"]}", ids, 3, NULL);
    spliced("{\"prompt\":[1,2]}", ids, 3, NULL);
    spliced("{\"prompt\":[]}", ids, 3, NULL);
    spliced("{\"prompt\":null}", ids, 3, NULL);
    spliced("{\"x\":1}", ids, 3, NULL);
    spliced("{\"prompt\":\"a\",\"prompt\":\"b\"}", ids, 3, NULL);
    spliced("{\"pr\\u006fmpt\":\"a\",\"prompt\":\"b\"}", ids, 3, NULL);
}

/* question NULL: refused, for a reason that has `why`. */
static void asked(void **s, const char *body, const char *question, const char *wanted_why)
{
    struct kvr_buf out = {0};
    struct kvr_json root;
    const char *why = NULL;
    assert_int_equal(kvr_json_parse(*s, body, strlen(body), &root, NULL), 0);
    assert_true(kvr_prompt_is_text(root));
    bool made = kvr_prompt_question(root, body, strlen(body), &out, &why);
    kvr_buf_add(&out, "", 1);
    if (made != (question != NULL)) fail_msg("%s\n  %s", body, made ? out.data : why);
    if (made) assert_string_equal(out.data, question);
    else assert_non_null(strstr(why, wanted_why));
    kvr_buf_free(&out);
}

static void questions_with_a_text_are_asked_as_the_request_would_be(void **s)
{
    struct kvr_json root;
    asked(s, " {\"model_name\":\"m\",\"text\":\"a\"}", "{\"prompt\":\"a\"}", NULL);
    asked(s, "{\"messages\":[" USER("\"a\"") "],\"lora_name\":\"l\",\"tools\":[]}", "{\"messages\":[" USER("\"a\"") "],\"tools\":[]}",
          NULL);
    asked(s, "{\"messages\":[],\"text\":\"a\"}", NULL, "one of them");
    asked(s, "{\"messages\":3}", NULL, "`messages`");
    asked(s, "{\"text\":3}", NULL, "`text`");
    asked(s, "{\"text\":[\"a\",\"b\"]}", NULL, "`text`");
    asked(s, "{\"text\":\"a\",\"truncate_prompt_tokens\":4}", NULL, "truncate_prompt_tokens");
    asked(s, "{\"messages\":[" USER("[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]") "]}", NULL, "not text");
    static const char *const others[] = {"{\"token_ids\":[1],\"text\":\"a\"}", "{\"block_hashes\":[1],\"messages\":[]}", "{\"text\":null}",
                                         "{}"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(kvr_json_parse(*s, others[i], strlen(others[i]), &root, NULL), 0);
        assert_false(kvr_prompt_is_text(root));
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
        cmocka_unit_test(an_sglang_is_asked_without_what_its_chat_does_not_read),
        cmocka_unit_test(completions_are_asked_for_their_prompt),
        cmocka_unit_test(chats_are_asked_for_all_that_their_template_sees),
        cmocka_unit_test(responses_are_the_chat_that_the_engine_makes_of_them),
        cmocka_unit_test(messages_are_the_chat_that_the_engine_makes_of_them),
        cmocka_unit_test(truncation_keeps_what_the_engine_keeps),
        cmocka_unit_test(the_bare_question_overrules_the_other),
        cmocka_unit_test(ids_take_the_place_of_a_text_and_nothing_else_changes),
        cmocka_unit_test(questions_with_a_text_are_asked_as_the_request_would_be),
    };
    return cmocka_run_group_tests(tests, open_parser, close_parser);
}
