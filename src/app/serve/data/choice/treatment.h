/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One worker or two legs (legs.h), and who may take a request that is treated so: the roster's rows, what its client asks for, and those
 * that have failed. Which of the two is better is conditional.h's.
 *
 * Threads: the request's loop.
 */
#ifndef KVR_SERVE_TREATMENT_H
#define KVR_SERVE_TREATMENT_H

#include "app/serve/data/request/legs.h"

struct roster_choice;
struct roster_row;

/* What becomes of a routed request whose model has workers with roles: r->legs is made. Returns: DONE; NOBODY: no worker for it is up;
 * REFUSED. */
enum outcome treatment_decide(struct request *r, const struct roster_row *row);
bool treatment_wants_two(const struct request *r); /* its client wants two legs, or a prefill worker that has to be one of them */
/* Of one that is remote: it goes to that worker as a whole instead. Returns: false without memory. */
bool treatment_go_whole(struct request *r, struct kvr_worker to);
/* Whom it may go to now. */
const struct roster_choice *treatment_candidates(const struct request *r, const struct roster_row *row);
/* Whom the router may not choose now: those that have failed, and those that would miss the other leg's worker. Returns: how many; the list
 * is the request's until the next call. */
size_t treatment_exclude(struct request *r, const struct roster_row *row, const uint64_t **out);
/* It goes to one worker as a whole from now on, if there is one that takes it. */
bool treatment_fall_back(struct request *r, enum fallback why);
bool treatment_has_other_decode(const struct request *r); /* a decode worker that is up and has not failed on it */
/* The gate: is there a decode worker that could go on from its prompt now, and is not overloaded? */
bool treatment_can_pair(struct request *r, const struct roster_row *row);

#endif
