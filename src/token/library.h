/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library that makes token ids (tokenizer/include/kvr_tokenizer.h), which is built apart and loaded at run time. It stays loaded until
 * the program ends: what its threads have left behind is its own.
 *
 * Threads: opened by one; its functions as its header says.
 */
#ifndef KVR_TOKEN_LIBRARY_H
#define KVR_TOKEN_LIBRARY_H

#include <stddef.h>

#include "kvr_tokenizer.h"

#define KVR_TOKEN_LIBRARY_NAME "libkvr_tokenizer.so"

struct kvr_token_library {
    char path[512];
    uint32_t (*abi)(void);
    int (*load)(const char *dir, const char *options, struct kvr_tok **out, struct kvr_tok_buf *err);
    int (*variant)(const struct kvr_tok *t, const char *options, struct kvr_tok **out, struct kvr_tok_buf *err);
    void (*free)(struct kvr_tok *t);
    int (*ask)(const struct kvr_tok *t, const char *question, size_t len, size_t inline_max, struct kvr_tok_job **job,
               struct kvr_tok_buf *out);
    int (*finish)(struct kvr_tok_job *job, struct kvr_tok_buf *out);
    void (*drop)(struct kvr_tok_job *job);
    void (*figures)(const struct kvr_tok *t, struct kvr_tok_figures *out);
    int (*info)(const struct kvr_tok *t, struct kvr_tok_buf *out);
    void (*buf_free)(struct kvr_tok_buf *b);
};

/* path: NULL: beside the program, in ../lib/kvroute and ../tokenizer of it, then where packages put it. Returns: 0, or -1 with the reason
 * in `why`, which names the files that were looked for or what is wrong with the one that was found. */
int kvr_token_library_open(const char *path, struct kvr_token_library *out, char *why, size_t cap);

#endif
