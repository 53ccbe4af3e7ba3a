/* SPDX-License-Identifier: Apache-2.0 */
/* A histogram of few buckets that any thread adds to and another reads. The ends of the buckets are computed once. What is read while
 * others add may lack some of what they add; bucket by bucket it never goes back. */
#ifndef KVR_BASE_HISTOGRAM_H
#define KVR_BASE_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

enum { KVR_HISTOGRAM_BUCKETS_MAX = 24 };

struct kvr_histogram {
    double ends[KVR_HISTOGRAM_BUCKETS_MAX]; /* bucket i has values up to and with ends[i] */
    int buckets;
    _Atomic uint64_t counts[KVR_HISTOGRAM_BUCKETS_MAX + 1]; /* the last: above all ends */
    _Atomic double sum;
};

/* Bucket i ends at first * factor^i; factor 0: at first * (i + 1). */
void kvr_histogram_init(struct kvr_histogram *h, double first, double factor, int buckets);
/* Of a negative value, or none, only that it was. */
void kvr_histogram_add(struct kvr_histogram *h, double v);

#endif
