/* SPDX-License-Identifier: Apache-2.0 */
/* KV events as vLLM 0.32 packs them: maps with a "type", in a batch that is an array. Written apart from wire/engine_encode.c, which writes
 * what our own publishers send: a mistake there must not be made here as well. */
#ifndef KVR_APP_MOCK_ENCODE_H
#define KVR_APP_MOCK_ENCODE_H

#include <kvroute/event.h>

#include "base/buf.h"

/* Of whom a stored event is. */
struct mock_event_words {
    const uint32_t *tokens;
    size_t tokens_n;
    uint32_t block_size;
    const char *lora, *salt; /* NULL: none */
};

void mock_encode(struct kvr_buf *b, const struct kvr_event *ev, const struct mock_event_words *words);

/* How engines tell of chunks in the host's memory: vLLM's OffloadingConnector as it is, by the last block's name alone; the same with
 * self_describing_kv_events; SGLang's HiCache, whose chunks are single blocks; LMCache's server, a chunk at once by a name of its own;
 * vLLM's MooncakeStoreConnector, block by block and never of removals. */
#define MOCK_OFFLOAD_FORMS "placeholder|self-describing|sglang|none|lmcache|mooncake"
enum mock_offload_form {
    MOCK_OFFLOAD_PLACEHOLDER,
    MOCK_OFFLOAD_DESCRIBING,
    MOCK_OFFLOAD_SGLANG,
    MOCK_OFFLOAD_NONE,
    MOCK_OFFLOAD_LMCACHE,
    MOCK_OFFLOAD_MOONCAKE,
};
/* Appends the event of a chunk (sim/engine.h). Returns: how many events that makes. */
uint32_t mock_encode_host(struct kvr_buf *b, const struct kvr_event *ev, const struct mock_event_words *words, enum mock_offload_form form);

#endif
