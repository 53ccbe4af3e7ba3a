/* SPDX-License-Identifier: Apache-2.0 */
/* Spans as OTLP's JSON: wire/otlp_json.h. */
#include "wire/otlp_json.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "wire/trace_context.h"

/* ---- a set of spans ---------------------------------------------------------------------------------- */

int kvr_spans_add(struct kvr_span_set *s, const struct kvr_span *span)
{
    if (s->spans_n == KVR_SPANS_MAX) {
        s->left_out++;
        return -1;
    }
    s->spans[s->spans_n] = *span;
    return (int)s->spans_n++;
}

static struct kvr_span_attribute *add_attribute(struct kvr_span_set *s, int span, const char *key, enum kvr_attribute_type type)
{
    if (span < 0) return NULL;
    if (s->attributes_n == KVR_SPAN_ATTRIBUTES_MAX) {
        s->left_out++;
        return NULL;
    }
    struct kvr_span_attribute *a = &s->attributes[s->attributes_n++];
    *a = (struct kvr_span_attribute){.key = key, .span = (uint8_t)span, .type = type};
    return a;
}

void kvr_spans_text(struct kvr_span_set *s, int span, const char *key, const char *text, size_t len)
{
    char plain[4 * KVR_SPAN_TEXT_MAX + 1];
    if (!text || !len || span < 0) return;
    size_t n = kvr_printable(text, KVR_MIN(len, (size_t)KVR_SPAN_TEXT_MAX), plain, sizeof plain), at = s->text.len;
    kvr_buf_add(&s->text, plain, n);
    if (s->text.failed) return;
    struct kvr_span_attribute *a = add_attribute(s, span, key, KVR_ATTRIBUTE_TEXT);
    if (!a) return;
    a->value.text.at = at;
    a->value.text.len = n;
}

void kvr_spans_int(struct kvr_span_set *s, int span, const char *key, uint64_t v)
{
    struct kvr_span_attribute *a = add_attribute(s, span, key, KVR_ATTRIBUTE_INT);
    if (a) a->value.number = v > INT64_MAX ? INT64_MAX : (int64_t)v;
}

void kvr_spans_double(struct kvr_span_set *s, int span, const char *key, double v)
{
    struct kvr_span_attribute *a = add_attribute(s, span, key, KVR_ATTRIBUTE_DOUBLE);
    if (a) a->value.real = v;
}

void kvr_spans_bool(struct kvr_span_set *s, int span, const char *key, bool v)
{
    struct kvr_span_attribute *a = add_attribute(s, span, key, KVR_ATTRIBUTE_BOOL);
    if (a) a->value.yes = v;
}

void kvr_spans_free(struct kvr_span_set *s)
{
    if (!s) return;
    kvr_buf_free(&s->text);
    free(s);
}

/* ---- as JSON ----------------------------------------------------------------------------------------- */

/* A 64-bit number is a string in Protobuf's JSON. */
static void put_number(struct kvr_buf *out, const char *key, int64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)v);
    kvr_json_put_str(out, key, text);
}

static void put_ns(struct kvr_buf *out, const char *key, uint64_t ns)
{
    put_number(out, key, (int64_t)ns);
}

static void begin_attribute(struct kvr_buf *out, const char *key)
{
    kvr_json_open(out, '{');
    kvr_json_put_str(out, "key", key);
    kvr_json_key(out, "value");
    kvr_json_open(out, '{');
}

static void end_attribute(struct kvr_buf *out)
{
    kvr_json_close(out, '}');
    kvr_json_close(out, '}');
}

static void put_attribute(struct kvr_buf *out, const struct kvr_span_set *s, const struct kvr_span_attribute *a)
{
    begin_attribute(out, a->key);
    switch (a->type) {
    case KVR_ATTRIBUTE_TEXT:
        kvr_json_key(out, "stringValue");
        kvr_json_str(out, s->text.data + a->value.text.at, a->value.text.len);
        break;
    case KVR_ATTRIBUTE_INT: put_number(out, "intValue", a->value.number); break;
    case KVR_ATTRIBUTE_DOUBLE: kvr_json_put_double(out, "doubleValue", a->value.real); break;
    case KVR_ATTRIBUTE_BOOL:
        kvr_json_key(out, "boolValue");
        kvr_json_bool(out, a->value.yes);
        break;
    }
    end_attribute(out);
}

static void put_attributes(struct kvr_buf *out, const struct kvr_span_set *s, unsigned span)
{
    kvr_json_key(out, "attributes");
    kvr_json_open(out, '[');
    for (unsigned i = 0; i < s->attributes_n; i++)
        if (s->attributes[i].span == span) put_attribute(out, s, &s->attributes[i]);
    if (span == 0 && s->left_out) {
        begin_attribute(out, "kvroute.left_out");
        put_number(out, "intValue", s->left_out);
        end_attribute(out);
    }
    kvr_json_close(out, ']');
}

static void put_event(struct kvr_buf *out, const struct kvr_span *span)
{
    if (!span->event) return;
    kvr_json_key(out, "events");
    kvr_json_open(out, '[');
    kvr_json_open(out, '{');
    put_ns(out, "timeUnixNano", span->event_ns);
    kvr_json_put_str(out, "name", span->event);
    kvr_json_close(out, '}');
    kvr_json_close(out, ']');
}

static void put_status(struct kvr_buf *out, const struct kvr_span *span)
{
    enum { STATUS_CODE_ERROR = 2 };
    if (!span->failed) return;
    kvr_json_key(out, "status");
    kvr_json_open(out, '{');
    if (span->why) kvr_json_put_str(out, "message", span->why);
    kvr_json_put_u64(out, "code", STATUS_CODE_ERROR);
    kvr_json_close(out, '}');
}

static void put_span(struct kvr_buf *out, const struct kvr_span_set *s, unsigned i)
{
    const struct kvr_span *span = &s->spans[i];
    char trace[33], id[17];
    kvr_json_open(out, '{');
    kvr_trace_hex(s->trace, 16, trace);
    kvr_json_put_str(out, "traceId", trace);
    kvr_span_hex(span->id, id);
    kvr_json_put_str(out, "spanId", id);
    if (span->parent) {
        kvr_span_hex(span->parent, id);
        kvr_json_put_str(out, "parentSpanId", id);
    }
    kvr_json_put_u64(out, "flags", s->flags);
    kvr_json_put_str(out, "name", span->name);
    kvr_json_put_u64(out, "kind", (uint64_t)span->kind);
    put_ns(out, "startTimeUnixNano", span->start_ns);
    put_ns(out, "endTimeUnixNano", span->end_ns);
    put_attributes(out, s, i);
    put_event(out, span);
    put_status(out, span);
    kvr_json_close(out, '}');
}

void kvr_otlp_put(struct kvr_buf *out, const struct kvr_span_set *s)
{
    for (unsigned i = 0; i < s->spans_n; i++) put_span(out, s, i);
}

static void put_text(struct kvr_buf *out, const char *key, const char *text)
{
    begin_attribute(out, key);
    kvr_json_put_str(out, "stringValue", text);
    end_attribute(out);
}

void kvr_otlp_begin(struct kvr_buf *out, const struct kvr_otlp_resource *resource)
{
    kvr_json_open(out, '{');
    kvr_json_key(out, "resourceSpans");
    kvr_json_open(out, '[');
    kvr_json_open(out, '{');
    kvr_json_key(out, "resource");
    kvr_json_open(out, '{');
    kvr_json_key(out, "attributes");
    kvr_json_open(out, '[');
    put_text(out, "service.name", resource->service_name);
    put_text(out, "service.version", resource->service_version);
    put_text(out, "service.instance.id", resource->instance_id);
    kvr_json_close(out, ']');
    kvr_json_close(out, '}');
    kvr_json_key(out, "scopeSpans");
    kvr_json_open(out, '[');
    kvr_json_open(out, '{');
    kvr_json_key(out, "scope");
    kvr_json_open(out, '{');
    kvr_json_put_str(out, "name", "kvroute");
    kvr_json_put_str(out, "version", resource->service_version);
    kvr_json_close(out, '}');
    kvr_json_key(out, "spans");
    kvr_json_open(out, '[');
}

void kvr_otlp_end(struct kvr_buf *out)
{
    kvr_json_close(out, ']'); /* spans */
    kvr_json_close(out, '}');
    kvr_json_close(out, ']'); /* scopeSpans */
    kvr_json_close(out, '}');
    kvr_json_close(out, ']'); /* resourceSpans */
    kvr_json_close(out, '}');
}
