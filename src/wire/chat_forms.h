/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other forms of a conversation, as the chat messages that vLLM makes of them: bodies of /v1/responses and of /v1/messages. What this
 * code has not seen vLLM do (images, reasoning items, built-in tools, system messages in mid-conversation, ...) makes the certainty
 * unknown: then there is a question all the same where one can be put, and its tokens are a hint.
 *
 * Threads: pure functions.
 */
#ifndef KVR_WIRE_CHAT_FORMS_H
#define KVR_WIRE_CHAT_FORMS_H

#include "base/buf.h"
#include "wire/json_text.h"
#include "wire/prompt_members.h"

/* Both append the body that /tokenize is asked with. Returns: false when there is nothing to ask for. */
bool kvr_chat_of_responses(struct kvr_json_span body, struct kvr_buf *out, enum kvr_prompt_certainty *certainty);
bool kvr_chat_of_messages(struct kvr_json_span body, struct kvr_buf *out, enum kvr_prompt_certainty *certainty);

#endif
