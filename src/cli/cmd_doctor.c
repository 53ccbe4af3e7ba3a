/* SPDX-License-Identifier: Apache-2.0 */
#include "app/doctor/doctor.h"
#include "base/base.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/help.h"

struct doctor_cli {
    struct doctor_options o;
    struct option_list tokenizer_dirs;
    struct kvr_log_options log;
};

#define OPTIONS     struct doctor_cli
#define FIELD(name) o.name
#include "cli/log_options.h"
#include "cli/option_rows.h"

static const struct option_row rows[] = {
    BOO("json", json, "false", "one JSON object instead of lines"),
    BOO("quiet", quiet, "false", "leave out what is ok"),
    BOO("probe", probe, "true", "send a few short prompts of random words to the engines; without: only look"),
    BOO("health", health, "false", "only ask for /health, as a container's health check: exit status 0, or 1"),
    STR("api-key", key, NULL, "KEY", "bearer token for the URLs that are given"),
    STR("api-key-file", key_file, NULL, "FILE", "the same from a file, its first key"),
    STR("tls-ca", tls_ca, NULL, "FILE", "certificates (PEM) that sign those of https targets; default: the system's"),
    STR("engine-api-key", engine_key, NULL, "KEY", "bearer token for engines that a router lists"),
    ROW("tokenizer-dir", OPT_LIST, offsetof(struct doctor_cli, tokenizer_dirs), NULL, 0, 0, "[MODEL=]DIR",
        "the folder of a model, or of all: are its token ids the engines'? Repeatable; without it the `root` that an engine tells, where "
        "that is on this machine and the library is there"),
    STR("tokenizer-lib", tokenizer_lib, NULL, "FILE",
        "libkvr_tokenizer.so; default: beside the program, in ../lib/kvroute, where it was installed"),
    STR("tokenizer-profile", tokenizer_profile, NULL, "JSON",
        "what the engines do with a chat before its template; default: all profiles are tried"),
    DBL("timeout", timeout, "30", 0.001, 3600, "seconds for one HTTP answer"),
    LOG_ROWS(offsetof(struct doctor_cli, log)),
};

static int run(void *options, struct command_call *called)
{
    struct doctor_cli *cli = options;
    if (!called->from.operands_n) {
        kvr_log_error("kvroute doctor: no URL is given; see kvroute doctor --help");
        return 2;
    }
    cli->o.targets = called->from.operands;
    cli->o.targets_n = called->from.operands_n;
    cli->o.tokenizer_dirs = cli->tokenizer_dirs.items;
    cli->o.tokenizer_dirs_n = cli->tokenizer_dirs.n;
    return doctor_main(&cli->o);
}

const struct command command_doctor = {.table = {"doctor", "find out why cache-aware routing misses, in a live deployment", help_doctor,
                                                 rows, KVR_ARRAY_LEN(rows), "URL[,key=value...]...", true},
                                       .options_size = sizeof(struct doctor_cli),
                                       .run = run};
