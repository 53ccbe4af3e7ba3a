/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `serve` share.
 *
 *   workers.c   the worker table, health and breaker state
 *   discovery*.c  workers that are found rather than configured
 *   pools.c     partitions: an index, a router and its queue
 *   views.c     KV events -> index, what views are worth -> router
 *   replicas.c  what other routers of the fleet book
 *   served.c    our index answers other routers
 *   claim.c     whether it may
 *   remote.c    another router's index answers us
 *   sessions.c  session affinity
 *   responses.c  which worker has which response of /v1/responses
 *   models.c    GET /v1/models
 *   metrics.c   counters, histograms, /metrics
 *   engine_load.c  how loaded the engines say they are
 *   labels.c    counters by model, worker and status class
 *   proxy.c     one client request from parsing to the last byte        (data loops)
 *   rank.c      the data-parallel rank: what a request asks for, how the chosen one reaches the engine
 *   tokens.c    where the prompt's tokens come from                     (data loops)
 *   worker_key.c  the key that an engine wants
 *   health.c    active health checks, model discovery                   (main loop)
 *   survey.c    asks each worker what it is configured with             (main loop)
 *   learn.c     what of that is used, what differs from what was given, what is missing
 *   admin.c     admin port                                              (main loop)
 *   decisions.c the last decisions, for the admin page
 *   quality.c   what was predicted against what was delivered; choices.c: the arithmetic
 *   evidence.c  what the answers say of the views; watches.c  what the events said meanwhile
 *   serve.c     start, threads, signals, drain
 *
 * Threads and what they may touch:
 *   main loop    admin server, health checks, timers
 *   data loops   requests of their own connections; never each other's
 *   ingest       KV events; calls into views.c only
 *   sync         other routers' bookings; calls into replicas.c only
 * Shared state is in `struct serve` under `lock` (worker table, sessions, decisions), in atomics (metrics), or
 * inside kvr_router and kvr_index, which have their own locks. Lock order: serve.lock before any lock of the library;
 * nothing blocks under serve.lock.
 */
#ifndef KVR_SERVE_STATE_H
#define KVR_SERVE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <uv.h>
#include <kvroute/router.h>

#include "app/serve/common/clock.h"
#include "app/serve/data/choices.h"
#include "app/serve/serve.h"
#include "base/buf.h"
#include "store/event_recorder.h"
#include "net/http/http.h"
#include "net/http/access.h"
#include "net/ingest/ingest.h"
#include "net/http/jobs.h"
#include "net/http/json_body.h"
#include "net/replication/remote_index.h"
#include "wire/engine_facts.h"
#include "wire/engine_load.h"
#include "wire/json.h"
#include "wire/openai.h"
#include "wire/rank_member.h"

enum {
    MODEL_MAX = 128,
    MODELS_MAX = 256,
    DP_MAX = 64,
    POOLS_MAX = 256,
    TAINTS_MAX = 16,
    TAINT_LIST_MAX = 16,
    SHARED_RANGES_MAX = 64,
    RANKS_MAX = 8192,
    ID_MAX = 128,
    DECISIONS = 10000,
    TABLE_ROWS = 8,
    TRIES_MAX = 8,
    STATUS_CLIENT_GONE = 499
};

/* ---- workers ----------------------------------------------------------------------------------------- */

/* A partition: workers whose caches and loads are comparable. Made at first use, kept as long as the process lives. */
enum { REMOTES_MAX = 16 };

struct pool {
    struct pool *next;
    char model[MODEL_MAX], group[MODEL_MAX]; /* model "": any */
    uint32_t block_size;
    struct kvr_index *index;     /* NULL when the overlap credit is 0 */
    struct kvr_index *predicted; /* --router-predicted-ttl-secs */
    struct kvr_router *router;
    struct serve *serve;
    uint64_t number;         /* of this partition, for other routers */
    struct kvr_buf sync_buf; /* replicas.c; under the router's lock */
};

/* What an engine says of a model; the texts are "" where it says nothing. */
struct model_entry {
    char id[MODEL_MAX], root[256], parent[MODEL_MAX], owned_by[64];
    uint64_t created, max_model_len; /* 0: not said */
    bool is_lora;
};

enum { METRICS_URL_MAX = 240, API_KEY_MAX = 256 };

/* What an engine says of one rank, engine_load.c. */
struct rank_load {
    bool known, expired; /* expired: the router does not go by it any more */
    struct kvr_engine_load load;
    uint64_t at_ms; /* when it was so */
};

enum engine_kind { ENGINE_VLLM, ENGINE_SGLANG };

enum health { HEALTH_UNKNOWN, HEALTH_UP, HEALTH_DOWN };

/* What the entry of a worker says itself; the rest is learnt from its engine (learn.c). */
struct given {
    bool block_size, events, replay, ranks, total_kv_blocks;
};

enum { NOTES_MAX = 8, NOTE_MAX = 360, LEARN_AGAIN_MS = 1000, BLOCK_SIZE_DEFAULT = 16 };

/* What is wrong with the connection to a rank's events. */
enum wiring { WIRING_FINE, WIRING_EVENTS, WIRING_REPLAY, WIRING_SILENT };
enum { WIRING_PATIENCE_MS = 1000, WIRING_EVERY_MS = 300 };

/* What an engine has said, and what is wrong with it. Under serve.lock. */
struct learnt {
    uint64_t due_ms; /* to be asked from then on; 0: it has been */
    bool waits;      /* its events are followed when it has answered, or will not */
    bool answered;
    bool ranks_unknown; /* it has several, and nobody can tell which one takes a request */
    bool names_rank;    /* it has several, although the entry may tell of one */
    uint64_t since_ms;  /* when the worker was added */
    struct kvr_engine_facts facts;
    size_t notes_n;
    char notes[NOTES_MAX][NOTE_MAX], found[NOTE_MAX];
};

/* telling.c */
struct telling {
    uint32_t forms;  /* since its start: those of answers that have told */
    unsigned silent; /* answers that had to tell, and did not */
};

struct worker {
    struct worker *next;
    uint64_t id;
    char url[512], model[MODEL_MAX], group[MODEL_MAX], role[16];
    struct kvr_endpoint endpoint;
    uint32_t block_size, dp_start, dp_size;
    uint32_t rank_base; /* the engine counts its ranks from here */
    struct given given;
    bool block_size_known; /* given, or learnt */
    bool learns;           /* of one that is added: what has been learnt of the one it replaces; health and counts go on */
    uint64_t max_num_batched_tokens, total_kv_blocks;
    char events[DP_MAX][96], replay[DP_MAX][96]; /* by rank - dp_start; "" = none */
    char recover[240];                           /* URL for all ranks; "" = none */
    char taints[TAINTS_MAX][64];
    size_t taints_n;
    enum engine_kind engine;   /* where it reads the rank */
    char api_key[API_KEY_MAX]; /* "": none; worker_key.c */
    struct pool *pool;
    unsigned refs;            /* table + requests */
    bool removed, has_events; /* the latter: a rank has an endpoint in events */
    bool unreachable;         /* registered for book-keeping only: no endpoint */
    enum health health;
    unsigned failures; /* consecutive, for the breaker */
    uint64_t open_until_ms;
    bool schedulable;           /* what the router was told */
    struct model_entry *models; /* discovered; NULL = not known yet */
    size_t models_n;
    int models_status; /* of the last answer to GET /v1/models; 0: none yet */
    uint64_t requests, errors;
    struct telling telling;        /* cached tokens */
    struct series *series;         /* labels.c */
    char metrics[METRICS_URL_MAX]; /* URL of its engine's metrics; "" = none. This and below: engine_load.c */
    uint64_t metrics_due_ms, learnt_kv_blocks;
    const char *metrics_error; /* static; NULL: none */
    struct learnt learnt;
    unsigned char wiring[DP_MAX];        /* enum wiring, as was said last */
    struct rank_load loads[DP_MAX];      /* by rank - dp_start */
    _Atomic bool reports;                /* it was sent a request that has it report what it reuses, and the ingest knows */
    _Atomic unsigned char views[DP_MAX]; /* enum kvr_view_knowledge; of ranks whose events are followed */
};

/* ---- the rest ---------------------------------------------------------------------------------------- */

/* Terms of the delay cost, in ms. */
struct delay_terms {
    float first, computing, generation, pass;
};

struct decision_row {
    struct kvr_worker worker;
    float device, host, disk, pending, copy, pressure;
    uint32_t requests, generating;
    struct delay_terms delay;
    uint64_t prefill_tokens, decode_blocks, own_tokens; /* own: prompt tokens that it would compute */
    double cost;
};

/* The cheapest candidates of a decision, cheapest first; `total` says how many there were. */
struct decision_table {
    uint32_t n, total;
    bool has_delay; /* the cost has these terms */
    struct delay_terms chosen;
    struct decision_row rows[TABLE_ROWS];
};

struct decision {
    uint64_t at_ms; /* wall clock */
    char id[ID_MAX], model[48], reason[32];
    struct kvr_worker worker;
    uint64_t isl, cached_tokens, actual_cached;
    uint32_t overlap_blocks, pending_blocks, status;
    bool has_actual;
    double best_blocks, effective_blocks, cost, waited_ms, ttft_ms;
    double other_ms; /* what the best other candidate would have taken to the first token; negative: not compared */
    struct decision_table table;
};

/* Totals; labels.c tells them by model, worker and status class. */
#define SERVE_LABELLED(X) X(requests_total) X(predicted_cached_tokens_total) X(actual_cached_tokens_total)

#define SERVE_COUNTERS(X)                                                                                                                  \
    X(engine_metrics_reads_total, "Times that an engine's metrics were read")                                                              \
    X(engine_metrics_failures_total, "Times that they could not be read, or had nothing of use")                                           \
    X(engine_metrics_bad_lines_total, "Lines of them that were passed over: no sample, or longer than 8 KiB")                              \
    X(engine_metrics_postponed_total, "Times that a reading waited because 64 others were on the way")                                     \
    X(engine_load_reports_total, "Loads of engines that came over the event plane")                                                        \
    X(engine_load_malformed_total, "Of these, messages that could not be read")                                                            \
    X(engine_load_unknown_workers_total, "Loads of ranks that are not registered")                                                         \
    X(engine_loads_expired_total, "Loads of engines that grew too old to be used")                                                         \
    X(uncounted_total, "Requests that no labelled counter took: out of memory")                                                            \
    X(reopened_connections_total, "Requests sent again on a fresh connection: the worker had closed the kept one")                         \
    X(view_prompts_dropped_total, "Answered prompts that were not looked at for a partial view: too many at once")                         \
    X(retries_total, "Requests sent again to another worker")                                                                              \
    X(errors_total, "Client requests that ended in an error of ours or a broken stream")                                                   \
    X(client_gone_total, "Requests whose client went away first")                                                                          \
    X(queue_timeouts_total, "Requests that waited for a worker in vain")                                                                   \
    X(tokenize_failures_total, "Prompts that could not be tokenized and were routed by load")                                              \
    X(tokenize_requests_total, "Prompts sent to an engine's tokenizer")                                                                    \
    X(multimodal_prompts_total, "Chats with parts that are not text, left out of the predicted and actual cached tokens")                  \
    X(multimodal_unplaced_total, "Those of them whose first such part has no known place in the tokens: routed by load")                   \
    X(tokenize_cache_hits_total, "Prompts found in the token cache")                                                                       \
    X(predicted_equals_actual_total, "Answers whose predicted and actual cached blocks were equal")                                        \
    X(choices_total, "Requests with known tokens that were answered: those that moves, blocks computed again and regret are of")           \
    X(usage_answers_total, "Answers whose usage told how much was cached")                                                                 \
    X(usage_untold_total, "Answers whose usage did not, from workers that have not told yet: they count nowhere else")                     \
    X(prompt_tokens_total, "Prompt tokens, of answers whose usage told how much was cached")                                               \
    X(prompt_tokens_refused_total, "Prompts refused because they had more tokens than --max-prompt-tokens")                                \
    X(prompt_messages_refused_total, "Requests refused because they had more messages than --max-messages")                                \
    X(prompt_texts_refused_total, "Prompts refused because their text was longer than --max-prompt-text")                                  \
    X(overload_rejections_total, "Requests refused because every eligible worker was overloaded")                                          \
    X(breaker_opened_total, "Times a worker's breaker opened")                                                                             \
    X(events_applied_total, "KV events applied")                                                                                           \
    X(events_failed_total, "KV events refused by the index")

enum { HIST_BUCKETS = 24 };

struct histogram {
    double first, factor; /* bucket i ends at first * factor^i */
    int buckets;
    _Atomic uint64_t counts[HIST_BUCKETS + 1], n;
    _Atomic uint64_t sum_micro; /* sum in millionths */
};

struct metrics {
#define SERVE_COUNTER_FIELD(name, help) _Atomic uint64_t name;
    SERVE_COUNTERS(SERVE_COUNTER_FIELD)
#undef SERVE_COUNTER_FIELD
#define SERVE_LABELLED_FIELD(name) _Atomic uint64_t name;
    SERVE_LABELLED(SERVE_LABELLED_FIELD)
#undef SERVE_LABELLED_FIELD
    struct histogram ttft, itl, block_hashing, find_matches, seq_hashing, scheduling, total, hit_rate, isl;
    struct histogram best_overlap, regret, shortfall, queue_wait, remote_query;
    struct histogram choice_regret, choice_gain;
    _Atomic uint64_t choices_compared, choices_seen_us, choices_alone_us; /* choices_totals.compared, .seen_ms, .alone_ms */
    _Atomic uint64_t moves[CHOICES_REASONS_N], computed_again[CHOICES_REASONS_N];
    _Atomic uint64_t remote_partial;
};

/* How predictions fare, under serve.lock (quality.c). */
struct quality {
    double divergence; /* moving mean of choices_error / prompt */
    uint64_t answers, last_log_ms, unlogged;
    bool diverged;
};

/* Router contexts of one thread, one per pool. */
struct ctx_list {
    struct {
        struct pool *pool;
        struct kvr_router_ctx *ctx;
    } * items;
    size_t n;
};

struct session_table;
struct series;
struct evidence;
struct health_checks;
struct survey;
struct asking;
struct replicas;
struct reading;
struct kvr_sync;
struct token_cache;
struct loop;

struct supposition; /* views.c */

/* engine_load.c; the main loop's */
struct engine_loads {
    struct kvr_http_client *client; /* made at first use */
    struct reading *readings;       /* under way */
    size_t readings_n;
    struct kvr_nats_sub *reports; /* NULL: none */
};

/* What rooms below tell those above them. Set by serve.c before anything runs. */
struct serve_hooks {
    void (*workers_changed)(struct serve *s); /* main loop: one was added */
    void (*may_route)(struct serve *s);       /* any thread: a request that waits for a worker may find one */
    kvr_load_hook *booked;                    /* under a router's lock, any thread; its context is the pool; NULL: nobody listens */
    /* Another router has bound it. The sync thread. */
    void (*session_heard)(struct serve *s, const char *id, size_t len, struct kvr_worker w);
};

struct serve {
    struct serve_hooks hooks;
    struct supposition *suppositions; /* the ingest thread's */
    _Atomic uint64_t view_tick;       /* rises with each event of a rank of which things are supposed, before it is applied */
    _Atomic uint64_t view_supposed;   /* blocks in views for which only our own requests speak */
    const struct serve_options *o;
    pthread_mutex_t lock;
    struct worker *workers;
    size_t workers_n;
    uint64_t workers_version;
    struct pool *pools;
    struct kvr_curve *curve; /* NULL: none */
    struct kvr_ingest *ingest;
    struct kvr_view_store *store; /* NULL: no data directory */
    struct kvr_nats *nats;        /* NULL: not used */
    struct kvr_durable_feed *durable;
    struct kvr_plane_feed *feed; /* NULL: each source has its own socket */
    char scope[KVR_SCOPE_MAX];
    struct served *served;                   /* NULL: the index is not served */
    struct kvr_remote_stats remote_stats;    /* of all loops */
    struct kvr_endpoint remote[REMOTES_MAX]; /* --use-remote-indexer over HTTP */
    size_t remote_n;
    char **remote_keys;               /* the first is sent to these; NULL: none */
    char remote_scope[KVR_SCOPE_MAX]; /* over NATS; none of both: not used */
    struct kvr_recorder *recorder;    /* NULL: nothing is recorded */
    struct kvr_sync *sync;            /* NULL: alone */
    struct session_table *sessions, *responses;
    struct evidence *evidence;
    struct token_cache *tokens;
    struct decision *decisions; /* ring */
    uint64_t decisions_n;
    struct quality quality;
    struct choices_watch choices; /* main loop's */
    struct series *series;        /* of requests that no worker had, labels.c */
    struct metrics metrics;
    struct loop **loops;
    size_t loops_n;
    uv_loop_t main_loop;
    struct kvr_http_shared http, admin_http; /* of the data port, of the admin port */
    struct kvr_http_server *admin;
    struct kvr_access *access; /* who may use it */
    size_t admin_connections;  /* most at once */
    struct kvr_remote_index *admin_remotes[REMOTES_MAX];
    size_t admin_remotes_n;        /* 0: the index is here */
    const struct fetched *fetched; /* while a question is answered that they were asked of; main loop's */
    _Atomic bool remote_seen;      /* all of them have been found good once, or waited for long enough */
    _Atomic bool caught_up;        /* the durable stream: as far as can be waited for */
    struct replicas *replicas;     /* the sync thread's; of it the counters are any thread's */
    struct engine_loads engine_loads;
    struct health_checks *health_checks;
    struct kvr_http_client *health_client;
    struct survey *surveys; /* under way; main loop's */
    size_t surveys_n;
    struct asking *askings;       /* questions that wait for the index elsewhere; main loop's */
    struct kvr_json_parser *json; /* main loop's */
    struct kvr_jobs jobs;         /* main loop's: large bodies */
    struct ctx_list admin_ctxs;   /* main loop's */
    _Atomic bool draining;
    _Atomic int mode;
    _Atomic uint64_t next_id;
    struct {
        uv_signal_t term, intr, hup;
        uv_timer_t expire, poll;
    } handles; /* of the main loop */
    uint64_t drain_deadline_ms;
    unsigned polls;
    uint64_t started_ms;
    uint64_t salt; /* makes request ids differ between processes */
};

/* One data loop. */
struct loop {
    struct serve *serve;
    uv_loop_t uv;
    uv_async_t wake;
    pthread_t thread;
    struct kvr_http_server *server;
    struct kvr_http_client *client;
    struct kvr_remote_index *remotes[REMOTES_MAX]; /* none: the index is here */
    size_t remotes_n;
    struct kvr_json_parser *json;
    struct kvr_jobs jobs; /* large bodies and prompts */
    struct ctx_list ctxs;
    uint64_t *allowed; /* scratch: ids of the workers that may serve a request */
    size_t allowed_cap;
    struct px *parked; /* wait for a worker to exist; ordered by urgency */
    pthread_mutex_t mail_lock;
    struct px *ready;                           /* their turn in the queue has come; under mail_lock */
    _Atomic size_t parked_n, active, in_flight; /* active: booked; in_flight: all that are not ended */
    _Atomic size_t open_conns;                  /* kept up to date while draining */
    _Atomic bool stop;
    uint64_t drain_deadline_ms;
    bool draining;
};

/* workers.c; those with _locked need serve.lock */
struct worker_spec {
    bool has_id;
    uint64_t id;
    struct worker w; /* parsed fields only */
};
/* A worker of which nothing is given, as all zero but this. */
void worker_init(const struct serve *s, struct worker *w);
/* Parses --worker. Returns: 0, or -1 with the reason in err. */
int worker_parse(const struct serve *s, const char *text, struct worker_spec *out, char *err, size_t cap);
/* Adds or replaces. Returns: 0, -1 with the reason in err. */
int worker_add(struct serve *s, const struct worker *spec, char *err, size_t cap);
bool worker_remove(struct serve *s, uint64_t id);
const char *worker_model(const struct serve *s, const struct worker *w);
/* Fields of a worker object over `w`. Returns: NULL, or the field that is wrong. */
const char *worker_read_object(struct kvr_json o, struct worker *w);
struct worker *worker_find_locked(struct serve *s, uint64_t id);
void worker_unref(struct serve *s, struct worker *w);
bool worker_is_schedulable(const struct worker *w, uint64_t now_ms);
void worker_sync_locked(struct serve *s, struct worker *w);     /* tells the router whether it may be chosen */
void worker_report(struct serve *s, struct worker *w, bool ok); /* result of a request, for the breaker */
/* why: it is down; NULL when it is up. Says so when that has changed. */
/* telling.c: whether answers tell how much was cached. */
struct answer_telling {
    unsigned form;       /* of the answer, below 32 */
    bool told, sure_hit; /* a part of the prompt was cached for sure */
};
/* The answer of a request that has the worker. Returns: whether its cached tokens are known; those that it does not tell are 0 then. */
bool telling_note(struct serve *s, struct worker *w, const struct answer_telling *a);
void telling_forget_locked(struct worker *w, bool restarted); /* not restarted: its cache is another */
void telling_write_locked(const struct worker *w, struct kvr_buf *b);
void worker_set_health(struct serve *s, uint64_t id, enum health h, const char *why);
void worker_set_models(struct serve *s, uint64_t id, struct model_entry *models, size_t n);
void worker_models_refused(struct serve *s, uint64_t id, int status); /* it did not tell them; says so once */
/* An address of a worker, as users have it: a /v1 at its end, of an OpenAI client's base URL, is left out, as paths have it already.
 * Returns: false: it is none. */
bool worker_set_url(struct worker *w, const char *url, size_t len);
bool worker_serves_locked(const struct serve *s, const struct worker *w, const char *model, size_t len, bool *is_lora);
/* Tokens that the model has room for there ("": the first it lists); 0: not known. */
uint64_t worker_room_locked(const struct worker *w, const char *model);
void workers_destroy(struct serve *s);

/* survey.c; main loop */
void survey_tick(struct serve *s);
void survey_stop(struct serve *s);
/* learn.c; main loop */
bool learns(const struct serve *s, const struct worker *w); /* is its engine asked? */
bool learns_events(const struct serve *s);                  /* and for its events? */
/* Before it is added: what is not given is to be learnt. */
void learn_begin(const struct serve *s, struct worker *w);
/* Takes what the engine has said: into the worker, which joins another partition when need be, and to stderr when it is new. */
void learn(struct serve *s, uint64_t id, const struct kvr_engine_facts *f);
/* It does not answer (now): what it was waited for with goes on with what is known. */
void learn_nothing(struct serve *s, uint64_t id);
void learnt_write(struct kvr_buf *b, const struct worker *w); /* members of the worker object */
/* The block size to begin with, when nobody has said one. */
uint32_t worker_block_size_locked(const struct serve *s, const struct worker *w);

/* models.c */
bool models_id_of_path(struct kvr_text path, char id[MODEL_MAX]); /* percent-decoded; false: no model's */
void models_write(struct serve *s, struct kvr_buf *out);
bool models_write_one(struct serve *s, struct kvr_buf *out, const char *id); /* false: nobody lists it */

/* responses.c */
enum { RESPONSE_ID_MAX = KVR_RESPONSE_ID_MAX };
struct session_table *responses_create(void);
/* Another router has bound a session, or a response. The first binding that lives wins; others are left out. */
void bindings_heard(struct serve *s, const char *id, size_t len, struct kvr_worker w);
bool responses_get_locked(struct serve *s, const char *response, struct kvr_worker *out);
void responses_bind(struct serve *s, const char *response, struct kvr_worker w);
void responses_forget(struct serve *s, const char *response); /* its worker has deleted it */
/* Both leave `id` as it is when there is none. */
void responses_id_of(struct kvr_json v, char id[RESPONSE_ID_MAX]);
void responses_id_of_path(struct kvr_text path, char id[RESPONSE_ID_MAX]);

/* worker_key.c */
bool worker_key_ok(const char *key); /* 1 to 255 characters that can be seen */
/* The key of a worker's entry; option: api-key (the key itself), api-key-env (the variable it is in), api-key-file (its first line). */
bool worker_key_read(const char *option, const char *value, char key[API_KEY_MAX]);
void worker_key_hide(const char *spec, char *out, size_t cap); /* the entry as it may be shown */
void worker_key_put(const char *key, struct kvr_buf *head);    /* the header, if there is a key */

/* rank.c */
bool engine_kind_parse(const char *name, enum engine_kind *out);
const char *engine_kind_name(enum engine_kind kind);
/* Whether its requests name the rank: there are several at its address. One alone is not named, as an engine takes any number but its own
 * place for a mistake: vLLM with --data-parallel-rank 1 refuses rank 1, and one whose ranks nobody mentioned would put all on rank 0. */
bool rank_is_named_locked(const struct serve *s, const struct worker *w);
/* What the worker is sent of a body for that rank. `has`: what the body says; NULL: it is no JSON object. Returns: `body`, or another
 * one; the caller gives it back; NULL: no memory, or the budget for bodies is used up. */
struct kvr_body *rank_body(const struct worker *w, struct kvr_body *body, const struct kvr_rank_member *has, uint32_t rank);

/* pools.c */
/* The partition, made if need be; NULL with the reason in err. */
struct pool *pool_get_locked(struct serve *s, const struct worker *w, char *err, size_t cap);
/* The partition of a model and a group ("": any on serve, "default" on select), or NULL. */
struct pool *pool_find_locked(struct serve *s, const char *model, const char *group);
/* Its workers of that model and group into ids[workers_n]; *all: that is all it has. */
size_t pool_scope_locked(struct serve *s, const struct pool *pool, const char *model, const char *group, uint64_t *ids, bool *all);
void pools_destroy(struct serve *s);
void pools_tick(struct serve *s); /* main loop: expiry, decay */
/* The thread's context for a pool, made at first use; NULL when memory is short. */
struct kvr_router_ctx *ctx_get(struct ctx_list *list, struct pool *pool);
void ctx_list_free(struct ctx_list *list);

/* views.c */
int views_start(struct serve *s);
int views_start_durable(struct serve *s); /* when the workers that are configured are followed */
void views_follow(struct serve *s, const struct worker *w, struct pool *pool);
void views_unfollow(struct serve *s, uint64_t id);
/* A prompt that a rank has answered, whose view was partial when it was chosen. */
void views_served(struct serve *s, struct kvr_served *v);
void views_expect_reports(struct serve *s, struct worker *w); /* before such a request is sent to it; any thread */
enum kvr_view_knowledge views_knowledge(const struct worker *w, uint32_t rank);
/* Do KV events of this rank (by place) come from somewhere? */
bool views_has_source(const struct serve *s, const struct worker *w, uint32_t place);
const char *views_why_none(const struct worker *w); /* of a worker without one; static */
void views_stop(struct serve *s);
void views_wiring_tick(struct serve *s); /* main loop: says what is wrong with endpoints of events, when that changes */
bool views_settled(struct serve *s);
void views_tick(struct serve *s); /* main loop */

/* replicas.c */
bool replicas_over_nats(const struct serve *s);
bool replicas_wanted(const struct serve *s);
int replicas_start(struct serve *s, char *err, size_t cap);
void replicas_stop(struct serve *s);
/* A session was bound here; serve.lock is held. */
void replicas_on_session_locked(struct serve *s, const char *id, size_t len, struct kvr_worker w);
void replicas_on_change(void *pool, const struct kvr_load_event *event);
void replicas_workers_changed(struct serve *s);
void replicas_metrics(struct serve *s, struct kvr_buf *out);

/* discovery.c */
int discovery_start(struct serve *s, char *err, size_t cap);
void discovery_tick(struct serve *s);   /* main loop */
void discovery_reload(struct serve *s); /* the file, now; main loop */
bool discovery_settled(void);
void discovery_stop(struct serve *s);
void discovery_metrics(struct serve *s, struct kvr_buf *out);

/* served.c */
/* Returns: 0, or -1 with the reason in err. */
int served_start(struct serve *s, char *err, size_t cap);
void served_stop(struct serve *s);
void served_tick(struct serve *s); /* main loop */
void served_metrics(struct serve *s, struct kvr_buf *out);
/* Of a router that serves its index; packed: where served_takes_packed. */
void served_post_query(struct serve *s, struct kvr_http_conn *c, struct kvr_json o);
void served_post_record(struct serve *s, struct kvr_http_conn *c, struct kvr_json o);
void served_post_packed(struct serve *s, struct kvr_http_conn *c); /* a question in msgpack */
bool served_takes_packed(struct kvr_text path);                    /* is that one asked in msgpack too? */
void served_get_info(struct serve *s, struct kvr_http_conn *c);

/* remote.c */
/* Reads --use-remote-indexer. Returns: 0, or -1 with the reason in err. */
int remote_parse(struct serve *s, char *err, size_t cap);
bool remote_needs_nats(const struct serve *s);
int remote_open(struct serve *s, struct loop *l); /* for one loop */
void remote_close(struct loop *l);
int remote_open_admin(struct serve *s);
void remote_close_admin(struct serve *s);
const char *remote_why(const struct serve *s); /* why it is not used now; "": it is. Main loop */
bool remote_settled(struct serve *s);          /* validated once, or not within --restore-timeout; any thread */
/* The model that indexers know a block size's workers by. */
void remote_model(const struct serve *s, uint32_t block_size, char *out, size_t cap);

/* shards.c: which of several indexers follows which worker */
void shards_tick(struct serve *s); /* main loop */
void shards_stop(struct serve *s);
void shards_metrics(struct serve *s, struct kvr_buf *out);
void remote_metrics(struct serve *s, struct kvr_buf *out);

/* sessions.c */
struct session_table *sessions_create(double ttl_s);
void sessions_destroy(struct session_table *t);
bool sessions_get(struct session_table *t, const char *id, size_t len, uint64_t now, struct kvr_worker *out);
/* Returns: whether other routers should hear of it: it is new, another, or was told long ago. */
bool sessions_bind(struct session_table *t, const char *id, size_t len, uint64_t now, struct kvr_worker w);
void sessions_forget(struct session_table *t, const char *id, size_t len);
size_t sessions_count(const struct session_table *t);
uint64_t sessions_given_up(const struct session_table *t); /* before their time, as there were too many */

/* tokens.c: cache of tokenized bodies; any thread */
struct token_cache *token_cache_create(size_t bytes_max);
void token_cache_destroy(struct token_cache *c);
void token_cache_key(const char *body, size_t len, uint64_t key[2]);
uint32_t *token_cache_get(struct token_cache *c, const uint64_t key[2], size_t *n); /* malloc'd copy */
void token_cache_put(struct token_cache *c, const uint64_t key[2], const uint32_t *tokens, size_t n);

/* metrics.c */
void metrics_init(struct metrics *m);
void histogram_add(struct histogram *h, double v);
double histogram_end(const struct histogram *h, int bucket); /* its upper bound */
void metrics_write(struct serve *s, struct kvr_buf *out);

/* engine_load.c */
int engine_load_start(struct serve *s);
void engine_load_tick(struct serve *s); /* main loop */
void engine_load_stop(struct serve *s);
void engine_load_tell_locked(const struct worker *w); /* a worker that is new to its router: what is known of it */
void engine_load_write(const struct serve *s, struct kvr_buf *b, const struct rank_load *r); /* the member `engine` */
void engine_load_metrics(struct serve *s, struct kvr_buf *b);

/* labels.c; under serve.lock. w NULL: no worker had it. model "": the request names none. */
void labels_request_locked(struct serve *s, struct worker *w, const char *model, int status);
void labels_cached_locked(struct serve *s, struct worker *w, const char *model, uint64_t predicted, uint64_t actual);
void labels_metrics(struct serve *s, struct kvr_buf *out); /* takes the lock */
void labels_free(struct series *list);

/* decisions.c */
void decisions_add(struct serve *s, const struct decision *d);
void decisions_write(struct serve *s, struct kvr_buf *out, size_t most);
/* The decision of one request id, with its table. false: not kept (any more). */
bool decisions_write_one(struct serve *s, struct kvr_buf *out, const char *id, size_t len);
/* From the context that has decided. */
void decision_table_take(struct decision_table *t, const struct kvr_router_ctx *ctx, struct kvr_worker chosen);
void decision_table_header(const struct decision_table *t, struct kvr_buf *out);

/* quality.c */
void quality_decided(struct serve *s, const struct kvr_router_result *r);
/* Cached tokens of an answer: `predicted` by the view, `pending` on requests ahead of it. */
struct delivery {
    const char *id;
    struct kvr_worker worker;
    uint64_t predicted, pending, actual, prompt;
    uint32_t block_size;
};
void quality_delivered(struct serve *s, const struct delivery *d);
/* The first token of a request, or its answer, has come: what its prompt's place was worth. */
void quality_answered(struct serve *s, const struct kvr_router_result *r);
/* A time to first token: teaches the model, and is compared with what it says of the other candidates. Returns: ms to the first token of
 * the best of these; negative: it is not compared. */
double quality_first_token(struct serve *s, struct pool *pool, const struct kvr_router_result *r, const struct decision_table *t,
                           double ms);
void quality_tick(struct serve *s);                       /* main loop, once a second: says what could be better */
void quality_write(struct serve *s, struct kvr_buf *b);   /* main loop: an object of the last minute */
void quality_metrics(struct serve *s, struct kvr_buf *b); /* main loop */

/* health.c */
struct health_checks *health_create(void); /* NULL: out of memory */
void health_destroy(struct health_checks *h);
int health_start(struct serve *s);
void health_check_now(struct serve *s, uint64_t worker_id); /* any thread */
void health_stop(struct serve *s);

/* admin.c */
/* Reads the keys of the admin port. Returns: 0, or -1 with the reason in err. */
int admin_open(struct serve *s, char *err, size_t cap);
int admin_start(struct serve *s);

/* proxy.c */
void proxy_on_request(struct kvr_http_conn *c, void *ctx);
void proxy_on_gone(struct kvr_http_conn *c, void *ctx);
void proxy_on_drained(struct kvr_http_conn *c, void *ctx);
void proxy_error_body(struct kvr_buf *out, int status, const char *message);
void proxy_try_parked(struct loop *l);
void proxy_take_ready(struct loop *l);
void proxy_cancel_all(struct loop *l);
bool serve_ready(struct serve *s, const char **why);

#endif
