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
    bool cut;                      /* the rest of it was longer than may be, or than there was memory for */
    bool late;                     /* it was not there in time */
    enum kvr_http_failure failure; /* status 0 and not late */
};

typedef void kvr_ask_fn(void *ctx, const struct kvr_asked *answer);

struct kvr_ask_config {
    uv_loop_t *loop;
    struct kvr_http_client *client;
    const struct kvr_endpoint *endpoint; /* copied */
    const char *path;                    /* below the endpoint */
    struct kvr_buf *json;                /* a POST of it; emptied and freed here. NULL: a GET */
    struct kvr_buf *headers;             /* further lines of the head; likewise */
    size_t max;                          /* bytes of the answer's body */
    bool whole;                          /* a longer one is cut off, not only cut: it ends there */
    void (*take)(void *ctx, const char *data,
                 size_t len); /* a body with status 200 as it comes, in place of keeping it; NULL: it is kept */
    double connect_timeout_s, timeout_s;
    kvr_ask_fn *fn; /* once; the asking is gone afterwards */
    void *ctx;
};

struct kvr_ask;
/* Never calls back before it returns. Returns: NULL without memory, also where that was short for headers or body. */
struct kvr_ask *kvr_ask_start(const struct kvr_ask_config *config);
void kvr_ask_cancel(struct kvr_ask *a); /* without a callback; NULL: nothing */

#endif
