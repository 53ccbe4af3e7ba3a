/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean": of names the one that somebody may have meant. Pure functions. */
#ifndef KVR_BASE_NEAREST_H
#define KVR_BASE_NEAREST_H

#include <stddef.h>

struct kvr_nearest {
    const char *wanted; /* what was written */
    const char *best;   /* NULL: nothing that was offered is near */
    size_t distance;
};

/* A name that it may be. Near is what takes few changes (a character more, less, another, two in turn), and after that what has it as a
 * part; of two that are as near the first. */
void kvr_nearest_offer(struct kvr_nearest *n, const char *name);

#endif
