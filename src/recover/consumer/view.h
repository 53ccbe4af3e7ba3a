/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the KV events of one worker rank make of its view: a state machine without sockets, threads, locks or a clock of its own.
 *
 *     inputs (functions below)                                        actions (struct kvr_view_actions)
 *     batches, replay, answers, heartbeats,      +------------+       apply, clear, ask, replay, renew, cancel,
 *     connections, ticks, evidence           --> |    view    | -->   trust, tell the keeper
 *                                                +------------+
 *
 * A view has a phase, which says who is to speak next. Live batches wait in the phases marked w; what is lost meanwhile shows as a gap when
 * they are taken. The view is *mute* in those marked m: who could repair it does not answer, so live batches go on without, and it is asked
 * again after a pause.
 *
 *     phase        live batch            replay part         replay end          answer              silence, broken     tick
 *     FOLLOWING    applied; gap: Q       -                   -                   -                   -                   due: Q
 *     VERIFYING w  waits                 same: REPLAYING     Q 0                 -                   ASKING or GOING_ON  -
 *                                        other: Q 0
 *     REPLAYING w  waits                 applied             SETTLING, or        -                   ASKING or GOING_ON  -
 *                                                            ASKING (lacks some)
 *     ASKING w     waits                 -                   -                   content: TAKING     -                   -
 *                                                                                nothing: SETTLING
 *                                                                                restarted: ASKING
 *                                                                                failed: GOING_ON
 *                                                                                asked before a restart: ASKING
 *     TAKING w     waits                 -                   -                   -                   -                   -
 *     SETTLING     waits, in its turn    -                   -                   -                   -                   -
 *     GOING_ON m   waits, in its turn    -                   -                   -                   -                   -
 *     MUTE m       applied; gap: dropped -                   -                   -                   -                   due: PROBING or
 *                                                                                                                        ASKING_ASIDE
 *     PROBING m    applied; gap: dropped dropped, REPLAYING  SETTLING (partial)  -                   ASKING_ASIDE, MUTE  -
 *     ASKING_ASIDE applied; gap: dropped -                   -                   as ASKING           -                   -
 *              m
 *
 *     step, TAKING     the next piece of the content is applied; after the last SETTLING (or Q, when the content is older than the view)
 *     step, SETTLING   the next waiting batches are taken as in FOLLOWING, until one shows a gap (Q) or none is left: FOLLOWING
 *     step, GOING_ON   the same as in MUTE; then MUTE
 *     connected        can be repaired: Q, or VERIFYING when there is content; else FOLLOWING: the next batch tells
 *     disconnected, paused, flooded, snapshot begins     FOLLOWING: what was asked is forgotten, what waits is dropped
 *     evidence, lost parents     Q 0 when it can be repaired, once in a while
 *     no memory for an event     the content is dropped; GOING_ON when it can be repaired, which is to bring everything then
 *     the fifth gap in a row     ASKING for everything where there is a replay socket too, else GOING_ON or as if nobody could repair
 *
 *     Q: REPLAYING where there is a replay socket, else ASKING (FOLLOWING and partial where there is neither). Q 0: the same, for
 * everything. "dropped": the view's content is dropped before the batch is applied, so the view is partial. -: no change.
 *
 * What a view is worth is another matter than its phase (enum kvr_view_knowledge; kvr_view.known and .past).
 *
 * Inputs: the caller sets `now` before each. An input runs to its end, and calls actions while it does; an action must not call an input,
 * but for kvr__view_event. Threads: one for each view. Memory: the waiting batches (recover/consumer/waiting.h) and an answer's content.
 */
#ifndef KVR_RECOVER_VIEW_H
#define KVR_RECOVER_VIEW_H

#include "recover/consumer/answer.h"
#include "recover/consumer/cursor.h"
#include "recover/consumer/hole.h"
#include "recover/consumer/waiting.h"

enum kvr_view_state { KVR_VIEW_RESTORING, KVR_VIEW_LIVE };

/* What a view is worth. Partial: each block in it is held, but older ones may be missing, so that it says too little, never too much. */
enum kvr_view_knowledge { KVR_VIEW_UNKNOWN, KVR_VIEW_PARTIAL, KVR_VIEW_WHOLE };

enum kvr_view_phase {
    KVR_VIEW_FOLLOWING,
    KVR_VIEW_VERIFYING, /* the first batch of a replay has to be our last one: then it is the same engine, not restarted */
    KVR_VIEW_REPLAYING, /* of a view that has just begun: or waits for its connection to ask */
    KVR_VIEW_ASKING,    /* the worker's recover endpoint */
    KVR_VIEW_TAKING,    /* its answer is being applied, piece by piece */
    KVR_VIEW_SETTLING,  /* a repair is over: what has waited is taken, turn by turn */
    KVR_VIEW_GOING_ON,  /* a repair has failed: what has waited is taken without it */
    KVR_VIEW_MUTE,
    KVR_VIEW_PROBING,      /* mute, and the replay socket is asked for everything; nothing waits for it */
    KVR_VIEW_ASKING_ASIDE, /* mute, and the worker is asked; nothing waits for it */
};

/* What the view lacks of what came before its first batch, or before a loss. */
enum kvr_view_past {
    KVR_PAST_HERE,
    KVR_PAST_HEALED,  /* it was lost, and is gone from the engine too (recover/consumer/hole.h) */
    KVR_PAST_LOST,    /* blocks may be missing */
    KVR_PAST_UNKNOWN, /* nothing is known of it: a repair has to bring everything */
};

/* clang-format off */
#define KVR_VIEW_COUNTERS(X) \
    X(batches) X(events) X(blocks) X(bytes) X(stale_batches) X(gaps) X(restarts) X(replays) X(replay_failures) \
    X(decode_errors) X(parent_not_found) X(block_not_found) X(apply_errors) X(disconnects) \
    X(overflows) X(questions) X(lower_unplaced) X(recovered_events) X(recovered_dumps) X(recovery_failures)
/* clang-format on */

struct kvr_view_counters {
#define KVR_VIEW_FIELD(name) uint64_t name;
    KVR_VIEW_COUNTERS(KVR_VIEW_FIELD)
#undef KVR_VIEW_FIELD
};

enum { KVR_VIEW_REASON_MAX = 160, KVR_VIEW_RECENT = 64, KVR_VIEW_FIRST_EVENT = 1 /* a publisher's first, which is a clear */ };

/* Where a view stands in its engine's stream: enough to go on from content that was kept elsewhere. */
struct kvr_view_cursor {
    bool known;         /* false: nothing was applied yet, or it cannot be relied on */
    bool partial;       /* blocks of before may be missing (enum kvr_view_knowledge) */
    uint64_t next;      /* the sequence that comes next */
    uint64_t last_hash; /* of the payload of the last applied batch */
    double last_ts;     /* its stamp, seconds */
};

/* A batch of engine events, or one event of a shared stream. */
struct kvr_view_batch {
    uint64_t seq;
    const char *data; /* as it came */
    size_t len;
    /* Told by the action `read`: */
    double ts;
    uint64_t publisher; /* 0: not said */
    bool clears;        /* after it nothing that came before matters */
};

/* What came of applying a batch, beside its events. */
struct kvr_view_applied {
    bool other_rank; /* it is of a rank that is not to come here, and was left out: */
    uint32_t rank;
    bool torn;          /* for want of memory */
    bool worth_changed; /* what the action `worth` says is another thing now */
    bool copies_lost;   /* the engine was seen to report what it reuses: unproven copies have left the view */
    bool other_block_size;
    uint32_t engine_block_size;
};

/* What a view has done for it. ctx is the view's. */
struct kvr_view_actions {
    /* Decodes a batch, and fills in what it tells. Returns: false: it cannot be decoded. */
    bool (*read)(void *ctx, struct kvr_view_batch *b);
    /* Applies the batch that was read last; each of its events is told by kvr__view_event. again: the view may hold what it brings. */
    void (*apply)(void *ctx, const struct kvr_view_batch *b, bool again, struct kvr_view_applied *out);
    /* Applies one event of an answer, which is told by kvr__view_event too. */
    void (*apply_event)(void *ctx, const struct kvr_event *ev);
    void (*clear)(void *ctx);          /* the content of every rank that comes here */
    void (*clear_rank)(void *ctx);     /* of the view's own rank */
    void (*engine_restart)(void *ctx); /* what was learned of the engine's ways counts no more */
    void (*forget_copies)(void *ctx);  /* whether what follows has the engine's copies, or its publisher's word, is not known */
    bool (*copies_unsure)(void *ctx);  /* may the engine hold copies that are not counted (recover/consumer/copies.h)? */
    /* The most that the view can be, as far as the engine's ways are understood, and why it is no more. */
    enum kvr_view_knowledge (*worth)(void *ctx, const char **why);
    bool (*replay)(void *ctx, uint64_t from);               /* asks the engine's replay socket; false: it could not be sent */
    bool (*renew)(void *ctx);                               /* what was asked of it will not be answered any more; false: it may be */
    int (*ask)(void *ctx, bool everything, uint64_t from);  /* the worker's recover endpoint; 0 or a KVR_E code */
    void (*cancel)(void *ctx);                              /* that question */
    bool (*more)(void *ctx, size_t messages, size_t bytes); /* may one more waiting batch be taken in this turn, after so much? */
    void (*trust)(void *ctx, enum kvr_view_knowledge knowledge, const char *reason); /* what the view is from now on */
    void (*keep)(void *ctx, const struct kvr_view_batch *b); /* whoever keeps the view: the next batch has been applied */
    void (*keep_anew)(void *ctx);                            /* the same: the content is not what the batches before make of it */
    void (*reach)(void *ctx);                                /* how far the engine's replay buffer reaches is known (said once) */
};

/* How things are at an input. */
struct kvr_view_now {
    uint64_t ms;    /* monotonic */
    bool stream_up; /* the shared stream is there; a durable one: and has been caught up with */
    bool durable;   /* the view is fed by a shared stream that keeps its events: nobody is asked for what it will bring */
};

struct kvr_view {
    const struct kvr_view_actions *actions;
    void *ctx;
    struct kvr_view_now now;

    /* What kind of source it has; fixed once it has begun. */
    uint32_t block_size;
    uint64_t restore_timeout_ms; /* how long a replay may stay silent */
    bool has_replay, has_recover;
    bool shared;    /* fed by a shared stream */
    bool enveloped; /* what comes are events of publishers, not engine batches; a socket may carry them too */
    bool lossy;     /* the index gives blocks up by itself: a parent that is not there says nothing */
    unsigned ranks_n;

    /* The phase, and what belongs to all of them. */
    enum kvr_view_phase phase;
    enum kvr_view_state state; /* for people */
    bool connected;
    uint64_t drop_at_ms; /* of a connection that broke: its content goes then; 0: no */

    /* What the view is worth: `known` is what the stream makes of it; what speaks against it from outside lowers that. */
    enum kvr_view_knowledge knowledge, known;
    bool settled; /* knowledge was declared once */
    char reason[KVR_VIEW_REASON_MAX], known_reason[KVR_VIEW_REASON_MAX];
    char evidence[KVR_VIEW_REASON_MAX]; /* from outside, or "" */
    bool undecodable;                   /* too many batches could not be decoded */
    unsigned undecodable_n;
    uint64_t undecodable_ms;    /* when the count began */
    bool told_partial;          /* its publisher's own view is partial */
    uint64_t worker_block_size; /* what its recover endpoint says, when it is another one than ours; else 0 */
    bool mismatch;              /* of rank or block size */

    /* Its content and place. */
    struct kvr_cursor cursor;
    enum kvr_view_past past;
    const char *past_why; /* why it is partial */
    struct kvr_hole hole; /* while it is: is what it lacks still there? */
    uint64_t last_hash;   /* of the last applied payload */
    struct {
        uint64_t end, hash;    /* sequence + 1, so that 0 is empty */
    } recent[KVR_VIEW_RECENT]; /* the last applied batches: one that comes again is not a restart */
    bool unsure;               /* the content may be from before a restart, or lack a removal: if nobody can tell, it goes */
    bool doubt;                /* connected again with nobody to ask: the next batch tells whether it is the same stream */
    bool torn;                 /* an event that was taken from the stream could not be applied for want of memory */
    bool cleared, orphaned;    /* by the batch that was applied last */
    uint64_t orphans_until;    /* after a dump: up to here a store may lack its parent */
    uint64_t rebuilt_ms;       /* it was last asked for as a whole because something was wrong */

    /* VERIFYING to TAKING: what waits, and questions. */
    struct kvr_waiting waiting;
    unsigned rounds;         /* repairs in a row: gaps behind gaps */
    unsigned retries;        /* repairs that failed, in a row */
    uint64_t retry_at_ms;    /* one is tried again then; 0: no */
    uint64_t tail_at_ms;     /* the subscription may have come too late for what was sent just then; 0: no */
    uint64_t silent_at_ms;   /* a replay counts as failed then, if nothing comes; a view that has said nothing, as unreachable */
    uint64_t replay_ends_ms; /* a replay that takes longer is as good as none */
    uint64_t replay_from;
    unsigned owed_ends;                 /* replays asked for on this socket whose end has not come */
    bool asked_all;                     /* the worker: everything */
    bool outdated;                      /* the view was dropped since it was asked: what came since its place then is of no use */
    bool restarted;                     /* the worker restarted since it was asked: the answer may be of before */
    bool has_epoch;                     /* the worker has told one: */
    uint64_t epoch, epoch_ms;           /* first told then */
    bool of_this_connection;            /* the content is */
    struct kvr_recover_answer incoming; /* TAKING */
    size_t incoming_at;
    bool incoming_torn; /* it has a store under a parent that should be there */

    /* The reach of the engine's replay buffer: what it held when it was last asked for everything. */
    struct {
        bool measuring, said;
        uint64_t first, next; /* batches that came */
        double first_ts, last_ts;
    } reach;
    uint64_t buffer_first, buffer_batches; /* 0 batches: not known. From batch 0 on: it may have room for more */
    double buffer_seconds;                 /* between the stamps of its first and its last batch */

    /* Of a shared stream. */
    uint64_t publisher;     /* whose events are applied; 0: not known yet */
    double publisher_since; /* stamp of its first */
    uint64_t before;        /* the last that was heard; what an answer brings is its, or of one after it; 0: none */
    double before_since;
    uint64_t event_ms;     /* its last event was applied then */
    uint64_t heard_ms;     /* an event or a heartbeat came */
    uint64_t heartbeat_ms; /* its last heartbeat, or when one was expected first; 0: it sends none, as far as is known */
    uint64_t behind_ms;    /* a heartbeat told then of an event that was not here; 0: none */

    struct kvr_view_counters counts;
};

/* A view of nothing, not begun: the caller fills in what kind of source it has. `actions` must outlive it. */
void kvr__view_init(struct kvr_view *v, const struct kvr_view_actions *actions, void *ctx);
/* The worker is removed: questions are cancelled, memory is given back. */
void kvr__view_end(struct kvr_view *v);

/* ---- inputs ---------------------------------------------------------------------------------------------- */

/* Content up to `c` is in place from elsewhere, before the view begins. */
void kvr__view_go_on_from(struct kvr_view *v, const struct kvr_view_cursor *c);
/* A batch that was kept behind that content. Returns: false: it does not fit, and the rest is of no use. */
bool kvr__view_kept_batch(struct kvr_view *v, uint64_t seq, const char *data, size_t len);
void kvr__view_kept_end(struct kvr_view *v);
/* Its source is there, and nothing has come; also after a pause. */
void kvr__view_begin(struct kvr_view *v);
void kvr__view_failed(struct kvr_view *v, const char *why); /* its source could not be made */
void kvr__view_connected(struct kvr_view *v);
/* The connection is broken, or the publisher silent; everything that it had brought has been given. */
void kvr__view_disconnected(struct kvr_view *v);
/* The source's sockets are closed: because it brought too much; because it is to be paused. */
void kvr__view_flooded(struct kvr_view *v);
void kvr__view_paused(struct kvr_view *v);

/* A batch of the live stream. */
void kvr__view_batch(struct kvr_view *v, uint64_t seq, const char *data, size_t len);
/* What the replay socket brought. The end is a sequence of all ones and nothing else. */
void kvr__view_replay_part(struct kvr_view *v, uint64_t seq, const char *data, size_t len);
void kvr__view_replay_broken(struct kvr_view *v); /* an answer that is none */
/* To the question that is out. Takes the answer's events. */
void kvr__view_answer(struct kvr_view *v, struct kvr_recover_answer *a);
/* Goes on with what is being applied, or has waited: while kvr__view_is_busy. */
void kvr__view_step(struct kvr_view *v);
/* Now and then: what was due by now. */
void kvr__view_tick(struct kvr_view *v);

/* An event that a batch, an answer or a snapshot has brought was applied, with this result. quiet: the engine need not have told it. */
void kvr__view_event(struct kvr_view *v, const struct kvr_event *ev, int rc, bool quiet);
/* What speaks against the view from outside; "": nothing any more. */
void kvr__view_evidence(struct kvr_view *v, const char *text);
/* Blocks that only unproven copies held were taken back (recover/consumer/copies.h). torn: some could not be, for want of memory. */
void kvr__view_copies_taken_back(struct kvr_view *v, bool torn);
/* Content up to `c` has been put in place from elsewhere. */
void kvr__view_adopt(struct kvr_view *v, const struct kvr_view_cursor *c);

/* Of a shared stream (recover/consumer/view_stream.c). */
void kvr__view_enveloped(struct kvr_view *v, bool enveloped); /* from now on events come, not batches, or the other way round */
void kvr__view_stream_up(struct kvr_view *v);
void kvr__view_stream_down(struct kvr_view *v);
/* An event has come. ahead: of a durable stream, before it is stored. heartbeats: its publisher sends them. Returns: whether it is to be
 * given by kvr__view_batch; else it is here already, or the stream will bring it again. */
bool kvr__view_expects(struct kvr_view *v, uint64_t publisher, uint64_t event_id, bool ahead, bool heartbeats);
/* What its publisher says of its own view of the engine. */
void kvr__view_told_partial(struct kvr_view *v, bool partial);
/* The publisher lives, and this was its last event (0: none yet). */
void kvr__view_heartbeat(struct kvr_view *v, uint64_t publisher, double ts, uint64_t last_event_id);
/* A snapshot follows; this much of it is in place. */
void kvr__view_empty(struct kvr_view *v);
void kvr__view_restored(struct kvr_view *v, uint64_t next, uint64_t publisher, double publisher_since, bool heartbeats);

/* ---- questions ------------------------------------------------------------------------------------------- */

bool kvr__view_lacks_some(const struct kvr_view *v);   /* blocks of before may be missing */
bool kvr__view_can_repair(const struct kvr_view *v);   /* it has somebody to ask */
bool kvr__view_is_repairing(const struct kvr_view *v); /* something that was lost is being fetched, or what has waited is taken */
bool kvr__view_is_asking(const struct kvr_view *v);    /* a question to the recover endpoint is out */
bool kvr__view_is_busy(const struct kvr_view *v);      /* there is something to do for kvr__view_step */
bool kvr__view_is_settling(const struct kvr_view *v);  /* what has waited is taken: new batches had better stay where they are */
bool kvr__view_is_complete(const struct kvr_view *v);  /* nothing is missing, nor being repaired */
struct kvr_view_cursor kvr__view_cursor(const struct kvr_view *v);
/* Returns: what is wrong with it, or NULL. Inputs assert it in sanitizer builds. */
const char *kvr__view_check(const struct kvr_view *v);

#endif
