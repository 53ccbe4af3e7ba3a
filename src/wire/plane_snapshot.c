/* SPDX-License-Identifier: Apache-2.0 */
/* msgpack rows of an index's content; wire/plane_snapshot.h has them. */
#include "wire/plane_snapshot.h"

#include <endian.h>
#include <msgpuck.h>
#include <string.h>

#include "base/lower.h"
#include "wire/sync_event.h"

enum { SMALL = 96, BLOCK_BYTES = 16, MEMBERS = 7, LOWER_BYTES = 9 * KVR_LOWER_WORDS };

void kvr_snapshot_event_write(struct kvr_buf *out, const struct kvr_event *ev)
{
    uint64_t lower[KVR_LOWER_WORDS];
    kvr_lower_pack(&ev->lower, lower);
    if (kvr_buf_reserve(out, SMALL + LOWER_BYTES + BLOCK_BYTES * ev->blocks_n)) return;
    char *start = out->data + out->len, *p = mp_encode_array(start, kvr_lower_is_told(lower) ? MEMBERS + KVR_LOWER_WORDS : MEMBERS);
    p = mp_encode_uint(p, 0);
    p = mp_encode_uint(p, ev->worker.worker_id);
    p = mp_encode_uint(p, ev->worker.dp_rank);
    p = mp_encode_uint(p, ev->tier);
    p = ev->has_parent ? mp_encode_uint(p, ev->parent_hash) : mp_encode_nil(p);
    p = ev->has_start_position ? mp_encode_uint(p, ev->start_position) : mp_encode_nil(p);
    p = mp_encode_binl(p, (uint32_t)(BLOCK_BYTES * ev->blocks_n));
    for (size_t i = 0; i < ev->blocks_n; i++, p += BLOCK_BYTES) {
        uint64_t pair[2] = {htole64(ev->blocks[i].block_hash), htole64(ev->blocks[i].tokens_hash)};
        memcpy(p, pair, BLOCK_BYTES);
    }
    if (kvr_lower_is_told(lower))
        for (int i = 0; i < KVR_LOWER_WORDS; i++) p = mp_encode_uint(p, lower[i]);
    out->len += (size_t)(p - start);
}

void kvr_snapshot_cursor_write(struct kvr_buf *out, const struct kvr_snapshot_cursor *c)
{
    if (kvr_buf_reserve(out, SMALL)) return;
    char *start = out->data + out->len, *p = mp_encode_array(start, MEMBERS);
    p = mp_encode_uint(p, 1);
    p = mp_encode_uint(p, c->worker.worker_id);
    p = mp_encode_uint(p, c->worker.dp_rank);
    p = mp_encode_uint(p, c->next);
    p = mp_encode_uint(p, c->publisher);
    p = mp_encode_double(p, c->ts);
    p = mp_encode_bool(p, c->heartbeats);
    out->len += (size_t)(p - start);
}

static bool take_uint(const char **p, uint64_t max, uint64_t *out)
{
    if (mp_typeof(**p) != MP_UINT) return false;
    *out = mp_decode_uint(p);
    return *out <= max;
}

/* nil: *has is false. */
static bool take_maybe(const char **p, uint64_t max, bool *has, uint64_t *out)
{
    *has = mp_typeof(**p) != MP_NIL;
    if (*has) return take_uint(p, max, out);
    mp_decode_nil(p);
    return true;
}

static bool take_lower(const char **p, struct kvr_lower *out)
{
    uint64_t words[KVR_LOWER_WORDS];
    for (int i = 0; i < KVR_LOWER_WORDS; i++)
        if (!take_uint(p, UINT64_MAX, &words[i])) return false;
    return kvr_lower_unpack(words, out);
}

static int read_event(struct kvr_snapshot_reader *r, const char **p, struct kvr_worker w, bool lower)
{
    struct kvr_event ev = {.kind = KVR_EVENT_STORED, .worker = w};
    uint64_t tier, position = 0;
    uint32_t len;
    if (!take_uint(p, KVR_TIER_COUNT - 1, &tier) || !take_maybe(p, UINT64_MAX, &ev.has_parent, &ev.parent_hash) ||
        !take_maybe(p, UINT32_MAX, &ev.has_start_position, &position) || mp_typeof(**p) != MP_BIN)
        return -KVR_EFORMAT;
    const char *bytes = mp_decode_bin(p, &len);
    if (len % BLOCK_BYTES) return -KVR_EFORMAT;
    size_t n = len / BLOCK_BYTES;
    if (n > r->cap) {
        struct kvr_block *more = realloc(r->blocks, n * 2 * sizeof *more);
        if (!more) return -KVR_ENOMEM;
        r->blocks = more;
        r->cap = n * 2;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t pair[2];
        memcpy(pair, bytes + BLOCK_BYTES * i, BLOCK_BYTES);
        r->blocks[i] = (struct kvr_block){le64toh(pair[0]), le64toh(pair[1])};
    }
    if (lower && !take_lower(p, &ev.lower)) return -KVR_EFORMAT;
    ev.tier = (enum kvr_tier)tier;
    ev.start_position = (uint32_t)position;
    ev.blocks = r->blocks;
    ev.blocks_n = n;
    return r->on_event(r->ctx, &ev);
}

static int read_cursor(struct kvr_snapshot_reader *r, const char **p, struct kvr_worker w)
{
    struct kvr_snapshot_cursor c = {.worker = w};
    if (!take_uint(p, UINT64_MAX, &c.next) || !take_uint(p, UINT64_MAX, &c.publisher) || mp_typeof(**p) != MP_DOUBLE) return -KVR_EFORMAT;
    c.ts = mp_decode_double(p);
    if (mp_typeof(**p) != MP_BOOL) return -KVR_EFORMAT;
    c.heartbeats = mp_decode_bool(p);
    return r->on_cursor(r->ctx, &c);
}

size_t kvr_snapshot_record_len(const char *data, size_t len)
{
    const char *p = data;
    mp_next(&p);
    return KVR_MIN((size_t)(p - data), len);
}

int kvr_snapshot_read(struct kvr_snapshot_reader *r, const char *data, size_t len)
{
    const char *p = data, *end = data + len;
    if (!kvr_sync_run_is_whole(data, len)) return -KVR_EFORMAT;
    while (p < end) {
        uint64_t kind, id, rank;
        uint32_t n = mp_decode_array(&p);
        bool lower = n == MEMBERS + KVR_LOWER_WORDS;
        if ((n != MEMBERS && !lower) || !take_uint(&p, 1, &kind) || !take_uint(&p, UINT64_MAX, &id) || !take_uint(&p, UINT32_MAX, &rank))
            return -KVR_EFORMAT;
        struct kvr_worker w = {id, (uint32_t)rank};
        int rc = kind && lower ? -KVR_EFORMAT : kind ? read_cursor(r, &p, w) : read_event(r, &p, w, lower);
        if (rc) return rc;
    }
    return 0;
}
