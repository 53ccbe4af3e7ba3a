/* SPDX-License-Identifier: Apache-2.0 */
/* base/bucket.h says what this is. */
#include "base/bucket.h"

static double spent_at(const struct kvr_bucket *b, struct kvr_bucket_rate rate, uint64_t now)
{
    double back = now > b->at_ns ? (double)(now - b->at_ns) / 1e9 * rate.per_second : 0;
    return KVR_MAX(b->spent - back, 0.0);
}

static void settle(struct kvr_bucket *b, struct kvr_bucket_rate rate, uint64_t now)
{
    b->spent = spent_at(b, rate, now);
    b->at_ns = KVR_MAX(b->at_ns, now);
}

double kvr_bucket_take(struct kvr_bucket *b, struct kvr_bucket_rate rate, uint64_t now, double amount)
{
    if (rate.per_second <= 0) return 0;
    settle(b, rate, now);
    double over = b->spent + KVR_MIN(amount, rate.burst) - rate.burst;
    if (over > 1e-9 * rate.burst) return over / rate.per_second; /* rounding is no refusal */
    b->spent += amount;
    return 0;
}

void kvr_bucket_correct(struct kvr_bucket *b, struct kvr_bucket_rate rate, uint64_t now, double more)
{
    if (rate.per_second <= 0) return;
    settle(b, rate, now);
    b->spent = KVR_MAX(b->spent + more, 0.0);
}

double kvr_bucket_left(const struct kvr_bucket *b, struct kvr_bucket_rate rate, uint64_t now)
{
    return KVR_MAX(rate.burst - spent_at(b, rate, now), 0.0);
}

double kvr_bucket_full_in(const struct kvr_bucket *b, struct kvr_bucket_rate rate, uint64_t now)
{
    return rate.per_second > 0 ? spent_at(b, rate, now) / rate.per_second : 0;
}
