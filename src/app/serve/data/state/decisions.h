/* SPDX-License-Identifier: Apache-2.0 */
/* The last decisions, with what they were made of: decisions.c. Any thread. */
#ifndef KVR_SERVE_DECISIONS_H
#define KVR_SERVE_DECISIONS_H

#include <kvroute/router.h>

#include "app/serve/common/limits.h"
#include "base/buf.h"

struct decisions;

enum { DECISIONS = 10000, TABLE_ROWS = 8 };

/* Terms of the delay cost, in ms. */
struct delay_terms {
    float first, computing, generation, pass;
};

struct decision_row {
    struct kvr_worker worker;
    float device, host, disk, external, pending, copy, pressure;
    uint32_t requests, generating;
    struct delay_terms delay;
    uint64_t prefill_tokens, decode_blocks, own_tokens; /* own: prompt tokens that it would compute */
    double cost;
};

/* The cheapest candidates of a decision, cheapest first; `total` says how many there were. Memory may end with the last row that is used.
 */
struct decision_table {
    uint32_t n, total;
    bool has_delay; /* the cost has these terms */
    struct delay_terms chosen;
    struct decision_row rows[TABLE_ROWS];
};

struct decision {
    uint64_t at_ms; /* wall clock */
    char id[ID_MAX], model[48], asked_model[48], reason[32];
    bool fallback; /* `model` is a fallback */
    struct kvr_worker worker;
    uint64_t isl, cached_tokens, actual_cached;
    uint32_t overlap_blocks, pending_blocks, status;
    uint32_t held_blocks, tier_blocks[KVR_TIER_COUNT]; /* as in struct kvr_router_result */
    bool has_actual;
    double best_blocks, effective_blocks, cost, waited_ms, ttft_ms;
    double slo_ms;                      /* what the client would have: x-slo-ttft-ms; 0: it has not said */
    double other_ms;                    /* what the best other candidate would have taken to the first token; negative: not compared */
    const struct decision_table *table; /* NULL: none. What is kept has a copy */
};

/* Of a request of a fleet with prefill or decode workers. Texts are static; times are negative where there was none. */
struct decision_legs {
    bool present;
    const char *treatment, *protocol, *why, *staged; /* NULL: nothing to say; protocol: of two legs */
    bool has_eff, has_prefill, has_actual;
    uint64_t eff_isl; /* prompt tokens that the worker lacked which might have taken all of it */
    /* Of has_prefill: the last prefill leg */
    struct kvr_worker worker;
    uint64_t cached_tokens, actual_cached;
    uint32_t overlap_blocks, status, tries;
    double cost, waited_ms, ms;
    const struct decision_table *table; /* as above */
    /* To the decode worker, and there: to its first byte */
    double handoff_ms, kv_wait_ms;
};

struct decisions *decisions_create(void); /* NULL: out of memory */
void decisions_destroy(struct decisions *d);
/* legs: NULL: it is of no such fleet. */
void decisions_add(struct decisions *all, const struct decision *d, const struct decision_legs *legs);
void decisions_write(struct decisions *all, struct kvr_buf *out, size_t most);
/* The decision of one request id, with its table. false: not kept (any more). */
bool decisions_write_one(struct decisions *all, struct kvr_buf *out, const char *id, size_t len);
/* From the context that has decided. Owns: the caller (free). NULL: out of memory. */
struct decision_table *decision_table_take(const struct kvr_router_ctx *ctx, const struct kvr_router_result *result);
void decision_table_header(const struct decision_table *t, struct kvr_buf *out);

#endif
