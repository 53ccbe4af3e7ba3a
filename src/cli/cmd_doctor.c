/* SPDX-License-Identifier: Apache-2.0 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/doctor/doctor.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/log_options.h"

int cmd_doctor(int argc, char **argv)
{
    static const struct option rows[] = {{"json", no_argument, NULL, 'j'},
                                         {"quiet", no_argument, NULL, 'q'},
                                         {"no-probe", no_argument, NULL, 'n'},
                                         {"health", no_argument, NULL, 'H'},
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
        else if (c == 'H') o.health = true;
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
        } else if (c == 'h') return fputs(help_doctor, stdout) < 0;
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
