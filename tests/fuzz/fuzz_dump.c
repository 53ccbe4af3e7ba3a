/* SPDX-License-Identifier: Apache-2.0 */
/* A peer's dump read in one piece and in two gives the same events, views and verdict; events go into an index. */
#include <string.h>
#include <kvroute/index.h>

#include "wire/dump_stream.h"

struct seen {
    struct kvr_index *index;
    uint64_t events, blocks, views, partitions, sum;
};

static int on_partition(void *ctx, const char *model, const char *group, uint32_t block_size)
{
    struct seen *s = ctx;
    s->partitions++;
    s->sum += strlen(model) + strlen(group) + block_size;
    return 0;
}

static int on_event(void *ctx, const struct kvr_event *ev)
{
    struct seen *s = ctx;
    s->events++;
    s->blocks += ev->blocks_n;
    for (size_t i = 0; i < ev->blocks_n; i++) s->sum += ev->blocks[i].block_hash ^ ev->blocks[i].tokens_hash;
    kvr_index_apply(s->index, ev);
    return 0;
}

static int on_view(void *ctx, const struct kvr_dump_view *v)
{
    struct seen *s = ctx;
    s->views++;
    s->sum += v->next_sequence;
    return 0;
}

static int read_in(struct seen *s, const char *data, size_t n, size_t cut, bool *over)
{
    struct kvr_dump_handler h = {on_partition, on_event, on_view, s};
    struct kvr_dump_stream d;
    struct kvr_index_config c = {.bytes_max = 1 << 20};
    KVR_ASSERT(kvr_index_create(&c, &s->index) == 0 && kvr_dump_stream_init(&d, &h) == 0);
    int rc = kvr_dump_stream_feed(&d, data, cut);
    if (rc == 0) rc = kvr_dump_stream_feed(&d, data + cut, n - cut);
    *over = kvr_dump_stream_over(&d);
    kvr_dump_stream_free(&d);
    const char *why;
    KVR_ASSERT(kvr_index_validate(s->index, &why));
    kvr_index_destroy(s->index);
    s->index = NULL;
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen a = {0}, b = {0};
    bool over_a, over_b;
    if (size == 0) return 0;
    size_t cut = data[0] * (size - 1) / 256;
    const char *text = (const char *)data + 1;
    int ra = read_in(&a, text, size - 1, size - 1, &over_a), rb = read_in(&b, text, size - 1, cut, &over_b);
    KVR_ASSERT(ra == rb && over_a == over_b && a.sum == b.sum && a.events == b.events && a.views == b.views &&
               a.partitions == b.partitions);
    return 0;
}
