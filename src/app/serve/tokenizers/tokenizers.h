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
struct serve;
struct tokenizers;

enum { TOKENIZERS_MAX = 64 };

/* Before any loop runs. s->tokenizers stays NULL when no tokens are made here. Returns: 0, -1 with the reason in err. */
int tokenizers_open(struct serve *s, char *err, size_t cap);
/* What open would look at before it opens the library. Returns: 0, or -1 with the reason in err. */
int tokenizers_check(const struct serve *s, char *err, size_t cap);
/* Any thread. model "": the only one there is, but for adapters. NULL: the model has none (yet). It lives as long as `serve`. */
struct kvr_tokenizer *tokenizers_find(const struct serve *s, const char *model);
struct kvr_token_pool *tokenizers_pool(const struct serve *s);
/* Any thread: is a request of this model to be checked with an engine now? One in --tokenizer-check, at most one a second and model. */
bool tokenizers_check_due(const struct serve *s, const struct kvr_tokenizer *t);
void tokenizers_doubted(struct serve *s, const char *model); /* serve_hooks.tokens_doubted */
void tokenizers_reload(struct serve *s, const char *dir);    /* those whose folder it is; NULL: all */
void tokenizers_tick(struct serve *s);                       /* every 0.1 s */
void tokenizers_stop(struct serve *s);                       /* no question is under way any more; before the main loop's client closes */
void tokenizers_destroy(struct serve *s);                    /* no other thread is left */
void tokenizers_write(struct serve *s, struct kvr_buf *out); /* JSON: a list of objects */
void tokenizers_metrics(struct serve *s, struct kvr_prom_page *out);

#endif
