/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels on an event plane: router events and heartbeats in envelopes, as NVIDIA Dynamo's event plane has them. All msgpack;
 * structs are maps with string keys, unknown keys are passed over.
 *
 *     envelope   {"publisher_id": u64, "sequence": u64 from 0, "published_at": ms since 1970, "topic": text, "payload": bin}
 *                and "version": 1 when it is ours; a higher one is refused. "partial": true: its publisher lacks a part. payload may also
 * be an array of bytes as numbers events     topic "kv-events": one router event, or an array of them:
 *                {"worker_id": u64, "storage_tier": "device", "residency_domain": "worker",
 *                 "event": {"event_id": u64, "data": {"stored": {...}} | {"removed": {...}} | "cleared", "dp_rank": u32}}
 *     heartbeat       topic "kv-beats": {"worker_id": u64, "dp_rank": u32, "last_event_id": u64}, ours: the publisher lives, and that
 *                was its last event
 *     frame      version 1, u32 length (big-endian), envelope: the last frame of a ZMQ message (topic, publisher_id and sequence as
 *                8 bytes big-endian are the ones before it)
 *
 * Readers borrow the bytes. Nothing here allocates but the block lists, which grow and are the caller's.
 */
#ifndef KVR_WIRE_PLANE_EVENT_H
#define KVR_WIRE_PLANE_EVENT_H

#include <kvroute/event.h>

#include "base/buf.h"

#define KVR_PLANE_EVENTS     "kv-events"
#define KVR_PLANE_HEARTBEATS "kv-beats"

enum { KVR_PLANE_VERSION = 1, KVR_PLANE_FRAME_HEAD = 5, KVR_PLANE_FIRST_EVENT = 1 /* id of a life's first event, a clear */ };

struct kvr_envelope {
    uint64_t publisher, sequence, published_at_ms;
    const char *topic;
    uint32_t topic_len;
    const char *payload;
    uint32_t payload_len;
    bool partial;    /* its publisher's own view of the engine lacks a part */
    bool heartbeats; /* its publisher sends heartbeats: silence means that it is gone */
};

struct kvr_heartbeat {
    struct kvr_worker worker;
    uint64_t last_event_id; /* 0: none yet */
};

/* Which event of which rank, without its content. */
struct kvr_plane_place {
    struct kvr_worker worker;
    uint64_t event_id;
    const char *data; /* the event's own bytes */
    size_t len;
};

void kvr_envelope_write(struct kvr_buf *out, const struct kvr_envelope *e);
/* `scratch` takes a payload that comes as an array. Returns: 0, -KVR_EFORMAT, -KVR_EUNSUPPORTED for a version above ours,
 * -KVR_ENOMEM. */
int kvr_envelope_read(const char *data, size_t len, struct kvr_buf *scratch, struct kvr_envelope *out);
bool kvr_envelope_is(const struct kvr_envelope *e, const char *topic);

void kvr_plane_event_write(struct kvr_buf *out, const struct kvr_event *ev);
/* Calls fn for each event of a payload; a result other than 0 ends it. Returns: 0, fn's result, -KVR_EFORMAT. An event whose residency
 * is not the worker's is left out. */
int kvr_plane_events_each(const char *payload, size_t len, int (*fn)(void *ctx, const struct kvr_plane_place *place), void *ctx);
/* One event, in bytes that kvr_plane_events_each has given. Its lists are in *blocks, which grows to *cap.
 * Returns: 0, -KVR_EFORMAT, -KVR_ENOMEM. */
int kvr_plane_event_read(const char *data, size_t len, struct kvr_event *out, struct kvr_block **blocks, size_t *cap);

void kvr_heartbeat_write(struct kvr_buf *out, const struct kvr_heartbeat *heartbeat);
int kvr_heartbeat_read(const char *payload, size_t len, struct kvr_heartbeat *out); /* 0, -KVR_EFORMAT */

/* The head of a ZMQ frame. */
void kvr_plane_frame_head(unsigned char out[KVR_PLANE_FRAME_HEAD], uint32_t len);
/* The envelope in a frame. Returns: 0, -KVR_EFORMAT, -KVR_EUNSUPPORTED. */
int kvr_plane_frame_open(const char *data, size_t len, const char **envelope, size_t *envelope_len);

#endif
