/* SPDX-License-Identifier: Apache-2.0 */
/* Runs policies with the same seeds and compares within each seed; sim/compare.h says why. */
#include "sim/compare.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"

/* Student's t, 97.5 %, by degrees of freedom. */
static double t_quantile(size_t df)
{
    static const double t[] = {0,     12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                               2.201, 2.179,  2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080,
                               2.074, 2.069,  2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
    return df < KVR_ARRAY_LEN(t) ? t[df] : df < 60 ? 2.02 : 1.98;
}

static double mean_of(const double *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += v[i];
    return sum / (double)n;
}

double sim_half_width(const double *v, size_t n)
{
    double mean, squares = 0;
    if (n < 2) return 0;
    mean = mean_of(v, n);
    for (size_t i = 0; i < n; i++) squares += (v[i] - mean) * (v[i] - mean);
    return t_quantile(n - 1) * sqrt(squares / (double)(n - 1) / (double)n);
}

/* Threads take the next run until there are none. */
struct crew {
    const struct sim_plan *plan;
    struct sim_comparison *c;
    atomic_size_t next;
    struct kvr_lock lock; /* of what follows */
    size_t done;
    int rc;
    char *err;
    size_t cap;
};

static void finish_run(struct crew *w, int rc, const char *err)
{
    size_t runs = w->c->policies_n * w->c->seeds;
    kvr_lock(&w->lock);
    if (rc && !w->rc) {
        snprintf(w->err, w->cap, "%s", err);
        w->rc = rc;
        atomic_store(&w->next, runs);
    }
    w->done++;
    if (rc == 0 && w->plan->progress) w->plan->progress(w->plan->ctx, w->done, runs);
    kvr_unlock(&w->lock);
}

static void *work(void *arg)
{
    struct crew *w = arg;
    size_t runs = w->c->policies_n * w->c->seeds;
    for (size_t i; (i = atomic_fetch_add(&w->next, 1)) < runs;) {
        struct sim_config one = *w->plan->base;
        char err[300];
        one.policy = w->c->policies[i / w->c->seeds];
        one.traffic.seed = w->plan->first_seed + i % w->c->seeds;
        finish_run(w, sim_run(&one, &w->c->results[i], err, sizeof err), err);
    }
    return NULL;
}

int sim_compare(const struct sim_plan *plan, struct sim_comparison *out, char *err, size_t cap)
{
    enum { THREADS_MAX = 64 };
    struct sim_comparison c = {.policies_n = plan->policies_n, .seeds = plan->seeds};
    struct crew crew = {.plan = plan, .c = &c, .err = err, .cap = cap};
    pthread_t others[THREADS_MAX];
    size_t n = 0;
    c.policies = calloc(c.policies_n, sizeof *c.policies);
    c.results = calloc(c.policies_n * c.seeds, sizeof *c.results);
    if (!c.policies || !c.results) {
        sim_comparison_free(&c);
        snprintf(err, cap, "out of memory");
        return -KVR_ENOMEM;
    }
    memcpy(c.policies, plan->policies, c.policies_n * sizeof *c.policies);
    kvr_lock_init(&crew.lock, KVR_LOCK_SIM_CREW);
    while (n + 1 < KVR_MIN(plan->threads, (uint32_t)THREADS_MAX) && pthread_create(&others[n], NULL, work, &crew) == 0) n++;
    work(&crew);
    while (n) pthread_join(others[--n], NULL);
    kvr_lock_destroy(&crew.lock);
    if (crew.rc) sim_comparison_free(&c);
    else *out = c;
    return crew.rc;
}

void sim_comparison_free(struct sim_comparison *c)
{
    free(c->policies);
    free(c->results);
    *c = (struct sim_comparison){0};
}

/* ---- figures ----------------------------------------------------------------------------------------- */

static double *column(const struct sim_result *r, size_t n, enum sim_metric m)
{
    double *v = malloc(n * sizeof *v);
    KVR_ASSERT(v != NULL);
    for (size_t s = 0; s < n; s++) v[s] = r[s].v[m];
    return v;
}

struct sim_figure sim_figure(const struct sim_result *r, size_t n, enum sim_metric m)
{
    double *v = column(r, n, m);
    struct sim_figure f = {mean_of(v, n), sim_half_width(v, n)};
    free(v);
    return f;
}

struct sim_ratio sim_ratio(const struct sim_result *a, const struct sim_result *b, size_t n, enum sim_metric m)
{
    double *x = column(a, n, m);
    for (size_t s = 0; s < n; s++) x[s] = x[s] > 0 && b[s].v[m] > 0 ? log(x[s] / b[s].v[m]) : 0;
    double mean = mean_of(x, n), half = sim_half_width(x, n);
    free(x);
    return (struct sim_ratio){exp(mean), exp(mean - half), exp(mean + half)};
}

size_t sim_best(const struct sim_comparison *c, enum sim_metric m)
{
    size_t best = 0;
    for (size_t p = 1; p < c->policies_n; p++)
        if (sim_figure(sim_results_of(c, p), c->seeds, m).value < sim_figure(sim_results_of(c, best), c->seeds, m).value) best = p;
    return best;
}

size_t sim_most(const struct sim_comparison *c, enum sim_metric m)
{
    size_t most = 0;
    for (size_t p = 1; p < c->policies_n; p++)
        if (sim_figure(sim_results_of(c, p), c->seeds, m).value > sim_figure(sim_results_of(c, most), c->seeds, m).value) most = p;
    return most;
}
