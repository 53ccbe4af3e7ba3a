/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP of `publish`.
 *
 *   GET /kv_recover?start=&end=&dp_rank=   what a consumer lacks (kvroute/local_index.h); shape=old, supports_tree_dump_failed=1
 *   GET /dump                              everything, as the indexer's /dump
 *   GET /status                            each rank: trust, ids, sizes
 *   GET /load                              how loaded the engine says it is, each rank
 *   GET /health  /ready  /metrics  /openapi.json
 */
#include "app/publish/state.h"

#include <string.h>

#include "net/http/produce.h"
#include "recover/event_json.h"
#include "net/http/process_metrics.h"
#include "wire/prom_page.h"

extern const char openapi_publish[]; /* openapi.yaml */

/* Until learn.c has an answer. */
#define WAITING "waiting for what the engine says of itself"

#define JSON_HEADER "Content-Type: application/json\r\n"

/* ---- small answers ------------------------------------------------------------------------------------------------ */

void publish_error_body(struct kvr_buf *b, int, const char *message)
{
    kvr_json_printf(b, "{'Error':%s}", message);
}

static void reply(struct kvr_http_conn *c, int status, const char *type, struct kvr_buf *b)
{
    if (b->failed) kvr_http_reply(c, 503, "application/json", NULL, "{\"Error\":\"out of memory\"}", 25);
    else kvr_http_reply(c, status, type, NULL, b->data ? b->data : "", b->len);
    kvr_buf_free(b);
}

static void error(struct kvr_http_conn *c, int status, const char *message)
{
    struct kvr_buf b = {0};
    publish_error_body(&b, status, message);
    reply(c, status, "application/json", &b);
}

static void not_allowed(struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    publish_error_body(&b, 405, "only GET");
    kvr_http_reply_buf(c, 405, "application/json", "Allow: GET, HEAD\r\n", &b);
}

/* ---- answers made by a thread --------------------------------------------------------------------------------------- */

struct answer {
    struct publish *p;
    struct feed *feed; /* NULL: all, as a dump */
    struct kvr_local_query query;
    struct kvr_producer *out;
    struct kvr_buf b;
};

static int to_client(void *ctx, const char *data, size_t len)
{
    struct answer *a = ctx;
    kvr_buf_add(&a->b, data, len);
    return a->b.len < KVR_PRODUCE_PIECE ? 0 : kvr_produce(a->out, &a->b);
}

static int put_event(void *ctx, const struct kvr_event *ev)
{
    struct answer *a = ctx;
    kvr__event_json(&a->b, ev, ev->event_id);
    return a->b.len < KVR_PRODUCE_PIECE ? 0 : kvr_produce(a->out, &a->b);
}

static int write_dump(struct answer *a)
{
    char key[300];
    int rc = 0;
    snprintf(key, sizeof key, "%s:default", a->p->model);
    kvr_json_printf(&a->b, "{%s:{'block_size':%u,'events':[", key, a->p->feeds[0].block_size);
    for (size_t i = 0; i < a->p->feeds_n && rc == 0; i++) rc = kvr_local_index_dump(a->p->feeds[i].index, put_event, a);
    kvr_json_printf(&a->b, "]}}");
    return rc;
}

static bool write_answer(struct kvr_producer *out, void *arg)
{
    struct answer *a = arg;
    a->out = out;
    int rc = a->feed ? kvr_local_index_answer(a->feed->index, &a->query, to_client, a) : write_dump(a);
    return rc == 0 && kvr_produce(out, &a->b) == 0;
}

static void on_over(void *arg, bool, bool)
{
    struct answer *a = arg;
    a->p->answers--;
    kvr_buf_free(&a->b);
    free(a);
}

static void answer_by_thread(struct publish *p, struct kvr_http_conn *c, struct feed *f, const struct kvr_local_query *q)
{
    struct answer *a = p->answers < ANSWERS_MAX ? calloc(1, sizeof *a) : NULL;
    struct kvr_produce_config pc = {.loop = &p->loop, .conn = c, .headers = JSON_HEADER, .fn = write_answer, .on_over = on_over, .arg = a};
    if (a) {
        *a = (struct answer){.p = p, .feed = f, .query = *q};
        p->answers++;
        if (kvr_produce_start(&pc) == 0) return;
        p->answers--;
        free(a);
    }
    p->refused_answers++;
    error(c, 503, "too many answers are being written; try again");
}

/* A whole number in the query. 1 there, 0 not, -1 answered with an error. */
static int number(struct kvr_http_conn *c, const char *key, uint64_t max, uint64_t *out)
{
    char text[40], message[160];
    int given = kvr_query_parameter(kvr_http_conn_request(c)->query, key, text, sizeof text);
    if (given == 0 || (given > 0 && !text[0])) return 0;
    if (kvr_parse_u64(text, strlen(text), max, out)) return 1;
    snprintf(message, sizeof message, "bad value '%.30s' for '%s'; allowed: a whole number up to %llu", text, key, (unsigned long long)max);
    error(c, 400, message);
    return -1;
}

static bool is_set(struct kvr_http_conn *c, const char *key, const char *value)
{
    char text[16];
    return kvr_query_parameter(kvr_http_conn_request(c)->query, key, text, sizeof text) && strcmp(text, value) == 0;
}

static void dump(struct publish *p, struct kvr_http_conn *c)
{
    answer_by_thread(p, c, NULL, &(struct kvr_local_query){0});
}

static void recover(struct publish *p, struct kvr_http_conn *c)
{
    struct kvr_local_query q = {.old_shape = is_set(c, "shape", "old")};
    uint64_t rank = p->dp_start, worker = p->o->worker_id;
    char message[160];
    q.supports_tree_dump_failed = is_set(c, "supports_tree_dump_failed", "1") || is_set(c, "supports_tree_dump_failed", "true");
    int start = number(c, "start", UINT64_MAX, &q.start);
    int end = start < 0 ? -1 : number(c, "end", UINT64_MAX, &q.end);
    int of_rank = end < 0 ? -1 : number(c, "dp_rank", UINT32_MAX, &rank);
    if (of_rank < 0 || number(c, "worker_id", UINT64_MAX, &worker) < 0) return;
    q.has_start = start > 0;
    q.has_end = end > 0;
    struct feed *f = NULL;
    for (size_t i = 0; i < p->feeds_n; i++)
        if (p->feeds[i].worker.dp_rank == rank) f = &p->feeds[i];
    if (f && worker == p->o->worker_id) {
        answer_by_thread(p, c, f, &q);
        return;
    }
    snprintf(message, sizeof message, "this is worker %llu with dp_rank %llu to %llu", (unsigned long long)p->o->worker_id,
             (unsigned long long)p->dp_start, (unsigned long long)p->dp_start + p->dp_size - 1);
    error(c, 404, message);
}

/* ---- status --------------------------------------------------------------------------------------------------------- */

static size_t statuses(struct publish *p, struct kvr_view_status *st)
{
    return KVR_MIN(kvr_ingest_status(p->ingest, st, RANKS_MAX), (size_t)RANKS_MAX);
}

static const struct kvr_view_status *status_of(const struct kvr_view_status *st, size_t n, const struct feed *f)
{
    for (size_t i = 0; i < n; i++)
        if (st[i].worker.dp_rank == f->worker.dp_rank) return &st[i];
    return NULL;
}

static struct kvr_outlet_kept kept_by(const struct feed *f)
{
    struct kvr_outlet_kept k = {0};
    if (f->outlet->kept) f->outlet->kept(f->outlet, &k);
    return k;
}

/* What waits to be stored by an event plane that keeps events. */
static void put_kept(struct kvr_buf *b, const struct kvr_outlet_kept *k)
{
    kvr_json_printf(b, "'stream':{'waiting':%ju,'waiting_bytes':%ju,'again':%ju,'lost':%ju,'reason':%s}", k->messages, k->bytes, k->again,
                    k->lost, k->why);
}

static void put_view(struct kvr_buf *b, const struct kvr_view_status *st, const struct kvr_outlet_kept *k)
{
    enum kvr_view_knowledge knowledge = st ? st->knowledge : KVR_VIEW_UNKNOWN;
    bool whole = knowledge == KVR_VIEW_WHOLE && !k->lacks; /* who asks a local index wants all of it */
    char lost[sizeof k->why_lost + 40];
    snprintf(lost, sizeof lost, "%llu events were lost: %s", (unsigned long long)k->lost, k->why_lost);
    if (k->lacks) knowledge = KVR_MIN(knowledge, KVR_VIEW_PARTIAL);
    kvr_json_printf(b, "'view':%s,'trust':%s,'reason':%s", kvr_view_knowledge_name(knowledge),
                    whole                 ? "trusted"
                    : st && st->repairing ? "recovering"
                                          : "untrusted",
                    st && st->reason[0] ? st->reason
                    : k->lacks          ? lost
                                        : "");
}

static void put_rank(struct kvr_buf *b, struct feed *f, const struct kvr_view_status *st)
{
    struct kvr_local_index_stats n;
    struct kvr_outlet_kept k = kept_by(f);
    kvr_local_index_stats(f->index, &n);
    kvr_json_printf(b, "{'dp_rank':%u,'published_on':%s", f->worker.dp_rank, f->outlet->where);
    put_view(b, st, &k);
    if (f->outlet->kept) put_kept(b, &k);
    kvr_json_printf(b, "'connected':%i,'engine_batches':%ju,'engine_gaps':%ju,'engine_restarts':%ju", st && st->connected,
                    st ? st->batches : 0, st ? st->gaps : 0, st ? st->restarts : 0);
    if (st && st->engine_block_size) kvr_json_put_u64(b, "engine_block_size", st->engine_block_size);
    kvr_json_printf(b, "'block_size_mismatches':%ju,'parentless_stores':%ju,'other_rank_batches':%ju",
                    st ? st->filtered.block_size_mismatch : 0, atomic_load(&f->parentless), st ? st->filtered.other_rank : 0);
    kvr_json_printf(b, "'epoch':%ju,'oldest_id':%ju,'newest_id':%ju,'blocks':%zu,'buffer_events':%zu,'buffer_bytes':%zu,'index_bytes':%zu}",
                    n.epoch, n.oldest_id, n.newest_id, n.blocks, n.ring_events, n.ring_bytes, n.index_bytes);
}

static void status(struct publish *p, struct kvr_http_conn *c)
{
    struct kvr_view_status st[RANKS_MAX];
    size_t n = statuses(p, st);
    uint32_t size = p->feeds_n ? p->feeds[0].block_size : p->block_size;
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'worker_id':%ju,'model_name':%s", p->o->worker_id, p->model);
    if (size) kvr_json_put_u64(&b, "block_size", size);
    kvr_json_printf(&b, "'notes':[");
    for (size_t i = 0; i < p->notes_n; i++) kvr_json_printf(&b, "%s", p->notes[i]);
    kvr_json_printf(&b, "],'ranks':[");
    for (size_t i = 0; i < p->feeds_n; i++) put_rank(&b, &p->feeds[i], status_of(st, n, &p->feeds[i]));
    kvr_json_printf(&b, "]}");
    reply(c, 200, "application/json", &b);
}

static void load(struct publish *p, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    engine_metrics_write_json(p, &b);
    reply(c, p->engine_metrics ? 200 : 404, "application/json", &b);
}

static void health(struct publish *p, struct kvr_http_conn *c)
{
    if (p->ending.phase != KVR_SERVING) error(c, 503, "shutting down");
    else kvr_http_reply(c, 200, "text/plain", NULL, "ok\n", 3);
}

static void openapi(struct publish *, struct kvr_http_conn *c)
{
    kvr_http_reply(c, 200, "application/json", NULL, openapi_publish, strlen(openapi_publish));
}

static void ready(struct publish *p, struct kvr_http_conn *c)
{
    struct kvr_view_status st[RANKS_MAX];
    size_t n = statuses(p, st);
    char why[KVR_VIEW_REASON_MAX + 32] = "";
    if (p->ending.phase != KVR_SERVING) snprintf(why, sizeof why, "shutting down");
    else if (!p->feeds_n) snprintf(why, sizeof why, WAITING);
    for (size_t i = 0; i < p->feeds_n && !why[0]; i++) {
        const struct kvr_view_status *s = status_of(st, n, &p->feeds[i]);
        if (s && s->knowledge == KVR_VIEW_WHOLE) continue;
        snprintf(why, sizeof why, "rank %u is not whole: %s", p->feeds[i].worker.dp_rank, s && s->reason[0] ? s->reason : "not seen yet");
    }
    if (why[0]) error(c, 503, why);
    else kvr_http_reply(c, 200, "text/plain", NULL, "ready\n", 6);
}

/* ---- metrics -------------------------------------------------------------------------------------------------------- */

static void put_metric(struct kvr_prom_page *b, const struct publish *p, const char *name, const char *type, const char *help,
                       const uint64_t *v)
{
    kvr_prom_family(b, "kvroute_publish_", name, type, help);
    for (size_t i = 0; i < p->feeds_n; i++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_RANK(p->o->worker_id, p->feeds[i].worker.dp_rank)), v[i]);
}

static void metrics(struct publish *p, struct kvr_http_conn *c)
{
    struct kvr_view_status st[RANKS_MAX], of[RANKS_MAX] = {0};
    struct kvr_local_index_stats ls[RANKS_MAX];
    struct kvr_zmq_guard_stats gs[RANKS_MAX] = {0};
    struct kvr_outlet_kept ks[RANKS_MAX];
    uint64_t v[RANKS_MAX];
    size_t n = statuses(p, st);
    struct kvr_buf b = {0};
    struct kvr_prom_page page = {.out = &b};
    for (size_t i = 0; i < p->feeds_n; i++) {
        const struct kvr_view_status *s = status_of(st, n, &p->feeds[i]);
        if (s) of[i] = *s;
        kvr_local_index_stats(p->feeds[i].index, &ls[i]);
        if (p->feeds[i].outlet->stats) p->feeds[i].outlet->stats(p->feeds[i].outlet, &gs[i]);
        ks[i] = kept_by(&p->feeds[i]);
    }
#define PUT(name, type, help, value)                                                                                                       \
    do {                                                                                                                                   \
        for (size_t i = 0; i < p->feeds_n; i++) v[i] = (value);                                                                            \
        put_metric(&page, p, name, type, help, v);                                                                                         \
    } while (0)
    PUT("whole", "gauge", "1 when the local index has all the engine holds", of[i].knowledge == KVR_VIEW_WHOLE);
    PUT("events_total", "counter", "Events published", atomic_load(&p->feeds[i].published));
    PUT("send_failures_total", "counter", "Events that the socket did not take", atomic_load(&p->feeds[i].send_failures));
    PUT("connections", "gauge", "Consumers connected to the rank's socket (tcp)", gs[i].connections);
    PUT("connections_refused_total", "counter", "Connections beyond 64", gs[i].refused);
    PUT("talkers_total", "counter", "Connections ended because they said more than consumers do", gs[i].talkers);
    PUT("stalled_total", "counter", "Connections ended: they did not read", gs[i].stalled);
    PUT("queue_full_total", "counter", "Events lost because 64 MiB wait unread", gs[i].queue_full);
    PUT("stream_waiting", "gauge", "Events that wait until JetStream has stored them", ks[i].messages);
    PUT("stream_waiting_bytes", "gauge", "Memory of these", ks[i].bytes);
    PUT("stream_again_total", "counter", "Events published again, as they were not stored", ks[i].again);
    PUT("stream_failures_total", "counter", "Times that events were not stored", ks[i].failures);
    PUT("stream_lost_total", "counter", "Events that found no room among those that wait", ks[i].lost);
    PUT("duplicates_total", "counter", "Removed hashes of which a copy remains", of[i].filtered.copy_removed);
    PUT("forgotten_salts_total", "counter", "Salted stores for whose salt there was no room", atomic_load(&p->feeds[i].forgotten_salts));
    PUT("parentless_stores_total", "counter", "Stores left out, as their parent was never published", atomic_load(&p->feeds[i].parentless));
    PUT("refused_events_total", "counter", "Events that the local index refused", ls[i].refused);
    PUT("blocks", "gauge", "Blocks in the local index", ls[i].blocks);
    PUT("index_bytes", "gauge", "Memory of the local index", ls[i].index_bytes);
    PUT("buffer_events", "gauge", "Events in the buffer", ls[i].ring_events);
    PUT("buffer_evicted_total", "counter", "Events that have fallen out of the buffer", ls[i].evicted);
    PUT("buffer_bytes", "gauge", "Memory of the buffer", ls[i].ring_bytes);
    PUT("answers_events_total", "counter", "Recovery answers from the buffer", ls[i].ranges);
    PUT("answers_dump_total", "counter", "Recovery answers with everything", ls[i].dumps);
    PUT("answers_failed_total", "counter", "Recovery questions that could not be answered", ls[i].dump_failures);
    PUT("answers_too_new_total", "counter", "Recovery questions for what has not happened", ls[i].too_new);
#define ENGINE(name, help) PUT("engine_" #name "_total", "counter", "The engine's stream: " #name, of[i].name);
    KVR_INGEST_COUNTERS(ENGINE)
#undef ENGINE
#undef PUT
    kvr_prom_one_u64(&page, "kvroute_publish_", "refused_answers_total", "counter",
                     "Recovery questions refused because too many were being answered", p->refused_answers);
    kvr_process_metrics("publish", &page);
    engine_metrics_write(p, &page);
    kvr_http_shared_metrics(&(struct kvr_http_port){"data", &p->http}, 1, &page);
    kvr_access_metrics(p->access, &page);
    reply(c, 200, "text/plain; version=0.0.4", &b);
}

/* ---- routing -------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *path;
    void (*get)(struct publish *p, struct kvr_http_conn *c);
    bool of_ranks; /* there is nothing to say before the engine's ranks are known */
} routes[] = {{"/kv_recover", recover, true}, {"/dump", dump, true},    {"/status", status, false},   {"/load", load, false},
              {"/health", health, false},     {"/ready", ready, false}, {"/metrics", metrics, false}, {"/openapi.json", openapi, false}};

void publish_on_request(struct kvr_http_conn *c, void *ctx)
{
    struct publish *p = ctx;
    const struct kvr_http_request *r = kvr_http_conn_request(c);
    struct kvr_access_refusal no;
    bool probe = kvr_text_is(r->path, "/health") || kvr_text_is(r->path, "/ready");
    size_t i = 0;
    kvr_http_conn_set_user(c, NULL);
    while (i < KVR_ARRAY_LEN(routes) && !kvr_text_is(r->path, routes[i].path)) i++;
    if (!kvr_access_check(p->access, r, probe ? KVR_ACCESS_PROBE : 0, &no)) error(c, no.status, no.text);
    else if (i == KVR_ARRAY_LEN(routes))
        error(c, 404, "no such path; there are /kv_recover, /dump, /status, /load, /health, /ready, /metrics, /openapi.json");
    else if (!kvr_text_is(r->method, "GET")) not_allowed(c);
    else if (routes[i].of_ranks && !p->feeds_n) error(c, 503, WAITING);
    else routes[i].get(p, c);
}
