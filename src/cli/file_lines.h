/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a check that begin with FILE:LINE, held until a file has been checked and printed on stderr in the order of its lines. */
#ifndef KVR_CLI_FILE_LINES_H
#define KVR_CLI_FILE_LINES_H

#include <stddef.h>

struct file_line;

struct file_lines {
    struct file_line *list;
    size_t n;
};

/* Without memory it is printed at once. */
void file_lines_add(struct file_lines *f, const char *text);
/* Prints them, files in the order in which they occurred, and forgets them. */
void file_lines_print(struct file_lines *f);

#endif
