/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time to first token, learnt from what was observed: one line for the fleet, and a factor for each worker.
 *
 *     ms = factor of the worker * (base + token * own + ahead * ahead tokens + request * requests)
 *
 * `own` are the request's prompt tokens that were not cached, `ahead` the prompt tokens that waited or were being computed
 * before it, `requests` those that were generating (not those in prefill: their tokens are counted already). Four parameters, each at least
 * 0, and token at least 0.0002 (five million tokens a second): a token is never free, or nothing would speak for what is cached.
 *
 * base, token and request are fitted to calm observations, those with nothing ahead: where prompts queue, own and waiting tokens
 * come together, and one line for all gives the price of a token to whichever varied more. Where calm ones are rare (a fleet that is
 * always behind) those with a little ahead count as calm too, more and more, half of what was ahead taken for their own.
 * `ahead` is fitted to what the others waited longer than that line says; it is never above `token` (what is ahead is computed in part),
 * and held to half of it while little was seen.
 *
 * The line is fitted by least squares over about the last `1 / (1 - 0.995)` = 200 observations, solved anew with each under
 * the constraint that no parameter is negative, and held by a weak ridge to a prior (0.05 ms a token): where requests are all
 * alike many lines fit, and without it the fit would wander among them. An observation far from the prediction is pulled in
 * (Huber: beyond three times the mean absolute error its weight falls as 1 / distance), so that a stall does not bend it.
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

#define KVR_TTFT_WARM 20u

struct kvr_ttft_model {
    double base_ms, token_ms, ahead_ms, request_ms; /* what kvr_ttft_predict uses; >= 0, token_ms > 0 */
    double s[3][3], t[3];                           /* decayed sums of x x' and x y over calm observations; tokens in thousands */
    double ahead_xx, ahead_xy;                      /* the same of the others: waiting tokens, and the ms that the line does not explain */
    double calm;                                    /* so many tokens ahead for each own one are calm still */
    double error_ms;                                /* moving mean absolute error of calm ones */
    uint64_t observations;
};

KVR_API void kvr_ttft_init(struct kvr_ttft_model *model);

/* Takes one observation. Values that are not finite or negative are ignored. */
KVR_API void kvr_ttft_observe(struct kvr_ttft_model *model, double own, double ahead, double requests, double ms);

/* Predicted milliseconds. */
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

/* What reading a token from a lower tier takes, as a share of computing it. Each share begins where the documented weight of its tier puts
 * it (1 - weight), and follows what calm requests that read from the tier took beyond the rest of their line: a mean over about the last
 * 200 of them, each as heavy as the square of what it read, held to its beginning as by four that read 1,000 tokens. One observation says 0
 * to
 * 2. A share of 1 or more makes the tier worth nothing: the choice is then one that does not know of it. */
struct kvr_load_prices {
    double share[KVR_TIER_COUNT]; /* device: 0 */
    double begins[KVR_TIER_COUNT], xx[KVR_TIER_COUNT], xy[KVR_TIER_COUNT];
    uint64_t observations[KVR_TIER_COUNT];
};

/* Weights of 0 to 1 (struct kvr_cost_config); the external tier has the disk's. */
KVR_API void kvr_load_prices_init(struct kvr_load_prices *prices, double host_weight, double disk_weight);

/* Takes one observation: tokens that were read from each tier, and the milliseconds that the request took beyond its line without them.
 * token_ms: of computing one. Values that are not finite are ignored. */
KVR_API void kvr_load_prices_observe(struct kvr_load_prices *prices, const double tokens[KVR_TIER_COUNT], double ms, double token_ms);

#ifdef __cplusplus
}
#endif
#endif
