/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/log_options.h"
#include "cli/pages.h"

#define SHELLS "bash|zsh|fish"

static const struct option_row rows[] = {LOG_ROWS(0)};

static int run(void *, struct command_call *called)
{
    static void (*const print[])(FILE *, const struct commands *) = {completion_print_bash, completion_print_zsh, completion_print_fish};
    int shell;
    if (called->from.operands_n != 1 || !options_enum(called->from.operands[0], SHELLS, &shell)) {
        kvr_log_error("kvroute completion: one shell is needed; allowed: " SHELLS);
        return 2;
    }
    print[shell](stdout, called->all);
    return 0;
}

const struct command command_completion = {.table = {"completion", "print what bash, zsh or fish completes commands with", help_completion,
                                                     rows, KVR_ARRAY_LEN(rows), SHELLS, true},
                                           .options_size = sizeof(struct kvr_log_options),
                                           .run = run};
