/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that the carrier of a request may take it to, of those that the router may choose from. The request's loop. */
#ifndef KVR_SERVE_SUBSET_H
#define KVR_SERVE_SUBSET_H

#include "app/serve/data/request/request.h"

struct roster_choice;
struct roster_row;

/* Of a choice: the partition that most of those are in; NULL: there are none, or the choice has no workers at all. */
struct partition *subset_partition(const struct request *r, const struct roster_row *row, const struct roster_choice *from);
/* Leaves the others out of what the router of that partition is asked. *ids: owned, what the question refers to; one from before is freed.
 * Returns: DONE, or REFUSED. */
enum outcome subset_keep(struct request *r, const struct roster_row *row, const struct partition *partition, struct kvr_router_request *rq,
                         uint64_t **ids);

#endif
