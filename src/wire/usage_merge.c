/* SPDX-License-Identifier: Apache-2.0 */
/* Lines come in pieces; those that may have a usage are put together again and edited in their text: wire/usage_merge.h. */
#include "wire/usage_merge.h"

#include <inttypes.h>
#include <string.h>

#include "wire/chat_writer.h"
#include "wire/json_edit.h"

/* ---- one answer or event -------------------------------------------------------------------------------------------- */

/* `object` with `value` as its member `name`. */
static bool with_member(struct kvr_json_span object, const char *name, const struct kvr_buf *value, struct kvr_buf *out)
{
    struct kvr_json_edit edit = {.name = name, .value = value->data, .value_len = value->len};
    return !value->failed && kvr_json_edit(object, &edit, 1, out);
}

/* prompt_tokens_details as they are to be. Returns: false when they are so, or are not there. */
static bool edited_details(struct kvr_json_span details, const struct kvr_usage_told *told, struct kvr_buf *out)
{
    char number[24];
    int len = snprintf(number, sizeof number, "%" PRIu64, told->cached_tokens);
    struct kvr_json_edit edit = {.name = "cached_tokens", .value = told->has_cached ? number : NULL, .value_len = (size_t)len};
    if (kvr_span_is_object(details))
        return (told->has_cached || kvr_json_text_last(details, "cached_tokens").at) && kvr_json_edit(details, &edit, 1, out);
    if (told->has_cached) kvr_buf_printf(out, "{\"cached_tokens\":%s}", number);
    return told->has_cached;
}

/* Appends the text, whose usage is put right. Returns: false when nothing is to be changed. */
static bool edited_text(struct kvr_json_span text, const struct kvr_usage_told *told, struct kvr_buf *out)
{
    struct kvr_json_span usage = kvr_json_text_last(text, "usage");
    struct kvr_buf details = {0}, whole = {0};
    bool done = edited_details(kvr_json_text_last(usage, "prompt_tokens_details"), told, &details) &&
                with_member(usage, "prompt_tokens_details", &details, &whole) && with_member(text, "usage", &whole, out);
    kvr_buf_free(&details);
    kvr_buf_free(&whole);
    return done;
}

bool kvr_usage_merge_answer(struct kvr_json_span answer, struct kvr_json_parser *p, const struct kvr_usage_told *told, struct kvr_buf *out)
{
    struct kvr_json root;
    size_t before = out->len, len = (size_t)(answer.end - answer.at);
    if (!memmem(answer.at, len, "usage", 5) || kvr_json_parse(p, answer.at, len, &root, NULL)) return false;
    if (kvr_json_type_of(kvr_json_get(root, "usage")) != KVR_JSON_OBJECT) return false;
    const char *brace = kvr_json_text_space(answer.at, answer.end);
    kvr_buf_add(out, answer.at, (size_t)(brace - answer.at));
    bool done = edited_text((struct kvr_json_span){brace, answer.end}, told, out);
    if (!done) out->len = before;
    return done;
}

/* Such an event is not the last; the last has its usage alone. */
static bool has_choices(struct kvr_json_span event)
{
    struct kvr_json_span choices = kvr_json_text_last(event, "choices"), first;
    const char *p = choices.at;
    return p && kvr_json_text_item(&p, choices.end, &first);
}

/* ---- lines ---------------------------------------------------------------------------------------------------------- */

static const char field[] = "data:";

enum { FIELD_LEN = sizeof field - 1 };

static bool may_be_data(const char *line, size_t len)
{
    return memcmp(line, field, KVR_MIN(len, (size_t)FIELD_LEN)) == 0;
}

static void put_line(const struct kvr_usage_merge *m, struct kvr_json_parser *p, const char *line, size_t len, struct kvr_buf *out)
{
    static const struct kvr_usage_told nothing = {0};
    size_t before = out->len;
    bool data = len > FIELD_LEN && len <= KVR_USAGE_LINE_MAX && may_be_data(line, len) && memmem(line, len, "\"usage\"", 7);
    const char *end = line + len, *from = data ? kvr_json_text_space(line + FIELD_LEN, end) : end;
    if (from < end && *from == '{') {
        struct kvr_json_span event = {from, end};
        kvr_buf_add(out, line, (size_t)(from - line));
        if (kvr_usage_merge_answer(event, p, has_choices(event) ? &nothing : &m->told, out)) return;
        out->len = before;
    }
    kvr_buf_add(out, line, len);
}

/* What is held passes as it is, and so does the rest of its line. */
static void let_pass(struct kvr_usage_merge *m, struct kvr_buf *out)
{
    kvr_buf_add(out, m->line.data, m->line.len);
    m->line.len = 0;
    m->passing = true;
    if (m->line.failed) kvr_buf_free(&m->line);
}

/* Adds to what is held of a line. Returns: false when it cannot be, or need not be. */
static bool hold(struct kvr_usage_merge *m, const char *data, size_t len)
{
    size_t before = m->line.len;
    if (m->passing || before + len > KVR_USAGE_LINE_MAX) return false;
    kvr_buf_add(&m->line, data, len);
    if (!m->line.failed && may_be_data(m->line.data, m->line.len)) return true;
    m->line.len = before;
    return false;
}

/* A piece of a line; `whole`: up to its end. */
static void on_piece(struct kvr_usage_merge *m, struct kvr_json_parser *p, const char *data, size_t len, bool whole, struct kvr_buf *out)
{
    if (whole && !m->passing && !m->line.len) {
        put_line(m, p, data, len, out);
    } else if (hold(m, data, len)) {
        if (!whole) return;
        put_line(m, p, m->line.data, m->line.len, out);
        m->line.len = 0;
    } else {
        let_pass(m, out);
        kvr_buf_add(out, data, len);
        m->passing = !whole;
    }
}

void kvr_usage_merge_feed(struct kvr_usage_merge *m, struct kvr_json_parser *p, const char *data, size_t len, struct kvr_buf *out)
{
    while (len) {
        const char *nl = memchr(data, '\n', len);
        size_t n = nl ? (size_t)(nl - data) + 1 : len;
        on_piece(m, p, data, n, nl != NULL, out);
        data += n;
        len -= n;
    }
}

void kvr_usage_merge_end(struct kvr_usage_merge *m, struct kvr_buf *out)
{
    let_pass(m, out);
    m->passing = false;
}

void kvr_usage_merge_free(struct kvr_usage_merge *m)
{
    kvr_buf_free(&m->line);
}
