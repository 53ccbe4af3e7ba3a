/* SPDX-License-Identifier: Apache-2.0 */
#include "app/curve/curve.h"
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/log_options.h"

static const struct option_row rows[] = {LOG_ROWS(0)};

static int run(void *, struct command_call *called)
{
    if (called->from.operands_n == 1) return curve_key_main(called->from.operands[0]);
    kvr_log_error("kvroute curve-key: one argument is needed: the file to write; see kvroute curve-key --help");
    return 2;
}

const struct command command_curve_key = {
    .table = {"curve-key", "make a key pair that guards ZMQ connections", help_curve_key, rows, KVR_ARRAY_LEN(rows), "FILE", true},
    .options_size = sizeof(struct kvr_log_options),
    .run = run};
