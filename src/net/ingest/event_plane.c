/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ingest/event_plane.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <zmq.h>

#include "wire/plane_event.h"
#include "wire/prom_page.h"

enum { HWM = 4096, FRAME_MAX = 64 << 10, QUEUED_MAX = 64 << 20, CONSUMERS_MAX = 64 };

/* ---- scope ------------------------------------------------------------------------------------------------------ */

static bool is_token(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    for (const char *p = s; n && *p; p++) {
        bool ok = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-' || *p == '_';
        if (!ok) return false;
    }
    return n > 0 && n < 64;
}

int kvr_plane_scope(const struct kvr_plane_options *o, char out[KVR_SCOPE_MAX], char *err, size_t cap)
{
    static const char allowed[] = "1 to 63 letters, digits, - and _";
    if (!is_token(o->name_space)) return snprintf(err, cap, "--namespace: bad value '%.80s'; allowed: %s", o->name_space, allowed), -1;
    if (!is_token(o->component)) return snprintf(err, cap, "--component: bad value '%.80s'; allowed: %s", o->component, allowed), -1;
    snprintf(out, KVR_SCOPE_MAX, "namespace.%s.component.%s", o->name_space, o->component);
    return 0;
}

int kvr_plane_connect(const struct kvr_plane_options *o, const char *name, struct kvr_nats **out, char *err, size_t cap)
{
    struct kvr_nats_config c = {o->nats_url, o->nats_creds, o->nats_tls_ca, o->nats_tls_cert, o->nats_tls_key, name};
    return kvr_nats_connect(&c, out, err, cap);
}

/* ---- envelopes -------------------------------------------------------------------------------------------------- */

void kvr_stamp_init(struct kvr_stamp *s)
{
    *s = (struct kvr_stamp){0};
    while (s->publisher == 0) {
        if (getrandom(&s->publisher, sizeof s->publisher, 0) != sizeof s->publisher)
            s->publisher = kvr_mix64(kvr_monotonic_ns() ^ (uint64_t)(uintptr_t)s);
        s->publisher &= (UINT64_C(1) << 53) - 1; /* exact as a JSON number too */
    }
}

void kvr_stamp_envelope(struct kvr_stamp *s, const char *topic, const struct kvr_buf *payload, struct kvr_buf *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    struct kvr_envelope e = {.publisher = s->publisher,
                             .sequence = s->sequence++,
                             .published_at_ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000,
                             .topic = topic,
                             .topic_len = (uint32_t)strlen(topic),
                             .payload = payload->data,
                             .payload_len = (uint32_t)payload->len,
                             .partial = s->partial,
                             .heartbeats = s->heartbeats};
    kvr_envelope_write(out, &e);
}

/* ---- zmq -------------------------------------------------------------------------------------------------------- */

struct zmq_outlet {
    struct kvr_outlet base;
    void *pub;
    enum kvr_plane_format format;
    struct kvr_worker worker;
    struct kvr_stamp stamp;
    struct kvr_buf event, batch;
    struct kvr_zmq_budget *queued;
    struct kvr_zmq_guard guard;
};

static int send_frames(const struct zmq_outlet *o, const struct kvr_buf *topic_and_numbers, size_t topic_len)
{
    const char *p = topic_and_numbers->data;
    zmq_msg_t body;
    int rc = kvr_zmq_message(o->queued, NULL, 0, o->batch.data, o->batch.len, &body);
    if (rc) {
        kvr_zmq_let_go(o->pub);
        return rc;
    }
    bool ok = zmq_send(o->pub, p, topic_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0;
    for (size_t at = topic_len; ok && at < topic_and_numbers->len; at += 8)
        ok = zmq_send(o->pub, p + at, 8, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0;
    if (ok && zmq_msg_send(&body, o->pub, ZMQ_DONTWAIT) >= 0) return 0;
    zmq_msg_close(&body);
    return -KVR_ELIMIT;
}

static int publish_engine(struct zmq_outlet *o, const struct kvr_event *ev, const struct kvr_engine_words *words)
{
    unsigned char seq[8];
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    kvr_store_be64(seq, ev->event_id);
    kvr_engine_encode(&o->event, ev, words);
    kvr_engine_encode_batch(&o->batch, (double)t.tv_sec + (double)t.tv_nsec * 1e-9, &o->event, 1, o->worker.dp_rank);
    struct kvr_buf head = {.data = (char *)seq, .len = sizeof seq};
    return o->batch.failed ? -KVR_ENOMEM : send_frames(o, &head, 0);
}

static int publish_envelope(struct zmq_outlet *o, const struct kvr_event *ev)
{
    static const char topic[] = KVR_PLANE_EVENTS;
    unsigned char head[sizeof topic - 1 + 16], frame[KVR_PLANE_FRAME_HEAD] = {0};
    memcpy(head, topic, sizeof topic - 1);
    kvr_store_be64(head + sizeof topic - 1, o->stamp.publisher);
    kvr_store_be64(head + sizeof topic - 1 + 8, o->stamp.sequence);
    kvr_plane_event_write(&o->event, ev);
    kvr_buf_add(&o->batch, frame, sizeof frame);
    o->stamp.partial = atomic_load(&o->base.partial);
    kvr_stamp_envelope(&o->stamp, topic, &o->event, &o->batch);
    if (o->batch.failed || o->event.failed) return -KVR_ENOMEM;
    kvr_plane_frame_head((unsigned char *)o->batch.data, (uint32_t)(o->batch.len - sizeof frame));
    struct kvr_buf numbers = {.data = (char *)head, .len = sizeof head};
    return send_frames(o, &numbers, sizeof topic - 1);
}

static int zmq_publish(struct kvr_outlet *base, const struct kvr_event *ev, const struct kvr_engine_words *words)
{
    struct zmq_outlet *o = (struct zmq_outlet *)base;
    kvr_buf_reset(&o->event);
    kvr_buf_reset(&o->batch);
    return o->format == KVR_PLANE_ENGINE ? publish_engine(o, ev, words) : publish_envelope(o, ev);
}

static void close_zmq(struct kvr_outlet *base)
{
    struct zmq_outlet *o = (struct zmq_outlet *)base;
    kvr_zmq_guard_close(&o->guard, o->pub);
    if (o->pub) zmq_close(o->pub);
    kvr_zmq_budget_drop(o->queued);
    kvr_buf_free(&o->event);
    kvr_buf_free(&o->batch);
    free(o);
}

static void tend_zmq(struct kvr_outlet *base)
{
    struct zmq_outlet *o = (struct zmq_outlet *)base;
    kvr_zmq_guard_step(&o->guard, kvr_now_ms());
}

static void zmq_stats(const struct kvr_outlet *base, struct kvr_zmq_guard_stats *out)
{
    const struct zmq_outlet *o = (const struct zmq_outlet *)base;
    kvr_zmq_guard_stats(&o->guard, out);
}

/* The socket, bounded and bound. Returns: 0, -KVR_ENOMEM, -KVR_EINVAL with zmq_errno. */
static int bind_pub(struct zmq_outlet *o, void *zmq, struct kvr_curve_door *door, const char *endpoint)
{
    int hwm = HWM, zero = 0, one = 1, backlog = CONSUMERS_MAX;
    int64_t max = FRAME_MAX;
    o->queued = kvr_zmq_budget_new(QUEUED_MAX);
    o->pub = o->queued ? zmq_socket(zmq, ZMQ_PUB) : NULL;
    if (!o->pub) return -KVR_ENOMEM;
    zmq_setsockopt(o->pub, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(o->pub, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(o->pub, ZMQ_MAXMSGSIZE, &max, sizeof max);
    zmq_setsockopt(o->pub, ZMQ_BACKLOG, &backlog, sizeof backlog);
    zmq_setsockopt(o->pub, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(o->pub, ZMQ_IPV6, &one, sizeof one);
    int rc = kvr_zmq_guard_init(&o->guard, zmq, o->pub, CONSUMERS_MAX, o->queued);
    return rc ? rc : kvr_curve_server(door, o->pub) || zmq_bind(o->pub, endpoint) ? -KVR_EINVAL : 0;
}

int kvr_outlet_zmq(void *zmq, struct kvr_curve_door *door, const char *endpoint, enum kvr_plane_format format, struct kvr_worker w,
                   struct kvr_outlet **out, char *err, size_t cap)
{
    struct zmq_outlet *o = calloc(1, sizeof *o);
    if (!o) return kvr_refuse(err, cap, "out of memory");
    o->base = (struct kvr_outlet){.publish = zmq_publish, .close = close_zmq, .tend = tend_zmq, .stats = zmq_stats};
    o->format = format;
    o->worker = w;
    kvr_stamp_init(&o->stamp);
    snprintf(o->base.where, sizeof o->base.where, "%s", endpoint);
    int rc = bind_pub(o, zmq, door, endpoint);
    if (rc) {
        snprintf(err, cap, "--publish: cannot bind '%s': %s", endpoint, rc == -KVR_ENOMEM ? kvr_strerror(rc) : zmq_strerror(zmq_errno()));
        close_zmq(&o->base);
        return -1;
    }
    *out = &o->base;
    return 0;
}

/* ---- metrics ---------------------------------------------------------------------------------------------------- */

void kvr_plane_feed_metrics(bool any, const struct kvr_plane_feed *f, struct kvr_ingest *in, struct kvr_nats *link,
                            struct kvr_prom_page *out)
{
    struct kvr_ingest_plane_stats p = {0};
    struct kvr_nats_stats n = {0};
    any = any && in;
    if (any) kvr_ingest_plane_stats(in, &p);
    if (any) kvr_nats_stats(link, &n);
    const struct kvr_prom_row rows[] = {
        {"up", "gauge", "1 while the event plane is connected", p.up},
        {"messages_total", "counter", "Messages taken from the event plane", p.messages},
        {"bytes_total", "counter", "Bytes of its messages", p.bytes},
        {"events_total", "counter", "KV events in its messages", p.events},
        {"beats_total", "counter", "Heartbeats of publishers", p.heartbeats},
        {"malformed_total", "counter", "Messages that could not be read", p.malformed},
        {"other_version_total", "counter", "Messages of a version that is not known here", p.other_version},
        {"unknown_workers_total", "counter", "Events and heartbeats of ranks that are not followed", p.unknown_workers},
        {"dropped_total", "counter", "Messages that found a queue full", p.dropped + (any ? kvr_plane_feed_dropped(f) : 0)},
        {"position", "gauge", "Place in the durable stream", p.position},
        {"connects_total", "counter", "Connections made to a NATS server", n.connects},
        {"disconnects_total", "counter", "Connections lost", n.disconnects},
        {"errors_total", "counter", "Errors that the NATS client reported", n.errors},
    };
    kvr_prom_rows(out, any, "kvroute_event_plane_", rows, KVR_ARRAY_LEN(rows));
}

/* ---- catching up ------------------------------------------------------------------------------------------------ */

bool kvr_catch_up_step(struct kvr_catch_up *c, struct kvr_ingest *in, bool all_trusted, uint64_t now_ms, uint64_t patience_ms)
{
    struct kvr_ingest_plane_stats p;
    if (c->over) return true;
    kvr_ingest_plane_stats(in, &p);
    if (!c->begun || (!c->at_end && (p.up || p.messages != c->messages))) c->since_ms = now_ms;
    c->begun = true;
    c->messages = p.messages;
    c->at_end |= p.up;
    c->over = (c->at_end && all_trusted) || now_ms - c->since_ms >= patience_ms;
    return c->over;
}
