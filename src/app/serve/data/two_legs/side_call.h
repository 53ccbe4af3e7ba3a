/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request to a worker that no client waits for: what is done so that engines keep nothing (release.c, abort.c), and what is asked of
 * them. Each kind has at most SIDE_CALLS_MAX of a loop at once, each with a limit of time. While one is under way the loop does not end.
 *
 * The memory is a struct that begins with this one; it is freed when the call is over and `done` has returned.
 *
 * Threads: the loop's.
 */
#ifndef KVR_SERVE_SIDE_CALL_H
#define KVR_SERVE_SIDE_CALL_H

#include <stdbool.h>
#include <uv.h>

#include "base/buf.h"
#include "app/serve/data/state/loop.h"

enum { SIDE_CALLS_MAX = 256 };

struct side_call {
    struct side_call *next;
    struct loop *loop;
    enum side_kind kind;
    void (*done)(struct side_call *c, bool ok); /* once; ok: a whole answer of a status below 400, of no more than `keep` bytes */
    struct kvr_http_call *call;                 /* NULL: over */
    int status;                                 /* of the answer; 0: none */
    size_t keep;                                /* bytes of the answer; 0: it is not looked at */
    struct kvr_buf answer;
    uv_timer_t timer;
};

/* May another one begin? */
bool side_calls_have_room(const struct loop *l, enum side_kind kind);
/* What a call is started with, and the side call as its context. */
extern const struct kvr_http_call_handler side_call_handler;
/* `c`: with kind, done, keep, and a call that was started. */
void side_call_begin(struct side_call *c, struct loop *l, double timeout_s);
/* Ends all of them. */
void side_calls_stop(struct loop *l);

#endif
