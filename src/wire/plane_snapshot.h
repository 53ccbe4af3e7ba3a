/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of indexes in pieces, for a store that others start from. A piece is a run of msgpack arrays, each whole:
 *
 *     [0, worker, rank, tier, parent | nil, start position | nil, blocks]            a store; blocks: 16 bytes each, block hash and tokens
 *                                                                                    hash, little-endian, in one bin; behind it, of a
 *                                                                                    lower tier, the numbers of base/lower.h
 *     [1, worker, rank, next event id, publisher, stamp, it sends heartbeats]        where that rank's events go on
 *
 * A rank without the second kind is not whole. Readers borrow the bytes.
 */
#ifndef KVR_WIRE_PLANE_SNAPSHOT_H
#define KVR_WIRE_PLANE_SNAPSHOT_H

#include <kvroute/event.h>

#include "base/buf.h"

struct kvr_snapshot_cursor {
    struct kvr_worker worker;
    uint64_t next, publisher;
    double ts;
    bool heartbeats;
};

struct kvr_snapshot_reader {
    int (*on_event)(void *ctx, const struct kvr_event *ev);
    int (*on_cursor)(void *ctx, const struct kvr_snapshot_cursor *c);
    void *ctx;
    struct kvr_block *blocks; /* grows; the caller frees it */
    size_t cap;
};

void kvr_snapshot_event_write(struct kvr_buf *out, const struct kvr_event *ev);
void kvr_snapshot_cursor_write(struct kvr_buf *out, const struct kvr_snapshot_cursor *c);
/* Bytes of the first record of a run that was written here. */
size_t kvr_snapshot_record_len(const char *data, size_t len);
/* Returns: 0, what a callback returned, -KVR_EFORMAT (what stood before was told), -KVR_ENOMEM. */
int kvr_snapshot_read(struct kvr_snapshot_reader *r, const char *data, size_t len);

#endif
