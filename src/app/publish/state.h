/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `publish` share.
 *
 *   publish.c   start, signals, end; the engine's streams to the feeds
 *   feed.c      one rank: duplicates, ids, local index, republishing
 *   routes.c    HTTP: recovery, dump, status, load, metrics
 *   engine_metrics.c   how loaded the engine says it is: read, published, shown
 *
 * Threads: the main loop (HTTP, signals), the ingest thread (feeds), one for each recovery answer being written.
 */
#ifndef KVR_PUBLISH_STATE_H
#define KVR_PUBLISH_STATE_H

#include "app/publish/feed.h"
#include "net/http/ending.h"
#include "net/http/access.h"
#include "net/nats/registry.h"

struct kvr_prom_page;

enum { ANSWERS_MAX = 8, RANKS_MAX = 64 };

struct publish {
    const struct publish_options *o;
    uv_loop_t loop;
    struct kvr_http_shared http;
    struct kvr_http_server *server;
    struct kvr_access *access; /* who may ask it */
    struct kvr_ingest *ingest;
    void *zmq;
    struct kvr_curve *curve; /* NULL: none */
    struct kvr_curve_door *door;
    struct kvr_nats *nats; /* NULL with event plane zmq */
    char scope[KVR_SCOPE_MAX];
    struct kvr_registry *registry; /* NULL: not announced */
    struct kvr_ending ending;
    uv_timer_t heartbeat, tend;
    struct engine_metrics *engine_metrics; /* NULL: without --engine-metrics */
    struct feed feeds[RANKS_MAX];
    size_t feeds_n;
    size_t answers; /* being written */
    uint64_t refused_answers, recover_requests, bad_requests;
};

/* engine_metrics.c; main loop */
/* Returns: 0, or -1 with the reason in err. */
int engine_metrics_start(struct publish *p, char *err, size_t cap);
void engine_metrics_stop(struct publish *p);
void engine_metrics_write(const struct publish *p, struct kvr_prom_page *b);
void engine_metrics_write_json(const struct publish *p, struct kvr_buf *b);

/* routes.c */
void publish_on_request(struct kvr_http_conn *c, void *ctx);
void publish_on_gone(struct kvr_http_conn *c, void *ctx);
void publish_on_drained(struct kvr_http_conn *c, void *ctx);
void publish_error_body(struct kvr_buf *out, int status, const char *message);

#endif
