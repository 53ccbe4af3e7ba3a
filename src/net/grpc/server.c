/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gRPC server: listening, deadlines (looked at once a second for all), draining, the end.
 *
 * At the limit of connections the oldest that has no stream gives way; where each has one, the new connection is closed. Clients of this
 * server keep one for long, and know how to come again.
 */
#include "net/grpc/internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "net/http/listen.h"
#include "wire/prom_page.h"

enum { SWEEP_MS = 1000, ACCEPTED_MAX = 64 /* in one turn of the loop */ };

bool kvr_grpc_available(void)
{
    return true;
}

/* ---- the end of things ------------------------------------------------------------------------------- */

static void maybe_free(struct kvr_grpc_server *s)
{
    if (!s->closed || s->handles || s->conns) return;
    nghttp2_session_callbacks_del(s->callbacks);
    nghttp2_option_del(s->options);
    kvr_buf_free(&s->out);
    kvr_buf_free(&s->spare);
    free(s);
}

static void conn_gone(struct kvr__grpc_conn *c)
{
    struct kvr_grpc_server *s = c->server;
    *(c->next ? &c->next->prev : &s->oldest) = c->prev;
    *(c->prev ? &c->prev->next : &s->conns) = c->next;
    s->connections--;
    atomic_fetch_sub(&s->shared->connections, 1);
    free(c);
    maybe_free(s);
}

static void on_handle_closed(uv_handle_t *h)
{
    struct kvr_grpc_server *s = h->data;
    s->handles--;
    maybe_free(s);
}

/* Until the handle is closed libuv may still look at the descriptor. */
static void on_listener_closed(uv_handle_t *h)
{
    struct kvr_grpc_server *s = h->data;
    close(s->fd);
    on_handle_closed(h);
}

/* ---- new connections --------------------------------------------------------------------------------- */

static bool make_room(struct kvr_grpc_server *s)
{
    size_t open = 0;
    struct kvr__grpc_conn *idle = NULL;
    for (struct kvr__grpc_conn *c = s->oldest; c; c = c->prev) {
        open += !c->closing;
        if (!idle && !c->closing && c->streams_n == 0) idle = c;
    }
    if (open < s->config.connections_max) return true;
    kvr__grpc_refused(s, "connections", s->config.connections_max);
    if (idle) kvr__grpc_conn_close(idle);
    return idle != NULL;
}

static void open_connection(struct kvr_grpc_server *s, int fd)
{
    struct kvr__grpc_conn *c = s->connections < s->config.connections_max || make_room(s) ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        close(fd);
        return;
    }
    c->server = s;
    c->gone = conn_gone;
    uv_tcp_init(s->loop, &c->tcp);
    c->tcp.data = c;
    c->next = s->conns;
    *(c->next ? &c->next->prev : &s->oldest) = c;
    s->conns = c;
    s->connections++;
    atomic_fetch_add(&s->shared->connections, 1);
    atomic_fetch_add(&s->shared->connections_total, 1);
    uint64_t now = uv_now(s->loop);
    double age = s->config.connection_age_s, wait = s->config.handshake_timeout_s;
    if (wait > 0) c->begin_by_ms = now + (uint64_t)(wait * 1000) + 1;
    /* Not all at the same time. */
    if (age > 0) c->go_at_ms = now + (uint64_t)(age * (900.0 + (double)(kvr_mix64(s->shared->connections_total) % 200))) + 1;
    if (uv_tcp_open(&c->tcp, fd)) {
        close(fd);
        kvr__grpc_conn_close(c);
    } else {
        kvr__grpc_conn_begin(c);
    }
}

static void on_readable(uv_poll_t *h, int status, int events);

/* Not while nothing can be taken for want of descriptors: what comes then waits in the kernel's queue. */
static void set_listening(struct kvr_grpc_server *s, bool on)
{
    if (on == s->listening || s->deaf) return;
    s->listening = on;
    if (on) uv_poll_start(&s->listener, UV_READABLE, on_readable);
    else uv_poll_stop(&s->listener);
}

static void take_connections(struct kvr_grpc_server *s, int most)
{
    for (int i = 0; i < most; i++) {
        int fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) open_connection(s, fd);
        else if (errno == EAGAIN || errno == EWOULDBLOCK) break;
        else if (errno != ECONNABORTED && errno != EINTR) {
            set_listening(s, false);
            return;
        }
    }
    set_listening(s, true);
}

static void on_readable(uv_poll_t *h, int, int)
{
    take_connections(h->data, ACCEPTED_MAX);
}

/* ---- deadlines --------------------------------------------------------------------------------------- */

static bool is_late(uint64_t since, uint64_t now, double limit_s)
{
    return limit_s > 0 && now > since && (double)(now - since) >= limit_s * 1000;
}

static void look_at(struct kvr__grpc_conn *c, uint64_t now)
{
    struct kvr_grpc_server *s = c->server;
    double limit = s->config.write_timeout_s;
    if (c->closing) return;
    if ((c->begin_by_ms && now >= c->begin_by_ms) || (c->writing && is_late(c->write_ms, now, limit))) {
        atomic_fetch_add(&s->shared->timeouts, 1);
        kvr__grpc_conn_reset(c);
        return;
    }
    if (c->told_to_go) kvr__grpc_conn_go_last(c); /* it has had a second or so to answer */
    if (s->draining || (c->go_at_ms && now >= c->go_at_ms)) kvr__grpc_conn_go(c);
    for (struct kvr_grpc_stream *st = c->streams; st; st = st->next) {
        if (st->over || !st->out || !is_late(st->progress_ms, now, limit)) continue;
        atomic_fetch_add(&s->shared->timeouts, 1);
        kvr__grpc_stream_end(st, NGHTTP2_CANCEL);
    }
}

static void on_sweep(uv_timer_t *t)
{
    struct kvr_grpc_server *s = t->data;
    uint64_t now = uv_now(t->loop);
    for (struct kvr__grpc_conn *c = s->conns; c; c = c->next) look_at(c, now); /* memory goes in close callbacks */
    if (s->spare_rests) kvr_buf_free(&s->spare);
    s->spare_rests = s->spare.data != NULL;
    if (!s->listening && !s->deaf) take_connections(s, ACCEPTED_MAX);
}

static void on_before(uv_prepare_t *p)
{
    kvr__grpc_flush(p->data);
}

static void on_after(uv_check_t *c)
{
    kvr__grpc_flush(c->data);
}

/* ---- server ------------------------------------------------------------------------------------------ */

/* Every call of Envoy's may end with RST_STREAM, of which nghttp2 would take a few in a second and then say GOAWAY. A client that only
 * resets is not dearer here than one that calls. */
static nghttp2_option *options(void)
{
    enum { NO_LIMIT = 1 << 30 };
    nghttp2_option *o;
    if (nghttp2_option_new(&o)) return NULL;
    nghttp2_option_set_no_auto_window_update(o, 1);
    nghttp2_option_set_no_closed_streams(o, 1);
#if KVR_NGHTTP2_RESET_RATE
    nghttp2_option_set_stream_reset_rate_limit(o, NO_LIMIT, NO_LIMIT);
#endif
    return o;
}

static void init_handles(struct kvr_grpc_server *s)
{
    uv_timer_init(s->loop, &s->sweep);
    uv_timer_init(s->loop, &s->favour);
    uv_prepare_init(s->loop, &s->before);
    uv_check_init(s->loop, &s->after);
    s->listener.data = s->sweep.data = s->favour.data = s->before.data = s->after.data = s;
    s->handles = 4;
}

static void start_handles(struct kvr_grpc_server *s)
{
    uv_timer_start(&s->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
    uv_prepare_start(&s->before, on_before);
    uv_check_start(&s->after, on_after);
    uv_unref((uv_handle_t *)&s->sweep);
    uv_unref((uv_handle_t *)&s->before);
    uv_unref((uv_handle_t *)&s->after);
    set_listening(s, true);
}

int kvr_grpc_server_start(uv_loop_t *loop, const struct kvr_grpc_server_config *config, struct kvr_grpc_server **out)
{
    struct kvr_grpc_server *s = calloc(1, sizeof *s);
    if (!s) return UV_ENOMEM;
    s->config = *config;
    s->shared = config->shared ? config->shared : &s->own;
    s->loop = loop;
    s->deaf = true; /* until it listens */
    init_handles(s);
    s->callbacks = kvr__grpc_callbacks();
    s->options = options();
    s->fd = s->callbacks && s->options ? kvr_listen_open(config->host, config->port, config->joins_port, true) : UV_ENOMEM;
    int rc = s->fd < 0 ? s->fd : uv_poll_init_socket(loop, &s->listener, s->fd);
    if (rc) {
        if (s->fd >= 0) close(s->fd);
        kvr_grpc_server_close(s);
        return rc;
    }
    s->deaf = false;
    s->handles++;
    start_handles(s);
    *out = s;
    return 0;
}

uint16_t kvr_grpc_server_port(const struct kvr_grpc_server *s)
{
    return kvr_listen_port(s->fd);
}

void kvr_grpc_server_stats(const struct kvr_grpc_server *s, struct kvr_grpc_server_stats *out)
{
    *out = (struct kvr_grpc_server_stats){s->connections, s->streams, s->held};
}

static void go_deaf(struct kvr_grpc_server *s)
{
    if (s->deaf) return;
    s->deaf = true;
    uv_close((uv_handle_t *)&s->listener, on_listener_closed);
}

void kvr_grpc_server_drain(struct kvr_grpc_server *s)
{
    if (s->draining) return;
    take_connections(s, KVR_LISTEN_BACKLOG); /* what the kernel has for us would be reset */
    go_deaf(s);
    s->draining = true;
    for (struct kvr__grpc_conn *c = s->conns; c; c = c->next) kvr__grpc_conn_go(c);
}

void kvr_grpc_server_close(struct kvr_grpc_server *s)
{
    if (!s || s->closed) return;
    s->closed = true;
    go_deaf(s);
    uv_handle_t *const handles[] = {(uv_handle_t *)&s->sweep, (uv_handle_t *)&s->favour, (uv_handle_t *)&s->before,
                                    (uv_handle_t *)&s->after};
    for (size_t i = 0; i < KVR_ARRAY_LEN(handles); i++) uv_close(handles[i], on_handle_closed);
    for (struct kvr__grpc_conn *c = s->conns; c; c = c->next) kvr__grpc_conn_close(c);
}

void kvr_grpc_shared_metrics(const struct kvr_grpc_port *ports, size_t n, struct kvr_prom_page *out)
{
    static const struct kvr_prom_member rows[] = {
#define ROW(name, type, field, help) {name, type, help, offsetof(struct kvr_grpc_shared, field)}
        ROW("connections", "gauge", connections, "Open connections"),
        ROW("streams", "gauge", streams, "Calls that run"),
        ROW("held_bytes", "gauge", held, "Memory of calls: messages, bodies and answers under way"),
        ROW("connections_total", "counter", connections_total, "Connections taken"),
        ROW("streams_total", "counter", streams_total, "Calls taken"),
        ROW("messages_total", "counter", messages, "Messages taken"),
        ROW("refused_total", "counter", refused, "Connections, calls and messages beyond a limit"),
        ROW("protocol_errors_total", "counter", protocol_errors, "Connections and calls that were not gRPC over HTTP/2"),
        ROW("resets_total", "counter", resets, "Calls that their clients reset; Envoy may at their end"),
        ROW("goaways_total", "counter", goaways, "Connections told to go, for their age or at the end"),
        ROW("timeouts_total", "counter", timeouts, "Connections and calls ended: nothing begun or taken in time"),
        ROW("windows_closed_total", "counter", windows_closed, "Waits of clients: calls held all their memory"),
        ROW("tls_handshakes_failed_total", "counter", handshakes_failed, "Connections without TLS or h2"),
#undef ROW
    };
    for (size_t k = 0; k < KVR_ARRAY_LEN(rows); k++) {
        kvr_prom_family(out, "kvroute_grpc_", rows[k].name, rows[k].type, rows[k].help);
        for (size_t i = 0; i < n; i++) {
            const _Atomic uint64_t *v = (const _Atomic uint64_t *)(const void *)((const char *)ports[i].shared + rows[k].at);
            kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("port", ports[i].name)), atomic_load(v));
        }
    }
}
