/* SPDX-License-Identifier: Apache-2.0 */
/* What flow.c asks of an answer that is relayed (answer.c), when it ends. */
#ifndef KVR_SERVE_ANSWER_H
#define KVR_SERVE_ANSWER_H

#include "app/serve/data/request/request.h"

/* The headers that say who was chosen, and why: lines. */
void answer_put_decision(const struct request *r, struct kvr_buf *h);
/* From here on no other worker can be asked: what was kept for that goes. Once. */
void answer_commit(struct request *r);
/* The last event of a stream has passed: how its connections end does not matter. An answer with a length ends with its bytes. */
bool answer_is_complete(const struct request *r);
/* What was held back of it goes out: the answer is whole. Returns: false: no memory, and it is not. */
bool answer_flush(struct request *r);
/* Can an event be added to its end? */
bool answer_takes_events(const struct request *r);
/* Adds its last event: why it ends; a line of the stream that was begun is ended before. Returns: false without memory. */
bool answer_add_error(const struct request *r, int status, const char *message);

#endif
