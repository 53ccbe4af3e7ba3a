/* SPDX-License-Identifier: Apache-2.0 */
/* What was predicted against what was delivered, what choices were worth: quality.c. Any thread, but where it says the main loop. */
#ifndef KVR_SERVE_QUALITY_H
#define KVR_SERVE_QUALITY_H

#include <kvroute/router.h>

#include "app/serve/data/state/decisions.h"
#include "base/lock.h"

struct data_plane;
struct partition;
struct kvr_prom_page;

/* How predictions fare. */
struct quality {
    struct kvr_lock lock; /* a leaf */
    double divergence;    /* moving mean of choices_error / prompt */
    uint64_t answers, last_log_ms, unlogged;
    bool diverged;
};

struct quality_now {
    double divergence;
    bool diverged;
};
struct quality_now quality_now(struct data_plane *data);

void quality_decided(struct data_plane *data, const struct kvr_router_result *r);
/* Cached tokens of an answer: `predicted` by the view, `pending` on requests ahead of it. */
struct delivery {
    const char *id;
    struct kvr_worker worker;
    uint64_t predicted, pending, actual, prompt;
    uint32_t block_size;
};
void quality_delivered(struct data_plane *data, const struct delivery *d);
/* The first token of a request, or its answer, has come: what its prompt's place was worth. */
void quality_answered(struct data_plane *data, const struct kvr_router_result *r, double temperature);
/* A time to first token: teaches the model, and is compared with what it says of the other candidates. Returns: ms to the first token of
 * the best of these; negative: it is not compared. */
double quality_first_token(struct data_plane *data, struct partition *partition, const struct kvr_router_result *r,
                           const struct decision_table *t, double ms);
void quality_tick(struct data_plane *data);                             /* main loop, once a second: says what could be better */
void quality_write(struct data_plane *data, struct kvr_buf *b);         /* main loop: an object of the last minute */
void quality_metrics(struct data_plane *data, struct kvr_prom_page *b); /* main loop */

#endif
