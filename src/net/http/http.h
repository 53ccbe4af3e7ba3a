/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/1.1 on libuv and llhttp: a server for whole requests and streamed answers, and a client with pooled
 * keep-alive connections. Everything belongs to one loop and is used from its thread only.
 *
 * Limits: header section and trailers 64 KiB and 128 headers, request body as configured, all bodies together as configured,
 * 64 KiB of pipelined bytes behind a request that is being answered, bounded write queues (the caller pauses its source above
 * KVR_HTTP_HIGH_WATER; the server parses and reads nothing of a connection that has more queued), 32 names in Connection.
 *
 * An answer for which there is no memory is broken off visibly (the connection is reset), never with a hole in it.
 *
 * Rule: no span that is still needed when a call has returned is borrowed. What the kernel, a thread or a later turn of the
 * loop reads is copied (heads, pieces of an answer, endpoints) or held by a reference of its own (struct kvr_body), which is
 * given back by the very callback that ends the reading. What a callback is handed lives until it returns, and no longer.
 */
#ifndef KVR_NET_HTTP_H
#define KVR_NET_HTTP_H

#include <stdatomic.h>
#include <string.h>
#include <strings.h>
#include <uv.h>

#include "base/base.h"
#include "base/buf.h"
#include "net/http/tls.h"

struct kvr_prom_page;

enum {
    KVR_HTTP_HEAD_MAX = 64 * 1024,
    KVR_HTTP_PIPELINE_MAX = 64 * 1024,
    KVR_HTTP_HEADERS_MAX = 128,
    KVR_HTTP_CONNECTION_NAMES_MAX = 32,
    KVR_HTTP_HIGH_WATER = 256 * 1024,
    KVR_HTTP_LOW_WATER = 64 * 1024
};

/* ---- headers ----------------------------------------------------------------------------------------- */

struct kvr_header {
    uint32_t name_at, name_len, value_at, value_len; /* in text */
};

struct kvr_headers {
    struct kvr_buf text;
    struct kvr_header *list;
    size_t n, cap;
    uint64_t seen; /* a bit for each name, and for what names began with while they came: what has none is not there */
    bool in_value; /* while they come: the last piece was of a value */
};

struct kvr_text {
    const char *ptr; /* NULL: absent */
    size_t len;
};

/* Inline, as names are compared more often than all else: of a literal the length is known, and mostly it decides. */
static inline bool kvr_text_is(struct kvr_text t, const char *s) /* exact */
{
    size_t n = strlen(s);
    return t.len == n && t.ptr && memcmp(t.ptr, s, n) == 0;
}
/* Of texts that are not empty: else their first letters say that they differ. */
static inline bool kvr_may_be_nocase(const char *a, const char *b)
{
    return ((*a ^ *b) & ~0x20) == 0;
}
static inline bool kvr_text_is_nocase(struct kvr_text t, const char *s)
{
    size_t n = strlen(s);
    return t.len == n && t.ptr && kvr_may_be_nocase(t.ptr, s) && strncasecmp(t.ptr, s, n) == 0;
}
static inline bool kvr_text_begins_nocase(struct kvr_text t, const char *s)
{
    size_t n = strlen(s);
    return t.len >= n && kvr_may_be_nocase(t.ptr, s) && strncasecmp(t.ptr, s, n) == 0;
}

/* A row of a table of names. */
#define KVR_TEXT(literal)                                                                                                                  \
    {                                                                                                                                      \
        literal, sizeof literal - 1                                                                                                        \
    }
/* In any case of letters. */
static inline bool kvr_text_is_one_of(struct kvr_text t, const struct kvr_text *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (t.len == names[i].len && kvr_may_be_nocase(t.ptr, names[i].ptr) && strncasecmp(t.ptr, names[i].ptr, t.len) == 0) return true;
    return false;
}

/* Most names that are looked for are not there. */
static inline uint64_t kvr__header_bit(const char *name, size_t len)
{
    return (uint64_t)1 << ((len + (size_t)(name[0] | 0x20) * 7) & 63);
}

/* First header of that name (any case), or an absent text. */
struct kvr_text kvr__headers_get(const struct kvr_headers *h, const char *name, size_t len);
static inline struct kvr_text kvr_headers_get(const struct kvr_headers *h, const char *name)
{
    size_t len = strlen(name);
    return h->seen & kvr__header_bit(name, len) ? kvr__headers_get(h, name, len) : (struct kvr_text){0};
}
struct kvr_text kvr_headers_name(const struct kvr_headers *h, size_t i);
struct kvr_text kvr_headers_value(const struct kvr_headers *h, size_t i);
/* One more, copied. Returns: 0, or -1 over a limit or, with h->text.failed, without memory. */
int kvr_headers_add(struct kvr_headers *h, struct kvr_text name, struct kvr_text value);
void kvr_headers_free(struct kvr_headers *h);
/* A part of a path, percent-decoded, in out. Returns: false: it is empty, has a NUL, or is longer than cap - 1 bytes. */
bool kvr_path_decode(struct kvr_text part, char *out, size_t cap);
/* A query parameter, percent-decoded, in out. Returns: 1; 0 absent; -1 there, but longer than cap - 1 bytes or with a NUL: no
 * value that the caller knows, and not the same as none. out is "" then. */
int kvr_query_parameter(struct kvr_text query, const char *key, char *out, size_t cap);

/* A line of a head, with its end. Neither may have a control character. */
void kvr_header_put(struct kvr_buf *head, struct kvr_text name, struct kvr_text value);
void kvr_header_put_str(struct kvr_buf *head, const char *name, const char *value);
void kvr_header_put_u64(struct kvr_buf *head, const char *name, uint64_t value);
struct kvr_endpoint;
/* The first lines of a request for `path` below the endpoint: a POST of so many bytes of JSON, or a GET: -1. */
void kvr_request_put(struct kvr_buf *head, const struct kvr_endpoint *e, const char *path, int64_t json);

/* The names that Connection lists. Borrows from the headers. */
struct kvr_hop_by_hop {
    struct kvr_text names[KVR_HTTP_CONNECTION_NAMES_MAX];
    size_t n;
};

/* false: there are too many. The server and the client refuse such a message, so for theirs it is true. */
bool kvr_hop_by_hop_read(const struct kvr_headers *h, struct kvr_hop_by_hop *out);
/* Headers that concern one connection only: Connection, those it names, Keep-Alive, Transfer-Encoding, ... */
bool kvr_header_is_hop_by_hop(const struct kvr_hop_by_hop *hop, struct kvr_text name);

/* ---- bodies ------------------------------------------------------------------------------------------ */

/* Bytes that several hold at once: whoever received them, who sends them, who reads them on another thread. They do not change
 * once more than one holds them, and go with the last reference.
 * Threads: references may be taken and given back anywhere. */
struct kvr_body {
    char *data;
    size_t len;
    _Atomic unsigned refs;
    struct kvr_http_shared *shared; /* whose budget it counts against; NULL: none */
    size_t held;                    /* with so many bytes */
};

/* Takes the buffer's bytes and empties it. Owns: the caller, one reference. NULL: no memory, or the buffer has failed; the
 * buffer keeps its bytes. */
struct kvr_body *kvr_body_take(struct kvr_buf *bytes);
struct kvr_body *kvr_body_copy(const void *data, size_t len); /* likewise */
/* As kvr_body_take, for bytes made from another body: counted against the same budget, and NULL when that is used up, too. */
struct kvr_body *kvr_body_derive(const struct kvr_body *from, struct kvr_buf *bytes);
/* Returns: b. NULL is fine for both. */
struct kvr_body *kvr_body_ref(struct kvr_body *b);
void kvr_body_unref(struct kvr_body *b);

struct kvr_addresses; /* net/http/addresses.h */

/*
 * What the servers of a program, or of one kind of port of it, share: a budget for the request bodies that are held at once
 * (from the first byte to the last reference; bytes of memory, not what Content-Length promises) and counters. Zeroed, with
 * bodies_max set; outlives the servers and every body of theirs.
 * Threads: any.
 */
struct kvr_http_shared {
    size_t bodies_max; /* bytes; 0: no limit. A body beyond is refused with 503 and Retry-After; a quarter is for those up to 64 KiB */
    struct kvr_addresses *addresses;  /* NULL: connections are not counted by address */
    struct kvr_addresses *unfinished; /* bytes of bodies that are not whole, by their payers' numbers; one that goes beyond is refused with
                                       * 429. NULL: they are not counted */
    _Atomic uint64_t addresses_refused, bodies_held, bodies_spare, bodies_refused, bodies_over_share, write_timeouts, answers_broken,
        accept_failures, evicted, delayed, handshakes, handshakes_failed;
    _Atomic uint64_t last_answers, cut_off; /* since kvr_http_server_lame: answers that ended; those that kvr_http_server_close broke off */
};

/* The thread keeps memory of large bodies that are over for those that come, up to so many bytes (net/http/spares.c). 0: no more; what it
 * has is given back. Before a thread that has kept some ends. */
void kvr_http_spares_keep(size_t bytes_max);

struct kvr_http_port {
    const char *name; /* a label in the metrics */
    const struct kvr_http_shared *shared;
};

/* Prometheus text. */
void kvr_http_shared_metrics(const struct kvr_http_port *ports, size_t n, struct kvr_prom_page *out);

/* ---- server ------------------------------------------------------------------------------------------ */

struct kvr_http_server;
struct kvr_http_conn;

struct kvr_http_handler {
    /* A whole request has arrived. The handler answers now or later, exactly once. */
    void (*on_request)(struct kvr_http_conn *conn, void *ctx);
    /* The client went away while an answer was owed; the connection must not be used any more, but kvr_http_all_sent may be asked. Told of
     * connections with a user alone: who keeps one to answer later sets it. */
    void (*on_gone)(struct kvr_http_conn *conn, void *ctx);
    /* The write queue fell below KVR_HTTP_LOW_WATER after it had been above the high mark. */
    void (*on_drained)(struct kvr_http_conn *conn, void *ctx);
    /* Error body for a request that never reached on_request; appends to `out`. */
    void (*error_body)(struct kvr_buf *out, int status, const char *message);
    void *ctx;
};

/* What is wanted of a body that follows a head. */
struct kvr_http_room {
    size_t bytes;
    uint64_t payer; /* whose share of unfinished bodies it counts against: the address of something of theirs; 0: the client's address */
    int why;        /* the handler's own: what it is told of the body when it is not read */
};

struct kvr_http_server_config {
    const char *host; /* NULL: it takes no connections, only requests that are hosted (net/http/hosted.h) */
    uint16_t port;    /* 0: any; kvr_http_server_port tells */
    bool joins_port;  /* another server of this process has it already; nobody else's port is ever joined */
    int listener;     /* of another process that hands its port over: this socket listens, owned from a start on that succeeds; 0: none */
    bool waits;       /* takes no connection before kvr_http_server_go */
    size_t body_max, connections_max;
    const char *body_option; /* which says body_max, for who is refused: "--max-body-size"; NULL: none. Static */
    double head_timeout_s, body_timeout_s, idle_timeout_s;
    double write_timeout_s;         /* a client that takes nothing of what is queued for so long is cut off; 0: never */
    struct kvr_http_shared *shared; /* NULL: of its own, without a budget */
    struct kvr_tls_ctx *tls;        /* NULL: plain; borrowed */
    struct kvr_http_handler handler;
    /* One that never reaches on_request is about to be answered with `status`; of its request the target and the method are set as far as
     * they came. With the handler's context. NULL: nobody wants to know. */
    void (*on_refused)(struct kvr_http_conn *conn, int status, void *ctx);
    /* The head of a request is there and a body follows, of which nothing is read yet: how many bytes of it are wanted, body_max unless
     * this says less. One with more is handed over at once, without its body (body_unread): a stranger is told no before he has made us
     * hold anything. With the handler's context. NULL: body_max for everybody. */
    void (*body_room)(struct kvr_http_conn *conn, void *ctx, struct kvr_http_room *room);
    /* Lines that an answer has whatever it says, errors before on_request too: appends to `head`. The request's headers are there when its
     * head has come to an end, else NULL. With the handler's context. NULL: none. */
    void (*put_headers)(struct kvr_http_conn *conn, struct kvr_buf *head, void *ctx);
};

struct kvr_http_server_stats {
    size_t open; /* connections */
    size_t owed; /* of the open ones: something is still to be said on them */
};

/* Returns: 0 or a libuv error (port taken, ...). */
int kvr_http_server_start(uv_loop_t *loop, const struct kvr_http_server_config *config, struct kvr_http_server **out);
uint16_t kvr_http_server_port(const struct kvr_http_server *s);
void kvr_http_server_stats(const struct kvr_http_server *s, struct kvr_http_server_stats *out);
/* How many descriptors this process may still open, less a few and `reserve` that it will need for other things; SIZE_MAX: no limit.
 * Whoever starts a server keeps connections_max below it: each connection may need another one to a worker. */
size_t kvr_http_descriptors_room(size_t reserve);
/* As many as the system lets it. */
void kvr_http_descriptors_raise(void);
/* The socket that listens, for kvr_http_server_config.listener of another process. The server keeps it. */
int kvr_http_server_listener(const struct kvr_http_server *s);
void kvr_http_server_go(struct kvr_http_server *s);
/* From now on each answer is the last of its connection, and says so. Connections are taken as before. */
void kvr_http_server_lame(struct kvr_http_server *s);
/* Takes no new connections: the port is free, or its new owner's (`handed_over`). What the kernel has accepted is still served, unless
 * that is for the new owner to do. */
void kvr_http_server_deaf(struct kvr_http_server *s, bool handed_over);
/* kvr_http_server_lame and _deaf, and connections are closed that have been idle for a second. */
void kvr_http_server_drain(struct kvr_http_server *s);
/* What its loop's turn has to send, now: for a program that ends at once. */
void kvr_http_server_send(struct kvr_http_server *s);
/* Closes everything; on_gone is called for answers owed. Memory goes when the loop has run its close callbacks. */
void kvr_http_server_close(struct kvr_http_server *s);

struct kvr_http_request {
    struct kvr_text method;              /* HEAD shows as GET: the answer is the same, and its body is not sent */
    struct kvr_text target, path, query; /* in origin form; "*" with OPTIONS */
    bool is_head;
    int minor;                         /* HTTP/1.minor */
    const struct kvr_headers *headers; /* never a trailer: those are dropped */
    const char *body;
    size_t body_len;
    bool body_unread;   /* it is larger than body_room allows; it must be answered at once, and the connection ends with the answer */
    uint64_t body_size; /* of a body that is not read: what it says, else what had come */
    struct kvr_http_room room; /* what body_room has said */
};

/* Valid until the answer has ended. */
const struct kvr_http_request *kvr_http_conn_request(struct kvr_http_conn *c);
/* Gives the body's memory back early; request.body is NULL afterwards. */
void kvr_http_conn_drop_body(struct kvr_http_conn *c);
/* The same of the head, once its answer has begun: its headers, target, path and query are empty afterwards. */
void kvr_http_conn_drop_head(struct kvr_http_conn *c);
/* Takes the body out of the connection; request.body is NULL afterwards. Owns: the caller, one reference. NULL: it has none. */
struct kvr_body *kvr_http_conn_take_body(struct kvr_http_conn *c);
void kvr_http_conn_set_user(struct kvr_http_conn *c, void *user);
void *kvr_http_conn_user(struct kvr_http_conn *c);

enum { KVR_HTTP_PEER_MAX = 48 };
/* The client's address, without its port; an IPv6 address without brackets. "" when it is not known any more. Borrowed. */
const char *kvr_http_conn_peer(struct kvr_http_conn *c);

/* What has been answered. */
struct kvr_http_told {
    int status;     /* 0: nothing yet */
    uint64_t bytes; /* of the body, as far as it was given to the connection */
};
/* Kept up to date until the answer has ended or is broken off, or until this is called with NULL. Borrowed. */
void kvr_http_conn_tell(struct kvr_http_conn *c, struct kvr_http_told *told);

/* Begins an answer. `headers`: formatted lines ("Name: value\r\n"...). length < 0: unknown (chunked, or until
 * close for HTTP/1.0). */
void kvr_http_start(struct kvr_http_conn *c, int status, const char *headers, size_t headers_len, int64_t length);
/* The same, but the head leaves with the first piece of the body, or with the end: for who has a piece at hand, to whom it saves a
 * system call and a packet. */
void kvr_http_start_held(struct kvr_http_conn *c, int status, const char *headers, size_t headers_len, int64_t length);
/* Sends a piece of the body, a small one at the end of the loop's turn. Returns: bytes waiting in the write queue. */
size_t kvr_http_write(struct kvr_http_conn *c, const char *data, size_t len);
/* Has the kernel taken all that was written so far? */
bool kvr_http_all_sent(const struct kvr_http_conn *c);
void kvr_http_end(struct kvr_http_conn *c);
/* Breaks the transfer off, so that the client sees that the answer is not whole. */
void kvr_http_abort(struct kvr_http_conn *c);
/* A whole answer in one go. */
void kvr_http_reply(struct kvr_http_conn *c, int status, const char *content_type, const char *extra_headers, const char *body, size_t len);
/* The same of a buffer, which is emptied and freed; one that has failed is answered with 503. */
void kvr_http_reply_buf(struct kvr_http_conn *c, int status, const char *content_type, const char *extra_headers, struct kvr_buf *body);
const char *kvr_http_reason(int status);

/* ---- client ------------------------------------------------------------------------------------------ */

struct kvr_http_client;
struct kvr_http_call;

struct kvr_endpoint {
    char host[256];
    uint16_t port;
    char authority[272]; /* "host:port" for the Host header, an IPv6 address in brackets */
    char base[256];      /* path prefix without trailing slash, often "" */
    uint64_t key;        /* identifies scheme, host and port in the pool */
    bool is_numeric;
    bool tls;                            /* https: the certificate is checked (net/http/tls.h); it is never spoken to in the clear */
    const struct kvr_tls_peer *tls_peer; /* how; NULL: as kvr_tls_trust says. Set by kvr_endpoint_trust */
    struct sockaddr_storage addr;
};

/* Parses http://host[:port][/path]. Returns: 0 or -KVR_EINVAL. */
int kvr_endpoint_parse(const char *url, size_t len, struct kvr_endpoint *out);
/* The same, or https://. */
int kvr_endpoint_parse_any(const char *url, size_t len, struct kvr_endpoint *out);
/* Has an https endpoint be believed, and told who we are, in a way of its own: its connections are not shared with others'. */
void kvr_endpoint_trust(struct kvr_endpoint *e, const struct kvr_tls_peer *peer);

enum kvr_http_failure {
    KVR_HTTP_CONNECT_FAILED, /* refused, unreachable, name unknown; https: no certificate that is trusted for the host */
    KVR_HTTP_CONNECT_TIMEOUT,
    KVR_HTTP_RESET,     /* closed before the answer began */
    KVR_HTTP_TRUNCATED, /* closed in the middle */
    KVR_HTTP_BAD_ANSWER
};

/* Any may be NULL. */
struct kvr_http_call_handler {
    void (*on_head)(struct kvr_http_call *call, void *ctx, int status, const struct kvr_headers *headers, int64_t length);
    void (*on_body)(struct kvr_http_call *call, void *ctx, const char *data, size_t len);
    /* Exactly one of these two ends a call that was not cancelled. The call is gone afterwards. */
    void (*on_done)(struct kvr_http_call *call, void *ctx);
    void (*on_failed)(struct kvr_http_call *call, void *ctx, enum kvr_http_failure why, const char *text);
};

struct kvr_http_call_config {
    const struct kvr_endpoint *endpoint; /* copied */
    const char *head;                    /* request line and headers, with the blank line; copied */
    size_t head_len;
    struct kvr_body *body; /* NULL: none; the call takes a reference, and keeps one until the answer begins and the last byte has left */
    bool is_head;
    bool once; /* on a connection of its own, which is not kept: no byte of it can reach the server twice */
    double connect_timeout_s;
    const struct kvr_http_call_handler *handler;
    void *ctx;
};

int kvr_http_client_create(uv_loop_t *loop, double idle_timeout_s, struct kvr_http_client **out);
/* `counter` (outlives the client) counts calls that were sent again because the peer had closed a pooled connection. */
void kvr_http_client_count_reopened(struct kvr_http_client *c, _Atomic uint64_t *counter);
/* Closes idle connections and cancels calls silently; memory goes with the loop's close callbacks. */
void kvr_http_client_close(struct kvr_http_client *c);
/* With so many connections open a kept one is closed for each new one. Connections in use are never refused. 0, as at first: no limit. */
void kvr_http_client_open_max(struct kvr_http_client *c, size_t n);

/* Never calls back before it returns. Returns: the call or NULL when memory is short. A pooled connection that
 * turns out to be closed by the peer is replaced by a fresh one without telling, once. */
struct kvr_http_call *kvr_http_call_start(struct kvr_http_client *c, const struct kvr_http_call_config *config);
/* Ends a call without a callback; its connection is closed. */
void kvr_http_call_cancel(struct kvr_http_call *call);
/* The same, but what is still to come of the answer is read for up to timeout_ms and dropped, so that the connection can be used
 * again when it ends in time. */
void kvr_http_call_let_go(struct kvr_http_call *call, uint64_t timeout_ms);
void kvr_http_call_pause(struct kvr_http_call *call);
void kvr_http_call_resume(struct kvr_http_call *call);
/* How long the name, the connection and TLS took; 0: a connection that was there already, or none yet. */
uint64_t kvr_http_call_connect_ns(const struct kvr_http_call *call);
int kvr_http_call_status(const struct kvr_http_call *call); /* of the answer; 0: its head is not there yet */

#endif
