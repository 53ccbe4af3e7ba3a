/* SPDX-License-Identifier: Apache-2.0 */
/* One worker or two legs: the limits of each rule, the gate, what is not known. */
#include "test.h"

#include <math.h>
#include <kvroute/disagg.h>

static struct kvr_disagg_rule rule_of(enum kvr_disagg_policy policy)
{
    struct kvr_disagg_rule r;
    kvr_disagg_rule_init(&r);
    assert_int_equal(r.policy, KVR_DISAGG_OFF);
    r.policy = policy;
    r.prefill_load = 0.5;
    return r;
}

/* A decode worker that lacks `eff` of `isl` tokens, a prefill worker whose passes take 8192 tokens, both idle. */
static struct kvr_disagg_facts facts_of(uint64_t isl, uint64_t eff)
{
    return (struct kvr_disagg_facts){.isl = isl,
                                     .local_uncached = eff,
                                     .decode_blocks_known = true,
                                     .decode_blocks = 100,
                                     .total_blocks = 1000,
                                     .prefill_known = true,
                                     .prefill_uncached = isl,
                                     .max_num_batched_tokens = 8192};
}

static bool local(struct kvr_disagg_rule rule, struct kvr_disagg_facts facts)
{
    const char *why = NULL;
    bool whole = kvr_disagg_is_local(&rule, &facts, &why);
    assert_non_null(why);
    assert_true(kvr_disagg_is_local(&rule, &facts, NULL) == whole);
    return whole;
}

static void without_a_rule_there_are_two_legs(void **)
{
    assert_false(local(rule_of(KVR_DISAGG_OFF), facts_of(100, 0)));
}

static void fewer_than_2048_uncached_tokens_of_10000_are_local(void **)
{
    struct kvr_disagg_rule r = rule_of(KVR_DISAGG_ISL_BOUNDING);
    assert_true(local(r, facts_of(10000, 2047)));
    assert_false(local(r, facts_of(10000, 2048)));
}

static void a_ratio_of_seven_tenths_is_not_below_it(void **)
{
    struct kvr_disagg_rule r = rule_of(KVR_DISAGG_ISL_BOUNDING);
    assert_false(local(r, facts_of(1000, 700)));
    assert_true(local(r, facts_of(1000, 699)));
    assert_true(local(r, facts_of(0, 0)));
}

static void a_busy_prefill_worker_leaves_it_to_the_decode_worker(void **)
{
    struct kvr_disagg_rule r = rule_of(KVR_DISAGG_PREFILL_LOAD);
    struct kvr_disagg_facts f = facts_of(10000, 10000);
    f.prefill_ahead = 4096;
    assert_false(local(r, f));
    f.prefill_ahead = 4097;
    assert_true(local(r, f));
    r.policy = KVR_DISAGG_ISL_BOUNDING;
    assert_false(local(r, f));
    r.policy = KVR_DISAGG_ISL_OR_LOAD;
    assert_true(local(r, f));
    assert_true(local(r, facts_of(10000, 0)));
    assert_false(local(r, facts_of(10000, 10000)));
}

static void a_prefill_load_that_is_not_known_is_calm_and_a_refused_look_is_busy(void **)
{
    struct kvr_disagg_rule r = rule_of(KVR_DISAGG_PREFILL_LOAD);
    struct kvr_disagg_facts f = facts_of(10000, 10000);
    f.prefill_ahead = 100000;
    f.prefill_known = false;
    assert_false(local(r, f));
    f.prefill_known = true;
    f.max_num_batched_tokens = 0;
    assert_false(local(r, f));
    f.prefill_refused = true;
    assert_true(local(r, f));
    r.policy = KVR_DISAGG_LEAST_DELAY;
    assert_true(local(r, f));
    r.policy = KVR_DISAGG_ISL_BOUNDING;
    assert_false(local(r, f));
}

static void the_gate_keeps_a_busy_decode_worker_from_whole_requests(void **)
{
    struct kvr_disagg_rule r = rule_of(KVR_DISAGG_ISL_BOUNDING);
    struct kvr_disagg_facts f = facts_of(10000, 0);
    const char *why;
    r.decode_load = 0.1;
    assert_true(local(r, f));
    f.decode_blocks = 101;
    assert_false(local(r, f));
    assert_false(kvr_disagg_is_local(&r, &f, &why));
    assert_string_equal(why, "the decode worker is busy");
    f.decode_blocks = 0;
    f.decode_blocks_known = false;
    assert_false(local(r, f));
    f.decode_blocks_known = true;
    f.total_blocks = 0;
    assert_false(local(r, f));
}

static void what_is_not_worth_a_transfer_is_local_whatever_the_policy_says(void **)
{
    struct kvr_disagg_rule r = rule_of(KVR_DISAGG_OFF);
    r.min_uncached = 64;
    r.decode_load = 0;
    assert_true(local(r, facts_of(63, 63)));
    assert_false(local(r, facts_of(64, 64)));
}

static void least_delay_weighs_the_queues_and_those_who_generate(void **)
{
    struct kvr_disagg_rule r = rule_of(KVR_DISAGG_LEAST_DELAY);
    struct kvr_disagg_facts f = facts_of(8000, 100);
    f.local_decoding = 20;
    assert_true(local(r, f)); /* the decode worker has nearly all of it */
    f.local_uncached = 8000;
    assert_false(local(r, f)); /* it would hold up 20 */
    f.local_decoding = 0;
    assert_true(local(r, f)); /* it would hold up nobody */
    f.local_decoding = 20;
    f.prefill_ahead = 100000;
    assert_true(local(r, f)); /* the prefill worker is far behind */
    f.local_ahead = 100000;
    assert_false(local(r, f)); /* so is the decode worker */
    f.local_ahead = 0;
    f.prefill_known = false;
    assert_false(local(r, f)); /* what is not known counts as nothing */
}

static void the_weight_says_for_how_long_a_prompt_waits_for_a_prefill_worker(void **)
{
    struct kvr_disagg_rule r = rule_of(KVR_DISAGG_LEAST_DELAY);
    struct kvr_disagg_facts f = facts_of(10000, 10000);
    f.local_decoding = 1000000; /* so that a token counts 1 + weight times */
    r.stall_weight = 2;
    f.prefill_ahead = 19700; /* 3 * (10000 + 500), against 19700 + 10000 + 700 + 1000 */
    assert_false(local(r, f));
    f.prefill_ahead = 19900;
    assert_true(local(r, f));
    f.local_ahead = 1; /* its pass is there already */
    f.prefill_ahead = 18400;
    assert_true(local(r, f));
    r.stall_weight = 3;
    assert_false(local(r, f));
}

static void values_out_of_range_are_named(void **)
{
    const char *field = "";
    struct kvr_disagg_rule r;
    kvr_disagg_rule_init(&r);
    assert_int_equal(kvr_disagg_rule_check(&r, &field), 0);
    r.policy = KVR_DISAGG_ISL_OR_LOAD; /* needs a load, and there is no default */
    assert_int_equal(kvr_disagg_rule_check(&r, &field), -KVR_EINVAL);
    assert_string_equal(field, "prefill_load");
    r.isl_ratio = NAN;
    assert_int_equal(kvr_disagg_rule_check(&r, &field), -KVR_EINVAL);
    assert_string_equal(field, "isl_ratio");
    r.policy = KVR_DISAGG_POLICIES;
    assert_int_equal(kvr_disagg_rule_check(&r, &field), -KVR_EINVAL);
    assert_string_equal(field, "policy");
    r = rule_of(KVR_DISAGG_OFF);
    r.stall_weight = -1;
    assert_int_equal(kvr_disagg_rule_check(&r, &field), -KVR_EINVAL);
    assert_string_equal(field, "stall_weight");
    r = rule_of(KVR_DISAGG_OFF);
    r.decode_load = INFINITY;
    assert_int_equal(kvr_disagg_rule_check(&r, &field), -KVR_EINVAL);
    assert_string_equal(field, "decode_load");
}

static void policies_have_names(void **)
{
    enum kvr_disagg_policy p = KVR_DISAGG_POLICIES;
    for (unsigned i = 0; i < KVR_DISAGG_POLICIES; i++) {
        const char *name = kvr_disagg_policy_name((enum kvr_disagg_policy)i);
        assert_int_equal(kvr_disagg_policy_of(name, strlen(name), &p), 0);
        assert_int_equal(p, i);
    }
    assert_null(kvr_disagg_policy_name(KVR_DISAGG_POLICIES));
    assert_int_equal(kvr_disagg_policy_of("isl", 3, &p), -KVR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_rule_there_are_two_legs),
        cmocka_unit_test(fewer_than_2048_uncached_tokens_of_10000_are_local),
        cmocka_unit_test(a_ratio_of_seven_tenths_is_not_below_it),
        cmocka_unit_test(a_busy_prefill_worker_leaves_it_to_the_decode_worker),
        cmocka_unit_test(a_prefill_load_that_is_not_known_is_calm_and_a_refused_look_is_busy),
        cmocka_unit_test(the_gate_keeps_a_busy_decode_worker_from_whole_requests),
        cmocka_unit_test(what_is_not_worth_a_transfer_is_local_whatever_the_policy_says),
        cmocka_unit_test(least_delay_weighs_the_queues_and_those_who_generate),
        cmocka_unit_test(the_weight_says_for_how_long_a_prompt_waits_for_a_prefill_worker),
        cmocka_unit_test(values_out_of_range_are_named),
        cmocka_unit_test(policies_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
