/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request of two legs: one worker computes the prompt (prefill), another one receives what was computed and answers (decode). What it
 * has beside the rest of a request, and what became of it (`treatment`), as choice/treatment.h has decided:
 *
 *     remote         a prefill worker, then a decode worker
 *     whole          one worker that takes whole requests: "aggregated" on one of role both, "local" on one of role decode
 *     fallback       the same, after prefill workers have failed
 *     prefill-only   one prefill worker, for an answer of one token
 *
 * Two legs one after the other:
 *
 *     CHOOSING the prefill worker --> PREFILL --> PAIRING, a decode worker is chosen --> SENDING --> RELAYING
 *        ^  ^     ^                      |            ^                                    |
 *        |  |     '-- fallback: whole ---'            '--- nothing was sent: the same -----|
 *        |  '---- another prefill worker |                 hand-off object, another worker |
 *        '-------------------------------'-- the object may be used up: a new prefill leg -'
 *
 * Two legs at once (rendezvous.h), or one after the other by names that both have (vllm-p2p): the decode worker is chosen right after the
 * prefill worker, before anything is sent. When one of them fails, the other one is not gone on with:
 *
 *     CHOOSING the prefill worker --> PAIRING, the decode worker --> MEETING, both are sent --> SENDING --> RELAYING
 *        ^                                                              |    |                    |
 *        '-------------- both anew, or: fallback ----------------------'----'--------------------'
 *
 * A hand-off object (what the prefill worker answers) is used once and while it is young: an engine that is given one that was used, or
 * whose blocks it has given to others, answers with another prompt's text.
 *
 * Threads: the request's loop.
 */
#ifndef KVR_SERVE_LEGS_H
#define KVR_SERVE_LEGS_H

#include "app/serve/data/request/request.h"
#include "app/serve/data/request/transfer.h"
#include "app/serve/workers/table/missed_rendezvous.h"

enum { LEGS_EXCLUDED_MAX = TRIES_MAX + MISSED_MAX };

/* What has become of a computed prompt that is held. */
enum fate { FATE_OPEN, FATE_PULLED, FATE_RELEASED, FATE_LEASE };

enum treatment { TREAT_WHOLE, TREAT_REMOTE, TREAT_FALLBACK, TREAT_PREFILL_ONLY };

struct legs {
    enum treatment treatment;
    enum kvr_kv_protocol protocol;
    struct attempt *prefill; /* the last prefill leg that was booked; NULL: none yet */
    unsigned tried_n;
    uint64_t tried[TRIES_MAX];                       /* prefill workers that have failed */
    struct kvr_handoff handoff;                      /* of prefill->answer */
    bool handed;                                     /* there is one that may be used */
    void (*hear)(struct attempt *a, enum outcome o); /* what is told of an attempt whose answer is the client's */
    uint64_t prefill_deadline_ms;                    /* 0: none */
    bool paired_again;                               /* after a decode worker's 500: the next one is passed on */
    uint64_t handed_ms;                              /* when it came */
    uint64_t keeper_ups;                             /* of the prefill worker then; 0: it was not seen up yet */
    uint64_t pair_deadline_ms;                       /* a decode worker has to be found by then */
    uint64_t comment_ms;                             /* the next comment while there is none; 0: none */
    int64_t disagg_id;
    bool paired;                          /* both workers are chosen, or the first is, before anything is sent: see legs_pair_first */
    struct transfer transfer;             /* of such a pair */
    uint64_t decode_deadline_ms;          /* while both are asked: for the first byte of the decode worker; 0: none */
    uint64_t excluded[LEGS_EXCLUDED_MAX]; /* whom the router may not choose now */
    bool chosen;                          /* it goes whole to that worker, by the rule of conditional.h */
    struct kvr_worker to;                 /* of chosen */
    bool has_eff;
    uint64_t eff_isl; /* has_eff: prompt tokens that the worker lacked which would have taken all of it */
    const char *why;  /* it is treated so; static; NULL: as there is nothing else */
    bool staged;      /* counted so in the prefill worker */
    enum fate fate;   /* of the last computed prompt */
};

/* What a client says of a hand-off is removed: it would let it read the cache of others. Returns: false without memory. */
bool legs_strip(struct request *r);
/* Of what is only passed on to a worker of such a model. Returns: DONE or REFUSED. */
enum outcome legs_pass_on(struct request *r);
bool legs_are_two(const struct request *r);      /* it is treated as remote */
bool legs_prefill_next(const struct request *r); /* the worker that is chosen now computes the prompt only */
/* The decode worker is chosen before the prompt is computed: both are asked at once, or each is told of the other, or a carrier is told of
 * both, and what asks the prefill worker is behind it. */
bool legs_pair_first(const struct request *r);
bool legs_at_once(const struct request *r);
bool legs_asks_prefill(const struct request *r); /* the same, or it is to answer with one token: one that takes it whole can do it, too */
/* What a leg is sent. NULL: no memory. */
struct kvr_body *legs_prefill_body(struct request *r);
struct kvr_body *legs_decode_body(struct request *r);
struct kvr_body *legs_release_body(struct request *r);
void legs_hand_over(struct request *r); /* its prefill leg's answer has one */
/* Is the hand-off object young enough to be used, and does its prefill worker run still? A shared store needs neither. */
bool legs_is_usable(const struct request *r);
void legs_drop_handoff(struct request *r);
bool legs_may_leak(const struct request *r);      /* a computed prompt may be held for nobody */
void legs_leak(struct request *r, enum leak why); /* the prefill worker may hold the prompt until its lease is over */
/* The answer of the request's attempt has begun, so that no other one follows. */
void legs_answered(struct request *r);
void legs_cancel(struct request *r);
void legs_free(struct request *r);                                 /* its attempt's call and booking must be over */
bool legs_told(const struct request *r, enum told_treatment *out); /* how it was treated; false: the model has no roles */
/* The attempt whose worker has computed the prompt, or will. */
struct attempt *legs_computed(const struct request *r);

#endif
