/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A view against a model of its engine, in virtual time and with seeded faults: never trusted and wrong, and trusted again within the
 * bound once the faults are over.
 *
 *     engine (its lives, their batches, what it held after each) -> live stream, replay socket, recover endpoint -> the view -> a set of
 * blocks
 *
 * The faults: batches of the live stream are lost, or come twice; the connection breaks, with what was under way or without; the engine
 * ends and begins another life, seen by the connection or (behind a forwarder, which loses nothing) not; the replay socket is silent, keeps
 * few batches, answers late, answers for the life before; the program is held up.
 *
 * Blocks are 64 numbers, the parent of block n is (n - 1) / 2: sets are words, and names are the same in every life.
 *
 * KVR_SEEDS: how many seeds (each runs in every mode); KVR_SEED: one alone, told step by step.
 */
#include "test.h"

#include <stdio.h>

#include "net/ingest/internal.h"
#include "wire/engine_encode.h"

enum {
    BS = 4,
    STEP_MS = 10,
    FAULTS_MS = 20000,
    BOUND_MS = 150000, /* a replay may take 30 times the time that it may be silent; questions are asked again every 30 s at the latest */
    CALM_MS = 3000,
    RESTORE_MS = 1000,
    LIVES = 256
};

enum mode { REPLAY, REPLAY_SHORT, NO_REPLAY, RECOVER, RECOVER_NO_EPOCH, MODES };
static const char *const MODE_NAMES[] = {"replay", "replay of the last batches", "no replay", "recover", "recover, no epoch"};

struct sent {
    char *data;
    size_t len;
    struct kvr_event_list events; /* the same */
    uint64_t held;                /* by the engine, after it */
};

struct life {
    struct sent *batches;
    size_t n, cap;
};

enum kind { BATCH, BROKEN, CONNECTED, END };

/* On its way. Each way keeps its order. */
struct message {
    struct message *next;
    uint64_t at_ms;
    enum kind kind;
    unsigned life;
    uint64_t seq;
};

struct way {
    struct message *head, **tail;
    uint64_t last_ms;
};

struct question {
    uint64_t at_ms, from;
    bool out;
};

/* To the recover endpoint. */
struct asked {
    struct kvr_recover_question q;
    uint64_t at_ms;    /* it arrives, or is answered */
    uint64_t until_ms; /* and is given up */
    bool out, begun;
    unsigned life; /* of the answer, and how many batches it had when that began */
    size_t n;
};

struct world {
    struct kvr_rng rng;
    enum mode mode;
    bool told; /* step by step */
    struct kvr_ingest *in;
    struct source *s;
    uint64_t now_ms, held; /* by the view */
    /* the engine */
    struct life lives[LIVES];
    unsigned life;
    bool up;
    uint64_t up_at_ms, engine_held;
    size_t buffer; /* batches that can be replayed */
    /* the wire */
    bool attached; /* the engine's publisher has the subscription */
    uint64_t attach_at_ms, heard_from_ms;
    struct way live, answers;
    struct question question;
    struct asked asked;
    uint64_t mute_until_ms, stalled_until_ms;
    unsigned loss, repeats, breaks, restarts, mutes, stalls; /* of 10,000: a batch, a step */
    bool forwarded;                                          /* the connection is to somebody in between, who lives on */
    unsigned line, taken_of; /* the life that the view is connected to, and of the last batch that it has had */
    bool connected, undecidable;
    const char *wrong;
};

static struct world *the_world; /* for the clock */

static bool chance(struct world *w, unsigned of_10000)
{
    return kvr_rng_below(&w->rng, 10000) < of_10000;
}

static uint64_t up_to(struct world *w, unsigned ms)
{
    return kvr_rng_below(&w->rng, ms + 1);
}

#define TELL(w, ...) ((w)->told ? (void)(printf("%7llu ", (unsigned long long)(w)->now_ms), printf(__VA_ARGS__), printf("\n")) : (void)0)

/* ---- the view's side ----------------------------------------------------------------------------------- */

static uint64_t bit(uint64_t name)
{
    return name >= 1 && name <= 64 ? UINT64_C(1) << (name - 1) : 0;
}

/* As the index does it. */
static int on_event(void *ctx, void *user, const struct kvr_event *ev, const struct kvr_ingest_origin *origin)
{
    struct world *w = ctx;
    int rc = 0;
    (void)user, (void)origin;
    switch (ev->kind) {
    case KVR_EVENT_CLEARED: w->held = 0; break;
    case KVR_EVENT_STORED:
        if (ev->has_parent && !(w->held & bit(ev->parent_hash))) return -KVR_EPARENT;
        for (size_t i = 0; i < ev->blocks_n; i++) w->held |= bit(ev->blocks[i].block_hash);
        break;
    case KVR_EVENT_REMOVED:
        for (size_t i = 0; i < ev->removed_n; i++) {
            if (!(w->held & bit(ev->removed[i]))) rc = -KVR_ENOTFOUND;
            w->held &= ~bit(ev->removed[i]);
        }
        break;
    }
    return rc;
}

static void on_reset(void *ctx, void *user, struct kvr_worker worker)
{
    struct world *w = ctx;
    (void)user, (void)worker;
    TELL(w, "the view is emptied");
    w->held = 0;
}

static void on_view(void *ctx, void *user, struct kvr_worker worker, enum kvr_view_knowledge k, const char *reason)
{
    const struct world *w = ctx;
    (void)user, (void)worker;
    TELL(w, "the view is %s: %s", kvr_view_knowledge_name(k), reason);
}

static bool ask_replay(struct source *s, uint64_t from)
{
    struct world *w = the_world;
    (void)s;
    TELL(w, "asks for batches from %llu", (unsigned long long)from);
    w->question = (struct question){w->now_ms + 1 + up_to(w, 20), from, true};
    return true;
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

static void renew(struct kvr_ingest *in, struct source *s)
{
    (void)in;
    clear_way(&the_world->answers);
    the_world->question.out = false;
    s->owed_ends = 0;
}

static int ask_worker(struct kvr_ingest *in, const struct kvr_recover_question *q)
{
    struct world *w = the_world;
    (void)in;
    if (q->has_start) TELL(w, "asks for events from %llu", (unsigned long long)q->start);
    else TELL(w, "asks for everything");
    w->asked = (struct asked){.q = *q, .at_ms = w->now_ms + 1 + up_to(w, 20), .until_ms = w->now_ms + 10000, .out = true};
    return 0;
}

static void cancel(struct kvr_ingest *in, uint64_t token)
{
    (void)in;
    if (the_world->asked.q.token == token) the_world->asked.out = false;
}

static uint64_t now_ns(void)
{
    return the_world->now_ms * 1000000;
}

static const struct ingest_effects EFFECTS = {ask_replay, renew, ask_worker, cancel, now_ns};

/* ---- the wire ------------------------------------------------------------------------------------------ */

static void put(struct world *w, struct way *q, enum kind kind, unsigned life, uint64_t seq, unsigned delay_ms)
{
    struct message *m = malloc(sizeof *m);
    assert_non_null(m);
    q->last_ms = KVR_MAX(q->last_ms, w->now_ms + up_to(w, delay_ms));
    *m = (struct message){NULL, q->last_ms, kind, life, seq};
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

static void break_line(struct world *w)
{
    if (!w->attached) return;
    if (chance(w, 3000)) clear_way(&w->live); /* what was under way is lost */
    w->attached = false;
    w->attach_at_ms = w->now_ms + 50 + up_to(w, 1000);
    put(w, &w->live, BROKEN, w->life, 0, 50);
    TELL(w, "the connection breaks");
}

static void attach(struct world *w)
{
    w->attached = true;
    w->heard_from_ms = w->now_ms + up_to(w, 100); /* the subscription may stand later than the connection */
    put(w, &w->live, CONNECTED, w->life, 0, 20);
    TELL(w, "connects to life %u", w->life);
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

struct batch {
    struct kvr_buf text;
    struct kvr_event_list events;
};

static void add_event(struct batch *out, const struct kvr_event *ev, uint64_t first, size_t n)
{
    uint32_t tokens[64 * BS];
    for (size_t i = 0; i < n * BS; i++) tokens[i] = (uint32_t)(first * 1000 + i);
    struct kvr_engine_words words = {.tokens = tokens, .tokens_n = n * BS, .block_size = BS};
    struct kvr_engine_words none = {0};
    kvr_engine_encode(&out->text, ev, ev->kind == KVR_EVENT_STORED ? &words : &none);
    assert_int_equal(kvr__event_list_add(&out->events, ev), 0);
}

/* Blocks that it lacks, on the way down to `leaf`. */
static void store_path(struct world *w, struct batch *out, unsigned leaf)
{
    unsigned path[8], n = 0;
    for (unsigned b = leaf;; b = (b - 1) / 2) {
        if (w->engine_held >> b & 1) break;
        path[n++] = b;
        if (b == 0) break;
    }
    if (!n) return;
    struct kvr_block blocks[8];
    for (unsigned i = 0; i < n; i++) blocks[i] = (struct kvr_block){path[n - 1 - i] + 1, 0};
    unsigned first = path[n - 1];
    struct kvr_event ev = {
        .kind = KVR_EVENT_STORED, .has_parent = first > 0, .parent_hash = first ? (first - 1) / 2 + 1 : 0, .blocks = blocks, .blocks_n = n};
    add_event(out, &ev, first, n);
    for (unsigned i = 0; i < n; i++) w->engine_held |= UINT64_C(1) << path[i];
}

static bool is_leaf(uint64_t held, unsigned b)
{
    if (!(held >> b & 1)) return false;
    return (2 * b + 1 > 63 || !(held >> (2 * b + 1) & 1)) && (2 * b + 2 > 63 || !(held >> (2 * b + 2) & 1));
}

static void remove_leaf(struct world *w, struct batch *out)
{
    unsigned from = kvr_rng_below(&w->rng, 64);
    for (unsigned i = 0; i < 64; i++) {
        unsigned b = (from + i) % 64;
        if (!is_leaf(w->engine_held, b)) continue;
        uint64_t name = b + 1;
        struct kvr_event ev = {.kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
        add_event(out, &ev, 0, 0);
        w->engine_held &= ~(UINT64_C(1) << b);
        return;
    }
}

static void fill_batch(struct world *w, struct batch *out)
{
    unsigned most = 1 + kvr_rng_below(&w->rng, 3);
    if (chance(w, 50)) {
        struct kvr_event ev = {.kind = KVR_EVENT_CLEARED};
        add_event(out, &ev, 0, 0);
        w->engine_held = 0;
    }
    for (unsigned i = 0; i < most; i++) {
        if (chance(w, 5500)) store_path(w, out, kvr_rng_below(&w->rng, 64));
        else remove_leaf(w, out);
    }
}

static void publish(struct world *w)
{
    struct life *l = &w->lives[w->life];
    struct batch b = {0};
    struct kvr_buf text = {0};
    kvr__event_list_init(&b.events, NULL);
    fill_batch(w, &b);
    if (b.events.n) kvr_engine_encode_batch(&text, 1000 + (double)w->now_ms / 1e3, &b.text, (uint32_t)b.events.n, 0);
    kvr_buf_free(&b.text);
    if (!b.events.n) return;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        l->batches = realloc(l->batches, l->cap * sizeof *l->batches);
        assert_non_null(l->batches);
    }
    l->batches[l->n++] = (struct sent){text.data, text.len, b.events, w->engine_held};
    (void)kvr__event_list_events(&l->batches[l->n - 1].events);
    bool lost = !w->attached || w->now_ms < w->heard_from_ms || chance(w, w->loss);
    TELL(w, "batch %zu of life %u%s", l->n - 1, w->life, lost ? ", lost" : "");
    if (!lost) put(w, &w->live, BATCH, w->life, l->n - 1, 30);
    if (!lost && chance(w, w->repeats))
        put(w, &w->live, BATCH, w->life, l->n - 1 - kvr_rng_below(&w->rng, (uint32_t)KVR_MIN(l->n, (size_t)20)), 30);
}

static void end_life(struct world *w)
{
    if (w->life + 1 == LIVES) return;
    TELL(w, "life %u ends", w->life);
    if (!w->forwarded) break_line(w);
    w->up = false;
    w->life++;
    w->engine_held = 0;
    w->up_at_ms = w->now_ms + up_to(w, 2000);
    w->attach_at_ms = KVR_MAX(w->attach_at_ms, w->up_at_ms);
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
    const struct life *l = &w->lives[w->life];
    uint64_t from = KVR_MAX(q->from, l->n > w->buffer ? l->n - w->buffer : 0);
    unsigned slow = chance(w, 1000) ? 400 : 3;
    for (uint64_t i = from; i < l->n; i++) put(w, &w->answers, BATCH, w->life, i, slow);
    put(w, &w->answers, END, w->life, 0, slow);
}

/* ---- the recover endpoint -------------------------------------------------------------------------------- */

static void add_content(struct kvr_event_list *l, uint64_t held)
{
    for (unsigned i = 0; i < 64; i++) {
        struct kvr_block b = {i + 1, i + 1};
        struct kvr_event ev = {
            .kind = KVR_EVENT_STORED, .has_parent = i > 0, .parent_hash = i ? (i - 1) / 2 + 1 : 0, .blocks = &b, .blocks_n = 1};
        if (held >> i & 1) assert_int_equal(kvr__event_list_add(l, &ev), 0);
    }
}

static void add_events(struct kvr_event_list *l, const struct life *life, uint64_t from, size_t n)
{
    for (uint64_t seq = from; seq < n; seq++)
        for (size_t i = 0; i < life->batches[seq].events.n; i++) {
            struct kvr_event ev = life->batches[seq].events.events[i];
            ev.event_id = seq;
            assert_int_equal(kvr__event_list_add(l, &ev), 0);
        }
}

/* A dump holds what was there at some moment between its beginning and its end. */
static void write_dump(struct world *w, struct kvr_recover_answer *a)
{
    const struct life *l = &w->lives[w->asked.life];
    size_t at = w->asked.n + kvr_rng_below(&w->rng, (uint32_t)(l->n - w->asked.n + 1));
    a->kind = KVR_RECOVER_TREE_DUMP;
    a->last_event_id = w->asked.n ? w->asked.n - 1 : 0;
    a->end_event_id = l->n ? l->n - 1 : 0;
    a->has_end = true;
    add_content(&a->events, at ? l->batches[at - 1].held : 0);
}

static struct kvr_recover_reply *reply_to(struct world *w)
{
    struct kvr_recover_reply *r = calloc(1, sizeof *r);
    const struct asked *q = &w->asked;
    const struct life *l = &w->lives[q->life];
    assert_non_null(r);
    struct kvr_recover_answer *a = &r->answer;
    kvr__event_list_init(&a->events, NULL);
    r->token = q->q.token;
    r->answered = q->begun;
    a->has_last = true;
    a->has_epoch = w->mode == RECOVER;
    a->epoch = 1000 + q->life;
    if (!q->begun) {
        *a = (struct kvr_recover_answer){.kind = KVR_RECOVER_FAILED, .message = "nobody answers", .events = a->events};
    } else if (!q->q.has_start || q->n == 0 || q->q.start + w->buffer < q->n) {
        write_dump(w, a);
    } else if (q->q.start >= q->n) {
        a->kind = KVR_RECOVER_TOO_NEW;
        a->newest_available = q->n - 1;
    } else {
        a->kind = KVR_RECOVER_EVENTS;
        a->last_event_id = q->n - 1;
        add_events(&a->events, l, q->q.start, q->n);
    }
    return r;
}

static void recover_step(struct world *w)
{
    struct asked *q = &w->asked;
    if (!q->out || w->now_ms < q->at_ms) return;
    if (!q->begun && w->up && w->now_ms >= w->mute_until_ms) {
        q->begun = true;
        q->life = w->life;
        q->n = w->lives[w->life].n;
        q->at_ms = w->now_ms + up_to(w, chance(w, 1000) ? 3000 : 100);
        return;
    }
    if (!q->begun && w->now_ms < q->until_ms) return;
    if (q->begun && q->life != w->life && chance(w, 5000)) { /* it ended with the engine: the client tries again */
        q->begun = false;
        return;
    }
    q->out = false;
    struct kvr_recover_reply *r = reply_to(w);
    TELL(w, "answer: %s of life %u",
         r->answer.kind == KVR_RECOVER_TREE_DUMP ? "dump"
         : r->answer.kind == KVR_RECOVER_EVENTS  ? "events"
         : r->answer.kind == KVR_RECOVER_TOO_NEW ? "too new"
                                                 : "none",
         q->life);
    w->in->now_ms = w->now_ms;
    kvr__view_reply(w->in, w->s, r);
}

static void faults(struct world *w)
{
    if (chance(w, w->breaks)) break_line(w);
    if (w->up && chance(w, w->restarts)) end_life(w);
    if (chance(w, w->mutes)) w->mute_until_ms = w->now_ms + up_to(w, 5000);
    if (chance(w, w->stalls)) w->stalled_until_ms = w->now_ms + up_to(w, 4000);
}

static void engine_step(struct world *w)
{
    if (!w->up && w->now_ms >= w->up_at_ms) w->up = true;
    if (w->up && !w->attached && w->now_ms >= w->attach_at_ms) attach(w);
    if (w->up && chance(w, 1500)) publish(w);
    answer(w);
}

/* ---- what must hold ------------------------------------------------------------------------------------ */

static uint64_t truth(const struct world *w)
{
    const struct life *l = &w->lives[w->line];
    uint64_t next = w->s->cursor.next;
    if (!w->s->cursor.applied_any || next == 0) return 0;
    return next <= l->n ? l->batches[next - 1].held : 0;
}

/* The recover endpoint may tell of the next life before the connection to this one is seen to be broken. And a dump may be ahead of its
 * place until its end. */
static bool is_between(const struct world *w)
{
    return w->mode >= RECOVER && (w->line != w->life || w->s->cursor.next <= w->s->orphans_until);
}

static void check(struct world *w)
{
    const struct kvr_view_status *st = &w->s->st;
    if (st->knowledge == KVR_VIEW_UNKNOWN || w->wrong || is_between(w)) return;
    if (!w->connected) w->wrong = "trusted without a connection";
    else if (w->s->cursor.applied_any && w->s->cursor.next > w->lives[w->line].n) w->wrong = "trusted, ahead of its engine";
    else if (w->held & ~truth(w)) w->wrong = "trusted, and has what its engine has not";
    else if (st->knowledge == KVR_VIEW_WHOLE && !w->s->healed && w->held != truth(w)) w->wrong = "whole, and lacks what its engine has";
    if (w->wrong)
        TELL(w, "WRONG: %s: has %016llx, the engine %016llx at %llu of life %u", w->wrong, (unsigned long long)w->held,
             (unsigned long long)truth(w), (unsigned long long)w->s->cursor.next, w->line);
}

/* Without anybody to ask, a batch of another life that happens to be the next one is taken for the same stream: this run says nothing. */
static bool nobody_can_tell(const struct world *w, const struct message *m)
{
    return w->mode == NO_REPLAY && w->s->cursor.applied_any && m->life != w->taken_of && m->seq == w->s->cursor.next;
}

static void take_live_message(struct world *w, const struct message *m)
{
    const struct sent *b;
    switch (m->kind) {
    case BATCH:
        b = &w->lives[m->life].batches[m->seq];
        w->undecidable |= nobody_can_tell(w, m);
        if (w->undecidable) break;
        w->taken_of = w->line = m->life;
        kvr__view_live(w->in, w->s, m->seq, b->data, b->len);
        break;
    case BROKEN:
        w->connected = false;
        kvr__view_disconnected(w->in, w->s);
        break;
    case CONNECTED:

        w->line = m->life;
        w->connected = true;
        kvr__view_connected(w->in, w->s);
        break;
    case END: break;
    }
}

static void view_step(struct world *w)
{
    struct message *m;
    w->in->now_ms = w->now_ms;
    while (!w->s->settling && (m = due(&w->live, w->now_ms))) {
        take_live_message(w, m);
        free(m);
        check(w);
    }
    while ((m = due(&w->answers, w->now_ms))) {
        const struct sent *b = m->kind == BATCH ? &w->lives[m->life].batches[m->seq] : NULL;
        kvr__view_replay_part(w->in, w->s, b ? m->seq : UINT64_MAX, b ? b->data : "", b ? b->len : 0);
        free(m);
        check(w);
    }
    recover_step(w);
    check(w);
    kvr__view_step(w->in, w->s);
    check(w);
    kvr__view_deadlines(w->in, w->s);
    check(w);
}

static void step(struct world *w)
{
    w->now_ms += STEP_MS;
    engine_step(w);
    if (w->now_ms >= w->stalled_until_ms) view_step(w);
}

/* ---- a run --------------------------------------------------------------------------------------------- */

static void world_open(struct world *w, struct kvr_ingest *in, struct source *s, uint64_t seed, enum mode mode)
{
    *w = (struct world){.rng = {seed * 2654435761u + 17}, .mode = mode, .in = in, .s = s, .up = true, .now_ms = 1000};
    for (int i = 0; i < 8; i++) (void)kvr_rng_next(&w->rng);
    clear_way(&w->live);
    clear_way(&w->answers);
    bool is_short = mode == REPLAY_SHORT || (mode >= RECOVER && chance(w, 5000));
    w->buffer = is_short ? 1 + kvr_rng_below(&w->rng, 20) : SIZE_MAX / 2;
    unsigned *rates[] = {&w->loss, &w->repeats, &w->breaks, &w->restarts, &w->mutes, &w->stalls}, most[] = {1000, 1000, 30, 15, 20, 10};
    for (size_t i = 0; i < KVR_ARRAY_LEN(rates); i++) *rates[i] = chance(w, 6000) ? kvr_rng_below(&w->rng, most[i] + 1) : 0;
    w->forwarded = mode < RECOVER && chance(w, 2000);
    if (w->forwarded) w->loss = w->breaks = 0;
    *in = (struct kvr_ingest){.handler = {.on_event = on_event, .on_reset = on_reset, .on_view = on_view, .ctx = w},
                              .effects = &EFFECTS,
                              .restore_timeout_ms = RESTORE_MS,
                              .now_ms = w->now_ms};
    kvr_engine_batch_init(&in->batch);
    *s = (struct source){.st.worker = {1, 0}, .ranks_n = 1, .missing_why = ""};
    s->wait_tail = &s->wait_head;
    s->reach.said = true;                                          /* no line of the log for each */
    s->dealer = mode == REPLAY || mode == REPLAY_SHORT ? w : NULL; /* there is one: nothing more is asked of it here */
    if (mode >= RECOVER) snprintf(s->recover, sizeof s->recover, "http://engine");
    kvr_engine_stream_init(&s->own.stream, s->st.worker, BS);
    the_world = w;
    kvr__view_begin(in, s);
}

static void world_close(struct world *w)
{
    kvr__view_forget_repair(w->in, w->s);
    kvr_engine_stream_free(&w->s->own.stream);
    kvr_engine_batch_free(&w->in->batch);
    clear_way(&w->live);
    clear_way(&w->answers);
    for (unsigned i = 0; i <= w->life; i++) {
        for (size_t k = 0; k < w->lives[i].n; k++) {
            free(w->lives[i].batches[k].data);
            kvr__event_list_free(&w->lives[i].batches[k].events);
        }
        free(w->lives[i].batches);
    }
}

static bool is_well(const struct world *w)
{
    bool all = w->mode != REPLAY_SHORT && w->mode != NO_REPLAY;
    enum kvr_view_knowledge least = all ? KVR_VIEW_WHOLE : KVR_VIEW_PARTIAL;
    return w->connected && w->s->st.knowledge >= least && !kvr__view_repairing(w->s);
}

/* Returns: what was wrong, or NULL. */
static const char *run(struct world *w)
{
    uint64_t faults_end = w->now_ms + FAULTS_MS, well_since = 0;
    while (w->now_ms < faults_end && !w->wrong && !w->undecidable) {
        faults(w);
        step(w);
    }
    w->loss = 0;
    w->mute_until_ms = 0;
    TELL(w, "no faults from here on");
    while (!w->wrong && !w->undecidable && w->now_ms < faults_end + BOUND_MS) {
        step(w);
        if (!is_well(w)) well_since = 0;
        else if (!well_since) well_since = w->now_ms;
        else if (w->now_ms - well_since >= CALM_MS) return NULL;
    }
    return w->wrong ? w->wrong : w->undecidable ? NULL : "not trusted again within the bound";
}

struct tally {
    unsigned long runs, undecidable, gaps, restarts, replays, failures, overflows;
};

static const char *run_seed(uint64_t seed, enum mode mode, bool told, struct tally *t)
{
    static struct kvr_ingest in;
    static struct source s;
    static struct world w;
    world_open(&w, &in, &s, seed, mode);
    w.told = told;
    const char *wrong = run(&w);
    t->runs++;
    t->undecidable += w.undecidable;
    t->gaps += s.st.gaps;
    t->restarts += s.st.restarts;
    t->replays += s.st.replays;
    t->failures += s.st.replay_failures;
    t->overflows += s.st.overflows;
    world_close(&w);
    return wrong;
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void never_trusted_and_wrong(void **state)
{
    uint64_t first = number_of("KVR_SEED", 1), n = getenv("KVR_SEED") ? 1 : number_of("KVR_SEEDS", 400);
    (void)state;
    for (enum mode mode = 0; mode < MODES; mode++) {
        struct tally t = {0};
        for (uint64_t seed = first; seed < first + n; seed++) {
            const char *wrong = run_seed(seed, mode, getenv("KVR_SEED") != NULL, &t);
            if (wrong) fail_msg("%s: %s: KVR_SEED=%llu tells it step by step", MODE_NAMES[mode], wrong, (unsigned long long)seed);
        }
        printf("%s: %lu runs, %lu gaps, %lu restarts, %lu replays, %lu of them failed; %lu that nobody could tell\n", MODE_NAMES[mode],
               t.runs, t.gaps, t.restarts, t.replays, t.failures, t.undecidable);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(never_trusted_and_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
