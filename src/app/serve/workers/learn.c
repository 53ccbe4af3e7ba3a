/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is made of what an engine says of itself (wire/engine_facts.h).
 *
 *     entry of the worker (given) --+
 *                                   +--> the worker as it is used --> worker_add, when that differs from before
 *     facts ------------------------+--> notes: what differs from what was given, what is missing; each to stderr when it is new
 *
 * An SGLang says whether it computes prompts only, or goes on from them. Where the entry says otherwise, the worker would answer nothing
 * well, and is not chosen until one of the two is changed.
 *
 * What was given wins. An engine may not send us elsewhere: of the endpoints it tells only the port is taken, at the host of its own URL
 * (wire/engine_facts.c refuses ports below 1024).
 *
 * Ranks that were not given are used when it is certain that a request reaches the one it is sent to: vLLM is asked for a rank that cannot
 * be, and what it says of it shows that it reads the header, and how it counts. SGLang's own word is taken. Else the worker has one
 * place, its requests name no rank, and no events are followed, as nobody can tell whose cache a request will meet.
 */
#include "app/serve/workers/engines/learnt.h"
#include "app/serve/workers/learn.h"

#include <stdarg.h>
#include <string.h>

#include "app/serve/workers/table/room.h"
#include "app/serve/workers/table/roster.h"
#include "base/log.h"

/* ---- notes -------------------------------------------------------------------------------------------------------- */

static void note(struct learnt *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct learnt *l, const char *fmt, ...)
{
    va_list ap;
    if (l->notes_n == NOTES_MAX) return;
    va_start(ap, fmt);
    vsnprintf(l->notes[l->notes_n++], NOTE_MAX, fmt, ap);
    va_end(ap);
}

static bool is_noted(const struct learnt *l, const char *text)
{
    for (size_t i = 0; i < l->notes_n; i++)
        if (!strcmp(l->notes[i], text)) return true;
    return false;
}

static void tell_new(const struct worker *w, const struct learnt *before)
{
    const struct learnt *l = &w->learnt;
    if (l->found[0] && strcmp(l->found, before->found) != 0)
        kvr_log("kvroute: worker %llu (%.200s) says of itself: %s", (unsigned long long)w->id, w->url, l->found);
    for (size_t i = 0; i < l->notes_n; i++)
        if (!is_noted(before, l->notes[i]))
            kvr_log_warning_of(kvr_log_key(w->id, 0, l->notes[i]), "kvroute: worker %llu (%.200s): %s", (unsigned long long)w->id, w->url,
                               l->notes[i]);
}

/* ---- block size, blocks ------------------------------------------------------------------------------------------- */

static void learn_sizes(struct worker *w, const struct kvr_engine_facts *f)
{
    uint64_t blocks = kvr_engine_facts_blocks(f);
    if (blocks && !w->given.total_kv_blocks) w->learnt_kv_blocks = blocks;
    if (!f->block_size) return;
    char text[NOTE_MAX];
    if (w->given.block_size && kvr_engine_facts_other_size(f, w->block_size, text, sizeof text)) note(&w->learnt, "%s", text);
    if (w->given.block_size) return;
    w->block_size = f->block_size;
    w->block_size_known = true;
}

/* Requests go to the workers of one size. */
static void note_other_size_locked(const struct workers *ws, struct worker *w)
{
    for (const struct worker *o = ws->workers; o; o = o->next)
        if (o->id != w->id && o->block_size_known && o->block_size != w->block_size && !strcmp(o->model, w->model) &&
            !strcmp(o->group, w->group)) {
            note(&w->learnt, "its block size is %u, that of worker %llu is %u: requests go to the workers of the size that most have",
                 w->block_size, (unsigned long long)o->id, o->block_size);
            return;
        }
}

/* ---- ranks -------------------------------------------------------------------------------------------------------- */

static void learn_ranks(struct worker *w, const struct kvr_engine_facts *f)
{
    char text[80], other[NOTE_MAX];
    uint32_t base = 0;
    w->learnt.ranks_unknown = w->learnt.names_rank = false;
    if (f->ranks_n == 0 || !kvr_engine_facts_contiguous(f) || f->too_many) return;
    kvr_engine_facts_describe_ranks(f, text, sizeof text);
    bool certain = f->ranks_n == 1 || kvr_engine_facts_takes_ranks(f, &base);
    if (w->given.ranks && kvr_engine_facts_other_ranks(f, w->dp_start, w->dp_size, other, sizeof other)) note(&w->learnt, "%s", other);
    if (!certain && !(w->given.ranks && w->dp_size > 1)) {
        w->learnt.ranks_unknown = true;
        note(&w->learnt,
             "the engine has %s (%s), but does not take the header X-data-parallel-rank, so the rank whose cache a request meets is "
             "unknown: the worker is "
             "served by load; start one engine for each rank, or update it",
             text, f->ranks_from);
        return;
    }
    w->learnt.names_rank = f->ranks_n > 1;
    if (certain) w->rank_base = base;
    if (w->given.ranks) return;
    if (f->engine == KVR_FACT_SGLANG && f->ranks_n > 1) w->engine = ENGINE_SGLANG;
    w->dp_start = f->ranks[0].rank;
    w->dp_size = (uint32_t)f->ranks_n;
}

/* ---- roles -------------------------------------------------------------------------------------------------------- */

static enum worker_role role_of(enum kvr_told_mode mode)
{
    return mode == KVR_MODE_PREFILL ? ROLE_PREFILL : mode == KVR_MODE_DECODE ? ROLE_DECODE : ROLE_BOTH;
}

/* One whose prompts are handed over by other means may be an SGLang that knows nothing of roles. */
static void learn_role(struct worker *w, const struct kvr_engine_facts *f)
{
    bool parted = f->mode == KVR_MODE_PREFILL || f->mode == KVR_MODE_DECODE;
    w->misplaced = false;
    if (f->engine != KVR_FACT_SGLANG || f->mode == KVR_MODE_UNTOLD || !(parted || w->kv_protocol == KVR_KV_SGLANG)) return;
    if (!w->given.role) w->role = role_of(f->mode);
    if (!w->given.kv_protocol && parted) w->kv_protocol = KVR_KV_SGLANG;
    if (!w->given.bootstrap) w->bootstrap.port = w->role == ROLE_PREFILL ? f->bootstrap_port : 0;
    w->misplaced = w->role != role_of(f->mode);
    if (w->misplaced)
        note(&w->learnt, "role=%s was given, but the engine's disaggregation_mode is %s (/server_info): it gets no requests; give role=%s",
             role_name(w->role), parted ? role_name(role_of(f->mode)) : "null", role_name(role_of(f->mode)));
}

/* ---- events ------------------------------------------------------------------------------------------------------- */

static bool has_port(const char *endpoint, uint16_t port)
{
    const char *colon = strrchr(endpoint, ':');
    uint64_t n;
    return colon && kvr_parse_u64(colon + 1, strlen(colon + 1), 65535, &n) && n == port;
}

/* Those of ranks that were not given follow the first one's. */
static void spread_given(struct worker *w, enum rank_socket which)
{
    const char *first = w->ranks[0].endpoints[which];
    for (uint32_t r = 1; *first && r < w->dp_size; r++) {
        char *its = w->ranks[r].endpoints[which];
        if (!*its && !kvr_ingest_endpoint_shift(first, r, its, RANK_ENDPOINT_MAX)) *its = 0;
    }
}

static void learn_endpoints(struct worker *w, const struct kvr_engine_facts *f)
{
    if (w->given.events && !w->given.ranks) spread_given(w, RANK_EVENTS);
    if (w->given.replay && !w->given.ranks) spread_given(w, RANK_REPLAY);
    for (uint32_t r = 0; r < w->dp_size; r++) {
        const struct kvr_engine_rank *e = kvr_engine_facts_rank(f, w->dp_start + r);
        char *events = w->ranks[r].endpoints[RANK_EVENTS], *replay = w->ranks[r].endpoints[RANK_REPLAY];
        if (!w->given.events) *events = 0;
        if (!w->given.replay) *replay = 0;
        if (!e || !e->events) continue;
        if (!w->given.events) kvr_ingest_endpoint_at(w->endpoint.host, e->events, events, RANK_ENDPOINT_MAX);
        /* of this very stream, not of one that somebody makes of it */
        if (!w->given.replay && e->replay && !w->recover[0] && has_port(events, e->events))
            kvr_ingest_endpoint_at(w->endpoint.host, e->replay, replay, RANK_ENDPOINT_MAX);
    }
    worker_note_events(w);
}

static void note_unknown_events(struct worker *w)
{
    note(
        &w->learnt,
        "no KV events endpoint is known, so its requests are routed by load: give events=tcp://%.100s:5557,replay=tcp://%.100s:5558 in its "
        "entry, with the ports of the engine's --kv-events-config",
        w->endpoint.host, w->endpoint.host);
}

static void note_events(struct worker *w, const struct kvr_engine_facts *f)
{
    struct learnt *l = &w->learnt;
    const char *no_cache = kvr_engine_facts_no_cache(f);
    if (no_cache) note(l, "%s", no_cache);
    if (f->cached_tokens == KVR_TOLD_NO)
        note(l, "the engine does not tell cached tokens, so predictions cannot be checked: start it with --enable-cache-report");
    if (!w->has_events && f->events == KVR_TOLD_NO)
        note(l, "the engine publishes no KV events, so its requests are routed by load: start it with %s", kvr_engine_facts_events_flag(f));
    else if (!w->has_events && f->unusable)
        note(l, "its KV events are published where only its own machine can read them: give events=, or start the engine with %s",
             kvr_engine_facts_events_flag(f));
    else if (!w->has_events && !l->ranks_unknown) note_unknown_events(w);
    if (w->has_events && !w->ranks[0].endpoints[RANK_REPLAY][0] && !w->recover[0])
        note(l, "no replay endpoint is known, so what is lost on the way stays lost: %s",
             f->events_from ? "add \"replay_endpoint\":\"tcp://*:5558\" to the engine's --kv-events-config"
                            : "give replay=tcp://host:port");
}

/* ---- all of it ---------------------------------------------------------------------------------------------------- */

static void describe(struct worker *w, const struct kvr_engine_facts *f)
{
    struct kvr_buf b = {0};
    kvr_engine_facts_describe(f, &b);
    if (f->events_from && !w->given.events && w->has_events) {
        const char *replay = w->ranks[0].endpoints[RANK_REPLAY];
        kvr_buf_printf(&b, ", events %s", w->ranks[0].endpoints[RANK_EVENTS]);
        if (*replay) kvr_buf_printf(&b, " and replay %s", replay);
        kvr_buf_printf(&b, " (%s)", f->events_from);
    }
    bool anything = f->block_size || f->ranks_n || f->events_from;
    snprintf(w->learnt.found, NOTE_MAX, "%.*s", anything && !b.failed ? (int)b.len : 0, b.data ? b.data : "");
    kvr_buf_free(&b);
}

static void apply(const struct workers *ws, struct worker *w, const struct kvr_engine_facts *f)
{
    struct learnt *l = &w->learnt;
    l->notes_n = 0;
    l->facts = *f;
    l->answered = true;
    l->waits = false;
    learn_sizes(w, f);
    learn_ranks(w, f);
    learn_role(w, f);
    if (learns_events(ws)) {
        learn_endpoints(w, f);
        note_events(w, f);
    }
    describe(w, f);
}

/* Does what decides on partition, ranks or streams differ? */
static bool needs_adding(const struct worker *a, const struct worker *b)
{
    for (uint32_t r = 0; r < KVR_MIN(a->dp_size, b->dp_size); r++)
        for (int k = 0; k < RANK_SOCKETS; k++)
            if (strcmp(a->ranks[r].endpoints[k], b->ranks[r].endpoints[k]) != 0) return true;
    if (a->role != b->role || a->kv_protocol != b->kv_protocol || a->bootstrap.port != b->bootstrap.port || a->misplaced != b->misplaced)
        return true;
    return a->block_size != b->block_size || a->dp_start != b->dp_start || a->dp_size != b->dp_size || a->engine != b->engine ||
           a->learnt.waits != b->learnt.waits || a->learnt.ranks_unknown != b->learnt.ranks_unknown;
}

/* What was learnt without anything to be built anew. */
static void keep_locked(struct worker *w, const struct worker *now)
{
    w->learnt = now->learnt;
    w->rank_base = now->rank_base;
    w->block_size_known = now->block_size_known;
    if (w->learnt_kv_blocks == now->learnt_kv_blocks) return;
    w->learnt_kv_blocks = now->learnt_kv_blocks;
    kvr_router_set_limits(w->partition->router, w->id, w->max_num_batched_tokens,
                          w->total_kv_blocks ? w->total_kv_blocks : w->learnt_kv_blocks);
}

struct change {
    struct worker_spec now, before;
};

/* Returns: whether the worker has to be added anew with what is in k->now. */
static bool work_out_locked(struct workers *ws, struct worker *w, const struct kvr_engine_facts *f, struct change *k)
{
    struct worker *now = &k->now.w;
    worker_copy_locked(&k->before, w);
    worker_copy_locked(&k->now, w);
    if (f) {
        apply(ws, now, f);
        note_other_size_locked(ws, now);
    } else {
        now->learnt.waits = false;
        if (!now->learnt.answered && !now->learnt.notes_n && learns_events(ws) && !now->has_events && now->health == HEALTH_UP)
            note_unknown_events(now);
        if (!now->learnt.answered) now->misplaced = false; /* it is met where most are */
        if (!now->learnt.due_ms) now->learnt.due_ms = kvr_now_ms() + LEARN_AGAIN_MS;
    }
    bool anew = needs_adding(&k->before.w, now);
    if (!anew && w->learnt.facts.engine != now->learnt.facts.engine) roster_outdate_locked(ws); /* it says who is an SGLang */
    if (!anew) keep_locked(w, now);
    return anew;
}

static void add_anew(struct workers *ws, struct worker *now)
{
    char err[256];
    if (worker_add(ws, now, err, sizeof err) == 0) return;
    kvr_lock(&ws->lock);
    struct worker *w = worker_find_locked(ws, now->id);
    note(&now->learnt, "the worker cannot be used with its engine's settings: %.200s", err);
    now->learnt.waits = false;
    if (w) w->learnt = now->learnt;
    kvr_unlock(&ws->lock);
}

/* Nobody else changes the table: all who do run on the main loop. Without memory the engine is asked again. */
static void change(struct workers *ws, uint64_t id, const struct kvr_engine_facts *f)
{
    struct change *k = malloc(sizeof *k);
    kvr_lock(&ws->lock);
    struct worker *w = worker_find_locked(ws, id);
    if (w && !k) w->learnt.due_ms = kvr_now_ms() + LEARN_AGAIN_MS;
    bool anew = w && k && work_out_locked(ws, w, f, k);
    kvr_unlock(&ws->lock);
    if (w && k) {
        k->now.w.learns = true;
        if (anew) add_anew(ws, &k->now.w);
        tell_new(&k->now.w, &k->before.w.learnt);
    }
    free(k);
}

void learn(struct workers *ws, uint64_t id, const struct kvr_engine_facts *f)
{
    change(ws, id, f);
}

void learn_nothing(struct workers *ws, uint64_t id)
{
    change(ws, id, NULL);
}
