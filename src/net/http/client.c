/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP client with a pool of keep-alive connections per host:port.
 *
 *     call --> idle connection, or a fresh one:  resolving -> connecting -> sending -> receiving -> idle | closed
 *
 * A connection belongs to one call or to the pool. A pooled connection that the peer closed just before we used it
 * fails without a single answer byte; the call is then moved to a fresh connection once, so that the peer's idle
 * timeout never looks like a failure. Idle connections are closed after a few seconds, before engines do (5 s).
 *
 * https: a connection has a TLS session with memory on both sides (net/http/tls.h); it sends nothing of a request before the certificate
 * was found good, within the time for connecting. What is read from it takes the same way as plain bytes.
 */
#include "net/http/internal.h"

#include <string.h>

#include "base/list.h"
#include "net/http/turn.h"

enum { IDLE_MAX = 1024, INTERIM_MAX = 16, CIPHER_PIECE = 256 * 1024, JOINED_MAX = 2048 /* a body that goes as a part of its head */ };

struct peer;

struct kvr_http_client {
    uv_loop_t *loop;
    uv_timer_t sweep;
    struct kvr__turn turn;
    double idle_timeout_s;
    struct peer *idle; /* newest first */
    struct peer *busy;
    size_t idle_n, busy_n, open_max; /* open_max 0: no limit */
    llhttp_settings_t settings;
    size_t handles;
    bool closed;
    _Atomic uint64_t *reopened; /* NULL: not counted */
    char read_buffer[64 * 1024], plain[16 * 1024];
};

enum peer_state { RESOLVING, CONNECTING, SHAKING_HANDS, RECEIVING, IDLE, CLOSING };

/* Of a connection, one after the other. */
union asked {
    uv_getaddrinfo_t resolve;
    uv_connect_t connect;
    uv_write_t write;
};

struct peer { /* one connection */
    uv_tcp_t tcp;
    uv_timer_t timer;                       /* connect timeout */
    union asked *asked;                     /* what libuv is at; NULL, as mostly: nothing */
    struct kvr_body *sent_head, *sent_body; /* what is being written, held until it was */
    struct kvr__turn_place turn;
    size_t enciphered;   /* bytes of sent_body that the TLS session has had */
    struct kvr_tls *tls; /* NULL: plain */
    unsigned flushes;    /* writes of what the session says that are under way */
    llhttp_t parser;
    struct kvr__framing framing;
    struct kvr_http_client *client;
    struct kvr_http_call *call;
    struct peer *next, *prev;
    enum peer_state state;
    uint64_t key, idle_since_ms;
    struct kvr_headers headers;
    int handles;
    unsigned interim; /* answers 1xx before this one */
    const char *bad;  /* why an answer is refused */
    char *body;       /* what the read that is being parsed has brought of a body */
    size_t body_n;
    bool head_over; /* of an interim answer: another head follows */
    bool reused, got_bytes, writing, resolving, in_callback, done;
};

struct kvr_http_call {
    struct kvr_http_call_config config;
    struct kvr_body *head; /* with a small body */
    struct peer *peer;
    int status; /* of the answer; 0: not there yet */
    bool paused, retried, let_go;
    uint64_t connecting_ns, connect_ns; /* when it began to connect, and how long that took; 0: it did not */
    /* Of its endpoint: */
    uint64_t key;
    const struct kvr_tls_peer *tls_peer;
    union {
        struct sockaddr any;
        struct sockaddr_in6 v6;
    } addr; /* where is_numeric */
    uint16_t port;
    bool is_numeric, tls;
    char host[];
};

static struct peer *peer_new(struct kvr_http_client *c, uint64_t key);
static void peer_start(struct peer *p);

/* ---- the request ------------------------------------------------------------------------------------ */

/* An answer has begun, so the request is not sent again; what is still being written has a reference of its own. */
static void forget_request(struct kvr_http_call *call)
{
    kvr_body_unref(call->head);
    kvr_body_unref(call->config.body);
    call->head = call->config.body = NULL;
}

static void call_free(struct kvr_http_call *call)
{
    forget_request(call);
    free(call);
}

/* ---- closing ----------------------------------------------------------------------------------------- */

static void client_maybe_free(struct kvr_http_client *c)
{
    if (c->closed && c->handles == 0) free(c);
}

static void stop_holding(struct peer *p)
{
    p->writing = false;
    kvr_body_unref(p->sent_head);
    kvr_body_unref(p->sent_body);
    p->sent_head = p->sent_body = NULL;
}

static void peer_maybe_free(struct peer *p)
{
    struct kvr_http_client *c = p->client;
    if (p->handles || p->resolving) return;
    kvr_headers_free(&p->headers);
    stop_holding(p);
    kvr_tls_free(p->tls);
    free(p->asked);
    free(p);
    c->handles--;
    client_maybe_free(c);
}

static void on_peer_closed(uv_handle_t *h)
{
    struct peer *p = h->data;
    p->handles--;
    peer_maybe_free(p);
}

static void peer_close(struct peer *p)
{
    if (p->state == CLOSING) return;
    kvr__turn_leave(&p->turn);
    if (p->state == IDLE) {
        KVR_LIST_TAKE(p->client->idle, p);
        p->client->idle_n--;
    } else {
        KVR_LIST_TAKE(p->client->busy, p);
        p->client->busy_n--;
    }
    p->state = CLOSING;
    if (p->resolving) uv_cancel((uv_req_t *)&p->asked->resolve);
    uv_close((uv_handle_t *)&p->tcp, on_peer_closed);
    uv_close((uv_handle_t *)&p->timer, on_peer_closed);
}

static void call_failed(struct peer *p, enum kvr_http_failure why, const char *text)
{
    struct kvr_http_call *call = p->call;
    p->call = NULL;
    peer_close(p);
    if (!call) return;
    bool stale = p->reused && !p->got_bytes && why == KVR_HTTP_RESET && !call->retried && !p->client->closed;
    if (stale) {
        call->retried = true;
        struct peer *fresh = peer_new(p->client, call->key);
        if (fresh) {
            if (p->client->reopened) atomic_fetch_add_explicit(p->client->reopened, 1, memory_order_relaxed);
            fresh->call = call;
            call->peer = fresh;
            peer_start(fresh);
            return;
        }
    }
    call->peer = NULL;
    if (call->config.handler->on_failed) call->config.handler->on_failed(call, call->config.ctx, why, text);
    call_free(call);
}

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf);
static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

static void to_idle(struct peer *p)
{
    struct kvr_http_client *c = p->client;
    KVR_LIST_TAKE(c->busy, p);
    c->busy_n--;
    KVR_LIST_PUSH(c->idle, p);
    p->state = IDLE;
    uv_read_start((uv_stream_t *)&p->tcp, on_alloc, on_read); /* to notice when the peer closes */
    p->idle_since_ms = uv_now(c->loop);
    if (++c->idle_n > IDLE_MAX || c->closed) peer_close(p);
}

/* ---- answer ------------------------------------------------------------------------------------------ */

static struct peer *peer_of(llhttp_t *parser)
{
    return (struct peer *)((char *)parser - offsetof(struct peer, parser));
}

static int bad_answer(struct peer *p, const char *why)
{
    p->bad = why;
    return HPE_USER;
}

static int no_room(struct peer *p)
{
    return bad_answer(p, "the head of the worker's answer is too large, or there is no memory for it");
}

static int on_field(llhttp_t *l, const char *at, size_t len)
{
    struct peer *p = peer_of(l);
    if (p->framing.trailer) return 0; /* dropped: they come after the head has been used */
    return kvr__headers_name(&p->headers, at, len) ? no_room(p) : 0;
}

static int on_value(llhttp_t *l, const char *at, size_t len)
{
    struct peer *p = peer_of(l);
    return !p->framing.trailer && kvr__headers_value(&p->headers, at, len) ? no_room(p) : 0;
}

static int on_begin(llhttp_t *l)
{
    kvr__headers_reset(&peer_of(l)->headers);
    return 0;
}

static int on_interim(struct peer *p, int status)
{
    if (kvr__headers_count(&p->headers, "content-length") || kvr__headers_count(&p->headers, "transfer-encoding"))
        return bad_answer(p, "the worker's interim answer has a body");
    if (status == 101) return bad_answer(p, "the worker changed the protocol without being asked");
    if (++p->interim > INTERIM_MAX) return bad_answer(p, "the worker sent too many interim answers");
    p->head_over = true;
    return 0; /* the real one follows */
}

static const char odd_framing[] = "the worker's answer has a length or transfer encoding that is not understood";

static int judge_head(struct peer *p, const llhttp_t *l)
{
    struct kvr_hop_by_hop hop;
    bool chunked;
    if (l->http_major != 1) return bad_answer(p, "the worker's answer is not HTTP/1.x");
    if (l->status_code < 100 || l->status_code > 999) return bad_answer(p, "the worker's answer has a status that does not exist");
    if (kvr__headers_framing(&p->headers, &chunked) || chunked != !!(l->flags & F_CHUNKED)) return bad_answer(p, odd_framing);
    if (!kvr_hop_by_hop_read(&p->headers, &hop)) return bad_answer(p, "the worker's answer has too many names in Connection");
    return 0;
}

static int on_head(llhttp_t *l)
{
    struct peer *p = peer_of(l);
    struct kvr_http_call *call = p->call;
    if (!call || judge_head(p, l)) return HPE_USER;
    if (l->status_code < 200) return on_interim(p, l->status_code);
    l->upgrade = 0;
    int64_t length = l->flags & F_CONTENT_LENGTH ? (int64_t)l->content_length : -1;
    bool no_body = call->config.is_head || l->status_code == 204 || l->status_code == 304;
    if (l->flags & F_CHUNKED && !no_body) kvr__framing_chunks(&p->framing);
    forget_request(call);
    call->status = l->status_code;
    if (call->config.handler->on_head) call->config.handler->on_head(call, call->config.ctx, l->status_code, &p->headers, length);
    return no_body ? 1 : 0;
}

/* Chunks of one read are moved together, over what is parsed already, and told of as one piece. */
static int on_body(llhttp_t *l, const char *at, size_t len)
{
    struct peer *p = peer_of(l);
    if (!p->call) return HPE_USER; /* cancelled by the handler in this very read */
    if (!p->body_n) p->body = (char *)(uintptr_t)at;
    else if (p->body + p->body_n != at) memmove(p->body + p->body_n, at, len);
    p->body_n += len;
    return 0;
}

static void tell_body(struct peer *p)
{
    const struct kvr_http_call *call = p->call;
    size_t n = p->body_n;
    p->body_n = 0;
    if (n && call && call->config.handler->on_body) call->config.handler->on_body(p->call, call->config.ctx, p->body, n);
}

static int on_complete(llhttp_t *l)
{
    struct peer *p = peer_of(l);
    if (l->status_code < 200) return 0;
    p->done = true;
    return HPE_PAUSED;
}

static void finish(struct peer *p, bool keep)
{
    struct kvr_http_call *call = p->call;
    p->call = NULL;
    uv_timer_stop(&p->timer); /* a call that was let go had it */
    keep &= !call || !call->config.once;
    if (keep && !p->writing && !p->flushes && !p->client->closed) {
        llhttp_resume(&p->parser);
        to_idle(p);
    } else {
        peer_close(p);
    }
    if (!call) return;
    call->peer = NULL;
    if (call->config.handler->on_done) call->config.handler->on_done(call, call->config.ctx);
    call_free(call);
}

static void on_alloc(uv_handle_t *h, size_t, uv_buf_t *buf)
{
    struct peer *p = h->data;
    *buf = uv_buf_init(p->client->read_buffer, sizeof p->client->read_buffer);
}

/* libuv tells of a reset that comes with the last bytes as of an end. */
static bool was_reset(const struct peer *p)
{
    uv_os_fd_t fd;
    int error = 0;
    socklen_t len = sizeof error;
    if (uv_fileno((const uv_handle_t *)&p->tcp, &fd) || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len)) return true;
    return error != 0;
}

static void on_end_of_input(struct peer *p)
{
    if (p->state == IDLE || !p->call) {
        peer_close(p);
        return;
    }
    bool began = p->got_bytes;
    bool in_body = !kvr__framing_in_head(&p->framing) && !kvr__framing_in_chunks(&p->framing);
    bool whole = p->tls ? kvr_tls_was_closed(p->tls) : !was_reset(p);
    if (began && in_body && whole && llhttp_message_needs_eof(&p->parser) && llhttp_finish(&p->parser) == HPE_OK) {
        finish(p, false);
        return;
    }
    if (p->done) finish(p, false);
    else call_failed(p, began ? KVR_HTTP_TRUNCATED : KVR_HTTP_RESET, "the connection was closed by the worker");
}

/* Bytes of an answer that may be parsed, or a negative number. */
static long look(struct peer *p, const char *data, size_t len)
{
    if (kvr__framing_in_head(&p->framing) || kvr__framing_in_chunks(&p->framing)) return kvr__framing_scan(&p->framing, data, len);
    return (long)len;
}

/* Returns: bytes used; less than len: the answer is whole, or `*why` says what is wrong with it, or the call is cancelled. */
static const char *parser_says(llhttp_errno_t e)
{
    bool framing = e == HPE_UNEXPECTED_CONTENT_LENGTH || e == HPE_INVALID_CONTENT_LENGTH || e == HPE_INVALID_TRANSFER_ENCODING;
    return framing ? odd_framing : llhttp_errno_name(e);
}

static size_t parse(struct peer *p, const char *data, size_t len, const char **why)
{
    size_t used = 0;
    while (used < len && p->call && !p->done) {
        long n = look(p, data + used, len - used);
        if (n <= 0) {
            *why = n == KVR__FRAMING_TOO_LARGE ? "the head of the worker's answer is too large" : "the worker's answer is malformed";
            return used;
        }
        llhttp_errno_t e = llhttp_execute(&p->parser, data + used, (size_t)n);
        if (p->done) return (size_t)(llhttp_get_error_pos(&p->parser) - data);
        if (e != HPE_OK) {
            *why = p->bad ? p->bad : parser_says(e);
            return used;
        }
        used += (size_t)n;
        if (p->head_over) kvr__framing_begin(&p->framing, KVR__ANSWERS);
        p->head_over = false;
    }
    return used;
}

/* Behind a whole answer there is something in the same read: a record of its own, or the end. */
static bool says_more(struct peer *p)
{
    return p->tls && kvr_tls_read(p->tls, p->client->plain, sizeof p->client->plain) != 0;
}

/* Bytes of answers, in the clear. */
static void take_bytes(struct peer *p, const char *data, size_t n)
{
    const char *why = NULL;
    if (p->state != RECEIVING || p->turn.in) { /* bytes nobody asked for: the request, if there is one, has not left yet */
        call_failed(p, KVR_HTTP_RESET, "the worker spoke before it was asked");
        return;
    }
    p->got_bytes = true;
    p->in_callback = true;
    size_t used = parse(p, data, n, &why);
    tell_body(p);
    p->in_callback = false;
    if (p->done) finish(p, used == n && llhttp_should_keep_alive(&p->parser) && !says_more(p));
    else if (!p->call) peer_close(p); /* cancelled meanwhile */
    else if (why) call_failed(p, KVR_HTTP_BAD_ANSWER, why);
    else if (p->call->status && p->headers.cap) kvr_headers_free(&p->headers); /* they were told of, and more is to come */
}

static void take_cipher(struct peer *p, const char *data, size_t n);

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct peer *p = stream->data;
    if (n == 0) return;
    if (n > 0) {
        if (p->tls) take_cipher(p, buf->base, (size_t)n);
        else take_bytes(p, buf->base, (size_t)n);
    } else if (p->state == SHAKING_HANDS) {
        call_failed(p, KVR_HTTP_CONNECT_FAILED, "TLS: the connection was closed before the handshake was over");
    } else if (n == UV_EOF) {
        on_end_of_input(p);
    } else if (p->call) {
        call_failed(p, p->got_bytes ? KVR_HTTP_TRUNCATED : KVR_HTTP_RESET, uv_strerror((int)n));
    } else {
        peer_close(p);
    }
}

/* ---- TLS --------------------------------------------------------------------------------------------- */

struct flush {
    uv_write_t req;
    struct peer *peer;
    struct kvr_body *data;
};

static int send_cipher(struct peer *p);

static void on_flushed(uv_write_t *req, int status)
{
    struct flush *f = (struct flush *)req;
    struct peer *p = f->peer;
    p->flushes--;
    kvr_body_unref(f->data);
    free(f);
    if (status == 0 && p->state == RECEIVING && p->writing) (void)send_cipher(p); /* an error shows on the read side */
}

/* Sends what the session has to say. Returns: 0 or a libuv error. */
static int flush_tls(struct peer *p)
{
    char *data;
    size_t n = kvr_tls_pending(p->tls, &data);
    if (!n) return 0;
    uv_buf_t b = uv_buf_init(data, (unsigned)n);
    int rc = uv_try_write((uv_stream_t *)&p->tcp, &b, 1);
    size_t sent = rc > 0 ? (size_t)rc : 0; /* an error comes again with the rest, and shows on the read side */
    struct flush *f = sent < n ? calloc(1, sizeof *f) : NULL;
    if (f) f->data = kvr_body_copy(data + sent, n - sent);
    kvr_tls_sent(p->tls);
    if (sent == n) return 0;
    if (!f || !f->data) {
        free(f);
        return UV_ENOMEM;
    }
    f->peer = p;
    b = uv_buf_init(f->data->data, (unsigned)(n - sent));
    p->flushes++;
    rc = uv_write(&f->req, (uv_stream_t *)&p->tcp, &b, 1, on_flushed);
    if (rc == 0) return 0;
    p->flushes--;
    kvr_body_unref(f->data);
    free(f);
    return rc;
}

static void begin_request(struct peer *p);

static void go_on_shaking(struct peer *p)
{
    char text[200];
    int rc = kvr_tls_handshake(p->tls, text, sizeof text), sent = flush_tls(p);
    if (rc < 0) call_failed(p, KVR_HTTP_CONNECT_FAILED, text);
    else if (sent) call_failed(p, KVR_HTTP_CONNECT_FAILED, uv_strerror(sent));
    else if (rc == 1) begin_request(p);
}

static void start_tls(struct peer *p)
{
    const struct kvr_http_call *call = p->call;
    p->state = SHAKING_HANDS;
    p->tls = kvr_tls_connect(call->tls_peer, call->host, call->port, call->is_numeric);
    if (!p->tls || uv_read_start((uv_stream_t *)&p->tcp, on_alloc, on_read)) {
        call_failed(p, KVR_HTTP_CONNECT_FAILED, "TLS: no certificates to check the other side with, or no memory");
        return;
    }
    go_on_shaking(p);
}

/* Bytes from the wire of a TLS connection: on with the handshake, then the plain bytes in them. */
static void take_cipher(struct peer *p, const char *data, size_t n)
{
    if (!kvr_tls_feed(p->tls, data, n)) {
        call_failed(p, KVR_HTTP_RESET, "out of memory");
        return;
    }
    if (p->state == SHAKING_HANDS) go_on_shaking(p);
    while (p->state == RECEIVING || p->state == IDLE) {
        long got = kvr_tls_read(p->tls, p->client->plain, sizeof p->client->plain);
        if (got > 0) {
            take_bytes(p, p->client->plain, (size_t)got);
        } else if (got == 0) {
            if (flush_tls(p)) call_failed(p, KVR_HTTP_RESET, "the connection cannot be written to");
            return;
        } else {
            on_end_of_input(p); /* said goodbye, or is broken: told apart there */
            return;
        }
    }
}

/* ---- request ----------------------------------------------------------------------------------------- */

/* Room for one thing that libuv is asked for. Returns: false without memory. */
static bool ask(struct peer *p)
{
    if (!p->asked) p->asked = malloc(sizeof *p->asked);
    if (p->asked) ((uv_req_t *)p->asked)->data = p;
    return p->asked != NULL;
}

static void forget_asked(struct peer *p)
{
    free(p->asked);
    p->asked = NULL;
}

static void on_written(uv_write_t *w, int)
{
    struct peer *p = w->data;
    forget_asked(p);
    stop_holding(p);
    /* A write error shows on the read side too, possibly after an early answer that is worth reading. */
}

/* On with the request, whose head goes with the first piece of its body. The session makes a copy of what it sends, so a large body is
 * given to it in pieces, the next one when the kernel has taken the last. */
static int send_cipher(struct peer *p)
{
    int rc = 0;
    p->writing = true;
    while (rc == 0 && !p->flushes && p->writing) {
        size_t len = p->sent_body ? p->sent_body->len : 0, n = KVR_MIN(len - p->enciphered, (size_t)CIPHER_PIECE);
        uv_buf_t bufs[] = {uv_buf_init(p->sent_head->data, p->enciphered ? 0 : (unsigned)p->sent_head->len),
                           n ? uv_buf_init(p->sent_body->data + p->enciphered, (unsigned)n) : (uv_buf_t){0}};
        p->enciphered += n;
        rc = kvr_tls_write(p->tls, bufs, n ? 2 : 1) ? flush_tls(p) : UV_EPROTO;
        if (p->enciphered == len) stop_holding(p);
    }
    return rc;
}

/* Mostly the kernel takes all of it at once. An error is left to the reading side, where an early answer may be. */
static int send_plain(struct peer *p, uv_buf_t *bufs, unsigned n)
{
    int rc = uv_try_write((uv_stream_t *)&p->tcp, bufs, n);
    size_t sent = rc > 0 ? (size_t)rc : 0, left = 0;
    for (unsigned i = 0; i < n; i++) {
        size_t skip = KVR_MIN(sent, bufs[i].len);
        bufs[i] = uv_buf_init(bufs[i].base + skip, (unsigned)(bufs[i].len - skip));
        sent -= skip;
        left += bufs[i].len;
    }
    if (left == 0 || rc == UV_EPIPE || rc == UV_ECONNRESET) {
        stop_holding(p);
        return 0;
    }
    p->writing = true;
    rc = ask(p) ? uv_write(&p->asked->write, (uv_stream_t *)&p->tcp, bufs, n, on_written) : UV_ENOMEM;
    if (rc) stop_holding(p);
    return rc;
}

static int read_answer(struct peer *p)
{
    if (p->call->paused) return uv_read_stop((uv_stream_t *)&p->tcp);
    int rc = uv_read_start((uv_stream_t *)&p->tcp, on_alloc, on_read);
    return rc == UV_EALREADY ? 0 : rc;
}

static void on_send_failed(uv_timer_t *t);

static void send_turn(struct kvr__turn_place *place)
{
    struct peer *p = (struct peer *)((char *)place - offsetof(struct peer, turn));
    bool has_body = p->sent_body && p->sent_body->len;
    uv_buf_t bufs[] = {uv_buf_init(p->sent_head->data, (unsigned)p->sent_head->len),
                       has_body ? uv_buf_init(p->sent_body->data, (unsigned)p->sent_body->len) : (uv_buf_t){0}};
    if (send_plain(p, bufs, has_body ? 2 : 1)) uv_timer_start(&p->timer, on_send_failed, 0, 0); /* told from the loop */
}

static int send_request(struct peer *p)
{
    const struct kvr_http_call *call = p->call;
    p->state = RECEIVING;
    p->got_bytes = p->done = p->head_over = false;
    p->interim = 0;
    p->bad = NULL;
    kvr__framing_begin(&p->framing, KVR__ANSWERS);
    kvr__headers_reset(&p->headers);
    llhttp_init(&p->parser, HTTP_RESPONSE, &p->client->settings);
    p->sent_head = kvr_body_ref(call->head);
    p->sent_body = kvr_body_ref(call->config.body);
    p->enciphered = 0;
    int rc = 0;
    p->writing = true;
    if (p->tls) rc = send_cipher(p);
    else kvr__turn_join(&p->client->turn, &p->turn);
    return rc ? rc : read_answer(p);
}

/* The connection is there. */
static void begin_request(struct peer *p)
{
    forget_asked(p);
    uv_timer_stop(&p->timer);
    p->call->connect_ns = uv_hrtime() - p->call->connecting_ns;
    int rc = send_request(p);
    if (rc) call_failed(p, KVR_HTTP_RESET, uv_strerror(rc));
}

static void on_connected(uv_connect_t *req, int status)
{
    struct peer *p = req->data;
    if (p->state == CLOSING) return;
    if (status < 0) {
        call_failed(p, KVR_HTTP_CONNECT_FAILED, uv_strerror(status));
        return;
    }
    uv_tcp_nodelay(&p->tcp, 1);
    if (p->call->tls) start_tls(p);
    else begin_request(p);
}

static void connect_to(struct peer *p, const struct sockaddr *addr)
{
    p->state = CONNECTING;
    int rc = ask(p) ? uv_tcp_connect(&p->asked->connect, &p->tcp, addr, on_connected) : UV_ENOMEM;
    if (rc) call_failed(p, KVR_HTTP_CONNECT_FAILED, uv_strerror(rc));
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct peer *p = req->data;
    p->resolving = false;
    if (p->state == CLOSING) {
        uv_freeaddrinfo(list);
        peer_maybe_free(p);
        return;
    }
    if (status < 0 || !list) {
        call_failed(p, KVR_HTTP_CONNECT_FAILED, uv_strerror(status ? status : UV_EAI_NONAME));
        uv_freeaddrinfo(list);
        return;
    }
    struct sockaddr_storage a = {0};
    memcpy(&a, list->ai_addr, list->ai_addrlen);
    uv_freeaddrinfo(list);
    connect_to(p, (const struct sockaddr *)&a);
}

static void on_connect_timeout(uv_timer_t *t)
{
    struct peer *p = t->data;
    call_failed(p, KVR_HTTP_CONNECT_TIMEOUT, "connecting took too long");
}

/* Failures in here are reported from the loop, so that starting a call never calls back. */
static void on_start_soon(uv_timer_t *t)
{
    struct peer *p = t->data;
    struct kvr_http_call *call = p->call;
    call->connecting_ns = uv_hrtime();
    double timeout = call->config.connect_timeout_s;
    if (timeout > 0) uv_timer_start(&p->timer, on_connect_timeout, (uint64_t)(timeout * 1000) + 1, 0);
    if (call->is_numeric) {
        connect_to(p, &call->addr.any);
        return;
    }
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    snprintf(port, sizeof port, "%u", call->port);
    p->state = RESOLVING;
    int rc = ask(p) ? uv_getaddrinfo(p->client->loop, &p->asked->resolve, on_resolved, call->host, port, &hints) : UV_ENOMEM;
    p->resolving = rc == 0;
    if (rc) {
        call_failed(p, KVR_HTTP_CONNECT_FAILED, uv_strerror(rc));
    }
}

/* Idle connections, the oldest first, make room for a new one. */
static void make_room(struct kvr_http_client *c)
{
    while (c->idle && c->open_max && c->idle_n + c->busy_n >= c->open_max) {
        struct peer *oldest = c->idle;
        while (oldest->next) oldest = oldest->next;
        peer_close(oldest);
    }
}

static struct peer *peer_new(struct kvr_http_client *c, uint64_t key)
{
    make_room(c);
    struct peer *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->client = c;
    p->key = key;
    uv_tcp_init(c->loop, &p->tcp);
    uv_timer_init(c->loop, &p->timer);
    p->tcp.data = p->timer.data = p;
    p->handles = 2;
    p->state = CONNECTING;
    c->handles++;
    KVR_LIST_PUSH(c->busy, p);
    c->busy_n++;
    return p;
}

static void peer_start(struct peer *p)
{
    uv_timer_start(&p->timer, on_start_soon, 0, 0);
}

static void on_send_failed(uv_timer_t *t)
{
    call_failed(t->data, KVR_HTTP_RESET, "the connection cannot be written to");
}

static struct peer *peer_from_pool(struct kvr_http_client *c, uint64_t key)
{
    for (struct peer *p = c->idle; p; p = p->next)
        if (p->key == key) {
            KVR_LIST_TAKE(c->idle, p);
            c->idle_n--;
            KVR_LIST_PUSH(c->busy, p);
            c->busy_n++;
            p->state = RECEIVING;
            p->reused = true;
            return p;
        }
    return NULL;
}

/* NULL: out of memory. */
static struct kvr_http_call *call_new(const struct kvr_http_call_config *config)
{
    const struct kvr_endpoint *e = config->endpoint;
    size_t host = strlen(e->host) + 1;
    bool joined = config->body && config->body->len <= JOINED_MAX;
    struct kvr_text body = joined ? (struct kvr_text){config->body->data, config->body->len} : (struct kvr_text){0};
    struct kvr_http_call *call = malloc(sizeof *call + host);
    struct kvr_body *head = call ? kvr__body_join((struct kvr_text){config->head, config->head_len}, body) : NULL;
    if (!head) {
        free(call);
        return NULL;
    }
    *call = (struct kvr_http_call){.config = *config,
                                   .head = head,
                                   .key = e->key,
                                   .tls_peer = e->tls_peer,
                                   .port = e->port,
                                   .is_numeric = e->is_numeric,
                                   .tls = e->tls};
    call->config.body = joined ? NULL : kvr_body_ref(config->body);
    call->config.head = NULL;
    call->config.endpoint = NULL;
    memcpy(&call->addr, &e->addr, sizeof call->addr);
    memcpy(call->host, e->host, host);
    return call;
}

struct kvr_http_call *kvr_http_call_start(struct kvr_http_client *c, const struct kvr_http_call_config *config)
{
    struct kvr_http_call *call = call_new(config);
    if (!call) return NULL;
    struct peer *p = config->once ? NULL : peer_from_pool(c, call->key);
    bool pooled = p != NULL;
    if (!p) p = peer_new(c, call->key);
    if (!p) {
        call_free(call);
        return NULL;
    }
    p->call = call;
    call->peer = p;
    if (pooled) {
        if (send_request(p)) uv_timer_start(&p->timer, on_send_failed, 0, 0); /* told from the loop */
    } else {
        peer_start(p);
    }
    return call;
}

void kvr_http_call_cancel(struct kvr_http_call *call)
{
    struct peer *p = call->peer;
    if (p) {
        p->call = NULL;
        if (!p->in_callback) peer_close(p);
    }
    call_free(call);
}

/* ---- calls that nobody waits for any more ------------------------------------------------------------ */

static const struct kvr_http_call_handler dropping;

static void on_let_go_timeout(uv_timer_t *t)
{
    struct peer *p = t->data;
    if (p->call) kvr_http_call_cancel(p->call);
}

void kvr_http_call_let_go(struct kvr_http_call *call, uint64_t timeout_ms)
{
    struct peer *p = call->peer;
    if (!p || p->in_callback || p->state != RECEIVING) {
        kvr_http_call_cancel(call);
        return;
    }
    call->config.handler = &dropping;
    call->let_go = true;
    call->retried = true; /* it is not sent again */
    kvr_http_call_resume(call);
    uv_timer_start(&p->timer, on_let_go_timeout, timeout_ms, 0);
}

void kvr_http_call_pause(struct kvr_http_call *call)
{
    call->paused = true;
    if (call->peer && call->peer->state == RECEIVING) uv_read_stop((uv_stream_t *)&call->peer->tcp);
}

void kvr_http_call_resume(struct kvr_http_call *call)
{
    if (!call->paused) return;
    call->paused = false;
    if (call->peer && call->peer->state == RECEIVING) uv_read_start((uv_stream_t *)&call->peer->tcp, on_alloc, on_read);
}

/* ---- client ------------------------------------------------------------------------------------------ */

static void on_sweep(uv_timer_t *t)
{
    struct kvr_http_client *c = t->data;
    uint64_t now = uv_now(c->loop), limit = (uint64_t)(c->idle_timeout_s * 1000);
    for (struct peer *p = c->idle, *next; p; p = next) {
        next = p->next;
        if (now - p->idle_since_ms >= limit) peer_close(p);
    }
}

int kvr_http_client_create(uv_loop_t *loop, double idle_timeout_s, struct kvr_http_client **out)
{
    struct kvr_http_client *c = calloc(1, sizeof *c);
    if (!c) return -KVR_ENOMEM;
    c->loop = loop;
    c->idle_timeout_s = idle_timeout_s;
    llhttp_settings_init(&c->settings);
    c->settings.on_message_begin = on_begin;
    c->settings.on_header_field = on_field;
    c->settings.on_header_value = on_value;
    c->settings.on_headers_complete = on_head;
    c->settings.on_body = on_body;
    c->settings.on_message_complete = on_complete;
    uv_timer_init(loop, &c->sweep);
    kvr__turn_init(&c->turn, loop, send_turn);
    c->sweep.data = c->turn.before_wait.data = c;
    c->handles = 2;
    uv_timer_start(&c->sweep, on_sweep, 500, 500);
    uv_unref((uv_handle_t *)&c->sweep);
    *out = c;
    return 0;
}

void kvr_http_client_count_reopened(struct kvr_http_client *c, _Atomic uint64_t *counter)
{
    c->reopened = counter;
}

void kvr_http_client_open_max(struct kvr_http_client *c, size_t n)
{
    c->open_max = n;
}

static void on_client_closed(uv_handle_t *h)
{
    struct kvr_http_client *c = h->data;
    c->handles--;
    client_maybe_free(c);
}

void kvr_http_client_close(struct kvr_http_client *c)
{
    if (!c || c->closed) return;
    c->closed = true;
    kvr__turn_send(&c->turn);
    while (c->idle) peer_close(c->idle);
    while (c->busy) {
        struct peer *p = c->busy;
        if (p->call && p->call->let_go) call_free(p->call);
        else if (p->call) p->call->peer = NULL; /* its owner cancels it later, or has forgotten it */
        p->call = NULL;
        peer_close(p);
    }
    uv_close((uv_handle_t *)&c->sweep, on_client_closed);
    uv_close((uv_handle_t *)&c->turn.before_wait, on_client_closed);
}

uint64_t kvr_http_call_connect_ns(const struct kvr_http_call *call)
{
    return call->connect_ns;
}

int kvr_http_call_status(const struct kvr_http_call *call)
{
    return call->status;
}
