/* SPDX-License-Identifier: Apache-2.0 */
/* Admin port: metrics, workers, loads, overlap questions, dump, the page. Errors are {"error": text}. */
#include "app/serve/state.h"

#include <string.h>

#include "wire/router_event.h"

extern const char admin_page[]; /* page.c */

enum { RANKS_MAX = 8192 };

/* ---- answers ----------------------------------------------------------------------------------------- */

static void reply(struct kvr_http_conn *c, int status, struct kvr_buf *b)
{
    if (b->failed) kvr_http_reply(c, 500, "application/json", NULL, "{\"error\":\"out of memory\"}", 25);
    else kvr_http_reply(c, status, "application/json", NULL, b->data ? b->data : "", b->len);
    kvr_buf_free(b);
}

static void error_body(struct kvr_buf *b, int status, const char *text)
{
    (void)status;
    kvr_json_open(b, '{');
    kvr_json_key(b, "error");
    kvr_json_str(b, text, strlen(text));
    kvr_json_close(b, '}');
}

static void reply_error(struct kvr_http_conn *c, int status, const char *text)
{
    struct kvr_buf b = {0};
    error_body(&b, status, text);
    reply(c, status, &b);
}

static void reply_ok(struct kvr_http_conn *c, int status)
{
    kvr_http_reply(c, status, "application/json", NULL, "{\"status\":\"ok\"}", 15);
}

static const char *model_of(const struct serve *s, const struct worker *w)
{
    return w->model[0] ? w->model : s->o->model ? s->o->model : w->models_n ? w->models[0].id : "default";
}

/* ---- workers ----------------------------------------------------------------------------------------- */

static void put_endpoints(struct kvr_buf *b, const char *key, const struct worker *w, char (*list)[96])
{
    char rank[16];
    kvr_json_key(b, key);
    kvr_json_open(b, '{');
    for (uint32_t r = 0; r < w->dp_size; r++) {
        if (!list[r][0]) continue;
        snprintf(rank, sizeof rank, "%u", w->dp_start + r);
        kvr_json_put_str(b, rank, list[r]);
    }
    kvr_json_close(b, '}');
}

static void put_views(struct serve *s, struct kvr_buf *b, const struct worker *w, const struct kvr_view_status *st, size_t n)
{
    kvr_json_key(b, "views");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) {
        if (st[i].worker.worker_id != w->id) continue;
        kvr_json_open(b, '{');
        kvr_json_put_u64(b, "dp_rank", st[i].worker.dp_rank);
        kvr_json_put_str(b, "state", st[i].state == KVR_VIEW_LIVE ? "live" : "restoring");
        kvr_json_key(b, "trusted");
        kvr_json_bool(b, st[i].trusted);
        kvr_json_put_str(b, "reason", st[i].reason);
        kvr_json_put_u64(b, "for_ms", (kvr_now_ns(kvr_clock_monotonic()) - st[i].since_ns) / 1000000);
        kvr_json_put_u64(b, "next_sequence", st[i].next_sequence);
        kvr_json_put_u64(b, "batches", st[i].batches);
        kvr_json_put_u64(b, "events", st[i].events);
        kvr_json_put_u64(b, "gaps", st[i].gaps);
        kvr_json_put_u64(b, "restarts", st[i].restarts);
        kvr_json_put_u64(b, "blocks", w->pool->index ? kvr_index_rank_blocks(w->pool->index, st[i].worker) : 0);
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, ']');
    (void)s;
}

static void put_worker(struct serve *s, struct kvr_buf *b, struct worker *w, const struct kvr_view_status *st, size_t n)
{
    static const char *const states[] = {"unknown", "up", "down"};
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "worker_id", w->id);
    kvr_json_put_str(b, "model_name", model_of(s, w));
    kvr_json_put_str(b, "routing_group", w->group);
    kvr_json_put_str(b, "endpoint", w->url);
    kvr_json_put_u64(b, "block_size", w->block_size);
    kvr_json_put_u64(b, "data_parallel_start_rank", w->dp_start);
    kvr_json_put_u64(b, "data_parallel_size", w->dp_size);
    kvr_json_put_str(b, "role", w->role);
    put_endpoints(b, "kv_events_endpoints", w, w->events);
    put_endpoints(b, "replay_endpoints", w, w->replay);
    kvr_json_put_u64(b, "max_num_batched_tokens", w->max_num_batched_tokens);
    kvr_json_put_u64(b, "total_kv_blocks", w->total_kv_blocks);
    kvr_json_put_str(b, "status", states[w->health]);
    kvr_json_key(b, "schedulable");
    kvr_json_bool(b, worker_is_schedulable(w, now_ms()));
    kvr_json_key(b, "breaker_open");
    kvr_json_bool(b, w->open_until_ms > now_ms());
    kvr_json_put_u64(b, "requests", w->requests);
    kvr_json_put_u64(b, "errors", w->errors);
    put_views(s, b, w, st, n);
    kvr_json_close(b, '}');
}

static void workers_write(struct serve *s, struct kvr_buf *b)
{
    struct kvr_view_status *st = calloc(RANKS_MAX, sizeof *st);
    size_t n = s->ingest && st ? KVR_MIN(kvr_ingest_status(s->ingest, st, RANKS_MAX), (size_t)RANKS_MAX) : 0;
    kvr_json_open(b, '[');
    pthread_mutex_lock(&s->lock);
    for (struct worker *w = s->workers; w; w = w->next) put_worker(s, b, w, st, n);
    pthread_mutex_unlock(&s->lock);
    kvr_json_close(b, ']');
    free(st);
}

static bool get_u64(struct kvr_json o, const char *key, uint64_t max, uint64_t *out, const char **bad)
{
    struct kvr_json v = kvr_json_get(o, key);
    if (kvr_json_type_of(v) <= KVR_JSON_NULL) return true;
    if (kvr_json_as_u64(v, out) && *out <= max) return true;
    *bad = key;
    return false;
}

static bool get_text(struct kvr_json o, const char *key, char *out, size_t cap, const char **bad)
{
    const char *s;
    size_t len;
    struct kvr_json v = kvr_json_get(o, key);
    if (kvr_json_type_of(v) <= KVR_JSON_NULL) return true;
    if (kvr_json_as_str(v, &s, &len) && len < cap && !memchr(s, 0, len)) {
        memcpy(out, s, len);
        out[len] = 0;
        return true;
    }
    *bad = key;
    return false;
}

struct endpoints {
    struct worker *w;
    char (*list)[96];
};

static int add_endpoint(void *ctx, const char *key, size_t key_len, struct kvr_json v)
{
    struct endpoints *e = ctx;
    const char *s;
    size_t len;
    char rank_text[16] = {0}, *end;
    if (!key || key_len >= sizeof rank_text || !kvr_json_as_str(v, &s, &len) || len >= 96) return 1;
    memcpy(rank_text, key, key_len);
    unsigned long rank = strtoul(rank_text, &end, 10);
    if (*end || rank < e->w->dp_start || rank - e->w->dp_start >= e->w->dp_size) return 1;
    char *out = e->list[rank - e->w->dp_start];
    memcpy(out, s, len);
    out[len] = 0;
    return kvr_ingest_endpoint_ok(out) ? 0 : 1;
}

/* {rank: url}, or one url whose port rises with the rank. */
static bool get_endpoints(struct kvr_json v, struct worker *w, char (*list)[96])
{
    const char *s;
    size_t len;
    char base[96];
    if (kvr_json_type_of(v) <= KVR_JSON_NULL) return true;
    memset(list, 0, sizeof(char[DP_MAX][96]));
    if (kvr_json_type_of(v) == KVR_JSON_OBJECT) {
        struct endpoints e = {w, list};
        return kvr_json_each(v, add_endpoint, &e) == 0;
    }
    if (!kvr_json_as_str(v, &s, &len) || len >= sizeof base) return false;
    memcpy(base, s, len);
    base[len] = 0;
    if (!kvr_ingest_endpoint_ok(base)) return false;
    for (uint32_t r = 0; r < w->dp_size; r++)
        if (!kvr_ingest_endpoint_shift(base, r, list[r], 96)) return false;
    return true;
}

/* Fields of a worker object over `w`. Returns: NULL, or the field that is wrong. */
static const char *read_worker(struct kvr_json o, struct worker *w)
{
    const char *bad = NULL;
    uint64_t bs = w->block_size, start = w->dp_start, size = w->dp_size;
    char url[512] = "", role[16] = "";
    if (!get_text(o, "endpoint", url, sizeof url, &bad) || !get_text(o, "model_name", w->model, MODEL_MAX, &bad) ||
        !get_text(o, "routing_group", w->group, MODEL_MAX, &bad) || !get_text(o, "role", role, sizeof role, &bad) ||
        !get_u64(o, "block_size", 65536, &bs, &bad) || !get_u64(o, "data_parallel_start_rank", 1u << 20, &start, &bad) ||
        !get_u64(o, "data_parallel_size", DP_MAX, &size, &bad) ||
        !get_u64(o, "max_num_batched_tokens", UINT64_MAX, &w->max_num_batched_tokens, &bad) ||
        !get_u64(o, "total_kv_blocks", UINT64_MAX, &w->total_kv_blocks, &bad))
        return bad;
    if (bs == 0) return "block_size";
    if (size == 0) return "data_parallel_size";
    if (role[0]) {
        if (strcmp(role, "both") && strcmp(role, "prefill") && strcmp(role, "decode")) return "role";
        snprintf(w->role, sizeof w->role, "%s", role);
    }
    w->block_size = (uint32_t)bs;
    w->dp_start = (uint32_t)start;
    w->dp_size = (uint32_t)size;
    if (url[0]) {
        if (kvr_endpoint_parse(url, strlen(url), &w->endpoint)) return "endpoint";
        snprintf(w->url, sizeof w->url, "%s", url);
    }
    if (!get_endpoints(kvr_json_get(o, "kv_events_endpoints"), w, w->events)) return "kv_events_endpoints";
    if (!get_endpoints(kvr_json_get(o, "replay_endpoint"), w, w->replay)) return "replay_endpoint";
    if (!get_endpoints(kvr_json_get(o, "replay_endpoints"), w, w->replay)) return "replay_endpoints";
    w->has_events = false;
    for (uint32_t r = 0; r < w->dp_size; r++) w->has_events |= w->events[r][0] != 0;
    return NULL;
}

static void bad_field(struct kvr_http_conn *c, const char *field)
{
    char text[160];
    snprintf(text, sizeof text, "field '%s' has a value that is not allowed", field);
    reply_error(c, 400, text);
}

static void reset_runtime(struct worker *w)
{
    w->next = NULL;
    w->pool = NULL;
    w->refs = 0;
    w->removed = false;
    w->health = HEALTH_UNKNOWN;
    w->failures = 0;
    w->open_until_ms = 0;
    w->models = NULL;
    w->models_n = 0;
    w->requests = w->errors = 0;
}

static void save_worker(struct serve *s, struct kvr_http_conn *c, struct worker *w, int status)
{
    char err[256];
    if (worker_add(s, w, err, sizeof err)) reply_error(c, 409, err);
    else reply_ok(c, status);
}

static void post_worker(struct serve *s, struct kvr_http_conn *c, struct kvr_json o)
{
    struct worker w = {.block_size = (uint32_t)s->o->block_size, .dp_size = 1, .role = "both", .group = "default"};
    if (!kvr_json_as_u64(kvr_json_get(o, "worker_id"), &w.id)) {
        bad_field(c, "worker_id");
        return;
    }
    const char *bad = read_worker(o, &w);
    if (!bad && !w.url[0]) bad = "endpoint";
    if (bad) bad_field(c, bad);
    else save_worker(s, c, &w, 201);
}

static void patch_worker(struct serve *s, struct kvr_http_conn *c, uint64_t id, struct kvr_json o)
{
    struct worker w;
    pthread_mutex_lock(&s->lock);
    const struct worker *old = worker_find_locked(s, id);
    if (old) w = *old;
    pthread_mutex_unlock(&s->lock);
    if (!old) {
        reply_error(c, 404, "worker not found");
        return;
    }
    reset_runtime(&w);
    const char *bad = read_worker(o, &w);
    if (bad) bad_field(c, bad);
    else save_worker(s, c, &w, 200);
}

/* ---- questions --------------------------------------------------------------------------------------- */

struct question {
    char model[MODEL_MAX], lora[MODEL_MAX], salt[256], group[MODEL_MAX];
    uint32_t *tokens;
    uint64_t *locals, *seqs;
    size_t tokens_n, locals_n, seqs_n;
    uint64_t isl;
    struct pool *pool;
};

static void question_free(struct question *q)
{
    free(q->tokens);
    free(q->locals);
    free(q->seqs);
}

static bool get_hashes(struct kvr_json v, uint64_t **out, size_t *n)
{
    if (kvr_json_type_of(v) != KVR_JSON_ARRAY) return false;
    *n = kvr_json_count(v);
    *out = malloc((*n + 1) * sizeof **out);
    return *out && kvr_json_u64_array(v, *out, *n) >= 0;
}

/* token_ids, or block_hashes + sequence_hashes + isl_tokens. Returns: false after having answered. */
static bool read_question(struct serve *s, struct kvr_http_conn *c, struct kvr_json o, struct question *q)
{
    const char *bad = NULL;
    struct kvr_json tokens = kvr_json_get(o, "token_ids"), hashes = kvr_json_get(o, "block_hashes");
    struct kvr_json seqs = kvr_json_get(o, "sequence_hashes");
    bool lora, known = false;
    memset(q, 0, sizeof *q);
    if (!get_text(o, "model_name", q->model, MODEL_MAX, &bad) || !get_text(o, "lora_name", q->lora, MODEL_MAX, &bad) ||
        !get_text(o, "cache_salt", q->salt, sizeof q->salt, &bad) || !get_text(o, "routing_group", q->group, MODEL_MAX, &bad) ||
        !get_u64(o, "isl_tokens", UINT64_MAX, &q->isl, &bad)) {
        bad_field(c, bad);
        return false;
    }
    if (kvr_json_type_of(tokens) == KVR_JSON_ARRAY) {
        q->tokens_n = kvr_json_count(tokens);
        q->tokens = malloc((q->tokens_n + 1) * sizeof *q->tokens);
        if (!q->tokens || kvr_json_u32_array(tokens, q->tokens, q->tokens_n) < 0) bad = "token_ids";
    } else if (kvr_json_type_of(hashes) != KVR_JSON_ARRAY) {
        bad = "token_ids";
    } else if (!get_hashes(hashes, &q->locals, &q->locals_n)) {
        bad = "block_hashes";
    } else if (kvr_json_type_of(seqs) > KVR_JSON_NULL && (!get_hashes(seqs, &q->seqs, &q->seqs_n) || q->seqs_n != q->locals_n)) {
        bad = "sequence_hashes";
    }
    if (bad) {
        question_free(q);
        bad_field(c, bad);
        return false;
    }
    pthread_mutex_lock(&s->lock);
    for (const struct worker *w = s->workers; w && !known; w = w->next)
        if (!q->model[0] || worker_serves_locked(s, w, q->model, strlen(q->model), &lora)) {
            known = true;
            q->pool = w->pool;
        }
    pthread_mutex_unlock(&s->lock);
    if (!known) {
        char text[2 * MODEL_MAX + 96];
        snprintf(text, sizeof text, "no indexer for model=%s routing_group=%s", q->model[0] ? q->model : "default",
                 q->group[0] ? q->group : "default");
        question_free(q);
        reply_error(c, 404, text);
        return false;
    }
    if (!q->isl) q->isl = q->tokens ? q->tokens_n : q->locals_n * q->pool->block_size;
    return true;
}

static struct kvr_router_request as_request(const struct question *q)
{
    return (struct kvr_router_request){.tokens = q->tokens,
                                       .tokens_n = q->tokens_n,
                                       .locals = q->locals,
                                       .locals_n = q->locals_n,
                                       .seqs = q->seqs,
                                       .seqs_n = q->seqs_n,
                                       .isl = q->isl,
                                       .lora = q->lora,
                                       .lora_len = strlen(q->lora),
                                       .salt = q->salt,
                                       .salt_len = strlen(q->salt)};
}

static struct kvr_router_ctx *admin_ctx(struct serve *s, struct pool *pool)
{
    return ctx_get(&s->admin_ctxs, pool);
}

struct scores {
    struct kvr_reach *o;
    long n;
    size_t blocks;
};

static bool ask_overlap(struct serve *s, struct kvr_http_conn *c, const struct question *q, struct scores *out)
{
    struct kvr_router_ctx *ctx = admin_ctx(s, q->pool);
    struct kvr_router_request rq = as_request(q);
    out->o = calloc(RANKS_MAX, sizeof *out->o);
    out->n = out->o && ctx ? kvr_router_overlap(q->pool->router, ctx, &rq, out->o, RANKS_MAX, &out->blocks) : -KVR_ENOMEM;
    if (out->n >= 0) return true;
    free(out->o);
    reply_error(c, out->n == -KVR_ENOINDEX ? 400 : 500, kvr_strerror((int)out->n));
    return false;
}

static const uint32_t *depths_of(const struct scores *sc, struct kvr_worker w)
{
    static const uint32_t none[KVR_TIER_COUNT];
    for (long i = 0; i < sc->n; i++)
        if (kvr_worker_cmp(sc->o[i].worker, w) == 0) return sc->o[i].depth;
    return none;
}

static void overlap_scores(struct serve *s, struct kvr_http_conn *c, struct kvr_json o)
{
    struct question q;
    struct scores sc;
    struct kvr_buf b = {0};
    struct kvr_rank_load *l = calloc(RANKS_MAX, sizeof *l);
    if (!l || !read_question(s, c, o, &q)) {
        free(l);
        return;
    }
    if (ask_overlap(s, c, &q, &sc)) {
        kvr_json_open(&b, '{');
        kvr_json_put_u64(&b, "block_size", q.pool->block_size);
        kvr_json_put_u64(&b, "num_blocks", sc.blocks);
        kvr_json_key(&b, "workers");
        kvr_json_open(&b, '[');
        size_t n = KVR_MIN(kvr_router_loads(q.pool->router, l, RANKS_MAX), (size_t)RANKS_MAX);
        for (size_t i = 0; i < n; i++) {
            const uint32_t *d = depths_of(&sc, l[i].worker);
            uint32_t device = d[KVR_TIER_DEVICE], host = d[KVR_TIER_HOST_PINNED], disk = d[KVR_TIER_EXTERNAL];
            kvr_json_open(&b, '{');
            kvr_json_put_u64(&b, "worker_id", l[i].worker.worker_id);
            kvr_json_put_u64(&b, "dp_rank", l[i].worker.dp_rank);
            kvr_json_put_u64(&b, "device_blocks", device);
            kvr_json_put_u64(&b, "host_pinned_blocks", host);
            kvr_json_put_u64(&b, "disk_blocks", disk);
            kvr_json_put_u64(&b, "host_pinned_extension_blocks", host - device);
            kvr_json_put_u64(&b, "disk_extension_blocks", disk - host);
            kvr_json_key(&b, "router_credit_blocks");
            kvr_json_double(&b, s->o->overlap_credit * device + s->o->host_weight * (host - device) + s->o->disk_weight * (disk - host));
            kvr_json_close(&b, '}');
        }
        kvr_json_close(&b, ']');
        kvr_json_close(&b, '}');
        reply(c, 200, &b);
        free(sc.o);
    }
    free(l);
    question_free(&q);
}

/* scores, frequencies and instances of the standalone indexer's API; counts are in tokens. */
static void put_query_answer(struct kvr_buf *b, const struct scores *sc, uint32_t bs)
{
    char key[32];
    for (int what = 0; what < 2; what++) {
        kvr_json_key(b, what ? "instances" : "scores");
        kvr_json_open(b, '{');
        for (long i = 0; i < sc->n; i++) {
            uint64_t id = sc->o[i].worker.worker_id, best[KVR_TIER_COUNT] = {0};
            bool first = true;
            for (long k = 0; k < i; k++) first &= sc->o[k].worker.worker_id != id;
            if (!first) continue;
            snprintf(key, sizeof key, "%llu", (unsigned long long)id);
            kvr_json_key(b, key);
            kvr_json_open(b, '{');
            if (what) {
                for (long k = i; k < sc->n; k++)
                    for (int t = 0; sc->o[k].worker.worker_id == id && t < KVR_TIER_COUNT; t++)
                        best[t] = KVR_MAX(best[t], (uint64_t)sc->o[k].depth[t] * bs);
                kvr_json_put_u64(b, "longest_matched", best[KVR_TIER_EXTERNAL]);
                kvr_json_put_u64(b, "gpu", best[KVR_TIER_DEVICE]);
                kvr_json_key(b, "dp");
                kvr_json_open(b, '{');
            }
            for (long k = i; k < sc->n; k++) {
                if (sc->o[k].worker.worker_id != id) continue;
                snprintf(key, sizeof key, "%u", sc->o[k].worker.dp_rank);
                kvr_json_put_u64(b, key, (uint64_t)sc->o[k].depth[KVR_TIER_DEVICE] * bs);
            }
            kvr_json_close(b, '}');
            if (what) {
                kvr_json_put_u64(b, "cpu", best[KVR_TIER_HOST_PINNED]);
                kvr_json_put_u64(b, "disk", best[KVR_TIER_EXTERNAL]);
                kvr_json_close(b, '}');
            }
        }
        kvr_json_close(b, '}');
        if (what) continue;
        kvr_json_key(b, "frequencies");
        kvr_json_open(b, '[');
        for (size_t d = 0; d < sc->blocks; d++) {
            uint64_t n = 0;
            for (long i = 0; i < sc->n; i++) n += sc->o[i].depth[KVR_TIER_DEVICE] > d;
            if (n == 0) break;
            kvr_json_u64(b, n);
        }
        kvr_json_close(b, ']');
    }
}

static void query(struct serve *s, struct kvr_http_conn *c, struct kvr_json o, bool by_hash)
{
    struct question q;
    struct scores sc;
    struct kvr_buf b = {0};
    if (by_hash && kvr_json_type_of(kvr_json_get(o, "cache_salt")) > KVR_JSON_NULL) {
        reply_error(c, 400, "block_hashes must already include the cache salt; leave out cache_salt");
        return;
    }
    if (kvr_json_type_of(kvr_json_get(o, by_hash ? "block_hashes" : "token_ids")) != KVR_JSON_ARRAY) {
        bad_field(c, by_hash ? "block_hashes" : "token_ids");
        return;
    }
    if (!read_question(s, c, o, &q)) return;
    if (ask_overlap(s, c, &q, &sc)) {
        kvr_json_open(&b, '{');
        put_query_answer(&b, &sc, q.pool->block_size);
        kvr_json_close(&b, '}');
        reply(c, 200, &b);
        free(sc.o);
    }
    question_free(&q);
}

static void potential_loads(struct serve *s, struct kvr_http_conn *c, struct kvr_json o)
{
    struct question q;
    struct kvr_buf b = {0};
    if (!read_question(s, c, o, &q)) return;
    struct kvr_potential_load *l = calloc(RANKS_MAX, sizeof *l);
    struct kvr_router_ctx *ctx = admin_ctx(s, q.pool);
    struct kvr_router_request rq = as_request(&q);
    long n = l && ctx ? kvr_router_potential_loads(q.pool->router, ctx, &rq, l, RANKS_MAX) : -KVR_ENOMEM;
    if (n < 0) {
        reply_error(c, 500, kvr_strerror((int)n));
    } else {
        kvr_json_open(&b, '[');
        for (long i = 0; i < KVR_MIN(n, (long)RANKS_MAX); i++) {
            kvr_json_open(&b, '{');
            kvr_json_put_u64(&b, "worker_id", l[i].worker.worker_id);
            kvr_json_put_u64(&b, "dp_rank", l[i].worker.dp_rank);
            kvr_json_put_u64(&b, "potential_prefill_tokens", l[i].potential_prefill_tokens);
            kvr_json_put_u64(&b, "potential_decode_blocks", l[i].potential_decode_blocks);
            kvr_json_put_u64(&b, "active_requests", l[i].active_requests);
            kvr_json_close(&b, '}');
        }
        kvr_json_close(&b, ']');
        reply(c, 200, &b);
    }
    free(l);
    question_free(&q);
}

struct load_row {
    char model[MODEL_MAX], group[MODEL_MAX];
    struct kvr_rank_load l;
};

static int by_scope_and_worker(const void *a, const void *b)
{
    const struct load_row *x = a, *y = b;
    int d = strcmp(x->model, y->model);
    if (d == 0) d = strcmp(x->group, y->group);
    return d ? d : kvr_worker_cmp(x->l.worker, y->l.worker);
}

static void loads_write(struct serve *s, struct kvr_buf *b)
{
    struct kvr_rank_load *l = calloc(RANKS_MAX, sizeof *l);
    struct load_row *rows = calloc(RANKS_MAX, sizeof *rows);
    size_t n = 0;
    for (const struct pool *p = s->pools; p && l && rows; p = p->next) {
        size_t k = KVR_MIN(kvr_router_loads(p->router, l, RANKS_MAX), RANKS_MAX - n);
        pthread_mutex_lock(&s->lock);
        for (size_t i = 0; i < k; i++) {
            const struct worker *w = worker_find_locked(s, l[i].worker.worker_id);
            if (!w) continue;
            snprintf(rows[n].model, MODEL_MAX, "%s", model_of(s, w));
            snprintf(rows[n].group, MODEL_MAX, "%s", w->group);
            rows[n++].l = l[i];
        }
        pthread_mutex_unlock(&s->lock);
    }
    if (n) qsort(rows, n, sizeof *rows, by_scope_and_worker);
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) {
        kvr_json_open(b, '{');
        kvr_json_put_str(b, "model_name", rows[i].model);
        kvr_json_put_str(b, "routing_group", rows[i].group);
        kvr_json_put_u64(b, "worker_id", rows[i].l.worker.worker_id);
        kvr_json_put_u64(b, "dp_rank", rows[i].l.worker.dp_rank);
        kvr_json_put_u64(b, "active_prefill_tokens", rows[i].l.active_prefill_tokens);
        kvr_json_put_u64(b, "active_decode_blocks", rows[i].l.active_decode_blocks);
        kvr_json_put_u64(b, "active_requests", rows[i].l.active_requests);
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, ']');
    free(l);
    free(rows);
}

static int put_event(void *ctx, const struct kvr_event *ev)
{
    struct kvr_buf *b = ctx;
    kvr_router_event_write(b, ev, ev->event_id);
    return b->failed ? -KVR_ENOMEM : 0;
}

struct dump_row {
    struct kvr_worker worker;
    uint32_t ranks, block_size;
    struct pool *pool;
    char key[2 * MODEL_MAX + 2];
};

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct dump_row *)a)->key, ((const struct dump_row *)b)->key);
}

static void dump_write(struct serve *s, struct kvr_buf *b)
{
    size_t n = 0;
    pthread_mutex_lock(&s->lock);
    struct dump_row *rows = calloc(s->workers_n + 1, sizeof *rows);
    for (const struct worker *w = s->workers; w && rows; w = w->next) {
        struct dump_row *r = &rows[n++];
        r->worker = (struct kvr_worker){w->id, w->dp_start};
        r->ranks = w->dp_size;
        r->block_size = w->block_size;
        r->pool = w->pool;
        snprintf(r->key, sizeof r->key, "%s:%s", model_of(s, w), w->group);
    }
    pthread_mutex_unlock(&s->lock);
    if (n) qsort(rows, n, sizeof *rows, by_key);
    kvr_json_open(b, '{');
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(rows[i].key, rows[i - 1].key)) {
            kvr_json_key(b, "");
            b->len -= 3; /* the key is a text of ours that must be escaped */
            kvr_json_str(b, rows[i].key, strlen(rows[i].key));
            kvr_buf_str(b, ":");
            b->comma = false;
            kvr_json_open(b, '{');
            kvr_json_put_u64(b, "block_size", rows[i].block_size);
            kvr_json_key(b, "events");
            kvr_json_open(b, '[');
        }
        for (uint32_t r = 0; r < rows[i].ranks; r++) {
            struct kvr_worker w = {rows[i].worker.worker_id, rows[i].worker.dp_rank + r};
            if (rows[i].pool->index) kvr_index_dump(rows[i].pool->index, &w, put_event, b);
        }
        if (i + 1 == n || strcmp(rows[i].key, rows[i + 1].key)) {
            kvr_json_close(b, ']');
            kvr_json_close(b, '}');
        }
    }
    kvr_json_close(b, '}');
    free(rows);
}

static void status_write(struct serve *s, struct kvr_buf *b)
{
    static const char *const modes[] = {"kv", "round-robin", "random", "least-loaded", "direct"};
    struct metrics *m = &s->metrics;
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "version", kvr_version());
    kvr_json_put_str(b, "mode", modes[atomic_load(&s->mode)]);
    kvr_json_put_u64(b, "uptime_ms", now_ms() - s->started_ms);
    kvr_json_put_u64(b, "requests", atomic_load(&m->requests_total));
    kvr_json_put_u64(b, "retries", atomic_load(&m->retries_total));
    kvr_json_put_u64(b, "errors", atomic_load(&m->errors_total));
    kvr_json_put_u64(b, "prompt_tokens", atomic_load(&m->prompt_tokens_total));
    kvr_json_put_u64(b, "predicted_cached_tokens", atomic_load(&m->predicted_cached_tokens_total));
    kvr_json_put_u64(b, "actual_cached_tokens", atomic_load(&m->actual_cached_tokens_total));
    kvr_json_key(b, "workers");
    workers_write(s, b);
    kvr_json_key(b, "loads");
    loads_write(s, b);
    kvr_json_key(b, "decisions");
    pthread_mutex_lock(&s->lock);
    decisions_write(s, b, 50);
    pthread_mutex_unlock(&s->lock);
    kvr_json_close(b, '}');
}

static void set_mode(struct serve *s, struct kvr_http_conn *c, struct kvr_json o)
{
    static const char *const modes[] = {"kv", "round-robin", "random", "least-loaded", "direct"};
    const char *v;
    size_t len;
    bool ok = kvr_json_as_str(kvr_json_get(o, "router_mode"), &v, &len);
    for (int i = 0; ok && i < 5; i++) {
        if (strlen(modes[i]) != len || memcmp(modes[i], v, len)) continue;
        atomic_store(&s->mode, i);
        pthread_mutex_lock(&s->lock);
        for (struct pool *p = s->pools; p; p = p->next) kvr_router_set_mode(p->router, (enum kvr_router_mode)i);
        pthread_mutex_unlock(&s->lock);
        reply_ok(c, 200);
        return;
    }
    reply_error(c, 400, "router_mode must be one of kv, round-robin, random, least-loaded, direct");
}

static void validate(struct serve *s, struct kvr_http_conn *c)
{
    const char *why = "ok";
    bool ok = true;
    for (const struct pool *p = s->pools; p && ok; p = p->next)
        ok = (!p->index || kvr_index_validate(p->index, &why)) && kvr_router_validate(p->router, &why);
    if (ok) reply_ok(c, 200);
    else reply_error(c, 500, why);
}

/* ---- routes ------------------------------------------------------------------------------------------ */

enum route {
    R_PAGE,
    R_HEALTH,
    R_READY,
    R_METRICS,
    R_WORKERS,
    R_ADD_WORKER,
    R_LOADS,
    R_POTENTIAL,
    R_OVERLAP,
    R_QUERY,
    R_QUERY_HASH,
    R_DUMP,
    R_STATUS,
    R_DECISIONS,
    R_MODE,
    R_VALIDATE
};

static const struct {
    const char *method, *path;
    enum route route;
} routes[] = {
    {"GET", "/", R_PAGE},
    {"GET", "/health", R_HEALTH},
    {"GET", "/ready", R_READY},
    {"GET", "/metrics", R_METRICS},
    {"GET", "/workers", R_WORKERS},
    {"POST", "/workers", R_ADD_WORKER},
    {"GET", "/loads", R_LOADS},
    {"POST", "/potential_loads", R_POTENTIAL},
    {"POST", "/overlap_scores", R_OVERLAP},
    {"POST", "/query", R_QUERY},
    {"POST", "/query_by_hash", R_QUERY_HASH},
    {"GET", "/dump", R_DUMP},
    {"GET", "/status", R_STATUS},
    {"GET", "/decisions", R_DECISIONS},
    {"POST", "/router_mode", R_MODE},
    {"POST", "/debug/validate", R_VALIDATE},
};

static bool parse_object(struct serve *s, struct kvr_http_conn *c, struct kvr_json *o)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    if (rq->body_len == 0 || kvr_json_parse(s->json, rq->body, rq->body_len, o, NULL)) {
        reply_error(c, 400, "the body is not valid JSON");
        return false;
    }
    if (kvr_json_type_of(*o) != KVR_JSON_OBJECT) {
        reply_error(c, 400, "the body must be a JSON object");
        return false;
    }
    return true;
}

static void get_route(struct serve *s, struct kvr_http_conn *c, enum route r)
{
    struct kvr_buf b = {0};
    const char *why;
    switch (r) {
    case R_PAGE: kvr_http_reply(c, 200, "text/html; charset=utf-8", NULL, admin_page, strlen(admin_page)); return;
    case R_HEALTH: reply_ok(c, 200); return;
    case R_READY:
        if (serve_ready(s, &why)) reply_ok(c, 200);
        else reply_error(c, 503, why);
        return;
    case R_METRICS:
        metrics_write(s, &b);
        kvr_http_reply(c, 200, "text/plain; version=0.0.4", NULL, b.data ? b.data : "", b.len);
        kvr_buf_free(&b);
        return;
    case R_WORKERS: workers_write(s, &b); break;
    case R_LOADS: loads_write(s, &b); break;
    case R_DUMP: dump_write(s, &b); break;
    case R_STATUS: status_write(s, &b); break;
    default:
        pthread_mutex_lock(&s->lock);
        decisions_write(s, &b, DECISIONS);
        pthread_mutex_unlock(&s->lock);
    }
    reply(c, 200, &b);
}

static void run_route(struct serve *s, struct kvr_http_conn *c, enum route r)
{
    struct kvr_json o;
    if (r == R_VALIDATE) {
        validate(s, c);
        return;
    }
    if (r != R_ADD_WORKER && r < R_POTENTIAL) {
        get_route(s, c, r);
        return;
    }
    if (r == R_DUMP || r == R_STATUS || r == R_DECISIONS) {
        get_route(s, c, r);
        return;
    }
    if (!parse_object(s, c, &o)) return;
    switch (r) {
    case R_ADD_WORKER: post_worker(s, c, o); return;
    case R_POTENTIAL: potential_loads(s, c, o); return;
    case R_OVERLAP: overlap_scores(s, c, o); return;
    case R_QUERY: query(s, c, o, false); return;
    case R_QUERY_HASH: query(s, c, o, true); return;
    default: set_mode(s, c, o); return;
    }
}

static bool worker_path(struct kvr_text path, uint64_t *id)
{
    char s[32] = {0}, *end;
    if (path.len <= 9 || path.len - 9 >= sizeof s || memcmp(path.ptr, "/workers/", 9)) return false;
    memcpy(s, path.ptr + 9, path.len - 9);
    if (s[0] < '0' || s[0] > '9') return false;
    *id = strtoull(s, &end, 10);
    return *end == 0;
}

static void one_worker(struct serve *s, struct kvr_http_conn *c, uint64_t id)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    struct kvr_json o;
    if (kvr_text_is(rq->method, "DELETE")) {
        if (worker_remove(s, id)) reply_ok(c, 200);
        else reply_error(c, 404, "worker not found");
    } else if (kvr_text_is(rq->method, "PATCH")) {
        if (parse_object(s, c, &o)) patch_worker(s, c, id, o);
    } else {
        reply_error(c, 405, "method not allowed; use PATCH or DELETE");
    }
}

static void on_request(struct kvr_http_conn *c, void *ctx)
{
    struct serve *s = ctx;
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    bool path_known = false;
    uint64_t id;
    if (worker_path(rq->path, &id)) {
        one_worker(s, c, id);
        return;
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(routes); i++) {
        if (!kvr_text_is(rq->path, routes[i].path)) continue;
        path_known = true;
        if (!kvr_text_is(rq->method, routes[i].method)) continue;
        run_route(s, c, routes[i].route);
        return;
    }
    reply_error(c, path_known ? 405 : 404, path_known ? "method not allowed" : "unknown path");
}

int admin_start(struct serve *s)
{
    struct kvr_http_server_config sc = {.host = s->o->admin_host,
                                        .port = (uint16_t)s->o->admin_port,
                                        .body_max = 64u << 20,
                                        .connections_max = 4096,
                                        .head_timeout_s = 10,
                                        .body_timeout_s = 30,
                                        .idle_timeout_s = 60,
                                        .handler = {on_request, NULL, NULL, error_body, s}};
    return kvr_http_server_start(&s->main_loop, &sc, &s->admin);
}
