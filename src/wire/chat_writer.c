/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/chat_writer.h"

#include <string.h>

void kvr_chat_name(struct kvr_buf *out, const char *name)
{
    bool first = out->len && out->data[out->len - 1] == '{';
    kvr_buf_printf(out, "%s\"%s\":", first ? "" : ",", name);
}

void kvr_chat_member(struct kvr_buf *out, const char *name, struct kvr_json_span value)
{
    if (!value.at) return;
    kvr_chat_name(out, name);
    kvr_span_add(out, value);
}

void kvr_chat_begin(struct kvr_buf *out, struct kvr_json_span model)
{
    kvr_buf_str(out, "{");
    kvr_chat_member(out, "model", model);
}

struct kvr_json_span kvr_chat_inside(struct kvr_json_span string)
{
    return (struct kvr_json_span){string.at + 1, string.end - 1};
}

void kvr_chat_quoted(struct kvr_buf *out, struct kvr_json_span value)
{
    kvr_buf_str(out, "\"");
    const char *from = value.at, *p;
    for (p = from; p < value.end; p++) {
        if (*p != '"' && *p != '\\' && (unsigned char)*p >= 0x20) continue;
        kvr_buf_add(out, from, (size_t)(p - from));
        from = p + 1;
        if ((unsigned char)*p < 0x20) kvr_buf_printf(out, "\\u%04x", (unsigned)*p);
        else kvr_buf_printf(out, "\\%c", *p);
    }
    kvr_buf_add(out, from, (size_t)(p - from));
    kvr_buf_str(out, "\"");
}

static bool has_key(struct kvr_json_span object, const char *name)
{
    struct kvr_json_text_pair m;
    for (const char *p = object.at; p && kvr_json_text_next(&p, object.end, &m);)
        if (kvr_span_is(m.key, m.key_len, name)) return true;
    return false;
}

/* Of two members of one name the engine's reader takes the last, so what it adds comes last. */
void kvr_chat_arguments(struct kvr_buf *out, struct kvr_json_span args, struct kvr_json_span effort, struct kvr_json_span documents)
{
    if (!args.at && !effort.at && !documents.at) return;
    kvr_buf_str(out, ",\"chat_template_kwargs\":");
    if (args.at && *args.at != '{') { /* refused by the engine */
        kvr_span_add(out, args);
        return;
    }
    const char *comma = "", *p = args.at;
    struct kvr_json_text_pair m;
    kvr_buf_str(out, "{");
    while (p && kvr_json_text_next(&p, args.end, &m)) {
        kvr_buf_printf(out, "%s\"%.*s\":", comma, (int)m.key_len, m.key);
        kvr_span_add(out, m.value);
        comma = ",";
    }
    if (documents.at) {
        kvr_buf_printf(out, "%s\"documents\":", comma);
        kvr_span_add(out, documents);
        comma = ",";
    }
    if (effort.at) {
        kvr_buf_printf(out, "%s\"reasoning_effort\":", comma);
        kvr_span_add(out, effort);
        if (!has_key(args, "enable_thinking"))
            kvr_buf_printf(out, ",\"enable_thinking\":%s", kvr_json_span_is(effort, "\"none\"") ? "false" : "true");
    }
    kvr_buf_str(out, "}");
}
