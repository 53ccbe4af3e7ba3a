/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uniform    prompts of 500 to 2,500 tokens that share nothing
 * shared     64 prefixes of 4,096 tokens, popular ones more often (Zipf), each with 256 tokens of its own
 * agents     sessions of 12 turns; each turn adds 400 to 1,600 tokens to what was said, after 0.5 to 3 s
 * siblings   bursts of 32 requests at once with one new prefix of 4,096 tokens and 128 of their own
 * long tail  prompts from 200 to 32,000 tokens, Pareto with exponent 1.1, that share nothing
 */
#include "app/sim/workload.h"

#include <math.h>
#include <string.h>

enum { PREFIXES = 64, PREFIX = 4096, BURST = 32, TURNS = 12, FIRST_TURN = 1500 };

struct sim_workload_state {
    struct sim_config cfg;
    struct kvr_rng rng;
    uint64_t now_ns;
    uint32_t made, sessions;
};

const char *sim_workload_name(enum sim_workload w)
{
    static const char *const names[] = {"uniform", "shared prefixes", "agents", "bursts of siblings", "long tail"};
    return names[w];
}

struct sim_workload_state *sim_workload_new(const struct sim_config *config)
{
    struct sim_workload_state *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->cfg = *config;
    w->rng.state = config->seed;
    return w;
}

void sim_workload_free(struct sim_workload_state *w)
{
    free(w);
}

static uint32_t between(struct sim_workload_state *w, uint32_t lo, uint32_t hi)
{
    return lo + kvr_rng_below(&w->rng, hi - lo + 1);
}

static double exponential(struct sim_workload_state *w, double mean)
{
    return -log(1 - kvr_rng_unit(&w->rng)) * mean;
}

/* Tokens [from, from + n) of text number `text`. */
static void write_text(uint32_t *out, uint64_t text, size_t from, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = (uint32_t)kvr_mix64(text * 0x9e3779b97f4a7c15ULL + from + i) & 0xffff;
}

static bool fill(struct sim_request *rq, uint64_t shared_text, size_t shared, uint64_t own_text, size_t own)
{
    rq->tokens_n = shared + own;
    rq->tokens = malloc((rq->tokens_n + 1) * sizeof *rq->tokens);
    if (!rq->tokens) return false;
    write_text(rq->tokens, shared_text, 0, shared);
    write_text(rq->tokens + shared, own_text, 0, own);
    return true;
}

/* Popularity falls as 1 / rank. */
static uint32_t zipf(struct sim_workload_state *w, uint32_t n)
{
    double u = kvr_rng_unit(&w->rng) * log(n + 1.0);
    return (uint32_t)KVR_MIN(exp(u) - 1, n - 1.0);
}

/* Mean time between arrivals for a fleet of 8, in milliseconds; other sizes and loads scale it. */
static double gap_ms(const struct sim_workload_state *w, double mean_at_8)
{
    return mean_at_8 * 8 / w->cfg.workers / w->cfg.load;
}

static bool next_agent(struct sim_workload_state *w, struct sim_request *out)
{
    uint32_t sessions = w->cfg.requests / TURNS;
    if (w->sessions == sessions) return false;
    w->now_ns += (uint64_t)(exponential(w, gap_ms(w, 175)) * 1e6);
    *out = (struct sim_request){.arrival_ns = w->now_ns, .session = w->sessions++, .osl = between(w, 50, 200)};
    return fill(out, 7, 800, 1000000 + out->session, FIRST_TURN);
}

bool sim_workload_next(struct sim_workload_state *w, struct sim_request *out)
{
    if (w->cfg.workload == SIM_AGENTS) return next_agent(w, out);
    if (w->made == w->cfg.requests) return false;
    uint64_t own = 1000000 + w->made;
    bool ok = false;
    *out = (struct sim_request){.osl = between(w, 50, 150)};
    switch (w->cfg.workload) {
    case SIM_UNIFORM:
        w->now_ns += (uint64_t)(exponential(w, gap_ms(w, 11)) * 1e6);
        ok = fill(out, 0, 0, own, between(w, 500, 2500));
        break;
    case SIM_SHARED:
        w->now_ns += (uint64_t)(exponential(w, gap_ms(w, 12)) * 1e6);
        ok = fill(out, 100 + zipf(w, PREFIXES), PREFIX, own, 256);
        break;
    case SIM_SIBLINGS:
        if (w->made % BURST == 0) w->now_ns += (uint64_t)(exponential(w, gap_ms(w, 10) * BURST) * 1e6);
        ok = fill(out, 100 + w->made / BURST, PREFIX, own, 128);
        break;
    default: {
        double length = 200 / pow(1 - kvr_rng_unit(&w->rng), 1 / 1.1);
        w->now_ns += (uint64_t)(exponential(w, gap_ms(w, 11)) * 1e6);
        ok = fill(out, 0, 0, own, (size_t)KVR_MIN(length, 32000.0));
    }
    }
    out->arrival_ns = w->now_ns;
    w->made++;
    return ok;
}

bool sim_workload_follow(struct sim_workload_state *w, const struct sim_request *done, uint64_t now_ns, struct sim_request *out)
{
    if (w->cfg.workload != SIM_AGENTS || done->turn + 1 == TURNS) return false;
    size_t added = done->osl + between(w, 400, 1600);
    *out = (struct sim_request){.arrival_ns = now_ns + (uint64_t)(between(w, 500, 3000)) * 1000000,
                                .session = done->session,
                                .turn = done->turn + 1,
                                .osl = between(w, 50, 200),
                                .tokens_n = done->tokens_n + added};
    out->tokens = malloc(out->tokens_n * sizeof *out->tokens);
    if (!out->tokens) return false;
    memcpy(out->tokens, done->tokens, done->tokens_n * sizeof *out->tokens);
    write_text(out->tokens + done->tokens_n, 1000000 + done->session, 100000 + done->tokens_n, added);
    return true;
}
