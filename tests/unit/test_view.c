/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table in recover/consumer/view.h, row by row, with actions that are written down; symptoms that views have had; and hostile input.
 * KVR_SEED sets the first seed of the latter, KVR_OPS the number of inputs.
 */
#include "test.h"

#include <stdio.h>
#include <kvroute/hash.h>

#include "recover/consumer/view.h"

enum { RESTORE_MS = 1000 };

enum ways { NOBODY = 0, REPLAY = 1, RECOVER = 2, SHARED = 4, DURABLE = 8 };

/* What a view has asked for, and how it is answered. */
struct fake {
    struct kvr_view v;
    char log[4096];
    uint64_t held; /* blocks 1 to 64 */
    char payload;
    int rc;         /* of applying */
    int ask_rc;     /* of asking */
    bool no_replay; /* a replay cannot be asked for */
    bool in_turns;  /* one waiting batch in each turn */
    enum kvr_view_knowledge worth;
    bool durable, up;
    uint64_t now;
};

static void note(struct fake *f, const char *what)
{
    size_t at = strlen(f->log);
    snprintf(f->log + at, sizeof f->log - at, "%s%s", at ? ", " : "", what);
}

/* What was done since it was last looked at. */
static const char *done(struct fake *f)
{
    static char text[sizeof f->log];
    memcpy(text, f->log, sizeof text);
    f->log[0] = 0;
    return text;
}

/* ---- actions ------------------------------------------------------------------------------------------- */

/* A payload is a letter and a number: S1 stores block 1, R1 removes it, C clears; X cannot be decoded. Of an event the number is its
 * publisher's too. */
static bool act_read(void *ctx, struct kvr_view_batch *b)
{
    struct fake *f = ctx;
    if (b->len < 2 || b->data[0] == 'X') return false;
    f->payload = b->data[0];
    b->ts = (double)f->now;
    b->publisher = f->v.enveloped ? (uint64_t)(b->data[1] - '0') : 0;
    b->clears = f->v.enveloped && b->data[0] == 'C';
    return true;
}

static void act_apply_event(void *ctx, const struct kvr_event *ev)
{
    struct fake *f = ctx;
    if (ev->kind == KVR_EVENT_CLEARED) f->held = 0;
    if (ev->kind == KVR_EVENT_STORED && !f->rc) f->held |= UINT64_C(1) << ev->blocks[0].block_hash;
    if (ev->kind == KVR_EVENT_REMOVED && !f->rc) f->held &= ~(UINT64_C(1) << ev->removed[0]);
    kvr__view_event(&f->v, ev, f->rc, false);
}

static struct kvr_event make_event(char kind, const struct kvr_block *block, const uint64_t *name)
{
    struct kvr_event ev = {.kind = kind == 'C' ? KVR_EVENT_CLEARED : kind == 'R' ? KVR_EVENT_REMOVED : KVR_EVENT_STORED};
    if (kind == 'R') {
        ev.removed = name;
        ev.removed_n = 1;
    } else if (kind != 'C') {
        ev.blocks = block;
        ev.blocks_n = 1;
    }
    return ev;
}

static void act_apply(void *ctx, const struct kvr_view_batch *b, bool again, struct kvr_view_applied *out)
{
    struct fake *f = ctx;
    struct kvr_block block = {(uint64_t)(b->data[1] - '0'), 0};
    struct kvr_event ev = make_event(f->payload, &block, &block.block_hash);
    char text[64];
    snprintf(text, sizeof text, "apply %llu%s", (unsigned long long)b->seq, again ? " again" : "");
    note(f, text);
    if (f->payload == 'O') {
        out->other_rank = true;
        out->rank = 7;
    } else if (f->payload == 'B') {
        out->other_block_size = true;
        out->engine_block_size = 32;
    } else {
        act_apply_event(f, &ev);
    }
}

static void act_clear(void *ctx)
{
    struct fake *f = ctx;
    f->held = 0;
    note(f, "clear");
}

static void act_restart(void *ctx)
{
    note(ctx, "restart");
}

static void act_nothing(void *) {}

static bool act_no(void *)
{
    return false;
}

static enum kvr_view_knowledge act_worth(void *ctx, const char **why)
{
    *why = "not understood";
    return ((struct fake *)ctx)->worth;
}

static bool act_replay(void *ctx, uint64_t from)
{
    struct fake *f = ctx;
    char text[64];
    snprintf(text, sizeof text, "replay %llu", (unsigned long long)from);
    note(f, text);
    return !f->no_replay;
}

static bool act_renew(void *ctx)
{
    note(ctx, "renew");
    return true;
}

static int act_ask(void *ctx, bool everything, uint64_t from)
{
    struct fake *f = ctx;
    char text[64];
    snprintf(text, sizeof text, everything ? "ask all" : "ask %llu", (unsigned long long)from);
    note(f, text);
    return f->ask_rc;
}

static void act_cancel(void *ctx)
{
    note(ctx, "cancel");
}

static bool act_more(void *ctx, size_t messages, size_t)
{
    return messages == 0 || !((struct fake *)ctx)->in_turns;
}

static void act_trust(void *ctx, enum kvr_view_knowledge k, const char *)
{
    note(ctx, k == KVR_VIEW_WHOLE ? "whole" : k == KVR_VIEW_PARTIAL ? "partial" : "unknown");
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
                                                .engine_restart = act_restart,
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

/* ---- inputs -------------------------------------------------------------------------------------------- */

static struct kvr_view *at(struct fake *f)
{
    f->v.now = (struct kvr_view_now){.ms = f->now, .stream_up = f->up, .durable = f->durable};
    return &f->v;
}

static void batch(struct fake *f, uint64_t seq, const char *payload)
{
    kvr__view_batch(at(f), seq, payload, strlen(payload));
    assert_null(kvr__view_check(&f->v));
}

static void part(struct fake *f, uint64_t seq, const char *payload)
{
    kvr__view_replay_part(at(f), seq, payload, strlen(payload));
    assert_null(kvr__view_check(&f->v));
}

static void replay_end(struct fake *f)
{
    part(f, UINT64_MAX, "");
}

static void step(struct fake *f)
{
    while (kvr__view_is_busy(&f->v)) kvr__view_step(at(f));
    assert_null(kvr__view_check(&f->v));
}

static void pass(struct fake *f, uint64_t ms)
{
    f->now += ms;
    kvr__view_tick(at(f));
    assert_null(kvr__view_check(&f->v));
}

/* A question is answered: its events store the blocks 1 to n, up to `last`. epoch 0: none is told. */
static void answer(struct fake *f, enum kvr_recover_kind kind, uint64_t last, uint64_t n, uint64_t epoch)
{
    struct kvr_recover_answer a = {.kind = kind,
                                   .last_event_id = last,
                                   .newest_available = last,
                                   .has_last = true,
                                   .has_epoch = epoch != 0,
                                   .epoch = epoch,
                                   .message = "it is tired"};
    kvr__event_list_init(&a.events, NULL);
    for (uint64_t i = 1; i <= n; i++) {
        struct kvr_block b = {i, i};
        struct kvr_event ev = make_event('S', &b, NULL);
        ev.event_id = last + 1 - n + i - 1;
        assert_int_equal(kvr__event_list_add(&a.events, &ev), 0);
    }
    assert_true(kvr__view_is_asking(&f->v));
    kvr__view_answer(at(f), &a);
    kvr__event_list_free(&a.events);
    assert_null(kvr__view_check(&f->v));
}

static void open_view(struct fake *f, unsigned ways)
{
    *f = (struct fake){.now = 1000, .worth = KVR_VIEW_WHOLE, .durable = (ways & DURABLE) != 0};
    kvr__view_init(&f->v, &ACTIONS, f);
    f->v.block_size = 16;
    f->v.restore_timeout_ms = RESTORE_MS;
    f->v.has_replay = (ways & REPLAY) != 0;
    f->v.has_recover = (ways & RECOVER) != 0;
    f->v.shared = f->v.enveloped = (ways & (SHARED | DURABLE)) != 0;
    kvr__view_begin(at(f));
}

static void close_view(struct fake *f)
{
    kvr__view_end(&f->v);
}

/* A view that follows, whole, with blocks 1 and 2; the next is `*next`. */
static uint64_t follow(struct fake *f, unsigned ways)
{
    open_view(f, ways);
    f->up = true;
    kvr__view_connected(at(f));
    if (ways & REPLAY) {
        part(f, 0, "S1");
        part(f, 1, "S2");
        replay_end(f);
    } else if (ways & RECOVER) {
        answer(f, KVR_RECOVER_TREE_DUMP, 1, 2, 5);
        step(f);
    } else {
        batch(f, 0, "S1");
        batch(f, 1, "S2");
    }
    pass(f, 300); /* the tail is looked at */
    if (ways & REPLAY) replay_end(f);
    else if (ways & RECOVER) answer(f, KVR_RECOVER_TOO_NEW, 1, 0, 5);
    assert_int_equal(f->v.phase, KVR_VIEW_FOLLOWING);
    assert_int_equal(f->v.knowledge, KVR_VIEW_WHOLE);
    assert_int_equal(f->held, 6);
    (void)done(f);
    return 2;
}

/* The same in a phase, by the shortest way. */
static void enter(struct fake *f, enum kvr_view_phase phase, unsigned ways)
{
    uint64_t next = follow(f, ways);
    bool mute = phase >= KVR_VIEW_GOING_ON;
    switch (phase) {
    case KVR_VIEW_FOLLOWING: break;
    case KVR_VIEW_VERIFYING:
        kvr__view_disconnected(at(f));
        kvr__view_connected(at(f));
        break;
    default: batch(f, next + 1, "S4"); break; /* a gap */
    }
    if (phase == KVR_VIEW_TAKING || phase == KVR_VIEW_SETTLING) f->in_turns = true;
    if (phase == KVR_VIEW_TAKING || (phase == KVR_VIEW_SETTLING && !(ways & REPLAY))) {
        batch(f, next + 2, "S5");
        answer(f, KVR_RECOVER_EVENTS, next, 1, 5);
    }
    if (phase == KVR_VIEW_SETTLING && (ways & REPLAY)) {
        batch(f, next + 2, "S5");
        part(f, next, "S3");
        replay_end(f);
    } else if (phase == KVR_VIEW_SETTLING) {
        kvr__view_step(at(f)); /* the content; then a turn */
    }
    if (mute && (ways & RECOVER)) answer(f, KVR_RECOVER_FAILED, 0, 0, 0);
    else if (mute) pass(f, RESTORE_MS);
    if (phase > KVR_VIEW_GOING_ON) step(f);
    if (phase > KVR_VIEW_MUTE) pass(f, 30000);
    assert_int_equal(f->v.phase, phase);
    (void)done(f);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static void following(void **)
{
    struct fake f;
    uint64_t next = follow(&f, REPLAY);
    batch(&f, next, "S3");
    assert_string_equal(done(&f), "apply 2");
    batch(&f, next, "S3"); /* twice */
    assert_string_equal(done(&f), "");
    batch(&f, next + 3, "S4");
    assert_string_equal(done(&f), "unknown, replay 3");
    assert_int_equal(f.v.phase, KVR_VIEW_REPLAYING);
    close_view(&f);
    follow(&f, RECOVER);
    batch(&f, next + 1, "S4");
    assert_string_equal(done(&f), "unknown, ask 2");
    assert_int_equal(f.v.phase, KVR_VIEW_ASKING);
    close_view(&f);
    follow(&f, NOBODY);
    batch(&f, next + 1, "S4"); /* what is left was stored after the loss */
    assert_string_equal(done(&f), "clear, apply 3, partial");
    assert_int_equal(f.v.phase, KVR_VIEW_FOLLOWING);
    assert_int_equal(f.held, 1 << 4);
    batch(&f, 0, "S1"); /* backwards: a restart */
    assert_string_equal(done(&f), "clear, restart, apply 0, whole");
    close_view(&f);
}

static void verifying(void **)
{
    struct fake f;
    enter(&f, KVR_VIEW_VERIFYING, REPLAY);
    batch(&f, 2, "S3");
    part(&f, 1, "S2"); /* our last batch */
    assert_int_equal(f.v.phase, KVR_VIEW_REPLAYING);
    replay_end(&f);
    assert_string_equal(done(&f), "apply 2, whole");
    close_view(&f);
    enter(&f, KVR_VIEW_VERIFYING, REPLAY);
    part(&f, 1, "S9"); /* another one in its place */
    assert_string_equal(done(&f), "restart, clear, unknown, replay 0");
    assert_int_equal(f.v.phase, KVR_VIEW_REPLAYING);
    close_view(&f);
    enter(&f, KVR_VIEW_VERIFYING, REPLAY);
    replay_end(&f); /* it has no batch any more */
    assert_string_equal(done(&f), "restart, clear, unknown, replay 0");
    close_view(&f);
    enter(&f, KVR_VIEW_VERIFYING, REPLAY);
    pass(&f, RESTORE_MS); /* nobody has confirmed what it has */
    assert_string_equal(done(&f), "renew, clear, unknown");
    assert_int_equal(f.v.phase, KVR_VIEW_GOING_ON);
    close_view(&f);
    enter(&f, KVR_VIEW_VERIFYING, REPLAY | RECOVER);
    kvr__view_replay_broken(at(&f));
    assert_string_equal(done(&f), "renew, ask all");
    assert_int_equal(f.v.phase, KVR_VIEW_ASKING);
    close_view(&f);
}

static void replaying(void **)
{
    struct fake f;
    enter(&f, KVR_VIEW_REPLAYING, REPLAY); /* batch 2 is lost, 3 waits */
    batch(&f, 4, "S5");
    assert_string_equal(done(&f), "");
    part(&f, 2, "S3");
    part(&f, 3, "S4");
    assert_string_equal(done(&f), "apply 2, apply 3");
    replay_end(&f);
    assert_string_equal(done(&f), "apply 4, whole");
    assert_int_equal(f.v.phase, KVR_VIEW_FOLLOWING);
    close_view(&f);
    enter(&f, KVR_VIEW_REPLAYING, REPLAY);
    part(&f, 3, "S4"); /* its buffer begins later */
    assert_string_equal(done(&f), "clear, apply 3");
    replay_end(&f);
    assert_string_equal(done(&f), "partial");
    close_view(&f);
    enter(&f, KVR_VIEW_REPLAYING, REPLAY | RECOVER);
    part(&f, 3, "S4");
    replay_end(&f);
    assert_string_equal(done(&f), "clear, apply 3, ask all");
    assert_int_equal(f.v.phase, KVR_VIEW_ASKING);
    close_view(&f);
    enter(&f, KVR_VIEW_REPLAYING, REPLAY);
    pass(&f, RESTORE_MS);
    assert_int_equal(f.v.phase, KVR_VIEW_GOING_ON);
    close_view(&f);
}

static void asking(void **)
{
    struct fake f;
    enter(&f, KVR_VIEW_ASKING, RECOVER); /* batch 2 is lost, 3 waits */
    batch(&f, 4, "S5");
    answer(&f, KVR_RECOVER_EVENTS, 2, 1, 5);
    assert_int_equal(f.v.phase, KVR_VIEW_TAKING);
    step(&f);
    assert_string_equal(done(&f), "apply 3, apply 4, whole");
    close_view(&f);
    enter(&f, KVR_VIEW_ASKING, RECOVER);
    answer(&f, KVR_RECOVER_EVENTS, 2, 1, 6); /* of another epoch */
    assert_string_equal(done(&f), "restart, clear, ask all");
    assert_int_equal(f.v.phase, KVR_VIEW_ASKING);
    close_view(&f);
    enter(&f, KVR_VIEW_ASKING, RECOVER);
    answer(&f, KVR_RECOVER_FAILED, 0, 0, 0); /* nobody can tell: what it has goes */
    assert_string_equal(done(&f), "clear, unknown");
    assert_int_equal(f.v.phase, KVR_VIEW_GOING_ON);
    step(&f);
    assert_string_equal(done(&f), "clear, apply 3, partial");
    assert_int_equal(f.v.phase, KVR_VIEW_MUTE);
    close_view(&f);
    follow(&f, RECOVER);
    kvr__view_disconnected(at(&f));
    kvr__view_connected(at(&f));
    (void)done(&f);
    answer(&f, KVR_RECOVER_TREE_DUMP, 1, 2, 5);
    step(&f);
    assert_string_equal(done(&f), "clear, whole");
    assert_int_equal(f.v.phase, KVR_VIEW_FOLLOWING);
    close_view(&f);
}

static void taking(void **)
{
    struct fake f;
    enter(&f, KVR_VIEW_TAKING, RECOVER);
    batch(&f, 5, "S6");
    assert_int_equal(f.v.waiting.n, 3);
    kvr__view_disconnected(at(&f)); /* cut off half-way */
    assert_string_equal(done(&f), "clear, unknown");
    assert_int_equal(f.v.incoming.events.n, 0);
    close_view(&f);
    follow(&f, RECOVER);
    batch(&f, 2, "S3");
    batch(&f, 3, "S4");
    kvr__view_evidence(at(&f), "it lies");
    (void)done(&f);
    answer(&f, KVR_RECOVER_TREE_DUMP, 2, 3, 5); /* the worker is behind the stream */
    step(&f);
    assert_string_equal(done(&f), "clear, unknown");
    assert_int_equal(f.v.cursor.next, 3);
    assert_int_equal(f.v.phase, KVR_VIEW_FOLLOWING);
    close_view(&f);
}

static void settling(void **)
{
    struct fake f;
    enter(&f, KVR_VIEW_SETTLING, REPLAY); /* 3 is taken, 4 waits */
    batch(&f, 6, "S7");
    kvr__view_step(at(&f));
    assert_string_equal(done(&f), "apply 4");
    assert_int_equal(f.v.phase, KVR_VIEW_SETTLING);
    kvr__view_step(at(&f)); /* 5 is lost */
    assert_string_equal(done(&f), "replay 5");
    assert_int_equal(f.v.phase, KVR_VIEW_REPLAYING);
    assert_int_equal(f.v.waiting.n, 1);
    close_view(&f);
    enter(&f, KVR_VIEW_SETTLING, RECOVER);
    step(&f);
    assert_string_equal(done(&f), "apply 4, whole");
    close_view(&f);
}

static void mute(void **)
{
    struct fake f;
    enter(&f, KVR_VIEW_GOING_ON, REPLAY);
    batch(&f, 4, "S5");
    step(&f);
    assert_string_equal(done(&f), "clear, apply 3, partial, apply 4");
    assert_int_equal(f.v.phase, KVR_VIEW_MUTE);
    batch(&f, 7, "S7");
    assert_string_equal(done(&f), "clear, apply 7");
    pass(&f, 30000);
    assert_string_equal(done(&f), "replay 0");
    assert_int_equal(f.v.phase, KVR_VIEW_PROBING);
    close_view(&f);
    enter(&f, KVR_VIEW_MUTE, RECOVER);
    pass(&f, 30000);
    assert_string_equal(done(&f), "ask all");
    assert_int_equal(f.v.phase, KVR_VIEW_ASKING_ASIDE);
    close_view(&f);
}

static void probing(void **)
{
    struct fake f;
    enter(&f, KVR_VIEW_PROBING, REPLAY);
    batch(&f, 4, "S5");
    assert_string_equal(done(&f), "apply 4");
    part(&f, 0, "S1");
    assert_string_equal(done(&f), "unknown, clear, clear, apply 0");
    assert_int_equal(f.v.phase, KVR_VIEW_REPLAYING);
    close_view(&f);
    enter(&f, KVR_VIEW_PROBING, REPLAY);
    replay_end(&f); /* the engine has nothing of before */
    assert_string_equal(done(&f), "partial");
    assert_int_equal(f.v.phase, KVR_VIEW_FOLLOWING);
    close_view(&f);
    enter(&f, KVR_VIEW_PROBING, REPLAY);
    pass(&f, RESTORE_MS);
    assert_string_equal(done(&f), "renew, partial");
    step(&f);
    assert_int_equal(f.v.phase, KVR_VIEW_MUTE);
    close_view(&f);
    follow(&f, REPLAY | RECOVER);
    batch(&f, 3, "S4");
    pass(&f, RESTORE_MS);
    answer(&f, KVR_RECOVER_FAILED, 0, 0, 0);
    step(&f);
    pass(&f, 30000);
    assert_int_equal(f.v.phase, KVR_VIEW_PROBING);
    (void)done(&f);
    pass(&f, RESTORE_MS);
    assert_string_equal(done(&f), "renew, ask all");
    assert_int_equal(f.v.phase, KVR_VIEW_ASKING_ASIDE);
    close_view(&f);
}

static void asking_aside(void **)
{
    struct fake f;
    enter(&f, KVR_VIEW_ASKING_ASIDE, RECOVER);
    batch(&f, 4, "S5");
    batch(&f, 6, "S7");
    assert_string_equal(done(&f), "apply 4, clear, apply 6");
    answer(&f, KVR_RECOVER_TREE_DUMP, 6, 5, 5);
    assert_int_equal(f.v.phase, KVR_VIEW_TAKING);
    step(&f);
    assert_string_equal(done(&f), "unknown, clear, whole");
    close_view(&f);
    enter(&f, KVR_VIEW_ASKING_ASIDE, RECOVER);
    answer(&f, KVR_RECOVER_FAILED, 0, 0, 0);
    step(&f);
    assert_int_equal(f.v.phase, KVR_VIEW_MUTE);
    close_view(&f);
}

/* From whatever phase. */
static void what_ends_a_repair(void **)
{
    static const struct {
        enum kvr_view_phase phase;
        unsigned ways;
    } ALL[] = {{KVR_VIEW_FOLLOWING, NOBODY},    {KVR_VIEW_FOLLOWING, REPLAY}, {KVR_VIEW_VERIFYING, REPLAY}, {KVR_VIEW_REPLAYING, REPLAY},
               {KVR_VIEW_ASKING, RECOVER},      {KVR_VIEW_TAKING, RECOVER},   {KVR_VIEW_SETTLING, REPLAY},  {KVR_VIEW_SETTLING, RECOVER},
               {KVR_VIEW_GOING_ON, REPLAY},     {KVR_VIEW_GOING_ON, RECOVER}, {KVR_VIEW_MUTE, REPLAY},      {KVR_VIEW_PROBING, REPLAY},
               {KVR_VIEW_ASKING_ASIDE, RECOVER}};
    struct fake f;
    for (size_t i = 0; i < KVR_ARRAY_LEN(ALL); i++)
        for (int how = 0; how < 4; how++) {
            enter(&f, ALL[i].phase, ALL[i].ways);
            bool asks = kvr__view_is_asking(&f.v);
            if (how == 0) kvr__view_disconnected(at(&f));
            if (how == 1) kvr__view_paused(at(&f));
            if (how == 2) kvr__view_flooded(at(&f));
            if (how == 3) kvr__view_empty(at(&f));
            assert_int_equal(f.v.phase, KVR_VIEW_FOLLOWING);
            assert_int_equal(f.v.waiting.n, 0);
            assert_int_equal(f.v.retry_at_ms, 0);
            if (how != 3) assert_int_equal(f.v.knowledge, KVR_VIEW_UNKNOWN);
            assert_int_equal(strstr(done(&f), "cancel") != NULL, asks);
            close_view(&f);
        }
}

static void begins(void **)
{
    struct fake f;
    open_view(&f, REPLAY); /* waits for its connection; then asks for everything */
    assert_int_equal(f.v.phase, KVR_VIEW_REPLAYING);
    assert_string_equal(done(&f), "");
    kvr__view_connected(at(&f));
    assert_string_equal(done(&f), "replay 0");
    close_view(&f);
    open_view(&f, REPLAY);
    pass(&f, RESTORE_MS); /* nobody is there */
    assert_int_equal(f.v.phase, KVR_VIEW_FOLLOWING);
    assert_string_equal(f.v.reason, "the events endpoint is not reachable");
    close_view(&f);
    open_view(&f, RECOVER);
    kvr__view_connected(at(&f));
    assert_string_equal(done(&f), "ask all");
    close_view(&f);
    open_view(&f, NOBODY);
    assert_string_equal(f.v.reason, "waiting for sequence 0 (no replay endpoint)");
    kvr__view_connected(at(&f));
    (void)done(&f);
    batch(&f, 5, "S5");
    assert_string_equal(done(&f), "clear, apply 5, partial");
    close_view(&f);
    open_view(&f, NOBODY);
    kvr__view_failed(at(&f), "the events socket could not be made");
    assert_string_equal(f.v.reason, "the events socket could not be made");
    close_view(&f);
}

/* Its content goes two seconds after the connection. */
static void a_connection_that_stays_away(void **)
{
    struct fake f;
    follow(&f, REPLAY);
    kvr__view_disconnected(at(&f));
    assert_string_equal(done(&f), "unknown");
    pass(&f, 1999);
    assert_int_equal(f.held, 6);
    pass(&f, 1);
    assert_int_equal(f.held, 0);
    kvr__view_connected(at(&f));
    assert_string_equal(done(&f), "clear, replay 0");
    close_view(&f);
}

/* ---- what speaks against it ---------------------------------------------------------------------------- */

static void evidence_has_it_restored_once_in_a_while(void **)
{
    struct fake f;
    follow(&f, REPLAY);
    kvr__view_evidence(at(&f), "it lies");
    assert_string_equal(done(&f), "unknown, clear, unknown, replay 0");
    part(&f, 0, "S1");
    replay_end(&f);
    assert_int_equal(f.v.knowledge, KVR_VIEW_UNKNOWN); /* whatever its stream says */
    kvr__view_evidence(at(&f), "");
    assert_int_equal(f.v.knowledge, KVR_VIEW_WHOLE);
    (void)done(&f);
    kvr__view_evidence(at(&f), "it lies");
    assert_string_equal(done(&f), "unknown");
    close_view(&f);
}

static void a_lost_parent_has_it_restored(void **)
{
    struct fake f;
    follow(&f, REPLAY);
    f.rc = -KVR_EPARENT;
    batch(&f, 2, "S9");
    assert_string_equal(done(&f), "apply 2, clear, unknown, replay 0");
    close_view(&f);
}

static void a_batch_for_which_there_was_no_memory(void **)
{
    struct fake f;
    follow(&f, REPLAY);
    f.rc = -KVR_ENOMEM;
    batch(&f, 2, "R1"); /* block 1 would stay */
    assert_string_equal(done(&f), "apply 2, clear, partial");
    assert_int_equal(f.held, 0);
    assert_int_equal(f.v.phase, KVR_VIEW_GOING_ON);
    close_view(&f);
}

static void another_rank_and_another_block_size(void **)
{
    struct fake f;
    follow(&f, NOBODY);
    batch(&f, 2, "O1");
    assert_string_equal(f.v.reason, "batches of rank 7 come here: give that rank (dp-start), or the events port of this one");
    close_view(&f);
    follow(&f, NOBODY);
    batch(&f, 2, "B1");
    assert_string_equal(f.v.reason, "the engine's block size is 32, not the configured 16");
    batch(&f, 3, "S1");
    assert_int_equal(f.v.knowledge, KVR_VIEW_UNKNOWN);
    close_view(&f);
}

/* ---- shared streams ------------------------------------------------------------------------------------ */

static void event(struct fake *f, uint64_t publisher, uint64_t id, const char *payload)
{
    if (kvr__view_expects(at(f), publisher, id, false, true)) batch(f, id, payload);
}

static void events_and_heartbeats(void **)
{
    struct fake f;
    open_view(&f, SHARED);
    f.up = true;
    kvr__view_stream_up(at(&f));
    event(&f, 3, 1, "C3");
    assert_string_equal(done(&f), "unknown, apply 1, whole");
    kvr__view_heartbeat(at(&f), 3, 5000, 4); /* of events that have not come */
    f.now += 1000;
    kvr__view_heartbeat(at(&f), 3, 5000, 4);
    assert_string_equal(done(&f), "clear, unknown");
    event(&f, 3, 5, "S3");
    assert_string_equal(done(&f), "clear, apply 5, partial");
    event(&f, 4, 1, "C4"); /* its publisher has restarted */
    assert_string_equal(done(&f), "clear, restart, apply 1, whole");
    event(&f, 3, 6, "S3"); /* late: stamped at the same time, so it is another restart; it begins nothing */
    assert_int_equal(f.v.knowledge, KVR_VIEW_PARTIAL);
    pass(&f, 3501); /* no heartbeat */
    assert_string_equal(f.v.reason, "its publisher is silent");
    kvr__view_heartbeat(at(&f), 3, 9000, 6);
    assert_int_equal(f.v.knowledge, KVR_VIEW_PARTIAL);
    kvr__view_stream_down(at(&f));
    assert_string_equal(f.v.reason, "the event plane is down");
    close_view(&f);
}

/* An answer does not name the publisher. The first events of the next one are lost, and a later one has an id that the view is beyond. */
static void a_publisher_that_restarted_after_an_answer_is_not_taken_for_the_one_before(void **)
{
    struct fake f;
    open_view(&f, SHARED | RECOVER);
    f.up = true;
    kvr__view_stream_up(at(&f));
    answer(&f, KVR_RECOVER_TREE_DUMP, 20, 2, 5);
    step(&f);
    pass(&f, 300); /* the tail is looked at */
    answer(&f, KVR_RECOVER_TOO_NEW, 20, 0, 5);
    assert_int_equal(f.v.knowledge, KVR_VIEW_WHOLE);
    event(&f, 4, 3, "S4");
    for (int i = 0; i < 3; i++) {
        kvr__view_heartbeat(at(&f), 4, 9000, 3);
        pass(&f, 1000);
    }
    assert_int_equal(f.v.knowledge, KVR_VIEW_UNKNOWN);
    assert_true(kvr__view_is_asking(&f.v));
    assert_int_equal(f.held, 0);
    close_view(&f);
}

/* That goes on where the answer ends, by chance. */
static void another_publisher_after_an_answer_was_taken_for_the_one_that_was_heard_before(void **state)
{
    for (int beats = 0; beats < 2; beats++) {
        struct fake f;
        (void)state;
        open_view(&f, SHARED | RECOVER);
        f.up = true;
        kvr__view_stream_up(at(&f));
        answer(&f, KVR_RECOVER_TREE_DUMP, 20, 2, 5);
        step(&f);
        pass(&f, 300);
        answer(&f, KVR_RECOVER_TOO_NEW, 20, 0, 5);
        event(&f, 4, 3, "S4"); /* of which the answer tells too */
        assert_int_equal(f.v.knowledge, KVR_VIEW_WHOLE);
        if (!beats) event(&f, 5, 6, "S5");
        for (int i = 0; beats && i < 3; i++) {
            kvr__view_heartbeat(at(&f), 5, (double)f.now, 5);
            pass(&f, 1000);
        }
        assert_int_equal(f.v.knowledge, KVR_VIEW_UNKNOWN);
        assert_true(kvr__view_is_asking(&f.v));
        assert_int_equal(f.held, 0);
        close_view(&f);
    }
}

static void a_durable_stream_is_believed_when_a_heartbeat_confirms_its_last_event(void **)
{
    struct fake f;
    open_view(&f, DURABLE);
    event(&f, 3, 1, "C3");
    event(&f, 3, 2, "S3");
    assert_int_equal(f.v.knowledge, KVR_VIEW_UNKNOWN); /* it is being caught up with */
    f.up = true;
    kvr__view_stream_up(at(&f));
    assert_string_equal(f.v.reason, "its publisher has not been heard since");
    kvr__view_heartbeat(at(&f), 3, 5000, 2);
    assert_int_equal(f.v.knowledge, KVR_VIEW_WHOLE);
    assert_false(kvr__view_expects(at(&f), 3, 7, true, true)); /* ahead of its storing: the stream will bring it */
    kvr__view_empty(at(&f));
    kvr__view_restored(at(&f), 9, 3, 1, true);
    assert_int_equal(f.v.cursor.next, 9);
    close_view(&f);
}

/* ---- symptoms ------------------------------------------------------------------------------------------ */

static void an_answer_to_a_view_that_has_gone_since_makes_nothing_whole(void **)
{
    struct fake f;
    follow(&f, RECOVER);
    f.ask_rc = -KVR_ENOMEM;
    batch(&f, 3, "S4");
    step(&f);
    f.v.past = KVR_PAST_HERE; /* a clear came */
    f.ask_rc = 0;
    pass(&f, 30000);
    assert_int_equal(f.v.phase, KVR_VIEW_ASKING_ASIDE);
    assert_false(f.v.asked_all);
    batch(&f, 9, "S9"); /* what the question builds on is dropped */
    (void)done(&f);
    answer(&f, KVR_RECOVER_EVENTS, 9, 1, 5);
    assert_string_equal(done(&f), "ask all");
    assert_int_not_equal(f.v.knowledge, KVR_VIEW_WHOLE);
    close_view(&f);
}

/* A question was on its way when the worker restarted; the process of before had answered it still. */
static void a_dump_of_before_a_restart_makes_nothing_whole(void **)
{
    struct fake f;
    for (unsigned shared = 0; shared <= SHARED; shared += SHARED) {
        enter(&f, KVR_VIEW_ASKING_ASIDE, RECOVER | shared);
        batch(&f, 4, "S5");
        batch(&f, shared ? KVR_VIEW_FIRST_EVENT : 0, "C9"); /* shared: of another publisher */
        (void)done(&f);
        answer(&f, KVR_RECOVER_TREE_DUMP, 6, 5, 5);
        assert_string_equal(done(&f), "ask all");
        assert_int_not_equal(f.v.knowledge, KVR_VIEW_WHOLE);
        assert_int_equal(f.v.phase, KVR_VIEW_ASKING);
        answer(&f, KVR_RECOVER_TREE_DUMP, 1, 1, 6);
        step(&f);
        assert_int_equal(f.v.knowledge, KVR_VIEW_WHOLE);
        assert_int_equal(f.held, 2);
        close_view(&f);
    }
}

static void content_from_elsewhere_is_not_trusted_before_it_is_confirmed(void **)
{
    struct fake f;
    struct kvr_view_cursor c = {.known = true, .partial = true, .next = 2};
    follow(&f, REPLAY);
    kvr__view_adopt(at(&f), &c);
    assert_string_equal(done(&f), "unknown, replay 2");
    replay_end(&f);
    assert_string_equal(done(&f), "partial");
    close_view(&f);
}

/* What is being applied is of another content. */
static void content_from_elsewhere_ends_an_answer_that_is_being_applied(void **)
{
    struct fake f;
    struct kvr_view_cursor c = {.known = true, .next = 2};
    enter(&f, KVR_VIEW_TAKING, RECOVER);
    kvr__view_adopt(at(&f), &c);
    assert_string_equal(done(&f), "ask 2");
    assert_int_equal(f.v.phase, KVR_VIEW_ASKING);
    close_view(&f);
}

static void events_since_its_place_do_not_make_a_partial_view_whole(void **)
{
    struct fake f;
    struct kvr_view_cursor c = {.known = true, .partial = true, .next = 2};
    follow(&f, RECOVER);
    kvr__view_adopt(at(&f), &c);
    assert_string_equal(done(&f), "unknown, ask all");
    close_view(&f);
}

static void an_answer_for_which_there_was_no_memory_is_not_trusted(void **)
{
    struct fake f;
    struct kvr_recover_answer a = {.kind = KVR_RECOVER_EVENTS, .last_event_id = 2, .has_last = true};
    uint64_t name = 1;
    struct kvr_event ev = make_event('R', NULL, &name);
    enter(&f, KVR_VIEW_ASKING, RECOVER);
    ev.event_id = 2;
    kvr__event_list_init(&a.events, NULL);
    assert_int_equal(kvr__event_list_add(&a.events, &ev), 0);
    kvr__view_answer(at(&f), &a);
    f.rc = -KVR_ENOMEM;
    kvr__view_step(at(&f));
    assert_string_equal(done(&f), "clear, partial");
    assert_int_equal(f.held, 0);
    close_view(&f);
}

/* Its main group alone says more than the engine reuses. */
static void a_mute_view_of_groups_that_are_left_out_is_unknown(void **)
{
    struct fake f;
    enter(&f, KVR_VIEW_MUTE, REPLAY);
    f.worth = KVR_VIEW_UNKNOWN;
    batch(&f, 0, "C1");
    assert_int_equal(f.v.knowledge, KVR_VIEW_UNKNOWN);
    close_view(&f);
}

static void a_durable_view_that_may_lack_events_asks_when_it_can(void **)
{
    struct fake f;
    open_view(&f, DURABLE | RECOVER);
    event(&f, 3, 1, "C3");
    f.v.unsure = true; /* a heartbeat told of more, and the stream went down */
    (void)done(&f);
    f.up = true;
    kvr__view_stream_up(at(&f));
    assert_string_equal(done(&f), "ask all");
    close_view(&f);
}

/* ---- hostile input --------------------------------------------------------------------------------------- */

static uint64_t some_seq(struct kvr_rng *rng, const struct fake *f)
{
    static const uint64_t EDGES[] = {0, 1, 2, UINT64_MAX, UINT64_MAX - 1, UINT64_MAX / 2, 1u << 31};
    unsigned which = kvr_rng_below(rng, 4);
    if (which == 0) return EDGES[kvr_rng_below(rng, KVR_ARRAY_LEN(EDGES))];
    if (which == 1) return kvr_rng_below(rng, 70);
    return f->v.cursor.next + kvr_rng_below(rng, 3) - (which == 2);
}

static void any_answer(struct fake *f, struct kvr_rng *rng)
{
    struct kvr_recover_answer a = {.kind = (enum kvr_recover_kind)kvr_rng_below(rng, 6),
                                   .last_event_id = some_seq(rng, f),
                                   .newest_available = some_seq(rng, f),
                                   .end_event_id = some_seq(rng, f),
                                   .has_last = kvr_rng_below(rng, 2),
                                   .has_epoch = kvr_rng_below(rng, 2),
                                   .has_end = kvr_rng_below(rng, 2),
                                   .has_block_size = kvr_rng_below(rng, 20) == 0,
                                   .epoch = kvr_rng_below(rng, 3),
                                   .block_size = 16 * kvr_rng_below(rng, 2),
                                   .message = "?"};
    kvr__event_list_init(&a.events, NULL);
    for (unsigned i = kvr_rng_below(rng, 5); i; i--) {
        struct kvr_block b = {kvr_rng_below(rng, 64), 0};
        struct kvr_event ev = make_event("SRC"[kvr_rng_below(rng, 3)], &b, &b.block_hash);
        ev.event_id = some_seq(rng, f);
        assert_int_equal(kvr__event_list_add(&a.events, &ev), 0);
    }
    if (kvr__view_is_asking(&f->v)) kvr__view_answer(at(f), &a);
    kvr__event_list_free(&a.events);
}

static void any_input(struct fake *f, struct kvr_rng *rng)
{
    static const char *const PAYLOADS[] = {"S1", "S2", "S9", "R1", "R2", "C1", "C2", "X", "", "O1", "B1"};
    const char *payload = PAYLOADS[kvr_rng_below(rng, kvr_rng_below(rng, 8) ? 7 : (uint32_t)KVR_ARRAY_LEN(PAYLOADS))];
    struct kvr_view_cursor c = {true, kvr_rng_below(rng, 2), some_seq(rng, f), kvr_rng_next(rng), 0};
    f->rc = (int[]){0, 0, 0, -KVR_EPARENT, -KVR_ENOTFOUND, -KVR_ENOMEM}[kvr_rng_below(rng, 6)];
    f->ask_rc = kvr_rng_below(rng, 10) ? 0 : -KVR_ENOMEM;
    f->no_replay = kvr_rng_below(rng, 10) == 0;
    f->in_turns = kvr_rng_below(rng, 2);
    f->up = kvr_rng_below(rng, 4) != 0;
    f->worth = kvr_rng_below(rng, 9) ? KVR_VIEW_WHOLE : KVR_VIEW_PARTIAL;
    switch (kvr_rng_below(rng, f->v.shared ? 18 : 14)) {
    case 0:
    case 1:
    case 2: kvr__view_batch(at(f), some_seq(rng, f), payload, strlen(payload)); break;
    case 3:
    case 4: kvr__view_replay_part(at(f), some_seq(rng, f), payload, strlen(payload)); break;
    case 5: kvr__view_replay_part(at(f), UINT64_MAX, "", 0); break;
    case 6: any_answer(f, rng); break;
    case 7: kvr__view_connected(at(f)); break;
    case 8: kvr__view_disconnected(at(f)); break;
    case 9: kvr__view_replay_broken(at(f)); break;
    case 10:
        f->now += kvr_rng_below(rng, 40000);
        kvr__view_tick(at(f));
        break;
    case 11: kvr__view_evidence(at(f), kvr_rng_below(rng, 2) ? "" : "it lies"); break;
    case 12: kvr__view_copies_taken_back(at(f), kvr_rng_below(rng, 2)); break;
    case 13: kvr__view_adopt(at(f), &c); break;
    case 14: kvr__view_heartbeat(at(f), 1 + kvr_rng_below(rng, 2), 1, some_seq(rng, f)); break;
    case 15: (void)kvr__view_expects(at(f), kvr_rng_below(rng, 3), some_seq(rng, f), kvr_rng_below(rng, 2), kvr_rng_below(rng, 2)); break;
    case 16: kvr_rng_below(rng, 2) ? kvr__view_stream_down(at(f)) : kvr__view_stream_up(at(f)); break;
    case 17:
        kvr_rng_below(rng, 2) ? kvr__view_empty(at(f)) : kvr__view_restored(at(f), some_seq(rng, f), kvr_rng_below(rng, 3), 1, true);
        break;
    }
    f->log[0] = 0;
}

/* Nothing breaks an invariant, and no phase is one that a view cannot leave. */
static void hostile_input(void **)
{
    uint64_t seed = env_u64("KVR_SEED", 1), n = env_u64("KVR_OPS", 300000);
    struct fake f;
    for (uint64_t op = 0; op < n; seed++) {
        struct kvr_rng rng = {seed * 2654435761u};
        open_view(&f,
                  (unsigned[]){NOBODY, REPLAY, RECOVER, REPLAY | RECOVER, SHARED, SHARED | RECOVER, DURABLE, DURABLE | RECOVER}[seed % 8]);
        for (unsigned i = 0; i < 500; i++, op++) {
            any_input(&f, &rng);
            if (kvr__view_is_busy(&f.v) && kvr_rng_below(&rng, 2)) kvr__view_step(at(&f));
            const char *wrong = kvr__view_check(&f.v);
            if (wrong) fail_msg("%s: KVR_SEED=%llu", wrong, (unsigned long long)seed);
        }
        f.rc = f.ask_rc = 0;
        f.no_replay = false;
        kvr__view_connected(at(&f));
        for (unsigned i = 0; i < 2000 && kvr__view_is_repairing(&f.v) && !kvr__view_is_asking(&f.v); i++) {
            kvr__view_step(at(&f));
            pass(&f, 50);
        }
        if (kvr__view_is_repairing(&f.v) && !kvr__view_is_asking(&f.v))
            fail_msg("it stays in its phase: KVR_SEED=%llu", (unsigned long long)seed);
        close_view(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(following),
        cmocka_unit_test(verifying),
        cmocka_unit_test(replaying),
        cmocka_unit_test(asking),
        cmocka_unit_test(taking),
        cmocka_unit_test(settling),
        cmocka_unit_test(mute),
        cmocka_unit_test(probing),
        cmocka_unit_test(asking_aside),
        cmocka_unit_test(what_ends_a_repair),
        cmocka_unit_test(begins),
        cmocka_unit_test(a_connection_that_stays_away),
        cmocka_unit_test(evidence_has_it_restored_once_in_a_while),
        cmocka_unit_test(a_lost_parent_has_it_restored),
        cmocka_unit_test(a_batch_for_which_there_was_no_memory),
        cmocka_unit_test(another_rank_and_another_block_size),
        cmocka_unit_test(events_and_heartbeats),
        cmocka_unit_test(a_publisher_that_restarted_after_an_answer_is_not_taken_for_the_one_before),
        cmocka_unit_test(another_publisher_after_an_answer_was_taken_for_the_one_that_was_heard_before),
        cmocka_unit_test(a_durable_stream_is_believed_when_a_heartbeat_confirms_its_last_event),
        cmocka_unit_test(an_answer_to_a_view_that_has_gone_since_makes_nothing_whole),
        cmocka_unit_test(a_dump_of_before_a_restart_makes_nothing_whole),
        cmocka_unit_test(content_from_elsewhere_is_not_trusted_before_it_is_confirmed),
        cmocka_unit_test(content_from_elsewhere_ends_an_answer_that_is_being_applied),
        cmocka_unit_test(events_since_its_place_do_not_make_a_partial_view_whole),
        cmocka_unit_test(an_answer_for_which_there_was_no_memory_is_not_trusted),
        cmocka_unit_test(a_mute_view_of_groups_that_are_left_out_is_unknown),
        cmocka_unit_test(a_durable_view_that_may_lack_events_asks_when_it_can),
        cmocka_unit_test(hostile_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
