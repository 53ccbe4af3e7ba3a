/* SPDX-License-Identifier: Apache-2.0 */
/* The last decisions: how many are kept, and what is told of those with two legs. */
#include "test.h"

#include <string.h>

#include "app/serve/data/state/decisions.h"

static void add(struct decisions *all, unsigned i, const struct decision_legs *legs)
{
    struct decision d = {.status = 200, .other_ms = -1};
    snprintf(d.id, sizeof d.id, "r%u", i);
    decisions_add(all, &d, legs);
}

static bool is_told(struct decisions *all, unsigned i, const char *of)
{
    char id[32];
    struct kvr_buf out = {0};
    snprintf(id, sizeof id, "r%u", i);
    bool there = decisions_write_one(all, &out, id, strlen(id)) && memmem(out.data, out.len, of, strlen(of)) != NULL;
    kvr_buf_free(&out);
    return there;
}

static const struct decision_legs two = {
    .present = true, .treatment = "remote", .protocol = "vllm-nixl", .has_prefill = true, .ms = 7, .handoff_ms = -1, .kv_wait_ms = -1};

static void a_place_that_is_used_again_tells_nothing_of_who_had_it(void **)
{
    struct decisions *all = decisions_create();
    for (unsigned i = 0; i < DECISIONS; i++) add(all, i, &two);
    assert_true(is_told(all, 0, "\"treatment\":\"remote\"") && is_told(all, DECISIONS - 1, "\"prefill\":{"));
    for (unsigned i = DECISIONS; i < 2 * DECISIONS - 1; i++) add(all, i, NULL);
    assert_false(is_told(all, 0, "r0") || is_told(all, DECISIONS - 2, "\"request_id\""));
    assert_true(is_told(all, DECISIONS - 1, "\"prefill\":{"));
    assert_true(is_told(all, DECISIONS, "\"request_id\""));
    assert_false(is_told(all, DECISIONS, "treatment") || is_told(all, DECISIONS, "prefill\""));
    decisions_destroy(all);
}

static void times_that_are_not_there_are_null(void **)
{
    struct decisions *all = decisions_create();
    add(all, 1, &two);
    assert_true(is_told(all, 1, "\"handoff_ms\":null") && is_told(all, 1, "\"kv_wait_ms\":null") && is_told(all, 1, "\"ms\":7"));
    assert_true(is_told(all, 1, "\"why\":null") && is_told(all, 1, "\"eff_isl\":null") && is_told(all, 1, "\"staged\":null"));
    decisions_destroy(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_place_that_is_used_again_tells_nothing_of_who_had_it),
        cmocka_unit_test(times_that_are_not_there_are_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
