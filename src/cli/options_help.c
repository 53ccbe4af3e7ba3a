/* SPDX-License-Identifier: Apache-2.0 */
/* --help and --help=markdown of a table of options. */
#include <ctype.h>
#include <stdio.h>

#include "cli/options_parse.h"

void options_env_name(const char *name, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "KVROUTE_%s", name);
    for (size_t i = 0; i < n && i < cap; i++) out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

void options_print_help(const char *usage, const struct options_parse *p)
{
    printf("%s\nOptions (flag --name VALUE, environment KVROUTE_NAME, YAML key name; flag beats environment beats file):\n", usage);
    for (size_t i = 0; i < p->n; i++) {
        const struct option_row *r = &p->rows[i];
        char left[96];
        if (r->alias_of) {
            printf("  --%-40s same as --%s\n", r->name, r->alias_of);
            continue;
        }
        if (r->type == OPT_BOOL) snprintf(left, sizeof left, "%s%s", options_only_flag(r) ? "" : "[no-]", r->name);
        else
            snprintf(left, sizeof left, "%s %s", r->name,
                     r->values               ? r->values
                     : r->type == OPT_DOUBLE ? "NUMBER"
                     : r->type == OPT_SIZE   ? "SIZE"
                     : r->type == OPT_U64    ? "N"
                                             : "TEXT");
        printf("  --%-40s %s", left, r->help);
        if (r->initial) printf(" (default %s)", r->initial);
        printf("\n");
    }
    printf("  --%-40s %s\n", "help", "print this and exit");
}

static const char *type_name(const struct option_row *r)
{
    return r->type == OPT_BOOL     ? "true, false"
           : r->type == OPT_DOUBLE ? "number"
           : r->type == OPT_SIZE   ? "size"
           : r->type == OPT_U64    ? "whole number"
                                   : "text";
}

static void print_range(const struct option_row *r)
{
    if (r->type == OPT_ENUM) {
        for (const char *v = r->values; *v; v++) *v == '|' ? fputs(", ", stdout) : putchar(*v);
    } else if (r->type != OPT_U64 && r->type != OPT_DOUBLE) {
        fputs(r->values ? r->values : type_name(r), stdout);
    } else if (r->max >= 1e300) {
        printf("%s, from %g", type_name(r), r->min);
    } else {
        printf("%s, %.10g to %.10g", type_name(r), r->min, r->max);
    }
}

void options_print_markdown(const struct options_parse *p)
{
    char env[128];
    printf("| flag and YAML key | environment | default | values | meaning |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < p->n; i++) {
        const struct option_row *r = &p->rows[i];
        options_env_name(r->name, env, sizeof env);
        printf("| `%s` | ", r->name);
        if (!options_no_variable(r)) printf("`%s`", env);
        if (r->alias_of) {
            printf(" | | | same as `%s`%s |\n", r->alias_of, r->values ? "; deprecated" : "");
            continue;
        }
        if (r->env) printf(", `%s`", r->env);
        printf(" | %s | ", r->initial ? r->initial : "");
        print_range(r);
        printf(" | ");
        for (const char *h = r->help; *h; h++) *h == '|' ? fputs("\\|", stdout) : putchar(*h);
        printf(" |\n");
    }
}
