/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces of which bodies for /tokenize are put together (wire/tokenize_body.h). Values are copied as they are written.
 * Threads: pure functions. */
#ifndef KVR_WIRE_CHAT_WRITER_H
#define KVR_WIRE_CHAT_WRITER_H

#include "base/buf.h"
#include "wire/json_text.h"

/* Opens the object, with its first member, if there is one. */
void kvr_chat_begin(struct kvr_buf *out, struct kvr_json_span model);
/* The name of a further member, whose value is to follow; and a member, nothing when the value is none. */
void kvr_chat_name(struct kvr_buf *out, const char *name);
void kvr_chat_member(struct kvr_buf *out, const char *name, struct kvr_json_span value);
/* chat_template_kwargs: those of the request, and what the engine puts among them. */
void kvr_chat_arguments(struct kvr_buf *out, struct kvr_json_span args, struct kvr_json_span effort, struct kvr_json_span documents);
/* A JSON text as a string that holds it. */
void kvr_chat_quoted(struct kvr_buf *out, struct kvr_json_span value);
/* The inside of a string. */
struct kvr_json_span kvr_chat_inside(struct kvr_json_span string);

static inline bool kvr_span_is_string(struct kvr_json_span v)
{
    return v.at && v.end - v.at >= 2 && *v.at == '"';
}

static inline bool kvr_span_is_list(struct kvr_json_span v)
{
    return v.at && v.at < v.end && *v.at == '[';
}

static inline bool kvr_span_is_object(struct kvr_json_span v)
{
    return v.at && v.at < v.end && *v.at == '{';
}

static inline void kvr_span_add(struct kvr_buf *out, struct kvr_json_span v)
{
    kvr_buf_add(out, v.at, (size_t)(v.end - v.at));
}

#endif
