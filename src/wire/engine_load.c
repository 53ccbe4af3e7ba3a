/* SPDX-License-Identifier: Apache-2.0 */
/* Sums up samples of /metrics by rank under the names of wire/engine_load.h. */
#include "wire/engine_load.h"

#include <math.h>
#include <msgpuck.h>
#include <string.h>

#include "wire/msgpack.h"

/* ---- names -------------------------------------------------------------------------------------------------- */

enum what { RUNNING, WAITING, USAGE, TOTAL_TOKENS, CACHE_CONFIG, AGE };

static const struct {
    const char *family, *name, *rank;
    enum what what;
} known[] = {
    {"vllm", "num_requests_running", "engine", RUNNING},
    {"vllm", "num_requests_waiting", "engine", WAITING},
    {"vllm", "kv_cache_usage_perc", "engine", USAGE},
    {"vllm", "gpu_cache_usage_perc", "engine", USAGE},
    {"vllm", "cache_config_info", "engine", CACHE_CONFIG},
    {"sglang", "num_running_reqs", "dp_rank", RUNNING},
    {"sglang", "num_queue_reqs", "dp_rank", WAITING},
    {"sglang", "token_usage", "dp_rank", USAGE},
    {"sglang", "max_total_num_tokens", "dp_rank", TOTAL_TOKENS},
    {"kvroute", "publish_engine_requests_running", "dp_rank", RUNNING},
    {"kvroute", "publish_engine_requests_waiting", "dp_rank", WAITING},
    {"kvroute", "publish_engine_kv_usage", "dp_rank", USAGE},
    {"kvroute", "publish_engine_kv_total_tokens", "dp_rank", TOTAL_TOKENS},
    {"kvroute", "publish_engine_load_age_seconds", "dp_rank", AGE},
};

static bool is_name(struct kvr_prom_text t, const char *family, const char *name)
{
    size_t f = strlen(family), n = strlen(name);
    return t.len == f + 1 + n && memcmp(t.ptr, family, f) == 0 && (t.ptr[f] == ':' || t.ptr[f] == '_') &&
           memcmp(t.ptr + f + 1, name, n) == 0;
}

/* ---- samples ------------------------------------------------------------------------------------------------ */

static const double COUNT_MAX = 1e15;

static bool is_count(double v)
{
    return v >= 0 && v <= COUNT_MAX;
}

static struct kvr_engine_load *load_of(struct kvr_engine_loads *l, struct kvr_prom_text label)
{
    uint64_t number = 0;
    bool labelled = label.ptr != NULL;
    if (labelled && !kvr_prom_u64(label, &number)) return NULL;
    for (size_t i = 0; i < l->n; i++)
        if (l->ranks[i].labelled == labelled && l->ranks[i].label == number) return &l->ranks[i].load;
    if (l->n == KVR_ENGINE_RANKS_MAX) {
        l->too_many = true;
        return NULL;
    }
    l->ranks[l->n].labelled = labelled;
    l->ranks[l->n].label = number;
    return &l->ranks[l->n++].load;
}

static void raise(uint64_t *to, double v)
{
    *to = KVR_MAX(*to, (uint64_t)v);
}

/* Info as labels, "None" where nothing is known. */
static void take_config(struct kvr_engine_load *r, const struct kvr_prom_sample *s)
{
    uint64_t blocks, size, tokens;
    if (kvr_prom_u64(kvr_prom_label(s, "kv_cache_size_tokens"), &tokens) && is_count((double)tokens)) { /* of this rank */
        raise(&r->total_tokens, (double)tokens);
        return;
    }
    /* of all the engine's ranks, in releases that do not say that */
    if (!kvr_prom_u64(kvr_prom_label(s, "num_gpu_blocks"), &blocks) || !kvr_prom_u64(kvr_prom_label(s, "block_size"), &size)) return;
    if (is_count((double)blocks * (double)size)) raise(&r->total_tokens, (double)(blocks * size));
}

static void take(struct kvr_engine_load *r, enum what what, const struct kvr_prom_sample *s)
{
    double v = s->value;
    if (what == CACHE_CONFIG) take_config(r, s);
    if (what == RUNNING && is_count(v)) r->has_running = true, raise(&r->running, v);
    if (what == WAITING && is_count(v)) r->has_waiting = true, raise(&r->waiting, v);
    if (what == TOTAL_TOKENS && is_count(v)) raise(&r->total_tokens, v);
    if (what == AGE && is_count(v * 1000)) raise(&r->age_ms, v * 1000);
    if (what == USAGE && v >= 0 && v <= 1.5) { /* a little more than 1 happens */
        r->has_usage = true;
        r->usage = KVR_MAX(r->usage, KVR_MIN(v, 1.0));
    }
}

void kvr_engine_loads_sample(void *ctx, const struct kvr_prom_sample *s)
{
    struct kvr_prom_text priority = kvr_prom_label(s, "priority");
    for (size_t i = 0; i < KVR_ARRAY_LEN(known); i++) {
        if (!is_name(s->name, known[i].family, known[i].name)) continue;
        struct kvr_engine_load *r = priority.len ? NULL : load_of(ctx, kvr_prom_label(s, known[i].rank));
        if (r) take(r, known[i].what, s);
        return;
    }
}

/* ---- a rank's ----------------------------------------------------------------------------------------------- */

/* Of one rank that is alone on both sides whatever number the engine gives it; else by number. */
static const struct kvr_engine_load *find(const struct kvr_engine_loads *l, uint32_t dp_start, uint32_t dp_size, uint32_t rank)
{
    bool local = false; /* the engine counts from 0 */
    if (l->n == 1 && dp_size == 1) return &l->ranks[0].load;
    for (size_t i = 0; i < l->n; i++) local |= l->ranks[i].labelled && l->ranks[i].label < dp_start;
    for (size_t i = 0; i < l->n; i++)
        if (l->ranks[i].labelled && l->ranks[i].label == (local ? rank - dp_start : rank)) return &l->ranks[i].load;
    return NULL;
}

bool kvr_engine_loads_of(const struct kvr_engine_loads *l, uint32_t dp_start, uint32_t dp_size, uint32_t rank, uint32_t block_size,
                         uint64_t configured_blocks, struct kvr_engine_load *out)
{
    const struct kvr_engine_load *r = find(l, dp_start, dp_size, rank);
    if (!r || (!r->has_running && !r->has_waiting && !r->has_usage)) return false;
    *out = *r;
    out->total_blocks = configured_blocks ? configured_blocks : r->total_tokens / block_size;
    out->has_used = r->has_usage && out->total_blocks;
    out->used_blocks = out->has_used ? (uint64_t)llround(r->usage * (double)out->total_blocks) : 0;
    return true;
}

/* ---- ActiveLoad --------------------------------------------------------------------------------------------- */

enum { ACTIVE_LOAD_MAX = 320 };

static char *put_key(char *p, const char *key)
{
    return mp_encode_str(p, key, (uint32_t)strlen(key));
}

static char *put_maybe(char *p, const char *key, bool has, uint64_t v)
{
    p = put_key(p, key);
    return has ? mp_encode_uint(p, v) : mp_encode_nil(p);
}

void kvr_engine_load_json(struct kvr_buf *out, const struct kvr_engine_load *load, uint64_t age_ms, bool stale)
{
    if (load->has_running) kvr_json_put_u64(out, "running", load->running);
    if (load->has_waiting) kvr_json_put_u64(out, "waiting", load->waiting);
    if (load->has_usage) kvr_json_put_double(out, "kv_usage", load->usage);
    if (load->has_used) kvr_json_put_u64(out, "kv_used_blocks", load->used_blocks);
    if (load->total_blocks) kvr_json_put_u64(out, "kv_total_blocks", load->total_blocks);
    kvr_json_printf(out, "'age_ms':%ju,'stale':%i", age_ms, stale);
}

void kvr_active_load_write(struct kvr_buf *out, struct kvr_worker worker, const struct kvr_engine_load *load)
{
    if (kvr_buf_reserve(out, ACTIVE_LOAD_MAX)) return;
    char *start = out->data + out->len, *p = mp_encode_map(start, 9);
    p = put_maybe(p, "worker_id", true, worker.worker_id);
    p = put_maybe(p, "dp_rank", true, worker.dp_rank);
    p = put_maybe(p, "active_decode_blocks", false, 0);
    p = put_maybe(p, "active_prefill_tokens", false, 0);
    p = put_maybe(p, "kv_used_blocks", load->has_used, load->used_blocks);
    p = put_maybe(p, "kv_total_blocks", load->total_blocks != 0, load->total_blocks);
    p = put_key(p, "kv_usage");
    p = load->has_usage ? mp_encode_double(p, load->usage) : mp_encode_nil(p);
    p = put_maybe(p, "num_requests_running", load->has_running, load->running);
    p = put_maybe(p, "num_requests_waiting", load->has_waiting, load->waiting);
    out->len += (size_t)(p - start);
}

/* A number up to max, or nil, which leaves *has alone. */
static bool take_maybe(const char **p, uint64_t max, bool *has, uint64_t *out)
{
    if (mp_typeof(**p) == MP_NIL) return mp_decode_nil(p), true;
    if (mp_typeof(**p) != MP_UINT) return false;
    *out = mp_decode_uint(p);
    *has = true;
    return *out <= max;
}

static bool take_usage(const char **p, struct kvr_engine_load *out)
{
    double v = 0;
    switch (mp_typeof(**p)) {
    case MP_NIL: return mp_decode_nil(p), true;
    case MP_DOUBLE: v = mp_decode_double(p); break;
    case MP_FLOAT: v = (double)mp_decode_float(p); break;
    case MP_UINT: v = (double)mp_decode_uint(p); break;
    default: return false;
    }
    out->has_usage = true;
    out->usage = v;
    return v >= 0 && v <= 1;
}

int kvr_active_load_read(const char *data, size_t len, struct kvr_worker *worker, struct kvr_engine_load *out)
{
    struct kvr_engine_load l = {0};
    uint64_t id = 0, rank = 0;
    bool has_id = false, ignored = false, ok = true;
    if (!kvr_msgpack_is_whole(data, len) || mp_typeof(*data) != MP_MAP) return -KVR_EFORMAT;
    for (uint32_t n = mp_decode_map(&data); n && ok; n--) {
        uint32_t key_len;
        if (mp_typeof(*data) != MP_STR) return -KVR_EFORMAT;
        const char *key = mp_decode_str(&data, &key_len);
        if (kvr_span_is(key, key_len, "worker_id")) ok = take_maybe(&data, UINT64_MAX, &has_id, &id);
        else if (kvr_span_is(key, key_len, "dp_rank")) ok = take_maybe(&data, UINT32_MAX, &ignored, &rank);
        else if (kvr_span_is(key, key_len, "kv_used_blocks")) ok = take_maybe(&data, UINT64_MAX >> 1, &l.has_used, &l.used_blocks);
        else if (kvr_span_is(key, key_len, "kv_total_blocks")) ok = take_maybe(&data, UINT64_MAX >> 1, &ignored, &l.total_blocks);
        else if (kvr_span_is(key, key_len, "num_requests_running")) ok = take_maybe(&data, UINT64_MAX >> 1, &l.has_running, &l.running);
        else if (kvr_span_is(key, key_len, "num_requests_waiting")) ok = take_maybe(&data, UINT64_MAX >> 1, &l.has_waiting, &l.waiting);
        else if (kvr_span_is(key, key_len, "kv_usage")) ok = take_usage(&data, &l);
        else mp_next(&data);
    }
    if (!ok || !has_id) return -KVR_EFORMAT;
    *worker = (struct kvr_worker){id, (uint32_t)rank};
    *out = l;
    return 0;
}
