/* SPDX-License-Identifier: Apache-2.0 */
/* libkvroute as flat functions of numbers and arrays, so that Python need not build its structs. Private to the package. */
#include <stdlib.h>
#include <string.h>
#include <kvroute/kvroute.h>

typedef struct kvr_index kvr_index;
typedef struct kvr_index_reader kvr_index_reader;
typedef struct kvr_local_index kvr_local_index;
typedef struct kvr_router kvr_router;
typedef struct kvr_router_ctx kvr_router_ctx;

/* ---- hashing */
static long py_hash_locals(const uint32_t *tokens, size_t n, uint32_t bs, bool eagle, uint64_t seed, const uint64_t *mm,
                           const size_t *mm_counts, size_t mm_n, uint64_t *out)
{
    struct kvr_mm_block *list = mm_n ? calloc(mm_n, sizeof *list) : NULL;
    if (mm_n && !list) return -KVR_ENOMEM;
    for (size_t i = 0; i < mm_n; mm += mm_counts[i++]) list[i] = (struct kvr_mm_block){mm, mm_counts[i]};
    long rc = kvr_hash_locals(tokens, n, bs, eagle, seed, list, mm_n, out);
    free(list);
    return rc;
}

/* ---- index */
typedef struct {
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t depth;
} py_overlap;

static kvr_index *py_index_new(double ttl_s, uint64_t predicted_max, double prune_ratio, double window_s, uint64_t bytes_max)
{
    struct kvr_index *ix = NULL;
    struct kvr_index_config c = {.ttl_ns = (uint64_t)(ttl_s * 1e9),
                                 .predicted_max = predicted_max,
                                 .prune_target_ratio = prune_ratio,
                                 .frequency_window_ns = (uint64_t)(window_s * 1e9),
                                 .bytes_max = bytes_max};
    return kvr_index_create(&c, &ix) ? NULL : ix;
}

static kvr_index_reader *py_reader_new(kvr_index *ix)
{
    struct kvr_index_reader *r = NULL;
    return kvr_index_reader_create(ix, &r) ? NULL : r;
}

static int py_store(kvr_index *ix, uint64_t id, uint32_t rank, int tier, int has_parent, uint64_t parent, int has_start, uint32_t start,
                    const uint64_t *names, const uint64_t *locals, size_t n)
{
    struct kvr_block *b = malloc((n + 1) * sizeof *b);
    if (!b) return -KVR_ENOMEM;
    for (size_t i = 0; i < n; i++) b[i] = (struct kvr_block){names[i], locals[i]};
    struct kvr_event ev = {.worker = {id, rank},
                           .tier = (enum kvr_tier)tier,
                           .kind = KVR_EVENT_STORED,
                           .has_parent = has_parent,
                           .parent_hash = parent,
                           .has_start_position = has_start,
                           .start_position = start,
                           .blocks = b,
                           .blocks_n = n};
    int rc = kvr_index_apply(ix, &ev);
    free(b);
    return rc;
}

static int py_remove(kvr_index *ix, uint64_t id, uint32_t rank, int tier, const uint64_t *names, size_t n)
{
    struct kvr_event ev = {.worker = {id, rank}, .tier = (enum kvr_tier)tier, .kind = KVR_EVENT_REMOVED, .removed = names, .removed_n = n};
    return kvr_index_apply(ix, &ev);
}

static int py_clear(kvr_index *ix, uint64_t id, uint32_t rank, int tier)
{
    struct kvr_event ev = {.worker = {id, rank}, .tier = (enum kvr_tier)tier, .kind = KVR_EVENT_CLEARED};
    return kvr_index_apply(ix, &ev);
}

static int kvr_index_record_py(kvr_index *ix, uint64_t id, uint32_t rank, const uint64_t *locals, size_t n)
{
    uint64_t *seqs = malloc((n + 1) * sizeof *seqs);
    if (!seqs) return -KVR_ENOMEM;
    kvr_hash_sequence(locals, n, seqs);
    int rc = kvr_index_record(ix, (struct kvr_worker){id, rank}, locals, n, seqs, n);
    free(seqs);
    return rc;
}

static void py_remove_rank(kvr_index *ix, uint64_t id, uint32_t rank)
{
    kvr_index_remove_rank(ix, (struct kvr_worker){id, rank});
}

static long py_match(kvr_index_reader *r, const uint64_t *locals, size_t n, py_overlap *out, size_t cap)
{
    struct kvr_overlap *o = malloc((cap + 1) * sizeof *o);
    if (!o) return -KVR_ENOMEM;
    long k = kvr_index_match(r, locals, n, o, cap);
    for (long i = 0; i < k; i++) out[i] = (py_overlap){o[i].worker.worker_id, o[i].worker.dp_rank, o[i].depth};
    free(o);
    return k;
}

static uint64_t py_index_blocks(kvr_index *ix)
{
    struct kvr_index_stats st;
    kvr_index_stats(ix, &st);
    return st.blocks;
}

static uint64_t py_rank_blocks(kvr_index *ix, uint64_t id, uint32_t rank)
{
    return kvr_index_rank_blocks(ix, (struct kvr_worker){id, rank});
}

typedef struct {
    uint64_t event_id, worker_id;
    uint32_t dp_rank;
    int tier, has_parent, has_start;
    uint64_t parent;
    uint32_t start;
    size_t blocks_n;
    const uint64_t *blocks;
} py_stored;
static int py_on_stored(void *ctx, const py_stored *event);

static int py_emit(void *ctx, const struct kvr_event *ev)
{
    py_stored s = {
        ev->event_id,           ev->worker.worker_id, ev->worker.dp_rank, ev->tier,     ev->has_parent,
        ev->has_start_position, ev->parent_hash,      ev->start_position, ev->blocks_n, (const uint64_t *)(const void *)ev->blocks};
    return py_on_stored(ctx, &s);
}

static int py_dump(kvr_index *ix, void *ctx)
{
    return kvr_index_dump(ix, NULL, py_emit, ctx);
}

/* ---- local index */
typedef struct {
    uint64_t epoch, newest_id, oldest_id, events, evicted, refused, dumps, dump_failures, ranges, too_new, ring_events, ring_bytes,
        index_bytes, blocks;
    int complete;
} py_local_stats;

static kvr_local_index *py_local_new(uint64_t id, uint32_t rank, uint32_t bs, uint64_t epoch, size_t events, size_t ring, size_t index)
{
    struct kvr_local_index *li = NULL;
    struct kvr_local_index_config c = {
        .worker = {id, rank}, .block_size = bs, .epoch = epoch, .events_max = events, .ring_bytes_max = ring, .index_bytes_max = index};
    return kvr_local_index_create(&c, &li) ? NULL : li;
}

static int py_local_store(kvr_local_index *li, uint64_t id, int tier, const uint32_t *tokens, size_t tokens_n, const uint64_t *names,
                          size_t n, int has_parent, uint64_t parent, const char *lora, size_t lora_len, const char *salt, size_t salt_len,
                          int eagle)
{
    struct kvr_local_store s = {tokens, tokens_n, names, n, has_parent, parent, lora, lora_len, salt, salt_len, eagle, (enum kvr_tier)tier};
    return kvr_local_index_store(li, id, &s);
}

static int py_local_remove(kvr_local_index *li, uint64_t id, int tier, const uint64_t *names, size_t n)
{
    return kvr_local_index_remove(li, id, (enum kvr_tier)tier, names, n);
}

struct py_text {
    char *data;
    size_t len, cap;
};

static int py_collect(void *ctx, const char *data, size_t len)
{
    struct py_text *t = ctx;
    if (t->len + len > t->cap) {
        size_t cap = (t->len + len) * 2;
        char *p = realloc(t->data, cap);
        if (!p) return -KVR_ENOMEM;
        t->data = p;
        t->cap = cap;
    }
    memcpy(t->data + t->len, data, len);
    t->len += len;
    return 0;
}

static struct kvr_local_query py_query(int has_start, uint64_t start, int has_end, uint64_t end, int old_shape, int tree_dump_failed)
{
    return (struct kvr_local_query){has_start, has_end, start, end, old_shape, tree_dump_failed};
}

static int py_local_answer(kvr_local_index *li, int has_start, uint64_t start, int has_end, uint64_t end, int old_shape,
                           int tree_dump_failed, char **out, size_t *len)
{
    struct py_text t = {NULL, 0, 0};
    struct kvr_local_query q = py_query(has_start, start, has_end, end, old_shape, tree_dump_failed);
    int rc = kvr_local_index_answer(li, &q, py_collect, &t);
    if (rc) free(t.data);
    *out = rc ? NULL : t.data;
    *len = rc ? 0 : t.len;
    return rc;
}

static int py_on_piece(void *ctx, const char *data, size_t len);

static int py_local_write(kvr_local_index *li, int has_start, uint64_t start, int has_end, uint64_t end, int old_shape,
                          int tree_dump_failed, void *ctx)
{
    struct kvr_local_query q = py_query(has_start, start, has_end, end, old_shape, tree_dump_failed);
    return kvr_local_index_answer(li, &q, py_on_piece, ctx);
}

static void py_local_stats_get(kvr_local_index *li, py_local_stats *o)
{
    struct kvr_local_index_stats s;
    kvr_local_index_stats(li, &s);
    *o = (py_local_stats){s.epoch,  s.newest_id, s.oldest_id,   s.events,     s.evicted,     s.refused, s.dumps,   s.dump_failures,
                          s.ranges, s.too_new,   s.ring_events, s.ring_bytes, s.index_bytes, s.blocks,  s.complete};
}

/* ---- router */
typedef struct {
    double overlap_credit, credit_decay, prefill_load_scale, host_weight, disk_weight, shared_multiplier, temperature;
    int cost, track_active_blocks, assume_kv_reuse, track_prefill_tokens, record_decisions;
    uint64_t seed;
} py_router_config;
typedef struct {
    const char *id;
    size_t id_len;
    const uint32_t *tokens;
    size_t tokens_n;
    const char *lora;
    size_t lora_len;
    const char *salt;
    size_t salt_len;
    int eagle, book;
    const uint64_t *allowed;
    size_t allowed_n;
    int pinned, pin_any_rank;
    uint64_t pin_worker;
    uint32_t pin_rank;
    unsigned set;
    double credit, scale, temperature, shared;
} py_request;
typedef struct {
    uint64_t worker_id;
    uint32_t dp_rank, overlap_blocks;
    double effective_blocks, cost;
    uint64_t cached_tokens, prefill_tokens;
} py_result;
typedef struct {
    uint64_t worker_id;
    uint32_t dp_rank;
    uint64_t potential_prefill_tokens, potential_decode_blocks;
    uint32_t active_requests;
} py_potential;
typedef struct {
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t device, host, disk;
} py_reach;

static kvr_router *py_router_new(kvr_index *index, uint32_t bs, const py_router_config *c, const char **field, int *rc)
{
    struct kvr_router_config k;
    struct kvr_router *r = NULL;
    kvr_router_config_init(&k);
    k.index = index;
    k.block_size = bs;
    k.cost.kind = (enum kvr_cost_kind)c->cost;
    k.cost.overlap_credit = c->overlap_credit;
    k.cost.credit_decay = c->credit_decay;
    k.cost.prefill_load_scale = c->prefill_load_scale;
    k.cost.host_weight = c->host_weight;
    k.cost.disk_weight = c->disk_weight;
    k.cost.shared_multiplier = c->shared_multiplier;
    k.cost.temperature = c->temperature;
    k.cost.track_prefill_tokens = c->track_prefill_tokens;
    k.track_active_blocks = c->track_active_blocks;
    k.assume_kv_reuse = c->assume_kv_reuse;
    k.record_decisions = c->record_decisions;
    k.seed = c->seed;
    *rc = kvr_router_create(&k, &r, field);
    return *rc ? NULL : r;
}

static kvr_router_ctx *py_ctx_new(kvr_router *r)
{
    struct kvr_router_ctx *c = NULL;
    return kvr_router_ctx_create(r, &c) ? NULL : c;
}

static void py_fill(const py_request *p, struct kvr_router_request *rq, struct kvr_override *o)
{
    memset(rq, 0, sizeof *rq);
    rq->id = p->id;
    rq->id_len = p->id_len;
    rq->book = p->book;
    rq->tokens = p->tokens;
    rq->tokens_n = p->tokens_n;
    rq->lora = p->lora;
    rq->lora_len = p->lora_len;
    rq->salt = p->salt;
    rq->salt_len = p->salt_len;
    rq->eagle = p->eagle;
    rq->allowed = p->allowed;
    rq->allowed_n = p->allowed_n;
    rq->pinned = p->pinned;
    rq->pin_any_rank = p->pin_any_rank;
    rq->pin = (struct kvr_worker){p->pin_worker, p->pin_rank};
    *o = (struct kvr_override){.set = p->set,
                               .overlap_credit = p->credit,
                               .prefill_load_scale = p->scale,
                               .temperature = p->temperature,
                               .shared_multiplier = p->shared};
    if (p->set) rq->override = o;
}

static int py_best(kvr_router *r, kvr_router_ctx *c, const py_request *p, py_result *out)
{
    struct kvr_router_request rq;
    struct kvr_override o;
    struct kvr_router_result res;
    memset(&res, 0, sizeof res);
    py_fill(p, &rq, &o);
    int rc = kvr_router_find_best_match(r, c, &rq, &res);
    if (rc == 0)
        *out = (py_result){res.worker.worker_id, res.worker.dp_rank, res.overlap_blocks, res.effective_blocks, res.cost,
                           res.cached_tokens,    res.prefill_tokens};
    return rc;
}

static long py_potential_loads(kvr_router *r, kvr_router_ctx *c, const py_request *p, py_potential *out, size_t cap)
{
    struct kvr_router_request rq;
    struct kvr_override o;
    struct kvr_potential_load *l = calloc(cap + 1, sizeof *l);
    if (!l) return -KVR_ENOMEM;
    py_fill(p, &rq, &o);
    long n = kvr_router_potential_loads(r, c, &rq, l, cap);
    for (long i = 0; i < n && (size_t)i < cap; i++)
        out[i] = (py_potential){l[i].worker.worker_id, l[i].worker.dp_rank, l[i].potential_prefill_tokens, l[i].potential_decode_blocks,
                                l[i].active_requests};
    free(l);
    return n;
}

static long py_overlaps(kvr_router *r, kvr_router_ctx *c, const py_request *p, py_reach *out, size_t cap, size_t *blocks)
{
    struct kvr_router_request rq;
    struct kvr_override o;
    struct kvr_reach *l = calloc(cap + 1, sizeof *l);
    if (!l) return -KVR_ENOMEM;
    py_fill(p, &rq, &o);
    long n = kvr_router_overlap(r, c, &rq, l, cap, blocks);
    for (long i = 0; i < n; i++)
        out[i] = (py_reach){l[i].worker.worker_id, l[i].worker.dp_rank, l[i].depth[KVR_TIER_DEVICE],
                            l[i].depth[KVR_TIER_HOST_PINNED] - l[i].depth[KVR_TIER_DEVICE],
                            l[i].depth[KVR_TIER_EXTERNAL] - l[i].depth[KVR_TIER_HOST_PINNED]};
    free(l);
    return n;
}
