/* SPDX-License-Identifier: Apache-2.0 */
/* Puts token ids in the place of a prompt's text: wire/prompt_ids.h. */
#include "wire/prompt_ids.h"

#include "wire/chat_writer.h"

/* "...", or a list of one. */
static bool is_one_text(struct kvr_json_span prompt)
{
    struct kvr_json_span first, second;
    const char *p = prompt.at;
    if (!kvr_span_is_list(prompt)) return kvr_span_is_string(prompt);
    return kvr_json_text_item(&p, prompt.end, &first) && kvr_span_is_string(first) && !kvr_json_text_item(&p, prompt.end, &second);
}

bool kvr_prompt_ids_splice(struct kvr_json_span body, const uint32_t *ids, size_t n, struct kvr_buf *out)
{
    static const char *const name[] = {"prompt"};
    struct kvr_json_span prompt;
    if (!kvr_json_text_pick(body, name, 1, &prompt) || !prompt.at || !is_one_text(prompt)) return false;
    kvr_buf_add(out, body.at, (size_t)(prompt.at - body.at));
    bool comma = out->comma; /* as it was: these are pieces of a text */
    out->comma = false;
    kvr_json_open(out, '[');
    for (size_t i = 0; i < n; i++) kvr_json_u64(out, ids[i]);
    kvr_json_close(out, ']');
    out->comma = comma;
    kvr_buf_add(out, prompt.end, (size_t)(body.end - prompt.end));
    return true;
}
