/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events as vLLM sends them (array form, a stored event of 16 or 128 blocks of 16 tokens, then evictions), decoded and applied without a
 * socket; then from another process over loopback TCP through the ingest thread into the index: flat out from eight engines that share
 * most prompts, CPU of this process and what its RSS grew by when all has been applied. Prints "key value" lines. With a number: so often,
 * and only that.
 */
#include <msgpuck.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>
#include <kvroute/kvroute.h>

#include "net/ingest/ingest.h"

enum { BATCHES = 20000, BLOCKS = 16, BS = 16, KEPT = 1024 };
enum { ENGINES = 8, PROMPTS = 3000, LONG = 128, SIZE = 24 << 10 };

static char *text(char *p, const char *s)
{
    return mp_encode_str(p, s, (uint32_t)strlen(s));
}

/* The i-th prompt is stored, the one `kept` before it is evicted (0: none). Returns: its length. */
static size_t make_batch(char *b, uint64_t i, uint64_t blocks, uint64_t kept)
{
    char *p = b;
    bool evict = kept && i >= kept;
    p = mp_encode_array(p, 3);
    p = mp_encode_double(p, 1000.0 + (double)i);
    p = mp_encode_array(p, evict ? 2 : 1);
    if (evict) {
        p = mp_encode_array(p, 3);
        p = text(p, "BlockRemoved");
        p = mp_encode_array(p, (uint32_t)blocks);
        for (uint64_t k = blocks; k-- > 0;) p = mp_encode_uint(p, kvr_mix64((i - kept) * blocks + k + 1));
        p = text(p, "GPU");
    }
    p = mp_encode_array(p, 8);
    p = text(p, "BlockStored");
    p = mp_encode_array(p, (uint32_t)blocks);
    for (uint64_t k = 0; k < blocks; k++) p = mp_encode_uint(p, kvr_mix64(i * blocks + k + 1));
    p = mp_encode_nil(p);
    p = mp_encode_array(p, (uint32_t)blocks * BS);
    for (uint64_t k = 0; k < blocks * BS; k++) p = mp_encode_uint(p, kvr_mix64(i * 4096 + k) % 150000);
    p = mp_encode_uint(p, BS);
    p = mp_encode_nil(p);
    p = text(p, "GPU");
    p = mp_encode_nil(p);
    p = mp_encode_uint(p, 0);
    KVR_ASSERT(p - b <= SIZE);
    return (size_t)(p - b);
}

static uint64_t now(void)
{
    return kvr_now_ns(kvr_clock_monotonic());
}

static void apply(void *ctx, const struct kvr_event *ev)
{
    KVR_ASSERT(kvr_index_apply(ctx, ev) == 0);
}

static void direct(void)
{
    struct kvr_index *ix;
    struct kvr_engine_batch b;
    struct kvr_engine_stream s;
    static char data[SIZE];
    uint64_t took = 0;
    KVR_ASSERT(kvr_index_create(NULL, &ix) == 0);
    kvr_engine_batch_init(&b);
    kvr_engine_stream_init(&s, (struct kvr_worker){1, 0}, BS);
    for (uint64_t i = 0; i < BATCHES; i++) {
        size_t len = make_batch(data, i, BLOCKS, KEPT);
        uint64_t t = now();
        KVR_ASSERT(kvr_engine_decode(&b, data, len) == 0 && kvr_engine_convert(&s, &b, i, apply, ix) >= 0);
        took += now() - t;
    }
    printf("decode_hash_apply_ns_per_block %.1f\n", (double)took / (BATCHES * (double)BLOCKS + (BATCHES - KEPT) * (double)BLOCKS));
    kvr_engine_batch_free(&b);
    kvr_engine_stream_free(&s);
    kvr_index_destroy(ix);
}

static int on_event(void *, void *user, const struct kvr_event *ev, const struct kvr_ingest_origin *)
{
    return kvr_index_apply(user, ev);
}

static void on_reset(void *, void *user, struct kvr_worker w)
{
    kvr_index_remove_rank(user, w);
}

/* Which engines have a prompt: each has two of five. */
static bool has(uint64_t engine, uint64_t prompt)
{
    return kvr_mix64(engine * 1000003 + prompt) % 5 < 2;
}

/* The engines, in a process of their own: tells the endpoints, waits for a byte, sends all there is, waits for another. */
static void engines(int out, int in)
{
    void *ctx = zmq_ctx_new(), *pub[ENGINES];
    char byte, *data = malloc((size_t)PROMPTS * SIZE);
    static size_t len[PROMPTS];
    uint64_t seq[ENGINES] = {0};
    int hwm = 0;
    prctl(PR_SET_NAME, "engines"); /* a profile leaves it out */
    for (uint64_t i = 0; i < PROMPTS; i++) len[i] = make_batch(data + i * SIZE, i, LONG, 0);
    for (int e = 0; e < ENGINES; e++) {
        char endpoint[64] = "";
        size_t n = sizeof endpoint;
        pub[e] = zmq_socket(ctx, ZMQ_PUB);
        zmq_setsockopt(pub[e], ZMQ_SNDHWM, &hwm, sizeof hwm);
        KVR_ASSERT(zmq_bind(pub[e], "tcp://127.0.0.1:*") == 0 && zmq_getsockopt(pub[e], ZMQ_LAST_ENDPOINT, endpoint, &n) == 0);
        KVR_ASSERT(write(out, endpoint, sizeof endpoint) == sizeof endpoint);
    }
    KVR_ASSERT(read(in, &byte, 1) == 1);
    for (uint64_t i = 0; i < PROMPTS; i++)
        for (uint64_t e = 0; e < ENGINES; e++) {
            unsigned char number[8];
            if (!has(e, i)) continue;
            kvr_store_be64(number, seq[e]++);
            zmq_send(pub[e], "", 0, ZMQ_SNDMORE);
            zmq_send(pub[e], number, 8, ZMQ_SNDMORE);
            zmq_send(pub[e], data + i * SIZE, len[i], 0);
        }
    KVR_ASSERT(read(in, &byte, 1) == 1);
    _exit(0);
}

static double cpu_ns(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return ((double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec)) * 1e3;
}

static double rss(void)
{
    unsigned long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    KVR_ASSERT(f && fscanf(f, "%lu %lu", &total, &resident) == 2);
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static void over_zmq(void)
{
    struct kvr_index *ix;
    struct kvr_ingest *in;
    struct kvr_view_status st[ENGINES] = {0};
    struct kvr_ingest_handler h = {.on_event = on_event, .on_reset = on_reset};
    int down[2], up[2];
    uint64_t sent = 0, seen = 0, gaps = 0;
    KVR_ASSERT(pipe(down) == 0 && pipe(up) == 0);
    pid_t child = fork();
    if (child == 0) engines(up[1], down[0]);
    KVR_ASSERT(child > 0 && kvr_index_create(NULL, &ix) == 0 && kvr_ingest_create(&h, 5, &in) == 0);
    for (uint64_t e = 0; e < ENGINES; e++) {
        char endpoint[64];
        KVR_ASSERT(read(up[0], endpoint, sizeof endpoint) == sizeof endpoint);
        struct kvr_ingest_source src = {.worker = {e + 1, 0}, .block_size = BS, .events = endpoint, .user = ix};
        KVR_ASSERT(kvr_ingest_add(in, &src) == 0);
        for (uint64_t i = 0; i < PROMPTS; i++) sent += has(e, i);
    }
    usleep(500000); /* until the subscriptions stand; nothing is measured here */
    double before = rss(), cpu = cpu_ns();
    uint64_t t = now();
    KVR_ASSERT(write(down[1], "", 1) == 1);
    while (seen < sent && now() - t < 60000000000ull) {
        usleep(5000);
        kvr_ingest_status(in, st, ENGINES);
        seen = gaps = 0;
        for (int e = 0; e < ENGINES; e++) seen += st[e].next_sequence, gaps += st[e].gaps;
    }
    double pairs = (double)sent * LONG;
    printf("ingest_pairs %.0f\ningest_gaps %llu\ningest_seconds %.3f\n", pairs, (unsigned long long)gaps, (double)(now() - t) / 1e9);
    printf("ingest_cpu_ns_per_pair %.1f\ningest_rss_bytes_per_pair %.1f\n", (cpu_ns() - cpu) / pairs, (rss() - before) / pairs);
    KVR_ASSERT(write(down[1], "", 1) == 1 && waitpid(child, NULL, 0) == child);
    kvr_ingest_destroy(in);
    kvr_index_destroy(ix);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int n = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 1; n > 0; n--) over_zmq();
    if (argc == 1) direct();
    return 0;
}
