/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the events out of a recovery answer as it arrives; wire/recover_answer.h has the shapes that are accepted. */
#include "wire/recover_answer.h"

#include <string.h>

#include "wire/router_event.h"

enum { ELEMENT_MAX = 64 << 20, REST_MAX = 64 << 10, DEPTH_MAX = 64 };

int kvr_recover_reader_init(struct kvr_recover_reader *r)
{
    *r = (struct kvr_recover_reader){.json = kvr_json_parser_new()};
    kvr__event_list_init(&r->answer.events, NULL);
    return r->json ? 0 : -KVR_ENOMEM;
}

void kvr_recover_reader_free(struct kvr_recover_reader *r)
{
    kvr_json_parser_free(r->json);
    kvr_buf_free(&r->text);
    kvr_buf_free(&r->rest);
    free(r->blocks);
    kvr__event_list_free(&r->answer.events);
    *r = (struct kvr_recover_reader){0};
}

static int bad(struct kvr_recover_reader *r, const char *why)
{
    r->why = why;
    return -KVR_EFORMAT;
}

static int end_element(struct kvr_recover_reader *r)
{
    struct kvr_json o;
    struct kvr_event ev;
    if (r->text.failed) return -KVR_ENOMEM;
    int rc = kvr_json_parse(r->json, r->text.data, r->text.len, &o, &r->why);
    if (rc == 0) rc = kvr_router_event_read(o, &ev, &r->blocks, &r->blocks_cap);
    if (rc == -KVR_EFORMAT) return bad(r, "an event is not a router event of a worker");
    if (rc == 0) rc = kvr__event_list_add(&r->answer.events, &ev);
    r->taken += sizeof ev + kvr__event_bytes(&ev);
    if (rc == 0 && r->taken > KVR_RECOVER_BYTES_MAX) rc = -KVR_ELIMIT;
    r->text.len = 0;
    return rc;
}

static bool ends_with(const struct kvr_buf *b, const char *s)
{
    size_t n = strlen(s);
    return b->len >= n && memcmp(b->data + b->len - n, s, n) == 0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static int open_bracket(struct kvr_recover_reader *r, char c, bool *keep)
{
    if (++r->depth > DEPTH_MAX) return bad(r, "too deep");
    if (r->list_depth && !r->element_depth) {
        if (c != '{') return bad(r, "an event is a JSON object");
        r->element_depth = r->depth;
    }
    bool list = c == '[' && !r->list_depth && r->depth <= 3 && (ends_with(&r->rest, "\"events\":") || ends_with(&r->rest, "\"Events\":"));
    if (!list) return 0;
    if (r->had_list) return bad(r, "two lists of events");
    r->had_list = true;
    r->list_depth = r->depth;
    kvr_buf_str(&r->rest, "[");
    *keep = false;
    return 0;
}

static int close_bracket(struct kvr_recover_reader *r, char c, bool *keep)
{
    if (r->depth == 0) return bad(r, "a bracket too many");
    int depth = r->depth--;
    if (depth == r->element_depth) {
        kvr_buf_add(&r->text, &c, 1);
        r->element_depth = 0;
        *keep = false;
        return end_element(r);
    }
    if (depth == r->list_depth) r->list_depth = 0;
    return 0;
}

static int one(struct kvr_recover_reader *r, char c)
{
    bool keep = true;
    int rc = 0;
    if (r->in_string) {
        if (c == '"' && !r->escaped) r->in_string = false;
        r->escaped = c == '\\' && !r->escaped;
    } else if (c == '"') {
        if (r->list_depth && !r->element_depth) return bad(r, "an event is a JSON object");
        r->in_string = true;
    } else if (c == '{' || c == '[') {
        rc = open_bracket(r, c, &keep);
    } else if (c == '}' || c == ']') {
        rc = close_bracket(r, c, &keep);
    } else if (is_space(c)) {
        return 0;
    } else if (r->list_depth && !r->element_depth) {
        return c == ',' ? 0 : bad(r, "an event is a JSON object");
    }
    if (rc || !keep) return rc;
    struct kvr_buf *b = r->element_depth ? &r->text : &r->rest;
    if (b->len >= (r->element_depth ? ELEMENT_MAX : REST_MAX)) return bad(r, "the answer is not one to a recovery question");
    kvr_buf_add(b, &c, 1);
    return b->failed ? -KVR_ENOMEM : 0;
}

int kvr_recover_reader_feed(struct kvr_recover_reader *r, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        int rc = one(r, data[i]);
        if (rc) return rc;
    }
    return 0;
}

/* ---- what is left ------------------------------------------------------------------------------------------ */

static void take_text(struct kvr_recover_answer *a, struct kvr_json v)
{
    const char *s;
    size_t n;
    if (kvr_json_as_str(v, &s, &n)) snprintf(a->message, sizeof a->message, "%.*s", (int)KVR_MIN(n, sizeof a->message - 1), s);
}

/* Absent or null: *has is false. Returns: false when there is something else than a 64-bit number. */
static bool optional_u64(struct kvr_json o, const char *key, uint64_t *out, bool *has)
{
    struct kvr_json v = kvr_json_get(o, key);
    *has = kvr_json_as_u64(v, out);
    return *has || !kvr_json_is_given(v);
}

static int read_events(struct kvr_recover_reader *r, struct kvr_json v, bool dump)
{
    struct kvr_recover_answer *a = &r->answer;
    const struct kvr_event *events = a->events.events;
    a->kind = dump ? KVR_RECOVER_TREE_DUMP : KVR_RECOVER_EVENTS;
    if (!optional_u64(v, "last_event_id", &a->last_event_id, &a->has_last)) return bad(r, "last_event_id is no 64-bit number");
    if (!optional_u64(v, "end_event_id", &a->end_event_id, &a->has_end)) return bad(r, "end_event_id is no 64-bit number");
    if (!optional_u64(v, "block_size", &a->block_size, &a->has_block_size)) return bad(r, "block_size is no 64-bit number");
    struct kvr_json list = kvr_json_type_of(v) == KVR_JSON_ARRAY && !dump ? v : kvr_json_get(v, "events");
    if (kvr_json_type_of(list) != KVR_JSON_ARRAY || (dump && !a->has_last)) return bad(r, "events or last_event_id is missing");
    for (size_t i = 0; dump && i < a->events.n; i++)
        if (events[i].kind != KVR_EVENT_STORED) return bad(r, "a tree dump has stored events only");
    for (size_t i = 1; !dump && i < a->events.n; i++)
        if (events[i].event_id < events[i - 1].event_id) return bad(r, "event ids fall");
    if (!a->has_last && a->events.n) {
        a->last_event_id = events[a->events.n - 1].event_id;
        a->has_last = true;
    }
    return 0;
}

int kvr_recover_reader_end(struct kvr_recover_reader *r)
{
    struct kvr_recover_answer *a = &r->answer;
    struct kvr_json o, v;
    if (r->depth || r->in_string) return bad(r, "the answer ends too early");
    int rc = kvr_json_parse(r->json, r->rest.data ? r->rest.data : "", r->rest.len, &o, &r->why);
    if (rc) return rc;
    if (kvr_json_type_of(o) != KVR_JSON_OBJECT) return bad(r, "the answer is not a JSON object");
    a->kind = KVR_RECOVER_UNKNOWN;
    v = kvr_json_get(o, "TreeDump");
    bool dump = kvr_json_type_of(v) == KVR_JSON_OBJECT;
    if (!dump) v = kvr_json_get(o, "Events");
    if (kvr_json_type_of(v) != KVR_JSON_NONE) {
        rc = read_events(r, v, dump);
    } else if (kvr_json_type_of(v = kvr_json_get(o, "TooNew")) == KVR_JSON_OBJECT) {
        a->kind = KVR_RECOVER_TOO_NEW;
        if (!kvr_json_as_u64(kvr_json_get(v, "newest_available"), &a->newest_available)) return bad(r, "newest_available is missing");
    } else if (kvr_json_type_of(kvr_json_get(o, "InvalidRange")) == KVR_JSON_OBJECT) {
        a->kind = KVR_RECOVER_INVALID_RANGE;
    } else if (kvr_json_type_of(v = kvr_json_get(o, "TreeDumpFailed")) == KVR_JSON_OBJECT) {
        a->kind = KVR_RECOVER_FAILED;
        take_text(a, kvr_json_get(v, "message"));
    } else if (kvr_json_type_of(v = kvr_json_get(o, "Error")) == KVR_JSON_STRING) {
        a->kind = KVR_RECOVER_FAILED;
        take_text(a, v);
    }
    if (!optional_u64(v, "epoch", &a->epoch, &a->has_epoch)) return bad(r, "epoch is no 64-bit number");
    if (a->kind != KVR_RECOVER_EVENTS && a->kind != KVR_RECOVER_TREE_DUMP && a->events.n) return bad(r, "events where there are none");
    return rc;
}
