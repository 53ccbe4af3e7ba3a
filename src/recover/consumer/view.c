/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inputs of a view, and what a live batch means. The header has the phases; view_restore.c repairs; view_trust.c says what it is worth.
 *
 * The stream does not name restarts. A worker that has restarted may answer before the connection to the process before is seen to be
 * broken, and what that one had still brought is then taken for the new one's. A connection that breaks soon after an epoch was first told
 * may have been such a one, so the view is asked for as a whole at the next. Later breaks cannot be: a dead peer does not answer the
 * connection's heartbeats.
 *
 * Invariants: kvr__view_check.
 */
#include "recover/consumer/view_internal.h"

#include <stdlib.h>
#include <kvroute/hash.h>

enum {
    DOWN_GRACE_MS = 2000,
    SILENT_MS = 3500,   /* without a heartbeat of a publisher that has sent some: as if the connection were broken */
    OLD_LINE_MS = 10000 /* a connection to a process that is gone breaks within this (twice its heartbeat's interval and time) */
};

/* ---- live -------------------------------------------------------------------------------------------- */

/* What finds no room shows as a gap, and is repaired, when the repair ends. */
static void keep_waiting(struct kvr_view *v, const struct kvr_view_batch *b, bool seen)
{
    if (!kvr__waiting_put(&v->waiting, b->seq, seen, b->data, b->len)) v->counts.overflows++;
}

/* The view goes with the publisher after its restart from here on. */
static void note_publisher(struct kvr_view *v, const struct kvr_view_batch *b)
{
    if (!v->enveloped) return;
    v->publisher = b->publisher;
    v->publisher_since = b->ts;
}

/* Everything in the view is of this batch. */
static void begin_with(struct kvr_view *v, const struct kvr_view_batch *b)
{
    kvr__view_apply(v, b);
    if (v->torn) kvr__view_torn_batch(v);
    else kvr__view_believe(v);
}

static void unrepaired_gap(struct kvr_view *v, const struct kvr_view_batch *b)
{
    uint64_t last_live = v->cursor.last_live;
    kvr__view_drop(v);
    note_publisher(v, b);
    v->cursor.live_any = true;
    v->cursor.last_live = last_live;
    kvr__view_lose(v, KVR_PAST_UNKNOWN,
                   kvr__view_is_mute(v) ? "batches were lost, and who could repair it does not answer"
                   : v->enveloped       ? "events were lost and there is no recover endpoint"
                                        : "batches were lost and there is no replay endpoint");
    begin_with(v, b);
}

/* The next one in a row of gaps that is worth another question. */
static bool next_round(struct kvr_view *v)
{
    return v->rounds++ < KVR_REPAIR_ROUNDS_MAX;
}

static void ask_about_gap(struct kvr_view *v, const struct kvr_view_batch *b)
{
    keep_waiting(v, b, true);
    if (next_round(v)) kvr__view_ask(v, kvr__view_must_ask_all(v));
    else kvr__view_repair_later(v, "events are lost faster than they are recovered");
    if (v->rounds > KVR_REPAIR_ROUNDS_MAX) v->rounds = 0;
}

static void replay_gap(struct kvr_view *v, const struct kvr_view_batch *b)
{
    if (next_round(v)) {
        keep_waiting(v, b, true);
        kvr__view_request_replay(v, KVR_VIEW_REPLAYING, v->cursor.next);
    } else if (v->has_recover) {
        keep_waiting(v, b, true);
        kvr__view_ask(v, true);
    } else {
        v->rounds = 0;
        unrepaired_gap(v, b);
    }
}

static void on_gap(struct kvr_view *v, const struct kvr_view_batch *b)
{
    v->counts.gaps++;
    if (!kvr__view_can_repair(v) || kvr__view_is_mute(v)) {
        unrepaired_gap(v, b);
        return;
    }
    v->unsure = true;
    kvr__view_distrust(v, "batches are missing");
    if (v->has_replay) replay_gap(v, b);
    else ask_about_gap(v, b);
}

/* After this event nothing before it matters. */
static bool begins_anew(const struct kvr_view *v, const struct kvr_view_batch *b)
{
    return v->enveloped && b->clears;
}

static void on_restart(struct kvr_view *v, const struct kvr_view_batch *b)
{
    v->counts.restarts++;
    v->mismatch = false;
    kvr__view_drop(v);
    v->actions->engine_restart(v->ctx);
    v->restarted = kvr__view_is_asking(v);
    v->has_epoch = false; /* the new one is not known yet */
    v->of_this_connection = true;
    v->cursor.live_any = true;
    v->cursor.last_live = b->seq;
    note_publisher(v, b);
    if (b->seq == 0 || begins_anew(v, b)) {
        begin_with(v, b);
    } else {
        kvr__view_say(v, KVR_VIEW_UNKNOWN, "being restored from the start");
        on_gap(v, b);
    }
}

/* What an event of a shared stream means. A publisher that says which one it is need not be guessed at. Of an answer, which does not name
 * it, it may be the last that was known: that another one goes on where the answer ends may be chance. */
static enum kvr_cursor_verdict publisher_verdict(struct kvr_view *v, const struct kvr_view_batch *b)
{
    uint64_t last = v->publisher ? v->publisher : v->before;
    double since = v->publisher ? v->publisher_since : v->before_since;
    if (last && last != b->publisher) /* of before its restart, or after; clocks may have been set, but not what it begins with */
        return b->ts < since && b->seq > KVR_VIEW_FIRST_EVENT ? KVR_CURSOR_STALE : KVR_CURSOR_RESTART;
    bool first = !v->publisher && b->seq == KVR_VIEW_FIRST_EVENT && begins_anew(v, b);
    if (first && v->cursor.next > KVR_VIEW_FIRST_EVENT + 1) return KVR_CURSOR_RESTART; /* the content is from before the restart */
    enum kvr_cursor_verdict verdict = kvr__cursor_replay(&v->cursor, b->seq);
    if (!v->publisher && verdict == KVR_CURSOR_STALE) { /* of the answer's publisher, or of its next: heartbeats tell */
        if (!v->before) v->before_since = b->ts;
        v->before = b->publisher;
        return verdict;
    }
    if (!v->publisher) v->publisher_since = b->ts;
    v->publisher = b->publisher;
    return verdict == KVR_CURSOR_GAP && begins_anew(v, b) ? KVR_CURSOR_APPLY : verdict;
}

static enum kvr_cursor_verdict verdict_on(struct kvr_view *v, const struct kvr_view_batch *b, bool seen)
{
    if (v->enveloped && b->publisher) return publisher_verdict(v, b);
    return seen ? kvr__cursor_replay(&v->cursor, b->seq) : kvr__cursor_live(&v->cursor, b->seq, b->ts);
}

/* The next batch in sequence. */
static void on_next(struct kvr_view *v, const struct kvr_view_batch *b)
{
    bool lacked = kvr__view_lacks_some(v);
    kvr__view_apply(v, b);
    if (v->torn) {
        kvr__view_torn_batch(v);
        return;
    }
    v->rounds = 0;
    v->state = KVR_VIEW_LIVE;
    bool mute = kvr__view_is_mute(v), lacks = kvr__view_lacks_some(v);
    bool lost = v->orphaned && !v->lossy && b->seq > v->orphans_until && v->knowledge == KVR_VIEW_WHOLE;
    bool says = b->seq == 0 || (lacked && !lacks) || v->doubt || mute || (v->enveloped && v->cleared);
    if (lost && (v->past == KVR_PAST_HEALED || v->actions->copies_unsure(v->ctx))) kvr__view_lack_parents(v);
    else if (lost && kvr__view_can_repair(v) && !mute && kvr__view_may_rebuild(v)) kvr__view_rebuild(v);
    else if (says && (v->known == KVR_VIEW_UNKNOWN || (v->known == KVR_VIEW_PARTIAL && !lacks))) kvr__view_believe(v);
    v->doubt = false;
}

/* A batch that has not to wait. */
static void take_live(struct kvr_view *v, struct kvr_view_batch *b, bool seen)
{
    if (kvr__view_remembers(v, b)) { /* sent twice, or overtaken by its replay */
        v->counts.stale_batches++;
        return;
    }
    if (!kvr__view_read(v, b)) return;
    switch (verdict_on(v, b, seen)) {
    case KVR_CURSOR_STALE:
        v->counts.stale_batches++;
        kvr__view_note_recent(v, b->seq, kvr_hash_bytes(b->data, b->len, 0));
        return;
    case KVR_CURSOR_RESTART: on_restart(v, b); return;
    case KVR_CURSOR_GAP: on_gap(v, b); return;
    case KVR_CURSOR_APPLY: on_next(v, b); return;
    }
}

/* Everything that has waited is taken: says what the view is now. */
static void settled(struct kvr_view *v)
{
    bool repaired = v->phase == KVR_VIEW_SETTLING;
    kvr__view_enter(v, repaired ? KVR_VIEW_FOLLOWING : KVR_VIEW_MUTE);
    if (!repaired) return;
    v->rounds = v->retries = 0;
    v->unsure = false;
    v->state = KVR_VIEW_LIVE;
    kvr__view_believe(v);
}

/* One turn of taking what has waited. A gap starts another repair, and the rest waits on, behind the batch that showed it. */
static void take_waiting(struct kvr_view *v)
{
    struct kvr_waiting rest = v->waiting;
    size_t messages = 0, bytes = 0;
    v->waiting = (struct kvr_waiting){0};
    while (rest.head && !kvr__view_batches_wait(v) && v->actions->more(v->ctx, messages, bytes)) {
        struct kvr_waiting_batch *w = kvr__waiting_take(&rest);
        struct kvr_view_batch b = {.seq = w->seq, .data = w->data, .len = w->len};
        if (!kvr__view_repair_is_due(v)) take_live(v, &b, w->seen);
        messages++;
        bytes += w->len;
        free(w);
    }
    if (kvr__view_batches_wait(v) || kvr__view_is_settling(v)) kvr__waiting_append(&v->waiting, &rest);
    else kvr__waiting_clear(&rest); /* the repair is let go of with its connection */
    if (kvr__view_is_settling(v) && !v->waiting.head) settled(v);
}

/* An input that ends a repair is followed by the first turn of what has waited. */
static void finish(struct kvr_view *v, enum kvr_view_phase before)
{
    if (v->phase == KVR_VIEW_SETTLING && before != KVR_VIEW_SETTLING) take_waiting(v);
    kvr__view_checked(v);
}

void kvr__view_batch(struct kvr_view *v, uint64_t seq, const char *data, size_t len)
{
    struct kvr_view_batch b = {.seq = seq, .data = data, .len = len};
    if (kvr__view_batches_wait(v) || kvr__view_is_settling(v)) keep_waiting(v, &b, false);
    else if (!kvr__view_repair_is_due(v)) take_live(v, &b, false);
    kvr__view_checked(v);
}

void kvr__view_replay_part(struct kvr_view *v, uint64_t seq, const char *data, size_t len)
{
    enum kvr_view_phase before = v->phase;
    kvr__view_take_replay(v, seq, data, len);
    finish(v, before);
}

void kvr__view_replay_broken(struct kvr_view *v)
{
    bool asked = v->phase == KVR_VIEW_VERIFYING || v->phase == KVR_VIEW_REPLAYING || v->phase == KVR_VIEW_PROBING;
    if (asked) kvr__view_replay_failed(v);
    kvr__view_checked(v);
}

void kvr__view_answer(struct kvr_view *v, struct kvr_recover_answer *a)
{
    enum kvr_view_phase before = v->phase;
    kvr__view_take_answer(v, a);
    finish(v, before);
}

void kvr__view_step(struct kvr_view *v)
{
    enum kvr_view_phase before = v->phase;
    if (kvr__view_is_settling(v)) take_waiting(v);
    else if (v->phase == KVR_VIEW_TAKING) kvr__view_take_incoming(v);
    finish(v, before);
}

/* ---- the connection ---------------------------------------------------------------------------------- */

void kvr__view_init(struct kvr_view *v, const struct kvr_view_actions *actions, void *ctx)
{
    *v = (struct kvr_view){.actions = actions, .ctx = ctx, .ranks_n = 1, .past_why = "what was kept of it was not whole"};
}

void kvr__view_end(struct kvr_view *v)
{
    kvr__view_forget_repair(v);
}

/* Nothing of a shared stream has come since its views began: has its publisher all that it is to tell? */
static void wait_for_first(struct kvr_view *v)
{
    v->state = KVR_VIEW_LIVE;
    if (v->shared && !v->has_recover) kvr__view_say(v, KVR_VIEW_UNKNOWN, "waiting for a clear (no recover endpoint)");
    else if (!v->shared)
        kvr__view_say(v, KVR_VIEW_UNKNOWN,
                      v->cursor.applied_any ? "waiting for the next batch to confirm it (no replay endpoint)"
                                            : "waiting for sequence 0 (no replay endpoint)");
}

void kvr__view_failed(struct kvr_view *v, const char *why)
{
    kvr__view_say(v, KVR_VIEW_UNKNOWN, why);
}

void kvr__view_begin(struct kvr_view *v)
{
    v->silent_at_ms = v->now.ms + v->restore_timeout_ms;
    if (!v->shared && v->has_replay) kvr__view_enter(v, KVR_VIEW_REPLAYING); /* waits for the connection; asked for when it stands */
    else if (v->shared || !v->has_recover) wait_for_first(v);
    kvr__view_checked(v);
}

/* Live batches wait for the answer, even if none came to the question before. */
static void ask_and_wait(struct kvr_view *v)
{
    if (kvr__view_is_mute(v)) kvr__view_enter(v, KVR_VIEW_FOLLOWING);
    kvr__view_ask(v, kvr__view_must_ask_all(v));
}

/* A durable stream has brought what it has. Its publisher may hold more, as it may be at the server later than we are: of one that sends
 * heartbeats, wait for a heartbeat that confirms the last event id. */
static void caught_up(struct kvr_view *v)
{
    if ((kvr__view_lacks_some(v) || v->unsure) && kvr__view_can_repair(v)) {
        ask_and_wait(v);
        return;
    }
    if (v->unsure) kvr__view_lose_past(v, "events were lost and there is no recover endpoint");
    v->unsure = false;
    if (v->heartbeat_ms && !kvr__view_lacks_some(v)) kvr__view_say(v, KVR_VIEW_UNKNOWN, "its publisher has not been heard since");
    else kvr__view_believe(v);
}

static void repair_what_came_meanwhile(struct kvr_view *v)
{
    kvr__view_forget_repair(v);
    if (v->owed_ends && v->actions->renew(v->ctx)) v->owed_ends = 0;
    v->rounds = v->retries = 0;
    v->unsure = v->cursor.applied_any;
    if (v->has_replay && v->past == KVR_PAST_UNKNOWN) kvr__view_drop(v); /* it may be whole now */
    if (!v->has_replay) kvr__view_ask(v, kvr__view_must_ask_all(v));
    else if (v->cursor.applied_any) kvr__view_request_replay(v, KVR_VIEW_VERIFYING, v->cursor.next - 1);
    else kvr__view_request_replay(v, KVR_VIEW_REPLAYING, 0);
    v->tail_at_ms = v->now.ms + KVR_TAIL_CHECK_MS;
}

void kvr__view_connected(struct kvr_view *v)
{
    v->connected = true;
    v->of_this_connection = false;
    v->drop_at_ms = 0;
    if (v->now.durable && v->cursor.applied_any) caught_up(v);
    else if (kvr__view_can_repair(v)) repair_what_came_meanwhile(v);
    else v->doubt = v->cursor.applied_any;
    kvr__view_checked(v);
}

static void cut_off(struct kvr_view *v, const char *why)
{
    v->connected = false;
    v->counts.disconnects++;
    kvr__view_forget_repair(v);
    kvr__view_say(v, KVR_VIEW_UNKNOWN, why);
}

void kvr__view_disconnected(struct kvr_view *v)
{
    if (!v->connected) return;
    bool may_mix = v->has_epoch && !v->publisher && v->now.ms - v->epoch_ms < OLD_LINE_MS;
    if (may_mix) kvr__view_drop(v); /* the content may mix events from before and after a worker restart */
    v->drop_at_ms = v->now.ms + DOWN_GRACE_MS;
    cut_off(v, v->shared ? "its publisher is silent" : "the events endpoint is down");
    kvr__view_checked(v);
}

void kvr__view_stream_down(struct kvr_view *v)
{
    if (v->connected) cut_off(v, "the event plane is down");
    kvr__view_checked(v);
}

void kvr__view_flooded(struct kvr_view *v)
{
    kvr__view_disconnected(v);
    kvr__view_say(v, KVR_VIEW_UNKNOWN, "the worker sends more than can be taken");
    v->owed_ends = 0;
    kvr__view_checked(v);
}

void kvr__view_paused(struct kvr_view *v)
{
    kvr__view_forget_repair(v);
    v->connected = false;
    v->owed_ends = 0;
    v->drop_at_ms = 0;
    v->heartbeat_ms = 0;
    if (v->now.durable) { /* what passes is not brought again */
        if (!kvr__view_can_repair(v)) kvr__view_lose(v, KVR_PAST_LOST, v->past_why);
        v->unsure = true;
    }
    kvr__view_say(v, KVR_VIEW_UNKNOWN, "paused");
    kvr__view_checked(v);
}

/* ---- from elsewhere ---------------------------------------------------------------------------------- */

void kvr__view_go_on_from(struct kvr_view *v, const struct kvr_view_cursor *c)
{
    v->cursor.applied_any = true;
    v->cursor.next = c->next;
    v->cursor.last_ts = c->last_ts;
    v->past = c->partial ? KVR_PAST_LOST : KVR_PAST_HERE;
    if (c->next) kvr__view_remember(v, c->next - 1, c->last_hash);
}

bool kvr__view_kept_batch(struct kvr_view *v, uint64_t seq, const char *data, size_t len)
{
    struct kvr_view_batch b = {.seq = seq, .data = data, .len = len};
    if (!v->cursor.applied_any || v->torn || seq != v->cursor.next || !kvr__view_read(v, &b)) return false;
    kvr__view_apply(v, &b);
    return true;
}

void kvr__view_kept_end(struct kvr_view *v)
{
    if (v->torn) kvr__view_drop(v);
    v->torn = false;
}

void kvr__view_adopt(struct kvr_view *v, const struct kvr_view_cursor *c)
{
    v->actions->keep_anew(v->ctx);
    kvr__view_go_on_from(v, c);
    v->past_why = "what was kept of it was not whole";
    kvr_hole_begin(&v->hole);
    v->unsure = kvr__view_can_repair(v);
    if (v->unsure || !v->connected) kvr__view_distrust(v, "content from elsewhere is being confirmed");
    if (!v->connected) return;
    if (v->has_replay) {
        v->rounds = v->retries = 0;
        kvr__view_request_replay(v, KVR_VIEW_REPLAYING, c->next);
    } else if (v->has_recover) {
        ask_and_wait(v);
    } else {
        kvr__view_believe(v);
    }
    kvr__view_checked(v);
}

/* ---- what speaks against it -------------------------------------------------------------------------- */

/* New evidence against a view that can be restored has it restored, once in a while; should that not help, it stays unknown. */
void kvr__view_evidence(struct kvr_view *v, const char *text)
{
    bool first = text[0] && !v->evidence[0];
    snprintf(v->evidence, sizeof v->evidence, "%s", text);
    kvr__view_weigh(v);
    bool can = kvr__view_can_repair(v) && !kvr__view_is_mute(v) && v->connected && !kvr__view_is_repairing(v);
    if (first && can && kvr__view_may_rebuild(v)) kvr__view_rebuild(v);
    kvr__view_checked(v);
}

void kvr__view_copies_taken_back(struct kvr_view *v, bool torn)
{
    v->torn |= torn;
    v->actions->keep_anew(v->ctx); /* the batches that are kept would bring back what went here */
    kvr__view_lack_copies(v);
    if (v->torn) kvr__view_torn_batch(v);
    kvr__view_checked(v);
}

/* ---- time -------------------------------------------------------------------------------------------- */

/* A repair that failed is tried again, or the tail is looked at. */
static void try_again(struct kvr_view *v)
{
    uint64_t now = v->now.ms;
    bool due = (v->retry_at_ms && now >= v->retry_at_ms) || (v->tail_at_ms && now >= v->tail_at_ms);
    if (!due || !v->connected || kvr__view_is_repairing(v)) return;
    if (v->has_replay && kvr__view_is_mute(v)) kvr__view_probe(v);
    else if (v->has_replay) kvr__view_request_replay(v, KVR_VIEW_REPLAYING, v->cursor.next);
    else if (v->has_recover) kvr__view_ask(v, kvr__view_must_ask_all(v));
}

void kvr__view_tick(struct kvr_view *v)
{
    uint64_t now = v->now.ms;
    bool silent = now >= v->silent_at_ms;
    if (silent && (v->phase == KVR_VIEW_VERIFYING || v->phase == KVR_VIEW_REPLAYING || v->phase == KVR_VIEW_PROBING))
        kvr__view_replay_failed(v);
    if (!v->settled && v->has_recover && silent)
        kvr__view_say(v, KVR_VIEW_UNKNOWN, v->connected ? "being recovered" : "the events endpoint is not reachable");
    if (v->drop_at_ms && now >= v->drop_at_ms) {
        v->drop_at_ms = 0;
        kvr__view_drop(v);
    }
    if (v->undecodable && now - v->undecodable_ms > KVR_UNDECODABLE_MS) {
        v->undecodable = false;
        kvr__view_weigh(v);
    }
    try_again(v);
    bool quiet = v->shared && v->heartbeat_ms && now - KVR_MAX(v->heartbeat_ms, v->heard_ms) > SILENT_MS;
    if (quiet) kvr__view_disconnected(v);
    kvr__view_checked(v);
}

/* ---- invariants -------------------------------------------------------------------------------------- */

const char *kvr__view_check(const struct kvr_view *v)
{
    bool replays = v->phase == KVR_VIEW_VERIFYING || v->phase == KVR_VIEW_REPLAYING || v->phase == KVR_VIEW_PROBING;
    bool lacks = kvr__view_lacks_some(v), settles = kvr__view_is_settling(v);
    if (replays && !v->has_replay) return "a replay without a replay socket";
    if ((kvr__view_is_asking(v) || v->phase == KVR_VIEW_TAKING) && !v->has_recover) return "a question without a recover endpoint";
    if (v->phase != KVR_VIEW_TAKING && v->incoming.events.n && v->incoming.events.events) return "content of an answer outlived its phase";
    if (v->waiting.head && !kvr__view_batches_wait(v) && !settles) return "a batch waits for nothing";
    if (!v->waiting.head != !v->waiting.n) return "waiting batches are miscounted";
    if (kvr__view_is_mute(v) && !v->connected) return "mute without a connection";
    if (v->knowledge > v->known) return "trusted more than its stream allows";
    if (v->knowledge != KVR_VIEW_UNKNOWN && (v->evidence[0] || v->undecodable)) return "trusted against evidence";
    if (v->known == KVR_VIEW_WHOLE && lacks) return "whole, and lacks some";
    if (v->known != KVR_VIEW_UNKNOWN && (v->mismatch || v->worker_block_size)) return "trusted with another rank or block size";
    if (v->known == KVR_VIEW_WHOLE && v->reason[0] && v->knowledge == v->known) return "whole, with a reason why not";
    if (v->torn) return "a torn batch was passed over";
    return NULL;
}
