/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of a replay: percentiles, ratios, spread over workers; table and JSON. */
#ifndef KVR_REPLAY_REPORT_H
#define KVR_REPLAY_REPORT_H

#include <stddef.h>
#include <stdint.h>

#include "wire/openai.h"

struct kvr_buf;
struct report;

struct outcome {
    const char *error; /* NULL: success */
    int status;
    uint64_t worker, tokens;
    const char *treatment;   /* as the router says (x-kvroute-disagg); "": it does not */
    uint64_t prefill_worker; /* that has computed the prompt for another one; has_prefill: there was one */
    bool has_prefill;
    double ttft_ms, itl_ms, e2e_ms;
    struct kvr_usage usage;
};

struct report *report_create(const char *label);
void report_destroy(struct report *r);
void report_add(struct report *r, const struct outcome *o);
void report_finish(struct report *r, double wall_s);
void report_progress(const struct report *r, double elapsed_s, char *out, size_t cap);
uint64_t report_failures(const struct report *r);
void report_print(struct report *const *reports, size_t n);
/* Returns: 0, or -1 with errno. */
int report_write_json(struct report *const *reports, size_t n, const char *path);
/* The buffer goes. Returns: likewise. */
int report_write(const char *path, struct kvr_buf *b);

#endif
