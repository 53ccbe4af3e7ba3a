/* SPDX-License-Identifier: Apache-2.0 */
/* One reading of an engine's metrics, and one question with its whole answer: what they give, how they fail, and that memory which runs out
 * at any allocation costs no more than it. */
#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "failing_memory.h"
#include "net/http/ask.h"
#include "net/http/metrics_scrape.h"

/* ---- an engine ------------------------------------------------------------------------------------------------ */

struct says {
    const char *answer;
    size_t len, times; /* the answer's last `len` bytes are sent so many times more */
};

static struct engine {
    pthread_t thread;
    int listener;
    char url[64];
    pthread_mutex_t lock;
    struct says says; /* under lock */
} engine = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void engine_says(const char *answer, size_t len, size_t times)
{
    pthread_mutex_lock(&engine.lock);
    engine.says = (struct says){answer, len, times};
    pthread_mutex_unlock(&engine.lock);
}

static void *engine_main(void *)
{
    char request[4096];
    memory_exempts_this_thread();
    for (int c; (c = accept(engine.listener, NULL, NULL)) >= 0; close(c)) {
        if (recv(c, request, sizeof request, 0) <= 0) continue;
        pthread_mutex_lock(&engine.lock);
        struct says s = engine.says;
        pthread_mutex_unlock(&engine.lock);
        size_t all = strlen(s.answer);
        bool ok = send(c, s.answer, all, MSG_NOSIGNAL) >= 0;
        for (size_t i = 0; ok && i < s.times; i++) ok = send(c, s.answer + all - s.len, s.len, MSG_NOSIGNAL) >= 0;
    }
    return NULL;
}

static int engine_start(void **)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    engine.listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(engine.listener, (struct sockaddr *)&a, sizeof a) || listen(engine.listener, 64)) return -1;
    if (getsockname(engine.listener, (struct sockaddr *)&a, &len)) return -1;
    snprintf(engine.url, sizeof engine.url, "http://127.0.0.1:%u/metrics", ntohs(a.sin_port));
    return pthread_create(&engine.thread, NULL, engine_main, NULL);
}

static int engine_stop(void **)
{
    shutdown(engine.listener, SHUT_RDWR);
    pthread_join(engine.thread, NULL);
    close(engine.listener);
    return 0;
}

/* ---- a reading ------------------------------------------------------------------------------------------------ */

struct outcome {
    int calls, rc;
    char error[80];
    struct kvr_engine_loads loads;
};

static void on_scraped(void *ctx, const struct kvr_engine_loads *loads, const char *error)
{
    struct outcome *o = ctx;
    o->calls++;
    snprintf(o->error, sizeof o->error, "%s", error ? error : "");
    if (loads) o->loads = *loads;
    else assert_non_null(error);
}

/* A loop and a client of its own, closed again. cancel: at once. */
static struct outcome scrape(const char *url, bool cancel)
{
    struct outcome o = {0};
    struct kvr_http_client *client = NULL;
    struct kvr_scrape *s;
    uv_loop_t loop;
    assert_int_equal(uv_loop_init(&loop), 0);
    o.rc = kvr_http_client_create(&loop, 1, &client);
    struct kvr_scrape_config c = {.loop = &loop, .client = client, .url = url, .timeout_s = 20, .fn = on_scraped, .ctx = &o};
    if (o.rc == 0) o.rc = kvr_scrape_start(&c, &s);
    if (o.rc == 0 && cancel) kvr_scrape_cancel(s);
    while (o.rc == 0 && !cancel && !o.calls) uv_run(&loop, UV_RUN_ONCE);
    kvr_http_client_close(client);
    while (uv_run(&loop, UV_RUN_DEFAULT)) continue;
    assert_int_equal(uv_loop_close(&loop), 0);
    return o;
}

#define HEAD  "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
#define LINES "vllm:num_requests_running{engine=\"0\"} 3\nbroken\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n"

static void a_reading_gives_the_loads(void **)
{
    struct kvr_engine_load l;
    engine_says(HEAD LINES "vllm:num_requests_waiting 4", 0, 0); /* the last line has no end */
    struct outcome o = scrape(engine.url, false);
    assert_true(o.rc == 0 && o.calls == 1 && o.loads.n == 2 && o.loads.bad_lines == 1);
    assert_string_equal(o.error, "");
    engine_says(HEAD LINES, 0, 0);
    o = scrape(engine.url, false);
    assert_true(kvr_engine_loads_of(&o.loads, 0, 1, 0, 16, 10, &l) && l.running == 3 && l.used_blocks == 5);
}

static void a_reading_says_why_it_failed(void **)
{
    static const struct {
        const char *answer, *error;
    } cases[] = {{"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "the answer is not 200"},
                 {HEAD "<html>", "the answer has no figure that is known here"},
                 {"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" LINES, "the answer broke off"},
                 {"nonsense\r\n\r\n", "the answer is no HTTP"},
                 {"", "no connection"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        engine_says(cases[i].answer, 0, 0);
        struct outcome o = scrape(engine.url, false);
        assert_int_equal(o.calls, 1);
        assert_string_equal(o.error, cases[i].error);
    }
    engine_says(HEAD LINES, strlen(LINES), 1000000);
    struct outcome o = scrape(engine.url, false);
    assert_string_equal(o.error, "the answer is longer than 4 MiB");
    assert_int_equal(scrape("ftp://x", false).rc, -KVR_EINVAL);
}

static void a_cancelled_reading_is_silent(void **)
{
    engine_says(HEAD LINES, 0, 0);
    assert_int_equal(scrape(engine.url, true).calls, 0);
}

static void memory_that_runs_out_costs_one_reading(void **)
{
    engine_says(HEAD LINES, 0, 0);
    for (long n = 0;; n++) {
        memory_fails_at(n, 0);
        struct outcome o = scrape(engine.url, false);
        bool failed = memory_has_failed();
        memory_recovers();
        assert_true(o.rc == 0 ? o.calls == 1 : o.rc == -KVR_ENOMEM && o.calls == 0);
        if (!failed) {
            assert_true(o.rc == 0 && o.loads.n == 1);
            return;
        }
        assert_true(n < 1000);
    }
}

static int write_and_read(void)
{
    struct kvr_engine_load in = {.has_running = true, .running = 7}, out;
    struct kvr_worker w;
    struct kvr_buf b = {0};
    kvr_active_load_write(&b, (struct kvr_worker){1, 2}, &in);
    int rc = b.failed ? -KVR_ENOMEM : kvr_active_load_read(b.data, b.len, &w, &out);
    kvr_buf_free(&b);
    return rc;
}

static void memory_that_runs_out_under_a_report_says_so(void **)
{
    memory_fails_at(0, 0);
    int rc = write_and_read();
    assert_true(memory_has_failed() && rc == -KVR_ENOMEM);
    memory_recovers();
    assert_int_equal(write_and_read(), 0);
}

/* ---- a question ----------------------------------------------------------------------------------------------- */

struct heard {
    int calls, status;
    bool cut, started;
    char data[32], why[80];
};

static void on_answer(void *ctx, const struct kvr_asked *a)
{
    struct heard *h = ctx;
    h->calls++;
    h->status = a->status;
    h->cut = a->cut;
    assert_true(a->len < sizeof h->data);
    memcpy(h->data, a->data, a->len);
    snprintf(h->why, sizeof h->why, "%s", a->why ? a->why : "");
}

/* As scrape(); of an answer sixteen bytes are kept. */
static struct heard ask(bool post, bool cancel)
{
    struct heard h = {0};
    struct kvr_http_client *client = NULL;
    struct kvr_endpoint e;
    struct kvr_buf body = {.failed = true};
    uv_loop_t loop;
    assert_int_equal(kvr_endpoint_parse(engine.url, strlen(engine.url), &e), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    if (kvr_http_client_create(&loop, 1, &client) == 0) {
        struct kvr_ask_config c = {.loop = &loop,
                                   .client = client,
                                   .endpoint = &e,
                                   .path = "/",
                                   .json = post ? &body : NULL,
                                   .max = 16,
                                   .timeout_s = 20,
                                   .fn = on_answer,
                                   .ctx = &h};
        struct kvr_ask *a = kvr_ask_start(&c);
        h.started = a != NULL;
        if (cancel) kvr_ask_cancel(a);
        while (a && !cancel && !h.calls) uv_run(&loop, UV_RUN_ONCE);
    }
    kvr_http_client_close(client);
    while (uv_run(&loop, UV_RUN_DEFAULT)) continue;
    assert_int_equal(uv_loop_close(&loop), 0);
    return h;
}

static void an_answer_comes_whole_or_with_a_reason(void **)
{
    static const struct {
        const char *answer;
        int status;
        bool cut;
        const char *data;
    } cases[] = {{HEAD "sixteen bytes it", 200, false, "sixteen bytes it"},
                 {HEAD "sixteen bytes it is, and more", 200, true, "sixteen bytes it"},
                 {"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", 404, false, "no"},
                 {"HTTP/1.1 204 No Content\r\n\r\n", 204, false, ""},
                 {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", 0, false, "half"},
                 {"nonsense\r\n\r\n", 0, false, ""},
                 {"", 0, false, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        engine_says(cases[i].answer, 0, 0);
        struct heard h = ask(false, false);
        assert_true(h.calls == 1 && h.status == cases[i].status && h.cut == cases[i].cut && (h.status == 0) == (h.why[0] != 0));
        assert_string_equal(h.data, cases[i].data);
    }
    engine_says(cases[0].answer, 0, 0);
    assert_int_equal(ask(false, true).calls, 0);
    assert_false(ask(true, false).started); /* there was no memory for its body */
}

static void memory_that_runs_out_costs_one_answer(void **)
{
    engine_says(HEAD "all of it", 0, 0);
    for (long n = 0;; n++) {
        memory_fails_at(n, 0);
        struct heard h = ask(false, false);
        bool failed = memory_has_failed();
        memory_recovers();
        assert_int_equal(h.calls, h.started);
        if (h.status == 200 && !h.cut) assert_string_equal(h.data, "all of it");
        if (!failed) {
            assert_true(h.status == 200 && !h.cut);
            return;
        }
        assert_true(n < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reading_gives_the_loads),
        cmocka_unit_test(a_reading_says_why_it_failed),
        cmocka_unit_test(a_cancelled_reading_is_silent),
        cmocka_unit_test(memory_that_runs_out_costs_one_reading),
        cmocka_unit_test(an_answer_comes_whole_or_with_a_reason),
        cmocka_unit_test(memory_that_runs_out_costs_one_answer),
        cmocka_unit_test(memory_that_runs_out_under_a_report_says_so),
    };
    return cmocka_run_group_tests(tests, engine_start, engine_stop);
}
