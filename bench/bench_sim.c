/* SPDX-License-Identifier: Apache-2.0 */
/* Routing policies over simulated fleets, in virtual time: a table of scenes and policies. docs/simulation.md says how to read it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/compare.h"

enum { LIST_MAX = 128 };

enum list { ALL, TREATMENTS, CROWDS };

struct form {
    const char *name;
    void (*head)(const struct sim_policy *const *policies, size_t n);
    void (*scene)(const struct sim_scene *scene, const struct sim_comparison *c);
    enum list list; /* of scenes and policies, where none are named */
};

struct options {
    const char *scenes, *policies, *trace;
    const struct form *form;
    uint64_t seeds, first, routers, threads;
    double tell_ms, stall_weight, transfer_bytes, queue_frac, prefill_load_scale;
};

extern const char bench_sim_help[]; /* help/bench_sim.txt */

static void list_scenes(const struct sim_scene *list, size_t n)
{
    for (size_t i = 0; i < n; i++) printf("  %-16s %s\n", list[i].name, list[i].meaning);
    printf("\n");
}

static int help(void)
{
    puts(bench_sim_help);
    list_scenes(sim_scenes, sim_scenes_n);
    for (size_t i = 0; i < sim_policies_n; i++)
        printf("  %-16s %s\n", sim_policy_name(sim_policy_at(i)), sim_policy_meaning(sim_policy_at(i)));
    for (size_t i = 0; i < sim_ablations_n; i++)
        printf("  %-24s %s\n", sim_policy_name(sim_ablation_at(i)), sim_policy_meaning(sim_ablation_at(i)));
    printf("\n");
    list_scenes(sim_leg_scenes, sim_leg_scenes_n);
    for (size_t i = 0; i < sim_treatments_n; i++)
        printf("  %-16s %s\n", sim_policy_name(sim_treatment_at(i)), sim_policy_meaning(sim_treatment_at(i)));
    printf("\n");
    list_scenes(sim_crowd_scenes, sim_crowd_scenes_n);
    for (size_t i = 0; i < sim_crowds_n; i++) printf("  %-16s %s\n", sim_policy_name(sim_crowd_at(i)), sim_policy_meaning(sim_crowd_at(i)));
    return 0;
}

static int bad(const char *option, const char *value, const char *allowed)
{
    fprintf(stderr, "bench_sim: %s: bad value '%s'; allowed: %s\n", option, value, allowed);
    return 2;
}

static void print_rows(const struct sim_scene *scene, const struct sim_comparison *c)
{
    static const enum sim_metric shown[] = {SIM_TTFT_MEAN, SIM_TTFT_P50, SIM_TTFT_P99, SIM_E2E_MEAN, SIM_E2E_P50, SIM_E2E_P99};
    static const enum sim_metric ratios[] = {SIM_TTFT_MEAN, SIM_TTFT_P99, SIM_E2E_P50};
    size_t best = sim_best(c, SIM_TTFT_MEAN), n = c->seeds;
    const struct sim_result *least = sim_results_of(c, best);
    for (size_t p = 0; p < c->policies_n; p++) {
        const struct sim_result *r = sim_results_of(c, p);
        printf("| %s | %s | %.1f", p ? "" : scene->name, sim_policy_name(c->policies[p]), sim_figure(r, n, SIM_HIT).value);
        for (size_t m = 0; m < KVR_ARRAY_LEN(shown); m++) {
            struct sim_figure f = sim_figure(r, n, shown[m]);
            printf(shown[m] == SIM_TTFT_MEAN ? " | %.1f +- %.1f" : " | %.1f", f.value, f.half);
        }
        printf(" | %.2f", sim_figure(r, n, SIM_BALANCE).value);
        for (size_t m = 0; m < KVR_ARRAY_LEN(ratios); m++) {
            struct sim_ratio to = sim_ratio(r, least, n, ratios[m]);
            if (p == best) printf(" | 1");
            else printf(" | %.3f (%.2f-%.2f)", to.value, to.low, to.high);
        }
        printf(" |\n");
    }
    fflush(stdout);
}

static void print_columns(const struct sim_scene *scene, const struct sim_comparison *c)
{
    size_t best = sim_best(c, SIM_TTFT_MEAN);
    printf("| `%s` |", scene->name);
    for (size_t p = 0; p < c->policies_n; p++) {
        const struct sim_result *r = sim_results_of(c, p);
        double mean = sim_figure(r, c->seeds, SIM_TTFT_MEAN).value;
        printf(p == best ? " **%.*f**" : " %.*f", mean < 1000, mean);
        printf(" / %.0f / %.0f |", sim_figure(r, c->seeds, SIM_TTFT_P99).value, sim_figure(r, c->seeds, SIM_E2E_P50).value);
    }
    printf("\n");
    fflush(stdout);
}

static void head_rows(const struct sim_policy *const *, size_t n)
{
    (void)n;
    printf("| scene | policy | hit %% | TTFT mean | p50 | p99 | e2e mean | p50 | p99 | balance |"
           " TTFT mean / best | p99 / best | e2e p50 / best |\n"
           "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
}

static void head_columns(const struct sim_policy *const *policies, size_t n)
{
    printf("| scene |");
    for (size_t p = 0; p < n; p++) printf(" %s |", sim_policy_name(policies[p]));
    printf("\n|---|");
    for (size_t p = 0; p < n; p++) printf("---|");
    printf("\n");
}

/* The first two are what the others are compared with: their rules choose between these. */
enum { CHOICES = 2 };

static void head_treatments(const struct sim_policy *const *policies, size_t n)
{
    printf("| scene |");
    for (size_t p = 0; p < n; p++) printf(" %s |", sim_policy_name(policies[p]));
    for (size_t p = CHOICES; p < n; p++) printf(" %s / better |", sim_policy_name(policies[p]));
    printf("\n|---|");
    for (size_t p = 0; p < n + n - KVR_MIN(n, (size_t)CHOICES); p++) printf("---|");
    printf("\n");
}

static void print_treatment(const struct sim_result *r, size_t n, bool most)
{
    double whole = sim_figure(r, n, SIM_LOCAL).value;
    printf(most ? " **%.1f**" : " %.1f", sim_figure(r, n, SIM_GOODPUT).value);
    printf(" · %.0f / %.0f", sim_figure(r, n, SIM_TTFT_P50).value, sim_figure(r, n, SIM_TTFT_P99).value);
    printf(" · %.0f / %.0f", sim_figure(r, n, SIM_ITL_P50).value, sim_figure(r, n, SIM_ITL_P99).value);
    if (whole > 0 && whole < 100) printf(" · %.0f %%", whole);
    printf(" |");
}

static void print_treatments(const struct sim_scene *scene, const struct sim_comparison *c)
{
    struct sim_comparison choices = *c;
    size_t most = sim_most(c, SIM_GOODPUT), n = c->seeds;
    choices.policies_n = KVR_MIN(c->policies_n, (size_t)CHOICES);
    const struct sim_result *better = sim_results_of(c, sim_most(&choices, SIM_GOODPUT));
    printf("| `%s` |", scene->name);
    for (size_t p = 0; p < c->policies_n; p++) print_treatment(sim_results_of(c, p), n, p == most);
    for (size_t p = CHOICES; p < c->policies_n; p++) {
        struct sim_ratio to = sim_ratio(sim_results_of(c, p), better, n, SIM_GOODPUT);
        printf(" %.2f (%.2f-%.2f) |", to.value, to.low, to.high);
    }
    printf("\n");
    fflush(stdout);
}

static void head_tenants(const struct sim_policy *const *, size_t n)
{
    (void)n;
    printf("| scene | policy | TTFT mean | p50 | p99 | p99 / alone | flood, requests/s |\n|---|---|---:|---:|---:|---:|---:|\n");
}

/* The first policy is what the others are compared with. */
static void print_tenants(const struct sim_scene *scene, const struct sim_comparison *c)
{
    size_t n = c->seeds;
    for (size_t p = 0; p < c->policies_n; p++) {
        const struct sim_result *r = sim_results_of(c, p);
        struct sim_ratio to = sim_ratio(r, sim_results_of(c, 0), n, SIM_TTFT_P99);
        printf("| %s | %s | %.1f | %.1f | %.1f | %.2f (%.2f-%.2f) | %.1f |\n", p ? "" : scene->name, sim_policy_name(c->policies[p]),
               sim_figure(r, n, SIM_TTFT_MEAN).value, sim_figure(r, n, SIM_TTFT_P50).value, sim_figure(r, n, SIM_TTFT_P99).value, to.value,
               to.low, to.high, sim_figure(r, n, SIM_OTHERS).value);
    }
    fflush(stdout);
}

static const struct form forms[] = {
    {"rows", head_rows, print_rows, ALL},
    {"columns", head_columns, print_columns, ALL},
    {"treatments", head_treatments, print_treatments, TREATMENTS},
    {"tenants", head_tenants, print_tenants, CROWDS},
};

static const struct form *find_form(const char *name)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(forms); i++)
        if (strcmp(forms[i].name, name) == 0) return &forms[i];
    return NULL;
}

static int read_options(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(name, "--help") || !strcmp(name, "-h")) return 1;
        if (!value) return bad(name, "", "an option and its value, see --help");
        i++;
        if (!strcmp(name, "--scenes")) o->scenes = value;
        else if (!strcmp(name, "--policies")) o->policies = value;
        else if (!strcmp(name, "--trace")) o->trace = value;
        else if (!strcmp(name, "--form")) {
            o->form = find_form(value);
            if (!o->form) return bad(name, value, "rows, columns, treatments, tenants");
        } else if (!strcmp(name, "--tell-ms")) o->tell_ms = strtod(value, NULL);
        else if (!strcmp(name, "--stall-weight")) o->stall_weight = strtod(value, NULL);
        else if (!strcmp(name, "--queue-frac")) o->queue_frac = strtod(value, NULL);
        else if (!strcmp(name, "--prefill-load-scale")) o->prefill_load_scale = strtod(value, NULL);
        else if (!strcmp(name, "--transfer-bytes")) o->transfer_bytes = strtod(value, NULL);
        else if (!strcmp(name, "--seeds")) {
            if (!kvr_parse_u64(value, strlen(value), 1000, &o->seeds) || !o->seeds) return bad(name, value, "1 to 1000");
        } else if (!strcmp(name, "--first")) {
            if (!kvr_parse_u64(value, strlen(value), UINT64_MAX, &o->first)) return bad(name, value, "a number");
        } else if (!strcmp(name, "--routers")) {
            if (!kvr_parse_u64(value, strlen(value), SIM_ROUTERS_MAX, &o->routers) || !o->routers) return bad(name, value, "1 to 16");
        } else if (!strcmp(name, "--threads")) {
            if (!kvr_parse_u64(value, strlen(value), 64, &o->threads) || !o->threads) return bad(name, value, "1 to 64");
        } else {
            return bad(name, value, "see --help");
        }
    }
    return 0;
}

static size_t read_policies(const char *names, enum list of, const struct sim_policy *list[LIST_MAX])
{
    const struct {
        size_t n;
        const struct sim_policy *(*at)(size_t i);
    } lists[] = {{sim_policies_n, sim_policy_at}, {sim_treatments_n, sim_treatment_at}, {sim_crowds_n, sim_crowd_at}};
    size_t n = 0;
    if (!names)
        for (; n < lists[of].n; n++) list[n] = lists[of].at(n);
    for (size_t len; names && *names && n < LIST_MAX; names += len + (names[len] == ',')) {
        len = strcspn(names, ",");
        list[n] = sim_policy_find(names, len);
        if (!list[n++]) return 0;
    }
    return n;
}

static size_t read_scenes(const char *names, const struct options *o, const struct sim_scene *list[LIST_MAX])
{
    const struct {
        size_t n;
        const struct sim_scene *list;
    } lists[] = {{sim_scenes_n, sim_scenes}, {sim_leg_scenes_n, sim_leg_scenes}, {sim_crowd_scenes_n, sim_crowd_scenes}};
    const struct sim_scene *from = lists[o->form->list].list;
    size_t n = 0, all = lists[o->form->list].n;
    for (size_t i = 0; !names && i < all; i++)
        if (o->trace || !sim_scene_needs_trace(&from[i])) list[n++] = &from[i];
    for (size_t len; names && *names && n < LIST_MAX; names += len + (names[len] == ',')) {
        len = strcspn(names, ",");
        list[n] = sim_scene_find(names, len);
        if (!list[n++]) return 0;
    }
    return n;
}

int main(int argc, char **argv)
{
    struct options o = {.form = &forms[0],
                        .seeds = 4,
                        .first = 1,
                        .tell_ms = -1,
                        .stall_weight = -1,
                        .queue_frac = -1,
                        .threads = (uint64_t)KVR_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L)};
    const struct sim_policy *policies[LIST_MAX];
    const struct sim_scene *scenes[LIST_MAX];
    char err[400];
    int rc = read_options(argc, argv, &o);
    if (rc == 1) return help();
    if (rc) return rc;
    size_t policies_n = read_policies(o.policies, o.form->list, policies), scenes_n = read_scenes(o.scenes, &o, scenes);
    if (!policies_n) return bad("--policies", o.policies, "names of --help");
    if (!scenes_n) return bad("--scenes", o.scenes, "names of --help");
    o.form->head(policies, policies_n);
    for (size_t i = 0; i < scenes_n; i++) {
        struct sim_config base;
        struct sim_comparison c;
        rc = sim_scene_config(scenes[i], o.trace, &base, err, sizeof err);
        if (o.routers) base.routers = (uint32_t)o.routers;
        if (o.tell_ms >= 0) base.tell_ms = o.tell_ms;
        base.stall_weight = o.stall_weight;
        if (o.queue_frac >= 0) base.queue_frac = o.queue_frac;
        base.prefill_load_scale = o.prefill_load_scale;
        if (o.transfer_bytes > 0) base.transfer_bytes_s = o.transfer_bytes;
        struct sim_plan plan = {.base = &base,
                                .policies = policies,
                                .policies_n = policies_n,
                                .first_seed = o.first,
                                .seeds = (uint32_t)o.seeds,
                                .threads = (uint32_t)o.threads};
        if (rc == 0) rc = sim_compare(&plan, &c, err, sizeof err);
        if (rc) {
            fprintf(stderr, "bench_sim: scene %s: %s\n", scenes[i]->name, err);
            return 1;
        }
        o.form->scene(scenes[i], &c);
        sim_comparison_free(&c);
    }
    return 0;
}
