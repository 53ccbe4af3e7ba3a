/* SPDX-License-Identifier: Apache-2.0 */
/* The prompt of a completion as token ids in place of its text, for an engine that then need not make them again.
 * Threads: pure functions. */
#ifndef KVR_WIRE_PROMPT_IDS_H
#define KVR_WIRE_PROMPT_IDS_H

#include <stdint.h>

#include "base/buf.h"
#include "wire/json_text.h"

/* Appends the body, which must be one valid JSON object, with ids[n] in the place of its `prompt`; all other bytes stay as they are.
 * Returns: false when it has no `prompt` that is a text, or a list of one. */
bool kvr_prompt_ids_splice(struct kvr_json_span body, const uint32_t *ids, size_t n, struct kvr_buf *out);

#endif
