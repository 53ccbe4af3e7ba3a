/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row per option gives its flag (--name), environment name (KVROUTE_NAME), YAML key (name), help and checks; man pages, completions and
 * the page of options are made of the same rows (cli/man.c, cli/completion.c, options_help.c).
 * Flag beats environment beats file beats default. Unknown keys and bad values end with a message that names the
 * key, the value and what is allowed, and of a file its line; of a file all of them are told.
 *
 * A row of type OPT_GROUP begins a group of the rows behind it; what is behind an OPT_MORE in it is shown by `--help all` and
 * `--help GROUP` alone. A group that begins again goes on: tables are put together of rows that programs share.
 */
#ifndef KVR_CLI_OPTIONS_H
#define KVR_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "wire/entry.h"

enum option_type {
    OPT_STRING,  /* char * */
    OPT_U64,     /* uint64_t, min..max */
    OPT_DOUBLE,  /* double, min..max */
    OPT_SIZE,    /* uint64_t bytes: plain, KiB, MiB, GiB */
    OPT_BOOL,    /* bool; --name, --no-name, or a value in files and environment */
    OPT_ENUM,    /* int: place in `values`, separated by | */
    OPT_LIST,    /* struct option_list; repeatable. YAML: a list, or a mapping for NAME=VALUE */
    OPT_WORDS,   /* char *; commas in it. YAML: also a list */
    OPT_PAIRS,   /* char *; KEY=VALUE,... YAML: also a list of such texts, or a mapping */
    OPT_ENTRIES, /* struct option_entries: URL[,KEY=VALUE...]; repeatable. YAML: a list of such texts, or of mappings with the key url */
    OPT_GROUP,   /* no option: the rows behind it are the group `name`, of which `help` is the title */
    OPT_MORE     /* no option: the rows behind it, in this group, are for those who ask for them */
};

struct option_list {
    char **items;
    size_t n;
};

struct option_entries {
    struct kvr_entry *items;
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

/* Behind the help may stand `env`. */
#define ROW(name, type, at, initial, min, max, values, help, ...)                                                                          \
    {                                                                                                                                      \
        name, type, at, initial, min, max, values, help, .alias_of = NULL, ##__VA_ARGS__                                                   \
    }
#define GROUP(name, title) ROW(name, OPT_GROUP, 0, NULL, 0, 0, NULL, title)
#define MORE               ROW("", OPT_MORE, 0, NULL, 0, 0, NULL, NULL)
/* Another spelling of the row `of`: the old name of what was renamed, or that of other software. */
#define ALIAS(old, of)                                                                                                                     \
    {                                                                                                                                      \
        .name = old, .type = OPT_STRING, .alias_of = of                                                                                    \
    }

struct option_table {
    const char *command;
    const char *title; /* what the command is, in a line */
    const char *text;  /* how it is used: help/COMMAND.txt */
    const struct option_row *rows;
    size_t n;
    const char *operands; /* what may stand beside the options, as help/COMMAND.txt names it; NULL: nothing */
    bool only_flags;      /* no file and no environment, but for the log's */
};

enum { SOURCE_DEFAULT, SOURCE_FILE, SOURCE_ENVIRONMENT, SOURCE_FLAG };

/* Where the values that count come from: options_free() frees it. */
struct options_from {
    char **operands; /* in argv */
    size_t operands_n;
    const char *file;       /* borrowed; NULL: none was read */
    size_t *lines;          /* by row; 0: not from the file */
    unsigned char *sources; /* by row: SOURCE_... */
};

/* Who hears of what is wrong, in place of the log. */
struct options_ear {
    void (*fn)(void *arg, const char *text);
    void *arg;
};

/* Fills `options`, and `from` unless it is NULL. Returns: 0 go on, 1 help was printed, 2 an error was printed. */
int options_parse(const struct option_table *t, int argc, char **argv, void *options, struct options_from *from);
/* The same of a file and nothing else. */
int options_parse_file(const struct option_table *t, const char *path, const struct options_ear *ear, void *options,
                       struct options_from *from);
/* The same from memory; `name` stands for the file, and outlives `from`. */
int options_parse_text(const struct option_table *t, const char *name, const char *text, size_t len, const struct options_ear *ear,
                       void *options, struct options_from *from);
/* The line of the file that sets an option, by this name or another of its; 0: none does, or it does not count. */
size_t options_line(const struct options_from *from, const struct option_table *t, const char *name);
/* Did anybody say it, by this name or another of its? */
bool options_given(const struct options_from *from, const struct option_table *t, const char *name);
/* The place of `s` among `values`, separated by |. *out is untouched when it is none of them. */
bool options_enum(const char *s, const char *values, int *out);
/* The options that somebody has said, as JSON: [{"name", "value", "from": "flag"|"environment"|"file", "line" (of a file)}]. Values are as
 * an option has them: a list for one that may be repeated. What may be secret is left out: users and passwords in URLs, the keys of an
 * entry, and an api-key with all behind it. Appended to `out`. */
void options_told(const struct option_table *t, const void *options, const struct options_from *from, struct kvr_buf *out);
void options_free(const struct option_table *t, void *options, struct options_from *from);

#endif
