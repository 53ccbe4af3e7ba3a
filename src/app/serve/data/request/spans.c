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

#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/telemetry.h"

void spans_begin(struct telemetry *n)
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

uint64_t spans_unix_ns(const struct telemetry *n, uint64_t monotonic_ns)
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
    struct telemetry *n = r->telemetry;
    bool waited = r->phase == PHASE_CHOOSING && r->now->choosing.queued;
    if (!names[r->phase]) return; /* an attempt's */
    struct kvr_span span = {.name = waited ? "kvroute.queue" : names[r->phase],
                            .parent = n->root,
                            .kind = KVR_SPAN_INTERNAL,
                            .start_ns = spans_unix_ns(n, from_ns),
                            .end_ns = spans_unix_ns(n, to_ns)};
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
    struct telemetry *n = a->request->telemetry;
    if (!n || !n->spans || !a->span_id || !a->sent_ns || !a->worker) return;
    uint64_t now = kvr_monotonic_ns();
    const char *why = outcome_of(a), *leg = a->prefills ? "prefill" : a->decodes ? "decode" : "whole";
    struct kvr_span span = {.name = "kvroute.attempt",
                            .id = a->span_id,
                            .parent = n->root,
                            .kind = KVR_SPAN_CLIENT,
                            .start_ns = spans_unix_ns(n, a->sent_ns),
                            .end_ns = spans_unix_ns(n, a->over_ns ? a->over_ns : now),
                            .event = a->first_ns ? "first_token" : NULL,
                            .event_ns = spans_unix_ns(n, a->first_ns),
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
