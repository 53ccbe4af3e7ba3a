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

static bool agree_named(const struct kvr_json_iter *m, const char *name)
{
    return m->key_len == strlen(name) && memcmp(m->key, name, m->key_len) == 0;
}

static struct agree_may agree_may_of(const struct kvr_json_iter *m, enum kvr_json_wanted wanted)
{
    static const char *const ids[] = {"prompt", "input_ids", "token_ids", "nvext"}, *const texts[] = {"prompt",       "messages", "input",
                                                                                                      "instructions", "system",   "text",
                                                                                                      "tools"};
    struct agree_may may = {false, false};
    for (size_t i = 0; i < KVR_ARRAY_LEN(ids); i++) may.ids |= agree_named(m, ids[i]);
    for (size_t i = 0; i < KVR_ARRAY_LEN(texts) && wanted == KVR_JSON_NO_PROMPT; i++) may.ids |= may.texts |= agree_named(m, texts[i]);
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

static size_t agree_count(struct kvr_json v)
{
    size_t n = 0;
    for (struct kvr_json_iter i = kvr_json_iter(v); kvr_json_next(&i);) n++;
    return n;
}

static void agree_values(struct kvr_json whole, struct kvr_json brief, unsigned depth, struct agree_may may, enum kvr_json_wanted wanted)
{
    struct kvr_json_iter a = kvr_json_iter(whole), b = kvr_json_iter(brief);
    size_t n = agree_count(whole);
    bool cut = n != agree_count(brief);
    KVR_ASSERT(kvr_json_type_of(whole) == kvr_json_type_of(brief) && kvr_json_count(whole) == kvr_json_count(brief));
    agree_scalars(whole, brief, may);
    if (kvr_json_type_of(whole) == KVR_JSON_ARRAY) agree_ids(whole, brief);
    KVR_ASSERT(n == kvr_json_count(whole));
    if (cut) {
        KVR_ASSERT(may.ids && agree_count(brief) == 1 && kvr_json_are_u32(whole));
        KVR_ASSERT(kvr_json_next(&b) && kvr_json_type_of(b.value) == KVR_JSON_INT);
        return;
    }
    while (kvr_json_next(&a) && kvr_json_next(&b)) {
        KVR_ASSERT(a.key_len == b.key_len && (!a.key || !memcmp(a.key, b.key, a.key_len)));
        agree_values(a.value, b.value, depth + 1, depth == 0 && a.key ? agree_may_of(&a, wanted) : may, wanted);
    }
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
