/* SPDX-License-Identifier: Apache-2.0 */
/* KV events through JetStream, on a real nats-server: several publishers, replicas that come at any time, snapshots that bound
 * the stream, torn ones, a server that is killed. What every replica ends with is what the publishers hold. */
#include "nats_server.h"
#include "same_content.h"

#include <kvroute/index.h>
#include <nats/nats.h>
#include <pthread.h>
#include <stdatomic.h>

#include "net/ingest/event_plane.h"
#include "net/nats/registry.h"
#include "net/nats/snapshots.h"
#include "wire/prom_page.h"

enum { WORKERS = 4, CHAINS = 64, DEPTH = 48, BS = 16 };
static const char SCOPE[] = "namespace.test.component.unit", STREAM[] = "namespace-test-component-unit-kv-events";

/* ---- publishers ----------------------------------------------------------------------------------------------------- */

/* A worker whose cache is a set of chains: sound, as a block only goes when nothing is behind it. */
struct worker {
    struct kvr_worker id;
    struct kvr_outlet *out;
    uint64_t next_id, names;
    struct {
        size_t n;
        uint64_t name[DEPTH];
    } chains[CHAINS];
};

struct fleet {
    struct kvr_nats *link;
    struct kvr_index *truth;
    struct worker w[WORKERS];
    struct kvr_rng rng;
    uint64_t events, full;
    pthread_t beating_thread;
    _Atomic bool over;
};

static void *heartbeat(void *arg)
{
    struct fleet *f = arg;
    while (!atomic_load(&f->over)) {
        for (size_t i = 0; i < WORKERS; i++) f->w[i].out->heartbeat(f->w[i].out);
        for (int i = 0; i < KVR_HEARTBEAT_MS / 10 && !atomic_load(&f->over); i++) nats_Sleep(10);
    }
    return NULL;
}

static void publish(struct fleet *f, struct worker *w, struct kvr_event *ev)
{
    ev->worker = w->id;
    ev->event_id = w->next_id++;
    assert_int_equal(kvr_index_apply(f->truth, ev), 0);
    uint64_t deadline = seconds_from_now(60);
    while (w->out->publish(w->out, ev, NULL)) { /* an engine would go on; here nothing may be lost */
        f->full++;
        assert_true(time_is_left(deadline));
    }
    f->events++;
}

static void step(struct fleet *f)
{
    struct worker *w = &f->w[kvr_rng_below(&f->rng, WORKERS)];
    size_t c = kvr_rng_below(&f->rng, CHAINS), n = w->chains[c].n;
    struct kvr_block blocks[4];
    struct kvr_event ev = {.kind = KVR_EVENT_STORED, .blocks = blocks};
    if (n && (n + 4 > DEPTH || kvr_rng_below(&f->rng, 3) == 0)) {
        ev = (struct kvr_event){.kind = KVR_EVENT_REMOVED, .removed = &w->chains[c].name[n - 1], .removed_n = 1};
        w->chains[c].n--;
    } else {
        ev.has_parent = n > 0;
        ev.parent_hash = n ? w->chains[c].name[n - 1] : 0;
        ev.blocks_n = 1 + kvr_rng_below(&f->rng, 4);
        for (size_t i = 0; i < ev.blocks_n; i++) {
            uint64_t name = w->chains[c].name[w->chains[c].n++] = ++w->names;
            blocks[i] = (struct kvr_block){name, kvr_mix64(c * DEPTH + n + i)};
        }
    }
    publish(f, w, &ev);
}

static void fleet_start(struct fleet *f, const struct server *s)
{
    char err[256];
    struct kvr_nats_config nc = {.url = s->url, .name = "publishers"};
    *f = (struct fleet){.rng = {env_u64("KVR_SEED", 1)}};
    assert_int_equal(kvr_nats_connect(&nc, &f->link, err, sizeof err), 0);
    assert_int_equal(kvr_index_create(NULL, &f->truth), 0);
    for (uint64_t i = 0; i < WORKERS; i++) {
        struct worker *w = &f->w[i];
        struct kvr_event clear = {.kind = KVR_EVENT_CLEARED};
        w->id = (struct kvr_worker){1 + i / 2, (uint32_t)(i % 2)};
        w->next_id = 1;
        w->names = i << 40;
        assert_int_equal(kvr_outlet_jetstream(f->link, SCOPE, 1, w->id, &w->out, err, sizeof err), 0);
        publish(f, w, &clear);
    }
    assert_int_equal(pthread_create(&f->beating_thread, NULL, heartbeat, f), 0);
}

static void fleet_stop(struct fleet *f)
{
    atomic_store(&f->over, true);
    pthread_join(f->beating_thread, NULL);
    for (size_t i = 0; i < WORKERS; i++) f->w[i].out->close(f->w[i].out);
    kvr_index_destroy(f->truth);
    kvr_nats_close(f->link);
}

/* ---- replicas ------------------------------------------------------------------------------------------------------- */

struct replica {
    struct kvr_nats *link;
    struct kvr_index *index;
    struct kvr_ingest *in;
    struct kvr_durable_feed *feed;
};

static int on_event(void *, void *user, const struct kvr_event *ev, const struct kvr_ingest_origin *)
{
    return kvr_index_apply(user, ev);
}

static void on_reset(void *, void *user, struct kvr_worker w)
{
    kvr_index_remove_rank(user, w);
}

static struct kvr_index *hold(void *, void *user)
{
    return user;
}

static void release(void *, void *) {}

static void replica_start(struct replica *r, const struct server *s, uint64_t threshold, bool reset)
{
    char err[256];
    struct kvr_nats_config nc = {.url = s->url, .name = "replica"};
    struct kvr_ingest_handler h = {.on_event = on_event, .on_reset = on_reset};
    *r = (struct replica){0};
    assert_int_equal(kvr_nats_connect(&nc, &r->link, err, sizeof err), 0);
    assert_int_equal(kvr_index_create(NULL, &r->index), 0);
    assert_int_equal(kvr_ingest_create(&h, 5, &r->in), 0);
    for (uint64_t i = 0; i < WORKERS; i++) {
        struct kvr_ingest_source src = {.worker = {1 + i / 2, (uint32_t)(i % 2)}, .block_size = BS, .user = r->index};
        assert_int_equal(kvr_ingest_add(r->in, &src), 0);
    }
    struct kvr_durable_config c = {.link = r->link,
                                   .scope = SCOPE,
                                   .in = r->in,
                                   .replicas = 1,
                                   .threshold = threshold,
                                   .reset = reset,
                                   .hold = hold,
                                   .release = release};
    assert_int_equal(kvr_durable_feed_open(&c, &r->feed), 0);
}

static void replica_stop(struct replica *r)
{
    kvr_durable_feed_close(r->feed);
    kvr_ingest_destroy(r->in);
    kvr_index_destroy(r->index);
    kvr_nats_close(r->link);
}

static uint64_t figure(const struct replica *r, const char *name)
{
    struct kvr_buf b = {0};
    char key[100];
    kvr_durable_feed_metrics(r->feed, &(struct kvr_prom_page){.out = &b});
    kvr_buf_add(&b, "", 1);
    snprintf(key, sizeof key, "\nkvroute_durable_%s ", name);
    const char *at = strstr(b.data, key);
    assert_non_null(at);
    uint64_t v = strtoull(at + strlen(key), NULL, 10);
    kvr_buf_free(&b);
    return v;
}

static uint64_t written(const struct replica *a, const struct replica *b)
{
    return figure(a, "written_snapshots_total") + figure(b, "written_snapshots_total");
}

static bool caught_up(struct replica *r, const struct fleet *f)
{
    struct kvr_view_status st[WORKERS];
    size_t n = kvr_ingest_status(r->in, st, WORKERS), good = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < WORKERS; k++)
            good += kvr_worker_cmp(st[i].worker, f->w[k].id) == 0 && st[i].trusted && st[i].next_sequence == f->w[k].next_id;
    return good == WORKERS;
}

/* Waits until the replica has everything, trusted, and compares. */
static void assert_right(struct replica *r, const struct fleet *f)
{
    WAIT_FOR(caught_up(r, f), 120);
    for (size_t i = 0; i < WORKERS; i++) assert_same_content(f->truth, r->index, &f->w[i].id);
}

/* ---- the server from the side ---------------------------------------------------------------------------------------- */

struct side {
    natsConnection *nc;
    jsCtx *js;
    kvStore *kv;
};

static void side_open(struct side *d, const struct server *s)
{
    *d = (struct side){0};
    assert_int_equal(natsConnection_ConnectTo(&d->nc, s->url), NATS_OK);
    assert_int_equal(natsConnection_JetStream(&d->js, d->nc, NULL), NATS_OK);
}

static void side_close(struct side *d)
{
    kvStore_Destroy(d->kv);
    jsCtx_Destroy(d->js);
    natsConnection_Destroy(d->nc);
}

static uint64_t stream_messages(struct side *d)
{
    jsStreamInfo *si = NULL;
    uint64_t n = 0;
    if (js_GetStreamInfo(&si, d->js, STREAM, NULL, NULL) == NATS_OK) n = si->State.Msgs;
    jsStreamInfo_Destroy(si);
    return n;
}

static uint64_t stream_last(struct side *d)
{
    jsStreamInfo *si = NULL;
    uint64_t n = 0;
    if (js_GetStreamInfo(&si, d->js, STREAM, NULL, NULL) == NATS_OK) n = si->State.LastSeq;
    jsStreamInfo_Destroy(si);
    return n;
}

/* No further ahead of the server than it can be for a moment. */
static void steps(struct fleet *f, struct side *d, uint64_t n)
{
    enum { BATCH = 2000, AHEAD = 10000 };
    for (uint64_t i = 0; i < n; i++) {
        step(f);
        if (i % BATCH == 0) WAIT_FOR(stream_last(d) + AHEAD >= f->events, 120);
    }
}

/* The sequence up to which the newest snapshot goes; 0: there is none. */
static uint64_t covered(struct kvr_snapshots *s)
{
    struct kvr_snapshot_head h = {0};
    uint64_t at = kvr_snapshots_head(s, &h) == 0 && h.n ? h.v[0].position : 0;
    kvr_snapshot_head_free(&h);
    return at;
}

/* Changes a byte of the newest snapshot's first piece. */
static void tear_newest(struct side *d, struct kvr_nats *link)
{
    struct kvr_snapshots *s;
    struct kvr_snapshot_head h;
    struct kvr_buf b = {0};
    char token[100], key[200];
    kvr_registry_token(SCOPE, token, sizeof token);
    assert_int_equal(kvr_snapshots_open(link, token, 1, &s), 0);
    assert_int_equal(kvr_snapshots_head(s, &h), 0);
    assert_int_equal(h.n, KVR_SNAPSHOT_KEPT);
    assert_int_equal(kvr_snapshots_piece(s, &h.v[0], 0, &b), 0);
    b.data[b.len / 2] ^= 1;
    if (!d->kv) assert_int_equal(js_KeyValue(&d->kv, d->js, "kvroute-snapshots"), NATS_OK);
    snprintf(key, sizeof key, "%s.%llu.0", token, (unsigned long long)h.v[0].version);
    assert_int_equal(kvStore_Put(NULL, d->kv, key, b.data, (int)b.len), NATS_OK);
    assert_int_equal(kvr_snapshots_piece(s, &h.v[0], 0, &b), -KVR_EFORMAT);
    kvr_buf_free(&b);
    kvr_snapshot_head_free(&h);
    kvr_snapshots_close(s);
}

static bool has_consumer(struct side *d, const char *name)
{
    jsConsumerInfo *ci = NULL;
    bool has = js_GetConsumerInfo(&ci, d->js, STREAM, name, NULL, NULL) == NATS_OK;
    jsConsumerInfo_Destroy(ci);
    return has;
}

/* Messages that were published more than once, as the server was slow. */
static uint64_t published_again(const struct fleet *f)
{
    uint64_t n = 0;
    for (size_t i = 0; i < WORKERS; i++) {
        struct kvr_outlet_kept k = {0};
        f->w[i].out->kept(f->w[i].out, &k);
        n += k.again;
    }
    return n;
}

/* ---- the tests ------------------------------------------------------------------------------------------------------ */

static void replicas_end_right_and_the_stream_stays_small(void **)
{
    uint64_t total = env_u64("KVR_OPS", 1000000), threshold = total / 10, most = 0;
    struct server s;
    struct fleet f;
    struct replica a, b, c, d;
    struct side side;
    struct kvr_snapshots *store;
    char token[100];
    server_start(&s);
    fleet_start(&f, &s);
    kvr_registry_token(SCOPE, token, sizeof token);
    assert_int_equal(kvr_snapshots_open(f.link, token, 1, &store), 0);
    replica_start(&a, &s, threshold, false);
    replica_start(&b, &s, threshold, false); /* two at once: both end right, one keeps the snapshots */
    side_open(&side, &s);
    uint64_t began = kvr_now_ns(kvr_clock_monotonic());
    /* As fast as snapshots are written. The newest is at most a threshold behind when a round begins, and each of the rounds before
     * began so too: the one before it is at most two older, and what it covers goes. */
    while (f.events < total) {
        steps(&f, &side, threshold);
        uint64_t messages = stream_messages(&side);
        most = KVR_MAX(most, messages);
        assert_true(messages <= 5 * threshold + published_again(&f));
        WAIT_FOR(covered(store) + threshold >= f.events, 300);
    }
    kvr_snapshots_close(store);
    assert_right(&a, &f);
    double seconds = (double)(kvr_now_ns(kvr_clock_monotonic()) - began) / 1e9;
    assert_right(&b, &f);
    print_message("%llu events in %.1f s; at most %llu messages in the stream; %llu snapshots; %llu waits for room\n",
                  (unsigned long long)f.events, seconds, (unsigned long long)most, (unsigned long long)written(&a, &b),
                  (unsigned long long)f.full);
    assert_true(written(&a, &b) >= 3 && figure(&a, "keeper") + figure(&b, "keeper") == 1);
    assert_true(stream_messages(&side) <= 5 * threshold + published_again(&f));

    replica_start(&c, &s, 0, false);
    assert_right(&c, &f);
    assert_true(figure(&c, "loaded_snapshots_total") == 1 && figure(&c, "torn_snapshots_total") == 0);

    tear_newest(&side, f.link);
    replica_start(&d, &s, 0, false);
    assert_right(&d, &f);
    assert_true(figure(&d, "loaded_snapshots_total") == 1 && figure(&d, "torn_snapshots_total") == 1);

    /* What is on its way, and what is published meanwhile, is published again: there is nobody to ask. A server that is killed may lose
     * what it has said to be stored and had not written yet, so that is left to settle before. */
    server_kill(&s);
    for (uint64_t i = 0; i < 2000; i++) step(&f);
    server_run(&s);
    assert_right(&a, &f);
    assert_right(&d, &f);
    replica_stop(&c);
    replica_stop(&d);
    replica_stop(&a); /* perhaps the keeper: the other goes on */
    steps(&f, &side, threshold * 2);
    assert_right(&b, &f);
    uint64_t before = figure(&b, "written_snapshots_total");
    WAIT_FOR(figure(&b, "keeper") == 1, 30);
    WAIT_FOR(figure(&b, "written_snapshots_total") > before || before > 0, 30);
    replica_stop(&b);
    side_close(&side);
    fleet_stop(&f);
    server_remove(&s);
}

static void orphans_and_reset(void **)
{
    struct server s;
    struct fleet f;
    struct replica a, b;
    struct side side;
    jsConsumerConfig cc;
    server_start(&s);
    fleet_start(&f, &s);
    for (int i = 0; i < 3000; i++) step(&f);
    replica_start(&a, &s, 1000, false);
    assert_right(&a, &f);
    side_open(&side, &s);
    jsConsumerConfig_Init(&cc);
    cc.Durable = "kvroute-dead"; /* its replica is gone, and it holds the purge back */
    cc.AckPolicy = js_AckAll;
    assert_int_equal(js_AddConsumer(NULL, side.js, STREAM, &cc, NULL, NULL), NATS_OK);
    for (int i = 0; i < 3000; i++) step(&f);
    WAIT_FOR(!has_consumer(&side, "kvroute-dead"), 60);
    WAIT_FOR(figure(&a, "orphans_removed_total") == 1, 10);
    for (int i = 0; i < 3000; i++) step(&f);
    assert_right(&a, &f);
    WAIT_FOR(stream_messages(&side) < 6000, 30);
    replica_start(&b, &s, 0, true); /* throws everything away: its views wait for a clear */
    WAIT_FOR(figure(&b, "starts_total") == 1 && stream_messages(&side) == 0, 30);
    assert_int_equal(figure(&b, "loaded_snapshots_total"), 0);
    for (int i = 0; i < WORKERS; i++) {
        struct kvr_event clear = {.kind = KVR_EVENT_CLEARED};
        for (size_t k = 0; k < CHAINS; k++) f.w[i].chains[k].n = 0;
        publish(&f, &f.w[i], &clear);
    }
    for (int i = 0; i < 500; i++) step(&f);
    assert_right(&b, &f);
    assert_right(&a, &f);
    replica_stop(&b);
    replica_stop(&a);
    side_close(&side);
    fleet_stop(&f);
    server_remove(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_end_right_and_the_stream_stays_small),
        cmocka_unit_test(orphans_and_reset),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
