/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/pages.h"

struct man_options {
    char *dir;
    struct kvr_log_options log;
};

#define OPTIONS struct man_options
#include "cli/log_options.h"
#include "cli/option_rows.h"

static const struct option_row rows[] = {
    STR("dir", dir, NULL, "DIR", "write all pages there, into man1 and man5"),
    LOG_ROWS(AT(log)),
};

/* Returns: false, there is no such page. */
static bool print_page(const struct commands *all, FILE *f, const char *page)
{
    const struct command *c = commands_find(all, strncmp(page, "kvroute-", 8) ? page : page + 8);
    if (c) man_print_command(f, c);
    else if (!strcmp(page, "kvroute")) man_print_program(f, all);
    else if (!strcmp(page, "kvroute.yaml")) man_print_file(f, &command_serve.table);
    return c || !strcmp(page, "kvroute") || !strcmp(page, "kvroute.yaml");
}

static int write_page(const struct commands *all, const char *dir, int section, const char *page)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/man%d", dir, section);
    if (mkdir(path, 0777) && errno != EEXIST) goto failed;
    snprintf(path, sizeof path, "%s/man%d/%s.%d", dir, section, page, section);
    FILE *f = fopen(path, "w");
    if (!f) goto failed;
    (void)print_page(all, f, page);
    bool written = !ferror(f);
    if (fclose(f) == 0 && written) return 0;
failed:
    kvr_log_error("kvroute man: --dir: cannot write '%s': %s", path, strerror(errno));
    return 1;
}

static int write_pages(const struct commands *all, const char *dir)
{
    char page[64];
    int rc = write_page(all, dir, 1, "kvroute");
    for (size_t i = 0; i < all->n && rc == 0; i++) {
        snprintf(page, sizeof page, "kvroute-%s", all->list[i]->table.command);
        rc = write_page(all, dir, 1, page);
    }
    return rc ? rc : write_page(all, dir, 5, "kvroute.yaml");
}

static int run(void *options, struct command_call *called)
{
    const struct man_options *o = options;
    const char *page = called->from.operands_n ? called->from.operands[0] : "kvroute";
    if (called->from.operands_n > (o->dir ? 0 : 1)) {
        kvr_log_error("kvroute man: allowed: one PAGE, or --dir DIR");
        return 2;
    }
    if (o->dir) return write_pages(called->all, o->dir);
    if (print_page(called->all, stdout, page)) return 0;
    kvr_log_error("kvroute man: there is no page '%s'; allowed: kvroute, kvroute.yaml, and the commands of kvroute help", page);
    return 2;
}

const struct command command_man = {.table = {"man", "print the man pages", help_man, rows, KVR_ARRAY_LEN(rows), "[PAGE]", true},
                                    .options_size = sizeof(struct man_options),
                                    .run = run};
