/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the data plane (data_plane.h), which the room's own files alone see: the loops, and what is kept of requests. A request
 * reaches it by data_of(). Threads: what a member's own header says; loops, loops_n and what is below the room do not change while loops
 * run.
 */
#ifndef KVR_SERVE_DATA_ROOM_H
#define KVR_SERVE_DATA_ROOM_H

#include "app/serve/common/process.h"
#include "app/serve/data/state/choices.h"
#include "app/serve/data/state/counters.h"
#include "app/serve/data/state/fallback_counts.h"
#include "app/serve/data/state/loop.h"
#include "app/serve/data/state/quality.h"
#include "net/grpc/grpc.h"
#include "net/http/addresses.h"

struct decisions;
struct disagg_states;
struct kvr_line_log;
struct kvr_otlp;
struct session_table;
struct token_cache;

struct data_plane {
    const struct serve_options *o;
    struct process *process;
    struct workers *workers;
    struct config *config;
    struct tokenizers *tokenizers;
    struct peers *peers;
    struct loop **loops;
    size_t loops_n;
    bool loops_run;         /* each on its thread */
    _Atomic bool go, deaf;  /* for the loops: take connections; take none any more */
    _Atomic size_t gone;    /* loops that take them */
    _Atomic uint64_t asked; /* for loop.answered */
    struct kvr_http_shared http;
    struct kvr_grpc_shared grpc; /* of the pickers */
    struct kvr_addresses addresses;
    struct kvr_addresses unfinished; /* bodies: half of --max-bodies-bytes for each key, or address, but one whole body */
    struct session_table *sessions, *responses;
    struct token_cache *tokens;
    struct disagg_states *disagg_states;

    /* What is kept of requests. */
    struct data_counters counters;
    struct fallback_counts fallback_counts;
    struct decisions *decisions;
    struct quality quality;
    struct choices_watch choices;    /* main loop's */
    struct kvr_line_log *access_log; /* NULL: none; a lane for each data loop */
    struct kvr_otlp *otlp;           /* NULL: no traces */
};

#endif
