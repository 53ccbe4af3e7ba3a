/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms: any thread adds, the scrape reads. */
#include "app/serve/state.h"

#include <math.h>

static void histogram_init(struct histogram *h, double first, double factor, int buckets)
{
    h->first = first;
    h->factor = factor;
    h->buckets = buckets;
}

void metrics_init(struct metrics *m)
{
    histogram_init(&m->ttft, 0.001, 2.1, 18);
    histogram_init(&m->itl, 0.001, 1.9, 13);
    histogram_init(&m->block_hashing, 0.001, 2, 15);
    histogram_init(&m->find_matches, 0.001, 2, 15);
    histogram_init(&m->seq_hashing, 0.001, 2, 15);
    histogram_init(&m->scheduling, 0.001, 2, 15);
    histogram_init(&m->total, 0.001, 2, 15);
    histogram_init(&m->hit_rate, 0.05, 0, 20); /* factor 0: linear */
    histogram_init(&m->isl, 50, 2, 13);
    histogram_init(&m->best_overlap, 0.05, 0, 20);
    histogram_init(&m->regret, 1, 2, 16);
    histogram_init(&m->shortfall, 1, 2, 16);
    histogram_init(&m->choice_regret, 1, 2, 16);
    histogram_init(&m->choice_gain, 1, 2, 16);
    histogram_init(&m->queue_wait, 0.001, 2.1, 18);
    histogram_init(&m->remote_query, 0.02, 1.5, 22);
}

double histogram_end(const struct histogram *h, int i)
{
    return h->factor > 0 ? h->first * pow(h->factor, i) : h->first * (i + 1);
}

void histogram_add(struct histogram *h, double v)
{
    int i = 0;
    while (i < h->buckets && v > histogram_end(h, i)) i++;
    atomic_fetch_add_explicit(&h->counts[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->n, 1, memory_order_relaxed);
    if (v > 0) atomic_fetch_add_explicit(&h->sum_micro, (uint64_t)(v * 1e6), memory_order_relaxed);
}
