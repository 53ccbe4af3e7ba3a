/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies against each other. Each runs with the same seeds, so with the same arrivals: what is compared is the ratio within a seed, whose
 * spread is far smaller than that of the figures. Intervals are of 95 %, by Student's t over seeds.
 */
#ifndef KVR_SIM_COMPARE_H
#define KVR_SIM_COMPARE_H

#include "sim/sim.h"

struct sim_figure {
    double value, half; /* value +- half; half is 0 for one seed */
};

struct sim_ratio {
    double value, low, high; /* geometric mean of the ratios */
};

/* Told after each run: how many are done, of how many. Any thread, one at a time. */
typedef void sim_progress_fn(void *ctx, size_t done, size_t runs);

struct sim_plan {
    const struct sim_config *base;
    const struct sim_policy *const *policies;
    size_t policies_n;
    uint64_t first_seed;
    uint32_t seeds, threads;   /* the figures do not depend on how many threads there are */
    sim_progress_fn *progress; /* NULL: none */
    void *ctx;
};

struct sim_comparison {
    const struct sim_policy **policies;
    size_t policies_n;
    uint32_t seeds;
    struct sim_result *results; /* [policy * seeds + seed] */
};

/* Runs the base with each policy and each seed. Owns: the caller, sim_comparison_free. Returns: as sim_run. */
int sim_compare(const struct sim_plan *plan, struct sim_comparison *out, char *err, size_t cap);
void sim_comparison_free(struct sim_comparison *c);

/* The results of one policy, by seed. */
static inline const struct sim_result *sim_results_of(const struct sim_comparison *c, size_t policy)
{
    return c->results + policy * c->seeds;
}

struct sim_figure sim_figure(const struct sim_result *r, size_t n, enum sim_metric m);
/* Of a against b, seed by seed. */
struct sim_ratio sim_ratio(const struct sim_result *a, const struct sim_result *b, size_t n, enum sim_metric m);
/* The policy with the smallest mean. */
size_t sim_best(const struct sim_comparison *c, enum sim_metric m);
/* The one with the largest. */
size_t sim_most(const struct sim_comparison *c, enum sim_metric m);

/* The half width of a 95 % interval of a mean, over values. */
double sim_half_width(const double *values, size_t n);

#endif
