/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of routers that know no events, one at a time, and their tree against a naive one. */
#include "test.h"

#include "sim/sticky.h"

static const bool everybody[8] = {true, true, true, true, true, true, true, true};

static const struct sticky_rules plain = {
    .threshold = 0.5, .apart = 3, .times = 1.5, .gate = STICKY_SPREAD, .miss = STICKY_LEAST_LOADED, .tree_size = 1000, .evict_s = 1e6};

static long send_text(struct sticky *s, const char *text, const bool *present, uint64_t now_ns)
{
    uint32_t tokens[256];
    size_t n = strlen(text);
    assert_true(n <= 256);
    for (size_t i = 0; i < n; i++) tokens[i] = (unsigned char)text[i];
    return sticky_choose(s, tokens, n, present, now_ns);
}

static long send(struct sticky *s, const char *text)
{
    return send_text(s, text, everybody, 0);
}

static size_t match(struct sticky *s, const char *text, long *first)
{
    uint32_t tokens[256];
    for (size_t i = 0; i < strlen(text); i++) tokens[i] = (unsigned char)text[i];
    return sticky_match(s, tokens, strlen(text), first);
}

static void a_long_match_goes_where_it_was_and_a_short_one_to_the_least_loaded(void **)
{
    struct sticky *s = sticky_create(&plain, 3);
    assert_int_equal(send(s, "aaaaaaaaaa"), 0);  /* nobody has it: the first of the least loaded */
    assert_int_equal(send(s, "aaaaaabbbb"), 0);  /* 6 of 10 */
    assert_int_equal(send(s, "aaaaacccccc"), 1); /* 5 of 11 */
    assert_int_equal(send(s, "aaaaadddddd"), 2);
    assert_int_equal(send(s, "aaaaaddddd"), 2); /* whoever had the deepest node */
    assert_int_equal(send(s, "xxxxx"), 1);
    assert_int_equal(send(s, ""), 0);
    sticky_destroy(s);
}

static void the_share_must_be_above_the_threshold(void **)
{
    struct sticky *s = sticky_create(&plain, 2);
    assert_int_equal(send(s, "abcdefgh"), 0);
    assert_int_equal(send(s, "abcdWXYZ"), 1); /* a half is not above a half */
    assert_int_equal(send(s, "abcdeXYZ"), 0);
    sticky_destroy(s);
}

static void the_first_letter_behind_a_prefix_chooses_among_its_holders(void **)
{
    struct sticky_rules r = plain;
    long first;
    r.threshold = 0.9;
    struct sticky *s = sticky_create(&r, 2);
    assert_int_equal(send(s, "prefix-one"), 0);
    assert_int_equal(send(s, "prefix-two"), 1);
    assert_int_equal(match(s, "prefix-", &first), 7);
    assert_int_equal(first, 0);
    assert_int_equal(match(s, "prefix-x", &first), 7);
    assert_int_equal(first, 0);
    assert_int_equal(match(s, "prefix-tail", &first), 8);
    assert_int_equal(first, 1);
    assert_int_equal(match(s, "zzz", &first), 0);
    assert_int_equal(first, -1);
    sticky_destroy(s);
}

static void a_wide_spread_of_load_needs_both_thresholds(void **)
{
    struct sticky *s = sticky_create(&plain, 2);
    const bool only_second[2] = {false, true};
    for (int i = 0; i < 4; i++) assert_int_equal(send(s, "aaaa"), 0); /* 4 against 0: after this 4 - 0 > 3 and 4 > 1.5 * 0 */
    assert_int_equal(send(s, "aaaa"), 1);
    for (int i = 0; i < 9; i++) assert_int_equal(send_text(s, "bbbb", only_second, 0), 1); /* 10 against 4 */
    assert_int_equal(send(s, "bbbb"), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(send(s, "bbbb"), 0); /* 10 - 6 > 3 and 10 > 9: still wide */
    assert_int_equal(send(s, "bbbb"), 1);                             /* 10 - 7 is not above 3 */
    for (int i = 0; i < 5; i++) sticky_ended(s, 0);
    assert_int_equal(send(s, "bbbb"), 0); /* 11 - 2 */
    sticky_destroy(s);
}

static void a_worker_above_the_mean_spills(void **)
{
    struct sticky_rules r = plain;
    r.gate = STICKY_MEAN;
    r.apart = 64;
    struct sticky *s = sticky_create(&r, 4);
    /* The margin is 4 while the mean is at most 4: load > mean + 4 and > 1.5 * mean. */
    for (int i = 0; i < 6; i++) assert_int_equal(send(s, "aaaa"), 0); /* 5 > 1.25 + 4 is false, 6 > 1.5 + 4 is true */
    assert_int_equal(send(s, "aaaa"), 1);
    sticky_ended(s, 0);
    sticky_ended(s, 1);
    assert_int_equal(send(s, "aaaa"), 0);
    sticky_destroy(s);
    r.apart = 2; /* below four, it holds as it is */
    s = sticky_create(&r, 4);
    for (int i = 0; i < 3; i++) assert_int_equal(send(s, "aaaa"), 0); /* 2 > 0.5 + 2 is false, 3 > 0.75 + 2 is true */
    assert_int_equal(send(s, "aaaa"), 1);
    sticky_destroy(s);
}

static void misses_have_three_rules(void **)
{
    struct sticky_rules r = plain;
    struct sticky *s = sticky_create(&r, 2);
    assert_int_equal(send(s, "a"), 0);
    sticky_ended(s, 0);
    assert_int_equal(send(s, "b"), 0); /* both idle: the first */
    sticky_destroy(s);
    r.miss = STICKY_LEAST_USED;
    s = sticky_create(&r, 2);
    assert_int_equal(send(s, "a"), 0);
    sticky_ended(s, 0);
    assert_int_equal(send(s, "b"), 1); /* both idle: who had fewer */
    sticky_destroy(s);
    r.miss = STICKY_SMALLEST;
    s = sticky_create(&r, 2);
    assert_int_equal(send(s, "aaaaaaaa"), 0);
    assert_int_equal(send(s, "bb"), 1);
    assert_int_equal(send(s, "cc"), 1); /* busier, but its tree is smaller */
    assert_int_equal(sticky_size(s, 0), 8);
    assert_int_equal(sticky_size(s, 1), 4);
    sticky_destroy(s);
}

static void who_is_absent_is_not_chosen(void **)
{
    const bool second[2] = {false, true}, nobody[2] = {false, false};
    for (int forgets = 0; forgets < 2; forgets++) {
        struct sticky_rules r = plain;
        r.forgets = forgets;
        struct sticky *s = sticky_create(&r, 2);
        assert_int_equal(send(s, "aaaaaaaa"), 0);
        sticky_left(s, 0);
        assert_int_equal(sticky_size(s, 0), forgets ? 0 : 8);
        assert_int_equal(send_text(s, "aaaaaaaa", second, 0), 1);
        assert_int_equal(send_text(s, "aaaaaaaa", nobody, 0), -KVR_ENOENDPOINTS);
        assert_int_equal(send(s, "aaaaaaaa"), forgets ? 1 : 0); /* back: is it remembered? */
        sticky_destroy(s);
    }
}

static void old_tails_go_first_when_a_tree_is_too_large(void **)
{
    struct sticky_rules r = plain;
    long first;
    r.tree_size = 12;
    r.evict_s = 10;
    struct sticky *s = sticky_create(&r, 1);
    assert_int_equal(send_text(s, "prefix-one", everybody, 1), 0);
    assert_int_equal(send_text(s, "prefix-two", everybody, 2), 0);
    assert_int_equal(send_text(s, "qq", everybody, 3), 0);
    assert_int_equal(sticky_size(s, 0), 15);
    assert_int_equal(send_text(s, "prefix-two", everybody, 10000000000u), 0);
    assert_int_equal(sticky_size(s, 0), 12);
    assert_int_equal(match(s, "prefix-one", &first), 7);
    assert_int_equal(match(s, "prefix-two", &first), 10);
    assert_int_equal(match(s, "qq", &first), 2);
    sticky_destroy(s);
}

/* Texts of three letters; the naive tree is the list of all that was sent. */
static void the_tree_agrees_with_a_list_of_texts(void **)
{
    enum { TEXTS = 400, WORKERS = 4, LONGEST = 12 };
    static char texts[TEXTS][LONGEST + 1];
    static long where[TEXTS];
    struct kvr_rng rng = {env_u64("KVR_SEED", 11)};
    struct sticky_rules r = plain;
    r.threshold = 1; /* always the least loaded */
    struct sticky *s = sticky_create(&r, WORKERS);
    for (size_t i = 0; i < TEXTS; i++) {
        size_t n = kvr_rng_below(&rng, LONGEST + 1), best = 0;
        long first;
        for (size_t k = 0; k < n; k++) texts[i][k] = (char)('a' + kvr_rng_below(&rng, 3));
        texts[i][n] = 0;
        for (size_t j = 0; j < i; j++) {
            size_t same = 0;
            while (texts[i][same] && texts[i][same] == texts[j][same]) same++;
            best = KVR_MAX(best, same);
        }
        assert_int_equal(match(s, texts[i], &first), best);
        if (best) { /* who is named has sent a text that long */
            bool has = false;
            for (size_t j = 0; j < i; j++) has = has || (where[j] == first && strncmp(texts[i], texts[j], best) == 0);
            assert_true(has);
        }
        where[i] = send(s, texts[i]);
    }
    for (uint32_t w = 0; w < WORKERS; w++) {
        size_t prefixes = 0; /* different ones, of the texts of this worker */
        for (size_t i = 0; i < TEXTS; i++)
            for (size_t n = 1; where[i] == w && n <= strlen(texts[i]); n++) {
                bool known = false;
                for (size_t j = 0; j < i && !known; j++)
                    known = where[j] == w && strlen(texts[j]) >= n && strncmp(texts[i], texts[j], n) == 0;
                prefixes += !known;
            }
        assert_int_equal(sticky_size(s, w), prefixes);
    }
    sticky_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_match_goes_where_it_was_and_a_short_one_to_the_least_loaded),
        cmocka_unit_test(the_share_must_be_above_the_threshold),
        cmocka_unit_test(the_first_letter_behind_a_prefix_chooses_among_its_holders),
        cmocka_unit_test(a_wide_spread_of_load_needs_both_thresholds),
        cmocka_unit_test(a_worker_above_the_mean_spills),
        cmocka_unit_test(misses_have_three_rules),
        cmocka_unit_test(who_is_absent_is_not_chosen),
        cmocka_unit_test(old_tails_go_first_when_a_tree_is_too_large),
        cmocka_unit_test(the_tree_agrees_with_a_list_of_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
