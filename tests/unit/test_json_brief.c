/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies that are read in brief say what the whole bodies say: those that clients send, and random ones of which every kind of damage is
 * done to some. */
#include "test.h"

#include "../json_agree.h"
#include "base/buf.h"
#include "wire/json_brief.h"

static struct kvr_json_parser *whole, *brief;

static bool both(const struct kvr_buf *b)
{
    assert_false(b->failed);
    bool is = agree(whole, brief, b->data, b->len, KVR_JSON_NO_PROMPT);
    assert_int_equal(agree(whole, brief, b->data, b->len, KVR_JSON_NO_ELEMENTS), is);
    return is;
}

static void add_ids(struct kvr_buf *b, size_t n, const char *between)
{
    for (size_t i = 0; i < n; i++) kvr_buf_printf(b, "%s%zu", i ? between : "", i * i % 1000000000);
}

/* How much of it is parsed. */
static size_t brief_len(const struct kvr_buf *b, enum kvr_json_wanted wanted)
{
    struct kvr_json_brief out = {0};
    size_t n = kvr_json_brief(b->data, b->len, wanted, &out) ? out.text.len : b->len;
    kvr_json_brief_free(&out);
    return n;
}

static void long_lists_of_ids_are_counted_and_read_from_the_text(void **)
{
    static const char *const between[] = {",", ", "};
    struct kvr_json root;
    uint32_t ids[5000];
    for (size_t i = 0; i < 2; i++) {
        struct kvr_buf b = {0};
        kvr_buf_str(&b, "{\"model\":\"m\",\"prompt\":[");
        add_ids(&b, 5000, between[i]);
        kvr_buf_str(&b, "],\"max_tokens\":3}");
        assert_true(both(&b));
        assert_in_range(brief_len(&b, KVR_JSON_NO_ELEMENTS), 1, 100);
        assert_int_equal(kvr_json_parse_brief(brief, b.data, b.len, KVR_JSON_NO_ELEMENTS, &root, NULL), 0);
        struct kvr_json list = kvr_json_get(root, "prompt");
        assert_int_equal(kvr_json_u32_array(list, ids, 5000), 5000);
        for (size_t k = 0; k < 5000; k++) assert_int_equal(ids[k], k * k % 1000000000);
        kvr_buf_free(&b);
    }
}

static void long_texts_of_prompts_are_not_read(void **)
{
    struct kvr_buf b = {0};
    struct kvr_json root;
    const char *s;
    size_t n;
    kvr_buf_str(&b, "{\"user\":\"");
    for (int i = 0; i < 100; i++) kvr_buf_str(&b, "u");
    kvr_buf_str(&b, "\",\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 1000; i++) kvr_buf_str(&b, "a \\\"word\\\" and \\u00e9 \xc3\xa9\\n");
    kvr_buf_str(&b, "\"}]}");
    assert_true(both(&b));
    assert_in_range(brief_len(&b, KVR_JSON_NO_PROMPT), 100, 200);
    assert_int_equal(brief_len(&b, KVR_JSON_NO_ELEMENTS), b.len); /* who wants tokens reads the text */
    assert_int_equal(kvr_json_parse_brief(brief, b.data, b.len, KVR_JSON_NO_PROMPT, &root, NULL), 0);
    assert_true(kvr_json_as_str(kvr_json_get(root, "user"), &s, &n) && n == 100); /* who asks is */
    kvr_buf_free(&b);
}

/* In the middle of a long text, and of a long list. */
static void what_is_no_json_is_refused(void **)
{
    static const struct {
        const char *in;
        bool is;
    } rows[] = {{"", true},
                {"\\q", false},
                {"\\", false},
                {"\\u12 ", false},
                {"\\u12g4", false},
                {"\\ud800", false},
                {"\\udc00", false},
                {"\n", false},
                {"\xff", false},
                {"\xc3", false},
                {"\xed\xa0\x80", false},
                {"\\u0000", true},
                {"\x7f", true},
                {"\xc3\xa9", true},
                {"\\ud83d\\ude00", true},
                {"\\/\\b\\f\\t\\r\\n", true},
                {"\"", false},
                {"\",\"", true},
                {"\",NaN,\"", false},
                {"\",1e999,\"", true},
                {"\",01,\"", false},
                {"\"]}", false},
                {"\"}{\"", false}};
    static const char *const lists[] = {"1,",  ",1",  "01",          "1,,2", "1 2",   "-1", "1.5", "NaN",  "1]",
                                        "1e5", "0x1", "12345678901", "[1]",  "1,\n2", " 1", "1 ",  "1\xff"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        struct kvr_buf b = {0};
        kvr_buf_str(&b, "{\"messages\":[\"");
        for (int k = 0; k < 2000; k++) kvr_buf_str(&b, "ab");
        kvr_buf_str(&b, rows[i].in);
        for (int k = 0; k < 2000; k++) kvr_buf_str(&b, "ab");
        kvr_buf_str(&b, "\"]}");
        assert_int_equal(both(&b), rows[i].is);
        kvr_buf_free(&b);
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(lists); i++) {
        struct kvr_buf b = {0};
        kvr_buf_str(&b, "{\"prompt\":[");
        add_ids(&b, 900, ",");
        kvr_buf_printf(&b, ",%s,", lists[i]);
        add_ids(&b, 900, ",");
        kvr_buf_str(&b, "]}");
        (void)both(&b);
        kvr_buf_free(&b);
    }
}

/* ---- at random --------------------------------------------------------------------------------------- */

static size_t up_to(struct kvr_rng *g, size_t n)
{
    return (size_t)(kvr_rng_next(g) % n);
}

static void add_text(struct kvr_rng *g, struct kvr_buf *b, size_t max)
{
    static const char *const pieces[] = {
        "plain text of some length ", "\\n", "\\\"", "\xc3\xa9", "\xe2\x82\xac", "\\u00e9", "\\ud83d\\ude00", "\\\\", "[1,2,3]", "{", "}"};
    kvr_buf_str(b, "\"");
    for (size_t n = up_to(g, max); n; n--) kvr_buf_str(b, pieces[up_to(g, 3) ? 0 : up_to(g, KVR_ARRAY_LEN(pieces))]);
    kvr_buf_str(b, "\"");
}

static void add_list(struct kvr_rng *g, struct kvr_buf *b)
{
    static const char *const odd[] = {"-1", "1.5", "01", "4294967296", "1234567890", "true", "\"x\"", "[1]"};
    const char *between = up_to(g, 4) ? "," : up_to(g, 2) ? ", " : "\n ,";
    bool clean = up_to(g, 3);
    kvr_buf_str(b, "[");
    for (size_t i = 0, n = up_to(g, 400); i < n; i++) {
        if (i) kvr_buf_str(b, between);
        if (clean || up_to(g, 50)) kvr_buf_u64(b, kvr_rng_next(g) >> (34 + up_to(g, 30)) & 0x1fffffff);
        else kvr_buf_str(b, odd[up_to(g, KVR_ARRAY_LEN(odd))]);
    }
    kvr_buf_str(b, "]");
}

static void add_value(struct kvr_rng *g, struct kvr_buf *b, unsigned depth)
{
    static const char *const words[] = {"null", "true", "false", "0", "-1.5e3", "1e999", "18446744073709551616", "\"\"", "[]", "{}"};
    size_t kind = up_to(g, depth > 4 ? 3 : 6), n = up_to(g, 5);
    if (kind == 0) {
        kvr_buf_str(b, words[up_to(g, KVR_ARRAY_LEN(words))]);
    } else if (kind == 1) {
        add_text(g, b, 40);
    } else if (kind == 2) {
        add_list(g, b);
    } else if (kind == 3) {
        kvr_buf_str(b, "[");
        for (size_t i = 0; i < n; i++) {
            if (i) kvr_buf_str(b, ", ");
            add_value(g, b, depth + 1);
        }
        kvr_buf_str(b, "]");
    } else {
        kvr_buf_str(b, "{");
        for (size_t i = 0; i < n; i++) {
            if (i) kvr_buf_str(b, ",");
            add_text(g, b, 5);
            kvr_buf_str(b, ":");
            add_value(g, b, depth + 1);
        }
        kvr_buf_str(b, "}");
    }
}

static void add_body(struct kvr_rng *g, struct kvr_buf *b)
{
    static const char *const names[] = {"model", "prompt", "messages", "input", "input_ids",    "token_ids",
                                        "nvext", "tools",  "text",     "user",  "pro\\u006dpt", "system"};
    if (!up_to(g, 20)) kvr_buf_str(b, "\xef\xbb\xbf");
    kvr_buf_str(b, "{");
    for (size_t i = 0, n = 1 + up_to(g, 6); i < n; i++) {
        kvr_buf_printf(b, "%s\"%s\"%s", i ? "," : "", names[up_to(g, KVR_ARRAY_LEN(names))], up_to(g, 8) ? ":" : " \n: ");
        if (up_to(g, 2)) add_list(g, b);
        else add_value(g, b, 1);
    }
    kvr_buf_str(b, "}");
}

static void damage(struct kvr_rng *g, struct kvr_buf *b)
{
    static const char bytes[] = "\"\\[]{},: 0n\n\x01\x80\xff";
    size_t at = up_to(g, b->len);
    switch (up_to(g, 4)) {
    case 0: b->len = at; break;
    case 1: b->data[at] = bytes[up_to(g, sizeof bytes)]; break;
    case 2: b->data[at] = (char)kvr_rng_next(g); break;
    default: memmove(b->data + at, b->data + at + 1, b->len - at - 1), b->len--;
    }
}

static void random_bodies_say_the_same(void **)
{
    uint64_t seed = env_u64("KVR_SEED", 1), ops = env_u64("KVR_OPS", 4000);
    size_t whole_ones = 0, cut = 0;
    for (uint64_t i = 0; i < ops; i++) {
        struct kvr_rng g;
        struct kvr_buf b = {0};
        g = (struct kvr_rng){seed + i};
        add_body(&g, &b);
        if (up_to(&g, 2)) damage(&g, &b);
        if (b.len) whole_ones += both(&b), cut += brief_len(&b, KVR_JSON_NO_PROMPT) < b.len;
        kvr_buf_free(&b);
    }
    assert_true(whole_ones > ops / 10 && whole_ones < ops && cut > ops / 10); /* or it would show nothing */
}

static void compare_ways(const char *text, size_t n, const struct kvr__json_ways *one, const struct kvr__json_ways *other)
{
    enum { MAX = 300 };
    uint32_t ids[MAX], same[MAX];
    char *all = malloc(n + 8), *exact = all + 8, *p = exact; /* a byte behind it would be noticed */
    size_t a = 0, b = 0;
    bool x = true, y = true;
    memcpy(exact, text, n);
    const char *e = one->ids(exact, exact + n, &a);
    assert_ptr_equal(e, other->ids(exact, exact + n, &b));
    assert_int_equal(a, b);
    assert_ptr_equal(one->plain(exact, exact + n, &x), other->plain(exact, exact + n, &y));
    assert_int_equal(x, y);
    if (e) one->read(exact, a, ids);
    if (e) other->read(exact, a, same);
    for (size_t k = 0; e && k < a; k++, p++) assert_true(ids[k] == same[k] && ids[k] == strtoul(p, &p, 10));
    free(all);
}

static void all_ways_to_look_at_bytes_give_the_same(void **)
{
    static const char of[] = "0123456789,,,, ]\"\\ax\x01\x80";
    struct kvr_rng g = {env_u64("KVR_SEED", 1)};
    char text[300];
    for (int i = 0; i < 20000; i++) {
        size_t n = up_to(&g, sizeof text), kinds = 1 + up_to(&g, sizeof of - 1);
        for (size_t k = 0; k < n; k++) text[k] = up_to(&g, 3) ? of[up_to(&g, KVR_MIN(kinds, (size_t)12))] : of[up_to(&g, kinds)];
        if (up_to(&g, 2)) { /* one that is likely to be a list */
            for (n = 0; n < sizeof text - 20;)
                n += (size_t)snprintf(text + n, 20, "%s%u", n ? (up_to(&g, 2) ? "," : ", ") : "", (unsigned)up_to(&g, 1000000000));
            text[n++] = up_to(&g, 30) ? ']' : 'x';
        }
        for (size_t way = 1; kvr__json_way(way); way++) compare_ways(text, n, kvr__json_way(0), kvr__json_way(way));
    }
}

static int setup(void **)
{
    whole = kvr_json_parser_new();
    brief = kvr_json_parser_new();
    return !whole || !brief;
}

static int teardown(void **)
{
    kvr_json_parser_free(whole);
    kvr_json_parser_free(brief);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_lists_of_ids_are_counted_and_read_from_the_text),
        cmocka_unit_test(long_texts_of_prompts_are_not_read),
        cmocka_unit_test(what_is_no_json_is_refused),
        cmocka_unit_test(random_bodies_say_the_same),
        cmocka_unit_test(all_ways_to_look_at_bytes_give_the_same),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
