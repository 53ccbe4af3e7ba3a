/* SPDX-License-Identifier: Apache-2.0 */
/* Our index answers other routers: served.c. Threads: the main loop; questions over NATS have threads of their own. */
#ifndef KVR_SERVE_SERVED_H
#define KVR_SERVE_SERVED_H

#include "base/buf.h"
#include "net/http/http.h"
#include "wire/json.h"

struct peers;
struct kvr_prom_page;

/* Returns: 0, or -1 with the reason in err. */
int served_start(struct peers *peers, char *err, size_t cap);
bool served_is_on(const struct peers *peers);
void served_stop(struct peers *peers);
void served_tick(struct peers *peers); /* main loop */
void served_metrics(struct peers *peers, struct kvr_prom_page *out);
/* Of a router that serves its index; packed: where served_takes_packed. */
void served_post_query(struct peers *peers, struct kvr_http_conn *c, struct kvr_json o);
void served_post_record(struct peers *peers, struct kvr_http_conn *c, struct kvr_json o);
void served_post_packed(struct peers *peers, struct kvr_http_conn *c); /* a question in msgpack */
bool served_takes_packed(struct kvr_text path);                        /* is that one asked in msgpack too? */
void served_get_info(struct peers *peers, struct kvr_http_conn *c);

#endif
