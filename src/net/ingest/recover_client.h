/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks workers for the events a consumer lacks: GET <url>?start=n&dp_rank=r (no start: everything), see kvroute/local_index.h.
 *
 * At most 16 questions are on the wire at once; a transport failure, a 5xx or an answer that is not one is tried again, up to 8
 * times with pauses of 0.2 s x 2^n (after NVIDIA Dynamo's router). A question for everything waits up to 3 ms first, so that
 * many routers that start together do not ask in the same instant. An attempt may be silent for ten seconds, and take ten
 * minutes in all.
 *
 * No credentials are sent: who registers a worker names the URL.
 *
 * Threads: one of its own. ask and cancel: any. on_reply runs on the thread, once for each question that was not cancelled.
 */
#ifndef KVR_NET_RECOVER_CLIENT_H
#define KVR_NET_RECOVER_CLIENT_H

#include <kvroute/types.h>

#include "wire/recover_answer.h"

struct kvr_recover_client;

struct kvr_recover_question {
    uint64_t token; /* the asker's, not 0 */
    const char *url;
    uint32_t dp_rank;
    bool has_start;
    uint64_t start;
};

struct kvr_recover_reply {
    uint64_t token;
    bool answered; /* false: `answer.message` says why not */
    struct kvr_recover_answer answer;
    struct kvr_recover_reply *next; /* the callee's */
};

/* The callee owns the reply and gives it to kvr_recover_reply_free. */
typedef void kvr_recover_on_reply(void *ctx, struct kvr_recover_reply *reply);

/* Returns: 0, -KVR_ENOMEM. */
int kvr_recover_client_create(kvr_recover_on_reply *on_reply, void *ctx, struct kvr_recover_client **out);
/* Ends the thread; no reply comes after the return. NULL is fine. */
void kvr_recover_client_destroy(struct kvr_recover_client *c);
/* Returns: 0, -KVR_EINVAL for a bad URL, -KVR_ENOMEM. */
int kvr_recover_client_ask(struct kvr_recover_client *c, const struct kvr_recover_question *q);
/* Forgets a question. A reply that is on its way may still come. */
void kvr_recover_client_cancel(struct kvr_recover_client *c, uint64_t token);
void kvr_recover_reply_free(struct kvr_recover_reply *r);

#endif
