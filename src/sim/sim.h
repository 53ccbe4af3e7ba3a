/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fleets in virtual time: real routing (libkvroute) or the published rules of other routers, over simulated engines
 * (sim/engine.h), driven by traffic (traffic/traffic.h). Nothing sleeps; the same configuration gives the same figures.
 *
 * What an engine stores is known to every router when the pass that computed it ends. Several routers take requests in turns; what one
 * books the others hear `tell_ms` later, as replicas do.
 *
 * A worker may leave in the middle, with its cache and what it was doing: requests without a first token are sent elsewhere at once, those
 * with one have failed, and so has the rest of their conversation. It may come back, empty.
 *
 * Workers may have roles: a prompt's blocks are then held by the prefill worker that has computed it until they are transferred to the
 * decode worker, which has taken as many of its own before.
 *
 * A fleet may have two tenants: the traffic is the first one's, `flood` the other's. Requests then wait at the router while every rank is
 * busy with prompts, and the times that are told are the first tenant's.
 *
 * Threads: sim_run may be called from several threads at once.
 */
#ifndef KVR_SIM_H
#define KVR_SIM_H

#include "base/base.h"
#include "traffic/traffic.h"

struct sim_policy;

enum { SIM_UNLIKE = 4, SIM_ROUTERS_MAX = 16 };

struct sim_config {
    struct traffic_config traffic;
    const struct sim_policy *policy;
    uint32_t workers, block_size, blocks, tokens_per_pass, sequences;
    double speed;              /* of all engines; 1: the timing of sim/engine.h */
    double speeds[SIM_UNLIKE]; /* times this for worker i: [i % n], n those above 0; none: alike */
    double caches[SIM_UNLIKE]; /* the same for blocks */
    uint32_t routers;          /* 1 to SIM_ROUTERS_MAX */
    double tell_ms;
    uint32_t host_blocks;                 /* that each engine keeps in the host's memory; 0: none */
    double load_ratio;                    /* sim/engine.h */
    double leaves_s, returns_s;           /* worker 1 leaves, and comes back; 0: does not */
    uint32_t prefill_workers;             /* with a policy of two legs: the first so many compute prompts for the others */
    double transfer_ms, transfer_bytes_s; /* what a transfer takes before its bytes, and how fast these are */
    double stall_weight;                  /* of least_delay; negative: its default */
    struct traffic_config flood;          /* of the other tenant, with a policy of tenants; rate 0: there is none */
    double prefill_load_scale;            /* of the cost; 0: the default */
    double queue_frac;                    /* with such a policy: a rank is busy with more prompt tokens than this times tokens_per_pass */
    double ttft_ms, itl_ms;               /* limits of a good answer: to the first token, and of the mean between tokens; 0: none */
};

enum sim_metric {
    SIM_HIT,       /* of all prompt tokens that were served, those that were cached, in %; of each leg that was */
    SIM_TTFT_MEAN, /* ms, from arrival */
    SIM_TTFT_P50,
    SIM_TTFT_P99,
    SIM_E2E_MEAN,
    SIM_E2E_P50,
    SIM_E2E_P99,
    SIM_BALANCE, /* prompt tokens computed by the worker that computed most, against the mean */
    SIM_BALANCE_REQUESTS,
    SIM_COMPLETED, /* requests */
    SIM_FAILED,    /* lost with a worker, or refused for their length */
    SIM_FEWEST,    /* requests of the worker that had the fewest */
    SIM_SECONDS,   /* virtual, until the last token */
    SIM_ITL_P50,   /* ms between tokens, over all of them */
    SIM_ITL_P99,
    SIM_GOODPUT, /* answers within the limits, for each second until the last conversation began: the same seconds for all policies */
    SIM_LOCAL,   /* whole requests, in % */
    SIM_OTHERS,  /* requests of the other tenant that ended each second while the first one asked */
    SIM_METRICS
};

struct sim_result {
    double v[SIM_METRICS];
};

/* 4 workers of 8,192 blocks of 16 tokens, passes of up to 8,192 tokens, 256 sequences at once, one router; for policies of two legs one
 * prefill worker, transfers of 2 ms and 25 GB/s. */
void sim_config_init(struct sim_config *c);
/* Returns: 0, or -KVR_EINVAL, an error of traffic_create, -KVR_ENOMEM, with a text. */
int sim_run(const struct sim_config *config, struct sim_result *out, char *err, size_t cap);

/* ---- policies ---- */

extern const size_t sim_policies_n;

/* The default without one of its parts each: found by name too, no part of the list. */
extern const size_t sim_ablations_n;
const struct sim_policy *sim_ablation_at(size_t i);

/* Roles of workers, and which requests go over two legs: found by name too, no part of the list. */
extern const size_t sim_treatments_n;
const struct sim_policy *sim_treatment_at(size_t i);

/* How two tenants wait: found by name too, no part of the list. */
extern const size_t sim_crowds_n;
const struct sim_policy *sim_crowd_at(size_t i);

/* Returns: NULL for an unknown name. */
const struct sim_policy *sim_policy_find(const char *name, size_t len);
const struct sim_policy *sim_policy_at(size_t i);
const char *sim_policy_name(const struct sim_policy *p);
bool sim_policy_has_roles(const struct sim_policy *p); /* it needs prefill workers */
const char *sim_policy_meaning(const struct sim_policy *p);
/* The library chooses: not the rules of another router. */
bool sim_policy_is_ours(const struct sim_policy *p);

/* ---- scenes ---- */

struct sim_scene {
    const char *name, *meaning;
    const char *traffic;                       /* as traffic_parse reads it */
    uint32_t workers, blocks, tokens_per_pass; /* 0: 8,192 */
    double speed;                              /* 0: 1 */
    double speeds[SIM_UNLIKE], caches[SIM_UNLIKE];
    uint32_t routers; /* 0: 1 */
    double tell_ms, leaves_s, returns_s;
    uint32_t prefill_workers; /* this and those below: scenes of treatments */
    double ttft_ms, itl_ms, transfer_bytes_s;
    const char *flood; /* as `traffic`; NULL: one tenant */
    double queue_frac;
    uint32_t host_blocks;
    double load_ratio;
};

extern const struct sim_scene sim_scenes[];
extern const size_t sim_scenes_n;
/* For treatments: found by name too, no part of the list. */
extern const struct sim_scene sim_leg_scenes[];
extern const size_t sim_leg_scenes_n;

/* For tenants: likewise. */
extern const struct sim_scene sim_crowd_scenes[];
extern const size_t sim_crowd_scenes_n;

/* Returns: NULL for an unknown name. */
const struct sim_scene *sim_scene_find(const char *name, size_t len);
/* The whole configuration but for the policy and the seed. trace: the file for scenes that replay one, or NULL.
 * Returns: 0, or -KVR_EINVAL with a text. */
int sim_scene_config(const struct sim_scene *scene, const char *trace, struct sim_config *out, char *err, size_t cap);
bool sim_scene_needs_trace(const struct sim_scene *scene);

#endif
