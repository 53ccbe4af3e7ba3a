/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folders that the operator gives (--tokenizer-dir [MODEL=]DIR), and token ids made of them at once, for programs that have no engine to
 * compare with: the operator answers for the folders.
 *
 *     kvr_given_tokens_open   --> every folder is read, or the first that cannot be is named
 *     kvr_given_tokens_make   --> ids of a question (kvr_tokenizer.h): a chat ("messages") or a text ("prompt")
 *     kvr_given_tokens_reload --> every folder is read again, on a thread of its own; ids are made with what was read before until then
 *
 * What was read of a folder goes with its last user, so that while it is read again both are in memory.
 *
 * Threads: any, once it is open; _reload and _close one.
 */
#ifndef KVR_TOKEN_GIVEN_H
#define KVR_TOKEN_GIVEN_H

#include <stdbool.h>
#include <stddef.h>

#include "token/pool.h"

enum { KVR_GIVEN_DIRS_MAX = 64 };

/* What --tokenizer-dir says of a model; of all: model NULL. Returns: NULL when it says nothing. */
const char *kvr_given_dir(char *const *dirs, size_t n, const char *model);
/* name_max: bytes of a model's name. Returns: 0, -1 with the reason, which names the option and what is allowed. */
int kvr_given_dirs_check(char *const *dirs, size_t n, size_t name_max, char *why, size_t cap);
/* The folder that one of them names; borrowed from it. */
const char *kvr_given_dir_path(const char *given);
bool kvr_dir_has_tokenizer(const char *dir);

struct kvr_given_tokens;

struct kvr_given_tokens_config {
    const char *program;                  /* "kvroute indexer", for what _reload says; NULL where nothing is read again; it outlives it */
    const char *lib;                      /* --tokenizer-lib, or NULL */
    char *const *dirs;                    /* [MODEL=]DIR; like the folder below they outlive it */
    const char *dir;                      /* in their place one folder, of every model */
    const char *profile;                  /* --tokenizer-profile: JSON, or NULL for what vLLM 0.32 does */
    size_t dirs_n, name_max, cache_bytes; /* name_max: bytes of a model's name */
};

/* Takes up to a second a folder. Returns: 0, -1 with the reason. */
int kvr_given_tokens_open(const struct kvr_given_tokens_config *config, struct kvr_given_tokens **out, char *why, size_t cap);
/* NULL is fine. Nobody makes ids any more. Waits for the folder that is being read. */
void kvr_given_tokens_close(struct kvr_given_tokens *g);
/* Begins. A folder that cannot be read stays as it was; the log has a line of each. NULL is fine. */
void kvr_given_tokens_reload(struct kvr_given_tokens *g);
/* Is there a folder for the model? */
bool kvr_given_tokens_has(const struct kvr_given_tokens *g, const char *model);
/* Returns: 0 with *ids, or enum of kvr_tokenizer.h with the reason, "label: detail", which may quote the question. A model without a
 * folder is KVR_TOK_EUNSUPPORTED. */
int kvr_given_tokens_make(struct kvr_given_tokens *g, const char *model, const char *question, size_t len, struct kvr_ids **ids, char *why,
                          size_t cap);

#endif
