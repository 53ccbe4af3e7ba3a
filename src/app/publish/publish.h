/* SPDX-License-Identifier: Apache-2.0 */
/* `kvroute publish`: beside one engine. Options as the command line gives them; the strings live as long as the program. */
#ifndef KVR_PUBLISH_H
#define KVR_PUBLISH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "net/ingest/event_plane.h"

struct publish_options {
    char *config, *host, *model, *engine_url, *events, *replay, *publish;
    uint64_t port, worker_id, block_size, dp_start, dp_size, buffer_events, buffer_bytes, index_max_bytes;
    double restore_timeout, client_write_timeout, lame_duck_time, drain_timeout;
    char *engine_metrics; /* URL; NULL: the engine is not asked */
    double engine_metrics_interval, engine_metrics_max_age;
    char *announce, *advertise_host, *allowed_hosts;
    int engine; /* place in vllm|sglang */
    uint64_t total_kv_blocks, max_num_batched_tokens;
    int publish_format; /* enum kvr_plane_format, with zmq */
    struct kvr_plane_options plane;
    struct kvr_log_options log;
};

/* Runs until SIGTERM or SIGINT. Returns the process's exit status. */
int publish_main(const struct publish_options *o);

#endif
