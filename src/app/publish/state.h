/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `publish` share.
 *
 *   publish.c   start, signals, end; the engine's streams to the feeds
 *   learn.c     what the engine says of itself: model, ranks, block size
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
#include "net/http/systemd.h"
#include "net/http/access.h"
#include "net/nats/registry.h"
#include "wire/engine_facts.h"

struct kvr_prom_page;

enum { ANSWERS_MAX = 8, RANKS_MAX = 64, PUBLISH_NOTES_MAX = 8, PUBLISH_NOTE_MAX = 360 };

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
    struct kvr_watchdog watchdog;
    uv_timer_t heartbeat, tend;
    struct engine_metrics *engine_metrics; /* NULL: without --engine-metrics */
    struct learning *learning;             /* NULL: the engine is not asked */
    /* Given, or learned before feeds_n is more than 0; constant from then on */
    char model[KVR_FACT_MODEL_MAX];
    uint32_t dp_start, dp_size, block_size; /* block_size 0: that of the first store */
    uint64_t total_kv_blocks;
    bool sglang;
    char notes[PUBLISH_NOTES_MAX][PUBLISH_NOTE_MAX]; /* what of that does not fit what the engine says */
    size_t notes_n;
    int failed; /* what it ends with */
    struct feed feeds[RANKS_MAX];
    size_t feeds_n; /* 0: not open yet */
    size_t answers; /* being written */
    uint64_t refused_answers;
};

/* publish.c; main loop. Follows the engine's streams and tells of it, by what is known now. Ends the program when that cannot be. */
void publish_open(struct publish *p);

/* learn.c; main loop. start: fills in what is given. Returns: 0, or -1 with the reason in err. */
int learning_start(struct publish *p, char *err, size_t cap);
bool learning_waits(const struct publish *p); /* is the engine's answer needed for publish_open? */
void learning_stop(struct publish *p);

/* engine_metrics.c; main loop */
/* Returns: 0, or -1 with the reason in err. */
int engine_metrics_start(struct publish *p, char *err, size_t cap);
void engine_metrics_stop(struct publish *p);
void engine_metrics_write(const struct publish *p, struct kvr_prom_page *b);
void engine_metrics_write_json(const struct publish *p, struct kvr_buf *b);

/* routes.c */
void publish_on_request(struct kvr_http_conn *c, void *ctx);
void publish_error_body(struct kvr_buf *out, int status, const char *message);

#endif
