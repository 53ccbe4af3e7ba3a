/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evidence for and against a view, from the answers of its engine. An event stream may look perfect and still say nothing of
 * use: another block size, salt or tokenizer, prefix caching or events switched off. What cannot lie is this:
 *
 *     missing   A rank that has computed a prompt has stored its full blocks: they are in its view a moment later, or were, before
 *               the engine gave them up again.
 *     stale     What the view held of a prompt when it was sent there, the engine reports as cached, unless it was removed first.
 *
 * It is looked for at once and, when it is not there, once more later: events may be late. A stream of which nothing at all has come in the
 * meantime may be off, or only slow, on a machine that is too busy: it gets a third look. The opposite of `stale`, more cached than the
 * view knew, is what happens when requests with one prefix overlap in time, so it is not held against the view; if the view lacked
 * the blocks for good, `missing` says so.
 *
 * An answer proves something only when its request is understood to the last member (wire/prompt_members.h), it is whole, no event of it
 * is an error, and it counts as many prompt tokens as were hashed. Everything else, whatever a client may have sent, is no
 * evidence at all, and counted by reason. What happened between the choice and the end of the answer is known from the events
 * (watches.h): a block that was stored since was there, whether or not a small cache still has it; and what was removed since
 * may explain what was not cached.
 *
 * Only views that are sound as far as their stream can tell are judged: what a broken stream lacks is known already. In a view that
 * is partly known only what the engine had to compute must turn up.
 *
 * Prompts of several kinds (salted, with an adapter, tokenized by an engine, tokenized here) may fare differently, so each kind of a rank
 * has the last WINDOW outcomes of its own. With OUTCOMES_MIN of them and ALARM_SHARE bad a kind has its alarm, until no more than
 * CALM_SHARE are. The view is not trusted while a kind has its alarm and no kind proves by its own outcomes that the view is
 * good: salts that the events do not tell make salted prompts be found by nobody, and the others are not to suffer for it. While a view
 * is not trusted the rank is still served, by load, so there are outcomes; predictions are made for it and not used. When prompts that were
 * tokenized here do not turn up, the tokenizer of their model is told, too (workers_hooks.tokens_doubted).
 *
 * Threads: evidence_begin and evidence_answered run on the data loops, evidence_tick on the main loop; what they share is under
 * the table's lock. Checks belong to their request until it has been answered, to a queue then.
 */
#include "app/serve/workers/views/evidence.h"

#include <string.h>
#include <kvroute/hash.h>

#include "app/serve/workers/engines/usage_reporting.h"
#include "app/serve/workers/table/room.h"
#include "app/serve/workers/views/watches.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/map64.h"
#include "wire/prom_page.h"

enum {
    WINDOW = 16,
    OUTCOMES_MIN = 8,
    ALARM_SHARE = 75, /* percent */
    CALM_SHARE = 25,
    LOOK_MS = 20,         /* events are on their way */
    LOOK_AGAIN_MS = 2000, /* some engines hold events back for a while */
    LOOK_LAST_MS = 8000,  /* later than that */
    LOOKS = 3,
    BLOCKS_MAX = 32, /* of a prompt: its beginning will do */
    CHECKS_MAX = 256,
    LENGTH_EVERY_MS = 600000,
    KINDS = 16 /* salted or not, with an adapter or not, tokenized by an engine or not, tokenized here or not */
};

enum outcome { FINE, MISSING, STALE, OUTCOMES };

/* Why an answer proves nothing. */
#define REASONS(X)                                                                                                                         \
    X(MEMBERS, "members")       /* the body has members whose effect is not known, or which hide it */                                     \
    X(UNFINISHED, "unfinished") /* no whole answer with status 200 */                                                                      \
    X(ERROR, "error")           /* an error in place of the answer, after status 200 */                                                    \
    X(USAGE, "no_usage")                                                                                                                   \
    X(LENGTH, "length")   /* the engine counts other prompt tokens: it computed something else */                                          \
    X(SHORT, "short")     /* no full block that had to turn up */                                                                          \
    X(VIEW, "view")       /* the view was not whole for other reasons */                                                                   \
    X(REMOVED, "removed") /* what was missing may have been removed between the choice and the engine's look */                            \
    X(BUSY, "busy")       /* too many at once */

enum reason {
#define REASON_NAME(name, text) NO_##name,
    REASONS(REASON_NAME)
#undef REASON_NAME
        REASONS_N
};

struct evidence_check { /* did the prompt turn up in the rank's view? */
    struct partition *partition;
    struct watch watch;
    struct evidence_check *next;         /* in a queue */
    uint64_t due_ms, batches;            /* of the rank's stream at the first look */
    uint64_t view_tokens, prompt_tokens; /* what the view had of it; all of it */
    uint64_t cached;                     /* by the answer */
    size_t blocks, all_blocks;           /* all_blocks: with lower tiers */
    unsigned kind;
    bool told;                /* the answer's cached tokens are known */
    bool trusted;             /* the view was, when it was sent */
    char made_for[MODEL_MAX]; /* its tokens were made here for that model; "": they were not */
    uint64_t locals[BLOCKS_MAX];
};

struct window {
    uint8_t last[WINDOW]; /* ring */
    size_t n;             /* outcomes so far */
    bool alarm;
};

struct rank_evidence {
    struct kvr_worker worker;
    struct window kinds[KINDS];
    uint64_t outcomes[OUTCOMES], none, untold;
    uint64_t lengths, lengths_unsaid, lengths_said_ms; /* answers that count other prompt tokens; since the last line */
    bool alarm;
};

struct queue { /* oldest first: each delay has its own, so they are due in order */
    struct evidence_check *first, **last;
    size_t n;
};

struct evidence {
    struct watches *watches;
    struct kvr_lock lock; /* what follows */
    struct queue looks[LOOKS];
    uint64_t outcomes[OUTCOMES], none[REASONS_N];
    struct rank_evidence *ranks;
    size_t ranks_n, ranks_cap;
    struct kvr_map64 places; /* of ranks, by key_of */
};

/* ---- birth and death ---------------------------------------------------------------------------------------------- */

struct evidence *evidence_create(void)
{
    struct evidence *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    kvr_lock_init(&e->lock, KVR_LOCK_EVIDENCE);
    e->watches = watches_create();
    for (int i = 0; i < LOOKS; i++) e->looks[i].last = &e->looks[i].first;
    if (e->watches) return e;
    free(e);
    return NULL;
}

static void drop(struct evidence *e, struct evidence_check *c)
{
    watches_end(e->watches, &c->watch);
    free(c);
}

static struct evidence_check *take_first(struct queue *q)
{
    struct evidence_check *c = q->first;
    if (!c) return NULL;
    q->first = c->next;
    if (!q->first) q->last = &q->first;
    q->n--;
    return c;
}

void evidence_destroy(struct evidence *e)
{
    struct evidence_check *c;
    if (!e) return;
    for (int i = 0; i < LOOKS; i++)
        while ((c = take_first(&e->looks[i]))) drop(e, c);
    watches_destroy(e->watches);
    kvr_map64_clear(&e->places);
    free(e->ranks);
    kvr_lock_destroy(&e->lock);
    free(e);
}

/* ---- ranks --------------------------------------------------------------------------------------------------------- */

static uint64_t key_of(struct kvr_worker w)
{
    return kvr_mix64(w.worker_id) + w.dp_rank;
}

static struct rank_evidence *find_rank(struct evidence *e, struct kvr_worker w)
{
    const uint64_t *at = kvr_map64_get(&e->places, key_of(w));
    return at && kvr_worker_cmp(e->ranks[*at].worker, w) == 0 ? &e->ranks[*at] : NULL;
}

static struct rank_evidence *rank_of(struct evidence *e, struct kvr_worker w)
{
    struct rank_evidence *known = find_rank(e, w);
    if (known) return known;
    if (e->ranks_n == e->ranks_cap) {
        size_t cap = e->ranks_cap ? e->ranks_cap * 2 : 16;
        struct rank_evidence *p = realloc(e->ranks, cap * sizeof *p);
        if (!p) return NULL;
        e->ranks = p;
        e->ranks_cap = cap;
    }
    if (kvr_map64_put(&e->places, key_of(w), e->ranks_n)) return NULL;
    e->ranks[e->ranks_n] = (struct rank_evidence){.worker = w};
    return &e->ranks[e->ranks_n++];
}

static void forget_locked(struct evidence *e, struct kvr_worker w)
{
    const struct rank_evidence *r = find_rank(e, w);
    if (!r) return;
    size_t i = (size_t)(r - e->ranks);
    kvr_map64_del(&e->places, key_of(w));
    e->ranks[i] = e->ranks[--e->ranks_n];
    uint64_t *moved = i < e->ranks_n ? kvr_map64_get(&e->places, key_of(e->ranks[i].worker)) : NULL;
    if (moved) *moved = i;
}

void evidence_forget(struct workers *ws, const struct worker *w)
{
    struct evidence *e = ws->evidence;
    if (!e) return;
    kvr_lock(&e->lock);
    for (uint32_t r = 0; r < DP_MAX; r++) /* also ranks that one of its id had before */
        forget_locked(e, (struct kvr_worker){w->id, w->dp_start + r});
    kvr_unlock(&e->lock);
}

/* ---- what is no evidence ------------------------------------------------------------------------------------------- */

static void count_none_locked(struct evidence *e, struct kvr_worker w, enum reason why)
{
    struct rank_evidence *r = rank_of(e, w);
    e->none[why]++;
    if (r) r->none++;
}

struct length_line { /* one that is to be logged, outside the lock */
    bool say;
    uint64_t before; /* like it */
};

static void count_length_locked(struct evidence *e, struct kvr_worker w, struct length_line *out)
{
    struct rank_evidence *r = rank_of(e, w);
    uint64_t now = kvr_now_ms();
    if (!r) return;
    r->lengths++;
    out->say = !r->lengths_said_ms || now - r->lengths_said_ms >= LENGTH_EVERY_MS;
    out->before = r->lengths_unsaid;
    r->lengths_unsaid = out->say ? 0 : r->lengths_unsaid + 1;
    if (out->say) r->lengths_said_ms = now;
}

static void tell_length(const struct evidence_check *c, const struct evidence_answer *a, uint64_t before)
{
    kvr_log_warning(
        "kvroute: worker %llu rank %u counts %llu prompt tokens, not the %llu that were hashed (%llu answers like it since the last "
        "line): another tokenizer, chat template or model than was asked for the tokens; run kvroute doctor on it",
        (unsigned long long)c->watch.worker.worker_id, c->watch.worker.dp_rank, (unsigned long long)a->usage.prompt_tokens,
        (unsigned long long)c->prompt_tokens, (unsigned long long)before);
}

static void count_none(struct workers *ws, struct kvr_worker w, enum reason why)
{
    kvr_lock(&ws->evidence->lock);
    count_none_locked(ws->evidence, w, why);
    kvr_unlock(&ws->evidence->lock);
}

/* ---- requests ------------------------------------------------------------------------------------------------------ */

static unsigned kind_of(const struct evidence_prompt *a)
{
    return (a->salt_len ? 1u : 0) | (a->lora_len ? 2u : 0) | (a->asked ? 4u : 0) | (a->made_for ? 8u : 0);
}

struct evidence_check *evidence_begin(struct workers *ws, const struct evidence_prompt *a)
{
    uint32_t bs = a->partition->block_size;
    if (!ws->evidence || !ws->ingest || !a->partition->index) return NULL;
    if (!a->understood) {
        count_none(ws, a->worker, NO_MEMBERS);
        return NULL;
    }
    struct evidence_check *c = malloc(sizeof *c);
    if (!c) return NULL;
    *c = (struct evidence_check){.partition = a->partition,
                                 .blocks = KVR_MIN(kvr_hash_block_count(a->tokens_n, bs, false), (size_t)BLOCKS_MAX),
                                 .kind = kind_of(a),
                                 .prompt_tokens = a->tokens_n,
                                 .view_tokens = (uint64_t)a->view_blocks * bs,
                                 .all_blocks = a->all_blocks,
                                 .trusted = a->trusted};
    if (a->made_for) snprintf(c->made_for, sizeof c->made_for, "%s", a->made_for);
    uint64_t seed = kvr_hash_seed(a->lora, a->lora_len, a->salt, a->salt_len);
    if (c->blocks) (void)kvr_hash_locals(a->tokens, c->blocks * bs, bs, false, seed, NULL, 0, c->locals);
    c->watch = (struct watch){.worker = a->worker, .n = c->blocks, .locals = c->locals};
    if (watches_begin(ws->evidence->watches, &c->watch)) return c;
    free(c);
    count_none(ws, a->worker, NO_BUSY);
    return NULL;
}

static bool put_locked(struct evidence *e, int look, struct evidence_check *c)
{
    static const uint64_t after_ms[LOOKS] = {LOOK_MS, LOOK_AGAIN_MS, LOOK_LAST_MS};
    struct queue *q = &e->looks[look];
    if (q->n == CHECKS_MAX) return false;
    c->due_ms = kvr_now_ms() + after_ms[look];
    c->next = NULL;
    *q->last = c;
    q->last = &c->next;
    q->n++;
    return true;
}

/* Returns: why the answer proves nothing, or REASONS_N: it does. */
static enum reason why_not(const struct evidence_check *c, const struct evidence_answer *a)
{
    if (!a->whole || a->status != 200) return NO_UNFINISHED;
    if (a->has_error) return NO_ERROR;
    if (!a->usage.present) return NO_USAGE;
    if (a->usage.prompt_tokens != c->prompt_tokens) return NO_LENGTH;
    return c->blocks ? REASONS_N : NO_SHORT;
}

void evidence_answered(struct workers *ws, struct evidence_check *c, const struct evidence_answer *a)
{
    if (!c) return;
    enum reason why = why_not(c, a);
    struct length_line line = {0};
    c->told = a->usage.has_cached;
    c->cached = a->usage.cached_tokens;
    kvr_lock(&ws->evidence->lock);
    if (why == REASONS_N && !put_locked(ws->evidence, 0, c)) why = NO_BUSY;
    if (why != REASONS_N) count_none_locked(ws->evidence, c->watch.worker, why);
    if (why == NO_LENGTH) count_length_locked(ws->evidence, c->watch.worker, &line);
    kvr_unlock(&ws->evidence->lock);
    if (line.say) tell_length(c, a, line.before);
    if (why != REASONS_N) drop(ws->evidence, c);
}

void evidence_untold(struct workers *ws, struct kvr_worker worker)
{
    if (!ws->evidence) return;
    kvr_lock(&ws->evidence->lock);
    struct rank_evidence *r = rank_of(ws->evidence, worker);
    if (r) r->untold++;
    kvr_unlock(&ws->evidence->lock);
}

void evidence_event(struct workers *ws, const struct kvr_event *ev)
{
    if (ws->evidence) watches_event(ws->evidence->watches, ev);
}

void evidence_reset(struct workers *ws, struct kvr_worker worker)
{
    if (!ws->evidence) return;
    watches_reset(ws->evidence->watches, worker);
    kvr_lock(&ws->lock); /* nobody waits for the ingest thread under it */
    struct worker *w = worker_find_locked(ws, worker.worker_id);
    if (w) usage_reporting_forget_locked(w, false);
    kvr_unlock(&ws->lock);
}

/* ---- judging ------------------------------------------------------------------------------------------------------- */

static size_t count(const struct window *w, enum outcome what)
{
    size_t n = 0;
    for (size_t i = 0; i < KVR_MIN(w->n, (size_t)WINDOW); i++) n += w->last[i] == what;
    return n;
}

static void explain(const struct window *w, size_t held, char *out, size_t cap)
{
    size_t of = KVR_MIN(w->n, (size_t)WINDOW), missing = count(w, MISSING), stale = count(w, STALE);
    if (missing && held == 0)
        snprintf(out, cap, "of %zu answers %zu left no KV events, %zu were stale: events or prefix caching are off", of, missing, stale);
    else if (missing >= stale)
        snprintf(out, cap, "of %zu answers %zu missing in the view, %zu stale: salt, LoRA, tokenizer, rank or block size", of, missing,
                 stale);
    else snprintf(out, cap, "of %zu answers %zu stale (far fewer cached tokens than the view said), %zu missing in it", of, stale, missing);
}

static void note(struct window *w, enum outcome what)
{
    w->last[w->n++ % WINDOW] = (uint8_t)what;
    size_t of = KVR_MIN(w->n, (size_t)WINDOW), bad = of - count(w, FINE);
    if (of >= OUTCOMES_MIN && bad * 100 >= of * ALARM_SHARE) w->alarm = true;
    else if (bad * 100 <= of * CALM_SHARE) w->alarm = false;
}

/* Does this kind prove that the view is good? */
static bool proves(const struct window *w)
{
    size_t of = KVR_MIN(w->n, (size_t)WINDOW);
    return of >= OUTCOMES_MIN && (of - count(w, FINE)) * 100 <= of * CALM_SHARE;
}

/* The kind that has the view distrusted, or NULL. */
static const struct window *alarmed(const struct rank_evidence *r)
{
    const struct window *found = NULL;
    for (size_t i = 0; i < KINDS; i++) {
        if (proves(&r->kinds[i])) return NULL;
        if (r->kinds[i].alarm && !found) found = &r->kinds[i];
    }
    return found;
}

/* Notes an outcome. Returns: whether the alarm has changed; the text is for the ingest then. */
static bool judge_locked(struct workers *ws, const struct evidence_check *c, enum outcome what, char *text, size_t cap)
{
    struct rank_evidence *r = rank_of(ws->evidence, c->watch.worker);
    if (!r) return false;
    note(&r->kinds[c->kind], what);
    r->outcomes[what]++;
    ws->evidence->outcomes[what]++;
    const struct window *why = alarmed(r);
    bool before = r->alarm;
    r->alarm = why != NULL;
    text[0] = 0;
    if (why && !before) explain(why, kvr_index_rank_blocks(c->partition->index, c->watch.worker), text, cap);
    return r->alarm != before;
}

/* ---- looking ------------------------------------------------------------------------------------------------------- */

/* How many leading blocks of the prompt the view has, whatever its cache groups can serve: a state of a recurrent layer may be farther on.
 */
static size_t blocks_in_view(const struct evidence_check *c)
{
    uint64_t names[BLOCKS_MAX];
    return kvr_index_names(c->partition->index, c->watch.worker, c->locals, c->blocks, names);
}

struct statuses {
    struct kvr_view_status *list;
    size_t n;
};

static void read_statuses(struct workers *ws, struct statuses *st)
{
    size_t cap = kvr_ingest_status(ws->ingest, NULL, 0) + 8;
    st->list = calloc(cap, sizeof *st->list);
    st->n = st->list ? KVR_MIN(kvr_ingest_status(ws->ingest, st->list, cap), cap) : 0;
}

static const struct kvr_view_status *status_of(const struct statuses *st, struct kvr_worker w)
{
    for (size_t i = 0; i < st->n; i++)
        if (kvr_worker_cmp(st->list[i].worker, w) == 0) return &st->list[i];
    return NULL;
}

/* Of the blocks that must have turned up, have most not? *none: there are no such. */
static bool is_missing(const struct evidence_check *c, size_t have, const bool *seen, bool partial, bool *none)
{
    size_t bs = c->partition->block_size, view = c->view_tokens / bs, n = 0;
    size_t from = partial ? KVR_MIN((size_t)(c->cached / bs), c->blocks) : 0;
    *none = from == c->blocks || (partial && !c->told);
    for (size_t i = from; i < c->blocks; i++) n += i >= have && i >= view && !seen[i];
    return !*none && n * 2 > c->blocks - from;
}

/* Far less was cached than the view had. Two blocks of difference are nothing: some engines compute the end of a prompt anew. */
static bool is_stale(const struct evidence_check *c, uint64_t view)
{
    return c->told && c->cached + UINT64_C(2) * c->partition->block_size < view && c->cached * 2 < view;
}

/* What the engine did not find may have been removed before it looked: it was stored again then, and so much was removed. */
static bool may_be_removed(const struct evidence_check *c, uint64_t view, const bool *seen, uint64_t removed)
{
    uint64_t bs = c->partition->block_size, first = c->cached / bs, end = KVR_MIN(view / bs, (uint64_t)c->blocks);
    bool again = first >= end; /* beyond those that are watched */
    for (uint64_t i = first; i < end; i++) again |= seen[i];
    return again && removed >= view / bs - first;
}

enum verdict { IS_FINE = FINE, IS_MISSING = MISSING, IS_STALE = STALE, PROVES_NOTHING };

static enum verdict verdict_of(struct workers *ws, const struct kvr_view_status *st, const struct evidence_check *c, enum reason *why)
{
    bool seen[BLOCKS_MAX], none;
    size_t have = blocks_in_view(c);
    uint64_t removed = watches_look(ws->evidence->watches, &c->watch, seen);
    uint64_t bs = c->partition->block_size, view = KVR_MIN(c->view_tokens, (c->prompt_tokens - 1) / bs * bs); /* it computes at least one */
    bool missing = is_missing(c, have, seen, st->knowledge == KVR_VIEW_PARTIAL, &none);
    if (missing) return IS_MISSING;
    *why = NO_REMOVED;
    if (is_stale(c, view)) return may_be_removed(c, view, seen, removed) ? PROVES_NOTHING : IS_STALE;
    *why = NO_SHORT;
    return none ? PROVES_NOTHING : IS_FINE;
}

/* ---- copies that may be none --------------------------------------------------------------------------------------- */

/* The engine had less than the view, and there are unproven copies (recover/consumer/copies.h): were they none? */
static bool fell_short(const struct evidence_check *c, const struct kvr_view_status *st)
{
    if (!st || !st->sound || !st->connected) return false;
    uint64_t bs = c->partition->block_size, view = KVR_MIN(c->view_tokens, c->prompt_tokens - 1) / bs, had = c->cached / bs;
    return c->told && st->unproven_copies && had < view && had < c->blocks;
}

/* The first block that it had not. When that had really gone and come again, the view was told of a store; when copies that were none kept
 * it there, the engine's store of it was taken for one more. */
static void doubt_block(struct workers *ws, const struct evidence_check *c)
{
    uint64_t names[BLOCKS_MAX];
    bool seen[BLOCKS_MAX];
    size_t at = (size_t)(c->cached / c->partition->block_size);
    (void)watches_look(ws->evidence->watches, &c->watch, seen);
    if (!seen[at] && kvr_index_names(c->partition->index, c->watch.worker, c->locals, at + 1, names) == at + 1)
        kvr_ingest_doubt_copies(ws->ingest, c->watch.worker, &names[at]);
}

/* What spoke against the view may have been such copies, and is forgotten with them. */
static void begin_anew_locked(struct evidence *e, struct kvr_worker worker)
{
    struct rank_evidence *r = find_rank(e, worker);
    if (!r) return;
    memset(r->kinds, 0, sizeof r->kinds);
    r->alarm = false;
}

/* Is it a view of ours that can be judged? */
static bool is_judged_locked(struct workers *ws, const struct evidence_check *c)
{
    const struct worker *w = worker_find_locked(ws, c->watch.worker.worker_id);
    return w && w->partition == c->partition && (w->has_events || ws->feed || ws->durable);
}

/* Is what speaks against the view, or against copies in it, looked at once more? */
static bool looks_again(const struct evidence_check *c, int which, enum verdict verdict, const struct kvr_view_status *view)
{
    bool bad = verdict == IS_MISSING || verdict == IS_STALE;
    if (which == 0) return bad || fell_short(c, view); /* the latter whatever else may explain it */
    return which == 1 && verdict == IS_MISSING && view->batches == c->batches;
}

/* The engine had what the view has of its device, and less than lower tiers were said to add: that is theirs, and nothing against the view.
 * What no removal would ever be told of is given up. */
static void doubt_tiers(const struct evidence_check *c)
{
    uint64_t prefixes[BLOCKS_MAX], bs = c->partition->block_size;
    size_t had = c->cached / bs, said = KVR_MIN(c->all_blocks, c->blocks), most = (c->prompt_tokens - 1) / bs;
    said = KVR_MIN(said, most);
    if (!c->told || !c->blocks || had >= said || c->all_blocks * bs <= c->view_tokens) return;
    kvr_hash_sequence(c->locals, c->blocks, prefixes);
    (void)kvr_index_fell_short(c->partition->index, c->watch.worker, prefixes, KVR_MAX(had, c->view_tokens / bs), said);
}

/* Returns: whether the check is over. */
static bool look(struct workers *ws, const struct statuses *st, struct evidence_check *c, int which)
{
    char text[160] = ""; /* fits struct kvr_view_status */
    bool over = true, changed = false;
    enum reason why = NO_VIEW;
    if (which == 0) doubt_tiers(c);
    const struct kvr_view_status *view = status_of(st, c->watch.worker);
    enum verdict verdict = view && view->sound && view->connected ? verdict_of(ws, view, c, &why) : PROVES_NOTHING;
    kvr_lock(&ws->lock);
    kvr_lock(&ws->evidence->lock);
    const struct rank_evidence *r = find_rank(ws->evidence, c->watch.worker);
    if (verdict == IS_STALE && !c->trusted && !(r && r->alarm)) { /* the view was not whole when the prompt was sent */
        verdict = PROVES_NOTHING;
        why = NO_VIEW;
    }
    if (!is_judged_locked(ws, c)) {
        why = NO_VIEW;
        verdict = PROVES_NOTHING;
    }
    bool later = looks_again(c, which, verdict, view);
    if (which == 0 && view) c->batches = view->batches;
    if (later) over = !put_locked(ws->evidence, which + 1, c);
    else if (verdict != PROVES_NOTHING) changed = judge_locked(ws, c, (enum outcome)verdict, text, sizeof text);
    if (over && (verdict == PROVES_NOTHING || later))
        count_none_locked(ws->evidence, c->watch.worker, verdict == PROVES_NOTHING ? why : NO_BUSY);
    bool unlike = verdict == IS_MISSING && c->made_for[0] && r && r->kinds[c->kind].alarm;
    bool doubt = changed && text[0] && view->unproven_copies;
    if (doubt) begin_anew_locked(ws->evidence, c->watch.worker);
    kvr_unlock(&ws->evidence->lock);
    kvr_unlock(&ws->lock);
    if (unlike && ws->hooks.tokens_doubted) ws->hooks.tokens_doubted(ws->hooks.ctx, c->made_for);
    if (which && fell_short(c, view)) doubt_block(ws, c);
    if (doubt) kvr_ingest_doubt_copies(ws->ingest, c->watch.worker, NULL);
    else if (changed) kvr_ingest_set_evidence(ws->ingest, c->watch.worker, text);
    return over;
}

static struct evidence_check *take_due(struct workers *ws, int which)
{
    kvr_lock(&ws->evidence->lock);
    struct queue *q = &ws->evidence->looks[which];
    struct evidence_check *c = q->first && q->first->due_ms <= kvr_now_ms() ? take_first(q) : NULL;
    kvr_unlock(&ws->evidence->lock);
    return c;
}

void evidence_tick(struct workers *ws)
{
    struct evidence *e = ws->evidence;
    struct evidence_check *c;
    if (!e || !ws->ingest) return;
    kvr_lock(&ws->evidence->lock);
    bool any = false;
    for (int which = 0; which < LOOKS; which++) any |= e->looks[which].n > 0;
    kvr_unlock(&ws->evidence->lock);
    if (!any) return;
    struct statuses st = {0};
    read_statuses(ws, &st);
    for (int which = 0; which < LOOKS; which++)
        for (int i = 0; i < CHECKS_MAX && (c = take_due(ws, which)); i++)
            if (look(ws, &st, c, which)) drop(e, c);
    free(st.list);
}

/* ---- what is told of it -------------------------------------------------------------------------------------------- */

static const char *const outcome_names[OUTCOMES] = {"fine", "missing", "stale"};

void evidence_write(struct workers *ws, struct kvr_buf *b, struct kvr_worker worker)
{
    struct rank_evidence none = {0}, *r = NULL;
    if (ws->evidence) kvr_lock(&ws->evidence->lock);
    if (ws->evidence) r = find_rank(ws->evidence, worker);
    if (!r) r = &none;
    kvr_json_printf(b, "'evidence':{");
    for (int i = 0; i < OUTCOMES; i++) kvr_json_put_u64(b, outcome_names[i], r->outcomes[i]);
    kvr_json_printf(b, "'none':%ju,'length':%ju,'untold':%ju}", r->none, r->lengths, r->untold);
    if (ws->evidence) kvr_unlock(&ws->evidence->lock);
}

struct length_row {
    struct kvr_worker worker;
    uint64_t lengths;
};

/* The lock for one rank at a time: requests take it. A rank whose place changes meanwhile, as another one goes, may be left out. */
static bool length_of(struct evidence *e, size_t at, struct length_row *out)
{
    kvr_lock(&e->lock);
    bool is = at < e->ranks_n;
    if (is) *out = (struct length_row){e->ranks[at].worker, e->ranks[at].lengths};
    kvr_unlock(&e->lock);
    return is;
}

void evidence_metrics(struct workers *ws, struct kvr_prom_page *b)
{
#define REASON_TEXT(name, text) text,
    static const char *const reasons[] = {REASONS(REASON_TEXT)};
#undef REASON_TEXT
    struct evidence *e = ws->evidence;
    if (!e) return;
    kvr_prom_family(b, "kvroute_", "view_evidence_total", "counter", "Answers by what they say of the rank's view");
    kvr_lock(&ws->evidence->lock);
    for (int i = 0; i < OUTCOMES; i++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("outcome", outcome_names[i]), KVR_PROM_TEXT("reason", "")), e->outcomes[i]);
    for (int i = 0; i < REASONS_N; i++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("outcome", "none"), KVR_PROM_TEXT("reason", reasons[i])), e->none[i]);
    kvr_prom_family(b, "kvroute_", "prompt_length_differs_total", "counter", "Answers that count other prompt tokens than were hashed");
    kvr_unlock(&ws->evidence->lock);
    struct length_row row;
    for (size_t i = 0; length_of(e, i, &row); i++)
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_RANK(row.worker.worker_id, row.worker.dp_rank)), row.lengths);
}
