/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events from engines: one thread, a SUB socket (and a DEALER for replay) per (worker, rank).
 *
 *     add --> restoring --replay from 0 ends--> live (whole, or partial when it began after 0)
 *                |                               |  gap: replay from the cursor, live batches wait meanwhile
 *                |                               |  sequence backwards: the view is dropped, replay from 0
 *                +--no answer in time------------+--> live (partial), replay is tried again with growing pauses
 *
 * With a recover endpoint (kvroute/local_index.h) the worker is asked for what a replay cannot give, or, without a replay
 * endpoint, for whatever is missing; see recover/consumer/view.h.
 *
 * A source that is added with content in place (`from`) asks for its last batch again and goes on when it is the same one,
 * else starts over; without a replay endpoint the next batch in sequence confirms it.
 *
 * What a view is worth (enum kvr_view_knowledge):
 *
 *     whole     the stream was seen from sequence 0 without a gap, or restored as if
 *     partial   what was lost will not come again, and what was known before has been dropped: everything in it is of later
 *               batches, and true
 *     unknown   something in it may be false: the line is down, a repair is under way, the block size or the rank is another one, or
 *               something from outside speaks against it
 *
 * A view becomes whole again by a replay that lacks nothing, a dump, a restart seen from 0, or a clear. A view whose
 * endpoint is down is unknown at once and dropped after two seconds.
 *
 * Sources without an endpoint of their own are fed from one shared stream, an event plane (wire/plane_event.h), by
 * kvr_ingest_plane_message: each event finds its source by (worker, rank), and its id takes the place of the sequence. Heartbeats
 * of the publishers tell what should have come. While the stream is down these views are unknown, but kept; a publisher that
 * falls silent is like an endpoint that is down.
 *
 * Threads: the callbacks run on the ingest thread. The functions may be called from any thread but that one.
 * Everything from the wire is hostile: frames, sizes and rates are bounded and refusals are counted.
 */
#ifndef KVR_NET_INGEST_H
#define KVR_NET_INGEST_H

#include <kvroute/event.h>

#include "base/buf.h"
#include "wire/engine_events.h"
#include "recover/consumer/supposed.h"
#include "recover/consumer/view.h"
#include "wire/plane_snapshot.h"

struct kvr_prom_page;

struct kvr_ingest;

/* What is wrong with the connections of a source. */
enum kvr_wiring { KVR_WIRING_FINE, KVR_WIRING_EVENTS, KVR_WIRING_REPLAY, KVR_WIRING_SILENT, KVR_WIRING_NO_REPLAY };

/* clang-format off */
#define KVR_INGEST_COUNTERS(X) \
    X(batches, "Batches of KV events applied") \
    X(events, "KV events in batches") \
    X(blocks, "Blocks that KV events name") \
    X(bytes, "Bytes of batches") \
    X(stale_batches, "Batches that had been applied before") \
    X(gaps, "Gaps in a stream's sequence: batches were lost") \
    X(restarts, "Restarts of an engine: its sequence went backwards") \
    X(replays, "Replays asked of an engine") \
    X(replay_failures, "Replays without a whole answer") \
    X(bad_frames, "Messages without the frames of an event batch") \
    X(decode_errors, "Batches that could not be read") \
    X(parent_not_found, "Stored blocks whose parent is not known") \
    X(block_not_found, "Removed blocks that were not known") \
    X(apply_errors, "Events that the index refused") \
    X(disconnects, "Connections to an engine's events lost") \
    X(overflows, "Batches dropped: too many waited for a repair") \
    X(floods, "Connections given up: bytes, no messages") \
    X(questions, "Questions to recover endpoints") \
    X(lower_unplaced, "Stores of lower tiers whose blocks have no known place") \
    X(recovered_events, "KV events that recover endpoints have brought") \
    X(recovered_dumps, "Dumps that recover endpoints have brought") \
    X(recovery_failures, "Questions without an answer of use")
/* clang-format on */

struct kvr_view_status {
    struct kvr_worker worker;
    enum kvr_view_state state;
    enum kvr_view_knowledge knowledge;
    bool trusted, settled; /* trusted: of use, so whole or partial; settled: knowledge was declared once */
    bool connected, paused, failed;
    bool can_replay; /* has a replay or a recover endpoint */
    bool repairing;  /* something that was lost is being fetched */
    bool sound;      /* nothing speaks against it but what came from outside (kvr_ingest_set_evidence) */
    struct kvr_view_cursor cursor;
    char reason[KVR_VIEW_REASON_MAX];            /* why it is not whole; "" when it is */
    const char *events_trouble, *replay_trouble; /* why a connection could not be used; static, NULL: none, or nobody answers */
    uint64_t since_ns;                           /* monotonic, of the last change of knowledge or reason */
    uint64_t heard_ns;                           /* monotonic, of the last batch or event that was applied; 0: none yet */
    uint64_t next_sequence;
    /* What the engine's replay buffer held when it was last asked for everything: 0 batches: not known. From batch 0 on: it may have room
     * for more. */
    uint64_t buffer_first, buffer_batches;
    double buffer_seconds;      /* between the stamps of its first and its last batch */
    uint32_t engine_block_size; /* as the engine says; 0: not said yet */
    uint64_t unproven_copies;   /* recover/consumer/copies.h */
    struct kvr_engine_counters filtered;
#define KVR_INGEST_FIELD(name, help) uint64_t name;
    KVR_INGEST_COUNTERS(KVR_INGEST_FIELD)
#undef KVR_INGEST_FIELD
};

/* What an event was made from: the engine's own words, and the stream they came in. */
struct kvr_ingest_origin {
    const struct kvr_engine_batch *batch;
    const struct kvr_engine_event *event;
    struct kvr_engine_stream *stream;
};

/* `user` is the pointer given with the source. */
struct kvr_ingest_handler {
    /* Apply one event; the result is a KVR_E code or 0. origin NULL: it comes from a recover endpoint. */
    int (*on_event)(void *ctx, void *user, const struct kvr_event *event, const struct kvr_ingest_origin *origin);
    /* Forget the view of a rank. */
    void (*on_reset)(void *ctx, void *user, struct kvr_worker worker);
    /* Has the view a block of this name, by what events said (kvr_index_holds)? Engines' copies of blocks are counted then, and of an
     * engine's events only those that change what is held come to on_event. NULL: every event comes. */
    bool (*holds)(void *ctx, void *user, struct kvr_worker worker, enum kvr_tier tier, uint64_t block_hash);
    /* Of a cache group with a window (kvr_index_window). NULL: such events are left out, and the view of a
     * hybrid model, which says more than it reuses, is unknown. */
    void (*on_window)(void *ctx, void *user, const struct kvr_window_event *event);
    /* What the view is from now on, and why it is no more than that ("" when it is whole). May be NULL. */
    void (*on_view)(void *ctx, void *user, struct kvr_worker worker, enum kvr_view_knowledge knowledge, const char *reason);
    /* The connections of a source with endpoints of its own: in `wiring` for a second, and why in words (static). May be NULL. */
    void (*on_wiring)(void *ctx, void *user, struct kvr_worker worker, enum kvr_wiring wiring, const char *endpoint, const char *why);
    void (*on_end)(void *ctx, void *user);                 /* the source is gone; may be NULL */
    void (*on_leave)(void *ctx, struct kvr_worker worker); /* before on_end: the rank is followed no more; may be NULL */
    void (*on_served)(void *ctx, void *user, const struct kvr_served *prompt); /* of kvr_ingest_served; may be NULL */
    /* Has the rank's content blocks under names that are not its engine's? Then it is of no use elsewhere, even when it is whole: a visit
     * sees a partial one. NULL: no. */
    bool (*makes_up)(void *ctx, struct kvr_worker worker);
    void (*on_tick)(void *ctx, uint64_t now_ms); /* monotonic, about every 50 ms or more often; may be NULL */
    void *ctx;
};

/* For on_wiring: says it in the log, as a warning unless it is fine. who: "kvroute indexer: instance". */
void kvr_ingest_tell_wiring(const char *who, struct kvr_worker worker, enum kvr_wiring wiring, const char *endpoint, const char *why);

/* Told on the ingest thread, by whoever keeps a view, of what becomes of its content. */
struct kvr_ingest_keeper {
    /* The next batch of the engine has been applied. data NULL: something else in sequence. */
    void (*on_batch)(void *kept, uint64_t seq, const char *data, size_t len);
    /* The content is no longer what the batches before make of it: dropped, or replaced. */
    void (*on_break)(void *kept);
};

struct kvr_ingest_source {
    struct kvr_worker worker;
    uint32_t block_size;         /* 0: that of the engine's first store */
    const char *events, *replay; /* endpoints; replay may be NULL. events NULL: by the shared stream */
    const char *recover;         /* URL of the worker's recover endpoint, or NULL */
    void *user;
    bool any_rank;         /* a batch's own rank counts, whatever rank the source was added for; else such batches are dropped */
    bool tiers;            /* lower-tier events are wanted */
    uint32_t tier_chunk;   /* blocks that the engine reads from lower tiers at once, when it is told; 0: learned */
    bool any_endpoint;     /* one that cannot be connected to makes a view that has failed, and says so, in place of -KVR_EINVAL */
    bool lossy;            /* the index gives blocks up by itself: a parent that is not there says nothing */
    const uint32_t *ranks; /* borrowed for the call: further ranks whose content it has brought before (any_rank) */
    size_t ranks_n;
    struct kvr_view_cursor from; /* when known: the content up to there is in place, and is confirmed by what comes next */
    const char *memory;          /* borrowed for the call: what its streams remembered then (kvr_ingest_memory); NULL: nothing */
    size_t memory_len;
    char *tail; /* malloc'd, taken over when 0 is returned: batches behind `from`, each u64 sequence, u64 length, payload (or NULL) */
    size_t tail_len;
    const struct kvr_ingest_keeper *keeper; /* NULL: nobody keeps it. With `kept`, as long as the source is there */
    void *kept;
};

/* restore_timeout_s: how long a replay may stay silent. Returns: 0, -KVR_ENOMEM. */
int kvr_ingest_create(const struct kvr_ingest_handler *handler, double restore_timeout_s, struct kvr_ingest **out);
/* Stops the thread and closes every socket. */
void kvr_ingest_destroy(struct kvr_ingest *in);

/* Has the thread gone round since this was asked last? Asked by one thread. NULL: yes. */
bool kvr_ingest_moved(struct kvr_ingest *in);

/* With which keys sources connect; before the first is added. `c` must outlive the ingest. */
struct kvr_curve;
void kvr_ingest_set_curve(struct kvr_ingest *in, const struct kvr_curve *c);

/* Is this an endpoint we can connect to? (tcp://host:port, ipc://path; not tcp://"*":port, which is for who binds) */
bool kvr_ingest_endpoint_ok(const char *endpoint);
/* tcp port + offset; false when the endpoint has no numeric port and the offset is not 0, or it would overflow. */
bool kvr_ingest_endpoint_shift(const char *endpoint, uint32_t offset, char *out, size_t cap);
/* tcp://host:port, an IPv6 address in brackets; "" when it does not fit. */
void kvr_ingest_endpoint_at(const char *host, uint16_t port, char *out, size_t cap);

/* Begins to follow a rank. One source per (worker, rank). Returns: 0, -KVR_EINVAL for a bad endpoint,
 * -KVR_ENOMEM. The work happens on the thread; a failure shows in the status. */
int kvr_ingest_add(struct kvr_ingest *in, const struct kvr_ingest_source *source);
/* Stops following a worker (rank NULL: every rank); no callback for it runs after the return, but on_end before. */
void kvr_ingest_remove(struct kvr_ingest *in, uint64_t worker_id, const uint32_t *rank);
/* Closes or reopens the sockets of a source; its view and place stay. The return is after that. */
void kvr_ingest_pause(struct kvr_ingest *in, struct kvr_worker worker, bool pause);

/* What speaks against a view from outside (predictions that do not come true): it is not trusted, whatever its stream says,
 * until the text is "". Returns at once; a worker that is not followed is no error. */
void kvr_ingest_set_evidence(struct kvr_ingest *in, struct kvr_worker worker, const char *text);

/* The engine did not have what the view said that it has: this block (NULL: whatever it may be). When there are unproven copies of it
 * (recover/consumer/copies.h), all of the rank's are taken back, and its view is partial. Returns at once. */
void kvr_ingest_doubt_copies(struct kvr_ingest *in, struct kvr_worker worker, const uint64_t *block_hash);
/* A request is about to be sent to the worker that has its engine report what it reuses: unproven copies are taken back, and from then on
 * nothing is counted that may be a report. Returns at once: false: no memory. */
bool kvr_ingest_expect_reports(struct kvr_ingest *in, uint64_t worker_id);

/* A prompt that was answered, copied, for on_served, in order with what else is asked for. Any thread.
 * Returns: 0, -KVR_ELIMIT: as many wait as may, -KVR_ENOMEM. */
int kvr_ingest_served(struct kvr_ingest *in, const struct kvr_served *prompt);

/* Runs fn on the ingest thread between two batches, and returns after it: the view's content and its status belong
 * together then. ranks[n]: every rank the source has carried. fn may replace the content and say so by setting *adopt: to a
 * known place, from which the source goes on (asking for what has come since, when there is a replay endpoint), whole or partial.
 * Returns: 0, -KVR_ENOTFOUND, -KVR_ENOMEM. */
typedef void kvr_ingest_visit(void *arg, const struct kvr_view_status *status, const uint32_t *ranks, size_t n,
                              struct kvr_view_cursor *adopt);
int kvr_ingest_visit_view(struct kvr_ingest *in, struct kvr_worker worker, kvr_ingest_visit *fn, void *arg);
/* In a visit: the content of this rank is the source's too, and goes when its view is dropped. Returns: 0, -KVR_ELIMIT. */
int kvr_ingest_carry(struct kvr_ingest *in, uint32_t rank);
/* In a visit: what the source's streams remember, for `memory` of one that goes on from here. */
struct kvr_buf;
void kvr_ingest_memory(struct kvr_ingest *in, struct kvr_buf *out);

/* In a visit: from now on this one is told, in place of whoever was. */
void kvr_ingest_keep(struct kvr_ingest *in, const struct kvr_ingest_keeper *keeper, void *kept);
/* In a visit: puts that in the place of what they remember. Returns: 0, or -KVR_E...: the content that it belongs to is of no use. */
int kvr_ingest_recall(struct kvr_ingest *in, const char *memory, size_t len);

/* In a visit: what the view is to somebody who gets its content and place, and not that memory. */
enum kvr_view_knowledge kvr_ingest_bare(struct kvr_ingest *in);

/* ---- the shared stream ------------------------------------------------------------------------------------ */

struct kvr_ingest_plane_stats {
    bool up;
    uint64_t messages, events, heartbeats, bytes;
    uint64_t malformed, other_version, unknown_workers, dropped; /* dropped: found the queue full */
    uint64_t position;                                           /* of the last message that was taken */
};

/* One message of the stream, an envelope or a router event as JSON, copied. position: rises along a durable stream, else 0.
 * Any thread. Returns: 0, -KVR_ELIMIT when too much waits (counted as dropped when `drop`), -KVR_ENOMEM. */
int kvr_ingest_plane_message(struct kvr_ingest *in, const char *data, size_t len, uint64_t position, bool drop);
/* The stream is there, or not; of a durable one: and has been caught up with. In order with the messages. Any thread. */
void kvr_ingest_plane_state(struct kvr_ingest *in, bool up);
/* The stream keeps its events, so that what is missing will come; before anything else. */
void kvr_ingest_plane_durable(struct kvr_ingest *in);
/* Content in place of what is there: begin, pieces (wire/plane_snapshot.h), end with the position it is of. In order with the
 * messages. Returns: 0, -KVR_ELIMIT when too much waits, -KVR_ENOMEM. */
int kvr_ingest_plane_snapshot_begin(struct kvr_ingest *in);
int kvr_ingest_plane_snapshot_piece(struct kvr_ingest *in, const char *data, size_t len);
int kvr_ingest_plane_snapshot_end(struct kvr_ingest *in, uint64_t position);
/* Runs fn on the ingest thread: every view of the shared stream as of one position of it. Returns: 0, -KVR_ENOMEM. */
struct kvr_plane_view {
    struct kvr_snapshot_cursor cursor;
    bool whole; /* nothing is missing or being repaired */
    void *user;
};
typedef void kvr_ingest_plane_visit(void *arg, uint64_t position, const struct kvr_plane_view *views, size_t n);
int kvr_ingest_visit_plane(struct kvr_ingest *in, kvr_ingest_plane_visit *fn, void *arg);
void kvr_ingest_plane_stats(struct kvr_ingest *in, struct kvr_ingest_plane_stats *out);

/* "unknown", "partial" or "whole". */
const char *kvr_view_knowledge_name(enum kvr_view_knowledge k);
/* Adds kvroute_view_knowledge: for each view and state, 1 for the state it is in. */
void kvr_view_metrics(struct kvr_prom_page *b, const struct kvr_view_status *st, size_t n);
/* "trusted", "recovering" (not trusted, and being repaired) or "untrusted". */
const char *kvr_view_trust_name(const struct kvr_view_status *st);

/* Copies the status of all views; returns how many there are (at most cap are written). */
size_t kvr_ingest_status(struct kvr_ingest *in, struct kvr_view_status *out, size_t cap);

#endif
