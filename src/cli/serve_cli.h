/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `serve`, `select` and `check` share of options: what goes together, and how findings are told.
 *
 * A finding about an option that a file sets begins with FILE:LINE. A start says it in the log; a check prints it plainly on stderr.
 */
#ifndef KVR_CLI_SERVE_CLI_H
#define KVR_CLI_SERVE_CLI_H

#include "app/serve/serve.h"
#include "cli/file_lines.h"
#include "cli/options.h"

struct serve_cli {
    struct serve_options o;
    struct option_entries workers;
    struct option_list tokenizer_dirs;
};

/* Who counts and tells what is wrong. */
struct serve_checker {
    const char *command;
    const struct option_table *options;
    const struct options_from *from; /* NULL: no file of options */
    bool plain;                      /* on stderr as they are, by file and line, not in the log */
    struct file_lines findings;      /* that were not printed yet */
    unsigned wrong;                  /* findings so far */
    unsigned unread;                 /* files that could not be checked */
};

/* What follows from options, and whether they go together. */
void serve_cli_rules(struct serve_cli *cli, struct serve_checker *c);
/* What was said and changes nothing, and what to say instead: a warning for each, which is no finding. After serve_cli_rules. */
void serve_cli_effects(const struct serve_cli *cli, const struct serve_checker *c);
/* Everything that a start would read (app/serve/serve.h); facts on stdout. */
void serve_cli_check(struct serve_cli *cli, struct serve_checker *c);
/* One of the other files. */
void serve_cli_check_file(enum serve_file kind, const char *path, struct serve_checker *c);
/* Two of them that belong together. */
void serve_cli_check_classes(const char *keys, const char *policy, struct serve_checker *c);
/* The last line of a check. Returns: the exit code: 0, 1 when anything is wrong, 2 when there was something unread. */
int serve_checker_end(struct serve_checker *c);

/* `keys`: names of options, separated by |, of which the first that the file sets gives the line; NULL: the text says where it is. */
void serve_checker_tell(struct serve_checker *c, const char *keys, const char *text);

#endif
