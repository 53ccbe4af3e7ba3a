/* SPDX-License-Identifier: Apache-2.0 */
/* Each ablation changes the one parameter that switches its part off; sim/without.h. */
#include "sim/without.h"

#include <string.h>

#include "base/base.h"

struct without {
    enum sim_part part;
    uint32_t block_size;
    uint64_t isl;
    size_t cap;
    struct kvr_cost_config cost;
    struct kvr_candidate *candidates;
    struct kvr_cost *costs;
};

struct without *without_create(enum sim_part part, uint32_t block_size, uint32_t workers)
{
    struct without *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    *w = (struct without){.part = part, .block_size = block_size, .cap = workers};
    kvr_cost_config_init(&w->cost);
    w->candidates = calloc(workers, sizeof *w->candidates);
    w->costs = calloc(workers, sizeof *w->costs);
    if (w->candidates && w->costs) return w;
    without_destroy(w);
    return NULL;
}

void without_destroy(struct without *w)
{
    if (!w) return;
    free(w->candidates);
    free(w->costs);
    free(w);
}

void without_prompt(struct without *w, uint64_t isl)
{
    w->isl = KVR_MAX(isl, (uint64_t)1);
}

static void forget(enum sim_part part, struct kvr_candidate *c)
{
    switch (part) {
    case SIM_PENDING: c->pending_blocks = 0; break;
    case SIM_COPIES: c->copy_blocks = 0; break;
    case SIM_EVICTION: c->pressure = 0; break;
    case SIM_FACTORS: c->factor = 1; break;
    default: break;
    }
}

static double left_out(enum sim_part part, const struct kvr_delay *d)
{
    switch (part) {
    case SIM_COMPUTING: return d->computing;
    case SIM_GENERATION: return d->generation;
    case SIM_PASS: return d->pass;
    default: return 0;
    }
}

size_t without_select(void *ctx, const struct kvr_candidate *candidates, const struct kvr_cost *, size_t n)
{
    struct without *w = ctx;
    uint64_t rng = 1;
    KVR_ASSERT(n > 0 && n <= w->cap);
    memcpy(w->candidates, candidates, n * sizeof *candidates);
    for (size_t i = 0; i < n; i++) forget(w->part, &w->candidates[i]);
    kvr_cost_of(&w->cost, w->block_size, w->isl, w->candidates, n, w->costs);
    for (size_t i = 0; i < n; i++) {
        struct kvr_delay d = kvr_delay_of(&w->cost, w->block_size, w->isl, w->candidates, n, i);
        w->costs[i].cost -= left_out(w->part, &d);
    }
    if (w->part == SIM_TURNS) return kvr_pick(w->costs, n, 0, &rng);
    return kvr_pick_in_turn(w->candidates, w->costs, n, KVR_TURN_TOLERANCE);
}
