/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC's messages out of the bytes of a stream: a flag, a length of four bytes, and so many bytes. Pure; one of these for each stream. */
#ifndef KVR_NET_GRPC_MESSAGES_H
#define KVR_NET_GRPC_MESSAGES_H

#include "base/buf.h"

enum { KVR__GRPC_PREFIX = 5 };

enum kvr__grpc_reading {
    KVR__GRPC_COMPRESSED = -4,
    KVR__GRPC_BAD_FLAG,
    KVR__GRPC_TOO_LONG,
    KVR__GRPC_NOMEM,
    KVR__GRPC_MORE,
    KVR__GRPC_MESSAGE
};

struct kvr__grpc_reader {
    struct kvr_buf part; /* of a message that has not come whole in one piece */
    bool given;          /* and that was handed out by the call before */
};

struct kvr__grpc_piece {
    const uint8_t *data;
    size_t len;
};

/* The next message of what has come before and *piece, of which it takes what it has looked at. *out is good until the next call, and as
 * long as the piece is. `spare`: memory for a message in pieces is taken from there, and given back. Returns: KVR__GRPC_MESSAGE,
 * KVR__GRPC_MORE (all of the piece is taken), or what is wrong, and then all is over. */
enum kvr__grpc_reading kvr__grpc_next(struct kvr__grpc_reader *r, size_t message_max, struct kvr_buf *spare, struct kvr__grpc_piece *piece,
                                      struct kvr__grpc_piece *out);
/* Bytes of a message that is not whole. */
size_t kvr__grpc_unfinished(const struct kvr__grpc_reader *r);

#endif
