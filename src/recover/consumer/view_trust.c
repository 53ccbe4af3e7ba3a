/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a view is worth, its content and its place in the stream.
 *
 * Why a partial view holds nothing that its engine does not. A block gets into the view by a store and must leave it by a removal, so a
 * false block needs a removal that was lost after the store was applied. Wherever batches are lost for good - a gap that nobody
 * repairs, a replay that begins after what is here, a batch that cannot be decoded or kept for want of memory - everything that was
 * applied before is dropped (kvr__view_lose_past), and the past is lost: what is left was stored after the loss, and its removals come
 * after it too. Where it is not known whether something was lost (`unsure`: a new connection, until its worker has shown that it has not
 * restarted and what came meanwhile; a gap that is being repaired; content from elsewhere), the view is unknown, and becomes whole or
 * partial when the answer has come; when no answer comes it is dropped as well (kvr__view_repair_later). Without anybody to ask, the next
 * batch in sequence is the answer, and one that is not in sequence is a gap.
 *
 * Invariants: kvr__view_check.
 */
#include "recover/consumer/view_internal.h"

#include <string.h>
#include <kvroute/hash.h>

enum { UNDECODABLE_MAX = 5 /* batches that cannot be decoded, within KVR_UNDECODABLE_MS */ };

/* ---- phases ------------------------------------------------------------------------------------------ */

/* clang-format off */
static const struct {
    bool wait, repair, mute; /* live batches wait; something is being repaired; the view is mute */
} PHASES[] = {
    [KVR_VIEW_FOLLOWING]    = {false, false, false},
    [KVR_VIEW_VERIFYING]    = {true,  true,  false},
    [KVR_VIEW_REPLAYING]    = {true,  true,  false},
    [KVR_VIEW_ASKING]       = {true,  true,  false},
    [KVR_VIEW_TAKING]       = {true,  true,  false},
    [KVR_VIEW_SETTLING]     = {false, true,  false},
    [KVR_VIEW_GOING_ON]     = {false, true,  true},
    [KVR_VIEW_MUTE]         = {false, false, true},
    [KVR_VIEW_PROBING]      = {false, false, true},
    [KVR_VIEW_ASKING_ASIDE] = {false, true,  true},
};
/* clang-format on */

void kvr__view_enter(struct kvr_view *v, enum kvr_view_phase phase)
{
    if (v->phase == KVR_VIEW_TAKING && phase != KVR_VIEW_TAKING) kvr__event_list_free(&v->incoming.events);
    v->phase = phase;
}

bool kvr__view_batches_wait(const struct kvr_view *v)
{
    return PHASES[v->phase].wait;
}

bool kvr__view_is_mute(const struct kvr_view *v)
{
    return PHASES[v->phase].mute;
}

bool kvr__view_is_repairing(const struct kvr_view *v)
{
    return PHASES[v->phase].repair;
}

bool kvr__view_is_asking(const struct kvr_view *v)
{
    return v->phase == KVR_VIEW_ASKING || v->phase == KVR_VIEW_ASKING_ASIDE;
}

bool kvr__view_is_settling(const struct kvr_view *v)
{
    return v->phase == KVR_VIEW_SETTLING || v->phase == KVR_VIEW_GOING_ON;
}

bool kvr__view_is_busy(const struct kvr_view *v)
{
    return v->phase == KVR_VIEW_TAKING || kvr__view_is_settling(v);
}

bool kvr__view_can_repair(const struct kvr_view *v)
{
    return v->has_replay || v->has_recover;
}

bool kvr__view_lacks_some(const struct kvr_view *v)
{
    return v->past >= KVR_PAST_LOST;
}

bool kvr__view_is_complete(const struct kvr_view *v)
{
    return v->cursor.applied_any && !kvr__view_lacks_some(v) && !v->mismatch && !kvr__view_is_repairing(v) && !v->retry_at_ms;
}

struct kvr_view_cursor kvr__view_cursor(const struct kvr_view *v)
{
    return (struct kvr_view_cursor){.known = v->cursor.applied_any && !v->mismatch &&
                                             v->phase != KVR_VIEW_TAKING, /* half of a dump is of no place */
                                    .partial = kvr__view_lacks_some(v),
                                    .next = v->cursor.next,
                                    .last_hash = v->last_hash,
                                    .last_ts = v->cursor.last_ts};
}

/* ---- trust ------------------------------------------------------------------------------------------- */

static const char *objection(const struct kvr_view *v)
{
    return v->evidence[0] ? v->evidence : v->undecodable ? "KV events cannot be decoded" : NULL;
}

void kvr__view_say_size(const struct kvr_view *v, char *text, size_t cap)
{
    snprintf(text, cap, "the worker's block size is %llu, not the configured %u", (unsigned long long)v->worker_block_size, v->block_size);
}

/* What the stream makes of the view, and why. */
static void note_known(struct kvr_view *v, enum kvr_view_knowledge knowledge, const char *reason)
{
    char text[sizeof v->known_reason];
    const char *bound = "";
    enum kvr_view_knowledge most = v->actions->worth(v->ctx, &bound);
    snprintf(text, sizeof text, "%s", reason); /* which may be known_reason itself */
    if (knowledge != KVR_VIEW_UNKNOWN && !v->connected && v->now.durable) {
        knowledge = KVR_VIEW_UNKNOWN;
        snprintf(text, sizeof text, "the stream is being caught up with");
    } else if (knowledge != KVR_VIEW_UNKNOWN && v->worker_block_size) {
        knowledge = KVR_VIEW_UNKNOWN;
        kvr__view_say_size(v, text, sizeof text);
    } else if (knowledge == KVR_VIEW_WHOLE && most != KVR_VIEW_UNKNOWN && kvr__view_is_mute(v)) {
        knowledge = KVR_VIEW_PARTIAL;
        snprintf(text, sizeof text, "the %s endpoint does not answer", v->has_recover ? "recover" : "replay");
    } else if (knowledge == KVR_VIEW_WHOLE && most != KVR_VIEW_UNKNOWN && v->told_partial) {
        knowledge = KVR_VIEW_PARTIAL;
        snprintf(text, sizeof text, "its publisher knows only a part of what the engine holds");
    } else if (knowledge > most) {
        knowledge = most;
        snprintf(text, sizeof text, "%s", bound);
    }
    v->known = knowledge;
    memcpy(v->known_reason, text, sizeof text);
}

void kvr__view_say(struct kvr_view *v, enum kvr_view_knowledge knowledge, const char *reason)
{
    note_known(v, knowledge, reason);
    const char *against = v->known == KVR_VIEW_UNKNOWN ? NULL : objection(v);
    knowledge = against ? KVR_VIEW_UNKNOWN : v->known;
    reason = against ? against : v->known_reason;
    bool changed = v->knowledge != knowledge || !v->settled || strcmp(v->reason, reason) != 0;
    v->settled = true;
    if (!changed) return;
    v->knowledge = knowledge;
    snprintf(v->reason, sizeof v->reason, "%s", reason);
    v->actions->trust(v->ctx, knowledge, reason);
}

void kvr__view_weigh(struct kvr_view *v)
{
    kvr__view_say(v, v->known, v->known_reason);
}

void kvr__view_believe(struct kvr_view *v)
{
    bool lacks = kvr__view_lacks_some(v);
    if (v->mismatch) return;
    kvr__view_say(v, lacks ? KVR_VIEW_PARTIAL : KVR_VIEW_WHOLE, lacks ? v->past_why : "");
}

void kvr__view_distrust(struct kvr_view *v, const char *why)
{
    if (v->known != KVR_VIEW_UNKNOWN) kvr__view_say(v, KVR_VIEW_UNKNOWN, why);
}

/* ---- content ----------------------------------------------------------------------------------------- */

void kvr__view_drop_content(struct kvr_view *v)
{
    v->actions->keep_anew(v->ctx);
    v->actions->clear(v->ctx);
}

void kvr__view_lose(struct kvr_view *v, enum kvr_view_past past, const char *why)
{
    v->past = KVR_MAX(v->past, past);
    v->past_why = why;
}

void kvr__view_lose_past(struct kvr_view *v, const char *why)
{
    kvr__view_drop_content(v);
    kvr__view_lose(v, KVR_PAST_LOST, why);
    kvr_hole_begin(&v->hole);
    if (v->known == KVR_VIEW_WHOLE) kvr__view_say(v, KVR_VIEW_PARTIAL, why);
}

void kvr__view_drop(struct kvr_view *v)
{
    kvr__view_drop_content(v);
    kvr__cursor_reset(&v->cursor);
    memset(v->recent, 0, sizeof v->recent);
    v->past = KVR_PAST_HERE;
    v->unsure = false;
    kvr_hole_begin(&v->hole);
    v->orphans_until = 0;
    if (v->publisher) {
        v->before = v->publisher;
        v->before_since = v->publisher_since;
    }
    v->publisher = 0;
    v->outdated = kvr__view_is_asking(v);
}

void kvr__view_lack(struct kvr_view *v, const char *why)
{
    kvr__view_lose(v, KVR_PAST_LOST, why);
    kvr_hole_begin(&v->hole);
    if (v->known != KVR_VIEW_UNKNOWN) kvr__view_believe(v);
}

void kvr__view_lack_parents(struct kvr_view *v)
{
    kvr__view_lack(v, v->actions->copies_unsure(v->ctx) ? "the engine keeps blocks twice, and which of both went is not known"
                                                        : "blocks of before a loss are still in use");
}

void kvr__view_lack_copies(struct kvr_view *v)
{
    kvr__view_lack(v, "the engine reports what it reuses: what it keeps twice is not known");
}

void kvr__view_note_recent(struct kvr_view *v, uint64_t seq, uint64_t hash)
{
    v->recent[seq % KVR_VIEW_RECENT].end = seq + 1;
    v->recent[seq % KVR_VIEW_RECENT].hash = hash;
}

void kvr__view_remember(struct kvr_view *v, uint64_t seq, uint64_t hash)
{
    v->last_hash = hash;
    kvr__view_note_recent(v, seq, hash);
}

bool kvr__view_remembers(const struct kvr_view *v, const struct kvr_view_batch *b)
{
    uint64_t at = b->seq % KVR_VIEW_RECENT;
    return v->recent[at].end == b->seq + 1 && v->recent[at].hash == kvr_hash_bytes(b->data, b->len, 0);
}

/* ---- applying ---------------------------------------------------------------------------------------- */

/* Is what the view lacks still there? */
static void watch_hole(struct kvr_view *v, const struct kvr_event *ev, int rc)
{
    bool healed = false;
    if (!kvr__view_lacks_some(v) || v->ranks_n > 1) return;
    if (rc == -KVR_EPARENT || rc == -KVR_ENOTFOUND) kvr_hole_sign(&v->hole);
    if (rc) return;
    if (ev->kind == KVR_EVENT_STORED && ev->blocks_n) kvr_hole_stored(&v->hole, ev->blocks[0].block_hash);
    for (size_t i = 0; ev->kind == KVR_EVENT_REMOVED && i < ev->removed_n && !healed; i++)
        healed = kvr_hole_removed(&v->hole, ev->removed[i]);
    if (healed) v->past = KVR_PAST_HEALED;
}

void kvr__view_event(struct kvr_view *v, const struct kvr_event *ev, int rc, bool quiet)
{
    v->counts.events++;
    v->counts.blocks += ev->blocks_n + ev->removed_n;
    if (ev->tier != KVR_TIER_DEVICE) { /* whatever became of it, the device is as it was */
        v->counts.lower_unplaced += rc != 0;
        return;
    }
    if (ev->kind == KVR_EVENT_CLEARED && rc == 0) v->cleared = true;
    if (!quiet) watch_hole(v, ev, rc);
    if (rc == -KVR_EPARENT) {
        v->counts.parent_not_found++;
        v->orphaned = true;
    } else if (rc == -KVR_ENOTFOUND) {
        v->counts.block_not_found++;
    } else if (rc) {
        v->counts.apply_errors++;
        v->torn |= rc == -KVR_ENOMEM && ev->kind != KVR_EVENT_STORED; /* what has gone would stay; a store is only missed */
    }
}

static void note_other_rank(struct kvr_view *v, uint32_t rank)
{
    char text[sizeof v->known_reason];
    snprintf(text, sizeof text, "batches of rank %u come here: give that rank (dp-start), or the events port of this one", rank);
    v->mismatch = true;
    kvr__view_say(v, KVR_VIEW_UNKNOWN, text);
}

static void note_other_size(struct kvr_view *v, uint32_t engine_block_size)
{
    char text[sizeof v->known_reason];
    if (v->block_size)
        snprintf(text, sizeof text, "the engine's block size is %u, not the configured %u", engine_block_size, v->block_size);
    else snprintf(text, sizeof text, "the engine's block size is %u, and was another one before", engine_block_size);
    v->mismatch = true;
    kvr__view_say(v, KVR_VIEW_UNKNOWN, text);
}

void kvr__view_apply(struct kvr_view *v, const struct kvr_view_batch *b)
{
    struct kvr_view_applied out = {0};
    if (v->enveloped) v->event_ms = v->now.ms;
    v->cleared = v->orphaned = false;
    v->actions->apply(v->ctx, b, v->orphans_until && b->seq <= v->orphans_until, &out); /* a dump may have had it */
    v->counts.apply_errors += out.torn;
    v->torn |= out.torn;
    if (v->cleared && kvr__view_lacks_some(v) && (v->enveloped || v->ranks_n == 1)) v->past = KVR_PAST_HERE; /* empty is complete */
    if (out.other_rank) note_other_rank(v, out.rank);
    if (out.worth_changed && v->known != KVR_VIEW_UNKNOWN) kvr__view_believe(v);
    if (out.copies_lost) kvr__view_lack_copies(v);
    if (out.other_block_size) note_other_size(v, out.engine_block_size);
    v->counts.batches++;
    v->counts.bytes += b->len;
    kvr__view_remember(v, b->seq, kvr_hash_bytes(b->data, b->len, 0));
    kvr__cursor_advance(&v->cursor, b->seq, b->ts);
    v->actions->keep(v->ctx, b);
}

bool kvr__view_read(struct kvr_view *v, struct kvr_view_batch *b)
{
    if (v->actions->read(v->ctx, b)) return true;
    v->counts.decode_errors++;
    if (v->now.ms - v->undecodable_ms > KVR_UNDECODABLE_MS) {
        v->undecodable_ms = v->now.ms;
        v->undecodable_n = 0;
    }
    if (++v->undecodable_n > UNDECODABLE_MAX && !v->undecodable) {
        v->undecodable = true;
        kvr__view_weigh(v);
    }
    return false;
}
