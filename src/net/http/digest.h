/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 of secrets, and comparing them. Any thread. */
#ifndef KVR_NET_HTTP_DIGEST_H
#define KVR_NET_HTTP_DIGEST_H

#include <stdbool.h>
#include <stddef.h>

enum { KVR_DIGEST = 32 };

bool kvr_digest(const void *data, size_t len, unsigned char out[KVR_DIGEST]); /* false: no memory */
/* In time that does not depend on where they differ. */
bool kvr_digest_same(const unsigned char a[KVR_DIGEST], const unsigned char b[KVR_DIGEST]);

#endif
