/* SPDX-License-Identifier: Apache-2.0 */
/* One worker's backlog, and what waits beside it: it does not keep the thread from stopping, nor other workers from their turns. Counted in
 * events, not in seconds: the handler opens a gate when everything is in place, and is slow enough that a backlog is still there. */
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include <zmq.h>

#include "app/mock/encode.h"
#include "net/ingest/ingest.h"
#include "wire/engine_encode.h"

enum { BACKLOG = 3000, BS = 4 };

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool open;
    _Atomic bool reached;
    _Atomic unsigned evil, evil_before_good;
    _Atomic bool good;
};

static void wait_at(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    atomic_store(&g->reached, true);
    while (!g->open) pthread_cond_wait(&g->cond, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

static int on_event(void *ctx, void *user, const struct kvr_event *event, const struct kvr_ingest_origin *origin)
{
    struct gate *g = ctx;
    (void)user, (void)origin;
    if (event->worker.worker_id == 2) {
        atomic_store(&g->evil_before_good, atomic_load(&g->evil));
        atomic_store(&g->good, true);
        return 0;
    }
    wait_at(g);
    atomic_fetch_add(&g->evil, 1);
    usleep(500);
    return 0;
}

static void on_reset(void *ctx, void *user, struct kvr_worker worker)
{
    (void)ctx, (void)user, (void)worker;
}

struct publisher {
    void *zmq, *pub;
    char endpoint[64];
};

static void publisher_open(struct publisher *p)
{
    size_t len = sizeof p->endpoint;
    int zero = 0, hwm = 0;
    p->zmq = zmq_ctx_new();
    p->pub = zmq_socket(p->zmq, ZMQ_XPUB);
    zmq_setsockopt(p->pub, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(p->pub, ZMQ_SNDHWM, &hwm, sizeof hwm);
    assert_int_equal(zmq_bind(p->pub, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(p->pub, ZMQ_LAST_ENDPOINT, p->endpoint, &len), 0);
}

static void publisher_close(struct publisher *p)
{
    zmq_close(p->pub);
    zmq_ctx_term(p->zmq);
}

static void publish(struct publisher *p, uint64_t seq)
{
    struct kvr_buf event = {0}, batch = {0};
    unsigned char head[8];
    uint32_t tokens[BS] = {(uint32_t)seq, 1, 2, 3};
    struct kvr_block b = {seq + 1, seq + 1};
    struct kvr_event ev = {.kind = KVR_EVENT_STORED, .blocks = &b, .blocks_n = 1};
    struct kvr_engine_words w = {.tokens = tokens, .tokens_n = BS, .block_size = BS};
    kvr_engine_encode(&event, &ev, &w);
    kvr_engine_encode_batch(&batch, 1, &event, 1, 0);
    kvr_store_be64(head, seq);
    assert_true(zmq_send(p->pub, "", 0, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(p->pub, head, 8, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(p->pub, batch.data, batch.len, 0) >= 0);
    kvr_buf_free(&event);
    kvr_buf_free(&batch);
}

static void follow(struct kvr_ingest *in, uint64_t worker, struct publisher *p)
{
    char subscription[8];
    struct kvr_ingest_source src = {.worker = {worker, 0}, .block_size = BS, .events = p->endpoint};
    assert_int_equal(kvr_ingest_add(in, &src), 0);
    assert_true(zmq_recv(p->pub, subscription, sizeof subscription, 0) >= 0);
}

/* Worker 1 has a backlog whose first event waits at the gate. */
static struct kvr_ingest *rig(struct gate *g, struct publisher *evil, struct publisher *good)
{
    struct kvr_ingest_handler h = {.on_event = on_event, .on_reset = on_reset, .ctx = g};
    struct kvr_ingest *in;
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->cond, NULL);
    publisher_open(evil);
    publisher_open(good);
    assert_int_equal(kvr_ingest_create(&h, 1, &in), 0);
    follow(in, 2, good);
    follow(in, 1, evil);
    for (uint64_t i = 0; i < BACKLOG; i++) publish(evil, i);
    WAIT_FOR(atomic_load(&g->reached), 30);
    return in;
}

static void unrig(struct gate *g, struct publisher *good)
{
    publisher_close(good);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->cond);
}

/* Waits until what was sent is in the other side's queues: nothing can be seen of it but time. */
static void settle(void)
{
    usleep(300000);
}

static void *destroy(void *arg)
{
    kvr_ingest_destroy(arg);
    return NULL;
}

/* The connection breaks with a backlog in it: the rest is read in turns, and stopping does not wait for it. */
static void stopping_does_not_wait_for_the_backlog_of_a_broken_connection(void **)
{
    struct gate g;
    struct publisher evil, good;
    pthread_t t;
    struct kvr_ingest *in = rig(&g, &evil, &good);
    settle();
    publisher_close(&evil);
    settle();
    open_gate(&g);
    WAIT_FOR(atomic_load(&g.evil) > 200, 30); /* past the first turns: the break is known */
    assert_int_equal(pthread_create(&t, NULL, destroy, in), 0);
    unsigned when_told = atomic_load(&g.evil);
    pthread_join(t, NULL);
    assert_true(atomic_load(&g.evil) < when_told + 500);
    unrig(&g, &good);
}

static void a_backlog_leaves_others_their_turns(void **)
{
    struct gate g;
    struct publisher evil, good;
    struct kvr_ingest *in = rig(&g, &evil, &good);
    publish(&good, 0);
    settle();
    publisher_close(&evil);
    settle();
    open_gate(&g);
    WAIT_FOR(atomic_load(&g.good), 30);
    assert_true(atomic_load(&g.evil_before_good) < 500);
    kvr_ingest_destroy(in);
    unrig(&g, &good);
}

/* More waits than a socket has room for, for longer than any answer of the network may take: libzmq 4.3.4 ends the process when it takes
 * a connection for broken then (its issue 3937). */
static void a_thread_that_is_held_up_while_more_comes_than_has_room_goes_on(void **state)
{
    struct gate g;
    struct publisher evil, good;
    (void)state;
    struct kvr_ingest *in = rig(&g, &evil, &good);
    for (uint64_t i = BACKLOG; i < 4 * BACKLOG; i++) publish(&evil, i);
    zmq_pollitem_t ends = {.socket = evil.pub, .events = ZMQ_POLLIN}; /* the publisher hears of a subscription that ends */
    assert_int_equal(zmq_poll(&ends, 1, 9000), 0);
    open_gate(&g);
    WAIT_FOR(atomic_load(&g.evil) > BACKLOG, 30); /* there is room again, and libzmq told */
    publish(&good, 0);
    WAIT_FOR(atomic_load(&g.good), 30);
    publisher_close(&evil);
    kvr_ingest_destroy(in);
    unrig(&g, &good);
}

/* ---- memory runs out ------------------------------------------------------------------------------------------------- */

static int on_poor_event(void *ctx, void *user, const struct kvr_event *event, const struct kvr_ingest_origin *origin)
{
    (void)ctx, (void)user, (void)origin;
    return event->kind == KVR_EVENT_REMOVED ? -KVR_ENOMEM : 0;
}

static void publish_removal(struct publisher *p, uint64_t seq, uint64_t name)
{
    struct kvr_buf event = {0}, batch = {0};
    unsigned char head[8];
    struct kvr_event ev = {.kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    struct kvr_engine_words w = {.block_size = BS};
    kvr_engine_encode(&event, &ev, &w);
    kvr_engine_encode_batch(&batch, 1, &event, 1, 0);
    kvr_store_be64(head, seq);
    assert_true(zmq_send(p->pub, "", 0, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(p->pub, head, 8, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(p->pub, batch.data, batch.len, 0) >= 0);
    kvr_buf_free(&event);
    kvr_buf_free(&batch);
}

static struct kvr_view_status status_of(struct kvr_ingest *in)
{
    struct kvr_view_status st = {0};
    (void)kvr_ingest_status(in, &st, 1);
    return st;
}

static void a_removal_for_which_there_was_no_memory_is_not_passed_over(void **)
{
    struct kvr_ingest_handler h = {.on_event = on_poor_event, .on_reset = on_reset};
    struct kvr_ingest *in;
    struct publisher p;
    publisher_open(&p);
    assert_int_equal(kvr_ingest_create(&h, 1, &in), 0);
    follow(in, 1, &p);
    publish(&p, 0);
    WAIT_FOR(status_of(in).knowledge == KVR_VIEW_WHOLE, 30);
    publish_removal(&p, 1, 1);
    WAIT_FOR(status_of(in).knowledge == KVR_VIEW_PARTIAL && strstr(status_of(in).reason, "memory"), 30);
    publish(&p, 2);
    WAIT_FOR(status_of(in).batches == 3, 30);
    assert_int_equal(status_of(in).knowledge, KVR_VIEW_PARTIAL);
    kvr_ingest_destroy(in);
    publisher_close(&p);
}

/* ---- reports --------------------------------------------------------------------------------------------------------- */

/* One block, always the same, as vLLM stores it: only events as maps may be reports. */
static void publish_map(struct publisher *p, uint64_t seq)
{
    struct kvr_buf batch = {0};
    unsigned char head[8];
    uint32_t tokens[BS] = {1, 2, 3, 4};
    struct kvr_block b = {7, 7};
    struct kvr_event ev = {.kind = KVR_EVENT_STORED, .blocks = &b, .blocks_n = 1};
    struct mock_event_words w = {.tokens = tokens, .tokens_n = BS, .block_size = BS};
    kvr_buf_add(&batch, "\x93\x01\x91", 3); /* [stamp, [event], rank] */
    mock_encode(&batch, &ev, &w);
    kvr_buf_add(&batch, "\x00", 1);
    kvr_store_be64(head, seq);
    assert_true(zmq_send(p->pub, "", 0, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(p->pub, head, 8, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(p->pub, batch.data, batch.len, 0) >= 0);
    kvr_buf_free(&batch);
}

static bool holds_what_was_stored(void *ctx, void *user, struct kvr_worker worker, enum kvr_tier tier, uint64_t block_hash)
{
    struct gate *g = ctx;
    (void)user, (void)worker, (void)tier, (void)block_hash;
    return atomic_load(&g->good);
}

static int on_stored(void *ctx, void *user, const struct kvr_event *event, const struct kvr_ingest_origin *origin)
{
    struct gate *g = ctx;
    (void)user, (void)event, (void)origin;
    atomic_store(&g->good, true);
    return 0;
}

static void on_served(void *ctx, void *user, const struct kvr_served *prompt)
{
    (void)user, (void)prompt;
    wait_at(ctx);
}

static void look(void *arg, const struct kvr_view_status *status, const uint32_t *ranks, size_t n, struct kvr_view_cursor *adopt)
{
    (void)arg, (void)status, (void)ranks, (void)n, (void)adopt;
}

/* The thread is busy while a request that asks for reports is announced and answered: both wait when it looks again. */
static void a_report_that_waits_beside_its_announcement_is_not_taken_for_a_copy(void **)
{
    struct gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    struct kvr_ingest_handler h = {
        .on_event = on_stored, .on_reset = on_reset, .holds = holds_what_was_stored, .on_served = on_served, .ctx = &g};
    uint64_t local = 1;
    struct kvr_ingest *in;
    struct publisher p;
    publisher_open(&p);
    assert_int_equal(kvr_ingest_create(&h, 1, &in), 0);
    follow(in, 1, &p);
    publish_map(&p, 0);
    WAIT_FOR(status_of(in).batches == 1, 30);
    assert_int_equal(kvr_ingest_served(in, &(struct kvr_served){.worker = {1, 0}, .n = 1, .locals = &local}), 0);
    WAIT_FOR(atomic_load(&g.reached), 30);
    assert_true(kvr_ingest_expect_reports(in, 1));
    publish_map(&p, 1);
    settle();
    open_gate(&g);
    WAIT_FOR(status_of(in).batches == 2, 30);
    assert_int_equal(kvr_ingest_visit_view(in, (struct kvr_worker){1, 0}, look, NULL), 0); /* after the announcement */
    assert_int_equal(status_of(in).filtered.copy_taken_back, 0);
    assert_int_equal(status_of(in).knowledge, KVR_VIEW_WHOLE);
    kvr_ingest_destroy(in);
    unrig(&g, &p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stopping_does_not_wait_for_the_backlog_of_a_broken_connection),
        cmocka_unit_test(a_removal_for_which_there_was_no_memory_is_not_passed_over),
        cmocka_unit_test(a_thread_that_is_held_up_while_more_comes_than_has_room_goes_on),
        cmocka_unit_test(a_backlog_leaves_others_their_turns),
        cmocka_unit_test(a_report_that_waits_beside_its_announcement_is_not_taken_for_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
