/* SPDX-License-Identifier: Apache-2.0 */
/* --help of a table of options: those that most need, all, a group's, one; and the page of options (--help=markdown). */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/terminal.h"
#include "cli/help_text.h"
#include "cli/options_parse.h"

enum { TEXT_AT = 30, WIDTH = 80, WIDTH_MAX = 120 };

struct paper {
    size_t width;
    const char *bold, *plain;
};

static struct paper paper_of_stdout(void)
{
    struct winsize w;
    bool bold = kvr_terminal_coloured(STDOUT_FILENO);
    if (!isatty(STDOUT_FILENO)) return (struct paper){WIDTH, "", ""};
    size_t width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= WIDTH ? w.ws_col : WIDTH;
    return (struct paper){KVR_MIN(width, (size_t)WIDTH_MAX), bold ? "\x1b[1m" : "", bold ? "\x1b[0m" : ""};
}

/* Words from column `at` on, in lines that begin there. */
static void print_words(const struct paper *p, size_t at, const char *text)
{
    size_t column = at;
    for (const char *word = text; *word;) {
        size_t n = strcspn(word, " ");
        if (column > at && column + 1 + n > p->width) {
            printf("\n%*s", (int)at, "");
            column = at;
        } else if (column > at) {
            putchar(' ');
            column++;
        }
        printf("%.*s", (int)n, word);
        column += n;
        word += n + strspn(word + n, " ");
    }
    putchar('\n');
}

/* `left` in the first column, of which `name` bytes are bold, and `text` beside it or, when it is too long, below. */
static void print_row(const struct paper *p, const char *left, size_t name, const char *text)
{
    size_t n = strlen(left) + 2;
    printf("  %s%.*s%s%s", p->bold, (int)name, left, p->plain, left + name);
    if (n + 2 > TEXT_AT) printf("\n%*s", TEXT_AT, "");
    else printf("%*s", (int)(TEXT_AT - n), "");
    print_words(p, TEXT_AT, text);
}

/* In short: what stands before the first semicolon of its help. */
static void print_option(const struct paper *p, const struct option_table *t, const struct option_row *r, bool in_short)
{
    char left[160], others[512] = "";
    const char *value = options_value(r);
    struct kvr_buf text = {0};
    size_t name = (size_t)snprintf(left, sizeof left, "--%s%s", value || options_only_flag(r) || t->only_flags ? "" : "[no-]", r->name);
    if (value) snprintf(left + name, sizeof left - name, " %s", value);
    if (!in_short) options_aliases(t, r, "--", others, sizeof others);
    kvr_buf_printf(&text, "%.*s", (int)(in_short ? strcspn(r->help, ";") : strlen(r->help)), r->help);
    if (r->initial && strcmp(r->initial, "false")) kvr_buf_printf(&text, " (default %s)", r->initial);
    if (*others) kvr_buf_printf(&text, "; other names: %s", others);
    print_row(p, left, name, text.failed ? r->help : text.data);
    kvr_buf_free(&text);
}

/* The options of a group, NULL: those before all groups; all of them, or those that most need, in short. */
static void print_group(const struct paper *p, const struct option_table *t, const struct option_row *group, bool all)
{
    bool titled = false, more;
    for (size_t i = 0; i < t->n; i++) {
        if (!options_own(&t->rows[i]) || options_group(t, i, &more) != group || (more && !all)) continue;
        if (!titled) printf("\n%s%s%s\n", p->bold, group ? group->help : "Options", p->plain);
        titled = true;
        print_option(p, t, &t->rows[i], !all);
    }
}

/* Options of a group, NULL: of all; and how many of them are for those who ask for them. */
static size_t count(const struct option_table *t, const struct option_row *group, size_t *hidden)
{
    size_t n = 0;
    *hidden = 0;
    for (size_t i = 0; i < t->n; i++) {
        bool more;
        const struct option_row *g = options_group(t, i, &more);
        if (!options_own(&t->rows[i]) || (group && g != group)) continue;
        n++;
        *hidden += more;
    }
    return n;
}

/* What else may be asked. */
static void print_topics(const struct paper *p, const struct option_table *t, size_t hidden)
{
    printf("\n");
    print_row(p, "--help [TOPIC]", 6, "print this and exit; TOPIC: all, an option, or a group of them");
    if (!hidden) return;
    printf("\n%zu more options are shown by `kvroute %s --help all`, and by --help GROUP:\n", hidden, t->command);
    for (const struct option_row *g = NULL; (g = options_next_group(t, g));) {
        char text[160];
        size_t in_group, of_these;
        in_group = count(t, g, &of_these);
        snprintf(text, sizeof text, "%s (%zu)", g->help, in_group);
        print_row(p, g->name, strlen(g->name), text);
    }
}

static void print_text(const struct paper *p, const char *text)
{
    struct kvr_buf part = {0};
    bool as_it_is, first = true;
    for (; help_text_next(&text, &part, &as_it_is); first = false) {
        if (!first) putchar('\n');
        if (as_it_is) puts(part.data);
        else print_words(p, 0, part.data);
        kvr_buf_free(&part);
    }
}

static void print_all(const struct paper *p, const struct option_table *t, bool all)
{
    size_t hidden;
    (void)count(t, NULL, &hidden);
    all |= hidden == 0;
    print_text(p, t->text);
    print_group(p, t, NULL, all);
    for (const struct option_row *g = NULL; (g = options_next_group(t, g));) print_group(p, t, g, all);
    print_topics(p, t, all ? 0 : hidden);
    if (t->only_flags) return;
    printf("\n");
    print_words(p, 0,
                options_row(t, "config") ? "Each option --NAME is also KVROUTE_NAME in the environment and NAME in the file of --config; "
                                           "a flag beats the environment, which beats the file."
                                         : "Each option --NAME is also KVROUTE_NAME in the environment, which a flag beats.");
}

/* ---- the page of options ----------------------------------------------------------------------------- */

static const char *type_name(const struct option_row *r)
{
    return r->type == OPT_BOOL     ? "true, false"
           : r->type == OPT_DOUBLE ? "number"
           : r->type == OPT_SIZE   ? "size"
           : r->type == OPT_U64    ? "whole number"
                                   : "text";
}

/* Bars end cells. */
static void print_cell(const char *text)
{
    for (; *text; text++) *text == '|' ? fputs("\\|", stdout) : putchar(*text);
}

static void print_range(const struct option_row *r)
{
    if (r->type == OPT_ENUM) {
        for (const char *v = r->values; *v; v++) *v == '|' ? fputs(", ", stdout) : putchar(*v);
    } else if (r->type != OPT_U64 && r->type != OPT_DOUBLE) {
        print_cell(r->values ? r->values : type_name(r));
    } else if (r->max >= 1e300) {
        printf("%s, from %g", type_name(r), r->min);
    } else {
        printf("%s, %.10g to %.10g", type_name(r), r->min, r->max);
    }
}

static void print_markdown_row(const struct option_table *t, const struct option_row *r)
{
    char others[512];
    options_aliases(t, r, "`", others, sizeof others);
    printf("| `%s` | ", r->name);
    if (r->env) printf("`%s`", r->env);
    printf(" | %s | ", r->initial ? r->initial : "");
    print_range(r);
    printf(" | ");
    print_cell(r->help);
    if (*others) printf("; other names: %s", others);
    printf(" |\n");
}

static void print_markdown_group(const struct option_table *t, const struct option_row *group)
{
    bool titled = false, more;
    for (size_t i = 0; i < t->n; i++) {
        if (!options_own(&t->rows[i]) || options_group(t, i, &more) != group) continue;
        if (!titled && group)
            printf("%s### %s (`--help %s`)\n\n", group == options_next_group(t, NULL) ? "" : "\n", group->help, group->name);
        if (!titled) printf("| flag and YAML key | other environment names | default | values | meaning |\n|---|---|---|---|---|\n");
        titled = true;
        print_markdown_row(t, &t->rows[i]);
    }
}

static void print_markdown(const struct option_table *t)
{
    print_markdown_group(t, NULL);
    for (const struct option_row *g = NULL; (g = options_next_group(t, g));) print_markdown_group(t, g);
}

/* ---- topics ------------------------------------------------------------------------------------------ */

int options_print_help(const struct option_table *t, const char *topic)
{
    struct paper p = paper_of_stdout();
    if (!topic || !strcmp(topic, "all")) return print_all(&p, t, topic != NULL), 0;
    if (!strcmp(topic, "markdown")) return print_markdown(t), 0;
    for (const struct option_row *g = NULL; (g = options_next_group(t, g));)
        if (!strcmp(g->name, topic)) return print_group(&p, t, g, true), 0;
    const struct option_row *r = options_row(t, topic + (strncmp(topic, "--", 2) ? 0 : 2));
    if (!r) return -1;
    print_option(&p, t, r, false);
    return 0;
}
