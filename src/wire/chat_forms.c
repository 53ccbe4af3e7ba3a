/* SPDX-License-Identifier: Apache-2.0 */
/* Turns /v1/responses and /v1/messages into chat messages, item by item; wire/chat_forms.h says what is certain. */
#include "wire/chat_forms.h"

#include <string.h>

#include "wire/chat_writer.h"

/* The messages so far. The one that is open is an assistant's, to which the next item may add. */
struct chat {
    struct kvr_buf *out;
    size_t messages;
    bool open, has_content, has_calls;
    bool doubtful; /* something was left out, or is written in a way that is not known */
};

static struct kvr_json_span pick_one(struct chat *c, struct kvr_json_span object, const char *name)
{
    struct kvr_json_span v;
    if (!kvr_json_text_pick(object, &name, 1, &v)) c->doubtful = true;
    return v;
}

static bool text_is(struct kvr_json_span v, const char *text) /* of a string's inside */
{
    struct kvr_json_span in = kvr_span_is_string(v) ? kvr_chat_inside(v) : (struct kvr_json_span){NULL, NULL};
    return kvr_json_span_is(in, text);
}

static bool is_empty_text(struct kvr_json_span v)
{
    return kvr_json_span_is(v, "\"\"");
}

/* ---- messages ---------------------------------------------------------------------------------------- */

static void close_message(struct chat *c)
{
    if (!c->open) return;
    kvr_buf_str(c->out, c->has_calls ? "]}" : "}");
    c->open = c->has_content = c->has_calls = false;
}

/* Leaves the message open. */
static void begin_message(struct chat *c, const char *role)
{
    close_message(c);
    kvr_buf_printf(c->out, "%s{\"role\":\"%s\"", c->messages++ ? "," : "", role);
}

static void whole_message(struct chat *c, const char *role, struct kvr_json_span content)
{
    begin_message(c, role);
    kvr_chat_member(c->out, "content", content);
    kvr_buf_str(c->out, "}");
}

/* Text of the assistant's: the open message's when that has none. Calls are last in a message, as its text comes before them; what
 * comes the other way round is another message to some templates and the same to others. */
static void assistant_text(struct chat *c, struct kvr_json_span text)
{
    if (c->open && !c->has_content && c->has_calls) c->doubtful = true;
    if (!c->open || c->has_content || c->has_calls) {
        begin_message(c, "assistant");
        c->open = true;
    }
    kvr_chat_member(c->out, "content", text);
    c->has_content = true;
}

/* A call of a function; `arguments` is a string, or an object that a string is made of. */
static void assistant_call(struct chat *c, struct kvr_json_span id, struct kvr_json_span name, struct kvr_json_span arguments)
{
    if (!c->open) {
        begin_message(c, "assistant");
        c->open = true;
    }
    kvr_buf_str(c->out, c->has_calls ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
    kvr_span_add(c->out, id);
    kvr_buf_str(c->out, ",\"type\":\"function\",\"function\":{\"name\":");
    kvr_span_add(c->out, name);
    kvr_buf_str(c->out, ",\"arguments\":");
    if (kvr_span_is_string(arguments)) kvr_span_add(c->out, arguments);
    else if (arguments.at) kvr_chat_quoted(c->out, arguments);
    else kvr_buf_str(c->out, "\"{}\"");
    kvr_buf_str(c->out, "}}");
    c->has_calls = true;
}

static void tool_result(struct chat *c, struct kvr_json_span id, struct kvr_json_span content)
{
    begin_message(c, "tool");
    if (id.at) kvr_chat_member(c->out, "tool_call_id", id);
    else kvr_buf_str(c->out, ",\"tool_call_id\":\"\"");
    kvr_chat_member(c->out, "content", content);
    kvr_buf_str(c->out, "}");
}

static enum kvr_prompt_certainty certainty_of(const struct chat *c)
{
    return c->doubtful ? KVR_PROMPT_UNKNOWN : KVR_PROMPT_EXACT;
}

static bool finish(struct chat *c, enum kvr_prompt_certainty *certainty)
{
    kvr_buf_str(c->out, "}");
    *certainty = KVR_MAX(*certainty, certainty_of(c));
    return c->messages > 0;
}

/* ---- tools ------------------------------------------------------------------------------------------- */

/* A function with its members, some of them renamed: from[i] is written as to[i]. */
static void write_function(struct chat *c, struct kvr_json_span tool, const char *const *from, const char *const *to, size_t n, bool first)
{
    struct kvr_json_span v[8];
    KVR_ASSERT(n <= KVR_ARRAY_LEN(v));
    if (!kvr_json_text_pick(tool, from, n, v)) c->doubtful = true;
    kvr_buf_printf(c->out, "%s{\"type\":\"function\",\"function\":{", first ? "" : ",");
    const char *comma = "";
    for (size_t i = 0; i < n; i++) {
        if (!v[i].at) continue;
        kvr_buf_printf(c->out, "%s\"%s\":", comma, to[i]);
        kvr_span_add(c->out, v[i]);
        comma = ",";
    }
    kvr_buf_str(c->out, "}}");
}

/* ---- /v1/responses ----------------------------------------------------------------------------------- */

/* Of an assistant's message the first part counts. */
static void responses_assistant(struct chat *c, struct kvr_json_span content)
{
    struct kvr_json_span part = {NULL, NULL}, text = content;
    if (kvr_span_is_list(content)) {
        const char *p = content.at;
        if (kvr_json_text_item(&p, content.end, &part)) text = pick_one(c, part, "text");
    }
    if (!kvr_span_is_string(text)) c->doubtful = true;
    else assistant_text(c, text);
}

/* Texts only: what else there is of parts has another effect for every model. They are written as /tokenize knows them. */
static void responses_content(struct chat *c, struct kvr_json_span content)
{
    enum { TYPE, TEXT, ALL };
    static const char *const names[ALL] = {"type", "text"};
    struct kvr_json_span part, v[ALL];
    const char *comma = "";
    kvr_buf_str(c->out, ",\"content\":[");
    for (const char *p = content.at; kvr_json_text_item(&p, content.end, &part);) {
        if (!kvr_span_is_object(part) || !kvr_json_text_pick(part, names, ALL, v) || !kvr_span_is_string(v[TEXT]) ||
            !(text_is(v[TYPE], "input_text") || text_is(v[TYPE], "text"))) {
            c->doubtful = true;
            continue;
        }
        kvr_buf_printf(c->out, "%s{\"type\":\"text\",\"text\":", comma);
        kvr_span_add(c->out, v[TEXT]);
        kvr_buf_str(c->out, "}");
        comma = ",";
    }
    kvr_buf_str(c->out, "]");
}

static void responses_message(struct chat *c, struct kvr_json_span role, struct kvr_json_span content)
{
    static const char *const roles[] = {"user", "system", "developer"};
    if (text_is(role, "assistant")) {
        responses_assistant(c, content);
        return;
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(roles); i++)
        if (text_is(role, roles[i])) {
            if (kvr_span_is_string(content)) {
                whole_message(c, roles[i], content);
            } else {
                begin_message(c, roles[i]);
                if (kvr_span_is_list(content)) responses_content(c, content);
                kvr_buf_str(c->out, "}");
            }
            return;
        }
    c->doubtful = true;
}

enum { I_TYPE, I_ROLE, I_CONTENT, I_ID, I_NAME, I_ARGUMENTS, I_OUTPUT, I_ALL }; /* members of an item */

/* The engine gives its template the members of a call in another order than /tokenize does, and some templates write all of them out. */
static void responses_call(struct chat *c, const struct kvr_json_span v[I_ALL])
{
    c->doubtful = true;
    assistant_call(c, v[I_ID], v[I_NAME], v[I_ARGUMENTS]);
}

static void responses_item(struct chat *c, struct kvr_json_span item)
{
    static const char *const names[I_ALL] = {"type", "role", "content", "call_id", "name", "arguments", "output"};
    struct kvr_json_span v[I_ALL];
    if (!kvr_span_is_object(item) || !kvr_json_text_pick(item, names, I_ALL, v)) c->doubtful = true;
    else if (v[I_ROLE].at && (!v[I_TYPE].at || text_is(v[I_TYPE], "message"))) responses_message(c, v[I_ROLE], v[I_CONTENT]);
    else if (text_is(v[I_TYPE], "function_call") && v[I_ID].at && v[I_NAME].at && kvr_span_is_string(v[I_ARGUMENTS])) responses_call(c, v);
    else if (text_is(v[I_TYPE], "function_call_output") && kvr_span_is_string(v[I_OUTPUT])) tool_result(c, v[I_ID], v[I_OUTPUT]);
    else c->doubtful = true;
}

/* Of the last item: is it one that the model goes on with? */
static bool goes_on(struct chat *c, struct kvr_json_span input)
{
    struct kvr_json_span item, last = {NULL, NULL};
    for (const char *p = input.at; kvr_span_is_list(input) && kvr_json_text_item(&p, input.end, &item);) last = item;
    struct kvr_json_span status = kvr_span_is_object(last) ? pick_one(c, last, "status") : (struct kvr_json_span){NULL, NULL};
    return text_is(status, "in_progress") || text_is(status, "incomplete");
}

static void responses_tools(struct chat *c, struct kvr_json_span tools)
{
    static const char *const members[] = {"name", "description", "parameters", "strict"};
    struct kvr_json_span tool;
    size_t n = 0;
    if (!kvr_span_is_list(tools) || kvr_json_span_is(tools, "[]")) return;
    kvr_buf_str(c->out, ",\"tools\":[");
    for (const char *p = tools.at; kvr_json_text_item(&p, tools.end, &tool);) {
        if (text_is(pick_one(c, tool, "type"), "function")) write_function(c, tool, members, members, KVR_ARRAY_LEN(members), n++ == 0);
        else c->doubtful = true;
    }
    kvr_buf_str(c->out, "]");
}

bool kvr_chat_of_responses(struct kvr_json_span body, struct kvr_buf *out, enum kvr_prompt_certainty *certainty)
{
    enum { MODEL, INPUT, INSTRUCTIONS, TOOLS, ARGS, REASONING, PREVIOUS, ALL };
    static const char *const names[ALL] = {
        "model", "input", "instructions", "tools", "chat_template_kwargs", "reasoning", "previous_response_id"};
    struct kvr_json_span v[ALL], item, none = {NULL, NULL};
    struct chat c = {.out = out};
    if (!kvr_json_text_pick(body, names, ALL, v)) return false;
    if (v[PREVIOUS].at || !v[INPUT].at) return false; /* what it goes on from is the engine's */
    kvr_chat_begin(out, v[MODEL]);
    kvr_chat_name(out, "messages");
    kvr_buf_str(out, "[");
    if (v[INSTRUCTIONS].at && !is_empty_text(v[INSTRUCTIONS])) whole_message(&c, "system", v[INSTRUCTIONS]);
    if (kvr_span_is_string(v[INPUT])) whole_message(&c, "user", v[INPUT]);
    for (const char *p = v[INPUT].at; kvr_span_is_list(v[INPUT]) && kvr_json_text_item(&p, v[INPUT].end, &item);) responses_item(&c, item);
    close_message(&c);
    kvr_buf_str(out, "],\"add_special_tokens\":true");
    if (goes_on(&c, v[INPUT])) kvr_buf_str(out, ",\"add_generation_prompt\":false,\"continue_final_message\":true");
    responses_tools(&c, v[TOOLS]);
    kvr_chat_arguments(out, v[ARGS], v[REASONING].at ? pick_one(&c, v[REASONING], "effort") : none, none);
    return finish(&c, certainty);
}

/* ---- /v1/messages ------------------------------------------------------------------------------------ */

static bool is_billing(struct kvr_json_span text)
{
    static const char begin[] = "\"x-anthropic-billing-header";
    return (size_t)(text.end - text.at) >= sizeof begin - 1 && memcmp(text.at, begin, sizeof begin - 1) == 0;
}

/* Appends the texts of blocks to a string that is open. Returns: whether there was one. */
static bool join_texts(struct chat *c, struct kvr_json_span blocks, const char *between, bool system)
{
    struct kvr_json_span block;
    bool any = false;
    for (const char *p = blocks.at; kvr_json_text_item(&p, blocks.end, &block);) {
        enum { TYPE, TEXT, ALL };
        static const char *const names[ALL] = {"type", "text"};
        struct kvr_json_span v[ALL];
        if (!kvr_span_is_object(block) || !kvr_json_text_pick(block, names, ALL, v) || !text_is(v[TYPE], "text") ||
            !kvr_span_is_string(v[TEXT])) {
            c->doubtful = true;
            continue;
        }
        if (system && (is_empty_text(v[TEXT]) || is_billing(v[TEXT]))) continue;
        if (any) kvr_buf_str(c->out, between);
        kvr_span_add(c->out, kvr_chat_inside(v[TEXT]));
        any = true;
    }
    return any;
}

static void system_text(struct chat *c, struct kvr_json_span system)
{
    if (!system.at || is_empty_text(system)) return;
    if (kvr_span_is_string(system)) {
        whole_message(c, "system", system);
        return;
    }
    if (!kvr_span_is_list(system)) {
        c->doubtful = true;
        return;
    }
    size_t before = c->out->len;
    begin_message(c, "system");
    kvr_buf_str(c->out, ",\"content\":\"");
    if (join_texts(c, system, "", true)) {
        kvr_buf_str(c->out, "\"}");
    } else {
        c->out->len = before;
        c->messages--;
    }
}

/* What a message's blocks come to. */
struct blocks {
    struct kvr_json_span text; /* the only one */
    size_t texts, calls, thoughts;
};

static void result_block(struct chat *c, struct kvr_json_span id, struct kvr_json_span content)
{
    if (!kvr_span_is_list(content)) {
        static const char nothing[] = "\"\"";
        tool_result(c, id, kvr_span_is_string(content) ? content : (struct kvr_json_span){nothing, nothing + 2});
        return;
    }
    begin_message(c, "tool");
    if (id.at) kvr_chat_member(c->out, "tool_call_id", id);
    else kvr_buf_str(c->out, ",\"tool_call_id\":\"\"");
    kvr_buf_str(c->out, ",\"content\":\"");
    (void)join_texts(c, content, "\\n", false);
    kvr_buf_str(c->out, "\"}");
}

enum { B_TYPE, B_TEXT, B_ID, B_USE_ID, B_NAME, B_INPUT, B_CONTENT, B_THINKING, B_ALL };

static bool pick_block(struct chat *c, struct kvr_json_span block, struct kvr_json_span v[B_ALL])
{
    static const char *const names[B_ALL] = {"type", "text", "id", "tool_use_id", "name", "input", "content", "thinking"};
    if (kvr_span_is_object(block) && kvr_json_text_pick(block, names, B_ALL, v)) return true;
    c->doubtful = true;
    return false;
}

/* Results of tools are messages of their own, before the one that they came in. */
static void count_blocks(struct chat *c, struct kvr_json_span content, bool user, struct blocks *b)
{
    struct kvr_json_span block, v[B_ALL];
    for (const char *p = content.at; kvr_json_text_item(&p, content.end, &block);) {
        if (!pick_block(c, block, v)) continue;
        if (text_is(v[B_TYPE], "text") && kvr_span_is_string(v[B_TEXT])) {
            if (!is_empty_text(v[B_TEXT])) b->text = b->texts++ ? b->text : v[B_TEXT];
        } else if (text_is(v[B_TYPE], "tool_use") && v[B_ID].at && v[B_NAME].at) {
            b->calls++;
        } else if (text_is(v[B_TYPE], "thinking") && kvr_span_is_string(v[B_THINKING])) {
            b->thoughts++;
        } else if (text_is(v[B_TYPE], "tool_result") && user) {
            result_block(c, v[B_USE_ID], v[B_CONTENT]);
        } else if (!text_is(v[B_TYPE], "redacted_thinking")) {
            c->doubtful = true;
        }
    }
}

static void write_texts(struct chat *c, struct kvr_json_span content)
{
    struct kvr_json_span block, v[B_ALL];
    const char *comma = "";
    kvr_buf_str(c->out, ",\"content\":[");
    for (const char *p = content.at; kvr_json_text_item(&p, content.end, &block);) {
        if (!pick_block(c, block, v) || !text_is(v[B_TYPE], "text") || !kvr_span_is_string(v[B_TEXT]) || is_empty_text(v[B_TEXT])) continue;
        kvr_buf_printf(c->out, "%s{\"type\":\"text\",\"text\":", comma);
        kvr_span_add(c->out, v[B_TEXT]);
        kvr_buf_str(c->out, "}");
        comma = ",";
    }
    kvr_buf_str(c->out, "]");
}

static void write_thoughts(struct chat *c, struct kvr_json_span content)
{
    struct kvr_json_span block, v[B_ALL];
    kvr_buf_str(c->out, ",\"reasoning\":\"");
    for (const char *p = content.at; kvr_json_text_item(&p, content.end, &block);)
        if (pick_block(c, block, v) && text_is(v[B_TYPE], "thinking") && kvr_span_is_string(v[B_THINKING]))
            kvr_span_add(c->out, kvr_chat_inside(v[B_THINKING]));
    kvr_buf_str(c->out, "\"");
}

static void write_calls(struct chat *c, struct kvr_json_span content)
{
    struct kvr_json_span block, v[B_ALL];
    for (const char *p = content.at; kvr_json_text_item(&p, content.end, &block);)
        if (pick_block(c, block, v) && text_is(v[B_TYPE], "tool_use") && v[B_ID].at && v[B_NAME].at)
            assistant_call(c, v[B_ID], v[B_NAME], v[B_INPUT]);
}

static void blocks_message(struct chat *c, const char *role, struct kvr_json_span content)
{
    struct blocks b = {0};
    bool user = strcmp(role, "user") == 0;
    count_blocks(c, content, user, &b);
    if (user && b.calls + b.thoughts) c->doubtful = true;
    if (user && !b.texts) return; /* results alone */
    begin_message(c, role);
    c->open = true;
    if (b.texts == 1) kvr_chat_member(c->out, "content", b.text);
    else if (b.texts) write_texts(c, content);
    if (b.thoughts) write_thoughts(c, content);
    if (b.calls) write_calls(c, content);
    close_message(c);
}

static void messages_item(struct chat *c, struct kvr_json_span message)
{
    enum { ROLE, CONTENT, ALL };
    static const char *const names[ALL] = {"role", "content"}, *const roles[] = {"user", "assistant"};
    struct kvr_json_span v[ALL];
    if (!kvr_span_is_object(message) || !kvr_json_text_pick(message, names, ALL, v)) {
        c->doubtful = true;
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (!text_is(v[ROLE], roles[i])) continue;
        if (kvr_span_is_string(v[CONTENT])) whole_message(c, roles[i], v[CONTENT]);
        else if (kvr_span_is_list(v[CONTENT])) blocks_message(c, roles[i], v[CONTENT]);
        else c->doubtful = true;
        return;
    }
    c->doubtful = true; /* a system message in between: where it goes depends on the template */
}

/* A schema without a type is one of an object. */
static void messages_tool(struct chat *c, struct kvr_json_span tool, bool first)
{
    static const char *const from[] = {"name", "description", "strict", "defer_loading"};
    struct kvr_json_span schema = kvr_span_is_object(tool) ? pick_one(c, tool, "input_schema") : (struct kvr_json_span){NULL, NULL};
    write_function(c, tool, from, from, KVR_ARRAY_LEN(from), first);
    if (!kvr_span_is_object(schema)) {
        c->doubtful = true;
        return;
    }
    const char *type = kvr_json_text_member(schema.at, schema.end, "type");
    c->out->len -= 2; /* the function is open again */
    kvr_chat_name(c->out, "parameters");
    if (type) {
        kvr_span_add(c->out, schema);
    } else {
        kvr_buf_add(c->out, schema.at, (size_t)(schema.end - schema.at) - 1);
        kvr_buf_str(c->out, *kvr_json_text_space(schema.at + 1, schema.end) == '}' ? "\"type\":\"object\"}" : ",\"type\":\"object\"}");
    }
    kvr_buf_str(c->out, "}}");
}

static void messages_tools(struct chat *c, struct kvr_json_span tools)
{
    struct kvr_json_span tool;
    size_t n = 0;
    if (!kvr_span_is_list(tools)) return;
    kvr_buf_str(c->out, ",\"tools\":[");
    for (const char *p = tools.at; kvr_json_text_item(&p, tools.end, &tool);) messages_tool(c, tool, n++ == 0);
    kvr_buf_str(c->out, "]");
}

/* The effort that the engine gives its template. Without thinking it is "none", or "low" where that makes no difference. */
static struct kvr_json_span effort_of(struct chat *c, struct kvr_json_span config, struct kvr_json_span thinking)
{
    static const char none[] = "\"none\"";
    if (kvr_span_is_object(thinking) && text_is(pick_one(c, thinking, "type"), "disabled"))
        return (struct kvr_json_span){none, none + sizeof none - 1};
    return kvr_span_is_object(config) ? pick_one(c, config, "effort") : (struct kvr_json_span){NULL, NULL};
}

bool kvr_chat_of_messages(struct kvr_json_span body, struct kvr_buf *out, enum kvr_prompt_certainty *certainty)
{
    enum { MODEL, MESSAGES, SYSTEM, TOOLS, ARGS, CONFIG, THINKING, ALL };
    static const char *const names[ALL] = {"model", "messages", "system", "tools", "chat_template_kwargs", "output_config", "thinking"};
    struct kvr_json_span v[ALL], item, none = {NULL, NULL};
    struct chat c = {.out = out};
    if (!kvr_json_text_pick(body, names, ALL, v) || !kvr_span_is_list(v[MESSAGES])) return false;
    kvr_chat_begin(out, v[MODEL]);
    kvr_chat_name(out, "messages");
    kvr_buf_str(out, "[");
    system_text(&c, v[SYSTEM]);
    for (const char *p = v[MESSAGES].at; kvr_json_text_item(&p, v[MESSAGES].end, &item);) messages_item(&c, item);
    close_message(&c);
    kvr_buf_str(out, "]");
    messages_tools(&c, v[TOOLS]);
    kvr_chat_arguments(out, v[ARGS], effort_of(&c, v[CONFIG], v[THINKING]), none);
    return finish(&c, certainty);
}
