/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairs of a prefill and a decode worker that have missed each other: the prompt was computed, and never arrived. Each may serve others
 * well (its own breaker says whether it does), but these two are not put together for --breaker-cooldown. At most MISSED_MAX pairs; one
 * more takes the place of the one whose time is over first.
 *
 * Threads: any, under the table's lock; without a pair in the table nobody takes it.
 */
#ifndef KVR_SERVE_MISSED_RENDEZVOUS_H
#define KVR_SERVE_MISSED_RENDEZVOUS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MISSED_MAX = 64 };

struct workers;

struct missed_rendezvous {
    struct {
        uint64_t prefill, decode, until_ms;
    } pairs[MISSED_MAX];
    _Atomic uint64_t last_ms; /* the time of all of them is over then; 0: there was none */
    uint64_t told_ms;         /* main loop's: of these, those that waiting requests were told of */
};

void missed_rendezvous_note(struct workers *ws, uint64_t prefill, uint64_t decode);
/* Decode workers that are not to be put together with that prefill worker now. Returns: how many. */
size_t missed_rendezvous_by(struct workers *ws, uint64_t prefill, uint64_t *out); /* out: MISSED_MAX of them */
/* Main loop: requests that wait because of it are looked at again when its time is over. */
void missed_rendezvous_tick(struct workers *ws);

#endif
