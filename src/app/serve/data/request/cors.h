/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of other origins on the data port (CORS: the Fetch standard, 3.2). A browser asks first whether a page may send what it is about to
 * send (a preflight: OPTIONS, without a key), and shows the page no answer that does not name its origin. Both are answered here, for all
 * paths and for errors too, where --cors-allow-origin names the origin; what engines say of it is dropped then. Without the option nothing
 * is added and nothing is dropped.
 *
 * A page may send any header and any method: who may ask for what is decided by the origin and the key, not by these.
 *
 * Threads: any; the options do not change.
 */
#ifndef KVR_SERVE_CORS_H
#define KVR_SERVE_CORS_H

#include "net/http/http.h"

struct serve_options;

/* Returns: the first item of a comma list that is no origin as browsers send it, nor `*`; ptr NULL: there is none. */
struct kvr_text cors_bad_origin(const char *list);
/* Does the list have `*`? */
bool cors_has_any(const char *list);

/* Returns: whether the request was a preflight, which is answered then. */
bool cors_preflight(const struct serve_options *o, struct kvr_http_conn *c);
/* The lines that an answer on this connection needs. */
void cors_put_headers(const struct serve_options *o, struct kvr_http_conn *c, struct kvr_buf *head);
/* A header of an engine's answer that is ours to say. */
bool cors_is_ours(const struct serve_options *o, struct kvr_text name);

#endif
