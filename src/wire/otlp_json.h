/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans of traces, and how OTLP writes them as JSON. Sources: https://opentelemetry.io/docs/specs/otlp/ (JSON Protobuf Encoding: ids in
 * hex, 64-bit integers as strings, enumerations as numbers) and opentelemetry/proto/trace/v1/trace.proto.
 *
 * A kvr_span_set is what one request has of one trace: a table of fixed size, so that adding to it costs nothing but the writing. What does
 * not fit is counted in the set and said in the last attribute of its first span.
 *
 * Names and keys are static; texts are copied to the set. Threads: a set belongs to whoever holds it.
 */
#ifndef KVR_WIRE_OTLP_JSON_H
#define KVR_WIRE_OTLP_JSON_H

#include "base/buf.h"

enum { KVR_SPANS_MAX = 24, KVR_SPAN_ATTRIBUTES_MAX = 128, KVR_SPAN_TEXT_MAX = 256 };

enum kvr_span_kind { KVR_SPAN_INTERNAL = 1, KVR_SPAN_SERVER = 2, KVR_SPAN_CLIENT = 3 };

struct kvr_span {
    const char *name;
    uint64_t id, parent; /* parent 0: none */
    enum kvr_span_kind kind;
    uint64_t start_ns, end_ns; /* since 1970 */
    const char *event;         /* one moment of it; NULL: none */
    uint64_t event_ns;
    bool failed;
    const char *why; /* of failed; static; NULL: not said */
};

enum kvr_attribute_type { KVR_ATTRIBUTE_TEXT, KVR_ATTRIBUTE_INT, KVR_ATTRIBUTE_DOUBLE, KVR_ATTRIBUTE_BOOL };

struct kvr_span_attribute {
    const char *key;
    uint8_t span; /* its place */
    enum kvr_attribute_type type;
    union {
        struct {
            size_t at, len; /* in the set's text */
        } text;
        int64_t number;
        double real;
        bool yes;
    } value;
};

struct kvr_span_set {
    struct kvr_span_set *next; /* in a queue */
    uint8_t trace[16];
    uint8_t flags;
    unsigned spans_n, attributes_n, left_out;
    struct kvr_span spans[KVR_SPANS_MAX];
    struct kvr_span_attribute attributes[KVR_SPAN_ATTRIBUTES_MAX];
    struct kvr_buf text;
};

/* Returns: its place, or -1: there is no room. */
int kvr_spans_add(struct kvr_span_set *s, const struct kvr_span *span);
/* A place of -1 is fine: nothing. A text is cut at KVR_SPAN_TEXT_MAX bytes; NULL or "": nothing. */
void kvr_spans_text(struct kvr_span_set *s, int span, const char *key, const char *text, size_t len);
void kvr_spans_int(struct kvr_span_set *s, int span, const char *key, uint64_t v);
void kvr_spans_double(struct kvr_span_set *s, int span, const char *key, double v);
void kvr_spans_bool(struct kvr_span_set *s, int span, const char *key, bool v);
void kvr_spans_free(struct kvr_span_set *s); /* NULL is fine */

/* An ExportTraceServiceRequest of one resource: begin, any number of sets, end. */
struct kvr_otlp_resource {
    const char *service_name, *service_version, *instance_id;
};
void kvr_otlp_begin(struct kvr_buf *out, const struct kvr_otlp_resource *resource);
void kvr_otlp_put(struct kvr_buf *out, const struct kvr_span_set *s);
void kvr_otlp_end(struct kvr_buf *out);

#endif
