/* SPDX-License-Identifier: Apache-2.0 */
/* Memory fails once, at every allocation in turn (later ones are sampled), under the generator of requests and under a simulation: the
 * result says so, nothing is lost, and the next run gives what it gave before. */
#include "test.h"

#include <stdio.h>

#include "failing_memory.h"
#include "sim/compare.h"

typedef int scene_fn(const void *arg);

static void fail_each(scene_fn *scene, const void *arg)
{
    for (long n = 0;; n += 1 + n / 40) {
        memory_fails_at(n, 0);
        int rc = scene(arg);
        bool failed = memory_has_failed();
        memory_recovers();
        if (!failed) {
            assert_int_equal(rc, 0);
            return;
        }
        if (rc != 0 && rc != -KVR_ENOMEM) fail_msg("allocation %ld failed, and the result is %s", n, kvr_err_name(rc));
        assert_true(n < 100000);
    }
}

static int draw(const void *arg)
{
    const struct traffic_config *c = arg;
    struct traffic *t = NULL;
    struct traffic_request r, next;
    const uint32_t answer[2] = {65, 66};
    char err[200];
    int rc = traffic_create(c, &t, err, sizeof err);
    if (rc) return rc;
    while (rc == 0 && (rc = traffic_next(t, &r)) == 1) {
        rc = traffic_follow(t, &r, answer, 2, r.arrival_ns, &next);
        if (rc == 1) traffic_request_free(&next);
        rc = KVR_MIN(rc, 0);
        traffic_request_free(&r);
    }
    traffic_destroy(t);
    return rc;
}

static void every_kind_says_that_memory_is_short(void **s)
{
    (void)s;
    for (enum traffic_kind k = 0; k < TRAFFIC_KINDS; k++) {
        struct traffic_config c;
        char err[200];
        if (k == TRAFFIC_TRACE) continue;
        snprintf(err, sizeof err, "%s,requests=8", traffic_name(k));
        c = (struct traffic_config){0};
        assert_int_equal(traffic_parse(err, &c, err, sizeof err), 0);
        fail_each(draw, &c);
    }
}

static int simulate(const void *arg)
{
    struct sim_result r;
    char err[200];
    return sim_run(arg, &r, err, sizeof err);
}

static void a_simulation_says_that_memory_is_short(void **)
{
    static const char *const names[] = {"linear+ttl", "smg", "two-legs", "least_delay"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(names); i++) {
        struct sim_config c;
        sim_config_init(&c);
        c.policy = sim_policy_find(names[i], strlen(names[i]));
        c.workers = 2;
        c.blocks = 400;
        c.routers = 2;
        c.tell_ms = 1;
        if (i < 2) { /* workers with roles do not leave */
            c.leaves_s = 0.2;
            c.returns_s = 0.4;
        }
        c.traffic.requests = 10;
        c.traffic.seconds = 0;
        c.traffic.rate = 20;
        c.traffic.param[TRAFFIC_TURNS] = 2;
        struct sim_result before, after;
        char err[200];
        assert_int_equal(sim_run(&c, &before, err, sizeof err), 0);
        assert_true(before.v[SIM_COMPLETED] > 4);
        fail_each(simulate, &c);
        assert_int_equal(sim_run(&c, &after, err, sizeof err), 0);
        assert_memory_equal(&before, &after, sizeof before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_says_that_memory_is_short),
        cmocka_unit_test(a_simulation_says_that_memory_is_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
