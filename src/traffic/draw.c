/* SPDX-License-Identifier: Apache-2.0 */
/* Random draws of a seeded generator, and the tokens of a text, which are a function of seed, text and place. */
#include "traffic/internal.h"

#include <math.h>

double traffic_exponential(struct kvr_rng *r, double mean)
{
    return -log(1 - kvr_rng_unit(r)) * mean;
}

double traffic_gauss(struct kvr_rng *r)
{
    double radius = sqrt(-2 * log(1 - kvr_rng_unit(r)));
    return radius * cos(2 * 3.14159265358979323846 * kvr_rng_unit(r));
}

uint64_t traffic_around(struct kvr_rng *r, double mean, double spread)
{
    double v = mean * (1 + spread * (2 * kvr_rng_unit(r) - 1));
    return v > 1 ? (uint64_t)(v + 0.5) : 1;
}

void traffic_text(const struct traffic *t, uint64_t text, uint64_t from, size_t n, uint32_t *out)
{
    static const char letters[64] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .";
    uint64_t base = kvr_mix64(kvr_mix64(t->cfg.seed + 1) + text);
    for (size_t i = 0; i < n; i++) {
        uint64_t h = kvr_mix64(base + from + i);
        out[i] = t->cfg.vocab ? kvr_trace_token(h, t->cfg.vocab) : (uint32_t)letters[h >> 58];
    }
}
