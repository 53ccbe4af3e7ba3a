/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two tenants and the router's queue. A request that has to wait stays in the router until load goes down, which is within a step: its turn
 * is noted there, under the router's lock, and the step sends it on when it is through.
 */
#include <stddef.h>

#include "sim/state.h"

bool sim_queues(const struct sim_config *c)
{
    return c->policy->crowd != SIM_NO_CROWD && c->policy->crowd != SIM_NO_QUEUE;
}

static void note_granted(void *ctx, struct sim_wait *w)
{
    struct sim *s = ctx;
    struct sim_wait **at = &s->granted;
    while (*at) at = &(*at)->next;
    w->next = NULL;
    *at = w;
}

int sim_wait_for_turn(struct sim *s, struct job *j, struct sim_ask *ask)
{
    bool shares = s->cfg.policy->crowd >= SIM_TENANTS;
    if (!sim_queues(&s->cfg)) return sim_routers_choose(s->routers, ask, &j->choice);
    j->wait.granted = note_granted;
    j->wait.ctx = s;
    ask->wait = &j->wait;
    ask->tenant = shares ? 1 + j->other : 0;
    ask->apart = j->other && s->cfg.policy->crowd == SIM_APART;
    ask->weight = j->other ? 1 : s->cfg.policy->weight;
    return sim_routers_choose(s->routers, ask, &j->choice);
}

struct job *sim_next_granted(struct sim *s)
{
    struct sim_wait *w = s->granted;
    if (!w) return NULL;
    s->granted = w->next;
    struct job *j = (struct job *)((char *)w - offsetof(struct job, wait));
    j->choice.decision = w->result;
    j->choice.worker = (uint32_t)w->result.worker.worker_id - 1;
    if (w->rc && s->status == 0) s->status = w->rc;
    return j;
}
