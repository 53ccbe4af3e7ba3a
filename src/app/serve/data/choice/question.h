/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The question to the router about a request: its prompt, who may take it as it is treated now (legs.h), whom it prefers, what counts.
 * Threads: as the request.
 */
#ifndef KVR_SERVE_QUESTION_H
#define KVR_SERVE_QUESTION_H

#include <kvroute/router.h>

struct data_plane;
struct partition;
struct request;
struct roster_row;

/* It has no id to book yet, and borrows from the request, its legs and the row until the next question about it. */
void question_of(struct request *r, const struct roster_row *row, const struct partition *partition, struct kvr_router_request *rq);

/* What its model and its treatment change of the costs, in *out; NULL: nothing. */
const struct kvr_override *question_override(const struct request *r, struct kvr_override *out);

/* How a leg's worker is chosen: of a value of --prefill-router-mode or --decode-router-mode. NULL: as any worker. */
const enum kvr_router_mode *question_leg_mode(const struct data_plane *data, int option);

#endif
