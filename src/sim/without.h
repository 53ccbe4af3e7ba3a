/* SPDX-License-Identifier: Apache-2.0 */
/* The default choice without one of its parts, to see what that part is worth. */
#ifndef KVR_SIM_WITHOUT_H
#define KVR_SIM_WITHOUT_H

#include <kvroute/router.h>

enum sim_part {
    SIM_WHOLE,
    SIM_COMPUTING,
    SIM_GENERATION,
    SIM_PASS,
    SIM_PENDING,
    SIM_COPIES,
    SIM_EVICTION,
    SIM_FACTORS,
    SIM_TURNS,
    SIM_TIERS
};

struct without;

/* Returns: NULL when memory is short. */
struct without *without_create(enum sim_part part, uint32_t block_size, uint32_t workers);
void without_destroy(struct without *w);
/* Before each choice: the prompt's length, in tokens. */
void without_prompt(struct without *w, uint64_t isl);
/* A kvr_select_fn; ctx is the struct without. */
size_t without_select(void *ctx, const struct kvr_candidate *candidates, const struct kvr_cost *costs, size_t n);

#endif
