/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How loaded an engine says it is, per data-parallel rank: requests running and waiting, the share of the KV cache in use.
 *
 *     samples of its /metrics --> kvr_engine_loads --> kvr_engine_load of a rank <--> ActiveLoad on an event plane
 *
 * Names that are known (':' may also be '_', as some collectors write it):
 *
 *     vllm:    num_requests_running, num_requests_waiting, kv_cache_usage_perc (before 0.10: gpu_cache_usage_perc),
 *              cache_config_info{num_gpu_blocks, block_size}; rank: label `engine`
 *     sglang:  num_running_reqs, num_queue_reqs, token_usage, max_total_num_tokens; rank: label `dp_rank`. With priorities there is
 *              a series for each, which are left out, and one of all with priority=""
 *     kvroute_publish_engine_*: what `kvroute publish` has read; rank: label `dp_rank`
 *
 * Several series of one rank (tensor-parallel parts tell the same) count as the largest of them.
 *
 * ActiveLoad is NVIDIA Dynamo's, topic "kv_metrics": a msgpack map {worker_id: u64, dp_rank: u32, active_decode_blocks: nil,
 * active_prefill_tokens: nil, kv_used_blocks: u64 or nil}. Ours has more: kv_total_blocks, kv_usage, num_requests_running,
 * num_requests_waiting. Unknown members are passed over by both.
 */
#ifndef KVR_WIRE_ENGINE_LOAD_H
#define KVR_WIRE_ENGINE_LOAD_H

#include <kvroute/types.h>

#include "base/buf.h"
#include "wire/prom_text.h"

#define KVR_PLANE_LOADS "kv_metrics"

enum { KVR_ENGINE_RANKS_MAX = 64 };

/* Members without `has` are not known. */
struct kvr_engine_load {
    bool has_running, has_waiting, has_usage, has_used;
    uint64_t running, waiting; /* requests */
    double usage;              /* 0..1, of the KV cache */
    uint64_t used_blocks;      /* in use */
    uint64_t total_blocks;     /* 0: not known */
    uint64_t total_tokens;     /* of the cache; 0: not known */
    uint64_t age_ms;           /* when it was read: how old it was then */
};

/* What one body of metrics says. Zeroed before the first sample. */
struct kvr_engine_loads {
    struct {
        bool labelled;
        uint64_t label; /* the rank's number as the engine has it */
        struct kvr_engine_load load;
    } ranks[KVR_ENGINE_RANKS_MAX];
    size_t n;
    bool too_many;      /* ranks were left out */
    uint64_t bad_lines; /* that were no samples; counted by who reads */
};

/* A kvr_prom_fn: ctx is a struct kvr_engine_loads. */
void kvr_engine_loads_sample(void *ctx, const struct kvr_prom_sample *s);

/* The load of one rank of a worker whose ranks are [dp_start, dp_start + dp_size). Engines number ranks as we do, or from 0 on each
 * worker. configured_blocks: of the rank's cache, or 0: then what the engine says, in blocks of block_size tokens.
 * Returns: whether running, waiting or usage are known. */
bool kvr_engine_loads_of(const struct kvr_engine_loads *l, uint32_t dp_start, uint32_t dp_size, uint32_t rank, uint32_t block_size,
                         uint64_t configured_blocks, struct kvr_engine_load *out);

/* What is known of it, as members of an object. */
void kvr_engine_load_json(struct kvr_buf *out, const struct kvr_engine_load *load, uint64_t age_ms, bool stale);

void kvr_active_load_write(struct kvr_buf *out, struct kvr_worker worker, const struct kvr_engine_load *load);
/* Returns: 0; -KVR_EFORMAT. Loads that say nothing of the engine (those of schedulers) have no `has`. */
int kvr_active_load_read(const char *data, size_t len, struct kvr_worker *worker, struct kvr_engine_load *out);

#endif
