/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The snapshot file, version 1. Little-endian.
 *
 *     "KVRSNAP\0"  u32 version  u32 0
 *     record: u32 type  u32 0  u64 length  length bytes  u64 XXH3-64 of those bytes, seeded with the record's number
 *       1 partition  u32 block size, u16 and u16 lengths, model, routing group
 *       2 source     of the last partition: u64 worker id, u32 rank, u32 1 when the place is known, u64 next sequence,
 *                    u64 hash of the last payload, f64 its stamp
 *       3 events     of the last source, stored events: u64 worker id, u32 rank, u8 tier, u8 1 has parent | 2 has start
 *                    position, u16 0, u64 parent or start position, u64 n, n names, n local hashes; parents first
 *       4 end        u64 number of blocks in the file
 * A file is whole when every checksum holds and the last record is `end`. Nothing of a file is used before all of it has been
 * checked.
 */
#ifndef KVR_INDEXER_SNAPSHOT_H
#define KVR_INDEXER_SNAPSHOT_H

#include "app/indexer/state.h"

/* Writes every followed view to `path` by way of `path`.tmp: written, synced, renamed, directory synced.
 * Returns: 0, or -1 with the reason in err; the old file is as it was then. *bytes, *blocks: what was written. */
int snapshot_write(struct indexer *x, const char *path, uint64_t *bytes, uint64_t *blocks, char *err, size_t cap);

/* Puts a file's content in place. Returns: 0, 1 when there is no file, -1 with the reason in err: nothing was used then. */
int snapshot_read(struct indexer *x, const char *path, uint64_t *blocks, char *err, size_t cap);

#endif
