/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a request is better served whole by one decode worker ("local") or by two legs: a prefill worker computes the prompt, the
 * decode worker receives it and answers. Pure functions of what two choices that book nothing have found: D, the decode pair
 * that would take the whole request, and P, the prefill pair that would take the prompt.
 *
 *     eff    prompt tokens that D lacks                 ratio  eff / max(prompt tokens, 1)
 *
 *     isl_bounding   local when eff < isl_tokens and ratio < isl_ratio: computing so little disturbs nobody
 *     prefill_load   local when P has more than prefill_load * max_num_batched_tokens prompt tokens before their first token, or when
 *                    its queue has refused the look; a load that is not known is calm
 *     isl_or_load    either of these
 *     least_delay    local when the delay that the whole request is expected to cause is below that of two legs: a token computed at D,
 *                    where others generate, counts up to 1 + stall_weight times (select/disagg.c). More suits answers that must flow
 *                    evenly, less those whose first token is what counts
 *
 * The first three are those of NVIDIA Dynamo, with its defaults; all comparisons are strict. The gate: with `decode_load` none of the
 * policies says local unless D's blocks in use, with the request's own, are known and at most decode_load * total_blocks. Before all
 * that: with `min_uncached` a request of which D lacks less is local, whatever the policy; it costs D no more than the decode leg
 * would, so the gate is not asked.
 *
 * Threads: any.
 */
#ifndef KVROUTE_DISAGG_H
#define KVROUTE_DISAGG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <kvroute/api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kvr_disagg_policy {
    KVR_DISAGG_OFF, /* two legs */
    KVR_DISAGG_ISL_BOUNDING,
    KVR_DISAGG_PREFILL_LOAD,
    KVR_DISAGG_ISL_OR_LOAD,
    KVR_DISAGG_LEAST_DELAY,
    KVR_DISAGG_POLICIES
};

struct kvr_disagg_rule {
    enum kvr_disagg_policy policy; /* default off */
    uint64_t isl_tokens;           /* default 2048 */
    double isl_ratio;              /* finite, >= 0; default 0.7 */
    double prefill_load;           /* of max_num_batched_tokens; negative: no load is too high; default -1 */
    double stall_weight;           /* least_delay: how many times a token costs others where all generate; finite, >= 0; default 4.5 */
    double decode_load;            /* of total_blocks; negative: no gate; default -1 */
    uint64_t min_uncached;         /* tokens; default 0: off */
};

struct kvr_disagg_facts {
    uint64_t isl; /* tokens of the prompt */
    /* D */
    uint64_t local_uncached;  /* eff */
    uint64_t local_ahead;     /* prompt tokens there before their first token, without this request's */
    uint32_t local_decoding;  /* requests there that generate */
    bool decode_blocks_known; /* of the two below */
    uint64_t decode_blocks;   /* in use there with this request's own */
    uint64_t total_blocks;    /* 0: not known */
    /* P */
    bool prefill_refused; /* its queue would not take the request; what follows is not looked at then */
    bool prefill_known;   /* prefill_ahead */
    uint64_t prefill_uncached;
    uint64_t prefill_ahead;
    uint64_t max_num_batched_tokens; /* 0: not known */
};

KVR_API void kvr_disagg_rule_init(struct kvr_disagg_rule *rule);
/* Returns: 0, or -KVR_EINVAL with *field naming the first value out of range: prefill_load where a policy needs it and has none. */
KVR_API int kvr_disagg_rule_check(const struct kvr_disagg_rule *rule, const char **field);

/* "off", "isl_bounding", "prefill_load", "isl_or_load", "least_delay"; NULL for a value outside the enum. */
KVR_API const char *kvr_disagg_policy_name(enum kvr_disagg_policy policy);
/* Returns: 0 and *out, or -KVR_EINVAL for an unknown name. */
KVR_API int kvr_disagg_policy_of(const char *name, size_t len, enum kvr_disagg_policy *out);

/* Returns: true for one worker, false for two legs; *why (may be NULL) is a static text for those who look at decisions. */
KVR_API bool kvr_disagg_is_local(const struct kvr_disagg_rule *rule, const struct kvr_disagg_facts *facts, const char **why);

#ifdef __cplusplus
}
#endif
#endif
