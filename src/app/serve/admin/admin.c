/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The admin port: who may ask (may), which route answers (routes; begin() has those with an id), and short answers that are no other
 * file's: mode, thresholds, peers. A large body, or a text, is read on a thread before its route is called; a question whose index is
 * elsewhere goes through ask_remote.c. Errors are {"error": text}. Main loop.
 */
#include "app/serve/admin/room.h"

#include <string.h>

#include "app/serve/admin/reload.h"
#include "app/serve/common/fields.h"
#include "app/serve/config/config.h"
#include "app/serve/config/keyring.h"
#include "app/serve/data/data_plane.h"
#include "app/serve/data/port/ready.h"
#include "app/serve/peers/index_server.h"
#include "app/serve/peers/remote.h"
#include "app/serve/peers/replicas.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/views/views.h"
#include "app/serve/workers/workers.h"
#include "base/log.h"
#include "net/http/access.h"
#include "net/http/json_body.h"
#include "wire/index_question.h"
#include "wire/index_service.h"
#include "wire/prompt_question.h"

extern const char openapi_admin[]; /* openapi.yaml */

/* ---- answers ----------------------------------------------------------------------------------------- */

static void admin_refuse(struct kvr_http_conn *c, const struct kvr_access_refusal *no)
{
    struct kvr_buf b = {0};
    admin_error_body(&b, no->status, no->text);
    kvr_http_reply(c, no->status, "application/json", no->extra, b.failed ? "" : b.data, b.failed ? 0 : b.len);
    kvr_buf_free(&b);
}

static void set_mode(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    const char *v;
    size_t len;
    int mode = kvr_json_as_str(kvr_json_get(o, "router_mode"), &v, &len) ? router_mode_of(v, len) : -1;
    if (mode < 0) {
        admin_error(c, 400, "router_mode must be one of kv, round-robin, random, least-loaded, direct");
        return;
    }
    workers_set_mode(admin->workers, mode);
    if (mode == KVR_MODE_KV) views_want(admin->workers);
    admin_ok(c, 200);
}

static void validate(struct admin *admin, struct kvr_http_conn *c)
{
    const char *why = "ok";
    bool ok = true;
    for (const struct partition *p = partitions_first(admin->workers); p && ok; p = p->next)
        ok = (!p->index || kvr_index_validate(p->index, &why)) && kvr_router_validate(p->router, &why);
    if (ok) admin_ok(c, 200);
    else admin_error(c, 500, why);
}

/* ---- GET --------------------------------------------------------------------------------------------- */

static void get_openapi(struct admin *, struct kvr_http_conn *c)
{
    kvr_http_reply(c, 200, "application/json", NULL, openapi_admin, strlen(openapi_admin));
}

static void get_health(struct admin *admin, struct kvr_http_conn *c)
{
    if (process_is_ending(admin->process)) admin_error(c, 503, "shutting down");
    else admin_ok(c, 200);
}

static void get_ready(struct admin *admin, struct kvr_http_conn *c)
{
    const char *why;
    struct kvr_buf b = {0};
    size_t schedulable = 0, workers = 0;
    if (data_plane_ready(admin->data, &why)) {
        admin_ok(c, 200);
        return;
    }
    for (const struct worker *w = workers_first(admin->workers); w; w = w->next, workers++)
        schedulable += worker_is_schedulable(w, kvr_now_ms());
    kvr_json_printf(&b, "{'error':%s,'workers':%ju,'schedulable_workers':%ju}", why, workers, schedulable);
    admin_reply(c, 503, &b);
}

static void get_metrics(struct admin *admin, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    metrics_write(admin, &b);
    kvr_http_reply_buf(c, 200, "text/plain; version=0.0.4", NULL, &b);
}

/* model_name and routing_group of the query string. */
struct filter {
    char model[MODEL_MAX], group[MODEL_MAX];
    const char *by_model, *by_group;
};

static void read_filter(struct kvr_http_conn *c, struct filter *f)
{
    struct kvr_text q = kvr_http_conn_request(c)->query;
    f->by_model = kvr_query_parameter(q, "model_name", f->model, sizeof f->model) ? f->model : NULL;
    f->by_group = kvr_query_parameter(q, "routing_group", f->group, sizeof f->group) ? f->group : NULL;
}

static void get_workers(struct admin *admin, struct kvr_http_conn *c)
{
    struct filter f;
    struct kvr_buf b = {0};
    read_filter(c, &f);
    admin_workers_write(admin, &b, f.by_model, f.by_group);
    admin_reply(c, 200, &b);
}

static void get_loads(struct admin *admin, struct kvr_http_conn *c)
{
    struct filter f;
    struct kvr_buf b = {0};
    read_filter(c, &f);
    admin_loads_write(admin, &b, f.by_model, f.by_group);
    admin_reply(c, 200, &b);
}

static void get_dump(struct admin *admin, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    if (admin->o->overlap_credit <= 0) { /* not 200 and empty: nothing is known of what the workers hold */
        admin_error(c, 400, kvr_strerror(-KVR_ENOINDEX));
        return;
    }
    admin_dump_write(admin, &b);
    admin_reply(c, 200, &b);
}

static void get_tokenizers(struct admin *admin, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    tokenizers_write(admin->tokenizers, &b);
    admin_reply(c, 200, &b);
}

static void get_options(struct admin *admin, struct kvr_http_conn *c)
{
    kvr_http_reply(c, 200, "application/json", NULL, admin->o->options_told, strlen(admin->o->options_told));
}

static void get_decisions(struct admin *admin, struct kvr_http_conn *c)
{
    char id[ID_MAX];
    struct kvr_buf b = {0};
    bool one = kvr_query_parameter(kvr_http_conn_request(c)->query, "id", id, sizeof id), found = true;
    if (one) found = data_plane_decision_write(admin->data, &b, id, strlen(id));
    else data_plane_decisions_write(admin->data, &b, 1000);
    if (found) {
        admin_reply(c, 200, &b);
        return;
    }
    kvr_buf_free(&b);
    admin_error(c, 404, "no decision with that request id is kept; the last 10000 are");
}

static void put_threshold(struct kvr_buf *b, const char *key, double v)
{
    kvr_json_key(b, key);
    if (v < 0) kvr_json_null(b);
    else kvr_json_double(b, v);
}

/* Name number i of a worker, NULL: it has no more. */
static const char *name_locked(const struct workers *ws, const struct worker *w, size_t i)
{
    return i == 0 ? worker_model(ws, w) : i <= w->models_n ? w->models[i - 1].id : NULL;
}

static bool serves(struct workers *ws, const struct partition *p, const char *model)
{
    const char *name;
    bool any = !strcmp(model, p->model[0] ? p->model : "default");
    workers_lock(ws);
    for (const struct worker *w = workers_first(ws); w && !any; w = w->next)
        for (size_t i = 0; w->partition == p && (name = name_locked(ws, w, i)); i++) any |= !strcmp(name, model);
    workers_unlock(ws);
    return any;
}

/* What its workers serve. */
static void put_models(struct kvr_buf *b, struct workers *ws, const struct partition *p)
{
    enum { NAMES_MAX = 64 };
    const char *names[NAMES_MAX], *name;
    size_t n = 0, k;
    kvr_json_printf(b, "'models':[");
    workers_lock(ws);
    for (const struct worker *w = workers_first(ws); w; w = w->next)
        for (size_t i = 0; w->partition == p && (name = name_locked(ws, w, i)); i++) {
            for (k = 0; k < n && strcmp(names[k], name); k++) {
            }
            if (k < n || n == NAMES_MAX) continue;
            names[n++] = name;
            kvr_json_str(b, name, strlen(name));
        }
    workers_unlock(ws);
    kvr_json_close(b, ']');
}

static void get_busy(struct admin *admin, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    struct kvr_busy_thresholds t;
    kvr_json_printf(&b, "{'thresholds':[");
    for (const struct partition *p = partitions_first(admin->workers); p; p = p->next) {
        kvr_router_busy(p->router, &t);
        kvr_json_printf(&b, "{'model':%s,'routing_group':%s", p->model[0] ? p->model : "default", p->group);
        put_models(&b, admin->workers, p);
        put_threshold(&b, "active_decode_blocks_threshold", t.decode_blocks_frac);
        put_threshold(&b, "active_prefill_tokens_threshold", t.prefill_tokens);
        put_threshold(&b, "active_prefill_tokens_threshold_frac", t.prefill_tokens_frac);
        kvr_json_close(&b, '}');
    }
    kvr_json_printf(&b, "]}");
    admin_reply(c, 200, &b);
}

/* ---- POST -------------------------------------------------------------------------------------------- */

/* Only given fields change; none can be cleared. */
static void set_busy(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    struct kvr_busy_thresholds t = {-1, -1, -1};
    char model[MODEL_MAX] = "";
    const char *bad = NULL;
    size_t found = 0;
    if (!member_text(o, "model", model, sizeof model, &bad) ||
        !member_double(o, "active_decode_blocks_threshold", 0, 1, &t.decode_blocks_frac, &bad) ||
        !member_double(o, "active_prefill_tokens_threshold", 0, 1e300, &t.prefill_tokens, &bad) ||
        !member_double(o, "active_prefill_tokens_threshold_frac", 0, 1e300, &t.prefill_tokens_frac, &bad)) {
        admin_bad_field(c, bad);
        return;
    }
    for (struct partition *p = partitions_first(admin->workers); p; p = p->next) {
        if (model[0] && !serves(admin->workers, p, model)) continue;
        kvr_router_set_busy(p->router, &t);
        found++;
    }
    if (found) get_busy(admin, c);
    else admin_error(c, 404, "unknown model");
}

/* ---- replicas ---------------------------------------------------------------------------------------- */

static void put_peer(void *ctx, const char *endpoint, bool)
{
    struct kvr_buf *b = ctx;
    kvr_json_str(b, endpoint, strlen(endpoint));
}

static bool has_sync(const struct admin *admin, struct kvr_http_conn *c)
{
    if (replicas_run(admin->peers)) return true;
    admin_error(c, 400, "replica sync is off; start with --replica-sync-port");
    return false;
}

static void get_peers(struct admin *admin, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    kvr_json_open(&b, '[');
    replicas_each_router(admin->peers, put_peer, &b);
    kvr_json_close(&b, ']');
    admin_reply(c, 200, &b);
}

#define PEER_REFUSAL "field 'endpoint' is missing or wrong, or there are too many; allowed: tcp://host:port of another router"

static void change_peer(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, bool add)
{
    char endpoint[256] = "";
    const char *bad = NULL;
    if (!has_sync(admin, c)) return;
    if (!member_text(o, "endpoint", endpoint, sizeof endpoint, &bad) || !endpoint[0]) {
        admin_error(c, 400, PEER_REFUSAL);
        return;
    }
    int rc = add ? replicas_add_router(admin->peers, endpoint) : replicas_remove_router(admin->peers, endpoint);
    if (rc == -KVR_EINVAL || rc == -KVR_ELIMIT) admin_error(c, 400, PEER_REFUSAL);
    else if (rc == -KVR_ENOTFOUND) admin_error(c, 404, "peer not found");
    else if (rc == -KVR_ENOMEM) admin_error(c, 503, "out of memory");
    else admin_ok(c, add ? 201 : 200); /* one that is known is no error */
}

static void post_register_peer(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    change_peer(admin, c, o, true);
}

static void post_deregister_peer(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    change_peer(admin, c, o, false);
}

/* ---- the index, for others ------------------------------------------------------------------------------ */

static bool serves_index(const struct admin *admin, struct kvr_http_conn *c)
{
    if (!index_server_is_on(admin->peers)) admin_error(c, 404, "this router does not serve its index (--serve-indexer)");
    return index_server_is_on(admin->peers);
}

static void post_index_query(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    if (serves_index(admin, c)) index_server_post_query(admin->peers, c, o);
}

static void post_index_record(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    if (serves_index(admin, c)) index_server_post_record(admin->peers, c, o);
}

static void get_index_info(struct admin *admin, struct kvr_http_conn *c)
{
    if (serves_index(admin, c)) index_server_get_info(admin->peers, c);
}

static void post_index_info(struct admin *admin, struct kvr_http_conn *c, struct kvr_json)
{
    get_index_info(admin, c);
}

static void post_packed(struct admin *admin, struct kvr_http_conn *c, struct kvr_text path)
{
    if (!index_server_takes_packed(path))
        admin_error(c, 415, "only /" KVR_SERVICE_QUERY " and /" KVR_SERVICE_RECORD " take " KVR_PACKED_TYPE);
    else if (serves_index(admin, c)) index_server_post_packed(admin->peers, c);
}

/* ---- keys of the data port --------------------------------------------------------------------------- */

static bool has_keys(const struct admin *admin, struct kvr_http_conn *c)
{
    if (!keyrings_are_used(admin->config)) admin_error(c, 404, "the data port asks for no keys (--api-key-file)");
    return keyrings_are_used(admin->config);
}

static void get_api_keys(struct admin *admin, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    if (!has_keys(admin, c)) return;
    keyrings_write(admin->config, &b);
    admin_reply(c, 200, &b);
}

static void reload_api_keys(struct admin *admin, struct kvr_http_conn *c)
{
    char err[512];
    if (!has_keys(admin, c)) return;
    if (reload_file(admin, RELOAD_API_KEYS, "POST /api_keys/reload", err, sizeof err)) admin_error(c, 400, err);
    else get_api_keys(admin, c);
}

/* ---- routes ------------------------------------------------------------------------------------------ */

static const char *const mode_members[] = {"router_mode", NULL}, *const peer_members[] = {"endpoint", NULL},
                         *const busy_members[] = {"model", "active_decode_blocks_threshold", "active_prefill_tokens_threshold",
                                                  "active_prefill_tokens_threshold_frac", NULL};

static const struct route {
    const char *path;
    void (*get)(struct admin *admin, struct kvr_http_conn *c);
    void (*post)(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
    void (*bare)(struct admin *admin, struct kvr_http_conn *c); /* POST without a body */
    void (*put)(struct admin *admin, struct kvr_http_conn *c);
    bool needs_index;         /* its answer depends on what is cached */
    bool needs_worker;        /* a question for a worker */
    const char *const *known; /* the members of its body, others are refused; NULL: see members_are_known */
} routes[] = {
    {"/openapi.json", .get = get_openapi},
    {"/health", .get = get_health},
    {"/ready", .get = get_ready},
    {"/metrics", .get = get_metrics},
    {"/status", .get = status_get},
    {"/status/stream", .get = status_stream},
    {"/history", .get = history_get},
    {"/decisions", .get = get_decisions},
    {"/tokenizers", .get = get_tokenizers},
    {"/options", .get = get_options},
    {"/workers", .get = get_workers, .post = admin_post_worker},
    {"/adapters/load", .post = adapters_load},
    {"/adapters/unload", .post = adapters_unload},
    {"/loads", .get = get_loads},
    {"/dump", .get = get_dump},
    {"/api_keys", .get = get_api_keys},
    {"/api_keys/reload", .bare = reload_api_keys},
    {"/models_config", .get = models_get, .put = models_put},
    {"/reload", .bare = reload_post},
    {"/debug/validate", .bare = validate},
    {"/busy_threshold", .get = get_busy, .post = set_busy, .known = busy_members},
    {"/potential_loads", .post = admin_potential_loads, .needs_index = true},
    {"/overlap_scores", .post = admin_overlap_scores, .needs_index = true},
    {"/query", .post = admin_query, .needs_index = true},
    {"/query_by_hash", .post = admin_query_by_hash, .needs_index = true},
    {"/select", .post = selection_select, .needs_index = true, .needs_worker = true},
    {"/select_pair", .post = selection_pair, .needs_index = true, .needs_worker = true},
    {"/select_and_reserve", .post = selection_select_and_reserve, .needs_index = true, .needs_worker = true},
    {"/reservations", .post = selection_reserve},
    {"/request", .post = selection_request},
    {"/register", .post = tracker_register},
    {"/unregister", .post = tracker_unregister},
    {"/add", .post = tracker_add},
    {"/prefill_complete", .post = tracker_prefill_complete},
    {"/free", .post = tracker_free},
    {"/replica_sync/peers", .get = get_peers},
    {"/replica_sync/register_peer", .post = post_register_peer, .known = peer_members},
    {"/replica_sync/deregister_peer", .post = post_deregister_peer, .known = peer_members},
    {"/router_mode", .post = set_mode, .known = mode_members},
    {"/kv_indexer_query", .post = post_index_query},
    {"/kv_indexer_record_routing_decision", .post = post_index_record},
    {"/kv_indexer_info", .get = get_index_info, .post = post_index_info},
};

/* Routes of our own take no member that they do not read. Those that stand in for other services' take what these would, and the answer
 * names what was ignored. A worker's members are looked at where they are read. */
static bool members_are_known(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, const struct route *r)
{
    const char *const *known = r->known ? r->known : fields_all();
    char text[512];
    if (r->post == admin_post_worker || kvr_prompt_is_text(o)) return true;
    kvr_unknown_members(o, &known, 1, &admin->ignored);
    if (!r->known || !admin->ignored.n) return true;
    kvr_unknown_member_say(admin->ignored.names[0], &known, 1, text, sizeof text);
    admin->ignored.n = 0;
    admin_error(c, 400, text);
    return false;
}

/* Of the answer that is being written. */
static void put_ignored(struct kvr_http_conn *, struct kvr_buf *head, void *ctx)
{
    const struct admin *admin = ctx;
    if (!admin->ignored.n) return;
    kvr_buf_str(head, "x-kvroute-ignored: ");
    for (size_t i = 0; i < admin->ignored.n; i++) {
        kvr_buf_str(head, i ? ", " : "");
        for (const char *p = admin->ignored.names[i]; *p; p++) kvr_buf_add(head, *p > 0x20 && *p < 0x7f && *p != ',' ? p : "?", 1);
    }
    kvr_buf_str(head, "\r\n");
}

/* No prompt of more than --max-prompt-tokens, as whatever it is given. Returns: false after having answered. */
static bool prompt_is_small_enough(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    static const char *const keys[] = {"token_ids", "tokens", "block_hashes", "sequence_hashes"};
    char text[160];
    for (size_t i = 0; i < KVR_ARRAY_LEN(keys); i++) {
        if (kvr_json_count(kvr_json_get(o, keys[i])) <= admin->o->max_prompt_tokens) continue;
        data_plane_count_long_prompt(admin->data);
        snprintf(text, sizeof text, "field '%s' has more than %llu entries, which is --max-prompt-tokens", keys[i],
                 (unsigned long long)admin->o->max_prompt_tokens);
        admin_error(c, 413, text);
        return false;
    }
    if (!admin->text_ids || admin->text_ids->n <= admin->o->max_prompt_tokens) return true;
    data_plane_count_long_prompt(admin->data);
    snprintf(text, sizeof text, "the prompt has %zu tokens, more than the %llu of --max-prompt-tokens", admin->text_ids->n,
             (unsigned long long)admin->o->max_prompt_tokens);
    admin_error(c, 413, text);
    return false;
}

static bool needs_index(const struct route *r, struct kvr_json o)
{
    struct kvr_json method = kvr_json_get(o, "method");
    bool may = r->post == selection_request && (kvr_json_is_str(method, "new") || kvr_json_is_str(method, "potential_loads"));
    return r->needs_index || may;
}

/* holds: as of admin_ask_first. */
static void post_object(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, struct kvr_json_parser **holds,
                        const struct route *r)
{
    if (!members_are_known(admin, c, o, r)) return;
    if (prompt_is_small_enough(admin, c, o) && (!needs_index(r, o) || !admin_ask_first(admin, c, o, holds, r->post))) r->post(admin, c, o);
    admin->ignored.n = 0;
}

/* Is its prompt text? A question by hashes has none. */
static bool takes_text(const struct route *r, struct kvr_json o)
{
    return r->post != admin_query_by_hash && needs_index(r, o) && kvr_prompt_is_text(o);
}

static void post_text(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, struct kvr_json_parser **holds,
                      const struct route *r, const struct admin_text *text)
{
    if (text->status) {
        admin_error(c, text->status, text->why);
        return;
    }
    admin->text_ids = text->ids;
    post_object(admin, c, o, holds, r);
    admin->text_ids = NULL;
}

/* A body that is read on a thread, and the tokens of its prompt when that is text. */
struct large_post {
    struct kvr_json_body b; /* first */
    struct admin *admin;
    const struct route *route;
    bool is_text;
    struct admin_text text;
};

static void on_thread(struct kvr_json_body *b)
{
    struct large_post *p = (struct large_post *)b;
    p->is_text = b->read.rc == 0 && b->read.members == 0 && takes_text(p->route, b->read.root);
    if (p->is_text) admin_text_make(p->admin, b->read.root, b->body->data, b->body->len, &p->text);
}

static void on_large_post(struct kvr_json_body *b)
{
    const struct large_post *p = (const struct large_post *)b;
    if (!admin_is_object(b->conn, &b->read)) return;
    if (p->is_text) post_text(p->admin, b->conn, b->read.root, &b->json, p->route, &p->text);
    else post_object(p->admin, b->conn, b->read.root, &b->json, p->route);
}

static void on_large_over(struct kvr_json_body *b)
{
    kvr_ids_unref(((struct large_post *)b)->text.ids);
}

static void post_on_thread(struct admin *admin, struct kvr_http_conn *c, const struct route *r)
{
    struct large_post *p = calloc(1, sizeof *p);
    if (!p) {
        admin_error(c, 503, "out of memory");
        return;
    }
    *p = (struct large_post){.b = {.on_thread = on_thread, .on_read = on_large_post, .on_over = on_large_over}, .admin = admin, .route = r};
    kvr_json_body_start(&p->b, &admin->jobs, &admin->process->main_loop, c);
}

static void post(struct admin *admin, struct kvr_http_conn *c, const struct route *r)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    struct kvr_json o;
    struct admin_text text;
    if (kvr_json_body_is_large(c)) {
        post_on_thread(admin, c, r);
    } else if (!admin_parse_object(admin, c, &o)) {
        return;
    } else if (!takes_text(r, o)) {
        post_object(admin, c, o, NULL, r);
    } else if (rq->body_len > KVR_TOKENIZER_INLINE) {
        post_on_thread(admin, c, r);
    } else {
        admin_text_make(admin, o, rq->body, rq->body_len, &text);
        post_text(admin, c, o, NULL, r, &text);
        kvr_ids_unref(text.ids);
    }
}

static bool under(struct kvr_text path, const char *prefix, struct kvr_text *rest)
{
    size_t n = strlen(prefix);
    if (path.len <= n || memcmp(path.ptr, prefix, n)) return false;
    *rest = (struct kvr_text){path.ptr + n, path.len - n};
    return true;
}

static bool worker_path(struct kvr_text path, uint64_t *id)
{
    struct kvr_text rest;
    return under(path, "/workers/", &rest) && kvr_parse_u64(rest.ptr, rest.len, UINT64_MAX, id);
}

static void one_worker(struct admin *admin, struct kvr_http_conn *c, uint64_t id)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    struct kvr_json o;
    if (kvr_text_is(rq->method, "DELETE")) {
        if (worker_remove(admin->workers, id)) admin_ok(c, 200);
        else admin_error(c, 404, "worker not found");
    } else if (kvr_text_is(rq->method, "PATCH")) {
        if (admin_parse_object(admin, c, &o)) admin_patch_worker(admin, c, id, o);
    } else {
        admin_not_allowed(c, "PATCH, DELETE");
    }
}

static void one_reservation(struct admin *admin, struct kvr_http_conn *c, struct kvr_text rest)
{
    const char *slash = memchr(rest.ptr, '/', rest.len);
    size_t id_len = slash ? (size_t)(slash - rest.ptr) : rest.len;
    struct kvr_text verb = {slash ? slash + 1 : rest.ptr + rest.len, slash ? rest.len - id_len - 1 : 0};
    selection_one(admin, c, rest.ptr, id_len, verb);
}

/* Answers what may not go on. */
static bool may(struct admin *admin, struct kvr_http_conn *c)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    struct kvr_access_refusal no;
    unsigned flags = 0;
    if (kvr_text_is(rq->path, "/health") || kvr_text_is(rq->path, "/ready")) flags = KVR_ACCESS_PROBE;
    else if (page_has(rq->path) || kvr_text_is(rq->path, "/openapi.json")) flags = KVR_ACCESS_KEYLESS;
    else if (index_server_takes_packed(rq->path)) flags = KVR_ACCESS_PACKED;
    if (kvr_access_check(admin->access, rq, flags, &no)) return true;
    admin_refuse(c, &no);
    return false;
}

/* One of the request protocol is looked at first, unless it is large: others need no worker. */
static bool needs_worker(struct kvr_http_conn *c, const struct route *r)
{
    return r->needs_worker || (r->post == selection_request && kvr_json_body_is_large(c));
}

static const char *allowed_by(const struct route *r)
{
    bool posts = r->post || r->bare;
    return r->put ? "GET, HEAD, PUT" : !r->get ? "POST" : posts ? "GET, HEAD, POST" : "GET, HEAD";
}

static void take_post(struct admin *admin, struct kvr_http_conn *c, const struct route *r)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    if (r->bare) r->bare(admin, c);
    else if (kvr_media_type_is(kvr_headers_get(rq->headers, "content-type"), KVR_PACKED_TYPE)) post_packed(admin, c, rq->path);
    else if (!needs_worker(c, r) || !selection_hold(admin, c)) post(admin, c, r);
}

static void begin(struct admin *admin, struct kvr_http_conn *c)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    const struct route *r = routes, *end = routes + KVR_ARRAY_LEN(routes);
    struct kvr_text rest;
    uint64_t id;
    if (!may(admin, c)) return;
    while (r < end && !kvr_text_is(rq->path, r->path)) r++;
    if (page_has(rq->path)) page_get(c);
    else if (worker_path(rq->path, &id)) one_worker(admin, c, id);
    else if (under(rq->path, "/reservations/", &rest)) one_reservation(admin, c, rest);
    else if (r == end) admin_error(c, 404, "unknown path");
    else if (r->get && kvr_text_is(rq->method, "GET")) r->get(admin, c);
    else if (r->put && kvr_text_is(rq->method, "PUT")) r->put(admin, c);
    else if ((r->post || r->bare) && kvr_text_is(rq->method, "POST")) take_post(admin, c, r);
    else admin_not_allowed(c, allowed_by(r));
}

static void on_request(struct kvr_http_conn *c, void *ctx)
{
    struct admin *admin = ctx;
    begin(admin, c);
    selection_release(admin); /* it may have brought a worker */
}

static void body_room(struct kvr_http_conn *c, void *ctx, struct kvr_http_room *room)
{
    const struct admin *admin = ctx;
    room->bytes = KVR_MIN(room->bytes, kvr_access_body_room(admin->access, kvr_http_conn_request(c)));
}

static void on_gone(struct kvr_http_conn *c, void *ctx)
{
    struct admin *admin = ctx;
    if (!status_gone(admin, c) && !adapters_gone(admin, c) && !admin_ask_gone(admin, c) && !kvr_json_body_on_gone(&admin->jobs, c))
        selection_gone(admin, c);
}

int admin_open(struct admin *admin, char *err, size_t cap)
{
    struct kvr_access_config c = {admin->o->admin_host, admin->o->admin_allowed_hosts, admin->o->admin_key_file, admin->o->advertise_host};
    const char *option = admin->o->select_only ? "--api-key-file" : "--admin-key-file";
    char why[400];
    if (kvr_access_create(&c, &admin->access, why, sizeof why) == 0) {
        if (kvr_access_warning(admin->access, why, sizeof why))
            kvr_log_warning("kvroute %s: %s (%s)", serve_command(admin->o), why, option);
        return 0;
    }
    return kvr_refuse(err, cap, "%s: %s", option, why);
}

int admin_start(struct admin *admin, const struct admin_port *port)
{
    struct kvr_http_server_config sc = {.host = admin->o->admin_host,
                                        .port = (uint16_t)admin->o->admin_port,
                                        .listener = port->socket,
                                        .waits = port->waits,
                                        .body_max = admin->o->max_body_size,
                                        .body_option = "--max-body-size",
                                        .connections_max = port->connections_max,
                                        .head_timeout_s = 10,
                                        .body_timeout_s = 30,
                                        .idle_timeout_s = 60,
                                        .write_timeout_s = admin->o->client_write_timeout,
                                        .shared = &admin->http,
                                        .tls = config_admin_tls(admin->config),
                                        .handler = {on_request, on_gone, NULL, admin_error_body, admin},
                                        .put_headers = put_ignored,
                                        .body_room = body_room};
    int rc = selection_start(admin, begin);
    if (!rc && remote_open(admin->peers, &admin->process->main_loop, admin->process->client, admin->remotes, &admin->remotes_n))
        rc = UV_ENOMEM;
    return rc ? rc : kvr_http_server_start(&admin->process->main_loop, &sc, &admin->server);
}

/* ---- for the rooms above ------------------------------------------------------------------------------- */

struct admin *admin_create(struct process *p, const struct admin_uses *uses)
{
    const struct serve_options *o = p->o;
    struct admin *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->o = o;
    a->process = p;
    a->workers = uses->workers;
    a->config = uses->config;
    a->tokenizers = uses->tokenizers;
    a->discovery = uses->discovery;
    a->peers = uses->peers;
    a->data = uses->data;
    a->http.bodies_max = o->select_only ? o->max_bodies_bytes : o->max_bodies_bytes / 4;
    a->history = history_create(p->started_ms);
    if (a->history) return a;
    admin_destroy(a);
    return NULL;
}

void admin_tick(struct admin *a)
{
    reload_tick(a);
}

void admin_second(struct admin *a)
{
    selection_tick(a);
    history_second(a);
    status_second(a);
}

void admin_stop(struct admin *a)
{
    remote_close(a->remotes, &a->remotes_n);
    adapters_stop(a);
    kvr_http_server_close(a->server);
    selection_stop(a);
}

void admin_destroy(struct admin *a)
{
    if (!a) return;
    ctx_list_free(&a->ctxs);
    kvr_given_tokens_close(a->given_tokens);
    selection_destroy(a);
    kvr_access_destroy(a->access);
    history_destroy(a->history);
    free(a);
}

bool admin_asks_partition(struct admin *a, const struct partition *p)
{
    return selection_asks(a, p);
}

void admin_lame(struct admin *a)
{
    kvr_http_server_lame(a->server);
}

void admin_drain(struct admin *a)
{
    status_end(a);
    kvr_http_server_drain(a->server);
}

bool admin_is_idle(const struct admin *a)
{
    struct kvr_http_server_stats st;
    kvr_http_server_stats(a->server, &st);
    return st.owed == 0;
}

uint16_t admin_port(const struct admin *a)
{
    return kvr_http_server_port(a->server);
}

int admin_listener(const struct admin *a)
{
    return kvr_http_server_listener(a->server);
}

void admin_take_connections(struct admin *a)
{
    kvr_http_server_go(a->server);
}

void admin_take_none(struct admin *a)
{
    kvr_http_server_deaf(a->server, true);
}

struct kvr_http_shared *admin_http(struct admin *a)
{
    return &a->http;
}
