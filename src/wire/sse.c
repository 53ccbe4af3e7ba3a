/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the ends of lines and of events in passing bytes; wire/sse.h says when a stream is over or has gone wrong. */
#include "wire/sse.h"

#include <string.h>

static bool is_text(const char *s, size_t len, const char *text)
{
    return len == strlen(text) && memcmp(s, text, len) == 0;
}

static void on_event_name(struct kvr_sse *s, const char *name, size_t len)
{
    static const char *const last[] = {"message_stop", "response.completed", "response.failed", "response.incomplete"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(last); i++) s->ending |= is_text(name, len, last[i]);
    s->has_error |= is_text(name, len, "error") || is_text(name, len, "response.failed");
}

/* Usage is the event's, its message's or its response's; the last that is given counts. */
static void on_telling(struct kvr_sse *s, struct kvr_json root)
{
    static const char *const inner[] = {"message", "response"};
    struct kvr_usage usage;
    s->has_error |= kvr_json_type_of(kvr_json_get(root, "error")) > KVR_JSON_NULL;
    kvr_openai_usage(root, &usage);
    for (size_t i = 0; i < KVR_ARRAY_LEN(inner) && !usage.present; i++) kvr_openai_usage(kvr_json_get(root, inner[i]), &usage);
    if (usage.present) s->usage = usage;
    const char *id;
    size_t len;
    if (!kvr_json_as_name(kvr_json_get(kvr_json_get(root, "response"), "id"), &id, &len) || len >= sizeof s->response) return;
    memcpy(s->response, id, len);
    s->response[len] = 0;
}

static void on_data(struct kvr_sse *s, struct kvr_json_parser *p, const char *data, size_t len)
{
    struct kvr_json root;
    if (is_text(data, len, "[DONE]")) {
        s->ending = true;
        return;
    }
    s->events++;
    enum kvr_finish finish = kvr_finish_in(data, len);
    if (finish != KVR_FINISH_UNTOLD) s->finish = finish;
    bool tells = memmem(data, len, "\"usage\"", 7) || memmem(data, len, "\"error\"", 7);
    if (tells && memchr(data, '{', len) && kvr_json_parse(p, data, len, &root, NULL) == 0) on_telling(s, root);
}

/* The value of a field, without the spaces before it; NULL: it is another field. */
static const char *value_of(const char *line, size_t len, const char *field, size_t *value_len)
{
    size_t n = strlen(field);
    if (len < n || memcmp(line, field, n) != 0) return NULL;
    while (n < len && line[n] == ' ') n++;
    *value_len = len - n;
    return line + n;
}

static void on_line(struct kvr_sse *s, struct kvr_json_parser *p, const char *line, size_t len)
{
    const char *value;
    size_t n;
    if (len && line[len - 1] == '\r') len--;
    if (len == 0) s->done |= s->ending;
    else if ((value = value_of(line, len, "data:", &n))) on_data(s, p, value, n);
    else if ((value = value_of(line, len, "event:", &n))) on_event_name(s, value, n);
}

static void keep_part(struct kvr_sse *s, const char *data, size_t len)
{
    if (s->skipping) return;
    if (s->part.len + len > KVR_SSE_LINE_MAX) {
        s->skipping = true;
        s->part.len = 0;
        return;
    }
    kvr_buf_add(&s->part, data, len);
    if (!s->part.failed) return;
    kvr_buf_free(&s->part); /* without memory it is a line that is too long */
    s->skipping = true;
}

uint64_t kvr_sse_feed(struct kvr_sse *s, struct kvr_json_parser *p, const char *data, size_t len)
{
    uint64_t before = s->events;
    while (len) {
        const char *nl = memchr(data, '\n', len);
        if (!nl) {
            keep_part(s, data, len);
            break;
        }
        size_t n = (size_t)(nl - data);
        if (s->part.len || s->skipping) {
            keep_part(s, data, n);
            if (s->skipping) {
                s->events++;
                s->has_error = true; /* who knows */
            } else {
                on_line(s, p, s->part.data, s->part.len);
            }
            s->part.len = 0;
            s->skipping = false;
        } else {
            on_line(s, p, data, n);
        }
        data += n + 1;
        len -= n + 1;
    }
    return s->events - before;
}

void kvr_sse_free(struct kvr_sse *s)
{
    kvr_buf_free(&s->part);
}
