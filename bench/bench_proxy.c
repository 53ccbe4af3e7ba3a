/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proxy, measured as its neighbours see it. usage: bench_proxy PATH_OF_KVROUTE
 *
 *   latency   500 small completions a second, open loop, to a mock directly and through the router, in turns
 *   streams   4,000 open streams through the router: its RSS
 *   relay     CPU time per SSE chunk of the router, and of a bare libuv byte relay that does nothing else, same source, same client
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "net/http/http.h"

static const char *program;
static uv_loop_t loop;
static struct kvr_http_client *client;

/* ---- helpers ----------------------------------------------------------------------------------------- */

static uint64_t now(void)
{
    return kvr_now_ns(kvr_clock_monotonic());
}

static uint16_t free_port(void)
{
    uv_tcp_t t;
    struct sockaddr_in a;
    int len = sizeof a;
    uv_ip4_addr("127.0.0.1", 0, &a);
    uv_tcp_init(&loop, &t);
    uv_tcp_bind(&t, (struct sockaddr *)&a, 0);
    uv_tcp_getsockname(&t, (struct sockaddr *)&a, &len);
    uv_close((uv_handle_t *)&t, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
    return ntohs(a.sin_port);
}

static pid_t spawn(const char *const *argv)
{
    pid_t p = fork();
    if (p == 0) {
        if (!freopen("/dev/null", "w", stdout)) _exit(1);
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    return p;
}

static void end(pid_t p)
{
    kill(p, SIGTERM);
    usleep(200000);
    kill(p, SIGKILL);
    waitpid(p, NULL, 0);
}

static double cpu_seconds(pid_t p)
{
    char path[64], line[1024];
    unsigned long u = 0, s = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)p);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, sizeof line, f)) return 0;
    fclose(f);
    const char *rest = strrchr(line, ')');
    if (!rest || sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &u, &s) != 2) return 0;
    return (double)(u + s) / (double)sysconf(_SC_CLK_TCK);
}

static long rss_kb(pid_t p)
{
    char path[64], line[256];
    long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)p);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %ld", &kb) == 1) break;
    if (f) fclose(f);
    return kb;
}

/* ---- calls ------------------------------------------------------------------------------------------- */

struct one {
    uint64_t start;
    double *slot;
};

static size_t done, failed, chunks;

static void on_head(struct kvr_http_call *, void *, int status, const struct kvr_headers *, int64_t)
{
    if (status != 200) failed++;
}

static void on_body(struct kvr_http_call *, void *, const char *data, size_t len)
{
    for (const char *p = data; (p = memchr(p, '\n', len - (size_t)(p - data))); p++) chunks++;
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct one *o = ctx;
    done++;
    if (o->slot) *o->slot = (double)(now() - o->start) / 1e3;
    free(o);
}

static void on_failed(struct kvr_http_call *c, void *ctx, enum kvr_http_failure, const char *)
{
    failed++;
    on_done(c, ctx);
}

static void post(uint16_t port, const char *body, double *slot)
{
    static const struct kvr_http_call_handler h = {on_head, on_body, on_done, on_failed};
    char url[64], head[256];
    struct kvr_endpoint e;
    struct one *o = calloc(1, sizeof *o);
    KVR_ASSERT(o != NULL);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", port);
    KVR_ASSERT(kvr_endpoint_parse(url, strlen(url), &e) == 0);
    int n = snprintf(head, sizeof head, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    struct kvr_http_call_config cc = {.endpoint = &e,
                                      .head = head,
                                      .head_len = (size_t)n,
                                      .body = kvr_body_copy(body, strlen(body)),
                                      .connect_timeout_s = 10,
                                      .handler = &h,
                                      .ctx = o};
    o->start = now();
    o->slot = slot;
    KVR_ASSERT(cc.body && kvr_http_call_start(client, &cc) != NULL);
    kvr_body_unref(cc.body);
}

static void run_for(double seconds)
{
    uint64_t until = now() + (uint64_t)(seconds * 1e9);
    while (now() < until) uv_run(&loop, UV_RUN_NOWAIT);
}

static void wait_up(uint16_t port)
{
    for (int i = 0; i < 100; i++) {
        size_t before = done, bad = failed;
        post(port, "{\"prompt\":[1,2,3],\"max_tokens\":1}", NULL);
        while (done == before) uv_run(&loop, UV_RUN_ONCE);
        if (failed == bad) return;
        usleep(50000);
    }
    KVR_ASSERT(!"the process did not come up");
}

static pid_t start_serve(uint16_t port, uint16_t worker, const char *extra)
{
    char p[16], a[16], w[128];
    snprintf(p, sizeof p, "%u", port);
    snprintf(a, sizeof a, "%u", free_port());
    snprintf(w, sizeof w, "http://127.0.0.1:%u%s", worker, extra);
    const char *argv[] = {program, "serve", "--host", "127.0.0.1", "--port", p, "--admin-port", a, "--worker", w, NULL};
    return spawn(argv);
}

static pid_t start_mock(uint16_t port, uint16_t events, char *speedup)
{
    char p[16], e[64];
    snprintf(p, sizeof p, "%u", port);
    snprintf(e, sizeof e, "tcp://127.0.0.1:%u", events);
    const char *argv[] = {program,
                          "mock",
                          "--enable-prompt-tokens-details",
                          "--port",
                          p,
                          "--kv-events",
                          e,
                          "--speedup-ratio",
                          speedup,
                          "--max-num-seqs",
                          "10000",
                          "--max-num-batched-tokens",
                          "200000",
                          "--num-gpu-blocks",
                          "200000",
                          NULL};
    return spawn(argv);
}

/* ---- latency ----------------------------------------------------------------------------------------- */

enum { RATE = 500, SECONDS = 5, SAMPLES = RATE * SECONDS, ROUNDS = 3 };

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void open_loop(uint16_t port, double *us)
{
    static const char body[] = "{\"prompt\":[11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28],\"max_tokens\":1}";
    uint64_t start = now();
    size_t before = done;
    for (size_t i = 0; i < SAMPLES; i++) {
        while (now() < start + i * (1000000000ull / RATE)) uv_run(&loop, UV_RUN_NOWAIT);
        uv_update_time(&loop);
        post(port, body, &us[i]);
    }
    while (done < before + SAMPLES) uv_run(&loop, UV_RUN_ONCE);
    qsort(us, SAMPLES, sizeof *us, ascending);
}

static void latency(void)
{
    static double us[SAMPLES];
    double p50[2] = {0}, p99[2] = {0};
    uint16_t mock_port = free_port(), events = free_port(), port = free_port();
    char speedup[] = "1000000", extra[64];
    pid_t mock = start_mock(mock_port, events, speedup);
    snprintf(extra, sizeof extra, ",events=tcp://127.0.0.1:%u", events);
    pid_t serve = start_serve(port, mock_port, extra);
    wait_up(mock_port);
    wait_up(port);
    failed = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int which = 0; which < 2; which++) {
            open_loop(which ? port : mock_port, us);
            p50[which] += us[SAMPLES / 2] / ROUNDS;
            p99[which] += us[SAMPLES * 99 / 100] / ROUNDS;
        }
    printf("latency at %d req/s, means of %d rounds in turns: direct p50 %.0f us, p99 %.0f us; through the router p50 %.0f us, p99 %.0f "
           "us; added p50 "
           "%.0f us, p99 %.0f us; failed %zu\n",
           RATE, ROUNDS, p50[0], p99[0], p50[1], p99[1], p50[1] - p50[0], p99[1] - p99[0], failed);
    end(serve);
    end(mock);
}

/* ---- streams ----------------------------------------------------------------------------------------- */

static void streams(void)
{
    enum { N = 4000 };
    uint16_t mock_port = free_port(), events = free_port(), port = free_port();
    char speedup[] = "0.02", extra[64];
    pid_t mock = start_mock(mock_port, events, speedup);
    snprintf(extra, sizeof extra, ",events=tcp://127.0.0.1:%u", events);
    pid_t serve = start_serve(port, mock_port, extra);
    run_for(1);
    long empty = rss_kb(serve);
    failed = 0;
    chunks = 0;
    for (int i = 0; i < N; i++) {
        post(port, "{\"prompt\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18],\"max_tokens\":100000,\"stream\":true}", NULL);
        if (i % 50 == 49) run_for(0.02);
    }
    uint64_t until = now() + 40000000000ull;
    while (chunks < (size_t)N * 2 && now() < until) uv_run(&loop, UV_RUN_ONCE);
    run_for(3);
    printf("%d open streams (%zu chunks seen, %zu failed): router RSS %ld KB, %ld KB of it before the first; %.1f KB a stream\n", N,
           chunks / 2, failed, rss_kb(serve), empty, (double)(rss_kb(serve) - empty) / N);
    end(serve);
    end(mock);
    run_for(0.5);
}

/* ---- relay ------------------------------------------------------------------------------------------- */

enum { STREAMS = 100, PER_STREAM_HZ = 100, RELAY_SECONDS = 8 };

static struct kvr_http_conn *open_conns[STREAMS * 2];
static size_t open_n;
static uint64_t written;

static void source_request(struct kvr_http_conn *c, void *)
{
    static const char head[] = "Content-Type: text/event-stream\r\n";
    if (kvr_text_is(kvr_http_conn_request(c)->method, "GET") || open_n == KVR_ARRAY_LEN(open_conns)) {
        kvr_http_reply(c, 200, "application/json", NULL, "{}", 2);
        return;
    }
    kvr_http_conn_set_user(c, c);
    kvr_http_start(c, 200, head, sizeof head - 1, -1);
    open_conns[open_n++] = c;
}

static void source_gone(struct kvr_http_conn *c, void *)
{
    for (size_t i = 0; i < open_n; i++)
        if (open_conns[i] == c) open_conns[i] = open_conns[--open_n];
}

static void source_write(double seconds)
{
    static const char event[] =
        "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,"
        "\"text\":\" word\",\"logprobs\":null,\"finish_reason\":null}]}\n\n";
    uint64_t start = now(), gap = 1000000000ull / (STREAMS * PER_STREAM_HZ), i = 0;
    while (now() < start + (uint64_t)(seconds * 1e9)) {
        while (start + i * gap > now()) uv_run(&loop, UV_RUN_NOWAIT);
        if (open_n) kvr_http_write(open_conns[i % open_n], event, sizeof event - 1);
        written++;
        i++;
    }
}

/* The bare relay: a child that copies bytes both ways. */
struct pipe {
    uv_tcp_t a, b;
    uv_connect_t connect;
    int handles;
};
static struct sockaddr_in relay_target;
static char relay_buffer[65536];

static void relay_closed(uv_handle_t *h)
{
    struct pipe *p = h->data;
    if (--p->handles == 0) free(p);
}

static void relay_alloc(uv_handle_t *, size_t, uv_buf_t *b)
{
    *b = uv_buf_init(relay_buffer, sizeof relay_buffer);
}

static void relay_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct pipe *p = s->data;
    if (n < 0) {
        if (!uv_is_closing((uv_handle_t *)&p->a)) uv_close((uv_handle_t *)&p->a, relay_closed);
        if (!uv_is_closing((uv_handle_t *)&p->b)) uv_close((uv_handle_t *)&p->b, relay_closed);
        return;
    }
    uv_buf_t b = uv_buf_init(buf->base, (unsigned)n);
    uv_try_write((uv_stream_t *)(s == (uv_stream_t *)&p->a ? &p->b : &p->a), &b, 1);
}

static void relay_connected(uv_connect_t *c, int status)
{
    struct pipe *p = c->data;
    if (status) _exit(3);
    uv_tcp_nodelay(&p->b, 1);
    uv_read_start((uv_stream_t *)&p->a, relay_alloc, relay_read);
    uv_read_start((uv_stream_t *)&p->b, relay_alloc, relay_read);
}

static void relay_accept(uv_stream_t *l, int status)
{
    struct pipe *p = calloc(1, sizeof *p);
    if (status || !p) _exit(4);
    uv_tcp_init(l->loop, &p->a);
    uv_tcp_init(l->loop, &p->b);
    p->a.data = p->b.data = p->connect.data = p;
    p->handles = 2;
    uv_accept(l, (uv_stream_t *)&p->a);
    uv_tcp_nodelay(&p->a, 1);
    uv_tcp_connect(&p->connect, &p->b, (struct sockaddr *)&relay_target, relay_connected);
}

static pid_t start_relay(uint16_t port, uint16_t target)
{
    pid_t pid = fork();
    if (pid) return pid;
    uv_loop_t l;
    uv_tcp_t listener;
    struct sockaddr_in a;
    uv_loop_init(&l);
    uv_ip4_addr("127.0.0.1", target, &relay_target);
    uv_ip4_addr("127.0.0.1", port, &a);
    uv_tcp_init(&l, &listener);
    uv_tcp_bind(&listener, (struct sockaddr *)&a, 0);
    uv_listen((uv_stream_t *)&listener, 1024, relay_accept);
    uv_run(&l, UV_RUN_DEFAULT);
    _exit(0);
}

static double measure_relay(pid_t pid, uint16_t port)
{
    open_n = 0;
    for (int i = 0; i < STREAMS; i++) post(port, "{\"prompt\":[1,2,3,4,5,6,7,8],\"stream\":true}", NULL);
    uint64_t until = now() + 5000000000ull;
    while (open_n < STREAMS && now() < until) uv_run(&loop, UV_RUN_NOWAIT);
    KVR_ASSERT(open_n == STREAMS);
    source_write(1);
    run_for(0.2);
    chunks = written = 0;
    double before = cpu_seconds(pid);
    source_write(RELAY_SECONDS);
    run_for(0.2);
    double cpu = cpu_seconds(pid) - before;
    KVR_ASSERT(chunks / 2 >= written * 99 / 100);
    while (open_n) kvr_http_end(open_conns[--open_n]);
    run_for(0.5);
    return cpu * 1e6 / (double)written;
}

static void relay(void)
{
    struct kvr_http_server *source;
    struct kvr_http_server_config sc = {.host = "127.0.0.1",
                                        .body_max = 1 << 20,
                                        .connections_max = 4096,
                                        .head_timeout_s = 60,
                                        .body_timeout_s = 60,
                                        .idle_timeout_s = 60,
                                        .handler = {.on_request = source_request, .on_gone = source_gone}};
    double us[2] = {0};
    KVR_ASSERT(kvr_http_server_start(&loop, &sc, &source) == 0);
    uint16_t target = kvr_http_server_port(source), relay_port = free_port(), port = free_port();
    pid_t bare = start_relay(relay_port, target), serve = start_serve(port, target, "");
    run_for(1.5);
    for (int round = 0; round < 2; round++) {
        us[0] += measure_relay(bare, relay_port) / 2;
        us[1] += measure_relay(serve, port) / 2;
    }
    printf("relay of SSE chunks, %d streams x %d/s: bare libuv relay %.2f us of CPU a chunk, router %.2f us: %.2fx\n", STREAMS,
           PER_STREAM_HZ, us[0], us[1], us[1] / us[0]);
    end(serve);
    end(bare);
}

int main(int argc, char **argv)
{
    struct rlimit r;
    program = argc > 1 ? argv[1] : "build/release/kvroute";
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IONBF, 0); /* children must not inherit half a buffer */
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
    uv_loop_init(&loop);
    KVR_ASSERT(kvr_http_client_create(&loop, 3, &client) == 0);
    latency();
    relay();
    streams();
    return 0;
}
