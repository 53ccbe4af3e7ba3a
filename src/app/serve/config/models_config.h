/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of models, as requests see them: what --models-file says, or what was put in its place over the admin port, until the file is
 * read the next time. A request holds what was current when its body was read, to its end; what is read anew takes the place of the
 * current one at once and as a whole, and what cannot be taken changes nothing.
 *
 * Threads: the main loop reads and puts; any thread holds what was read. A lock is held for as long as it takes to count a holder.
 */
#ifndef KVR_SERVE_MODELS_CONFIG_H
#define KVR_SERVE_MODELS_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

struct kvr_buf;
struct kvr_prom_page;
struct models_file;
struct config;
struct serve_options;

enum { MODELS_TAG = 20 }; /* bytes of a tag, with its quotes and the end */

/* Reads --models-file, if there is one. Returns: 0, or -1 with the reason in err. */
int models_config_open(struct config *config, char *err, size_t cap);
/* Reads it again, and counts that. Returns: 0, or -1 with the reason in err; then nothing is changed. */
int models_config_reload(struct config *config, char *err, size_t cap);
/* The same of text that came over the admin port; there need be no file. */
int models_config_put(struct config *config, const void *text, size_t len, char *err, size_t cap);
/* The entity tag of what is in force: two that are alike say the same. */
void models_config_tag(struct config *config, char out[MODELS_TAG]);
/* What is in force, where it came from and when, as a JSON object. */
void models_config_write(struct config *config, struct kvr_buf *b);
/* The next model of a file, from *at on, that has an option which does not go with the router's: true, with what is wrong in err. */
bool models_config_next_misfit(const struct serve_options *o, const char *name, const struct models_file *f, size_t *at, char *err,
                               size_t cap);
void models_config_metrics(struct config *config, struct kvr_prom_page *out);

/* Give it back. NULL: there is none. */
const struct models_file *models_config_hold(struct config *config);
void models_config_let_go(const struct models_file *f); /* NULL is fine */
void models_config_destroy(struct config *config);

#endif
