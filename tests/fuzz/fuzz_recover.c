/* SPDX-License-Identifier: Apache-2.0 */
/* A recovery answer read in one piece and in two gives the same; its events keep an index sound and survive being written again. */
#include <string.h>
#include <kvroute/index.h>

#include "recover/event_json.h"
#include "wire/recover_answer.h"

static int read_in(struct kvr_recover_reader *r, const char *data, size_t n, size_t cut)
{
    KVR_ASSERT(kvr_recover_reader_init(r) == 0);
    int rc = kvr_recover_reader_feed(r, data, cut);
    if (rc == 0) rc = kvr_recover_reader_feed(r, data + cut, n - cut);
    return rc ? rc : kvr_recover_reader_end(r);
}

static void check_same(const struct kvr_event *a, const struct kvr_event *b)
{
    KVR_ASSERT(a->kind == b->kind && a->tier == b->tier && a->event_id == b->event_id && kvr_worker_cmp(a->worker, b->worker) == 0);
    KVR_ASSERT(a->blocks_n == b->blocks_n && a->removed_n == b->removed_n && kvr__event_bytes(a) == kvr__event_bytes(b));
    KVR_ASSERT(a->has_parent == b->has_parent && a->parent_hash == b->parent_hash);
    if (a->kind == KVR_EVENT_STORED && a->blocks_n) KVR_ASSERT(memcmp(a->blocks, b->blocks, kvr__event_bytes(a)) == 0);
    if (a->kind == KVR_EVENT_REMOVED && a->removed_n) KVR_ASSERT(memcmp(a->removed, b->removed, kvr__event_bytes(a)) == 0);
}

/* What was read, written as a list of events, is read again as the same. */
static void check_round_trip(struct kvr_event_list *events, bool dump)
{
    struct kvr_recover_reader r;
    struct kvr_buf b = {0};
    const struct kvr_event *e = kvr__event_list_events(events);
    kvr_buf_str(&b, dump ? "{\"TreeDump\":{\"events\":[" : "{\"Events\":[");
    for (size_t i = 0; i < events->n; i++) kvr__event_json(&b, &e[i], e[i].event_id);
    kvr_buf_str(&b, dump ? "],\"last_event_id\":7}}" : "]}");
    KVR_ASSERT(!b.failed && read_in(&r, b.data, b.len, b.len / 2) == 0 && r.answer.events.n == events->n);
    const struct kvr_event *again = kvr__event_list_events(&r.answer.events);
    for (size_t i = 0; i < events->n; i++) check_same(&e[i], &again[i]);
    kvr_recover_reader_free(&r);
    kvr_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvr_recover_reader a, b;
    struct kvr_index *ix;
    const char *why;
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    size_t n = size - 1, cut = n ? data[0] % (n + 1) : 0;
    int ra = read_in(&a, text, n, n), rb = read_in(&b, text, n, cut);
    KVR_ASSERT(ra == rb && a.answer.kind == b.answer.kind && a.answer.events.n == b.answer.events.n);
    KVR_ASSERT(a.answer.last_event_id == b.answer.last_event_id);
    if (ra == 0) {
        KVR_ASSERT(kvr_index_create(NULL, &ix) == 0);
        const struct kvr_event *e = kvr__event_list_events(&a.answer.events);
        for (size_t i = 0; i < a.answer.events.n; i++) (void)kvr_index_apply(ix, &e[i]);
        KVR_ASSERT(kvr_index_validate(ix, &why));
        kvr_index_destroy(ix);
        check_round_trip(&a.answer.events, a.answer.kind == KVR_RECOVER_TREE_DUMP);
    }
    kvr_recover_reader_free(&a);
    kvr_recover_reader_free(&b);
    return 0;
}
