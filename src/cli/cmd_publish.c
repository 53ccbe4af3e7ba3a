/* SPDX-License-Identifier: Apache-2.0 */

#include "app/publish/publish.h"
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"

#define OPTIONS struct publish_options
#include "cli/log_options.h"
#include "cli/option_rows.h"
#include "cli/plane_rows.h"

static const struct option_row rows[] = {
    GROUP("start", "Start and end"),
    STR("config", config, NULL, "FILE", "YAML file of these options"),
    MORE,
    DBL("lame-duck-time", lame_duck_time, "5", 0, 86400, "seconds after SIGTERM in which /ready says 503 and all else goes on"),
    DBL("drain-timeout", drain_timeout, "180", 0, 864000, "seconds for what is open after that; ports are free meanwhile"),
    DBL("restore-timeout", restore_timeout, "10", 0.1, 3600, "seconds a replay may be silent"),
    GROUP("engine", "The engine"),
    STR("engine-url", engine_url, NULL, "URL", "the engine's HTTP address, to ask for model, ranks and block size; default: --announce"),
    STR("events", events, "tcp://127.0.0.1:5557", "ENDPOINT", "the engine's KV event stream; rank r is at port + r - dp-start"),
    STR("replay", replay, NULL, "ENDPOINT", "the engine's replay socket; without it the stream must be seen from its first batch"),
    NUM("block-size", block_size, "0", 0, 65536, "the engine's tokens per KV block; 0 = as its events say"),
    NUM("dp-size", dp_size, "0", 0, 64, "data-parallel ranks; 0 = as the engine says, else one"),
    MORE,
    NUM("dp-start", dp_start, "0", 0, 1048576, "first data-parallel rank"),
    STR("model", model, NULL, "NAME", "model name to tell; default: the first that the engine serves"),
    NUM("worker-id", worker_id, "0", 0, 1.8e19, "worker id told in answers"),
    STR("engine-metrics", engine_metrics, NULL, "URL", "the engine's /metrics: its load is told over NATS, at /load and at /metrics"),
    DBL("engine-metrics-interval", engine_metrics_interval, "1", 0.05, 3600, "seconds between two looks at it"),
    ALIAS("engine-metrics-max-age", "engine-load-max-age"),
    DBL("engine-load-max-age", engine_metrics_max_age, "10", 0.1, 86400, "seconds for which a load that an engine tells is used"),
    GROUP("ports", "Ports"),
    STR("host", host, "127.0.0.1", "ADDRESS", "address of the HTTP port; 0.0.0.0 = every one, for routers on other machines"),
    NUM("port", port, "5559", 0, 65535, "HTTP port; 0 = a free one, which the first line tells"),
    MORE,
    STR("allowed-hosts", allowed_hosts, NULL, "NAME[,NAME...]",
        "further names in Host and Origin, beside addresses, loopback, this machine's name and --advertise-host; .DOMAIN: all under it; *: "
        "all"),
    DBL("client-write-timeout", client_write_timeout, "30", 0, 864000,
        "seconds a client may take nothing of its answer before it is cut off; 0 = off"),
    GROUP("publish", "What is published"),
    STR("publish", publish, "tcp://127.0.0.1:5560", "ENDPOINT",
        "zmq: where to publish, tcp://*:PORT for every address; rank r at port + r - dp-start"),
    STR("announce", announce, NULL, "URL", "tell routers with --discovery nats of this engine, whose HTTP address this is"),
    MORE,
    ENU("publish-format", publish_format, "engine", "engine|envelope", "zmq: as engines do, or router events in envelopes"),
    ENU("engine", engine, "vllm", "vllm|sglang", "told with it: whose engine it is"),
    NUM("total-kv-blocks", total_kv_blocks, "0", 0, 1e15, "told with it: blocks of a rank's cache; 0 = not known"),
    NUM("max-num-batched-tokens", max_num_batched_tokens, "0", 0, 1e15, "told with it: tokens of a pass; 0 = not known"),
    STR("advertise-host", advertise_host, NULL, "HOST", "the name that others reach this machine by; default: its own"),
    GROUP("limits", "Limits"),
    MORE,
    NUM("buffer-events", buffer_events, "1024", 1, 1e8, "events kept for those who lack some"),
    SIZ("buffer-bytes", buffer_bytes, "16MiB", "most bytes of these"),
    SIZ("index-max-bytes", index_max_bytes, "0", "most bytes of a rank's local index; past it dumps are refused; 0 = no limit"),
    PLANE_ROWS(AT(plane)),
    LOG_ROWS(AT(log)),
};

static int run(void *options, struct command_call *)
{
    kvr_log_set_spoken(false);
    return publish_main(options);
}

const struct command command_publish = {.table = {"publish", "beside one engine: local index, recovery, events published again",
                                                  help_publish, rows, KVR_ARRAY_LEN(rows), NULL, false},
                                        .options_size = sizeof(struct publish_options),
                                        .run = run,
                                        .stays = true};
