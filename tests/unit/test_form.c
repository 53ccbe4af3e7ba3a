/* SPDX-License-Identifier: Apache-2.0 */
/* Forms: what a field is, and what is refused because another reader may see other parts. */
#include "test.h"

#include "wire/form.h"

#define MODEL_HEAD "Content-Disposition: form-data; name=\"model\"\r\n\r\n"
#define FILE_HEAD  "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n"

static const char *const names[] = {"model", "user"};

/* What is wrong, or NULL. The body ends where its memory ends. */
static const char *pick(const char *body, size_t len, const char *boundary, struct kvr_form_field out[2], char **held)
{
    char *own = malloc(len + 1);
    memcpy(own + 1, body, len);
    *held = own;
    return kvr_form_pick(own + 1, len, boundary, names, 2, out);
}

static void finds(const char *body, const char *model)
{
    struct kvr_form_field out[2];
    char *held;
    const char *why = pick(body, strlen(body), "XX", out, &held);
    if (why) fail_msg("refused: %s\n%s", why, body);
    assert_int_equal(out[0].times, model ? 1 : 0);
    if (model) assert_int_equal(out[0].len, strlen(model));
    if (model) assert_memory_equal(out[0].ptr, model, out[0].len);
    free(held);
}

static void refuses(const char *body, const char *text)
{
    struct kvr_form_field out[2];
    char *held;
    const char *why = pick(body, strlen(body), "XX", out, &held);
    free(held);
    if (!why) fail_msg("taken:\n%s", body);
    if (!strstr(why, text)) fail_msg("'%s' is not '%s'", why, text);
}

static void a_field_is_found_wherever_it_stands(void **)
{
    finds("--XX\r\n" MODEL_HEAD "whisper\r\n--XX\r\n" FILE_HEAD "RIFF\r\n--XX--\r\n", "whisper");
    finds("--XX\r\n" FILE_HEAD "RIFF\r\n--XX\r\n" MODEL_HEAD "whisper\r\n--XX--", "whisper");
    finds("a preamble\r\n--XX \t\r\n" MODEL_HEAD "whisper\r\n--XX-- \r\nan epilogue\r\n--XX\r\n" MODEL_HEAD "other\r\n--XX--\r\n",
          "whisper");
    finds("\r\n--XX\r\n" MODEL_HEAD "whisper\r\n--XX--\r\n", "whisper");
    finds("--XX\r\n" MODEL_HEAD "\r\n--XX--\r\n", "");
    finds("--XX\r\n" MODEL_HEAD "a --XX in a line\r\n-\r\n--X\r\n--XX--\r\n", "a --XX in a line\r\n-\r\n--X");
    finds("--XX\r\n" FILE_HEAD "RIFF\r\n--XX--\r\n", NULL);
    finds("--XX--\r\n", NULL);
}

static void a_name_is_read_as_headers_are_written(void **)
{
    static const char *const heads[] = {
        "content-disposition:form-data;name=model",
        "Content-Disposition: form-data; name = \"model\" ;",
        "CONTENT-DISPOSITION: FORM-DATA; NAME=\"model\"; filename*=UTF-8''a",
        "Content-Disposition: form-data; filename=\"a; name=b\\\"\"; name=model",
        "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\nContent-Disposition: "
        "form-data; name=\"model\"",
        "Content-Disposition: form-data; name=\"mo\\del\""};
    static const char *const others[] = {
        "Content-Disposition: form-data; name=\"Model\"", "Content-Disposition: form-data; name=\"model \"",
        "Content-Disposition: form-data; name=\"model[]\"", "Content-Disposition: form-data; name=\"\"; filename=\"model\""};
    char body[512];
    for (size_t i = 0; i < KVR_ARRAY_LEN(heads); i++) {
        snprintf(body, sizeof body, "--XX\r\n%s\r\n\r\nwhisper\r\n--XX--\r\n", heads[i]);
        finds(body, "whisper");
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(others); i++) {
        snprintf(body, sizeof body, "--XX\r\n%s\r\n\r\nwhisper\r\n--XX--\r\n", others[i]);
        finds(body, NULL);
    }
}

static void what_two_readers_may_read_in_two_ways_is_refused(void **)
{
    static const char *const heads[] = {"Content-Disposition: form-data;\r\n name=\"model\"",
                                        "Content-Disposition: form-data; name=\"model\"; name=\"file\"",
                                        "Content-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; name=\"model\"",
                                        "Content-Disposition: form-data; name*=UTF-8''model",
                                        "Content-Disposition: form-data; name*0=mo; name*1=del",
                                        "Content-Disposition: form-data; name=\"a\"; name*=UTF-8''model",
                                        "Content-Disposition: form-data; name=\"model",
                                        "Content-Disposition: form-data; name=\"model\"x",
                                        "Content-Disposition: form-data; filename=\"model\"",
                                        "Content-Disposition: form-data",
                                        "Content-Disposition: attachment; name=\"model\"",
                                        "Content-Disposition : form-data; name=\"model\"",
                                        "Content-Disposition: form-data; name=\"mo\ndel\"",
                                        "Content-Type: text/plain",
                                        "no header"};
    char body[512];
    for (size_t i = 0; i < KVR_ARRAY_LEN(heads); i++) {
        snprintf(body, sizeof body, "--XX\r\n%s\r\n\r\nwhisper\r\n--XX--\r\n", heads[i]);
        refuses(body, "a part of the form");
    }
    refuses("--XX\r\nContent-Transfer-Encoding: base64\r\n" MODEL_HEAD "d2hpc3Blcg==\r\n--XX--\r\n", "Content-Transfer-Encoding");
    refuses("--XX\r\n" MODEL_HEAD "whisper\r\n--XXX\r\n" MODEL_HEAD "other\r\n--XX--\r\n", "goes on");
    refuses("--XX\r\n" MODEL_HEAD "whisper\r\n--XX--more\r\n", "goes on");
    refuses("--XX\n" MODEL_HEAD "whisper\r\n--XX--\r\n", "goes on");
}

static void a_form_without_its_end_or_its_boundary_is_refused(void **)
{
    static const char whole[] = "--XX\r\n" FILE_HEAD "RIFF\r\n--XX\r\n" MODEL_HEAD "whisper\r\n--XX--";
    struct kvr_form_field out[2];
    char *held;
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        if (!pick(whole, n, "XX", out, &held)) fail_msg("taken when cut at %zu", n);
        free(held);
    }
    refuses("{\"model\":\"whisper\"}", "does not have the boundary");
    refuses("--YY\r\n" MODEL_HEAD "whisper\r\n--YY--\r\n", "does not have the boundary");
    refuses("--XX\r\n" MODEL_HEAD "--XX--\r\n", "no blank line"); /* whose end is the delimiter's: is the value empty, or "--XX--"? */
    refuses("--XX\r\n--XX--\r\n", "no header");
    refuses("--XX\r\n\r\nwhisper\r\n--XX--\r\n", "no header");
}

static void two_fields_of_one_name_are_counted(void **)
{
    static const char body[] = "--XX\r\n" MODEL_HEAD "a\r\n--XX\r\n" MODEL_HEAD "b\r\n--XX--\r\n";
    struct kvr_form_field out[2];
    char *held;
    assert_null(pick(body, sizeof body - 1, "XX", out, &held));
    assert_int_equal(out[0].times, 2);
    assert_true(out[0].len == 1 && *out[0].ptr == 'a' && !out[1].ptr);
    free(held);
}

static void a_form_in_a_part_is_its_value(void **)
{
    finds("--XX\r\nContent-Disposition: form-data; name=\"file\"\r\nContent-Type: multipart/mixed; boundary=YY\r\n\r\n--YY\r\n" MODEL_HEAD
          "inner\r\n--YY--\r\n--XX\r\n" MODEL_HEAD "outer\r\n--XX--\r\n",
          "outer");
}

static void there_are_no_more_parts_than_engines_take(void **)
{
    static const char part[] = "--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n";
    size_t n = sizeof part - 1, most = KVR_FORM_PARTS_MAX;
    char *body = malloc((most + 1) * n + 8);
    for (size_t i = 0; i <= most; i++) memcpy(body + i * n, part, n);
    memcpy(body + most * n, "--XX--", 7);
    finds(body, NULL);
    memcpy(body + most * n, part, n);
    memcpy(body + (most + 1) * n, "--XX--", 7);
    refuses(body, "2048 parts");
    free(body);
}

static void a_boundary_is_what_the_content_type_names(void **)
{
    static const struct {
        const char *type, *boundary; /* NULL: refused */
    } cases[] = {{"multipart/form-data; boundary=XX", "XX"},
                 {"Multipart/Form-Data;charset=utf-8; BOUNDARY=\"a b:c\"", "a b:c"},
                 {"multipart/form-data; boundary=\"a\\-b\"", "a-b"},
                 {"multipart/form-data; boundary=----=_Part_1/2?", "----=_Part_1/2?"},
                 {"multipart/form-data; boundary=0123456789012345678901234567890123456789012345678901234567890123456789",
                  "0123456789012345678901234567890123456789012345678901234567890123456789"},
                 {"multipart/form-data; boundary=0123456789012345678901234567890123456789012345678901234567890123456789x", NULL},
                 {"multipart/form-data", NULL},
                 {"multipart/form-data; boundary", NULL},
                 {"multipart/form-data; boundary=", NULL},
                 {"multipart/form-data; boundary=\"\"", NULL},
                 {"multipart/form-data; boundary=\"XX", NULL},
                 {"multipart/form-data; boundary=\"XX \"", NULL},
                 {"multipart/form-data; boundary=X\xc3\xa9", NULL},
                 {"multipart/form-data; boundary=\"X\\", NULL},
                 {"multipart/form-data; boundary=XX; boundary=YY", NULL},
                 {"multipart/form-data; boundary=XX; boundary*=UTF-8''YY", NULL},
                 {"multipart/form-data boundary=XX", NULL}};
    char out[KVR_FORM_BOUNDARY_MAX + 1];
    for (size_t i = 0; i < KVR_ARRAY_LEN(cases); i++) {
        const char *why = kvr_form_boundary(cases[i].type, strlen(cases[i].type), out);
        if (!why != !!cases[i].boundary) fail_msg("%s: %s", cases[i].type, why ? why : "taken");
        if (!why) assert_string_equal(out, cases[i].boundary);
    }
    assert_true(kvr_form_is("multipart/form-data", 19) && kvr_form_is(" MULTIPART/form-data ;x", 22));
    assert_false(kvr_form_is("multipart/form-datas", 20) || kvr_form_is("multipart/mixed", 15) || kvr_form_is("", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_field_is_found_wherever_it_stands),
        cmocka_unit_test(a_name_is_read_as_headers_are_written),
        cmocka_unit_test(what_two_readers_may_read_in_two_ways_is_refused),
        cmocka_unit_test(a_form_without_its_end_or_its_boundary_is_refused),
        cmocka_unit_test(two_fields_of_one_name_are_counted),
        cmocka_unit_test(a_form_in_a_part_is_its_value),
        cmocka_unit_test(there_are_no_more_parts_than_engines_take),
        cmocka_unit_test(a_boundary_is_what_the_content_type_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
