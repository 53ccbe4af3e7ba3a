/* SPDX-License-Identifier: Apache-2.0 */
/* Events of another router: a refusal, or an event that written and read again is the same; the book stays whole. */
#include <msgpuck.h>
#include <string.h>

#include "wire/sync_event.h"

static void apply(const struct kvr_sync_event *e)
{
    static struct kvr_router *router;
    static uint64_t hashes[8192], applied;
    const char *why = "";
    struct kvr_load_event ev = e->load;
    if (!router) {
        struct kvr_router_config c;
        kvr_router_config_init(&c);
        c.cost.overlap_credit = 0;
        KVR_ASSERT(kvr_router_create(&c, &router, NULL) == 0);
        for (uint64_t w = 0; w < 4; w++) kvr_router_set_worker(router, w, 0, 2);
    }
    if (ev.request.seqs_n > 8192) return;
    if (e->kind == KVR_SYNC_ADD) {
        kvr_sync_event_hashes(e, hashes);
        ev.request.worker.worker_id %= 5;
        ev.request.worker.dp_rank %= 3;
        ev.request.seqs = hashes;
    }
    ev.request.owner = 1;
    kvr_router_apply_remote(router, &ev);
    KVR_ASSERT(kvr_router_validate(router, &why));
    if (++applied % 64 == 0) kvr_router_forget_remote(router, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *p = (const char *)data;
    struct kvr_sync_event e, again;
    struct kvr_buf b = {0};
    char model[257], group[257], id[257];
    static uint64_t hashes[8192];
    if (size == 0 || !kvr_sync_run_is_whole(p, size)) return 0;
    mp_next(&p); /* the first of the run */
    KVR_ASSERT(p <= (const char *)data + size);
    if (kvr_sync_event_read((const char *)data, (size_t)(p - (const char *)data), &e)) return 0;
    if (e.kind == KVR_SYNC_MARK) {
        kvr_sync_mark_write(&b, e.partition, e.number);
    } else if (e.kind == KVR_SYNC_SESSION) {
        kvr_sync_session_write(&b, e.session, e.session_len, e.load.request.worker);
        e.partition = 0; /* of none */
    } else {
        memcpy(model, e.model ? e.model : "", e.model_len);
        memcpy(group, e.group ? e.group : "", e.group_len);
        model[e.model_len] = group[e.group_len] = 0;
        memcpy(id, e.load.request.id, e.load.request.id_len);
        struct kvr_load_event ev = e.load;
        ev.request.id = id;
        if (ev.request.seqs_n > 8192 || strlen(model) != e.model_len || strlen(group) != e.group_len) return 0;
        if (e.kind == KVR_SYNC_ADD) kvr_sync_event_hashes(&e, hashes);
        ev.request.seqs = hashes;
        kvr_sync_event_write(&b, e.partition, model, group, e.block_size, &ev);
    }
    KVR_ASSERT(!b.failed && kvr_sync_event_read(b.data, b.len, &again) == 0);
    KVR_ASSERT(again.kind == e.kind && again.partition == e.partition && again.number == e.number && again.block_size == e.block_size);
    KVR_ASSERT(again.load.request.id_len == e.load.request.id_len && again.load.output_blocks == e.load.output_blocks);
    KVR_ASSERT(again.load.request.seqs_n == e.load.request.seqs_n && again.load.fraction == e.load.fraction);
    KVR_ASSERT(again.load.request.worker.worker_id == e.load.request.worker.worker_id &&
               again.load.request.prefill_tokens == e.load.request.prefill_tokens);
    if (e.kind != KVR_SYNC_MARK) apply(&e);
    kvr_buf_free(&b);
    return 0;
}
