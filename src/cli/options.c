/* SPDX-License-Identifier: Apache-2.0 */
/* Flags and environment, and the order in which they and a file count: cli/options.h. */
#include "cli/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/log.h"
#include "base/nearest.h"
#include "cli/options_parse.h"

static int assign(struct options_parse *p, const struct option_row *r, const char *value, int source, const char *prefix)
{
    char why[512];
    if (!options_take(p, r, source) || options_set(p, r, value)) return 0;
    options_say_bad(r, value, why, sizeof why);
    return options_tell(p, "%s%s: %s", prefix, r->name, why);
}

static const struct option_row *enum_row(const struct options_parse *p, const char *name)
{
    const struct option_row *r = options_row(p->t, name);
    return r && r->type == OPT_ENUM ? r : NULL;
}

/* What was said of the log so far holds from here on, for lines about further options too. */
static void apply_log(const struct options_parse *p)
{
    const struct option_row *format = enum_row(p, "log-format"), *level = enum_row(p, "log-level");
    if (format && p->set[format - p->t->rows])
        kvr_log_set_format(*(const enum kvr_log_format *)(const void *)(p->options + format->offset));
    if (level && p->set[level - p->t->rows]) kvr_log_set_level(*(const enum kvr_log_level *)(const void *)(p->options + level->offset));
}

/* ---- environment and flags --------------------------------------------------------------------------- */

/* Kubernetes tells containers of the services beside them: of one named `kvroute` by KVROUTE_PORT=tcp://10.96.3.4:80, no option. */
static bool is_service_link(const struct option_row *r, const char *name, const char *value)
{
    size_t n = strlen(name);
    return r->type == OPT_U64 && n > 5 && !strcmp(name + n - 5, "_PORT") && strstr(value, "://");
}

static int read_environment(struct options_parse *p)
{
    char name[128];
    for (size_t i = 0; i < p->t->n; i++) {
        const struct option_row *row = &p->t->rows[i], *r = options_row(p->t, row->name);
        if (row->type >= OPT_GROUP) continue;
        KVR_ASSERT(r != NULL);
        options_env_name(row->name, name, sizeof name);
        char *v = getenv(name);
        if (v && is_service_link(r, name, v)) v = NULL;
        if (v) options_row_given(p, row->name);
        if (!v && row->env) {
            v = getenv(row->env);
            snprintf(name, sizeof name, "%s", row->env);
        }
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
    bool negated = strncmp(flag, "no-", 3) == 0 && !options_row(p->t, flag);
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

/* `--help TOPIC`, and `--help=TOPIC`. */
static int help(const struct options_parse *p, const char *topic, const char *next)
{
    if (!topic && next && *next != '-') topic = next;
    if (options_print_help(p->t, topic) == 0) return 1;
    struct kvr_nearest near = {.wanted = topic};
    for (const struct option_row *g = NULL; (g = options_next_group(p->t, g));) kvr_nearest_offer(&near, g->name);
    const char *negation = "", *name = near.best ? near.best : options_nearest(p->t, topic, &negation);
    if (name) return options_tell(p, "--help: there is no group or option '%s'; did you mean %s?", topic, name);
    return options_tell(p, "--help: there is no group or option '%s'; `kvroute %s --help` names them", topic, p->t->command);
}

static int say_unknown(const struct options_parse *p, const char *flag)
{
    char name[96];
    const char *negation = "", *near = NULL;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(flag, "="), flag);
    if (!strncmp(name, "--", 2)) near = options_nearest(p->t, name + 2, &negation);
    if (near) return options_tell(p, "unknown option '%s'; did you mean --%s%s?", flag, negation, near);
    return options_tell(p, "unknown option '%s'; `kvroute %s --help all` lists the options", flag, p->t->command);
}

/* What getopt is told of the rows; `negated` has room for "no-NAME" of each. */
static void list_flags(const struct options_parse *p, struct option *longs, char (*negated)[96])
{
    for (size_t i = 0; i < p->t->n; i++) {
        const struct option_row *row = &p->t->rows[i], *r = options_row(p->t, row->name);
        if (row->type >= OPT_GROUP) continue;
        KVR_ASSERT(r != NULL);
        *longs++ = (struct option){row->name, r->type == OPT_BOOL ? optional_argument : required_argument, NULL, 1};
        if (r->type != OPT_BOOL || options_only_flag(r)) continue;
        snprintf(negated[i], sizeof negated[i], "no-%s", row->name);
        *longs++ = (struct option){negated[i], no_argument, NULL, 1};
    }
    *longs = (struct option){"help", optional_argument, NULL, 'h'};
}

static int read_flags(struct options_parse *p, int argc, char **argv, bool early)
{
    struct option *longs = calloc(2 * p->t->n + 2, sizeof *longs);
    char(*negated)[96] = calloc(p->t->n + 1, sizeof *negated);
    int rc = longs && negated ? 0 : 2;
    if (rc == 0) list_flags(p, longs, negated);
    optind = 0;
    opterr = 0;
    while (rc == 0) {
        char short_flag[3] = "-";
        int index = 0, c = getopt_long(argc, argv, ":h", longs, &index);
        if (c == -1) break;
        if (c == 'h') {
            rc = help(p, optarg, optind < argc ? argv[optind] : NULL);
        } else if (c == ':') {
            rc = options_tell(p, "%s needs a value", argv[optind - 1]);
        } else if (c == '?') {
            short_flag[1] = (char)optopt;
            rc = say_unknown(p, optopt > 1 ? short_flag : argv[optind - 1]);
        } else if (early == is_early(longs[index].name)) {
            rc = read_flag(p, longs[index].name, optarg);
            apply_log(p);
        }
    }
    if (rc == 0 && optind < argc && !p->t->operands) rc = options_tell(p, "unexpected argument '%s'", argv[optind]);
    if (rc == 0) p->operands = argv + optind, p->operands_n = (size_t)(argc - optind);
    free(longs);
    free(negated);
    return rc;
}

static int parse_init(struct options_parse *p)
{
    size_t n = p->t->n;
    int rc = 0;
    p->set = calloc(n + 1, sizeof *p->set);
    p->warned = calloc(n + 1, sizeof *p->warned);
    p->lines = calloc(n + 1, sizeof *p->lines);
    if (!p->set || !p->warned || !p->lines) return options_tell(p, "out of memory");
    for (const struct option_row *r = p->t->rows; r < p->t->rows + n && rc == 0; r++)
        if (r->initial && options_own(r)) rc = assign(p, r, r->initial, SOURCE_DEFAULT, "default of ");
    return rc;
}

/* Of each row its line in the file, where the file's value is the one that counts. */
static void parse_end(struct options_parse *p, struct options_from *from)
{
    for (size_t i = 0; p->set && p->lines && i < p->t->n; i++)
        if (p->set[i] != SOURCE_FILE) p->lines[i] = 0;
    if (from) *from = (struct options_from){p->operands, p->operands_n, p->file, p->lines, p->set};
    else free(p->lines), free(p->set);
    free(p->warned);
}

int options_parse(const struct option_table *t, int argc, char **argv, void *options, struct options_from *from)
{
    struct options_parse p = {.t = t, .options = options};
    int rc = parse_init(&p);
    const struct option_row *config = rc ? NULL : options_row(t, "config");
    if (rc == 0) rc = read_flags(&p, argc, argv, true);
    if (rc == 0 && config) {
        const char *path = *(char **)(void *)(p.options + config->offset);
        if (!path) path = getenv("KVROUTE_CONFIG");
        if (path) rc = options_read_yaml(&p, path);
    }
    if (rc == 0 && !t->only_flags) rc = read_environment(&p);
    if (rc == 0) apply_log(&p);
    if (rc == 0) rc = read_flags(&p, argc, argv, false);
    parse_end(&p, from);
    return rc;
}

int options_parse_file(const struct option_table *t, const char *path, const struct options_ear *ear, void *options,
                       struct options_from *from)
{
    struct options_parse p = {.t = t, .options = options, .ear = ear};
    int rc = parse_init(&p);
    if (rc == 0) rc = options_read_yaml(&p, path);
    parse_end(&p, from);
    return rc;
}

int options_parse_text(const struct option_table *t, const char *name, const char *text, size_t len, const struct options_ear *ear,
                       void *options, struct options_from *from)
{
    struct options_parse p = {.t = t, .options = options, .ear = ear};
    int rc = parse_init(&p);
    if (rc == 0) rc = options_read_text(&p, name, text, len);
    parse_end(&p, from);
    return rc;
}

size_t options_line(const struct options_from *from, const struct option_table *t, const char *name)
{
    const struct option_row *r = options_row(t, name);
    return from->lines && r ? from->lines[r - t->rows] : 0;
}

bool options_given(const struct options_from *from, const struct option_table *t, const char *name)
{
    const struct option_row *r = options_row(t, name);
    return from->sources && r && from->sources[r - t->rows] != SOURCE_DEFAULT;
}

void options_free(const struct option_table *t, void *options, struct options_from *from)
{
    for (const struct option_row *r = t->rows; r < t->rows + t->n; r++) {
        void *place = (char *)options + r->offset;
        if (!options_own(r)) continue;
        if (r->type == OPT_STRING || r->type == OPT_WORDS || r->type == OPT_PAIRS) free(*(char **)place);
        options_clear(r, place);
    }
    if (!from) return;
    free(from->lines);
    free(from->sources);
}
