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
 * lock-free; partitions live as long as the process.
 */
#include "app/serve/peers/index_server.h"

#include <string.h>

#include "app/serve/peers/index_claim.h"
#include "app/serve/peers/room.h"
#include "app/serve/workers/views/views.h"
#include "app/serve/workers/workers.h"
#include "base/log.h"
#include "wire/index_question.h"
#include "wire/index_service.h"
#include "wire/prom_page.h"

enum { PENDING_BYTES = 16 << 20, PARTITIONS_TOLD = 256 };

/* What one thread needs to answer. */
struct asker {
    struct peers *peers;
    struct ctx_list ctxs;
    struct kvr_json_parser *json;
    struct kvr_service_question q;
    struct kvr_reach *reaches;
    struct kvr_buf out;
    struct kvr_nats_sub *sub;
};

struct index_server {
    uint64_t instance;
    bool subscribed;
    _Atomic bool ready;        /* the views have been restored */
    struct index_claim *claim; /* NULL without NATS: nobody else can be known of */
    struct asker http, query, record, info;
    _Atomic uint64_t queries, records, errors;
};

static bool predicted(const struct peers *peers)
{
    return !peers->o->kv_events;
}

/* Why nothing is answered now, or NULL. */
static const char *not_ready(const struct index_server *v)
{
    if (!atomic_load(&v->ready)) return "not ready: the views are being restored";
    return v->claim && !index_claim_holds(v->claim) ? "not ready: this server has lost its claim on the index, or NATS is away" : NULL;
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static int refuse(struct asker *a, int status, const char *text)
{
    atomic_fetch_add_explicit(&a->peers->served->errors, 1, memory_order_relaxed);
    a->out.len = 0;
    a->out.comma = false;
    kvr_service_error_write(&a->out, text);
    return status;
}

static struct partition *find_partition(struct peers *peers, const struct kvr_service_question *q)
{
    char model[MODEL_MAX];
    if (!q->model || q->model_len >= sizeof model) return NULL;
    memcpy(model, q->model, q->model_len);
    model[q->model_len] = 0;
    workers_lock(peers->workers);
    struct partition *p = partition_find_locked(peers->workers, model, "");
    workers_unlock(peers->workers);
    return p;
}

/* Workers that compute prompts for others are another pool, whose caches count as much: the next partition of these with blocks of that
 * size, from the list's beginning for NULL. */
static struct partition *next_prefills(struct peers *peers, const struct partition *of, const struct partition *after)
{
    workers_lock(peers->workers);
    struct partition *p = after ? after->next : partitions_first(peers->workers);
    while (p && (p == of || !p->prefills || p->block_size != of->block_size)) p = p->next;
    workers_unlock(peers->workers);
    return p;
}

/* What a partition's ranks have, behind the `n` that are there. Returns: how many there are then, or an error. */
static long add_overlap(struct asker *a, struct partition *p, long n)
{
    struct kvr_router_ctx *ctx = ctx_get(&a->ctxs, p);
    struct kvr_router_request rq = {.locals = a->q.blocks.h, .locals_n = a->q.blocks.n, .isl = a->q.isl};
    struct kvr_reach *to = a->reaches + n;
    long found = ctx ? kvr_router_overlap(p->router, ctx, &rq, to, RANKS_MAX - (size_t)n, NULL) : -KVR_ENOMEM;
    return found < 0 ? found : n + (long)kvr_router_keep_trusted(p->router, to, (size_t)found);
}

/* Each answers a->q with the HTTP status, the body in a->out. */
static int answer_query(struct asker *a)
{
    struct peers *peers = a->peers;
    struct partition *p = find_partition(peers, &a->q);
    if (!p) return refuse(a, 404, "this model is not served here");
    if (!a->q.blocks.given) return refuse(a, 400, "block_hashes: allowed: a list of at most 1048576 hashes");
    if (!a->reaches) a->reaches = malloc(RANKS_MAX * sizeof *a->reaches);
    long found = a->reaches ? add_overlap(a, p, 0) : -KVR_ENOMEM;
    for (struct partition *q = NULL; found >= 0 && (q = next_prefills(peers, p, q));) found = add_overlap(a, q, found);
    if (found < 0) return refuse(a, 500, kvr_strerror((int)found));
    for (long i = 0; a->q.device_only && i < found; i++)
        for (int t = 1; t < KVR_TIER_COUNT; t++) a->reaches[i].depth[t] = a->reaches[i].depth[0];
    atomic_fetch_add_explicit(&peers->served->queries, 1, memory_order_relaxed);
    kvr_service_scores_write(&a->out, a->reaches, (size_t)found, peers->served->instance);
    return 200;
}

static int answer_record(struct asker *a)
{
    struct peers *peers = a->peers;
    const struct kvr_service_question *q = &a->q;
    if (!predicted(peers)) return refuse(a, 409, "this index follows KV events and records no decisions");
    if (!find_partition(peers, q)) return refuse(a, 404, "this model is not served here");
    if (!q->has_worker) return refuse(a, 400, "worker: allowed: {worker_id, dp_rank}");
    if (!q->locals.given || !q->seqs.given)
        return refuse(a, 400, "local_hashes, sequence_hashes: allowed: lists of at most 1048576 hashes");
    workers_lock(peers->workers);
    const struct worker *known = worker_find_locked(peers->workers, q->worker.worker_id);
    const struct partition *p = known ? known->partition : NULL; /* a prefill worker's is another one than that of who answers */
    workers_unlock(peers->workers);
    if (!p) return refuse(a, 404, "this worker is not known here");
    int rc = kvr_index_record(p->index, q->worker, q->locals.h, q->locals.n, q->seqs.h, q->seqs.n);
    if (rc) return refuse(a, rc == -KVR_ELENGTH ? 400 : 503, kvr_strerror(rc));
    atomic_fetch_add_explicit(&peers->served->records, 1, memory_order_relaxed);
    kvr_buf_str(&a->out, "\"Recorded\"");
    return 200;
}

static int answer_info(struct asker *a)
{
    struct index_server *v = a->peers->served;
    const char *why = not_ready(v);
    struct kvr_service_info i = {.instance = v->instance, .predicted = predicted(a->peers), .ready = !why, .packed = true};
    struct kvr_remote_model models[PARTITIONS_TOLD];
    size_t n = 0;
    workers_lock(a->peers->workers);
    for (const struct partition *p = partitions_first(a->peers->workers); p && n < PARTITIONS_TOLD; p = p->next) {
        snprintf(models[n].name, sizeof models[n].name, "%s", p->model);
        models[n++].block_size = p->block_size;
    }
    workers_unlock(a->peers->workers);
    kvr_service_info_write(&a->out, &i, why ? why : "", models, n);
    return 200;
}

typedef int answer_fn(struct asker *a);

/* `read`: what came of reading the question. */
static int answer(struct asker *a, answer_fn *fn, int read)
{
    a->out.len = 0;
    a->out.comma = a->out.failed = false;
    const char *why = fn == answer_info ? NULL : not_ready(a->peers->served);
    if (read)
        return refuse(a, read == -KVR_ENOMEM ? 503 : 400,
                      read == -KVR_ENOMEM ? kvr_strerror(read) : "not a map that has each of its members once");
    if (why) return refuse(a, 503, why);
    const char *wrong = fn == answer_query ? a->q.wrong_query : fn == answer_record ? a->q.wrong_record : NULL;
    if (wrong) {
        char text[160];
        snprintf(text, sizeof text, "%s: allowed: %s", wrong, kvr_service_allowed(wrong));
        return refuse(a, 400, text);
    }
    int status = fn(a);
    return a->out.failed ? 500 : status;
}

/* ---- HTTP --------------------------------------------------------------------------------------------------------- */

static void reply(struct peers *peers, struct kvr_http_conn *c, answer_fn *fn, int read)
{
    struct asker *a = &peers->served->http;
    int status = answer(a, fn, read);
    if (a->out.failed) kvr_http_reply(c, 503, "application/json", NULL, "{\"Error\":\"out of memory\"}", 25);
    else kvr_http_reply(c, status, "application/json", NULL, a->out.data, a->out.len);
    kvr_service_question_trim(&a->q);
}

void index_server_post_query(struct peers *peers, struct kvr_http_conn *c, struct kvr_json o)
{
    reply(peers, c, answer_query, kvr_service_question_json(&peers->served->http.q, o));
}

void index_server_post_record(struct peers *peers, struct kvr_http_conn *c, struct kvr_json o)
{
    reply(peers, c, answer_record, kvr_service_question_json(&peers->served->http.q, o));
}

void index_server_get_info(struct peers *peers, struct kvr_http_conn *c)
{
    reply(peers, c, answer_info, 0);
}

static answer_fn *packed_at(struct kvr_text path)
{
    if (kvr_text_is(path, "/" KVR_SERVICE_QUERY)) return answer_query;
    return kvr_text_is(path, "/" KVR_SERVICE_RECORD) ? answer_record : NULL;
}

bool index_server_takes_packed(struct kvr_text path)
{
    return packed_at(path) != NULL;
}

void index_server_post_packed(struct peers *peers, struct kvr_http_conn *c)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    reply(peers, c, packed_at(rq->path), kvr_service_question_packed(&peers->served->http.q, rq->body, rq->body_len));
}

/* ---- NATS --------------------------------------------------------------------------------------------------------- */

static int read_question(struct asker *a, const char *data, size_t len)
{
    struct kvr_json o;
    if (kvr_service_is_packed(data, len)) return kvr_service_question_packed(&a->q, data, len);
    char twice[64];
    int rc = kvr_json_parse(a->json, data, len, &o, NULL);
    if (rc == 0) rc = kvr_json_check_members(a->json, twice, sizeof twice);
    return rc ? rc : kvr_service_question_json(&a->q, o);
}

static void on_message(struct asker *a, answer_fn *fn, const struct kvr_nats_message *m)
{
    if (!m->reply) return;
    (void)answer(a, fn, read_question(a, m->data, m->len));
    if (!a->out.failed) (void)kvr_nats_publish(a->peers->process->nats, m->reply, NULL, a->out.data, a->out.len);
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
    snprintf(subject, sizeof subject, "%s.%s%s", a->peers->process->scope, service, of_models ? ".*" : "");
    return a->json ? kvr_nats_subscribe(a->peers->process->nats, subject, of_models ? "kv-indexer" : NULL, PENDING_BYTES, fn, a, &a->sub)
                   : -KVR_ENOMEM;
}

void index_server_tick(struct peers *peers)
{
    struct index_server *v = peers->served;
    if (!v || v->subscribed) return;
    if (!atomic_load(&v->ready) && !views_settled(peers->workers)) return;
    atomic_store(&v->ready, true);
    v->subscribed = true;
    if (peers->process->nats && (subscribe(&v->query, KVR_SERVICE_QUERY, true, on_query) ||
                                 (predicted(peers) && subscribe(&v->record, KVR_SERVICE_RECORD, true, on_record))))
        kvr_log_warning("kvroute: serve-indexer: the service cannot be announced over NATS");
}

/* ---- life --------------------------------------------------------------------------------------------------------- */

bool index_server_is_on(const struct peers *peers)
{
    return peers->served != NULL;
}

int index_server_start(struct peers *peers, char *err, size_t cap)
{
    if (!peers->o->serve_indexer) return 0;
    struct index_server *v = calloc(1, sizeof *v);
    if (!v) return kvr_refuse(err, cap, "out of memory");
    v->http.peers = v->query.peers = v->record.peers = v->info.peers = peers;
    v->instance = peers->process->salt >> 11; /* exact as a JSON number */
    peers->served = v;
    if (!peers->process->nats) return 0;
    struct index_claim_config cc = {peers->process->nats, peers->process->scope, predicted(peers), (int)peers->o->plane.nats_replicas,
                                    v->instance,          peers->o->admin_port};
    if (index_claim_open(&cc, &v->claim, err, cap)) return -1;
    if (subscribe(&v->info, KVR_SERVICE_INFO, false, on_info) == 0) return 0;
    return kvr_refuse(err, cap, "serve-indexer: the service cannot be announced over NATS");
}

static void asker_free(struct asker *a)
{
    kvr_nats_unsubscribe(a->sub);
    ctx_list_free(&a->ctxs);
    if (a->json) kvr_json_parser_free(a->json);
    kvr_service_question_free(&a->q);
    free(a->reaches);
    kvr_buf_free(&a->out);
}

void index_server_stop(struct peers *peers)
{
    struct index_server *v = peers->served;
    if (!v) return;
    asker_free(&v->query);
    asker_free(&v->record);
    asker_free(&v->info);
    asker_free(&v->http);
    index_claim_close(v->claim);
    free(v);
    peers->served = NULL;
}

void index_server_metrics(struct peers *peers, struct kvr_prom_page *b)
{
    struct index_server *v = peers->served;
    const struct kvr_prom_row rows[] = {
        {"ready", "gauge", "1 when the served index answers", v && not_ready(v) == NULL},
        {"queries_total", "counter", "Overlap queries answered", v ? atomic_load(&v->queries) : 0},
        {"records_total", "counter", "Routing decisions recorded for others", v ? atomic_load(&v->records) : 0},
        {"errors_total", "counter", "Questions refused", v ? atomic_load(&v->errors) : 0},
    };
    kvr_prom_rows(b, v != NULL, "kvroute_served_index_", rows, KVR_ARRAY_LEN(rows));
}
