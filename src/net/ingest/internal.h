/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ingest, inside.
 *
 *   ingest.c   sockets, the thread, commands from other threads
 *   ingest/view.c   what a source makes of what arrives: trust, applying, gaps, restarts, how a loss is repaired
 *   ingest/plane.c  one stream for many ranks: which source a message is for, beats
 *
 * Everything here belongs to the ingest thread, but for what is under `lock`.
 */
#ifndef KVR_NET_INGEST_INTERNAL_H
#define KVR_NET_INGEST_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/buf.h"
#include "base/map64.h"
#include "net/ingest/recover_client.h"
#include "net/ingest/ingest.h"
#include "net/zmq/guard.h"
#include "recover/consumer/cursor.h"
#include "recover/consumer/hole.h"
#include "wire/json.h"

enum {
    HWM = 4096, /* whole messages; then the publisher's own queue fills */
    FRAME_MAX = 16 << 20,
    UNREAD_MAX = 128 << 20, /* bytes of one connection that came and make no message that can be taken */
    UNREAD_LOOK_MS = 20,
    SPARE_COMMANDS = 16,
    FLOOD_PAUSE_MS = 1000,     /* before a connection is tried again that brought too much; doubles up to RETRY_MAX_MS */
    OLD_MESSAGES_MAX = 100000, /* of a broken connection, read before it counts as broken */
    WAITING_MESSAGES_MAX = 4096,
    WAITING_BYTES_MAX = 32 << 20,
    TURN_MESSAGES = 64, /* one source's, before the next gets its turn: whichever of these three comes first */
    TURN_BYTES = 1 << 20,
    TURN_MS = 20,
    REPLAY_ROUNDS_MAX = 4, /* holes behind holes before we give up */
    DOWN_GRACE_MS = 2000,
    OLD_LINE_MS = 10000,  /* a connection to a process that is gone breaks within this (twice the heartbeat's interval and time) */
    TAIL_CHECK_MS = 200,  /* the subscription may have come too late for what was sent just then */
    REPLAY_PATIENCE = 30, /* a replay may take that many times --restore-timeout in all */
    RETRY_MIN_MS = 500,
    RETRY_MAX_MS = 30000,
    RANKS_MAX = 1024, /* of one source */
    RECENT = 64,
    REBUILD_PAUSE_MS = 30000,
    SERVED_MAX = 512,            /* prompts that wait for the thread, */
    SERVED_BLOCKS_MAX = 1 << 20, /* and their blocks */
    STEP_BLOCKS = 16384,         /* of a recovered content, applied before other sources get their turn */
    UNDECODABLE_MAX = 5,         /* batches that cannot be decoded, within UNDECODABLE_MS */
    UNDECODABLE_MS = 60000,
    PLANE_BYTES_MAX = 64 << 20, /* of the shared stream, waiting for the thread */
    SILENT_MS = 3500,           /* without a beat of one that has sent beats */
    BEHIND_MS = 1000            /* a beat tells of an event that has not come for so long */
};

struct waiting {
    struct waiting *next;
    uint64_t seq;
    bool seen; /* the cursor knows that the live stream showed it */
    size_t len;
    char data[];
};

/* What must be remembered of one rank; a source has one for its own and makes others as they show up. */
struct rank_stream {
    struct rank_stream *next;
    struct kvr_engine_stream stream;
};

struct source {
    struct source *next;
    struct kvr_view_status st;
    void *user;
    bool any_rank, lossy;
    char events[256], replay[256], recover[512];
    void *sub, *monitor, *dealer, *dealer_monitor;
    struct kvr_zmq_line line, dealer_line;
    bool sub_half, dealer_half; /* connected, and the handshake is not over */
    size_t breaking;    /* messages that may still be read of a connection that broke; then, or when there are none, it counts as broken */
    uint64_t reopen_ms; /* its sockets are closed until then; 0: no */
    unsigned floods;    /* in a row */
    struct rank_stream own;
    size_t ranks_n;
    const struct kvr_ingest_keeper *keeper; /* NULL: none, or not yet */
    void *kept;
    char *tail; /* until it is applied */
    size_t tail_len;
    struct kvr_cursor cursor;
    struct waiting *wait_head, **wait_tail;
    size_t wait_n, wait_bytes;
    uint64_t last_hash; /* of the last applied payload */
    struct {
        uint64_t end, hash; /* sequence + 1, so that 0 is empty */
    } recent[RECENT];       /* the last applied batches: one that comes again is not a restart */
    struct {
        bool measuring, said; /* everything was asked for; one line was logged */
        uint64_t first, next; /* batches that came */
        double first_ts, last_ts;
    } reach; /* of the engine's replay buffer */
    uint64_t replay_from, silent_deadline_ms, retry_at_ms, tail_at_ms, drop_at_ms, rebuilt_ms;
    unsigned rounds, retries, owed_ends; /* owed_ends: replays asked for on this dealer whose end has not come */
    bool replaying, verifying, missing, connected, cleared, orphaned, mismatch;
    enum { NOT_SETTLING, SETTLING, GOING_ON } settling; /* what has waited is taken, turn by turn */
    bool mute;               /* who could repair does not answer: live batches go on without, and it is asked again now and then */
    bool hollow;             /* nothing is known of what came before the first batch that was applied */
    struct kvr_hole hole;    /* while it is missing something: is it still there? */
    bool healed;             /* whole because of that */
    const char *missing_why; /* goes with `missing` (blocks of before are missing) */
    bool torn;               /* an event that was taken from the stream could not be applied for want of memory */
    bool probing;            /* mute, and the replay socket is asked; nothing waits for it */
    uint64_t replay_ends_ms; /* a replay that takes longer is as good as none */
    bool doubt;              /* reconnected without replay: the next batch tells whether it is the same stream */
    bool unsure;             /* the content may be of another life, or older than something that was lost: if nobody can tell, it goes */
    enum kvr_view_knowledge known; /* what the stream makes of it; `evidence` and `undecodable` may say that it is worth nothing */
    char known_reason[96];
    uint64_t worker_block_size; /* what its recover endpoint says, when it is another one than ours; else 0 */
    char evidence[96];          /* what speaks against the view from outside, or "" */
    bool undecodable;
    unsigned undecodable_n;
    uint64_t undecodable_ms; /* when the count began */
    /* questions to the worker's recover endpoint */
    uint64_t asking;                      /* token of the one that is out, or 0 */
    bool asked_all, has_epoch, same_life; /* same_life: the content is from this connection */
    uint64_t epoch, epoch_ms;             /* of the worker that has answered; first told then */
    /* of a shared stream (ingest/plane.c) */
    bool plane;                         /* fed by it */
    bool enveloped;                     /* what comes are events with a plane_head, not engine batches; a socket may carry them too */
    uint64_t publisher;                 /* whose events are applied; 0: not known yet */
    double publisher_since;             /* stamp of its first */
    uint64_t event_ms;                  /* its last event was applied then */
    uint64_t heard_ms;                  /* an event or a beat came */
    uint64_t beat_ms;                   /* its last beat, or when one was expected first; 0: it sends none, as far as is known */
    uint64_t behind_ms;                 /* a beat told then of an event that was not here; 0: none */
    uint64_t orphans_until;             /* after a tree dump: up to here a store may lack its parent */
    struct kvr_recover_reply *incoming; /* being applied */
    size_t incoming_at;
    bool incoming_torn; /* it has a store under a parent that should be there */
};

/* An event of the shared stream as it waits and is kept: this, then the event's msgpack. */
struct plane_head {
    double ts; /* seconds since 1970 */
    uint64_t publisher;
};

enum plane_kind { PLANE_MESSAGE, PLANE_UP, PLANE_DOWN, PLANE_SNAPSHOT_BEGIN, PLANE_SNAPSHOT_PIECE, PLANE_SNAPSHOT_END };

struct plane_message {
    struct plane_message *next;
    enum plane_kind kind;
    uint64_t position;
    size_t len;
    char data[];
};

struct kvr_plane_queue {
    pthread_mutex_t lock;
    struct plane_message *head, **tail;
    size_t bytes;
    uint64_t dropped;
};

enum command_kind { ADD, REMOVE_WORKER, REMOVE_RANK, PAUSE, RESUME, VISIT, VISIT_PLANE, EVIDENCE, SERVED, DOUBT_COPIES, EXPECT_REPORTS };

struct command {
    struct command *next;
    enum command_kind kind;
    struct source *add;
    const struct kvr_ingest_keeper *keeper; /* of it, from when it has begun */
    struct kvr_worker worker;
    kvr_ingest_visit *visit;
    kvr_ingest_plane_visit *visit_plane;
    void *arg;
    struct kvr_served served; /* its hashes are the command's */
    char text[96];
    bool has_name;
    uint64_t name;
    bool spare; /* one of kvr_ingest.spares, in use */
    bool *done; /* somebody waits, and the command is theirs; NULL: it is freed */
    int *rc;
};

/* What a view has done for it elsewhere: by sockets (ingest.c), or in virtual time (tests/unit/test_view_sim.c). */
struct ingest_effects {
    bool (*replay)(struct source *s, uint64_t from);        /* asks the engine's replay socket; false: it could not be sent */
    void (*renew)(struct kvr_ingest *in, struct source *s); /* what was asked of it until now will not be answered */
    int (*ask)(struct kvr_ingest *in, const struct kvr_recover_question *q); /* the worker's recover endpoint: 0 or a KVR_E code */
    void (*cancel)(struct kvr_ingest *in, uint64_t token);
    uint64_t (*now_ns)(void); /* monotonic */
};

struct kvr_ingest {
    struct kvr_ingest_handler handler;
    const struct ingest_effects *effects;
    struct source *visited; /* in a visit */
    uint64_t restore_timeout_ms;
    const struct kvr_curve *curve; /* set before there is a source */
    void *zmq, *wake_in, *wake_out;
    pthread_t thread;
    pthread_mutex_t lock; /* commands, replies, statuses */
    pthread_cond_t cond;
    struct command *commands, spares[SPARE_COMMANDS];
    size_t served_n, served_blocks;    /* of the commands */
    struct kvr_recover_reply *replies; /* of the recover client, newest first */
    _Atomic bool stop;                 /* set under `lock`; looked at between two messages */
    struct kvr_view_status *statuses;
    size_t statuses_n, statuses_cap;
    struct kvr_ingest_plane_stats plane_seen; /* copy for others, under `lock` */
    /* the thread's own */
    struct source *sources;
    size_t sources_n, monitors;
    struct kvr_engine_batch batch;
    struct source *current;
    struct kvr_engine_stream *applying; /* the stream whose batch is being converted, or NULL */
    uint64_t now_ms;
    struct kvr_plane_queue plane; /* any thread, under its lock */
    bool plane_up;
    _Atomic bool plane_durable; /* the stream keeps its events: nobody is asked for what it will bring */
    struct kvr_ingest_plane_stats plane_stats;
    struct kvr_map64 plane_sources; /* mix of (worker, rank) -> source */
    struct kvr_buf plane_unit, plane_scratch;
    struct kvr_event plane_event; /* decoded */
    struct kvr_block *plane_blocks;
    size_t plane_blocks_cap;
    struct kvr_json_parser *plane_json; /* made with the first event as JSON */
    struct kvr_recover_client *recover; /* made with the first source that has a recover endpoint */
    uint64_t tokens;
    size_t incoming_n; /* sources with content being applied */
    size_t settling_n; /* sources that take what has waited */
    size_t breaking_n; /* sources that read the last of a broken connection */
    uint64_t unread_at_ms;
};

/* What one source may do before the next gets its turn. */
struct turn {
    size_t messages, bytes;
    uint64_t began_ns;
};

/* ---- ingest.c */
struct turn kvr__turn_begin(const struct kvr_ingest *in);
bool kvr__turn_over(const struct kvr_ingest *in, struct turn *t,
                    size_t bytes); /* after a message of so many bytes; also when it is time to stop */
void *kvr__ingest_socket(struct kvr_ingest *in, int type);
void kvr__ingest_wake(struct kvr_ingest *in);                          /* any thread */
void kvr__ingest_on_reply(void *ctx, struct kvr_recover_reply *reply); /* any thread */

/* ---- ingest/view.c */
/* Says what the view is worth as far as its stream goes, and why it is no more. What is said is lowered here by what speaks against it
 * from outside, and to partial while who could tell more does not answer. Whole is only said of a view without `missing`, partial only
 * of one whose content is all from batches after the loss. */
void kvr__view_trust(struct kvr_ingest *in, struct source *s, enum kvr_view_knowledge knowledge, const char *reason);
/* The stream of a rank, made when it is new; NULL: the source is not to carry it, or has no room. */
struct rank_stream *kvr__view_carry(struct source *s, uint32_t rank);
void kvr__view_note_cursor(struct source *s);
void kvr__view_window(void *ctx, const struct kvr_window_event *event); /* ctx: the ingest */
kvr_copies_holds kvr__view_holds;                                       /* of the stream that is being applied; ctx: the ingest */
void kvr__view_remember(struct source *s, uint64_t seq, uint64_t hash);
bool kvr__view_repairing(const struct source *s);
void kvr__view_forget_repair(struct kvr_ingest *in, struct source *s); /* waiting batches, questions, what is being applied */
void kvr__view_begin(struct kvr_ingest *in, struct source *s);         /* its sockets are there (or st.failed), and nothing has come */
void kvr__view_connected(struct kvr_ingest *in, struct source *s);
void kvr__view_disconnected(struct kvr_ingest *in, struct source *s);
void kvr__view_live(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len);
/* What the replay socket brought; the end is a sequence of all ones and nothing else. */
void kvr__view_replay_part(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len);
void kvr__view_replay_broken(struct kvr_ingest *in, struct source *s);                          /* an answer that is none */
void kvr__view_reply(struct kvr_ingest *in, struct source *s, struct kvr_recover_reply *reply); /* takes the reply */
void kvr__view_step(struct kvr_ingest *in, struct source *s);                                   /* goes on with what is being applied */
void kvr__view_evidence(struct kvr_ingest *in, struct source *s, const char *text);             /* "": none any more */
/* Unproven copies (recover/consumer/copies.h) of the ranks that have any, and some of this block (NULL: of any), are taken back: the view
 * is partial. */
void kvr__view_doubt_copies(struct kvr_ingest *in, struct source *s, const uint64_t *name);
/* From now on what may be a report counts for nothing; what was counted until now is taken back. */
void kvr__view_expect_reports(struct kvr_ingest *in, struct source *s);
void kvr__view_adopt(struct kvr_ingest *in, struct source *s, const struct kvr_view_cursor *c);
/* Before the source is opened: applies the batches that were kept behind its content. */
void kvr__view_take_tail(struct kvr_ingest *in, struct source *s);
void kvr__view_deadlines(struct kvr_ingest *in, struct source *s);
/* From now on events come with a plane_head. */
void kvr__view_enveloped(struct kvr_ingest *in, struct source *s);
/* Content from a snapshot: an event of it; where the rank goes on. */
void kvr__view_restore(struct kvr_ingest *in, struct source *s, const struct kvr_event *ev);
void kvr__view_restored(struct kvr_ingest *in, struct source *s, const struct kvr_snapshot_cursor *c);
/* A snapshot will follow. */
void kvr__view_empty(struct kvr_ingest *in, struct source *s);
/* The shared stream is down: untrusted, but kept. */
void kvr__view_stream_down(struct kvr_ingest *in, struct source *s);
/* The publisher has told of an event that has not come. */
void kvr__view_behind(struct kvr_ingest *in, struct source *s, bool other_life);
/* The publisher says that the view has everything. */
void kvr__view_confirmed(struct kvr_ingest *in, struct source *s);

/* ---- ingest/plane.c */
int kvr__plane_init(struct kvr_ingest *in);
void kvr__plane_free(struct kvr_ingest *in);
void kvr__plane_attach(struct kvr_ingest *in, struct source *s); /* a source begins, ends */
void kvr__plane_detach(struct kvr_ingest *in, struct source *s);
bool kvr__plane_is_durable(const struct kvr_ingest *in, const struct source *s);     /* fed by a stream that keeps its events */
struct plane_message *kvr__plane_waiting(struct kvr_ingest *in);                     /* what has come since, for kvr__plane_take */
void kvr__plane_take(struct kvr_ingest *in, struct plane_message *list, bool apply); /* applies, or not, and frees */
int kvr__plane_visit(struct kvr_ingest *in, kvr_ingest_plane_visit *fn, void *arg);
/* The last frame of a message of this source's own socket. */
void kvr__plane_frame(struct kvr_ingest *in, struct source *s, const char *data, size_t len);
void kvr__plane_deadlines(struct kvr_ingest *in, struct source *s);
/* Into in->plane_event, in->batch.ts and *publisher. */
bool kvr__plane_decode(struct kvr_ingest *in, const char *data, size_t len, uint64_t *publisher);

#endif
