/* SPDX-License-Identifier: Apache-2.0 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/doctor/doctor.h"
#include "cli/commands.h"
#include "cli/log_options.h"

static const char usage[] =
    "usage: kvroute doctor [options] URL[,key=value...]...\n\n"
    "Looks for every known cause of silent cache misses and prints one line for each check: ok, problem or unknown, and what to do.\n"
    "A URL is a router's admin or data port, a selection service, an indexer, a sidecar (kvroute publish) or an engine. An\n"
    "engine is asked for its block size, its events and its ranks; keys are for one that does not tell: events=tcp://host:port,\n"
    "replay=tcp://host:port, recover=URL, block-size=N, model=NAME, dp-start=N, dp-size=N.\n"
    "Doctor sends a few short prompts of random words to the engines it examines.\n\n"
    "  --json             one JSON object instead of lines\n"
    "  --quiet            leave out what is ok\n"
    "  --no-probe         send no prompts: only look\n"
    "  --api-key KEY      bearer token for the URLs that are given\n"
    "  --api-key-file F   the same from a file, its first key\n"
    "  --tls-ca FILE      certificates (PEM) that sign those of https targets; default: the system's\n"
    "  --engine-api-key KEY  bearer token for engines that a router lists\n"
    "  --tokenizer-dir [MODEL=]DIR  the folder of a model, or of all: are its token ids the engines'? Repeatable; without\n"
    "                     it the `root` that an engine tells, where that is on this machine and the library is there\n"
    "  --tokenizer-lib F  libkvr_tokenizer.so; default: beside the program, in ../lib/kvroute, where it was installed\n"
    "  --tokenizer-profile JSON  what the engines do with a chat before its template; default: all profiles are tried\n"
    "  --timeout SECONDS  for one HTTP answer; default 30\n" LOG_USAGE "  --help\n\n"
    "Exit status: 0 nothing found, 1 a problem was found, 2 bad usage or a target that cannot be examined.\n";

int cmd_doctor(int argc, char **argv)
{
    static const struct option rows[] = {{"json", no_argument, NULL, 'j'},
                                         {"quiet", no_argument, NULL, 'q'},
                                         {"no-probe", no_argument, NULL, 'n'},
                                         {"api-key", required_argument, NULL, 'k'},
                                         {"api-key-file", required_argument, NULL, 'f'},
                                         {"tls-ca", required_argument, NULL, 'a'},
                                         {"engine-api-key", required_argument, NULL, 'e'},
                                         {"timeout", required_argument, NULL, 't'},
                                         {"tokenizer-dir", required_argument, NULL, 'd'},
                                         {"tokenizer-lib", required_argument, NULL, 'l'},
                                         {"tokenizer-profile", required_argument, NULL, 'p'},
                                         {"log-format", required_argument, NULL, 'L'},
                                         {"log-level", required_argument, NULL, 'L'},
                                         {"help", no_argument, NULL, 'h'},
                                         {NULL, 0, NULL, 0}};
    char *dirs[DOCTOR_DIRS_MAX];
    struct doctor_options o = {.timeout = 30, .tokenizer_dirs = dirs};
    char *end = NULL;
    int c, at = 0;
    while ((c = getopt_long(argc, argv, "h", rows, &at)) != -1) {
        if (c == 'j') o.json = true;
        else if (c == 'q') o.quiet = true;
        else if (c == 'n') o.no_probe = true;
        else if (c == 'k') o.key = optarg;
        else if (c == 'f') o.key_file = optarg;
        else if (c == 'a') o.tls_ca = optarg;
        else if (c == 'e') o.engine_key = optarg;
        else if (c == 'l') o.tokenizer_lib = optarg;
        else if (c == 'p') o.tokenizer_profile = optarg;
        else if (c == 'd' && o.tokenizer_dirs_n < DOCTOR_DIRS_MAX) dirs[o.tokenizer_dirs_n++] = optarg;
        else if (c == 'd') {
            kvr_log_error("kvroute doctor: --tokenizer-dir: allowed: at most %d", DOCTOR_DIRS_MAX);
            return 2;
        } else if (c == 't') o.timeout = strtod(optarg, &end);
        else if (c == 'L') {
            if (log_from_flag("doctor", rows[at].name, optarg)) return 2;
        } else if (c == 'h') return fputs(usage, stdout) < 0;
        else return 2;
    }
    if (end && (*end || o.timeout <= 0 || o.timeout > 3600)) {
        kvr_log_error("kvroute doctor: bad value for '--timeout'; allowed: seconds, more than 0 and at most 3600");
        return 2;
    }
    if (optind == argc) {
        kvr_log_error("kvroute doctor: no URL is given; see kvroute doctor --help");
        return 2;
    }
    o.targets = argv + optind;
    o.targets_n = (size_t)(argc - optind);
    return doctor_main(&o);
}
