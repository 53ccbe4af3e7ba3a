/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/log_options.h"
#include "cli/pages.h"

#define SHELLS "bash|zsh|fish"

static const struct option_row rows[] = {LOG_ROWS(0)};

static int run(const struct commands *all, int argc, char **argv)
{
    static void (*const print[])(FILE *, const struct commands *) = {completion_print_bash, completion_print_zsh, completion_print_fish};
    const struct option_table *t = &command_completion.table;
    struct kvr_log_options log = {0};
    struct options_from from;
    int shell, rc = options_parse(t, argc, argv, &log, &from);
    if (rc == 0 && (from.operands_n != 1 || !options_enum(from.operands[0], SHELLS, &shell))) {
        kvr_log_error("kvroute completion: one shell is needed; allowed: " SHELLS);
        rc = 2;
    }
    if (rc == 0) print[shell](stdout, all);
    else if (rc == 1) rc = 0;
    options_free(t, &log, &from);
    return rc;
}

const struct command command_completion = {.table = {"completion", "print what bash, zsh or fish completes commands with", help_completion,
                                                     rows, KVR_ARRAY_LEN(rows), SHELLS, true},
                                           .run_of_all = run};
