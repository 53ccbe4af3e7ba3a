/* SPDX-License-Identifier: Apache-2.0 */
#include "app/mock/state.h"

#include <string.h>

static uint32_t *text_tokens(const struct kvr_buf *text, size_t *n)
{
    uint32_t *t = malloc((text->len + 1) * sizeof *t);
    for (size_t i = 0; t && i < text->len; i++) t[i] = (unsigned char)text->data[i];
    *n = text->len;
    return t;
}

/* Tokens of a prompt, messages or token array. Returns: malloc'd, or NULL with *why. */
uint32_t *mock_request_tokens(const struct kvr_openai_request *rq, size_t *n, const char **why)
{
    struct kvr_buf text = {0};
    uint32_t *t;
    *why = "`prompt` or `messages` is required";
    if (rq->tokens.doc) {
        *why = "token ids must be whole numbers below 2^32";
        *n = rq->tokens_n;
        t = malloc((rq->tokens_n + 1) * sizeof *t);
        if (t && kvr_json_u32_array(rq->tokens, t, rq->tokens_n) < 0) {
            free(t);
            return NULL;
        }
        return t;
    }
    if (!kvr_openai_prompt_text(rq, &text)) return NULL;
    t = text_tokens(&text, n);
    kvr_buf_free(&text);
    return t;
}
