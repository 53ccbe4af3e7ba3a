/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A computed prompt that nobody will go on from: its client has left between the two legs, or no decode worker was found. Its prefill
 * worker holds it until a decode worker has pulled it, or its lease is over; so a decode worker is given it all the same, for one token
 * that nobody reads (--disagg-release). At most SIDE_CALLS_MAX of a loop at once; beyond that, and where it fails, the lease does it.
 *
 * Threads: the loop's.
 */
#ifndef KVR_SERVE_RELEASE_H
#define KVR_SERVE_RELEASE_H

#include "app/serve/data/request/request.h"

/* Of a request that is about to end without an answer; it has its connection still. */
void release_unused(struct request *r);

#endif
