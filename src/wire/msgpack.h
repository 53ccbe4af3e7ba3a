/* SPDX-License-Identifier: Apache-2.0 */
/* What every reader of msgpack from the wire does first. */
#ifndef KVR_WIRE_MSGPACK_H
#define KVR_WIRE_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>

/* Past one well-formed value with at most 64 levels that ends before `end`. Returns: false: there is none, and *at is as it was. */
bool kvr_msgpack_pass(const char **at, const char *end);

/* Is this one such value, and nothing after it? Then the walking functions of msgpuck stay inside it, as long as types are looked at
 * before they are decoded. */
bool kvr_msgpack_is_whole(const char *data, size_t len);

#endif
