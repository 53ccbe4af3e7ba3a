/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a candidate and the choice among candidates. Pure functions.
 *
 * Delay cost, in milliseconds: the delay that choosing worker w for request r is expected to add, to r and to everybody else.
 *
 *     J(w) = f * (first + computing + generation + pass)
 *     first      = b + c * u + W * a * P + q * G                      the request's own time to first token
 *     computing  = c * B * m * (1 + L * N) + 2 * c * u * e          what computing it, and what that evicts, costs others
 *     generation = L * o * g * (A + (m + o / B) * N)                its generation among A blocks; that of others among its own
 *     pass       = S * s * b * G                                    a pass with prompts holds up those that generate
 *
 *     u  prompt tokens w lacks, I - B * max(credit, pending)        I  prompt tokens          B  block size
 *     m  blocks w lacks, less those of which one more copy is wanted (`copy_blocks`), as far as there is
 *        room for copies: (1 - e) of them
 *     P  prompt tokens there before their first token               G  requests there that generate
 *     A  blocks in use there, with the request's own                N  0.9 * mean requests of a candidate + 0.1 * G
 *     e  blocks w evicts for each that it stores, 0..1
 *     o  tokens it will generate                                    g  ms per generated token and block in use
 *     b, c, a, q  line of the time to first token (kvroute/ttft_model.h)
 *     s  1 when no prompt is in work at w, 0.5 for one, 0 for more: a pass is shared
 *     f  the worker's factor      L = 0.4: a ms after the first token, or of somebody else, against one before the own first token
 *     S = 0.05    W = 1.7: who waits holds up those behind, and what is predicted of a queue is less certain than its mean
 *
 * By Little's law N requests are there to be delayed by each ms of work; the 1 is the next one to come. What is
 * evicted for a block is computed again by others, as far as it is reused.
 *
 * Linear cost, in KV blocks (after NVIDIA Dynamo's default selector):
 *
 *     R = ceil(I / B)            C  cached tokens = round(E * B), E = device + host_weight * host + disk_weight * (disk + external)
 *     P as above                 D  active blocks there plus the new blocks of this request        N  active requests there
 *
 *     raw    = tracking ? (P + max(I - C, 0) + C) / B : 0
 *     excess = max(P - min P over all candidates, 0) / B / R
 *     credit = overlap_credit / (1 + credit_decay * excess) * device
 *              + host_weight * host + disk_weight * (disk + external) + shared_multiplier * shared
 *     prefill = prefill_load_scale * max(raw - credit, 0)
 *     cost   = prefill + D + request_weight * N
 *
 *     decode role, prefill not tracked, overlap_credit > 0:  cost = max(D - credit, 0) + request_weight * N
 *
 * The credit, without the decay, is that of the delay cost too, with 1 - the tier's share (kvroute/ttft_model.h) in place of the weights;
 * its u and m are multiplied by prefill_load_scale. In the decode role the prompt comes computed: u and m count 0.1 times with an overlap
 * credit, for what is transferred, and not at all without.
 *
 * Taints. With preferred taints every cost is multiplied by exp(-tanh(sum of the weights the candidate has)): between
 * 0.368 and 2.718, exactly 1 without a match. Costs are clamped at 0 before, or the preference would turn around.
 *
 * Threads: any.
 */
#ifndef KVROUTE_SELECT_H
#define KVROUTE_SELECT_H

#include <kvroute/generation_model.h>
#include <kvroute/ttft_model.h>
#include <kvroute/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kvr_cost_kind { KVR_COST_DELAY, KVR_COST_LINEAR };

struct kvr_cost_config {
    enum kvr_cost_kind kind;   /* default delay */
    double overlap_credit;     /* finite, >= 0; default 1 */
    double credit_decay;       /* linear cost; finite, >= 0; default 0 */
    double prefill_load_scale; /* >= 0; default 1 */
    double host_weight;        /* 0..1; default 0.75 */
    double disk_weight;        /* 0..1; default 0.25 */
    double shared_multiplier;  /* 0..1; default 0 */
    double request_weight;     /* linear cost; finite, >= 0; default 0 */
    double temperature;        /* >= 0; default 0 */
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
    KVR_OVERRIDE_TRACK_PREFILL_TOKENS = 32,
    KVR_OVERRIDE_DECODE_ROLE = 64
};

struct kvr_override {
    unsigned set;
    double overlap_credit, prefill_load_scale, temperature, shared_multiplier;
    bool assume_kv_reuse, track_prefill_tokens, decode_role;
};

/* Applies what concerns the cost (not assume_kv_reuse). Returns: as kvr_cost_config_check of the result. */
KVR_API int kvr_override_apply(const struct kvr_override *override, struct kvr_cost_config *config, const char **field);

/* Makes it that of a decode leg, which receives the prompt computed: no prefill tokens, no reuse (the transfer brings a copy of its own),
 * and no credit for what is cached there unless keeps_overlap. What else it changes stays. */
KVR_API void kvr_override_decode_leg(struct kvr_override *override, bool keeps_overlap);
/* One that changes nothing else; static. */
KVR_API const struct kvr_override *kvr_decode_leg(bool keeps_overlap);

/* What is the same for all candidates of a request. */
struct kvr_delay_model {
    struct kvr_ttft_model ttft;
    struct kvr_generation_model generation;
    double output_tokens; /* o, where the request says it; negative: the generation model's mean */
};

struct kvr_candidate {
    struct kvr_worker worker;
    double device_blocks;   /* overlap, in blocks */
    double host_blocks;     /* extension past the device overlap */
    double disk_blocks;     /* extension past the host overlap */
    double external_blocks; /* extension past the disk overlap */
    double shared_blocks;   /* hits of a shared pool past the device overlap */
    double pending_blocks;  /* leading blocks that requests booked there use or compute: cached when this one has its turn */
    double copy_blocks;     /* of those it lacks: how many have fewer holders than their use asks for */
    double taint_weight;    /* sum of the weights of preferred taints it has */
    uint64_t active_prefill_tokens;
    uint64_t decode_blocks; /* A, D */
    uint32_t active_requests, active_prefills;
    const struct kvr_delay_model *model; /* this and those below: delay cost only; never NULL there */
    double pressure;                     /* blocks its cache evicts for each that it stores, 0..1 */
    double factor;                       /* of this worker */
    uint64_t turn;                       /* when it was chosen last, in decisions; 0: never */
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

/* The terms of one candidate's delay cost, in ms; their sum is its cost before taints. */
struct kvr_delay {
    double first, computing, generation, pass;
};

/* Of candidates[at]; the others are there for what they have in common. */
KVR_API struct kvr_delay kvr_delay_of(const struct kvr_cost_config *config, uint32_t block_size, uint64_t isl,
                                      const struct kvr_candidate *candidates, size_t n, size_t at);
/* Of candidates[at[m]], into out[m]. */
KVR_API void kvr_delays_of(const struct kvr_cost_config *config, uint32_t block_size, uint64_t isl, const struct kvr_candidate *candidates,
                           size_t n, const size_t *at, size_t m, struct kvr_delay *out);

/* Picks one of n >= 1 costs. Temperature 0: the smallest; exactly equal ones are equally likely. Otherwise
 * softmax over costs normalised to 0..1, so the worst candidate weighs exp(-1 / temperature).
 * `rng` is the state of the seeded generator and is advanced; equal states and equal orders give equal picks. */
KVR_API size_t kvr_pick(struct kvr_cost *costs, size_t n, double temperature, uint64_t *rng);

/* What the router takes as the tolerance: models are not better than that. */
#define KVR_TURN_TOLERANCE 0.1

/* The same for delay costs, which are estimates: of those within `tolerance` (a share of the smallest) that hold as much
 * of the prompt, the one that was chosen longest ago. So equal workers take turns, which queues less than chance does. */
KVR_API size_t kvr_pick_in_turn(const struct kvr_candidate *candidates, const struct kvr_cost *costs, size_t n, double tolerance);
/* The same for a decode leg, to which a prompt comes computed whatever is held: of those within `tolerance` the one with the fewest blocks
 * in use, then the fewest requests, then the one that was chosen longest ago. */
KVR_API size_t kvr_pick_calmest(const struct kvr_candidate *candidates, const struct kvr_cost *costs, size_t n, double tolerance);

#ifdef __cplusplus
}
#endif
#endif
