/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row per option gives its flag (--name), environment name (KVROUTE_NAME), YAML key (name), help and checks.
 * Flag beats environment beats file beats default. Unknown keys and bad values end with a message that names the
 * key, the value and what is allowed. `--help=markdown` prints the table for the documentation.
 */
#ifndef KVR_CLI_OPTIONS_H
#define KVR_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

enum option_type {
    OPT_STRING, /* char * */
    OPT_U64,    /* uint64_t, min..max */
    OPT_DOUBLE, /* double, min..max */
    OPT_SIZE,   /* uint64_t bytes: plain, KiB, MiB, GiB */
    OPT_BOOL,   /* bool; --name, --no-name, or a value in files and environment */
    OPT_ENUM,   /* int: place in `values`, separated by | */
    OPT_LIST    /* struct option_list; repeatable */
};

struct option_list {
    char **items;
    size_t n;
};

struct option_row {
    const char *name;
    enum option_type type;
    size_t offset;       /* in the options struct */
    const char *initial; /* NULL: 0, false, NULL */
    double min, max;     /* OPT_U64, OPT_DOUBLE */
    const char *values;  /* OPT_ENUM: "kv|random"; others: what the help shows for the value */
    const char *help;
    const char *alias_of; /* another row's name: this one is an accepted alias; `values` "deprecated": it warns, once */
    const char *env;      /* an environment name of other software that is read too; KVROUTE_NAME beats it. NULL: none */
};

/* Fills `options`. argv[0] is the subcommand's name. Returns: 0 go on, 1 help was printed, 2 an error was printed. */
int options_parse(const char *usage, const struct option_row *rows, size_t n, int argc, char **argv, void *options);
/* The place of `s` among `values`, separated by |. *out is untouched when it is none of them. */
bool options_enum(const char *s, const char *values, int *out);
void options_free(const struct option_row *rows, size_t n, void *options);

#endif
