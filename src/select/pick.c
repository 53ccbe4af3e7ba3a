/* SPDX-License-Identifier: Apache-2.0 */
#include "select/columns.h"

#include <math.h>

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

/* ---- columns ----------------------------------------------------------------------------------------- */

/* The first place of the least cost. Four minima side by side do not wait for each other; their least is the same number, and where the
 * first cost is not a number, all four stay with it, as one would. */
static double least_of(const double *costs, const uint32_t *at, size_t n, size_t *least)
{
    enum { SIDES = 4 };
    double m[SIDES];
    size_t i = 0;
    for (size_t k = 0; k < SIDES; k++) m[k] = costs[at[0]];
    for (; i + SIDES <= n; i += SIDES)
        for (size_t k = 0; k < SIDES; k++) m[k] = costs[at[i + k]] < m[k] ? costs[at[i + k]] : m[k];
    for (; i < n; i++) m[0] = costs[at[i]] < m[0] ? costs[at[i]] : m[0];
    for (size_t k = 1; k < SIDES; k++) m[0] = m[k] < m[0] ? m[k] : m[0];
    for (i = 0; i < n && !(costs[at[i]] == m[0]);) i++;
    *least = i < n ? i : 0;
    return costs[at[*least]];
}

static double column_held(const struct kvr__columns *c, uint32_t rank)
{
    return KVR_MAX(c->device[rank] + (c->worth ? c->worth[rank] : 0), (double)c->pending[rank]);
}

size_t kvr__pick_in_turn(const struct kvr__columns *c, const double *costs, const uint32_t *at, size_t n, double tolerance)
{
    size_t best;
    double most = least_of(costs, at, n, &best) * (1 + tolerance), much = column_held(c, at[best]);
    for (size_t i = 0; i < n; i++)
        if (costs[at[i]] <= most && column_held(c, at[i]) >= much && c->turns[at[i]] < c->turns[at[best]]) best = i;
    return best;
}

static bool is_calmer_rank(const struct kvr__columns *c, uint32_t a, uint32_t b)
{
    if (c->decode_blocks[a] != c->decode_blocks[b]) return c->decode_blocks[a] < c->decode_blocks[b];
    if (c->requests[a] != c->requests[b]) return c->requests[a] < c->requests[b];
    return c->turns[a] < c->turns[b];
}

size_t kvr__pick_calmest(const struct kvr__columns *c, const double *costs, const uint32_t *at, size_t n, double tolerance)
{
    size_t best;
    double most = least_of(costs, at, n, &best) * (1 + tolerance);
    for (size_t i = 0; i < n; i++)
        if (costs[at[i]] <= most && is_calmer_rank(c, at[i], at[best])) best = i;
    return best;
}
