/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that come inside another protocol, and whose answers leave so: a connection of a server (http.h) without a socket. The handler
 * of the server meets it like any other, and answers it with the functions of http.h; limits of heads and bodies, and the budget for
 * bodies, are the server's. There is nobody to be slow here: nothing is queued, and kvr_http_write returns 0.
 *
 * Whoever hosts a request owns its connection, gives it the request piece by piece, and frees it when the client has gone or nothing is
 * left to be said. Threads: the server's loop.
 */
#ifndef KVR_NET_HTTP_HOSTED_H
#define KVR_NET_HTTP_HOSTED_H

#include "net/http/http.h"

struct kvr_http_outer {
    /* The request is whole, or its body is not wanted (body_unread): in the place of the handler's on_request. */
    void (*on_request)(struct kvr_http_conn *c, void *ctx);
    /* The answer. `headers`: lines, as kvr_http_start has them. */
    void (*on_start)(void *ctx, int status, const char *headers, size_t headers_len);
    void (*on_body)(void *ctx, const char *data, size_t len);
    /* Its end; whole: it is not broken off. The connection is used for nothing more, but kvr_http_hosted_free. */
    void (*on_end)(void *ctx, bool whole);
};

/* `outer` outlives it. peer: the client's address, copied. NULL: no memory. */
struct kvr_http_conn *kvr_http_hosted_new(struct kvr_http_server *s, const struct kvr_http_outer *outer, void *ctx, const char *peer);
/* What has come of the request. Each returns whether more is wanted: not after it was answered, or handed over. Both texts of a header are
 * copied; of those of HTTP/2 that begin with a colon :method, :path and :authority are understood. */
bool kvr_http_hosted_header(struct kvr_http_conn *c, struct kvr_text name, struct kvr_text value);
bool kvr_http_hosted_head_over(struct kvr_http_conn *c); /* kvr_http_conn_request is valid from here on */
/* Its target is only what is behind so many bytes of it, which do not concern the handler. Between these two. */
void kvr_http_hosted_skip_prefix(struct kvr_http_conn *c, size_t bytes);
bool kvr_http_hosted_body_follows(struct kvr_http_conn *c); /* only of a body that will be given here */
bool kvr_http_hosted_body(struct kvr_http_conn *c, const char *data, size_t len);
void kvr_http_hosted_over(struct kvr_http_conn *c);
/* The client has gone, if an answer is owed. */
void kvr_http_hosted_free(struct kvr_http_conn *c);

#endif
