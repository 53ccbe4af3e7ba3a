/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP request and its whole answer, for programs that do one thing after the other: it runs the loop until the answer is there. */
#ifndef KVR_NET_HTTP_FETCH_H
#define KVR_NET_HTTP_FETCH_H

#include "net/http/http.h"

enum { KVR_FETCH_BODY_MAX = 64 << 20 };

struct kvr_fetched {
    int status; /* 0: no answer; `error` says why */
    struct kvr_headers headers;
    struct kvr_buf body; /* at most KVR_FETCH_BODY_MAX; a longer one is no answer */
    char error[128];
};

struct kvr_fetch {
    uv_loop_t *loop;
    struct kvr_http_client *client;
    const char *url;     /* with path */
    const char *body;    /* JSON; NULL: GET, else POST */
    const char *headers; /* formatted lines; NULL: none */
    const char *key;     /* bearer token; NULL: none */
    double timeout_s;    /* for the whole of it */
};

/* Frees what `out` had before. */
void kvr_http_fetch(const struct kvr_fetch *f, struct kvr_fetched *out);
void kvr_fetched_free(struct kvr_fetched *f);

#endif
