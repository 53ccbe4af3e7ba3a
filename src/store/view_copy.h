/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's view as bytes, a snapshot (wire/view_file.h), and from bytes into the index of the same rank: for the data directory
 * (store/view_store.h), and for the process that comes next.
 *
 *     a visit (ingest thread)  kvr_view_copy_take    the content and its place in the stream, copied to memory
 *     later, any thread        kvr_view_copy_write   bytes
 *     then, elsewhere          kvr_view_read         all of them are checked; they are of this rank, or of no use
 *                              kvr_view_load         the content replaces what the index has of the rank
 *
 * Threads: one for each copy and each reading. Memory: a copy has the whole of a rank's blocks until it is freed.
 */
#ifndef KVR_STORE_VIEW_COPY_H
#define KVR_STORE_VIEW_COPY_H

#include <kvroute/index.h>

#include "net/ingest/ingest.h"
#include "wire/view_file.h"

/* Whose view it is: content of anything else is not used. A model that is not said ("") is any. */
struct kvr_view_identity {
    const char *model, *group, *endpoint;
};

struct kvr_view_of {
    struct kvr_worker worker;
    struct kvr_ingest *ingest;
    struct kvr_index *index;
    struct kvr_saved_partition partition;
    char endpoint[KVR_SAVED_ENDPOINT_MAX + 1];
};

void kvr_view_of_init(struct kvr_view_of *of, const struct kvr_view_identity *id, struct kvr_ingest *in, struct kvr_index *index,
                      struct kvr_worker worker, uint32_t block_size);

struct kvr_view_copy { /* begins as zeros */
    struct kvr_saved_writer writer;
    struct kvr_saved_source source;
    struct kvr_buf memory;
};

/* In a visit; the view has a place. Returns: false: no memory. */
bool kvr_view_copy_take(struct kvr_view_copy *c, const struct kvr_view_of *of, const struct kvr_view_status *st, const uint32_t *ranks,
                        size_t n);
/* Once. Returns: false: no memory, or put said so. */
bool kvr_view_copy_write(struct kvr_view_copy *c, const struct kvr_view_of *of, bool (*put)(void *ctx, const void *data, size_t len),
                         void *ctx);
void kvr_view_copy_free(struct kvr_view_copy *c);

struct kvr_view_reading { /* begins as zeros */
    const struct kvr_view_of *of;
    struct kvr_saved_file file;
    struct kvr_saved_source source;
    struct kvr_buf memory; /* what its streams remembered */
    uint64_t blocks;
    bool tiers; /* some of them are of lower tiers */
    size_t partitions, sources;
    const char *wrong;
};

/* Nothing is put in place. The bytes stay until kvr_view_load. Returns: what is wrong with them (static), or NULL. */
const char *kvr_view_read(struct kvr_view_reading *r, const struct kvr_view_of *of, const void *data, size_t len);
/* Returns: false: no memory; then the index has nothing of the rank. */
bool kvr_view_load(struct kvr_view_reading *r);
struct kvr_view_cursor kvr_view_place(const struct kvr_saved_source *s);
void kvr_view_reading_free(struct kvr_view_reading *r);

#endif
