/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over a body's members; a value is looked at only when its name is one of the table's. */
#include "wire/handoff_members.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"
#include "wire/chat_writer.h"
#include "wire/lax.h"

enum member {
    N,
    BEST_OF,
    PROMPT,
    BEAM,
    MESSAGES,
    PROMPT_LOGPROBS,
    ECHO,
    LOGPROBS,
    MAX_TOKENS,
    MAX_COMPLETION_TOKENS,
    TOOL_CHOICE,
    RESPONSE_FORMAT,
    STREAM,
    STREAM_OPTIONS,
    GRAMMAR, /* the first of several */
    MEMBERS = GRAMMAR + 9
};

static const char *const names[MEMBERS] = {
    [N] = "n",
    [BEST_OF] = "best_of",
    [PROMPT] = "prompt",
    [BEAM] = "use_beam_search",
    [MESSAGES] = "messages",
    [PROMPT_LOGPROBS] = "prompt_logprobs",
    [ECHO] = "echo",
    [LOGPROBS] = "logprobs",
    [MAX_TOKENS] = "max_tokens",
    [MAX_COMPLETION_TOKENS] = "max_completion_tokens",
    [TOOL_CHOICE] = "tool_choice",
    [RESPONSE_FORMAT] = "response_format",
    [STREAM] = "stream",
    [STREAM_OPTIONS] = "stream_options",
    [GRAMMAR] = "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "regex",
    "ebnf",
    "json_schema",
    "structural_tag",
};

/* Members that are absent or null are none. */
static void pick(struct kvr_json_span object, const char *const *keys, size_t n, struct kvr_json_span *out)
{
    struct kvr_json_text_pair m;
    memset(out, 0, n * sizeof *out);
    for (const char *p = object.at; p && kvr_json_text_next(&p, object.end, &m);)
        for (size_t i = 0; i < n; i++)
            if (kvr_json_text_named(&m, keys[i])) out[i] = kvr_json_span_is(m.value, "null") ? (struct kvr_json_span){NULL, NULL} : m.value;
}

/* ---- values, as lenient as the engines are: a text that means a number is one --------------------------------------- */

/* A number or a word, without the quotes it may be in; false: it is longer than those are. */
static bool word_of(struct kvr_json_span v, char word[32])
{
    if (kvr_span_is_string(v)) v = kvr_chat_inside(v);
    size_t len = (size_t)(v.end - v.at);
    if (!v.at || len == 0 || len >= 32) return false;
    memcpy(word, v.at, len);
    word[len] = 0;
    return true;
}

static bool means(struct kvr_json_span v, const char *const words[5], double number)
{
    char word[32], *end;
    if (!word_of(v, word)) return false;
    for (size_t i = 0; i < 5; i++)
        if (strcasecmp(word, words[i]) == 0) return true;
    double d = strtod(word, &end);
    return *end == 0 && d == number;
}

static bool is_true(struct kvr_json_span v)
{
    return means(v, (const char *const[]){"true", "on", "t", "y", "yes"}, 1);
}

/* Also what is no flag here, as an engine may take it for one. */
static bool may_be_true(struct kvr_json_span v)
{
    return v.at && !means(v, (const char *const[]){"false", "off", "f", "n", "no"}, 0);
}

/* `otherwise`: it is absent. Numbers below 0 are 0; what is no number here is many, as an engine may take it for one. */
static uint64_t number_of(struct kvr_json_span v, uint64_t otherwise)
{
    static const uint64_t many = (uint64_t)9e15;
    char word[32], *end;
    int64_t n;
    if (!v.at) return otherwise;
    if (is_true(v)) return 1;
    if (kvr_span_is_string(v)) {
        struct kvr_json_span text = kvr_chat_inside(v);
        return !kvr_lax_text_i64(text.at, (size_t)(text.end - text.at), &n) ? many : n < 0 ? 0 : (uint64_t)n;
    }
    if (!word_of(v, word)) return many;
    double d = strtod(word, &end);
    if (*end || d != d) return many;
    return d <= 0 ? 0 : d >= 9e15 ? many : (uint64_t)d;
}

/* ---- what they mean ------------------------------------------------------------------------------------------------- */

/* One text, one list of tokens, or a list of several of either. */
static void count_prompts(struct kvr_json_span prompt, struct kvr_handoff_members *out)
{
    struct kvr_json_span item;
    uint64_t n = 0;
    out->prompts = 1;
    if (!kvr_span_is_list(prompt)) return;
    for (const char *p = prompt.at; kvr_json_text_item(&p, prompt.end, &item); n++) {
        if (n == 0) out->prompt_list = kvr_span_is_string(item) || kvr_span_is_list(item);
        if (!out->prompt_list) return;
    }
    if (n) out->prompts = n;
}

/* "required", or a name in an object; "auto" and "none" may be written either way. */
static bool forces_a_tool(struct kvr_json_span choice)
{
    static const char *const key[] = {"type"};
    struct kvr_json_span type;
    if (!kvr_span_is_object(choice)) return kvr_json_span_is(choice, "\"required\"");
    pick(choice, key, 1, &type);
    return !kvr_json_span_is(type, "\"auto\"") && !kvr_json_span_is(type, "\"none\"");
}

static bool wants_a_form(const struct kvr_json_span v[MEMBERS])
{
    static const char *const key[] = {"type"};
    struct kvr_json_span type;
    for (int i = GRAMMAR; i < MEMBERS; i++)
        if (v[i].at) return true;
    if (!v[RESPONSE_FORMAT].at) return false;
    pick(v[RESPONSE_FORMAT], key, 1, &type);
    return !kvr_json_span_is(type, "\"text\"");
}

static bool wants_usage(struct kvr_json_span options)
{
    static const char *const key[] = {"include_usage"};
    struct kvr_json_span include;
    if (!kvr_span_is_object(options)) return false;
    pick(options, key, 1, &include);
    return is_true(include);
}

/* Which of the two limits counts is another matter in each form: both must be that low. */
static bool is_one_token(struct kvr_json_span a, struct kvr_json_span b)
{
    return (a.at || b.at) && number_of(a, 1) <= 1 && number_of(b, 1) <= 1;
}

void kvr_handoff_members_read(struct kvr_json_span body, struct kvr_handoff_members *out)
{
    struct kvr_json_span v[MEMBERS];
    pick((struct kvr_json_span){kvr_json_text_space(body.at, body.end), body.end}, names, MEMBERS, v);
    *out = (struct kvr_handoff_members){
        .n = number_of(v[N], 1),
        .best_of = number_of(v[BEST_OF], 1),
        .beam_search = may_be_true(v[BEAM]),
        .chat = v[MESSAGES].at,
        .one_token = is_one_token(v[MAX_TOKENS], v[MAX_COMPLETION_TOKENS]),
        .forced_tools = forces_a_tool(v[TOOL_CHOICE]),
        .grammar = wants_a_form(v),
        .stream = is_true(v[STREAM]),
        .stream_usage = wants_usage(v[STREAM_OPTIONS]),
    };
    /* The echo of a chat counts as a wish for the prompt's logprobs, since their number is 0 without a word. */
    out->echo_logprobs = !v[PROMPT_LOGPROBS].at && may_be_true(v[ECHO]) && (out->chat || v[LOGPROBS].at);
    out->prompt_logprobs = v[PROMPT_LOGPROBS].at || out->echo_logprobs;
    count_prompts(v[PROMPT], out);
    out->room_list = out->prompt_list || (out->chat && out->n > 1);
    out->rooms = out->prompt_list ? out->prompts : out->chat && out->n > 1 ? out->n : 1;
}

/* SGLang takes a room for each answer of a chat, or for each prompt; others have one reader of P's blocks. */
const char *kvr_handoff_obstacle(const struct kvr_handoff_members *m, enum kvr_kv_protocol p)
{
    bool rooms = p == KVR_KV_SGLANG && m->rooms <= KVR_HANDOFF_ROOMS_MAX;
    if (m->n > 1 && !(rooms && m->chat)) return "n";
    if (m->best_of > 1 && p != KVR_KV_SGLANG) return "best_of";
    if (m->beam_search) return "use_beam_search";
    if (m->prompts > 1 && !rooms) return "prompt";
    if (m->prompt_logprobs) return m->echo_logprobs ? "echo" : "prompt_logprobs";
    return NULL;
}
