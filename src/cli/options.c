/* SPDX-License-Identifier: Apache-2.0 */
/* Flags and environment, and the order in which they and a file count: cli/options.h. */
#include "cli/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/log.h"
#include "cli/options_parse.h"

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
    p->given = calloc(p->n, sizeof *p->given);
    if (!p->set || !p->warned || !p->lines || !p->given) return options_tell(p, "out of memory");
    for (size_t i = 0; i < p->n && rc == 0; i++)
        if (p->rows[i].initial && !p->rows[i].alias_of) rc = assign(p, &p->rows[i], p->rows[i].initial, SOURCE_DEFAULT, "default of ");
    return rc;
}

/* Of each row its line in the file, where the file's value is the one that counts. */
static void parse_end(struct options_parse *p, struct options_from *from)
{
    for (size_t i = 0; p->set && p->lines && i < p->n; i++)
        if (p->set[i] != SOURCE_FILE) p->lines[i] = 0;
    for (size_t i = 0; p->set && p->given && i < p->n; i++) p->given[i] = p->set[i] != SOURCE_DEFAULT;
    if (from) *from = (struct options_from){p->file, p->lines, p->given};
    else free(p->lines), free(p->given);
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

bool options_given(const struct options_from *from, const struct option_row *rows, size_t n, const char *name)
{
    for (size_t i = 0; from->given && i < n; i++)
        if (!strcmp(rows[i].name, name)) return from->given[i];
    return false;
}

void options_free(const struct option_row *rows, size_t n, void *options, struct options_from *from)
{
    for (size_t i = 0; i < n; i++) {
        void *place = (char *)options + rows[i].offset;
        if (rows[i].alias_of) continue;
        if (rows[i].type == OPT_STRING || rows[i].type == OPT_WORDS || rows[i].type == OPT_PAIRS) free(*(char **)place);
        options_clear(&rows[i], place);
    }
    if (!from) return;
    free(from->lines);
    free(from->given);
}
