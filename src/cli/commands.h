/* SPDX-License-Identifier: Apache-2.0 */
/* Commands: what each is called and takes, and its program. main.c has the list of them, which is that of help, man pages and
 * completions. */
#ifndef KVR_CLI_COMMANDS_H
#define KVR_CLI_COMMANDS_H

#include "cli/options.h"

struct commands;
struct command {
    struct option_table table;
    int (*run)(int argc, char **argv);                                    /* argv[0] is the command's name. Returns: the exit status */
    int (*run_of_all)(const struct commands *all, int argc, char **argv); /* in its place, for one that speaks of all */
};

struct commands {
    const struct command *const *list;
    size_t n;
};

extern const struct command command_serve, command_epp, command_select, command_indexer, command_publish, command_check, command_doctor,
    command_mock, command_replay, command_replay_events, command_curve_key, command_hash, command_top, command_man, command_completion;

/* NULL: there is none. */
const struct command *commands_find(const struct commands *all, const char *name);

#endif
