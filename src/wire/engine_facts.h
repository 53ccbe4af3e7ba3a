/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine says of its own configuration, put together from several of its answers:
 *
 *     GET /metrics             vllm:cache_config_info {block_size, num_gpu_blocks, enable_prefix_caching, engine}; the rank is a label of
 *                              every series (vllm: engine, sglang: dp_rank). vllm:kv_offload_* and vllm:simple_kv_offload_*: it offloads
 *     GET /kv_event_sources    vLLM since 0.32: {rank: {endpoint, replay_endpoint, buffer_steps, enable_kv_cache_events, publisher}}
 *     GET /server_info?config_format=json   vLLM with VLLM_SERVER_DEV_MODE=1: {vllm_config: {cache_config, parallel_config,
 * kv_events_config}} GET /server_info, /get_server_info    SGLang: {page_size, dp_size, kv_events_config (JSON in a text),
 * disable_radix_cache, enable_cache_report, disaggregation_mode, ...} POST /v1/completions with a rank that cannot be: vLLM says which it
 * has ("... is out of range [0, 2).")
 *
 * What was told first stays; feed them in this order. An engine is not trusted with addresses: of an endpoint only the port is read.
 * Threads: pure functions on the caller's struct; everything is bounded.
 */
#ifndef KVR_WIRE_ENGINE_FACTS_H
#define KVR_WIRE_ENGINE_FACTS_H

#include "base/base.h"
#include "base/buf.h"
#include "wire/engine_events.h"
#include "wire/json.h"
#include "wire/prom_text.h"

enum { KVR_FACT_RANKS_MAX = 64, KVR_FACT_PORT_MIN = 1024, KVR_FACT_MODEL_MAX = 128 };

enum kvr_engine_name { KVR_FACT_ENGINE_UNKNOWN, KVR_FACT_VLLM, KVR_FACT_SGLANG };

enum kvr_told { KVR_UNTOLD, KVR_TOLD_NO, KVR_TOLD_YES };

/* What SGLang's disaggregation_mode says that the engine computes. OFF: all of a request. */
enum kvr_told_mode { KVR_MODE_UNTOLD, KVR_MODE_OFF, KVR_MODE_PREFILL, KVR_MODE_DECODE };

/* Which answer told something; NULL: none did. Static text, a path. */
typedef const char *kvr_fact_source;

struct kvr_engine_rank {
    uint32_t rank;
    uint16_t events, replay; /* ports; 0: not told, or none */
    uint64_t buffer_steps;   /* batches that can be replayed; 0: not told */
};

/* Zeroed before the first answer, but for the model, where one is known. */
struct kvr_engine_facts {
    char model[KVR_FACT_MODEL_MAX]; /* one that it serves; "": not told */
    enum kvr_engine_name engine;
    uint32_t block_size; /* tokens; 0: not told */
    kvr_fact_source block_size_from;
    uint64_t total_blocks; /* of one rank's cache; 0: not told */
    bool total_is_sum;     /* of all its ranks: vLLM's num_gpu_blocks */
    kvr_fact_source total_blocks_from;
    enum kvr_told prefix_caching, events, cached_tokens; /* events: KV events over ZMQ; cached_tokens: its usage has them */
    struct kvr_engine_rank ranks[KVR_FACT_RANKS_MAX];    /* by rank */
    size_t ranks_n;                                      /* 0: not told */
    kvr_fact_source ranks_from, events_from;
    bool offloads; /* it keeps blocks in tiers behind the device (vLLM's offloading connectors) */
    bool too_many; /* ranks were left out */
    bool unusable; /* an events endpoint is none that can be reached by a port (ipc, inproc, a port below 1024) */
    enum kvr_told_mode mode;
    uint16_t bootstrap_port; /* where decode workers meet it; 0: not told */
    uint32_t rank_range;     /* it takes the header X-data-parallel-rank from 0 to this - 1; 0: not told */
};

/* A kvr_prom_fn: ctx is a struct kvr_engine_facts. */
void kvr_engine_facts_sample(void *ctx, const struct kvr_prom_sample *s);
/* The answers, by their path, as JSON. Returns: whether it is one. The parser is used for JSON within it, so `root` is gone afterwards. */
bool kvr_engine_facts_sources(struct kvr_engine_facts *f, struct kvr_json root);
bool kvr_engine_facts_server_info(struct kvr_engine_facts *f, struct kvr_json_parser *p, struct kvr_json root);
bool kvr_engine_facts_models(struct kvr_engine_facts *f, struct kvr_json root);
/* The answer to a request that named a rank beyond all: text[len] is its body. Returns: whether it says which there are. */
bool kvr_engine_facts_rank_range(struct kvr_engine_facts *f, const char *text, size_t len);

/* Of one rank's cache, when all have answered; 0: not told. */
uint64_t kvr_engine_facts_blocks(const struct kvr_engine_facts *f);
/* The rank's entry, or NULL. */
const struct kvr_engine_rank *kvr_engine_facts_rank(const struct kvr_engine_facts *f, uint32_t rank);
/* Whether the ranks follow each other without a gap. */
bool kvr_engine_facts_contiguous(const struct kvr_engine_facts *f);
/* Does a request reach the rank it names (with ranks_n > 0)? *base: the rank that the engine counts from. */
bool kvr_engine_facts_takes_ranks(const struct kvr_engine_facts *f, uint32_t *base);
/* "2 data-parallel ranks, 0 to 1", with ranks_n > 0. */
void kvr_engine_facts_describe_ranks(const struct kvr_engine_facts *f, char *out, size_t cap);
/* Appends "vLLM, block size 32 (/metrics), 120 blocks (/metrics)" and its ranks, when there is more to say than "one". */
void kvr_engine_facts_describe(const struct kvr_engine_facts *f, struct kvr_buf *b);
/* What of it does not fit a block size, or ranks, that were given: as a line, into out[cap]. Returns: whether it differs. */
bool kvr_engine_facts_other_size(const struct kvr_engine_facts *f, uint32_t given, char *out, size_t cap);
bool kvr_engine_facts_other_ranks(const struct kvr_engine_facts *f, uint32_t dp_start, uint32_t dp_size, char *out, size_t cap);
/* Why nothing can be reused there, and what to do; NULL: nothing says so. Static. */
const char *kvr_engine_facts_no_cache(const struct kvr_engine_facts *f);
/* What it is started with so that its KV events can be followed. Static. */
const char *kvr_engine_facts_events_flag(const struct kvr_engine_facts *f);

#endif
