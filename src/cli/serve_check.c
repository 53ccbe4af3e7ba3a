/* SPDX-License-Identifier: Apache-2.0 */
/* How the findings of a check, and of a start, are told: cli/serve_cli.h. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/serve_cli.h"

/* The line of the first of the names that the file sets; 0: none. */
static size_t line_of(const struct serve_checker *c, const char *keys)
{
    char name[96];
    size_t line = 0;
    for (const char *k = keys; c->from && c->from->file && k && !line;) {
        size_t n = strcspn(k, "|");
        snprintf(name, sizeof name, "%.*s", (int)n, k);
        line = options_line(c->from, c->options, name);
        k = k[n] ? k + n + 1 : NULL;
    }
    return line;
}

/* Text that begins with the name of the option, or with several of which it is the first, with dashes or without, goes on behind them. */
static const char *behind_name(const char *text, const char *key)
{
    const char *at = text + (strncmp(text, "--", 2) == 0 ? 2 : 0);
    const char *colon = strstr(at, ": ");
    size_t n = strlen(key);
    return colon && strncmp(at, key, n) == 0 && strchr(",:", at[n]) ? colon + 2 : text;
}

void serve_checker_tell(struct serve_checker *c, const char *keys, const char *text)
{
    char whole[4096];
    size_t line = line_of(c, keys);
    if (line) snprintf(whole, sizeof whole, "%s:%zu: %s", c->from->file, line, text);
    else snprintf(whole, sizeof whole, "%s", text);
    c->wrong++;
    if (c->plain) file_lines_add(&c->findings, whole);
    else kvr_log_error("kvroute %s: %s", c->command, whole);
}

/* ---- what the program finds -------------------------------------------------------------------------- */

static void on_wrong(void *arg, const char *key, const char *text)
{
    struct serve_checker *c = arg;
    char whole[3072];
    if (key) snprintf(whole, sizeof whole, "%s%s: %s", line_of(c, key) ? "" : "--", key, behind_name(text, key));
    else snprintf(whole, sizeof whole, "%s", text);
    serve_checker_tell(c, key, whole);
}

static void on_fact(void *, const char *text)
{
    char shown[2048];
    (void)kvr_printable(text, strlen(text), shown, sizeof shown);
    printf("%s\n", shown);
}

void serve_cli_check(struct serve_cli *cli, struct serve_checker *c)
{
    const struct serve_check_ear ear = {on_wrong, on_fact, c};
    serve_check(&cli->o, &ear);
}

void serve_cli_check_file(enum serve_file kind, const char *path, struct serve_checker *c)
{
    serve_check_file(kind, path, NULL, &(struct serve_check_ear){on_wrong, on_fact, c});
}

void serve_cli_check_classes(const char *keys, const char *policy, struct serve_checker *c)
{
    serve_check_classes(keys, policy, &(struct serve_check_ear){on_wrong, on_fact, c});
}

int serve_checker_end(struct serve_checker *c)
{
    file_lines_print(&c->findings);
    if (c->wrong) printf("%u finding%s\n", c->wrong, c->wrong == 1 ? "" : "s");
    else if (!c->unread) printf("nothing is wrong\n");
    return c->unread ? 2 : fflush(stdout) || c->wrong ? 1 : 0;
}
