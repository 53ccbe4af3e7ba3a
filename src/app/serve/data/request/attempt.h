/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One exchange of a request with one worker: the worker that was chosen for it, the booking on that worker, and what comes back.
 *
 *    made by CHOOSING, for the router to fill in --> booked --> sent --> head (held back) --> bytes --> end
 *
 * The exchange tells of its steps by outcomes (`tell`): BYTES for each piece of the answer, which is attempt->bytes during the step,
 * and at the end WHOLE, FAILED (before a byte was told of) or BROKEN (after one). An answer of 502, 503 or 504 is FAILED, when it is
 * whole: no byte of it is told of, and it becomes the request's refusal, for when no other worker takes the request. `state` says how far
 * it is. attempt_cancel() ends it without a word.
 *
 * A decode leg whose stream begins with an error has FAILED as one of status 500 has: a transfer that has gone wrong shows like this. What
 * comes before the first event of a stream is held back for that.
 *
 * The answer of a prefill leg is nobody's but the router's: it is FAILED until it is WHOLE.
 *
 * An attempt that has failed stays the request's until another one is booked: what is told of the request is told of the last worker.
 * Nothing here depends on a request having one attempt only: an attempt knows neither the request's phase nor what follows from an
 * outcome; both are the business of the function that is told.
 *
 * Threads: the request's loop.
 */
#ifndef KVR_SERVE_ATTEMPT_H
#define KVR_SERVE_ATTEMPT_H

#include "app/serve/workers/views/evidence.h"
#include "app/serve/data/request/request.h"
#include "wire/sse.h"
#include "wire/usage_merge.h"

enum attempt_state {
    ATTEMPT_CHOSEN, /* or being chosen */
    ATTEMPT_SENT,
    ATTEMPT_ANSWERING, /* a byte of the answer was told of */
    ATTEMPT_WHOLE,
    ATTEMPT_FAILED,
    ATTEMPT_BROKEN,
    ATTEMPT_CANCELLED
};

struct attempt {
    struct request *request;
    void (*tell)(struct attempt *a, enum outcome o); /* the attempt and its request may be gone then */
    enum attempt_state state;
    bool prefills;    /* its answer is for another worker: the first of two legs (legs.h) */
    bool decodes;     /* it goes on from a prompt that another worker has computed: the second */
    bool prefilled;   /* a prefill leg whose answer is whole, and good */
    bool retries_500; /* a status of 500 is FAILED too */
    bool once;        /* no byte of it may reach the worker twice: what it names is used up by one request */
    bool holds;       /* its answer is kept from the client still: it is FAILED, not BROKEN, when it breaks off (rendezvous.h) */
    bool aborted;     /* the engine was told that it is over: abort.h */
    bool unsent;      /* it has failed before the worker could see a byte of it */
    unsigned number;  /* of the request's attempts; told in x-request-id where there are two legs */

    /* The choice */
    struct partition *partition;
    enum kvr_router_mode mode;
    struct worker *worker; /* a reference; NULL: not booked */
    struct kvr_router_result result;
    struct decision_table *table; /* NULL: not chosen yet, or no memory for it */
    enum kvr_view_knowledge view; /* of the rank, when it was chosen */
    const char *reason;
    const char *label; /* its model, among the worker's counters: workers/counts/labels.h */
    bool names_rank;   /* the worker is told the rank, as it counts them */
    uint32_t named_rank;

    /* The booking: account.c */
    char booking[32]; /* its id; "": none */
    bool prefill_marked;
    uint64_t generation_blocks;
    struct evidence_check *evidence;
    uint64_t *served; /* hashes of the prompt's blocks, for a partial view; NULL: not kept */

    /* The exchange */
    struct kvr_body *body;      /* what is sent in the place of the request's; NULL: that */
    struct kvr_http_call *call; /* NULL: over, or not the router's own */
    bool carried;               /* a carrier's, and not over */
    bool foreign;               /* the answer is not its worker's, or that is not known: nobody is blamed or praised for it */
    uint64_t view_tick;         /* serve.view_tick when it was sent */
    uint64_t sent_ns;
    int status;     /* of the answer; 0: none yet */
    int64_t length; /* of the answer; negative: not known */
    struct kvr_buf head;
    bool is_sse, paused;
    struct kvr_buf held; /* bytes of it while it holds */
    const char *bytes;   /* the piece of a BYTES; borrowed */
    size_t bytes_n;

    /* What is seen of the answer as it passes: answer.c */
    uint64_t last_byte_ms, relayed; /* relayed: bytes of the answer */
    struct kvr_sse sse;
    struct kvr_buf answer;   /* of one that is no stream; of a decode leg's stream the opening that is held back */
    struct kvr_sse *opening; /* of a decode leg: looked at before anything is told of it; NULL: nothing of it yet */
    bool opened;             /* that is over */
    bool merges;             /* what it says of cached tokens is put right on its way */
    struct kvr_usage_merge merge;
    struct kvr_buf ended; /* what the client gets of a prefill leg after which nothing is left to generate */
    struct kvr_usage usage;
    uint64_t first_ns, itl_last_ns, generated; /* of the first token, of the last; how many events came between */
    double ttft_ms, other_ms;                  /* other: decision.other_ms */
    uint64_t itl_max_ns;                       /* the longest time between two of them */

    /* For its span and the access log: telemetry.h */
    uint64_t span_id, over_ns, connect_ns; /* 0: none; not yet; on a connection that was there */
};

struct attempt *attempt_new(struct request *r, struct partition *partition); /* NULL: out of memory */
void attempt_free(struct attempt *a);                                        /* NULL is fine; its call and its booking must be over */

/* Holds the worker that the router has chosen. Returns: false: it was removed in this very moment. */
bool attempt_take_worker(struct attempt *a);
/* What that worker is sent: the body with the rank, where it reads that there. The caller gives it back; NULL: there is none, no memory, or
 * the budget for bodies is used up. */
struct kvr_body *attempt_body(const struct attempt *a);
/* A call to its worker, with the headers of the request, which has its connection, and the body for that worker. NULL: no memory. */
struct kvr_http_call *attempt_call(const struct attempt *a, const struct kvr_http_call_handler *with, void *ctx);
/* Returns: WAITS, from then on outcomes are told; or REFUSED. */
enum outcome attempt_send(struct attempt *a, void (*tell)(struct attempt *a, enum outcome o));
/* It has failed before it was sent, or before a byte of its answer went out: its worker is one of those that were tried. Returns: FAILED.
 */
enum outcome attempt_fail(struct attempt *a, int status, const char *text);
/* When the first byte of its answer has to be there, of one that is sent, or waited for from now on. */
uint64_t attempt_first_byte_until(const struct attempt *a);
/* The time for the first byte, or --total-timeout (`total`), is up. Returns: REFUSED. */
enum outcome attempt_on_time(struct attempt *a, bool total);
void attempt_cancel(struct attempt *a);
/* What a carrier tells of the answer (carrier.h), in this order; the last ends it. `foreign`: it is not known to be its worker's. Each may
 * end the request, and the attempt with it. */
void attempt_hear_head(struct attempt *a, int status, const struct kvr_headers *headers, int64_t length, bool foreign);
void attempt_hear_body(struct attempt *a, const char *data, size_t len);
void attempt_hear_end(struct attempt *a, bool whole);
/* It has failed, or was answered with an error: counted, where it is one of two legs. */
void attempt_count_error(const struct attempt *a);
/* Its answer is whole although the worker has not ended it: what is still to come is read for a moment and dropped. */
void attempt_let_go(struct attempt *a);
/* The client is slow: nothing more is read of the answer until it is resumed. */
void attempt_pause(struct attempt *a);
void attempt_resume(struct attempt *a);

#endif
