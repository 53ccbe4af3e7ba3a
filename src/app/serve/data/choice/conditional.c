/* SPDX-License-Identifier: Apache-2.0 */
/* One worker or two legs: data/choice/conditional.h. */
#include "app/serve/data/choice/conditional.h"

#include "app/serve/data/choice/question.h"
#include "app/serve/data/choice/treatment.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/workers.h"

struct kvr_disagg_rule conditional_rule(const struct data_plane *data, enum kvr_router_mode mode)
{
    const struct serve_options *o = data->o;
    struct kvr_disagg_rule rule;
    kvr_disagg_rule_init(&rule);
    bool on = o->conditional_disagg && mode == KVR_MODE_KV; /* it goes by what is cached */
    if (on) rule.policy = (enum kvr_disagg_policy)(o->conditional_policy + 1);
    rule.isl_tokens = o->conditional_isl;
    rule.isl_ratio = o->conditional_ratio;
    rule.prefill_load = o->conditional_prefill_busy >= 0 ? o->conditional_prefill_busy : o->queue_threshold;
    rule.stall_weight = o->conditional_stall_weight;
    rule.decode_load = o->conditional_decode_busy;
    rule.min_uncached = o->min_uncached;
    return rule;
}

/* Whom would it go to, treated so? Returns: 0, or an error of the router. */
static int look(struct request *r, const struct roster_row *row, enum treatment treatment, struct kvr_router_result *out)
{
    r->legs->treatment = treatment;
    const struct roster_choice *from = treatment_candidates(r, row);
    struct kvr_router_ctx *ctx = from->partition ? ctx_get(&r->loop->ctxs, from->partition) : NULL;
    struct kvr_router_request rq;
    struct kvr_override override;
    if (!ctx) return -KVR_ENOENDPOINTS;
    question_of(r, row, from->partition, &rq);
    rq.override = question_override(r, &override);
    rq.book = false;
    return kvr_router_find_best_match(from->partition->router, ctx, &rq, out);
}

/* Tokens, whatever a weight makes of where they are: what a lower tier has is read, not computed. */
static uint64_t lacks(uint64_t isl, const struct kvr_router_result *at)
{
    return isl - KVR_MIN(isl, at->held_tokens);
}

/* Limits of a worker; 0: not known. */
static void read_limits(struct data_plane *data, uint64_t id, uint64_t *batched_tokens, uint64_t *blocks)
{
    workers_lock(data->workers);
    const struct worker *w = worker_find_locked(data->workers, id);
    *batched_tokens = w ? w->max_num_batched_tokens : 0;
    *blocks = !w ? 0 : w->total_kv_blocks ? w->total_kv_blocks : w->learnt_kv_blocks;
    workers_unlock(data->workers);
}

/* Of a prefill worker that cannot be looked at nothing is known; one that is overloaded refuses. */
static void take_prefill(struct data_plane *data, const struct conditional_ways *w, struct kvr_disagg_facts *f)
{
    uint64_t blocks;
    f->prefill_refused = w->prefill_rc == -KVR_EOVERLOADED;
    f->prefill_uncached = f->isl;
    if (w->prefill_rc) return;
    f->prefill_known = true;
    f->prefill_ahead = w->prefill.ahead_tokens;
    f->prefill_uncached = lacks(f->isl, &w->prefill);
    read_limits(data, w->prefill.worker.worker_id, &f->max_num_batched_tokens, &blocks);
}

bool conditional_is_local(struct data_plane *data, const struct kvr_disagg_rule *rule, const struct conditional_ways *w, uint64_t *eff_isl,
                          const char **why)
{
    uint64_t batched;
    struct kvr_disagg_facts f = {.isl = w->isl,
                                 .local_uncached = lacks(w->isl, &w->whole),
                                 .local_ahead = w->whole.ahead_tokens,
                                 .local_decoding = w->whole.ahead_decoding,
                                 .decode_blocks_known = data->o->track_active_blocks,
                                 .decode_blocks = w->whole.active_blocks};
    read_limits(data, w->whole.worker.worker_id, &batched, &f.total_blocks);
    take_prefill(data, w, &f);
    *eff_isl = f.local_uncached;
    return kvr_disagg_is_local(rule, &f, why);
}

bool conditional_is_on(const struct kvr_disagg_rule *rule)
{
    return rule->policy != KVR_DISAGG_OFF || rule->min_uncached > 0;
}

enum outcome conditional_judge(struct request *r, const struct roster_row *row)
{
    struct kvr_disagg_rule rule = conditional_rule(data_of(r), request_mode(r));
    struct conditional_ways ways = {.isl = r->isl};
    struct legs *l = r->legs;
    if (!legs_are_two(r) || treatment_wants_two(r) || !conditional_is_on(&rule)) return OUTCOME_DONE;
    int rc = look(r, row, TREAT_WHOLE, &ways.whole);
    l->treatment = TREAT_REMOTE;
    if (rc) return OUTCOME_DONE;
    ways.prefill_rc = look(r, row, TREAT_REMOTE, &ways.prefill);
    l->has_eff = true;
    if (!conditional_is_local(data_of(r), &rule, &ways, &l->eff_isl, &l->why)) return OUTCOME_DONE;
    return treatment_go_whole(r, ways.whole.worker) ? OUTCOME_DONE : request_refuse(r, 503, "out of memory");
}
