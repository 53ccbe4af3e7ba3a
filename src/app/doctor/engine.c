/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One engine. The doctor follows its KV events with an ingest and an index of its own, sends it prompts that nobody has sent
 * before, and looks whether what it then sees fits. So it tests the same code and the same wire that a router relies on.
 */
#include "app/doctor/state.h"

#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <kvroute/hash.h>
#include <kvroute/index.h>

#include "net/ingest/ingest.h"

enum { BLOCKS = 12, WORDS_MAX = 1300, WORD_BYTES = 6, TOKENS_MAX = 8192, SKEW_MAX_S = 5 };

struct exam {
    struct doctor *d;
    struct engine_target *t;
    struct kvr_index *index;
    struct kvr_index_reader *reader;
    struct kvr_ingest *ingest;
    struct kvr_fetched f;
    char model[128], lora[128], root[256]; /* root: where the engine says that the model's folder is */
    uint64_t model_len;                    /* tokens of a prompt and its answer; 0: not told */
    struct kvr_engine_facts facts;
    uint32_t tokens[TOKENS_MAX];
    size_t tokens_n;
    struct kvr_rng rng;
};

#define SAY(e, v, check, advice, ...) found((e)->d, v, (e)->t->subject, check, advice, __VA_ARGS__)

/* ---- following ------------------------------------------------------------------------------------------------------ */

static int on_event(void *ctx, void *, const struct kvr_event *ev, const struct kvr_ingest_origin *)
{
    struct exam *e = ctx;
    return kvr_index_apply(e->index, ev);
}

static void on_window(void *ctx, void *, const struct kvr_window_event *ev)
{
    struct exam *e = ctx;
    (void)kvr_index_window(e->index, ev);
}

static void on_reset(void *ctx, void *, struct kvr_worker w)
{
    struct exam *e = ctx;
    kvr_index_remove_rank(e->index, w);
}

static bool status_of(struct exam *e, uint32_t rank, struct kvr_view_status *out)
{
    struct kvr_view_status st[RANKS_MAX];
    size_t n = KVR_MIN(kvr_ingest_status(e->ingest, st, RANKS_MAX), (size_t)RANKS_MAX);
    for (size_t i = 0; i < n; i++)
        if (st[i].worker.dp_rank == rank) {
            *out = st[i];
            return true;
        }
    return false;
}

static void pause_a_moment(void)
{
    usleep(50 * 1000);
}

/* Connects to every rank's events. Returns: how many ranks have any. */
static size_t follow(struct exam *e)
{
    const struct engine_target *t = e->t;
    size_t n = 0;
    for (uint32_t r = 0; r < t->dp_size; r++) {
        struct kvr_ingest_source src = {.worker = {t->worker_id, t->dp_start + r},
                                        .block_size = t->block_size,
                                        .events = t->events[r],
                                        .replay = t->replay[r][0] ? t->replay[r] : NULL,
                                        .recover = t->recover[0] ? t->recover : NULL,
                                        .tiers = true};
        if (!t->events[r][0]) continue;
        if (kvr_ingest_add(e->ingest, &src))
            SAY(e, PROBLEM, "events endpoint", "use tcp://host:port or ipc://path", "'%s' of rank %u cannot be connected to", t->events[r],
                t->dp_start + r);
        else n++;
    }
    return n;
}

/* ---- asking the engine ---------------------------------------------------------------------------------------------- */

static bool ask(struct exam *e, const char *path, const char *body, const char *headers)
{
    char url[400];
    snprintf(url, sizeof url, "%s%s", e->t->url, path);
    fetch(e->d, url, body, headers, engine_key(e->d, e->t), &e->f);
    return e->f.status == 200;
}

/* The first served model, its context, and the first LoRA adapter. */
static void take_model(struct exam *e, struct kvr_json v)
{
    const char *id, *parent;
    size_t n, m;
    if (!kvr_json_as_str(kvr_json_get(v, "id"), &id, &n) || n >= sizeof e->model) return;
    bool lora = kvr_json_as_str(kvr_json_get(v, "parent"), &parent, &m) && m > 0;
    if (lora && !e->lora[0]) snprintf(e->lora, sizeof e->lora, "%.*s", (int)n, id);
    if (!lora && !e->model_len) (void)kvr_json_as_u64(kvr_json_get(v, "max_model_len"), &e->model_len);
    if (!lora && !e->model[0]) snprintf(e->model, sizeof e->model, "%.*s", (int)n, id);
    if (!lora && !e->root[0] && kvr_span_is(id, n, e->model) && kvr_json_as_str(kvr_json_get(v, "root"), &id, &m) && m < sizeof e->root)
        snprintf(e->root, sizeof e->root, "%.*s", (int)m, id);
}

static bool is_reachable(struct exam *e)
{
    struct kvr_json o;
    if (!ask(e, "/v1/models", NULL, "") || !fetched_json(e->d, &e->f, &o)) {
        SAY(e, PROBLEM, "reachable", "is the engine running, and is this its HTTP address?", "GET %s/v1/models: %s (status %d)", e->t->url,
            e->f.error[0] ? e->f.error : "not a list of models", e->f.status);
        return false;
    }
    snprintf(e->model, sizeof e->model, "%s", e->t->model);
    for (struct kvr_json_iter i = kvr_json_iter(kvr_json_get(o, "data")); kvr_json_next(&i);) take_model(e, i.value);
    SAY(e, OK, "reachable", "", "serves model '%s'", e->model);
    return true;
}

/* A text that no cache can know, some blocks long (a word is at least a token, and at most six bytes), and within the context. */
static void make_text(struct exam *e, struct kvr_buf *b)
{
    size_t words = KVR_MIN((size_t)BLOCKS * e->t->block_size, (size_t)WORDS_MAX);
    if (e->model_len) words = KVR_MAX(KVR_MIN(words, (size_t)(e->model_len / WORD_BYTES)), (size_t)2) - 1;
    b->len = 0;
    for (size_t i = 0; i < words; i++) kvr_buf_printf(b, "%s%05u", i ? " " : "", kvr_rng_below(&e->rng, 100000));
    kvr_buf_add(b, "", 1);
}

/* Tokens of the text by the engine. */
static bool tokenize(struct exam *e, const char *text)
{
    struct kvr_buf b = {0};
    struct kvr_json o;
    kvr_json_printf(&b, "{'model':%s,'prompt':%s}", e->model, text);
    kvr_buf_add(&b, "", 1);
    e->tokens_n = 0;
    if (!b.failed && ask(e, "/tokenize", b.data, "") && fetched_json(e->d, &e->f, &o)) {
        long n = kvr_json_u32_array(kvr_json_get(o, "tokens"), e->tokens, TOKENS_MAX);
        e->tokens_n = n > 0 ? (size_t)n : 0;
    }
    kvr_buf_free(&b);
    return e->tokens_n > 0;
}

/* Sends a completion. Returns: false when the engine did not answer it; *cached is -1 when it does not say. */
static bool complete(struct exam *e, const char *model, const char *text, const char *salt, uint32_t rank, long *cached)
{
    struct kvr_buf b = {0};
    struct kvr_json o;
    char header[64] = "";
    uint64_t n;
    if (e->t->dp_size > 1 || e->t->names_rank) snprintf(header, sizeof header, "X-data-parallel-rank: %u\r\n", rank - e->t->rank_base);
    kvr_json_printf(&b, "{'model':%s,'prompt':%s,'max_tokens':1", model, text);
    if (salt) kvr_json_printf(&b, "'cache_salt':%s", salt);
    kvr_json_close(&b, '}');
    kvr_buf_add(&b, "", 1);
    bool ok = !b.failed && ask(e, "/v1/completions", b.data, header) && fetched_json(e->d, &e->f, &o);
    kvr_buf_free(&b);
    *cached = -1;
    if (!ok) return false;
    struct kvr_json usage = kvr_json_get(o, "usage"), details = kvr_json_get(usage, "prompt_tokens_details");
    if (kvr_json_as_u64(kvr_json_get(details, "cached_tokens"), &n)) *cached = (long)n;
    return true;
}

/* Leading blocks of e->tokens that the rank holds in our index, waiting for them a little. */
static size_t blocks_seen(struct exam *e, uint32_t rank, const char *lora, const char *salt, size_t want)
{
    uint64_t locals[TOKENS_MAX];
    struct kvr_overlap out[RANKS_MAX];
    uint64_t seed = kvr_hash_seed(lora ? lora : "", lora ? strlen(lora) : 0, salt ? salt : "", salt ? strlen(salt) : 0);
    long n = kvr_hash_locals(e->tokens, e->tokens_n, e->t->block_size, false, seed, NULL, 0, locals);
    size_t best = 0;
    for (int i = 0; i < 60 && best < want && n > 0; i++) {
        if (i) pause_a_moment();
        long k = kvr_index_match(e->reader, locals, (size_t)n, out, RANKS_MAX);
        for (long j = 0; j < k; j++)
            if (out[j].worker.dp_rank == rank) best = KVR_MAX(best, (size_t)out[j].depth);
    }
    return best;
}

/* ---- checks --------------------------------------------------------------------------------------------------------- */

#define REPLAY_ADVICE "add \"replay_endpoint\":\"tcp://*:5558\" to the engine's --kv-events-config, or run kvroute publish beside it"

static void check_stream(struct exam *e, uint32_t rank)
{
    struct kvr_view_status st = {0};
    const char *events = e->t->events[rank - e->t->dp_start], *replay = e->t->replay[rank - e->t->dp_start];
    for (int i = 0; i < 60 && (!status_of(e, rank, &st) || !st.connected || (st.can_replay && !st.settled)); i++) pause_a_moment();
    if (!st.connected) {
        SAY(e, PROBLEM, "events endpoint", "start the engine with KV events on (vLLM: --kv-events-config) and open the port",
            "no publisher listens on %s (rank %u)", events, rank);
        return;
    }
    SAY(e, OK, "events endpoint", "", "connected to %s (rank %u)", events, rank);
    if (!st.can_replay)
        SAY(e, UNKNOWN, "recovery", REPLAY_ADVICE, "rank %u has neither a replay nor a recover endpoint: what is lost stays lost", rank);
    else if (st.replay_failures || st.recovery_failures)
        SAY(e, PROBLEM, "recovery",
            replay[0] ? "check the address and the port" : "check the address and the port; what it lacks, kvroute doctor tells of it, too",
            "rank %u: nothing was recovered from %s (%s)", rank, replay[0] ? replay : e->t->recover, st.reason);
    else SAY(e, OK, "recovery", "", "rank %u: %s answers", rank, replay[0] ? replay : e->t->recover);
}

/* Only what has just been sent tells how late it comes; an idle engine's last event is as old as its last request. */
static void check_clock(struct exam *e, uint32_t rank, const struct kvr_view_status *st, bool fresh)
{
    double late = (double)time(NULL) - st->cursor.last_ts;
    if (st->cursor.last_ts <= 0) return;
    if (-late > SKEW_MAX_S || (fresh && late > SKEW_MAX_S))
        SAY(e, PROBLEM, "clock", "synchronise the clocks (NTP)", "rank %u: events are stamped %.0f s %s", rank, fabs(late),
            late > 0 ? "ago" : "ahead");
    else if (late > SKEW_MAX_S) SAY(e, UNKNOWN, "clock", "", "rank %u: no event since %.0f s, so nothing tells", rank, late);
    else SAY(e, OK, "clock", "", "rank %u: within %d s", rank, SKEW_MAX_S);
}

/* fresh: events of a prompt that was sent just now have come. */
static void check_sequence(struct exam *e, uint32_t rank, bool fresh)
{
    struct kvr_view_status st;
    if (!status_of(e, rank, &st) || !st.batches) return;
    if (st.decode_errors || st.bad_frames)
        SAY(e, PROBLEM, "event format", "is this an engine's KV event port? update kvroute or the engine",
            "rank %u: %llu messages are not KV events", rank, (unsigned long long)(st.decode_errors + st.bad_frames));
    uint64_t before_us = st.can_replay ? 0 : 1; /* what nobody tells again was not lost on the way to us */
    if (st.gaps > st.replays + st.questions + before_us)
        SAY(e, PROBLEM, "sequence", "raise the high-water marks, look at the network", "rank %u: %llu gaps", rank,
            (unsigned long long)st.gaps);
    else
        SAY(e, OK, "sequence", "", "rank %u: continuous, %llu batches, next %llu", rank, (unsigned long long)st.batches,
            (unsigned long long)st.next_sequence);
    check_clock(e, rank, &st, fresh);
    if (st.filtered.other_rank)
        SAY(e, PROBLEM, "rank mapping", "give each rank's own events port (rank r: first port + r) and the right dp-start",
            "%llu batches of another rank came on rank %u's port: %s", (unsigned long long)st.filtered.other_rank, rank, st.reason);
    if (st.filtered.untold_keys)
        SAY(e, UNKNOWN, "salts and images", "update vLLM (0.17 and later tell them), or send prompts with a cache_salt or images elsewhere",
            "rank %u: its events have no place for them, so their blocks look like those of plain prompts", rank);
    uint64_t groups = st.filtered.non_main_attention_kind + st.filtered.non_main_attention_group + st.filtered.unlearned_group_idx;
    if (groups) SAY(e, OK, "hybrid cache", "", "rank %u: %llu events of other cache groups are left out", rank, (unsigned long long)groups);
    if (st.filtered.unknown_kind)
        SAY(e, UNKNOWN, "hybrid cache", "its overlap may be underestimated", "rank %u: %llu events of an unknown attention kind", rank,
            (unsigned long long)st.filtered.unknown_kind);
}

static bool check_block_size(struct exam *e, uint32_t rank)
{
    struct kvr_view_status st;
    if (!status_of(e, rank, &st) || !st.engine_block_size) return true;
    if (st.engine_block_size != e->t->block_size) {
        SAY(e, PROBLEM, "block size", "set block-size to the engine's", "the engine uses %u tokens a block, %u are configured",
            st.engine_block_size, e->t->block_size);
        return false;
    }
    SAY(e, OK, "block size", "", "%u tokens", st.engine_block_size);
    return true;
}

/* Do events tell of the tiers behind the device? An engine may not have written there yet, so that is no problem by itself. */
static void check_tiers(struct exam *e, uint32_t rank)
{
    struct kvr_tier_status tiers[KVR_TIER_COUNT];
    bool told = false;
    kvr_index_tier_status(e->index, (struct kvr_worker){e->t->worker_id, rank}, tiers);
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) {
        if (!tiers[t].blocks && !tiers[t].unplaced && !tiers[t].removes) continue;
        told = true;
        SAY(e, tiers[t].blocks ? OK : UNKNOWN, "lower tiers", tiers[t].blocks ? "" : TIERS_ADVICE,
            "rank %u: events tell of %s: %zu blocks, read by %u, %llu without a known place", rank, kvr_tier_name((enum kvr_tier)t),
            tiers[t].blocks, tiers[t].chunk, (unsigned long long)tiers[t].unplaced);
    }
    if (e->facts.offloads && !told)
        SAY(e, UNKNOWN, "lower tiers", TIERS_ADVICE, "rank %u: the engine offloads KV blocks (/metrics), and its events tell of none",
            rank);
}

struct probe {
    bool connected;    /* to the stream */
    bool tokens;       /* the engine's /tokenize gave them */
    size_t want, seen; /* blocks of the prompt, those of them in the index */
    uint64_t batches;  /* that the stream has brought for it */
};

/* A fresh prompt. Returns: false when the engine does not answer it. */
static bool send_probe(struct exam *e, uint32_t rank, struct kvr_buf *text, struct probe *p)
{
    long cached;
    struct kvr_view_status before = {0}, after = {0};
    (void)status_of(e, rank, &before);
    make_text(e, text);
    p->tokens = tokenize(e, text->data);
    if (!complete(e, e->model, text->data, NULL, rank, &cached)) return false;
    (void)status_of(e, rank, &after);
    for (int i = 0; i < 40 && after.connected && after.batches == before.batches; i++) {
        pause_a_moment();
        (void)status_of(e, rank, &after);
    }
    p->connected = after.connected;
    p->batches = after.batches - before.batches;
    p->want = p->tokens ? e->tokens_n / e->t->block_size : 0;
    p->seen = p->batches ? blocks_seen(e, rank, NULL, NULL, p->want) : 0;
    return true;
}

/* A fresh prompt, twice. *fresh: events came. Returns: whether they were its. */
static bool check_probe(struct exam *e, uint32_t rank, struct kvr_buf *text, bool *fresh)
{
    long second;
    struct probe p = {0};
    bool answered = send_probe(e, rank, text, &p);
    /* The subscription may have come too late for the first one's events, which only recovery has then brought. */
    if (answered && p.connected && !p.batches) answered = send_probe(e, rank, text, &p);
    if (!answered) {
        SAY(e, PROBLEM, "probe", "send a completion by hand and look at the engine's log",
            "rank %u: the engine refuses a prompt: %s (status %d)", rank, e->f.error[0] ? e->f.error : "error", e->f.status);
        return false;
    }
    *fresh = p.batches > 0;
    complete(e, e->model, text->data, NULL, rank, &second);
    if (second < 0)
        SAY(e, UNKNOWN, "cached tokens", "let the engine report them (vLLM: --enable-prompt-tokens-details)",
            "rank %u: usage has no cached_tokens, so predictions cannot be compared", rank);
    else if (second < (long)e->t->block_size)
        SAY(e, PROBLEM, "prefix caching", "switch it on (vLLM: --enable-prefix-caching)",
            "rank %u: a prompt sent twice had %ld cached tokens the second time", rank, second);
    else SAY(e, OK, "prefix caching", "", "rank %u: a prompt sent twice had %ld cached tokens the second time", rank, second);
    if (!p.batches) {
        SAY(e, PROBLEM, "events flow",
            e->t->recover[0] ? "look at what stands between: kvroute doctor tells it of the recover address, too"
                             : "switch KV events and prefix caching on in the engine",
            "rank %u: a new prompt caused no KV event", rank);
        return false;
    }
    SAY(e, OK, "events flow", "", "rank %u: %llu batches for a new prompt", rank, (unsigned long long)p.batches);
    if (!check_block_size(e, rank)) return false;
    if (!p.tokens) SAY(e, UNKNOWN, "tokens", "prompts must be sent as token ids, or routed by load", "the engine has no /tokenize");
    else if (p.seen < p.want)
        SAY(e, PROBLEM, "tokens", "the engine's /tokenize and its events must agree: same tokenizer, chat template, LoRA, salt",
            "rank %u: %zu of the prompt's %zu blocks appear in its events under our hashes", rank, p.seen, p.want);
    else SAY(e, OK, "tokens", "", "rank %u: all %zu blocks of the prompt appear in its events", rank, p.seen);
    if (p.tokens && second >= 0 && p.seen == p.want) {
        long predicted = (long)((e->tokens_n - 1) / e->t->block_size * e->t->block_size);
        if (labs(second - predicted) >= 2 * (long)e->t->block_size)
            SAY(e, PROBLEM, "prediction", "look at cache pressure, sliding windows, connectors",
                "rank %u: %ld cached tokens predicted, %ld delivered", rank, predicted, second);
        else SAY(e, OK, "prediction", "", "rank %u: %ld cached tokens predicted, %ld delivered", rank, predicted, second);
    }
    return p.tokens && p.seen == p.want;
}

static void check_salt(struct exam *e, uint32_t rank, struct kvr_buf *text)
{
    long cached;
    make_text(e, text);
    if (!tokenize(e, text->data)) return;
    if (!complete(e, e->model, text->data, "kvroute-doctor", rank, &cached)) {
        SAY(e, OK, "salt", "", "the engine refuses cache_salt, so no request can use it");
        return;
    }
    size_t want = e->tokens_n / e->t->block_size;
    if (blocks_seen(e, rank, NULL, "kvroute-doctor", want) == want) SAY(e, OK, "salt", "", "events of salted requests carry the salt");
    else if (blocks_seen(e, rank, NULL, NULL, 1) > 0)
        SAY(e, PROBLEM, "salt", "do not use cache_salt with this engine, or update it; salted requests will not find their cache",
            "events of salted requests do not carry the salt");
    else SAY(e, UNKNOWN, "salt", "do not rely on cache_salt with this engine", "events of a salted request were not recognised");
}

static void check_lora(struct exam *e, uint32_t rank, struct kvr_buf *text)
{
    long cached;
    if (!e->lora[0]) {
        SAY(e, OK, "LoRA", "", "no adapter is served");
        return;
    }
    make_text(e, text);
    if (!tokenize(e, text->data) || !complete(e, e->lora, text->data, NULL, rank, &cached)) return;
    size_t want = e->tokens_n / e->t->block_size;
    if (blocks_seen(e, rank, e->lora, NULL, want) == want) SAY(e, OK, "LoRA", "", "events of adapter '%s' carry its name", e->lora);
    else
        SAY(e, PROBLEM, "LoRA", "update the engine: events must carry lora_name",
            "events of adapter '%s' do not carry its name; its requests will not find their cache", e->lora);
}

/* Does the router see what we see? e->tokens is a prompt that the rank holds. */
static void check_router(struct exam *e, uint32_t rank, size_t want)
{
    struct kvr_buf b = {0};
    struct kvr_json o;
    char url[320];
    uint64_t have = 0;
    if (!e->t->router[0]) return;
    kvr_json_printf(&b, "{'token_ids':");
    kvr_json_u32s(&b, e->tokens, e->tokens_n);
    if (e->t->model[0]) kvr_json_put_str(&b, "model_name", e->t->model);
    kvr_json_close(&b, '}');
    kvr_buf_add(&b, "", 1);
    snprintf(url, sizeof url, "%s/overlap_scores", e->t->router);
    for (int turn = 0; turn < 40 && have < want && !b.failed; turn++) {
        if (turn) pause_a_moment();
        fetch(e->d, url, b.data, "", e->d->key, &e->f);
        if (!fetched_json(e->d, &e->f, &o)) break;
        for (struct kvr_json_iter i = kvr_json_iter(kvr_json_get(o, "workers")); kvr_json_next(&i);) {
            struct kvr_json w = i.value;
            uint64_t id, dp, n;
            if (kvr_json_as_u64(kvr_json_get(w, "worker_id"), &id) && id == e->t->worker_id &&
                kvr_json_as_u64(kvr_json_get(w, "dp_rank"), &dp) && dp == rank && kvr_json_as_u64(kvr_json_get(w, "device_blocks"), &n))
                have = n;
        }
    }
    kvr_buf_free(&b);
    if (e->f.status != 200) SAY(e, UNKNOWN, "router", "", "POST /overlap_scores answers with status %d", e->f.status);
    else if (have < want)
        SAY(e, PROBLEM, "router", "compare the worker's block-size, events and model in the router with the engine's",
            "the router knows %llu of %zu blocks that rank %u holds", (unsigned long long)have, want, rank);
    else SAY(e, OK, "router", "", "knows all %zu blocks that rank %u has just stored", want, rank);
}

static void examine_ranks(struct exam *e)
{
    struct kvr_buf text = {0};
    for (uint32_t r = 0; r < e->t->dp_size; r++) {
        uint32_t rank = e->t->dp_start + r;
        bool fresh = false;
        if (!e->t->events[r][0]) continue;
        check_stream(e, rank);
        if (e->t->url[0] && e->d->o->probe && !e->t->ranks_unnamed) {
            if (check_probe(e, rank, &text, &fresh)) {
                check_router(e, rank, e->tokens_n / e->t->block_size);
                if (r == 0) check_salt(e, rank, &text);
                if (r == 0) check_lora(e, rank, &text);
            }
        } else {
            (void)check_block_size(e, rank);
        }
        check_sequence(e, rank, fresh);
        check_tiers(e, rank);
    }
    kvr_buf_free(&text);
}

static void tell_no_events(struct exam *e)
{
    char advice[sizeof((struct finding *)0)->advice];
    facts_events_advice(e->t, &e->facts, advice, sizeof advice);
    SAY(e, PROBLEM, "events endpoint", advice, "no events endpoint is known, so requests to this engine are routed by load");
}

void engine_examine(struct doctor *d, struct engine_target *t)
{
    struct exam *e = calloc(1, sizeof *e);
    struct kvr_ingest_handler h = {.on_event = on_event, .on_reset = on_reset, .on_window = on_window, .ctx = e};
    if (!e) return;
    e->d = d;
    e->t = t;
    e->rng.state = kvr_monotonic_ns();
    bool up = !t->url[0] || is_reachable(e);
    bool made = kvr_index_create(NULL, &e->index) == 0 && kvr_index_reader_create(e->index, &e->reader) == 0 &&
                kvr_ingest_create(&h, 2, &e->ingest) == 0;
    if (up) snprintf(t->served, sizeof t->served, "%.127s", e->model);
    if (up) facts_learn(d, t, e->model, &e->facts);
    if (up && t->url[0] && d->o->probe) tokens_check(d, t, e->model, e->root);
    bool follows = up && made && follow(e) > 0;
    if (up && made && !follows && !t->index_elsewhere) tell_no_events(e);
    if (follows) examine_ranks(e);
    kvr_ingest_destroy(e->ingest);
    kvr_index_destroy(e->index);
    kvr_fetched_free(&e->f);
    free(e);
}
