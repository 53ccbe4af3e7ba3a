/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request on a loop and its whole answer, bounded in bytes and in time. (fetch.h blocks its caller.)
 *
 * On the loop's thread. The client and the loop outlive the asking, or its cancelling.
 */
#ifndef KVR_NET_HTTP_ASK_H
#define KVR_NET_HTTP_ASK_H

#include "net/http/http.h"

struct kvr_asked {
    int status;       /* 0: there is no whole answer */
    const char *why;  /* then: what came in between */
    const char *data; /* never NULL; borrowed */
    size_t len;
    bool cut; /* the rest of it was longer than may be, or than there was memory for */
};

typedef void kvr_ask_fn(void *ctx, const struct kvr_asked *answer);

struct kvr_ask_config {
    uv_loop_t *loop;
    struct kvr_http_client *client;
    const struct kvr_endpoint *endpoint; /* copied */
    bool post;                           /* with `body`, of which a reference is taken */
    struct kvr_body *body;
    struct kvr_buf *head; /* request line and headers, with the blank line; freed here */
    size_t max;           /* bytes of the answer's body */
    double connect_timeout_s, timeout_s;
    kvr_ask_fn *fn; /* once; the asking is gone afterwards */
    void *ctx;
};

struct kvr_ask;
/* Never calls back before it returns. Returns: NULL without memory, also where that was short for head or body. */
struct kvr_ask *kvr_ask_start(const struct kvr_ask_config *config);
void kvr_ask_cancel(struct kvr_ask *a); /* without a callback; NULL: nothing */

#endif
