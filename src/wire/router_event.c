/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/router_event.h"

#include <string.h>

enum { EVENT_BLOCKS_MAX = 1 << 20 };

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
    kvr_json_close(b, '}');
}

void kvr_router_event_write(struct kvr_buf *b, const struct kvr_event *ev, uint64_t event_id)
{
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "worker_id", ev->worker.worker_id);
    kvr_json_put_str(b, "storage_tier", kvr_tier_name(ev->tier));
    kvr_json_put_str(b, "residency_domain", "worker");
    kvr_json_key(b, "event");
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "event_id", event_id);
    kvr_json_key(b, "data");
    kvr_json_open(b, '{');
    put_stored(b, ev);
    kvr_json_close(b, '}');
    kvr_json_put_u64(b, "dp_rank", ev->worker.dp_rank);
    kvr_json_close(b, '}');
    kvr_json_close(b, '}');
}

struct block_list {
    struct kvr_block *blocks;
    size_t n;
};

static int read_block(void *ctx, const char *key, size_t key_len, struct kvr_json v)
{
    struct block_list *l = ctx;
    struct kvr_block *b = &l->blocks[l->n++];
    (void)key;
    (void)key_len;
    bool ok =
        kvr_json_as_u64(kvr_json_get(v, "block_hash"), &b->block_hash) && kvr_json_as_u64(kvr_json_get(v, "tokens_hash"), &b->tokens_hash);
    return ok ? 0 : 1;
}

static bool is_text(struct kvr_json v, const char *text)
{
    const char *s;
    size_t n;
    return kvr_json_as_str(v, &s, &n) && n == strlen(text) && memcmp(s, text, n) == 0;
}

static bool read_tier(struct kvr_json v, enum kvr_tier *out)
{
    *out = KVR_TIER_DEVICE;
    if (kvr_json_type_of(v) == KVR_JSON_NONE) return true;
    for (int t = 0; t < KVR_TIER_COUNT; t++)
        if (is_text(v, kvr_tier_name((enum kvr_tier)t))) {
            *out = (enum kvr_tier)t;
            return true;
        }
    return false;
}

static int read_stored(struct kvr_json o, struct kvr_event *ev, struct kvr_block **blocks, size_t *cap)
{
    struct kvr_json list = kvr_json_get(o, "blocks"), parent = kvr_json_get(o, "parent_hash"), start = kvr_json_get(o, "start_position");
    size_t n = kvr_json_count(list);
    uint64_t position = 0;
    if (kvr_json_type_of(list) != KVR_JSON_ARRAY || n > EVENT_BLOCKS_MAX) return -KVR_EFORMAT;
    if (kvr_json_type_of(parent) > KVR_JSON_NULL) {
        if (!kvr_json_as_u64(parent, &ev->parent_hash)) return -KVR_EFORMAT;
        ev->has_parent = true;
    }
    if (kvr_json_type_of(start) > KVR_JSON_NULL) {
        if (!kvr_json_as_u64(start, &position) || position > UINT32_MAX) return -KVR_EFORMAT;
        ev->has_start_position = true;
        ev->start_position = (uint32_t)position;
    }
    if (n > *cap) {
        struct kvr_block *p = realloc(*blocks, n * 2 * sizeof *p);
        if (!p) return -KVR_ENOMEM;
        *blocks = p;
        *cap = n * 2;
    }
    struct block_list l = {*blocks, 0};
    if (n && kvr_json_each(list, read_block, &l)) return -KVR_EFORMAT;
    ev->kind = KVR_EVENT_STORED;
    ev->blocks = *blocks;
    ev->blocks_n = n;
    return 0;
}

int kvr_router_event_read(struct kvr_json o, struct kvr_event *out, struct kvr_block **blocks, size_t *cap)
{
    struct kvr_json event = kvr_json_get(o, "event"), data = kvr_json_get(event, "data"), stored = kvr_json_get(data, "stored");
    struct kvr_json domain = kvr_json_get(o, "residency_domain");
    uint64_t rank = 0;
    *out = (struct kvr_event){0};
    if (!kvr_json_as_u64(kvr_json_get(o, "worker_id"), &out->worker.worker_id)) return -KVR_EFORMAT;
    if (!kvr_json_as_u64(kvr_json_get(event, "event_id"), &out->event_id)) return -KVR_EFORMAT;
    if (kvr_json_type_of(kvr_json_get(event, "dp_rank")) > KVR_JSON_NULL &&
        (!kvr_json_as_u64(kvr_json_get(event, "dp_rank"), &rank) || rank > UINT32_MAX))
        return -KVR_EFORMAT;
    out->worker.dp_rank = (uint32_t)rank;
    if (!read_tier(kvr_json_get(o, "storage_tier"), &out->tier)) return -KVR_EFORMAT;
    if (kvr_json_type_of(domain) != KVR_JSON_NONE && !is_text(domain, "worker")) return -KVR_EFORMAT;
    if (kvr_json_type_of(stored) != KVR_JSON_OBJECT) return -KVR_EFORMAT;
    return read_stored(stored, out, blocks, cap);
}
