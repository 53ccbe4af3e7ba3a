/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "app/curve/curve.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/help.h"

int cmd_curve_key(int argc, char **argv)
{
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        fputs(help_curve_key, stdout);
        return 0;
    }
    if (argc != 2 || argv[1][0] == '-') {
        kvr_log_error("kvroute curve-key: one argument is needed: the file to write");
        fprintf(stderr, "\n%s", help_curve_key);
        return 2;
    }
    return curve_key_main(argv[1]);
}
