/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recordings of router events: JSON Lines, {"timestamp": ms, "event": RouterEvent}, after NVIDIA Dynamo's recorder. The
 * timestamp counts from the recorder's beginning. A bare RouterEvent is read too, with timestamp 0.
 */
#ifndef KVR_WIRE_RECORD_H
#define KVR_WIRE_RECORD_H

#include <kvroute/event.h>

#include "base/buf.h"
#include "wire/json.h"

/* Appends a line with its newline. */
void kvr_record_write(struct kvr_buf *b, uint64_t timestamp_ms, const struct kvr_event *ev);
/* Reads one line. *blocks is grown as needed (realloc) and lent to *out. Returns: 0, -KVR_EFORMAT, -KVR_ENOMEM. */
int kvr_record_read(struct kvr_json_parser *p, const char *line, size_t len, uint64_t *timestamp_ms, struct kvr_event *out,
                    struct kvr_block **blocks, size_t *cap);

#endif
