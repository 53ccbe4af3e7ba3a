/* SPDX-License-Identifier: Apache-2.0 */
/* kvr_msgpack_is_whole first, so that walking stays inside; then types before values. */
#include "wire/plane_event.h"

#include <msgpuck.h>
#include <string.h>

#include "base/lower.h"
#include "wire/msgpack.h"

enum { SMALL = 320 /* more than the fixed parts of any message here */ };

/* ---- small readers ------------------------------------------------------------------------------------------ */

static bool is(const char *p, enum mp_type t)
{
    return mp_typeof(*p) == t;
}

static bool take_u64(const char **p, uint64_t max, uint64_t *out)
{
    if (!is(*p, MP_UINT)) return false;
    *out = mp_decode_uint(p);
    return *out <= max;
}

static bool take_text(const char **p, const char **out, uint32_t *len)
{
    if (!is(*p, MP_STR)) return false;
    *out = mp_decode_str(p, len);
    return true;
}

/* A map, member by member: `value` stands on the value when fn is called and must be behind it afterwards. */
typedef int member_fn(void *ctx, const char *key, uint32_t key_len, const char **value);

static int each_member(const char **p, member_fn *fn, void *ctx)
{
    if (!is(*p, MP_MAP)) return -KVR_EFORMAT;
    int rc = 0;
    for (uint32_t n = mp_decode_map(p); n && rc == 0; n--) {
        const char *key;
        uint32_t len;
        if (!take_text(p, &key, &len)) return -KVR_EFORMAT;
        rc = fn(ctx, key, len, p);
    }
    return rc;
}

/* ---- envelope ------------------------------------------------------------------------------------------------ */

static char *put_text(char *p, const char *s)
{
    return mp_encode_str(p, s, (uint32_t)strlen(s));
}

static char *put_member(char *p, const char *key, uint64_t v)
{
    return mp_encode_uint(put_text(p, key), v);
}

void kvr_envelope_write(struct kvr_buf *out, const struct kvr_envelope *e)
{
    if (kvr_buf_reserve(out, SMALL + e->topic_len + e->payload_len)) return;
    char *start = out->data + out->len, *p = mp_encode_map(start, 6u + e->heartbeats + e->partial);
    p = put_member(p, "version", KVR_PLANE_VERSION);
    p = put_member(p, "publisher_id", e->publisher);
    p = put_member(p, "sequence", e->sequence);
    p = put_member(p, "published_at", e->published_at_ms);
    if (e->heartbeats) p = mp_encode_bool(put_text(p, "beats"), true);
    if (e->partial) p = mp_encode_bool(put_text(p, "partial"), true);
    p = mp_encode_str(put_text(p, "topic"), e->topic, e->topic_len);
    p = mp_encode_bin(put_text(p, "payload"), e->payload, e->payload_len);
    out->len += (size_t)(p - start);
}

struct envelope_reader {
    struct kvr_envelope *out;
    struct kvr_buf *scratch;
    unsigned seen; /* members that must be there */
};

static int payload_of_numbers(struct envelope_reader *r, const char **p)
{
    r->scratch->len = 0;
    uint32_t n = mp_decode_array(p);
    if (kvr_buf_reserve(r->scratch, n)) return -KVR_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t byte;
        if (!take_u64(p, 255, &byte)) return -KVR_EFORMAT;
        r->scratch->data[r->scratch->len++] = (char)byte;
    }
    r->out->payload = r->scratch->data;
    r->out->payload_len = n;
    return 0;
}

static int envelope_member(void *ctx, const char *key, uint32_t len, const char **p)
{
    struct envelope_reader *r = ctx;
    uint64_t version;
    if (kvr_span_is(key, len, "version")) {
        if (!take_u64(p, UINT64_MAX, &version)) return -KVR_EFORMAT;
        return version <= KVR_PLANE_VERSION ? 0 : -KVR_EUNSUPPORTED;
    }
    if (kvr_span_is(key, len, "publisher_id")) return r->seen |= 1, take_u64(p, UINT64_MAX, &r->out->publisher) ? 0 : -KVR_EFORMAT;
    if (kvr_span_is(key, len, "sequence")) return r->seen |= 2, take_u64(p, UINT64_MAX, &r->out->sequence) ? 0 : -KVR_EFORMAT;
    if (kvr_span_is(key, len, "published_at")) return take_u64(p, UINT64_MAX, &r->out->published_at_ms) ? 0 : -KVR_EFORMAT;
    bool beats = kvr_span_is(key, len, "beats");
    if (beats || kvr_span_is(key, len, "partial")) {
        if (!is(*p, MP_BOOL)) return -KVR_EFORMAT;
        *(beats ? &r->out->heartbeats : &r->out->partial) = mp_decode_bool(p);
        return 0;
    }
    if (kvr_span_is(key, len, "topic")) return r->seen |= 4, take_text(p, &r->out->topic, &r->out->topic_len) ? 0 : -KVR_EFORMAT;
    if (kvr_span_is(key, len, "payload")) {
        r->seen |= 8;
        if (is(*p, MP_ARRAY)) return payload_of_numbers(r, p);
        if (!is(*p, MP_BIN)) return -KVR_EFORMAT;
        r->out->payload = mp_decode_bin(p, &r->out->payload_len);
        return 0;
    }
    mp_next(p);
    return 0;
}

int kvr_envelope_read(const char *data, size_t len, struct kvr_buf *scratch, struct kvr_envelope *out)
{
    struct kvr_envelope e = {0};
    struct envelope_reader r = {.out = &e, .scratch = scratch};
    if (!kvr_msgpack_is_whole(data, len)) return -KVR_EFORMAT;
    int rc = each_member(&data, envelope_member, &r);
    if (rc == 0 && r.seen != 15) rc = -KVR_EFORMAT;
    if (rc == 0) *out = e;
    return rc;
}

bool kvr_envelope_is(const struct kvr_envelope *e, const char *topic)
{
    return kvr_span_is(e->topic, e->topic_len, topic);
}

/* ---- events: writing -------------------------------------------------------------------------------------------- */

static char *put_stored(char *p, const struct kvr_event *ev)
{
    uint64_t lower[KVR_LOWER_WORDS];
    kvr_lower_pack(&ev->lower, lower);
    bool told = kvr_lower_is_told(lower);
    p = mp_encode_map(put_text(mp_encode_map(p, 1), "stored"), told ? 4 : 3);
    p = put_text(p, "parent_hash");
    p = ev->has_parent ? mp_encode_uint(p, ev->parent_hash) : mp_encode_nil(p);
    p = put_text(p, "start_position");
    p = ev->has_start_position ? mp_encode_uint(p, ev->start_position) : mp_encode_nil(p);
    p = mp_encode_array(put_text(p, "blocks"), (uint32_t)ev->blocks_n);
    for (size_t i = 0; i < ev->blocks_n; i++) {
        p = mp_encode_map(p, 3);
        p = put_member(p, "block_hash", ev->blocks[i].block_hash);
        p = put_member(p, "tokens_hash", ev->blocks[i].tokens_hash);
        p = mp_encode_nil(put_text(p, "mm_extra_info"));
    }
    if (told) p = mp_encode_array(put_text(p, "lower"), KVR_LOWER_WORDS);
    for (int i = 0; told && i < KVR_LOWER_WORDS; i++) p = mp_encode_uint(p, lower[i]);
    return p;
}

static char *put_removed(char *p, const struct kvr_event *ev)
{
    p = mp_encode_map(put_text(mp_encode_map(p, 1), "removed"), 1);
    p = mp_encode_array(put_text(p, "block_hashes"), (uint32_t)ev->removed_n);
    for (size_t i = 0; i < ev->removed_n; i++) p = mp_encode_uint(p, ev->removed[i]);
    return p;
}

void kvr_plane_event_write(struct kvr_buf *out, const struct kvr_event *ev)
{
    if (kvr_buf_reserve(out, SMALL + 64 * ev->blocks_n + 9 * ev->removed_n)) return;
    char *start = out->data + out->len, *p = mp_encode_map(start, 4);
    p = put_member(p, "worker_id", ev->worker.worker_id);
    p = put_text(put_text(p, "storage_tier"), kvr_tier_name(ev->tier));
    p = put_text(put_text(p, "residency_domain"), "worker");
    p = mp_encode_map(put_text(p, "event"), 3);
    p = put_member(p, "event_id", ev->event_id);
    p = put_text(p, "data");
    if (ev->kind == KVR_EVENT_STORED) p = put_stored(p, ev);
    else if (ev->kind == KVR_EVENT_REMOVED) p = put_removed(p, ev);
    else p = put_text(p, "cleared");
    p = put_member(p, "dp_rank", ev->worker.dp_rank);
    out->len += (size_t)(p - start);
}

/* ---- events: reading -------------------------------------------------------------------------------------------- */

struct event_reader {
    struct kvr_event *out;
    struct kvr_block **blocks; /* NULL: content is passed over */
    size_t *cap;
    bool has_worker, has_id, has_data, elsewhere; /* elsewhere: not the worker's own blocks */
};

static bool room_for(struct event_reader *r, size_t n)
{
    if (n <= *r->cap) return true;
    struct kvr_block *p = realloc(*r->blocks, n * 2 * sizeof *p);
    if (!p) return false;
    *r->blocks = p;
    *r->cap = n * 2;
    return true;
}

static int block_member(void *ctx, const char *key, uint32_t len, const char **p)
{
    struct kvr_block *b = ctx;
    if (kvr_span_is(key, len, "block_hash")) return take_u64(p, UINT64_MAX, &b->block_hash) ? 0 : -KVR_EFORMAT;
    if (kvr_span_is(key, len, "tokens_hash")) return take_u64(p, UINT64_MAX, &b->tokens_hash) ? 0 : -KVR_EFORMAT;
    mp_next(p);
    return 0;
}

static int read_blocks(struct event_reader *r, const char **p)
{
    if (!is(*p, MP_ARRAY)) return -KVR_EFORMAT;
    uint32_t n = mp_decode_array(p);
    if (!room_for(r, n)) return -KVR_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        (*r->blocks)[i] = (struct kvr_block){0};
        int rc = each_member(p, block_member, &(*r->blocks)[i]);
        if (rc) return rc;
    }
    r->out->blocks = *r->blocks;
    r->out->blocks_n = n;
    return 0;
}

static int read_lower(struct event_reader *r, const char **p)
{
    uint64_t words[KVR_LOWER_WORDS];
    if (!is(*p, MP_ARRAY) || mp_decode_array(p) != KVR_LOWER_WORDS) return -KVR_EFORMAT;
    for (int i = 0; i < KVR_LOWER_WORDS; i++)
        if (!take_u64(p, UINT64_MAX, &words[i])) return -KVR_EFORMAT;
    return kvr_lower_unpack(words, &r->out->lower) ? 0 : -KVR_EFORMAT;
}

static int stored_member(void *ctx, const char *key, uint32_t len, const char **p)
{
    struct event_reader *r = ctx;
    uint64_t v;
    if (kvr_span_is(key, len, "blocks")) return read_blocks(r, p);
    if (kvr_span_is(key, len, "lower")) return read_lower(r, p);
    bool parent = kvr_span_is(key, len, "parent_hash"), start = kvr_span_is(key, len, "start_position");
    if ((!parent && !start) || is(*p, MP_NIL)) {
        mp_next(p);
        return 0;
    }
    if (!take_u64(p, parent ? UINT64_MAX : UINT32_MAX, &v)) return -KVR_EFORMAT;
    if (parent) {
        r->out->has_parent = true;
        r->out->parent_hash = v;
    } else {
        r->out->has_start_position = true;
        r->out->start_position = (uint32_t)v;
    }
    return 0;
}

static int removed_member(void *ctx, const char *key, uint32_t len, const char **p)
{
    struct event_reader *r = ctx;
    if (!kvr_span_is(key, len, "block_hashes")) {
        mp_next(p);
        return 0;
    }
    if (!is(*p, MP_ARRAY)) return -KVR_EFORMAT;
    uint32_t n = mp_decode_array(p);
    if (!room_for(r, n / 2 + 1)) return -KVR_ENOMEM;
    uint64_t *hashes = (uint64_t *)(void *)*r->blocks; /* they go where blocks would */
    for (uint32_t i = 0; i < n; i++)
        if (!take_u64(p, UINT64_MAX, &hashes[i])) return -KVR_EFORMAT;
    r->out->removed = hashes;
    r->out->removed_n = n;
    return 0;
}

static int data_member(void *ctx, const char *key, uint32_t len, const char **p)
{
    struct event_reader *r = ctx;
    bool stored = kvr_span_is(key, len, "stored");
    if ((!stored && !kvr_span_is(key, len, "removed")) || r->has_data) return -KVR_EFORMAT;
    r->has_data = true;
    r->out->kind = stored ? KVR_EVENT_STORED : KVR_EVENT_REMOVED;
    return each_member(p, stored ? stored_member : removed_member, r);
}

static int read_data(struct event_reader *r, const char **p)
{
    const char *text;
    uint32_t len;
    if (!r->blocks) {
        r->has_data = true;
        mp_next(p);
        return 0;
    }
    if (!is(*p, MP_STR)) return each_member(p, data_member, r);
    if (!take_text(p, &text, &len) || !kvr_span_is(text, len, "cleared") || r->has_data) return -KVR_EFORMAT;
    r->has_data = true;
    r->out->kind = KVR_EVENT_CLEARED;
    return 0;
}

static int inner_member(void *ctx, const char *key, uint32_t len, const char **p)
{
    struct event_reader *r = ctx;
    uint64_t rank;
    if (kvr_span_is(key, len, "event_id")) return r->has_id = true, take_u64(p, UINT64_MAX, &r->out->event_id) ? 0 : -KVR_EFORMAT;
    if (kvr_span_is(key, len, "data")) return read_data(r, p);
    if (!kvr_span_is(key, len, "dp_rank") || is(*p, MP_NIL)) {
        mp_next(p);
        return 0;
    }
    if (!take_u64(p, UINT32_MAX, &rank)) return -KVR_EFORMAT;
    r->out->worker.dp_rank = (uint32_t)rank;
    return 0;
}

static int read_tier(struct event_reader *r, const char **p)
{
    const char *text;
    uint32_t len;
    if (!take_text(p, &text, &len)) return -KVR_EFORMAT;
    for (int t = 0; t < KVR_TIER_COUNT; t++)
        if (kvr_span_is(text, len, kvr_tier_name((enum kvr_tier)t))) {
            r->out->tier = (enum kvr_tier)t;
            return 0;
        }
    return -KVR_EFORMAT;
}

static int outer_member(void *ctx, const char *key, uint32_t len, const char **p)
{
    struct event_reader *r = ctx;
    if (kvr_span_is(key, len, "worker_id"))
        return r->has_worker = true, take_u64(p, UINT64_MAX, &r->out->worker.worker_id) ? 0 : -KVR_EFORMAT;
    if (kvr_span_is(key, len, "storage_tier")) return read_tier(r, p);
    if (kvr_span_is(key, len, "event")) return each_member(p, inner_member, r);
    if (kvr_span_is(key, len, "residency_domain")) {
        const char *text;
        uint32_t n;
        if (!take_text(p, &text, &n)) return -KVR_EFORMAT;
        r->elsewhere = !kvr_span_is(text, n, "worker");
        return 0;
    }
    mp_next(p);
    return 0;
}

static int read_event(const char **p, struct event_reader *r)
{
    *r->out = (struct kvr_event){0};
    int rc = each_member(p, outer_member, r);
    return rc ? rc : r->has_worker && r->has_id && r->has_data ? 0 : -KVR_EFORMAT;
}

int kvr_plane_event_read(const char *data, size_t len, struct kvr_event *out, struct kvr_block **blocks, size_t *cap)
{
    struct event_reader r = {.out = out, .blocks = blocks, .cap = cap};
    if (!kvr_msgpack_is_whole(data, len)) return -KVR_EFORMAT;
    int rc = read_event(&data, &r);
    return rc ? rc : r.elsewhere ? -KVR_EFORMAT : 0;
}

int kvr_plane_events_each(const char *payload, size_t len, int (*fn)(void *ctx, const struct kvr_plane_place *place), void *ctx)
{
    const char *p = payload;
    if (!kvr_msgpack_is_whole(payload, len)) return -KVR_EFORMAT;
    uint32_t n = is(p, MP_ARRAY) ? mp_decode_array(&p) : 1;
    for (; n; n--) {
        const char *start = p;
        struct kvr_event ev;
        struct event_reader r = {.out = &ev};
        int rc = read_event(&p, &r);
        struct kvr_plane_place place = {ev.worker, ev.event_id, start, (size_t)(p - start)};
        if (rc == 0 && !r.elsewhere) rc = fn(ctx, &place);
        if (rc) return rc;
    }
    return 0;
}

/* ---- heartbeats, frames ---------------------------------------------------------------------------------------------- */

void kvr_heartbeat_write(struct kvr_buf *out, const struct kvr_heartbeat *heartbeat)
{
    if (kvr_buf_reserve(out, SMALL)) return;
    char *start = out->data + out->len, *p = mp_encode_map(start, 3);
    p = put_member(p, "worker_id", heartbeat->worker.worker_id);
    p = put_member(p, "dp_rank", heartbeat->worker.dp_rank);
    p = put_member(p, "last_event_id", heartbeat->last_event_id);
    out->len += (size_t)(p - start);
}

static int heartbeat_member(void *ctx, const char *key, uint32_t len, const char **p)
{
    struct kvr_heartbeat *b = ctx;
    uint64_t rank;
    if (kvr_span_is(key, len, "worker_id")) return take_u64(p, UINT64_MAX, &b->worker.worker_id) ? 0 : -KVR_EFORMAT;
    if (kvr_span_is(key, len, "last_event_id")) return take_u64(p, UINT64_MAX, &b->last_event_id) ? 0 : -KVR_EFORMAT;
    if (kvr_span_is(key, len, "dp_rank")) {
        if (!take_u64(p, UINT32_MAX, &rank)) return -KVR_EFORMAT;
        b->worker.dp_rank = (uint32_t)rank;
        return 0;
    }
    mp_next(p);
    return 0;
}

int kvr_heartbeat_read(const char *payload, size_t len, struct kvr_heartbeat *out)
{
    struct kvr_heartbeat b = {0};
    if (!kvr_msgpack_is_whole(payload, len) || each_member(&payload, heartbeat_member, &b)) return -KVR_EFORMAT;
    *out = b;
    return 0;
}

void kvr_plane_frame_head(unsigned char out[KVR_PLANE_FRAME_HEAD], uint32_t len)
{
    out[0] = KVR_PLANE_VERSION;
    for (int i = 4; i > 0; i--, len >>= 8) out[i] = (unsigned char)len;
}

int kvr_plane_frame_open(const char *data, size_t len, const char **envelope, size_t *envelope_len)
{
    if (len < KVR_PLANE_FRAME_HEAD) return -KVR_EFORMAT;
    if (data[0] != KVR_PLANE_VERSION) return -KVR_EUNSUPPORTED;
    uint32_t n = 0;
    for (int i = 1; i < KVR_PLANE_FRAME_HEAD; i++) n = n << 8 | (unsigned char)data[i];
    if (n != len - KVR_PLANE_FRAME_HEAD) return -KVR_EFORMAT;
    *envelope = data + KVR_PLANE_FRAME_HEAD;
    *envelope_len = n;
    return 0;
}
