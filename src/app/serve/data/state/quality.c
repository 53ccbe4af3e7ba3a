/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decision quality: best available overlap, chosen overlap (their difference is the regret), delivered overlap. The alarm:
 * a moving mean of |predicted - delivered| / prompt above a tenth says that cache predictions diverge from engine usage. What requests
 * ahead were computing is promised by nobody: whether it is delivered or not is no error.
 *
 * What choices were worth (choices.h): prompts computed where less of them was held, and why; times to first token beside what the best
 * other candidate would have taken. Counters are atomics of the data loops; the last minute is the main loop's.
 */
#include "app/serve/data/state/room.h"

#include <math.h>

#include "app/serve/workers/workers.h"
#include "base/log.h"
#include "wire/prom_page.h"

enum { ANSWERS_MIN = 50, LOG_EVERY_MS = 10000 };
static const double SHARE = 0.02, ALARM = 0.10, CALM = 0.05;

void quality_decided(struct data_plane *data, const struct kvr_router_result *r)
{
    struct data_counters *m = &data->counters;
    double required = (double)KVR_MAX(r->required_blocks, (uint64_t)1);
    kvr_histogram_add(&m->best_overlap, r->best_blocks / required);
    kvr_histogram_add(&m->regret, r->best_blocks - r->effective_blocks);
    if (r->waited_ns) kvr_histogram_add(&m->queue_wait, (double)r->waited_ns / 1e9);
}

struct quality_now quality_now(struct data_plane *data)
{
    struct quality *q = &data->quality;
    kvr_lock(&q->lock);
    struct quality_now now = {q->divergence, q->diverged};
    kvr_unlock(&q->lock);
    return now;
}

void quality_delivered(struct data_plane *data, const struct delivery *d)
{
    struct quality *q = &data->quality;
    uint64_t error = choices_error(d->predicted, d->pending, d->actual);
    double share = (double)error / (double)d->prompt;
    bool surprising = d->actual * 2 < d->predicted && d->predicted >= d->block_size, log = false;
    uint64_t now = kvr_now_ms(), skipped = 0;
    kvr_histogram_add(&data->counters.shortfall, (double)error / d->block_size);
    kvr_lock(&q->lock);
    q->answers++;
    q->divergence += KVR_MAX(SHARE, 1.0 / (double)q->answers) * (share - q->divergence);
    bool before = q->diverged;
    if (q->answers >= ANSWERS_MIN && q->divergence > ALARM) q->diverged = true;
    else if (q->divergence < CALM) q->diverged = false;
    bool turned = before != q->diverged, diverged = q->diverged;
    double divergence = q->divergence;
    if (surprising && (q->last_log_ms == 0 || now - q->last_log_ms >= LOG_EVERY_MS)) {
        log = true;
        skipped = q->unlogged;
        q->unlogged = 0;
        q->last_log_ms = now;
    } else if (surprising) {
        q->unlogged++;
    }
    kvr_unlock(&q->lock);
    if (log)
        kvr_log("kvroute: request %s: %llu cached tokens predicted on worker %llu rank %u, %llu delivered (%llu like it before)", d->id,
                (unsigned long long)d->predicted, (unsigned long long)d->worker.worker_id, d->worker.dp_rank, (unsigned long long)d->actual,
                (unsigned long long)skipped);
    if (turned && diverged)
        kvr_log_warning_of(kvr_log_key(0, 0, "diverge"),
                           "kvroute: cache predictions diverge from engine usage: %.1f %% of the prompt apart", 100 * divergence);
    else if (turned) kvr_log("kvroute: cache predictions agree again with engine usage: %.1f %% of the prompt apart", 100 * divergence);
}

/* ---- what choices were worth --------------------------------------------------------------------------- */

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void quality_answered(struct data_plane *data, const struct kvr_router_result *r, double temperature)
{
    struct data_counters *m = &data->counters;
    struct choices_verdict v = choices_judge(r, temperature > 0);
    count(&m->choices_total, 1);
    if (v.moved) count(&m->moves[v.reason], 1);
    if (v.again) count(&m->computed_again[v.reason], v.again);
}

double quality_first_token(struct data_plane *data, struct partition *partition, const struct kvr_router_result *r,
                           const struct decision_table *t, double ms)
{
    struct data_counters *m = &data->counters;
    struct kvr_ttft_question others[TABLE_ROWS + 1]; /* and itself, alone */
    size_t n = 0;
    double best = -1;
    for (uint32_t i = 0; t && i < t->n && r->scored; i++) {
        const struct decision_row *k = &t->rows[i];
        if (kvr_worker_cmp(k->worker, r->worker))
            others[n++] = (struct kvr_ttft_question){k->worker.worker_id, (double)k->own_tokens, (double)k->prefill_tokens,
                                                     (double)k->generating, -1};
    }
    others[n] = (struct kvr_ttft_question){r->worker.worker_id, (double)r->prefill_tokens, 0, 0, -1};
    if (!kvr_router_observe_ttft_beside(partition->router, r, ms, others, n + 1)) return -1;
    for (size_t i = 0; i < n; i++)
        if (others[i].ms >= 0 && (best < 0 || others[i].ms < best)) best = others[i].ms;
    if (best < 0) return -1;
    count(&m->choices_compared, 1);
    count(&m->choices_seen_us, (uint64_t)(ms * 1000));
    count(&m->choices_alone_us, (uint64_t)(KVR_MAX(others[n].ms, 0.0) * 1000));
    kvr_histogram_add(ms > best ? &m->choice_regret : &m->choice_gain, fabs(ms - best));
    return best;
}

/* Blocks that events have stored and removed, of all partitions. */
static void add_events(const struct data_plane *data, struct choices_totals *t)
{
    struct kvr_index_stats st;
    for (const struct partition *p = partitions_first(data->workers); p; p = p->next) {
        if (!p->index) continue;
        kvr_index_stats(p->index, &st);
        t->stored_blocks += st.stored_blocks;
        t->removed_blocks += st.removed_blocks;
    }
}

static struct choices_totals totals(struct data_plane *data)
{
    struct data_counters *m = &data->counters;
    struct choices_totals t = {.choices = atomic_load(&m->choices_total),
                               .compared = atomic_load(&m->choices_compared),
                               .seen_ms = (double)atomic_load(&m->choices_seen_us) / 1e3,
                               .alone_ms = (double)atomic_load(&m->choices_alone_us) / 1e3,
                               .regret_ms = atomic_load(&m->choice_regret.sum),
                               .gain_ms = atomic_load(&m->choice_gain.sum)};
    for (int i = 0; i < CHOICES_REASONS_N; i++) {
        t.moved[i] = atomic_load(&m->moves[i]);
        t.again[i] = atomic_load(&m->computed_again[i]);
    }
    add_events(data, &t);
    return t;
}

static struct choices_totals last_minute(struct data_plane *data)
{
    struct choices_totals now = totals(data);
    return choices_last_minute(&data->choices, &now);
}

void quality_tick(struct data_plane *data)
{
    char line[1024];
    struct choices_totals now = totals(data);
    if (choices_tick(&data->choices, &now, line, sizeof line)) kvr_log("kvroute: %s", line);
}

static void put_reasons(struct kvr_buf *b, const char *key, const uint64_t values[CHOICES_REASONS_N])
{
    kvr_json_key(b, key);
    kvr_json_open(b, '{');
    for (int i = 0; i < CHOICES_REASONS_N; i++) kvr_json_put_u64(b, choices_reason_name(i), values[i]);
    kvr_json_close(b, '}');
}

void quality_write(struct data_plane *data, struct kvr_buf *b)
{
    char line[1024];
    struct choices_totals m = last_minute(data);
    kvr_json_printf(b, "{'choices':%ju", m.choices);
    put_reasons(b, "moved", m.moved);
    put_reasons(b, "blocks_computed_again", m.again);
    kvr_json_printf(b,
                    "'stored_blocks':%ju,'removed_blocks':%ju,'compared':%ju,'ttft_ms':%g,'alone_ms':%g,'regret_ms':%g,'gain_ms':%g,"
                    "'advice':%s}",
                    m.stored_blocks, m.removed_blocks, m.compared, m.compared ? m.seen_ms / (double)m.compared : 0,
                    m.compared ? m.alone_ms / (double)m.compared : 0, m.compared ? m.regret_ms / (double)m.compared : 0,
                    m.compared ? m.gain_ms / (double)m.compared : 0, choices_advice(&m, line, sizeof line) ? line : "");
}

static void put_by_reason(struct kvr_prom_page *b, const char *name, const char *help, _Atomic uint64_t values[CHOICES_REASONS_N])
{
    kvr_prom_family(b, "kvroute_", name, "counter", help);
    for (int i = 0; i < CHOICES_REASONS_N; i++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("reason", choices_reason_name(i))), atomic_load(&values[i]));
}

void quality_metrics(struct data_plane *data, struct kvr_prom_page *b)
{
    struct choices_totals m = last_minute(data);
    put_by_reason(b, "prefix_moves_total", "Prompts of which another rank held half or more, and more than the chosen one",
                  data->counters.moves);
    put_by_reason(b, "blocks_computed_again_total", "Blocks that another rank held and the chosen one computed",
                  data->counters.computed_again);
    kvr_prom_one_double(b, "kvroute_", "evictions_per_stored_block", "gauge", "Blocks removed for each stored, in the last minute",
                        choices_evictions(&m));
}
