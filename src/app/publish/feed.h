/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of one rank's engine events:
 *
 *     ingest (copies out) --> next id --> local index and ring --> outlet (net/ingest/event_plane.h); sequence = id
 *
 * Copies: an engine may keep one block several times. The ingest counts them (recover/consumer/copies.h), so neither the store nor the
 * removal of a copy comes here: who listens sees each block stored once and removed once, and has nothing to count. Ids begin at 1 with
 * each life of the program; the first event of a life is a clear, and so is what tells that the engine's stream was lost. Salted stores
 * carry their salt also when the engine only tells it once a chain. A store whose parent was never published, as it was stored before
 * anybody listened, is left out and counted: it has no place.
 *
 * Threads: the ingest thread calls feed_event and _reset and owns the outlet from the first call on; others only ask the
 * local index, which has its own locks.
 */
#ifndef KVR_PUBLISH_FEED_H
#define KVR_PUBLISH_FEED_H

#include <stdatomic.h>
#include <kvroute/local_index.h>

#include "app/publish/publish.h"
#include "base/buf.h"
#include "base/map64.h"
#include "net/ingest/ingest.h"

struct feed_salt {
    char *text;         /* NULL: free */
    size_t len, blocks; /* how many carry it */
    uint64_t hash;
    size_t next_free; /* place + 1 */
};

struct feed {
    struct kvr_worker worker;
    _Atomic uint32_t block_size; /* given, else the engine's, from its first store on; 0: not known yet */
    struct kvr_outlet *outlet;
    struct kvr_local_index *index;
    uint64_t next_id;
    bool told;                /* something since the last clear */
    struct kvr_map64 salted;  /* block hash -> place in salts, + 1 */
    struct kvr_map64 salt_at; /* hash of a salt -> its place, + 1 */
    struct feed_salt *salts;
    size_t salts_n, salts_cap, salts_free;
    bool overfull; /* the local index lacks blocks that were published, for want of room */
    _Atomic uint64_t published, send_failures, forgotten_salts, parentless;
};

/* block_size 0: it is what the stream says. Publishes the first clear. Takes the outlet. Returns: 0, or -1 with the reason in err. */
int feed_open(struct feed *f, const struct publish_options *o, uint32_t rank, uint32_t block_size, struct kvr_outlet *outlet, char *err,
              size_t cap);
void feed_close(struct feed *f);
/* `origin` with the engine's words and its stream. Returns: what the index says. */
int feed_event(struct feed *f, const struct kvr_event *ev, const struct kvr_ingest_origin *origin);
/* Nothing that was told holds any more. */
void feed_reset(struct feed *f);

#endif
