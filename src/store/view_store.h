/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views in a data directory, so that a process that was killed goes on where it stood.
 *
 *     DIR/worker-7-rank-0/view.kvr        the content as of one place in the engine's stream (a snapshot, wire/view_file.h)
 *     DIR/worker-7-rank-0/journal-12.kvr  the batches since then, as the engine sent them
 *
 * IDEA. A snapshot is dear (all blocks), a batch is cheap (a copy of its bytes). So each batch that was applied is written behind the
 * snapshot, and now and then a new snapshot makes the journal short again. To restore is to load the snapshot and to apply the batches by
 * the very code that applied them first: what the stream remembered (salts, groups) comes right by itself. Then the engine is asked for its
 * last batch: only if that is the same, the content is used (net/ingest/ingest.h, `from`).
 *
 *     ingest thread   applies a batch --> copies it to the rank's pending bytes (memory)
 *     scribe thread   every 20 ms: pending bytes --> write() to the journal; never waits for the disk to be synced
 *     keeper thread   a snapshot: visits the view (the ingest thread copies its blocks to memory, and the journal of the next generation
 *                     begins at that very batch), writes it beside, syncs, renames; then the journals of older generations go
 *
 * LOSSES. A process that is killed loses what was pending: at most 20 ms, or what the disk holds up; bytes that were given to write() are
 * the kernel's. A machine that dies loses what was not on the disk, and a record that is torn ends the journal there. Whatever is lost at
 * the end is what the engine's replay buffer brings, if it reaches that far. A rank whose pending bytes exceed 8 MiB (a disk that stands
 * still) gives its journal up until the next snapshot, which is counted.
 *
 * WHEN. A snapshot of a rank is due after the interval, if anything came; when its journals exceed 64 MiB; when the content changed by
 * something that is no batch (a restart of the engine, a dump): at once then, but not more often than once a second; and at the end.
 *
 * Only whole views are kept: in a partial one may be blocks under names of our own (recover/consumer/supposed.h), which nobody could take
 * out later.
 *
 * BOUNDS. Pending: 8 MiB a rank. Files: twice a rank's content and 64 MiB of journals. At most 4,096 ranks' directories are kept at the
 * start, the newest. A file that cannot be used is set aside (store/data_dir.h) and counted. A failure to write is logged when it is new,
 * counted, and tried again at the next interval.
 *
 * Threads: the functions are called from one thread, that which adds and removes sources; _metrics from any.
 */
#ifndef KVR_NET_VIEW_STORE_H
#define KVR_NET_VIEW_STORE_H

#include <kvroute/index.h>

#include "store/data_dir.h"
#include "store/view_copy.h"

struct kvr_prom_page;

struct kvr_view_store;

/* clang-format off */
#define KVR_VIEW_STORE_COUNTERS(X) \
    X(snapshots, "Views written to the data directory as a whole") \
    X(snapshot_failures, "Snapshots or journals that could not be written") \
    X(journal_batches, "Batches of engines written behind a snapshot") \
    X(journal_bytes, "Bytes of journals") \
    X(journal_overflows, "Journals given up until the next snapshot: a slow disk") \
    X(restored_views, "Views taken from the data directory") \
    X(restored_blocks, "Blocks of restored views") \
    X(restored_batches, "Batches of restored views") \
    X(discarded_files, "Files of no use: damaged, of another version or worker")
/* clang-format on */

struct kvr_view_store_config {
    struct kvr_ingest *ingest;
    const char *dir; /* made when it is not there */
    double interval_s;
    const char *who;      /* begins the lines in the log, e.g. "kvroute serve" */
    unsigned patience_ms; /* for another process that has the directory */
};

/* The strings are copied. Returns: 0, or -1 or KVR_DATA_DIR_TAKEN with the reason in err. */
int kvr_view_store_open(const struct kvr_view_store_config *config, struct kvr_view_store **out, char *err, size_t cap);

/* kvr_ingest_add, from what is on disk: the content is put into the index (in place of the rank's) and `src` goes on from it; and kept from
 * then on. *tiers: there were blocks of lower tiers. Returns: as kvr_ingest_add. */
int kvr_view_store_follow(struct kvr_view_store *store, const struct kvr_view_of *of, struct kvr_ingest_source *src, bool *tiers);
/* A rank that is followed already, whose view was restored otherwise: it is kept from now on, in place of what is on disk.
 * Returns: 0, -KVR_ENOTFOUND, -KVR_ENOMEM. */
int kvr_view_store_keep(struct kvr_view_store *store, const struct kvr_view_of *of);
/* After kvr_ingest_remove of all of a worker's ranks. What was kept stays on disk. */
void kvr_view_store_unfollow(struct kvr_view_store *store, uint64_t worker_id);

/* kvroute_data_dir_..., nothing without a store. */
struct kvr_buf;
void kvr_view_store_metrics(struct kvr_view_store *store, struct kvr_prom_page *out);
/* Writes everything once more, and then no more: the directory is free for another process. While the ingest still runs, which may go on;
 * what is told after it is not kept. One thread. NULL and a second time are fine. */
void kvr_view_store_stop(struct kvr_view_store *store);
/* When the ingest is no more. NULL is fine. */
void kvr_view_store_destroy(struct kvr_view_store *store);

#endif
