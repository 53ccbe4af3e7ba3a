/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The map of `serve`, and what its rooms share. A room uses those below it and its own files, never one above (scripts/check_circles.py);
 * what a room tells those above goes through struct serve_hooks.
 *
 *     serve.c     start, threads, signals, drain
 *       admin/      the admin port: routes, /metrics, the selection service                                          main loop
 *       data/       requests of clients, from parsing to the last byte (request.h), and what is kept of them         data loops
 *       fleet/      other routers: replicas.h, served.h, remote.h, shards.h                                          sync, NATS, main loop
 *       tokenizers/ which model's tokens are made here                                                                main loop, pool
 *       discovery/  workers that are found rather than configured                                                    main loop, finders
 *       config/     files of YAML that say what is routed how, and who may ask                                        main loop
 *         workers/    worker.h the table, partition.h partitions, views.h what is known of caches, health.h, learn.h ...  ingest, main loop
 *           common/     limits, clock, counters, members of bodies
 *
 * Threads:
 *   main loop    admin server, health checks, timers; the only one that adds workers and partitions, and removes workers
 *   data loops   requests of their own connections; never each other's
 *   ingest       KV events; calls into views.c only
 *   folders      of `select` with --tokenizer-dir, from the first SIGHUP on: reads the folders again
 *   sync         other routers' bookings; calls into replicas.c, and from there into what serve_hooks says
 * Shared state: the worker table is under struct serve's `lock`; what is made of it for requests is the roster (workers/roster.h), which
 * does not change. Sessions, decisions, labelled counters, evidence and the quality of predictions have locks of their own, leaves all;
 * figures are atomic; kvr_router and kvr_index have their own locks. base/lock.h has the order of all. Nothing blocks under the lock of the
 * table, and a request neither hashes, nor copies, nor looks through workers under it.
 */
#ifndef KVR_SERVE_STATE_H
#define KVR_SERVE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <uv.h>
#include <kvroute/router.h>

#include "base/lock.h"
#include "base/map64.h"
#include "app/serve/common/clock.h"
#include "app/serve/common/counters.h"
#include "app/serve/common/limits.h"
#include "app/serve/config/reloads.h"
#include "app/serve/config/keyring.h"
#include "app/serve/data/choices.h"
#include "app/serve/data/decisions.h"
#include "app/serve/data/fallback_counts.h"
#include "app/serve/data/loop.h"
#include "app/serve/data/quality.h"
#include "app/serve/data/ready.h"
#include "app/serve/data/sessions.h"
#include "app/serve/data/tokens.h"
#include "app/serve/fleet/remote.h"
#include "app/serve/fleet/replicas.h"
#include "app/serve/fleet/served.h"
#include "app/serve/fleet/shards.h"
#include "app/serve/handover.h"
#include "app/serve/serve.h"
#include "net/http/ending.h"
#include "app/serve/workers/engine_load.h"
#include "app/serve/workers/health.h"
#include "app/serve/workers/labels.h"
#include "app/serve/workers/learn.h"
#include "app/serve/workers/missed.h"
#include "app/serve/workers/model_counts.h"
#include "app/serve/workers/models.h"
#include "app/serve/workers/partition.h"
#include "app/serve/workers/rank.h"
#include "app/serve/data/disagg_state.h"
#include "app/serve/workers/roster.h"
#include "app/serve/workers/telling.h"
#include "app/serve/workers/views.h"
#include "app/serve/workers/worker.h"
#include "app/serve/workers/worker_key.h"
#include "net/http/access.h"
#include "net/http/addresses.h"
#include "net/http/http.h"
#include "net/http/jobs.h"
#include "net/http/json_body.h"
#include "net/ingest/event_plane.h"
#include "net/ingest/ingest.h"
#include "net/replication/remote_index.h"
#include "store/event_recorder.h"

/* What rooms below tell those above them. Set by serve.c before anything runs. */
struct serve_hooks {
    void (*workers_changed)(struct serve *s);                            /* main loop: one was added */
    void (*tokens_doubted)(struct serve *s, const char *model);          /* main loop: prompts tokenized here do not turn up in KV events */
    bool (*partition_asked)(struct serve *s, const struct partition *p); /* main loop: a selection of it may still be booked, or waits */
    void (*may_route)(struct serve *s);                                  /* any thread: a request that waits for a worker may find one */
    kvr_load_hook *booked; /* under a router's lock, any thread; its context is the partition; NULL: nobody listens */
    /* Another router has bound it. The sync thread. */
    void (*session_heard)(struct serve *s, const char *id, size_t len, struct kvr_worker w);
};

struct asking;
struct discovery;
struct evidence;
struct fetched;
struct kvr_durable_feed;
struct kvr_given_tokens;
struct kvr_ids;
struct kvr_line_log;
struct kvr_otlp;
struct kvr_plane_feed;
struct kvr_view_store;
struct models_config;
struct kvr_sync;
struct replicas;
struct disagg_states;
struct roster;
struct selection;
struct served;
struct shards;
struct supposition;
struct tokenizers;
struct survey;

struct serve {
    struct serve_hooks hooks;
    struct supposition *suppositions; /* the ingest thread's */
    _Atomic uint64_t view_tick;       /* rises with each event of a rank of which things are supposed, before it is applied */
    _Atomic uint64_t view_supposed;   /* blocks in views for which only our own requests speak */
    const struct serve_options *o;
    struct kvr_lock lock;
    struct worker *workers;
    size_t workers_n;
    struct worker **workers_end; /* where the next one is put; NULL: at the beginning. Main loop */
    struct kvr_map64 workers_by_id;
    struct kvr_map64 workers_at;      /* how many have an address, by the key of their endpoint. Main loop */
    _Atomic uint64_t workers_version; /* rises under lock, with what the roster is made of */
    _Atomic bool has_roles;           /* a worker of role prefill or decode has been there */
    _Atomic uint64_t breaker_due_ms;  /* a breaker's pause is over then; 0: none is open */
    struct kvr_lock roster_lock;
    struct roster *roster; /* NULL: none has been asked for */
    struct partition *partitions;
    struct kvr_curve *curve; /* NULL: none */
    struct kvr_ingest *ingest;
    struct kvr_view_store *store; /* NULL: no data directory */
    struct kvr_nats *nats;        /* NULL: not used */
    struct kvr_durable_feed *durable;
    struct kvr_plane_feed *feed; /* NULL: each source has its own socket */
    char scope[KVR_SCOPE_MAX];
    struct shards *shards;                   /* main loop's; NULL: there are not several indexers */
    struct served *served;                   /* NULL: the index is not served */
    struct kvr_remote_stats remote_stats;    /* of all loops */
    struct kvr_endpoint remote[REMOTES_MAX]; /* --use-remote-indexer over HTTP */
    size_t remote_n;
    char **remote_keys;               /* the first is sent to these; NULL: none */
    char remote_scope[KVR_SCOPE_MAX]; /* over NATS; none of both: not used */
    struct kvr_recorder *recorder;    /* NULL: nothing is recorded */
    struct kvr_sync *sync;            /* NULL: alone */
    struct kvr_line_log *access_log;  /* NULL: none; a lane for each data loop */
    struct kvr_otlp *otlp;            /* NULL: no traces */
    struct session_table *sessions, *responses;
    struct evidence *evidence;
    struct token_cache *tokens;
    struct tokenizers *tokenizers; /* NULL: no tokens are made here */
    struct decisions *decisions;
    struct quality quality;
    struct choices_watch choices; /* main loop's */
    struct labels *labels;
    struct model_table *model_counts;
    struct fallback_counts fallback_counts;
    struct disagg_states *disagg_states;
    struct metrics metrics;
    struct loop **loops;
    size_t loops_n;
    bool loops_run; /* each on its thread */
    uv_loop_t main_loop;
    struct kvr_http_shared http, admin_http; /* of the data port, of the admin port */
    struct kvr_addresses addresses;          /* of the data port */
    struct kvr_addresses unfinished;         /* bodies there: half of --max-bodies-bytes for each key, or address, but one whole body */
    struct kvr_http_server *admin;
    struct kvr_access *access;           /* who may use it */
    struct keyrings keyrings;            /* who may use the data port */
    struct kvr_tls_ctx *tls, *admin_tls; /* of the data port, of the admin port; NULL: plain */
    struct reloads reloads;
    const struct policy_profile *profiles; /* of queues; main loop's */
    size_t profiles_n;
    struct policy_profile *profiles_read; /* the same, malloc'd; NULL: those of the start */
    uint64_t doors_due_ms;                /* main loop's; doors.h */
    size_t admin_connections;             /* most at once */
    struct kvr_remote_index *admin_remotes[REMOTES_MAX];
    size_t admin_remotes_n;                /* 0: the index is here */
    const struct fetched *fetched;         /* while a question is answered that they were asked of; main loop's */
    struct kvr_given_tokens *given_tokens; /* of --tokenizer-dir of `kvroute select`; NULL: none */
    struct kvr_ids *text_ids;              /* while a question is answered whose prompt is text; main loop's */
    _Atomic bool remote_seen;              /* all of them have been found good once, or waited for long enough */
    struct kvr_catch_up catch_up;          /* main loop's */
    _Atomic bool caught_up;                /* the durable stream: as far as can be waited for */
    struct replicas *replicas;             /* the sync thread's; of it the counters are any thread's */
    struct engine_loads engine_loads;
    struct missed_pairs missed;
    struct kvr_lock models_lock;
    struct models_config *models; /* NULL: no --models-file, and none was put */
    struct health_checks *health_checks;
    struct kvr_http_client *health_client;
    struct selection *selection; /* main loop's */
    struct discovery *discovery; /* main loop's, but for its mail box */
    struct survey *surveys;      /* under way; main loop's */
    size_t surveys_n;
    struct adapter_job *adapter_jobs;   /* main loop's */
    struct asking *askings;             /* questions that wait for the index elsewhere; main loop's */
    struct kvr_json_parser *json;       /* main loop's */
    struct kvr_jobs jobs;               /* main loop's: large bodies */
    struct ctx_list admin_ctxs;         /* main loop's */
    struct kvr_unknown_members ignored; /* main loop's: of the body that is being answered */
    struct kvr_ending ending;           /* main loop's */
    _Atomic int phase;                  /* enum kvr_ending_phase, for all threads */
    struct handover handover;
    _Atomic int mode;
    _Atomic uint64_t next_id;
    struct {
        uv_signal_t hup;
        uv_timer_t expire, poll;
    } handles; /* of the main loop */
    unsigned polls;
    uint64_t started_ms;
    uint64_t salt; /* makes request ids differ between processes */
};

/* Any thread. */
static inline bool serve_is_ending(const struct serve *s)
{
    return atomic_load_explicit(&s->phase, memory_order_relaxed) != KVR_SERVING;
}

#endif
