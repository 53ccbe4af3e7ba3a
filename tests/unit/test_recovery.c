/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine with a local index, real sockets, and a consumer that loses things.
 *
 * The engine has a small cache and emits random batches; some are not sent, some are sent twice, both sides restart at bad
 * moments, and the ring is often too short. When it is quiet again the consumer's index must equal the engine's, and full dumps
 * may only have been made where nothing less would do.
 *
 * KVR_SEED sets the first seed, KVR_OPS the events of all.
 */
#include "same_content.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>
#include <zmq.h>
#include <kvroute/hash.h>
#include <kvroute/index.h>
#include <kvroute/local_index.h>

#include "net/http/http.h"
#include "net/ingest/ingest.h"
#include "wire/engine_encode.h"

enum { SEEDS = 20, EVENTS = 40000, BS = 4, BRANCH = 4, DEPTH = 12, CACHE = 300, BATCH_EVENTS = 4 };

static const struct kvr_worker W = {5, 0};

/* ---- the engine ------------------------------------------------------------------------------------------ */

struct cached {
    uint64_t name;
    uint32_t parent, kids; /* parent: place + 1 */
};

struct engine {
    struct kvr_rng rng;
    struct cached blocks[CACHE + DEPTH];
    size_t n;
    struct kvr_index *truth;
    struct kvr_local_index *index; /* under `lock`: the server uses it */
    pthread_mutex_t lock;
    uint64_t seq, events, epoch;
    size_t ring;
    void *zmq, *pub;
    int port;
    struct kvr_buf batch, out;
    uint32_t batch_n;
    /* the server's account */
    _Atomic unsigned questions, all, evicted, dumps;
    unsigned restarts;
    uint64_t sent; /* the last batch that was not lost on the way */
};

static size_t find_block(const struct engine *e, uint64_t name)
{
    size_t i = 0;
    while (i < e->n && e->blocks[i].name != name) i++;
    return i;
}

static uint64_t child_name(uint64_t parent, uint32_t letter)
{
    return kvr_mix64(parent * 31 + letter + 1) | 1;
}

static void emit(struct engine *e, struct kvr_event *ev, const uint32_t *tokens, size_t tokens_n)
{
    struct kvr_engine_words w = {.tokens = tokens, .tokens_n = tokens_n, .block_size = BS};
    ev->worker = W;
    ev->event_id = e->seq;
    assert_int_equal(kvr_index_apply(e->truth, ev), 0);
    assert_int_equal(kvr_local_index_apply(e->index, ev), 0);
    kvr_engine_encode(&e->batch, ev, &w);
    e->batch_n++;
    e->events++;
}

static void store(struct engine *e)
{
    struct kvr_block fresh[DEPTH];
    uint32_t tokens[DEPTH * BS];
    size_t n = 0, depth = 1 + kvr_rng_below(&e->rng, DEPTH), above = SIZE_MAX;
    uint64_t name = 0;
    struct kvr_event ev = {.kind = KVR_EVENT_STORED, .blocks = fresh};
    for (size_t d = 0; d < depth; d++) {
        uint32_t letter = kvr_rng_below(&e->rng, 8) ? 0 : kvr_rng_below(&e->rng, BRANCH); /* prefixes are shared */
        uint64_t child = child_name(name, letter);
        size_t at = find_block(e, child);
        if (at == e->n) {
            if (n == 0) {
                ev.has_parent = d > 0;
                ev.parent_hash = name;
            }
            for (int k = 0; k < BS; k++) tokens[n * BS + (size_t)k] = letter;
            fresh[n].block_hash = child;
            (void)kvr_hash_locals(tokens + n * BS, BS, BS, false, KVR_HASH_SEED, NULL, 0, &fresh[n].tokens_hash);
            n++;
            e->blocks[e->n++] = (struct cached){child, above == SIZE_MAX ? 0 : (uint32_t)above + 1, 0};
            if (above != SIZE_MAX) e->blocks[above].kids++;
        }
        above = at;
        name = child;
    }
    ev.blocks_n = n;
    if (n) emit(e, &ev, tokens, n * BS);
}

/* Gives up some leaf. */
static void evict(struct engine *e)
{
    size_t i = kvr_rng_below(&e->rng, (uint32_t)e->n);
    while (e->blocks[i].kids) i = (i + 1) % e->n;
    uint64_t name = e->blocks[i].name;
    struct kvr_event ev = {.kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    if (e->blocks[i].parent) e->blocks[e->blocks[i].parent - 1].kids--;
    size_t last = --e->n;
    if (i != last) {
        e->blocks[i] = e->blocks[last];
        for (size_t k = 0; k < e->n; k++)
            if (e->blocks[k].parent == last + 1) e->blocks[k].parent = (uint32_t)i + 1;
    }
    emit(e, &ev, NULL, 0);
}

static void step(struct engine *e)
{
    if (kvr_rng_below(&e->rng, 5000) == 0) {
        struct kvr_event ev = {.kind = KVR_EVENT_CLEARED};
        e->n = 0;
        emit(e, &ev, NULL, 0);
    } else if (e->n >= CACHE || (e->n && kvr_rng_below(&e->rng, 2))) {
        evict(e);
    } else {
        store(e);
    }
}

static void put_on_wire(struct engine *e)
{
    unsigned char seq[8];
    kvr_store_be64(seq, e->seq);
    zmq_send(e->pub, "", 0, ZMQ_SNDMORE);
    zmq_send(e->pub, seq, 8, ZMQ_SNDMORE);
    zmq_send(e->pub, e->out.data, e->out.len, 0);
    e->sent = e->seq;
}

/* One batch; `loss` in thousandths. */
static void publish(struct engine *e, uint32_t loss)
{
    struct timespec ts;
    kvr_local_index_hold(e->index);
    for (uint32_t k = 1 + kvr_rng_below(&e->rng, BATCH_EVENTS); k; k--) step(e);
    kvr_local_index_release(e->index);
    clock_gettime(CLOCK_REALTIME, &ts);
    kvr_engine_encode_batch(&e->out, (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec, &e->batch, e->batch_n, 0);
    assert_false(e->out.failed);
    if (kvr_rng_below(&e->rng, 1000) >= loss) put_on_wire(e);
    if (kvr_rng_below(&e->rng, 500) == 0) put_on_wire(e);
    e->seq++;
    e->batch.len = e->out.len = 0;
    e->batch_n = 0;
}

/* Has the socket an endpoint? */
static bool bound(const struct engine *e)
{
    char endpoint[64] = "";
    size_t len = sizeof endpoint;
    return zmq_getsockopt(e->pub, ZMQ_LAST_ENDPOINT, endpoint, &len) == 0 && endpoint[0];
}

static bool bind_to(struct engine *e, const char *endpoint)
{
    return bound(e) || zmq_bind(e->pub, endpoint) == 0;
}

static void start_engine(struct engine *e)
{
    char endpoint[64];
    struct kvr_local_index_config c = {.worker = W, .epoch = ++e->epoch, .events_max = e->ring};
    struct kvr_local_index *li;
    assert_int_equal(kvr_index_create(NULL, &e->truth), 0);
    assert_int_equal(kvr_local_index_create(&c, &li), 0);
    pthread_mutex_lock(&e->lock);
    e->index = li;
    pthread_mutex_unlock(&e->lock);
    e->n = e->seq = e->sent = 0;
    e->pub = zmq_socket(e->zmq, ZMQ_PUB);
    int hwm = 0, linger = 1000;
    zmq_setsockopt(e->pub, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(e->pub, ZMQ_LINGER, &linger, sizeof linger);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", e->port);
    WAIT_FOR(bind_to(e, e->port ? endpoint : "tcp://127.0.0.1:*"), 5); /* the port may be its old life's */
    size_t len = sizeof endpoint;
    zmq_getsockopt(e->pub, ZMQ_LAST_ENDPOINT, endpoint, &len);
    e->port = (int)strtol(strrchr(endpoint, ':') + 1, NULL, 10);
}

static void stop_engine(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    kvr_local_index_destroy(e->index);
    e->index = NULL;
    pthread_mutex_unlock(&e->lock);
    kvr_index_destroy(e->truth);
    zmq_close(e->pub);
}

/* ---- its HTTP server -------------------------------------------------------------------------------------- */

struct server {
    struct engine *engine;
    uv_loop_t loop;
    uv_async_t stop;
    struct kvr_http_server *http;
    pthread_t thread;
};

static int to_buf(void *ctx, const char *data, size_t len)
{
    kvr_buf_add(ctx, data, len);
    return 0;
}

static bool too_late(struct kvr_local_index *index, const struct kvr_local_query *q)
{
    struct kvr_local_index_stats st;
    kvr_local_index_stats(index, &st);
    return q->has_start && (q->start < st.oldest_id || st.events == 0);
}

static void on_request(struct kvr_http_conn *c, void *ctx)
{
    struct engine *e = ((struct server *)ctx)->engine;
    struct kvr_buf b = {0};
    char start[32];
    struct kvr_local_query q = {0};
    q.has_start = kvr_query_parameter(kvr_http_conn_request(c)->query, "start", start, sizeof start);
    if (q.has_start) q.start = strtoull(start, NULL, 10);
    pthread_mutex_lock(&e->lock);
    if (e->index) {
        bool late = too_late(e->index, &q);
        assert_int_equal(kvr_local_index_answer(e->index, &q, to_buf, &b), 0);
        late = late || too_late(e->index, &q); /* the engine goes on meanwhile: its ring may fill or turn just now */
        atomic_fetch_add(&e->questions, 1);
        atomic_fetch_add(&e->all, !q.has_start);
        atomic_fetch_add(&e->evicted, late);
        atomic_fetch_add(&e->dumps, memmem(b.data, KVR_MIN(b.len, (size_t)20), "TreeDump", 8) != NULL);
    }
    pthread_mutex_unlock(&e->lock);
    if (b.len) kvr_http_reply(c, 200, "application/json", NULL, b.data, b.len);
    else kvr_http_reply(c, 503, "text/plain", NULL, "", 0);
    kvr_buf_free(&b);
}

static void ignore(struct kvr_http_conn *, void *) {}

static void no_body(struct kvr_buf *, int, const char *) {}

static void on_stop(uv_async_t *a)
{
    struct server *s = a->data;
    kvr_http_server_close(s->http);
    uv_close((uv_handle_t *)a, NULL);
}

static void *server_main(void *arg)
{
    struct server *s = arg;
    uv_run(&s->loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop);
    return NULL;
}

static void start_server(struct server *s, struct engine *e)
{
    struct kvr_http_server_config c = {.host = "127.0.0.1",
                                       .body_max = 1000,
                                       .connections_max = 100,
                                       .head_timeout_s = 10,
                                       .body_timeout_s = 10,
                                       .idle_timeout_s = 10,
                                       .handler = {on_request, ignore, ignore, no_body, s}};
    s->engine = e;
    uv_loop_init(&s->loop);
    uv_async_init(&s->loop, &s->stop, on_stop);
    s->stop.data = s;
    assert_int_equal(kvr_http_server_start(&s->loop, &c, &s->http), 0);
    pthread_create(&s->thread, NULL, server_main, s);
}

static void stop_server(struct server *s)
{
    uv_async_send(&s->stop);
    pthread_join(s->thread, NULL);
}

/* ---- the consumer ----------------------------------------------------------------------------------------- */

struct consumer {
    struct kvr_index *index;
    struct kvr_ingest *ingest;
    unsigned starts;
    uint64_t breaks, restarts, orphans, failures; /* what it says of all its lives */
    _Atomic unsigned partial;                     /* times that its view became one that lacks something */
};

static int on_event(void *, void *user, const struct kvr_event *ev, const struct kvr_ingest_origin *)
{
    return kvr_index_apply(user, ev);
}

static void on_reset(void *, void *user, struct kvr_worker w)
{
    kvr_index_remove_rank(user, w);
}

static void on_view(void *ctx, void *user, struct kvr_worker w, enum kvr_view_knowledge knowledge, const char *reason)
{
    struct consumer *c = ctx;
    (void)user, (void)w, (void)reason;
    if (knowledge == KVR_VIEW_PARTIAL) atomic_fetch_add(&c->partial, 1);
}

static void start_consumer(struct consumer *c, const struct engine *e, const struct server *s)
{
    char events[64], recover[64];
    struct kvr_ingest_handler h = {.on_event = on_event, .on_reset = on_reset, .on_view = on_view, .ctx = c};
    assert_int_equal(kvr_index_create(NULL, &c->index), 0);
    assert_int_equal(kvr_ingest_create(&h, 5, &c->ingest), 0);
    snprintf(events, sizeof events, "tcp://127.0.0.1:%d", e->port);
    snprintf(recover, sizeof recover, "http://127.0.0.1:%d/kv_recover", kvr_http_server_port(s->http));
    struct kvr_ingest_source src = {.worker = W, .block_size = BS, .events = events, .recover = recover, .user = c->index};
    assert_int_equal(kvr_ingest_add(c->ingest, &src), 0);
    c->starts++;
}

static void stop_consumer(struct consumer *c)
{
    struct kvr_view_status st;
    if (kvr_ingest_status(c->ingest, &st, 1) == 1) {
        c->breaks += st.disconnects;
        c->restarts += st.restarts;
        c->orphans += st.parent_not_found;
        c->failures += st.recovery_failures;
    }
    kvr_ingest_destroy(c->ingest);
    kvr_index_destroy(c->index);
}

static bool caught_up(struct consumer *c, const struct engine *e)
{
    struct kvr_view_status st;
    return kvr_ingest_status(c->ingest, &st, 1) == 1 && st.knowledge == KVR_VIEW_WHOLE && st.next_sequence == e->seq;
}

/* ---- one seed --------------------------------------------------------------------------------------------- */

static void wait_caught_up(struct consumer *c, struct engine *e, uint64_t seed)
{
    uint64_t deadline = seconds_from_now(60), sign_of_life = seconds_from_now(0.2);
    while (time_is_left(deadline)) {
        if (caught_up(c, e)) return;
        if (kvr_now_ns(kvr_clock_monotonic()) < sign_of_life) continue;
        publish(e, 0); /* an engine that lives is heard of; the last batch may have been lost */
        sign_of_life = seconds_from_now(0.2);
    }
    struct kvr_view_status st;
    kvr_ingest_status(c->ingest, &st, 1);
    fail_msg("seed %llu: the consumer is at %llu of %llu, %s", (unsigned long long)seed, (unsigned long long)st.next_sequence,
             (unsigned long long)e->seq, st.reason);
}

static bool connected(struct consumer *c)
{
    struct kvr_view_status st;
    return kvr_ingest_status(c->ingest, &st, 1) == 1 && st.connected;
}

/* Lets the consumer see the last batch that was sent: it has it, or is busy finding out what it lacks. One whose subscription
 * had not arrived will never see it, so that the time is short and no failure. */
static void look(struct consumer *c, const struct engine *e)
{
    struct kvr_view_status st;
    uint64_t deadline = seconds_from_now(0.02);
    do {
        if (kvr_ingest_status(c->ingest, &st, 1) != 1 || !st.connected || st.repairing || st.state != KVR_VIEW_LIVE) return;
    } while (st.next_sequence <= e->sent && time_is_left(deadline));
}

static void run_seed(uint64_t seed, uint64_t events)
{
    struct engine e = {.rng = {seed}, .zmq = zmq_ctx_new(), .epoch = 100};
    struct server s = {0};
    struct consumer c = {0};
    struct kvr_rng *rng = &e.rng;
    pthread_mutex_init(&e.lock, NULL);
    e.ring = kvr_rng_below(rng, 2) ? 64 : 1024;
    uint32_t loss = 1 + kvr_rng_below(rng, 60);
    start_engine(&e);
    start_server(&s, &e);
    start_consumer(&c, &e, &s);
    while (e.events < events) {
        for (int i = 0; i < 200; i++) {
            publish(&e, loss);
            if (i % 20 == 0) look(&c, &e);
        }
        if (kvr_rng_below(rng, 40) == 0) {
            stop_consumer(&c);
            start_consumer(&c, &e, &s);
        }
        if (kvr_rng_below(rng, 60) == 0) {
            stop_engine(&e);
            if (kvr_rng_below(rng, 2)) WAIT_FOR(!connected(&c), 30); /* else its new life may be there before anybody has noticed */
            start_engine(&e);
            e.restarts++;
        }
        if (kvr_rng_below(rng, 20) == 0) {
            wait_caught_up(&c, &e, seed);
            assert_same_content(e.truth, c.index, &W);
        }
    }
    wait_caught_up(&c, &e, seed);
    assert_same_content(e.truth, c.index, &W);
    /* Everything is asked for by a consumer that has nothing, after a restart of the engine, when the view lacks some of before, and by
     * nobody else. A restart can be seen twice: by the broken connection and by the ids. */
    stop_consumer(&c);
    stop_server(&s);
    unsigned all = atomic_load(&e.all), evicted = atomic_load(&e.evicted), dumps = atomic_load(&e.dumps);
    print_message("seed %llu: ring %zu, loss %u/1000, %u consumers, %u restarts; %u questions, %u for all, %u too late, %u dumps; "
                  "%llu breaks, %llu restarts seen, %llu orphans, %llu failures\n",
                  (unsigned long long)seed, e.ring, loss, c.starts, e.restarts, atomic_load(&e.questions), all, evicted, dumps,
                  (unsigned long long)c.breaks, (unsigned long long)c.restarts, (unsigned long long)c.orphans,
                  (unsigned long long)c.failures);
    assert_true(dumps <= all + evicted);
    assert_true(all <= c.starts + 2 * e.restarts + atomic_load(&c.partial));
    stop_engine(&e);
    zmq_ctx_term(e.zmq);
    kvr_buf_free(&e.batch);
    kvr_buf_free(&e.out);
    pthread_mutex_destroy(&e.lock);
}

static void a_consumer_that_loses_things_ends_right(void **)
{
    uint64_t seed = env_u64("KVR_SEED", 1), events = env_u64("KVR_OPS", SEEDS * EVENTS) / SEEDS;
    for (uint64_t i = 0; i < SEEDS; i++) run_seed(seed + i, events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_consumer_that_loses_things_ends_right)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
