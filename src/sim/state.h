/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of one simulation share. */
#ifndef KVR_SIM_STATE_H
#define KVR_SIM_STATE_H

#include "sim/engine.h"
#include "sim/internal.h"

/* What a request is doing: all of it at one worker, or one leg after the other. */
enum sim_leg { SIM_WHOLE_REQUEST, SIM_PREFILL_LEG, SIM_DECODE_LEG };

struct job {
    struct traffic_request rq;
    enum sim_leg leg;
    struct sim_choice choice; /* of this leg */
    uint32_t *answer;
    uint64_t *hashes; /* locals, then sequence hashes */
    size_t answer_n, blocks_n;
    uint64_t number, sent_ns, first_ns, token_ns;
    bool first_seen, other; /* other: of the other tenant */
    struct sim_wait wait;
    struct mock_hold *hold; /* its prompt, at the holder, until it is at the decode worker */
    struct sim_worker *holder;
    struct mock_request *request; /* that receives it */
    struct job *prev, *next;      /* of the same worker */
};

/* A copy of an event, applied when its pass ends. */
struct kept_event {
    struct kvr_event ev;
    struct kvr_block *blocks;
    uint64_t *hashes;
};

struct sim_worker {
    struct sim *sim;
    struct sim_routers *routers; /* that choose it */
    struct mock_engine *engine;  /* NULL: away */
    uint64_t life;               /* how often it has left */
    uint32_t number;
    bool in_pass;
    uint64_t link_ns; /* until when its link is taken by transfers */
    struct job *jobs;
    struct kept_event *kept;
    size_t kept_n, kept_cap;
    struct job **done;
    size_t done_n, done_cap;
    struct mock_engine_stats past; /* of lives that are over */
};

enum what { ARRIVAL, PASS_ENDS, LOADED, TELL, LEAVES, RETURNS };

struct moment {
    uint64_t at_ns, order, life;
    enum what what;
    struct job *job;
    struct sim_worker *worker;
};

struct series {
    double *v;
    size_t n, cap;
};

/* Times between tokens, in bins: there are millions. */
#define SIM_GAP_MS 0.25
enum { SIM_GAPS = 16384 };

struct sim {
    struct sim_config cfg;
    struct kvr_disagg_rule rule;
    struct kvr_clock clock;
    uint64_t now_ns, order, numbers, tell_ns, last_ns, failed;
    uint64_t opened_ns; /* when the last conversation began */
    struct moment *heap;
    size_t heap_n, heap_cap;
    struct sim_worker *workers;
    struct traffic *traffic, *flood;       /* flood: of the other tenant; NULL: there is none */
    struct sim_wait *granted;              /* their turn has come in this step */
    struct sim_routers *routers, *prefill; /* prefill: of the prompts' workers; NULL: all are alike */
    uint64_t good, whole, others, *gaps, gaps_n;
    struct series ttft, e2e;
    int status;
};

/* ---- moments.c ---- */

/* Returns: false when memory is short, which the status then says. */
bool sim_grow(struct sim *s, void **ptr, size_t *cap, size_t need, size_t elem);
bool sim_push(struct sim *s, struct moment m);
struct moment sim_pop(struct sim *s);

/* ---- waiting.c ---- */

/* May its requests wait at the router? */
bool sim_queues(const struct sim_config *c);
/* As sim_legs_choose, where requests may wait: then KVR_PARKED. */
int sim_wait_for_turn(struct sim *s, struct job *j, struct sim_ask *ask);
/* The next job whose turn has come in this step, with its choice; NULL: none. */
struct job *sim_next_granted(struct sim *s);

/* ---- legs.c ---- */

/* The leg that a request begins with. */
enum sim_leg sim_legs_first(struct sim *s, struct job *j);
/* Chooses a worker for the leg that it is at, and books. Returns: as sim_routers_choose. */
int sim_legs_choose(struct sim *s, struct job *j);
/* When `tokens` that now begin their way from one worker to the other will be there. */
uint64_t sim_transfer_ends(struct sim *s, struct sim_worker *from, struct sim_worker *to, size_t tokens);

#endif
