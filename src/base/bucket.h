/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A token bucket: so much may be taken at once (`burst`), and so much comes back each second.
 *
 *     0            spent                burst
 *     |--------------|--------------------|......        what is left is burst - spent; below zero it is a debt
 *              <-- goes back at per_second
 *
 * What was spent is kept, not what is left: a bucket of zeroes is full, and a rate may change under it.
 *
 * A request larger than the burst would wait for ever. It is let through when the bucket is full, and leaves a debt that the next ones
 * wait for: no size is impossible, and over time not more than per_second goes through.
 *
 * Whoever takes without knowing how much it will be takes a guess, and puts it right when it is known (kvr_bucket_correct).
 *
 * Time is the caller's, in ns; one that goes back counts as standing still. Threads: none.
 */
#ifndef KVR_BUCKET_H
#define KVR_BUCKET_H

#include "base/base.h"

struct kvr_bucket {
    double spent;
    uint64_t at_ns;
};

struct kvr_bucket_rate {
    double per_second; /* above 0, or 0: no limit, and everything may be taken */
    double burst;      /* above 0 */
};

/* Takes `amount`. Returns: 0; or the seconds after which it could be taken, if nobody else comes, and nothing is taken. */
double kvr_bucket_take(struct kvr_bucket *b, struct kvr_bucket_rate rate, uint64_t now_ns, double amount);
/* More was taken than was asked for (negative: less). */
void kvr_bucket_correct(struct kvr_bucket *b, struct kvr_bucket_rate rate, uint64_t now_ns, double more);
/* What is left, at least 0. */
double kvr_bucket_left(const struct kvr_bucket *b, struct kvr_bucket_rate rate, uint64_t now_ns);
/* Seconds until it is full. */
double kvr_bucket_full_in(const struct kvr_bucket *b, struct kvr_bucket_rate rate, uint64_t now_ns);

#endif
