/* SPDX-License-Identifier: Apache-2.0 */
/* /metrics of views: what is known of each rank's cache, and what brings it. */
#include <stdlib.h>
#include <string.h>

#include "app/serve/common/page.h"
#include "app/serve/workers/table/room.h"
#include "app/serve/workers/views/tiers.h"
#include "app/serve/workers/views/views.h"
#include "store/event_recorder.h"
#include "store/view_store.h"

#define RANK_OF(st) KVR_PROM_RANK((st).worker.worker_id, (st).worker.dp_rank)

static void put_view_ages(struct kvr_prom_page *b, const struct kvr_view_status *st, size_t n)
{
    uint64_t now = kvr_monotonic_ns();
    put_family(b, "view_state_seconds", "gauge", "Since a view's state, or why it is no better, changed last");
    for (size_t i = 0; i < n; i++)
        if (st[i].since_ns) kvr_prom_put_double(b, KVR_PROM_PAIRS(RANK_OF(st[i])), (double)(now - KVR_MIN(now, st[i].since_ns)) / 1e9);
    put_family(b, "kv_last_event_age_seconds", "gauge", "Since KV events of a rank were applied last");
    for (size_t i = 0; i < n; i++)
        if (st[i].heard_ns) kvr_prom_put_double(b, KVR_PROM_PAIRS(RANK_OF(st[i])), (double)(now - KVR_MIN(now, st[i].heard_ns)) / 1e9);
    put_family(b, "kv_stream_connected", "gauge", "1 while connected to a rank's KV events");
    for (size_t i = 0; i < n; i++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(RANK_OF(st[i])), st[i].connected);
}

struct tier_sample { /* of a rank's tier of which something is known */
    struct kvr_worker worker;
    enum kvr_tier tier;
    enum kvr_view_knowledge known;
    uint64_t blocks;
};

static struct tier_sample *told_tiers(struct workers *ws, struct kvr_prom_page *b, const struct kvr_view_status *st, size_t n,
                                      size_t *out_n)
{
    struct tier_sample *out = malloc((n * (KVR_TIER_COUNT - 1) + 1) * sizeof *out);
    *out_n = 0;
    if (!out) b->out->failed = true;
    for (size_t i = 0; out && i < n; i++) {
        struct kvr_tier_status tiers[KVR_TIER_COUNT];
        workers_lock(ws);
        const struct worker *w = worker_find_locked(ws, st[i].worker.worker_id);
        struct kvr_index *index = w ? w->partition->index : NULL; /* a partition stays */
        workers_unlock(ws);
        if (!index) continue;
        kvr_index_tier_status(index, st[i].worker, tiers);
        for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) {
            enum kvr_view_knowledge known = tier_knowledge(&tiers[t], st[i].knowledge);
            if (known == KVR_VIEW_UNKNOWN && !tiers[t].blocks) continue;
            out[(*out_n)++] = (struct tier_sample){st[i].worker, (enum kvr_tier)t, known, tiers[t].blocks};
        }
    }
    return out;
}

static void put_view_tiers(struct workers *ws, struct kvr_prom_page *b, const struct kvr_view_status *st, size_t n)
{
    size_t told;
    struct tier_sample *x = told_tiers(ws, b, st, n, &told);
#define TIER_OF(x) RANK_OF(x), KVR_PROM_TEXT("tier", kvr_tier_name((x).tier))
    put_family(b, "view_tier_blocks", "gauge", "Blocks that a rank keeps in a lower tier, by events");
    for (size_t i = 0; i < told; i++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(TIER_OF(x[i])), x[i].blocks);
    put_family(b, "view_tier_knowledge", "gauge", "1 for the state of a tier's view: whole, partial, unknown");
    for (size_t i = 0; i < told; i++)
        for (int k = KVR_VIEW_UNKNOWN; k <= KVR_VIEW_WHOLE; k++)
            kvr_prom_put_u64(b, KVR_PROM_PAIRS(TIER_OF(x[i]), KVR_PROM_TEXT("state", kvr_view_knowledge_name((enum kvr_view_knowledge)k))),
                             (int)x[i].known == k);
#undef TIER_OF
    free(x);
}

static void put_views(struct workers *ws, struct kvr_prom_page *b)
{
    size_t n;
    struct kvr_view_status *st = views_status(ws, &n);
    if (!st) b->out->failed = true;
    put_family(b, "view_trusted", "gauge", "1 when a view is of use: whole or partial");
    for (size_t i = 0; i < n; i++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(RANK_OF(st[i])), st[i].trusted);
    kvr_view_metrics(b, st, n);
    put_view_ages(b, st, n);
    put_view_tiers(ws, b, st, n);
    put_gauge(b, "view_supposed_blocks", "Blocks in partial views known by answers alone", (double)atomic_load(&ws->view_supposed));
    put_family(b, "view_recovering", "gauge", "1 while what a view has lost is being fetched");
    for (size_t i = 0; i < n; i++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(RANK_OF(st[i])), st[i].repairing && !st[i].trusted);
#define PUT(name, help)                                                                                                                    \
    put_family(b, "kv_" #name "_total", "counter", help);                                                                                  \
    for (size_t i = 0; i < n; i++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(RANK_OF(st[i])), st[i].name);
    KVR_INGEST_COUNTERS(PUT)
#undef PUT
    put_family(b, "kv_events_filtered_total", "counter", "KV events left out, by reason");
    for (size_t i = 0; i < n; i++) {
#define PUT(name)                                                                                                                          \
    if (st[i].filtered.name) kvr_prom_put_u64(b, KVR_PROM_PAIRS(RANK_OF(st[i]), KVR_PROM_TEXT("reason", #name)), st[i].filtered.name);
        KVR_ENGINE_COUNTERS(PUT)
#undef PUT
    }
    free(st);
}

void views_metrics(struct workers *ws, struct kvr_prom_page *b)
{
    put_views(ws, b);
    kvr_recorder_metrics(ws->recorder, b);
    kvr_view_store_metrics(ws->store, b);
    kvr_plane_feed_metrics(ws->o->plane.plane != KVR_PLANE_ZMQ, ws->feed, ws->ingest, ws->process->nats, b);
    kvr_durable_feed_metrics(ws->durable, b);
}
