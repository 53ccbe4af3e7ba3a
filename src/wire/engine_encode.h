/* SPDX-License-Identifier: Apache-2.0 */
/* KV event batches as engines write them (msgpack; the array form of vLLM), for those that publish: the other direction of
 * engine_events.h. */
#ifndef KVR_WIRE_ENGINE_ENCODE_H
#define KVR_WIRE_ENGINE_ENCODE_H

#include "base/buf.h"
#include "wire/engine_events.h"

/* What a stored event carries besides its hashes. Zeroed for the other kinds. */
struct kvr_engine_words {
    const uint32_t *tokens;
    size_t tokens_n;
    uint32_t block_size;
    struct kvr_bytes lora, salt;
    bool eagle;       /* tokens are written as pairs */
    bool untold_keys; /* as the engine's event, so that who reads this knows it, too */
    /* multimodal objects by block, for the first mm_n blocks */
    const struct kvr_engine_mm *mm;
    size_t mm_n;
    const uint64_t *mm_hashes;
};

/* Appends one event: its names, parent, tier, and what `words` adds. */
void kvr_engine_encode(struct kvr_buf *b, const struct kvr_event *ev, const struct kvr_engine_words *words);
/* Appends a batch of events_n encoded events. ts: seconds since 1970. */
void kvr_engine_encode_batch(struct kvr_buf *b, double ts, const struct kvr_buf *events, uint32_t events_n, uint32_t rank);

#endif
