/* SPDX-License-Identifier: Apache-2.0 */
/* Reads flags, environment and YAML by one table of rows; cli/options.h has the order in which they count. */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "base/base.h"
#include "base/log.h"

struct parse {
    const struct option_row *rows;
    size_t n;
    char *options;
    unsigned char *set;    /* who set a row last: 0 nobody, 1 file, 2 environment, 3 flag */
    unsigned char *warned; /* deprecated rows that have been spoken of */
    const char *command;
};

static const struct option_row *row_by_name(const struct parse *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->rows[i].name, name) == 0) return p->rows[i].alias_of ? row_by_name(p, p->rows[i].alias_of) : &p->rows[i];
    return NULL;
}

/* The same, for a name that a user wrote. */
static const struct option_row *row_given(struct parse *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct option_row *r = &p->rows[i];
        if (strcmp(r->name, name) || !r->alias_of || !r->values || p->warned[i]) continue;
        kvr_log_warning("kvroute %s: warning: %s is deprecated; use %s", p->command, name, r->alias_of);
        p->warned[i] = 1;
    }
    return row_by_name(p, name);
}

static void say_allowed(const struct option_row *r, char *out, size_t cap)
{
    switch (r->type) {
    case OPT_U64: snprintf(out, cap, "a whole number from %.0f to %.0f", r->min, r->max); break;
    case OPT_DOUBLE:
        if (r->max >= 1e300) snprintf(out, cap, "a number >= %g", r->min);
        else snprintf(out, cap, "a number from %g to %g", r->min, r->max);
        break;
    case OPT_SIZE: snprintf(out, cap, "a size in bytes, or with KiB, MiB or GiB"); break;
    case OPT_BOOL: snprintf(out, cap, "true or false"); break;
    case OPT_ENUM: snprintf(out, cap, "%s", r->values); break;
    case OPT_STRING:
    case OPT_LIST: snprintf(out, cap, "a text that is not empty"); break;
    }
}

static int bad_value(const struct parse *p, const struct option_row *r, const char *value, const char *source)
{
    char allowed[256];
    say_allowed(r, allowed, sizeof allowed);
    kvr_log_error("kvroute %s: %s%s: bad value '%s'; allowed: %s", p->command, source, r->name, value, allowed);
    return 2;
}

static bool parse_u64(const char *s, double min, double max, uint64_t *out)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*s)) return false;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno || *end || (double)v < min || (double)v > max) return false;
    *out = v;
    return true;
}

static bool parse_double(const char *s, double min, double max, double *out)
{
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    if (min == -1 && (!strcmp(s, "none") || !strcmp(s, "null"))) return *out = -1, true; /* -1 is off */
    if (end == s || *end || errno || !isfinite(v) || v < min || v > max) return false;
    *out = v;
    return true;
}

static bool parse_size(const char *s, uint64_t *out)
{
    static const struct {
        const char *unit;
        int shift;
    } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*s)) return false;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno) return false;
    while (*end == ' ') end++;
    for (size_t i = 0; i < KVR_ARRAY_LEN(units); i++)
        if (strcasecmp(end, units[i].unit) == 0) {
            if (v > UINT64_MAX >> 1 >> units[i].shift) return false;
            *out = v << units[i].shift;
            return true;
        }
    return false;
}

static bool parse_bool(const char *s, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(s, yes[i]) == 0) return *out = true, true;
        if (strcasecmp(s, no[i]) == 0) return *out = false, true;
    }
    return false;
}

bool options_enum(const char *s, const char *values, int *out)
{
    size_t len = strlen(s);
    int at = 0;
    for (const char *v = values; v; at++) {
        const char *bar = strchr(v, '|');
        size_t n = bar ? (size_t)(bar - v) : strlen(v);
        if (n == len && memcmp(v, s, n) == 0) return *out = at, true;
        v = bar ? bar + 1 : NULL;
    }
    return false;
}

static int list_add(struct option_list *l, const char *value)
{
    char **items = realloc(l->items, (l->n + 1) * sizeof *items);
    if (!items) return 2;
    l->items = items;
    items[l->n] = strdup(value);
    return items[l->n] ? (l->n++, 0) : 2;
}

static void list_clear(struct option_list *l)
{
    for (size_t i = 0; i < l->n; i++) free(l->items[i]);
    free(l->items);
    *l = (struct option_list){0};
}

static int assign(struct parse *p, const struct option_row *r, const char *value, int source, const char *prefix)
{
    size_t at = (size_t)(r - p->rows);
    void *place = p->options + r->offset;
    bool ok = true;
    if (p->set[at] > source) return 0;
    if (r->type == OPT_LIST && p->set[at] < source) list_clear(place);
    p->set[at] = (unsigned char)source;
    switch (r->type) {
    case OPT_STRING: {
        char **s = place;
        free(*s);
        *s = strdup(value);
        ok = *s && **s;
        break;
    }
    case OPT_U64: ok = parse_u64(value, r->min, r->max, place); break;
    case OPT_DOUBLE: ok = parse_double(value, r->min, r->max, place); break;
    case OPT_SIZE: ok = parse_size(value, place); break;
    case OPT_BOOL: ok = parse_bool(value, place); break;
    case OPT_ENUM: ok = options_enum(value, r->values, place); break;
    case OPT_LIST: ok = *value && list_add(place, value) == 0; break;
    }
    return ok ? 0 : bad_value(p, r, value, prefix);
}

static const struct option_row *row_of_type(const struct parse *p, const char *name, enum option_type type)
{
    const struct option_row *r = row_by_name(p, name);
    return r && r->type == type ? r : NULL;
}

/* What was said of the log so far holds from here on, for lines about further options too. */
static void apply_log(const struct parse *p)
{
    const struct option_row *format = row_of_type(p, "log-format", OPT_ENUM), *level = row_of_type(p, "log-level", OPT_ENUM);
    if (format && p->set[format - p->rows]) kvr_log_set_format(*(const enum kvr_log_format *)(const void *)(p->options + format->offset));
    if (level && p->set[level - p->rows]) kvr_log_set_level(*(const enum kvr_log_level *)(const void *)(p->options + level->offset));
}

/* ---- configuration file ------------------------------------------------------------------------------ */

static int file_error(const struct parse *p, const char *path, const yaml_mark_t *mark, const char *text)
{
    kvr_log_error("kvroute %s: %s:%zu: %s", p->command, path, mark->line + 1, text);
    return 2;
}

static int file_value(struct parse *p, const char *path, yaml_document_t *doc, const yaml_node_t *key, int value_id)
{
    const char *name = (const char *)key->data.scalar.value;
    const struct option_row *r = row_given(p, name);
    yaml_node_t *v = yaml_document_get_node(doc, value_id);
    char text[160];
    if (!r || !strcmp(r->name, "config")) {
        snprintf(text, sizeof text, "unknown key '%.80s'; `kvroute %s --help` lists the keys", name, p->command);
        return file_error(p, path, &key->start_mark, text);
    }
    if (v->type == YAML_SCALAR_NODE) return assign(p, r, (const char *)v->data.scalar.value, 1, "key ");
    if (v->type != YAML_SEQUENCE_NODE || r->type != OPT_LIST) {
        snprintf(text, sizeof text, "'%.80s' must be a %s", name, r->type == OPT_LIST ? "list of texts" : "single value");
        return file_error(p, path, &key->start_mark, text);
    }
    for (yaml_node_item_t *i = v->data.sequence.items.start; i < v->data.sequence.items.top; i++) {
        yaml_node_t *item = yaml_document_get_node(doc, *i);
        if (item->type != YAML_SCALAR_NODE) return file_error(p, path, &item->start_mark, "a list item must be a text");
        int rc = assign(p, r, (const char *)item->data.scalar.value, 1, "key ");
        if (rc) return rc;
    }
    return 0;
}

static int read_file(struct parse *p, const char *path)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    FILE *f = fopen(path, "rb");
    int rc = 0;
    if (!f) {
        kvr_log_error("kvroute %s: --config: cannot read '%s': %s", p->command, path, strerror(errno));
        return 2;
    }
    if (!yaml_parser_initialize(&parser)) {
        fclose(f);
        return 2;
    }
    yaml_parser_set_input_file(&parser, f);
    if (!yaml_parser_load(&parser, &doc)) {
        rc = file_error(p, path, &parser.problem_mark, parser.problem ? parser.problem : "not YAML");
    } else {
        yaml_node_t *root = yaml_document_get_root_node(&doc);
        if (root && root->type != YAML_MAPPING_NODE) rc = file_error(p, path, &root->start_mark, "a mapping of keys is expected");
        for (yaml_node_pair_t *i = root && rc == 0 ? root->data.mapping.pairs.start : NULL;
             rc == 0 && i && i < root->data.mapping.pairs.top; i++) {
            yaml_node_t *key = yaml_document_get_node(&doc, i->key);
            rc = key->type == YAML_SCALAR_NODE ? file_value(p, path, &doc, key, i->value)
                                               : file_error(p, path, &key->start_mark, "a key must be a text");
        }
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&parser);
    fclose(f);
    return rc;
}

/* ---- environment, flags, help ------------------------------------------------------------------------ */

static void env_name(const char *name, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "KVROUTE_%s", name);
    for (size_t i = 0; i < n && i < cap; i++) out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

static int read_environment(struct parse *p)
{
    char name[128];
    for (size_t i = 0; i < p->n; i++) {
        env_name(p->rows[i].name, name, sizeof name);
        char *v = getenv(name);
        if (v) row_given(p, p->rows[i].name);
        if (!v && p->rows[i].env) {
            v = getenv(p->rows[i].env);
            snprintf(name, sizeof name, "%s", p->rows[i].env);
        }
        const struct option_row *r = row_by_name(p, p->rows[i].name);
        KVR_ASSERT(r != NULL);
        if (!v || !strcmp(r->name, "config")) continue;
        if (r->type != OPT_LIST) {
            char prefix[160];
            snprintf(prefix, sizeof prefix, "%s: ", name);
            int rc = assign(p, r, v, 2, prefix);
            if (rc) return rc;
            continue;
        }
        char *copy = strdup(v), *rest = copy, *item; /* list items are separated by blanks */
        int rc = copy ? 0 : 2;
        while (rc == 0 && (item = strsep(&rest, " \n"))) rc = *item ? assign(p, r, item, 2, "KVROUTE_* of ") : 0;
        free(copy);
        if (rc) return rc;
    }
    return 0;
}

static void print_help(const char *usage, const struct parse *p)
{
    printf("%s\nOptions (flag --name VALUE, environment KVROUTE_NAME, YAML key name; flag beats environment beats file):\n", usage);
    for (size_t i = 0; i < p->n; i++) {
        const struct option_row *r = &p->rows[i];
        char left[96];
        if (r->alias_of) {
            printf("  --%-40s same as --%s\n", r->name, r->alias_of);
            continue;
        }
        if (r->type == OPT_BOOL) snprintf(left, sizeof left, "[no-]%s", r->name);
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

static void print_markdown(const struct parse *p)
{
    char env[128];
    printf("| flag and YAML key | environment | default | values | meaning |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < p->n; i++) {
        const struct option_row *r = &p->rows[i];
        env_name(r->name, env, sizeof env);
        printf("| `%s` | `%s`", r->name, env);
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

static int read_flag(struct parse *p, const char *flag, const char *value)
{
    bool negated = strncmp(flag, "no-", 3) == 0 && !row_by_name(p, flag);
    const struct option_row *r = row_given(p, negated ? flag + 3 : flag);
    KVR_ASSERT(r != NULL);
    if (r->type == OPT_BOOL) return assign(p, r, negated ? "false" : value ? value : "true", 3, "--");
    return assign(p, r, value, 3, "--");
}

/* Flags that are read before everything else: what others are read from, and how the log speaks of them. */
static bool is_early(const char *flag)
{
    return !strcmp(flag, "config") || !strcmp(flag, "log-format") || !strcmp(flag, "log-level");
}

static int read_flags(struct parse *p, const char *usage, int argc, char **argv, bool early)
{
    struct option *longs = calloc(2 * p->n + 2, sizeof *longs);
    char(*negated)[96] = calloc(p->n, sizeof *negated);
    int rc = longs && negated ? 0 : 2, at = 0;
    for (size_t i = 0; i < p->n && rc == 0; i++) {
        const struct option_row *r = row_by_name(p, p->rows[i].name);
        KVR_ASSERT(r != NULL);
        longs[at++] = (struct option){p->rows[i].name, r->type == OPT_BOOL ? optional_argument : required_argument, NULL, 1};
        if (r->type != OPT_BOOL) continue;
        snprintf(negated[i], sizeof negated[i], "no-%s", p->rows[i].name);
        longs[at++] = (struct option){negated[i], no_argument, NULL, 1};
    }
    if (rc == 0) longs[at] = (struct option){"help", optional_argument, NULL, 'h'};
    optind = 0;
    opterr = 0;
    while (rc == 0) {
        int index = 0, arg = optind ? optind : 1, c = getopt_long(argc, argv, ":h", longs, &index);
        if (c == -1) break;
        if (c == 'h') {
            if (optarg && !strcmp(optarg, "markdown")) print_markdown(p);
            else print_help(usage, p);
            rc = 1;
        } else if (c == ':') {
            kvr_log_error("kvroute %s: %s needs a value", p->command, argv[optind - 1]);
            rc = 2;
        } else if (c == '?') {
            kvr_log_error("kvroute %s: unknown option '%s'; `kvroute %s --help` lists the options", p->command, argv[arg], p->command);
            rc = 2;
        } else if (early == is_early(longs[index].name)) {
            rc = read_flag(p, longs[index].name, optarg);
            apply_log(p);
        }
    }
    if (rc == 0 && optind < argc) {
        kvr_log_error("kvroute %s: unexpected argument '%s'", p->command, argv[optind]);
        rc = 2;
    }
    free(longs);
    free(negated);
    return rc;
}

int options_parse(const char *usage, const struct option_row *rows, size_t n, int argc, char **argv, void *options)
{
    struct parse p = {.rows = rows, .n = n, .options = options, .set = calloc(n, 1), .warned = calloc(n, 1), .command = argv[0]};
    int rc = p.set && p.warned ? 0 : 2;
    for (size_t i = 0; i < n && rc == 0; i++)
        if (rows[i].initial && !rows[i].alias_of) rc = assign(&p, &rows[i], rows[i].initial, 0, "default of ");
    const struct option_row *config = rc ? NULL : row_by_name(&p, "config");
    if (rc == 0) rc = read_flags(&p, usage, argc, argv, true);
    if (rc == 0 && config) {
        const char *path = *(char **)(void *)(p.options + config->offset);
        if (!path) path = getenv("KVROUTE_CONFIG");
        if (path) rc = read_file(&p, path);
    }
    if (rc == 0) rc = read_environment(&p);
    if (rc == 0) apply_log(&p);
    if (rc == 0) rc = read_flags(&p, usage, argc, argv, false);
    free(p.set);
    free(p.warned);
    return rc;
}

void options_free(const struct option_row *rows, size_t n, void *options)
{
    for (size_t i = 0; i < n; i++) {
        void *place = (char *)options + rows[i].offset;
        if (rows[i].alias_of) continue;
        if (rows[i].type == OPT_STRING) free(*(char **)place);
        if (rows[i].type == OPT_LIST) list_clear(place);
    }
}
