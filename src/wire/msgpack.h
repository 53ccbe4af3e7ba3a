/* SPDX-License-Identifier: Apache-2.0 */
/* What every reader of msgpack from the wire does first. */
#ifndef KVR_WIRE_MSGPACK_H
#define KVR_WIRE_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>

/* Is this one well-formed value, with at most 64 levels, and nothing after it? Then the walking functions of msgpuck stay
 * inside it, as long as types are looked at before they are decoded. */
bool kvr_msgpack_is_whole(const char *data, size_t len);

#endif
