/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data loop: a thread with an event loop, its clients' connections, and its connections to workers.
 *
 * Threads: its own; others touch what is atomic, `ready` and `made` under mail_lock, the picker's mail too, and uv_async_send(&wake).
 */
#ifndef KVR_SERVE_LOOP_H
#define KVR_SERVE_LOOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <uv.h>

#include "base/lock.h"
#include "app/serve/common/limits.h"
#include "app/serve/workers/table/partition.h"
#include "net/http/http.h"
#include "net/http/jobs.h"
#include "net/replication/remote_index.h"
#include "wire/json.h"

struct bootstrap;
struct kvr_token_waiter;
struct picker;
struct request;
struct data_plane;
struct side_call;
struct token_check;

enum side_kind { SIDE_RELEASE, SIDE_ABORT, SIDE_QUERY, SIDE_KINDS }; /* data/two_legs/side_call.h */

struct loop {
    struct data_plane *data;
    size_t place;       /* among the loops */
    struct kvr_rng ids; /* of traces and spans */
    uv_loop_t uv;
    uv_async_t wake;
    pthread_t thread;
    struct kvr_http_server *server;
    struct picker *picker; /* a gateway's port; NULL: none */
    struct kvr_http_client *client;
    struct kvr_remote_index *remotes[REMOTES_MAX]; /* none: the index is here */
    size_t remotes_n;
    struct kvr_json_parser *json;
    struct kvr_buf line;  /* of the access log: room that is used again */
    struct kvr_jobs jobs; /* large bodies and prompts */
    struct ctx_list ctxs;
    struct request *parked; /* wait for a worker to exist; ordered by urgency */
    struct request *bound;  /* wait in the router's queue for some of the workers: others may come */
    uint64_t bound_seen;    /* the version of the worker table when they were looked at */
    struct side_call *side_calls;
    size_t side_calls_n[SIDE_KINDS];
    struct bootstrap *bootstraps; /* data/two_legs/bootstrap.h */
    size_t bootstraps_n;
    struct kvr_lock mail_lock;
    struct token_check *token_checks; /* of tokens made here, under way: local_tokens.c */
    size_t token_checks_n;
    struct kvr_token_waiter *made;              /* tokens that requests wait for, from the tokenizer's threads; under mail_lock */
    struct request *ready;                      /* their turn in the queue has come; under mail_lock */
    _Atomic size_t parked_n, active, in_flight; /* active: booked; in_flight: all that are not ended */
    _Atomic size_t bound_n;
    _Atomic size_t gated_n;    /* of those that are parked: wait until decode workers are not overloaded */
    _Atomic size_t owed_conns; /* connections on which something is still to be said; kept up to date while draining */
    _Atomic uint64_t answered; /* the last look-around that the loop has done (data_plane_answers) */
    _Atomic bool stop;
    bool draining, took_over;
};

#endif
