/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `kvroute indexer`, one row each, and what they must satisfy together. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "app/indexer/indexer.h"
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/log_options.h"
#include "cli/options.h"
#include "cli/plane_rows.h"
#include "cli/tokenizer_rows.h"

struct indexer_cli {
    struct indexer_options o;
    struct option_list tokenizer_dirs;
};

#define OPTIONS     struct indexer_cli
#define FIELD(name) o.name
#include "cli/option_rows.h"

static const struct option_row rows[] = {
    GROUP("start", "Start and end"),
    STR("config", config, NULL, "FILE", "YAML file of these options"),
    STR("data-dir", data_dir, NULL, "DIR", "keep registrations and content here, and go on from them after a restart"),
    MORE,
    DBL("snapshot-interval", snapshot_interval, "30", 0.05, 86400, "seconds between snapshots of the content"),
    NUM("min-initial-workers", min_workers, "0", 0, 1e6, "/ready waits for that many registered workers"),
    DBL("restore-timeout", restore_timeout, "10", 0.05, 86400, "seconds a replay may be silent before it has failed"),
    DBL("lame-duck-time", lame_duck_time, "5", 0, 86400, "seconds after SIGTERM in which /ready says 503 and all else goes on"),
    DBL("drain-timeout", drain_timeout, "180", 0, 864000, "seconds for what is open after that; the port is free meanwhile"),
    GROUP("ports", "Port"),
    STR("host", bind, "127.0.0.1", "ADDRESS", "address to listen on; 0.0.0.0 for every one"),
    ALIAS("bind", "host"),
    NUM("port", port, "8090", 0, 65535, "HTTP port; 0: a free one, which the first line tells"),
    NUM("threads", threads, "4", 1, 64, "event loops that answer HTTP"),
    GROUP("workers", "Workers"),
    PAI("workers", workers, NULL, "LIST", "comma list of instance_id[:dp_rank]=zmq_endpoint to follow from the start"),
    NUM("block-size", block_size, "0", 0, 65536, "tokens per KV block of the workers given by --workers"),
    WOR("peers", peers, NULL, "LIST", "comma list of other indexers' URLs, asked when engines cannot tell"),
    MORE,
    STR("model", model, "default", "NAME", "model of those workers"),
    ALIAS("model-name", "model"),
    STR("routing-group", group, "default", "NAME", "routing group of those workers"),
    STR("tenant-id", tenant, NULL, "NAME", "accepted for older command lines and ignored; see --routing-group"),
    BOO("tenant-as-group", tenant_as_group, "false", "tenant_id partitions as routing_group does, for older clients; else it is ignored"),
    BOO("tree-sizes", tree_sizes, "false", "add tree_sizes to the answers of queries, for older clients"),
    BOO("test-endpoints", test_endpoints, "false", "serve /test/pause_listener and /test/resume_listener"),
    GROUP("keys", "Who may ask"),
    STR("api-key-file", api_key_file, NULL, "FILE",
        "keys, one a line: every route but /health and /ready then needs Authorization: Bearer KEY"),
    MORE,
    STR("peer-key-file", peer_key_file, NULL, "FILE",
        "its first key is sent to the indexers of --peers, never to those registered over HTTP; default: the --api-key-file"),
    WOR("allowed-hosts", allowed_hosts, NULL, "NAME[,NAME...]",
        "further names in Host and Origin, beside addresses, loopback and this machine's name; .DOMAIN: all under it; *: all"),
    GROUP("tls", "TLS"),
    STR("tls-cert", tls_cert, NULL, "FILE", "serve HTTPS with this certificate chain (PEM); needs --tls-key"),
    STR("tls-key", tls_key, NULL, "FILE", "its private key (PEM)"),
    MORE,
    STR("tls-client-ca", tls_client_ca, NULL, "FILE", "authorities (PEM): clients must have a certificate of one"),
    STR("tls-ca", tls_ca, NULL, "FILE", "certificates (PEM) that sign those of https peers and recover endpoints; default: the system's"),
    GROUP("limits", "Limits"),
    ALIAS("max-bytes", "index-max-bytes"),
    SIZ("index-max-bytes", max_bytes, "0",
        "cap on the memory of the indexes, in equal parts per partition, kept by giving up what is least recently used; 0 = none"),
    MORE,
    NUM("indexer-shards", indexer_shards, "1", 1, 64, "parts of an index that are written without waiting for each other"),
    SIZ("max-body-size", max_body_size, "8MiB", "largest body of a query; other bodies: 2 MiB"),
    SIZ("max-bodies-bytes", max_bodies_bytes, "1GiB",
        "memory for all request bodies together, unfinished ones too; beyond: 503; 0 = no limit"),
    NUM("max-prompt-tokens", max_prompt_tokens, "2097152", 1, 1e9, "most tokens or block hashes of a query; more are refused with 413"),
    NUM("max-connections", max_connections, "16384", 1, 1e6, "client connections per thread"),
    DBL("client-write-timeout", client_write_timeout, "30", 0, 864000,
        "seconds a client may take nothing of its answer before it is cut off; 0 = off"),
    GROUP("events", "Recordings of KV events"),
    MORE,
    STR("record-events", record_events, NULL, "FILE", "write every KV event to this file (JSON Lines)"),
    NUM("record-max-lines", record_max_lines, "0", 0, 1e18, "events of one file, then FILE.1, FILE.2, ...; 0 = all in one"),
    NUM("record-max-count", record_max_count, "0", 0, 1e18, "the recording ends after that many events; 0 = no limit"),
    DBL("record-max-secs", record_max_secs, "0", 0, 31536000, "the recording ends after that many seconds; 0 = no limit"),
    BOO("accept-events", accept_events, "false", "serve POST /events, which applies events of a recording (kvroute replay-events)"),
    PLANE_ROWS(AT(plane)),
    NUM("router-snapshot-threshold", plane.snapshot_threshold, "1000000", 1, 1e18,
        "jetstream: new messages in the stream that make a snapshot due", "DYN_ROUTER_SNAPSHOT_THRESHOLD"),
    BOO("router-reset-states", plane.reset_states, "false", "jetstream: delete the stream and all snapshots at the start",
        "DYN_ROUTER_RESET_STATES"),
    STR("advertise-host", advertise_host, NULL, "HOST",
        "with an event plane of NATS: the name others reach this machine by; default: its own"),
    TOKENIZER_ROWS(offsetof(struct indexer_cli, tokenizer_dirs), AT(tokenizer_lib), AT(tokenizer_profile), AT(tokenizer_cache),
                   "POST /query then takes `text` or `messages` in place of `token_ids`"),
    GROUP("log", "Log"),
    STR("access-log", access_log, NULL, "FILE", "one JSON object per request; POST /reopen_logs after a rotation"),
    MORE,
    BOO("access-log-local-time", local_time, "false", "local time in the access log instead of UTC"),
    STR("trace-id-header", trace_header, "x-trace-id", "NAME", "request header that becomes the log's trace_id"),
    LOG_ROWS(AT(log)),
};

static bool is_truthy(const char *s)
{
    return s && (strcmp(s, "1") == 0 || strcasecmp(s, "true") == 0 || strcasecmp(s, "yes") == 0 || strcasecmp(s, "on") == 0);
}

/* The names that Dynamo's indexer reads. */
static void read_original_environment(struct indexer_options *o)
{
    const char *n = getenv("DYN_ROUTER_MIN_INITIAL_WORKERS");
    if (n && !o->min_workers) o->min_workers = strtoull(n, NULL, 10);
    if (is_truthy(getenv("DYN_KV_INDEXER_TEST_ENDPOINTS"))) o->test_endpoints = true;
}

/* What the options must satisfy together. Returns: 0, or 2 with an error printed. */
static int cross_checks(const struct indexer_options *o)
{
    if (o->workers && o->workers[0] && !o->block_size) {
        kvr_log_error("kvroute indexer: --block-size is required when --workers is specified");
        return 2;
    }
    if (o->tls_client_ca && !o->tls_cert) {
        kvr_log_error("kvroute indexer: --tls-client-ca needs --tls-cert and --tls-key");
        return 2;
    }
    if (!o->tls_cert != !o->tls_key) {
        kvr_log_error("kvroute indexer: --tls-cert and --tls-key: one is missing; allowed: both or none");
        return 2;
    }
    return 0;
}

static int run(void *options, struct command_call *)
{
    struct indexer_cli *cli = options;
    int rc = cross_checks(&cli->o);
    if (rc) return rc;
    read_original_environment(&cli->o);
    cli->o.tokenizer_dirs = cli->tokenizer_dirs.items;
    cli->o.tokenizer_dirs_n = cli->tokenizer_dirs.n;
    kvr_log_set_spoken(false);
    return indexer_main(&cli->o);
}

const struct command command_indexer = {.table = {"indexer", "who holds which KV blocks: events in, overlap queries over HTTP",
                                                  help_indexer, rows, KVR_ARRAY_LEN(rows), NULL, false},
                                        .options_size = sizeof(struct indexer_cli),
                                        .run = run,
                                        .stays = true};
