/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies: a row each. The numbers of other routers are the defaults of their command lines: sglang-router 0.3.2, smg 1.13.0 and
 * vllm-router 0.1.17; `tree` has those of the rule as it was first published (the library default in their sources). What smg does
 * besides when backends report overload is left out.
 */
#include <string.h>

#include "sim/internal.h"

#define MEGA  (1ULL << 20)
#define ALIKE false, KVR_DISAGG_OFF, SIM_NO_CROWD, 0 /* workers without roles, one tenant */

static const struct sticky_rules sglang = {0.3, 64, 1.5, STICKY_SPREAD, STICKY_LEAST_LOADED, true, 64 * MEGA, 60};
static const struct sticky_rules smg = {0.3, 64, 1.5, STICKY_MEAN, STICKY_LEAST_USED, false, 64 * MEGA, 60};
static const struct sticky_rules vllm = {0.3, 64, 1.5, STICKY_SPREAD, STICKY_LEAST_LOADED, true, 32 * MEGA, 120};
static const struct sticky_rules tree = {0.5, 32, 1.1, STICKY_SPREAD, STICKY_SMALLEST, true, 64 * MEGA, 60};

static const struct sim_policy policies[] = {
    {"round-robin", "in turns", KVR_MODE_ROUND_ROBIN, KVR_COST_LINEAR, 0, NULL, SIM_WHOLE, ALIKE},
    {"least-loaded", "fewest requests", KVR_MODE_LEAST_LOADED, KVR_COST_LINEAR, 0, NULL, SIM_WHOLE, ALIKE},
    {"auto", "the delay that a choice adds to everybody: the default", KVR_MODE_KV, KVR_COST_DELAY, 0, NULL, SIM_WHOLE, ALIKE},
    {"linear", "blocks to compute and blocks in use (NVIDIA Dynamo's cost)", KVR_MODE_KV, KVR_COST_LINEAR, 0, NULL, SIM_WHOLE, ALIKE},
    {"linear+ttl", "linear, and own decisions count as cached for 5 s", KVR_MODE_KV, KVR_COST_LINEAR, 5, NULL, SIM_WHOLE, ALIKE},
    {"sglang-router", "a tree of what was sent where; rules of sglang-router 0.3.2", KVR_MODE_DIRECT, KVR_COST_LINEAR, 0, &sglang,
     SIM_WHOLE, ALIKE},
    {"smg", "the same; rules of smg 1.13.0", KVR_MODE_DIRECT, KVR_COST_LINEAR, 0, &smg, SIM_WHOLE, ALIKE},
    {"vllm-router", "the same; rules of vllm-router 0.1.17", KVR_MODE_DIRECT, KVR_COST_LINEAR, 0, &vllm, SIM_WHOLE, ALIKE},
    {"tree", "the same, as first published: 0.5, 32, 1.1, smallest tree", KVR_MODE_DIRECT, KVR_COST_LINEAR, 0, &tree, SIM_WHOLE, ALIKE},
};

/* The default without one of its parts: found by name, not among all. */
#define WITHOUT(name, what, part)                                                                                                          \
    {                                                                                                                                      \
        "auto-without-" name, "auto without " what, KVR_MODE_KV, KVR_COST_DELAY, 0, NULL, part, ALIKE                                      \
    }
static const struct sim_policy ablations[] = {
    WITHOUT("computing", "the price of computing for others", SIM_COMPUTING),
    WITHOUT("generation", "what generates", SIM_GENERATION),
    WITHOUT("pass", "the price of a pass", SIM_PASS),
    WITHOUT("pending", "what requests that are booked compute", SIM_PENDING),
    WITHOUT("copies", "copies of what is hot", SIM_COPIES),
    WITHOUT("eviction", "the price of what is evicted", SIM_EVICTION),
    WITHOUT("factors", "unlike workers' factors", SIM_FACTORS),
    WITHOUT("turns", "turns among near equals", SIM_TURNS),
    WITHOUT("tiers", "what engines keep beyond the device", SIM_TIERS),
};

const size_t sim_ablations_n = KVR_ARRAY_LEN(ablations);

const struct sim_policy *sim_ablation_at(size_t i)
{
    return &ablations[i];
}

/* Whole requests on workers that are alike, two legs, and rules that choose, with their defaults; all of them route by the default cost. */
#define TREATMENT(name, meaning, ...)                                                                                                      \
    {                                                                                                                                      \
        name, meaning, KVR_MODE_KV, KVR_COST_DELAY, 0, NULL, SIM_WHOLE, __VA_ARGS__                                                        \
    }
static const struct sim_policy treatments[] = {
    TREATMENT("one-leg", "all workers alike", ALIKE),
    TREATMENT("two-legs", "prefill and decode workers, always two legs", true, KVR_DISAGG_OFF, SIM_NO_CROWD, 0),
    TREATMENT("isl_bounding", "the same, few uncached tokens whole (NVIDIA Dynamo's rule and defaults)", true, KVR_DISAGG_ISL_BOUNDING,
              SIM_NO_CROWD, 0),
    TREATMENT("least_delay", "the same, whole where that delays less", true, KVR_DISAGG_LEAST_DELAY, SIM_NO_CROWD, 0),
};

const size_t sim_treatments_n = KVR_ARRAY_LEN(treatments);

const struct sim_policy *sim_treatment_at(size_t i)
{
    return &treatments[i];
}

/* Two tenants: the first steady, the other one too many. */
static const struct sim_policy crowds[] = {
    TREATMENT("alone", "the first tenant without the other", false, KVR_DISAGG_OFF, SIM_ALONE, 1),
    TREATMENT("no-queue", "all requests go to the engines at once", false, KVR_DISAGG_OFF, SIM_NO_QUEUE, 1),
    TREATMENT("one-queue", "a queue at the router, first come, first served", false, KVR_DISAGG_OFF, SIM_ONE_QUEUE, 1),
    TREATMENT("tenants", "a queue that tenants of equal weight share", false, KVR_DISAGG_OFF, SIM_TENANTS, 1),
    TREATMENT("tenants-4", "the same, the first tenant with four times the weight", false, KVR_DISAGG_OFF, SIM_TENANTS, 4),
    TREATMENT("apart", "the same with equal weights, the other tenant on half of the workers only", false, KVR_DISAGG_OFF, SIM_APART, 1),
};

const size_t sim_crowds_n = KVR_ARRAY_LEN(crowds);

const struct sim_policy *sim_crowd_at(size_t i)
{
    return &crowds[i];
}

const size_t sim_policies_n = KVR_ARRAY_LEN(policies);

const struct sim_policy *sim_policy_at(size_t i)
{
    return &policies[i];
}

static const struct sim_policy *find_in(const struct sim_policy *list, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (kvr_span_is(name, len, list[i].name)) return &list[i];
    return NULL;
}

const struct sim_policy *sim_policy_find(const char *name, size_t len)
{
    const struct sim_policy *p = find_in(policies, sim_policies_n, name, len);
    if (!p) p = find_in(ablations, sim_ablations_n, name, len);
    if (!p) p = find_in(treatments, sim_treatments_n, name, len);
    return p ? p : find_in(crowds, sim_crowds_n, name, len);
}

const char *sim_policy_name(const struct sim_policy *p)
{
    return p->name;
}

bool sim_policy_has_roles(const struct sim_policy *p)
{
    return p->roles;
}

const char *sim_policy_meaning(const struct sim_policy *p)
{
    return p->meaning;
}

bool sim_policy_is_ours(const struct sim_policy *p)
{
    return p->sticky == NULL;
}
