/* SPDX-License-Identifier: Apache-2.0 */
/* The costs of a candidate, term by term: `delay`, and the linear one of NVIDIA Dynamo's router (docs/how/choice.md). No state, no
 * allocation. */
#include "base/base.h"
#include "select/ttft_line.h"

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
        double value, min, max;
    } rows[] = {
        {"kind", (double)c->kind, 0, KVR_COST_LINEAR},
        {"overlap_credit", c->overlap_credit, 0, DBL_MAX},
        {"credit_decay", c->credit_decay, 0, DBL_MAX},
        {"prefill_load_scale", c->prefill_load_scale, 0, DBL_MAX},
        {"host_weight", c->host_weight, 0, 1},
        {"disk_weight", c->disk_weight, 0, 1},
        {"shared_multiplier", c->shared_multiplier, 0, 1},
        {"request_weight", c->request_weight, 0, DBL_MAX},
        {"temperature", c->temperature, 0, DBL_MAX},
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
    if (o->set & KVR_OVERRIDE_DECODE_ROLE) c->decode_role = o->decode_role;
    return kvr_cost_config_check(c, field);
}

#define DECODE_LEG (KVR_OVERRIDE_ASSUME_KV_REUSE | KVR_OVERRIDE_TRACK_PREFILL_TOKENS | KVR_OVERRIDE_DECODE_ROLE)

const struct kvr_override *kvr_decode_leg(bool keeps_overlap)
{
    static const struct kvr_override keeps = {.set = DECODE_LEG, .decode_role = true};
    static const struct kvr_override ignores = {.set = DECODE_LEG | KVR_OVERRIDE_OVERLAP_CREDIT, .decode_role = true};
    return keeps_overlap ? &keeps : &ignores;
}

void kvr_override_decode_leg(struct kvr_override *o, bool keeps_overlap)
{
    const struct kvr_override *leg = kvr_decode_leg(keeps_overlap);
    o->set |= leg->set;
    o->assume_kv_reuse = leg->assume_kv_reuse;
    o->track_prefill_tokens = leg->track_prefill_tokens;
    o->decode_role = leg->decode_role;
    if (!keeps_overlap) o->overlap_credit = leg->overlap_credit;
}

/* A token that is transferred, against one that is computed: it takes the link from others. */
static const double TRANSFERRED = 0.1;

/* What all candidates have in common. */
struct common {
    struct kvr_cost_config cfg; /* a copy: what is written meanwhile cannot be part of it, and it is not read again for each */
    double isl, block, per_block, per_request; /* per_x: 1 / x */
    uint64_t least_prefill;                    /* linear cost: 0 unless credits decay */
    double requests;                           /* delay cost: mean of a candidate's requests */
    double lack_scale;                         /* delay cost: of a token that is not cached there */
};

static struct common common_of(const struct kvr_cost_config *cfg, uint32_t block_size, uint64_t isl, const struct kvr_candidate *c,
                               size_t n)
{
    struct common m = {*cfg, (double)isl, block_size, 1.0 / block_size, 1.0 / (double)((isl - 1) / block_size + 1), 0, 0, 0};
    if (cfg->kind == KVR_COST_DELAY) {
        double sum = 0, share = !cfg->decode_role ? 1 : cfg->overlap_credit > 0 ? TRANSFERRED : 0;
        m.lack_scale = share * cfg->prefill_load_scale;
        for (size_t i = 0; i < n; i++) sum += c[i].active_requests;
        m.requests = sum / (double)n;
    } else if (cfg->credit_decay > 0 && cfg->track_prefill_tokens) {
        m.least_prefill = UINT64_MAX;
        for (size_t i = 0; i < n; i++) m.least_prefill = KVR_MIN(m.least_prefill, c[i].active_prefill_tokens);
    }
    return m;
}

/* Counts are far below 2^63, and signed ones convert without a branch. */
static inline double number(uint64_t n)
{
    return (double)(int64_t)n;
}

/* What the lower tiers' blocks are worth of computed ones: by the weights, or by what reading them was seen to take. */
static inline double lower_worth(const struct kvr_cost_config *cfg, const struct kvr_candidate *c)
{
    if (cfg->kind == KVR_COST_LINEAR) return cfg->host_weight * c->host_blocks + cfg->disk_weight * (c->disk_blocks + c->external_blocks);
    if (c->host_blocks + c->disk_blocks + c->external_blocks == 0) return 0;
    const double *share = c->model->ttft.share;
    return KVR_MAX(1 - share[KVR_TIER_HOST_PINNED], 0.0) * c->host_blocks + KVR_MAX(1 - share[KVR_TIER_DISK], 0.0) * c->disk_blocks +
           KVR_MAX(1 - share[KVR_TIER_EXTERNAL], 0.0) * c->external_blocks;
}

static inline double lower_credit(const struct kvr_cost_config *cfg, const struct kvr_candidate *c)
{
    return lower_worth(cfg, c) + cfg->shared_multiplier * c->shared_blocks;
}

/* ---- linear ------------------------------------------------------------------------------------------ */

static inline double block_credit(const struct common *m, const struct kvr_candidate *c)
{
    const struct kvr_cost_config *cfg = &m->cfg;
    double device = cfg->overlap_credit * c->device_blocks;
    if (cfg->credit_decay > 0 && cfg->track_prefill_tokens) {
        double excess = number(c->active_prefill_tokens - m->least_prefill) * m->per_block * m->per_request;
        device /= 1 + cfg->credit_decay * excess;
    }
    return device + lower_credit(cfg, c);
}

static inline double linear_cost(const struct common *m, const struct kvr_candidate *c, double cached)
{
    const struct kvr_cost_config *cfg = &m->cfg;
    double credit = block_credit(m, c), decode = number(c->decode_blocks), requests = cfg->request_weight * c->active_requests;
    if (cfg->decode_role && !cfg->track_prefill_tokens && cfg->overlap_credit > 0) return KVR_MAX(decode - credit, 0.0) + requests;
    double uncached = KVR_MAX(m->isl - cached, 0.0);
    double raw = cfg->track_prefill_tokens ? (number(c->active_prefill_tokens) + uncached + cached) * m->per_block : 0;
    double prefill = cfg->prefill_load_scale * KVR_MAX(raw - credit, 0.0);
    return prefill + decode + requests;
}

/* ---- delay: see the header --------------------------------------------------------------------------- */

/* A millisecond after the first token, or of somebody else, against one before the own first token. */
static const double LATER = 0.4;
/* The price of work is a property of the fleet: how much its mean of requests counts; the rest is the candidate's own. */
static const double MEAN_SHARE = 0.9;
/* What evicting a block costs those who would have used it, in times of computing it. */
static const double EVICTED = 2;
/* Who waits holds up those behind, and what is predicted of a queue is less certain than its mean. */
static const double WAIT = 1.7;
/* What the fixed time of a pass with prompts costs each request that generates there. */
static const double PASS_SHARE = 0.05;

__attribute__((always_inline)) static inline struct kvr_delay delay_of(const struct common *m, const struct kvr_candidate *c)
{
    const struct kvr_cost_config *cfg = &m->cfg;
    const struct kvr_ttft_model *line = &c->model->ttft;
    const struct kvr_generation_model *each = &c->model->generation;
    double held = KVR_MAX(cfg->overlap_credit * c->device_blocks + lower_credit(cfg, c), cfg->overlap_credit * c->pending_blocks);
    double lacks = m->lack_scale * KVR_MAX(m->isl - held * m->block, 0.0);
    double copies = (1 - c->pressure) * cfg->prefill_load_scale * c->copy_blocks * m->block, wanted = KVR_MAX(lacks - copies, 0.0);
    double generating = c->active_requests - c->active_prefills, others = MEAN_SHARE * m->requests + (1 - MEAN_SHARE) * generating;
    double output = c->model->output_tokens < 0 ? each->tokens : c->model->output_tokens;
    double alone = c->active_prefills == 0 ? 1 : c->active_prefills == 1 ? 0.5 : 0;
    return (struct kvr_delay){
        .first = c->factor * kvr__ttft_line(line, lacks, WAIT * number(c->active_prefill_tokens), generating),
        .computing = c->factor * line->token_ms * (wanted * (1 + LATER * others) + EVICTED * c->pressure * lacks),
        .generation = c->factor * LATER * output * each->block_ms * (number(c->decode_blocks) + (wanted + output) * m->per_block * others),
        .pass = c->factor * PASS_SHARE * alone * line->base_ms * generating,
    };
}

static inline double delay_cost(const struct common *m, const struct kvr_candidate *c)
{
    struct kvr_delay d = delay_of(m, c);
    return d.first + d.computing + d.generation + d.pass;
}

void kvr_delays_of(const struct kvr_cost_config *cfg, uint32_t block_size, uint64_t isl, const struct kvr_candidate *candidates, size_t n,
                   const size_t *at, size_t m, struct kvr_delay *out)
{
    KVR_ASSERT(cfg->kind == KVR_COST_DELAY && block_size > 0 && isl > 0);
    struct common all = common_of(cfg, block_size, isl, candidates, n);
    for (size_t i = 0; i < m; i++) {
        KVR_ASSERT(at[i] < n);
        out[i] = delay_of(&all, &candidates[at[i]]);
    }
}

struct kvr_delay kvr_delay_of(const struct kvr_cost_config *cfg, uint32_t block_size, uint64_t isl, const struct kvr_candidate *candidates,
                              size_t n, size_t at)
{
    struct kvr_delay d;
    kvr_delays_of(cfg, block_size, isl, candidates, n, &at, 1, &d);
    return d;
}

/* ---- both -------------------------------------------------------------------------------------------- */

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
    cfg = &m.cfg;
    for (size_t i = 0; i < n; i++) {
        const struct kvr_candidate *c = &candidates[i];
        double effective = c->device_blocks + lower_worth(cfg, c);
        int64_t cached = (int64_t)(effective * m.block + 0.5); /* at least 0; floor() would be a call for each */
        costs[i].effective_blocks = effective;
        costs[i].cached_tokens = (uint64_t)cached;
        costs[i].cost = cfg->kind == KVR_COST_DELAY ? delay_cost(&m, c) : linear_cost(&m, c, (double)cached);
        if (c->taint_weight != 0) costs[i].cost *= taint_factor(&memo, c->taint_weight);
    }
}
