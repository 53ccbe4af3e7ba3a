/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/completions/render and /v1/chat/completions/render: the tokens that a request would be computed with. vLLM has them with
 * --enable-scale-out; releases before that switch had them always. Routers that match blocks ask them for token ids. */
#include "app/mock/generate.h"

static void put_rendered(struct kvr_buf *b, const struct mock_ask *a, const struct mock_prompt *p, uint64_t id)
{
    kvr_json_printf(b, a->api == MOCK_CHAT ? "{'request_id':'chatcmpl-%ju','token_ids':" : "{'request_id':'cmpl-%ju','token_ids':", id);
    kvr_json_u32s(b, p->tokens, p->n);
    kvr_json_printf(b,
                    "'token_offsets':null,'features':null,'sampling_params':{'n':%u,'max_tokens':%ju},'model':%s,'stream':%i,"
                    "'cache_salt':%p,'priority':0,'kv_transfer_params':null}",
                    a->n, a->max_tokens, a->model, a->stream, a->salt[0] ? a->salt : NULL);
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
