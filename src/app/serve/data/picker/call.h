/* SPDX-License-Identifier: Apache-2.0 */
/* A call on the picker's port: whatever its service is, it is the user of its stream (net/grpc/grpc.h). The loop's thread. */
#ifndef KVR_SERVE_PICKER_CALL_H
#define KVR_SERVE_PICKER_CALL_H

#include "net/grpc/grpc.h"

struct call;
struct picker;

struct call_service {
    void (*message)(struct call *c, const uint8_t *data, size_t len);
    void (*half_closed)(struct call *c);
    void (*gone)(struct call *c); /* the last that it hears; it frees itself, now or later */
};

/* The first member of what a service keeps of it. */
struct call {
    const struct call_service *service;
    struct kvr_grpc_stream *stream; /* NULL: gone */
    struct picker *picker;
};

/* Each: NULL without memory. */
struct call *pick_new(struct picker *p, struct kvr_grpc_stream *s);         /* ExternalProcessor/Process: pick.c */
struct call *observer_new(struct picker *p, struct kvr_grpc_stream *s);     /* the same, of a filter that observes: observer.c */
struct call *health_check_new(struct picker *p, struct kvr_grpc_stream *s); /* Health/Check: health.c */
struct call *health_watch_new(struct picker *p, struct kvr_grpc_stream *s); /* Health/Watch */

#endif
