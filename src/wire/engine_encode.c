/* SPDX-License-Identifier: Apache-2.0 */
/* Writes KV event batches as vLLM writes them; wire/engine_encode.h. */
#include "wire/engine_encode.h"

#include <msgpuck.h>
#include <string.h>

static char *room(struct kvr_buf *b, size_t more)
{
    return kvr_buf_reserve(b, more) ? NULL : b->data + b->len;
}

static void wrote(struct kvr_buf *b, const char *end)
{
    b->len = (size_t)(end - b->data);
}

static char *put_text(char *p, const char *s)
{
    return mp_encode_str(p, s, (uint32_t)strlen(s));
}

static char *put_bytes(char *p, struct kvr_bytes s)
{
    return s.ptr ? mp_encode_str(p, s.ptr, (uint32_t)s.len) : mp_encode_nil(p);
}

/* Names that Dynamo knows, too. CPU_PINNED is SGLang's, which does not read few blocks. */
static const char *medium_of(const struct kvr_event *ev)
{
    static const char *const names[] = {"GPU", "CPU_TIER1", "DISK", "EXTERNAL"};
    return ev->tier == KVR_TIER_HOST_PINNED && ev->lower.least ? "CPU_PINNED" : names[ev->tier];
}

static char *put_tokens(char *p, const struct kvr_engine_words *w)
{
    size_t n = w->eagle ? w->tokens_n ? w->tokens_n - 1 : 0 : w->tokens_n;
    p = mp_encode_array(p, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        if (w->eagle) p = mp_encode_array(p, 2);
        p = mp_encode_uint(p, w->tokens[i]);
        if (w->eagle) p = mp_encode_uint(p, w->tokens[i + 1]);
    }
    return p;
}

/* One list a block: of the first block the salt, then [identifier, offset] of each object. */
static char *put_extra_keys(char *p, const struct kvr_engine_words *w)
{
    static const char prefix[] = "dynamo-cache-salt:";
    size_t blocks = KVR_MAX(w->mm_n, (size_t)(w->salt.len > 0));
    p = mp_encode_array(p, (uint32_t)blocks);
    for (size_t i = 0; i < blocks; i++) {
        bool salt = i == 0 && w->salt.len;
        size_t n = i < w->mm_n ? w->mm[i].n : 0;
        if (!salt && !n) {
            p = mp_encode_nil(p);
            continue;
        }
        p = mp_encode_array(p, (uint32_t)(n + salt));
        if (salt) {
            p = mp_encode_strl(p, (uint32_t)(sizeof prefix - 1 + w->salt.len));
            memcpy(p, prefix, sizeof prefix - 1);
            memcpy(p + sizeof prefix - 1, w->salt.ptr, w->salt.len);
            p += sizeof prefix - 1 + w->salt.len;
        }
        for (size_t k = 0; k < n; k++) {
            char id[65];
            snprintf(id, sizeof id, "%016llx%048d", (unsigned long long)w->mm_hashes[w->mm[i].at + k], 0);
            p = mp_encode_array(p, 2);
            p = mp_encode_str(p, id, 64);
            p = mp_encode_uint(p, 0);
        }
    }
    return p;
}

static size_t objects(const struct kvr_engine_words *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->mm_n; i++) n += w->mm[i].n;
    return n;
}

static char *put_stored(char *p, const struct kvr_event *ev, const struct kvr_engine_words *w, bool extra)
{
    p = mp_encode_array(p, extra ? 9 : 8);
    p = put_text(p, "BlockStored");
    size_t span = KVR_MAX(ev->lower.span, 1u); /* of that many blocks the last one's name is theirs */
    p = mp_encode_array(p, (uint32_t)(ev->blocks_n / span));
    for (size_t i = span; i <= ev->blocks_n; i += span) p = mp_encode_uint(p, ev->blocks[i - 1].block_hash);
    p = ev->has_parent ? mp_encode_uint(p, ev->parent_hash) : mp_encode_nil(p);
    p = put_tokens(p, w);
    p = mp_encode_uint(p, w->block_size);
    p = mp_encode_nil(p);
    p = put_text(p, medium_of(ev));
    p = put_bytes(p, w->lora);
    return extra ? put_extra_keys(p, w) : p;
}

void kvr_engine_encode(struct kvr_buf *b, const struct kvr_event *ev, const struct kvr_engine_words *w)
{
    size_t mm = objects(w);
    char *p = room(b, 128 + 9 * (ev->blocks_n + ev->removed_n) + 11 * w->tokens_n + w->lora.len + w->salt.len + 80 * mm + 16 * w->mm_n);
    if (!p) return;
    if (ev->kind == KVR_EVENT_CLEARED) {
        p = mp_encode_array(p, 1);
        p = put_text(p, "AllBlocksCleared");
    } else if (ev->kind == KVR_EVENT_REMOVED) {
        p = mp_encode_array(p, 3);
        p = put_text(p, "BlockRemoved");
        p = mp_encode_array(p, (uint32_t)ev->removed_n);
        for (size_t i = 0; i < ev->removed_n; i++) p = mp_encode_uint(p, ev->removed[i]);
        p = put_text(p, medium_of(ev));
    } else {
        p = put_stored(p, ev, w, !w->untold_keys || mm > 0 || w->salt.len > 0);
    }
    wrote(b, p);
}

void kvr_engine_encode_batch(struct kvr_buf *b, double ts, const struct kvr_buf *events, uint32_t events_n, uint32_t rank)
{
    char *p = room(b, 64 + events->len);
    if (!p || events->failed) {
        b->failed = true;
        return;
    }
    p = mp_encode_array(p, 3);
    p = mp_encode_double(p, ts);
    p = mp_encode_array(p, events_n);
    if (events->len) memcpy(p, events->data, events->len);
    p = mp_encode_uint(p + events->len, rank);
    wrote(b, p);
}
