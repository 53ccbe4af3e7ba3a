/* SPDX-License-Identifier: Apache-2.0 */
/* An outlet that keeps what was published last, in engine framing. */
#ifndef KVR_CAPTURE_OUTLET_H
#define KVR_CAPTURE_OUTLET_H

#include "net/ingest/event_plane.h"

struct capture {
    struct kvr_outlet base;
    struct kvr_buf event, batch;
};

static int capture_publish(struct kvr_outlet *o, const struct kvr_event *ev, const struct kvr_engine_words *words)
{
    struct capture *c = (struct capture *)o;
    c->event.len = c->batch.len = 0;
    kvr_engine_encode(&c->event, ev, words);
    kvr_engine_encode_batch(&c->batch, 1, &c->event, 1, ev->worker.dp_rank);
    return 0;
}

static void capture_close(struct kvr_outlet *o)
{
    struct capture *c = (struct capture *)o;
    kvr_buf_free(&c->event);
    kvr_buf_free(&c->batch);
}

static inline struct kvr_outlet *capture_open(struct capture *c)
{
    *c = (struct capture){.base = {.publish = capture_publish, .close = capture_close}};
    return &c->base;
}

#endif
