/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated fleets: that they repeat, that nothing is lost, and that policies rank as they do in front of real processes. */
#include "test.h"

#include <math.h>
#include <stdio.h>

#include "sim/compare.h"

enum { SEEDS = 3 };

static struct sim_config scene(const char *name)
{
    struct sim_config c;
    char err[300];
    const struct sim_scene *s = sim_scene_find(name, strlen(name));
    if (!s || sim_scene_config(s, NULL, &c, err, sizeof err)) fail_msg("%s: %s", name, s ? err : "no such scene");
    return c;
}

static const struct sim_policy *policy(const char *name)
{
    const struct sim_policy *p = sim_policy_find(name, strlen(name));
    if (!p) fail_msg("no policy '%s'", name);
    return p;
}

static struct sim_result run(const struct sim_config *c)
{
    struct sim_result r;
    char err[300];
    if (sim_run(c, &r, err, sizeof err)) fail_msg("%s", err);
    return r;
}

static void check_scene_repeats(const struct sim_scene *from, const struct sim_policy *with)
{
    assert_ptr_equal(sim_scene_find(from->name, strlen(from->name)), from);
    if (sim_scene_needs_trace(from)) return;
    struct sim_config c = scene(from->name);
    c.traffic.requests = 60;
    c.traffic.seed = 5;
    c.policy = with;
    struct sim_result a = run(&c), b = run(&c);
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(a.v[SIM_COMPLETED] >= 60 || a.v[SIM_FAILED] > 0);
    assert_true(a.v[SIM_FAILED] == 0 || c.leaves_s > 0);
    assert_true(a.v[SIM_TTFT_P50] > 16 && a.v[SIM_TTFT_P99] >= a.v[SIM_TTFT_P50] && a.v[SIM_E2E_MEAN] > a.v[SIM_TTFT_MEAN]);
    assert_true(a.v[SIM_HIT] >= 0 && a.v[SIM_HIT] < 100 && a.v[SIM_BALANCE] >= 1 && a.v[SIM_SECONDS] > 0);
    assert_true(a.v[SIM_ITL_P50] > 0 && a.v[SIM_ITL_P99] >= a.v[SIM_ITL_P50] && a.v[SIM_GOODPUT] > 0);
}

static void every_scene_and_every_policy_runs_and_repeats(void **)
{
    for (size_t i = 0; i < sim_scenes_n; i++) check_scene_repeats(&sim_scenes[i], sim_policy_at(i % sim_policies_n));
    for (size_t i = 0; i < sim_leg_scenes_n; i++) check_scene_repeats(&sim_leg_scenes[i], sim_treatment_at(i % sim_treatments_n));
    for (size_t i = 0; i < sim_ablations_n; i++) assert_ptr_equal(policy(sim_policy_name(sim_ablation_at(i))), sim_ablation_at(i));
    for (size_t i = 0; i < sim_policies_n; i++) assert_ptr_equal(policy(sim_policy_name(sim_policy_at(i))), sim_policy_at(i));
    for (size_t i = 0; i < sim_treatments_n; i++) assert_ptr_equal(policy(sim_policy_name(sim_treatment_at(i))), sim_treatment_at(i));
}

/* Policy a's figure against policy b's, seed by seed, lies between the two limits. */
struct claim {
    const char *scene, *a, *b;
    enum sim_metric m;
    double least, most;
};

/* Runs each of the policies that the claims of one scene name once. Returns: how many claims there were. */
static size_t check_scene(const struct claim *claims, size_t n)
{
    const struct sim_policy *list[8];
    size_t policies = 0, mine = 0;
    char err[300];
    struct sim_config c = scene(claims->scene);
    struct sim_comparison cmp;
    for (; mine < n && strcmp(claims[mine].scene, claims->scene) == 0; mine++)
        for (int side = 0; side < 2; side++) {
            const struct sim_policy *p = policy(side ? claims[mine].b : claims[mine].a);
            size_t at = 0;
            while (at < policies && list[at] != p) at++;
            assert_true(at < 8);
            list[at] = p;
            policies = KVR_MAX(policies, at + 1);
        }
    if (c.traffic.requests) c.traffic.requests = 600;
    struct sim_plan plan = {.base = &c, .policies = list, .policies_n = policies, .first_seed = 1, .seeds = SEEDS, .threads = 2};
    if (sim_compare(&plan, &cmp, err, sizeof err)) fail_msg("%s", err);
    for (size_t i = 0; i < mine; i++) {
        size_t a = 0, b = 0;
        while (list[a] != policy(claims[i].a)) a++;
        while (list[b] != policy(claims[i].b)) b++;
        struct sim_ratio r = sim_ratio(sim_results_of(&cmp, a), sim_results_of(&cmp, b), SEEDS, claims[i].m);
        printf("%s, metric %d: %s / %s: %.3f (%.2f to %.2f)\n", claims[i].scene, (int)claims[i].m, claims[i].a, claims[i].b, r.value, r.low,
               r.high);
        assert_true(r.low <= r.value && r.value <= r.high);
        if (r.value < claims[i].least || r.value > claims[i].most) fail_msg("allowed: %g to %g", claims[i].least, claims[i].most);
    }
    sim_comparison_free(&cmp);
    return mine;
}

/* As in front of real processes: trees beat `linear` where conversations outgrow caches and where siblings come at once, and lose where
 * nothing is shared; of the trees, the one that spills early computes siblings more than once. The default is nowhere far from the best,
 * and far ahead where others fail. */
static void policies_keep_their_ranks(void **)
{
    static const struct claim claims[] = {
        {"conv60", "linear", "round-robin", SIM_TTFT_MEAN, 0, 0.6},
        {"conv60", "sglang-router", "linear", SIM_TTFT_MEAN, 0, 0.9},
        {"conv60", "smg", "linear", SIM_E2E_P50, 0, 0.9},
        {"conv60", "auto", "linear", SIM_TTFT_MEAN, 0, 0.85},
        {"conv60", "auto", "sglang-router", SIM_TTFT_MEAN, 0, 1.05},
        {"conv60", "auto", "smg", SIM_TTFT_P99, 0, 1.1},
        {"conv95", "auto", "linear", SIM_TTFT_MEAN, 0, 0.4},
        {"conv95", "auto", "smg", SIM_TTFT_MEAN, 0, 1},
        {"sib48", "sglang-router", "linear", SIM_E2E_P50, 0, 0.9},
        {"sib48", "smg", "sglang-router", SIM_HIT, 0, 0.95},
        {"sib48", "auto", "linear", SIM_TTFT_P99, 0, 0.7},
        {"sib48", "auto", "sglang-router", SIM_E2E_P50, 0, 1.02},
        {"hot120", "sglang-router", "linear", SIM_E2E_P50, 1.1, 9},
        {"hot120", "auto", "linear", SIM_TTFT_MEAN, 0, 1},
        {"hot120", "auto", "sglang-router", SIM_E2E_P50, 0, 0.9},
        {"uniform30", "vllm-router", "linear", SIM_TTFT_P99, 1.1, 9},
        {"uniform30", "tree", "linear", SIM_TTFT_MEAN, 0, 1.05},
        {"uniform30", "auto", "linear", SIM_TTFT_MEAN, 0, 1.03},
        {"uniform30", "auto", "vllm-router", SIM_TTFT_P99, 0, 0.8},
        {"tail50", "auto", "linear", SIM_TTFT_MEAN, 0, 1},
        {"mixed60", "auto", "linear", SIM_TTFT_MEAN, 0, 0.95},
        {"mixed60", "auto", "smg", SIM_TTFT_MEAN, 0, 0.95},
        {"agents", "auto", "linear", SIM_TTFT_MEAN, 0, 0.7},
        {"speeds", "auto", "linear", SIM_TTFT_MEAN, 0, 0.85},
        {"caches", "auto", "smg", SIM_TTFT_MEAN, 0, 0.6},
        {"comes-and-goes", "auto", "linear", SIM_TTFT_MEAN, 0, 0.9},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(claims);) i += check_scene(claims + i, KVR_ARRAY_LEN(claims) - i);
}

/* The hook that leaves a part out changes nothing but that, and what is left out is missed where it was made for. */
static void parts_of_the_default_are_missed(void **)
{
    static const struct claim claims[] = {
        {"hot120", "auto-without-copies", "auto", SIM_TTFT_MEAN, 1.5, 20},
        {"sib48", "auto-without-pending", "auto", SIM_TTFT_P99, 1.3, 20},
        {"speeds-hot", "auto-without-copies", "auto", SIM_E2E_P50, 1.3, 20},
        {"uniform30", "auto-without-copies", "auto", SIM_TTFT_MEAN, 1, 1},
        {"uniform30", "auto-without-pending", "auto", SIM_TTFT_MEAN, 1, 1},
        {"uniform30", "auto-without-turns", "auto", SIM_TTFT_P99, 1.02, 3},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(claims);) i += check_scene(claims + i, KVR_ARRAY_LEN(claims) - i);
}

/* Two legs win where prompts are long and answers must flow, and lose where prefill workers are few or prompts cached; the rule is near the
 * better of the two everywhere. */
static void two_legs_win_and_lose_and_the_rule_follows(void **)
{
    static const struct claim claims[] = {
        {"flowing", "two-legs", "one-leg", SIM_GOODPUT, 1.5, 9},         {"flowing", "two-legs", "one-leg", SIM_ITL_P99, 0, 0.5},
        {"flowing", "least_delay", "two-legs", SIM_GOODPUT, 0.95, 2},    {"few-prefill", "two-legs", "one-leg", SIM_GOODPUT, 0, 0.5},
        {"few-prefill", "least_delay", "one-leg", SIM_GOODPUT, 0.95, 2}, {"chat-many", "two-legs", "one-leg", SIM_GOODPUT, 0, 0.8},
        {"chat-many", "least_delay", "one-leg", SIM_GOODPUT, 0.95, 2},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(claims);) i += check_scene(claims + i, KVR_ARRAY_LEN(claims) - i);
}

/* One after the other, so that nobody waits: what is slower is the transfer. */
static void a_transfer_takes_what_its_bytes_take(void **)
{
    struct sim_config c = scene("long-even");
    c.policy = policy("two-legs");
    c.traffic.rate = 0.2;
    c.traffic.requests = 8;
    c.traffic.seconds = 0;
    c.traffic.param[TRAFFIC_OWN_SPREAD] = 0;
    c.transfer_bytes_s = 131072e6;
    struct sim_result fast = run(&c), slow;
    c.transfer_bytes_s = 131072e3; /* 1000 tokens/s */
    c.transfer_ms += 10;
    slow = run(&c);
    assert_true(fabs(slow.v[SIM_TTFT_MEAN] - fast.v[SIM_TTFT_MEAN] - (8000 - 8 + 10)) < 1e-3);
    assert_true(fast.v[SIM_LOCAL] == 0 && fast.v[SIM_COMPLETED] == 8 && slow.v[SIM_COMPLETED] == 8);
}

/* Prompts fill the caches of both, and what is held and what is awaited must never wait for each other. */
static void two_legs_end_in_caches_that_are_too_small(void **)
{
    for (size_t i = 0; i < sim_treatments_n; i++) {
        struct sim_config c = scene("long-prompts");
        c.policy = sim_treatment_at(i);
        c.blocks = 1200;
        c.traffic.requests = 100;
        struct sim_result r = run(&c);
        assert_true(r.v[SIM_COMPLETED] == 100 && r.v[SIM_FAILED] == 0);
        c.blocks = 600; /* 9,584 tokens: the longer ones fit nowhere */
        r = run(&c);
        assert_true(r.v[SIM_FAILED] > 5 && r.v[SIM_COMPLETED] + r.v[SIM_FAILED] == 100);
    }
}

static void nobody_is_forgotten(void **)
{
    static const char *const names[] = {"uniform30", "conv60", "hot55", "tail50"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(names); i++) {
        struct sim_config c = scene(names[i]);
        c.policy = policy("auto");
        struct sim_result r = run(&c);
        assert_true(r.v[SIM_FEWEST] > r.v[SIM_COMPLETED] / c.workers / 4 && r.v[SIM_BALANCE] < 1.5);
    }
}

static void what_is_computed_where_is_what_the_engines_say(void **)
{
    struct sim_config c = scene("uniform30");
    c.policy = policy("round-robin");
    struct sim_result r = run(&c);
    assert_true(r.v[SIM_HIT] == 0);
    assert_true(r.v[SIM_FEWEST] >= floor(r.v[SIM_COMPLETED] / 4) && r.v[SIM_BALANCE_REQUESTS] < 1.02);
    c = scene("speeds");
    c.policy = policy("linear");
    struct sim_result unlike = run(&c), slow;
    memset(c.speeds, 0, sizeof c.speeds);
    c.speed = 0.75;
    slow = run(&c);
    assert_true(unlike.v[SIM_TTFT_MEAN] < slow.v[SIM_TTFT_MEAN]);
    assert_true(unlike.v[SIM_COMPLETED] == slow.v[SIM_COMPLETED]); /* the same requests, whoever serves them */
}

/* Nothing is shared: what is read from the host is what preempted requests had computed themselves. */
static void what_a_preempted_prompt_reads_again_is_no_hit(void **)
{
    struct sim_config c = scene("uniform30");
    c.policy = policy("round-robin");
    c.traffic.requests = 200;
    c.traffic.param[TRAFFIC_OUTPUT] = 400;
    c.blocks = 1024;
    c.host_blocks = 8192;
    c.load_ratio = 0.1;
    assert_true(run(&c).v[SIM_HIT] == 0);
}

/* What comes over the link was computed by the one that sent it. */
static void a_prompt_is_computed_by_its_first_leg(void **)
{
    struct sim_config c = scene("uniform30");
    c.policy = policy("two-legs");
    c.traffic.requests = 40;
    c.prefill_workers = 1;
    struct sim_result r = run(&c);
    assert_true(r.v[SIM_BALANCE] > 0.99 * c.workers && r.v[SIM_HIT] == 0);
}

static void larger_caches_hit_more(void **)
{
    double before = 0;
    for (uint32_t blocks = 1600; blocks <= 8192; blocks *= 2) {
        struct sim_config c = scene("conv60");
        c.policy = policy("linear");
        c.blocks = blocks;
        double hit = run(&c).v[SIM_HIT];
        assert_true(hit > before);
        before = hit;
    }
}

static void a_worker_that_leaves_costs_what_it_had_begun(void **)
{
    static const char *const names[] = {"auto", "linear+ttl", "sglang-router", "smg"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(names); i++) {
        struct sim_config c = scene("comes-and-goes"), alone;
        c.policy = policy(names[i]);
        struct sim_result with = run(&c), without;
        alone = c;
        alone.leaves_s = alone.returns_s = 0;
        without = run(&alone);
        assert_true(without.v[SIM_FAILED] == 0);
        assert_true(with.v[SIM_FAILED] > 0 && with.v[SIM_FAILED] < 40); /* those that generated; the others went elsewhere */
        assert_true(with.v[SIM_COMPLETED] + with.v[SIM_FAILED] <= without.v[SIM_COMPLETED]); /* their conversations are over */
        assert_true(with.v[SIM_COMPLETED] + 5 * with.v[SIM_FAILED] >= without.v[SIM_COMPLETED]);
        assert_true(with.v[SIM_HIT] < without.v[SIM_HIT]);
        assert_true(with.v[SIM_FEWEST] > without.v[SIM_COMPLETED] / 16); /* it has work again */
        c.returns_s = 0;
        assert_true(run(&c).v[SIM_FEWEST] < with.v[SIM_FEWEST]);
    }
}

/* One that hears of the others' bookings late chooses nearly as well; one that never hears does not. */
static void routers_that_tell_each_other_choose_as_one(void **)
{
    double mean[3] = {0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        for (int k = 0; k < 3; k++) {
            struct sim_config c = scene("conv60");
            c.policy = policy("auto");
            c.traffic.seed = seed;
            c.routers = k ? 4 : 1;
            c.tell_ms = k == 2 ? 1e6 : 2;
            mean[k] += run(&c).v[SIM_TTFT_MEAN] / SEEDS;
        }
    printf("one router %.1f ms, four %.1f, four that are deaf %.1f\n", mean[0], mean[1], mean[2]);
    assert_true(mean[1] < 1.05 * mean[0]);
    assert_true(mean[2] > 1.03 * mean[1]);
}

static void prompts_that_fit_no_cache_are_refused(void **)
{
    struct sim_config c = scene("uniform30");
    c.policy = policy("least-loaded");
    c.blocks = 160; /* 2,544 tokens */
    struct sim_result r = run(&c);
    assert_true(r.v[SIM_FAILED] > 0.3 * r.v[SIM_COMPLETED] && r.v[SIM_COMPLETED] > 0);
}

static void bad_configurations_are_refused_by_name(void **)
{
    struct sim_result r;
    char err[300];
    static const struct {
        const char *says;
        size_t offset;
        uint32_t value;
    } rows[] = {
        {"workers: allowed", offsetof(struct sim_config, workers), 0},
        {"block-size: allowed", offsetof(struct sim_config, block_size), 0},
        {"blocks: allowed", offsetof(struct sim_config, blocks), 1},
        {"routers: allowed", offsetof(struct sim_config, routers), 17},
        {"prefill-workers: allowed", offsetof(struct sim_config, prefill_workers), 0},
        {"prefill-workers: allowed", offsetof(struct sim_config, prefill_workers), 4},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        struct sim_config c = scene("conv60");
        c.policy = policy("two-legs");
        memcpy((char *)&c + rows[i].offset, &rows[i].value, sizeof rows[i].value);
        assert_int_equal(sim_run(&c, &r, err, sizeof err), -KVR_EINVAL);
        assert_non_null(strstr(err, rows[i].says));
    }
    struct sim_config c = scene("comes-and-goes");
    c.policy = policy("two-legs");
    assert_int_equal(sim_run(&c, &r, err, sizeof err), -KVR_EINVAL);
    assert_non_null(strstr(err, "a worker can only leave when all are alike"));
    c = scene("conv60");
    c.transfer_bytes_s = 0;
    assert_int_equal(sim_run(&c, &r, err, sizeof err), -KVR_EINVAL);
    assert_non_null(strstr(err, "transfer-bytes: allowed"));
    c = scene("conv60");
    c.traffic.rate = -1;
    assert_int_equal(sim_run(&c, &r, err, sizeof err), -KVR_EINVAL);
    assert_non_null(strstr(err, "rate: bad value -1"));
    assert_null(sim_scene_find("conv6", 5));
    assert_null(sim_policy_find("line", 4));
    assert_int_equal(sim_scene_config(sim_scene_find("trace4", 6), NULL, &c, err, sizeof err), -KVR_EINVAL);
    assert_non_null(strstr(err, "needs a file"));
}

static void intervals_are_students(void **)
{
    const double v[] = {1, 2, 3}, alike[] = {5, 5, 5, 5};
    assert_true(fabs(sim_half_width(v, 3) - 4.303 / sqrt(3)) < 1e-3);
    assert_true(sim_half_width(alike, 4) == 0 && sim_half_width(v, 1) == 0);
    struct sim_result results[4] = {0};
    const struct sim_policy *two[2] = {sim_policy_at(0), sim_policy_at(1)};
    struct sim_comparison c = {.policies = two, .policies_n = 2, .seeds = 2, .results = results};
    for (int s = 0; s < 2; s++) {
        results[s].v[SIM_TTFT_MEAN] = 30 + 60 * s; /* far apart, but always three times the other */
        results[2 + s].v[SIM_TTFT_MEAN] = 10 + 20 * s;
    }
    struct sim_ratio r = sim_ratio(results, results + 2, 2, SIM_TTFT_MEAN);
    assert_true(fabs(r.value - 3) < 1e-9 && fabs(r.low - 3) < 1e-9 && fabs(r.high - 3) < 1e-9);
    struct sim_figure f = sim_figure(results, 2, SIM_TTFT_MEAN);
    assert_true(f.value == 60 && f.half > 300);
    assert_int_equal(sim_best(&c, SIM_TTFT_MEAN), 1);
}

static void a_flood_of_one_tenant_is_not_what_another_waits_for(void **)
{
    struct sim_config c = scene("crowd");
    c.traffic.seconds = c.flood.seconds = 15;
    c.policy = policy("alone");
    struct sim_result alone = run(&c), one, two;
    c.policy = policy("one-queue");
    one = run(&c);
    c.policy = policy("tenants");
    two = run(&c);
    assert_true(alone.v[SIM_OTHERS] == 0 && two.v[SIM_OTHERS] > 0);
    assert_true(one.v[SIM_TTFT_P99] > 20 * alone.v[SIM_TTFT_P99]);
    assert_true(two.v[SIM_TTFT_P99] < 3 * alone.v[SIM_TTFT_P99]);
    assert_true(two.v[SIM_OTHERS] > 0.7 * one.v[SIM_OTHERS]); /* the other one is served still */
    c.policy = policy("tenants");
    assert_true(run(&c).v[SIM_TTFT_P99] == two.v[SIM_TTFT_P99]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scene_and_every_policy_runs_and_repeats),
        cmocka_unit_test(policies_keep_their_ranks),
        cmocka_unit_test(parts_of_the_default_are_missed),
        cmocka_unit_test(two_legs_win_and_lose_and_the_rule_follows),
        cmocka_unit_test(a_transfer_takes_what_its_bytes_take),
        cmocka_unit_test(two_legs_end_in_caches_that_are_too_small),
        cmocka_unit_test(nobody_is_forgotten),
        cmocka_unit_test(what_is_computed_where_is_what_the_engines_say),
        cmocka_unit_test(what_a_preempted_prompt_reads_again_is_no_hit),
        cmocka_unit_test(a_prompt_is_computed_by_its_first_leg),
        cmocka_unit_test(larger_caches_hit_more),
        cmocka_unit_test(a_worker_that_leaves_costs_what_it_had_begun),
        cmocka_unit_test(routers_that_tell_each_other_choose_as_one),
        cmocka_unit_test(prompts_that_fit_no_cache_are_refused),
        cmocka_unit_test(bad_configurations_are_refused_by_name),
        cmocka_unit_test(intervals_are_students),
        cmocka_unit_test(a_flood_of_one_tenant_is_not_what_another_waits_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
