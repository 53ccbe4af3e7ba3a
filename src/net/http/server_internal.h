/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the HTTP server, for each other:
 *
 *   http/server.c    listening, connections, deadlines
 *   http/request.c   bytes -> request -> handler
 *   http/answer.c    handler -> answer -> bytes
 *   http/hosted.c    requests inside another protocol
 */
#ifndef KVR_NET_HTTP_SERVER_INTERNAL_H
#define KVR_NET_HTTP_SERVER_INTERNAL_H

#include "net/http/hosted.h"
#include "net/http/internal.h"
#include "net/http/turn.h"

enum { KVR__LATE_MAX = 32 };

struct kvr_http_server {
    uv_loop_t *loop;
    uv_poll_t listener;
    int fd, accepted; /* the listening socket, and one that was accepted and waits for room; -1: none */
    uv_timer_t sweep, second_look;
    struct kvr__turn turn;
    struct {
        int fd;
        uint64_t address, until_ms;
    } late[KVR__LATE_MAX]; /* accepted while their address had as many as it may: what it closed before may not be known yet */
    size_t late_n;
    struct kvr_http_server_config config;
    struct kvr_http_shared own, *shared; /* the latter is the former unless the configuration names one */
    struct kvr_http_conn *conns, *oldest;
    size_t open, live; /* connections; those that are not being closed */
    llhttp_settings_t settings;
    int handles; /* open handles of the server itself */
    bool waits;  /* for kvr_http_server_go */
    bool listening, deaf, lame, draining, closed;
    char too_large[96];          /* for a body beyond its limit */
    char plain[64 * 1024];       /* what TLS has made of read_buffer */
    char read_buffer[64 * 1024]; /* reads are handled before the next one, so one buffer serves all */
};

struct kvr_http_conn {
    uv_tcp_t tcp;
    uv_shutdown_t shutdown;
    llhttp_t parser;
    struct kvr__framing framing;
    struct kvr_tls *tls; /* NULL: plain */
    struct kvr_http_server *server;
    const struct kvr_http_outer *outer; /* of one that is hosted, which has no socket and is in no list (hosted.c); NULL: it has one */
    void *outer_ctx;
    struct kvr_http_conn *next, *prev; /* newest first */
    void *user;
    struct kvr_http_told *told; /* of the answer; NULL: nobody wants to know */
    struct kvr_http_request request;
    struct kvr_headers headers;
    struct kvr_buf target;
    struct kvr_buf arriving; /* the body, as far as it has come; its capacity counts against the budget */
    struct kvr_body *body;   /* and when it is whole */
    struct kvr_buf held;     /* what leaves at the end of the turn; an answer's head that waits for its first piece */
    struct kvr__turn_place turn;
    struct kvr_buf ahead; /* bytes that wait for their turn to be parsed */
    uint64_t deadline_ms; /* 0: none */
    size_t unfinished;    /* of `arriving`, so many bytes count against the share of `payer` */
    uint64_t payer;
    uint64_t message_ms;   /* when the request that is arriving began, or the waiting for it; by the clock, not the loop, which stands
                            * still while it is held up: who waits meanwhile has not been idle */
    size_t queued;         /* bytes in write requests */
    uint64_t queued_total; /* ever */
    uint64_t sent_seen, progress_ms; /* by the sweep: bytes that had left, and when that last grew */
    bool started_message;
    bool took_all;          /* of the last one */
    bool tls_begun, shaken; /* a byte of TLS has come; its handshake is over */
    bool half_closed;       /* the client has ended its side */
    bool parsing_ahead;
    bool answering, answer_started, chunked, keep_alive, close_when_sent, closing, read_stopped, lingering;
    bool above_high;     /* more than KVR_HTTP_HIGH_WATER was queued, and not yet less than the low mark: nothing is parsed or read */
    bool write_failed;   /* nothing more is sent; the next sweep resets the connection, so that writing never calls back */
    bool reset_at_close; /* the end of the connection would look like the end of the answer */
    bool counted;        /* by address */
    uint64_t address;
    char peer[KVR_HTTP_PEER_MAX]; /* "": not asked for yet, or not known */
    int64_t left;                 /* body bytes still to be sent when the length is known; -1 unknown */
    int fail_status;
    const char *fail_text;
};

/* http/server.c */
void kvr__conn_deadline(struct kvr_http_conn *c, double seconds);
void kvr__conn_close(struct kvr_http_conn *c);
/* Everything is sent: says goodbye and gives the client a moment to read it. */
void kvr__conn_linger(struct kvr_http_conn *c);
/* Reads when there is room for what comes, and does not when there is none. */
void kvr__conn_update_reading(struct kvr_http_conn *c);
void kvr__conn_fail_soon(struct kvr_http_conn *c);

/* http/request.c */
void kvr__request_settings(llhttp_settings_t *s);
void kvr__request_begin(struct kvr_http_conn *c);
void kvr__request_free(struct kvr_http_conn *c);
/* Of one that is refused before it was whole: its method and target, as far as they have come. */
void kvr__request_name(struct kvr_http_conn *c);
/* Plain bytes of the client. */
void kvr__request_take(struct kvr_http_conn *c, const char *data, size_t n);
void kvr__request_parse_ahead(struct kvr_http_conn *c);
/* The parts of a request, as they come. Each but the last returns 0, or that it is over: refused (fail_status, fail_text), or to be handed
 * over without its body (request.body_unread). A body follows the head, of `promised` bytes (0: not said). */
int kvr__request_room(struct kvr_http_conn *c, uint64_t promised);
int kvr__request_body(struct kvr_http_conn *c, const char *at, size_t len, uint64_t promised); /* of all; 0: not said */
int kvr__request_body_over(struct kvr_http_conn *c);
/* Where bytes of a body, and none behind it, can be read to without being copied. Returns: false: nowhere. */
bool kvr__request_straight(struct kvr_http_conn *c, uv_buf_t *place);
/* Reads c->target. Returns: NULL, or what is wrong with it. */
const char *kvr__request_target(struct kvr_http_conn *c, bool is_options);
void kvr__request_dispatch(struct kvr_http_conn *c);

/* http/answer.c */
void kvr__answer_send_turn(struct kvr__turn_place *p);
void kvr__answer_send_now(struct kvr_http_conn *c); /* what waits for the end of the turn */
void kvr__answer_flush_tls(struct kvr_http_conn *c);
void kvr__answer_continue(struct kvr_http_conn *c); /* 100 Continue */
/* Sends a client something that means nothing, to see whether it is there: the kernel of one that has gone resets the connection.
 * Returns: false: there is nothing to send it, at this place of its answer. */
bool kvr__answer_probe(struct kvr_http_conn *c);
/* An error before the request was whole: answers and closes. */
void kvr__answer_refuse(struct kvr_http_conn *c, int status, const char *message);

static inline uv_buf_t kvr__buf_of(const char *data, size_t len)
{
    return uv_buf_init((char *)(uintptr_t)data, (unsigned)len);
}

#endif
