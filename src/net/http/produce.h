/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An answer that a thread of its own writes while the loop sends it, for what is large or slow to make. The thread waits
 * while KVR_PRODUCE_PIECES pieces are on their way or the client is slow, so the memory of an answer is those pieces. A client
 * that takes nothing for a while is cut off.
 *
 *     loop: kvr_produce_start --> thread: fn writes pieces (kvr_produce) --> loop: sends them --> on_over
 *
 * The connection's user pointer belongs to the producer until on_over; the server's on_gone and on_drained handlers are, or call, the
 * functions of that name below.
 */
#ifndef KVR_NET_HTTP_PRODUCE_H
#define KVR_NET_HTTP_PRODUCE_H

#include "net/http/http.h"

enum { KVR_PRODUCE_PIECE = 256 << 10, KVR_PRODUCE_PIECES = 8 };

struct kvr_producer;

struct kvr_produce_config {
    uv_loop_t *loop;
    struct kvr_http_conn *conn;
    const char *headers; /* formatted lines; copied */
    /* On the thread: writes the body. Returns: false when it cannot be whole; the transfer is broken off then. */
    bool (*fn)(struct kvr_producer *p, void *arg);
    /* On the loop, last: `sent` whole, or not (failed, or the client is gone). */
    void (*on_over)(void *arg, bool sent, bool gone);
    void *arg;
    double stall_s; /* how long the client may take nothing before it is cut off; 0: 30 */
};

/* Answers with 200. Returns: 0, or -KVR_ENOMEM: nothing was begun and on_over is not called. */
int kvr_produce_start(const struct kvr_produce_config *config);
/* Hands the buffer's content over and empties it. Returns: 0, or non-zero when the answer is of no use any more. */
int kvr_produce(struct kvr_producer *p, struct kvr_buf *b);

/* Handlers of a server (ctx: any), for a connection whose user pointer is NULL or a producer. */
void kvr_produce_on_gone(struct kvr_http_conn *conn, void *ctx);
void kvr_produce_on_drained(struct kvr_http_conn *conn, void *ctx);

#endif
