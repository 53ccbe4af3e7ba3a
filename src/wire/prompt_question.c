/* SPDX-License-Identifier: Apache-2.0 */
/* A prompt as text: wire/prompt_question.h. */
#include "wire/prompt_question.h"

#include "wire/prompt_members.h"
#include "wire/tokenize_body.h"

bool kvr_prompt_is_text(struct kvr_json o)
{
    static const char *const others[] = {"token_ids", "tokens", "block_hashes", "sequence_hashes"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(others); i++)
        if (kvr_json_has(o, others[i])) return false;
    return kvr_json_has(o, "text") || kvr_json_has(o, "messages");
}

bool kvr_prompt_question(struct kvr_json o, const char *body, size_t len, struct kvr_buf *out, const char **why)
{
    enum kvr_prompt_form form = kvr_json_has(o, "messages") ? KVR_FORM_CHAT : KVR_FORM_GENERATE;
    struct kvr_prompt_members m;
    kvr_prompt_members_read(o, form, &m);
    *why = NULL;
    if (kvr_json_has(o, "messages") && kvr_json_has(o, "text")) *why = "`text` and `messages` are both given; allowed: one of them";
    else if (m.multimodal) *why = "`messages` has parts that are not text, whose tokens only the engine knows";
    else if (kvr_json_has(o, "truncate_prompt_tokens"))
        *why = "the prompt is truncated (truncate_prompt_tokens), which only the engine does";
    if (*why) return false;
    bool ok = kvr_tokenize_body((struct kvr_json_span){body, body + len}, form, out, &m.certainty);
    if (ok && m.certainty == KVR_PROMPT_EXACT) return true;
    *why = form == KVR_FORM_CHAT ? "`messages` must be a list of messages of a chat, with members whose effect on the prompt is known"
                                 : "`text` must be a text, with members whose effect on the prompt is known";
    return false;
}
