/* SPDX-License-Identifier: Apache-2.0 */
/* A message that comes whole in one piece is handed out where it lies; of others the pieces are put together, with room that grows as they
 * come: a length that is only promised takes no memory. */
#include "net/grpc/messages.h"

static void move(struct kvr__grpc_reader *r, struct kvr__grpc_piece *piece, size_t n)
{
    n = KVR_MIN(n, piece->len);
    kvr_buf_add(&r->part, piece->data, n);
    piece->data += n;
    piece->len -= n;
}

/* Returns: KVR__GRPC_MESSAGE: *whole is its length with the prefix. */
static enum kvr__grpc_reading read_prefix(const uint8_t *p, size_t message_max, size_t *whole)
{
    size_t len = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
    if (p[0]) return p[0] == 1 ? KVR__GRPC_COMPRESSED : KVR__GRPC_BAD_FLAG;
    if (len > message_max) return KVR__GRPC_TOO_LONG;
    *whole = KVR__GRPC_PREFIX + len;
    return KVR__GRPC_MESSAGE;
}

static void give_back(struct kvr__grpc_reader *r, struct kvr_buf *spare)
{
    enum { SPARE_MAX = 4 << 20 };
    if (!spare->data && r->part.cap <= SPARE_MAX) {
        kvr_buf_reset(&r->part);
        *spare = r->part;
        r->part = (struct kvr_buf){0};
    } else {
        kvr_buf_free(&r->part);
    }
    r->given = false;
}

enum kvr__grpc_reading kvr__grpc_next(struct kvr__grpc_reader *r, size_t message_max, struct kvr_buf *spare, struct kvr__grpc_piece *piece,
                                      struct kvr__grpc_piece *out)
{
    size_t whole = 0;
    if (r->given) give_back(r, spare);
    if (r->part.len == 0 && piece->len >= KVR__GRPC_PREFIX) {
        enum kvr__grpc_reading rc = read_prefix(piece->data, message_max, &whole);
        if (rc < 0) return rc;
        if (piece->len >= whole) {
            *out = (struct kvr__grpc_piece){piece->data + KVR__GRPC_PREFIX, whole - KVR__GRPC_PREFIX};
            *piece = (struct kvr__grpc_piece){piece->data + whole, piece->len - whole};
            return KVR__GRPC_MESSAGE;
        }
    }
    if (!r->part.data && piece->len) {
        r->part = *spare;
        *spare = (struct kvr_buf){0};
    }
    if (r->part.len < KVR__GRPC_PREFIX) move(r, piece, KVR__GRPC_PREFIX - r->part.len);
    if (r->part.failed) return KVR__GRPC_NOMEM;
    if (r->part.len < KVR__GRPC_PREFIX) return KVR__GRPC_MORE;
    enum kvr__grpc_reading rc = read_prefix((const uint8_t *)r->part.data, message_max, &whole);
    if (rc < 0) return rc;
    move(r, piece, whole - r->part.len);
    if (r->part.failed) return KVR__GRPC_NOMEM;
    if (r->part.len < whole) return KVR__GRPC_MORE;
    r->given = true;
    *out = (struct kvr__grpc_piece){(const uint8_t *)r->part.data + KVR__GRPC_PREFIX, whole - KVR__GRPC_PREFIX};
    return KVR__GRPC_MESSAGE;
}

size_t kvr__grpc_unfinished(const struct kvr__grpc_reader *r)
{
    return r->given ? 0 : r->part.len;
}
