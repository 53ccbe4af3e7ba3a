/* SPDX-License-Identifier: Apache-2.0 */
/* Questions for an engine's token ids: wire/engine_tokens.h. */
#include "wire/engine_tokens.h"

#include <string.h>

const char *kvr_engine_tokens_path(enum kvr_engine_tokens_way way, bool is_chat)
{
    if (way == KVR_TOKENS_TOKENIZE) return "/tokenize";
    return is_chat ? "/v1/chat/completions/render" : "/v1/completions/render";
}

void kvr_engine_tokens_question(enum kvr_engine_tokens_way way, const char *model, const char *members, struct kvr_buf *out)
{
    kvr_buf_str(out, "{\"model\":");
    out->comma = false; /* these are pieces of a text */
    kvr_json_str(out, model, strlen(model));
    if (way == KVR_TOKENS_RENDER) kvr_buf_str(out, ",\"max_tokens\":1");
    kvr_buf_printf(out, ",%s}", members);
}

enum kvr_engine_tokens_answer kvr_engine_tokens_judge(enum kvr_engine_tokens_way way, int status)
{
    bool missing = status == 404 || status == 405 || status == 501;
    if (way == KVR_TOKENS_RENDER && (missing || status == 403)) return KVR_TOKENS_OTHER_WAY; /* 403: vLLM without --enable-scale-out */
    if (missing) return KVR_TOKENS_NO_WAY;
    if (status >= 500 || status == 401 || status == 403 || status == 429) return KVR_TOKENS_LATER;
    return status == 200 ? KVR_TOKENS_ANSWERED : KVR_TOKENS_REFUSED;
}

/* `token_ids` of render, of a list the first's, or `tokens`. */
bool kvr_engine_tokens_read(struct kvr_json_parser *p, const char *text, size_t len, enum kvr_engine_tokens_way way, struct kvr_json *ids)
{
    struct kvr_json root;
    if (kvr_json_parse(p, text, len, &root, NULL)) return false;
    if (kvr_json_type_of(root) == KVR_JSON_ARRAY) root = kvr_json_at(root, 0);
    struct kvr_json list = kvr_json_get(root, way == KVR_TOKENS_RENDER ? "token_ids" : "tokens");
    if (kvr_json_type_of(list) != KVR_JSON_ARRAY || kvr_json_count(list) > KVR_ENGINE_TOKENS_MAX) return false;
    *ids = list;
    return true;
}
