/* SPDX-License-Identifier: Apache-2.0 */
/* What tokens made here are worth: every way between the states of src/token/trust.h. */
#include "token/trust.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static struct kvr_trust probing(unsigned real)
{
    struct kvr_trust t;
    kvr_trust_begin(&t, real);
    assert_int_equal(t.state, KVR_TRUST_LOADING);
    kvr_trust_loaded(&t, true);
    assert_int_equal(t.state, KVR_TRUST_PROBING);
    return t;
}

static struct kvr_trust trusted(void)
{
    struct kvr_trust t = probing(0);
    kvr_trust_probed(&t, true);
    assert_int_equal(t.state, KVR_TRUST_TRUSTED);
    return t;
}

static void a_folder_that_cannot_be_used_is_refused(void **state)
{
    struct kvr_trust t;
    (void)state;
    kvr_trust_begin(&t, 8);
    kvr_trust_probed(&t, true); /* of before: nothing is known of the folder yet */
    kvr_trust_compared(&t, true, false);
    kvr_trust_counted(&t, false);
    kvr_trust_doubted(&t);
    assert_int_equal(t.state, KVR_TRUST_LOADING);
    kvr_trust_loaded(&t, false);
    assert_int_equal(t.state, KVR_TRUST_REFUSED);
    kvr_trust_probed(&t, true);
    kvr_trust_compared(&t, true, false);
    assert_int_equal(t.state, KVR_TRUST_REFUSED);
}

static void engines_that_answer_unlike_each_other_are_refused_in_any_state(void **state)
{
    struct kvr_trust t = probing(8);
    (void)state;
    kvr_trust_unlike(&t);
    assert_int_equal(t.state, KVR_TRUST_REFUSED);
    assert_non_null(strstr(t.why, "workers"));
    t = trusted();
    kvr_trust_unlike(&t);
    assert_int_equal(t.state, KVR_TRUST_REFUSED);
    kvr_trust_begin(&t, 8);
    kvr_trust_unlike(&t); /* of the folder before */
    assert_int_equal(t.state, KVR_TRUST_LOADING);
}

static void trust_needs_the_probes_and_the_first_requests(void **state)
{
    struct kvr_trust t = probing(3);
    (void)state;
    kvr_trust_probed(&t, true);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t.state, KVR_TRUST_PROBING);
        kvr_trust_compared(&t, true, false);
    }
    assert_int_equal(t.state, KVR_TRUST_TRUSTED);
}

static void requests_decide_nothing_before_the_probes_have_agreed(void **state)
{
    struct kvr_trust t = probing(2);
    (void)state;
    for (int i = 0; i < 5; i++) kvr_trust_compared(&t, true, false);
    assert_int_equal(t.state, KVR_TRUST_PROBING);
    kvr_trust_compared(&t, false, false); /* with a profile that nobody has chosen */
    assert_int_equal(t.state, KVR_TRUST_PROBING);
    kvr_trust_probed(&t, true);
    kvr_trust_compared(&t, true, false);
    assert_int_equal(t.state, KVR_TRUST_PROBING);
    kvr_trust_compared(&t, true, false);
    assert_int_equal(t.state, KVR_TRUST_TRUSTED);
}

static void another_profile_begins_the_count_anew(void **state)
{
    struct kvr_trust t = probing(2);
    (void)state;
    kvr_trust_probed(&t, true);
    kvr_trust_compared(&t, true, false);
    kvr_trust_compared(&t, true, true);
    kvr_trust_compared(&t, true, false);
    assert_int_equal(t.state, KVR_TRUST_PROBING);
    kvr_trust_compared(&t, true, false);
    assert_int_equal(t.state, KVR_TRUST_TRUSTED);
}

static void a_difference_before_trust_refuses(void **state)
{
    struct kvr_trust a = probing(2), b = probing(2);
    (void)state;
    kvr_trust_probed(&a, false);
    assert_int_equal(a.state, KVR_TRUST_REFUSED);
    kvr_trust_probed(&b, true);
    kvr_trust_compared(&b, false, false);
    assert_int_equal(b.state, KVR_TRUST_REFUSED);
}

static void a_difference_later_is_a_doubt_and_the_second_refuses(void **state)
{
    struct kvr_trust t = trusted();
    (void)state;
    kvr_trust_compared(&t, false, false);
    assert_int_equal(t.state, KVR_TRUST_SUSPECT);
    for (int i = 0; i < KVR_TRUST_AGAIN_AFTER; i++) {
        assert_int_equal(t.state, KVR_TRUST_SUSPECT);
        kvr_trust_compared(&t, true, false);
    }
    assert_int_equal(t.state, KVR_TRUST_TRUSTED);
    kvr_trust_compared(&t, false, false);
    assert_int_equal(t.state, KVR_TRUST_REFUSED);

    t = trusted();
    kvr_trust_compared(&t, false, false);
    kvr_trust_compared(&t, true, false);
    kvr_trust_compared(&t, false, false);
    assert_int_equal(t.state, KVR_TRUST_REFUSED);
}

static void three_unlike_counts_of_a_thousand_are_a_doubt(void **state)
{
    struct kvr_trust t = trusted();
    (void)state;
    for (int round = 0; round < 5; round++)
        for (int i = 0; i < KVR_TRUST_COUNTS; i++) kvr_trust_counted(&t, i != 3 && i != 700);
    assert_int_equal(t.state, KVR_TRUST_TRUSTED);
    for (int i = 0; i < KVR_TRUST_UNLIKE_COUNTS; i++) kvr_trust_counted(&t, false);
    assert_int_equal(t.state, KVR_TRUST_SUSPECT);
    kvr_trust_counted(&t, false);
    assert_int_equal(t.state, KVR_TRUST_SUSPECT); /* an engine's word decides from here on */
}

static void events_that_do_not_come_are_a_doubt(void **state)
{
    struct kvr_trust t = trusted();
    (void)state;
    kvr_trust_doubted(&t);
    assert_int_equal(t.state, KVR_TRUST_SUSPECT);
}

static void a_worker_that_joins_with_other_tokens_refuses(void **state)
{
    struct kvr_trust t = trusted();
    (void)state;
    kvr_trust_probed(&t, true);
    assert_int_equal(t.state, KVR_TRUST_TRUSTED);
    kvr_trust_probed(&t, false);
    assert_int_equal(t.state, KVR_TRUST_REFUSED);
}

static void without_a_judge_only_the_operator_can_say(void **state)
{
    struct kvr_trust t = probing(8);
    (void)state;
    kvr_trust_given(&t);
    assert_int_equal(t.state, KVR_TRUST_TRUSTED);
    kvr_trust_compared(&t, false, false);
    kvr_trust_given(&t);
    assert_int_equal(t.state, KVR_TRUST_SUSPECT);
}

static void states_have_names(void **)
{
    assert_string_equal(kvr_trust_name(KVR_TRUST_LOADING), "loading");
    assert_string_equal(kvr_trust_name(KVR_TRUST_REFUSED), "refused");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_that_cannot_be_used_is_refused),
        cmocka_unit_test(engines_that_answer_unlike_each_other_are_refused_in_any_state),
        cmocka_unit_test(trust_needs_the_probes_and_the_first_requests),
        cmocka_unit_test(requests_decide_nothing_before_the_probes_have_agreed),
        cmocka_unit_test(another_profile_begins_the_count_anew),
        cmocka_unit_test(a_difference_before_trust_refuses),
        cmocka_unit_test(a_difference_later_is_a_doubt_and_the_second_refuses),
        cmocka_unit_test(three_unlike_counts_of_a_thousand_are_a_doubt),
        cmocka_unit_test(events_that_do_not_come_are_a_doubt),
        cmocka_unit_test(a_worker_that_joins_with_other_tokens_refuses),
        cmocka_unit_test(without_a_judge_only_the_operator_can_say),
        cmocka_unit_test(states_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
