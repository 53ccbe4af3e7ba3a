/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prompt as text, where the questions of the indexer and of the admin port take one in place of its tokens:
 *
 *     {"text": "..."}                                    as the prompt of a completion
 *     {"messages": [...], "tools": [...], ...}           as a chat
 *
 * and what is made of it: the question for a tokenizer, the same as the router's own for such a request (wire/tokenize_body.h).
 *
 * Threads: pure functions.
 */
#ifndef KVR_WIRE_PROMPT_QUESTION_H
#define KVR_WIRE_PROMPT_QUESTION_H

#include "base/buf.h"
#include "wire/json.h"

/* Has the object a text or messages, and neither tokens nor hashes? */
bool kvr_prompt_is_text(struct kvr_json o);
/* body[0..len): the text that `o` was read from. Without memory out->failed is set. Returns: false with the reason, one sentence. */
bool kvr_prompt_question(struct kvr_json o, const char *body, size_t len, struct kvr_buf *out, const char **why);

#endif
