/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One leg or two:
 *
 *     arrival -> a look at both pools, and the rule -> whole, at the decode worker that the look found
 *                                                   -> prefill leg -> decode leg -> its blocks -> transfer -> tokens
 *
 * as src/app/serve does it. A worker has one link: transfers from it and to it come one after the other.
 */
#include "sim/state.h"

enum { BYTES_PER_TOKEN = 131072 }; /* as `kvroute mock` has it */

static struct sim_ask ask_of(const struct job *j)
{
    return (struct sim_ask){.number = j->number,
                            .tokens = j->rq.tokens,
                            .locals = j->hashes,
                            .seqs = j->hashes + j->blocks_n,
                            .blocks_n = j->blocks_n,
                            .tokens_n = j->rq.tokens_n};
}

enum sim_leg sim_legs_first(struct sim *s, struct job *j)
{
    const struct kvr_disagg_rule *rule = &s->rule;
    struct sim_choice local, prefill;
    struct sim_ask ask = ask_of(j);
    if (!s->cfg.policy->roles) return SIM_WHOLE_REQUEST;
    ask.look = true;
    if (rule->policy == KVR_DISAGG_OFF || sim_routers_choose(s->routers, &ask, &local) || sim_routers_choose(s->prefill, &ask, &prefill))
        return SIM_PREFILL_LEG;
    const struct kvr_router_result *d = &local.decision, *p = &prefill.decision;
    struct kvr_disagg_facts facts = {.isl = j->rq.tokens_n,
                                     .local_uncached = j->rq.tokens_n - KVR_MIN(d->held_tokens, j->rq.tokens_n),
                                     .local_ahead = d->ahead_tokens,
                                     .local_decoding = d->ahead_decoding,
                                     .decode_blocks_known = true,
                                     .decode_blocks = d->active_blocks,
                                     .total_blocks = s->cfg.blocks,
                                     .prefill_known = true,
                                     .prefill_uncached = j->rq.tokens_n - KVR_MIN(p->held_tokens, j->rq.tokens_n),
                                     .prefill_ahead = p->ahead_tokens,
                                     .max_num_batched_tokens = s->cfg.tokens_per_pass};
    if (!kvr_disagg_is_local(rule, &facts, NULL)) return SIM_PREFILL_LEG;
    j->choice = local;
    return SIM_WHOLE_REQUEST;
}

int sim_legs_choose(struct sim *s, struct job *j)
{
    struct sim_ask ask = ask_of(j);
    if (s->cfg.policy->roles && j->leg == SIM_WHOLE_REQUEST) ask.pin = &j->choice.decision.worker;
    if (j->leg == SIM_DECODE_LEG) ask.override = kvr_decode_leg(s->rule.policy != KVR_DISAGG_OFF); /* as the live router */
    if (s->cfg.policy->crowd != SIM_NO_CROWD) return sim_wait_for_turn(s, j, &ask);
    return sim_routers_choose(j->leg == SIM_PREFILL_LEG ? s->prefill : s->routers, &ask, &j->choice);
}

uint64_t sim_transfer_ends(struct sim *s, struct sim_worker *from, struct sim_worker *to, size_t tokens)
{
    uint64_t begins = KVR_MAX(s->now_ns, KVR_MAX(from->link_ns, to->link_ns));
    double seconds = (double)tokens * BYTES_PER_TOKEN / s->cfg.transfer_bytes_s;
    return from->link_ns = to->link_ns = begins + (uint64_t)(s->cfg.transfer_ms * 1e6 + seconds * 1e9);
}
