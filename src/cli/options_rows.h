/* SPDX-License-Identifier: Apache-2.0 */
/* A table of options as those see it who write of it: names, groups, and the words for a row. */
#ifndef KVR_CLI_OPTIONS_ROWS_H
#define KVR_CLI_OPTIONS_ROWS_H

#include "cli/options.h"

/* The row of a name, or of what it is an alias of. NULL: there is none. */
const struct option_row *options_row(const struct option_table *t, const char *name);
/* One that is no key of a file, and is not read with the other variables. */
bool options_only_flag(const struct option_row *r);
/* One that is not read from the environment at all. */
bool options_no_variable(const struct option_row *r);
/* An option under its own name: no alias, and no mark between rows. */
bool options_own(const struct option_row *r);

/* The group that row i belongs to, NULL: none; *more: it is for those who ask for it. */
const struct option_row *options_group(const struct option_table *t, size_t i, bool *more);
/* The groups in their order, each once: the next one behind `group`, the first behind NULL. NULL: there is none. */
const struct option_row *options_next_group(const struct option_table *t, const struct option_row *group);

/* What stands for its value: "FILE", "N", "a|b"; NULL: a boolean, which needs none. */
const char *options_value(const struct option_row *r);
void options_env_name(const char *name, char *out, size_t cap);
/* Its other names, with `mark` before each: "--a, --b". An empty text: it has none. */
void options_aliases(const struct option_table *t, const struct option_row *r, const char *mark, char *out, size_t cap);

/* The option whose name `name` may be meant to be, without the no- that *negation then is. NULL: none is near. */
const char *options_nearest(const struct option_table *t, const char *name, const char **negation);

#endif
