/* SPDX-License-Identifier: Apache-2.0 */
/* What the router says to a client itself: errors, the head of a stream that has to wait, and comments in it. Threads: the request's loop.
 */
#ifndef KVR_SERVE_REPLY_H
#define KVR_SERVE_REPLY_H

#include "app/serve/data/request/request.h"

void reply_error_body(struct kvr_buf *out, int status, const char *message);
/* A whole answer. id: of the request; NULL or "": none. */
void reply_error(struct kvr_http_conn *c, int status, const char *message, const char *id);
/* The same of a refusal; r: whose; NULL: nobody's. */
void reply_refusal(struct kvr_http_conn *c, struct refusal *why, const struct request *r);
/* The last event of a stream: why it ends. Returns: false without memory: nothing was written. */
bool reply_error_event(struct kvr_http_conn *c, int status, const char *message);
/* A comment in the stream, whose head is sent first. */
void reply_comment(struct request *r);

#endif
