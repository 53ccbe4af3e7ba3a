/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What streams remember between batches (struct kvr_engine_stream), as bytes: whoever goes on from content that was kept elsewhere needs
 * it too, or events that build on it mean something else. Little-endian; for each rank of a source u32 rank, u32 0, u64 length, then
 * sections: u32 kind, u32 0, u64 n, n entries.
 *
 *     1 groups   a byte for each cache group: not learned, main attention, other
 *     2 salts    u64 block hash, u64 the salt's term of the hash seed
 *     3 to 6 copies, by tier   u64 block hash, u64 copies beyond the first, all of them certain
 *     7 to 10 copies, by tier  u64 block hash, struct kvr_tally: u32 certain, signed, u32 unproven (recover/consumer/copies.h)
 *     11 reports a byte: 1 when the engine reports
 *     12 coloured a byte: 1 when some blocks are of salts, images or adapters
 *
 * Threads: the stream's.
 */
#ifndef KVR_WIRE_ENGINE_MEMORY_H
#define KVR_WIRE_ENGINE_MEMORY_H

#include "base/buf.h"
#include "wire/engine_events.h"

/* One stream's, behind what is there. */
void kvr_engine_memory_write(const struct kvr_engine_stream *s, struct kvr_buf *out);
/* Each rank's is put in place of what its stream remembers; find: the stream of a rank, or NULL: it is passed over.
 * Returns: 0, -KVR_EFORMAT, -KVR_ENOMEM, -KVR_EUNSUPPORTED (it has groups with windows, whose content is not kept); the stream at which
 * that happened remembers nothing then. */
int kvr_engine_memory_read(const char *data, size_t len, struct kvr_engine_stream *(*find)(void *ctx, uint32_t rank), void *ctx);

/* What who goes on from the content alone, without this, makes of the stream. */
enum kvr_memory_worth {
    KVR_MEMORY_NOTHING, /* the same: nothing is remembered that matters */
    KVR_MEMORY_MORE,    /* less: blocks with copies would be given up early, salted chains not be gone on with */
    KVR_MEMORY_TRUTH,   /* something false: what window groups lack would be claimed */
};
enum kvr_memory_worth kvr_engine_memory_worth(const struct kvr_engine_stream *s);

#endif
