/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of gRPC out of a stream that is seen in one piece and in many: the same messages. Each is read as one of Envoy's: what is read
 * has the limits that are said and lies where it may be touched; what protobuf-c makes of it, and writes, is read, and is the same.
 * What stands before a piece of a body makes it a message that protobuf-c reads, as is one with a whole body.
 */
#include <string.h>

#include "ext_proc.pb-c.h"
#include "net/grpc/messages.h"
#include "wire/ext_proc.h"

enum { MESSAGE_MAX = 1 << 16 };

static uint8_t seen; /* of all that was touched, so that it is */

static void touch(struct kvr_ext_proc_text t)
{
    KVR_ASSERT(t.ptr || t.len == 0);
    for (size_t i = 0; i < t.len; i++) seen ^= (uint8_t)t.ptr[i];
}

static bool same(struct kvr_ext_proc_text t, ProtobufCBinaryData b)
{
    return t.ptr && t.len == b.len && (b.len == 0 || memcmp(t.ptr, b.data, b.len) == 0);
}

static bool is(ProtobufCBinaryData b, const char *s)
{
    return b.len == strlen(s) && (b.len == 0 || memcmp(b.data, s, b.len) == 0);
}

static void headers_agree(const Kvr__Pb__HeaderMap *map, const struct kvr_ext_proc_message *m)
{
    size_t n = map ? map->n_headers : 0;
    KVR_ASSERT(m->headers_n == n);
    for (size_t i = 0; i < n; i++) {
        const Kvr__Pb__Header *h = map->headers[i];
        KVR_ASSERT(same(m->headers[i].name, h->key) && same(m->headers[i].value, h->raw_value.len ? h->raw_value : h->value));
    }
}

/* The last one of the key. */
static const Kvr__Pb__Field *find(Kvr__Pb__Namespace *const *list, size_t n, const char *name, const char *key)
{
    const Kvr__Pb__Field *found = NULL;
    for (size_t i = 0; i < n; i++) {
        const Kvr__Pb__Struct *s = is(list[i]->key, name) ? list[i]->value : NULL;
        for (size_t k = 0; s && k < s->n_fields; k++)
            if (is(s->fields[k]->key, key)) found = s->fields[k];
    }
    return found;
}

static void text_agrees(struct kvr_ext_proc_text t, const Kvr__Pb__Field *f)
{
    bool is_text = f && f->value && f->value->kind_case == KVR__PB__VALUE__KIND_STRING_VALUE;
    KVR_ASSERT(is_text ? same(t, f->value->string_value) : !t.ptr);
}

static void subset_agrees(const struct kvr_ext_proc_message *m, const Kvr__Pb__Field *f)
{
    const Kvr__Pb__List *list = f && f->value && f->value->kind_case == KVR__PB__VALUE__KIND_LIST_VALUE ? f->value->list_value : NULL;
    KVR_ASSERT(m->has_subset == (f != NULL));
    for (size_t i = 0; list && i < list->n_values; i++) KVR_ASSERT(i < m->subset_n && same(m->subset[i], list->values[i]->string_value));
}

static void agree(const Kvr__Pb__ProcessingRequest *r, const struct kvr_ext_proc_message *m)
{
    static const char filter[] = "envoy.filters.http.ext_proc";
    Kvr__Pb__Namespace **known = r->metadata_context ? r->metadata_context->filter_metadata : NULL;
    size_t n = r->metadata_context ? r->metadata_context->n_filter_metadata : 0;
    KVR_ASSERT((int)m->kind == (int)r->request_case && m->observability == (r->observability_mode != 0));
    KVR_ASSERT(m->has_modes == (r->protocol_config != NULL));
    if (m->has_modes)
        KVR_ASSERT(m->modes.request_body == r->protocol_config->request_body_mode &&
                   m->modes.response_body == r->protocol_config->response_body_mode);
    text_agrees(m->served, find(known, n, "envoy.lb", "x-gateway-destination-endpoint-served"));
    text_agrees(m->upstream_address, find(r->attributes, r->n_attributes, filter, "upstream.address"));
    text_agrees(m->code_details, find(r->attributes, r->n_attributes, filter, "response.code_details"));
    subset_agrees(m, find(known, n, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"));
    switch (m->kind) {
    case KVR_EXT_PROC_REQUEST_HEADERS:
    case KVR_EXT_PROC_RESPONSE_HEADERS:
        headers_agree(r->request_headers->headers, m);
        KVR_ASSERT(m->end_of_stream == (r->request_headers->end_of_stream != 0));
        break;
    case KVR_EXT_PROC_REQUEST_BODY:
    case KVR_EXT_PROC_RESPONSE_BODY:
        KVR_ASSERT(same(m->body, r->request_body->body) && m->end_of_stream == (r->request_body->end_of_stream != 0));
        break;
    case KVR_EXT_PROC_REQUEST_TRAILERS:
    case KVR_EXT_PROC_RESPONSE_TRAILERS: headers_agree(r->request_trailers->trailers, m); break;
    case KVR_EXT_PROC_OTHER: break;
    }
}

/* What protobuf-c makes of it, as protobuf-c writes it. */
static void compare(const uint8_t *data, size_t len)
{
    struct kvr_ext_proc_message m;
    Kvr__Pb__ProcessingRequest *r = kvr__pb__processing_request__unpack(NULL, len, data);
    if (!r) return;
    size_t n = protobuf_c_message_get_packed_size(&r->base);
    uint8_t *again = malloc(n);
    KVR_ASSERT(again && protobuf_c_message_pack(&r->base, again) == n);
    int rc = kvr_ext_proc_read(again, n, &m);
    KVR_ASSERT(rc == 0 || rc == -KVR_ELIMIT);
    if (rc == 0) {
        agree(r, &m);
        kvr_ext_proc_free(&m);
    }
    free(again);
    kvr__pb__processing_request__free_unpacked(r, NULL);
}

static void write_piece(const uint8_t *data, size_t size)
{
    size_t len = size < 3 ? size : (size_t)(data[1] << 8 | data[2]) % (KVR_EXT_PROC_PIECE_MAX + 1);
    bool end = size && data[0] & 1, response = size && data[0] & 2;
    uint8_t *all = malloc(KVR_EXT_PROC_PIECE_HEAD_MAX + len);
    KVR_ASSERT(all);
    size_t head = kvr_ext_proc_piece_head(all, response ? KVR_EXT_PROC_RESPONSE_BODY : KVR_EXT_PROC_REQUEST_BODY, len, end);
    memset(all + head, 'b', len);
    Kvr__Pb__ProcessingResponse *r = kvr__pb__processing_response__unpack(NULL, head + len, all);
    KVR_ASSERT(r && r->response_case == (response ? KVR__PB__PROCESSING_RESPONSE__RESPONSE_RESPONSE_BODY
                                                  : KVR__PB__PROCESSING_RESPONSE__RESPONSE_REQUEST_BODY));
    const Kvr__Pb__Body *b = r->request_body->response->body_mutation->streamed_response;
    KVR_ASSERT(b->body.len == len && (b->end_of_stream != 0) == end && (len == 0 || memcmp(b->body.data, all + head, len) == 0));
    kvr__pb__processing_response__free_unpacked(r, NULL);
    free(all);
}

static void write_body(const uint8_t *data, size_t len)
{
    struct kvr_buf b = {0};
    kvr_ext_proc_put_answer(&b, KVR_EXT_PROC_REQUEST_BODY, &(struct kvr_ext_proc_mutation){.body = {(const char *)data, len}});
    Kvr__Pb__ProcessingResponse *r = b.failed ? NULL : kvr__pb__processing_response__unpack(NULL, b.len, (const uint8_t *)b.data);
    KVR_ASSERT(r && r->response_case == KVR__PB__PROCESSING_RESPONSE__RESPONSE_REQUEST_BODY);
    const Kvr__Pb__BodyMutation *m = r->request_body->response->body_mutation;
    KVR_ASSERT(m && m->mutation_case == KVR__PB__BODY_MUTATION__MUTATION_BODY);
    KVR_ASSERT(m->body.len == len && (len == 0 || memcmp(m->body.data, data, len) == 0));
    kvr__pb__processing_response__free_unpacked(r, NULL);
    kvr_buf_free(&b);
}

static void read_message(const uint8_t *data, size_t len)
{
    struct kvr_ext_proc_message m;
    char service[KVR_HEALTH_NAME_MAX + 1];
    if (kvr_health_read(data, len, service) == 0) KVR_ASSERT(strlen(service) <= KVR_HEALTH_NAME_MAX);
    int rc = kvr_ext_proc_read(data, len, &m);
    KVR_ASSERT(rc == 0 || rc == -KVR_EFORMAT || rc == -KVR_ELIMIT);
    compare(data, len);
    if (rc) return;
    KVR_ASSERT(m.headers_n <= KVR_EXT_PROC_HEADERS_MAX && m.subset_n <= KVR_EXT_PROC_SUBSET_MAX && m.body.len <= len);
    KVR_ASSERT(m.has_subset || m.subset_n == 0);
    for (size_t i = 0; i < m.headers_n; i++) {
        touch(m.headers[i].name);
        touch(m.headers[i].value);
    }
    for (size_t i = 0; i < m.subset_n; i++) touch(m.subset[i]);
    touch(m.body);
    touch(m.served);
    touch(m.upstream_address);
    kvr_ext_proc_free(&m);
}

/* What was read of a stream that comes in pieces of `step` bytes. */
struct result {
    size_t messages, bytes, unfinished;
    uint8_t sum;
    enum kvr__grpc_reading last;
};

static struct result read_stream(const uint8_t *data, size_t size, size_t step, bool reads)
{
    struct kvr__grpc_reader r = {0};
    struct kvr_buf spare = {0};
    struct kvr__grpc_piece message;
    struct result out = {.last = KVR__GRPC_MORE};
    for (size_t at = 0; at < size && out.last == KVR__GRPC_MORE; at += step) {
        struct kvr__grpc_piece piece = {data + at, KVR_MIN(step, size - at)};
        while ((out.last = kvr__grpc_next(&r, MESSAGE_MAX, &spare, &piece, &message)) == KVR__GRPC_MESSAGE) {
            KVR_ASSERT(message.len <= MESSAGE_MAX);
            for (size_t i = 0; i < message.len; i++) out.sum = (uint8_t)(out.sum * 31 + message.data[i]);
            out.messages++;
            out.bytes += message.len;
            if (reads) read_message(message.data, message.len);
        }
        KVR_ASSERT(out.last != KVR__GRPC_MORE || piece.len == 0);
    }
    if (out.last == KVR__GRPC_MORE) out.unfinished = kvr__grpc_unfinished(&r);
    kvr_buf_free(&r.part);
    kvr_buf_free(&spare);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    size_t step = 1U + data[0] % 32;
    data++, size--;
    write_piece(data, size);
    write_body(data, size);
    read_message(data, size);
    struct result whole = read_stream(data, size, SIZE_MAX / 2, true), split = read_stream(data, size, step, false);
    KVR_ASSERT(whole.messages == split.messages && whole.bytes == split.bytes && whole.sum == split.sum && whole.last == split.last);
    KVR_ASSERT(whole.unfinished == split.unfinished);
    if (whole.last == KVR__GRPC_MORE) KVR_ASSERT(whole.bytes + whole.messages * KVR__GRPC_PREFIX + whole.unfinished == size);
    return 0;
}
