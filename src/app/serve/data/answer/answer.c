/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RELAYING: the worker's answer goes to the client, byte by byte as it comes. Its head leaves with the first byte, with headers of the
 * router's own; a stream is looked at in passing, another answer is kept up to a limit, for what they tell of the request. A client that
 * takes the bytes slowly pauses the worker's connection.
 */
#include "app/serve/data/answer/answer.h"

#include "app/serve/data/answer/account.h"
#include "app/serve/data/request/admission.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/data/request/phases.h"
#include "app/serve/data/request/reply.h"
#include "app/serve/workers/views/views.h"

enum { ANSWER_KEPT_MAX = 4 << 20 };

bool answer_is_complete(const struct request *r)
{
    return r->phase == PHASE_RELAYING && r->attempt->is_sse && r->attempt->sse.done;
}

bool answer_takes_events(const struct request *r)
{
    return r->attempt->is_sse && r->attempt->length < 0;
}

bool answer_add_error(const struct request *r, int status, const char *message)
{
    if (r->attempt->sse.part.len) kvr_http_write(r->conn, "\n\n", 2);
    return reply_error_event(r->conn, status, message);
}

/* ---- the head ---------------------------------------------------------------------------------------- */

static void put_leg_headers(const struct request *r, struct kvr_buf *h)
{
    enum told_treatment told;
    if (legs_told(r, &told)) kvr_header_put_str(h, "x-kvroute-disagg", told_treatment_name(told));
    if (!legs_are_two(r) || !r->legs->prefill) return;
    const struct attempt *p = r->legs->prefill;
    kvr_header_put_u64(h, "x-kvroute-prefill-worker", p->result.worker.worker_id);
    kvr_header_put_u64(h, "x-kvroute-prefill-dp-rank", p->result.worker.dp_rank);
    kvr_buf_printf(h, "x-kvroute-prefill-ms: %.1f\r\n", p->ttft_ms);
    if (r->attempt->decodes) kvr_header_put_u64(h, "x-kvroute-decode-overlap-blocks", r->attempt->result.overlap_blocks);
}

void answer_put_decision(const struct request *r, struct kvr_buf *h)
{
    const struct attempt *a = r->attempt;
    char tiers[ACCOUNT_TIERS_MAX];
    kvr_header_put_str(h, "x-request-id", r->id);
    kvr_header_put_u64(h, "x-kvroute-worker", a->result.worker.worker_id);
    kvr_header_put_u64(h, "x-kvroute-dp-rank", a->result.worker.dp_rank);
    const struct attempt *p = legs_computed(r); /* its overlap is what counted */
    if (r->routed) kvr_header_put_u64(h, "x-kvroute-overlap-blocks", p->result.overlap_blocks);
    if (r->routed && account_tiers(p, tiers)) kvr_header_put_str(h, "x-kvroute-overlap-tiers", tiers);
    if (r->routed && views_run(data_of(r)->workers)) kvr_header_put_str(h, "x-kvroute-view", kvr_view_knowledge_name(p->view));
    kvr_header_put_str(h, "x-kvroute-reason", p->reason);
    if (r->asked_model) kvr_header_put_str(h, "x-kvroute-model", request_model(r)); /* the file has no control characters */
    put_leg_headers(r, h);
    admission_put_headers(r, h);
    if (r->explain && r->routed) decision_table_header(p->table, h);
}

void answer_commit(struct request *r)
{
    kvr_body_unref(r->body);
    r->body = NULL;
    kvr_body_unref(r->attempt->body);
    r->attempt->body = NULL;
    account_keep_prompt(legs_computed(r));
    request_forget_tokens(r);
}

static void send_head(struct request *r)
{
    struct attempt *a = r->attempt;
    r->status = a->status;
    account_request(r);
    void (*start)(struct kvr_http_conn *, int, const char *, size_t, int64_t) = a->merges ? kvr_http_start : kvr_http_start_held;
    if (!r->early_head) start(r->conn, a->status, a->head.data, a->head.len, a->merges ? -1 : a->length);
    kvr_buf_free(&a->head);
    if (r->carrier) return;
    answer_commit(r);
    if (a->is_sse && !(r->legs && r->legs->paired))
        kvr_http_conn_drop_head(r->conn); /* an engine may yet be told to abort, with the client's key */
}

/* What the worker says of cached tokens is not of the cache that has counted. */
static void begin_merging(struct request *r)
{
    struct attempt *a = r->attempt;
    if (!a->decodes || data_of(r)->o->disagg_usage != DISAGG_USAGE_MERGE || a->status != 200) return;
    const struct kvr_usage *u = &r->legs->prefill->usage;
    a->merges = true;
    a->merge.told = (struct kvr_usage_told){u->present && u->has_cached, u->cached_tokens};
}

static double stall_timeout(const struct request *r)
{
    return model_option(&r->options, MODEL_STALL_TIMEOUT, data_of(r)->o->stall_timeout);
}

enum outcome answer_begin(struct request *r)
{
    struct attempt *a = r->attempt;
    legs_answered(r);
    if (r->carrier && a->decodes) account_attempt_over(r->legs->prefill); /* nobody tells of its answer */
    if (r->early_head && !(a->status == 200 && a->is_sse))                /* the client was promised a stream */
        return request_refusef(r, a->status, "the worker answered with status %d", a->status);
    begin_merging(r);
    answer_put_decision(r, &a->head);
    if (a->head.failed) return request_refuse(r, 503, "out of memory");
    send_head(r);
    if (a->is_sse || a->length < 0) account_first_token(a);
    request_wait_until(r, r->carrier ? 0 : request_after(r, stall_timeout(r)));
    return OUTCOME_WAITS;
}

/* ---- what passes is looked at ------------------------------------------------------------------------ */

static void look_at_stream(struct attempt *a)
{
    uint64_t events = kvr_sse_feed(&a->sse, a->request->loop->json, a->bytes, a->bytes_n);
    account_events(a, events);
    if (a->sse.usage.present) a->usage = a->sse.usage;
    account_response(a);
}

/* ---- usage put right --------------------------------------------------------------------------------- */

/* Returns: bytes that wait to be taken; *failed: no memory, and some of them are lost. */
static size_t send_events(struct request *r, bool *failed)
{
    struct attempt *a = r->attempt;
    struct kvr_buf out = {0};
    kvr_usage_merge_feed(&a->merge, r->loop->json, a->bytes, a->bytes_n, &out);
    *failed = out.failed;
    size_t queued = kvr_http_write(r->conn, out.data, out.failed ? 0 : out.len);
    kvr_buf_free(&out);
    return queued;
}

/* An answer that is no stream is held until it is whole, or too long to be: then it passes as it is. */
static size_t hold(struct request *r, bool kept)
{
    struct attempt *a = r->attempt;
    if (kept && !a->answer.failed) return 0;
    a->merges = false;
    kvr_http_write(r->conn, a->answer.data, a->answer.len);
    return kvr_http_write(r->conn, a->bytes, a->bytes_n);
}

bool answer_flush(struct request *r)
{
    struct attempt *a = r->attempt;
    struct kvr_buf out = {0};
    if (!a->merges) return true;
    a->merges = false;
    struct kvr_json_span whole = {a->answer.data, a->answer.data + a->answer.len};
    if (a->is_sse) kvr_usage_merge_end(&a->merge, &out);
    else if (a->answer.len && !kvr_usage_merge_answer(whole, r->loop->json, &a->merge.told, &out))
        kvr_buf_add(&out, a->answer.data, a->answer.len);
    bool ok = !out.failed;
    if (ok && out.len) kvr_http_write(r->conn, out.data, out.len);
    kvr_buf_free(&out);
    return ok;
}

/* ---- the bytes --------------------------------------------------------------------------------------- */

/* The client knows from these bytes that the answer is over, whatever the worker still does with its connection. */
static bool is_over(const struct attempt *a)
{
    return a->is_sse ? a->sse.done : a->length >= 0 && a->relayed >= (uint64_t)a->length;
}

/* Returns: whether the piece is kept for what the answer tells. */
static bool look_at(struct request *r)
{
    struct attempt *a = r->attempt;
    bool keeps = !a->is_sse && r->routed && a->answer.len + a->bytes_n <= ANSWER_KEPT_MAX;
    if (a->is_sse) look_at_stream(a);
    if (keeps) kvr_buf_add(&a->answer, a->bytes, a->bytes_n);
    return keeps;
}

static size_t send_bytes(struct request *r, bool kept, bool *failed)
{
    struct attempt *a = r->attempt;
    if (!a->merges) return kvr_http_write(r->conn, a->bytes, a->bytes_n);
    return a->is_sse ? send_events(r, failed) : hold(r, kept);
}

static enum outcome out_of_memory(struct request *r)
{
    attempt_cancel(r->attempt);
    (void)request_refuse(r, 502, "out of memory");
    return OUTCOME_BROKEN;
}

enum outcome answer_relay(struct request *r)
{
    struct attempt *a = r->attempt;
    a->last_byte_ms = request_now_ms(r);
    a->relayed += a->bytes_n;
    bool kept = look_at(r), over = is_over(a), failed = false;
    if (over) account_answered(r); /* its load is given back before the client can ask for it */
    size_t queued = send_bytes(r, kept, &failed);
    if (failed || (over && !answer_flush(r))) return out_of_memory(r);
    if (a->state == ATTEMPT_WHOLE) return OUTCOME_WHOLE; /* these bytes are all of it */
    if (queued > KVR_HTTP_HIGH_WATER) attempt_pause(a);
    return OUTCOME_WAITS;
}

/* The timer is armed for the byte that was the last one then; a stall is judged by the last one now. */
enum outcome answer_on_time(struct request *r, bool total)
{
    struct attempt *a = r->attempt;
    uint64_t limit = (uint64_t)(stall_timeout(r) * 1000), now = kvr_now_ms();
    if (a->paused) a->last_byte_ms = now; /* it is the client that is slow */
    if (!total && now - a->last_byte_ms < limit) {
        request_wait_until(r, a->last_byte_ms + limit);
        return OUTCOME_WAITS;
    }
    attempt_cancel(a);
    (void)request_refuse(r, 502, total ? TOOK_TOO_LONG : "the worker stalled");
    return OUTCOME_BROKEN;
}
