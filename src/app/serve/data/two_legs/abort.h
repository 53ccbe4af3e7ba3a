/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legs whose connections were closed before their time are ended at the engine, too. An SGLang notices a closed connection after seconds
 * and a partner that has gone after minutes; until then both hold slots. So it is told: POST /abort_request with the id that both legs
 * have (`rid`), once to each, beside the close. At most SIDE_CALLS_MAX of a loop at a time; beyond that, and where it fails, the engine's
 * own watch does it.
 *
 * Threads: the loop's.
 */
#ifndef KVR_SERVE_ABORT_H
#define KVR_SERVE_ABORT_H

#include "app/serve/data/request/request.h"

/* Of a leg that was sent, and whose answer is not over or was broken off by us; nothing for all others. Before r->conn is given up, whose
 * Authorization goes with it. */
void abort_leg(const struct request *r, struct attempt *a);

#endif
