/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What --models-file says, as requests see it. A request holds what was current when its body was read, to its end; a file that is read
 * anew takes the place of the current one at once and as a whole, and one that cannot be taken changes nothing.
 *
 * Threads: the main loop reads files; any thread holds what was read. A lock is held for as long as it takes to count a holder.
 */
#ifndef KVR_SERVE_MODELS_CONFIG_H
#define KVR_SERVE_MODELS_CONFIG_H

#include <stddef.h>

struct models_file;
struct serve;

/* Reads --models-file, if there is one. Returns: 0, or -1 with the reason in err. */
int models_config_open(struct serve *s, char *err, size_t cap);
/* Reads it again, and counts that. Returns: 0, or -1 with the reason in err; then nothing is changed. */
int models_config_reload(struct serve *s, char *err, size_t cap);
/* Give it back. NULL: there is none. */
const struct models_file *models_config_hold(struct serve *s);
void models_config_let_go(const struct models_file *f); /* NULL is fine */
void models_config_destroy(struct serve *s);

#endif
