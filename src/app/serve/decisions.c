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

void decisions_write(struct serve *s, struct kvr_buf *b, size_t most)
{
    size_t n = KVR_MIN(KVR_MIN(s->decisions_n, (uint64_t)DECISIONS), (uint64_t)most);
    kvr_json_open(b, '[');
    for (size_t i = 1; i <= n; i++) {
        const struct decision *d = &s->decisions[(s->decisions_n - i) % DECISIONS];
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
        kvr_json_put_u64(b, "predicted_cached_tokens", d->cached_tokens);
        kvr_json_key(b, "actual_cached_tokens");
        if (d->has_actual) kvr_json_u64(b, d->actual_cached);
        else kvr_json_null(b);
        put_number(b, "ttft_ms", d->ttft_ms);
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, ']');
}
