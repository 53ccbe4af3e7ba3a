/* SPDX-License-Identifier: Apache-2.0 */
#include "app/curve/curve.h"
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/log_options.h"

static const struct option_row rows[] = {LOG_ROWS(0)};

static int run(int argc, char **argv)
{
    struct kvr_log_options log = {0};
    struct options_from from;
    int rc = options_parse(&command_curve_key.table, argc, argv, &log, &from);
    if (rc == 0 && from.operands_n != 1) {
        kvr_log_error("kvroute curve-key: one argument is needed: the file to write; see kvroute curve-key --help");
        rc = 2;
    }
    if (rc == 0) rc = curve_key_main(from.operands[0]);
    else if (rc == 1) rc = 0;
    options_free(&command_curve_key.table, &log, &from);
    return rc;
}

const struct command command_curve_key = {
    .table = {"curve-key", "make a key pair that guards ZMQ connections", help_curve_key, rows, KVR_ARRAY_LEN(rows), "FILE", true},
    .run = run};
