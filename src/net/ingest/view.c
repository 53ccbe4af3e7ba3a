/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One source's view: see ingest.h for its life.
 *
 * A loss is repaired by the first of these that the source has and that works:
 *
 *     the engine's replay socket        batches since the cursor; from 0 for a view that has nothing
 *     the worker's recover endpoint     events since the cursor, or its whole content (TreeDump), which replaces the view
 *     nothing                           the view is dropped and goes on as a partial one
 *
 * Who is asked and does not answer (in time, or not at all) is left out from then on: the view is mute. What has waited and what comes is
 * applied as if nobody could repair, and he is asked again with growing pauses, in the background: the replay socket for
 * everything (a probe), whose first answer begins the view anew.
 *
 * Why a partial view holds nothing that its engine does not. A block gets into the view by a store and must leave it by a removal, so a
 * false block needs a removal that was lost after the store was applied. Wherever batches are lost for good - a gap that nobody
 * repairs, a replay that begins after what is here, a batch that cannot be decoded or kept for want of memory - everything that was
 * applied before is dropped (lose_past), and `missing` is set: what is left was stored after the loss, and its removals come after it
 * too. Where it is not known whether something was lost (`unsure`: a new connection, until its worker has shown that it is the same one
 * and what came meanwhile; a gap that is being repaired; content from elsewhere), the view is unknown, and becomes whole or partial
 * when the answer has come; when no answer comes it is dropped as well (repair_later). Without anybody to ask, the next batch in
 * sequence is the answer, and one that is not in sequence is a gap.
 *
 * While a repair is under way live batches wait (bounded; what overflows is found as a hole when the repair ends, and
 * repaired in turn). When it is over they are taken turn by turn (settling); what comes meanwhile stays in the socket. A tree dump is of
 * the moment it began: the batches since then are applied on top of it, whether they waited or come later, and are idempotent. Each answer
 * names the worker's epoch; another one than before means another life: the view is dropped and asked for as a whole, even when the ids
 * would fit.
 *
 * The stream does not name a life. A worker that restarts may answer before the connection to its life before is seen to be
 * broken, and what that one had still brought is then taken for the new life's. A connection that breaks soon after an epoch
 * was first told may have been such a one, so the view is asked for as a whole at the next. Later breaks cannot be: a dead
 * peer does not answer heartbeats.
 */
#include "base/log.h"
#include "net/ingest/internal.h"

#include <stdlib.h>

#include "wire/plane_event.h"

/* ---- trust ------------------------------------------------------------------------------------------- */

static const char *objection(const struct source *s)
{
    return s->evidence[0] ? s->evidence : s->undecodable ? "KV events cannot be decoded" : NULL;
}

static void say_size(const struct source *s, char *text, size_t cap)
{
    snprintf(text, cap, "the worker's block size is %llu, not the configured %u", (unsigned long long)s->worker_block_size,
             s->own.stream.block_size);
}

/* The worst of its ranks' cache groups. */
static enum kvr_engine_groups groups_of(const struct source *s)
{
    enum kvr_engine_groups worst = KVR_GROUPS_EXACT;
    for (const struct rank_stream *r = &s->own; r; r = r->next) worst = KVR_MAX(worst, kvr_engine_stream_groups(&r->stream));
    return worst;
}

/* What the stream makes of the view, and why. */
static void note_known(struct kvr_ingest *in, struct source *s, enum kvr_view_knowledge knowledge, const char *reason)
{
    char text[sizeof s->known_reason];
    snprintf(text, sizeof text, "%s", reason); /* which may be known_reason itself */
    if (knowledge != KVR_VIEW_UNKNOWN && !s->connected && kvr__plane_is_durable(in, s)) {
        knowledge = KVR_VIEW_UNKNOWN;
        snprintf(text, sizeof text, "the stream is being caught up with");
    } else if (knowledge != KVR_VIEW_UNKNOWN && s->worker_block_size) {
        knowledge = KVR_VIEW_UNKNOWN;
        say_size(s, text, sizeof text);
    } else if (knowledge == KVR_VIEW_WHOLE && s->mute) {
        knowledge = KVR_VIEW_PARTIAL;
        snprintf(text, sizeof text, "the %s endpoint does not answer", s->recover[0] ? "recover" : "replay");
    } else if (knowledge != KVR_VIEW_UNKNOWN && groups_of(s) == KVR_GROUPS_LEFT_OUT) {
        knowledge = KVR_VIEW_UNKNOWN;
        snprintf(text, sizeof text, "a model with several cache groups (sliding windows): follow the engine itself");
    } else if (knowledge == KVR_VIEW_WHOLE && groups_of(s) == KVR_GROUPS_BOUND) {
        knowledge = KVR_VIEW_PARTIAL;
        snprintf(text, sizeof text, "what a cache group of the model can reuse is not understood: a lower bound");
    }
    s->known = knowledge;
    memcpy(s->known_reason, text, sizeof text);
}

void kvr__view_trust(struct kvr_ingest *in, struct source *s, enum kvr_view_knowledge knowledge, const char *reason)
{
    note_known(in, s, knowledge, reason);
    const char *against = s->known == KVR_VIEW_UNKNOWN ? NULL : objection(s);
    knowledge = against ? KVR_VIEW_UNKNOWN : s->known;
    reason = against ? against : s->known_reason;
    bool changed = s->st.knowledge != knowledge || !s->st.settled || strcmp(s->st.reason, reason) != 0;
    s->st.settled = true;
    if (!changed) return;
    s->st.knowledge = knowledge;
    s->st.trusted = knowledge != KVR_VIEW_UNKNOWN;
    snprintf(s->st.reason, sizeof s->st.reason, "%s", reason);
    s->st.since_ns = in->effects->now_ns();
    if (in->handler.on_view) in->handler.on_view(in->handler.ctx, s->user, s->st.worker, knowledge, reason);
}

/* What speaks against it from outside has changed. */
static void weigh_again(struct kvr_ingest *in, struct source *s)
{
    kvr__view_trust(in, s, s->known, s->known_reason);
}

/* Everything in the view is true. */
static void believe(struct kvr_ingest *in, struct source *s)
{
    if (s->mismatch) return;
    kvr__view_trust(in, s, s->missing ? KVR_VIEW_PARTIAL : KVR_VIEW_WHOLE, s->missing ? s->missing_why : "");
}

static void set_settling(struct kvr_ingest *in, struct source *s, int how)
{
    in->settling_n -= s->settling != NOT_SETTLING;
    in->settling_n += how != NOT_SETTLING;
    s->settling = how;
}

static void drop_waiting(struct kvr_ingest *in, struct source *s)
{
    set_settling(in, s, NOT_SETTLING);
    while (s->wait_head) {
        struct waiting *w = s->wait_head;
        s->wait_head = w->next;
        free(w);
    }
    s->wait_tail = &s->wait_head;
    s->wait_n = s->wait_bytes = 0;
}

/* Whoever keeps the view is told that its content is another one now. */
static void tell_break(const struct source *s)
{
    if (s->keeper) s->keeper->on_break(s->kept);
}

static void tell_batch(const struct source *s, uint64_t seq, const char *data, size_t len)
{
    if (s->keeper) s->keeper->on_batch(s->kept, seq, s->enveloped ? NULL : data, s->enveloped ? 0 : len);
}

static void drop_content(struct kvr_ingest *in, struct source *s)
{
    tell_break(s);
    for (struct rank_stream *r = &s->own; r; r = r->next) {
        in->handler.on_reset(in->handler.ctx, s->user, r->stream.worker);
        kvr_engine_stream_reset(&r->stream);
    }
}

/* Batches will never come: what was known before them may be gone by now, what comes after them is true. */
static void lose_past(struct kvr_ingest *in, struct source *s, const char *why)
{
    drop_content(in, s);
    s->missing = true;
    s->healed = false;
    s->missing_why = why;
    kvr_hole_begin(&s->hole);
    if (s->known == KVR_VIEW_WHOLE) kvr__view_trust(in, s, KVR_VIEW_PARTIAL, why);
}

void kvr__view_note_cursor(struct source *s)
{
    s->st.cursor =
        (struct kvr_view_cursor){.known = s->cursor.applied_any && !s->mismatch && !s->incoming, /* half of a dump is of no place */
                                 .partial = s->missing,
                                 .next = s->cursor.next,
                                 .last_hash = s->last_hash,
                                 .last_ts = s->cursor.last_ts};
    s->st.next_sequence = s->cursor.next;
}

/* The engine lives another life: what was learned of its ways counts no more. */
static void forget_ways(struct source *s)
{
    for (struct rank_stream *r = &s->own; r; r = r->next) kvr_engine_stream_restart(&r->stream);
}

static void drop_view(struct kvr_ingest *in, struct source *s)
{
    drop_content(in, s);
    kvr__cursor_reset(&s->cursor);
    memset(s->recent, 0, sizeof s->recent);
    s->missing = s->hollow = s->unsure = s->healed = false;
    kvr_hole_begin(&s->hole);
    s->orphans_until = 0;
    s->publisher = 0;
    kvr__view_note_cursor(s);
}

/* Should it come again, it is not a restart. */
static void note_recent(struct source *s, uint64_t seq, uint64_t hash)
{
    s->recent[seq % RECENT].end = seq + 1;
    s->recent[seq % RECENT].hash = hash;
}

void kvr__view_remember(struct source *s, uint64_t seq, uint64_t hash)
{
    s->last_hash = hash;
    note_recent(s, seq, hash);
}

static bool remembers(const struct source *s, uint64_t seq, const char *data, size_t len)
{
    return s->recent[seq % RECENT].end == seq + 1 && s->recent[seq % RECENT].hash == kvr_hash_bytes(data, len, 0);
}

struct rank_stream *kvr__view_carry(struct source *s, uint32_t rank)
{
    struct rank_stream *r = &s->own;
    if (rank == s->st.worker.dp_rank) return r;
    if (!s->any_rank) return NULL;
    for (r = s->own.next; r; r = r->next)
        if (r->stream.worker.dp_rank == rank) return r;
    if (s->ranks_n >= RANKS_MAX || !(r = calloc(1, sizeof *r))) return NULL;
    kvr_engine_stream_init(&r->stream, (struct kvr_worker){s->st.worker.worker_id, rank}, s->own.stream.block_size);
    r->stream.tiers = s->own.stream.tiers;
    r->stream.window = s->own.stream.window;
    r->stream.window_ctx = s->own.stream.window_ctx;
    r->stream.holds = s->own.stream.holds;
    r->stream.holds_ctx = s->own.stream.holds_ctx;
    r->next = s->own.next;
    s->own.next = r;
    s->ranks_n++;
    return r;
}

/* The stream of the batch's rank; NULL when the source is not to carry it. */
static struct rank_stream *stream_of(struct kvr_ingest *in, struct source *s)
{
    return in->batch.has_rank ? kvr__view_carry(s, in->batch.rank) : &s->own;
}

static void sum_counters(struct source *s)
{
    struct kvr_engine_counters *sum = &s->st.filtered;
    *sum = s->own.stream.counters;
    s->st.unproven_copies = s->own.stream.copies.unproven;
    for (const struct rank_stream *r = s->own.next; r; r = r->next) {
        s->st.unproven_copies += r->stream.copies.unproven;
#define KVR_SUM(name) sum->name += r->stream.counters.name;
        KVR_ENGINE_COUNTERS(KVR_SUM)
#undef KVR_SUM
    }
}

/* ---- applying ---------------------------------------------------------------------------------------- */

/* Is what the view lacks still there? */
static void watch_hole(struct source *s, const struct kvr_event *ev, int rc)
{
    if (!s->missing || ev->tier != KVR_TIER_DEVICE || s->ranks_n > 1) return;
    if (rc == -KVR_EPARENT || rc == -KVR_ENOTFOUND) kvr_hole_sign(&s->hole);
    if (rc) return;
    if (ev->kind == KVR_EVENT_STORED && ev->blocks_n) kvr_hole_stored(&s->hole, ev->blocks[0].block_hash);
    for (size_t i = 0; ev->kind == KVR_EVENT_REMOVED && i < ev->removed_n && !s->healed; i++)
        s->healed = kvr_hole_removed(&s->hole, ev->removed[i]);
    if (s->healed) s->missing = s->hollow = false;
}

/* May the engine hold copies that are not counted (recover/consumer/copies.h)? */
static bool copies_unsure(const struct source *s)
{
    for (const struct rank_stream *r = &s->own; r; r = r->next)
        if (r->stream.copies.unsure) return true;
    return false;
}

/* A view that was taken for whole is not: it lacks blocks, and what it has is true. */
static void lacks(struct kvr_ingest *in, struct source *s, const char *why)
{
    s->missing_why = why;
    s->healed = false;
    s->missing = true;
    kvr_hole_begin(&s->hole);
    kvr__view_note_cursor(s);
    if (s->known != KVR_VIEW_UNKNOWN) believe(in, s);
}

/* Blocks are in use that it lacks, which is no sign that what it has is false. */
static void still_missing(struct kvr_ingest *in, struct source *s)
{
    lacks(in, s,
          copies_unsure(s) ? "the engine keeps blocks twice, and which of both went is not known"
                           : "blocks of before a loss are still in use");
}

/* What unproven copies held has left the view. A hybrid model's groups may have lost more than is counted. */
static void copies_taken_back(struct kvr_ingest *in, struct source *s)
{
    lacks(in, s, "the engine reports what it reuses: what it keeps twice is not known");
}

static bool is_hybrid(const struct rank_stream *r)
{
    return memchr(r->stream.group_main, 2, sizeof r->stream.group_main) != NULL;
}

static void on_converted(void *ctx, const struct kvr_event *ev)
{
    struct kvr_ingest *in = ctx;
    struct source *s = in->current;
    struct kvr_ingest_origin origin = {&in->batch, in->applying ? in->applying->current : NULL, in->applying};
    int rc = in->handler.on_event(in->handler.ctx, s->user, ev, in->applying ? &origin : NULL);
    s->st.events++;
    s->st.blocks += ev->blocks_n + ev->removed_n;
    if (ev->kind == KVR_EVENT_CLEARED && rc == 0) s->cleared = true;
    if (!(in->applying && in->applying->taking_back)) watch_hole(s, ev, rc); /* of those the engine may have told nothing */
    if (rc == -KVR_EPARENT) {
        s->st.parent_not_found++;
        s->orphaned = true;
    } else if (rc == -KVR_ENOTFOUND) {
        s->st.block_not_found++;
    } else if (rc) {
        s->st.apply_errors++;
        s->torn |= rc == -KVR_ENOMEM && ev->kind != KVR_EVENT_STORED; /* what has gone would stay; a store is only missed */
    }
}

/* One event of the shared stream. */
static void apply_plane_event(struct kvr_ingest *in, struct source *s)
{
    s->event_ms = in->now_ms;
    if (in->plane_event.tier != KVR_TIER_DEVICE && !s->own.stream.tiers) return;
    in->current = s;
    in->plane_event.worker = s->st.worker; /* on a socket of its own it need not know its id */
    s->cleared = s->orphaned = false;
    on_converted(in, &in->plane_event);
    if (s->cleared) s->missing = s->hollow = false; /* an empty view is a complete one */
}

void kvr__view_window(void *ctx, const struct kvr_window_event *event)
{
    const struct kvr_ingest *in = ctx;
    in->handler.on_window(in->handler.ctx, in->current->user, event);
}

bool kvr__view_holds(void *ctx, enum kvr_tier tier, uint64_t name)
{
    const struct kvr_ingest *in = ctx;
    return in->handler.holds(in->handler.ctx, in->current->user, in->applying->worker, tier, name);
}

/* The decoded batch. */
static void apply_engine_batch(struct kvr_ingest *in, struct source *s, uint64_t seq)
{
    struct rank_stream *r = stream_of(in, s);
    uint64_t mismatches = r ? r->stream.counters.block_size_mismatch : 0, taken_back = r ? r->stream.counters.copy_taken_back : 0;
    bool reported = r && r->stream.copies.reports;
    enum kvr_engine_groups groups = r ? kvr_engine_stream_groups(&r->stream) : KVR_GROUPS_EXACT;
    if (!r) {
        char text[sizeof s->known_reason];
        snprintf(text, sizeof text, "batches of rank %u come here: give that rank (dp-start), or the events port of this one",
                 in->batch.rank);
        s->own.stream.counters.other_rank++;
        s->mismatch = true;
        kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, text);
    } else {
        in->current = s;
        s->cleared = s->orphaned = false;
        in->applying = &r->stream;
        r->stream.again = s->orphans_until && seq <= s->orphans_until; /* the dump may have had it */
        if (kvr_engine_convert(&r->stream, &in->batch, seq, on_converted, in) < 0) {
            s->st.apply_errors++;
            s->torn = true;
        }
        in->applying = NULL;
        if (s->cleared && s->missing && s->ranks_n == 1) s->missing = s->hollow = false; /* an empty view is a complete one */
        bool lost_groups = r->stream.copies.reports && !reported && is_hybrid(r);
        if (groups != kvr_engine_stream_groups(&r->stream) && s->known != KVR_VIEW_UNKNOWN) believe(in, s);
        if (lost_groups || r->stream.counters.copy_taken_back != taken_back) copies_taken_back(in, s);
        if (r->stream.counters.block_size_mismatch != mismatches) {
            s->mismatch = true;
            char text[96];
            snprintf(text, sizeof text, "the engine's block size is %u, not the configured %u", r->stream.engine_block_size,
                     r->stream.block_size);
            kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, text);
        }
    }
    s->st.engine_block_size = s->own.stream.engine_block_size;
    sum_counters(s);
}

/* Applies what was decoded. */
static void apply_batch(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    if (s->enveloped) apply_plane_event(in, s);
    else apply_engine_batch(in, s, seq);
    s->st.batches++;
    s->st.bytes += len;
    kvr__view_remember(s, seq, kvr_hash_bytes(data, len, 0));
    kvr__cursor_advance(&s->cursor, seq, in->batch.ts);
    kvr__view_note_cursor(s);
    tell_batch(s, seq, data, len);
}

static bool decode(struct kvr_ingest *in, struct source *s, const char *data, size_t len)
{
    uint64_t publisher;
    if (s->enveloped ? kvr__plane_decode(in, data, len, &publisher) : kvr_engine_decode(&in->batch, data, len) == 0) return true;
    s->st.decode_errors++;
    if (in->now_ms - s->undecodable_ms > UNDECODABLE_MS) {
        s->undecodable_ms = in->now_ms;
        s->undecodable_n = 0;
    }
    if (++s->undecodable_n > UNDECODABLE_MAX && !s->undecodable) {
        s->undecodable = true;
        weigh_again(in, s);
    }
    return false;
}

/* ---- asking the worker ---------------------------------------------------------------------------------- */

static bool can_repair(const struct source *s)
{
    return s->dealer || s->recover[0];
}

/* A repair is under way that live batches have to wait for. */
static bool live_waits(const struct source *s)
{
    return s->replaying || (s->asking && !s->mute) || s->incoming;
}

bool kvr__view_repairing(const struct source *s)
{
    return s->replaying || s->asking || s->incoming || s->settling;
}

static void drop_incoming(struct kvr_ingest *in, struct source *s)
{
    if (!s->incoming) return;
    kvr_recover_reply_free(s->incoming);
    s->incoming = NULL;
    in->incoming_n--;
}

void kvr__view_forget_repair(struct kvr_ingest *in, struct source *s)
{
    if (s->asking) in->effects->cancel(in, s->asking);
    s->asking = 0;
    s->replaying = s->verifying = s->probing = s->mute = false;
    s->retry_at_ms = s->tail_at_ms = 0;
    drop_incoming(in, s);
    drop_waiting(in, s);
}

/* The repair is tried again after a pause. Meanwhile live batches go on without it, or, when there are none to come, are let go. What
 * only its answer could have confirmed is dropped; the next batch, which is not in sequence then, begins a partial view. */
static void repair_later(struct kvr_ingest *in, struct source *s, const char *why)
{
    uint64_t pause = (uint64_t)RETRY_MIN_MS << KVR_MIN(s->retries, 6u);
    s->retries++;
    s->retry_at_ms = in->now_ms + KVR_MIN(pause, (uint64_t)RETRY_MAX_MS);
    if (s->unsure && s->connected) drop_view(in, s);
    bool holds = s->connected && s->cursor.applied_any && !s->mismatch;
    kvr__view_trust(in, s, holds ? KVR_VIEW_PARTIAL : KVR_VIEW_UNKNOWN, why);
    if (!s->connected) {
        drop_waiting(in, s);
        return;
    }
    s->mute = true;
    s->verifying = false;
    s->st.state = KVR_VIEW_LIVE;
    if (s->settling == NOT_SETTLING) set_settling(in, s, GOING_ON);
}

static void recovery_failed(struct kvr_ingest *in, struct source *s, const char *why)
{
    char text[96];
    s->st.recovery_failures++;
    snprintf(text, sizeof text, "recovery failed: %.70s", why);
    repair_later(in, s, text);
}

/* Asks the worker's recover endpoint for what comes next, or for everything. */
static void ask(struct kvr_ingest *in, struct source *s, bool everything)
{
    struct kvr_recover_question q = {++in->tokens, s->recover, s->st.worker.dp_rank, !everything, s->cursor.next};
    s->st.questions++;
    s->asking = q.token;
    s->asked_all = everything;
    s->retry_at_ms = s->tail_at_ms = 0;
    if (everything && !s->mute) s->st.state = KVR_VIEW_RESTORING;
    if (in->effects->ask(in, &q) == 0) return;
    s->asking = 0;
    recovery_failed(in, s, "out of memory");
}

/* After a reconnection, without an epoch, nobody can tell whether the ids are still those of the same life. */
static bool must_ask_all(const struct source *s)
{
    return !s->cursor.applied_any || s->hollow || (!s->has_epoch && !s->same_life);
}

static void settle(struct kvr_ingest *in, struct source *s);
static void request_replay(struct kvr_ingest *in, struct source *s, uint64_t from);

/* Content is on its way out: nobody may rely on what is left of it. A view that was unknown before keeps its reason. */
static void distrust(struct kvr_ingest *in, struct source *s, const char *why)
{
    if (s->known != KVR_VIEW_UNKNOWN) kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, why);
}

/* Everything from the worker, in place of what is here. */
static void start_over(struct kvr_ingest *in, struct source *s)
{
    distrust(in, s, "being restored from the start");
    drop_view(in, s);
    ask(in, s, true);
}

/* A store under a parent that should be there: something was missed before, and the view starts over, once in a while. */
static bool may_rebuild(struct kvr_ingest *in, struct source *s)
{
    if (s->rebuilt_ms && in->now_ms - s->rebuilt_ms <= REBUILD_PAUSE_MS) return false;
    s->rebuilt_ms = in->now_ms;
    return true;
}

/* The incoming content is applied. */
static void incoming_done(struct kvr_ingest *in, struct source *s)
{
    const struct kvr_recover_answer *a = &s->incoming->answer;
    bool dump = a->kind == KVR_RECOVER_TREE_DUMP, nothing = dump && a->events.n == 0 && a->last_event_id == 0;
    uint64_t next = nothing ? 0 : a->has_last ? a->last_event_id + 1 : s->cursor.next; /* nothing: whether 0 or 1 comes first is open */
    bool behind = dump && next < s->cursor.next; /* batches that we had are gone with the old content */
    s->cursor.applied_any = true;
    s->cursor.next = dump ? next : KVR_MAX(next, s->cursor.next);
    s->cursor.last_ts = 0; /* later batches are not "stamped later", they are just late */
    s->last_hash = 0;
    s->missing = s->hollow = false;
    s->same_life = true;
    s->orphans_until = dump ? a->has_end ? a->end_event_id : a->last_event_id : s->orphans_until;
    if (dump) s->st.recovered_dumps++;
    else s->st.recovered_events += a->events.n;
    drop_incoming(in, s);
    kvr__view_note_cursor(s);
    tell_break(s); /* batches that came meanwhile were kept for a content that is gone */
    if (behind && s->dealer) request_replay(in, s, next);
    else if (behind) ask(in, s, false);
    else settle(in, s);
}

static void take_incoming(struct kvr_ingest *in, struct source *s)
{
    bool dump = s->incoming->answer.kind == KVR_RECOVER_TREE_DUMP;
    struct kvr_event_list *l = &s->incoming->answer.events;
    in->current = s;
    for (size_t blocks = 0; s->incoming_at < l->n && blocks < STEP_BLOCKS; s->incoming_at++) {
        struct kvr_event ev = l->events[s->incoming_at];
        blocks += ev.blocks_n + ev.removed_n + 1;
        ev.worker = s->st.worker; /* the worker need not know the id it has here */
        if (!dump && ev.event_id < s->cursor.next) continue;
        s->orphaned = false;
        on_converted(in, &ev);
        s->incoming_torn |= !dump && s->orphaned && !s->lossy && ev.event_id > s->orphans_until;
    }
    if (s->incoming_at < l->n) return;
    if (s->incoming_torn && may_rebuild(in, s)) {
        drop_incoming(in, s);
        start_over(in, s);
    } else {
        incoming_done(in, s);
    }
}

static void take_events(struct kvr_ingest *in, struct source *s, struct kvr_recover_reply *reply)
{
    (void)kvr__event_list_events(&reply->answer.events);
    s->incoming = reply;
    s->incoming_at = 0;
    s->incoming_torn = false;
    in->incoming_n++;
    tell_break(s);
    kvr_engine_stream_forget_copies(&s->own.stream); /* whether these have the engine's copies or its publisher's word is not known */
    if (reply->answer.kind != KVR_RECOVER_TREE_DUMP) return;
    distrust(in, s, "being restored from a dump");
    in->handler.on_reset(in->handler.ctx, s->user, s->st.worker);
    kvr_engine_stream_reset(&s->own.stream);
}

/* The worker lives another life than the view is of. */
static void ask_anew(struct kvr_ingest *in, struct source *s)
{
    s->st.restarts++;
    s->mismatch = false;
    forget_ways(s);
    start_over(in, s);
}

void kvr__view_reply(struct kvr_ingest *in, struct source *s, struct kvr_recover_reply *reply)
{
    const struct kvr_recover_answer *a = &reply->answer;
    bool told = s->has_epoch && a->has_epoch, same_life = !told || a->epoch == s->epoch, all = s->asked_all;
    s->asking = 0;
    s->mute = false;
    s->worker_block_size = 0;
    if (a->has_epoch && !(s->has_epoch && same_life)) {
        s->has_epoch = true;
        s->epoch = a->epoch;
        s->epoch_ms = in->now_ms;
    }
    if (a->has_block_size && a->block_size != s->own.stream.block_size) {
        char text[96];
        s->st.recovery_failures++;
        s->worker_block_size = a->block_size;
        say_size(s, text, sizeof text);
        repair_later(in, s, text);
        kvr_recover_reply_free(reply);
        return;
    }
    if (a->kind == KVR_RECOVER_TREE_DUMP || (a->kind == KVR_RECOVER_EVENTS && same_life && !all)) {
        take_events(in, s, reply);
        return;
    }
    if (a->kind == KVR_RECOVER_EVENTS || a->kind == KVR_RECOVER_TOO_NEW) {
        /* A worker that is behind us has restarted, unless it says that it has not: batches may be nothing to it. */
        bool caught_up = a->kind == KVR_RECOVER_TOO_NEW && same_life && (told || a->newest_available + 1 >= s->cursor.next);
        if (caught_up && !all) settle(in, s);
        else if (!all) ask_anew(in, s);
        else recovery_failed(in, s, "the worker does not answer with its whole content");
    } else {
        recovery_failed(in, s, a->kind == KVR_RECOVER_FAILED ? a->message : "an answer that is not known here");
    }
    kvr_recover_reply_free(reply);
}

/* ---- replay ------------------------------------------------------------------------------------------ */

static void send_replay_request(struct kvr_ingest *in, struct source *s, uint64_t from)
{
    s->st.replays++;
    s->owed_ends++;
    s->replay_from = from;
    s->reach.measuring = from == 0;
    s->reach.first = s->reach.next = 0;
    s->silent_deadline_ms = in->now_ms + in->restore_timeout_ms;
    s->replay_ends_ms = in->now_ms + in->restore_timeout_ms * REPLAY_PATIENCE;
    s->retry_at_ms = s->tail_at_ms = 0;
    if (!in->effects->replay(s, from)) s->silent_deadline_ms = in->now_ms; /* reported as silence */
}

static void request_replay(struct kvr_ingest *in, struct source *s, uint64_t from)
{
    s->replaying = true;
    s->probing = s->mute = false;
    send_replay_request(in, s, from);
}

/* Asks a mute engine for everything; nothing waits for the answer. */
static void probe(struct kvr_ingest *in, struct source *s)
{
    s->probing = true;
    send_replay_request(in, s, 0);
}

/* The first answer to a probe: the view begins anew. What came on the live stream since it was sent may be missing in it and gone with
 * the old content, so the tail is looked at afterwards. */
static void probe_answered(struct kvr_ingest *in, struct source *s)
{
    s->probing = s->mute = s->verifying = s->mismatch = false;
    s->rounds = s->retries = 0;
    set_settling(in, s, NOT_SETTLING); /* what waits is taken when the replay is over */
    distrust(in, s, "being restored from the start");
    drop_view(in, s);
    s->st.state = KVR_VIEW_RESTORING;
    s->replaying = true;
    s->tail_at_ms = in->now_ms + TAIL_CHECK_MS;
}

static void torn_batch(struct kvr_ingest *in, struct source *s);

static void rebuild(struct kvr_ingest *in, struct source *s)
{
    drop_view(in, s);
    s->verifying = false;
    s->rounds = 0;
    s->st.state = KVR_VIEW_RESTORING;
    kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, "being restored from the start");
    if (s->dealer) request_replay(in, s, 0);
    else ask(in, s, true);
}

/* New evidence against a view that can be restored has it restored, once in a while; should that not help, it stays unknown. */
void kvr__view_evidence(struct kvr_ingest *in, struct source *s, const char *text)
{
    bool first = text[0] && !s->evidence[0];
    snprintf(s->evidence, sizeof s->evidence, "%s", text);
    weigh_again(in, s);
    if (!first || !can_repair(s) || s->mute || !s->connected || kvr__view_repairing(s)) return;
    if (may_rebuild(in, s)) rebuild(in, s);
}

static void take_back(struct kvr_ingest *in, struct source *s, struct rank_stream *r)
{
    in->current = s;
    in->applying = &r->stream;
    r->stream.current = NULL;
    s->torn |= kvr_engine_stream_take_back(&r->stream, s->cursor.next ? s->cursor.next - 1 : 0, on_converted, in) < 0;
    in->applying = NULL;
}

/* What a hybrid model's engine has not may be missing in another group. */
static bool is_doubtful(const struct rank_stream *r, const uint64_t *name)
{
    if (name && (is_hybrid(r) || !kvr__copies_unproven(&r->stream.copies, KVR_TIER_DEVICE, *name))) return false;
    return r->stream.copies.unproven > 0;
}

/* The batches that are kept would bring back what goes here. */
static void copies_gone(struct kvr_ingest *in, struct source *s)
{
    tell_break(s);
    sum_counters(s);
    copies_taken_back(in, s);
    if (s->torn) torn_batch(in, s);
}

void kvr__view_doubt_copies(struct kvr_ingest *in, struct source *s, const uint64_t *name)
{
    bool any = false;
    for (struct rank_stream *r = &s->own; r; r = r->next) {
        if (!is_doubtful(r, name)) continue;
        take_back(in, s, r);
        any = true;
    }
    if (any) copies_gone(in, s);
}

/* The first report may have come before the word that there will be some. */
void kvr__view_expect_reports(struct kvr_ingest *in, struct source *s)
{
    bool any = false;
    for (struct rank_stream *r = &s->own; r; r = r->next) {
        if (!r->stream.copies.reports && r->stream.copies.unproven) {
            take_back(in, s, r);
            any = true;
        }
        r->stream.copies.reports = true;
    }
    if (any) copies_gone(in, s);
}

static void replay_failed(struct kvr_ingest *in, struct source *s)
{
    s->st.replay_failures++;
    s->replaying = s->probing = false; /* verifying stays: who has not answered has confirmed nothing */
    in->effects->renew(in, s);
    if (s->recover[0] && s->connected) {
        s->verifying = false;
        ask(in, s, true);
        return;
    }
    repair_later(in, s, s->connected ? "the replay endpoint does not answer" : "the events endpoint is not reachable");
}

void kvr__view_replay_broken(struct kvr_ingest *in, struct source *s)
{
    if (s->replaying || s->probing) replay_failed(in, s);
}

static void take_live(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len, bool seen);

/* The repair that is due will bring what comes live. */
static bool repair_is_due(const struct source *s)
{
    return s->retry_at_ms && can_repair(s) && !s->mute;
}

/* Everything that has waited is taken: says what the view is now. */
static void settled(struct kvr_ingest *in, struct source *s)
{
    bool whole = s->settling == SETTLING;
    set_settling(in, s, NOT_SETTLING);
    if (!whole || kvr__view_repairing(s) || s->retry_at_ms) return;
    s->rounds = s->retries = 0;
    s->unsure = false;
    s->st.state = KVR_VIEW_LIVE;
    believe(in, s);
}

/* One turn of taking what has waited. A hole starts another repair, and the rest waits on, behind the batch that showed it. */
static void take_waiting(struct kvr_ingest *in, struct source *s)
{
    struct waiting *w = s->wait_head, **rest_tail = s->wait_tail;
    size_t n = s->wait_n, bytes = s->wait_bytes;
    struct turn t = kvr__turn_begin(in);
    bool over = false;
    s->wait_head = NULL;
    s->wait_tail = &s->wait_head;
    s->wait_n = s->wait_bytes = 0;
    while (w && !over && !live_waits(s)) {
        struct waiting *next = w->next;
        n--;
        bytes -= w->len;
        if (!repair_is_due(s)) take_live(in, s, w->seq, w->data, w->len, w->seen);
        over = kvr__turn_over(in, &t, w->len);
        free(w);
        w = next;
    }
    if (w) {
        *s->wait_tail = w;
        s->wait_tail = rest_tail;
        s->wait_n += n;
        s->wait_bytes += bytes;
    }
    if (live_waits(s)) set_settling(in, s, NOT_SETTLING);
    else if (!s->wait_head) settled(in, s);
}

/* A repair is over. */
static void settle(struct kvr_ingest *in, struct source *s)
{
    s->st.state = KVR_VIEW_LIVE;
    set_settling(in, s, SETTLING);
    take_waiting(in, s);
}

void kvr__view_step(struct kvr_ingest *in, struct source *s)
{
    if (s->settling) take_waiting(in, s);
    else if (s->incoming) take_incoming(in, s);
}

/* Of a batch some events are lost, here: what the view holds may be gone. It is asked for anew as after silence. */
static void torn_batch(struct kvr_ingest *in, struct source *s)
{
    s->torn = s->unsure = false;
    if (s->replaying) in->effects->renew(in, s);
    s->replaying = false;
    lose_past(in, s, "out of memory: events of a batch were lost");
    s->hollow = true;
    kvr__view_note_cursor(s);
    if (can_repair(s)) repair_later(in, s, s->missing_why);
    else believe(in, s);
}

/* A batch of a replay of everything. */
static void note_reach(const struct kvr_ingest *in, struct source *s, uint64_t seq)
{
    if (s->reach.next == 0) {
        s->reach.first = seq;
        s->reach.first_ts = in->batch.ts;
    }
    s->reach.next = seq + 1;
    s->reach.last_ts = in->batch.ts;
}

static void say_reach(struct source *s)
{
    char seconds[32] = "";
    const struct kvr_view_status *st = &s->st;
    if (st->buffer_seconds > 0 && st->buffer_seconds < 1e9) snprintf(seconds, sizeof seconds, ", %.0f s", st->buffer_seconds);
    kvr_log(st->buffer_first
                ? "kvroute: worker %llu rank %u: its replay buffer holds the last %llu batches%s: who is away for longer, without "
                  "--data-dir, has a partial view at first (vLLM: buffer_steps)"
                : "kvroute: worker %llu rank %u: its replay buffer has all %llu batches since it began%s",
            (unsigned long long)st->worker.worker_id, st->worker.dp_rank, (unsigned long long)st->buffer_batches, seconds);
}

/* How far the engine's replay buffer reaches back; said once. */
static void measure_reach(struct source *s)
{
    bool known = s->reach.measuring && s->reach.next > 0;
    s->reach.measuring = false;
    if (!known) return;
    s->st.buffer_first = s->reach.first;
    s->st.buffer_batches = s->reach.next - s->reach.first;
    s->st.buffer_seconds = s->reach.last_ts - s->reach.first_ts;
    if (!s->reach.said) say_reach(s);
    s->reach.said = true;
}

static void replay_complete(struct kvr_ingest *in, struct source *s)
{
    s->replaying = false;
    measure_reach(s);
    if (s->missing && s->recover[0]) {
        ask(in, s, true);
        return;
    }
    if (!s->cursor.applied_any && !s->wait_head) drop_content(in, s); /* the engine has done nothing yet */
    settle(in, s);
}

/* A reconnected engine must still have our last batch, else it is another life of it. */
static void on_verified(struct kvr_ingest *in, struct source *s, bool same)
{
    s->verifying = false;
    if (same) return;
    s->st.restarts++;
    s->mismatch = false;
    s->replaying = false;
    forget_ways(s);
    rebuild(in, s);
}

static void replayed(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    if (seq < s->replay_from) return; /* left over from an earlier request */
    if (s->probing) probe_answered(in, s);
    s->silent_deadline_ms = KVR_MIN(in->now_ms + in->restore_timeout_ms, s->replay_ends_ms);
    if (s->verifying) {
        bool same = seq + 1 == s->cursor.next && kvr_hash_bytes(data, len, 0) == s->last_hash;
        on_verified(in, s, same);
        return;
    }
    if (!s->cursor.applied_any) drop_content(in, s); /* what was there came from less than the engine itself */
    switch (kvr__cursor_replay(&s->cursor, seq)) {
    case KVR_CURSOR_STALE:
    case KVR_CURSOR_RESTART: return;
    case KVR_CURSOR_GAP: lose_past(in, s, "the engine's replay buffer no longer holds the whole history"); break;
    case KVR_CURSOR_APPLY: break;
    }
    if (decode(in, s, data, len)) {
        apply_batch(in, s, seq, data, len);
        note_reach(in, s, seq);
        if (s->torn) torn_batch(in, s);
    } else {
        lose_past(in, s, "a batch of the engine's replay cannot be decoded"); /* it never will: go on without it */
        kvr__cursor_advance(&s->cursor, seq, 0);
    }
}

static void replay_ended(struct kvr_ingest *in, struct source *s)
{
    if (s->probing && s->cursor.applied_any) { /* it has nothing to tell of what came before */
        s->probing = s->mute = false;
        s->missing = s->hollow = true;
        s->missing_why = "the engine's replay buffer no longer holds the whole history";
        settle(in, s);
        return;
    }
    if (s->probing) probe_answered(in, s);
    if (!s->replaying) return;
    if (s->verifying) {
        on_verified(in, s, false);
        return;
    }
    replay_complete(in, s);
}

void kvr__view_replay_part(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    bool end = seq == UINT64_MAX && len == 0;
    s->owed_ends -= end && s->owed_ends;
    bool current = (s->replaying || s->probing) && s->owed_ends == !end; /* answers come in the order of the questions */
    if (current && end) replay_ended(in, s);
    else if (current) replayed(in, s, seq, data, len);
}

/* ---- live -------------------------------------------------------------------------------------------- */

static void keep_waiting(struct source *s, uint64_t seq, const char *data, size_t len, bool seen)
{
    struct waiting *w = NULL;
    if (s->wait_n < WAITING_MESSAGES_MAX && s->wait_bytes + len <= WAITING_BYTES_MAX) w = malloc(sizeof *w + len);
    if (!w) { /* the hole is found, and repaired, when the replay ends */
        s->st.overflows++;
        return;
    }
    w->next = NULL;
    w->seq = seq;
    w->seen = seen;
    w->len = len;
    memcpy(w->data, data, len);
    *s->wait_tail = w;
    s->wait_tail = &w->next;
    s->wait_n++;
    s->wait_bytes += len;
}

/* The view goes with another life of the publisher from here on. */
static void note_publisher(struct kvr_ingest *in, struct source *s, const char *data)
{
    struct plane_head h;
    if (!s->enveloped) return;
    memcpy(&h, data, sizeof h);
    s->publisher = h.publisher;
    s->publisher_since = in->batch.ts;
}

static void unrepaired_gap(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    struct kvr_cursor seen = s->cursor;
    drop_view(in, s);
    note_publisher(in, s, data);
    s->cursor.live_any = true;
    s->cursor.last_live = seen.last_live;
    s->missing = s->hollow = true;
    s->missing_why = s->mute        ? "batches were lost, and who could repair it does not answer"
                     : s->enveloped ? "events were lost and there is no recover endpoint"
                                    : "batches were lost and there is no replay endpoint";
    apply_batch(in, s, seq, data, len);
    if (s->torn) torn_batch(in, s);
    else believe(in, s);
}

static void on_gap(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    s->st.gaps++;
    if (can_repair(s) && !s->mute) {
        s->unsure = true;
        distrust(in, s, "batches are missing");
    }
    if (s->mute) {
        unrepaired_gap(in, s, seq, data, len);
    } else if (!s->dealer && s->recover[0]) {
        keep_waiting(s, seq, data, len, true);
        if (s->rounds++ < REPLAY_ROUNDS_MAX) ask(in, s, must_ask_all(s));
        else repair_later(in, s, "events are lost faster than they are recovered");
        if (s->rounds > REPLAY_ROUNDS_MAX) s->rounds = 0;
    } else if (!s->dealer) {
        unrepaired_gap(in, s, seq, data, len);
    } else if (s->rounds++ < REPLAY_ROUNDS_MAX) {
        keep_waiting(s, seq, data, len, true);
        request_replay(in, s, s->cursor.next);
    } else if (s->recover[0]) {
        keep_waiting(s, seq, data, len, true);
        ask(in, s, true);
    } else {
        s->rounds = 0;
        unrepaired_gap(in, s, seq, data, len);
    }
}

/* An event after which nothing before it matters. */
static bool begins_anew(const struct kvr_ingest *in, const struct source *s)
{
    return s->enveloped && in->plane_event.kind == KVR_EVENT_CLEARED && in->plane_event.tier == KVR_TIER_DEVICE;
}

static void on_restart(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    s->st.restarts++;
    s->mismatch = false;
    drop_view(in, s);
    forget_ways(s);
    s->has_epoch = false; /* the new one is not known yet */
    s->same_life = true;
    s->cursor.live_any = true;
    s->cursor.last_live = seq;
    note_publisher(in, s, data);
    if (seq == 0 || begins_anew(in, s)) {
        apply_batch(in, s, seq, data, len);
        if (s->torn) torn_batch(in, s);
        else believe(in, s);
    } else {
        kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, "being restored from the start");
        on_gap(in, s, seq, data, len);
    }
}

/* What a decoded event of the shared stream means. A publisher that says who it is need not be guessed at. */
static enum kvr_cursor_verdict plane_verdict(struct kvr_ingest *in, struct source *s, uint64_t seq, uint64_t publisher, bool seen)
{
    if (!publisher) return seen ? kvr__cursor_replay(&s->cursor, seq) : kvr__cursor_live(&s->cursor, seq, in->batch.ts);
    if (s->publisher && s->publisher != publisher)
        return in->batch.ts < s->publisher_since ? KVR_CURSOR_STALE : KVR_CURSOR_RESTART; /* of its life before, or after */
    bool first = !s->publisher && seq == KVR_PLANE_FIRST_EVENT && begins_anew(in, s);
    if (first && s->cursor.next > KVR_PLANE_FIRST_EVENT + 1) return KVR_CURSOR_RESTART; /* the content is of the life before */
    if (!s->publisher) s->publisher_since = in->batch.ts;
    s->publisher = publisher;
    enum kvr_cursor_verdict v = kvr__cursor_replay(&s->cursor, seq);
    return v == KVR_CURSOR_GAP && begins_anew(in, s) ? KVR_CURSOR_APPLY : v;
}

static enum kvr_cursor_verdict verdict(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, bool seen)
{
    struct plane_head h;
    if (!s->enveloped) return seen ? kvr__cursor_replay(&s->cursor, seq) : kvr__cursor_live(&s->cursor, seq, in->batch.ts);
    memcpy(&h, data, sizeof h);
    return plane_verdict(in, s, seq, h.publisher, seen);
}

/* A batch that has not to wait. */
static void take_live(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len, bool seen)
{
    if (remembers(s, seq, data, len)) { /* sent twice, or overtaken by its replay */
        s->st.stale_batches++;
        return;
    }
    if (!decode(in, s, data, len)) return;
    switch (verdict(in, s, seq, data, seen)) {
    case KVR_CURSOR_STALE:
        s->st.stale_batches++;
        note_recent(s, seq, kvr_hash_bytes(data, len, 0));
        return;
    case KVR_CURSOR_RESTART: on_restart(in, s, seq, data, len); return;
    case KVR_CURSOR_GAP: on_gap(in, s, seq, data, len); return;
    case KVR_CURSOR_APPLY: break;
    }
    bool was_missing = s->missing;
    apply_batch(in, s, seq, data, len);
    if (s->torn) {
        torn_batch(in, s);
        return;
    }
    s->rounds = 0;
    s->st.state = KVR_VIEW_LIVE;
    bool lost = s->orphaned && !s->lossy && seq > s->orphans_until && s->st.knowledge == KVR_VIEW_WHOLE;
    bool says = seq == 0 || (was_missing && !s->missing) || s->doubt || s->mute || (s->enveloped && s->cleared);
    if (lost && (s->healed || copies_unsure(s))) still_missing(in, s);
    else if (lost && can_repair(s) && !s->mute && may_rebuild(in, s)) rebuild(in, s);
    else if (says && (s->known == KVR_VIEW_UNKNOWN || (s->known == KVR_VIEW_PARTIAL && !s->missing))) believe(in, s);
    s->doubt = false;
}

void kvr__view_live(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    if (live_waits(s) || s->settling) keep_waiting(s, seq, data, len, false);
    else if (!repair_is_due(s)) take_live(in, s, seq, data, len, false);
}

void kvr__view_enveloped(struct kvr_ingest *in, struct source *s)
{
    s->enveloped = true;
    drop_waiting(in, s);                 /* engine batches */
    if (s->st.batches) drop_view(in, s); /* their names say nothing of events' ids */
}

/* A durable stream has brought what it has. Its publisher may hold more, as it may be at the server later than we are: one that
 * sends beats has to say first that this is all. */
static void caught_up(struct kvr_ingest *in, struct source *s)
{
    if (s->missing && can_repair(s)) {
        ask(in, s, must_ask_all(s));
        return;
    }
    if (s->unsure) lose_past(in, s, "events were lost and there is no recover endpoint");
    s->unsure = false;
    if (s->beat_ms && !s->missing) kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, "its publisher has not been heard since");
    else believe(in, s);
}

void kvr__view_begin(struct kvr_ingest *in, struct source *s)
{
    if (s->st.failed) {
        kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, "the events socket could not be made");
        return;
    }
    s->silent_deadline_ms = in->now_ms + in->restore_timeout_ms;
    if (s->plane) {
        s->st.state = KVR_VIEW_LIVE;
        if (!s->recover[0]) kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, "waiting for a clear (no recover endpoint)");
    } else if (s->dealer) {
        s->replaying = true; /* waits for the connection; asked for when it stands */
    } else if (!s->recover[0]) {
        s->st.state = KVR_VIEW_LIVE;
        kvr__view_trust(in, s, KVR_VIEW_UNKNOWN,
                        s->cursor.applied_any ? "waiting for the next batch to confirm it (no replay endpoint)"
                                              : "waiting for sequence 0 (no replay endpoint)");
    }
}

void kvr__view_connected(struct kvr_ingest *in, struct source *s)
{
    s->connected = s->st.connected = true;
    s->same_life = false;
    s->drop_at_ms = 0;
    if (kvr__plane_is_durable(in, s) && s->cursor.applied_any) {
        caught_up(in, s);
        return;
    }
    if (!can_repair(s)) {
        s->doubt = s->cursor.applied_any;
        return;
    }
    drop_waiting(in, s);
    s->mute = s->probing = false;
    if (s->owed_ends) in->effects->renew(in, s);
    s->rounds = s->retries = 0;
    s->unsure = s->cursor.applied_any;
    if (s->dealer && s->hollow) drop_view(in, s); /* it may be whole now */
    if (!s->dealer) {
        ask(in, s, must_ask_all(s));
    } else if (s->cursor.applied_any) {
        s->verifying = true;
        request_replay(in, s, s->cursor.next - 1);
    } else {
        request_replay(in, s, 0);
    }
    s->tail_at_ms = in->now_ms + TAIL_CHECK_MS;
}

void kvr__view_empty(struct kvr_ingest *in, struct source *s)
{
    kvr__view_forget_repair(in, s);
    drop_view(in, s);
}

void kvr__view_restore(struct kvr_ingest *in, struct source *s, const struct kvr_event *ev)
{
    if (ev->tier != KVR_TIER_DEVICE && !s->own.stream.tiers) return;
    in->current = s;
    on_converted(in, ev);
}

void kvr__view_restored(struct kvr_ingest *in, struct source *s, const struct kvr_snapshot_cursor *c)
{
    tell_break(s);
    s->cursor.applied_any = true;
    s->cursor.next = c->next;
    s->cursor.last_ts = 0;
    s->publisher = c->publisher;
    s->publisher_since = c->ts;
    if (c->beats) s->beat_ms = in->now_ms;
    s->missing = s->hollow = false;
    s->st.recovered_dumps++;
    kvr__view_note_cursor(s);
}

static void cut_off(struct kvr_ingest *in, struct source *s, const char *why)
{
    s->connected = s->st.connected = false;
    s->st.disconnects++;
    kvr__view_forget_repair(in, s);
    kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, why);
}

void kvr__view_disconnected(struct kvr_ingest *in, struct source *s)
{
    if (!s->connected) return;
    if (s->has_epoch && !s->publisher && in->now_ms - s->epoch_ms < OLD_LINE_MS) drop_view(in, s); /* it may be of two lives */
    s->drop_at_ms = in->now_ms + DOWN_GRACE_MS;
    cut_off(in, s, s->plane ? "its publisher is silent" : "the events endpoint is down");
}

void kvr__view_stream_down(struct kvr_ingest *in, struct source *s)
{
    if (s->connected) cut_off(in, s, "the event plane is down");
}

void kvr__view_behind(struct kvr_ingest *in, struct source *s, bool other_life)
{
    if (kvr__plane_is_durable(in, s) && !can_repair(s) && !other_life) {
        distrust(in, s, "events are missing"); /* the stream may bring them yet; if not, the next event shows the gap */
        return;
    }
    s->st.gaps++;
    s->st.restarts += other_life;
    if (other_life) s->has_epoch = false;
    if (other_life || !can_repair(s)) drop_view(in, s);
    s->missing = !can_repair(s);
    s->missing_why = "events are missing";
    s->unsure = s->cursor.applied_any;
    kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, "events are missing");
    if (can_repair(s)) ask(in, s, must_ask_all(s));
}

void kvr__view_confirmed(struct kvr_ingest *in, struct source *s)
{
    if (s->known != KVR_VIEW_UNKNOWN || s->unsure || !s->cursor.applied_any || !s->connected) return;
    s->doubt = false;
    believe(in, s);
}

/* Content up to `c` has been put in place from elsewhere. */
void kvr__view_adopt(struct kvr_ingest *in, struct source *s, const struct kvr_view_cursor *c)
{
    tell_break(s);
    s->cursor.applied_any = true;
    s->cursor.next = c->next;
    s->cursor.last_ts = c->last_ts;
    if (c->next) kvr__view_remember(s, c->next - 1, c->last_hash);
    s->missing = c->partial;
    s->healed = false;
    kvr_hole_begin(&s->hole);
    s->missing_why = "what was kept of it was not whole";
    s->hollow = s->verifying = false;
    s->unsure = can_repair(s);
    kvr__view_note_cursor(s);
    sum_counters(s);
    if (s->dealer && s->connected) {
        s->rounds = s->retries = 0;
        request_replay(in, s, c->next);
    } else if (s->recover[0] && s->connected) {
        ask(in, s, must_ask_all(s));
    } else if (s->connected) {
        believe(in, s);
    }
}

void kvr__view_take_tail(struct kvr_ingest *in, struct source *s)
{
    for (size_t at = 0; s->cursor.applied_any && !s->torn && s->tail_len - at >= 16;) {
        uint64_t seq, len;
        memcpy(&seq, s->tail + at, 8);
        memcpy(&len, s->tail + at + 8, 8);
        at += 16;
        if (len > s->tail_len - at || seq != s->cursor.next || !decode(in, s, s->tail + at, len)) break;
        apply_batch(in, s, seq, s->tail + at, len);
        at += len;
    }
    free(s->tail);
    s->tail = NULL;
    if (s->torn) drop_view(in, s);
    s->torn = false;
}

void kvr__view_deadlines(struct kvr_ingest *in, struct source *s)
{
    uint64_t now = in->now_ms;
    if ((s->replaying || s->probing) && now >= s->silent_deadline_ms) replay_failed(in, s);
    if (!s->st.settled && s->recover[0] && now >= s->silent_deadline_ms)
        kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, s->connected ? "being recovered" : "the events endpoint is not reachable");
    if (s->drop_at_ms && now >= s->drop_at_ms) {
        s->drop_at_ms = 0;
        drop_view(in, s);
    }
    if (s->undecodable && now - s->undecodable_ms > UNDECODABLE_MS) {
        s->undecodable = false;
        weigh_again(in, s);
    }
    bool retry = s->retry_at_ms && now >= s->retry_at_ms, tail = s->tail_at_ms && now >= s->tail_at_ms;
    if ((!retry && !tail) || !s->connected || kvr__view_repairing(s)) return;
    if (s->dealer && s->mute) probe(in, s);
    else if (s->dealer) request_replay(in, s, s->cursor.next - (retry && s->verifying));
    else if (s->recover[0]) ask(in, s, must_ask_all(s));
}
