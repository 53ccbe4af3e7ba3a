/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated fleets in virtual time: real routing (libkvroute) over simulated engines (engine/engine.h), driven by a
 * workload. Nothing sleeps; the same seed gives the same figures.
 *
 * What an engine stores is known to the router when the pass that computed it ends. The policies called "+ ttl" remember
 * their own decisions for 5 s besides.
 */
#ifndef KVR_APP_SIM_H
#define KVR_APP_SIM_H

#include <kvroute/router.h>

#include "base/base.h"

enum sim_workload { SIM_UNIFORM, SIM_SHARED, SIM_AGENTS, SIM_SIBLINGS, SIM_LONG_TAIL, SIM_WORKLOADS };
enum sim_policy {
    SIM_ROUND_ROBIN,
    SIM_LEAST_LOADED,
    SIM_LINEAR,
    SIM_LMETRIC,
    SIM_TIME,
    SIM_LINEAR_PREDICTED,
    SIM_TIME_PREDICTED,
    SIM_POLICIES
};

struct sim_config {
    enum sim_workload workload;
    enum sim_policy policy;
    uint32_t workers, requests;
    uint64_t seed;
    double load; /* arrivals, as a multiple of the workload's own rate; 1 */
};

struct sim_result {
    double ttft_mean_ms, ttft_p50_ms, ttft_p99_ms, seconds; /* seconds: virtual, until the last token */
    double cached_ratio;                                    /* of prompt tokens, as the engines say */
    uint32_t completed, fewest;                             /* fewest: requests of the worker that had the fewest */
};

const char *sim_workload_name(enum sim_workload w);
const char *sim_policy_name(enum sim_policy p);

/* Returns: 0 or -KVR_ENOMEM. */
int sim_run(const struct sim_config *config, struct sim_result *out);

#endif
