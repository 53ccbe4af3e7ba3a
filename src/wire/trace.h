/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trace lines, in two forms:
 *
 *     {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}   Mooncake's: one id per 512 tokens,
 *         ceil(input_length / 512) of them; equal ids mean equal prefixes
 *     {"timestamp": ms, "output_length": n, "messages": [...]} or "prompt": "..."   a chat, with its "tools" and "chat_template_kwargs"
 *         when it has them, or a text; its tokens are not known here
 */
#ifndef KVR_WIRE_TRACE_H
#define KVR_WIRE_TRACE_H

#include "base/base.h"
#include "wire/json.h"

enum { KVR_TRACE_BLOCK = 512, KVR_TRACE_IDS_MAX = 1 << 16, KVR_TRACE_OUTPUT_MAX = 1 << 24, KVR_TRACE_SPECIAL = 1000 };

struct kvr_trace_row {
    uint64_t timestamp_ms, input_length, output_length; /* input_length: of a text 0 */
    uint64_t *ids;                                      /* owned by the caller, kvr_trace_row_free */
    size_t ids_n;
    /* Of a text or a chat the members that make its prompt, as a body has them, without the braces; else NULL. Owned likewise. */
    char *text;
    size_t text_len;
    bool is_chat;
};

/* Returns: 0, or -KVR_EFORMAT with a static text, -KVR_ENOMEM. */
int kvr_trace_parse(struct kvr_json_parser *p, const char *line, size_t len, struct kvr_trace_row *out, const char **why);
void kvr_trace_row_free(struct kvr_trace_row *r);

/* A token of a vocabulary of that size, as engines refuse others; none of the first KVR_TRACE_SPECIAL, where those that mean something
 * tend to be, unless the vocabulary is small. vocab > 0. */
uint32_t kvr_trace_token(uint64_t hash, uint32_t vocab);

/* Expands a row to input_length tokens: id and place decide each token, so equal ids give equal tokens.
 * tokens[input_length] is written, with tokens of kvr_trace_token. vocab > 0. */
void kvr_trace_expand(const struct kvr_trace_row *r, uint32_t vocab, uint32_t *tokens);

#endif
