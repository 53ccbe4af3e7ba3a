/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer's threads: jobs that are joined, left, refused; everything is given back. The jobs here wait at a gate, so that what is
 * under way at a moment is known. */
#include "token/pool.h"

#include "base/base.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <cmocka.h>

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int inside, open; /* jobs that have begun; how many may end */
    int nice;         /* of the thread that makes */
    int done;         /* waiters that were told */
    _Atomic int dropped;
};

static void gate_init(struct gate *g)
{
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
}

static void gate_free(struct gate *g)
{
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->changed);
}

static void gate_open(struct gate *g, int n)
{
    pthread_mutex_lock(&g->lock);
    g->open += n;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void wait_for(struct gate *g, const int *what, int n)
{
    pthread_mutex_lock(&g->lock);
    while (*what < n) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static int make(void *ctx, struct kvr_ids **out)
{
    struct gate *g = ctx;
    pthread_mutex_lock(&g->lock);
    g->inside++;
    g->nice = getpriority(PRIO_PROCESS, 0); /* on Linux of the calling thread */
    pthread_cond_broadcast(&g->changed);
    while (!g->open) pthread_cond_wait(&g->changed, &g->lock);
    g->open--;
    pthread_mutex_unlock(&g->lock);
    *out = kvr_ids_new((const uint32_t[]){7, 8, 9}, 3);
    return *out ? 0 : -1;
}

static void drop(void *ctx)
{
    atomic_fetch_add(&((struct gate *)ctx)->dropped, 1);
}

struct told {
    struct kvr_token_waiter waiter;
    struct gate *gate;
};

static void on_done(struct kvr_token_waiter *w)
{
    struct gate *g = ((struct told *)w)->gate; /* its first member */
    pthread_mutex_lock(&g->lock);
    g->done++;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static struct told waiter(struct gate *g)
{
    return (struct told){.waiter = {.done = on_done}, .gate = g};
}

static struct kvr_token_question question(struct gate *g, uint64_t key)
{
    return (struct kvr_token_question){.key = {key, 1}, .make = make, .drop = drop, .ctx = g};
}

static void a_question_that_is_asked_100_times_at_once_is_one_job(void **)
{
    struct kvr_token_pool *p;
    struct kvr_token_pool_figures f;
    struct gate g;
    struct told w[100];
    gate_init(&g);
    assert_int_equal(kvr_token_pool_create(2, &p), 0);
    for (int i = 0; i < 100; i++) {
        struct kvr_token_question q = question(&g, 5);
        w[i] = waiter(&g);
        assert_true(kvr_token_pool_ask(p, &q, &w[i].waiter));
    }
    gate_open(&g, 1);
    wait_for(&g, &g.done, 100);
    kvr_token_pool_figures(p, &f);
    assert_true(f.jobs == 1 && f.joined == 99 && f.full == 0);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(w[i].waiter.rc, 0);
        assert_int_equal(w[i].waiter.ids->n, 3);
        kvr_ids_unref(w[i].waiter.ids);
    }
    kvr_token_pool_destroy(p);
    assert_int_equal(g.dropped, 100);
    gate_free(&g);
}

static void event_loops_run_before_the_threads(void **)
{
    struct kvr_token_pool *p;
    struct gate g;
    gate_init(&g);
    gate_open(&g, 1);
    int ours = getpriority(PRIO_PROCESS, 0);
    assert_int_equal(kvr_token_pool_create(1, &p), 0);
    struct told w = waiter(&g);
    struct kvr_token_question q = question(&g, 1);
    assert_true(kvr_token_pool_ask(p, &q, &w.waiter));
    wait_for(&g, &g.done, 1);
    assert_int_equal(g.nice, KVR_MIN(ours + KVR_TOKEN_THREADS_NICE, 19));
    assert_int_equal(getpriority(PRIO_PROCESS, 0), ours);
    kvr_ids_unref(w.waiter.ids);
    kvr_token_pool_destroy(p);
    gate_free(&g);
}

static void a_full_queue_refuses_and_gives_back(void **)
{
    struct kvr_token_pool *p;
    struct kvr_token_pool_figures f;
    struct gate g;
    static struct told w[KVR_TOKEN_QUEUE + 2];
    gate_init(&g);
    assert_int_equal(kvr_token_pool_create(1, &p), 0);
    for (int i = 0; i < KVR_TOKEN_QUEUE + 1; i++) {
        struct kvr_token_question q = question(&g, (uint64_t)i);
        w[i] = waiter(&g);
        assert_true(kvr_token_pool_ask(p, &q, &w[i].waiter));
        if (i == 0) wait_for(&g, &g.inside, 1); /* it runs, and does not fill the queue */
    }
    struct kvr_token_question q = question(&g, 999);
    w[KVR_TOKEN_QUEUE + 1] = waiter(&g);
    assert_false(kvr_token_pool_ask(p, &q, &w[KVR_TOKEN_QUEUE + 1].waiter));
    kvr_token_pool_figures(p, &f);
    assert_true(f.full == 1 && f.waiting == KVR_TOKEN_QUEUE && g.dropped == 1);
    q = question(&g, 3); /* one that waits can be joined all the same */
    assert_true(kvr_token_pool_ask(p, &q, &w[KVR_TOKEN_QUEUE + 1].waiter));
    gate_open(&g, KVR_TOKEN_QUEUE + 1);
    wait_for(&g, &g.done, KVR_TOKEN_QUEUE + 2);
    for (int i = 0; i < KVR_TOKEN_QUEUE + 2; i++) kvr_ids_unref(w[i].waiter.ids);
    kvr_token_pool_destroy(p);
    assert_int_equal(g.dropped, KVR_TOKEN_QUEUE + 3);
    gate_free(&g);
}

static void who_leaves_is_not_told(void **)
{
    struct kvr_token_pool *p;
    struct gate g;
    struct told runs = {0}, left = {0}, waits = {0};
    gate_init(&g);
    assert_int_equal(kvr_token_pool_create(1, &p), 0);
    struct kvr_token_question a = question(&g, 1), b = question(&g, 2);
    runs = waiter(&g);
    left = waiter(&g);
    waits = waiter(&g);
    assert_true(kvr_token_pool_ask(p, &a, &runs.waiter));
    wait_for(&g, &g.inside, 1);
    assert_true(kvr_token_pool_ask(p, &a, &left.waiter));
    assert_true(kvr_token_pool_ask(p, &b, &waits.waiter));
    assert_true(kvr_token_pool_leave(p, &left.waiter));
    assert_true(kvr_token_pool_leave(p, &waits.waiter)); /* its job has not begun: it goes */
    assert_int_equal(g.dropped, 2);                      /* that, and the question that was joined */
    assert_true(kvr_token_pool_leave(p, &runs.waiter));  /* its job runs on for nobody */
    gate_open(&g, 1);
    kvr_token_pool_destroy(p);
    assert_true(g.done == 0 && g.inside == 1 && g.dropped == 3);
    gate_free(&g);
}

static void who_was_told_cannot_leave(void **)
{
    struct kvr_token_pool *p;
    struct gate g;
    gate_init(&g);
    gate_open(&g, 1);
    assert_int_equal(kvr_token_pool_create(1, &p), 0);
    struct told w = waiter(&g);
    struct kvr_token_question q = question(&g, 1);
    assert_true(kvr_token_pool_ask(p, &q, &w.waiter));
    wait_for(&g, &g.done, 1);
    assert_false(kvr_token_pool_leave(p, &w.waiter));
    kvr_ids_unref(w.waiter.ids);
    kvr_token_pool_destroy(p);
    gate_free(&g);
}

static void what_waits_when_the_pool_ends_is_given_back(void **)
{
    struct kvr_token_pool *p;
    struct gate g;
    gate_init(&g);
    assert_int_equal(kvr_token_pool_create(0, &p), 0); /* nobody works */
    struct told w = waiter(&g);
    struct kvr_token_question q = question(&g, 1);
    assert_true(kvr_token_pool_ask(p, &q, &w.waiter));
    kvr_token_pool_destroy(p);
    assert_true(g.dropped == 1 && g.done == 0);
    gate_free(&g);
}

struct client {
    struct kvr_token_pool *pool;
    struct gate *gate;
    int number, told;
};

/* Asks and leaves, over and over. */
static void *run_client(void *ctx)
{
    struct client *c = ctx;
    for (int i = 0; i < 500; i++) {
        struct told w = waiter(c->gate);
        struct kvr_token_question q = question(c->gate, (uint64_t)((i * 7 + c->number) % 5));
        if (!kvr_token_pool_ask(c->pool, &q, &w.waiter)) continue;
        if (kvr_token_pool_leave(c->pool, &w.waiter)) continue;
        c->told++;
        kvr_ids_unref(w.waiter.ids);
    }
    return NULL;
}

static void many_threads_ask_and_leave(void **)
{
    struct kvr_token_pool *p;
    struct kvr_token_pool_figures f;
    struct gate g;
    struct client c[4];
    pthread_t threads[4];
    gate_init(&g);
    gate_open(&g, 1 << 20);
    assert_int_equal(kvr_token_pool_create(2, &p), 0);
    for (int i = 0; i < 4; i++) {
        c[i] = (struct client){p, &g, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, run_client, &c[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    kvr_token_pool_figures(p, &f);
    kvr_token_pool_destroy(p);
    assert_int_equal(f.jobs + f.joined + f.full, 2000);
    assert_int_equal(g.dropped, 2000);
    gate_free(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_that_is_asked_100_times_at_once_is_one_job),
        cmocka_unit_test(event_loops_run_before_the_threads),
        cmocka_unit_test(a_full_queue_refuses_and_gives_back),
        cmocka_unit_test(who_leaves_is_not_told),
        cmocka_unit_test(who_was_told_cannot_leave),
        cmocka_unit_test(what_waits_when_the_pool_ends_is_given_back),
        cmocka_unit_test(many_threads_ask_and_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
