/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens made here (src/token), for TOKENS: short prompts and those whose parts are known on the loop, others on the tokenizer's threads.
 *
 * Threads: the request's loop; a thread of the pool puts what it has made on the loop's `made` list, under the loop's mail lock.
 */
#ifndef KVR_SERVE_HERE_H
#define KVR_SERVE_HERE_H

#include "app/serve/data/request.h"

enum here {
    HERE_NOT,  /* an engine has to be asked */
    HERE_MADE, /* r->tokens */
    HERE_WAITS /* for a thread: the request comes out of here_next_made(), for here_take() */
};

/* The tokenizer of the request's model, when there is one; *trusted: its ids may be used. */
struct kvr_tokenizer *here_tokenizer(const struct request *r, bool *trusted);
/* With a tokenizer that is trusted. */
enum here here_ask(struct request *r, struct kvr_tokenizer *t, struct kvr_body *question);
struct request *here_next_made(struct loop *l);
bool here_take(struct request *r); /* Returns: whether r->tokens is there; else an engine has to be asked */
void here_leave(struct request *r);
/* Has an engine asked the same, off the request's path, when it is time to (--tokenizer-check). r->tokens were made here. */
void here_check(struct request *r, struct kvr_tokenizer *t, struct kvr_body *question);
/* An engine has answered a question: what is made here is compared with it. */
void here_compare(const struct request *r, const struct worker *w, struct kvr_body *question);
void here_stop_checks(struct loop *l); /* the loop ends */

#endif
