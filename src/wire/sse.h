/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server-sent events, looked at while they pass: how many data events, is it over, what usage was reported, did it go wrong.
 *
 * A stream is over with its last event, whatever its connection does afterwards: `data: [DONE]` of completions and chats,
 * `event: message_stop` of messages, `event: response.completed` (or .failed, .incomplete) of responses, each with the blank line
 * that ends it. It has gone wrong when an event has an `error`, though its status was 200.
 *
 * Lines are found with memchr; only a line that spans chunks is copied, up to SSE_LINE_MAX, and only a line that
 * mentions "usage" or "error" is parsed. Nothing is changed or held back.
 */
#ifndef KVR_WIRE_SSE_H
#define KVR_WIRE_SSE_H

#include "base/buf.h"
#include "wire/finish.h"
#include "wire/json.h"
#include "wire/openai.h"

enum { KVR_SSE_LINE_MAX = 256 * 1024 };

struct kvr_sse {
    struct kvr_buf part; /* start of a line that is not finished */
    bool skipping;       /* the line grew past the limit */
    bool ending;         /* the event that is being read is the last */
    bool done;           /* the last event is over */
    bool has_error;      /* an event said so, or was too long to be read */
    uint64_t events;     /* data events except [DONE] */
    struct kvr_usage usage;
    enum kvr_finish finish;             /* the last that was told */
    char response[KVR_RESPONSE_ID_MAX]; /* of /v1/responses: the response's id, "" before it was told */
};

/* `p` is used for lines that carry usage. Returns: number of new data events in this chunk. */
uint64_t kvr_sse_feed(struct kvr_sse *s, struct kvr_json_parser *p, const char *data, size_t len);
void kvr_sse_free(struct kvr_sse *s);

#endif
