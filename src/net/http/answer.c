/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers. Small pieces are copied and leave together at the end of the loop's turn (http/turn.h), others at once. They are written with
 * uv_try_write first, so that this is one system call; what the socket does not take is copied to a write request.
 *
 * Either every byte of an answer goes out in its place, or nothing more goes out at all and the connection is reset: a piece
 * that cannot be queued sets write_failed, after which nothing is sent.
 */
#include "net/http/server_internal.h"

#include <string.h>

enum { BUFS_MAX = 3, CHUNK_SIZE_MAX = 18, COPIED_MAX = 8 * 1024 };

struct write_req {
    uv_write_t req;
    struct kvr_http_conn *conn;
    size_t len;
    char data[];
};

/* ---- bytes ------------------------------------------------------------------------------------------- */

/* The client has taken enough for us to go on with it. */
static void on_low(struct kvr_http_conn *c)
{
    const struct kvr_http_handler *h = &c->server->config.handler;
    c->above_high = false;
    if (c->answering && h->on_drained) h->on_drained(c, h->ctx);
    if (!c->answering && !c->closing) kvr__request_parse_ahead(c);
    kvr__conn_update_reading(c);
}

static void on_written(uv_write_t *req, int status)
{
    struct write_req *w = (struct write_req *)req;
    struct kvr_http_conn *c = w->conn;
    c->queued -= w->len;
    free(w);
    if (c->closing) return;
    if (status < 0) {
        kvr__conn_close(c);
        return;
    }
    if (c->above_high && c->queued < KVR_HTTP_LOW_WATER) on_low(c);
    if (c->queued || c->answering || c->closing) return;
    if (c->close_when_sent) kvr__conn_linger(c);
    else if (!c->started_message) kvr__conn_deadline(c, c->server->config.idle_timeout_s);
}

static void write_failed(struct kvr_http_conn *c)
{
    if (c->write_failed) return;
    atomic_fetch_add(&c->server->shared->answers_broken, 1);
    if (c->outer) c->write_failed = true;
    else kvr__conn_fail_soon(c);
}

/* Bytes for the wire. */
static void send_raw(struct kvr_http_conn *c, uv_buf_t *bufs, unsigned n)
{
    size_t total = 0, sent = 0;
    if (c->closing || c->write_failed) return;
    for (unsigned i = 0; i < n; i++) total += bufs[i].len;
    if (c->queued == 0) {
        int rc = uv_try_write((uv_stream_t *)&c->tcp, bufs, n);
        if (rc < 0 && rc != UV_EAGAIN) { /* the client is gone, and reading may have been stopped */
            kvr__conn_fail_soon(c);
            return;
        }
        if (rc > 0) sent = (size_t)rc;
    }
    if (sent == total) return;
    struct write_req *w = malloc(sizeof *w + total - sent);
    if (!w) {
        write_failed(c);
        return;
    }
    w->conn = c;
    w->len = 0;
    for (unsigned i = 0; i < n; i++) {
        size_t skip = KVR_MIN(sent, bufs[i].len);
        if (skip < bufs[i].len) memcpy(w->data + w->len, bufs[i].base + skip, bufs[i].len - skip);
        w->len += bufs[i].len - skip;
        sent -= skip;
    }
    uv_buf_t b = uv_buf_init(w->data, (unsigned)w->len);
    if (uv_write(&w->req, (uv_stream_t *)&c->tcp, &b, 1, on_written)) {
        free(w);
        write_failed(c);
        return;
    }
    if (!c->queued) c->progress_ms = kvr_now_ms();
    c->queued += w->len;
    c->queued_total += w->len;
    if (c->queued > KVR_HTTP_HIGH_WATER) c->above_high = true;
    if (c->above_high) kvr__conn_update_reading(c);
}

void kvr__answer_flush_tls(struct kvr_http_conn *c)
{
    char *data;
    size_t n = kvr_tls_pending(c->tls, &data);
    if (!n) return;
    uv_buf_t b = uv_buf_init(data, (unsigned)n);
    send_raw(c, &b, 1);
    kvr_tls_sent(c->tls);
}

static void send_plain(struct kvr_http_conn *c, uv_buf_t *bufs, unsigned n)
{
    if (!c->tls) {
        send_raw(c, bufs, n);
        return;
    }
    if (!c->closing && !c->write_failed && !kvr_tls_write(c->tls, bufs, n)) write_failed(c);
    kvr__answer_flush_tls(c);
}

/* What is held, and up to BUFS_MAX more. */
static void send_with(struct kvr_http_conn *c, const uv_buf_t *bufs, unsigned n)
{
    uv_buf_t all[1 + BUFS_MAX] = {kvr__buf_of(c->held.data, c->held.len)};
    unsigned held = c->held.len > 0;
    KVR_ASSERT(n <= BUFS_MAX);
    for (unsigned i = 0; i < n; i++) all[held + i] = bufs[i];
    kvr__turn_leave(&c->turn);
    if (c->held.failed) write_failed(c);
    else if (held + n) send_plain(c, all, held + n);
    kvr_buf_free(&c->held);
}

void kvr__answer_send_now(struct kvr_http_conn *c)
{
    send_with(c, NULL, 0);
}

void kvr__answer_send_turn(struct kvr__turn_place *p)
{
    kvr__answer_send_now((struct kvr_http_conn *)((char *)p - offsetof(struct kvr_http_conn, turn)));
}

/* Up to BUFS_MAX. */
static void answer_send(struct kvr_http_conn *c, const uv_buf_t *bufs, unsigned n)
{
    size_t len = c->held.len;
    if (c->closing) return;
    for (unsigned i = 0; i < n; i++) len += bufs[i].len;
    if (len > COPIED_MAX || c->queued) {
        send_with(c, bufs, n);
        return;
    }
    for (unsigned i = 0; i < n; i++) kvr_buf_add(&c->held, bufs[i].base, bufs[i].len);
    if (len) kvr__turn_join(&c->server->turn, &c->turn);
}

void kvr__answer_continue(struct kvr_http_conn *c)
{
    uv_buf_t b = kvr__buf_of("HTTP/1.1 100 Continue\r\n\r\n", 25);
    answer_send(c, &b, 1);
}

/* An interim answer, which clients of HTTP/1.1 pass over (RFC 9110, 15.2); or the first digit of the next chunk's size, or of the last
 * chunk's, both of which may begin with zeroes (RFC 9112, 7.1). */
bool kvr__answer_probe(struct kvr_http_conn *c)
{
    uv_buf_t zero = kvr__buf_of("0", 1);
    if (c->request.minor == 0 || (c->answer_started && !c->chunked)) return false;
    if (c->answer_started) answer_send(c, &zero, 1);
    else kvr__answer_continue(c);
    kvr__answer_send_now(c);
    return true;
}

/* ---- of one that is hosted: hosted.h ------------------------------------------------------------------- */

static void hosted_start(struct kvr_http_conn *c, int status, const char *headers, size_t headers_len)
{
    struct kvr_buf head = {0};
    if (c->told) *c->told = (struct kvr_http_told){status, 0};
    kvr_buf_add(&head, headers, headers_len);
    if (c->server->config.put_headers) c->server->config.put_headers(c, &head, c->server->config.handler.ctx);
    c->write_failed |= head.failed;
    if (!head.failed) c->outer->on_start(c->outer_ctx, status, head.data ? head.data : "", head.len);
    kvr_buf_free(&head);
}

static void hosted_write(struct kvr_http_conn *c, const char *data, size_t len)
{
    if (c->request.is_head || c->write_failed) return;
    if (c->told) c->told->bytes += len;
    c->outer->on_body(c->outer_ctx, data, len);
}

static void hosted_end(struct kvr_http_conn *c, bool whole)
{
    c->answering = c->answer_started = false;
    c->user = NULL;
    c->told = NULL;
    if (c->server->lame) atomic_fetch_add(&c->server->shared->last_answers, 1);
    kvr__request_free(c);
    c->outer->on_end(c->outer_ctx, whole);
}

/* ---- answers ----------------------------------------------------------------------------------------- */

/* Appended to what waits to be sent. */
static void put_head(struct kvr_http_conn *c, int status, const char *headers, size_t headers_len, int64_t length)
{
    struct kvr_buf *h = &c->held;
    (void)kvr_buf_reserve(h, headers_len + 256);
    kvr_buf_str(h, "HTTP/1.1 ");
    kvr_buf_u64(h, (uint64_t)status);
    kvr_buf_str(h, " ");
    kvr_buf_str(h, kvr_http_reason(status));
    kvr_buf_str(h, "\r\n");
    kvr_buf_add(h, headers, headers_len);
    if (c->server->config.put_headers) c->server->config.put_headers(c, h, c->server->config.handler.ctx);
    if (c->chunked) kvr_header_put_str(h, "Transfer-Encoding", "chunked");
    else if (length >= 0 && status != 204 && status != 304) kvr_header_put_u64(h, "Content-Length", (uint64_t)length);
    if (!c->keep_alive) kvr_header_put_str(h, "Connection", "close");
    else if (c->request.minor == 0) kvr_header_put_str(h, "Connection", "keep-alive");
    kvr_buf_str(h, "\r\n");
}

/* The head, and in the same go a body of `length` bytes when there is one. */
static void start_with(struct kvr_http_conn *c, int status, const char *headers, size_t headers_len, int64_t length, const char *body,
                       bool hold)
{
    KVR_ASSERT(c->answering && !c->answer_started);
    c->answer_started = true;
    if (c->outer) {
        hosted_start(c, status, headers, headers_len);
        if (body && length > 0) hosted_write(c, body, (size_t)length);
        return;
    }
    bool no_body = c->request.is_head || status == 204 || status == 304;
    c->chunked = !no_body && length < 0 && c->request.minor >= 1;
    if (!no_body && length < 0 && !c->chunked) c->keep_alive = false;
    c->left = no_body ? 0 : length;
    if (c->server->lame || (c->half_closed && !c->ahead.len && !c->parsing_ahead)) c->keep_alive = false;
    size_t body_len = body && c->left > 0 ? (size_t)c->left : 0;
    c->left -= (int64_t)body_len;
    if (c->told) *c->told = (struct kvr_http_told){status, body_len};
    put_head(c, status, headers, headers_len, length);
    uv_buf_t b = kvr__buf_of(body, body_len);
    if (!hold) answer_send(c, &b, body_len > 0);
}

void kvr_http_start(struct kvr_http_conn *c, int status, const char *headers, size_t headers_len, int64_t length)
{
    start_with(c, status, headers, headers_len, length, NULL, false);
}

void kvr_http_start_held(struct kvr_http_conn *c, int status, const char *headers, size_t headers_len, int64_t length)
{
    start_with(c, status, headers, headers_len, length, NULL, true);
}

/* A head that still waits. */
static void send_held(struct kvr_http_conn *c)
{
    if (c->held.len || c->held.failed) answer_send(c, NULL, 0);
}

size_t kvr_http_write(struct kvr_http_conn *c, const char *data, size_t len)
{
    char size[CHUNK_SIZE_MAX];
    if (len == 0 || c->closing) return c->queued;
    if (c->outer) {
        hosted_write(c, data, len);
        return 0;
    }
    if (c->told) c->told->bytes += c->chunked || c->left < 0 ? len : KVR_MIN(len, (size_t)c->left);
    if (c->chunked) {
        size_t n = kvr_put_hex(size, len, 1);
        memcpy(size + n, "\r\n", 2);
        uv_buf_t bufs[] = {kvr__buf_of(size, n + 2), kvr__buf_of(data, len), kvr__buf_of("\r\n", 2)};
        answer_send(c, bufs, 3);
    } else if (c->left != 0) {
        if (c->left > 0) {
            len = KVR_MIN(len, (size_t)c->left);
            c->left -= (int64_t)len;
        }
        uv_buf_t b = kvr__buf_of(data, len);
        answer_send(c, &b, 1);
    }
    return c->queued;
}

static void answer_over(struct kvr_http_conn *c)
{
    c->answering = c->answer_started = false;
    c->user = NULL;
    c->told = NULL;
    if (c->server->lame) atomic_fetch_add(&c->server->shared->last_answers, 1);
    if (c->closing || c->write_failed) return; /* the latter: it is about to be reset */
    if (!c->keep_alive) {                      /* else the client was promised another one, even if the server ends */
        c->close_when_sent = true;
        kvr__request_free(c);
        if (c->queued == 0) kvr__conn_linger(c);
        return;
    }
    kvr__request_begin(c);
    kvr__conn_deadline(c, c->server->config.idle_timeout_s);
    llhttp_resume(&c->parser);
    kvr__request_parse_ahead(c);
}

void kvr_http_conn_tell(struct kvr_http_conn *c, struct kvr_http_told *told)
{
    c->told = told;
}

bool kvr_http_all_sent(const struct kvr_http_conn *c)
{
    return c->queued == 0 && c->held.len == 0 && !c->write_failed;
}

void kvr_http_end(struct kvr_http_conn *c)
{
    KVR_ASSERT(c->answering);
    if (c->outer) {
        hosted_end(c, !c->write_failed);
        return;
    }
    if (c->chunked) {
        uv_buf_t b = kvr__buf_of("0\r\n\r\n", 5);
        answer_send(c, &b, 1);
    } else {
        send_held(c);
        if (c->left > 0) c->keep_alive = false; /* shorter than announced: the client must notice */
    }
    answer_over(c);
}

void kvr_http_abort(struct kvr_http_conn *c)
{
    if (c->outer) {
        hosted_end(c, false);
        return;
    }
    kvr__answer_send_now(c);
    if (c->answering && c->answer_started && !c->chunked && c->left < 0) c->reset_at_close = true;
    c->answering = c->answer_started = false;
    c->user = NULL;
    c->told = NULL;
    if (c->closing) return;
    c->keep_alive = false;
    c->close_when_sent = true;
    kvr__request_free(c);
    if (c->queued == 0) kvr__conn_close(c);
}

void kvr_http_reply(struct kvr_http_conn *c, int status, const char *content_type, const char *extra_headers, const char *body, size_t len)
{
    struct kvr_buf h = {0};
    if (content_type) kvr_buf_printf(&h, "Content-Type: %s\r\n", content_type);
    if (extra_headers) kvr_buf_str(&h, extra_headers);
    if (h.failed) write_failed(c);
    start_with(c, status, h.data ? h.data : "", h.len, (int64_t)len, body, false);
    kvr_buf_free(&h);
    kvr_http_end(c);
}

void kvr_http_reply_buf(struct kvr_http_conn *c, int status, const char *content_type, const char *extra_headers, struct kvr_buf *body)
{
    if (body->failed) kvr_http_reply(c, 503, "application/json", "Retry-After: 1\r\n", "{\"error\":\"out of memory\"}", 25);
    else kvr_http_reply(c, status, content_type, extra_headers, body->data ? body->data : "", body->len);
    kvr_buf_free(body);
}

void kvr__answer_refuse(struct kvr_http_conn *c, int status, const char *message)
{
    struct kvr_buf body = {0};
    if (c->answering) return;
    kvr__request_free(c);
    c->answering = true;
    c->keep_alive = false;
    c->request.minor = 1;
    c->request.is_head = false;
    if (c->server->config.on_refused) {
        kvr__request_name(c);
        c->server->config.on_refused(c, status, c->server->config.handler.ctx);
    }
    if (c->server->config.handler.error_body) c->server->config.handler.error_body(&body, status, message);
    kvr_http_reply_buf(c, status, "application/json", status == 503 || status == 429 ? "Retry-After: 1\r\n" : NULL, &body);
}
