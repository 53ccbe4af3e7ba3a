/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of a stored snapshot: what is read is written again and read as the same. */
#include <string.h>

#include "wire/plane_snapshot.h"

struct trip {
    struct kvr_buf out;
    struct kvr_snapshot_reader again;
    const struct kvr_event *ev;
    const struct kvr_snapshot_cursor *cursor;
    unsigned told;
};

static int same_event(void *ctx, const struct kvr_event *ev)
{
    struct trip *t = ctx;
    const struct kvr_event *want = t->ev;
    t->told++;
    KVR_ASSERT(want && kvr_worker_cmp(want->worker, ev->worker) == 0 && want->tier == ev->tier && want->blocks_n == ev->blocks_n);
    KVR_ASSERT(want->has_parent == ev->has_parent && want->parent_hash == ev->parent_hash);
    KVR_ASSERT(want->has_start_position == ev->has_start_position && want->start_position == ev->start_position);
    KVR_ASSERT(ev->blocks_n == 0 || memcmp(want->blocks, ev->blocks, ev->blocks_n * sizeof *ev->blocks) == 0);
    return 0;
}

static int same_cursor(void *ctx, const struct kvr_snapshot_cursor *c)
{
    struct trip *t = ctx;
    t->told++;
    KVR_ASSERT(t->cursor && c->next == t->cursor->next && c->publisher == t->cursor->publisher && c->heartbeats == t->cursor->heartbeats &&
               kvr_worker_cmp(c->worker, t->cursor->worker) == 0);
    return 0;
}

static int round_trip(struct trip *t)
{
    t->told = 0;
    KVR_ASSERT(!t->out.failed && kvr_snapshot_read(&t->again, t->out.data, t->out.len) == 0 && t->told == 1);
    t->out.len = 0;
    return 0;
}

static int on_event(void *ctx, const struct kvr_event *ev)
{
    struct trip *t = ctx;
    t->ev = ev;
    t->cursor = NULL;
    kvr_snapshot_event_write(&t->out, ev);
    return round_trip(t);
}

static int on_cursor(void *ctx, const struct kvr_snapshot_cursor *c)
{
    struct trip *t = ctx;
    t->ev = NULL;
    t->cursor = c;
    kvr_snapshot_cursor_write(&t->out, c);
    return round_trip(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct trip t = {0};
    struct kvr_snapshot_reader r = {on_event, on_cursor, &t, NULL, 0};
    t.again = (struct kvr_snapshot_reader){same_event, same_cursor, &t, NULL, 0};
    (void)kvr_snapshot_read(&r, (const char *)data, size);
    free(r.blocks);
    free(t.again.blocks);
    kvr_buf_free(&t.out);
    return 0;
}
