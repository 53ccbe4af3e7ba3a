/* SPDX-License-Identifier: Apache-2.0 */
/* What is noted of a request on its way, and its trace context: data/request/telemetry.h. The end is answer/telemetry_end.c. */
#include "app/serve/data/request/telemetry.h"

#include <string.h>

#include "app/serve/data/request/attempt.h"

/* ---- trace context ----------------------------------------------------------------------------------- */

static uint64_t draw(struct loop *l)
{
    uint64_t v;
    do v = kvr_rng_next(&l->ids);
    while (!v);
    return v;
}

/* A header that is there twice is none. */
static struct kvr_text one_of(const struct kvr_headers *h, const char *name)
{
    struct kvr_text found = {0};
    for (size_t i = 0; i < h->n; i++) {
        if (!kvr_text_is_nocase(kvr_headers_name(h, i), name)) continue;
        if (found.ptr) return (struct kvr_text){0};
        found = kvr_headers_value(h, i);
    }
    return found;
}

/* It may come in several headers, which are one list together. */
static bool has_good_state(const struct kvr_headers *h)
{
    int n = 0;
    for (size_t i = 0; i < h->n; i++) {
        if (!kvr_text_is_nocase(kvr_headers_name(h, i), "tracestate")) continue;
        struct kvr_text v = kvr_headers_value(h, i);
        int k = kvr_tracestate_members(v.ptr, v.len);
        if (k < 0) return false;
        n += k;
    }
    return n > 0 && n <= KVR_TRACESTATE_MEMBERS_MAX;
}

/* The share of traces that begin here and are kept, by their id. */
static bool is_sampled(const struct data_plane *data, uint64_t drawn)
{
    return (double)(drawn >> 11) * 0x1.0p-53 < data->o->trace_sample;
}

static void begin_root(struct loop *l, struct telemetry *n)
{
    uint64_t halves[2] = {draw(l), draw(l)};
    n->trace = (struct kvr_trace_context){.flags = is_sampled(l->data, halves[1]) ? KVR_TRACE_SAMPLED : 0};
    memcpy(n->trace.trace, halves, sizeof n->trace.trace);
    n->has_trace = true;
}

static void read_trace(struct telemetry *n, const struct kvr_headers *h)
{
    struct kvr_text t = h ? one_of(h, "traceparent") : (struct kvr_text){0};
    n->has_trace = t.ptr && kvr_traceparent_read(t.ptr, t.len, &n->trace);
    n->has_state = n->has_trace && has_good_state(h);
    n->trace.flags &= KVR_TRACE_SAMPLED;
}

void telemetry_take(struct request *r, struct telemetry *n)
{
    struct loop *l = r->loop;
    r->telemetry = n;
    if (!n || !l->data->otlp) return; /* without traces the client's trace id is for the log only */
    if (!n->has_trace) begin_root(l, n);
    n->root = draw(l);
}

void telemetry_known(struct request *r)
{
    struct telemetry *n = r->telemetry;
    if (n && r->loop->data->otlp && n->trace.flags & KVR_TRACE_SAMPLED) spans_begin(n);
}

bool telemetry_is_trace_header(const struct request *r, struct kvr_text name)
{
    const struct telemetry *n = r->telemetry;
    if (!n || !data_of(r)->otlp) return false;
    return kvr_text_is_nocase(name, "traceparent") || (!n->has_state && kvr_text_is_nocase(name, "tracestate"));
}

/* A trace that is not kept goes on with the span that its client named, as there is none of ours. */
void telemetry_put_trace(const struct attempt *a, struct kvr_buf *head)
{
    const struct telemetry *n = a->request->telemetry;
    char text[KVR_TRACEPARENT_LEN + 1];
    if (!n || !data_of(a->request)->otlp) return;
    struct kvr_trace_context c = n->trace;
    if (a->span_id) c.parent = a->span_id;
    else if (!c.parent) c.parent = n->root;
    kvr_traceparent_write(&c, text);
    kvr_header_put_str(head, "traceparent", text);
}

uint64_t telemetry_span_id(const struct request *r)
{
    return r->telemetry && r->telemetry->spans ? draw(r->loop) : 0;
}

/* ---- from arrival to end ----------------------------------------------------------------------------- */

struct telemetry *telemetry_begin(struct loop *l, struct kvr_http_conn *c)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    if (!l->data->access_log && !l->data->otlp) return NULL;
    size_t len = KVR_MIN(rq->path.len, (size_t)TELEMETRY_PATH_MAX);
    struct telemetry *n = calloc(1, sizeof *n + len + 1);
    if (!n) return NULL;
    n->began_ns = n->at_ns = kvr_monotonic_ns();
    n->method = rq->is_head ? "HEAD" : rq->method.ptr ? rq->method.ptr : ""; /* static: the server takes it from a table */
    n->minor = (unsigned)rq->minor;
    n->bytes_in = rq->body_len;
    n->path_len = len;
    if (len) memcpy(n->path, rq->path.ptr, len);
    memcpy(n->client, kvr_http_conn_peer(c), sizeof n->client);
    read_trace(n, rq->headers);
    kvr_http_conn_tell(c, &n->told);
    return n;
}

void telemetry_phase(struct request *r)
{
    struct telemetry *n = r->telemetry;
    if (!n) return;
    uint64_t now = kvr_monotonic_ns();
    n->phase_ns[r->phase] += now - n->at_ns;
    if (n->spans) spans_phase(r, n->at_ns, now);
    n->at_ns = now;
}

void telemetry_timeout(struct request *r, bool total)
{
    static const char *const names[PHASES_N] = {
        [PHASE_READING] = "timeout_total",   [PHASE_TOKENS] = "timeout_total",       [PHASE_LOOKUP] = "timeout_total",
        [PHASE_CHOOSING] = "timeout_queue",  [PHASE_PARKED] = "timeout_queue",       [PHASE_PREFILL] = "timeout_prefill",
        [PHASE_PAIRING] = "timeout_handoff", [PHASE_RENDEZVOUS] = "timeout_handoff", [PHASE_SENDING] = "timeout_first_token",
        [PHASE_RELAYING] = "timeout_stall",
    };
    if (r->telemetry) r->telemetry->timeout = total ? "timeout_total" : names[r->phase];
}

void telemetry_ending(struct request *r, const char *ending)
{
    struct telemetry *n = r->telemetry;
    if (!n || n->ending) return;
    bool by_time = n->timeout && strcmp(ending, ENDING_OK) != 0 && strcmp(ending, ENDING_CLIENT_GONE) != 0;
    n->ending = by_time ? n->timeout : ending;
}
