/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index on one workload. Prints "key value" lines, the same keys as the programs under bench/peers, so that
 * bench/bench_index.py can put them side by side.
 *
 *   bench_index make NAME FILE [trace.jsonl]   writes a workload (see --help for names; "trace" with a file)
 *   bench_index run FILE [--portable]          measures
 *   bench_index apply FILE                     only applies, for profilers
 *   bench_index lanes FILE                     one lane and two, with and without readers
 *   bench_index churn FILE SECONDS             applies and removes over and over, watching memory
 *   bench_index floor                          the machine: memory bandwidth and latency, a thousand dependent multiplications
 */
#include "workload.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <kvroute/index.h>

enum { BATCH = 512 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pin(int cpu)
{
    cpu_set_t s;
    CPU_ZERO(&s);
    CPU_SET((size_t)cpu % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &s);
    (void)sched_setaffinity(0, sizeof s, &s);
}

static size_t rss(void)
{
    size_t total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%zu %zu", &total, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void say(const char *key, double value)
{
    printf("%s %.6g\n", key, value);
    fflush(stdout);
}

static void die(const char *what)
{
    fprintf(stderr, "bench_index: %s\n", what);
    exit(1);
}

/* ---- events and queries ------------------------------------------------------------------------------------ */

struct load {
    struct workload w;
    struct kvr_event *ev;
    struct kvr_block *blocks;
    size_t ev_n;
    size_t half, three; /* events of the first half, of the first three quarters */
    struct kvr_query *q;
    size_t q_n, q_blocks;
    struct kvr_overlap *out; /* MATCH batches */
    size_t cap;
};

static void prepare(struct load *l, const char *path)
{
    if (workload_read(&l->w, path)) die("cannot read the workload");
    const struct workload *w = &l->w;
    size_t stored = 0, b = 0;
    for (size_t i = 0; i < w->ops_n; i++) stored += w->ops[i].kind == OP_STORED ? w->ops[i].n : 0;
    l->ev = calloc(w->ops_n + 1, sizeof *l->ev);
    l->q = calloc(w->ops_n + 1, sizeof *l->q);
    l->blocks = calloc(stored + 1, sizeof *l->blocks);
    l->cap = w->workers + 8;
    l->out = calloc(l->cap * 16, sizeof *l->out);
    if (!l->ev || !l->q || !l->blocks || !l->out) die("out of memory");
    for (size_t i = 0; i < w->ops_n; i++) {
        const struct op *o = &w->ops[i];
        if (i == w->ops_n / 2) l->half = l->ev_n;
        if (i == w->ops_n * 3 / 4) l->three = l->ev_n;
        if (o->kind == OP_QUERY) {
            if (i < w->ops_n * 3 / 4) continue;
            l->q[l->q_n++] = (struct kvr_query){.locals = w->words + o->locals, .n = o->n};
            l->q_blocks += o->n;
            continue;
        }
        struct kvr_event *e = &l->ev[l->ev_n++];
        *e = (struct kvr_event){.event_id = i, .worker = {o->worker, 0}};
        if (o->kind == OP_REMOVED) {
            e->kind = KVR_EVENT_REMOVED;
            e->removed = w->words + o->names;
            e->removed_n = o->n;
            continue;
        }
        e->kind = KVR_EVENT_STORED;
        e->has_parent = o->has_parent;
        e->parent_hash = o->parent;
        e->blocks = l->blocks + b;
        e->blocks_n = o->n;
        for (uint32_t j = 0; j < o->n; j++) l->blocks[b++] = (struct kvr_block){w->words[o->names + j], w->words[o->locals + j]};
    }
    if (!l->q_n) die("the workload has no queries");
}

static size_t blocks_of(const struct kvr_event *ev, size_t n)
{
    size_t b = 0;
    for (size_t i = 0; i < n; i++) b += ev[i].blocks_n + ev[i].removed_n;
    return b;
}

/* Applies events in batches; the longest batch in *worst, seconds. */
static double apply(struct kvr_index *ix, const struct kvr_event *ev, size_t n, double *worst)
{
    double start = now();
    for (size_t i = 0; i < n; i += BATCH) {
        double t = now();
        if (kvr_index_apply_batch(ix, ev + i, n - i < BATCH ? n - i : BATCH, NULL)) die("an event failed");
        t = now() - t;
        if (worst && t > *worst) *worst = t;
    }
    return now() - start;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void say_percentiles(const char *what, uint32_t *ns, size_t n)
{
    static const struct {
        const char *name;
        double p;
    } ps[] = {{"p50", 0.5}, {"p99", 0.99}, {"p999", 0.999}};
    char key[64];
    if (!n) return;
    qsort(ns, n, sizeof *ns, by_value);
    for (size_t i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "%s_%s_ns", what, ps[i].name);
        say(key, ns[(size_t)((double)(n - 1) * ps[i].p)]);
    }
    snprintf(key, sizeof key, "%s_max_ns", what);
    say(key, ns[n - 1]);
}

/* One timed query after another until *stop or n; latencies to ns. The hashes are in cache, as a router that has
 * just computed them has them. */
static size_t timed_queries(struct load *l, struct kvr_index_reader *rd, uint32_t *ns, size_t n, _Atomic bool *stop)
{
    static _Thread_local uint64_t hot[8192];
    size_t i = 0;
    for (; i < n && !(stop && atomic_load_explicit(stop, memory_order_relaxed)); i++) {
        const struct kvr_query *q = &l->q[i % l->q_n];
        size_t k = q->n < 8192 ? q->n : 8192;
        memcpy(hot, q->locals, k * 8);
        uint64_t t = now_ns();
        if (kvr_index_match(rd, hot, k, l->out, l->cap) < 0) die("match failed");
        ns[i] = (uint32_t)(now_ns() - t);
    }
    return i;
}

static void check_answers(struct load *l, struct kvr_index_reader *rd)
{
    size_t wrong = 0;
    uint32_t *depth = calloc(l->w.workers, sizeof *depth);
    for (size_t i = 0; i < l->w.checks_n; i++) {
        const struct check *k = &l->w.checks[i];
        long n = kvr_index_match(rd, l->w.words + k->locals, k->n, l->out, l->cap);
        for (long j = 0; j < n; j++) depth[l->out[j].worker.worker_id] = l->out[j].depth;
        wrong += n != (long)k->holders_n;
        for (uint32_t h = 0; h < k->holders_n; h++)
            wrong += depth[l->w.holders[k->holders + h] >> 32] != (uint32_t)l->w.holders[k->holders + h];
        for (long j = 0; j < n; j++) depth[l->out[j].worker.worker_id] = 0;
    }
    free(depth);
    say("checked_queries", (double)l->w.checks_n);
    say("wrong_answers", (double)wrong);
}

/* ---- run ------------------------------------------------------------------------------------------------------ */

struct writer {
    struct kvr_index *ix;
    const struct kvr_event *ev;
    size_t n;
    int cpu;
    double seconds;
    _Atomic bool *done;
};

static void *writer_main(void *arg)
{
    struct writer *w = arg;
    pin(w->cpu);
    w->seconds = apply(w->ix, w->ev, w->n, NULL);
    if (w->done) atomic_store(w->done, true);
    return NULL;
}

static void mixed(struct load *l, struct kvr_index *ix, struct kvr_index_reader *rd, uint32_t *ns, size_t ns_n)
{
    _Atomic bool done = false;
    struct writer w = {.ix = ix, .ev = l->ev + l->three, .n = l->ev_n - l->three, .cpu = 1, .done = &done};
    pthread_t th;
    if (pthread_create(&th, NULL, writer_main, &w)) die("no thread");
    size_t n = timed_queries(l, rd, ns, ns_n, &done);
    pthread_join(th, NULL);
    say("mixed_apply_ns_per_block", w.seconds * 1e9 / (double)blocks_of(w.ev, w.n));
    say("mixed_queries_per_s", (double)n / w.seconds);
    say_percentiles("mixed", ns, n);
}

static void queries(struct load *l, struct kvr_index_reader *rd, uint32_t *ns, size_t ns_n)
{
    size_t rounds = ns_n < l->q_n * 4 ? ns_n : l->q_n * 4, holders = 0;
    for (size_t i = 0; i < l->q_n && i < 20000; i++) (void)kvr_index_match(rd, l->q[i].locals, l->q[i].n, l->out, l->cap);
    double t = now();
    for (size_t i = 0; i < rounds; i++) {
        const struct kvr_query *q = &l->q[i % l->q_n];
        holders += (size_t)kvr_index_match(rd, q->locals, q->n, l->out, l->cap);
    }
    t = now() - t;
    say("query_ns", t * 1e9 / (double)rounds);
    say("query_mean_blocks", (double)l->q_blocks / (double)l->q_n);
    say("query_mean_holders", (double)holders / (double)rounds);
    for (size_t i = 0; i < l->q_n; i++) {
        l->q[i].out = l->out + (i % 16) * l->cap;
        l->q[i].cap = l->cap;
    }
    t = now();
    for (size_t i = 0; i + 16 <= rounds; i += 16) kvr_index_match_batch(rd, &l->q[i % (l->q_n / 16 * 16 > 0 ? l->q_n / 16 * 16 : 16)], 16);
    t = now() - t;
    say("query_batch16_ns", t * 1e9 / (double)(rounds / 16 * 16));
    say_percentiles("query", ns, timed_queries(l, rd, ns, rounds, NULL));
}

static void empty(struct load *l, struct kvr_index *ix, size_t before, size_t full)
{
    double t = now();
    for (uint32_t v = 0; v < l->w.workers; v++) kvr_index_remove_worker(ix, v);
    say("remove_all_seconds", now() - t);
    size_t after = rss();
    say("remove_all_rss_left_percent", after > before ? 100 * (double)(after - before) / (double)(full - before) : 0);
    struct kvr_index_stats st;
    kvr_index_stats(ix, &st);
    say("remove_all_bytes_left", (double)st.bytes);
}

static struct kvr_index *index_new(uint32_t lanes, bool portable, uint32_t workers)
{
    struct kvr_index *ix;
    struct kvr_index_config c = {.lanes = lanes, .portable = portable, .ranks_max = workers + 16};
    if (kvr_index_create(&c, &ix)) die("no index");
    return ix;
}

static int run(const char *path, bool portable)
{
    struct load l = {0};
    prepare(&l, path);
    size_t ns_n = 2000000;
    uint32_t *ns = malloc(ns_n * sizeof *ns);
    if (!ns) die("out of memory");
    memset(ns, 1, ns_n * sizeof *ns);
    pin(0);
    size_t before = rss();
    struct kvr_index *ix = index_new(1, portable, l.w.workers);
    struct kvr_index_reader *rd;
    if (kvr_index_reader_create(ix, &rd)) die("no reader");
    double worst_fill = 0, worst_steady = 0;
    double fill = apply(ix, l.ev, l.half, &worst_fill);
    double steady = apply(ix, l.ev + l.half, l.three - l.half, &worst_steady);
    size_t steady_blocks = blocks_of(l.ev + l.half, l.three - l.half);
    say("pairs", (double)l.w.pairs);
    say("fill_ns_per_block", fill * 1e9 / (double)blocks_of(l.ev, l.half));
    say("apply_ns_per_block", steady * 1e9 / (double)steady_blocks);
    say("apply_blocks_per_s", (double)steady_blocks / steady);
    say("apply_events_per_s", (double)(l.three - l.half) / steady);
    say("worst_batch_fill_ms", worst_fill * 1e3);
    say("worst_batch_ms", worst_steady * 1e3);
    mixed(&l, ix, rd, ns, ns_n);
    check_answers(&l, rd);
    queries(&l, rd, ns, ns_n);
    struct kvr_index_stats st;
    kvr_index_stats(ix, &st);
    size_t full = rss();
    say("bytes_per_pair", (double)st.bytes / (double)st.blocks);
    say("rss_bytes_per_pair", full > before ? (double)(full - before) / (double)st.blocks : 0);
    say("holders_per_block", (double)st.blocks / (double)st.nodes);
    say("blocks_per_run", (double)st.nodes / (double)st.runs);
    if (st.blocks != l.w.pairs) die("the index holds other pairs than the workload");
    empty(&l, ix, before, full);
    kvr_index_destroy(ix);
    return 0;
}

/* Only applies, for profilers. */
static int apply_only(const char *path)
{
    struct load l = {0};
    prepare(&l, path);
    struct kvr_index *ix = index_new(1, false, l.w.workers);
    fprintf(stderr, "applying\n");
    pin(0);
    double t = apply(ix, l.ev, l.half, NULL);
    say("fill_ns_per_block", t * 1e9 / (double)blocks_of(l.ev, l.half));
    struct rusage a, b;
    getrusage(RUSAGE_SELF, &a);
    t = apply(ix, l.ev + l.half, l.ev_n - l.half, NULL);
    getrusage(RUSAGE_SELF, &b);
    say("apply_ns_per_block", t * 1e9 / (double)blocks_of(l.ev + l.half, l.ev_n - l.half));
    say("apply_page_faults", (double)(b.ru_minflt - a.ru_minflt));
    return 0;
}

/* ---- lanes ------------------------------------------------------------------------------------------------------ */

struct query_thread {
    struct load *l;
    struct kvr_index *ix;
    _Atomic bool *stop;
    int cpu;
    size_t n;
};

static void *query_main(void *arg)
{
    struct query_thread *t = arg;
    struct kvr_index_reader *rd;
    struct kvr_overlap *out = calloc(t->l->cap, sizeof *out);
    pin(t->cpu);
    if (!out || kvr_index_reader_create(t->ix, &rd)) die("no reader");
    for (; !atomic_load_explicit(t->stop, memory_order_relaxed); t->n++) {
        const struct kvr_query *q = &t->l->q[t->n % t->l->q_n];
        (void)kvr_index_match(rd, q->locals, q->n, out, t->l->cap);
    }
    kvr_index_reader_destroy(rd);
    free(out);
    return NULL;
}

/* Applies the last quarter by one thread per lane while `readers` threads query; blocks per second. */
static double lanes_round(struct load *l, uint32_t lanes, int readers, double *queries_per_s)
{
    struct kvr_index *ix = index_new(lanes, false, l->w.workers);
    apply(ix, l->ev, l->three, NULL);
    struct writer w[2];
    struct query_thread q[2];
    pthread_t wt[2], qt[2];
    _Atomic bool stop = false;
    size_t blocks = 0;
    for (uint32_t i = 0; i < lanes; i++) {
        struct kvr_event *mine = calloc(l->ev_n - l->three, sizeof *mine);
        size_t n = 0;
        for (size_t e = l->three; e < l->ev_n; e++)
            if (lanes == 1 || kvr_index_lane(ix, l->ev[e].worker) == i) mine[n++] = l->ev[e];
        w[i] = (struct writer){.ix = ix, .ev = mine, .n = n, .cpu = (int)i};
        blocks += blocks_of(mine, n);
    }
    for (int i = 0; i < readers; i++) {
        q[i] = (struct query_thread){l, ix, &stop, 1 - i, 0};
        pthread_create(&qt[i], NULL, query_main, &q[i]);
    }
    double t = now(), done = 0;
    for (uint32_t i = 0; i < lanes; i++) pthread_create(&wt[i], NULL, writer_main, &w[i]);
    for (uint32_t i = 0; i < lanes; i++) pthread_join(wt[i], NULL);
    t = now() - t;
    atomic_store(&stop, true);
    for (int i = 0; i < readers; i++) {
        pthread_join(qt[i], NULL);
        done += (double)q[i].n;
    }
    for (uint32_t i = 0; i < lanes; i++) free((void *)(uintptr_t)w[i].ev);
    kvr_index_destroy(ix);
    *queries_per_s = done / t;
    return (double)blocks / t;
}

static int lanes(const char *path)
{
    struct load l = {0};
    prepare(&l, path);
    double q;
    double one = lanes_round(&l, 1, 1, &q);
    say("lanes1_readers1_blocks_per_s", one);
    say("lanes1_readers1_queries_per_s", q);
    double two = lanes_round(&l, 2, 0, &q);
    say("lanes2_readers0_blocks_per_s", two);
    say("lanes2_over_lanes1", two / one);
    double both = lanes_round(&l, 2, 2, &q);
    say("lanes2_readers2_blocks_per_s", both);
    say("lanes2_readers2_queries_per_s", q);
    return 0;
}

/* ---- churn ------------------------------------------------------------------------------------------------------ */

static int churn(const char *path, double seconds)
{
    struct load l = {0};
    prepare(&l, path);
    struct kvr_index *ix = index_new(1, false, l.w.workers);
    double start = now();
    size_t first = 0, most = 0, blocks = 0;
    for (unsigned round = 0; now() - start < seconds; round++) {
        apply(ix, l.ev, l.ev_n, NULL);
        size_t r = rss();
        blocks += blocks_of(l.ev, l.ev_n);
        if (round == 0) first = r;
        if (r > most) most = r;
        for (uint32_t v = 0; v < l.w.workers; v++) kvr_index_remove_worker(ix, v);
    }
    say("churn_seconds", now() - start);
    say("churn_blocks", (double)blocks);
    say("churn_rss_first_mb", (double)first / 1e6);
    say("churn_rss_most_mb", (double)most / 1e6);
    return 0;
}

/* ---- floor ------------------------------------------------------------------------------------------------------- */

static int machine_floor(void)
{
    size_t n = (size_t)256 << 20, words = n / 8;
    uint64_t *a = malloc(n), sum = 0;
    if (!a) die("out of memory");
    for (size_t i = 0; i < words; i++) a[i] = i;
    pin(0);
    double t = now();
    for (size_t i = 0; i < words; i += 8) sum += a[i] + a[i + 1] + a[i + 2] + a[i + 3] + a[i + 4] + a[i + 5] + a[i + 6] + a[i + 7];
    say("floor_read_gb_per_s", (double)n / (now() - t) / 1e9);
    size_t lines = words / 8, at = 0;
    uint64_t x = 1;
    for (size_t i = 0; i < lines; i++) a[i * 8] = i;
    for (size_t i = lines - 1; i > 0; i--) { /* one cycle through all lines (Sattolo) */
        x = x * 6364136223846793005u + 1442695040888963407u;
        size_t j = (size_t)(((x >> 32) * i) >> 32);
        uint64_t v = a[i * 8];
        a[i * 8] = a[j * 8];
        a[j * 8] = v;
    }
    t = now();
    for (int i = 0; i < 2000000; i++) at = a[at * 8];
    say("floor_miss_ns", (now() - t) * 1e9 / 2000000);
    size_t p[10];
    for (size_t i = 0; i < 10; i++) p[i] = i * (lines / 10);
    t = now();
    for (int i = 0; i < 400000; i++)
        for (size_t j = 0; j < 10; j++) p[j] = a[p[j] * 8];
    say("floor_overlapped_miss_ns", (now() - t) * 1e9 / 4000000);
    for (size_t j = 0; j < 10; j++) at += p[j];
    t = now();
    for (int i = 0; i < 20000000; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    say("floor_chain_us", (now() - t) * 1e6 / 20000);
    fprintf(stderr, "%llu\n", (unsigned long long)(sum + at + x));
    free(a);
    return 0;
}

static int make(const char *name, const char *path, const char *trace)
{
    struct workload_config c;
    struct workload w;
    bool from_trace = strcmp(name, "trace") == 0;
    if (!workload_preset(from_trace ? "w1" : name, &c)) die("no such workload (see --help)");
    if (from_trace && !trace) die("a trace workload needs a trace file");
    if (from_trace) c.trace = trace;
    workload_make(&c, &w);
    if (workload_write(&w, path)) die("cannot write the workload");
    fprintf(stderr, "%s: %zu operations, %u workers, %llu pairs\n", path, w.ops_n, w.workers, (unsigned long long)w.pairs);
    workload_free(&w);
    return 0;
}

static int usage(int status)
{
    fprintf(status ? stderr : stdout,
            "usage: bench_index make NAME FILE [TRACE]\n       bench_index run FILE [--portable]\n       bench_index apply FILE\n       "
            "bench_index lanes FILE\n"
            "       bench_index churn FILE SECONDS\n       bench_index floor\nworkloads:\n%s  trace  conversations of a Mooncake trace, "
            "128 workers\n",
            workload_names());
    return status;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "--help") == 0) return usage(0);
    if (strcmp(what, "make") == 0 && argc >= 4) return make(argv[2], argv[3], argc > 4 ? argv[4] : NULL);
    if (strcmp(what, "run") == 0 && argc >= 3) return run(argv[2], argc > 3 && strcmp(argv[3], "--portable") == 0);
    if (strcmp(what, "apply") == 0 && argc == 3) return apply_only(argv[2]);
    if (strcmp(what, "lanes") == 0 && argc == 3) return lanes(argv[2]);
    if (strcmp(what, "churn") == 0 && argc == 4) return churn(argv[2], strtod(argv[3], NULL));
    if (strcmp(what, "floor") == 0) return machine_floor();
    return usage(2);
}
