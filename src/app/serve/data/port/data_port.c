/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes in by the data port: paths that the router answers itself, those of requests that go to a worker, and what the head of such
 * a request says of it. The rest of its way is flow.c's.
 */
#include "app/serve/data/port/data_port.h"

#include <string.h>

#include "app/serve/config/models_config.h"
#include "app/serve/config/models_file.h"
#include "app/serve/data/port/client_routes.h"
#include "app/serve/data/port/flow.h"
#include "app/serve/data/port/ready.h"
#include "app/serve/data/request/admission.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/cors.h"
#include "app/serve/data/request/hints.h"
#include "app/serve/data/request/reply.h"
#include "app/serve/data/request/telemetry.h"
#include "app/serve/workers/engines/models.h"

extern const char openapi_data[]; /* openapi.yaml */

/* ---- what the head says ------------------------------------------------------------------------------ */

static bool is_safe_id(struct kvr_text t)
{
    for (size_t i = 0; i < t.len; i++)
        if ((unsigned char)t.ptr[i] < 0x21 || (unsigned char)t.ptr[i] > 0x7e) return false;
    return t.len > 0 && t.len < ID_MAX;
}

static void take_request_id(struct request *r, const struct kvr_http_request *head)
{
    struct kvr_text t = kvr_headers_get(head->headers, "x-request-id");
    struct data_plane *data = data_of(r);
    if (t.ptr && is_safe_id(t)) {
        memcpy(r->id, t.ptr, t.len);
    } else {
        memcpy(r->id, "kvr-", 4);
        (void)kvr_put_hex(r->id + 4, kvr_mix64(data->process->salt + atomic_fetch_add(&data->process->next_id, 1)), 16);
    }
}

/* Who takes it to its worker; zeroes: the router. */
struct carriage {
    const struct carrier *carrier;
    void *ctx;
    bool body_cut;
};

/* form: of what is routed by its prompt; NULL: it is not. Takes the note. */
static void begin(struct loop *l, struct kvr_http_conn *c, const enum kvr_prompt_form *form, struct carriage by, struct telemetry **note)
{
    const struct kvr_http_request *head = kvr_http_conn_request(c);
    struct request *r = request_new(l, c);
    if (!r) {
        reply_error(c, 503, "out of memory", NULL);
        return;
    }
    r->carrier = by.carrier;
    r->carrier_ctx = by.ctx;
    r->body_cut = by.body_cut;
    telemetry_take(r, *note);
    *note = NULL;
    COUNT(r, requests_total);
    kvr_http_conn_set_user(c, r);
    take_request_id(r, head);
    r->routed = form != NULL;
    if (form) r->form = *form;
    struct kvr_text response = responses_id_in(head->path);
    r->is_head_request = head->is_head;
    r->deletes = kvr_text_is(head->method, "DELETE");
    r->total_deadline_ms = request_after(r, data_of(r)->o->total_timeout);
    bool may = admission_begin(r, head) == OUTCOME_DONE;
    if (!r->admission.ring || r->admission.key) telemetry_known(r);
    if (!may) {
        flow_end_refused(r);
        return;
    }
    if (head->body_unread) { /* it would be wanted now, after keys were read again */
        admission_refuse_unread(r, head);
        flow_end_refused(r);
        return;
    }
    bool kept = request_keep_text(&r->response, response.ptr, response.len);
    const char *why = kept ? hints_read(r, head->headers) : hints_no_memory;
    if (why) {
        flow_refuse(r, why == hints_no_memory ? 503 : 400, why);
        return;
    }
    r->body = kvr_http_conn_take_body(c);
    r->body_len = r->body ? r->body->len : 0;
    flow_begin(r);
}

/* ---- what becomes of its connection ------------------------------------------------------------------ */

void data_port_on_gone(struct kvr_http_conn *c, void *)
{
    struct request *r = kvr_http_conn_user(c);
    if (r) request_step(r, OUTCOME_GONE);
}

void data_port_on_drained(struct kvr_http_conn *c, void *)
{
    struct request *r = kvr_http_conn_user(c);
    if (r && r->attempt) attempt_resume(r->attempt);
}

/* ---- paths ------------------------------------------------------------------------------------------- */

/* Names of --models-file for other models, with the heaviest of their targets. NULL: none, or no memory for them. */
static struct model_alias *aliases_of(const struct models_file *f, size_t *count)
{
    struct model_alias *list = f && f->n ? calloc(f->n, sizeof *list) : NULL;
    *count = 0;
    for (size_t i = 0; list && i < f->n; i++) {
        const struct model_rule *rule = &f->rules[i];
        const struct model_target *most = rule->targets;
        for (size_t k = 1; k < rule->targets_n; k++)
            if (rule->targets[k].weight > most->weight) most = &rule->targets[k];
        if (rule->targets_n) list[(*count)++] = (struct model_alias){rule->model, most->model};
    }
    return list;
}

/* GET /v1/models/{id}; the id may have slashes of its own. */
static void model_answer(struct loop *l, struct kvr_http_conn *c, struct kvr_text id)
{
    char name[MODEL_MAX] = "", text[MODEL_MAX + 32];
    struct kvr_buf b = {0};
    struct admission_look look;
    size_t n;
    if (!admission_look(l->data, c, &look)) return;
    const struct models_file *f = models_config_hold(l->data->config);
    struct model_alias *aliases = aliases_of(f, &n);
    if (kvr_path_decode(id, name, sizeof name) && admission_shows(&look, name) &&
        models_write_one(l->data->workers, &b, name, aliases, n)) {
        kvr_http_reply_buf(c, 200, "application/json", NULL, &b);
    } else {
        snprintf(text, sizeof text, "the model '%s' does not exist", name);
        reply_error(c, 404, text, NULL);
    }
    kvr_buf_free(&b);
    free(aliases);
    models_config_let_go(f);
    admission_look_end(&look);
}

static void models_answer(struct loop *l, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    struct admission_look look;
    size_t n;
    if (!admission_look(l->data, c, &look)) return;
    const struct models_file *f = models_config_hold(l->data->config);
    struct model_alias *aliases = aliases_of(f, &n);
    models_write(l->data->workers, &b, (struct models_seen){admission_shows, &look}, aliases, n);
    kvr_http_reply_buf(c, 200, "application/json", NULL, &b);
    kvr_buf_free(&b);
    free(aliases);
    models_config_let_go(f);
    admission_look_end(&look);
}

static void local_answer(struct loop *l, struct kvr_http_conn *c, int what)
{
    const char *why = "";
    if (what == 0) {
        models_answer(l, c);
    } else if (what == 1 && process_is_ending(l->data->process)) {
        reply_error(c, 503, "shutting down", NULL);
    } else if (what == 1) {
        kvr_http_reply(c, 200, "application/json", NULL, "{\"status\":\"ok\"}", 15);
    } else if (what == 3) {
        kvr_http_reply(c, 200, "application/json", NULL, openapi_data, strlen(openapi_data));
    } else if (data_plane_ready(l->data, &why)) {
        kvr_http_reply(c, 200, "application/json", NULL, "{\"status\":\"ready\"}", 18);
    } else {
        reply_error(c, 503, why, NULL);
    }
}

/* What the router answers itself has no use for a body. */
void data_port_body_room(struct kvr_http_conn *c, void *ctx, struct kvr_http_room *room)
{
    enum { THROWN_AWAY = 64 * 1024 };
    const struct loop *l = ctx;
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    const char *more = l->data->o->pass_routes;
    bool used = client_route_is_passed(rq->path, more) && !client_route_allows(rq->path, rq->method, more);
    if (!used) room->bytes = KVR_MIN(room->bytes, (size_t)THROWN_AWAY);
    admission_body_room(l->data, rq->headers, room);
}

void data_port_on_refused(struct kvr_http_conn *c, int status, void *ctx)
{
    const struct loop *l = ctx;
    if (status == 429) admission_count_unfinished(l->data, kvr_http_conn_request(c));
    telemetry_refused(c, status, ctx);
}

/* An upgrade may be left out (RFC 9110, 7.8), but the client of this one has no use for what it would get. */
static bool wants_websocket(const struct kvr_http_request *rq)
{
    return kvr_text_is(rq->method, "GET") && kvr_text_is_nocase(kvr_headers_get(rq->headers, "upgrade"), "websocket");
}

static void method_refused(struct kvr_http_conn *c, const char *allowed)
{
    char text[64], head[64];
    struct kvr_buf b = {0};
    snprintf(text, sizeof text, "method not allowed; use %s", allowed);
    snprintf(head, sizeof head, "Allow: %s\r\n", allowed);
    reply_error_body(&b, 405, text);
    kvr_http_reply_buf(c, 405, "application/json", head, &b);
    kvr_buf_free(&b);
}

static void answer(struct loop *l, struct kvr_http_conn *c, struct telemetry **note)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    bool get = kvr_text_is(rq->method, "GET");
    if (cors_preflight(l->data->o, c)) return;
    if (wants_websocket(rq)) {
        reply_error(c, 501, "WebSocket connections (/v1/realtime) are not supported; connect to the engine itself", NULL);
        return;
    }
    static const char *const local[] = {"/v1/models", "/health", "/ready", "/openapi.json"};
    for (int i = 0; i < 4; i++)
        if (kvr_text_is(rq->path, local[i])) {
            if (get) local_answer(l, c, i);
            else method_refused(c, "GET, HEAD");
            return;
        }
    static const char models[] = "/v1/models/";
    bool of_model = rq->path.len > sizeof models - 1 && memcmp(rq->path.ptr, models, sizeof models - 1) == 0;
    if (get && of_model) {
        model_answer(l, c, (struct kvr_text){rq->path.ptr + sizeof models - 1, rq->path.len - (sizeof models - 1)});
    } else if (client_route_is_passed(rq->path, l->data->o->pass_routes)) {
        const char *allowed = client_route_allows(rq->path, rq->method, l->data->o->pass_routes);
        if (allowed) method_refused(c, allowed);
        else begin(l, c, client_route_form(rq->path), (struct carriage){0}, note);
    } else if (of_model) {
        method_refused(c, "GET, HEAD");
    } else {
        reply_error(c, 404, "unknown path; inference routes are passed to engines, others by --pass-routes", NULL);
    }
}

void data_port_put_headers(struct kvr_http_conn *c, struct kvr_buf *head, void *ctx)
{
    const struct loop *l = ctx;
    cors_put_headers(l->data->o, c, head);
}

void data_port_on_carried(struct kvr_http_conn *c, struct loop *l, const struct carrier *carrier, void *ctx, bool whole)
{
    struct telemetry *note = telemetry_begin(l, c);
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    bool cut = !whole && rq->body_len;
    if (cut) kvr_http_conn_drop_body(c);
    const enum kvr_prompt_form *form = rq->body_len || rq->body_unread ? client_route_form(rq->path) : NULL;
    begin(l, c, form, (struct carriage){carrier, ctx, cut}, &note);
    telemetry_local(l, note, 0);
}

/* The note is still here when the router has answered by itself. */
void data_port_on_request(struct kvr_http_conn *c, void *ctx)
{
    struct loop *l = ctx;
    struct telemetry *note = telemetry_begin(l, c);
    answer(l, c, &note);
    telemetry_local(l, note, 0);
}
