/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who takes a request to the worker that was chosen for it, and brings the answer back: the router itself, or a gateway that has asked for
 * the choice alone (data/picker/). Such a gateway is told the worker once, when it is booked; it cannot be asked to try another one, what
 * it makes of the answer is its own business, and what it tells of the answer is heard by the attempt (attempt_hear_head and so on).
 *
 * Threads: the request's loop.
 */
#ifndef KVR_SERVE_CARRIER_H
#define KVR_SERVE_CARRIER_H

#include "app/serve/data/request/attempt.h"

struct carrier {
    /* The worker is chosen and booked. The attempt is the carrier's to hear until the request's connection has its end. Never steps. */
    void (*decided)(void *ctx, struct attempt *a);
    /* The choice may take until then (0: not known), in ms of kvr_now_ms(). May be called again. */
    void (*waits)(void *ctx, uint64_t until_ms);
    /* It gets an answer of the router's own: the refusal. */
    void (*refused)(void *ctx, const struct request *r);
    /* May it take the request there? NULL: anywhere. What it says stays so as long as the request is here. */
    bool (*may_use)(void *ctx, const struct worker *w);
    int nobody; /* the status when there is none such */
};

#endif
