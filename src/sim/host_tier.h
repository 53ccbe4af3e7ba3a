/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a simulated engine keeps in the host's memory, as vLLM's offloading does: chunks of `chunk` blocks, each known by its last block's
 * name and read back as a whole, least recently used out first. A full chunk of the device is copied in the pass after the one that
 * filled it, and told of then, after what that pass tells of the device.
 */
#ifndef KVR_SIM_HOST_TIER_H
#define KVR_SIM_HOST_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct host_tier;

/* A chunk came or went: the names of its blocks. Of one that came also the name before it (0: it begins a prompt) and its tokens. */
struct host_chunk {
    bool stored;
    const uint64_t *names;
    uint64_t parent;
    const uint32_t *tokens;
};
typedef void host_tier_tell(void *ctx, const struct host_chunk *chunk);

/* least: fewer blocks are not read. Returns: NULL when memory is short. */
struct host_tier *host_tier_create(uint32_t blocks, uint32_t chunk, uint32_t least, uint32_t block_size);
void host_tier_destroy(struct host_tier *h);
/* How many of the names[n], of which the first `device` are on the device, can be had when the host is read from where these end. */
size_t host_tier_reach(const struct host_tier *h, const uint64_t *names, size_t n, size_t device);
/* A request that has used [from, to) of these is at its end. */
void host_tier_touch(struct host_tier *h, const uint64_t *names, size_t from, size_t to);
/* Blocks [from, to) of names[] are full on the device; tokens: of the whole prompt. Chunks among them will be copied; those that are there
 * stay until then. */
void host_tier_offer(struct host_tier *h, const uint64_t *names, size_t from, size_t to, const uint32_t *tokens);
/* Copies what was offered before the last call of this, and tells. */
void host_tier_copy(struct host_tier *h, host_tier_tell *tell, void *ctx);
void host_tier_clear(struct host_tier *h);
size_t host_tier_blocks(const struct host_tier *h);

#endif
