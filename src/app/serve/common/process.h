/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every room of the process is given: options, the main loop and what belongs to it, names. rooms.c begins it and makes the rooms;
 * serve.c opens the rest (the loop, keys of sockets, NATS) before it starts them, workers/engines/health.c the client. It outlives them
 * all.
 *
 * Threads: the main loop's, but for options, names and numbers, which do not change, and what is atomic.
 */
#ifndef KVR_SERVE_PROCESS_H
#define KVR_SERVE_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "app/serve/common/options.h"
#include "net/http/ending.h"
#include "net/ingest/event_plane.h"

struct kvr_curve;
struct kvr_http_client;
struct kvr_json_parser;
struct kvr_nats;

enum { TICK_MS = 100 }; /* of what the main loop looks after */

struct process {
    const struct serve_options *o;
    uv_loop_t main_loop;
    struct kvr_json_parser *json;   /* the main loop's */
    struct kvr_http_client *client; /* the main loop's; NULL: on `kvroute select` */
    struct kvr_curve *curve;        /* keys of sockets; NULL: none */
    struct kvr_nats *nats;          /* NULL: not used */
    char scope[KVR_SCOPE_MAX];      /* of subjects there */
    bool succeeds;                  /* another process serves yet, in whose place this one is to come; before threads run */
    uint64_t started_ms;
    uint64_t salt;            /* makes request ids differ between processes */
    _Atomic uint64_t next_id; /* of requests, any thread */
    _Atomic int phase;        /* enum kvr_ending_phase */
};

/* Any thread. */
static inline bool process_is_ending(const struct process *p)
{
    return atomic_load_explicit(&p->phase, memory_order_relaxed) != KVR_SERVING;
}

#endif
