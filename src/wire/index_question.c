/* SPDX-License-Identifier: Apache-2.0 */
/* JSON and packed questions read into one struct; wire/index_question.h has both forms. */
#include "wire/index_question.h"

#include <msgpuck.h>
#include <stdlib.h>
#include <string.h>

#include "wire/index_service.h"
#include "wire/msgpack.h"

enum { SMALL = 128 /* more than the keys and heads of a packed question */ };

/* ---- writing ------------------------------------------------------------------------------------------------------ */

static void put_hashes(struct kvr_buf *b, const char *key, const uint64_t *hashes, size_t n)
{
    kvr_json_key(b, key);
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) kvr_json_u64(b, hashes[i]);
    kvr_json_close(b, ']');
}

static char *pack_text(char *p, const char *s)
{
    return mp_encode_str(p, s, (uint32_t)strlen(s));
}

static char *pack_hashes(char *p, const char *key, const uint64_t *hashes, size_t n)
{
    p = mp_encode_binl(pack_text(p, key), (uint32_t)(n * 8));
    if (n) memcpy(p, hashes, n * 8);
    return p + n * 8;
}

static void query_json(struct kvr_buf *b, const char *model, const uint64_t *locals, size_t n, uint64_t isl, bool device_only)
{
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "model_name", model);
    put_hashes(b, "block_hashes", locals, n);
    kvr_json_put_u64(b, "isl_tokens", isl);
    kvr_json_key(b, "device_only");
    kvr_json_bool(b, device_only);
    kvr_json_close(b, '}');
}

void kvr_service_query_write(struct kvr_buf *b, bool packed, const char *model, const uint64_t *locals, size_t n, uint64_t isl,
                             bool device_only)
{
    if (!packed) {
        query_json(b, model, locals, n, isl, device_only);
        return;
    }
    if (kvr_buf_reserve(b, SMALL + strlen(model) + n * 8)) return;
    char *start = b->data + b->len, *p = mp_encode_map(start, 4);
    p = pack_text(pack_text(p, "model_name"), model);
    p = pack_hashes(p, "block_hashes", locals, n);
    p = mp_encode_uint(pack_text(p, "isl_tokens"), isl);
    p = mp_encode_bool(pack_text(p, "device_only"), device_only);
    b->len += (size_t)(p - start);
}

static void record_json(struct kvr_buf *b, const char *model, struct kvr_worker w, const uint64_t *locals, const uint64_t *seqs, size_t n)
{
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "model_name", model);
    kvr_json_key(b, "worker");
    kvr_service_worker_write(b, w);
    put_hashes(b, "local_hashes", locals, n);
    put_hashes(b, "sequence_hashes", seqs, n);
    kvr_json_close(b, '}');
}

void kvr_service_record_write(struct kvr_buf *b, bool packed, const char *model, struct kvr_worker w, const uint64_t *locals,
                              const uint64_t *seqs, size_t n)
{
    if (!packed) {
        record_json(b, model, w, locals, seqs, n);
        return;
    }
    if (kvr_buf_reserve(b, SMALL + strlen(model) + n * 16)) return;
    char *start = b->data + b->len, *p = mp_encode_map(start, 4);
    p = pack_text(pack_text(p, "model_name"), model);
    p = mp_encode_map(pack_text(p, "worker"), 2);
    p = mp_encode_uint(pack_text(p, "worker_id"), w.worker_id);
    p = mp_encode_uint(pack_text(p, "dp_rank"), w.dp_rank);
    p = pack_hashes(p, "local_hashes", locals, n);
    p = pack_hashes(p, "sequence_hashes", seqs, n);
    b->len += (size_t)(p - start);
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static void forget(struct kvr_service_question *q)
{
    q->model = q->wrong_query = q->wrong_record = NULL;
    q->model_len = 0;
    q->isl = 0;
    q->has_worker = q->device_only = false;
    q->blocks.given = q->locals.given = q->seqs.given = false;
    q->blocks.n = q->locals.n = q->seqs.n = 0;
}

static struct kvr_service_hashes *list_of(struct kvr_service_question *q, const char *key, size_t len)
{
    const struct {
        const char *key;
        struct kvr_service_hashes *list;
    } lists[] = {{"block_hashes", &q->blocks}, {"local_hashes", &q->locals}, {"sequence_hashes", &q->seqs}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(lists); i++)
        if (kvr_span_is(key, len, lists[i].key)) return lists[i].list;
    return NULL;
}

static int room(struct kvr_service_hashes *l, size_t n)
{
    size_t cap = 2 * n + 64;
    if (l->h && n <= l->cap) return 0;
    uint64_t *p = realloc(l->h, cap * sizeof *p);
    if (!p) return -KVR_ENOMEM;
    l->h = p;
    l->cap = cap;
    return 0;
}

const char *kvr_service_allowed(const char *member)
{
    if (strcmp(member, "model_name") == 0) return "a text";
    if (strcmp(member, "device_only") == 0) return "true or false";
    if (strcmp(member, "isl_tokens") == 0) return "a number of tokens";
    if (strcmp(member, "worker") == 0) return "{worker_id: 0 to 18446744073709551615, dp_rank: 0 to 4294967295}";
    return "a list of at most 1048576 hashes, 64-bit integers";
}

static void is_wrong(struct kvr_service_question *q, const char *member)
{
    bool of_query = strcmp(member, "block_hashes") == 0 || strcmp(member, "isl_tokens") == 0 || strcmp(member, "device_only") == 0;
    bool of_both = strcmp(member, "model_name") == 0;
    if (of_query || of_both) q->wrong_query = member;
    if (!of_query || of_both) q->wrong_record = member;
}

static int hashes_json(struct kvr_service_hashes *l, struct kvr_json v)
{
    size_t n = kvr_json_count(v);
    if (kvr_json_type_of(v) != KVR_JSON_ARRAY || n > KVR_SERVICE_BLOCKS_MAX) return 0;
    if (room(l, n)) return -KVR_ENOMEM;
    long got = kvr_json_u64_array(v, l->h, n);
    l->given = got >= 0;
    l->n = l->given ? (size_t)got : 0;
    return 0;
}

int kvr_service_question_json(struct kvr_service_question *q, struct kvr_json o)
{
    static const char *const keys[] = {"block_hashes", "local_hashes", "sequence_hashes"};
    int rc = 0;
    forget(q);
    if (kvr_json_type_of(o) != KVR_JSON_OBJECT) return -KVR_EFORMAT;
    struct kvr_json model = kvr_json_get(o, "model_name"), only = kvr_json_get(o, "device_only"), worker = kvr_json_get(o, "worker");
    struct kvr_json isl = kvr_json_get(o, "isl_tokens");
    if (!kvr_json_as_name(model, &q->model, &q->model_len) && kvr_json_is_given(model)) is_wrong(q, "model_name");
    if (!kvr_json_as_bool(only, &q->device_only) && kvr_json_is_given(only)) is_wrong(q, "device_only");
    if (!kvr_json_as_u64(isl, &q->isl) && kvr_json_is_given(isl)) is_wrong(q, "isl_tokens");
    q->has_worker = kvr_service_worker_read(worker, &q->worker);
    if (!q->has_worker && kvr_json_is_given(worker)) is_wrong(q, "worker");
    for (size_t i = 0; i < KVR_ARRAY_LEN(keys) && rc == 0; i++) {
        struct kvr_service_hashes *l = list_of(q, keys[i], strlen(keys[i]));
        struct kvr_json v = kvr_json_get(o, keys[i]);
        rc = hashes_json(l, v);
        if (!l->given && kvr_json_is_given(v)) is_wrong(q, keys[i]);
    }
    return rc;
}

/* As everywhere here `*p` stands on a value, and behind it afterwards. */
static int hashes_packed(struct kvr_service_hashes *l, const char **p)
{
    uint32_t len;
    if (mp_typeof(**p) != MP_BIN) {
        mp_next(p);
        return 0;
    }
    const char *data = mp_decode_bin(p, &len);
    size_t n = len / 8;
    if (len % 8 || n > KVR_SERVICE_BLOCKS_MAX) return 0;
    if (room(l, n)) return -KVR_ENOMEM;
    if (n) memcpy(l->h, data, len);
    l->n = n;
    l->given = true;
    return 0;
}

static bool worker_packed(struct kvr_worker *w, const char **p)
{
    bool id = false, ok = true;
    uint64_t rank = 0;
    if (mp_typeof(**p) != MP_MAP) {
        mp_next(p);
        return false;
    }
    for (uint32_t n = mp_decode_map(p); n; n--) {
        uint32_t len = 0;
        const char *key = mp_typeof(**p) == MP_STR ? mp_decode_str(p, &len) : (mp_next(p), "");
        bool number = mp_typeof(**p) == MP_UINT, is_id = kvr_span_is(key, len, "worker_id"), is_rank = kvr_span_is(key, len, "dp_rank");
        if (number && is_id) w->worker_id = mp_decode_uint(p);
        else if (number && is_rank) rank = mp_decode_uint(p);
        else ok &= !is_id && (!is_rank || mp_typeof(**p) == MP_NIL), mp_next(p);
        id |= number && is_id;
    }
    w->dp_rank = (uint32_t)rank;
    return id && ok && rank <= UINT32_MAX;
}

static int member_packed(struct kvr_service_question *q, const char *key, uint32_t key_len, const char **p)
{
    struct kvr_service_hashes *l = list_of(q, key, key_len);
    enum mp_type type = mp_typeof(**p);
    uint32_t len;
    if (type == MP_NIL) { /* as not given */
        mp_next(p);
    } else if (l) {
        int rc = hashes_packed(l, p);
        if (!l->given) is_wrong(q, l == &q->blocks ? "block_hashes" : l == &q->locals ? "local_hashes" : "sequence_hashes");
        return rc;
    } else if (kvr_span_is(key, key_len, "worker")) {
        q->has_worker = worker_packed(&q->worker, p);
        if (!q->has_worker) is_wrong(q, "worker");
    } else if (kvr_span_is(key, key_len, "model_name") && type == MP_STR) {
        q->model = mp_decode_str(p, &len);
        q->model_len = len;
        if (memchr(q->model, 0, len)) is_wrong(q, "model_name");
    } else if (kvr_span_is(key, key_len, "device_only") && type == MP_BOOL) {
        q->device_only = mp_decode_bool(p);
    } else if (kvr_span_is(key, key_len, "isl_tokens") && type == MP_UINT) {
        q->isl = mp_decode_uint(p);
    } else {
        if (kvr_span_is(key, key_len, "isl_tokens")) is_wrong(q, "isl_tokens");
        if (kvr_span_is(key, key_len, "model_name")) is_wrong(q, "model_name");
        if (kvr_span_is(key, key_len, "device_only")) is_wrong(q, "device_only");
        mp_next(p);
    }
    return 0;
}

int kvr_service_question_packed(struct kvr_service_question *q, const char *data, size_t len)
{
    int rc = 0;
    forget(q);
    if (!kvr_msgpack_is_whole(data, len) || mp_typeof(*data) != MP_MAP) return -KVR_EFORMAT;
    for (uint32_t n = mp_decode_map(&data); n && rc == 0; n--) {
        uint32_t key_len = 0;
        const char *key = mp_typeof(*data) == MP_STR ? mp_decode_str(&data, &key_len) : (mp_next(&data), "");
        rc = member_packed(q, key, key_len, &data);
    }
    return rc;
}

void kvr_service_question_free(struct kvr_service_question *q)
{
    free(q->blocks.h);
    free(q->locals.h);
    free(q->seqs.h);
    *q = (struct kvr_service_question){0};
}

static void trim(struct kvr_service_hashes *l)
{
    enum { KEEP = (256 << 10) / sizeof *l->h };
    if (l->cap <= KEEP) return;
    free(l->h);
    *l = (struct kvr_service_hashes){0};
}

void kvr_service_question_trim(struct kvr_service_question *q)
{
    trim(&q->blocks);
    trim(&q->locals);
    trim(&q->seqs);
}

bool kvr_service_is_packed(const char *data, size_t len)
{
    return len && mp_typeof(*data) == MP_MAP;
}
