/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens made here (src/token), for TOKENS: short prompts and those whose parts are known on the loop, others on the tokenizer's threads.
 *
 * Threads: the request's loop; a thread of the pool puts what it has made on the loop's `made` list, under the loop's mail lock.
 */
#ifndef KVR_SERVE_LOCAL_TOKENS_H
#define KVR_SERVE_LOCAL_TOKENS_H

#include "app/serve/data/request/request.h"

enum local_tokens {
    LOCAL_NOT,  /* an engine has to be asked */
    LOCAL_MADE, /* r->tokens */
    LOCAL_WAITS /* for a thread: the request comes out of local_tokens_next_made(), for local_tokens_take() */
};

/* The tokenizer of the request's model, when there is one; *trusted: its ids may be used. */
struct kvr_tokenizer *local_tokens_tokenizer(const struct request *r, bool *trusted);
/* With a tokenizer that is trusted. */
enum local_tokens local_tokens_ask(struct request *r, struct kvr_tokenizer *t, struct kvr_body *question);
struct request *local_tokens_next_made(struct loop *l);
bool local_tokens_take(struct request *r); /* Returns: whether r->tokens is there; else an engine has to be asked */
void local_tokens_leave(struct request *r);
/* Has an engine asked the same, off the request's path, when it is time to (--tokenizer-check). r->tokens were made here. */
void local_tokens_check(struct request *r, struct kvr_tokenizer *t, struct kvr_body *question);
/* An engine has answered a question: what is made here is compared with it. */
void local_tokens_compare(const struct request *r, const struct worker *w, struct kvr_body *question);
void local_tokens_stop_checks(struct loop *l); /* the loop ends */

#endif
