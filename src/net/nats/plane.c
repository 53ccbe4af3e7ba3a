/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Envelopes over NATS. An outlet's `publish` runs on the thread that owns the rank, `heartbeat` on another: the stamp and the last
 * id they share are under `lock`, held over the hand-over to the client library too, so that the numbers go out in order.
 */
#include <pthread.h>
#include <string.h>

#include "base/lock.h"
#include "net/ingest/event_plane.h"
#include "wire/plane_event.h"

struct nats_outlet {
    struct kvr_outlet base;
    struct kvr_nats *link;
    struct kvr_worker worker;
    char events[KVR_SCOPE_MAX + 32], heartbeats[KVR_SCOPE_MAX + 32];
    struct kvr_lock lock;
    struct kvr_stamp stamp;
    uint64_t last_id;
    struct kvr_buf payload, out;
};

/* Under `lock`: the payload goes into an envelope. */
static void wrap(struct nats_outlet *o, const char *topic, struct kvr_buf *out)
{
    o->stamp.partial = atomic_load(&o->base.partial);
    if (o->payload.failed) out->failed = true;
    else kvr_stamp_envelope(&o->stamp, topic, &o->payload, out);
    kvr_buf_reset(&o->payload);
}

/* Under `lock`. */
static int send_payload(struct nats_outlet *o, const char *topic, const char *subject)
{
    wrap(o, topic, &o->out);
    int rc = o->out.failed ? -KVR_ENOMEM : kvr_nats_publish(o->link, subject, NULL, o->out.data, o->out.len);
    kvr_buf_reset(&o->out);
    return rc;
}

static int publish(struct kvr_outlet *base, const struct kvr_event *ev, const struct kvr_engine_words *)
{
    struct nats_outlet *o = (struct nats_outlet *)base;
    kvr_lock(&o->lock);
    kvr_plane_event_write(&o->payload, ev);
    int rc = send_payload(o, KVR_PLANE_EVENTS, o->events);
    o->last_id = ev->event_id;
    kvr_unlock(&o->lock);
    return rc;
}

static void heartbeat(struct kvr_outlet *base)
{
    struct nats_outlet *o = (struct nats_outlet *)base;
    if (!kvr_nats_is_up(o->link)) return; /* an old heartbeat says nothing */
    kvr_lock(&o->lock);
    struct kvr_heartbeat b = {o->worker, o->last_id};
    kvr_heartbeat_write(&o->payload, &b);
    (void)send_payload(o, KVR_PLANE_HEARTBEATS, o->heartbeats);
    kvr_unlock(&o->lock);
}

static void close_outlet(struct kvr_outlet *base)
{
    struct nats_outlet *o = (struct nats_outlet *)base;
    kvr_buf_free(&o->payload);
    kvr_buf_free(&o->out);
    kvr_lock_destroy(&o->lock);
    free(o);
}

void kvr_nats_outlet_envelope(struct kvr_outlet *base, const struct kvr_event *ev, struct kvr_buf *out)
{
    struct nats_outlet *o = (struct nats_outlet *)base;
    kvr_lock(&o->lock);
    kvr_plane_event_write(&o->payload, ev);
    wrap(o, KVR_PLANE_EVENTS, out);
    o->last_id = ev->event_id;
    kvr_unlock(&o->lock);
}

int kvr_outlet_nats(struct kvr_nats *link, const char *scope, struct kvr_worker w, struct kvr_outlet **out, char *err, size_t cap)
{
    struct nats_outlet *o = calloc(1, sizeof *o);
    if (!o) return kvr_refuse(err, cap, "out of memory");
    o->base = (struct kvr_outlet){.publish = publish, .heartbeat = heartbeat, .close = close_outlet};
    o->link = link;
    o->worker = w;
    snprintf(o->events, sizeof o->events, "%s." KVR_PLANE_EVENTS, scope);
    snprintf(o->heartbeats, sizeof o->heartbeats, "%s." KVR_PLANE_HEARTBEATS, scope);
    snprintf(o->base.where, sizeof o->base.where, "nats %s", o->events);
    kvr_lock_init(&o->lock, KVR_LOCK_PLANE);
    kvr_stamp_init(&o->stamp);
    o->stamp.heartbeats = true;
    *out = &o->base;
    return 0;
}

/* ---- consuming -------------------------------------------------------------------------------------------------- */

enum { PENDING_BYTES = 64 << 20, SUBSCRIBE_MS = 1000 };

struct kvr_plane_feed {
    struct kvr_nats *link;
    struct kvr_ingest *in;
    struct kvr_nats_sub *events, *heartbeats;
};

static void on_message(void *ctx, const struct kvr_nats_message *m)
{
    struct kvr_plane_feed *f = ctx;
    (void)kvr_ingest_plane_message(f->in, m->data, m->len, 0, true);
}

static void on_state(void *ctx, bool up)
{
    struct kvr_plane_feed *f = ctx;
    kvr_ingest_plane_state(f->in, up);
}

int kvr_plane_feed_nats(struct kvr_nats *link, const char *scope, struct kvr_ingest *in, struct kvr_plane_feed **out)
{
    struct kvr_plane_feed *f = calloc(1, sizeof *f);
    char subject[KVR_SCOPE_MAX + 32];
    if (!f) return -KVR_ENOMEM;
    *f = (struct kvr_plane_feed){.link = link, .in = in};
    snprintf(subject, sizeof subject, "%s." KVR_PLANE_EVENTS, scope);
    int rc = kvr_nats_subscribe(link, subject, NULL, PENDING_BYTES, on_message, f, &f->events);
    snprintf(subject, sizeof subject, "%s." KVR_PLANE_HEARTBEATS, scope);
    if (rc == 0) rc = kvr_nats_subscribe(link, subject, NULL, PENDING_BYTES, on_message, f, &f->heartbeats);
    if (rc == 0) {
        /* "Up" means that the server knows of the subscriptions; while it is away, nothing is up. */
        (void)kvr_nats_flush(link, SUBSCRIBE_MS);
        rc = kvr_nats_listen(link, on_state, f);
    }
    if (rc) kvr_plane_feed_close(f);
    else *out = f;
    return rc;
}

void kvr_plane_feed_close(struct kvr_plane_feed *f)
{
    if (!f) return;
    kvr_nats_unlisten(f->link, on_state, f);
    kvr_nats_unsubscribe(f->events);
    kvr_nats_unsubscribe(f->heartbeats);
    free(f);
}

uint64_t kvr_plane_feed_dropped(const struct kvr_plane_feed *f)
{
    return f ? kvr_nats_sub_dropped(f->events) + kvr_nats_sub_dropped(f->heartbeats) : 0;
}
