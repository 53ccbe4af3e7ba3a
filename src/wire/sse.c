/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the ends of lines and of events in passing bytes; wire/sse.h says when a stream is over or has gone wrong. */
#include "wire/sse.h"

#include <string.h>

static void on_event_name(struct kvr_sse *s, const char *name, size_t len)
{
    static const char *const last[] = {"message_stop", "response.completed", "response.failed", "response.incomplete"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(last); i++) s->ending |= kvr_span_is(name, len, last[i]);
    s->has_error |= kvr_span_is(name, len, "error") || kvr_span_is(name, len, "response.failed");
}

/* Usage is the event's, its message's or its response's; the last that is given counts. */
static void on_telling(struct kvr_sse *s, struct kvr_json root)
{
    static const char *const inner[] = {"message", "response"};
    struct kvr_usage usage;
    s->has_error |= kvr_json_has(root, "error");
    kvr_openai_usage(root, &usage);
    for (size_t i = 0; i < KVR_ARRAY_LEN(inner) && !usage.present; i++) kvr_openai_usage(kvr_json_get(root, inner[i]), &usage);
    if (usage.present) s->usage = usage;
    const char *id;
    size_t len;
    if (!kvr_json_as_name(kvr_json_get(kvr_json_get(root, "response"), "id"), &id, &len) || len >= sizeof s->response) return;
    memcpy(s->response, id, len);
    s->response[len] = 0;
}

/* What names an event has that tell something. */
struct names {
    enum kvr_finish finish;
    bool tells;    /* of usage or of an error */
    bool nothing;  /* a usage or an error of null, as engines put into each event */
    bool response; /* it may have a response's id */
};

static bool begins(const char *at, const char *end, const char *text, size_t len)
{
    return (size_t)(end - at) >= len && memcmp(at, text, len) == 0;
}

static bool is_null(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == ':' || *at == '\t')) at++;
    return begins(at, end, "null", 4);
}

static void note_name(struct names *n, const char *at, const char *end)
{
    static const char finish[] = "\"finish_reason\"", usage[] = "\"usage\"", error[] = "\"error\"", response[] = "\"response\"";
    if (begins(at, end, finish, sizeof finish - 1)) {
        enum kvr_finish found = kvr_finish_behind(at + sizeof finish - 1, end);
        if (found != KVR_FINISH_UNTOLD) n->finish = found;
    } else if (begins(at, end, usage, sizeof usage - 1) || begins(at, end, error, sizeof error - 1)) { /* as long as each other */
        *(is_null(at + sizeof usage - 1, end) ? &n->nothing : &n->tells) = true;
    } else if (begins(at, end, response, sizeof response - 1)) {
        n->response = true;
    }
}

static inline bool may_be_name(const char *at)
{
    return (at[0] == '"') & ((at[1] == 'f') | (at[1] == 'u') | (at[1] == 'e') | (at[1] == 'r'));
}

/* The same of each of so many bytes, and one behind them: every event of a stream is looked through, and mostly there is none. */
enum { BLOCK = 16 };
typedef char block __attribute__((vector_size(BLOCK)));

static bool has_name(const char *at)
{
    block first, second;
    uint64_t found[2];
    memcpy(&first, at, BLOCK);
    memcpy(&second, at + 1, BLOCK);
    block any = (first == '"') & ((second == 'f') | (second == 'u') | (second == 'e') | (second == 'r'));
    memcpy(found, &any, sizeof found);
    return found[0] | found[1];
}

static struct names names_in(const char *data, size_t len)
{
    struct names n = {KVR_FINISH_UNTOLD, false, false, false};
    for (const char *at = data, *end = data + len; end - at > 1;) {
        bool whole = end - at > BLOCK;
        const char *stop = whole ? at + BLOCK : end - 1;
        if (whole && !has_name(at)) at = stop;
        for (; at < stop; at++)
            if (may_be_name(at)) note_name(&n, at, end);
    }
    return n;
}

static void on_data(struct kvr_sse *s, struct kvr_json_parser *p, const char *data, size_t len)
{
    struct kvr_json root;
    if (kvr_span_is(data, len, "[DONE]")) {
        s->ending = true;
        return;
    }
    s->events++;
    struct names n = names_in(data, len);
    if (n.finish != KVR_FINISH_UNTOLD) s->finish = n.finish;
    bool tells = n.tells || (n.response && n.nothing);
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
