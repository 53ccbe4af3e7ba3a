/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies over five workloads in virtual time: by predicted time, kv never loses to round-robin or least-loaded by more than
 * 2 % in mean TTFT, and wins by the stated factor where prefixes are shared. docs/scheduling.md has the whole table.
 */
#include "test.h"

#include <stdio.h>

#include "app/sim/sim.h"

enum { REQUESTS = 2400, SEEDS = 3 };

static double mean_ttft(enum sim_workload w, enum sim_policy p)
{
    double sum = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct sim_result r;
        struct sim_config c = {.workload = w, .policy = p, .workers = 8, .requests = REQUESTS, .seed = seed, .load = 1};
        assert_int_equal(sim_run(&c, &r), 0);
        assert_int_equal(r.completed, REQUESTS);
        if (p == SIM_TIME) assert_true(r.fewest > REQUESTS / 8 / 3); /* nobody is forgotten */
        sum += r.ttft_mean_ms / SEEDS;
    }
    return sum;
}

static void compare(enum sim_workload w, enum sim_policy p, double most)
{
    double kv = mean_ttft(w, p), rr = mean_ttft(w, SIM_ROUND_ROBIN), ll = mean_ttft(w, SIM_LEAST_LOADED);
    printf("%s: %s %.1f ms, round-robin %.1f, least-loaded %.1f\n", sim_workload_name(w), sim_policy_name(p), kv, rr, ll);
    assert_true(kv <= rr * most);
    assert_true(kv <= ll * most);
}

static void uniform_prompts_lose_nothing(void **s)
{
    (void)s;
    compare(SIM_UNIFORM, SIM_TIME, 1.02);
}

static void shared_prefixes_win_a_third(void **s)
{
    (void)s;
    compare(SIM_SHARED, SIM_TIME, 0.67);
}

static void agents_take_less_than_half(void **s)
{
    (void)s;
    compare(SIM_AGENTS, SIM_TIME, 0.45);
}

static void siblings_lose_nothing_and_win_when_decisions_are_remembered(void **s)
{
    (void)s;
    compare(SIM_SIBLINGS, SIM_TIME, 1.02);
    compare(SIM_SIBLINGS, SIM_TIME_PREDICTED, 0.9);
}

static void long_tails_win_without_any_sharing(void **s)
{
    (void)s;
    compare(SIM_LONG_TAIL, SIM_TIME, 0.85);
}

static void the_same_seed_gives_the_same_figures(void **s)
{
    (void)s;
    struct sim_config c = {.workload = SIM_SHARED, .policy = SIM_TIME_PREDICTED, .workers = 4, .requests = 300, .seed = 7, .load = 1};
    struct sim_result a, b;
    assert_int_equal(sim_run(&c, &a), 0);
    assert_int_equal(sim_run(&c, &b), 0);
    assert_memory_equal(&a, &b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_prompts_lose_nothing),       cmocka_unit_test(shared_prefixes_win_a_third),
        cmocka_unit_test(agents_take_less_than_half),         cmocka_unit_test(siblings_lose_nothing_and_win_when_decisions_are_remembered),
        cmocka_unit_test(long_tails_win_without_any_sharing), cmocka_unit_test(the_same_seed_gives_the_same_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
