/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection to a NATS server or cluster, kept alive: it connects in the background, comes back by itself after every
 * loss (to any server of the list, or one it has heard of), and tells who listens when it is up. What is published while it
 * is down waits in a buffer of NATS_PENDING_MAX bytes; what does not fit is refused.
 *
 *     handler of a subscription <-- delivery thread of that subscription     state listeners <-- the library's callback thread
 *
 * A server that refuses us (user, certificate) when we start is an error; one that does so twice later on ends the connection, for
 * good and with a line in the log. Death is noticed by pings within about two seconds, also when packets vanish without a word.
 *
 * Threads: all functions from any thread, but not kvr_nats_unsubscribe or kvr_nats_unlisten from within a handler.
 * Built without the NATS client (KVR_NATS=OFF) kvr_nats_connect refuses, with a text that says so.
 */
#ifndef KVR_NET_NATS_LINK_H
#define KVR_NET_NATS_LINK_H

#include "base/base.h"

enum { KVR_NATS_PENDING_MAX = 8 << 20, KVR_NATS_LISTENERS_MAX = 16 };

/* Texts may be NULL; borrowed for the call. */
struct kvr_nats_config {
    const char *url;        /* nats://[user:password@]host:port, several with commas; tls:// asks for TLS */
    const char *creds;      /* file with a user's JWT and seed */
    const char *ca;         /* file with the authorities that the server's certificate is checked against; asks for TLS */
    const char *cert, *key; /* files: our own certificate and its key */
    const char *name;       /* told to the server, shown in its monitoring */
};

struct kvr_nats;
struct kvr_nats_sub;

struct kvr_nats_stats {
    bool up;
    uint64_t connects, disconnects, errors;
    uint64_t published, publish_failures, received;
};

struct kvr_nats_message {
    const char *subject, *reply; /* reply: NULL when no answer is wanted */
    const char *data;
    size_t len;
};

typedef void kvr_nats_on_message(void *ctx, const struct kvr_nats_message *m);
typedef void kvr_nats_on_state(void *ctx, bool up);

/* Returns at once, before there is a connection. Owns: the caller gives *out to kvr_nats_close.
 * Returns: 0, or -1 with the reason, which names the option, in err. */
int kvr_nats_connect(const struct kvr_nats_config *config, struct kvr_nats **out, char *err, size_t cap);
/* Every subscription must be gone. NULL is fine. */
void kvr_nats_close(struct kvr_nats *n);
bool kvr_nats_is_up(const struct kvr_nats *n);
void kvr_nats_stats(struct kvr_nats *n, struct kvr_nats_stats *out);

/* fn is called with the state of now, in this call, and then at each change. Returns: 0, -KVR_ELIMIT. */
int kvr_nats_listen(struct kvr_nats *n, kvr_nats_on_state *fn, void *ctx);
/* fn does not run any more after the return. */
void kvr_nats_unlisten(struct kvr_nats *n, kvr_nats_on_state *fn, void *ctx);

/* reply: where an answer should go, or NULL. Does not wait for the server. Returns: 0, -KVR_ELIMIT when the buffer is full,
 * -KVR_EINVAL. */
int kvr_nats_publish(struct kvr_nats *n, const char *subject, const char *reply, const void *data, size_t len);
/* Sends what is buffered and waits until the server has it. Returns: 0, -KVR_ETIMEDOUT. */
int kvr_nats_flush(struct kvr_nats *n, int timeout_ms);

/* queue: of those with one queue name each message goes to one; NULL: to all. pending_bytes: what may wait for fn; beyond it
 * messages are dropped and counted. Returns: 0, -KVR_ENOMEM, -KVR_EINVAL for a bad subject. */
int kvr_nats_subscribe(struct kvr_nats *n, const char *subject, const char *queue, size_t pending_bytes, kvr_nats_on_message *fn, void *ctx,
                       struct kvr_nats_sub **out);
/* fn does not run any more after the return, which may wait a second for the server. NULL is fine. */
void kvr_nats_unsubscribe(struct kvr_nats_sub *sub);
uint64_t kvr_nats_sub_dropped(const struct kvr_nats_sub *sub);

/* A fresh subject for answers. */
void kvr_nats_inbox(char *out, size_t cap);

#endif
