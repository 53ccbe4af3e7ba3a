/* SPDX-License-Identifier: Apache-2.0 */
/* What the data port's HTTP server calls, on the thread of the loop that is ctx. */
#ifndef KVR_SERVE_DATA_PORT_H
#define KVR_SERVE_DATA_PORT_H

#include "app/serve/data/state/room.h"

void data_port_on_request(struct kvr_http_conn *c, void *ctx);
void data_port_on_gone(struct kvr_http_conn *c, void *ctx);
void data_port_body_room(struct kvr_http_conn *c, void *ctx, struct kvr_http_room *room);
void data_port_on_refused(struct kvr_http_conn *c, int status, void *ctx);
void data_port_on_drained(struct kvr_http_conn *c, void *ctx);
void data_port_put_headers(struct kvr_http_conn *c, struct kvr_buf *head, void *ctx);

#endif
