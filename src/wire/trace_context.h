/* SPDX-License-Identifier: Apache-2.0 */
/* W3C Trace Context: the headers traceparent and tracestate. Source: https://www.w3.org/TR/trace-context/, sections 3.2 and 3.3.
 * Threads: pure functions. */
#ifndef KVR_WIRE_TRACE_CONTEXT_H
#define KVR_WIRE_TRACE_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVR_TRACEPARENT_LEN = 55, KVR_TRACE_SAMPLED = 1, KVR_TRACESTATE_MEMBERS_MAX = 32 };

struct kvr_trace_context {
    uint8_t trace[16]; /* not all zero */
    uint64_t parent;   /* span id; not 0 */
    uint8_t flags;
};

/* Version 00 has exactly four fields; of a later version the first four are read, and what follows them begins with a dash. Returns:
 * whether it is one; *out is untouched when it is none. */
bool kvr_traceparent_read(const char *text, size_t len, struct kvr_trace_context *out);
/* As version 00, with a 0 behind it. */
void kvr_traceparent_write(const struct kvr_trace_context *c, char out[KVR_TRACEPARENT_LEN + 1]);
/* One header of tracestate. Returns: how many members it has, or -1 when it is malformed. */
int kvr_tracestate_members(const char *text, size_t len);
/* Lower case, with a 0 behind them. */
void kvr_trace_hex(const uint8_t *bytes, size_t n, char *out);
void kvr_span_hex(uint64_t id, char out[17]);

#endif
