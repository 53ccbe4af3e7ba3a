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

#define AT(field) offsetof(struct serve_cli, o.field)
#define NUM(name, field, initial, lo, hi, env, help)                                                                                       \
    {                                                                                                                                      \
        name, OPT_U64, AT(field), initial, lo, hi, NULL, help, NULL, env                                                                   \
    }
#define DBL(name, field, initial, lo, hi, env, help)                                                                                       \
    {                                                                                                                                      \
        name, OPT_DOUBLE, AT(field), initial, lo, hi, NULL, help, NULL, env                                                                \
    }
#define STR(name, field, initial, what, env, help)                                                                                         \
    {                                                                                                                                      \
        name, OPT_STRING, AT(field), initial, 0, 0, what, help, NULL, env                                                                  \
    }
/* Texts between commas / KEY=VALUE between commas. */
#define WOR(name, field, initial, what, env, help)                                                                                         \
    {                                                                                                                                      \
        name, OPT_WORDS, AT(field), initial, 0, 0, what, help, NULL, env                                                                   \
    }
#define PAI(name, field, initial, what, env, help)                                                                                         \
    {                                                                                                                                      \
        name, OPT_PAIRS, AT(field), initial, 0, 0, what, help, NULL, env                                                                   \
    }
#define SIZ(name, field, initial, env, help)                                                                                               \
    {                                                                                                                                      \
        name, OPT_SIZE, AT(field), initial, 0, 0, NULL, help, NULL, env                                                                    \
    }
#define BOO(name, field, initial, env, help)                                                                                               \
    {                                                                                                                                      \
        name, OPT_BOOL, AT(field), initial, 0, 0, NULL, help, NULL, env                                                                    \
    }
#define ENU(name, field, initial, values, env, help)                                                                                       \
    {                                                                                                                                      \
        name, OPT_ENUM, AT(field), initial, 0, 0, values, help, NULL, env                                                                  \
    }
/* One that warns. */
#define OLD(name, of)                                                                                                                      \
    {                                                                                                                                      \
        name, OPT_STRING, 0, NULL, 0, 0, "deprecated", NULL, of, NULL                                                                      \
    }
#define ANY 1e300

/* Each row: name, place, default, range or values, environment name of NVIDIA Dynamo's router that is accepted too, help. */
#define START_ROWS                                                                                                                         \
    GROUP("start", "Start and end"), STR("config", config, NULL, "FILE", NULL, "YAML file of these options"),                              \
        BOO("check", check, NULL, NULL,                                                                                                    \
            "say what is wrong with the options and the files that they name, and start nothing; kvroute check has more of it"),           \
        STR("data-dir", data_dir, NULL, "DIR", NULL,                                                                                       \
            "keep the views here, each batch of events as it comes, and go on from them after a restart, a kill too"),                     \
        MORE,                                                                                                                              \
        STR("handover", handover, NULL, "PATH", NULL,                                                                                      \
            "a socket file at which the next process with the same option takes the ports over, once it is ready "                         \
            "(docs/guides/restart.md)"),                                                                                                   \
        DBL("lame-duck-time", lame_duck_time, "5", 0, 86400, NULL,                                                                         \
            "seconds after SIGTERM in which /ready says 503 and requests are served as before, so that balancers turn elsewhere"),         \
        DBL("drain-timeout", drain_timeout, "180", 0, 864000, NULL, "seconds for what is open after that; the ports are free meanwhile"),  \
        DBL("watch-files", watch_files, "0", 0, 86400, NULL,                                                                               \
            "seconds between looks at the files that SIGHUP reads; those that have changed are read again (docs/guides/reload.md); 0 = "   \
            "off"),                                                                                                                        \
        NUM("router-seed", seed, "0", 0, 1.8e19, NULL, "seed for ties and temperature; 0 = from the clock")

/* In the group of workers. */
#define WORKER_ROWS                                                                                                                        \
    ENU("discovery", discovery, "static", DISCOVERY_VALUES, NULL, "where workers are found, beside those that are configured"),            \
        STR("discovery-target", discovery_target, NULL, "FILE|NAME:PORT|_SERVICE._PROTO.NAME", NULL,                                       \
            "file: one --worker value a line; dns: whose addresses or SRV records"),                                                       \
        NUM("block-size", block_size, NULL, 1, 65536, NULL,                                                                                \
            "tokens per KV block, as the engines have it; without: what each engine says of itself, 16 when it does not"),                 \
        MORE, STR("model", model, NULL, "NAME", NULL, "model name of workers that have none of their own"),                                \
        NUM("min-initial-workers", min_initial_workers, "0", 0, 1e6, "DYN_ROUTER_MIN_INITIAL_WORKERS",                                     \
            "/ready waits for that many workers, and so do questions for one (/select and the like), up to queue-timeout, until they "     \
            "have come"),                                                                                                                  \
        ENU("discovery-scheme", discovery_scheme, "http", "http|https", NULL, "dns, kubernetes: how the workers are spoken to"),           \
        PAI("discovery-worker", discovery_worker, NULL, "KEY=VALUE,...", NULL,                                                             \
            "dns, kubernetes: further keys of each worker; {host} and {port} stand for its own, with kubernetes {pod} and {rank}, too, "   \
            "the place of its port, and {5557+rank} for a sum"),                                                                           \
        WOR("discovery-dns-server", discovery_dns_server, NULL, "ADDRESS:PORT[,...]", NULL,                                                \
            "dns: ask these servers, not the system's; the next one when one does not answer"),                                            \
        DBL("discovery-interval", discovery_interval, "5", 0.1, 86400, NULL, "dns: seconds between two looks"),                            \
        STR("kubernetes-pool", kubernetes_pool, NULL, "NAME", NULL,                                                                        \
            "kubernetes: the InferencePool whose selector and targetPorts say which pods are workers, and at which ports"),                \
        WOR("kubernetes-selector", kubernetes_selector, NULL, "LABEL=VALUE[,...]", NULL,                                                   \
            "kubernetes: in place of a pool: labels of pods"),                                                                             \
        WOR("kubernetes-ports", kubernetes_ports, NULL, "PORT[,...]", NULL, "kubernetes: in place of a pool: ports, each one a worker"),   \
        STR("kubernetes-namespace", kubernetes_namespace, NULL, "NAME", NULL, "kubernetes: of pods and pool; without: that of this pod"),  \
        STR("kubernetes-peers", kubernetes_peers, NULL, "SERVICE", NULL,                                                                   \
            "kubernetes: routers behind this service are followed, at replica-sync-port"),                                                 \
        STR("kubernetes-api", kubernetes_api, NULL, "URL", NULL, "kubernetes: the API server; without: the one of this pod's cluster"),    \
        STR("kubernetes-token-file", kubernetes_token_file, NULL, "FILE", NULL,                                                            \
            "kubernetes: the token for it, read again each minute; without: that of the service account"),                                 \
        STR("kubernetes-ca", kubernetes_ca, NULL, "FILE", NULL,                                                                            \
            "kubernetes: who has signed the API server's certificate; without: as the service account says"),                              \
        DBL("engine-metrics-interval", engine_metrics_interval, "2", 0.05, 3600, NULL, "seconds between two looks at a worker's metrics"), \
        DBL("engine-load-max-age", engine_load_max_age, "10", 0.1, 86400, NULL,                                                            \
            "what an engine says of its load is not used any more when it is so many seconds old")

#define ROUTING_ROWS                                                                                                                       \
    GROUP("routing", "Choice of a worker"),                                                                                                \
        ENU("router-mode", mode, "kv", "kv|round-robin|random|least-loaded|direct", "DYN_ROUTER_MODE", "how a worker is chosen"),          \
        BOO("router-kv-events", kv_events, "true", "DYN_ROUTER_USE_KV_EVENTS",                                                             \
            "follow the engines' KV events; without: predict from own decisions"),                                                         \
        ALIAS("kv-events", "router-kv-events"), MORE,                                                                                      \
        BOO("load-aware", load_aware, "false", "DYN_ROUTER_LOAD_AWARE",                                                                    \
            "balance tokens and blocks, nothing else: kv mode with credit 0, no events, active blocks and prefill tracked, no reuse"),     \
        ENU("cost", cost, "auto", "auto|linear", "DYN_ROUTER_SELECTION_POLICY",                                                            \
            "what is made small: the delay that a choice adds to everybody; or blocks to compute and in use (Dynamo's)"),                  \
        ALIAS("router-selection-policy", "cost"),                                                                                          \
        DBL("router-kv-overlap-score-credit", overlap_credit, "1", 0, ANY, "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",                           \
            "credit per cached prefix block; 0 = no index"),                                                                               \
        DBL("router-kv-overlap-score-credit-decay", credit_decay, "0", 0, ANY, "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",                 \
            "cost linear: shrinks the credit of workers with more prefill than the least loaded"),                                         \
        STR("router-kv-overlap-score-weight", overlap_weight_text, NULL, "WEIGHT", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT",                   \
            "deprecated: sets router-prefill-load-scale; 0 also sets router-kv-overlap-score-credit to 0"),                                \
        OLD("kv-overlap-score-weight", "router-kv-overlap-score-weight"),                                                                  \
        DBL("router-prefill-load-scale", prefill_load_scale, "1", 0, ANY, "DYN_ROUTER_PREFILL_LOAD_SCALE", "weight of the prefill term"),  \
        DBL("router-decode-active-request-weight", request_weight, "0", 0, ANY, "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",                 \
            "cost linear: blocks added per active request"),                                                                               \
        DBL("router-host-cache-hit-weight", host_weight, "0.75", 0, 1, "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT",                                 \
            "cost linear: credit per host-pinned block beyond the device prefix"),                                                         \
        DBL("router-disk-cache-hit-weight", disk_weight, "0.25", 0, 1, "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT",                                 \
            "cost linear: credit per disk or external block beyond the host prefix"),                                                      \
        DBL("shared-cache-multiplier", shared_multiplier, "0", 0, 1, "DYN_SHARED_CACHE_MULTIPLIER",                                        \
            "credit per block that a shared pool holds beyond the device prefix, when the request says which (shared_cache_ranges)"),      \
        ENU("shared-cache-type", shared_cache_type, "none", "none|hicache", "DYN_SHARED_CACHE_TYPE",                                       \
            "only none: no shared pool is asked; a request may say what one holds (shared_cache_ranges)"),                                 \
        DBL("router-temperature", temperature, "0", 0, ANY, "DYN_ROUTER_TEMPERATURE", "0 = cheapest; else softmax over normalised costs"), \
        BOO("router-track-active-blocks", track_active_blocks, "true", "DYN_ROUTER_TRACK_ACTIVE_BLOCKS",                                   \
            "count the blocks of running requests"),                                                                                       \
        ALIAS("track-active-blocks", "router-track-active-blocks"),                                                                        \
        BOO("router-track-output-blocks", track_output_blocks, "false", "DYN_ROUTER_TRACK_OUTPUT_BLOCKS",                                  \
            "count blocks filled by generation"),                                                                                          \
        ALIAS("track-output-blocks", "router-track-output-blocks"),                                                                        \
        BOO("router-track-prefill-tokens", track_prefill_tokens, "true", "DYN_ROUTER_TRACK_PREFILL_TOKENS",                                \
            "count prompt tokens still to be computed"),                                                                                   \
        BOO("router-assume-kv-reuse", assume_kv_reuse, "true", "DYN_ROUTER_ASSUME_KV_REUSE",                                               \
            "running requests with one prefix share its blocks"),                                                                          \
        ALIAS("router-with-cascade-attention", "router-assume-kv-reuse"), ALIAS("assume-kv-reuse", "router-assume-kv-reuse"),              \
        ENU("router-prefill-load-model", prefill_load_model, "none", "none|fitted", "DYN_ROUTER_PREFILL_LOAD_MODEL",                       \
            "fitted: prefill load decays over the duration that observed first tokens predict"),                                           \
        DBL("active-decode-blocks-threshold", busy_decode_blocks, "-1", -1, 1, "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD",                       \
            "a rank with more than this share of total-kv-blocks in use is overloaded; -1 = off"),                                         \
        DBL("active-prefill-tokens-threshold", busy_prefill_tokens, "-1", -1, ANY, "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",                  \
            "a rank with more prefill tokens is overloaded; -1 = off"),                                                                    \
        DBL("active-prefill-tokens-threshold-frac", busy_prefill_frac, "-1", -1, ANY, "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",          \
            "the same as a share of max-num-batched-tokens; -1 = off")

#define QUEUE_ROWS                                                                                                                         \
    GROUP("queue", "Requests that wait"), MORE,                                                                                            \
        DBL("router-queue-threshold", queue_threshold, "-1", -1, ANY, "DYN_ROUTER_QUEUE_THRESHOLD",                                        \
            "requests wait while every rank has more prefill tokens than this times max-num-batched-tokens; -1 = off"),                    \
        NUM("router-queue-requests", queue_requests, "0", 0, 1e9, NULL,                                                                    \
            "requests wait while every rank has so many under way, or is busy by router-queue-threshold; 0 = off"),                        \
        ENU("router-queue-policy", queue_policy, "fcfs", "fcfs|lcfs|wspt", "DYN_ROUTER_QUEUE_POLICY", "order of waiting requests"),        \
        DBL("router-queue-ageing-secs", queue_ageing, "0", 0, 31536000, NULL,                                                              \
            "what has waited this long goes first, whatever the order (bounds the starvation of wspt); 0 = off"),                          \
        STR("router-policy-config", policy_config, NULL, "FILE", "DYN_ROUTER_POLICY_CONFIG", "YAML file of queue classes"),                \
        DBL("queue-timeout", queue_timeout, "30", 0, TIMEOUT_MAX_S, NULL, "seconds to wait for a worker")

#define EVENT_ROWS                                                                                                                         \
    GROUP("events", "KV events and what is kept of them"), MORE,                                                                           \
        DBL("snapshot-interval", snapshot_interval, "30", 0.05, 86400, NULL,                                                               \
            "with data-dir: seconds between snapshots of a view; in between batches are written to a journal"),                            \
        DBL("restore-timeout", restore_timeout, "10", 0.05, 86400, NULL,                                                                   \
            "seconds a replay may be silent before a view is declared untrusted"),                                                         \
        SIZ("index-max-bytes", index_max_bytes, "0", NULL,                                                                                 \
            "cap on an index's memory, kept by giving up what is least recently used; 0 = none"),                                          \
        NUM("indexer-shards", indexer_shards, "1", 1, 64, NULL,                                                                            \
            "parts of an index that are written without waiting for each other; a rank is assigned to the emptiest at first sight"),       \
        DBL("router-ttl-secs", ttl_secs, "120", 0, 31536000, "DYN_ROUTER_TTL_SECS", "life of predicted blocks without KV events"),         \
        DBL("router-predicted-ttl-secs", predicted_ttl_secs, "-1", -1, 31536000, "DYN_ROUTER_PREDICTED_TTL_SECS",                          \
            "with KV events: a decision counts as cached for this long, before its events come; 2 to 5 is typical; -1 = off"),             \
        NUM("router-max-tree-size", max_tree_size, "1048576", 1, 4e9, "DYN_ROUTER_MAX_TREE_SIZE", "predicted blocks that start pruning"),  \
        DBL("router-prune-target-ratio", prune_target_ratio, "0.8", 0.01, 1, "DYN_ROUTER_PRUNE_TARGET_RATIO",                              \
            "prune down to this share of the tree size"),                                                                                  \
        BOO("router-clear-worker-wide", clear_worker_wide, "false", NULL,                                                                  \
            "a cleared event clears every rank of its worker (older publishers)"),                                                         \
        NUM("router-event-threads", event_threads, "1", 1, 1024, "DYN_ROUTER_EVENT_THREADS",                                               \
            "accepted and ignored: one thread follows all events"),                                                                        \
        STR("record-events", record_events, NULL, "FILE", NULL, "write every KV event to this file (JSON Lines)"),                         \
        NUM("record-max-lines", record_max_lines, "0", 0, 1e18, NULL, "events of one file, then FILE.1, FILE.2, ...; 0 = all in one"),     \
        NUM("record-max-count", record_max_count, "0", 0, 1e18, NULL, "the recording ends after that many events; 0 = no limit"),          \
        DBL("record-max-secs", record_max_secs, "0", 0, 31536000, NULL, "the recording ends after that many seconds; 0 = no limit"),       \
        PLANE_ROWS(AT(plane)),                                                                                                             \
        BOO("router-durable-kv-events", durable_events, "false", "DYN_ROUTER_DURABLE_KV_EVENTS",                                           \
            "another name for --event-plane jetstream"),                                                                                   \
        NUM("router-snapshot-threshold", plane.snapshot_threshold, "1000000", 1, 1e18, "DYN_ROUTER_SNAPSHOT_THRESHOLD",                    \
            "jetstream: new messages in the stream that make a snapshot due"),                                                             \
        BOO("router-reset-states", plane.reset_states, "false", "DYN_ROUTER_RESET_STATES",                                                 \
            "jetstream: throw the stream and all snapshots away at the start"),                                                            \
        STR("advertise-host", advertise_host, NULL, "HOST", NULL, "nats: the name others reach this machine by; default: its own")

#define REPLICA_ROWS                                                                                                                       \
    GROUP("routers", "Other routers and indexes"), MORE,                                                                                   \
        BOO("router-replica-sync", replica_sync, "false", "DYN_ROUTER_REPLICA_SYNC",                                                       \
            "share bookings and sessions with other routers; needs replica-sync-port, or replica-sync-transport nats"),                    \
        NUM("replica-sync-port", replica_sync_port, "0", 0, 65535, NULL,                                                                   \
            "port (ZMQ) on which other routers of the fleet hear what this one books; 0 = off"),                                           \
        STR("replica-sync-host", replica_sync_bind, "127.0.0.1", "ADDRESS", NULL,                                                          \
            "address of that port; 0.0.0.0 for every one, which only a trusted network should reach, or with --zmq-curve-key"),            \
        ALIAS("replica-sync-bind", "replica-sync-host"),                                                                                   \
        ENU("replica-sync-transport", replica_sync_transport, "zmq", "zmq|nats", NULL,                                                     \
            "with router-replica-sync: nats needs neither port nor peers, routers of one scope hear each other"),                          \
        WOR("replica-sync-peers", replica_sync_peers, NULL, "tcp://HOST:PORT,...", NULL, "the other routers' replica-sync ports")

#define SELECTION_ROWS                                                                                                                     \
    GROUP("selections", "Choices made over HTTP"), MORE,                                                                                   \
        DBL("selection-cache-ttl-secs", selection_ttl, "120", 0, 86400, NULL, "how long what /select chose can be booked"),                \
        NUM("selection-cache-max-entries", selection_entries, "4096", 1, 1e7, NULL, "how many such choices are kept"),                     \
        SIZ("selection-cache-max-bytes", selection_bytes, "256MiB", NULL, "and in how many bytes"),                                        \
        DBL("router-active-request-expiry-secs", request_expiry, "300", 1, 31536000, "DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS",              \
            "reservations made over HTTP of which nothing is heard for this long are dropped")

/* Of fleets with prefill and decode workers. */
#define LEG_ROWS                                                                                                                           \
    GROUP("disagg", "Prefill and decode workers"), MORE,                                                                                   \
        ENU("kv-protocol", kv_protocol, "vllm-nixl", KVR_KV_PROTOCOL_VALUES, NULL,                                                         \
            "how prefill and decode workers (role=) hand a computed prompt over; none: they share a store that finds it by the prompt"),   \
        BOO("enforce-disagg", enforce_disagg, "false", "DYN_ENFORCE_DISAGG",                                                               \
            "decode workers get no request that was not prefilled elsewhere, also when no prefill worker is up"),                          \
        ENU("prefill-router-mode", prefill_mode, "router-mode", "router-mode|kv|round-robin|random|least-loaded", NULL,                    \
            "how a prefill worker is chosen"),                                                                                             \
        ENU("decode-router-mode", decode_mode, "router-mode", "router-mode|kv|round-robin|random|least-loaded", NULL,                      \
            "how a decode worker is chosen for a prompt that another worker has computed"),                                                \
        ENU("kv-transfer-domain", kv_transfer_domain, "preferred", "off|preferred|required", NULL,                                         \
            "whether a computed prompt stays in the kv-domain of its prefill worker"),                                                     \
        DBL("kv-transfer-weight", kv_transfer_weight, "0.85", 0, 1, NULL,                                                                  \
            "preferred: the cost of decode workers of that domain is multiplied by exp(-tanh(weight))"),                                   \
        BOO("router-conditional-disagg", conditional_disagg, "false", "DYN_ROUTER_CONDITIONAL_DISAGG",                                     \
            "a rule says which requests go whole to one worker, although a prefill worker and a decode worker are up"),                    \
        ENU("router-conditional-disagg-policy", conditional_policy, "isl_bounding", "isl_bounding|prefill_load|isl_or_load|least_delay",   \
            "DYN_ROUTER_CONDITIONAL_DISAGG_POLICY",                                                                                        \
            "the rule: little is to be computed, the prefill worker is busy, either, or it is faster"),                                    \
        NUM("router-conditional-disagg-eff-isl-threshold", conditional_isl, "2048", 0, 1e18,                                               \
            "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD", "little: fewer uncached prompt tokens than this"),                          \
        DBL("router-conditional-disagg-eff-isl-ratio-threshold", conditional_ratio, "0.7", 0, ANY,                                         \
            "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD", "and a smaller share of the prompt"),                                 \
        DBL("router-conditional-disagg-prefill-busy-threshold", conditional_prefill_busy, "-1", -1, ANY,                                   \
            "DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD",                                                                        \
            "busy: more prefill tokens than this times max-num-batched-tokens; -1 = router-queue-threshold"),                              \
        DBL("router-conditional-disagg-stall-weight", conditional_stall_weight, "4.5", 0, ANY, NULL,                                       \
            "least_delay: how many times a prompt token counts that is computed where others generate"),                                   \
        DBL("router-conditional-disagg-decode-busy-threshold", conditional_decode_busy, "-1", -1, ANY,                                     \
            "DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD",                                                                         \
            "no request goes whole to a worker with more than this share of total-kv-blocks in use; -1 = off"),                            \
        NUM("disagg-min-uncached-tokens", min_uncached, "0", 0, 1e18, NULL,                                                                \
            "a request of which a worker lacks fewer prompt tokens goes there whole, whatever the rule; 0 = off")

/* In the group of TLS: what is shown to others, and asked of them. */
#define PEER_TLS_ROWS                                                                                                                      \
    STR("tls-ca", tls_ca, NULL, "FILE", NULL,                                                                                              \
        "certificates (PEM) that sign those of https workers, recover endpoints and remote indexers; default: the system's"),              \
        STR("outgoing-tls-cert", outgoing_tls_cert, NULL, "FILE", NULL, "the certificate (PEM) that this router shows to them"),           \
        STR("outgoing-tls-key", outgoing_tls_key, NULL, "FILE", NULL, "its private key (PEM)")

#define LIMIT_ROWS                                                                                                                         \
    GROUP("limits", "Limits"), MORE, SIZ("max-body-size", max_body_size, "16MiB", NULL, "largest request body"),                           \
        SIZ("max-bodies-bytes", max_bodies_bytes, "1GiB", NULL,                                                                            \
            "memory for all request bodies together, unfinished ones too; beyond: 503; 0 = no limit; serve: the admin port has a quarter " \
            "of it for itself"),                                                                                                           \
        DBL("client-write-timeout", client_write_timeout, "30", 0, 864000, NULL,                                                           \
            "seconds a client may take nothing of what is queued for it before it is cut off; 0 = off"),                                   \
        NUM("max-prompt-tokens", max_prompt_tokens, "2097152", 1, 1e9, NULL,                                                               \
            "most tokens (or block hashes) of a prompt that are given as numbers; more are refused with 413")

static const struct option_row serve_rows[] = {
    START_ROWS,
    GROUP("workers", "Workers"),
    {"worker", OPT_ENTRIES, offsetof(struct serve_cli, workers), NULL, 0, 0, "URL[,key=value...]",
     "an engine, and what is known of it; keys: id, events, replay, recover, metrics, model, group, block-size, dp-start, dp-size, engine, "
     "role, kv-protocol, kv-lease, kv-domain, kv-pool, kv-offload-chunk, local-prefill, bootstrap, kv-addr, engine-id, tp, pp, "
     "decode-cache, api-key, api-key-env, api-key-file, tls-ca, tls-cert, tls-key, tls-server-name, tls-verify, max-num-batched-tokens, "
     "total-kv-blocks, taint, state; repeatable",
     NULL, NULL},
    STR("models-file", models_file, NULL, "FILE", NULL,
        "YAML file of aliases, targets with weights, fallbacks and options of models (docs/guides/models.md)"),
    WORKER_ROWS,
    BOO("ask-engines", ask_engines, "true", NULL,
        "ask each worker for its block size, KV events endpoints and ranks; what its entry does not give is taken from there"),
    DBL("health-interval", health_interval, "5", 0.05, 86400, NULL, "seconds between health checks"),
    DBL("health-timeout", health_timeout, "0", 0, 86400, NULL, "seconds that a health check may take (0: the interval, at least 1)"),
    NUM("breaker-failures", breaker_failures, "10", 1, 1e9, NULL, "consecutive failures that open a worker's breaker"),
    DBL("breaker-cooldown", breaker_cooldown, "60", 0, 86400, NULL, "seconds a breaker stays open"),
    NUM("max-retries", max_retries, "2", 0, RETRIES_MAX, NULL, "retries on other workers before the first byte"),
    GROUP("ports", "Ports"),
    STR("host", host, "0.0.0.0", "ADDRESS", NULL, "address of the data port"),
    NUM("port", port, "8080", 0, 65535, NULL, "data port; 0: a free one, which the first line tells"),
    STR("admin-host", admin_host, "127.0.0.1", "ADDRESS", NULL, "address of the admin port; 0.0.0.0 for every one: then give it keys"),
    NUM("admin-port", admin_port, "9090", 0, 65535, NULL, "admin port; 0: a free one, which the first line tells"),
    NUM("threads", threads, "1", 1, 64, NULL, "event loops for the data port, and for ext-proc-port"),
    NUM("ext-proc-port", ext_proc_port, "0", 0, 65535, NULL,
        "port, at the address of --host, on which a gateway (Envoy) asks by external processing which worker a request goes to, and "
        "carries it "
        "there itself (docs/guides/gateway.md); 0 = off; epp: 9002"),
    MORE,
    NUM("ext-proc-health-port", ext_proc_health_port, "0", 0, 65535, NULL,
        "a plain port of gRPC's health service beside it, which has that too; 0 = off"),
    NUM("ext-proc-fallbacks", ext_proc_fallbacks, "0", 0, 7, NULL,
        "how many of the next best workers a gateway is told behind the best one; those that take one address alone (ORIGINAL_DST) need 0"),
    NUM("ext-proc-full-status", ext_proc_full_status, "429", 400, 599, NULL,
        "status with which a gateway refuses a request whose queue is full; the data port's is 529"),
    STR("pool", ext_proc_pool, NULL, "GROUP", NULL,
        "the group (group=) of workers among which gateways choose that name none themselves (x-kvroute-group in the metadata of the "
        "call)"),
    PAI("objective", objectives, NULL, "NAME=PRIORITY,...", NULL,
        "priorities of inference objectives (x-gateway-inference-objective, x-llm-d-inference-objective), as the queue takes strict ones; "
        "requests of a negative one are refused where others would wait"),
    ENU("ext-proc-watch", ext_proc_watch, "as-configured", "as-configured|auto", NULL,
        "auto: ask the gateway (allow_mode_override) to show the responses of paths that generate, and no others"),
    SIZ("ext-proc-memory", ext_proc_memory, "256MiB", NULL,
        "bytes of bodies that gateways have sent and that are not decided on; beyond, they have to wait; 0 = no limit"),
    DBL("ext-proc-connection-age", ext_proc_connection_age, "600", 0, 864000, NULL,
        "seconds after which a gateway's connection is told to go, so that it finds new replicas; its streams run on; 0 = off"),
    DBL("ext-proc-unseen-secs", ext_proc_unseen_secs, "30", 0.001, 864000, NULL,
        "seconds for which a request is taken to run when the gateway does not tell when its response ends"),
    ROUTING_ROWS,
    DBL("router-session-affinity-ttl-secs", session_ttl, "0", 0, 31536000, "DYN_ROUTER_SESSION_AFFINITY_TTL_SECS",
        "idle life of x-session-id bindings; 0 = off"),
    GROUP("keys", "Who may ask"),
    STR("api-key-file", api_key_file, NULL, "FILE", NULL,
        "YAML file of API keys and their limits (docs/guides/keys.md); the data port then needs one, but for /health and /ready"),
    STR("admin-key-file", admin_key_file, NULL, "FILE", NULL,
        "one key a line; the admin port then needs Authorization: Bearer KEY, but for /health and /ready"),
    MORE,
    WOR("admin-allowed-hosts", admin_allowed_hosts, NULL, "NAME[,NAME...]", NULL,
        "further names in Host and Origin of requests to it, beside addresses, loopback and this machine's name; .DOMAIN: all under "
        "it; *: every Host"),
    BOO("forward-client-key", forward_client_key, "false", NULL,
        "with --api-key-file: send the client's key on to workers; without, they get their own (api-key=) or none"),
    WOR("pass-routes", pass_routes, NULL, "PATH[,PATH...]", NULL,
        "further paths of engines that clients may reach, beside inference (docs/reference/http.md); one that ends with * stands for all "
        "below: "
        "/v1/*"),
    WOR("cors-allow-origin", cors_allow_origin, NULL, "ORIGIN[,ORIGIN...]", NULL,
        "pages of these origins (https://ui.example, as browsers send it; * = all) may use the data port; without, none of another origin"),
    BOO("cors-allow-credentials", cors_allow_credentials, "false", NULL,
        "with --cors-allow-origin (not *): also with cookies and TLS client certificates of the browser; an API key needs no such thing"),
    NUM("cors-max-age", cors_max_age, "600", 0, 86400, NULL,
        "seconds for which a browser need not ask again whether a page may do what it does"),
    GROUP("tls", "TLS"),
    STR("tls-cert", tls_cert, NULL, "FILE", NULL, "the data port speaks HTTPS with this certificate chain (PEM); needs --tls-key"),
    STR("tls-key", tls_key, NULL, "FILE", NULL, "its private key (PEM)"),
    MORE,
    STR("tls-client-ca", tls_client_ca, NULL, "FILE", NULL,
        "clients of the data port must have a certificate that one of these (PEM) has signed"),
    ENU("ext-proc-tls", ext_proc_tls, "auto", "off|auto", NULL,
        "whether ext-proc-port speaks TLS, as gateways expect; without --ext-proc-tls-cert by a certificate that is made at the start"),
    STR("ext-proc-tls-cert", ext_proc_tls_cert, NULL, "FILE", NULL, "its certificate chain (PEM)"),
    STR("ext-proc-tls-key", ext_proc_tls_key, NULL, "FILE", NULL, "its private key (PEM)"),
    STR("ext-proc-tls-client-ca", ext_proc_tls_client_ca, NULL, "FILE", NULL,
        "gateways must have a certificate that one of these (PEM) has signed"),
    STR("admin-tls-cert", admin_tls_cert, NULL, "FILE", NULL, "the admin port speaks HTTPS with this certificate chain (PEM)"),
    STR("admin-tls-key", admin_tls_key, NULL, "FILE", NULL, "its private key (PEM)"),
    STR("admin-tls-client-ca", admin_tls_client_ca, NULL, "FILE", NULL,
        "who uses the admin port must have a certificate that one of these (PEM) has signed"),
    PEER_TLS_ROWS,
    GROUP("log", "Logs, traces and metrics"),
    STR("access-log", access_log, NULL, "FILE", NULL, "one line for each request of the data port; - = standard output"),
    LOG_ROWS(AT(log)),
    MORE,
    ENU("access-log-format", access_log_format, "json", "json|combined", NULL,
        "JSON Lines, or Apache's combined format with key=value behind it"),
    DBL("access-log-sample", access_log_sample, "1", 0, 1, NULL, "share of the lines that are written; errors always are"),
    STR("otlp-endpoint", otlp_endpoint, NULL, "URL", "OTEL_EXPORTER_OTLP_ENDPOINT",
        "collector of traces (OTLP over HTTP, JSON), without /v1/traces: http://HOST:4318; none: no traces"),
    STR("otlp-service-name", otlp_service_name, "kvroute", "NAME", "OTEL_SERVICE_NAME", "service.name of the traces"),
    DBL("trace-sample", trace_sample, "0.01", 0, 1, NULL,
        "share of the traces kept that begin here; a client's traceparent decides for its own"),
    ENU("metrics-compat", metrics_compat, "none", "none|vllm|sglang", NULL,
        "/metrics has the fleet's figures also under the names that this engine's dashboards ask for (docs/reference/metrics.md)"),
    QUEUE_ROWS,
    DBL("queue-keepalive", queue_keepalive, "5", 0, 86400, NULL,
        "seconds between the comments a waiting streaming request gets; its status is 200 from the first on; 0 = off"),
    GROUP("timeouts", "Seconds for a request"),
    MORE,
    DBL("connect-timeout", connect_timeout, "2", 0, 86400, NULL, "seconds to connect to a worker"),
    DBL("first-token-timeout", first_token_timeout, "600", 0, TIMEOUT_MAX_S, NULL, "seconds to the first byte of an answer; 0 = off"),
    DBL("stall-timeout", stall_timeout, "120", 0, TIMEOUT_MAX_S, NULL, "seconds between bytes of an answer; 0 = off"),
    DBL("total-timeout", total_timeout, "0", 0, TIMEOUT_MAX_S, NULL, "seconds for a whole request; 0 = off"),
    DBL("tokenize-timeout", tokenize_timeout, "5", 0, 86400, NULL, "seconds for the engine's tokenizer"),
    LIMIT_ROWS,
    NUM("max-messages", max_messages, "16384", 1, 1e9, NULL, "most messages of a chat request; more are refused with 413"),
    SIZ("max-prompt-text", max_prompt_text, "8MiB", NULL,
        "longest prompt text that is turned into byte tokens (--tokenizer bytes); a longer one is refused with 413"),
    NUM("max-connections", max_connections, "16384", 1, 1e6, NULL,
        "client connections per loop; fewer when the process may not open two descriptors for each"),
    NUM("max-connections-per-address", address_connections, "0", 0, 1e6, NULL,
        "client connections of one address (IPv6: of one /64) over all loops; more are closed; 0 = off"),
    EVENT_ROWS,
    GROUP("tokens", "Token ids of prompts"),
    MORE,
    ENU("tokenizer", tokenizer, "auto", "auto|local|engine|bytes", NULL,
        "where tokens come from; auto = with KV events made here where that is known to be right, else an engine's; without them bytes"),
    {"tokenizer-dir", OPT_LIST, offsetof(struct serve_cli, tokenizer_dirs), NULL, 0, 0, "[MODEL=]DIR",
     "the folder (tokenizer.json, chat template) of a model, or of all; default: the `root` of /v1/models, where it is on this machine; "
     "repeatable",
     NULL, NULL},
    STR("tokenizer-lib", tokenizer_lib, NULL, "FILE", NULL,
        "libkvr_tokenizer.so; default: beside the program, in ../lib/kvroute, where it was installed"),
    STR("tokenizer-profile", tokenizer_profile, NULL, "JSON", NULL,
        "how the engines render chats: content_format, drop_none, alias_reasoning, developer_to_system, typed; default: found out"),
    NUM("tokenizer-probes", tokenizer_probes, "8", 0, 1e6, NULL,
        "requests of a model that are compared with an engine's tokens before those that are made here are used"),
    NUM("tokenizer-check", tokenizer_check, "1000", 0, 1e9, NULL,
        "one request in so many is compared later on, at most one a second and model; 0 = none"),
    SIZ("tokenizer-cache", tokenizer_cache, "64MiB", NULL, "tokens of parts of prompts that are kept for each model; 0 = none"),
    NUM("tokenizer-threads", tokenizer_threads, "2", 1, 64, NULL, "threads for prompts that are too long for an event loop"),
    BOO("forward-token-ids", forward_token_ids, "false", NULL,
        "workers get the prompt of a completion as the token ids that are known of it, where that changes nothing in the answer; needs "
        "engines that take a list of ids as `prompt`"),
    LEG_ROWS,
    DBL("prefill-timeout", prefill_timeout, "0", 0, 864000, NULL,
        "seconds for the whole answer of a prefill worker; 0 = first-token-timeout"),
    DBL("handoff-timeout", handoff_timeout, "10", 0.001, 86400, NULL,
        "seconds in which a decode worker must be found for a computed prompt; at most 0.7 of the prefill worker's kv-lease"),
    DBL("kv-wait-timeout", kv_wait_timeout, "0", 0, 86400, NULL,
        "seconds for a decode worker's first byte once the prompt is computed; 0 = first-token-timeout alone"),
    ENU("disagg-usage", disagg_usage, "merge", "merge|decode", NULL,
        "cached_tokens of usage, of two legs: what the prefill worker had, or what the decode worker says"),
    BOO("disagg-release", disagg_release, "true", NULL,
        "a computed prompt whose client has gone is given to a decode worker all the same, so that the prefill worker frees it"),
    DBL("disagg-release-timeout", disagg_release_timeout, "30", 0.1, 86400, NULL, "seconds for that"),
    REPLICA_ROWS,
    BOO("serve-indexer", serve_indexer, "false", "DYN_ROUTER_SERVE_INDEXER",
        "answer other routers from this one's index: on the admin port, and over NATS with an event plane of it"),
    WOR("use-remote-indexer", use_remote_indexer, NULL, "URL[,URL...]", NULL,
        "keep no index and ask a router that serves its own: http://HOST:ADMIN-PORT or nats://[NAMESPACE.COMPONENT]; or up to 16 indexers, "
        "http://HOST:PORT,..., among which the workers are divided"),
    STR("remote-indexer-key-file", remote_key_file, NULL, "FILE", NULL, "its first key is sent to them"),
    DBL("remote-indexer-timeout", remote_timeout, "0.1", 0.001, 60, NULL, "seconds for its answer; then the request is routed by load"),
    SELECTION_ROWS,
};

static const struct option_row select_rows[] = {
    START_ROWS,
    GROUP("workers", "Workers"),
    WORKER_ROWS,
    GROUP("ports", "Ports"),
    STR("host", admin_host, "127.0.0.1", "ADDRESS", NULL, "address to listen on; 0.0.0.0 for every one: then give it keys"),
    NUM("port", admin_port, "8092", 0, 65535, NULL, "port to listen on; 0: a free one, which the first line tells"),
    MORE,
    NUM("threads", threads, "4", 1, 64, NULL, "accepted for older command lines; one thread serves and one follows events"),
    ROUTING_ROWS,
    GROUP("keys", "Who may ask"),
    STR("api-key-file", admin_key_file, NULL, "FILE", NULL,
        "one key a line; every route but /health and /ready then needs Authorization: Bearer KEY"),
    ALIAS("admin-key-file", "api-key-file"),
    MORE,
    WOR("allowed-hosts", admin_allowed_hosts, NULL, "NAME[,NAME...]", NULL,
        "further names in Host and Origin of requests, beside addresses, loopback and this machine's name; .DOMAIN: all under it; *: every "
        "Host"),
    ALIAS("admin-allowed-hosts", "allowed-hosts"),
    GROUP("tls", "TLS"),
    STR("tls-cert", admin_tls_cert, NULL, "FILE", NULL, "speak HTTPS with this certificate chain (PEM); needs --tls-key"),
    STR("tls-key", admin_tls_key, NULL, "FILE", NULL, "its private key (PEM)"),
    MORE,
    STR("tls-client-ca", admin_tls_client_ca, NULL, "FILE", NULL, "clients must have a certificate that one of these (PEM) has signed"),
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
    if (o->policy_config && policy_file_read(o->policy_config, &policies, NULL, err, sizeof err)) {
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

static int run(const struct option_table *t, int argc, char **argv, struct serve_cli *cli)
{
    struct options_from from = {0};
    int rc = options_parse(t, argc, argv, cli, &from);
    if (rc == 0) {
        struct serve_checker c = {.command = t->command, .options = t, .from = &from};
        if (cli->o.picks_only && !cli->o.ext_proc_port) cli->o.ext_proc_port = PICKER_PORT;
        serve_cli_rules(cli, &c);
        serve_cli_effects(cli, &c);
        if (cli->o.check) serve_cli_check(cli, &c);
        struct kvr_buf told = {0};
        options_told(t, cli, &from, &told);
        kvr_buf_add(&told, "", 1);
        cli->o.options_told = told.failed ? "[]" : told.data;
        rc = cli->o.check ? serve_checker_end(&c) : c.wrong ? 2 : start(t->command, &cli->o);
        kvr_buf_free(&told);
    } else if (rc == 1) rc = 0;
    options_free(t, cli, &from);
    return rc;
}

static int run_serve(int argc, char **argv)
{
    struct serve_cli cli = {0};
    return run(&command_serve.table, argc, argv, &cli);
}

static int run_epp(int argc, char **argv)
{
    struct serve_cli cli = {.o = {.picks_only = true}};
    return run(&command_epp.table, argc, argv, &cli);
}

static int run_select(int argc, char **argv)
{
    struct serve_cli cli = {.o = {.select_only = true, .health_interval = 5}};
    return run(&command_select.table, argc, argv, &cli);
}

const struct command command_serve = {.table = {"serve", "OpenAI-compatible router in front of inference workers", help_serve, serve_rows,
                                                KVR_ARRAY_LEN(serve_rows), NULL, false},
                                      .run = run_serve};
const struct command command_epp = {.table = {"epp", "endpoint picker: chooses workers for a gateway (Envoy, Kubernetes)", help_epp,
                                              serve_rows, KVR_ARRAY_LEN(serve_rows), NULL, false},
                                    .run = run_epp};
const struct command command_select = {.table = {"select", "selection service: choose and book workers over HTTP", help_select, select_rows,
                                                 KVR_ARRAY_LEN(select_rows), NULL, false},
                                       .run = run_select};
