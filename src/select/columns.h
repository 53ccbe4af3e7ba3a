/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The costs of all ranks of a fleet, and the choice among them, from arrays of one field each: what kvr_cost_of, kvr_pick_in_turn and
 * kvr_pick_calmest say of the same candidates, bit for bit, without writing them down.
 *
 * Arrays are by rank. Who chooses among some of the ranks names their places, in the order of the candidates; what the others have in the
 * arrays does not matter.
 */
#ifndef KVR_SELECT_COLUMNS_H
#define KVR_SELECT_COLUMNS_H

#include <kvroute/select.h>

#include "base/base.h"

/* The fields of struct kvr_candidate; NULL: 0 of every rank. */
struct kvr__columns {
    const uint32_t *device, *pending, *requests, *prefills;
    const uint64_t *prefill_tokens, *decode_blocks, *turns;
    const double *pressure;
    const double *factor;          /* delay cost only, as `copies` */
    const double *copies, *shared; /* may be NULL, as `worth` */
    const double *worth;           /* kvr__lower_worth */
};

/* Does the linear cost's credit decay with what waits there? */
static inline bool kvr__credit_decays(const struct kvr_cost_config *cfg)
{
    return cfg->credit_decay > 0 && cfg->track_prefill_tokens;
}

/* What a candidate's lower tiers count for, in blocks; its effective blocks are these and the device's. */
double kvr__lower_worth(const struct kvr_cost_config *config, const struct kvr_candidate *c);

/* C of a candidate, of its effective blocks; at least 0, and floor() would be a call for each. */
static inline uint64_t kvr__cached_tokens(double effective_blocks, double block_size)
{
    return (uint64_t)(int64_t)(effective_blocks * block_size + 0.5);
}

/* What the candidates at[n] have in common. */
struct kvr__crowd {
    double requests; /* mean */
    uint64_t least_prefill;
};

/* Into costs[from..to). */
void kvr__costs(const struct kvr_cost_config *config, const struct kvr_delay_model *model, uint32_t block_size, uint64_t isl,
                const struct kvr__crowd *crowd, const struct kvr__columns *c, size_t from, size_t to, double *costs);
/* Times the factors of preferred taints. */
void kvr__costs_lean(const uint32_t *at, size_t n, const double *weights, double *costs);
/* A candidate's terms, beside a crowd. */
struct kvr_delay kvr__delay(const struct kvr_cost_config *config, uint32_t block_size, uint64_t isl, const struct kvr__crowd *crowd,
                            const struct kvr_candidate *c);

/* Return: a place in at[n], n > 0. */
size_t kvr__pick_in_turn(const struct kvr__columns *c, const double *costs, const uint32_t *at, size_t n, double tolerance);
size_t kvr__pick_calmest(const struct kvr__columns *c, const double *costs, const uint32_t *at, size_t n, double tolerance);

#endif
