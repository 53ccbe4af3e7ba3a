/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ids that a model's tokenizer makes here are worth. They are used in one state only, TRUSTED, which is earned against an engine
 * and lost at once.
 *
 *                         probes of the folder           the first real questions
 *    LOADING --loaded--> PROBING ----------------------> PROBING ----------------> TRUSTED <--32 equal in a row-- SUSPECT
 *       |                   |                               |                      |     ^                          |
 *       | cannot            | no profile agrees             | no profile agrees    |     `--first difference,       |
 *       v                   v                               v                      |        3 unlike counts, doubt -'  a second difference
 *    REFUSED <----------------------------------------------------------------------- <---------------------------------'
 *
 * From each of them begin() leads back to LOADING: the folder is read again.
 *
 * Judges: answers of an engine to the same question (compared), the count of prompt tokens in an answer's usage (counted), and events that
 * never show what the ids predict (doubted).
 *
 * A pure state machine: no clock, no threads, no memory of its own.
 */
#ifndef KVR_TOKEN_TRUST_H
#define KVR_TOKEN_TRUST_H

#include <stdbool.h>

enum kvr_trust_state { KVR_TRUST_LOADING, KVR_TRUST_PROBING, KVR_TRUST_TRUSTED, KVR_TRUST_SUSPECT, KVR_TRUST_REFUSED, KVR_TRUST_STATES };

enum { KVR_TRUST_AGAIN_AFTER = 32, KVR_TRUST_COUNTS = 1000, KVR_TRUST_UNLIKE_COUNTS = 3 };

struct kvr_trust {
    enum kvr_trust_state state;
    unsigned real_wanted; /* real questions that have to agree before the first trust */
    unsigned real_left;
    unsigned equal_in_row;   /* in SUSPECT */
    bool probed;             /* the built-in questions have agreed: before that requests decide nothing */
    bool was_suspect;        /* since the last beginning: the next difference refuses */
    unsigned counts, unlike; /* of the current window of usages */
    const char *why;         /* static: what has led to the state */
};

const char *kvr_trust_name(enum kvr_trust_state s); /* "loading", ... */

void kvr_trust_begin(struct kvr_trust *t, unsigned real_wanted);
/* The folder is read, or cannot be used. */
void kvr_trust_loaded(struct kvr_trust *t, bool ok);
/* Nobody can be asked, and the operator has said that the folder is the engine's. */
void kvr_trust_given(struct kvr_trust *t);
/* The built-in questions were answered by an engine. agrees: as our ids are, with the profile that is used or one that was found. */
void kvr_trust_probed(struct kvr_trust *t, bool agrees);
/* Two engines have answered a built-in question unlike each other: no ids can be those of both. */
void kvr_trust_unlike(struct kvr_trust *t);
/* A real question was answered by an engine. agrees: as above; in PROBING another profile may have been found that agrees with all. */
void kvr_trust_compared(struct kvr_trust *t, bool agrees, bool other_profile);
void kvr_trust_counted(struct kvr_trust *t, bool agrees);
void kvr_trust_doubted(struct kvr_trust *t);

#endif
