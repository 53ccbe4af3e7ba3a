/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's view as bytes, and back: store/view_copy.h. Nothing is put in place before all of it is known to be of the rank. */
#include "store/view_copy.h"

#include <string.h>

void kvr_view_of_init(struct kvr_view_of *of, const struct kvr_view_identity *id, struct kvr_ingest *in, struct kvr_index *index,
                      struct kvr_worker worker, uint32_t block_size)
{
    *of = (struct kvr_view_of){.worker = worker, .ingest = in, .index = index, .partition = {.block_size = block_size}};
    snprintf(of->partition.model, sizeof of->partition.model, "%s", id->model);
    snprintf(of->partition.group, sizeof of->partition.group, "%s", id->group);
    snprintf(of->endpoint, sizeof of->endpoint, "%s", id->endpoint);
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

bool kvr_view_copy_take(struct kvr_view_copy *c, const struct kvr_view_of *of, const struct kvr_view_status *st, const uint32_t *ranks,
                        size_t n)
{
    const struct kvr_view_cursor *at = &st->cursor;
    int rc = 0;
    c->source = (struct kvr_saved_source){
        .worker = st->worker, .known = true, .whole = !at->partial, .next = at->next, .last_hash = at->last_hash, .last_ts = at->last_ts};
    snprintf(c->source.endpoint, sizeof c->source.endpoint, "%s", of->endpoint);
    kvr_ingest_memory(of->ingest, &c->memory);
    for (size_t i = 0; i < n && rc == 0; i++) {
        struct kvr_worker w = {st->worker.worker_id, ranks[i]};
        rc = kvr_index_dump(of->index, &w, kvr_saved_keep_event, &c->writer);
    }
    return rc == 0 && !c->memory.failed && !c->writer.piece.failed;
}

bool kvr_view_copy_write(struct kvr_view_copy *c, const struct kvr_view_of *of, bool (*put)(void *ctx, const void *data, size_t len),
                         void *ctx)
{
    c->writer.put = put;
    c->writer.ctx = ctx;
    kvr_saved_begin(&c->writer, KVR_SAVED_SNAPSHOT);
    kvr_saved_put_partition(&c->writer, &of->partition);
    kvr_saved_put_source(&c->writer, &c->source);
    kvr_saved_put_memory(&c->writer, &c->memory);
    kvr_saved_flush(&c->writer);
    kvr_saved_end(&c->writer);
    return !c->writer.failed;
}

void kvr_view_copy_free(struct kvr_view_copy *c)
{
    kvr_saved_writer_free(&c->writer);
    kvr_buf_free(&c->memory);
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

static bool same_partition(void *ctx, const struct kvr_saved_partition *p)
{
    struct kvr_view_reading *r = ctx;
    const struct kvr_saved_partition *want = &r->of->partition;
    if (r->partitions++) r->wrong = "it has more than one view";
    else if (p->block_size != want->block_size) r->wrong = "it is of another block size";
    else if (p->model[0] && want->model[0] && strcmp(p->model, want->model) != 0) r->wrong = "it is of another model";
    else if (strcmp(p->group, want->group) != 0) r->wrong = "it is of another routing group";
    return !r->wrong;
}

static bool same_source(void *ctx, const struct kvr_saved_source *s)
{
    struct kvr_view_reading *r = ctx;
    if (r->sources++) r->wrong = "it has more than one view";
    else if (kvr_worker_cmp(s->worker, r->of->worker) != 0) r->wrong = "it is of another worker";
    else if (strcmp(s->endpoint, r->of->endpoint) != 0) r->wrong = "it is of another events endpoint";
    r->source = *s;
    return !r->wrong;
}

static bool take_memory(void *ctx, const char *data, size_t len)
{
    struct kvr_view_reading *r = ctx;
    if (len) kvr_buf_add(&r->memory, data, len);
    return !r->memory.failed;
}

static bool look_at_events(void *ctx, const struct kvr_event *ev, size_t n)
{
    struct kvr_view_reading *r = ctx;
    for (size_t i = 0; i < n; i++) {
        if (ev[i].worker.worker_id != r->of->worker.worker_id) r->wrong = "it has blocks of another worker";
        r->tiers |= ev[i].tier != KVR_TIER_DEVICE;
    }
    return !r->wrong;
}

static bool take_events(void *ctx, const struct kvr_event *ev, size_t n)
{
    const struct kvr_view_reading *r = ctx;
    kvr_index_apply_batch(r->of->index, ev, n, NULL); /* what a byte cap has no room for is counted there */
    return true;
}

const char *kvr_view_read(struct kvr_view_reading *r, const struct kvr_view_of *of, const void *data, size_t len)
{
    const struct kvr_saved_reader look = {
        .partition = same_partition, .source = same_source, .memory = take_memory, .events = look_at_events, .ctx = r};
    r->of = of;
    const char *wrong = kvr_saved_check(data, len, &r->file, &r->blocks);
    if (wrong) return wrong;
    if (!kvr_saved_read(&r->file, &look)) return r->wrong ? r->wrong : "out of memory";
    return r->sources && r->source.known ? NULL : "it has no view";
}

bool kvr_view_load(struct kvr_view_reading *r)
{
    const struct kvr_saved_reader load = {.events = take_events, .ctx = r};
    kvr_index_drop_rank(r->of->index, r->of->worker);
    if (kvr_saved_read(&r->file, &load)) return true;
    kvr_index_drop_rank(r->of->index, r->of->worker);
    return false;
}

struct kvr_view_cursor kvr_view_place(const struct kvr_saved_source *s)
{
    return (struct kvr_view_cursor){s->known, !s->whole, s->next, s->last_hash, s->last_ts};
}

void kvr_view_reading_free(struct kvr_view_reading *r)
{
    kvr_buf_free(&r->memory);
}
