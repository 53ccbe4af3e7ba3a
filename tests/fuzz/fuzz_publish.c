/* SPDX-License-Identifier: Apache-2.0 */
/* Engine batches through the sidecar: what it publishes decodes, and gives a consumer what the sidecar's own index holds. The
 * input is several batches, each with its length in one byte before it. */
#include "../capture_outlet.h"
#include "app/publish/feed.h"

#include <string.h>
#include <kvroute/index.h>

#include "wire/engine_events.h"

struct run {
    struct feed feed;
    struct capture sent;
    struct kvr_engine_batch in, out;
    struct kvr_engine_stream from_engine, from_sidecar;
    struct kvr_index *consumer;
    struct kvr_event last; /* kind and tier only */
};

static void consume(void *ctx, const struct kvr_event *ev)
{
    struct run *r = ctx;
    (void)kvr_index_apply(r->consumer, ev);
    KVR_ASSERT(ev->kind == r->last.kind && ev->tier == r->last.tier);
}

static void publish(void *ctx, const struct kvr_event *ev)
{
    struct run *r = ctx;
    struct kvr_ingest_origin origin = {&r->in, r->from_engine.current, &r->from_engine};
    uint64_t before = r->feed.next_id;
    (void)feed_event(&r->feed, ev, &origin);
    if (r->feed.next_id == before) return; /* nobody is told */
    KVR_ASSERT(r->feed.next_id == before + 1);
    /* A rank of several cache groups is given up: nothing but that is told. */
    bool given_up = kvr_engine_stream_groups(&r->from_engine) == KVR_GROUPS_LEFT_OUT;
    r->last = given_up ? (struct kvr_event){.kind = KVR_EVENT_CLEARED} : (struct kvr_event){.kind = ev->kind, .tier = ev->tier};
    KVR_ASSERT(kvr_engine_decode(&r->out, r->sent.batch.data, r->sent.batch.len) == 0 && r->out.events_n == 1);
    KVR_ASSERT(kvr_engine_convert(&r->from_sidecar, &r->out, before, consume, r) >= 0);
}

static bool sidecar_holds(void *ctx, enum kvr_tier tier, uint64_t name)
{
    return kvr_local_index_holds(ctx, tier, name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run zero;
    struct run *r = malloc(sizeof *r);
    struct kvr_worker w = {1, 0};
    struct kvr_local_index_config c = {.worker = w, .block_size = 2, .events_max = 8, .ring_bytes_max = 4096};
    struct kvr_local_index_stats st;
    const char *why;
    *r = zero;
    r->feed = (struct feed){.worker = w, .block_size = 2, .next_id = 1, .outlet = capture_open(&r->sent)};
    KVR_ASSERT(kvr_local_index_create(&c, &r->feed.index) == 0 && kvr_index_create(NULL, &r->consumer) == 0);
    kvr_engine_batch_init(&r->in);
    kvr_engine_batch_init(&r->out);
    kvr_engine_stream_init(&r->from_engine, w, 2);
    kvr_engine_stream_init(&r->from_sidecar, w, 2);
    r->from_engine.tiers = r->from_sidecar.tiers = true;
    r->from_engine.holds = sidecar_holds;
    r->from_engine.holds_ctx = r->feed.index;
    while (size > 1) {
        size_t n = KVR_MIN((size_t)data[0], size - 1);
        if (kvr_engine_decode(&r->in, (const char *)data + 1, n) == 0)
            KVR_ASSERT(kvr_engine_convert(&r->from_engine, &r->in, 1, publish, r) >= 0);
        data += n + 1;
        size -= n + 1;
    }
    KVR_ASSERT(kvr_index_validate(r->consumer, &why));
    kvr_local_index_stats(r->feed.index, &st);
    KVR_ASSERT(st.blocks == kvr_index_rank_blocks(r->consumer, w));
    KVR_ASSERT(st.newest_id == r->feed.next_id - 1);
    feed_close(&r->feed);
    kvr_index_destroy(r->consumer);
    kvr_engine_batch_free(&r->in);
    kvr_engine_batch_free(&r->out);
    kvr_engine_stream_free(&r->from_engine);
    kvr_engine_stream_free(&r->from_sidecar);
    free(r);
    return 0;
}
