/* SPDX-License-Identifier: Apache-2.0 */
/* How loaded engines say they are: engine_load.c. The loads of a worker are under the table's lock, the readings are the main loop's. */
#ifndef KVR_SERVE_ENGINE_LOAD_H
#define KVR_SERVE_ENGINE_LOAD_H

#include "app/serve/workers/table/worker.h"

struct kvr_http_client;
struct kvr_nats_sub;

struct reading;
struct kvr_prom_page;

int engine_load_start(struct workers *ws);
void engine_load_tick(struct workers *ws); /* main loop */
void engine_load_stop(struct workers *ws);
void engine_load_tell_locked(const struct worker *w); /* a worker that is new to its router: what is known of it */
void engine_load_write(const struct workers *ws, struct kvr_buf *b, const struct rank_load *r); /* the member `engine` */
void engine_load_metrics(struct workers *ws, struct kvr_prom_page *b);

#endif
