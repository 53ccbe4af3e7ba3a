/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests: what they ask for, and the tokens of their prompts. Read by the mock's own eyes, not by the router's: two readers
 * that share code agree on their mistakes. */
#ifndef KVR_APP_MOCK_PROMPT_H
#define KVR_APP_MOCK_PROMPT_H

#include "app/mock/state.h"

enum mock_api { MOCK_COMPLETIONS, MOCK_CHAT, MOCK_RESPONSES, MOCK_MESSAGES };

enum { MOCK_PROMPTS_MAX = 256, MOCK_N_MAX = 64 };

/* An answer that is no 200. */
struct mock_error {
    int status; /* 0: none */
    const char *type;
    char param[64]; /* "": null */
    char message[320];
};

/* A token as text: a byte, unless it is none. */
static inline char mock_char(uint32_t token)
{
    return token < 256 ? (char)token : '?';
}

struct mock_prompt {
    uint32_t *tokens;
    size_t n;
};

struct mock_ask {
    enum mock_api api;
    struct mock_prompt *prompts; /* owned */
    size_t prompts_n;
    uint32_t n; /* answers for each prompt */
    uint64_t max_tokens;
    bool stream, include_usage, continuous_usage, echo, logprobs, prompt_logprobs;
    bool reports; /* vllm_xargs: kv_cache_report_mode full */
    char model[256], salt[1024];
    bool is_lora;
    struct mock_kv_ask kv;
    struct kvr_buf conversation; /* of /v1/responses: the text of the prompt */
    /* Found by the engine's core, after the front end has begun to answer: a stream is a 200 by then. */
    struct mock_error late;
    size_t late_at; /* the prompts before this one are begun all the same */
};

/* Returns: 0, or -1 with *e. Either way mock_ask_free. The parser of `m` is used. */
int mock_read_ask(struct mock *m, enum mock_api api, const char *body, size_t len, struct mock_ask *out, struct mock_error *e);
void mock_ask_free(struct mock_ask *a);

/* The tokens that /tokenize tells of a body. Returns: 0, or -1 with *e. Owns: the caller, out->tokens. */
int mock_read_tokenize(struct mock *m, const char *body, size_t len, struct mock_prompt *out, bool *strings, struct mock_error *e);

/* Returns: -1. */
int mock_fail(struct mock_error *e, int status, const char *type, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void mock_put_error(struct kvr_buf *b, const struct mock_error *e);

#endif
