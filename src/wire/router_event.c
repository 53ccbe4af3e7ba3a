/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one RouterEvent of Dynamo's JSON form; wire/router_event.h. */
#include "wire/router_event.h"

#include <string.h>

#include "base/lower.h"

enum { EVENT_BLOCKS_MAX = 1 << 20 };

static bool read_tier(struct kvr_json v, enum kvr_tier *out)
{
    *out = KVR_TIER_DEVICE;
    if (kvr_json_type_of(v) == KVR_JSON_NONE) return true;
    for (int t = 0; t < KVR_TIER_COUNT; t++)
        if (kvr_json_is_str(v, kvr_tier_name((enum kvr_tier)t))) {
            *out = (enum kvr_tier)t;
            return true;
        }
    return false;
}

static bool room_for(struct kvr_block **blocks, size_t *cap, size_t n)
{
    if (n <= *cap) return true;
    struct kvr_block *p = realloc(*blocks, n * 2 * sizeof *p);
    if (!p) return false;
    *blocks = p;
    *cap = n * 2;
    return true;
}

/* The hashes go where blocks would. */
static int read_removed(struct kvr_json o, struct kvr_event *ev, struct kvr_block **blocks, size_t *cap)
{
    struct kvr_json list = kvr_json_get(o, "block_hashes");
    size_t n = kvr_json_count(list);
    if (kvr_json_type_of(list) != KVR_JSON_ARRAY || n > EVENT_BLOCKS_MAX) return -KVR_EFORMAT;
    if (!room_for(blocks, cap, n / 2 + 1)) return -KVR_ENOMEM;
    uint64_t *hashes = (uint64_t *)(void *)*blocks;
    if (kvr_json_u64_array(list, hashes, n) != (long)n) return -KVR_EFORMAT;
    ev->kind = KVR_EVENT_REMOVED;
    ev->removed = hashes;
    ev->removed_n = n;
    return 0;
}

static bool read_lower(struct kvr_json v, struct kvr_lower *out)
{
    uint64_t words[KVR_LOWER_WORDS];
    if (!kvr_json_is_given(v)) return true;
    return kvr_json_u64_array(v, words, KVR_LOWER_WORDS) == KVR_LOWER_WORDS && kvr_lower_unpack(words, out);
}

static int read_stored(struct kvr_json o, struct kvr_event *ev, struct kvr_block **blocks, size_t *cap)
{
    struct kvr_json list = kvr_json_get(o, "blocks"), parent = kvr_json_get(o, "parent_hash"), start = kvr_json_get(o, "start_position");
    size_t n = kvr_json_count(list);
    uint64_t position = 0;
    if (kvr_json_type_of(list) != KVR_JSON_ARRAY || n > EVENT_BLOCKS_MAX) return -KVR_EFORMAT;
    if (kvr_json_is_given(parent)) {
        if (!kvr_json_as_u64(parent, &ev->parent_hash)) return -KVR_EFORMAT;
        ev->has_parent = true;
    }
    if (kvr_json_is_given(start)) {
        if (!kvr_json_as_u64(start, &position) || position > UINT32_MAX) return -KVR_EFORMAT;
        ev->has_start_position = true;
        ev->start_position = (uint32_t)position;
    }
    if (!read_lower(kvr_json_get(o, "lower"), &ev->lower)) return -KVR_EFORMAT;
    if (!room_for(blocks, cap, n)) return -KVR_ENOMEM;
    struct kvr_block *b = *blocks;
    for (struct kvr_json_iter i = kvr_json_iter(list); kvr_json_next(&i); b++)
        if (!kvr_json_as_u64(kvr_json_get(i.value, "block_hash"), &b->block_hash) ||
            !kvr_json_as_u64(kvr_json_get(i.value, "tokens_hash"), &b->tokens_hash))
            return -KVR_EFORMAT;
    ev->kind = KVR_EVENT_STORED;
    ev->blocks = *blocks;
    ev->blocks_n = n;
    return 0;
}

int kvr_router_event_read(struct kvr_json o, struct kvr_event *out, struct kvr_block **blocks, size_t *cap)
{
    struct kvr_json event = kvr_json_get(o, "event"), data = kvr_json_get(event, "data");
    struct kvr_json stored = kvr_json_get(data, "stored"), removed = kvr_json_get(data, "removed");
    struct kvr_json domain = kvr_json_get(o, "residency_domain");
    uint64_t rank = 0;
    *out = (struct kvr_event){0};
    if (!kvr_json_as_u64(kvr_json_get(o, "worker_id"), &out->worker.worker_id)) return -KVR_EFORMAT;
    if (!kvr_json_as_u64(kvr_json_get(event, "event_id"), &out->event_id)) return -KVR_EFORMAT;
    if (kvr_json_has(event, "dp_rank") && (!kvr_json_as_u64(kvr_json_get(event, "dp_rank"), &rank) || rank > UINT32_MAX))
        return -KVR_EFORMAT;
    out->worker.dp_rank = (uint32_t)rank;
    if (!read_tier(kvr_json_get(o, "storage_tier"), &out->tier)) return -KVR_EFORMAT;
    if (kvr_json_type_of(domain) != KVR_JSON_NONE && !kvr_json_is_str(domain, "worker")) return -KVR_EFORMAT;
    if (kvr_json_type_of(stored) == KVR_JSON_OBJECT) return read_stored(stored, out, blocks, cap);
    if (kvr_json_type_of(removed) == KVR_JSON_OBJECT) return read_removed(removed, out, blocks, cap);
    out->kind = KVR_EVENT_CLEARED;
    return kvr_json_is_str(data, "cleared") ? 0 : -KVR_EFORMAT;
}
