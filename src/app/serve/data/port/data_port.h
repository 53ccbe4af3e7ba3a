/* SPDX-License-Identifier: Apache-2.0 */
/* What the data port's HTTP server calls, on the thread of the loop that is ctx. */
#ifndef KVR_SERVE_DATA_PORT_H
#define KVR_SERVE_DATA_PORT_H

#include "app/serve/data/state/room.h"

struct carrier;

void data_port_on_request(struct kvr_http_conn *c, void *ctx);
/* The same of one that a gateway carries: any path goes to a worker. `whole`: its body is there, or it has none; else it is chosen by load.
 */
void data_port_on_carried(struct kvr_http_conn *c, struct loop *l, const struct carrier *carrier, void *ctx, bool whole);
void data_port_on_gone(struct kvr_http_conn *c, void *ctx);
void data_port_body_room(struct kvr_http_conn *c, void *ctx, struct kvr_http_room *room);
void data_port_on_refused(struct kvr_http_conn *c, int status, void *ctx);
void data_port_on_drained(struct kvr_http_conn *c, void *ctx);
void data_port_put_headers(struct kvr_http_conn *c, struct kvr_buf *head, void *ctx);

#endif
