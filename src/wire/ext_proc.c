/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages by protobuf-c, whose structs are made of src/wire/ext_proc.proto when this is built; but a piece of a body is written around its
 * bytes, which lie where they are (protobuf-c would move them once for each message that is around them). What it makes of a message lies
 * in one room that goes as a whole; most messages fit in the part of it that kvr_ext_proc_message brings along, so that nothing is asked of
 * malloc. The room is limited by the message's length: protobuf-c makes some 150 bytes of the smallest header, and copies a member that is
 * not known.
 */
#include "wire/ext_proc.h"

#include <string.h>

#include "wire/ext_proc.pb-c.h"

/* ---- the room ---------------------------------------------------------------------------------------- */

enum { ALIGN = 16, BLOCK = 16 * 1024, ALLOWED = 256 * 1024 /* and twice the length of the message */ };

struct block {
    struct block *next;
    _Alignas(ALIGN) char data[];
};

static void *take(void *ctx, size_t n)
{
    struct kvr_ext_proc_message *m = ctx;
    size_t size = (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (size < n || size > m->room.allowed) {
        m->room.why = -KVR_ELIMIT;
        return NULL;
    }
    m->room.allowed -= size;
    if (size > m->room.left) {
        size_t more = KVR_MAX(size, (size_t)BLOCK);
        struct block *b = malloc(sizeof *b + more);
        if (!b) {
            m->room.why = -KVR_ENOMEM;
            return NULL;
        }
        b->next = m->room.blocks;
        m->room.blocks = b;
        if (size > BLOCK / 2) return b->data; /* what was left of the one before is still good for small ones */
        m->room.at = b->data;
        m->room.left = more;
    }
    void *p = m->room.at;
    m->room.at += size;
    m->room.left -= size;
    return p;
}

static void keep(void *ctx, void *p)
{
    (void)ctx, (void)p;
}

void kvr_ext_proc_free(struct kvr_ext_proc_message *m)
{
    for (struct block *b = m->room.blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    m->room.blocks = NULL;
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static struct kvr_ext_proc_text text_of(ProtobufCBinaryData b)
{
    return (struct kvr_ext_proc_text){b.data ? (const char *)b.data : "", b.len};
}

static bool is(ProtobufCBinaryData b, const char *s)
{
    return b.len == strlen(s) && (b.len == 0 || memcmp(b.data, s, b.len) == 0);
}

static int read_headers(const Kvr__Pb__HeaderMap *map, struct kvr_ext_proc_message *out)
{
    size_t n = map ? map->n_headers : 0;
    if (n > KVR_EXT_PROC_HEADERS_MAX) return -KVR_ELIMIT;
    struct kvr_ext_proc_header *list = take(out, n * sizeof *list);
    if (!list) return out->room.why;
    for (size_t i = 0; i < n; i++) {
        const Kvr__Pb__Header *h = map->headers[i];
        list[i] = (struct kvr_ext_proc_header){text_of(h->key), text_of(h->raw_value.len ? h->raw_value : h->value)};
    }
    out->headers = list;
    out->headers_n = n;
    return 0;
}

static void read_body(const Kvr__Pb__Body *b, struct kvr_ext_proc_message *out)
{
    out->body = text_of(b->body);
    out->end_of_stream = b->end_of_stream;
}

/* Each shape of it as the field that it came in. */
static int read_part(const Kvr__Pb__ProcessingRequest *r, struct kvr_ext_proc_message *out)
{
    out->kind = (enum kvr_ext_proc_kind)r->request_case;
    switch (out->kind) {
    case KVR_EXT_PROC_REQUEST_HEADERS:
    case KVR_EXT_PROC_RESPONSE_HEADERS:
        out->end_of_stream = r->request_headers->end_of_stream;
        return read_headers(r->request_headers->headers, out);
    case KVR_EXT_PROC_REQUEST_BODY:
    case KVR_EXT_PROC_RESPONSE_BODY: read_body(r->request_body, out); return 0;
    case KVR_EXT_PROC_REQUEST_TRAILERS:
    case KVR_EXT_PROC_RESPONSE_TRAILERS: return read_headers(r->request_trailers->trailers, out);
    case KVR_EXT_PROC_OTHER: return 0;
    }
    return 0;
}

/* The value of a key, of which the last one counts; NULL: there is none. */
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

static struct kvr_ext_proc_text find_text(Kvr__Pb__Namespace *const *list, size_t n, const char *name, const char *key)
{
    const Kvr__Pb__Field *f = find(list, n, name, key);
    bool is_text = f && f->value && f->value->kind_case == KVR__PB__VALUE__KIND_STRING_VALUE;
    return is_text ? text_of(f->value->string_value) : (struct kvr_ext_proc_text){0};
}

/* The next of a list with commas, without the space around it; absent: there is none. */
static struct kvr_ext_proc_text next_of(struct kvr_ext_proc_text *list)
{
    const char *p = list->ptr, *end = p + list->len;
    while (p < end && (*p == ' ' || *p == ',')) p++;
    const char *start = p;
    while (p < end && *p != ',') p++;
    *list = (struct kvr_ext_proc_text){p, (size_t)(end - p)};
    while (p > start && p[-1] == ' ') p--;
    return p > start ? (struct kvr_ext_proc_text){start, (size_t)(p - start)} : (struct kvr_ext_proc_text){0};
}

static int read_subset(const Kvr__Pb__Value *v, struct kvr_ext_proc_message *out)
{
    const Kvr__Pb__List *values = v && v->kind_case == KVR__PB__VALUE__KIND_LIST_VALUE ? v->list_value : NULL;
    struct kvr_ext_proc_text text =
        v && v->kind_case == KVR__PB__VALUE__KIND_STRING_VALUE ? text_of(v->string_value) : text_of((ProtobufCBinaryData){0});
    size_t n = values ? values->n_values : text.len / 2 + 1; /* a text of one letter and a comma for each */
    out->has_subset = true;
    if (n > KVR_EXT_PROC_SUBSET_MAX && values) return -KVR_ELIMIT;
    struct kvr_ext_proc_text *list = take(out, KVR_MIN(n, (size_t)KVR_EXT_PROC_SUBSET_MAX) * sizeof *list), next;
    if (!list) return out->room.why;
    out->subset = list;
    for (size_t i = 0; values && i < n; i++) list[out->subset_n++] = text_of(values->values[i]->string_value);
    while ((next = next_of(&text)).ptr) {
        if (out->subset_n == KVR_EXT_PROC_SUBSET_MAX) return -KVR_ELIMIT;
        list[out->subset_n++] = next;
    }
    return 0;
}

static int read_request(const Kvr__Pb__ProcessingRequest *r, struct kvr_ext_proc_message *out)
{
    out->observability = r->observability_mode;
    if (r->protocol_config) {
        out->has_modes = true;
        out->modes = (struct kvr_ext_proc_modes){r->protocol_config->request_body_mode, r->protocol_config->response_body_mode};
    }
    out->upstream_address = find_text(r->attributes, r->n_attributes, "envoy.filters.http.ext_proc", "upstream.address");
    out->code_details = find_text(r->attributes, r->n_attributes, "envoy.filters.http.ext_proc", "response.code_details");
    int rc = read_part(r, out);
    if (rc || !r->metadata_context) return rc;
    Kvr__Pb__Namespace *const *list = r->metadata_context->filter_metadata;
    size_t n = r->metadata_context->n_filter_metadata;
    out->served = find_text(list, n, "envoy.lb", "x-gateway-destination-endpoint-served");
    const Kvr__Pb__Field *subset = find(list, n, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");
    return subset ? read_subset(subset->value, out) : 0;
}

/* All but the first part of the room, which needs no zeros. */
static void begin(struct kvr_ext_proc_message *m, size_t len)
{
    memset(m, 0, offsetof(struct kvr_ext_proc_message, room));
    m->body = text_of((ProtobufCBinaryData){0});
    m->room.blocks = NULL;
    m->room.at = m->room.first;
    m->room.left = sizeof m->room.first;
    m->room.allowed = len < SIZE_MAX / 2 - ALLOWED ? ALLOWED + 2 * len : 0;
    m->room.why = 0;
}

int kvr_ext_proc_read(const uint8_t *data, size_t len, struct kvr_ext_proc_message *out)
{
    begin(out, len);
    ProtobufCAllocator room = {take, keep, out};
    const Kvr__Pb__ProcessingRequest *r = kvr__pb__processing_request__unpack(&room, len, data);
    int rc = r ? read_request(r, out) : out->room.why ? out->room.why : -KVR_EFORMAT;
    if (rc) kvr_ext_proc_free(out);
    return rc;
}

struct kvr_ext_proc_text kvr_ext_proc_header_get(const struct kvr_ext_proc_message *m, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < m->headers_n; i++)
        if (m->headers[i].name.len == len && memcmp(m->headers[i].name.ptr, name, len) == 0) return m->headers[i].value;
    return (struct kvr_ext_proc_text){0};
}

/* ---- writing ----------------------------------------------------------------------------------------- */

static void put(struct kvr_buf *out, const void *message)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    if (kvr_buf_reserve(out, n)) return;
    out->len += protobuf_c_message_pack(message, (uint8_t *)out->data + out->len);
}

static ProtobufCBinaryData bytes_of(const void *data, size_t len)
{
    return (ProtobufCBinaryData){.len = len, .data = (uint8_t *)(uintptr_t)data};
}

static ProtobufCBinaryData text(const char *s)
{
    return bytes_of(s, strlen(s));
}

/* Room for a HeaderMutation and what it points to. */
struct changes {
    Kvr__Pb__HeaderMutation all;
    Kvr__Pb__Header headers[KVR_EXT_PROC_SET_MAX];
    Kvr__Pb__SetHeader set[KVR_EXT_PROC_SET_MAX];
    Kvr__Pb__SetHeader *list[KVR_EXT_PROC_SET_MAX];
    ProtobufCBinaryData removed[KVR_EXT_PROC_SET_MAX];
};

static Kvr__Pb__HeaderMutation *change(struct changes *c, const struct kvr_ext_proc_header *set, size_t set_n, const char *const *remove,
                                       size_t remove_n)
{
    enum { OVERWRITE_OR_ADD = 2 };
    KVR_ASSERT(set_n <= KVR_EXT_PROC_SET_MAX && remove_n <= KVR_EXT_PROC_SET_MAX);
    kvr__pb__header_mutation__init(&c->all);
    for (size_t i = 0; i < set_n; i++) {
        kvr__pb__header__init(&c->headers[i]);
        c->headers[i].key = bytes_of(set[i].name.ptr, set[i].name.len);
        c->headers[i].raw_value = bytes_of(set[i].value.ptr, set[i].value.len);
        kvr__pb__set_header__init(&c->set[i]);
        c->set[i].header = &c->headers[i];
        c->set[i].append_action = OVERWRITE_OR_ADD;
        c->list[i] = &c->set[i];
    }
    for (size_t i = 0; i < remove_n; i++) c->removed[i] = text(remove[i]);
    c->all.n_set_headers = set_n;
    c->all.set_headers = c->list;
    c->all.n_remove_headers = remove_n;
    c->all.remove_headers = c->removed;
    return set_n || remove_n ? &c->all : NULL;
}

static void put_trailers(struct kvr_buf *out, Kvr__Pb__ProcessingResponse *r, Kvr__Pb__HeaderMutation *headers)
{
    Kvr__Pb__TrailersAnswer answer = KVR__PB__TRAILERS_ANSWER__INIT;
    answer.header_mutation = headers;
    r->request_trailers = &answer;
    put(out, r);
    r->request_trailers = NULL;
}

static void put_common(struct kvr_buf *out, Kvr__Pb__ProcessingResponse *r, Kvr__Pb__CommonResponse *common)
{
    Kvr__Pb__Answer answer = KVR__PB__ANSWER__INIT;
    answer.response = common;
    r->request_headers = &answer;
    put(out, r);
    r->request_headers = NULL;
}

/* An answer's field has the number before that of the question's. */
static Kvr__Pb__ProcessingResponse response_to(enum kvr_ext_proc_kind kind)
{
    Kvr__Pb__ProcessingResponse r = KVR__PB__PROCESSING_RESPONSE__INIT;
    KVR_ASSERT(kind >= KVR_EXT_PROC_REQUEST_HEADERS && kind <= KVR_EXT_PROC_RESPONSE_TRAILERS);
    r.response_case = (Kvr__Pb__ProcessingResponse__ResponseCase)(kind - 1);
    return r;
}

/* {"envoy.lb": {"x-gateway-destination-endpoint": destination}} */
static void put_destined(struct kvr_buf *out, Kvr__Pb__ProcessingResponse *r, Kvr__Pb__CommonResponse *common,
                         struct kvr_ext_proc_text destination)
{
    Kvr__Pb__Value value;
    Kvr__Pb__Field field = KVR__PB__FIELD__INIT, *fields = &field;
    Kvr__Pb__Struct inner = KVR__PB__STRUCT__INIT;
    Kvr__Pb__NestedValue nested = KVR__PB__NESTED_VALUE__INIT;
    Kvr__Pb__NestedField entry = KVR__PB__NESTED_FIELD__INIT, *entries = &entry;
    Kvr__Pb__Nested outer = KVR__PB__NESTED__INIT;
    kvr__pb__value__init(&value); /* its macro lacks braces */
    value.kind_case = KVR__PB__VALUE__KIND_STRING_VALUE;
    value.string_value = bytes_of(destination.ptr, destination.len);
    field.key = text("x-gateway-destination-endpoint");
    field.value = &value;
    inner.n_fields = 1;
    inner.fields = &fields;
    nested.struct_value = &inner;
    entry.key = text("envoy.lb");
    entry.value = &nested;
    outer.n_fields = 1;
    outer.fields = &entries;
    r->dynamic_metadata = &outer;
    put_common(out, r, common);
    r->dynamic_metadata = NULL;
}

void kvr_ext_proc_put_answer(struct kvr_buf *out, enum kvr_ext_proc_kind kind, const struct kvr_ext_proc_mutation *m)
{
    static const struct kvr_ext_proc_mutation nothing;
    Kvr__Pb__ProcessingResponse r = response_to(kind);
    Kvr__Pb__CommonResponse common = KVR__PB__COMMON_RESPONSE__INIT;
    Kvr__Pb__ModeOverride modes = KVR__PB__MODE_OVERRIDE__INIT;
    struct changes changes;
    if (!m) m = &nothing;
    common.header_mutation = change(&changes, m->set, m->set_n, m->remove, m->remove_n);
    if (kind == KVR_EXT_PROC_REQUEST_TRAILERS || kind == KVR_EXT_PROC_RESPONSE_TRAILERS) {
        put_trailers(out, &r, common.header_mutation);
        return;
    }
    common.clear_route_cache = m->clear_route_cache;
    if (m->modes) {
        modes.request_body_mode = m->modes->request_body;
        modes.response_body_mode = m->modes->response_body;
        r.mode_override = &modes;
    }
    if (m->destination.ptr) put_destined(out, &r, &common, m->destination);
    else put_common(out, &r, &common);
}

/* A length is told in front of what it is of; three bytes hold that of a piece. */
static size_t varint_size(size_t v)
{
    return v < 1U << 7 ? 1 : v < 1U << 14 ? 2 : 3;
}

static uint8_t *put_length(uint8_t *p, unsigned field, size_t len)
{
    enum { BYTES = 2 };
    *p++ = (uint8_t)(field << 3 | BYTES);
    for (; len > 127; len >>= 7) *p++ = (uint8_t)(len | 128);
    *p++ = (uint8_t)len;
    return p;
}

size_t kvr_ext_proc_piece_head(uint8_t out[KVR_EXT_PROC_PIECE_HEAD_MAX], enum kvr_ext_proc_kind kind, size_t len, bool end)
{
    enum { RESPONSE = 1, BODY_MUTATION = 3, STREAMED = 3, BODY = 1, END = 2 << 3 };
    KVR_ASSERT(len <= KVR_EXT_PROC_PIECE_MAX && (kind == KVR_EXT_PROC_REQUEST_BODY || kind == KVR_EXT_PROC_RESPONSE_BODY));
    size_t body = (end ? 2 : 0) + (len ? 1 + varint_size(len) + len : 0), mutation = 1 + varint_size(body) + body,
           common = 1 + varint_size(mutation) + mutation, answer = 1 + varint_size(common) + common;
    uint8_t *p = put_length(out, (unsigned)kind - 1, answer);
    p = put_length(p, RESPONSE, common);
    p = put_length(p, BODY_MUTATION, mutation);
    p = put_length(p, STREAMED, body);
    if (end) *p++ = END;
    if (end) *p++ = 1;
    if (len) p = put_length(p, BODY, len);
    return (size_t)(p - out);
}

void kvr_ext_proc_put_immediate(struct kvr_buf *out, const struct kvr_ext_proc_immediate *m)
{
    Kvr__Pb__ProcessingResponse r = KVR__PB__PROCESSING_RESPONSE__INIT;
    Kvr__Pb__Immediate immediate = KVR__PB__IMMEDIATE__INIT;
    Kvr__Pb__HttpStatus status = KVR__PB__HTTP_STATUS__INIT;
    struct changes changes;
    status.code = m->status;
    immediate.status = &status;
    immediate.headers = change(&changes, m->headers, m->headers_n, NULL, 0);
    immediate.body = bytes_of(m->body.ptr, m->body.len);
    if (m->details) immediate.details = text(m->details);
    r.response_case = KVR__PB__PROCESSING_RESPONSE__RESPONSE_IMMEDIATE_RESPONSE;
    r.immediate_response = &immediate;
    put(out, &r);
}

void kvr_ext_proc_put_timeout(struct kvr_buf *out, uint64_t ms)
{
    Kvr__Pb__ProcessingResponse r = KVR__PB__PROCESSING_RESPONSE__INIT;
    Kvr__Pb__Duration d = KVR__PB__DURATION__INIT;
    d.seconds = (int64_t)(ms / 1000);
    d.nanos = (int32_t)(ms % 1000) * 1000000;
    r.override_message_timeout = &d;
    put(out, &r);
}

/* ---- health ------------------------------------------------------------------------------------------ */

int kvr_health_read(const uint8_t *data, size_t len, char service[KVR_HEALTH_NAME_MAX + 1])
{
    struct kvr_ext_proc_message m;
    begin(&m, len);
    ProtobufCAllocator room = {take, keep, &m};
    const Kvr__Pb__HealthCheckRequest *r = kvr__pb__health_check_request__unpack(&room, len, data);
    int rc = r ? 0 : m.room.why ? m.room.why : -KVR_EFORMAT;
    if (r && r->service.len > KVR_HEALTH_NAME_MAX) rc = -KVR_ELIMIT;
    if (rc == 0 && r) {
        if (r->service.len) memcpy(service, r->service.data, r->service.len);
        service[r->service.len] = 0;
    }
    kvr_ext_proc_free(&m);
    return rc;
}

void kvr_health_put(struct kvr_buf *out, enum kvr_health status)
{
    Kvr__Pb__HealthCheckResponse r = KVR__PB__HEALTH_CHECK_RESPONSE__INIT;
    r.status = (int32_t)status;
    put(out, &r);
}
