/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens of a prompt after they were read: what the engine leaves of them (truncate_prompt_tokens). Without a word it keeps the last ones.
 * vLLM lets its tokenizer do that, which keeps the special tokens that it adds at the ends and truncates what is between; a side that
 * is named in the request is cut off with all that is there.
 *
 * Threads: pure functions.
 */
#ifndef KVR_WIRE_PROMPT_TOKENS_H
#define KVR_WIRE_PROMPT_TOKENS_H

#include <stddef.h>

#include "wire/prompt_members.h"

/* How many tokens of n are kept; room: the model's context in tokens, 0 when it is not known.
 * Returns: false when that cannot be told. */
bool kvr_truncated_length(const struct kvr_prompt_members *m, size_t n, uint64_t room, size_t *keep);

/* Moves the tokens that are kept to the front. */
void kvr_truncate(uint32_t *tokens, size_t n, size_t keep, enum kvr_truncation side);

/* As the tokenizer does it: `bare` are the same tokens without those that it adds. Returns: false when these are not among them, or keep is
 * too short for what was added. */
bool kvr_truncate_between(uint32_t *tokens, size_t n, const uint32_t *bare, size_t bare_n, size_t keep);

#endif
