/* SPDX-License-Identifier: Apache-2.0 */
/* The costs of a candidate, term by term: `delay`, and the linear one of NVIDIA Dynamo's router (docs/how/choice.md). No state, no
 * allocation. */
#include "select/columns.h"
#include "select/ttft_line.h"

#include <float.h>
#include <math.h>
#include <string.h>
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
    struct kvr__crowd crowd;
    double isl, block, per_block, per_request; /* per_x: 1 / x */
    double lack_scale;                         /* delay cost: of a token that is not cached there */
};

static struct common common_of(const struct kvr_cost_config *cfg, uint32_t block_size, uint64_t isl, struct kvr__crowd crowd)
{
    struct common m = {*cfg, crowd, (double)isl, block_size, 1.0 / block_size, 1.0 / (double)((isl - 1) / block_size + 1), 0};
    double share = !cfg->decode_role ? 1 : cfg->overlap_credit > 0 ? TRANSFERRED : 0;
    m.lack_scale = share * cfg->prefill_load_scale;
    return m;
}

static struct kvr__crowd crowd_of(const struct kvr_cost_config *cfg, const struct kvr_candidate *c, size_t n)
{
    struct kvr__crowd crowd = {0, 0};
    if (cfg->kind == KVR_COST_DELAY) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += c[i].active_requests;
        crowd.requests = sum / (double)n;
    } else if (kvr__credit_decays(cfg)) {
        crowd.least_prefill = UINT64_MAX;
        for (size_t i = 0; i < n; i++) crowd.least_prefill = KVR_MIN(crowd.least_prefill, c[i].active_prefill_tokens);
    }
    return crowd;
}

/* Counts are far below 2^63, and signed ones convert without a branch. */
static inline double number(uint64_t n)
{
    return (double)(int64_t)n;
}

/* What the costs take of a candidate. */
struct rank {
    double device, worth, shared, pending, copies; /* blocks; worth: of lower tiers, in computed ones */
    double ahead, excess;                          /* prefill tokens there, and past the least of all */
    double blocks, requests, generating, prefills, pressure, factor;
};

/* What the lower tiers' blocks are worth of computed ones: by the weights, or by what reading them was seen to take. */
static inline double lower_worth(const struct kvr_cost_config *cfg, const struct kvr_candidate *c)
{
    if (cfg->kind == KVR_COST_LINEAR) return cfg->host_weight * c->host_blocks + cfg->disk_weight * (c->disk_blocks + c->external_blocks);
    if (c->host_blocks + c->disk_blocks + c->external_blocks == 0) return 0;
    const double *share = c->model->ttft.share;
    return KVR_MAX(1 - share[KVR_TIER_HOST_PINNED], 0.0) * c->host_blocks + KVR_MAX(1 - share[KVR_TIER_DISK], 0.0) * c->disk_blocks +
           KVR_MAX(1 - share[KVR_TIER_EXTERNAL], 0.0) * c->external_blocks;
}

double kvr__lower_worth(const struct kvr_cost_config *cfg, const struct kvr_candidate *c)
{
    return lower_worth(cfg, c);
}

static inline struct rank rank_of(const struct common *m, const struct kvr_candidate *c)
{
    return (struct rank){.device = c->device_blocks,
                         .worth = lower_worth(&m->cfg, c),
                         .shared = c->shared_blocks,
                         .pending = c->pending_blocks,
                         .copies = c->copy_blocks,
                         .ahead = number(c->active_prefill_tokens),
                         .excess = number(c->active_prefill_tokens - m->crowd.least_prefill),
                         .blocks = number(c->decode_blocks),
                         .requests = c->active_requests,
                         .generating = c->active_requests - c->active_prefills,
                         .prefills = c->active_prefills,
                         .pressure = c->pressure,
                         .factor = c->factor};
}

#define INLINE __attribute__((always_inline)) static inline

INLINE double lower_credit(const struct kvr_cost_config *cfg, const struct rank *k)
{
    return k->worth + cfg->shared_multiplier * k->shared;
}

/* ---- linear ------------------------------------------------------------------------------------------ */

INLINE double block_credit(const struct common *m, const struct rank *k)
{
    const struct kvr_cost_config *cfg = &m->cfg;
    double device = cfg->overlap_credit * k->device;
    if (kvr__credit_decays(cfg)) device /= 1 + cfg->credit_decay * (k->excess * m->per_block * m->per_request);
    return device + lower_credit(cfg, k);
}

INLINE double linear_cost(const struct common *m, const struct rank *k)
{
    const struct kvr_cost_config *cfg = &m->cfg;
    double credit = block_credit(m, k), cached = number(kvr__cached_tokens(k->device + k->worth, m->block)),
           requests = cfg->request_weight * k->requests;
    if (cfg->decode_role && !cfg->track_prefill_tokens && cfg->overlap_credit > 0) return KVR_MAX(k->blocks - credit, 0.0) + requests;
    double uncached = KVR_MAX(m->isl - cached, 0.0);
    double raw = cfg->track_prefill_tokens ? (k->ahead + uncached + cached) * m->per_block : 0;
    double prefill = cfg->prefill_load_scale * KVR_MAX(raw - credit, 0.0);
    return prefill + k->blocks + requests;
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

INLINE struct kvr_delay delay_of(const struct common *m, const struct kvr_delay_model *model, const struct rank *k)
{
    const struct kvr_cost_config *cfg = &m->cfg;
    const struct kvr_ttft_model *line = &model->ttft;
    const struct kvr_generation_model *each = &model->generation;
    double held = KVR_MAX(cfg->overlap_credit * k->device + lower_credit(cfg, k), cfg->overlap_credit * k->pending);
    double lacks = m->lack_scale * KVR_MAX(m->isl - held * m->block, 0.0);
    double copies = (1 - k->pressure) * cfg->prefill_load_scale * k->copies * m->block, wanted = KVR_MAX(lacks - copies, 0.0);
    double others = MEAN_SHARE * m->crowd.requests + (1 - MEAN_SHARE) * k->generating;
    double output = model->output_tokens < 0 ? each->tokens : model->output_tokens;
    double alone = k->prefills == 0 ? 1 : k->prefills == 1 ? 0.5 : 0;
    return (struct kvr_delay){
        .first = k->factor * kvr__ttft_line(line, lacks, WAIT * k->ahead, k->generating),
        .computing = k->factor * line->token_ms * (wanted * (1 + LATER * others) + EVICTED * k->pressure * lacks),
        .generation = k->factor * LATER * output * each->block_ms * (k->blocks + (wanted + output) * m->per_block * others),
        .pass = k->factor * PASS_SHARE * alone * line->base_ms * k->generating,
    };
}

INLINE double delay_cost(const struct common *m, const struct kvr_delay_model *model, const struct rank *k)
{
    struct kvr_delay d = delay_of(m, model, k);
    return d.first + d.computing + d.generation + d.pass;
}

struct kvr_delay kvr__delay(const struct kvr_cost_config *cfg, uint32_t block_size, uint64_t isl, const struct kvr__crowd *crowd,
                            const struct kvr_candidate *c)
{
    struct common m = common_of(cfg, block_size, isl, *crowd);
    struct rank k = rank_of(&m, c);
    return delay_of(&m, c->model, &k);
}

void kvr_delays_of(const struct kvr_cost_config *cfg, uint32_t block_size, uint64_t isl, const struct kvr_candidate *candidates, size_t n,
                   const size_t *at, size_t m, struct kvr_delay *out)
{
    KVR_ASSERT(cfg->kind == KVR_COST_DELAY && block_size > 0 && isl > 0);
    struct kvr__crowd crowd = crowd_of(cfg, candidates, n);
    for (size_t i = 0; i < m; i++) {
        KVR_ASSERT(at[i] < n);
        out[i] = kvr__delay(cfg, block_size, isl, &crowd, &candidates[at[i]]);
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
    struct common m = common_of(cfg, block_size, isl, crowd_of(cfg, candidates, n));
    struct memo memo = {.next = 0}; /* there are few distinct sums of taints */
    for (size_t i = 0; i < n; i++) {
        const struct kvr_candidate *c = &candidates[i];
        struct rank k = rank_of(&m, c);
        costs[i].effective_blocks = k.device + k.worth;
        costs[i].cached_tokens = kvr__cached_tokens(costs[i].effective_blocks, m.block);
        costs[i].cost = m.cfg.kind == KVR_COST_DELAY ? delay_cost(&m, c->model, &k) : linear_cost(&m, &k);
        if (c->taint_weight != 0) costs[i].cost *= taint_factor(&memo, c->taint_weight);
    }
}

/* ---- columns ----------------------------------------------------------------------------------------- */

/* A run of ranks, as long as fits beside the rest in the nearest cache. Its 64-bit counts are made numbers first, and what is 0 of every
 * rank is zeroes here, so that what remains is the same arithmetic for each, without a branch: the compiler does it for several at once. */
enum { RUN = 256 };

struct run {
    double ahead[RUN], excess[RUN], blocks[RUN], none[RUN];
    const double *worth, *shared, *copies, *pressure, *factor;
    const uint32_t *device, *pending, *requests, *prefills;
};

INLINE struct rank rank_at(const struct run *r, size_t i)
{
    return (struct rank){.device = r->device[i],
                         .worth = r->worth[i],
                         .shared = r->shared[i],
                         .pending = r->pending[i],
                         .copies = r->copies[i],
                         .ahead = r->ahead[i],
                         .excess = r->excess[i],
                         .blocks = r->blocks[i],
                         .requests = r->requests[i],
                         .generating = r->requests[i] - r->prefills[i],
                         .prefills = r->prefills[i],
                         .pressure = r->pressure[i],
                         .factor = r->factor[i]};
}

/* The parameters are copied: what is written cannot be part of them. */
INLINE void delays_of_run(const struct common *common, const struct kvr_delay_model *of_all, const struct run *run, size_t n,
                          double *restrict costs)
{
    const struct common m = *common;
    const struct kvr_delay_model model = *of_all;
    for (size_t i = 0; i < n; i++) {
        struct rank k = rank_at(run, i);
        costs[i] = delay_cost(&m, &model, &k);
    }
}

static void delays_portable(const struct common *m, const struct kvr_delay_model *model, const struct run *run, size_t n, double *costs)
{
    delays_of_run(m, model, run, n, costs);
}

#if defined(__x86_64__) && defined(__GNUC__)
/* The same operations, four at a time: without the fused ones, which round differently. */
__attribute__((target("avx2"))) static void delays_avx2(const struct common *m, const struct kvr_delay_model *model, const struct run *run,
                                                        size_t n, double *costs)
{
    delays_of_run(m, model, run, n, costs);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
#define delays_avx2 delays_portable

static bool has_avx2(void)
{
    return false;
}
#endif

static void read_run(const struct kvr__columns *c, uint64_t least_prefill, size_t from, size_t n, struct run *r)
{
    for (size_t i = 0; i < n; i++) {
        r->ahead[i] = number(c->prefill_tokens[from + i]);
        r->excess[i] = number(c->prefill_tokens[from + i] - least_prefill);
        r->blocks[i] = number(c->decode_blocks[from + i]);
    }
    r->worth = c->worth ? c->worth + from : r->none;
    r->shared = c->shared ? c->shared + from : r->none;
    r->copies = c->copies ? c->copies + from : r->none;
    r->factor = c->factor ? c->factor + from : r->none;
    r->pressure = c->pressure + from;
    r->device = c->device + from;
    r->pending = c->pending + from;
    r->requests = c->requests + from;
    r->prefills = c->prefills + from;
}

void kvr__costs(const struct kvr_cost_config *cfg, const struct kvr_delay_model *model, uint32_t block_size, uint64_t isl,
                const struct kvr__crowd *crowd, const struct kvr__columns *c, size_t from, size_t to, double *costs)
{
    struct common m = common_of(cfg, block_size, isl, *crowd);
    struct run run;
    bool wide = has_avx2();
    memset(run.none, 0, KVR_MIN(to - from, (size_t)RUN) * sizeof *run.none);
    for (size_t n; from < to; from += n) {
        n = KVR_MIN(to - from, (size_t)RUN);
        read_run(c, crowd->least_prefill, from, n, &run);
        if (cfg->kind == KVR_COST_DELAY) {
            (wide ? delays_avx2 : delays_portable)(&m, model, &run, n, costs + from);
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            struct rank k = rank_at(&run, i);
            costs[from + i] = linear_cost(&m, &k);
        }
    }
}

void kvr__costs_lean(const uint32_t *at, size_t n, const double *weights, double *costs)
{
    struct memo memo = {.next = 0};
    for (size_t i = 0; i < n; i++)
        if (weights[at[i]] != 0) costs[at[i]] *= taint_factor(&memo, weights[at[i]]);
}
