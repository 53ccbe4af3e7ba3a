/* SPDX-License-Identifier: Apache-2.0 */
/* SENDING, and the exchange that goes on beneath RELAYING: see attempt.h. */
#include "app/serve/data/request/attempt.h"

#include <string.h>
#include <strings.h>
#include <time.h>

#include "app/serve/data/request/admission.h"
#include "app/serve/data/request/carrier.h"
#include "app/serve/data/request/cors.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/data/request/telemetry.h"
#include "app/serve/workers/engines/health.h"
#include "app/serve/workers/entry/worker_key.h"
#include "app/serve/workers/table/rank.h"
#include "app/serve/workers/views/views.h"
#include "app/serve/workers/workers.h"

enum {
    ENDING_MS = 1000,         /* for a worker to end a stream whose last event has passed */
    REFUSAL_MAX = 64 << 10,   /* bytes of an error that are kept until it is known whether another worker takes the request */
    RETRY_AFTER_MAX_S = 86400 /* whatever a worker says */
};

struct attempt *attempt_new(struct request *r, struct partition *partition)
{
    struct attempt *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->request = r;
    a->partition = partition;
    a->reason = "load";
    a->length = -1;
    a->other_ms = -1;
    a->span_id = telemetry_span_id(r);
    return a;
}

void attempt_free(struct attempt *a)
{
    if (!a) return;
    KVR_ASSERT(!a->call && !a->carried && !a->booking[0]);
    spans_attempt(a);
    kvr_sse_free(&a->sse);
    if (a->opening) kvr_sse_free(a->opening);
    free(a->opening);
    kvr_buf_free(&a->head);
    kvr_buf_free(&a->answer);
    kvr_buf_free(&a->held);
    kvr_buf_free(&a->ended);
    kvr_usage_merge_free(&a->merge);
    kvr_body_unref(a->body);
    free(a->served);
    free(a->table);
    if (a->worker) atomic_fetch_sub(&a->worker->active, 1);
    worker_let_go(a->worker);
    free(a);
}

/* ---- the answer -------------------------------------------------------------------------------------- */

void attempt_count_error(const struct attempt *a)
{
    struct leg_counts *c = &data_of(a->request)->counters.legs;
    if (a->prefills || a->decodes) leg_counts_error(c, a->prefills ? LEG_PREFILL : LEG_DECODE, a->status);
}

static bool is_retryable(const struct attempt *a)
{
    return a->status == 502 || a->status == 503 || a->status == 504 || (a->retries_500 && a->status == 500);
}

static bool is_of_router(struct kvr_text name)
{
    return name.len > 10 && !strncasecmp(name.ptr, "x-kvroute-", 10);
}

/* Headers of the router's own, and those that it makes anew. */
static bool is_passed_on(const struct kvr_hop_by_hop *hop, struct kvr_text name)
{
    return !kvr_header_is_hop_by_hop(hop, name) && !kvr_text_is_nocase(name, "content-length") &&
           !kvr_text_is_nocase(name, "x-request-id") && !is_of_router(name);
}

/* In seconds, or as a date (RFC 9110, 10.2.3); something else tells nothing. */
static void note_retry_after(struct request *r, struct kvr_text value)
{
    char text[40] = "";
    struct tm date = {0};
    uint64_t s = 0;
    memcpy(text, value.ptr, KVR_MIN(value.len, sizeof text - 1));
    const char *end = kvr_parse_u64(value.ptr, value.len, UINT64_MAX, &s) ? NULL : strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &date);
    if (end && !*end) s = (uint64_t)KVR_MAX((int64_t)timegm(&date) - (int64_t)time(NULL), (int64_t)0);
    r->retry_after_s = KVR_MAX(r->retry_after_s, KVR_MIN(s, (uint64_t)RETRY_AFTER_MAX_S));
}

static void keep_head(struct attempt *a, const struct kvr_headers *headers)
{
    static const char events[] = "text/event-stream";
    struct kvr_hop_by_hop hop;
    (void)kvr_hop_by_hop_read(headers, &hop);
    for (size_t i = 0; i < headers->n; i++) {
        struct kvr_text name = kvr_headers_name(headers, i), value = kvr_headers_value(headers, i);
        if (!is_passed_on(&hop, name) || cors_is_ours(data_of(a->request)->o, name)) continue;
        if (is_retryable(a) && kvr_text_is_nocase(name, "retry-after")) {
            note_retry_after(a->request, value);
            continue;
        }
        if (kvr_text_is_nocase(name, "content-type"))
            a->is_sse = value.len >= sizeof events - 1 && strncasecmp(value.ptr, events, sizeof events - 1) == 0;
        kvr_header_put(&a->head, name, value);
    }
}

static void on_head(struct kvr_http_call *call, void *ctx, int status, const struct kvr_headers *headers, int64_t length)
{
    struct attempt *a = ctx;
    if (call) a->connect_ns = kvr_http_call_connect_ns(call);
    a->status = status;
    a->length = length;
    keep_head(a, headers);
    if (a->head.failed) a->tell(a, request_refuse(a->request, 503, "out of memory"));
}

static void note_tried(struct attempt *a)
{
    struct request *r = a->request;
    uint64_t *ids = a->prefills ? r->legs->tried : r->tried;
    unsigned *n = a->prefills ? &r->legs->tried_n : &r->tried_n;
    r->tries++;
    if (*n < TRIES_MAX) ids[(*n)++] = a->result.worker.worker_id;
}

static void report(const struct attempt *a, bool ok)
{
    if (!a->foreign) worker_report(data_of(a->request)->workers, a->worker, ok);
}

/* Its call is gone. */
static void call_over(struct attempt *a)
{
    a->call = NULL;
    a->carried = false;
    if (a->span_id) a->over_ns = kvr_monotonic_ns();
}

/* The worker is one of those that were tried. The refusal stands unless another one takes the request. */
enum outcome attempt_fail(struct attempt *a, int status, const char *text)
{
    struct request *r = a->request;
    a->state = ATTEMPT_FAILED;
    note_tried(a);
    attempt_count_error(a);
    (void)request_refusef(r, status, "the request failed on %u worker(s): %s", r->tries, text);
    return OUTCOME_FAILED;
}

static void tell_bytes(struct attempt *a, enum attempt_state state, const char *data, size_t len)
{
    a->state = state;
    a->bytes = data;
    a->bytes_n = len;
    a->tell(a, OUTCOME_BYTES);
}

/* Its stream may still begin with an error, which another worker can make good. */
static bool may_open_badly(const struct attempt *a)
{
    return a->decodes && a->retries_500 && a->is_sse && a->status == 200 && !a->opened;
}

/* Returns: whether the stream goes on being held back. */
static bool hold_opening(struct attempt *a, const char *data, size_t len)
{
    enum { OPENING_MAX = 64 << 10 };
    if (!a->opening) a->opening = calloc(1, sizeof *a->opening);
    if (a->opening) kvr_sse_feed(a->opening, a->request->loop->json, data, len);
    else a->answer.failed = true;
    kvr_buf_add(&a->answer, data, len);
    a->opened = a->answer.failed || a->opening->events || a->opening->done || a->answer.len > OPENING_MAX;
    return !a->opened;
}

static void tell_opening(struct attempt *a, enum attempt_state state)
{
    struct kvr_buf held = a->answer;
    a->answer = (struct kvr_buf){0};
    tell_bytes(a, state, held.data, held.len);
    kvr_buf_free(&held);
}

static void judge_opening(struct attempt *a)
{
    if (a->answer.failed) {
        a->tell(a, request_refuse(a->request, 503, "out of memory"));
    } else if (a->opening->has_error) {
        attempt_cancel(a);
        worker_report(data_of(a->request)->workers, a->worker, false);
        a->status = 500;
        a->tell(a, attempt_fail(a, 500, "the worker's stream began with an error"));
    } else {
        tell_opening(a, ATTEMPT_ANSWERING);
    }
}

/* What it says of why it refuses: all of it, or nothing. */
static void keep_words(struct attempt *a, const char *data, size_t len)
{
    if (len > REFUSAL_MAX || a->answer.len > REFUSAL_MAX - len) a->answer.failed = true;
    kvr_buf_add(&a->answer, data, len);
}

static void hand_words_over(struct attempt *a)
{
    struct refusal *why = &a->request->refusal;
    bool whole = !a->answer.failed && !a->head.failed;
    if (whole) why->head = a->head, why->body = a->answer;
    else kvr_buf_free(&a->head), kvr_buf_free(&a->answer);
    a->head = a->answer = (struct kvr_buf){0};
}

static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct attempt *a = ctx;
    if (is_retryable(a)) {
        keep_words(a, data, len); /* judged when it is whole */
    } else if (!may_open_badly(a)) {
        tell_bytes(a, ATTEMPT_ANSWERING, data, len);
    } else if (!hold_opening(a, data, len)) {
        judge_opening(a);
    }
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct attempt *a = ctx;
    call_over(a);
    if (is_retryable(a)) {
        report(a, a->status == 503);
        enum outcome o = attempt_fail(a, a->status, "every worker that was tried answered with an error");
        hand_words_over(a);
        a->tell(a, o);
        return;
    }
    report(a, true);
    if (may_open_badly(a) && a->answer.len) { /* a stream without an event */
        tell_opening(a, ATTEMPT_WHOLE);
        return;
    }
    a->state = ATTEMPT_WHOLE;
    a->tell(a, OUTCOME_WHOLE);
}

static enum outcome broken(struct attempt *a)
{
    a->state = ATTEMPT_BROKEN;
    (void)request_refuse(a->request, 502, "the worker broke off the answer");
    return OUTCOME_BROKEN;
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct attempt *a = ctx;
    struct data_plane *data = data_of(a->request);
    call_over(a);
    report(a, false);
    if (why == KVR_HTTP_CONNECT_FAILED || why == KVR_HTTP_RESET) health_check_now(data->workers, a->result.worker.worker_id);
    a->unsent = why == KVR_HTTP_CONNECT_FAILED || why == KVR_HTTP_CONNECT_TIMEOUT;
    if (a->state == ATTEMPT_ANSWERING && !a->prefills && !a->holds) a->tell(a, broken(a));
    else a->tell(a, attempt_fail(a, why == KVR_HTTP_CONNECT_TIMEOUT ? 504 : 502, text));
}

static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};

void attempt_hear_head(struct attempt *a, int status, const struct kvr_headers *headers, int64_t length, bool foreign)
{
    a->foreign = foreign;
    on_head(NULL, a, status, headers, length);
}

void attempt_hear_body(struct attempt *a, const char *data, size_t len)
{
    on_body(NULL, a, data, len);
}

void attempt_hear_end(struct attempt *a, bool whole)
{
    if (whole) on_done(NULL, a);
    else on_failed(NULL, a, KVR_HTTP_TRUNCATED, "the gateway broke off the answer");
}

/* ---- what is sent ------------------------------------------------------------------------------------ */

static bool is_ours(struct kvr_text name)
{
    static const struct kvr_text names[] = {KVR_TEXT("host"),
                                            KVR_TEXT("content-length"),
                                            KVR_TEXT("expect"),
                                            KVR_TEXT("accept-encoding"),
                                            KVR_TEXT("x-request-id"),
                                            KVR_TEXT("x-data-parallel-rank"),
                                            KVR_TEXT("x-worker-instance-id"),
                                            KVR_TEXT("x-prefill-instance-id"),
                                            KVR_TEXT("x-prefill-dp-rank"),
                                            KVR_TEXT("x-dynamo-prefill-instance-id"),
                                            KVR_TEXT("x-dynamo-prefill-dp-rank"),
                                            KVR_TEXT("x-request-priority")};
    return is_of_router(name) || kvr_text_is_one_of(name, names, KVR_ARRAY_LEN(names));
}

static void put_client_headers(const struct request *r, const struct kvr_headers *headers, struct kvr_buf *h)
{
    struct kvr_hop_by_hop hop;
    (void)kvr_hop_by_hop_read(headers, &hop);
    for (size_t i = 0; i < headers->n; i++) {
        struct kvr_text name = kvr_headers_name(headers, i), value = kvr_headers_value(headers, i);
        if (is_ours(name) || kvr_header_is_hop_by_hop(&hop, name) || admission_keeps(r, name) || telemetry_is_trace_header(r, name))
            continue;
        kvr_header_put(h, name, value);
    }
}

/* Engines that hand prompts over key them by it: it is another one for each attempt. */
static void put_request_id(const struct attempt *a, struct kvr_buf *h)
{
    const struct kvr_buf *drawn = a->prefills || a->decodes ? &a->request->legs->transfer.header : NULL;
    if (drawn && drawn->len) kvr_buf_printf(h, "x-request-id: %.*s\r\n", (int)drawn->len, drawn->data);
    else if (a->number && (a->prefills || a->decodes)) kvr_buf_printf(h, "x-request-id: %s.%u\r\n", a->request->id, a->number);
    else kvr_header_put_str(h, "x-request-id", a->request->id);
}

static void put_head(const struct attempt *a, size_t body_len, struct kvr_buf *h)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(a->request->conn);
    const struct worker *w = a->worker;
    struct kvr_text method = rq->is_head ? (struct kvr_text){"HEAD", 4} : rq->method;
    kvr_buf_add(h, method.ptr, method.len);
    kvr_buf_add(h, " ", 1);
    kvr_buf_str(h, w->endpoint.base);
    kvr_buf_add(h, rq->target.ptr, rq->target.len);
    kvr_buf_str(h, " HTTP/1.1\r\n");
    kvr_header_put_str(h, "Host", w->endpoint.authority);
    put_client_headers(a->request, rq->headers, h);
    telemetry_put_trace(a, h);
    put_request_id(a, h);
    if (!admission_authorization(a->request).ptr) worker_key_put(w->api_key, h);
    if (a->names_rank) kvr_header_put_u64(h, "X-data-parallel-rank", a->named_rank); /* the one whose load is booked */
    if (body_len || kvr_text_is(rq->method, "POST") || kvr_text_is(rq->method, "PUT")) kvr_header_put_u64(h, "Content-Length", body_len);
    kvr_buf_str(h, "\r\n");
}

/* The rank that was chosen is in it where the engine reads it there; a leg's own body has none of the client's (legs.c). */
struct kvr_body *attempt_body(const struct attempt *a)
{
    const struct request *r = a->request;
    struct kvr_rank_member has = r->body_rank;
    has.has[0] &= !a->prefills;
    has.has[1] &= !a->body;
    if (a->body && (a->prefills || a->decodes) && r->legs->protocol == KVR_KV_SGLANG) has.has[0] = has.has[1] = true; /* transfer.h */
    return rank_body(a->worker, a->body ? a->body : r->body, r->is_object ? &has : NULL, a->result.worker.dp_rank);
}

struct kvr_http_call *attempt_call(const struct attempt *a, const struct kvr_http_call_handler *with, void *ctx)
{
    struct request *r = a->request;
    struct kvr_http_call *call = NULL;
    struct kvr_buf h = {0};
    struct kvr_body *body = attempt_body(a);
    if (body || !r->body) put_head(a, body ? body->len : 0, &h);
    struct kvr_http_call_config config = {.endpoint = &a->worker->endpoint,
                                          .head = h.data,
                                          .head_len = h.len,
                                          .body = body,
                                          .is_head = r->is_head_request,
                                          .once = a->once,
                                          .connect_timeout_s = data_of(r)->o->connect_timeout,
                                          .handler = with,
                                          .ctx = ctx};
    if (h.len && !h.failed) call = kvr_http_call_start(r->loop->client, &config);
    kvr_buf_free(&h);
    kvr_body_unref(body);
    return call;
}

bool attempt_take_worker(struct attempt *a)
{
    struct data_plane *data = data_of(a->request);
    workers_lock(data->workers);
    struct worker *w = a->worker = worker_find_locked(data->workers, a->result.worker.worker_id);
    if (w) {
        worker_hold(w);
        w->requests++;
        atomic_fetch_add(&w->active, 1);
        a->names_rank = rank_is_named_locked(w);
        a->view = views_knowledge(w, a->result.worker.dp_rank);
        a->named_rank = a->result.worker.dp_rank - w->rank_base;
    }
    workers_unlock(data->workers);
    return w != NULL;
}

enum outcome attempt_send(struct attempt *a, void (*tell)(struct attempt *a, enum outcome o))
{
    struct request *r = a->request;
    a->tell = tell;
    a->view_tick = views_moment(data_of(r)->workers); /* of what came before the worker has it */
    if (r->members.reports) views_expect_reports(data_of(r)->workers, a->worker);
    if (r->carrier) a->carried = true;
    else a->call = attempt_call(a, &handler, a);
    if (!a->call && !a->carried) return request_refuse(r, 503, "out of memory");
    a->state = ATTEMPT_SENT;
    a->sent_ns = kvr_monotonic_ns();
    request_wait_until(r, a->carried ? 0 : attempt_first_byte_until(a)); /* what a gateway waits for is its own business */
    if (a->carried) r->carrier->decided(r->carrier_ctx, a);
    return OUTCOME_WAITS;
}

/* A worker that receives a computed prompt has less time, from the moment that it is there. */
uint64_t attempt_first_byte_until(const struct attempt *a)
{
    const struct serve_options *o = data_of(a->request)->o;
    double seconds = model_option(&a->request->options, MODEL_FIRST_TOKEN_TIMEOUT, o->first_token_timeout);
    uint64_t limit = (uint64_t)(seconds * 1000), first = limit ? a->sent_ns / 1000000 + limit : 0;
    uint64_t received = a->decodes ? request_after(a->request, o->kv_wait_timeout) : 0;
    return first && received ? KVR_MIN(first, received) : KVR_MAX(first, received);
}

enum outcome attempt_on_time(struct attempt *a, bool total)
{
    attempt_cancel(a);
    attempt_count_error(a);
    worker_report(data_of(a->request)->workers, a->worker, false);
    return request_refuse(a->request, 504, total ? TOOK_TOO_LONG : "the worker did not answer in time");
}

/* ---- its call ---------------------------------------------------------------------------------------- */

void attempt_cancel(struct attempt *a)
{
    if (!a->call && !a->carried) return;
    if (a->call) kvr_http_call_cancel(a->call);
    call_over(a);
    a->state = ATTEMPT_CANCELLED;
}

void attempt_let_go(struct attempt *a)
{
    report(a, true);
    if (a->call) kvr_http_call_let_go(a->call, ENDING_MS);
    call_over(a);
    a->state = ATTEMPT_WHOLE;
}

void attempt_pause(struct attempt *a)
{
    if (a->paused) return;
    a->paused = true;
    kvr_http_call_pause(a->call);
}

void attempt_resume(struct attempt *a)
{
    if (!a->paused) return;
    a->paused = false;
    a->last_byte_ms = request_now_ms(a->request);
    if (a->call) kvr_http_call_resume(a->call);
}
