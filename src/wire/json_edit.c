/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members are passed from the first to the last. What is between two of them, a comma and white space, belongs to the one behind it and
 * goes with it; only the space behind the opening brace stays where it is, so that any of them can be the first:
 *
 *     { "a": 1, "b": 2 }
 *     --                  head
 *       ------            first member
 *             --------    second member, and what is before it
 *                     --  tail
 */
#include "wire/json_edit.h"

#include <string.h>

struct editing {
    const struct kvr_json_edit *edits;
    size_t n;
    uint64_t found;  /* bit i: edits[i] has been done */
    size_t written;  /* members */
    const char *end; /* of the body */
    struct kvr_buf *out;
};

static void add(struct editing *e, const char *from, const char *to)
{
    kvr_buf_add(e->out, from, (size_t)(to - from));
}

/* Which edit is the member's; n: none. */
static size_t edit_of(const struct editing *e, const struct kvr_json_text_pair *m)
{
    size_t i = 0;
    while (i < e->n && !kvr_json_text_named(m, e->edits[i].name)) i++;
    return i;
}

/* `from`: the end of the member before it. */
static void edit_member(struct editing *e, const char *from, const struct kvr_json_text_pair *m)
{
    const char *quote = m->key - 1;
    size_t i = edit_of(e, m);
    const struct kvr_json_edit *edit = i < e->n ? &e->edits[i] : NULL;
    bool again = edit && (e->found >> i & 1);
    if (edit) e->found |= UINT64_C(1) << i;
    if (edit && (!edit->value || again)) return;
    if (e->written++) add(e, from, quote);
    if (!edit) {
        add(e, quote, m->value.end);
        return;
    }
    add(e, quote, m->value.at);
    kvr_buf_add(e->out, edit->value, edit->value_len);
}

/* Returns: where the last member ends; NULL: what is behind it is not the rest of an object. */
static const char *edit_members(struct editing *e, const char *brace)
{
    const char *first = kvr_json_text_space(brace + 1, e->end), *p = brace, *from = first;
    struct kvr_json_text_pair m;
    add(e, brace, first);
    while (kvr_json_text_next(&p, e->end, &m)) {
        edit_member(e, from, &m);
        from = p;
    }
    const char *last = kvr_json_text_space(from, e->end);
    if (last == e->end || *last != '}' || kvr_json_text_space(last + 1, e->end) != e->end) return NULL;
    return from;
}

static void add_new(struct editing *e)
{
    for (size_t i = 0; i < e->n; i++) {
        const struct kvr_json_edit *edit = &e->edits[i];
        if ((e->found >> i & 1) || !edit->value || edit->only_if_present) continue;
        kvr_buf_printf(e->out, "%s\"%s\":", e->written++ ? "," : "", edit->name);
        kvr_buf_add(e->out, edit->value, edit->value_len);
    }
}

/* So that the text is written without being moved. */
static void make_room(struct kvr_json_span body, const struct kvr_json_edit *edits, size_t n, struct kvr_buf *out)
{
    size_t len = (size_t)(body.end - body.at);
    for (size_t i = 0; i < n; i++) len += edits[i].value ? strlen(edits[i].name) + edits[i].value_len + 4 : 0;
    (void)kvr_buf_reserve(out, len);
}

bool kvr_json_edit(struct kvr_json_span body, const struct kvr_json_edit *edits, size_t n, struct kvr_buf *out)
{
    struct editing e = {.edits = edits, .n = n, .end = body.end, .out = out};
    size_t before = out->len;
    KVR_ASSERT(n <= KVR_JSON_EDITS_MAX);
    const char *brace = kvr_json_text_space(body.at, body.end);
    if (brace == body.end || *brace != '{') return false;
    make_room(body, edits, n, out);
    add(&e, body.at, brace);
    const char *last = edit_members(&e, brace);
    if (!last) {
        out->len = before;
        return false;
    }
    add_new(&e);
    add(&e, last, body.end);
    return true;
}
