/* SPDX-License-Identifier: Apache-2.0 */
#include "base/histogram.h"

#include "base/base.h"

void kvr_histogram_init(struct kvr_histogram *h, double first, double factor, int buckets)
{
    double end = first;
    KVR_ASSERT(buckets > 0 && buckets <= KVR_HISTOGRAM_BUCKETS_MAX);
    h->buckets = buckets;
    for (int i = 0; i < buckets; i++) {
        h->ends[i] = factor > 0 ? end : first * (i + 1);
        end *= factor;
    }
}

void kvr_histogram_add(struct kvr_histogram *h, double v)
{
    int i = 0;
    double sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
    while (i < h->buckets && v > h->ends[i]) i++;
    atomic_fetch_add_explicit(&h->counts[i], 1, memory_order_relaxed);
    if (!(v > 0)) return;
    while (!atomic_compare_exchange_weak_explicit(&h->sum, &sum, sum + v, memory_order_relaxed, memory_order_relaxed)) {
    }
}
