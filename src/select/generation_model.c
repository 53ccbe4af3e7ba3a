/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <kvroute/generation_model.h>

enum { BLOCKS_UNIT = 1000, SOON = 50 };
static const double KEEP = 0.995, RIDGE = 0.1;

void kvr_generation_init(struct kvr_generation_model *m)
{
    *m = (struct kvr_generation_model){0};
}

/* The ridge holds both parameters to 0 while there is little to learn from. */
static void fit(struct kvr_generation_model *m)
{
    double a = m->n + RIDGE, d = m->sxx + RIDGE, slope = (a * m->sxy - m->sx * m->sy) / (a * d - m->sx * m->sx);
    slope = KVR_MAX(slope, 0.0);
    m->block_ms = slope / BLOCKS_UNIT;
    m->base_ms = KVR_MAX((m->sy - slope * m->sx) / a, 0.0);
}

void kvr_generation_observe(struct kvr_generation_model *m, double blocks, double tokens, double ms)
{
    if (!(blocks >= 0 && blocks < 1e9 && tokens > 0 && tokens < 1e9 && ms >= 0 && ms < 1e9)) return;
    double x = blocks / BLOCKS_UNIT, y = ms / tokens;
    m->n = KEEP * m->n + 1;
    m->sx = KEEP * m->sx + x;
    m->sxx = KEEP * m->sxx + x * x;
    m->sy = KEEP * m->sy + y;
    m->sxy = KEEP * m->sxy + x * y;
    m->observations++;
    m->tokens += (m->observations < SOON ? 1.0 / (double)m->observations : 1.0 / SOON) * (tokens - m->tokens);
    fit(m);
}
