/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times and counts of the requests of one model: model_counts.c.
 *
 * A request looks its model's up once, when its body has been read, and keeps the pointer: what is counted of it afterwards, token by
 * token, is atomics without a lock. Entries stay as long as the process; there are at most MODEL_COUNTS_MAX and "other".
 *
 * Threads: any.
 */
#ifndef KVR_SERVE_MODEL_COUNTS_H
#define KVR_SERVE_MODEL_COUNTS_H

#include <stdatomic.h>
#include <stdint.h>

#include "app/serve/common/limits.h"
#include "base/histogram.h"
#include "wire/finish.h"

enum { MODEL_COUNTS_MAX = 64 };

struct kvr_prom_page;
struct model_table;
struct workers;

/* How a request has ended. Whole answers by why the engine stopped (enum kvr_finish, first), then: */
#define REQUEST_ENDS(X) X(ERROR, "error_answered") X(BROKEN, "broken") X(FAILED, "failed") X(REFUSED, "refused") X(GONE, "client_gone")

enum request_end {
    END_WHOLE = KVR_FINISH_OTHER, /* the last of the reasons of whole answers */
#define REQUEST_END(name, text) END_##name,
    REQUEST_ENDS(REQUEST_END)
#undef REQUEST_END
        ENDS_N
};

enum tokens_made_by { MADE_BY_ROUTER, MADE_BY_ENGINE, MADE_BY_N };

/* A histogram of seconds by model is a row: field, name, first end, factor, buckets, help. */
#define MODEL_TIMES(X)                                                                                                                     \
    X(ttft, "time_to_first_token_seconds", 0.001, 2.1, 18, "From sending to the first stream event")                                       \
    X(first_token, "request_first_token_seconds", 0.001, 2, 20, "From a request's arrival to the first stream event")                      \
    X(duration, "request_duration_seconds", 0.001, 2, 20, "From a request's arrival to the end of a whole answer")                         \
    X(itl, "inter_token_latency_seconds", 0.001, 1.9, 13, "Between stream events")                                                         \
    X(per_token, "time_per_output_token_seconds", 0.001, 1.9, 13, "Of a stream: the mean time of a token after the first")                 \
    X(queue_wait, "queue_wait_seconds", 0.00001, 4, 13, "From a prompt's tokens being known to a worker being chosen")

struct model_counts {
    struct model_counts *next;
    char model[MODEL_MAX];
#define MODEL_TIME(field, name, first, factor, n, help) struct kvr_histogram field;
    MODEL_TIMES(MODEL_TIME)
#undef MODEL_TIME
    struct kvr_histogram tokenize[MADE_BY_N];
    _Atomic int64_t running, waiting;
    _Atomic uint64_t ends[ENDS_N];
    _Atomic uint64_t slo_kept, slo_missed; /* streams with an objective of their own for the first token */
    _Atomic uint64_t input, output;        /* tokens */
    _Atomic uint64_t queried, cached;      /* prompt tokens of answers that told of cached ones, and those */
};

struct model_table *model_counts_create(void); /* NULL: out of memory */
void model_counts_destroy(struct model_table *t);
/* Of a name that a client gave. One that no worker is known to serve, or beyond the limit, has those of "other"; never NULL. */
struct model_counts *model_counts_of(struct workers *ws, const char *model);
/* Of an enum request_end, as metrics call it. */
const char *request_end_name(int end);
void model_counts_metrics(struct workers *ws, struct kvr_prom_page *out);
/* Calls `fn` with each of them. */
void model_counts_each(struct workers *ws, void (*fn)(void *ctx, const struct model_counts *m), void *ctx);

#endif
