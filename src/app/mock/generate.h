/* SPDX-License-Identifier: Apache-2.0 */
/* A request that generates: its tokens go to an engine, the engine's tokens become an answer. */
#ifndef KVR_APP_MOCK_GENERATE_H
#define KVR_APP_MOCK_GENERATE_H

#include "app/mock/state.h"

void mock_generate(struct mock *m, struct kvr_http_conn *c, bool chat);
/* The client went away. */
void mock_gone(struct kvr_http_conn *c, void *ctx);
/* The engine's callbacks; ctx: the rank. */
void mock_on_token(void *ctx, struct mock_request *r, uint32_t token, uint64_t index, bool last);
void mock_on_event(void *ctx, const struct kvr_event *ev, const uint32_t *tokens, size_t n, void *user);

#endif
