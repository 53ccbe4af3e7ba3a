/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker: what its entry says (entry/spec.c, entry/read_object.c), what is learnt of it (learn.h) and of its load
 * (engines/engine_load.h), how it stands (engines/availability.c), and the table of all (table.c; workers.c adds and removes).
 *
 * Threads: the main loop changes the table; all of it is under the table's lock but what is atomic. As nobody else changes which workers
 * there are, the main loop goes through them without the lock and takes it for one worker at a time, so that a page about thousands of
 * workers keeps no request waiting. A request holds its worker by a reference (refs): then what its entry says does not change, and may be
 * read without the lock, also when the worker was removed meanwhile. Functions named _locked want the table's lock, and none of them may be
 * called with a router's lock held.
 */
#ifndef KVR_SERVE_WORKER_H
#define KVR_SERVE_WORKER_H

#include <stdatomic.h>

#include "app/serve/common/limits.h"
#include "app/serve/workers/table/kv_keys.h"
#include "app/serve/workers/table/role.h"
#include "net/http/http.h"
#include "net/ingest/ingest.h"
#include "wire/engine_facts.h"
#include "wire/engine_load.h"
#include "wire/handoff_protocol.h"
#include "wire/json.h"
#include "wire/known_members.h"

struct workers;
struct partition;

/* What an engine says of a model; the texts are "" where it says nothing. */
struct model_entry {
    char id[MODEL_MAX], root[256], parent[MODEL_MAX], owned_by[64];
    uint64_t created, max_model_len; /* 0: not said */
    bool is_lora;
};

enum { METRICS_URL_MAX = 240, API_KEY_MAX = 256, RANK_ENDPOINT_MAX = 96 };

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
    bool block_size, events, replay, ranks, total_kv_blocks, role, kv_protocol, bootstrap;
};

enum { NOTES_MAX = 8, NOTE_MAX = 360, LEARN_AGAIN_MS = 1000, BLOCK_SIZE_DEFAULT = 16 };

/* What is wrong with the connection to a rank's events. */
enum wiring { WIRING_FINE, WIRING_EVENTS, WIRING_REPLAY, WIRING_SILENT, WIRING_NO_REPLAY };
enum { WIRING_PATIENCE_MS = 1000, WIRING_EVERY_MS = 300 };

/* What an engine has said, and what is wrong with it. Under the table's lock. */
struct learnt {
    char notes[NOTES_MAX][NOTE_MAX], found[NOTE_MAX];
    size_t notes_n;
    struct kvr_engine_facts facts;
    uint64_t due_ms; /* to be asked from then on; 0: it has been */
    bool waits;      /* its events are followed when it has answered, or will not */
    bool answered;
    bool ranks_unknown; /* it has several, and nobody can tell which one takes a request */
    bool names_rank;    /* it has several, although the entry may tell of one */
    uint64_t since_ms;  /* when the worker was added */
};

/* usage_reporting.c */
struct usage_reporting {
    _Atomic uint32_t forms; /* since its start: those of answers that have told */
    unsigned silent;        /* answers that had to tell, and did not */
};

enum rank_socket { RANK_EVENTS, RANK_REPLAY, RANK_SOCKETS };

/* One rank of a worker. */
struct worker_rank {
    char endpoints[RANK_SOCKETS][RANK_ENDPOINT_MAX]; /* "" = none */
    unsigned char wiring;                            /* enum wiring, as was said last */
    struct rank_load load;
    _Atomic unsigned char view; /* enum kvr_view_knowledge; of a rank whose events are followed. Any thread that holds the worker */
};

/* worker_tls.h: as an entry has it. */
struct worker_tls {
    bool given, insecure;
    char ca[240], cert[240], key[240], name[240];
};

/* What is looked at of every worker, one after the other - by who makes the roster, writes a page, ticks - stands together at the end: with
 * ten thousand of them each place in memory that is looked at costs a cache line and a page. */
struct worker {
    char url[512];
    double kv_lease;                  /* prefill: seconds for which it keeps a computed prompt that nobody asks for */
    struct kv_address bootstrap;      /* prefill; given, or learnt; port 0: neither */
    struct kv_address kv_addr;        /* of the side channel of rank 0; port 0: none */
    char engine_id[KV_ENGINE_ID_MAX]; /* "": not given */
    uint32_t tp, pp;
    enum kvr_told decode_cache;     /* decode: what it has received may be reused there; kv_keys.h */
    char kv_domain[KV_DOMAIN_MAX];  /* where transfers are fast: rack, zone, host; "": not said */
    char kv_pool[KV_DOMAIN_MAX];    /* whose external tier it shares; "": nobody's */
    uint32_t kv_offload_chunk;      /* tokens that it reads from lower tiers at once; 0: learned */
    const struct kvr_tls_peer *tls; /* https: how it is believed; NULL: as all are */
    uint32_t rank_base;             /* the engine counts its ranks from here */
    struct given given;
    uint64_t max_num_batched_tokens, total_kv_blocks;
    char recover[240]; /* URL for all ranks; "" = none */
    char taints[TAINTS_MAX][64];
    size_t taints_n;
    char api_key[API_KEY_MAX];              /* "": none; worker_key.c */
    struct usage_reporting usage_reporting; /* cached tokens */
    char metrics[METRICS_URL_MAX];          /* URL of its engine's metrics; "" = none. This and below: engine_load.c */
    uint64_t learnt_kv_blocks;
    const char *metrics_error; /* static; NULL: none */
    struct kvr_endpoint endpoint;
    struct learnt learnt;
    char group[MODEL_MAX], model[MODEL_MAX];
    struct worker *next;
    uint64_t id;
    uint32_t block_size, dp_start, dp_size;
    bool block_size_known; /* given, or learnt */
    bool learns;           /* of one that is added: what has been learnt of the one it replaces; health and counts go on */
    bool drains;           /* its entry says so; what holds now is `draining` */
    bool local_prefill;    /* decode: it may be given whole requests */
    bool misplaced;        /* its engine is of another role, or has yet to say where it is met: it is not chosen */
    bool has_events;       /* a rank has an endpoint in events */
    bool shares_engine;    /* another worker is another rank at the same address */
    bool unreachable;      /* registered for book-keeping only: no endpoint */
    bool schedulable;      /* what the router was told */
    enum worker_role role;
    enum kvr_kv_protocol kv_protocol; /* between workers of roles prefill and decode */
    enum engine_kind engine;          /* where it reads the rank */
    _Atomic unsigned failures;        /* consecutive, for the breaker; written under the lock */
    struct partition *partition;
    struct worker_rank *ranks;  /* dp_size of them, by rank - dp_start; they stand behind the worker, see worker_spec and worker_add */
    struct model_entry *models; /* discovered; NULL = not known yet */
    size_t models_n;
    int models_status;                       /* of the last answer to GET /v1/models; 0: none yet */
    uint64_t since_ms, checked_ms, error_ms; /* it stands as it stands; the last check; and the last that failed, with: */
    char last_error[160];
    uint64_t requests, errors;
    uint64_t metrics_due_ms;
    /* From here on: any thread that holds the worker. Not copied with it. */
    _Atomic unsigned refs; /* table, rosters, requests */
    _Atomic bool removed;
    _Atomic(enum health) health;
    _Atomic uint64_t open_until_ms; /* the breaker */
    _Atomic bool draining;          /* it gets nothing new */
    _Atomic uint32_t active;        /* requests that are under way there */
    _Atomic uint64_t ups;           /* another number each time that it comes up, and at each worker; 0: it has not */
    _Atomic uint64_t staged;        /* prompts that it has computed and no decode worker has answered */
    _Atomic bool reports;           /* it was sent a request that has it report what it reuses, and the ingest knows */
};

/* A worker that is not in the table: what an entry says of it, or a copy. It has room for as many ranks as an entry may name, and is not
 * assigned, as w.ranks points into it. */
struct worker_spec {
    bool has_id;
    uint64_t id;
    struct worker_tls tls;
    struct worker w;
    struct worker_rank ranks[DP_MAX];
};
struct kvr_entry;
/* Of a worker of which nothing is given. */
void worker_spec_init(const struct workers *ws, struct worker_spec *spec);
/* Parses --worker. Returns: 0, or -1 with the reason in err. */
int worker_parse(const struct workers *ws, const char *text, struct worker_spec *out, char *err, size_t cap);
/* The same of an entry; one of a file is refused with file and line. */
int worker_read(const struct workers *ws, const struct kvr_entry *e, struct worker_spec *out, char *err, size_t cap);
/* "--worker: 'URL,...'", or "FILE:LINE: worker: 'URL'", without secrets: what a refusal of it begins with. line 0: its first. */
enum { WORKER_NAME_MAX = 512 };
void worker_name(const struct kvr_entry *e, size_t line, char *out, size_t cap);
/* Adds or replaces; the table's copy has memory for the ranks it has. Returns: 0, -1 with the reason in err. */
int worker_add(struct workers *ws, const struct worker *w, char *err, size_t cap);
bool worker_remove(struct workers *ws, uint64_t id);
/* Another worker at its address, with ranks that it has too: its cache would be two workers', and its load half of what it is. 0: none.
 * Main loop. */
uint64_t worker_twin(struct workers *ws, const struct worker *w);
/* From now on it gets nothing new, or gets requests again; its views and what was learnt of it stay. false: there is no such worker. */
bool worker_set_draining(struct workers *ws, uint64_t id, bool draining);
const char *worker_model(const struct workers *ws, const struct worker *w);
/* Fields of a worker object over those of a spec. Returns: NULL, or the field that is wrong. */
const char *worker_read_object(struct kvr_json o, struct worker_spec *spec);
/* What members an object has that nobody reads. */
void worker_unknown_members(struct kvr_json o, struct kvr_unknown_members *out);
/* What is wrong with the first of them, in words. */
void worker_unknown_say(const struct kvr_unknown_members *u, char *out, size_t cap);
struct worker *worker_find_locked(struct workers *ws, uint64_t id);
/* Is it there, and its engine the one whose `ups` these were? Takes the table's lock. */
bool worker_is_same(struct workers *ws, uint64_t id, uint64_t ups);
/* What its entry says and what was learnt of it, not what is atomic. */
void worker_copy_locked(struct worker_spec *to, const struct worker *from);
/* Is there an endpoint of events in what an entry says, or was learnt? Notes it in the worker. */
void worker_note_events(struct worker *w);
struct worker *worker_hold(struct worker *w);                        /* of one that is held, or under the table's lock */
void worker_let_go(struct worker *w);                                /* NULL is fine */
bool worker_is_schedulable(const struct worker *w, uint64_t now_ms); /* no lock */
/* May it be given a request as a whole? No lock, of a worker that is held. */
bool worker_takes_whole(const struct worker *w);
/* Tells routers of workers whose breaker's pause is over. Takes the table's lock when there are some. */
void workers_sync_due(struct workers *ws);
void worker_sync_locked(struct workers *ws, struct worker *w);     /* tells the router whether it may be chosen */
void worker_report(struct workers *ws, struct worker *w, bool ok); /* result of a request, for the breaker */
/* why: it is down; NULL when it is up. Says so when that has changed. */
void worker_set_health(struct workers *ws, uint64_t id, enum health h, const char *why);
void worker_set_models(struct workers *ws, uint64_t id, struct model_entry *models, size_t n);
void worker_models_refused(struct workers *ws, uint64_t id, int status); /* it did not tell them; says so once */
/* What was wrong with the list that it told; once a minute for each text. */
void worker_models_note(struct workers *ws, uint64_t id, const char *text);
/* An address of a worker, as users have it: a /v1 at its end, of an OpenAI client's base URL, is left out, as paths have it already.
 * Returns: false: it is none. */
bool worker_set_url(struct worker *w, const char *url, size_t len);
bool worker_serves_locked(const struct workers *ws, const struct worker *w, const char *model, size_t len, bool *is_lora);
/* Tokens that the model has room for there ("": the first it lists); 0: not known. */
uint64_t worker_room_locked(const struct worker *w, const char *model);

#endif
