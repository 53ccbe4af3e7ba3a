/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `kvroute replay-events`, which takes files as well as flags and so reads them by getopt. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/events/events.h"
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/log_options.h"

static int bad_value(const char *flag, const char *allowed)
{
    kvr_log_error("kvroute replay-events: bad value for '--%s'; allowed: %s", flag, allowed);
    return 2;
}

int cmd_replay_events(int argc, char **argv)
{
    static const struct option rows[] = {{"check", no_argument, NULL, 'c'},
                                         {"to", required_argument, NULL, 't'},
                                         {"model-name", required_argument, NULL, 'm'},
                                         {"routing-group", required_argument, NULL, 'g'},
                                         {"block-size", required_argument, NULL, 'b'},
                                         {"timed", no_argument, NULL, 'T'},
                                         {"max-count", required_argument, NULL, 'n'},
                                         {"max-time", required_argument, NULL, 's'},
                                         {"api-key", required_argument, NULL, 'k'},
                                         {"log-format", required_argument, NULL, 'L'},
                                         {"log-level", required_argument, NULL, 'L'},
                                         {"help", no_argument, NULL, 'h'},
                                         {NULL, 0, NULL, 0}};
    struct events_options o = {.model = "default", .group = "default", .block_size = 16};
    bool check = false;
    char *end = NULL;
    int c, at = 0;
    while ((c = getopt_long(argc, argv, "h", rows, &at)) != -1) {
        if (c == 'c') check = true;
        else if (c == 't') o.to = optarg;
        else if (c == 'm') o.model = optarg;
        else if (c == 'g') o.group = optarg;
        else if (c == 'T') o.timed = true;
        else if (c == 'k') o.key = optarg;
        else if (c == 'h') return fputs(help_replay_events, stdout) < 0;
        else if (c == 'L') {
            if (log_from_flag("replay-events", rows[at].name, optarg)) return 2;
        } else if (c == 'b') {
            if (!kvr_parse_u64(optarg, strlen(optarg), 65536, &o.block_size) || !o.block_size) return bad_value("block-size", "1 to 65536");
        } else if (c == 'n') {
            if (!kvr_parse_u64(optarg, strlen(optarg), UINT64_MAX, &o.max_count) || !o.max_count)
                return bad_value("max-count", "a whole number above 0");
        } else if (c == 's') {
            o.max_time = strtod(optarg, &end);
            if (*end || o.max_time <= 0) return bad_value("max-time", "seconds, more than 0");
        } else {
            return 2;
        }
    }
    if (check == (o.to != NULL)) {
        kvr_log_error("kvroute replay-events: either --check or --to URL is needed; see kvroute replay-events --help");
        return 2;
    }
    if (optind == argc) {
        kvr_log_error("kvroute replay-events: no file is given; see kvroute replay-events --help");
        return 2;
    }
    o.files = argv + optind;
    o.files_n = (size_t)(argc - optind);
    return events_main(&o);
}
