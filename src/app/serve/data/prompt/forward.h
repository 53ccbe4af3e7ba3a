/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --forward-token-ids: the worker gets a completion's prompt as the token ids that the router has, and need not make them again. Only where
 * the answer is the same: the ids are exactly those that the engine would make of the text, and nothing in the answer repeats the text
 * (`echo`, `prompt_logprobs`). Chats are sent as they came: no engine takes ids in their place.
 *
 * Threads: the request's loop.
 */
#ifndef KVR_SERVE_FORWARD_H
#define KVR_SERVE_FORWARD_H

#include "app/serve/data/request/request.h"

/* Its tokens are there. Many of them are written on a thread: then it waits. */
enum outcome forward_tokens(struct request *r, struct request_job *job);

#endif
