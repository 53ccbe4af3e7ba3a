/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Views as files, version 2. Little-endian. Two kinds, a snapshot and a journal, which differ in their first eight bytes:
 *
 *     "KVRSNAP\0" or "KVRJRNL\0"  u32 version  u32 0
 *     record: u32 type  u32 0  u64 length  length bytes  u64 XXH3-64 of those bytes, seeded with the record's number
 *       1 partition  u32 block size, u16 and u16 lengths, model, routing group
 *       2 source     of the last partition: u64 worker id, u32 rank, u32 flags (1 the place is known, 2 the view is whole), u64 next
 *                    sequence, u64 hash of the last payload, f64 its stamp, u64 generation, u32 length, events endpoint
 *       3 events     of the last source, stored events: u64 worker id, u32 rank, u8 tier, u8 1 has parent | 2 has start
 *                    position | 4 is told by base/lower.h, u16 0, u64 parent or start position, u64 n, n names, n local hashes,
 *                    with 4 six u64; parents first
 *       4 end        u64 number of blocks in the file
 *       5 memory     of the last source: what its streams remember (wire/engine_memory.h)
 *       6 batch      u64 sequence, the payload as the engine sent it; the checksum is of the payload, and the mixed sequence is in its seed
 *       7 break      the content is no longer what the batches before make of it
 *
 * A snapshot (partitions, sources, memories, events) is whole when every checksum holds and the last record is `end`; nothing of it is
 * used before all of it has been checked. A journal (one source, then batches) is good up to its first record that is not: what is
 * behind had not been written when the writer died. Journals go on from the snapshot of their generation, and from each other.
 *
 * Nothing here touches a file: bytes go out through a function and come in from memory. Threads: one for each writer or reader.
 */
#ifndef KVR_WIRE_VIEW_FILE_H
#define KVR_WIRE_VIEW_FILE_H

#include <kvroute/event.h>

#include "base/buf.h"

enum { KVR_SAVED_NAME_MAX = 255, KVR_SAVED_ENDPOINT_MAX = 255 };
enum kvr_saved_kind { KVR_SAVED_SNAPSHOT, KVR_SAVED_JOURNAL };

struct kvr_saved_partition {
    uint32_t block_size;
    char model[KVR_SAVED_NAME_MAX + 1], group[KVR_SAVED_NAME_MAX + 1];
};

/* One rank's view, and its place in the stream. */
struct kvr_saved_source {
    struct kvr_worker worker;
    bool known, whole;
    uint64_t next, last_hash;
    double last_ts;
    uint64_t generation; /* of the journal that goes on from here */
    char endpoint[KVR_SAVED_ENDPOINT_MAX + 1];
};

/* ---- writing ------------------------------------------------------------------------------------------------------- */

struct kvr_saved_writer {
    bool (*put)(void *ctx, const void *data, size_t len); /* false: it could not be written */
    void *ctx;
    struct kvr_buf piece; /* events that wait for kvr_saved_flush */
    uint64_t records, blocks, bytes;
    bool failed;
};

void kvr_saved_begin(struct kvr_saved_writer *w, enum kvr_saved_kind kind);
void kvr_saved_put_partition(struct kvr_saved_writer *w, const struct kvr_saved_partition *p);
void kvr_saved_put_source(struct kvr_saved_writer *w, const struct kvr_saved_source *s);
void kvr_saved_put_memory(struct kvr_saved_writer *w, const struct kvr_buf *memory);
/* A kvr_index_emit with the writer as its ctx: keeps the event in memory. */
int kvr_saved_keep_event(void *ctx, const struct kvr_event *ev);
/* Writes the events that were kept, behind their source and its memories. */
void kvr_saved_flush(struct kvr_saved_writer *w);
void kvr_saved_end(struct kvr_saved_writer *w);
/* A journal's. */
void kvr_saved_put_batch(struct kvr_saved_writer *w, uint64_t seq, const char *data, size_t len);
void kvr_saved_put_break(struct kvr_saved_writer *w);
void kvr_saved_writer_free(struct kvr_saved_writer *w);

/* ---- reading --------------------------------------------------------------------------------------------------------- */

struct kvr_saved_file {
    const unsigned char *at, *end;
    uint64_t records;
};

/* A false answer ends the reading. Members may be NULL: passed over. */
struct kvr_saved_reader {
    bool (*partition)(void *ctx, const struct kvr_saved_partition *p);
    bool (*source)(void *ctx, const struct kvr_saved_source *s);
    bool (*memory)(void *ctx, const char *data, size_t len);
    bool (*events)(void *ctx, const struct kvr_event *events, size_t n); /* some of the last source's, in order */
    bool (*batch)(void *ctx, uint64_t seq, const char *data, size_t len);
    void (*broken)(void *ctx);
    void *ctx;
};

/* Checks the whole of a snapshot. Returns: NULL, with *f for kvr_saved_read and how many blocks there are; or a static text that says
 * what is wrong. */
const char *kvr_saved_check(const void *data, size_t len, struct kvr_saved_file *f, uint64_t *blocks);
/* A snapshot that was checked. Returns: whether it was read to its end; false too when memory is short. */
bool kvr_saved_read(const struct kvr_saved_file *f, const struct kvr_saved_reader *r);
/* A journal, up to the first record that is not good. Returns: NULL, or a static text when it is no journal of this version. */
const char *kvr_saved_read_journal(const void *data, size_t len, const struct kvr_saved_reader *r);

#endif
