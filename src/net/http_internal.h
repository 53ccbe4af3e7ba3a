/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the HTTP server and client. */
#ifndef KVR_NET_HTTP_INTERNAL_H
#define KVR_NET_HTTP_INTERNAL_H

#include <llhttp.h>

#include "net/http.h"

void kvr__headers_reset(struct kvr_headers *h);
/* `fresh`: the first piece. Returns: 0, or -1 over a limit. */
int kvr__headers_name(struct kvr_headers *h, const char *at, size_t len, bool fresh);
int kvr__headers_value(struct kvr_headers *h, const char *at, size_t len, bool fresh);

#endif
