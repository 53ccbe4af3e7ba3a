/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of Envoy's external processing against those that Google's protobuf writes (tests/vectors/ext_proc/record.py), byte by byte, and
 * what is no message. */
#include "test.h"

#include "wire/ext_proc.h"

#define TEXT(s)                                                                                                                            \
    (struct kvr_ext_proc_text)                                                                                                             \
    {                                                                                                                                      \
        s, sizeof(s) - 1                                                                                                                   \
    }

static size_t asked; /* vectors that a test has looked at */

static size_t from_hex(const char *hex, uint8_t *out)
{
    size_t n = 0;
    unsigned byte;
    while (sscanf(hex + 2 * n, "%2x", &byte) == 1) out[n++] = (uint8_t)byte;
    return n;
}

/* The bytes of that name, in memory of their own: a read beyond them is seen. */
static uint8_t *vector(const char *name, size_t *len)
{
    static char line[8192];
    static uint8_t bytes[4096];
    FILE *f = fopen(KVR_VECTORS_DIR "/ext_proc/messages.txt", "r");
    assert_non_null(f);
    *len = SIZE_MAX;
    while (*len == SIZE_MAX && fgets(line, sizeof line, f)) {
        char *hex = strchr(line, ' ');
        assert_non_null(hex);
        *hex = 0;
        if (strcmp(line, name) == 0) *len = from_hex(hex + 1, bytes);
    }
    fclose(f);
    if (*len == SIZE_MAX) fail_msg("no vector %s", name);
    asked++;
    uint8_t *copy = malloc(*len + 1);
    assert_non_null(copy);
    memcpy(copy, bytes, *len);
    return realloc(copy, *len ? *len : 1);
}

static void read_message(struct kvr_ext_proc_message *m, const char *name)
{
    static uint8_t *data; /* texts lie there */
    size_t len;
    free(data);
    data = vector(name, &len);
    assert_int_equal(kvr_ext_proc_read(data, len, m), 0);
}

static void is_text(struct kvr_ext_proc_text t, const char *s)
{
    assert_non_null(t.ptr);
    assert_int_equal(t.len, strlen(s));
    assert_memory_equal(t.ptr, s, t.len);
}

static void headers_are_read(void **)
{
    struct kvr_ext_proc_message m;
    read_message(&m, "read_request_headers");
    assert_int_equal(m.kind, KVR_EXT_PROC_REQUEST_HEADERS);
    assert_int_equal(m.headers_n, 4);
    is_text(m.headers[1].name, ":path");
    is_text(kvr_ext_proc_header_get(&m, ":path"), "/v1/chat/completions");
    is_text(kvr_ext_proc_header_get(&m, "x-empty"), "");
    assert_null(kvr_ext_proc_header_get(&m, "x").ptr);
    assert_true(m.has_modes && !m.end_of_stream && !m.has_subset && !m.observability && !m.served.ptr && !m.upstream_address.ptr);
    assert_int_equal(m.modes.request_body, KVR_EXT_PROC_FULL_DUPLEX_STREAMED);
    assert_int_equal(m.modes.response_body, KVR_EXT_PROC_BUFFERED);
    kvr_ext_proc_free(&m);

    read_message(&m, "read_old_headers");
    assert_true(m.end_of_stream && !m.has_modes);
    is_text(kvr_ext_proc_header_get(&m, "x-request-id"), "abc");
    kvr_ext_proc_free(&m);

    read_message(&m, "read_response_headers");
    assert_true(m.kind == KVR_EXT_PROC_RESPONSE_HEADERS && m.observability);
    is_text(m.served, "10.0.0.2:8000");
    is_text(m.upstream_address, "10.0.0.1:8000");
    kvr_ext_proc_free(&m);
}

static void a_subset_is_a_list_or_a_text(void **)
{
    struct kvr_ext_proc_message m;
    read_message(&m, "read_subset_list");
    assert_true(m.has_subset && m.subset_n == 2);
    is_text(m.subset[0], "10.0.0.1:8000");
    is_text(m.subset[1], "[::1]:8000");
    kvr_ext_proc_free(&m);
    read_message(&m, "read_subset_text");
    assert_true(m.has_subset && m.subset_n == 2);
    is_text(m.subset[0], "10.0.0.1:8000");
    is_text(m.subset[1], "10.0.0.2");
    kvr_ext_proc_free(&m);
    read_message(&m, "read_subset_empty");
    assert_true(m.has_subset && m.subset_n == 0);
    kvr_ext_proc_free(&m);
}

static void bodies_and_trailers_are_read(void **)
{
    struct kvr_ext_proc_message m;
    read_message(&m, "read_request_body");
    assert_true(m.kind == KVR_EXT_PROC_REQUEST_BODY && m.end_of_stream && m.body.len == 768);
    for (size_t i = 0; i < m.body.len; i++) assert_int_equal((uint8_t)m.body.ptr[i], i % 256);
    kvr_ext_proc_free(&m);
    read_message(&m, "read_response_body");
    assert_true(m.kind == KVR_EXT_PROC_RESPONSE_BODY && !m.end_of_stream);
    is_text(m.body, "data: {}\n\n");
    kvr_ext_proc_free(&m);
    read_message(&m, "read_end");
    assert_true(m.kind == KVR_EXT_PROC_REQUEST_BODY && m.end_of_stream);
    is_text(m.body, "");
    kvr_ext_proc_free(&m);
    read_message(&m, "read_request_trailers");
    assert_true(m.kind == KVR_EXT_PROC_REQUEST_TRAILERS && m.headers_n == 1);
    is_text(kvr_ext_proc_header_get(&m, "a"), "b");
    kvr_ext_proc_free(&m);
    read_message(&m, "read_response_trailers");
    assert_int_equal(m.kind, KVR_EXT_PROC_RESPONSE_TRAILERS);
    kvr_ext_proc_free(&m);
}

/* A member of a later release, and a value that goes forty levels deep where nobody looks. */
static void what_is_not_known_is_passed_over(void **)
{
    struct kvr_ext_proc_message m;
    read_message(&m, "read_unknown_members");
    assert_int_equal(m.kind, KVR_EXT_PROC_REQUEST_BODY);
    is_text(m.body, "x");
    kvr_ext_proc_free(&m);
    read_message(&m, "read_nothing");
    assert_true(m.kind == KVR_EXT_PROC_OTHER && m.headers_n == 0);
    kvr_ext_proc_free(&m);
}

/* Every message is cut at every byte, and has every byte changed: it is read or refused, and the sanitizer sees what is touched. */
static void what_is_broken_is_refused(void **)
{
    static const char *const names[] = {"read_request_headers", "read_subset_list", "read_response_headers", "read_unknown_members"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(names); i++) {
        size_t len, refused = 0;
        uint8_t *data = vector(names[i], &len);
        asked--;
        for (size_t cut = 0; cut < len; cut++) {
            for (int change = 0; change < 3; change++) {
                uint8_t *copy = malloc(len);
                struct kvr_ext_proc_message m;
                memcpy(copy, data, len);
                if (change) copy[cut] ^= change == 1 ? 0x80 : 0x07;
                int rc = kvr_ext_proc_read(copy, change ? len : cut, &m);
                assert_true(rc == 0 || rc == -KVR_EFORMAT || rc == -KVR_ELIMIT);
                if (rc == 0) kvr_ext_proc_free(&m);
                refused += rc != 0;
                free(copy);
            }
        }
        assert_true(refused > len / 2);
        free(data);
    }
    static const uint8_t long_varint[] = {0x22, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, beyond[] = {0x22, 0x05, 0x0a};
    struct kvr_ext_proc_message m;
    assert_int_equal(kvr_ext_proc_read(long_varint, sizeof long_varint, &m), -KVR_EFORMAT);
    assert_int_equal(kvr_ext_proc_read(beyond, sizeof beyond, &m), -KVR_EFORMAT);
}

/* n empty headers: of two bytes each. */
static int read_empty_headers(size_t n)
{
    struct kvr_ext_proc_message m;
    struct kvr_buf inner = {0}, map = {0}, all = {0};
    for (size_t i = 0; i < n; i++) kvr_buf_add(&inner, "\x0a\x00", 2);
    const struct kvr_buf *from = &inner;
    for (struct kvr_buf *to = &map;; to = &all, from = &map) {
        kvr_buf_add(to, to == &map ? "\x0a" : "\x12", 1);
        for (size_t v = from->len; v; v >>= 7) kvr_buf_add(to, &(char){(char)((v & 127) | (v > 127 ? 128 : 0))}, 1);
        kvr_buf_add(to, from->data, from->len);
        if (to == &all) break;
    }
    int rc = kvr_ext_proc_read((const uint8_t *)all.data, all.len, &m);
    if (rc == 0) {
        assert_int_equal(m.headers_n, n);
        kvr_ext_proc_free(&m);
    }
    kvr_buf_free(&inner);
    kvr_buf_free(&map);
    kvr_buf_free(&all);
    return rc;
}

static void structure_without_content_is_limited(void **)
{
    assert_int_equal(read_empty_headers(KVR_EXT_PROC_HEADERS_MAX), 0);
    assert_int_equal(read_empty_headers(KVR_EXT_PROC_HEADERS_MAX + 1), -KVR_ELIMIT);
    assert_int_equal(read_empty_headers(1000000), -KVR_ELIMIT);
}

static void wrote(struct kvr_buf *b, const char *name)
{
    size_t len;
    uint8_t *data = vector(name, &len);
    if (b->failed || b->len != len || memcmp(b->data, data, len)) fail_msg("%s is written in another way", name);
    kvr_buf_reset(b);
    free(data);
}

static void put_piece(struct kvr_buf *b, const void *data, size_t len, bool end)
{
    uint8_t head[KVR_EXT_PROC_PIECE_HEAD_MAX];
    kvr_buf_add(b, head, kvr_ext_proc_piece_head(head, KVR_EXT_PROC_RESPONSE_BODY, len, end));
    kvr_buf_add(b, data, len);
}

static void answers_are_what_others_write(void **)
{
    const struct kvr_ext_proc_header set[] = {{TEXT("x-gateway-destination-endpoint"), TEXT("10.0.0.1:8000")},
                                              {TEXT("x-kvroute-reason"), TEXT("\xc3\xa9")}};
    const struct kvr_ext_proc_modes modes = {KVR_EXT_PROC_BUFFERED, KVR_EXT_PROC_STREAMED};
    struct kvr_ext_proc_mutation m = {.set = set, .set_n = 2, .remove = (const char *const[]){"x-prefiller-host-port"}, .remove_n = 1};
    struct kvr_buf b = {0};
    m.clear_route_cache = true;
    kvr_ext_proc_put_answer(&b, KVR_EXT_PROC_REQUEST_BODY, &m);
    wrote(&b, "write_body_answer");
    m.destination = TEXT("10.0.0.1:8000");
    m.modes = &modes;
    kvr_ext_proc_put_answer(&b, KVR_EXT_PROC_REQUEST_HEADERS, &m);
    wrote(&b, "write_decision");
    static const char *const empty[] = {"request_headers", "response_headers", "request_body",
                                        "response_body",   "request_trailers", "response_trailers"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(empty); i++) {
        char name[64];
        snprintf(name, sizeof name, "write_empty_%s", empty[i]);
        kvr_ext_proc_put_answer(&b, (enum kvr_ext_proc_kind)(KVR_EXT_PROC_REQUEST_HEADERS + i), NULL);
        wrote(&b, name);
    }
    const struct kvr_ext_proc_header one = {TEXT("a"), TEXT("b")};
    const struct kvr_ext_proc_mutation trailers = {.set = &one, .set_n = 1, .remove = (const char *const[]){"c"}, .remove_n = 1};
    kvr_ext_proc_put_answer(&b, KVR_EXT_PROC_RESPONSE_TRAILERS, &trailers);
    wrote(&b, "write_trailers");
    char body[300];
    memset(body, 'q', sizeof body);
    put_piece(&b, body, sizeof body, false);
    wrote(&b, "write_piece");
    put_piece(&b, NULL, 0, true);
    wrote(&b, "write_last_piece");
    const struct kvr_ext_proc_header refusal[] = {{TEXT("content-type"), TEXT("application/json")}, {TEXT("retry-after"), TEXT("1")}};
    kvr_ext_proc_put_immediate(&b, &(struct kvr_ext_proc_immediate){503, refusal, 2, TEXT("{\"error\":1}"), "kvroute_no_worker"});
    wrote(&b, "write_immediate");
    kvr_ext_proc_put_timeout(&b, 61250);
    wrote(&b, "write_timeout");
    kvr_buf_free(&b);
}

static void health_is_read_and_written(void **)
{
    char service[KVR_HEALTH_NAME_MAX + 1];
    uint8_t too_long[3 + KVR_HEALTH_NAME_MAX + 1] = {0x0a, 0x81, 0x02};
    struct kvr_buf b = {0};
    size_t len;
    uint8_t *data = vector("read_health", &len);
    assert_int_equal(kvr_health_read(data, len, service), 0);
    assert_string_equal(service, "readiness");
    free(data);
    assert_int_equal(kvr_health_read((const uint8_t *)"", 0, service), 0);
    assert_string_equal(service, "");
    assert_int_equal(kvr_health_read((const uint8_t *)"\x0a\x09x", 3, service), -KVR_EFORMAT);
    assert_int_equal(kvr_health_read(too_long, sizeof too_long, service), -KVR_ELIMIT);
    kvr_health_put(&b, KVR_HEALTH_NOT_SERVING);
    wrote(&b, "write_health");
    kvr_buf_free(&b);
}

static void every_vector_was_looked_at(void **)
{
    char line[8192];
    size_t n = 0;
    FILE *f = fopen(KVR_VECTORS_DIR "/ext_proc/messages.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) n++;
    fclose(f);
    if (!getenv("KVR_TESTS")) assert_int_equal(asked, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_are_read),
        cmocka_unit_test(a_subset_is_a_list_or_a_text),
        cmocka_unit_test(bodies_and_trailers_are_read),
        cmocka_unit_test(what_is_not_known_is_passed_over),
        cmocka_unit_test(what_is_broken_is_refused),
        cmocka_unit_test(structure_without_content_is_limited),
        cmocka_unit_test(answers_are_what_others_write),
        cmocka_unit_test(health_is_read_and_written),
        cmocka_unit_test(every_vector_was_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
