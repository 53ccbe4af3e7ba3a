/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP server over loopback, libuv in the loop, a scripted peer: the input's bytes arrive on one connection in one piece and on
 * another in pieces. What the handler sees, and what the client gets, does not depend on the pieces; every answer is framed
 * right; and a well-formed request on a new connection is answered, whatever was sent before.
 *
 * Input: a byte that seeds the pieces, then bytes of the wire.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/http/http.h"

enum { IN_MAX = 64 * 1024, SEEN_MAX = 1 << 20, BODY_LIMIT = 4096 };

struct seen {
    struct kvr_buf requests, answers; /* what the handler was given, what the client got */
    unsigned n, gone, answered;
};

static uv_loop_t loop;
static struct kvr_http_server *server;
static struct kvr_http_shared shared = {.bodies_max = 64 * 1024};
static struct seen *now;

/* Of whose body nothing is wanted. */
static bool is_strangers(const struct kvr_http_request *rq)
{
    return rq->path.len > 1 && rq->path.ptr[1] == 's';
}

static void on_request(struct kvr_http_conn *c, void *)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    now->n++;
    KVR_ASSERT(rq->path.len && (rq->path.ptr[0] == '/' || kvr_text_is(rq->path, "*")));
    KVR_ASSERT(!is_strangers(rq) || rq->body_len == 0);
    KVR_ASSERT(is_strangers(rq) || !rq->body_unread);
    KVR_ASSERT(rq->body_len <= BODY_LIMIT && rq->headers->n <= KVR_HTTP_HEADERS_MAX);
    KVR_ASSERT(!memchr(rq->target.ptr, ' ', rq->target.len) && !memchr(rq->target.ptr, '#', rq->target.len));
    kvr_buf_printf(&now->requests, "%.*s %d %.*s 1.%d %zu\n", (int)rq->method.len, rq->method.ptr, rq->is_head, (int)rq->target.len,
                   rq->target.ptr, rq->minor, rq->body_len);
    for (size_t i = 0; i < rq->headers->n; i++) {
        struct kvr_text name = kvr_headers_name(rq->headers, i), value = kvr_headers_value(rq->headers, i);
        KVR_ASSERT(name.len > 0);
        for (size_t k = 0; k < name.len; k++) KVR_ASSERT((unsigned char)name.ptr[k] > ' ' && name.ptr[k] != ':' && name.ptr[k] != 0x7f);
        for (size_t k = 0; k < value.len; k++) KVR_ASSERT((unsigned char)value.ptr[k] >= ' ' || value.ptr[k] == '\t');
        kvr_buf_printf(&now->requests, "%.*s=%.*s\n", (int)name.len, name.ptr, (int)value.len, value.ptr);
    }
    kvr_buf_add(&now->requests, rq->body, rq->body_len);
    if (rq->path.len > 1 && rq->path.ptr[1] == 'c') { /* in chunks */
        kvr_http_start(c, 200, "", 0, -1);
        kvr_http_write(c, "some", 4);
        kvr_http_end(c);
    } else {
        kvr_http_reply(c, 200, "text/plain", NULL, "some", 4);
    }
    now->answered++;
}

static void body_room(struct kvr_http_conn *c, void *, struct kvr_http_room *room)
{
    if (is_strangers(kvr_http_conn_request(c))) room->bytes = 0;
}

static void on_gone(struct kvr_http_conn *, void *)
{
    now->gone++;
}

static void error_body(struct kvr_buf *b, int status, const char *message)
{
    KVR_ASSERT(status >= 400 && message);
    kvr_buf_str(b, message);
}

static void start(void)
{
    struct kvr_http_server_config c = {.host = "127.0.0.1",
                                       .body_max = BODY_LIMIT,
                                       .connections_max = 100,
                                       .head_timeout_s = 60,
                                       .body_timeout_s = 60,
                                       .idle_timeout_s = 60,
                                       .shared = &shared,
                                       .handler = {on_request, on_gone, NULL, error_body, NULL},
                                       .body_room = body_room};
    uv_loop_init(&loop);
    KVR_ASSERT(kvr_http_server_start(&loop, &c, &server) == 0);
}

static int dial(void)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(kvr_http_server_port(server)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    struct linger hard = {1, 0}; /* no ports in TIME_WAIT */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    KVR_ASSERT(fd >= 0 && (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 || errno == EINPROGRESS));
    return fd;
}

/* Takes what has come. Returns: whether more may come. */
static bool drain(int fd, struct kvr_buf *to)
{
    char b[16384];
    ssize_t n;
    while ((n = recv(fd, b, sizeof b, 0)) > 0) kvr_buf_add(to, b, (size_t)n);
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

/* Sends the bytes in pieces, then our end of the stream, and waits for the server's. */
static void deliver(const uint8_t *data, size_t len, unsigned seed, struct seen *out)
{
    int fd = dial();
    size_t at = 0;
    bool open = true;
    now = out;
    while (open && at < len) {
        size_t piece = seed ? 1 + (seed = seed * 1103515245u + 12345u) / 65536u % 97u : len;
        ssize_t n = send(fd, data + at, KVR_MIN(piece, len - at), MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) break;
        if (n > 0) at += (size_t)n;
        uv_run(&loop, UV_RUN_NOWAIT);
        open = drain(fd, &out->answers);
    }
    shutdown(fd, SHUT_WR);
    for (int turns = 0; open && turns < 5000; turns++) {
        uv_run(&loop, UV_RUN_NOWAIT);
        open = drain(fd, &out->answers);
    }
    KVR_ASSERT(!open);
    close(fd);
    for (struct kvr_http_server_stats st = {.open = 1}; st.open; kvr_http_server_stats(server, &st)) uv_run(&loop, UV_RUN_NOWAIT);
    KVR_ASSERT(atomic_load(&shared.bodies_held) == 0);
    KVR_ASSERT(out->answered == out->n);
}

/* The answers are whole, one behind the other; only the last may be cut short, by our own end. Returns: how many. */
static unsigned count_answers(const struct kvr_buf *b)
{
    unsigned n = 0;
    const char *p = b->len ? b->data : "", *end = p + b->len;
    while (p < end) {
        const char *head_end = memmem(p, (size_t)(end - p), "\r\n\r\n", 4);
        if (!head_end) return n;
        KVR_ASSERT(end - p >= 13 && memcmp(p, "HTTP/1.1 ", 9) == 0);
        if (memcmp(p + 9, "100", 3) != 0) n++;
        const char *length = memmem(p, (size_t)(head_end - p) + 2, "\r\nContent-Length: ", 18);
        bool chunked = memmem(p, (size_t)(head_end - p) + 2, "\r\nTransfer-Encoding: chunked", 28) != NULL;
        KVR_ASSERT(!(length && chunked));
        p = head_end + 4;
        if (p < end && memcmp(p, "HTTP/1.1 ", KVR_MIN((size_t)(end - p), (size_t)9)) == 0) continue; /* to a HEAD, or interim */
        if (length) p += KVR_MIN((size_t)strtoul(length + 18, NULL, 10), (size_t)(end - p));
        else if (chunked) p += KVR_MIN((size_t)14, (size_t)(end - p)); /* 4 CRLF some CRLF 0 CRLF CRLF */
        else if (p < end) p = end;                                     /* until the connection closes */
    }
    return n;
}

static void still_answers(void)
{
    static const char request[] = "POST /x HTTP/1.1\r\nHost: y\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
    struct seen s = {0};
    deliver((const uint8_t *)request, sizeof request - 1, 0, &s);
    KVR_ASSERT(s.n == 1 && s.answers.len > 12 && memcmp(s.answers.data, "HTTP/1.1 200", 12) == 0);
    KVR_ASSERT(memmem(s.requests.data, s.requests.len, "POST 0 /x 1.1 3\n", 16));
    kvr_buf_free(&s.requests);
    kvr_buf_free(&s.answers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen whole = {0}, pieces = {0};
    if (size < 1 || size > IN_MAX) return 0;
    if (!server) start();
    deliver(data + 1, size - 1, 0, &whole);
    deliver(data + 1, size - 1, 1u + data[0], &pieces);
    KVR_ASSERT(whole.n == pieces.n && whole.requests.len == pieces.requests.len);
    KVR_ASSERT(!whole.requests.len || memcmp(whole.requests.data, pieces.requests.data, whole.requests.len) == 0);
    KVR_ASSERT(count_answers(&whole.answers) <= whole.n + 1 && count_answers(&pieces.answers) <= pieces.n + 1);
    still_answers();
    kvr_buf_free(&whole.requests);
    kvr_buf_free(&whole.answers);
    kvr_buf_free(&pieces.requests);
    kvr_buf_free(&pieces.answers);
    return 0;
}
