/* SPDX-License-Identifier: Apache-2.0 */
/* Man pages of the tables and of the texts of help/, in the man(7) macros. */
#include <string.h>
#include <kvroute/error.h>

#include "base/base.h"
#include "cli/help.h"
#include "cli/help_text.h"
#include "cli/options_rows.h"
#include "cli/pages.h"

/* ---- text -------------------------------------------------------------------------------------------- */

/* One character as roff takes it for itself, dashes as those that can be typed again. */
static void put_char(FILE *f, char c)
{
    switch (c) {
    case '\\': fputs("\\e", f); break;
    case '-': fputs("\\-", f); break;
    case '\'': fputs("\\(aq", f); break;
    case '`': fputs("\\(ga", f); break;
    case '^': fputs("\\(ha", f); break;
    case '~': fputs("\\(ti", f); break;
    default: fputc(c, f);
    }
}

/* In the middle of a line. */
static void put(FILE *f, const char *text)
{
    for (; *text; text++) put_char(f, *text);
}

/* A whole line: a dot at the beginning would be a macro. */
static void put_line(FILE *f, const char *text, size_t len)
{
    if (len && *text == '.') fputs("\\&", f);
    for (size_t i = 0; i < len; i++) put_char(f, text[i]);
    fputc('\n', f);
}

/* Text that is filled, in lines of some sixty characters, as those who read the source expect them. */
static void put_lines(FILE *f, const char *text)
{
    enum { SOME = 60 };
    while (*text) {
        size_t n = strlen(text);
        if (n > SOME) n = SOME + strcspn(text + SOME, " ");
        put_line(f, text, n);
        text += n + strspn(text + n, " ");
    }
}

static void put_as_it_is(FILE *f, const char *text)
{
    fputs(".nf\n", f);
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        put_line(f, text, n);
    }
    fputs(".fi\n", f);
}

static void put_head(FILE *f, const char *page, int section, const char *title)
{
    fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n.TH ", f);
    for (const char *c = page; *c; c++) put_char(f, (char)(*c >= 'a' && *c <= 'z' && section == 1 ? *c - 'a' + 'A' : *c));
    fprintf(f, " %d \"\" \"kvroute %s\" \"kvroute\"\n.SH NAME\n", section, kvr_version());
    put(f, page);
    fputs(" \\- ", f);
    put_lines(f, title);
}

/* ---- options ----------------------------------------------------------------------------------------- */

/* "(default 5, 0 to 60)" */
static void put_limits(FILE *f, const struct option_row *r)
{
    bool limited = r->type == OPT_U64 || r->type == OPT_DOUBLE;
    const char *initial = r->type == OPT_BOOL && r->initial && !strcmp(r->initial, "false") ? NULL : r->initial;
    if (!initial && !limited) return;
    fputs("(", f);
    if (initial) fputs("default ", f), put(f, initial);
    if (initial && limited) fputs(", ", f);
    if (limited && r->max < 1e300) fprintf(f, "%.10g to %.10g", r->min, r->max);
    else if (limited) fprintf(f, "from %g", r->min);
    fputs(")\n", f);
}

/* A row as a flag, or as a key of a file. */
static void put_option(FILE *f, const struct option_table *t, const struct option_row *r, bool is_key)
{
    char env[128], others[512];
    const char *value = options_value(r), *dashes = is_key ? "" : "--";
    fputs(".TP\n\\fB", f);
    put(f, dashes);
    put(f, r->name);
    fputs("\\fR", f);
    if (is_key) fputs(":", f);
    if (!value && !is_key && !options_only_flag(r)) {
        fputs(", \\fB\\-\\-no\\-", f);
        put(f, r->name);
        fputs("\\fR", f);
    }
    fputs(value || is_key ? " \\fI" : "", f);
    put(f, value ? value : is_key ? "true|false" : "");
    fputs(value || is_key ? "\\fR\n" : "\n", f);
    put_lines(f, r->help);
    put_limits(f, r);
    options_aliases(t, r, dashes, others, sizeof others);
    if (*others) fputs(".br\nOther names: ", f), put_lines(f, others);
    if (t->only_flags || options_only_flag(r)) return;
    options_env_name(r->name, env, sizeof env);
    fprintf(f, ".br\nEnvironment: %s\n", env);
    if (r->env) fprintf(f, "or %s\n", r->env);
}

static void put_group(FILE *f, const struct option_table *t, const struct option_row *group, bool keys)
{
    bool titled = group == NULL, more;
    for (size_t i = 0; i < t->n; i++) {
        const struct option_row *r = &t->rows[i];
        if (!options_own(r) || options_group(t, i, &more) != group || (keys && options_only_flag(r))) continue;
        if (!titled) fputs(".SS ", f), put_lines(f, group->help);
        titled = true;
        put_option(f, t, r, keys);
    }
}

static void put_options(FILE *f, const struct option_table *t, bool keys)
{
    put_group(f, t, NULL, keys);
    for (const struct option_row *g = NULL; (g = options_next_group(t, g));) put_group(f, t, g, keys);
}

/* ---- pages ------------------------------------------------------------------------------------------- */

static const char exit_status[] = "Exit status: ";

/* Lines that were below one another behind that word. */
static void put_usage(FILE *f, const char *lines)
{
    fputs(".nf\n", f);
    while (*lines) {
        size_t n = strcspn(lines, "\n");
        put_line(f, lines, n);
        lines += n + strspn(lines + n, "\n");
        lines += KVR_MIN(strspn(lines, " "), sizeof HELP_USAGE);
    }
    fputs(".fi\n", f);
}

/* What a text says before the options of a command, or behind them: how it ends. */
static void put_text(FILE *f, const char *text, bool behind)
{
    struct kvr_buf part = {0};
    bool as_it_is, described = false;
    for (; help_text_next(&text, &part, &as_it_is); kvr_buf_free(&part)) {
        bool ends = strncmp(part.data, exit_status, sizeof exit_status - 1) == 0;
        if (ends && behind) {
            fputs(".SH EXIT STATUS\n", f);
            put_lines(f, part.data + sizeof exit_status - 1);
        } else if (!ends && !behind && as_it_is && strncmp(part.data, HELP_USAGE, strlen(HELP_USAGE)) == 0) {
            fputs(".SH SYNOPSIS\n", f);
            put_usage(f, part.data + sizeof HELP_USAGE); /* and a blank */
        } else if (!ends && !behind) {
            fputs(described ? ".PP\n" : ".SH DESCRIPTION\n", f);
            described = true;
            if (as_it_is) put_as_it_is(f, part.data);
            else put_lines(f, part.data);
        }
    }
    kvr_buf_free(&part);
}

static void put_log_environment(FILE *f)
{
    fputs(".TP\n.B KVROUTE_LOG_FORMAT\ntext or json.\n.TP\n.B KVROUTE_LOG_LEVEL\nerror, warning, info or debug.\n"
          ".TP\n.B NO_COLOR\nNothing is written in colours or bold when it is set.\n",
          f);
}

void man_print_command(FILE *f, const struct command *c)
{
    const struct option_table *t = &c->table;
    char page[64];
    snprintf(page, sizeof page, "kvroute-%s", t->command);
    put_head(f, page, 1, t->title);
    put_text(f, t->text, false);
    fputs(".SH OPTIONS\n.TP\n\\fB\\-\\-help\\fR [\\fITOPIC\\fR]\nThe options that most need; of a topic: \\fBall\\fR, a group, or one "
          "option.\n",
          f);
    put_options(f, t, false);
    put_text(f, t->text, true);
    fputs(".SH ENVIRONMENT\n", f);
    if (!t->only_flags) fputs("A flag beats its variable, which beats the file of \\-\\-config.\n", f);
    put_log_environment(f);
    fputs(".SH SEE ALSO\n.BR kvroute (1),\n.BR kvroute.yaml (5)\n", f);
}

void man_print_program(FILE *f, const struct commands *all)
{
    put_head(f, "kvroute", 1, "KV-cache-aware router for LLM inference");
    fputs(".SH SYNOPSIS\n.B kvroute\n\\fICOMMAND\\fR [\\fIoptions\\fR]\n.SH DESCRIPTION\n", f);
    put_lines(f, "Each command has a page of its own, and says of itself what --help prints.");
    fputs(".SH COMMANDS\n", f);
    for (size_t i = 0; i < all->n; i++) {
        fputs(".TP\n.BR kvroute\\-", f);
        put(f, all->list[i]->table.command);
        fputs(" (1)\n", f);
        put_lines(f, all->list[i]->table.title);
    }
    fputs(".TP\n.B kvroute version\nprint the version\n.SH ENVIRONMENT\n", f);
    put_log_environment(f);
    fputs(".SH SEE ALSO\n.BR kvroute.yaml (5)\n", f);
}

void man_print_file(FILE *f, const struct option_table *t)
{
    put_head(f, "kvroute.yaml", 5, "options of kvroute serve in a file");
    put_text(f, help_kvroute, false);
    fputs(".SH KEYS\n", f);
    put_options(f, t, true);
    fputs(".SH SEE ALSO\n.BR kvroute\\-serve (1),\n.BR kvroute\\-check (1)\n", f);
}
