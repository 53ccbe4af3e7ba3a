/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP client over loopback, libuv in the loop, against a scripted worker that answers with the input's bytes: once in one
 * piece, once in pieces. Each call ends exactly once, after a head if it is done; head and body do not depend on the pieces; a
 * call to the same worker afterwards gets its own answer and nothing that was left over.
 *
 * Input: a byte of switches (HEAD; keep open; seed of the pieces), then bytes of the wire.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/http/http.h"

enum { IN_MAX = 64 * 1024, CONNS = 8 };

struct seen {
    struct kvr_buf text; /* head and body */
    unsigned heads, ends;
    bool done;
    int status;
};

static uv_loop_t loop;
static struct kvr_http_client *client;
static struct kvr_endpoint endpoint;
static int listener, conns[CONNS];

static void on_head(struct kvr_http_call *, void *ctx, int status, const struct kvr_headers *h, int64_t length)
{
    struct seen *s = ctx;
    KVR_ASSERT(!s->ends && !s->heads && status >= 200 && status <= 999);
    s->heads++;
    s->status = status;
    kvr_buf_printf(&s->text, "%d %lld\n", status, (long long)length);
    for (size_t i = 0; i < h->n; i++) {
        struct kvr_text name = kvr_headers_name(h, i), value = kvr_headers_value(h, i);
        KVR_ASSERT(name.len && !memchr(name.ptr, ' ', name.len) && !memchr(value.ptr, '\n', value.len) &&
                   !memchr(value.ptr, '\r', value.len));
        kvr_buf_printf(&s->text, "%.*s=%.*s\n", (int)name.len, name.ptr, (int)value.len, value.ptr);
    }
}

static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct seen *s = ctx;
    KVR_ASSERT(s->heads == 1 && !s->ends && len);
    kvr_buf_add(&s->text, data, len);
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct seen *s = ctx;
    KVR_ASSERT(s->heads == 1 && !s->ends);
    s->ends++;
    s->done = true;
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure, const char *text)
{
    struct seen *s = ctx;
    KVR_ASSERT(!s->ends && text);
    s->ends++;
}

static void start(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    char url[64];
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    KVR_ASSERT(bind(listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(listener, 64) == 0);
    KVR_ASSERT(getsockname(listener, (struct sockaddr *)&a, &len) == 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", ntohs(a.sin_port));
    KVR_ASSERT(kvr_endpoint_parse(url, strlen(url), &endpoint) == 0);
    uv_loop_init(&loop);
    KVR_ASSERT(kvr_http_client_create(&loop, 60, &client) == 0);
    for (int i = 0; i < CONNS; i++) conns[i] = -1;
}

static void accept_all(void)
{
    for (int i = 0; i < CONNS; i++) {
        if (conns[i] >= 0) continue;
        conns[i] = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        int on = 1;
        if (conns[i] >= 0) setsockopt(conns[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        else return;
    }
}

static void hang_up(int *fd)
{
    struct linger hard = {1, 0};
    setsockopt(*fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(*fd);
    *fd = -1;
}

/* The connection the request has come over, or NULL. */
static int *asked(void)
{
    char b[4096];
    for (int i = 0; i < CONNS; i++) {
        if (conns[i] < 0) continue;
        ssize_t n = recv(conns[i], b, sizeof b, 0);
        if (n > 0) return &conns[i];
        if (n == 0 || errno != EAGAIN) hang_up(&conns[i]);
    }
    return NULL;
}

/* One call, answered with these bytes, after which the connection is ended unless it is kept open and the call is over. */
static void exchange(const uint8_t *data, size_t len, unsigned seed, bool is_head, struct seen *s)
{
    static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};
    const char *head = is_head ? "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n" : "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    struct kvr_http_call_config c = {
        .endpoint = &endpoint, .head = head, .head_len = strlen(head), .is_head = is_head, .handler = &handler, .ctx = s};
    KVR_ASSERT(kvr_http_call_start(client, &c) != NULL);
    int *fd = NULL;
    size_t at = 0;
    for (int turns = 0; !s->ends; turns++) {
        KVR_ASSERT(turns < 200000);
        uv_run(&loop, UV_RUN_NOWAIT);
        accept_all();
        int *again = asked();
        if (again && again != fd) { /* a pooled connection was of no use, and the call begins anew */
            KVR_ASSERT(!fd || *fd < 0 || s->heads == 0);
            fd = again;
            at = 0;
        }
        if (!fd || *fd < 0) continue;
        size_t piece = seed ? 1 + (seed = seed * 1103515245u + 12345u) / 65536u % 61u : len;
        ssize_t n = at < len ? send(*fd, data + at, KVR_MIN(piece, len - at), MSG_NOSIGNAL) : 0;
        if (n > 0) at += (size_t)n;
        if (at == len && !s->ends) shutdown(*fd, SHUT_WR);
    }
    if (fd && *fd >= 0 && at < len) (void)!send(*fd, data + at, len - at, MSG_NOSIGNAL); /* what nobody asked for */
}

static void worker_is_gone(void)
{
    for (int i = 0; i < CONNS; i++)
        if (conns[i] >= 0) hang_up(&conns[i]);
    for (int i = 0; i < 3; i++) uv_run(&loop, UV_RUN_NOWAIT);
}

/* Over whatever connection is left. */
static void still_works(void)
{
    static const char good[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Mine: 1\r\n\r\nright";
    struct seen s = {0};
    for (int i = 0; i < 3; i++) uv_run(&loop, UV_RUN_NOWAIT); /* notices what was sent too much */
    exchange((const uint8_t *)good, sizeof good - 1, 0, false, &s);
    KVR_ASSERT(s.done && s.status == 200);
    KVR_ASSERT(s.text.len == 37 && memcmp(s.text.data, "200 5\nContent-Length=5\nX-Mine=1\nright", 37) == 0);
    kvr_buf_free(&s.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen whole = {0}, pieces = {0};
    if (size < 1 || size > IN_MAX) return 0;
    if (!client) start();
    bool is_head = data[0] & 1, stay = data[0] & 2;
    exchange(data + 1, size - 1, 0, is_head, &whole);
    if (stay) still_works();
    worker_is_gone();
    exchange(data + 1, size - 1, 1u + (data[0] >> 2), is_head, &pieces);
    if (stay) still_works();
    worker_is_gone();
    KVR_ASSERT(whole.done == pieces.done && whole.heads == pieces.heads && whole.status == pieces.status);
    if (whole.done) KVR_ASSERT(whole.text.len == pieces.text.len && memcmp(whole.text.data, pieces.text.data, whole.text.len) == 0);
    still_works();
    worker_is_gone();
    kvr_buf_free(&whole.text);
    kvr_buf_free(&pieces.text);
    return 0;
}
