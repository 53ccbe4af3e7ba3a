/* SPDX-License-Identifier: Apache-2.0 */
/* Dynamo's RouterEvent in JSON, as dumps carry it: a stored event of one (worker, rank) in one tier. */
#ifndef KVR_WIRE_ROUTER_EVENT_H
#define KVR_WIRE_ROUTER_EVENT_H

#include <kvroute/event.h>

#include "base/buf.h"
#include "wire/json.h"

/* Appends a stored event. */
void kvr_router_event_write(struct kvr_buf *b, const struct kvr_event *ev, uint64_t event_id);

/* Reads one with a stored event; older forms, without tier or domain, too. *blocks is grown as needed (realloc) and
 * lent to *out. Returns: 0, -KVR_EFORMAT, -KVR_ENOMEM. */
int kvr_router_event_read(struct kvr_json o, struct kvr_event *out, struct kvr_block **blocks, size_t *cap);

#endif
