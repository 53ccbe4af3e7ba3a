/* SPDX-License-Identifier: Apache-2.0 */
/*
 * traffic.c  one traffic, of any kind             config.c  kinds, parameters, texts of both
 * shapes.c   requests of each kind                draw.c    random draws, tokens of a text
 * rows.c     rows of a trace, read or made up     mixed.c   several kinds beside each other
 */
#ifndef KVR_TRAFFIC_INTERNAL_H
#define KVR_TRAFFIC_INTERNAL_H

#include "traffic/traffic.h"
#include "wire/trace.h"

struct traffic_rows;

enum { TRAFFIC_PARTS = 4 };

struct traffic {
    struct traffic_config cfg;
    struct kvr_rng rng;
    double now_s; /* of the last opening */
    uint64_t opened, promised;
    uint64_t in_burst; /* how many of a burst have been given */
    struct traffic_rows *rows;
    struct traffic *parts[TRAFFIC_PARTS]; /* mixed */
    struct traffic_request heads[TRAFFIC_PARTS];
    bool has_head[TRAFFIC_PARTS];
};

/* ---- draws ---- */

double traffic_exponential(struct kvr_rng *r, double mean);
double traffic_gauss(struct kvr_rng *r);
/* Uniform in mean * (1 +- spread), rounded, at least 1. */
uint64_t traffic_around(struct kvr_rng *r, double mean, double spread);
/* Tokens [from, from + n) of text number `text`. */
void traffic_text(const struct traffic *t, uint64_t text, uint64_t from, size_t n, uint32_t *out);

/* Token ids of a row that is a text, where the configuration makes some. Returns: 0, or -1 with the reason. */
int traffic_text_ids(const struct traffic_config *c, const struct kvr_trace_row *row, uint32_t **tokens, size_t *n, char *why, size_t cap);

/* ---- kinds ---- */

int traffic_shape_next(struct traffic *t, struct traffic_request *out);
int traffic_shape_follow(struct traffic *t, const struct traffic_request *done, const uint32_t *answer, size_t answer_n, uint64_t now_ns,
                         struct traffic_request *out);

int traffic_mixed_create(struct traffic *t, char *err, size_t cap);
int traffic_mixed_next(struct traffic *t, struct traffic_request *out);

/* Rows in order of time, those of one moment spread over the time until the next (traces have coarse clocks). */
int traffic_rows_create(const struct traffic_config *c, struct traffic_rows **out, char *err, size_t cap);
void traffic_rows_destroy(struct traffic_rows *r);
/* *at_s: seconds since the first row, as the trace counts. Owns: the caller, kvr_trace_row_free. Returns: 1, 0, -KVR_ENOMEM. */
int traffic_rows_next(struct traffic_rows *r, struct kvr_trace_row *out, double *at_s);
/* A row that was given is left out after all. */
void traffic_rows_skip(struct traffic_rows *r, const char *why);
uint64_t traffic_rows_skipped(const struct traffic_rows *r, const char **why);

#endif
