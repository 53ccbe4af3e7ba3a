/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options --> traffic and fleet --> every policy, every seed (sim/compare.h) --> table, the best
 *                                     \--> the best of our own again, with a quarter more cache, with one more worker
 */
#include "app/replay/offline.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "app/replay/report.h"
#include "app/replay/texts.h"
#include "app/replay/workload.h"
#include "base/log.h"
#include "sim/compare.h"

enum { POLICIES_MAX = 32, CHANGES = 3 };

struct what_if {
    char name[48];
    struct sim_comparison c;
};

struct offline {
    const struct replay_options *o;
    struct replay_texts texts;
    struct sim_config base;
    const struct sim_policy *policies[POLICIES_MAX];
    size_t policies_n;
    struct sim_comparison c;
    size_t best, ours; /* ours: the best that kvroute itself has; policies_n: none was asked for */
    struct what_if changes[CHANGES];
    const char *doing;
};

static const struct column {
    const char *title, *key;
    enum sim_metric m;
    int width, digits;
    bool legs; /* printed where workers have roles */
} columns[] = {
    {"hit %", "hit_pct", SIM_HIT, 8, 1, false},
    {"TTFT mean", "ttft_mean_ms", SIM_TTFT_MEAN, 11, 1, false},
    {"p50", "ttft_p50_ms", SIM_TTFT_P50, 9, 1, false},
    {"p99", "ttft_p99_ms", SIM_TTFT_P99, 9, 1, false},
    {"e2e mean", "e2e_mean_ms", SIM_E2E_MEAN, 10, 1, false},
    {"p50", "e2e_p50_ms", SIM_E2E_P50, 9, 1, false},
    {"p99", "e2e_p99_ms", SIM_E2E_P99, 9, 1, false},
    {"ITL p50", "itl_p50_ms", SIM_ITL_P50, 9, 1, true},
    {"p99", "itl_p99_ms", SIM_ITL_P99, 9, 1, true},
    {"whole %", "whole_pct", SIM_LOCAL, 9, 1, true},
    {"balance", "balance", SIM_BALANCE, 9, 2, false},
};

/* ---- what is asked for ------------------------------------------------------------------------------- */

/* Some workers compute prompts for the others. */
static bool has_roles(const struct offline *f)
{
    return f->o->prefill_workers > 0;
}

static int choose_policies(struct offline *f)
{
    const char *names = f->o->compare;
    for (size_t i = 0; !names && !has_roles(f) && i < sim_policies_n; i++) f->policies[f->policies_n++] = sim_policy_at(i);
    for (size_t i = 0; !names && has_roles(f) && i < sim_treatments_n; i++) f->policies[f->policies_n++] = sim_treatment_at(i);
    for (size_t len; names && *names; names += len + (names[len] == ',')) {
        len = strcspn(names, ",");
        const struct sim_policy *p = sim_policy_find(names, len);
        for (size_t i = 0; i < sim_crowds_n; i++) p = p == sim_crowd_at(i) ? NULL : p; /* there is one tenant */
        if (!p) {
            char all[400] = "";
            for (size_t i = 0, n = 0; i < sim_policies_n && n < sizeof all; i++)
                n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", sim_policy_name(sim_policy_at(i)));
            for (size_t i = 0, n = strlen(all); i < sim_treatments_n && n < sizeof all; i++)
                n += (size_t)snprintf(all + n, sizeof all - n, ", %s", sim_policy_name(sim_treatment_at(i)));
            kvr_log_error("kvroute replay: --compare: '%.*s' is not a policy of --offline; allowed: %s", (int)KVR_MIN(len, (size_t)60),
                          names, all);
            return 2;
        }
        if (sim_policy_has_roles(p) && !has_roles(f)) {
            kvr_log_error("kvroute replay: --compare: %s needs --prefill-workers", sim_policy_name(p));
            return 2;
        }
        if (f->policies_n == POLICIES_MAX) {
            kvr_log_error("kvroute replay: --compare: more than %d policies", POLICIES_MAX);
            return 2;
        }
        f->policies[f->policies_n++] = p;
    }
    return 0;
}

static int configure(struct offline *f)
{
    const struct replay_options *o = f->o;
    char err[400];
    struct sim_config *c = &f->base;
    if (!o->workload && strcmp(o->trace, "synthetic") == 0) {
        kvr_log_error("kvroute replay: --offline: needs --trace FILE or --workload NAME");
        return 2;
    }
    if (o->prefill_workers >= o->workers) {
        kvr_log_error("kvroute replay: --prefill-workers: bad value %llu; allowed: fewer than the %llu of --workers",
                      (unsigned long long)o->prefill_workers, (unsigned long long)o->workers);
        return 2;
    }
    sim_config_init(c);
    if (workload_config(o, &f->texts.hook, &c->traffic, err, sizeof err)) {
        kvr_log_error("kvroute replay: %s", err);
        return 2;
    }
    c->traffic.vocab = 0; /* what the tokens are makes no difference, and trees of other routers hold characters */
    if (o->limit) c->traffic.requests = o->limit;
    if (o->duration > 0) c->traffic.seconds = o->duration;
    c->traffic.output_cap = o->max_output;
    c->workers = (uint32_t)o->workers;
    if (o->prefill_workers) c->prefill_workers = (uint32_t)o->prefill_workers;
    c->block_size = (uint32_t)o->block_size;
    c->blocks = (uint32_t)o->num_gpu_blocks;
    c->sequences = (uint32_t)o->max_num_seqs;
    c->tokens_per_pass = (uint32_t)o->max_num_batched_tokens;
    c->speed = o->engine_speed;
    c->routers = (uint32_t)o->routers;
    c->tell_ms = o->tell_ms;
    return 0;
}

/* Says what there is to serve, of the conversations their openings. */
static int survey(const struct offline *f)
{
    struct traffic *t = NULL;
    struct traffic_request r;
    char err[400];
    const char *why;
    double tokens = 0, last_s = 0;
    uint64_t n = 0;
    int rc = traffic_create(&f->base.traffic, &t, err, sizeof err);
    if (rc) {
        kvr_log_error("kvroute replay: %s: %s", f->base.traffic.kind == TRAFFIC_TRACE ? "--trace" : "--workload", err);
        return 2;
    }
    for (; (rc = traffic_next(t, &r)) == 1; n++) {
        tokens += (double)r.tokens_n;
        last_s = (double)r.arrival_ns / 1e9;
        traffic_request_free(&r);
    }
    if (replay_texts_check(&f->texts)) {
        traffic_destroy(t);
        return 2;
    }
    if (traffic_skipped(t, &why))
        kvr_log_warning("kvroute replay: --trace: %llu line(s) are no rows and left out, the first because: %s",
                        (unsigned long long)traffic_skipped(t, &why), why);
    traffic_destroy(t);
    bool talk = traffic_has(f->base.traffic.kind, TRAFFIC_TURNS);
    printf("%s: %llu %s in %.0f s, %.0f prompt tokens on average\n", traffic_name(f->base.traffic.kind), (unsigned long long)n,
           talk                                    ? "conversations"
           : f->base.traffic.kind == TRAFFIC_MIXED ? "conversations and single requests"
                                                   : "requests",
           last_s, n ? tokens / (double)n : 0);
    if (has_roles(f)) printf("%u of the workers compute prompts for the others where a policy has two legs\n", f->base.prefill_workers);
    printf("%u workers of %u blocks of %u tokens, engine speed %g; milliseconds, means over %llu seed(s)\n\n", f->base.workers,
           f->base.blocks, f->base.block_size, f->base.speed, (unsigned long long)f->o->seeds);
    return rc < 0 ? 1 : 0;
}

/* ---- runs -------------------------------------------------------------------------------------------- */

static void on_progress(void *ctx, size_t done, size_t runs)
{
    const struct offline *f = ctx;
    fflush(stdout);
    if (f->o->progress && isatty(2)) kvr_log("%s: run %zu of %zu", f->doing, done, runs);
}

static int run(struct offline *f, const char *doing, const struct sim_config *base, const struct sim_policy *const *policies, size_t n,
               struct sim_comparison *out)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    char err[400];
    struct sim_plan plan = {.base = base,
                            .policies = policies,
                            .policies_n = n,
                            .first_seed = base->traffic.seed,
                            .seeds = (uint32_t)f->o->seeds,
                            .threads = cpus > 1 ? (uint32_t)cpus : 1,
                            .progress = on_progress,
                            .ctx = f};
    f->doing = doing;
    int rc = sim_compare(&plan, out, err, sizeof err);
    if (rc) kvr_log_error("kvroute replay: --offline: %s", err);
    return rc == 0 ? 0 : rc == -KVR_EINVAL ? 2 : 1;
}

static bool is_answered(const struct offline *f, size_t policy)
{
    return sim_figure(sim_results_of(&f->c, policy), f->c.seeds, SIM_COMPLETED).value > 0;
}

/* Where no request is answered there is no best. */
static void find_best(struct offline *f)
{
    f->best = sim_best(&f->c, SIM_TTFT_MEAN);
    f->ours = f->policies_n;
    for (size_t p = 0; p < f->policies_n; p++) {
        if (!sim_policy_is_ours(f->policies[p]) || !is_answered(f, p)) continue;
        double v = sim_figure(sim_results_of(&f->c, p), f->c.seeds, SIM_TTFT_MEAN).value;
        if (f->ours == f->policies_n || v < sim_figure(sim_results_of(&f->c, f->ours), f->c.seeds, SIM_TTFT_MEAN).value) f->ours = p;
    }
}

static int try_changes(struct offline *f)
{
    struct sim_config more[CHANGES] = {f->base, f->base, f->base};
    more[1].blocks = (uint32_t)(f->base.blocks * 1.25);
    more[2].workers++;
    snprintf(f->changes[0].name, sizeof f->changes[0].name, "as it is");
    snprintf(f->changes[1].name, sizeof f->changes[1].name, "a quarter more cache: %u", more[1].blocks);
    snprintf(f->changes[2].name, sizeof f->changes[2].name, "one more worker: %u", more[2].workers);
    int rc = 0;
    for (size_t i = 1; rc == 0 && i < CHANGES; i++) rc = run(f, f->changes[i].name, &more[i], &f->policies[f->ours], 1, &f->changes[i].c);
    return rc;
}

/* ---- tables ------------------------------------------------------------------------------------------ */

static bool is_shown(const struct offline *f, const struct column *c)
{
    return has_roles(f) || !c->legs;
}

static void print_head(const struct offline *f, const char *first)
{
    printf("%-30s", first);
    for (size_t i = 0; i < KVR_ARRAY_LEN(columns); i++)
        if (is_shown(f, &columns[i])) printf("%*s", columns[i].width, columns[i].title);
}

static void print_figures(const struct offline *f, const char *name, const struct sim_result *r)
{
    printf("%-30s", name);
    for (size_t i = 0; i < KVR_ARRAY_LEN(columns); i++)
        if (is_shown(f, &columns[i])) printf("%*.*f", columns[i].width, columns[i].digits, sim_figure(r, f->c.seeds, columns[i].m).value);
}

static void print_ratio(const struct sim_result *a, const struct sim_result *b, size_t n)
{
    struct sim_ratio r = sim_ratio(a, b, n, SIM_TTFT_MEAN);
    if (a == b) printf("   1\n");
    else if (n > 1) printf("   %.2f (%.2f-%.2f)\n", r.value, r.low, r.high);
    else printf("   %.2f\n", r.value);
}

static void print_policies(const struct offline *f)
{
    size_t n = f->c.seeds;
    const struct sim_result *best = sim_results_of(&f->c, f->best);
    print_head(f, "policy");
    printf("   TTFT mean / best\n");
    for (size_t p = 0; p < f->policies_n; p++) {
        print_figures(f, sim_policy_name(f->policies[p]), sim_results_of(&f->c, p));
        print_ratio(sim_results_of(&f->c, p), best, n);
    }
}

static void print_best(const struct offline *f)
{
    size_t n = f->c.seeds;
    const struct sim_result *best = sim_results_of(&f->c, f->best);
    double refused = sim_figure(best, n, SIM_FAILED).value;
    bool answered = is_answered(f, f->best);
    printf("\n");
    if (answered) printf("Best by mean time to the first token: %s.", sim_policy_name(f->policies[f->best]));
    const char *with = " These seeds cannot tell it from";
    for (size_t p = 0; p < f->policies_n && n > 1 && answered; p++) {
        if (p == f->best || sim_ratio(sim_results_of(&f->c, p), best, n, SIM_TTFT_MEAN).low > 1) continue;
        printf("%s %s", with, sim_policy_name(f->policies[p]));
        with = ",";
    }
    if (answered) printf("%s\n", *with == ',' ? "." : "");
    if (refused > 0) printf("%.0f requests are longer than a cache of %u blocks can hold, and are refused.\n", refused, f->base.blocks);
}

static const struct sim_result *of_change(const struct offline *f, size_t i)
{
    return i ? sim_results_of(&f->changes[i].c, 0) : sim_results_of(&f->c, f->ours);
}

static void print_changes(const struct offline *f)
{
    char head[64];
    snprintf(head, sizeof head, "under %s", sim_policy_name(f->policies[f->ours]));
    printf("\n");
    print_head(f, head);
    printf("   TTFT mean / as it is\n");
    for (size_t i = 0; i < CHANGES; i++) {
        print_figures(f, f->changes[i].name, of_change(f, i));
        print_ratio(of_change(f, i), of_change(f, 0), f->c.seeds);
    }
}

/* ---- JSON -------------------------------------------------------------------------------------------- */

static void put_figures(struct kvr_buf *b, const char *label, const struct sim_result *r, size_t n)
{
    kvr_json_printf(b, "{'label':%s", label);
    for (size_t i = 0; i < KVR_ARRAY_LEN(columns); i++) kvr_json_put_double(b, columns[i].key, sim_figure(r, n, columns[i].m).value);
    kvr_json_printf(b, "'ttft_mean_ms_half_width':%g,'completed':%g,'failed':%g}", sim_figure(r, n, SIM_TTFT_MEAN).half,
                    sim_figure(r, n, SIM_COMPLETED).value, sim_figure(r, n, SIM_FAILED).value);
}

static int write_json(const struct offline *f)
{
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'seeds':%zu,'best':%p,'policies':[", (size_t)f->c.seeds,
                    is_answered(f, f->best) ? sim_policy_name(f->policies[f->best]) : NULL);
    for (size_t p = 0; p < f->policies_n; p++) put_figures(&b, sim_policy_name(f->policies[p]), sim_results_of(&f->c, p), f->c.seeds);
    kvr_json_printf(&b, "],'changes':[");
    for (size_t i = 0; i < CHANGES && f->ours < f->policies_n; i++) put_figures(&b, f->changes[i].name, of_change(f, i), f->c.seeds);
    kvr_json_printf(&b, "]}");
    return report_write(f->o->json, &b);
}

/* ---- life -------------------------------------------------------------------------------------------- */

int offline_main(const struct replay_options *o)
{
    struct offline f = {.o = o};
    int rc = replay_texts_open(o, &f.texts);
    if (rc == 0) rc = choose_policies(&f);
    if (rc == 0) rc = configure(&f);
    if (rc == 0) rc = survey(&f);
    if (rc == 0) rc = run(&f, "policies", &f.base, f.policies, f.policies_n, &f.c);
    if (rc == 0) {
        find_best(&f);
        print_policies(&f);
        print_best(&f);
    }
    if (rc == 0 && f.ours < f.policies_n) {
        rc = try_changes(&f);
        if (rc == 0) print_changes(&f);
    }
    if (rc == 0 && o->json && write_json(&f)) {
        kvr_log_error("kvroute replay: --report: cannot write '%s': %s", o->json, strerror(errno));
        rc = 1;
    }
    replay_texts_close(&f.texts);
    sim_comparison_free(&f.c);
    for (size_t i = 0; i < CHANGES; i++) sim_comparison_free(&f.changes[i].c);
    return rc;
}
