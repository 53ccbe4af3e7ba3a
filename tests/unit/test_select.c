/* SPDX-License-Identifier: Apache-2.0 */
/* Cost and choice: worked examples of the reference, ties, softmax. */
#include "test.h"

#include <float.h>
#include <math.h>
#include <kvroute/select.h>

static struct kvr_cost_config defaults(void)
{
    struct kvr_cost_config c;
    kvr_cost_config_init(&c);
    return c;
}

static double cost_of(const struct kvr_cost_config *cfg, uint32_t bs, uint64_t isl, struct kvr_candidate c)
{
    struct kvr_cost out;
    kvr_cost_of(cfg, bs, isl, &c, 1, &out);
    return out.cost;
}

static void cached_tokens_above_the_prompt(void **s)
{
    (void)s;
    struct kvr_cost_config c = defaults();
    c.prefill_load_scale = 2;
    struct kvr_candidate k = {.device_blocks = 6, .decode_blocks = 5, .active_prefill_tokens = 16};
    assert_true(cost_of(&c, 16, 64, k) == 7.0); /* I=64, C=96, P=16, D=5, B=16, scale 2 */
    c.track_prefill_tokens = false;
    assert_true(cost_of(&c, 16, 64, k) == 5.0);
}

static void request_weight(void **s)
{
    (void)s;
    struct kvr_cost_config c = defaults();
    c.request_weight = 32;
    c.track_prefill_tokens = false;
    struct kvr_candidate k = {.decode_blocks = 100, .active_requests = 4};
    assert_true(cost_of(&c, 16, 16, k) == 228.0);
}

static void documented_example_picks_the_second(void **s)
{
    (void)s;
    struct kvr_cost costs[3] = {{.cost = 18}, {.cost = 10}, {.cost = 11}};
    uint64_t rng = 1;
    assert_int_equal(kvr_pick(costs, 3, 0, &rng), 1);
}

static void credit_reduces_prefill(void **s)
{
    (void)s;
    struct kvr_cost_config c = defaults();
    struct kvr_candidate cold = {0}, warm = {.device_blocks = 6};
    assert_true(cost_of(&c, 16, 160, cold) == 10.0);
    assert_true(cost_of(&c, 16, 160, warm) == 4.0);
    c.overlap_credit = 0.5;
    assert_true(cost_of(&c, 16, 160, warm) == 7.0);
    c.overlap_credit = 3;
    assert_true(cost_of(&c, 16, 160, warm) == 0.0); /* never negative */
}

static void scale_applies_after_credits_and_before_decode(void **s)
{
    (void)s;
    struct kvr_cost_config c = defaults();
    c.prefill_load_scale = 3;
    struct kvr_candidate k = {.device_blocks = 6, .decode_blocks = 7};
    assert_true(cost_of(&c, 16, 160, k) == 3 * 4.0 + 7);
}

static void lower_tiers_have_their_weights(void **s)
{
    (void)s;
    struct kvr_cost_config c = defaults();
    struct kvr_candidate k = {.device_blocks = 2, .host_blocks = 4, .disk_blocks = 4};
    struct kvr_cost out;
    kvr_cost_of(&c, 16, 320, &k, 1, &out);
    assert_true(out.effective_blocks == 2 + 3 + 1);
    assert_int_equal(out.cached_tokens, 96);
    assert_true(out.cost == 20 - 6.0);
}

static void decay_halves_the_credit_at_one_request_of_excess(void **s)
{
    (void)s;
    struct kvr_cost_config c = defaults();
    c.credit_decay = 1;
    struct kvr_candidate k[2] = {{.device_blocks = 10, .active_prefill_tokens = 160}, {.active_prefill_tokens = 0}};
    struct kvr_cost out[2];
    kvr_cost_of(&c, 16, 160, k, 2, out);
    assert_true(out[0].cost == 20 - 5.0);
    assert_true(out[1].cost == 10.0); /* a cold idle worker wins now */
}

static void ties_spread_and_are_seeded(void **s)
{
    (void)s;
    struct kvr_cost costs[4] = {{.cost = 5}, {.cost = 5}, {.cost = 9}, {.cost = 5}};
    int seen[4] = {0};
    uint64_t a = 42, b = 42;
    for (int i = 0; i < 3000; i++) {
        size_t x = kvr_pick(costs, 4, 0, &a);
        assert_int_equal(x, kvr_pick(costs, 4, 0, &b));
        seen[x]++;
    }
    assert_int_equal(seen[2], 0);
    for (int i = 0; i < 4; i++)
        if (i != 2) assert_in_range(seen[i], 850, 1150);
}

static void softmax_prefers_cheap_and_reaches_all(void **s)
{
    (void)s;
    struct kvr_cost costs[3] = {{.cost = 0}, {.cost = 5}, {.cost = 10}};
    int seen[3] = {0};
    uint64_t rng = 1;
    for (int i = 0; i < 30000; i++) seen[kvr_pick(costs, 3, 1, &rng)]++;
    double worst = (double)seen[2] / seen[0];
    assert_true(worst > exp(-1) * 0.9 && worst < exp(-1) * 1.1);
    assert_true(seen[0] > seen[1] && seen[1] > seen[2]);
}

static void softmax_of_equal_costs_is_uniform(void **s)
{
    (void)s;
    struct kvr_cost costs[4] = {{.cost = 3}, {.cost = 3}, {.cost = 3}, {.cost = 3}};
    int seen[4] = {0};
    uint64_t rng = 9;
    for (int i = 0; i < 4000; i++) seen[kvr_pick(costs, 4, 0.7, &rng)]++;
    for (int i = 0; i < 4; i++) assert_in_range(seen[i], 850, 1150);
}

static void softmax_orders_extreme_costs(void **s)
{
    (void)s;
    struct kvr_cost costs[2] = {{.cost = DBL_MAX}, {.cost = -DBL_MAX}};
    int seen[2] = {0};
    uint64_t rng = 3;
    for (int i = 0; i < 3000; i++) seen[kvr_pick(costs, 2, 0.5, &rng)]++;
    assert_true(seen[1] > 2 * seen[0] && seen[0] > 0);
}

static void low_temperature_is_nearly_greedy(void **s)
{
    (void)s;
    struct kvr_cost costs[2] = {{.cost = 1}, {.cost = 2}};
    uint64_t rng = 3;
    int other = 0;
    for (int i = 0; i < 2000; i++) other += kvr_pick(costs, 2, 0.01, &rng) == 1;
    assert_int_equal(other, 0);
}

static void ranges_are_checked(void **s)
{
    (void)s;
    const char *field = NULL;
    struct kvr_cost_config c = defaults();
    assert_int_equal(kvr_cost_config_check(&c, &field), 0);
    c.overlap_credit = NAN;
    assert_int_equal(kvr_cost_config_check(&c, &field), -KVR_EINVAL);
    assert_string_equal(field, "overlap_credit");
    c = defaults();
    c.host_weight = 1.5;
    assert_int_equal(kvr_cost_config_check(&c, &field), -KVR_EINVAL);
    assert_string_equal(field, "host_weight");
    c = defaults();
    c.temperature = -1;
    assert_int_equal(kvr_cost_config_check(&c, &field), -KVR_EINVAL);
    c = defaults();
    c.credit_decay = INFINITY;
    assert_int_equal(kvr_cost_config_check(&c, &field), -KVR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_tokens_above_the_prompt),
        cmocka_unit_test(request_weight),
        cmocka_unit_test(documented_example_picks_the_second),
        cmocka_unit_test(credit_reduces_prefill),
        cmocka_unit_test(scale_applies_after_credits_and_before_decode),
        cmocka_unit_test(lower_tiers_have_their_weights),
        cmocka_unit_test(decay_halves_the_credit_at_one_request_of_excess),
        cmocka_unit_test(ties_spread_and_are_seeded),
        cmocka_unit_test(softmax_prefers_cheap_and_reaches_all),
        cmocka_unit_test(softmax_of_equal_costs_is_uniform),
        cmocka_unit_test(softmax_orders_extreme_costs),
        cmocka_unit_test(low_temperature_is_nearly_greedy),
        cmocka_unit_test(ranges_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
