/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A descriptor that a monitor tells of belongs to libzmq, which may have closed it meanwhile, and another connection may have got
 * its number. Asking the wrong one how much it got does no harm; before one is shut down, it must still have the address that it had when
 * it was accepted.
 */
#include "net/zmq/guard.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

enum { PEER_SAYS = 64 << 10, PEER_SAYS_A_SECOND = 1 << 10, STALL_MS = 30000 };

static bool tcp_info(int fd, struct tcp_info *out)
{
    socklen_t len = sizeof *out;
    memset(out, 0, sizeof *out);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, out, &len) == 0 && len >= offsetof(struct tcp_info, tcpi_min_rtt);
}

/* ---- a connection we made -------------------------------------------------------------------------------------------- */

void kvr_zmq_line_event(struct kvr_zmq_line *l, uint16_t event, uint32_t value, uint64_t now_ms)
{
    if (event == ZMQ_EVENT_CONNECTED) *l = (struct kvr_zmq_line){.fd = (int)value + 1, .since_ms = now_ms};
    else if (event == ZMQ_EVENT_DISCONNECTED || event == ZMQ_EVENT_CLOSED) *l = (struct kvr_zmq_line){0};
}

uint64_t kvr_zmq_line_unread(struct kvr_zmq_line *l, uint64_t now_ms)
{
    struct tcp_info info;
    if (!l->fd || !tcp_info(l->fd - 1, &info)) return 0;
    uint64_t idle = (now_ms - l->since_ms) / 1000 * KVR_ZMQ_IDLE_BYTES_S, came = info.tcpi_bytes_received;
    if (l->taken > came) l->taken = came; /* no credit for what is to come */
    return came - l->taken > idle ? came - l->taken - idle : 0;
}

/* ---- what was sent and waits ------------------------------------------------------------------------------------------ */

struct body {
    struct kvr_zmq_budget *budget;
    size_t len;
    _Atomic bool filled; /* orders the filling before body_free in a way that the thread sanitizer sees: libzmq's own is hidden from it */
    char data[];
};

struct kvr_zmq_budget *kvr_zmq_budget_new(size_t max)
{
    struct kvr_zmq_budget *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    atomic_init(&b->refs, 1);
    b->max = max;
    return b;
}

void kvr_zmq_budget_drop(struct kvr_zmq_budget *b)
{
    if (b && atomic_fetch_sub(&b->refs, 1) == 1) free(b);
}

/* On a thread of libzmq's. */
static void body_free(void *, void *hint)
{
    struct body *body = hint;
    KVR_ASSERT(atomic_load(&body->filled));
    struct kvr_zmq_budget *b = body->budget;
    atomic_fetch_sub(&b->bytes, body->len);
    free(body);
    kvr_zmq_budget_drop(b);
}

int kvr_zmq_message(struct kvr_zmq_budget *b, const void *head, size_t head_len, const void *data, size_t len, zmq_msg_t *out)
{
    size_t total = head_len + len;
    size_t before = atomic_fetch_add(&b->bytes, total);
    bool fits = before + total <= b->max || before == 0;
    struct body *body = fits ? malloc(sizeof *body + total) : NULL;
    if (body) {
        body->budget = b;
        body->len = total;
        if (head_len) memcpy(body->data, head, head_len);
        if (len) memcpy(body->data + head_len, data, len);
        atomic_store(&body->filled, true);
        if (zmq_msg_init_data(out, body->data, total, body_free, body) == 0) {
            atomic_fetch_add(&b->refs, 1);
            return 0;
        }
        free(body);
    }
    atomic_fetch_sub(&b->bytes, total);
    if (!fits) atomic_fetch_add(&b->refused, 1);
    return fits ? -KVR_ENOMEM : -KVR_ELIMIT;
}

void kvr_zmq_let_go(void *socket)
{
    int events;
    size_t len = sizeof events;
    (void)zmq_getsockopt(socket, ZMQ_EVENTS, &events, &len);
}

/* ---- what a socket tells of its connections ---------------------------------------------------------------------------- */

void *kvr_zmq_monitor_open(void *zmq, void *socket, int events)
{
    static _Atomic unsigned long names;
    char name[64];
    void *monitor = zmq_socket(zmq, ZMQ_PAIR);
    snprintf(name, sizeof name, "inproc://monitor-%lu", atomic_fetch_add(&names, 1));
    if (monitor && zmq_socket_monitor(socket, name, events) == 0 && zmq_connect(monitor, name) == 0) return monitor;
    if (monitor) zmq_close(monitor);
    return NULL;
}

bool kvr_zmq_monitor_read(void *monitor, uint16_t *event, uint32_t *value)
{
    unsigned char told[sizeof *event + sizeof *value];
    char address[256];
    if (zmq_recv(monitor, told, sizeof told, ZMQ_DONTWAIT) < (int)sizeof told) return false;
    memcpy(event, told, sizeof *event);
    memcpy(value, told + sizeof *event, sizeof *value);
    (void)zmq_recv(monitor, address, sizeof address, ZMQ_DONTWAIT);
    return true;
}

void kvr_zmq_monitor_close(void *monitor, void *socket)
{
    if (socket) zmq_socket_monitor(socket, NULL, 0);
    if (monitor) zmq_close(monitor);
}

/* ---- connections to a socket we bound ---------------------------------------------------------------------------------- */

int kvr_zmq_guard_init(struct kvr_zmq_guard *g, void *zmq, void *socket, size_t peers_max, const struct kvr_zmq_budget *budget)
{
    *g = (struct kvr_zmq_guard){
        .budget = budget, .peers_max = KVR_MIN(peers_max, (size_t)KVR_ZMQ_PEERS_MAX), .said_max = PEER_SAYS, .stall_ms = STALL_MS};
    g->monitor = kvr_zmq_monitor_open(zmq, socket, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED);
    return g->monitor ? 0 : -KVR_ENOMEM;
}

void kvr_zmq_guard_stats(const struct kvr_zmq_guard *g, struct kvr_zmq_guard_stats *out)
{
    out->connections = atomic_load(&g->connections);
    out->refused = atomic_load(&g->refused);
    out->talkers = atomic_load(&g->talkers);
    out->stalled = atomic_load(&g->stalled);
    out->queue_full = g->budget ? atomic_load(&g->budget->refused) : 0;
}

void kvr_zmq_guard_close(struct kvr_zmq_guard *g, void *socket)
{
    if (!g->monitor) return;
    kvr_zmq_monitor_close(g->monitor, socket);
    g->monitor = NULL;
}

static bool same_connection(const struct kvr_zmq_peer *p)
{
    struct sockaddr_storage now;
    socklen_t len = sizeof now;
    memset(&now, 0, sizeof now);
    return getpeername(p->fd, (struct sockaddr *)&now, &len) == 0 && len == p->address_len && memcmp(&now, &p->address, len) == 0;
}

static void cut(struct kvr_zmq_peer *p, _Atomic uint64_t *counter)
{
    if (!p->cut) atomic_fetch_add(counter, 1);
    p->cut = true;
    if (!same_connection(p)) return;
    struct linger at_once = {.l_onoff = 1}; /* a reset: else one that still sends would wait for room */
    (void)setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    shutdown(p->fd, SHUT_RDWR);
}

static void accepted(struct kvr_zmq_guard *g, int fd, uint64_t now_ms)
{
    struct kvr_zmq_peer p = {.fd = fd, .address_len = sizeof p.address, .since_ms = now_ms, .moved_ms = now_ms};
    if (getpeername(fd, (struct sockaddr *)&p.address, &p.address_len) || p.address.ss_family == AF_UNIX) return;
    if (g->peers_n >= g->peers_max) {
        cut(&p, &g->refused);
        return;
    }
    g->peers[g->peers_n++] = p;
}

static void gone(struct kvr_zmq_guard *g, int fd)
{
    for (size_t i = 0; i < g->peers_n; i++) {
        if (g->peers[i].fd != fd) continue;
        g->peers[i] = g->peers[--g->peers_n];
        return;
    }
}

static void read_monitor(struct kvr_zmq_guard *g, uint64_t now_ms)
{
    uint16_t event;
    uint32_t value;
    while (kvr_zmq_monitor_read(g->monitor, &event, &value)) {
        if (event == ZMQ_EVENT_ACCEPTED) accepted(g, (int)value, now_ms);
        else if (event == ZMQ_EVENT_DISCONNECTED) gone(g, (int)value);
    }
}

static void look_at(struct kvr_zmq_guard *g, struct kvr_zmq_peer *p, uint64_t now_ms)
{
    struct tcp_info info;
    if (!tcp_info(p->fd, &info)) return;
    bool pressed = g->budget && atomic_load(&g->budget->bytes) > g->budget->max / 2;
    uint64_t may_say = g->said_max + (now_ms - p->since_ms) * PEER_SAYS_A_SECOND / 1000;
    if (info.tcpi_bytes_acked != p->acked || info.tcpi_notsent_bytes == 0) {
        p->acked = info.tcpi_bytes_acked;
        p->moved_ms = now_ms;
    }
    if (p->cut || info.tcpi_bytes_received > may_say) cut(p, &g->talkers);
    else if (now_ms - p->moved_ms > (pressed ? g->stall_ms / 10 : g->stall_ms)) cut(p, &g->stalled);
}

void kvr_zmq_guard_step(struct kvr_zmq_guard *g, uint64_t now_ms)
{
    if (!g->monitor) return;
    read_monitor(g, now_ms);
    for (size_t i = 0; i < g->peers_n; i++) look_at(g, &g->peers[i], now_ms);
    atomic_store(&g->connections, g->peers_n);
}
