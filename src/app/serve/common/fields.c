/* SPDX-License-Identifier: Apache-2.0 */
/* What the members of bodies of the admin port may be, in words: the second half of every refusal. The bounds themselves are where
 * the members are read; this file is looked at only when one was wrong. */
#include "app/serve/common/fields.h"

#include <string.h>

#include "app/serve/common/limits.h"
#include "base/base.h"
#include "wire/handoff_protocol.h"

#define TLS_FILE "a PEM file that can be read (the log says more), at most 239 characters; only with an https:// endpoint"
#define U64      "a whole number from 0 to 18446744073709551615"
#define U32      "a whole number from 0 to 4294967295"

_Static_assert(DP_MAX == 64 && MODEL_MAX == 128 && TAINT_LIST_MAX == 16 && TAINTS_MAX == 16 && SHARED_RANGES_MAX == 64 && RANKS_MAX == 8192,
               "the texts below say so");

#define NAME   "a text of at most 127 bytes"
#define HASHES "an array of 64-bit integers, signed or not"
#define POINTS "an endpoint as seen from here, tcp://host:port (no '*'), or an object of rank: endpoint for ranks of the worker"

static const struct {
    const char *key, *allowed;
} rows[] = {
    {"active_decode_blocks_threshold", "a number from 0 to 1"},
    {"active_prefill_tokens_threshold", "a number of tokens, 0 or more"},
    {"active_prefill_tokens_threshold_frac", "a number, 0 or more"},
    {"allowed_worker_ids", "an array of at most 8192 worker ids"},
    {"api_key", "a text of 1 to 255 characters that can be seen"},
    {"assume_kv_reuse", "true or false"},
    {"backend_instance_id", U64},
    {"block_hashes", HASHES},
    {"block_size", "a whole number from 1 to 65536"},
    {"bootstrap", "a port or a text of host:port, of workers of other roles than decode"},
    {"cache_namespace", "a text of at most 255 bytes"},
    {"cache_salt", "a text of at most 255 bytes"},
    {"data_parallel_size", "a whole number from 1 to 64"},
    {"data_parallel_start_rank", "a whole number from 0 to 1048576"},
    {"decay_fraction", "a number from 0 to 1"},
    {"decode_cache", "true or false"},
    {"decode_worker_id", U64},
    {"dp_rank", U32},
    {"dp_size", "a whole number from 1 to 64"},
    {"dp_start", "a whole number from 0 to 1048576"},
    {"effective_prefill_tokens", "a whole number from 0 to the prompt's tokens (isl_tokens)"},
    {"endpoint", "a URL, as http://host:port"},
    {"engine", "one of vllm, sglang"},
    {"isl_tokens", "a whole number of tokens from 1 to 4294967295; it can be left out where token_ids or block_hashes say it"},
    {"kv_address", "a text of host:port; needed by prefill workers of vllm-nixl-push and by all of vllm-p2p"},
    {"kv_domain", "a text of at most 52 bytes"},
    {"kv_engine_id", "a text of at most 127 characters that can be seen; needed by prefill workers of vllm-nixl-push"},
    {"kv_events_endpoints", POINTS},
    {"kv_lease", "a whole number of seconds from 1 to 86400"},
    {"kv_offload_chunk", "a whole number of tokens from 1 to 1048576, a multiple of the block size"},
    {"kv_pool", "a text of at most 52 bytes"},
    {"kv_protocol", "one of " KVR_KV_PROTOCOL_NAMES},
    {"legs", "1, or 2 where two workers are asked for"},
    {"load_inplace", "true or false"},
    {"local_prefill", "true or false"},
    {"lora_name", NAME},
    {"lora_path", "a text of 1 to 4095 bytes: where the engines find the adapter"},
    {"max_num_batched_tokens", U64},
    {"metrics_endpoint", "a URL, as http://host:port/metrics, or null for none"},
    {"method", "one of new, mark_prefill, mark_free, potential_loads"},
    {"model", NAME},
    {"model_name", NAME},
    {"new_isl_tokens", U32},
    {"overlap_score_credit", "a number, 0 or more"},
    {"overlap_score_weight", "a number, 0 or more"},
    {"phase", "one of prefill, decode, aggregated; none of them where legs is 2"},
    {"pinned_worker", "an object with worker_id (" U64 ") and perhaps dp_rank (0 to 4294967295)"},
    {"pinned", "true or false"},
    {"policy_class", "a text of at most 63 bytes"},
    {"preferred_taints", "an object of at most 16 taints (1 to 63 bytes each) with a number for each"},
    {"prefill_load_scale", "a number, 0 or more"},
    {"pp_size", "a whole number from 1 to 65535"},
    {"prefill_dp_rank", U32},
    {"prefill_worker_id", U64},
    {"priority_jump", "a number from -1e9 to 1e9"},
    {"recover_endpoint", "a URL, as http://host:port, or null for none"},
    {"replay_endpoint", POINTS},
    {"replay_endpoints", POINTS},
    {"request_id", "a text of 1 to 200 bytes"},
    {"required_taints", "an array of at most 16 texts of 1 to 63 bytes"},
    {"role", "one of both, prefill, decode"},
    {"router_config_override", "an object of overlap_score_credit, prefill_load_scale, router_temperature, shared_cache_multiplier, "
                               "assume_kv_reuse, track_prefill_tokens"},
    {"router_temperature", "a number, 0 or more"},
    {"routing_constraints", "an object of required_taints, preferred_taints"},
    {"routing_group", NAME},
    {"selection_id", "a text of 1 to 200 bytes"},
    {"sequence_hashes", HASHES ", as many as block_hashes where these are given"},
    {"shared_cache_multiplier", "a number from 0 to 1"},
    {"shared_cache_ranges", "an array of at most 64 pairs [start, end] of blocks, from 0 to 4294967295, start not above end"},
    {"state", "one of active, draining"},
    {"force", "true or false"},
    {"strict_priority", U32},
    {"taints", "an array of at most 16 texts of 1 to 63 bytes"},
    {"timeout_secs", "a number of seconds from 0.1 to 3600"},
    {"tls_ca", TLS_FILE},
    {"tls_cert", TLS_FILE},
    {"tls_key", TLS_FILE},
    {"tls_server_name", "a text of 1 to 239 characters"},
    {"tls_verify", "true or false"},
    {"token_ids", "an array of token ids, whole numbers from 0 to 4294967295"},
    {"tokens", "an array of at least one token id, whole numbers from 0 to 4294967295"},
    {"total_kv_blocks", U64},
    {"tenant", "a text of at most 255 bytes"},
    {"tenant_weight", "a number from 0.001 to 1000"},
    {"tp_size", "a whole number from 1 to 65535"},
    {"track_prefill_tokens", "true or false"},
    {"worker_id", U64},
    {"x-request-id", "a header of at most 200 bytes"},
};

const char *const *fields_all(void)
{
    static const char *all[KVR_ARRAY_LEN(rows) + 1];
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) all[i] = rows[i].key; /* the same each time */
    return all;
}

void field_refusal(const char *field, char *out, size_t cap)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i].key, field)) continue;
        snprintf(out, cap, "field '%s' is missing or wrong; allowed: %s", field, rows[i].allowed);
        return;
    }
    snprintf(out, cap, "field '%.64s' is wrong, or not known here", field);
}
