/* SPDX-License-Identifier: Apache-2.0 */
#include "base/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool kvr_terminal_coloured(int fd)
{
    const char *refused = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return isatty(fd) && !(refused && *refused) && terminal && strcmp(terminal, "dumb") != 0;
}
