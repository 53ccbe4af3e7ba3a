/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A source's sockets: a SUB for its events, a DEALER for replays where its engine has a replay socket, and a monitor of each. They belong
 * to the ingest thread. A source whose sockets are closed has NULL in place of all of them.
 *
 * A socket's descriptor says once that there is something to look at, and no more until the socket was read to its end or otherwise used
 * (ZMQ_FD). So what was said stays in the source's `unread` until a read finds nothing; who opens a socket, or sends, sets it. That costs
 * nothing for sources that are silent; zmq_poll asks the kernel about each of its sockets, twice.
 */
#include "net/ingest/internal.h"

#include <sys/epoll.h>
#include <zmq.h>

#include "net/zmq/curve.h"

enum {
    HWM = 4096, /* whole messages; then the publisher's own queue fills */
    FRAME_MAX = 16 << 20
};

/* A host that has gone is found by the kernel: libzmq 4.3.4 aborts when its own heartbeats take a connection for broken while messages
 * wait for room (its issue 3937). An engine that stands still says nothing new, and its health check tells. */
static void find_the_dead(void *sock)
{
    int on = 1, idle_s = 3, interval_s = 1, probes = 4;
    zmq_setsockopt(sock, ZMQ_TCP_KEEPALIVE, &on, sizeof on);
    zmq_setsockopt(sock, ZMQ_TCP_KEEPALIVE_IDLE, &idle_s, sizeof idle_s);
    zmq_setsockopt(sock, ZMQ_TCP_KEEPALIVE_INTVL, &interval_s, sizeof interval_s);
    zmq_setsockopt(sock, ZMQ_TCP_KEEPALIVE_CNT, &probes, sizeof probes);
}

static void *make_socket(struct kvr_ingest *in, int type)
{
    void *sock = zmq_socket(in->zmq, type);
    int hwm = HWM, zero = 0, reconnect = 50, reconnect_max = 1000, v6 = 1;
    int64_t max = FRAME_MAX;
    if (!sock) return NULL;
    zmq_setsockopt(sock, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(sock, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(sock, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(sock, ZMQ_MAXMSGSIZE, &max, sizeof max);
    zmq_setsockopt(sock, ZMQ_RECONNECT_IVL, &reconnect, sizeof reconnect);
    zmq_setsockopt(sock, ZMQ_RECONNECT_IVL_MAX, &reconnect_max, sizeof reconnect_max);
    zmq_setsockopt(sock, ZMQ_IPV6, &v6, sizeof v6);
    find_the_dead(sock);
    return sock;
}

static void *monitor_of(struct kvr_ingest *in, void *socket)
{
    return kvr_zmq_monitor_open(in->zmq, socket, ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED);
}

static int fd_of(void *socket)
{
    int fd = -1;
    size_t len = sizeof fd;
    return zmq_getsockopt(socket, ZMQ_FD, &fd, &len) == 0 ? fd : -1;
}

bool kvr__sockets_watch(const struct kvr_ingest *in, void *socket, struct watch *w)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.ptr = w};
    if (w) w->s->unread |= w->bit;
    return epoll_ctl(in->epoll, EPOLL_CTL_ADD, fd_of(socket), &e) == 0;
}

static void unwatch(const struct kvr_ingest *in, void *socket)
{
    if (socket) (void)epoll_ctl(in->epoll, EPOLL_CTL_DEL, fd_of(socket), NULL);
}

bool kvr__sockets_wait(struct kvr_ingest *in, int timeout_ms)
{
    struct epoll_event said[128];
    int n = epoll_wait(in->epoll, said, KVR_ARRAY_LEN(said), timeout_ms);
    for (int i = 0; i < n; i++) {
        const struct watch *w = said[i].data.ptr;
        if (w) w->s->unread |= w->bit;
        else in->called = true;
    }
    return n > 0;
}

static void close_pair(const struct kvr_ingest *in, void **socket, void **monitor)
{
    unwatch(in, *socket);
    unwatch(in, *monitor);
    kvr_zmq_monitor_close(*monitor, *socket);
    if (*socket) zmq_close(*socket);
    *socket = *monitor = NULL;
}

static void *connect_dealer(struct kvr_ingest *in, struct source *s, void **monitor)
{
    void *dealer = make_socket(in, ZMQ_DEALER);
    *monitor = dealer ? monitor_of(in, dealer) : NULL;
    if (*monitor && kvr_curve_client(in->curve, dealer, s->replay) == 0 && zmq_connect(dealer, s->replay) == 0 &&
        kvr__sockets_watch(in, dealer, &s->watches[DEALER]) && kvr__sockets_watch(in, *monitor, &s->watches[DEALER_MONITOR]))
        return dealer;
    close_pair(in, &dealer, monitor);
    return NULL;
}

bool kvr__sockets_open(struct kvr_ingest *in, struct source *s)
{
    if (!kvr_ingest_endpoint_ok(s->events) || (s->replay[0] && !kvr_ingest_endpoint_ok(s->replay))) return false; /* inproc:// is ours */
    s->sub = make_socket(in, ZMQ_SUB);
    s->monitor = s->sub ? monitor_of(in, s->sub) : NULL;
    if (!s->monitor) return false;
    if (kvr_curve_client(in->curve, s->sub, s->events)) return false;
    if (zmq_setsockopt(s->sub, ZMQ_SUBSCRIBE, "", 0) || zmq_connect(s->sub, s->events)) return false;
    if (!kvr__sockets_watch(in, s->sub, &s->watches[SUB]) || !kvr__sockets_watch(in, s->monitor, &s->watches[SUB_MONITOR])) return false;
    if (!s->replay[0]) return true;
    s->dealer = connect_dealer(in, s, &s->dealer_monitor);
    return s->dealer != NULL;
}

void kvr__sockets_close(struct source *s)
{
    close_pair(s->in, &s->sub, &s->monitor);
    close_pair(s->in, &s->dealer, &s->dealer_monitor);
    s->unread = 0;
    s->line = s->dealer_line = (struct kvr_zmq_line){0};
    s->breaking = 0;
}

bool kvr__sockets_send_replay(struct source *s, uint64_t from)
{
    unsigned char start[8];
    kvr_store_be64(start, from);
    s->unread |= s->watches[DEALER].bit;
    return zmq_send(s->dealer, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 && zmq_send(s->dealer, start, 8, ZMQ_DONTWAIT) >= 0;
}

bool kvr__sockets_renew(struct kvr_ingest *in, struct source *s)
{
    void *monitor, *fresh = connect_dealer(in, s, &monitor);
    if (!fresh) return false;
    close_pair(in, &s->dealer, &s->dealer_monitor);
    s->dealer = fresh;
    s->dealer_monitor = monitor;
    s->dealer_line = (struct kvr_zmq_line){0};
    return true;
}

/* ---- endpoints -------------------------------------------------------------------------------------- */

enum { ENDPOINT_MAX = 240 };

bool kvr_ingest_endpoint_ok(const char *e)
{
    if (strlen(e) >= ENDPOINT_MAX) return false;
    if (strncmp(e, "ipc://", 6) == 0) return e[6] != 0;
    if (strncmp(e, "tcp://", 6) != 0) return false;
    const char *colon = strrchr(e + 6, ':');
    if (!colon || colon == e + 6 || e[6] == '*') return false; /* '*' is for who binds */
    uint64_t port = 0;
    return kvr_parse_u64(colon + 1, strlen(colon + 1), 65535, &port) && port > 0;
}

bool kvr_ingest_endpoint_shift(const char *e, uint32_t offset, char *out, size_t cap)
{
    const char *colon = strncmp(e, "tcp://", 6) == 0 ? strrchr(e, ':') : NULL;
    unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
    if (port > 65535 || port + offset > 65535) return false; /* libzmq takes what is left of it */
    if (offset == 0) return snprintf(out, cap, "%s", e) < (int)cap;
    return colon && snprintf(out, cap, "%.*s:%lu", (int)(colon - e), e, port + offset) < (int)KVR_MIN(cap, (size_t)ENDPOINT_MAX);
}

void kvr_ingest_endpoint_at(const char *host, uint16_t port, char *out, size_t cap)
{
    bool v6 = strchr(host, ':') != NULL;
    if (snprintf(out, cap, "tcp://%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", port) >= (int)cap) out[0] = 0;
}
