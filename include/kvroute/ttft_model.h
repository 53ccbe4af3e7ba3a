/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time to first token of one worker, learnt from what was observed.
 *
 *     ms = base + token * own + ahead * ahead tokens + request * requests
 *
 * `own` are the request's prompt tokens that were not cached, `ahead` the prompt tokens that waited or were being computed
 * before it, `requests` those that were running. Four parameters, each at least 0. Tokens ahead have a weight of their
 * own because part of them is computed already, how much nobody says.
 *
 * Fitted by recursive least squares with forgetting: about the last `1 / (1 - 0.995)` = 200 observations count. An
 * observation far from the prediction is pulled in (Huber: beyond three times the mean absolute error its weight falls
 * as 1 / distance), so that a stall or a cold start does not bend the line. Before `KVR_TTFT_WARM` observations the prior
 * counts: an idle model of 0.05 ms a token.
 *
 * Threads: the caller serialises.
 */
#ifndef KVROUTE_TTFT_MODEL_H
#define KVROUTE_TTFT_MODEL_H

#include <stdint.h>
#include <kvroute/api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVR_TTFT_WARM 20u

struct kvr_ttft_model {
    double base_ms, token_ms, ahead_ms, request_ms; /* what kvr_ttft_predict uses; >= 0 */
    double theta[4], p[4][4];                       /* state of the fit, in units of ms, 1000 tokens, request */
    double error_ms;                                /* moving mean absolute error */
    uint64_t observations;
};

KVR_API void kvr_ttft_init(struct kvr_ttft_model *model);

/* Takes one observation. Values that are not finite or negative are ignored. */
KVR_API void kvr_ttft_observe(struct kvr_ttft_model *model, double own, double ahead, double requests, double ms);

/* Predicted milliseconds. */
KVR_API double kvr_ttft_predict(const struct kvr_ttft_model *model, double own, double ahead, double requests);

#ifdef __cplusplus
}
#endif
#endif
