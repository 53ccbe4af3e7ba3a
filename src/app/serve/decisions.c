/* SPDX-License-Identifier: Apache-2.0 */
/* Ring of the last decisions. Under serve.lock. */
#include "app/serve/state.h"

#include <string.h>

void decisions_add(struct serve *s, const struct decision *d)
{
    if (s->decisions) s->decisions[s->decisions_n++ % DECISIONS] = *d;
}

static void put_number(struct kvr_buf *b, const char *key, double v)
{
    kvr_json_key(b, key);
    kvr_json_double(b, v);
}

static void put_table(struct kvr_buf *b, const struct decision_table *t)
{
    kvr_json_put_u64(b, "candidates_total", t->total);
    kvr_json_key(b, "candidates");
    kvr_json_open(b, '[');
    for (uint32_t i = 0; i < t->n; i++) {
        kvr_json_open(b, '{');
        kvr_json_put_u64(b, "worker_id", t->rows[i].worker.worker_id);
        kvr_json_put_u64(b, "dp_rank", t->rows[i].worker.dp_rank);
        put_number(b, "cost", t->rows[i].cost);
        put_number(b, "device_blocks", (double)t->rows[i].device);
        put_number(b, "host_blocks", (double)t->rows[i].host);
        put_number(b, "disk_blocks", (double)t->rows[i].disk);
        kvr_json_put_u64(b, "active_prefill_tokens", t->rows[i].prefill_tokens);
        kvr_json_put_u64(b, "potential_decode_blocks", t->rows[i].decode_blocks);
        kvr_json_put_u64(b, "active_requests", t->rows[i].requests);
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, ']');
}

static void put_decision(struct kvr_buf *b, const struct decision *d, bool table)
{
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "at_ms", d->at_ms);
    kvr_json_put_str(b, "request_id", d->id);
    kvr_json_put_str(b, "model", d->model);
    kvr_json_put_str(b, "reason", d->reason);
    kvr_json_put_u64(b, "worker_id", d->worker.worker_id);
    kvr_json_put_u64(b, "dp_rank", d->worker.dp_rank);
    kvr_json_put_u64(b, "status", d->status);
    kvr_json_put_u64(b, "isl_tokens", d->isl);
    kvr_json_put_u64(b, "overlap_blocks", d->overlap_blocks);
    put_number(b, "best_overlap_blocks", d->best_blocks);
    put_number(b, "regret_blocks", d->best_blocks - d->effective_blocks);
    put_number(b, "cost", d->cost);
    kvr_json_put_u64(b, "predicted_cached_tokens", d->cached_tokens);
    kvr_json_key(b, "actual_cached_tokens");
    if (d->has_actual) kvr_json_u64(b, d->actual_cached);
    else kvr_json_null(b);
    put_number(b, "queued_ms", d->waited_ms);
    put_number(b, "ttft_ms", d->ttft_ms);
    if (table) put_table(b, &d->table);
    kvr_json_close(b, '}');
}

static const struct decision *decision_at(const struct serve *s, uint64_t back)
{
    return &s->decisions[(s->decisions_n - back) % DECISIONS];
}

void decisions_write(struct serve *s, struct kvr_buf *b, size_t most)
{
    size_t n = KVR_MIN(KVR_MIN(s->decisions_n, (uint64_t)DECISIONS), (uint64_t)most);
    kvr_json_open(b, '[');
    for (size_t i = 1; i <= n; i++) put_decision(b, decision_at(s, i), false);
    kvr_json_close(b, ']');
}

bool decisions_write_one(struct serve *s, struct kvr_buf *b, const char *id, size_t len)
{
    size_t n = KVR_MIN(s->decisions_n, (uint64_t)DECISIONS);
    for (size_t i = 1; i <= n; i++) {
        const struct decision *d = decision_at(s, i);
        if (strlen(d->id) != len || memcmp(d->id, id, len)) continue;
        put_decision(b, d, true);
        return true;
    }
    return false;
}

/* ---- tables ------------------------------------------------------------------------------------------ */

void decision_table_take(struct decision_table *t, const struct kvr_router_ctx *ctx)
{
    const struct kvr_candidate *c;
    const struct kvr_cost *costs;
    size_t n = kvr_router_candidates(ctx, &c, &costs);
    t->total = (uint32_t)n;
    t->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (t->n == TABLE_ROWS && costs[i].cost >= t->rows[TABLE_ROWS - 1].cost) continue;
        uint32_t at = t->n < TABLE_ROWS ? t->n++ : TABLE_ROWS - 1;
        for (; at > 0 && t->rows[at - 1].cost > costs[i].cost; at--) t->rows[at] = t->rows[at - 1];
        t->rows[at].worker = c[i].worker;
        t->rows[at].device = (float)c[i].device_blocks;
        t->rows[at].host = (float)c[i].host_blocks;
        t->rows[at].disk = (float)c[i].disk_blocks;
        t->rows[at].requests = c[i].active_requests;
        t->rows[at].prefill_tokens = c[i].active_prefill_tokens;
        t->rows[at].decode_blocks = c[i].decode_blocks;
        t->rows[at].cost = costs[i].cost;
    }
}

void decision_table_header(const struct decision_table *t, struct kvr_buf *h)
{
    kvr_buf_printf(h, "x-kvroute-explain: candidates=%u", t->total);
    for (uint32_t i = 0; i < t->n; i++)
        kvr_buf_printf(h, "; %llu/%u cost=%.6g overlap=%.6g prefill=%llu decode=%llu active=%u",
                       (unsigned long long)t->rows[i].worker.worker_id, t->rows[i].worker.dp_rank, t->rows[i].cost,
                       (double)t->rows[i].device, (unsigned long long)t->rows[i].prefill_tokens,
                       (unsigned long long)t->rows[i].decode_blocks, t->rows[i].requests);
    kvr_buf_str(h, "\r\n");
}
