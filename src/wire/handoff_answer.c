/* SPDX-License-Identifier: Apache-2.0 */
/* P's answer: parsed, for what is decided by it, and looked for in its text, for what is copied from it (wire/handoff.h). */
#include <string.h>

#include "wire/chat_writer.h"
#include "wire/handoff.h"
#include "wire/json_edit.h"
#include "wire/openai.h"

/* The first and only element. */
static struct kvr_json_span only_item(struct kvr_json_span list)
{
    struct kvr_json_span first = {NULL, NULL}, second;
    const char *p = list.at;
    if (!p || !kvr_json_text_item(&p, list.end, &first) || kvr_json_text_item(&p, list.end, &second))
        return (struct kvr_json_span){NULL, NULL};
    return first;
}

/* Absent and null are none; anything but an object is no hand-off. */
static enum kvr_handoff_read kind_of(struct kvr_json v)
{
    if (!kvr_json_is_given(v)) return KVR_HANDOFF_NONE;
    return kvr_json_type_of(v) == KVR_JSON_OBJECT ? KVR_HANDOFF_OK : KVR_HANDOFF_UNREADABLE;
}

/* A list with a number in it, of whatever depth: an empty one is to the engine as none. */
static bool has_blocks(struct kvr_json ids, struct kvr_json_span text)
{
    if (kvr_json_type_of(ids) != KVR_JSON_ARRAY) return false;
    for (const char *p = text.at; p < text.end; p++)
        if ((*p >= '0' && *p <= '9') || *p == '"') return true;
    return false;
}

/* Older builds have no remote_request_id; one that is null is missing. */
static enum kvr_handoff_read read_nixl(struct kvr_json root, struct kvr_json_span answer, struct kvr_handoff *out)
{
    struct kvr_json object = kvr_json_get(root, "kv_transfer_params");
    enum kvr_handoff_read read = kind_of(object);
    bool takes_over;
    if (read != KVR_HANDOFF_OK) return read;
    out->object = kvr_json_text_last(answer, "kv_transfer_params");
    bool whole = kvr_json_has(object, "remote_engine_id") && kvr_json_has(object, "remote_host") && kvr_json_has(object, "remote_port") &&
                 kvr_json_type_of(kvr_json_get(object, "remote_request_id")) != KVR_JSON_NULL &&
                 kvr_json_as_bool(kvr_json_get(object, "do_remote_prefill"), &takes_over) && takes_over &&
                 has_blocks(kvr_json_get(object, "remote_block_ids"), kvr_json_text_last(out->object, "remote_block_ids"));
    return whole ? KVR_HANDOFF_OK : KVR_HANDOFF_PARTIAL;
}

/* Whether P says that the answer is over, by a word of its own and not because of the one token. */
static bool has_ended(struct kvr_json choice)
{
    const char *s;
    size_t len;
    if (!kvr_json_as_str(kvr_json_get(choice, "finish_reason"), &s, &len)) return false;
    return !kvr_span_is(s, len, "length") && !kvr_span_is(s, len, "not_finished");
}

static enum kvr_handoff_read read_trtllm(struct kvr_json root, struct kvr_json_span answer, struct kvr_handoff *out)
{
    struct kvr_json choices = kvr_json_get(root, "choices"), choice = kvr_json_at(choices, 0);
    if (kvr_json_count(choices) != 1 || kvr_json_type_of(choice) != KVR_JSON_OBJECT)
        return kvr_json_is_given(choices) ? KVR_HANDOFF_UNREADABLE : KVR_HANDOFF_NONE;
    struct kvr_json object = kvr_json_get(choice, "disaggregated_params");
    enum kvr_handoff_read read = kind_of(object);
    out->ended = has_ended(choice);
    if (read == KVR_HANDOFF_OK) out->object = kvr_json_text_last(only_item(kvr_json_text_last(answer, "choices")), "disaggregated_params");
    if (out->ended || read != KVR_HANDOFF_OK) return out->ended ? KVR_HANDOFF_OK : read;
    bool whole = kvr_json_has(object, "ctx_request_id") && kvr_json_has(object, "disagg_request_id");
    return whole ? KVR_HANDOFF_OK : KVR_HANDOFF_PARTIAL;
}

static void read_common(struct kvr_json root, struct kvr_json_span answer, struct kvr_handoff *out)
{
    struct kvr_usage usage;
    struct kvr_json_span ids = kvr_json_text_last(answer, "prompt_token_ids"), told = kvr_json_text_last(answer, "usage");
    kvr_openai_usage(root, &usage);
    out->has_cached = usage.present && usage.has_cached;
    out->cached_tokens = out->has_cached ? usage.cached_tokens : 0;
    out->prompt_tokens = usage.present ? usage.prompt_tokens : 0;
    if (kvr_span_is_list(ids)) out->prompt_token_ids = ids;
    if (kvr_span_is_object(told)) out->usage = told;
}

static enum kvr_handoff_read read_parsed(enum kvr_kv_protocol p, struct kvr_json root, struct kvr_json_span answer, struct kvr_handoff *out)
{
    if (kvr_json_type_of(root) != KVR_JSON_OBJECT) return KVR_HANDOFF_UNREADABLE;
    read_common(root, answer, out);
    if (p == KVR_KV_VLLM_NIXL) return read_nixl(root, answer, out);
    return p == KVR_KV_TRTLLM ? read_trtllm(root, answer, out) : KVR_HANDOFF_OK;
}

enum kvr_handoff_read kvr_handoff_read(enum kvr_kv_protocol p, struct kvr_json_span answer, struct kvr_handoff *out)
{
    struct kvr_json_parser *parser = kvr_json_parser_new();
    struct kvr_json root;
    enum kvr_handoff_read read = KVR_HANDOFF_UNREADABLE;
    memset(out, 0, sizeof *out);
    answer.at = kvr_json_text_space(answer.at, answer.end);
    if (parser && kvr_json_parse(parser, answer.at, (size_t)(answer.end - answer.at), &root, NULL) == 0)
        read = read_parsed(p, root, answer, out);
    kvr_json_parser_free(parser);
    return read;
}

/* ---- the bootstrap server -------------------------------------------------------------------------------------------- */

static bool take_name(const char *s, size_t len, char *out, size_t cap)
{
    if (len == 0 || len >= cap || memchr(s, 0, len)) return false;
    memcpy(out, s, len);
    out[len] = 0;
    return true;
}

/* {"0": {"engine_id": E, ...}, ...}; an older build has one rank, with E in the place of its number. */
bool kvr_handoff_engine_of(struct kvr_json query, uint32_t rank, char *out, size_t cap)
{
    char number[16];
    const char *s;
    size_t len;
    if (kvr_json_type_of(query) != KVR_JSON_OBJECT) return false;
    snprintf(number, sizeof number, "%u", rank);
    struct kvr_json place = kvr_json_get(query, number);
    if (kvr_json_as_str(kvr_json_get(place, "engine_id"), &s, &len)) return take_name(s, len, out, cap);
    struct kvr_json_iter only = kvr_json_iter(query);
    if (rank || kvr_json_type_of(place) != KVR_JSON_NONE || kvr_json_count(query) != 1) return false;
    return kvr_json_next(&only) && take_name(only.key, only.key_len, out, cap);
}

/* ---- an answer that needs no D -------------------------------------------------------------------------------------- */

static struct kvr_json_edit edit_span(const char *name, struct kvr_json_span value)
{
    return (struct kvr_json_edit){.name = name, .value = value.at, .value_len = (size_t)(value.end - value.at)};
}

/* The one choice, with these edits, as the list of choices. */
static bool edited_choices(struct kvr_json_span answer, const struct kvr_json_edit *edits, size_t n, struct kvr_buf *out)
{
    struct kvr_json_span choice = only_item(kvr_json_text_last(answer, "choices"));
    kvr_buf_str(out, "[");
    bool done = choice.at && kvr_json_edit(choice, edits, n, out);
    kvr_buf_str(out, "]");
    return done;
}

bool kvr_handoff_ended_answer(struct kvr_json_span answer, struct kvr_buf *out)
{
    static const struct kvr_json_edit inner[] = {{.name = "disaggregated_params"}};
    struct kvr_buf choices = {0};
    bool done = false;
    answer.at = kvr_json_text_space(answer.at, answer.end);
    if (edited_choices(answer, inner, 1, &choices) && !choices.failed) {
        struct kvr_json_edit outer = edit_span("choices", (struct kvr_json_span){choices.data, choices.data + choices.len});
        done = kvr_json_edit(answer, &outer, 1, out);
    }
    if (choices.failed) out->failed = true;
    kvr_buf_free(&choices);
    return done || out->failed;
}

/* Lines end events: line ends between the members become spaces. In a text of JSON there are none. */
static void join_lines(struct kvr_buf *b, size_t from)
{
    for (size_t i = from; i < b->len; i++)
        if (b->data[i] == '\n' || b->data[i] == '\r') b->data[i] = ' ';
}

/* An event of the answer's members, with these choices; with its usage when it has no choices. */
static bool put_event(struct kvr_json_span answer, bool chat, struct kvr_json_span choices, bool usage, struct kvr_buf *out)
{
    static const char object[] = "\"chat.completion.chunk\"";
    struct kvr_json_edit edits[4] = {edit_span("choices", choices), {.name = "prompt_token_ids"}};
    size_t n = 2, from;
    if (chat) edits[n++] = (struct kvr_json_edit){.name = "object", .value = object, .value_len = sizeof object - 1};
    if (!usage) edits[n++] = (struct kvr_json_edit){.name = "usage"};
    kvr_buf_str(out, "data: ");
    from = out->len;
    bool done = kvr_json_edit(answer, edits, n, out);
    join_lines(out, from);
    kvr_buf_str(out, "\n\n");
    return done;
}

/* The choice of a chunk: of a chat its message is called delta. */
static bool chunk_choices(struct kvr_json_span answer, bool chat, struct kvr_buf *out)
{
    struct kvr_json_span message = kvr_json_text_last(only_item(kvr_json_text_last(answer, "choices")), "message");
    struct kvr_json_edit edits[3] = {{.name = "disaggregated_params"}};
    size_t n = 1;
    if (chat && message.at) {
        edits[n++] = (struct kvr_json_edit){.name = "message"};
        edits[n++] = edit_span("delta", message);
    }
    return edited_choices(answer, edits, n, out);
}

bool kvr_handoff_ended_stream(struct kvr_json_span answer, bool chat, bool usage, struct kvr_buf *out)
{
    static const char no_choices[] = "[]";
    struct kvr_buf choices = {0};
    size_t before = out->len;
    answer.at = kvr_json_text_space(answer.at, answer.end);
    bool done = chunk_choices(answer, chat, &choices) && !choices.failed &&
                put_event(answer, chat, (struct kvr_json_span){choices.data, choices.data + choices.len}, false, out);
    if (done && usage && kvr_json_text_last(answer, "usage").at)
        done = put_event(answer, chat, (struct kvr_json_span){no_choices, no_choices + 2}, true, out);
    if (done) kvr_buf_str(out, "data: [DONE]\n\n");
    else out->len = before;
    if (choices.failed) out->failed = true;
    kvr_buf_free(&choices);
    return done || out->failed;
}
