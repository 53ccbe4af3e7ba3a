/* SPDX-License-Identifier: Apache-2.0 */
/* Arrivals of a simulation. Sessions are closed loops: a turn comes some time after the answer to the one before. */
#ifndef KVR_SIM_WORKLOAD_H
#define KVR_SIM_WORKLOAD_H

#include "app/sim/sim.h"

struct sim_request {
    uint64_t arrival_ns;
    uint32_t *tokens; /* owned by whoever has the request */
    size_t tokens_n;
    uint64_t osl;
    uint32_t session, turn; /* agents */
};

struct sim_workload_state;

struct sim_workload_state *sim_workload_new(const struct sim_config *config);
void sim_workload_free(struct sim_workload_state *w);
/* The next open-loop arrival, in order. false: no more. */
bool sim_workload_next(struct sim_workload_state *w, struct sim_request *out);
/* The turn that follows an answer. false: none. */
bool sim_workload_follow(struct sim_workload_state *w, const struct sim_request *done, uint64_t now_ns, struct sim_request *out);

#endif
