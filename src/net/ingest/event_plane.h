/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event plane: what carries KV events from publishers to those who keep an index. One of
 *
 *     zmq         each rank's publisher binds a PUB socket, consumers connect to each: nothing else has to run. Engine framing, or
 *                 envelopes in four frames (wire/plane_event.h)
 *     nats        envelopes on one NATS subject per scope. Losses show by the event ids and are repaired by asking the worker
 *     jetstream   the same, kept by JetStream: a durable consumer per replica, snapshots (nats/jetstream.c)
 *
 *     subjects, with S = namespace.{ns}.component.{component}
 *       S.kv-events   envelopes of router events               S.kv-beats   one a second of each rank
 *
 *     publisher:  event --> kvr_outlet.publish --> wire          consumer:  wire --> kvr_plane_feed --> ingest (kvr_ingest_plane_*)
 *
 * An outlet belongs to one rank and one thread, but for heartbeat, which any thread may call, and tend, which belongs to the thread that
 * made it.
 *
 * What consumers of a PUB socket have not read is bounded: 4,096 messages for each, 64 MiB for all together (they share a message's
 * bytes), 64 connections. Who does not read is cut off after 30 s, or after 3 s while half of the 64 MiB wait.
 */
#ifndef KVR_NET_EVENT_PLANE_H
#define KVR_NET_EVENT_PLANE_H

#include <stdatomic.h>
#include <kvroute/index.h>

#include "net/ingest/ingest.h"
#include "net/nats/link.h"
#include "net/zmq/curve.h"
#include "net/zmq/guard.h"
#include "wire/engine_encode.h"

struct kvr_prom_page;

enum kvr_plane { KVR_PLANE_ZMQ, KVR_PLANE_NATS, KVR_PLANE_JETSTREAM };
enum kvr_plane_format { KVR_PLANE_ENGINE, KVR_PLANE_ENVELOPE };

enum { KVR_SCOPE_MAX = 160, KVR_HEARTBEAT_MS = 1000, KVR_TEND_MS = 20 };

/* Options of every program that takes part, as the command line gives them. */
struct kvr_plane_options {
    int plane;                    /* enum kvr_plane */
    char *name_space, *component; /* the scope */
    uint64_t snapshot_threshold;
    bool reset_states;
    uint64_t nats_replicas; /* of streams and buckets that are made */
    struct kvr_curve_options curve;
    char *nats_url, *nats_creds, *nats_tls_ca, *nats_tls_cert, *nats_tls_key;
};

/* "namespace.{ns}.component.{component}". Returns: 0, or -1 with the reason in err. */
int kvr_plane_scope(const struct kvr_plane_options *o, char out[KVR_SCOPE_MAX], char *err, size_t cap);
/* Connects. Returns: 0, or -1 with the reason in err. */
int kvr_plane_connect(const struct kvr_plane_options *o, const char *name, struct kvr_nats **out, char *err, size_t cap);

/* What an outlet keeps until it is stored. */
struct kvr_outlet_kept {
    uint64_t messages, bytes;
    uint64_t again, failures; /* messages sent more than once; times that something was not stored */
    uint64_t lost;            /* events that nobody will store */
    bool lacks;               /* some were lost behind what waits */
    char why[96];             /* it is not stored; "": it is */
    char why_lost[160];
};

struct kvr_outlet {
    /* `words` are the engine's own, for engine framing. Returns: 0, -KVR_ELIMIT: lost, because too much waits. */
    int (*publish)(struct kvr_outlet *o, const struct kvr_event *ev, const struct kvr_engine_words *words);
    void (*heartbeat)(struct kvr_outlet *o); /* to be called every KVR_HEARTBEAT_MS; may be NULL */
    /* To be called every KVR_TEND_MS by the thread that made it: looks after who is connected. May be NULL. */
    void (*tend)(struct kvr_outlet *o);
    void (*stats)(const struct kvr_outlet *o, struct kvr_zmq_guard_stats *out); /* any thread; may be NULL */
    void (*kept)(struct kvr_outlet *o, struct kvr_outlet_kept *out);            /* any thread; NULL: nothing is kept */
    void (*close)(struct kvr_outlet *o);
    char where[320];      /* for people */
    _Atomic bool partial; /* what is published lacks a part of what the engine holds: envelopes say so; any thread sets it */
};

/* Binds a PUB socket; with CURVE when there is a door of its context. Returns: 0, or -1 with the reason in err. */
int kvr_outlet_zmq(void *zmq, struct kvr_curve_door *door, const char *endpoint, enum kvr_plane_format format, struct kvr_worker w,
                   struct kvr_outlet **out, char *err, size_t cap);
/* `link` must outlive these. */
int kvr_outlet_nats(struct kvr_nats *link, const char *scope, struct kvr_worker w, struct kvr_outlet **out, char *err, size_t cap);
int kvr_outlet_jetstream(struct kvr_nats *link, const char *scope, int replicas, struct kvr_worker w, struct kvr_outlet **out, char *err,
                         size_t cap);
/* The envelope that a NATS outlet would publish for an event; its heartbeats count on from there. */
void kvr_nats_outlet_envelope(struct kvr_outlet *o, const struct kvr_event *ev, struct kvr_buf *out);

/* What envelopes of one publisher have in common. */
struct kvr_stamp {
    uint64_t publisher, sequence;
    bool heartbeats; /* its publisher sends them */
    bool partial;    /* its view of the engine is */
};
void kvr_stamp_init(struct kvr_stamp *s); /* a random publisher id, 53 bits */
/* An envelope around the payload; counts the sequence on. */
void kvr_stamp_envelope(struct kvr_stamp *s, const char *topic, const struct kvr_buf *payload, struct kvr_buf *out);

struct kvr_plane_feed;
/* Subscribes for an ingest. `link` and `in` must outlive it. Returns: 0, -KVR_ENOMEM, -KVR_EINVAL. */
int kvr_plane_feed_nats(struct kvr_nats *link, const char *scope, struct kvr_ingest *in, struct kvr_plane_feed **out);
void kvr_plane_feed_close(struct kvr_plane_feed *f); /* NULL is fine */
/* Messages that the client library dropped because the ingest was too slow. */
uint64_t kvr_plane_feed_dropped(const struct kvr_plane_feed *f);
/* A feed from JetStream. hold and release: the index behind a source's `user`, which stays until released; hold runs on the
 * ingest thread. */
struct kvr_durable_config {
    struct kvr_nats *link;
    const char *scope;
    struct kvr_ingest *in;
    int replicas;       /* of what is made */
    uint64_t threshold; /* messages in the stream that make a snapshot due; 0: this replica writes none */
    bool reset;         /* throw the stream's content and all snapshots away first */
    struct kvr_index *(*hold)(void *ctx, void *user);
    void (*release)(void *ctx, void *user);
    void *ctx;
};
struct kvr_durable_stats {
    _Atomic uint64_t position, stream_messages, keeper, starts, restarts, loaded_snapshots, torn_snapshots, written_snapshots,
        failed_snapshots, purges, orphans_removed;
};
struct kvr_durable_feed;
/* Returns: 0, -KVR_ENOMEM. The work happens on its threads. */
int kvr_durable_feed_open(const struct kvr_durable_config *config, struct kvr_durable_feed **out);
void kvr_durable_feed_close(struct kvr_durable_feed *f); /* NULL is fine */
void kvr_durable_feed_metrics(const struct kvr_durable_feed *f, struct kvr_prom_page *out);

/* Prometheus text; nothing unless there is `any` shared stream. */
void kvr_plane_feed_metrics(bool any, const struct kvr_plane_feed *f, struct kvr_ingest *in, struct kvr_nats *link,
                            struct kvr_prom_page *out);

/* How far a durable stream has been caught up with, for those who wait for it with an end: it is over once the stream has been read to
 * its end and every view is trusted, or `patience_ms` after that end, or when nothing has come for that long before it. Zeroed at first;
 * one thread. Returns: whether it is over. */
struct kvr_catch_up {
    uint64_t since_ms, messages;
    bool begun, at_end, over;
};
bool kvr_catch_up_step(struct kvr_catch_up *c, struct kvr_ingest *in, bool all_trusted, uint64_t now_ms, uint64_t patience_ms);

#endif
