/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time to first token, learnt from what was observed: one line for the fleet, and a factor for each worker.
 *
 *     ms = factor of the worker * (base + token * (own + sum over tiers of share * read) + ahead * ahead tokens + request * requests)
 *
 * `own` are the request's prompt tokens that are computed, `read` those that are read from each lower tier, `ahead` the prompt tokens that
 * waited or were being computed before it, `requests` those that were generating (not those in prefill: their tokens are counted already).
 * Four parameters, each at least 0, and token at least 0.0002 (five million tokens a second): a token is never free, or nothing would speak
 * for what is cached; and a share for each lower tier, 0 to 2.
 *
 * base, token, request and the shares are fitted to calm observations, those with nothing ahead: where prompts queue, own and waiting
 * tokens come together, and one line for all gives the price of a token to whichever varied more. Where calm ones are rare (a fleet that is
 * always behind) those with a little ahead count as calm too, more and more, half of what was ahead taken for their own.
 * `ahead` is fitted to what the others waited longer than that line says; it is never above `token` (what is ahead is computed in part),
 * and held to half of it while little was seen.
 *
 * The line is fitted by least squares over about the last `1 / (1 - 0.995)` = 200 observations, solved anew with each under
 * the constraint that no parameter is negative, and held by a weak ridge to a prior (0.05 ms a token): where requests are all
 * alike many lines fit, and without it the fit would wander among them. An observation far from the prediction is pulled in
 * (Huber: beyond three times the mean absolute error its weight falls as 1 / distance), so that a stall does not bend it.
 *
 * A share is what reading a token takes, of what computing one takes. It is fitted with the others, or a fleet that mostly reads would take
 * the one for the other; it begins where the documented weight of its tier puts it (1 - weight), and is held to that as by four requests
 * that read 1,000 tokens each. While nothing was read from a tier the line is what it would be without it. A share of 1 or more makes the
 * tier worth nothing: the choice is then one that does not know of it.
 *
 * The factor is what was observed over what the line had said, of about the last 50 observations, drawn towards 1 as by 10
 * observations of 1, and by a tenth more, which workers that are alike differ by chance. One number a worker: lines of their own differ by
 * chance where requests are alike, and a worker whose line looks slow by chance is not chosen and cannot show that it is not. For the same
 * reason what is old counts less (kvr_ttft_factor_age): a worker that looks slow is tried again.
 *
 * Threads: the caller serialises.
 */
#ifndef KVROUTE_TTFT_MODEL_H
#define KVROUTE_TTFT_MODEL_H

#include <stdint.h>
#include <kvroute/api.h>
#include <kvroute/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVR_TTFT_WARM     20u
#define KVR_TTFT_FEATURES (2 + KVR_TIER_COUNT) /* 1, own, requests, read from each lower tier */

struct kvr_ttft_model {
    double base_ms, token_ms, ahead_ms, request_ms;       /* what kvr_ttft_predict uses; >= 0, token_ms > 0 */
    double share[KVR_TIER_COUNT], begins[KVR_TIER_COUNT]; /* of reading from a tier: as it is, and as it begins; device: 0 */
    double s[KVR_TTFT_FEATURES][KVR_TTFT_FEATURES],
        t[KVR_TTFT_FEATURES];  /* decayed sums of x x' and x y of calm ones; tokens in thousands */
    double ahead_xx, ahead_xy; /* the same of the others: waiting tokens, and the ms that the line does not explain */
    double calm;               /* so many tokens ahead for each own one are calm still */
    double error_ms;           /* moving mean absolute error of calm ones */
    uint64_t observations;
};

KVR_API void kvr_ttft_init(struct kvr_ttft_model *model);
/* Where the shares begin: weights of 0 to 1 (struct kvr_cost_config, whose defaults kvr_ttft_init takes); the external tier has the disk's.
 * Before the first observation. */
KVR_API void kvr_ttft_weigh_tiers(struct kvr_ttft_model *model, double host_weight, double disk_weight);

/* Takes one observation. Values that are not finite or negative are ignored. */
KVR_API void kvr_ttft_observe(struct kvr_ttft_model *model, double own, double ahead, double requests, double ms);
/* The same of a request that has read tokens from lower tiers. */
KVR_API void kvr_ttft_observe_reads(struct kvr_ttft_model *model, double own, const double read[KVR_TIER_COUNT], double ahead,
                                    double requests, double ms);

/* Predicted milliseconds. own: what is read is part of it, at its share. */
KVR_API double kvr_ttft_predict(const struct kvr_ttft_model *model, double own, double ahead, double requests);

struct kvr_ttft_factor {
    double value; /* 0.1..10 */
    double observed, expected, weight;
    uint64_t observations;
};

KVR_API void kvr_ttft_factor_init(struct kvr_ttft_factor *factor);
/* `predicted_ms`: what the line said. One observation counts at most five times that. */
KVR_API void kvr_ttft_factor_observe(struct kvr_ttft_factor *factor, double predicted_ms, double ms);
/* What is known is old: a quarter of it counts. */
KVR_API void kvr_ttft_factor_age(struct kvr_ttft_factor *factor);

#ifdef __cplusplus
}
#endif
#endif
