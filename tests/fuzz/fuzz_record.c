/* SPDX-License-Identifier: Apache-2.0 */
/* A recorded line that is read is written and read again as the same event. */
#include <string.h>
#include <kvroute/index.h>

#include "recover/event_list.h"
#include "wire/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvr_json_parser *json;
    struct kvr_block *one = NULL, *two = NULL;
    size_t cap_one = 0, cap_two = 0;
    struct kvr_event a, b;
    uint64_t stamp = 0, again = 0;
    struct kvr_buf out = {0};
    if (!json) json = kvr_json_parser_new();
    if (kvr_record_read(json, (const char *)data, size, &stamp, &a, &one, &cap_one) == 0) {
        kvr_record_write(&out, stamp, &a);
        KVR_ASSERT(!out.failed && memchr(out.data, '\n', out.len) == out.data + out.len - 1); /* one line */
        KVR_ASSERT(kvr_record_read(json, out.data, out.len, &again, &b, &two, &cap_two) == 0);
        KVR_ASSERT(stamp == again && a.kind == b.kind && a.tier == b.tier && a.event_id == b.event_id &&
                   kvr_worker_cmp(a.worker, b.worker) == 0);
        KVR_ASSERT(kvr__event_bytes(&a) == kvr__event_bytes(&b) && a.parent_hash == b.parent_hash);
        if (a.kind == KVR_EVENT_STORED && a.blocks_n) KVR_ASSERT(memcmp(a.blocks, b.blocks, kvr__event_bytes(&a)) == 0);
        struct kvr_index *ix;
        const char *why;
        KVR_ASSERT(kvr_index_create(NULL, &ix) == 0);
        (void)kvr_index_apply(ix, &a);
        KVR_ASSERT(kvr_index_validate(ix, &why));
        kvr_index_destroy(ix);
    }
    kvr_buf_free(&out);
    free(one);
    free(two);
    return 0;
}
