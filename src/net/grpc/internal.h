/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the gRPC server, for each other:
 *
 *   server.c     listening, deadlines, draining, the end
 *   conn.c       a connection: bytes <-> nghttp2 <-> streams
 *   stream.c     a stream: what the handler calls, what it holds, its window
 *   messages.c   bytes of a stream -> messages
 *
 * Nothing calls nghttp2_session_mem_send or _mem_recv but conn.c, from the loop: what is submitted elsewhere, in callbacks too, makes its
 * connection `dirty`, and those are written to when the loop has taken all that had come, and once more before it waits. Memory of streams
 * and connections that a callback may still use goes in the close callback of the connection, or when nghttp2 says that the stream is
 * closed, which it never does below a callback of ours.
 */
#ifndef KVR_NET_GRPC_INTERNAL_H
#define KVR_NET_GRPC_INTERNAL_H

#include <nghttp2/nghttp2.h>

#include "net/grpc/grpc.h"
#include "net/grpc/messages.h"

struct kvr__grpc_conn;

enum {
    KVR__GRPC_WINDOW = 4 << 20,         /* of a stream: most bodies come without waiting for more */
    KVR__GRPC_WINDOW_SMALL = 64 * 1024, /* of a new one while memory is short */
    KVR__GRPC_WINDOW_CONN = 16 << 20,
    KVR__GRPC_FRAME = 128 * 1024, /* so that a piece of a body may come in one, and is then read where it lies */
    KVR__GRPC_READ = 256 * 1024,
    KVR__GRPC_WRITE = 256 * 1024,
    KVR__GRPC_QUEUE = 1024 /* frames that wait behind a write that is under way */
};

struct kvr_grpc_server {
    uv_loop_t *loop;
    uv_poll_t listener;
    uv_timer_t sweep, favour;
    uv_prepare_t before; /* both flush */
    uv_check_t after;
    struct kvr_grpc_server_config config;
    struct kvr_grpc_shared own, *shared;
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *options;
    struct kvr__grpc_conn *conns, *oldest, *dirty;
    struct kvr_grpc_stream *owing, *owing_last; /* that are owed window, oldest first */
    struct kvr_grpc_stream *favoured;           /* that owes nothing though it holds something; NULL: none */
    size_t connections, streams, held;
    int fd, handles;
    bool listening, deaf, draining, closed;
    bool tight;                       /* memory_max was reached, and what is held is not yet much less */
    bool favour_used;                 /* something of the favoured one has come since it was looked at */
    struct kvr_buf out;               /* what leaves in one write */
    struct kvr_buf spare;             /* for a message that comes in pieces: most streams have one at a time */
    bool spare_rests;                 /* since a sweep nobody has taken it */
    char plain[KVR__GRPC_READ];       /* what TLS has made of read_buffer */
    char read_buffer[KVR__GRPC_READ]; /* reads are handled before the next one */
};

struct kvr__grpc_conn {
    uv_tcp_t tcp;
    nghttp2_session *session;
    struct kvr_tls *tls; /* NULL: plain */
    struct kvr_grpc_server *server;
    struct kvr__grpc_conn *next, *prev;             /* newest first */
    struct kvr__grpc_conn *dirty_next, *dirty_prev; /* in server->dirty */
    void (*gone)(struct kvr__grpc_conn *c);         /* server.c: its memory may go */
    struct kvr_grpc_stream *streams;
    size_t streams_n;
    uint64_t begin_by_ms, go_at_ms; /* deadlines; 0: none */
    uint64_t write_ms;              /* since when the write that is under way is */
    bool dirty, writing, read_stopped, closing, shaken, tls_begun, told_to_go, told_last;
    char peer[KVR_HTTP_PEER_MAX];
};

/* A message that waits to be sent. */
struct kvr__grpc_part {
    struct kvr__grpc_part *next;
    struct kvr_body *of; /* where `data` lies; NULL: in `head` */
    const char *data;
    size_t data_len, head_len;
    uint8_t head[];
};

struct kvr_grpc_stream {
    struct kvr__grpc_conn *conn;
    struct kvr_grpc_stream *next, *prev;
    struct kvr_grpc_stream *owing_next, *owing_prev;
    void *user;
    char *path;
    struct kvr_headers metadata;
    struct kvr__grpc_reader in;
    struct kvr__grpc_part *out, *out_last; /* the first of which out_at bytes have left */
    size_t out_at, out_len;                /* out_len: bytes of all that have not */
    size_t kept;                           /* by the handler */
    size_t held;                           /* all of the three, as server->held has it */
    size_t owed;                           /* bytes of window that it was not given back */
    uint64_t progress_ms;                  /* when something of `out` left last, or began to wait */
    char *why;                             /* of the status, as it is sent */
    int32_t id;
    uint16_t status;
    bool is_post, is_grpc;
    bool opened;      /* on_open was called, on_gone was not */
    bool head_sent;   /* submitted */
    bool finished;    /* the handler has said how it ends, or we have */
    bool over;        /* it was reset, or its connection closes */
    bool half_closed; /* by the client */
    bool is_owing;    /* in server->owing */
};

/* conn.c */
nghttp2_session_callbacks *kvr__grpc_callbacks(void); /* NULL: no memory */
void kvr__grpc_conn_begin(struct kvr__grpc_conn *c);
void kvr__grpc_conn_close(struct kvr__grpc_conn *c);
void kvr__grpc_conn_reset(struct kvr__grpc_conn *c); /* so that the kernel keeps nothing that it has not taken */
void kvr__grpc_conn_go(struct kvr__grpc_conn *c);    /* GOAWAY, twice */
void kvr__grpc_conn_go_last(struct kvr__grpc_conn *c);
void kvr__grpc_conn_dirty(struct kvr__grpc_conn *c);
void kvr__grpc_flush(struct kvr_grpc_server *s); /* all that are dirty */

/* stream.c */
void kvr__grpc_refused(struct kvr_grpc_server *s, const char *what, size_t most);   /* a limit is reached: counted, and told in the log */
struct kvr_grpc_stream *kvr__grpc_stream_new(struct kvr__grpc_conn *c, int32_t id); /* NULL: no memory */
void kvr__grpc_stream_open(struct kvr_grpc_stream *s);                              /* its head is whole */
void kvr__grpc_stream_data(struct kvr_grpc_stream *s, const uint8_t *data, size_t len);
void kvr__grpc_stream_half_close(struct kvr_grpc_stream *s);
void kvr__grpc_stream_gone(struct kvr_grpc_stream *s); /* tells the handler; it holds nothing any more */
void kvr__grpc_stream_free(struct kvr_grpc_stream *s);
void kvr__grpc_stream_end(struct kvr_grpc_stream *s, uint32_t code);                /* RST_STREAM, with a code of HTTP/2 */
void kvr__grpc_stream_put(struct kvr_grpc_stream *s, struct kvr_buf *to, size_t n); /* so many bytes of what waits leave */

#endif
