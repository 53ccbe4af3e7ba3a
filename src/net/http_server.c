/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP server. A connection carries one exchange at a time:
 *
 *     reading --whole request--> answering --end--> reading ...           bytes that arrive while answering wait
 *        \---- bad, late, gone ----> closing <---/                        in `ahead` (bounded), then are parsed
 *
 * llhttp is strict, and what it lets pass is refused here before it sees the bytes: line feeds without carriage
 * return and folded lines in the header section; afterwards: a missing or repeated Host.
 *
 * Answers are written with uv_try_write first, so a chunk goes out in the same loop turn with one system call;
 * what the socket does not take is copied to a write request. Deadlines are checked once a second for all
 * connections, which costs less than a timer each.
 */
#include "net/http_internal.h"

#include <string.h>

struct kvr_http_server {
    uv_tcp_t tcp;
    uv_timer_t sweep;
    struct kvr_http_server_config config;
    struct kvr_http_conn *conns;
    struct kvr_http_server_stats stats;
    llhttp_settings_t settings;
    int handles; /* open handles of the server itself */
    bool draining, closed, listening;
    char plain[64 * 1024];       /* what TLS has made of read_buffer */
    char read_buffer[64 * 1024]; /* reads are handled before the next one, so one buffer serves all */
};

struct kvr_http_conn {
    uv_tcp_t tcp;
    uv_shutdown_t shutdown;
    llhttp_t parser;
    struct kvr_tls *tls; /* NULL: plain */
    struct kvr_http_server *server;
    struct kvr_http_conn *next, *prev;
    void *user;
    struct kvr_http_request request;
    struct kvr_headers headers;
    struct kvr_buf method_target; /* target text */
    struct kvr_buf arriving;      /* the body, as far as it has come */
    struct kvr_body *body;        /* and when it is whole */
    struct kvr_buf ahead;
    uint64_t deadline_ms; /* 0: none */
    size_t queued;        /* bytes in write requests */
    size_t head_bytes;
    unsigned last_two; /* the last two bytes of the header section, for the scan */
    uint8_t line_start;
    bool in_value, in_head, started_message;
    bool answering, answer_started, chunked, keep_alive, close_when_sent, closing, above_high, expect_continue, read_stopped, lingering,
        write_failed; /* closed by the next sweep, so that writing never calls back */
    int64_t left;     /* body bytes still to be sent when the length is known; -1 unknown */
    int fail_status;
};

struct write_req {
    uv_write_t req;
    struct kvr_http_conn *conn;
    size_t len;
    char data[];
};

static void conn_close(struct kvr_http_conn *c);
static void linger(struct kvr_http_conn *c);
static void parse_ahead(struct kvr_http_conn *c);

static uint64_t now_ms(const struct kvr_http_server *s)
{
    return uv_now(s->tcp.loop);
}

static void set_deadline(struct kvr_http_conn *c, double seconds)
{
    c->deadline_ms = seconds > 0 ? now_ms(c->server) + (uint64_t)(seconds * 1000) + 1 : 0;
}

/* ---- writing ----------------------------------------------------------------------------------------- */

static void on_written(uv_write_t *req, int status)
{
    struct write_req *w = (struct write_req *)req;
    struct kvr_http_conn *c = w->conn;
    c->queued -= w->len;
    free(w);
    if (c->closing) return;
    if (status < 0) {
        conn_close(c);
        return;
    }
    if (c->above_high && c->queued < KVR_HTTP_LOW_WATER) {
        c->above_high = false;
        if (c->answering && c->server->config.handler.on_drained) c->server->config.handler.on_drained(c, c->server->config.handler.ctx);
    }
    if (c->queued == 0 && c->close_when_sent && !c->answering) linger(c);
}

/* Bytes for the wire. */
static void send_raw(struct kvr_http_conn *c, uv_buf_t *bufs, unsigned n)
{
    size_t total = 0, sent = 0;
    if (c->closing) return;
    for (unsigned i = 0; i < n; i++) total += bufs[i].len;
    if (c->queued == 0) {
        int rc = uv_try_write((uv_stream_t *)&c->tcp, bufs, n);
        if (rc < 0 && rc != UV_EAGAIN) return; /* the read side reports it */
        if (rc > 0) sent = (size_t)rc;
    }
    if (sent == total) return;
    struct write_req *w = malloc(sizeof *w + total - sent);
    if (!w) {
        c->write_failed = true;
        return;
    }
    w->conn = c;
    w->len = 0;
    for (unsigned i = 0; i < n; i++) {
        size_t skip = KVR_MIN(sent, bufs[i].len);
        memcpy(w->data + w->len, bufs[i].base + skip, bufs[i].len - skip);
        w->len += bufs[i].len - skip;
        sent -= skip;
    }
    c->queued += w->len;
    if (c->queued > KVR_HTTP_HIGH_WATER) c->above_high = true;
    uv_buf_t b = uv_buf_init(w->data, (unsigned)w->len);
    if (uv_write(&w->req, (uv_stream_t *)&c->tcp, &b, 1, on_written)) {
        c->queued -= w->len;
        free(w);
        c->write_failed = true;
    }
}

static void flush_tls(struct kvr_http_conn *c)
{
    char *data;
    size_t n = kvr_tls_pending(c->tls, &data);
    if (!n) return;
    uv_buf_t b = uv_buf_init(data, (unsigned)n);
    send_raw(c, &b, 1);
    kvr_tls_sent(c->tls);
}

static void send_bufs(struct kvr_http_conn *c, uv_buf_t *bufs, unsigned n)
{
    if (!c->tls) {
        send_raw(c, bufs, n);
        return;
    }
    for (unsigned i = 0; i < n && !c->closing; i++)
        if (!kvr_tls_write(c->tls, bufs[i].base, bufs[i].len)) c->write_failed = true;
    flush_tls(c);
}

static uv_buf_t buf_of(const char *data, size_t len)
{
    return uv_buf_init((char *)(uintptr_t)data, (unsigned)len);
}

/* The head, and in the same go a body of `length` bytes when there is one. */
static void start_with(struct kvr_http_conn *c, int status, const char *headers, size_t headers_len, int64_t length, const char *body)
{
    char line[128], framing[96];
    KVR_ASSERT(c->answering && !c->answer_started);
    c->answer_started = true;
    bool is_head = kvr_text_is(c->request.method, "HEAD");
    bool no_body = is_head || status == 204 || status == 304;
    c->chunked = !no_body && length < 0 && c->request.minor >= 1;
    if (!no_body && length < 0 && !c->chunked) c->keep_alive = false;
    c->left = no_body ? 0 : length;
    if (c->server->draining) c->keep_alive = false;
    int a = snprintf(line, sizeof line, "HTTP/1.1 %d %s\r\n", status, kvr_http_reason(status)), b = 0;
    if (c->chunked) b = snprintf(framing, sizeof framing, "Transfer-Encoding: chunked\r\n");
    else if (length >= 0 && status != 204 && status != 304)
        b = snprintf(framing, sizeof framing, "Content-Length: %lld\r\n", (long long)length);
    const char *end = c->keep_alive ? (c->request.minor >= 1 ? "\r\n" : "Connection: keep-alive\r\n\r\n") : "Connection: close\r\n\r\n";
    size_t body_len = body && c->left > 0 ? (size_t)c->left : 0;
    c->left -= (int64_t)body_len;
    uv_buf_t bufs[] = {buf_of(line, (size_t)a), buf_of(headers, headers_len), buf_of(framing, (size_t)b), buf_of(end, strlen(end)),
                       buf_of(body, body_len)};
    send_bufs(c, bufs, body_len ? 5 : 4);
}

void kvr_http_start(struct kvr_http_conn *c, int status, const char *headers, size_t headers_len, int64_t length)
{
    start_with(c, status, headers, headers_len, length, NULL);
}

size_t kvr_http_write(struct kvr_http_conn *c, const char *data, size_t len)
{
    char size[24];
    if (len == 0 || c->closing) return c->queued;
    if (c->chunked) {
        int n = snprintf(size, sizeof size, "%zx\r\n", len);
        uv_buf_t bufs[] = {buf_of(size, (size_t)n), buf_of(data, len), buf_of("\r\n", 2)};
        send_bufs(c, bufs, 3);
    } else if (c->left != 0) {
        if (c->left > 0) {
            len = KVR_MIN(len, (size_t)c->left);
            c->left -= (int64_t)len;
        }
        uv_buf_t b = buf_of(data, len);
        send_bufs(c, &b, 1);
    }
    return c->queued;
}

static void free_body(struct kvr_http_conn *c)
{
    kvr_buf_free(&c->arriving);
    kvr_body_unref(c->body);
    c->body = NULL;
}

static void begin_message(struct kvr_http_conn *c)
{
    kvr__headers_reset(&c->headers);
    if (c->headers.text.cap > 4096) kvr_headers_free(&c->headers);
    free_body(c);
    c->method_target.len = 0;
    c->request = (struct kvr_http_request){0};
    c->in_head = true;
    c->in_value = c->started_message = c->expect_continue = false;
    c->head_bytes = 0;
    c->last_two = 0;
    c->line_start = 0;
    c->fail_status = 0;
}

static void answer_over(struct kvr_http_conn *c)
{
    c->answering = c->answer_started = false;
    c->user = NULL;
    if (c->closing) return;
    if (!c->keep_alive || c->server->draining) {
        c->close_when_sent = true;
        if (c->queued == 0) linger(c);
        return;
    }
    begin_message(c);
    set_deadline(c, c->server->config.idle_timeout_s);
    llhttp_resume(&c->parser);
    parse_ahead(c);
}

void kvr_http_end(struct kvr_http_conn *c)
{
    KVR_ASSERT(c->answering);
    if (c->chunked) {
        uv_buf_t b = buf_of("0\r\n\r\n", 5);
        send_bufs(c, &b, 1);
    } else if (c->left > 0) {
        c->keep_alive = false; /* shorter than announced: the client must notice */
    }
    answer_over(c);
}

void kvr_http_abort(struct kvr_http_conn *c)
{
    c->answering = c->answer_started = false;
    c->user = NULL;
    if (c->closing) return;
    c->keep_alive = false;
    c->close_when_sent = true;
    if (c->queued == 0) conn_close(c);
}

void kvr_http_reply(struct kvr_http_conn *c, int status, const char *content_type, const char *extra_headers, const char *body, size_t len)
{
    struct kvr_buf h = {0};
    if (content_type) kvr_buf_printf(&h, "Content-Type: %s\r\n", content_type);
    if (extra_headers) kvr_buf_str(&h, extra_headers);
    start_with(c, status, h.data ? h.data : "", h.len, (int64_t)len, body);
    kvr_buf_free(&h);
    kvr_http_end(c);
}

void kvr_http_close_after(struct kvr_http_conn *c)
{
    c->keep_alive = false;
}

/* An error before the request was whole: answer and close. */
static void refuse(struct kvr_http_conn *c, int status, const char *message)
{
    struct kvr_buf body = {0};
    if (c->answering) return;
    c->answering = true;
    c->keep_alive = false;
    c->request.minor = 1;
    if (!c->request.method.ptr) c->request.method = (struct kvr_text){"GET", 3};
    if (c->server->config.handler.error_body) c->server->config.handler.error_body(&body, status, message);
    if (status == 413) c->server->stats.too_large++;
    else if (status == 408) c->server->stats.timeouts++;
    else c->server->stats.bad_requests++;
    kvr_http_reply(c, status, "application/json", NULL, body.data ? body.data : "", body.len);
    kvr_buf_free(&body);
}

/* ---- parsing ----------------------------------------------------------------------------------------- */

static struct kvr_http_conn *conn_of(llhttp_t *p)
{
    return (struct kvr_http_conn *)((char *)p - offsetof(struct kvr_http_conn, parser));
}

static int fail(struct kvr_http_conn *c, int status)
{
    c->fail_status = status;
    return HPE_USER;
}

static int on_url(llhttp_t *p, const char *at, size_t len)
{
    struct kvr_http_conn *c = conn_of(p);
    kvr_buf_add(&c->method_target, at, len);
    return c->method_target.failed ? fail(c, 503) : 0;
}

static int on_field(llhttp_t *p, const char *at, size_t len)
{
    struct kvr_http_conn *c = conn_of(p);
    bool fresh = c->in_value || c->headers.n == 0;
    c->in_value = false;
    return kvr__headers_name(&c->headers, at, len, fresh) ? fail(c, 431) : 0;
}

static int on_value(llhttp_t *p, const char *at, size_t len)
{
    struct kvr_http_conn *c = conn_of(p);
    bool fresh = !c->in_value;
    c->in_value = true;
    return kvr__headers_value(&c->headers, at, len, fresh) ? fail(c, 431) : 0;
}

static size_t count_headers(const struct kvr_headers *h, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < h->n; i++) n += kvr_text_is_nocase(kvr_headers_name(h, i), name);
    return n;
}

static int on_head_complete(llhttp_t *p)
{
    struct kvr_http_conn *c = conn_of(p);
    c->in_head = false;
    c->request.minor = p->http_minor;
    if (p->http_major != 1) return fail(c, 400);
    size_t hosts = count_headers(&c->headers, "host");
    if (hosts > 1 || (hosts == 0 && p->http_minor >= 1)) return fail(c, 400);
    if (count_headers(&c->headers, "content-length") > 1) return fail(c, 400);
    bool has_te = count_headers(&c->headers, "transfer-encoding") > 0;
    if (has_te && count_headers(&c->headers, "content-length")) return fail(c, 400);
    if (has_te && !(p->flags & F_CHUNKED)) return fail(c, 501);
    if (p->content_length > c->server->config.body_max && (p->flags & F_CONTENT_LENGTH)) return fail(c, 413);
    if (p->method == HTTP_CONNECT) return fail(c, 405);
    p->upgrade = 0; /* an offered upgrade (h2c, say) is not taken; the request is served as it is */
    c->expect_continue = kvr_text_is_nocase(kvr_headers_get(&c->headers, "expect"), "100-continue");
    c->keep_alive = llhttp_should_keep_alive(p);
    set_deadline(c, c->server->config.body_timeout_s);
    if (c->expect_continue && (p->flags & F_CHUNKED || p->content_length > 0)) {
        uv_buf_t b = buf_of("HTTP/1.1 100 Continue\r\n\r\n", 25);
        send_bufs(c, &b, 1);
    }
    return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t len)
{
    struct kvr_http_conn *c = conn_of(p);
    if (len > c->server->config.body_max || c->arriving.len > c->server->config.body_max - len) return fail(c, 413);
    if (c->arriving.cap == 0 && p->flags & F_CONTENT_LENGTH)
        kvr_buf_reserve(&c->arriving, KVR_MIN(len + p->content_length, (size_t)1 << 20));
    kvr_buf_add(&c->arriving, at, len);
    set_deadline(c, c->server->config.body_timeout_s);
    return c->arriving.failed ? fail(c, 503) : 0;
}

static int on_complete(llhttp_t *p)
{
    struct kvr_http_conn *c = conn_of(p);
    if (c->arriving.len && !(c->body = kvr_body_take(&c->arriving))) return fail(c, 503);
    return HPE_PAUSED;
}

static void dispatch(struct kvr_http_conn *c)
{
    const char *method = llhttp_method_name((llhttp_method_t)c->parser.method);
    c->request.method = (struct kvr_text){method, strlen(method)};
    c->request.target = (struct kvr_text){c->method_target.data ? c->method_target.data : "", c->method_target.len};
    const char *q = memchr(c->request.target.ptr, '?', c->request.target.len);
    size_t path_len = q ? (size_t)(q - c->request.target.ptr) : c->request.target.len;
    c->request.path = (struct kvr_text){c->request.target.ptr, path_len};
    if (q) c->request.query = (struct kvr_text){q + 1, c->request.target.len - path_len - 1};
    c->request.headers = &c->headers;
    c->request.body = c->body ? c->body->data : NULL;
    c->request.body_len = c->body ? c->body->len : 0;
    c->answering = true;
    c->answer_started = false;
    c->deadline_ms = 0;
    c->server->stats.requests++;
    c->server->config.handler.on_request(c, c->server->config.handler.ctx);
}

/* Refuses what llhttp tolerates in a header section. Returns: bytes scanned up to and with its end, or -1. */
static long scan_head(struct kvr_http_conn *c, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char ch = (unsigned char)data[i];
        bool after_cr = (c->last_two & 0xff) == '\r';
        if (!c->started_message) { /* blank lines before a request are allowed */
            if (ch == '\r' || ch == '\n') continue;
            c->started_message = true;
            c->line_start = 0;
            set_deadline(c, c->server->config.head_timeout_s);
        }
        if (ch == '\n' && !after_cr) return -1;
        if (ch == '\n') {
            bool blank = c->line_start == 1;
            c->line_start = 1;
            c->last_two = 0;
            if (blank) return (long)i + 1;
            continue;
        }
        if (c->line_start == 1 && (ch == ' ' || ch == '\t')) return -1;
        if (ch != '\r') c->line_start = 2;
        c->last_two = (c->last_two << 8 | ch) & 0xffff;
    }
    return (long)len;
}

/* Returns: bytes consumed; less than len when a request is complete or the connection is over. */
static size_t parse(struct kvr_http_conn *c, const char *data, size_t len)
{
    size_t used = 0;
    while (used < len && !c->answering && !c->closing && !c->close_when_sent) {
        size_t n = len - used;
        if (c->in_head) {
            long head = scan_head(c, data + used, n);
            if (head < 0) {
                refuse(c, 400, "malformed header section");
                return len;
            }
            n = (size_t)head;
            c->head_bytes += n;
            if (c->head_bytes > KVR_HTTP_HEAD_MAX) {
                refuse(c, 431, "the header section is too large");
                return len;
            }
        }
        llhttp_errno_t e = llhttp_execute(&c->parser, data + used, n);
        if (e == HPE_PAUSED) {
            used = (size_t)(llhttp_get_error_pos(&c->parser) - data);
            dispatch(c);
        } else if (e != HPE_OK) {
            int status = c->fail_status ? c->fail_status : 400;
            refuse(c, status,
                   status == 413   ? "the request body is larger than the limit"
                   : status == 431 ? "the header section is too large"
                   : status == 501 ? "this transfer encoding is not supported"
                   : status == 503 ? "out of memory"
                                   : "malformed HTTP request");
            return len;
        } else {
            used += n;
        }
    }
    return used;
}

static void resume_reading(struct kvr_http_conn *c);

static void parse_ahead(struct kvr_http_conn *c)
{
    if (c->ahead.len == 0) return;
    struct kvr_buf ahead = c->ahead;
    c->ahead = (struct kvr_buf){0};
    size_t used = parse(c, ahead.data, ahead.len);
    if (!c->closing && used < ahead.len) {
        /* parse_ahead may have run again below us; what it left comes after what we leave */
        struct kvr_buf rest = {0};
        kvr_buf_add(&rest, ahead.data + used, ahead.len - used);
        kvr_buf_add(&rest, c->ahead.data, c->ahead.len);
        kvr_buf_free(&c->ahead);
        c->ahead = rest;
    }
    kvr_buf_free(&ahead);
    if (!c->closing && c->read_stopped && c->ahead.len <= KVR_HTTP_PIPELINE_MAX) resume_reading(c);
}

/* ---- connections ------------------------------------------------------------------------------------- */

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf)
{
    struct kvr_http_conn *c = h->data;
    (void)hint;
    *buf = uv_buf_init(c->server->read_buffer, sizeof c->server->read_buffer);
}

/* Plain bytes of a request. */
static void take(struct kvr_http_conn *c, const char *data, size_t n)
{
    size_t used = 0;
    if (!c->answering && c->ahead.len == 0) used = parse(c, data, n);
    if (c->closing || c->close_when_sent || used == n) return;
    kvr_buf_add(&c->ahead, data + used, n - used);
    if (c->ahead.failed) {
        conn_close(c);
        return;
    }
    if (!c->answering) parse_ahead(c);
    if (!c->closing && c->ahead.len > KVR_HTTP_PIPELINE_MAX) {
        c->read_stopped = true;
        uv_read_stop((uv_stream_t *)&c->tcp);
    }
}

/* The connection ends: was it before TLS stood? */
static void note_handshake(const struct kvr_http_conn *c)
{
    if (c->tls && !kvr_tls_is_up(c->tls) && c->server->config.tls_failures) atomic_fetch_add(c->server->config.tls_failures, 1);
}

static void take_tls(struct kvr_http_conn *c, const char *data, size_t n)
{
    long got = kvr_tls_feed(c->tls, data, n) ? 1 : -1;
    while (got > 0 && !c->closing && !c->lingering) {
        got = kvr_tls_read(c->tls, c->server->plain, sizeof c->server->plain);
        if (got > 0) take(c, c->server->plain, (size_t)got);
    }
    if (c->closing) return;
    flush_tls(c); /* the handshake's part, an alert */
    if (got >= 0) return;
    note_handshake(c);
    conn_close(c);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct kvr_http_conn *c = stream->data;
    if (n == 0) return;
    if (n < 0) {
        note_handshake(c);
        conn_close(c);
        return;
    }
    if (c->lingering) return;
    if (c->tls) take_tls(c, buf->base, (size_t)n);
    else take(c, buf->base, (size_t)n);
}

static void resume_reading(struct kvr_http_conn *c)
{
    c->read_stopped = false;
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
}

static void server_maybe_free(struct kvr_http_server *s)
{
    if (s->closed && s->handles == 0 && !s->conns) free(s);
}

static void on_conn_closed(uv_handle_t *h)
{
    struct kvr_http_conn *c = h->data;
    struct kvr_http_server *s = c->server;
    if (c->next) c->next->prev = c->prev;
    *(c->prev ? &c->prev->next : &s->conns) = c->next;
    s->stats.open--;
    kvr_headers_free(&c->headers);
    kvr_buf_free(&c->method_target);
    free_body(c);
    kvr_buf_free(&c->ahead);
    kvr_tls_free(c->tls);
    free(c);
    server_maybe_free(s);
}

static void conn_close(struct kvr_http_conn *c)
{
    if (c->closing) return;
    c->closing = true;
    uv_close((uv_handle_t *)&c->tcp, on_conn_closed);
    if (c->answering && c->user && c->server->config.handler.on_gone) c->server->config.handler.on_gone(c, c->server->config.handler.ctx);
    c->answering = false;
}

/* Everything is sent. A client that is still sending would lose our answer to a reset if we closed now, so only our
 * side is shut, and what still comes is thrown away until the client closes or two seconds have passed. */
static void linger(struct kvr_http_conn *c)
{
    if (c->closing || c->lingering) return;
    c->lingering = true;
    set_deadline(c, 2);
    if (c->tls) {
        kvr_tls_shutdown(c->tls);
        flush_tls(c);
    }
    if (uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, NULL)) conn_close(c);
    else if (c->read_stopped) resume_reading(c);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct kvr_http_server *s = listener->data;
    if (status < 0) return;
    struct kvr_http_conn *c = calloc(1, sizeof *c);
    if (!c) return;
    c->server = s;
    uv_tcp_init(listener->loop, &c->tcp);
    c->tcp.data = c;
    s->stats.connections++;
    s->stats.open++;
    c->next = s->conns;
    if (c->next) c->next->prev = c;
    s->conns = c;
    if (uv_accept(listener, (uv_stream_t *)&c->tcp) || s->stats.open > s->config.connections_max) {
        s->stats.refused_connections++;
        conn_close(c);
        return;
    }
    if (s->config.tls && !(c->tls = kvr_tls_new(s->config.tls))) {
        conn_close(c);
        return;
    }
    uv_tcp_nodelay(&c->tcp, 1);
    llhttp_init(&c->parser, HTTP_REQUEST, &s->settings);
    begin_message(c);
    set_deadline(c, s->config.head_timeout_s);
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
}

static void on_sweep(uv_timer_t *t)
{
    struct kvr_http_server *s = t->data;
    uint64_t now = now_ms(s);
    for (struct kvr_http_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (c->write_failed) conn_close(c);
        if (c->closing || c->answering || !c->deadline_ms || now < c->deadline_ms) continue;
        if (c->started_message && !c->close_when_sent) {
            refuse(c, 408, "the request did not arrive in time");
            set_deadline(c, 5);
        } else {
            conn_close(c);
        }
    }
}

/* ---- server ------------------------------------------------------------------------------------------ */

static void on_server_handle_closed(uv_handle_t *h)
{
    struct kvr_http_server *s = h->data;
    s->handles--;
    server_maybe_free(s);
}

static int listen_on(struct kvr_http_server *s)
{
    struct sockaddr_storage addr;
    if (uv_ip4_addr(s->config.host, s->config.port, (struct sockaddr_in *)&addr) &&
        uv_ip6_addr(s->config.host, s->config.port, (struct sockaddr_in6 *)&addr))
        return UV_EINVAL;
    if (s->config.reuse_port) {
        uv_os_fd_t fd;
        int on = 1;
        if (uv_fileno((uv_handle_t *)&s->tcp, &fd) == 0) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    }
    int rc = uv_tcp_bind(&s->tcp, (struct sockaddr *)&addr, 0);
    return rc ? rc : uv_listen((uv_stream_t *)&s->tcp, 1024, on_connection);
}

int kvr_http_server_start(uv_loop_t *loop, const struct kvr_http_server_config *config, struct kvr_http_server **out)
{
    struct kvr_http_server *s = calloc(1, sizeof *s);
    if (!s) return UV_ENOMEM;
    s->config = *config;
    llhttp_settings_init(&s->settings);
    s->settings.on_url = on_url;
    s->settings.on_header_field = on_field;
    s->settings.on_header_value = on_value;
    s->settings.on_headers_complete = on_head_complete;
    s->settings.on_body = on_body;
    s->settings.on_message_complete = on_complete;
    uv_tcp_init_ex(loop, &s->tcp, strchr(config->host, ':') ? AF_INET6 : AF_INET);
    uv_timer_init(loop, &s->sweep);
    s->tcp.data = s->sweep.data = s;
    s->handles = 2;
    int rc = listen_on(s);
    if (rc) {
        kvr_http_server_close(s);
        return rc;
    }
    uv_timer_start(&s->sweep, on_sweep, 1000, 1000);
    uv_unref((uv_handle_t *)&s->sweep);
    s->listening = true;
    *out = s;
    return 0;
}

uint16_t kvr_http_server_port(const struct kvr_http_server *s)
{
    struct sockaddr_storage a;
    int len = sizeof a;
    if (uv_tcp_getsockname(&s->tcp, (struct sockaddr *)&a, &len)) return 0;
    return ntohs(((struct sockaddr_in *)&a)->sin_port);
}

void kvr_http_server_stats(const struct kvr_http_server *s, struct kvr_http_server_stats *out)
{
    *out = s->stats;
}

void kvr_http_server_drain(struct kvr_http_server *s)
{
    if (s->draining) return;
    s->draining = true;
    uv_close((uv_handle_t *)&s->tcp, on_server_handle_closed);
    for (struct kvr_http_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        if (!c->answering && !c->started_message) conn_close(c);
    }
}

void kvr_http_server_close(struct kvr_http_server *s)
{
    if (!s || s->closed) return;
    s->closed = true;
    if (!s->draining) uv_close((uv_handle_t *)&s->tcp, on_server_handle_closed);
    uv_close((uv_handle_t *)&s->sweep, on_server_handle_closed);
    for (struct kvr_http_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        conn_close(c);
    }
}

const struct kvr_http_request *kvr_http_conn_request(struct kvr_http_conn *c)
{
    return &c->request;
}

struct kvr_body *kvr_http_conn_take_body(struct kvr_http_conn *c)
{
    struct kvr_body *b = c->body;
    c->body = NULL;
    c->request.body = NULL;
    c->request.body_len = 0;
    return b;
}

void kvr_http_conn_drop_body(struct kvr_http_conn *c)
{
    kvr_body_unref(kvr_http_conn_take_body(c));
}

void kvr_http_conn_set_user(struct kvr_http_conn *c, void *user)
{
    c->user = user;
}

void *kvr_http_conn_user(struct kvr_http_conn *c)
{
    return c->user;
}
