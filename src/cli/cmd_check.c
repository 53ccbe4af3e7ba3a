/* SPDX-License-Identifier: Apache-2.0 */
/* `check`: what `serve` would say of files, without starting anything. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/log_options.h"
#include "cli/serve_cli.h"
#include "wire/yaml_map.h"

#define KINDS "config|models|keys|policy"
enum kind { KIND_CONFIG, KIND_MODELS, KIND_KEYS, KIND_POLICY };
enum { NONE = 0, CONFIG = 1 << KIND_CONFIG, MODELS = 1 << KIND_MODELS, KEYS = 1 << KIND_KEYS, POLICY = 1 << KIND_POLICY };

/* ---- what a file is ---------------------------------------------------------------------------------- */

struct known {
    const char *key;
    unsigned kinds;
};

static unsigned look_up(const struct known *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i].key, key)) return list[i].kinds;
    return NONE;
}

static bool is_option(const char *key)
{
    size_t n;
    const struct option_row *rows = serve_cli_rows(&n);
    const char *positive = strncmp(key, "no-", 3) == 0 ? key + 3 : key;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(rows[i].name, positive) || !strcmp(rows[i].name, key)) return true;
    return false;
}

static int model_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    static const struct known keys[] = {{"alias_of", MODELS},
                                        {"targets", MODELS},
                                        {"fallback", MODELS},
                                        {"fallback_on", MODELS},
                                        {"options", MODELS},
                                        {"default_policy_family", POLICY},
                                        {"uncached_isl_buckets", POLICY},
                                        {"policy_classes", POLICY}};
    unsigned *kinds = arg, known = look_up(keys, KVR_ARRAY_LEN(keys), key);
    (void)y;
    (void)key_node;
    (void)v;
    if (known) *kinds &= known;
    return 0;
}

/* `models` is a key of three kinds, and what it says of a model is not. */
static int model(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    (void)key_node;
    return v->type == YAML_MAPPING_NODE ? kvr_yaml_each_key(y, v, key, model_key, arg) : 0;
}

struct guess {
    unsigned kinds; /* that all known keys are of */
    bool any;
};

static int root_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    static const struct known keys[] = {{"models", MODELS | KEYS | POLICY},
                                        {"keys", KEYS},
                                        {"default", KEYS},
                                        {"anonymous", KEYS},
                                        {"default_policy_family", POLICY},
                                        {"uncached_isl_buckets", POLICY},
                                        {"policy_classes", POLICY}};
    struct guess *g = arg;
    unsigned kinds = is_option(key) ? CONFIG : look_up(keys, KVR_ARRAY_LEN(keys), key);
    (void)key_node;
    if (!kinds) return 0; /* it is the check's to say so */
    g->kinds &= kinds;
    g->any = true;
    return !strcmp(key, "models") && v->type == YAML_MAPPING_NODE ? kvr_yaml_each_key(y, v, key, model, &g->kinds) : 0;
}

static int guess(const struct kvr_yaml *y, yaml_node_t *root, void *arg)
{
    return root && root->type == YAML_MAPPING_NODE ? kvr_yaml_each_key(y, root, "file", root_key, arg) : 0;
}

/* Returns: 0; 1: the file is no YAML, which was told; 2: its keys do not tell. */
static int find_kind(struct serve_checker *c, const char *path, enum kind *out)
{
    struct guess g = {CONFIG | MODELS | KEYS | POLICY, false};
    char err[1024];
    if (kvr_yaml_read(path, guess, &g, err, sizeof err)) {
        serve_checker_tell(c, NULL, err);
        return 1;
    }
    for (enum kind k = KIND_CONFIG; g.any && k <= KIND_POLICY; k++)
        if (g.kinds == 1U << k) return *out = k, 0;
    kvr_log_error("kvroute check: %s: %s; say it with --kind; allowed: " KINDS, path,
                  !g.any     ? "none of its keys tells what it is"
                  : !g.kinds ? "its keys are of several kinds"
                             : "its keys may be of more than one kind");
    return 2;
}

/* ---- checks ------------------------------------------------------------------------------------------ */

static void on_wrong(void *arg, const char *text)
{
    serve_checker_tell(arg, NULL, text);
}

static void check_config(struct serve_checker *c, const char *path)
{
    struct serve_cli cli = {0};
    struct options_from from = {0};
    const struct options_ear ear = {on_wrong, c};
    c->rows = serve_cli_rows(&c->n);
    (void)options_parse_file("serve", c->rows, c->n, path, &ear, &cli, &from);
    c->from = &from;
    cli.o.config = strdup(path); /* freed with the options */
    serve_cli_rules(&cli, c);
    serve_cli_effects(&cli, c);
    serve_cli_check(&cli, c);
    options_free(c->rows, c->n, &cli, &from);
    c->from = NULL;
}

/* Pipes are left alone: to open and close one takes its writer's reader away. */
static int openable(const char *path, bool *regular)
{
    struct stat st;
    int error = stat(path, &st) ? errno : S_ISDIR(st.st_mode) ? EISDIR : 0;
    *regular = !error && S_ISREG(st.st_mode);
    if (*regular) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) error = errno;
        else close(fd);
    }
    if (error) kvr_log_error("kvroute check: cannot read '%s': %s", path, strerror(error));
    return error ? 2 : 0;
}

/* Of each kind the file that was checked, if there is one only: then it is known which is meant by another one. */
struct given {
    const char *path[KIND_POLICY + 1];
    unsigned n[KIND_POLICY + 1];
};

/* Returns: 0, or 2: there is nothing to check. */
static int check_one(struct serve_checker *c, const char *path, int kind, struct given *given)
{
    static const enum serve_file files[] = {
        [KIND_MODELS] = SERVE_FILE_MODELS, [KIND_KEYS] = SERVE_FILE_KEYS, [KIND_POLICY] = SERVE_FILE_POLICY};
    bool regular;
    enum kind found;
    if (openable(path, &regular)) return 2;
    if (kind < 0 && !regular) {
        kvr_log_error("kvroute check: %s: it is no regular file and can be read once only; say what it is with --kind; allowed: " KINDS,
                      path);
        return 2;
    }
    int rc = kind < 0 ? find_kind(c, path, &found) : 0;
    if (rc) return rc == 2 ? 2 : 0;
    if (kind >= 0) found = (enum kind)kind;
    given->path[found] = path;
    given->n[found]++;
    if (found == KIND_CONFIG) check_config(c, path);
    else serve_cli_check_file(files[found], path, c);
    return 0;
}

int cmd_check(int argc, char **argv)
{
    static const struct option rows[] = {{"kind", required_argument, NULL, 'k'},
                                         {"log-format", required_argument, NULL, 'L'},
                                         {"log-level", required_argument, NULL, 'L'},
                                         {"help", no_argument, NULL, 'h'},
                                         {NULL, 0, NULL, 0}};
    struct serve_checker c = {.command = "check", .plain = true};
    struct given given = {0};
    int o, at = 0, kind = -1;
    while ((o = getopt_long(argc, argv, "h", rows, &at)) != -1) {
        if (o == 'h') return fputs(help_check, stdout) < 0;
        if (o == 'L') {
            if (log_from_flag("check", rows[at].name, optarg)) return 2;
        } else if (o != 'k') {
            return 2;
        } else if (!options_enum(optarg, KINDS, &kind)) {
            kvr_log_error("kvroute check: --kind: bad value '%s'; allowed: " KINDS, optarg);
            return 2;
        }
    }
    if (optind == argc) {
        kvr_log_error("kvroute check: no FILE is given; see kvroute check --help");
        return 2;
    }
    for (int i = optind; i < argc; i++) {
        c.unread += check_one(&c, argv[i], kind, &given) != 0;
        file_lines_print(&c.findings);
    }
    if (given.n[KIND_KEYS] == 1 && given.n[KIND_POLICY] == 1) serve_cli_check_classes(given.path[KIND_KEYS], given.path[KIND_POLICY], &c);
    return serve_checker_end(&c);
}
