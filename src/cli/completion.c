/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completions of the tables for bash, zsh and fish: commands, options, and values that are files, folders or of a few words. None of them
 * needs anything but its shell.
 */
#include <string.h>

#include "base/base.h"
#include "cli/options_rows.h"
#include "cli/pages.h"

enum value { VALUE_NONE, VALUE_WORDS, VALUE_FILE, VALUE_DIR, VALUE_OTHER };

static enum value kind_of(const char *what, bool words)
{
    size_t n = what ? strlen(what) : 0;
    if (!what) return VALUE_NONE;
    if (words) return VALUE_WORDS;
    if (!strncmp(what, "FILE", 4) || !strcmp(what, "PATH")) return VALUE_FILE;
    return n >= 3 && !strcmp(what + n - 3, "DIR") ? VALUE_DIR : VALUE_OTHER;
}

static enum value value_of(const struct option_row *r)
{
    return kind_of(options_value(r), r->type == OPT_ENUM);
}

/* Operands of a few words have bars between them, and no mark of repetition. */
static enum value operands_of(const struct option_table *t)
{
    return kind_of(t->operands, t->operands && strchr(t->operands, '|'));
}

/* "a|b" as "a b". */
static void put_words(FILE *f, const char *values)
{
    for (; *values; values++) fputc(*values == '|' ? ' ' : *values, f);
}

/* What --help may be asked of. */
static void put_topics(FILE *f, const struct option_table *t)
{
    fputs("all", f);
    for (const struct option_row *g = NULL; (g = options_next_group(t, g));) fprintf(f, " %s", g->name);
}

static bool has_no(const struct option_row *r)
{
    return r->type == OPT_BOOL && !options_only_flag(r);
}

/* In quotes, with `special` behind backslashes; of a long help the part before the first semicolon. */
static void put_quoted(FILE *f, const char *text, const char *special)
{
    for (size_t n = strcspn(text, ";"); n; n--, text++) {
        if (*text == '\'') fputs("'\\''", f);
        else fprintf(f, "%s%c", strchr(special, *text) ? "\\" : "", *text);
    }
}

static void put_commands(FILE *f, const struct commands *all)
{
    for (size_t i = 0; i < all->n; i++) fprintf(f, "%s ", all->list[i]->table.command);
    fputs("help version", f);
}

/* ---- bash -------------------------------------------------------------------------------------------- */

/* `COMMAND OPTION) what is done` for each value that is known. */
static void put_bash_values(FILE *f, const struct option_table *t)
{
    for (const struct option_row *r = t->rows; r < t->rows + t->n; r++) {
        if (r->type >= OPT_GROUP) continue;
        const struct option_row *own = options_row(t, r->name);
        enum value v = value_of(own);
        if (v == VALUE_NONE) continue;
        fprintf(f, "    '%s --%s') ", t->command, r->name);
        if (v == VALUE_WORDS) fputs("words='", f), put_words(f, own->values), fputs("'", f);
        else fputs(v == VALUE_FILE ? "files=-f" : v == VALUE_DIR ? "files=-d" : "words=", f);
        fputs(" ;;\n", f);
    }
    fprintf(f, "    '%s --help') words='", t->command);
    put_topics(f, t);
    fputs("' ;;\n", f);
}

/* `COMMAND) what may stand there` */
static void put_bash_command(FILE *f, const struct option_table *t)
{
    enum value v = operands_of(t);
    fprintf(f, "        %s)\n            words='--help", t->command);
    for (const struct option_row *r = t->rows; r < t->rows + t->n; r++)
        if (options_own(r)) fprintf(f, " --%s%s%s", r->name, has_no(r) ? " --no-" : "", has_no(r) ? r->name : "");
    fputs("'\n", f);
    if (v == VALUE_WORDS) fputs("            [[ $word == -* ]] || words='", f), put_words(f, t->operands), fputs("'\n", f);
    else fprintf(f, "            [[ $word == -* ]] || words= files=%s\n", v == VALUE_FILE ? "-f" : "");
    fputs("            ;;\n", f);
}

void completion_print_bash(FILE *f, const struct commands *all)
{
    fputs("# bash completion of kvroute, made by `kvroute completion bash`\n"
          "_kvroute() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words= files=\n"
          "    # --name=value comes as three words\n"
          "    if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
          "    case \"${COMP_WORDS[1]} $before\" in\n",
          f);
    for (size_t i = 0; i < all->n; i++) put_bash_values(f, &all->list[i]->table);
    fputs("    *)\n"
          "        if ((COMP_CWORD == 1)); then words='",
          f);
    put_commands(f, all);
    fputs("'; else case ${COMP_WORDS[1]} in\n", f);
    for (size_t i = 0; i < all->n; i++) put_bash_command(f, &all->list[i]->table);
    fputs("        esac; fi ;;\n"
          "    esac\n"
          "    if [[ $files ]]; then\n"
          "        compopt -o filenames 2>/dev/null\n"
          "        mapfile -t COMPREPLY < <(compgen \"$files\" -- \"$word\")\n"
          "    else\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
          "    fi\n"
          "}\n"
          "complete -F _kvroute kvroute\n",
          f);
}

/* ---- zsh --------------------------------------------------------------------------------------------- */

static void put_zsh_option(FILE *f, const struct option_row *r)
{
    static const char special[] = "[]:\\";
    const char *value = options_value(r);
    fprintf(f, " \\\n            '%s--%s%s[", r->type == OPT_LIST || r->type == OPT_ENTRIES ? "*" : "", r->name, value ? "=" : "");
    put_quoted(f, r->help, special);
    fputs("]", f);
    if (value) {
        fputs(":", f);
        if (r->type == OPT_ENUM) fputs("value:(", f), put_words(f, value), fputs(")", f);
        else {
            put_quoted(f, value, special);
            fputs(value_of(r) == VALUE_FILE ? ":_files" : value_of(r) == VALUE_DIR ? ":_files -/" : ": ", f);
        }
    }
    fputs("'", f);
    if (!has_no(r)) return;
    fprintf(f, " \\\n            '--no-%s[not\\: ", r->name);
    put_quoted(f, r->help, special);
    fputs("]'", f);
}

static void put_zsh_command(FILE *f, const struct option_table *t)
{
    fprintf(f, "    %s)\n        _arguments", t->command);
    for (const struct option_row *r = t->rows; r < t->rows + t->n; r++)
        if (options_own(r)) put_zsh_option(f, r);
    fputs(" \\\n            '--help=-[explain the command]::topic:(", f);
    put_topics(f, t);
    fputs(")'", f);
    enum value v = operands_of(t);
    if (v == VALUE_WORDS) fputs(" \\\n            '1:what:(", f), put_words(f, t->operands), fputs(")'", f);
    else if (v != VALUE_NONE) fprintf(f, " \\\n            '*:what:%s'", v == VALUE_FILE ? "_files" : " ");
    fputs(" ;;\n", f);
}

void completion_print_zsh(FILE *f, const struct commands *all)
{
    fputs("#compdef kvroute\n"
          "# zsh completion of kvroute, made by `kvroute completion zsh`\n"
          "_kvroute() {\n"
          "    local -a commands\n"
          "    commands=(",
          f);
    for (size_t i = 0; i < all->n; i++) {
        fprintf(f, "\n        '%s:", all->list[i]->table.command);
        put_quoted(f, all->list[i]->table.title, "\\:");
        fputs("'", f);
    }
    fputs("\n        'help:list the commands'\n        'version:print the version'\n    )\n"
          "    if ((CURRENT == 2)); then\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    shift words\n"
          "    ((CURRENT--))\n"
          "    case $words[1] in\n",
          f);
    for (size_t i = 0; i < all->n; i++) put_zsh_command(f, &all->list[i]->table);
    fputs("    esac\n"
          "}\n"
          "if [[ $funcstack[1] == _kvroute ]]; then _kvroute \"$@\"; else compdef _kvroute kvroute; fi\n",
          f);
}

/* ---- fish -------------------------------------------------------------------------------------------- */

/* The beginning of a line for a command. */
static void put_fish_line(FILE *f, const struct option_table *t)
{
    fprintf(f, "complete -c kvroute -n '__fish_seen_subcommand_from %s'", t->command);
}

static void put_fish_option(FILE *f, const struct option_table *t, const struct option_row *r)
{
    put_fish_line(f, t);
    fprintf(f, " -l %s", r->name);
    switch (value_of(r)) {
    case VALUE_NONE: fputs(" -f", f); break;
    case VALUE_WORDS: fputs(" -x -a '", f), put_words(f, r->values), fputs("'", f); break;
    case VALUE_FILE: fputs(" -r -F", f); break;
    case VALUE_DIR: fputs(" -x -a '(__fish_complete_directories)'", f); break;
    case VALUE_OTHER: fputs(" -x", f); break;
    }
    fputs(" -d '", f);
    put_quoted(f, r->help, "\\");
    fputs("'\n", f);
    if (!has_no(r)) return;
    put_fish_line(f, t);
    fprintf(f, " -f -l no-%s\n", r->name);
}

static void put_fish_command(FILE *f, const struct option_table *t)
{
    for (const struct option_row *r = t->rows; r < t->rows + t->n; r++)
        if (options_own(r)) put_fish_option(f, t, r);
    put_fish_line(f, t);
    fputs(" -x -l help -a '", f);
    put_topics(f, t);
    fputs("' -d 'explain the command'\n", f);
    enum value v = operands_of(t);
    put_fish_line(f, t);
    if (v == VALUE_WORDS) fputs(" -f -a '", f), put_words(f, t->operands), fputs("'\n", f);
    else fputs(v == VALUE_FILE ? " -F\n" : " -f\n", f);
}

void completion_print_fish(FILE *f, const struct commands *all)
{
    fputs("# fish completion of kvroute, made by `kvroute completion fish`\n", f);
    for (size_t i = 0; i < all->n; i++) {
        fprintf(f, "complete -c kvroute -n __fish_use_subcommand -f -a %s -d '", all->list[i]->table.command);
        put_quoted(f, all->list[i]->table.title, "\\");
        fputs("'\n", f);
    }
    fputs("complete -c kvroute -n __fish_use_subcommand -f -a 'help version'\n", f);
    for (size_t i = 0; i < all->n; i++) put_fish_command(f, &all->list[i]->table);
}
