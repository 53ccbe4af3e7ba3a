/* SPDX-License-Identifier: Apache-2.0 */
/* The snapshot of all partitions as one file (wire/view_file.h). Nothing of a file is used before all of it has been checked. */
#ifndef KVR_INDEXER_SNAPSHOT_H
#define KVR_INDEXER_SNAPSHOT_H

#include "app/indexer/state.h"

/* Writes every followed view to `path` (store/data_dir.h).
 * Returns: 0, or -1 with the reason in err; the old file is as it was then. *bytes, *blocks: what was written. */
int snapshot_write(struct indexer *x, const char *path, uint64_t *bytes, uint64_t *blocks, char *err, size_t cap);

/* Puts a file's content in place. Returns: 0, 1 when there is no file, -1 with the reason in err: nothing was used then. */
int snapshot_read(struct indexer *x, const char *path, uint64_t *blocks, char *err, size_t cap);

#endif
