/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads the answers that wire/index_service.h shows. */
#include "wire/index_service.h"

#include <stdlib.h>
#include <string.h>

enum { WORKERS_MAX = 1 << 20 };

/* ---- writing ------------------------------------------------------------------------------------------------------ */

void kvr_service_worker_write(struct kvr_buf *b, struct kvr_worker w)
{
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "worker_id", w.worker_id);
    kvr_json_put_u64(b, "dp_rank", w.dp_rank);
    kvr_json_close(b, '}');
}

static void put_pairs(struct kvr_buf *b, const struct kvr_reach *r, size_t n, int tier)
{
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) {
        uint32_t beyond = r[i].depth[tier] - (tier ? r[i].depth[tier - 1] : 0);
        if (!beyond) continue;
        kvr_json_open(b, '[');
        kvr_service_worker_write(b, r[i].worker);
        kvr_json_u64(b, beyond);
        kvr_json_close(b, ']');
    }
    kvr_json_close(b, ']');
}

void kvr_service_scores_write(struct kvr_buf *b, const struct kvr_reach *r, size_t n, uint64_t instance)
{
    kvr_json_open(b, '{');
    kvr_json_key(b, "TieredScores");
    kvr_json_open(b, '{');
    kvr_json_key(b, "device");
    kvr_json_open(b, '{');
    kvr_json_key(b, "scores");
    put_pairs(b, r, n, KVR_TIER_DEVICE);
    kvr_json_key(b, "frequencies");
    kvr_json_open(b, '[');
    kvr_json_close(b, ']');
    kvr_json_close(b, '}');
    kvr_json_key(b, "lower_tier");
    kvr_json_open(b, '[');
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) {
        bool any = false;
        for (size_t i = 0; i < n; i++) any |= r[i].depth[t] > r[i].depth[t - 1];
        if (!any) continue;
        const char *name = kvr_tier_name((enum kvr_tier)t);
        kvr_json_open(b, '[');
        kvr_json_str(b, name, strlen(name));
        kvr_json_open(b, '{');
        kvr_json_key(b, "hits");
        put_pairs(b, r, n, t);
        kvr_json_close(b, '}');
        kvr_json_close(b, ']');
    }
    kvr_json_close(b, ']');
    kvr_json_close(b, '}');
    kvr_json_put_u64(b, "instance", instance);
    kvr_json_close(b, '}');
}

void kvr_service_info_write(struct kvr_buf *b, const struct kvr_service_info *i, const char *why, const struct kvr_remote_model *models,
                            size_t n)
{
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "instance", i->instance);
    kvr_json_put_str(b, "mode", i->predicted ? "predicted" : "events");
    kvr_json_key(b, "ready");
    kvr_json_bool(b, i->ready);
    kvr_json_put_str(b, "why", why);
    kvr_json_key(b, "registers");
    kvr_json_bool(b, i->registers);
    kvr_json_key(b, "packed");
    kvr_json_bool(b, i->packed);
    kvr_json_key(b, "models");
    kvr_json_open(b, '[');
    for (size_t k = 0; k < n; k++) {
        kvr_json_open(b, '{');
        kvr_json_put_str(b, "model_name", models[k].name);
        kvr_json_put_u64(b, "block_size", models[k].block_size);
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, ']');
    kvr_json_close(b, '}');
}

void kvr_service_error_write(struct kvr_buf *b, const char *text)
{
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "Error", text);
    kvr_json_close(b, '}');
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

bool kvr_service_worker_read(struct kvr_json v, struct kvr_worker *out)
{
    uint64_t rank = 0;
    struct kvr_json r = kvr_json_get(v, "dp_rank");
    if (!kvr_json_as_u64(kvr_json_get(v, "worker_id"), &out->worker_id)) return false;
    if (kvr_json_is_given(r) && (!kvr_json_as_u64(r, &rank) || rank > UINT32_MAX)) return false;
    out->dp_rank = (uint32_t)rank;
    return true;
}

/* -KVR_EUNSUPPORTED with the server's text when the answer is an Error of the service, or an error of the port it is on. */
static int error_of(struct kvr_json answer, char *why, size_t cap)
{
    const char *text;
    size_t n;
    if (!kvr_json_as_str(kvr_json_get(answer, "Error"), &text, &n) && !kvr_json_as_str(kvr_json_get(answer, "error"), &text, &n)) return 0;
    snprintf(why, cap, "%.*s", (int)KVR_MIN(n, (size_t)200), text);
    return -KVR_EUNSUPPORTED;
}

struct scores {
    struct kvr_reach *rows;
    size_t n, cap;
    uint32_t depth_max;
    int tier;
};

static struct kvr_reach *row_of(struct scores *s, struct kvr_worker w)
{
    for (size_t i = 0; s->tier && i < s->n; i++)
        if (kvr_worker_cmp(s->rows[i].worker, w) == 0) return &s->rows[i];
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64;
        struct kvr_reach *p = s->n < WORKERS_MAX ? realloc(s->rows, cap * sizeof *p) : NULL;
        if (!p) return NULL;
        s->rows = p;
        s->cap = cap;
    }
    s->rows[s->n] = (struct kvr_reach){.worker = w};
    return &s->rows[s->n++];
}

static int take_pair(struct scores *s, struct kvr_json v)
{
    struct kvr_worker w;
    uint64_t blocks;
    if (!kvr_service_worker_read(kvr_json_at(v, 0), &w) || !kvr_json_as_u64(kvr_json_at(v, 1), &blocks)) return -KVR_EFORMAT;
    struct kvr_reach *r = row_of(s, w);
    if (!r) return -KVR_ENOMEM;
    uint64_t depth = KVR_MIN(blocks, (uint64_t)s->depth_max) + r->depth[s->tier];
    for (int t = s->tier; t < KVR_TIER_COUNT; t++) r->depth[t] = (uint32_t)KVR_MIN(depth, (uint64_t)s->depth_max);
    return 0;
}

static int take_pairs(struct scores *s, struct kvr_json list)
{
    int rc = kvr_json_type_of(list) == KVR_JSON_ARRAY ? 0 : -KVR_EFORMAT;
    for (struct kvr_json_iter i = kvr_json_iter(list); rc == 0 && kvr_json_next(&i);) rc = take_pair(s, i.value);
    return rc;
}

static int take_tier(struct scores *s, struct kvr_json v)
{
    struct kvr_json name = kvr_json_at(v, 0);
    if (kvr_json_type_of(name) != KVR_JSON_STRING) return -KVR_EFORMAT;
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) {
        if (!kvr_json_is_str(name, kvr_tier_name((enum kvr_tier)t))) continue;
        s->tier = t;
        return take_pairs(s, kvr_json_get(kvr_json_at(v, 1), "hits"));
    }
    return 0; /* a tier that is not known here */
}

long kvr_service_scores_read(struct kvr_json answer, uint32_t depth_max, struct kvr_reach **out, uint64_t *instance, char *why, size_t cap)
{
    struct kvr_json tiered = kvr_json_get(answer, "TieredScores"), device = kvr_json_get(kvr_json_get(tiered, "device"), "scores"),
                    lower = kvr_json_get(tiered, "lower_tier"), number = kvr_json_get(answer, "instance");
    struct scores s = {.depth_max = depth_max};
    int rc = error_of(answer, why, cap);
    if (rc) return rc;
    *instance = 0; /* that of servers which do not say */
    if (kvr_json_is_given(number) && !kvr_json_as_u64(number, instance)) return -KVR_EFORMAT;
    rc = take_pairs(&s, device);
    if (kvr_json_type_of(lower) == KVR_JSON_ARRAY)
        for (struct kvr_json_iter i = kvr_json_iter(lower); rc == 0 && kvr_json_next(&i);) rc = take_tier(&s, i.value);
    if (rc) {
        free(s.rows);
        return rc;
    }
    *out = s.rows;
    return (long)s.n;
}

static bool optional_bool(struct kvr_json v, bool *out)
{
    return !kvr_json_is_given(v) || kvr_json_as_bool(v, out);
}

int kvr_service_info_read(struct kvr_json answer, struct kvr_service_info *out, char *why, size_t cap)
{
    const char *text = "";
    size_t text_n = 0;
    struct kvr_json mode = kvr_json_get(answer, "mode");
    int rc = error_of(answer, why, cap);
    if (rc) return rc;
    if (!kvr_json_as_u64(kvr_json_get(answer, "instance"), &out->instance) || kvr_json_type_of(mode) != KVR_JSON_STRING ||
        !kvr_json_as_bool(kvr_json_get(answer, "ready"), &out->ready))
        return -KVR_EFORMAT;
    out->registers = out->packed = false;
    if (!optional_bool(kvr_json_get(answer, "registers"), &out->registers) || !optional_bool(kvr_json_get(answer, "packed"), &out->packed))
        return -KVR_EFORMAT;
    out->predicted = kvr_json_is_str(mode, "predicted");
    (void)kvr_json_as_str(kvr_json_get(answer, "why"), &text, &text_n);
    snprintf(why, cap, "%.*s", (int)KVR_MIN(text_n, (size_t)200), text);
    return out->predicted || kvr_json_is_str(mode, "events") ? 0 : -KVR_EFORMAT;
}

/* Whether it says nothing of other models than ours. */
static bool is_about(struct kvr_json model, const char *ours)
{
    struct kvr_json name = kvr_json_get(model, "model_name");
    return kvr_json_type_of(name) != KVR_JSON_STRING || kvr_json_is_str(name, "") || !ours[0] || kvr_json_is_str(name, ours);
}

bool kvr_service_misfits(struct kvr_json info, const struct kvr_remote_model *ours, char *why, size_t cap)
{
    struct kvr_json list = kvr_json_get(info, "models");
    uint64_t size, other = 0;
    for (struct kvr_json_iter i = kvr_json_iter(list); kvr_json_type_of(list) == KVR_JSON_ARRAY && kvr_json_next(&i);) {
        if (!is_about(i.value, ours->name) || !kvr_json_as_u64(kvr_json_get(i.value, "block_size"), &size)) continue;
        if (size == ours->block_size) return false;
        other = size;
    }
    if (!other) return false;
    snprintf(why, cap, "its block size%s%.100s is %llu, that of this router's workers is %u", ours->name[0] ? " of " : "", ours->name,
             (unsigned long long)other, ours->block_size);
    return true;
}

int kvr_service_recorded_read(struct kvr_json answer, char *why, size_t cap)
{
    int rc = error_of(answer, why, cap);
    if (rc) return rc;
    return kvr_json_is_str(answer, "Recorded") ? 0 : -KVR_EFORMAT;
}
