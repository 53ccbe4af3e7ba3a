/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of each kind. Texts are numbered: a prompt is a beginning of one text (a shared one) and then a piece of its own.
 *
 *     number                  text
 *     ROOT + g                prefix of group g
 *     BURST_TEXT + k          prefix of burst k
 *     TRACE_TEXT + id         block of a trace
 *     OWN + session           what only this request or conversation says; the place is the place in the prompt
 */
#include <math.h>
#include <string.h>

#include "traffic/internal.h"

#define ROOT       (1ULL << 40)
#define BURST_TEXT (2ULL << 40)
#define TRACE_TEXT (3ULL << 40)
#define OWN        (1ULL << 60)

static double p(const struct traffic *t, enum traffic_param which)
{
    return t->cfg.param[which];
}

static bool is_talk(const struct traffic *t)
{
    return t->cfg.kind == TRAFFIC_CONVERSATIONS || t->cfg.kind == TRAFFIC_AGENTS;
}

/* A shared beginning, then the request's own piece. */
static int fill(const struct traffic *t, struct traffic_request *r, uint64_t text, uint64_t shared, uint64_t own)
{
    r->tokens_n = KVR_MAX((size_t)(shared + own), (size_t)1);
    r->tokens = malloc(r->tokens_n * sizeof *r->tokens);
    if (!r->tokens) return -KVR_ENOMEM;
    traffic_text(t, text, 0, shared, r->tokens);
    traffic_text(t, OWN + r->session, shared, r->tokens_n - shared, r->tokens + shared);
    return 1;
}

/* What a turn says and how long it takes to say it depends on nothing but these. */
static struct kvr_rng rng_of(const struct traffic *t, uint64_t session, uint32_t turn)
{
    return (struct kvr_rng){kvr_mix64(kvr_mix64(t->cfg.seed + 2) + kvr_mix64(session * 0x10001 + turn + 1))};
}

static uint64_t draw_output(const struct traffic *t, struct kvr_rng *r)
{
    return traffic_around(r, p(t, TRAFFIC_OUTPUT), p(t, TRAFFIC_OUTPUT_SPREAD));
}

static uint64_t draw_own(const struct traffic *t, struct kvr_rng *r)
{
    return traffic_around(r, p(t, TRAFFIC_OWN_TOKENS), p(t, TRAFFIC_OWN_SPREAD));
}

/* ---- openings ---------------------------------------------------------------------------------------- */

/* Popularity falls as 1 / rank. */
static uint64_t zipf(struct kvr_rng *r, double n)
{
    double rank = exp(kvr_rng_unit(r) * log(n + 1)) - 1;
    return (uint64_t)KVR_MIN(rank, n - 1);
}

static uint64_t clip(const struct traffic *t, double length)
{
    return (uint64_t)(KVR_MAX(KVR_MIN(length, p(t, TRAFFIC_LONGEST)), p(t, TRAFFIC_SHORTEST)) + 0.5);
}

static int open_talk(const struct traffic *t, struct kvr_rng *r, struct traffic_request *out)
{
    uint64_t group = kvr_rng_below(r, (uint32_t)p(t, TRAFFIC_GROUPS));
    uint64_t own = t->cfg.kind == TRAFFIC_AGENTS ? (uint64_t)p(t, TRAFFIC_FIRST_TOKENS) : draw_own(t, r);
    return fill(t, out, ROOT + group, (uint64_t)p(t, TRAFFIC_SYSTEM_TOKENS), own);
}

static int open_hot(const struct traffic *t, struct kvr_rng *r, struct traffic_request *out)
{
    bool hot = kvr_rng_unit(r) < p(t, TRAFFIC_HOT_SHARE);
    uint64_t group = hot ? 0 : 1 + kvr_rng_below(r, (uint32_t)p(t, TRAFFIC_GROUPS));
    return fill(t, out, ROOT + group, (uint64_t)p(t, hot ? TRAFFIC_HOT_TOKENS : TRAFFIC_SYSTEM_TOKENS), draw_own(t, r));
}

static int open_one(const struct traffic *t, struct kvr_rng *r, struct traffic_request *out)
{
    uint64_t system = (uint64_t)p(t, TRAFFIC_SYSTEM_TOKENS);
    out->output = draw_output(t, r);
    switch (t->cfg.kind) {
    case TRAFFIC_CONVERSATIONS:
    case TRAFFIC_AGENTS: return open_talk(t, r, out);
    case TRAFFIC_HOT: return open_hot(t, r, out);
    case TRAFFIC_SHARED: return fill(t, out, ROOT + zipf(r, p(t, TRAFFIC_GROUPS)), system, draw_own(t, r));
    case TRAFFIC_SIBLINGS: return fill(t, out, BURST_TEXT + out->session / (uint64_t)p(t, TRAFFIC_BURST), system, draw_own(t, r));
    case TRAFFIC_TAIL: return fill(t, out, 0, 0, clip(t, p(t, TRAFFIC_MEDIAN) * exp(p(t, TRAFFIC_SIGMA) * traffic_gauss(r))));
    case TRAFFIC_LONG_TAIL:
        return fill(t, out, 0, 0, clip(t, p(t, TRAFFIC_SHORTEST) / pow(1 - kvr_rng_unit(r), 1 / p(t, TRAFFIC_EXPONENT))));
    default: return fill(t, out, 0, 0, draw_own(t, r));
    }
}

/* ---- traces ------------------------------------------------------------------------------------------ */

/* Of what the row has in place of tokens. Returns: 1; 0: it is left out; -KVR_ENOMEM. */
static int take_row(struct traffic *t, struct kvr_trace_row *row, struct traffic_request *out)
{
    char why[160];
    if (row->text && traffic_text_ids(&t->cfg, row, &out->tokens, &out->tokens_n, why, sizeof why)) {
        traffic_rows_skip(t->rows, why);
        return 0;
    }
    if (row->text) {
        out->text = row->text;
        out->text_len = row->text_len;
        out->is_chat = row->is_chat;
        row->text = NULL;
        return 1;
    }
    out->tokens_n = row->input_length;
    out->tokens = malloc(row->input_length * sizeof(uint32_t));
    for (size_t i = 0; out->tokens && i < row->ids_n && i * KVR_TRACE_BLOCK < row->input_length; i++)
        traffic_text(t, TRACE_TEXT + row->ids[i], 0, KVR_MIN((size_t)KVR_TRACE_BLOCK, row->input_length - i * KVR_TRACE_BLOCK),
                     out->tokens + i * KVR_TRACE_BLOCK);
    return out->tokens ? 1 : -KVR_ENOMEM;
}

static int next_row(struct traffic *t, struct traffic_request *out)
{
    uint64_t most = (uint64_t)p(t, TRAFFIC_OUTPUT_MAX);
    struct kvr_trace_row row;
    double at_s;
    if (t->cfg.requests && t->opened == t->cfg.requests) return 0;
    for (int rc; (rc = traffic_rows_next(t->rows, &row, &at_s)) != 0;) {
        if (rc < 0) return rc;
        at_s /= p(t, TRAFFIC_SPEEDUP);
        bool late = t->cfg.seconds > 0 && at_s >= t->cfg.seconds;
        uint64_t output = KVR_MAX(row.output_length, (uint64_t)1);
        struct traffic_request r = {
            .arrival_ns = (uint64_t)(at_s * 1e9), .session = t->opened, .output = most ? KVR_MIN(output, most) : output};
        rc = late ? 0 : take_row(t, &row, &r);
        kvr_trace_row_free(&row);
        if (late || rc < 0) return rc;
        if (rc == 0) continue;
        t->opened++;
        *out = r;
        return 1;
    }
    return 0;
}

/* ---- the next and the following ---------------------------------------------------------------------- */

int traffic_shape_next(struct traffic *t, struct traffic_request *out)
{
    if (t->rows) return next_row(t, out);
    if (t->cfg.requests && t->promised >= t->cfg.requests) return 0;
    uint64_t burst = t->cfg.kind == TRAFFIC_SIBLINGS ? (uint64_t)p(t, TRAFFIC_BURST) : 1;
    uint64_t turns = is_talk(t) ? (uint64_t)p(t, TRAFFIC_TURNS) : 1;
    if (t->in_burst == 0) t->now_s += traffic_exponential(&t->rng, (double)(burst * turns) / t->cfg.rate);
    if (t->cfg.seconds > 0 && t->now_s >= t->cfg.seconds) return 0;
    t->in_burst = (t->in_burst + 1) % burst;
    struct traffic_request r = {.arrival_ns = (uint64_t)(t->now_s * 1e9), .session = t->opened++};
    struct kvr_rng rng = rng_of(t, r.session, 0);
    t->promised += turns;
    int rc = open_one(t, &rng, &r);
    if (rc == 1) *out = r;
    return rc;
}

static double think_s(const struct traffic *t, struct kvr_rng *r)
{
    double mean = p(t, TRAFFIC_THINK_S);
    if (t->cfg.kind == TRAFFIC_CONVERSATIONS) return traffic_exponential(r, mean);
    return mean * (1 + p(t, TRAFFIC_THINK_SPREAD) * (2 * kvr_rng_unit(r) - 1));
}

int traffic_shape_follow(struct traffic *t, const struct traffic_request *done, const uint32_t *answer, size_t answer_n, uint64_t now_ns,
                         struct traffic_request *out)
{
    if (!is_talk(t) || done->turn + 1 >= (uint32_t)p(t, TRAFFIC_TURNS)) return 0;
    struct kvr_rng rng = rng_of(t, done->session, done->turn + 1);
    struct traffic_request r = {.session = done->session, .turn = done->turn + 1, .output = draw_output(t, &rng)};
    size_t said = done->tokens_n + answer_n, own = draw_own(t, &rng);
    r.arrival_ns = now_ns + (uint64_t)(think_s(t, &rng) * 1e9);
    r.tokens_n = said + own;
    r.tokens = malloc(r.tokens_n * sizeof *r.tokens);
    if (!r.tokens) return -KVR_ENOMEM;
    memcpy(r.tokens, done->tokens, done->tokens_n * sizeof *r.tokens);
    if (answer_n) memcpy(r.tokens + done->tokens_n, answer, answer_n * sizeof *r.tokens);
    traffic_text(t, OWN + r.session, said, own, r.tokens + said);
    *out = r;
    return 1;
}
