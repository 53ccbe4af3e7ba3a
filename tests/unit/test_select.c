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
    assert_int_equal(c.kind, KVR_COST_DELAY);
    c.kind = KVR_COST_LINEAR;
    return c;
}

static double cost_of(const struct kvr_cost_config *cfg, uint32_t bs, uint64_t isl, struct kvr_candidate c)
{
    struct kvr_cost out;
    kvr_cost_of(cfg, bs, isl, &c, 1, &out);
    return out.cost;
}

static void cached_tokens_above_the_prompt(void **)
{
    struct kvr_cost_config c = defaults();
    c.prefill_load_scale = 2;
    struct kvr_candidate k = {.device_blocks = 6, .decode_blocks = 5, .active_prefill_tokens = 16};
    assert_true(cost_of(&c, 16, 64, k) == 7.0); /* I=64, C=96, P=16, D=5, B=16, scale 2 */
    c.track_prefill_tokens = false;
    assert_true(cost_of(&c, 16, 64, k) == 5.0);
}

static void request_weight(void **)
{
    struct kvr_cost_config c = defaults();
    c.request_weight = 32;
    c.track_prefill_tokens = false;
    struct kvr_candidate k = {.decode_blocks = 100, .active_requests = 4};
    assert_true(cost_of(&c, 16, 16, k) == 228.0);
}

/* What `kvroute serve` says of options (cli/serve_effects.c): these have no effect on the delay, and these have one. */
static void weights_without_effect_on_the_delay(void **)
{
    static const struct kvr_delay_model model = {.ttft = {.token_ms = 0.1, .base_ms = 3, .share = {0, 0.2, 0.5, 0.3}},
                                                 .generation = {.block_ms = 0.01, .tokens = 100},
                                                 .output_tokens = -1};
    struct kvr_candidate k[2];
    for (unsigned i = 0; i < 2; i++)
        k[i] = (struct kvr_candidate){.device_blocks = 2 + i,
                                      .host_blocks = 3,
                                      .disk_blocks = 1,
                                      .external_blocks = 1,
                                      .decode_blocks = 40,
                                      .active_requests = 3 + i,
                                      .active_prefills = 1,
                                      .active_prefill_tokens = 500 * i + 100,
                                      .factor = 1,
                                      .model = &model};
    struct kvr_cost_config base;
    kvr_cost_config_init(&base);
    struct kvr_cost before[2], after[2];
    kvr_cost_of(&base, 16, 400, k, 2, before);
    for (int what = 0; what < 6; what++) {
        struct kvr_cost_config c = base;
        double *values[] = {&c.request_weight, &c.credit_decay, &c.host_weight, &c.disk_weight, &c.prefill_load_scale, &c.overlap_credit};
        *values[what] = 0.5;
        kvr_cost_of(&c, 16, 400, k, 2, after);
        for (int i = 0; i < 2; i++) assert_true((before[i].cost == after[i].cost) == (what < 4));
    }
}

static void documented_example_picks_the_second(void **)
{
    struct kvr_cost costs[3] = {{.cost = 18}, {.cost = 10}, {.cost = 11}};
    uint64_t rng = 1;
    assert_int_equal(kvr_pick(costs, 3, 0, &rng), 1);
}

static void credit_reduces_prefill(void **)
{
    struct kvr_cost_config c = defaults();
    struct kvr_candidate cold = {0}, warm = {.device_blocks = 6};
    assert_true(cost_of(&c, 16, 160, cold) == 10.0);
    assert_true(cost_of(&c, 16, 160, warm) == 4.0);
    c.overlap_credit = 0.5;
    assert_true(cost_of(&c, 16, 160, warm) == 7.0);
    c.overlap_credit = 3;
    assert_true(cost_of(&c, 16, 160, warm) == 0.0); /* never negative */
}

static void scale_applies_after_credits_and_before_decode(void **)
{
    struct kvr_cost_config c = defaults();
    c.prefill_load_scale = 3;
    struct kvr_candidate k = {.device_blocks = 6, .decode_blocks = 7};
    assert_true(cost_of(&c, 16, 160, k) == 3 * 4.0 + 7);
}

static void lower_tiers_have_their_weights(void **)
{
    struct kvr_cost_config c = defaults();
    struct kvr_candidate k = {.device_blocks = 2, .host_blocks = 4, .disk_blocks = 4};
    struct kvr_cost out;
    kvr_cost_of(&c, 16, 320, &k, 1, &out);
    assert_true(out.effective_blocks == 2 + 3 + 1);
    assert_int_equal(out.cached_tokens, 96);
    assert_true(out.cost == 20 - 6.0);
}

static void decay_halves_the_credit_at_one_request_of_excess(void **)
{
    struct kvr_cost_config c = defaults();
    c.credit_decay = 1;
    struct kvr_candidate k[2] = {{.device_blocks = 10, .active_prefill_tokens = 160}, {.active_prefill_tokens = 0}};
    struct kvr_cost out[2];
    kvr_cost_of(&c, 16, 160, k, 2, out);
    assert_true(out[0].cost == 20 - 5.0);
    assert_true(out[1].cost == 10.0); /* a cold idle worker wins now */
}

static void ties_spread_and_are_seeded(void **)
{
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

static void softmax_prefers_cheap_and_reaches_all(void **)
{
    struct kvr_cost costs[3] = {{.cost = 0}, {.cost = 5}, {.cost = 10}};
    int seen[3] = {0};
    uint64_t rng = 1;
    for (int i = 0; i < 30000; i++) seen[kvr_pick(costs, 3, 1, &rng)]++;
    double worst = (double)seen[2] / seen[0];
    assert_true(worst > exp(-1) * 0.9 && worst < exp(-1) * 1.1);
    assert_true(seen[0] > seen[1] && seen[1] > seen[2]);
}

static void softmax_of_equal_costs_is_uniform(void **)
{
    struct kvr_cost costs[4] = {{.cost = 3}, {.cost = 3}, {.cost = 3}, {.cost = 3}};
    int seen[4] = {0};
    uint64_t rng = 9;
    for (int i = 0; i < 4000; i++) seen[kvr_pick(costs, 4, 0.7, &rng)]++;
    for (int i = 0; i < 4; i++) assert_in_range(seen[i], 850, 1150);
}

static void softmax_orders_extreme_costs(void **)
{
    struct kvr_cost costs[2] = {{.cost = DBL_MAX}, {.cost = -DBL_MAX}};
    int seen[2] = {0};
    uint64_t rng = 3;
    for (int i = 0; i < 3000; i++) seen[kvr_pick(costs, 2, 0.5, &rng)]++;
    assert_true(seen[1] > 2 * seen[0] && seen[0] > 0);
}

static void low_temperature_is_nearly_greedy(void **)
{
    struct kvr_cost costs[2] = {{.cost = 1}, {.cost = 2}};
    uint64_t rng = 3;
    int other = 0;
    for (int i = 0; i < 2000; i++) other += kvr_pick(costs, 2, 0.01, &rng) == 1;
    assert_int_equal(other, 0);
}

static void ranges_are_checked(void **)
{
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

static void overrides_have_their_ranges(void **)
{
    const char *field = NULL;
    struct kvr_cost_config c = defaults();
    struct kvr_override o = {
        .set = KVR_OVERRIDE_OVERLAP_CREDIT | KVR_OVERRIDE_TEMPERATURE, .overlap_credit = 2, .temperature = 0.5, .prefill_load_scale = 9};
    assert_int_equal(kvr_override_apply(&o, &c, &field), 0);
    assert_true(c.overlap_credit == 2 && c.temperature == 0.5 && c.prefill_load_scale == 1); /* what is not set stays */
    o = (struct kvr_override){.set = KVR_OVERRIDE_SHARED_MULTIPLIER, .shared_multiplier = 1.5};
    assert_int_equal(kvr_override_apply(&o, &c, &field), -KVR_EINVAL);
    assert_string_equal(field, "shared_multiplier");
}

static void shared_hits_lower_the_cost(void **)
{
    struct kvr_cost_config c = defaults();
    struct kvr_candidate k = {.device_blocks = 2, .shared_blocks = 4};
    assert_true(cost_of(&c, 16, 160, k) == 8.0); /* multiplier 0: as if there were none */
    c.shared_multiplier = 0.5;
    assert_true(cost_of(&c, 16, 160, k) == 6.0);
}

/* Prefill not tracked, role decode: 10 - 3 = 7. */
static void the_decode_role_credits_overlap_against_decode(void **)
{
    struct kvr_cost_config c = defaults();
    struct kvr_candidate k = {.device_blocks = 3, .decode_blocks = 10};
    c.track_prefill_tokens = false;
    assert_true(cost_of(&c, 16, 160, k) == 10.0);
    c.decode_role = true;
    assert_true(cost_of(&c, 16, 160, k) == 7.0);
    k.device_blocks = 30;
    assert_true(cost_of(&c, 16, 160, k) == 0.0);
    c.overlap_credit = 0;
    assert_true(cost_of(&c, 16, 160, k) == 10.0);
}

static void one_request_can_be_a_decode_leg(void **)
{
    const char *field;
    struct kvr_cost_config c = defaults();
    struct kvr_candidate k = {.device_blocks = 3, .decode_blocks = 10};
    struct kvr_override leg = {.set = KVR_OVERRIDE_TRACK_PREFILL_TOKENS | KVR_OVERRIDE_DECODE_ROLE, .decode_role = true};
    assert_int_equal(kvr_override_apply(&leg, &c, &field), 0);
    assert_true(cost_of(&c, 16, 160, k) == 7.0);
    leg.set |= KVR_OVERRIDE_OVERLAP_CREDIT;
    assert_int_equal(kvr_override_apply(&leg, &c, &field), 0);
    assert_true(cost_of(&c, 16, 160, k) == 10.0);
}

static void documented_costs(void **)
{
    struct kvr_cost_config c = defaults();
    /* prefill 10 - overlap + decode: (2, 10), (5, 5), (8, 9) */
    struct kvr_candidate k[3] = {
        {.device_blocks = 2, .decode_blocks = 10}, {.device_blocks = 5, .decode_blocks = 5}, {.device_blocks = 8, .decode_blocks = 9}};
    struct kvr_cost out[3];
    kvr_cost_of(&c, 16, 160, k, 3, out);
    assert_true(out[0].cost == 18 && out[1].cost == 10 && out[2].cost == 11);
}

static void a_credit_above_one_prefers_a_loaded_warm_worker(void **)
{
    struct kvr_cost_config c = defaults();
    struct kvr_candidate k[2] = {{.device_blocks = 10, .active_prefill_tokens = 200}, {.active_prefill_tokens = 0}};
    struct kvr_cost out[2];
    kvr_cost_of(&c, 16, 160, k, 2, out);
    assert_true(out[0].cost > out[1].cost);
    c.overlap_credit = 1.5;
    kvr_cost_of(&c, 16, 160, k, 2, out);
    assert_true(out[0].cost < out[1].cost);
}

static void preferred_taints_scale_costs(void **)
{
    struct kvr_cost_config c = defaults();
    c.track_prefill_tokens = false;
    struct kvr_candidate k = {.decode_blocks = 100, .taint_weight = 0.85};
    double lean = cost_of(&c, 16, 16, k);
    assert_true(lean < 90 && fabs(lean - 100 * exp(-tanh(0.85))) < 1e-9);
    k.taint_weight = -0.85;
    assert_true(cost_of(&c, 16, 16, k) > 110);
    k.taint_weight = 1e9;
    assert_true(cost_of(&c, 16, 16, k) > 36.7);
}

/* Two workers: one holds most of the prompt and is busy with one more, the other is empty of it. */
static void candidates_of_the_example(struct kvr_candidate k[4], const struct kvr_delay_model *m)
{
    struct kvr_candidate plain = {.model = m, .factor = 1};
    for (int i = 0; i < 4; i++) k[i] = plain;
    k[0].device_blocks = 144, k[0].active_prefill_tokens = 512, k[0].active_prefills = 1, k[0].active_requests = 15,
    k[0].decode_blocks = 1217;
    k[1].active_requests = 9, k[1].decode_blocks = 960;
    k[2].active_requests = k[3].active_requests = 12; /* the mean is 12 */
}

static void the_delay_cost_adds_up(void **)
{
    struct kvr_delay_model m = {.ttft = {.base_ms = 16.5, .token_ms = 0.0152, .ahead_ms = 0.0152},
                                .generation = {.block_ms = 0.02, .tokens = 24},
                                .output_tokens = -1};
    struct kvr_cost_config c;
    struct kvr_candidate k[4];
    struct kvr_cost out[4];
    kvr_cost_config_init(&c);
    candidates_of_the_example(k, &m);
    kvr_cost_of(&c, 16, 2560, k, 4, out);
    double n = 0.9 * 12 + 0.1 * 14;
    struct kvr_delay d = kvr_delay_of(&c, 16, 2560, k, 4, 0);
    assert_true(fabs(d.first - (16.5 + 0.0152 * 256 + 1.7 * 0.0152 * 512)) < 1e-9);
    assert_true(fabs(d.computing - 0.0152 * 256 * (1 + 0.4 * n)) < 1e-9);
    assert_true(fabs(d.generation - 0.4 * 24 * 0.02 * (1217 + (16 + 24.0 / 16) * n)) < 1e-9);
    assert_true(fabs(d.pass - 0.05 * 0.5 * 16.5 * 14) < 1e-9);
    assert_true(fabs(out[0].cost - (d.first + d.computing + d.generation + d.pass)) < 1e-9);
    assert_true(out[0].cost < 355 && out[1].cost > 800);
    k[1].copy_blocks = 144; /* 144 blocks of it are used by more than one holder's share */
    k[1].pressure = 1;      /* but its cache is full */
    assert_true(fabs(kvr_delay_of(&c, 16, 2560, k, 4, 1).computing - 0.0152 * 2560 * (1 + 0.4 * (0.9 * 12 + 0.1 * 9) + 2)) < 1e-9);
    k[1].pressure = 0;
    kvr_cost_of(&c, 16, 2560, k, 4, out);
    assert_true(out[1].cost < out[0].cost);
    assert_true(fabs(kvr_delay_of(&c, 16, 2560, k, 4, 1).first - (16.5 + 0.0152 * 2560)) < 1e-9); /* its own time stays what it is */
}

static void what_is_pending_is_as_good_as_held(void **)
{
    struct kvr_delay_model m = {.ttft = {.base_ms = 10, .token_ms = 0.1}};
    struct kvr_cost_config c;
    kvr_cost_config_init(&c);
    struct kvr_candidate k[2] = {{.device_blocks = 4, .model = &m, .factor = 1}, {.pending_blocks = 4, .model = &m, .factor = 1}};
    struct kvr_cost out[2];
    kvr_cost_of(&c, 16, 160, k, 2, out);
    assert_true(out[0].cost == out[1].cost && out[0].cost > 0);
    assert_int_equal(out[0].cached_tokens, 64);
    assert_int_equal(out[1].cached_tokens, 0); /* what no event has told is not promised */
    c.overlap_credit = 0;
    double nothing = cost_of(&c, 16, 160, k[1]);
    k[1].pending_blocks = 0;
    assert_true(cost_of(&c, 16, 160, k[1]) == nothing);
}

static void lower_tiers_and_factors_count_in_the_delay(void **)
{
    struct kvr_delay_model m = {.ttft = {.token_ms = 0.1}, .generation = {.block_ms = 0.01, .tokens = 100}, .output_tokens = -1};
    kvr_ttft_weigh_tiers(&m.ttft, 0.75, 0.25);
    struct kvr_cost_config c;
    kvr_cost_config_init(&c);
    struct kvr_candidate k = {.model = &m, .factor = 1};
    double cold = cost_of(&c, 16, 1600, k);
    k.host_blocks = 50;
    double host = cost_of(&c, 16, 1600, k);
    assert_true(fabs(cold - 320) < 1e-9 && fabs(host - 320 * (1 - 0.75 / 2)) < 1e-9); /* own and the next one's */
    k.pressure = 0.5; /* evicting costs twice what computing does, for the half that is evicted */
    assert_true(fabs(cost_of(&c, 16, 1600, k) - host - 0.1 * 1600 * (1 - 0.75 / 2)) < 1e-9);
    k.pressure = 0;
    k.factor = 2;
    assert_true(fabs(cost_of(&c, 16, 1600, k) - 2 * host) < 1e-9);
    m.output_tokens = 10;
    k.decode_blocks = 1000;
    double few = cost_of(&c, 16, 1600, k);
    m.output_tokens = -1;
    assert_true(fabs(cost_of(&c, 16, 1600, k) - few - 2 * 0.4 * 90 * 0.01 * 1000) < 1e-9);
    k.decode_blocks = 0;
    double computed = cost_of(&c, 16, 1600, k);
    c.decode_role = true; /* the prompt comes computed, and what is lacking is transferred */
    assert_true(cost_of(&c, 16, 1600, k) > 0 && cost_of(&c, 16, 1600, k) < 0.5 * computed);
    k.device_blocks = 100;
    assert_true(cost_of(&c, 16, 1600, k) == 0);
    k.device_blocks = 0;
    c.overlap_credit = 0; /* by load alone */
    assert_true(cost_of(&c, 16, 1600, k) == 0);
}

static void equals_take_turns(void **)
{
    struct kvr_cost costs[3] = {{.cost = 100}, {.cost = 110}, {.cost = 105, .effective_blocks = 0}};
    struct kvr_candidate k[3] = {{.turn = 9}, {.turn = 3}, {.turn = 5}};
    costs[0].effective_blocks = 0;
    assert_int_equal(kvr_pick_in_turn(k, costs, 3, 0.2), 1);
    assert_int_equal(kvr_pick_in_turn(k, costs, 3, 0.07), 2);
    assert_int_equal(kvr_pick_in_turn(k, costs, 3, 0.01), 0);
    costs[0].effective_blocks = 4; /* who holds more is not equal */
    assert_int_equal(kvr_pick_in_turn(k, costs, 3, 0.2), 0);
}

static void a_decode_leg_goes_to_the_calmest_whatever_is_held(void **)
{
    struct kvr_candidate k[3] = {{.decode_blocks = 20, .device_blocks = 50, .active_requests = 1, .turn = 1},
                                 {.decode_blocks = 10, .active_requests = 2, .turn = 2},
                                 {.decode_blocks = 10, .active_requests = 2, .turn = 3}};
    struct kvr_cost costs[3] = {{.cost = 1, .effective_blocks = 50}, {.cost = 1.05}, {.cost = 1.08}};
    assert_int_equal(kvr_pick_calmest(k, costs, 3, 0.1), 1);
    k[1].turn = 4;
    assert_int_equal(kvr_pick_calmest(k, costs, 3, 0.1), 2);
    k[1].active_requests = 1;
    assert_int_equal(kvr_pick_calmest(k, costs, 3, 0.1), 1);
    assert_int_equal(kvr_pick_calmest(k, costs, 3, 0.01), 0);
}

static double noise(struct kvr_rng *rng)
{
    return kvr_rng_unit(rng) - 0.5;
}

static void factors_tell_slow_workers_and_forget(void **)
{
    struct kvr_ttft_factor f;
    kvr_ttft_factor_init(&f);
    assert_true(f.value == 1);
    kvr_ttft_factor_observe(&f, 100, 100000); /* one stall is worth little: five times, against ten that say 1 */
    assert_true(f.value < 1.5);
    for (int i = 0; i < 300; i++) kvr_ttft_factor_observe(&f, 100, 300);
    assert_true(f.value > 2.5 && f.value < 3);
    struct kvr_ttft_factor alike;
    kvr_ttft_factor_init(&alike);
    for (int i = 0; i < 100; i++) kvr_ttft_factor_observe(&alike, 100, i % 2 ? 140 : 76); /* 8 % slower in the mean */
    assert_true(alike.value == 1);
    for (int i = 0; i < 100; i++) kvr_ttft_factor_observe(&alike, 100, i % 2 ? 124 : 60); /* 8 % faster */
    assert_true(alike.value == 1);
    for (int i = 0; i < 4; i++) kvr_ttft_factor_age(&f);
    assert_true(f.value < 1.1);
    for (int i = 0; i < 300; i++) kvr_ttft_factor_observe(&f, 100, 50);
    assert_true(f.value < 0.7);
    kvr_ttft_factor_observe(&f, NAN, 1);
    kvr_ttft_factor_observe(&f, 0, 1);
    kvr_ttft_factor_observe(&f, 1, INFINITY);
    assert_int_equal(f.observations, 601);
}

/* Many lines fit requests that are all alike. The one that is kept must stay where it predicts other requests too. */
static void alike_requests_do_not_make_the_line_wander(void **)
{
    struct kvr_ttft_model m;
    struct kvr_rng rng = {8};
    kvr_ttft_init(&m);
    for (int i = 0; i < 20000; i++) {
        double ahead = 4224 * (double)kvr_rng_below(&rng, 4), ms = 120 + 0.02 * ahead + 60 * noise(&rng);
        if (i % 37 == 0) ms *= 4;
        kvr_ttft_observe(&m, 4224, ahead, 30, ms);
        if (i > 50) assert_true(m.base_ms < 400 && m.token_ms < 0.1 && m.ahead_ms < 0.1 && m.request_ms < 15);
    }
    double alike = kvr_ttft_predict(&m, 4224, 0, 30), small = kvr_ttft_predict(&m, 100, 0, 30);
    assert_true(alike > 90 && alike < 200 && small <= alike && small >= 0);
}

static void models_learn_and_stay_robust(void **)
{
    struct kvr_ttft_model m;
    struct kvr_rng rng = {4};
    kvr_ttft_init(&m);
    for (int i = 0; i < 2000; i++) {
        double own = kvr_rng_below(&rng, 8000), ahead = i % 3 ? kvr_rng_below(&rng, 4000) : 0, n = kvr_rng_below(&rng, 30);
        double ms = 12 + 0.03 * own + 0.015 * ahead + 0.8 * n + 4 * noise(&rng);
        if (i % 51 == 49) ms += 5000; /* a stall now and then */
        kvr_ttft_observe(&m, own, ahead, n, ms);
    }
    assert_true(fabs(m.token_ms - 0.03) < 0.003 && fabs(m.ahead_ms - 0.015) < 0.003 && fabs(m.request_ms - 0.8) < 0.3);
    assert_true(fabs(kvr_ttft_predict(&m, 4000, 1000, 10) - (12 + 120 + 15 + 8)) < 10);
    for (int i = 0; i < 1000; i++) kvr_ttft_observe(&m, 1000, 0, 0, 100); /* the engine changed; and no excitation */
    assert_true(fabs(kvr_ttft_predict(&m, 1000, 0, 0) - 100) < 5);
    kvr_ttft_observe(&m, NAN, 0, 0, 1);
    kvr_ttft_observe(&m, 1, 0, 0, INFINITY);
    kvr_ttft_observe(&m, -1, 0, 0, 1);
    assert_true(isfinite(kvr_ttft_predict(&m, 1e6, 1e6, 1000)));
    for (int i = 0; i < 200; i++) kvr_ttft_observe(&m, 1000 + i, 0, 0, 50 - i * 0.2); /* falls with length: never a negative price */
    assert_true(m.token_ms > 0 && m.ahead_ms >= 0 && m.request_ms >= 0 && m.base_ms >= 0);
}

/* Small prompts to fast engines on a busy machine: longer ones are not slower. The worker that holds the prompt is chosen all the same. */
static void times_that_are_noise_do_not_make_tokens_free(void **)
{
    struct kvr_ttft_model m;
    kvr_ttft_init(&m);
    for (int i = 0; i < 300; i++) kvr_ttft_observe(&m, 50 + 3 * (i % 100), 0, 0, 8 - 0.05 * (i % 100));
    assert_true(m.token_ms > 0 && m.token_ms < 0.001 && fabs(kvr_ttft_predict(&m, 200, 0, 0) - 5.5) < 0.5);

    struct kvr_delay_model model = {.ttft = m, .output_tokens = -1};
    struct kvr_cost_config cfg;
    kvr_cost_config_init(&cfg);
    struct kvr_candidate c[2] = {{.model = &model, .factor = 1, .turn = 0}, {.model = &model, .factor = 1, .turn = 9, .device_blocks = 16}};
    struct kvr_cost costs[2];
    kvr_cost_of(&cfg, 16, 300, c, 2, costs);
    assert_true(costs[1].cost < costs[0].cost);
    assert_int_equal(kvr_pick_in_turn(c, costs, 2, KVR_TURN_TOLERANCE), 1);
}

/* Waiting tokens and own ones come together: the price of a token stays that of calm requests. */
static void prompts_that_queue_do_not_make_tokens_cheap(void **)
{
    struct kvr_ttft_model m;
    struct kvr_rng rng = {5};
    kvr_ttft_init(&m);
    for (int i = 0; i < 3000; i++) {
        double own = 200 + kvr_rng_below(&rng, 4000), ahead = i % 4 ? own * (1 + kvr_rng_below(&rng, 3)) : 0;
        kvr_ttft_observe(&m, own, ahead, 5, 16 + 0.015 * own + 0.012 * ahead + 6 * noise(&rng));
    }
    assert_true(fabs(m.token_ms - 0.015) < 0.002 && fabs(m.ahead_ms - 0.012) < 0.002);
}

/* A fleet that is always behind has no calm requests: those least behind teach it the price all the same. */
static void a_fleet_that_is_always_behind_learns(void **)
{
    struct kvr_ttft_model m;
    struct kvr_rng rng = {6};
    kvr_ttft_init(&m);
    for (int i = 0; i < 5000; i++) {
        double own = 200 + kvr_rng_below(&rng, 4000), ahead = 1000 + kvr_rng_below(&rng, 20000);
        kvr_ttft_observe(&m, own, ahead, 5, 16 + 0.015 * own + 0.012 * ahead + 6 * noise(&rng));
    }
    assert_true(m.observations > 20);
    assert_true(m.token_ms > 0.0075 && m.token_ms < 0.03 && m.ahead_ms > 0.006 && m.ahead_ms <= m.token_ms);
}

static void generation_is_learnt_by_the_blocks_in_use(void **)
{
    struct kvr_generation_model g;
    struct kvr_rng rng = {7};
    kvr_generation_init(&g);
    assert_true(g.tokens == 0 && g.block_ms == 0 && g.base_ms == 0);
    for (int i = 0; i < 3000; i++) {
        double blocks = kvr_rng_below(&rng, 3000), tokens = 20 + kvr_rng_below(&rng, 21);
        kvr_generation_observe(&g, blocks, tokens, tokens * (6 + 0.02 * blocks + noise(&rng)));
    }
    assert_true(fabs(g.block_ms - 0.02) < 0.002 && fabs(g.base_ms - 6) < 2 && fabs(g.tokens - 30) < 5);
    for (int i = 0; i < 1000; i++) kvr_generation_observe(&g, kvr_rng_below(&rng, 3000), 10, 50); /* no slope: never a negative price */
    assert_true(g.block_ms >= 0 && g.block_ms < 0.002);
    struct kvr_generation_model before = g;
    kvr_generation_observe(&g, NAN, 1, 1);
    kvr_generation_observe(&g, 1, 0, 1);
    kvr_generation_observe(&g, 1, 1, INFINITY);
    kvr_generation_observe(&g, -1, 1, 1);
    assert_memory_equal(&g, &before, sizeof g);
}

/* 1,000 + 500 prompt tokens to compute and `blocks` to read from the host, which takes `share` of computing. */
static void observe_reads(struct kvr_ttft_model *m, struct kvr_rng *rng, int n, double share)
{
    for (int i = 0; i < n; i++) {
        double own = 1000 + kvr_rng_below(rng, 500), read[KVR_TIER_COUNT] = {0, kvr_rng_below(rng, 4000), 0, 0};
        kvr_ttft_observe_reads(m, own, read, 0, 0, 20 + 0.1 * (own + share * read[KVR_TIER_HOST_PINNED]) + 4 * noise(rng));
    }
}

/* Reading takes a tenth of computing: that is learned, and then what the host has is worth more than by its weight. Where reading takes
 * longer than computing the tier is worth nothing. */
static void what_reading_takes_is_learned(void **)
{
    struct kvr_delay_model m = {.output_tokens = -1};
    struct kvr_rng rng = {9};
    struct kvr_candidate k[2] = {{.worker = {1, 0}, .host_blocks = 100, .model = &m, .factor = 1},
                                 {.worker = {2, 0}, .model = &m, .factor = 1}};
    struct kvr_cost_config cfg;
    struct kvr_cost cost[2];
    kvr_cost_config_init(&cfg);
    kvr_ttft_init(&m.ttft);
    const double *share = m.ttft.share;
    assert_true(share[KVR_TIER_HOST_PINNED] == 0.25 && share[KVR_TIER_DISK] == 0.75 && share[KVR_TIER_DEVICE] == 0);
    observe_reads(&m.ttft, &rng, 200, 0.1);
    assert_true(fabs(share[KVR_TIER_HOST_PINNED] - 0.1) < 0.02 && share[KVR_TIER_DISK] == 0.75 && share[KVR_TIER_EXTERNAL] == 0.75);
    assert_true(fabs(m.ttft.token_ms - 0.1) < 0.01);
    struct kvr_ttft_model before = m.ttft;
    kvr_ttft_observe_reads(&m.ttft, 1000, (const double[KVR_TIER_COUNT]){0, NAN, 0, 0}, 0, 0, 100);
    kvr_ttft_observe_reads(&m.ttft, 1000, (const double[KVR_TIER_COUNT]){0, 0, -1, 0}, 0, 0, 100);
    assert_memory_equal(&m.ttft, &before, sizeof before);
    kvr_ttft_observe_reads(&m.ttft, 1000, (const double[KVR_TIER_COUNT]){0, 1000, 0, 0}, 0, 0, 1e6); /* a stall */
    assert_true(fabs(share[KVR_TIER_HOST_PINNED] - 0.1) < 0.03);
    kvr_cost_of(&cfg, 16, 3200, k, 2, cost);
    assert_true(cost[0].cost < 0.7 * cost[1].cost && cost[0].cached_tokens > 1300);
    observe_reads(&m.ttft, &rng, 1500, 1.6);
    kvr_cost_of(&cfg, 16, 3200, k, 2, cost);
    assert_true(share[KVR_TIER_HOST_PINNED] > 1.4 && cost[0].cost == cost[1].cost && cost[0].cached_tokens == 0);
    observe_reads(&m.ttft, &rng, 400, 50); /* whatever was seen it is a share, */
    assert_true(share[KVR_TIER_HOST_PINNED] <= 2);
    for (int i = 0; i < 400; i++) kvr_ttft_observe_reads(&m.ttft, 100, (const double[KVR_TIER_COUNT]){0, 9000, 0, 0}, 0, 0, 0);
    assert_true(share[KVR_TIER_HOST_PINNED] >= 0 && m.ttft.token_ms > 0); /* and never less than nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_reading_takes_is_learned),
        cmocka_unit_test(cached_tokens_above_the_prompt),
        cmocka_unit_test(request_weight),
        cmocka_unit_test(weights_without_effect_on_the_delay),
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
        cmocka_unit_test(overrides_have_their_ranges),
        cmocka_unit_test(shared_hits_lower_the_cost),
        cmocka_unit_test(the_decode_role_credits_overlap_against_decode),
        cmocka_unit_test(one_request_can_be_a_decode_leg),
        cmocka_unit_test(documented_costs),
        cmocka_unit_test(a_credit_above_one_prefers_a_loaded_warm_worker),
        cmocka_unit_test(preferred_taints_scale_costs),
        cmocka_unit_test(the_delay_cost_adds_up),
        cmocka_unit_test(what_is_pending_is_as_good_as_held),
        cmocka_unit_test(lower_tiers_and_factors_count_in_the_delay),
        cmocka_unit_test(equals_take_turns),
        cmocka_unit_test(a_decode_leg_goes_to_the_calmest_whatever_is_held),
        cmocka_unit_test(factors_tell_slow_workers_and_forget),
        cmocka_unit_test(alike_requests_do_not_make_the_line_wander),
        cmocka_unit_test(models_learn_and_stay_robust),
        cmocka_unit_test(times_that_are_noise_do_not_make_tokens_free),
        cmocka_unit_test(prompts_that_queue_do_not_make_tokens_cheap),
        cmocka_unit_test(a_fleet_that_is_always_behind_learns),
        cmocka_unit_test(generation_is_learnt_by_the_blocks_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
