/* SPDX-License-Identifier: Apache-2.0 */
/* A stream in one piece and in two is the same; a second pass over it changes nothing more; what has no usage comes out as it went in. A
 * whole answer that was changed says what was told, and has as many members as before. */
#include <string.h>

#include "wire/openai.h"
#include "wire/usage_merge.h"

static const struct kvr_usage_told told = {true, 77};

static void pass(struct kvr_json_parser *p, const char *s, size_t size, size_t cut, struct kvr_buf *out)
{
    struct kvr_usage_merge m = {.told = told};
    kvr_usage_merge_feed(&m, p, s, cut, out);
    kvr_usage_merge_feed(&m, p, s + cut, size - cut, out);
    kvr_usage_merge_end(&m, out);
    KVR_ASSERT(!m.line.len);
    kvr_usage_merge_free(&m);
}

static bool same(const struct kvr_buf *a, const char *s, size_t size)
{
    return a->len == size && (size == 0 || memcmp(a->data, s, size) == 0);
}

static void check_stream(struct kvr_json_parser *p, const char *s, size_t size, size_t cut)
{
    struct kvr_buf whole = {0}, split = {0}, again = {0};
    pass(p, s, size, size, &whole);
    pass(p, s, size, cut, &split);
    KVR_ASSERT(same(&whole, split.data, split.len));
    if (!memmem(s, size, "usage", 5)) KVR_ASSERT(same(&whole, s, size));
    pass(p, whole.data ? whole.data : "", whole.len, whole.len, &again);
    KVR_ASSERT(same(&whole, again.data, again.len));
    kvr_buf_free(&whole);
    kvr_buf_free(&split);
    kvr_buf_free(&again);
}

static void check_answer(struct kvr_json_parser *p, const char *s, size_t size)
{
    struct kvr_json root, usage;
    struct kvr_buf out = {0};
    uint64_t cached = 0;
    if (kvr_usage_merge_answer((struct kvr_json_span){s, s + size}, p, &told, &out)) {
        KVR_ASSERT(kvr_json_parse(p, out.data, out.len, &root, NULL) == 0);
        usage = kvr_json_get(root, "usage");
        KVR_ASSERT(kvr_json_as_u64(kvr_json_get(kvr_json_get(usage, "prompt_tokens_details"), "cached_tokens"), &cached) && cached == 77);
        size_t members = kvr_json_count(root);
        KVR_ASSERT(kvr_json_parse(p, s, size, &root, NULL) == 0 && kvr_json_count(root) >= members);
        KVR_ASSERT(kvr_json_type_of(kvr_json_get(root, "usage")) == KVR_JSON_OBJECT);
    } else {
        KVR_ASSERT(out.len == 0);
    }
    kvr_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvr_json_parser *p;
    if (!p) p = kvr_json_parser_new();
    if (size == 0) return 0;
    check_stream(p, (const char *)data, size, data[0] * size / 256);
    check_answer(p, (const char *)data + 1, size - 1);
    return 0;
}
