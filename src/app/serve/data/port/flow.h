/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a request through its phases, and what moves all requests of a loop. On the loop's thread. */
#ifndef KVR_SERVE_FLOW_H
#define KVR_SERVE_FLOW_H

#include "app/serve/data/request/request.h"

void flow_begin(struct request *r);                               /* the request may be gone then */
void flow_refuse(struct request *r, int status, const char *why); /* instead; why: static */
void flow_end_refused(struct request *r);                         /* the same: the refusal is in it */
void flow_try_parked(struct loop *l);                             /* a worker may have come */
void flow_take_ready(struct loop *l);                             /* the turn of some may have come */
void flow_refuse_parked(struct loop *l);                          /* the router is shutting down */

#endif
