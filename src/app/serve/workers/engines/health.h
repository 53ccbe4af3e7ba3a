/* SPDX-License-Identifier: Apache-2.0 */
/* Health checks of workers: health.c. They run on the main loop. */
#ifndef KVR_SERVE_HEALTH_H
#define KVR_SERVE_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

struct workers;
struct health_checks;

struct health_checks *health_create(void); /* NULL: out of memory */
void health_destroy(struct health_checks *h);
int health_start(struct workers *ws);
void health_check_now(struct workers *ws, uint64_t worker_id); /* any thread */
/* It has gone, or is another one: what it was asked does not count any more. Main loop; calls `over` of what is under way. */
void health_forget(struct workers *ws, uint64_t worker_id);
/* Asks a worker for its models now. Main loop; calls `over` when they are known, or are not to be had. Returns: false when nobody is asked,
 * and `over` is not called. */
bool health_ask_models(struct workers *ws, uint64_t worker_id, void (*over)(void *ctx), void *ctx);
void health_stop(struct workers *ws); /* calls `over` of what is under way */

#endif
