/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection: what comes goes to nghttp2, which calls the functions here; what nghttp2 has to say leaves at the end of the turn, in one
 * write. While a write is under way nothing more is asked of nghttp2, so what waits is what streams hold, and they are limited.
 */
#include "net/grpc/internal.h"

#include <netinet/tcp.h>
#include <string.h>

#include "base/log.h"

/* ---- what nghttp2 calls ------------------------------------------------------------------------------ */

static struct kvr_grpc_stream *stream_of(nghttp2_session *session, int32_t id)
{
    return id ? nghttp2_session_get_stream_user_data(session, id) : NULL;
}

static bool begins_call(const nghttp2_frame *frame)
{
    return frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *ctx)
{
    struct kvr__grpc_conn *c = ctx;
    if (!begins_call(frame)) return 0;
    int32_t id = frame->hd.stream_id;
    if (c->server->streams >= c->server->config.streams_max) {
        kvr__grpc_refused(c->server, "calls at once", c->server->config.streams_max);
        return nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_REFUSED_STREAM);
    }
    struct kvr_grpc_stream *s = kvr__grpc_stream_new(c, id);
    if (!s) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* the stream is reset */
    return nghttp2_session_set_stream_user_data(session, id, s);
}

static bool begins(const uint8_t *value, size_t len, const char *with)
{
    return len >= strlen(with) && memcmp(value, with, strlen(with)) == 0;
}

/* Of the head of a call, one after the other. */
static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_len, const uint8_t *value,
                     size_t value_len, uint8_t, void *ctx)
{
    struct kvr_grpc_stream *s = begins_call(frame) ? stream_of(session, frame->hd.stream_id) : NULL;
    struct kvr__grpc_conn *c = ctx;
    if (!s) return 0;
    if (kvr_span_is(name, name_len, ":path")) s->path = strndup((const char *)value, value_len);
    else if (kvr_span_is(name, name_len, ":method")) s->is_post = kvr_span_is(value, value_len, "POST");
    else if (name_len && name[0] != ':') {
        s->is_grpc |= kvr_span_is(name, name_len, "content-type") && begins(value, value_len, "application/grpc");
        if (kvr_headers_add(&s->metadata, (struct kvr_text){(const char *)name, name_len},
                            (struct kvr_text){(const char *)value, value_len})) {
            atomic_fetch_add(&c->server->shared->refused, 1);
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        }
    }
    return 0;
}

static const uint8_t GOING[8] = "kvroute"; /* what the PING says whose answer shows that a GOAWAY was seen */

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *ctx)
{
    struct kvr__grpc_conn *c = ctx;
    struct kvr_grpc_stream *s = stream_of(session, frame->hd.stream_id);
    switch (frame->hd.type) {
    case NGHTTP2_SETTINGS: c->begin_by_ms = 0; return 0;
    case NGHTTP2_RST_STREAM: atomic_fetch_add_explicit(&c->server->shared->resets, 1, memory_order_relaxed); return 0;
    case NGHTTP2_PING:
        if (frame->hd.flags & NGHTTP2_FLAG_ACK && memcmp(frame->ping.opaque_data, GOING, sizeof GOING) == 0) kvr__grpc_conn_go_last(c);
        return 0;
    default: break;
    }
    if (s && begins_call(frame)) kvr__grpc_stream_open(s);
    bool ends = frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;
    if (s && !c->closing && ends && frame->hd.flags & NGHTTP2_FLAG_END_STREAM) kvr__grpc_stream_half_close(s);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t, int32_t id, const uint8_t *data, size_t len, void *ctx)
{
    struct kvr__grpc_conn *c = ctx;
    struct kvr_grpc_stream *s = stream_of(session, id);
    nghttp2_session_consume_connection(session, len);
    if (s && !c->closing) kvr__grpc_stream_data(s, data, len);
    return 0;
}

/* A status has left: a client that goes on sending is told that nobody reads it, and then the stream is over. Or a GOAWAY. */
static int on_sent(nghttp2_session *session, const nghttp2_frame *frame, void *ctx)
{
    struct kvr__grpc_conn *c = ctx;
    struct kvr_grpc_stream *s = stream_of(session, frame->hd.stream_id);
    bool ends = frame->hd.type == NGHTTP2_HEADERS && frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (s && ends && !s->half_closed) kvr__grpc_stream_end(s, NGHTTP2_NO_ERROR);
    if (frame->hd.type != NGHTTP2_GOAWAY) return 0;
    if (frame->goaway.error_code != NGHTTP2_NO_ERROR) atomic_fetch_add(&c->server->shared->protocol_errors, 1);
    else if (!c->told_last) nghttp2_submit_ping(session, NGHTTP2_FLAG_NONE, GOING); /* behind it: nghttp2 would send it before */
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t, void *)
{
    struct kvr_grpc_stream *s = stream_of(session, id);
    if (!s) return 0;
    nghttp2_session_set_stream_user_data(session, id, NULL);
    kvr__grpc_stream_gone(s);
    kvr__grpc_stream_free(s);
    return 0;
}

/* A frame of what a stream has, which is taken from it here. */
static int on_put(nghttp2_session *, nghttp2_frame *, const uint8_t *head, size_t len, nghttp2_data_source *source, void *ctx)
{
    enum { FRAME_HEAD = 9 };
    struct kvr__grpc_conn *c = ctx;
    struct kvr_buf *out = &c->server->out;
    if (out->len >= KVR__GRPC_WRITE) return NGHTTP2_ERR_WOULDBLOCK; /* in the next write */
    if (kvr_buf_reserve(out, FRAME_HEAD + len)) return NGHTTP2_ERR_CALLBACK_FAILURE;
    kvr_buf_add(out, head, FRAME_HEAD);
    kvr__grpc_stream_put(source->ptr, out, len);
    return 0;
}

nghttp2_session_callbacks *kvr__grpc_callbacks(void)
{
    nghttp2_session_callbacks *c;
    if (nghttp2_session_callbacks_new(&c)) return NULL;
    nghttp2_session_callbacks_set_on_begin_headers_callback(c, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(c, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(c, on_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(c, on_data);
    nghttp2_session_callbacks_set_send_data_callback(c, on_put);
    nghttp2_session_callbacks_set_on_frame_send_callback(c, on_sent);
    nghttp2_session_callbacks_set_on_stream_close_callback(c, on_stream_close);
    return c;
}

/* ---- writing ----------------------------------------------------------------------------------------- */

void kvr__grpc_conn_dirty(struct kvr__grpc_conn *c)
{
    struct kvr_grpc_server *s = c->server;
    if (c->dirty || c->closing) return;
    c->dirty = true;
    c->dirty_prev = NULL;
    c->dirty_next = s->dirty;
    if (s->dirty) s->dirty->dirty_prev = c;
    s->dirty = c;
}

static void clean(struct kvr__grpc_conn *c)
{
    if (!c->dirty) return;
    c->dirty = false;
    if (c->dirty_next) c->dirty_next->dirty_prev = c->dirty_prev;
    *(c->dirty_prev ? &c->dirty_prev->dirty_next : &c->server->dirty) = c->dirty_next;
}

static void on_alloc(uv_handle_t *h, size_t, uv_buf_t *buf);
static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

struct write {
    uv_write_t request;
    char data[];
};

static void on_written(uv_write_t *request, int status)
{
    struct kvr__grpc_conn *c = request->data;
    free((char *)request - offsetof(struct write, request));
    c->writing = false;
    if (status && !c->closing) kvr__grpc_conn_close(c);
    else kvr__grpc_conn_dirty(c);
    if (c->read_stopped && !c->closing) uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    c->read_stopped = false;
}

/* What the kernel does not take is copied. Returns: false: that is under way, or the connection is closed. */
static bool write_out(struct kvr__grpc_conn *c, char *data, size_t len)
{
    uv_buf_t b = uv_buf_init(data, (unsigned)len);
    int sent = uv_try_write((uv_stream_t *)&c->tcp, &b, 1);
    size_t done = sent > 0 ? (size_t)sent : 0;
    if (done == len) return true;
    struct write *w = sent > 0 || sent == UV_EAGAIN ? malloc(sizeof *w + len - done) : NULL;
    if (!w) {
        kvr__grpc_conn_reset(c);
        return false;
    }
    memcpy(w->data, data + done, len - done);
    w->request.data = c;
    b = uv_buf_init(w->data, (unsigned)(len - done));
    c->writing = true;
    c->write_ms = uv_now(c->tcp.loop);
    if (uv_write(&w->request, (uv_stream_t *)&c->tcp, &b, 1, on_written)) {
        free(w);
        c->writing = false;
        kvr__grpc_conn_reset(c);
    }
    return false;
}

static bool write_tls(struct kvr__grpc_conn *c)
{
    char *data;
    size_t n = kvr_tls_pending(c->tls, &data);
    bool all = n == 0 || write_out(c, data, n);
    kvr_tls_sent(c->tls);
    return all;
}

/* One write's worth out of nghttp2. Returns: false: it has failed. */
static bool fill(struct kvr__grpc_conn *c, struct kvr_buf *out)
{
    const uint8_t *p;
    ssize_t n = 0;
    kvr_buf_reset(out);
    while (out->len < KVR__GRPC_WRITE && (n = nghttp2_session_mem_send(c->session, &p)) > 0) kvr_buf_add(out, p, (size_t)n);
    return n >= 0 && !out->failed;
}

static void flush(struct kvr__grpc_conn *c)
{
    struct kvr_buf *out = &c->server->out;
    if (c->tls && (!write_tls(c) || !c->shaken)) return;
    for (;;) {
        if (!fill(c, out)) {
            kvr_buf_free(out);
            kvr__grpc_conn_reset(c);
            return;
        }
        if (c->closing) return; /* a handler has closed the server */
        if (out->len == 0) break;
        uv_buf_t plain = uv_buf_init(out->data, (unsigned)out->len);
        if (c->tls && !kvr_tls_write(c->tls, &plain, 1)) {
            kvr__grpc_conn_reset(c);
            return;
        }
        if (c->tls ? !write_tls(c) : !write_out(c, out->data, out->len)) return;
    }
    if (nghttp2_session_want_read(c->session) || nghttp2_session_want_write(c->session)) return;
    if (c->tls) {
        kvr_tls_shutdown(c->tls);
        if (!write_tls(c)) return;
    }
    kvr__grpc_conn_close(c);
}

void kvr__grpc_flush(struct kvr_grpc_server *s)
{
    while (s->dirty) {
        struct kvr__grpc_conn *c = s->dirty;
        clean(c);
        if (!c->writing) flush(c);
    }
}

/* ---- reading ----------------------------------------------------------------------------------------- */

/* Most likely one side has TLS and the other has not, of which a gateway that fails open says nothing. */
static void tell_stranger(const struct kvr__grpc_conn *c)
{
    kvr_log_warning_of(kvr_log_key(0, 0, "stranger"), "kvroute: grpc: a client began %s",
                       c->tls ? "without TLS, or TLS without h2; this port speaks TLS (ext-proc-tls off: none)"
                              : "with what is not HTTP/2, or with TLS; this port speaks none (ext-proc-tls off)");
}

static void take(struct kvr__grpc_conn *c, const char *data, size_t n)
{
    ssize_t took = nghttp2_session_mem_recv(c->session, (const uint8_t *)data, n);
    if (c->closing) return;
    if (took < 0) {
        if (c->begin_by_ms) tell_stranger(c);
        atomic_fetch_add(&c->server->shared->protocol_errors, 1);
        kvr__grpc_conn_close(c);
        return;
    }
    kvr__grpc_conn_dirty(c);
}

static void take_tls(struct kvr__grpc_conn *c, const char *data, size_t n)
{
    long got = kvr_tls_feed(c->tls, data, n) ? 1 : -1;
    while (got > 0 && !c->closing) {
        got = kvr_tls_read(c->tls, c->server->plain, sizeof c->server->plain);
        if (!c->shaken && kvr_tls_is_up(c->tls)) {
            if (!kvr_tls_has_alpn(c->tls)) got = -1;
            else c->shaken = true;
        }
        if (got > 0) take(c, c->server->plain, (size_t)got);
    }
    if (c->closing) return;
    kvr__grpc_conn_dirty(c);
    if (got >= 0) return;
    if (!c->shaken) tell_stranger(c);
    (void)(c->writing || write_tls(c)); /* an alert */
    kvr__grpc_conn_close(c);
}

static void on_alloc(uv_handle_t *h, size_t, uv_buf_t *buf)
{
    struct kvr__grpc_conn *c = h->data;
    *buf = uv_buf_init(c->server->read_buffer, sizeof c->server->read_buffer);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct kvr__grpc_conn *c = stream->data;
    if (n < 0) kvr__grpc_conn_close(c);
    else if (n > 0 && c->tls) take_tls(c, buf->base, (size_t)n);
    else if (n > 0) take(c, buf->base, (size_t)n);
    /* A client that does not read makes nothing more wait: refusals and resets are answers, too. */
    if (c->closing || !c->writing || nghttp2_session_get_outbound_queue_size(c->session) <= KVR__GRPC_QUEUE) return;
    uv_read_stop((uv_stream_t *)&c->tcp);
    c->read_stopped = true;
}

/* ---- life -------------------------------------------------------------------------------------------- */

/* A peer that has vanished without a word is noticed in a minute. */
static void keep_alive(struct kvr__grpc_conn *c)
{
    enum { IDLE_S = 30, PROBES = 3, BETWEEN_S = 10 };
    int n = PROBES, between = BETWEEN_S;
    uv_os_fd_t fd;
    uv_tcp_keepalive(&c->tcp, 1, IDLE_S);
    if (uv_fileno((const uv_handle_t *)&c->tcp, &fd)) return;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n, sizeof n);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
}

void kvr__grpc_conn_begin(struct kvr__grpc_conn *c)
{
    struct kvr_grpc_server *s = c->server;
    const nghttp2_settings_entry set[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, (uint32_t)KVR_MIN(s->config.streams_max, (size_t)INT32_MAX)},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, KVR__GRPC_FRAME},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, s->tight ? KVR__GRPC_WINDOW_SMALL : KVR__GRPC_WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, KVR_HTTP_HEAD_MAX}};
    if (nghttp2_session_server_new2(&c->session, s->callbacks, c, s->options) ||
        nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, set, KVR_ARRAY_LEN(set)) ||
        nghttp2_session_set_local_window_size(c->session, NGHTTP2_FLAG_NONE, 0, KVR__GRPC_WINDOW_CONN) ||
        (s->config.tls && !(c->tls = kvr_tls_new(s->config.tls)))) {
        kvr__grpc_conn_close(c);
        return;
    }
    uv_tcp_nodelay(&c->tcp, 1);
    keep_alive(c);
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    kvr__grpc_conn_dirty(c);
}

static void on_closed(uv_handle_t *h)
{
    struct kvr__grpc_conn *c = h->data;
    nghttp2_session_del(c->session);
    while (c->streams) kvr__grpc_stream_free(c->streams);
    kvr_tls_free(c->tls);
    c->gone(c);
}

static void end(struct kvr__grpc_conn *c, bool reset)
{
    if (c->closing) return;
    c->closing = true;
    clean(c);
    if (c->server->config.tls && !c->shaken) atomic_fetch_add(&c->server->shared->handshakes_failed, 1);
    for (struct kvr_grpc_stream *s = c->streams; s; s = s->next) s->over = true; /* whoever is told may not use the others either */
    for (struct kvr_grpc_stream *s = c->streams; s; s = s->next) kvr__grpc_stream_gone(s);
    if (!reset || uv_tcp_close_reset(&c->tcp, on_closed)) uv_close((uv_handle_t *)&c->tcp, on_closed);
}

void kvr__grpc_conn_close(struct kvr__grpc_conn *c)
{
    end(c, false);
}

void kvr__grpc_conn_reset(struct kvr__grpc_conn *c)
{
    end(c, true);
}

void kvr__grpc_conn_go(struct kvr__grpc_conn *c)
{
    if (c->told_to_go || c->closing) return;
    c->told_to_go = true;
    atomic_fetch_add(&c->server->shared->goaways, 1);
    nghttp2_submit_shutdown_notice(c->session);
    kvr__grpc_conn_dirty(c);
}

void kvr__grpc_conn_go_last(struct kvr__grpc_conn *c)
{
    if (!c->told_to_go || c->told_last || c->closing) return;
    c->told_last = true;
    nghttp2_submit_goaway(c->session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(c->session), NGHTTP2_NO_ERROR, NULL, 0);
    kvr__grpc_conn_dirty(c);
}
