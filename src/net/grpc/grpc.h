/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC server: HTTP/2 by nghttp2, from memory to memory, on libuv. A stream is one call; calls of any kind (unary, streaming) look alike:
 *
 *     on_open --> on_message ... --> on_half_closed --> kvr_grpc_finish --> on_gone
 *        \____________\____________________\______ the client, its connection or we end it ______/
 *
 * Everything belongs to one loop and is used from its thread only. What is sent in a turn of the loop leaves at its end, in one write for
 * each connection. No function here calls back before it returns, but kvr_grpc_server_close.
 *
 * Memory. What a stream holds is what has come of a message that is not whole, what waits to be sent, and what the handler says it keeps
 * (kvr_grpc_hold). While all streams of a server hold more than memory_max, a stream that holds something is given no window, so its client
 * waits, and new streams begin with a small one; streams that hold nothing run on. Nobody fails. Where all that is held is of messages and
 * bodies that are not whole nothing would ever be freed, so one such stream is let through, and then the next.
 *
 * Limits: messages message_max, what one stream has to be sent write_max, streams, connections, the head of a call as that of a request
 * (http.h). One that is reached is counted, and ends a stream or a connection, never more.
 */
#ifndef KVR_NET_GRPC_H
#define KVR_NET_GRPC_H

#include "net/http/http.h"

/* The status of a call, as gRPC numbers them; those that are used here. */
enum kvr_grpc_status {
    KVR_GRPC_OK = 0,
    KVR_GRPC_INVALID_ARGUMENT = 3,
    KVR_GRPC_NOT_FOUND = 5,
    KVR_GRPC_RESOURCE_EXHAUSTED = 8,
    KVR_GRPC_UNIMPLEMENTED = 12,
    KVR_GRPC_INTERNAL = 13,
    KVR_GRPC_UNAVAILABLE = 14
};

struct kvr_grpc_server;
struct kvr_grpc_stream;

/* All are called from the loop. A handler may send, finish and reset in each but on_gone. */
struct kvr_grpc_handler {
    void (*on_open)(struct kvr_grpc_stream *s, void *ctx); /* its path and metadata are there */
    /* A whole message, borrowed until this returns. None comes after kvr_grpc_finish or kvr_grpc_reset. */
    void (*on_message)(struct kvr_grpc_stream *s, void *ctx, const uint8_t *data, size_t len);
    void (*on_half_closed)(struct kvr_grpc_stream *s, void *ctx); /* no message will come any more */
    /* Exactly once for each on_open, whatever happens. The stream may not be used any more. */
    void (*on_gone)(struct kvr_grpc_stream *s, void *ctx);
    void *ctx;
};

/* What the servers of a port share: counters, zeroed. It outlives them. Threads: any. */
struct kvr_grpc_shared {
    _Atomic uint64_t connections, streams, held;                 /* now; held: bytes */
    _Atomic uint64_t connections_total, streams_total, messages; /* taken */
    _Atomic uint64_t refused;                                    /* connections, streams and messages beyond a limit */
    _Atomic uint64_t protocol_errors;                            /* connections and calls that were not gRPC over HTTP/2 */
    _Atomic uint64_t resets;                                     /* of streams, by clients */
    _Atomic uint64_t goaways;                                    /* connections told to go, each once */
    _Atomic uint64_t timeouts;          /* connections and streams that did not begin, or took nothing of what was sent, in time */
    _Atomic uint64_t windows_closed;    /* times that memory_max was reached */
    _Atomic uint64_t handshakes_failed; /* connections that ended before TLS stood, or did not ask for h2 */
};

struct kvr_grpc_server_config {
    const char *host;
    uint16_t port;   /* 0: any; kvr_grpc_server_port tells */
    bool joins_port; /* another server of this process has it already */
    size_t connections_max;
    size_t streams_max; /* of all connections; also told each client as what one connection may have */
    size_t message_max;
    size_t write_max;               /* bytes of one stream that wait to be sent; beyond, it is reset */
    size_t memory_max;              /* bytes that all streams hold, above; 0: no limit */
    double handshake_timeout_s;     /* until a connection has begun to speak HTTP/2 */
    double write_timeout_s;         /* who takes nothing of what is there to be sent for so long is cut off */
    double connection_age_s;        /* after about so long a connection is told to go, its streams run on; 0: never */
    struct kvr_tls_ctx *tls;        /* NULL: plain; else one of h2 (kvr_tls_files); borrowed */
    struct kvr_grpc_shared *shared; /* NULL: of its own */
    struct kvr_grpc_handler handler;
};

struct kvr_grpc_server_stats {
    size_t connections, streams, held;
};

/* Is there a server in this build? Else the program says what was missing when it was built, and calls nothing else of this. */
bool kvr_grpc_available(void);

/* Returns: 0 or a libuv error (port taken, ...). */
int kvr_grpc_server_start(uv_loop_t *loop, const struct kvr_grpc_server_config *config, struct kvr_grpc_server **out);
uint16_t kvr_grpc_server_port(const struct kvr_grpc_server *s);
void kvr_grpc_server_stats(const struct kvr_grpc_server *s, struct kvr_grpc_server_stats *out);
/* Takes no new connections, and tells each client to go: first that streams on their way are still taken, then which was the last. Streams
 * run on; a connection without any is closed. */
void kvr_grpc_server_drain(struct kvr_grpc_server *s);
/* Closes everything; on_gone is called for each stream. Memory goes when the loop has run its close callbacks. NULL is fine. */
void kvr_grpc_server_close(struct kvr_grpc_server *s);

/* Of the call. Both are valid until on_gone. */
struct kvr_text kvr_grpc_path(const struct kvr_grpc_stream *s);
const struct kvr_headers *kvr_grpc_metadata(const struct kvr_grpc_stream *s); /* headers; those that begin with ':' are left out */
/* The client's address, as kvr_http_conn_peer has it. */
const char *kvr_grpc_peer(struct kvr_grpc_stream *s);
void kvr_grpc_set_user(struct kvr_grpc_stream *s, void *user);
void *kvr_grpc_user(const struct kvr_grpc_stream *s);

/* Copied. Nothing happens after kvr_grpc_finish, or when the stream is about to end; without memory it is reset. */
void kvr_grpc_send(struct kvr_grpc_stream *s, const void *message, size_t len);
/* A message of a head, which is copied, and of bytes behind it that lie in `of`, which is held until they have left; NULL: they are copied.
 */
void kvr_grpc_send_bytes(struct kvr_grpc_stream *s, const void *head, size_t head_len, const void *data, size_t len, struct kvr_body *of);
/* Ends the call when what was sent before has left. `message`: why, for people; NULL: none. The first one counts. */
void kvr_grpc_finish(struct kvr_grpc_stream *s, enum kvr_grpc_status status, const char *message);
/* Ends it at once, without a status. */
void kvr_grpc_reset(struct kvr_grpc_stream *s);

/* The handler keeps so many more bytes of what the client has sent, or as many less. What is still held counts until on_gone. */
void kvr_grpc_hold(struct kvr_grpc_stream *s, size_t bytes);
void kvr_grpc_release(struct kvr_grpc_stream *s, size_t bytes);

struct kvr_grpc_port {
    const char *name; /* a label in the metrics */
    const struct kvr_grpc_shared *shared;
};

void kvr_grpc_shared_metrics(const struct kvr_grpc_port *ports, size_t n, struct kvr_prom_page *out);

#endif
