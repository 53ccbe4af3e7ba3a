/* SPDX-License-Identifier: Apache-2.0 */
/* Mock engine server: vLLM's HTTP surface and KV event streams around the simulated engine. */
#ifndef KVR_APP_MOCK_H
#define KVR_APP_MOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"

struct mock_options {
    char *config, *host, *model, *kv_events, *kv_replay, *kv_topic, *lora;
    bool runtime_lora;
    char *tls_cert, *tls_key;                  /* NULL: plain HTTP */
    char *tokenizer_dir, *tokenizer_lib;       /* NULL: tokens are bytes; found */
    uint64_t host_kv_blocks, kv_offload_chunk; /* host_kv_blocks 0: no host tier */
    int kv_offload_events;                     /* enum mock_offload_form */
    double kv_load_ratio;
    uint64_t port, block_size, num_gpu_blocks, max_num_seqs, max_num_batched_tokens, dp_size, seed;
    uint64_t kv_buffer_steps; /* batches kept for replay */
    uint64_t max_model_len;   /* 0: what the cache holds */
    uint64_t default_max_tokens;
    double speedup_ratio;
    bool prefix_caching;
    bool prompt_tokens_details; /* cached_tokens in usage */
    bool responses_store;       /* previous_response_id is understood */
    uint64_t bos_token;         /* 0: none */
    uint64_t vocab_size;        /* 0: every id is a token */
    bool dev_mode;              /* /server_info and /reset_prefix_cache */
    bool scale_out;             /* /v1/completions/render, /v1/chat/completions/render */
    bool sglang_info;           /* what SGLang tells of itself, and no /version */
    bool tell_event_sources;    /* /kv_event_sources */
    bool tell_cache_config;     /* vllm:cache_config_info in /metrics */
    bool reset_at_once;         /* the event of a reset does not wait for the next pass */
    bool kv_event_arrays;       /* events as older engines write them */
    bool replay_topic;          /* replay answers carry a topic frame */
    /* KV transfers (app/mock/kv.h has the values of the first three) */
    int role, kv_protocol, kv_load_failure;
    uint64_t kv_side_port; /* 0: any free one; rank r: + r */
    double kv_lease, kv_heartbeat, bootstrap_timeout;
    uint64_t bootstrap_port;
    double kv_latency, kv_bandwidth; /* bytes per second; 0: no time */
    uint64_t kv_bytes_per_token;
    /* faults, for tests */
    uint64_t drop_events;                               /* drop every n-th batch (0: none); its sequence is used up */
    uint64_t fault_block_size;                          /* block size told in events */
    bool fault_omit_salt;                               /* events do not tell the cache salt */
    uint64_t fault_error_after;                         /* generations fail after n tokens */
    bool fault_hang;                                    /* accept requests and never answer */
    bool fault_bare_stream;                             /* stream headers, then silence */
    uint64_t fault_reset_after;                         /* cut streams after n tokens */
    uint64_t fault_prefill_status, fault_decode_status; /* of legs; 0: none */
    uint64_t kv_fail_every;                             /* 0: none */
    uint64_t fault_count;                               /* of the first so many; 0: of all */
    bool fault_no_handoff, fault_bad_handoff, fault_ignore_abort;
    int fault_die_after; /* enum mock_death */
    double fault_slow_prefill;
    double startup_time; /* /health answers 503 for that long */
    struct kvr_log_options log;
};

/* Runs until SIGTERM or SIGINT. Returns: the exit code. */
int mock_main(const struct mock_options *options);

#endif
