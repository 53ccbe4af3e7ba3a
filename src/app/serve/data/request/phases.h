/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The phases of a request (request.h has the drawing), as flow.c calls them. Of each phase: how it begins, what it gives back when it
 * ends, and what it does when its own deadline or --total-timeout (`total`) strikes. SENDING is an attempt's (attempt.h).
 */
#ifndef KVR_SERVE_PHASES_H
#define KVR_SERVE_PHASES_H

#include "app/serve/data/request/request.h"

/* body.c: READING */
enum outcome body_begin(struct request *r);

/* tokenize.c: TOKENS */
enum outcome tokens_begin(struct request *r);
void tokens_leave(struct request *r);
enum outcome tokens_on_time(struct request *r, bool total);
enum outcome tokens_made(struct request *r); /* it came out of local_tokens_next_made() */

/* remote_lookup.c: LOOKUP */
enum outcome lookup_begin(struct request *r);
void lookup_leave(struct request *r);

/* route.c: CHOOSING, PARKED */
enum outcome route_choose(struct request *r);
void route_leave(struct request *r);
enum outcome route_park(struct request *r);
void route_unpark(struct request *r);
enum outcome route_on_time(struct request *r, bool total); /* of both */
/* The next request of the loop whose turn in the router's queue has come, or NULL; and what it does then. */
struct request *route_next_ready(struct loop *l);
enum outcome route_granted(struct request *r);
/* Workers have come or gone: requests of the loop that wait in the router's queue for some of them wait for those of now. */
void route_look_again(struct loop *l);

/* route.c: PAIRING, of the second of two legs; it leaves as CHOOSING does */
enum outcome route_pair(struct request *r);
enum outcome route_pair_on_time(struct request *r, bool total);

/* prefill.c: PREFILL, the first of two legs. `hear`: what flow.c does with what the attempt tells once its answer is the client's */
enum outcome prefill_begin(struct request *r, void (*hear)(struct attempt *a, enum outcome o));
enum outcome prefill_on_time(struct request *r, bool total);
void prefill_wait(struct request *r); /* until the next of its deadlines */

/* answer.c: RELAYING */
enum outcome answer_begin(struct request *r);
enum outcome answer_relay(struct request *r);
enum outcome answer_on_time(struct request *r, bool total);

#endif
