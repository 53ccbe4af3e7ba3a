/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets of the data plane's histograms: data/state/counters.h. */
#include "app/serve/data/state/counters.h"

void data_counters_init(struct data_counters *m)
{
    kvr_histogram_init(&m->block_hashing, 0.001, 2, 15);
    kvr_histogram_init(&m->find_matches, 0.001, 2, 15);
    kvr_histogram_init(&m->seq_hashing, 0.001, 2, 15);
    kvr_histogram_init(&m->scheduling, 0.001, 2, 15);
    kvr_histogram_init(&m->total, 0.001, 2, 15);
    kvr_histogram_init(&m->hit_rate, 0.05, 0, 20); /* factor 0: linear */
    kvr_histogram_init(&m->isl, 50, 2, 13);
    kvr_histogram_init(&m->best_overlap, 0.05, 0, 20);
    kvr_histogram_init(&m->regret, 1, 2, 16);
    kvr_histogram_init(&m->shortfall, 1, 2, 16);
    kvr_histogram_init(&m->choice_regret, 1, 2, 16);
    kvr_histogram_init(&m->choice_gain, 1, 2, 16);
    kvr_histogram_init(&m->queue_wait, 0.001, 2.1, 18);
    kvr_histogram_init(&m->legs.prefill, 0.001, 2.1, 18);
    kvr_histogram_init(&m->legs.handoff, 0.0001, 2.1, 18);
    kvr_histogram_init(&m->legs.kv_wait, 0.001, 2.1, 18);
}
