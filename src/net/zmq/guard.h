/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounds that libzmq does not have.
 *
 * libzmq bounds single frames (ZMQ_MAXMSGSIZE) and counts whole messages (its high-water marks). A message of endless frames is
 * neither: it grows in the connection's pipe, where nobody sees it. And its queues are not bounded in bytes. So
 *
 *     struct kvr_zmq_line    bytes that came in on a connection we made and were not handed out: its owner gives up one with too many
 *     struct kvr_zmq_guard   connections that others made to a socket we bound: how many, how much they may say, and whether they read
 *     struct kvr_zmq_budget  bytes of what was sent and is still queued, whoever has not read it
 *
 * The kernel is asked (TCP_INFO), so connections by ipc:// are not bounded in these ways; they come from this machine.
 */
#ifndef KVR_NET_ZMQ_GUARD_H
#define KVR_NET_ZMQ_GUARD_H

#include <stdatomic.h>
#include <sys/socket.h>
#include <zmq.h>

#include "base/base.h"

enum {
    KVR_ZMQ_FRAME_HEAD = 48,   /* bytes of a frame on the wire beside its content, at most; with CURVE too */
    KVR_ZMQ_IDLE_BYTES_S = 128 /* what heartbeats come to, a second */
};

/* ---- a connection we made -------------------------------------------------------------------------------------------- */

/* All zero: none. Belongs to the thread of its socket. */
struct kvr_zmq_line {
    int fd; /* as the socket's monitor told (ZMQ_EVENT_CONNECTED), + 1 */
    uint64_t taken, since_ms;
};

/* An event of the socket's monitor: event and value of its first frame. */
void kvr_zmq_line_event(struct kvr_zmq_line *l, uint16_t event, uint32_t value, uint64_t now_ms);
/* A frame was handed out. */
static inline void kvr_zmq_line_took(struct kvr_zmq_line *l, size_t bytes)
{
    l->taken += bytes + KVR_ZMQ_FRAME_HEAD;
}
/* Bytes that came and were not taken, give or take some KiB; 0 when nobody can tell. */
uint64_t kvr_zmq_line_unread(struct kvr_zmq_line *l, uint64_t now_ms);

/* ---- what was sent and waits ------------------------------------------------------------------------------------------ */

/* Shared by the messages that are queued: it lives until the last of them is gone, also after kvr_zmq_budget_drop. */
struct kvr_zmq_budget {
    _Atomic size_t bytes, refs;
    size_t max;
    _Atomic uint64_t refused;
};
struct kvr_zmq_budget *kvr_zmq_budget_new(size_t max); /* NULL: no memory */
void kvr_zmq_budget_drop(struct kvr_zmq_budget *b);    /* NULL is fine */
/* A message of head and data, counted until every queue has let go of it. Returns: 0, -KVR_ELIMIT when too much waits (counted
 * in `refused`), -KVR_ENOMEM. */
int kvr_zmq_message(struct kvr_zmq_budget *b, const void *head, size_t head_len, const void *data, size_t len, zmq_msg_t *out);

/* On the socket's thread, when a message was refused: has the socket let go of the queues of connections that have ended, which it does
 * only when it is used. */
void kvr_zmq_let_go(void *socket);

/* ---- what a socket tells of its connections ---------------------------------------------------------------------------- */

/* Hears of these events of a socket. NULL: no memory. */
void *kvr_zmq_monitor_open(void *zmq, void *socket, int events);
/* The next one. Returns: false: there is none. */
bool kvr_zmq_monitor_read(void *monitor, uint16_t *event, uint32_t *value);
/* Before the socket is closed. NULL is fine for both. */
void kvr_zmq_monitor_close(void *monitor, void *socket);

/* ---- connections to a socket we bound ---------------------------------------------------------------------------------- */

enum { KVR_ZMQ_PEERS_MAX = 128 };

struct kvr_zmq_guard_stats {
    size_t connections;
    uint64_t refused;    /* came when there were enough */
    uint64_t talkers;    /* ended, as they said too much */
    uint64_t stalled;    /* ended, as they did not read */
    uint64_t queue_full; /* messages refused by the budget */
};

struct kvr_zmq_peer {
    int fd;
    socklen_t address_len;
    struct sockaddr_storage address;
    uint64_t since_ms, acked, moved_ms;
    bool cut;
};

/* Belongs to one thread, which calls step every 20 ms or so. The counts may be read by any. */
struct kvr_zmq_guard {
    void *monitor;
    const struct kvr_zmq_budget *budget; /* NULL: none */
    size_t peers_max, peers_n;
    uint64_t said_max; /* bytes a peer may send, and 1 KiB more a second */
    uint64_t stall_ms; /* a peer that has something to read and takes nothing for so long is cut off; when half the budget waits, a tenth */
    struct kvr_zmq_peer peers[KVR_ZMQ_PEERS_MAX];
    _Atomic size_t connections;
    _Atomic uint64_t refused, talkers, stalled;
};

/* Before the socket is bound. Returns: 0, -KVR_ENOMEM. */
int kvr_zmq_guard_init(struct kvr_zmq_guard *g, void *zmq, void *socket, size_t peers_max, const struct kvr_zmq_budget *budget);
void kvr_zmq_guard_step(struct kvr_zmq_guard *g, uint64_t now_ms);
void kvr_zmq_guard_stats(const struct kvr_zmq_guard *g, struct kvr_zmq_guard_stats *out);
/* Before the socket is closed. */
void kvr_zmq_guard_close(struct kvr_zmq_guard *g, void *socket);

#endif
