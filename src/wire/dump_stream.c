/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts a /dump into its elements with a scanner that only tracks depth and strings; each element is then parsed whole
 * (wire/dump_stream.h).
 */
#include "wire/dump_stream.h"

#include <string.h>

#include "wire/router_event.h"

enum { ELEMENT_MAX = 64 << 20, BLOCK_SIZE_MAX = 65536 };

int kvr_dump_stream_init(struct kvr_dump_stream *s, const struct kvr_dump_handler *handler)
{
    *s = (struct kvr_dump_stream){.handler = *handler, .json = kvr_json_parser_new()};
    return s->json ? 0 : -KVR_ENOMEM;
}

void kvr_dump_stream_free(struct kvr_dump_stream *s)
{
    kvr_json_parser_free(s->json);
    kvr_buf_free(&s->text);
    free(s->blocks);
    *s = (struct kvr_dump_stream){0};
}

static int bad(struct kvr_dump_stream *s, const char *why)
{
    s->why = why;
    return -KVR_EFORMAT;
}

/* ---- elements -------------------------------------------------------------------------------------------------- */

static int read_view(struct kvr_dump_stream *s, struct kvr_json o)
{
    struct kvr_dump_view v = {0};
    uint64_t rank;
    bool ok = kvr_json_as_u64(kvr_json_get(o, "worker_id"), &v.worker.worker_id) && kvr_json_as_u64(kvr_json_get(o, "dp_rank"), &rank) &&
              rank <= UINT32_MAX && kvr_json_as_bool(kvr_json_get(o, "trusted"), &v.trusted) &&
              kvr_json_as_u64(kvr_json_get(o, "next_sequence"), &v.next_sequence) &&
              kvr_json_as_u64(kvr_json_get(o, "last_hash"), &v.last_hash) && kvr_json_as_double(kvr_json_get(o, "last_ts"), &v.last_ts);
    if (!ok) return bad(s, "a view is not as it should be");
    v.worker.dp_rank = (uint32_t)rank;
    v.partial = kvr_json_is_str(kvr_json_get(o, "view"), "partial");
    return s->handler.on_view(s->handler.ctx, &v);
}

static int on_element(struct kvr_dump_stream *s)
{
    struct kvr_json o;
    struct kvr_event ev;
    if (s->text.failed) return -KVR_ENOMEM;
    int rc = kvr_json_parse(s->json, s->text.data, s->text.len, &o, &s->why);
    if (rc) return rc;
    if (strcmp(s->member, "views") == 0) return read_view(s, o);
    rc = kvr_router_event_read(o, &ev, &s->blocks, &s->blocks_cap);
    if (rc == 0 && ev.kind != KVR_EVENT_STORED) rc = -KVR_EFORMAT;
    if (rc == -KVR_EFORMAT) return bad(s, "an event is not a stored event of a worker");
    return rc ? rc : s->handler.on_event(s->handler.ctx, &ev);
}

/* ---- cutting ----------------------------------------------------------------------------------------------------- */

/* %3A and %25 in a model's name; other percent signs are as they are, since older writers do not escape. */
static void unescape(char *s)
{
    char *out = s;
    for (; *s; s++) {
        int code = *s == '%' && s[1] && s[2] && kvr_hex_digit(s[1]) >= 0 && kvr_hex_digit(s[2]) >= 0
                       ? kvr_hex_digit(s[1]) * 16 + kvr_hex_digit(s[2])
                       : 0;
        *out++ = code == ':' || code == '%' ? (char)code : *s;
        if (code == ':' || code == '%') s += 2;
    }
    *out = 0;
}

static int announce(struct kvr_dump_stream *s)
{
    char *colon = strchr(s->key, ':');
    if (s->announced) return 0;
    if (!s->block_size) return bad(s, "a partition has no block_size before its events");
    if (!colon) return bad(s, "a partition's key has no colon");
    *colon = 0;
    unescape(s->key);
    s->announced = true;
    return s->handler.on_partition(s->handler.ctx, s->key, colon + 1, (uint32_t)s->block_size);
}

/* The raw text between two quotes, or of a number, in s->text. Strings are decoded by the JSON parser. */
static int take_string(struct kvr_dump_stream *s, char *out, size_t cap)
{
    struct kvr_json v;
    struct kvr_buf b = {0};
    const char *p = "";
    size_t n = 0;
    kvr_buf_printf(&b, "[\"%.*s\"]", (int)s->text.len, s->text.data ? s->text.data : "");
    int rc = b.failed ? -KVR_ENOMEM : kvr_json_parse(s->json, b.data, b.len, &v, &s->why);
    if (rc == 0 && (!kvr_json_as_str(kvr_json_at(v, 0), &p, &n) || n >= cap || memchr(p, 0, n))) rc = bad(s, "a key is too long");
    if (rc == 0) {
        memcpy(out, p, n);
        out[n] = 0;
    }
    kvr_buf_free(&b);
    return rc;
}

static int end_string(struct kvr_dump_stream *s)
{
    if (s->depth == 1 && !s->have_key) {
        s->have_key = true;
        s->announced = false;
        s->block_size = 0;
        return take_string(s, s->key, sizeof s->key);
    }
    if (s->depth == 2 && !s->in_value) {
        snprintf(s->member, sizeof s->member, "%.*s", (int)KVR_MIN(s->text.len, sizeof s->member - 1), s->text.data ? s->text.data : "");
        return strcmp(s->member, "error") == 0 ? bad(s, "the peer could not dump a partition") : 0;
    }
    if (s->depth >= 2) kvr_buf_str(&s->text, "\""); /* a text is no number */
    return 0;
}

/* The end of a member of a partition: what is kept of its value is a number's text. */
static int end_number(struct kvr_dump_stream *s)
{
    while (s->text.len && s->text.data[s->text.len - 1] <= ' ') s->text.len--;
    bool size = s->depth == 2 && s->in_value && strcmp(s->member, "block_size") == 0;
    bool ok = !size || (s->text.data && kvr_parse_u64(s->text.data, s->text.len, BLOCK_SIZE_MAX, &s->block_size) && s->block_size);
    s->text.len = 0;
    return ok ? 0 : bad(s, "a partition's block_size is not a whole number from 1 to 65536");
}

static bool wanted(const struct kvr_dump_stream *s)
{
    return strcmp(s->member, "events") == 0 || strcmp(s->member, "views") == 0;
}

static int open_bracket(struct kvr_dump_stream *s, char c)
{
    if (s->depth == 0 && c != '{') return bad(s, "a dump is a JSON object");
    if (s->depth == 1 && (c != '{' || !s->have_key)) return bad(s, "a partition is a JSON object");
    if (++s->depth > 64) return bad(s, "too deep");
    if (s->depth == 2) s->in_value = false;
    if (s->depth == 3 && c == '[' && wanted(s)) return announce(s);
    if (s->depth == 4 && c == '{' && wanted(s)) {
        s->element = true;
        s->text.len = 0;
    }
    return 0;
}

static int close_bracket(struct kvr_dump_stream *s)
{
    int rc = s->depth == 2 ? end_number(s) : 0;
    if (rc) return rc;
    if (s->depth == 1 && s->have_key) return bad(s, "a partition is a JSON object");
    s->depth--;
    if (s->depth == 3 && s->element) {
        s->element = false;
        kvr_buf_add(&s->text, "}", 1);
        rc = on_element(s);
        s->text.len = 0;
        return rc;
    }
    if (s->depth == 1) {
        s->have_key = false;
        return announce(s);
    }
    s->over = s->depth == 0;
    return 0;
}

static int one(struct kvr_dump_stream *s, char c)
{
    if (s->over) return c == ' ' || c == '\n' || c == '\r' || c == '\t' ? 0 : bad(s, "something follows the dump");
    bool keep = s->element || s->in_string;
    if (s->in_string) {
        bool ends = c == '"' && !s->escaped;
        s->escaped = c == '\\' && !s->escaped;
        if (ends) s->in_string = false;
        if (!s->element && ends) return end_string(s);
    } else if (c == '"') {
        s->in_string = true;
        if (!s->element) s->text.len = 0;
    } else if (c == '{' || c == '[') {
        int rc = open_bracket(s, c);
        if (rc) return rc;
        keep = s->element;
    } else if (c == '}' || c == ']') {
        if (s->depth == 0) return bad(s, "a bracket too many");
        if (!s->element || s->depth == 4) return close_bracket(s);
        s->depth--;
    } else if (c == ':') {
        if (s->depth == 2) s->in_value = true;
        if (!s->element) s->text.len = 0;
    } else if (c == ',') {
        if (s->depth == 1 && s->have_key) return bad(s, "a partition is a JSON object");
        if (s->depth == 2) {
            int rc = end_number(s);
            if (rc) return rc;
            s->in_value = false;
        }
    } else {
        keep |= s->depth == 2 && s->in_value && (c > ' ' || s->text.len);
        if (s->depth == 0 && c > ' ') return bad(s, "a dump is a JSON object");
    }
    if (!keep) return 0;
    if (s->text.len >= ELEMENT_MAX) return bad(s, "an element is too large");
    kvr_buf_add(&s->text, &c, 1);
    return s->text.failed ? -KVR_ENOMEM : 0;
}

int kvr_dump_stream_feed(struct kvr_dump_stream *s, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        int rc = one(s, data[i]);
        if (rc) return rc;
    }
    return 0;
}

bool kvr_dump_stream_over(const struct kvr_dump_stream *s)
{
    return s->over;
}
