/* SPDX-License-Identifier: Apache-2.0 */
/* Our index answers other routers: index_server.c. Threads: the main loop; questions over NATS have threads of their own. */
#ifndef KVR_SERVE_INDEX_SERVER_H
#define KVR_SERVE_INDEX_SERVER_H

#include "base/buf.h"
#include "net/http/http.h"
#include "wire/json.h"

struct peers;
struct kvr_prom_page;

/* Returns: 0, or -1 with the reason in err. */
int index_server_start(struct peers *peers, char *err, size_t cap);
bool index_server_is_on(const struct peers *peers);
void index_server_stop(struct peers *peers);
void index_server_tick(struct peers *peers); /* main loop */
void index_server_metrics(struct peers *peers, struct kvr_prom_page *out);
/* Of a router that serves its index; packed: where index_server_takes_packed. */
void index_server_post_query(struct peers *peers, struct kvr_http_conn *c, struct kvr_json o);
void index_server_post_record(struct peers *peers, struct kvr_http_conn *c, struct kvr_json o);
void index_server_post_packed(struct peers *peers, struct kvr_http_conn *c); /* a question in msgpack */
bool index_server_takes_packed(struct kvr_text path);                        /* is that one asked in msgpack too? */
void index_server_get_info(struct peers *peers, struct kvr_http_conn *c);

#endif
