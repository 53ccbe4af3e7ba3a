/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ingest, inside. Each file calls those below it only.
 *
 *     ingest.c    the thread: polls, reads, runs commands; what other threads call
 *     plane.c     one stream for many ranks: which source a message is for
 *     source.c    a source: executes what its view (recover/consumer/view.h) decides
 *     sockets.c   a source's sockets          recover_client.c   questions to workers
 *     inbox.c     what other threads hand to the thread
 *
 * Everything here belongs to the ingest thread, but for what is under `lock`.
 */
#ifndef KVR_NET_INGEST_INTERNAL_H
#define KVR_NET_INGEST_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"
#include "base/buf.h"
#include "base/map64.h"
#include "net/ingest/recover_client.h"
#include "net/ingest/ingest.h"
#include "net/zmq/guard.h"
#include "recover/consumer/view.h"
#include "wire/json.h"

enum {
    SPARE_COMMANDS = 16,
    RETRY_MAX_MS = 30000,
    RANKS_MAX = 1024,            /* of one source */
    SERVED_MAX = 512,            /* prompts that wait for the thread, */
    SERVED_BLOCKS_MAX = 1 << 20, /* and their blocks */
    PLANE_BYTES_MAX = 64 << 20   /* of the shared stream, waiting for the thread */
};

/* What must be remembered of one rank; a source has one for its own and makes others as they show up. */
struct rank_stream {
    struct rank_stream *next;
    struct kvr_engine_stream stream;
};

/* What one source may do before the next gets its turn. */
struct turn {
    size_t messages, bytes;
    uint64_t began_ns;
};

/* A source's sockets, each with a monitor. */
enum { SUB, SUB_MONITOR, DEALER, DEALER_MONITOR, SOCKETS };

struct watch {
    struct source *s;
    unsigned bit;
};

struct source {
    struct source *next;
    struct kvr_ingest *in;
    void *user;
    struct kvr_view view;
    struct kvr_view_status st; /* what others see: kvr__source_status brings it up to date */
    bool changed;              /* since others were told */
    /* its sockets (sockets.c) */
    char events[256], replay[256], recover[512];
    void *sub, *monitor, *dealer, *dealer_monitor;
    unsigned unread; /* a bit for each: it may have something to read (sockets.c) */
    struct watch watches[SOCKETS];
    struct kvr_zmq_line line, dealer_line;
    bool sub_half, dealer_half; /* connected, and the handshake is not over */
    size_t breaking;    /* messages that may still be read of a connection that broke; then, or when there are none, it counts as broken */
    uint64_t reopen_ms; /* its sockets are closed until then; 0: no */
    unsigned floods;    /* in a row */
    enum kvr_wiring wiring, wiring_told;
    uint64_t wiring_ms; /* since when it is so */
    /* its ranks (source.c) */
    bool any_rank;
    struct rank_stream own;
    uint64_t token;   /* of the question that is out */
    struct turn turn; /* in which what has waited is taken */
    /* who keeps it */
    const struct kvr_ingest_keeper *keeper; /* NULL: nobody, or not yet */
    void *kept;
    char *tail; /* batches that were kept, until they are applied */
    size_t tail_len;
};

/* wiring.c */
void kvr__wiring_look(struct kvr_ingest *in);

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
    struct kvr_lock lock;
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
    char text[KVR_VIEW_REASON_MAX];
    bool has_name;
    uint64_t name;
    bool spare; /* one of kvr_ingest.spares, in use */
    bool *done; /* somebody waits, and the command is theirs; NULL: it is freed */
    int *rc;
};

struct kvr_ingest {
    struct kvr_ingest_handler handler;
    struct source *visited; /* in a visit */
    uint64_t restore_timeout_ms;
    const struct kvr_curve *curve; /* set before there is a source */
    void *zmq, *wake_in, *wake_out;
    int epoll;   /* of what sources' sockets and wake_out say */
    bool called; /* wake_out may have something to read */
    pthread_t thread;
    struct kvr_lock lock; /* commands, replies, statuses */
    pthread_cond_t cond;
    struct command *commands, spares[SPARE_COMMANDS];
    size_t served_n, served_blocks;    /* of the commands */
    _Atomic bool reports_announced;    /* by a command; see kvr__inbox_take_announced */
    struct kvr_recover_reply *replies; /* of the recover client, newest first */
    _Atomic bool moved;                /* it has gone round (kvr_ingest_moved) */
    _Atomic bool stop;                 /* set under `lock`; looked at between two messages */
    struct kvr_view_status *statuses;  /* in the order of the sources */
    size_t statuses_n, statuses_cap;
    struct kvr_ingest_plane_stats plane_seen; /* copy for others, under `lock` */
    /* the thread's own */
    struct source *sources;
    size_t sources_n;
    bool reordered; /* sources have come or gone since others were told */
    struct kvr_engine_batch batch;
    struct source *current;
    struct kvr_engine_stream *applying; /* the stream whose batch is being converted, or NULL */
    uint64_t now_ms, woken_ms;          /* woken: by what has come */
    bool patient;                       /* its threads interrupt no others */
    struct kvr_plane_queue plane;       /* any thread, under its lock */
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
    uint64_t look_at_ms; /* when all are looked at next */
};

/* ---- inbox.c: any thread, but for kvr__inbox_free_command */

void kvr__inbox_wake(struct kvr_ingest *in);
void kvr__inbox_on_reply(void *ctx, struct kvr_recover_reply *reply); /* takes it */
void kvr__inbox_send(struct kvr_ingest *in, struct command *c);
/* Sends the command and waits until the thread has run it, or is about to end; needs no memory. */
int kvr__inbox_run(struct kvr_ingest *in, struct command *c);
/* A command nobody waits for; NULL: not even a spare one is left. */
struct command *kvr__inbox_command(struct kvr_ingest *in, enum command_kind kind, struct kvr_worker worker);
/* The same for a prompt that was answered, sent. Returns: 0, -KVR_ELIMIT, -KVR_ENOMEM. */
int kvr__inbox_send_served(struct kvr_ingest *in, const struct kvr_served *prompt);
void kvr__inbox_free_command(struct kvr_ingest *in, struct command *c);
/* The thread's: commands that announce reports, out of turn. What was read from a socket before this call may be such a report, and was
 * sent after its announcement. Those that wait behind a source that comes or goes keep their place. */
struct command *kvr__inbox_take_announced(struct kvr_ingest *in);

/* ---- sockets.c */

/* Hears of a socket in in->epoll. w: NULL for the thread's own. */
bool kvr__sockets_watch(const struct kvr_ingest *in, void *socket, struct watch *w);
/* Waits until there is something to read, or that long, and notes it in `unread` and `called`. Returns: whether there is. */
bool kvr__sockets_wait(struct kvr_ingest *in, int timeout_ms);
bool kvr__sockets_open(struct kvr_ingest *in, struct source *s);
void kvr__sockets_close(struct source *s);
bool kvr__sockets_send_replay(struct source *s, uint64_t from);
/* A fresh dealer: what the old one was still owed will not be taken for the answer to the next question. Returns: false: none could be
 * made; then a late answer is told apart by its end only. */
bool kvr__sockets_renew(struct kvr_ingest *in, struct source *s);

/* ---- source.c */

/* A source as it is asked for, with nothing open yet; any thread. Returns: NULL: no memory. */
struct source *kvr__source_create(struct kvr_ingest *in, const struct kvr_ingest_source *src);
void kvr__source_free(struct source *s); /* its sockets are closed */
/* Its view, to be given an input. */
struct kvr_view *kvr__source_view(struct source *s);
void kvr__source_status(struct source *s);
/* Applies the batches that were kept behind its content, before it is opened. */
void kvr__source_take_tail(struct source *s);
/* The stream of a rank, made when it is new; NULL: the source is not to carry it, or has no room. */
struct rank_stream *kvr__source_carry(struct source *s, uint32_t rank);
/* What its streams remembered of before (wire/engine_memory.h). Returns: 0 or a KVR_E code. */
int kvr__source_recall(struct source *s, const char *memory, size_t len);
/* An event of a snapshot. */
void kvr__source_restore(struct source *s, const struct kvr_event *ev);
/* Unproven copies (recover/consumer/copies.h) of the ranks that have any, and some of this block (NULL: of any), are taken back: the view
 * is partial. */
void kvr__source_doubt_copies(struct source *s, const uint64_t *name);
/* From now on what may be a report counts for nothing; what was counted until now is taken back. */
void kvr__source_expect_reports(struct source *s);
struct turn kvr__turn_begin(void);
bool kvr__turn_over(const struct kvr_ingest *in, struct turn *t,
                    size_t bytes); /* after a message of so many bytes; also when it is time to stop */

/* ---- plane.c */

int kvr__plane_init(struct kvr_ingest *in);
void kvr__plane_free(struct kvr_ingest *in);
void kvr__plane_attach(struct kvr_ingest *in, struct source *s); /* a source begins, ends */
void kvr__plane_detach(struct kvr_ingest *in, struct source *s);
struct plane_message *kvr__plane_waiting(struct kvr_ingest *in);                     /* what has come since, for kvr__plane_take */
void kvr__plane_take(struct kvr_ingest *in, struct plane_message *list, bool apply); /* applies, or not, and frees */
int kvr__plane_visit(struct kvr_ingest *in, kvr_ingest_plane_visit *fn, void *arg);
/* The last frame of a message of this source's own socket. */
void kvr__plane_frame(struct kvr_ingest *in, struct source *s, const char *data, size_t len);

#endif
