/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine's event tee: local index and PUB socket.
 *
 *   1. CPU of applying and publishing EVENTS_PER_S events a second, in batches of several sizes, open loop with absolute deadlines.
 *      An event stores or removes one block of 16 tokens; 102,400 blocks are held. What the engine would do anyway (making the
 *      events) is timed apart and taken off; the socket's own thread counts. A subscriber in another process takes everything.
 *   2. The delay of each event while another thread takes dumps of 1,000,000 blocks: from the moment the event was due until it was
 *      applied and published. Beside it the same with nothing, and with a thread that is as busy and touches nothing of ours: on a
 *      machine with few cores that alone delays. And what the calls themselves took, waiting for the dump's pieces included.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>
#include <kvroute/hash.h>
#include <kvroute/local_index.h>

#include "base/base.h"
#include "wire/engine_encode.h"

enum { EVENTS_PER_S = 100000, SECONDS = 5, BS = 16, HELD = 1600 * 64, CHAIN = 64, DUMP_BLOCKS = 1000000, DUMP_EVENTS_PER_S = 20000 };

static uint64_t now_ns(void)
{
    return kvr_now_ns(kvr_clock_monotonic());
}

static double cpu_s(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + 1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

/* ---- an engine that stores chains of CHAIN blocks and gives up the oldest, tails first ------------------------------------ */

struct engine {
    struct kvr_local_index *li; /* NULL: only make the events */
    void *pub;                  /* NULL: do not publish */
    uint64_t held, next, gone, removing, seq;
    uint32_t tokens[BS];
    uint64_t made; /* keeps the making of events from being optimised away */
    struct kvr_buf batch, out;
    uint32_t batch_n;
};

static uint64_t name_of(uint64_t n)
{
    return kvr_mix64(n + 1);
}

static void make_tokens(struct engine *e, uint64_t n)
{
    for (uint64_t i = 0; i < BS; i++) e->tokens[i] = (uint32_t)(kvr_mix64(n * BS + i) % 150000);
    e->made += e->tokens[BS - 1];
}

static void store_one(struct engine *e)
{
    uint64_t n = e->next++, name = name_of(n);
    make_tokens(e, n);
    if (!e->li) return;
    struct kvr_local_store s = {.tokens = e->tokens,
                                .tokens_n = BS,
                                .block_hashes = &name,
                                .blocks_n = 1,
                                .has_parent = n % CHAIN > 0,
                                .parent_hash = n % CHAIN ? name_of(n - 1) : 0};
    KVR_ASSERT(kvr_local_index_store(e->li, e->seq, &s) == 0);
    if (!e->pub) return;
    struct kvr_block b = {name, 0};
    struct kvr_event ev = {.kind = KVR_EVENT_STORED, .blocks = &b, .blocks_n = 1, .has_parent = s.has_parent, .parent_hash = s.parent_hash};
    struct kvr_engine_words w = {.tokens = e->tokens, .tokens_n = BS, .block_size = BS};
    kvr_engine_encode(&e->batch, &ev, &w);
    e->batch_n++;
}

static void remove_one(struct engine *e)
{
    uint64_t chain = e->gone / CHAIN, n = chain * CHAIN + CHAIN - 1 - e->gone % CHAIN, name = name_of(n);
    e->gone++;
    e->made += name;
    if (!e->li) return;
    KVR_ASSERT(kvr_local_index_remove(e->li, e->seq, KVR_TIER_DEVICE, &name, 1) == 0);
    if (!e->pub) return;
    struct kvr_event ev = {.kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    static const struct kvr_engine_words none;
    kvr_engine_encode(&e->batch, &ev, &none);
    e->batch_n++;
}

static void one_batch(struct engine *e, uint64_t events)
{
    if (e->li) kvr_local_index_hold(e->li);
    for (uint64_t i = 0; i < events; i++) {
        if (e->removing == 0 && e->next - e->gone == e->held) e->removing = CHAIN;
        if (e->removing) {
            remove_one(e);
            e->removing--;
        } else {
            store_one(e);
        }
    }
    if (e->li) kvr_local_index_release(e->li);
    if (e->pub) {
        unsigned char seq[8];
        kvr_store_be64(seq, e->seq);
        e->out.len = 0;
        kvr_engine_encode_batch(&e->out, 0, &e->batch, e->batch_n, 0);
        zmq_send(e->pub, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        zmq_send(e->pub, seq, 8, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        zmq_send(e->pub, e->out.data, e->out.len, ZMQ_DONTWAIT);
        e->batch.len = 0;
        e->batch_n = 0;
    }
    e->seq++;
}

static void wait_until(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) continue;
}

/* ---- a subscriber in another process ----------------------------------------------------------------------------------------- */

static pid_t start_subscriber(const char *endpoint)
{
    pid_t p = fork();
    if (p) return p;
    void *zmq = zmq_ctx_new(), *s = zmq_socket(zmq, ZMQ_SUB);
    char sink[65536];
    int hwm = 0;
    zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(s, ZMQ_SUBSCRIBE, "", 0);
    zmq_connect(s, endpoint);
    for (;;) zmq_recv(s, sink, sizeof sink, 0);
}

/* ---- 1. cost ------------------------------------------------------------------------------------------------------------------- */

/* CPU seconds of SECONDS seconds at EVENTS_PER_S events a second. */
static double run_for(struct engine *e, uint64_t per_batch)
{
    uint64_t batches = (uint64_t)EVENTS_PER_S * SECONDS / per_batch, began = now_ns();
    uint64_t tick = KVR_MAX(per_batch * 1000000000 / EVENTS_PER_S, UINT64_C(1000000)), due = began,
             done = 0; /* an engine's pass: at least 1 ms */
    double cpu = cpu_s();
    while (done < batches) {
        due += tick;
        wait_until(due);
        uint64_t goal = KVR_MIN((due - began) * EVENTS_PER_S / 1000000000 / per_batch, batches);
        for (; done < goal; done++) one_batch(e, per_batch);
    }
    return cpu_s() - cpu;
}

static void cost(uint64_t per_batch, void *pub)
{
    struct kvr_local_index_config c = {.worker = {1, 0}, .block_size = BS};
    struct engine idle = {.held = HELD}, tee = {.held = HELD}, both = {.held = HELD, .pub = pub};
    KVR_ASSERT(kvr_local_index_create(&c, &tee.li) == 0 && kvr_local_index_create(&c, &both.li) == 0);
    one_batch(&idle, HELD);
    one_batch(&tee, HELD);
    void *keep = both.pub;
    both.pub = NULL;
    one_batch(&both, HELD);
    both.pub = keep;
    double base = run_for(&idle, per_batch), apply = run_for(&tee, per_batch) - base, all = run_for(&both, per_batch) - base;
    struct kvr_local_index_stats st;
    kvr_local_index_stats(both.li, &st);
    printf("%6llu events a batch: applying %5.2f %% of a core (%4.0f ns an event), applying and publishing %5.2f %% (%4.0f ns); engine's "
           "own %.2f %%; %zu blocks\n",
           (unsigned long long)per_batch, 100 * apply / SECONDS, 1e9 * apply / EVENTS_PER_S / SECONDS, 100 * all / SECONDS,
           1e9 * all / EVENTS_PER_S / SECONDS, 100 * base / SECONDS, st.blocks);
    kvr_local_index_destroy(tee.li);
    kvr_local_index_destroy(both.li);
    kvr_buf_free(&both.batch);
    kvr_buf_free(&both.out);
}

/* ---- 2. a dump meanwhile ------------------------------------------------------------------------------------------------------- */

struct dumper {
    struct kvr_local_index *li; /* NULL: only busy */
    _Atomic bool stop;
    _Atomic uint64_t dumps, bytes;
    double seconds;
};

static int count_bytes(void *ctx, const char *, size_t len)
{
    atomic_fetch_add_explicit(&((struct dumper *)ctx)->bytes, len, memory_order_relaxed);
    return 0;
}

static void *dump_main(void *arg)
{
    struct dumper *d = arg;
    struct kvr_local_query q = {0};
    uint64_t began = now_ns();
    for (uint64_t x = 0; !d->li && !atomic_load(&d->stop);)
        for (int i = 0; i < 10000; i++) atomic_store_explicit(&d->bytes, x = kvr_mix64(x), memory_order_relaxed);
    while (!atomic_load(&d->stop)) {
        KVR_ASSERT(kvr_local_index_answer(d->li, &q, count_bytes, d) == 0);
        atomic_fetch_add(&d->dumps, 1);
    }
    d->seconds = (double)(now_ns() - began) / 1e9;
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void print_row(const char *what, uint64_t *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    printf("%s p50 %.1f us, p99 %.1f us, p99.9 %.1f us, most %.2f ms", what, (double)v[n / 2] / 1e3, (double)v[n / 100 * 99] / 1e3,
           (double)v[n / 1000 * 999] / 1e3, (double)v[n - 1] / 1e6);
}

static void delays(struct engine *e, const char *what)
{
    enum { N = DUMP_EVENTS_PER_S * 10 };
    uint64_t *late = malloc(N * sizeof *late), *took = malloc(N * sizeof *took), due = now_ns() + 1000000;
    for (size_t i = 0; i < N; i++) {
        wait_until(due);
        uint64_t began = now_ns();
        one_batch(e, 1);
        uint64_t now = now_ns();
        late[i] = now - due;
        took[i] = now - began;
        due += 1000000000 / DUMP_EVENTS_PER_S;
    }
    printf("%s:", what);
    print_row(" delay", late, N);
    print_row("; the calls", took, N);
    printf("\n");
    free(late);
    free(took);
}

static void dump_meanwhile(void *pub)
{
    struct kvr_local_index_config c = {.worker = {1, 0}, .block_size = BS};
    struct engine e = {.held = DUMP_BLOCKS};
    struct dumper busy = {0}, d = {0};
    pthread_t thread;
    prctl(PR_SET_TIMERSLACK, 1);
    KVR_ASSERT(kvr_local_index_create(&c, &e.li) == 0);
    one_batch(&e, DUMP_BLOCKS);
    e.pub = pub;
    struct kvr_local_index_stats st;
    kvr_local_index_stats(e.li, &st);
    printf("%zu blocks, %zu bytes of index (%.1f a block); %d events a second, one a batch\n", st.blocks, st.index_bytes,
           (double)st.index_bytes / (double)st.blocks, DUMP_EVENTS_PER_S);
    delays(&e, "nothing meanwhile");
    pthread_create(&thread, NULL, dump_main, &busy);
    delays(&e, "a busy thread    ");
    atomic_store(&busy.stop, true);
    pthread_join(thread, NULL);
    d.li = e.li;
    pthread_create(&thread, NULL, dump_main, &d);
    delays(&e, "dumps meanwhile  ");
    atomic_store(&d.stop, true);
    pthread_join(thread, NULL);
    printf("%llu dumps in %.1f s, %.0f MB each\n", (unsigned long long)d.dumps, d.seconds, (double)d.bytes / (double)d.dumps / 1e6);
    kvr_local_index_destroy(e.li);
    kvr_buf_free(&e.batch);
    kvr_buf_free(&e.out);
}

int main(void)
{
    char endpoint[64];
    int hwm = 100000;
    printf("engine tee: %d events/s, one block of %d tokens each, %d blocks held\n", EVENTS_PER_S, BS, HELD);
    snprintf(endpoint, sizeof endpoint, "ipc:///tmp/kvroute-bench-tee-%d", (int)getpid());
    pid_t subscriber = start_subscriber(endpoint);
    void *zmq = zmq_ctx_new(), *pub = zmq_socket(zmq, ZMQ_PUB);
    zmq_setsockopt(pub, ZMQ_SNDHWM, &hwm, sizeof hwm);
    if (zmq_bind(pub, endpoint)) return 1;
    usleep(500000);
    const uint64_t sizes[] = {1, 16, 128};
    for (size_t i = 0; i < KVR_ARRAY_LEN(sizes); i++) cost(sizes[i], pub);
    dump_meanwhile(pub);
    kill(subscriber, SIGKILL);
    waitpid(subscriber, NULL, 0);
    zmq_close(pub);
    zmq_ctx_term(zmq);
    unlink(endpoint + 6);
    return 0;
}
