/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine says of itself, asked as a router asks it (wire/engine_survey.h), beside what was given for it:
 *
 *     of a target of the command line   what was not given is taken from the engine; what was given wins, and a difference is named
 *     of a router's worker              nothing is taken, as the router is what is examined; a difference is named, unless the router has
 *                                       asked the engine too and says it itself
 *
 * An engine may not send us elsewhere: of an endpoint only the port is taken.
 */
#include "app/doctor/state.h"

#include <string.h>

#include "net/ingest/ingest.h"
#include "wire/engine_survey.h"

enum { BLOCK_SIZE_ASSUMED = 16 };

/* ---- asking -------------------------------------------------------------------------------------------------------- */

static void take_metrics(const struct kvr_fetched *got, struct kvr_engine_facts *f)
{
    struct kvr_prom_reader r = {.fn = kvr_engine_facts_sample, .ctx = f};
    if (got->status != 200) return;
    kvr_prom_feed(&r, got->body.data, got->body.len);
    kvr_prom_end(&r);
}

static void ask_all(struct doctor *d, const struct engine_target *t, const char *model, struct kvr_engine_facts *f)
{
    struct kvr_fetched got = {0};
    snprintf(f->model, sizeof f->model, "%s", model);
    for (enum kvr_survey_step step = KVR_SURVEY_METRICS; step < KVR_SURVEY_OVER; step = kvr_survey_next(f, step)) {
        bool ranks = step == KVR_SURVEY_RANKS;
        struct kvr_buf body = {0};
        char url[400];
        if (ranks && !d->o->probe) break;
        if (ranks) kvr_survey_rank_question(model, &body);
        kvr_buf_add(&body, "", 1);
        snprintf(url, sizeof url, "%s%s", t->url, kvr_survey_path(step));
        if (!body.failed) fetch(d, url, ranks ? body.data : NULL, ranks ? KVR_SURVEY_RANK_HEADER : "", engine_key(d, t), &got);
        kvr_buf_free(&body);
        if (got.status == 0) break; /* silent: the checks that follow say more */
        if (step == KVR_SURVEY_METRICS) take_metrics(&got, f);
        else kvr_survey_answer(f, step, got.status, d->json, got.body.data ? got.body.data : "", got.body.len);
    }
    kvr_fetched_free(&got);
}

/* ---- what was given, and what is so --------------------------------------------------------------------------------- */

#define DIFFERS(d, t, advice, ...)                                                                                                         \
    do {                                                                                                                                   \
        if (!(t)->asked_by_router) found((d), PROBLEM, (t)->subject, "configuration", (advice), __VA_ARGS__);                              \
    } while (0)

static void learn_block_size(struct doctor *d, struct engine_target *t, const struct kvr_engine_facts *f)
{
    if (t->block_size && f->block_size && t->block_size != f->block_size)
        DIFFERS(d, t, "give the engine's, or leave it out", "block-size %u was given, but the engine uses %u (%s)", t->block_size,
                f->block_size, f->block_size_from);
    if (!t->block_size && !f->block_size)
        found(d, UNKNOWN, t->subject, "configuration", "give block-size= if it is another",
              "the engine does not tell its block size; %d is assumed", BLOCK_SIZE_ASSUMED);
    if (!t->block_size) t->block_size = f->block_size ? f->block_size : BLOCK_SIZE_ASSUMED;
}

/* Several ranks: do prompts reach the one they are sent to? Without a question (--no-probe) none is sent. */
static void learn_naming(struct doctor *d, struct engine_target *t, const struct kvr_engine_facts *f, const char *text)
{
    uint32_t base = 0;
    if (f->ranks_n < 2 || !d->o->probe) return;
    t->names_rank = kvr_engine_facts_takes_ranks(f, &base);
    t->ranks_unnamed = !t->names_rank;
    if (t->names_rank) t->rank_base = base;
    else
        DIFFERS(
            d, t, "start one engine for each rank, or update it",
            "the engine has %s (%s), but does not take the header X-data-parallel-rank: the rank whose cache a request meets is unknown",
            text, f->ranks_from);
}

static void learn_ranks(struct doctor *d, struct engine_target *t, const struct kvr_engine_facts *f)
{
    char text[80];
    bool given = t->dp_size > 0;
    if (!given) t->dp_size = 1;
    if (f->ranks_n == 0 || f->too_many || !kvr_engine_facts_contiguous(f)) return;
    kvr_engine_facts_describe_ranks(f, text, sizeof text);
    learn_naming(d, t, f, text);
    if (given && (t->dp_size != f->ranks_n || t->dp_start != f->ranks[0].rank))
        DIFFERS(d, t, "leave dp-start and dp-size out", "dp-start=%u,dp-size=%u was given, but the engine has %s (%s)", t->dp_start,
                t->dp_size, text, f->ranks_from);
    if (given) return;
    t->dp_start = f->ranks[0].rank;
    t->dp_size = (uint32_t)f->ranks_n;
}

/* Those of ranks that were not given follow the first one's. */
static void spread(const struct engine_target *t, char (*list)[128])
{
    for (uint32_t r = 1; r < t->dp_size; r++)
        if (list[0][0] && !list[r][0] && !kvr_ingest_endpoint_shift(list[0], r, list[r], sizeof list[r])) list[r][0] = 0;
}

static void learn_endpoints(struct engine_target *t, const struct kvr_engine_facts *f)
{
    struct kvr_endpoint at;
    bool events = t->events[0][0] != 0, replay = t->replay[0][0] != 0;
    spread(t, t->events);
    spread(t, t->replay);
    if (kvr_endpoint_parse_any(t->url, strlen(t->url), &at)) return;
    for (uint32_t r = 0; r < t->dp_size; r++) {
        const struct kvr_engine_rank *e = kvr_engine_facts_rank(f, t->dp_start + r);
        if (!e || !e->events || events) continue; /* a replay endpoint is of its own stream alone */
        kvr_ingest_endpoint_at(at.host, e->events, t->events[r], sizeof t->events[r]);
        if (e->replay && !replay && !t->recover[0]) kvr_ingest_endpoint_at(at.host, e->replay, t->replay[r], sizeof t->replay[r]);
    }
}

static void tell_switches(struct doctor *d, const struct engine_target *t, const struct kvr_engine_facts *f)
{
    if (f->prefix_caching == KVR_TOLD_NO)
        DIFFERS(d, t,
                f->engine == KVR_FACT_SGLANG ? "start it without --disable-radix-cache" : "start it without --no-enable-prefix-caching",
                "prefix caching is off in the engine, so nothing can be reused");
    if (f->cached_tokens == KVR_TOLD_NO)
        DIFFERS(d, t, "start it with --enable-cache-report", "the engine does not tell cached tokens, so predictions cannot be checked");
}

void facts_learn(struct doctor *d, struct engine_target *t, const char *model, struct kvr_engine_facts *f)
{
    struct kvr_buf b = {0};
    if (t->url[0]) ask_all(d, t, model, f);
    if (f->block_size || f->ranks_n || f->events_from) {
        kvr_engine_facts_describe(f, &b);
        if (!b.failed) found(d, OK, t->subject, "configuration", "", "%.*s", (int)b.len, b.data);
        kvr_buf_free(&b);
    }
    learn_block_size(d, t, f);
    learn_ranks(d, t, f);
    if (!t->router[0]) learn_endpoints(t, f);
    tell_switches(d, t, f);
}

void facts_events_advice(const struct engine_target *t, const struct kvr_engine_facts *f, char *out, size_t cap)
{
    struct kvr_endpoint at;
    bool parsed = kvr_endpoint_parse_any(t->url, strlen(t->url), &at) == 0;
    if (f->events == KVR_TOLD_NO || f->unusable) snprintf(out, cap, "start the engine with %s", kvr_engine_facts_events_flag(f));
    else
        snprintf(out, cap,
                 "give events=tcp://%.60s:5557,replay=tcp://%.60s:5558, with the ports of the engine's --kv-events-config; without one: %s",
                 parsed ? at.host : "host", parsed ? at.host : "host", kvr_engine_facts_events_flag(f));
}
