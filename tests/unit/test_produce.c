/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that a thread writes: whole, broken off by the thread, left by the client, held up by a client that takes nothing. */
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/http/produce.h"

struct stage {
    uv_loop_t loop;
    struct kvr_http_server *server;
    uint64_t bytes_max; /* the thread writes that much */
    bool fail;          /* and says that it is not all */
    double stall_s;
    _Atomic uint64_t written;
    bool over, sent, gone, thread_stopped;
};

static bool write_body(struct kvr_producer *p, void *arg)
{
    struct stage *s = arg;
    struct kvr_buf b = {0};
    static const char piece[4096] = "x";
    while (s->written < s->bytes_max) {
        kvr_buf_add(&b, piece, sizeof piece);
        s->written += sizeof piece;
        if (b.len >= KVR_PRODUCE_PIECE && kvr_produce(p, &b)) break;
    }
    bool ok = s->written >= s->bytes_max && kvr_produce(p, &b) == 0;
    kvr_buf_free(&b);
    s->thread_stopped = true;
    return ok && !s->fail;
}

static void on_over(void *arg, bool sent, bool gone)
{
    struct stage *s = arg;
    s->over = true;
    s->sent = sent;
    s->gone = gone;
}

static void on_request(struct kvr_http_conn *c, void *ctx)
{
    struct stage *s = ctx;
    struct kvr_produce_config pc = {.loop = &s->loop,
                                    .conn = c,
                                    .headers = "Content-Type: text/plain\r\n",
                                    .fn = write_body,
                                    .on_over = on_over,
                                    .arg = s,
                                    .stall_s = s->stall_s};
    assert_int_equal(kvr_produce_start(&pc), 0);
}

static void no_body(struct kvr_buf *, int, const char *) {}

static int begin(struct stage *s)
{
    struct kvr_http_server_config c = {.host = "127.0.0.1",
                                       .body_max = 1000,
                                       .connections_max = 10,
                                       .head_timeout_s = 60,
                                       .body_timeout_s = 60,
                                       .idle_timeout_s = 60,
                                       .handler = {on_request, kvr_produce_on_gone, kvr_produce_on_drained, no_body, s}};
    uv_loop_init(&s->loop);
    assert_int_equal(kvr_http_server_start(&s->loop, &c, &s->server), 0);
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(kvr_http_server_port(s->server)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_int_equal(write(fd, request, sizeof request - 1), (ssize_t)sizeof request - 1);
    return fd;
}

/* Takes what has come for the client; false once there is no more to come. */
static bool take(int fd, uint64_t *n)
{
    static char sink[1 << 16];
    ssize_t k;
    while ((k = recv(fd, sink, sizeof sink, MSG_DONTWAIT)) > 0) *n += (uint64_t)k;
    return k < 0 && errno == EAGAIN;
}

static bool turn(struct stage *s)
{
    uv_run(&s->loop, UV_RUN_NOWAIT);
    return true;
}

/* Runs until the answer is over and the connection closed; reads from fd what comes unless it is negative. Returns: bytes read. */
static uint64_t run(struct stage *s, int fd)
{
    uint64_t n = 0;
    WAIT_FOR(turn(s) && (fd < 0 || take(fd, &n) || true) && s->over, 20);
    assert_true(s->thread_stopped);
    if (fd >= 0) WAIT_FOR(turn(s) && !take(fd, &n), 20);
    return n;
}

static void finish(struct stage *s)
{
    kvr_http_server_close(s->server);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&s->loop), 0);
}

static void a_whole_answer_arrives(void **)
{
    struct stage s = {.bytes_max = 20 << 20};
    int fd = begin(&s);
    uint64_t n = run(&s, fd);
    assert_true(s.sent && !s.gone && n >= s.bytes_max && n < s.bytes_max + s.bytes_max / 50);
    close(fd);
    finish(&s);
}

static void what_is_not_whole_is_broken_off(void **)
{
    struct stage s = {.bytes_max = 1 << 20, .fail = true};
    int fd = begin(&s);
    run(&s, fd);
    assert_true(!s.sent && !s.gone);
    close(fd);
    finish(&s);
}

static void a_client_that_leaves_ends_the_thread(void **)
{
    struct stage s = {.bytes_max = UINT64_MAX / 2};
    int fd = begin(&s);
    WAIT_FOR(turn(&s) && s.written > 0, 20); /* the thread is at work */
    close(fd);
    run(&s, -1);
    assert_true(s.gone && !s.sent);
    finish(&s);
}

static void a_client_that_takes_nothing_is_cut_off(void **)
{
    struct stage s = {.bytes_max = UINT64_MAX / 2, .stall_s = 0.5};
    int fd = begin(&s);
    run(&s, -1); /* nobody reads */
    assert_true(s.gone && !s.sent);
    assert_true(s.written < 64 << 20); /* what the socket's buffers, the pieces and the thread's buffer hold */
    close(fd);
    finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_answer_arrives),
        cmocka_unit_test(what_is_not_whole_is_broken_off),
        cmocka_unit_test(a_client_that_leaves_ends_the_thread),
        cmocka_unit_test(a_client_that_takes_nothing_is_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
