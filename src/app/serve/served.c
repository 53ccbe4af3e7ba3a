/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --serve-indexer: this router's index answers others (wire/index_service.h), on the admin port and, with a NATS server, on
 *
 *     {scope}.kv_indexer_query.{model}     of several servers one answers (queue group)
 *     {scope}.kv_indexer_record_routing_decision.{model}
 *     {scope}.kv_indexer_info              every server answers
 *
 * Questions over NATS are subscribed to only once the index is ready, so that nobody is sent to one that knows nothing yet.
 *
 * Threads: the main loop answers HTTP; each subscription has its thread, and a struct asker of its own. The indexes are read
 * lock-free; pools live as long as the process.
 */
#include <string.h>

#include "app/serve/admin.h"
#include "app/serve/claim.h"
#include "net/remote_index.h"
#include "wire/index_service.h"

enum { PENDING_BYTES = 16 << 20, BLOCKS_MAX = KVR_SERVICE_BLOCKS_MAX };

/* What one thread needs to answer. */
struct asker {
    struct serve *serve;
    struct ctx_list ctxs;
    struct kvr_json_parser *json;
    uint64_t *locals, *seqs;
    size_t locals_cap, seqs_cap;
    struct kvr_reach *reaches;
    struct kvr_buf out;
    struct kvr_nats_sub *sub;
};

struct served {
    uint64_t instance;
    bool subscribed;
    _Atomic bool ready;  /* the views have been restored */
    struct claim *claim; /* NULL without NATS: nobody else can be known of */
    struct asker http, query, record, info;
    _Atomic uint64_t queries, records, errors;
};

static bool predicted(const struct serve *s)
{
    return !s->o->kv_events;
}

/* Why nothing is answered now, or NULL. */
static const char *not_ready(const struct served *v)
{
    if (!atomic_load(&v->ready)) return "not ready: the views are being restored";
    return v->claim && !claim_holds(v->claim) ? "not ready: this server has lost its claim on the index, or NATS is away" : NULL;
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static int refuse(struct asker *a, int status, const char *text)
{
    atomic_fetch_add_explicit(&a->serve->served->errors, 1, memory_order_relaxed);
    a->out.len = 0;
    a->out.comma = false;
    kvr_service_error_write(&a->out, text);
    return status;
}

static struct pool *find_pool(struct serve *s, struct kvr_json o)
{
    const char *name;
    size_t len;
    char model[MODEL_MAX];
    if (!kvr_json_as_str(kvr_json_get(o, "model_name"), &name, &len) || len >= sizeof model) return NULL;
    memcpy(model, name, len);
    model[len] = 0;
    pthread_mutex_lock(&s->lock);
    struct pool *p = pool_find_locked(s, model, "");
    pthread_mutex_unlock(&s->lock);
    return p;
}

/* Returns: how many, or -1. */
static long take_hashes(struct kvr_json list, uint64_t **to, size_t *cap)
{
    size_t n = kvr_json_count(list);
    if (kvr_json_type_of(list) != KVR_JSON_ARRAY || n > BLOCKS_MAX) return -1;
    if (n > *cap) {
        uint64_t *p = realloc(*to, 2 * n * sizeof *p);
        if (!p) return -1;
        *to = p;
        *cap = 2 * n;
    }
    return kvr_json_u64_array(list, *to, n);
}

/* Each answers with the HTTP status, the body in a->out. */
static int answer_query(struct asker *a, struct kvr_json o)
{
    struct serve *s = a->serve;
    struct pool *p = find_pool(s, o);
    bool device_only = false;
    if (!p) return refuse(a, 404, "this model is not served here");
    long n = take_hashes(kvr_json_get(o, "block_hashes"), &a->locals, &a->locals_cap);
    if (n < 0) return refuse(a, 400, "block_hashes: allowed: a list of at most 1048576 hashes");
    (void)kvr_json_as_bool(kvr_json_get(o, "device_only"), &device_only);
    struct kvr_router_ctx *ctx = ctx_get(&a->ctxs, p);
    if (!a->reaches) a->reaches = malloc(RANKS_MAX * sizeof *a->reaches);
    struct kvr_router_request rq = {.locals = a->locals, .locals_n = (size_t)n};
    long found = ctx && a->reaches ? kvr_router_overlap(p->router, ctx, &rq, a->reaches, RANKS_MAX, NULL) : -KVR_ENOMEM;
    if (found < 0) return refuse(a, 500, kvr_strerror((int)found));
    found = (long)kvr_router_keep_trusted(p->router, a->reaches, (size_t)found);
    for (long i = 0; device_only && i < found; i++)
        for (int t = 1; t < KVR_TIER_COUNT; t++) a->reaches[i].depth[t] = a->reaches[i].depth[0];
    atomic_fetch_add_explicit(&s->served->queries, 1, memory_order_relaxed);
    kvr_service_scores_write(&a->out, a->reaches, (size_t)found, s->served->instance);
    return 200;
}

static int answer_record(struct asker *a, struct kvr_json o)
{
    struct serve *s = a->serve;
    const struct pool *p = find_pool(s, o);
    struct kvr_worker w;
    if (!predicted(s)) return refuse(a, 409, "this index follows KV events and records no decisions");
    if (!p) return refuse(a, 404, "this model is not served here");
    if (!kvr_service_worker_read(kvr_json_get(o, "worker"), &w)) return refuse(a, 400, "worker: allowed: {worker_id, dp_rank}");
    long n = take_hashes(kvr_json_get(o, "local_hashes"), &a->locals, &a->locals_cap);
    long m = take_hashes(kvr_json_get(o, "sequence_hashes"), &a->seqs, &a->seqs_cap);
    if (n < 0 || m < 0) return refuse(a, 400, "local_hashes, sequence_hashes: allowed: lists of at most 1048576 hashes");
    pthread_mutex_lock(&s->lock);
    const struct worker *known = worker_find_locked(s, w.worker_id);
    pthread_mutex_unlock(&s->lock);
    if (!known) return refuse(a, 404, "this worker is not known here");
    int rc = kvr_index_record(p->index, w, a->locals, (size_t)n, a->seqs, (size_t)m);
    if (rc) return refuse(a, rc == -KVR_ELENGTH ? 400 : 503, kvr_strerror(rc));
    atomic_fetch_add_explicit(&s->served->records, 1, memory_order_relaxed);
    kvr_buf_str(&a->out, "\"Recorded\"");
    return 200;
}

static int answer_info(struct asker *a, struct kvr_json o)
{
    struct served *v = a->serve->served;
    const char *why = not_ready(v);
    (void)o;
    struct kvr_service_info i = {v->instance, predicted(a->serve), !why, false};
    kvr_service_info_write(&a->out, &i, why ? why : "");
    return 200;
}

typedef int answer_fn(struct asker *a, struct kvr_json o);

static int answer(struct asker *a, answer_fn *fn, struct kvr_json o)
{
    a->out.len = 0;
    a->out.comma = a->out.failed = false;
    const char *why = fn == answer_info ? NULL : not_ready(a->serve->served);
    if (why) return refuse(a, 503, why);
    int status = fn(a, o);
    return a->out.failed ? 500 : status;
}

/* ---- HTTP --------------------------------------------------------------------------------------------------------- */

static void reply(struct serve *s, struct kvr_http_conn *c, answer_fn *fn, struct kvr_json o)
{
    if (!s->served) {
        admin_error(c, 404, "this router does not serve its index (--serve-indexer)");
        return;
    }
    struct asker *a = &s->served->http;
    int status = answer(a, fn, o);
    kvr_http_reply(c, status, "application/json", NULL, a->out.failed ? "" : a->out.data, a->out.failed ? 0 : a->out.len);
}

void served_post_query(struct serve *s, struct kvr_http_conn *c, struct kvr_json o)
{
    reply(s, c, answer_query, o);
}

void served_post_record(struct serve *s, struct kvr_http_conn *c, struct kvr_json o)
{
    reply(s, c, answer_record, o);
}

void served_get_info(struct serve *s, struct kvr_http_conn *c)
{
    reply(s, c, answer_info, (struct kvr_json){0});
}

void served_post_info(struct serve *s, struct kvr_http_conn *c, struct kvr_json o)
{
    reply(s, c, answer_info, o);
}

/* ---- NATS --------------------------------------------------------------------------------------------------------- */

static void on_message(struct asker *a, answer_fn *fn, const struct kvr_nats_message *m)
{
    struct kvr_json o;
    if (!m->reply) return;
    if (kvr_json_parse(a->json, m->data, m->len, &o, NULL) || kvr_json_type_of(o) != KVR_JSON_OBJECT)
        (void)refuse(a, 400, "not a JSON object");
    else (void)answer(a, fn, o);
    if (!a->out.failed) (void)kvr_nats_publish(a->serve->nats, m->reply, NULL, a->out.data, a->out.len);
}

static void on_query(void *ctx, const struct kvr_nats_message *m)
{
    on_message(ctx, answer_query, m);
}

static void on_record(void *ctx, const struct kvr_nats_message *m)
{
    on_message(ctx, answer_record, m);
}

static void on_info(void *ctx, const struct kvr_nats_message *m)
{
    on_message(ctx, answer_info, m);
}

static int subscribe(struct asker *a, const char *service, bool of_models, kvr_nats_on_message *fn)
{
    char subject[KVR_SCOPE_MAX + 64];
    if (!a->json) a->json = kvr_json_parser_new();
    snprintf(subject, sizeof subject, "%s.%s%s", a->serve->scope, service, of_models ? ".*" : "");
    return a->json ? kvr_nats_subscribe(a->serve->nats, subject, of_models ? "kv-indexer" : NULL, PENDING_BYTES, fn, a, &a->sub)
                   : -KVR_ENOMEM;
}

void served_tick(struct serve *s)
{
    struct served *v = s->served;
    if (!v || v->subscribed) return;
    if (!atomic_load(&v->ready) && !views_settled(s)) return;
    atomic_store(&v->ready, true);
    v->subscribed = true;
    if (s->nats && (subscribe(&v->query, KVR_SERVICE_QUERY, true, on_query) ||
                    (predicted(s) && subscribe(&v->record, KVR_SERVICE_RECORD, true, on_record))))
        fprintf(stderr, "kvroute: serve-indexer: the service cannot be announced over NATS\n");
}

/* ---- life --------------------------------------------------------------------------------------------------------- */

int served_start(struct serve *s, char *err, size_t cap)
{
    if (!s->o->serve_indexer) return 0;
    struct served *v = calloc(1, sizeof *v);
    if (!v) {
        snprintf(err, cap, "out of memory");
        return -1;
    }
    v->http.serve = v->query.serve = v->record.serve = v->info.serve = s;
    v->instance = s->salt >> 11; /* exact as a JSON number */
    s->served = v;
    if (!s->nats) return 0;
    struct claim_config cc = {s->nats, s->scope, predicted(s), (int)s->o->plane.nats_replicas, v->instance, s->o->admin_port};
    if (claim_open(&cc, &v->claim, err, cap)) return -1;
    if (subscribe(&v->info, KVR_SERVICE_INFO, false, on_info) == 0) return 0;
    snprintf(err, cap, "serve-indexer: the service cannot be announced over NATS");
    return -1;
}

static void asker_free(struct asker *a)
{
    kvr_nats_unsubscribe(a->sub);
    ctx_list_free(&a->ctxs);
    if (a->json) kvr_json_parser_free(a->json);
    free(a->locals);
    free(a->seqs);
    free(a->reaches);
    kvr_buf_free(&a->out);
}

void served_stop(struct serve *s)
{
    struct served *v = s->served;
    if (!v) return;
    asker_free(&v->query);
    asker_free(&v->record);
    asker_free(&v->info);
    asker_free(&v->http);
    claim_close(v->claim);
    free(v);
    s->served = NULL;
}

void served_metrics(struct serve *s, struct kvr_buf *b)
{
    struct served *v = s->served;
    if (!v) return;
    const struct {
        const char *name, *type, *help;
        uint64_t v;
    } rows[] = {
        {"ready", "gauge", "1 when the served index answers", not_ready(v) == NULL},
        {"queries_total", "counter", "Overlap queries answered", atomic_load(&v->queries)},
        {"records_total", "counter", "Routing decisions recorded for others", atomic_load(&v->records)},
        {"errors_total", "counter", "Questions refused", atomic_load(&v->errors)},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        kvr_buf_printf(b, "# HELP kvroute_served_index_%s %s\n# TYPE kvroute_served_index_%s %s\nkvroute_served_index_%s %llu\n",
                       rows[i].name, rows[i].help, rows[i].name, rows[i].type, rows[i].name, (unsigned long long)rows[i].v);
}
