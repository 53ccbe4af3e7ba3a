/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One worker or two legs; the header has the rules of others. least_delay counts in prompt tokens that an engine computes meanwhile:
 *
 *     local  = ahead(D) + (eff(D) + pass) * (1 + stall_weight * n / (n + FEW))     pass   PASS when no prompt is in work at D, else 0
 *     remote = ahead(P) + eff(P) + LEG + TRANSFER * prompt tokens                 n      requests that generate at D
 *
 * What is computed at D holds up those that generate there, and so does the fixed time of a pass with prompts, which is shared with
 * prompts that are in work. At P it holds up nobody. So a prompt waits at P for as long as it takes to compute some times as much there,
 * and not longer: P's queue is what says that there are too few prefill workers. That D generates at all matters, how much hardly does:
 * with n itself in the place of n / (n + FEW) busy decode workers leave everything to prefill workers that are as busy. LEG is what a
 * second request costs before the first token, TRANSFER the prompt's way to D: only this request waits for these.
 *
 * The constants were found with the simulator (docs/guides/disaggregation.md, "When it pays", which has the scenes where they are wrong).
 */
#include "base/base.h"

#include <math.h>
#include <string.h>
#include <kvroute/disagg.h>

static const double FEW = 2, PASS = 500, LEG = 700, TRANSFER = 0.1;

static const char *const names[KVR_DISAGG_POLICIES] = {"off", "isl_bounding", "prefill_load", "isl_or_load", "least_delay"};

void kvr_disagg_rule_init(struct kvr_disagg_rule *r)
{
    *r = (struct kvr_disagg_rule){.isl_tokens = 2048, .isl_ratio = 0.7, .prefill_load = -1, .stall_weight = 4.5, .decode_load = -1};
}

int kvr_disagg_rule_check(const struct kvr_disagg_rule *r, const char **field)
{
    bool needs_load = r->policy == KVR_DISAGG_PREFILL_LOAD || r->policy == KVR_DISAGG_ISL_OR_LOAD;
    *field = (unsigned)r->policy >= KVR_DISAGG_POLICIES                              ? "policy"
             : !(isfinite(r->isl_ratio) && r->isl_ratio >= 0)                        ? "isl_ratio"
             : !isfinite(r->prefill_load) || (needs_load && !(r->prefill_load >= 0)) ? "prefill_load"
             : !isfinite(r->decode_load)                                             ? "decode_load"
             : !(isfinite(r->stall_weight) && r->stall_weight >= 0)                  ? "stall_weight"
                                                                                     : NULL;
    return *field ? -KVR_EINVAL : 0;
}

const char *kvr_disagg_policy_name(enum kvr_disagg_policy policy)
{
    return (unsigned)policy < KVR_DISAGG_POLICIES ? names[policy] : NULL;
}

int kvr_disagg_policy_of(const char *name, size_t len, enum kvr_disagg_policy *out)
{
    for (unsigned i = 0; i < KVR_DISAGG_POLICIES; i++)
        if (kvr_span_is(name, len, names[i])) {
            *out = (enum kvr_disagg_policy)i;
            return 0;
        }
    return -KVR_EINVAL;
}

static bool is_short(const struct kvr_disagg_rule *r, const struct kvr_disagg_facts *f)
{
    double ratio = (double)f->local_uncached / (double)KVR_MAX(f->isl, (uint64_t)1);
    return f->local_uncached < r->isl_tokens && ratio < r->isl_ratio;
}

static bool prefill_is_busy(const struct kvr_disagg_rule *r, const struct kvr_disagg_facts *f)
{
    if (f->prefill_refused) return true;
    if (r->prefill_load < 0 || !f->prefill_known || f->max_num_batched_tokens == 0) return false;
    return (double)f->prefill_ahead > r->prefill_load * (double)f->max_num_batched_tokens;
}

static bool delays_less(const struct kvr_disagg_rule *r, const struct kvr_disagg_facts *f)
{
    double n = f->local_decoding, weight = 1 + r->stall_weight * n / (n + FEW), pass = f->local_ahead ? 0 : PASS;
    double local = (double)f->local_ahead + ((double)f->local_uncached + pass) * weight;
    double remote = (double)f->prefill_uncached + LEG + TRANSFER * (double)f->isl;
    if (f->prefill_known) remote += (double)f->prefill_ahead;
    return local < remote;
}

/* Why the policy would serve it whole. Returns: NULL when it would not. */
static const char *reason_to_stay(const struct kvr_disagg_rule *r, const struct kvr_disagg_facts *f)
{
    bool by_length = r->policy == KVR_DISAGG_ISL_BOUNDING || r->policy == KVR_DISAGG_ISL_OR_LOAD;
    bool by_load = r->policy == KVR_DISAGG_PREFILL_LOAD || r->policy == KVR_DISAGG_ISL_OR_LOAD;
    if (by_length && is_short(r, f)) return "little is uncached at the decode worker";
    if (by_load && prefill_is_busy(r, f)) return "the prefill worker is busy";
    if (r->policy != KVR_DISAGG_LEAST_DELAY) return NULL;
    if (f->prefill_refused) return "the prefill worker is busy";
    return delays_less(r, f) ? "one worker delays less" : NULL;
}

static const char *reason_to_go(const struct kvr_disagg_rule *r)
{
    switch (r->policy) {
    case KVR_DISAGG_ISL_BOUNDING: return "much is uncached at the decode worker";
    case KVR_DISAGG_PREFILL_LOAD: return "the prefill worker is not busy";
    case KVR_DISAGG_ISL_OR_LOAD: return "much is uncached, and the prefill worker is not busy";
    case KVR_DISAGG_LEAST_DELAY: return "two legs delay less";
    default: return "no rule";
    }
}

/* Returns: what the gate has against it; NULL: nothing. */
static const char *gate(const struct kvr_disagg_rule *r, const struct kvr_disagg_facts *f)
{
    if (r->decode_load < 0) return NULL;
    if (!f->decode_blocks_known || f->total_blocks == 0) return "the decode worker's load is not known";
    return (double)f->decode_blocks > r->decode_load * (double)f->total_blocks ? "the decode worker is busy" : NULL;
}

bool kvr_disagg_is_local(const struct kvr_disagg_rule *r, const struct kvr_disagg_facts *f, const char **why)
{
    const char *unused, *stay, *against;
    if (!why) why = &unused;
    if (f->local_uncached < r->min_uncached) return *why = "less is uncached than is worth a transfer", true;
    stay = reason_to_stay(r, f);
    if (!stay) return *why = reason_to_go(r), false;
    against = gate(r, f);
    *why = against ? against : stay;
    return !against;
}
