/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `indexer` share.
 *
 *   catalogue.c  partitions (model, group) with an index each; instances and their listeners
 *   routes.c     HTTP: which route, which caller may use it
 *   answers.c    what every route answers with
 *   query.c      /query and /query_by_hash
 *   text.c       tokens of a /query that has text in their place
 *   events.c     /events: content from a recording
 *   dump.c       /dump, streamed by a thread of its own
 *   recovery.c   content from peers and engines' snapshots, at start and when a view is lost
 *   keeper.c     the data directory: when registrations and content are written, what is read at start
 *   snapshot.c   the snapshot file
 *   stage.c      content that is collected before it is put in place
 *   telemetry.c  metrics and the access log
 *   indexer.c    start, threads, signals
 *
 * Threads
 *   main loop    timers, signals, calls to peers; no requests
 *   data loops   requests of their own connections
 *   ingest       KV events, straight into the index of the listener's partition
 *   keeper       writes snapshots; at start it loads what there is
 *   one per dump that is being sent
 *   folders      from the first SIGHUP on, where there is a --tokenizer-dir: reads the folders again
 * `lock` guards the catalogue; nothing blocks under it, and a partition that is in use is held by a reference.
 * `change_lock` serialises changes of who is followed, which wait for the ingest thread. The ingest thread takes neither. The
 * index has its own locks.
 */
#ifndef KVR_INDEXER_STATE_H
#define KVR_INDEXER_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <uv.h>
#include <kvroute/hash.h>
#include <kvroute/index.h>

#include "app/indexer/indexer.h"
#include "base/buf.h"
#include "base/histogram.h"
#include "base/lock.h"
#include "store/event_recorder.h"
#include "store/line_log.h"
#include "net/http/ending.h"
#include "net/http/systemd.h"
#include "wire/known_members.h"
#include "net/http/access.h"
#include "net/ingest/ingest.h"
#include "net/http/json_body.h"
#include "token/pool.h"
#include "wire/index_question.h"
#include "wire/json.h"

enum {
    NAME_MAX_LEN = 255,
    ENDPOINT_MAX = 240,
    PEERS_MAX = 64,
    RANKS_OF_INSTANCE_MAX = 1024,
    INSTANCES_MAX = 16384,
    PARTITIONS_MAX = 1024,
    OFFLOAD_CHUNK_MAX = 1048576, /* tokens */
    DUMPS_MAX = 4,               /* of one data loop at once */
    SMALL_BODY = 2 << 20
};

/* ---- catalogue ------------------------------------------------------------------------------------------ */

struct partition {
    struct partition *next;
    char model[NAME_MAX_LEN + 1], group[NAME_MAX_LEN + 1];
    uint32_t block_size;
    struct kvr_index *index;
    _Atomic unsigned refs; /* catalogue, listeners, data loops, work in progress */
    _Atomic bool tiers;    /* lower-tier blocks have been stored */
    _Atomic bool gone;     /* no longer in the catalogue */
    size_t instances;
};

/* What a registration says of tiers that the engine cannot say. */
struct tier_words {
    char pool[53];  /* whose external tier it shares; "": nobody's */
    uint32_t chunk; /* tokens that it reads from lower tiers at once; 0: learned */
};

struct listener {
    uint32_t rank;
    bool paused;
    char endpoint[ENDPOINT_MAX], replay[ENDPOINT_MAX];
    char recover[ENDPOINT_MAX]; /* URL of the engine's snapshot, or "" */
    struct tier_words tiers;
};

struct instance {
    struct instance *next;
    uint64_t id;
    struct partition *part;
    struct listener *listeners;
    size_t listeners_n, listeners_cap;
};

/* Another indexer that may be asked for its content. */
struct peer {
    char *url;
    bool configured; /* on the command line; only these are sent a key: the others are named by whoever may register */
};

/* Where content that was restored for a rank stands; used when the rank is registered. */
struct seed {
    struct seed *next;
    struct kvr_worker worker;
    struct kvr_view_cursor cursor;
    uint32_t *ranks; /* further ranks that came by the same stream; this and below: in the seed's own memory */
    size_t ranks_n;
    char *memory; /* what its streams remembered there */
    size_t memory_len;
};

struct registration {
    uint64_t instance_id;
    uint32_t dp_rank, block_size;
    char model[NAME_MAX_LEN + 1], group[NAME_MAX_LEN + 1];
    char endpoint[ENDPOINT_MAX], replay[ENDPOINT_MAX], recover[ENDPOINT_MAX];
    struct tier_words tiers;
};

/* ---- telemetry ------------------------------------------------------------------------------------------- */

/* clang-format off */
#define INDEXER_ENDPOINTS(X) \
    X(HEALTH, "/health") X(READY, "/ready") X(METRICS, "/metrics") X(REGISTER, "/register") X(UNREGISTER, "/unregister") \
    X(OPENAPI, "/openapi.json") X(WORKERS, "/workers") X(QUERY, "/query") X(QUERY_BY_HASH, "/query_by_hash") X(DUMP, "/dump") \
    X(SERVICE_QUERY, "/kv_indexer_query") X(SERVICE_INFO, "/kv_indexer_info") \
    X(REGISTER_PEER, "/register_peer") X(DEREGISTER_PEER, "/deregister_peer") X(PEERS, "/peers") X(REOPEN_LOGS, "/reopen_logs") \
    X(EVENTS, "/events") X(VALIDATE, "/validate") X(PAUSE, "/test/pause_listener") X(RESUME, "/test/resume_listener")
/* clang-format on */
enum endpoint {
#define INDEXER_ENDPOINT(name, path) AT_##name,
    INDEXER_ENDPOINTS(INDEXER_ENDPOINT)
#undef INDEXER_ENDPOINT
        AT_UNKNOWN,
    ENDPOINTS
};

enum { DURATION_BUCKETS = 20, METHODS = 5 };

struct telemetry {
    _Atomic uint64_t requests[ENDPOINTS][METHODS], errors[ENDPOINTS][2];
    struct kvr_histogram durations[ENDPOINTS]; /* seconds */
    _Atomic uint64_t events[2][3][2];          /* device, lower tiers; stored, removed, cleared; ok, failed */
    _Atomic uint64_t texts[2];                 /* prompts given as text: tokens made, refused */
    _Atomic uint64_t refused_prompts, peer_recoveries, peer_failures;
    _Atomic uint64_t snapshots, snapshot_failures, snapshot_bytes, snapshot_ms;
    struct kvr_line_log *log; /* NULL: none; a lane for each loop */
};

/* ---- the whole ------------------------------------------------------------------------------------------- */

struct loop;
struct keeper;
struct recovery;

struct indexer {
    const struct indexer_options *o;
    struct kvr_lock change_lock; /* who registers, unregisters or loads; taken before lock, and held while waiting for ingest */
    struct kvr_lock lock;
    struct partition *partitions;
    struct instance *instances;
    struct seed *seeds;
    size_t partitions_n, instances_n;
    struct peer peers[PEERS_MAX];
    size_t peers_n;
    uint64_t registrations_version;
    struct kvr_curve *curve; /* NULL: none */
    struct kvr_ingest *ingest;
    struct kvr_nats *nats; /* NULL: not used */
    struct kvr_plane_feed *feed;
    struct kvr_durable_feed *durable;
    struct kvr_registry *registry;
    char scope[KVR_SCOPE_MAX];
    uint64_t instance_number;      /* of this process, for those who ask it */
    struct kvr_recorder *recorder; /* NULL: nothing is recorded */
    struct telemetry telemetry;
    struct kvr_http_shared http;
    struct kvr_access *access;
    char **peer_keys; /* the first goes to the peers of the command line; NULL: none */
    struct kvr_tls_ctx *tls;
    struct loop **loops;
    size_t loops_n;
    uv_loop_t main_loop;
    struct {
        uv_signal_t hup;
        uv_timer_t second, tend;
    } handles;                /* of the main loop */
    struct kvr_ending ending; /* main loop's */
    struct kvr_watchdog watchdog;
    _Atomic uint64_t asked; /* for loop.answered */
    _Atomic int phase;      /* enum kvr_ending_phase, for all threads */
    struct keeper *keeper;
    void (*registrations_changed)(struct indexer *x); /* any thread; NULL: nobody is told */
    struct recovery *recovery;
    struct kvr_given_tokens *tokenizers; /* NULL: none */
    _Atomic bool loaded;                 /* what was on disk is in place */
    _Atomic bool ready;                  /* recovery is over */
    _Atomic bool stopping;
    char why[128]; /* under lock: why it is not ready */
};

/* One partition as a data loop sees it. */
struct desk {
    struct partition *part;
    struct kvr_index_reader *reader;
};

struct loop {
    struct indexer *indexer;
    size_t place; /* among the loops */
    uv_loop_t uv;
    uv_async_t wake;
    uv_timer_t sweep;
    pthread_t thread;
    struct kvr_http_server *server;
    struct kvr_json_parser *json;
    struct kvr_jobs jobs; /* large bodies */
    struct desk *desks;
    size_t desks_n, desks_cap;
    uint32_t *tokens;
    uint64_t *locals, *prefixes;
    struct kvr_overlap *overlaps;
    struct kvr_reach *reaches;
    size_t tokens_cap, locals_cap, prefixes_cap, overlaps_cap, reaches_cap;
    struct kvr_service_question question;
    struct kvr_buf body;
    _Atomic size_t dumps;      /* being sent */
    _Atomic size_t owed_conns; /* connections on which something is still to be said; kept up to date while draining */
    _Atomic uint64_t answered; /* the last look-around that the loop has done (is_alive) */
    _Atomic bool stop;
};

/* A request until it is answered. */
struct request {
    struct loop *loop;
    struct kvr_http_conn *conn;
    enum endpoint at;
    uint64_t started_ns;
    char model[64], method[8], trace[128], path[128];
    struct kvr_unknown_members ignored; /* of the body of a route that changes something: told in its answer */
};

/* catalogue.c */
int catalogue_register(struct indexer *x, const struct registration *r, char *err, size_t cap); /* 0, 400, 409, 500 */
int catalogue_unregister(struct indexer *x, uint64_t id, const char *model, const char *group, const uint32_t *rank, char *err,
                         size_t cap);                                                                  /* 0, 404 */
int catalogue_pause(struct indexer *x, uint64_t id, uint32_t rank, bool pause, char *err, size_t cap); /* 0, 404, 409 */
/* With a reference, or NULL. */
struct partition *catalogue_find(struct indexer *x, const char *model, size_t model_len, const char *group, size_t group_len);
/* The same, made when it is not there (for restored content). NULL: no memory, or it has another block size. */
struct partition *catalogue_get(struct indexer *x, const char *model, const char *group, uint32_t block_size);
void partition_ref(struct partition *p);
void partition_unref(struct partition *p);
void catalogue_seed(struct indexer *x, const struct seed *seed); /* copied */
struct seed **catalogue_seeds(struct indexer *x, size_t *n);     /* copies; each malloc'd, and the list */
bool catalogue_has_listener(struct indexer *x, struct kvr_worker w);
bool catalogue_is_in(struct indexer *x, uint64_t worker_id, const struct partition *p);
size_t catalogue_listeners(struct indexer *x, uint64_t worker_id); /* how many it has */
void catalogue_workers_write(struct indexer *x, const char *model, const char *group, struct kvr_buf *out);
void catalogue_registrations_write(struct indexer *x, struct kvr_buf *out);
/* All partitions, each with a reference; the caller frees the list. */
struct partition **catalogue_list(struct indexer *x, size_t *n);
struct kvr_view_status *catalogue_statuses(struct indexer *x, size_t *n); /* malloc'd */
/* That of a listener; NULL: it is not followed yet. */
const struct kvr_view_status *catalogue_status_of(const struct kvr_view_status *st, size_t n, const struct instance *i,
                                                  const struct listener *l);
bool catalogue_add_peer(struct indexer *x, const char *url, size_t len, bool configured);
bool catalogue_drop_peer(struct indexer *x, const char *url, size_t len);
int catalogue_start(struct indexer *x);
int catalogue_announce(struct indexer *x, uint16_t port); /* in the registry, when its port is open */
int catalogue_start_durable(struct indexer *x);           /* when the workers that are configured are registered */
void catalogue_destroy(struct indexer *x);
const char *listener_state(const struct kvr_view_status *st);

/* routes.c */
void routes_on_request(struct kvr_http_conn *c, void *ctx);
void routes_body_room(struct kvr_http_conn *c, void *ctx, struct kvr_http_room *room);
void routes_on_gone(struct kvr_http_conn *c, void *ctx);
void routes_on_drained(struct kvr_http_conn *c, void *ctx);

/* answers.c: each answers the request, and counts the answer. extra: header lines, or NULL. */
#define JSON_TYPE "application/json"
void answer_body(struct request *rq, int status, const char *body, size_t len);       /* JSON */
void answer_buf(struct request *rq, int status, const char *type, struct kvr_buf *b); /* frees it; 503 when it has failed */
void answer_ok(struct request *rq, int status);                                       /* {"status":"ok"} */
void answer_empty(struct request *rq, int status);
void answer_error(struct request *rq, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void answer_error_with(struct request *rq, int status, const char *extra, const char *text);
void answer_error_body(struct kvr_buf *out, int status, const char *message); /* of an error that is answered by the HTTP server */
/* A string member of at most NAME_MAX_LEN bytes. 1 there, 0 absent or null, -1 answered with an error. */
int body_text(struct request *rq, struct kvr_json o, const char *key, bool required, char *out, size_t cap);
/* The group of a body: routing_group, or with --tenant-as-group tenant_id. "default" when there is none. Returns: as body_text. */
int body_group(struct request *rq, struct kvr_json o, char *out, size_t cap);

/* text.c */
/* The tokens of a prompt that is given as text. Zero: none were asked for. */
struct text_tokens {
    int status; /* of the answer when there are none: 422, 500, 503 */
    struct kvr_ids *ids;
    char why[300];
};
int text_start(struct indexer *x);
/* Any thread. `o` was read from body[0..len). */
void text_make(struct indexer *x, struct kvr_json o, const char *body, size_t len, struct text_tokens *out);

/* query.c */
void query_by_tokens(struct request *rq, struct kvr_json o);
void query_by_text(struct request *rq, struct kvr_json o, const struct text_tokens *t);
void query_by_hash(struct request *rq, struct kvr_json o);
/* The words of a served index (wire/index_service.h). */
void query_service(struct request *rq, struct kvr_json o);
void query_service_packed(struct request *rq, const char *body, size_t len);
void query_service_info(struct request *rq, struct kvr_json o);
/* Gives room back that large questions have taken. */
void query_give_back(struct loop *l);
void desks_sweep(struct loop *l, bool all);

/* events.c */
void events_post(struct request *rq, struct kvr_json o);

/* dump.c */
void dump_start(struct request *rq);

/* recovery.c */
int recovery_start(struct indexer *x);
void recovery_stop(struct indexer *x);

/* keeper.c */
int keeper_start(struct indexer *x);
void keeper_stop(struct indexer *x);

/* telemetry.c */
int telemetry_init(struct indexer *x);
void telemetry_record(struct request *rq, int status);
void telemetry_write(struct indexer *x, struct kvr_buf *out);

#endif
