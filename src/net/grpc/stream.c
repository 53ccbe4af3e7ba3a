/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream: what the handler asks of it, what it holds, and when its client may send more.
 *
 * What comes is given back as window at once, but on streams that hold something while memory is short: those are `owed` it, and get it
 * when they hold nothing, when memory is there again, or in turn (kvr__grpc_trickle). The window of the connection is always given back, or
 * streams that hold nothing would wait for those that do.
 */
#include "net/grpc/internal.h"

#include <string.h>

#include "base/list.h"
#include "base/log.h"

void kvr__grpc_refused(struct kvr_grpc_server *s, const char *what, size_t most)
{
    atomic_fetch_add(&s->shared->refused, 1);
    kvr_log_warning_of(kvr_log_key(0, 0, what), "kvroute: grpc: no more than %zu %s; what is beyond is refused", most, what);
}

/* ---- windows ----------------------------------------------------------------------------------------- */

static void owe(struct kvr_grpc_stream *s, size_t n)
{
    struct kvr_grpc_server *server = s->conn->server;
    s->owed += n;
    if (s->is_owing) return;
    s->is_owing = true;
    s->owing_next = NULL;
    s->owing_prev = server->owing_last;
    *(s->owing_prev ? &s->owing_prev->owing_next : &server->owing) = s;
    server->owing_last = s;
}

static void forget_owed(struct kvr_grpc_stream *s)
{
    struct kvr_grpc_server *server = s->conn->server;
    if (!s->is_owing) return;
    *(s->owing_prev ? &s->owing_prev->owing_next : &server->owing) = s->owing_next;
    *(s->owing_next ? &s->owing_next->owing_prev : &server->owing_last) = s->owing_prev;
    s->is_owing = false;
    s->owed = 0;
}

static void repay(struct kvr_grpc_stream *s)
{
    size_t n = s->owed;
    if (!s->is_owing) return;
    forget_owed(s);
    nghttp2_session_consume_stream(s->conn->session, s->id, n);
    kvr__grpc_conn_dirty(s->conn);
}

/* Whose turn is it? Of one that has all its body, or is slow, nothing has come for a while. */
static void favour_next(struct kvr_grpc_server *server)
{
    server->favoured = server->owing;
    server->favour_used = false;
    if (server->owing) repay(server->owing);
}

static void on_favour(uv_timer_t *t)
{
    struct kvr_grpc_server *server = t->data;
    if (!server->favour_used) favour_next(server);
    server->favour_used = false;
}

/* New streams begin with so much, and those that run have as much more, or less, as it differs from what was said before. */
static void set_windows(struct kvr_grpc_server *server, uint32_t window)
{
    nghttp2_settings_entry set = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, window};
    for (struct kvr__grpc_conn *c = server->conns; c; c = c->next) {
        if (c->closing) continue;
        nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, &set, 1);
        kvr__grpc_conn_dirty(c);
    }
}

static void look_at_memory(struct kvr_grpc_server *server)
{
    enum { FAVOUR_MS = 50 };
    size_t max = server->config.memory_max;
    if (max == 0 || server->closed) return;
    if (!server->tight && server->held > max) {
        server->tight = true;
        atomic_fetch_add(&server->shared->windows_closed, 1);
        set_windows(server, KVR__GRPC_WINDOW_SMALL);
        uv_timer_start(&server->favour, on_favour, FAVOUR_MS, FAVOUR_MS);
    } else if (server->tight && server->held <= max - max / 4) {
        server->tight = false;
        uv_timer_stop(&server->favour);
        server->favoured = NULL;
        set_windows(server, KVR__GRPC_WINDOW);
        while (server->owing) repay(server->owing);
    }
}

/* After each change of what it holds. */
static void account(struct kvr_grpc_stream *s)
{
    struct kvr_grpc_server *server = s->conn->server;
    size_t now = kvr__grpc_unfinished(&s->in) + s->out_len + s->kept;
    if (now == s->held) return;
    server->held += now - s->held;
    atomic_fetch_add_explicit(&server->shared->held, now - s->held, memory_order_relaxed);
    s->held = now;
    if (now == 0) repay(s);
    if (now == 0 && s == server->favoured) favour_next(server);
    look_at_memory(server);
}

/* ---- life -------------------------------------------------------------------------------------------- */

static void drop_first(struct kvr_grpc_stream *s)
{
    struct kvr__grpc_part *p = s->out;
    s->out = p->next;
    s->out_at = 0;
    kvr_body_unref(p->of);
    free(p);
}

struct kvr_grpc_stream *kvr__grpc_stream_new(struct kvr__grpc_conn *c, int32_t id)
{
    struct kvr_grpc_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->conn = c;
    s->id = id;
    KVR_LIST_PUSH(c->streams, s);
    c->streams_n++;
    c->server->streams++;
    atomic_fetch_add(&c->server->shared->streams, 1);
    atomic_fetch_add(&c->server->shared->streams_total, 1);
    return s;
}

void kvr__grpc_stream_gone(struct kvr_grpc_stream *s)
{
    const struct kvr_grpc_handler *h = &s->conn->server->config.handler;
    bool tell = s->opened;
    s->over = true;
    s->opened = false;
    if (tell) h->on_gone(s, h->ctx);
    forget_owed(s);
    if (s == s->conn->server->favoured) favour_next(s->conn->server);
    if (!s->in.given) kvr_buf_free(&s->in.part); /* else the handler may be looking at it yet */
    while (s->out) drop_first(s);
    s->out_len = s->kept = 0;
    account(s);
}

void kvr__grpc_stream_free(struct kvr_grpc_stream *s)
{
    struct kvr__grpc_conn *c = s->conn;
    KVR_LIST_TAKE(c->streams, s);
    c->streams_n--;
    c->server->streams--;
    atomic_fetch_sub(&c->server->shared->streams, 1);
    kvr_headers_free(&s->metadata);
    kvr_buf_free(&s->in.part);
    free(s->path);
    free(s->why);
    free(s);
}

void kvr__grpc_stream_end(struct kvr_grpc_stream *s, uint32_t code)
{
    if (s->over) return;
    s->over = true;
    nghttp2_submit_rst_stream(s->conn->session, NGHTTP2_FLAG_NONE, s->id, code);
    kvr__grpc_conn_dirty(s->conn);
}

/* ---- what leaves ------------------------------------------------------------------------------------- */

#define NV(name, value)                                                                                                                    \
    {                                                                                                                                      \
        (uint8_t *)(uintptr_t)(name), (uint8_t *)(uintptr_t)(value), strlen(name), strlen(value), NGHTTP2_NV_FLAG_NO_COPY_NAME             \
    }

static void submit_status(struct kvr_grpc_stream *s, bool alone)
{
    char status[8];
    snprintf(status, sizeof status, "%u", s->status);
    nghttp2_nv nv[4] = {NV(":status", "200"), NV("content-type", "application/grpc"), NV("grpc-status", status),
                        NV("grpc-message", s->why ? s->why : "")};
    size_t n = s->why ? 4 : 3;
    int rc = alone ? nghttp2_submit_response(s->conn->session, s->id, nv, n, NULL)
                   : nghttp2_submit_trailer(s->conn->session, s->id, nv + 2, n - 2);
    if (rc) kvr__grpc_stream_end(s, NGHTTP2_INTERNAL_ERROR);
}

/* nghttp2 asks how many bytes, `cap` at most, are to leave; on_put, in conn.c, takes them. */
static ssize_t on_take(nghttp2_session *, int32_t, uint8_t *, size_t cap, uint32_t *flags, nghttp2_data_source *source, void *)
{
    struct kvr_grpc_stream *s = source->ptr;
    size_t n = KVR_MIN(s->out_len, cap);
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (n == s->out_len && s->finished) {
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        submit_status(s, false);
        return (ssize_t)n;
    }
    return n ? (ssize_t)n : NGHTTP2_ERR_DEFERRED;
}

void kvr__grpc_stream_put(struct kvr_grpc_stream *s, struct kvr_buf *to, size_t n)
{
    s->progress_ms = uv_now(s->conn->server->loop);
    s->out_len -= n;
    while (n) {
        const struct kvr__grpc_part *p = s->out;
        bool in_head = s->out_at < p->head_len;
        const char *from = in_head ? (const char *)p->head + s->out_at : p->data + (s->out_at - p->head_len);
        size_t m = KVR_MIN(n, (in_head ? p->head_len : p->head_len + p->data_len) - s->out_at);
        kvr_buf_add(to, from, m);
        n -= m;
        s->out_at += m;
        if (s->out_at == p->head_len + p->data_len) drop_first(s);
    }
    account(s);
}

static void submit_head(struct kvr_grpc_stream *s)
{
    static const nghttp2_nv head[] = {NV(":status", "200"), NV("content-type", "application/grpc"), NV("grpc-accept-encoding", "identity")};
    nghttp2_data_provider d = {.source.ptr = s, .read_callback = on_take};
    s->head_sent = true;
    kvr__grpc_conn_dirty(s->conn);
    if (s->finished && !s->out) submit_status(s, true);
    else if (nghttp2_submit_response(s->conn->session, s->id, head, KVR_ARRAY_LEN(head), &d))
        kvr__grpc_stream_end(s, NGHTTP2_INTERNAL_ERROR);
}

/* Whoever does not speak gRPC learns it in HTTP's words. */
static void submit_refusal(struct kvr_grpc_stream *s, const char *status)
{
    const nghttp2_nv head[] = {NV(":status", status)};
    s->head_sent = s->finished = true;
    atomic_fetch_add(&s->conn->server->shared->protocol_errors, 1);
    kvr__grpc_conn_dirty(s->conn);
    if (nghttp2_submit_response(s->conn->session, s->id, head, 1, NULL)) kvr__grpc_stream_end(s, NGHTTP2_INTERNAL_ERROR);
}

static void leave(struct kvr_grpc_stream *s)
{
    if (s->head_sent) nghttp2_session_resume_data(s->conn->session, s->id); /* fails where nothing was deferred, and that is fine */
    kvr__grpc_conn_dirty(s->conn);
}

/* NULL: no memory. */
static struct kvr__grpc_part *part_new(const void *head, size_t head_len, const void *data, size_t len, struct kvr_body *of)
{
    size_t whole = head_len + len, copied = KVR__GRPC_PREFIX + head_len + (of ? 0 : len);
    const uint8_t prefix[KVR__GRPC_PREFIX] = {0, (uint8_t)(whole >> 24), (uint8_t)(whole >> 16), (uint8_t)(whole >> 8), (uint8_t)whole};
    struct kvr__grpc_part *p = malloc(sizeof *p + copied);
    if (!p) return NULL;
    *p = (struct kvr__grpc_part){.of = kvr_body_ref(of), .data = data, .data_len = of ? len : 0, .head_len = copied};
    memcpy(p->head, prefix, sizeof prefix);
    if (head_len) memcpy(p->head + sizeof prefix, head, head_len);
    if (!of && len) memcpy(p->head + sizeof prefix + head_len, data, len);
    return p;
}

void kvr_grpc_send_bytes(struct kvr_grpc_stream *s, const void *head, size_t head_len, const void *data, size_t len, struct kvr_body *of)
{
    struct kvr_grpc_server *server = s->conn->server;
    if (s->over || s->finished) return;
    if (head_len + len > UINT32_MAX || s->out_len + head_len + len > server->config.write_max) {
        kvr__grpc_refused(server, "bytes that wait to be sent to a call", server->config.write_max);
        kvr__grpc_stream_end(s, NGHTTP2_ENHANCE_YOUR_CALM);
        return;
    }
    struct kvr__grpc_part *p = part_new(head, head_len, data, len, of);
    if (!p) {
        kvr__grpc_stream_end(s, NGHTTP2_INTERNAL_ERROR);
        return;
    }
    if (!s->out) s->progress_ms = uv_now(server->loop);
    *(s->out ? &s->out_last->next : &s->out) = p;
    s->out_last = p;
    s->out_len += p->head_len + p->data_len;
    account(s);
    leave(s);
}

void kvr_grpc_send(struct kvr_grpc_stream *s, const void *message, size_t len)
{
    kvr_grpc_send_bytes(s, message, len, NULL, 0, NULL);
}

/* As grpc-message has it: what is not printable in ASCII, and '%', are %XX. NULL: no memory, and then it is not said. */
static char *escaped(const char *text)
{
    static const char hex[] = "0123456789ABCDEF";
    char *out = malloc(3 * strlen(text) + 1), *p = out;
    for (; p && *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c >= ' ' && c <= '~' && c != '%') {
            *p++ = (char)c;
            continue;
        }
        *p++ = '%';
        *p++ = hex[c >> 4];
        *p++ = hex[c & 15];
    }
    if (p) *p = 0;
    return out;
}

void kvr_grpc_finish(struct kvr_grpc_stream *s, enum kvr_grpc_status status, const char *message)
{
    if (s->over || s->finished) return;
    s->finished = true;
    s->status = (uint16_t)status;
    s->why = message ? escaped(message) : NULL;
    leave(s);
}

void kvr_grpc_reset(struct kvr_grpc_stream *s)
{
    kvr__grpc_stream_end(s, NGHTTP2_INTERNAL_ERROR);
}

/* ---- what comes -------------------------------------------------------------------------------------- */

void kvr__grpc_stream_open(struct kvr_grpc_stream *s)
{
    const struct kvr_grpc_handler *h = &s->conn->server->config.handler;
    if (!s->path || !s->is_post || !s->is_grpc) {
        submit_refusal(s, !s->is_post ? "405" : "415");
        return;
    }
    s->opened = true;
    h->on_open(s, h->ctx);
    if (!s->over) submit_head(s);
}

/* The client's fault, or ours: the call ends with that, and what comes is dropped. */
static void refuse(struct kvr_grpc_stream *s, _Atomic uint64_t *counter, enum kvr_grpc_status status, const char *why)
{
    if (s->over || s->finished) return;
    atomic_fetch_add(counter, 1);
    kvr_grpc_finish(s, status, why);
}

static void take_messages(struct kvr_grpc_stream *s, struct kvr__grpc_piece piece)
{
    struct kvr_grpc_server *server = s->conn->server;
    const struct kvr_grpc_handler *h = &server->config.handler;
    struct kvr__grpc_piece message = {0};
    char text[96];
    enum kvr__grpc_reading rc = KVR__GRPC_MORE;
    while (!s->over && !s->finished &&
           (rc = kvr__grpc_next(&s->in, server->config.message_max, &server->spare, &piece, &message)) == KVR__GRPC_MESSAGE) {
        atomic_fetch_add_explicit(&server->shared->messages, 1, memory_order_relaxed);
        h->on_message(s, h->ctx, message.data, message.len);
    }
    switch (rc) {
    case KVR__GRPC_COMPRESSED:
        refuse(s, &server->shared->protocol_errors, KVR_GRPC_UNIMPLEMENTED, "compressed messages are not understood");
        break;
    case KVR__GRPC_BAD_FLAG: refuse(s, &server->shared->protocol_errors, KVR_GRPC_INTERNAL, "a message begins with neither 0 nor 1"); break;
    case KVR__GRPC_TOO_LONG:
        snprintf(text, sizeof text, "a message may have %zu bytes", server->config.message_max);
        refuse(s, &server->shared->refused, KVR_GRPC_RESOURCE_EXHAUSTED, text);
        break;
    case KVR__GRPC_NOMEM: refuse(s, &server->shared->refused, KVR_GRPC_RESOURCE_EXHAUSTED, "out of memory"); break;
    case KVR__GRPC_MORE:
    case KVR__GRPC_MESSAGE: break;
    }
    if (!server->spare.data) server->spare_rests = false;
    if (s->finished || s->over) {
        kvr_buf_free(&s->in.part);
        s->in.given = false;
    }
}

void kvr__grpc_stream_data(struct kvr_grpc_stream *s, const uint8_t *data, size_t len)
{
    if (s->opened) take_messages(s, (struct kvr__grpc_piece){data, len});
    if (s->conn->closing) return;
    account(s);
    struct kvr_grpc_server *server = s->conn->server;
    if (s == server->favoured) server->favour_used = true;
    else if (server->tight && s->held) owe(s, len);
    if (!s->is_owing) nghttp2_session_consume_stream(s->conn->session, s->id, len);
    kvr__grpc_conn_dirty(s->conn);
}

void kvr__grpc_stream_half_close(struct kvr_grpc_stream *s)
{
    struct kvr_grpc_server *server = s->conn->server;
    const struct kvr_grpc_handler *h = &server->config.handler;
    s->half_closed = true;
    if (!s->opened || s->over || s->finished) return;
    if (kvr__grpc_unfinished(&s->in)) refuse(s, &server->shared->protocol_errors, KVR_GRPC_INTERNAL, "the last message is not whole");
    else h->on_half_closed(s, h->ctx);
}

/* ---- what it is -------------------------------------------------------------------------------------- */

struct kvr_text kvr_grpc_path(const struct kvr_grpc_stream *s)
{
    return (struct kvr_text){s->path, strlen(s->path)};
}

const struct kvr_headers *kvr_grpc_metadata(const struct kvr_grpc_stream *s)
{
    return &s->metadata;
}

const char *kvr_grpc_peer(struct kvr_grpc_stream *s)
{
    struct sockaddr_storage a;
    int len = sizeof a;
    struct kvr__grpc_conn *c = s->conn;
    if (c->peer[0] || c->closing || uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&a, &len)) return c->peer;
    if (uv_ip_name((const struct sockaddr *)&a, c->peer, sizeof c->peer)) c->peer[0] = 0;
    return c->peer;
}

void kvr_grpc_set_user(struct kvr_grpc_stream *s, void *user)
{
    s->user = user;
}

void *kvr_grpc_user(const struct kvr_grpc_stream *s)
{
    return s->user;
}

void kvr_grpc_hold(struct kvr_grpc_stream *s, size_t bytes)
{
    s->kept += bytes;
    account(s);
}

void kvr_grpc_release(struct kvr_grpc_stream *s, size_t bytes)
{
    KVR_ASSERT(bytes <= s->kept);
    s->kept -= bytes;
    account(s);
}
