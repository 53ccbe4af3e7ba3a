/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cursor of one engine stream: which batches have been applied, and what a new one means.
 *
 * Sequences of one publisher start at 0 and rise by one. Live batches arrive in order but may be missing; a replay
 * may deliver batches that also wait in the live queue. So "not newer than the cursor" has two meanings, told
 * apart by what the live stream itself has shown:
 *
 *     live sequence s, cursor c (last applied), l (last live seen)
 *     s <= l                         the stream went backwards: the engine restarted
 *     s <= c, stamped later than c   the same, seen right after a replay
 *     s <= c otherwise               already applied by the replay: drop
 *     s == c + 1                     apply
 *     s >  c + 1                     a gap: c + 1 .. s - 1 are missing
 *
 * Pure: no time, no memory, no input or output.
 */
#ifndef KVR_RECOVER_CURSOR_H
#define KVR_RECOVER_CURSOR_H

#include <stdbool.h>
#include <stdint.h>

enum kvr_cursor_verdict { KVR_CURSOR_APPLY, KVR_CURSOR_STALE, KVR_CURSOR_GAP, KVR_CURSOR_RESTART };

struct kvr_cursor {
    bool applied_any, live_any;
    uint64_t next; /* the sequence that may be applied now; 0 at first */
    uint64_t last_live;
    double last_ts; /* stamp of the last applied batch, seconds; 0 unknown */
};

/* What a live batch means. Notes that it was seen; does not move the cursor. */
enum kvr_cursor_verdict kvr__cursor_live(struct kvr_cursor *c, uint64_t seq, double ts);
/* What a replayed batch means (never RESTART). */
enum kvr_cursor_verdict kvr__cursor_replay(const struct kvr_cursor *c, uint64_t seq);
/* The batch was applied. */
void kvr__cursor_advance(struct kvr_cursor *c, uint64_t seq, double ts);
/* Start over: the engine restarted or the view was dropped. What the live stream showed is forgotten too. */
void kvr__cursor_reset(struct kvr_cursor *c);

#endif
