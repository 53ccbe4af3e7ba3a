/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Percentiles come from all samples up to a limit and from a uniform sample beyond it, so that memory is bounded however long a replay
 * runs.
 */
#include "app/replay/report.h"

#include <string.h>

#include "base/buf.h"

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
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 1024;
        s->v = realloc(s->v, s->cap * sizeof *s->v);
        KVR_ASSERT(s->v != NULL);
    }
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
        r->cached_tokens += o->usage.cached_tokens;
    }
    count(&r->workers, o->worker);
    if (o->has_prefill) count(&r->prefill_workers, o->prefill_worker);
    if (o->treatment[0]) count_treatment(r, o->treatment);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int by_id(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

void report_finish(struct report *r, double wall_s)
{
    struct series *all[] = {&r->ttft, &r->itl, &r->e2e};
    r->wall_s = wall_s;
    for (int i = 0; i < 3; i++)
        if (all[i]->n) qsort(all[i]->v, all[i]->n, sizeof(double), ascending);
    struct spread *spreads[] = {&r->workers, &r->prefill_workers};
    for (int i = 0; i < 2; i++)
        if (spreads[i]->n) qsort(spreads[i]->workers, spreads[i]->n, sizeof spreads[i]->workers[0], by_id);
}

static double percentile(const struct series *s, double p)
{
    if (s->n == 0) return 0;
    size_t at = (size_t)(p * (double)(s->n - 1) + 0.5);
    return s->v[at];
}

static double ratio(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 0;
}

void report_progress(const struct report *r, double elapsed_s, char *out, size_t cap)
{
    snprintf(out, cap, "%6.1f s: %llu done, %llu failed, %.1f req/s, cached %.1f %%", elapsed_s, (unsigned long long)r->ok,
             (unsigned long long)r->failed, elapsed_s > 0 ? (double)r->ok / elapsed_s : 0, 100 * ratio(r->cached_tokens, r->prompt_tokens));
}

uint64_t report_failures(const struct report *r)
{
    return r->failed;
}

enum figure {
    F_OK,
    F_FAILED,
    F_WALL,
    F_RATE,
    F_TOKENS,
    F_CACHED,
    F_TTFT_MEAN,
    F_TTFT50,
    F_TTFT90,
    F_TTFT99,
    F_ITL50,
    F_ITL99,
    F_E2E50,
    F_E2E99,
    FIGURES
};

static const struct {
    const char *name, *key;
    int digits;
} figures[FIGURES] = {
    {"requests ok", "successes", 0},
    {"requests failed", "errors", 0},
    {"wall time, s", "wall_s", 1},
    {"requests/s", "requests_per_s", 1},
    {"output tokens/s", "output_tokens_per_s", 0},
    {"cached-token ratio, %", "cached_token_ratio_pct", 1},
    {"TTFT mean, ms", "ttft_mean_ms", 1},
    {"TTFT p50, ms", "ttft_p50_ms", 1},
    {"TTFT p90, ms", "ttft_p90_ms", 1},
    {"TTFT p99, ms", "ttft_p99_ms", 1},
    {"ITL p50, ms", "itl_p50_ms", 2},
    {"ITL p99, ms", "itl_p99_ms", 2},
    {"E2E p50, ms", "e2e_p50_ms", 1},
    {"E2E p99, ms", "e2e_p99_ms", 1},
};

static double figure(const struct report *r, enum figure f)
{
    switch (f) {
    case F_OK: return (double)r->ok;
    case F_FAILED: return (double)r->failed;
    case F_WALL: return r->wall_s;
    case F_RATE: return r->wall_s > 0 ? (double)r->ok / r->wall_s : 0;
    case F_TOKENS: return r->wall_s > 0 ? (double)r->output_tokens / r->wall_s : 0;
    case F_CACHED: return 100 * ratio(r->cached_tokens, r->prompt_tokens);
    case F_TTFT_MEAN: return r->ttft.seen ? r->ttft.sum / (double)r->ttft.seen : 0;
    case F_TTFT50: return percentile(&r->ttft, 0.5);
    case F_TTFT90: return percentile(&r->ttft, 0.9);
    case F_TTFT99: return percentile(&r->ttft, 0.99);
    case F_ITL50: return percentile(&r->itl, 0.5);
    case F_ITL99: return percentile(&r->itl, 0.99);
    case F_E2E50: return percentile(&r->e2e, 0.5);
    case F_E2E99: return percentile(&r->e2e, 0.99);
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
    printf("%-24s", "");
    for (size_t i = 0; i < n; i++) printf("%16s", reports[i]->label);
    if (n == 2) printf("%12s", "ratio");
    printf("\n");
    for (enum figure f = 0; f < FIGURES; f++) {
        printf("%-24s", figures[f].name);
        for (size_t i = 0; i < n; i++) printf("%16.*f", figures[f].digits, figure(reports[i], f));
        if (n == 2 && f > F_FAILED && figure(reports[0], f) > 0) printf("%11.2fx", figure(reports[1], f) / figure(reports[0], f));
        printf("\n");
    }
    for (size_t i = 0; i < n; i++) {
        print_spread(reports[i]->label, "worker", &reports[i]->workers);
        if (reports[i]->prefill_workers.n) print_spread(reports[i]->label, "prefill worker", &reports[i]->prefill_workers);
        if (reports[i]->treatments_n) print_treatments(reports[i]);
        if (reports[i]->failed) printf("%s: first failure: %s\n", reports[i]->label, reports[i]->first_error);
    }
    fflush(stdout);
}

static void put_spread(struct kvr_buf *b, const char *key, const struct spread *s)
{
    char id[32];
    kvr_json_key(b, key);
    kvr_json_open(b, '{');
    for (size_t k = 0; k < s->n; k++) {
        snprintf(id, sizeof id, "%llu", (unsigned long long)s->workers[k].id);
        kvr_json_put_u64(b, id, s->workers[k].n);
    }
    kvr_json_close(b, '}');
}

static void put_report(struct kvr_buf *b, const struct report *r)
{
    kvr_json_open(b, '{');
    kvr_json_key(b, "label");
    kvr_json_str(b, r->label, strlen(r->label));
    for (enum figure f = 0; f < FIGURES; f++) {
        kvr_json_key(b, figures[f].key);
        kvr_json_double(b, figure(r, f));
    }
    kvr_json_put_u64(b, "prompt_tokens", r->prompt_tokens);
    kvr_json_put_u64(b, "cached_tokens", r->cached_tokens);
    kvr_json_put_u64(b, "output_tokens", r->output_tokens);
    kvr_json_put_u64(b, "answers_with_usage", r->with_usage);
    put_spread(b, "workers", &r->workers);
    put_spread(b, "prefill_workers", &r->prefill_workers);
    kvr_json_key(b, "treatments");
    kvr_json_open(b, '{');
    for (size_t k = 0; k < r->treatments_n; k++) kvr_json_put_u64(b, r->treatments[k].name, r->treatments[k].n);
    kvr_json_close(b, '}');
    kvr_json_key(b, "first_error");
    kvr_json_str(b, r->first_error, strlen(r->first_error));
    kvr_json_close(b, '}');
}

int report_write_json(struct report *const *reports, size_t n, const char *path)
{
    struct kvr_buf b = {0};
    FILE *f = fopen(path, "w");
    if (!f) return -1;
    kvr_json_open(&b, '[');
    for (size_t i = 0; i < n; i++) put_report(&b, reports[i]);
    kvr_json_close(&b, ']');
    size_t wrote = fwrite(b.data, 1, b.len, f);
    int rc = fclose(f) || wrote != b.len || b.failed ? -1 : 0;
    kvr_buf_free(&b);
    return rc;
}
