/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "app/serve/serve.h"
#include "cli/commands.h"
#include "cli/options.h"

struct serve_cli {
    struct serve_options o;
    struct option_list workers;
};

#define AT(field) offsetof(struct serve_cli, o.field)
#define NUM(name, field, initial, min, max, help)                                                                                          \
    {                                                                                                                                      \
        name, OPT_U64, AT(field), initial, min, max, NULL, help, NULL                                                                      \
    }
#define DBL(name, field, initial, max, help)                                                                                               \
    {                                                                                                                                      \
        name, OPT_DOUBLE, AT(field), initial, 0, max, NULL, help, NULL                                                                     \
    }
#define STR(name, field, initial, what, help)                                                                                              \
    {                                                                                                                                      \
        name, OPT_STRING, AT(field), initial, 0, 0, what, help, NULL                                                                       \
    }
#define SIZ(name, field, initial, help)                                                                                                    \
    {                                                                                                                                      \
        name, OPT_SIZE, AT(field), initial, 0, 0, NULL, help, NULL                                                                         \
    }
#define BOO(name, field, initial, help)                                                                                                    \
    {                                                                                                                                      \
        name, OPT_BOOL, AT(field), initial, 0, 0, NULL, help, NULL                                                                         \
    }
#define ENU(name, field, initial, values, help)                                                                                            \
    {                                                                                                                                      \
        name, OPT_ENUM, AT(field), initial, 0, 0, values, help, NULL                                                                       \
    }
#define ALIAS(name, type, field, of)                                                                                                       \
    {                                                                                                                                      \
        name, type, AT(field), NULL, 0, 0, NULL, NULL, of                                                                                  \
    }
#define ANY 1e300

static const struct option_row rows[] = {
    {"worker", OPT_LIST, offsetof(struct serve_cli, workers), NULL, 0, 0, "URL[,key=value...]",
     "a worker; keys: id, events, replay, model, group, block-size, dp-start, dp-size, role, max-num-batched-tokens, total-kv-blocks; "
     "repeatable",
     NULL},
    STR("config", config, NULL, "FILE", "YAML file of these options"),
    STR("host", host, "0.0.0.0", "ADDRESS", "address of the data port"),
    NUM("port", port, "8080", 1, 65535, "data port"),
    STR("admin-host", admin_host, "127.0.0.1", "ADDRESS", "address of the admin port"),
    NUM("admin-port", admin_port, "9090", 1, 65535, "admin port"),
    NUM("threads", threads, "1", 1, 64, "event loops for the data port"),
    STR("model", model, NULL, "NAME", "model name of workers that have none of their own"),
    NUM("block-size", block_size, "16", 1, 65536, "tokens per KV block, as the engines have it"),
    ENU("router-mode", mode, "kv", "kv|round-robin|random|least-loaded|direct", "how a worker is chosen"),
    ENU("tokenizer", tokenizer, "auto", "auto|engine|bytes", "where tokens come from; auto = engine with KV events, bytes without"),
    BOO("router-kv-events", kv_events, "true", "follow the engines' KV events; without: predict from own decisions"),
    ALIAS("kv-events", OPT_BOOL, kv_events, "router-kv-events"),
    DBL("router-kv-overlap-score-credit", overlap_credit, "1", ANY, "credit per cached prefix block; 0 = no index"),
    DBL("router-kv-overlap-score-credit-decay", credit_decay, "0", ANY,
        "shrinks the credit of workers with more prefill than the least loaded"),
    DBL("router-prefill-load-scale", prefill_load_scale, "1", ANY, "weight of the prefill term"),
    DBL("router-decode-active-request-weight", request_weight, "0", ANY, "blocks added per active request"),
    DBL("router-host-cache-hit-weight", host_weight, "0.75", 1, "credit per host-pinned block beyond the device prefix"),
    DBL("router-disk-cache-hit-weight", disk_weight, "0.25", 1, "credit per disk block beyond the host prefix"),
    DBL("router-temperature", temperature, "0", ANY, "0 = cheapest; else softmax over normalised costs"),
    BOO("router-track-active-blocks", track_active_blocks, "true", "count the blocks of running requests"),
    BOO("router-track-output-blocks", track_output_blocks, "false", "count blocks filled by generation"),
    BOO("router-track-prefill-tokens", track_prefill_tokens, "true", "count prompt tokens still to be computed"),
    BOO("router-assume-kv-reuse", assume_kv_reuse, "true", "running requests with one prefix share its blocks"),
    ALIAS("router-with-cascade-attention", OPT_BOOL, assume_kv_reuse, "router-assume-kv-reuse"),
    ALIAS("assume-kv-reuse", OPT_BOOL, assume_kv_reuse, "router-assume-kv-reuse"),
    DBL("router-ttl-secs", ttl_secs, "120", 31536000, "life of predicted blocks"),
    NUM("router-max-tree-size", max_tree_size, "1048576", 1, 4e9, "predicted blocks that start pruning"),
    {"router-prune-target-ratio", OPT_DOUBLE, AT(prune_target_ratio), "0.8", 0.01, 1, NULL, "prune down to this share of the tree size",
     NULL},
    {"router-queue-threshold", OPT_DOUBLE, AT(queue_threshold), "-1", -1, ANY, NULL,
     "requests wait while every rank has more prefill tokens than this times max-num-batched-tokens; -1 = off", NULL},
    {"router-session-affinity-ttl-secs", OPT_DOUBLE, AT(session_ttl), "0", 0, 31536000, NULL, "idle life of x-session-id bindings; 0 = off",
     NULL},
    BOO("router-clear-worker-wide", clear_worker_wide, "false", "a cleared event clears every rank of its worker (older publishers)"),
    NUM("router-seed", seed, "0", 0, 1.8e19, "seed for ties and temperature; 0 = from the clock"),
    SIZ("index-max-bytes", index_max_bytes, "0", "cap on the index's memory, kept by giving up what is least recently used; 0 = none"),
    DBL("connect-timeout", connect_timeout, "2", 86400, "seconds to connect to a worker"),
    DBL("first-token-timeout", first_token_timeout, "600", 864000, "seconds to the first byte of an answer; 0 = off"),
    DBL("stall-timeout", stall_timeout, "120", 864000, "seconds between bytes of an answer; 0 = off"),
    DBL("total-timeout", total_timeout, "0", 864000, "seconds for a whole request; 0 = off"),
    DBL("queue-timeout", queue_timeout, "30", 864000, "seconds to wait for a worker"),
    DBL("tokenize-timeout", tokenize_timeout, "5", 86400, "seconds for the engine's tokenizer"),
    {"restore-timeout", OPT_DOUBLE, AT(restore_timeout), "10", 0.05, 86400, NULL,
     "seconds a replay may be silent before a view is declared untrusted", NULL},
    DBL("drain-timeout", drain_timeout, "180", 864000, "seconds for running requests after SIGTERM"),
    {"health-interval", OPT_DOUBLE, AT(health_interval), "5", 0.05, 86400, NULL, "seconds between health checks", NULL},
    NUM("breaker-failures", breaker_failures, "10", 1, 1e9, "consecutive failures that open a worker's breaker"),
    DBL("breaker-cooldown", breaker_cooldown, "60", 86400, "seconds a breaker stays open"),
    NUM("max-retries", max_retries, "2", 0, 7, "retries on other workers before the first byte"),
    SIZ("max-body-size", max_body_size, "64MiB", "largest request body"),
    NUM("max-connections", max_connections, "16384", 1, 1e6, "client connections per loop"),
};

static const char usage[] =
    "usage: kvroute serve --worker URL[,key=value...] [options]\n\n"
    "Routes OpenAI requests to the worker that will serve them soonest: by what its KV cache holds and how loaded it is.\n"
    "SIGTERM drains and exits with 0.\n";

int cmd_serve(int argc, char **argv)
{
    struct serve_cli cli = {0};
    int rc = options_parse(usage, rows, sizeof rows / sizeof *rows, argc, argv, &cli);
    if (rc == 0) {
        cli.o.workers = cli.workers.items;
        cli.o.workers_n = cli.workers.n;
        rc = serve_main(&cli.o);
    } else if (rc == 1) {
        rc = 0;
    }
    options_free(rows, sizeof rows / sizeof *rows, &cli);
    return rc;
}
