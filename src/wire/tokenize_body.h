/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body that an engine's /tokenize is asked with, made from the body of a request: what makes the prompt's tokens, and nothing else,
 * so that requests that differ in sampling alone are one question, and one entry of the token cache.
 *
 *     completions      prompt (a string, or a list of one), add_special_tokens
 *     chat             messages, tools, template, its arguments; what chat takes and /tokenize does not is put among the arguments
 *     responses        the chat messages that vLLM makes of instructions and input items
 *     messages         those that it makes of system, content blocks, tools (the Anthropic form)
 *     generate         SGLang's own: text
 *
 * Values are copied as they are written: numbers, escapes and the order of members reach the engine unchanged. Of several prompts
 * the first is asked for. All this is what vLLM 0.32 was seen to do; docs/reference/http.md has the table.
 *
 * Truncation (truncate_prompt_tokens) is not among them: /tokenize does not do it. wire/prompt_tokens.h does.
 *
 * Threads: pure functions.
 */
#ifndef KVR_WIRE_TOKENIZE_BODY_H
#define KVR_WIRE_TOKENIZE_BODY_H

#include "base/buf.h"
#include "wire/json_text.h"
#include "wire/prompt_members.h"

/* `body` is known to be one JSON object. *certainty is raised to what the tokens will be worth at best.
 * Returns: false when there is nothing to ask for: no text, or a form that is not known. */
bool kvr_tokenize_body(struct kvr_json_span body, enum kvr_prompt_form form, struct kvr_buf *out, enum kvr_prompt_certainty *certainty);

/* The same for SGLang: a chat's members go under their own names, messages as they are, and without those that its /tokenize knows and its
 * chat does not (add_generation_prompt, add_special_tokens, documents). So /tokenize answers what the chat is computed with, but for
 * `responses` and `messages`, whose chat is vLLM's. Seen in SGLang 0.5.23. */
bool kvr_tokenize_body_sglang(struct kvr_json_span body, enum kvr_prompt_form form, struct kvr_buf *out,
                              enum kvr_prompt_certainty *certainty);

/* A question without special tokens; `ask` is one that kvr_tokenize_body made. */
void kvr_tokenize_body_bare(struct kvr_json_span ask, struct kvr_buf *out);

#endif
