/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a candidate and the choice among candidates. Pure functions.
 *
 * Linear cost, in KV blocks (after NVIDIA Dynamo's default selector):
 *
 *     I  prompt tokens          B  block size            R = ceil(I / B)
 *     C  cached tokens          P  active prefill tokens on the candidate
 *     D  active blocks there plus the new blocks of this request
 *     raw    = tracking ? (P + max(I - C, 0) + C) / B : 0
 *     excess = max(P - min P over all candidates, 0) / B / R
 *     credit = overlap_credit / (1 + credit_decay * excess) * device + host_weight * host + disk_weight * disk
 *     cost   = prefill_load_scale * max(raw - credit, 0) + D + request_weight * active_requests
 *
 * Room for taints, shared caches and the multiplicative cost is in struct kvr_candidate's place, not in the
 * formula yet.
 *
 * Threads: any.
 */
#ifndef KVROUTE_SELECT_H
#define KVROUTE_SELECT_H

#include <kvroute/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_cost_config {
    double overlap_credit;     /* finite, >= 0; default 1 */
    double credit_decay;       /* finite, >= 0; default 0 */
    double prefill_load_scale; /* >= 0; default 1 */
    double host_weight;        /* 0..1; default 0.75 */
    double disk_weight;        /* 0..1; default 0.25 */
    double request_weight;     /* finite, >= 0; default 0 */
    double temperature;        /* >= 0; default 0 */
    bool track_prefill_tokens; /* default true */
};

KVR_API void kvr_cost_config_init(struct kvr_cost_config *config);
/* Returns: 0, or -KVR_EINVAL with *field naming the first value out of range. */
KVR_API int kvr_cost_config_check(const struct kvr_cost_config *config, const char **field);

struct kvr_candidate {
    struct kvr_worker worker;
    double device_blocks; /* overlap, in blocks */
    double host_blocks;   /* extension past the device overlap */
    double disk_blocks;   /* extension past the host overlap, disk and external */
    uint64_t active_prefill_tokens;
    uint64_t decode_blocks; /* D */
    uint32_t active_requests;
};

struct kvr_cost {
    double cost;
    double effective_blocks; /* E = device + host_weight * host + disk_weight * disk */
    uint64_t cached_tokens;  /* C = round(E * B), at least 0 */
};

/* Costs of n candidates for a prompt of isl tokens (> 0), block_size > 0. costs[n] is written. */
KVR_API void kvr_cost_linear(const struct kvr_cost_config *config, uint32_t block_size, uint64_t isl,
                             const struct kvr_candidate *candidates, size_t n, struct kvr_cost *costs);

/* Picks one of n >= 1 costs. Temperature 0: the smallest; exactly equal ones are equally likely. Otherwise
 * softmax over costs normalised to 0..1, so the worst candidate weighs exp(-1 / temperature).
 * `rng` is the state of the seeded generator and is advanced; equal states give equal picks. */
KVR_API size_t kvr_pick(const struct kvr_cost *costs, size_t n, double temperature, uint64_t *rng);

#ifdef __cplusplus
}
#endif
#endif
