/* SPDX-License-Identifier: Apache-2.0 */
/* One worker or two legs: data/conditional.h. */
#include "app/serve/data/conditional.h"

#include <kvroute/disagg.h>

#include "app/serve/data/question.h"

static struct kvr_disagg_rule rule_of(const struct serve *s)
{
    const struct serve_options *o = s->o;
    struct kvr_disagg_rule rule;
    kvr_disagg_rule_init(&rule);
    bool on = o->conditional_disagg && atomic_load(&s->mode) == KVR_MODE_KV; /* it goes by what is cached */
    if (on) rule.policy = (enum kvr_disagg_policy)(o->conditional_policy + 1);
    rule.isl_tokens = o->conditional_isl;
    rule.isl_ratio = o->conditional_ratio;
    rule.prefill_load = o->conditional_prefill_busy >= 0 ? o->conditional_prefill_busy : o->queue_threshold;
    rule.decode_load = o->conditional_decode_busy;
    rule.min_uncached = o->min_uncached;
    return rule;
}

/* Whom would it go to, treated so? Returns: 0, or an error of the router. */
static int look(struct request *r, const struct roster_row *row, enum treatment treatment, struct kvr_router_result *out)
{
    r->legs->treatment = treatment;
    const struct roster_choice *from = legs_choice(r, row);
    struct kvr_router_ctx *ctx = from->partition ? ctx_get(&r->loop->ctxs, from->partition) : NULL;
    struct kvr_router_request rq;
    if (!ctx) return -KVR_ENOENDPOINTS;
    question_of(r, row, from->partition, &rq);
    rq.book = false;
    return kvr_router_find_best_match(from->partition->router, ctx, &rq, out);
}

static uint64_t lacks(uint64_t isl, const struct kvr_router_result *at)
{
    return isl - KVR_MIN(isl, at->cached_tokens);
}

/* Limits of a worker; 0: not known. */
static void read_limits(struct serve *s, uint64_t id, uint64_t *batched_tokens, uint64_t *blocks)
{
    kvr_lock(&s->lock);
    const struct worker *w = worker_find_locked(s, id);
    *batched_tokens = w ? w->max_num_batched_tokens : 0;
    *blocks = !w ? 0 : w->total_kv_blocks ? w->total_kv_blocks : w->learnt_kv_blocks;
    kvr_unlock(&s->lock);
}

/* Of a prefill worker that cannot be looked at nothing is known; one that is overloaded refuses. */
static void look_at_prefill(struct request *r, const struct roster_row *row, struct kvr_disagg_facts *f)
{
    struct kvr_router_result at;
    uint64_t blocks;
    int rc = look(r, row, TREAT_REMOTE, &at);
    f->prefill_refused = rc == -KVR_EOVERLOADED;
    f->prefill_uncached = f->isl;
    if (rc) return;
    f->prefill_known = true;
    f->prefill_ahead = at.ahead_tokens;
    f->prefill_uncached = lacks(f->isl, &at);
    read_limits(serve_of(r), at.worker.worker_id, &f->max_num_batched_tokens, &blocks);
}

static struct kvr_disagg_facts facts_of(struct request *r, const struct kvr_router_result *at)
{
    uint64_t batched;
    struct kvr_disagg_facts f = {.isl = r->isl,
                                 .local_uncached = lacks(r->isl, at),
                                 .local_ahead = at->ahead_tokens,
                                 .local_decoding = at->ahead_decoding,
                                 .decode_blocks_known = serve_of(r)->o->track_active_blocks,
                                 .decode_blocks = at->active_blocks};
    read_limits(serve_of(r), at->worker.worker_id, &batched, &f.total_blocks);
    return f;
}

enum outcome conditional_judge(struct request *r, const struct roster_row *row)
{
    struct kvr_disagg_rule rule = rule_of(serve_of(r));
    struct legs *l = r->legs;
    struct kvr_router_result at;
    if (!legs_are_two(r) || legs_wants_two(r) || (rule.policy == KVR_DISAGG_OFF && !rule.min_uncached)) return OUTCOME_DONE;
    int rc = look(r, row, TREAT_WHOLE, &at);
    l->treatment = TREAT_REMOTE;
    if (rc) return OUTCOME_DONE;
    struct kvr_disagg_facts f = facts_of(r, &at);
    look_at_prefill(r, row, &f);
    l->has_eff = true;
    l->eff_isl = f.local_uncached;
    if (!kvr_disagg_is_local(&rule, &f, &l->why)) return OUTCOME_DONE;
    return legs_go_whole(r, at.worker) ? OUTCOME_DONE : request_refuse(r, 503, "out of memory");
}
