/* SPDX-License-Identifier: Apache-2.0 */
/* What choices were worth, and the advice that follows from the last minute: choices.h. No state, no lock. */
#include "app/serve/data/state/choices.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/base.h"

uint64_t choices_error(uint64_t promised, uint64_t pending, uint64_t delivered)
{
    uint64_t most = KVR_MAX(promised, pending);
    if (delivered < promised) return promised - delivered;
    return delivered > most ? delivered - most : 0;
}

const char *choices_reason_name(enum choices_reason reason)
{
    static const char *const names[] = {
#define CHOICES_NAME(name, text) text,
        CHOICES_REASONS(CHOICES_NAME)
#undef CHOICES_NAME
    };
    return names[reason];
}

/* `lacks`: blocks that a candidate holds and the chosen rank does not. */
static enum choices_reason reason_of(const struct kvr_router_result *r, uint32_t lacks, bool chance)
{
    if (r->pinned) return CHOICES_PINNED;
    if (r->preferred) return CHOICES_SESSION;
    if (lacks == 0) return CHOICES_NOT_ELIGIBLE;
    if (2 * r->copy_blocks >= lacks) return CHOICES_COPY;
    return chance || !r->scored ? CHOICES_CHANCE : CHOICES_LOAD;
}

struct choices_verdict choices_judge(const struct kvr_router_result *r, bool chance)
{
    uint32_t has = KVR_MAX(r->held_blocks, r->pending_blocks);
    struct choices_verdict v = {0};
    if (r->longest_blocks <= has) return v;
    v.again = r->longest_blocks - has;
    v.moved = 2 * (uint64_t)r->longest_blocks >= r->required_blocks;
    v.reason = reason_of(r, r->most_blocks > has ? r->most_blocks - has : 0, chance);
    return v;
}

/* ---- the last minute ----------------------------------------------------------------------------------- */

struct choices_totals choices_last_minute(const struct choices_watch *w, const struct choices_totals *now)
{
    static const struct choices_totals start;
    const struct choices_totals *then = w->n < CHOICES_SECONDS ? &start : &w->past[w->n % CHOICES_SECONDS];
    struct choices_totals d = {.choices = now->choices - then->choices,
                               .stored_blocks = now->stored_blocks - then->stored_blocks,
                               .removed_blocks = now->removed_blocks - then->removed_blocks,
                               .compared = now->compared - then->compared,
                               .seen_ms = now->seen_ms - then->seen_ms,
                               .regret_ms = now->regret_ms - then->regret_ms,
                               .gain_ms = now->gain_ms - then->gain_ms,
                               .alone_ms = now->alone_ms - then->alone_ms};
    for (int i = 0; i < CHOICES_REASONS_N; i++) {
        d.moved[i] = now->moved[i] - then->moved[i];
        d.again[i] = now->again[i] - then->again[i];
    }
    return d;
}

double choices_evictions(const struct choices_totals *m)
{
    return m->stored_blocks ? (double)m->removed_blocks / (double)m->stored_blocks : 0;
}

/* Fewer say nothing, and so does a smaller share of them. */
enum { CHOICES_MIN = 50 };
static const double MOVED_SHARE = 0.05, LATER_SHARE = 0.25, WAITING_TIMES = 2;
/* From so many evictions for each stored block on the caches are full, and what is stored costs what was there. */
static const double FULL = 0.5;

struct line {
    char *out;
    size_t cap, len;
};

static void put(struct line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct line *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(l->out + l->len, l->cap - l->len, format, args);
    va_end(args);
    if (n > 0) l->len = KVR_MIN(l->len + (size_t)n, l->cap - 1);
}

/* 31200 -> 31,200 */
static void put_count(struct line *l, uint64_t v)
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)v);
    for (int i = 0; i < n; i++) put(l, i && (n - i) % 3 == 0 ? ",%c" : "%c", digits[i]);
}

static bool is_many(const struct choices_totals *m, uint64_t moved)
{
    return (double)moved >= MOVED_SHARE * (double)m->choices;
}

/* "; 38 WHY (31,200 blocks computed again)" */
static void put_moved(struct line *l, uint64_t moved, const char *why, uint64_t again)
{
    put(l, "; ");
    put_count(l, moved);
    put(l, " %s (", why);
    put_count(l, again);
    put(l, " blocks computed again)");
}

static bool put_load(struct line *l, const struct choices_totals *m)
{
    if (!is_many(m, m->moved[CHOICES_LOAD])) return false;
    put_moved(l, m->moved[CHOICES_LOAD], "moved away from their prefix by load", m->again[CHOICES_LOAD]);
    double evictions = choices_evictions(m);
    if (evictions >= FULL) put(l, ", caches evict %.2f blocks for each stored: more cache or another worker would help", evictions);
    else put(l, ": another worker would help");
    return true;
}

static bool put_not_eligible(struct line *l, const struct choices_totals *m)
{
    if (!is_many(m, m->moved[CHOICES_NOT_ELIGIBLE])) return false;
    put_moved(l, m->moved[CHOICES_NOT_ELIGIBLE], "had their prefix on a worker that could not be chosen", m->again[CHOICES_NOT_ELIGIBLE]);
    put(l, ": it was down, overloaded, tried before, or may not serve them");
    return true;
}

static bool put_bound(struct line *l, const struct choices_totals *m)
{
    uint64_t n = m->moved[CHOICES_PINNED] + m->moved[CHOICES_SESSION];
    if (!is_many(m, n)) return false;
    put_moved(l, n, "were sent away from their prefix by a pin or a session", m->again[CHOICES_PINNED] + m->again[CHOICES_SESSION]);
    return true;
}

static bool put_later(struct line *l, const struct choices_totals *m)
{
    double later = m->regret_ms - m->gain_ms;
    if (m->compared < CHOICES_MIN || later <= LATER_SHARE * m->seen_ms) return false;
    put(l, "; first tokens came %.3g ms later than the best other worker's would have, of %.3g: see kvroute_choice_regret_ms",
        later / (double)m->compared, m->seen_ms / (double)m->compared);
    return true;
}

/* Whether they wait behind each other. Where caches are full it may be that what they wait for is computed again; nobody knows here. */
static bool put_waiting(struct line *l, const struct choices_totals *m)
{
    double n = (double)m->compared, evictions = choices_evictions(m);
    if (m->compared < CHOICES_MIN || m->seen_ms <= WAITING_TIMES * m->alone_ms) return false;
    put(l, "; first tokens took %.4g ms, and would take %.4g on idle workers", m->seen_ms / n, m->alone_ms / n);
    if (evictions >= FULL)
        put(l, ", caches evict %.2f blocks for each stored: another worker, or more cache if prompts come back,", evictions);
    else put(l, ": another worker");
    put(l, " would help");
    return true;
}

size_t choices_advice(const struct choices_totals *m, char *out, size_t cap)
{
    struct line l = {out, cap, 0};
    if (m->choices < CHOICES_MIN) return 0;
    put(&l, "choices of the last minute: ");
    put_count(&l, m->choices);
    bool said = put_load(&l, m) || put_waiting(&l, m);
    said = put_not_eligible(&l, m) || said;
    said = put_bound(&l, m) || said;
    said = put_later(&l, m) || said;
    return said ? l.len : 0;
}

size_t choices_tick(struct choices_watch *w, const struct choices_totals *now, char *out, size_t cap)
{
    struct choices_totals m = choices_last_minute(w, now);
    w->past[w->n++ % CHOICES_SECONDS] = *now;
    if (w->said_at && w->n - w->said_at < CHOICES_SECONDS) return 0;
    size_t n = choices_advice(&m, out, cap);
    if (n) w->said_at = w->n;
    return n;
}
