/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msgpack batch -> struct kvr_engine_batch.
 *
 * kvr_msgpack_is_whole proves that the payload is one well-formed value, so the walking below never leaves it; types are
 * checked before each decode. Lists are bounded by the payload: every element takes at least one byte.
 */
#include "wire/engine_events.h"

#include <msgpuck.h>
#include <string.h>

#include "wire/msgpack.h"

void kvr_engine_batch_init(struct kvr_engine_batch *b)
{
    memset(b, 0, sizeof *b);
    kvr_mem_init(&b->mem, NULL, 0);
}

void kvr_engine_batch_free(struct kvr_engine_batch *b)
{
    kvr_mem_put(&b->mem, b->events, b->events_cap * sizeof *b->events);
    kvr_mem_put(&b->mem, b->hashes, b->hashes_cap * sizeof *b->hashes);
    kvr_mem_put(&b->mem, b->tokens, b->tokens_cap * sizeof *b->tokens);
    kvr_mem_put(&b->mem, b->mm, b->mm_cap * sizeof *b->mm);
    kvr_mem_put(&b->mem, b->mm_hashes, b->mm_hashes_cap * sizeof *b->mm_hashes);
    memset(b, 0, sizeof *b);
}

static bool is(const char *p, enum mp_type t)
{
    return mp_typeof(*p) == t;
}

static bool skip_nil(const char **p)
{
    if (!is(*p, MP_NIL)) return false;
    mp_decode_nil(p);
    return true;
}

static int read_str(const char **p, struct kvr_bytes *out)
{
    uint32_t len;
    if (skip_nil(p)) return 0;
    if (!is(*p, MP_STR)) return -KVR_EFORMAT;
    out->ptr = mp_decode_str(p, &len);
    out->len = len;
    return 0;
}

static int read_u64(const char **p, uint64_t *out)
{
    if (!is(*p, MP_UINT)) return -KVR_EFORMAT;
    *out = mp_decode_uint(p);
    return 0;
}

/* Signed, unsigned, or a byte string whose last 8 bytes count (big-endian, shorter ones padded with zeros). */
static int read_hash(const char **p, uint64_t *out)
{
    if (is(*p, MP_UINT)) {
        *out = mp_decode_uint(p);
    } else if (is(*p, MP_INT)) {
        *out = (uint64_t)mp_decode_int(p);
    } else if (is(*p, MP_BIN) || is(*p, MP_STR)) {
        uint32_t len;
        const char *s = is(*p, MP_BIN) ? mp_decode_bin(p, &len) : mp_decode_str(p, &len);
        if (len == 0) return -KVR_EFORMAT;
        *out = 0;
        for (uint32_t i = len > 8 ? len - 8 : 0; i < len; i++) *out = *out << 8 | (unsigned char)s[i];
    } else {
        return -KVR_EFORMAT;
    }
    return 0;
}

static int read_hashes(struct kvr_engine_batch *b, const char **p, struct kvr_engine_event *ev)
{
    if (!is(*p, MP_ARRAY)) return -KVR_EFORMAT;
    uint32_t n = mp_decode_array(p);
    if (kvr_mem_grow(&b->mem, (void **)&b->hashes, &b->hashes_cap, b->hashes_n + n, sizeof *b->hashes)) return -KVR_ENOMEM;
    ev->hashes_at = b->hashes_n;
    ev->hashes_n = n;
    for (uint32_t i = 0; i < n; i++)
        if (read_hash(p, &b->hashes[b->hashes_n++])) return -KVR_EFORMAT;
    return 0;
}

static int read_parent(const char **p, struct kvr_engine_event *ev)
{
    if (skip_nil(p)) return 0;
    ev->has_parent = true;
    return read_hash(p, &ev->parent);
}

static int read_token(struct kvr_engine_batch *b, const char **p)
{
    uint64_t v;
    if (read_u64(p, &v) || v > UINT32_MAX) return -KVR_EFORMAT;
    b->tokens[b->tokens_n++] = (uint32_t)v;
    return 0;
}

/* A list of tokens, or of pairs: then every first member and the last pair's second, with eagle windows. */
static int read_tokens(struct kvr_engine_batch *b, const char **p, struct kvr_engine_event *ev)
{
    if (!is(*p, MP_ARRAY)) return -KVR_EFORMAT;
    uint32_t n = mp_decode_array(p);
    if (kvr_mem_grow(&b->mem, (void **)&b->tokens, &b->tokens_cap, b->tokens_n + n + 1, sizeof *b->tokens)) return -KVR_ENOMEM;
    ev->tokens_at = b->tokens_n;
    ev->eagle = n > 0 && is(*p, MP_ARRAY);
    for (uint32_t i = 0; i < n; i++) {
        if (!ev->eagle) {
            if (read_token(b, p)) return -KVR_EFORMAT;
            continue;
        }
        if (!is(*p, MP_ARRAY) || mp_decode_array(p) != 2 || read_token(b, p)) return -KVR_EFORMAT;
        if (i + 1 == n) {
            if (read_token(b, p)) return -KVR_EFORMAT;
        } else if (is(*p, MP_UINT)) {
            mp_next(p);
        } else {
            return -KVR_EFORMAT;
        }
    }
    ev->tokens_n = b->tokens_n - ev->tokens_at;
    return 0;
}

/* ---- multimodal objects and salt in extra_keys ------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static bool is_hex64(const char *s, size_t len)
{
    if (len != 64) return false;
    for (size_t i = 0; i < len; i++)
        if (hex_digit(s[i]) < 0) return false;
    return true;
}

uint64_t kvr_engine_mm_hash(const char *id, size_t len)
{
    if (!is_hex64(id, len)) return kvr_hash_bytes(id, len, 0);
    uint64_t v = 0;
    for (int i = 0; i < 16; i++) v = v << 4 | (uint64_t)hex_digit(id[i]);
    return v;
}

static int add_mm_hash(struct kvr_engine_batch *b, uint64_t hash)
{
    if (kvr_mem_grow(&b->mem, (void **)&b->mm_hashes, &b->mm_hashes_cap, b->mm_hashes_n + 1, sizeof *b->mm_hashes)) return -KVR_ENOMEM;
    b->mm_hashes[b->mm_hashes_n++] = hash;
    b->mm[b->mm_n - 1].n++;
    return 0;
}

static int begin_mm(struct kvr_engine_batch *b, struct kvr_engine_event *ev, uint32_t blocks)
{
    ev->mm_at = b->mm_n;
    ev->mm_n = 0;
    return kvr_mem_grow(&b->mem, (void **)&b->mm, &b->mm_cap, b->mm_n + blocks, sizeof *b->mm);
}

static void next_mm_block(struct kvr_engine_batch *b, struct kvr_engine_event *ev)
{
    b->mm[b->mm_n++] = (struct kvr_engine_mm){b->mm_hashes_n, 0};
    ev->mm_n++;
}

static bool equals(struct kvr_bytes a, const char *s, size_t len)
{
    return a.ptr && a.len == len && memcmp(a.ptr, s, len) == 0;
}

/* How extra keys of one event are read. The list of a block has, in this order: the adapter's name, when there is one; identifiers of
 * images; in the first block of a chain the salt; digests of embeddings. Engines leave them untagged, so a text says what it is by its
 * place (docs/reference/events.md has it release by release):
 *
 *     equal to the event's lora_name, the first such of a block     the adapter
 *     behind "dynamo-cache-salt:", in the first block               the salt, from a publisher that tags it
 *     anywhere but in the first block of a chain                    an image: salts stand nowhere else
 *     in the first block of a chain, of an engine that sends
 *     images as pairs                                               the salt
 *     there, of an engine that may send images as texts             either. It is taken for both, which no request asks for: a miss
 */
struct keys_reader {
    bool first;     /* the event begins a chain, and this is its first block */
    bool tagged_ok; /* this is the first block of the event */
    bool pairs;     /* this engine sends images as pairs */
    bool lora_skipped;
};

static const char salt_prefix[] = "dynamo-cache-salt:";

static int read_text_key(struct kvr_engine_batch *b, struct kvr_engine_event *ev, struct keys_reader *k, const char *s, size_t len)
{
    size_t prefix = sizeof salt_prefix - 1;
    if (!len) return 0;
    if (!k->lora_skipped && equals(ev->lora, s, len)) {
        k->lora_skipped = true;
        return 0;
    }
    bool tagged = k->tagged_ok && len > prefix && memcmp(s, salt_prefix, prefix) == 0;
    if (tagged && !ev->salt.ptr) ev->salt = (struct kvr_bytes){s + prefix, len - prefix};
    if (tagged) return 0;
    if (!k->first) return add_mm_hash(b, kvr_engine_mm_hash(s, len));
    if (equals(ev->salt, s, len)) return 0; /* told under its own name too */
    if (!ev->salt.ptr || ev->salt_or_object) ev->salt = (struct kvr_bytes){s, len};
    else return add_mm_hash(b, kvr_engine_mm_hash(s, len)); /* the salt is known, so this is something else */
    if (k->pairs) return 0;
    ev->salt_or_object = true;
    return add_mm_hash(b, kvr_engine_mm_hash(s, len));
}

/* One item of a block's extra keys. Texts and bytes that say nothing else are objects: what the engine keeps apart from a plain block must
 * never be taken for one. Numbers are ids of adapters. */
static int read_extra_key(struct kvr_engine_batch *b, const char **p, struct kvr_engine_event *ev, struct keys_reader *k)
{
    uint32_t len;
    if (is(*p, MP_STR)) {
        const char *s = mp_decode_str(p, &len);
        return read_text_key(b, ev, k, s, len);
    }
    if (is(*p, MP_BIN)) { /* embeddings in place of tokens */
        const char *s = mp_decode_bin(p, &len);
        return len ? add_mm_hash(b, kvr_hash_bytes(s, len, 0)) : 0;
    }
    if (is(*p, MP_ARRAY)) {
        const char *q = *p;
        mp_next(p);
        if (mp_decode_array(&q) == 2 && is(q, MP_STR)) {
            const char *s = mp_decode_str(&q, &len);
            if (len) return add_mm_hash(b, kvr_engine_mm_hash(s, len));
        }
        return 0;
    }
    mp_next(p);
    return 0;
}

/* A list of lists, already known to be well-formed: is there a pair in one of them? */
static bool has_pairs(const char *p)
{
    for (uint32_t n = mp_decode_array(&p); n > 0; n--) {
        if (!is(p, MP_ARRAY)) {
            mp_next(&p);
            continue;
        }
        for (uint32_t k = mp_decode_array(&p); k > 0; k--) {
            if (is(p, MP_ARRAY)) return true;
            mp_next(&p);
        }
    }
    return false;
}

/* `pairs`: the form of the event says that images come as pairs. Read when parent and adapter are known. */
static int read_extra_keys(struct kvr_engine_batch *b, const char **p, struct kvr_engine_event *ev, bool pairs)
{
    if (skip_nil(p)) return 0;
    if (!is(*p, MP_ARRAY)) return -KVR_EFORMAT;
    pairs = pairs || has_pairs(*p);
    uint32_t n = mp_decode_array(p);
    if (begin_mm(b, ev, n)) return -KVR_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        struct keys_reader k = {.first = i == 0 && !ev->has_parent, .tagged_ok = i == 0, .pairs = pairs};
        next_mm_block(b, ev);
        if (skip_nil(p)) continue;
        if (!is(*p, MP_ARRAY)) return -KVR_EFORMAT;
        for (uint32_t left = mp_decode_array(p); left > 0; left--) {
            int rc = read_extra_key(b, p, ev, &k);
            if (rc) return rc;
        }
    }
    return 0;
}

static bool next_key_is(const char **p, const char *name)
{
    uint32_t len;
    const char *s = mp_decode_str(p, &len);
    return len == strlen(name) && memcmp(s, name, len) == 0;
}

static int read_mm_object(struct kvr_engine_batch *b, const char **p)
{
    if (!is(*p, MP_MAP)) return -KVR_EFORMAT;
    for (uint32_t n = mp_decode_map(p); n > 0; n--) {
        if (!is(*p, MP_STR)) return -KVR_EFORMAT;
        if (next_key_is(p, "mm_hash")) {
            uint64_t h;
            if (read_hash(p, &h)) return -KVR_EFORMAT;
            int rc = add_mm_hash(b, h);
            if (rc) return rc;
        } else {
            mp_next(p);
        }
    }
    return 0;
}

/* [null | {"mm_objects": [{"mm_hash": n, ...}, ...]}, ...] */
static int read_mm_infos(struct kvr_engine_batch *b, const char **p, struct kvr_engine_event *ev)
{
    if (skip_nil(p)) return 0;
    if (!is(*p, MP_ARRAY)) return -KVR_EFORMAT;
    uint32_t n = mp_decode_array(p);
    if (begin_mm(b, ev, n)) return -KVR_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        next_mm_block(b, ev);
        if (skip_nil(p)) continue;
        if (!is(*p, MP_MAP)) return -KVR_EFORMAT;
        for (uint32_t k = mp_decode_map(p); k > 0; k--) {
            if (!is(*p, MP_STR)) return -KVR_EFORMAT;
            if (!next_key_is(p, "mm_objects")) {
                mp_next(p);
                continue;
            }
            if (!is(*p, MP_ARRAY)) return -KVR_EFORMAT;
            for (uint32_t m = mp_decode_array(p); m > 0; m--) {
                int rc = read_mm_object(b, p);
                if (rc) return rc;
            }
        }
    }
    return 0;
}

/* ---- events ------------------------------------------------------------------------------------------ */

static enum kvr_engine_kind kind_of(const char *s, size_t len)
{
    static const char *const names[] = {"BlockStored", "BlockRemoved", "AllBlocksCleared", "Ignored"};
    for (int i = 0; i < 4; i++)
        if (strlen(names[i]) == len && memcmp(names[i], s, len) == 0) return (enum kvr_engine_kind)i;
    return KVR_ENGINE_UNKNOWN;
}

static int read_group(const char **p, struct kvr_engine_event *ev)
{
    if (skip_nil(p)) return 0;
    ev->has_group = true;
    return read_u64(p, &ev->group_idx);
}

static int read_window(const char **p, struct kvr_engine_event *ev)
{
    return skip_nil(p) ? 0 : read_u64(p, &ev->window);
}

/* Do the next elements have the types of the fixed tail: group, kind, window, locality, source? */
static bool tail_is_fixed(const char *p, uint32_t n)
{
    static const enum mp_type types[] = {MP_UINT, MP_STR, MP_UINT, MP_STR, MP_STR};
    if (n < 4) return false;
    for (uint32_t i = 0; i < KVR_MIN(n, 5u); i++) {
        if (!is(p, MP_NIL) && !is(p, types[i])) return false;
        mp_next(&p);
    }
    return true;
}

static bool is_locality(const char *p)
{
    uint32_t len;
    const char *s = mp_decode_str(&p, &len);
    struct kvr_bytes word = {s, len};
    return equals(word, "LOCAL", 5) || equals(word, "REMOTE", 6);
}

static int read_tail(struct kvr_engine_batch *b, const char **p, uint32_t n, struct kvr_engine_event *ev)
{
    bool have_group = false;
    if (tail_is_fixed(*p, n)) {
        if (read_group(p, ev) || read_str(p, &ev->spec_kind) || read_window(p, ev)) return -KVR_EFORMAT;
        int rc = read_str(p, &ev->locality);
        for (uint32_t i = 4; i < n; i++) mp_next(p);
        return rc;
    }
    for (uint32_t i = 0; i < n; i++) { /* older engines: told apart by type */
        int rc = 0;
        if (i < 5 && is(*p, MP_ARRAY)) {
            rc = read_mm_infos(b, p, ev);
        } else if (i < 5 && is(*p, MP_STR) && is_locality(*p)) {
            rc = read_str(p, &ev->locality);
        } else if (i < 5 && is(*p, MP_STR) && !ev->spec_kind.ptr && !ev->locality.ptr) {
            rc = read_str(p, &ev->spec_kind);
        } else if (i < 5 && is(*p, MP_UINT) && !have_group) {
            have_group = true;
            rc = read_group(p, ev);
        } else if (i < 5 && is(*p, MP_UINT)) {
            rc = read_window(p, ev);
        } else {
            mp_next(p);
        }
        if (rc) return rc;
    }
    return 0;
}

/* Position 7: the LoRA name, or a map with cache_salt. */
static int read_lora_or_metadata(const char **p, struct kvr_engine_event *ev)
{
    if (!is(*p, MP_MAP)) return read_str(p, &ev->lora);
    ev->untold_keys = false;
    for (uint32_t n = mp_decode_map(p); n > 0; n--) {
        if (!is(*p, MP_STR)) return -KVR_EFORMAT;
        if (next_key_is(p, "cache_salt")) {
            if (read_str(p, &ev->salt)) return -KVR_EFORMAT;
        } else {
            mp_next(p);
        }
    }
    return 0;
}

/* An id of an adapter never enters a hash: it says only that there is one. */
static int read_lora_id(const char **p, struct kvr_engine_event *ev)
{
    ev->lora_id = is(*p, MP_UINT) ? mp_decode_uint(p) != 0 : (mp_next(p), false);
    return 0;
}

/* Behind the extra keys comes the number of a cache group: engines that send it send images as pairs. */
static bool group_follows(const char *p)
{
    mp_next(&p);
    return is(p, MP_UINT);
}

static int read_stored_array(struct kvr_engine_batch *b, const char **p, uint32_t n, struct kvr_engine_event *ev)
{
    if (n < 4) return -KVR_EFORMAT;
    int rc = read_hashes(b, p, ev);
    ev->untold_keys = n <= 7;
    if (rc == 0) rc = read_parent(p, ev);
    if (rc == 0) rc = read_tokens(b, p, ev);
    if (rc == 0) rc = read_u64(p, &ev->block_size);
    if (rc == 0 && n > 4) rc = read_lora_id(p, ev);
    if (rc == 0 && n > 5) rc = read_str(p, &ev->medium);
    if (rc == 0 && n > 6) rc = read_lora_or_metadata(p, ev);
    if (rc == 0 && n > 7) rc = read_extra_keys(b, p, ev, n > 8 && group_follows(*p));
    if (rc == 0 && n > 8) rc = read_tail(b, p, n - 8, ev);
    return rc;
}

static int read_removed_array(struct kvr_engine_batch *b, const char **p, uint32_t n, struct kvr_engine_event *ev)
{
    if (n < 1) return -KVR_EFORMAT;
    int rc = read_hashes(b, p, ev);
    if (rc == 0 && n > 1) rc = read_str(p, &ev->medium);
    if (rc == 0 && n > 2) rc = read_tail(b, p, n - 2, ev);
    return rc;
}

static int read_event_array(struct kvr_engine_batch *b, const char **p, struct kvr_engine_event *ev)
{
    uint32_t len, n = mp_decode_array(p);
    if (n < 1 || !is(*p, MP_STR)) return -KVR_EFORMAT;
    const char *tag = mp_decode_str(p, &len);
    ev->kind = kind_of(tag, len);
    if (ev->kind == KVR_ENGINE_STORED) return read_stored_array(b, p, n - 1, ev);
    if (ev->kind == KVR_ENGINE_REMOVED) return read_removed_array(b, p, n - 1, ev);
    for (uint32_t i = 1; i < n; i++) mp_next(p);
    return 0;
}

enum { SEEN_TYPE = 1, SEEN_HASHES = 2, SEEN_TOKENS = 4, SEEN_BLOCK_SIZE = 8 };

static int read_event_key(struct kvr_engine_batch *b, const char **p, struct kvr_engine_event *ev, const char *key, uint32_t key_len,
                          const char **extra_keys, const char **mm_infos, unsigned *seen)
{
    struct kvr_bytes type = {0}, k = {key, key_len};
#define KEY(name) equals(k, name, sizeof(name) - 1)
    if (KEY("type")) {
        if (read_str(p, &type) || !type.ptr) return -KVR_EFORMAT;
        ev->kind = kind_of(type.ptr, type.len);
        *seen |= SEEN_TYPE;
        return 0;
    }
    if (KEY("block_hashes")) {
        *seen |= SEEN_HASHES;
        return read_hashes(b, p, ev);
    }
    if (KEY("token_ids")) {
        *seen |= SEEN_TOKENS;
        return read_tokens(b, p, ev);
    }
    if (KEY("block_size")) {
        *seen |= SEEN_BLOCK_SIZE;
        return read_u64(p, &ev->block_size);
    }
    if (KEY("parent_block_hash")) return read_parent(p, ev);
    if (KEY("medium")) return read_str(p, &ev->medium);
    if (KEY("lora_name")) return read_str(p, &ev->lora);
    if (KEY("lora_id")) return read_lora_id(p, ev);
    if (KEY("cache_salt")) return read_str(p, &ev->salt);
    if (KEY("group_idx")) return read_group(p, ev);
    if (KEY("kv_cache_spec_kind")) return read_str(p, &ev->spec_kind);
    if (KEY("kv_cache_spec_sliding_window")) return read_window(p, ev);
    if (KEY("locality")) return read_str(p, &ev->locality);
    /* These two depend on other keys, so they are read when all keys are known. */
    if (KEY("extra_keys")) *extra_keys = *p;
    if (KEY("block_mm_infos") && !is(*p, MP_NIL)) *mm_infos = *p;
#undef KEY
    mp_next(p);
    return 0;
}

static int read_event_map(struct kvr_engine_batch *b, const char **p, struct kvr_engine_event *ev)
{
    const char *extra_keys = NULL, *mm_infos = NULL;
    unsigned seen = 0;
    int rc = 0;
    ev->is_map = true;
    for (uint32_t n = mp_decode_map(p); n > 0 && rc == 0; n--) {
        uint32_t len;
        if (!is(*p, MP_STR)) return -KVR_EFORMAT;
        const char *key = mp_decode_str(p, &len);
        rc = read_event_key(b, p, ev, key, len, &extra_keys, &mm_infos, &seen);
    }
    if (rc == 0 && extra_keys) rc = read_extra_keys(b, &extra_keys, ev, true);
    if (rc == 0 && mm_infos) rc = read_mm_infos(b, &mm_infos, ev);
    if (rc) return rc;
    unsigned need = SEEN_TYPE;
    if (ev->kind == KVR_ENGINE_STORED) need |= SEEN_HASHES | SEEN_TOKENS | SEEN_BLOCK_SIZE;
    if (ev->kind == KVR_ENGINE_REMOVED) need |= SEEN_HASHES;
    return (seen & need) == need ? 0 : -KVR_EFORMAT;
}

static int read_events(struct kvr_engine_batch *b, const char **p)
{
    if (!is(*p, MP_ARRAY)) return -KVR_EFORMAT;
    uint32_t n = mp_decode_array(p);
    for (uint32_t i = 0; i < n; i++) {
        if (kvr_mem_grow(&b->mem, (void **)&b->events, &b->events_cap, b->events_n + 1, sizeof *b->events)) return -KVR_ENOMEM;
        struct kvr_engine_event *ev = &b->events[b->events_n++];
        memset(ev, 0, sizeof *ev);
        int rc = -KVR_EFORMAT;
        if (is(*p, MP_ARRAY)) rc = read_event_array(b, p, ev);
        else if (is(*p, MP_MAP)) rc = read_event_map(b, p, ev);
        if (rc) return rc;
    }
    return 0;
}

static int read_ts(const char **p, double *ts)
{
    if (is(*p, MP_DOUBLE)) *ts = mp_decode_double(p);
    else if (is(*p, MP_FLOAT)) *ts = (double)mp_decode_float(p);
    else if (is(*p, MP_UINT)) *ts = (double)mp_decode_uint(p);
    else return -KVR_EFORMAT;
    return 0;
}

static int read_rank(struct kvr_engine_batch *b, const char **p)
{
    if (skip_nil(p)) return 0;
    if (is(*p, MP_UINT)) {
        uint64_t v = mp_decode_uint(p);
        if (v > UINT32_MAX) return -KVR_EFORMAT;
        b->rank = (uint32_t)v;
    } else if (is(*p, MP_INT)) {
        int64_t v = mp_decode_int(p);
        if (v < INT32_MIN) return -KVR_EFORMAT;
        b->rank = (uint32_t)(int32_t)v;
    } else {
        return -KVR_EFORMAT;
    }
    b->has_rank = true;
    return 0;
}

static int read_batch_map(struct kvr_engine_batch *b, const char **p)
{
    bool seen = false;
    int rc = 0;
    for (uint32_t n = mp_decode_map(p); n > 0 && rc == 0; n--) {
        uint32_t len;
        if (!is(*p, MP_STR)) return -KVR_EFORMAT;
        struct kvr_bytes k = {mp_decode_str(p, &len), 0};
        k.len = len;
        if (equals(k, "ts", 2)) {
            rc = read_ts(p, &b->ts);
        } else if (equals(k, "events", 6)) {
            seen = true;
            rc = read_events(b, p);
        } else if (equals(k, "data_parallel_rank", 18) || equals(k, "dp_rank", 7) || equals(k, "attn_dp_rank", 12)) {
            rc = read_rank(b, p);
        } else {
            mp_next(p);
        }
    }
    if (rc) return rc;
    return seen ? 0 : -KVR_EFORMAT;
}

int kvr_engine_decode(struct kvr_engine_batch *b, const char *data, size_t len)
{
    const char *p = data;
    b->ts = 0;
    b->has_rank = false;
    b->rank = 0;
    b->events_n = b->hashes_n = b->tokens_n = b->mm_n = b->mm_hashes_n = 0;
    if (!kvr_msgpack_is_whole(data, len)) return -KVR_EFORMAT;
    if (is(p, MP_MAP)) return read_batch_map(b, &p);
    if (!is(p, MP_ARRAY)) return -KVR_EFORMAT;
    uint32_t n = mp_decode_array(&p);
    if (n < 2) return -KVR_EFORMAT;
    int rc = read_ts(&p, &b->ts);
    if (rc == 0) rc = read_events(b, &p);
    if (rc == 0 && n > 2) rc = read_rank(b, &p);
    return rc;
}
