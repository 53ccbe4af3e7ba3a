/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots in a NATS key-value bucket, by version. A snapshot is pieces and an entry in the head, which is written last, by
 * compare-and-set: what the head does not name does not exist.
 *
 *     {name}.head           {"format": 1, "versions": [{"version", "stream", "position", "bytes", "hashes": [one a piece]}]}, newest first
 *     {name}.{version}.{n}  piece n
 *
 * `stream` says when the server made the stream that `position` is one of, in ns: one that is made anew counts from 1 again.
 * The last KEPT versions are kept, so that one torn piece costs no more than a longer tail. Blocking calls; one user at a time.
 */
#ifndef KVR_NET_NATS_SNAPSHOTS_H
#define KVR_NET_NATS_SNAPSHOTS_H

#include "base/buf.h"
#include "net/nats/link.h"

enum { KVR_SNAPSHOT_PIECE = 256 << 10, KVR_SNAPSHOT_PIECES_MAX = 1 << 18, KVR_SNAPSHOT_KEPT = 2 };

struct kvr_snapshots;

struct kvr_snapshot_version {
    uint64_t version, stream, position, bytes;
    uint64_t *hashes;
    size_t pieces;
};

struct kvr_snapshot_head {
    struct kvr_snapshot_version v[KVR_SNAPSHOT_KEPT];
    size_t n;
    uint64_t revision; /* of the head; 0: there is none */
};

int kvr_snapshots_open(struct kvr_nats *link, const char *name, int replicas,
                       struct kvr_snapshots **out); /* 0, -KVR_ETIMEDOUT, -KVR_ENOMEM */
void kvr_snapshots_close(struct kvr_snapshots *s);  /* NULL is fine */

/* Returns: 0 (also when there is none: n is 0), -KVR_ETIMEDOUT, -KVR_EFORMAT. */
int kvr_snapshots_head(struct kvr_snapshots *s, struct kvr_snapshot_head *out);
void kvr_snapshot_head_free(struct kvr_snapshot_head *h);
/* One piece, checked. Returns: 0, -KVR_EFORMAT (torn or gone), -KVR_ETIMEDOUT. */
int kvr_snapshots_piece(struct kvr_snapshots *s, const struct kvr_snapshot_version *v, size_t at, struct kvr_buf *out);

/* Writing: begin, pieces, commit. A new version after those of `head`. */
struct kvr_snapshot_draft {
    struct kvr_snapshot_version v;
    size_t hashes_cap;
};
void kvr_snapshots_begin(struct kvr_snapshots *s, const struct kvr_snapshot_head *head, uint64_t stream, uint64_t position,
                         struct kvr_snapshot_draft *out);
int kvr_snapshots_put(struct kvr_snapshots *s, struct kvr_snapshot_draft *d, const char *data, size_t len);
/* -KVR_EEXISTS: somebody else has committed meanwhile. What is no longer named is deleted. */
int kvr_snapshots_commit(struct kvr_snapshots *s, struct kvr_snapshot_draft *d, const struct kvr_snapshot_head *head);
/* Deletes what was put. */
void kvr_snapshots_abandon(struct kvr_snapshots *s, struct kvr_snapshot_draft *d);
/* Deletes everything of this name. */
int kvr_snapshots_reset(struct kvr_snapshots *s);

#endif
