/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.c       engines, requests                policies.c  the table of policies
 * moments.c   the heap                         legs.c      requests of two legs
 * routers.c   who chooses, what is told        sticky.c    other routers' trees
 * scenes.c    the table of scenes              compare.c   policies over scenes and seeds, with intervals
 * without.c   the default without one of its parts    waiting.c   requests that wait for their turn
 */
#ifndef KVR_SIM_INTERNAL_H
#define KVR_SIM_INTERNAL_H

#include <kvroute/disagg.h>
#include <kvroute/router.h>

#include "sim/sim.h"
#include "sim/sticky.h"
#include "sim/without.h"

/* What becomes of the other tenant's requests. */
enum sim_crowd { SIM_NO_CROWD, SIM_ALONE, SIM_NO_QUEUE, SIM_ONE_QUEUE, SIM_TENANTS, SIM_APART };

struct sim_policy {
    const char *name, *meaning;
    enum kvr_router_mode mode;
    enum kvr_cost_kind cost;
    double predicted_s;                /* own decisions count as cached for so long; 0: do not */
    const struct sticky_rules *sticky; /* NULL: the library chooses */
    enum sim_part without;
    bool roles;                  /* prefill and decode workers; false: all are alike */
    enum kvr_disagg_policy legs; /* with roles: which requests go over two */
    enum sim_crowd crowd;
    double weight; /* with SIM_TENANTS: of the first tenant */
};

/* One request at one router. */
struct sim_choice {
    struct kvr_router_result decision;
    uint32_t router, worker; /* from 0 */
};

/* A request in the queue of a router; it stays where it is until it is granted. */
struct sim_wait {
    struct sim_wait *next; /* of those that were granted */
    struct kvr_router_request rq;
    struct kvr_ticket ticket;
    struct kvr_router_result result;
    char id[24];
    int rc;
    void (*granted)(void *ctx, struct sim_wait *w); /* the router has its lock */
    void *ctx;
};

struct sim_ask {
    uint64_t number; /* of the request, different for each booking */
    const uint32_t *tokens;
    const uint64_t *locals, *seqs;
    size_t blocks_n, tokens_n;
    uint64_t tenant;
    bool apart; /* to the workers with the taint only */
    double weight;
    struct sim_wait *wait;               /* it may wait here; NULL: it goes at once */
    bool look;                           /* nothing is booked, and it is the same router's turn again */
    const struct kvr_worker *pin;        /* NULL: any */
    const struct kvr_override *override; /* NULL: none */
};

/* ---- routers.c: N routers over one index, which all events reach at once ---- */

struct sim_routers;

struct sim_routers_config {
    const struct sim_policy *policy;
    const struct kvr_clock *clock;
    uint32_t routers, workers, block_size;
    uint64_t seed, tell_ns;
    double prefill_load_scale; /* 0: the default */
    double queue_tokens;       /* a rank with more prompt tokens is busy; negative: nothing waits */
    bool prefills;             /* of workers that compute prompts for others: these keep no blocks in use */
};

int sim_routers_create(const struct sim_routers_config *config, struct sim_routers **out);
void sim_routers_destroy(struct sim_routers *r);
/* Workers are those that are present. Returns: 0 or -KVR_ENOMEM. */
int sim_routers_add_worker(struct sim_routers *r, uint32_t worker);
void sim_routers_remove_worker(struct sim_routers *r, uint32_t worker);
void sim_routers_event(struct sim_routers *r, const struct kvr_event *ev);
/* Tells what has been on its way for long enough. Returns: when to call again, UINT64_MAX: when something has been booked. */
uint64_t sim_routers_tell(struct sim_routers *r);
/* The next router in turn chooses and books. Returns: 0, KVR_PARKED, or an error of the router. */
int sim_routers_choose(struct sim_routers *r, const struct sim_ask *ask, struct sim_choice *out);
/* ttft_ms negative: it tells nothing of what prompts take there. */
void sim_routers_first_token(struct sim_routers *r, const struct sim_choice *c, uint64_t number, double ttft_ms);
/* tokens 0: it failed. */
void sim_routers_ended(struct sim_routers *r, const struct sim_choice *c, uint64_t number, double tokens, double generating_ms);
int sim_routers_status(const struct sim_routers *r); /* 0, or -KVR_ENOMEM once memory was short */

#endif
