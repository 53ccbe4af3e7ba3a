/* SPDX-License-Identifier: Apache-2.0 */
/* msgpack arrays of the replica sync; wire/sync_event.h has the table. */
#include "wire/sync_event.h"

#include <endian.h>
#include <msgpuck.h>
#include <string.h>

enum { SMALL = 96 }; /* more than all scalars of an event take */

static char *put_text(char *p, const char *s, size_t len)
{
    return mp_encode_str(p, s, (uint32_t)len);
}

void kvr_sync_event_write(struct kvr_buf *out, uint64_t partition, const char *model, const char *group, uint32_t block_size,
                          const struct kvr_load_event *load)
{
    static const uint32_t sizes[] = {13, 3, 5, 3};
    const struct kvr_load_request *q = &load->request;
    size_t hashes = load->kind == KVR_LOAD_ADD ? q->seqs_n * 8 : 0, names = load->kind == KVR_LOAD_ADD ? strlen(model) + strlen(group) : 0;
    if (kvr_buf_reserve(out, SMALL + hashes + names + q->id_len)) return;
    char *start = out->data + out->len, *p = mp_encode_array(start, sizes[load->kind]);
    p = mp_encode_uint(p, load->kind);
    p = mp_encode_uint(p, partition);
    if (load->kind == KVR_LOAD_ADD) {
        p = put_text(p, model, strlen(model));
        p = put_text(p, group, strlen(group));
        p = mp_encode_uint(p, block_size);
    }
    p = put_text(p, q->id, q->id_len);
    if (load->kind == KVR_LOAD_ADD) {
        p = mp_encode_uint(p, q->worker.worker_id);
        p = mp_encode_uint(p, q->worker.dp_rank);
        p = mp_encode_binl(p, (uint32_t)hashes);
        for (size_t i = 0; i < q->seqs_n; i++, p += 8) {
            uint64_t word = htole64(q->seqs[i]);
            memcpy(p, &word, 8);
        }
        p = mp_encode_uint(p, q->private_blocks);
        p = mp_encode_uint(p, q->prefill_tokens);
        p = q->has_duration ? mp_encode_uint(p, q->prefill_ns) : mp_encode_nil(p);
        p = mp_encode_uint(p, load->output_blocks);
    } else if (load->kind == KVR_LOAD_OUTPUT) {
        p = mp_encode_uint(p, load->output_blocks);
        p = load->fraction >= 0 ? mp_encode_double(p, load->fraction) : mp_encode_nil(p);
    }
    out->len += (size_t)(p - start);
}

void kvr_sync_mark_write(struct kvr_buf *out, uint64_t partition, uint64_t number)
{
    if (kvr_buf_reserve(out, SMALL)) return;
    char *start = out->data + out->len, *p = mp_encode_array(start, 3);
    p = mp_encode_uint(p, KVR_SYNC_MARK);
    p = mp_encode_uint(p, partition);
    p = mp_encode_uint(p, number);
    out->len += (size_t)(p - start);
}

void kvr_sync_session_write(struct kvr_buf *out, const char *session, size_t len, struct kvr_worker w)
{
    if (kvr_buf_reserve(out, SMALL + len)) return;
    char *start = out->data + out->len, *p = mp_encode_array(start, 5);
    p = mp_encode_uint(p, KVR_SYNC_SESSION);
    p = mp_encode_uint(p, 0);
    p = put_text(p, session, len);
    p = mp_encode_uint(p, w.worker_id);
    p = mp_encode_uint(p, w.dp_rank);
    out->len += (size_t)(p - start);
}

/* mp_check alone does not do: it counts with an int, which a hostile array length makes negative. */
bool kvr_sync_run_is_whole(const char *p, size_t len)
{
    enum { SCALARS_MAX = 64 };
    const char *end = p + len;
    while (p < end) {
        if (mp_typeof(*p) != MP_ARRAY || mp_check_array(p, end) > 0) return false;
        uint32_t n = mp_decode_array(&p);
        if (n > SCALARS_MAX) return false;
        for (; n > 0; n--)
            if (p >= end || mp_typeof(*p) == MP_ARRAY || mp_typeof(*p) == MP_MAP || mp_check(&p, end)) return false;
    }
    return true;
}

static bool get_uint(const char **p, uint64_t max, uint64_t *out)
{
    if (mp_typeof(**p) != MP_UINT) return false;
    *out = mp_decode_uint(p);
    return *out <= max;
}

static bool get_text(const char **p, uint32_t max, const char **s, uint32_t *len)
{
    if (mp_typeof(**p) != MP_STR) return false;
    *s = mp_decode_str(p, len);
    return *len <= max;
}

static bool get_optional(const char **p, uint64_t *out, bool *has)
{
    *has = mp_typeof(**p) != MP_NIL;
    if (*has) return get_uint(p, UINT64_MAX, out);
    mp_decode_nil(p);
    return true;
}

static bool read_add(const char **p, struct kvr_sync_event *e)
{
    struct kvr_load_request *q = &e->load.request;
    uint64_t rank = 0;
    uint32_t bytes = 0;
    if (!get_uint(p, UINT64_MAX, &q->worker.worker_id) || !get_uint(p, UINT32_MAX, &rank) || mp_typeof(**p) != MP_BIN) return false;
    e->hashes = mp_decode_bin(p, &bytes);
    q->worker.dp_rank = (uint32_t)rank;
    q->seqs_n = bytes / 8;
    return bytes % 8 == 0 && get_uint(p, UINT32_MAX, &q->private_blocks) && get_uint(p, UINT32_MAX, &q->prefill_tokens) &&
           get_optional(p, &q->prefill_ns, &q->has_duration) && get_uint(p, UINT32_MAX, &e->load.output_blocks);
}

static bool read_session(const char **p, struct kvr_sync_event *e)
{
    uint64_t rank = 0;
    bool ok = get_text(p, 256, &e->session, &e->session_len) && e->session_len &&
              get_uint(p, UINT64_MAX, &e->load.request.worker.worker_id) && get_uint(p, UINT32_MAX, &rank);
    e->load.request.worker.dp_rank = (uint32_t)rank;
    return ok;
}

static bool read_weight(const char **p, double *out)
{
    *out = -1;
    if (mp_typeof(**p) == MP_NIL) {
        mp_decode_nil(p);
        return true;
    }
    if (mp_typeof(**p) != MP_DOUBLE) return false;
    *out = mp_decode_double(p);
    return *out >= 0 && *out <= 1;
}

void kvr_sync_event_hashes(const struct kvr_sync_event *e, uint64_t *out)
{
    for (size_t i = 0; i < e->load.request.seqs_n; i++) {
        uint64_t word;
        memcpy(&word, e->hashes + i * 8, 8);
        out[i] = le64toh(word);
    }
}

int kvr_sync_event_read(const char *data, size_t len, struct kvr_sync_event *e)
{
    static const uint32_t sizes[] = {13, 3, 5, 3, 3, 5};
    const char *p = data;
    uint64_t kind = 0, block_size = 0;
    uint32_t id_len = 0;
    memset(e, 0, sizeof *e);
    if (len == 0 || mp_typeof(*p) != MP_ARRAY) return -KVR_EFORMAT;
    uint32_t n = mp_decode_array(&p);
    if (n < 3 || !get_uint(&p, KVR_SYNC_SESSION, &kind) || n != sizes[kind] || !get_uint(&p, UINT32_MAX, &e->partition))
        return -KVR_EFORMAT;
    e->kind = (enum kvr_sync_kind)kind;
    e->load.kind = (enum kvr_load_event_kind)(kind >= KVR_SYNC_MARK ? 0 : kind);
    e->load.fraction = -1;
    if (e->kind == KVR_SYNC_MARK) return get_uint(&p, UINT64_MAX, &e->number) ? 0 : -KVR_EFORMAT;
    if (e->kind == KVR_SYNC_SESSION) return read_session(&p, e) ? 0 : -KVR_EFORMAT;
    if (e->kind == KVR_SYNC_ADD && (!get_text(&p, 256, &e->model, &e->model_len) || !get_text(&p, 256, &e->group, &e->group_len) ||
                                    !get_uint(&p, UINT32_MAX, &block_size)))
        return -KVR_EFORMAT;
    e->block_size = (uint32_t)block_size;
    if (!get_text(&p, 240, &e->load.request.id, &id_len) || id_len == 0) return -KVR_EFORMAT;
    e->load.request.id_len = id_len;
    bool ok = true;
    if (e->kind == KVR_SYNC_ADD) ok = read_add(&p, e);
    else if (e->kind == KVR_SYNC_OUTPUT) ok = get_uint(&p, UINT32_MAX, &e->load.output_blocks) && read_weight(&p, &e->load.fraction);
    return ok ? 0 : -KVR_EFORMAT;
}
