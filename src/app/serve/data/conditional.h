/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conditional disaggregation: a request for which a prefill worker and a decode worker are up may be served better by one worker that
 * takes all of it. The router is asked, without booking, which worker that would be, and who would compute the prompt for another; the
 * rule (kvroute/disagg.h) decides by what is cached there and how loaded they are.
 *
 * Nothing is reserved: the worker is preferred when the request is booked a moment later. When a question fails there are two legs.
 *
 * Threads: as the request.
 */
#ifndef KVR_SERVE_CONDITIONAL_H
#define KVR_SERVE_CONDITIONAL_H

#include "app/serve/data/legs.h"

/* Of a request that has just been treated: what is remote may go whole to one worker. Returns: DONE, REFUSED without memory. */
enum outcome conditional_judge(struct request *r, const struct roster_row *row);

#endif
