/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an engine is asked what it makes of one of the built-in questions (token/probes.h), and what its answer means. Who asks brings the
 * bytes.
 *
 * The best answer is that of /v1/chat/completions/render and /v1/completions/render, which is what the engine would compute; where it has
 * none (404, 405, 501, of vLLM 403), /tokenize is asked. A question that the engine refuses (400) counts for nothing: it may, and then no
 * ids matter.
 *
 * Threads: pure functions; the reader one at a time for each parser.
 */
#ifndef KVR_WIRE_ENGINE_TOKENS_H
#define KVR_WIRE_ENGINE_TOKENS_H

#include "base/buf.h"
#include "wire/json.h"

enum { KVR_ENGINE_TOKENS_MAX = 65536 }; /* ids of an answer; one with more is none */

enum kvr_engine_tokens_way { KVR_TOKENS_RENDER, KVR_TOKENS_TOKENIZE };

enum kvr_engine_tokens_answer {
    KVR_TOKENS_ANSWERED,  /* 200: kvr_engine_tokens_read */
    KVR_TOKENS_REFUSED,   /* this question; go on with the next one */
    KVR_TOKENS_OTHER_WAY, /* ask again over /tokenize, and all later questions, too */
    KVR_TOKENS_NO_WAY,    /* the engine cannot be asked */
    KVR_TOKENS_LATER      /* not now, or not by us: 5xx, 401, 403, 429 */
};

const char *kvr_engine_tokens_path(enum kvr_engine_tokens_way way, bool is_chat); /* static */
/* Appends the body; members: of the question, without the braces around it. */
void kvr_engine_tokens_question(enum kvr_engine_tokens_way way, const char *model, const char *members, struct kvr_buf *out);
enum kvr_engine_tokens_answer kvr_engine_tokens_judge(enum kvr_engine_tokens_way way, int status);
/* *ids: the list of an answer with status 200, valid until the next parse. Returns: false when there is none. */
bool kvr_engine_tokens_read(struct kvr_json_parser *p, const char *text, size_t len, enum kvr_engine_tokens_way way, struct kvr_json *ids);

#endif
