/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"

#include <string.h>

const struct command *commands_find(const struct commands *all, const char *name)
{
    for (size_t i = 0; i < all->n; i++)
        if (!strcmp(name, all->list[i]->table.command)) return all->list[i];
    return NULL;
}
