/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A target is a URL; what answers there is told by its routes:
 *
 *     /workers with "views"       a router or selection service, at its admin port: each worker, then its engine
 *     /workers with "listeners"   an indexer: each listener, then its stream
 *     /status with "ranks"        a sidecar (kvroute publish)
 *     /v1/models and /ready       a router's data port: a prompt twice, predicted against cached
 *     /v1/models                  an engine
 */
#include "app/doctor/state.h"

#include <string.h>

#include "base/log.h"
#include "net/http/access.h"
#include "net/http/ending.h"
#include "net/ingest/ingest.h"

/* ---- small readers --------------------------------------------------------------------------------------------------- */

static void text_of(struct kvr_json o, const char *key, char *out, size_t cap)
{
    const char *s;
    size_t n;
    out[0] = 0;
    if (kvr_json_as_str(kvr_json_get(o, key), &s, &n)) snprintf(out, cap, "%.*s", (int)KVR_MIN(n, cap - 1), s);
}

static uint64_t number_of(struct kvr_json o, const char *key, uint64_t fallback)
{
    uint64_t v = fallback;
    (void)kvr_json_as_u64(kvr_json_get(o, key), &v);
    return v;
}

static bool true_of(struct kvr_json o, const char *key)
{
    return kvr_json_is_true(kvr_json_get(o, key));
}

static bool get(struct doctor *d, const char *base, const char *path, struct kvr_fetched *f, struct kvr_json *out)
{
    char url[400];
    snprintf(url, sizeof url, "%s%s", base, path);
    fetch(d, url, NULL, "", d->key, f);
    return fetched_json(d, f, out);
}

/* ---- routers and selection services ---------------------------------------------------------------------------------- */

static void take_endpoints(struct kvr_json list, const struct engine_target *t, char (*out)[128])
{
    for (uint32_t r = 0; r < t->dp_size; r++) {
        char rank[16];
        snprintf(rank, sizeof rank, "%u", t->dp_start + r);
        text_of(list, rank, out[r], 128);
    }
}

#define PARTIAL_HINT "it predicts too little until it is whole again; a longer replay buffer (vLLM: buffer_steps) reaches further back"

static bool is_partial(struct kvr_json view)
{
    return kvr_json_is_str(kvr_json_get(view, "view"), "partial");
}

enum { SMALL_BUFFER = 1000 };

/* How far the engine's replay buffer reached back when the router asked it for everything. */
static void report_reach(struct doctor *d, const char *subject, unsigned rank, struct kvr_json v)
{
    unsigned long long batches = number_of(v, "buffer_batches", 0), first = number_of(v, "buffer_first", 0);
    double seconds = 0;
    (void)kvr_json_as_double(kvr_json_get(v, "buffer_seconds"), &seconds);
    if (!batches) return;
    const char *hint = first && batches < SMALL_BUFFER
                           ? "few: a router that is away for longer begins with a partial view; --data-dir, or vLLM's buffer_steps"
                           : "";
    found(d, OK, subject, "replay buffer", hint,
          first ? "rank %u keeps %llu batches, %.0f s of them" : "rank %u has all %llu batches, %.0f s of them", rank, batches, seconds);
}

/* Answers of a whole view that had more than it, and too many to be by chance. */
static void report_untold(struct doctor *d, const char *subject, unsigned rank, struct kvr_json v)
{
    enum { LEAST = 8, SHARE = 20 };
    struct kvr_json e = kvr_json_get(v, "evidence");
    unsigned long long untold = number_of(e, "untold", 0), fine = number_of(e, "fine", 0);
    if (untold >= LEAST && untold * SHARE >= fine)
        found(d, PROBLEM, subject, "lower tiers", TIERS_ADVICE,
              "rank %u: %llu answers had more cached than its events told of: a tier behind the device (offloading) tells nothing", rank,
              untold);
}

/* What events have told of the tiers behind the device. */
static void report_tiers(struct doctor *d, const char *subject, unsigned rank, struct kvr_json v)
{
    struct kvr_json tiers = kvr_json_get(v, "tiers");
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) {
        const char *name = kvr_tier_name((enum kvr_tier)t);
        struct kvr_json x = kvr_json_get(tiers, name);
        if (kvr_json_type_of(x) == KVR_JSON_NONE) continue;
        unsigned long long unplaced = number_of(x, "unplaced", 0);
        found(d, unplaced ? UNKNOWN : OK, subject, "lower tiers", unplaced ? TIERS_ADVICE : "",
              "rank %u: %s has %llu blocks, read by %llu, %llu without a known place", rank, name,
              (unsigned long long)number_of(x, "blocks", 0), (unsigned long long)number_of(x, "chunk_blocks", 0), unplaced);
    }
    report_untold(d, subject, rank, v);
}

/* Events of one of its ranks come by the event plane. */
static bool is_of_plane(struct kvr_json views)
{
    bool any = false;
    for (struct kvr_json_iter i = kvr_json_iter(views); kvr_json_next(&i);)
        any |= kvr_json_is_str(kvr_json_get(i.value, "endpoint"), "plane");
    return any;
}

static void report_views(struct doctor *d, const char *subject, struct kvr_json views)
{
    for (struct kvr_json_iter i = kvr_json_iter(views); kvr_json_next(&i);) {
        struct kvr_json v = i.value;
        char reason[160], trust[16];
        text_of(v, "reason", reason, sizeof reason);
        text_of(v, "trust", trust, sizeof trust);
        unsigned rank = (unsigned)number_of(v, "dp_rank", 0);
        unsigned long long blocks = number_of(v, "blocks", 0);
        if (is_partial(v)) found(d, OK, subject, "view", PARTIAL_HINT, "rank %u is partial, %llu blocks: %s", rank, blocks, reason);
        else if (true_of(v, "trusted")) found(d, OK, subject, "view", "", "rank %u is whole, %llu blocks", rank, blocks);
        else
            found(d, PROBLEM, subject, "view", "its requests are routed by load; the checks below say why", "rank %u is %s: %s", rank,
                  trust, reason);
        report_reach(d, subject, rank, v);
        report_tiers(d, subject, rank, v);
    }
}

/* What the router has found wrong with what the engine says of itself. */
static void report_notes(struct doctor *d, const char *subject, struct kvr_json notes)
{
    for (struct kvr_json_iter i = kvr_json_iter(notes); kvr_json_next(&i);) {
        const char *s;
        size_t n;
        if (kvr_json_as_str(i.value, &s, &n)) found(d, PROBLEM, subject, "configuration", "", "%.*s", (int)n, s);
    }
}

/* Without prompts of our own the router's word is all there is. */
static void report_cached_tokens(struct doctor *d, const char *subject, struct kvr_json w)
{
    char told[24], flag[120], advice[160];
    text_of(w, "cached_tokens", told, sizeof told);
    text_of(w, "cached_tokens_flag", flag, sizeof flag);
    snprintf(advice, sizeof advice, "start the engine with %s", flag);
    if (!d->o->probe && !strcmp(told, "left out"))
        found(d, UNKNOWN, subject, "cached tokens", advice, "its answers tell none, so predictions cannot be compared");
}

/* A copy of the list of workers: the parser is used for other answers while they are examined. */
static size_t read_workers(struct doctor *d, const char *base, struct kvr_json list, struct engine_target **out)
{
    size_t n = kvr_json_count(list);
    struct engine_target *all = calloc(n + 1, sizeof *all);
    for (size_t i = 0; all && i < n; i++) {
        struct kvr_json w = kvr_json_at(list, i);
        struct engine_target *t = &all[i];
        t->worker_id = number_of(w, "worker_id", 0);
        t->block_size = (uint32_t)KVR_MIN(number_of(w, "block_size", 16), (uint64_t)65536);
        t->dp_start = (uint32_t)number_of(w, "data_parallel_start_rank", 0);
        t->dp_size = (uint32_t)KVR_MIN(number_of(w, "data_parallel_size", 1), (uint64_t)RANKS_MAX);
        snprintf(t->subject, sizeof t->subject, "worker %llu", (unsigned long long)t->worker_id);
        snprintf(t->router, sizeof t->router, "%s", base);
        text_of(w, "endpoint", t->url, sizeof t->url);
        text_of(w, "model_name", t->model, sizeof t->model);
        text_of(w, "recover_endpoint", t->recover, sizeof t->recover);
        text_of(w, "role", t->role, sizeof t->role);
        text_of(w, "kv_protocol", t->kv_protocol, sizeof t->kv_protocol);
        if (!strcmp(t->model, "default")) t->model[0] = 0;
        take_endpoints(kvr_json_get(w, "kv_events_endpoints"), t, t->events);
        take_endpoints(kvr_json_get(w, "replay_endpoints"), t, t->replay);
        t->asked_by_router = kvr_json_is_str(kvr_json_get(kvr_json_get(w, "learnt"), "state"), "answered");
        report_notes(d, t->subject, kvr_json_get(kvr_json_get(w, "learnt"), "notes"));
        report_cached_tokens(d, t->subject, w);
        report_views(d, t->subject, kvr_json_get(w, "views"));
        t->index_elsewhere = is_of_plane(kvr_json_get(w, "views"));
        if (t->url[0] && !true_of(w, "schedulable"))
            found(d, PROBLEM, t->subject, "health", "see the router's log", "the router does not send it requests");
    }
    *out = all;
    return all ? n : 0;
}

/* A router that asks another's index: what it says of it. Returns: whether it does. */
static bool check_remote_index(struct doctor *d, const char *base)
{
    struct kvr_fetched f = {0};
    struct kvr_json o;
    char where[200] = "", wrong[300] = "";
    if (get(d, base, "/status", &f, &o)) {
        text_of(o, "remote_index", where, sizeof where);
        text_of(o, "remote_index_error", wrong, sizeof wrong);
    }
    if (where[0] && wrong[0])
        found(d, PROBLEM, base, "remote index", "run doctor on it; until it is right requests are routed by load", "%s is not used: %s",
              where, wrong);
    else if (where[0]) found(d, OK, base, "remote index", "", "%s answers; it follows the events, this router does not", where);
    kvr_fetched_free(&f);
    return where[0] != 0;
}

static bool is_first_of_its_kind(const struct engine_target *all, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (!strcmp(all[k].role, all[i].role) && !strcmp(all[k].served, all[i].served) && !strcmp(all[k].kv_protocol, all[i].kv_protocol))
            return false;
    return all[i].served[0] != 0;
}

/* Of each model and protocol one prefill and one decode worker: a request goes from one to the other. */
static void compare_pairs(struct doctor *d, const struct engine_target *all, size_t n)
{
    for (size_t p = 0; p < n; p++) {
        if (strcmp(all[p].role, "prefill") || !is_first_of_its_kind(all, p)) continue;
        for (size_t k = 0; k < n; k++) {
            bool pair =
                !strcmp(all[k].role, "decode") && !strcmp(all[k].served, all[p].served) && !strcmp(all[k].kv_protocol, all[p].kv_protocol);
            if (!pair) continue;
            tokens_compare(d, &all[p], &all[k]);
            break;
        }
    }
}

static void examine_router(struct doctor *d, const char *base, struct kvr_json list)
{
    struct engine_target *all;
    size_t n = read_workers(d, base, list, &all);
    bool elsewhere = check_remote_index(d, base);
    if (n == 0) found(d, PROBLEM, base, "workers", "register them: --worker or POST /workers", "none is registered");
    for (size_t i = 0; i < n; i++) {
        bool any = all[i].url[0] != 0;
        all[i].index_elsewhere |= elsewhere;
        for (uint32_t r = 0; r < all[i].dp_size; r++) any |= all[i].events[r][0] != 0;
        if (any) engine_examine(d, &all[i]);
    }
    if (d->o->probe) compare_pairs(d, all, n);
    free(all);
}

/* ---- indexers -------------------------------------------------------------------------------------------------------- */

struct listing {
    struct doctor *d;
    char subject[96];
    uint32_t block_size;
    struct engine_target *targets;
    size_t n, cap;
};

static void take_listener(struct listing *l, const struct kvr_json_iter *rank)
{
    struct doctor *d = l->d;
    struct kvr_json v = rank->value;
    char state[24], reason[160], why[160], what[16];
    snprintf(what, sizeof what, "%.*s", (int)KVR_MIN(rank->key_len, sizeof what - 1), rank->key);
    text_of(v, "status", state, sizeof state);
    text_of(v, "untrusted_reason", reason, sizeof reason);
    text_of(v, "view_reason", why, sizeof why);
    if (is_partial(v)) found(d, OK, l->subject, "view", PARTIAL_HINT, "rank %s is partial: %s", what, why);
    else if (true_of(v, "trusted"))
        found(d, OK, l->subject, "view", "", "rank %s is whole, next sequence %llu", what,
              (unsigned long long)number_of(v, "next_sequence", 0));
    else found(d, PROBLEM, l->subject, "view", "see the reason", "rank %s (%s) is unknown: %s", what, state, reason);
    if (number_of(v, "block_size_mismatches", 0))
        found(d, PROBLEM, l->subject, "block size", "register the engine's --block-size", "the engine's differs from the registered %u",
              l->block_size);
    if (!kvr_grow(&l->targets, &l->cap, l->n + 1, sizeof *l->targets)) return;
    struct engine_target *t = &l->targets[l->n];
    *t = (struct engine_target){.block_size = l->block_size, .dp_start = (uint32_t)strtoul(what, NULL, 10), .dp_size = 1};
    snprintf(t->subject, sizeof t->subject, "%s", l->subject);
    text_of(v, "endpoint", t->events[0], sizeof t->events[0]);
    if (kvr_ingest_endpoint_ok(t->events[0])) l->n++;
}

static void examine_indexer(struct doctor *d, const char *base, struct kvr_json list)
{
    struct listing l = {.d = d};
    for (struct kvr_json_iter i = kvr_json_iter(list); kvr_json_next(&i);) {
        struct kvr_json w = i.value;
        snprintf(l.subject, sizeof l.subject, "instance %llu", (unsigned long long)number_of(w, "instance_id", 0));
        l.block_size = (uint32_t)KVR_MIN(number_of(w, "block_size", 16), (uint64_t)65536);
        for (struct kvr_json_iter r = kvr_json_iter(kvr_json_get(w, "listeners")); kvr_json_next(&r);) take_listener(&l, &r);
    }
    if (kvr_json_count(list) == 0) found(d, PROBLEM, base, "instances", "POST /register", "none is registered");
    for (size_t i = 0; i < l.n; i++) engine_examine(d, &l.targets[i]);
    free(l.targets);
}

/* ---- sidecars -------------------------------------------------------------------------------------------------------- */

#define REPLAY_HINT "give the engine a replay endpoint, or start the sidecar before it"

/* What was given to a sidecar and is not so. Returns: whether that is why its local index is not whole. */
static bool report_mismatches(struct doctor *d, const char *base, unsigned rank, struct kvr_json r, uint64_t configured)
{
    unsigned long long engine = number_of(r, "engine_block_size", 0), others = number_of(r, "other_rank_batches", 0);
    char advice[160];
    bool size = number_of(r, "block_size_mismatches", 0) > 0;
    snprintf(advice, sizeof advice, "start the sidecar with --block-size %llu, or without --block-size", engine);
    if (size)
        found(d, PROBLEM, base, "block size", advice, "rank %u: the engine uses %llu tokens a block, %llu are configured", rank, engine,
              (unsigned long long)configured);
    if (others)
        found(
            d, PROBLEM, base, "rank mapping",
            "start the sidecar with the --dp-start of this engine, or with --engine-url, so that it asks; rank r is at port + r - dp-start",
            "%llu batches of another rank came on rank %u's port", others, rank);
    return size || others;
}

static void report_sidecar_rank(struct doctor *d, const char *base, struct kvr_json r, uint64_t configured)
{
    char reason[200], trust[16];
    unsigned rank = (unsigned)number_of(r, "dp_rank", 0);
    text_of(r, "reason", reason, sizeof reason);
    text_of(r, "trust", trust, sizeof trust);
    bool connected = true_of(r, "connected"), mismatch = report_mismatches(d, base, rank, r, configured);
    if (!connected)
        found(d, PROBLEM, base, "events endpoint", "is the engine running, with KV events on?", "rank %u: not connected to the engine",
              rank);
    if (!strcmp(trust, "trusted"))
        found(d, OK, base, "local index", "", "rank %u is whole: %llu blocks, ids %llu to %llu in the buffer", rank,
              (unsigned long long)number_of(r, "blocks", 0), (unsigned long long)number_of(r, "oldest_id", 0),
              (unsigned long long)number_of(r, "newest_id", 0));
    else
        found(d, PROBLEM, base, "local index", mismatch || !connected ? "see above" : REPLAY_HINT, "rank %u is not whole: %s", rank,
              reason);
}

static void examine_sidecar(struct doctor *d, const char *base, struct kvr_json o)
{
    struct kvr_json ranks = kvr_json_get(o, "ranks");
    report_notes(d, base, kvr_json_get(o, "notes"));
    if (kvr_json_count(ranks) == 0)
        found(d, PROBLEM, base, "configuration",
              "is its --engine-url the engine's HTTP address, and the engine running? --dp-size, --model "
              "and --block-size together need no answer",
              "it waits for what the engine says of itself");
    for (size_t i = 0; i < kvr_json_count(ranks); i++) report_sidecar_rank(d, base, kvr_json_at(ranks, i), number_of(o, "block_size", 0));
}

/* ---- a router's data port -------------------------------------------------------------------------------------------- */

enum { PROBE_WORDS = 180, PROBE_WORD_BYTES = 6 };

/* How many fit the first model's context, whatever a token is. */
static int probe_words(struct doctor *d, const char *base)
{
    struct kvr_fetched f = {0};
    struct kvr_json o;
    uint64_t len = 0, words = PROBE_WORDS;
    if (get(d, base, "/v1/models", &f, &o)) len = number_of(kvr_json_at(kvr_json_get(o, "data"), 0), "max_model_len", 0);
    if (len) words = KVR_MIN(words, KVR_MAX(len / PROBE_WORD_BYTES, (uint64_t)2) - 1);
    kvr_fetched_free(&f);
    return (int)words;
}

static void examine_data_port(struct doctor *d, const char *base)
{
    struct kvr_fetched f = {0};
    struct kvr_buf b = {0};
    struct kvr_json o;
    char url[320], text[PROBE_WORDS * PROBE_WORD_BYTES + 1];
    size_t n = 0;
    uint64_t state = kvr_monotonic_ns(), cached = 0;
    for (int i = 0, words = probe_words(d, base); i < words; i++) {
        state = kvr_mix64(state + 1);
        n += (size_t)snprintf(text + n, sizeof text - n, "%05u ", (unsigned)(state % 100000));
    }
    kvr_json_printf(&b, "{'prompt':%s,'max_tokens':1}", text);
    kvr_buf_add(&b, "", 1);
    snprintf(url, sizeof url, "%s/v1/completions", base);
    for (int i = 0; i < 2 && !b.failed; i++) {
        fetch(d, url, b.data, "", d->key, &f);
        uv_sleep(300); /* events are on their way */
    }
    struct kvr_text overlap = kvr_headers_get(&f.headers, "x-kvroute-overlap-blocks"),
                    reason = kvr_headers_get(&f.headers, "x-kvroute-reason");
    bool said = fetched_json(d, &f, &o) &&
                kvr_json_as_u64(kvr_json_get(kvr_json_get(kvr_json_get(o, "usage"), "prompt_tokens_details"), "cached_tokens"), &cached);
    bool predicted = overlap.ptr && !(overlap.len == 1 && overlap.ptr[0] == '0');
    if (f.status != 200)
        found(d, PROBLEM, base, "probe", "see the router's log", "a prompt is answered with status %d %s", f.status, f.error);
    else if (!said)
        found(d, UNKNOWN, base, "prediction", "let the engines report cached tokens (vLLM: --enable-prompt-tokens-details)",
              "a prompt sent twice: %.*s blocks predicted, nothing reported", (int)overlap.len, overlap.ptr ? overlap.ptr : "");
    else if (predicted != (cached > 0))
        found(d, PROBLEM, base, "prediction", "run doctor on the admin port",
              "a prompt sent twice: %.*s blocks predicted, %llu cached tokens (reason %.*s)", (int)overlap.len,
              overlap.ptr ? overlap.ptr : "0", (unsigned long long)cached, (int)reason.len, reason.ptr ? reason.ptr : "");
    else if (!predicted)
        found(d, PROBLEM, base, "prediction", "run doctor on the admin port",
              "a prompt sent twice is neither predicted nor found cached (reason %.*s)", (int)reason.len, reason.ptr ? reason.ptr : "");
    else
        found(d, OK, base, "prediction", "", "a prompt sent twice: %.*s blocks predicted, %llu cached tokens", (int)overlap.len,
              overlap.ptr, (unsigned long long)cached);
    kvr_buf_free(&b);
    kvr_fetched_free(&f);
}

/* ---- targets --------------------------------------------------------------------------------------------------------- */

static bool take_key(struct engine_target *t, char *key, char *events, char *replay, char *err, size_t cap)
{
    char *value = strchr(key, '=');
    if (!value) {
        snprintf(err, cap, "'%s' is not key=value", key);
        return false;
    }
    *value++ = 0;
    bool number = *value && strspn(value, "0123456789") == strlen(value);
    unsigned long n = strtoul(value, NULL, 10);
    if (!strcmp(key, "events") && kvr_ingest_endpoint_ok(value)) snprintf(events, 128, "%.127s", value);
    else if (!strcmp(key, "replay") && kvr_ingest_endpoint_ok(value)) snprintf(replay, 128, "%.127s", value);
    else if (!strcmp(key, "recover")) snprintf(t->recover, sizeof t->recover, "%.255s", value);
    else if (!strcmp(key, "model")) snprintf(t->model, sizeof t->model, "%.127s", value);
    else if (!strcmp(key, "block-size") && number && n > 0 && n <= 65536) t->block_size = (uint32_t)n;
    else if (!strcmp(key, "dp-start") && number && n <= 1 << 20) t->dp_start = (uint32_t)n;
    else if (!strcmp(key, "dp-size") && number && n > 0 && n <= RANKS_MAX) t->dp_size = (uint32_t)n;
    else {
        snprintf(
            err, cap,
            "bad key or value '%.40s=%.80s'; allowed: events, replay (tcp://host:port), recover, model, block-size (1 to 65536), dp-start, "
            "dp-size (1 to 64)",
            key, value);
        return false;
    }
    return true;
}

static bool parse_target(char *text, struct engine_target *t, char *err, size_t cap)
{
    char events[128] = "", replay[128] = "", *rest = text, *part = strsep(&rest, ",");
    struct kvr_endpoint e;
    *t = (struct engine_target){0};
    size_t n = strlen(part);
    while (n && part[n - 1] == '/') part[--n] = 0;
    if (n > 3 && !strcmp(part + n - 3, "/v1")) part[n -= 3] = 0; /* as an OpenAI client is given it */
    while (n && part[n - 1] == '/') part[--n] = 0;
    if (n >= sizeof t->url || kvr_endpoint_parse_any(part, n, &e)) {
        snprintf(err, cap, "'%.80s' is no URL; allowed: http:// or https://host[:port][,key=value...]", part);
        return false;
    }
    snprintf(t->url, sizeof t->url, "%s", part);
    snprintf(t->subject, sizeof t->subject, "%.90s", part);
    while ((part = strsep(&rest, ",")))
        if (!take_key(t, part, events, replay, err, cap)) return false;
    if (t->dp_start && !t->dp_size) t->dp_size = 1;
    for (uint32_t r = 0; r < KVR_MAX(t->dp_size, 1u); r++)
        if ((events[0] && !kvr_ingest_endpoint_shift(events, r, t->events[r], sizeof t->events[r])) ||
            (replay[0] && !kvr_ingest_endpoint_shift(replay, r, t->replay[r], sizeof t->replay[r]))) {
            snprintf(err, cap, "no port for rank %u", t->dp_start + r);
            return false;
        }
    return true;
}

static bool has_member(struct kvr_json list, const char *key)
{
    return kvr_json_type_of(list) == KVR_JSON_ARRAY && kvr_json_type_of(kvr_json_get(kvr_json_at(list, 0), key)) != KVR_JSON_NONE;
}

/* --health: what a supervisor of processes asks every few seconds. Who does not answer is a problem, not a target that cannot be used. */
static void examine_health(struct doctor *d, const struct engine_target *t)
{
    struct kvr_fetched f = {0};
    char url[sizeof t->url + sizeof "/health"];
    snprintf(url, sizeof url, "%s/health", t->url);
    fetch(d, url, NULL, "", d->key, &f);
    if (f.status == 200) found(d, OK, t->subject, "health", "", "it answers");
    else if (f.status) found(d, PROBLEM, t->subject, "health", "", "it answers with status %d", f.status);
    else found(d, PROBLEM, t->subject, "health", "", "%s", f.error);
    kvr_fetched_free(&f);
}

static void examine(struct doctor *d, struct engine_target *t)
{
    struct kvr_fetched f = {0};
    struct kvr_json o;
    bool workers = get(d, t->url, "/workers", &f, &o);
    int status = f.status;
    if (workers && has_member(o, "listeners")) {
        examine_indexer(d, t->url, o);
    } else if (workers && kvr_json_type_of(o) == KVR_JSON_ARRAY) {
        examine_router(d, t->url, o);
    } else if (status && get(d, t->url, "/status", &f, &o) && kvr_json_type_of(kvr_json_get(o, "ranks")) == KVR_JSON_ARRAY) {
        examine_sidecar(d, t->url, o);
    } else if (status && !get(d, t->url, "/v1/models", &f, &o)) {
        if (status == 401 || f.status == 401)
            found(d, PROBLEM, t->subject, "key", "give one that it takes: --api-key-file FILE, at an admin port that of --admin-key-file",
                  "it answers with status 401: it wants %s key", d->key ? "another" : "a");
        else
            found(d, PROBLEM, t->subject, "reachable", "give a router's, indexer's, sidecar's or engine's address",
                  "something answers, but nothing that is known here");
        d->unusable = true;
    } else if (status) {
        fetch(d, t->url, NULL, "", d->key, &f);
        (void)get(d, t->url, "/ready", &f, &o);
        if ((f.status == 200 || f.status == 503) && !t->events[0][0]) examine_data_port(d, t->url);
        else engine_examine(d, t);
    } else {
        found(d, PROBLEM, t->subject, "reachable", "is it running, and is this its address?", "%s", f.error);
        d->unusable = true;
    }
    kvr_fetched_free(&f);
}

int doctor_main(const struct doctor_options *o)
{
    struct doctor d = {.o = o, .key = o->key};
    struct engine_target *t = calloc(o->targets_n, sizeof *t);
    char err[320], **keys = NULL;
    int rc = 0;
    if (o->key_file && !(keys = kvr_keys_read(o->key_file, err, sizeof err))) {
        kvr_log_error("kvroute doctor: --api-key-file: %s", err);
        rc = 2;
    }
    if (o->tls_ca && kvr_tls_trust(&(struct kvr_tls_peer_config){.ca = o->tls_ca}, err, sizeof err)) {
        kvr_log_error("kvroute doctor: --tls-ca: %s", err);
        rc = 2;
    }
    if (rc == 0 && tokens_open(&d)) rc = 2;
    if (keys) d.key = keys[0];
    for (size_t i = 0; t && i < o->targets_n && rc == 0; i++)
        if (!parse_target(o->targets[i], &t[i], err, sizeof err)) {
            kvr_log_error("kvroute doctor: %s", err);
            rc = 2;
        }
    if (!t || rc) {
        kvr_keys_free(keys);
        free(t);
        return 2;
    }
    uv_loop_init(&d.loop);
    d.json = kvr_json_parser_new();
    if (!d.json || kvr_http_client_create(&d.loop, 3, &d.http)) rc = 2;
    for (size_t i = 0; i < o->targets_n && rc == 0; i++) {
        if (o->health) examine_health(&d, &t[i]);
        else examine(&d, &t[i]);
    }
    size_t problems = rc ? 0 : findings_print(&d);
    if (d.http) kvr_http_client_close(d.http);
    kvr_loop_end(&d.loop);
    kvr_json_parser_free(d.json);
    tokens_close(&d);
    free(d.findings);
    kvr_keys_free(keys);
    free(t);
    return rc ? rc : d.unusable ? 2 : problems ? 1 : 0;
}
