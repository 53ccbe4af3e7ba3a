/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizers of the models that workers serve: tokenizers.c finds each model's folder and opens its tokenizer, prober.c asks engines
 * the built-in questions. What ids made here are worth is decided in src/token.
 *
 *     --tokenizer-dir MODEL=DIR, or DIR for every model --.
 *     the adapter's or the base model's folder -----------+--> an entry per served model --> kvr_tokenizer
 *     `root` of /v1/models: a path of this machine, or ---'           |
 *     a name in the cache of the Hugging Face hub                     '--> each worker that serves it is asked when it comes up
 *
 * Nothing is ever downloaded. Entries are made on the main loop, never removed, and at most TOKENIZERS_MAX; models beyond ask engines. On
 * SIGHUP every folder is found and read again, and one also when no worker tells the `root` any more that its folder was found by; trust is
 * then earned anew.
 *
 * Threads: the main loop, but for tokenizers_find, _pool and _check_due.
 */
#ifndef KVR_SERVE_TOKENIZERS_H
#define KVR_SERVE_TOKENIZERS_H

#include "token/tokenizer.h"

struct kvr_prom_page;
struct process;
struct tokenizers;
struct workers;

enum { TOKENIZERS_MAX = 64 };

/* Before any loop runs. Returns: 0, -1 with the reason in err. */
struct tokenizers *tokenizers_create(struct process *p, struct workers *workers); /* NULL: out of memory */
int tokenizers_open(struct tokenizers *t, char *err, size_t cap);
/* What open would look at before it opens the library. Returns: 0, or -1 with the reason in err. */
int tokenizers_check(const struct tokenizers *t, char *err, size_t cap);
/* Any thread. model "": the only one that workers serve, but for adapters. NULL: the model has none (yet). It lives as long as `serve`. */
struct kvr_tokenizer *tokenizers_find(struct tokenizers *t, const char *model);
bool tokenizers_are_used(const struct tokenizers *t); /* tokens may be made here */
struct kvr_token_pool *tokenizers_pool(const struct tokenizers *t);
/* Any thread: is a request of this model to be checked with an engine now? One in --tokenizer-check, at most one a second and model. */
bool tokenizers_check_due(struct tokenizers *t, const struct kvr_tokenizer *tokenizer);
void tokenizers_doubted(struct tokenizers *t, const char *model); /* workers_hooks.tokens_doubted */
void tokenizers_reload(struct tokenizers *t, const char *dir);    /* those whose folder it is; NULL: all */
void tokenizers_tick(struct tokenizers *t);                       /* every 0.1 s */
void tokenizers_stop(
    struct tokenizers *t); /* no question is under way any more, and no thread that has one; before the main loop's client closes */
void tokenizers_destroy(struct tokenizers *t);                    /* no other thread is left */
void tokenizers_write(struct tokenizers *t, struct kvr_buf *out); /* JSON: a list of objects */
void tokenizers_metrics(struct tokenizers *t, struct kvr_prom_page *out);

#endif
