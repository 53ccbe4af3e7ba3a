/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The router under load with long prompts and many workers. usage: bench_load PATH_OF_KVROUTE [SECONDS]
 *
 * 64 connections, each with one request under way, to a router with two data loops; completions with text prompts of 32,768 tokens, of
 * which there are 32, so that the token cache has them all after the first round. The workers, 4 and then 400, are one stub engine in this
 * process, which answers at once. Told: requests a second, which this process limits too, and CPU time of the router per request, which is
 * what to compare: with another build of the router, in turns.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "base/buf.h"
#include "net/http/http.h"
#include "wire/json.h"

enum { CONNECTIONS = 64, PROMPTS = 32, TOKENS = 32768, WORKERS_MAX = 400 };

static const char *program;
static uv_loop_t loop;
static struct kvr_http_client *client;
static struct kvr_body *prompts[PROMPTS];
static struct kvr_buf tokens;
static struct kvr_endpoint router;
static size_t sent, done, failed;
static bool stop;

static uint64_t now(void)
{
    return kvr_now_ns(kvr_clock_monotonic());
}

static void run_for(double seconds)
{
    uint64_t until = now() + (uint64_t)(seconds * 1e9);
    while (now() < until) uv_run(&loop, UV_RUN_NOWAIT);
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

/* ---- the engine -------------------------------------------------------------------------------------------------- */

static void engine_request(struct kvr_http_conn *c, void *)
{
    static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\"}]}";
    static const char answer[] = "{\"id\":\"c\",\"choices\":[{\"text\":\" w\"}],\"usage\":{\"prompt_tokens\":32768,\"completion_tokens\":1,"
                                 "\"prompt_tokens_details\":{\"cached_tokens\":32752}}}";
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    if (kvr_text_is(rq->path, "/tokenize")) kvr_http_reply(c, 200, "application/json", NULL, tokens.data, tokens.len);
    else if (kvr_text_is(rq->path, "/v1/models")) kvr_http_reply(c, 200, "application/json", NULL, models, sizeof models - 1);
    else if (kvr_text_is(rq->method, "GET")) kvr_http_reply(c, 200, "application/json", NULL, "{}", 2);
    else kvr_http_reply(c, 200, "application/json", NULL, answer, sizeof answer - 1);
}

static void engine_gone(struct kvr_http_conn *, void *) {}

static void engine_error(struct kvr_buf *b, int, const char *text)
{
    kvr_buf_str(b, text);
}

static uint16_t start_engine(struct kvr_http_server **out)
{
    static struct kvr_http_shared shared = {.bodies_max = (size_t)1 << 30};
    struct kvr_http_server_config sc = {.host = "127.0.0.1",
                                        .body_max = 16 << 20,
                                        .connections_max = 10000,
                                        .head_timeout_s = 60,
                                        .body_timeout_s = 60,
                                        .idle_timeout_s = 600,
                                        .write_timeout_s = 60,
                                        .shared = &shared,
                                        .handler = {engine_request, engine_gone, NULL, engine_error, NULL}};
    KVR_ASSERT(kvr_http_server_start(&loop, &sc, out) == 0);
    return kvr_http_server_port(*out);
}

/* ---- the clients ------------------------------------------------------------------------------------------------- */

static void post(void);

static void on_head(struct kvr_http_call *c, void *ctx, int status, const struct kvr_headers *h, int64_t length)
{
    (void)c, (void)ctx, (void)h, (void)length;
    failed += status != 200;
}

static void on_body(struct kvr_http_call *c, void *ctx, const char *data, size_t len)
{
    (void)c, (void)ctx, (void)data, (void)len;
}

static void on_done(struct kvr_http_call *c, void *ctx)
{
    (void)c, (void)ctx;
    done++;
    if (!stop) post();
}

static void on_failed(struct kvr_http_call *c, void *ctx, enum kvr_http_failure why, const char *text)
{
    (void)why, (void)text;
    failed++;
    on_done(c, ctx);
}

static void post(void)
{
    static const struct kvr_http_call_handler h = {on_head, on_body, on_done, on_failed};
    struct kvr_body *body = prompts[sent++ % PROMPTS];
    char head[128];
    int n = snprintf(head, sizeof head, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", body->len);
    struct kvr_http_call_config cc = {
        .endpoint = &router, .head = head, .head_len = (size_t)n, .body = body, .connect_timeout_s = 10, .handler = &h};
    KVR_ASSERT(kvr_http_call_start(client, &cc) != NULL);
}

static void make_prompts(void)
{
    for (int i = 0; i < PROMPTS; i++) {
        struct kvr_buf b = {0};
        kvr_buf_printf(&b, "{\"model\":\"m\",\"max_tokens\":1,\"prompt\":\"%d", i);
        for (int k = 1; k < TOKENS; k++) kvr_buf_str(&b, " wor");
        kvr_buf_str(&b, "\"}");
        prompts[i] = kvr_body_copy(b.data, b.len);
        kvr_buf_free(&b);
    }
    kvr_buf_str(&tokens, "{\"count\":32768,\"tokens\":[");
    for (int k = 0; k < TOKENS; k++) kvr_buf_printf(&tokens, "%s%d", k ? "," : "", 1000 + k);
    kvr_buf_str(&tokens, "]}");
}

/* ---- the router -------------------------------------------------------------------------------------------------- */

static pid_t start_router(uint16_t port, uint16_t admin, uint16_t engine, size_t workers)
{
    static char specs[WORKERS_MAX][96];
    static const char *argv[2 * WORKERS_MAX + 32];
    char p[16], a[16];
    size_t n = 0;
    snprintf(p, sizeof p, "%u", port);
    snprintf(a, sizeof a, "%u", admin);
    const char *const begin[] = {
        program,       "serve", "--host", "127.0.0.1", "--port", p, "--admin-port", a, "--threads", "2", "--no-router-kv-events",
        "--tokenizer", "engine"};
    for (; n < KVR_ARRAY_LEN(begin); n++) argv[n] = begin[n];
    for (size_t i = 0; i < workers; i++) {
        snprintf(specs[i], sizeof specs[i], "http://127.0.0.1:%u,id=%zu", engine, i + 1);
        argv[n++] = "--worker";
        argv[n++] = specs[i];
    }
    argv[n] = NULL;
    pid_t child = fork();
    if (child) return child;
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(1);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

static uint16_t free_port(void)
{
    struct kvr_http_server *s;
    uint16_t port = start_engine(&s);
    kvr_http_server_close(s);
    run_for(0.05);
    return port;
}

static void measure(uint16_t engine, size_t workers, double seconds)
{
    char url[64];
    uint16_t port = free_port();
    pid_t child = start_router(port, free_port(), engine, workers);
    snprintf(url, sizeof url, "http://127.0.0.1:%u", port);
    KVR_ASSERT(kvr_endpoint_parse(url, strlen(url), &router) == 0);
    run_for(7); /* every worker has been asked for its health and its models */
    stop = false;
    done = failed = 0;
    for (int i = 0; i < CONNECTIONS; i++) post();
    while (done < 4 * PROMPTS) uv_run(&loop, UV_RUN_ONCE);
    double cpu = cpu_seconds(child);
    uint64_t start = now();
    size_t before = done, bad = failed;
    run_for(seconds);
    cpu = cpu_seconds(child) - cpu;
    double took = (double)(now() - start) / 1e9, n = (double)(done - before);
    printf("%3zu workers: %.0f requests/s, %.0f us of CPU per request, %zu failed\n", workers, n / took, 1e6 * cpu / n, failed - bad);
    fflush(stdout);
    stop = true;
    kill(child, SIGTERM);
    run_for(1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    run_for(0.2);
}

int main(int argc, char **argv)
{
    struct kvr_http_server *server;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_load PATH_OF_KVROUTE [SECONDS]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    program = argv[1];
    uv_loop_init(&loop);
    KVR_ASSERT(kvr_http_client_create(&loop, 60, &client) == 0);
    make_prompts();
    uint16_t engine = start_engine(&server);
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 10;
    measure(engine, 4, seconds);
    measure(engine, WORKERS_MAX, seconds);
    return 0;
}
