/* SPDX-License-Identifier: Apache-2.0 */
/* A stream seen in one piece and in two gives the same answer. */
#include "wire/sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvr_json_parser *p;
    struct kvr_sse whole = {0}, split = {0};
    if (!p) p = kvr_json_parser_new();
    if (size == 0) return 0;
    size_t cut = data[0] * size / 256;
    const char *s = (const char *)data;
    kvr_sse_feed(&whole, p, s, size);
    kvr_sse_feed(&split, p, s, cut);
    kvr_sse_feed(&split, p, s + cut, size - cut);
    KVR_ASSERT(whole.events == split.events && whole.done == split.done && whole.usage.present == split.usage.present);
    KVR_ASSERT(whole.usage.cached_tokens == split.usage.cached_tokens && whole.part.len == split.part.len);
    kvr_sse_free(&whole);
    kvr_sse_free(&split);
    return 0;
}
