/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What choices were worth: the arithmetic. quality.c counts by it.
 *
 * Moved: another rank held at least half of the prompt, and more than the chosen one held or had in work. What it held more is
 * computed again.
 *
 * Threads: any, but a struct choices_watch, whose caller serialises.
 */
#ifndef KVR_SERVE_CHOICES_H
#define KVR_SERVE_CHOICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <kvroute/router.h>

/* Tokens by which a prediction has failed. `promised`: what the view had; `pending`: what requests ahead were computing, which may or may
 * not be there when this one has its turn. */
uint64_t choices_error(uint64_t promised, uint64_t pending, uint64_t delivered);

/* Why a prompt is computed where less of it is held. */
#define CHOICES_REASONS(X)                                                                                                                 \
    X(LOAD, "load")                 /* it costs less */                                                                                    \
    X(COPY, "copy")                 /* the prefix is used by more than its holders' share */                                               \
    X(NOT_ELIGIBLE, "not_eligible") /* the holder may not serve it, is down, overloaded, or was tried */                                   \
    X(PINNED, "pinned")                                                                                                                    \
    X(SESSION, "session")                                                                                                                  \
    X(CHANCE, "chance") /* a temperature, or no choice by cost */

enum choices_reason {
#define CHOICES_ENUM(name, text) CHOICES_##name,
    CHOICES_REASONS(CHOICES_ENUM)
#undef CHOICES_ENUM
        CHOICES_REASONS_N
};
const char *choices_reason_name(enum choices_reason reason);

struct choices_verdict {
    bool moved;
    uint32_t again; /* blocks that another rank held and this one computes; 0: none, and no reason */
    enum choices_reason reason;
};
/* `chance`: the router has a temperature. */
struct choices_verdict choices_judge(const struct kvr_router_result *result, bool chance);

/* ---- the last minute ----------------------------------------------------------------------------------- */

/* Since the start. */
struct choices_totals {
    uint64_t choices; /* that were answered */
    uint64_t moved[CHOICES_REASONS_N], again[CHOICES_REASONS_N];
    uint64_t stored_blocks, removed_blocks; /* by events */
    uint64_t compared;                      /* choices by cost whose time to first token was compared with the best other candidate's */
    double seen_ms, regret_ms, gain_ms;     /* of these: sums of the time, of what it was above the other's, of what it was below */
    double alone_ms;                        /* what it would have been on an idle worker */
};

enum { CHOICES_SECONDS = 60 };

struct choices_watch {
    struct choices_totals past[CHOICES_SECONDS]; /* ring, one a second */
    uint64_t n;
    uint64_t said_at; /* second of the last advice; 0: none */
};

/* What was added within the last minute, or since the start. */
struct choices_totals choices_last_minute(const struct choices_watch *watch, const struct choices_totals *now);
/* Blocks removed for each stored; 0 when nothing was stored. */
double choices_evictions(const struct choices_totals *minute);
/* What could be better in that minute, and why, as one line without its end. Returns: its length; 0: nothing is worth a word. */
size_t choices_advice(const struct choices_totals *minute, char *out, size_t cap);
/* Once a second. Returns: as choices_advice, and 0 within a minute of the last advice. */
size_t choices_tick(struct choices_watch *watch, const struct choices_totals *now, char *out, size_t cap);

#endif
