/* SPDX-License-Identifier: Apache-2.0 */
/* A request's turn in the queue comes on another thread before the call that parked it has returned. */
#include "in_process.h"

#include <kvroute/router.h>

#include "cli/commands.h"

static _Atomic bool turn_comes_early;

int __real_kvr_router_submit(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct kvr_ticket *t,
                             kvr_done_fn *done, void *user, struct kvr_router_result *out, struct kvr_rejection *rejection);
int __wrap_kvr_router_submit(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct kvr_ticket *t,
                             kvr_done_fn *done, void *user, struct kvr_router_result *out, struct kvr_rejection *rejection);

/* What a release on another thread does, at the moment where it hurts. */
int __wrap_kvr_router_submit(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct kvr_ticket *t,
                             kvr_done_fn *done, void *user, struct kvr_router_result *out, struct kvr_rejection *rejection)
{
    int rc = __real_kvr_router_submit(r, c, rq, t, done, user, out, rejection);
    if (rc == KVR_PARKED && turn_comes_early) assert_int_equal(kvr_router_free(r, "r:first", 7), 0);
    return rc;
}

static void a_turn_that_comes_early_is_an_answer_and_leaves_no_booking(void **)
{
    char port[16], text[8192];
    struct program p = {0};
    free_port(port);
    const char *const args[] = {"select", "--host", "127.0.0.1", "--port", port, "--router-queue-threshold", "0", "--no-router-kv-events",
                                NULL};
    program_start(&p, &command_select, args);
    WAIT_FOR(is_up(port), 30);
    const char *worker = "{\"worker_id\":1,\"endpoint\":\"http://10.0.0.1:8000\",\"block_size\":4,\"max_num_batched_tokens\":100}";
    assert_int_equal(ask(port, "POST", "/workers", worker, text, sizeof text), 201);
    const char *first = "{\"token_ids\":[1,2,3,4,5,6,7,8],\"selection_id\":\"first\"}",
               *second = "{\"token_ids\":[8,7,6,5,4,3,2,1],\"selection_id\":\"second\"}";
    assert_int_equal(ask(port, "POST", "/select_and_reserve", first, text, sizeof text), 200);
    turn_comes_early = true;
    int status = ask(port, "POST", "/select_and_reserve", second, text, sizeof text);
    if (status != 200) fail_msg("%s", text);
    turn_comes_early = false;
    assert_int_equal(ask(port, "DELETE", "/reservations/second", "", text, sizeof text), 200);
    assert_true(nothing_is_booked(port));
    assert_int_equal(program_stop(&p), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_turn_that_comes_early_is_an_answer_and_leaves_no_booking)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
