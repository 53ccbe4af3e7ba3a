/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP server. A connection carries one exchange at a time:
 *
 *     reading --whole request--> answering --end--> reading ...           bytes that arrive while answering wait
 *        \---- bad, late, gone ----> closing <---/                        in `ahead` (bounded), then are parsed
 *
 * This file: listening, connections and their ends, deadlines (checked once a second for all connections, which costs less
 * than a timer each). Parts: http_server_internal.h.
 *
 * Room for new connections: at the limit the oldest one that is idle, or has been sending its request for some time, is closed.
 * One that is being answered never is.
 */
#include "net/http_server_internal.h"

#include <dirent.h>
#include <string.h>
#include <sys/resource.h>

enum {
    LINGER_S = 2,
    REFUSED_S = 5,       /* for a refused client to read why */
    SLOW_MS = 2000,      /* a request that takes longer to arrive may give way */
    LOOKED_AT = 4096,    /* connections, when one must give way */
    DESCRIPTORS_KEPT = 8 /* for files, health checks, ... */
};

void kvr__conn_deadline(struct kvr_http_conn *c, double seconds)
{
    c->deadline_ms = seconds > 0 ? uv_now(c->tcp.loop) + (uint64_t)(seconds * 1000) + 1 : 0;
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf)
{
    struct kvr_http_conn *c = h->data;
    (void)hint;
    *buf = uv_buf_init(c->server->read_buffer, sizeof c->server->read_buffer);
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
        if (got > 0) kvr__request_take(c, c->server->plain, (size_t)got);
    }
    if (c->closing) return;
    kvr__answer_flush_tls(c); /* the handshake's part, an alert */
    if (got >= 0) return;
    note_handshake(c);
    kvr__conn_close(c);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct kvr_http_conn *c = stream->data;
    if (n == 0) return;
    if (n < 0) {
        note_handshake(c);
        kvr__conn_close(c);
        return;
    }
    if (c->lingering) return;
    if (c->tls) take_tls(c, buf->base, (size_t)n);
    else kvr__request_take(c, buf->base, (size_t)n);
}

void kvr__conn_update_reading(struct kvr_http_conn *c)
{
    if (c->closing) return;
    bool room = c->lingering || (!c->above_high && c->ahead.len <= KVR_HTTP_PIPELINE_MAX);
    if (room && c->read_stopped) uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    else if (!room && !c->read_stopped) uv_read_stop((uv_stream_t *)&c->tcp);
    c->read_stopped = !room;
}

/* ---- the end of a connection ------------------------------------------------------------------------- */

static void server_maybe_free(struct kvr_http_server *s)
{
    if (s->closed && s->handles == 0 && !s->conns) free(s);
}

static void on_conn_closed(uv_handle_t *h)
{
    struct kvr_http_conn *c = h->data;
    struct kvr_http_server *s = c->server;
    *(c->next ? &c->next->prev : &s->oldest) = c->prev;
    *(c->prev ? &c->prev->next : &s->conns) = c->next;
    s->stats.open--;
    kvr__request_free(c);
    kvr_headers_free(&c->headers);
    kvr_buf_free(&c->target);
    kvr_tls_free(c->tls);
    free(c);
    server_maybe_free(s);
}

void kvr__conn_close(struct kvr_http_conn *c)
{
    const struct kvr_http_handler *h = &c->server->config.handler;
    if (c->closing) return;
    c->closing = true;
    c->server->live--;
    if (!c->reset_at_close || uv_tcp_close_reset(&c->tcp, on_conn_closed)) uv_close((uv_handle_t *)&c->tcp, on_conn_closed);
    if (c->answering && c->user && h->on_gone) h->on_gone(c, h->ctx);
    c->answering = false;
}

/* Ends it so that nobody takes what was sent for all there is, and the kernel keeps none of it. */
static void conn_reset(struct kvr_http_conn *c)
{
    c->reset_at_close = true;
    kvr__conn_close(c);
}

/* A client that is still sending would lose our answer to a reset if we closed now, so only our side is shut, and what still
 * comes is thrown away until the client closes or some time has passed. */
void kvr__conn_linger(struct kvr_http_conn *c)
{
    if (c->closing || c->lingering) return;
    c->lingering = true;
    kvr__conn_deadline(c, LINGER_S);
    if (c->tls) {
        kvr_tls_shutdown(c->tls);
        kvr__answer_flush_tls(c);
    }
    if (c->reset_at_close || uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, NULL)) kvr__conn_close(c);
    else kvr__conn_update_reading(c);
}

/* ---- deadlines --------------------------------------------------------------------------------------- */

/* Has the client taken nothing of what is queued for too long? */
static bool is_stuck(struct kvr_http_conn *c, uint64_t now)
{
    double limit = c->server->config.write_timeout_s;
    size_t left = uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp);
    uint64_t sent = c->queued_total - left;
    if (left == 0 || sent != c->sent_seen) {
        c->sent_seen = sent;
        c->progress_ms = now;
    }
    return limit > 0 && (double)(now - c->progress_ms) >= limit * 1000;
}

static void look_at(struct kvr_http_conn *c, uint64_t now)
{
    if (c->closing) return;
    if (c->write_failed) {
        conn_reset(c);
    } else if (is_stuck(c, now)) {
        atomic_fetch_add(&c->server->shared->write_timeouts, 1);
        conn_reset(c);
    } else if (c->answering || !c->deadline_ms || now < c->deadline_ms) {
        return;
    } else if (c->started_message && !c->close_when_sent) {
        kvr__answer_refuse(c, 408, "the request did not arrive in time");
        kvr__conn_deadline(c, REFUSED_S);
    } else if (c->queued == 0) { /* else it is still being sent, and judged by is_stuck */
        kvr__conn_close(c);
    }
}

static void take_connection(struct kvr_http_server *s);

static void on_sweep(uv_timer_t *t)
{
    struct kvr_http_server *s = t->data;
    uint64_t now = uv_now(t->loop);
    for (struct kvr_http_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        look_at(c, now);
    }
    if (s->accept_owed && !s->draining && !s->closed) take_connection(s);
}

void kvr__conn_fail_soon(struct kvr_http_conn *c)
{
    struct kvr_http_server *s = c->server;
    c->write_failed = true;
    if (!s->closed) uv_timer_start(&s->sweep, on_sweep, 0, 1000);
}

/* ---- new connections --------------------------------------------------------------------------------- */

static bool gives_way(const struct kvr_http_conn *c, bool idle, uint64_t now)
{
    if (c->closing || c->answering) return false;
    if (idle) return c->lingering || (!c->started_message && c->queued == 0);
    return now - c->message_ms > SLOW_MS;
}

/* Closes one connection to make room. false: none may be closed. */
static bool evict(struct kvr_http_server *s, const struct kvr_http_conn *but)
{
    uint64_t now = uv_now(s->tcp.loop);
    for (int idle = 1; idle >= 0; idle--) {
        unsigned looked_at = 0;
        for (struct kvr_http_conn *c = s->oldest; c && looked_at < LOOKED_AT; c = c->prev, looked_at++) {
            if (c == but || !gives_way(c, idle, now)) continue;
            atomic_fetch_add(&s->shared->evicted, 1);
            conn_reset(c);
            return true;
        }
    }
    return false;
}

static void conn_begin(struct kvr_http_conn *c)
{
    struct kvr_http_server *s = c->server;
    if (s->config.tls && !(c->tls = kvr_tls_new(s->config.tls))) {
        atomic_fetch_add(&s->shared->accept_failures, 1);
        kvr__conn_close(c);
        return;
    }
    uv_tcp_nodelay(&c->tcp, 1);
    llhttp_init(&c->parser, HTTP_REQUEST, &s->settings);
    kvr__request_begin(c);
    kvr__conn_deadline(c, s->config.head_timeout_s);
    c->progress_ms = uv_now(c->tcp.loop);
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
}

/* libuv listens no further until the connection it has told of is taken; without memory for it that is tried again later. */
static void take_connection(struct kvr_http_server *s)
{
    struct kvr_http_conn *c = calloc(1, sizeof *c);
    s->accept_owed = !c;
    if (!c) {
        atomic_fetch_add(&s->shared->accept_failures, 1);
        return;
    }
    c->server = s;
    uv_tcp_init(s->tcp.loop, &c->tcp);
    c->tcp.data = c;
    s->stats.connections++;
    s->stats.open++;
    s->live++;
    c->next = s->conns;
    *(c->next ? &c->next->prev : &s->oldest) = c;
    s->conns = c;
    bool taken = uv_accept((uv_stream_t *)&s->tcp, (uv_stream_t *)&c->tcp) == 0;
    if (taken && (s->live <= s->config.connections_max || evict(s, c))) {
        conn_begin(c);
        return;
    }
    s->stats.refused_connections++;
    atomic_fetch_add(&s->shared->refused, 1);
    kvr__conn_close(c);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct kvr_http_server *s = listener->data;
    if (status == 0) {
        take_connection(s);
    } else { /* no descriptor, most likely */
        atomic_fetch_add(&s->shared->accept_failures, 1);
        (void)evict(s, NULL);
    }
}

static size_t descriptors_open(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

size_t kvr_http_connections_max(size_t wanted, size_t servers)
{
    struct rlimit r;
    size_t used = descriptors_open() + DESCRIPTORS_KEPT;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY) return wanted;
    size_t each = r.rlim_cur > used ? ((size_t)r.rlim_cur - used) / 2 / servers : 0;
    return KVR_MIN(wanted, KVR_MAX(each, (size_t)2));
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
    s->shared = config->shared ? config->shared : &s->own;
    kvr__request_settings(&s->settings);
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
        if (c->answering || c->started_message) continue;
        if (c->queued) c->close_when_sent = true;
        else kvr__conn_close(c);
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
        kvr__conn_close(c);
    }
}

void kvr_http_conn_set_user(struct kvr_http_conn *c, void *user)
{
    c->user = user;
}

void *kvr_http_conn_user(struct kvr_http_conn *c)
{
    return c->user;
}
