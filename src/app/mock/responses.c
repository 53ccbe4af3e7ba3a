/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of /v1/responses that a later request names, when --responses-store is on: the last KEPT of them. */
#include "app/mock/generate.h"

#include <string.h>

enum { KEPT = 256 };

struct mock_response {
    uint64_t id;
    struct kvr_buf text; /* of the conversation so far */
};

void mock_store_response(struct mock *m, uint64_t id, const struct kvr_buf *prompt, const struct kvr_buf *answer)
{
    if (!m->o->responses_store) return;
    if (!m->responses) m->responses = calloc(KEPT, sizeof *m->responses);
    if (!m->responses) return;
    struct mock_response *r = &m->responses[id % KEPT];
    kvr_buf_free(&r->text);
    r->id = id;
    kvr_buf_add(&r->text, prompt->data, prompt->len);
    kvr_buf_add(&r->text, answer->data, answer->len);
    kvr_buf_str(&r->text, "<|end|>\n");
}

const struct kvr_buf *mock_response_text(const struct mock *m, const char *id, size_t len)
{
    char text[32] = {0};
    if (!m->responses || len < 6 || len >= sizeof text || memcmp(id, "resp_", 5) != 0) return NULL;
    memcpy(text, id + 5, len - 5);
    uint64_t n = strtoull(text, NULL, 16);
    const struct mock_response *r = &m->responses[n % KEPT];
    return r->id == n && n ? &r->text : NULL;
}

void mock_free_responses(struct mock *m)
{
    for (size_t i = 0; m->responses && i < KEPT; i++) kvr_buf_free(&m->responses[i].text);
    free(m->responses);
}

void mock_get_response(struct mock *m, struct kvr_http_conn *c, struct kvr_text id)
{
    struct mock_error e = {0};
    struct kvr_buf b = {0};
    char text[80];
    snprintf(text, sizeof text, "%.*s", (int)KVR_MIN(id.len, sizeof text - 1), id.ptr);
    if (!mock_response_text(m, id.ptr, id.len)) {
        mock_fail(&e, 404, "invalid_request_error", "response_id", "Response with id '%s' not found.", text);
        mock_put_error(&b, &e);
        mock_reply_json(c, 404, &b);
        return;
    }
    kvr_json_printf(&b, "{'id':%s,'object':'response','status':'completed'}", text);
    mock_reply_json(c, 200, &b);
}
