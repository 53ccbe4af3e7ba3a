/* SPDX-License-Identifier: Apache-2.0 */
/* One table of known members and what each does to the prompt and the cache; wire/prompt_members.h says how unknown ones count. */
#include "wire/prompt_members.h"

#include <string.h>

#include "base/base.h"
#include "wire/lax.h"
#include "wire/mm_parts.h"

/* What a member of that name does, whatever its value; the few whose value matters are READ. */
enum effect {
    NONE,     /* neither the prompt nor the cache depends on it */
    PROMPT,   /* part of the prompt, in a way that the engine's tokenizer can be asked for */
    READ,     /* see read_values */
    XARGS,    /* vllm_xargs: as CONNECTS; and read_xarg */
    CONNECTS, /* blocks may come from elsewhere, or an extension of the engine decides: tokens are known, the answer proves nothing */
    HIDES     /* other tokens than the text's, or another name space of the cache */
};

static const struct {
    const char *name;
    enum effect effect;
} members[] = {
    {"add_generation_prompt", PROMPT},
    {"add_special_tokens", READ},
    {"allowed_token_ids", NONE},
    {"audio_data", HIDES},
    {"background", CONNECTS},
    {"bad_words", NONE},
    {"best_of", NONE}, /* no engine reads it any more */
    {"bootstrap_host", CONNECTS},
    {"bootstrap_port", CONNECTS},
    {"bootstrap_room", CONNECTS},
    {"cache_salt", READ},
    {"chat_template", PROMPT},
    {"chat_template_kwargs", PROMPT},
    {"continue_final_message", PROMPT},
    {"custom_logit_processor", NONE},
    {"custom_params", NONE},
    {"data_parallel_rank", NONE},
    {"documents", PROMPT},
    {"ebnf", NONE},
    {"ec_transfer_params", CONNECTS},
    {"echo", READ},
    {"enable_response_messages", NONE},
    {"extra_key", HIDES},
    {"frequency_penalty", NONE},
    {"ignore_eos", NONE},
    {"image_data", HIDES},
    {"include", NONE},
    {"include_reasoning", NONE},
    {"include_stop_str_in_output", NONE},
    {"input", PROMPT},
    {"input_embeds", HIDES},
    {"input_ids", READ},
    {"instructions", PROMPT},
    {"json_schema", NONE},
    {"kv_transfer_params", READ},
    {"length_penalty", NONE},
    {"logit_bias", NONE},
    {"logprob_start_len", READ},
    {"logprob_token_ids", NONE},
    {"logprobs", READ},
    {"lora_path", HIDES},
    {"max_completion_tokens", READ},
    {"max_output_tokens", READ},
    {"max_tokens", READ},
    {"max_tool_calls", NONE},
    {"media_io_kwargs", PROMPT},
    {"messages", PROMPT},
    {"metadata", NONE},
    {"min_p", NONE},
    {"min_tokens", NONE},
    {"mm_processor_kwargs", PROMPT},
    {"model", PROMPT},
    {"multi_modal_data", HIDES},
    {"n", READ},
    {"nvext", READ},
    {"output_config", PROMPT},
    {"parallel_tool_calls", NONE},
    {"presence_penalty", NONE},
    {"previous_input_messages", HIDES},
    {"previous_response_id", HIDES},
    {"priority", NONE},
    {"prompt", READ},
    {"prompt_cache_key", NONE},
    {"prompt_embeds", HIDES},
    {"prompt_logprobs", READ},
    {"reasoning", PROMPT},
    {"reasoning_effort", PROMPT},
    {"regex", NONE},
    {"repetition_detection", NONE},
    {"repetition_penalty", NONE},
    {"request_id", NONE},
    {"response_format", NONE},
    {"return_hidden_states", NONE},
    {"return_logprob", READ},
    {"return_text_in_logprobs", NONE},
    {"return_token_ids", NONE},
    {"return_tokens_as_token_ids", NONE},
    {"rid", NONE},
    {"routed_dp_rank", NONE},
    {"sampling_params", READ},
    {"seed", NONE},
    {"separate_reasoning", NONE},
    {"service_tier", NONE},
    {"session_id", NONE},
    {"session_params", HIDES},
    {"skip_special_tokens", NONE},
    {"spaces_between_special_tokens", NONE},
    {"stop", NONE},
    {"stop_sequences", NONE},
    {"stop_token_ids", NONE},
    {"store", NONE},
    {"stream", NONE},
    {"stream_interval", NONE},
    {"stream_options", NONE},
    {"stream_reasoning", NONE},
    {"structured_outputs", NONE},
    {"suffix", HIDES},
    {"system", PROMPT},
    {"temperature", NONE},
    {"text", PROMPT},
    {"thinking", READ},
    {"thinking_token_budget", NONE},
    {"token_ids_logprob", NONE},
    {"tool_choice", READ},
    {"tools", PROMPT},
    {"top_k", NONE},
    {"top_logprobs", NONE},
    {"top_logprobs_num", NONE},
    {"top_p", NONE},
    {"truncate_prompt_tokens", READ},
    {"truncation", READ},
    {"truncation_side", READ},
    {"use_beam_search", READ},
    {"user", NONE},
    {"video_data", HIDES},
    {"vllm_xargs", XARGS},
    {"watermarking", NONE},
};

struct seen {
    bool unknown, connects, hides, reports;
};

/* Of members of one name any may say it. */
static bool asks_for_reports(struct kvr_json xargs)
{
    static const char mode[] = "kv_cache_report_mode";
    for (struct kvr_json_iter i = kvr_json_iter(xargs); i.members && kvr_json_next(&i);)
        if (i.key_len == sizeof mode - 1 && memcmp(i.key, mode, i.key_len) == 0 && kvr_json_is_str(i.value, "full")) return true;
    return false;
}

static void note_member(struct seen *s, const char *key, size_t key_len, struct kvr_json v)
{
    if (kvr_json_type_of(v) == KVR_JSON_NULL) return;
    size_t low = 0, high = KVR_ARRAY_LEN(members);
    while (low < high) {
        size_t mid = (low + high) / 2;
        int order = strncmp(members[mid].name, key, key_len);
        if (order == 0 && members[mid].name[key_len]) order = 1;
        if (order == 0) {
            s->connects |= members[mid].effect == CONNECTS || members[mid].effect == XARGS;
            s->reports |= members[mid].effect == XARGS && asks_for_reports(v);
            s->hides |= members[mid].effect == HIDES;
            return;
        }
        if (order < 0) low = mid + 1;
        else high = mid;
    }
    s->unknown = true;
}

/* ---- values ------------------------------------------------------------------------------------------ */

static void read_truncation(struct kvr_json keep, struct kvr_json side, struct kvr_prompt_members *out)
{
    if (!kvr_json_is_given(keep) || !kvr_lax_i64(keep, &out->keep)) return; /* what is no number is refused by the engine */
    out->truncation = KVR_TRUNCATE_DEFAULT;
    if (kvr_json_is_str(side, "left")) out->truncation = KVR_TRUNCATE_LEFT;
    if (kvr_json_is_str(side, "right")) out->truncation = KVR_TRUNCATE_RIGHT;
}

/* One text, one list of tokens, or a list of several of either. */
static void count_prompts(struct kvr_json prompt, struct kvr_prompt_members *out)
{
    enum kvr_json_type first = kvr_json_type_of(kvr_json_at(prompt, 0));
    bool list = kvr_json_type_of(prompt) == KVR_JSON_ARRAY && (first == KVR_JSON_STRING || first == KVR_JSON_ARRAY);
    out->prompts = list ? kvr_json_count(prompt) : 1;
    if (out->prompts == 1) return;
    out->usage_tells = false;
    out->certainty = KVR_PROMPT_UNKNOWN;
}

static bool has_text(struct kvr_json v)
{
    const char *s;
    size_t len;
    return kvr_json_as_str(v, &s, &len) && len > 0;
}

/* What the client says of the prompt beside the prompt, which other engines do not read. */
static bool is_claimed(struct kvr_json nvext)
{
    return kvr_json_has(nvext, "token_data") || kvr_json_has(nvext, "cache_salt");
}

/* With tool_choice "none" an engine may have been told to leave the tools out. */
static bool leaves_tools_out(struct kvr_json choice, struct kvr_json tools)
{
    struct kvr_json type = kvr_json_get(choice, "type"); /* of the Anthropic form */
    return kvr_json_is_given(tools) && kvr_json_is_str(kvr_json_is_given(type) ? type : choice, "none");
}

static bool is_not_one(struct kvr_json n)
{
    int64_t v;
    return kvr_json_is_given(n) && (!kvr_lax_i64(n, &v) || v != 1);
}

static bool is_not_zero(struct kvr_json n)
{
    int64_t v;
    return !kvr_lax_i64(n, &v) || v != 0;
}

/* Members that only completions and chats have. */
static void read_completion(struct kvr_json body, bool chat, struct kvr_prompt_members *out)
{
    enum { SPECIAL, ECHO, LOGPROBS, PROMPT_LOGPROBS, N, BEAM, KEEP, SIDE, MAX, MAX_COMPLETION, PROMPTS, NVEXT, ALL };
    static const char *const keys[ALL] = {"add_special_tokens",
                                          "echo",
                                          "logprobs",
                                          "prompt_logprobs",
                                          "n",
                                          "use_beam_search",
                                          "truncate_prompt_tokens",
                                          "truncation_side",
                                          "max_tokens",
                                          "max_completion_tokens",
                                          "prompt",
                                          "nvext"};
    struct kvr_json v[ALL];
    if (kvr_json_pick(body, keys, ALL, v) >= 0) out->as_evidence = false; /* two of one name: which one counts is the engine's business */
    out->special_tokens = kvr_lax_bool(v[SPECIAL], !chat);
    /* The echo of a chat counts as a wish for the prompt's logprobs, since their number is 0 without a word. */
    out->skips_cache = kvr_json_is_given(v[PROMPT_LOGPROBS]) || (kvr_lax_bool(v[ECHO], false) && (chat || kvr_json_is_given(v[LOGPROBS])));
    out->shows_prompt = kvr_lax_bool(v[ECHO], false);
    if (is_not_one(v[N]) || kvr_lax_bool(v[BEAM], kvr_json_is_given(v[BEAM]))) out->usage_tells = false;
    if (!chat) count_prompts(v[PROMPTS], out);
    read_truncation(v[KEEP], v[SIDE], out);
    out->wants_output = is_not_zero(kvr_json_is_given(v[MAX_COMPLETION]) && chat ? v[MAX_COMPLETION] : v[MAX]);
    if (is_claimed(v[NVEXT])) out->as_evidence = false;
}

static void read_responses(struct kvr_json body, struct kvr_prompt_members *out)
{
    struct kvr_json truncation = kvr_json_get(body, "truncation");
    out->special_tokens = true;
    out->wants_output = is_not_zero(kvr_json_get(body, "max_output_tokens"));
    if (kvr_json_type_of(truncation) == KVR_JSON_NONE || kvr_json_is_str(truncation, "disabled")) return;
    out->truncation = KVR_TRUNCATE_DEFAULT;
    out->keep = -1;
}

/* Without thinking the engine gives the template an effort that it has found out by trying. */
static void read_messages(struct kvr_json body, struct kvr_prompt_members *out)
{
    if (kvr_json_is_str(kvr_json_get(kvr_json_get(body, "thinking"), "type"), "disabled")) out->as_evidence = false;
}

static void read_generate(struct kvr_json body, struct kvr_prompt_members *out)
{
    int64_t from;
    struct kvr_json ids = kvr_json_get(body, "input_ids");
    out->special_tokens = true;
    out->skips_cache = kvr_lax_bool(kvr_json_get(body, "return_logprob"), false) &&
                       kvr_lax_i64(kvr_json_get(body, "logprob_start_len"), &from) && from >= 0;
    if (is_not_one(kvr_json_get(kvr_json_get(body, "sampling_params"), "n"))) out->usage_tells = false;
    count_prompts(kvr_json_is_given(ids) ? ids : kvr_json_get(body, "text"), out);
}

static void read_values(struct kvr_json body, enum kvr_prompt_form form, struct kvr_prompt_members *out)
{
    struct kvr_json salt = kvr_json_get(body, "cache_salt"), kv = kvr_json_get(body, "kv_transfer_params");
    out->usage_tells = out->as_evidence = out->wants_output = true;
    out->prompts = 1;
    switch (form) {
    case KVR_FORM_COMPLETION:
    case KVR_FORM_CHAT: read_completion(body, form == KVR_FORM_CHAT, out); break;
    case KVR_FORM_RESPONSES: read_responses(body, out); break;
    case KVR_FORM_MESSAGES: read_messages(body, out); break;
    case KVR_FORM_GENERATE: read_generate(body, out); break;
    }
    if (kvr_json_is_given(salt) && !has_text(salt)) out->certainty = KVR_PROMPT_UNKNOWN;
    if (kvr_json_is_given(kv)) out->as_evidence = false;
    if (kvr_json_has(kv, "prompt_token_ids")) out->certainty = KVR_PROMPT_UNKNOWN;
    if (leaves_tools_out(kvr_json_get(body, "tool_choice"), kvr_json_get(body, "tools"))) out->as_evidence = false;
    if (form != KVR_FORM_GENERATE && kvr_json_has(body, "input_ids")) out->certainty = KVR_PROMPT_UNKNOWN;
}

void kvr_prompt_members_read(struct kvr_json body, enum kvr_prompt_form form, struct kvr_prompt_members *out)
{
    struct seen seen = {0};
    memset(out, 0, sizeof *out);
    read_values(body, form, out);
    for (struct kvr_json_iter i = kvr_json_iter(body); kvr_json_next(&i);) note_member(&seen, i.key, i.key_len, i.value);
    if (form == KVR_FORM_CHAT && kvr_mm_parts_any(body)) {
        out->multimodal = true;
        out->certainty = KVR_MAX(out->certainty, KVR_PROMPT_LEADING);
    }
    out->reports = seen.reports;
    if (seen.hides) out->certainty = KVR_PROMPT_UNKNOWN;
    if (seen.hides || seen.unknown || seen.connects || !out->usage_tells || out->certainty != KVR_PROMPT_EXACT) out->as_evidence = false;
}
