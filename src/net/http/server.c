/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP server. A connection carries one exchange at a time:
 *
 *     reading --whole request--> answering --end--> reading ...           bytes that arrive while answering wait
 *        \---- bad, late, gone ----> closing <---/                        in `ahead` (bounded), then are parsed
 *
 * This file: listening, connections and their ends, deadlines (checked once a second for all connections, which costs less
 * than a timer each). Parts: http/server_internal.h.
 *
 * Room for new connections: at the limit the oldest one that is idle, or has been sending its request or not reading its answer for
 * some time, is closed. When there is none, the new one waits in the kernel's queue until another ends.
 *
 * A client that has closed its sending half sends the same FIN as one that has gone. So it is sent something that changes nothing, and
 * whoever has gone answers that with a reset (http/answer.c).
 */
#include "net/http/addresses.h"
#include "net/http/listen.h"
#include "net/http/server_internal.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    LINGER_S = 2,
    REFUSED_S = 5,     /* for a refused client to read why */
    IDLE_MS = 250,     /* a connection on which nothing comes may give way */
    QUIET_MS = 1000,   /* a connection on which nothing has come for so long is closed while draining */
    SLOW_MS = 1000,    /* a request, or a handshake, that takes longer may give way */
    LOOKED_AT = 4096,  /* connections, when one must give way */
    RESET_MS = 100,    /* for the reset of a client that has gone to come, before it is looked for again */
    ACCEPTED_MAX = 64, /* in one turn of the loop */
    SWEEP_MS = 1000,
    DRAIN_MS = 20,       /* between sweeps while draining */
    DESCRIPTORS_KEPT = 8 /* for files, health checks, ... */
};

void kvr__conn_deadline(struct kvr_http_conn *c, double seconds)
{
    c->deadline_ms = seconds > 0 ? uv_now(c->tcp.loop) + (uint64_t)(seconds * 1000) + 1 : 0;
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static void on_alloc(uv_handle_t *h, size_t, uv_buf_t *buf)
{
    struct kvr_http_conn *c = h->data;
    if (!kvr__request_straight(c, buf)) *buf = uv_buf_init(c->server->read_buffer, sizeof c->server->read_buffer);
}

/* The connection ends: was it before TLS stood? */
static void note_handshake(const struct kvr_http_conn *c)
{
    if (c->tls && !c->shaken) atomic_fetch_add(&c->server->shared->handshakes_failed, 1);
}

/* A client that speaks plain HTTP here learns what is wrong. Nothing of what it has sent is looked at. */
static void refuse_plain(struct kvr_http_conn *c)
{
    note_handshake(c);
    kvr_tls_free(c->tls);
    c->tls = NULL;
    kvr__answer_refuse(c, 400, "this port speaks TLS: use https://");
}

static void take_tls(struct kvr_http_conn *c, const char *data, size_t n)
{
    enum { A_HANDSHAKE = 0x16 }; /* the type of the first record, RFC 8446, 5.1 */
    if (!c->tls_begun && *data != A_HANDSHAKE) {
        refuse_plain(c);
        return;
    }
    c->tls_begun = true;
    long got = kvr_tls_feed(c->tls, data, n) ? 1 : -1;
    while (got > 0 && !c->closing && !c->lingering) {
        got = kvr_tls_read(c->tls, c->server->plain, sizeof c->server->plain);
        if (!c->shaken && kvr_tls_is_up(c->tls)) {
            c->shaken = true;
            c->message_ms = kvr_now_ms();
            atomic_fetch_add(&c->server->shared->handshakes, 1);
        }
        if (got > 0) kvr__request_take(c, c->server->plain, (size_t)got);
    }
    if (c->closing) return;
    kvr__answer_flush_tls(c); /* the handshake's part, an alert */
    if (got >= 0) return;
    note_handshake(c);
    kvr__conn_close(c);
}

static bool has_gone(const struct kvr_http_conn *c)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    uv_os_fd_t fd;
    return uv_fileno((const uv_handle_t *)&c->tcp, &fd) || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) ||
           info.tcpi_state == TCP_CLOSE;
}

static void look_soon(struct kvr_http_server *s, uint64_t ms);

/* Nothing more will come. What was sent whole is answered yet, unless the client has gone, or cannot be asked whether it has. */
static void take_end(struct kvr_http_conn *c)
{
    c->half_closed = true;
    if (!c->answering) {
        kvr__request_parse_ahead(c);
        return;
    }
    if (!kvr__answer_probe(c) || has_gone(c)) kvr__conn_close(c);
    else look_soon(c->server, RESET_MS);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct kvr_http_conn *c = stream->data;
    if (n == 0) return;
    if (n == UV_EOF && !c->tls && !c->lingering) {
        take_end(c);
        return;
    }
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
    if (c->closing || c->half_closed) return;
    bool room = c->lingering || (!c->above_high && c->ahead.len <= KVR_HTTP_PIPELINE_MAX);
    if (room && c->read_stopped) uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    else if (!room && !c->read_stopped) uv_read_stop((uv_stream_t *)&c->tcp);
    c->read_stopped = !room;
}

/* ---- the end of a connection ------------------------------------------------------------------------- */

static void take_connections(struct kvr_http_server *s);

/* It did not listen for want of room. */
static bool wants_connections(const struct kvr_http_server *s)
{
    return !s->listening && !s->waits && !s->deaf && !s->closed;
}

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
    s->open--;
    if (wants_connections(s)) take_connections(s);
    kvr__request_free(c);
    kvr_headers_free(&c->headers);
    kvr_buf_free(&c->target);
    kvr_buf_free(&c->held);
    kvr_tls_free(c->tls);
    free(c);
    server_maybe_free(s);
}

void kvr__conn_close(struct kvr_http_conn *c)
{
    const struct kvr_http_handler *h = &c->server->config.handler;
    if (c->closing) return;
    if (!c->reset_at_close) kvr__answer_send_now(c);
    kvr__turn_leave(&c->turn);
    c->closing = true;
    c->server->live--;
    if (c->counted) kvr_addresses_leave(c->server->shared->addresses, c->address, 1);
    c->counted = false;
    if (c->answering && c->server->closed) atomic_fetch_add(&c->server->shared->cut_off, 1);
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
    kvr__answer_send_now(c);
    if (c->queued) return; /* it is called again when that is sent */
    if (c->half_closed) {  /* and nothing can come */
        kvr__conn_close(c);
        return;
    }
    c->lingering = true;
    kvr__conn_deadline(c, LINGER_S);
    if (c->tls) {
        kvr_tls_shutdown(c->tls);
        kvr__answer_flush_tls(c);
    }
    if (c->reset_at_close || uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, NULL)) kvr__conn_close(c);
    else kvr__conn_update_reading(c);
}

/* Are there bytes that the kernel has and this loop has not read? A loop that is late, not the client, makes such a connection look idle.
 */
static bool has_unread(const struct kvr_http_conn *c)
{
    uv_os_fd_t fd;
    int n = 0;
    return uv_fileno((const uv_handle_t *)&c->tcp, &fd) == 0 && ioctl(fd, FIONREAD, &n) == 0 && n > 0;
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
    return limit > 0 && now > c->progress_ms && (double)(now - c->progress_ms) >= limit * 1000; /* the loop's clock may be behind */
}

/* While draining. A client that has just come, or had an answer that promised another one, may have a request on the way, and would take a
 * close for a fault of ours. */
static void close_if_idle(struct kvr_http_conn *c)
{
    if (c->answering || c->started_message || c->closing || c->lingering || has_unread(c)) return;
    if (kvr_now_ms() - c->message_ms < QUIET_MS) return;
    if (c->queued) c->close_when_sent = true;
    else kvr__conn_close(c);
}

static void look_at(struct kvr_http_conn *c, uint64_t now)
{
    if (c->closing) return;
    if (c->write_failed) {
        conn_reset(c);
    } else if (c->half_closed && has_gone(c)) {
        kvr__conn_close(c);
    } else if (is_stuck(c, now)) {
        atomic_fetch_add(&c->server->shared->write_timeouts, 1);
        conn_reset(c);
    } else if (c->answering || !c->deadline_ms || now < c->deadline_ms) {
        if (c->server->draining) close_if_idle(c);
    } else if (c->started_message && !c->close_when_sent && (c->queued || has_unread(c))) {
        kvr__conn_deadline(c, c->server->config.head_timeout_s); /* we are late, or it takes no answers: is_stuck judges that */
    } else if (c->started_message && !c->close_when_sent) {
        kvr__answer_refuse(c, 408, "the request did not arrive in time");
        kvr__conn_deadline(c, REFUSED_S);
    } else if (c->queued == 0) { /* else it is still being sent, and judged by is_stuck */
        kvr__conn_close(c);
    }
}

static void on_sweep(uv_timer_t *t)
{
    struct kvr_http_server *s = t->data;
    uint64_t now = uv_now(t->loop);
    for (struct kvr_http_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        look_at(c, now);
    }
    kvr__spares_age();
    if (wants_connections(s)) take_connections(s);
}

/* An earlier look that is due stays due. */
static void look_soon(struct kvr_http_server *s, uint64_t ms)
{
    if (!s->closed && uv_timer_get_due_in(&s->sweep) > ms) uv_timer_start(&s->sweep, on_sweep, ms, s->draining ? DRAIN_MS : SWEEP_MS);
}

void kvr__conn_fail_soon(struct kvr_http_conn *c)
{
    c->write_failed = true;
    look_soon(c->server, 0);
}

/* ---- new connections --------------------------------------------------------------------------------- */

/* A client of TLS answers what the server has said before its request can come, so it is on its way for a while. */
static bool shakes_hands(const struct kvr_http_conn *c)
{
    return c->tls_begun && !c->shaken;
}

static bool is_idle(const struct kvr_http_conn *c, uint64_t now)
{
    return !c->started_message && !shakes_hands(c) && c->queued == 0 && now - c->message_ms > IDLE_MS && !has_unread(c);
}

/* Idle ones first, then those that have been slow for some time: to send a request, or to read what is queued for them. */
static bool gives_way(const struct kvr_http_conn *c, bool idle, uint64_t now)
{
    if (c->closing) return false;
    if (idle) return !c->answering && (c->lingering || is_idle(c, now));
    if (c->queued) return now - c->progress_ms > SLOW_MS;
    return !c->answering && now - c->message_ms > SLOW_MS && (c->started_message || !has_unread(c));
}

/* Closes one connection to make room. false: none may be closed. */
static bool evict(struct kvr_http_server *s)
{
    uint64_t now = kvr_now_ms();
    for (int idle = 1; idle >= 0; idle--) {
        unsigned looked_at = 0;
        for (struct kvr_http_conn *c = s->oldest; c && looked_at < LOOKED_AT; c = c->prev, looked_at++) {
            if (!gives_way(c, idle, now)) continue;
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
    c->progress_ms = kvr_now_ms();
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
}

static struct kvr_http_conn *conn_new(struct kvr_http_server *s)
{
    struct kvr_http_conn *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->server = s;
    uv_tcp_init(s->loop, &c->tcp);
    c->tcp.data = c;
    s->open++;
    s->live++;
    c->next = s->conns;
    *(c->next ? &c->next->prev : &s->oldest) = c;
    s->conns = c;
    return c;
}

static struct kvr_http_conn *open_connection(struct kvr_http_server *s, int fd, uint64_t address)
{
    struct kvr_http_conn *c = conn_new(s);
    if (!c) return NULL;
    c->counted = s->shared->addresses != NULL;
    c->address = address;
    int rc = uv_tcp_open(&c->tcp, fd);
    if (rc) close(fd);
    if (rc == 0) conn_begin(c);
    else kvr__conn_close(c);
    return c;
}

static uint64_t address_at(int fd)
{
    struct sockaddr_storage from = {0};
    socklen_t len = sizeof from;
    return getpeername(fd, (struct sockaddr *)&from, &len) == 0 ? kvr_address_of((struct sockaddr *)&from) : 0;
}

static bool has_room(struct kvr_http_server *s)
{
    return s->live < s->config.connections_max || evict(s);
}

/* Closed without a word: its address has as many as it may. */
static void turn_away(struct kvr_http_server *s, int fd)
{
    atomic_fetch_add(&s->shared->addresses_refused, 1);
    close(fd);
}

/* What its client has closed before it connected is known by now, unless the loop that has to see it is late. */
static void on_second_look(uv_timer_t *timer)
{
    struct kvr_http_server *s = timer->data;
    uint64_t now = kvr_now_ms();
    size_t n = s->late_n;
    s->late_n = 0;
    for (size_t i = 0; i < n; i++) {
        bool counted = kvr_addresses_enter(s->shared->addresses, s->late[i].address, 1) == 0;
        if (counted && has_room(s) && open_connection(s, s->late[i].fd, s->late[i].address)) continue;
        if (counted) kvr_addresses_leave(s->shared->addresses, s->late[i].address, 1);
        if (!counted && now < s->late[i].until_ms) s->late[s->late_n++] = s->late[i];
        else turn_away(s, s->late[i].fd);
    }
    if (s->late_n == 0) uv_timer_stop(timer);
}

/* Counts the one that was accepted. Returns: false: its address has as many as it may. It is looked at again for a while, or closed. */
static bool may_have_one_more(struct kvr_http_server *s, uint64_t *address)
{
    enum { LOOK_MS = 20, PATIENCE_MS = 1000 };
    *address = address_at(s->accepted);
    if (kvr_addresses_enter(s->shared->addresses, *address, 1) == 0) return true;
    if (s->late_n == KVR__LATE_MAX) {
        turn_away(s, s->accepted);
    } else {
        s->late[s->late_n].fd = s->accepted;
        s->late[s->late_n].until_ms = kvr_now_ms() + PATIENCE_MS;
        s->late[s->late_n++].address = *address;
        if (s->late_n == 1) uv_timer_start(&s->second_look, on_second_look, LOOK_MS, LOOK_MS);
    }
    s->accepted = -1;
    return false;
}

/* One connection of the kernel's queue. false: there is none, or no room, memory or descriptor for it: *blocked. */
static bool take_connection(struct kvr_http_server *s, bool *blocked)
{
    if (s->accepted < 0) s->accepted = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (s->accepted < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
        *blocked = errno != ECONNABORTED && errno != EINTR;
        if (*blocked) atomic_fetch_add(&s->shared->accept_failures, 1);
        return !*blocked || evict(s);
    }
    uint64_t address = 0;
    bool counts = s->shared->addresses != NULL;
    if (counts && !may_have_one_more(s, &address)) return true;
    bool room = has_room(s);
    *blocked = !room || !open_connection(s, s->accepted, address);
    if (*blocked) {
        if (counts) kvr_addresses_leave(s->shared->addresses, address, 1); /* it is counted when it is looked at again */
        atomic_fetch_add(room ? &s->shared->accept_failures : &s->shared->delayed, 1);
        return false;
    }
    s->accepted = -1;
    return true;
}

static void on_readable(uv_poll_t *h, int status, int events);

/* Listens, or not while nothing can be taken: what comes then waits in the kernel's queue. libuv's own listening would close it, and
 * spin without a spare descriptor. */
static void set_listening(struct kvr_http_server *s, bool on)
{
    if (on == s->listening || s->deaf || s->closed) return;
    s->listening = on;
    if (on) uv_poll_start(&s->listener, UV_READABLE, on_readable);
    else uv_poll_stop(&s->listener);
}

static void take_connections(struct kvr_http_server *s)
{
    bool blocked = false;
    for (int i = 0; i < ACCEPTED_MAX && take_connection(s, &blocked); i++) continue;
    set_listening(s, !blocked);
}

static void on_readable(uv_poll_t *h, int, int)
{
    take_connections(h->data);
}

/* Counts them without opening one. The kernel gives the lowest number that is free, so behind many that are not open there are none. */
static size_t descriptors_open(size_t limit)
{
    enum { CHUNK = 512 };
    struct pollfd p[CHUNK];
    size_t open = 0;
    for (size_t at = 0, before = SIZE_MAX; at < limit && open != before; at += CHUNK) {
        size_t n = KVR_MIN((size_t)CHUNK, limit - at);
        before = open;
        for (size_t i = 0; i < n; i++) p[i] = (struct pollfd){.fd = (int)(at + i)};
        if (poll(p, (nfds_t)n, 0) < 0) break;
        for (size_t i = 0; i < n; i++) open += !(p[i].revents & POLLNVAL);
    }
    return open;
}

size_t kvr_http_descriptors_room(size_t reserve)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    size_t used = descriptors_open(r.rlim_cur) + DESCRIPTORS_KEPT + reserve;
    return r.rlim_cur > used ? (size_t)r.rlim_cur - used : 0;
}

void kvr_http_descriptors_raise(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur >= r.rlim_max) return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

/* ---- server ------------------------------------------------------------------------------------------ */

static void on_server_handle_closed(uv_handle_t *h)
{
    struct kvr_http_server *s = h->data;
    s->handles--;
    server_maybe_free(s);
}

/* Returns: 0 or a libuv error. */
static int listen_on(struct kvr_http_server *s)
{
    const struct kvr_http_server_config *c = &s->config;
    int fd = c->listener ? c->listener : kvr_listen_open(c->host, c->port, c->joins_port, !c->waits);
    if (fd < 0) return fd;
    int rc = uv_poll_init_socket(s->loop, &s->listener, fd);
    if (rc) {
        if (!c->listener) close(fd);
        return rc;
    }
    s->fd = fd;
    s->handles++;
    set_listening(s, !s->waits);
    return 0;
}

/* Until the handle is closed libuv may still look at the descriptor. */
static void on_listener_closed(uv_handle_t *h)
{
    struct kvr_http_server *s = h->data;
    close(s->fd);
    on_server_handle_closed(h);
}

static void stop_listening(struct kvr_http_server *s)
{
    if (s->accepted >= 0) close(s->accepted);
    s->accepted = -1;
    uv_close((uv_handle_t *)&s->listener, on_listener_closed);
}

int kvr_http_server_start(uv_loop_t *loop, const struct kvr_http_server_config *config, struct kvr_http_server **out)
{
    struct kvr_http_server *s = calloc(1, sizeof *s);
    if (!s) return UV_ENOMEM;
    s->config = *config;
    s->shared = config->shared ? config->shared : &s->own;
    snprintf(s->too_large, sizeof s->too_large, "the request body is larger than %zu bytes%s%.32s", config->body_max,
             config->body_option ? ", which is " : "", config->body_option ? config->body_option : "");
    kvr__request_settings(&s->settings);
    s->loop = loop;
    s->waits = config->waits;
    s->fd = s->accepted = -1;
    uv_timer_init(loop, &s->sweep);
    uv_timer_init(loop, &s->second_look);
    kvr__turn_init(&s->turn, loop, kvr__answer_send_turn);
    s->listener.data = s->sweep.data = s->second_look.data = s->turn.before_wait.data = s;
    s->handles = 3;
    int rc = config->host ? listen_on(s) : 0;
    s->deaf = rc || !config->host; /* it never listens */
    if (rc) {
        kvr_http_server_close(s);
        return rc;
    }
    uv_timer_start(&s->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
    uv_unref((uv_handle_t *)&s->sweep);
    *out = s;
    return 0;
}

uint16_t kvr_http_server_port(const struct kvr_http_server *s)
{
    return kvr_listen_port(s->fd);
}

int kvr_http_server_listener(const struct kvr_http_server *s)
{
    return s->fd;
}

/* A connection that lingers over a whole request has heard all; one whose request is still coming would lose the answer to a reset. */
static bool is_owed(const struct kvr_http_conn *c)
{
    return !c->lingering || c->queued || !c->took_all;
}

void kvr_http_server_stats(const struct kvr_http_server *s, struct kvr_http_server_stats *out)
{
    *out = (struct kvr_http_server_stats){.open = s->open};
    for (const struct kvr_http_conn *c = s->conns; c; c = c->next) out->owed += is_owed(c);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

void kvr_http_server_go(struct kvr_http_server *s)
{
    if (!s->waits) return;
    s->waits = false;
    /* The port is this process's: nothing is left to fail but memory, and then others of it listen. One that came listens as it was told.
     */
    if (!s->config.listener) (void)listen(s->fd, KVR_LISTEN_BACKLOG);
    set_listening(s, true);
}

void kvr_http_server_lame(struct kvr_http_server *s)
{
    s->lame = true;
}

void kvr_http_server_deaf(struct kvr_http_server *s, bool handed_over)
{
    bool blocked = false;
    if (s->deaf) return;
    for (int i = 0; !handed_over && i < KVR_LISTEN_BACKLOG && take_connection(s, &blocked); i++)
        continue; /* what is not taken now is reset */
    s->deaf = true;
    stop_listening(s);
}

void kvr_http_server_drain(struct kvr_http_server *s)
{
    if (s->draining) return;
    kvr_http_server_lame(s);
    kvr_http_server_deaf(s, false);
    s->draining = true;
    uv_timer_start(&s->sweep, on_sweep, 0, DRAIN_MS);
}

void kvr_http_server_send(struct kvr_http_server *s)
{
    kvr__turn_send(&s->turn);
}

void kvr_http_server_close(struct kvr_http_server *s)
{
    if (!s || s->closed) return;
    s->closed = true;
    if (!s->deaf) stop_listening(s);
    uv_close((uv_handle_t *)&s->sweep, on_server_handle_closed);
    uv_close((uv_handle_t *)&s->second_look, on_server_handle_closed);
    uv_close((uv_handle_t *)&s->turn.before_wait, on_server_handle_closed);
    for (size_t i = 0; i < s->late_n; i++) turn_away(s, s->late[i].fd);
    s->late_n = 0;
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

const char *kvr_http_conn_peer(struct kvr_http_conn *c)
{
    struct sockaddr_storage a;
    int len = sizeof a;
    if (c->outer || c->peer[0] || uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&a, &len)) return c->peer;
    if (uv_ip_name((const struct sockaddr *)&a, c->peer, sizeof c->peer)) c->peer[0] = 0;
    return c->peer;
}
