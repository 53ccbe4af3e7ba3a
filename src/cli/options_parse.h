/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of cli/options.h share, and nobody else:
 *
 *     options.c     flags, environment, who beats whom
 *       |    options_file.c   YAML
 *       |    options_help.c   --help
 *     options_values.c        rows, and values from texts
 *     options_rows.c          names and groups of rows
 */
#ifndef KVR_CLI_OPTIONS_PARSE_H
#define KVR_CLI_OPTIONS_PARSE_H

#include "cli/options.h"
#include "cli/options_rows.h"

struct options_parse {
    const struct option_table *t;
    char *options;
    unsigned char *set;    /* who set a row last: SOURCE_... */
    unsigned char *warned; /* deprecated rows that have been spoken of */
    size_t *lines;         /* where the file sets a row; 0: nowhere */
    const char *file;      /* NULL: none was read */
    char **operands;
    size_t operands_n;
    size_t line; /* of what is assigned now, while the file is read */
    const struct options_ear *ear;
};

/* options_row, for a name that a user wrote: it warns of deprecated ones. */
const struct option_row *options_row_given(struct options_parse *p, const char *name);
/* The row that "no-NAME" is the opposite of. NULL: none. */
const struct option_row *options_row_negated(struct options_parse *p, const char *name);

/* Does somebody of a higher rank say it, so that the value of `source` does not count? Else it is the first of its source, or one more. */
bool options_take(struct options_parse *p, const struct option_row *r, int source);
/* Sets a row that options_take() has given. false: the value is not allowed. */
bool options_set(struct options_parse *p, const struct option_row *r, const char *value);
/* "bad value 'x'; allowed: ..." */
void options_say_bad(const struct option_row *r, const char *value, char *out, size_t cap);
/* Frees what a list has; nothing of others. */
void options_clear(const struct option_row *r, void *place);
/* Adds an entry, which the list owns from then on. Returns: 0, or -1: out of memory. */
int options_add_entry(struct option_entries *l, const struct kvr_entry *e);

/* Something is wrong. Returns: 2. */
int options_tell(const struct options_parse *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Returns: 0, or 2 and what is wrong was told. */
int options_read_yaml(struct options_parse *p, const char *path);
/* The same from memory; `name` stands for the file, and outlives p. */
int options_read_text(struct options_parse *p, const char *name, const char *text, size_t len);

/* What --help says; of `topic`: NULL, all, a group, an option, markdown. Returns: 0, or -1: there is no such topic. */
int options_print_help(const struct option_table *t, const char *topic);

#endif
