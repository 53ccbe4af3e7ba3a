/* SPDX-License-Identifier: Apache-2.0 */
/* Dynamo's RouterEvent read from JSON, as dumps, recovery answers and recordings carry it. recover/event_json.h writes it. */
#ifndef KVR_WIRE_ROUTER_EVENT_H
#define KVR_WIRE_ROUTER_EVENT_H

#include <kvroute/event.h>

#include "base/buf.h"
#include "wire/json.h"

/* Reads one; older forms, without tier or domain, too. *blocks is grown as needed (realloc) and lent to *out, for removed
 * hashes as well. Returns: 0, -KVR_EFORMAT, -KVR_ENOMEM. */
int kvr_router_event_read(struct kvr_json o, struct kvr_event *out, struct kvr_block **blocks, size_t *cap);

#endif
