/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a shared stream adds to a view. Its events have an id in place of a sequence, and name their publisher; a publisher that has
 * restarted is another one. Heartbeats tell that a publisher lives, and what should have come.
 *
 * A heartbeat may overtake events, and events may be on their way for long when a stream is caught up with; so a view counts as behind
 * only when the event a heartbeat told of has not come BEHIND_MS later, and none has come meanwhile.
 */
#include "recover/consumer/view_internal.h"

#include <string.h>

enum { BEHIND_MS = 1000 };

static void heard(struct kvr_view *v)
{
    v->heard_ms = v->now.ms;
    if (!v->connected && v->now.stream_up) kvr__view_connected(v);
}

bool kvr__view_expects(struct kvr_view *v, uint64_t publisher, uint64_t event_id, bool ahead, bool heartbeats)
{
    bool same = publisher && v->publisher == publisher;
    bool next = v->now.stream_up && v->connected && !kvr__view_is_repairing(v) && same && event_id == v->cursor.next;
    if (ahead && !next) return false;
    if (heartbeats && !v->heartbeat_ms) v->heartbeat_ms = v->now.ms;
    heard(v);
    if (!same || event_id >= v->cursor.next) return true;
    v->counts.stale_batches++;
    return false;
}

/* A worker's answer does not name the publisher: a heartbeat that tells of the same last event does. */
static void learn_publisher(struct kvr_view *v, uint64_t publisher, double ts)
{
    if (v->publisher || !v->cursor.applied_any) return;
    v->publisher = publisher;
    v->publisher_since = ts;
}

/* The publisher says that the view has everything. */
static void confirmed(struct kvr_view *v)
{
    if (v->known != KVR_VIEW_UNKNOWN || v->unsure || !v->cursor.applied_any || !v->connected) return;
    v->doubt = false;
    kvr__view_believe(v);
}

/* The publisher has told of an event that has not come. */
static void behind(struct kvr_view *v, bool restarted)
{
    bool can = kvr__view_can_repair(v);
    if (v->now.durable && !can && !restarted) {
        if (!v->mismatch) kvr__view_say(v, KVR_VIEW_UNKNOWN, "events are missing"); /* the stream may bring them; else a gap shows */
        return;
    }
    v->counts.gaps++;
    v->counts.restarts += restarted;
    if (restarted) v->has_epoch = false;
    if (restarted || !can) kvr__view_drop(v);
    if (!can) kvr__view_lose(v, KVR_PAST_LOST, "events are missing");
    v->unsure = v->cursor.applied_any;
    kvr__view_say(v, KVR_VIEW_UNKNOWN, "events are missing");
    if (can) kvr__view_ask(v, kvr__view_must_ask_all(v));
}

void kvr__view_heartbeat(struct kvr_view *v, uint64_t publisher, double ts, uint64_t last)
{
    v->heartbeat_ms = v->now.ms;
    heard(v);
    uint64_t next = v->cursor.next;
    bool even = last + 1 == next || (last == 0 && next == 0), known = v->publisher != 0;
    bool renewed = !known && v->before && v->before != publisher && ts >= v->before_since; /* the answer may be of the one before */
    bool other = known ? v->publisher != publisher : renewed || last + 1 < next;
    bool has_all = known ? !other && last < next : even && !renewed;
    bool busy = kvr__view_is_repairing(v) || v->retry_at_ms || !v->now.stream_up; /* not up: a durable stream is being caught up with */
    if (busy || has_all || (last == 0 && !v->cursor.applied_any)) {
        v->behind_ms = 0;
        if (busy || !has_all) return;
        learn_publisher(v, publisher, ts);
        confirmed(v);
    } else if (!v->behind_ms) {
        v->behind_ms = v->now.ms;
    } else if (v->now.ms - v->behind_ms >= BEHIND_MS && v->now.ms - v->event_ms >= BEHIND_MS) {
        v->behind_ms = 0;
        behind(v, other);
        v->before = publisher; /* it lives, whatever its clock says */
        v->before_since = ts;
    }
    kvr__view_checked(v);
}

void kvr__view_told_partial(struct kvr_view *v, bool partial)
{
    if (v->told_partial == partial) return;
    v->told_partial = partial;
    if (v->known != KVR_VIEW_UNKNOWN) kvr__view_believe(v);
    kvr__view_checked(v);
}

void kvr__view_stream_up(struct kvr_view *v)
{
    if (v->connected) return;
    if (v->heartbeat_ms) v->heartbeat_ms = v->now.ms; /* nobody can have been heard: from now on it is silence */
    kvr__view_connected(v);
}

void kvr__view_enveloped(struct kvr_view *v, bool enveloped)
{
    if (v->enveloped == enveloped) return;
    v->enveloped = enveloped;
    v->told_partial = false;
    kvr__view_drop_waiting(v); /* of the other kind */
    /* sequences of batches say nothing of events' ids */
    if (enveloped ? v->counts.batches > 0 : v->cursor.applied_any) kvr__view_drop(v);
    kvr__view_checked(v);
}

void kvr__view_empty(struct kvr_view *v)
{
    kvr__view_forget_repair(v);
    kvr__view_drop(v);
    kvr__view_checked(v);
}

void kvr__view_restored(struct kvr_view *v, uint64_t next, uint64_t publisher, double publisher_since, bool heartbeats)
{
    v->actions->keep_anew(v->ctx);
    v->cursor.applied_any = true;
    v->cursor.next = next;
    v->cursor.last_ts = 0;
    v->publisher = publisher;
    v->publisher_since = publisher_since;
    if (heartbeats) v->heartbeat_ms = v->now.ms;
    v->past = KVR_PAST_HERE;
    v->counts.recovered_dumps++;
    if (v->torn) kvr__view_torn_batch(v);
    kvr__view_checked(v);
}
