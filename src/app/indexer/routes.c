/* SPDX-License-Identifier: Apache-2.0 */
/* Routes of the indexer: which caller may use them, and what a body must have. */
#include "app/indexer/state.h"

#include <string.h>

#include "net/http/produce.h"
#include "token/tokenizer.h"
#include "wire/prompt_question.h"

extern const char openapi_indexer[]; /* openapi.yaml */

/* ---- bodies --------------------------------------------------------------------------------------------------- */

/* 1 there, 0 absent or null, -1 answered. */
static int number(struct request *rq, struct kvr_json o, const char *key, bool required, uint64_t max, uint64_t *out)
{
    struct kvr_json v = kvr_json_get(o, key);
    if (!kvr_json_is_given(v)) {
        if (!required) return 0;
        answer_error(rq, 422, "missing field `%s`", key);
        return -1;
    }
    if (kvr_json_as_u64(v, out) && *out <= max) return 1;
    answer_error(rq, 422, "field `%s` must be an integer from 0 to %llu", key, (unsigned long long)max);
    return -1;
}

static void post_register(struct request *rq, struct kvr_json o)
{
    struct registration r = {0};
    uint64_t rank = 0, bs = 0, chunk = 0;
    char err[1024], unused[NAME_MAX_LEN + 1];
    int replay = 0;
    if (number(rq, o, "instance_id", true, UINT64_MAX, &r.instance_id) < 0 ||
        body_text(rq, o, "endpoint", true, r.endpoint, sizeof r.endpoint) < 0 ||
        body_text(rq, o, "model_name", true, r.model, sizeof r.model) < 0 || number(rq, o, "block_size", true, UINT32_MAX, &bs) < 0 ||
        number(rq, o, "dp_rank", false, UINT32_MAX, &rank) < 0 ||
        (replay = body_text(rq, o, "replay_endpoint", false, r.replay, sizeof r.replay)) < 0 ||
        body_text(rq, o, "recover_endpoint", false, r.recover, sizeof r.recover) < 0 ||
        body_text(rq, o, "kv_pool", false, r.tiers.pool, sizeof r.tiers.pool) < 0 ||
        number(rq, o, "kv_offload_chunk", false, OFFLOAD_CHUNK_MAX, &chunk) < 0 ||
        body_text(rq, o, "additional_salt", false, unused, sizeof unused) < 0)
        return;
    if (replay > 0 && !r.replay[0]) {
        answer_error(rq, 400, "invalid replay endpoint ``: expected tcp://host:port, ipc://path or inproc://name");
        return;
    }
    if (body_group(rq, o, r.group, sizeof r.group) < 0) return;
    snprintf(rq->model, sizeof rq->model, "%.63s", r.model);
    if (bs == 0 || bs > 65536) {
        answer_error(rq, 400, "block_size must be from 1 to 65536");
        return;
    }
    if (r.recover[0]) {
        struct kvr_endpoint e;
        if (kvr_endpoint_parse_any(r.recover, strlen(r.recover), &e)) {
            answer_error(rq, 400, "invalid recover endpoint `%s`: expected http:// or https://host[:port][/path]", r.recover);
            return;
        }
    }
    r.dp_rank = (uint32_t)rank;
    r.block_size = (uint32_t)bs;
    r.tiers.chunk = (uint32_t)chunk;
    int status = catalogue_register(rq->loop->indexer, &r, err, sizeof err);
    if (status) answer_error(rq, status, "%s", err);
    else answer_ok(rq, 201);
}

static void post_unregister(struct request *rq, struct kvr_json o)
{
    char model[NAME_MAX_LEN + 1], group[NAME_MAX_LEN + 1], err[1024];
    uint64_t id, rank;
    if (number(rq, o, "instance_id", true, UINT64_MAX, &id) < 0 || body_text(rq, o, "model_name", true, model, sizeof model) < 0) return;
    int has_group = body_group(rq, o, group, sizeof group),
        has_rank = has_group < 0 ? -1 : number(rq, o, "dp_rank", false, UINT32_MAX, &rank);
    if (has_rank < 0) return;
    snprintf(rq->model, sizeof rq->model, "%.63s", model);
    uint32_t r = has_rank ? (uint32_t)rank : 0;
    int status = catalogue_unregister(rq->loop->indexer, id, model, has_group ? group : NULL, has_rank ? &r : NULL, err, sizeof err);
    if (status) answer_error(rq, status, "%s", err);
    else answer_ok(rq, 200);
}

static void post_pause(struct request *rq, struct kvr_json o)
{
    bool pause = rq->at == AT_PAUSE;
    uint64_t id, rank = 0;
    char err[256];
    if (number(rq, o, "instance_id", true, UINT64_MAX, &id) < 0 || number(rq, o, "dp_rank", false, UINT32_MAX, &rank) < 0) return;
    int status = catalogue_pause(rq->loop->indexer, id, (uint32_t)rank, pause, err, sizeof err);
    if (status) answer_error(rq, status, "%s", err);
    else answer_ok(rq, 200);
}

static void post_peer(struct request *rq, struct kvr_json o)
{
    bool add = rq->at == AT_REGISTER_PEER;
    char url[NAME_MAX_LEN + 1];
    struct kvr_endpoint e;
    if (body_text(rq, o, "url", true, url, sizeof url) < 0) return;
    if (!add) {
        if (catalogue_drop_peer(rq->loop->indexer, url, strlen(url))) answer_ok(rq, 200);
        else answer_error(rq, 404, "peer not found");
    } else if (kvr_endpoint_parse_any(url, strlen(url), &e)) {
        answer_error(rq, 400, "invalid peer url `%s`: expected http:// or https://host[:port]", url);
    } else if (!catalogue_add_peer(rq->loop->indexer, url, strlen(url), false)) {
        answer_error(rq, 409, "no room for another peer; at most %d", PEERS_MAX);
    } else {
        answer_ok(rq, 201);
    }
}

/* ---- questions without a body ------------------------------------------------------------------------------------ */

static void get_health(struct request *rq)
{
    if (atomic_load(&rq->loop->indexer->phase) == KVR_SERVING) answer_empty(rq, 200);
    else answer_error(rq, 503, "shutting down");
}

static void get_ready(struct request *rq)
{
    struct indexer *x = rq->loop->indexer;
    char why[sizeof x->why] = "shutting down";
    bool ends = atomic_load(&x->phase) != KVR_SERVING;
    if (!ends && atomic_load(&x->ready)) {
        answer_ok(rq, 200);
        return;
    }
    if (!ends) {
        kvr_lock(&x->lock);
        memcpy(why, x->why, sizeof why);
        kvr_unlock(&x->lock);
    }
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'status':%s,'error':%s}", ends ? "ending" : "recovering", why);
    answer_buf(rq, 503, JSON_TYPE, &b);
}

static void get_workers(struct request *rq)
{
    struct kvr_text q = kvr_http_conn_request(rq->conn)->query;
    struct kvr_buf b = {0};
    char model[NAME_MAX_LEN + 1], group[NAME_MAX_LEN + 1];
    bool by_model = kvr_query_parameter(q, "model_name", model, sizeof model),
         by_group = kvr_query_parameter(q, "routing_group", group, sizeof group);
    if (!by_group && rq->loop->indexer->o->tenant_as_group) by_group = kvr_query_parameter(q, "tenant_id", group, sizeof group);
    catalogue_workers_write(rq->loop->indexer, by_model ? model : NULL, by_group ? group : NULL, &b);
    answer_buf(rq, 200, JSON_TYPE, &b);
}

static void get_peers(struct request *rq)
{
    struct indexer *x = rq->loop->indexer;
    struct kvr_buf b = {0};
    kvr_json_open(&b, '[');
    kvr_lock(&x->lock);
    for (size_t i = 0; i < x->peers_n; i++) kvr_json_printf(&b, "%s", x->peers[i].url);
    kvr_unlock(&x->lock);
    kvr_json_close(&b, ']');
    answer_buf(rq, 200, JSON_TYPE, &b);
}

static void get_metrics(struct request *rq)
{
    struct kvr_buf b = {0};
    telemetry_write(rq->loop->indexer, &b);
    answer_buf(rq, 200, "text/plain; version=0.0.4", &b);
}

static void get_openapi(struct request *rq)
{
    struct kvr_buf b = {0};
    kvr_buf_str(&b, openapi_indexer);
    answer_buf(rq, 200, JSON_TYPE, &b);
}

static void post_validate(struct request *rq)
{
    size_t n;
    struct partition **list = catalogue_list(rq->loop->indexer, &n);
    const char *why = NULL;
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        ok = ok && kvr_index_validate(list[i]->index, &why);
        partition_unref(list[i]);
    }
    free(list);
    if (ok) answer_ok(rq, 200);
    else answer_error(rq, 500, "%s", why);
}

static void post_reopen(struct request *rq)
{
    kvr_line_log_reopen(rq->loop->indexer->telemetry.log);
    answer_ok(rq, 200);
}

/* ---- who may, and where to ---------------------------------------------------------------------------------------- */

static void read_large(struct request *rq);

/* The tokens of a text that is not short are made on a thread. */
static void post_query(struct request *rq, struct kvr_json o)
{
    const struct kvr_http_request *hr = kvr_http_conn_request(rq->conn);
    struct text_tokens text;
    if (!kvr_prompt_is_text(o)) {
        query_by_tokens(rq, o);
    } else if (hr->body_len > KVR_TOKENIZER_INLINE) {
        read_large(rq);
    } else {
        text_make(rq->loop->indexer, o, hr->body, hr->body_len, &text);
        query_by_text(rq, o, &text);
        kvr_ids_unref(text.ids);
    }
}

/* With `get` a GET, else a POST; what `with_json` is for has a body. */
static const struct {
    const char *path;
    bool get;
    void (*bare)(struct request *rq);
    void (*with_json)(struct request *rq, struct kvr_json o);
} routes[ENDPOINTS] = {
    [AT_HEALTH] = {"/health", true, get_health, NULL},
    [AT_READY] = {"/ready", true, get_ready, NULL},
    [AT_METRICS] = {"/metrics", true, get_metrics, NULL},
    [AT_OPENAPI] = {"/openapi.json", true, get_openapi, NULL},
    [AT_REGISTER] = {"/register", false, NULL, post_register},
    [AT_UNREGISTER] = {"/unregister", false, NULL, post_unregister},
    [AT_WORKERS] = {"/workers", true, get_workers, NULL},
    [AT_QUERY] = {"/query", false, NULL, post_query},
    [AT_QUERY_BY_HASH] = {"/query_by_hash", false, NULL, query_by_hash},
    [AT_DUMP] = {"/dump", true, dump_start, NULL},
    [AT_SERVICE_QUERY] = {"/kv_indexer_query", false, NULL, query_service},
    [AT_SERVICE_INFO] = {"/kv_indexer_info", false, NULL, query_service_info},
    [AT_REGISTER_PEER] = {"/register_peer", false, NULL, post_peer},
    [AT_DEREGISTER_PEER] = {"/deregister_peer", false, NULL, post_peer},
    [AT_PEERS] = {"/peers", true, get_peers, NULL},
    [AT_REOPEN_LOGS] = {"/reopen_logs", false, post_reopen, NULL},
    [AT_EVENTS] = {"/events", false, NULL, events_post},
    [AT_VALIDATE] = {"/debug/validate", false, post_validate, NULL},
    [AT_PAUSE] = {"/test/pause_listener", false, NULL, post_pause},
    [AT_RESUME] = {"/test/resume_listener", false, NULL, post_pause},
};

static bool is_served(const struct indexer *x, enum endpoint at)
{
    if (at == AT_PAUSE || at == AT_RESUME) return x->o->test_endpoints;
    return at != AT_EVENTS || x->o->accept_events;
}

static enum endpoint route_of(const struct indexer *x, struct kvr_text path)
{
    for (size_t i = 0; i < AT_UNKNOWN; i++)
        if (kvr_text_is(path, routes[i].path) && is_served(x, (enum endpoint)i)) return (enum endpoint)i;
    return AT_UNKNOWN;
}

static unsigned access_flags(enum endpoint at)
{
    if (at == AT_HEALTH || at == AT_READY) return KVR_ACCESS_PROBE;
    if (at == AT_OPENAPI) return KVR_ACCESS_KEYLESS;
    return at == AT_SERVICE_QUERY ? KVR_ACCESS_PACKED : 0;
}

/* NVIDIA Dynamo's service takes members that it does not know; so does this one, and says which. */
static void note_ignored(struct request *rq, struct kvr_json o)
{
    static const char *const worker[] = {"instance_id",      "endpoint",        "model_name",    "block_size", "dp_rank", "replay_endpoint",
                                         "recover_endpoint", "additional_salt", "routing_group", "tenant_id",  NULL};
    static const char *const peer[] = {"url", NULL};
    bool of_peer = rq->at == AT_REGISTER_PEER || rq->at == AT_DEREGISTER_PEER;
    if (!of_peer && rq->at != AT_REGISTER && rq->at != AT_UNREGISTER) return;
    kvr_unknown_members(o, (const char *const *const[]){of_peer ? peer : worker}, 1, &rq->ignored);
}

static void with_json(struct request *rq, const struct kvr_json_read *r)
{
    struct kvr_json o = r->root;
    if (r->rc == -KVR_ENOMEM || r->members == -KVR_ENOMEM) {
        answer_error(rq, 503, "out of memory");
        return;
    }
    if (r->rc) {
        answer_error(rq, 400, "the body is not JSON: %s", r->why);
        return;
    }
    if (kvr_json_type_of(o) != KVR_JSON_OBJECT) {
        answer_error(rq, 422, "the body must be a JSON object");
        return;
    }
    if (r->members) {
        if (r->members == -KVR_EEXISTS) answer_error(rq, 400, "field `%s` is given more than once; allowed: each once", r->member);
        else answer_error(rq, 400, "an object has more than %d fields", KVR_JSON_MEMBERS_MAX);
        return;
    }
    note_ignored(rq, o);
    routes[rq->at].with_json(rq, o);
}

/* A body that is read on a thread, and the tokens of its prompt when that is text. */
struct large_body {
    struct kvr_json_body b; /* first */
    struct request rq;
    struct text_tokens text;
};

static bool is_text_query(const struct request *rq, const struct kvr_json_read *r)
{
    return rq->at == AT_QUERY && r->rc == 0 && r->members == 0 && kvr_json_type_of(r->root) == KVR_JSON_OBJECT &&
           kvr_prompt_is_text(r->root);
}

static void on_thread(struct kvr_json_body *b)
{
    struct large_body *l = (struct large_body *)b;
    if (is_text_query(&l->rq, &b->read)) text_make(l->rq.loop->indexer, b->read.root, b->body->data, b->body->len, &l->text);
}

static void on_large_body(struct kvr_json_body *b)
{
    struct large_body *l = (struct large_body *)b;
    if (is_text_query(&l->rq, &b->read)) query_by_text(&l->rq, b->read.root, &l->text);
    else with_json(&l->rq, &b->read);
    query_give_back(l->rq.loop);
}

static void on_large_over(struct kvr_json_body *b)
{
    kvr_ids_unref(((struct large_body *)b)->text.ids);
}

static enum kvr_json_wanted wanted_of(const struct request *rq)
{
    return rq->at == AT_QUERY ? KVR_JSON_NO_ELEMENTS : KVR_JSON_ALL;
}

static void read_large(struct request *rq)
{
    struct large_body *l = calloc(1, sizeof *l);
    if (!l) {
        answer_error(rq, 503, "out of memory");
        return;
    }
    *l = (struct large_body){.b = {.on_thread = on_thread, .on_read = on_large_body, .on_over = on_large_over}, .rq = *rq};
    l->b.wanted = wanted_of(rq);
    kvr_json_body_start(&l->b, &rq->loop->jobs, &rq->loop->uv, rq->conn);
}

static void with_body(struct request *rq, const struct kvr_http_request *hr)
{
    bool query = rq->at == AT_QUERY || rq->at == AT_QUERY_BY_HASH || rq->at == AT_SERVICE_QUERY;
    if (rq->at == AT_SERVICE_QUERY && kvr_media_type_is(kvr_headers_get(hr->headers, "content-type"), KVR_PACKED_TYPE)) {
        query_service_packed(rq, hr->body ? hr->body : "", hr->body_len);
        query_give_back(rq->loop);
        return;
    }
    if (!kvr_media_type_is(kvr_headers_get(hr->headers, "content-type"), JSON_TYPE)) {
        answer_error(rq, 415, "expected the header 'Content-Type: application/json'");
        return;
    }
    if (!query && hr->body_len > SMALL_BODY) {
        answer_error(rq, 413, "the body is larger than %d bytes", SMALL_BODY);
        return;
    }
    if (kvr_json_body_is_large(rq->conn)) {
        read_large(rq);
        return;
    }
    struct kvr_json_read r;
    kvr_json_read(&r, rq->loop->json, wanted_of(rq), hr->body, hr->body_len);
    with_json(rq, &r);
}

void routes_on_request(struct kvr_http_conn *c, void *ctx)
{
    struct loop *l = ctx;
    struct indexer *x = l->indexer;
    const struct kvr_http_request *hr = kvr_http_conn_request(c);
    struct request rq = {.loop = l, .conn = c, .at = route_of(x, hr->path), .started_ns = kvr_monotonic_ns()};
    struct kvr_text trace = x->o->access_log ? kvr_headers_get(hr->headers, x->o->trace_header) : (struct kvr_text){0};
    if (hr->is_head) snprintf(rq.method, sizeof rq.method, "HEAD");
    else snprintf(rq.method, sizeof rq.method, "%.*s", (int)hr->method.len, hr->method.ptr);
    snprintf(rq.path, sizeof rq.path, "%.*s", (int)KVR_MIN(hr->path.len, sizeof rq.path - 1), hr->path.ptr);
    if (trace.ptr) snprintf(rq.trace, sizeof rq.trace, "%.*s", (int)KVR_MIN(trace.len, sizeof rq.trace - 1), trace.ptr);
    struct kvr_access_refusal no;
    if (!kvr_access_check(x->access, hr, access_flags(rq.at), &no)) {
        answer_error_with(&rq, no.status, no.extra, no.text);
    } else if (rq.at == AT_UNKNOWN) {
        answer_error(&rq, 404, "no such route");
    } else if (!kvr_text_is(hr->method, routes[rq.at].get ? "GET" : "POST")) {
        answer_error_with(&rq, 405, routes[rq.at].get ? "Allow: GET, HEAD\r\n" : "Allow: POST\r\n", "this route has another method");
    } else if (routes[rq.at].with_json) {
        with_body(&rq, hr);
    } else {
        routes[rq.at].bare(&rq);
    }
}

void routes_body_room(struct kvr_http_conn *c, void *ctx, struct kvr_http_room *room)
{
    const struct loop *l = ctx;
    room->bytes = KVR_MIN(room->bytes, kvr_access_body_room(l->indexer->access, kvr_http_conn_request(c)));
}

void routes_on_gone(struct kvr_http_conn *c, void *ctx)
{
    struct loop *l = ctx;
    if (!kvr_json_body_on_gone(&l->jobs, c)) kvr_produce_on_gone(c, ctx);
}

void routes_on_drained(struct kvr_http_conn *c, void *ctx)
{
    struct loop *l = ctx;
    if (!kvr_json_body_is_read(&l->jobs, c)) kvr_produce_on_drained(c, ctx);
}
