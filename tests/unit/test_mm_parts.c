/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a chat that are not text: which they are, what tells two apart, and a body without them. */
#include "test.h"

#include <string.h>

#include "wire/mm_parts.h"
#include "wire/openai.h"

static int setup(void **s)
{
    *s = kvr_json_parser_new();
    return *s ? 0 : -1;
}

static int teardown(void **s)
{
    kvr_json_parser_free(*s);
    return 0;
}

static struct kvr_json parsed(void **s, const char *text)
{
    struct kvr_json root;
    assert_int_equal(kvr_json_parse(*s, text, strlen(text), &root, NULL), 0);
    return root;
}

static bool same(void **s, const char *a, const char *b)
{
    unsigned char x[KVR_PART_DIGEST], y[KVR_PART_DIGEST];
    kvr_part_digest(NULL, 0, parsed(s, a), x);
    kvr_part_digest(NULL, 0, parsed(s, b), y);
    return memcmp(x, y, sizeof x) == 0;
}

static void what_is_text(void **s)
{
    static const char *const texts[] = {"\"x\"",
                                        "{\"type\":\"text\",\"text\":\"x\"}",
                                        "{\"text\":\"x\"}",
                                        "{\"type\":\"input_text\",\"text\":\"x\"}",
                                        "{\"type\":\"refusal\",\"refusal\":\"x\"}",
                                        "{\"type\":\"text\",\"text\":\"x\",\"cache_control\":{}}"};
    static const char *const objects[] = {"{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}",
                                          "{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"x\",\"format\":\"wav\"}}",
                                          "{\"type\":\"video_url\",\"video_url\":{\"url\":\"x\"}}",
                                          "{\"type\":\"image_embeds\",\"image_embeds\":\"x\"}",
                                          "{\"type\":\"input_image\",\"image_url\":\"x\"}",
                                          "{\"type\":\"file\",\"file\":{\"file_id\":\"x\"}}",
                                          "{\"type\":\"something_new\",\"text\":\"x\"}",
                                          "{\"type\":\"text\"}",
                                          "{\"text\":\"x\",\"image_url\":\"x\"}",
                                          "{\"type\":7,\"text\":\"x\",\"a\":1}",
                                          "{}",
                                          "null",
                                          "5",
                                          "[]"};
    const char *text;
    size_t len;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_true(kvr_part_text(parsed(s, texts[i]), &text, &len));
        assert_true(len == 1 && *text == 'x');
    }
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) assert_false(kvr_part_text(parsed(s, objects[i]), &text, &len));
}

static void two_images_are_told_apart(void **s)
{
    assert_true(same(s, "{\"type\":\"image_url\",\"image_url\":{\"url\":\"http://a/1\"}}",
                     "{ \"type\":\"image_url\", \"image_url\":{\"url\":\"http:\\/\\/a/1\"}}"));
    assert_false(same(s, "{\"type\":\"image_url\",\"image_url\":{\"url\":\"http://a/1\"}}",
                      "{\"type\":\"image_url\",\"image_url\":{\"url\":\"http://a/2\"}}"));
    assert_false(same(s, "{\"type\":\"image_url\",\"image_url\":{\"url\":\"a\",\"detail\":\"low\"}}",
                      "{\"type\":\"image_url\",\"image_url\":{\"url\":\"a\",\"detail\":\"high\"}}"));
    assert_false(same(s, "{\"a\":[1,[2]]}", "{\"a\":[1,2]}"));
    assert_false(same(s, "{\"a\":[[],[1]]}", "{\"a\":[[1],[]]}"));
    assert_false(same(s, "{\"a\":\"1\"}", "{\"a\":1}"));
    assert_false(same(s, "{\"a\":\"bc\"}", "{\"ab\":\"c\"}"));
    assert_false(same(s, "{\"a\":0.5}", "{\"a\":0.25}"));
    assert_false(same(s, "{\"a\":true}", "{\"a\":false}"));
    assert_false(same(s, "{\"a\":null}", "{}"));
}

static void a_data_url_is_its_bytes(void **s)
{
    assert_true(same(s, "{\"url\":\"data:image/png;base64,QUJD\"}", "{\"url\":\"data:image/x;q=1;BASE64,QUJD\"}"));
    assert_true(same(s, "{\"url\":\"data:;base64,QUI=\"}", "{\"url\":\"DATA:a/b;base64,QUI\"}"));
    assert_true(same(s, "{\"url\":\"data:;base64,-_-_\"}", "{\"url\":\"data:;base64,+/+/\"}"));
    assert_false(same(s, "{\"url\":\"data:;base64,QUJD\"}", "{\"url\":\"data:;base64,QUJE\"}"));
    assert_false(same(s, "{\"url\":\"data:;base64,QUJD\"}", "{\"url\":\"data:,QUJD\"}"));
    assert_false(same(s, "{\"url\":\"data:a;base64,Q!\"}", "{\"url\":\"data:b;base64,Q!\"}")); /* no base64: the text counts */
    assert_false(same(s, "{\"url\":\"data:;base64,QUJD\"}", "{\"url\":\"ABC\"}"));
}

static void long_data_urls_differ_in_any_byte(void **s)
{
    enum { N = 40000 };
    char *a = malloc(N + 64), *b = malloc(N + 64);
    size_t at = (size_t)snprintf(a, N + 64, "{\"url\":\"data:;base64,");
    memset(a + at, 'A', N);
    memcpy(a + at + N, "\"}", 3);
    memcpy(b, a, at + N + 3);
    assert_true(same(s, a, b));
    for (size_t i = at; i < at + N; i += 3001) {
        b[i] = 'B';
        assert_false(same(s, a, b));
        b[i] = 'A';
    }
    memcpy(b + at + N - 4, "\"}", 3); /* three bytes shorter */
    assert_false(same(s, a, b));
    free(a);
    free(b);
}

static void a_uuid_is_the_identity(void **s)
{
    assert_true(same(s, "{\"type\":\"image_url\",\"image_url\":{\"url\":\"a\"},\"uuid\":\"u\"}",
                     "{\"type\":\"image_url\",\"image_url\":null,\"uuid\":\"u\"}"));
    assert_false(same(s, "{\"type\":\"image_url\",\"image_url\":{\"url\":\"a\"},\"uuid\":\"u\"}",
                      "{\"type\":\"image_url\",\"image_url\":{\"url\":\"a\"},\"uuid\":\"v\"}"));
    assert_false(same(s, "{\"type\":\"image_url\",\"uuid\":\"u\"}", "{\"type\":\"video_url\",\"uuid\":\"u\"}"));
    assert_false(same(s, "{\"type\":\"image_url\",\"image_url\":\"a\",\"uuid\":\"\"}",
                      "{\"type\":\"image_url\",\"image_url\":\"b\",\"uuid\":\"\"}"));
}

static void a_body_without_them(void **s)
{
    static const char *const rows[][2] = {
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{\"url\":"
         "\"]}\\\"\"}}]}]}",
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]}"},
        {" { \"x\" : {\"messages\":[1]}, \"messages\" : [ \"s\", {\"content\":\"t\"}, { \"content\" : [ {\"type\":\"image\"} , \"k\" , 5, "
         "{\"text\":\"l\"} ] , \"r\":1 } ] , \"n\" : 1e2 } ",
         " { \"x\" : {\"messages\":[1]}, \"messages\" : [ \"s\", {\"content\":\"t\"}, { \"content\" : [\"k\",{\"text\":\"l\"}] , \"r\":1 } "
         "] , \"n\" : 1e2 } "},
        {"{\"messages\":[{\"content\":[{\"type\":\"image\"}]},{\"content\":{\"type\":\"image\"}},{\"content\":[]}]}",
         "{\"messages\":[{\"content\":\"\"},{\"content\":\"\"},{\"content\":[]}]}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kvr_buf out = {0};
        struct kvr_json root = parsed(s, rows[i][0]);
        assert_true(kvr_mm_parts_any(root));
        assert_true(kvr_mm_parts_remove(rows[i][0], strlen(rows[i][0]), root, &out));
        kvr_buf_add(&out, "", 1);
        assert_string_equal(out.data, rows[i][1]);
        assert_false(kvr_mm_parts_any(parsed(s, out.data)));
        kvr_buf_free(&out);
    }
    const char *escaped = "{\"mess\\u0061ges\":[{\"content\":[{\"type\":\"image\"}]}]}";
    struct kvr_buf out = {0};
    assert_true(kvr_mm_parts_any(parsed(s, escaped)));
    assert_false(kvr_mm_parts_remove(escaped, strlen(escaped), parsed(s, escaped), &out));
    kvr_buf_free(&out);
    assert_false(kvr_mm_parts_any(parsed(s, "{\"messages\":[{\"content\":\"x\"},{\"content\":[{\"type\":\"text\",\"text\":\"\"}]},{}]}")));
    assert_false(kvr_mm_parts_any(parsed(s, "{\"prompt\":\"x\",\"prompt_embeds\":null}")));
    const char *embeds = "{\"messages\":[],\"prompt_embeds\":\"x\"}";
    assert_true(kvr_mm_parts_any(parsed(s, embeds)));
    assert_false(kvr_mm_parts_remove(embeds, strlen(embeds), parsed(s, embeds), &out)); /* nobody knows where they go */
    kvr_buf_free(&out);
}

static void prompt_text_is(void **s, const char *body, struct kvr_buf *out)
{
    struct kvr_openai_request rq;
    const char *why;
    out->len = 0;
    assert_int_equal(kvr_openai_parse(*s, body, strlen(body), KVR_JSON_ALL, &rq, &why), 0);
    assert_true(kvr_openai_prompt_text(&rq, out));
}

/* The derived text of two bodies has that many leading bytes in common, and both go on. */
static size_t common(void **s, const char *a, const char *b)
{
    struct kvr_buf x = {0}, y = {0};
    size_t n = 0;
    prompt_text_is(s, a, &x);
    prompt_text_is(s, b, &y);
    while (n < x.len && n < y.len && x.data[n] == y.data[n]) n++;
    if (n == x.len && n == y.len) n = SIZE_MAX; /* the same */
    kvr_buf_free(&x);
    kvr_buf_free(&y);
    return n;
}

static void two_prompts_differ_from_the_image_on(void **s)
{
#define CHAT(parts)                                                                                                                        \
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"0123456789\"}" parts                                     \
    ",{\"type\":\"text\",\"text\":\"end\"}]}]}"
#define IMAGE(url) ",{\"type\":\"image_url\",\"image_url\":{\"url\":\"" url "\"}}"
    size_t before = strlen("<|user|>\n0123456789");
    assert_true(common(s, CHAT(IMAGE("a")), CHAT(IMAGE("a"))) == SIZE_MAX);
    size_t n = common(s, CHAT(IMAGE("a")), CHAT(IMAGE("b")));
    assert_true(n >= before && n < before + 2 + KVR_PART_DIGEST);
    assert_int_equal(common(s, CHAT(IMAGE("a")), CHAT("")), before);
    n = common(s, CHAT(IMAGE("a") IMAGE("b")), CHAT(IMAGE("b") IMAGE("a")));
    assert_true(n >= before && n < before + 2 + KVR_PART_DIGEST);
}

/* What else makes an engine's prompt another one: two such prompts are not the same either. */
static void tools_and_templates_tell_prompts_apart(void **s)
{
#define WITH(more) "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" more "}"
    static const char *const others[] = {WITH(",\"tools\":[{\"a\":1}]"),
                                         WITH(",\"tools\":[{\"a\":2}]"),
                                         WITH(",\"functions\":[1]"),
                                         WITH(",\"chat_template\":\"y\""),
                                         WITH(",\"chat_template_kwargs\":{\"thinking\":true}"),
                                         WITH(",\"documents\":[{}]"),
                                         WITH(",\"mm_processor_kwargs\":{\"n\":1}"),
                                         WITH(",\"reasoning_effort\":\"high\""),
                                         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[{\"id\":1}]}]}",
                                         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"name\":\"n\"}]}"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        for (size_t k = 0; k < i; k++) assert_true(common(s, others[i], others[k]) != SIZE_MAX);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_true(common(s, others[i], WITH("")) != SIZE_MAX);
    assert_true(common(s, WITH(",\"tools\":null,\"temperature\":1"), WITH("")) == SIZE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        T(what_is_text),
        T(two_images_are_told_apart),
        T(a_data_url_is_its_bytes),
        T(long_data_urls_differ_in_any_byte),
        T(a_uuid_is_the_identity),
        T(a_body_without_them),
        T(two_prompts_differ_from_the_image_on),
        T(tools_and_templates_tell_prompts_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
