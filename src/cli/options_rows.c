/* SPDX-License-Identifier: Apache-2.0 */
/* Names and groups of rows: cli/options_rows.h. */
#include "cli/options_rows.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"

/* ---- rows -------------------------------------------------------------------------------------------- */

const struct option_row *options_row(const struct option_table *t, const char *name)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->rows[i].type < OPT_GROUP && strcmp(t->rows[i].name, name) == 0)
            return t->rows[i].alias_of ? options_row(t, t->rows[i].alias_of) : &t->rows[i];
    return NULL;
}

bool options_only_flag(const struct option_row *r)
{
    return !strcmp(r->name, "config") || options_no_variable(r);
}

bool options_no_variable(const struct option_row *r)
{
    return !strcmp(r->name, "check");
}

bool options_own(const struct option_row *r)
{
    return r->type < OPT_GROUP && !r->alias_of;
}

/* ---- groups ------------------------------------------------------------------------------------------ */

/* The first row of a group, which may begin several times. */
static const struct option_row *first_of(const struct option_table *t, const char *group)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->rows[i].type == OPT_GROUP && !strcmp(t->rows[i].name, group)) return &t->rows[i];
    return NULL;
}

const struct option_row *options_group(const struct option_table *t, size_t i, bool *more)
{
    *more = false;
    for (size_t at = i + 1; at-- > 0;) {
        if (t->rows[at].type == OPT_MORE) *more = true;
        if (t->rows[at].type == OPT_GROUP) return first_of(t, t->rows[at].name);
    }
    return NULL;
}

const struct option_row *options_next_group(const struct option_table *t, const struct option_row *group)
{
    for (const struct option_row *r = group ? group + 1 : t->rows; r < t->rows + t->n; r++)
        if (r->type == OPT_GROUP && first_of(t, r->name) == r) return r;
    return NULL;
}

/* ---- words ------------------------------------------------------------------------------------------- */

const char *options_value(const struct option_row *r)
{
    return r->type == OPT_BOOL     ? NULL
           : r->values             ? r->values
           : r->type == OPT_DOUBLE ? "NUMBER"
           : r->type == OPT_SIZE   ? "SIZE"
           : r->type == OPT_U64    ? "N"
                                   : "TEXT";
}

void options_env_name(const char *name, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "KVROUTE_%s", name);
    for (size_t i = 0; i < n && i < cap; i++) out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

void options_aliases(const struct option_table *t, const struct option_row *r, const char *mark, char *out, size_t cap)
{
    size_t n = 0;
    *out = 0;
    for (size_t i = 0; i < t->n && n < cap; i++)
        if (t->rows[i].alias_of && options_row(t, t->rows[i].name) == r)
            n += (size_t)snprintf(out + n, cap - n, "%s%s%s%s", n ? ", " : "", mark, t->rows[i].name, strcmp(mark, "`") ? "" : "`");
}

const char *options_nearest(const struct option_table *t, const char *name, const char **negation)
{
    bool negated = strncmp(name, "no-", 3) == 0;
    struct kvr_nearest near = {.wanted = negated ? name + 3 : name};
    for (size_t i = 0; i < t->n; i++) {
        const struct option_row *r = options_row(t, t->rows[i].name);
        if (t->rows[i].type < OPT_GROUP && r && (!negated || (r->type == OPT_BOOL && !options_only_flag(r))))
            kvr_nearest_offer(&near, t->rows[i].name);
    }
    *negation = negated ? "no-" : "";
    return near.best;
}
