/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter's thread has a loop, an HTTP client and one batch under way. States of the batch: none -> posted -> (none | pausing ->
 * posted). `queue` and what counts it are under the lock, which is held for a few instructions; everything else is the thread's, but for
 * the counters, which are atomic.
 *
 * At the end the pause is cut short, and what is not taken within ENDING_MS is counted as left.
 */
#include "net/otlp/otlp.h"

#include <pthread.h>
#include <string.h>

#include "base/lock.h"
#include "base/log.h"
#include "wire/json.h"
#include "wire/prom_page.h"

enum {
    BATCH_SPANS = 512,
    QUEUE_SPANS_MAX = 16384,
    BATCH_MS = 5000,
    ENDING_MS = 2000,
    ANSWER_MS = 10000,
    TRIES_MAX = 5,
    PAUSE_FIRST_MS = 1000,
    PAUSE_MAX_MS = 30000,
    RETRY_AFTER_MAX_S = 300,
    ANSWER_KEPT_MAX = 4096,
    WARN_MS = 60000
};

#define LOST_REASONS(X) X(queue_full) X(refused) X(retries) X(exit)
enum lost {
#define LOST(name) LOST_##name,
    LOST_REASONS(LOST)
#undef LOST
        LOST_N
};

struct kvr_otlp {
    struct kvr_endpoint endpoint;
    char *service_name, instance_id[64];
    pthread_t thread;
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t due;   /* the next batch, or the end of a pause */
    uv_timer_t limit; /* of an answer */
    uv_timer_t ending;
    struct kvr_http_client *client;
    struct kvr_json_parser *json;
    struct kvr_lock lock;
    struct kvr_span_set *first, **last; /* under lock */
    size_t queued;                      /* spans; under lock */
    bool nudged;                        /* under lock: the thread has been told of a full batch */
    _Atomic bool stop;
    _Atomic uint64_t lost[LOST_N], sent, requests, failures;
    /* the thread's */
    struct kvr_http_call *call; /* NULL: none is under way */
    struct kvr_body *batch;     /* NULL: none */
    size_t batch_spans;
    unsigned tries;
    bool pausing, over;
    int status;
    uint64_t retry_after_s, warned_ms;
    struct kvr_buf answer;
};

static void send_batch(struct kvr_otlp *o);
static void begin_batch(struct kvr_otlp *o);
static void next_batch(struct kvr_otlp *o);

/* ---- the queue --------------------------------------------------------------------------------------- */

static void lose(struct kvr_otlp *o, enum lost why, size_t n)
{
    atomic_fetch_add_explicit(&o->lost[why], n, memory_order_relaxed);
}

void kvr_otlp_give(struct kvr_otlp *o, struct kvr_span_set *set)
{
    if (!o) {
        kvr_spans_free(set);
        return;
    }
    size_t n = set->spans_n;
    set->next = NULL;
    kvr_lock(&o->lock);
    bool room = o->queued + n <= QUEUE_SPANS_MAX, tell = false;
    if (room) {
        *o->last = set;
        o->last = &set->next;
        o->queued += n;
        tell = o->queued >= BATCH_SPANS && !o->nudged;
        o->nudged |= tell;
    }
    kvr_unlock(&o->lock);
    if (tell) uv_async_send(&o->wake);
    if (room) return;
    lose(o, LOST_queue_full, n);
    kvr_spans_free(set);
}

/* The oldest sets that make a batch. Returns: the list. */
static struct kvr_span_set *take_sets(struct kvr_otlp *o, size_t *spans)
{
    struct kvr_span_set *list;
    *spans = 0;
    kvr_lock(&o->lock);
    list = o->first;
    struct kvr_span_set **end = &list;
    while (*end && *spans + (*end)->spans_n <= BATCH_SPANS) {
        *spans += (*end)->spans_n;
        end = &(*end)->next;
    }
    o->first = *end;
    if (!o->first) o->last = &o->first;
    o->queued -= *spans;
    o->nudged = o->queued >= BATCH_SPANS;
    *end = NULL;
    kvr_unlock(&o->lock);
    return *spans ? list : NULL;
}

/* ---- a batch ----------------------------------------------------------------------------------------- */

static void make_batch(struct kvr_otlp *o)
{
    const struct kvr_otlp_resource resource = {o->service_name, kvr_version(), o->instance_id};
    struct kvr_buf b = {0};
    struct kvr_span_set *s = take_sets(o, &o->batch_spans), *next;
    if (!s) return;
    kvr_otlp_begin(&b, &resource);
    for (; s; s = next) {
        next = s->next;
        kvr_otlp_put(&b, s);
        kvr_spans_free(s);
    }
    kvr_otlp_end(&b);
    o->tries = 0;
    o->batch = kvr_body_take(&b);
    kvr_buf_free(&b);
    if (!o->batch) lose(o, LOST_refused, o->batch_spans); /* no memory */
}

static void drop_batch(struct kvr_otlp *o)
{
    kvr_body_unref(o->batch);
    o->batch = NULL;
    o->batch_spans = 0;
}

static void warn(struct kvr_otlp *o, const char *what, const char *why)
{
    uint64_t now = uv_now(&o->loop);
    if (o->warned_ms && now - o->warned_ms < WARN_MS) return;
    o->warned_ms = now;
    kvr_log_warning("kvroute: traces: %s: collector=%s status=%d error='%s'", what, o->endpoint.authority, o->status, why);
}

static void on_due(uv_timer_t *t)
{
    struct kvr_otlp *o = t->data;
    o->pausing = false;
    if (o->batch) send_batch(o);
    else begin_batch(o);
}

static void pause_for(struct kvr_otlp *o, uint64_t ms)
{
    o->pausing = true;
    uv_timer_start(&o->due, on_due, atomic_load(&o->stop) ? KVR_MIN(ms, (uint64_t)100) : ms, 0);
}

static void try_again(struct kvr_otlp *o, const char *why)
{
    uint64_t ms = KVR_MIN((uint64_t)PAUSE_FIRST_MS << KVR_MIN(o->tries, 10u), (uint64_t)PAUSE_MAX_MS);
    if (o->retry_after_s) ms = 1000 * KVR_MIN(o->retry_after_s, (uint64_t)RETRY_AFTER_MAX_S);
    atomic_fetch_add_explicit(&o->failures, 1, memory_order_relaxed);
    if (++o->tries >= TRIES_MAX && !atomic_load(&o->stop)) {
        warn(o, "spans are dropped, the collector takes none", why);
        lose(o, LOST_retries, o->batch_spans);
        drop_batch(o);
        next_batch(o);
        return;
    }
    warn(o, "the collector takes none now; it is tried again", why);
    pause_for(o, ms + kvr_mix64_keyed(uv_hrtime(), kvr_secret()) % (ms / 4 + 1)); /* routers do not come back at one moment */
}

static uint64_t rejected_spans(struct kvr_otlp *o)
{
    struct kvr_json root;
    uint64_t v = 0;
    const char *text;
    size_t len;
    if (!o->answer.len || o->answer.failed || kvr_json_parse(o->json, o->answer.data, o->answer.len, &root, NULL)) return 0;
    struct kvr_json told = kvr_json_get(kvr_json_get(root, "partialSuccess"), "rejectedSpans");
    if (!kvr_json_as_u64(told, &v) && kvr_json_as_str(told, &text, &len)) (void)kvr_parse_u64(text, len, UINT64_MAX, &v);
    return KVR_MIN(v, (uint64_t)o->batch_spans);
}

static bool may_be_tried_again(int status)
{
    return status == 429 || status == 502 || status == 503 || status == 504;
}

static void judge(struct kvr_otlp *o)
{
    if (may_be_tried_again(o->status)) {
        try_again(o, kvr_http_reason(o->status));
        return;
    }
    size_t refused = o->status >= 200 && o->status < 300 ? (size_t)rejected_spans(o) : o->batch_spans;
    if (refused) {
        warn(o, "the collector refuses spans", kvr_http_reason(o->status));
        lose(o, LOST_refused, refused);
    }
    if (o->status < 200 || o->status >= 300) atomic_fetch_add_explicit(&o->failures, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&o->sent, o->batch_spans - refused, memory_order_relaxed);
    drop_batch(o);
    next_batch(o);
}

/* ---- the call ---------------------------------------------------------------------------------------- */

static void on_head(struct kvr_http_call *, void *ctx, int status, const struct kvr_headers *headers, int64_t)
{
    struct kvr_otlp *o = ctx;
    struct kvr_text after = kvr_headers_get(headers, "retry-after");
    o->status = status;
    if (after.ptr) (void)kvr_parse_u64(after.ptr, after.len, UINT32_MAX, &o->retry_after_s); /* a date is as if it were not there */
}

static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct kvr_otlp *o = ctx;
    if (o->answer.len + len <= ANSWER_KEPT_MAX) kvr_buf_add(&o->answer, data, len);
}

static void call_over(struct kvr_otlp *o)
{
    o->call = NULL;
    uv_timer_stop(&o->limit);
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct kvr_otlp *o = ctx;
    call_over(o);
    judge(o);
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure, const char *text)
{
    struct kvr_otlp *o = ctx;
    call_over(o);
    o->status = 0;
    try_again(o, text);
}

static void on_limit(uv_timer_t *t)
{
    struct kvr_otlp *o = t->data;
    if (!o->call) return;
    kvr_http_call_cancel(o->call);
    call_over(o);
    o->status = 0;
    try_again(o, "it did not answer in time");
}

static void send_batch(struct kvr_otlp *o)
{
    static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};
    char head[1024];
    int n = snprintf(head, sizeof head,
                     "POST %s/v1/traces HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nUser-Agent: kvroute/%s\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     o->endpoint.base, o->endpoint.authority, kvr_version(), o->batch->len);
    struct kvr_http_call_config config = {.endpoint = &o->endpoint,
                                          .head = head,
                                          .head_len = (size_t)n,
                                          .body = o->batch,
                                          .connect_timeout_s = 5,
                                          .handler = &handler,
                                          .ctx = o};
    o->status = 0;
    o->retry_after_s = 0;
    o->answer.len = 0;
    atomic_fetch_add_explicit(&o->requests, 1, memory_order_relaxed);
    o->call = kvr_http_call_start(o->client, &config);
    if (o->call) uv_timer_start(&o->limit, on_limit, ANSWER_MS, 0);
    else try_again(o, "out of memory");
}

/* ---- the thread -------------------------------------------------------------------------------------- */

static void on_handle(uv_handle_t *h, void *)
{
    if (!uv_is_closing(h) && h->type != UV_ASYNC) uv_close(h, NULL);
}

/* `wake` stays open: it is closed when nobody can use it any more. */
static void finish(struct kvr_otlp *o)
{
    if (o->over) return;
    o->over = true;
    if (o->call) kvr_http_call_cancel(o->call);
    o->call = NULL;
    lose(o, LOST_exit, o->batch_spans);
    drop_batch(o);
    uv_stop(&o->loop);
}

/* Of what waits, be it one span. */
static void begin_batch(struct kvr_otlp *o)
{
    make_batch(o);
    if (o->batch) send_batch(o);
    else if (atomic_load(&o->stop)) finish(o);
    else uv_timer_start(&o->due, on_due, BATCH_MS, 0);
}

static bool batch_is_full(struct kvr_otlp *o)
{
    kvr_lock(&o->lock);
    bool full = o->queued >= BATCH_SPANS;
    kvr_unlock(&o->lock);
    return full;
}

/* A full batch at once, what is less when its time has come. */
static void next_batch(struct kvr_otlp *o)
{
    if (o->over) return;
    if (atomic_load(&o->stop) || batch_is_full(o)) begin_batch(o);
    else uv_timer_start(&o->due, on_due, BATCH_MS, 0);
}

static void on_ending(uv_timer_t *t)
{
    finish(t->data);
}

static void on_wake(uv_async_t *a)
{
    struct kvr_otlp *o = a->data;
    bool stop = atomic_load(&o->stop);
    if (stop && !uv_is_active((uv_handle_t *)&o->ending)) uv_timer_start(&o->ending, on_ending, ENDING_MS, 0);
    if (o->call || (o->pausing && !stop)) return;
    if (stop || batch_is_full(o)) on_due(&o->due);
}

static void *otlp_main(void *arg)
{
    struct kvr_otlp *o = arg;
    uv_timer_start(&o->due, on_due, BATCH_MS, 0);
    uv_run(&o->loop, UV_RUN_DEFAULT);
    return NULL;
}

/* ---- birth and death --------------------------------------------------------------------------------- */

static void close_loop(struct kvr_otlp *o)
{
    if (o->client) kvr_http_client_close(o->client);
    uv_walk(&o->loop, on_handle, NULL);
    uv_run(&o->loop, UV_RUN_NOWAIT);
    uv_close((uv_handle_t *)&o->wake, NULL);
    uv_run(&o->loop, UV_RUN_DEFAULT);
    uv_loop_close(&o->loop);
}

static void free_queue(struct kvr_otlp *o)
{
    for (struct kvr_span_set *s = o->first, *next; s; s = next) {
        next = s->next;
        lose(o, LOST_exit, s->spans_n);
        kvr_spans_free(s);
    }
}

static void otlp_free(struct kvr_otlp *o)
{
    free_queue(o);
    kvr_body_unref(o->batch);
    kvr_buf_free(&o->answer);
    kvr_json_parser_free(o->json);
    kvr_lock_destroy(&o->lock);
    free(o->service_name);
    free(o);
}

static void open_loop(struct kvr_otlp *o)
{
    uv_loop_init(&o->loop);
    uv_async_init(&o->loop, &o->wake, on_wake);
    uv_timer_init(&o->loop, &o->due);
    uv_timer_init(&o->loop, &o->limit);
    uv_timer_init(&o->loop, &o->ending);
    o->wake.data = o->due.data = o->limit.data = o->ending.data = o;
}

static int parse_endpoint(const char *text, struct kvr_endpoint *e, char *err, size_t cap)
{
    if (!strpbrk(text, "?#") && kvr_endpoint_parse_any(text, strlen(text), e) == 0) return 0; /* /v1/traces goes behind it */
    snprintf(err, cap, "bad value '%.200s'; allowed: http://HOST:PORT or https://HOST:PORT, and a path", text);
    return -KVR_EINVAL;
}

int kvr_otlp_check(const struct kvr_otlp_config *c, char *err, size_t cap)
{
    struct kvr_endpoint e;
    return parse_endpoint(c->endpoint, &e, err, cap);
}

int kvr_otlp_create(const struct kvr_otlp_config *c, struct kvr_otlp **out, char *err, size_t cap)
{
    struct kvr_endpoint e;
    int rc = parse_endpoint(c->endpoint, &e, err, cap);
    if (rc) return rc;
    struct kvr_otlp *o = calloc(1, sizeof *o);
    if (!o) goto no_memory;
    o->endpoint = e;
    o->last = &o->first;
    kvr_lock_init(&o->lock, KVR_LOCK_SPANS);
    o->service_name = strdup(c->service_name);
    snprintf(o->instance_id, sizeof o->instance_id, "%s", c->instance_id);
    o->json = kvr_json_parser_new();
    open_loop(o);
    bool ok = o->service_name && o->json && kvr_http_client_create(&o->loop, 30, &o->client) == 0;
    if (ok && pthread_create(&o->thread, NULL, otlp_main, o) == 0) {
        *out = o;
        return 0;
    }
    close_loop(o);
    otlp_free(o);
no_memory:
    snprintf(err, cap, "out of memory");
    return -KVR_ENOMEM;
}

void kvr_otlp_destroy(struct kvr_otlp *o)
{
    if (!o) return;
    atomic_store(&o->stop, true);
    uv_async_send(&o->wake);
    pthread_join(o->thread, NULL);
    close_loop(o);
    size_t left = o->queued;
    if (left || atomic_load(&o->lost[LOST_exit]))
        kvr_log_warning("kvroute: traces: spans=%llu are lost at the end: collector=%s",
                        (unsigned long long)(left + atomic_load(&o->lost[LOST_exit])), o->endpoint.authority);
    otlp_free(o);
}

void kvr_otlp_metrics(struct kvr_otlp *o, struct kvr_prom_page *b)
{
    static const char *const names[] = {
#define LOST(name) #name,
        LOST_REASONS(LOST)
#undef LOST
    };
    uint64_t queued = 0, sent = 0, requests = 0, failures = 0;
    if (o) {
        kvr_lock(&o->lock);
        queued = o->queued;
        kvr_unlock(&o->lock);
        sent = atomic_load(&o->sent);
        requests = atomic_load(&o->requests);
        failures = atomic_load(&o->failures);
    }
    kvr_prom_one_if(b, o != NULL, "kvroute_", "trace_spans_exported_total", "counter", "Spans that the collector has taken", sent);
    kvr_prom_family(b, "kvroute_", "trace_spans_dropped_total", "counter", "Spans not exported, by why");
    for (size_t i = 0; o && i < LOST_N; i++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("reason", names[i])), atomic_load(&o->lost[i]));
    kvr_prom_one_if(b, o != NULL, "kvroute_", "trace_export_requests_total", "counter", "Requests to the collector", requests);
    kvr_prom_one_if(b, o != NULL, "kvroute_", "trace_export_failures_total", "counter", "Requests that the collector did not take",
                    failures);
    kvr_prom_one_if(b, o != NULL, "kvroute_", "trace_spans_queued", "gauge", "Spans that wait to be sent", queued);
}
