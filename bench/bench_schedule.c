/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing among 1,000 workers with everything on, and among few and many; a queue of 100,000; the book's memory; replicas' traffic.
 *
 * usage: bench_schedule [WORKERS [plain|all|linear|softmax]]: with WORKERS only one kind of choice among so many
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <kvroute/kvroute.h>

#include "base/base.h"
#include "net/replication/sync.h"
#include "wire/sync_event.h"

enum { WORKERS = 1000, BLOCK = 16, BLOCKS = 256, RUNS = 20000, QUEUED = 100000, PORT = 17431 };

static uint64_t now(void)
{
    return kvr_now_ns(kvr_clock_monotonic());
}

/* ---- an allocator that counts its calls -------------------------------------------------------------- */

static uint64_t allocations;

static void *counted(void *, void *ptr, size_t, size_t new_size)
{
    if (new_size == 0) {
        free(ptr);
        return NULL;
    }
    allocations++;
    return realloc(ptr, new_size);
}

/* ---- a fleet ----------------------------------------------------------------------------------------- */

struct fleet {
    struct kvr_index *index;
    struct kvr_router *router;
    struct kvr_router_ctx *ctx;
    uint32_t tokens[BLOCKS * BLOCK];
};

static void hold(struct fleet *f, uint64_t worker, size_t blocks)
{
    static uint64_t l[BLOCKS], q[BLOCKS];
    static struct kvr_block b[BLOCKS];
    kvr_hash_locals(f->tokens, BLOCKS * BLOCK, BLOCK, false, KVR_HASH_SEED, NULL, 0, l);
    kvr_hash_sequence(l, BLOCKS, q);
    for (size_t i = 0; i < blocks; i++) b[i] = (struct kvr_block){q[i], l[i]};
    struct kvr_event ev = {.worker = {worker, 0}, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = blocks};
    KVR_ASSERT(kvr_index_apply(f->index, &ev) == 0);
}

static void fleet_make(struct fleet *f, const struct kvr_router_config *base, uint64_t workers)
{
    struct kvr_router_config c = *base;
    for (size_t i = 0; i < BLOCKS * BLOCK; i++) f->tokens[i] = (uint32_t)kvr_mix64(i);
    KVR_ASSERT(kvr_index_create(NULL, &f->index) == 0);
    c.index = f->index;
    c.block_size = BLOCK;
    c.seed = 1;
    KVR_ASSERT(kvr_router_create(&c, &f->router, NULL) == 0 && kvr_router_ctx_create(f->router, &f->ctx) == 0);
    for (uint64_t w = 1; w <= workers; w++) {
        static const char *const zones[] = {"zone=a", "zone=b", "zone=c", "zone=d"};
        const char *taints[] = {"gpu", zones[w % 4]};
        KVR_ASSERT(kvr_router_set_worker(f->router, w, 0, 1) == 0 && kvr_router_set_taints(f->router, w, taints, 2) == 0);
        kvr_router_set_limits(f->router, w, 8192, 16384);
        if (w % 8 == 0) hold(f, w, BLOCKS * (w % 64) / 64 + 1); /* an eighth of the fleet shares the prefix */
        char id[24];                                            /* and everybody is at work */
        struct kvr_router_request rq = {.id = id, .isl = 500 + w, .override = NULL};
        rq.id_len = (size_t)snprintf(id, sizeof id, "bg%llu", (unsigned long long)w);
        KVR_ASSERT(kvr_router_add_request(f->router, f->ctx, &rq, (struct kvr_worker){w, 0}, 0) == 0);
    }
}

static void fleet_free(struct fleet *f)
{
    kvr_router_ctx_destroy(f->ctx);
    kvr_router_destroy(f->router);
    kvr_index_destroy(f->index);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void bench_choice(const char *name, const struct kvr_router_config *c, bool everything, uint64_t workers)
{
    static struct fleet f;
    static double us[RUNS];
    struct kvr_router_result res;
    const char *required[] = {"gpu"};
    struct kvr_preferred_taint preferred[] = {{"zone=a", 0.3}, {"zone=b", -0.2}};
    struct kvr_shared_range shared[] = {{0, 200}};
    double schedule = 0;
    fleet_make(&f, c, workers);
    uint64_t before = 0;
    for (int i = -1000; i < RUNS; i++) { /* the first ones warm it up */
        struct kvr_router_request rq = {.id = "x", .id_len = 1, .book = true, .tokens = f.tokens, .tokens_n = BLOCKS * BLOCK};
        if (everything) {
            rq.required_taints = required;
            rq.required_n = 1;
            rq.preferred_taints = preferred;
            rq.preferred_n = 2;
            rq.shared = shared;
            rq.shared_n = 1;
        }
        if (i == 0) before = allocations;
        uint64_t t = now();
        KVR_ASSERT(kvr_router_find_best_match(f.router, f.ctx, &rq, &res) == 0);
        if (i >= 0) us[i] = (double)(now() - t) / 1e3, schedule += (double)res.times.scheduling / 1e3 / RUNS;
        kvr_router_free(f.router, "x", 1);
    }
    qsort(us, RUNS, sizeof *us, ascending);
    printf("choose and book, %llu workers, %d blocks, %-34s p50 %.1f us, p99 %.1f us (in the lock %.1f); %.2f allocations each (the "
           "booking's)\n",
           (unsigned long long)workers, BLOCKS, name, us[RUNS / 2], us[RUNS * 99 / 100], schedule, (double)(allocations - before) / RUNS);
    fleet_free(&f);
}

/* ---- the queue --------------------------------------------------------------------------------------- */

struct handed {
    struct kvr_ticket *list[1024];
    size_t n;
    uint64_t done;
};

static void on_done(struct kvr_ticket *t, int rc, const struct kvr_router_result *, const struct kvr_router_ctx *)
{
    struct handed *h = t->user;
    KVR_ASSERT(rc == 0 && h->n < KVR_ARRAY_LEN(h->list));
    h->list[h->n++] = t;
    h->done++;
}

static void bench_queue(enum kvr_queue_policy order, const char *name, uint32_t workers)
{
    struct kvr_policy policy;
    struct kvr_router_config c;
    struct kvr_router *r;
    struct kvr_router_ctx *ctx;
    struct kvr_router_result res;
    static struct kvr_ticket tickets[QUEUED];
    static struct kvr_router_request rq[QUEUED];
    static char ids[QUEUED][16];
    static uint64_t hashes[16];
    static struct handed h;
    h = (struct handed){.n = 0};
    kvr_policy_init(&policy);
    policy.classes[0].policy = order;
    policy.classes[0].busy_tokens = 0;
    kvr_router_config_init(&c);
    c.cost.overlap_credit = 0;
    c.policy = &policy;
    KVR_ASSERT(kvr_router_create(&c, &r, NULL) == 0 && kvr_router_ctx_create(r, &ctx) == 0);
    for (uint32_t w = 1; w <= workers; w++) {
        kvr_router_set_worker(r, w, 0, 1);
        char id[16];
        struct kvr_router_request busy = {.id = id, .isl = 100};
        busy.id_len = (size_t)snprintf(id, sizeof id, "b%u", w);
        kvr_router_add_request(r, ctx, &busy, (struct kvr_worker){w, 0}, 0);
    }
    for (int i = 0; i < 16; i++) hashes[i] = kvr_mix64((uint64_t)i + 1);
    for (int i = 0; i < QUEUED; i++) {
        size_t n = (size_t)snprintf(ids[i], sizeof ids[i], "q%d", i);
        rq[i] = (struct kvr_router_request){.id = ids[i],
                                            .id_len = n,
                                            .book = true,
                                            .locals = hashes,
                                            .seqs = hashes,
                                            .locals_n = 16,
                                            .seqs_n = 16,
                                            .isl = 200 + kvr_mix64((uint64_t)i) % 1000};
    }
    uint64_t t = now();
    for (int i = 0; i < QUEUED; i++) KVR_ASSERT(kvr_router_submit(r, ctx, &rq[i], &tickets[i], on_done, &h, &res, NULL) == KVR_PARKED);
    double in = (double)(now() - t) / 1e3 / QUEUED;
    t = now();
    kvr_router_free(r, "b1", 2); /* hands out the first; each that ends hands out the next */
    while (h.n) {
        const struct kvr_router_request *first = h.list[--h.n]->request;
        kvr_router_free(r, first->id, first->id_len);
    }
    KVR_ASSERT(h.done == QUEUED);
    double out = (double)(now() - t) / 1e3 / QUEUED;
    printf("queue of %d, %s, %u busy worker(s): in %.2f us, out (with choosing and booking) %.2f us a request\n", QUEUED, name, workers, in,
           out);
    kvr_router_ctx_destroy(ctx);
    kvr_router_destroy(r);
}

/* ---- the book's memory ------------------------------------------------------------------------------- */

static void bench_memory(void)
{
    enum { REQUESTS = 10000, LENGTH = 500 };
    struct kvr_load *load;
    static uint64_t seqs[LENGTH];
    char id[16];
    KVR_ASSERT(kvr_load_create(NULL, &load) == 0 && kvr_load_set_worker(load, 1, 0, 8) == 0);
    for (uint64_t i = 0; i < REQUESTS; i++) {
        for (uint64_t k = 0; k < LENGTH; k++) seqs[k] = kvr_mix64(k < LENGTH / 2 ? k + (i % 50) * 1000003 : k + i * 7000003);
        struct kvr_load_request rq = {.id = id, .worker = {1, (uint32_t)(i % 8)}, .seqs = seqs, .seqs_n = LENGTH};
        rq.id_len = (size_t)snprintf(id, sizeof id, "m%llu", (unsigned long long)i);
        KVR_ASSERT(kvr_load_add(load, &rq) == 0);
    }
    double distinct = 50.0 * LENGTH / 2 + REQUESTS * (LENGTH / 2.0);
    printf(
        "the book of %d requests of %d blocks, half of each shared by 200: %.1f bytes a distinct active block, %.1f a block of a request\n",
        REQUESTS, LENGTH, (double)kvr_load_bytes(load) / distinct, (double)kvr_load_bytes(load) / REQUESTS / LENGTH);
    kvr_load_destroy(load);
}

/* ---- replicas ---------------------------------------------------------------------------------------- */

struct side {
    struct kvr_sync *sync;
    struct kvr_router *router;
    struct kvr_buf buf;
    _Atomic uint64_t applied;
    uint64_t *hashes;
};

static void on_change(void *ctx, const struct kvr_load_event *ev)
{
    struct side *s = ctx;
    s->buf.len = 0;
    kvr_sync_event_write(&s->buf, 0, "model", "default", BLOCK, ev);
    kvr_sync_publish(s->sync, s->buf.data, s->buf.len);
}

static void on_event(void *ctx, uint32_t peer, uint64_t, const char *data, size_t len)
{
    struct side *s = ctx;
    struct kvr_sync_event e;
    if (kvr_sync_event_read(data, len, &e) || e.kind == KVR_SYNC_MARK) return;
    e.load.request.owner = peer;
    if (e.kind == KVR_SYNC_ADD) {
        kvr_sync_event_hashes(&e, s->hashes);
        e.load.request.seqs = s->hashes;
    }
    kvr_router_apply_remote(s->router, &e.load);
    atomic_fetch_add(&s->applied, 1);
}

static void on_reset(void *, uint32_t) {}

static void no_snapshot(void *, struct kvr_buf *) {}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Both sides in one process: what is measured is the cost of both, less that of the same bookings alone. */
static double book_for(struct side *a, double seconds, uint64_t rate)
{
    struct kvr_router_ctx *ctx;
    static uint64_t seqs[BLOCKS];
    uint64_t start = now(), sent = 0, total = (uint64_t)(seconds * (double)rate);
    char id[32];
    double cpu = cpu_seconds();
    KVR_ASSERT(kvr_router_ctx_create(a->router, &ctx) == 0);
    while (sent < total) {
        uint64_t due = (uint64_t)((double)(now() - start) / 1e9 * (double)rate);
        for (; sent < due && sent < total; sent++) {
            for (uint64_t k = 0; k < BLOCKS; k++) seqs[k] = kvr_mix64(k < 128 ? k + sent % 20 * 1009 : k + sent * 7919);
            struct kvr_router_request rq = {.id = id, .seqs = seqs, .seqs_n = BLOCKS, .isl = BLOCKS * BLOCK};
            rq.id_len = (size_t)snprintf(id, sizeof id, "s%llu", (unsigned long long)sent);
            kvr_router_add_request(a->router, ctx, &rq, (struct kvr_worker){sent % 8, 0}, 0);
            if (sent < 200) continue;
            size_t n = (size_t)snprintf(id, sizeof id, "s%llu", (unsigned long long)(sent - 100));
            kvr_router_mark_prefill_completed(a->router, id, n);
            n = (size_t)snprintf(id, sizeof id, "s%llu", (unsigned long long)(sent - 200));
            kvr_router_free(a->router, id, n);
        }
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    kvr_router_ctx_destroy(ctx);
    return cpu_seconds() - cpu;
}

static void side_make(struct side *s, bool publishes)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    c.cost.overlap_credit = 0;
    c.block_size = BLOCK;
    if (publishes) {
        c.hook = on_change;
        c.hook_ctx = s;
    }
    s->hashes = malloc(BLOCKS * 8);
    KVR_ASSERT(s->hashes && kvr_router_create(&c, &s->router, NULL) == 0);
    for (uint64_t w = 0; w < 8; w++) kvr_router_set_worker(s->router, w, 0, 1);
}

static void bench_replicas(void)
{
    static struct side alone, a, b;
    struct kvr_sync_stats st;
    char endpoint[64];
    double seconds = 4;
    uint64_t rate = 10000;
    side_make(&alone, false);
    side_make(&a, true);
    side_make(&b, false);
    double base = book_for(&alone, seconds, rate);
    struct kvr_sync_handler ha = {on_event, on_reset, no_snapshot, &a}, hb = {on_event, on_reset, no_snapshot, &b};
    KVR_ASSERT(kvr_sync_create("127.0.0.1", PORT, NULL, &ha, &a.sync) == 0 &&
               kvr_sync_create("127.0.0.1", PORT + 1, NULL, &hb, &b.sync) == 0);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", PORT);
    KVR_ASSERT(kvr_sync_add_peer(b.sync, endpoint) == 0);
    do kvr_sync_stats(b.sync, &st);
    while (!st.live_peers);
    double both = book_for(&a, seconds, rate);
    do kvr_sync_stats(b.sync, &st);
    while (st.events_received + 1 < (uint64_t)(seconds * (double)rate) * 3 - 400);
    printf(
        "replicas at %llu requests/s of %d blocks (booked, prefill, freed): %.1f %% of a core for both sides; %.1f %% the bookings alone; "
        "%llu events in %llu messages\n",
        (unsigned long long)rate, BLOCKS, 100 * (both - base) / seconds, 100 * base / seconds, (unsigned long long)st.events_received,
        (unsigned long long)st.messages_received);
    kvr_sync_destroy(a.sync);
    kvr_sync_destroy(b.sync);
}

static void bench_one(const struct kvr_router_config *base, uint64_t workers, const char *kind)
{
    struct kvr_router_config c = *base;
    bool all = strcmp(kind, "plain") != 0 && strcmp(kind, "linear") != 0;
    if (!strcmp(kind, "linear") || !strcmp(kind, "softmax")) c.cost.kind = KVR_COST_LINEAR;
    if (!strcmp(kind, "softmax")) c.cost.temperature = 0.5;
    if (all) {
        c.cost.credit_decay = 1;
        c.cost.request_weight = 1;
        c.cost.shared_multiplier = 0.5;
        c.busy = (struct kvr_busy_thresholds){0.95, 1e9, 100};
    }
    bench_choice(kind, &c, all, workers);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct kvr_router_config c, plain;
    struct kvr_alloc alloc = {counted, NULL};
    kvr_router_config_init(&c);
    c.alloc = &alloc;
    plain = c;
    plain.fit_ttft = true;
    if (argc > 1) {
        bench_one(&plain, strtoull(argv[1], NULL, 10), argc > 2 ? argv[2] : "plain");
        return 0;
    }
    c.cost.kind = KVR_COST_LINEAR;
    bench_choice("linear", &c, false, WORKERS);
    c.cost.credit_decay = 1;
    c.cost.request_weight = 1;
    c.cost.shared_multiplier = 0.5;
    c.busy = (struct kvr_busy_thresholds){0.95, 1e9, 100};
    bench_choice("linear, everything on", &c, true, WORKERS);
    c.cost.temperature = 0.5;
    bench_choice("the same, softmax", &c, true, WORKERS);
    c.cost.temperature = 0;
    c.cost.kind = KVR_COST_DELAY;
    c.fit_ttft = true;
    for (uint64_t n = 10; n <= 10 * (uint64_t)WORKERS; n *= 10) {
        bench_choice("delay, everything on", &c, true, n);
        bench_choice("delay", &plain, false, n);
    }
    bench_queue(KVR_QUEUE_FCFS, "fcfs", 1);
    bench_queue(KVR_QUEUE_WSPT, "wspt", 1);
    bench_queue(KVR_QUEUE_WSPT, "wspt", 64);
    bench_memory();
    bench_replicas();
    return 0;
}
