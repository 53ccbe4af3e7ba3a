/* SPDX-License-Identifier: Apache-2.0 */
#include "app/mock/encode.h"

#include <msgpuck.h>
#include <string.h>

enum { LORA_ID = 1 };

static char *put_text(char *p, const char *s)
{
    return s ? mp_encode_str(p, s, (uint32_t)strlen(s)) : mp_encode_nil(p);
}

enum extras { BARE, GROUP, KIND }; /* of a cache group: nothing, its number, its kind too */

static char *put_removed(char *p, const struct kvr_event *ev, const char *medium, bool group)
{
    p = mp_encode_map(p, group ? 4 : 3);
    p = put_text(put_text(p, "type"), "BlockRemoved");
    p = mp_encode_array(put_text(p, "block_hashes"), (uint32_t)ev->removed_n);
    for (size_t i = 0; i < ev->removed_n; i++) p = mp_encode_uint(p, ev->removed[i]);
    p = put_text(put_text(p, "medium"), medium);
    return group ? mp_encode_uint(put_text(p, "group_idx"), 0) : p;
}

/* One entry a block: the adapter's name in each, the salt in the first of a chain; nothing tells them apart. */
static char *put_extra_keys(char *p, const struct kvr_event *ev, const struct mock_event_words *w)
{
    p = mp_encode_array(p, (uint32_t)ev->blocks_n);
    for (size_t i = 0; i < ev->blocks_n; i++) {
        bool salt = w->salt && i == 0 && !ev->has_parent;
        uint32_t n = (w->lora ? 1u : 0u) + (salt ? 1u : 0u);
        p = n ? mp_encode_array(p, n) : mp_encode_nil(p);
        if (w->lora) p = put_text(p, w->lora);
        if (salt) p = put_text(p, w->salt);
    }
    return p;
}

/* What every stored event begins with, of so many members. */
static char *put_blocks(char *p, uint32_t members, const struct kvr_event *ev, const struct mock_event_words *w)
{
    p = mp_encode_map(p, members);
    p = put_text(put_text(p, "type"), "BlockStored");
    p = mp_encode_array(put_text(p, "block_hashes"), (uint32_t)ev->blocks_n);
    for (size_t i = 0; i < ev->blocks_n; i++) p = mp_encode_uint(p, ev->blocks[i].block_hash);
    p = put_text(p, "parent_block_hash");
    p = ev->has_parent ? mp_encode_uint(p, ev->parent_hash) : mp_encode_nil(p);
    p = mp_encode_array(put_text(p, "token_ids"), (uint32_t)w->tokens_n);
    for (size_t i = 0; i < w->tokens_n; i++) p = mp_encode_uint(p, w->tokens[i]);
    return mp_encode_uint(put_text(p, "block_size"), w->block_size);
}

static char *put_stored(char *p, const struct kvr_event *ev, const struct mock_event_words *w)
{
    p = put_blocks(p, 11, ev, w);
    p = put_text(p, "lora_id");
    p = w->lora ? mp_encode_uint(p, LORA_ID) : mp_encode_nil(p);
    p = put_text(put_text(p, "medium"), "GPU");
    p = put_text(put_text(p, "lora_name"), w->lora);
    p = put_extra_keys(put_text(p, "extra_keys"), ev, w);
    p = mp_encode_uint(put_text(p, "group_idx"), 0);
    return put_text(put_text(p, "kv_cache_spec_kind"), "full_attention");
}

void mock_encode(struct kvr_buf *b, const struct kvr_event *ev, const struct mock_event_words *w)
{
    size_t words = (w->lora ? strlen(w->lora) + 5 : 1) * (ev->blocks_n + 1) + (w->salt ? strlen(w->salt) + 5 : 0);
    if (kvr_buf_reserve(b, 256 + 14 * (ev->blocks_n + ev->removed_n) + 5 * w->tokens_n + words)) return;
    char *p = b->data + b->len;
    if (ev->kind == KVR_EVENT_CLEARED) p = put_text(put_text(mp_encode_map(p, 1), "type"), "AllBlocksCleared");
    else if (ev->kind == KVR_EVENT_REMOVED) p = put_removed(p, ev, "GPU", true);
    else p = put_stored(p, ev, w);
    b->len = (size_t)(p - b->data);
}

/* ---- the host's memory ----------------------------------------------------------------------------------- */

#define OWN_NAMES UINT64_C(0x9e3779b97f4a7c15) /* makes of a block's name one that no block has */

static char *put_host_stored(char *p, const struct kvr_event *ev, const struct mock_event_words *w, const char *medium, enum extras more)
{
    p = put_blocks(p, 8 + (uint32_t)more, ev, w);
    p = mp_encode_nil(put_text(p, "lora_id"));
    p = put_text(put_text(p, "medium"), medium);
    p = mp_encode_nil(put_text(p, "lora_name"));
    if (more >= GROUP) p = mp_encode_uint(put_text(p, "group_idx"), 0);
    return more >= KIND ? put_text(put_text(p, "kv_cache_spec_kind"), "full_attention") : p;
}

/* Of the names of a chunk, the last alone. */
static struct kvr_event last_of(const struct kvr_event *ev)
{
    struct kvr_event one = *ev;
    if (ev->kind == KVR_EVENT_STORED) one.blocks += ev->blocks_n - 1, one.blocks_n = 1, one.has_parent = false;
    else one.removed += ev->removed_n - 1, one.removed_n = 1;
    return one;
}

static char *put_host(char *p, const struct kvr_event *ev, const struct mock_event_words *w, const char *medium, enum extras more)
{
    return ev->kind == KVR_EVENT_STORED ? put_host_stored(p, ev, w, medium, more) : put_removed(p, ev, medium, more >= GROUP);
}

/* A chunk by one name, which is not that of a block. */
static char *put_own_name(char *p, const struct kvr_event *ev, const struct mock_event_words *w)
{
    struct kvr_event one = last_of(ev);
    struct mock_event_words words = *w;
    uint64_t name = (ev->kind == KVR_EVENT_STORED ? one.blocks->block_hash : *one.removed) ^ OWN_NAMES;
    struct kvr_block block = {.block_hash = name};
    one.blocks = &block;
    one.blocks_n = ev->kind == KVR_EVENT_STORED;
    one.removed = &name;
    one.has_parent = ev->has_parent;
    one.parent_hash = ev->parent_hash ^ OWN_NAMES;
    words.block_size = (uint32_t)w->tokens_n;
    return put_host(p, &one, &words, "CPU", BARE);
}

static char *put_each_block(char *p, const struct kvr_event *ev, const struct mock_event_words *w, const char *medium)
{
    for (size_t i = 0; i < ev->blocks_n; i++) {
        struct kvr_event one = *ev;
        struct mock_event_words words = *w;
        one.blocks = ev->blocks + i;
        one.blocks_n = 1;
        one.has_parent = i || ev->has_parent;
        one.parent_hash = i ? ev->blocks[i - 1].block_hash : ev->parent_hash;
        words.tokens = w->tokens + i * w->block_size;
        words.tokens_n = w->block_size;
        p = put_host_stored(p, &one, &words, medium, GROUP);
    }
    return p;
}

uint32_t mock_encode_host(struct kvr_buf *b, const struct kvr_event *ev, const struct mock_event_words *w, enum mock_offload_form form)
{
    static const struct mock_event_words nothing;
    struct kvr_event last = last_of(ev);
    bool stored = ev->kind == KVR_EVENT_STORED, each = stored && form == MOCK_OFFLOAD_MOONCAKE;
    if (form == MOCK_OFFLOAD_NONE || (form == MOCK_OFFLOAD_MOONCAKE && !stored)) return 0;
    if (kvr_buf_reserve(b, 256 * (ev->blocks_n + 1) + 14 * (ev->blocks_n + ev->removed_n) + 5 * w->tokens_n)) return 0;
    char *p = b->data + b->len;
    if (form == MOCK_OFFLOAD_PLACEHOLDER) p = put_host(p, &last, &nothing, "CPU", GROUP);
    else if (form == MOCK_OFFLOAD_DESCRIBING) p = put_host(p, ev, w, "CPU", KIND);
    else if (form == MOCK_OFFLOAD_LMCACHE) p = put_own_name(p, ev, w);
    else p = each ? put_each_block(p, ev, w, "cpu") : put_host(p, ev, w, "CPU_PINNED", GROUP);
    b->len = (size_t)(p - b->data);
    return each ? (uint32_t)ev->blocks_n : 1;
}
