/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of what was noted of a request (request/telemetry.h): its line in the access log (access_line.c), the span of the request as a
 * whole, and the spans leave for the collector. It is here, above telemetry.c, as it tells of legs and of what account.c has counted.
 * Threads: the request's loop.
 */
#include <string.h>

#include "app/serve/data/answer/account.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/data/request/telemetry.h"
#include "net/otlp/otlp.h"

/* ---- the span of the request ------------------------------------------------------------------------- */

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
    return r->routed ? names[r->form] : r->telemetry->method;
}

static void put_root(struct request *r)
{
    struct telemetry *n = r->telemetry;
    struct kvr_span_set *s = n->spans;
    const struct attempt *a = r->attempt, *p = legs_computed(r);
    const char *op = operation(r), *method = n->method;
    char tiers[ACCOUNT_TIERS_MAX];
    s->spans[0].name = name_of(r);
    s->spans[0].end_ns = spans_unix_ns(n, kvr_monotonic_ns());
    s->spans[0].failed = r->status >= 500 || (n->ending && !strcmp(n->ending, ENDING_BROKEN));
    s->spans[0].why = s->spans[0].failed ? n->ending : NULL;
    kvr_spans_text(s, 0, "http.request.method", method, strlen(method));
    kvr_spans_text(s, 0, "url.path", n->path, n->path_len);
    kvr_spans_text(s, 0, "client.address", n->client, strlen(n->client));
    kvr_spans_int(s, 0, "http.response.status_code", (uint64_t)r->status);
    if (s->spans[0].failed) kvr_spans_text(s, 0, "error.type", n->ending, strlen(n->ending ? n->ending : ""));
    if (op) kvr_spans_text(s, 0, "gen_ai.operation.name", op, strlen(op));
    kvr_spans_text(s, 0, "gen_ai.request.model", request_asked_model(r), strlen(request_asked_model(r)));
    kvr_spans_text(s, 0, "kvroute.request_id", r->id, strlen(r->id));
    kvr_spans_text(s, 0, "kvroute.ending", n->ending, strlen(n->ending ? n->ending : ""));
    kvr_spans_int(s, 0, "kvroute.attempts", r->tries + (a && a->state != ATTEMPT_FAILED));
    if (a) kvr_spans_int(s, 0, "kvroute.worker_id", a->result.worker.worker_id);
    if (!p) return;
    kvr_spans_int(s, 0, "kvroute.overlap_blocks", p->result.overlap_blocks);
    size_t tiers_n = account_tiers(p, tiers);
    if (tiers_n) kvr_spans_text(s, 0, "kvroute.overlap_tiers", tiers, tiers_n);
    kvr_spans_text(s, 0, "kvroute.reason", p->reason, strlen(p->reason));
    put_usage(s, r, p);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void telemetry_free(struct telemetry *n)
{
    kvr_spans_free(n->spans);
    free(n);
}

void telemetry_local(struct loop *l, struct telemetry *n, int status)
{
    if (!n) return;
    if (status) n->ending = ENDING_MALFORMED;
    else n->ending = n->told.status < 400 ? ENDING_OK : ENDING_REFUSED;
    if (!status) status = n->told.status;
    if (access_wanted(l, n, status)) access_write(l, n, NULL, status);
    telemetry_free(n); /* no spans: the router itself has answered */
}

/* Its answer is still to come, so nothing of that is told. */
void telemetry_refused(struct kvr_http_conn *c, int status, void *loop)
{
    struct loop *l = loop;
    if (!l->data->access_log) return;
    struct telemetry *n = telemetry_begin(l, c);
    kvr_http_conn_tell(c, NULL);
    telemetry_local(l, n, status);
}

void telemetry_tell(struct request *r)
{
    struct telemetry *n = r->telemetry;
    if (!n) return;
    telemetry_phase(r);
    if (access_wanted(r->loop, n, r->status)) access_write(r->loop, n, r, r->status);
    if (n->spans) put_root(r);
}

void telemetry_end(struct request *r)
{
    struct telemetry *n = r->telemetry;
    if (!n) return;
    r->telemetry = NULL;
    if (n->spans) kvr_otlp_give(data_of(r)->otlp, n->spans);
    n->spans = NULL;
    telemetry_free(n);
}
