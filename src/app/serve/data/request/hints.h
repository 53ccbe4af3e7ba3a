/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the headers of a request say to the router: the workers that it asks for (pins.h), its priority and its queue class, its session,
 * and whether it wants to be told how it was decided. Some have several names, as other routers gave them. One that is there twice, by one
 * name or by two, must say the same: what reads the other one, behind us or before, would do something else.
 *
 * Threads: as the request.
 */
#ifndef KVR_SERVE_HINTS_H
#define KVR_SERVE_HINTS_H

#include "app/serve/data/request/request.h"

/* Those with several names. */
enum hint {
    HINT_WORKER,
    HINT_RANK,
    HINT_PREFILL_WORKER,
    HINT_PREFILL_RANK,
    HINT_PRIORITY,
    HINT_CLASS,
    HINT_OBJECTIVE,
    HINT_FAIRNESS,
    HINTS
};

/* Its value, by the first of its names that is there; ptr NULL: none is. */
struct kvr_text hint_get(const struct kvr_headers *h, enum hint hint);
/* Is a text NAME=PRIORITY,... of whole numbers (--objective)? NULL is fine. */
bool hints_check_objectives(const char *text);
/* Takes them all. Returns: what is wrong, or NULL; hints_no_memory is nobody's mistake. */
extern const char hints_no_memory[];
const char *hints_read(struct request *r, const struct kvr_headers *h);

#endif
