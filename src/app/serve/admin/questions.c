/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about prompts and loads: overlaps, queries, potential loads, loads, dump. */
#include "app/serve/admin/room.h"

#include <string.h>

#include "app/serve/workers/engines/engine_load.h"
#include "app/serve/workers/views/views.h"
#include "app/serve/workers/workers.h"
#include "recover/event_json.h"

struct scores {
    struct kvr_reach *o;
    long n;
    size_t blocks;
};

static bool ask_overlap(struct admin *admin, struct kvr_http_conn *c, const struct question *q, struct scores *out)
{
    struct kvr_router_ctx *ctx = admin_ctx(admin, q->partition);
    struct kvr_router_request rq = question_request(q);
    out->o = calloc(RANKS_MAX, sizeof *out->o);
    out->n = out->o && ctx ? kvr_router_overlap(q->partition->router, ctx, &rq, out->o, RANKS_MAX, &out->blocks) : -KVR_ENOMEM;
    if (out->n >= 0) return true;
    free(out->o);
    admin_error(c, out->n == -KVR_ENOINDEX ? 400 : out->n == -KVR_ENOMEM ? 503 : 500, kvr_strerror((int)out->n));
    return false;
}

static const uint32_t *depths_of(const struct scores *sc, struct kvr_worker w)
{
    static const uint32_t none[KVR_TIER_COUNT];
    for (long i = 0; i < sc->n; i++)
        if (kvr_worker_cmp(sc->o[i].worker, w) == 0) return sc->o[i].depth;
    return none;
}

void admin_overlap_scores(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    struct question q;
    struct scores sc;
    struct kvr_buf b = {0};
    struct kvr_rank_load *l = calloc(RANKS_MAX, sizeof *l);
    if (!l) {
        admin_bad_field(c, "");
        return;
    }
    if (!question_read(admin, c, o, &q)) {
        free(l);
        return;
    }
    if (ask_overlap(admin, c, &q, &sc)) {
        kvr_json_printf(&b, "{'block_size':%u,'num_blocks':%ju,'workers':[", q.partition->block_size, sc.blocks);
        size_t n = KVR_MIN(kvr_router_loads(q.partition->router, l, RANKS_MAX), (size_t)RANKS_MAX);
        for (size_t i = 0; i < n; i++) {
            const uint32_t *d = depths_of(&sc, l[i].worker);
            uint32_t device = d[KVR_TIER_DEVICE], host = d[KVR_TIER_HOST_PINNED], disk = d[KVR_TIER_EXTERNAL];
            kvr_json_printf(&b,
                            "{'worker_id':%ju,'dp_rank':%u,'device_blocks':%u,'host_pinned_blocks':%u,'disk_blocks':%u,"
                            "'host_pinned_extension_blocks':%u,'disk_extension_blocks':%u,'router_credit_blocks':%g}",
                            l[i].worker.worker_id, l[i].worker.dp_rank, device, host, disk, host - device, disk - host,
                            admin->o->overlap_credit * device + admin->o->host_weight * (host - device) +
                                admin->o->disk_weight * (disk - host));
        }
        kvr_json_printf(&b, "]}");
        admin_reply(c, 200, &b);
        free(sc.o);
    }
    free(l);
    question_free(&q);
}

/* scores, frequencies and instances of the standalone indexer's API; counts are in tokens. */
static void put_query_answer(struct kvr_buf *b, const struct scores *sc, uint32_t bs)
{
    for (int what = 0; what < 2; what++) {
        kvr_json_key(b, what ? "instances" : "scores");
        kvr_json_open(b, '{');
        for (long i = 0; i < sc->n; i++) {
            uint64_t id = sc->o[i].worker.worker_id, best[KVR_TIER_COUNT] = {0};
            bool first = true;
            for (long k = 0; k < i; k++) first &= sc->o[k].worker.worker_id != id;
            if (!first) continue;
            kvr_json_printf(b, "'%ju':{", id);
            if (what) {
                for (long k = i; k < sc->n; k++)
                    for (int t = 0; sc->o[k].worker.worker_id == id && t < KVR_TIER_COUNT; t++)
                        best[t] = KVR_MAX(best[t], (uint64_t)sc->o[k].depth[t] * bs);
                kvr_json_printf(b, "'longest_matched':%ju,'gpu':%ju,'dp':{", best[KVR_TIER_EXTERNAL], best[KVR_TIER_DEVICE]);
            }
            for (long k = i; k < sc->n; k++) {
                if (sc->o[k].worker.worker_id != id) continue;
                kvr_json_printf(b, "'%u':%ju", sc->o[k].worker.dp_rank, (uint64_t)sc->o[k].depth[KVR_TIER_DEVICE] * bs);
            }
            kvr_json_close(b, '}');
            if (what) kvr_json_printf(b, "'cpu':%ju,'disk':%ju}", best[KVR_TIER_HOST_PINNED], best[KVR_TIER_EXTERNAL]);
        }
        kvr_json_close(b, '}');
        if (what) continue;
        kvr_json_printf(b, "'frequencies':[");
        for (size_t d = 0; d < sc->blocks; d++) {
            uint64_t n = 0;
            for (long i = 0; i < sc->n; i++) n += sc->o[i].depth[KVR_TIER_DEVICE] > d;
            if (n == 0) break;
            kvr_json_u64(b, n);
        }
        kvr_json_close(b, ']');
    }
}

static void query(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, const char *prompt)
{
    struct question q;
    struct scores sc;
    struct kvr_buf b = {0};
    if (!admin->text_ids && kvr_json_type_of(kvr_json_get(o, prompt)) != KVR_JSON_ARRAY) {
        admin_bad_field(c, prompt);
        return;
    }
    if (!question_read(admin, c, o, &q)) return;
    if (ask_overlap(admin, c, &q, &sc)) {
        kvr_json_open(&b, '{');
        put_query_answer(&b, &sc, q.partition->block_size);
        kvr_json_close(&b, '}');
        admin_reply(c, 200, &b);
        free(sc.o);
    }
    question_free(&q);
}

void admin_query(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    query(admin, c, o, "token_ids");
}

void admin_query_by_hash(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    if (kvr_json_has(o, "cache_salt")) admin_error(c, 400, "block_hashes must already include the cache salt; leave out cache_salt");
    else query(admin, c, o, "block_hashes");
}

static void put_potential(struct kvr_buf *b, const struct kvr_potential_load *l, size_t n)
{
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) {
        kvr_json_printf(b,
                        "{'worker_id':%ju,'dp_rank':%u,'potential_prefill_tokens':%ju,'potential_decode_blocks':%ju,"
                        "'active_requests':%u}",
                        l[i].worker.worker_id, l[i].worker.dp_rank, l[i].potential_prefill_tokens, l[i].potential_decode_blocks,
                        l[i].active_requests);
    }
    kvr_json_close(b, ']');
}

/* {"method", "loads", and what waits in the partition's queue} */
static void put_protocol_loads(struct kvr_buf *b, struct kvr_router *router, const struct kvr_potential_load *l, size_t n)
{
    struct kvr_class_stats st;
    uint64_t isl = 0;
    for (size_t k = 0; k < kvr_router_classes(router); k++) {
        (void)kvr_router_class_stats(router, k, &st);
        isl += st.isl_tokens;
    }
    kvr_json_printf(b, "{'method':'potential_loads','loads':");
    put_potential(b, l, n);
    kvr_json_printf(b, "'pending_count':%ju,'pending_isl_tokens':%ju}", kvr_router_pending(router), isl);
}

static void potential_loads(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, bool protocol)
{
    struct question q;
    struct kvr_buf b = {0};
    if (!question_read(admin, c, o, &q)) return;
    struct kvr_potential_load *l = calloc(RANKS_MAX, sizeof *l);
    struct kvr_router_ctx *ctx = admin_ctx(admin, q.partition);
    struct kvr_router_request rq = question_request(&q);
    long n = l && ctx ? kvr_router_potential_loads(q.partition->router, ctx, &rq, l, RANKS_MAX) : -KVR_ENOMEM;
    if (n < 0) {
        admin_error(c, n == -KVR_ENOMEM ? 503 : 500, kvr_strerror((int)n));
    } else {
        size_t shown = KVR_MIN((size_t)n, (size_t)RANKS_MAX);
        if (protocol) put_protocol_loads(&b, q.partition->router, l, shown);
        else put_potential(&b, l, shown);
        admin_reply(c, 200, &b);
    }
    free(l);
    question_free(&q);
}

void admin_potential_loads(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    potential_loads(admin, c, o, false);
}

void admin_potential_loads_protocol(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    potential_loads(admin, c, o, true);
}

struct load_row {
    char model[MODEL_MAX], group[MODEL_MAX];
    struct kvr_rank_load l;
    struct rank_load engine;
};

static int by_scope_and_worker(const void *a, const void *b)
{
    const struct load_row *x = a, *y = b;
    int d = strcmp(x->model, y->model);
    if (d == 0) d = strcmp(x->group, y->group);
    return d ? d : kvr_worker_cmp(x->l.worker, y->l.worker);
}

struct kvr_rank_load *admin_all_loads(struct admin *admin, struct kvr_buf *page, size_t *n)
{
    struct kvr_rank_load *all = NULL, *more;
    *n = 0;
    for (const struct partition *p = partitions_first(admin->workers); p; p = p->next) {
        size_t room = kvr_router_loads(p->router, NULL, 0) + 8; /* some may come meanwhile */
        if (!(more = realloc(all, (*n + room) * sizeof *all))) {
            free(all);
            page->failed = true;
            *n = 0;
            return NULL;
        }
        all = more;
        *n += KVR_MIN(kvr_router_loads(p->router, all + *n, room), room);
    }
    return all;
}

/* Returns: false when its worker has gone, or is none of those that are asked for. */
static bool load_row_locked(struct admin *admin, const struct kvr_rank_load *l, const char *model, const char *group, struct load_row *out)
{
    const struct worker *w = worker_find_locked(admin->workers, l->worker.worker_id);
    if (!w || (model && strcmp(model, worker_model(admin->workers, w))) || (group && strcmp(group, w->group))) return false;
    snprintf(out->model, MODEL_MAX, "%s", worker_model(admin->workers, w));
    snprintf(out->group, MODEL_MAX, "%s", w->group);
    uint32_t place = l->worker.dp_rank - w->dp_start;
    out->engine = place < w->dp_size ? w->ranks[place].load : (struct rank_load){0};
    out->l = *l;
    return true;
}

/* `model`, `group`: only that; NULL: every one. */
void admin_loads_write(struct admin *admin, struct kvr_buf *b, const char *model, const char *group)
{
    size_t all_n, n = 0;
    struct kvr_rank_load *l = admin_all_loads(admin, b, &all_n);
    struct load_row *rows = malloc((all_n + 1) * sizeof *rows);
    if (!rows) b->failed = true;
    for (size_t i = 0; rows && i < all_n; i++) {
        workers_lock(admin->workers);
        n += load_row_locked(admin, &l[i], model, group, &rows[n]);
        workers_unlock(admin->workers);
    }
    if (n) qsort(rows, n, sizeof *rows, by_scope_and_worker);
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) {
        kvr_json_printf(b,
                        "{'model_name':%s,'routing_group':%s,'worker_id':%ju,'dp_rank':%u,'active_prefill_tokens':%ju,"
                        "'active_decode_blocks':%ju,'active_requests':%u",
                        rows[i].model, rows[i].group, rows[i].l.worker.worker_id, rows[i].l.worker.dp_rank, rows[i].l.active_prefill_tokens,
                        rows[i].l.active_decode_blocks, rows[i].l.active_requests);
        engine_load_write(admin->workers, b, &rows[i].engine);
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, ']');
    free(l);
    free(rows);
}

static int put_event(void *ctx, const struct kvr_event *ev)
{
    struct kvr_buf *b = ctx;
    kvr__event_json(b, ev, ev->event_id);
    return b->failed ? -KVR_ENOMEM : 0;
}

struct dump_row {
    struct kvr_worker worker;
    uint32_t ranks, block_size;
    struct partition *partition;
    char key[2 * MODEL_MAX + 2];
};

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct dump_row *)a)->key, ((const struct dump_row *)b)->key);
}

void admin_dump_write(struct admin *admin, struct kvr_buf *b)
{
    size_t n = 0;
    struct dump_row *rows = calloc(workers_count(admin->workers) + 1, sizeof *rows);
    views_want(admin->workers);
    for (const struct worker *w = workers_first(admin->workers); w && rows; w = w->next) {
        struct dump_row *r = &rows[n++];
        r->worker = (struct kvr_worker){w->id, w->dp_start};
        r->ranks = w->dp_size;
        r->block_size = w->block_size;
        r->partition = w->partition;
        workers_lock(admin->workers);
        snprintf(r->key, sizeof r->key, "%s:%s", worker_model(admin->workers, w), w->group);
        workers_unlock(admin->workers);
    }
    if (n) qsort(rows, n, sizeof *rows, by_key);
    kvr_json_open(b, '{');
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(rows[i].key, rows[i - 1].key))
            kvr_json_printf(b, "%s:{'block_size':%u,'events':[", rows[i].key, rows[i].block_size);
        for (uint32_t r = 0; r < rows[i].ranks; r++) {
            struct kvr_worker w = {rows[i].worker.worker_id, rows[i].worker.dp_rank + r};
            if (rows[i].partition->index) kvr_index_dump(rows[i].partition->index, &w, put_event, b);
        }
        if (i + 1 == n || strcmp(rows[i].key, rows[i + 1].key)) kvr_json_printf(b, "]}");
    }
    kvr_json_close(b, '}');
    free(rows);
}
