/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a candidate and the choice among candidates. Pure functions.
 *
 *     I  prompt tokens          B  block size            R = ceil(I / B)
 *     C  cached tokens = round(E * B), E = device + host_weight * host + disk_weight * disk
 *     P  active prefill tokens on the candidate          N  active requests there
 *     D  active blocks there plus the new blocks of this request
 *
 * Linear cost, in KV blocks (after NVIDIA Dynamo's default selector):
 *
 *     raw    = tracking ? (P + max(I - C, 0) + C) / B : 0
 *     excess = max(P - min P over all candidates, 0) / B / R
 *     credit = overlap_credit / (1 + credit_decay * excess) * device
 *              + host_weight * host + disk_weight * disk + shared_multiplier * shared
 *     prefill = prefill_load_scale * max(raw - credit, 0)
 *     cost   = prefill + D + request_weight * N
 *
 *     decode role, prefill not tracked, overlap_credit > 0:  cost = max(D - credit, 0) + request_weight * N
 *
 * Multiplicative cost (lmetric): cost = prefill * (D + 1) + request_weight * N.
 *
 * Time cost, in milliseconds: the predicted time to the first token, by the fleet's model and each worker's factor
 * (kvroute/ttft_model.h) of max(I - C, 0) tokens behind P others and the requests that generate, plus recompute_share of the time our own
 * uncached tokens take: computing what somebody else holds is not free, the next request pays for it.
 * Overlap is honoured only within a bounded load (Mirrokni et al., Consistent Hashing with Bounded Loads): a candidate
 * whose requests, with this one, would exceed `load_bound` times the mean is costed as if it held nothing.
 *
 * Taints. With preferred taints every cost is multiplied by exp(-tanh(sum of the weights the candidate has)): between
 * 0.368 and 2.718, exactly 1 without a match. Costs are clamped at 0 before, or the preference would turn around.
 *
 * Threads: any.
 */
#ifndef KVROUTE_SELECT_H
#define KVROUTE_SELECT_H

#include <kvroute/ttft_model.h>
#include <kvroute/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kvr_cost_kind { KVR_COST_LINEAR, KVR_COST_LMETRIC, KVR_COST_TIME };

struct kvr_cost_config {
    enum kvr_cost_kind kind;   /* default linear */
    double overlap_credit;     /* finite, >= 0; default 1 */
    double credit_decay;       /* finite, >= 0; default 0 */
    double prefill_load_scale; /* >= 0; default 1 */
    double host_weight;        /* 0..1; default 0.75 */
    double disk_weight;        /* 0..1; default 0.25 */
    double shared_multiplier;  /* 0..1; default 0 */
    double request_weight;     /* finite, >= 0; default 0 */
    double temperature;        /* >= 0; default 0 */
    double load_bound;         /* time cost: >= 1; default 2 */
    double recompute_share;    /* time cost: >= 0; default 0.25 */
    bool track_prefill_tokens; /* default true */
    bool decode_role;          /* the decode leg of disaggregated serving; default false */
};

KVR_API void kvr_cost_config_init(struct kvr_cost_config *config);
/* Returns: 0, or -KVR_EINVAL with *field naming the first value out of range. */
KVR_API int kvr_cost_config_check(const struct kvr_cost_config *config, const char **field);

/* What one request may change. Fields count when their bit is in `set`. */
enum kvr_override_bit {
    KVR_OVERRIDE_OVERLAP_CREDIT = 1,
    KVR_OVERRIDE_PREFILL_LOAD_SCALE = 2,
    KVR_OVERRIDE_TEMPERATURE = 4,
    KVR_OVERRIDE_SHARED_MULTIPLIER = 8,
    KVR_OVERRIDE_ASSUME_KV_REUSE = 16,
    KVR_OVERRIDE_TRACK_PREFILL_TOKENS = 32
};

struct kvr_override {
    unsigned set;
    double overlap_credit, prefill_load_scale, temperature, shared_multiplier;
    bool assume_kv_reuse, track_prefill_tokens;
};

/* Applies what concerns the cost (not assume_kv_reuse). Returns: as kvr_cost_config_check of the result. */
KVR_API int kvr_override_apply(const struct kvr_override *override, struct kvr_cost_config *config, const char **field);

struct kvr_candidate {
    struct kvr_worker worker;
    double device_blocks; /* overlap, in blocks */
    double host_blocks;   /* extension past the device overlap */
    double disk_blocks;   /* extension past the host overlap, disk and external */
    double shared_blocks; /* hits of a shared pool past the device overlap */
    double taint_weight;  /* sum of the weights of preferred taints it has */
    uint64_t active_prefill_tokens;
    uint64_t decode_blocks; /* D */
    uint32_t active_requests, active_prefills;
    const struct kvr_ttft_model *model; /* time cost only; never NULL there */
    double model_factor;                /* of this worker */
    uint64_t turn;                      /* when it was chosen last, in decisions; 0: never */
};

struct kvr_cost {
    double cost;
    double effective_blocks; /* E */
    double weight;           /* scratch of kvr_pick */
    uint64_t cached_tokens;  /* C, at least 0 */
};

/* Costs of n candidates for a prompt of isl tokens (> 0), block_size > 0. costs[n] is written. */
KVR_API void kvr_cost_of(const struct kvr_cost_config *config, uint32_t block_size, uint64_t isl, const struct kvr_candidate *candidates,
                         size_t n, struct kvr_cost *costs);

/* Picks one of n >= 1 costs. Temperature 0: the smallest; exactly equal ones are equally likely. Otherwise
 * softmax over costs normalised to 0..1, so the worst candidate weighs exp(-1 / temperature).
 * `rng` is the state of the seeded generator and is advanced; equal states and equal orders give equal picks. */
KVR_API size_t kvr_pick(struct kvr_cost *costs, size_t n, double temperature, uint64_t *rng);

/* The same for time costs, which are estimates: of those within `tolerance` (a share of the smallest) that hold as much
 * of the prompt, the one that was chosen longest ago. So equal workers take turns, which queues less than chance does. */
KVR_API size_t kvr_pick_in_turn(const struct kvr_candidate *candidates, const struct kvr_cost *costs, size_t n, double tolerance);

#ifdef __cplusplus
}
#endif
#endif
