/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the body of a /tokenize question, one form after the other; wire/tokenize_body.h says what goes into it. */
#include "wire/tokenize_body.h"

#include <string.h>

#include "wire/chat_forms.h"
#include "wire/chat_writer.h"

/* ---- completions ------------------------------------------------------------------------------------- */

/* The first of a list: what the others have in common with it they have in common with what is known of it. */
static struct kvr_json_span first_of(struct kvr_json_span prompt, enum kvr_prompt_certainty *certainty)
{
    struct kvr_json_span first = {NULL, NULL}, second;
    const char *p = prompt.at;
    if (!kvr_span_is_list(prompt)) return prompt;
    if (kvr_json_text_item(&p, prompt.end, &first) && kvr_span_is_string(first) && kvr_json_text_item(&p, prompt.end, &second))
        *certainty = KVR_PROMPT_UNKNOWN;
    return first;
}

static bool completion(struct kvr_json_span body, const char *prompt, struct kvr_buf *out, enum kvr_prompt_certainty *certainty)
{
    enum { MODEL, PROMPT, SPECIAL, ALL };
    const char *const names[ALL] = {"model", prompt, "add_special_tokens"};
    struct kvr_json_span v[ALL];
    if (!kvr_json_text_pick(body, names, ALL, v)) return false;
    kvr_chat_begin(out, v[MODEL]);
    struct kvr_json_span first = first_of(v[PROMPT], certainty);
    if (!kvr_span_is_string(first)) return false;
    kvr_chat_member(out, "prompt", first);
    kvr_chat_member(out, "add_special_tokens", v[SPECIAL]);
    kvr_buf_str(out, "}");
    return true;
}

/* Of two members of one name the engine's reader takes the last. */
void kvr_tokenize_body_bare(struct kvr_json_span ask, struct kvr_buf *out)
{
    kvr_buf_add(out, ask.at, (size_t)(ask.end - ask.at) - 1);
    kvr_buf_str(out, ",\"add_special_tokens\":false}");
}

/* ---- chat -------------------------------------------------------------------------------------------- */

static bool begins(const char *p, const char *end, const char *what)
{
    size_t len = strlen(what);
    return (size_t)(end - p) >= len && memcmp(p, what, len) == 0;
}

/* A message; the old name of its reasoning is written as the one that the engine's chat gives it, and its /tokenize does not. */
static bool write_message(struct kvr_json_span message, struct kvr_buf *out)
{
    static const char *const names[] = {"reasoning", "reasoning_content"};
    struct kvr_json_span v[2];
    struct kvr_json_text_pair m;
    if (!memmem(message.at, (size_t)(message.end - message.at), "\"reasoning_content\"", 19) || *message.at != '{') {
        kvr_buf_add(out, message.at, (size_t)(message.end - message.at));
        return true;
    }
    if (!kvr_json_text_pick(message, names, 2, v)) return false;
    kvr_buf_str(out, "{");
    size_t start = out->len;
    for (const char *p = message.at; kvr_json_text_next(&p, message.end, &m);) {
        bool old = m.key_len == 17 && begins(m.key, message.end, "reasoning_content");
        bool now = m.key_len == 9 && begins(m.key, message.end, "reasoning");
        if ((old && (v[0].at || !v[1].at)) || (now && !v[0].at)) continue;
        kvr_buf_printf(out, "%s\"%.*s\":", out->len > start ? "," : "", old ? 9 : (int)m.key_len, old ? "reasoning" : m.key);
        kvr_buf_add(out, m.value.at, (size_t)(m.value.end - m.value.at));
    }
    kvr_buf_str(out, "}");
    return true;
}

static bool write_messages(struct kvr_json_span messages, struct kvr_buf *out)
{
    struct kvr_json_span v;
    if (!messages.at || *messages.at != '[') return false;
    kvr_chat_name(out, "messages");
    kvr_buf_str(out, "[");
    size_t start = out->len;
    for (const char *p = messages.at; kvr_json_text_item(&p, messages.end, &v);) {
        if (out->len > start) kvr_buf_str(out, ",");
        if (!write_message(v, out)) return false;
    }
    kvr_buf_str(out, "]");
    return true;
}

static bool chat(struct kvr_json_span body, struct kvr_buf *out)
{
    enum { MODEL, MESSAGES, TOOLS, TEMPLATE, ARGS, GENERATION, CONTINUE, SPECIAL, MEDIA, PROCESSOR, DOCUMENTS, EFFORT, ALL };
    static const char *const names[ALL] = {"model",
                                           "messages",
                                           "tools",
                                           "chat_template",
                                           "chat_template_kwargs",
                                           "add_generation_prompt",
                                           "continue_final_message",
                                           "add_special_tokens",
                                           "media_io_kwargs",
                                           "mm_processor_kwargs",
                                           "documents",
                                           "reasoning_effort"};
    struct kvr_json_span v[ALL];
    if (!kvr_json_text_pick(body, names, ALL, v)) return false;
    kvr_chat_begin(out, v[MODEL]);
    if (!write_messages(v[MESSAGES], out)) return false;
    kvr_chat_member(out, "tools", v[TOOLS]);
    kvr_chat_member(out, "chat_template", v[TEMPLATE]);
    for (int i = GENERATION; i <= PROCESSOR; i++) kvr_chat_member(out, names[i], v[i]);
    kvr_chat_arguments(out, v[ARGS], v[EFFORT], v[DOCUMENTS]);
    kvr_buf_str(out, "}");
    return true;
}

bool kvr_tokenize_body(struct kvr_json_span body, enum kvr_prompt_form form, struct kvr_buf *out, enum kvr_prompt_certainty *certainty)
{
    bool made = false;
    switch (form) {
    case KVR_FORM_COMPLETION: made = completion(body, "prompt", out, certainty); break;
    case KVR_FORM_GENERATE: made = completion(body, "text", out, certainty); break;
    case KVR_FORM_CHAT: made = chat(body, out); break;
    case KVR_FORM_RESPONSES: made = kvr_chat_of_responses(body, out, certainty); break;
    case KVR_FORM_MESSAGES: made = kvr_chat_of_messages(body, out, certainty); break;
    }
    return made && !out->failed;
}

/* ---- SGLang ------------------------------------------------------------------------------------------ */

static bool chat_for_sglang(struct kvr_json_span body, struct kvr_buf *out)
{
    enum { MODEL, MESSAGES, ALL = 9 };
    static const char *const names[ALL] = {
        "model",     "messages",         "tools",    "tool_choice", "chat_template_kwargs", "continue_final_message",
        "reasoning", "reasoning_effort", "input_ids"};
    struct kvr_json_span v[ALL];
    if (!kvr_json_text_pick(body, names, ALL, v) || !v[MESSAGES].at || *v[MESSAGES].at != '[') return false;
    kvr_chat_begin(out, v[MODEL]);
    for (int i = MESSAGES; i < ALL; i++) kvr_chat_member(out, names[i], v[i]);
    kvr_buf_str(out, "}");
    return true;
}

static bool completion_for_sglang(struct kvr_json_span body, struct kvr_buf *out, enum kvr_prompt_certainty *certainty)
{
    static const char *const names[] = {"model", "prompt"};
    struct kvr_json_span v[2];
    if (!kvr_json_text_pick(body, names, 2, v)) return false;
    kvr_chat_begin(out, v[0]);
    struct kvr_json_span first = first_of(v[1], certainty);
    if (!kvr_span_is_string(first)) return false;
    kvr_chat_member(out, "prompt", first);
    kvr_buf_str(out, "}");
    return true;
}

bool kvr_tokenize_body_sglang(struct kvr_json_span body, enum kvr_prompt_form form, struct kvr_buf *out,
                              enum kvr_prompt_certainty *certainty)
{
    bool made;
    if (form == KVR_FORM_CHAT) made = chat_for_sglang(body, out);
    else if (form == KVR_FORM_COMPLETION) made = completion_for_sglang(body, out, certainty);
    else return kvr_tokenize_body(body, form, out, certainty);
    return made && !out->failed;
}
