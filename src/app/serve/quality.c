/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decision quality: best available overlap, chosen overlap (their difference is the regret), delivered overlap. The alarm:
 * a moving mean of |predicted - delivered| / prompt above a tenth says that the views and the engines have parted ways.
 */
#include "app/serve/state.h"

#include <math.h>

enum { ANSWERS_MIN = 50, LOG_EVERY_MS = 10000 };
static const double SHARE = 0.02, ALARM = 0.10, CALM = 0.05;

void quality_decided(struct serve *s, const struct kvr_router_result *r)
{
    struct metrics *m = &s->metrics;
    double required = (double)KVR_MAX(r->required_blocks, (uint64_t)1);
    histogram_add(&m->best_overlap, r->best_blocks / required);
    histogram_add(&m->regret, r->best_blocks - r->effective_blocks);
    if (r->waited_ns) histogram_add(&m->queue_wait, (double)r->waited_ns / 1e9);
}

void quality_delivered(struct serve *s, const char *id, struct kvr_worker w, uint64_t predicted, uint64_t actual, uint64_t prompt,
                       uint32_t block_size)
{
    struct quality *q = &s->quality;
    double missing = (double)predicted - (double)actual, share = fabs(missing) / (double)prompt;
    bool surprising = missing > 0 && actual * 2 < predicted && predicted >= block_size, log = false;
    uint64_t now = now_ms(), skipped = 0;
    histogram_add(&s->metrics.shortfall, fabs(missing) / block_size);
    pthread_mutex_lock(&s->lock);
    q->answers++;
    q->divergence += KVR_MAX(SHARE, 1.0 / (double)q->answers) * (share - q->divergence);
    bool before = q->diverged;
    if (q->answers >= ANSWERS_MIN && q->divergence > ALARM) q->diverged = true;
    else if (q->divergence < CALM) q->diverged = false;
    bool turned = before != q->diverged, diverged = q->diverged;
    double divergence = q->divergence;
    if (surprising && (q->last_log_ms == 0 || now - q->last_log_ms >= LOG_EVERY_MS)) {
        log = true;
        skipped = q->unlogged;
        q->unlogged = 0;
        q->last_log_ms = now;
    } else if (surprising) {
        q->unlogged++;
    }
    pthread_mutex_unlock(&s->lock);
    if (log)
        kvr_log("kvroute: request %s: %llu cached tokens predicted on worker %llu rank %u, %llu delivered (%llu like it before)", id,
                (unsigned long long)predicted, (unsigned long long)w.worker_id, w.dp_rank, (unsigned long long)actual,
                (unsigned long long)skipped);
    if (turned)
        kvr_log("kvroute: predicted and delivered cached tokens %s: %.1f %% of the prompt apart",
                diverged ? "have parted ways" : "agree again", 100 * divergence);
}
