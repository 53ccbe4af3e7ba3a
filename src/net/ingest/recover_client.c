/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads: the loop's thread owns `jobs` and the HTTP client. Others put commands on `inbox` under `lock` and wake it.
 */
#include "net/ingest/recover_client.h"

#include <pthread.h>
#include <string.h>
#include <uv.h>

#include "base/lock.h"
#include "net/http/ending.h"

enum { AT_ONCE = 16, ATTEMPTS = 8, BACKOFF_MS = 200, SILENT_MS = 10000, ATTEMPT_MS = 600000, TICK_MS = 50, JITTER_MS = 3 };

struct job {
    struct job *next;
    struct kvr_recover_client *client;
    uint64_t token;
    struct kvr_endpoint endpoint;
    char target[512];
    unsigned attempts;
    uint64_t due_ms, deadline_ms, began_ms; /* loop time */
    struct kvr_http_call *call;
    struct kvr_recover_reader reader;
    struct kvr_recover_reply *reply; /* made with the question: whoever waits for it gets it, memory or not */
    int status, error;
    bool cancel; /* of an inbox entry: forget the token */
};

struct kvr_recover_client {
    kvr_recover_on_reply *on_reply;
    void *ctx;
    pthread_t thread;
    struct kvr_lock lock; /* inbox, stop */
    struct job *inbox, **inbox_tail;
    bool stop;
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t tick;
    struct kvr_http_client *http;
    struct job *jobs;
    size_t on_wire;
    struct kvr_rng rng;
};

static void start_due(struct kvr_recover_client *c);

void kvr_recover_reply_free(struct kvr_recover_reply *r)
{
    if (!r) return;
    kvr__event_list_free(&r->answer.events);
    free(r);
}

static void job_free(struct job *j)
{
    kvr_recover_reader_free(&j->reader);
    kvr_recover_reply_free(j->reply);
    free(j);
}

static void unlink_job(struct job *j)
{
    KVR_UNLINK(j->client->jobs, j);
}

/* Ends a job with an answer, or with a reason why there is none. */
static void finish(struct job *j, const char *why)
{
    struct kvr_recover_client *c = j->client;
    struct kvr_recover_reply *r = j->reply;
    unlink_job(j);
    r->token = j->token;
    r->answered = !why;
    if (why) {
        r->answer.kind = KVR_RECOVER_FAILED;
        snprintf(r->answer.message, sizeof r->answer.message, "%s", why);
    } else {
        r->answer = j->reader.answer; /* takes the events */
        j->reader.answer.events = (struct kvr_event_list){0};
    }
    j->reply = NULL;
    c->on_reply(c->ctx, r);
    job_free(j);
}

static void end_attempt(struct job *j)
{
    j->call = NULL;
    j->client->on_wire--;
}

static void failed(struct job *j, const char *why)
{
    uint64_t pause = (uint64_t)BACKOFF_MS << j->attempts;
    kvr_recover_reader_free(&j->reader);
    if (++j->attempts >= ATTEMPTS) {
        finish(j, why);
        return;
    }
    j->due_ms = uv_now(&j->client->loop) + pause;
}

static void on_head(struct kvr_http_call *, void *ctx, int status, const struct kvr_headers *, int64_t)
{
    struct job *j = ctx;
    j->status = status;
    j->deadline_ms = uv_now(&j->client->loop) + SILENT_MS;
}

static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct job *j = ctx;
    j->deadline_ms = uv_now(&j->client->loop) + SILENT_MS;
    if (j->status / 100 == 2 && !j->error) j->error = kvr_recover_reader_feed(&j->reader, data, len);
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct job *j = ctx;
    struct kvr_recover_client *c = j->client;
    char why[96];
    end_attempt(j);
    if (j->status / 100 == 2 && !j->error) j->error = kvr_recover_reader_end(&j->reader);
    snprintf(why, sizeof why, "the recover endpoint answers with status %d", j->status);
    if (j->status / 100 == 4) finish(j, why); /* asking again will not help */
    else if (j->status / 100 != 2) failed(j, why);
    else if (j->error) failed(j, j->reader.why ? j->reader.why : kvr_strerror(j->error));
    else finish(j, NULL);
    start_due(c);
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure, const char *text)
{
    struct job *j = ctx;
    end_attempt(j);
    failed(j, text);
}

static void attempt(struct job *j)
{
    static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};
    struct kvr_recover_client *c = j->client;
    struct kvr_buf head = {0};
    j->status = j->error = 0;
    j->due_ms = 0;
    kvr_buf_printf(&head, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", j->target, j->endpoint.authority);
    struct kvr_http_call_config config = {
        .endpoint = &j->endpoint, .head = head.data, .head_len = head.len, .connect_timeout_s = 2, .handler = &handler, .ctx = j};
    if (!head.failed && kvr_recover_reader_init(&j->reader) == 0) j->call = kvr_http_call_start(c->http, &config);
    kvr_buf_free(&head);
    j->began_ms = uv_now(&c->loop);
    j->deadline_ms = j->began_ms + SILENT_MS;
    if (j->call) c->on_wire++;
    else failed(j, "out of memory");
}

static void start_due(struct kvr_recover_client *c)
{
    uint64_t now = uv_now(&c->loop);
    for (struct job *j = c->jobs, *next; j; j = next) {
        next = j->next;
        if (j->call && (now >= j->deadline_ms || now >= j->began_ms + ATTEMPT_MS)) {
            kvr_http_call_cancel(j->call);
            end_attempt(j);
            finish(j, "the recover endpoint does not answer in time"); /* who waits has other events to go on with */
        } else if (!j->call && c->on_wire < AT_ONCE && now >= j->due_ms) {
            attempt(j);
        }
    }
}

static void on_tick(uv_timer_t *t)
{
    start_due(t->data);
}

static void forget(struct kvr_recover_client *c, uint64_t token)
{
    for (struct job *j = c->jobs, *next; j; j = next) {
        next = j->next;
        if (j->token != token) continue;
        if (j->call) {
            kvr_http_call_cancel(j->call);
            end_attempt(j);
        }
        unlink_job(j);
        job_free(j);
    }
}

static void take_inbox(struct kvr_recover_client *c)
{
    kvr_lock(&c->lock);
    struct job *list = c->inbox;
    c->inbox = NULL;
    c->inbox_tail = &c->inbox;
    kvr_unlock(&c->lock);
    while (list) {
        struct job *j = list;
        list = j->next;
        if (j->cancel) {
            forget(c, j->token);
            job_free(j);
            continue;
        }
        struct job **p = &c->jobs; /* first come, first served */
        while (*p) p = &(*p)->next;
        j->next = NULL;
        *p = j;
        if (j->due_ms) j->due_ms = uv_now(&c->loop) + kvr_rng_below(&c->rng, JITTER_MS + 1);
    }
}

static void on_wake(uv_async_t *a)
{
    struct kvr_recover_client *c = a->data;
    uv_update_time(&c->loop);
    take_inbox(c);
    start_due(c);
    kvr_lock(&c->lock);
    bool stop = c->stop;
    kvr_unlock(&c->lock);
    if (!stop) return;
    while (c->jobs) forget(c, c->jobs->token);
    kvr_http_client_close(c->http);
    uv_timer_stop(&c->tick);
    uv_close((uv_handle_t *)&c->tick, NULL);
    uv_close((uv_handle_t *)&c->wake, NULL);
}

static void *client_main(void *arg)
{
    struct kvr_recover_client *c = arg;
    uv_run(&c->loop, UV_RUN_DEFAULT);
    uv_loop_close(&c->loop);
    return NULL;
}

int kvr_recover_client_create(kvr_recover_on_reply *on_reply, void *ctx, struct kvr_recover_client **out)
{
    struct kvr_recover_client *c = calloc(1, sizeof *c);
    if (!c) return -KVR_ENOMEM;
    c->on_reply = on_reply;
    c->ctx = ctx;
    c->inbox_tail = &c->inbox;
    c->rng.state = kvr_monotonic_ns();
    if (uv_loop_init(&c->loop)) {
        free(c);
        return -KVR_ENOMEM;
    }
    kvr_lock_init(&c->lock, KVR_LOCK_RECOVERY);
    uv_async_init(&c->loop, &c->wake, on_wake);
    uv_timer_init(&c->loop, &c->tick);
    c->wake.data = c->tick.data = c;
    uv_timer_start(&c->tick, on_tick, TICK_MS, TICK_MS);
    if (kvr_http_client_create(&c->loop, 3, &c->http) || pthread_create(&c->thread, NULL, client_main, c)) {
        kvr_http_client_close(c->http);
        kvr_loop_end(&c->loop);
        kvr_lock_destroy(&c->lock);
        free(c);
        return -KVR_ENOMEM;
    }
    *out = c;
    return 0;
}

static void send_job(struct kvr_recover_client *c, struct job *j)
{
    kvr_lock(&c->lock);
    if (j) {
        j->next = NULL;
        *c->inbox_tail = j;
        c->inbox_tail = &j->next;
    } else {
        c->stop = true;
    }
    uv_async_send(&c->wake);
    kvr_unlock(&c->lock);
}

void kvr_recover_client_destroy(struct kvr_recover_client *c)
{
    if (!c) return;
    send_job(c, NULL);
    pthread_join(c->thread, NULL);
    while (c->inbox) {
        struct job *j = c->inbox;
        c->inbox = j->next;
        job_free(j);
    }
    kvr_lock_destroy(&c->lock);
    free(c);
}

int kvr_recover_client_ask(struct kvr_recover_client *c, const struct kvr_recover_question *q)
{
    struct job *j = calloc(1, sizeof *j);
    char start[32] = "";
    if (j) j->reply = calloc(1, sizeof *j->reply);
    if (!j || !j->reply) {
        free(j);
        return -KVR_ENOMEM;
    }
    if (kvr_endpoint_parse_any(q->url, strlen(q->url), &j->endpoint)) {
        job_free(j);
        return -KVR_EINVAL;
    }
    if (q->has_start) snprintf(start, sizeof start, "&start=%llu", (unsigned long long)q->start);
    snprintf(j->target, sizeof j->target, "%s%cdp_rank=%u%s", j->endpoint.base[0] ? j->endpoint.base : "/kv_recover",
             strchr(j->endpoint.base, '?') ? '&' : '?', q->dp_rank, start);
    j->client = c;
    j->token = q->token;
    j->due_ms = !q->has_start; /* a mark until the loop sees it */
    send_job(c, j);
    return 0;
}

void kvr_recover_client_cancel(struct kvr_recover_client *c, uint64_t token)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j) return;
    j->token = token;
    j->cancel = true;
    send_job(c, j);
}
