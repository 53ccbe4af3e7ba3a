/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "app/curve/curve.h"
#include "base/log.h"
#include "cli/commands.h"

static const char usage[] =
    "usage: kvroute curve-key FILE\n\n"
    "Makes a key pair for --zmq-curve-key, writes it to FILE, which must not be there yet, and prints the public key, a line\n"
    "for the --zmq-curve-clients or --zmq-curve-servers file of others.\n";

int cmd_curve_key(int argc, char **argv)
{
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        fputs(usage, stdout);
        return 0;
    }
    if (argc != 2 || argv[1][0] == '-') {
        kvr_log_error("kvroute curve-key: one argument is needed: the file to write");
        fprintf(stderr, "\n%s", usage);
        return 2;
    }
    return curve_key_main(argv[1]);
}
