/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A replicated log between equals, over ZeroMQ or NATS. Over ZeroMQ each publishes numbered events on one port (XPUB) and follows the
 * others (one SUB each). What it adds to plain publishing: numbers, so that a loss is seen; a snapshot on demand, so that a loss, a late
 * start or a restart is mended; a heartbeat, so that a death is noticed.
 *
 *     follower                                   publisher
 *        | SUB "e"  <----------- events, heartbeats ----- |     every 1 ms with events, every HEARTBEAT_MS without
 *        | a gap, a new publisher, the first heartbeat    |
 *        | SUB "s<nonce>" -------------------------> |     the subscription itself is the question
 *        | <------------------- parts, end --------- |     snapshot, only for that nonce
 *        | UNSUB "s<nonce>"; goes on with "e"        |
 *
 * A message is two frames: the topic, and msgpack [version, publisher, kind, number, bin]. kind 0: `bin` is a run of
 * msgpack values, one per event, the first numbered `number` (none: a heartbeat, `number` comes next). kind 1: part `number` of a
 * snapshot. kind 2: its end, `number` parts. Another version is counted and left out.
 *
 * Over NATS the same messages travel on one subject tree, and nobody needs an address:
 *
 *     S.replica_sync.{publisher}.e           events and heartbeats            S.replica_sync.{publisher}.ask   the question, a topic in it
 *     S.replica_sync.{publisher}.s<nonce>    the answer
 *
 * A peer is then whoever is heard; one that has been silent for FORGET_MS is forgotten.
 *
 * Threads: one of its own, which owns all sockets and calls the handler. kvr_sync_publish and kvr_sync_next may be called
 * from anywhere, also under locks the handler takes, as they take only the outbox's lock. The others take the thread's
 * commands' lock and return before the work is done.
 */
#ifndef KVR_NET_SYNC_H
#define KVR_NET_SYNC_H

#include "base/base.h"
#include "base/buf.h"
#include "net/nats/link.h"
#include "net/zmq/curve.h"

struct kvr_sync;

/* `peer` is a number > 0 that a peer keeps as long as it is registered. */
struct kvr_sync_handler {
    /* One event; number 0: of a snapshot. The bytes are one well-formed msgpack value. */
    void (*on_event)(void *ctx, uint32_t peer, uint64_t number, const char *event, size_t len);
    /* Forget what the peer has told: a snapshot follows, or it is gone. */
    void (*on_reset)(void *ctx, uint32_t peer);
    /* Append the state as msgpack values; calls kvr_sync_next under the locks that make the two fit. */
    void (*write_snapshot)(void *ctx, struct kvr_buf *out);
    void *ctx;
};

struct kvr_sync_stats {
    uint64_t events_sent, events_received, messages_sent, messages_received;
    uint64_t gaps, snapshots_sent, snapshots_received, dropped, malformed, lost_peers;
    size_t peers, live_peers;
    uint64_t queue_full;        /* messages that were not sent, as too much waits unread */
    uint64_t snapshots_refused; /* questions that came too fast, or are none */
    uint64_t floods;            /* connections to peers given up, as they bring bytes and no messages */
    /* to our port */
    size_t connections, queued_bytes;
    uint64_t connections_refused, talkers, stalled; /* see zmq/guard.h */
};

/* Binds the port on an address (0.0.0.0: on all); with CURVE when there is a key of ours (`curve` may be NULL, and must outlive it).
 * Returns: 0, -KVR_ENOMEM, -KVR_EEXISTS when the port is taken, -KVR_EINVAL for an address that cannot be bound, -KVR_ENOTFOUND
 * when `curve` has no clients. */
int kvr_sync_create(const char *address, uint16_t port, const struct kvr_curve *curve, const struct kvr_sync_handler *handler,
                    struct kvr_sync **out);
/* The same over NATS; `link` must outlive it. Peers are found by themselves: kvr_sync_add_peer and _remove_peer answer
 * -KVR_EUNSUPPORTED. Returns: 0, -KVR_ENOMEM, -KVR_EINVAL. */
int kvr_sync_create_nats(struct kvr_nats *link, const char *scope, const struct kvr_sync_handler *handler, struct kvr_sync **out);
/* The handler is not called any more after the return. NULL is fine. */
void kvr_sync_destroy(struct kvr_sync *s);

/* Publishes one msgpack value. */
void kvr_sync_publish(struct kvr_sync *s, const char *event, size_t len);
/* The number the next event will get. */
uint64_t kvr_sync_next(struct kvr_sync *s);

/* Returns: 0, -KVR_EINVAL for a bad endpoint, -KVR_EEXISTS, -KVR_ELIMIT above 64 peers, -KVR_ENOMEM. */
int kvr_sync_add_peer(struct kvr_sync *s, const char *endpoint);
/* Returns: 0, -KVR_ENOTFOUND, -KVR_ELIMIT when 64 others are on their way out. What it told is reset. */
int kvr_sync_remove_peer(struct kvr_sync *s, const char *endpoint);
/* Calls fn for each endpoint, sorted. */
void kvr_sync_each_peer(struct kvr_sync *s, void (*fn)(void *ctx, const char *endpoint, bool live), void *ctx);
/* Asks every peer for its snapshot again. */
void kvr_sync_resync(struct kvr_sync *s);
void kvr_sync_stats(struct kvr_sync *s, struct kvr_sync_stats *out);

#endif
