/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/sse.h"

#include <string.h>

static void on_line(struct kvr_sse *s, struct kvr_json_parser *p, const char *line, size_t len)
{
    if (len && line[len - 1] == '\r') len--;
    if (len < 5 || memcmp(line, "data:", 5) != 0) return;
    line += 5;
    len -= 5;
    while (len && *line == ' ') line++, len--;
    if (len == 6 && memcmp(line, "[DONE]", 6) == 0) {
        s->done = true;
        return;
    }
    s->events++;
    const char *u = memmem(line, len, "\"usage\"", 7);
    struct kvr_json root;
    struct kvr_usage usage;
    if (!u || memmem(u, len - (size_t)(u - line), "{", 1) == NULL) return;
    if (kvr_json_parse(p, line, len, &root, NULL)) return;
    kvr_openai_usage(root, &usage);
    if (usage.present) s->usage = usage;
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
            if (s->skipping) s->events++;
            else on_line(s, p, s->part.data, s->part.len);
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
