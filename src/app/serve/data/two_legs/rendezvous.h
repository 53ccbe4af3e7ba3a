/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MEETING: both legs of a request are sent at once, to engines that find each other by what the bodies say (transfer.h). What comes of the
 * decode worker's answer is held back until the prefill worker has ended well, which is the commit point: an engine may generate nonsense
 * from a prompt that was never computed to its end. At most RENDEZVOUS_HELD_MAX bytes are held; then the decode worker is not read on.
 *
 *     both are sent --> P ends well --> SENDING: what is held goes on as an attempt's answer does, and so does what follows
 *          |  |  '----- P fails ------> D is closed in the same turn; both legs anew, with other ids
 *          |  '-------- P: 4xx -------> the same, and that is the answer
 *          '----------- D fails ------> P is closed; both legs anew. D: 4xx: that is the answer
 *
 * Before it is sent a request may wait here for the name of the prefill worker's engine (bootstrap.h).
 *
 * Threads: the request's loop.
 */
#ifndef KVR_SERVE_RENDEZVOUS_H
#define KVR_SERVE_RENDEZVOUS_H

#include "app/serve/data/request/request.h"

enum { RENDEZVOUS_HELD_MAX = 256 << 10 };

/* then: what is told of the attempt whose answer is the client's. */
enum outcome rendezvous_begin(struct request *r, void (*then)(struct attempt *a, enum outcome o));
enum outcome rendezvous_on_time(struct request *r, bool total);
/* P has ended well: the decode worker's answer is the client's from here on. Returns: what there is of it. */
enum outcome rendezvous_commit(struct request *r);
/* The decode worker did not begin to answer in time, although the prompt is computed. */
void rendezvous_missed(struct request *r);
/* The pair is given up while it is at work: both calls are closed, the engines are told, and both bookings are given back. Nothing where no
 * pair was chosen. The answer of `but` (NULL: neither) is over or is gone on with. */
void rendezvous_part(struct request *r, const struct attempt *but);
/* The engines are told that both legs are over, whose calls will be closed in this turn. */
void rendezvous_abort(struct request *r);

#endif
