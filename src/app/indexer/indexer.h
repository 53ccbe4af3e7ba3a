/* SPDX-License-Identifier: Apache-2.0 */
/* `kvroute indexer`: who holds which blocks, over HTTP. Options as the command line gives them; the strings live as long
 * as the program. */
#ifndef KVR_INDEXER_H
#define KVR_INDEXER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "net/ingest/event_plane.h"

struct indexer_options {
    char *config;
    char *bind;
    uint64_t indexer_shards, port, threads, block_size, min_workers;
    char *workers, *peers; /* comma lists */
    char *model, *group;
    char *tenant; /* accepted from older command lines, not used */
    char *data_dir, *api_key_file, *peer_key_file, *allowed_hosts, *tls_ca, *tls_cert, *tls_key, *tls_client_ca, *access_log, *trace_header;
    double snapshot_interval, restore_timeout;
    struct kvr_plane_options plane;
    char *advertise_host;
    char *record_events;
    uint64_t record_max_lines, record_max_count;
    double record_max_secs;
    uint64_t max_bytes, max_body_size, max_bodies_bytes, max_prompt_tokens, max_connections;
    double client_write_timeout, lame_duck_time, drain_timeout;
    bool local_time, tenant_as_group, tree_sizes, test_endpoints, accept_events;
    char **tokenizer_dirs; /* [MODEL=]DIR */
    size_t tokenizer_dirs_n;
    char *tokenizer_lib, *tokenizer_profile;
    uint64_t tokenizer_cache;
    struct kvr_log_options log;
};

/* Runs until SIGTERM or SIGINT. Returns the process's exit status. */
int indexer_main(const struct indexer_options *o);

#endif
