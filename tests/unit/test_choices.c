/* SPDX-License-Identifier: Apache-2.0 */
/* What choices were worth: the arithmetic of it. */
#include "test.h"

#include "app/serve/data/state/choices.h"

static void what_is_pending_may_be_delivered_or_not(void **)
{
    assert_int_equal(choices_error(64, 0, 64), 0);
    assert_int_equal(choices_error(64, 0, 16), 48);
    assert_int_equal(choices_error(64, 0, 80), 16);
    assert_int_equal(choices_error(0, 512, 0), 0); /* who computed it failed */
    assert_int_equal(choices_error(0, 512, 256), 0);
    assert_int_equal(choices_error(0, 512, 512), 0);
    assert_int_equal(choices_error(0, 512, 528), 16);
    assert_int_equal(choices_error(512, 64, 512), 0);
    assert_int_equal(choices_error(512, 64, 64), 448); /* the view's promise stands */
    assert_int_equal(choices_error(512, 64, 528), 16);
}

static void is(struct choices_verdict v, bool moved, uint32_t again, enum choices_reason reason)
{
    assert_int_equal(v.moved, moved);
    assert_int_equal(v.again, again);
    if (again) assert_string_equal(choices_reason_name(v.reason), choices_reason_name(reason));
}

/* Chosen by cost though another candidate holds 60 of 100 blocks, and it 10. */
static const struct kvr_router_result away = {
    .required_blocks = 100, .held_blocks = 10, .most_blocks = 60, .longest_blocks = 60, .scored = true, .candidates = 4};

static void moves_have_a_reason(void **)
{
    struct kvr_router_result r = away;
    is(choices_judge(&r, false), true, 50, CHOICES_LOAD);
    is(choices_judge(&r, true), true, 50, CHOICES_CHANCE);
    r.copy_blocks = 25;
    is(choices_judge(&r, false), true, 50, CHOICES_COPY);
    r.copy_blocks = 24;
    is(choices_judge(&r, false), true, 50, CHOICES_LOAD);
    r.scored = false;
    is(choices_judge(&r, false), true, 50, CHOICES_CHANCE);
    r.preferred = true;
    is(choices_judge(&r, false), true, 50, CHOICES_SESSION);
    r.pinned = true;
    is(choices_judge(&r, false), true, 50, CHOICES_PINNED);
    r = away;
    r.most_blocks = 10; /* the holder is no candidate */
    is(choices_judge(&r, false), true, 50, CHOICES_NOT_ELIGIBLE);
    r.most_blocks = 9; /* other tiers of the chosen one count for it */
    is(choices_judge(&r, false), true, 50, CHOICES_NOT_ELIGIBLE);
}

static void who_holds_as_much_or_has_it_in_work_loses_nothing(void **)
{
    struct kvr_router_result r = away;
    r.held_blocks = 60;
    is(choices_judge(&r, false), false, 0, CHOICES_LOAD);
    r.held_blocks = 0;
    r.pending_blocks = 60; /* a sibling computes it there */
    is(choices_judge(&r, false), false, 0, CHOICES_LOAD);
    r.pending_blocks = 50;
    is(choices_judge(&r, false), true, 10, CHOICES_LOAD);
    r = away;
    r.longest_blocks = r.most_blocks = 49; /* less than half: no move, computed again all the same */
    is(choices_judge(&r, false), false, 39, CHOICES_LOAD);
    is(choices_judge(&(struct kvr_router_result){.scored = true}, false), false, 0, CHOICES_LOAD);
}

static const char *advice(const struct choices_totals *m)
{
    static char line[1024];
    size_t n = choices_advice(m, line, sizeof line);
    if (n) assert_int_equal(strlen(line), n);
    return n ? line : "";
}

static void advice_says_how_many_and_what_would_help(void **s)
{
    (void)s;
    struct choices_totals m = {.choices = 412, .stored_blocks = 100000, .removed_blocks = 93000};
    m.moved[CHOICES_LOAD] = 38;
    m.again[CHOICES_LOAD] = 31200;
    assert_string_equal(
        advice(&m), "choices of the last minute: 412; 38 moved away from their prefix by load (31,200 blocks computed again), caches evict "
                    "0.93 blocks for each stored: more cache or another worker would help");
    m.removed_blocks = 10000; /* there is room */
    assert_string_equal(advice(&m), "choices of the last minute: 412; 38 moved away from their prefix by load (31,200 blocks computed "
                                    "again): another worker would help");
    m = (struct choices_totals){.choices = 1234567};
    m.moved[CHOICES_NOT_ELIGIBLE] = 100000;
    m.again[CHOICES_NOT_ELIGIBLE] = 999;
    m.moved[CHOICES_PINNED] = 70000;
    m.moved[CHOICES_SESSION] = 1000;
    m.again[CHOICES_PINNED] = 1000;
    m.again[CHOICES_SESSION] = 1000000;
    assert_string_equal(advice(&m),
                        "choices of the last minute: 1,234,567; 100,000 had their prefix on a worker that could not be chosen (999 blocks "
                        "computed again): it was down, overloaded, tried before, or may not serve them; 71,000 were sent away from their "
                        "prefix by a pin or a session (1,001,000 blocks computed again)");
    m = (struct choices_totals){.choices = 100, .compared = 100, .seen_ms = 80000, .alone_ms = 4000, .gain_ms = 100};
    assert_string_equal(advice(&m), "choices of the last minute: 100; first tokens took 800 ms, and would take 40 on idle workers: another "
                                    "worker would help");
    m.stored_blocks = m.removed_blocks = 10;
    assert_string_equal(advice(&m), "choices of the last minute: 100; first tokens took 800 ms, and would take 40 on idle workers, caches "
                                    "evict 1.00 blocks for each stored: another worker, or more cache if prompts come back, would help");
    m = (struct choices_totals){.choices = 100, .compared = 80, .seen_ms = 8000, .alone_ms = 4000, .regret_ms = 4000, .gain_ms = 800};
    assert_string_equal(advice(&m), "choices of the last minute: 100; first tokens came 40 ms later than the best other worker's would "
                                    "have, of 100: see kvroute_choice_regret_ms");
}

static void nothing_worth_a_word_is_not_said(void **)
{
    struct choices_totals m = {.choices = 49, .stored_blocks = 1000, .removed_blocks = 1000};
    m.moved[CHOICES_LOAD] = m.moved[CHOICES_NOT_ELIGIBLE] = 49; /* too few choices */
    assert_string_equal(advice(&m), "");
    m.choices = 1000; /* 4.9 % */
    assert_string_equal(advice(&m), "");
    m.choices = 980;
    assert_true(strlen(advice(&m)) > 0);
    m = (struct choices_totals){.choices = 1000, .stored_blocks = 1000, .removed_blocks = 1000}; /* full caches that do no harm */
    assert_string_equal(advice(&m), "");
    m.moved[CHOICES_COPY] = m.moved[CHOICES_CHANCE] = 1000; /* as wanted */
    assert_string_equal(advice(&m), "");
    m = (struct choices_totals){
        .choices = 1000, .compared = 1000, .seen_ms = 100000, .alone_ms = 50000, .regret_ms = 50000, .gain_ms = 40000};
    assert_string_equal(advice(&m), "");
    m = (struct choices_totals){.choices = 1000, .compared = 10, .seen_ms = 1000, .alone_ms = 10, .regret_ms = 900};
    assert_string_equal(advice(&m), "");
    assert_string_equal(advice(&(struct choices_totals){0}), "");
}

static void advice_fits_what_there_is(void **)
{
    char line[32];
    struct choices_totals m = {.choices = 100};
    m.moved[CHOICES_LOAD] = 100;
    assert_int_equal(choices_advice(&m, line, sizeof line), sizeof line - 1);
    assert_string_equal(line, "choices of the last minute: 100");
}

static void advice_comes_at_most_once_a_minute_and_is_of_the_last_one(void **)
{
    static struct choices_watch w;
    struct choices_totals t = {0};
    char line[1024];
    unsigned said = 0;
    for (unsigned second = 0; second < 300; second++) {
        t.choices += 10;
        t.moved[CHOICES_LOAD] += second < 100;
        t.again[CHOICES_LOAD] += 1000 * (second < 100);
        t.stored_blocks += 100;
        t.removed_blocks += 60;
        size_t n = choices_tick(&w, &t, line, sizeof line);
        if (n && second > 60) assert_non_null(strstr(line, "choices of the last minute: 600; "));
        if (n && second < 100) assert_non_null(strstr(line, "caches evict 0.60 blocks"));
        said += n > 0;
        assert_true(said <= 1 + second / CHOICES_SECONDS);
    }
    assert_int_equal(said, 3); /* at 4, 64 and 124 s: then less than a twentieth of the last minute's moved */
    t.choices += 10, t.stored_blocks += 100, t.removed_blocks += 60; /* just before the next */
    struct choices_totals m = choices_last_minute(&w, &t);
    assert_true(m.choices == 600 && m.moved[CHOICES_LOAD] == 0 && m.stored_blocks == 6000);
    assert_true(choices_evictions(&m) > 0.599 && choices_evictions(&m) < 0.601);
    assert_true(choices_evictions(&(struct choices_totals){.removed_blocks = 5}) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_pending_may_be_delivered_or_not),
        cmocka_unit_test(moves_have_a_reason),
        cmocka_unit_test(who_holds_as_much_or_has_it_in_work_loses_nothing),
        cmocka_unit_test(advice_says_how_many_and_what_would_help),
        cmocka_unit_test(nothing_worth_a_word_is_not_said),
        cmocka_unit_test(advice_fits_what_there_is),
        cmocka_unit_test(advice_comes_at_most_once_a_minute_and_is_of_the_last_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
