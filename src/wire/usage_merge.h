/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a decode worker D says of cached tokens is put right: it found the prompt's KV handed over, and tells nothing of the cache of the
 * prefill worker P that computed it. usage.prompt_tokens_details.cached_tokens becomes P's number, or goes when P told none; all other
 * bytes stay. The usage of an event that has choices, which is not the last, loses the member.
 *
 * Of a stream, lines are looked at one by one: `data:` with a "usage" in it is held until its end and changed when it is JSON; all else
 * passes at once, as does a line that grows past KVR_USAGE_LINE_MAX, or JSON that is spread over several data lines. Usage as
 * responses and messages word it is left alone.
 *
 * Ownership: the caller's, zeroed before its first use; free with kvr_usage_merge_free. Texts are borrowed and must not be in `out`.
 * Errors: without memory for a line it passes unchanged; without memory for `out`, out->failed is set. Threads: one for each stream.
 */
#ifndef KVR_WIRE_USAGE_MERGE_H
#define KVR_WIRE_USAGE_MERGE_H

#include "base/buf.h"
#include "wire/json.h"
#include "wire/json_text.h"

enum { KVR_USAGE_LINE_MAX = 1024 * 1024 }; /* bytes, with the line's end */

/* What P told; the caller sets it, also between two pieces. */
struct kvr_usage_told {
    bool has_cached;
    uint64_t cached_tokens;
};

struct kvr_usage_merge {
    struct kvr_usage_told told;
    struct kvr_buf line; /* the beginning of one that may have to be changed */
    bool passing;        /* the rest of the line passes */
};

/* Takes a piece of the stream, of any size, and appends what is to be sent. */
void kvr_usage_merge_feed(struct kvr_usage_merge *m, struct kvr_json_parser *p, const char *data, size_t len, struct kvr_buf *out);
/* The stream is over: appends what was held of an unfinished line. */
void kvr_usage_merge_end(struct kvr_usage_merge *m, struct kvr_buf *out);
void kvr_usage_merge_free(struct kvr_usage_merge *m);

/* Appends a whole answer with its usage put right. Returns: false, with nothing appended, when there is nothing to change: it has no
 * usage, or is no JSON object; then the answer itself is to be sent. */
bool kvr_usage_merge_answer(struct kvr_json_span answer, struct kvr_json_parser *p, const struct kvr_usage_told *told, struct kvr_buf *out);

#endif
