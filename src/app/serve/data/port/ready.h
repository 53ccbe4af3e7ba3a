/* SPDX-License-Identifier: Apache-2.0 */
/* Whether requests should be sent here: GET /ready of both ports. Any thread. */
#ifndef KVR_SERVE_READY_H
#define KVR_SERVE_READY_H

#include <stdbool.h>

struct data_plane;

/* *why: what is missing; static. */
bool data_plane_ready(struct data_plane *data, const char **why);

#endif
