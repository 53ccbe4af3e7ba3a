/* SPDX-License-Identifier: Apache-2.0 */
/* `serve`, `epp` and `select`: one table of router options, and what each adds to it. */
#include <stddef.h>

#include "app/serve/serve.h"
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/log_options.h"
#include "cli/options.h"
#include "cli/plane_rows.h"
#include "cli/serve_cli.h"
#include "app/serve/config/policy_file.h"
#include "cli/tokenizer_rows.h"
#include "wire/handoff_protocol.h"

#define OPTIONS     struct serve_cli
#define FIELD(name) o.name
#include "cli/option_rows.h"

/* One that warns. */
#define OLD(old, of)                                                                                                                       \
    {                                                                                                                                      \
        .name = old, .type = OPT_STRING, .values = "deprecated", .alias_of = of                                                            \
    }
#define ANY 1e300

/* Each row: name, place, default, range or values, help, environment name of NVIDIA Dynamo's router that is accepted, too. */
#define START_ROWS                                                                                                                         \
    GROUP("start", "Start and end"), STR("config", config, NULL, "FILE", "YAML file of these options"),                                    \
        BOO("check", check, NULL, "say what is wrong with the options and the files that they name, and start nothing"),                   \
        STR("data-dir", data_dir, NULL, "DIR", "keep the views here, and go on from them after a restart"), MORE,                          \
        STR("handover", handover, NULL, "PATH", "socket file by which the next process takes the ports over (docs/guides/restart.md)"),    \
        DBL("lame-duck-time", lame_duck_time, "5", 0, 86400, "seconds after SIGTERM in which /ready says 503 and all else goes on"),       \
        DBL("drain-timeout", drain_timeout, "180", 0, 864000, "seconds for what is open after that; ports are free meanwhile"),            \
        DBL("watch-files", watch_files, "0", 0, 86400,                                                                                     \
            "seconds between looks at the files that SIGHUP reads; changed ones are read again (docs/guides/reload.md); 0 = off"),         \
        NUM("router-seed", seed, "0", 0, 1.8e19, "seed for ties and temperature; 0 = from the clock")

/* In the group of workers. */
#define WORKER_ROWS                                                                                                                        \
    ENU("discovery", discovery, "static", DISCOVERY_VALUES, "where workers are found beside those that are configured"),                   \
        STR("discovery-target", discovery_target, NULL, "FILE|NAME:PORT|_SERVICE._PROTO.NAME",                                             \
            "file: one --worker value a line; dns: whose addresses or SRV records"),                                                       \
        NUM("block-size", block_size, NULL, 1, 65536, "tokens per KV block; default: what each engine says of itself, else 16"), MORE,     \
        STR("model", model, NULL, "NAME", "model name of workers that have none of their own"),                                            \
        NUM("min-initial-workers", min_initial_workers, "0", 0, 1e6,                                                                       \
            "/ready waits for that many workers, and so do questions for one (/select), up to queue-timeout",                              \
            "DYN_ROUTER_MIN_INITIAL_WORKERS"),                                                                                             \
        ENU("discovery-scheme", discovery_scheme, "http", "http|https", "dns, kubernetes: how the workers are spoken to"),                 \
        PAI("discovery-worker", discovery_worker, NULL, "KEY=VALUE,...",                                                                   \
            "dns, kubernetes: further keys of each worker, with {host}, {port}, of kubernetes {pod}, {rank} and {5557+rank} filled in"),   \
        WOR("discovery-dns-server", discovery_dns_server, NULL, "ADDRESS:PORT[,...]",                                                      \
            "dns: ask these servers, in this order, not the system's"),                                                                    \
        DBL("discovery-interval", discovery_interval, "5", 0.1, 86400, "dns: seconds between two looks"),                                  \
        STR("kubernetes-pool", kubernetes_pool, NULL, "NAME", "kubernetes: the InferencePool whose pods are workers"),                     \
        WOR("kubernetes-selector", kubernetes_selector, NULL, "LABEL=VALUE[,...]", "kubernetes: in place of a pool: labels of pods"),      \
        WOR("kubernetes-ports", kubernetes_ports, NULL, "PORT[,...]", "kubernetes: in place of a pool: ports, each one a worker"),         \
        STR("kubernetes-namespace", kubernetes_namespace, NULL, "NAME", "kubernetes: of pods and pool; default: this pod's"),              \
        STR("kubernetes-peers", kubernetes_peers, NULL, "SERVICE",                                                                         \
            "kubernetes: routers behind this service are followed, at replica-sync-port"),                                                 \
        STR("kubernetes-api", kubernetes_api, NULL, "URL", "kubernetes: the API server; default: this pod's cluster"),                     \
        STR("kubernetes-token-file", kubernetes_token_file, NULL, "FILE",                                                                  \
            "kubernetes: the token for it, read again each minute; default: the service account's"),                                       \
        STR("kubernetes-ca", kubernetes_ca, NULL, "FILE",                                                                                  \
            "kubernetes: who has signed the API server's certificate; default: the service account's"),                                    \
        DBL("engine-metrics-interval", engine_metrics_interval, "2", 0.05, 3600, "seconds between two looks at a worker's metrics"),       \
        DBL("engine-load-max-age", engine_load_max_age, "10", 0.1, 86400, "seconds for which a load that an engine tells is used")

#define ROUTING_ROWS                                                                                                                       \
    GROUP("routing", "Choice of a worker"),                                                                                                \
        ENU("router-mode", mode, "kv", "kv|round-robin|random|least-loaded|direct", "how a worker is chosen", "DYN_ROUTER_MODE"),          \
        BOO("router-kv-events", kv_events, "true", "follow the engines' KV events; without: predict from own decisions",                   \
            "DYN_ROUTER_USE_KV_EVENTS"),                                                                                                   \
        ALIAS("kv-events", "router-kv-events"), MORE,                                                                                      \
        BOO("load-aware", load_aware, "false", "kv mode with credit 0, no events, active blocks and prefill tracked, no reuse",            \
            "DYN_ROUTER_LOAD_AWARE"),                                                                                                      \
        ENU("cost", cost, "auto", "auto|linear",                                                                                           \
            "what is made small: the delay that a choice adds, or blocks to compute and in use (Dynamo's)",                                \
            "DYN_ROUTER_SELECTION_POLICY"),                                                                                                \
        ALIAS("router-selection-policy", "cost"),                                                                                          \
        DBL("router-kv-overlap-score-credit", overlap_credit, "1", 0, ANY, "credit per cached prefix block; 0 = no index",                 \
            "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT"),                                                                                         \
        DBL("router-kv-overlap-score-credit-decay", credit_decay, "0", 0, ANY,                                                             \
            "cost linear: shrinks the credit of workers with more prefill than the least loaded",                                          \
            "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY"),                                                                                   \
        STR("router-kv-overlap-score-weight", overlap_weight_text, NULL, "WEIGHT",                                                         \
            "deprecated: router-prefill-load-scale; 0: router-kv-overlap-score-credit 0, too", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT"),      \
        OLD("kv-overlap-score-weight", "router-kv-overlap-score-weight"),                                                                  \
        DBL("router-prefill-load-scale", prefill_load_scale, "1", 0, ANY, "weight of the prefill term", "DYN_ROUTER_PREFILL_LOAD_SCALE"),  \
        DBL("router-decode-active-request-weight", request_weight, "0", 0, ANY, "cost linear: blocks added per active request",            \
            "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT"),                                                                                    \
        DBL("router-host-cache-hit-weight", host_weight, "0.75", 0, 1,                                                                     \
            "cost linear: credit per host-pinned block beyond the device prefix", "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT"),                     \
        DBL("router-disk-cache-hit-weight", disk_weight, "0.25", 0, 1,                                                                     \
            "cost linear: credit per disk or external block beyond the host prefix", "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT"),                  \
        DBL("shared-cache-multiplier", shared_multiplier, "0", 0, 1,                                                                       \
            "credit per block that a shared pool holds beyond the device prefix (shared_cache_ranges)", "DYN_SHARED_CACHE_MULTIPLIER"),    \
        ENU("shared-cache-type", shared_cache_type, "none", "none|hicache",                                                                \
            "only none: a request may say what a shared pool holds (shared_cache_ranges)", "DYN_SHARED_CACHE_TYPE"),                       \
        DBL("router-temperature", temperature, "0", 0, ANY, "0 = cheapest; else softmax over normalised costs", "DYN_ROUTER_TEMPERATURE"), \
        BOO("router-track-active-blocks", track_active_blocks, "true", "count the blocks of running requests",                             \
            "DYN_ROUTER_TRACK_ACTIVE_BLOCKS"),                                                                                             \
        ALIAS("track-active-blocks", "router-track-active-blocks"),                                                                        \
        BOO("router-track-output-blocks", track_output_blocks, "false", "count blocks filled by generation",                               \
            "DYN_ROUTER_TRACK_OUTPUT_BLOCKS"),                                                                                             \
        ALIAS("track-output-blocks", "router-track-output-blocks"),                                                                        \
        BOO("router-track-prefill-tokens", track_prefill_tokens, "true", "count prompt tokens still to be computed",                       \
            "DYN_ROUTER_TRACK_PREFILL_TOKENS"),                                                                                            \
        BOO("router-assume-kv-reuse", assume_kv_reuse, "true", "running requests with one prefix share its blocks",                        \
            "DYN_ROUTER_ASSUME_KV_REUSE"),                                                                                                 \
        ALIAS("router-with-cascade-attention", "router-assume-kv-reuse"), ALIAS("assume-kv-reuse", "router-assume-kv-reuse"),              \
        ENU("router-prefill-load-model", prefill_load_model, "none", "none|fitted",                                                        \
            "fitted: prefill load decays as observed first tokens predict", "DYN_ROUTER_PREFILL_LOAD_MODEL"),                              \
        DBL("active-decode-blocks-threshold", busy_decode_blocks, "-1", -1, 1,                                                             \
            "a rank with more than this share of total-kv-blocks in use is overloaded; -1 = off", "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD"),   \
        DBL("active-prefill-tokens-threshold", busy_prefill_tokens, "-1", -1, ANY,                                                         \
            "a rank with more prefill tokens is overloaded; -1 = off", "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD"),                             \
        DBL("active-prefill-tokens-threshold-frac", busy_prefill_frac, "-1", -1, ANY,                                                      \
            "the same as a share of max-num-batched-tokens; -1 = off", "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC")

#define QUEUE_ROWS                                                                                                                         \
    GROUP("queue", "Requests that wait"), MORE,                                                                                            \
        DBL("router-queue-threshold", queue_threshold, "-1", -1, ANY,                                                                      \
            "requests wait while every rank has more prefill tokens than this times max-num-batched-tokens; -1 = off",                     \
            "DYN_ROUTER_QUEUE_THRESHOLD"),                                                                                                 \
        NUM("router-queue-requests", queue_requests, "0", 0, 1e9,                                                                          \
            "requests wait while every rank has so many, or is busy by router-queue-threshold; 0 = off"),                                  \
        ENU("router-queue-policy", queue_policy, "fcfs", "fcfs|lcfs|wspt", "order of waiting requests", "DYN_ROUTER_QUEUE_POLICY"),        \
        DBL("router-queue-ageing-secs", queue_ageing, "0", 0, 31536000,                                                                    \
            "seconds after which a request goes first, whatever the order; 0 = off"),                                                      \
        STR("router-policy-config", policy_config, NULL, "FILE", "YAML file of queue classes", "DYN_ROUTER_POLICY_CONFIG"),                \
        DBL("queue-timeout", queue_timeout, "30", 0, TIMEOUT_MAX_S, "seconds to wait for a worker")

#define EVENT_ROWS                                                                                                                         \
    GROUP("events", "KV events and what is kept of them"), MORE,                                                                           \
        DBL("snapshot-interval", snapshot_interval, "30", 0.05, 86400, "with data-dir: seconds between snapshots of a view"),              \
        DBL("restore-timeout", restore_timeout, "10", 0.05, 86400, "seconds a replay may be silent before it has failed"),                 \
        SIZ("index-max-bytes", index_max_bytes, "0", "most memory of an index; least recently used blocks go; 0 = no limit"),              \
        NUM("indexer-shards", indexer_shards, "1", 1, 64, "parts of an index that are written without waiting for each other"),            \
        DBL("router-ttl-secs", ttl_secs, "120", 0, 31536000, "seconds that predicted blocks live without KV events",                       \
            "DYN_ROUTER_TTL_SECS"),                                                                                                        \
        DBL("router-predicted-ttl-secs", predicted_ttl_secs, "-1", -1, 31536000,                                                           \
            "with KV events: seconds that a decision counts as cached before its events come, such as 2 to 5; -1 = off",                   \
            "DYN_ROUTER_PREDICTED_TTL_SECS"),                                                                                              \
        NUM("router-max-tree-size", max_tree_size, "1048576", 1, 4e9, "predicted blocks that start pruning", "DYN_ROUTER_MAX_TREE_SIZE"),  \
        DBL("router-prune-target-ratio", prune_target_ratio, "0.8", 0.01, 1, "prune down to this share of the tree size",                  \
            "DYN_ROUTER_PRUNE_TARGET_RATIO"),                                                                                              \
        BOO("router-clear-worker-wide", clear_worker_wide, "false", "a cleared event clears every rank of its worker (older publishers)"), \
        NUM("router-event-threads", event_threads, "1", 1, 1024, "accepted and ignored", "DYN_ROUTER_EVENT_THREADS"),                      \
        STR("record-events", record_events, NULL, "FILE", "write every KV event to this file (JSON Lines)"),                               \
        NUM("record-max-lines", record_max_lines, "0", 0, 1e18, "events of one file, then FILE.1, FILE.2, ...; 0 = all in one"),           \
        NUM("record-max-count", record_max_count, "0", 0, 1e18, "the recording ends after that many events; 0 = no limit"),                \
        DBL("record-max-secs", record_max_secs, "0", 0, 31536000, "the recording ends after that many seconds; 0 = no limit"),             \
        PLANE_ROWS(AT(plane)),                                                                                                             \
        BOO("router-durable-kv-events", durable_events, "false", "another name for --event-plane jetstream",                               \
            "DYN_ROUTER_DURABLE_KV_EVENTS"),                                                                                               \
        NUM("router-snapshot-threshold", plane.snapshot_threshold, "1000000", 1, 1e18,                                                     \
            "jetstream: new messages in the stream that make a snapshot due", "DYN_ROUTER_SNAPSHOT_THRESHOLD"),                            \
        BOO("router-reset-states", plane.reset_states, "false", "jetstream: delete the stream and all snapshots at the start",             \
            "DYN_ROUTER_RESET_STATES"),                                                                                                    \
        STR("advertise-host", advertise_host, NULL, "HOST", "the name that others reach this machine by; default: its own")

#define REPLICA_ROWS                                                                                                                       \
    GROUP("routers", "Other routers and indexes"), MORE,                                                                                   \
        BOO("router-replica-sync", replica_sync, "false",                                                                                  \
            "share bookings and sessions with other routers, by replica-sync-port or replica-sync-transport", "DYN_ROUTER_REPLICA_SYNC"),  \
        NUM("replica-sync-port", replica_sync_port, "0", 0, 65535, "port (ZMQ) on which other routers hear what this one books; 0 = off"), \
        STR("replica-sync-host", replica_sync_bind, "127.0.0.1", "ADDRESS",                                                                \
            "address of that port; 0.0.0.0 = every one: in a trusted network, or with --zmq-curve-key"),                                   \
        ALIAS("replica-sync-bind", "replica-sync-host"),                                                                                   \
        ENU("replica-sync-transport", replica_sync_transport, "zmq", "zmq|nats",                                                           \
            "nats needs neither port nor peers: routers of one scope hear each other"),                                                    \
        WOR("replica-sync-peers", replica_sync_peers, NULL, "tcp://HOST:PORT,...", "the other routers' replica-sync ports")

#define SELECTION_ROWS                                                                                                                     \
    GROUP("selections", "Choices made over HTTP"), MORE,                                                                                   \
        DBL("selection-cache-ttl-secs", selection_ttl, "120", 0, 86400, "seconds for which what /select chose can be booked"),             \
        NUM("selection-cache-max-entries", selection_entries, "4096", 1, 1e7, "how many such choices are kept"),                           \
        SIZ("selection-cache-max-bytes", selection_bytes, "256MiB", "and in how many bytes"),                                              \
        DBL("router-active-request-expiry-secs", request_expiry, "300", 1, 31536000,                                                       \
            "seconds after which reservations over HTTP are dropped of which nothing is heard", "DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS")

/* Of fleets with prefill and decode workers. */
#define LEG_ROWS                                                                                                                           \
    GROUP("disagg", "Prefill and decode workers"), MORE,                                                                                   \
        ENU("kv-protocol", kv_protocol, "vllm-nixl", KVR_KV_PROTOCOL_VALUES,                                                               \
            "how prefill and decode workers hand a prompt over; none: by a store that they share"),                                        \
        BOO("enforce-disagg", enforce_disagg, "false", "decode workers get no request that was not prefilled elsewhere",                   \
            "DYN_ENFORCE_DISAGG"),                                                                                                         \
        ENU("prefill-router-mode", prefill_mode, "router-mode", "router-mode|kv|round-robin|random|least-loaded",                          \
            "how a prefill worker is chosen"),                                                                                             \
        ENU("decode-router-mode", decode_mode, "router-mode", "router-mode|kv|round-robin|random|least-loaded",                            \
            "how a decode worker is chosen"),                                                                                              \
        ENU("kv-transfer-domain", kv_transfer_domain, "preferred", "off|preferred|required",                                               \
            "whether a computed prompt stays in the kv-domain of its prefill worker"),                                                     \
        DBL("kv-transfer-weight", kv_transfer_weight, "0.85", 0, 1,                                                                        \
            "preferred: the cost of decode workers of that domain times exp(-tanh(weight))"),                                              \
        BOO("router-conditional-disagg", conditional_disagg, "false", "a rule says which requests go whole to one worker",                 \
            "DYN_ROUTER_CONDITIONAL_DISAGG"),                                                                                              \
        ENU("router-conditional-disagg-policy", conditional_policy, "isl_bounding", "isl_bounding|prefill_load|isl_or_load|least_delay",   \
            "the rule: little is to be computed, the prefill worker is busy, either, or it is faster",                                     \
            "DYN_ROUTER_CONDITIONAL_DISAGG_POLICY"),                                                                                       \
        NUM("router-conditional-disagg-eff-isl-threshold", conditional_isl, "2048", 0, 1e18,                                               \
            "little: fewer uncached prompt tokens than this", "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD"),                          \
        DBL("router-conditional-disagg-eff-isl-ratio-threshold", conditional_ratio, "0.7", 0, ANY, "and a smaller share of the prompt",    \
            "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD"),                                                                      \
        DBL("router-conditional-disagg-prefill-busy-threshold", conditional_prefill_busy, "-1", -1, ANY,                                   \
            "busy: more prefill tokens than this times max-num-batched-tokens; -1 = router-queue-threshold",                               \
            "DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD"),                                                                       \
        DBL("router-conditional-disagg-stall-weight", conditional_stall_weight, "4.5", 0, ANY,                                             \
            "least_delay: how much more a prompt token counts where others generate"),                                                     \
        DBL("router-conditional-disagg-decode-busy-threshold", conditional_decode_busy, "-1", -1, ANY,                                     \
            "none goes whole to a worker with more than this share of total-kv-blocks in use; -1 = off",                                   \
            "DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD"),                                                                        \
        NUM("disagg-min-uncached-tokens", min_uncached, "0", 0, 1e18, "requests with fewer uncached prompt tokens go whole; 0 = off")

/* In the group of TLS: what is shown to others, and asked of them. */
#define PEER_TLS_ROWS                                                                                                                      \
    STR("tls-ca", tls_ca, NULL, "FILE", "authorities (PEM) of workers, recover endpoints and remote indexers; default: the system's"),     \
        STR("outgoing-tls-cert", outgoing_tls_cert, NULL, "FILE", "the certificate (PEM) that this router shows to them"),                 \
        STR("outgoing-tls-key", outgoing_tls_key, NULL, "FILE", "its private key (PEM)")

#define LIMIT_ROWS                                                                                                                         \
    GROUP("limits", "Limits"), MORE, SIZ("max-body-size", max_body_size, "16MiB", "largest request body"),                                 \
        SIZ("max-bodies-bytes", max_bodies_bytes, "1GiB",                                                                                  \
            "memory for all request bodies; beyond: 503; 0 = no limit; the admin port of serve has a quarter of its own"),                 \
        DBL("client-write-timeout", client_write_timeout, "30", 0, 864000,                                                                 \
            "seconds a client may take nothing of its answer before it is cut off; 0 = off"),                                              \
        NUM("max-prompt-tokens", max_prompt_tokens, "2097152", 1, 1e9,                                                                     \
            "most tokens (or block hashes) of a prompt given as numbers; else 413")

static const struct option_row serve_rows[] = {
    START_ROWS,
    GROUP("workers", "Workers"),
    ROW("worker", OPT_ENTRIES, offsetof(struct serve_cli, workers), NULL, 0, 0, "URL[,key=value...]",
        "an engine, and what is known of it; keys: id, events, replay, recover, metrics, model, group, block-size, dp-start, dp-size, "
        "engine, "
        "role, kv-protocol, kv-lease, kv-domain, kv-pool, kv-offload-chunk, local-prefill, bootstrap, kv-addr, engine-id, tp, pp, "
        "decode-cache, api-key, api-key-env, api-key-file, tls-ca, tls-cert, tls-key, tls-server-name, tls-verify, max-num-batched-tokens, "
        "total-kv-blocks, taint, state; repeatable"),
    STR("models-file", models_file, NULL, "FILE", "YAML file of aliases, targets, fallbacks and options of models (docs/guides/models.md)"),
    WORKER_ROWS,
    BOO("ask-engines", ask_engines, "true", "ask each worker for what its entry does not give: block size, KV events endpoints, ranks"),
    DBL("health-interval", health_interval, "5", 0.05, 86400, "seconds between health checks"),
    DBL("health-timeout", health_timeout, "0", 0, 86400, "seconds that a health check may take; 0 = the interval, at least 1"),
    NUM("breaker-failures", breaker_failures, "10", 1, 1e9, "consecutive failures that open a worker's breaker"),
    DBL("breaker-cooldown", breaker_cooldown, "60", 0, 86400, "seconds a breaker stays open"),
    NUM("max-retries", max_retries, "2", 0, RETRIES_MAX, "retries on other workers before the first byte"),
    GROUP("ports", "Ports"),
    STR("host", host, "0.0.0.0", "ADDRESS", "address of the data port"),
    NUM("port", port, "8080", 0, 65535, "data port; 0 = a free one, which the first line tells"),
    STR("admin-host", admin_host, "127.0.0.1", "ADDRESS", "address of the admin port; 0.0.0.0 = every one: then give it keys"),
    NUM("admin-port", admin_port, "9090", 0, 65535, "admin port; 0 = a free one"),
    NUM("threads", threads, "1", 1, 64, "event loops for the data port, and for ext-proc-port"),
    NUM("ext-proc-port", ext_proc_port, "0", 0, 65535,
        "port, at the address of --host, on which gateways ask by external processing (docs/guides/gateway.md); 0 = off; epp: 9002"),
    MORE,
    NUM("ext-proc-health-port", ext_proc_health_port, "0", 0, 65535,
        "plain port of gRPC's health service, which the other has, too; 0 = off"),
    NUM("ext-proc-fallbacks", ext_proc_fallbacks, "0", 0, 7,
        "next best workers that a gateway is told behind the best one; with ORIGINAL_DST 0"),
    NUM("ext-proc-full-status", ext_proc_full_status, "429", 400, 599,
        "status with which a gateway refuses a request whose queue is full; the data port's is 529"),
    STR("pool", ext_proc_pool, NULL, "GROUP",
        "group (group=) of workers for gateways that name none (x-kvroute-group in the metadata of the call)"),
    PAI("objective", objectives, NULL, "NAME=PRIORITY,...",
        "strict priorities of inference objectives (x-gateway-inference-objective); requests of a negative one are refused where others "
        "wait"),
    ENU("ext-proc-watch", ext_proc_watch, "as-configured", "as-configured|auto",
        "auto: ask the gateway (allow_mode_override) for responses of paths that generate alone"),
    SIZ("ext-proc-memory", ext_proc_memory, "256MiB", "bytes of bodies that wait for a decision; beyond, gateways wait; 0 = no limit"),
    DBL("ext-proc-connection-age", ext_proc_connection_age, "600", 0, 864000,
        "seconds after which a gateway's connection is told to go; 0 = off"),
    DBL("ext-proc-unseen-secs", ext_proc_unseen_secs, "30", 0.001, 864000,
        "seconds that a request is taken to run whose end the gateway does not tell"),
    ROUTING_ROWS,
    DBL("router-session-affinity-ttl-secs", session_ttl, "0", 0, 31536000, "seconds that an idle x-session-id stays bound; 0 = off",
        "DYN_ROUTER_SESSION_AFFINITY_TTL_SECS"),
    GROUP("keys", "Who may ask"),
    STR("api-key-file", api_key_file, NULL, "FILE",
        "YAML file of API keys and their limits, which the data port then needs (docs/guides/keys.md)"),
    STR("admin-key-file", admin_key_file, NULL, "FILE",
        "keys, one a line: the admin port then needs Authorization: Bearer KEY, but for /health and /ready"),
    MORE,
    WOR("admin-allowed-hosts", admin_allowed_hosts, NULL, "NAME[,NAME...]",
        "further names in Host and Origin, beside addresses, loopback and this machine's name; .DOMAIN: all under it; *: all"),
    BOO("forward-client-key", forward_client_key, "false",
        "with --api-key-file: workers get the client's key, not their own (api-key=) or none"),
    WOR("pass-routes", pass_routes, NULL, "PATH[,PATH...]",
        "further paths that clients may reach (docs/reference/http.md); * at the end: all below"),
    WOR("cors-allow-origin", cors_allow_origin, NULL, "ORIGIN[,ORIGIN...]",
        "pages of these origins (https://ui.example; * = all) may use the data port"),
    BOO("cors-allow-credentials", cors_allow_credentials, "false",
        "also with cookies and TLS client certificates of the browser; not with *"),
    NUM("cors-max-age", cors_max_age, "600", 0, 86400, "seconds for which a browser need not ask again"),
    GROUP("tls", "TLS"),
    STR("tls-cert", tls_cert, NULL, "FILE", "the data port speaks HTTPS with this certificate chain (PEM)"),
    STR("tls-key", tls_key, NULL, "FILE", "its private key (PEM)"),
    MORE,
    STR("tls-client-ca", tls_client_ca, NULL, "FILE", "authorities (PEM): clients must have a certificate of one"),
    ENU("ext-proc-tls", ext_proc_tls, "auto", "off|auto",
        "auto: ext-proc-port speaks TLS; without --ext-proc-tls-cert a certificate is made at the start"),
    STR("ext-proc-tls-cert", ext_proc_tls_cert, NULL, "FILE", "its certificate chain (PEM)"),
    STR("ext-proc-tls-key", ext_proc_tls_key, NULL, "FILE", "its private key (PEM)"),
    STR("ext-proc-tls-client-ca", ext_proc_tls_client_ca, NULL, "FILE", "authorities (PEM): gateways must have a certificate of one"),
    STR("admin-tls-cert", admin_tls_cert, NULL, "FILE", "the admin port speaks HTTPS with this certificate chain (PEM)"),
    STR("admin-tls-key", admin_tls_key, NULL, "FILE", "its private key (PEM)"),
    STR("admin-tls-client-ca", admin_tls_client_ca, NULL, "FILE",
        "authorities (PEM): clients of the admin port must have a certificate of one"),
    PEER_TLS_ROWS,
    GROUP("log", "Logs, traces and metrics"),
    STR("access-log", access_log, NULL, "FILE", "one line for each request of the data port; - = standard output"),
    LOG_ROWS(AT(log)),
    MORE,
    ENU("access-log-format", access_log_format, "json", "json|combined",
        "JSON Lines, or Apache's combined format with key=value behind it"),
    DBL("access-log-sample", access_log_sample, "1", 0, 1, "share of the lines that are written; errors always are"),
    STR("otlp-endpoint", otlp_endpoint, NULL, "URL", "collector of traces (OTLP over HTTP, JSON), without /v1/traces: http://HOST:4318",
        "OTEL_EXPORTER_OTLP_ENDPOINT"),
    STR("otlp-service-name", otlp_service_name, "kvroute", "NAME", "service.name of the traces", "OTEL_SERVICE_NAME"),
    DBL("trace-sample", trace_sample, "0.01", 0, 1, "share of the traces that begin here to keep"),
    ENU("metrics-compat", metrics_compat, "none", "none|vllm|sglang",
        "/metrics has also the names of this engine's dashboards (docs/reference/metrics.md)"),
    QUEUE_ROWS,
    DBL("queue-keepalive", queue_keepalive, "5", 0, 86400,
        "seconds between comments to a waiting stream, whose status is 200 from the first on; 0 = off"),
    GROUP("timeouts", "Seconds for a request"),
    MORE,
    DBL("connect-timeout", connect_timeout, "2", 0, 86400, "seconds to connect to a worker"),
    DBL("first-token-timeout", first_token_timeout, "600", 0, TIMEOUT_MAX_S, "seconds to the first byte of an answer; 0 = off"),
    DBL("stall-timeout", stall_timeout, "120", 0, TIMEOUT_MAX_S, "seconds between bytes of an answer; 0 = off"),
    DBL("total-timeout", total_timeout, "0", 0, TIMEOUT_MAX_S, "seconds for a whole request; 0 = off"),
    DBL("tokenize-timeout", tokenize_timeout, "5", 0, 86400, "seconds for the engine's tokenizer"),
    LIMIT_ROWS,
    NUM("max-messages", max_messages, "16384", 1, 1e9, "most messages of a chat; else 413"),
    SIZ("max-prompt-text", max_prompt_text, "8MiB", "longest prompt text for byte tokens (--tokenizer bytes); else 413"),
    NUM("max-connections", max_connections, "16384", 1, 1e6, "client connections per loop, at most half of the descriptors"),
    NUM("max-connections-per-address", address_connections, "0", 0, 1e6,
        "client connections of one address (IPv6: one /64); more are closed; 0 = off"),
    EVENT_ROWS,
    GROUP("tokens", "Token ids of prompts"),
    MORE,
    ENU("tokenizer", tokenizer, "auto", "auto|local|engine|bytes",
        "where tokens come from; auto: made here where that is known to be right, else by an engine; without KV events bytes"),
    ROW("tokenizer-dir", OPT_LIST, offsetof(struct serve_cli, tokenizer_dirs), NULL, 0, 0, "[MODEL=]DIR",
        "the folder (tokenizer.json, chat template) of a model, or of all; default: the `root` of /v1/models; repeatable"),
    STR("tokenizer-lib", tokenizer_lib, NULL, "FILE",
        "libkvr_tokenizer.so; default: beside the program, in ../lib/kvroute, where it was installed"),
    STR("tokenizer-profile", tokenizer_profile, NULL, "JSON",
        "how the engines render chats: content_format, drop_none, alias_reasoning, developer_to_system, typed; default: found out"),
    NUM("tokenizer-probes", tokenizer_probes, "8", 0, 1e6, "requests of a model compared with an engine before tokens made here are used"),
    NUM("tokenizer-check", tokenizer_check, "1000", 0, 1e9, "one request in so many is compared later on; 0 = none"),
    SIZ("tokenizer-cache", tokenizer_cache, "64MiB", "tokens of parts of prompts kept for each model; 0 = none"),
    NUM("tokenizer-threads", tokenizer_threads, "2", 1, 64, "threads for long prompts"),
    BOO("forward-token-ids", forward_token_ids, "false",
        "workers get a completion's prompt as token ids, where that changes nothing in the answer"),
    LEG_ROWS,
    DBL("prefill-timeout", prefill_timeout, "0", 0, 864000, "seconds for the whole answer of a prefill worker; 0 = first-token-timeout"),
    DBL("handoff-timeout", handoff_timeout, "10", 0.001, 86400, "seconds in which a decode worker must be found, at most 0.7 of kv-lease"),
    DBL("kv-wait-timeout", kv_wait_timeout, "0", 0, 86400,
        "seconds from a computed prompt to the decode worker's first byte; 0 = first-token-timeout alone"),
    ENU("disagg-usage", disagg_usage, "merge", "merge|decode",
        "cached_tokens of usage: what the prefill worker had, or what the decode worker says"),
    BOO("disagg-release", disagg_release, "true", "a computed prompt without a client is given to a decode worker, to be freed"),
    DBL("disagg-release-timeout", disagg_release_timeout, "30", 0.1, 86400, "seconds for that"),
    REPLICA_ROWS,
    BOO("serve-indexer", serve_indexer, "false", "answer other routers from this one's index, on the admin port and over NATS",
        "DYN_ROUTER_SERVE_INDEXER"),
    WOR("use-remote-indexer", use_remote_indexer, NULL, "URL[,URL...]",
        "keep no index and ask a router that serves its own (http://HOST:ADMIN-PORT, nats://[NAMESPACE.COMPONENT]), or up to 16 indexers"),
    STR("remote-indexer-key-file", remote_key_file, NULL, "FILE", "its first key is sent to them"),
    DBL("remote-indexer-timeout", remote_timeout, "0.1", 0.001, 60, "seconds for its answer; then the request is routed by load"),
    SELECTION_ROWS,
};

static const struct option_row select_rows[] = {
    START_ROWS,
    GROUP("workers", "Workers"),
    WORKER_ROWS,
    GROUP("ports", "Ports"),
    STR("host", admin_host, "127.0.0.1", "ADDRESS", "address to listen on; 0.0.0.0 = every one: then give it keys"),
    NUM("port", admin_port, "8092", 0, 65535, "port to listen on; 0 = a free one, which the first line tells"),
    MORE,
    NUM("threads", threads, "4", 1, 64, "accepted and ignored"),
    ROUTING_ROWS,
    GROUP("keys", "Who may ask"),
    STR("api-key-file", admin_key_file, NULL, "FILE",
        "keys, one a line: every route but /health and /ready then needs Authorization: Bearer KEY"),
    ALIAS("admin-key-file", "api-key-file"),
    MORE,
    WOR("allowed-hosts", admin_allowed_hosts, NULL, "NAME[,NAME...]",
        "further names in Host and Origin, beside addresses, loopback and this machine's name; .DOMAIN: all under it; *: all"),
    ALIAS("admin-allowed-hosts", "allowed-hosts"),
    GROUP("tls", "TLS"),
    STR("tls-cert", admin_tls_cert, NULL, "FILE", "speak HTTPS with this certificate chain (PEM)"),
    STR("tls-key", admin_tls_key, NULL, "FILE", "its private key (PEM)"),
    MORE,
    STR("tls-client-ca", admin_tls_client_ca, NULL, "FILE", "authorities (PEM): clients must have a certificate of one"),
    PEER_TLS_ROWS,
    LOG_ROWS(AT(log)),
    QUEUE_ROWS,
    LIMIT_ROWS,
    EVENT_ROWS,
    TOKENIZER_ROWS(offsetof(struct serve_cli, tokenizer_dirs), AT(tokenizer_lib), AT(tokenizer_profile), AT(tokenizer_cache),
                   "questions then take `text` or `messages` in place of `token_ids`"),
    LEG_ROWS,
    REPLICA_ROWS,
    SELECTION_ROWS,
};

static int start(const char *command, struct serve_options *o)
{
    struct policy_file policies = {0};
    char err[512];
    if (o->policy_config && policy_file_read(&(struct kvr_yaml_source){.name = o->policy_config}, &policies, err, sizeof err)) {
        kvr_log_error("kvroute %s: router-policy-config: %s", command, err);
        return 2;
    }
    o->profiles = policies.profiles;
    o->profiles_n = policies.n;
    kvr_log_set_spoken(false);
    int rc = serve_main(o);
    policy_file_free(&policies);
    return rc;
}

enum { PICKER_PORT = 9002 /* where gateways look for one that does not say */ };

static int run(void *options, struct command_call *called)
{
    struct serve_cli *cli = options;
    struct serve_checker c = {.command = called->table->command, .options = called->table, .from = &called->from};
    struct kvr_buf told = {0};
    if (cli->o.picks_only && !cli->o.ext_proc_port) cli->o.ext_proc_port = PICKER_PORT;
    serve_cli_rules(cli, &c);
    serve_cli_effects(cli, &c);
    if (cli->o.check) serve_cli_check(cli, &c);
    options_told(called->table, cli, &called->from, &told);
    kvr_buf_add(&told, "", 1);
    cli->o.options_told = told.failed ? "[]" : told.data;
    int rc = cli->o.check ? command_printed(serve_checker_end(&c)) : c.wrong ? 2 : start(called->table->command, &cli->o);
    kvr_buf_free(&told);
    return rc;
}

static int run_epp(void *options, struct command_call *called)
{
    struct serve_cli *cli = options;
    cli->o.picks_only = true;
    return run(cli, called);
}

static int run_select(void *options, struct command_call *called)
{
    struct serve_cli *cli = options;
    cli->o.select_only = true;
    cli->o.health_interval = 5;
    return run(cli, called);
}

const struct command command_serve = {.table = {"serve", "OpenAI-compatible router in front of inference workers", help_serve, serve_rows,
                                                KVR_ARRAY_LEN(serve_rows), NULL, false},
                                      .options_size = sizeof(struct serve_cli),
                                      .run = run,
                                      .stays = true};
const struct command command_epp = {.table = {"epp", "endpoint picker: chooses workers for a gateway (Envoy, Kubernetes)", help_epp,
                                              serve_rows, KVR_ARRAY_LEN(serve_rows), NULL, false},
                                    .options_size = sizeof(struct serve_cli),
                                    .run = run_epp,
                                    .stays = true};
const struct command command_select = {.table = {"select", "selection service: choose and book workers over HTTP", help_select, select_rows,
                                                 KVR_ARRAY_LEN(select_rows), NULL, false},
                                       .options_size = sizeof(struct serve_cli),
                                       .run = run_select,
                                       .stays = true};
