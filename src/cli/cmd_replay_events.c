/* SPDX-License-Identifier: Apache-2.0 */
#include "app/events/events.h"
#include "base/base.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/help.h"

struct events_cli {
    struct events_options o;
    bool check;
    struct kvr_log_options log;
};

#define OPTIONS     struct events_cli
#define FIELD(name) o.name
#include "cli/log_options.h"
#include "cli/option_rows.h"

static const struct option_row rows[] = {
    ROW("check", OPT_BOOL, offsetof(struct events_cli, check), "false", 0, 0, NULL, "rebuild an index from them and validate it"),
    STR("url", to, NULL, "URL", "send them to this indexer, which was started with --accept-events"),
    ALIAS("to", "url"),
    STR("model", model, "default", "NAME", "partition there"),
    ALIAS("model-name", "model"),
    STR("routing-group", group, "default", "NAME", "and its routing group"),
    NUM("block-size", block_size, "16", 1, 65536, "tokens per KV block of what was recorded"),
    BOO("timed", timed, "false", "at the times they were recorded; else as fast as possible"),
    NUM("max-count", max_count, "0", 0, 1e18, "at most so many events; 0 = all"),
    DBL("max-time", max_time, "0", 0, 1e9, "stop after that many seconds; 0 = at the end"),
    STR("api-key", key, NULL, "KEY", "bearer token of the indexer"),
    LOG_ROWS(offsetof(struct events_cli, log)),
};

static int wrong(const char *what)
{
    kvr_log_error("kvroute replay-events: %s; see kvroute replay-events --help", what);
    return 2;
}

static int run(void *options, struct command_call *called)
{
    struct events_cli *cli = options;
    if (cli->check == (cli->o.to != NULL)) return wrong("either --check or --url URL is needed");
    if (!called->from.operands_n) return wrong("no file is given");
    cli->o.files = called->from.operands;
    cli->o.files_n = called->from.operands_n;
    return events_main(&cli->o);
}

const struct command command_replay_events = {
    .table = {"replay-events", "check or replay a recording of KV events", help_replay_events, rows, KVR_ARRAY_LEN(rows), "FILE...", true},
    .options_size = sizeof(struct events_cli),
    .run = run};
