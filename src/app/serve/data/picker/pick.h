/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request of a client of the gateway, as the gateway tells of it on a stream of external processing:
 *
 *     request headers -> [request body] -> ASKED, of the data room's phases -> DECIDED -> response headers -> [response body] -> its end
 *                                              |
 *                                              '--> REFUSED: the gateway answers its client with what the router says
 *
 * How bodies come is the gateway's configuration, which the first message tells:
 *
 *     request body             when the decision is told
 *     BUFFERED (or _PARTIAL)   in the answer to the body, which comes in one message; one that was cut is chosen by load alone
 *     FULL_DUPLEX_STREAMED     in the answer to the headers, which is held back until the body's end; the body follows it, in pieces
 *     NONE, or none            in the answer to the headers
 *     STREAMED, GRPC           the same, by load alone: the gateway sends no body before it has that answer
 *
 * A booking ends with the response when the gateway shows its body, be it on another stream (observed.h); else when it ends the stream.
 * Where it ends the stream as soon as the response has begun (FULL_DUPLEX_STREAMED for requests, NONE for responses) and no other one tells
 * of it nobody tells the end: the booking ends by --ext-proc-unseen-secs.
 *
 * Whatever happens, each of the streams ends once (call.h), and the request ends with the last of them, or before it, or after that time:
 * each booking is freed once.
 */
#ifndef KVR_SERVE_PICK_H
#define KVR_SERVE_PICK_H

#include "app/serve/data/picker/call.h"
#include "app/serve/data/picker/picker.h"
#include "app/serve/data/request/attempt.h"
#include "wire/ext_proc.h"

enum pick_state { PICK_NEW, PICK_READING, PICK_ASKED, PICK_DECIDED, PICK_REFUSED };

struct pick {
    struct call call;
    struct pick *next, *prev;
    enum pick_state state;
    struct kvr_http_conn *conn; /* NULL: its head has not come */
    struct attempt *attempt;    /* that hears of the response; NULL: none yet, or its end is known */
    struct kvr_ext_proc_modes modes;
    enum kvr_ext_proc_kind decides; /* of the message whose answer has the decision */
    bool has_body;
    bool body_is_whole;        /* the router has all of it */
    bool leaves;               /* nothing but the choice is wanted: its path is none of inference */
    bool early_end;            /* all of the body had come before the decision of a request that leaves: */
    struct kvr_buf early;      /* what had come of it then */
    bool trailers;             /* the request has some */
    bool waits_told;           /* the gateway was asked to wait */
    bool asks_to_see;          /* the gateway was asked to show the response's body, which it does not by itself */
    bool begun;                /* the response's headers are known */
    bool unseen;               /* they are, and its body is not shown */
    bool is_told;              /* another stream has told of it */
    struct observed *observed; /* by which another stream tells of the response (observed.h); NULL: it cannot */
    size_t held;               /* bytes of the body that the stream is told of */
    struct kvr_buf pool_text;
    const char *pool;           /* the choice is among workers of that group; NULL: of any */
    bool has_subset;            /* the choice is among these: */
    struct kvr_buf subset;      /* texts, each with its NUL */
    struct kvr_buf destination; /* of the decision: endpoints, the best first */
    struct kvr_buf told;        /* lines of headers that say who was chosen, and why */
    const char *dropped;        /* why the request is refused, where it was for lack of room; NULL: it was not */
    int status;                 /* of an answer of the router's own; 0: none */
    struct kvr_buf head, body;  /* and the rest of it */
    uv_timer_t lease;
};

void picks_end(struct picker *p); /* those that are left when the port has closed */

/* pick_answer.c: what is said to the gateway. */
void pick_say(struct pick *p, struct kvr_buf *message);                                      /* empties it */
void pick_go_on(struct pick *p, enum kvr_ext_proc_kind kind);                                /* nothing changes */
void pick_say_modes(struct pick *p, enum kvr_ext_proc_kind kind, struct kvr_ext_proc_modes); /* the same, and how bodies come from now on */
/* of: where the bytes lie; NULL: they are copied. */
void pick_say_body(struct pick *p, enum kvr_ext_proc_kind kind, const char *data, size_t len, struct kvr_body *of, bool end);
void pick_say_trailers(struct pick *p, enum kvr_ext_proc_kind kind);
void pick_say_wait(struct pick *p, uint64_t ms);
void pick_say_decision(struct pick *p, const struct attempt *a);
void pick_say_response(struct pick *p); /* the response's headers get those of the decision */
void pick_say_refusal(struct pick *p);

#endif
