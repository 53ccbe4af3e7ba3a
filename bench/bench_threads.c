/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions by several threads at once, as the event loops of a router make them: choose and book, the first token, the end. 64 workers;
 * prompts of which half is shared by many requests. Prints microseconds of a thread for each request.
 *
 * usage: bench_threads [TOKENS [SECONDS]]
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <kvroute/kvroute.h>

#include "base/base.h"

enum { WORKERS = 64, BS = 16, THREADS_MAX = 16, PREFIXES = 200 };

struct row {
    const char *name;
    enum kvr_router_mode mode;
    bool index, record;
    uint32_t lanes;
};

static const struct row rows[] = {
    {"kv, events", KVR_MODE_KV, true, false, 1},
    {"kv, predictions", KVR_MODE_KV, true, true, 1},
    {"kv, predictions, 4 lanes", KVR_MODE_KV, true, true, 4},
    {"round robin, events", KVR_MODE_ROUND_ROBIN, true, false, 1},
    {"round robin, predictions", KVR_MODE_ROUND_ROBIN, true, true, 1},
    {"round robin, no index", KVR_MODE_ROUND_ROBIN, false, false, 1},
};

static size_t tokens_n = 1024;
static double seconds = 1;

struct crew {
    struct kvr_router *router;
    _Atomic bool stop;
    _Atomic uint64_t done, number;
    _Atomic uint64_t cpu_ns;
};

static uint64_t now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void make_prompt(uint32_t *t, uint64_t number)
{
    for (size_t i = 0; i < tokens_n; i++)
        t[i] = (uint32_t)kvr_mix64(i < tokens_n / 2 ? i + number % PREFIXES * 7919 : i + number * 1000003);
}

static void *work(void *arg)
{
    struct crew *c = arg;
    struct kvr_router_ctx *ctx;
    struct kvr_router_result res;
    uint32_t *t = malloc(tokens_n * sizeof *t);
    KVR_ASSERT(t && kvr_router_ctx_create(c->router, &ctx) == 0);
    uint64_t spent = 0, done = 0;
    while (!atomic_load(&c->stop)) {
        char id[32];
        uint64_t number = atomic_fetch_add(&c->number, 1);
        make_prompt(t, number);
        int n = snprintf(id, sizeof id, "r%llu", (unsigned long long)number);
        uint64_t t0 = now(CLOCK_MONOTONIC);
        struct kvr_router_request rq = {.id = id, .id_len = (size_t)n, .book = true, .tokens = t, .tokens_n = tokens_n};
        KVR_ASSERT(kvr_router_find_best_match(c->router, ctx, &rq, &res) == 0);
        kvr_router_mark_prefill_completed(c->router, id, (size_t)n);
        kvr_router_free(c->router, id, (size_t)n);
        spent += now(CLOCK_MONOTONIC) - t0;
        done++;
    }
    atomic_fetch_add(&c->done, done);
    atomic_fetch_add(&c->cpu_ns, spent);
    kvr_router_ctx_destroy(ctx);
    free(t);
    return NULL;
}

static double run(const struct row *row, size_t threads)
{
    static struct crew crew;
    pthread_t ids[THREADS_MAX];
    struct kvr_index *ix = NULL;
    struct kvr_index_config ic = {.lanes = row->lanes, .predicted_max = 1 << 20};
    struct kvr_router_config c;
    crew = (struct crew){0};
    kvr_router_config_init(&c);
    if (row->index) KVR_ASSERT(kvr_index_create(&ic, &ix) == 0);
    c.index = ix;
    c.mode = row->mode;
    c.block_size = BS;
    c.record_decisions = row->record;
    KVR_ASSERT(kvr_router_create(&c, &crew.router, NULL) == 0);
    for (uint64_t w = 1; w <= WORKERS; w++) KVR_ASSERT(kvr_router_set_worker(crew.router, w, 0, 1) == 0);
    for (size_t i = 0; i < threads; i++) KVR_ASSERT(pthread_create(&ids[i], NULL, work, &crew) == 0);
    nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)}, NULL);
    atomic_store(&crew.stop, true);
    for (size_t i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    kvr_router_destroy(crew.router);
    kvr_index_destroy(ix);
    return (double)crew.cpu_ns / (double)crew.done / 1e3;
}

int main(int argc, char **argv)
{
    static const size_t threads[] = {1, 2, 4, 8};
    if (argc > 1) tokens_n = strtoul(argv[1], NULL, 10);
    if (argc > 2) seconds = strtod(argv[2], NULL);
    printf("%zu tokens; us a request, threads:", tokens_n);
    for (size_t k = 0; k < KVR_ARRAY_LEN(threads); k++) printf(" %7zu", threads[k]);
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        printf("\n%-36s", rows[i].name);
        for (size_t k = 0; k < KVR_ARRAY_LEN(threads); k++) printf(" %7.2f", run(&rows[i], threads[k]));
        fflush(stdout);
    }
    printf("\n");
    return 0;
}
