/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /events {"model_name", "routing_group", "block_size", "events": [RouterEvent, ...]}: applies events of workers that nobody
 * follows here, such as those of a recording. Answers {"applied": n, "failed": n}. A worker with a listener is refused, because
 * its view belongs to its engine.
 */
#include "app/indexer/state.h"
#include "wire/router_event.h"

struct feed {
    struct request *rq;
    struct partition *part;
    struct kvr_block *blocks;
    size_t cap;
    uint64_t applied, failed;
};

static int take_event(struct feed *f, struct kvr_json v)
{
    struct indexer *x = f->rq->loop->indexer;
    struct kvr_event ev;
    int rc = kvr_router_event_read(v, &ev, &f->blocks, &f->cap);
    if (rc) return rc;
    if (catalogue_has_listener(x, ev.worker)) return -KVR_EEXISTS;
    rc = kvr_index_apply(f->part->index, &ev);
    if (ev.tier != KVR_TIER_DEVICE && ev.kind == KVR_EVENT_STORED) atomic_store_explicit(&f->part->tiers, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->telemetry.events[ev.tier != KVR_TIER_DEVICE][ev.kind][rc != 0], 1, memory_order_relaxed);
    bool good = rc == 0 || rc == -KVR_ENOTFOUND; /* a removal of what has gone already is as good as one */
    f->applied += good;
    f->failed += !good;
    return 0;
}

static void answer(struct feed *f, int rc)
{
    struct kvr_buf b = {0};
    unsigned long long at = f->applied;
    at += f->failed;
    if (rc == -KVR_EFORMAT) {
        answer_error(f->rq, 422, "events[%llu] is not a router event; those before it are applied", at);
    } else if (rc == -KVR_EEXISTS) {
        answer_error(f->rq, 409, "events[%llu] is of a worker that is registered here; those before it are applied", at);
    } else if (rc) {
        answer_error(f->rq, 500, "%s", kvr_strerror(rc));
    } else {
        kvr_json_printf(&b, "{'applied':%ju,'failed':%ju}", f->applied, f->failed);
        answer_buf(f->rq, 200, JSON_TYPE, &b);
    }
}

void events_post(struct request *rq, struct kvr_json o)
{
    struct feed f = {.rq = rq};
    char model[NAME_MAX_LEN + 1], group[NAME_MAX_LEN + 1] = "default";
    uint64_t bs = 0;
    struct kvr_json events = kvr_json_get(o, "events");
    if (body_text(rq, o, "model_name", true, model, sizeof model) < 0 || body_text(rq, o, "routing_group", false, group, sizeof group) < 0)
        return;
    if (!group[0]) snprintf(group, sizeof group, "default");
    if (!kvr_json_as_u64(kvr_json_get(o, "block_size"), &bs) || bs == 0 || bs > 65536) {
        answer_error(rq, 422, "block_size: allowed: 1 to 65536");
    } else if (kvr_json_type_of(events) != KVR_JSON_ARRAY) {
        answer_error(rq, 422, "events: allowed: a list of router events");
    } else if (!(f.part = catalogue_get(rq->loop->indexer, model, group, (uint32_t)bs))) {
        struct partition *other = catalogue_find(rq->loop->indexer, model, strlen(model), group, strlen(group));
        if (other)
            answer_error(rq, 409, "block_size mismatch for model=%s routing_group=%s: existing=%u, requested=%u", model, group,
                         other->block_size, (unsigned)bs);
        else answer_error(rq, 409, "no room for another model and routing group: at most %d", PARTITIONS_MAX);
        if (other) partition_unref(other);
    } else {
        int rc = 0;
        for (struct kvr_json_iter i = kvr_json_iter(events); rc == 0 && kvr_json_next(&i);) rc = take_event(&f, i.value);
        answer(&f, rc);
        partition_unref(f.part);
        free(f.blocks);
    }
}
