/* SPDX-License-Identifier: Apache-2.0 */
/* Commands: what each is called and takes, and its program. main.c has the list of them, which is that of help, man pages and
 * completions. */
#ifndef KVR_CLI_COMMANDS_H
#define KVR_CLI_COMMANDS_H

#include "cli/options.h"

struct commands;
/* What a command is called with, beside its options. */
struct command_call {
    const struct commands *all;
    const struct option_table *table;
    struct options_from from;
};

struct command {
    struct option_table table;
    size_t options_size;                                    /* of the struct that the table's rows fill */
    int (*run)(void *options, struct command_call *called); /* Returns: the exit status */
    bool stays;                                             /* until a signal: what it prints is no result */
};

struct commands {
    const struct command *const *list;
    size_t n;
};

extern const struct command command_serve, command_epp, command_select, command_indexer, command_publish, command_check, command_doctor,
    command_mock, command_replay, command_replay_events, command_curve_key, command_hash, command_top, command_man, command_completion;

/* argv[0] is the command's name. Returns: the exit status. */
/* The exit status of who has printed all there is to say: 1 when it was 0 and the standard output could not be written. */
int command_printed(int rc);
int command_run(const struct command *c, const struct commands *all, int argc, char **argv);
/* NULL: there is none. */
const struct command *commands_find(const struct commands *all, const char *name);

#endif
