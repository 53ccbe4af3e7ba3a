/* SPDX-License-Identifier: Apache-2.0 */
/* Event-plane messages: an envelope that is read and written again is read as the same; so are its events and heartbeats. */
#include <string.h>

#include "wire/plane_event.h"

struct lists {
    struct kvr_block *a, *b;
    size_t a_cap, b_cap;
    struct kvr_buf again;
};

static int check_event(void *ctx, const struct kvr_plane_place *place)
{
    struct lists *l = ctx;
    struct kvr_event ev, ev2;
    if (kvr_plane_event_read(place->data, place->len, &ev, &l->a, &l->a_cap)) return 0; /* its content is wrong */
    KVR_ASSERT(ev.event_id == place->event_id && kvr_worker_cmp(ev.worker, place->worker) == 0);
    l->again.len = 0;
    kvr_plane_event_write(&l->again, &ev);
    KVR_ASSERT(!l->again.failed && kvr_plane_event_read(l->again.data, l->again.len, &ev2, &l->b, &l->b_cap) == 0);
    KVR_ASSERT(ev2.kind == ev.kind && ev2.tier == ev.tier && ev2.event_id == ev.event_id && kvr_worker_cmp(ev2.worker, ev.worker) == 0);
    if (ev.kind == KVR_EVENT_STORED) {
        KVR_ASSERT(ev2.blocks_n == ev.blocks_n && ev2.has_parent == ev.has_parent && ev2.parent_hash == ev.parent_hash);
        KVR_ASSERT(ev.blocks_n == 0 || memcmp(ev.blocks, ev2.blocks, ev.blocks_n * sizeof *ev.blocks) == 0);
        KVR_ASSERT(ev2.has_start_position == ev.has_start_position && ev2.start_position == ev.start_position);
    } else if (ev.kind == KVR_EVENT_REMOVED) {
        KVR_ASSERT(ev2.removed_n == ev.removed_n && (ev.removed_n == 0 || memcmp(ev.removed, ev2.removed, ev.removed_n * 8) == 0));
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct lists l = {0};
    struct kvr_buf scratch = {0}, scratch2 = {0}, out = {0};
    struct kvr_envelope e, e2;
    struct kvr_heartbeat b;
    const char *text = (const char *)data, *inner;
    size_t inner_len;
    if (kvr_plane_frame_open(text, size, &inner, &inner_len) == 0) KVR_ASSERT(inner_len + KVR_PLANE_FRAME_HEAD == size);
    (void)kvr_plane_events_each(text, size, check_event, &l);
    (void)kvr_heartbeat_read(text, size, &b);
    if (kvr_envelope_read(text, size, &scratch, &e) == 0) {
        kvr_envelope_write(&out, &e);
        KVR_ASSERT(!out.failed && kvr_envelope_read(out.data, out.len, &scratch2, &e2) == 0);
        KVR_ASSERT(e2.publisher == e.publisher && e2.sequence == e.sequence && e2.published_at_ms == e.published_at_ms &&
                   e2.heartbeats == e.heartbeats);
        KVR_ASSERT(e2.topic_len == e.topic_len && (e.topic_len == 0 || memcmp(e2.topic, e.topic, e.topic_len) == 0));
        KVR_ASSERT(e2.payload_len == e.payload_len && (e.payload_len == 0 || memcmp(e2.payload, e.payload, e.payload_len) == 0));
        (void)kvr_plane_events_each(e.payload, e.payload_len, check_event, &l);
        if (kvr_heartbeat_read(e.payload, e.payload_len, &b) == 0) {
            struct kvr_heartbeat b2;
            out.len = 0;
            kvr_heartbeat_write(&out, &b);
            KVR_ASSERT(kvr_heartbeat_read(out.data, out.len, &b2) == 0 && b2.last_event_id == b.last_event_id &&
                       kvr_worker_cmp(b.worker, b2.worker) == 0);
        }
    }
    kvr_buf_free(&scratch);
    kvr_buf_free(&scratch2);
    kvr_buf_free(&out);
    kvr_buf_free(&l.again);
    free(l.a);
    free(l.b);
    return 0;
}
