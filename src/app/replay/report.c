/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Percentiles come from all samples up to a limit and from a uniform sample beyond it, so that memory is bounded however long a replay
 * runs.
 */
#include "app/replay/report.h"

#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/order.h"

enum { WORKERS_MAX = 256, TREATMENTS_MAX = 8, SAMPLES_MAX = 1 << 20 };

/* Requests by worker; those of workers beyond the limit are not in it. */
struct spread {
    struct {
        uint64_t id, n;
    } workers[WORKERS_MAX];
    size_t n;
};

/* All samples up to a limit, then a uniform sample of them. */
struct series {
    double *v, sum;
    size_t n, cap;
    uint64_t seen;
};

struct report {
    char label[64], first_error[128];
    struct series ttft, itl, e2e;
    uint64_t ok, failed, prompt_tokens, cached_tokens, output_tokens, with_usage;
    uint64_t told_prompt_tokens; /* of answers that told how much was cached */
    struct spread workers, prefill_workers;
    struct {
        char name[16];
        uint64_t n;
    } treatments[TREATMENTS_MAX];
    size_t treatments_n;
    double wall_s;
    struct kvr_rng rng;
};

struct report *report_create(const char *label)
{
    struct report *r = calloc(1, sizeof *r);
    KVR_ASSERT(r != NULL);
    snprintf(r->label, sizeof r->label, "%s", label);
    return r;
}

void report_destroy(struct report *r)
{
    if (!r) return;
    free(r->ttft.v);
    free(r->itl.v);
    free(r->e2e.v);
    free(r);
}

static void add(struct report *r, struct series *s, double v)
{
    s->seen++;
    s->sum += v;
    if (s->n == SAMPLES_MAX) {
        uint64_t at = kvr_rng_next(&r->rng) % s->seen;
        if (at < SAMPLES_MAX) s->v[at] = v;
        return;
    }
    KVR_ASSERT(kvr_grow(&s->v, &s->cap, s->n + 1, sizeof *s->v));
    s->v[s->n++] = v;
}

static void count(struct spread *s, uint64_t worker)
{
    size_t i = 0;
    while (i < s->n && s->workers[i].id != worker) i++;
    if (i == WORKERS_MAX) return;
    if (i == s->n) s->workers[s->n++].id = worker;
    s->workers[i].n++;
}

static void count_treatment(struct report *r, const char *name)
{
    size_t i = 0;
    while (i < r->treatments_n && strcmp(r->treatments[i].name, name)) i++;
    if (i == TREATMENTS_MAX) return;
    if (i == r->treatments_n) snprintf(r->treatments[r->treatments_n++].name, sizeof r->treatments[0].name, "%s", name);
    r->treatments[i].n++;
}

void report_add(struct report *r, const struct outcome *o)
{
    if (o->error) {
        r->failed++;
        if (!r->first_error[0]) snprintf(r->first_error, sizeof r->first_error, "%.80s (status %d)", o->error, o->status);
        return;
    }
    r->ok++;
    if (o->ttft_ms > 0) add(r, &r->ttft, o->ttft_ms);
    if (o->itl_ms > 0) add(r, &r->itl, o->itl_ms);
    add(r, &r->e2e, o->e2e_ms);
    r->output_tokens += o->usage.present ? o->usage.completion_tokens : o->tokens;
    if (o->usage.present) {
        r->with_usage++;
        r->prompt_tokens += o->usage.prompt_tokens;
        r->cached_tokens += o->usage.has_cached ? o->usage.cached_tokens : 0;
        r->told_prompt_tokens += o->usage.has_cached ? o->usage.prompt_tokens : 0;
    }
    count(&r->workers, o->worker);
    if (o->has_prefill) count(&r->prefill_workers, o->prefill_worker);
    if (o->treatment[0]) count_treatment(r, o->treatment);
}

void report_finish(struct report *r, double wall_s)
{
    struct series *all[] = {&r->ttft, &r->itl, &r->e2e};
    r->wall_s = wall_s;
    for (int i = 0; i < 3; i++)
        if (all[i]->n) qsort(all[i]->v, all[i]->n, sizeof(double), kvr_rising_double);
    struct spread *spreads[] = {&r->workers, &r->prefill_workers};
    for (int i = 0; i < 2; i++)
        if (spreads[i]->n) qsort(spreads[i]->workers, spreads[i]->n, sizeof spreads[i]->workers[0], kvr_rising_u64);
}

static double percentile(const struct series *s, double p)
{
    if (s->n == 0) return 0;
    size_t at = (size_t)(p * (double)(s->n - 1) + 0.5);
    return s->v[at];
}

/* NAN: no answer told. */
static double cached_percent(const struct report *r)
{
    return r->told_prompt_tokens ? 100 * (double)r->cached_tokens / (double)r->told_prompt_tokens : NAN;
}

/* "-": not known. */
static const char *number_text(double v, int digits, char out[32])
{
    if (isnan(v)) return "-";
    snprintf(out, 32, "%.*f", digits, v);
    return out;
}

void report_progress(const struct report *r, double elapsed_s, char *out, size_t cap)
{
    char cached[32];
    snprintf(out, cap, "%6.1f s: %llu done, %llu failed, %.1f req/s, cached %s %%", elapsed_s, (unsigned long long)r->ok,
             (unsigned long long)r->failed, elapsed_s > 0 ? (double)r->ok / elapsed_s : 0, number_text(cached_percent(r), 1, cached));
}

uint64_t report_failures(const struct report *r)
{
    return r->failed;
}

static double per_second(const struct report *r, uint64_t n)
{
    return r->wall_s > 0 ? (double)n / r->wall_s : 0;
}

/* Figure, its title and digits in the table, its key in JSON, and what it is of a report r. */
/* clang-format off */
#define FIGURES(X) \
    X(OK, "requests ok", 0, "successes", (double)r->ok) \
    X(FAILED, "requests failed", 0, "errors", (double)r->failed) \
    X(WALL, "wall time, s", 1, "wall_s", r->wall_s) \
    X(RATE, "requests/s", 1, "requests_per_s", per_second(r, r->ok)) \
    X(TOKENS, "output tokens/s", 0, "output_tokens_per_s", per_second(r, r->output_tokens)) \
    X(CACHED, "cached-token ratio, %", 1, "cached_token_ratio_pct", cached_percent(r)) \
    X(TTFT_MEAN, "TTFT mean, ms", 1, "ttft_mean_ms", r->ttft.seen ? r->ttft.sum / (double)r->ttft.seen : 0) \
    X(TTFT50, "TTFT p50, ms", 1, "ttft_p50_ms", percentile(&r->ttft, 0.5)) \
    X(TTFT90, "TTFT p90, ms", 1, "ttft_p90_ms", percentile(&r->ttft, 0.9)) \
    X(TTFT99, "TTFT p99, ms", 1, "ttft_p99_ms", percentile(&r->ttft, 0.99)) \
    X(ITL50, "ITL p50, ms", 2, "itl_p50_ms", percentile(&r->itl, 0.5)) \
    X(ITL99, "ITL p99, ms", 2, "itl_p99_ms", percentile(&r->itl, 0.99)) \
    X(E2E50, "E2E p50, ms", 1, "e2e_p50_ms", percentile(&r->e2e, 0.5)) \
    X(E2E99, "E2E p99, ms", 1, "e2e_p99_ms", percentile(&r->e2e, 0.99))
/* clang-format on */

enum figure {
#define FIGURE(name, title, digits, key, value) F_##name,
    FIGURES(FIGURE)
#undef FIGURE
        FIGURE_COUNT
};

static const struct {
    const char *name, *key;
    int digits;
} figures[FIGURE_COUNT] = {
#define FIGURE(name, title, digits, key, value) {title, key, digits},
    FIGURES(FIGURE)
#undef FIGURE
};

static double figure(const struct report *r, enum figure f)
{
    switch (f) {
#define FIGURE(name, title, digits, key, value)                                                                                            \
    case F_##name: return value;
        FIGURES(FIGURE)
#undef FIGURE
    default: return 0;
    }
}

static void print_spread(const char *label, const char *by, const struct spread *s)
{
    printf("%s: requests by %s:", label, by);
    for (size_t k = 0; k < s->n; k++) printf(" %llu: %llu", (unsigned long long)s->workers[k].id, (unsigned long long)s->workers[k].n);
    printf("%s\n", s->n ? "" : " none");
}

static void print_treatments(const struct report *r)
{
    printf("%s: requests by treatment:", r->label);
    for (size_t k = 0; k < r->treatments_n; k++) printf(" %s: %llu", r->treatments[k].name, (unsigned long long)r->treatments[k].n);
    printf("\n");
}

void report_print(struct report *const *reports, size_t n)
{
    char text[32];
    printf("%-24s", "");
    for (size_t i = 0; i < n; i++) printf("%16s", reports[i]->label);
    if (n == 2) printf("%12s", "ratio");
    printf("\n");
    for (enum figure f = 0; f < FIGURE_COUNT; f++) {
        printf("%-24s", figures[f].name);
        for (size_t i = 0; i < n; i++) printf("%16s", number_text(figure(reports[i], f), figures[f].digits, text));
        if (n == 2 && f > F_FAILED && figure(reports[0], f) > 0 && !isnan(figure(reports[1], f)))
            printf("%11.2fx", figure(reports[1], f) / figure(reports[0], f));
        printf("\n");
    }
    for (size_t i = 0; i < n; i++) {
        print_spread(reports[i]->label, "worker", &reports[i]->workers);
        if (reports[i]->prefill_workers.n) print_spread(reports[i]->label, "prefill worker", &reports[i]->prefill_workers);
        if (reports[i]->treatments_n) print_treatments(reports[i]);
        if (reports[i]->ok && isnan(cached_percent(reports[i])))
            printf("%s: no answer told cached tokens (vLLM: --enable-prompt-tokens-details)\n", reports[i]->label);
        if (reports[i]->failed) printf("%s: first failure: %s\n", reports[i]->label, reports[i]->first_error);
    }
    fflush(stdout);
}

static void put_spread(struct kvr_buf *b, const struct spread *s)
{
    for (size_t k = 0; k < s->n; k++) kvr_json_printf(b, "'%ju':%ju", s->workers[k].id, s->workers[k].n);
}

static void put_report(struct kvr_buf *b, const struct report *r)
{
    kvr_json_printf(b, "{'label':%s", r->label);
    for (enum figure f = 0; f < FIGURE_COUNT; f++) kvr_json_put_double(b, figures[f].key, figure(r, f));
    kvr_json_printf(b, "'prompt_tokens':%ju,'cached_tokens':%ju,'output_tokens':%ju,'answers_with_usage':%ju", r->prompt_tokens,
                    r->cached_tokens, r->output_tokens, r->with_usage);
    kvr_json_printf(b, "'workers':{");
    put_spread(b, &r->workers);
    kvr_json_printf(b, "},'prefill_workers':{");
    put_spread(b, &r->prefill_workers);
    kvr_json_printf(b, "},'treatments':{");
    for (size_t k = 0; k < r->treatments_n; k++) kvr_json_put_u64(b, r->treatments[k].name, r->treatments[k].n);
    kvr_json_printf(b, "},'first_error':%s}", r->first_error);
}

int report_write_json(struct report *const *reports, size_t n, const char *path)
{
    struct kvr_buf b = {0};
    kvr_json_open(&b, '[');
    for (size_t i = 0; i < n; i++) put_report(&b, reports[i]);
    kvr_json_close(&b, ']');
    return report_write(path, &b);
}

int report_write(const char *path, struct kvr_buf *b)
{
    FILE *f = b->failed ? NULL : fopen(path, "w");
    bool wrote = f && fwrite(b->data, 1, b->len, f) == b->len;
    if (f && fclose(f)) wrote = false;
    kvr_buf_free(b);
    return wrote ? 0 : -1;
}
