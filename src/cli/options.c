/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options, and those of flags and environment; cli/options.h has the order in which they count. Files: options_file.c. */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"
#include "base/log.h"
#include "cli/options_parse.h"

const struct option_row *options_row(const struct options_parse *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->rows[i].name, name) == 0) return p->rows[i].alias_of ? options_row(p, p->rows[i].alias_of) : &p->rows[i];
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

const struct option_row *options_row_negated(struct options_parse *p, const char *name)
{
    if (strncmp(name, "no-", 3) != 0 || options_row(p, name)) return NULL;
    const struct option_row *r = options_row_given(p, name + 3);
    return r && r->type == OPT_BOOL && !options_only_flag(r) ? r : NULL;
}

const struct option_row *options_row_given(struct options_parse *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct option_row *r = &p->rows[i];
        if (strcmp(r->name, name) || !r->alias_of || !r->values || p->warned[i]) continue;
        kvr_log_warning("kvroute %s: warning: %s is deprecated; use %s", p->command, name, r->alias_of);
        p->warned[i] = 1;
    }
    return options_row(p, name);
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
    case OPT_WORDS:
    case OPT_PAIRS:
    case OPT_ENTRIES:
    case OPT_LIST: snprintf(out, cap, "a text that is not empty"); break;
    }
}

void options_say_bad(const struct option_row *r, const char *value, char *out, size_t cap)
{
    char allowed[256];
    say_allowed(r, allowed, sizeof allowed);
    snprintf(out, cap, "bad value '%.200s'; allowed: %s", value, allowed);
}

int options_tell(const struct options_parse *p, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (p->ear) p->ear->fn(p->ear->arg, text);
    else kvr_log_error("kvroute %s: %s", p->command, text);
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

int options_add_entry(struct option_entries *l, const struct kvr_entry *e)
{
    struct kvr_entry *items = realloc(l->items, (l->n + 1) * sizeof *items);
    if (!items) return -1;
    l->items = items;
    items[l->n++] = *e;
    return 0;
}

static bool add_entry_text(const struct options_parse *p, struct option_entries *l, const char *text)
{
    struct kvr_entry e;
    if (!*text || kvr_entry_parse(text, p->line ? p->file : NULL, p->line, &e)) return false;
    if (options_add_entry(l, &e) == 0) return true;
    kvr_entry_free(&e);
    return false;
}

static void entries_clear(struct option_entries *l)
{
    for (size_t i = 0; i < l->n; i++) kvr_entry_free(&l->items[i]);
    free(l->items);
    *l = (struct option_entries){0};
}

static void row_clear(const struct option_row *r, void *place)
{
    if (r->type == OPT_LIST) list_clear(place);
    if (r->type == OPT_ENTRIES) entries_clear(place);
}

bool options_take(struct options_parse *p, const struct option_row *r, int source)
{
    size_t at = (size_t)(r - p->rows);
    if (p->set[at] > source) return false;
    if (p->set[at] < source) row_clear(r, p->options + r->offset);
    p->set[at] = (unsigned char)source;
    return true;
}

bool options_set(struct options_parse *p, const struct option_row *r, const char *value)
{
    void *place = p->options + r->offset;
    switch (r->type) {
    case OPT_STRING:
    case OPT_WORDS:
    case OPT_PAIRS: {
        char **s = place, *copy = *value ? strdup(value) : NULL;
        if (!copy) return false;
        free(*s);
        *s = copy;
        return true;
    }
    case OPT_U64: return parse_u64(value, r->min, r->max, place);
    case OPT_DOUBLE: return parse_double(value, r->min, r->max, place);
    case OPT_SIZE: return parse_size(value, place);
    case OPT_BOOL: return parse_bool(value, place);
    case OPT_ENUM: return options_enum(value, r->values, place);
    case OPT_LIST: return *value && list_add(place, value) == 0;
    case OPT_ENTRIES: return add_entry_text(p, place, value);
    }
    return false;
}

static int assign(struct options_parse *p, const struct option_row *r, const char *value, int source, const char *prefix)
{
    char why[512];
    if (!options_take(p, r, source) || options_set(p, r, value)) return 0;
    options_say_bad(r, value, why, sizeof why);
    return options_tell(p, "%s%s: %s", prefix, r->name, why);
}

static const struct option_row *row_of_type(const struct options_parse *p, const char *name, enum option_type type)
{
    const struct option_row *r = options_row(p, name);
    return r && r->type == type ? r : NULL;
}

/* What was said of the log so far holds from here on, for lines about further options too. */
static void apply_log(const struct options_parse *p)
{
    const struct option_row *format = row_of_type(p, "log-format", OPT_ENUM), *level = row_of_type(p, "log-level", OPT_ENUM);
    if (format && p->set[format - p->rows]) kvr_log_set_format(*(const enum kvr_log_format *)(const void *)(p->options + format->offset));
    if (level && p->set[level - p->rows]) kvr_log_set_level(*(const enum kvr_log_level *)(const void *)(p->options + level->offset));
}

/* ---- environment and flags --------------------------------------------------------------------------- */

static int read_environment(struct options_parse *p)
{
    char name[128];
    for (size_t i = 0; i < p->n; i++) {
        options_env_name(p->rows[i].name, name, sizeof name);
        char *v = getenv(name);
        if (v) options_row_given(p, p->rows[i].name);
        if (!v && p->rows[i].env) {
            v = getenv(p->rows[i].env);
            snprintf(name, sizeof name, "%s", p->rows[i].env);
        }
        const struct option_row *r = options_row(p, p->rows[i].name);
        KVR_ASSERT(r != NULL);
        if (!v || options_only_flag(r)) continue;
        if (r->type != OPT_LIST && r->type != OPT_ENTRIES) {
            char prefix[160];
            snprintf(prefix, sizeof prefix, "%s: ", name);
            int rc = assign(p, r, v, SOURCE_ENVIRONMENT, prefix);
            if (rc) return rc;
            continue;
        }
        char *copy = strdup(v), *rest = copy, *item; /* list items are separated by blanks */
        int rc = copy ? 0 : 2;
        while (rc == 0 && (item = strsep(&rest, " \n"))) rc = *item ? assign(p, r, item, SOURCE_ENVIRONMENT, "KVROUTE_* of ") : 0;
        free(copy);
        if (rc) return rc;
    }
    return 0;
}

static int read_flag(struct options_parse *p, const char *flag, const char *value)
{
    bool negated = strncmp(flag, "no-", 3) == 0 && !options_row(p, flag);
    const struct option_row *r = options_row_given(p, negated ? flag + 3 : flag);
    KVR_ASSERT(r != NULL);
    if (r->type == OPT_BOOL) return assign(p, r, negated ? "false" : value ? value : "true", SOURCE_FLAG, "--");
    return assign(p, r, value, SOURCE_FLAG, "--");
}

/* Flags that are read before everything else: what others are read from, and how the log speaks of them. */
static bool is_early(const char *flag)
{
    return !strcmp(flag, "config") || !strcmp(flag, "log-format") || !strcmp(flag, "log-level");
}

static int read_flags(struct options_parse *p, const char *usage, int argc, char **argv, bool early)
{
    struct option *longs = calloc(2 * p->n + 2, sizeof *longs);
    char(*negated)[96] = calloc(p->n, sizeof *negated);
    int rc = longs && negated ? 0 : 2, at = 0;
    for (size_t i = 0; i < p->n && rc == 0; i++) {
        const struct option_row *r = options_row(p, p->rows[i].name);
        KVR_ASSERT(r != NULL);
        longs[at++] = (struct option){p->rows[i].name, r->type == OPT_BOOL ? optional_argument : required_argument, NULL, 1};
        if (r->type != OPT_BOOL || options_only_flag(r)) continue;
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
            if (optarg && !strcmp(optarg, "markdown")) options_print_markdown(p);
            else options_print_help(usage, p);
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

static int parse_init(struct options_parse *p)
{
    int rc = 0;
    p->set = calloc(p->n, sizeof *p->set);
    p->warned = calloc(p->n, sizeof *p->warned);
    p->lines = calloc(p->n, sizeof *p->lines);
    if (!p->set || !p->warned || !p->lines) return options_tell(p, "out of memory");
    for (size_t i = 0; i < p->n && rc == 0; i++)
        if (p->rows[i].initial && !p->rows[i].alias_of) rc = assign(p, &p->rows[i], p->rows[i].initial, SOURCE_DEFAULT, "default of ");
    return rc;
}

/* Of each row its line in the file, where the file's value is the one that counts. */
static void parse_end(struct options_parse *p, struct options_from *from)
{
    for (size_t i = 0; p->set && p->lines && i < p->n; i++)
        if (p->set[i] != SOURCE_FILE) p->lines[i] = 0;
    if (from) *from = (struct options_from){p->file, p->lines};
    else free(p->lines);
    free(p->set);
    free(p->warned);
}

int options_parse(const char *usage, const struct option_row *rows, size_t n, int argc, char **argv, void *options,
                  struct options_from *from)
{
    struct options_parse p = {.rows = rows, .n = n, .options = options, .command = argv[0]};
    int rc = parse_init(&p);
    const struct option_row *config = rc ? NULL : options_row(&p, "config");
    if (rc == 0) rc = read_flags(&p, usage, argc, argv, true);
    if (rc == 0 && config) {
        const char *path = *(char **)(void *)(p.options + config->offset);
        if (!path) path = getenv("KVROUTE_CONFIG");
        if (path) rc = options_read_yaml(&p, path);
    }
    if (rc == 0) rc = read_environment(&p);
    if (rc == 0) apply_log(&p);
    if (rc == 0) rc = read_flags(&p, usage, argc, argv, false);
    parse_end(&p, from);
    return rc;
}

int options_parse_file(const char *command, const struct option_row *rows, size_t n, const char *path, const struct options_ear *ear,
                       void *options, struct options_from *from)
{
    struct options_parse p = {.rows = rows, .n = n, .options = options, .command = command, .ear = ear};
    int rc = parse_init(&p);
    if (rc == 0) rc = options_read_yaml(&p, path);
    parse_end(&p, from);
    return rc;
}

int options_parse_text(const char *command, const struct option_row *rows, size_t n, const char *name, const char *text, size_t len,
                       const struct options_ear *ear, void *options, struct options_from *from)
{
    struct options_parse p = {.rows = rows, .n = n, .options = options, .command = command, .ear = ear};
    int rc = parse_init(&p);
    if (rc == 0) rc = options_read_text(&p, name, text, len);
    parse_end(&p, from);
    return rc;
}

size_t options_line(const struct options_from *from, const struct option_row *rows, size_t n, const char *name)
{
    for (size_t i = 0; from->lines && i < n; i++)
        if (!strcmp(rows[i].name, name)) return from->lines[i];
    return 0;
}

void options_free(const struct option_row *rows, size_t n, void *options, struct options_from *from)
{
    for (size_t i = 0; i < n; i++) {
        void *place = (char *)options + rows[i].offset;
        if (rows[i].alias_of) continue;
        if (rows[i].type == OPT_STRING || rows[i].type == OPT_WORDS || rows[i].type == OPT_PAIRS) free(*(char **)place);
        row_clear(&rows[i], place);
    }
    if (from) free(from->lines);
}
