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

#define AT(field) offsetof(struct indexer_cli, o.field)

static const struct option_row rows[] = {
    GROUP("start", "Start and end"),
    {"config", OPT_STRING, AT(config), NULL, 0, 0, "FILE", "YAML file of these options", NULL, NULL},
    {"data-dir", OPT_STRING, AT(data_dir), NULL, 0, 0, "DIR", "keep registrations and content here, and go on from them after a restart",
     NULL, NULL},
    MORE,
    {"snapshot-interval", OPT_DOUBLE, AT(snapshot_interval), "30", 0.05, 86400, NULL, "seconds between snapshots of the content", NULL,
     NULL},
    {"min-initial-workers", OPT_U64, AT(min_workers), "0", 0, 1e6, NULL, "/ready waits for that many registered workers", NULL, NULL},
    {"restore-timeout", OPT_DOUBLE, AT(restore_timeout), "10", 0.05, 86400, NULL, "seconds a replay may be silent before it has failed",
     NULL, NULL},
    {"lame-duck-time", OPT_DOUBLE, AT(lame_duck_time), "5", 0, 86400, NULL,
     "seconds after SIGTERM in which /ready says 503 and all else goes on", NULL, NULL},
    {"drain-timeout", OPT_DOUBLE, AT(drain_timeout), "180", 0, 864000, NULL,
     "seconds for what is open after that; the port is free meanwhile", NULL, NULL},
    GROUP("ports", "Port"),
    {"host", OPT_STRING, AT(bind), "127.0.0.1", 0, 0, "ADDRESS", "address to listen on; 0.0.0.0 for every one", NULL, NULL},
    ALIAS("bind", "host"),
    {"port", OPT_U64, AT(port), "8090", 0, 65535, NULL, "HTTP port; 0: a free one, which the first line tells", NULL, NULL},
    {"threads", OPT_U64, AT(threads), "4", 1, 64, NULL, "event loops that answer HTTP", NULL, NULL},
    GROUP("workers", "Workers"),
    {"workers", OPT_PAIRS, AT(workers), NULL, 0, 0, "LIST", "comma list of instance_id[:dp_rank]=zmq_endpoint to follow from the start",
     NULL, NULL},
    {"block-size", OPT_U64, AT(block_size), "0", 0, 65536, NULL, "tokens per KV block of the workers given by --workers", NULL, NULL},
    {"peers", OPT_WORDS, AT(peers), NULL, 0, 0, "LIST", "comma list of other indexers' URLs, asked when engines cannot tell", NULL, NULL},
    MORE,
    {"model", OPT_STRING, AT(model), "default", 0, 0, "NAME", "model of those workers", NULL, NULL},
    ALIAS("model-name", "model"),
    {"routing-group", OPT_STRING, AT(group), "default", 0, 0, "NAME", "routing group of those workers", NULL, NULL},
    {"tenant-id", OPT_STRING, AT(tenant), NULL, 0, 0, "NAME", "accepted for older command lines and ignored; see --routing-group", NULL,
     NULL},
    {"tenant-as-group", OPT_BOOL, AT(tenant_as_group), "false", 0, 0, NULL,
     "tenant_id partitions as routing_group does, for older clients; else it is ignored", NULL, NULL},
    {"tree-sizes", OPT_BOOL, AT(tree_sizes), "false", 0, 0, NULL, "add tree_sizes to the answers of queries, for older clients", NULL,
     NULL},
    {"test-endpoints", OPT_BOOL, AT(test_endpoints), "false", 0, 0, NULL, "serve /test/pause_listener and /test/resume_listener", NULL,
     NULL},
    GROUP("keys", "Who may ask"),
    {"api-key-file", OPT_STRING, AT(api_key_file), NULL, 0, 0, "FILE",
     "keys, one a line: every route but /health and /ready then needs Authorization: Bearer KEY", NULL, NULL},
    MORE,
    {"peer-key-file", OPT_STRING, AT(peer_key_file), NULL, 0, 0, "FILE",
     "its first key is sent to the indexers of --peers, never to those registered over HTTP; default: the --api-key-file", NULL, NULL},
    {"allowed-hosts", OPT_WORDS, AT(allowed_hosts), NULL, 0, 0, "NAME[,NAME...]",
     "further names in Host and Origin, beside addresses, loopback and this machine's name; .DOMAIN: all under it; *: all", NULL, NULL},
    GROUP("tls", "TLS"),
    {"tls-cert", OPT_STRING, AT(tls_cert), NULL, 0, 0, "FILE", "serve HTTPS with this certificate chain (PEM); needs --tls-key", NULL,
     NULL},
    {"tls-key", OPT_STRING, AT(tls_key), NULL, 0, 0, "FILE", "its private key (PEM)", NULL, NULL},
    MORE,
    {"tls-client-ca", OPT_STRING, AT(tls_client_ca), NULL, 0, 0, "FILE", "authorities (PEM): clients must have a certificate of one", NULL,
     NULL},
    {"tls-ca", OPT_STRING, AT(tls_ca), NULL, 0, 0, "FILE",
     "certificates (PEM) that sign those of https peers and recover endpoints; default: the system's", NULL, NULL},
    GROUP("limits", "Limits"),
    ALIAS("max-bytes", "index-max-bytes"),
    {"index-max-bytes", OPT_SIZE, AT(max_bytes), "0", 0, 0, NULL,
     "cap on the memory of the indexes, in equal parts per partition, kept by giving up what is least recently used; 0 = none", NULL, NULL},
    MORE,
    {"indexer-shards", OPT_U64, AT(indexer_shards), "1", 1, 64, NULL, "parts of an index that are written without waiting for each other",
     NULL, NULL},
    {"max-body-size", OPT_SIZE, AT(max_body_size), "8MiB", 0, 0, NULL, "largest body of a query; other bodies: 2 MiB", NULL, NULL},
    {"max-bodies-bytes", OPT_SIZE, AT(max_bodies_bytes), "1GiB", 0, 0, NULL,
     "memory for all request bodies together, unfinished ones too; beyond: 503; 0 = no limit", NULL, NULL},
    {"max-prompt-tokens", OPT_U64, AT(max_prompt_tokens), "2097152", 1, 1e9, NULL,
     "most tokens or block hashes of a query; more are refused with 413", NULL, NULL},
    {"max-connections", OPT_U64, AT(max_connections), "16384", 1, 1e6, NULL, "client connections per thread", NULL, NULL},
    {"client-write-timeout", OPT_DOUBLE, AT(client_write_timeout), "30", 0, 864000, NULL,
     "seconds a client may take nothing of its answer before it is cut off; 0 = off", NULL, NULL},
    GROUP("events", "Recordings of KV events"),
    MORE,
    {"record-events", OPT_STRING, AT(record_events), NULL, 0, 0, "FILE", "write every KV event to this file (JSON Lines)", NULL, NULL},
    {"record-max-lines", OPT_U64, AT(record_max_lines), "0", 0, 1e18, NULL, "events of one file, then FILE.1, FILE.2, ...; 0 = all in one",
     NULL, NULL},
    {"record-max-count", OPT_U64, AT(record_max_count), "0", 0, 1e18, NULL, "the recording ends after that many events; 0 = no limit", NULL,
     NULL},
    {"record-max-secs", OPT_DOUBLE, AT(record_max_secs), "0", 0, 31536000, NULL, "the recording ends after that many seconds; 0 = no limit",
     NULL, NULL},
    {"accept-events", OPT_BOOL, AT(accept_events), "false", 0, 0, NULL,
     "serve POST /events, which applies events of a recording (kvroute replay-events)", NULL, NULL},
    PLANE_ROWS(AT(plane)),
    {"router-snapshot-threshold", OPT_U64, AT(plane.snapshot_threshold), "1000000", 1, 1e18, NULL,
     "jetstream: new messages in the stream that make a snapshot due", NULL, "DYN_ROUTER_SNAPSHOT_THRESHOLD"},
    {"router-reset-states", OPT_BOOL, AT(plane.reset_states), "false", 0, 0, NULL,
     "jetstream: delete the stream and all snapshots at the start", NULL, "DYN_ROUTER_RESET_STATES"},
    {"advertise-host", OPT_STRING, AT(advertise_host), NULL, 0, 0, "HOST",
     "with an event plane of NATS: the name others reach this machine by; default: its own", NULL, NULL},
    TOKENIZER_ROWS(offsetof(struct indexer_cli, tokenizer_dirs), AT(tokenizer_lib), AT(tokenizer_profile), AT(tokenizer_cache),
                   "POST /query then takes `text` or `messages` in place of `token_ids`"),
    GROUP("log", "Log"),
    {"access-log", OPT_STRING, AT(access_log), NULL, 0, 0, "FILE", "one JSON object per request; POST /reopen_logs after a rotation", NULL,
     NULL},
    MORE,
    {"access-log-local-time", OPT_BOOL, AT(local_time), "false", 0, 0, NULL, "local time in the access log instead of UTC", NULL, NULL},
    {"trace-id-header", OPT_STRING, AT(trace_header), "x-trace-id", 0, 0, "NAME", "request header that becomes the log's trace_id", NULL,
     NULL},
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
