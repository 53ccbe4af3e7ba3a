/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client request, from its arrival to the last byte of its answer. It is in one phase at a time; files are those of data/:
 *
 *    a request arrives   port/data_port.c
 *       |
 *       v
 *    READING     request/body.c           the members of the body that routing needs
 *       | DONE
 *       v
 *    TOKENS      prompt/tokenize.c        of the prompt: given, cached, made here, an engine's, bytes, or none
 *       | DONE
 *       v
 *    LOOKUP      prompt/remote_lookup.c   hashes of the prompt; what an index elsewhere knows of them
 *       | DONE
 *       v            NOBODY
 *    CHOOSING    ----------------> PARKED      choice/route.c   the router chooses a worker and books, or keeps the request in its
 *       | ^  ^ DONE: look again -----'                          queue; a parked request waits for a worker to exist
 *       | |
 *  DONE | | FAILED: another worker may be asked
 *       v |
 *    SENDING     request/attempt.c        the exchange with the worker, up to the first byte of its answer; the head is held back
 *       | BYTES
 *       v
 *    RELAYING    answer/answer.c          bytes, as they come
 *       | WHOLE
 *       v
 *    the end     answer/account.c         what is known of the request is told
 *
 * REFUSED (an error is answered) and GONE (the client has left) lead from every phase to the end; BROKEN (the answer cannot be
 * completed) leads there from RELAYING.
 *
 * A phase is a function that returns an outcome. WAITS: a callback will go on with the phase, and end in request_step() with the outcome
 * that the phase has then (of an attempt: in what it was given to tell). Phases do not call each other and do not know
 * port/flow.c, which alone knows what follows what.
 *
 * What must hold whatever happens:
 *   - a booking is made in CHOOSING or PAIRING and given back by account_unbook(), exactly once per attempt (two_legs/release.h has
 *     its own);
 *   - nothing of the answer is sent to the client before the first body byte of the worker, so until then the request can go to another
 *     worker; afterwards it never does;
 *   - every path ends in port/flow.c: end(), which frees the request.
 * Where workers have roles a request may have two legs, with phases of their own between CHOOSING and SENDING: legs.h draws them, the
 * folder two_legs has their files.
 *
 * A streaming request that waits long gets its head early (200, SSE) and comments, so that nothing between the client and the router
 * gives up; from then on failures are events of the stream.
 *
 * Threads: a request belongs to one data loop, which alone touches it, but for two cases.
 *   - While it is in the router's queue, the router reads now->choosing.rq, and on_turn (any thread, under the router's lock) writes what
 *     was chosen and puts the request on the loop's `ready` list.
 *   - While a large body or prompt is read or hashed on a thread (`working`), the job's `run` fills in what it makes, which the loop does
 *     not look at until the job's `over`. A request that has ended meanwhile is freed there.
 * Locks: the router's, then the loop's mail lock.
 */
#ifndef KVR_SERVE_REQUEST_H
#define KVR_SERVE_REQUEST_H

#include "app/serve/config/model_options.h"
#include "app/serve/data/request/outcome.h"
#include "app/serve/data/state/room.h"
#include "token/pool.h"
#include "wire/form.h"
#include "wire/handoff.h"
#include "app/serve/config/api_keys.h"
#include "app/serve/data/state/sessions.h"
#include "app/serve/workers/table/role.h"
#include "wire/rank_member.h"

struct attempt;
struct carrier;
struct legs;
struct request;
struct telemetry;

/* Where the tokens of a prompt come from. ENGINE: also what an engine has said before. */
enum tokens_from { TOKENS_NONE, TOKENS_BODY, TOKENS_BYTES, TOKENS_CACHE, TOKENS_LOCAL, TOKENS_ENGINE, TOKENS_FROM_N };

enum request_phase {
    PHASE_READING,
    PHASE_TOKENS,
    PHASE_LOOKUP,
    PHASE_CHOOSING,
    PHASE_PARKED,
    PHASE_PREFILL,    /* of two legs: legs.h */
    PHASE_PAIRING,    /* the same */
    PHASE_RENDEZVOUS, /* the same */
    PHASE_SENDING,
    PHASE_RELAYING,
    PHASES_N
};

/* Of a request under its model: model_gauges.c. */
enum request_stand { GAUGE_NOWHERE, GAUGE_WAITING, GAUGE_RUNNING };

struct model_gauges {
    struct model_counts *of; /* NULL: its model is not known yet */
    enum request_stand stand;
    bool chosen;                    /* a worker was, once */
    bool ended, end_counted;        /* how it ended is known; and counted */
    unsigned char how;              /* enum request_end */
    uint64_t arrived_ns, queued_ns; /* the latter: when its tokens were known */
};

/* Work for a thread of libuv's pool. */
struct request_job {
    struct kvr_job job;
    struct request *request;
    void (*run)(struct request *r);          /* on the thread */
    enum outcome (*over)(struct request *r); /* on the loop, unless the request has ended */
};

/* A worker that a request asks for: pins.h. */
struct pin {
    bool set, has_rank; /* without a rank any of its ranks will do */
    struct kvr_worker to;
};

/* What a body says of them. */
struct body_pins {
    struct pin prefill, answers;
    const char *wrong; /* a member that cannot be used; NULL: none */
};

enum { SESSION_MAX = 256 }; /* with its end */

enum wish { WISH_NONE, WISH_REMOTE, WISH_LOCAL };

/* Why a request gets no answer of a worker. */
struct refusal {
    int status;
    const char *code; /* static, for programs; NULL: the status */
    uint64_t retry_s; /* when it may be tried again; 0: not said */
    const char *text; /* static, or `made` */
    char *made;       /* owned; NULL: none */
    struct kvr_buf head,
        body; /* what the worker has said itself, which the client gets in the place of `text`; body empty: nothing. Owned */
};

/* What its API key lets it do: data/request/admission.h. */
struct admission {
    struct keyring *ring;              /* held; NULL: nobody is asked for a key */
    const struct api_key *key;         /* the ring's; NULL: none, or it was refused */
    const struct limited_model *model; /* the ring's; NULL: its model has no limits */
    bool in_key, in_model;             /* it counts as under way */
    uint64_t output_asked;             /* tokens; 0: the body does not say */
    uint64_t prompt_least;             /* tokens that the prompt counts for at least, whatever the client tells of it */
    double taken;                      /* tokens, of the buckets */
};

/* ---- what each phase may hold; it is zero when the phase begins, and is given back when the phase ends -------- */

struct reading {
    struct request_job job;
    bool is_form; /* the body is one, with this boundary */
    char boundary[KVR_FORM_BOUNDARY_MAX + 1];
    const char *rank_error; /* NULL: what the body says of the rank is sound */
    struct body_pins pins;
    bool stands;         /* the refusal of before */
    int refusal;         /* 0, or the status `refused` goes out with */
    const char *refused; /* what is wrong with the body, or refused_text */
    char refused_text[160];
    _Atomic uint64_t *refused_by; /* the counter of the limit, or NULL */
};

/* An engine is asked up to three times: for the tokens; for those without special tokens, of a prompt that it truncates between them
 * (`keep`); for those of a chat without its images (`plain`), which tell where the first image is. */
struct local_tokens_waiter {
    struct kvr_token_waiter waiter;
    struct request *request;
    bool waits; /* the pool has it, or the loop's `made` list */
};

struct tokenizing {
    struct request_job job;
    struct local_tokens_waiter here;
    struct kvr_body *question; /* that is being answered; NULL: none */
    uint64_t asked_ns;
    struct worker *asked;       /* whose engine answers it; NULL: none */
    struct kvr_http_call *call; /* POST /tokenize; NULL: none is under way */
    int status;                 /* of its answer */
    struct kvr_buf answer;
    uint64_t cache_key[2];
    size_t keep;     /* of the prompt's tokens, while those without special ones are asked for; 0: they are not */
    uint32_t *whole; /* the prompt's tokens, while others are asked for */
    size_t whole_n;
};

struct lookup {
    struct request_job job;
    struct kvr_remote_query *queries[REMOTES_MAX];
    size_t unanswered;
    uint64_t asked_ns;
};

/* Where the second leg should be, or has to be: domains.h. */
struct domain_wish {
    char taint[sizeof KV_DOMAIN_TAINT + KV_DOMAIN_MAX];
    const char *required[1 + KEY_TAINTS_MAX]; /* with those of the request's key */
    struct kvr_preferred_taint preferred;
};

struct choosing {
    struct attempt *attempt; /* for the worker that will be chosen */
    struct kvr_router_request rq;
    struct kvr_override override;     /* rq refers to it */
    uint64_t *allowed;                /* rq refers to it: those of the candidates that may be chosen (domains.h, subset.h); NULL: all */
    struct domain_wish domain;        /* the same: where the prompt is */
    const struct roster_row *workers; /* that may serve it; NULL: it was not looked at yet */
    bool queued;                      /* the router has the ticket, or the loop's ready list has the request */
    int granted;                      /* what the queue said */
    struct request *ready_next;       /* the loop's ready list */
    struct request *next, **at;       /* its list `bound`; NULL: it is not in it */
    struct kvr_ticket ticket;
    struct kvr_rejection rejection;
    bool overloaded; /* the refusal is for that */
};

struct parked {
    struct request *next; /* the loop's list */
    bool listed;
};

union phase_state {
    struct reading reading;
    struct tokenizing tokenizing;
    struct lookup lookup;
    struct choosing choosing;
    struct parked parked;
};

struct request {
    struct loop *loop;
    struct kvr_http_conn *conn;    /* NULL: it is answered, or its client has left */
    const struct carrier *carrier; /* carrier.h; NULL: the router takes it to its worker */
    void *carrier_ctx;
    void (*step)(struct request *r, enum outcome o);
    enum request_phase phase;
    struct request_job *working; /* is at work for it; NULL: none */
    bool ended;                  /* and is freed when its job is over */
    uv_timer_t timer;
    uint64_t arrived_ms;
    uint64_t phase_deadline_ms, total_deadline_ms; /* 0: none */
    uint64_t wait_deadline_ms;                     /* of CHOOSING and PARKED together; 0: it has not waited */
    struct refusal refusal;
    struct admission admission;

    /* What its head says: data_port.c */
    char id[ID_MAX];
    char *session, *policy_class; /* owned, as all such texts; NULL: none */
    char *response;               /* of /v1/responses: the one that it goes on from, or is about; NULL: none */
    enum kvr_prompt_form form;    /* of what is routed */
    bool routed;                  /* a completion: its tokens matter */
    bool is_head_request, deletes, explain;
    bool gives_way;              /* it is refused where it would have to wait */
    bool body_cut;               /* its carrier has not shown all of it */
    struct pin pin, prefill_pin; /* the worker that answers, and one that computes the prompt before */
    enum wish wish;
    double priority;
    uint32_t strict_priority;
    double slo_ttft_ms; /* the client's own objective; 0: none */

    /* What its body says: READING */
    char model[MODEL_MAX];        /* that serves it */
    char *asked_model;            /* what the client wrote, where --models-file has a rule for it; NULL: `model` */
    bool fell_back;               /* no worker of the model that was meant could be chosen */
    bool again;                   /* it is read again, as the router has refused it for overload when its turn came: the refusal */
    struct model_options options; /* of its model */
    struct kvr_body *body;        /* until no other worker can be asked; who is sending it holds it too */
    size_t body_len;
    bool body_changed; /* the router has written in it */
    struct kvr_rank_member body_rank;
    struct kvr_prompt_members members; /* of what is routed by its tokens; zeroes otherwise */
    struct kvr_handoff_members split;  /* what decides about two legs; zeroes where there are no workers with roles */
    uint64_t expected_osl;             /* 0: not given */
    char *salt;
    size_t salt_len;
    bool is_object;     /* the body is a JSON object */
    bool names_adapter; /* by a member of SGLang's, beside `model` */
    bool stream;
    bool multimodal;        /* a chat with parts that are not text: see find_objects */
    struct kvr_body *ask;   /* what an engine is asked for the tokens; NULL: nothing, or nothing more */
    struct kvr_body *plain; /* the same without such parts; NULL: their place is not looked for */

    /* Its prompt: TOKENS; the tokens go when the answer begins */
    uint32_t *tokens;
    size_t tokens_n;
    uint64_t isl;
    enum tokens_from tokens_from;
    bool token_failed;
    bool forwarded_ids; /* the worker gets them in the place of the text (forward.h) */
    bool asks_sglang;   /* `ask` has SGLang's form */
    bool unplaced;      /* the place of the first part that is not text is not known */

    /* Its hashes, for blocks of hashed_for tokens, and what an index elsewhere knows of them: LOOKUP; they go with the tokens */
    uint64_t *locals;
    size_t locals_n;
    struct kvr_reach *scores;
    size_t scores_n;
    uint32_t hashed_for;
    bool no_index, part_index; /* an index did not answer; of several some did */

    /* Where it goes: CHOOSING */
    bool is_lora;
    struct attempt *attempt; /* the last that was booked; NULL: none yet */
    unsigned tries;          /* attempts that have failed */
    uint64_t retry_after_s;  /* the longest time that their workers have told; 0: none */
    unsigned tried_n;        /* of these, on workers that were to answer: */
    uint64_t tried[TRIES_MAX];
    bool gated;                  /* it waits for a decode worker that is not overloaded, before its prompt is computed */
    struct telemetry *telemetry; /* for the access log and traces: telemetry.h; NULL: neither is on */
    struct legs *legs;           /* NULL: its model has no workers with roles, or it is not known yet who takes it */

    /* What its client got */
    int status; /* 0: nothing yet */
    struct model_gauges gauges;
    bool early_head, counted, answered;

    union phase_state *now; /* NULL: the phase has none, as SENDING and RELAYING, which have the attempt */
};

static inline struct data_plane *data_of(const struct request *r)
{
    return r->loop->data;
}

/* The name of the API key that it came with; "": it needs none. */
static inline const char *request_client(const struct request *r)
{
    return r->admission.key ? r->admission.key->name : "";
}

/* What the client wrote, and what serves it: the same but for names of --models-file. */
static inline const char *request_asked_model(const struct request *r)
{
    return r->asked_model ? r->asked_model : r->model;
}

static inline const char *request_model(const struct request *r)
{
    return r->model;
}

#define COUNT(r, name) atomic_fetch_add_explicit(&data_of(r)->counters.name, 1, memory_order_relaxed)

/* A callback ends in this; the request may be gone then. */
static inline void request_step(struct request *r, enum outcome o)
{
    r->step(r, o);
}

#define TOOK_TOO_LONG "the request took longer than --total-timeout"

/* NULL: out of memory. */
struct request *request_new(struct loop *l, struct kvr_http_conn *c);
/* Frees what it has but its phase's and its attempt. */
void request_free(struct request *r);
/* A text that few requests have; one without bytes is none. Returns: false: no memory, and the text is what it was. */
bool request_keep_text(char **place, const char *text, size_t len);
/* It has no connection from then on. Returns: the one it had, or NULL. */
struct kvr_http_conn *request_detach(struct request *r);
void request_forget_tokens(struct request *r); /* and what was made of them */
void request_forget_body(struct request *r);   /* what was read in it, and what followed from that: it is read again */

void refusal_free(struct refusal *why); /* what it owns */
/* Return: OUTCOME_REFUSED. The text is static; that of the second is made. */
enum outcome request_refuse(struct request *r, int status, const char *text);
enum outcome request_refusef(struct request *r, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* When its loop's turn began: what is waited for in ms goes by it, so that no clock is read for each moment. */
static inline uint64_t request_now_ms(const struct request *r)
{
    return uv_now(&r->loop->uv);
}
uint64_t request_after(const struct request *r, double seconds); /* that moment, in ms; 0 for no seconds: never */
/* The phase has until then (0: for ever), and the request until --total-timeout. */
void request_wait_until(struct request *r, uint64_t deadline_ms);
void request_arm(struct request *r); /* the timer, for these */

/* Returns: WAITS. The phase has no other deadline than --total-timeout meanwhile. `job` is of the phase. */
enum outcome request_work(struct request *r, struct request_job *job, void (*run)(struct request *r),
                          enum outcome (*over)(struct request *r));

/* Is it routed by its tokens? Any thread. */
bool request_wants_tokens(const struct request *r);
/* How its worker is chosen: as its model says, else as all are. */
enum kvr_router_mode request_mode(const struct request *r);
/* What an engine computes of its prompt is not known: nothing is predicted by its tokens. */
void request_prompt_is_hint(struct request *r);
/* What its hashes depend on besides the tokens. */
uint64_t request_hash_seed(const struct request *r);

#endif
