/* SPDX-License-Identifier: Apache-2.0 */
/* Ring of the last decisions. Threads: any; its lock is a leaf. */
#include "app/serve/data/state/room.h"

#include <math.h>
#include <string.h>

struct kept {
    struct decision d;
    struct decision_table table;
};

struct kept_legs {
    struct decision_legs l;
    struct decision_table table;
};

struct decisions {
    struct kvr_lock lock;
    uint64_t n;
    struct kept ring[DECISIONS];
    struct kept_legs *legs; /* of the same places; NULL until a fleet has prefill or decode workers */
};

struct decisions *decisions_create(void)
{
    struct decisions *d = calloc(1, sizeof *d);
    if (d) kvr_lock_init(&d->lock, KVR_LOCK_DECISIONS);
    return d;
}

void decisions_destroy(struct decisions *d)
{
    if (d) kvr_lock_destroy(&d->lock);
    if (d) free(d->legs);
    free(d);
}

/* The rows that are used alone: most fleets are smaller than a table, and the ring is in no cache. */
static size_t size_of(uint32_t rows)
{
    return offsetof(struct decision_table, rows) + rows * sizeof(struct decision_row);
}

static const struct decision_table *keep(const struct decision_table *t, struct decision_table *place)
{
    if (t) memcpy(place, t, size_of(t->n));
    return t ? place : NULL;
}

void decisions_add(struct decisions *all, const struct decision *d, const struct decision_legs *legs)
{
    kvr_lock(&all->lock);
    size_t at = all->n++ % DECISIONS;
    struct kept *k = &all->ring[at];
    k->d = *d;
    k->d.table = keep(d->table, &k->table);
    if (legs && !all->legs) all->legs = calloc(DECISIONS, sizeof *all->legs); /* without memory they are left out */
    if (all->legs) all->legs[at].l.present = false;
    if (all->legs && legs) {
        all->legs[at].l = *legs;
        all->legs[at].l.table = keep(legs->table, &all->legs[at].table);
    }
    kvr_unlock(&all->lock);
}

/* To three digits after the point: what is kept is not exact. */
static void put_rounded(struct kvr_buf *b, const char *key, float v)
{
    kvr_json_put_double(b, key, round((double)v * 1000) / 1000);
}

static void put_delay(struct kvr_buf *b, const struct delay_terms *d)
{
    put_rounded(b, "first_ms", d->first);
    put_rounded(b, "computing_ms", d->computing);
    put_rounded(b, "generation_ms", d->generation);
    put_rounded(b, "pass_ms", d->pass);
}

static void put_row(struct kvr_buf *b, const struct decision_row *r, bool has_delay)
{
    kvr_json_printf(b, "{'worker_id':%ju,'dp_rank':%u,'cost':%g", r->worker.worker_id, r->worker.dp_rank, r->cost);
    if (has_delay) put_delay(b, &r->delay);
    kvr_json_printf(b, "'device_blocks':%g,'host_blocks':%g,'disk_blocks':%g,'external_blocks':%g,'pending_blocks':%g", (double)r->device,
                    (double)r->host, (double)r->disk, (double)r->external, (double)r->pending);
    if (has_delay) put_rounded(b, "copy_blocks", r->copy);
    if (has_delay) put_rounded(b, "pressure", r->pressure);
    kvr_json_printf(b, "'prefill_tokens':%ju,'active_prefill_tokens':%ju,'potential_decode_blocks':%ju,'active_requests':%u}",
                    r->own_tokens, r->prefill_tokens, r->decode_blocks, r->requests);
}

static void put_table(struct kvr_buf *b, const struct decision_table *t)
{
    kvr_json_printf(b, "'candidates_total':%u,'candidates':[", t ? t->total : 0);
    for (uint32_t i = 0; t && i < t->n; i++) put_row(b, &t->rows[i], t->has_delay);
    kvr_json_close(b, ']');
}

static void put_u64_or_null(struct kvr_buf *b, const char *key, bool has, uint64_t v)
{
    kvr_json_key(b, key);
    if (has) kvr_json_u64(b, v);
    else kvr_json_null(b);
}

static void put_ms(struct kvr_buf *b, const char *key, double ms)
{
    kvr_json_put_double(b, key, ms >= 0 ? ms : NAN);
}

static void put_prefill(struct kvr_buf *b, const struct decision_legs *l, bool table)
{
    kvr_json_printf(b, "'prefill':{'worker_id':%ju,'dp_rank':%u,'overlap_blocks':%u,'cached_tokens':%ju", l->worker.worker_id,
                    l->worker.dp_rank, l->overlap_blocks, l->cached_tokens);
    put_u64_or_null(b, "actual_cached", l->has_actual, l->actual_cached);
    kvr_json_printf(b, "'cost':%g,'waited_ms':%g", l->cost, l->waited_ms);
    put_ms(b, "ms", l->ms);
    put_u64_or_null(b, "status", l->status != 0, l->status);
    kvr_json_put_u64(b, "tries", l->tries);
    if (table) put_table(b, l->table);
    kvr_json_close(b, '}');
}

static void put_legs(struct kvr_buf *b, const struct decision_legs *l, bool table)
{
    kvr_json_printf(b, "'treatment':%p,'protocol':%p,'why':%p", l->treatment, l->protocol, l->why);
    put_u64_or_null(b, "eff_isl", l->has_eff, l->eff_isl);
    if (!l->has_prefill) return;
    put_prefill(b, l, table);
    put_ms(b, "handoff_ms", l->handoff_ms);
    put_ms(b, "kv_wait_ms", l->kv_wait_ms);
    kvr_json_printf(b, "'staged':%p", l->staged);
}

/* Where more than the device has something of the prompt. */
static void put_tiers(struct kvr_buf *b, const struct decision *d)
{
    if (d->held_blocks == d->tier_blocks[KVR_TIER_DEVICE]) return;
    kvr_json_printf(b, "'overlap_tiers':{");
    for (int t = 0; t < KVR_TIER_COUNT; t++) kvr_json_put_u64(b, kvr_tier_name((enum kvr_tier)t), d->tier_blocks[t]);
    kvr_json_close(b, '}');
}

/* legs: NULL: none. */
static void put_decision(struct kvr_buf *b, const struct decision *d, const struct decision_legs *legs, bool table)
{
    kvr_json_printf(b,
                    "{'at_ms':%ju,'request_id':%s,'model':%s,'asked_model':%s,'fallback':%i,'reason':%s,'worker_id':%ju,'dp_rank':%u,"
                    "'status':%u,'isl_tokens':%ju,'overlap_blocks':%u",
                    d->at_ms, d->id, d->model, d->asked_model, d->fallback, d->reason, d->worker.worker_id, d->worker.dp_rank, d->status,
                    d->isl, d->overlap_blocks);
    put_tiers(b, d);
    kvr_json_printf(b, "'best_overlap_blocks':%g,'regret_blocks':%g,'pending_blocks':%u,'cost':%g", d->best_blocks,
                    d->best_blocks - d->effective_blocks, d->pending_blocks, d->cost);
    if (d->table && d->table->has_delay) put_delay(b, &d->table->chosen);
    kvr_json_put_u64(b, "predicted_cached_tokens", d->cached_tokens);
    put_u64_or_null(b, "actual_cached_tokens", d->has_actual, d->actual_cached);
    kvr_json_printf(b, "'queued_ms':%g,'ttft_ms':%g,'other_ttft_ms':%g", d->waited_ms, d->ttft_ms, d->other_ms >= 0 ? d->other_ms : NAN);
    if (d->slo_ms > 0) kvr_json_printf(b, "'slo_ttft_ms':%g", d->slo_ms);
    if (legs) put_legs(b, legs, table);
    if (table) put_table(b, d->table);
    kvr_json_close(b, '}');
}

static const struct decision_legs *legs_of(const struct decisions *all, const struct kept *k)
{
    const struct decision_legs *l = all->legs ? &all->legs[k - all->ring].l : NULL;
    return l && l->present ? l : NULL;
}

static const struct kept *decision_at(const struct decisions *all, uint64_t back)
{
    return &all->ring[(all->n - back) % DECISIONS];
}

void decisions_write(struct decisions *all, struct kvr_buf *b, size_t most)
{
    kvr_lock(&all->lock);
    size_t n = KVR_MIN(KVR_MIN(all->n, (uint64_t)DECISIONS), (uint64_t)most);
    kvr_json_open(b, '[');
    for (size_t i = 1; i <= n; i++) {
        const struct kept *k = decision_at(all, i);
        put_decision(b, &k->d, legs_of(all, k), false);
    }
    kvr_json_close(b, ']');
    kvr_unlock(&all->lock);
}

static const struct kept *find_locked(const struct decisions *all, const char *id, size_t len)
{
    size_t n = KVR_MIN(all->n, (uint64_t)DECISIONS);
    for (size_t i = 1; i <= n; i++) {
        const struct kept *k = decision_at(all, i);
        if (kvr_span_is(id, len, k->d.id)) return k;
    }
    return NULL;
}

bool decisions_write_one(struct decisions *all, struct kvr_buf *b, const char *id, size_t len)
{
    kvr_lock(&all->lock);
    const struct kept *k = find_locked(all, id, len);
    if (k) put_decision(b, &k->d, legs_of(all, k), true);
    kvr_unlock(&all->lock);
    return k != NULL;
}

/* ---- tables ------------------------------------------------------------------------------------------ */

static struct delay_terms terms_of(const struct kvr_delay *d)
{
    return (struct delay_terms){(float)d->first, (float)d->computing, (float)d->generation, (float)d->pass};
}

/* The cost counts for those that are kept, and for the chosen one. */
static void take_delays(struct decision_table *t, const struct kvr_router_ctx *ctx, size_t at[TABLE_ROWS + 1], size_t chosen)
{
    struct kvr_delay d[TABLE_ROWS + 1];
    at[t->n] = chosen;
    t->has_delay = kvr_router_delays(ctx, at, t->n + 1, d);
    if (!t->has_delay) return;
    for (uint32_t i = 0; i < t->n; i++) t->rows[i].delay = terms_of(&d[i]);
    t->chosen = terms_of(&d[t->n]);
}

struct decision_table *decision_table_take(const struct kvr_router_ctx *ctx, const struct kvr_router_result *result)
{
    size_t at[TABLE_ROWS + 1];
    uint32_t n = (uint32_t)kvr_router_cheapest(ctx, at, TABLE_ROWS);
    struct decision_table *t = malloc(size_of(n));
    if (!t) return NULL;
    t->total = (uint32_t)result->candidates;
    t->n = n;
    for (uint32_t i = 0; i < t->n; i++) {
        struct kvr_candidate k;
        struct kvr_cost cost;
        kvr_router_candidate(ctx, at[i], &k, &cost);
        t->rows[i] = (struct decision_row){.worker = k.worker,
                                           .device = (float)k.device_blocks,
                                           .host = (float)k.host_blocks,
                                           .disk = (float)k.disk_blocks,
                                           .external = (float)k.external_blocks,
                                           .pending = (float)k.pending_blocks,
                                           .copy = (float)k.copy_blocks,
                                           .pressure = (float)k.pressure,
                                           .requests = k.active_requests,
                                           .generating = k.active_requests - k.active_prefills,
                                           .own_tokens = kvr_router_prefill_of(ctx, at[i]),
                                           .prefill_tokens = k.active_prefill_tokens,
                                           .decode_blocks = k.decode_blocks,
                                           .cost = cost.cost};
    }
    take_delays(t, ctx, at, result->place);
    return t;
}

void decision_table_header(const struct decision_table *t, struct kvr_buf *h)
{
    kvr_buf_printf(h, "x-kvroute-explain: candidates=%u", t ? t->total : 0);
    for (uint32_t i = 0; t && i < t->n; i++) {
        const struct decision_row *r = &t->rows[i];
        kvr_buf_printf(h, "; %llu/%u cost=%.6g overlap=%.6g pending=%.6g prefill=%llu decode=%llu active=%u",
                       (unsigned long long)r->worker.worker_id, r->worker.dp_rank, r->cost, (double)r->device, (double)r->pending,
                       (unsigned long long)r->prefill_tokens, (unsigned long long)r->decode_blocks, r->requests);
        if (r->host + r->disk + r->external > 0)
            kvr_buf_printf(h, " host=%.6g disk=%.6g external=%.6g", (double)r->host, (double)r->disk, (double)r->external);
        if (t->has_delay)
            kvr_buf_printf(h, " copy=%.4g first_ms=%.4g computing_ms=%.4g generation_ms=%.4g pass_ms=%.4g", (double)r->copy,
                           (double)r->delay.first, (double)r->delay.computing, (double)r->delay.generation, (double)r->delay.pass);
    }
    kvr_buf_str(h, "\r\n");
}
