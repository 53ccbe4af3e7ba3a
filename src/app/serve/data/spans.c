/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spans of a request, if its trace is kept:
 *
 *     POST /v1/chat/completions          server; its parent is the client's span, if it named one
 *       kvroute.read_body, .tokenize, .lookup, .choose, .queue, .park, .prefill, .pair, .relay   phases, those that took time
 *       kvroute.attempt                  client; one for each worker that was asked: its id is what the worker gets in traceparent
 *
 * Names of attributes are those of OpenTelemetry's semantic conventions (HTTP, GenAI) where they have one, else begin with kvroute.
 */
#include <string.h>
#include <time.h>

#include "app/serve/data/attempt.h"
#include "app/serve/data/legs.h"
#include "app/serve/data/note.h"

void spans_begin(struct request_note *n)
{
    struct timespec ts;
    struct kvr_span_set *s = n->spans = calloc(1, sizeof *s);
    if (!s) return; /* the trace goes on without us */
    clock_gettime(CLOCK_REALTIME, &ts);
    n->unix_ns = (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
    memcpy(s->trace, n->trace.trace, sizeof s->trace);
    s->flags = n->trace.flags;
    struct kvr_span root = {.name = "request", .id = n->root, .parent = n->trace.parent, .kind = KVR_SPAN_SERVER, .start_ns = n->unix_ns};
    (void)kvr_spans_add(s, &root);
}

static uint64_t unix_of(const struct request_note *n, uint64_t monotonic_ns)
{
    return n->unix_ns + (monotonic_ns > n->began_ns ? monotonic_ns - n->began_ns : 0);
}

/* ---- phases ------------------------------------------------------------------------------------------ */

void spans_phase(struct request *r, uint64_t from_ns, uint64_t to_ns)
{
    static const char *const names[PHASES_N] = {
        [PHASE_READING] = "kvroute.read_body", [PHASE_TOKENS] = "kvroute.tokenize", [PHASE_LOOKUP] = "kvroute.lookup",
        [PHASE_CHOOSING] = "kvroute.choose",   [PHASE_PARKED] = "kvroute.park",     [PHASE_PAIRING] = "kvroute.pair",
        [PHASE_RELAYING] = "kvroute.relay",
    };
    struct request_note *n = r->note;
    bool waited = r->phase == PHASE_CHOOSING && r->now.choosing.queued;
    if (!names[r->phase]) return; /* an attempt's */
    struct kvr_span span = {.name = waited ? "kvroute.queue" : names[r->phase],
                            .parent = n->root,
                            .kind = KVR_SPAN_INTERNAL,
                            .start_ns = unix_of(n, from_ns),
                            .end_ns = unix_of(n, to_ns)};
    span.id = kvr_rng_next(&r->loop->ids) | 1;
    int i = kvr_spans_add(n->spans, &span);
    if (r->phase == PHASE_TOKENS) kvr_spans_int(n->spans, i, "kvroute.tokens", r->tokens_n);
}

/* ---- attempts ---------------------------------------------------------------------------------------- */

static const char *outcome_of(const struct attempt *a)
{
    switch (a->state) {
    case ATTEMPT_WHOLE: return a->status >= 500 ? "the worker answered with an error" : NULL;
    case ATTEMPT_ANSWERING: return NULL;
    case ATTEMPT_BROKEN: return "the worker broke off the answer";
    case ATTEMPT_CANCELLED: return "cancelled";
    default: return a->prefilled ? NULL : "failed";
    }
}

static void put_worker(struct kvr_span_set *s, int i, const struct attempt *a)
{
    const struct kvr_endpoint *e = &a->worker->endpoint;
    kvr_spans_text(s, i, "server.address", e->host, strlen(e->host));
    kvr_spans_int(s, i, "server.port", e->port);
    kvr_spans_int(s, i, "kvroute.worker_id", a->result.worker.worker_id);
    kvr_spans_int(s, i, "kvroute.dp_rank", a->result.worker.dp_rank);
    if (a->status) kvr_spans_int(s, i, "http.response.status_code", (uint64_t)a->status);
}

void spans_attempt(const struct attempt *a)
{
    struct request_note *n = a->request->note;
    if (!n || !n->spans || !a->span_id || !a->sent_ns || !a->worker) return;
    uint64_t now = kvr_now_ns(kvr_clock_monotonic());
    const char *why = outcome_of(a), *leg = a->prefills ? "prefill" : a->decodes ? "decode" : "whole";
    struct kvr_span span = {.name = "kvroute.attempt",
                            .id = a->span_id,
                            .parent = n->root,
                            .kind = KVR_SPAN_CLIENT,
                            .start_ns = unix_of(n, a->sent_ns),
                            .end_ns = unix_of(n, a->over_ns ? a->over_ns : now),
                            .event = a->first_ns ? "first_token" : NULL,
                            .event_ns = unix_of(n, a->first_ns),
                            .failed = why != NULL,
                            .why = why};
    int i = kvr_spans_add(n->spans, &span);
    put_worker(n->spans, i, a);
    kvr_spans_text(n->spans, i, "kvroute.leg", leg, strlen(leg));
    kvr_spans_text(n->spans, i, "kvroute.reason", a->reason, strlen(a->reason));
    kvr_spans_int(n->spans, i, "kvroute.overlap_blocks", a->result.overlap_blocks);
    if (a->number) kvr_spans_int(n->spans, i, "http.request.resend_count", a->number);
    if (a->connect_ns) kvr_spans_double(n->spans, i, "kvroute.connect_ms", (double)a->connect_ns / 1e6);
}

/* ---- the request ------------------------------------------------------------------------------------- */

static void put_usage(struct kvr_span_set *s, const struct request *r, const struct attempt *a)
{
    const struct kvr_usage *u = &a->usage;
    uint64_t prompt = u->present ? u->prompt_tokens : r->isl;
    if (prompt) kvr_spans_int(s, 0, "gen_ai.usage.input_tokens", prompt);
    if (u->present && u->completion_tokens) kvr_spans_int(s, 0, "gen_ai.usage.output_tokens", u->completion_tokens);
    if (u->present && u->has_cached) kvr_spans_int(s, 0, "gen_ai.usage.cache_read.input_tokens", u->cached_tokens);
}

static const char *operation(const struct request *r)
{
    return !r->routed ? NULL : r->form == KVR_FORM_COMPLETION || r->form == KVR_FORM_GENERATE ? "text_completion" : "chat";
}

/* Few different ones, as the convention wants it: a path that is passed on may be any. */
static const char *name_of(const struct request *r)
{
    static const char *const names[] = {[KVR_FORM_COMPLETION] = "POST /v1/completions",
                                        [KVR_FORM_CHAT] = "POST /v1/chat/completions",
                                        [KVR_FORM_RESPONSES] = "POST /v1/responses",
                                        [KVR_FORM_MESSAGES] = "POST /v1/messages",
                                        [KVR_FORM_GENERATE] = "POST /generate"};
    return r->routed ? names[r->form] : r->note->method;
}

void spans_root(struct request *r)
{
    struct request_note *n = r->note;
    struct kvr_span_set *s = n->spans;
    const struct attempt *a = r->attempt, *p = legs_computed(r);
    const char *op = operation(r), *method = n->method;
    s->spans[0].name = name_of(r);
    s->spans[0].end_ns = unix_of(n, kvr_now_ns(kvr_clock_monotonic()));
    s->spans[0].failed = r->status >= 500 || (n->ending && !strcmp(n->ending, ENDING_BROKEN));
    s->spans[0].why = s->spans[0].failed ? n->ending : NULL;
    kvr_spans_text(s, 0, "http.request.method", method, strlen(method));
    kvr_spans_text(s, 0, "url.path", n->path, n->path_len);
    kvr_spans_text(s, 0, "client.address", n->client, strlen(n->client));
    kvr_spans_int(s, 0, "http.response.status_code", (uint64_t)r->status);
    if (s->spans[0].failed) kvr_spans_text(s, 0, "error.type", n->ending, strlen(n->ending ? n->ending : ""));
    if (op) kvr_spans_text(s, 0, "gen_ai.operation.name", op, strlen(op));
    kvr_spans_text(s, 0, "gen_ai.request.model", r->model, strlen(r->model));
    kvr_spans_text(s, 0, "kvroute.request_id", r->id, strlen(r->id));
    kvr_spans_text(s, 0, "kvroute.ending", n->ending, strlen(n->ending ? n->ending : ""));
    kvr_spans_int(s, 0, "kvroute.attempts", r->tries + (a && a->state != ATTEMPT_FAILED));
    if (a) kvr_spans_int(s, 0, "kvroute.worker_id", a->result.worker.worker_id);
    if (!p) return;
    kvr_spans_int(s, 0, "kvroute.overlap_blocks", p->result.overlap_blocks);
    kvr_spans_text(s, 0, "kvroute.reason", p->reason, strlen(p->reason));
    put_usage(s, r, p);
}
