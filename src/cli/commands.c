/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

int command_printed(int rc)
{
    bool lost = fflush(stdout) != 0;
    if (!lost && !ferror(stdout)) return rc;
    kvr_log_error("kvroute: the standard output cannot be written%s%s", lost ? ": " : "", lost ? strerror(errno) : "");
    return rc ? rc : 1;
}

int command_run(const struct command *c, const struct commands *all, int argc, char **argv)
{
    struct command_call called = {.all = all, .table = &c->table};
    void *options = calloc(1, c->options_size);
    if (!options) {
        kvr_log_error("kvroute %s: out of memory", c->table.command);
        return 1;
    }
    int rc = options_parse(&c->table, argc, argv, options, &called.from);
    bool ran = rc == 0;
    if (ran) rc = c->run(options, &called);
    else if (rc == 1) rc = 0; /* help was printed */
    options_free(&c->table, options, &called.from);
    free(options);
    return ran && c->stays ? rc : command_printed(rc);
}

const struct command *commands_find(const struct commands *all, const char *name)
{
    for (size_t i = 0; i < all->n; i++)
        if (!strcmp(name, all->list[i]->table.command)) return all->list[i];
    return NULL;
}
