/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A linear model of the time to first token, fitted by least squares with forgetting over sums of constant size; select/ttft_line.h has
 * its line.
 */
#include "base/base.h"
#include "select/ttft_line.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <kvroute/select.h>

/* Tokens are counted in thousands, so that the regressors are of one size and the sums stay well-conditioned. */
enum { FEATURES = KVR_TTFT_FEATURES, OWN = 1, READ = 2 }; /* READ + a lower tier: what is read from it */
static const double KEEP = 0.995, TOKENS_UNIT = 1000, RIDGE = 0.1;
static const double PRIOR[FEATURES] = {1, 50, 0};
/* A share is held to where it begins as by so many that read 1,000 tokens, and is no more than MOST_SHARE. */
static const double SHARE_HOLD = 4, MOST_SHARE = 2;
/* No parameter is less. That of a token is so little that no engine computes as fast, but not 0: where times are all noise a token would be
 * free, and what is cached would not be looked at. */
static const double LEAST[FEATURES] = {0, 0.2, 0};
/* The price of waiting tokens is held to half that of own ones as by ten observations of 1,000. */
static const double AHEAD_HOLD = 10;
/* How fast the line between calm observations and others moves: up with each that is not calm, down (by a share) with each that is. One
 * in fifty is calm where it stands still at 1. */
static const double CALM_UP = 0.002, CALM_DOWN = 0.1;

static void set_line(struct kvr_ttft_model *m, const double theta[FEATURES])
{
    m->base_ms = theta[0];
    m->token_ms = theta[1] / TOKENS_UNIT;
    m->request_ms = theta[2];
}

static void set_ahead(struct kvr_ttft_model *m)
{
    double own = m->token_ms * TOKENS_UNIT, ahead = (m->ahead_xy + AHEAD_HOLD * own / 2) / (m->ahead_xx + AHEAD_HOLD);
    m->ahead_ms = KVR_MIN(ahead, own) / TOKENS_UNIT;
}

void kvr_ttft_weigh_tiers(struct kvr_ttft_model *m, double host_weight, double disk_weight)
{
    m->begins[KVR_TIER_HOST_PINNED] = 1 - host_weight;
    m->begins[KVR_TIER_DISK] = m->begins[KVR_TIER_EXTERNAL] = 1 - disk_weight;
    memcpy(m->share, m->begins, sizeof m->share);
}

void kvr_ttft_init(struct kvr_ttft_model *m)
{
    struct kvr_cost_config c;
    kvr_cost_config_init(&c);
    *m = (struct kvr_ttft_model){0};
    kvr_ttft_weigh_tiers(m, c.host_weight, c.disk_weight);
    set_line(m, PRIOR);
    set_ahead(m);
}

double kvr_ttft_predict(const struct kvr_ttft_model *m, double own, double ahead, double requests)
{
    return kvr__ttft_line(m, own, ahead, requests);
}

/* Has it been read from lately? */
static bool is_read(const struct kvr_ttft_model *m, int tier)
{
    return m->s[READ + tier][READ + tier] > 0;
}

/* What a parameter is held to, and how firmly. That of reading: to its share of what computing was last taken for; were it one price that
 * is held to the other, what is seen of reading would move that of computing. */
static double prior_of(const struct kvr_ttft_model *m, int i, double *hold)
{
    *hold = i > READ ? SHARE_HOLD : RIDGE;
    return i > READ ? m->begins[i - READ] * m->token_ms * TOKENS_UNIT : PRIOR[i];
}

/* What the sums say when the `active` parameters are fitted and the others are their least. The matrix is positive definite by the ridge.
 */
static void solve(const struct kvr_ttft_model *m, const bool active[FEATURES], double theta[FEATURES])
{
    double a[FEATURES][FEATURES + 1];
    int at[FEATURES], n = 0;
    for (int i = 0; i < FEATURES; i++)
        if (active[i]) at[n++] = i;
    for (int i = 0; i < n; i++) {
        double hold, prior = prior_of(m, at[i], &hold);
        for (int k = 0; k < n; k++) a[i][k] = m->s[at[i]][at[k]] + (i == k ? hold : 0);
        a[i][n] = m->t[at[i]] + hold * prior;
        for (int k = 0; k < FEATURES; k++)
            if (!active[k]) a[i][n] -= m->s[at[i]][k] * LEAST[k];
    }
    for (int i = 0; i < n; i++)
        for (int r = i + 1; r < n; r++) {
            double f = a[r][i] / a[i][i];
            for (int k = i; k <= n; k++) a[r][k] -= f * a[i][k];
        }
    for (int i = 0; i < FEATURES; i++) theta[i] = LEAST[i];
    for (int i = n - 1; i >= 0; i--) {
        double v = a[i][n];
        for (int k = i + 1; k < n; k++) v -= a[i][k] * theta[at[k]];
        theta[at[i]] = v / a[i][i];
    }
}

/* Takes out the parameter that is furthest below its least until none is. */
static void fit(struct kvr_ttft_model *m)
{
    bool active[FEATURES] = {true, true, true};
    double theta[FEATURES];
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) active[READ + t] = is_read(m, t);
    for (;;) {
        int worst = -1;
        solve(m, active, theta);
        for (int i = 0; i < FEATURES; i++)
            if (theta[i] < LEAST[i] && (worst < 0 || theta[i] - LEAST[i] < theta[worst] - LEAST[worst])) worst = i;
        if (worst < 0) break;
        active[worst] = false;
    }
    set_line(m, theta);
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++)
        m->share[t] = is_read(m, t) ? KVR_MIN(theta[READ + t] / theta[OWN], MOST_SHARE) : m->begins[t];
}

/* priced: what is computed, and at its share what is read. */
static void observe_calm(struct kvr_ttft_model *m, double own, const double read[KVR_TIER_COUNT], double priced, double requests, double ms)
{
    double x[FEATURES] = {1, own / TOKENS_UNIT, requests};
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) x[READ + t] = read[t] / TOKENS_UNIT;
    double error = fabs(ms - kvr_ttft_predict(m, priced, 0, requests)), wide = 3 * m->error_ms;
    bool warm = m->observations >= KVR_TTFT_WARM;
    double weight = warm && error > wide ? KVR_MAX(wide, 1e-3) / error : 1;
    for (int i = 0; i < FEATURES; i++) {
        m->t[i] = KEEP * m->t[i] + weight * x[i] * ms;
        for (int k = 0; k < FEATURES; k++) m->s[i][k] = KEEP * m->s[i][k] + weight * x[i] * x[k];
    }
    double share = warm ? 0.02 : 1.0 / (double)(m->observations + 1);
    m->error_ms += share * (KVR_MIN(error, warm ? 2 * wide + 1 : 1e9) - m->error_ms);
    m->observations++;
    m->calm -= CALM_DOWN * m->calm;
    fit(m);
}

static void observe_behind(struct kvr_ttft_model *m, double own, double ahead, double requests, double ms)
{
    double x = ahead / TOKENS_UNIT, most = 2 * m->token_ms * ahead + 3 * m->error_ms; /* what is more than that is no wait for tokens */
    double waited = KVR_MIN(KVR_MAX(ms - kvr_ttft_predict(m, own, 0, requests), 0.0), most);
    m->ahead_xy = KEEP * m->ahead_xy + waited * x;
    m->ahead_xx = KEEP * m->ahead_xx + x * x;
    m->calm += CALM_UP;
}

void kvr_ttft_observe_reads(struct kvr_ttft_model *m, double own, const double read[KVR_TIER_COUNT], double ahead, double requests,
                            double ms)
{
    double priced = own;
    if (!(own >= 0 && own < 1e9 && ahead >= 0 && ahead < 1e9 && requests >= 0 && requests < 1e6 && ms >= 0 && ms < 1e9)) return;
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) {
        if (!(read[t] >= 0 && read[t] < 1e9)) return;
        priced += m->share[t] * read[t];
    }
    if (ahead <= m->calm * priced) observe_calm(m, own + ahead / 2, read, priced + ahead / 2, requests, ms);
    else observe_behind(m, priced, ahead, requests, ms);
    set_ahead(m);
}

void kvr_ttft_observe(struct kvr_ttft_model *m, double own, double ahead, double requests, double ms)
{
    kvr_ttft_observe_reads(m, own, (const double[KVR_TIER_COUNT]){0}, ahead, requests, ms);
}

/* ---- a worker's factor ------------------------------------------------------------------------------- */

/* Workers that are alike differ by so much in what is seen of them; it would decide between them, where all of a choice is multiplied by
 * it. */
static const double BY_CHANCE = 0.1;

static void weigh_factor(struct kvr_ttft_factor *f)
{
    enum { LIKE_ONE = 10 };
    double raw = f->expected > 0 ? f->observed / f->expected : 1, value = (raw * f->weight + LIKE_ONE) / (f->weight + LIKE_ONE);
    value = value > 1 ? KVR_MAX(value - BY_CHANCE, 1.0) : KVR_MIN(value + BY_CHANCE, 1.0);
    f->value = KVR_MAX(0.1, KVR_MIN(value, 10.0));
}

void kvr_ttft_factor_init(struct kvr_ttft_factor *f)
{
    *f = (struct kvr_ttft_factor){.value = 1};
}

void kvr_ttft_factor_observe(struct kvr_ttft_factor *f, double predicted_ms, double ms)
{
    static const double KEPT = 0.98, MOST = 5;
    if (!(predicted_ms > 0 && predicted_ms < 1e9 && ms >= 0 && ms < 1e9)) return;
    f->observed = KEPT * f->observed + KVR_MIN(ms, MOST * predicted_ms);
    f->expected = KEPT * f->expected + predicted_ms;
    f->weight = KEPT * f->weight + 1;
    f->observations++;
    weigh_factor(f);
}

void kvr_ttft_factor_age(struct kvr_ttft_factor *f)
{
    f->observed /= 4;
    f->expected /= 4;
    f->weight /= 4;
    weigh_factor(f);
}
