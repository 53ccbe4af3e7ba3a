/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <float.h>
#include <math.h>
#include <kvroute/select.h>

void kvr_cost_config_init(struct kvr_cost_config *c)
{
    *c = (struct kvr_cost_config){.overlap_credit = 1,
                                  .prefill_load_scale = 1,
                                  .host_weight = 0.75,
                                  .disk_weight = 0.25,
                                  .load_bound = 2,
                                  .recompute_share = 0.25,
                                  .track_prefill_tokens = true};
}

int kvr_cost_config_check(const struct kvr_cost_config *c, const char **field)
{
    const struct {
        const char *name;
        double value, min, max;
    } rows[] = {
        {"kind", (double)c->kind, 0, KVR_COST_TIME},
        {"overlap_credit", c->overlap_credit, 0, DBL_MAX},
        {"credit_decay", c->credit_decay, 0, DBL_MAX},
        {"prefill_load_scale", c->prefill_load_scale, 0, DBL_MAX},
        {"host_weight", c->host_weight, 0, 1},
        {"disk_weight", c->disk_weight, 0, 1},
        {"shared_multiplier", c->shared_multiplier, 0, 1},
        {"request_weight", c->request_weight, 0, DBL_MAX},
        {"temperature", c->temperature, 0, DBL_MAX},
        {"load_bound", c->load_bound, 1, DBL_MAX},
        {"recompute_share", c->recompute_share, 0, DBL_MAX},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        if (!(rows[i].value >= rows[i].min && rows[i].value <= rows[i].max)) {
            *field = rows[i].name;
            return -KVR_EINVAL;
        }
    return 0;
}

int kvr_override_apply(const struct kvr_override *o, struct kvr_cost_config *c, const char **field)
{
    if (o->set & KVR_OVERRIDE_OVERLAP_CREDIT) c->overlap_credit = o->overlap_credit;
    if (o->set & KVR_OVERRIDE_PREFILL_LOAD_SCALE) c->prefill_load_scale = o->prefill_load_scale;
    if (o->set & KVR_OVERRIDE_TEMPERATURE) c->temperature = o->temperature;
    if (o->set & KVR_OVERRIDE_SHARED_MULTIPLIER) c->shared_multiplier = o->shared_multiplier;
    if (o->set & KVR_OVERRIDE_TRACK_PREFILL_TOKENS) c->track_prefill_tokens = o->track_prefill_tokens;
    return kvr_cost_config_check(c, field);
}

/* What all candidates have in common. */
struct common {
    const struct kvr_cost_config *cfg;
    double isl, block, per_block, per_request; /* per_x: 1 / x */
    uint64_t least_prefill;                    /* 0 unless credits decay */
    double requests_allowed;                   /* time cost: bound on a candidate's requests, this one included */
    double recompute_ms;                       /* time cost: price of computing a token, the same for all */
};

static struct common common_of(const struct kvr_cost_config *cfg, uint32_t block_size, uint64_t isl, const struct kvr_candidate *c,
                               size_t n)
{
    struct common m = {cfg, (double)isl, block_size, 1.0 / block_size, 1.0 / (double)((isl - 1) / block_size + 1), 0, 0, 0};
    if (cfg->credit_decay > 0 && cfg->track_prefill_tokens) {
        m.least_prefill = UINT64_MAX;
        for (size_t i = 0; i < n; i++) m.least_prefill = KVR_MIN(m.least_prefill, c[i].active_prefill_tokens);
    }
    if (cfg->kind == KVR_COST_TIME) {
        double sum = 1;
        for (size_t i = 0; i < n; i++) sum += c[i].active_requests;
        m.recompute_ms = cfg->recompute_share * c[0].model->token_ms;
        m.requests_allowed = ceil(cfg->load_bound * sum / (double)n);
    }
    return m;
}

/* Counts are far below 2^63, and signed ones convert without a branch. */
static inline double number(uint64_t n)
{
    return (double)(int64_t)n;
}

static inline double block_credit(const struct common *m, const struct kvr_candidate *c)
{
    const struct kvr_cost_config *cfg = m->cfg;
    double device = cfg->overlap_credit * c->device_blocks;
    if (cfg->credit_decay > 0 && cfg->track_prefill_tokens) {
        double excess = number(c->active_prefill_tokens - m->least_prefill) * m->per_block * m->per_request;
        device /= 1 + cfg->credit_decay * excess;
    }
    return device + cfg->host_weight * c->host_blocks + cfg->disk_weight * c->disk_blocks + cfg->shared_multiplier * c->shared_blocks;
}

static inline double block_cost(const struct common *m, const struct kvr_candidate *c, double cached)
{
    const struct kvr_cost_config *cfg = m->cfg;
    double credit = block_credit(m, c), decode = number(c->decode_blocks), requests = cfg->request_weight * c->active_requests;
    if (cfg->decode_role && !cfg->track_prefill_tokens && cfg->overlap_credit > 0) return KVR_MAX(decode - credit, 0.0) + requests;
    double uncached = KVR_MAX(m->isl - cached, 0.0);
    double raw = cfg->track_prefill_tokens ? (number(c->active_prefill_tokens) + uncached + cached) * m->per_block : 0;
    double prefill = cfg->prefill_load_scale * KVR_MAX(raw - credit, 0.0);
    return (cfg->kind == KVR_COST_LMETRIC ? prefill * (decode + 1) : prefill + decode) + requests;
}

static double time_cost(const struct common *m, const struct kvr_candidate *c)
{
    bool within = (double)c->active_requests + 1 <= m->requests_allowed;
    double uncached = KVR_MAX(m->isl - (within ? block_credit(m, c) * m->block : 0), 0.0),
           decoding = c->active_requests - c->active_prefills;
    return c->model_factor * kvr_ttft_predict(c->model, uncached, number(c->active_prefill_tokens), decoding) + m->recompute_ms * uncached;
}

enum { MEMO = 8 };

struct memo {
    double weight[MEMO], factor[MEMO];
    unsigned next;
};

static double taint_factor(struct memo *m, double weight)
{
    for (unsigned i = 0; i < KVR_MIN(m->next, (unsigned)MEMO); i++)
        if (m->weight[i] == weight) return m->factor[i];
    unsigned at = m->next++ % MEMO;
    m->weight[at] = weight;
    return m->factor[at] = exp(-tanh(weight));
}

void kvr_cost_of(const struct kvr_cost_config *cfg, uint32_t block_size, uint64_t isl, const struct kvr_candidate *candidates, size_t n,
                 struct kvr_cost *costs)
{
    KVR_ASSERT(block_size > 0 && isl > 0);
    struct common m = common_of(cfg, block_size, isl, candidates, n);
    struct memo memo = {.next = 0}; /* there are few distinct sums of taints */
    for (size_t i = 0; i < n; i++) {
        const struct kvr_candidate *c = &candidates[i];
        double effective = c->device_blocks + cfg->host_weight * c->host_blocks + cfg->disk_weight * c->disk_blocks;
        double cached = KVR_MAX(floor(effective * m.block + 0.5), 0.0);
        costs[i].effective_blocks = effective;
        costs[i].cached_tokens = (uint64_t)cached;
        costs[i].cost = cfg->kind == KVR_COST_TIME ? time_cost(&m, c) : block_cost(&m, c, cached);
        if (c->taint_weight != 0) costs[i].cost *= taint_factor(&memo, c->taint_weight);
    }
}
