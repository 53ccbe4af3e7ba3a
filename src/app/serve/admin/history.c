/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last hour, as /history tells it: what the counters were every ten seconds, in a ring.
 *
 *     second --> how many wait; every tenth: a sample --> ring of POINTS + 1
 *
 * A point is the difference of two samples, so any two make one: the last minute is the difference of now and the newest that is a minute
 * old. Quantiles are those of the histogram's buckets, and exact within one: its ends are a factor of two apart. Nothing is counted for
 * this; a sample reads some thirty atomics of each model, and the ring has 120 kB. Main loop.
 */
#include "app/serve/admin/room.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "app/serve/data/data_plane.h"
#include "app/serve/workers/counts/model_counts.h"

enum { EVERY_S = 10, POINTS = 360, RECENT_MS = 60000, FAILURE_FIRST = END_WHOLE + 1, FAILURES_N = ENDS_N - FAILURE_FIRST };

struct sample {
    uint64_t at_ms, wall_ms;
    struct data_totals totals;
    uint64_t first_tokens[KVR_HISTOGRAM_BUCKETS_MAX + 1]; /* from a request's arrival, of all models */
    uint64_t waiting;                                     /* requests; in the ring: the most at any second since the one before */
    uint64_t failures[FAILURES_N];                        /* requests without a whole answer, by how they ended */
    const struct kvr_histogram *shape;                    /* of first_tokens */
};

struct history {
    struct sample ring[POINTS + 1];
    uint64_t n; /* taken so far */
    uint64_t most_waiting;
    unsigned seconds; /* since the last one */
};

/* ---- samples ------------------------------------------------------------------------------------------- */

static void add_waiting(void *ctx, const struct model_counts *m)
{
    uint64_t *sum = ctx;
    *sum += (uint64_t)KVR_MAX(atomic_load_explicit(&m->waiting, memory_order_relaxed), (int64_t)0);
}

static void add_model(void *ctx, const struct model_counts *m)
{
    struct sample *s = ctx;
    s->shape = &m->first_token;
    for (int i = 0; i <= m->first_token.buckets; i++)
        s->first_tokens[i] += atomic_load_explicit(&m->first_token.counts[i], memory_order_relaxed);
    for (int i = 0; i < FAILURES_N; i++) s->failures[i] += atomic_load_explicit(&m->ends[FAILURE_FIRST + i], memory_order_relaxed);
}

static uint64_t waiting_now(struct admin *admin)
{
    uint64_t n = 0;
    model_counts_each(admin->workers, add_waiting, &n);
    return n;
}

static struct sample take(struct admin *admin, uint64_t waiting)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    struct sample s = {.at_ms = kvr_now_ms(),
                       .wall_ms = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000,
                       .totals = data_plane_totals(admin->data),
                       .waiting = waiting};
    model_counts_each(admin->workers, add_model, &s);
    return s;
}

/* back 1: the newest. */
static const struct sample *sample_at(const struct history *h, uint64_t back)
{
    return &h->ring[(h->n - back) % (POINTS + 1)];
}

static uint64_t samples(const struct history *h)
{
    return KVR_MIN(h->n, (uint64_t)(POINTS + 1));
}

/* The first is of the start, when nothing had been counted. */
struct history *history_create(uint64_t started_ms)
{
    struct history *h = calloc(1, sizeof *h);
    if (h) h->ring[h->n++].at_ms = started_ms;
    return h;
}

void history_destroy(struct history *h)
{
    free(h);
}

void history_second(struct admin *admin)
{
    struct history *h = admin->history;
    h->most_waiting = KVR_MAX(h->most_waiting, waiting_now(admin));
    if (++h->seconds < EVERY_S) return;
    h->ring[h->n % (POINTS + 1)] = take(admin, h->most_waiting);
    h->n++;
    h->most_waiting = 0;
    h->seconds = 0;
}

/* ---- points -------------------------------------------------------------------------------------------- */

/* Of what came between two samples, in ms; NAN: nothing. */
static double quantile(const struct sample *from, const struct sample *to, double q)
{
    const struct kvr_histogram *h = to->shape;
    double sum = 0, low = 0;
    for (int i = 0; i <= h->buckets; i++) sum += (double)(to->first_tokens[i] - from->first_tokens[i]);
    if (sum <= 0) return NAN;
    double left = q * sum;
    for (int i = 0; i < h->buckets; i++) {
        double n = (double)(to->first_tokens[i] - from->first_tokens[i]);
        if (n > 0 && left <= n) return 1000 * (low + (h->ends[i] - low) * left / n);
        left -= n;
        low = h->ends[i];
    }
    return 1000 * low;
}

/* To as many digits as mean something. */
static void put_rounded(struct kvr_buf *b, const char *key, double v, double unit)
{
    kvr_json_put_double(b, key, round(v / unit) * unit);
}

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : NAN;
}

static void put_point(struct kvr_buf *b, const struct sample *from, const struct sample *to)
{
    const struct data_totals *x = &from->totals, *y = &to->totals;
    uint64_t prompt = y->prompt_tokens - x->prompt_tokens;
    kvr_json_printf(b, "{'at_ms':%ju,'seconds':%g,'requests':%ju,'errors':%ju", to->wall_ms, (double)(to->at_ms - from->at_ms) / 1000,
                    y->requests - x->requests, y->errors - x->errors);
    put_rounded(b, "predicted_hit_rate", share(y->predicted_cached_tokens - x->predicted_cached_tokens, prompt), 1.0 / 8192);
    put_rounded(b, "hit_rate", share(y->actual_cached_tokens - x->actual_cached_tokens, prompt), 1.0 / 8192);
    put_rounded(b, "ttft_p50_ms", quantile(from, to, 0.5), 0.5);
    put_rounded(b, "ttft_p99_ms", quantile(from, to, 0.99), 0.5);
    kvr_json_printf(b, "'waiting':%ju,'failures':{", to->waiting);
    for (int i = 0; i < FAILURES_N; i++)
        if (to->failures[i] > from->failures[i])
            kvr_json_put_u64(b, request_end_name(FAILURE_FIRST + i), to->failures[i] - from->failures[i]);
    kvr_json_printf(b, "}}");
}

void history_recent_write(struct admin *admin, struct kvr_buf *b)
{
    const struct history *h = admin->history;
    struct sample now = take(admin, waiting_now(admin));
    uint64_t back = 1;
    while (back < samples(h) && now.at_ms - sample_at(h, back)->at_ms < RECENT_MS) back++;
    put_point(b, sample_at(h, back), &now);
}

void history_get(struct admin *admin, struct kvr_http_conn *c)
{
    const struct history *h = admin->history;
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'every_s':%u,'points':[", EVERY_S);
    for (uint64_t back = samples(h); back > 1; back--) put_point(&b, sample_at(h, back), sample_at(h, back - 1));
    kvr_json_printf(&b, "]}");
    admin_reply(c, 200, &b);
}
