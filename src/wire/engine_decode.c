/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msgpack batch -> struct kvr_engine_batch.
 *
 * One pass: each value is looked at where it is read, and nothing is read behind the payload's end. What nobody wants is passed over by
 * kvr_msgpack_pass, so a payload that is not well-formed somewhere is refused as a whole. Lists are bounded by the payload: every element
 * takes at least one byte.
 */
#include "wire/engine_events.h"

#include <math.h>
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

/* Where reading is. */
struct reader {
    const char *p, *end;
};

static bool is(const struct reader *r, enum mp_type t)
{
    return r->p < r->end && mp_typeof(*r->p) == t;
}

static int skip(struct reader *r)
{
    return kvr_msgpack_pass(&r->p, r->end) ? 0 : -KVR_EFORMAT;
}

static bool skip_nil(struct reader *r)
{
    if (!is(r, MP_NIL)) return false;
    mp_decode_nil(&r->p);
    return true;
}

/* Heads of lists and maps: how many elements, or pairs, follow. */
static int read_list(struct reader *r, uint32_t *n)
{
    if (!is(r, MP_ARRAY) || mp_check_array(r->p, r->end) > 0) return -KVR_EFORMAT;
    *n = mp_decode_array(&r->p);
    return *n <= (size_t)(r->end - r->p) ? 0 : -KVR_EFORMAT;
}

static int read_map(struct reader *r, uint32_t *n)
{
    if (!is(r, MP_MAP) || mp_check_map(r->p, r->end) > 0) return -KVR_EFORMAT;
    *n = mp_decode_map(&r->p);
    return *n <= (size_t)(r->end - r->p) / 2 ? 0 : -KVR_EFORMAT;
}

static int read_text(struct reader *r, struct kvr_bytes *out)
{
    if (!is(r, MP_STR) || mp_check_strl(r->p, r->end) > 0) return -KVR_EFORMAT;
    size_t len = mp_decode_strl(&r->p);
    if (len > (size_t)(r->end - r->p)) return -KVR_EFORMAT;
    *out = (struct kvr_bytes){r->p, len};
    r->p += len;
    return 0;
}

static int read_bin(struct reader *r, struct kvr_bytes *out)
{
    if (!is(r, MP_BIN) || r->end - r->p < 2 /* mp_check_binl asserts it */ || mp_check_binl(r->p, r->end) > 0) return -KVR_EFORMAT;
    size_t len = mp_decode_binl(&r->p);
    if (len > (size_t)(r->end - r->p)) return -KVR_EFORMAT;
    *out = (struct kvr_bytes){r->p, len};
    r->p += len;
    return 0;
}

static int read_str(struct reader *r, struct kvr_bytes *out)
{
    return skip_nil(r) ? 0 : read_text(r, out);
}

static int read_u64(struct reader *r, uint64_t *out)
{
    if (!is(r, MP_UINT) || mp_check_uint(r->p, r->end) > 0) return -KVR_EFORMAT;
    *out = mp_decode_uint(&r->p);
    return 0;
}

static int read_i64(struct reader *r, int64_t *out)
{
    if (!is(r, MP_INT) || mp_check_int(r->p, r->end) > 0) return -KVR_EFORMAT;
    *out = mp_decode_int(&r->p);
    return 0;
}

/* Signed, unsigned, or a byte string whose last 8 bytes count (big-endian, shorter ones padded with zeros). */
static int read_hash(struct reader *r, uint64_t *out)
{
    struct kvr_bytes s;
    int64_t negative;
    if (is(r, MP_UINT)) return read_u64(r, out);
    if (is(r, MP_INT)) {
        int rc = read_i64(r, &negative);
        if (rc == 0) *out = (uint64_t)negative;
        return rc;
    }
    if ((is(r, MP_BIN) ? read_bin(r, &s) : read_text(r, &s)) || s.len == 0) return -KVR_EFORMAT;
    *out = 0;
    for (size_t i = s.len > 8 ? s.len - 8 : 0; i < s.len; i++) *out = *out << 8 | (unsigned char)s.ptr[i];
    return 0;
}

static int read_hashes(struct kvr_engine_batch *b, struct reader *r, struct kvr_engine_event *ev)
{
    uint32_t n;
    if (read_list(r, &n)) return -KVR_EFORMAT;
    if (kvr_mem_grow(&b->mem, (void **)&b->hashes, &b->hashes_cap, b->hashes_n + n, sizeof *b->hashes)) return -KVR_ENOMEM;
    ev->hashes_at = b->hashes_n;
    ev->hashes_n = n;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t *hash = &b->hashes[b->hashes_n++];
        if (r->end - r->p >= 9 && (unsigned char)*r->p == 0xcf) { /* of 64 bits, as most are */
            *hash = kvr_load_be64((const unsigned char *)r->p + 1);
            r->p += 9;
        } else if (read_hash(r, hash)) {
            return -KVR_EFORMAT;
        }
    }
    return 0;
}

static int read_parent(struct reader *r, struct kvr_engine_event *ev)
{
    if (skip_nil(r)) return 0;
    ev->has_parent = true;
    return read_hash(r, &ev->parent);
}

static int read_token(struct kvr_engine_batch *b, struct reader *r)
{
    uint64_t v;
    if (read_u64(r, &v) || v > UINT32_MAX) return -KVR_EFORMAT;
    b->tokens[b->tokens_n++] = (uint32_t)v;
    return 0;
}

/* The first byte of a number of up to 32 bits: the number itself below 0x80, or that one, two or four bytes follow. */
static inline bool begins_u32(unsigned c)
{
    return c < 0x80 || c - 0xcc < 3;
}

static inline unsigned bytes_behind(unsigned c)
{
    return 1u << (c & 3) & -(c >> 7);
}

/* That number. There are nine bytes at least. */
static inline uint32_t u32_at(const unsigned char *p)
{
    return *p < 0x80 ? *p : (uint32_t)(kvr_load_be64(p + 1) >> (64 - 8 * bytes_behind(*p)));
}

/* The first of n tokens, as long as they are of such a form and not at the payload's end. Returns: how many.
 * Where a token begins is known when the one before it has been looked at, and that takes longer than all else here. So two are looked at
 * for each load, and nothing branches on their sizes. */
static uint32_t read_plain_tokens(struct kvr_engine_batch *b, struct reader *r, uint32_t n)
{
    const unsigned char *p = (const unsigned char *)r->p, *end = (const unsigned char *)r->end;
    uint32_t *out = b->tokens + b->tokens_n, i = 0;
    for (; n - i >= 2 && end - p >= 5 + 9; i += 2) {
        uint64_t bytes = __builtin_bswap64(kvr_load_be64(p)); /* the first is the lowest */
        unsigned first = bytes & 0xff, behind = bytes_behind(first);
        if (!begins_u32(first)) break;
        unsigned second = bytes >> (8 + 8 * behind) & 0xff;
        if (!begins_u32(second)) break;
        out[i] = u32_at(p);
        out[i + 1] = u32_at(p + 1 + behind);
        p += 2 + behind + bytes_behind(second);
    }
    for (; i < n && end - p >= 9 && begins_u32(*p); i++) {
        out[i] = u32_at(p);
        p += 1 + bytes_behind(*p);
    }
    r->p = (const char *)p;
    b->tokens_n += i;
    return i;
}

/* A list of tokens, or of pairs: then every first member and the last pair's second, with eagle windows. */
static int read_tokens(struct kvr_engine_batch *b, struct reader *r, struct kvr_engine_event *ev)
{
    uint32_t n, of_pair;
    if (read_list(r, &n)) return -KVR_EFORMAT;
    if (kvr_mem_grow(&b->mem, (void **)&b->tokens, &b->tokens_cap, b->tokens_n + n + 1, sizeof *b->tokens)) return -KVR_ENOMEM;
    ev->tokens_at = b->tokens_n;
    ev->eagle = n > 0 && is(r, MP_ARRAY);
    for (uint32_t i = 0; i < n; i++) {
        if (!ev->eagle) {
            i += read_plain_tokens(b, r, n - i);
            if (i < n && read_token(b, r)) return -KVR_EFORMAT;
            continue;
        }
        if (read_list(r, &of_pair) || of_pair != 2 || read_token(b, r)) return -KVR_EFORMAT;
        if (i + 1 == n) {
            if (read_token(b, r)) return -KVR_EFORMAT;
        } else if (!is(r, MP_UINT) || skip(r)) {
            return -KVR_EFORMAT;
        }
    }
    ev->tokens_n = b->tokens_n - ev->tokens_at;
    return 0;
}

/* ---- multimodal objects and salt in extra_keys ------------------------------------------------------- */

static bool is_hex64(const char *s, size_t len)
{
    if (len != 64) return false;
    for (size_t i = 0; i < len; i++)
        if (kvr_hex_digit(s[i]) < 0) return false;
    return true;
}

uint64_t kvr_engine_mm_hash(const char *id, size_t len)
{
    if (!is_hex64(id, len)) return kvr_hash_bytes(id, len, 0);
    uint64_t v = 0;
    for (int i = 0; i < 16; i++) v = v << 4 | (uint64_t)kvr_hex_digit(id[i]);
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
static int read_extra_key(struct kvr_engine_batch *b, struct reader *r, struct kvr_engine_event *ev, struct keys_reader *k)
{
    struct kvr_bytes s;
    if (is(r, MP_STR)) return read_text(r, &s) ? -KVR_EFORMAT : read_text_key(b, ev, k, s.ptr, s.len);
    if (is(r, MP_BIN)) { /* embeddings in place of tokens */
        if (read_bin(r, &s)) return -KVR_EFORMAT;
        return s.len ? add_mm_hash(b, kvr_hash_bytes(s.ptr, s.len, 0)) : 0;
    }
    struct reader pair = *r;
    uint32_t n;
    if (skip(r)) return -KVR_EFORMAT;
    if (read_list(&pair, &n) || n != 2 || read_text(&pair, &s) || !s.len) return 0;
    return add_mm_hash(b, kvr_engine_mm_hash(s.ptr, s.len));
}

/* A list of lists: is there a pair in one of them? */
static bool has_pairs(struct reader r)
{
    uint32_t n, k;
    if (read_list(&r, &n)) return false;
    for (; n > 0; n--) {
        if (!is(&r, MP_ARRAY)) {
            if (skip(&r)) return false;
            continue;
        }
        if (read_list(&r, &k)) return false;
        for (; k > 0; k--) {
            if (is(&r, MP_ARRAY)) return true;
            if (skip(&r)) return false;
        }
    }
    return false;
}

/* `pairs`: the form of the event says that images come as pairs. Read when parent and adapter are known. */
static int read_extra_keys(struct kvr_engine_batch *b, struct reader *r, struct kvr_engine_event *ev, bool pairs)
{
    uint32_t n, left;
    if (skip_nil(r)) return 0;
    pairs = pairs || has_pairs(*r);
    if (read_list(r, &n)) return -KVR_EFORMAT;
    if (begin_mm(b, ev, n)) return -KVR_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        struct keys_reader k = {.first = i == 0 && !ev->has_parent, .tagged_ok = i == 0, .pairs = pairs};
        next_mm_block(b, ev);
        if (skip_nil(r)) continue;
        if (read_list(r, &left)) return -KVR_EFORMAT;
        for (; left > 0; left--) {
            int rc = read_extra_key(b, r, ev, &k);
            if (rc) return rc;
        }
    }
    return 0;
}

static int read_mm_object(struct kvr_engine_batch *b, struct reader *r)
{
    uint32_t n;
    if (read_map(r, &n)) return -KVR_EFORMAT;
    for (; n > 0; n--) {
        struct kvr_bytes key;
        uint64_t h;
        if (read_text(r, &key)) return -KVR_EFORMAT;
        int rc = -KVR_EFORMAT;
        if (!equals(key, "mm_hash", 7)) rc = skip(r);
        else if (read_hash(r, &h) == 0) rc = add_mm_hash(b, h);
        if (rc) return rc;
    }
    return 0;
}

/* [null | {"mm_objects": [{"mm_hash": n, ...}, ...]}, ...] */
static int read_mm_infos(struct kvr_engine_batch *b, struct reader *r, struct kvr_engine_event *ev)
{
    uint32_t n, k, m;
    if (skip_nil(r)) return 0;
    if (read_list(r, &n)) return -KVR_EFORMAT;
    if (begin_mm(b, ev, n)) return -KVR_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        next_mm_block(b, ev);
        if (skip_nil(r)) continue;
        if (read_map(r, &k)) return -KVR_EFORMAT;
        for (; k > 0; k--) {
            struct kvr_bytes key;
            if (read_text(r, &key)) return -KVR_EFORMAT;
            if (!equals(key, "mm_objects", 10)) {
                if (skip(r)) return -KVR_EFORMAT;
                continue;
            }
            if (read_list(r, &m)) return -KVR_EFORMAT;
            for (; m > 0; m--) {
                int rc = read_mm_object(b, r);
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
        if (kvr_span_is(s, len, names[i])) return (enum kvr_engine_kind)i;
    return KVR_ENGINE_UNKNOWN;
}

static int read_group(struct reader *r, struct kvr_engine_event *ev)
{
    if (skip_nil(r)) return 0;
    ev->has_group = true;
    return read_u64(r, &ev->group_idx);
}

static int read_window(struct reader *r, struct kvr_engine_event *ev)
{
    return skip_nil(r) ? 0 : read_u64(r, &ev->window);
}

/* Do the next elements have the types of the fixed tail: group, kind, window, locality, source? */
static bool tail_is_fixed(struct reader r, uint32_t n)
{
    static const enum mp_type types[] = {MP_UINT, MP_STR, MP_UINT, MP_STR, MP_STR};
    if (n < 4) return false;
    for (uint32_t i = 0; i < KVR_MIN(n, 5u); i++) {
        if (!is(&r, MP_NIL) && !is(&r, types[i])) return false;
        if (skip(&r)) return false;
    }
    return true;
}

static bool is_locality(struct reader r)
{
    struct kvr_bytes word;
    return read_text(&r, &word) == 0 && (equals(word, "LOCAL", 5) || equals(word, "REMOTE", 6));
}

static int read_tail(struct kvr_engine_batch *b, struct reader *r, uint32_t n, struct kvr_engine_event *ev)
{
    bool have_group = false;
    if (tail_is_fixed(*r, n)) {
        if (read_group(r, ev) || read_str(r, &ev->spec_kind) || read_window(r, ev)) return -KVR_EFORMAT;
        int rc = read_str(r, &ev->locality);
        for (uint32_t i = 4; i < n && rc == 0; i++) rc = skip(r);
        return rc;
    }
    for (uint32_t i = 0; i < n; i++) { /* older engines: told apart by type */
        int rc = 0;
        if (i < 5 && is(r, MP_ARRAY)) {
            rc = read_mm_infos(b, r, ev);
        } else if (i < 5 && is(r, MP_STR) && is_locality(*r)) {
            rc = read_str(r, &ev->locality);
        } else if (i < 5 && is(r, MP_STR) && !ev->spec_kind.ptr && !ev->locality.ptr) {
            rc = read_str(r, &ev->spec_kind);
        } else if (i < 5 && is(r, MP_UINT) && !have_group) {
            have_group = true;
            rc = read_group(r, ev);
        } else if (i < 5 && is(r, MP_UINT)) {
            rc = read_window(r, ev);
        } else {
            rc = skip(r);
        }
        if (rc) return rc;
    }
    return 0;
}

/* Position 7: the LoRA name, or a map with cache_salt. */
static int read_lora_or_metadata(struct reader *r, struct kvr_engine_event *ev)
{
    uint32_t n;
    if (!is(r, MP_MAP)) return read_str(r, &ev->lora);
    if (read_map(r, &n)) return -KVR_EFORMAT;
    ev->untold_keys = false;
    for (; n > 0; n--) {
        struct kvr_bytes key;
        if (read_text(r, &key)) return -KVR_EFORMAT;
        if (equals(key, "cache_salt", 10) ? read_str(r, &ev->salt) : skip(r)) return -KVR_EFORMAT;
    }
    return 0;
}

/* An id of an adapter never enters a hash: it says only that there is one. */
static int read_lora_id(struct reader *r, struct kvr_engine_event *ev)
{
    uint64_t id = 0;
    int rc = is(r, MP_UINT) ? read_u64(r, &id) : skip(r);
    ev->lora_id = id != 0;
    return rc;
}

/* Behind the extra keys comes the number of a cache group: engines that send it send images as pairs. */
static bool group_follows(struct reader r)
{
    return skip(&r) == 0 && is(&r, MP_UINT);
}

static int read_stored_array(struct kvr_engine_batch *b, struct reader *r, uint32_t n, struct kvr_engine_event *ev)
{
    if (n < 4) return -KVR_EFORMAT;
    int rc = read_hashes(b, r, ev);
    ev->untold_keys = n <= 7;
    if (rc == 0) rc = read_parent(r, ev);
    if (rc == 0) rc = read_tokens(b, r, ev);
    if (rc == 0) rc = read_u64(r, &ev->block_size);
    if (rc == 0 && n > 4) rc = read_lora_id(r, ev);
    if (rc == 0 && n > 5) rc = read_str(r, &ev->medium);
    if (rc == 0 && n > 6) rc = read_lora_or_metadata(r, ev);
    if (rc == 0 && n > 7) rc = read_extra_keys(b, r, ev, n > 8 && group_follows(*r));
    if (rc == 0 && n > 8) rc = read_tail(b, r, n - 8, ev);
    return rc;
}

static int read_removed_array(struct kvr_engine_batch *b, struct reader *r, uint32_t n, struct kvr_engine_event *ev)
{
    if (n < 1) return -KVR_EFORMAT;
    int rc = read_hashes(b, r, ev);
    if (rc == 0 && n > 1) rc = read_str(r, &ev->medium);
    if (rc == 0 && n > 2) rc = read_tail(b, r, n - 2, ev);
    return rc;
}

static int read_event_array(struct kvr_engine_batch *b, struct reader *r, struct kvr_engine_event *ev)
{
    uint32_t n;
    struct kvr_bytes tag;
    if (read_list(r, &n) || n < 1 || read_text(r, &tag)) return -KVR_EFORMAT;
    ev->kind = kind_of(tag.ptr, tag.len);
    if (ev->kind == KVR_ENGINE_STORED) return read_stored_array(b, r, n - 1, ev);
    if (ev->kind == KVR_ENGINE_REMOVED) return read_removed_array(b, r, n - 1, ev);
    for (uint32_t i = 1; i < n; i++)
        if (skip(r)) return -KVR_EFORMAT;
    return 0;
}

enum { SEEN_TYPE = 1, SEEN_HASHES = 2, SEEN_TOKENS = 4, SEEN_BLOCK_SIZE = 8 };

static int read_event_key(struct kvr_engine_batch *b, struct reader *r, struct kvr_engine_event *ev, struct kvr_bytes k,
                          struct reader *extra_keys, struct reader *mm_infos, unsigned *seen)
{
    struct kvr_bytes type = {0};
#define KEY(name) equals(k, name, sizeof(name) - 1)
    if (KEY("type")) {
        if (read_str(r, &type) || !type.ptr) return -KVR_EFORMAT;
        ev->kind = kind_of(type.ptr, type.len);
        *seen |= SEEN_TYPE;
        return 0;
    }
    if (KEY("block_hashes")) {
        *seen |= SEEN_HASHES;
        return read_hashes(b, r, ev);
    }
    if (KEY("token_ids")) {
        *seen |= SEEN_TOKENS;
        return read_tokens(b, r, ev);
    }
    if (KEY("block_size")) {
        *seen |= SEEN_BLOCK_SIZE;
        return read_u64(r, &ev->block_size);
    }
    if (KEY("parent_block_hash")) return read_parent(r, ev);
    if (KEY("medium")) return read_str(r, &ev->medium);
    if (KEY("lora_name")) return read_str(r, &ev->lora);
    if (KEY("lora_id")) return read_lora_id(r, ev);
    if (KEY("cache_salt")) return read_str(r, &ev->salt);
    if (KEY("group_idx")) return read_group(r, ev);
    if (KEY("kv_cache_spec_kind")) return read_str(r, &ev->spec_kind);
    if (KEY("kv_cache_spec_sliding_window")) return read_window(r, ev);
    if (KEY("locality")) return read_str(r, &ev->locality);
    /* These two depend on other keys, so they are read when all keys are known. */
    if (KEY("extra_keys")) *extra_keys = *r;
    if (KEY("block_mm_infos") && !is(r, MP_NIL)) *mm_infos = *r;
#undef KEY
    return skip(r);
}

static int read_event_map(struct kvr_engine_batch *b, struct reader *r, struct kvr_engine_event *ev)
{
    struct reader extra_keys = {0}, mm_infos = {0};
    unsigned seen = 0;
    uint32_t n;
    int rc = read_map(r, &n);
    ev->is_map = true;
    for (; n > 0 && rc == 0; n--) {
        struct kvr_bytes key;
        rc = read_text(r, &key);
        if (rc == 0) rc = read_event_key(b, r, ev, key, &extra_keys, &mm_infos, &seen);
    }
    if (rc == 0 && extra_keys.p) rc = read_extra_keys(b, &extra_keys, ev, true);
    if (rc == 0 && mm_infos.p) rc = read_mm_infos(b, &mm_infos, ev);
    if (rc) return rc;
    unsigned need = SEEN_TYPE;
    if (ev->kind == KVR_ENGINE_STORED) need |= SEEN_HASHES | SEEN_TOKENS | SEEN_BLOCK_SIZE;
    if (ev->kind == KVR_ENGINE_REMOVED) need |= SEEN_HASHES;
    return (seen & need) == need ? 0 : -KVR_EFORMAT;
}

static int read_events(struct kvr_engine_batch *b, struct reader *r)
{
    uint32_t n;
    if (read_list(r, &n)) return -KVR_EFORMAT;
    for (uint32_t i = 0; i < n; i++) {
        if (kvr_mem_grow(&b->mem, (void **)&b->events, &b->events_cap, b->events_n + 1, sizeof *b->events)) return -KVR_ENOMEM;
        struct kvr_engine_event *ev = &b->events[b->events_n++];
        memset(ev, 0, sizeof *ev);
        int rc = -KVR_EFORMAT;
        if (is(r, MP_ARRAY)) rc = read_event_array(b, r, ev);
        else if (is(r, MP_MAP)) rc = read_event_map(b, r, ev);
        if (rc) return rc;
    }
    return 0;
}

static int read_ts(struct reader *r, double *ts)
{
    uint64_t whole;
    const char *p = r->p;
    if (is(r, MP_UINT)) {
        int rc = read_u64(r, &whole);
        if (rc == 0) *ts = (double)whole;
        return rc;
    }
    if ((!is(r, MP_DOUBLE) && !is(r, MP_FLOAT)) || skip(r)) return -KVR_EFORMAT;
    *ts = mp_typeof(*p) == MP_DOUBLE ? mp_decode_double(&p) : (double)mp_decode_float(&p);
    if (!isfinite(*ts)) *ts = 0; /* not known */
    return 0;
}

static int read_rank(struct kvr_engine_batch *b, struct reader *r)
{
    uint64_t v;
    int64_t negative;
    if (skip_nil(r)) return 0;
    if (is(r, MP_UINT)) {
        if (read_u64(r, &v) || v > UINT32_MAX) return -KVR_EFORMAT;
        b->rank = (uint32_t)v;
    } else {
        if (read_i64(r, &negative) || negative < INT32_MIN) return -KVR_EFORMAT;
        b->rank = (uint32_t)(int32_t)negative;
    }
    b->has_rank = true;
    return 0;
}

static int read_batch_map(struct kvr_engine_batch *b, struct reader *r)
{
    bool seen = false;
    uint32_t n = 0;
    int rc = read_map(r, &n);
    for (; n > 0 && rc == 0; n--) {
        struct kvr_bytes k;
        if (read_text(r, &k)) return -KVR_EFORMAT;
        if (equals(k, "ts", 2)) {
            rc = read_ts(r, &b->ts);
        } else if (equals(k, "events", 6)) {
            seen = true;
            rc = read_events(b, r);
        } else if (equals(k, "data_parallel_rank", 18) || equals(k, "dp_rank", 7) || equals(k, "attn_dp_rank", 12)) {
            rc = read_rank(b, r);
        } else {
            rc = skip(r);
        }
    }
    if (rc) return rc;
    return seen ? 0 : -KVR_EFORMAT;
}

static int read_batch_array(struct kvr_engine_batch *b, struct reader *r)
{
    uint32_t n;
    if (read_list(r, &n) || n < 2) return -KVR_EFORMAT;
    int rc = read_ts(r, &b->ts);
    if (rc == 0) rc = read_events(b, r);
    if (rc == 0 && n > 2) rc = read_rank(b, r);
    for (uint32_t i = 3; i < n && rc == 0; i++) rc = skip(r);
    return rc;
}

int kvr_engine_decode(struct kvr_engine_batch *b, const char *data, size_t len)
{
    struct reader r = {data, data + len};
    b->ts = 0;
    b->has_rank = false;
    b->rank = 0;
    b->events_n = b->hashes_n = b->tokens_n = b->mm_n = b->mm_hashes_n = 0;
    int rc = is(&r, MP_MAP) ? read_batch_map(b, &r) : read_batch_array(b, &r);
    if (rc) return rc;
    return r.p == r.end ? 0 : -KVR_EFORMAT;
}
