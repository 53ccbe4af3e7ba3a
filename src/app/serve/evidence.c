/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evidence for and against a view, from the answers of its engine. An event stream may look perfect and still say nothing of
 * use: another block size, salt or tokenizer, prefix caching or events switched off. What cannot lie is this:
 *
 *     missing   A rank that has served a prompt holds its full blocks, so a moment later they are in its view.
 *     stale     What the view held of a prompt when it was sent there, the engine reports as cached.
 *
 * It is looked for at once and, when it is not there, once more later: events may be late, and a small cache may have given the
 * blocks up by then. The first needs nothing from the engine; the second its usage. The opposite of `stale`, more cached than the view
 * knew, is what happens when requests with one prefix overlap in time, so it is not held against the view; if the view lacked the blocks
 * for good, `missing` says so.
 *
 * Only views that are whole as far as their stream can tell are judged: what a broken stream lacks is known already.
 *
 * Of each rank the last WINDOW outcomes are kept. With OUTCOMES_MIN of them and ALARM_SHARE bad the view is not trusted any
 * more; it is again when no more than CALM_SHARE are. While it is not trusted the rank is still served, by load, so there are
 * outcomes; predictions are made for it and not used.
 *
 * Threads: evidence_answered runs on the data loops, evidence_tick on the main loop; what they share is under serve.lock.
 */
#include "app/serve/state.h"

#include <string.h>
#include <kvroute/hash.h>

enum {
    WINDOW = 16,
    OUTCOMES_MIN = 8,
    ALARM_SHARE = 75, /* percent */
    CALM_SHARE = 25,
    LOOK_MS = 20,         /* events are on their way */
    LOOK_AGAIN_MS = 2000, /* some engines hold events back for a while */
    BLOCKS_MAX = 32,      /* of a prompt: its beginning will do */
    CHECKS_MAX = 256
};

enum outcome { FINE, MISSING, STALE };

struct evidence_check { /* is the prompt in the rank's view now? */
    struct pool *pool;
    struct kvr_worker worker;
    uint64_t due_ms;
    uint64_t view_tokens, prompt_max; /* what the view had of it; what can be cached of it */
    size_t blocks;
    bool stale;   /* usage said far less than the view */
    bool trusted; /* when it was sent */
    uint64_t locals[BLOCKS_MAX];
};

struct rank_evidence {
    struct kvr_worker worker;
    uint8_t last[WINDOW]; /* ring */
    size_t n;             /* outcomes so far */
    bool alarm;
};

struct reader {
    struct pool *pool;
    struct kvr_index_reader *reader;
};

struct queue { /* ring, oldest first: each delay has its own, so they are due in order */
    struct evidence_check checks[CHECKS_MAX];
    size_t first, n;
};

struct evidence {
    struct queue looks[2];
    uint64_t skipped, outcomes[3];
    struct rank_evidence *ranks;
    size_t ranks_n, ranks_cap;
    /* the main loop's */
    struct reader *readers;
    size_t readers_n;
    struct kvr_overlap *overlaps;
    size_t overlaps_cap;
};

static void put_locked(struct evidence *e, int look, const struct evidence_check *c)
{
    struct queue *q = &e->looks[look];
    if (q->n == CHECKS_MAX) {
        e->skipped++;
        return;
    }
    struct evidence_check *at = &q->checks[(q->first + q->n++) % CHECKS_MAX];
    *at = *c;
    at->due_ms = now_ms() + (look ? LOOK_AGAIN_MS : LOOK_MS);
}

struct evidence *evidence_create(void)
{
    return calloc(1, sizeof(struct evidence));
}

void evidence_destroy(struct evidence *e)
{
    if (!e) return;
    for (size_t i = 0; i < e->readers_n; i++) kvr_index_reader_destroy(e->readers[i].reader);
    free(e->readers);
    free(e->overlaps);
    free(e->ranks);
    free(e);
}

struct evidence_check *evidence_keep(struct serve *s, const struct evidence_prompt *a)
{
    uint32_t bs = a->pool->block_size;
    size_t blocks = KVR_MIN(kvr_hash_block_count(a->tokens_n, bs, false), (size_t)BLOCKS_MAX);
    if (!s->evidence || !s->ingest || !a->pool->index || !blocks) return NULL; /* too short to say anything */
    struct evidence_check *c = malloc(sizeof *c);
    if (!c) return NULL;
    *c = (struct evidence_check){
        .pool = a->pool, .worker = a->worker, .blocks = blocks, .view_tokens = (uint64_t)a->view_blocks * bs, .trusted = a->trusted};
    c->prompt_max = (a->tokens_n - 1) / bs * bs; /* an engine computes at least one token */
    uint64_t seed = kvr_hash_seed(a->lora, a->lora_len, a->salt, a->salt_len);
    (void)kvr_hash_locals(a->tokens, blocks * bs, bs, false, seed, NULL, 0, c->locals);
    return c;
}

void evidence_answered(struct serve *s, struct evidence_check *c, bool whole, bool has_cached, uint64_t cached)
{
    uint64_t view = c ? KVR_MIN(c->view_tokens, c->prompt_max) : 0;
    if (c && whole) {
        c->stale = has_cached && view > 0 && cached < view / 2;
        pthread_mutex_lock(&s->lock);
        put_locked(s->evidence, 0, c);
        pthread_mutex_unlock(&s->lock);
    }
    free(c);
}

/* ---- judging ----------------------------------------------------------------------------------------------------- */

static struct rank_evidence *rank_of(struct evidence *e, struct kvr_worker w)
{
    for (size_t i = 0; i < e->ranks_n; i++)
        if (kvr_worker_cmp(e->ranks[i].worker, w) == 0) return &e->ranks[i];
    if (e->ranks_n == e->ranks_cap) {
        size_t cap = e->ranks_cap ? e->ranks_cap * 2 : 16;
        struct rank_evidence *p = realloc(e->ranks, cap * sizeof *p);
        if (!p) return NULL;
        e->ranks = p;
        e->ranks_cap = cap;
    }
    e->ranks[e->ranks_n] = (struct rank_evidence){.worker = w};
    return &e->ranks[e->ranks_n++];
}

static size_t count(const struct rank_evidence *r, enum outcome what)
{
    size_t n = 0;
    for (size_t i = 0; i < KVR_MIN(r->n, (size_t)WINDOW); i++) n += r->last[i] == what;
    return n;
}

static void explain(const struct rank_evidence *r, size_t held, char *out, size_t cap)
{
    size_t of = KVR_MIN(r->n, (size_t)WINDOW), missing = count(r, MISSING), stale = count(r, STALE);
    if (stale > missing) snprintf(out, cap, "%zu of %zu answers had far fewer cached tokens than the view said", stale, of);
    else if (held == 0) snprintf(out, cap, "%zu of %zu served prompts left no KV events: events or prefix caching are off", missing, of);
    else snprintf(out, cap, "%zu of %zu served prompts are not in the view: salt, LoRA, tokenizer, rank or block size", missing, of);
}

/* Notes an outcome. Returns: whether the alarm has changed; the text is for the ingest then. */
static bool judge_locked(struct serve *s, const struct evidence_check *c, enum outcome what, char *text, size_t cap)
{
    struct rank_evidence *r = rank_of(s->evidence, c->worker);
    if (!r) return false;
    if (what == STALE && !c->trusted && !r->alarm) what = FINE; /* the view was not whole when the prompt was sent */
    r->last[r->n++ % WINDOW] = (uint8_t)what;
    s->evidence->outcomes[what]++;
    size_t of = KVR_MIN(r->n, (size_t)WINDOW), bad = of - count(r, FINE);
    bool before = r->alarm;
    if (of >= OUTCOMES_MIN && bad * 100 >= of * ALARM_SHARE) r->alarm = true;
    else if (bad * 100 <= of * CALM_SHARE) r->alarm = false;
    text[0] = 0;
    if (r->alarm && !before) explain(r, kvr_index_rank_blocks(c->pool->index, c->worker), text, cap);
    return r->alarm != before;
}

/* ---- looking ------------------------------------------------------------------------------------------------------ */

static struct kvr_index_reader *reader_of(struct evidence *e, struct pool *p)
{
    for (size_t i = 0; i < e->readers_n; i++)
        if (e->readers[i].pool == p) return e->readers[i].reader;
    struct reader *more = realloc(e->readers, (e->readers_n + 1) * sizeof *more);
    if (!more) return NULL;
    e->readers = more;
    more[e->readers_n] = (struct reader){.pool = p};
    if (kvr_index_reader_create(p->index, &more[e->readers_n].reader)) return NULL;
    return more[e->readers_n++].reader;
}

/* How many leading blocks of the prompt the view has; -1: not known. */
static long blocks_in_view(struct evidence *e, const struct evidence_check *c)
{
    struct kvr_index_reader *rd = reader_of(e, c->pool);
    size_t need = kvr_index_ranks(c->pool->index) + 16;
    if (need > e->overlaps_cap) {
        struct kvr_overlap *p = realloc(e->overlaps, need * sizeof *p);
        if (!p) return -1;
        e->overlaps = p;
        e->overlaps_cap = need;
    }
    long n = rd ? kvr_index_match(rd, c->locals, c->blocks, e->overlaps, e->overlaps_cap) : -1;
    for (long i = 0; i < n; i++)
        if (kvr_worker_cmp(e->overlaps[i].worker, c->worker) == 0) return (long)e->overlaps[i].depth;
    return n < 0 ? -1 : 0;
}

struct statuses {
    struct kvr_view_status *list;
    size_t n;
};

static void read_statuses(struct serve *s, struct statuses *st)
{
    size_t cap = kvr_ingest_status(s->ingest, NULL, 0) + 8;
    st->list = calloc(cap, sizeof *st->list);
    st->n = st->list ? KVR_MIN(kvr_ingest_status(s->ingest, st->list, cap), cap) : 0;
}

/* Is there nothing else that speaks against the view? */
static bool is_sound(const struct statuses *st, struct kvr_worker w)
{
    for (size_t i = 0; i < st->n; i++)
        if (kvr_worker_cmp(st->list[i].worker, w) == 0) return st->list[i].sound && st->list[i].connected;
    return false;
}

static void look(struct serve *s, const struct statuses *st, const struct evidence_check *c, bool again)
{
    char text[96];
    if (!is_sound(st, c->worker)) return;
    long have = blocks_in_view(s->evidence, c);
    if (have < 0) return;
    bool missing = (size_t)have * 2 < c->blocks;
    pthread_mutex_lock(&s->lock);
    const struct worker *w = worker_find_locked(s, c->worker.worker_id);
    bool ours = w && w->pool == c->pool && (w->has_events || s->feed || s->durable), changed = false;
    if (missing && !again) put_locked(s->evidence, 1, c);
    else if (ours) changed = judge_locked(s, c, missing ? MISSING : c->stale ? STALE : FINE, text, sizeof text);
    pthread_mutex_unlock(&s->lock);
    if (changed) kvr_ingest_set_evidence(s->ingest, c->worker, text);
}

static bool take_due(struct serve *s, int which, struct evidence_check *out)
{
    pthread_mutex_lock(&s->lock);
    struct queue *q = &s->evidence->looks[which];
    bool due = q->n && q->checks[q->first].due_ms <= now_ms();
    if (due) {
        *out = q->checks[q->first];
        q->first = (q->first + 1) % CHECKS_MAX;
        q->n--;
    }
    pthread_mutex_unlock(&s->lock);
    return due;
}

void evidence_tick(struct serve *s)
{
    struct evidence *e = s->evidence;
    struct evidence_check c;
    if (!e || !s->ingest) return;
    pthread_mutex_lock(&s->lock);
    bool any = e->looks[0].n || e->looks[1].n;
    pthread_mutex_unlock(&s->lock);
    if (!any) return;
    struct statuses st = {0};
    read_statuses(s, &st);
    for (int i = 0; i < CHECKS_MAX && take_due(s, 0, &c); i++) look(s, &st, &c, false);
    for (int i = 0; i < CHECKS_MAX && take_due(s, 1, &c); i++) look(s, &st, &c, true);
    free(st.list);
}

void evidence_forget_locked(struct serve *s, uint64_t worker_id)
{
    struct evidence *e = s->evidence;
    for (size_t i = 0; e && i < e->ranks_n;)
        if (e->ranks[i].worker.worker_id == worker_id) e->ranks[i] = e->ranks[--e->ranks_n];
        else i++;
}

void evidence_metrics(struct serve *s, struct kvr_buf *b)
{
    static const char *const names[] = {"fine", "missing", "stale"};
    struct evidence *e = s->evidence;
    if (!e) return;
    kvr_buf_str(
        b, "# HELP kvroute_view_evidence_total Answers by what they say of the rank's view\n# TYPE kvroute_view_evidence_total counter\n");
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < 3; i++)
        kvr_buf_printf(b, "kvroute_view_evidence_total{outcome=\"%s\"} %llu\n", names[i], (unsigned long long)e->outcomes[i]);
    kvr_buf_printf(b,
                   "# HELP kvroute_view_evidence_skipped_total Answers that were not looked at: too many at once\n"
                   "# TYPE kvroute_view_evidence_skipped_total counter\nkvroute_view_evidence_skipped_total %llu\n",
                   (unsigned long long)e->skipped);
    pthread_mutex_unlock(&s->lock);
}
