/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a program that serves HTTP ends, so that nobody who uses it is refused:
 *
 *     serving --SIGTERM, SIGINT, kvr_ending_begin--> LAME --lame_duck_s--> DRAINING --all done, drain_s--> OVER: the loop stops
 *
 *   LAME      readiness says no, so that balancers turn elsewhere; connections are taken and served as before, each answer the last one
 *             of its connection
 *   DRAINING  the ports are free for whoever comes next; what is open is served to its end
 *
 * A second signal means now; one beside another begin is the first. SIGINT is of a person at a terminal: no balancer has to notice, and
 * there is no lame duck.
 *
 * Threads: everything on the thread of the loop.
 */
#ifndef KVR_NET_HTTP_ENDING_H
#define KVR_NET_HTTP_ENDING_H

#include "net/http/http.h"

enum kvr_ending_phase { KVR_SERVING, KVR_LAME, KVR_DRAINING, KVR_OVER };

struct kvr_ending_config {
    const char *program; /* "kvroute serve". Static */
    double lame_duck_s, drain_s;
    /* KVR_LAME (not when there is none), KVR_DRAINING. Each once, in this order. */
    void (*enter)(void *ctx, enum kvr_ending_phase phase);
    bool (*is_done)(void *ctx); /* asked while draining: is nothing owed to anybody? */
    void *ctx;
};

struct kvr_ending {
    uv_loop_t *loop;
    struct kvr_ending_config config;
    uv_signal_t term, intr;
    uv_timer_t timer;
    enum kvr_ending_phase phase;
    uint64_t deadline_ms; /* of the phase */
    bool signalled;
};

/* Watches for the signals. The handles are closed with those of the loop. */
void kvr_ending_init(struct kvr_ending *e, uv_loop_t *loop, const struct kvr_ending_config *config);
/* As the first signal does. An end that has begun goes on; without a lame duck it is draining from now on. */
void kvr_ending_begin(struct kvr_ending *e, const char *why, bool lame_duck);
/* Of the ports, after they are closed: says how many answers ended and how many were broken off since the end began. */
void kvr_ending_tell(const struct kvr_ending *e, struct kvr_http_shared *const *ports, size_t n);

/* For uv_close: frees what the handle's `data` points to. */
void kvr_free_closed(uv_handle_t *h);
/* Closes every handle that is open, runs the loop until they are closed, and closes it. */
void kvr_loop_end(uv_loop_t *loop);

#endif
