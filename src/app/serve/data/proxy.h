/* SPDX-License-Identifier: Apache-2.0 */
/* The data port: what serve.c gives to its HTTP servers and calls on their loops (proxy.c). Threads: the data loop that is given. */
#ifndef KVR_SERVE_PROXY_H
#define KVR_SERVE_PROXY_H

#include "net/http/http.h"

struct serve;
struct loop;

void proxy_on_request(struct kvr_http_conn *c, void *ctx);
void proxy_on_gone(struct kvr_http_conn *c, void *ctx);
void proxy_on_drained(struct kvr_http_conn *c, void *ctx);
void proxy_error_body(struct kvr_buf *out, int status, const char *message);
void proxy_try_parked(struct loop *l);
void proxy_take_ready(struct loop *l);
void proxy_cancel_all(struct loop *l);
bool serve_ready(struct serve *s, const char **why);

#endif
