/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <float.h>
#include <math.h>
#include <kvroute/select.h>

void kvr_cost_config_init(struct kvr_cost_config *c)
{
    *c = (struct kvr_cost_config){
        .overlap_credit = 1, .prefill_load_scale = 1, .host_weight = 0.75, .disk_weight = 0.25, .track_prefill_tokens = true};
}

int kvr_cost_config_check(const struct kvr_cost_config *c, const char **field)
{
    const struct {
        const char *name;
        double value, max;
    } rows[] = {
        {"overlap_credit", c->overlap_credit, DBL_MAX},
        {"credit_decay", c->credit_decay, DBL_MAX},
        {"prefill_load_scale", c->prefill_load_scale, DBL_MAX},
        {"host_weight", c->host_weight, 1},
        {"disk_weight", c->disk_weight, 1},
        {"request_weight", c->request_weight, DBL_MAX},
        {"temperature", c->temperature, DBL_MAX},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        if (!(rows[i].value >= 0 && rows[i].value <= rows[i].max)) {
            *field = rows[i].name;
            return -KVR_EINVAL;
        }
    return 0;
}

static uint64_t least_prefill(const struct kvr_candidate *c, size_t n)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < n; i++) least = KVR_MIN(least, c[i].active_prefill_tokens);
    return least;
}

static double credit_factor(const struct kvr_cost_config *cfg, const struct kvr_candidate *c, uint64_t least, double block,
                            double request_blocks)
{
    if (!cfg->track_prefill_tokens || cfg->credit_decay <= 0) return 1;
    double excess = (double)(c->active_prefill_tokens - least) / block / request_blocks;
    return 1 / (1 + cfg->credit_decay * excess);
}

void kvr_cost_linear(const struct kvr_cost_config *cfg, uint32_t block_size, uint64_t isl, const struct kvr_candidate *candidates, size_t n,
                     struct kvr_cost *costs)
{
    KVR_ASSERT(block_size > 0 && isl > 0);
    double block = block_size, request_blocks = (double)((isl - 1) / block_size + 1);
    uint64_t least = cfg->credit_decay > 0 && cfg->track_prefill_tokens ? least_prefill(candidates, n) : 0;
    for (size_t i = 0; i < n; i++) {
        const struct kvr_candidate *c = &candidates[i];
        double effective = c->device_blocks + cfg->host_weight * c->host_blocks + cfg->disk_weight * c->disk_blocks;
        double cached = KVR_MAX(round(effective * block), 0.0);
        double uncached = KVR_MAX((double)isl - cached, 0.0);
        double raw = cfg->track_prefill_tokens ? ((double)c->active_prefill_tokens + uncached + cached) / block : 0;
        double credit = cfg->overlap_credit * credit_factor(cfg, c, least, block, request_blocks) * c->device_blocks +
                        cfg->host_weight * c->host_blocks + cfg->disk_weight * c->disk_blocks;
        costs[i].effective_blocks = effective;
        costs[i].cached_tokens = (uint64_t)cached;
        costs[i].cost =
            cfg->prefill_load_scale * KVR_MAX(raw - credit, 0.0) + (double)c->decode_blocks + cfg->request_weight * c->active_requests;
    }
}

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

static size_t pick_softmax(const struct kvr_cost *costs, size_t n, double temperature, struct kvr_rng *rng)
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
    for (size_t i = 0; i < n; i++) sum += exp(-(costs[i].cost / unit - lo) / ((hi - lo) * temperature));
    double u = kvr_rng_unit(rng) * sum, cumulative = 0;
    for (size_t i = 0; i < n; i++) {
        cumulative += exp(-(costs[i].cost / unit - lo) / ((hi - lo) * temperature));
        if (u <= cumulative) return i;
    }
    return n - 1;
}

size_t kvr_pick(const struct kvr_cost *costs, size_t n, double temperature, uint64_t *rng_state)
{
    KVR_ASSERT(n > 0);
    struct kvr_rng rng = {*rng_state};
    size_t at = temperature > 0 ? pick_softmax(costs, n, temperature, &rng) : pick_min(costs, n, &rng);
    *rng_state = rng.state;
    return at;
}
