/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations from bytes, with the modes the first byte asks for: the index stays sound, and a dump rebuilds an
 * equal one. */
#include <kvroute/index.h>

#include "base/base.h"

static int replay(void *ctx, const struct kvr_event *ev)
{
    KVR_ASSERT(kvr_index_apply(ctx, ev) == 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvr_index *ix, *copy;
    const char *why;
    struct kvr_index_stats a, b;
    uint8_t mode = size ? data[0] : 0;
    struct kvr_index_config c = {.lanes = 1 + (mode & 1), .portable = (mode & 2) != 0, .rank_capacity = mode & 4 ? 6 : 0};
    if (size > 600 || kvr_index_create(&c, &ix)) return 0;
    for (size_t i = 1; i + 4 <= size; i += 4) {
        const uint8_t *d = data + i;
        struct kvr_worker w = {d[0] & 3, (d[0] >> 2) & 1};
        uint64_t names[2] = {d[1] & 15, d[2] & 15};
        struct kvr_block blocks[2] = {{names[0], d[3] & 3}, {names[1], d[3] >> 2 & 3}};
        struct kvr_event ev = {.worker = w, .blocks = blocks, .blocks_n = 1 + (d[0] >> 7), .removed = names, .removed_n = 2};
        ev.kind = (d[0] >> 3 & 7) < 5 ? KVR_EVENT_STORED : (d[0] >> 3 & 7) < 7 ? KVR_EVENT_REMOVED : KVR_EVENT_CLEARED;
        ev.has_parent = (d[1] & 16) != 0;
        ev.parent_hash = d[1] >> 4 & 15;
        ev.has_start_position = !ev.has_parent && (d[2] & 16);
        ev.start_position = d[2] >> 5;
        if (d[3] >> 4 == 7) ev.tier = (enum kvr_tier)(d[3] & 3);
        if (d[3] == 255) kvr_index_remove_worker(ix, w.worker_id);
        else if (d[3] == 254) (void)kvr_index_record(ix, w, names, 2, names, 2);
        else if (mode & 8) (void)kvr_index_apply_batch(ix, &ev, 1, NULL);
        else (void)kvr_index_apply(ix, &ev);
    }
    KVR_ASSERT(kvr_index_validate(ix, &why));
    if (kvr_index_create(NULL, &copy) == 0) {
        KVR_ASSERT(kvr_index_dump(ix, NULL, replay, copy) == 0);
        kvr_index_stats(ix, &a);
        kvr_index_stats(copy, &b);
        KVR_ASSERT(a.blocks == b.blocks && a.aliases == b.aliases && a.lower_tier_blocks == b.lower_tier_blocks);
        KVR_ASSERT(c.lanes > 1 || a.nodes == b.nodes);
        kvr_index_destroy(copy);
    }
    kvr_index_destroy(ix);
    return 0;
}
