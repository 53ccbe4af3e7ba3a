/* SPDX-License-Identifier: Apache-2.0 */
#include "recover/event_json.h"

#include "base/lower.h"

static void put_lower(struct kvr_buf *b, const struct kvr_lower *lower)
{
    uint64_t words[KVR_LOWER_WORDS];
    kvr_lower_pack(lower, words);
    if (!kvr_lower_is_told(words)) return;
    kvr_json_key(b, "lower");
    kvr_json_open(b, '[');
    for (int i = 0; i < KVR_LOWER_WORDS; i++) kvr_json_u64(b, words[i]);
    kvr_json_close(b, ']');
}

static void put_stored(struct kvr_buf *b, const struct kvr_event *ev)
{
    kvr_json_key(b, "stored");
    kvr_json_open(b, '{');
    kvr_json_key(b, "parent_hash");
    if (ev->has_parent) kvr_json_u64(b, ev->parent_hash);
    else kvr_json_null(b);
    kvr_json_key(b, "start_position");
    if (ev->has_start_position) kvr_json_u64(b, ev->start_position);
    else kvr_json_null(b);
    kvr_json_key(b, "blocks");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < ev->blocks_n; i++) {
        kvr_json_open(b, '{');
        kvr_json_put_u64(b, "block_hash", ev->blocks[i].block_hash);
        kvr_json_put_u64(b, "tokens_hash", ev->blocks[i].tokens_hash);
        kvr_json_key(b, "mm_extra_info");
        kvr_json_null(b);
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, ']');
    put_lower(b, &ev->lower);
    kvr_json_close(b, '}');
}

static void put_removed(struct kvr_buf *b, const struct kvr_event *ev)
{
    kvr_json_key(b, "removed");
    kvr_json_open(b, '{');
    kvr_json_key(b, "block_hashes");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < ev->removed_n; i++) kvr_json_u64(b, ev->removed[i]);
    kvr_json_close(b, ']');
    kvr_json_close(b, '}');
}

static void put_data(struct kvr_buf *b, const struct kvr_event *ev)
{
    if (ev->kind == KVR_EVENT_CLEARED) {
        kvr_json_str(b, "cleared", 7);
        return;
    }
    kvr_json_open(b, '{');
    if (ev->kind == KVR_EVENT_STORED) put_stored(b, ev);
    else put_removed(b, ev);
    kvr_json_close(b, '}');
}

void kvr__event_json(struct kvr_buf *b, const struct kvr_event *ev, uint64_t event_id)
{
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "worker_id", ev->worker.worker_id);
    kvr_json_put_str(b, "storage_tier", kvr_tier_name(ev->tier));
    kvr_json_put_str(b, "residency_domain", "worker");
    kvr_json_key(b, "event");
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "event_id", event_id);
    kvr_json_key(b, "data");
    put_data(b, ev);
    kvr_json_put_u64(b, "dp_rank", ev->worker.dp_rank);
    kvr_json_close(b, '}');
    kvr_json_close(b, '}');
}
