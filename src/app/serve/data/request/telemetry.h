/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is noted of a request beside what it needs, for its line in the access log (access_line.c) and its spans (spans.c). There is a note
 * only while one of both is on: else request.telemetry is NULL, and every function here that takes a request returns at once.
 *
 * The head of a request is gone when its answer has ended, so what is told of it is copied when it arrives. Never noted: bodies, queries,
 * keys, and headers but x-request-id, traceparent and tracestate.
 *
 *     arrival: telemetry_begin --> the request: telemetry_take; or an answer of the router's own: telemetry_local
 *     phases: telemetry_phase, telemetry_timeout; the way it ends: telemetry_ending
 *     the end: telemetry_tell (the line; its attempts are there still), telemetry_end (the spans leave)
 *
 * Threads: the request's loop.
 */
#ifndef KVR_SERVE_TELEMETRY_H
#define KVR_SERVE_TELEMETRY_H

#include "app/serve/data/request/request.h"
#include "wire/otlp_json.h"
#include "wire/trace_context.h"

struct attempt;

enum { TELEMETRY_PATH_MAX = 1024 };

/* How a request has ended. Text, as the access log tells it. */
#define ENDING_OK          "ok"
#define ENDING_CLIENT_GONE "client_gone"
#define ENDING_REFUSED     "refused"       /* by the router, before a worker was asked */
#define ENDING_FAILED      "worker_failed" /* every worker that was asked has failed */
#define ENDING_BROKEN      "broken"        /* after the answer had begun */
#define ENDING_MALFORMED   "malformed"     /* it was no request, too large, or did not come in time */

struct telemetry {
    struct kvr_http_told told;
    char client[KVR_HTTP_PEER_MAX];
    const char *method;
    unsigned minor;
    uint64_t began_ns, at_ns;    /* monotonic: its arrival, the beginning of the phase */
    uint64_t phase_ns[PHASES_N]; /* spent in each */
    uint64_t bytes_in;
    const char *ending, *timeout;   /* static; NULL: not yet, none */
    struct kvr_trace_context trace; /* of the client, or made here; trace.parent is the client's span, 0: none */
    bool has_trace, has_state;      /* has_state: its tracestate may be passed on */
    uint64_t root;                  /* its own span */
    uint64_t unix_ns;               /* at began_ns; of one that has spans */
    struct kvr_span_set *spans;     /* NULL: none are kept */
    size_t path_len;
    char path[];
};

/* NULL: nothing is to be noted, or there is no memory. */
struct telemetry *telemetry_begin(struct loop *l, struct kvr_http_conn *c);
/* It is of a request that may go to a worker, and whose trace begins or goes on here. NULL is fine. */
void telemetry_take(struct request *r, struct telemetry *n);
/* It may ask, or is refused by what its key allows: from here on it has spans. A stranger's trace takes nobody's room. */
void telemetry_known(struct request *r);
/* The router has answered it itself, or refused it before it was a request (`status` not 0). Frees it. NULL is fine. */
void telemetry_local(struct loop *l, struct telemetry *n, int status);
/* The handler of what the server refuses. */
void telemetry_refused(struct kvr_http_conn *c, int status, void *loop);

void telemetry_phase(struct request *r); /* another one begins */
void telemetry_timeout(struct request *r, bool total);
void telemetry_ending(struct request *r, const char *ending);
void telemetry_tell(struct request *r);
void telemetry_end(struct request *r);

/* Does the router write these headers itself? */
bool telemetry_is_trace_header(const struct request *r, struct kvr_text name);
/* The context that a worker gets with an attempt, whose span it names. */
void telemetry_put_trace(const struct attempt *a, struct kvr_buf *head);
/* A span id for an attempt; 0: it has none. */
uint64_t telemetry_span_id(const struct request *r);

/* access_line.c: r NULL: of what never was a request of a worker. */
bool access_wanted(const struct loop *l, const struct telemetry *n, int status);
void access_write(struct loop *l, const struct telemetry *n, const struct request *r, int status);

/* spans.c: a moment of the monotonic clock as one since 1970 */
uint64_t spans_unix_ns(const struct telemetry *n, uint64_t monotonic_ns);
/* Each does nothing where there are no spans */
void spans_begin(struct telemetry *n);
void spans_phase(struct request *r, uint64_t from_ns, uint64_t to_ns);
void spans_attempt(const struct attempt *a); /* it goes now */

#endif
