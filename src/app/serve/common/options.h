/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `serve` and `select` as the command line gives them; every default is in cli/cmd_serve.c. */
#ifndef KVR_SERVE_OPTIONS_H
#define KVR_SERVE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <kvroute/queue.h>

#include "base/log.h"
#include "net/ingest/event_plane.h"
#include "wire/entry.h"

enum serve_tokenizer { TOKENIZER_AUTO, TOKENIZER_LOCAL, TOKENIZER_ENGINE, TOKENIZER_BYTES };

/* Of enum kvr_router_mode, as options and bodies name them. */
const char *router_mode_name(int mode);
int router_mode_of(const char *name, size_t len); /* -1: none is called so */

/* Queue classes for one model; model "" is the root profile. */
struct policy_profile {
    char model[128];
    struct kvr_policy policy;
};

enum { TIMEOUT_MAX_S = 864000, RETRIES_MAX = 7 };
enum { DOMAIN_OFF, DOMAIN_PREFERRED, DOMAIN_REQUIRED }; /* --kv-transfer-domain */
enum { DISAGG_USAGE_MERGE, DISAGG_USAGE_DECODE };
enum { DISCOVERY_STATIC, DISCOVERY_FILE, DISCOVERY_DNS, DISCOVERY_NATS, DISCOVERY_KUBERNETES };
#define DISCOVERY_VALUES "static|file|dns|nats|kubernetes" /* of --discovery, in that order */

struct serve_options {
    bool check;       /* --check: the command line's */
    bool picks_only;  /* `kvroute epp`: no data port; gateways ask at ext_proc_port */
    bool select_only; /* `kvroute select`: no data port; the admin port is the service */
    const struct policy_profile *profiles;
    size_t profiles_n;
    const char *options_told; /* which were said, and where, as JSON (cli/options.h) */
    char *config, *host, *admin_host, *model;
    char *admin_key_file, *admin_allowed_hosts;
    char *api_key_file; /* NULL: the data port is everybody's */
    bool forward_client_key;
    char *cors_allow_origin; /* NULL: no page of another origin may use the data port */
    bool cors_allow_credentials;
    uint64_t cors_max_age;
    uint64_t address_connections; /* 0: no limit */
    uint64_t queue_requests;      /* of a rank, that make it busy; 0: any number may run */
    int metrics_compat;           /* none|vllm|sglang */
    uint64_t port, admin_port, block_size, threads, max_retries, breaker_failures, max_body_size, max_prompt_tokens, max_messages,
        max_prompt_text, max_bodies_bytes, seed, index_max_bytes;
    uint64_t max_connections, max_tree_size;
    uint64_t ext_proc_port, ext_proc_health_port, ext_proc_memory, ext_proc_fallbacks, ext_proc_full_status; /* port 0: none */
    char *ext_proc_pool;                                                                                     /* a group; NULL: any */
    char *objectives;                 /* NAME=PRIORITY,...; NULL: none */
    int ext_proc_watch, ext_proc_tls; /* as-configured|auto, off|auto */
    char *ext_proc_tls_cert, *ext_proc_tls_key, *ext_proc_tls_client_ca;
    double ext_proc_connection_age, ext_proc_unseen_secs;
    int mode, tokenizer;                        /* enum kvr_router_mode, enum serve_tokenizer */
    int cost, queue_policy, prefill_load_model; /* enum kvr_cost_kind, enum kvr_queue_policy, none|fitted */
    double shared_multiplier, predicted_ttl_secs, queue_ageing, queue_keepalive;
    double busy_decode_blocks, busy_prefill_tokens, busy_prefill_frac, request_expiry;
    bool load_aware, ask_engines;
    double watch_files; /* seconds between looks at files that may have changed; 0: none */
    char *models_file, *policy_config, *overlap_weight_text, *replica_sync_peers, *replica_sync_bind;
    uint64_t replica_sync_port, min_initial_workers, selection_entries, selection_bytes;
    double selection_ttl;
    int shared_cache_type;             /* none|hicache */
    int replica_sync_transport;        /* zmq|nats */
    bool replica_sync, durable_events; /* checked by the command line */
    uint64_t event_threads;            /* ignored */
    char *record_events;
    char *data_dir; /* NULL: nothing is kept */
    char *handover; /* a path; NULL: none */
    char *pass_routes;
    double snapshot_interval;
    struct kvr_plane_options plane;
    int discovery;        /* DISCOVERY_VALUES */
    int discovery_scheme; /* http|https */
    char *discovery_target, *discovery_worker, *discovery_dns_server, *advertise_host;
    double discovery_interval;
    char *kubernetes_pool, *kubernetes_selector, *kubernetes_ports, *kubernetes_namespace, *kubernetes_peers;
    char *kubernetes_api, *kubernetes_token_file, *kubernetes_ca;
    double engine_metrics_interval, engine_load_max_age;
    bool serve_indexer;
    uint64_t indexer_shards;
    char *use_remote_indexer; /* http://host:port or nats://[namespace.component]; NULL: an index of our own */
    char *remote_key_file, *tls_ca, *outgoing_tls_cert, *outgoing_tls_key;
    char *tls_cert, *tls_key, *tls_client_ca, *admin_tls_cert, *admin_tls_key, *admin_tls_client_ca;
    double remote_timeout;
    uint64_t record_max_lines, record_max_count;
    double record_max_secs;
    double client_write_timeout, connect_timeout, first_token_timeout, stall_timeout, total_timeout, queue_timeout, tokenize_timeout,
        restore_timeout, lame_duck_time, drain_timeout, health_interval, health_timeout, breaker_cooldown, session_ttl;
    double overlap_credit, credit_decay, prefill_load_scale, request_weight, host_weight, disk_weight, temperature, ttl_secs,
        prune_target_ratio, queue_threshold;
    bool kv_events, assume_kv_reuse, track_active_blocks, track_output_blocks, track_prefill_tokens, clear_worker_wide;
    const struct kvr_entry *workers; /* --worker */
    size_t workers_n;
    char *const *tokenizer_dirs; /* --tokenizer-dir texts */
    size_t tokenizer_dirs_n;
    char *tokenizer_lib, *tokenizer_profile; /* NULL: found, looked for */
    bool forward_token_ids;
    int kv_protocol;  /* enum kvr_kv_protocol */
    int disagg_usage; /* merge|decode */
    bool enforce_disagg, disagg_release;
    double prefill_timeout, handoff_timeout, kv_wait_timeout, disagg_release_timeout;
    int kv_transfer_domain; /* off|preferred|required */
    double kv_transfer_weight;
    int prefill_mode, decode_mode; /* 0: as router-mode; else enum kvr_router_mode + 1 */
    bool conditional_disagg;
    int conditional_policy; /* enum kvr_disagg_policy - 1 */
    uint64_t conditional_isl, min_uncached;
    double conditional_ratio, conditional_prefill_busy, conditional_stall_weight, conditional_decode_busy;
    uint64_t tokenizer_probes, tokenizer_check, tokenizer_cache, tokenizer_threads;
    struct kvr_log_options log;
    char *access_log;      /* NULL: none; "-": standard output */
    int access_log_format; /* json|combined */
    double access_log_sample;
    char *otlp_endpoint, *otlp_service_name; /* endpoint NULL: no traces */
    double trace_sample;
};

/* What it is called: "serve", "kvroute serve", and so on. */
const char *serve_command(const struct serve_options *o);
const char *serve_program(const struct serve_options *o);

#endif
