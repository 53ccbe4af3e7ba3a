/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that a gateway asks about: data/picker/pick.h. */
#include "app/serve/data/picker/pick.h"

#include <string.h>

#include "app/serve/data/answer/answer.h"
#include "app/serve/data/picker/endpoints.h"
#include "app/serve/data/picker/observed.h"
#include "app/serve/data/port/client_routes.h"
#include "app/serve/data/port/data_port.h"
#include "app/serve/data/request/carrier.h"
#include "app/serve/data/state/room.h"
#include "app/serve/workers/table/worker.h"
#include "base/list.h"
#include "base/log.h"
#include "net/http/hosted.h"

enum { FULL = 529 /* of the data port, when a queue is full */ };

#define COUNT_OF(p, name) atomic_fetch_add_explicit(&(p)->call.picker->loop->data->counters.name, 1, memory_order_relaxed)

/* ---- its memory -------------------------------------------------------------------------------------- */

/* The stream is gone. A request that goes on is told that its client has left. */
static void pick_free(struct pick *p)
{
    struct picker *all = p->call.picker;
    KVR_LIST_TAKE(all->picks, p);
    all->picks_n--;
    p->attempt = NULL;
    observed_leave(all, p->observed);
    if (p->conn) kvr_http_hosted_free(p->conn);
    kvr_buf_free(&p->subset);
    kvr_buf_free(&p->destination);
    kvr_buf_free(&p->early);
    kvr_buf_free(&p->pool_text);
    kvr_buf_free(&p->told);
    kvr_buf_free(&p->head);
    kvr_buf_free(&p->body);
    uv_close((uv_handle_t *)&p->lease, kvr_free_closed);
}

void picks_end(struct picker *p)
{
    while (p->picks) pick_free(p->picks);
}

static void finish(struct pick *p, enum kvr_grpc_status status, const char *why)
{
    if (p->call.stream) kvr_grpc_finish(p->call.stream, status, why);
}

static void hold(struct pick *p, size_t bytes)
{
    p->held += bytes;
    if (p->call.stream) kvr_grpc_hold(p->call.stream, bytes);
}

static void release(struct pick *p)
{
    if (p->call.stream) kvr_grpc_release(p->call.stream, p->held);
    p->held = 0;
}

/* The gateway keeps no body that it has sent here: it comes back from here, in pieces. */
static bool hands_body_back(const struct pick *p)
{
    return p->has_body && p->modes.request_body == KVR_EXT_PROC_FULL_DUPLEX_STREAMED;
}

static const struct observed_ear ear;

/* ---- the decision ------------------------------------------------------------------------------------ */

static void decided(void *ctx, struct attempt *a)
{
    struct pick *p = ctx;
    p->state = PICK_DECIDED;
    p->attempt = a;
    if (!endpoints_list(a, &p->destination)) {
        bool *told = &p->call.picker->told_of_name;
        if (!*told)
            kvr_log_warning(
                "kvroute: worker %llu (%s): its address is a name, which no gateway can be told; use addresses, or discovery dns",
                (unsigned long long)a->result.worker.worker_id, a->worker->url);
        *told = true;
        finish(p, KVR_GRPC_UNAVAILABLE, "the worker's address is a name");
        return;
    }
    answer_put_decision(a->request, &p->told);
    COUNT_OF(p, ext_proc_decisions_total);
    if (p->modes.response_body == KVR_EXT_PROC_NONE && !p->asks_to_see && !p->leaves)
        p->observed = observed_ask(p->call.picker, p, &ear, a->request->id);
    pick_say_decision(p, a);
    answer_commit(a->request);
    release(p);
    if (p->leaves && (!hands_body_back(p) || p->early_end || p->trailers)) finish(p, KVR_GRPC_OK, NULL);
}

/* Envoy obeys one such wish for a message; where it streams bodies in both directions it waits without end anyhow. */
static void waits(void *ctx, uint64_t until_ms)
{
    enum { SPARE_MS = 1000 };
    struct pick *p = ctx;
    uint64_t now = kvr_now_ms();
    if (p->waits_told || p->modes.request_body == KVR_EXT_PROC_FULL_DUPLEX_STREAMED) return;
    p->waits_told = true;
    pick_say_wait(p, (until_ms > now ? until_ms - now : 0) + SPARE_MS);
}

/* Is it of the pool, and one of the subset, by its address and port, or by its address alone? */
static bool may_use(void *ctx, const struct worker *w)
{
    const struct pick *p = ctx;
    const struct kvr_endpoint *e = &w->endpoint;
    if (p->pool && strcmp(p->pool, w->group) != 0) return false;
    if (!p->has_subset) return true;
    for (size_t at = 0; at < p->subset.len; at += strlen(p->subset.data + at) + 1) {
        const char *s = p->subset.data + at;
        if (!strcmp(s, e->authority) || !strcmp(s, e->host)) return true;
    }
    return false;
}

/* In the words of llm-d's picker. */
static void refused(void *ctx, const struct request *r)
{
    struct pick *p = ctx;
    bool waited = r->wait_deadline_ms && kvr_now_ms() >= r->wait_deadline_ms;
    int status = r->refusal.status;
    p->dropped = status == 429 || status == FULL ? "rejected-saturated"
                 : status != 503                 ? NULL
                 : waited                        ? "rejected-ttl-expired"
                                                 : "rejected-no-endpoints";
}

static const struct carrier to_any = {decided, waits, refused, NULL, 503}, to_subset = {decided, waits, refused, may_use, 503},
                            to_pool = {decided, waits, refused, may_use, 404};

/* ---- what the router answers itself -------------------------------------------------------------------- */

static void on_request(struct kvr_http_conn *c, void *ctx)
{
    struct pick *p = ctx;
    p->state = PICK_ASKED;
    if (!p->body_is_whole && kvr_http_conn_request(c)->body_len) COUNT_OF(p, ext_proc_by_load_total);
    data_port_on_carried(c, p->call.picker->loop, p->has_subset ? &to_subset : p->pool ? &to_pool : &to_any, p, p->body_is_whole);
}

static void on_start(void *ctx, int status, const char *headers, size_t headers_len)
{
    struct pick *p = ctx;
    if (p->state == PICK_DECIDED) return;
    p->status = status == FULL ? (int)p->call.picker->loop->data->o->ext_proc_full_status : status;
    kvr_buf_add(&p->head, headers, headers_len);
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct pick *p = ctx;
    if (p->state != PICK_DECIDED) kvr_buf_add(&p->body, data, len);
}

/* The request is over, for the router. After the decision that changes nothing for the gateway. */
static void on_end(void *ctx, bool whole)
{
    struct pick *p = ctx;
    p->attempt = NULL;
    if (p->state == PICK_DECIDED) return;
    p->state = PICK_REFUSED;
    COUNT_OF(p, ext_proc_refusals_total);
    release(p);
    if (whole && !p->head.failed && !p->body.failed) pick_say_refusal(p);
    finish(p, whole ? KVR_GRPC_OK : KVR_GRPC_INTERNAL, whole ? NULL : "out of memory");
}

static const struct kvr_http_outer outer = {on_request, on_start, on_body, on_end};

/* ---- the request ------------------------------------------------------------------------------------- */

static struct kvr_text text_of(struct kvr_ext_proc_text t)
{
    return (struct kvr_text){t.ptr, t.len};
}

static bool sends_body_first(int mode)
{
    return mode == KVR_EXT_PROC_BUFFERED || mode == KVR_EXT_PROC_BUFFERED_PARTIAL || mode == KVR_EXT_PROC_FULL_DUPLEX_STREAMED;
}

static bool keep_subset(struct pick *p, const struct kvr_ext_proc_message *m)
{
    p->has_subset = m->has_subset;
    for (size_t i = 0; i < m->subset_n; i++) {
        kvr_buf_add(&p->subset, m->subset[i].ptr, m->subset[i].len);
        kvr_buf_add(&p->subset, "", 1);
    }
    return !p->subset.failed;
}

static bool take_headers(struct pick *p, const struct kvr_ext_proc_message *m)
{
    for (size_t i = 0; i < m->headers_n; i++)
        if (!kvr_http_hosted_header(p->conn, text_of(m->headers[i].name), text_of(m->headers[i].value))) return false;
    return kvr_http_hosted_head_over(p->conn);
}

/* Where the gateway shows bodies of no response, or of all, it is told for which it should: those that generate. The wish replaces the
 * whole of what is configured. */
static bool wants_modes(const struct pick *p, struct kvr_ext_proc_modes *out)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(p->conn);
    *out = p->modes;
    if (!p->call.picker->loop->data->o->ext_proc_watch || p->modes.response_body == KVR_EXT_PROC_FULL_DUPLEX_STREAMED) return false;
    out->response_body = client_route_form(rq->path) ? KVR_EXT_PROC_STREAMED : KVR_EXT_PROC_NONE;
    return out->response_body != p->modes.response_body;
}

static void wait_for_body(struct pick *p)
{
    struct kvr_ext_proc_modes modes;
    p->decides = KVR_EXT_PROC_REQUEST_HEADERS;
    if (p->modes.request_body == KVR_EXT_PROC_FULL_DUPLEX_STREAMED) return;
    p->decides = KVR_EXT_PROC_REQUEST_BODY;
    if (wants_modes(p, &modes)) pick_say_modes(p, KVR_EXT_PROC_REQUEST_HEADERS, modes);
    else pick_go_on(p, KVR_EXT_PROC_REQUEST_HEADERS);
    p->asks_to_see = modes.response_body != p->modes.response_body;
}

/* That the gateway's route has named, else that of the port. */
static const char *pool_of(struct pick *p)
{
    const char *of_port = p->call.picker->loop->data->o->ext_proc_pool;
    struct kvr_text t = kvr_headers_get(kvr_grpc_metadata(p->call.stream), "x-kvroute-group");
    if (!t.ptr) return of_port;
    kvr_buf_add(&p->pool_text, t.ptr, t.len);
    kvr_buf_add(&p->pool_text, "", 1);
    return p->pool_text.failed ? "" : p->pool_text.data;
}

/* Is it a path of inference? Gateways tell it as their client wrote it, before they take a prefix away. */
static bool find_route(struct kvr_http_conn *c, const char *more)
{
    enum { PREFIX_SEGMENTS = 8 };
    struct kvr_text path = kvr_http_conn_request(c)->path;
    unsigned segments = 0;
    for (size_t at = 0; at < path.len && segments <= PREFIX_SEGMENTS; at++) {
        if (path.ptr[at] != '/') continue;
        segments++;
        if (!client_route_is_passed((struct kvr_text){path.ptr + at, path.len - at}, more)) continue;
        kvr_http_hosted_skip_prefix(c, at);
        return true;
    }
    return false;
}

static void take_head(struct pick *p, const struct kvr_ext_proc_message *m)
{
    struct picker *all = p->call.picker;
    const struct data_plane *d = all->loop->data;
    if (p->state != PICK_NEW) {
        finish(p, KVR_GRPC_INVALID_ARGUMENT, "the headers of a request came twice");
        return;
    }
    p->state = PICK_READING;
    p->decides = KVR_EXT_PROC_REQUEST_HEADERS;
    p->pool = pool_of(p);
    p->modes = m->has_modes ? m->modes : (struct kvr_ext_proc_modes){KVR_EXT_PROC_BUFFERED, KVR_EXT_PROC_NONE};
    p->conn = kvr_http_hosted_new(all->loop->server, &outer, p, kvr_grpc_peer(p->call.stream));
    if (!p->conn || !keep_subset(p, m)) {
        finish(p, KVR_GRPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    if (!take_headers(p, m)) return;
    bool passed = find_route(p->conn, d->o->pass_routes);
    p->leaves = !passed;
    p->has_body = !m->end_of_stream;
    p->body_is_whole = m->end_of_stream;
    if (!passed || m->end_of_stream || !sends_body_first(p->modes.request_body)) kvr_http_hosted_over(p->conn);
    else if (kvr_http_hosted_body_follows(p->conn)) wait_for_body(p);
}

/* Nobody has taken it yet, as the decision waits. */
static void keep_early(struct pick *p, const struct kvr_ext_proc_message *m)
{
    size_t most = p->call.picker->loop->data->o->max_body_size;
    hold(p, m->body.len);
    kvr_buf_add(&p->early, m->body.ptr, m->body.len);
    p->early_end |= m->end_of_stream;
    if (p->early.failed || p->early.len > most) finish(p, KVR_GRPC_RESOURCE_EXHAUSTED, "the body is too large to wait for a worker");
}

static void take_body(struct pick *p, const struct kvr_ext_proc_message *m)
{
    bool in_pieces = p->modes.request_body == KVR_EXT_PROC_FULL_DUPLEX_STREAMED;
    if (p->state == PICK_READING) {
        hold(p, m->body.len);
        if (!kvr_http_hosted_body(p->conn, m->body.ptr, m->body.len) || (in_pieces && !m->end_of_stream)) return;
        p->body_is_whole = m->end_of_stream || p->modes.request_body == KVR_EXT_PROC_BUFFERED;
        kvr_http_hosted_over(p->conn);
    } else if (p->state == PICK_ASKED && p->leaves && in_pieces) {
        keep_early(p, m);
    } else if (p->state == PICK_DECIDED && p->leaves && in_pieces) {
        pick_say_body(p, KVR_EXT_PROC_REQUEST_BODY, m->body.ptr, m->body.len, NULL, m->end_of_stream);
        if (m->end_of_stream) finish(p, KVR_GRPC_OK, NULL);
    } else if (p->state == PICK_DECIDED && p->decides == KVR_EXT_PROC_REQUEST_HEADERS && !in_pieces) {
        pick_go_on(p, KVR_EXT_PROC_REQUEST_BODY);
    } /* else it is one too many, which some releases of Envoy send */
}

static void take_trailers(struct pick *p)
{
    bool in_pieces = p->modes.request_body == KVR_EXT_PROC_FULL_DUPLEX_STREAMED;
    if (p->state == PICK_READING && in_pieces) {
        p->trailers = p->body_is_whole = true;
        kvr_http_hosted_over(p->conn);
    } else if (p->state == PICK_ASKED) {
        p->trailers = true;
    } else if (p->state == PICK_DECIDED) {
        pick_say_trailers(p, KVR_EXT_PROC_REQUEST_TRAILERS);
        if (p->leaves) finish(p, KVR_GRPC_OK, NULL);
    }
}

/* ---- the response ------------------------------------------------------------------------------------ */

static bool begins(struct kvr_ext_proc_text t, const char *with)
{
    size_t n = strlen(with);
    return t.len >= n && !memcmp(t.ptr, with, n);
}

/* The gateway answers for a worker that has not: it broke off, or was not there (Envoy's "Response Code Details"). */
static bool has_failed(const struct kvr_ext_proc_message *m)
{
    return begins(m->code_details, "upstream_") || begins(m->code_details, "response_timeout");
}

/* An error without an address is the gateway's own: nobody was asked. */
static bool is_foreign(struct pick *p, const struct kvr_ext_proc_message *m, int status)
{
    struct kvr_ext_proc_text from = m->upstream_address.ptr ? m->upstream_address : m->served;
    if (m->code_details.ptr && !begins(m->code_details, "via_upstream")) return true;
    if (!from.ptr) return status >= 500;
    if (endpoints_served(p->attempt, from)) return false;
    COUNT_OF(p, ext_proc_served_elsewhere_total);
    return true;
}

static int64_t length_of(const struct kvr_ext_proc_message *m)
{
    struct kvr_ext_proc_text t = kvr_ext_proc_header_get(m, "content-length");
    uint64_t v;
    return t.ptr && kvr_parse_u64(t.ptr, t.len, INT64_MAX, &v) ? (int64_t)v : -1;
}

static void hear_end(struct pick *p, bool whole)
{
    struct attempt *a = p->attempt;
    p->attempt = NULL;
    p->unseen = false;
    if (a) attempt_hear_end(a, whole);
}

static void hear_head(struct pick *p, const struct kvr_ext_proc_message *m)
{
    struct kvr_ext_proc_text t = kvr_ext_proc_header_get(m, ":status");
    struct kvr_headers headers = {0};
    uint64_t status = 0;
    (void)kvr_parse_u64(t.ptr, t.ptr ? t.len : 0, 999, &status);
    for (size_t i = 0; i < m->headers_n; i++)
        if (m->headers[i].name.len && m->headers[i].name.ptr[0] != ':' &&
            kvr_headers_add(&headers, text_of(m->headers[i].name), text_of(m->headers[i].value)))
            break; /* more than are of interest */
    attempt_hear_head(p->attempt, (int)status, &headers, length_of(m), is_foreign(p, m, (int)status));
    kvr_headers_free(&headers);
}

/* What the gateway does with a request that is not decided, or is refused, is its own answer. Two streams may tell of the same headers. */
static void hear_response(struct pick *p, const struct kvr_ext_proc_message *m)
{
    if (p->begun) return;
    p->begun = true;
    if (p->attempt && has_failed(m)) hear_end(p, false);
    if (p->attempt) hear_head(p, m);
    if (p->attempt && m->end_of_stream) hear_end(p, true);
    p->unseen = p->attempt && p->modes.response_body == KVR_EXT_PROC_NONE;
}

static void hear_body(struct pick *p, const struct kvr_ext_proc_message *m)
{
    if (p->attempt && m->body.len) attempt_hear_body(p->attempt, m->body.ptr, m->body.len);
    if (m->end_of_stream) hear_end(p, true);
}

static void hear_observer(struct pick *p, const struct kvr_ext_proc_message *m)
{
    p->is_told = true;
    uv_timer_stop(&p->lease);
    if (m->kind == KVR_EXT_PROC_RESPONSE_HEADERS) hear_response(p, m);
    else if (m->kind == KVR_EXT_PROC_RESPONSE_BODY && p->unseen) hear_body(p, m);
    else if (m->kind == KVR_EXT_PROC_RESPONSE_TRAILERS) hear_end(p, true);
}

static void take_response(struct pick *p, const struct kvr_ext_proc_message *m)
{
    hear_response(p, m);
    pick_say_response(p);
}

static void take_response_body(struct pick *p, const struct kvr_ext_proc_message *m)
{
    p->unseen = false; /* the gateway has obeyed */
    hear_body(p, m);
    if (p->modes.response_body == KVR_EXT_PROC_FULL_DUPLEX_STREAMED)
        pick_say_body(p, KVR_EXT_PROC_RESPONSE_BODY, m->body.ptr, m->body.len, NULL, m->end_of_stream);
    else pick_go_on(p, KVR_EXT_PROC_RESPONSE_BODY);
}

/* ---- messages ---------------------------------------------------------------------------------------- */

static void take(struct pick *p, const struct kvr_ext_proc_message *m)
{
    if (p->state == PICK_NEW && m->kind != KVR_EXT_PROC_REQUEST_HEADERS) {
        finish(p, KVR_GRPC_INVALID_ARGUMENT, "the first message must be of the request's headers");
        return;
    }
    switch (m->kind) {
    case KVR_EXT_PROC_REQUEST_HEADERS: take_head(p, m); break;
    case KVR_EXT_PROC_REQUEST_BODY: take_body(p, m); break;
    case KVR_EXT_PROC_REQUEST_TRAILERS: take_trailers(p); break;
    case KVR_EXT_PROC_RESPONSE_HEADERS: take_response(p, m); break;
    case KVR_EXT_PROC_RESPONSE_BODY: take_response_body(p, m); break;
    case KVR_EXT_PROC_RESPONSE_TRAILERS:
        hear_end(p, true);
        pick_say_trailers(p, KVR_EXT_PROC_RESPONSE_TRAILERS);
        break;
    case KVR_EXT_PROC_OTHER: break;
    }
}

/* The stream is another kind of call from its first message on. */
static void become_observer(struct pick *p, const uint8_t *data, size_t len)
{
    struct kvr_grpc_stream *s = p->call.stream;
    struct call *c = observer_new(p->call.picker, s);
    kvr_grpc_set_user(s, c);
    pick_free(p);
    if (c) c->service->message(c, data, len);
    else kvr_grpc_finish(s, KVR_GRPC_RESOURCE_EXHAUSTED, "out of memory");
}

static void message(struct call *c, const uint8_t *data, size_t len)
{
    struct pick *p = (struct pick *)c;
    struct kvr_ext_proc_message m;
    int rc = kvr_ext_proc_read(data, len, &m);
    if (rc) {
        finish(p, rc == -KVR_ENOMEM || rc == -KVR_ELIMIT ? KVR_GRPC_RESOURCE_EXHAUSTED : KVR_GRPC_INTERNAL,
               rc == -KVR_EFORMAT ? "malformed message" : kvr_strerror(rc));
        return;
    }
    if (p->state == PICK_NEW && m.observability) become_observer(p, data, len);
    else take(p, &m);
    kvr_ext_proc_free(&m);
}

/* Does another stream tell the end of the response? */
static bool is_observed(const struct pick *p)
{
    return p->attempt && p->begun && observed_has_observer(p->call.picker, p->observed);
}

/* The gateway has nothing more to tell on this stream. */
static void half_closed(struct call *c)
{
    struct pick *p = (struct pick *)c;
    if (p->unseen && p->modes.request_body != KVR_EXT_PROC_FULL_DUPLEX_STREAMED && !is_observed(p)) hear_end(p, true);
    finish(p, KVR_GRPC_OK, NULL);
}

static void on_lease_over(uv_timer_t *t)
{
    struct pick *p = t->data;
    if (COUNT_OF(p, ext_proc_unseen_total) == 0)
        kvr_log_warning(
            "kvroute: the gateway does not tell the end of responses (FULL_DUPLEX_STREAMED without response bodies): each is taken to "
            "take --ext-proc-unseen-secs (%g)",
            p->call.picker->loop->data->o->ext_proc_unseen_secs);
    hear_end(p, true);
    pick_free(p);
}

/* Its stream is gone, and nobody observes. */
static void wait_or_end(struct pick *p)
{
    if (p->unseen && p->modes.request_body == KVR_EXT_PROC_FULL_DUPLEX_STREAMED) {
        uv_timer_start(&p->lease, on_lease_over, (uint64_t)(p->call.picker->loop->data->o->ext_proc_unseen_secs * 1000), 0);
        return;
    }
    if (p->unseen) hear_end(p, true);
    pick_free(p);
}

static void gone(struct call *c)
{
    struct pick *p = (struct pick *)c;
    p->held = 0;
    if (!is_observed(p)) wait_or_end(p);
}

/* One that has told of the response and not of its end has seen it broken off, or its client leave. */
static void hear_observer_over(struct pick *p)
{
    observed_leave(p->call.picker, p->observed);
    p->observed = NULL;
    if (p->call.stream) return;
    if (p->is_told) pick_free(p);
    else wait_or_end(p);
}

static const struct observed_ear ear = {hear_observer, hear_observer_over};
static const struct call_service service = {message, half_closed, gone};

struct call *pick_new(struct picker *all, struct kvr_grpc_stream *s)
{
    struct pick *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->call = (struct call){&service, s, all};
    KVR_LIST_PUSH(all->picks, p);
    all->picks_n++;
    uv_timer_init(&all->loop->uv, &p->lease);
    p->lease.data = p;
    return &p->call;
}
