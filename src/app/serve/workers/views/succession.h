/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of workers from the process before this one, to the one after it, at a hand-over of the ports: views/succession.c. Main
 * loop. */
#ifndef KVR_SERVE_SUCCESSION_H
#define KVR_SERVE_SUCCESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct workers;

/* The answer to such a question: a descriptor, or KVR_HANDOVER_NONE, KVR_HANDOVER_LATER. */
int succession_give(struct workers *ws, const void *question, size_t len);
/* How far it is: begins as zeros. */
struct succession {
    uint64_t until_ms;
    size_t done; /* ranks, in the order of the table */
};

/* Asks the other end of the link (net/http/handover.h) which workers drain, and for each view that is not whole: some at each call, so that
 * the loop goes on with what it looks after. Returns: whether it is over, after 20 s at the latest; what is not had by then is left. */
bool succession_take(struct workers *ws, int link, struct succession *s);

#endif
