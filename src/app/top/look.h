/* SPDX-License-Identifier: Apache-2.0 */
/* What a router says of itself at one time: GET /status, and what waits of GET /metrics. Pure functions. */
#ifndef KVR_TOP_LOOK_H
#define KVR_TOP_LOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvr_json_parser;

struct top_worker {
    uint64_t id, running, prefill_tokens, waiting;
    bool has_waiting;   /* the engine tells of its queue */
    double cache;       /* share of its blocks that are known to be cached; below 0: not known */
    char endpoint[256]; /* without http:// */
    char state[16], view[16];
    char why[160]; /* what is wrong; "": nothing */
};

struct top_look {
    char version[32], mode[32], advice[200];
    uint64_t uptime_ms, requests, errors, retries, running;
    double waiting; /* in the router; below 0: not told */
    /* of the last requests; below 0: none of them tells */
    size_t decisions;
    double predicted, delivered; /* shares of their prompts */
    double ttft_p50_ms, ttft_p90_ms;
    struct top_worker *workers;
    size_t n;
};

/* Fills a zeroed *out. false: it is no status of a router, or there is no memory. */
bool look_read(struct kvr_json_parser *p, const char *status, size_t len, struct top_look *out);
/* And what waits, of the text of /metrics. */
void look_read_metrics(const char *text, size_t len, struct top_look *out);
void look_free(struct top_look *l);

#endif
