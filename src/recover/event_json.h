/* SPDX-License-Identifier: Apache-2.0 */
/* Writes Dynamo's RouterEvent as JSON: stored, removed and cleared events of one (worker, rank) in one tier. */
#ifndef KVR_RECOVER_EVENT_JSON_H
#define KVR_RECOVER_EVENT_JSON_H

#include <kvroute/event.h>

#include "base/buf.h"

void kvr__event_json(struct kvr_buf *b, const struct kvr_event *ev, uint64_t event_id);

#endif
