/* SPDX-License-Identifier: Apache-2.0 */
/* Engine batches: whatever decodes converts, and what is emitted keeps the index sound. */
#include <kvroute/index.h>

#include "wire/engine_events.h"

static void apply(void *ctx, const struct kvr_event *ev)
{
    bool behind = ev->has_parent && ev->tier == KVR_TIER_DEVICE;
    for (size_t i = 0; i < ev->blocks_n; i++) KVR_ASSERT(!behind || ev->blocks[i].block_hash != ev->parent_hash);
    (void)kvr_index_apply(ctx, ev);
}

static bool holds(void *ctx, enum kvr_tier tier, uint64_t name)
{
    return tier != KVR_TIER_DEVICE && kvr_index_holds(ctx, (struct kvr_worker){1, 0}, tier, name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvr_engine_batch b;
    struct kvr_engine_stream s;
    struct kvr_index *ix;
    const char *why;
    if (kvr_index_create(NULL, &ix)) return 0;
    kvr_engine_batch_init(&b);
    kvr_engine_stream_init(&s, (struct kvr_worker){1, 0}, 2);
    s.tiers = size % 2;
    s.holds = holds;
    s.holds_ctx = ix;
    if (kvr_engine_decode(&b, (const char *)data, size) == 0)
        for (int i = 0; i < 2; i++) KVR_ASSERT(kvr_engine_convert(&s, &b, 1, apply, ix) >= 0);
    KVR_ASSERT(kvr_index_validate(ix, &why));
    kvr_engine_batch_free(&b);
    kvr_engine_stream_free(&s);
    kvr_index_destroy(ix);
    return 0;
}
