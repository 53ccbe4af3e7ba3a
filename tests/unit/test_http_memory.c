/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that runs out in the HTTP server or client: an answer is whole, or an error, or visibly broken off; the next request works. */
#include "test.h"

#include <stdio.h>

#include "failing_memory.h"
#include "net/http/http.h"

enum { ANSWER = 6 << 20, QUESTION = 300 << 10, PIECE = 64 << 10 };

enum shape { WHOLE, PIECES, UNTIL_CLOSE };

struct stage {
    uv_loop_t loop;
    uv_timer_t clock;
    struct kvr_http_server *server;
    struct kvr_http_client *client;
    enum shape shape;
    /* the answer as the client sees it */
    int status, ends;
    size_t len;
    bool wrong, failed;
};

static char *answer, *question;

static void on_request(struct kvr_http_conn *c, void *ctx)
{
    struct stage *s = ctx;
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    assert_int_equal(rq->body_len, QUESTION);
    assert_memory_equal(rq->body, question, QUESTION);
    if (s->shape == WHOLE) {
        kvr_http_reply(c, 200, "text/plain", "X-More: 1\r\n", answer, ANSWER);
        return;
    }
    kvr_http_start(c, 200, "X-More: 1\r\n", 11, -1);
    for (size_t at = 0; at < ANSWER; at += PIECE) kvr_http_write(c, answer + at, PIECE);
    kvr_http_end(c);
}

static void error_body(struct kvr_buf *b, int, const char *message)
{
    kvr_buf_str(b, message);
}

static void on_head(struct kvr_http_call *, void *ctx, int status, const struct kvr_headers *h, int64_t)
{
    struct stage *s = ctx;
    s->status = status;
    if (status == 200) s->wrong |= !kvr_text_is(kvr_headers_get(h, "x-more"), "1");
}

static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct stage *s = ctx;
    if (s->status == 200) s->wrong |= len > ANSWER - s->len || memcmp(answer + s->len, data, len) != 0;
    s->len += len;
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct stage *s = ctx;
    s->ends++;
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure, const char *)
{
    struct stage *s = ctx;
    s->ends++;
    s->failed = true;
}

static void on_clock(uv_timer_t *t)
{
    (void)t; /* the loop must not sleep for longer than the test looks away */
}

static bool turn(struct stage *s)
{
    uv_run(&s->loop, UV_RUN_ONCE);
    return true;
}

/* One exchange. Returns: whether it came to a whole answer with status 200. */
static bool exchange(struct stage *s)
{
    static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};
    char url[64], head[128];
    struct kvr_endpoint e;
    snprintf(url, sizeof url, "http://127.0.0.1:%u", kvr_http_server_port(s->server));
    assert_int_equal(kvr_endpoint_parse(url, strlen(url), &e), 0);
    snprintf(head, sizeof head, "POST / HTTP/1.%d\r\nHost: x\r\nContent-Length: %d\r\n\r\n", s->shape != UNTIL_CLOSE, QUESTION);
    s->status = s->ends = 0;
    s->len = 0;
    s->wrong = s->failed = false;
    struct kvr_body *body = kvr_body_copy(question, QUESTION);
    struct kvr_http_call_config cc = {
        .endpoint = &e, .head = head, .head_len = strlen(head), .body = body, .connect_timeout_s = 30, .handler = &handler, .ctx = s};
    struct kvr_http_call *call = body ? kvr_http_call_start(s->client, &cc) : NULL;
    kvr_body_unref(body);
    if (!call) return false;
    uint64_t until = seconds_from_now(60);
    while (!(turn(s) && s->ends) && time_is_left(until)) continue;
    assert_int_equal(s->ends, 1);
    assert_false(s->wrong);
    if (!s->failed && s->status == 200) assert_int_equal(s->len, ANSWER); /* not silently shorter */
    return !s->failed && s->status == 200;
}

static void open_stage(struct stage *s, enum shape shape)
{
    *s = (struct stage){.shape = shape};
    uv_loop_init(&s->loop);
    struct kvr_http_server_config c = {.host = "127.0.0.1",
                                       .body_max = 1 << 20,
                                       .connections_max = 10,
                                       .head_timeout_s = 60,
                                       .body_timeout_s = 60,
                                       .idle_timeout_s = 60,
                                       .handler = {on_request, NULL, NULL, error_body, s}};
    assert_int_equal(kvr_http_server_start(&s->loop, &c, &s->server), 0);
    assert_int_equal(kvr_http_client_create(&s->loop, 3, &s->client), 0);
    uv_timer_init(&s->loop, &s->clock);
    uv_timer_start(&s->clock, on_clock, 20, 20);
}

static void close_stage(struct stage *s)
{
    kvr_http_client_close(s->client);
    kvr_http_server_close(s->server);
    uv_close((uv_handle_t *)&s->clock, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&s->loop), 0);
}

/* Each allocation of an exchange fails once; for `more`, it and as many after it. */
static void fail_each(enum shape shape, long more)
{
    for (long n = 0;; n++) {
        struct stage s;
        open_stage(&s, shape);
        assert_true(exchange(&s)); /* a pooled connection for what follows, on both sides */
        memory_fails_at(n, more);
        bool whole = exchange(&s);
        memory_recovers();
        bool reached = memory_has_failed();
        assert_true(whole || reached);
        assert_true(exchange(&s)); /* it goes on */
        assert_true(exchange(&s));
        close_stage(&s);
        if (!reached) return;
        assert_true(n < 10000);
    }
}

static void whole_answers(void **)
{
    fail_each(WHOLE, 0);
    fail_each(WHOLE, 3);
}

static void answers_in_pieces(void **)
{
    fail_each(PIECES, 0);
}

static void answers_until_the_connection_closes(void **)
{
    fail_each(UNTIL_CLOSE, 0);
    fail_each(UNTIL_CLOSE, 2);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(whole_answers), cmocka_unit_test(answers_in_pieces),
                                              cmocka_unit_test(answers_until_the_connection_closes)};
    answer = malloc(ANSWER);
    question = malloc(QUESTION);
    KVR_ASSERT(answer && question);
    for (size_t i = 0; i < ANSWER; i++) answer[i] = (char)('a' + i % 23);
    for (size_t i = 0; i < QUESTION; i++) question[i] = (char)('a' + i % 19);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(answer);
    free(question);
    return rc;
}
