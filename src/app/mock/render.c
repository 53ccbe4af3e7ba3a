/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/completions/render and /v1/chat/completions/render: the tokens that a request would be computed with. vLLM has them with
 * --enable-scale-out; releases before that switch had them always. Routers that match blocks ask them for token ids. */
#include "app/mock/generate.h"

#include <string.h>

static void put_rendered(struct kvr_buf *b, const struct mock_ask *a, const struct mock_prompt *p, uint64_t id)
{
    char name[48];
    snprintf(name, sizeof name, "%s-%llu", a->api == MOCK_CHAT ? "chatcmpl" : "cmpl", (unsigned long long)id);
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "request_id", name);
    kvr_json_key(b, "token_ids");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < p->n; i++) kvr_json_u64(b, p->tokens[i]);
    kvr_json_close(b, ']');
    kvr_json_key(b, "token_offsets");
    kvr_json_null(b);
    kvr_json_key(b, "features");
    kvr_json_null(b);
    kvr_json_key(b, "sampling_params");
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "n", a->n);
    kvr_json_put_u64(b, "max_tokens", a->max_tokens);
    kvr_json_close(b, '}');
    kvr_json_put_str(b, "model", a->model);
    kvr_json_key(b, "stream");
    kvr_json_bool(b, a->stream);
    kvr_json_key(b, "cache_salt");
    if (a->salt[0]) kvr_json_str(b, a->salt, strlen(a->salt));
    else kvr_json_null(b);
    kvr_json_put_u64(b, "priority", 0);
    kvr_json_key(b, "kv_transfer_params");
    kvr_json_null(b);
    kvr_json_close(b, '}');
}

/* A chat is one object, completions are a list of one for each prompt. */
void mock_render(struct mock *m, struct kvr_http_conn *c, enum mock_api api)
{
    const struct kvr_http_request *http = kvr_http_conn_request(c);
    struct mock_ask ask;
    struct mock_error e = {0};
    struct kvr_buf b = {0};
    int rc = mock_read_ask(m, api, http->body, http->body_len, &ask, &e);
    if (rc) {
        mock_put_api_error(&b, api, &e);
    } else {
        if (api != MOCK_CHAT) kvr_json_open(&b, '[');
        for (size_t i = 0; i < ask.prompts_n; i++) put_rendered(&b, &ask, &ask.prompts[i], ++m->next_id);
        if (api != MOCK_CHAT) kvr_json_close(&b, ']');
    }
    mock_ask_free(&ask);
    mock_reply_json(c, rc ? e.status : 200, &b);
}
