/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <math.h>
#include <kvroute/ttft_model.h>

/* Tokens are counted in thousands, so that the three regressors are of one size and the matrix stays well-conditioned. */
enum { FEATURES = 4 };
static const double FORGET = 0.995, TOKENS_UNIT = 1000, PRIOR_MS_PER_UNIT = 50, VARIANCE_MAX = 1e6;

void kvr_ttft_init(struct kvr_ttft_model *m)
{
    *m = (struct kvr_ttft_model){.theta = {1, PRIOR_MS_PER_UNIT, PRIOR_MS_PER_UNIT, 0}};
    for (int i = 0; i < FEATURES; i++) m->p[i][i] = 100;
    m->base_ms = m->theta[0];
    m->token_ms = m->theta[1] / TOKENS_UNIT;
    m->ahead_ms = m->theta[2] / TOKENS_UNIT;
}

double kvr_ttft_predict(const struct kvr_ttft_model *m, double own, double ahead, double requests)
{
    return m->base_ms + m->token_ms * own + m->ahead_ms * ahead + m->request_ms * requests;
}

/* One step of recursive least squares for regressors x, with the weight of the observation. */
static void step(struct kvr_ttft_model *m, const double x[FEATURES], double error, double weight)
{
    double px[FEATURES], denominator = FORGET / weight;
    for (int i = 0; i < FEATURES; i++) {
        px[i] = 0;
        for (int k = 0; k < FEATURES; k++) px[i] += m->p[i][k] * x[k];
        denominator += x[i] * px[i];
    }
    for (int i = 0; i < FEATURES; i++) m->theta[i] += px[i] / denominator * error;
    for (int i = 0; i < FEATURES; i++)
        for (int k = 0; k < FEATURES; k++) m->p[i][k] = (m->p[i][k] - px[i] * px[k] / denominator) / FORGET;
    for (int i = 0; i < FEATURES; i++) /* without excitation forgetting would let the variance run away */
        if (!(m->p[i][i] < VARIANCE_MAX)) {
            double down = sqrt(VARIANCE_MAX / m->p[i][i]);
            for (int k = 0; k < FEATURES; k++) m->p[i][k] *= down, m->p[k][i] *= down;
        }
}

void kvr_ttft_observe(struct kvr_ttft_model *m, double own, double ahead, double requests, double ms)
{
    if (!(own >= 0 && own < 1e12 && ahead >= 0 && ahead < 1e12 && requests >= 0 && requests < 1e9 && ms >= 0 && ms < 1e9)) return;
    double x[FEATURES] = {1, own / TOKENS_UNIT, ahead / TOKENS_UNIT, requests}, expected = 0;
    for (int i = 0; i < FEATURES; i++) expected += m->theta[i] * x[i];
    double error = ms - expected, wide = 3 * m->error_ms;
    bool warm = m->observations >= KVR_TTFT_WARM;
    double weight = warm && fabs(error) > wide ? KVR_MAX(wide, 1e-3) / fabs(error) : 1;
    step(m, x, error, weight);
    double share = warm ? 0.02 : 1.0 / (double)(m->observations + 1);
    m->error_ms += share * (KVR_MIN(fabs(error), warm ? 2 * wide + 1 : 1e9) - m->error_ms);
    m->observations++;
    m->base_ms = KVR_MAX(m->theta[0], 0.0);
    m->token_ms = KVR_MAX(m->theta[1], 0.0) / TOKENS_UNIT;
    m->ahead_ms = KVR_MAX(m->theta[2], 0.0) / TOKENS_UNIT;
    m->request_ms = KVR_MAX(m->theta[3], 0.0);
}
