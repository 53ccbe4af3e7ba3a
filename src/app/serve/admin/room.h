/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files behind the admin port share, and the room's state (struct admin). All of it runs on the main loop.
 *
 *   admin.c          routes, status
 *   answers.c        answers, errors, bodies
 *   worker_object.c  /workers
 *   adapters.c       /adapters
 *   question.c       a prompt and who may serve it, as bodies have it
 *   text.c           tokens of a prompt that is text
 *   questions.c      /overlap_scores, /query, /potential_loads, /loads, /dump
 *   ask_remote.c     asks the index first when it is elsewhere
 *   selection.c      /select, /select_pair, /select_and_reserve, /reservations, the request protocol
 *   pairing.c        two workers for one request: the second choice, both in an answer, both bookings of an id
 *   models_route.c   /models_config
 *   reload.c         /reload, SIGHUP, --watch-files
 *   tracker.c        the slot tracker's /register, /add, /free ...
 *   metrics.c        /metrics
 *   status.c         /status, and the stream of it
 *   history.c        /history: the last hour
 *   page.c           the page, whose files are in page/
 */
#ifndef KVR_SERVE_ADMIN_ROOM_H
#define KVR_SERVE_ADMIN_ROOM_H

#include "app/serve/admin/admin.h"
#include "app/serve/common/limits.h"
#include "app/serve/common/members.h"
#include "app/serve/common/process.h"
#include "app/serve/workers/table/partition.h"
#include "net/http/jobs.h"
#include "net/http/json_body.h"
#include "token/pool.h"
#include "wire/known_members.h"
#include "wire/mm_infos.h"

struct adapter_job;
struct asking;
struct fetched;
struct history;
struct kvr_access;
struct kvr_given_tokens;
struct kvr_ids;
struct kvr_remote_index;
struct selection;

/* Who is sent /status again and again. */
enum { STATUS_LISTENERS_MAX = 16 };
struct status_listeners {
    struct status_listener {
        struct kvr_http_conn *conn;
        unsigned behind; /* how many in a row were left out, as it has not taken the one before */
    } all[STATUS_LISTENERS_MAX];
    size_t n;
    uint64_t due_ms; /* the next one */
    uint64_t dropped;
};

struct admin {
    const struct serve_options *o;
    struct process *process;
    struct workers *workers;
    struct config *config;
    struct tokenizers *tokenizers;
    struct discovery *discovery;
    struct peers *peers;
    struct data_plane *data;
    struct kvr_http_server *server;
    struct kvr_http_shared http;
    struct kvr_access *access; /* who may use it */
    struct ctx_list ctxs;
    struct kvr_jobs jobs;               /* large bodies */
    struct kvr_unknown_members ignored; /* of the body that is being answered */
    struct adapter_job *adapter_jobs;
    struct selection *selection;
    struct history *history;
    struct status_listeners listeners;

    struct kvr_remote_index *remotes[REMOTES_MAX];
    size_t remotes_n;                      /* 0: the index is here */
    struct asking *askings;                /* questions that wait for the index elsewhere */
    const struct fetched *fetched;         /* while a question is answered that they were asked of */
    struct kvr_given_tokens *given_tokens; /* of --tokenizer-dir of `kvroute select`; NULL: none */
    struct kvr_ids *text_ids;              /* while a question is answered whose prompt is text */
};

/* ---- answers; each frees its buffer and ends the request ---- */
void admin_reply(struct kvr_http_conn *c, int status, struct kvr_buf *b);
void admin_error(struct kvr_http_conn *c, int status, const char *text);
void admin_error_body(struct kvr_buf *b, int status, const char *text); /* {"error": text} */
void admin_not_allowed(struct kvr_http_conn *c, const char *allowed);   /* 405 */
void admin_ok(struct kvr_http_conn *c, int status);
/* A worker that worker_add refused, for that reason. */
void admin_not_added(struct kvr_http_conn *c, const char *why);
/* 400, with what is allowed for the member (fields.c, where each that is read has a row); 503 for "": it could not be read for want
 * of memory. */
void admin_bad_field(struct kvr_http_conn *c, const char *field);

/* ---- bodies ---- */
/* What came of reading a body. Returns: false after having answered. */
bool admin_is_object(struct kvr_http_conn *c, const struct kvr_json_read *r);
bool admin_parse_object(struct admin *admin, struct kvr_http_conn *c, struct kvr_json *o);

/* ---- page.c: / and what it is made of, which tell nothing of this router and need no key ---- */
bool page_has(struct kvr_text path);
void page_get(struct kvr_http_conn *c);

/* ---- status.c ---- */
void status_get(struct admin *admin, struct kvr_http_conn *c);
void status_stream(struct admin *admin, struct kvr_http_conn *c);
void status_second(struct admin *admin);
bool status_gone(struct admin *admin, const struct kvr_http_conn *c); /* Returns: whether it listened */
void status_end(struct admin *admin);                                 /* of all streams */

/* ---- history.c ---- */
struct history *history_create(uint64_t started_ms); /* NULL: out of memory */
void history_destroy(struct history *h);
void history_second(struct admin *admin);
void history_get(struct admin *admin, struct kvr_http_conn *c);
void history_recent_write(struct admin *admin, struct kvr_buf *b); /* an object of the last minute */

/* ---- workers ---- */
void admin_workers_write(struct admin *admin, struct kvr_buf *b, const char *model, const char *group);
void admin_post_worker(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void admin_patch_worker(struct admin *admin, struct kvr_http_conn *c, uint64_t id, struct kvr_json o);

/* ---- questions ---- */

/* Which worker is asked for: any that answers; one that computes the prompt, goes on from it, or takes all of the request. */
enum question_phase { ASKS_ANY, ASKS_PREFILL, ASKS_DECODE, ASKS_WHOLE };

/* Who else a question of two is about. */
struct other_leg {
    struct partition *partition;
    uint64_t *allowed;
    size_t allowed_n;
    bool pinned; /* the question's pin is of this leg, the decode worker's */
};

/* A prompt and who may serve it, as bodies have it. Owned memory behind pointers; question_free. */
struct question {
    const struct admin *admin;
    enum question_phase phase;
    bool two;      /* it asks for a worker that computes the prompt and another one that goes on from it */
    bool has_pair; /* it gets them: `partition` and `allowed` are of the first, `decode` of the second */
    struct other_leg decode;
    struct other_leg whole; /* with a pair: who would take all of it; partition NULL: nobody is up */
    bool has_eff;
    uint64_t eff_isl; /* what the rule of one leg or two went by */
    bool has_protocol;
    enum kvr_kv_protocol protocol; /* of the pair; or that a worker has to have */
    char model[MODEL_MAX], lora[MODEL_MAX], salt[256], group[MODEL_MAX], policy_class[KVR_CLASS_NAME_MAX], tenant[256];
    double tenant_weight;
    uint32_t *tokens;
    uint64_t *locals, *seqs, *allowed;
    size_t tokens_n, locals_n, seqs_n, allowed_n;
    uint64_t isl;
    bool has_pin, pin_any_rank;
    struct kvr_worker pin;
    double priority;
    uint32_t strict_priority;
    char required[TAINT_LIST_MAX][64], preferred[TAINT_LIST_MAX][64];
    const char *required_ptr[TAINT_LIST_MAX];
    struct kvr_preferred_taint preferred_list[TAINT_LIST_MAX];
    size_t required_n, preferred_n;
    struct kvr_shared_range shared[SHARED_RANGES_MAX];
    size_t shared_n;
    struct kvr_mm_infos mm; /* by block of the partition's size */
    struct kvr_override override;
    struct partition *partition;
    struct kvr_reach *scores; /* what an index elsewhere has said; NULL: it was not asked */
    size_t scores_n;
};

/* The tokens of a prompt that is given as text. */
struct admin_text {
    int status; /* of the answer when there are none: 400, 500, 503 */
    struct kvr_ids *ids;
    char why[300];
};
/* Any thread. `o` was read from body[0..len). */
void admin_text_make(const struct admin *admin, struct kvr_json o, const char *body, size_t len, struct admin_text *out);

/* token_ids (or tokens; or a text, whose tokens are admin->text_ids) and perhaps block_mm_infos, or block_hashes + sequence_hashes +
 * isl_tokens, or sequence_hashes + new_isl_tokens; constraints; override. Returns: false after having answered. */
bool question_read(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, struct question *q);
/* The same, and as "legs": 2 has it. */
bool question_read_pair(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, struct question *q);
void question_free(struct question *q);
/* Borrow the question. */
struct kvr_router_request question_request(const struct question *q);
struct kvr_router_request question_decode_request(const struct question *q); /* of its decode leg; decode.partition must be there */
/* Local hashes of its prompt, which has tokens or these; malloc'd. NULL: no memory. */
uint64_t *question_locals(const struct question *q, size_t *n);
struct kvr_router_ctx *admin_ctx(struct admin *admin, struct partition *partition);
/* The array of hashes o[key], malloc'd; the caller frees *out whatever comes. Returns: NULL; the key when it is none; "": no memory. */
const char *get_hashes(struct kvr_json o, const char *key, uint64_t **out, size_t *n);

void admin_overlap_scores(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void admin_query(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void admin_query_by_hash(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void admin_potential_loads(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
/* The same as the request protocol has it: with what waits. */
void admin_potential_loads_protocol(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
/* The loads of all partitions, one after the other; the caller frees them. NULL, with *n 0: there are none, or memory is short and the page
 * has failed. */
struct kvr_rank_load *admin_all_loads(struct admin *admin, struct kvr_buf *page, size_t *n);
void admin_loads_write(struct admin *admin, struct kvr_buf *b, const char *model, const char *group);
void admin_dump_write(struct admin *admin, struct kvr_buf *b);

struct kvr_prom_page;
/* compat.c: of --metrics-compat */
void compat_metrics(struct admin *admin, struct kvr_prom_page *out);
void metrics_write(struct admin *admin, struct kvr_buf *out);

typedef void admin_post_fn(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
/* What remote indexes have said of the prompt of a question. */
struct fetched {
    struct kvr_reach *scores;
    size_t n;
};
/* On a router whose index is elsewhere, for a route that needs it: asks, then calls fn. holds: the parser that holds `o` when
 * the connection does not have its body any more; it is taken when something is asked. Returns: false when there is nothing to ask. */
const char *remote_why(const struct admin *admin); /* why the index elsewhere is not used now; "": it is */
bool admin_ask_first(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, struct kvr_json_parser **holds, admin_post_fn *fn);
/* The client went away. Returns: whether its question was being asked. */
bool admin_ask_gone(struct admin *admin, const struct kvr_http_conn *c);

/* ---- adapters.c ---- */
void adapters_load(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void adapters_unload(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
bool adapters_gone(struct admin *admin, const struct kvr_http_conn *c); /* Returns: whether it waited for one of them */
void adapters_stop(struct admin *admin);                                /* before health_stop() */

/* ---- selection.c ---- */
typedef void selection_begin_fn(struct admin *admin, struct kvr_http_conn *c); /* begins with a request anew */
int selection_start(struct admin *admin, selection_begin_fn *begin);
void selection_stop(struct admin *admin);
void selection_destroy(struct admin *admin); /* when the main loop is closed */
void selection_tick(struct admin *admin);    /* every second */
void selection_gone(struct admin *admin, struct kvr_http_conn *c);
/* Whether a request waits for the partition, or one that was selected there may be booked yet. */
bool selection_asks(struct admin *admin, const struct partition *p);
/* Until --min-initial-workers have been there once, a question for a worker is kept, at most for --queue-timeout; its body stays with
 * the connection. Returns: false when it can be answered now. */
bool selection_hold(struct admin *admin, struct kvr_http_conn *c);
/* Answers what was held: when the workers have come, or with 503 when it has waited too long. Call it when one has come. */
void selection_release(struct admin *admin);
void selection_select(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void selection_select_and_reserve(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void selection_pair(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void selection_reserve(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
/* /reservations/{id}[/verb] */
void selection_one(struct admin *admin, struct kvr_http_conn *c, const char *id, size_t id_len, struct kvr_text verb);
/* {"method": "new" | "mark_prefill" | "mark_free" | "potential_loads", ...} */
void selection_request(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);

/* ---- pairing.c ---- */

/* Tokens that a rank has of a prompt: on the device, and on the tiers behind it as far as they go on from there. */
struct reach {
    uint64_t gpu, cpu, disk;
};
/* Of the worker that a context has chosen; ctx may be NULL. */
struct reach reach_of(const struct kvr_router_ctx *ctx, struct kvr_worker worker, uint32_t block_size);
/* A worker that was chosen. */
struct place {
    struct partition *partition;
    struct kvr_router_result result;
    struct reach reach;
};
/* worker_id ... effective_prefill_tokens, members of an object. */
void place_write(struct admin *admin, struct kvr_buf *b, const struct place *p);

/* Where an id is booked: with a worker that computes its prompt, with one that does all the rest. */
struct bookings {
    struct partition *prefill, *main; /* NULL: not there */
};
struct bookings bookings_of(struct admin *admin, const char *id);
bool bookings_any(const struct bookings *k);
void bookings_prefill_complete(const struct bookings *k, const char *id);
void bookings_renew(const struct bookings *k, const char *id);
void bookings_free(const struct bookings *k, const char *id);

/* By the rule of one leg or two (data/choice/conditional.h): the question may be one for one worker from now on. */
void pairing_judge(struct admin *admin, struct question *q);
/* A worker that goes on from what `first` will have computed; id: booked under it, NULL: not booked. Returns: as kvr_pair_find_decode. */
int pairing_find_decode(struct admin *admin, const struct question *q, const struct place *first, const char *id, struct place *out);
/* Is there one now? No prompt is given to a worker when nobody could go on from it. Returns: 0, or why there is none. */
int pairing_look(struct admin *admin, const struct question *q);
/* treatment ... eff_isl of a question of two, members of an object. second: NULL where one worker does all of it. */
void pairing_write(struct admin *admin, struct kvr_buf *b, const struct question *q, const struct place *first, const struct place *second);

/* ---- models_route.c: /models_config ---- */
void models_get(struct admin *admin, struct kvr_http_conn *c);
void models_put(struct admin *admin, struct kvr_http_conn *c);

/* ---- tracker.c ---- */
void tracker_register(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void tracker_unregister(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void tracker_add(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void tracker_prefill_complete(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);
void tracker_free(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o);

#endif
