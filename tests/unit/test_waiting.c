/* SPDX-License-Identifier: Apache-2.0 */
/* Admission through the router: parking, handing out, pins, allow-lists, taints, overload, cancellation, decay. */
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <kvroute/kvroute.h>

#define SECOND 1000000000ull

struct fixture {
    struct kvr_index *ix;
    struct kvr_router *r;
    struct kvr_router_ctx *ctx;
    struct kvr_policy policy;
    uint64_t now;
};

struct waiter {
    struct kvr_router_request rq;
    struct kvr_ticket t;
    struct kvr_router_result res;
    struct kvr_rejection rejection;
    uint32_t tokens[128];
    char id[16];
    int calls, rc, order;
};

static int orders;

static struct fixture *start(struct kvr_router_config c, double busy_frac, uint64_t workers)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_int_equal(kvr_index_create(NULL, &f->ix), 0);
    kvr_policy_init(&f->policy);
    f->policy.classes[0].busy_frac = busy_frac;
    static struct kvr_clock clock;
    clock = (struct kvr_clock){manual_now, &f->now};
    c.clock = &clock;
    c.index = f->ix;
    c.block_size = 4;
    c.seed = 5;
    if (!c.policy) c.policy = &f->policy;
    assert_int_equal(kvr_router_create(&c, &f->r, NULL), 0);
    assert_int_equal(kvr_router_ctx_create(f->r, &f->ctx), 0);
    for (uint64_t w = 1; w <= workers; w++) {
        assert_int_equal(kvr_router_set_worker(f->r, w, 0, 1), 0);
        kvr_router_set_limits(f->r, w, 100, 100);
    }
    return f;
}

static struct fixture *plain(double busy_frac, uint64_t workers)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    return start(c, busy_frac, workers);
}

static void stop(struct fixture *f)
{
    const char *why = NULL;
    if (!kvr_router_validate(f->r, &why)) fail_msg("%s", why);
    kvr_router_ctx_destroy(f->ctx);
    kvr_router_destroy(f->r);
    kvr_index_destroy(f->ix);
    free(f);
}

static void on_done(struct kvr_ticket *t, int rc, const struct kvr_router_result *res, const struct kvr_router_ctx *)
{
    struct waiter *w = t->user;
    w->calls++;
    w->order = ++orders;
    w->rc = rc;
    if (rc == 0) w->res = *res;
}

static void prepare(struct waiter *w, int id, size_t tokens)
{
    memset(w, 0, sizeof *w);
    snprintf(w->id, sizeof w->id, "r%d", id);
    for (size_t i = 0; i < tokens; i++) w->tokens[i] = (uint32_t)(id * 1000 + (int)i);
    w->rq = (struct kvr_router_request){.id = w->id, .id_len = strlen(w->id), .book = true, .tokens = w->tokens, .tokens_n = tokens};
}

static int submit(struct fixture *f, struct waiter *w)
{
    return kvr_router_submit(f->r, f->ctx, &w->rq, &w->t, on_done, w, &w->res, &w->rejection);
}

static int go(struct fixture *f, struct waiter *w, int id, size_t tokens)
{
    prepare(w, id, tokens);
    return submit(f, w);
}

static void first_token(struct fixture *f, const struct waiter *w)
{
    kvr_router_mark_prefill_completed(f->r, w->id, strlen(w->id));
}

static void end(struct fixture *f, const struct waiter *w)
{
    kvr_router_free(f->r, w->id, strlen(w->id));
}

static uint64_t total(struct fixture *f)
{
    struct kvr_rank_load l[16];
    uint64_t n = 0;
    for (size_t i = 0, k = kvr_router_loads(f->r, l, 16); i < k; i++) n += l[i].active_requests;
    return n;
}

static void simultaneous_admissions_land_on_different_idle_workers(void **)
{
    struct fixture *f = plain(0, 4);
    struct waiter w[4];
    unsigned seen = 0;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(go(f, &w[i], i, 16), 0);
        seen |= 1u << w[i].res.worker.worker_id;
    }
    assert_int_equal(seen, 0x1e);
    stop(f);
}

static void ten_requests_drain_under_threshold_zero(void **)
{
    struct fixture *f = plain(0, 2);
    struct waiter w[10];
    int parked = 0;
    for (int i = 0; i < 10; i++) parked += go(f, &w[i], i, 16) == KVR_PARKED;
    assert_int_equal(parked, 8);
    assert_int_equal(kvr_router_pending(f->r), 8);
    struct kvr_class_stats st;
    kvr_router_class_stats(f->r, 0, &st);
    assert_int_equal(st.isl_tokens, 8 * 16);
    for (int i = 0; i < 10; i++) {
        if (i >= 2) assert_int_equal(w[i].calls, 1);
        first_token(f, &w[i]);
        end(f, &w[i]);
    }
    assert_int_equal(kvr_router_pending(f->r), 0);
    assert_int_equal(total(f), 0);
    stop(f);
}

static void nobody_overtakes_those_who_wait(void **)
{
    struct fixture *f = plain(0.1, 1);
    struct waiter a, b, c;
    assert_int_equal(go(f, &a, 1, 16), 0);
    assert_int_equal(go(f, &b, 2, 16), KVR_PARKED);
    f->now = SECOND;
    assert_int_equal(go(f, &c, 3, 4), KVR_PARKED);
    first_token(f, &a); /* b goes; its load makes c wait on */
    assert_int_equal(b.calls, 1);
    assert_int_equal(c.calls, 0);
    end(f, &b);
    assert_int_equal(c.calls, 1);
    stop(f);
}

static void thresholds_are_strict(void **)
{
    struct fixture *f = plain(0.16, 1); /* 16 tokens */
    struct waiter a, b, c;
    assert_int_equal(go(f, &a, 1, 16), 0);
    assert_int_equal(go(f, &b, 2, 1), 0); /* 16 is not above 16 */
    assert_int_equal(go(f, &c, 3, 1), KVR_PARKED);
    assert_true(kvr_router_cancel(f->r, &c.t));
    assert_int_equal(c.calls, 0);
    stop(f);
}

static void class_thresholds_are_independent(void **)
{
    struct kvr_router_config c;
    struct kvr_policy p = {.default_family = "calm", .classes_n = 2};
    for (int i = 0; i < 2; i++) kvr_class_config_init(&p.classes[i]);
    snprintf(p.classes[0].name, 64, "calm");
    snprintf(p.classes[1].name, 64, "eager");
    p.classes[0].busy_tokens = 10;
    p.classes[1].busy_tokens = 1000;
    kvr_router_config_init(&c);
    c.policy = &p;
    struct fixture *f = start(c, 0, 1);
    struct waiter w[3];
    assert_int_equal(go(f, &w[0], 0, 16), 0);
    assert_int_equal(go(f, &w[1], 1, 16), KVR_PARKED);
    prepare(&w[2], 2, 16);
    w[2].rq.policy_class = "eager";
    w[2].rq.policy_class_len = 5;
    assert_int_equal(submit(f, &w[2]), 0);
    kvr_router_cancel(f->r, &w[1].t);
    stop(f);
}

static void a_share_of_the_pool_may_count_as_busy(void **)
{
    struct kvr_router_config c;
    struct kvr_policy p;
    kvr_policy_init(&p);
    p.classes[0].busy_tokens = 0;
    p.classes[0].busy_worker_ratio = 0.95;
    kvr_router_config_init(&c);
    c.policy = &p;
    struct fixture *f = start(c, 0, 128);
    static struct waiter w[130];
    int admitted = 0;
    while (go(f, &w[admitted], admitted, 16) == 0) admitted++;
    assert_int_equal(admitted, 122); /* 0.95 * 128 = 121.6: 122 busy ones, not 121 */
    kvr_router_cancel(f->r, &w[admitted].t);
    stop(f);
    f = start(c, 0, 2); /* a small pool: all must be busy */
    assert_int_equal(go(f, &w[0], 0, 16), 0);
    assert_int_equal(go(f, &w[1], 1, 16), 0);
    assert_int_equal(go(f, &w[2], 2, 16), KVR_PARKED);
    kvr_router_cancel(f->r, &w[2].t);
    stop(f);
}

static int64_t ten_seconds(void *, struct kvr_worker, uint64_t, uint64_t)
{
    return 10 * (int64_t)SECOND;
}

static void decay_alone_releases_a_parked_request(void **)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);

    c.prefill = ten_seconds;
    struct fixture *f = start(c, 0.5, 1);
    struct waiter a, b;
    assert_int_equal(go(f, &a, 1, 100), 0);
    assert_int_equal(go(f, &b, 2, 8), KVR_PARKED);
    f->now = 4 * SECOND; /* 60 left, above 50 */
    kvr_router_poll(f->r);
    assert_int_equal(b.calls, 0);
    f->now = 6 * SECOND; /* 40 left */
    kvr_router_poll(f->r);
    assert_int_equal(b.calls, 1);
    assert_int_equal(b.rc, 0);
    stop(f);
}

static void prefill_runs_down_over_the_learnt_time(void **)
{
    struct kvr_router_config c;
    struct kvr_rank_load l;
    kvr_router_config_init(&c);
    c.fit_ttft = true;
    struct fixture *f = start(c, -1, 1);
    struct waiter a, b;
    assert_int_equal(go(f, &a, 1, 100), 0);
    f->now = SECOND / 2;
    kvr_router_loads(f->r, &l, 1);
    assert_int_equal(l.active_prefill_tokens, 100); /* nothing is known yet: until the first token */
    end(f, &a);
    for (uint64_t i = 0; i < 1000; i++) { /* 10 ms a token */
        struct kvr_router_result r = {.worker = {1, 0}, .prefill_tokens = 20 + i % 200};
        kvr_router_observe_ttft(f->r, &r, 10.0 * (double)(20 + i % 200));
    }
    assert_int_equal(go(f, &b, 2, 100), 0);
    f->now += SECOND / 2;
    kvr_router_loads(f->r, &l, 1);
    assert_in_range(l.active_prefill_tokens, 43, 57);
    stop(f);
}

static void what_can_never_be_served_fails_at_once(void **)
{
    struct fixture *f = plain(0, 2);
    struct waiter busy[2], w;
    go(f, &busy[0], 0, 16);
    go(f, &busy[1], 1, 16);
    prepare(&w, 2, 16);
    w.rq.pinned = true;
    w.rq.pin = (struct kvr_worker){1, 0};
    w.rq.allowed = (uint64_t[]){2};
    w.rq.allowed_n = 1;
    assert_int_equal(submit(f, &w), -KVR_ENOTALLOWED);
    prepare(&w, 2, 16);
    w.rq.allowed = (uint64_t[]){77};
    w.rq.allowed_n = 1;
    assert_int_equal(submit(f, &w), -KVR_ENOENDPOINTS);
    prepare(&w, 2, 16);
    const char *taint = "gpu=b200";
    w.rq.required_taints = &taint;
    w.rq.required_n = 1;
    assert_int_equal(submit(f, &w), -KVR_ENOENDPOINTS);
    prepare(&w, 0, 16); /* an id that is booked: the first is not disturbed */
    assert_int_equal(submit(f, &w), -KVR_EEXISTS);
    assert_int_equal(total(f), 2);
    prepare(&w, 3, 16);
    w.rq.do_not_queue = true;
    assert_int_equal(submit(f, &w), -KVR_EBUSY);
    assert_int_equal(kvr_router_pending(f->r), 0);
    stop(f);
}

static void an_allow_list_holds_while_waiting(void **)
{
    struct fixture *f = plain(0, 2);
    struct waiter a, b, w;
    go(f, &a, 0, 16);
    go(f, &b, 1, 16);
    prepare(&w, 2, 16);
    uint64_t only = b.res.worker.worker_id;
    w.rq.allowed = &only;
    w.rq.allowed_n = 1;
    assert_int_equal(submit(f, &w), KVR_PARKED);
    end(f, &a); /* the other worker is free: not for this one */
    assert_int_equal(w.calls, 0);
    end(f, &b);
    assert_int_equal(w.calls, 1);
    assert_int_equal(w.res.worker.worker_id, only);
    stop(f);
}

static void a_blocked_pin_does_not_block_another(void **)
{
    struct fixture *f = plain(0, 2);
    struct waiter a, b, p1, p2;
    go(f, &a, 0, 16);
    go(f, &b, 1, 16);
    for (int i = 0; i < 2; i++) {
        struct waiter *w = i ? &p2 : &p1;
        prepare(w, 10 + i, 16);
        w->rq.pinned = true;
        w->rq.pin = (i ? &b : &a)->res.worker;
        assert_int_equal(submit(f, w), KVR_PARKED);
    }
    end(f, &b);
    assert_int_equal(p1.calls, 0);
    assert_int_equal(p2.calls, 1);
    kvr_router_cancel(f->r, &p1.t);
    stop(f);
}

/* Of another tenant: within one nobody overtakes. */
static void a_request_does_not_wait_behind_those_that_wait_for_other_ranks(void **)
{
    struct fixture *f = plain(0, 2);
    struct waiter a, b, w, v;
    const uint64_t one[] = {1}, two[] = {2};
    prepare(&a, 0, 16);
    a.rq.pinned = true;
    a.rq.pin = (struct kvr_worker){1, 0};
    assert_int_equal(submit(f, &a), 0);
    prepare(&b, 1, 16);
    b.rq.tenant = 7;
    b.rq.allowed = one;
    b.rq.allowed_n = 1;
    assert_int_equal(submit(f, &b), KVR_PARKED);
    prepare(&w, 2, 16);
    w.rq.tenant = 8;
    assert_int_equal(submit(f, &w), 0);
    assert_int_equal(w.res.worker.worker_id, 2);
    assert_int_equal(w.calls + b.calls, 0);
    prepare(&v, 3, 16); /* now that rank is busy, too */
    v.rq.tenant = 8;
    v.rq.allowed = two;
    v.rq.allowed_n = 1;
    assert_int_equal(submit(f, &v), KVR_PARKED);
    end(f, &w);
    assert_int_equal(v.calls, 1);
    assert_int_equal(b.calls, 0);
    end(f, &a);
    assert_int_equal(b.calls, 1);
    stop(f);
}

static void untracked_prefill_never_makes_a_worker_busy(void **)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    c.cost.track_prefill_tokens = false;
    struct fixture *f = start(c, 0, 1);
    struct waiter w[5];
    for (int i = 0; i < 5; i++) assert_int_equal(go(f, &w[i], i, 16), 0);
    stop(f);
}

static void hold(struct fixture *f, uint64_t worker, const struct waiter *w, size_t tokens)
{
    uint64_t l[32];
    struct kvr_block b[32];
    long n = kvr_hash_locals(w->tokens, tokens, 4, false, KVR_HASH_SEED, NULL, 0, l);
    for (long i = 0; i < n; i++) b[i] = (struct kvr_block){5000 + (uint64_t)i, l[i]};
    struct kvr_event ev = {.worker = {worker, 0}, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = (size_t)n};
    assert_int_equal(kvr_index_apply(f->ix, &ev), 0);
}

static void overlap_is_looked_up_afresh_at_dispatch(void **)
{
    struct fixture *f = plain(0, 2);
    struct waiter a, b, w;
    go(f, &a, 0, 16);
    go(f, &b, 1, 16);
    prepare(&w, 2, 32);
    assert_int_equal(submit(f, &w), KVR_PARKED);
    f->now = 11 * SECOND;
    uint64_t warm = 3 - a.res.worker.worker_id; /* the one that stays busy */
    hold(f, warm, &w, 32);
    end(f, &a);
    assert_int_equal(w.calls, 1);
    assert_int_equal(w.res.worker.worker_id, warm);
    assert_int_equal(w.res.cached_tokens, 32);
    assert_int_equal(w.res.prefill_tokens, 0);
    assert_int_equal(w.res.waited_ns, 11 * SECOND);
    stop(f);
}

static void shutdown_answers_everybody(void **)
{
    struct fixture *f = plain(0, 1);
    struct waiter w[5];
    for (int i = 0; i < 5; i++) go(f, &w[i], i, 16);
    kvr_router_shut_queue(f->r);
    for (int i = 1; i < 5; i++) {
        assert_int_equal(w[i].calls, 1);
        assert_int_equal(w[i].rc, -KVR_ESHUTDOWN);
    }
    assert_int_equal(go(f, &w[0], 9, 16), -KVR_ESHUTDOWN);
    stop(f);
}

/* In their order, and at once where one of those that were not allowed before is free. */
static void who_waits_may_be_given_to_others_meanwhile(void **)
{
    struct fixture *f = plain(0, 3);
    struct waiter w[5];
    const uint64_t one[] = {1}, both[] = {1, 2};
    for (int i = 0; i < 5; i++) {
        prepare(&w[i], i, 16);
        w[i].rq.allowed = one;
        w[i].rq.allowed_n = 1;
        assert_int_equal(submit(f, &w[i]), i ? KVR_PARKED : 0);
        f->now++;
    }
    assert_false(kvr_router_allow(f->r, &w[0].t, &w[0].rq, both, 2)); /* it does not wait */
    for (int i = 4; i > 1; i--) assert_true(kvr_router_allow(f->r, &w[i].t, &w[i].rq, both, 2));
    assert_int_equal(w[4].calls, 1); /* it alone was allowed there when it was said of it */
    assert_int_equal(w[4].res.worker.worker_id, 2);
    assert_int_equal(w[2].calls + w[3].calls, 0);
    assert_int_equal(kvr_router_pending(f->r), 3);
    end(f, &w[4]);
    assert_int_equal(w[2].calls, 1);
    assert_int_equal(w[3].calls, 0);
    assert_true(kvr_router_allow(f->r, &w[1].t, &w[1].rq, NULL, 0));
    assert_int_equal(w[1].calls, 1);
    assert_int_equal(w[1].res.worker.worker_id, 3);
    assert_true(kvr_router_cancel(f->r, &w[3].t));
    assert_int_equal(total(f), 3);
    for (int i = 0; i < 3; i++) end(f, &w[i]);
    stop(f);
}

static void cancelling_frees_the_place_and_is_final(void **)
{
    struct fixture *f = plain(0, 1);
    struct waiter a, b, c;
    go(f, &a, 0, 16);
    assert_int_equal(go(f, &b, 1, 16), KVR_PARKED);
    assert_int_equal(go(f, &c, 2, 16), KVR_PARKED);
    assert_true(kvr_router_cancel(f->r, &b.t));
    assert_false(kvr_router_cancel(f->r, &b.t));
    end(f, &a);
    assert_int_equal(b.calls, 0);
    assert_int_equal(c.calls, 1);
    assert_false(kvr_router_cancel(f->r, &c.t)); /* too late: it is booked */
    assert_int_equal(total(f), 1);
    end(f, &c);
    assert_int_equal(total(f), 0);
    stop(f);
}

static void limits_refuse_with_their_kind(void **)
{
    struct kvr_router_config c;
    struct kvr_policy p;
    kvr_policy_init(&p);
    p.classes[0].busy_tokens = 0;
    p.classes[0].requests_per_worker = 1;
    kvr_router_config_init(&c);
    c.policy = &p;
    struct fixture *f = start(c, 0, 1);
    struct waiter w[3];
    assert_int_equal(go(f, &w[0], 0, 16), 0);
    assert_int_equal(go(f, &w[1], 1, 16), KVR_PARKED);
    assert_int_equal(go(f, &w[2], 2, 16), -KVR_EQUEUEFULL);
    assert_int_equal(w[2].rejection.kind, KVR_LIMIT_REQUESTS);
    kvr_router_cancel(f->r, &w[1].t);
    stop(f);
}

/* One that is pinned waits for its rank; the other rank is free. */
static void a_full_class_refused_a_request_whose_rank_was_free(void **)
{
    struct fixture *f = plain(0, 2);
    struct waiter a, b, w, again;
    struct kvr_class_stats st;
    f->policy.classes[0].requests_per_worker = 0.5;
    assert_int_equal(kvr_router_set_policy(f->r, &f->policy), 0);
    prepare(&a, 0, 16);
    a.rq.pinned = true;
    a.rq.pin = (struct kvr_worker){1, 0};
    assert_int_equal(submit(f, &a), 0);
    prepare(&b, 1, 16);
    b.rq.pinned = true;
    b.rq.pin = (struct kvr_worker){1, 0};
    assert_int_equal(submit(f, &b), KVR_PARKED);
    prepare(&w, 2, 16);
    w.rq.do_not_queue = true; /* nor does it have to wait */
    assert_int_equal(submit(f, &w), 0);
    assert_int_equal(w.res.worker.worker_id, 2);
    assert_int_equal(go(f, &again, 3, 16), -KVR_EQUEUEFULL); /* which has to wait now */
    end(f, &w);
    assert_int_equal(go(f, &again, 3, 16), 0);
    kvr_router_class_stats(f->r, 0, &st);
    assert_int_equal(st.queued_total, 1);
    assert_int_equal(st.rejected[KVR_LIMIT_REQUESTS], 1);
    kvr_router_cancel(f->r, &b.t);
    assert_int_equal(kvr_router_pending(f->r), 0);
    stop(f);
}

static void workers_that_come_release_what_waits(void **)
{
    struct fixture *f = plain(0, 1);
    struct waiter a, b;
    go(f, &a, 0, 16);
    assert_int_equal(go(f, &b, 1, 16), KVR_PARKED);
    assert_int_equal(kvr_router_set_worker(f->r, 9, 0, 1), 0);
    assert_int_equal(b.calls, 1);
    assert_int_equal(b.res.worker.worker_id, 9);
    stop(f);
}

/* Cached tokens for the order: the best among the eligible; for a pin its own; what a taint forbids does not count. */
static void wspt_counts_the_best_overlap_among_the_eligible(void **)
{
    struct kvr_router_config c;
    struct kvr_policy p;
    kvr_policy_init(&p);
    p.classes[0].policy = KVR_QUEUE_WSPT;
    p.classes[0].busy_tokens = 0;
    kvr_router_config_init(&c);
    c.policy = &p;
    struct fixture *f = start(c, -1, 3);
    struct waiter busy[3], cold, warm, forbidden;
    const char *taint = "here";
    for (uint64_t w = 1; w <= 2; w++) assert_int_equal(kvr_router_set_taints(f->r, w, &taint, 1), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(go(f, &busy[i], i, 16), 0);
    prepare(&forbidden, 10, 64); /* only worker 3 holds it, which it may not use */
    hold(f, 3, &forbidden, 64);
    forbidden.rq.required_taints = &taint;
    forbidden.rq.required_n = 1;
    assert_int_equal(submit(f, &forbidden), KVR_PARKED);
    assert_int_equal(go(f, &cold, 11, 32), KVR_PARKED);
    prepare(&warm, 12, 64);
    hold(f, 1, &warm, 60);
    assert_int_equal(submit(f, &warm), KVR_PARKED);
    for (int i = 0; i < 3; i++) end(f, &busy[i]);
    end(f, &warm);
    end(f, &cold);
    assert_true(warm.order && warm.order < cold.order && cold.order < forbidden.order); /* 4, 32 and 64 uncached */
    stop(f);
}

/* ---- overload and taints ----------------------------------------------------------------------------- */

static struct fixture *overloadable(double decay)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    c.cost.credit_decay = decay;
    c.busy.prefill_tokens = 30;
    return start(c, -1, 2);
}

static void overloaded_warm_workers_are_skipped(void **)
{
    struct fixture *f = overloadable(0);
    struct waiter load, w;
    prepare(&load, 1, 40);
    load.rq.pinned = true;
    load.rq.pin = (struct kvr_worker){1, 0};
    assert_int_equal(submit(f, &load), 0);
    prepare(&w, 2, 32);
    hold(f, 1, &w, 32);
    assert_int_equal(submit(f, &w), 0);
    assert_int_equal(w.res.worker.worker_id, 2);
    prepare(&w, 3, 16); /* a preferred pair is taken until it is overloaded */
    w.rq.preferred = true;
    w.rq.pin = (struct kvr_worker){1, 0};
    end(f, &load);
    assert_int_equal(submit(f, &w), 0);
    assert_int_equal(w.res.worker.worker_id, 1);
    assert_true(w.res.preferred);
    stop(f);
}

static void when_all_are_overloaded_that_is_the_error(void **)
{
    for (int decay = 0; decay < 2; decay++) {
        struct fixture *f = overloadable(decay);
        struct waiter a, b, w;
        assert_int_equal(go(f, &a, 1, 40), 0);
        assert_int_equal(go(f, &b, 2, 40), 0);
        assert_int_equal(go(f, &w, 3, 4), -KVR_EOVERLOADED);
        assert_false(kvr_router_any_calm(f->r, f->ctx, &w.rq));
        prepare(&w, 30, 4);
        w.rq.overloads = true;
        assert_int_equal(submit(f, &w), 0);
        end(f, &w);
        prepare(&w, 4, 4); /* a pin is not re-routed */
        w.rq.pinned = true;
        w.rq.pin = a.res.worker;
        assert_int_equal(submit(f, &w), -KVR_EOVERLOADED);
        w.rq.allowed = (uint64_t[]){99}; /* the allow-list speaks first */
        w.rq.allowed_n = 1;
        assert_int_equal(submit(f, &w), -KVR_ENOTALLOWED);
        first_token(f, &a);
        prepare(&w, 5, 4);
        assert_true(kvr_router_any_calm(f->r, f->ctx, &w.rq));
        assert_int_equal(submit(f, &w), 0);
        assert_int_equal(w.res.worker.worker_id, a.res.worker.worker_id);
        stop(f);
    }
}

static void decode_overload_is_latched(void **)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    c.busy.decode_blocks_frac = 0.1; /* 10 blocks */
    struct fixture *f = start(c, -1, 1);
    struct waiter w;
    kvr_router_set_kv_used(f->r, (struct kvr_worker){1, 0}, 11);
    assert_int_equal(go(f, &w, 1, 4), -KVR_EOVERLOADED);
    kvr_router_set_kv_used(f->r, (struct kvr_worker){1, 0}, 10); /* not below the line */
    assert_int_equal(go(f, &w, 1, 4), -KVR_EOVERLOADED);
    kvr_router_set_kv_used(f->r, (struct kvr_worker){1, 0}, 9);
    assert_int_equal(go(f, &w, 1, 4), 0);
    stop(f);
}

static void a_worker_is_overloaded_when_all_its_ranks_are(void **)
{
    struct fixture *f = overloadable(0);
    struct waiter w;
    assert_int_equal(kvr_router_set_worker(f->r, 1, 0, 2), 0);
    kvr_router_set_schedulable(f->r, 2, false);
    for (int i = 0; i < 2; i++) {
        prepare(&w, 10 + i, 40);
        w.rq.pinned = true;
        w.rq.pin = (struct kvr_worker){1, (uint32_t)i};
        assert_int_equal(submit(f, &w), 0);
    }
    assert_int_equal(go(f, &w, 20, 4), -KVR_EOVERLOADED);
    kvr_router_free(f->r, "r10", 3);
    assert_int_equal(go(f, &w, 21, 4), 0);
    stop(f);
}

static void taint(struct fixture *f, uint64_t w, const char *name)
{
    assert_int_equal(kvr_router_set_taints(f->r, w, &name, 1), 0);
}

static void required_taints_filter(void **)
{
    struct fixture *f = plain(-1, 2);
    struct waiter w;
    taint(f, 1, "zone=a");
    taint(f, 2, "zone=b");
    const char *names[] = {"zone=a", "zone=b", "zone=c"};
    for (int i = 0; i < 2; i++) { /* the label switches the set */
        prepare(&w, i, 16);
        w.rq.required_taints = &names[i];
        w.rq.required_n = 1;
        assert_int_equal(submit(f, &w), 0);
        assert_int_equal(w.res.worker.worker_id, (uint64_t)i + 1);
    }
    prepare(&w, 7, 16);
    w.rq.required_taints = &names[2];
    w.rq.required_n = 1;
    assert_int_equal(submit(f, &w), -KVR_ENOENDPOINTS);
    w.rq.required_taints = names;
    w.rq.required_n = 2; /* both at once: nobody */
    assert_int_equal(submit(f, &w), -KVR_ENOENDPOINTS);
    stop(f);
}

static void preferred_taints_lean(void **)
{
    for (int negative = 0; negative < 2; negative++) {
        struct kvr_router_config c;
        kvr_router_config_init(&c);
        c.cost.kind = KVR_COST_LINEAR;
        c.cost.track_prefill_tokens = false;
        struct fixture *f = start(c, -1, 2);
        struct waiter w;
        for (int i = 0; i < 2; i++) { /* decode blocks: 100 on worker 1, 90 on worker 2 */
            prepare(&w, i, 0);
            uint64_t locals[100];
            for (int k = 0; k < 100; k++) locals[k] = kvr_mix64((uint64_t)(i * 1000 + k + 1));
            w.rq.tokens = NULL;
            w.rq.locals = locals;
            w.rq.locals_n = i ? 90 : 100;
            w.rq.isl = 400;
            w.rq.pinned = true;
            w.rq.pin = (struct kvr_worker){(uint64_t)i + 1, 0};
            assert_int_equal(submit(f, &w), 0);
        }
        taint(f, negative ? 2 : 1, "ssd");
        struct kvr_preferred_taint p = {"ssd", negative ? -0.85 : 0.85};
        prepare(&w, 9, 0);
        w.rq.isl = 4;
        assert_int_equal(submit(f, &w), 0);
        assert_int_equal(w.res.worker.worker_id, 2);
        end(f, &w);
        w.rq.preferred_taints = &p;
        w.rq.preferred_n = 1;
        assert_int_equal(submit(f, &w), 0);
        assert_int_equal(w.res.worker.worker_id, 1);
        stop(f);
    }
}

/* ---- threads ----------------------------------------------------------------------------------------- */

enum { THREADS = 4, EACH = 400 };

struct racer {
    struct fixture *f;
    int base;

    uint64_t done;
};

static void on_race(struct kvr_ticket *t, int rc, const struct kvr_router_result *, const struct kvr_router_ctx *)
{
    _Atomic int *state = t->user;
    atomic_store(state, rc == 0 ? 1 : 2);
}

static void *race(void *arg)
{
    struct racer *me = arg;
    struct kvr_router_ctx *ctx;
    struct kvr_rng rng = {(uint64_t)me->base};
    if (kvr_router_ctx_create(me->f->r, &ctx)) return NULL;
    for (int i = 0; i < EACH; i++) {
        struct waiter w;
        _Atomic int state = 0;
        prepare(&w, me->base + i, 16 + kvr_rng_below(&rng, 64));
        int rc = kvr_router_submit(me->f->r, ctx, &w.rq, &w.t, on_race, &state, &w.res, &w.rejection);
        bool booked = rc == 0;
        if (rc == KVR_PARKED) {
            for (int spin = 0; spin < 200 && !atomic_load(&state); spin++) kvr_router_poll(me->f->r);
            booked = !kvr_router_cancel(me->f->r, &w.t) && atomic_load(&state) == 1;
        }
        if (!booked) continue;
        me->done++;
        if (kvr_rng_below(&rng, 2)) first_token(me->f, &w);
        end(me->f, &w);
    }
    kvr_router_ctx_destroy(ctx);
    return NULL;
}

static void many_threads_wait_and_leave_nothing_booked(void **)
{
    struct fixture *f = plain(0.2, 2);
    struct racer r[THREADS];
    pthread_t t[THREADS];
    memset(r, 0, sizeof r);
    for (int i = 0; i < THREADS; i++) {
        r[i].f = f;
        r[i].base = i * 10000;
        assert_int_equal(pthread_create(&t[i], NULL, race, &r[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    assert_int_equal(total(f), 0);
    assert_int_equal(kvr_router_pending(f->r), 0);
    stop(f);
}

/* ---- other classes while requests wait ---- */

static void a_threshold_that_is_raised_releases_what_waits_in_order(void **)
{
    struct fixture *f = plain(0, 1);
    struct waiter w[4];
    assert_int_equal(go(f, &w[0], 0, 16), 0);
    for (int i = 1; i < 4; i++) assert_int_equal(go(f, &w[i], i, 16), KVR_PARKED);
    f->policy.classes[0].busy_frac = 0.17; /* one more fits below 17 tokens */
    assert_int_equal(kvr_router_set_policy(f->r, &f->policy), 0);
    assert_int_equal(w[1].calls + w[2].calls + w[3].calls, 1);
    assert_int_equal(w[1].calls, 1);
    kvr_policy_init(&f->policy); /* nothing waits any more */
    assert_int_equal(kvr_router_set_policy(f->r, &f->policy), 0);
    assert_int_equal(w[2].calls, 1);
    assert_int_equal(w[3].calls, 1);
    assert_true(w[2].order < w[3].order);
    assert_int_equal(kvr_router_pending(f->r), 0);
    f->policy.classes[0].busy_frac = 0; /* and again */
    assert_int_equal(kvr_router_set_policy(f->r, &f->policy), 0);
    struct waiter last;
    assert_int_equal(go(f, &last, 9, 16), KVR_PARKED);
    kvr_router_cancel(f->r, &last.t);
    stop(f);
}

static void a_request_that_waits_is_in_the_class_that_it_names_when_that_comes(void **)
{
    struct fixture *f = plain(0, 1);
    struct kvr_policy p = {.default_family = "calm", .classes_n = 2};
    struct kvr_class_stats st;
    for (int i = 0; i < 2; i++) kvr_class_config_init(&p.classes[i]);
    snprintf(p.classes[0].name, 64, "calm");
    snprintf(p.classes[1].name, 64, "eager");
    p.classes[0].busy_tokens = p.classes[1].busy_tokens = 0;
    struct waiter w[3];
    assert_int_equal(go(f, &w[0], 0, 16), 0);
    assert_int_equal(go(f, &w[1], 1, 16), KVR_PARKED);
    prepare(&w[2], 2, 16);
    w[2].rq.policy_class = "eager";
    w[2].rq.policy_class_len = 5;
    assert_int_equal(submit(f, &w[2]), KVR_PARKED);
    assert_int_equal(kvr_router_set_policy(f->r, &p), 0);
    for (size_t k = 0; k < 2; k++) {
        assert_string_equal(kvr_router_class_stats(f->r, k, &st), k ? "eager" : "calm");
        assert_int_equal(st.requests, 1);
    }
    p.classes[1].busy_tokens = 1000;
    assert_int_equal(kvr_router_set_policy(f->r, &p), 0);
    assert_int_equal(w[2].calls, 1);
    assert_int_equal(w[1].calls, 0);
    kvr_router_cancel(f->r, &w[1].t);
    stop(f);
}

static void classes_change_while_many_threads_wait(void **)
{
    struct fixture *f = plain(0.2, 2);
    struct racer r[THREADS];
    pthread_t t[THREADS];
    memset(r, 0, sizeof r);
    for (int i = 0; i < THREADS; i++) {
        r[i].f = f;
        r[i].base = i * 10000;
        assert_int_equal(pthread_create(&t[i], NULL, race, &r[i]), 0);
    }
    for (int i = 0; i < 300; i++) {
        struct kvr_policy p;
        kvr_policy_init(&p);
        snprintf(p.classes[0].name, 64, "c%d", i);
        snprintf(p.default_family, 64, "c%d", i);
        p.classes[0].busy_frac = i % 3 ? 0.2 : -1;
        p.classes[0].policy = (enum kvr_queue_policy)(i % 3);
        assert_int_equal(kvr_router_set_policy(f->r, &p), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    assert_int_equal(total(f), 0);
    assert_int_equal(kvr_router_pending(f->r), 0);
    stop(f);
}

/* ---- told of overload ---- */

static void overload_is_told_without_a_prompt(void **)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    c.busy.prefill_tokens = 20;
    struct fixture *f = start(c, -1, 2);
    uint64_t first = 1, none = 9;
    struct kvr_router_request rq = {.isl = 10}, only = {.isl = 10, .allowed = &first, .allowed_n = 1};
    struct waiter a, b;
    assert_int_equal(kvr_router_overload(f->r, &rq), 0);
    prepare(&a, 1, 30);
    a.rq.pinned = true;
    a.rq.pin = (struct kvr_worker){1, 0};
    assert_int_equal(submit(f, &a), 0);
    assert_int_equal(kvr_router_overload(f->r, &rq), 0); /* the other one is calm */
    assert_int_equal(kvr_router_overload(f->r, &only), -KVR_EOVERLOADED);
    only.allowed = &none;
    assert_int_equal(kvr_router_overload(f->r, &only), -KVR_ENOENDPOINTS);
    assert_int_equal(go(f, &b, 2, 30), 0);
    assert_int_equal(kvr_router_overload(f->r, &rq), -KVR_EOVERLOADED);
    end(f, &a);
    assert_int_equal(kvr_router_overload(f->r, &rq), 0);
    end(f, &b);
    stop(f);
}

static void a_queue_without_room_is_told_of_where_one_would_have_to_wait(void **)
{
    struct fixture *f = plain(0, 1);
    struct kvr_router_request rq = {.isl = 10};
    struct waiter a, b;
    f->policy.classes[0].requests_per_worker = 0; /* nobody may wait */
    assert_int_equal(kvr_router_set_policy(f->r, &f->policy), 0);
    assert_int_equal(kvr_router_overload(f->r, &rq), 0); /* nobody has to */
    assert_int_equal(go(f, &a, 1, 16), 0);
    assert_int_equal(kvr_router_overload(f->r, &rq), -KVR_EQUEUEFULL);
    assert_int_equal(go(f, &b, 2, 16), -KVR_EQUEUEFULL);
    f->policy.classes[0].requests_per_worker = 1;
    assert_int_equal(kvr_router_set_policy(f->r, &f->policy), 0);
    assert_int_equal(kvr_router_overload(f->r, &rq), 0);
    assert_int_equal(go(f, &b, 2, 16), KVR_PARKED);
    assert_int_equal(kvr_router_overload(f->r, &rq), -KVR_EQUEUEFULL);
    kvr_router_cancel(f->r, &b.t);
    assert_int_equal(kvr_router_overload(f->r, &rq), 0);
    end(f, &a);
    stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simultaneous_admissions_land_on_different_idle_workers),
        cmocka_unit_test(ten_requests_drain_under_threshold_zero),
        cmocka_unit_test(nobody_overtakes_those_who_wait),
        cmocka_unit_test(thresholds_are_strict),
        cmocka_unit_test(class_thresholds_are_independent),
        cmocka_unit_test(a_share_of_the_pool_may_count_as_busy),
        cmocka_unit_test(decay_alone_releases_a_parked_request),
        cmocka_unit_test(prefill_runs_down_over_the_learnt_time),
        cmocka_unit_test(what_can_never_be_served_fails_at_once),
        cmocka_unit_test(an_allow_list_holds_while_waiting),
        cmocka_unit_test(a_blocked_pin_does_not_block_another),
        cmocka_unit_test(a_request_does_not_wait_behind_those_that_wait_for_other_ranks),
        cmocka_unit_test(untracked_prefill_never_makes_a_worker_busy),
        cmocka_unit_test(overlap_is_looked_up_afresh_at_dispatch),
        cmocka_unit_test(shutdown_answers_everybody),
        cmocka_unit_test(who_waits_may_be_given_to_others_meanwhile),
        cmocka_unit_test(cancelling_frees_the_place_and_is_final),
        cmocka_unit_test(limits_refuse_with_their_kind),
        cmocka_unit_test(a_full_class_refused_a_request_whose_rank_was_free),
        cmocka_unit_test(workers_that_come_release_what_waits),
        cmocka_unit_test(wspt_counts_the_best_overlap_among_the_eligible),
        cmocka_unit_test(overloaded_warm_workers_are_skipped),
        cmocka_unit_test(when_all_are_overloaded_that_is_the_error),
        cmocka_unit_test(decode_overload_is_latched),
        cmocka_unit_test(a_worker_is_overloaded_when_all_its_ranks_are),
        cmocka_unit_test(required_taints_filter),
        cmocka_unit_test(preferred_taints_lean),
        cmocka_unit_test(a_threshold_that_is_raised_releases_what_waits_in_order),
        cmocka_unit_test(a_request_that_waits_is_in_the_class_that_it_names_when_that_comes),
        cmocka_unit_test(classes_change_while_many_threads_wait),
        cmocka_unit_test(overload_is_told_without_a_prompt),
        cmocka_unit_test(a_queue_without_room_is_told_of_where_one_would_have_to_wait),
        cmocka_unit_test(many_threads_wait_and_leave_nothing_booked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
