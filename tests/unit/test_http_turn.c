/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves at the end of a turn of the loop, and what one read brings (net/http/turn.h). */
#include "test.h"

#include <stdio.h>

#include "net/http/http.h"
#include "net/http/turn.h"

enum { CALLS = 3 * KVR__TURN_MAX };

static const char *const pieces[] = {"one ", "two ", "", "three"};
static const char whole[] = "one two three";

struct stage {
    uv_loop_t loop;
    struct kvr_http_server *server;
    struct kvr_http_client *client;
    struct kvr_http_call *calls[CALLS];
    bool closes, looks_at_sent;
    size_t asked, told, done, failed;
    char got[64];
    size_t got_n;
};

static void on_request(struct kvr_http_conn *c, void *ctx)
{
    struct stage *s = ctx;
    s->asked++;
    if (s->closes) {
        kvr_http_reply(c, 200, "text/plain", NULL, whole, sizeof whole - 1);
        kvr_http_server_close(s->server);
        return;
    }
    kvr_http_start(c, 200, "", 0, -1);
    for (size_t i = 0; i < KVR_ARRAY_LEN(pieces); i++) kvr_http_write(c, pieces[i], strlen(pieces[i]));
    if (s->looks_at_sent) assert_false(kvr_http_all_sent(c));
    kvr_http_end(c);
}

static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct stage *s = ctx;
    s->told++;
    s->got_n = KVR_MIN(len, sizeof s->got);
    memcpy(s->got, data, s->got_n);
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct stage *s = ctx;
    s->done++;
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure, const char *)
{
    struct stage *s = ctx;
    s->failed++;
}

static void ask(struct stage *s, size_t n)
{
    static const struct kvr_http_call_handler handler = {NULL, on_body, on_done, on_failed};
    static const char head[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    char url[64];
    struct kvr_endpoint e;
    snprintf(url, sizeof url, "http://127.0.0.1:%u", kvr_http_server_port(s->server));
    assert_int_equal(kvr_endpoint_parse(url, strlen(url), &e), 0);
    struct kvr_http_call_config cc = {
        .endpoint = &e, .head = head, .head_len = sizeof head - 1, .connect_timeout_s = 30, .handler = &handler, .ctx = s};
    for (size_t i = 0; i < n; i++) assert_non_null(s->calls[i] = kvr_http_call_start(s->client, &cc));
}

static void wait_for(struct stage *s, size_t n)
{
    uint64_t until = seconds_from_now(60);
    while (s->done + s->failed < n && time_is_left(until)) uv_run(&s->loop, UV_RUN_ONCE);
    assert_int_equal(s->done, n);
    assert_int_equal(s->failed, 0);
}

static void open_stage(struct stage *s)
{
    memset(s, 0, sizeof *s);
    uv_loop_init(&s->loop);
    struct kvr_http_server_config c = {.host = "127.0.0.1",
                                       .body_max = 1 << 20,
                                       .connections_max = 2 * CALLS,
                                       .head_timeout_s = 60,
                                       .body_timeout_s = 60,
                                       .idle_timeout_s = 60,
                                       .handler = {on_request, NULL, NULL, NULL, s}};
    assert_int_equal(kvr_http_server_start(&s->loop, &c, &s->server), 0);
    assert_int_equal(kvr_http_client_create(&s->loop, 60, &s->client), 0);
}

static void close_stage(struct stage *s)
{
    kvr_http_client_close(s->client);
    if (!s->closes) kvr_http_server_close(s->server);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&s->loop), 0);
}

static void chunks_of_one_read_are_told_of_as_one_piece(void **)
{
    struct stage s;
    open_stage(&s);
    s.looks_at_sent = true;
    ask(&s, 1);
    wait_for(&s, 1);
    assert_int_equal(s.told, 1);
    assert_int_equal(s.got_n, sizeof whole - 1);
    assert_memory_equal(s.got, whole, sizeof whole - 1);
    close_stage(&s);
}

static void more_than_wait_for_one_turn_are_all_served(void **)
{
    struct stage s;
    open_stage(&s);
    ask(&s, CALLS); /* on connections that come up in few turns */
    wait_for(&s, CALLS);
    ask(&s, CALLS); /* all in this turn */
    wait_for(&s, 2 * CALLS);
    assert_int_equal(s.asked, 2 * CALLS);
    close_stage(&s);
}

static void an_answer_is_whole_though_the_server_closes_in_its_turn(void **)
{
    struct stage s;
    open_stage(&s);
    s.closes = true;
    ask(&s, 1);
    wait_for(&s, 1);
    assert_int_equal(s.got_n, sizeof whole - 1);
    close_stage(&s);
}

static void a_call_that_is_cancelled_in_its_turn_is_not_sent(void **)
{
    struct stage s;
    open_stage(&s);
    ask(&s, 2);
    wait_for(&s, 2);
    ask(&s, 2); /* on those connections */
    kvr_http_call_cancel(s.calls[0]);
    wait_for(&s, 3);
    assert_int_equal(s.asked, 3);
    close_stage(&s);
}

static void a_call_is_sent_though_the_client_closes_in_its_turn(void **)
{
    struct stage s;
    open_stage(&s);
    ask(&s, 1);
    wait_for(&s, 1);
    ask(&s, 1);
    kvr_http_client_close(s.client);
    uint64_t until = seconds_from_now(60);
    while (s.asked < 2 && time_is_left(until)) uv_run(&s.loop, UV_RUN_ONCE);
    assert_int_equal(s.asked, 2);
    kvr_http_call_cancel(s.calls[0]);
    kvr_http_server_close(s.server);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&s.loop), 0);
}

/* ---- the turn alone ------------------------------------------------------------------------------------------ */

enum { JOINERS = 2 * KVR__TURN_MAX + 3 };

static struct {
    struct kvr__turn turn;
    struct kvr__turn_place places[JOINERS];
    unsigned sent[JOINERS];
} alone;

/* The first has all others join. */
static void send_and_invite(struct kvr__turn_place *p)
{
    alone.sent[p - alone.places]++;
    if (p != &alone.places[0]) return;
    for (size_t i = 1; i < JOINERS; i++)
        if (!alone.sent[i]) kvr__turn_join(&alone.turn, &alone.places[i]);
}

static void who_is_sent_may_have_others_join(void **)
{
    for (size_t before = 1; before <= KVR__TURN_MAX; before++) {
        memset(&alone, 0, sizeof alone);
        alone.turn.send = send_and_invite;
        for (size_t i = 0; i < before; i++) kvr__turn_join(&alone.turn, &alone.places[i]);
        kvr__turn_send(&alone.turn);
        for (size_t i = 0; i < JOINERS; i++) assert_int_equal(alone.sent[i], 1);
        assert_int_equal(alone.turn.n, 0);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(who_is_sent_may_have_others_join),
                                              cmocka_unit_test(chunks_of_one_read_are_told_of_as_one_piece),
                                              cmocka_unit_test(more_than_wait_for_one_turn_are_all_served),
                                              cmocka_unit_test(an_answer_is_whole_though_the_server_closes_in_its_turn),
                                              cmocka_unit_test(a_call_that_is_cancelled_in_its_turn_is_not_sent),
                                              cmocka_unit_test(a_call_is_sent_though_the_client_closes_in_its_turn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
