/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words shared by every part of the library.
 *
 * The unit of routing is the pair (worker_id, dp_rank): index, load, choice, events and metrics all use it.
 * A worker that does not speak of ranks has one, rank 0.
 */
#ifndef KVROUTE_TYPES_H
#define KVROUTE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <kvroute/api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_worker {
    uint64_t worker_id;
    uint32_t dp_rank;
};

/* Where a block lives. Event and JSON names: "device", "host_pinned", "disk", "external". */
enum kvr_tier { KVR_TIER_DEVICE, KVR_TIER_HOST_PINNED, KVR_TIER_DISK, KVR_TIER_EXTERNAL, KVR_TIER_COUNT };

/* Name of a tier, or NULL for a value outside the enum. Threads: any. */
KVR_API const char *kvr_tier_name(enum kvr_tier tier);

/* Tier of an engine's `medium` string (in any case; empty means device).
 * Returns: 0 and *out, or -KVR_EINVAL for an unknown medium. Threads: any. */
KVR_API int kvr_tier_of_medium(const char *medium, size_t len, enum kvr_tier *out);

/* Order by worker_id, then dp_rank. Returns <0, 0, >0. Threads: any. */
KVR_API int kvr_worker_cmp(struct kvr_worker a, struct kvr_worker b);

#ifdef __cplusplus
}
#endif
#endif
