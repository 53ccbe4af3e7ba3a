/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /query and /query_by_hash: the same answer, from tokens (or text, of which text.c makes them) or from local block hashes. Counts are
 * tokens. The device tier is matched without a lock; the lower tiers are asked only where such blocks have been seen.
 */
#include "app/indexer/state.h"
#include "wire/index_service.h"
#include "wire/mm_infos.h"

#include <string.h>

enum { MAP_ROOM = 64 };

/* ---- readers of this loop ---------------------------------------------------------------------------------- */

static void desk_close(struct loop *l, size_t i)
{
    struct desk d = l->desks[i];
    l->desks[i] = l->desks[--l->desks_n];
    kvr_index_reader_destroy(d.reader);
    partition_unref(d.part);
}

void desks_sweep(struct loop *l, bool all)
{
    for (size_t i = l->desks_n; i-- > 0;)
        if (all || atomic_load(&l->desks[i].part->gone)) desk_close(l, i);
}

static struct kvr_index_reader *desk_reader(struct loop *l, struct partition *p)
{
    for (size_t i = 0; i < l->desks_n; i++)
        if (l->desks[i].part == p) return l->desks[i].reader;
    struct kvr_index_reader *rd;
    if (!kvr_grow(&l->desks, &l->desks_cap, l->desks_n + 1, sizeof *l->desks) || kvr_index_reader_create(p->index, &rd)) return NULL;
    partition_ref(p);
    l->desks[l->desks_n++] = (struct desk){p, rd};
    return rd;
}

enum { KEEP = 256 << 10 }; /* bytes */

/* list: a pointer to what is malloc'd. */
static void trim(void *list, size_t *cap, size_t elem)
{
    void *p;
    if (*cap <= KEEP / elem) return;
    memcpy(&p, list, sizeof p);
    free(p);
    memset(list, 0, sizeof p);
    *cap = 0;
}

void query_give_back(struct loop *l)
{
    trim(&l->tokens, &l->tokens_cap, sizeof *l->tokens);
    trim(&l->locals, &l->locals_cap, sizeof *l->locals);
    trim(&l->prefixes, &l->prefixes_cap, sizeof *l->prefixes);
    kvr_service_question_trim(&l->question);
    if (l->body.cap > KEEP) kvr_buf_free(&l->body);
}

/* ---- matching ------------------------------------------------------------------------------------------------ */

static int by_worker(const void *a, const void *b)
{
    const struct kvr_reach *x = a, *y = b;
    return kvr_worker_cmp(x->worker, y->worker);
}

/* What the pairs can reuse on their devices of a prompt of `isl` tokens; 0, when it is not told: its last block is its end. */
static long match(struct loop *l, const struct partition *p, struct kvr_index_reader *rd, const uint64_t *locals, size_t n, uint64_t isl,
                  size_t cap)
{
    long k = kvr_index_match(rd, locals, n, l->overlaps, cap);
    if (k <= 0 || isl > (uint64_t)n * p->block_size) return k;
    return (long)kvr_index_limit(p->index, locals, n - 1, l->overlaps, (size_t)k);
}

/* All pairs that have something, ordered, in l->reaches. Returns: how many, or an error. */
static long reach_all(struct loop *l, struct partition *p, const uint64_t *locals, size_t n, uint64_t isl)
{
    struct kvr_index_reader *rd = desk_reader(l, p);
    if (!rd) return -KVR_ENOMEM;
    for (;;) {
        size_t cap = kvr_index_ranks(p->index) + MAP_ROOM;
        if (!kvr_grow(&l->overlaps, &l->overlaps_cap, cap, sizeof *l->overlaps) ||
            !kvr_grow(&l->reaches, &l->reaches_cap, cap, sizeof *l->reaches))
            return -KVR_ENOMEM;
        long k = match(l, p, rd, locals, n, isl, cap);
        if (k >= 0 && atomic_load_explicit(&p->tiers, memory_order_relaxed)) {
            if (!kvr_grow(&l->prefixes, &l->prefixes_cap, n, sizeof *l->prefixes)) return -KVR_ENOMEM;
            kvr_hash_sequence(locals, n, l->prefixes);
            k = kvr_index_match_tiers(rd, l->overlaps, (size_t)k, l->prefixes, n, l->reaches, cap);
        } else {
            for (long i = 0; i < k; i++) {
                uint32_t d = l->overlaps[i].depth;
                l->reaches[i] = (struct kvr_reach){l->overlaps[i].worker, {d, d, d, d}};
            }
        }
        if (k == -KVR_ELIMIT) continue; /* pairs came meanwhile */
        if (k > 0) qsort(l->reaches, (size_t)k, sizeof *l->reaches, by_worker);
        return k;
    }
}

/* ---- the answer ---------------------------------------------------------------------------------------------- */

/* How many of r[0..n) belong to the first one's instance. */
static size_t same_instance(const struct kvr_reach *r, size_t n)
{
    size_t k = 1;
    while (k < n && r[k].worker.worker_id == r[0].worker.worker_id) k++;
    return k;
}

/* {"<rank>": tokens} of one instance's device tier. */
static void put_ranks(struct kvr_buf *b, const struct kvr_reach *r, size_t k, uint64_t bs)
{
    kvr_json_open(b, '{');
    for (size_t i = 0; i < k; i++) {
        if (!r[i].depth[KVR_TIER_DEVICE]) continue;
        kvr_json_key_u64(b, r[i].worker.dp_rank);
        kvr_json_u64(b, r[i].depth[KVR_TIER_DEVICE] * bs);
    }
    kvr_json_close(b, '}');
}

static uint64_t most(const struct kvr_reach *r, size_t k, enum kvr_tier t)
{
    uint64_t m = 0;
    for (size_t i = 0; i < k; i++) m = KVR_MAX(m, (uint64_t)r[i].depth[t]);
    return m;
}

static void put_scores(struct kvr_buf *b, const struct kvr_reach *r, size_t n, uint64_t bs)
{
    kvr_json_key(b, "scores");
    kvr_json_open(b, '{');
    for (size_t i = 0, k; i < n; i += k) {
        k = same_instance(r + i, n - i);
        if (!most(r + i, k, KVR_TIER_DEVICE)) continue;
        kvr_json_key_u64(b, r[i].worker.worker_id);
        put_ranks(b, r + i, k, bs);
    }
    kvr_json_close(b, '}');
}

/* At place d: how many pairs hold at least d + 1 blocks on their devices. */
static void put_frequencies(struct loop *l, struct kvr_buf *b, const struct kvr_reach *r, size_t n)
{
    size_t deepest = most(r, n, KVR_TIER_DEVICE);
    kvr_json_key(b, "frequencies");
    kvr_json_open(b, '[');
    if (deepest && !kvr_grow(&l->locals, &l->locals_cap, deepest + 1, sizeof *l->locals)) {
        b->failed = true;
    } else if (deepest) {
        uint64_t *count = l->locals; /* the query is over */
        memset(count, 0, (deepest + 1) * sizeof *count);
        for (size_t i = 0; i < n; i++) count[r[i].depth[KVR_TIER_DEVICE]]++;
        for (size_t d = deepest; d-- > 1;) count[d] += count[d + 1];
        for (size_t d = 1; d <= deepest; d++) kvr_json_u64(b, count[d]);
    }
    kvr_json_close(b, ']');
}

static void put_instances(struct kvr_buf *b, const struct kvr_reach *r, size_t n, uint64_t bs)
{
    kvr_json_key(b, "instances");
    kvr_json_open(b, '{');
    for (size_t i = 0, k; i < n; i += k) {
        k = same_instance(r + i, n - i);
        uint64_t disk = most(r + i, k, KVR_TIER_EXTERNAL) * bs;
        kvr_json_key_u64(b, r[i].worker.worker_id);
        kvr_json_open(b, '{');
        kvr_json_put_u64(b, "longest_matched", disk);
        kvr_json_put_u64(b, "gpu", most(r + i, k, KVR_TIER_DEVICE) * bs);
        kvr_json_key(b, "dp");
        put_ranks(b, r + i, k, bs);
        kvr_json_put_u64(b, "cpu", most(r + i, k, KVR_TIER_HOST_PINNED) * bs);
        kvr_json_put_u64(b, "disk", disk);
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, '}');
}

static void put_tree_sizes(struct kvr_buf *b, const struct partition *p, const struct kvr_reach *r, size_t n)
{
    kvr_json_key(b, "tree_sizes");
    kvr_json_open(b, '{');
    for (size_t i = 0, k; i < n; i += k) {
        k = same_instance(r + i, n - i);
        kvr_json_key_u64(b, r[i].worker.worker_id);
        kvr_json_open(b, '{');
        for (size_t j = i; j < i + k; j++) {
            kvr_json_key_u64(b, r[j].worker.dp_rank);
            kvr_json_u64(b, kvr_index_rank_blocks(p->index, r[j].worker));
        }
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, '}');
}

/* The views of this partition that are of this knowledge. */
static void put_views_of(struct indexer *x, struct kvr_buf *b, const struct partition *p, const char *key, enum kvr_view_knowledge which)
{
    size_t n;
    struct kvr_view_status *st = catalogue_statuses(x, &n);
    if (!st) b->failed = true;
    kvr_json_key(b, key);
    kvr_json_open(b, '[');
    kvr_lock(&x->lock);
    for (const struct instance *i = x->instances; i; i = i->next) {
        if (i->part != p) continue;
        for (size_t k = 0; k < i->listeners_n; k++) {
            const struct kvr_view_status *s = catalogue_status_of(st, n, i, &i->listeners[k]);
            if ((s ? s->knowledge : KVR_VIEW_UNKNOWN) != which) continue;
            kvr_json_printf(b, "{'instance_id':%ju,'dp_rank':%u,'reason':%s}", i->id, i->listeners[k].rank,
                            s ? s->reason : "not followed yet");
        }
    }
    kvr_unlock(&x->lock);
    kvr_json_close(b, ']');
    free(st);
}

static bool wants_detail(const struct request *rq)
{
    char value[2];
    return kvr_query_parameter(kvr_http_conn_request(rq->conn)->query, "detail", value, sizeof value) == 1 && value[0] == '1';
}

/* Answers for l->locals[0..n), of a prompt of `isl` tokens. */
static void answer(struct request *rq, struct partition *p, size_t n, uint64_t isl)
{
    struct loop *l = rq->loop;
    struct kvr_buf *b = &l->body;
    long k = reach_all(l, p, l->locals, n, isl);
    if (k < 0) {
        answer_error(rq, k == -KVR_ENOMEM ? 503 : 500, "index failure: %s", kvr_strerror((int)k));
        return;
    }
    kvr_buf_reset(b);
    kvr_json_open(b, '{');
    put_scores(b, l->reaches, (size_t)k, p->block_size);
    put_frequencies(l, b, l->reaches, (size_t)k);
    put_instances(b, l->reaches, (size_t)k, p->block_size);
    if (l->indexer->o->tree_sizes) put_tree_sizes(b, p, l->reaches, (size_t)k);
    if (wants_detail(rq)) {
        put_views_of(l->indexer, b, p, "untrusted", KVR_VIEW_UNKNOWN);
        put_views_of(l->indexer, b, p, "partial", KVR_VIEW_PARTIAL);
    }
    kvr_json_close(b, '}');
    if (b->failed) answer_error(rq, 503, "out of memory");
    else answer_body(rq, 200, b->data, b->len);
}

/* ---- the questions ------------------------------------------------------------------------------------------- */

/* The partition a body names, with a reference; NULL after having answered. */
static struct partition *partition_of(struct request *rq, struct kvr_json o)
{
    struct indexer *x = rq->loop->indexer;
    char model[NAME_MAX_LEN + 1], group[NAME_MAX_LEN + 1];
    if (body_text(rq, o, "model_name", true, model, sizeof model) < 0) return NULL;
    snprintf(rq->model, sizeof rq->model, "%.63s", model);
    if (body_group(rq, o, group, sizeof group) < 0) return NULL;
    struct partition *p = catalogue_find(x, model, strlen(model), group, strlen(group));
    if (!p) answer_error(rq, 404, "no indexer for model=%s routing_group=%s", model, group);
    return p;
}

/* An array of at most --max-prompt-tokens, with its length. Returns: false after having answered. */
static bool is_array(struct request *rq, struct kvr_json v, const char *key, size_t *n)
{
    struct indexer *x = rq->loop->indexer;
    *n = kvr_json_count(v);
    if (kvr_json_type_of(v) == KVR_JSON_ARRAY && *n <= x->o->max_prompt_tokens) return true;
    if (kvr_json_type_of(v) == KVR_JSON_ARRAY) {
        atomic_fetch_add_explicit(&x->telemetry.refused_prompts, 1, memory_order_relaxed);
        answer_error(rq, 413, "field `%s` has more than %llu entries, which is --max-prompt-tokens", key,
                     (unsigned long long)x->o->max_prompt_tokens);
    } else if (kvr_json_type_of(v) == KVR_JSON_NONE) {
        answer_error(rq, 422, "missing field `%s`", key);
    } else {
        answer_error(rq, 422, "field `%s` must be an array of integers", key);
    }
    return false;
}

/* Answers for tokens[0..n), or for the array `list` of n, which is read when the rest of the question is fine. */
static void query(struct request *rq, struct kvr_json o, const uint32_t *tokens, struct kvr_json list, size_t n)
{
    struct loop *l = rq->loop;
    char lora[NAME_MAX_LEN + 1] = "", salt[NAME_MAX_LEN + 1] = "";
    struct partition *p;
    if (body_text(rq, o, "lora_name", false, lora, sizeof lora) < 0 || body_text(rq, o, "cache_salt", false, salt, sizeof salt) < 0 ||
        !(p = partition_of(rq, o)))
        return;
    struct kvr_mm_infos mm = {0};
    char why[160] = "";
    size_t blocks = n / p->block_size;
    int rc = kvr_mm_infos_read(o, KVR_MAX((n + p->block_size - 1) / p->block_size, (size_t)1), &mm, why, sizeof why);
    if (rc == -KVR_EFORMAT) {
        answer_error(rq, 422, "%s", why);
    } else if (rc || (!tokens && !kvr_grow(&l->tokens, &l->tokens_cap, n + 1, sizeof *l->tokens)) ||
               !kvr_grow(&l->locals, &l->locals_cap, blocks + 1, sizeof *l->locals)) {
        answer_error(rq, 503, "out of memory");
    } else if (!tokens && kvr_json_u32_array(list, l->tokens, n) < 0) {
        answer_error(rq, 422, "field `token_ids` must be an array of integers from 0 to 4294967295");
    } else {
        uint64_t seed = kvr_hash_seed(lora, strlen(lora), salt, strlen(salt));
        kvr_hash_locals(tokens ? tokens : l->tokens, n, p->block_size, false, seed, mm.blocks, mm.n, l->locals);
        answer(rq, p, blocks, n);
    }
    kvr_mm_infos_free(&mm);
    partition_unref(p);
}

void query_by_tokens(struct request *rq, struct kvr_json o)
{
    struct kvr_json list = kvr_json_get(o, "token_ids");
    size_t n;
    if (is_array(rq, list, "token_ids", &n)) query(rq, o, NULL, list, n);
}

void query_by_text(struct request *rq, struct kvr_json o, const struct text_tokens *t)
{
    struct indexer *x = rq->loop->indexer;
    if (t->status) {
        answer_error(rq, t->status, "%s", t->why);
    } else if (t->ids->n > x->o->max_prompt_tokens) {
        atomic_fetch_add_explicit(&x->telemetry.refused_prompts, 1, memory_order_relaxed);
        answer_error(rq, 413, "the prompt has %zu tokens, more than the %llu of --max-prompt-tokens", t->ids->n,
                     (unsigned long long)x->o->max_prompt_tokens);
    } else {
        query(rq, o, t->ids->v, (struct kvr_json){0}, t->ids->n);
    }
}

void query_by_hash(struct request *rq, struct kvr_json o)
{
    struct loop *l = rq->loop;
    struct kvr_json hashes = kvr_json_get(o, "block_hashes"), told = kvr_json_get(o, "isl_tokens");
    struct partition *p;
    uint64_t isl = 0;
    size_t n;
    if (!kvr_json_as_u64(told, &isl) && kvr_json_is_given(told)) {
        answer_error(rq, 422, "field `isl_tokens` must be a number of tokens");
        return;
    }
    if (kvr_json_has(o, "cache_salt")) {
        answer_error(rq, 400, "cache_salt is not accepted here: block_hashes must already include the salt");
        return;
    }
    if (kvr_json_has(o, "block_mm_infos")) {
        answer_error(rq, 400, "block_mm_infos is not accepted here: block_hashes must already include the objects");
        return;
    }
    if (!is_array(rq, hashes, "block_hashes", &n) || !(p = partition_of(rq, o))) return;
    if (!kvr_grow(&l->locals, &l->locals_cap, n + 1, sizeof *l->locals)) answer_error(rq, 503, "out of memory");
    else if (kvr_json_u64_array(hashes, l->locals, n) < 0)
        answer_error(rq, 422, "field `block_hashes` must be an array of 64-bit integers");
    else answer(rq, p, n, isl);
    partition_unref(p);
}

/* ---- the words of a served index --------------------------------------------------------------------------------- */

static void service_reply(struct request *rq, int status)
{
    static const char no_memory[] = "{\"Error\":\"out of memory\"}";
    const struct kvr_buf *b = &rq->loop->body;
    if (b->failed) answer_body(rq, 503, no_memory, sizeof no_memory - 1);
    else answer_body(rq, status, b->data, b->len);
}

static void service_error(struct request *rq, int status, const char *text)
{
    struct kvr_buf *b = &rq->loop->body;
    kvr_buf_reset(b);
    kvr_service_error_write(b, text);
    service_reply(rq, status);
}

/* `read`: what came of reading l->question. */
static void answer_service(struct request *rq, int read)
{
    struct loop *l = rq->loop;
    struct kvr_buf *b = &l->body;
    const struct kvr_service_question *q = &l->question;
    if (read == -KVR_ENOMEM) {
        service_error(rq, 503, kvr_strerror(read));
        return;
    }
    if (!read && q->wrong_query) {
        char text[160];
        snprintf(text, sizeof text, "%s: allowed: %s", q->wrong_query, kvr_service_allowed(q->wrong_query));
        service_error(rq, 400, text);
        return;
    }
    if (read || !q->model || !q->blocks.given) {
        service_error(rq, 400, "allowed: model_name, and block_hashes, a list of at most 1048576 hashes");
        return;
    }
    snprintf(rq->model, sizeof rq->model, "%.*s", (int)KVR_MIN(q->model_len, (size_t)63), q->model);
    struct partition *p = catalogue_find(l->indexer, q->model, q->model_len, "default", 7);
    if (!p) {
        service_error(rq, 404, "this model is not served here");
        return;
    }
    long k = reach_all(l, p, q->blocks.h, q->blocks.n, q->isl);
    partition_unref(p);
    if (k < 0) {
        service_error(rq, k == -KVR_ENOMEM ? 503 : 500, kvr_strerror((int)k));
        return;
    }
    kvr_buf_reset(b);
    kvr_service_scores_write(b, l->reaches, (size_t)k, l->indexer->instance_number);
    service_reply(rq, 200);
}

void query_service(struct request *rq, struct kvr_json o)
{
    answer_service(rq, kvr_service_question_json(&rq->loop->question, o));
}

void query_service_packed(struct request *rq, const char *body, size_t len)
{
    answer_service(rq, kvr_service_question_packed(&rq->loop->question, body, len));
}

void query_service_info(struct request *rq, struct kvr_json)
{
    struct indexer *x = rq->loop->indexer;
    struct kvr_buf *b = &rq->loop->body;
    struct kvr_service_info i = {.instance = x->instance_number, .ready = true, .registers = true, .packed = true};
    kvr_buf_reset(b);
    size_t n;
    struct partition **list = catalogue_list(x, &n);
    struct kvr_remote_model *models = calloc(n + 1, sizeof *models);
    for (size_t k = 0; k < n; k++) {
        if (models) snprintf(models[k].name, sizeof models[k].name, "%s", list[k]->model);
        if (models) models[k].block_size = list[k]->block_size;
        partition_unref(list[k]);
    }
    free(list);
    kvr_service_info_write(b, &i, "", models, models ? n : 0);
    free(models);
    service_reply(rq, 200);
}
