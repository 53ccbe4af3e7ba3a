/* SPDX-License-Identifier: Apache-2.0 */
/* The books about a request: its booking with the router, and what is counted, compared and remembered of it. */
#ifndef KVR_SERVE_ACCOUNT_H
#define KVR_SERVE_ACCOUNT_H

#include "app/serve/data/request/attempt.h"

/* A request is counted by its status, once, before its client can see that. */
void account_request(struct request *r);

/* Of an attempt, in this order: */
void account_booked(struct attempt *a);      /* the router has booked it; its worker is known */
void account_keep_prompt(struct attempt *a); /* the tokens go now */
void account_first_token(struct attempt *a);
void account_events(struct attempt *a, uint64_t events); /* of its stream, so many have come */
void account_response(struct attempt *a);                /* the id of its response may be known now */
/* Its prompt is computed, although its answer is not whole yet. */
void account_prompt_is_computed(struct attempt *a);
void account_prefilled(struct attempt *a);    /* a prefill leg: its answer is whole */
void account_attempt_over(struct attempt *a); /* without an answer that the client gets */
/* Another rank of its partition answers it than the one that was chosen, or (NULL) a stranger: the load is that one's, nothing of what was
 * predicted holds. */
void account_moved(struct attempt *a, const struct kvr_worker *to);
void account_unbook(struct attempt *a); /* the booking is given back, if there is one */

/* Tokens of the prompt that are predicted to be cached; whether the answer tells how many were. */
uint64_t account_predicted_cached(const struct attempt *a);
bool account_tells_cached(const struct attempt *a);
/* Where more than the device has something of it: device=10,host_pinned=4 in blocks, else "". Returns: the text's length. */
enum { ACCOUNT_TIERS_MAX = 96 };
size_t account_tiers(const struct attempt *a, char out[ACCOUNT_TIERS_MAX]);

/* The answer is whole; once, whoever calls it again. */
void account_answered(struct request *r);
/* The end of all: what is known of it is told. */
void account_close(struct request *r);

#endif
