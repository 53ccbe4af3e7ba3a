/* SPDX-License-Identifier: Apache-2.0 */
/* An object whose members were changed in its text is what the parser sees: of the edited names only what was set, each once; of the
 * others every member, in its order, with its value. */
#include <string.h>

#include "wire/json.h"
#include "wire/json_edit.h"

static const struct kvr_json_edit edits[] = {
    {.name = "a"},
    {.name = "b", .value = "{\"c\":[1e2,1234567890123456789]}", .value_len = 31},
    {.name = "kv_transfer_params", .value = "null", .value_len = 4, .only_if_present = true},
};

struct members {
    struct kvr_buf others;          /* names and kinds of all members that no edit names */
    size_t n[KVR_ARRAY_LEN(edits)]; /* of each edit's name */
    struct kvr_json value[KVR_ARRAY_LEN(edits)];
};

/* What a value is, as far as it can be told without going into it. */
static void note_value(struct kvr_buf *b, struct kvr_json v)
{
    const char *s;
    size_t len;
    uint64_t bits;
    kvr_buf_printf(b, "%d.%zu.", (int)kvr_json_type_of(v), kvr_json_count(v));
    if (kvr_json_as_str(v, &s, &len)) kvr_buf_add(b, s, len);
    if (kvr_json_as_i64_bits(v, &bits)) kvr_buf_add(b, &bits, sizeof bits);
}

static void note_member(struct members *m, const char *key, size_t key_len, struct kvr_json v)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(edits); i++) {
        if (strlen(edits[i].name) != key_len || memcmp(edits[i].name, key, key_len) != 0) continue;
        m->n[i]++;
        m->value[i] = v;
        return;
    }
    kvr_buf_printf(&m->others, "%zu:", key_len);
    kvr_buf_add(&m->others, key, key_len);
    note_value(&m->others, v);
}

static void note_members(struct members *m, struct kvr_json object)
{
    for (struct kvr_json_iter i = kvr_json_iter(object); kvr_json_next(&i);) note_member(m, i.key, i.key_len, i.value);
}

static void compare(const struct members *was, const struct members *is)
{
    uint64_t v;
    KVR_ASSERT(is->others.len == was->others.len && (!is->others.len || memcmp(is->others.data, was->others.data, is->others.len) == 0));
    KVR_ASSERT(is->n[0] == 0 && is->n[1] == 1 && is->n[2] == (was->n[2] > 0));
    KVR_ASSERT(kvr_json_as_u64(kvr_json_at(kvr_json_get(is->value[1], "c"), 1), &v) && v == 1234567890123456789u);
    if (is->n[2]) KVR_ASSERT(kvr_json_type_of(is->value[2]) == KVR_JSON_NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvr_json_parser *p, *q;
    const char *s = (const char *)data;
    struct kvr_buf out = {0}, again = {0};
    struct kvr_json root, made;
    struct members was = {0}, is = {0};
    if (!p) p = kvr_json_parser_new(), q = kvr_json_parser_new();
    bool is_json = kvr_json_parse(p, s, size, &root, NULL) == 0, done = kvr_json_edit((struct kvr_json_span){s, s + size}, edits, 3, &out);
    if (is_json) KVR_ASSERT(done == (kvr_json_type_of(root) == KVR_JSON_OBJECT));
    KVR_ASSERT(done || out.len == 0);
    if (is_json && done) {
        KVR_ASSERT(kvr_json_parse(q, out.data, out.len, &made, NULL) == 0);
        note_members(&was, root);
        note_members(&is, made);
        compare(&was, &is);
        KVR_ASSERT(kvr_json_edit((struct kvr_json_span){out.data, out.data + out.len}, edits, 3, &again));
        KVR_ASSERT(again.len == out.len && memcmp(again.data, out.data, out.len) == 0); /* twice is once */
    }
    kvr_buf_free(&was.others);
    kvr_buf_free(&is.others);
    kvr_buf_free(&out);
    kvr_buf_free(&again);
    return 0;
}
