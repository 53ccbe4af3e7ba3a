/* SPDX-License-Identifier: Apache-2.0 */
/* `check`: what `serve` would say of files, without starting anything. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/commands.h"
#include "cli/options_rows.h"
#include "cli/help.h"
#include "cli/log_options.h"
#include "cli/serve_cli.h"
#include "wire/yaml_map.h"

struct check_cli {
    int kind;
    struct kvr_log_options log;
};

#define KINDS "config|models|keys|policy"
enum kind { KIND_AUTO, KIND_CONFIG, KIND_MODELS, KIND_KEYS, KIND_POLICY };
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
    const char *positive = strncmp(key, "no-", 3) == 0 ? key + 3 : key;
    return options_row(&command_serve.table, positive) || options_row(&command_serve.table, key);
}

static int model_key(const struct kvr_yaml *, const char *key, const yaml_node_t *, yaml_node_t *, void *arg)
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
    if (known) *kinds &= known;
    return 0;
}

/* `models` is a key of three kinds, and what it says of a model is not. */
static int model(const struct kvr_yaml *y, const char *key, const yaml_node_t *, yaml_node_t *v, void *arg)
{
    return v->type == YAML_MAPPING_NODE ? kvr_yaml_each_key(y, v, key, model_key, arg) : 0;
}

struct guess {
    unsigned kinds; /* that all known keys are of */
    bool any;
};

static int root_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *, yaml_node_t *v, void *arg)
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
    if (kvr_yaml_read(&(struct kvr_yaml_source){.name = path}, guess, &g, err, sizeof err)) {
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
    const struct option_table *t = &command_serve.table;
    (void)options_parse_file(t, path, &ear, &cli, &from);
    c->options = t;
    c->from = &from;
    cli.o.config = strdup(path); /* freed with the options */
    serve_cli_rules(&cli, c);
    serve_cli_effects(&cli, c);
    serve_cli_check(&cli, c);
    options_free(t, &cli, &from);
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
static int check_one(struct serve_checker *c, const char *path, enum kind kind, struct given *given)
{
    static const enum serve_file files[] = {
        [KIND_MODELS] = SERVE_FILE_MODELS, [KIND_KEYS] = SERVE_FILE_KEYS, [KIND_POLICY] = SERVE_FILE_POLICY};
    bool regular;
    enum kind found;
    if (openable(path, &regular)) return 2;
    if (!kind && !regular) {
        kvr_log_error("kvroute check: %s: it is no regular file and can be read once only; say what it is with --kind; allowed: " KINDS,
                      path);
        return 2;
    }
    int rc = kind ? 0 : find_kind(c, path, &found);
    if (rc) return rc == 2 ? 2 : 0;
    if (kind) found = kind;
    given->path[found] = path;
    given->n[found]++;
    if (found == KIND_CONFIG) check_config(c, path);
    else serve_cli_check_file(files[found], path, c);
    return 0;
}

static const struct option_row rows[] = {
    ROW("kind", OPT_ENUM, offsetof(struct check_cli, kind), "auto", 0, 0, "auto|" KINDS,
        "what the files are, when their keys do not tell: config (--config of serve), models (--models-file), keys (--api-key-file) or "
        "policy (--router-policy-config)"),
    LOG_ROWS(offsetof(struct check_cli, log)),
};

static int check_files(char **files, size_t n, enum kind kind)
{
    struct serve_checker c = {.command = "check", .plain = true};
    struct given given = {0};
    for (size_t i = 0; i < n; i++) {
        c.unread += check_one(&c, files[i], kind, &given) != 0;
        file_lines_print(&c.findings);
    }
    if (given.n[KIND_KEYS] == 1 && given.n[KIND_POLICY] == 1) serve_cli_check_classes(given.path[KIND_KEYS], given.path[KIND_POLICY], &c);
    return serve_checker_end(&c);
}

static int run(void *options, struct command_call *called)
{
    const struct check_cli *cli = options;
    if (called->from.operands_n) return check_files(called->from.operands, called->from.operands_n, (enum kind)cli->kind);
    kvr_log_error("kvroute check: no FILE is given; see kvroute check --help");
    return 2;
}

const struct command command_check = {.table = {"check", "check the files that serve reads, without starting anything", help_check, rows,
                                                KVR_ARRAY_LEN(rows), "FILE...", true},
                                      .options_size = sizeof(struct check_cli),
                                      .run = run};
