/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the files of a view, each of which calls those below it only:
 *
 *     view_stream.c    what a shared stream adds: publishers' heartbeats, snapshots
 *     view.c           inputs; what a live batch means
 *     view_restore.c   repairs: replays, questions, answers
 *     view_trust.c     what the view is worth, its content and place
 */
#ifndef KVR_VIEW_INTERNAL_H
#define KVR_VIEW_INTERNAL_H

#include "base/log.h"
#include "recover/consumer/view.h"

enum {
    KVR_UNDECODABLE_MS = 60000,
    KVR_TAIL_CHECK_MS = 200,  /* the subscription may have come too late for what was sent just then */
    KVR_REPAIR_ROUNDS_MAX = 4 /* gaps behind gaps before we give up */
};

/* ---- view_trust.c */

/* Leaves a phase with what belongs to it alone. */
void kvr__view_enter(struct kvr_view *v, enum kvr_view_phase phase);
bool kvr__view_batches_wait(const struct kvr_view *v); /* for a repair that is under way */
bool kvr__view_is_mute(const struct kvr_view *v);
/* Says what the view is worth as far as its stream goes, and why it is no more. What is said is lowered here by what speaks against it
 * from outside, and to partial while the view is mute. Whole is only said of a view that lacks nothing, partial only of one whose content
 * is all from batches after the loss. */
void kvr__view_say(struct kvr_view *v, enum kvr_view_knowledge knowledge, const char *reason);
void kvr__view_say_size(const struct kvr_view *v, char *text, size_t cap);
/* What speaks against it from outside has changed. */
void kvr__view_weigh(struct kvr_view *v);
/* Everything in the view is true. */
void kvr__view_believe(struct kvr_view *v);
/* Content is on its way out: nobody may rely on what is left of it. A view that was unknown before keeps its reason. */
void kvr__view_distrust(struct kvr_view *v, const char *why);
void kvr__view_lose(struct kvr_view *v, enum kvr_view_past past, const char *why);
/* Batches will never come: what was known before them may be gone by now, what comes after them is true. */
void kvr__view_lose_past(struct kvr_view *v, const char *why);
void kvr__view_drop_content(struct kvr_view *v);
void kvr__view_drop(struct kvr_view *v); /* and the place */
/* A view that was taken for whole is not: it lacks blocks, and what it has is true. */
void kvr__view_lack(struct kvr_view *v, const char *why);
/* Blocks are in use that it lacks, which is no sign that what it has is false. */
void kvr__view_lack_parents(struct kvr_view *v);
/* What unproven copies held has left the view. A hybrid model's groups may have lost more than is counted. */
void kvr__view_lack_copies(struct kvr_view *v);
void kvr__view_note_recent(struct kvr_view *v, uint64_t seq, uint64_t hash);
void kvr__view_remember(struct kvr_view *v, uint64_t seq, uint64_t hash);
bool kvr__view_remembers(const struct kvr_view *v, const struct kvr_view_batch *b);
bool kvr__view_read(struct kvr_view *v, struct kvr_view_batch *b);
void kvr__view_apply(struct kvr_view *v, const struct kvr_view_batch *b); /* the one that was read last */

/* ---- view_restore.c */

/* The next live batches are taken without what waits; what was under way may go on. */
void kvr__view_drop_waiting(struct kvr_view *v);
void kvr__view_forget_repair(struct kvr_view *v); /* waiting batches, questions, what is being applied */
/* Asks for what is missing: `everything`, or what has come since the view's place. */
void kvr__view_ask(struct kvr_view *v, bool everything);
bool kvr__view_must_ask_all(const struct kvr_view *v);
void kvr__view_request_replay(struct kvr_view *v, enum kvr_view_phase phase, uint64_t from);
void kvr__view_probe(struct kvr_view *v);
/* The repair is tried again after a pause. */
void kvr__view_repair_later(struct kvr_view *v, const char *why);
/* Of a batch some events are lost, here: what the view holds may be gone. It is asked for anew as after silence. */
void kvr__view_torn_batch(struct kvr_view *v);
/* Everything is asked for again, now that the view is empty. */
void kvr__view_rebuild(struct kvr_view *v);
bool kvr__view_may_rebuild(struct kvr_view *v); /* once in a while */
/* The repair that is due will bring what comes live. */
bool kvr__view_repair_is_due(const struct kvr_view *v);
void kvr__view_replay_failed(struct kvr_view *v);
void kvr__view_take_replay(struct kvr_view *v, uint64_t seq, const char *data, size_t len);
void kvr__view_take_answer(struct kvr_view *v, struct kvr_recover_answer *a);
void kvr__view_take_incoming(struct kvr_view *v);

/* At the end of every input. */
static inline void kvr__view_checked(const struct kvr_view *v)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    KVR_ASSERT(!kvr__view_check(v));
#else
    (void)v;
#endif
}

#endif
