/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A view against a model of its engine, in virtual time and with seeded faults: never trusted and wrong, and trusted again within the
 * bound once the faults are over.
 *
 *     engine (its runs, their batches, what it held after each) -> live stream, replay socket, recover endpoint -> the view -> a set of
 *     blocks                                                       and heartbeats
 *
 * The faults: batches of the live stream are lost, or come twice, or late; the connection breaks, with what was under way or without; the
 * engine restarts, seen by the connection or (behind a forwarder, which loses nothing) not; the replay socket is silent, keeps few
 * batches, answers late, answers for the run before; the recover endpoint too, and a dump is cut off before it is applied; the program is
 * held up, pauses the source, has no memory for an event, gives blocks up by itself, gets content from elsewhere, hears evidence.
 *
 * Blocks are 64 numbers, the parent of block n is (n - 1) / 2: sets are words, and names are the same in every run.
 *
 * KVR_SEED: the first seed; KVR_OPS: a hundred times the number of seeds, each of which runs in one mode. Of one seed alone (KVR_OPS=100)
 * every step is told.
 */
#include "test.h"

#include <stdio.h>

#include <kvroute/hash.h>

#include "recover/consumer/view.h"

enum {
    STEP_MS = 10,
    FAULTS_MS = 15000,
    BOUND_MS = 150000, /* a replay may take 30 times the time that it may be silent; questions are asked again every 30 s at the latest */
    CALM_MS = 3000,
    HEARTBEAT_MS = 1000,
    RESTORE_MS = 1000,
    RUNS = 256,
    BATCH_EVENTS = 4
};

struct mode {
    const char *name;
    bool replay, few, recover, epochs, shared, durable, heartbeats; /* few: the replay socket has the last batches only */
};

static const struct mode MODES[] = {
    {.name = "replay", .replay = true},
    {.name = "replay of the last batches", .replay = true, .few = true},
    {.name = "no replay"},
    {.name = "recover", .recover = true, .epochs = true},
    {.name = "recover, no epoch", .recover = true},
    {.name = "replay and recover", .replay = true, .recover = true, .epochs = true},
    {.name = "replay of the last batches and recover", .replay = true, .few = true, .recover = true, .epochs = true},
    {.name = "event plane", .shared = true, .heartbeats = true},
    {.name = "event plane, no heartbeats", .shared = true},
    {.name = "event plane and recover", .shared = true, .heartbeats = true, .recover = true, .epochs = true},
    {.name = "durable stream", .shared = true, .durable = true, .heartbeats = true},
    {.name = "durable stream and recover", .shared = true, .durable = true, .heartbeats = true, .recover = true, .epochs = true},
};

struct event {
    bool removed, cleared;
    unsigned first, n; /* a path down from `first`: blocks[n]; or the block that is removed */
    uint64_t blocks[8];
};

struct sent {
    struct event events[BATCH_EVENTS];
    size_t n;
    uint64_t held; /* by the engine, after it */
    double ts;
};

struct run {
    struct sent *batches;
    size_t n, cap;
};

enum kind { BATCH, BROKEN, CONNECTED, HEARTBEAT, END };

/* On its way. Each way keeps its order. seq: index of a batch in its run. */
struct message {
    struct message *next;
    uint64_t at_ms;
    enum kind kind;
    unsigned run;
    uint64_t seq;
};

struct way {
    struct message *head, **tail;
    uint64_t last_ms;
};

/* To the replay socket. */
struct question {
    uint64_t at_ms, from;
    bool out;
};

/* To the recover endpoint. */
struct asked {
    bool out, begun, everything;
    uint64_t from;
    uint64_t at_ms;    /* it arrives, or is answered */
    uint64_t until_ms; /* and is given up */
    unsigned run;      /* of the answer, and how many batches it had when that began */
    size_t n;
};

struct world {
    struct kvr_rng rng;
    const struct mode *mode;
    bool told; /* step by step */
    struct kvr_view view;
    uint64_t now_ms, held; /* by the view */
    uint64_t given_up;     /* by the index itself, of these */
    const struct sent *read;
    /* the engine */
    struct run runs[RUNS];
    unsigned run;
    bool up;
    int64_t clock_ms; /* its host's, ahead of ours */
    uint64_t up_at_ms, engine_held;
    size_t buffer; /* batches that can be replayed */
    /* the wire */
    bool attached; /* the engine's publisher has the subscription */
    bool paused;
    uint64_t attach_at_ms, heard_from_ms, heartbeat_at_ms;
    struct way live, answers;
    struct question question;
    struct asked asked;
    uint64_t mute_until_ms, stalled_until_ms, evidence_until_ms, resume_at_ms;
    unsigned loss, repeats, late, breaks, restarts, mutes, stalls, memory, evidence, pauses, clocks,
        adopts;        /* of 10,000: a batch, an event, a step */
    bool forwarded;    /* the connection is to a process in between, which goes on when the engine restarts */
    unsigned line;     /* the run that the view is connected to, or has last heard of */
    unsigned taken_of; /* the run of the last batch that it has had */
    unsigned content;  /* the run that an answer was of */
    bool connected, undecidable, lossy, adopted;
    const char *wrong;
};

static bool chance(struct world *w, unsigned of_10000)
{
    return of_10000 && kvr_rng_below(&w->rng, 10000) < of_10000;
}

static uint64_t up_to(struct world *w, unsigned ms)
{
    return kvr_rng_below(&w->rng, ms + 1);
}

#define TELL(w, ...) ((w)->told ? (void)(printf("%7llu ", (unsigned long long)(w)->now_ms), printf(__VA_ARGS__), printf("\n")) : (void)0)

/* The sequence, or the id, of the first batch of a run. */
static uint64_t first_seq(const struct world *w)
{
    return w->mode->shared ? KVR_VIEW_FIRST_EVENT : 0;
}

static uint64_t publisher_of(unsigned run)
{
    return 1000 + run;
}

/* ---- the view's side ----------------------------------------------------------------------------------- */

static uint64_t bit(uint64_t name)
{
    return name >= 1 && name <= 64 ? UINT64_C(1) << (name - 1) : 0;
}

static uint64_t parent_of(uint64_t name)
{
    return name > 1 ? name / 2 : 0;
}

/* As the index does it. */
static int apply_to_set(struct world *w, const struct kvr_event *ev)
{
    int rc = 0;
    switch (ev->kind) {
    case KVR_EVENT_CLEARED: w->held = w->given_up = 0; break;
    case KVR_EVENT_STORED:
        if (ev->has_parent && !(w->held & bit(ev->parent_hash))) return -KVR_EPARENT;
        for (size_t i = 0; i < ev->blocks_n; i++) w->held |= bit(ev->blocks[i].block_hash);
        break;
    case KVR_EVENT_REMOVED:
        if (chance(w, w->memory)) return -KVR_ENOMEM;
        for (size_t i = 0; i < ev->removed_n; i++) {
            if (!(w->held & bit(ev->removed[i]))) rc = -KVR_ENOTFOUND;
            w->held &= ~bit(ev->removed[i]);
        }
        break;
    }
    return rc;
}

static void act_apply_event(void *ctx, const struct kvr_event *ev)
{
    struct world *w = ctx;
    kvr__view_event(&w->view, ev, apply_to_set(w, ev), false);
}

/* The event in the library's words; `blocks` has room for its blocks. */
static struct kvr_event event_of(const struct event *e, struct kvr_block *blocks)
{
    struct kvr_event ev = {.kind = e->cleared ? KVR_EVENT_CLEARED : e->removed ? KVR_EVENT_REMOVED : KVR_EVENT_STORED};
    if (e->removed) {
        ev.removed = e->blocks;
        ev.removed_n = 1;
    } else if (!e->cleared) {
        for (unsigned i = 0; i < e->n; i++) blocks[i] = (struct kvr_block){e->blocks[i], 0};
        ev.has_parent = parent_of(e->blocks[0]) != 0;
        ev.parent_hash = parent_of(e->blocks[0]);
        ev.blocks = blocks;
        ev.blocks_n = e->n;
    }
    return ev;
}

/* A payload names its batch. */
static bool act_read(void *ctx, struct kvr_view_batch *b)
{
    struct world *w = ctx;
    uint64_t at[2];
    if (b->len != sizeof at) return false;
    memcpy(at, b->data, sizeof at);
    w->read = &w->runs[at[0]].batches[at[1]];
    if (!w->mode->shared) w->line = (unsigned)at[0]; /* what waits has not been looked at */
    b->ts = w->read->ts;
    b->publisher = w->mode->shared ? publisher_of((unsigned)at[0]) : 0;
    b->clears = w->mode->shared && w->read->events[0].cleared;
    return true;
}

static void act_apply(void *ctx, const struct kvr_view_batch *b, bool again, struct kvr_view_applied *out)
{
    struct world *w = ctx;
    struct kvr_block blocks[8];
    (void)b, (void)again, (void)out;
    for (size_t i = 0; i < w->read->n; i++) {
        struct kvr_event ev = event_of(&w->read->events[i], blocks);
        act_apply_event(w, &ev);
    }
}

static void act_clear(void *ctx)
{
    struct world *w = ctx;
    TELL(w, "the view is emptied");
    w->held = w->given_up = 0;
    w->adopted = false;
}

static void act_nothing(void *) {}

static bool act_no(void *)
{
    return false;
}

static enum kvr_view_knowledge act_worth(void *ctx, const char **why)
{
    (void)ctx, (void)why;
    return KVR_VIEW_WHOLE;
}

static void act_trust(void *ctx, enum kvr_view_knowledge k, const char *reason)
{
    TELL((struct world *)ctx, "the view is %s: %s", k == KVR_VIEW_WHOLE ? "whole" : k == KVR_VIEW_PARTIAL ? "partial" : "unknown", reason);
}

static void clear_way(struct way *q)
{
    while (q->head) {
        struct message *m = q->head;
        q->head = m->next;
        free(m);
    }
    q->tail = &q->head;
}

static bool act_replay(void *ctx, uint64_t from)
{
    struct world *w = ctx;
    TELL(w, "asks for batches from %llu", (unsigned long long)from);
    w->question = (struct question){w->now_ms + 1 + up_to(w, 20), from, true};
    return !chance(w, 20);
}

static bool act_renew(void *ctx)
{
    struct world *w = ctx;
    clear_way(&w->answers);
    w->question.out = false;
    return true;
}

static int act_ask(void *ctx, bool everything, uint64_t from)
{
    struct world *w = ctx;
    if (everything) TELL(w, "asks for everything");
    else TELL(w, "asks for events from %llu", (unsigned long long)from);
    if (chance(w, 20)) return -KVR_ENOMEM;
    w->asked = (struct asked){
        .out = true, .everything = everything, .from = from, .at_ms = w->now_ms + 1 + up_to(w, 20), .until_ms = w->now_ms + 10000};
    return 0;
}

static void act_cancel(void *ctx)
{
    ((struct world *)ctx)->asked.out = false;
}

static bool act_more(void *ctx, size_t messages, size_t)
{
    return messages == 0 || !chance(ctx, 500);
}

static void act_keep(void *ctx, const struct kvr_view_batch *b)
{
    (void)ctx, (void)b;
}

static const struct kvr_view_actions ACTIONS = {.read = act_read,
                                                .apply = act_apply,
                                                .apply_event = act_apply_event,
                                                .clear = act_clear,
                                                .clear_rank = act_clear,
                                                .engine_restart = act_nothing,
                                                .forget_copies = act_nothing,
                                                .copies_unsure = act_no,
                                                .worth = act_worth,
                                                .replay = act_replay,
                                                .renew = act_renew,
                                                .ask = act_ask,
                                                .cancel = act_cancel,
                                                .more = act_more,
                                                .trust = act_trust,
                                                .keep = act_keep,
                                                .keep_anew = act_nothing,
                                                .reach = act_nothing};

/* The view, to be given an input. */
static struct kvr_view *view_of(struct world *w)
{
    w->view.now = (struct kvr_view_now){.ms = w->now_ms, .stream_up = w->mode->shared && w->connected, .durable = w->mode->durable};
    return &w->view;
}

/* ---- the wire ------------------------------------------------------------------------------------------ */

static void put(struct world *w, struct way *q, enum kind kind, unsigned run, uint64_t seq, unsigned delay_ms)
{
    struct message *m = malloc(sizeof *m);
    assert_non_null(m);
    q->last_ms = KVR_MAX(q->last_ms, w->now_ms + up_to(w, delay_ms));
    *m = (struct message){NULL, q->last_ms, kind, run, seq};
    *q->tail = m;
    q->tail = &m->next;
}

static struct message *due(struct way *q, uint64_t now)
{
    struct message *m = q->head;
    if (!m || m->at_ms > now) return NULL;
    q->head = m->next;
    if (!q->head) q->tail = &q->head;
    return m;
}

/* A durable stream brings what it has kept when it is there again. */
static void break_line(struct world *w)
{
    if (!w->attached) return;
    if (!w->mode->durable && chance(w, 3000)) clear_way(&w->live); /* what was under way is lost */
    w->attached = false;
    w->attach_at_ms = w->now_ms + 50 + up_to(w, 1000);
    put(w, &w->live, BROKEN, w->run, 0, 50);
    TELL(w, "the connection breaks");
}

static void attach(struct world *w)
{
    w->attached = true;
    w->heard_from_ms = w->now_ms + (w->mode->durable ? 0 : up_to(w, 100)); /* the subscription may stand later than the connection */
    put(w, &w->live, CONNECTED, w->run, 0, 20);
    TELL(w, "connects to run %u", w->run);
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

/* Blocks that it lacks, on the way down to `leaf`. */
static void store_path(struct world *w, struct sent *out, unsigned leaf)
{
    unsigned path[8], n = 0;
    for (unsigned b = leaf;; b = (b - 1) / 2) {
        if (w->engine_held >> b & 1) break;
        path[n++] = b;
        if (b == 0) break;
    }
    if (!n) return;
    struct event *e = &out->events[out->n++];
    *e = (struct event){.n = n};
    for (unsigned i = 0; i < n; i++) {
        e->blocks[i] = path[n - 1 - i] + 1;
        w->engine_held |= bit(e->blocks[i]);
    }
}

static bool is_leaf(uint64_t held, unsigned b)
{
    if (!(held >> b & 1)) return false;
    return (2 * b + 1 > 63 || !(held >> (2 * b + 1) & 1)) && (2 * b + 2 > 63 || !(held >> (2 * b + 2) & 1));
}

/* The name of a leaf, or 0. */
static uint64_t some_leaf(struct world *w, uint64_t held)
{
    unsigned from = kvr_rng_below(&w->rng, 64);
    for (unsigned i = 0; i < 64; i++)
        if (is_leaf(held, (from + i) % 64)) return (from + i) % 64 + 1;
    return 0;
}

static void remove_leaf(struct world *w, struct sent *out)
{
    uint64_t name = some_leaf(w, w->engine_held);
    if (!name) return;
    out->events[out->n++] = (struct event){.removed = true, .n = 1, .blocks = {name}};
    w->engine_held &= ~bit(name);
}

static void clear(struct world *w, struct sent *out)
{
    out->events[out->n++] = (struct event){.cleared = true};
    w->engine_held = 0;
}

static double stamp(const struct world *w)
{
    return 1000 + (double)((int64_t)w->now_ms + w->clock_ms) / 1e3;
}

/* One event where each has an id of its own; a publisher begins with a clear. */
static void fill_batch(struct world *w, struct sent *out, bool first)
{
    unsigned most = w->mode->shared ? 1 : 1 + kvr_rng_below(&w->rng, 3);
    if (chance(w, 50) || (w->mode->shared && first)) clear(w, out);
    for (unsigned i = w->mode->shared ? (unsigned)out->n : 0; i < most; i++) {
        if (chance(w, 5500)) store_path(w, out, kvr_rng_below(&w->rng, 64));
        else remove_leaf(w, out);
    }
}

static void publish(struct world *w)
{
    struct run *r = &w->runs[w->run];
    struct sent b = {.ts = stamp(w)};
    fill_batch(w, &b, r->n == 0);
    if (!b.n) return;
    b.held = w->engine_held;
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 64;
        r->batches = realloc(r->batches, r->cap * sizeof *r->batches);
        assert_non_null(r->batches);
    }
    r->batches[r->n++] = b;
    bool lost = w->mode->durable ? w->paused : !w->attached || w->now_ms < w->heard_from_ms || chance(w, w->loss);
    TELL(w, "batch %zu of run %u%s", r->n - 1, w->run, lost ? ", lost" : "");
    if (lost) return;
    put(w, &w->live, BATCH, w->run, r->n - 1, 30);
    if (chance(w, w->repeats)) put(w, &w->live, BATCH, w->run, r->n - 1 - kvr_rng_below(&w->rng, (uint32_t)KVR_MIN(r->n, (size_t)20)), 30);
    bool late = w->mode->shared && w->run && w->runs[w->run - 1].n && chance(w, w->late);
    if (late) put(w, &w->live, BATCH, w->run - 1, w->runs[w->run - 1].n - 1, 30); /* of the run before */
}

static void engine_restart(struct world *w)
{
    if (w->run + 1 == RUNS) return;
    TELL(w, "run %u ends", w->run);
    if (!w->forwarded && !w->mode->shared) break_line(w);
    w->up = false;
    w->run++;
    if (w->mode->heartbeats && chance(w, w->clocks)) w->clock_ms = (int64_t)up_to(w, 600000) - 300000;
    w->engine_held = 0;
    w->up_at_ms = w->now_ms + 10 + up_to(w, 2000);
    if (!w->mode->shared) w->attach_at_ms = KVR_MAX(w->attach_at_ms, w->up_at_ms);
    if (chance(w, 5000)) clear_way(&w->answers);
    if (chance(w, 5000)) w->question.out = false;
}

/* The replay socket. A question waits while nobody is there. */
static void answer(struct world *w)
{
    struct question *q = &w->question;
    if (!q->out || q->at_ms > w->now_ms || !w->up) return;
    q->out = false;
    if (w->now_ms < w->mute_until_ms) return;
    const struct run *r = &w->runs[w->run];
    uint64_t from = KVR_MAX(q->from, r->n > w->buffer ? r->n - w->buffer : 0);
    unsigned slow = chance(w, 1000) ? 400 : 3;
    for (uint64_t i = from; i < r->n; i++) put(w, &w->answers, BATCH, w->run, i, slow);
    put(w, &w->answers, END, w->run, 0, slow);
}

/* ---- the recover endpoint -------------------------------------------------------------------------------- */

static void add_content(struct kvr_event_list *l, uint64_t held)
{
    for (unsigned i = 0; i < 64; i++) {
        struct kvr_block b = {i + 1, i + 1};
        struct kvr_event ev = {.kind = KVR_EVENT_STORED, .has_parent = i > 0, .parent_hash = parent_of(i + 1), .blocks = &b, .blocks_n = 1};
        if (held >> i & 1) assert_int_equal(kvr__event_list_add(l, &ev), 0);
    }
}

static void add_events(struct world *w, struct kvr_event_list *l, const struct run *r, uint64_t from, size_t n)
{
    struct kvr_block blocks[8];
    for (uint64_t at = from; at < n; at++)
        for (size_t i = 0; i < r->batches[at].n; i++) {
            struct kvr_event ev = event_of(&r->batches[at].events[i], blocks);
            ev.event_id = at + first_seq(w);
            assert_int_equal(kvr__event_list_add(l, &ev), 0);
        }
}

/* A dump holds what was there at some moment between its beginning and its end. */
static void write_dump(struct world *w, struct kvr_recover_answer *a)
{
    const struct run *r = &w->runs[w->asked.run];
    size_t at = w->asked.n + kvr_rng_below(&w->rng, (uint32_t)(r->n - w->asked.n + 1));
    a->kind = KVR_RECOVER_TREE_DUMP;
    a->last_event_id = w->asked.n ? w->asked.n - 1 + first_seq(w) : 0;
    a->end_event_id = r->n ? r->n - 1 + first_seq(w) : 0;
    a->has_end = true;
    add_content(&a->events, at ? r->batches[at - 1].held : 0);
}

static void write_answer(struct world *w, struct kvr_recover_answer *a)
{
    const struct asked *q = &w->asked;
    uint64_t end = q->n + first_seq(w); /* the next */
    *a = (struct kvr_recover_answer){.has_last = true, .has_epoch = w->mode->epochs, .epoch = 1000 + q->run};
    kvr__event_list_init(&a->events, NULL);
    if (!q->begun) {
        a->kind = KVR_RECOVER_FAILED;
        a->has_epoch = false;
        snprintf(a->message, sizeof a->message, "nobody answers");
    } else if (q->everything || q->n == 0 || q->from < first_seq(w) || q->from + w->buffer < end) {
        write_dump(w, a);
    } else if (q->from >= end) {
        a->kind = KVR_RECOVER_TOO_NEW;
        a->newest_available = end - 1;
    } else {
        a->kind = KVR_RECOVER_EVENTS;
        a->last_event_id = end - 1;
        add_events(w, &a->events, &w->runs[q->run], q->from - first_seq(w), q->n);
    }
}

static void recover_step(struct world *w)
{
    struct asked *q = &w->asked;
    if (!q->out || w->now_ms < q->at_ms) return;
    if (!q->begun && w->up && w->now_ms >= w->mute_until_ms) {
        q->begun = true;
        q->run = w->run;
        q->n = w->runs[w->run].n;
        q->at_ms = w->now_ms + up_to(w, chance(w, 1000) ? 3000 : 100);
        return;
    }
    if (!q->begun && w->now_ms < q->until_ms) return;
    if (q->begun && q->run != w->run && chance(w, 5000)) { /* it ended with the engine: the client tries again */
        q->begun = false;
        return;
    }
    q->out = false;
    struct kvr_recover_answer a;
    write_answer(w, &a);
    static const char *const KINDS[] = {"events", "dump", "too new", "invalid", "failed", "unknown"};
    TELL(w, "answer: %s of run %u", KINDS[a.kind], q->run);
    if (q->begun) w->content = q->run;
    kvr__view_answer(view_of(w), &a);
    kvr__event_list_free(&a.events);
}

/* ---- faults ---------------------------------------------------------------------------------------------- */

static void give_up_leaf(struct world *w)
{
    uint64_t name = some_leaf(w, w->held);
    w->held &= ~bit(name);
    w->given_up |= bit(name);
}

static void pause_source(struct world *w)
{
    TELL(w, "paused");
    w->paused = true;
    w->resume_at_ms = w->now_ms + up_to(w, 3000);
    if (w->mode->durable) { /* what passes is not brought again; of what is under way nothing is taken */
        struct message **p = &w->live.head;
        while (*p) {
            struct message *m = *p;
            if (m->kind != BATCH) {
                p = &m->next;
                continue;
            }
            *p = m->next;
            free(m);
        }
        w->live.tail = p;
    } else if (!w->mode->shared) {
        clear_way(&w->live);
        w->attached = w->connected = false;
        w->attach_at_ms = UINT64_MAX;
        act_renew(w);
    }
    kvr__view_paused(view_of(w));
}

static void resume_source(struct world *w)
{
    TELL(w, "resumed");
    w->paused = false;
    if (!w->mode->shared) w->attach_at_ms = w->now_ms + up_to(w, 100);
    kvr__view_begin(view_of(w));
    if (w->mode->shared && view_of(w)->now.stream_up) kvr__view_connected(view_of(w));
}

/* A view that is not whole gets content of the run that it is connected to, as another router has it: whole, or lacking some. */
static void adopt(struct world *w)
{
    const struct run *r = &w->runs[w->line];
    bool can = w->mode->replay || w->mode->recover, partial = chance(w, 3000);
    if (!can || w->mode->shared || !w->connected || w->line != w->run || !r->n) return;
    if (w->view.knowledge >= (partial ? KVR_VIEW_PARTIAL : KVR_VIEW_WHOLE)) return;
    size_t n = 1 + kvr_rng_below(&w->rng, (uint32_t)r->n);
    uint64_t payload[2] = {w->line, n - 1};
    struct kvr_view_cursor c = {true, partial, n, kvr_hash_bytes(payload, sizeof payload, 0), r->batches[n - 1].ts};
    TELL(w, "content from elsewhere, up to batch %zu of run %u", n - 1, w->line);
    w->held = r->batches[n - 1].held;
    w->given_up = 0;
    for (unsigned i = partial ? 5 : 0; i; i--) w->held &= ~bit(some_leaf(w, w->held));
    kvr__view_adopt(view_of(w), &c);
}

static void faults(struct world *w)
{
    if (chance(w, w->breaks)) break_line(w);
    if (w->up && chance(w, w->restarts)) engine_restart(w);
    if (chance(w, w->mutes)) w->mute_until_ms = w->now_ms + up_to(w, 5000);
    if (chance(w, w->stalls)) w->stalled_until_ms = w->now_ms + up_to(w, 4000);
    if (!w->paused && chance(w, w->pauses)) pause_source(w);
    if (chance(w, w->adopts)) adopt(w);
    if (w->lossy && chance(w, 300)) give_up_leaf(w);
    if (!w->evidence_until_ms && chance(w, w->evidence)) {
        w->evidence_until_ms = w->now_ms + up_to(w, 2000);
        kvr__view_evidence(view_of(w), "predictions do not come true");
    }
}

static void engine_step(struct world *w)
{
    if (!w->up && w->now_ms >= w->up_at_ms) w->up = true;
    bool there = w->up || w->mode->shared || w->forwarded;
    if (there && !w->attached && !w->paused && w->now_ms >= w->attach_at_ms) attach(w);
    if (w->up && chance(w, 1500)) publish(w);
    if (w->up && w->mode->heartbeats && w->now_ms >= w->heartbeat_at_ms) {
        w->heartbeat_at_ms = w->now_ms + HEARTBEAT_MS;
        if (w->attached && !chance(w, w->loss)) put(w, &w->live, HEARTBEAT, w->run, w->runs[w->run].n, 30);
    }
    answer(w);
}

/* ---- what must hold ------------------------------------------------------------------------------------ */

/* The run that the content is of. */
static unsigned run_of_content(const struct world *w)
{
    if (!w->mode->shared) return w->line;
    return w->view.publisher ? (unsigned)(w->view.publisher - publisher_of(0)) : w->content;
}

static uint64_t truth(const struct world *w)
{
    const struct run *r = &w->runs[run_of_content(w)];
    uint64_t next = w->view.cursor.next, first = first_seq(w);
    if (!w->view.cursor.applied_any || next <= first) return 0;
    return next - first <= r->n ? r->batches[next - first - 1].held : 0;
}

/* Who is asked, at a replay socket or a recover endpoint, may tell of the next run before the connection to this one is seen to be broken
 * (50 ms later at most), or, behind a forwarder, before its first batch comes. And a dump may be ahead of its place until its end. */
static bool is_between(const struct world *w)
{
    if (w->mode->replay && w->line != w->run) return true;
    return w->mode->recover && (w->line != w->run || run_of_content(w) != w->run || w->view.cursor.next <= w->view.orphans_until);
}

static void check(struct world *w)
{
    const struct kvr_view *v = &w->view;
    if (!w->wrong) w->wrong = kvr__view_check(v);
    if (v->knowledge == KVR_VIEW_UNKNOWN || w->wrong || is_between(w)) return;
    uint64_t is = truth(w), end = w->runs[run_of_content(w)].n + first_seq(w);
    bool whole = v->knowledge == KVR_VIEW_WHOLE && v->past != KVR_PAST_HEALED && !w->lossy;
    if (!w->connected || w->paused) w->wrong = "trusted without a connection";
    else if (v->cursor.applied_any && v->cursor.next > end) w->wrong = "trusted, ahead of its engine";
    else if (w->held & ~is) w->wrong = "trusted, and has what its engine has not";
    else if (whole && w->held != is) w->wrong = "whole, and lacks what its engine has";
    if (w->wrong)
        TELL(w, "WRONG: %s: has %016llx, the engine %016llx at %llu of run %u", w->wrong, (unsigned long long)w->held,
             (unsigned long long)is, (unsigned long long)v->cursor.next, run_of_content(w));
}

/* ---- a step ---------------------------------------------------------------------------------------------- */

/* Without anybody to ask, a batch of another run that happens to be the next one is taken for the same stream: this run says nothing. */
static bool nobody_can_tell(const struct world *w, const struct message *m)
{
    bool alone = !w->mode->replay && !w->mode->recover && !w->mode->shared;
    return alone && w->view.cursor.applied_any && m->run != w->taken_of && m->seq == w->view.cursor.next;
}

static void take_batch(struct world *w, const struct message *m)
{
    uint64_t payload[2] = {m->run, m->seq}, id = m->seq + first_seq(w);
    w->undecidable |= nobody_can_tell(w, m);
    if (w->undecidable || (w->mode->shared && w->paused)) return;
    w->taken_of = m->run;
    if (w->mode->shared) w->line = KVR_MAX(w->line, m->run);
    struct kvr_view *v = view_of(w);
    if (!w->mode->shared || kvr__view_expects(v, publisher_of(m->run), id, false, w->mode->heartbeats))
        kvr__view_batch(v, id, (const char *)payload, sizeof payload);
}

static void take_connected(struct world *w, const struct message *m)
{
    if (!w->mode->shared) w->line = m->run;
    w->connected = true;
    if (w->paused) return;
    if (w->mode->shared) kvr__view_stream_up(view_of(w));
    else kvr__view_connected(view_of(w));
}

static void take_broken(struct world *w)
{
    w->connected = false;
    if (w->paused) return;
    if (w->mode->shared) kvr__view_stream_down(view_of(w));
    else kvr__view_disconnected(view_of(w));
}

static void take_live_message(struct world *w, const struct message *m)
{
    switch (m->kind) {
    case BATCH: take_batch(w, m); break;
    case BROKEN: take_broken(w); break;
    case CONNECTED: take_connected(w, m); break;
    case HEARTBEAT:
        w->line = KVR_MAX(w->line, m->run);
        if (!w->paused) kvr__view_heartbeat(view_of(w), publisher_of(m->run), stamp(w), m->seq);
        break;
    case END: break;
    }
}

static void take_answers(struct world *w)
{
    struct message *m;
    while ((m = due(&w->answers, w->now_ms))) {
        uint64_t payload[2] = {m->run, m->seq};
        bool end = m->kind == END;
        kvr__view_replay_part(view_of(w), end ? UINT64_MAX : m->seq, (const char *)payload, end ? 0 : sizeof payload);
        free(m);
        check(w);
    }
}

static void view_step(struct world *w)
{
    struct message *m;
    if (w->paused && w->now_ms >= w->resume_at_ms) resume_source(w);
    if (w->evidence_until_ms && w->now_ms >= w->evidence_until_ms) {
        w->evidence_until_ms = 0;
        kvr__view_evidence(view_of(w), "");
    }
    while (!kvr__view_is_settling(&w->view) && (m = due(&w->live, w->now_ms))) {
        take_live_message(w, m);
        free(m);
        check(w);
    }
    take_answers(w);
    recover_step(w);
    check(w);
    if (kvr__view_is_busy(&w->view)) kvr__view_step(view_of(w));
    check(w);
    kvr__view_tick(view_of(w));
    check(w);
}

static void step(struct world *w)
{
    w->now_ms += STEP_MS;
    engine_step(w);
    if (w->now_ms >= w->stalled_until_ms) view_step(w);
}

/* ---- a seed -------------------------------------------------------------------------------------------- */

static void world_open(struct world *w, uint64_t seed, const struct mode *mode)
{
    *w = (struct world){.rng = {seed * 2654435761u + 17}, .mode = mode, .up = true, .now_ms = 1000};
    for (int i = 0; i < 8; i++) (void)kvr_rng_next(&w->rng);
    clear_way(&w->live);
    clear_way(&w->answers);
    bool is_short = mode->few || (mode->recover && chance(w, 5000));
    w->buffer = is_short ? 1 + kvr_rng_below(&w->rng, 20) : SIZE_MAX / 2;
    unsigned *rates[] = {&w->loss,   &w->repeats, &w->late,     &w->breaks, &w->restarts, &w->mutes,
                         &w->stalls, &w->memory,  &w->evidence, &w->pauses, &w->adopts,   &w->clocks};
    unsigned most[] = {1000, 1000, 500, 30, 15, 20, 10, 100, 10, 10, 20, 5000};
    for (size_t i = 0; i < KVR_ARRAY_LEN(rates); i++) *rates[i] = chance(w, 5000) ? kvr_rng_below(&w->rng, most[i] + 1) : 0;
    w->forwarded = !mode->recover && !mode->shared && chance(w, 2000);
    w->lossy = chance(w, 1000);
    if (w->forwarded) w->loss = w->breaks = w->pauses = 0;
    struct kvr_view *v = &w->view;
    kvr__view_init(v, &ACTIONS, w);
    v->block_size = 4;
    v->restore_timeout_ms = RESTORE_MS;
    v->has_replay = mode->replay;
    v->has_recover = mode->recover;
    v->shared = v->enveloped = mode->shared;
    v->lossy = w->lossy;
    kvr__view_begin(view_of(w));
}

static void world_close(struct world *w)
{
    kvr__view_end(&w->view);
    clear_way(&w->live);
    clear_way(&w->answers);
    for (unsigned i = 0; i <= w->run; i++) free(w->runs[i].batches);
}

/* Without anybody who has it all, what was lost stays so; without heartbeats nobody tells of a last event that was lost. */
static bool is_well(const struct world *w)
{
    bool all = w->mode->recover || (w->mode->replay && !w->mode->few);
    enum kvr_view_knowledge least = all ? KVR_VIEW_WHOLE : KVR_VIEW_PARTIAL;
    return w->connected && w->view.knowledge >= least && !kvr__view_is_repairing(&w->view) && run_of_content(w) == w->run;
}

static void end_faults(struct world *w)
{
    w->loss = w->late = w->memory = 0;
    w->mute_until_ms = 0;
    TELL(w, "no faults from here on");
}

/* Returns: what was wrong, or NULL. */
static const char *run_world(struct world *w)
{
    uint64_t faults_end = w->now_ms + FAULTS_MS, well_since = 0;
    while (w->now_ms < faults_end && !w->wrong && !w->undecidable) {
        faults(w);
        step(w);
    }
    end_faults(w);
    while (!w->wrong && !w->undecidable && w->now_ms < faults_end + BOUND_MS) {
        step(w);
        if (!is_well(w)) well_since = 0;
        else if (!well_since) well_since = w->now_ms;
        else if (w->now_ms - well_since >= CALM_MS) return NULL;
    }
    return w->wrong ? w->wrong : w->undecidable ? NULL : "not trusted again within the bound";
}

struct tally {
    unsigned long seeds, undecidable, gaps, restarts, replays, questions, failures;
};

static const char *run_seed(uint64_t seed, const struct mode *mode, bool told, struct tally *t)
{
    static struct world w;
    world_open(&w, seed, mode);
    w.told = told;
    const char *wrong = run_world(&w);
    t->seeds++;
    t->undecidable += w.undecidable;
    t->gaps += w.view.counts.gaps;
    t->restarts += w.view.counts.restarts;
    t->replays += w.view.counts.replays;
    t->questions += w.view.counts.questions;
    t->failures += w.view.counts.replay_failures + w.view.counts.recovery_failures;
    world_close(&w);
    return wrong;
}

static void never_trusted_and_wrong(void **)
{
    uint64_t first = env_u64("KVR_SEED", 1), n = env_u64("KVR_OPS", 300000) / 100;
    struct tally all[KVR_ARRAY_LEN(MODES)] = {0};
    for (uint64_t seed = first; seed < first + n; seed++) {
        size_t at = seed % KVR_ARRAY_LEN(MODES);
        const char *wrong = run_seed(seed, &MODES[at], n == 1, &all[at]);
        if (wrong) fail_msg("%s: %s: KVR_SEED=%llu KVR_OPS=100 tells it step by step", MODES[at].name, wrong, (unsigned long long)seed);
    }
    printf("seeds %llu to %llu\n", (unsigned long long)first, (unsigned long long)(first + n - 1));
    for (size_t i = 0; i < KVR_ARRAY_LEN(MODES); i++)
        printf("%s: %lu seeds, %lu gaps, %lu restarts, %lu replays, %lu questions, %lu of both failed; %lu that nobody could tell\n",
               MODES[i].name, all[i].seeds, all[i].gaps, all[i].restarts, all[i].replays, all[i].questions, all[i].failures,
               all[i].undecidable);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(never_trusted_and_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
