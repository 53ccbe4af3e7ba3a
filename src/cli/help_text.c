/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/help_text.h"

#include <string.h>

bool help_text_next(const char **at, struct kvr_buf *out, bool *as_it_is)
{
    const char *line = *at + strspn(*at, "\n");
    *as_it_is = *line == ' ' || strncmp(line, HELP_USAGE, strlen(HELP_USAGE)) == 0;
    for (bool first = true; *line && *line != '\n'; first = false) {
        size_t n = strcspn(line, "\n");
        kvr_buf_printf(out, "%s%.*s", first ? "" : *as_it_is ? "\n" : " ", (int)n, line);
        line += n + (line[n] == '\n');
    }
    *at = line;
    return out->len > 0;
}
