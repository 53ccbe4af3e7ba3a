/* SPDX-License-Identifier: Apache-2.0 */
/* Classes, order, limits and fairness of the queue; a random run against a naive list. */
#include "test.h"

#include <math.h>
#include <kvroute/queue.h>

#define SECOND 1000000000ull

struct item {
    struct kvr_queue_item q;
    bool in, ready;
    int id;
};

static struct kvr_policy plain(enum kvr_queue_policy order)
{
    struct kvr_policy p;
    kvr_policy_init(&p);
    p.classes[0].policy = order;
    return p;
}

static bool always(void *, const struct kvr_queue_item *)
{
    return true;
}

static bool if_ready(void *, const struct kvr_queue_item *it)
{
    return ((const struct item *)(const void *)it)->ready;
}

static struct kvr_queue *make(const struct kvr_policy *p)
{
    struct kvr_queue *q;
    assert_int_equal(kvr_queue_create(NULL, p, 0, &q), 0);
    return q;
}

static void push(struct kvr_queue *q, struct item *it, int id, uint64_t at_s, double jump, uint64_t isl, uint64_t cached)
{
    struct kvr_rejection r;
    *it = (struct item){
        .q = {.priority_jump = jump, .isl = isl, .cached = cached, .arrived_ns = at_s * SECOND}, .in = true, .ready = true, .id = id};
    size_t c = kvr_queue_class(q, NULL, 0, isl - cached);
    assert_int_equal(kvr_queue_push(q, c, 1, &it->q, &r), 0);
}

static int pop(struct kvr_queue *q, uint64_t now_s)
{
    struct item *it = (struct item *)kvr_queue_pop(q, now_s * SECOND, if_ready, NULL);
    return it ? it->id : -1;
}

static void fcfs_jump_of_50_beats_5_seconds_of_seniority(void **)
{
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct kvr_queue *q = make(&p);
    struct item a, b, c;
    push(q, &a, 1, 0, 0, 100, 0);
    push(q, &b, 2, 5, 50, 100, 0);
    push(q, &c, 3, 5, 4, 100, 0);
    assert_int_equal(pop(q, 6), 2);
    assert_int_equal(pop(q, 6), 1); /* 4 seconds bought are less than 5 */
    assert_int_equal(pop(q, 6), 3);
    assert_int_equal(pop(q, 6), -1);
    kvr_queue_destroy(q);
}

static void lcfs_is_the_reverse(void **)
{
    struct kvr_policy p = plain(KVR_QUEUE_LCFS);
    struct kvr_queue *q = make(&p);
    struct item a, b;
    push(q, &a, 1, 0, 0, 100, 0);
    push(q, &b, 2, 5, 0, 100, 0);
    assert_int_equal(pop(q, 6), 2);
    assert_int_equal(pop(q, 6), 1);
    kvr_queue_destroy(q);
}

static void strict_priority_beats_any_score_in_all_three(void **)
{
    for (int order = 0; order < 3; order++) {
        struct kvr_policy p = plain((enum kvr_queue_policy)order);
        struct kvr_queue *q = make(&p);
        struct item a = {0}, b = {0};
        struct kvr_rejection r;
        a = (struct item){.q = {.priority_jump = 1e6, .isl = 1, .arrived_ns = SECOND}, .id = 1, .ready = true};
        b = (struct item){.q = {.strict_priority = 1, .isl = 100000, .arrived_ns = 2 * SECOND}, .id = 2, .ready = true};
        kvr_queue_push(q, 0, 1, &a.q, &r);
        kvr_queue_push(q, 0, 1, &b.q, &r);
        assert_int_equal(pop(q, 3), 2);
        assert_int_equal(pop(q, 3), 1);
        kvr_queue_destroy(q);
    }
}

static void wspt_prefers_short_and_counts_overlap(void **)
{
    struct kvr_policy p = plain(KVR_QUEUE_WSPT);
    struct kvr_queue *q = make(&p);
    struct item a, b, c, d;
    push(q, &a, 1, 0, 0, 5000, 0);
    push(q, &b, 2, 1, 0, 1000, 0);
    push(q, &c, 3, 2, 0, 5000, 4900); /* long, but cached */
    push(q, &d, 4, 3, 0, 9000, 9000); /* wholly cached: clamped to 1 */
    assert_int_equal(pop(q, 4), 4);
    assert_int_equal(pop(q, 4), 3);
    assert_int_equal(pop(q, 4), 2);
    assert_int_equal(pop(q, 4), 1);
    kvr_queue_destroy(q);
}

static void ageing_bounds_the_starvation_of_wspt(void **)
{
    struct kvr_policy p = plain(KVR_QUEUE_WSPT);
    for (int aged = 0; aged < 2; aged++) {
        p.classes[0].ageing_ns = aged ? 10 * SECOND : 0;
        struct kvr_queue *q = make(&p);
        struct item longest, others[100];
        push(q, &longest, 1000, 0, 0, 100000, 0);
        int served_at = -1;
        for (int i = 0; i < 100; i++) { /* a short one each second, and one is served each second */
            push(q, &others[i], i, (uint64_t)i, 0, 10, 0);
            if (pop(q, (uint64_t)i) == 1000) served_at = i;
        }
        assert_int_equal(served_at, aged ? 10 : -1);
        kvr_queue_destroy(q);
    }
}

static struct kvr_policy matrix(void)
{
    struct kvr_policy p = {.default_family = "std", .buckets_n = 2, .classes_n = 5};
    p.buckets[1].min_tokens = 1000;
    snprintf(p.buckets[0].name, 64, "small");
    snprintf(p.buckets[1].name, 64, "large");
    const char *const rows[5][3] = {{"std-small", "std", "small"},
                                    {"std-large", "std", "large"},
                                    {"vip-small", "vip", "small"},
                                    {"vip-large", "vip", "large"},
                                    {"batch", "", ""}};
    for (int i = 0; i < 5; i++) {
        kvr_class_config_init(&p.classes[i]);
        snprintf(p.classes[i].name, 64, "%s", rows[i][0]);
        snprintf(p.classes[i].family, 64, "%s", rows[i][1]);
        snprintf(p.classes[i].bucket, 64, "%s", rows[i][2]);
    }
    return p;
}

static const char *class_of(struct kvr_queue *q, const char *name, uint64_t uncached)
{
    return kvr_queue_class_config(q, kvr_queue_class(q, name, name ? strlen(name) : 0, uncached))->name;
}

static void families_and_buckets_choose_classes(void **)
{
    struct kvr_policy p = matrix();
    struct kvr_queue *q = make(&p);
    assert_string_equal(class_of(q, NULL, 999), "std-small");
    assert_string_equal(class_of(q, NULL, 1000), "std-large");
    assert_string_equal(class_of(q, "vip", 0), "vip-small");
    assert_string_equal(class_of(q, "vip", 5000), "vip-large");
    assert_string_equal(class_of(q, "nobody", 5000), "std-large");    /* unknown: the default family */
    assert_string_equal(class_of(q, "vip-small", 5000), "std-large"); /* a matrix class's own name is no override */
    assert_string_equal(class_of(q, "batch", 5000), "batch");         /* an explicit name is */
    kvr_queue_destroy(q);
}

static void policies_are_checked(void **)
{
    char err[256];
    struct kvr_policy p = matrix();
    assert_int_equal(kvr_policy_check(&p, err, sizeof err), 0);
    p.classes[0].busy_worker_ratio = 0.95;
    assert_int_equal(kvr_policy_check(&p, err, sizeof err), -KVR_EINVAL); /* a ratio without a threshold */
    assert_non_null(strstr(err, "busy_worker_ratio"));
    p.classes[0].busy_tokens = 1;
    assert_int_equal(kvr_policy_check(&p, err, sizeof err), 0);
    p.classes[0].busy_worker_ratio = 16;
    assert_int_equal(kvr_policy_check(&p, err, sizeof err), -KVR_EINVAL);
    p = matrix();
    p.classes_n = 3; /* vip has no class for large */
    assert_int_equal(kvr_policy_check(&p, err, sizeof err), -KVR_EINVAL);
    assert_non_null(strstr(err, "vip"));
    p = matrix();
    p.buckets[0].min_tokens = 5;
    assert_int_equal(kvr_policy_check(&p, err, sizeof err), -KVR_EINVAL);
    p = matrix();
    p.classes[4].quantum = 0;
    assert_int_equal(kvr_policy_check(&p, err, sizeof err), -KVR_EINVAL);
    p = matrix();
    snprintf(p.classes[4].name, 64, "a b");
    assert_int_equal(kvr_policy_check(&p, err, sizeof err), -KVR_EINVAL);
    p = matrix();
    snprintf(p.default_family, 64, "none");
    assert_int_equal(kvr_policy_check(&p, err, sizeof err), -KVR_EINVAL);
}

static void limits_are_typed_and_follow_the_fleet(void **)
{
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    p.classes[0].requests_per_worker = 2;
    p.classes[0].raw_isl_per_worker = 1000;
    struct kvr_queue *q = make(&p);
    struct item it[8];
    struct kvr_rejection r;
    memset(it, 0, sizeof it);
    for (int i = 0; i < 4; i++) assert_int_equal(kvr_queue_push(q, 0, 2, &it[i].q, &r), 0);
    assert_int_equal(kvr_queue_push(q, 0, 2, &it[4].q, &r), -KVR_EQUEUEFULL);
    assert_int_equal(r.kind, KVR_LIMIT_REQUESTS);
    assert_int_equal(r.current, 4);
    assert_int_equal(r.limit, 4);
    assert_string_equal(r.policy_class, "default");
    assert_int_equal(kvr_queue_push(q, 0, 3, &it[4].q, &r), 0);               /* a worker more */
    assert_int_equal(kvr_queue_push(q, 0, 1, &it[5].q, &r), -KVR_EQUEUEFULL); /* two fewer: nobody is dropped */
    assert_int_equal(kvr_queue_len(q), 5);
    for (int i = 0; i < 5; i++) assert_non_null(kvr_queue_pop(q, 0, always, NULL));
    it[0].q.isl = 1500; /* the one that crosses is accepted, the next is not */
    assert_int_equal(kvr_queue_push(q, 0, 1, &it[0].q, &r), 0);
    assert_int_equal(kvr_queue_push(q, 0, 1, &it[1].q, &r), -KVR_EQUEUEFULL);
    assert_string_equal(kvr_queue_limit_name(r.kind), "raw_isl_tokens");
    struct kvr_class_stats st;
    kvr_queue_stats(q, 0, &st);
    assert_int_equal(st.rejected[KVR_LIMIT_REQUESTS], 2);
    assert_int_equal(st.rejected[KVR_LIMIT_RAW_ISL_TOKENS], 1);
    assert_int_equal(st.isl_tokens, 1500);
    kvr_queue_destroy(q);
}

static void blocked_pins_block_nobody_else(void **)
{
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct kvr_queue *q = make(&p);
    struct item it[3] = {{.q = {.pinned = true, .pin = {7, 0}}, .id = 0},
                         {.q = {.pinned = true, .pin = {8, 0}}, .id = 1, .ready = true},
                         {.q = {.isl = 1}, .id = 2, .ready = true}};
    struct kvr_rejection r;
    for (int i = 0; i < 3; i++) {
        it[i].q.arrived_ns = (uint64_t)i * SECOND;
        assert_int_equal(kvr_queue_push(q, 0, 1, &it[i].q, &r), 0);
    }
    assert_int_equal(pop(q, 9), 1);
    assert_int_equal(pop(q, 9), 2);
    assert_int_equal(pop(q, 9), -1);
    it[0].ready = true;
    assert_int_equal(pop(q, 9), 0);
    kvr_queue_destroy(q);
}

static void a_blocked_head_blocks_the_rest_of_its_lane(void **)
{
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct kvr_queue *q = make(&p);
    struct item a, b;
    push(q, &a, 1, 0, 0, 10, 0);
    push(q, &b, 2, 1, 0, 10, 0);
    a.ready = false;
    assert_int_equal(pop(q, 2), -1);
    kvr_queue_remove(q, &a.q);
    assert_int_equal(pop(q, 2), 2);
    kvr_queue_destroy(q);
}

/* Tokens served by class are as the quanta while both have work. */
static void deficit_round_robin_is_fair_by_tokens(void **)
{
    struct kvr_policy p = {.default_family = "a", .classes_n = 2};
    for (int i = 0; i < 2; i++) {
        kvr_class_config_init(&p.classes[i]);
        snprintf(p.classes[i].name, 64, "%c", 'a' + i);
        p.classes[i].quantum = i ? 300 : 100;
    }
    struct kvr_queue *q = make(&p);
    static struct item it[2][400];
    struct kvr_rejection r;
    uint64_t served[2] = {0};
    for (int c = 0; c < 2; c++)
        for (int i = 0; i < 400; i++) {
            it[c][i] = (struct item){.q = {.isl = c ? 100 : 50, .arrived_ns = (uint64_t)i}, .ready = true, .id = c};
            assert_int_equal(kvr_queue_push(q, (size_t)c, 1, &it[c][i].q, &r), 0);
        }
    for (int i = 0; i < 400; i++) {
        int c = pop(q, 1);
        assert_true(c >= 0);
        if (c < 0) break;
        served[c] += c ? 100 : 50;
    }
    double share = (double)served[1] / (double)served[0];
    assert_true(share > 2.7 && share < 3.3);
    kvr_queue_destroy(q);
}

static void tiny_quanta_still_serve(void **)
{
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    p.classes[0].quantum = 1e-3;
    struct kvr_queue *q = make(&p);
    struct item a;
    push(q, &a, 1, 0, 0, 100000, 0);
    assert_int_equal(pop(q, 1), 1);
    kvr_queue_destroy(q);
}

/* One class, fcfs, pins and removals in the middle, against a list that is searched. */
static void random_operations_equal_a_list(void **)
{
    enum { N = 200 };
    static struct item it[N];
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct failing_alloc fa = {.fail_at = -1};
    struct kvr_alloc alloc = {failing_resize, &fa};
    struct kvr_queue *q;
    struct kvr_rng rng = {env_u64("KVR_SEED", 11)};
    struct kvr_rejection r;
    memset(it, 0, sizeof it);
    assert_int_equal(kvr_queue_create(&alloc, &p, 0, &q), 0);
    for (uint64_t op = 0, ops = env_u64("KVR_OPS", 200000); op < ops; op++) {
        struct item *x = &it[kvr_rng_below(&rng, N)];
        uint32_t what = kvr_rng_below(&rng, 3);
        if (what < 2 && !x->in) {
            *x = (struct item){.q = {.pinned = kvr_rng_below(&rng, 2) == 0,
                                     .pin = {kvr_rng_below(&rng, 3), 0},
                                     .strict_priority = kvr_rng_below(&rng, 2),
                                     .priority_jump = kvr_rng_below(&rng, 5),
                                     .isl = 1 + kvr_rng_below(&rng, 100),
                                     .arrived_ns = op},
                               .in = true,
                               .ready = kvr_rng_below(&rng, 4) != 0};
            assert_int_equal(kvr_queue_push(q, 0, 1, &x->q, &r), 0);
        } else if (what == 0 && x->in) {
            kvr_queue_remove(q, &x->q);
            x->in = false;
        } else if (what == 2) {
            struct item *best = NULL, *heads[4] = {0};
            size_t len = 0;
            for (int i = 0; i < N; i++) {
                if (!it[i].in) continue;
                len++;
                struct item **h = &heads[it[i].q.pinned ? it[i].q.pin.worker_id : 3], *a = &it[i];
                if (!*h || a->q.strict_priority > (*h)->q.strict_priority ||
                    (a->q.strict_priority == (*h)->q.strict_priority &&
                     (a->q.score > (*h)->q.score || (a->q.score == (*h)->q.score && a->q.sequence < (*h)->q.sequence))))
                    *h = a;
            }
            for (int k = 0; k < 4; k++) {
                struct item *a = heads[k];
                if (!a || !a->ready) continue;
                if (!best || a->q.strict_priority > best->q.strict_priority ||
                    (a->q.strict_priority == best->q.strict_priority &&
                     (a->q.score > best->q.score || (a->q.score == best->q.score && a->q.sequence < best->q.sequence))))
                    best = a;
            }
            assert_int_equal(kvr_queue_len(q), len);
            struct item *got = (struct item *)kvr_queue_pop(q, op, if_ready, NULL);
            assert_ptr_equal(got, best);
            if (got) got->in = false;
        }
        assert_int_equal(kvr_queue_bytes(q), fa.live);
    }
    kvr_queue_destroy(q);
    assert_int_equal(fa.live, 0);
}

/* ---- tenants ----------------------------------------------------------------------------------------- */

static void push_of(struct kvr_queue *q, struct item *it, int id, uint64_t tenant, double weight, uint64_t isl)
{
    struct kvr_rejection r;
    *it = (struct item){
        .q = {.isl = isl, .tenant = tenant, .tenant_weight = weight, .arrived_ns = (uint64_t)id}, .in = true, .ready = true, .id = id};
    assert_int_equal(kvr_queue_push(q, 0, 1, &it->q, &r), 0);
}

static void a_tenant_does_not_wait_behind_the_burst_of_another(void **)
{
    static struct item flood[1000], late[2];
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct kvr_queue *q = make(&p);
    for (int i = 0; i < 1000; i++) push_of(q, &flood[i], i, 7, 1, 500);
    for (int i = 0; i < 10; i++) assert_int_equal(pop(q, 1), i);
    push_of(q, &late[0], 2000, 8, 1, 500);
    push_of(q, &late[1], 2001, 0, 0, 500); /* nobody's: a tenant too */
    assert_int_equal(pop(q, 1), 2000);
    assert_int_equal(pop(q, 1), 2001);
    assert_int_equal(pop(q, 1), 10);
    struct kvr_class_stats st;
    kvr_queue_stats(q, 0, &st);
    assert_int_equal(st.tenants, 1);
    kvr_queue_destroy(q);
}

static void tenants_share_tokens_by_their_weights(void **)
{
    static struct item it[3][3000];
    static const double weight[3] = {1, 3, 0.5};
    static const uint64_t isl[3] = {100, 1000, 10};
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct kvr_queue *q = make(&p);
    double served[3] = {0};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 3000; i++) push_of(q, &it[t][i], t, (uint64_t)t + 1, weight[t], isl[t]);
    for (double all = 0; all < 100000;) {
        int t = pop(q, 1);
        assert_true(t >= 0);
        if (t < 0) break;
        served[t] += (double)isl[t];
        all += (double)isl[t];
    }
    for (int t = 0; t < 3; t++) assert_true(fabs(served[t] / 100000 - weight[t] / 4.5) < 0.02);
    kvr_queue_destroy(q);
}

static void one_large_request_at_a_time_is_no_way_around(void **)
{
    static struct item small[4000], large;
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct kvr_queue *q = make(&p);
    double served[2] = {0};
    for (int i = 0; i < 4000; i++) push_of(q, &small[i], 0, 1, 1, 10);
    push_of(q, &large, 1, 2, 1, 1000); /* its tenant has nothing else, and comes back as soon as it is gone */
    for (int i = 0; i < 2000; i++) {
        int t = pop(q, 1);
        assert_true(t == 0 || t == 1);
        served[t == 1] += t ? 1000 : 10;
        if (t) push_of(q, &large, 1, 2, 1, 1000);
    }
    assert_true(served[1] < 1.2 * served[0] && served[1] > 0.8 * served[0]);
    kvr_queue_destroy(q);
}

static void being_silent_saves_nothing_up(void **)
{
    static struct item a[1000], b[1000];
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct kvr_queue *q = make(&p);
    for (int i = 0; i < 1000; i++) push_of(q, &a[i], 0, 1, 1, 100);
    for (int i = 0; i < 500; i++) assert_int_equal(pop(q, 1), 0);
    for (int i = 0; i < 1000; i++) push_of(q, &b[i], 1, 2, 1, 100);
    int of_b = 0;
    for (int i = 0; i < 100; i++) of_b += pop(q, 1);
    assert_true(of_b >= 49 && of_b <= 51);
    kvr_queue_destroy(q);
}

/* Two tokens with a long answer keep an engine longer than 200 with none. */
static void short_prompts_with_long_answers_are_not_free(void **)
{
    enum { N = 120 };
    static struct item cheap[N], own[3];
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct kvr_queue *q = make(&p);
    struct kvr_rejection r;
    for (int i = 0; i < N; i++) {
        cheap[i] =
            (struct item){.q = {.isl = 2, .output = 100, .tenant = 1, .arrived_ns = (uint64_t)i}, .in = true, .ready = true, .id = i};
        assert_int_equal(kvr_queue_push(q, 0, 1, &cheap[i].q, &r), 0);
    }
    for (int i = 0; i < 3; i++) push_of(q, &own[i], 1000 + i, 2, 1, 200);
    int last = 0;
    for (int place = 0; place < 8; place++)
        if (pop(q, 1) >= 1000) last++;
    assert_int_equal(last, 3);
    while (pop(q, 1) >= 0) continue;
    kvr_queue_destroy(q);
}

static void a_tenant_that_cannot_go_holds_up_nobody_and_is_not_given_what_it_missed(void **)
{
    static struct item a[100], b[1000];
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct kvr_queue *q = make(&p);
    for (int i = 0; i < 100; i++) {
        push_of(q, &a[i], 0, 1, 1, 100);
        a[i].ready = false;
    }
    for (int i = 0; i < 1000; i++) push_of(q, &b[i], 1, 2, 1, 100);
    for (int i = 0; i < 500; i++) assert_int_equal(pop(q, 1), 1);
    for (int i = 0; i < 100; i++) a[i].ready = true;
    int of_b = 0;
    for (int i = 0; i < 100; i++) of_b += pop(q, 1);
    assert_true(of_b >= 48 && of_b <= 52);
    kvr_queue_destroy(q);
}

static void priorities_raise_nobody_above_another_tenant(void **)
{
    struct item a, b[20];
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct kvr_rejection r;
    struct kvr_queue *q = make(&p);
    for (int i = 0; i < 20; i++) {
        b[i] = (struct item){.q = {.tenant = 2, .isl = 10, .strict_priority = 9, .priority_jump = 1e6}, .ready = true, .id = 1};
        assert_int_equal(kvr_queue_push(q, 0, 1, &b[i].q, &r), 0);
    }
    assert_int_equal(pop(q, 1), 1);
    push_of(q, &a, 0, 1, 1, 10);
    assert_int_equal(pop(q, 1), 0);
    kvr_queue_destroy(q);
}

static void tenants_are_bounded_and_forgotten(void **)
{
    enum { N = KVR_TENANTS_MAX + 100 };
    static struct item it[N];
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct kvr_queue *q = make(&p);
    struct kvr_class_stats st;
    for (int i = 0; i < N; i++) push_of(q, &it[i], i, (uint64_t)i + 1, 1, 10);
    kvr_queue_stats(q, 0, &st);
    assert_int_equal(st.tenants, KVR_TENANTS_MAX + 1); /* the last is that of all beyond */
    assert_int_equal(st.tenants_merged_total, 100);
    size_t most = kvr_queue_bytes(q);
    for (int i = 0; i < N; i++) assert_true(pop(q, 1) >= 0);
    assert_int_equal(kvr_queue_len(q), 0);
    size_t rest = kvr_queue_bytes(q);
    for (int round = 0; round < 20; round++) { /* others each time, while one waits all along */
        push_of(q, &it[0], 0, 1, 1e-3, 1000000);
        push_of(q, &it[1], 1, 1, 1e-3, 1000000);
        assert_int_equal(pop(q, 1), 0);
        for (int i = 2; i < 1000; i++) {
            push_of(q, &it[i], i, (uint64_t)round * 1000 + (uint64_t)i, 1, 10);
            assert_true(pop(q, 1) > 1);
        }
        assert_true(kvr_queue_bytes(q) < most);
        assert_int_equal(pop(q, 1), 1);
    }
    assert_true(kvr_queue_bytes(q) <= rest + 4096);
    kvr_queue_destroy(q);
}

/* What a list that is searched would do: clocks by tenant, and of each lane the first 4 tenants. */
struct naive {
    double clock, of[8];
    uint64_t turn[8], turns;
};

static bool naive_item_first(const struct item *a, const struct item *b)
{
    if (a->q.strict_priority != b->q.strict_priority) return a->q.strict_priority > b->q.strict_priority;
    if (a->q.score != b->q.score) return a->q.score > b->q.score;
    return a->q.sequence < b->q.sequence;
}

static bool naive_tenant_first(const struct naive *m, uint64_t a, uint64_t b)
{
    return m->of[a] != m->of[b] ? m->of[a] < m->of[b] : m->turn[a] < m->turn[b];
}

static struct item *naive_lane_head(const struct naive *m, struct item *it, int n, int lane)
{
    struct item *heads[8] = {0};
    for (int i = 0; i < n; i++) {
        if (!it[i].in || (it[i].q.pinned ? (int)it[i].q.pin.worker_id : 3) != lane) continue;
        struct item **h = &heads[it[i].q.tenant];
        if (!*h || naive_item_first(&it[i], *h)) *h = &it[i];
    }
    for (int looks = 0; looks < 4; looks++) {
        int best = -1;
        for (int t = 0; t < 8; t++)
            if (heads[t] && (best < 0 || naive_tenant_first(m, (uint64_t)t, (uint64_t)best))) best = t;
        if (best < 0) return NULL;
        if (heads[best]->ready) return heads[best];
        heads[best] = NULL;
    }
    return NULL;
}

static struct item *naive_pop(struct naive *m, struct item *it, int n)
{
    struct item *best = NULL;
    for (int lane = 0; lane < 4; lane++) {
        struct item *h = naive_lane_head(m, it, n, lane);
        if (!h) continue;
        bool first =
            !best || (h->q.tenant == best->q.tenant ? naive_item_first(h, best) : naive_tenant_first(m, h->q.tenant, best->q.tenant));
        if (first) best = h;
    }
    return best;
}

static bool naive_waits(const struct item *it, int n, uint64_t tenant, bool any)
{
    for (int i = 0; i < n; i++)
        if (it[i].in && (any || it[i].q.tenant == tenant)) return true;
    return false;
}

static void random_operations_of_tenants_equal_a_list(void **)
{
    enum { N = 60 };
    static const double weights[8] = {1, 1, 2, 0.25, 1, 3, 1, 1};
    static struct item it[N];
    struct naive m = {0};
    struct kvr_policy p = plain(KVR_QUEUE_FCFS);
    struct failing_alloc fa = {.fail_at = -1};
    struct kvr_alloc alloc = {failing_resize, &fa};
    struct kvr_queue *q;
    struct kvr_rng rng = {env_u64("KVR_SEED", 1)};
    struct kvr_rejection r;
    memset(it, 0, sizeof it);
    assert_int_equal(kvr_queue_create(&alloc, &p, 0, &q), 0);
    for (uint64_t op = 0, ops = env_u64("KVR_OPS", 400000); op < ops; op++) {
        struct item *x = &it[kvr_rng_below(&rng, N)];
        uint32_t what = kvr_rng_below(&rng, op / 5000 % 2 ? 3 : 5), fails = kvr_rng_below(&rng, 20);
        if (what < 2 && !x->in) {
            uint64_t t = kvr_rng_below(&rng, 8);
            *x = (struct item){.q = {.pinned = kvr_rng_below(&rng, 3) == 0,
                                     .pin = {kvr_rng_below(&rng, 3), 0},
                                     .strict_priority = kvr_rng_below(&rng, 2),
                                     .isl = 1 + kvr_rng_below(&rng, 100),
                                     .tenant = t,
                                     .tenant_weight = t == 1 ? 0 : weights[t],
                                     .arrived_ns = op},
                               .ready = kvr_rng_below(&rng, 4) != 0};
            if (fails < 3) fa.fail_at = fa.calls + fails;
            long calls = fa.calls;
            int rc = kvr_queue_push(q, 0, 1, &x->q, &r);
            fa.fail_at = -1;
            assert_true(rc == 0 || (rc == -KVR_ENOMEM && fa.calls > calls));
            if (rc == 0 && !naive_waits(it, N, t, false)) {
                m.of[t] = m.of[t] > m.clock ? m.of[t] : m.clock;
                m.turn[t] = m.turns;
            }
            m.turns += rc == 0;
            x->in = rc == 0;
        } else if (what == 0 && x->in) {
            kvr_queue_remove(q, &x->q);
            x->in = false;
        } else if (what >= 2) {
            struct item *best = naive_pop(&m, it, N), *got = (struct item *)kvr_queue_pop(q, op, if_ready, NULL);
            assert_ptr_equal(got, best);
            if (got) {
                uint64_t t = got->q.tenant;
                m.clock = m.of[t] > m.clock ? m.of[t] : m.clock;
                m.of[t] = m.clock + (double)got->q.isl / weights[t];
                m.turn[t] = m.turns++;
                got->in = false;
            }
        }
        if (!naive_waits(it, N, 0, true)) {
            m.clock = 0;
            memset(m.of, 0, sizeof m.of);
        }
        if (op % 64 == 0) x->ready = true;
        assert_int_equal(kvr_queue_bytes(q), fa.live);
    }
    kvr_queue_destroy(q);
    assert_int_equal(fa.live, 0);
}

/* ---- other classes while items wait ---- */

static struct kvr_policy two_classes(const char *first, const char *second)
{
    struct kvr_policy p = {.classes_n = 2};
    for (int i = 0; i < 2; i++) kvr_class_config_init(&p.classes[i]);
    snprintf(p.classes[0].name, sizeof p.classes[0].name, "%s", first);
    snprintf(p.classes[1].name, sizeof p.classes[1].name, "%s", second);
    snprintf(p.default_family, sizeof p.default_family, "%s", first);
    return p;
}

/* Odd ones into the second class. */
static size_t by_id(void *, const struct kvr_queue *next, const struct kvr_queue_item *it)
{
    return kvr_queue_classes(next) > 1 && ((const struct item *)(const void *)it)->id % 2;
}

static void what_waits_goes_on_waiting_in_its_new_class_in_the_order_it_came(void **)
{
    struct kvr_policy p = plain(KVR_QUEUE_LCFS), next = two_classes("default", "odd");
    struct kvr_queue *q = make(&p);
    struct item items[6], pinned;
    struct kvr_rejection r;
    struct kvr_class_stats st;
    for (int i = 0; i < 6; i++) push(q, &items[i], i, (uint64_t)i, 0, 100, 40);
    pinned = (struct item){.q = {.pinned = true, .pin = {7, 1}, .isl = 10, .arrived_ns = 6 * SECOND}, .ready = true, .id = 6};
    assert_int_equal(kvr_queue_push(q, 0, 1, &pinned.q, &r), 0);
    assert_int_equal(pop(q, 7), 6);
    assert_int_equal(kvr_queue_push(q, 0, 1, &pinned.q, &r), 0);
    next.classes[0].requests_per_worker = 1; /* which more wait than */
    assert_int_equal(kvr_queue_set_policy(q, &next, by_id, NULL), 0);
    assert_int_equal(kvr_queue_len(q), 7);
    kvr_queue_stats(q, 0, &st);
    assert_int_equal(st.requests, 4);
    assert_int_equal(st.isl_tokens, 310);
    assert_int_equal(st.cached_tokens, 120);
    assert_int_equal(st.queued_total, 8); /* goes on, and what has moved is not counted again */
    kvr_queue_stats(q, 1, &st);
    assert_int_equal(st.requests, 3);
    assert_int_equal(st.queued_total, 0);
    assert_int_equal(kvr_queue_push(q, 0, 1, &(struct item){0}.q, &r), -KVR_EQUEUEFULL); /* the new limit is for who comes */
    kvr_queue_remove(q, &items[3].q);
    int last[2] = {-1, -1};
    for (int i = 0; i < 6; i++) { /* each class from the oldest: it is fcfs now */
        int id = pop(q, 8);
        assert_true(id > last[id % 2]);
        last[id % 2] = id;
    }
    assert_int_equal(pop(q, 8), -1);
    kvr_queue_destroy(q);
}

static void classes_that_are_refused_or_for_which_there_is_no_memory_change_nothing(void **)
{
    struct failing_alloc fa = {.fail_at = -1};
    struct kvr_alloc alloc = {failing_resize, &fa};
    struct kvr_policy p = plain(KVR_QUEUE_FCFS), next = two_classes("a", "b"), bad = two_classes("a", "a");
    struct kvr_queue *q;
    struct item items[40];
    struct kvr_rejection r;
    int rc = -KVR_ENOMEM;
    assert_int_equal(kvr_queue_create(&alloc, &p, 0, &q), 0);
    for (int i = 0; i < 40; i++) {
        items[i] = (struct item){
            .q = {.isl = 10, .tenant = (uint64_t)i % 7, .pinned = i % 5 == 0, .pin = {(uint64_t)i % 3, 0}}, .ready = true, .id = i};
        assert_int_equal(kvr_queue_push(q, 0, 1, &items[i].q, &r), 0);
    }
    assert_int_equal(kvr_queue_set_policy(q, &bad, by_id, NULL), -KVR_EINVAL);
    size_t live = fa.live;
    long fails = 0;
    for (; rc; fails++) {
        fa.calls = 0;
        fa.fail_at = fails;
        rc = kvr_queue_set_policy(q, &next, by_id, NULL);
        if (rc == 0) break;
        assert_int_equal(rc, -KVR_ENOMEM);
        assert_int_equal(fa.live, live);
        assert_int_equal(kvr_queue_classes(q), 1);
        assert_int_equal(kvr_queue_len(q), 40);
        fa.fail_at = -1;
        kvr_queue_remove(q, &items[(size_t)fails % 40].q); /* everything is where the items say */
        assert_int_equal(kvr_queue_push(q, 0, 1, &items[(size_t)fails % 40].q, &r), 0);
        live = fa.live;
    }
    assert_true(fails > 20);
    fa.fail_at = -1;
    assert_int_equal(kvr_queue_classes(q), 2);
    size_t n = 0;
    while (kvr_queue_pop(q, SECOND, always, NULL)) n++;
    assert_int_equal(n, 40);
    kvr_queue_destroy(q);
    assert_int_equal(fa.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fcfs_jump_of_50_beats_5_seconds_of_seniority),
        cmocka_unit_test(lcfs_is_the_reverse),
        cmocka_unit_test(strict_priority_beats_any_score_in_all_three),
        cmocka_unit_test(wspt_prefers_short_and_counts_overlap),
        cmocka_unit_test(ageing_bounds_the_starvation_of_wspt),
        cmocka_unit_test(families_and_buckets_choose_classes),
        cmocka_unit_test(policies_are_checked),
        cmocka_unit_test(limits_are_typed_and_follow_the_fleet),
        cmocka_unit_test(blocked_pins_block_nobody_else),
        cmocka_unit_test(a_blocked_head_blocks_the_rest_of_its_lane),
        cmocka_unit_test(deficit_round_robin_is_fair_by_tokens),
        cmocka_unit_test(tiny_quanta_still_serve),
        cmocka_unit_test(random_operations_equal_a_list),
        cmocka_unit_test(a_tenant_does_not_wait_behind_the_burst_of_another),
        cmocka_unit_test(tenants_share_tokens_by_their_weights),
        cmocka_unit_test(one_large_request_at_a_time_is_no_way_around),
        cmocka_unit_test(being_silent_saves_nothing_up),
        cmocka_unit_test(short_prompts_with_long_answers_are_not_free),
        cmocka_unit_test(a_tenant_that_cannot_go_holds_up_nobody_and_is_not_given_what_it_missed),
        cmocka_unit_test(priorities_raise_nobody_above_another_tenant),
        cmocka_unit_test(tenants_are_bounded_and_forgotten),
        cmocka_unit_test(what_waits_goes_on_waiting_in_its_new_class_in_the_order_it_came),
        cmocka_unit_test(classes_that_are_refused_or_for_which_there_is_no_memory_change_nothing),
        cmocka_unit_test(random_operations_of_tenants_equal_a_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
