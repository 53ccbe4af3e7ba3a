/* SPDX-License-Identifier: Apache-2.0 */
/* Token buckets: what may be taken, when it is back, debts; and a random run against a ledger that steps through time. */
#include "test.h"

#include <math.h>

#include "base/bucket.h"

#define SECOND 1000000000ull

static const struct kvr_bucket_rate two_a_second = {2, 10};

static void a_bucket_of_zeroes_is_full(void **)
{
    struct kvr_bucket b = {0};
    assert_true(kvr_bucket_left(&b, two_a_second, 0) == 10);
    for (int i = 0; i < 10; i++) assert_true(kvr_bucket_take(&b, two_a_second, 5 * SECOND, 1) == 0);
    assert_true(kvr_bucket_take(&b, two_a_second, 5 * SECOND, 1) == 0.5);
    assert_true(kvr_bucket_left(&b, two_a_second, 5 * SECOND) == 0);
    assert_true(kvr_bucket_full_in(&b, two_a_second, 5 * SECOND) == 5);
}

static void what_is_said_to_be_the_wait_is_enough_and_not_too_much(void **)
{
    struct kvr_bucket b = {0};
    assert_true(kvr_bucket_take(&b, two_a_second, SECOND, 9) == 0);
    double wait = kvr_bucket_take(&b, two_a_second, SECOND, 4);
    assert_true(wait == 1.5);
    assert_true(kvr_bucket_take(&b, two_a_second, SECOND + (uint64_t)(1.4 * SECOND), 4) > 0);
    assert_true(kvr_bucket_take(&b, two_a_second, SECOND + (uint64_t)(1.5 * SECOND), 4) == 0);
}

static void more_than_the_burst_needs_a_full_bucket_and_leaves_a_debt(void **)
{
    struct kvr_bucket b = {0};
    assert_true(kvr_bucket_take(&b, two_a_second, 0, 1) == 0);
    assert_true(kvr_bucket_take(&b, two_a_second, 0, 100) == 0.5);
    assert_true(kvr_bucket_take(&b, two_a_second, SECOND / 2, 100) == 0);
    assert_true(kvr_bucket_left(&b, two_a_second, SECOND / 2) == 0);
    assert_true(kvr_bucket_take(&b, two_a_second, SECOND / 2, 1) == 45.5); /* 90 of debt, and room for 1 */
}

static void a_correction_goes_both_ways_and_never_above_full(void **)
{
    struct kvr_bucket b = {0};
    assert_true(kvr_bucket_take(&b, two_a_second, 0, 8) == 0);
    kvr_bucket_correct(&b, two_a_second, 0, -5);
    assert_true(kvr_bucket_left(&b, two_a_second, 0) == 7);
    kvr_bucket_correct(&b, two_a_second, 0, 20);
    assert_true(kvr_bucket_left(&b, two_a_second, 0) == 0);
    assert_true(kvr_bucket_full_in(&b, two_a_second, 0) == 11.5);
    kvr_bucket_correct(&b, two_a_second, 0, -1000);
    assert_true(kvr_bucket_left(&b, two_a_second, 0) == 10);
}

static void no_rate_is_no_limit_and_time_that_goes_back_gives_nothing(void **)
{
    struct kvr_bucket b = {0};
    for (int i = 0; i < 100; i++) assert_true(kvr_bucket_take(&b, (struct kvr_bucket_rate){0}, 0, 1e9) == 0);
    assert_true(kvr_bucket_take(&b, two_a_second, 9 * SECOND, 10) == 0);
    assert_true(kvr_bucket_take(&b, two_a_second, 1 * SECOND, 1) > 0);
    assert_true(kvr_bucket_left(&b, two_a_second, 10 * SECOND) == 2); /* and time is not given twice */
}

/* A rate that changes takes effect at once, for what has not come back too. */
static void another_rate_and_burst_are_those_of_the_next_moment(void **)
{
    struct kvr_bucket b = {0};
    assert_true(kvr_bucket_take(&b, two_a_second, 0, 10) == 0);
    assert_true(kvr_bucket_left(&b, (struct kvr_bucket_rate){100, 50}, 0) == 40);
}

/* Whatever is asked, over any span not more goes through than burst + rate * span, with one request beyond. */
static void no_more_goes_through_than_the_rate_and_one_burst(void **)
{
    struct kvr_rng rng = {env_u64("KVR_SEED", 7)};
    for (int round = 0; round < 200; round++) {
        struct kvr_bucket_rate rate = {0.5 + 50 * kvr_rng_unit(&rng), 1 + 100 * kvr_rng_unit(&rng)};
        struct kvr_bucket b = {0};
        double spent = 0, naive = rate.burst; /* the ledger: what is there, after each step */
        uint64_t now = 0;
        for (int i = 0; i < 500; i++) {
            uint64_t step = (uint64_t)(kvr_rng_unit(&rng) * 0.3 * SECOND);
            double amount = 40 * kvr_rng_unit(&rng);
            now += step;
            naive = fmin(rate.burst, naive + (double)step / 1e9 * rate.per_second);
            double wait = kvr_bucket_take(&b, rate, now, amount);
            if (fabs(naive - fmin(amount, rate.burst)) > 1e-6) assert_true((wait == 0) == (naive >= fmin(amount, rate.burst)));
            if (wait == 0) {
                naive -= amount;
                spent += amount;
            }
            assert_true(fabs(fmax(naive, 0) - kvr_bucket_left(&b, rate, now)) < 1e-6);
            assert_true(spent <= rate.burst + rate.per_second * (double)now / 1e9 + 40);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_of_zeroes_is_full),
        cmocka_unit_test(what_is_said_to_be_the_wait_is_enough_and_not_too_much),
        cmocka_unit_test(more_than_the_burst_needs_a_full_bucket_and_leaves_a_debt),
        cmocka_unit_test(a_correction_goes_both_ways_and_never_above_full),
        cmocka_unit_test(no_rate_is_no_limit_and_time_that_goes_back_gives_nothing),
        cmocka_unit_test(another_rate_and_burst_are_those_of_the_next_moment),
        cmocka_unit_test(no_more_goes_through_than_the_rate_and_one_burst),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
