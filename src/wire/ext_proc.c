/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages as protobuf has them, read and written where they lie: reading walks through each member once and keeps spans, so a body is not
 * copied, and only long lists ask for memory; writing puts a length in front of what it is of when that is known. How deep reading goes is
 * how deep the functions below call each other, whatever a message says.
 *
 * A member that comes twice counts as protobuf has it: the last one, of lists all, of the parts of a request the last kind. Members that
 * are not read are not looked into.
 */
#include "wire/ext_proc.h"

#include <string.h>

enum wire { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* ---- reading: members -------------------------------------------------------------------------------- */

struct span {
    const uint8_t *at, *end;
};

struct member {
    uint64_t number, value; /* value: VARINT */
    enum wire wire;
    struct span bytes; /* BYTES */
};

static bool read_varint(struct span *s, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64 && s->at < s->end; shift += 7) {
        uint8_t b = *s->at++;
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128) {
            *out = v;
            return true;
        }
    }
    return false;
}

static bool skip(struct span *s, uint64_t n)
{
    if (n > (uint64_t)(s->end - s->at)) return false;
    s->at += n;
    return true;
}

/* Returns: 1; 0: there is none any more; -KVR_EFORMAT. */
static int next(struct span *s, struct member *m)
{
    uint64_t tag, len;
    if (s->at == s->end) return 0;
    if (!read_varint(s, &tag)) return -KVR_EFORMAT;
    m->number = tag >> 3;
    m->wire = (enum wire)(tag & 7);
    bool fine = false;
    switch (m->wire) {
    case VARINT: fine = read_varint(s, &m->value); break;
    case FIXED64: fine = skip(s, 8); break;
    case FIXED32: fine = skip(s, 4); break;
    case BYTES:
        fine = read_varint(s, &len);
        m->bytes.at = s->at;
        fine = fine && skip(s, len);
        m->bytes.end = s->at;
        break;
    }
    return fine ? 1 : -KVR_EFORMAT;
}

/* A kind of message: calls `take` for each member of `s` whose number has a bit in `known`, which are all of one wire type but for the
 * numbers in `varints`. Returns: 0, or the first error, of its own too. */
typedef int take_member(void *ctx, const struct member *m);

static int each(struct span s, uint32_t known, uint32_t varints, take_member *take, void *ctx)
{
    struct member m;
    int rc;
    while ((rc = next(&s, &m)) > 0) {
        uint32_t bit = m.number < 32 ? 1U << m.number : 0;
        bool is_known = known & bit && m.wire == (varints & bit ? VARINT : BYTES); /* else a later release may have it so */
        if (is_known && (rc = take(ctx, &m)) < 0) return rc;
    }
    return rc;
}

#define BIT(number) (1U << (number))

/* ---- reading: parts ---------------------------------------------------------------------------------- */

static struct kvr_ext_proc_text text_of(struct span s)
{
    return (struct kvr_ext_proc_text){s.at ? (const char *)s.at : "", s.at ? (size_t)(s.end - s.at) : 0};
}

static bool is(struct span s, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(s.end - s.at) == n && (n == 0 || memcmp(s.at, text, n) == 0);
}

/* Header: 1 key, 2 value, 3 raw_value. */
static int take_header_member(void *ctx, const struct member *m)
{
    struct span *parts = ctx;
    parts[m->number] = m->bytes;
    return 0;
}

/* Memory for all that there may be, when the first ones have none left. */
static int grow_headers(struct kvr_ext_proc_message *out)
{
    if (out->headers_n == KVR_EXT_PROC_HEADERS_MAX) return -KVR_ELIMIT;
    if (out->headers_n < KVR_EXT_PROC_HEADERS_FIRST || out->more_headers) return 0;
    out->more_headers = malloc(KVR_EXT_PROC_HEADERS_MAX * sizeof *out->more_headers);
    if (!out->more_headers) return -KVR_ENOMEM;
    memcpy(out->more_headers, out->first_headers, sizeof out->first_headers);
    out->headers = out->more_headers;
    return 0;
}

/* HeaderMap: 1 headers. */
static int take_header(void *ctx, const struct member *m)
{
    struct kvr_ext_proc_message *out = ctx;
    struct span parts[4] = {{0}};
    int rc = each(m->bytes, BIT(1) | BIT(2) | BIT(3), 0, take_header_member, parts);
    if (rc == 0) rc = grow_headers(out);
    if (rc) return rc;
    const struct span *value = parts[3].at != parts[3].end ? &parts[3] : &parts[2];
    struct kvr_ext_proc_header *list = out->more_headers ? out->more_headers : out->first_headers;
    list[out->headers_n++] = (struct kvr_ext_proc_header){text_of(parts[1]), text_of(*value)};
    return 0;
}

/* Headers: 1 headers, 3 end_of_stream. Trailers have the first alone. */
static int take_headers(void *ctx, const struct member *m)
{
    struct kvr_ext_proc_message *out = ctx;
    if (m->number == 1) return each(m->bytes, BIT(1), 0, take_header, out);
    out->end_of_stream = m->value != 0;
    return 0;
}

/* Body: 1 body, 2 end_of_stream. */
static int take_body(void *ctx, const struct member *m)
{
    struct kvr_ext_proc_message *out = ctx;
    if (m->number == 1) out->body = text_of(m->bytes);
    else out->end_of_stream = m->value != 0;
    return 0;
}

static int read_part(const struct member *m, struct kvr_ext_proc_message *out)
{
    if ((uint64_t)out->kind != m->number) {
        out->headers_n = 0;
        out->body = text_of((struct span){0});
        out->end_of_stream = false;
    }
    out->kind = (enum kvr_ext_proc_kind)m->number;
    switch (out->kind) {
    case KVR_EXT_PROC_REQUEST_HEADERS:
    case KVR_EXT_PROC_RESPONSE_HEADERS: return each(m->bytes, BIT(1) | BIT(3), BIT(3), take_headers, out);
    case KVR_EXT_PROC_REQUEST_BODY:
    case KVR_EXT_PROC_RESPONSE_BODY: return each(m->bytes, BIT(1) | BIT(2), BIT(2), take_body, out);
    case KVR_EXT_PROC_REQUEST_TRAILERS:
    case KVR_EXT_PROC_RESPONSE_TRAILERS: return each(m->bytes, BIT(1), 0, take_headers, out);
    case KVR_EXT_PROC_OTHER: break;
    }
    return 0;
}

/* Modes: 1 request_body_mode, 2 response_body_mode. */
static int take_mode(void *ctx, const struct member *m)
{
    struct kvr_ext_proc_modes *modes = ctx;
    *(m->number == 1 ? &modes->request_body : &modes->response_body) = (int)(uint32_t)m->value;
    return 0;
}

/* ---- reading: what Envoy knows ----------------------------------------------------------------------- */

/* What is looked for in maps of maps; `value` is that of the last one. */
struct wanted {
    const char *name, *key;
    bool found;
    struct span value;
};

struct entry {
    struct span key, value;
    struct wanted *wanted; /* that are asked for in the map where this is */
    size_t wanted_n;
};

/* Namespace: 1 key, 2 value; Field the same. Both may come in any order. */
static int take_entry(void *ctx, const struct member *m)
{
    struct entry *e = ctx;
    *(m->number == 1 ? &e->key : &e->value) = m->bytes;
    return 0;
}

/* Struct: 1 fields. */
static int take_field(void *ctx, const struct member *m)
{
    const struct entry *space = ctx;
    struct entry field = {0};
    int rc = each(m->bytes, BIT(1) | BIT(2), 0, take_entry, &field);
    for (size_t i = 0; rc == 0 && i < space->wanted_n; i++) {
        struct wanted *w = &space->wanted[i];
        if (!is(space->key, w->name) || !is(field.key, w->key)) continue;
        w->found = true;
        w->value = field.value;
    }
    return rc;
}

/* Metadata: 1 filter_metadata. The attributes are a list of the same. */
static int take_namespace(void *ctx, const struct member *m)
{
    struct entry *space = ctx;
    space->key = space->value = (struct span){0};
    int rc = each(m->bytes, BIT(1) | BIT(2), 0, take_entry, space);
    return rc ? rc : each(space->value, BIT(1), 0, take_field, space);
}

/* Value: 3 string_value or 6 list_value, the last one; of other kinds it has none. */
static int take_value(void *ctx, const struct member *m)
{
    *(struct member *)ctx = *m;
    return 0;
}

static int read_text(const struct wanted *w, struct kvr_ext_proc_text *out)
{
    struct member v = {0};
    int rc = each(w->value, BIT(3) | BIT(6), 0, take_value, &v);
    if (rc == 0 && w->found && v.number == 3) *out = text_of(v.bytes);
    return rc;
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

static int add_endpoint(struct kvr_ext_proc_message *out, struct kvr_ext_proc_text t)
{
    if (out->subset_n == KVR_EXT_PROC_SUBSET_MAX) return -KVR_ELIMIT;
    if ((out->subset_n & (out->subset_n - 1)) == 0) { /* 0, 1, 2, 4, ... */
        struct kvr_ext_proc_text *p = realloc(out->more_subset, KVR_MAX(2 * out->subset_n, (size_t)1) * sizeof *p);
        if (!p) return -KVR_ENOMEM;
        out->subset = out->more_subset = p;
    }
    out->more_subset[out->subset_n++] = t;
    return 0;
}

/* Item: 3 string_value. */
static int take_item_text(void *ctx, const struct member *m)
{
    *(struct span *)ctx = m->bytes;
    return 0;
}

/* List: 1 values. */
static int take_item(void *ctx, const struct member *m)
{
    struct span item = {0};
    int rc = each(m->bytes, BIT(3), 0, take_item_text, &item);
    return rc ? rc : add_endpoint(ctx, text_of(item));
}

static int read_subset(const struct wanted *w, struct kvr_ext_proc_message *out)
{
    struct member v = {0};
    int rc = each(w->value, BIT(3) | BIT(6), 0, take_value, &v);
    out->has_subset = w->found;
    if (rc || !v.number) return rc;
    if (v.number == 6) return each(v.bytes, BIT(1), 0, take_item, out);
    struct kvr_ext_proc_text text = text_of(v.bytes), one;
    while (rc == 0 && (one = next_of(&text)).ptr) rc = add_endpoint(out, one);
    return rc;
}

/* ---- reading: a message ------------------------------------------------------------------------------ */

enum { METADATA = 8, ATTRIBUTES = 9, OBSERVABILITY = 10, CONFIG = 11 };
enum { SERVED, SUBSET, METADATA_N };
enum { ADDRESS, DETAILS, ATTRIBUTES_N };

struct reading {
    struct kvr_ext_proc_message *out;
    struct wanted metadata[METADATA_N], attributes[ATTRIBUTES_N];
};

/* ProcessingRequest. */
static int take_part(void *ctx, const struct member *m)
{
    struct reading *r = ctx;
    struct entry in_metadata = {.wanted = r->metadata, .wanted_n = METADATA_N},
                 in_attributes = {.wanted = r->attributes, .wanted_n = ATTRIBUTES_N};
    switch (m->number) {
    case METADATA: return each(m->bytes, BIT(1), 0, take_namespace, &in_metadata);
    case ATTRIBUTES: return take_namespace(&in_attributes, m);
    case OBSERVABILITY: r->out->observability = m->value != 0; return 0;
    case CONFIG: r->out->has_modes = true; return each(m->bytes, BIT(1) | BIT(2), BIT(1) | BIT(2), take_mode, &r->out->modes);
    default: return read_part(m, r->out);
    }
}

static int read_request(struct span s, struct kvr_ext_proc_message *out)
{
    static const char filter[] = "envoy.filters.http.ext_proc";
    const uint32_t parts = BIT(2) | BIT(3) | BIT(4) | BIT(5) | BIT(6) | BIT(7);
    struct reading r = {
        .out = out,
        .metadata = {[SERVED] = {.name = "envoy.lb", .key = "x-gateway-destination-endpoint-served"},
                     [SUBSET] = {.name = "envoy.lb.subset_hint", .key = "x-gateway-destination-endpoint-subset"}},
        .attributes = {
            [ADDRESS] = {.name = filter, .key = "upstream.address"}, [DETAILS] = {.name = filter, .key = "response.code_details"}}};
    int rc = each(s, parts | BIT(METADATA) | BIT(ATTRIBUTES) | BIT(OBSERVABILITY) | BIT(CONFIG), BIT(OBSERVABILITY), take_part, &r);
    if (rc == 0) rc = read_text(&r.metadata[SERVED], &out->served);
    if (rc == 0) rc = read_text(&r.attributes[ADDRESS], &out->upstream_address);
    if (rc == 0) rc = read_text(&r.attributes[DETAILS], &out->code_details);
    return rc ? rc : read_subset(&r.metadata[SUBSET], out);
}

int kvr_ext_proc_read(const uint8_t *data, size_t len, struct kvr_ext_proc_message *out)
{
    memset(out, 0, offsetof(struct kvr_ext_proc_message, first_headers)); /* which need no zeros */
    out->headers = out->first_headers;
    out->body = text_of((struct span){0});
    int rc = read_request((struct span){data, data + len}, out);
    if (rc) kvr_ext_proc_free(out);
    return rc;
}

void kvr_ext_proc_free(struct kvr_ext_proc_message *m)
{
    free(m->more_headers);
    free(m->more_subset);
    m->more_headers = NULL;
    m->more_subset = NULL;
}

struct kvr_ext_proc_text kvr_ext_proc_header_get(const struct kvr_ext_proc_message *m, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < m->headers_n; i++)
        if (m->headers[i].name.len == len && memcmp(m->headers[i].name.ptr, name, len) == 0) return m->headers[i].value;
    return (struct kvr_ext_proc_text){0};
}

/* ---- writing: members -------------------------------------------------------------------------------- */

enum { VARINT_MAX = 10 };

static size_t varint(uint8_t out[VARINT_MAX], uint64_t v)
{
    size_t n = 0;
    for (; v > 127; v >>= 7) out[n++] = (uint8_t)(v | 128);
    out[n++] = (uint8_t)v;
    return n;
}

static void put_tag(struct kvr_buf *b, unsigned number, enum wire wire)
{
    kvr_buf_add(b, &(uint8_t){(uint8_t)(number << 3 | wire)}, 1); /* there are no numbers beyond 15 */
}

/* A number that is 0 is not said, nor are bytes that are none; but in lists. */
static void put_number(struct kvr_buf *b, unsigned number, uint64_t v)
{
    uint8_t bytes[VARINT_MAX];
    if (!v) return;
    put_tag(b, number, VARINT);
    kvr_buf_add(b, bytes, varint(bytes, v));
}

static void put_item(struct kvr_buf *b, unsigned number, const void *data, size_t len)
{
    uint8_t bytes[VARINT_MAX];
    put_tag(b, number, BYTES);
    kvr_buf_add(b, bytes, varint(bytes, len));
    kvr_buf_add(b, data, len);
}

static void put_bytes(struct kvr_buf *b, unsigned number, struct kvr_ext_proc_text t)
{
    if (t.len) put_item(b, number, t.ptr, t.len);
}

static void put_text(struct kvr_buf *b, unsigned number, const char *s)
{
    put_bytes(b, number, (struct kvr_ext_proc_text){s, strlen(s)});
}

/* A message in a message: what is put between these two. Returns: for the second. */
static size_t open(struct kvr_buf *b, unsigned number)
{
    put_tag(b, number, BYTES);
    return b->len;
}

static void shut(struct kvr_buf *b, size_t at)
{
    uint8_t bytes[VARINT_MAX];
    size_t len = b->len - at, n = varint(bytes, len);
    kvr_buf_add(b, bytes, n); /* for the room */
    if (b->failed) return;
    memmove(b->data + at + n, b->data + at, len);
    memcpy(b->data + at, bytes, n);
}

/* ---- writing: messages ------------------------------------------------------------------------------- */

/* HeaderMutation: 1 set_headers {1 header {1 key, 3 raw_value}, 3 append_action}, 2 remove_headers. */
static void put_changes(struct kvr_buf *b, unsigned number, const struct kvr_ext_proc_mutation *m)
{
    enum { OVERWRITE_OR_ADD = 2 };
    KVR_ASSERT(m->set_n <= KVR_EXT_PROC_SET_MAX && m->remove_n <= KVR_EXT_PROC_SET_MAX);
    if (!m->set_n && !m->remove_n) return;
    size_t all = open(b, number);
    for (size_t i = 0; i < m->set_n; i++) {
        size_t set = open(b, 1), header = open(b, 1);
        put_bytes(b, 1, m->set[i].name);
        put_bytes(b, 3, m->set[i].value);
        shut(b, header);
        put_number(b, 3, OVERWRITE_OR_ADD);
        shut(b, set);
    }
    for (size_t i = 0; i < m->remove_n; i++) put_item(b, 2, m->remove[i], strlen(m->remove[i]));
    shut(b, all);
}

/* dynamic_metadata: {"envoy.lb": {"x-gateway-destination-endpoint": destination}}, a Struct of Structs {1 fields {1 key, 2 value {3 text or
 * 5 Struct}}}. */
static void put_destination(struct kvr_buf *b, struct kvr_ext_proc_text destination)
{
    size_t outer = open(b, 8), space = open(b, 1);
    put_text(b, 1, "envoy.lb");
    size_t nested = open(b, 2), inner = open(b, 5), field = open(b, 1);
    put_text(b, 1, "x-gateway-destination-endpoint");
    size_t value = open(b, 2);
    put_item(b, 3, destination.ptr, destination.len);
    shut(b, value);
    shut(b, field);
    shut(b, inner);
    shut(b, nested);
    shut(b, space);
    shut(b, outer);
}

/* body_mutation: 1 body. */
static void put_body(struct kvr_buf *b, struct kvr_ext_proc_text body)
{
    size_t mutation = open(b, 3);
    put_item(b, 1, body.ptr, body.len);
    shut(b, mutation);
}

/* An answer's member has the number before that of the question's. */
static unsigned answer_to(enum kvr_ext_proc_kind kind)
{
    KVR_ASSERT(kind >= KVR_EXT_PROC_REQUEST_HEADERS && kind <= KVR_EXT_PROC_RESPONSE_TRAILERS);
    return (unsigned)kind - 1;
}

/* CommonResponse: 2 header_mutation, 5 clear_route_cache; of trailers 1 header_mutation. mode_override: 3 request_body_mode,
 * 4 response_body_mode. */
void kvr_ext_proc_put_answer(struct kvr_buf *out, enum kvr_ext_proc_kind kind, const struct kvr_ext_proc_mutation *m)
{
    static const struct kvr_ext_proc_mutation nothing;
    if (!m) m = &nothing;
    size_t answer = open(out, answer_to(kind));
    if (kind == KVR_EXT_PROC_REQUEST_TRAILERS || kind == KVR_EXT_PROC_RESPONSE_TRAILERS) {
        put_changes(out, 1, m);
        shut(out, answer);
        return;
    }
    size_t common = open(out, 1);
    put_changes(out, 2, m);
    if (m->body.ptr) put_body(out, m->body);
    put_number(out, 5, m->clear_route_cache);
    shut(out, common);
    shut(out, answer);
    if (m->destination.ptr) put_destination(out, m->destination);
    if (!m->modes) return;
    size_t modes = open(out, 9);
    put_number(out, 3, (uint64_t)m->modes->request_body);
    put_number(out, 4, (uint64_t)m->modes->response_body);
    shut(out, modes);
}

static size_t with_head(size_t len)
{
    return len + (len < 1U << 7 ? 2 : len < 1U << 14 ? 3 : 4);
}

static uint8_t *put_head(uint8_t *p, unsigned number, size_t len)
{
    *p++ = (uint8_t)(number << 3 | BYTES);
    return p + varint(p, len);
}

/* The body is the last member of all that are around it, so it needs not be moved: its end is told before it. */
size_t kvr_ext_proc_piece_head(uint8_t out[KVR_EXT_PROC_PIECE_HEAD_MAX], enum kvr_ext_proc_kind kind, size_t len, bool end)
{
    enum { RESPONSE = 1, BODY_MUTATION = 3, STREAMED = 3, BODY = 1, END = 2 << 3 };
    uint8_t room[KVR_EXT_PROC_PIECE_HEAD_MAX + VARINT_MAX];
    KVR_ASSERT(len <= KVR_EXT_PROC_PIECE_MAX);
    size_t streamed = (end ? 2 : 0) + (len ? with_head(len) : 0), mutation = with_head(streamed), common = with_head(mutation);
    uint8_t *p = put_head(room, answer_to(kind), with_head(common));
    p = put_head(p, RESPONSE, common);
    p = put_head(p, BODY_MUTATION, mutation);
    p = put_head(p, STREAMED, streamed);
    if (end) *p++ = END;
    if (end) *p++ = 1;
    if (len) p = put_head(p, BODY, len);
    memcpy(out, room, (size_t)(p - room));
    return (size_t)(p - room);
}

/* immediate_response: 1 status {1 code}, 2 headers, 3 body, 5 details. */
void kvr_ext_proc_put_immediate(struct kvr_buf *out, const struct kvr_ext_proc_immediate *m)
{
    size_t all = open(out, 7), status = open(out, 1);
    put_number(out, 1, (uint64_t)m->status);
    shut(out, status);
    put_changes(out, 2, &(struct kvr_ext_proc_mutation){.set = m->headers, .set_n = m->headers_n});
    put_bytes(out, 3, m->body);
    if (m->details) put_text(out, 5, m->details);
    shut(out, all);
}

/* override_message_timeout: 1 seconds, 2 nanos. */
void kvr_ext_proc_put_timeout(struct kvr_buf *out, uint64_t ms)
{
    size_t all = open(out, 10);
    put_number(out, 1, ms / 1000);
    put_number(out, 2, ms % 1000 * 1000000);
    shut(out, all);
}

/* ---- health ------------------------------------------------------------------------------------------ */

/* HealthCheckRequest: 1 service. */
int kvr_health_read(const uint8_t *data, size_t len, char service[KVR_HEALTH_NAME_MAX + 1])
{
    struct span name = {0};
    int rc = each((struct span){data, data + len}, BIT(1), 0, take_item_text, &name);
    struct kvr_ext_proc_text t = text_of(name);
    if (rc) return rc;
    if (t.len > KVR_HEALTH_NAME_MAX) return -KVR_ELIMIT;
    memcpy(service, t.ptr, t.len);
    service[t.len] = 0;
    return 0;
}

/* HealthCheckResponse: 1 status. */
void kvr_health_put(struct kvr_buf *out, enum kvr_health status)
{
    put_number(out, 1, (uint64_t)status);
}
