/* SPDX-License-Identifier: Apache-2.0 */
/* A text that is parsed as a whole and in brief (wire/json.h) says the same: both are JSON or neither is; every member is there, in its
 * order, with its value, but for what was not wanted. An oracle of a test and of a fuzz target. */
#ifndef KVR_TESTS_JSON_AGREE_H
#define KVR_TESTS_JSON_AGREE_H

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "wire/json.h"

/* What may be cut of a member of the body. */
struct agree_may {
    bool ids, texts;
};

struct agree_list {
    struct kvr_json *values;
    struct kvr_text_of {
        const char *at;
        size_t len;
    } * keys;
    size_t n, cap;
};

static int agree_add(void *ctx, const char *key, size_t key_len, struct kvr_json v)
{
    struct agree_list *l = ctx;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 16;
        l->values = realloc(l->values, l->cap * sizeof *l->values);
        l->keys = realloc(l->keys, l->cap * sizeof *l->keys);
        KVR_ASSERT(l->values && l->keys);
    }
    l->keys[l->n] = (struct kvr_text_of){key, key_len};
    l->values[l->n++] = v;
    return 0;
}

static bool agree_named(struct kvr_text_of key, const char *name)
{
    return key.len == strlen(name) && memcmp(key.at, name, key.len) == 0;
}

static struct agree_may agree_may_of(struct kvr_text_of key, enum kvr_json_wanted wanted)
{
    static const char *const ids[] = {"prompt", "input_ids", "token_ids", "nvext"}, *const texts[] = {"prompt",       "messages", "input",
                                                                                                      "instructions", "system",   "text",
                                                                                                      "tools"};
    struct agree_may may = {false, false};
    for (size_t i = 0; i < KVR_ARRAY_LEN(ids); i++) may.ids |= agree_named(key, ids[i]);
    for (size_t i = 0; i < KVR_ARRAY_LEN(texts) && wanted == KVR_JSON_NO_PROMPT; i++) may.ids |= may.texts |= agree_named(key, texts[i]);
    return may;
}

static void agree_scalars(struct kvr_json whole, struct kvr_json brief, struct agree_may may)
{
    uint64_t a = 0, b = 0;
    double x = 0, y = 0;
    bool p = false, q = false;
    const char *s, *t;
    size_t m, n;
    KVR_ASSERT(kvr_json_as_i64_bits(whole, &a) == kvr_json_as_i64_bits(brief, &b) && a == b);
    KVR_ASSERT(kvr_json_as_double(whole, &x) == kvr_json_as_double(brief, &y) && memcmp(&x, &y, sizeof x) == 0);
    KVR_ASSERT(kvr_json_as_bool(whole, &p) == kvr_json_as_bool(brief, &q) && p == q);
    if (!kvr_json_as_str(whole, &s, &m)) return;
    KVR_ASSERT(kvr_json_as_str(brief, &t, &n));
    KVR_ASSERT((n == m && memcmp(s, t, n) == 0) || (may.texts && n == 0));
}

static void agree_ids(struct kvr_json whole, struct kvr_json brief)
{
    size_t n = kvr_json_count(whole);
    uint32_t *a = malloc((n + 1) * sizeof *a), *b = malloc((n + 1) * sizeof *b);
    long rc = kvr_json_u32_array(whole, a, n);
    KVR_ASSERT(rc == kvr_json_u32_array(brief, b, n) && kvr_json_are_u32(whole) == kvr_json_are_u32(brief));
    KVR_ASSERT(rc < 0 || memcmp(a, b, n * sizeof *a) == 0);
    if (rc > 0) KVR_ASSERT(kvr_json_u32_array(brief, b, n - 1) == -KVR_ELIMIT);
    free(a);
    free(b);
}

static void agree_values(struct kvr_json whole, struct kvr_json brief, unsigned depth, struct agree_may may, enum kvr_json_wanted wanted)
{
    struct agree_list a = {0}, b = {0};
    KVR_ASSERT(kvr_json_type_of(whole) == kvr_json_type_of(brief) && kvr_json_count(whole) == kvr_json_count(brief));
    agree_scalars(whole, brief, may);
    if (kvr_json_type_of(whole) == KVR_JSON_ARRAY) agree_ids(whole, brief);
    kvr_json_each(whole, agree_add, &a);
    kvr_json_each(brief, agree_add, &b);
    bool cut = a.n != b.n;
    KVR_ASSERT(a.n == kvr_json_count(whole));
    if (cut) KVR_ASSERT(may.ids && b.n == 1 && kvr_json_type_of(b.values[0]) == KVR_JSON_INT && kvr_json_are_u32(whole));
    for (size_t i = 0; i < a.n && !cut; i++) {
        KVR_ASSERT(a.keys[i].len == b.keys[i].len && (!a.keys[i].at || !memcmp(a.keys[i].at, b.keys[i].at, a.keys[i].len)));
        struct agree_may below = depth == 0 && a.keys[i].at ? agree_may_of(a.keys[i], wanted) : may;
        agree_values(a.values[i], b.values[i], depth + 1, below, wanted);
    }
    free(a.values);
    free(a.keys);
    free(b.values);
    free(b.keys);
}

/* Returns: whether it is JSON. */
static bool agree(struct kvr_json_parser *p, struct kvr_json_parser *q, const char *text, size_t len, enum kvr_json_wanted wanted)
{
    struct kvr_json whole, brief;
    int rc = kvr_json_parse(p, text, len, &whole, NULL);
    KVR_ASSERT(rc == kvr_json_parse_brief(q, text, len, wanted, &brief, NULL));
    if (rc == 0) agree_values(whole, brief, 0, (struct agree_may){false, false}, wanted);
    return rc == 0;
}

#endif
