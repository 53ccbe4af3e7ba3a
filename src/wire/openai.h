/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI request bodies and answers: only what routing needs is read; bodies are forwarded byte for byte. */
#ifndef KVR_WIRE_OPENAI_H
#define KVR_WIRE_OPENAI_H

#include "base/base.h"
#include "base/buf.h"
#include "wire/json.h"
#include "wire/prompt_members.h"

struct kvr_openai_request {
    struct kvr_json root;
    const char *model, *salt; /* NULL when absent; borrow the parser */
    size_t model_len, salt_len;
    bool stream, has_messages, has_prompt;
    struct kvr_json tokens; /* prompt as a token array, or nvext.token_data; absent otherwise */
    size_t tokens_n;
    bool tokens_are_told; /* by nvext.token_data: most engines compute the prompt that is beside them */
    uint64_t beside_n;    /* those of the prompt, where others are told */
    uint64_t tokens_sum;  /* of a list of token arrays, of which `tokens` is the first, the lengths of all; else 0 */
    size_t text_max;      /* the caller's: bytes of prompt text that are enough; 0: all there is */
    /* nvext.agent_hints: seconds of seniority, strict priority, expected output tokens; 0: not given */
    double priority;
    uint32_t strict_priority;
    uint64_t expected_osl;
    struct kvr_prompt_members members; /* by kvr_prompt_members_read; zeroes before */
};

/* Reads a body, of which so much is wanted. Returns: 0; or with a sentence for the client in *why -KVR_EFORMAT, or -KVR_ENOMEM: nothing is
 * wrong with it. */
int kvr_openai_parse(struct kvr_json_parser *p, const char *body, size_t len, enum kvr_json_wanted wanted, struct kvr_openai_request *out,
                     const char **why);

/* As for the member `prompt`, of a member that has another name: token arrays go to `tokens`. */
void kvr_openai_take_prompt(struct kvr_openai_request *r, struct kvr_json prompt);

/* The canonical prompt text for byte tokens: the prompt string, or role and content of each message. What is no text but makes
 * another prompt (images, tools, ...) is there as a byte 0xff and a digest (wire/mm_parts.h), at its place.
 * Appends to `out`, and stops soon after text_max: then out->len is above it. false when the body has neither. Without memory
 * out->failed is set. */
bool kvr_openai_prompt_text(const struct kvr_openai_request *r, struct kvr_buf *out);

enum { KVR_RESPONSE_ID_MAX = 128 };

struct kvr_usage {
    bool present, has_cached;                                 /* the latter: cached_tokens was told */
    uint64_t prompt_tokens, completion_tokens, cached_tokens; /* prompt_tokens: all of the prompt, cached or not */
};

/* usage of an answer or a stream chunk, as completions, chats, responses or messages word it; `present` false when there is none, or
 * its counts are no 64-bit numbers. */
void kvr_openai_usage(struct kvr_json root, struct kvr_usage *out);

/* {"error":{"message":..., "type":..., "param":null, "code":status}} */
void kvr_openai_error(struct kvr_buf *out, int status, const char *type, const char *message);
/* The same with a code for programs. */
void kvr_openai_error_coded(struct kvr_buf *out, const char *type, const char *message, const char *code);
const char *kvr_openai_error_type(int status);

#endif
