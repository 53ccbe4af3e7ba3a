/* SPDX-License-Identifier: Apache-2.0 */
/* Who may use a port: tables of requests. */
#include "test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "net/http/access.h"

struct asked {
    struct kvr_headers headers;
    struct kvr_http_request rq;
};

static void add(struct kvr_headers *h, const char *name, const char *value)
{
    assert_int_equal(kvr_headers_add(h, (struct kvr_text){name, strlen(name)}, (struct kvr_text){value, strlen(value)}), 0);
}

/* headers: name, value, ... NULL. Returns: 200, or the refusal's status. */
static int ask(struct kvr_access *a, const char *method, unsigned flags, const char *body, const char *const *headers)
{
    struct kvr_headers h = {0};
    struct kvr_access_refusal no = {0};
    for (; *headers; headers += 2) add(&h, headers[0], headers[1]);
    struct kvr_http_request rq = {.method = {method, strlen(method)}, .minor = 1, .headers = &h, .body = body, .body_len = strlen(body)};
    bool ok = kvr_access_check(a, &rq, flags, &no);
    if (!ok) assert_true(no.text[0] && strlen(no.text) < sizeof no.text - 1);
    kvr_headers_free(&h);
    return ok ? 200 : no.status;
}
#define ASK(a, method, flags, body, ...) ask(a, method, flags, body, (const char *const[]){__VA_ARGS__, NULL})

static size_t room(struct kvr_access *a, const char *authorization)
{
    struct kvr_headers h = {0};
    if (authorization) add(&h, "Authorization", authorization);
    struct kvr_http_request rq = {.method = {"POST", 4}, .minor = 1, .headers = &h};
    size_t n = kvr_access_body_room(a, &rq);
    kvr_headers_free(&h);
    return n;
}

static struct kvr_access *make(const char *bind, const char *hosts, const char *key_file)
{
    struct kvr_access_config c = {bind, hosts, key_file, NULL};
    struct kvr_access *a = NULL;
    char err[400];
    assert_int_equal(kvr_access_create(&c, &a, err, sizeof err), 0);
    return a;
}

static void test_a_name_that_was_pointed_at_the_port_is_refused(void **)
{
    static const char *const good[] = {"127.0.0.1", "127.0.0.1:9090", "[::1]:9090",      "[::1]",          "localhost:9090",
                                       "LOCALHOST", "localhost.",     "10.1.2.3:80",     "router.lan",     "ROUTER.lan:1",
                                       "a.svc.x:9", "a.b.svc.x",      "bound.host:9090", "[fe80::1%eth0]", "203.0.113.7"};
    static const char *const bad[] = {"evil.example",
                                      "evil.example:9090",
                                      "127.0.0.1.evil.example",
                                      "localhost.evil.example",
                                      "x.router.lan",
                                      "svc.x",
                                      ".svc.x",
                                      "evil.example@127.0.0.1",
                                      "127.0.0.1:80:90",
                                      "127.0.0.1:evil",
                                      "[::1",
                                      "[::1]evil",
                                      "",
                                      "evillocalhost",
                                      "xsvc.x",
                                      "0x7f000001.evil",
                                      "127.1 evil",
                                      "[evil.example]:80",
                                      ":9090"};
    struct kvr_access *a = make("bound.host", " router.lan , .svc.x,,", NULL), *any = make("0.0.0.0", "*", NULL);
    for (size_t i = 0; i < KVR_ARRAY_LEN(good); i++)
        if (ASK(a, "GET", 0, "", "Host", good[i]) != 200) fail_msg("refused: %s", good[i]);
    for (size_t i = 0; i < KVR_ARRAY_LEN(bad); i++) {
        if (ASK(a, "GET", 0, "", "Host", bad[i]) != 403) fail_msg("let in: %s", bad[i]);
        assert_int_equal(ASK(a, "GET", KVR_ACCESS_PROBE, "", "Host", bad[i]), 200);
        assert_int_equal(ASK(a, "POST", KVR_ACCESS_PROBE, "", "Host", bad[i]), 403);
        assert_int_equal(ASK(any, "GET", 0, "", "Host", bad[i]), 200);
    }
    char own[256] = "";
    assert_int_equal(gethostname(own, sizeof own - 1), 0);
    assert_int_equal(ASK(a, "GET", 0, "", "Host", own), 200);
    assert_int_equal(ask(a, "GET", 0, "", (const char *const[]){NULL}), 200); /* HTTP/1.0 */
    kvr_access_destroy(a);
    kvr_access_destroy(any);
}

static void test_a_page_of_another_origin_is_refused(void **)
{
    struct kvr_access *a = make("127.0.0.1", "ops.example", NULL), *any = make("127.0.0.1", "*", NULL);
    static const struct {
        const char *host, *origin;
        int status;
    } rows[] = {
        {"127.0.0.1:9090", "http://127.0.0.1:9090", 200},
        {"127.0.0.1:9090", "HTTP://127.0.0.1:9090", 200},
        {"127.0.0.1:9090", "http://127.0.0.1:9091", 403},
        {"127.0.0.1:9090", "http://127.0.0.1", 403},
        {"127.0.0.1:9090", "http://localhost:9090", 403},
        {"127.0.0.1:9090", "null", 403},
        {"127.0.0.1:9090", "", 403},
        {"127.0.0.1:9090", "http://evil.example", 403},
        {"127.0.0.1:9090", "https://ops.example", 200},
        {"127.0.0.1:9090", "https://ops.example:8443", 200},
        {"127.0.0.1:9090", "https://xops.example", 403},
        {"127.0.0.1", "http://127.0.0.1", 200},
        {"127.0.0.1", "http://127.0.0.1:80", 200},
        {"127.0.0.1:443", "https://127.0.0.1", 200},
        {"127.0.0.1:80", "https://127.0.0.1", 403},
        {"[::1]:9090", "http://[::1]:9090", 200},
        {"127.0.0.1:9090", "file://127.0.0.1:9090", 403},
        {"127.0.0.1:9090", "http://127.0.0.1:9090 http://evil.example", 403},
        {"127.0.0.1:9090", "http://127.0.0.1:9090.evil.example", 403},
    };
    static const char *const methods[] = {"GET", "POST", "PATCH", "DELETE"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        for (size_t m = 0; m < KVR_ARRAY_LEN(methods); m++)
            if (ASK(a, methods[m], 0, "", "Host", rows[i].host, "Origin", rows[i].origin) != rows[i].status)
                fail_msg("%s to %s from %s: not %d", methods[m], rows[i].host, rows[i].origin, rows[i].status);
    assert_int_equal(ASK(any, "POST", 0, "", "Host", "x", "Origin", "http://evil.example"), 403);
    assert_int_equal(ASK(any, "POST", 0, "", "Host", "x", "Origin", "http://x"), 200);
    assert_int_equal(ASK(a, "POST", 0, "", "Host", "[::1]", "Origin", "http://[::1]", "Origin", "http://evil.example"), 403);
    kvr_access_destroy(a);
    kvr_access_destroy(any);
}

static void test_a_body_must_be_said_to_be_json(void **)
{
    struct kvr_access *a = make(NULL, NULL, NULL);
    static const struct {
        const char *type;
        int plain, packed;
    } rows[] = {{"application/json", 200, 200},
                {"Application/JSON; charset=utf-8", 200, 200},
                {"application/json ;x", 200, 200},
                {"application/msgpack", 415, 200},
                {"text/plain", 415, 415},
                {"text/plain; application/json", 415, 415},
                {"application/jsonx", 415, 415},
                {"application/x-www-form-urlencoded", 415, 415},
                {"multipart/form-data; boundary=application/json", 415, 415},
                {"", 415, 415}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        assert_int_equal(ASK(a, "POST", 0, "{}", "Host", "::1", "Content-Type", rows[i].type) == 200, 0); /* that is no Host */
        assert_int_equal(ASK(a, "POST", 0, "{}", "Host", "[::1]", "Content-Type", rows[i].type), rows[i].plain);
        assert_int_equal(ASK(a, "DELETE", 0, "{}", "Host", "[::1]", "Content-Type", rows[i].type), rows[i].plain);
        assert_int_equal(ASK(a, "POST", KVR_ACCESS_PACKED, "{}", "Host", "[::1]", "Content-Type", rows[i].type), rows[i].packed);
    }
    assert_int_equal(ASK(a, "POST", 0, "{}", "Host", "[::1]"), 415);
    assert_int_equal(ASK(a, "POST", 0, "{}", "Host", "[::1]", "Content-Type", "application/json", "Content-Type", "text/plain"), 415);
    assert_int_equal(ASK(a, "POST", 0, "", "Host", "[::1]"), 200);
    kvr_access_destroy(a);
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void test_keys_and_their_reload(void **)
{
    char path[] = "/tmp/kvr-keys-XXXXXX", err[400];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_file(path, "# two\nfirst-key\r\n\nsecond\n");
    struct kvr_access *a = make("0.0.0.0", NULL, path);
    assert_true(kvr_access_has_keys(a));
    static const struct {
        const char *value;
        int status;
    } rows[] = {{"Bearer first-key", 200}, {"bearer second", 200}, {"Bearer first-keyx", 401}, {"Bearer first-ke", 401}, {"Bearer ", 401},
                {"Bearer", 401},           {"first-key", 401},     {"Basic first-key", 401},   {"Bearer # two", 401},    {"", 401}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        if (ASK(a, "GET", 0, "", "Host", "[::1]", "Authorization", rows[i].value) != rows[i].status) fail_msg("%s", rows[i].value);
        assert_int_equal(room(a, rows[i].value), rows[i].status == 200 ? SIZE_MAX : 0); /* and no body is read of who has none */
    }
    assert_int_equal(room(a, NULL), 0);
    assert_int_equal(ASK(a, "GET", 0, "", "Host", "[::1]"), 401);
    assert_int_equal(ASK(a, "GET", KVR_ACCESS_KEYLESS, "", "Host", "[::1]"), 200);
    assert_int_equal(ASK(a, "POST", KVR_ACCESS_KEYLESS, "", "Host", "[::1]"), 401);
    assert_int_equal(ASK(a, "GET", KVR_ACCESS_PROBE, "", "Host", "[::1]"), 200);
    write_file(path, "third\n");
    assert_int_equal(kvr_access_reload(a, err, sizeof err), 0);
    assert_int_equal(ASK(a, "GET", 0, "", "Host", "[::1]", "Authorization", "Bearer second"), 401);
    assert_int_equal(ASK(a, "GET", 0, "", "Host", "[::1]", "Authorization", "Bearer third"), 200);
    write_file(path, "# none\n");
    assert_int_equal(kvr_access_reload(a, err, sizeof err), -1);
    assert_non_null(strstr(err, "no key in"));
    assert_int_equal(ASK(a, "GET", 0, "", "Host", "[::1]"), 401); /* no way in for everybody */
    assert_int_equal(ASK(a, "GET", 0, "", "Host", "[::1]", "Authorization", "Bearer third"), 200);
    kvr_access_destroy(a);
    struct kvr_access_config c = {.key_file = path};
    assert_int_equal(kvr_access_create(&c, &a, err, sizeof err), -1);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < KVR_KEY_MAX; i++) fputc('k', f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(kvr_access_create(&c, &a, err, sizeof err), -1);
    assert_non_null(strstr(err, "too long"));
    unlink(path);
    assert_int_equal(kvr_access_create(&c, &a, err, sizeof err), -1);
    assert_non_null(strstr(err, "No such file"));
}

static void test_the_address_decides_about_the_warning(void **)
{
    static const struct {
        const char *bind;
        bool warns;
    } rows[] = {{"127.0.0.1", false}, {"127.1.2.3", false}, {"::1", false},    {"localhost", false},
                {"0.0.0.0", true},    {"::", true},         {"10.0.0.1", true}};
    char text[200];
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        struct kvr_access *a = make(rows[i].bind, NULL, NULL);
        assert_int_equal(kvr_access_warning(a, text, sizeof text), rows[i].warns);
        kvr_access_destroy(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_name_that_was_pointed_at_the_port_is_refused),
        cmocka_unit_test(test_a_page_of_another_origin_is_refused),
        cmocka_unit_test(test_a_body_must_be_said_to_be_json),
        cmocka_unit_test(test_keys_and_their_reload),
        cmocka_unit_test(test_the_address_decides_about_the_warning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
