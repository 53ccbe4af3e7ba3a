/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a loss is repaired: by the first of these that the view's source has and that works.
 *
 *     the engine's replay socket        batches since the place; from 0 for a view that has nothing
 *     the worker's recover endpoint     events since the place, or its whole content (TreeDump), which replaces the view
 *     nothing                           the view is dropped and goes on as a partial one
 *
 * What is asked and does not answer (in time, or not at all) is left out from then on: the view is mute. What has waited and what comes is
 * applied as if nobody could repair, and the same is asked again with growing pauses, in the background: the replay socket for everything
 * (a probe), whose first answer begins the view anew.
 *
 * A tree dump is of the moment it began: the batches since then are applied on top of it, whether they waited or come later, and are
 * idempotent. Each answer names the worker's epoch; another one than before means that it has restarted: the view is dropped and asked
 * for as a whole, even when the ids would fit.
 *
 * Invariants: an answer is applied in TAKING only, and goes with the phase; whatever is asked again replaces what was asked before.
 */
#include "recover/consumer/view_internal.h"

#include <string.h>
#include <kvroute/hash.h>

enum {
    REPLAY_PATIENCE = 30, /* a replay may take that many times the time that it may stay silent */
    RETRY_MIN_MS = 500,
    RETRY_MAX_MS = 30000,
    REBUILD_PAUSE_MS = 30000,
    STEP_BLOCKS = 16384 /* of a recovered content, applied before other sources get their turn */
};

/* ---- under way --------------------------------------------------------------------------------------- */

void kvr__view_drop_waiting(struct kvr_view *v)
{
    kvr__waiting_clear(&v->waiting);
    if (v->phase == KVR_VIEW_SETTLING) kvr__view_enter(v, KVR_VIEW_FOLLOWING);
    if (v->phase == KVR_VIEW_GOING_ON) kvr__view_enter(v, KVR_VIEW_MUTE);
}

static void cancel_question(struct kvr_view *v)
{
    if (kvr__view_is_asking(v)) v->actions->cancel(v->ctx);
}

void kvr__view_forget_repair(struct kvr_view *v)
{
    cancel_question(v);
    kvr__view_enter(v, KVR_VIEW_FOLLOWING);
    v->retry_at_ms = v->tail_at_ms = 0;
    kvr__waiting_clear(&v->waiting);
}

static void renew(struct kvr_view *v)
{
    if (v->actions->renew(v->ctx)) v->owed_ends = 0;
}

/* Meanwhile live batches go on without it, or, when there are none to come, are let go. What only its answer could have confirmed is
 * dropped; the next batch, which is not in sequence then, begins a partial view. */
void kvr__view_repair_later(struct kvr_view *v, const char *why)
{
    uint64_t pause = (uint64_t)RETRY_MIN_MS << KVR_MIN(v->retries, 6u);
    v->retries++;
    v->retry_at_ms = v->now.ms + KVR_MIN(pause, (uint64_t)RETRY_MAX_MS);
    if (v->unsure && v->connected) kvr__view_drop(v);
    bool holds = v->connected && v->cursor.applied_any && !v->mismatch;
    kvr__view_say(v, holds ? KVR_VIEW_PARTIAL : KVR_VIEW_UNKNOWN, why);
    if (!v->connected) {
        kvr__view_enter(v, KVR_VIEW_FOLLOWING);
        kvr__waiting_clear(&v->waiting);
        return;
    }
    v->state = KVR_VIEW_LIVE;
    if (v->phase != KVR_VIEW_PROBING) kvr__view_enter(v, KVR_VIEW_GOING_ON);
}

bool kvr__view_repair_is_due(const struct kvr_view *v)
{
    return v->retry_at_ms && kvr__view_can_repair(v) && !kvr__view_is_mute(v);
}

/* What has waited is taken next (kvr__view_step). */
static void settle(struct kvr_view *v)
{
    v->state = KVR_VIEW_LIVE;
    kvr__view_enter(v, KVR_VIEW_SETTLING);
}

/* ---- asking the worker ------------------------------------------------------------------------------- */

static void recovery_failed(struct kvr_view *v, const char *why)
{
    char text[KVR_VIEW_REASON_MAX];
    v->counts.recovery_failures++;
    snprintf(text, sizeof text, "recovery failed: %.*s", KVR_VIEW_REASON_MAX - 20, why);
    kvr__view_repair_later(v, text);
}

void kvr__view_ask(struct kvr_view *v, bool everything)
{
    bool mute = kvr__view_is_mute(v);
    cancel_question(v);
    v->counts.questions++;
    v->asked_all = everything;
    v->outdated = v->restarted = false;
    v->retry_at_ms = v->tail_at_ms = 0;
    if (everything && !mute) v->state = KVR_VIEW_RESTORING;
    kvr__view_enter(v, mute ? KVR_VIEW_ASKING_ASIDE : KVR_VIEW_ASKING);
    if (v->actions->ask(v->ctx, everything, v->cursor.next) == 0) return;
    kvr__view_enter(v, mute ? KVR_VIEW_MUTE : KVR_VIEW_FOLLOWING);
    recovery_failed(v, "out of memory");
}

/* What came since its place does not make a view whole that lacks some of before. After a reconnection, without an epoch, nobody can tell
 * whether the ids are still those from before. */
bool kvr__view_must_ask_all(const struct kvr_view *v)
{
    return !v->cursor.applied_any || kvr__view_lacks_some(v) || (!v->has_epoch && !v->of_this_connection);
}

/* Everything from the worker, in place of what is here. */
static void start_over(struct kvr_view *v)
{
    kvr__view_distrust(v, "being restored from the start");
    kvr__view_drop(v);
    kvr__view_ask(v, true);
}

bool kvr__view_may_rebuild(struct kvr_view *v)
{
    if (v->rebuilt_ms && v->now.ms - v->rebuilt_ms <= REBUILD_PAUSE_MS) return false;
    v->rebuilt_ms = v->now.ms;
    return true;
}

static void place_after_dump(struct kvr_view *v, const struct kvr_recover_answer *a)
{
    bool nothing = a->events.n == 0 && a->last_event_id == 0; /* whether 0 or 1 comes first is open */
    v->cursor.next = nothing ? 0 : a->has_last ? a->last_event_id + 1 : v->cursor.next;
    v->orphans_until = a->has_end ? a->end_event_id : a->last_event_id;
    v->past = KVR_PAST_HERE;
    v->counts.recovered_dumps++;
}

static void place_after_events(struct kvr_view *v, const struct kvr_recover_answer *a)
{
    uint64_t next = a->has_last ? a->last_event_id + 1 : v->cursor.next;
    v->cursor.next = KVR_MAX(next, v->cursor.next);
    v->counts.recovered_events += a->events.n;
}

/* The incoming content is applied. */
static void incoming_done(struct kvr_view *v)
{
    const struct kvr_recover_answer *a = &v->incoming;
    uint64_t had = v->cursor.next;
    if (a->kind == KVR_RECOVER_TREE_DUMP) place_after_dump(v, a);
    else place_after_events(v, a);
    v->cursor.applied_any = true;
    v->cursor.last_ts = 0; /* later batches are not "stamped later", they are just late */
    v->last_hash = 0;
    v->of_this_connection = true;
    kvr__view_enter(v, KVR_VIEW_FOLLOWING);
    v->actions->keep_anew(v->ctx);      /* batches that came meanwhile were kept for a content that is gone */
    bool behind = v->cursor.next < had; /* batches that we had are gone with the old content */
    if (behind && v->has_replay) kvr__view_request_replay(v, KVR_VIEW_REPLAYING, v->cursor.next);
    else if (behind) kvr__view_ask(v, false);
    else settle(v);
}

/* A store under a parent that should be there: something was missed before, and the view starts over, once in a while. */
void kvr__view_take_incoming(struct kvr_view *v)
{
    bool dump = v->incoming.kind == KVR_RECOVER_TREE_DUMP;
    struct kvr_event_list *l = &v->incoming.events;
    for (size_t blocks = 0; v->incoming_at < l->n && blocks < STEP_BLOCKS; v->incoming_at++) {
        const struct kvr_event *ev = &l->events[v->incoming_at];
        blocks += ev->blocks_n + ev->removed_n + 1;
        if (!dump && ev->event_id < v->cursor.next) continue;
        v->orphaned = false;
        v->actions->apply_event(v->ctx, ev);
        v->incoming_torn |= !dump && v->orphaned && !v->lossy && ev->event_id > v->orphans_until;
    }
    if (v->torn) {
        kvr__view_torn_batch(v);
        return;
    }
    if (v->incoming_at < l->n) return;
    if (v->incoming_torn && kvr__view_may_rebuild(v)) {
        kvr__view_enter(v, KVR_VIEW_FOLLOWING);
        start_over(v);
    } else {
        incoming_done(v);
    }
}

static void take_events(struct kvr_view *v, struct kvr_recover_answer *a)
{
    (void)kvr__event_list_events(&a->events);
    v->incoming = *a;
    a->events = (struct kvr_event_list){0};
    v->incoming_at = 0;
    v->incoming_torn = false;
    kvr__view_enter(v, KVR_VIEW_TAKING);
    v->actions->keep_anew(v->ctx);
    v->actions->forget_copies(v->ctx);
    if (v->incoming.kind != KVR_RECOVER_TREE_DUMP) return;
    kvr__view_distrust(v, "being restored from a dump");
    v->actions->clear_rank(v->ctx);
}

/* The worker has restarted since the view's content. */
static void ask_anew(struct kvr_view *v)
{
    v->counts.restarts++;
    v->mismatch = false;
    v->actions->engine_restart(v->ctx);
    start_over(v);
}

/* Its events are from the view's place on, or there are none, or the worker cannot answer. */
static void take_rest(struct kvr_view *v, const struct kvr_recover_answer *a, bool told, bool same)
{
    if (a->kind == KVR_RECOVER_EVENTS || a->kind == KVR_RECOVER_TOO_NEW) {
        /* A worker that is behind us has restarted, unless it says that it has not: batches may be nothing to it. */
        bool up_to_date = a->kind == KVR_RECOVER_TOO_NEW && same && (told || a->newest_available + 1 >= v->cursor.next);
        if (v->outdated && !v->asked_all) kvr__view_ask(v, true);
        else if (up_to_date && !v->asked_all) settle(v);
        else if (!v->asked_all) ask_anew(v);
        else recovery_failed(v, "the worker does not answer with its whole content");
    } else {
        recovery_failed(v, a->kind == KVR_RECOVER_FAILED ? a->message : "an answer that is not known here");
    }
}

static void refuse_size(struct kvr_view *v, uint64_t block_size)
{
    char text[KVR_VIEW_REASON_MAX];
    v->counts.recovery_failures++;
    v->worker_block_size = block_size;
    kvr__view_say_size(v, text, sizeof text);
    kvr__view_repair_later(v, text);
}

/* The worker restarted after it was asked, and the answer may be of before. Each question is asked again once at most for that. */
static bool may_be_of_before(const struct kvr_view *v, const struct kvr_recover_answer *a)
{
    return v->restarted && a->kind != KVR_RECOVER_FAILED;
}

/* A worker that has no events to tell answers with its whole content. When that is of the same life and ends where the view is, nothing has
 * happened, and taking it would blind the view for as long as that takes. */
static bool is_nothing_new(const struct kvr_view *v, const struct kvr_recover_answer *a, bool same_life)
{
    bool here = a->kind == KVR_RECOVER_TREE_DUMP && a->has_last && a->last_event_id + 1 == v->cursor.next;
    bool asked_for_rest = !v->asked_all && !v->outdated && v->cursor.applied_any;
    bool whole = v->known == KVR_VIEW_WHOLE && v->knowledge == KVR_VIEW_WHOLE && !v->unsure && !kvr__view_lacks_some(v);
    return same_life && here && asked_for_rest && whole && !(a->has_block_size && a->block_size != v->block_size);
}

void kvr__view_take_answer(struct kvr_view *v, struct kvr_recover_answer *a)
{
    bool told = v->has_epoch && a->has_epoch, same = !told || a->epoch == v->epoch;
    kvr__view_enter(v, KVR_VIEW_FOLLOWING);
    v->worker_block_size = 0;
    if (may_be_of_before(v, a)) {
        kvr__view_ask(v, true);
        return;
    }
    if (is_nothing_new(v, a, told && same)) {
        settle(v);
        return;
    }
    if (a->has_epoch && !(v->has_epoch && same)) {
        v->has_epoch = true;
        v->epoch = a->epoch;
        v->epoch_ms = v->now.ms;
    }
    bool since = a->kind == KVR_RECOVER_EVENTS && same && !v->asked_all && !v->outdated;
    if (a->has_block_size && a->block_size != v->block_size) refuse_size(v, a->block_size);
    else if (a->kind == KVR_RECOVER_TREE_DUMP || since) take_events(v, a);
    else take_rest(v, a, told, same);
}

/* ---- replay ------------------------------------------------------------------------------------------ */

static void send_replay_request(struct kvr_view *v, uint64_t from)
{
    v->counts.replays++;
    v->owed_ends++;
    v->replay_from = from;
    v->reach.measuring = from == 0;
    v->reach.first = v->reach.next = 0;
    v->silent_at_ms = v->now.ms + v->restore_timeout_ms;
    v->replay_ends_ms = v->now.ms + v->restore_timeout_ms * REPLAY_PATIENCE;
    v->retry_at_ms = v->tail_at_ms = 0;
    if (!v->actions->replay(v->ctx, from)) v->silent_at_ms = v->now.ms; /* reported as silence */
}

void kvr__view_request_replay(struct kvr_view *v, enum kvr_view_phase phase, uint64_t from)
{
    cancel_question(v);
    kvr__view_enter(v, phase);
    send_replay_request(v, from);
}

void kvr__view_probe(struct kvr_view *v)
{
    kvr__view_enter(v, KVR_VIEW_PROBING);
    send_replay_request(v, 0);
}

/* The first answer to a probe: the view begins anew. What came on the live stream since it was sent may be missing in it and gone with
 * the old content, so the tail is looked at afterwards. */
static void probe_answered(struct kvr_view *v)
{
    kvr__view_enter(v, KVR_VIEW_REPLAYING);
    v->mismatch = false;
    v->rounds = v->retries = 0;
    v->retry_at_ms = 0;
    kvr__view_distrust(v, "being restored from the start");
    kvr__view_drop(v);
    v->state = KVR_VIEW_RESTORING;
    v->tail_at_ms = v->now.ms + KVR_TAIL_CHECK_MS;
}

void kvr__view_rebuild(struct kvr_view *v)
{
    kvr__view_drop(v);
    v->rounds = 0;
    v->state = KVR_VIEW_RESTORING;
    kvr__view_say(v, KVR_VIEW_UNKNOWN, "being restored from the start");
    if (v->has_replay) kvr__view_request_replay(v, KVR_VIEW_REPLAYING, 0);
    else kvr__view_ask(v, true);
}

void kvr__view_replay_failed(struct kvr_view *v)
{
    v->counts.replay_failures++;
    kvr__view_enter(v, v->phase == KVR_VIEW_PROBING ? KVR_VIEW_MUTE : KVR_VIEW_FOLLOWING);
    renew(v);
    if (v->has_recover && v->connected) kvr__view_ask(v, true);
    else kvr__view_repair_later(v, v->connected ? "the replay endpoint does not answer" : "the events endpoint is not reachable");
}

void kvr__view_torn_batch(struct kvr_view *v)
{
    v->torn = v->unsure = false;
    if (v->phase == KVR_VIEW_VERIFYING || v->phase == KVR_VIEW_REPLAYING) renew(v);
    cancel_question(v);
    if (kvr__view_batches_wait(v)) kvr__view_enter(v, KVR_VIEW_FOLLOWING);
    if (v->phase == KVR_VIEW_ASKING_ASIDE) kvr__view_enter(v, KVR_VIEW_MUTE);
    kvr__view_lose_past(v, "out of memory: events of a batch were lost");
    v->past = KVR_PAST_UNKNOWN;
    if (kvr__view_can_repair(v)) kvr__view_repair_later(v, v->past_why);
    else kvr__view_believe(v);
}

/* A batch of a replay of everything. */
static void note_reach(struct kvr_view *v, const struct kvr_view_batch *b)
{
    if (v->reach.next == 0) {
        v->reach.first = b->seq;
        v->reach.first_ts = b->ts;
    }
    v->reach.next = b->seq + 1;
    v->reach.last_ts = b->ts;
}

static void measure_reach(struct kvr_view *v)
{
    bool known = v->reach.measuring && v->reach.next > 0;
    v->reach.measuring = false;
    if (!known) return;
    v->buffer_first = v->reach.first;
    v->buffer_batches = v->reach.next - v->reach.first;
    v->buffer_seconds = v->reach.last_ts - v->reach.first_ts;
    if (!v->reach.said) v->actions->reach(v->ctx);
    v->reach.said = true;
}

static void replay_complete(struct kvr_view *v)
{
    kvr__view_enter(v, KVR_VIEW_FOLLOWING);
    measure_reach(v);
    if (kvr__view_lacks_some(v) && v->has_recover) {
        kvr__view_ask(v, true);
        return;
    }
    if (!v->cursor.applied_any && !v->waiting.head) kvr__view_drop_content(v); /* the engine has done nothing yet */
    settle(v);
}

/* The engine that we are connected to again has not our last batch any more: it has restarted. */
static void engine_restarted(struct kvr_view *v)
{
    v->counts.restarts++;
    v->mismatch = false;
    kvr__view_enter(v, KVR_VIEW_FOLLOWING);
    v->actions->engine_restart(v->ctx);
    kvr__view_rebuild(v);
}

static void verify(struct kvr_view *v, uint64_t seq, const char *data, size_t len)
{
    bool same = seq + 1 == v->cursor.next && kvr_hash_bytes(data, len, 0) == v->last_hash;
    if (same) kvr__view_enter(v, KVR_VIEW_REPLAYING);
    else engine_restarted(v);
}

static void replayed(struct kvr_view *v, struct kvr_view_batch *b)
{
    if (b->seq < v->replay_from) return; /* left over from an earlier request */
    if (v->phase == KVR_VIEW_PROBING) probe_answered(v);
    v->silent_at_ms = KVR_MIN(v->now.ms + v->restore_timeout_ms, v->replay_ends_ms);
    if (v->phase == KVR_VIEW_VERIFYING) {
        verify(v, b->seq, b->data, b->len);
        return;
    }
    if (!v->cursor.applied_any) kvr__view_drop_content(v); /* what was there came from less than the engine itself */
    enum kvr_cursor_verdict verdict = kvr__cursor_replay(&v->cursor, b->seq);
    if (verdict == KVR_CURSOR_STALE) return;
    if (verdict == KVR_CURSOR_GAP) kvr__view_lose_past(v, "the engine's replay buffer no longer holds the whole history");
    if (kvr__view_read(v, b)) {
        kvr__view_apply(v, b);
        note_reach(v, b);
        if (v->torn) kvr__view_torn_batch(v);
    } else {
        kvr__view_lose_past(v, "a batch of the engine's replay cannot be decoded"); /* it never will: go on without it */
        kvr__cursor_advance(&v->cursor, b->seq, 0);
    }
}

/* The end of a probe that has brought nothing. */
static void probe_ended(struct kvr_view *v)
{
    if (!v->cursor.applied_any) {
        probe_answered(v);
        replay_complete(v);
        return;
    }
    kvr__view_lose(v, KVR_PAST_UNKNOWN, "the engine's replay buffer no longer holds the whole history"); /* of what came before */
    v->retry_at_ms = 0;
    settle(v);
}

void kvr__view_take_replay(struct kvr_view *v, uint64_t seq, const char *data, size_t len)
{
    bool end = seq == UINT64_MAX && len == 0;
    bool asked = v->phase == KVR_VIEW_VERIFYING || v->phase == KVR_VIEW_REPLAYING || v->phase == KVR_VIEW_PROBING;
    struct kvr_view_batch b = {.seq = seq, .data = data, .len = len};
    v->owed_ends -= end && v->owed_ends;
    if (!asked || v->owed_ends != !end) return; /* answers come in the order of the questions */
    if (!end) replayed(v, &b);
    else if (v->phase == KVR_VIEW_PROBING) probe_ended(v);
    else if (v->phase == KVR_VIEW_VERIFYING) engine_restarted(v);
    else replay_complete(v);
}
