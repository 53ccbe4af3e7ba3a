/* SPDX-License-Identifier: Apache-2.0 */
/* What is made of all tables for others to install: man pages and completions. */
#ifndef KVR_CLI_PAGES_H
#define KVR_CLI_PAGES_H

#include <stdio.h>

#include "cli/commands.h"

/* ---- man.c ---- */

void man_print_program(FILE *f, const struct commands *all); /* kvroute(1) */
void man_print_command(FILE *f, const struct command *c);    /* kvroute-COMMAND(1) */
void man_print_file(FILE *f, const struct option_table *t);  /* kvroute.yaml(5): the keys of serve's table */

/* ---- completion.c ---- */

void completion_print_bash(FILE *f, const struct commands *all);
void completion_print_zsh(FILE *f, const struct commands *all);
void completion_print_fish(FILE *f, const struct commands *all);

#endif
