/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <math.h>
#include <kvroute/select.h>

/* Reservoir sampling: the k-th of equal minima replaces the choice with probability 1/k. */
static size_t pick_min(const struct kvr_cost *costs, size_t n, struct kvr_rng *rng)
{
    size_t best = 0;
    uint32_t ties = 1;
    for (size_t i = 1; i < n; i++) {
        if (costs[i].cost < costs[best].cost) {
            best = i;
            ties = 1;
        } else if (costs[i].cost == costs[best].cost && kvr_rng_below(rng, ++ties) == 0) {
            best = i;
        }
    }
    return best;
}

static size_t pick_softmax(struct kvr_cost *costs, size_t n, double temperature, struct kvr_rng *rng)
{
    double lo = costs[0].cost, hi = lo;
    for (size_t i = 1; i < n; i++) {
        lo = KVR_MIN(lo, costs[i].cost);
        hi = KVR_MAX(hi, costs[i].cost);
    }
    if (hi == lo) return kvr_rng_below(rng, (uint32_t)n);
    double unit = 1;
    if (isinf(hi - lo)) { /* extreme but finite costs: bring them into range first */
        unit = KVR_MAX(fabs(lo), fabs(hi));
        lo /= unit;
        hi /= unit;
    }
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += costs[i].weight = exp(-(costs[i].cost / unit - lo) / ((hi - lo) * temperature));
    double u = kvr_rng_unit(rng) * sum, cumulative = 0;
    for (size_t i = 0; i < n; i++) {
        cumulative += costs[i].weight;
        if (u <= cumulative) return i;
    }
    return n - 1;
}

size_t kvr_pick(struct kvr_cost *costs, size_t n, double temperature, uint64_t *rng_state)
{
    KVR_ASSERT(n > 0);
    struct kvr_rng rng = {*rng_state};
    size_t at = temperature > 0 ? pick_softmax(costs, n, temperature, &rng) : pick_min(costs, n, &rng);
    *rng_state = rng.state;
    return at;
}

static double held(const struct kvr_candidate *candidates, const struct kvr_cost *costs, size_t i)
{
    return KVR_MAX(costs[i].effective_blocks, candidates[i].pending_blocks);
}

static double most_of(const struct kvr_cost *costs, size_t n, double tolerance, size_t *least)
{
    *least = 0;
    for (size_t i = 1; i < n; i++)
        if (costs[i].cost < costs[*least].cost) *least = i;
    return costs[*least].cost * (1 + tolerance);
}

size_t kvr_pick_in_turn(const struct kvr_candidate *candidates, const struct kvr_cost *costs, size_t n, double tolerance)
{
    KVR_ASSERT(n > 0);
    size_t least;
    double most = most_of(costs, n, tolerance, &least), much = held(candidates, costs, least);
    size_t at = least;
    for (size_t i = 0; i < n; i++)
        if (costs[i].cost <= most && held(candidates, costs, i) >= much && candidates[i].turn < candidates[at].turn) at = i;
    return at;
}

/* Has the first one less to do, or as much, and was chosen longer ago? */
static bool is_calmer(const struct kvr_candidate *a, const struct kvr_candidate *b)
{
    if (a->decode_blocks != b->decode_blocks) return a->decode_blocks < b->decode_blocks;
    if (a->active_requests != b->active_requests) return a->active_requests < b->active_requests;
    return a->turn < b->turn;
}

size_t kvr_pick_calmest(const struct kvr_candidate *candidates, const struct kvr_cost *costs, size_t n, double tolerance)
{
    KVR_ASSERT(n > 0);
    size_t at;
    double most = most_of(costs, n, tolerance, &at);
    for (size_t i = 0; i < n; i++)
        if (costs[i].cost <= most && is_calmer(&candidates[i], &candidates[at])) at = i;
    return at;
}
